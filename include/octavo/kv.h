/* The paged KV cache: its formats, one layer's pages wherever they lie, pools that own the memory of all layers,
 * and the write. page.h hands pages out to sequences; doc/NUMERICS.md says what the numbers mean. */
#ifndef OCTAVO_KV_H
#define OCTAVO_KV_H

#include "octavo/context.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- formats ------------------------------------------------------------------------------------------ */

typedef enum oct_dtype {
    OCT_DTYPE_F32 = 1,
    OCT_DTYPE_F16 = 2,
    OCT_DTYPE_BF16 = 3,
    OCT_DTYPE_E4M3FN = 4,     /* OCP: max 448, NaN 0x7F/0xFF */
    OCT_DTYPE_E4M3FNUZ = 5,   /* max 240, NaN 0x80 only, no negative zero */
    OCT_DTYPE_E5M2 = 6,       /* max 57344, has infinities; the write never stores one */
    OCT_DTYPE_I8 = 7,         /* -127..127 */
    OCT_DTYPE_V4 = 8          /* V only: 4 bits in blocks of 32 elements with an f16 scale each, 18 bytes; no scale mode, NHD and HND */
} oct_dtype;

/* How many numbers make up a scale. real value = byte * scale; the write divides by the same number. */
typedef enum oct_scale_mode {
    OCT_SCALE_NONE = 0,         /* 16- and 32-bit caches; for an 8-bit float cache: scale 1, never read from memory */
    OCT_SCALE_TENSOR = 1,       /* f32[1], one for the whole model */
    OCT_SCALE_LAYER = 2,        /* f32[1] of this layer */
    OCT_SCALE_LAYER_HEAD = 3,   /* f32[heads] of this layer */
    OCT_SCALE_TOKEN_HEAD = 4,   /* dynamic, computed by the write, stored beside the page */
    OCT_SCALE_CHANNEL = 5       /* f32[heads][dim] of this layer, calibrated */
} oct_scale_mode;

typedef enum oct_layout {
    OCT_LAYOUT_NHD = 0,   /* [page][token][head][dim] */
    OCT_LAYOUT_HND = 1,   /* [page][head][token][dim] */
    OCT_LAYOUT_V5D = 2    /* K [page][head][dim/x][token][x], V [page][head][token/x][dim][x]; x = 16 bytes of elements */
} oct_layout;

/* Element size in bytes (0 for an unknown value, and for v4, which has none), name ("e4m3fn") and back (0 when unknown). Any thread. */
OCT_API uint32_t oct_dtype_size_bytes(uint32_t dtype);
OCT_API const char *oct_dtype_name(uint32_t dtype);
OCT_API uint32_t oct_dtype_from_name(const char *name);

/* Bytes of n elements that lie together, a block's scales in v4 included. 0 for an unknown value, and where n elements of v4 are no whole blocks of
 * 32. Any thread. */
OCT_API uint64_t oct_dtype_bytes(uint32_t dtype, uint64_t n);

/* How K or V is kept. A property of the pool: bytes of one format are never read as another. */
typedef struct oct_kv_format {
    uint32_t dtype;        /* oct_dtype */
    uint32_t scale_mode;   /* oct_scale_mode */
    uint32_t scale_dtype;  /* TOKEN_HEAD only: OCT_DTYPE_F32 or OCT_DTYPE_F16; else 0 */
    uint32_t rotated;      /* 1: kept rotated by the orthonormal Hadamard transform over the head dim */
} oct_kv_format;

/* What a pool and everything that reads it agree on. */
typedef struct oct_kv_spec {
    uint32_t struct_size;
    uint32_t layout;      /* oct_layout */
    uint32_t heads;       /* KV heads, >= 1 */
    uint32_t dim_k;       /* multiple of 8, 16..512 */
    uint32_t dim_v;       /* the same; V in v4: a multiple of 32 */
    uint32_t page_size;   /* tokens, 1..1024 (V5D: a multiple of V's x) */
    oct_kv_format k;
    oct_kv_format v;
} oct_kv_spec;

/* OK when the spec is legal; else INVALID_ARGUMENT and the reason; UNSUPPORTED for K in v4. Any thread. */
OCT_API oct_status oct_kv_spec_check(const oct_kv_spec *spec, oct_error *error);

/* ---- one layer's pages ---------------------------------------------------------------------------------- */

/* Where the pages of one layer lie: filled from a pool by oct_kv_pool_layer, or by hand over memory of the caller's own.
 * Strides are in elements of the tensor they belong to; a page's token t, head h starts at
 *   NHD, HND: base + page * page_stride + t * token_stride + h * head_stride, dim contiguous;
 *   V5D:      base + page * page_stride + h * head_stride, inner axes contiguous (token_stride is ignored).
 * V in v4: strides are multiples of 32, since element i lies in the block of 18 bytes that is i / 32.
 * Dynamic scales: scale + page * scale_page_stride + t * heads + h, elements of spec.k/v.scale_dtype. */
typedef struct oct_kv_layer {
    uint32_t struct_size;
    uint32_t reserved;
    oct_kv_spec spec;
    int64_t n_pages;
    void *k;
    void *v;
    int64_t k_page_stride, k_token_stride, k_head_stride;
    int64_t v_page_stride, v_token_stride, v_head_stride;
    const float *k_scale;       /* by spec.k.scale_mode; NULL for NONE and TOKEN_HEAD */
    const float *v_scale;
    void *k_token_scale;        /* TOKEN_HEAD only, else NULL */
    void *v_token_scale;
    int64_t k_scale_page_stride, v_scale_page_stride;
} oct_kv_layer;

/* Fills strides (contiguous pages) and struct_size from spec; pointers stay NULL. INVALID_ARGUMENT for an illegal spec. */
OCT_API oct_status oct_kv_layer_init(oct_kv_layer *layer, const oct_kv_spec *spec, int64_t n_pages, oct_error *error);

/* Exact bytes of one page of one layer: K, V and the dynamic scales. 0 for an illegal spec. */
OCT_API uint64_t oct_kv_page_bytes(const oct_kv_spec *spec);

/* ---- pool: memory of all layers --------------------------------------------------------------------------- */

typedef struct oct_kv_pool oct_kv_pool;

typedef struct oct_kv_pool_options {
    uint32_t struct_size;
    uint32_t n_layers;
    int64_t n_pages;             /* per layer; slots are int32: n_pages * page_size <= 2^31 - 1 */
    oct_kv_spec spec;
} oct_kv_pool_options;

/* On a GPU context the memory is the device's, zero-filled at creation. Else pages are zero-filled lazily by the system. Static scales start unset and MUST be set before the pool's layers can be used,
 * so that no scale silently stays 1. One writer at a time; readers and the writer are the caller's to order. */
OCT_API oct_status oct_kv_pool_create(oct_context *context, const oct_kv_pool_options *options, oct_kv_pool **pool, oct_error *error);
OCT_API void oct_kv_pool_destroy(oct_kv_pool *pool);

/* Sets the static scales of one layer (on a GPU it waits until they are there): 1, heads, or heads * dim numbers by the mode (TENSOR: layer must be 0 and serves all).
 * Every number must be finite and > 0. which: 0 for K, 1 for V. INVALID_ARGUMENT names layer, head and value. */
OCT_API oct_status oct_kv_pool_set_scale(oct_kv_pool *pool, uint32_t layer, uint32_t which, const float *scale, size_t n, oct_error *error);

/* The view of one layer; valid until the pool is destroyed. INVALID_ARGUMENT when a static scale of that layer was never set. */
OCT_API oct_status oct_kv_pool_layer(const oct_kv_pool *pool, uint32_t layer, oct_kv_layer *view, oct_error *error);

OCT_API uint64_t oct_kv_pool_bytes(const oct_kv_pool *pool);   /* pages and scales, all layers */

/* Copies one page in every layer of the pool, scales included (copy-on-write). On a GPU within the device, by the default stream, for which
 * it waits: whatever writes the page must have run (oct_device_wait); not inside a graph capture. Errors: INVALID_ARGUMENT; on
 * a GPU also UNSUPPORTED (a capture), DEVICE_FAULT. */
OCT_API oct_status oct_kv_pool_copy_page(oct_kv_pool *pool, int32_t from, int32_t to);

/* ---- the write ---------------------------------------------------------------------------------------------- */

/* RoPE applied to K before it is stored. */
typedef struct oct_rope {
    uint32_t struct_size;
    uint32_t style;             /* 0: pairs (i, i + n/2) "neox"; 1: pairs (2i, 2i + 1) "normal" */
    uint32_t n_dims;            /* rotated dims from the front; even, <= dim_k */
    float base;                 /* theta_i = position * position_scale * base^(-2i/n_dims) / factors[i] */
    float position_scale;
    const float *factors;       /* f32[n_dims / 2], or NULL */
} oct_rope;

/* Counted by the write when asked for: added to, never reset; the caller owns and zeroes it. */
typedef struct oct_kv_counts {
    uint64_t n_values, n_saturated, n_nan;
    float amax;                 /* largest finite |x| met, before scaling */
    uint32_t reserved;
} oct_kv_counts;

typedef struct oct_kv_write_args {
    uint32_t struct_size;
    uint32_t checked;                   /* 1: a slot >= capacity is an error and nothing is written; 0: such a token is skipped */
    const oct_kv_layer *layer;
    const oct_kv_layer *layer_window;   /* second destination (twin pool), or NULL; same heads and dims */
    const int32_t *slots;               /* int32[n_tokens]; negative: skipped; slot = page * page_size + offset */
    const int32_t *slots_window;        /* as slots, for layer_window */
    int64_t n_tokens;                   /* the number of slots bounds the loop, whatever k and v hold */
    uint32_t src_dtype;                 /* F32, F16 or BF16, of k and v */
    uint32_t reserved;
    const void *k;                      /* [n_tokens][heads][dim_k], strides in elements, dim contiguous */
    const void *v;
    int64_t k_token_stride, k_head_stride;
    int64_t v_token_stride, v_head_stride;
    const oct_rope *rope;               /* or NULL */
    const int32_t *positions;           /* int32[n_tokens], with rope */
    oct_kv_counts *k_counts;            /* [n_counts], or NULL; thread i adds to entry i, so oct_kv_write_part needs n_counts >= nth */
    oct_kv_counts *v_counts;
    uint32_t n_counts;
    uint32_t reserved2;
    void *stream;                       /* on a GPU, where all pointers but the layers and rope themselves are the device's, and only entry 0
                                         * of the counts is added to; NULL on the CPU */
    uint32_t *refused;                  /* on a GPU with checked: u32[1], set to 1 when a slot was >= capacity and nothing was written, else to 0.
                                         * NULL otherwise */
} oct_kv_write_args;

/* Quantises and stores K and V in one pass; on a GPU enqueues it. Never allocates. Errors: INVALID_ARGUMENT (names the argument), UNSUPPORTED,
 * DEVICE_FAULT. */
OCT_API oct_status oct_kv_write(oct_context *context, const oct_kv_write_args *args);

/* The share of thread ith of nth, for callers that bring their own threads, on the CPU (a GPU: UNSUPPORTED): all nth call it with the same args; whoever reads the
 * pages waits for all of them. The argument check is the same in each; in error nobody has written. */
OCT_API oct_status oct_kv_write_part(oct_context *context, const oct_kv_write_args *args, uint32_t ith, uint32_t nth);

#ifdef __cplusplus
}
#endif
#endif
