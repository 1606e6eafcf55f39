/* Plans: which rows of a batch go to which kernel variant, how long sequences are split, and why.
 * create fixes what stays the same over steps; update takes a step's lengths and pages; run (attn.h) never allocates. */
#ifndef OCTAVO_PLAN_H
#define OCTAVO_PLAN_H

#include "octavo/kv.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct oct_plan oct_plan;

/* What kernels may multiply. By default q and weights keep at least 11 bits (bf16: 8). The others permit kernels that round weights, and q in two terms, to the
 * 8 bits of e4m3 where that is predicted to be faster: within the looser bound of doc/NUMERICS.md, and PRECISE with the least error of sums over many keys
 * that such kernels have. A permission refuses nothing: where no kernel of 8-bit products takes the problem, another one does. */
typedef enum oct_products { OCT_PRODUCTS_16BIT = 0, OCT_PRODUCTS_8BIT = 1, OCT_PRODUCTS_8BIT_PRECISE = 2 } oct_products;

typedef struct oct_attn_spec {
    uint32_t struct_size;
    uint32_t heads_q;          /* a multiple of kv.heads, at most 65536 */
    oct_kv_spec kv;            /* what the plan's layers hold; a layer that differs is refused at run */
    uint32_t q_dtype;          /* F32, F16, BF16, or an 8-bit float with args.q_scale */
    uint32_t out_dtype;        /* F32, F16, BF16, or an 8-bit float with args.out_scale */
    float sm_scale;            /* finite, > 0 */
    float softcap;             /* 0: none */
    uint32_t causal;           /* 0 or 1 */
    uint32_t window_tokens;    /* visible keys, the token itself included; 0: no window. For causal = 0 only the left side is bounded */
    uint32_t has_sink;         /* args.sink is given */
    uint32_t has_mask;         /* args.mask is given */
    uint32_t deterministic;    /* 1: a row's bits do not depend on its batch mates (nor does where its keys are split) */
    uint32_t split_tokens;     /* 0: the plan chooses; else keys per split, for tests and tuning */
    uint32_t max_threads;      /* threads that will run it; 0: the context's */
    uint32_t products;         /* OCT_PRODUCTS_*: how far q and the softmax weights may be rounded for speed */
    const char *force_variant; /* NULL, or names "attn_decode.avx2,attn_extend.scalar": use these or fail */
    const char *deny_variant;  /* NULL, or names of variants never to use */
    /* The largest step, on a GPU: all > 0, since the plan's memory on the device is taken once, for all steps. The CPU does not look at them. */
    uint32_t max_sequences;
    uint32_t reserved2;
    int64_t max_rows;          /* query rows of a step */
    int64_t max_keys;          /* of the longest sequence */
} oct_attn_spec;

/* A step's batch. Pointers are read during update only; on a GPU they are the device's, and are read when the kernels of update and of the
 * runs after it run, so that a captured graph follows what stands there then; kv_indptr must stay as update's kernel found it until those runs are through,
 * some of which read it before the kernel ahead of them has ended. Sequence b has query rows qo_indptr[b] .. qo_indptr[b+1] - 1.
 * Keys in one of two forms:
 *   padded:     block_table int32[n_sequences][max_pages] and seq_lens int32[n_sequences];
 *   compressed: kv_indptr int32[n_sequences + 1], kv_indices, kv_last_page_len int32[n_sequences] (0 where a sequence has no page).
 * Lengths include the step's own keys, which the write has stored by the time run is called. */
typedef struct oct_attn_batch {
    uint32_t struct_size;
    uint32_t n_sequences;
    const int32_t *qo_indptr;
    const int32_t *block_table;
    const int32_t *seq_lens;
    int64_t max_pages;
    const int32_t *kv_indptr;
    const int32_t *kv_indices;
    const int32_t *kv_last_page_len;
    int64_t n_pages;           /* pages of the pool: every index used must be below it */
    void *stream;              /* on a GPU: where update enqueues; NULL on the CPU */
} oct_attn_batch;

typedef struct oct_plan_info {
    uint32_t struct_size;
    uint32_t n_sequences;
    int64_t n_rows, n_items, n_items_split, n_keys;
    uint64_t workspace_bytes;  /* owned by the plan; on a GPU the device's. Counts other than n_sequences are 0 there */
    double predicted_seconds;
    char decode_variant[32];   /* "" when no row of the batch needs it */
    char extend_variant[32];
} oct_plan_info;

/* Chooses variants; on a GPU also takes the device memory of all steps. Errors: INVALID_ARGUMENT (spec illegal; unknown variant name),
 * UNSUPPORTED (forced variant's gate fails, or everything that could serve is denied; the text says which gate), OUT_OF_MEMORY, DEVICE_FAULT. */
OCT_API oct_status oct_plan_create(oct_context *context, const oct_attn_spec *spec, oct_plan **plan, oct_error *error);
OCT_API void oct_plan_destroy(oct_plan *plan);

/* Takes over a step. May allocate when the batch outgrows what the plan has held so far. One thread at a time, not during a run.
 * On a GPU it enqueues one kernel that reads the metadata there, allocates nothing, and is legal inside a graph capture: a replay plans
 * anew. The host does not see the metadata, so what a step holds is not checked; see oct_plan_status in octavo/device.h.
 * Errors: INVALID_ARGUMENT (metadata; names the sequence and value), OUT_OF_MEMORY, DEVICE_FAULT. After an error the plan holds an empty batch. */
OCT_API oct_status oct_plan_update(oct_plan *plan, const oct_attn_batch *batch, oct_error *error);

OCT_API oct_status oct_plan_info_get(const oct_plan *plan, oct_plan_info *info);

/* Every row of the variant table for this plan's problem (or, before the first update, for one decode and one 512-row extend):
 * chosen, eligible with predicted cost, or refused with each failed gate: needed, have, why. As snprintf. */
OCT_API size_t oct_plan_explain(const oct_plan *plan, uint32_t format, char *text, size_t size);

/* The same for kv_write. */
OCT_API size_t oct_kv_write_explain(oct_context *context, const oct_kv_spec *spec, uint32_t src_dtype, uint32_t format, char *text, size_t size);

/* The same for oct_attn_merge of so many parts of n_rows x heads vectors of dim floats, which chooses by size. */
OCT_API size_t oct_attn_merge_explain(oct_context *context, int64_t n_rows, uint32_t heads, uint32_t dim, uint32_t n_parts, uint32_t format, char *text, size_t size);

/* The names of the CPU's variants, "op.name", by index from 0, and of those that a context chooses among; NULL past the end. Any thread. */
OCT_API const char *oct_variant_name(uint32_t index);
OCT_API const char *oct_context_variant_name(const oct_context *context, uint32_t index);

#ifdef __cplusplus
}
#endif
#endif
