/* regret_report.h: owns what was measured about choices and how it is written. One thread a report. */
#ifndef APP_BENCH_REGRET_REPORT_H
#define APP_BENCH_REGRET_REPORT_H

#include "apps/bench/problem.h"
#include "apps/text.h"

enum { REGRET_VARIANTS_MAX = 15, REGRET_WORST = 10 };

typedef struct regret_row {
    bench_problem problem;
    uint32_t n, best;                                  /* variants measured, the chosen one first; the one that the regret is against */
    char variant[REGRET_VARIANTS_MAX][40];
    double seconds[REGRET_VARIANTS_MAX], predicted[REGRET_VARIANTS_MAX];
    uint32_t n_far;                                    /* variants far off */
    char far[REGRET_VARIANTS_MAX][40];
    double regret;                                     /* share: 0.03 is 3 % slower than the best */
    double loss, seconds_16_bit;                       /* how much slower than a bf16 cache; NAN: not measured */
    uint32_t n_rounds;
} regret_row;

typedef struct regret_report {
    const char *cpu;                                   /* a GPU's name with on_gpu, whose units are the threads */
    bool on_gpu;
    uint32_t threads, n_rows;
    regret_row *rows;
    double seconds, budget_seconds;
} regret_report;

bool regret_is_far(const regret_row *row, const char *variant);

typedef struct regret_summary {
    double median, p95, worst;
    uint32_t n_worst, at[REGRET_WORST];                /* rows of the largest values that are above 0, largest first */
} regret_summary;

/* Of n values; NANs don't count, *n_counted says how many did. */
regret_summary regret_summarise(const double *values, uint32_t n, uint32_t *n_counted);

/* {"problems": n, "median_pct": x, "p95_pct": x, "worst_pct": x, "worst": [...], ...}: see doc/BENCH.md. */
void regret_report_json(const regret_report *report, app_text *text);
void regret_report_text(const regret_report *report, app_text *text);

/* One line of --save: the problem with the seconds measured and predicted of each variant, and whose they are (cpu: report.cpu). */
void regret_row_line(const regret_row *row, uint32_t number, const char *cpu, app_text *text);

#endif
