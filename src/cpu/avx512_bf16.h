/* avx512_bf16.h: owns what the rows with bf16 dot products (vdpbf16ps) share: q and weights in bf16.
 *
 * Products of bf16 are exact in f32 and are added up there, so a product of stored 8-bit elements, which bf16 holds exactly, with a bf16 q is
 * as good as one in f32. A q that bf16 doesn't hold goes in as the sum of two bf16 (16 bits of mantissa); weights are rounded to bf16
 * once, 2^-9 at most, which is what the bound of 16-bit P is for. vdpbf16ps takes subnormals as 0: no 8-bit element is one in bf16, but a bf16
 * cache may hold some, so these rows don't take it; and a q that comes near them, or near the largest number, goes to the f32 row. */
#ifndef OCT_CPU_AVX512_BF16_H
#define OCT_CPU_AVX512_BF16_H

#include "cpu/avx512_dot.h"

/* A block decoded for many vectors. K: [AVX512_BLOCK][k_stride] words, each row with zeros up to a multiple of 64 dims. V: [AVX512_BLOCK / 2][v_stride],
 * pairs of keys, with zeros as well; n: even. */
size_t oct__avx512_bf16_k_stride(const oct_kv_spec *spec);
size_t oct__avx512_bf16_v_stride(const oct_kv_spec *spec);
size_t oct__avx512_bf16_k_bytes(const oct_kv_spec *spec);
size_t oct__avx512_bf16_v_bytes(const oct_kv_spec *spec);
void oct__avx512_bf16_decode_k(const oct_kv_spec *spec, struct avx512_many *x, const uint8_t *const *rows, const uint8_t *const *next, uint32_t n);
void oct__avx512_bf16_decode_v(const oct_kv_spec *spec, struct avx512_many *x, const uint8_t *const *rows, const uint8_t *const *next, uint32_t n);

/* The bits of bf16 registers as integers and back. */
AVX512_INLINE __m512i avx512_of_bh(__m512bh x)
{
    __m512i y;
    memcpy(&y, &x, sizeof(y));
    return y;
}
AVX512_INLINE __m512bh avx512_to_bh(__m512i x)
{
    __m512bh y;
    memcpy(&y, &x, sizeof(y));
    return y;
}
AVX512_INLINE __m512 avx512_dot(__m512 sum, __m512i a, __m512i b) { return _mm512_dpbf16_ps(sum, avx512_to_bh(a), avx512_to_bh(b)); }

/* 32 floats in bf16, the first in the lowest word. */
AVX512_INLINE __m512i avx512_to_bf16(__m512 a, __m512 b) { return avx512_of_bh(_mm512_cvtne2ps_pbh(b, a)); }

/* 32 elements of q in bf16, and what that leaves, in bf16 too. */
AVX512_INLINE void avx512_split_q(const float *q, uint32_t n_left, __m512i *high, __m512i *low)
{
    const __m512 a = _mm512_load_ps(q), b = n_left > 16 ? _mm512_load_ps(q + 16) : _mm512_setzero_ps();
    *high = avx512_to_bf16(a, b);
    const __m512i words = *high;
    const __m512 a_high = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm512_castsi512_si256(words)), 16));
    const __m512 b_high = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm512_extracti64x4_epi64(words, 1)), 16));
    *low = avx512_to_bf16(_mm512_sub_ps(a, a_high), _mm512_sub_ps(b, b_high));
}

/* 64 codes to bf16: the words of bytes 0-7 of each lane, and of bytes 8-15. */
AVX512_INLINE void avx512_words_of(__m512i codes, const avx512_decoder *decoder, avx512_kind kind, __m512i *first, __m512i *second)
{
    __m512i low, high;
    avx512_lookup(codes, decoder, kind, &low, &high);
    *first = _mm512_unpacklo_epi8(low, high);
    *second = _mm512_unpackhi_epi8(low, high);
}

#endif
