/* steps.c: owns `octavo bench steps`: write and attention of every step of a serving trace with chunked prefill, an 8-bit cache against a bf16 one. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "apps/bench/bench.h"
#include "apps/bench/lists.h"
#include "apps/bench/machine.h"
#include "apps/bench/rig.h"
#include "apps/bench/timing.h"
#include "apps/bench/trace.h"
#include "apps/output.h"
#include "apps/progress.h"
#include "apps/table.h"
#include "apps/thread_note.h"
#include "host/error.h"
#include "host/threads.h"

enum { SIDES = 2 };                       /* the format asked about, and bf16 */
static const double sample_seconds = 3e-3;
static const char where[] = "octavo bench steps";

typedef struct steps_options {
    const char *isl, *conc, *heads, *dims, *k, *form, *output, *rates, *device, *library;
    uint32_t osl, chunk, page, threads, n_rounds;
} steps_options;

#define OPTION(field) offsetof(steps_options, field)
static const app_flag flags[] = {
    { "--isl", "LIST", APP_TEXT, OPTION(isl), 0, 0, false, "tokens of a prompt (a GPU: 8192,61440; the CPU: 64,256)" },
    { "--osl", "N", APP_COUNT, OPTION(osl), 1, 1 << 20, false, "tokens of an answer (a GPU: 1024; the CPU: 16)" },
    { "--conc", "LIST", APP_TEXT, OPTION(conc), 0, 0, false, "requests at a time (a GPU: 4,64,256; the CPU: 1,4)" },
    { "--chunk", "N", APP_COUNT, OPTION(chunk), 2, 1 << 20, false, "tokens of a step, answers' first (a GPU: 8192; the CPU: 64)" },
    { "--heads", "Q/KV", APP_TEXT, OPTION(heads), 0, 0, false, "query heads / KV heads (32/2; the CPU: 8/2)" },
    { "--dim", "N", APP_TEXT, OPTION(dims), 0, 0, false, "head dim, or K's / V's (256; the CPU: 64)" },
    { "-ctk, --cache-type", "FORMAT", APP_TEXT, OPTION(k), 0, 0, false, "the 8-bit cache (e4m3)" },
    { "--page", "N", APP_COUNT, OPTION(page), 1, 1024, false, "tokens of a page (16)" },
    { "-t, --threads", "N", APP_COUNT, OPTION(threads), 1, 512, false, "threads of the CPU (its cores)" },
    { "-r, --repetitions", "N", APP_COUNT, OPTION(n_rounds), 1, BENCH_ROUNDS_MAX, false, "rounds in which both caches take turns; medians count (5)" },
    APP_RATES_FLAG(OPTION(rates)),
    BENCH_DEVICE_FLAGS(OPTION(device), OPTION(library)),
    { "-o, --output-format", "md|json", APP_CHOICE, OPTION(form), 0, 0, false, "form of the report (md)" },
    { "--output", "FILE", APP_TEXT, OPTION(output), 0, 0, false, "write it to FILE, whole or not at all, instead of standard output" },
};

typedef struct steps_bench {
    const app_command *command;
    steps_options options;
    bench_counts isl, conc;
    bench_pairs heads, dims;
    bench_formats k, bf16;
    bench_machine machine;
    bench_load loads[BENCH_LOADS_MAX];
    bench_shapes shapes;
    double seconds[SIDES][BENCH_SHAPES_MAX];
} steps_bench;

static bool on_gpu(const steps_options *o)
{
    return o->device != NULL && strcmp(o->device, "cpu") != 0;
}

static int read_lists(steps_bench *b)
{
    steps_options *const o = &b->options;
    const bool gpu = on_gpu(o);
    o->isl = o->isl != NULL ? o->isl : gpu ? "8192,61440" : "64,256";
    o->conc = o->conc != NULL ? o->conc : gpu ? "4,64,256" : "1,4";
    o->heads = o->heads != NULL ? o->heads : gpu ? "32/2" : "8/2";
    o->dims = o->dims != NULL ? o->dims : gpu ? "256" : "64";
    o->osl = o->osl > 0 ? o->osl : gpu ? 1024 : 16;
    o->chunk = o->chunk > 0 ? o->chunk : gpu ? 8192 : 64;
    o->threads = o->threads > 0 ? o->threads : oct__threads_usable_cpus();
    int code = bench_read_counts(b->command, "--isl", o->isl, 1, 1 << 24, &b->isl);
    code = code == APP_OK ? bench_read_counts(b->command, "--conc", o->conc, 1, 1 << 16, &b->conc) : code;
    code = code == APP_OK ? bench_read_pairs(b->command, "--heads", o->heads, 1, 1024, &b->heads) : code;
    code = code == APP_OK ? bench_read_pairs(b->command, "--dim", o->dims, 8, 512, &b->dims) : code;
    code = code == APP_OK ? bench_read_formats(b->command, "-ctk", o->k, &b->k) : code;
    code = code == APP_OK ? bench_read_formats(b->command, "-ctk", "bf16", &b->bf16) : code;
    if (code == APP_OK && (b->heads.n != 1 || b->dims.n != 1 || b->k.n != 1)) {
        return app_arguments_complain(b->command, "--heads, --dim and -ctk take one value each");
    }
    if (code == APP_OK && b->isl.n * b->conc.n > BENCH_LOADS_MAX) {
        return app_arguments_complain(b->command, "--isl and --conc make more than %d loads", BENCH_LOADS_MAX);
    }
    for (uint32_t i = 0; code == APP_OK && i < b->isl.n; i++) {
        for (uint32_t c = 0; code == APP_OK && c < b->conc.n; c++) {
            const bench_load load = { b->isl.item[i], o->osl, b->conc.item[c], o->chunk };
            if (load.chunk <= load.conc) {
                return app_arguments_complain(b->command, "--chunk must exceed --conc, or no prompt goes on while all answers do");
            }
            b->loads[b->shapes.n_loads] = load;
            code = bench_shapes_add(&b->shapes, &load) ? APP_OK : app_output_fail("out of memory for a trace");
        }
    }
    return code == APP_OK && b->shapes.is_full ? app_arguments_complain(b->command, "the loads make more than %d shapes", BENCH_SHAPES_MAX) : code;
}

static oct_status run_choice(void *what)
{
    return bench_choice_run(what);
}

/* Both caches in turns. */
static oct_status measure_shape(steps_bench *b, uint32_t i, oct_context *context, oct_error *error)
{
    static bench_contender contenders[SIDES];
    bench_rig *rigs[SIDES] = { NULL, NULL };
    bench_choice choices[SIDES] = { { .rig = NULL }, { .rig = NULL } };
    oct_status status = OCT_OK;
    for (uint32_t side = 0; side < SIDES && status == OCT_OK; side++) {
        const oct_kv_format *const format = side == 0 ? &b->k.item[0] : &b->bf16.item[0];
        const bench_problem p = {
            .op = b->shapes.item[i].op, .heads_q = b->heads.first[0], .heads_kv = b->heads.second[0], .dim_k = b->dims.first[0], .dim_v = b->dims.second[0],
            .batch = b->shapes.item[i].batch, .q_len = b->shapes.item[i].q_len, .kv_len = b->shapes.item[i].kv_len, .page = b->options.page, .k = *format, .v = *format,
            .operand = OCT_DTYPE_BF16, .threads = b->machine.clock != NULL ? b->machine.n_units : b->options.threads,
        };
        status = bench_rig_create(&p, context, b->machine.clock, bench_machine_cold_bytes(&b->machine), &rigs[side], error);
        status = status == OCT_OK ? bench_choice_make(rigs[side], NULL, NULL, &choices[side], error) : status;
        contenders[side] = (bench_contender){ .run = run_choice, .sample = b->machine.clock != NULL ? bench_choice_sample : NULL, .what = &choices[side], .n_per_run = 1 };
    }
    if (status == OCT_OK) {
        const bench_timing timing = { .n_rounds = b->options.n_rounds, .sample_seconds = sample_seconds, .cpu_clock = b->options.threads == 1 && b->machine.clock == NULL };
        status = bench_time(contenders, SIDES, &timing);
        if (status != OCT_OK) {
            (void)oct__error_set(error, status, where, "%s", status == OCT_CANCELLED ? "stopped" : oct_status_message(status));
        }
    }
    for (uint32_t side = 0; side < SIDES; side++) {
        if (status == OCT_OK) {
            b->seconds[side][i] = bench_median(contenders[side].samples, contenders[side].n_samples);
        }
        bench_choice_free(&choices[side]);
        bench_rig_destroy(rigs[side]);
    }
    return status;
}

static int measure_all(steps_bench *b)
{
    oct_context *const context = bench_machine_context(&b->machine, b->machine.clock != NULL ? 1 : b->options.threads);
    app_progress progress = { 0 };
    int code = context != NULL ? APP_OK : APP_FAILED;
    app_progress_begin(&progress, b->shapes.n);
    for (uint32_t i = 0; i < b->shapes.n && code == APP_OK; i++) {
        oct_error error = OCT_ERROR_INIT;
        app_progress_say(&progress, bench_op_name(b->shapes.item[i].op));
        const oct_status status = measure_shape(b, i, context, &error);
        if (status != OCT_OK) {
            app_progress_end(&progress);
            error.status = status;
            code = app_output_error(&error);
        }
        app_progress_add(&progress, 1);
    }
    app_progress_end(&progress);
    oct_context_destroy(context);
    return code;
}

static double total_of(const double sums[BENCH_OPS])
{
    return sums[BENCH_WRITE] + sums[BENCH_DECODE] + sums[BENCH_EXTEND];
}

static void report_json(const steps_bench *b, app_text *text)
{
    app_text_add(text, "{\n  \"cpu\": ");
    app_text_add_json(text, b->machine.cpu);
    app_text_add(text, ", \"device\": ");
    app_text_add_json(text, b->machine.clock != NULL ? b->machine.device_name : b->machine.cpu);
    app_text_add(text, ",\n  \"heads_q\": %u, \"heads_kv\": %u, \"dim_k\": %u, \"dim_v\": %u, \"page\": %u, \"osl\": %u, \"chunk\": %u, \"format\": ", b->heads.first[0],
                 b->heads.second[0], b->dims.first[0], b->dims.second[0], b->options.page, b->options.osl, b->options.chunk);
    app_text_add_json(text, b->k.name[0]);
    app_text_add(text, ", \"shapes\": %u,\n  \"loads\": [\n", b->shapes.n);
    for (uint32_t l = 0; l < b->shapes.n_loads; l++) {
        double sums[SIDES][BENCH_OPS];
        app_text_add(text, "    {\"isl\": %u, \"conc\": %u, \"steps\": %u", b->loads[l].isl, b->loads[l].conc, b->shapes.n_steps[l]);
        for (uint32_t side = 0; side < SIDES; side++) {
            bench_shapes_sum(&b->shapes, l, b->seconds[side], sums[side]);
            app_text_add(text, ", \"%s\": {\"write_ms\": %.6f, \"decode_ms\": %.6f, \"extend_ms\": %.6f, \"total_ms\": %.6f}", side == 0 ? "ours_8_bit" : "bf16",
                         sums[side][BENCH_WRITE] * 1e3, sums[side][BENCH_DECODE] * 1e3, sums[side][BENCH_EXTEND] * 1e3, total_of(sums[side]) * 1e3);
        }
        app_text_add(text, ", \"ratio\": %.4f}%s\n", total_of(sums[0]) / total_of(sums[1]), l + 1 < b->shapes.n_loads ? "," : "");
    }
    app_text_add(text, "  ]\n}\n");
}

static void report_table(const steps_bench *b, app_text *text)
{
    static app_table table;
    static const char *const heads[] = { "prompt", "clients", "steps", "write ms", "decode ms", "extend ms", "total ms", "bf16: write", "decode", "extend", "total", "8-bit / bf16" };
    table = (app_table){ .n_cells = 0 };
    for (size_t i = 0; i < sizeof(heads) / sizeof(heads[0]); i++) {
        app_table_column(&table, heads[i], false);
    }
    for (uint32_t l = 0; l < b->shapes.n_loads; l++) {
        double sums[SIDES][BENCH_OPS];
        app_table_cell(&table, "%u", b->loads[l].isl);
        app_table_cell(&table, "%u", b->loads[l].conc);
        app_table_cell(&table, "%u", b->shapes.n_steps[l]);
        for (uint32_t side = 0; side < SIDES; side++) {
            bench_shapes_sum(&b->shapes, l, b->seconds[side], sums[side]);
            app_table_cell(&table, "%.2f", sums[side][BENCH_WRITE] * 1e3);
            app_table_cell(&table, "%.2f", sums[side][BENCH_DECODE] * 1e3);
            app_table_cell(&table, "%.2f", sums[side][BENCH_EXTEND] * 1e3);
            app_table_cell(&table, "%.2f", total_of(sums[side]) * 1e3);
        }
        app_table_cell(&table, "%.3f", total_of(sums[0]) / total_of(sums[1]));
    }
    app_table_markdown(&table, text);
    app_table_free(&table);
    app_text_add(text, "\n%s; %u/%u heads of %u, %s against bf16, answers of %u tokens, steps of at most %u; one layer's write and attention, summed over all steps (%u shapes measured)\n",
                 b->machine.clock != NULL ? b->machine.device_name : b->machine.cpu, b->heads.first[0], b->heads.second[0], b->dims.first[0], b->k.name[0], b->options.osl,
                 b->options.chunk, b->shapes.n);
}

static int run(const app_command *command, int argc, char **argv)
{
    static steps_bench b;   /* large */
    b = (steps_bench){ .command = command, .options = { .k = "e4m3", .form = "md", .page = 16, .n_rounds = 5 } };
    int code;
    if (!app_arguments_parse(command, argc, argv, &b.options, &code)) {
        return code;
    }
    code = read_lists(&b);
    if (code == APP_OK) {
        if (!on_gpu(&b.options)) {
            app_thread_note(b.options.threads);
        }
        code = bench_machine_open(b.options.rates, false, b.options.threads, b.options.device, b.options.library, &b.machine);
    }
    code = code == APP_OK ? measure_all(&b) : code;
    if (code == APP_OK) {
        app_text text = { 0 };
        if (strcmp(b.options.form, "json") == 0) {
            report_json(&b, &text);
        } else {
            report_table(&b, &text);
        }
        code = app_output_report(&text, b.options.output);
        app_text_free(&text);
    }
    bench_machine_close(&b.machine);
    return code;
}

const app_command app_command_bench_steps = {
    .name = "bench steps",
    .summary = "a serving trace with chunked prefill: write and attention of all its steps, 8 bits against bf16",
    .operands = "[flags]",
    .notes = "All requests come at once; each step takes one token of every answer under way and then as much of the first prompt as its chunk has room for. Shapes are rounded "
             "up, alike for both caches, and measured once; doc/BENCH.md says how.",
    .flags = flags,
    .n_flags = sizeof(flags) / sizeof(flags[0]),
    .run = run,
};
