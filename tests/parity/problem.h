/* problem.h: owns attention problems: a shape says everything about one, in one line of text; making it fills guarded and poisoned
 * memory; running it forces variants; judging it asks the oracle. Threads: a problem belongs to one thread. */
#ifndef PARITY_PROBLEM_H
#define PARITY_PROBLEM_H

#include "parity/compare.h"
#include "parity/guard.h"
#include "parity/oracle.h"
#include "parity/rng.h"

/* X(name): whole numbers of a shape; their names are the keys of its text. */
#define PROBLEM_INTS(X)                                                                                                         \
    X(seed)                                                                                                                     \
    X(heads_q) X(heads) X(dim_k) X(dim_v) X(page_size) X(layout)                                                                \
    X(k_dtype) X(k_scale_mode) X(k_scale_dtype) X(k_rotated)                                                                    \
    X(v_dtype) X(v_scale_mode) X(v_scale_dtype) X(v_rotated)                                                                    \
    X(q_dtype) X(out_dtype)                                                                                                     \
    X(causal) X(window) X(sink) X(mask) X(deterministic) X(split_tokens) X(threads) X(with_lse) X(products)                     \
    X(n_sequences)      /* sequence i has lengths i modulo the number of lengths listed */                                      \
    X(compressed)       /* batch form: 0 padded, 1 compressed */                                                                \
    X(page_none)        /* 1: pages that no row sees are OCT_PAGE_NONE in the table */                                          \
    X(poison)           /* problem_poison */                                                                                    \
    X(strides)          /* 0: contiguous; else bits 1 q, 2 out, 4 lse, 8 pages, 16 tokens or heads of a page, 32 head-major q and out */ \
    X(base_offset)      /* elements by which the K and V bases are moved */                                                     \
    X(guard_start)      /* 1: blocks begin at the unreadable page, else they end there */                                       \
    X(k_data) X(v_data) /* problem_data */                                                                                      \
    X(by_write)         /* 1: K and V of normal numbers go through oct_kv_write */                                              \
    X(share)            /* 1: sequences share the full pages that they have in common with sequence 0 */                       \
    X(needle_key)       /* k_data needle: its place; -1: a random one in each sequence */

#define PROBLEM_REALS(X)                                                                \
    X(sm_scale)         /* 0: chosen so that scores have the deviation score_deviation */ \
    X(score_deviation)                                                                  \
    X(needle_gap)       /* logit of the needle over the others */                       \
    X(softcap)

enum { PROBLEM_LENGTHS = 256, PROBLEM_TEXT = 2048 };

typedef struct problem_shape {
#define INT_FIELD(name) int64_t name;
#define REAL_FIELD(name) double name;
    PROBLEM_INTS(INT_FIELD)
    PROBLEM_REALS(REAL_FIELD)
#undef INT_FIELD
#undef REAL_FIELD
    int32_t n_lengths;
    int32_t q_len[PROBLEM_LENGTHS], kv_len[PROBLEM_LENGTHS];
} problem_shape;

enum problem_poison { POISON_ZERO, POISON_FF, POISON_7F, POISON_RANDOM };
enum problem_sink { SINK_NONE, SINK_RANDOM, SINK_MINUS_INFINITY, SINK_HUGE, SINK_MIXED };

enum problem_data {
    DATA_NORMAL,      /* normal numbers, some tens of codes wide */
    DATA_CODES,       /* any finite code */
    DATA_HALF,        /* 0.5 and a little noise: flat averages */
    DATA_NEEDLE,      /* K: one key matches all queries */
    DATA_EQUAL,       /* all tokens the same */
    DATA_HUGE,        /* K: scores thousands apart, or exactly equal */
    DATA_SATURATED,   /* plus and minus the largest code */
    DATA_SUBNORMAL,   /* subnormal codes only */
    DATA_ONE_HOT,     /* V: 1 at dim (key modulo dim_v), else 0 */
    DATA_HEAD         /* V: the KV head's number plus 1 */
};

/* A plain problem: bf16 q, f32 out, e4m3fn K and V with layer scales, NHD, one decode row over 40 keys. */
problem_shape problem_plain(int64_t seed);
void problem_lengths(problem_shape *shape, int n, const int32_t *q_len, const int32_t *kv_len);   /* sets n_sequences to n too */
problem_shape problem_random(int64_t seed);

/* The same with V in v4, two in three rotated; every other beside the K that it is meant to stand beside. */
problem_shape problem_random_v4(int64_t seed);

/* The text form, and back; 0 on success. */
void problem_print(const problem_shape *shape, char *text, size_t size);
int problem_parse(problem_shape *shape, const char *text);

typedef struct problem {
    problem_shape shape;
    oct_kv_layer layer;
    oct_attn_spec spec;
    oct_attn_args args;
    oracle_attn attn;
    oracle_result expected;      /* by problem_expect */
    int64_t rows, n_pages, out_elements, lse_elements;
    int32_t *qo_indptr, *kv_len, *pages;     /* pages: the true ids, flat */
    int64_t *page_at;                        /* [n_sequences + 1] into pages */
    int32_t *table_pages;                    /* as pages, with OCT_PAGE_NONE where the table says so */
    guard k, v, k_token_scale, v_token_scale, k_scale, v_scale, q, q_scale, out, out_scale, lse, sink, mask;
    const struct problem *owner;             /* of a selected problem: whose pages, scales and sinks it reads; else NULL */
} problem;

/* 0 on success. A shape that the spec's rules refuse gives 1 and an empty problem; no memory -1. */
int problem_make(problem *p, const problem_shape *shape);
void problem_drop(problem *p);

/* A problem of some sequences of another, in this order, over the same pages; each with its rows [first_row, first_row + n_rows) only and
 * kv_len keys from page first_page on. Drop it before `all`. Not for shapes with a mask. 0 on success. */
typedef struct problem_part { int32_t sequence, first_row, n_rows, kv_len, first_page; } problem_part;
int problem_select(problem *view, const problem *all, const problem_part *parts, int32_t n);
problem_part problem_whole(const problem *all, int32_t sequence);

/* Asks the oracle again, after a test has changed bytes, scales or arguments. 0 on success. */
int problem_expect(problem *p);

/* Stores the nearest codes to `values`, under the scales that are there. */
void problem_put(problem *p, oracle_which which, uint32_t sequence, int64_t key, uint32_t head, const double *values);

/* The batch's arrays, given to the plan and then unmapped. */
oct_status problem_update(const problem *p, oct_plan *plan, oct_error *error);

/* out and lse all NaN. */
void problem_blank(problem *p);

typedef enum problem_way {
    RUN_WHOLE,        /* oct_attn_run */
    RUN_PARTS,        /* oct_attn_run_part, the shares one after the other in a random order */
    RUN_THREADS       /* the shares on threads of our own */
} problem_way;

typedef struct problem_outcome {
    oct_status status;           /* of create, update or run, whichever failed first */
    char text[320];
    oct_plan_info info;
} problem_outcome;

/* Fills out and lse with NaN, plans with these variants forced (NULL: free choice), gives the batch's arrays back (they are unmapped
 * by the time the plan runs) and runs, with everything but the results write-protected. */
problem_outcome problem_run(problem *p, oct_context *context, const char *force, problem_way way);

/* The table whose rows problem_run forces, and problem_pair names. */
const oct__variant *problem_rows(uint32_t *n);

/* Whether the machine that problem_run runs on has what the row's gates ask of a machine. */
int problem_row_can(const oct__variant *row);

/* The verdict on what lies in out and lse now; strays into gaps and slack count as failures. */
compare_verdict problem_judge(const problem *p, const compare_bound *bound);

/* Runs every pair of eligible decode and extend variants that the shape lets through and judges each. Returns the failures. */
int64_t problem_check(const problem_shape *shape);
int64_t problem_check_made(problem *p, problem_way way);

/* The next pair "attn_decode.x,attn_extend.y" in text for i = 0, 1, 2 ...; 0 past the last. Every variant is in some pair. */
int problem_pair(uint32_t i, char *text, size_t size);

/* Whether this machine can run both rows of pair i, whatever the problem. */
int problem_pair_can(uint32_t i);

/* What that pair must hold. */
compare_bound problem_pair_bound(uint32_t i);

/* Within a case of isolate.h, where pair i refused a problem: a skip on a machine that cannot run it, else a row that the problem is not for. */
void problem_skip_pair(uint32_t i);

/* A context of this process with n threads, made at the first call. */
oct_context *problem_context(uint32_t n_threads);

/* Real values of the result as it lies in memory. */
double problem_out(const problem *p, int64_t row, uint32_t head, uint32_t dim);

#endif
