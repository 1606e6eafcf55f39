/* avx512_dot.h: owns what AVX-512 kernels with dot products of 16-bit pairs have in common, bf16 (vdpbf16ps) or words (vpdpwssd): how pairs lie
 * in registers.
 *
 * Scores: four keys in the four lanes of a register, eight dims each. Values: pairs are two keys of one dim. */
#ifndef OCT_CPU_AVX512_DOT_H
#define OCT_CPU_AVX512_DOT_H

#include "cpu/avx512_few.h"

/* Where byte p must come from, 0-63 of one row and 64-127 of the next, so that after the interleaving of low and high bytes (see
 * avx512_order) the first register holds pairs of dims 0-15 in order and the second those of dims 16-31. */
#define AVX512_PAIR_ORDER(p) ((((p) & 15) >= 8) * 16 + (((p) >> 4) * 4 + (((p) & 7) >> 1)) + ((p) & 1) * 64)
static const _Alignas(64) uint8_t avx512_pair_order[64] = { AVX512_64(AVX512_PAIR_ORDER, 0) };

/* The bytes of dims 0-31 and 32-63 of two rows, ready to be looked up or widened. */
AVX512_INLINE void avx512_pair_rows(__m512i a, __m512i b, __m512i *low, __m512i *high)
{
    const __m512i order = _mm512_load_si512(avx512_pair_order);
    *low = _mm512_permutex2var_epi8(a, order, b);
    *high = _mm512_permutex2var_epi8(a, _mm512_or_si512(order, _mm512_set1_epi8(32)), b);
}

/* 64 bytes of a row, or its last n < 64, zeros behind. */
AVX512_INLINE __m512i avx512_load_row(const uint8_t *at, uint32_t n, const bool is_whole)
{
    return is_whole ? _mm512_loadu_si512(at) : _mm512_maskz_loadu_epi8(((__mmask64)1 << n) - 1, at);
}

#endif
