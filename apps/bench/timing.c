/* timing.c: see timing.h. */
#include "apps/bench/timing.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "apps/interrupt.h"

enum { RUNS_MAX = 1 << 20, QUANTILE_MAX = 1 << 16 };

static double seconds_now(bool cpu_clock)
{
    struct timespec now;
    clock_gettime(cpu_clock ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static oct_status sample(bench_contender *c, uint32_t n_runs, bool cpu_clock, double *seconds)
{
    if (c->sample != NULL) {
        return c->sample(c->what, n_runs, seconds);
    }
    const double begin = seconds_now(cpu_clock);
    for (uint32_t i = 0; i < n_runs; i++) {
        const oct_status status = c->run(c->what);
        if (status != OCT_OK) {
            return status;
        }
    }
    const double end = seconds_now(cpu_clock);
    /* A clock that did not move: less than its step. */
    *seconds = (end > begin ? end - begin : 1e-9) / ((double)n_runs * c->n_per_run);
    return OCT_OK;
}

oct_status bench_time(bench_contender *contenders, uint32_t n, const bench_timing *timing)
{
    for (uint32_t i = 0; i < n; i++) {
        bench_contender *const c = &contenders[i];
        /* The first run finds cold instructions and unmapped memory; the second says how many make a sample. */
        double again = 0;
        oct_status status = sample(c, 1, timing->cpu_clock, &c->first_seconds);
        if (status == OCT_OK && c->first_seconds * c->n_per_run < timing->sample_seconds) {
            status = sample(c, 1, timing->cpu_clock, &again);
            c->first_seconds = again < c->first_seconds ? again : c->first_seconds;
        }
        if (status != OCT_OK || app_interrupted()) {
            return status != OCT_OK ? status : OCT_CANCELLED;
        }
        const double runs = timing->sample_seconds / (c->first_seconds * c->n_per_run);
        c->n_runs = runs < 1 ? 1 : runs > RUNS_MAX ? RUNS_MAX : (uint32_t)runs;
        c->n_samples = 0;
    }
    uint32_t n_rounds = timing->n_rounds;
    if (timing->budget_seconds > 0) {
        double round_seconds = 0;
        for (uint32_t i = 0; i < n; i++) {
            round_seconds += contenders[i].first_seconds * contenders[i].n_per_run * contenders[i].n_runs;
        }
        const double fit = timing->budget_seconds / round_seconds;
        n_rounds = fit >= n_rounds ? n_rounds : fit <= timing->n_rounds_min ? timing->n_rounds_min : (uint32_t)fit;
    }
    for (uint32_t round = 0; round < n_rounds; round++) {
        for (uint32_t i = 0; i < n; i++) {
            bench_contender *const c = &contenders[(i + round) % n];
            const oct_status status = app_interrupted() ? OCT_CANCELLED : sample(c, c->n_runs, timing->cpu_clock, &c->samples[round]);
            if (status != OCT_OK) {
                return status;
            }
            c->n_samples = round + 1;
        }
    }
    return OCT_OK;
}

static int compare(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double bench_quantile(const double *samples, uint32_t n, double share)
{
    double *const sorted = n > 0 && n <= QUANTILE_MAX ? malloc(n * sizeof(*sorted)) : NULL;
    if (sorted == NULL) {
        return NAN;
    }
    memcpy(sorted, samples, n * sizeof(*sorted));
    qsort(sorted, n, sizeof(*sorted), compare);
    const double at = ceil(share * n) - 1;
    const double value = sorted[at <= 0 ? 0 : at >= n ? n - 1 : (uint32_t)at];
    free(sorted);
    return value;
}

double bench_median(const double *samples, uint32_t n)
{
    const double low = bench_quantile(samples, n, 0.5);
    return n % 2 == 1 ? low : (low + bench_quantile(samples, n, 0.5 + 1.0 / n)) / 2;
}

double bench_least(const double *samples, uint32_t n)
{
    double least = samples[0];
    for (uint32_t i = 1; i < n; i++) {
        least = samples[i] < least ? samples[i] : least;
    }
    return least;
}

double bench_slower(const bench_contender *a, const bench_contender *b)
{
    double ratios[BENCH_ROUNDS_MAX] = { 0 };
    const uint32_t n = a->n_samples < b->n_samples ? a->n_samples : b->n_samples;
    for (uint32_t i = 0; i < n; i++) {
        ratios[i] = a->samples[i] / b->samples[i];
    }
    return bench_median(ratios, n) - 1;
}
