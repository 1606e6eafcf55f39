/* compare.c: owns `octavo compare`: one model with its cache in several formats over the same text, side by side. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "apps/chronicle.h"
#include "apps/command.h"
#include "apps/compare/f32_copy.h"
#include "apps/compare/report.h"
#include "apps/compare/scales.h"
#include "apps/interrupt.h"
#include "apps/machine_name.h"
#include "apps/output.h"
#include "apps/prompt.h"
#include "apps/rates.h"
#include "apps/texts.h"
#include "apps/thread_note.h"
#include "host/clock.h"
#include "host/error.h"

static const char where[] = "octavo compare";

typedef struct compare_options {
    const char *model, *prompt, *form, *output, *formats, *depths, *f32_folder, *rates_file;
    app_texts texts, saves;
    uint32_t n_threads, context_tokens, n_tokens, chunk_tokens, n_rounds, prefill_tokens, decode_tokens, answer_tokens, block_size;
    bool f32_weights, quick;
} compare_options;

#define OPTION(field) offsetof(compare_options, field)
static const app_flag flags[] = {
    { "-m, --model", "MODEL.gguf", APP_TEXT, OPTION(model), 0, 0, true, "the model" },
    { "-f, --file", "TEXT", APP_TEXTS, OPTION(texts), 0, 0, false,
      "a text to judge on; may be given several times; built-in: a chronicle that Octavo makes itself, so that no model has read it (built-in)" },
    { "-p, --prompt", "PROMPT", APP_TEXT, OPTION(prompt), 0, 0, false, "what is asked of every format, through the model's chat template where it has one" },
    { "-n, --n-predict", "N", APP_COUNT, OPTION(answer_tokens), 0, 256, false, "tokens of the answer to show; 0: none (12)" },
    { "-o, --output-format", "text|md|json|csv", APP_CHOICE, OPTION(form), 0, 0, false, "form of the report (text)" },
    { "--output", "FILE", APP_TEXT, OPTION(output), 0, 0, false, "write the report to FILE, whole or not at all, instead of standard output" },
    { "--save", "FILE", APP_TEXTS, OPTION(saves), 0, 0, false, "write it to FILE as well, in the form that its ending says: .txt, .md, .json, .csv; may be given several times" },
    { "--formats", "LIST", APP_TEXT, OPTION(formats), 0, 0, false,
      "caches to compare, the base first: names as of -ctk of octavo run, K/V where they differ, or llama:f16, llama:q8_0 for llama.cpp's own "
      "(the list below)" },
    { "-t, --threads", "N", APP_COUNT, OPTION(n_threads), 0, 512, false, "threads; 0: the machine's cores (0)" },
    { "-c, --ctx-size", "N", APP_COUNT, OPTION(context_tokens), 0, 1u << 24, false, "longest context; depths are cut to it; 0: the model's (0)" },
    { "--depths", "LIST", APP_TEXT, OPTION(depths), 0, 0, false, "tokens in the cache when speed is measured; none: don't measure it (0,2048,8192)" },
    { "--tokens", "N", APP_COUNT, OPTION(n_tokens), 0, 1u << 20, false, "tokens of each text to judge on; 0: don't judge (1024)" },
    { "--chunk", "N", APP_COUNT, OPTION(chunk_tokens), 16, 1u << 20, false, "the text is judged in sequences of so many tokens (512)" },
    { "--f32-weights", NULL, APP_SWITCH, OPTION(f32_weights), 0, 0, false, "judge on a copy of the model with F32 weights as well" },
    { "--f32-dir", "FOLDER", APP_TEXT, OPTION(f32_folder), 0, 0, false, "where that copy is kept for the next time (beside the model)" },
    { "--rounds", "N", APP_COUNT, OPTION(n_rounds), 1, COMPARE_MAX_ROUNDS, false, "rounds of speed, of which the median counts (3)" },
    { "--prefill-tokens", "N", APP_COUNT, OPTION(prefill_tokens), 1, 4096, false, "tokens of a timed prefill, one step (128)" },
    { "--decode-tokens", "N", APP_COUNT, OPTION(decode_tokens), 1, 4096, false, "timed steps of decoding a round (16)" },
    { "--block-size", "N", APP_COUNT, OPTION(block_size), 1, 1024, false, "tokens of a page (16)" },
    APP_RATES_FLAG(OPTION(rates_file)),
    { "--quick", NULL, APP_SWITCH, OPTION(quick), 0, 0, false, "a first look: --tokens 128 --chunk 128 --depths 0 --rounds 1 --prefill-tokens 64 --decode-tokens 8" },
};

/* All that a run holds. */
typedef struct comparison {
    const app_command *command;
    compare_options options;
    compare_format formats[COMPARE_MAX_FORMATS];
    compare_speed_options speed;
    compare_quality_options quality;
    octe_vocab *vocab;
    octe_model *model;
    const octe_model_info *info;
    app_rates rates;
    compare_scales scales;
    compare_text texts[APP_TEXTS_MAX];
    compare_runner runners[COMPARE_MAX_FORMATS];
    app_progress progress;
    compare_report report;
} comparison;

static uint32_t context_of(const comparison *c)
{
    const uint32_t limit = c->info->n_ctx_train;
    return c->options.context_tokens != 0 && c->options.context_tokens < limit ? c->options.context_tokens : limit;
}

/* ---- what was asked ------------------------------------------------------------------------------------------------ */

static const char *form_of(const char *path)
{
    static const struct { const char *ending, *form; } endings[] = { { ".txt", "text" }, { ".md", "md" }, { ".json", "json" }, { ".csv", "csv" } };
    const size_t n = strlen(path);
    for (size_t i = 0; i < sizeof(endings) / sizeof(endings[0]); i++) {
        const size_t length = strlen(endings[i].ending);
        if (n > length && strcmp(path + n - length, endings[i].ending) == 0) {
            return endings[i].form;
        }
    }
    return NULL;
}

static void apply_quick(compare_options *o)
{
    o->n_tokens = 128;
    o->chunk_tokens = 128;
    o->depths = "0";
    o->n_rounds = 1;
    o->prefill_tokens = 64;
    o->decode_tokens = 8;
}

/* False: the program ends with *code. */
static bool read_options(comparison *c, int argc, char **argv, int *code)
{
    compare_options *const o = &c->options;
    *o = (compare_options){
        .prompt = "Explain in two sentences why the sky is blue.", .form = "text", .formats = COMPARE_DEFAULT_FORMATS, .depths = "0,2048,8192", .n_tokens = 1024,
        .chunk_tokens = 512, .n_rounds = 3, .prefill_tokens = 128, .decode_tokens = 16, .answer_tokens = 12, .block_size = 16,
    };
    /* --quick is a set of defaults: what is said beside it counts. */
    for (int i = 0; i < argc; i++) {
        if (strcmp(argv[i], "--quick") == 0) {
            apply_quick(o);
        }
    }
    if (!app_arguments_parse(c->command, argc, argv, o, code)) {
        return false;
    }
    *code = APP_USAGE;
    oct_error error = OCT_ERROR_INIT;
    if (compare_formats_parse(o->formats, c->formats, &c->report.n_formats, &error) != OCT_OK) {
        (void)app_arguments_complain(c->command, "--formats: %s", error.text);
        return false;
    }
    c->speed = (compare_speed_options){ .prefill_tokens = o->prefill_tokens, .decode_tokens = o->decode_tokens, .n_rounds = o->n_rounds, .step_rows = 512 };
    if (strcmp(o->depths, "none") != 0 && !app_arguments_counts(o->depths, 1u << 24, c->speed.depths, COMPARE_MAX_DEPTHS, &c->speed.n_depths)) {
        (void)app_arguments_complain(c->command, "--depths wants at most %d whole numbers such as 0,2048, or none, not '%s'", COMPARE_MAX_DEPTHS, o->depths);
        return false;
    }
    if (o->prefill_tokens > c->speed.step_rows) {
        c->speed.step_rows = o->prefill_tokens;
    }
    for (uint32_t i = 0; i < o->saves.n; i++) {
        if (form_of(o->saves.item[i]) == NULL) {
            (void)app_arguments_complain(c->command, "--save: '%s' ends in none of .txt .md .json .csv", o->saves.item[i]);
            return false;
        }
    }
    if (o->f32_folder != NULL && o->f32_folder[0] == '\0') {
        (void)app_arguments_complain(c->command, "--f32-dir: the folder's name is empty");
        return false;
    }
    app_thread_note(o->n_threads);
    if (o->texts.n == 0) {
        o->texts.item[o->texts.n++] = APP_TEXT_BUILT_IN;
    }
    *code = app_rates_load(o->rates_file, &c->rates);
    return *code == APP_OK;
}

/* ---- opening ---------------------------------------------------------------------------------------------------------- */

static oct_status open_all(comparison *c, oct_error *error)
{
    const compare_options *const o = &c->options;
    oct_status status = octe_model_open(o->model, NULL, &c->model, error);
    if (status == OCT_OK) {
        status = octe_vocab_open(o->model, &c->vocab, error);
    }
    if (status != OCT_OK) {
        return status;
    }
    c->info = octe_model_info_get(c->model);
    if (o->context_tokens > c->info->n_ctx_train) {
        return oct__error_set(error, OCT_INVALID_ARGUMENT, where, "-c: a context of %u tokens is longer than the model was made for (%u)", o->context_tokens,
                              c->info->n_ctx_train);
    }
    const uint32_t context = context_of(c);
    compare_speed_depths(&c->speed, context);
    if (c->speed.n_depths > 0 && context <= o->prefill_tokens + o->decode_tokens + 1) {
        return oct__error_set(error, OCT_INVALID_ARGUMENT, where, "a context of %u tokens is too short to measure %u + %u tokens of speed", context, o->prefill_tokens,
                              o->decode_tokens + 1);
    }
    const uint32_t n_vocab = c->info->n_vocab, rows = compare_block_rows(n_vocab), chunk = o->chunk_tokens < context ? o->chunk_tokens : context;
    c->quality = (compare_quality_options){
        .model = c->model, .n_vocab = n_vocab, .bos = octe_vocab_adds_bos(c->vocab) ? octe_vocab_bos(c->vocab) : -1, .n_tokens = o->n_tokens,
        .chunk_tokens = chunk, .block_rows = rows < chunk ? rows : chunk,
    };
    c->speed.model = c->model;
    /* The first text feeds the measurement of speed too. */
    const uint32_t enough = o->n_tokens > o->prefill_tokens ? o->n_tokens : o->prefill_tokens;
    for (uint32_t i = 0; i < o->texts.n && status == OCT_OK; i++) {
        c->texts[i].name = app_text_title(o->texts.item[i]);
        status = app_text_tokens(c->vocab, o->texts.item[i], APP_CHRONICLE_JUDGED, enough, &c->texts[i].tokens, &c->texts[i].n_tokens, error);
    }
    return status;
}

static void close_runners(comparison *c)
{
    for (uint32_t i = 0; i < COMPARE_MAX_FORMATS; i++) {
        compare_runner_close(&c->runners[i]);
    }
}

/* One runner a format, all at once: they take turns. */
static oct_status open_runners(comparison *c, const octe_model *model, const char *path, uint32_t context, uint32_t rows, bool count, oct_error *error)
{
    oct_status status = OCT_OK;
    for (uint32_t i = 0; i < c->report.n_formats && status == OCT_OK; i++) {
        const compare_runner_options options = {
            .model = model, .path = path, .scales = compare_scales_of(&c->scales, &c->formats[i]), .n_threads = c->options.n_threads, .context_tokens = context,
            .step_rows = rows, .step_logits = count ? rows : 1, .page_size = c->options.block_size, .count = count, .rates = c->rates.pointer,
        };
        status = compare_runner_open(&c->runners[i], &c->formats[i], &options, error);
    }
    if (status == OCT_OK) {
        c->report.n_threads = octe_engine_options_get(c->runners[0].engine)->n_threads;
    }
    return status;
}

/* ---- the parts of a run ------------------------------------------------------------------------------------------------- */

/* The first words of a runner's greedy answer, in one line. */
static oct_status answer(comparison *c, compare_runner *runner, const int32_t *tokens, uint32_t n, char **words, oct_error *error)
{
    app_text text = { 0 };
    octe_stream stream = { 0 };
    const float *logits;
    oct_status status = compare_runner_prefill(runner, tokens, n, &logits, error);
    for (uint32_t i = 0; i < c->options.answer_tokens && status == OCT_OK; i++) {
        const int32_t token = app_prompt_greedy(logits, c->info->n_vocab);
        char *piece = NULL;
        if (octe_vocab_is_eog(c->vocab, token)) {
            break;
        }
        status = octe_stream_add(&stream, c->vocab, token, false, &piece, NULL, error);
        if (status == OCT_OK) {
            app_text_add(&text, "%s", piece);
            status = compare_runner_step(runner, &token, 1, 1, &logits, error);
        }
        free(piece);
    }
    char rest[4];
    octe_stream_finish(&stream, rest);
    app_text_add(&text, "%s", rest);
    if (status == OCT_OK && text.failed) {
        status = oct__error_set(error, OCT_OUT_OF_MEMORY, where, "out of memory for an answer");
    }
    if (status != OCT_OK) {
        app_text_free(&text);
        return status;
    }
    for (size_t i = 0; i < text.length; i++) {
        text.bytes[i] = (unsigned char)text.bytes[i] < 0x20 ? ' ' : text.bytes[i];
    }
    *words = text.bytes;
    return compare_runner_empty(runner, error);
}

static oct_status ask(comparison *c, const int32_t *tokens, uint32_t n, oct_error *error)
{
    oct_status status = OCT_OK;
    for (uint32_t i = 0; i < c->report.n_formats && status == OCT_OK; i++) {
        if (app_interrupted()) {
            return oct__error_set(error, OCT_CANCELLED, where, "stopped");
        }
        app_progress_say(&c->progress, "greedy answers");
        status = answer(c, &c->runners[i], tokens, n, &c->report.answers[i], error);
        app_progress_add(&c->progress, n + 4.0 * c->options.answer_tokens);
    }
    return status;
}

/* Judges every text with one set of weights. */
static oct_status judge(comparison *c, bool is_f32, oct_error *error)
{
    oct_status status = OCT_OK;
    for (uint32_t i = 0; i < c->options.texts.n && status == OCT_OK && c->options.n_tokens > 0; i++) {
        compare_judgement *const judgement = &c->report.judgements[c->report.n_judgements];
        *judgement = (compare_judgement){ .text = c->texts[i].name, .is_f32 = is_f32 };
        app_progress_say(&c->progress, is_f32 ? "quality, F32 copy" : "quality");
        status = compare_quality_judge(c->runners, c->report.n_formats, &c->quality, &c->texts[i], judgement->quality, &c->progress, error);
        c->report.n_judgements += status == OCT_OK;
    }
    return status;
}

static oct_status judge_as_is(comparison *c, const int32_t *prompt, uint32_t n_prompt, oct_error *error)
{
    const uint32_t wanted = n_prompt + c->options.answer_tokens;
    const uint32_t context = c->quality.chunk_tokens > wanted ? c->quality.chunk_tokens : wanted;
    oct_status status = open_runners(c, c->model, c->options.model, context, c->quality.block_rows, true, error);
    for (uint32_t i = 0; i < c->report.n_formats && status == OCT_OK; i++) {
        status = compare_runner_capacity(&c->runners[i], c->model, &c->report.capacity[i], error);
    }
    if (status == OCT_OK) {
        status = judge(c, false, error);
    }
    if (status == OCT_OK && n_prompt > 0) {
        status = ask(c, prompt, n_prompt, error);
    }
    close_runners(c);
    return status;
}

static oct_status judge_f32(comparison *c, oct_error *error)
{
    char path[4096];
    octe_model *copy = NULL;
    app_progress_say(&c->progress, "writing the F32 copy");
    oct_status status = compare_f32_copy(c->options.model, c->options.f32_folder, c->options.n_threads, path, sizeof(path), error);
    if (status == OCT_OK) {
        status = octe_model_open(path, NULL, &copy, error);
    }
    if (status == OCT_OK) {
        status = open_runners(c, copy, path, c->quality.chunk_tokens, c->quality.block_rows, true, error);
    }
    if (status == OCT_OK) {
        c->quality.model = copy;
        status = judge(c, true, error);
        c->quality.model = c->model;
    }
    close_runners(c);
    octe_model_close(copy);
    return status;
}

static oct_status measure(comparison *c, oct_error *error)
{
    const uint32_t deepest = c->speed.depths[c->speed.n_depths - 1];
    const uint32_t decoded = c->options.decode_tokens + 1, after = c->options.prefill_tokens > decoded ? c->options.prefill_tokens : decoded;
    /* Where llama.cpp's sequence can't be cut it only grows. */
    const uint64_t grown = deepest + (uint64_t)c->speed.n_depths * c->speed.n_rounds * (c->options.prefill_tokens + decoded);
    const uint32_t limit = context_of(c), context = c->info->n_layers_window == 0 ? deepest + after : grown < limit ? (uint32_t)grown : limit;
    c->speed.tokens = c->texts[0].tokens;
    c->speed.n_tokens = c->texts[0].n_tokens;
    if (c->speed.n_tokens < c->options.prefill_tokens) {
        return oct__error_set(error, OCT_BAD_DATA, where, "%s: the text has %u tokens; to measure speed it must have %u (--prefill-tokens)", c->options.texts.item[0],
                              c->speed.n_tokens, c->options.prefill_tokens);
    }
    oct_status status = open_runners(c, c->model, c->options.model, context, c->speed.step_rows, false, error);
    if (status == OCT_OK) {
        app_progress_say(&c->progress, "speed");
        status = compare_speed_measure(c->runners, c->report.n_formats, &c->speed, c->report.speed, &c->progress, error);
    }
    close_runners(c);
    return status;
}

/* ---- the run --------------------------------------------------------------------------------------------------------------- */

static double work_of(const comparison *c, uint32_t n_prompt)
{
    /* F32 weights are about twice as slow. */
    double work = c->speed.n_depths > 0 ? compare_speed_work(&c->speed, c->formats, c->report.n_formats) : 0;
    for (uint32_t i = 0; i < c->options.texts.n && c->options.n_tokens > 0; i++) {
        work += (double)c->report.n_formats * compare_quality_work(&c->quality, &c->texts[i]) * (c->options.f32_weights ? 2 : 1);
    }
    return work + (n_prompt > 0 ? c->report.n_formats * (n_prompt + 4.0 * c->options.answer_tokens) : 0);
}

static oct_status compare(comparison *c, oct_error *error)
{
    const double begin = oct__clock_seconds();
    int32_t *prompt = NULL;
    uint32_t n_prompt = 0;
    oct_status status = open_all(c, error);
    if (status == OCT_OK && c->options.answer_tokens > 0) {
        status = app_prompt_tokens(NULL, c->vocab, c->options.prompt, strlen(c->options.prompt), APP_CHAT_AUTO, &prompt, &n_prompt, error);
        if (status == OCT_OK && (uint64_t)n_prompt + c->options.answer_tokens > context_of(c)) {
            status = oct__error_set(error, OCT_INVALID_ARGUMENT, where, "-p: the prompt's %u tokens and an answer of %u don't fit the context of %u", n_prompt,
                                    c->options.answer_tokens, context_of(c));
        }
    }
    if (status == OCT_OK) {
        app_progress_begin(&c->progress, work_of(c, n_prompt));
        app_progress_say(&c->progress, "calibrating scales");
        status = compare_scales_calibrate(&c->scales, c->formats, c->report.n_formats, c->model, c->vocab, c->options.n_threads, c->quality.chunk_tokens, error);
    }
    if (status == OCT_OK) {
        status = judge_as_is(c, prompt, n_prompt, error);
    }
    if (status == OCT_OK && c->options.f32_weights && c->options.n_tokens > 0) {
        status = judge_f32(c, error);
    }
    if (status == OCT_OK && c->speed.n_depths > 0) {
        status = measure(c, error);
    }
    free(prompt);
    app_progress_end(&c->progress);
    c->report.seconds = oct__clock_seconds() - begin;
    return status;
}

static int deliver(comparison *c)
{
    const compare_options *const o = &c->options;
    int code = APP_OK;
    /* A file that cannot be written must not cost the report its other places: it took minutes. */
    for (uint32_t i = 0; i <= o->saves.n; i++) {
        app_text text = { 0 };
        compare_report_add(&c->report, i < o->saves.n ? form_of(o->saves.item[i]) : o->form, &text);
        const int written = app_output_report(&text, i < o->saves.n ? o->saves.item[i] : o->output);
        code = code != APP_OK ? code : written;
        app_text_free(&text);
    }
    return code;
}

static void close_all(comparison *c)
{
    for (uint32_t i = 0; i < COMPARE_MAX_FORMATS; i++) {
        free(c->report.answers[i]);
    }
    for (uint32_t i = 0; i < APP_TEXTS_MAX; i++) {
        free(c->texts[i].tokens);
    }
    compare_scales_free(&c->scales);
    octe_vocab_close(c->vocab);
    octe_model_close(c->model);
    free(c);
}

static int run(const app_command *command, int argc, char **argv)
{
    comparison *const c = calloc(1, sizeof(*c));
    if (c == NULL) {
        return app_output_fail("out of memory");
    }
    c->command = command;
    int code;
    if (read_options(c, argc, argv, &code)) {
        oct_error error = OCT_ERROR_INIT;
        const oct_status status = compare(c, &error);
        if (status == OCT_OK) {
            c->report.formats = c->formats;
            c->report.model = c->info;
            c->report.speed_options = &c->speed;
            c->report.quality_options = &c->quality;
            c->report.prompt = c->options.prompt;
            (void)snprintf(c->report.file, sizeof(c->report.file), "%.127s", app_text_title(c->options.model));
            app_machine_name(c->report.cpu, sizeof(c->report.cpu));
            code = deliver(c);
        } else {
            error.status = status;
            code = app_output_error(&error);
        }
    }
    close_all(c);
    return code;
}

const app_command app_command_compare = {
    .name = "compare",
    .summary = "what cache formats cost and gain on a model, in one table",
    .operands = "-m MODEL.gguf [flags]",
    .notes = "Formats: " COMPARE_DEFAULT_FORMATS "\nEach format runs the same tokens; the first of --formats is the base of KL and same-top-1. Calibrated scales come from a chronicle of another seed.",
    .flags = flags,
    .n_flags = sizeof(flags) / sizeof(flags[0]),
    .run = run,
};
