/* explain.h: owns the words for what choose did: every row of an operation, with its predicted time or each gate that failed.
 *
 * Threads: pure functions into the caller's text. */
#ifndef OCT_PLAN_EXPLAIN_H
#define OCT_PLAN_EXPLAIN_H

#include "host/text.h"
#include "plan/choose.h"
#include "plan/facts.h"
#include "plan/plan.h"

/* One operation's question and answer. */
typedef struct oct__explained {
    oct__op op;
    const oct__facts *facts;
    const oct__rules *rules;
    const double *seconds;         /* [n_rows of the table], on n_threads */
    const oct__variant *chosen;    /* NULL: none could be */
    uint32_t n_threads;
    int64_t n_rows, n_keys;        /* of the problem; kv_write: tokens, 0; attn_merge: rows, parts */
    bool is_device;                /* n_threads are a GPU's units */
    bool is_batch;                 /* the plan's batch, not the nominal problem */
} oct__explained;

/* The rows in table order. */
void oct__explain_operation(oct__text *text, uint32_t format, const oct__variant *rows, uint32_t n_rows, const oct__explained *explained);

/* All of oct_plan_explain, of oct_kv_write_explain (legal spec), and of oct_attn_merge_explain (legal sizes). */
void oct__explain_plan(oct__text *text, uint32_t format, const oct_plan *plan);
void oct__explain_write(oct__text *text, uint32_t format, const oct__machine *machine, const oct_kv_spec *spec, uint32_t src_dtype, uint32_t n_threads);
void oct__explain_merge(oct__text *text, uint32_t format, const oct__machine *machine, int64_t n_rows, uint32_t heads, uint32_t dim, uint32_t n_parts);

#endif
