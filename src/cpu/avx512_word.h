/* avx512_word.h: owns what the parts with integer dot products (AVX-512 VNNI) share: i8 pages, q and weights as integers.
 *
 * K: q of a vector as integers against its largest element, 16 bits with the sign. What that loses of a score has a standard deviation of at
 * most 127 k_scale score_scale unit sqrt(dim / 12), all bytes of the key being 127. Where this comes above AVX512_SCORE_ERROR, scores thousands
 * apart say, a second term brings q to 24 bits. V: the weights of a block in 15 bits against its largest one, since a tail of small weights would
 * vanish beside a large one of another block; V's dynamic scale is in them. Half a unit of each of 64 weights is 2^-10 of the largest one at most. Where the others come
 * to less than AVX512_WEIGHT_REST of the largest, that one is set apart and added by itself, and the others have the 15 bits: its V may be zeros, and they the whole result.
 * Sums are exact in int32. That holds the bound of 16-bit q and P, where a q or weights of 8 bits would not. */
#ifndef OCT_CPU_AVX512_WORD_H
#define OCT_CPU_AVX512_WORD_H

#include "cpu/avx512_dot.h"

/* Running sums as vectors of int32 and not as __m512i, whose elements are int64: gcc 12 would copy each sum before and after its dot product,
 * and spill. */
typedef int32_t avx512_sums __attribute__((vector_size(64)));
AVX512_INLINE avx512_sums avx512_no_sums(void) { return (avx512_sums)_mm512_setzero_si512(); }
AVX512_INLINE avx512_sums avx512_dot_words(avx512_sums sums, __m512i a, __m512i b) { return (avx512_sums)_mm512_dpwssd_epi32((__m512i)sums, a, b); }
AVX512_INLINE avx512_sums avx512_dot_bytes(avx512_sums sums, __m512i a, __m512i b) { return (avx512_sums)_mm512_dpbusd_epi32((__m512i)sums, a, b); }
AVX512_INLINE __m512 avx512_of_sums(avx512_sums sums) { return _mm512_cvtepi32_ps((__m512i)sums); }

/* A block whose weights are all below this adds nothing that f32 would keep. */
#define AVX512_WEIGHT_MIN 0x1p-110f
/* What the other weights of a block are of its largest, together, for it to stay among them: then the 64 half units are a hundredth of them at most. */
#define AVX512_WEIGHT_REST 0.07f

/* Two signed bytes of 256 high + low; 128 * AVX512_Q_MAX * 512 dims stays below 2^31. */
#define AVX512_Q_MAX 32639
/* Units of the second term in one of the first. */
#define AVX512_Q_REST 256
#define AVX512_SCORE_ERROR 1.5e-3f

/* Largest magnitude of a multiple of 16 floats; NaN above infinity. */
static inline float avx512_largest(const float *q, uint32_t dim)
{
    __m512i largest = _mm512_setzero_si512();
    for (uint32_t d = 0; d < dim; d += 16) {
        largest = _mm512_max_epi32(largest, _mm512_and_si512(_mm512_load_si512(q + d), _mm512_set1_epi32(INT32_MAX)));
    }
    const int32_t bits = _mm512_reduce_max_epi32(largest);
    float x;
    memcpy(&x, &bits, sizeof(x));
    return x;
}

/* 16 elements of q, scale = AVX512_Q_MAX / largest: whole units, and what is left in 256ths. */
AVX512_INLINE void avx512_whole_q(const float *q, float scale, __m512i *whole, __m512i *rest)
{
    const __m512 x = _mm512_load_ps(q), factor = _mm512_set1_ps(scale);
    *whole = _mm512_cvtps_epi32(_mm512_mul_ps(x, factor));
    const __m512 left = _mm512_fmsub_ps(x, factor, _mm512_cvtepi32_ps(*whole));
    *rest = _mm512_min_epi32(_mm512_cvtps_epi32(_mm512_mul_ps(left, _mm512_set1_ps(AVX512_Q_REST))), _mm512_set1_epi32(127));
}

/* 16 dims of two rows of i8 as pairs of words: dims [16 i, 16 i + 16) of 64. A byte goes into the upper half of its word and is shifted down. */
AVX512_INLINE __m512i avx512_pair_words(__m512i a, __m512i b, uint32_t i)
{
    const __m512i order = _mm512_set_epi32(0x4F000F00, 0x4E000E00, 0x4D000D00, 0x4C000C00, 0x4B000B00, 0x4A000A00, 0x49000900, 0x48000800, 0x47000700,
                                           0x46000600, 0x45000500, 0x44000400, 0x43000300, 0x42000200, 0x41000100, 0x40000000);
    const __m512i from = _mm512_or_si512(order, _mm512_set1_epi8((char)(16 * i)));
    return _mm512_srai_epi16(_mm512_maskz_permutex2var_epi8(UINT64_C(0xAAAAAAAAAAAAAAAA), a, from, b), 8);
}

#endif
