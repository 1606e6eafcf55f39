/* prepare.c: opens what an evaluation needs and makes the empty result that it fills; see session.h. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "apps/chronicle.h"
#include "apps/eval/inside.h"
#include "apps/eval/session.h"
#include "apps/machine_name.h"
#include "apps/sum.h"
#include "host/error.h"
#include "host/threads.h"
#include "octavo/version.h"

static const char where[] = "octavo eval";

enum { GREEDY_PROMPTS = 16, GREEDY_TOKENS = 64, QUICK_PROMPTS = 8, QUICK_TOKENS = 32 };

/* ---- opening --------------------------------------------------------------------------------------------------------------------------- */

static oct_status open_texts(eval_session *s, uint32_t context, oct_error *error)
{
    const eval_options *const o = &s->options;
    oct_status status = OCT_OK;
    for (uint32_t i = 0; i < o->texts.n && status == OCT_OK && (s->tokens || s->greedy || s->inside); i++) {
        int32_t *tokens = NULL;
        eval_source *const source = &s->sources[i];
        status = app_text_tokens_checked(s->vocab, o->texts.item[i], APP_CHRONICLE_JUDGED, o->n_tokens, &tokens, &source->n_tokens, error);
        source->tokens = tokens;
        source->chunk_tokens = o->chunk_tokens < context ? o->chunk_tokens : context;
        source->bos = octe_vocab_adds_bos(s->vocab) ? octe_vocab_bos(s->vocab) : -1;
        if (status == OCT_OK && source->chunk_tokens < 2) {
            status = oct__error_set(error, OCT_UNSUPPORTED, where, "the model's context of %u token is too short: nothing stands before a token in it", context);
        }
    }
    return status;
}

/* A task that can't be run is an error when it was named, and said in the report when all were. */
static oct_status make_questions(eval_session *s, oct_error *error)
{
    for (uint32_t i = 0; i < s->n_kinds; i++) {
        oct_error inner = OCT_ERROR_INIT;
        eval_item_options o = s->items;
        o.n_items = s->kinds[i]->scoring == EVAL_GENERATE ? s->options.n_generated : o.n_items;
        const oct_status status = s->kinds[i]->make(s->kinds[i], &o, &s->questions[i], &inner);
        if (status == OCT_OK) {
            continue;
        }
        eval_questions_free(&s->questions[i]);
        s->skipped[i] = s->all && status != OCT_OUT_OF_MEMORY ? malloc(strlen(inner.text) + 1) : NULL;
        if (s->skipped[i] == NULL) {
            return oct__error_set(error, status, where, "%s", inner.text);
        }
        memcpy(s->skipped[i], inner.text, strlen(inner.text) + 1);
    }
    return OCT_OK;
}

oct_status eval_session_open(eval_session *s, oct_error *error)
{
    oct_status status = octe_model_open(s->options.model, NULL, &s->model, error);
    if (status == OCT_OK) {
        status = octe_vocab_open(s->options.model, &s->vocab, error);
    }
    if (status != OCT_OK) {
        return status;
    }
    const octe_model_info *const info = octe_model_info_get(s->model);
    s->items.vocab = s->vocab;
    s->items.context_tokens = info->n_ctx_train;
    status = open_texts(s, info->n_ctx_train, error);
    return status == OCT_OK ? make_questions(s, error) : status;
}

/* Of its size and of 256 parts spread over it: a model is gigabytes. "" when it can't be read, which opening it has said. */
static void sum_model(const char *path, char *sum, size_t size)
{
    enum { PARTS = 256, PART_BYTES = 65536 };
    FILE *const file = fopen(path, "rb");
    char *const part = malloc(PART_BYTES);
    uint64_t total = APP_SUM_INIT;
    if (file != NULL && part != NULL && fseek(file, 0, SEEK_END) == 0) {
        const long bytes = ftell(file);
        total = app_sum(total, &bytes, sizeof(bytes));
        for (int i = 0; i < PARTS && bytes > 0; i++) {
            const long at = bytes <= (long)PARTS * PART_BYTES ? (long)i * PART_BYTES : (bytes - PART_BYTES) / (PARTS - 1) * i;
            const size_t n = fseek(file, at, SEEK_SET) == 0 ? fread(part, 1, PART_BYTES, file) : 0;
            total = app_sum(total, part, n);
        }
        (void)snprintf(sum, size, "%016llx", (unsigned long long)total);
    }
    free(part);
    if (file != NULL) {
        (void)fclose(file);
    }
}

/* ---- what was asked, and a result for it ----------------------------------------------------------------------------------------------- */

static uint64_t sum_questions(const eval_questions *questions)
{
    uint64_t sum = APP_SUM_INIT;
    for (uint32_t i = 0; i < questions->n; i++) {
        const eval_question *const q = &questions->items[i];
        sum = app_sum(sum, q->context, q->n_context * sizeof(*q->context));
        sum = app_sum(sum, &q->right, sizeof(q->right));
        sum = app_sum(sum, q->expected != NULL ? q->expected : "", q->expected != NULL ? strlen(q->expected) : 0);
        for (uint32_t c = 0; c < q->n_choices; c++) {
            sum = app_sum(sum, q->choices[c].tokens, q->choices[c].n_tokens * sizeof(*q->choices[c].tokens));
        }
    }
    return sum;
}

/* All that a continuation must share; what only says how fast or where to is not in it. */
static void note_asked(eval_session *s, const eval_provenance *p)
{
    const eval_options *const o = &s->options;
    app_text *const t = &s->asked;
    app_text_add(t, "octavo: %s\nmodel: %s\ncpu: %s\nthreads: %u\npage: %u\nseed: %u\nF32 copy: %d\nfloor: %d\nquick: %d\nlayer by layer: %u\ncaches:", p->octavo, p->model_sum, p->cpu, p->n_threads,
                 o->block_size, o->seed, o->f32_weights, !o->no_floor, o->quick, s->inside ? o->n_sensitivities : 0);
    for (uint32_t i = 0; i < s->n_formats; i++) {
        app_text_add(t, " %s", s->formats[i].name);
    }
    app_text_add(t, "\ntokens: %d, greedy: %d, inside: %d\n", s->tokens, s->greedy, s->inside);
    for (uint32_t i = 0; i < o->texts.n && s->sources[i].tokens != NULL; i++) {
        const eval_source *const source = &s->sources[i];
        app_text_add(t, "text %u: %u tokens in sequences of %u, %016llx\n", i + 1, source->n_tokens, source->chunk_tokens,
                     (unsigned long long)app_sum(APP_SUM_INIT, source->tokens, source->n_tokens * sizeof(*source->tokens)));
    }
    for (uint32_t i = 0; i < s->n_kinds; i++) {
        app_text_add(t, "task %s: %u items, %u tokens, %016llx\n", s->kinds[i]->name, s->questions[i].n, s->kinds[i]->scoring == EVAL_GENERATE ? o->generate_tokens : 0,
                     (unsigned long long)sum_questions(&s->questions[i]));
    }
}

static void fill_provenance(eval_session *s, eval_provenance *p)
{
    const octe_model_info *const m = octe_model_info_get(s->model);
    const time_t now = time(NULL);
    struct tm utc;
    *p = (eval_provenance){
        .n_layers = m->n_layers, .n_layers_window = m->n_layers_window, .n_heads = m->n_heads, .n_heads_kv = m->n_heads_kv, .head_dim = m->head_dim, .n_vocab = m->n_vocab,
        .n_ctx_train = m->n_ctx_train, .window_tokens = m->window_tokens, .n_threads = s->options.n_threads > 0 ? s->options.n_threads : oct__threads_usable_cpus(), .seed = s->options.seed, .command = s->command,
    };
    s->command = NULL;
    (void)snprintf(p->octavo, sizeof(p->octavo), "%s", oct_version_string());
    (void)snprintf(p->model_file, sizeof(p->model_file), "%.127s", app_text_title(s->options.model));
    (void)snprintf(p->model_name, sizeof(p->model_name), "%.127s", m->name);
    (void)snprintf(p->architecture, sizeof(p->architecture), "%.31s", m->architecture);
    sum_model(s->options.model, p->model_sum, sizeof(p->model_sum));
    app_machine_name(p->cpu, sizeof(p->cpu));
    if (gmtime_r(&now, &utc) != NULL) {
        (void)strftime(p->began, sizeof(p->began), "%Y-%m-%dT%H:%M:%SZ", &utc);
    }
}

static oct_status prepare_pass(eval_session *s, eval_pass *pass, oct_error *error)
{
    const eval_options *const o = &s->options;
    oct_status status = OCT_OK;
    (void)snprintf(pass->floor.how, sizeof(pass->floor.how), "llama.cpp's %s cache against ours, same weights and tokens%s", eval_noise_of(&s->formats[0])->label,
                   o->texts.n > 1 ? " of the first text; the others have no floor of their own" : "");
    for (uint32_t i = 0; i < o->texts.n && s->tokens && status == OCT_OK; i++) {
        const char *const title = app_text_title(o->texts.item[i]);
        eval_text *const text = &pass->texts[i];
        pass->n_texts = i + 1;
        text->name = calloc(strlen(title) + 1, 1);
        if (text->name == NULL) {
            return oct__error_set(error, OCT_OUT_OF_MEMORY, where, "out of memory");
        }
        memcpy(text->name, title, strlen(title));
        status = eval_text_prepare(text, &s->sources[i], s->n_formats, i == 0 && !o->no_floor, error);
    }
    const uint32_t places = s->greedy && s->sources[0].tokens != NULL ? s->sources[0].n_tokens / EVAL_GREEDY_PROMPT_TOKENS : 0, most = o->quick ? QUICK_PROMPTS : GREEDY_PROMPTS;
    if (status == OCT_OK && places > 1) {
        status = eval_greedy_prepare(&pass->greedy, places - 1 < most ? places - 1 : most, o->quick ? QUICK_TOKENS : GREEDY_TOKENS, s->n_formats, error);
    }
    for (uint32_t i = 0; i < s->n_kinds && status == OCT_OK; i++) {
        eval_task *const task = &pass->tasks[i];
        pass->n_tasks = i + 1;
        status = eval_task_prepare(task, s->kinds[i], &s->questions[i], s->n_formats, error);
        if (status == OCT_OK && s->skipped[i] != NULL) {
            task->skipped = malloc(strlen(s->skipped[i]) + 1);
            status = task->skipped != NULL ? OCT_OK : oct__error_set(error, OCT_OUT_OF_MEMORY, where, "out of memory");
            if (status == OCT_OK) {
                memcpy(task->skipped, s->skipped[i], strlen(s->skipped[i]) + 1);
            }
        }
    }
    return status;
}

/* What is an index in what was read is one. */
static bool inside_fits(const eval_session *s, const eval_inside *in)
{
    bool fits = true;
    for (uint32_t i = 0; in != NULL && i < in->n_formats; i++) {
        fits &= in->formats[i].format < s->n_formats;
    }
    for (uint32_t i = 0; in != NULL && i < in->n_sensitivities; i++) {
        fits &= in->sensitivities[i].format < s->n_formats;
    }
    for (uint32_t i = 0; in != NULL && i < in->n_findings; i++) {
        fits &= in->findings[i].format < s->n_formats;
    }
    return fits;
}

static bool text_fits(const eval_session *s, const eval_source *source, const eval_text *text)
{
    const uint32_t n_vocab = octe_model_info_get(s->model)->n_vocab, per_sequence = source->chunk_tokens - 1;
    bool fits = true;
    for (uint64_t i = 0; i < text->n_done; i++) {
        fits &= text->positions[i] == i % per_sequence + 1;
        for (uint32_t f = 0; f < s->n_formats; f++) {
            const int32_t top = eval_text_tokens(text, f)[i].top;
            fits &= top >= 0 && (uint32_t)top < n_vocab;
        }
    }
    return fits;
}

/* What was read has the shape that this run fills: the checksum says that it is whole, not that this program wrote it. */
static bool pass_fits(const eval_session *s, const eval_pass *read, const eval_pass *own)
{
    bool fits = read->n_texts == own->n_texts && read->n_tasks == own->n_tasks && read->greedy.n_prompts == own->greedy.n_prompts && read->greedy.n_tokens == own->greedy.n_tokens &&
                read->is_f32 == own->is_f32 && (read->greedy.n_prompts == 0 || (read->greedy.first_different != NULL && read->greedy.summary != NULL));
    for (uint32_t i = 0; fits && i < own->n_texts; i++) {
        const eval_text *const a = &read->texts[i], *const b = &own->texts[i];
        fits = a->n_tokens == b->n_tokens && a->n_done <= a->n_tokens && a->tokens != NULL && a->positions != NULL && a->quality != NULL && (a->noise != NULL) == (b->noise != NULL) &&
               text_fits(s, &s->sources[i], a);
    }
    for (uint32_t i = 0; fits && i < own->n_tasks; i++) {
        const eval_task *const a = &read->tasks[i], *const b = &own->tasks[i];
        fits = strcmp(a->name, b->name) == 0 && a->n_items == b->n_items && a->items != NULL && a->answers != NULL && a->verdicts != NULL;
        for (uint32_t f = 0; f < s->n_formats; f++) {
            fits &= a->n_done[f] <= a->n_items;
        }
    }
    return fits && inside_fits(s, read->inside);
}

oct_status eval_session_prepare(eval_session *s, oct_error *error)
{
    eval_result *const r = &s->result;
    oct_status status = OCT_OK;
    fill_provenance(s, &r->provenance);
    note_asked(s, &r->provenance);
    r->n_formats = s->n_formats;
    for (uint32_t i = 0; i < s->n_formats && status == OCT_OK; i++) {
        const octe_kv_config config = { .k = s->formats[i].k, .v = s->formats[i].v, .page_size = s->options.block_size };
        octe_kv_capacity capacity;
        status = octe_kv_capacity_get(s->model, &config, &capacity, error);
        (void)snprintf(r->formats[i].name, sizeof(r->formats[i].name), "%s", s->formats[i].name);
        (void)snprintf(r->formats[i].label, sizeof(r->formats[i].label), "%s", s->formats[i].label);
        r->formats[i].kv_bytes_per_token = status == OCT_OK ? capacity.bytes_per_token : 0;
    }
    for (uint32_t p = 0; p < 1u + s->options.f32_weights && status == OCT_OK; p++) {
        r->n_passes = p + 1;
        r->passes[p].is_f32 = p == 1;
        status = prepare_pass(s, &r->passes[p], error);
    }
    return status == OCT_OK && s->asked.failed ? oct__error_set(error, OCT_OUT_OF_MEMORY, where, "out of memory") : status;
}

bool eval_session_fits(const eval_session *s, const eval_result *read)
{
    bool fits = read->n_formats == s->n_formats && read->n_passes == s->result.n_passes;
    for (uint32_t p = 0; fits && p < read->n_passes; p++) {
        fits = pass_fits(s, &read->passes[p], &s->result.passes[p]);
    }
    return fits;
}
