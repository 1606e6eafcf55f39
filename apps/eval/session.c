/* session.c: the course of an evaluation; see session.h. asked.c reads the options, prepare.c opens what they name. */
#include "apps/eval/session.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "apps/compare/f32_copy.h"
#include "apps/eval/conclude.h"
#include "apps/eval/html.h"
#include "apps/eval/inside.h"
#include "apps/eval/items_file.h"
#include "apps/eval/partial.h"
#include "apps/interrupt.h"
#include "apps/output.h"
#include "apps/sum.h"
#include "host/clock.h"
#include "host/error.h"

static const char where[] = "octavo eval";

static void find_partial(eval_session *s)
{
    const char *const given = s->options.partial;
    if (given != NULL) {
        (void)snprintf(s->partial, sizeof(s->partial), "%s", strcmp(given, "none") != 0 ? given : "");
        return;
    }
    char path[sizeof(s->partial) - 64];
    if (!app_rates_path(path, sizeof(path)) || !app_rates_make_folder(path)) {
        (void)app_output_fail("note: there is no cache folder to keep an unfinished evaluation in; --partial FILE names another place");
        return;
    }
    char *const slash = strrchr(path, '/');
    if (slash != NULL) {
        *slash = '\0';
        (void)snprintf(s->partial, sizeof(s->partial), "%s/eval-%016llx.partial", path, (unsigned long long)app_sum(APP_SUM_INIT, s->asked.bytes, s->asked.length));
    }
}

/* A partial result of the same evaluation takes the empty one's place. */
static oct_status resume(eval_session *s, oct_error *error)
{
    eval_result read;
    bool found = false;
    find_partial(s);
    if (s->partial[0] == '\0') {
        return OCT_OK;
    }
    oct_status status = eval_partial_read(s->partial, s->asked.bytes, &read, &found, error);
    if (status != OCT_OK || !found) {
        return status;
    }
    if (!eval_session_fits(s, &read)) {
        eval_result_free(&read);
        return oct__error_set(error, OCT_BAD_DATA, where, "%s is damaged: it is not of this evaluation's shape; remove it to begin again", s->partial);
    }
    eval_result_free(&s->result);
    s->result = read;
    s->result.provenance.n_resumed++;
    s->seconds_before = read.provenance.seconds;
    s->is_kept = true;
    return OCT_OK;
}

/* ---- keeping -------------------------------------------------------------------------------------------------------------------------------- */

static oct_status keep_now(eval_session *s, oct_error *error)
{
    const double now = oct__clock_seconds();
    s->result.provenance.seconds = s->seconds_before + now - s->begun;
    if (s->partial[0] == '\0' || s->is_full) {
        return OCT_OK;
    }
    const oct_status status = eval_partial_write(s->partial, s->asked.bytes, &s->result, error);
    s->kept_at = oct__clock_seconds();
    s->is_kept |= status == OCT_OK;
    return status;
}

/* What is done lives on in memory: a full disk must not end the work. */
static void try_to_keep(eval_session *s)
{
    oct_error error = OCT_ERROR_INIT;
    if (keep_now(s, &error) != OCT_OK) {
        (void)app_output_fail("note: from here on nothing is kept: %s", error.text);
        s->is_full = true;   /* what was kept before stays, until the report is written */
    }
}

static oct_status keep(void *user, oct_error *error)
{
    eval_session *const s = user;
    (void)error;
    if (app_interrupted() || oct__clock_seconds() - s->kept_at >= s->options.keep_seconds) {
        try_to_keep(s);
    }
    return OCT_OK;
}

/* ---- running ---------------------------------------------------------------------------------------------------------------------------------- */

/* ---- within the model ----------------------------------------------------------------------------------------------------------------------- */

static bool inside_goes_on(void *user, const char *doing, double done, double total)
{
    eval_session *const s = user;
    (void)total;
    app_progress_say(&s->progress, doing);
    if (done > s->inside_done) {
        app_progress_add(&s->progress, done - s->inside_done);
        s->inside_done = done;
    }
    return !app_interrupted();
}

/* Formats after the base that are taken layer by layer. */
static uint32_t sensitivities(const eval_session *s) { return s->options.n_sensitivities < s->n_formats ? s->options.n_sensitivities : s->n_formats - 1; }

static eval_inside_options inside_options(eval_session *s, const octe_model *model, const int32_t *tokens, uint32_t n)
{
    return (eval_inside_options){
        .model = model, .tokens = tokens, .n_tokens = n, .n_threads = s->options.n_threads, .quick = s->options.quick,
        .base = { .k = s->formats[0].k, .v = s->formats[0].v, .page_size = s->options.block_size }, .rates = s->rates.pointer, .progress = inside_goes_on, .user = s,
    };
}

static double work_of(eval_session *s, const eval_pass *pass)
{
    const eval_inside_options within = inside_options(s, s->model, NULL, s->sources[0].n_tokens);
    double work = s->inside && pass->inside == NULL ? eval_inside_work(&within, s->n_formats, sensitivities(s)) : 0;
    for (uint32_t i = 0; i < pass->n_texts; i++) {
        work += (double)(pass->texts[i].n_tokens - pass->texts[i].n_done) * (s->n_formats + (pass->texts[i].noise != NULL));
    }
    work += pass->greedy.n_done == 0 ? eval_greedy_work(&pass->greedy) * s->n_formats : 0;
    for (uint32_t i = 0; i < pass->n_tasks; i++) {
        for (uint32_t f = 0; f < s->n_formats && pass->tasks[i].skipped == NULL; f++) {
            work += eval_task_work(s->kinds[i], &s->questions[i], pass->tasks[i].n_done[f], s->options.generate_tokens);
        }
    }
    return work;
}

/* One piece: what is stopped within it is begun again. */
static oct_status run_inside(eval_session *s, const eval_run *run, eval_pass *pass, oct_error *error)
{
    const eval_source *const source = &s->sources[0];
    const uint32_t n_special = source->bos >= 0, n = source->n_tokens + n_special;
    eval_inside_wanted wanted[EVAL_MAX_FORMATS];
    if (!s->inside || pass->inside != NULL) {
        return OCT_OK;
    }
    int32_t *const tokens = malloc(n * sizeof(*tokens));
    if (tokens == NULL) {
        return oct__error_set(error, OCT_OUT_OF_MEMORY, where, "out of memory for %u tokens", n);
    }
    tokens[0] = source->bos;
    memcpy(tokens + n_special, source->tokens, source->n_tokens * sizeof(*tokens));
    for (uint32_t f = 0; f < s->n_formats; f++) {
        wanted[f] = (eval_inside_wanted){ .format = f, .kv = eval_run_config(run, f), .sensitivity = f > 0 && f <= sensitivities(s) };
    }
    const eval_inside_options options = inside_options(s, run->model, tokens, n);
    s->inside_done = 0;
    oct_status status = eval_inside_measure(&options, wanted, s->n_formats, &pass->inside, error);
    free(tokens);
    return status == OCT_OK ? eval_run_keep(run, error) : status;
}

static oct_status run_pass(eval_session *s, uint32_t p, const octe_model *model, const char *path, oct_error *error)
{
    eval_pass *const pass = &s->result.passes[p];
    const eval_run run = {
        .model = model, .path = path, .vocab = s->vocab, .n_vocab = octe_model_info_get(model)->n_vocab, .formats = s->formats, .n_formats = s->n_formats, .scales = &s->scales[p],
        .n_threads = s->options.n_threads, .page_size = s->options.block_size, .rates = s->rates.pointer, .progress = &s->progress, .keep = keep, .user = s,
    };
    char doing[48];
    const uint32_t chunk = s->options.chunk_tokens < s->items.context_tokens ? s->options.chunk_tokens : s->items.context_tokens;
    app_progress_say(&s->progress, "calibrating scales");
    oct_status status = compare_scales_calibrate(&s->scales[p], s->formats, s->n_formats, model, s->vocab, s->options.n_threads, chunk, error);
    for (uint32_t i = 0; i < pass->n_texts && status == OCT_OK; i++) {
        (void)snprintf(doing, sizeof(doing), "tokens of %.20s%s", pass->texts[i].name, p > 0 ? ", F32 copy" : "");
        app_progress_say(&s->progress, doing);
        status = eval_text_run(&run, &s->sources[i], &pass->texts[i], error);
    }
    if (status == OCT_OK) {
        app_progress_say(&s->progress, "greedy continuations");
        status = eval_greedy_run(&run, &s->sources[0], &pass->greedy, error);
    }
    for (uint32_t i = 0; i < pass->n_tasks && status == OCT_OK; i++) {
        for (uint32_t f = 0; f < s->n_formats && status == OCT_OK && pass->tasks[i].skipped == NULL; f++) {
            (void)snprintf(doing, sizeof(doing), "%.16s, %.12s%s", pass->tasks[i].title, s->formats[f].name, p > 0 ? ", F32 copy" : "");
            app_progress_say(&s->progress, doing);
            status = eval_task_run(&run, f, s->kinds[i], &s->questions[i], s->options.generate_tokens, &pass->tasks[i], error);
        }
    }
    if (status == OCT_OK) {
        status = run_inside(s, &run, pass, error);
    }
    if (status == OCT_OK) {
        status = eval_pass_conclude(pass, s->n_formats, s->options.seed, error);
    }
    for (uint32_t i = 0; i < pass->n_texts && status == OCT_OK; i++) {
        status = eval_text_words(&run, &s->sources[i], &pass->texts[i], error);
    }
    return status;
}

/* Ahead of everything: a disk without room for it had better be known before minutes have passed. */
static oct_status write_copy(eval_session *s, oct_error *error)
{
    app_progress_say(&s->progress, "writing the F32 copy");
    return compare_f32_copy(s->options.model, s->options.f32_folder, s->options.n_threads, s->copy_path, sizeof(s->copy_path), error);
}

static oct_status run_f32(eval_session *s, oct_error *error)
{
    const oct_status status = octe_model_open(s->copy_path, NULL, &s->copy, error);
    return status == OCT_OK ? run_pass(s, 1, s->copy, s->copy_path, error) : status;
}

/* Before the work: who waits for minutes may look at what is asked meanwhile. */
static oct_status save_items(const eval_session *s, oct_error *error)
{
    app_text text = { 0 };
    for (uint32_t i = 0; i < s->n_kinds; i++) {
        eval_items_file_add(s->kinds[i], &s->questions[i], s->vocab, &text);
    }
    app_text_add(&text, "%s", "");
    const int code = app_output_report(&text, s->options.items);
    app_text_free(&text);
    return code == 0 ? OCT_OK : oct__error_set(error, OCT_IO_ERROR, where, "--save-items: the items are not written");
}

oct_status eval_session_run(eval_session *s, oct_error *error)
{
    s->begun = s->kept_at = oct__clock_seconds();
    oct_status status = eval_session_open(s, error);
    if (status == OCT_OK) {
        status = eval_session_prepare(s, error);
    }
    if (status == OCT_OK && s->options.items != NULL) {
        status = save_items(s, error);
    }
    if (status == OCT_OK) {
        status = resume(s, error);
    }
    if (status != OCT_OK) {
        return status;
    }
    double work = 0;
    for (uint32_t p = 0; p < s->result.n_passes; p++) {
        /* F32 weights are about twice as slow. */
        work += work_of(s, &s->result.passes[p]) * (1 + p);
    }
    app_progress_begin(&s->progress, work);
    status = s->options.f32_weights ? write_copy(s, error) : OCT_OK;
    if (status == OCT_OK) {
        status = run_pass(s, 0, s->model, s->options.model, error);
    }
    if (status == OCT_OK && s->options.f32_weights) {
        status = run_f32(s, error);
    }
    app_progress_end(&s->progress);
    s->result.complete = status == OCT_OK;
    try_to_keep(s);
    return status;
}

/* ---- the end ------------------------------------------------------------------------------------------------------------------------------------ */

static void add_report(const eval_session *s, const char *form, app_text *text)
{
    if (strcmp(form, "json") == 0) {
        eval_result_json(&s->result, false, text);
    } else if (strcmp(form, "html") == 0) {
        eval_report_html(&s->result, text);
    } else {
        eval_report_markdown(&s->result, text);
    }
}

int eval_session_deliver(eval_session *s)
{
    const eval_options *const o = &s->options;
    int code = 0;
    /* A file that cannot be written must not cost the report its other places: it took minutes. */
    for (uint32_t i = 0; i <= o->saves.n; i++) {
        app_text text = { 0 };
        add_report(s, i < o->saves.n ? eval_form_of(o->saves.item[i]) : o->form, &text);
        const int written = app_output_report(&text, i < o->saves.n ? o->saves.item[i] : o->output);
        code = code != 0 ? code : written;
        app_text_free(&text);
    }
    if (code == 0 && s->is_kept) {
        (void)unlink(s->partial);
    }
    return code;
}

void eval_session_say_kept(const eval_session *s)
{
    if (s->is_kept) {
        (void)app_output_fail("what is done is kept in %s; the same command continues from it", s->partial);
    }
}

void eval_session_close(eval_session *s)
{
    for (uint32_t i = 0; i < EVAL_MAX_TEXTS; i++) {
        free((void *)(uintptr_t)s->sources[i].tokens);
    }
    for (uint32_t i = 0; i < s->n_kinds; i++) {
        eval_questions_free(&s->questions[i]);
        free(s->skipped[i]);
    }
    for (uint32_t p = 0; p < EVAL_MAX_PASSES; p++) {
        compare_scales_free(&s->scales[p]);
    }
    eval_result_free(&s->result);
    app_text_free(&s->asked);
    free(s->command);
    octe_vocab_close(s->vocab);
    octe_model_close(s->copy);
    octe_model_close(s->model);
}
