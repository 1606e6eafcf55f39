/* Attention over the pages of one layer, by a plan; and the merge of partial results. */
#ifndef OCTAVO_ATTN_H
#define OCTAVO_ATTN_H

#include "octavo/plan.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What changes from layer to layer. Rows are the batch's query rows in qo_indptr order. Strides in elements; the last axis is contiguous. */
typedef struct oct_attn_args {
    uint32_t struct_size;
    uint32_t reserved;
    const oct_kv_layer *layer;      /* its spec must equal the plan's */
    const void *q;                  /* [rows][heads_q][dim_k] of q_dtype */
    int64_t q_row_stride, q_head_stride;
    const float *q_scale;           /* f32[1] for an 8-bit q; NULL otherwise */
    void *out;                      /* [rows][heads_q][dim_v] of out_dtype; every row is written, 0 where a row sees no key */
    int64_t out_row_stride, out_head_stride;
    const float *out_scale;         /* f32[1] for an 8-bit out: stored = value / out_scale; NULL otherwise */
    float *lse;                     /* [rows][heads_q], natural logarithm, sink included; or NULL */
    int64_t lse_row_stride, lse_head_stride;
    const float *sink;              /* f32[heads_q] with has_sink; -inf: as without */
    /* Token mask with has_mask, for speculative trees: row r (of the whole batch) may see key kv_len - n + t of its sequence, t in [0, n),
     * n = the sequence's own query rows, only where bit t of its row of words is set: mask[r * mask_row_stride + t / 32] >> (t % 32) & 1.
     * Keys before kv_len - n are not masked. Applied together with the causal and window rule. */
    const uint32_t *mask;
    int64_t mask_row_stride;        /* in 32-bit words */
    void *stream;                   /* on a GPU: the one that the plan's update went to, or one ordered after it; NULL on the CPU */
} oct_attn_args;

/* Runs the plan's batch over one layer with the context's threads; on a GPU enqueues it, device pointers in args. Never allocates, never
 * waits for a GPU, and is legal inside a graph capture. Errors: INVALID_ARGUMENT (names nothing: see oct_attn_check); on a GPU also
 * DEVICE_FAULT. */
OCT_API oct_status oct_attn_run(oct_plan *plan, const oct_attn_args *args);

/* The share of thread ith of nth, on the CPU (a GPU's work has no shares: UNSUPPORTED): all nth call it once with the same args and nth <= the plan's
 * max_threads; the call that follows (next layer, next update) must wait for all of them. Parts never wait for each other. */
OCT_API oct_status oct_attn_run_part(oct_plan *plan, const oct_attn_args *args, uint32_t ith, uint32_t nth);

/* The check that run makes, with words. */
OCT_API oct_status oct_attn_check(const oct_plan *plan, const oct_attn_args *args, oct_error *error);

/* Merges n_parts partial results of the same rows by their lse (natural log). A part with lse = -inf is neutral whatever its out holds;
 * lse = +inf or NaN is treated as empty. All f32, [n_parts][rows][heads][dim] and [n_parts][rows][heads], strides in elements,
 * the out rows contiguous in dim. lse_merged may be NULL. A sink must have gone into one part only. */
typedef struct oct_attn_merge_args {
    uint32_t struct_size;
    uint32_t n_parts;
    int64_t rows;
    uint32_t heads;
    uint32_t dim;
    const float *out;
    int64_t out_part_stride, out_row_stride, out_head_stride;
    const float *lse;
    int64_t lse_part_stride, lse_row_stride, lse_head_stride;
    float *merged;
    int64_t merged_row_stride, merged_head_stride;
    float *lse_merged;
    int64_t lse_merged_row_stride, lse_merged_head_stride;
    void *stream;                   /* on a GPU, where all pointers are the device's; NULL on the CPU */
} oct_attn_merge_args;

OCT_API oct_status oct_attn_merge(oct_context *context, const oct_attn_merge_args *args);

#ifdef __cplusplus
}
#endif
#endif
