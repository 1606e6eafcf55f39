/* avx512_rotate.h: owns the Hadamard transform by AVX-512, in the order of operations of number/hadamard.h and so with its bits. */
#ifndef OCT_CPU_AVX512_ROTATE_H
#define OCT_CPU_AVX512_ROTATE_H

#include "cpu/avx512_encode.h"
#include "number/hadamard.h"

/* One step inside a register: each lane adds its partner, the upper of a pair its own negative. The product with 1 or -1 is exact, so the
 * fused operation rounds like an addition. */
#define AVX512_STEP(x, partner, s) _mm512_fmadd_ps(x, s, partner)

/* The steps 1, 2 and 4, and 8 where a block has 16. */
AVX512_INLINE __m512 avx512_rotate_lanes(__m512 x, bool has_8)
{
    const __m512 s1 = _mm512_setr_ps(1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1);
    const __m512 s2 = _mm512_setr_ps(1, 1, -1, -1, 1, 1, -1, -1, 1, 1, -1, -1, 1, 1, -1, -1);
    const __m512 s4 = _mm512_setr_ps(1, 1, 1, 1, -1, -1, -1, -1, 1, 1, 1, 1, -1, -1, -1, -1);
    const __m512 s8 = _mm512_setr_ps(1, 1, 1, 1, 1, 1, 1, 1, -1, -1, -1, -1, -1, -1, -1, -1);
    x = AVX512_STEP(x, _mm512_shuffle_ps(x, x, 0xB1), s1);
    x = AVX512_STEP(x, _mm512_shuffle_ps(x, x, 0x4E), s2);
    x = AVX512_STEP(x, _mm512_shuffle_f32x4(x, x, 0xB1), s4);
    return has_8 ? AVX512_STEP(x, _mm512_shuffle_f32x4(x, x, 0x4E), s8) : x;
}

/* The steps 1, 2, 4 and 8 in each of n registers, at most 8: with what they are exchanged with and constants these are two thirds of all registers. Step by
 * step, since register by register the schedulers fill with chains that wait for themselves: 1 % of a write. */
AVX512_INLINE void avx512_rotate_lanes_of(__m512 *x, const uint32_t n)
{
    const __m512 s1 = _mm512_setr_ps(1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1);
    const __m512 s2 = _mm512_setr_ps(1, 1, -1, -1, 1, 1, -1, -1, 1, 1, -1, -1, 1, 1, -1, -1);
    const __m512 s4 = _mm512_setr_ps(1, 1, 1, 1, -1, -1, -1, -1, 1, 1, 1, 1, -1, -1, -1, -1);
    const __m512 s8 = _mm512_setr_ps(1, 1, 1, 1, 1, 1, 1, 1, -1, -1, -1, -1, -1, -1, -1, -1);
    AVX512_UNROLL for (uint32_t i = 0; i < n; i++) { x[i] = AVX512_STEP(x[i], _mm512_shuffle_ps(x[i], x[i], 0xB1), s1); }
    AVX512_UNROLL for (uint32_t i = 0; i < n; i++) { x[i] = AVX512_STEP(x[i], _mm512_shuffle_ps(x[i], x[i], 0x4E), s2); }
    AVX512_UNROLL for (uint32_t i = 0; i < n; i++) { x[i] = AVX512_STEP(x[i], _mm512_shuffle_f32x4(x[i], x[i], 0xB1), s4); }
    AVX512_UNROLL for (uint32_t i = 0; i < n; i++) { x[i] = AVX512_STEP(x[i], _mm512_shuffle_f32x4(x[i], x[i], 0x4E), s8); }
}

/* The steps between registers, from those that lie first registers apart, and the result stored. Gathers the largest magnitude's bits. */
AVX512_INLINE __m512i avx512_rotate_registers(float *to, __m512 *x, __m512 norm, __m512i largest, const uint32_t first, const uint32_t n)
{
    AVX512_UNROLL for (uint32_t step = first; step < n; step *= 2)
    {
        AVX512_UNROLL for (uint32_t i = 0; i < n; i++)
        {
            if ((i & step) == 0) {
                const __m512 a = x[i], b = x[i + step];
                x[i] = _mm512_add_ps(a, b);
                x[i + step] = _mm512_sub_ps(a, b);
            }
        }
    }
    AVX512_UNROLL for (uint32_t i = 0; i < n; i++)
    {
        x[i] = _mm512_mul_ps(x[i], norm);
        _mm512_store_ps(to + 16 * i, x[i]);
        largest = _mm512_max_epi32(largest, _mm512_castps_si512(avx512_abs(x[i])));
    }
    return largest;
}

/* A block of n registers, all at once. Gathers the largest magnitude's bits. */
AVX512_INLINE __m512i avx512_rotate_block(float *to, const uint8_t *from, __m512 norm, __m512i largest, const uint32_t n, const avx512_kind kind)
{
    const avx512_chunk source = { .at = from };
    __m512 x[16];
    AVX512_UNROLL for (uint32_t i = 0; i < n; i++)
    {
        x[i] = avx512_rotate_lanes(avx512_piece(&source, i, kind), true);
    }
    return avx512_rotate_registers(to, x, norm, largest, 1, n);
}

/* The same of bf16, whose words need no shuffle to become floats where the even elements go to one register and the odd ones to the next: of each 32
 * of the result the even elements come first. The first step lies between registers then, and the others are as they were. n: even. */
AVX512_INLINE __m512i avx512_rotate_pairs(float *to, const uint8_t *from, __m512 norm, __m512i largest, const uint32_t n)
{
    __m512 x[16];
    AVX512_UNROLL for (uint32_t i = 0; i < n; i += 2)
    {
        const __m512i words = _mm512_loadu_si512(from + 32 * i);
        const __m512 even = _mm512_castsi512_ps(_mm512_slli_epi32(words, 16));
        const __m512 odd = _mm512_castsi512_ps(_mm512_and_si512(words, _mm512_set1_epi32((int32_t)0xFFFF0000)));
        x[i] = _mm512_add_ps(even, odd);
        x[i + 1] = _mm512_sub_ps(even, odd);
        if (i % 8 == 6 || i + 2 == n) {
            avx512_rotate_lanes_of(x + i / 8 * 8, n < 8 ? n : 8);
        }
    }
    return avx512_rotate_registers(to, x, norm, largest, 2, n);
}

/* Blocks of n registers. */
AVX512_INLINE __m512i avx512_rotate_blocks(float *to, const uint8_t *from, uint32_t dim, const uint32_t n, __m512 norm, const avx512_kind kind)
{
    __m512i largest = _mm512_setzero_si512();
    for (uint32_t at = 0; at < dim; at += 16 * n) {
        const uint8_t *source = from + at * avx512_size(kind);
        largest = kind == AVX512_BF16 ? avx512_rotate_pairs(to + at, source, norm, largest, n) : avx512_rotate_block(to + at, source, norm, largest, n, kind);
    }
    return largest;
}

/* Maxima over lanes of 16 registers, each in its own lane. */
AVX512_INLINE __m512i avx512_largest16(const __m512i *x)
{
    __m512i y[4];
    AVX512_UNROLL for (uint32_t i = 0; i < 4; i++)
    {
        const __m512i a = x[4 * i], b = x[4 * i + 1], c = x[4 * i + 2], d = x[4 * i + 3];
        const __m512i ab = _mm512_max_epi32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
        const __m512i cd = _mm512_max_epi32(_mm512_unpacklo_epi32(c, d), _mm512_unpackhi_epi32(c, d));
        y[i] = _mm512_max_epi32(_mm512_unpacklo_epi64(ab, cd), _mm512_unpackhi_epi64(ab, cd));
    }
    const __m512i low = _mm512_max_epi32(_mm512_shuffle_i32x4(y[0], y[1], 0x88), _mm512_shuffle_i32x4(y[0], y[1], 0xDD));
    const __m512i high = _mm512_max_epi32(_mm512_shuffle_i32x4(y[2], y[3], 0x88), _mm512_shuffle_i32x4(y[2], y[3], 0xDD));
    return _mm512_max_epi32(_mm512_shuffle_i32x4(low, high, 0x88), _mm512_shuffle_i32x4(low, high, 0xDD));
}

/* n <= 16 vectors of dim, a multiple of 64 whose block is at most 256, each to `to` + its number times dim; bf16 in pairs. Returns their largest
 * magnitudes, 0 past n. */
AVX512_INLINE __m512 avx512_rotate_heads(float *to, const uint8_t *from, int64_t step, uint32_t n, uint32_t dim, const avx512_kind kind)
{
    const uint32_t block = (uint32_t)oct__hadamard_block(dim);
    const __m512 norm = _mm512_set1_ps(oct__hadamard_norm(block));
    __m512i largest[16];
    for (uint32_t i = 0; i < n; i++, to += dim, from += step) {
        largest[i] = block == 64    ? avx512_rotate_blocks(to, from, dim, 4, norm, kind)
                     : block == 128 ? avx512_rotate_blocks(to, from, dim, 8, norm, kind)
                                    : avx512_rotate_blocks(to, from, dim, 16, norm, kind);
    }
    for (uint32_t i = n; i < 16; i++) {
        largest[i] = _mm512_setzero_si512();
    }
    return _mm512_castsi512_ps(avx512_largest16(largest));
}

/* to = the transform of from[dim], dim a multiple of 8; to: 64-byte aligned, room for dim rounded up to 16. Returns the largest magnitude of
 * the result, infinity or NaN when there is one among them or in the source. */
AVX512_INLINE float avx512_rotate(float *to, const uint8_t *from, uint32_t dim, const avx512_kind kind)
{
    const size_t size = avx512_size(kind);
    const uint32_t block = (uint32_t)oct__hadamard_block(dim);
    const __m512 norm = _mm512_set1_ps(oct__hadamard_norm(block));
    __m512i largest = _mm512_setzero_si512();
    for (uint32_t at = 0; at < dim; at += block < 16 ? 16 : block) {
        switch (block) {
        case 8: { /* two blocks in a register; perhaps one in the last */
            const avx512_chunk source = { .at = from + at * size };
            const __m512 x = avx512_piece_some(&source, 0, dim - at, kind);
            const __m512 y = _mm512_mul_ps(avx512_rotate_lanes(x, false), norm);
            _mm512_store_ps(to + at, y);
            largest = _mm512_max_epi32(largest, _mm512_castps_si512(avx512_abs(y)));
            break;
        }
        case 16:
            largest = avx512_rotate_block(to + at, from + at * size, norm, largest, 1, kind);
            break;
        case 32:
            largest = avx512_rotate_block(to + at, from + at * size, norm, largest, 2, kind);
            break;
        case 64:
            largest = avx512_rotate_block(to + at, from + at * size, norm, largest, 4, kind);
            break;
        case 128:
            largest = avx512_rotate_block(to + at, from + at * size, norm, largest, 8, kind);
            break;
        case 256:
            largest = avx512_rotate_block(to + at, from + at * size, norm, largest, 16, kind);
            break;
        default: { /* 512: two halves without their norm, then the last step */
            const __m512 one = _mm512_set1_ps(1.0f);
            (void)avx512_rotate_block(to, from, one, largest, 16, kind);
            (void)avx512_rotate_block(to + 256, from + 256 * size, one, largest, 16, kind);
            for (uint32_t d = 0; d < 256; d += 16) {
                const __m512 a = _mm512_load_ps(to + d), b = _mm512_load_ps(to + 256 + d);
                const __m512 sum = _mm512_mul_ps(_mm512_add_ps(a, b), norm), difference = _mm512_mul_ps(_mm512_sub_ps(a, b), norm);
                _mm512_store_ps(to + d, sum);
                _mm512_store_ps(to + 256 + d, difference);
                largest = _mm512_max_epi32(largest, _mm512_castps_si512(avx512_abs(sum)));
                largest = _mm512_max_epi32(largest, _mm512_castps_si512(avx512_abs(difference)));
            }
        }
        }
    }
    return oct__f32_of_bits((uint32_t)_mm512_reduce_max_epi32(largest));
}

#endif
