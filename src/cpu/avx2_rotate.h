/* avx2_rotate.h: owns the rotation of a head by AVX2: number/hadamard.h with its order of operations, so with its bits, for finite numbers.
 *
 * Steps 1 to 16 happen while the source is in registers; then two steps a pass over L1, the last one with the norm and the magnitudes.
 * Dim 128 inside an f32 to i8 write, one Zen 4 core at 3.7 GHz: one step a pass 51 ns, two a pass 43 ns, this 27 ns (the encoding
 * and storing of a vector takes another 25). */
#ifndef OCT_CPU_AVX2_ROTATE_H
#define OCT_CPU_AVX2_ROTATE_H

#include "cpu/avx2_number.h"
#include "number/float_bits.h"
#include "number/hadamard.h"

/* The largest of the lanes, as float bits. */
AVX2_INLINE float avx2_largest_lane(__m256i lanes)
{
    __m128i half = _mm_max_epi32(_mm256_castsi256_si128(lanes), _mm256_extracti128_si256(lanes, 1));
    half = _mm_max_epi32(half, _mm_shuffle_epi32(half, 0x4E));
    half = _mm_max_epi32(half, _mm_shuffle_epi32(half, 0xB1));
    return oct__f32_of_bits((uint32_t)_mm_cvtsi128_si32(half));
}

/* The steps 1, 2 and 4 of number/hadamard.h inside one register: each lane adds its partner to itself, the upper of a pair to its own
 * negative. A product with +-1 is exact, so the fused operation rounds as the sum does. */
AVX2_INLINE __m256 avx2_rotate_lanes(__m256 x)
{
    x = _mm256_fmadd_ps(x, _mm256_setr_ps(1, -1, 1, -1, 1, -1, 1, -1), _mm256_permute_ps(x, 0xB1));
    x = _mm256_fmadd_ps(x, _mm256_setr_ps(1, 1, -1, -1, 1, 1, -1, -1), _mm256_permute_ps(x, 0x4E));
    return _mm256_fmadd_ps(x, _mm256_setr_ps(1, 1, 1, 1, -1, -1, -1, -1), _mm256_permute2f128_ps(x, x, 1));
}

/* Two steps at once, h and 2h, on registers h floats apart. */
AVX2_INLINE void avx2_rotate_four(__m256 *a, __m256 *b, __m256 *c, __m256 *d)
{
    const __m256 ab = _mm256_add_ps(*a, *b), a_b = _mm256_sub_ps(*a, *b);
    const __m256 cd = _mm256_add_ps(*c, *d), c_d = _mm256_sub_ps(*c, *d);
    *a = _mm256_add_ps(ab, cd);
    *b = _mm256_add_ps(a_b, c_d);
    *c = _mm256_sub_ps(ab, cd);
    *d = _mm256_sub_ps(a_b, c_d);
}

/* The steps `step` and 2 * step of a block in one pass; as the last pass also the norm, and the largest magnitude of what it writes. */
AVX2_INLINE void avx2_rotate_pass(float *x, uint32_t block, uint32_t step, const bool is_last, __m256 norm, __m256i *largest)
{
    for (uint32_t base = 0; base < block; base += 4 * step) {
        for (uint32_t i = base; i < base + step; i += 8) {
            __m256 y[4];
            AVX2_UNROLL
            for (uint32_t k = 0; k < 4; k++) {
                y[k] = _mm256_load_ps(x + i + k * step);
            }
            avx2_rotate_four(&y[0], &y[1], &y[2], &y[3]);
            AVX2_UNROLL
            for (uint32_t k = 0; k < 4; k++) {
                if (is_last) {
                    y[k] = _mm256_mul_ps(y[k], norm);
                    *largest = _mm256_max_epi32(*largest, avx2_abs_bits(y[k]));
                }
                _mm256_store_ps(x + i + k * step, y[k]);
            }
        }
    }
}

/* The last pass where one step, or none (step == block), is left. */
AVX2_INLINE void avx2_rotate_end(float *x, uint32_t block, uint32_t step, __m256 norm, __m256i *largest)
{
    const uint32_t n_half = step < block ? step : 0;
    for (uint32_t i = 0; i < n_half; i += 8) {
        const __m256 a = _mm256_load_ps(x + i), b = _mm256_load_ps(x + i + step);
        _mm256_store_ps(x + i, _mm256_add_ps(a, b));
        _mm256_store_ps(x + i + step, _mm256_sub_ps(a, b));
    }
    for (uint32_t i = 0; i < block; i += 8) {
        const __m256 y = _mm256_mul_ps(_mm256_load_ps(x + i), norm);
        *largest = _mm256_max_epi32(*largest, avx2_abs_bits(y));
        _mm256_store_ps(x + i, y);
    }
}

/* x = oct__hadamard_f32 of from, in its order of operations; x is 32-byte aligned. Returns the largest magnitude. */
static inline float avx2_rotate(float *x, const float *from, uint32_t dim)
{
    const uint32_t block = (uint32_t)oct__hadamard_block(dim);
    const __m256 norm = _mm256_set1_ps(oct__hadamard_norm(block));
    __m256i largest = _mm256_setzero_si256();
    for (float *end = x + dim; x < end; x += block, from += block) {
        uint32_t step = 8;
        if (block >= 32) { /* steps 1 to 16 while the source is in registers */
            for (uint32_t i = 0; i < block; i += 32) {
                __m256 y[4];
                AVX2_UNROLL
                for (uint32_t k = 0; k < 4; k++) {
                    y[k] = avx2_rotate_lanes(_mm256_loadu_ps(from + i + 8 * k));
                }
                avx2_rotate_four(&y[0], &y[1], &y[2], &y[3]);
                AVX2_UNROLL
                for (uint32_t k = 0; k < 4; k++) {
                    _mm256_store_ps(x + i + 8 * k, y[k]);
                }
            }
            step = 32;
        } else {
            for (uint32_t i = 0; i < block; i += 8) {
                _mm256_store_ps(x + i, avx2_rotate_lanes(_mm256_loadu_ps(from + i)));
            }
        }
        for (; 4 * step < block; step *= 4) {
            avx2_rotate_pass(x, block, step, false, norm, &largest);
        }
        if (4 * step == block) {
            avx2_rotate_pass(x, block, step, true, norm, &largest);
        } else {
            avx2_rotate_end(x, block, step, norm, &largest);
        }
    }
    return avx2_largest_lane(largest);
}

#endif
