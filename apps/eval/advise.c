/* advise.c: owns `octavo advise`: which cache to take for a loss, a size or a machine, and the file that makes run and serve take it. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "apps/chronicle.h"
#include "apps/command.h"
#include "apps/compare/f32_copy.h"
#include "apps/eval/advise.h"
#include "apps/interrupt.h"
#include "apps/output.h"
#include "apps/rates.h"
#include "apps/table.h"
#include "apps/texts.h"
#include "apps/thread_note.h"
#include "host/error.h"

static const char where[] = "octavo advise";

/* A noise floor of this share of the target hides what is asked for. */
#define FLOOR_SHARE 0.3
/* What is asked for where a machine is named and no loss: the fastest whatever it loses is nobody's wish. */
#define DEFAULT_MAX_KL 0.01f

enum { LOGITS_BYTES = 192 << 20 };

typedef struct advise_options {
    const char *model, *text, *output, *form, *report, *machine, *candidates, *weights, *f32_folder, *rates_file;
    float max_kl, max_bytes;
    uint32_t n_threads, n_tokens;
} advise_options;

#define OPTION(field) offsetof(advise_options, field)
static const app_flag flags[] = {
    { "-m, --model", "MODEL.gguf", APP_TEXT, OPTION(model), 0, 0, true, "the model" },
    { "--max-kl", "X", APP_NUMBER, OPTION(max_kl), 1e-9, 100, false, "the most that the cache may cost: KL from the 16-bit cache in nats a token, its 95 % interval included" },
    { "--max-bytes", "X", APP_NUMBER, OPTION(max_bytes), 0.01, 2, false, "the most that it may take, of the 16-bit cache's bytes: 0.55; alone: the least loss within them" },
    { "--for", "cpu|h200|mi355x", APP_CHOICE, OPTION(machine), 0, 0, false, "what is fastest there, by predicted time of a decode, instead of smallest; with a loss of 0.01 where none is given" },
    { "-o, --output", "FILE.json", APP_TEXT, OPTION(output), 0, 0, false, "write scales and formats of the choice there, whole or not at all: octavo run, serve and explain take it as --kv-scales" },
    { "--output-format", "text|md|json", APP_CHOICE, OPTION(form), 0, 0, false, "form of the report (text)" },
    { "--report", "FILE", APP_TEXT, OPTION(report), 0, 0, false, "write the report to FILE instead of standard output" },
    { "--candidates", "LIST", APP_TEXT, OPTION(candidates), 0, 0, false, "formats to choose among, as of octavo compare (those below)" },
    { "-f, --file", "TEXT", APP_TEXT, OPTION(text), 0, 0, false, "the text to judge on; built-in: a chronicle that Octavo makes itself (built-in)" },
    { "--tokens", "N", APP_COUNT, OPTION(n_tokens), 32, 1u << 16, false, "tokens of it, in one sequence (512)" },
    { "--weights", "auto|file|f32", APP_CHOICE, OPTION(weights), 0, 0, false,
      "judge on the file as it is or on a copy with F32 weights; auto: on the copy where the noise of quantised products would hide what is asked for (auto)" },
    { "--f32-dir", "FOLDER", APP_TEXT, OPTION(f32_folder), 0, 0, false, "where that copy is kept for the next time (beside the model)" },
    { "-t, --threads", "N", APP_COUNT, OPTION(n_threads), 0, 512, false, "threads; 0: the machine's cores (0)" },
    APP_RATES_FLAG(OPTION(rates_file)),
};

typedef struct session {
    advise_options options;
    advise advise;
    app_rates rates;
    octe_model *model, *copy;
    octe_vocab *vocab;
    int32_t *tokens;
    app_progress progress;
    double file_floor;              /* NAN: not measured */
    advise_candidate *chosen;
    bool is_written;                /* the file of the choice */
    oct_error file_error;           /* why it is not */
} session;

/* ---- the run ------------------------------------------------------------------------------------------------------------------------------- */

static oct_status read_candidates(session *s, oct_error *error)
{
    /* The list's own parser wants a base of ours first. */
    char list[1024];
    compare_format formats[COMPARE_MAX_FORMATS];
    uint32_t n = 0;
    const char *const given = s->options.candidates != NULL ? s->options.candidates : ADVISE_CANDIDATES;
    if (snprintf(list, sizeof(list), "f32,%s", given) >= (int)sizeof(list)) {
        return oct__error_set(error, OCT_INVALID_ARGUMENT, where, "--candidates: the list is too long");
    }
    const oct_status status = compare_formats_parse(list, formats, &n, error);
    for (uint32_t i = 1; i < n && status == OCT_OK; i++) {
        if (formats[i].is_reference) {
            return oct__error_set(error, OCT_INVALID_ARGUMENT, where, "--candidates: '%s' is llama.cpp's and can't be chosen", formats[i].name);
        }
        advise_candidate *const c = &s->advise.candidates[s->advise.n_candidates++];
        *c = (advise_candidate){ .format = formats[i] };
        (void)snprintf(c->name, sizeof(c->name), "%s", formats[i].name);
    }
    return status;
}

static oct_status open_all(session *s, oct_error *error)
{
    const advise_options *const o = &s->options;
    oct_status status = octe_model_open(o->model, NULL, &s->model, error);
    if (status == OCT_OK) {
        status = octe_vocab_open(o->model, &s->vocab, error);
    }
    if (status != OCT_OK) {
        return status;
    }
    const octe_model_info *const info = octe_model_info_get(s->model);
    const uint32_t n_special = octe_vocab_adds_bos(s->vocab), most = o->n_tokens < info->n_ctx_train ? o->n_tokens : info->n_ctx_train;
    int32_t *text = NULL;
    uint32_t n = 0;
    status = app_text_tokens_checked(s->vocab, o->text, APP_CHRONICLE_JUDGED, most - n_special, &text, &n, error);
    if (status == OCT_OK) {
        s->tokens = malloc((n + 1) * sizeof(*s->tokens));
        status = s->tokens != NULL ? OCT_OK : oct__error_set(error, OCT_OUT_OF_MEMORY, where, "out of memory");
    }
    if (status == OCT_OK) {
        s->tokens[0] = octe_vocab_bos(s->vocab);
        memcpy(s->tokens + n_special, text, n * sizeof(*text));
        const uint32_t n_all = n + n_special, room = (uint32_t)(LOGITS_BYTES / (sizeof(float) * (uint64_t)info->n_vocab));
        s->advise.vocab = s->vocab;
        s->advise.model = s->model;
        s->advise.tokens = s->tokens;
        s->advise.n_tokens = n_all;
        s->advise.n_judged = n_all - 1 < room ? n_all - 1 : room > 0 ? room : 1;
    }
    free(text);
    return status;
}

/* On the file, or on its F32 copy where that is needed. */
static oct_status begin(session *s, oct_error *error)
{
    const advise_options *const o = &s->options;
    char path[4096];
    oct_status status = OCT_OK;
    s->file_floor = (double)NAN;
    if (strcmp(o->weights, "f32") != 0) {
        status = advise_begin(&s->advise, error);
        s->file_floor = s->advise.floor;
        if (status != OCT_OK || strcmp(o->weights, "file") == 0 || !(s->advise.floor > FLOOR_SHARE * s->advise.target.max_kl) || s->advise.target.max_kl <= 0) {
            return status;
        }
    }
    app_progress_say(&s->progress, "writing the F32 copy");
    status = compare_f32_copy(o->model, o->f32_folder, o->n_threads, path, sizeof(path), error);
    if (status == OCT_OK) {
        status = octe_model_open(path, NULL, &s->copy, error);
    }
    if (status == OCT_OK) {
        s->advise.model = s->copy;
        status = advise_begin(&s->advise, error);
    }
    return status;
}

static oct_status advise_all(session *s, oct_error *error)
{
    oct_status status = open_all(s, error);
    if (status == OCT_OK) {
        app_progress_begin(&s->progress, (s->advise.n_candidates + 30.0) * s->advise.n_tokens);
        app_progress_say(&s->progress, "16-bit cache");
        s->advise.progress = &s->progress;
        status = begin(s, error);
    }
    if (status == OCT_OK) {
        status = advise_judge_all(&s->advise, error);
    }
    if (status == OCT_OK) {
        status = advise_choose(&s->advise, &s->chosen, error);
    }
    if (status == OCT_OK && s->options.output != NULL && s->chosen != NULL) {
        octe_scales scales;
        status = advise_scales(&s->advise, s->chosen, &scales, error);
        if (status == OCT_OK) {
            /* What was found out in minutes is reported all the same. */
            s->is_written = octe_scales_write(&scales, 1, s->options.output, &s->file_error) == OCT_OK;
            octe_scales_free(&scales);
        }
    }
    app_progress_end(&s->progress);
    return status;
}

/* ---- the report ------------------------------------------------------------------------------------------------------------------------------- */

static int by_bytes(const void *left, const void *right)
{
    const advise_candidate *const a = *(advise_candidate *const *)left, *const b = *(advise_candidate *const *)right;
    return a->bytes_per_token != b->bytes_per_token ? (a->bytes_per_token > b->bytes_per_token) - (a->bytes_per_token < b->bytes_per_token) : (a->kl > b->kl) - (a->kl < b->kl);
}

/* All of them, the smallest first; the base is the last. */
static uint32_t sorted(session *s, advise_candidate *all[ADVISE_MAX_CANDIDATES + 1])
{
    uint32_t n = 0;
    for (; n < s->advise.n_candidates; n++) {
        all[n] = &s->advise.candidates[n];
    }
    qsort(all, n, sizeof(all[0]), by_bytes);
    all[n++] = &s->advise.base;
    return n;
}

static void add_target(const session *s, app_text *text)
{
    const advise_target *const t = &s->advise.target;
    const char *between = "";
    if (t->max_kl > 0) {
        app_text_add(text, "a KL of at most %.3g", t->max_kl);
        between = ", ";
    }
    if (t->max_share > 0) {
        app_text_add(text, "%sat most %.3g of the 16-bit cache's bytes", between, t->max_share);
        between = ", ";
    }
    if (t->machine != NULL) {
        app_text_add(text, "%sfastest on %s", between, t->machine);
    }
}

static void add_for_people(session *s, bool markdown, app_text *text)
{
    const advise *const a = &s->advise;
    advise_candidate *all[ADVISE_MAX_CANDIDATES + 1];
    const uint32_t n = sorted(s, all);
    app_table *const table = calloc(1, sizeof(*table));
    const char *const name = octe_model_info_get(s->model)->name;
    app_text_add(text, "%s", markdown ? "# " : "");
    (markdown ? app_text_add_markdown : app_text_add_line)(text, name);
    app_text_add(text, ": ");
    add_target(s, text);
    app_text_add(text, "\n\n");
    if (s->chosen == NULL) {
        app_text_add(text, "Nothing meets that.\n");
    } else {
        app_text_add(text, "Take %s%s%s: %llu bytes a token, %.3f of the 16-bit cache's, KL %.2e (95 %%: %.2e to %.2e). It is %s.\n", markdown ? "**" : "", s->chosen->name, markdown ? "**" : "",
                     (unsigned long long)s->chosen->bytes_per_token, s->chosen->share, s->chosen->kl, s->chosen->kl_interval.low, s->chosen->kl_interval.high, s->chosen->why);
    }
    app_text_add(text, "Judged on %s: %u tokens behind %u; what the arithmetic alone differs by is a KL of %.1e there", s->copy != NULL ? "a copy with F32 weights" : "the file as it is", a->n_judged,
                 a->n_tokens - a->n_judged, a->floor);
    if (s->copy != NULL && !isnan(s->file_floor)) {
        app_text_add(text, ", and %.1e on the file as it is", s->file_floor);
    }
    app_text_add(text, ".\n\n");
    if (table == NULL) {
        text->failed = true;
        return;
    }
    app_table_column(table, "cache", true);
    app_table_column(table, "bytes/token", false);
    app_table_column(table, "of 16 bits", false);
    app_table_column(table, "KL", false);
    app_table_column(table, "to (95 %)", false);
    app_table_column(table, "same top-1", false);
    app_table_column(table, "decode there", true);
    app_table_column(table, "us, predicted", false);
    app_table_column(table, "why", true);
    for (uint32_t i = 0; i < n; i++) {
        const advise_candidate *const c = all[i];
        app_table_cell(table, "%s%s", c->is_chosen ? "> " : "", c->name);
        app_table_cell(table, "%llu", (unsigned long long)c->bytes_per_token);
        app_table_cell(table, "%.3f", c->share);
        const bool judged = !isnan(c->kl) && !c->is_refused;
        app_table_cell(table, judged ? "%.2e" : "-", c->kl);
        app_table_cell(table, judged && isfinite(c->kl_interval.high) ? "%.2e" : "-", c->kl_interval.high);
        app_table_cell(table, judged ? "%.1f %%" : "-", 100 * c->same_top);
        app_table_cell(table, "%s", c->kernel[0] != '\0' ? c->kernel : "-");
        app_table_cell(table, isnan(c->seconds) ? "-" : "%.3g", 1e6 * c->seconds);
        app_table_cell(table, "%s", c == &a->base && !c->is_chosen ? "what the others are judged against" : c->why);
    }
    if (markdown) {
        app_table_markdown(table, text);
    } else {
        app_table_text(table, text);
    }
    app_table_free(table);
    free(table);
    if (a->rates_name[0] != '\0') {
        app_text_add(text, "\nTimes are predictions, nothing was run for them: attention of %lld token%s over %lld keys in one layer that sees all of them, by the plan's costs for ", (long long)a->decode_rows,
                     a->decode_rows == 1 ? "" : "s", (long long)a->decode_keys);
        (markdown ? app_text_add_markdown : app_text_add_line)(text, a->machine_name);
        app_text_add(text, " with the rates of '");
        (markdown ? app_text_add_markdown : app_text_add_line)(text, a->rates_name);
        app_text_add(text, "'. Writing K and V, the model's other work and starting a kernel are not in them.\n");
    }
    if (s->is_written) {
        app_text_add(text, "\n%s has its scales and formats: octavo run --kv-scales %s\n", s->options.output, s->options.output);
    }
}

static void add_json_number(app_text *text, const char *key, double value)
{
    app_text_add(text, ", \"%s\": ", key);
    app_text_add_number(text, value, 6);
}

static void add_json_candidate(const session *s, const advise_candidate *c, app_text *text)
{
    const uint32_t n_layers = octe_model_info_get(s->model)->n_layers;
    app_text_add(text, "{\"name\": ");
    app_text_add_json(text, c->name);
    app_text_add(text, ", \"chosen\": %s, \"meets\": %s, \"bytes_per_token\": %llu, \"layers_in_16_bits\": %u", c->is_chosen ? "true" : "false", c->meets ? "true" : "false",
                 (unsigned long long)c->bytes_per_token, c->n_kept);
    add_json_number(text, "share", c->share);
    add_json_number(text, "kl", c->kl);
    add_json_number(text, "kl_low", c->kl_interval.low);
    add_json_number(text, "kl_high", c->kl_interval.high);
    add_json_number(text, "same_top", c->same_top);
    add_json_number(text, "predicted_seconds", c->seconds);
    app_text_add(text, ", \"kernel\": ");
    app_text_add_json(text, c->kernel[0] != '\0' ? c->kernel : NULL);
    for (int side = 0; side < 2; side++) {
        app_text_add(text, ", \"%s\": [", side == 0 ? "k" : "v");
        for (uint32_t il = 0; il < n_layers; il++) {
            const octe_kv_layer_format f = c->layers != NULL ? c->layers[il] : (octe_kv_layer_format){ c->format.k, c->format.v };
            char name[48];
            (void)octe_kv_format_name(side == 0 ? &f.k : &f.v, name, sizeof(name));
            app_text_add(text, "%s\"%s\"", il > 0 ? ", " : "", name);
        }
        app_text_add(text, "]");
    }
    app_text_add(text, ", \"why\": ");
    app_text_add_json(text, c->why);
    app_text_add(text, "}");
}

static void add_json(session *s, app_text *text)
{
    const advise *const a = &s->advise;
    advise_candidate *all[ADVISE_MAX_CANDIDATES + 1];
    const uint32_t n = sorted(s, all);
    app_text_add(text, "{\"model\": ");
    app_text_add_json(text, octe_model_info_get(s->model)->name);
    app_text_add(text, ", \"weights\": \"%s\", \"tokens\": %u, \"judged\": %u", s->copy != NULL ? "f32" : "file", a->n_tokens, a->n_judged);
    add_json_number(text, "floor", a->floor);
    add_json_number(text, "file_floor", s->file_floor);
    add_json_number(text, "max_kl", a->target.max_kl > 0 ? a->target.max_kl : (double)NAN);
    add_json_number(text, "max_bytes", a->target.max_share > 0 ? a->target.max_share : (double)NAN);
    app_text_add(text, ", \"for\": ");
    app_text_add_json(text, a->target.machine);
    app_text_add(text, ", \"predicted\": {\"what\": \"attention of one layer\", \"rows\": %lld, \"keys\": %lld, \"machine\": ", (long long)a->decode_rows, (long long)a->decode_keys);
    app_text_add_json(text, a->machine_name);
    app_text_add(text, ", \"rates\": ");
    app_text_add_json(text, a->rates_name);
    app_text_add(text, "}, \"chosen\": ");
    app_text_add_json(text, s->chosen != NULL ? s->chosen->name : NULL);
    app_text_add(text, ", \"file\": ");
    app_text_add_json(text, s->is_written ? s->options.output : NULL);
    app_text_add(text, ", \"candidates\": [");
    for (uint32_t i = 0; i < n; i++) {
        app_text_add(text, "%s\n  ", i > 0 ? "," : "");
        add_json_candidate(s, all[i], text);
    }
    app_text_add(text, "]}\n");
}

static int deliver(session *s)
{
    app_text text = { 0 };
    if (strcmp(s->options.form, "json") == 0) {
        add_json(s, &text);
    } else {
        add_for_people(s, strcmp(s->options.form, "md") == 0, &text);
    }
    int code = app_output_report(&text, s->options.report);
    app_text_free(&text);
    if (s->file_error.status != OCT_OK) {
        (void)app_output_error(&s->file_error);
        code = APP_FAILED;
    }
    return code == APP_OK && s->chosen == NULL ? app_output_fail("no candidate meets the target; the report says what each is short of") : code;
}

/* ---- the command -------------------------------------------------------------------------------------------------------------------------------- */

static bool read_options(const app_command *command, int argc, char **argv, session *s, int *code)
{
    advise_options *const o = &s->options;
    *o = (advise_options){ .text = APP_TEXT_BUILT_IN, .form = "text", .weights = "auto", .n_tokens = 512 };
    if (!app_arguments_parse(command, argc, argv, o, code)) {
        return false;
    }
    *code = APP_USAGE;
    oct_error error = OCT_ERROR_INIT;
    if (o->max_kl <= 0 && o->max_bytes <= 0 && o->machine == NULL) {
        (void)app_arguments_complain(command, "give --max-kl, --max-bytes or --for: what is the cache to meet?");
        return false;
    }
    if (read_candidates(s, &error) != OCT_OK) {
        (void)app_arguments_complain(command, "--candidates: %s", error.text);
        return false;
    }
    s->advise.target = (advise_target){ .max_kl = (double)o->max_kl, .max_share = (double)o->max_bytes, .machine = o->machine };
    if (o->max_kl <= 0 && o->machine != NULL) {
        s->advise.target.max_kl = (double)DEFAULT_MAX_KL;
    }
    s->advise.n_threads = o->n_threads;
    app_thread_note(o->n_threads);
    *code = app_rates_load(o->rates_file, &s->rates);
    s->advise.rates = s->rates.pointer;
    return *code == APP_OK;
}

/* Before the work: what is written can be, and takes no other file's place. */
static oct_status check_outputs(const advise_options *o, oct_error *error)
{
    const char *const written[] = { o->output, o->report }, *const others[] = { o->model, o->text, o->report };
    for (int i = 0; i < 2; i++) {
        for (int j = 0; written[i] != NULL && j < 3 - i; j++) {
            if (others[j] != NULL && app_output_is_same(written[i], others[j])) {
                return oct__error_set(error, OCT_INVALID_ARGUMENT, where, "%s '%s' would take the place of another file of the command", i == 0 ? "--output" : "--report", written[i]);
            }
        }
        const oct_status status = written[i] != NULL ? app_output_check(written[i], error) : OCT_OK;
        if (status != OCT_OK) {
            return status;
        }
    }
    return OCT_OK;
}

static int run(const app_command *command, int argc, char **argv)
{
    session *const s = calloc(1, sizeof(*s));
    if (s == NULL) {
        return app_output_fail("out of memory");
    }
    int code;
    if (read_options(command, argc, argv, s, &code)) {
        oct_error error = OCT_ERROR_INIT;
        s->file_error = (oct_error)OCT_ERROR_INIT;
        oct_status status = check_outputs(&s->options, &error);
        if (status == OCT_OK) {
            status = advise_all(s, &error);
        }
        if (status == OCT_OK) {
            code = deliver(s);
        } else {
            error.status = status;
            code = app_output_error(&error);
        }
    }
    advise_end(&s->advise);
    free(s->tokens);
    octe_vocab_close(s->vocab);
    octe_model_close(s->copy);
    octe_model_close(s->model);
    free(s);
    return code;
}

const app_command app_command_advise = {
    .name = "advise",
    .summary = "the cheapest cache that meets a loss, a size or a machine, and its file",
    .operands = "-m MODEL.gguf --max-kl X | --max-bytes X | --for MACHINE [flags]",
    .notes = "Candidates: " ADVISE_CANDIDATES "\nThose that lose too much are tried with their costliest layers in 16 bits where that may pay.",
    .flags = flags,
    .n_flags = sizeof(flags) / sizeof(flags[0]),
    .run = run,
};
