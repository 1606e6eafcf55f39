/* avx512_keys.h: owns the walk of AVX-512 kernels over the keys of a tile: which keys of a block each row sees, where their stored rows
 * lie, and their dynamic scales. Whatever the layout and the page size, kernels get rows of contiguous dims: V5D blocks are transposed,
 * still as stored bytes, into staging memory.
 *
 * A block is the keys [first, first + n) of the sequence; blocks end at multiples of AVX512_BLOCK from key 0, so that a row's arithmetic
 * does not depend on the rows and heads it shares a tile with. The block after the current one is pointed at ahead of time, and kernels
 * prefetch its rows into L2 line by line while they work on the current one: the hardware's prefetchers end at 4 KiB, and pages lie
 * anywhere. GB/s of one Zen 4 thread over scattered runs of 2 KiB: 10 without, 10 with prefetching into L1 (too few of its misses may be
 * outstanding), 20 into L2, from 8 KiB ahead on; 2 threads 39, which is all that the memory gives. Dynamic scales are read when a block is
 * pointed at, so they are asked for one block earlier: i8 with 1 / 4 / 8 vectors gains 8 / 5 / 0 %. */
#ifndef OCT_CPU_AVX512_KEYS_H
#define OCT_CPU_AVX512_KEYS_H

#include <string.h>

#include "cpu/avx512.h"
#include "cpu/avx512_number.h"
#include "cpu/v5d_ahead.h"
#include "kv/layout.h"
#include "number/dtype.h"

/* ---- who sees what --------------------------------------------------------------------------------------------------------- */

/* Keys that a row at `position` sees by the causal and window rule: [low, high). */
AVX512_INLINE int64_t avx512_low(const oct__attn_tile *tile, int64_t position)
{
    return tile->window > 0 ? position - (int64_t)tile->window + 1 : INT64_MIN;
}
AVX512_INLINE int64_t avx512_high(const oct__attn_tile *tile, int64_t position)
{
    return tile->causal ? position + 1 : INT64_MAX;
}

AVX512_INLINE bool avx512_mask_shows(const oct__attn_tile *tile, uint32_t row, int64_t key)
{
    if (tile->mask == NULL || key < tile->mask_key0) {
        return true;
    }
    const int64_t bit = key - tile->mask_key0;
    return (tile->mask[row * tile->mask_row_stride + bit / 32] >> (bit % 32)) & 1;
}

/* The keys of the tile that some row may see. Empty: *key0 >= *key1. */
AVX512_INLINE void avx512_tile_range(const oct__attn_tile *tile, int64_t *key0, int64_t *key1)
{
    const int64_t low = avx512_low(tile, tile->pos0), high = avx512_high(tile, tile->pos0 + tile->n_rows - 1);
    *key0 = low > tile->key0 ? low : tile->key0;
    *key1 = high < tile->key1 ? high : tile->key1;
}

/* Whether all rows of the tile see all keys of [first, end). */
AVX512_INLINE bool avx512_all_see(const oct__attn_tile *tile, int64_t first, int64_t end)
{
    return avx512_low(tile, tile->pos0 + tile->n_rows - 1) <= first && avx512_high(tile, tile->pos0) >= end &&
           (tile->mask == NULL || end <= tile->mask_key0);
}

/* ---- blocks ---------------------------------------------------------------------------------------------------------------- */

#define AVX512_PAD 16u /* kernels take keys in groups of up to 16 */

typedef struct avx512_block {
    _Alignas(64) float k_scale[AVX512_BLOCK], v_scale[AVX512_BLOCK]; /* only filled when dynamic; past n: 0 */
    int64_t first;
    uint32_t n;
    const uint8_t *k[AVX512_BLOCK + AVX512_PAD + 8], *v[AVX512_BLOCK + AVX512_PAD + 8]; /* stored rows; past n: zeros; 8 more than anybody reads */
} avx512_block;

/* A row that nobody sees, or past the block: zeros in every format. */
static const _Alignas(64) uint8_t avx512_no_row[512 * 4] = { 0 };

/* Bytes of V5D staging for one block; 0 for the other layouts. */
static inline size_t avx512_stage_bytes(const oct_kv_spec *spec)
{
    if (spec->layout != OCT_LAYOUT_V5D) {
        return 0;
    }
    return AVX512_BLOCK * ((size_t)spec->dim_k * oct__dtype_size_bytes(spec->k.dtype) + (size_t)spec->dim_v * oct__dtype_size_bytes(spec->v.dtype)) + 64;
}

/* K: x elements (16 bytes) lie together; a row is dim / x of them, page_size x 16 bytes apart. */
static inline void avx512_stage_k(uint8_t *row, const oct_kv_layer *kv, int64_t page, uint32_t token, uint32_t head)
{
    const uint32_t size = oct__dtype_size_bytes(kv->spec.k.dtype), n = kv->spec.dim_k * size / 16;
    const size_t step = (size_t)kv->spec.page_size * 16;
    const uint8_t *from = (const uint8_t *)kv->k + oct__k_index(kv, page, token, head, 0) * size;
    for (uint32_t c = 0; c < n; c++) {
        _mm_storeu_si128((__m128i *)(void *)(row + 16 * c), _mm_loadu_si128((const __m128i *)(const void *)(from + c * step)));
    }
}

/* Four dims of V, 16 / size tokens each: the 16-byte runs of dims become runs of the four dims of one token. */
AVX512_INLINE __m512i avx512_turn_v(const uint8_t *from, const uint32_t size)
{
    __m512i index;
    if (size == 1) {
        index = _mm512_set_epi32(0x3F2F1F0F, 0x3E2E1E0E, 0x3D2D1D0D, 0x3C2C1C0C, 0x3B2B1B0B, 0x3A2A1A0A, 0x39291909, 0x38281808, 0x37271707, 0x36261606,
                                 0x35251505, 0x34241404, 0x33231303, 0x32221202, 0x31211101, 0x30201000);
    } else if (size == 2) {
        index = _mm512_set_epi32(0x3F3E2F2E, 0x1F1E0F0E, 0x3D3C2D2C, 0x1D1C0D0C, 0x3B3A2B2A, 0x1B1A0B0A, 0x39382928, 0x19180908, 0x37362726, 0x17160706,
                                 0x35342524, 0x15140504, 0x33322322, 0x13120302, 0x31302120, 0x11100100);
    } else {
        index = _mm512_set_epi32(0x3F3E3D3C, 0x2F2E2D2C, 0x1F1E1D1C, 0x0F0E0D0C, 0x3B3A3938, 0x2B2A2928, 0x1B1A1918, 0x0B0A0908, 0x37363534, 0x27262524,
                                 0x17161514, 0x07060504, 0x33323130, 0x23222120, 0x13121110, 0x03020100);
    }
    return _mm512_permutexvar_epi8(index, _mm512_loadu_si512(from));
}

/* The 16-byte lanes of x to the rows of tokens t, t + step, t + 2 step, t + 3 step, where they are among [first, first + n). */
AVX512_INLINE void avx512_stage_lanes(uint8_t *rows, size_t row_bytes, __m512i x, uint32_t t, uint32_t step, uint32_t first, uint32_t n)
{
    _Alignas(64) uint8_t lanes[64];
    if (first == 0 && n == 4 * step) {
        _mm_storeu_si128((__m128i *)(void *)(rows + t * row_bytes), _mm512_castsi512_si128(x));
        _mm_storeu_si128((__m128i *)(void *)(rows + (t + step) * row_bytes), _mm512_extracti32x4_epi32(x, 1));
        _mm_storeu_si128((__m128i *)(void *)(rows + (t + 2 * step) * row_bytes), _mm512_extracti32x4_epi32(x, 2));
        _mm_storeu_si128((__m128i *)(void *)(rows + (t + 3 * step) * row_bytes), _mm512_extracti32x4_epi32(x, 3));
        return;
    }
    _mm512_store_si512(lanes, x);
    for (uint32_t i = 0; i < 4; i++, t += step) {
        if (t >= first && t < first + n) {
            memcpy(rows + (t - first) * row_bytes, lanes + 16 * i, 16);
        }
    }
}

/* V: 16 / size tokens of one dim lie together. Takes n of them from `token` on, to rows that are row_bytes apart. */
static inline void avx512_stage_v(uint8_t *rows, size_t row_bytes, const oct_kv_layer *kv, int64_t page, uint32_t token, uint32_t head, uint32_t n)
{
    const uint32_t size = oct__dtype_size_bytes(kv->spec.v.dtype), dim = kv->spec.dim_v, x = 16 / size, first = token % x;
    const uint8_t *from = (const uint8_t *)kv->v + oct__v_index(kv, page, token - first, head, 0) * size;
    uint32_t d = 0;
    if (size == 1) {
        for (; d + 16 <= dim; d += 16, from += 256) {
            const __m512i a = avx512_turn_v(from, 1), b = avx512_turn_v(from + 64, 1), c = avx512_turn_v(from + 128, 1), e = avx512_turn_v(from + 192, 1);
            const __m512i ab0 = _mm512_unpacklo_epi32(a, b), ab1 = _mm512_unpackhi_epi32(a, b), ce0 = _mm512_unpacklo_epi32(c, e), ce1 = _mm512_unpackhi_epi32(c, e);
            avx512_stage_lanes(rows + d, row_bytes, _mm512_unpacklo_epi64(ab0, ce0), 0, 4, first, n);
            avx512_stage_lanes(rows + d, row_bytes, _mm512_unpackhi_epi64(ab0, ce0), 1, 4, first, n);
            avx512_stage_lanes(rows + d, row_bytes, _mm512_unpacklo_epi64(ab1, ce1), 2, 4, first, n);
            avx512_stage_lanes(rows + d, row_bytes, _mm512_unpackhi_epi64(ab1, ce1), 3, 4, first, n);
        }
    } else if (size == 2) {
        for (; d + 8 <= dim; d += 8, from += 128) {
            const __m512i a = avx512_turn_v(from, 2), b = avx512_turn_v(from + 64, 2);
            avx512_stage_lanes(rows + 2 * d, row_bytes, _mm512_unpacklo_epi64(a, b), 0, 2, first, n);
            avx512_stage_lanes(rows + 2 * d, row_bytes, _mm512_unpackhi_epi64(a, b), 1, 2, first, n);
        }
    } else {
        for (; d + 4 <= dim; d += 4, from += 64) {
            avx512_stage_lanes(rows + 4 * d, row_bytes, avx512_turn_v(from, 4), 0, 1, first, n);
        }
    }
    for (; d < dim; d += 4, from += 64) { /* the last eight dims of bytes */
        _Alignas(64) uint8_t turned[64];
        _mm512_store_si512(turned, avx512_turn_v(from, 1));
        for (uint32_t t = 0; t < n; t++) {
            memcpy(rows + t * row_bytes + d, turned + (first + t) * 4, 4);
        }
    }
}

/* Dynamic scales of n tokens of one page. */
static inline void avx512_scales(float *to, const void *scales, uint32_t scale_dtype, int64_t at, int64_t step, uint32_t n)
{
    if (scale_dtype != OCT_DTYPE_F16) {
        for (uint32_t i = 0; i < n; i++) {
            to[i] = ((const float *)scales)[at + i * step];
        }
        return;
    }
    const uint16_t *from = (const uint16_t *)scales + at;
    uint32_t i = 0;
    for (; i + 8 <= n; i += 8, from += 8 * step) { /* in registers: words written one by one are not there for a load of all for a long time */
        __m128i x = _mm_cvtsi32_si128(from[0]), y = _mm_cvtsi32_si128(from[4 * step]);
        x = _mm_insert_epi16(x, from[step], 1);
        y = _mm_insert_epi16(y, from[5 * step], 1);
        x = _mm_insert_epi16(x, from[2 * step], 2);
        y = _mm_insert_epi16(y, from[6 * step], 2);
        x = _mm_insert_epi16(x, from[3 * step], 3);
        y = _mm_insert_epi16(y, from[7 * step], 3);
        const __m512 whole = _mm512_cvtph_ps(_mm256_zextsi128_si256(_mm_unpacklo_epi64(x, y)));
        _mm256_storeu_ps(to + i, _mm512_castps512_ps256(whole));
    }
    for (; i < n; i++, from += step) {
        to[i] = _mm512_cvtss_f32(_mm512_cvtph_ps(_mm256_zextsi128_si256(_mm_cvtsi32_si128(from[0]))));
    }
}

/* Points the block at the keys [first, first + n). stage: avx512_stage_bytes of memory. */
static inline void avx512_block_point(avx512_block *b, const oct__attn_tile *tile, int64_t first, uint32_t n, uint8_t *stage)
{
    const oct_kv_layer *kv = tile->kv;
    const oct_kv_spec *spec = &kv->spec;
    const uint32_t head = tile->head_kv, page_size = spec->page_size;
    const int64_t k_size = oct__dtype_size_bytes(spec->k.dtype);
    const size_t k_bytes = spec->dim_k * (size_t)k_size, v_bytes = (size_t)oct__element_at(spec->v.dtype, spec->dim_v);
    const bool k_dynamic = spec->k.scale_mode == OCT_SCALE_TOKEN_HEAD, v_dynamic = spec->v.scale_mode == OCT_SCALE_TOKEN_HEAD;
    const int64_t k_step = kv->k_token_stride * k_size, v_step = oct__element_at(spec->v.dtype, kv->v_token_stride);
    const __m512i k_steps = _mm512_setr_epi64(0, k_step, 2 * k_step, 3 * k_step, 4 * k_step, 5 * k_step, 6 * k_step, 7 * k_step);
    const __m512i v_steps = _mm512_setr_epi64(0, v_step, 2 * v_step, 3 * v_step, 4 * v_step, 5 * v_step, 6 * v_step, 7 * v_step);
    const __m512i no_rows = _mm512_set1_epi64((int64_t)(uintptr_t)avx512_no_row);
    int64_t page_index = first / page_size;
    uint32_t token = (uint32_t)(first % page_size);

    b->first = first;
    b->n = n;
    for (uint32_t j = 0; j < n; page_index++, token = 0) {
        const uint32_t take = page_size - token < n - j ? page_size - token : n - j;
        const int64_t page = tile->pages[page_index];
        if (page < 0) { /* no row sees it, and it may be gone */
            for (uint32_t i = j; i < j + take; i++) {
                b->k[i] = b->v[i] = avx512_no_row;
                b->k_scale[i] = b->v_scale[i] = 0.0f;
            }
            j += take;
            continue;
        }
        if (spec->layout == OCT_LAYOUT_V5D) {
            const uint32_t x = oct__v5d_x(spec->v.dtype);
            uint8_t *k_stage = stage + j * k_bytes, *v_stage = stage + AVX512_BLOCK * k_bytes + j * v_bytes;
            for (uint32_t i = 0; i < take; i++) {
                b->k[j + i] = k_stage + i * k_bytes;
                b->v[j + i] = v_stage + i * v_bytes;
                avx512_stage_k(k_stage + i * k_bytes, kv, page, token + i, head);
            }
            for (uint32_t i = 0; i < take;) {
                const uint32_t left = x - (token + i) % x, some = left < take - i ? left : take - i;
                avx512_stage_v(v_stage + i * v_bytes, v_bytes, kv, page, token + i, head, some);
                i += some;
            }
        } else {
            const uint8_t *k = (const uint8_t *)kv->k + oct__k_index(kv, page, token, head, 0) * k_size;
            const uint8_t *v = (const uint8_t *)kv->v + oct__element_at(spec->v.dtype, oct__v_index(kv, page, token, head, 0));
            __m512i k_rows = _mm512_add_epi64(k_steps, _mm512_set1_epi64((int64_t)(uintptr_t)k));
            __m512i v_rows = _mm512_add_epi64(v_steps, _mm512_set1_epi64((int64_t)(uintptr_t)v));
            for (uint32_t i = j; i < j + take; i += 8) { /* the last may run over what is filled after it */
                _mm512_storeu_si512(b->k + i, k_rows);
                _mm512_storeu_si512(b->v + i, v_rows);
                k_rows = _mm512_add_epi64(k_rows, _mm512_set1_epi64(8 * k_step));
                v_rows = _mm512_add_epi64(v_rows, _mm512_set1_epi64(8 * v_step));
            }
        }
        if (k_dynamic) {
            avx512_scales(b->k_scale + j, kv->k_token_scale, spec->k.scale_dtype, oct__k_scale_index(kv, page, token, head), spec->heads, take);
        }
        if (v_dynamic) {
            avx512_scales(b->v_scale + j, kv->v_token_scale, spec->v.scale_dtype, oct__v_scale_index(kv, page, token, head), spec->heads, take);
        }
        j += take;
    }
    for (uint32_t j = n; j < AVX512_BLOCK + AVX512_PAD; j += 8) { /* up to 7 behind them, where there is room */
        _mm512_storeu_si512(b->k + j, no_rows);
        _mm512_storeu_si512(b->v + j, no_rows);
    }
    for (uint32_t j = n; j < AVX512_BLOCK && (k_dynamic || v_dynamic); j++) {
        b->k_scale[j] = b->v_scale[j] = 0.0f;
    }
}

/* Brings `bytes` of a row that is wanted soon towards L2. Any address is legal. */
AVX512_INLINE void avx512_prefetch(const uint8_t *row, size_t bytes)
{
    for (size_t b = 0; b < bytes; b += 64) {
        _mm_prefetch((const char *)(row + b), _MM_HINT_T1);
    }
}

/* ---- the walk -------------------------------------------------------------------------------------------------------------- */

/* The current block and the one after it, of which only the rows are looked at, to prefetch them. */
typedef struct avx512_walk {
    const oct__attn_tile *tile;
    int64_t at, key1;
    avx512_block blocks[2];
    uint8_t *stage; /* of the current block */
    uint32_t turn;
} avx512_walk;

/* Asks for one tensor's dynamic scales of keys [first, end), which are read when that block is pointed at. */
static inline void avx512_scales_ahead(const oct__attn_tile *tile, int64_t first, int64_t end, const void *scales, uint32_t scale_dtype, int64_t page_stride)
{
    const uint32_t page_size = tile->kv->spec.page_size, size = oct__dtype_size_bytes(scale_dtype), token_bytes = tile->kv->spec.heads * size;
    const uint32_t step = token_bytes < 64 ? 64 / token_bytes : 1; /* tokens to a line */
    while (first < end) {
        const uint32_t token = (uint32_t)(first % page_size), take = page_size - token < end - first ? page_size - token : (uint32_t)(end - first);
        const int64_t page = tile->pages[first / page_size];
        for (uint32_t i = 0; i < take && page >= 0; i += step) {
            const int64_t at = (page * page_stride + tile->head_kv) * (int64_t)size + (int64_t)(token + i) * token_bytes;
            _mm_prefetch((const char *)scales + at, _MM_HINT_T0);
        }
        first += take;
    }
}

static inline uint32_t avx512_walk_length(const avx512_walk *w)
{
    const int64_t edge = (w->at / AVX512_BLOCK + 1) * AVX512_BLOCK;
    return (uint32_t)((edge < w->key1 ? edge : w->key1) - w->at);
}

/* stage: avx512_stage_bytes. False when no row of the tile sees a key. */
static inline bool avx512_walk_begin(avx512_walk *w, const oct__attn_tile *tile, uint8_t *stage)
{
    int64_t key0;
    avx512_tile_range(tile, &key0, &w->key1);
    w->tile = tile;
    w->at = key0;
    w->turn = 0;
    w->stage = stage;
    if (w->at >= w->key1) {
        return false;
    }
    avx512_block_point(&w->blocks[0], tile, w->at, avx512_walk_length(w), stage);
    w->at += w->blocks[0].n;
    return true;
}

/* Points at the block after *current; *next is *current where there is none. The caller works, then calls avx512_walk_step. */
static inline void avx512_walk_look(avx512_walk *w, const avx512_block **current, const avx512_block **next)
{
    avx512_block *after = &w->blocks[1 - w->turn];
    *current = *next = &w->blocks[w->turn];
    if (w->at >= w->key1) {
        return;
    }
    if (w->tile->kv->spec.layout == OCT_LAYOUT_V5D) {
        after->first = w->at;
        after->n = avx512_walk_length(w);
        v5d_ahead(w->tile, after->first, after->n, after->k, after->v);
        for (uint32_t j = after->n; j < AVX512_BLOCK + AVX512_PAD; j++) {
            after->k[j] = after->v[j] = avx512_no_row;
        }
    } else {
        avx512_block_point(after, w->tile, w->at, avx512_walk_length(w), NULL);
    }
    w->at += after->n;
    *next = after;
    const oct_kv_layer *kv = w->tile->kv;
    const int64_t end = w->at + AVX512_BLOCK < w->key1 ? w->at + AVX512_BLOCK : w->key1;
    if (kv->spec.k.scale_mode == OCT_SCALE_TOKEN_HEAD) {
        avx512_scales_ahead(w->tile, w->at, end, kv->k_token_scale, kv->spec.k.scale_dtype, kv->k_scale_page_stride);
    }
    if (kv->spec.v.scale_mode == OCT_SCALE_TOKEN_HEAD) {
        avx512_scales_ahead(w->tile, w->at, end, kv->v_token_scale, kv->spec.v.scale_dtype, kv->v_scale_page_stride);
    }
}

/* Goes on to the next block; false at the end. Called with what avx512_walk_look gave. */
static inline bool avx512_walk_step(avx512_walk *w, const avx512_block *current, const avx512_block *next)
{
    if (next == current) {
        return false;
    }
    w->turn = 1 - w->turn;
    if (w->tile->kv->spec.layout == OCT_LAYOUT_V5D) { /* its bytes are in L2 by now */
        avx512_block *b = &w->blocks[w->turn];
        avx512_block_point(b, w->tile, b->first, b->n, w->stage);
    }
    return true;
}

#endif
