/* problem.h: owns what one measurement at operation level is about, and how much there is to do in it. Pure. */
#ifndef APP_BENCH_PROBLEM_H
#define APP_BENCH_PROBLEM_H

#include <stdbool.h>

#include "octavo/octavo.h"

typedef enum bench_op { BENCH_WRITE, BENCH_DECODE, BENCH_EXTEND, BENCH_MERGE, BENCH_OPS } bench_op;

typedef struct bench_problem {
    bench_op op;
    uint32_t heads_q, heads_kv, dim_k, dim_v, batch;
    uint32_t q_len;        /* query rows of a sequence, the last of its kv_len keys; tokens written; rows merged */
    uint32_t kv_len;
    uint32_t page, window; /* tokens; window 0: none */
    oct_kv_format k, v;
    uint32_t operand;      /* oct_dtype of q and out, and of what a write reads */
    uint32_t parts;        /* merged */
    uint32_t threads;
} bench_problem;

/* "attn_decode"; and back, BENCH_OPS for none. */
const char *bench_op_name(bench_op op);
bench_op bench_op_from_name(const char *name, size_t n);

/* What must move and be computed at least: of attention, the stored K and V bytes (dynamic scales included) of the keys that some row sees, once a KV
 * head, and 2 floating-point operations for each multiply-add of the row-key pairs that are visible; of a write and a merge, bytes read and
 * written. A cache read by several query heads counts once. */
typedef struct bench_amount { double bytes, flops; } bench_amount;
bench_amount bench_amount_of(const bench_problem *problem);

/* Seconds that a machine with these rates needs at the least on so many threads: the bytes at its read (attention) or copy bandwidth, or the
 * operations at the highest of its f32 and bf16 rates, whichever takes longer. */
double bench_limit_seconds(const bench_problem *problem, const oct_rates *rates);

/* The rate of t threads, from that of one and that of all. */
double bench_rate_of_threads(const double pair[2], uint32_t all, uint32_t t);

/* Why a problem has no meaning (more rows than keys), or NULL. Formats and dims are the library's to judge. */
const char *bench_problem_complaint(const bench_problem *problem);

#endif
