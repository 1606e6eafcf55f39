/* avx2_v4.h: owns V in 4 bits in AVX2 kernels: blocks to f32, once for all vectors of a tile, and finite f32 to blocks. Codes become numbers by a table
 * of bytes (vpshufb); numbers become codes by counting the fifteen bounds that they have reached, 32 at a time.
 *
 * Threads: pure but for what is written. */
#ifndef OCT_CPU_AVX2_V4_H
#define OCT_CPU_AVX2_V4_H

#include <string.h>

#include "cpu/avx2_number.h"
#include "number/i8.h"
#include "number/scale.h"
#include "number/v4.h"

#define AVX2_V4_NUMBER(number) (int8_t)(number),
static const _Alignas(16) int8_t avx2_v4_numbers[16] = { OCT__V4_NUMBERS(AVX2_V4_NUMBER) };

/* 16 numbers times a scale: exact, a NaN where it is one. */
AVX2_INLINE void avx2_v4_store(float *to, __m128i codes, __m256 scale)
{
    const __m128i numbers = _mm_shuffle_epi8(_mm_load_si128((const __m128i *)(const void *)avx2_v4_numbers), codes);
    _mm256_storeu_ps(to, _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(numbers)), scale));
    _mm256_storeu_ps(to + 8, _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(numbers, 8))), scale));
}

/* n rows of dim elements (a multiple of 32) to f32 rows that are `stride` floats apart. */
static inline void avx2_v4_decode(float *to, size_t stride, const uint8_t *const *rows, uint32_t n, uint32_t dim)
{
    const __m128i low = _mm_set1_epi8(15);
    for (uint32_t j = 0; j < n; j++, to += stride) {
        const uint8_t *at = rows[j];
        for (uint32_t d = 0; d < dim; d += OCT__V4_BLOCK, at += OCT__V4_BLOCK_BYTES) {
            uint16_t half;
            memcpy(&half, at, sizeof(half));
            const __m256 scale = _mm256_set1_ps(_cvtsh_ss(half));
            const __m128i bytes = _mm_loadu_si128((const __m128i *)(const void *)(at + 2));
            avx2_v4_store(to + d, _mm_and_si128(bytes, low), scale);
            avx2_v4_store(to + d + 16, _mm_and_si128(_mm_srli_epi16(bytes, 4), low), scale);
        }
    }
}

/* Quotients of 16 elements to whole numbers within +-127, a byte each; adds to *saturated. */
AVX2_INLINE __m128i avx2_v4_bytes(const __m256 x[2], __m256 scale, uint32_t *saturated)
{
    __m128i words[2];
    AVX2_UNROLL
    for (uint32_t i = 0; i < 2; i++) {
        const __m256 y = _mm256_div_ps(x[i], scale);
        const __m256i beyond = _mm256_cmpgt_epi32(avx2_abs_bits(y), _mm256_set1_epi32((int32_t)OCT__I8_SATURATES_FROM_BITS - 1));
        *saturated += (uint32_t)__builtin_popcount((uint32_t)_mm256_movemask_ps(_mm256_castsi256_ps(beyond)));
        const __m256 held = _mm256_max_ps(_mm256_min_ps(y, _mm256_set1_ps(OCT__I8_MAX_F32)), _mm256_set1_ps(-OCT__I8_MAX_F32));
        const __m256i whole = _mm256_cvtps_epi32(held);
        words[i] = _mm_packs_epi32(_mm256_castsi256_si128(whole), _mm256_extracti128_si256(whole, 1));
    }
    return _mm_packs_epi16(words[0], words[1]);
}

/* Encodes dim (a multiple of 32) finite floats at any alignment into dim / 32 blocks. Returns how many saturated. */
static inline uint32_t avx2_v4_encode(uint8_t *to, const float *x, uint32_t dim)
{
    static const int8_t bounds[15] = { -108, -83, -64, -48, -33, -19, -6, 6, 17, 29, 42, 56, 72, 90, 112 }; /* as OCT__V4_CODE has them */
    uint32_t saturated = 0;
    for (uint32_t d = 0; d < dim; d += OCT__V4_BLOCK, to += OCT__V4_BLOCK_BYTES) {
        const __m256 a[2] = { _mm256_loadu_ps(x + d), _mm256_loadu_ps(x + d + 8) }, b[2] = { _mm256_loadu_ps(x + d + 16), _mm256_loadu_ps(x + d + 24) };
        const __m256i most = _mm256_max_epi32(_mm256_max_epi32(avx2_abs_bits(a[0]), avx2_abs_bits(a[1])), _mm256_max_epi32(avx2_abs_bits(b[0]), avx2_abs_bits(b[1])));
        __m128i largest = _mm_max_epi32(_mm256_castsi256_si128(most), _mm256_extracti128_si256(most, 1));
        largest = _mm_max_epi32(largest, _mm_shuffle_epi32(largest, 0x4E));
        largest = _mm_max_epi32(largest, _mm_shuffle_epi32(largest, 0xB1));
        const float quotient = oct__f32_of_bits((uint32_t)_mm_cvtsi128_si32(largest)) / OCT__I8_MAX_F32, exact = quotient > OCT__SCALE_FLOOR ? quotient : OCT__SCALE_FLOOR;
        uint16_t half = _cvtss_sh(exact, _MM_FROUND_TO_NEAREST_INT); /* up to the next f16, at most the largest */
        half = (uint16_t)(half + (_cvtsh_ss(half) < exact));
        half = half > 0x7BFF ? 0x7BFF : half;
        const __m256 scale = _mm256_set1_ps(_cvtsh_ss(half));
        const __m128i first = avx2_v4_bytes(a, scale, &saturated), second = avx2_v4_bytes(b, scale, &saturated);
        const __m256i bytes = _mm256_inserti128_si256(_mm256_castsi128_si256(first), second, 1);
        __m256i codes = _mm256_set1_epi8(9);
        AVX2_UNROLL
        for (uint32_t i = 0; i < 15; i++) {
            codes = _mm256_sub_epi8(codes, _mm256_cmpgt_epi8(bytes, _mm256_set1_epi8((char)(bounds[i] - 1))));
        }
        codes = _mm256_and_si256(codes, _mm256_set1_epi8(15));
        memcpy(to, &half, sizeof(half));
        _mm_storeu_si128((__m128i *)(void *)(to + 2), _mm_or_si128(_mm256_castsi256_si128(codes), _mm_slli_epi16(_mm256_extracti128_si256(codes, 1), 4)));
    }
    return saturated;
}

#endif
