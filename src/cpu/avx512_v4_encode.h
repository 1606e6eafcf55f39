/* avx512_v4_encode.h: owns the encoding of V in 4 bits by AVX-512, a block of 32 at a time: its scale in all lanes, quotients to whole numbers, and
 * these to codes by a table of 256 bytes (two vpermi2b).
 *
 * Threads: pure but for the bytes written. */
#ifndef OCT_CPU_AVX512_V4_ENCODE_H
#define OCT_CPU_AVX512_V4_ENCODE_H

#include "cpu/avx512_encode.h"
#include "number/i8.h"
#include "number/scale.h"

#define AVX512_V4_CODE_PLUS(c)  (uint8_t)OCT__V4_CODE(c)
#define AVX512_V4_CODE_MINUS(c) (uint8_t)OCT__V4_CODE((c) - 128)
static const _Alignas(64) uint8_t avx512_v4_plus[128] = AVX512_128(AVX512_V4_CODE_PLUS);
static const _Alignas(64) uint8_t avx512_v4_minus[128] = AVX512_128(AVX512_V4_CODE_MINUS);

/* Quotients of 16 elements to whole numbers within +-127, a byte each; adds to *saturated. */
AVX512_INLINE __m128i avx512_v4_bytes(__m512 x, __m512 scale, uint32_t *saturated)
{
    const __m512 y = _mm512_div_ps(x, scale);
    const __m512i bits = _mm512_castps_si512(avx512_abs(y));
    *saturated += (uint32_t)__builtin_popcount(_mm512_cmpgt_epi32_mask(bits, _mm512_set1_epi32((int32_t)OCT__I8_SATURATES_FROM_BITS - 1)));
    const __m512 held = _mm512_max_ps(_mm512_min_ps(y, _mm512_set1_ps(OCT__I8_MAX_F32)), _mm512_set1_ps(-OCT__I8_MAX_F32));
    return _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(held));
}

/* Encodes dim (a multiple of 32) finite floats at any alignment into dim / 32 blocks. Returns how many saturated. */
static inline uint32_t avx512_v4_encode(uint8_t *to, const float *x, uint32_t dim)
{
    uint32_t saturated = 0;
    for (uint32_t d = 0; d < dim; d += OCT__V4_BLOCK, to += OCT__V4_BLOCK_BYTES) {
        const __m512 a = _mm512_loadu_ps(x + d), b = _mm512_loadu_ps(x + d + 16);
        const __m512 amax = _mm512_set1_ps(_mm512_reduce_max_ps(_mm512_max_ps(avx512_abs(a), avx512_abs(b))));
        const __m512 exact = _mm512_max_ps(_mm512_div_ps(amax, _mm512_set1_ps(OCT__I8_MAX_F32)), _mm512_set1_ps(OCT__SCALE_FLOOR));
        __m256i half = _mm512_cvtps_ph(exact, _MM_FROUND_TO_NEAREST_INT); /* up to the next f16, at most the largest */
        half = _mm256_add_epi16(half, _mm256_maskz_mov_epi16(_mm512_cmp_ps_mask(_mm512_cvtph_ps(half), exact, _CMP_LT_OQ), _mm256_set1_epi16(1)));
        half = _mm256_min_epu16(half, _mm256_set1_epi16(0x7BFF));
        const __m512 scale = _mm512_cvtph_ps(half);
        const __m128i first = avx512_v4_bytes(a, scale, &saturated), second = avx512_v4_bytes(b, scale, &saturated);
        const __m512i bytes = _mm512_castsi256_si512(_mm256_inserti128_si256(_mm256_castsi128_si256(first), second, 1));
        const __m512i plus = _mm512_permutex2var_epi8(_mm512_load_si512(avx512_v4_plus), bytes, _mm512_load_si512(avx512_v4_plus + 64));
        const __m512i minus = _mm512_permutex2var_epi8(_mm512_load_si512(avx512_v4_minus), bytes, _mm512_load_si512(avx512_v4_minus + 64));
        const __m256i codes = _mm512_castsi512_si256(_mm512_mask_mov_epi8(plus, _mm512_movepi8_mask(bytes), minus));
        const __m128i packed = _mm_or_si128(_mm256_castsi256_si128(codes), _mm_slli_epi16(_mm256_extracti128_si256(codes, 1), 4));
        const uint16_t code = (uint16_t)_mm_extract_epi16(_mm256_castsi256_si128(half), 0);
        memcpy(to, &code, sizeof(code));
        _mm_storeu_si128((__m128i *)(void *)(to + 2), packed);
    }
    return saturated;
}

#endif
