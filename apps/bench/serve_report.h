/* serve_report.h: owns what is made of a server's answers: sums, means and percentiles, as text or JSON with vLLM's keys. Pure. */
#ifndef APP_BENCH_SERVE_REPORT_H
#define APP_BENCH_SERVE_REPORT_H

#include "apps/bench/client.h"
#include "apps/text.h"

enum { BENCH_PERCENTILES_MAX = 8 };
enum { BENCH_TTFT, BENCH_TPOT, BENCH_ITL, BENCH_E2EL, BENCH_METRICS };

typedef struct bench_serve_report {
    const char *model, *backend;
    double request_rate;                /* INFINITY: all at once */
    uint32_t max_concurrency;           /* 0: any number */
    int64_t when;                       /* seconds since 1970 */
    bool detailed;
    double percentiles[BENCH_PERCENTILES_MAX];
    uint32_t n_percentiles;
    double goal_ms[BENCH_METRICS];      /* 0: none */
    bool has_goals;
    bench_request *requests;            /* [n] */
    uint32_t n, most_at_once;
    double seconds;
} bench_serve_report;

/* "50,99"; "ttft:200". False: not such a text. */
bool bench_serve_read_percentiles(const char *text, bench_serve_report *report);
bool bench_serve_read_goal(const char *text, bench_serve_report *report);

/* The value that p percent of values[n], ascending, do not exceed: between two of them in proportion. n >= 1. */
double bench_percentile(const double *values, size_t n, double p);

void bench_serve_write(const bench_serve_report *report, bool json, app_text *text);

#endif
