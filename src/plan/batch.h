/* batch.h: owns a plan's copy of a step's metadata: row bounds, lengths and page tables, brought from either public form to one.
 *
 * Threads: one writer; constant during a run. */
#ifndef OCT_PLAN_BATCH_H
#define OCT_PLAN_BATCH_H

#include "host/memory.h"
#include "octavo/plan.h"

typedef struct oct__batch {
    uint32_t n_sequences;
    int64_t n_rows, n_keys;
    int64_t page_end;          /* one more than the largest page index held; 0 when there is none */
    int32_t longest_rows;      /* most query rows of one sequence */
    oct__array qo_indptr;      /* int32 [n_sequences + 1] */
    oct__array kv_len;         /* int32 [n_sequences] */
    oct__array page_offset;    /* int64 [n_sequences + 1] into pages */
    oct__array pages;          /* int32 */
} oct__batch;

/* Checks and copies. On error the batch is empty, its arrays keep their room. INVALID_ARGUMENT names the sequence and value. */
oct_status oct__batch_read(oct__batch *batch, const oct__allocator *allocator, const oct_attn_spec *spec, const oct_attn_batch *given,
                           const char *where, oct_error *error);
void oct__batch_free(oct__batch *batch, const oct__allocator *allocator);

#endif
