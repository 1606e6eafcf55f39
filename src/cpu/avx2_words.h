/* avx2_words.h: owns the way of bf16 vectors into e4m3 and e5m2 in words, 16 to a register, where what they are divided by is a power of two; results are
 * those of avx2_encode.h. A magnitude less the exponent below the smallest normal one is the code with what follows it; a smaller one's mantissa is
 * shifted there by a product with a power of two, since AVX2 has no shift of words by words. The code is then rounded into the upper byte.
 *
 * Ladder, bf16 to e4m3 with scale 1, 8 heads of dim 128 in HND pages from DRAM, one thread of a Zen 4 (`bench_avx2 write`): by way of f32 in L1 4.4
 * elements/ns, 40 % of copying; words 5.8, 50 %.
 *
 * Threads: pure but for the bytes written. */
#ifndef OCT_CPU_AVX2_WORDS_H
#define OCT_CPU_AVX2_WORDS_H

#include "cpu/avx2_number.h"
#include "number/number.h"

/* Constants of a format whose values are divided by 2^exponent, -100 to 100. */
typedef struct avx2_words { __m256i below, smallest; } avx2_words;

AVX2_INLINE avx2_words avx2_words_of(uint32_t dtype, int32_t exponent)
{
    const int32_t bias = dtype == OCT_DTYPE_E4M3FN ? 7 : dtype == OCT_DTYPE_E4M3FNUZ ? 8 : 15;
    return (avx2_words){ _mm256_set1_epi16((int16_t)((127 - bias + exponent) << 7)), _mm256_set1_epi16((int16_t)((128 - bias + exponent) << 7)) };
}

/* Codes of 16 words, in the lower bytes; for magnitudes that saturate, any. */
AVX2_INLINE __m256i avx2_codes16(__m256i x, __m256i magnitude, const avx2_words *w, const uint32_t dtype)
{
    const int drop = dtype == OCT_DTYPE_E5M2 ? 5 : 4; /* bits behind the code's */
    const __m256i powers = _mm256_setr_epi8((char)0x80, 0x40, 0x20, 0x10, 8, 4, 2, 1, 0, 0, 0, 0, 0, 0, 0, 0, (char)0x80, 0x40, 0x20, 0x10, 8, 4, 2, 1, 0, 0, 0,
                                            0, 0, 0, 0, 0);
    const __m256i normal = _mm256_sub_epi16(magnitude, w->below);
    const __m256i mantissa = _mm256_or_si256(_mm256_and_si256(magnitude, _mm256_set1_epi16(0x7F)), _mm256_set1_epi16(0x80));
    const __m256i code = _mm256_slli_epi16(_mm256_max_epi16(normal, mantissa), 9 - drop);
    /* Binades below the smallest normal, at most 7, in the upper byte; there they look up 2^(15 - n). */
    const __m256i below = _mm256_min_epu16(_mm256_subs_epu16(w->smallest, magnitude), _mm256_set1_epi16(0x380));
    const __m256i n = _mm256_slli_epi16(_mm256_add_epi16(below, _mm256_set1_epi16(0x7F)), 1);
    const __m256i shifted = _mm256_mulhi_epu16(code, _mm256_shuffle_epi8(powers, _mm256_or_si256(n, _mm256_set1_epi16(0x80))));
    const __m256i last = _mm256_and_si256(_mm256_srli_epi16(shifted, 8), _mm256_set1_epi16(1));
    const __m256i rounded = _mm256_add_epi16(_mm256_add_epi16(shifted, _mm256_set1_epi16(0x7F)), last);
    __m256i sign = _mm256_and_si256(x, _mm256_set1_epi16(INT16_MIN));
    if (dtype == OCT_DTYPE_E4M3FNUZ) { /* what rounds to zero has none */
        sign = _mm256_and_si256(sign, _mm256_cmpgt_epi16(rounded, _mm256_set1_epi16(0xFF)));
    }
    return _mm256_srli_epi16(_mm256_or_si256(rounded, sign), 8);
}

/* Brings dim (a multiple of 32) bf16 to `to`. Returns the largest magnitude, in bits of f32: where it is not finite or its quotient saturates, the
 * caller writes the vector again. is_streamed: `to` is 32-byte aligned. */
AVX2_INLINE uint32_t avx2_words_through(uint8_t *to, const uint8_t *src, uint32_t dim, int32_t exponent, bool is_streamed, const uint32_t dtype)
{
    const avx2_words w = avx2_words_of(dtype, exponent);
    const __m256i abs = _mm256_set1_epi16(INT16_MAX);
    __m256i largest = _mm256_setzero_si256();
    for (uint32_t d = 0; d < dim; d += 32) {
        const __m256i *from = (const __m256i *)(const void *)(src + 2 * d);
        const __m256i x = _mm256_loadu_si256(from), y = _mm256_loadu_si256(from + 1), a = _mm256_and_si256(x, abs), b = _mm256_and_si256(y, abs);
        largest = _mm256_max_epi16(largest, _mm256_max_epi16(a, b));
        const __m256i packed = _mm256_packus_epi16(avx2_codes16(x, a, &w, dtype), avx2_codes16(y, b, &w, dtype));
        const __m256i codes = _mm256_permute4x64_epi64(packed, 0xD8);
        __m256i *at = (__m256i *)(void *)(to + d);
        if (is_streamed) {
            _mm256_stream_si256(at, codes);
        } else {
            _mm256_storeu_si256(at, codes);
        }
    }
    const __m128i half = _mm_max_epi16(_mm256_castsi256_si128(largest), _mm256_extracti128_si256(largest, 1)), ones = _mm_set1_epi16(-1);
    return (uint32_t)(~_mm_cvtsi128_si32(_mm_minpos_epu16(_mm_xor_si128(half, ones))) & 0xFFFF) << 16; /* the least of the others */
}

#endif
