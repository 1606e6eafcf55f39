/* avx2_keys.h: owns the walk of AVX2 kernels over the keys of a tile: which keys of a block each row sees, where their stored rows lie,
 * and their dynamic scales. Whatever the layout and the page size, kernels get rows of contiguous dims: V5D blocks are transposed, still
 * as stored bytes, into staging memory.
 *
 * A block is the keys [first, first + n) of the sequence; blocks end at multiples of the kernel's block size from key 0, so that a row's
 * arithmetic does not depend on the rows and heads it shares a tile with. */
#ifndef OCT_CPU_AVX2_KEYS_H
#define OCT_CPU_AVX2_KEYS_H

#include <string.h>

#include "cpu/avx2_number.h"
#include "cpu/v5d_ahead.h"
#include "kv/layout.h"
#include "number/dtype.h"
#include "plan/variant.h"

/* Keys that a row at `position` sees by the causal and window rule: [low, high). */
AVX2_INLINE int64_t avx2_low(const oct__attn_tile *tile, int64_t position)
{
    return tile->window > 0 ? position - (int64_t)tile->window + 1 : INT64_MIN;
}
AVX2_INLINE int64_t avx2_high(const oct__attn_tile *tile, int64_t position)
{
    return tile->causal ? position + 1 : INT64_MAX;
}

AVX2_INLINE bool avx2_mask_shows(const oct__attn_tile *tile, uint32_t row, int64_t key)
{
    if (tile->mask == NULL || key < tile->mask_key0) {
        return true;
    }
    const int64_t bit = key - tile->mask_key0;
    return (tile->mask[row * tile->mask_row_stride + bit / 32] >> (bit % 32)) & 1;
}

/* The keys of the tile that some row may see. Empty: *key0 >= *key1. */
AVX2_INLINE void avx2_tile_range(const oct__attn_tile *tile, int64_t *key0, int64_t *key1)
{
    const int64_t low = avx2_low(tile, tile->pos0), high = avx2_high(tile, tile->pos0 + tile->n_rows - 1);
    *key0 = low > tile->key0 ? low : tile->key0;
    *key1 = high < tile->key1 ? high : tile->key1;
}

/* Whether all rows of the tile see all keys of [first, end). */
AVX2_INLINE bool avx2_all_see(const oct__attn_tile *tile, int64_t first, int64_t end)
{
    return avx2_low(tile, tile->pos0 + tile->n_rows - 1) <= first && avx2_high(tile, tile->pos0) >= end &&
           (tile->mask == NULL || end <= tile->mask_key0);
}

/* A float of the dynamic scales beside the page. */
AVX2_INLINE float avx2_token_scale(const void *scales, uint32_t scale_dtype, int64_t at)
{
    return scale_dtype == OCT_DTYPE_F16 ? _cvtsh_ss(((const uint16_t *)scales)[at]) : ((const float *)scales)[at];
}

/* ---- V5D --------------------------------------------------------------------------------------------------------------- */

/* K: x elements lie together; a row is dim / x chunks, page_size chunks apart. */
static inline void avx2_stage_k5d(uint8_t *row, const oct_kv_layer *kv, int64_t page, uint32_t token, uint32_t head)
{
    const uint32_t size = oct__dtype_size_bytes(kv->spec.k.dtype), chunks = kv->spec.dim_k * size / 16;
    const uint8_t *from = (const uint8_t *)kv->k + oct__k_index(kv, page, token, head, 0) * size;
    for (uint32_t c = 0; c < chunks; c++) {
        memcpy(row + 16 * c, from + (size_t)c * kv->spec.page_size * 16, 16);
    }
}

/* Eight chunks of 16 bytes as rows of a matrix of bytes or words; its columns, eight elements each, go to to[0], to[1], ... */
AVX2_INLINE void avx2_transpose_chunks(uint8_t (*to)[16], const uint8_t *from, const bool is_bytes)
{
    __m128i x[8], y[8];
    AVX2_UNROLL
    for (uint32_t i = 0; i < 8; i++) {
        x[i] = _mm_loadu_si128((const __m128i *)(const void *)(from + 16 * i));
    }
    /* Each round doubles the run of elements that came from consecutive chunks. */
    if (is_bytes) {
        AVX2_UNROLL
        for (uint32_t i = 0; i < 8; i += 2) {
            y[i / 2] = _mm_unpacklo_epi8(x[i], x[i + 1]);
            y[4 + i / 2] = _mm_unpackhi_epi8(x[i], x[i + 1]);
        }
    } else {
        AVX2_UNROLL
        for (uint32_t i = 0; i < 4; i++) {
            y[i] = x[i];
            y[4 + i] = x[4 + i];
        }
        AVX2_UNROLL
        for (uint32_t i = 0; i < 4; i++) {
            x[2 * i] = _mm_unpacklo_epi16(y[i], y[i + 4]);
            x[2 * i + 1] = _mm_unpackhi_epi16(y[i], y[i + 4]);
        }
        AVX2_UNROLL
        for (uint32_t i = 0; i < 4; i++) {
            y[2 * i] = _mm_unpacklo_epi16(x[i], x[i + 4]);
            y[2 * i + 1] = _mm_unpackhi_epi16(x[i], x[i + 4]);
        }
        AVX2_UNROLL
        for (uint32_t i = 0; i < 4; i++) {
            _mm_storeu_si128((__m128i *)(void *)to[2 * i], _mm_unpacklo_epi16(y[i], y[i + 4]));
            _mm_storeu_si128((__m128i *)(void *)to[2 * i + 1], _mm_unpackhi_epi16(y[i], y[i + 4]));
        }
        return;
    }
    AVX2_UNROLL
    for (uint32_t half = 0; half < 8; half += 4) { /* tokens 0..7, then 8..15 */
        const __m128i a = _mm_unpacklo_epi16(y[half], y[half + 1]), b = _mm_unpackhi_epi16(y[half], y[half + 1]);
        const __m128i c = _mm_unpacklo_epi16(y[half + 2], y[half + 3]), d = _mm_unpackhi_epi16(y[half + 2], y[half + 3]);
        const __m128i pairs[4] = { _mm_unpacklo_epi32(a, c), _mm_unpackhi_epi32(a, c), _mm_unpacklo_epi32(b, d), _mm_unpackhi_epi32(b, d) };
        AVX2_UNROLL
        for (uint32_t i = 0; i < 4; i++) {
            _mm_storel_epi64((__m128i *)(void *)to[2 * half + 2 * i], pairs[i]);
            _mm_storel_epi64((__m128i *)(void *)to[2 * half + 2 * i + 1], _mm_unpackhi_epi64(pairs[i], pairs[i]));
        }
    }
}

/* 16 / size tokens of V lie together for each dim: a chunk. Takes n tokens of one chunk from `token` on and writes rows that are row_bytes
 * apart. */
static inline void avx2_stage_v5d(uint8_t *rows, size_t row_bytes, const oct_kv_layer *kv, int64_t page, uint32_t token, uint32_t head,
                                  uint32_t n)
{
    const uint32_t size = oct__dtype_size_bytes(kv->spec.v.dtype), dim = kv->spec.dim_v, first = token % (16 / size);
    const uint8_t *from = (const uint8_t *)kv->v + oct__v_index(kv, page, token - first, head, 0) * size;
    for (uint32_t d = 0; d < dim; d += 8, from += 8 * 16, rows += (size_t)8 * size) {
        uint8_t columns[16][16];
        if (size == 1) {
            avx2_transpose_chunks(columns, from, true);
            for (uint32_t t = 0; t < n; t++) {
                memcpy(rows + t * row_bytes, columns[first + t], 8);
            }
        } else if (size == 2) {
            avx2_transpose_chunks(columns, from, false);
            for (uint32_t t = 0; t < n; t++) {
                memcpy(rows + t * row_bytes, columns[first + t], 16);
            }
        } else {
            for (uint32_t t = 0; t < n; t++) {
                for (uint32_t i = 0; i < 8; i++) {
                    memcpy(rows + t * row_bytes + (size_t)i * 4, from + (size_t)i * 16 + (size_t)(first + t) * 4, 4);
                }
            }
        }
    }
}

/* ---- blocks ------------------------------------------------------------------------------------------------------------ */

#define AVX2_BLOCK_MAX 128u

typedef struct avx2_block {
    int64_t first;
    uint32_t n;
    /* Stored rows of K and V. Entries past n repeat the last one, so that kernels may take keys in groups. */
    const uint8_t *k[AVX2_BLOCK_MAX + 16], *v[AVX2_BLOCK_MAX + 16];
    float k_scale[AVX2_BLOCK_MAX], v_scale[AVX2_BLOCK_MAX]; /* by avx2_block_scales, when dynamic */
} avx2_block;

/* Bytes of V5D staging for blocks of n keys; 0 for the other layouts. */
static inline size_t avx2_stage_bytes(const oct_kv_spec *spec, uint32_t n)
{
    if (spec->layout != OCT_LAYOUT_V5D) {
        return 0;
    }
    return n *
           ((size_t)spec->dim_k * oct__dtype_size_bytes(spec->k.dtype) + (size_t)spec->dim_v * oct__dtype_size_bytes(spec->v.dtype) + 32);
}

/* A row of a page that nobody sees and that may be gone: zeros in every format. */
static const uint8_t avx2_no_row[512 * 4] = { 0 };

/* Points the block at the keys [first, first + n), and on to `room` + 16 entries. stage: avx2_stage_bytes of memory. */
static inline void avx2_block_point(avx2_block *b, const oct__attn_tile *tile, int64_t first, uint32_t n, uint32_t room, uint8_t *stage)
{
    const oct_kv_layer *kv = tile->kv;
    const oct_kv_spec *spec = &kv->spec;
    const uint32_t head = tile->head_kv, page_size = spec->page_size;
    const size_t k_size = oct__dtype_size_bytes(spec->k.dtype);
    const size_t k_bytes = spec->dim_k * k_size, v_bytes = (size_t)oct__element_at(spec->v.dtype, spec->dim_v);
    const int64_t v_step = oct__element_at(spec->v.dtype, kv->v_token_stride);
    int64_t page_index = first / page_size;
    uint32_t token = (uint32_t)(first % page_size);

    b->first = first;
    b->n = n;
    for (uint32_t j = 0; j < n; page_index++, token = 0) {
        const uint32_t take = page_size - token < n - j ? page_size - token : n - j;
        const int64_t page = tile->pages[page_index];
        if (page < 0) {
            for (uint32_t i = 0; i < take; i++) {
                b->k[j + i] = b->v[j + i] = avx2_no_row;
            }
            j += take;
            continue;
        }
        if (spec->layout == OCT_LAYOUT_V5D) {
            const uint32_t x = oct__v5d_x(spec->v.dtype);
            uint8_t *k_stage = stage, *v_stage = stage + AVX2_BLOCK_MAX * k_bytes;
            for (uint32_t i = 0; i < take; i++) {
                b->k[j + i] = k_stage + (j + i) * k_bytes;
                b->v[j + i] = v_stage + (j + i) * v_bytes;
                avx2_stage_k5d(k_stage + (j + i) * k_bytes, kv, page, token + i, head);
            }
            for (uint32_t i = 0; i < take;) {
                const uint32_t left = x - (token + i) % x, some = left < take - i ? left : take - i;
                avx2_stage_v5d(v_stage + (j + i) * v_bytes, v_bytes, kv, page, token + i, head, some);
                i += some;
            }
        } else {
            const uint8_t *k = (const uint8_t *)kv->k + oct__k_index(kv, page, token, head, 0) * (int64_t)k_size;
            const uint8_t *v = (const uint8_t *)kv->v + oct__element_at(spec->v.dtype, oct__v_index(kv, page, token, head, 0));
            for (uint32_t i = 0; i < take; i++) {
                b->k[j + i] = k + (int64_t)i * kv->k_token_stride * (int64_t)k_size;
                b->v[j + i] = v + (int64_t)i * v_step;
            }
        }
        j += take;
    }
    for (uint32_t j = n; j < room + 16; j++) {
        b->k[j] = b->k[n - 1];
        b->v[j] = b->v[n - 1];
    }
}

/* Points a V5D block at what it will be staged from, for prefetching only. */
static inline void avx2_block_ahead(avx2_block *b, const oct__attn_tile *tile, int64_t first, uint32_t n)
{
    b->first = first;
    b->n = n;
    v5d_ahead(tile, first, n, b->k, b->v);
    for (uint32_t j = n; j < AVX2_BLOCK_MAX + 16; j++) {
        b->k[j] = b->k[n - 1];
        b->v[j] = b->v[n - 1];
    }
}

/* The dynamic scales of one tensor for the keys of the block, spread over their pages. */
static inline void avx2_gather_scales(float *to, const avx2_block *b, const oct__attn_tile *tile, const void *scales, uint32_t scale_dtype,
                                      int64_t page_stride)
{
    const uint32_t page_size = tile->kv->spec.page_size, heads = tile->kv->spec.heads;
    int64_t page_index = b->first / page_size;
    uint32_t token = (uint32_t)(b->first % page_size);
    for (uint32_t j = 0; j < b->n; page_index++, token = 0) {
        const uint32_t take = page_size - token < b->n - j ? page_size - token : b->n - j;
        const int64_t page = tile->pages[page_index];
        const int64_t at = page * page_stride + (int64_t)token * heads + tile->head_kv;
        for (uint32_t i = 0; i < take; i++) {
            to[j + i] = page < 0 ? 0.0f : avx2_token_scale(scales, scale_dtype, at + (int64_t)i * heads);
        }
        j += take;
    }
}

/* Fills k_scale and v_scale where the pool has dynamic scales. */
static inline void avx2_block_scales(avx2_block *b, const oct__attn_tile *tile)
{
    const oct_kv_layer *kv = tile->kv;
    if (kv->spec.k.scale_mode == OCT_SCALE_TOKEN_HEAD) {
        avx2_gather_scales(b->k_scale, b, tile, kv->k_token_scale, kv->spec.k.scale_dtype, kv->k_scale_page_stride);
    }
    if (kv->spec.v.scale_mode == OCT_SCALE_TOKEN_HEAD) {
        avx2_gather_scales(b->v_scale, b, tile, kv->v_token_scale, kv->spec.v.scale_dtype, kv->v_scale_page_stride);
    }
}

/* Asks for the scales of a block that comes later. */
static inline void avx2_scales_ahead(const avx2_block *b, const oct__attn_tile *tile, const void *scales, uint32_t scale_dtype,
                                     int64_t page_stride)
{
    const uint32_t page_size = tile->kv->spec.page_size, size = oct__dtype_size_bytes(scale_dtype);
    const uint32_t token_bytes = tile->kv->spec.heads * size, step = token_bytes < 64 ? 64 / token_bytes : 1; /* tokens to a line */
    int64_t page_index = b->first / page_size;
    uint32_t token = (uint32_t)(b->first % page_size);
    for (uint32_t j = 0; j < b->n; page_index++, token = 0) {
        const uint32_t take = page_size - token < b->n - j ? page_size - token : b->n - j;
        const int64_t page = tile->pages[page_index];
        const char *at = (const char *)scales + (page * page_stride + tile->head_kv) * (int64_t)size + (int64_t)token * token_bytes;
        for (uint32_t i = 0; i < take && page >= 0; i += step) {
            _mm_prefetch(at + (size_t)i * token_bytes, _MM_HINT_T0);
        }
        j += take;
    }
}

static inline void avx2_block_scales_ahead(const avx2_block *b, const oct__attn_tile *tile)
{
    const oct_kv_layer *kv = tile->kv;
    if (kv->spec.k.scale_mode == OCT_SCALE_TOKEN_HEAD) {
        avx2_scales_ahead(b, tile, kv->k_token_scale, kv->spec.k.scale_dtype, kv->k_scale_page_stride);
    }
    if (kv->spec.v.scale_mode == OCT_SCALE_TOKEN_HEAD) {
        avx2_scales_ahead(b, tile, kv->v_token_scale, kv->spec.v.scale_dtype, kv->v_scale_page_stride);
    }
}

/* Asks for the bytes of stored rows that a later block reads, into L2: L1's few miss buffers then stay free for what is read now.
 * GB/s of cold pages, e4m3 with 4 vectors / i8 with 1 / bf16 with 4, dim 128, one thread: no prefetch 4.7 / 3.6 / 5.8, into L1 5.9 / 6.5 /
 * 8.2, into L2 6.9 / 9.0 / 12.4. */
AVX2_INLINE void avx2_rows_ahead(const uint8_t *const *rows, uint32_t n, uint32_t row_bytes)
{
    for (uint32_t j = 0; j < n; j++) {
        for (uint32_t at = 0; at < row_bytes; at += 64) {
            _mm_prefetch((const char *)rows[j] + at, _MM_HINT_T1);
        }
    }
}

/* ---- decoding to f32 ----------------------------------------------------------------------------------------------------- */

/* Decodes n rows of dim elements into f32 rows that are `stride` floats apart, in avx2_unit()s of the format. */
typedef void avx2_decode_fn(float *to, size_t stride, const uint8_t *const *rows, uint32_t n, uint32_t dim);

AVX2_INLINE void avx2_decode16(float *to, const uint8_t *at, uint32_t dtype)
{
    __m256 low, high;
    avx2_load16(at, dtype, &low, &high);
    _mm256_storeu_ps(to, low);
    _mm256_storeu_ps(to + 8, high);
}

AVX2_INLINE void avx2_decode(float *to, size_t stride, const uint8_t *const *rows, uint32_t n, uint32_t dim, uint32_t dtype)
{
    const size_t size = avx2_size(dtype);
    __m256i evidence = _mm256_setzero_si256();
    for (uint32_t j = 0; j < n; j++, to += stride) {
        const uint8_t *row = rows[j];
        uint32_t d = 0;
        for (; d + 32 <= dim; d += 32) {
            if (avx2_hides_nan(dtype)) {
                evidence = avx2_nan_gather32(evidence, row + d, dtype);
            }
            avx2_decode16(to + d, row + d * size, dtype);
            avx2_decode16(to + d + 16, row + (d + 16) * size, dtype);
        }
        for (; d < dim; d += 8) {
            if (avx2_hides_nan(dtype)) {
                evidence = avx2_nan_gather8(evidence, row + d, dtype);
            }
            _mm256_storeu_ps(to + d, avx2_load8(row + d * size, dtype));
        }
    }
    if (avx2_hides_nan(dtype) && avx2_nan_found(evidence, dtype)) {
        to -= n * stride;
        for (uint32_t j = 0; j < n; j++, to += stride) {
            for (uint32_t d = 0; d < dim; d += 8) {
                _mm256_storeu_ps(to + d, avx2_load8_nan(rows[j] + d, dtype));
            }
        }
    }
}

#endif
