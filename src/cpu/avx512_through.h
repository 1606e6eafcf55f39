/* avx512_through.h: owns vectors that a write takes from the source to their page in registers: brought to f32, divided, encoded and stored 64
 * elements at a time, with their largest magnitude on the side. Results are those of avx512_encode.h.
 *
 * Ladder, 8 heads of dim 128 in NHD pages, one Zen 4 thread at 3.7 GHz, elements/ns: bf16 to e4m3 with scale 1 by way of f32 in L1 4.9, straight
 * through 5.3, all heads as one vector 5.6; with a layer scale 3.9 and 4.5; bf16 to bf16 5.9 and 12.0. What is left of e4m3 is 58 instructions for 64
 * elements. A division by five products (a reciprocal and two exact corrections, all bits right) is slower than vdivps: i8 4.0 instead of 4.8.
 *
 * Threads: pure but for the bytes written. */
#ifndef OCT_CPU_AVX512_THROUGH_H
#define OCT_CPU_AVX512_THROUGH_H

#include "cpu/avx512_encode.h"

/* The largest magnitude of a vector, as the bits of what it was given in: words of bf16 or f16, or of f32. */
AVX512_INLINE float avx512_largest_word(__m512i words, const avx512_kind kind)
{
    /* Ends below 2^15: signed maxima do. */
    const __m512i x = _mm512_max_epi32(_mm512_srli_epi32(words, 16), _mm512_and_si512(words, _mm512_set1_epi32(0xFFFF)));
    const uint32_t bits = (uint32_t)_mm512_reduce_max_epi32(x);
    if (kind == AVX512_BF16) {
        return oct__f32_of_bits(bits << 16);
    }
    return _mm512_cvtss_f32(_mm512_cvtph_ps(_mm256_set1_epi16((int16_t)bits)));
}

AVX512_INLINE __m512i avx512_max_words(__m512i largest, __m512i words)
{
    return _mm512_max_epu16(largest, _mm512_and_si512(words, _mm512_set1_epi32(0x7FFF7FFF)));
}

/* Largest magnitude of dim (a multiple of 64) source elements; infinity or NaN where there is one among them. */
AVX512_INLINE float avx512_through_largest(const uint8_t *src, uint32_t dim, const avx512_kind kind)
{
    __m512i largest = _mm512_setzero_si512();
    const uint32_t size = avx512_size(kind);
    for (uint32_t at = 0; at < dim * size; at += 64) {
        const __m512i x = _mm512_loadu_si512(src + at);
        largest = size == 2 ? avx512_max_words(largest, x) : _mm512_max_epi32(largest, _mm512_and_si512(x, _mm512_set1_epi32(INT32_MAX)));
    }
    return size == 2 ? avx512_largest_word(largest, kind) : oct__f32_of_bits((uint32_t)_mm512_reduce_max_epi32(largest));
}

/* Bytes of 64 quotients, of which x[0] and x[2] hold the even ones of each half, x[1] and x[3] the odd ones; words: the bf16 that they came from. */
AVX512_INLINE __m512i avx512_encode64_pairs(const __m512 x[4], const __m512i words[2], uint32_t dtype)
{
    const __m512i in_order = _mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7);
    __m512i codes[2];
    AVX512_UNROLL for (uint32_t i = 0; i < 2; i++)
    {
        const __m512i even = avx512_encode16(x[2 * i], dtype, false), odd = _mm512_slli_epi32(avx512_encode16(x[2 * i + 1], dtype, false), 16);
        if (dtype == OCT_DTYPE_I8) {
            codes[i] = _mm512_mask_blend_epi16(0xAAAAAAAA, even, odd);
            continue;
        }
        codes[i] = _mm512_or_si512(even, odd);
        const __m512i signs = _mm512_srli_epi16(words[i], 8), sign = _mm512_set1_epi16(0x80);
        const __m512i with_sign = _mm512_ternarylogic_epi32(codes[i], signs, sign, 0xF8); /* a | (b & c) */
        codes[i] = dtype == OCT_DTYPE_E4M3FNUZ ? _mm512_mask_mov_epi16(codes[i], _mm512_test_epi16_mask(codes[i], codes[i]), with_sign) : with_sign;
    }
    return _mm512_permutexvar_epi64(in_order, dtype == OCT_DTYPE_I8 ? _mm512_packs_epi16(codes[0], codes[1]) : _mm512_packus_epi16(codes[0], codes[1]));
}

/* Brings dim (a multiple of 64) elements of the source to `to`, divided by scale; clamps, and counts nothing. Returns the largest magnitude before the
 * division: where that is not finite, or its quotient saturates, the caller writes the vector again. is_streamed: `to` is 64-byte aligned. */
AVX512_INLINE float avx512_through(uint8_t *to, const uint8_t *src, uint32_t dim, float scale, bool is_streamed, const avx512_kind kind,
                                   const bool is_scaled, const uint32_t dtype)
{
    const uint32_t size = avx512_size(kind), to_size = dtype == OCT_DTYPE_F32 ? 4 : dtype == OCT_DTYPE_F16 || dtype == OCT_DTYPE_BF16 ? 2 : 1;
    const bool in_pairs = kind == AVX512_BF16 && to_size == 1;
    const bool is_copy = (kind == AVX512_BF16 && dtype == OCT_DTYPE_BF16) || (kind == AVX512_F16 && dtype == OCT_DTYPE_F16) || (kind == AVX512_F32 && dtype == OCT_DTYPE_F32);
    const __m512 by = _mm512_set1_ps(scale);
    __m512i largest = _mm512_setzero_si512();
    for (uint32_t d = 0; d < dim; d += 64, src += 64 * size, to += 64 * to_size) {
        __m512i raw[4], out[4];
        __m512 y[4];
        AVX512_UNROLL for (uint32_t i = 0; i < size; i++)
        {
            raw[i] = _mm512_loadu_si512(src + 64 * i);
            largest = size == 2 ? avx512_max_words(largest, raw[i]) : _mm512_max_epi32(largest, _mm512_and_si512(raw[i], _mm512_set1_epi32(INT32_MAX)));
        }
        AVX512_UNROLL for (uint32_t i = 0; i < 4; i++)
        {
            if (is_copy) {
                out[i] = i < size ? raw[i] : _mm512_setzero_si512();
                continue;
            }
            if (in_pairs) {
                y[i] = _mm512_castsi512_ps(i % 2 == 0 ? _mm512_slli_epi32(raw[i / 2], 16) : _mm512_and_si512(raw[i / 2], _mm512_set1_epi32((int32_t)0xFFFF0000)));
            } else {
                const avx512_chunk chunk = { .at = src };
                y[i] = avx512_piece(&chunk, i, kind);
            }
            y[i] = is_scaled ? _mm512_div_ps(y[i], by) : y[i];
        }
        if (!is_copy) {
            switch (to_size) {
            case 1:
                out[0] = in_pairs ? avx512_encode64_pairs(y, raw, dtype) : avx512_encode64(y, dtype, false);
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

#endif
