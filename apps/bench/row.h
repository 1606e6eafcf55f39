/* row.h: owns the results of benchmarks at operation level and how they are written. One thread a report. */
#ifndef APP_BENCH_ROW_H
#define APP_BENCH_ROW_H

#include "apps/bench/problem.h"
#include "apps/text.h"

typedef struct bench_row {
    bench_problem problem;
    char variant[64];            /* full name, or the peer */
    char k_format[48], v_format[48];
    double seconds_median, seconds_min;
    double bytes;                /* moved by one operation, stored formats */
    double fraction_of_limit;
    double saturated;            /* share of the filled values; NAN where nobody counts */
    const char *device;          /* a GPU's name; NULL: the CPU */
} bench_row;

/* form: "md", "csv", "json", "jsonl". The whole report of n rows; cpu: its name. JSON has exactly the keys op variant device cpu k_format v_format heads_q
 * heads_kv dim_k dim_v page batch q_len kv_len window threads ns_median ns_min gbps gflops fraction_of_limit, CSV the same columns. */
void bench_rows_write(const bench_row *rows, uint32_t n, const char *cpu, const char *form, app_text *text);

/* One line of "jsonl". */
void bench_row_line(const bench_row *row, const char *cpu, app_text *text);

#endif
