/* attn_ahead.h: owns asking for the first stored bytes of an item before its kernel reads them. Kernels ask for a block of keys while they work on
 * the one before, so what a short context has waits for memory whole: nothing comes before its first block. The runner therefore asks for the first
 * block of an item while it brings and finishes the vectors of the one before.
 *
 * Threads: an oct__ahead belongs to one thread; the pages are read by nobody here, only asked for. */
#ifndef OCT_CPU_ATTN_AHEAD_H
#define OCT_CPU_ATTN_AHEAD_H

#include <immintrin.h>

#include "cpu/v5d_ahead.h"
#include "plan/work.h"

enum { OCT__AHEAD_KEYS = 64 /* a block of the kernels, which end at multiples of it */ };

/* Rows that are still to be asked for: K's and then V's. */
typedef struct oct__ahead {
    const uint8_t *rows[2 * OCT__AHEAD_KEYS];
    uint32_t row_bytes[2], n_keys; /* rows [0, n_keys) have row_bytes[0], the others row_bytes[1] */
    uint32_t at, n;
} oct__ahead;

/* The dynamic scales of tokens [token, token + n) of a page, one tensor's. */
static inline void oct__ahead_scales(const void *scales, uint32_t scale_dtype, int64_t index, uint32_t heads, uint32_t n)
{
    const uint32_t size = oct__dtype_size_bytes(scale_dtype), step = heads * size < 64 ? 64 / (heads * size) : 1; /* tokens to a line */
    for (uint32_t i = 0; i < n; i += step) {
        _mm_prefetch((const char *)scales + (index + (int64_t)i * heads) * size, _MM_HINT_T0);
    }
}

/* Points at the first keys of an item of this layer, up to the end of their block, and asks for their scales at once, which a kernel reads first. */
static inline void oct__ahead_point(oct__ahead *a, const oct_kv_layer *kv, const int32_t *pages, const oct__item *item)
{
    const oct_kv_spec *spec = &kv->spec;
    const uint32_t page_size = spec->page_size, k_size = oct__dtype_size_bytes(spec->k.dtype);
    const int64_t v_step = oct__element_at(spec->v.dtype, kv->v_token_stride);
    const int64_t edge = (item->key0 / OCT__AHEAD_KEYS + 1) * OCT__AHEAD_KEYS, end = edge < item->key1 ? edge : item->key1;
    a->n_keys = (uint32_t)(end > item->key0 ? end - item->key0 : 0);
    a->row_bytes[0] = spec->dim_k * k_size;
    a->row_bytes[1] = (uint32_t)oct__element_at(spec->v.dtype, spec->dim_v);
    a->at = 0;
    a->n = 2 * a->n_keys;
    const uint8_t **k = a->rows, **v = a->rows + a->n_keys;
    for (int64_t key = item->key0; key < end;) {
        const uint32_t token = (uint32_t)(key % page_size), left = (uint32_t)(end - key), n = page_size - token < left ? page_size - token : left;
        const int64_t page = pages[key / page_size] < 0 ? 0 : pages[key / page_size]; /* gone: any address will do */
        if (spec->k.scale_mode == OCT_SCALE_TOKEN_HEAD) {
            oct__ahead_scales(kv->k_token_scale, spec->k.scale_dtype, oct__k_scale_index(kv, page, token, item->head_kv), spec->heads, n);
        }
        if (spec->v.scale_mode == OCT_SCALE_TOKEN_HEAD) {
            oct__ahead_scales(kv->v_token_scale, spec->v.scale_dtype, oct__v_scale_index(kv, page, token, item->head_kv), spec->heads, n);
        }
        if (spec->layout != OCT_LAYOUT_V5D) {
            const uint8_t *k_at = (const uint8_t *)kv->k + oct__k_index(kv, page, token, item->head_kv, 0) * (int64_t)k_size;
            const uint8_t *v_at = (const uint8_t *)kv->v + oct__element_at(spec->v.dtype, oct__v_index(kv, page, token, item->head_kv, 0));
            for (uint32_t i = 0; i < n; i++) {
                *k++ = k_at + (int64_t)i * kv->k_token_stride * (int64_t)k_size;
                *v++ = v_at + (int64_t)i * v_step;
            }
        }
        key += n;
    }
    if (spec->layout == OCT_LAYOUT_V5D && a->n_keys > 0) {
        v5d_ahead_of(kv, pages, item->head_kv, item->key0, a->n_keys, k, v);
    }
}

/* Asks for up to n more rows, towards L2. */
static inline void oct__ahead_ask(oct__ahead *a, uint32_t n)
{
    const uint32_t end = a->n - a->at < n ? a->n : a->at + n;
    for (; a->at < end; a->at++) {
        const uint32_t bytes = a->row_bytes[a->at >= a->n_keys];
        for (uint32_t b = 0; b < bytes; b += 64) {
            _mm_prefetch((const char *)a->rows[a->at] + b, _MM_HINT_T1);
        }
    }
}

#endif
