/* model.c: owns `octavo bench model`: whole models in the form of llama-bench, prompts and generation at depths of the cache, llama.cpp itself beside
 * ours. All caches take turns in every round. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "apps/bench/bench.h"
#include "apps/bench/lists.h"
#include "apps/bench/machine.h"
#include "apps/bench/timing.h"
#include "apps/chronicle.h"
#include "apps/compare/speed.h"
#include "apps/output.h"
#include "apps/table.h"
#include "apps/texts.h"
#include "apps/thread_note.h"
#include "host/clock.h"
#include "host/error.h"
#include "host/threads.h"

static const char where[] = "octavo bench model";

enum { RUNNERS_MAX = 16, TESTS_MAX = 64, ROUNDS_MAX = 31, FEED_TOKENS = 2048, FEED_BYTES = 16 << 10 };

typedef struct model_options {
    const char *model, *prompts, *generations, *depths, *k, *v, *form, *output, *peers, *peer_types, *rates;
    uint32_t n_threads, n_rounds, block_size;
} model_options;

#define OPTION(field) offsetof(model_options, field)
static const app_flag flags[] = {
    { "-m, --model", "MODEL.gguf", APP_TEXT, OPTION(model), 0, 0, true, "the model" },
    { "-p, --n-prompt", "LIST", APP_TEXT, OPTION(prompts), 0, 0, false, "tokens of a prompt, one step; 0: none (512)" },
    { "-n, --n-gen", "LIST", APP_TEXT, OPTION(generations), 0, 0, false, "tokens generated one by one; 0: none (128)" },
    { "-d, --n-depth", "LIST", APP_TEXT, OPTION(depths), 0, 0, false, "tokens in the cache before (0)" },
    { "-ctk, --cache-type-k", "LIST", APP_TEXT, OPTION(k), 0, 0, false, "formats of K, as of octavo run but for those with calibrated scales (f16)" },
    { "-ctv, --cache-type-v", "LIST", APP_TEXT, OPTION(v), 0, 0, false, "formats of V, each with each of K's (the same as K's)" },
    { "-t, --threads", "N", APP_COUNT, OPTION(n_threads), 0, 512, false, "threads; 0: the machine's cores (0)" },
    { "-r, --repetitions", "N", APP_COUNT, OPTION(n_rounds), 1, ROUNDS_MAX, false, "rounds in which all caches take turns (3)" },
    { "--peers", "llama", APP_CHOICE, OPTION(peers), 0, 0, false, "llama.cpp's own cache and attention as well, through the linked library" },
    { "--peer-types", "LIST", APP_TEXT, OPTION(peer_types), 0, 0, false, "its caches: f16, bf16, f32, q8_0 (f16,q8_0)" },
    { "--block-size", "N", APP_COUNT, OPTION(block_size), 1, 1024, false, "tokens of a page of ours (16)" },
    APP_RATES_FLAG(OPTION(rates)),
    { "-o, --output-format", "md|csv|json|jsonl", APP_CHOICE, OPTION(form), 0, 0, false, "form of the report (md)" },
    { "--output", "FILE", APP_TEXT, OPTION(output), 0, 0, false, "write it to FILE, whole or not at all, instead of standard output" },
};

typedef struct model_test {
    uint32_t n_prompt, n_gen, depth;   /* one of the first two is 0 */
} model_test;

typedef struct model_bench {
    const app_command *command;
    model_options options;
    bench_counts prompts, generations, depths;
    bench_machine machine;
    octe_model *model;
    octe_vocab *vocab;
    const octe_model_info *info;
    int32_t *tokens;
    compare_format formats[RUNNERS_MAX];
    char type_k[RUNNERS_MAX][48], type_v[RUNNERS_MAX][48];
    compare_runner runners[RUNNERS_MAX];
    uint32_t n_runners, n_tests, n_threads;
    model_test tests[TESTS_MAX];
    compare_speed_options speed;
    app_progress progress;
    double seconds[TESTS_MAX][RUNNERS_MAX][ROUNDS_MAX];
    char began[24];            /* UTC, as ISO 8601 has it */
} model_bench;

/* ---- what was asked ---------------------------------------------------------------------------------------------------- */

static int add_format(model_bench *b, const char *name, const char *k, const char *v)
{
    oct_error error = OCT_ERROR_INIT;
    static compare_format parsed[COMPARE_MAX_FORMATS];
    char list[128];
    uint32_t n;
    if (b->n_runners == RUNNERS_MAX) {
        return app_arguments_complain(b->command, "the lists make more than %d caches", RUNNERS_MAX);
    }
    /* The first of such a list must be ours and none may come twice. */
    (void)snprintf(list, sizeof(list), "%s,%s", strcmp(name, "f32") == 0 ? "f16" : "f32", name);
    if (compare_formats_parse(list, parsed, &n, &error) != OCT_OK) {
        return app_arguments_complain(b->command, "%s", error.text);
    }
    compare_format *const format = &b->formats[b->n_runners];
    *format = parsed[1];
    if (compare_format_needs_scales(format)) {
        return app_arguments_complain(b->command, "%s needs calibrated scales, which don't change its speed: measure the format without them", name);
    }
    (void)snprintf(b->type_k[b->n_runners], sizeof(b->type_k[0]), "%s", k);
    (void)snprintf(b->type_v[b->n_runners], sizeof(b->type_v[0]), "%s", v);
    b->n_runners++;
    return APP_OK;
}

static int add_formats(model_bench *b)
{
    bench_formats k, v;
    int code = bench_read_formats(b->command, "-ctk", b->options.k, &k);
    if (code == APP_OK && b->options.v != NULL) {
        code = bench_read_formats(b->command, "-ctv", b->options.v, &v);
    }
    for (uint32_t i = 0; code == APP_OK && i < k.n; i++) {
        for (uint32_t j = 0; code == APP_OK && j < (b->options.v != NULL ? v.n : 1); j++) {
            const char *const name_v = b->options.v != NULL ? v.name[j] : k.name[i];
            char name[128];
            (void)snprintf(name, sizeof(name), "%s/%s", k.name[i], name_v);
            code = add_format(b, strcmp(k.name[i], name_v) == 0 ? k.name[i] : name, k.name[i], name_v);
        }
    }
    const char *at = b->options.peers != NULL ? b->options.peer_types : "";
    while (code == APP_OK && *at != '\0') {
        const size_t length = strcspn(at, ",");
        char type[24], name[32];
        (void)snprintf(type, sizeof(type), "%.*s", (int)(length < 20 ? length : 20), at);
        (void)snprintf(name, sizeof(name), "llama:%s", type);
        code = add_format(b, name, type, type);
        at += length + (at[length] == ',');
    }
    return code;
}

static int add_tests(model_bench *b)
{
    for (uint32_t d = 0; d < b->depths.n; d++) {
        for (uint32_t i = 0; i < b->prompts.n + b->generations.n; i++) {
            const bool is_prompt = i < b->prompts.n;
            const model_test test = { is_prompt ? b->prompts.item[i] : 0, is_prompt ? 0 : b->generations.item[i - b->prompts.n], b->depths.item[d] };
            if (test.n_prompt + test.n_gen == 0) {
                continue;
            }
            if (b->n_tests == TESTS_MAX) {
                return app_arguments_complain(b->command, "the lists make more than %d tests", TESTS_MAX);
            }
            b->tests[b->n_tests++] = test;
        }
    }
    return b->n_tests > 0 ? APP_OK : app_arguments_complain(b->command, "-p and -n leave nothing to measure");
}

static int read_options(model_bench *b, int argc, char **argv)
{
    int code;
    if (!app_arguments_parse(b->command, argc, argv, &b->options, &code)) {
        return code == APP_OK ? -1 : code;
    }
    code = bench_read_counts(b->command, "-p", b->options.prompts, 0, 1 << 16, &b->prompts);
    code = code == APP_OK ? bench_read_counts(b->command, "-n", b->options.generations, 0, 1 << 16, &b->generations) : code;
    code = code == APP_OK ? bench_read_counts(b->command, "-d", b->options.depths, 0, 1 << 24, &b->depths) : code;
    code = code == APP_OK ? add_tests(b) : code;
    return code == APP_OK ? add_formats(b) : code;
}

/* ---- measuring --------------------------------------------------------------------------------------------------------------- */

/* What a test appends to the cache; a generation has one step more, which is not timed. */
static uint32_t appended(const model_test *test)
{
    return test->n_prompt > 0 ? test->n_prompt : test->n_gen + 1;
}

static oct_status open_all(model_bench *b, oct_error *error)
{
    uint32_t context = 0, rows = 512, n_tokens = 0;
    for (uint32_t i = 0; i < b->n_tests; i++) {
        const uint32_t needed = b->tests[i].depth + appended(&b->tests[i]);
        context = needed > context ? needed : context;
        rows = b->tests[i].n_prompt > rows ? b->tests[i].n_prompt : rows;
    }
    oct_status status = octe_model_open(b->options.model, NULL, &b->model, error);
    if (status == OCT_OK) {
        status = octe_vocab_open(b->options.model, &b->vocab, error);
    }
    if (status == OCT_OK) {
        b->info = octe_model_info_get(b->model);
        if (context > b->info->n_ctx_train) {
            return oct__error_set(error, OCT_INVALID_ARGUMENT, where, "-d: a context of %u tokens is longer than the model was made for (%u)", context, b->info->n_ctx_train);
        }
        status = app_text_tokens(b->vocab, APP_TEXT_BUILT_IN, APP_CHRONICLE_JUDGED, rows > FEED_TOKENS ? rows : FEED_TOKENS, &b->tokens, &n_tokens, error);
    }
    b->speed = (compare_speed_options){ .model = b->model, .tokens = b->tokens, .n_tokens = n_tokens, .step_rows = rows };
    for (uint32_t i = 0; i < b->n_runners && status == OCT_OK; i++) {
        const compare_runner_options options = { .model = b->model, .path = b->options.model, .n_threads = b->n_threads, .context_tokens = context, .step_rows = rows,
                                                 .step_logits = 1, .page_size = b->options.block_size, .rates = b->machine.rates.pointer };
        status = compare_runner_open(&b->runners[i], &b->formats[i], &options, error);
    }
    return status;
}

static oct_status run_test(model_bench *b, compare_runner *runner, const model_test *test, double *seconds, oct_error *error)
{
    const float *logits;
    oct_status status = compare_speed_go_to(runner, &b->speed, test->depth, appended(test), &b->progress, error);
    if (status != OCT_OK) {
        return status;
    }
    double begin = oct__clock_seconds();
    if (test->n_prompt > 0) {
        status = compare_runner_step(runner, b->tokens, test->n_prompt, 1, &logits, error);
    }
    /* The first token finds a graph to build: it warms up. */
    for (uint32_t i = 0; test->n_gen > 0 && i <= test->n_gen && status == OCT_OK; i++) {
        status = compare_runner_step(runner, b->tokens + i % b->speed.n_tokens, 1, 1, &logits, error);
        begin = i == 0 ? oct__clock_seconds() : begin;
    }
    *seconds = oct__clock_seconds() - begin;
    return status;
}

static oct_status measure(model_bench *b, oct_error *error)
{
    oct_status status = OCT_OK;
    double ignored;
    const time_t now = time(NULL);
    struct tm utc;
    if (gmtime_r(&now, &utc) != NULL) {
        (void)strftime(b->began, sizeof(b->began), "%Y-%m-%dT%H:%M:%SZ", &utc);
    }
    app_progress_begin(&b->progress, (double)b->n_tests * b->options.n_rounds * b->n_runners);
    /* A first, short one of each, which touches weights and memory: not timed. */
    for (uint32_t i = 0; i < b->n_runners && status == OCT_OK; i++) {
        const model_test first = { .n_prompt = 8 < b->speed.n_tokens ? 8 : 1 };
        status = run_test(b, &b->runners[i], &first, &ignored, error);
        status = status == OCT_OK ? compare_runner_empty(&b->runners[i], error) : status;
    }
    for (uint32_t t = 0; t < b->n_tests; t++) {
        for (uint32_t round = 0; round < b->options.n_rounds; round++) {
            for (uint32_t k = 0; k < b->n_runners && status == OCT_OK; k++) {
                const uint32_t i = (k + round) % b->n_runners;
                app_progress_say(&b->progress, b->tests[t].n_prompt > 0 ? "prompts" : "generation");
                status = run_test(b, &b->runners[i], &b->tests[t], &b->seconds[t][i][round], error);
                app_progress_add(&b->progress, 1);
            }
        }
    }
    app_progress_end(&b->progress);
    return status;
}

/* ---- the report ---------------------------------------------------------------------------------------------------------------- */

typedef struct model_row {
    const model_test *test;
    const char *backend, *type_k, *type_v;
    double median_seconds, median_ts, spread_ts;   /* spread: half of what lies between the quartiles */
    double mean_ns, deviation_ns, mean_ts, deviation_ts;
    const double *seconds;                         /* [n_rounds] */
    double ts[ROUNDS_MAX];
} model_row;

/* As llama-bench has them: of a sample, and 0 for a single value. */
static void mean_of(const double *values, uint32_t n, double *mean, double *deviation)
{
    double sum = 0, squares = 0;
    for (uint32_t i = 0; i < n; i++) {
        sum += values[i];
    }
    *mean = sum / n;
    for (uint32_t i = 0; i < n; i++) {
        squares += (values[i] - *mean) * (values[i] - *mean);
    }
    *deviation = n > 1 ? sqrt(squares / (n - 1)) : 0;
}

static model_row row_of(const model_bench *b, uint32_t t, uint32_t i)
{
    const model_test *const test = &b->tests[t];
    const uint32_t n = b->options.n_rounds;
    model_row row = { .test = test, .backend = b->formats[i].is_reference ? "llama.cpp" : "octavo", .type_k = b->type_k[i], .type_v = b->type_v[i], .seconds = b->seconds[t][i] };
    for (uint32_t r = 0; r < n; r++) {
        row.ts[r] = (test->n_prompt + test->n_gen) / row.seconds[r];
    }
    mean_of(row.seconds, n, &row.mean_ns, &row.deviation_ns);
    row.mean_ns *= 1e9;
    row.deviation_ns *= 1e9;
    mean_of(row.ts, n, &row.mean_ts, &row.deviation_ts);
    row.median_seconds = bench_median(row.seconds, n);
    row.median_ts = bench_median(row.ts, n);
    row.spread_ts = (bench_quantile(row.ts, n, 0.75) - bench_quantile(row.ts, n, 0.25)) / 2;
    return row;
}

static void add_markdown(const model_bench *b, app_text *text)
{
    static app_table table;
    static const struct { const char *head; bool left; } columns[] = { { "model", true }, { "size", false }, { "params", false }, { "backend", true }, { "threads", false },
                                                                       { "type_k", false }, { "type_v", false }, { "test", false }, { "t/s", false } };
    table = (app_table){ 0 };
    for (size_t i = 0; i < sizeof(columns) / sizeof(columns[0]); i++) {
        app_table_column(&table, columns[i].head, columns[i].left);
    }
    for (uint32_t i = 0; i < b->n_runners; i++) {
        for (uint32_t t = 0; t < b->n_tests; t++) {
            const model_row row = row_of(b, t, i);
            char depth[24] = "";
            if (row.test->depth > 0) {
                (void)snprintf(depth, sizeof(depth), " @ d%u", row.test->depth);
            }
            app_table_cell(&table, "%s", b->info->name);
            app_table_cell(&table, "%.2f MiB", (double)b->info->file_bytes / (1 << 20));
            app_table_cell(&table, "%.2f M", (double)b->info->n_params * 1e-6);
            app_table_cell(&table, "%s", row.backend);
            app_table_cell(&table, "%u", b->n_threads);
            app_table_cell(&table, "%s", row.type_k);
            app_table_cell(&table, "%s", row.type_v);
            app_table_cell(&table, "%s%u%s", row.test->n_prompt > 0 ? "pp" : "tg", row.test->n_prompt + row.test->n_gen, depth);
            app_table_cell(&table, "%.2f ± %.2f", row.median_ts, row.spread_ts);
        }
    }
    app_table_markdown(&table, text);
    app_text_add(text, "\n%s; medians of %u rounds ± half of what lies between the quartiles\n", b->machine.cpu, b->options.n_rounds);
    app_table_free(&table);
}

/* One row's fields, in order: CSV's columns and JSON's keys. Those of llama-bench in its order and with its meanings, as far as there is something to say, so that its
 * readers take the file; then ours. The last two, every round's time and rate, are arrays and in JSON alone, there as here. */
typedef struct model_field {
    const char *key, *text;
    double number;
    bool is_rate;              /* not whole */
    const double *values;      /* [n_rounds], times factor */
    double factor;
} model_field;
enum { FIELDS_MAX = 32, N_FIELDS_JSON_ONLY = 2 };

static int fields_of(const model_bench *b, const model_row *row, model_field fields[FIELDS_MAX])
{
    const model_field all[] = {
        { .key = "build_commit", .text = oct_version_string() },
        { .key = "cpu_info", .text = b->machine.cpu },
        { .key = "backends", .text = row->backend },
        { .key = "model_filename", .text = b->info->path },
        { .key = "model_type", .text = b->info->architecture },
        { .key = "model_size", .number = (double)b->info->file_bytes },
        { .key = "model_n_params", .number = (double)b->info->n_params },
        { .key = "n_batch", .number = b->speed.step_rows },
        { .key = "n_ubatch", .number = b->speed.step_rows },
        { .key = "n_threads", .number = b->n_threads },
        { .key = "type_k", .text = row->type_k },
        { .key = "type_v", .text = row->type_v },
        { .key = "n_prompt", .number = row->test->n_prompt },
        { .key = "n_gen", .number = row->test->n_gen },
        { .key = "n_depth", .number = row->test->depth },
        { .key = "test_time", .text = b->began },
        { .key = "avg_ns", .number = row->mean_ns },
        { .key = "stddev_ns", .number = row->deviation_ns },
        { .key = "avg_ts", .number = row->mean_ts, .is_rate = true },
        { .key = "stddev_ts", .number = row->deviation_ts, .is_rate = true },
        { .key = "cpu", .text = b->machine.cpu },
        { .key = "median_ns", .number = row->median_seconds * 1e9 },
        { .key = "median_ts", .number = row->median_ts, .is_rate = true },
        { .key = "spread_ts", .number = row->spread_ts, .is_rate = true },
        { .key = "samples_ns", .values = row->seconds, .factor = 1e9 },
        { .key = "samples_ts", .values = row->ts, .factor = 1, .is_rate = true },
    };
    _Static_assert(sizeof(all) / sizeof(all[0]) <= FIELDS_MAX, "room for all");
    memcpy(fields, all, sizeof(all));
    return (int)(sizeof(all) / sizeof(all[0]));
}

static void add_number(double number, bool is_rate, app_text *text)
{
    if (is_rate) {
        app_text_add_number(text, number, 6);
    } else {
        app_text_add(text, "%.0f", number);
    }
}

static void add_field(const model_bench *b, const model_field *f, app_text *text)
{
    if (f->text != NULL) {
        app_text_add_json(text, f->text);
    } else if (f->values == NULL) {
        add_number(f->number, f->is_rate, text);
    } else {
        for (uint32_t r = 0; r < b->options.n_rounds; r++) {
            app_text_add(text, "%s", r == 0 ? "[" : ", ");
            add_number(f->values[r] * f->factor, f->is_rate, text);
        }
        app_text_add(text, "]");
    }
}

static void add_data(const model_bench *b, app_text *text)
{
    const char *const form = b->options.form;
    const bool is_csv = strcmp(form, "csv") == 0, is_json = strcmp(form, "json") == 0;
    const char *between = is_json ? "[\n" : "";
    bool headed = !is_csv;
    for (uint32_t i = 0; i < b->n_runners; i++) {
        for (uint32_t t = 0; t < b->n_tests; t++) {
            const model_row row = row_of(b, t, i);
            model_field fields[FIELDS_MAX];
            const int n = fields_of(b, &row, fields) - (is_csv ? N_FIELDS_JSON_ONLY : 0);
            for (int f = 0; !headed && f < n; f++) {
                app_text_add(text, "%s%s", fields[f].key, f + 1 < n ? "," : "\n");
            }
            headed = true;
            app_text_add(text, "%s%s", between, is_csv ? "" : "{");
            for (int f = 0; f < n; f++) {
                app_text_add(text, "%s", f == 0 ? "" : is_csv ? "," : ", ");
                if (!is_csv) {
                    app_text_add(text, "\"%s\": ", fields[f].key);
                }
                add_field(b, &fields[f], text);
            }
            app_text_add(text, "%s", is_csv ? "" : "}");
            between = is_json ? ",\n" : "\n";
        }
    }
    app_text_add(text, is_json ? "\n]\n" : "\n");
}

static int run(const app_command *command, int argc, char **argv)
{
    static model_bench b;   /* large */
    b = (model_bench){ .command = command, .options = { .prompts = "512", .generations = "128", .depths = "0", .k = "f16", .form = "md", .peer_types = "f16,q8_0", .n_rounds = 3,
                                                        .block_size = 16 } };
    int code = read_options(&b, argc, argv);
    if (code != APP_OK) {
        return code < 0 ? APP_OK : code;
    }
    app_thread_note(b.options.n_threads);
    b.n_threads = b.options.n_threads > 0 ? b.options.n_threads : oct__threads_usable_cpus();
    code = bench_machine_open(b.options.rates, false, 1, NULL, NULL, &b.machine);
    if (code == APP_OK) {
        oct_error error = OCT_ERROR_INIT;
        oct_status status = open_all(&b, &error);
        status = status == OCT_OK ? measure(&b, &error) : status;
        error.status = status;
        code = status == OCT_OK ? APP_OK : app_output_error(&error);
    }
    if (code == APP_OK) {
        app_text text = { 0 };
        if (strcmp(b.options.form, "md") == 0) {
            add_markdown(&b, &text);
        } else {
            add_data(&b, &text);
        }
        code = app_output_report(&text, b.options.output);
        app_text_free(&text);
    }
    for (uint32_t i = 0; i < b.n_runners; i++) {
        compare_runner_close(&b.runners[i]);
    }
    free(b.tokens);
    octe_vocab_close(b.vocab);
    octe_model_close(b.model);
    return code;
}

const app_command app_command_bench_model = {
    .name = "bench model",
    .summary = "whole models as llama-bench measures them, llama.cpp itself beside ours",
    .operands = "-m MODEL.gguf [flags]",
    .notes = "A depth is reached by arbitrary values through the same write, llama.cpp's by a real prefill, which takes its time. doc/BENCH.md says more.",
    .flags = flags,
    .n_flags = sizeof(flags) / sizeof(flags[0]),
    .run = run,
};
