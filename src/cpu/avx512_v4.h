/* avx512_v4.h: owns V in 4 bits as AVX-512 kernels read it, sixteen elements of a block to f32 (avx512_v4_encode.h writes it). The block's bytes become double words, of which a
 * lookup of f32 (vpermps) takes the low four bits whatever stands above, so neither half of a byte has to be masked: 5 instructions a
 * register beside the scale's two for a block.
 *
 * Threads: pure. */
#ifndef OCT_CPU_AVX512_V4_H
#define OCT_CPU_AVX512_V4_H

#include "number/v4.h"

/* The numbers as f32, by code. */
#define AVX512_V4_NUMBER(number) (float)(number),
static const _Alignas(64) float avx512_v4_numbers[16] = { OCT__V4_NUMBERS(AVX512_V4_NUMBER) };

/* Elements [0, 16) (half 0) or [16, 32) of the block at `at`: exact, a NaN where the scale is one. */
AVX512_INLINE __m512 avx512_v4_half(const uint8_t *at, const uint32_t half)
{
    const __m512i bytes = _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)(const void *)(at + 2)));
    const __m512 numbers = _mm512_permutexvar_ps(half == 0 ? bytes : _mm512_srli_epi32(bytes, 4), _mm512_load_ps(avx512_v4_numbers));
    uint16_t scale;
    memcpy(&scale, at, sizeof(scale));
    return _mm512_mul_ps(numbers, _mm512_cvtph_ps(_mm256_set1_epi16((int16_t)scale)));
}

/* Whether all scales of a row of dim elements are numbers. */
static inline bool avx512_v4_is_finite(const uint8_t *row, uint32_t dim)
{
    for (uint32_t d = 0; d < dim; d += OCT__V4_BLOCK, row += OCT__V4_BLOCK_BYTES) {
        uint16_t scale;
        memcpy(&scale, row, sizeof(scale));
        if ((scale & 0x7C00) == 0x7C00) {
            return false;
        }
    }
    return true;
}

#endif
