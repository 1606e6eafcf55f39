/* params.h: owns what a kernel is told: one plain C struct a kernel, the same bytes for every compiler, and the sizes that a kernel and its
 * launcher must agree on. Every pointer is a device pointer. Scales, lengths and slots are read when the kernel runs, so that a captured
 * graph follows them. launch.h fills the structs; kernels.def says which kernel takes which. */
#ifndef OCT_DEVICE_PARAMS_H
#define OCT_DEVICE_PARAMS_H

#include <stdint.h>

#include "number/float_bits.h"
#include "octavo/kv.h"

#define OCT__DEV_DIM_MAX 512u         /* oct_kv_spec */
#define OCT__DEV_KEYS 64u             /* keys of a step of attention: a whole number of V5D chunks and of a warp's lanes */

/* ---- pages --------------------------------------------------------------------------------------------------------------- */

/* K or V of one layer. Strides in elements, as in oct_kv_layer. */
typedef struct oct__dev_side {
    void *base;
    const float *scale;               /* static scales by scale_mode, or NULL */
    void *token_scale;                /* TOKEN_HEAD, else NULL */
    int64_t page_stride, token_stride, head_stride, scale_page_stride;
    uint32_t dim, dtype, scale_mode, scale_dtype, rotated;
    uint32_t reserved;
} oct__dev_side;

typedef struct oct__dev_layer {
    oct__dev_side k, v;
    int64_t n_pages;
    uint32_t layout, heads, page_size, reserved;
} oct__dev_layer;

/* ---- kv_check, kv_write ---------------------------------------------------------------------------------------------------- */

/* kv_check: sets *refused to 1 when a slot of either list is >= its capacity. One lane a token. */
typedef struct oct__kv_check_params {
    const int32_t *slots, *slots_window;   /* [n_tokens]; slots_window may be NULL */
    int64_t n_tokens, capacity, capacity_window;
    uint32_t *refused;
} oct__kv_check_params;

/* kv_write: block b of n_tokens * parts writes every parts-th vector (of heads K and heads V) of token b / parts. */
typedef struct oct__kv_write_params {
    oct__dev_layer layer, window;          /* window: the second destination, with has_window */
    const int32_t *slots, *slots_window;
    const void *k, *v;
    int64_t k_token_stride, k_head_stride, v_token_stride, v_head_stride;
    int64_t n_tokens;
    const int32_t *positions;              /* with rope */
    const float *rope_factors;             /* f32[rope_dims / 2], or NULL */
    double rope_log2_base;
    double rope_turns;                     /* position_scale / 2 pi */
    oct_kv_counts *k_counts, *v_counts;    /* one each, added to atomically; or NULL */
    const uint32_t *refused;               /* nothing is written when it is not 0; or NULL */
    uint32_t src_dtype, parts, has_window;
    uint32_t has_rope, rope_style, rope_dims;
} oct__kv_write_params;

/* ---- the step's plan ------------------------------------------------------------------------------------------------------- */

/* Rows and keys of a batch in either public form: block_table and seq_lens, or kv_indptr, kv_indices and kv_last_page_len. */
typedef struct oct__dev_batch {
    const int32_t *qo_indptr;              /* [n_sequences + 1] */
    const int32_t *block_table;            /* [n_sequences][max_pages] or NULL */
    const int32_t *seq_lens;
    const int32_t *kv_indptr, *kv_indices, *kv_last_page_len;
    int64_t max_pages;
    uint32_t n_sequences, page_size;
} oct__dev_batch;

/* Rows of one sequence x a span of its keys, for all heads: n_head_tiles blocks of attention. n_keys of 0: no row sees a key. */
typedef struct oct__dev_task {
    int64_t row0;
    int32_t sequence, n_rows;
    int32_t key0, key1;
    int32_t pos0;                          /* absolute position of row0; negative where there are more rows than keys */
    int32_t n_splits;                      /* > 1: the state goes to partial */
    int64_t partial;                       /* index of the split, of all splits of all split rows */
} oct__dev_task;

/* Rows whose keys were split: the partials [partial, partial + n_splits) in order. */
typedef struct oct__dev_group {
    int64_t row0, partial;
    int32_t n_rows, n_splits;
} oct__dev_group;

enum { OCT__DEV_DECODE, OCT__DEV_EXTEND, OCT__DEV_OPS };

/* What plan_step leaves for the kernels that follow it. */
typedef struct oct__dev_plan {
    uint32_t n_tasks[OCT__DEV_OPS], n_groups[OCT__DEV_OPS], n_partials[OCT__DEV_OPS];
    uint32_t split_keys[OCT__DEV_OPS];
    uint32_t status;                       /* OCT__DEV_PLAN_* */
    uint32_t ended;                        /* where there are parts: nobody looks at it */
} oct__dev_plan;

enum {
    OCT__DEV_PLAN_OK = 0,
    OCT__DEV_PLAN_COARSER = 1,             /* fixed splits had to grow to fit the capacity: right results, not those of the fixed size */
    OCT__DEV_PLAN_FULL = 2                 /* even unsplit rows do not fit: nothing runs; capacity was computed for another batch */
};

typedef struct oct__dev_plan_op {
    oct__dev_task *tasks;                  /* [max_tasks] */
    oct__dev_group *groups;                /* [max_groups] */
    uint32_t max_tasks, max_groups, max_partials;
    uint32_t tile_rows;                    /* most rows of a task */
    uint32_t n_head_tiles;                 /* blocks of a task */
    uint32_t split_keys;                   /* fixed: cuts at its multiples; 0: chosen so that all blocks of the GPU have work */
    uint32_t whole_from_tiles;             /* > 0: a sequence of at least this many tasks x head tiles is not split */
    uint32_t min_split_keys;               /* of a chosen one; a multiple of OCT__DEV_KEYS */
    uint32_t max_split_keys;               /* of a chosen one: f32 sums of a block do not grow beyond it */
    uint32_t target_blocks;                /* blocks that fill the GPU a few times */
    /* Parts, for blocks that stay: part i is the tasks [parts[i], parts[i + 1]), and all parts have about as many keys. Where splits are chosen, rows are
     * cut where parts end, and nowhere else. */
    uint32_t n_parts;                      /* 0: none */
    uint32_t part_keys_min;                /* rather fewer parts with tasks than fewer keys */
    uint32_t *parts;                       /* [n_parts + 1], or NULL */
    uint32_t task_units;                   /* of 32 keys: the time that a task takes beside its keys' */
    uint32_t even_splits;                  /* > 0: a row of about as many fixed splits or more is cut into a multiple of it, evenly */
} oct__dev_plan_op;

/* plan_step: one block. */
typedef struct oct__plan_params {
    oct__dev_batch batch;
    oct__dev_plan_op op[OCT__DEV_OPS];
    oct__dev_plan *plan;
    uint32_t causal, window;               /* window: at most INT32_MAX */
    int32_t decode_rows_max;               /* a sequence with at most this many rows is a decode */
    uint32_t reserved;
} oct__plan_params;

/* ---- attention ------------------------------------------------------------------------------------------------------------- */

/* attn_decode_*, attn_extend_*: blocks stride over tasks x head tiles; attn_finish: over groups x head tiles. A head tile is a KV head's
 * cut of query heads: head tile t is cut t % n_cuts of KV head t / n_cuts, and holds the heads [c * group / n_cuts, (c + 1) * group / n_cuts)
 * of its group. Vector i of a tile is row i / n_heads, head i % n_heads. */
typedef struct oct__attn_params {
    oct__dev_layer layer;
    oct__dev_batch batch;
    const oct__dev_plan *plan;
    const oct__dev_task *tasks;
    const oct__dev_group *groups;
    float *partials;                       /* [partial][head tile]: o [tile_vectors][dim_v], then m and z [tile_vectors] */
    const void *q;
    void *out;
    float *lse;                            /* or NULL */
    const float *q_scale, *out_scale, *sink;   /* each may be NULL */
    const uint32_t *mask;                  /* or NULL */
    int64_t q_row_stride, q_head_stride, out_row_stride, out_head_stride, lse_row_stride, lse_head_stride, mask_row_stride;
    float sm_scale, softcap;
    uint32_t q_dtype, out_dtype;
    uint32_t causal, window;
    uint32_t op;                           /* OCT__DEV_DECODE or _EXTEND: which of the plan's counts */
    uint32_t group, n_cuts, n_head_tiles, tile_vectors;
    const uint32_t *parts;                 /* of oct__dev_plan_op: a block takes a part for heads_a_block neighbouring head tiles; NULL: a task for one */
    uint32_t n_parts, heads_a_block;
    uint32_t total_keys;                   /* of products of 8 bits: keys after which sums go over to totals; a power of two of tiles */
    uint32_t reserved;
} oct__attn_params;

/* Floats of the state of one task's head tile. */
OCT__FN uint64_t oct__dev_state_floats(uint32_t tile_vectors, uint32_t dim_v)
{
    return (uint64_t)tile_vectors * (dim_v + 2);
}

/* Elements of a 16-byte chunk: the unit in which K is read. */
OCT__FN uint32_t oct__dev_chunk(uint32_t dtype)
{
    return dtype >= OCT_DTYPE_E4M3FN ? 16u : dtype == OCT_DTYPE_F32 ? 4u : 8u;
}

/* Shared memory of attn_decode_* and attn_extend_*, in bytes from the start of the dynamic part. q and o take turns. */
typedef struct oct__attn_shared {
    uint32_t q, s, m, z, alpha, irregular;
    uint32_t k_at, v_at, k_scale, v_scale; /* of two steps: the next one's are found while this one's are used */
    uint32_t q_stride, s_stride;           /* floats */
    uint32_t bytes;
} oct__attn_shared;

OCT__FN oct__attn_shared oct__attn_shared_of(uint32_t dim_k, uint32_t k_dtype, uint32_t dim_v, uint32_t tile_vectors)
{
    const uint32_t chunk = oct__dev_chunk(k_dtype), vectors = (tile_vectors + 3) / 4 * 4;
    oct__attn_shared s;
    uint32_t q_bytes;
    s.q_stride = (dim_k + chunk - 1) / chunk * chunk;
    s.s_stride = vectors + 4;              /* 16-byte aligned, and keys of a warp fall on different banks */
    q_bytes = vectors * (s.q_stride > dim_v ? s.q_stride : dim_v) * 4;
    s.q = 0;
    s.s = s.q + q_bytes;
    s.m = s.s + OCT__DEV_KEYS * s.s_stride * 4;
    s.z = s.m + vectors * 4;
    s.alpha = s.z + vectors * 4;
    s.irregular = s.alpha + vectors * 4;
    s.k_at = s.irregular + 16;
    s.v_at = s.k_at + 2 * OCT__DEV_KEYS * 8;
    s.k_scale = s.v_at + 2 * OCT__DEV_KEYS * 8;
    s.v_scale = s.k_scale + 2 * OCT__DEV_KEYS * 4;
    s.bytes = s.v_scale + 2 * OCT__DEV_KEYS * 4;
    return s;
}

/* ---- attn_decode_mma_*, attn_extend_mma_* ---- */

#define OCT__MMA_LANES 128u

/* Slots of a ring of tiles: NVIDIA's are filled while others are read (attn_ring.h). */
OCT__FN uint32_t oct__mma_slots(uint32_t warp, uint32_t stage_bytes)
{
    return warp == 64 ? 1u : stage_bytes <= 8192 ? 3u : 2u;
}

/* Most vectors of a tile. */
OCT__FN uint32_t oct__mma_vectors(uint32_t warp, uint32_t dim, uint32_t is_extend)
{
    const uint32_t vectors = warp == 32 ? 8u : 16u;   /* tile.h */
    return is_extend ? OCT__MMA_LANES / warp * (dim <= 128 ? 2u : 1u) * vectors : vectors;
}

/* Their shared memory, in bytes from the start of the dynamic part. q and o take turns. k_size, v_size, dim: of the kernel's name. */
typedef struct oct__mma_shared {
    uint32_t slots, at, q, factor, m, z, there, scale;
    uint32_t bytes;
} oct__mma_shared;

OCT__FN oct__mma_shared oct__mma_shared_of(uint32_t warp, uint32_t k_size, uint32_t v_size, uint32_t dim, uint32_t is_extend)
{
    const uint32_t warps = OCT__MMA_LANES / warp, rings = is_extend ? 1u : warps, stage = 16 * dim * (k_size + v_size), notes = 4 * 16;
    const uint32_t vectors = oct__mma_vectors(warp, dim, is_extend);
    oct__mma_shared s;
    s.slots = 0;
    s.at = s.slots + rings * oct__mma_slots(warp, stage) * stage;
    s.q = s.at + rings * notes * 2 * 8;
    s.factor = s.q + vectors * dim * 4;
    s.m = s.factor + vectors * 4;
    s.z = s.m + rings * vectors * 4;
    s.there = s.z + rings * vectors * 4;
    s.scale = s.there + rings * notes * 4;
    s.bytes = s.scale + rings * notes * 2 * 4;
    return s;
}

/* ---- tile_probe ------------------------------------------------------------------------------------------------------------ */

enum { OCT__PROBE_F16, OCT__PROBE_BF16, OCT__PROBE_I8, OCT__PROBE_E4M3FN, OCT__PROBE_E4M3FNUZ, OCT__PROBE_FP8_WIDE, OCT__PROBE_SUMS_E4M3FN, OCT__PROBE_SUMS_E4M3FNUZ,
       OCT__PROBE_SUMS_F16 };

typedef struct oct__tile_probe_params {
    const unsigned char *a, *b;            /* 16-byte aligned rows; tile_probe.h */
    float *d;
    uint32_t kind, reserved;
} oct__tile_probe_params;

/* ---- attn_merge ------------------------------------------------------------------------------------------------------------ */

/* oct_attn_merge_args with device pointers: one warp a row and head. */
typedef struct oct__merge_params {
    const float *out, *lse;
    float *merged, *lse_merged;            /* lse_merged may be NULL */
    int64_t rows;
    int64_t out_part_stride, out_row_stride, out_head_stride;
    int64_t lse_part_stride, lse_row_stride, lse_head_stride;
    int64_t merged_row_stride, merged_head_stride, lse_merged_row_stride, lse_merged_head_stride;
    uint32_t n_parts, heads, dim, reserved;
} oct__merge_params;

/* ---- measure ----------------------------------------------------------------------------------------------------------------- */

#define OCT__MEASURE_STEP 16384u

/* Reads steps * OCT__MEASURE_STEP bytes, and writes them to `to` where that is not NULL. Both 16-byte aligned. */
typedef struct oct__measure_params {
    const unsigned char *from;
    unsigned char *to;
    uint32_t *left;                        /* [blocks of the grid][256]: the exclusive or of the words that each lane has read */
    uint64_t steps;
} oct__measure_params;

#endif
