/* timing.h: owns how things that do the same work are timed against each other: all take turns in every round, so that what disturbs
 * the machine for a moment disturbs all alike. Single-threaded. */
#ifndef APP_BENCH_TIMING_H
#define APP_BENCH_TIMING_H

#include <stdbool.h>
#include <stdint.h>

#include "octavo/status.h"

enum { BENCH_CONTENDERS_MAX = 16, BENCH_ROUNDS_MAX = 101 };

typedef struct bench_contender {
    oct_status (*run)(void *what);
    void *what;
    /* Not NULL: takes a sample by itself, on a clock of its own (a GPU's): seconds of one operation. run is not called. */
    oct_status (*sample)(void *what, uint32_t n_runs, double *seconds);
    uint32_t n_per_run;            /* calls of the operation that one run makes */
    uint32_t n_runs;               /* a sample; set by bench_time */
    double first_seconds;          /* of one operation, in the first run, which is not a sample */
    uint32_t n_samples;
    double samples[BENCH_ROUNDS_MAX];   /* seconds of one operation, round by round */
} bench_contender;

typedef struct bench_timing {
    uint32_t n_rounds;
    uint32_t n_rounds_min;         /* with a budget: */
    double budget_seconds;         /* as many of the rounds as fit, but n_rounds_min; 0: all */
    double sample_seconds;         /* a sample makes as many runs as fit, at least one */
    bool cpu_clock;                /* the calling thread's CPU time instead of the wall's: for one thread only */
} bench_timing;

/* Runs everything once, then the rounds; a round begins with another contender each time. Ends early with CANCELLED after Ctrl-C, or with the
 * first status that is not OK. */
oct_status bench_time(bench_contender *contenders, uint32_t n, const bench_timing *timing);

double bench_median(const double *samples, uint32_t n);   /* n >= 1; any order */
double bench_least(const double *samples, uint32_t n);

/* The value at a share of the sorted samples, 0 the least and 1 the largest, without interpolation: the least that no more than 1 - share exceed. */
double bench_quantile(const double *samples, uint32_t n, double share);

/* By how much `a` is slower than `b`, as a share: the median over the rounds of a's sample over b's in the same round, less one. */
double bench_slower(const bench_contender *a, const bench_contender *b);

#endif
