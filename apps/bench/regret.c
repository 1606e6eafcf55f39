/* regret.c: owns `octavo bench regret`: how much slower the chosen variant is than the best one, measured on a grid of problems; and whether
 * an 8-bit cache is ever slower than a 16-bit one. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "apps/bench/grid.h"
#include "apps/bench/lists.h"
#include "apps/bench/machine.h"
#include "apps/bench/regret_report.h"
#include "apps/bench/rig.h"
#include "apps/bench/timing.h"
#include "apps/interrupt.h"
#include "apps/output.h"
#include "apps/progress.h"
#include "apps/thread_note.h"
#include "host/clock.h"
#include "host/error.h"
#include "host/threads.h"

static const char where[] = "octavo bench regret";

enum { PROBLEMS_MAX = 4096, ROUNDS = 9, ROUNDS_MIN = 3, SCREEN_ROUNDS = 3,
       COLD_BYTES_MAX = 96 << 20 /* a shared cache of hundreds of MiB would take minutes to fill for each problem, and its cores see little of it */ };
static const double sample_seconds = 1e-3, screen_sample_seconds = 2e-4;
static const double far_off = 3;             /* a variant so many times slower than the best on the small problem is out of the race */
static const double doubt = 0.01;            /* a regret above this is measured again, and the second measurement counts */
static const bench_grid_limits grid_limits = { 96 << 20, 3e9 }, gpu_limits = { 512 << 20, 1e11 };

typedef struct regret_options {
    const char *form, *output, *save, *rates, *deny, *device, *library, *numbers;
    uint32_t n_threads, n_problems, first;
    float budget_seconds;
    bool no_loss;
} regret_options;

#define OPTION(field) offsetof(regret_options, field)
static const app_flag flags[] = {
    { "-t, --threads", "N", APP_COUNT, OPTION(n_threads), 0, 512, false, "threads; 0: the machine's cores (0)" },
    { "--budget", "SECONDS", APP_NUMBER, OPTION(budget_seconds), 1, 86400, false,
      "how long it may take: fewer rounds a problem, but 3 and never fewer problems; the report says when that took longer (240)" },
    { "--problems", "N", APP_COUNT, OPTION(n_problems), 1, PROBLEMS_MAX, false, "problems of the grid (320)" },
    { "--first", "N", APP_COUNT, OPTION(first), 0, 1u << 30, false, "the first problem's number, to measure a grid in pieces (0)" },
    { "--numbers", "LIST", APP_TEXT, OPTION(numbers), 0, 0, false, "these problems of the grid and no others, to look at them again: 12,170" },
    { "--deny", "NAMES", APP_TEXT, OPTION(deny), 0, 0, false, "as if these variants did not exist" },
    { "--no-16-bit", NULL, APP_SWITCH, OPTION(no_loss), 0, 0, false, "don't compare 8-bit caches with a bf16 one" },
    APP_RATES_FLAG(OPTION(rates)),
    BENCH_DEVICE_FLAGS(OPTION(device), OPTION(library)),
    { "-o, --output-format", "text|json", APP_CHOICE, OPTION(form), 0, 0, false, "form of the report (text)" },
    { "--output", "FILE", APP_TEXT, OPTION(output), 0, 0, false, "write it to FILE, whole or not at all, instead of standard output" },
    { "--save", "FILE", APP_TEXT, OPTION(save), 0, 0, false, "every measured time as well, one JSON object a problem, for fitting costs" },
};

typedef struct regret_bench {
    regret_options options;
    bench_machine machine;
    oct_context *context;
    app_progress progress;
    app_text save;
    double begun;
    bench_counts numbers;          /* with --numbers */
    regret_report report;
} regret_bench;

static oct_status run_choice(void *what)
{
    return bench_choice_run(what);
}

/* The choice first, then all others that can. */
static oct_status make_choices(const regret_bench *b, const bench_problem *p, bench_rig *rig, const regret_row *wanted, bench_choice *choices, uint32_t *n, oct_error *error)
{
    const char *const op = bench_op_name(p->op);
    oct_status status = bench_choice_make(rig, NULL, b->options.deny, &choices[0], error);
    *n = status == OCT_OK;
    for (uint32_t i = 0; status == OCT_OK && oct_context_variant_name(b->context, i) != NULL && *n < REGRET_VARIANTS_MAX; i++) {
        const char *const name = oct_context_variant_name(b->context, i);
        if (strncmp(name, op, strlen(op)) != 0 || strcmp(name, choices[0].variant) == 0 || (wanted != NULL && regret_is_far(wanted, name))) {
            continue;
        }
        oct_error why = OCT_ERROR_INIT;
        const oct_status tried = bench_choice_make(rig, name, b->options.deny, &choices[*n], &why);
        *n += tried == OCT_OK;
        status = tried == OCT_UNSUPPORTED || tried == OCT_INVALID_ARGUMENT || tried == OCT_OK ? OCT_OK : oct__error_set(error, tried, where, "%s", why.text);
    }
    return status;
}

static void free_choices(bench_choice *choices, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        bench_choice_free(&choices[i]);
    }
}

static oct_status time_all(const regret_bench *b, bench_contender *contenders, uint32_t n, const bench_timing *timing, oct_error *error)
{
    bench_timing t = *timing;
    t.cpu_clock = b->report.threads == 1 && b->machine.clock == NULL;
    for (uint32_t i = 0; i < n; i++) {
        contenders[i].sample = b->machine.clock != NULL ? bench_choice_sample : NULL;
    }
    const oct_status status = bench_time(contenders, n, &t);
    return status == OCT_OK ? OCT_OK : oct__error_set(error, status, where, "%s", status == OCT_CANCELLED ? "stopped" : oct_status_message(status));
}

/* Which variants are so far off that a full measurement of them would be a waste. */
static oct_status screen(const regret_bench *b, const bench_problem *problem, regret_row *row, oct_error *error)
{
    static bench_contender contenders[REGRET_VARIANTS_MAX];
    bench_choice choices[REGRET_VARIANTS_MAX] = { { .rig = NULL } };
    const bench_problem p = bench_grid_small(problem);
    uint32_t n = 0;
    bench_rig *rig = NULL;
    oct_status status = bench_rig_create(&p, b->context, b->machine.clock, 0, &rig, error);
    if (status == OCT_OK) {
        status = make_choices(b, &p, rig, NULL, choices, &n, error);
    }
    for (uint32_t i = 0; i < n; i++) {
        contenders[i] = (bench_contender){ .run = run_choice, .what = &choices[i], .n_per_run = 1 };
    }
    if (status == OCT_OK) {
        status = time_all(b, contenders, n, &(bench_timing){ .n_rounds = SCREEN_ROUNDS, .sample_seconds = screen_sample_seconds }, error);
    }
    if (status == OCT_OK) {
        double best = INFINITY;
        for (uint32_t i = 0; i < n; i++) {
            const double seconds = bench_least(contenders[i].samples, contenders[i].n_samples);
            best = seconds < best ? seconds : best;
        }
        for (uint32_t i = 0; i < n; i++) {
            if (bench_least(contenders[i].samples, contenders[i].n_samples) > far_off * best) {
                (void)snprintf(row->far[row->n_far++], sizeof(row->far[0]), "%s", choices[i].variant);
            }
        }
    }
    free_choices(choices, n);
    bench_rig_destroy(rig);
    return status;
}

/* On a GPU, where small problems say little and a run of the problem itself costs little: the choices that are far off in it go. */
static oct_status drop_far(const regret_bench *b, bench_choice *choices, uint32_t *n, regret_row *row, oct_error *error)
{
    static bench_contender contenders[REGRET_VARIANTS_MAX];
    for (uint32_t i = 0; i < *n; i++) {
        contenders[i] = (bench_contender){ .run = run_choice, .what = &choices[i], .n_per_run = 1 };
    }
    const oct_status status = time_all(b, contenders, *n, &(bench_timing){ .n_rounds = 1, .sample_seconds = screen_sample_seconds }, error);
    double best = INFINITY;
    for (uint32_t i = 0; status == OCT_OK && i < *n; i++) {
        best = contenders[i].samples[0] < best ? contenders[i].samples[0] : best;
    }
    uint32_t kept = *n > 0;
    for (uint32_t i = 1; status == OCT_OK && i < *n; i++) {
        if (contenders[i].samples[0] > far_off * best) {
            (void)snprintf(row->far[row->n_far++], sizeof(row->far[0]), "%s", choices[i].variant);
            bench_choice_free(&choices[i]);
        } else {
            choices[kept++] = choices[i];
        }
    }
    *n = status == OCT_OK ? kept : *n;
    return status;
}

/* The worst that the first contender does against another one of [begin, end), and which. */
static double slowest_against(const bench_contender *c, uint32_t begin, uint32_t end, uint32_t *best)
{
    double worst = 0;
    *best = 0;
    for (uint32_t i = begin; i < end; i++) {
        const double slower = bench_slower(&c[0], &c[i]);
        if (slower > worst) {
            worst = slower;
            *best = i;
        }
    }
    return worst;
}

static bool is_8_bit(const oct_kv_format *format)
{
    return oct_dtype_size_bytes(format->dtype) <= 1; /* v4 has none */
}

/* The same problem with a bf16 cache, as far as it says something about 8 bits. */
static oct_status open_16_bit(const regret_bench *b, const bench_problem *problem, uint64_t cold, bench_rig **rig, bench_choice *choice, oct_error *error)
{
    if (b->options.no_loss || !is_8_bit(&problem->k) || !is_8_bit(&problem->v)) {
        return OCT_OK;
    }
    bench_problem p = *problem;
    p.k = p.v = (oct_kv_format){ OCT_DTYPE_BF16, OCT_SCALE_NONE, 0, 0 };
    const oct_status status = bench_rig_create(&p, b->context, b->machine.clock, cold, rig, error);
    return status == OCT_OK ? bench_choice_make(*rig, NULL, b->options.deny, choice, error) : status;
}

static oct_status measure(regret_bench *b, const bench_problem *p, double budget, regret_row *row, oct_error *error)
{
    static bench_contender contenders[REGRET_VARIANTS_MAX + 1];
    bench_choice choices[REGRET_VARIANTS_MAX] = { { .rig = NULL } }, bf16 = { .rig = NULL };
    bench_rig *rig = NULL, *rig_16 = NULL;
    uint32_t n = 0;
    const uint64_t wanted = bench_machine_cold_bytes(&b->machine), cold = wanted < COLD_BYTES_MAX || b->machine.clock != NULL ? wanted : COLD_BYTES_MAX;
    oct_status status = b->machine.clock == NULL ? screen(b, p, row, error) : OCT_OK;
    if (status == OCT_OK) {
        status = bench_rig_create(p, b->context, b->machine.clock, cold, &rig, error);
    }
    if (status == OCT_OK) {
        status = make_choices(b, p, rig, row, choices, &n, error);
    }
    if (status == OCT_OK && b->machine.clock != NULL) {
        status = drop_far(b, choices, &n, row, error);
    }
    if (status == OCT_OK) {
        status = open_16_bit(b, p, cold, &rig_16, &bf16, error);
    }
    for (uint32_t i = 0; i < n; i++) {
        contenders[i] = (bench_contender){ .run = run_choice, .what = &choices[i], .n_per_run = 1 };
    }
    const uint32_t all = n + (rig_16 != NULL);
    contenders[n] = (bench_contender){ .run = run_choice, .what = &bf16, .n_per_run = 1 };
    bench_timing timing = { .n_rounds = ROUNDS, .n_rounds_min = ROUNDS_MIN, .budget_seconds = budget, .sample_seconds = sample_seconds };
    if (status == OCT_OK) {
        status = time_all(b, contenders, all, &timing, error);
    }
    uint32_t best = 0;
    if (status == OCT_OK) {
        const bool doubtful = slowest_against(contenders, 1, n, &best) > doubt || (all > n && bench_slower(&contenders[0], &contenders[n]) > doubt);
        if (doubtful) {
            timing.budget_seconds *= 2;
            status = time_all(b, contenders, all, &timing, error);
            row->n_rounds = contenders[0].n_samples;
        }
    }
    if (status == OCT_OK) {
        row->regret = slowest_against(contenders, 1, n, &best);
        row->n_rounds += contenders[0].n_samples;
        row->n = n;
        for (uint32_t i = 0; i < n; i++) {
            (void)snprintf(row->variant[i], sizeof(row->variant[0]), "%s", choices[i].variant);
            row->seconds[i] = bench_median(contenders[i].samples, contenders[i].n_samples);
            row->predicted[i] = choices[i].predicted_seconds;
        }
        row->best = best;
        row->loss = all > n ? bench_slower(&contenders[0], &contenders[n]) : NAN;
        row->seconds_16_bit = all > n ? bench_median(contenders[n].samples, contenders[n].n_samples) : NAN;
    }
    bench_choice_free(&bf16);
    free_choices(choices, n);
    bench_rig_destroy(rig);
    bench_rig_destroy(rig_16);
    return status;
}

static oct_status measure_all(regret_bench *b, oct_error *error)
{
    const regret_options *const o = &b->options;
    oct_status status = OCT_OK;
    b->begun = oct__clock_seconds();
    app_progress_begin(&b->progress, o->n_problems);
    for (uint32_t i = 0; i < o->n_problems && status == OCT_OK; i++) {
        regret_row *const row = &b->report.rows[i];
        const uint32_t number = o->numbers != NULL ? b->numbers.item[i] : o->first + i;
        row->problem = bench_grid_problem(number, b->machine.clock != NULL ? &gpu_limits : &grid_limits, b->report.threads);
        row->loss = NAN;
        const double left = o->budget_seconds - (oct__clock_seconds() - b->begun);
        /* Half of a problem's share is for making its pages and telling who is far off. */
        const double share = left / (o->n_problems - i) / 2;
        app_progress_say(&b->progress, bench_op_name(row->problem.op));
        status = app_interrupted() ? oct__error_set(error, OCT_CANCELLED, where, "stopped") : measure(b, &row->problem, share > 1e-6 ? share : 1e-6, row, error);
        if (status == OCT_OK && o->save != NULL) {
            regret_row_line(row, number, b->report.cpu, &b->save);
        }
        b->report.n_rows = i + 1;
        app_progress_add(&b->progress, 1);
    }
    app_progress_end(&b->progress);
    b->report.seconds = oct__clock_seconds() - b->begun;
    return status;
}

static int run(const app_command *command, int argc, char **argv)
{
    static regret_bench b;   /* large */
    b = (regret_bench){ .options = { .form = "text", .n_problems = 320, .budget_seconds = 240 } };
    int code;
    if (!app_arguments_parse(command, argc, argv, &b.options, &code)) {
        return code;
    }
    if (b.options.numbers != NULL) {
        code = bench_read_counts(command, "--numbers", b.options.numbers, 0, 1u << 30, &b.numbers);
        if (code != APP_OK) {
            return code;
        }
        b.options.n_problems = b.numbers.n;
    }
    const bool on_gpu = b.options.device != NULL && strcmp(b.options.device, "cpu") != 0;
    if (on_gpu && b.options.n_threads > 0) {
        return app_arguments_complain(command, "-t is not for --device %s", b.options.device);
    }
    if (!on_gpu) {
        app_thread_note(b.options.n_threads);
    }
    b.report.threads = b.options.n_threads > 0 ? b.options.n_threads : oct__threads_usable_cpus();
    b.report.budget_seconds = (double)b.options.budget_seconds;
    code = bench_machine_open(b.options.rates, false, b.report.threads, b.options.device, b.options.library, &b.machine);
    b.report.cpu = on_gpu ? b.machine.device_name : b.machine.cpu;
    b.report.threads = b.machine.clock != NULL ? b.machine.n_units : b.report.threads;
    b.report.on_gpu = on_gpu;
    b.report.rows = code == APP_OK ? calloc(b.options.n_problems, sizeof(*b.report.rows)) : NULL;
    b.context = code == APP_OK ? bench_machine_context(&b.machine, b.report.threads) : NULL;
    if (code == APP_OK && (b.report.rows == NULL || b.context == NULL)) {
        code = b.context != NULL ? app_output_fail("out of memory") : APP_FAILED;
    }
    if (code == APP_OK) {
        oct_error error = OCT_ERROR_INIT;
        const oct_status status = measure_all(&b, &error);
        error.status = status;
        code = status == OCT_OK ? APP_OK : app_output_error(&error);
    }
    if (code == APP_OK) {
        app_text text = { 0 };
        if (strcmp(b.options.form, "json") == 0) {
            regret_report_json(&b.report, &text);
        } else {
            regret_report_text(&b.report, &text);
        }
        code = app_output_report(&text, b.options.output);
        app_text_free(&text);
    }
    if (code == APP_OK && b.options.save != NULL) {
        code = app_output_report(&b.save, b.options.save);
    }
    app_text_free(&b.save);
    oct_context_destroy(b.context);
    bench_machine_close(&b.machine);
    free(b.report.rows);
    return code;
}

const app_command app_command_bench_regret = {
    .name = "bench regret",
    .summary = "how much slower the chosen variant is than the best one, on a grid of problems",
    .operands = "[flags]",
    .notes = "Every eligible variant runs every problem, in turns with the chosen one; the regret is the median over the rounds of the ratio of their times. A variant that takes "
             "over three times the best's on a small version of a problem counts as beaten there. Wants a quiet machine; doc/BENCH.md says more.",
    .flags = flags,
    .n_flags = sizeof(flags) / sizeof(flags[0]),
    .run = run,
};
