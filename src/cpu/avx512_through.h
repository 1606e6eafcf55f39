/* avx512_through.h: owns vectors that a write takes from the source to their page in registers: brought to f32, divided, encoded and stored 64
 * elements at a time, with their largest magnitude on the side. Results are those of avx512_encode.h.
 *
 * Ladder, 8 heads of dim 128 in NHD pages, one Zen 4 thread at 3.7 GHz that copies at 46 GB/s, elements/ns (GB/s read and written):
 *   bf16 to e4m3, scale 1   f32 in L1 4.9; in registers 5.3; all heads as one vector 5.6 (16.7); codes from words (avx512_mini.h) 11.0; the largest
 *                           magnitude by itself, not reloaded in a register, 12.8 (38.5: 84 % of copying)
 *   with a layer scale      3.9; 4.5 (13.5) dividing; 6.2 (18.5) by the reciprocal, mended (avx512_encode.h); by tables of the scale (avx512_mini_scaled.h)
 *                           10.6 (32), with these in registers 11.9 (36), a token's heads handed over without scales by head 12.7 (38: 72 to 76 % of copying
 *                           in turns; scale 1 so too 13.7). A scale of 2^n is as fast as 1. By head 5.1, and 8.7 by tables
 *   dynamic scales          4.9 (14.6) mended; 5.8 (17.3) by products alone where no bf16 over the scale can come close to an end of codes
 *                           (avx512_is_far_bf16), which 45 instructions for 64 become 29 by. Tried: constants loaded, not made (gcc's tuning) 5 % more; what
 *                           waits are a token's maxima, on their way through memory to its scales (14 %), and their own pass (15 %)
 *   to i8, dynamic scales   4.8 (14.3) dividing; by five products, all bits right, 4.0; by the reciprocal and the heads of a token in one call 7.1 (21)
 *   bf16 to bf16            5.9 by way of f32; 12.0 to 13.3 as they are
 *   f32 to e4m3             5.7 (28.6); 7.0 (35), which is what memory gives
 * A call makes tables from 4,096 elements a scale on; up to there it is what it was.
 *
 * Threads: pure but for the bytes written. */
#ifndef OCT_CPU_AVX512_THROUGH_H
#define OCT_CPU_AVX512_THROUGH_H

#include "cpu/avx512_mini_scaled.h"

/* The largest of magnitudes, given as the bits of what they came in: words of bf16 or f16, or f32. */
AVX512_INLINE float avx512_largest_word(__m512i words, const avx512_kind kind)
{
    const __m256i x = _mm256_max_epu16(_mm512_castsi512_si256(words), _mm512_extracti64x4_epi64(words, 1));
    const __m128i y = _mm_max_epu16(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1)), ones = _mm_set1_epi16(-1);
    const __m128i largest = _mm_xor_si128(_mm_minpos_epu16(_mm_xor_si128(y, ones)), ones); /* the least of the others, below an index */
    return kind == AVX512_BF16 ? _mm_cvtss_f32(_mm_castsi128_ps(_mm_slli_epi32(largest, 16))) : _mm512_cvtss_f32(_mm512_cvtph_ps(_mm256_castsi128_si256(largest)));
}

AVX512_INLINE __m512i avx512_max_words(__m512i largest, __m512i words)
{
    return _mm512_max_epu16(largest, _mm512_and_si512(words, _mm512_set1_epi32(0x7FFF7FFF)));
}

/* Largest magnitudes of n vectors of dim (a multiple of 64) source elements; infinity or NaN where there is one among them. */
AVX512_INLINE void avx512_through_largest(float *largest, const uint8_t *src, int64_t src_step, uint32_t n, uint32_t dim, const avx512_kind kind)
{
    const uint32_t size = avx512_size(kind);
    for (uint32_t i = 0; i < n; i++, src += src_step) {
        __m512i most = _mm512_setzero_si512();
        for (uint32_t at = 0; at < dim * size; at += 64) {
            const __m512i x = _mm512_loadu_si512(src + at);
            most = size == 2 ? avx512_max_words(most, x) : _mm512_max_epi32(most, _mm512_and_si512(x, _mm512_set1_epi32(INT32_MAX)));
        }
        largest[i] = size == 2 ? avx512_largest_word(most, kind) : oct__f32_of_bits((uint32_t)_mm512_reduce_max_epi32(most));
    }
}

/* A scale that is divided by without dividing: 1, or for e4m3 and e5m2 any power of two that is far from the ends. */
AVX512_INLINE bool avx512_is_shift(float scale, uint32_t dtype)
{
    return scale == 1.0f || (avx512_is_mini(dtype) && (oct__f32_to_bits(scale) & 0x7FFFFF) == 0 && scale > 0x1p-100f && scale < 0x1p100f);
}

/* What happens to elements on their way: shifted scales; scales, which are divided by; these, and the largest magnitudes are known; scales with tables, of
 * bf16 to e4m3 and e5m2. */
typedef enum avx512_way { AVX512_SHIFT, AVX512_DIVIDE, AVX512_DIVIDE_KNOWN, AVX512_LOOK_UP, AVX512_WAYS } avx512_way;

/* n vectors on both ends, and a scale for each. */
typedef struct avx512_heads {
    uint8_t *to;
    const uint8_t *src;
    int64_t to_step, src_step; /* bytes */
    uint32_t n, dim;           /* a multiple of 64 */
    const float *scale;
    const float *reciprocal; /* avx512_reciprocals, or NULL where they may not serve */
    const avx512_mini_scaled *scaled; /* AVX512_LOOK_UP: tables of the scales, or of the one that all share */
    bool is_shared;
    float *largest;          /* where they go, before the division */
    bool is_streamed;        /* all of `to` is 64-byte aligned */
} avx512_heads;

/* Brings one of them. Where the largest magnitude is not finite or its quotient saturates, the caller writes all again. Counts nothing. */
AVX512_INLINE float avx512_through(const avx512_heads *h, uint32_t head, const avx512_kind kind, const avx512_way way, const uint32_t dtype)
{
    const bool is_scaled = way != AVX512_SHIFT, is_streamed = h->is_streamed;
    const uint32_t dim = h->dim;
    const float scale = h->scale[head];
    const uint8_t *src = h->src + head * h->src_step;
    uint8_t *to = h->to + head * h->to_step;
    const uint32_t size = avx512_size(kind), to_size = dtype == OCT_DTYPE_F32 ? 4 : dtype == OCT_DTYPE_F16 || dtype == OCT_DTYPE_BF16 ? 2 : 1;
    const bool is_mini = avx512_is_mini(dtype), is_words = kind == AVX512_BF16 && to_size == 1 && (is_mini || is_scaled);
    const bool is_copy = (kind == AVX512_BF16 && dtype == OCT_DTYPE_BF16) || (kind == AVX512_F16 && dtype == OCT_DTYPE_F16) ||
                         (kind == AVX512_F32 && dtype == OCT_DTYPE_F32);
    const avx512_by by = { _mm512_set1_ps(scale), _mm512_set1_ps(h->reciprocal != NULL ? h->reciprocal[head] : 0.0f), h->reciprocal != NULL };
    const __m512i base = is_mini && !is_scaled ? avx512_mini_base(dtype, (int32_t)(oct__f32_to_bits(scale) >> 23) - 127) : _mm512_setzero_si512();
    const bool is_far = is_words && is_mini && is_scaled && by.is_plain && avx512_is_far_bf16(&by);
    const avx512_mini_scaled scaled = way == AVX512_LOOK_UP ? h->scaled[h->is_shared ? 0 : head] : (avx512_mini_scaled){ 0 };
    __m512i largest = _mm512_setzero_si512();
    for (uint32_t d = 0; d < dim; d += 64, src += 64 * size, to += 64 * to_size) {
        __m512i raw[4], out[4];
        __m512 y[4];
        AVX512_UNROLL for (uint32_t i = 0; i < size; i++)
        {
            raw[i] = _mm512_loadu_si512(src + 64 * i);
            if (way == AVX512_DIVIDE_KNOWN) {
                continue;
            }
            largest = size == 2 ? avx512_max_words(largest, raw[i]) : _mm512_max_epi32(largest, _mm512_and_si512(raw[i], _mm512_set1_epi32(INT32_MAX)));
        }
        AVX512_UNROLL for (uint32_t i = 0; i < 4; i++)
        {
            if (is_copy || is_words) {
                out[i] = i < size ? raw[i] : _mm512_setzero_si512();
                continue;
            }
            const avx512_chunk chunk = { .at = src };
            y[i] = avx512_piece(&chunk, i, kind);
        }
        if (way == AVX512_LOOK_UP) {
            out[0] = avx512_mini_scaled64(raw, &scaled, dtype);
        } else if (is_words) {
            out[0] = !is_scaled ? avx512_mini64(raw, raw, base, dtype, false)
                     : is_far   ? avx512_far64_bf16(raw, &by, dtype)
                                : avx512_divide64_bf16(raw, &by, dtype);
        } else if (!is_copy) {
            switch (to_size) {
            case 1:
                out[0] = is_scaled ? avx512_divide64(y, &by, dtype, false) : avx512_fit64(y, NULL, base, dtype, false);
                break;
            case 2:
                out[0] = dtype == OCT_DTYPE_BF16 ? avx512_encode_bf16(y[0], y[1]) : avx512_encode_f16(y[0], y[1]);
                out[1] = dtype == OCT_DTYPE_BF16 ? avx512_encode_bf16(y[2], y[3]) : avx512_encode_f16(y[2], y[3]);
                break;
            default:
                AVX512_UNROLL for (uint32_t i = 0; i < 4; i++)
                {
                    out[i] = _mm512_castps_si512(y[i]);
                }
            }
        }
        AVX512_UNROLL for (uint32_t i = 0; i < to_size; i++)
        {
            if (is_streamed) {
                _mm512_stream_si512((__m512i *)(void *)(to + 64 * i), out[i]);
            } else {
                _mm512_storeu_si512(to + 64 * i, out[i]);
            }
        }
    }
    return size == 2 ? avx512_largest_word(largest, kind) : oct__f32_of_bits((uint32_t)_mm512_reduce_max_epi32(largest));
}

/* Encodes floats that lie one vector behind the other, dim by dim; in_pairs: as avx512_rotate_pairs leaves them. None saturates. */
AVX512_INLINE void avx512_encode_heads(const avx512_heads *h, const float *x, const bool in_pairs, const uint32_t dtype)
{
    for (uint32_t i = 0; i < h->n; i++) {
        const avx512_by by = { _mm512_set1_ps(h->scale[i]), _mm512_set1_ps(h->reciprocal != NULL ? h->reciprocal[i] : 0.0f), h->reciprocal != NULL };
        uint8_t *to = h->to + i * h->to_step;
        for (uint32_t d = 0; d < h->dim; d += 64, x += 64, to += 64) {
            const __m512 y[4] = { _mm512_load_ps(x), _mm512_load_ps(x + 16), _mm512_load_ps(x + 32), _mm512_load_ps(x + 48) };
            const __m512i codes = avx512_divide64(y, &by, dtype, in_pairs);
            if (h->is_streamed) {
                _mm512_stream_si512((__m512i *)(void *)to, codes);
            } else {
                _mm512_storeu_si512(to, codes);
            }
        }
    }
}

/* All of them. */
AVX512_INLINE void avx512_through_heads(const avx512_heads *h, const avx512_kind kind, const avx512_way way, const uint32_t dtype)
{
    for (uint32_t i = 0; i < h->n; i++) {
        const float largest = avx512_through(h, i, kind, way, dtype);
        if (way != AVX512_DIVIDE_KNOWN) {
            h->largest[i] = largest;
        }
    }
}

#endif
