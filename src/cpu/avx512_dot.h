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

/* Weights of eight keys and four vectors, words [key][vector], to avx512_pair_at's order. */
#define AVX512_PAIR_OF_FOUR(p) (((p) / 8 * 2 + (p) % 2) * 4 + (p) % 8 / 2)
static const _Alignas(64) uint16_t avx512_pairs_of_four[32] = { AVX512_8(AVX512_PAIR_OF_FOUR, 0), AVX512_8(AVX512_PAIR_OF_FOUR, 8),
                                                                AVX512_8(AVX512_PAIR_OF_FOUR, 16), AVX512_8(AVX512_PAIR_OF_FOUR, 24) };

/* ---- values: chunks of 64 dims -------------------------------------------------------------------------------------------------- */

/* What a pass over the keys takes of a chunk of 64 dims: all of it, the lower or the upper eight dims of each 16, or its first dims, in order, up to dim. */
typedef enum avx512_part { AVX512_WHOLE, AVX512_LOWER, AVX512_UPPER, AVX512_REST } avx512_part;

/* Bytes of a chunk of two rows as interleaving them leaves them, which costs a sixth of what a permutation does beside dot products: in the lower
 * register dims 0-7 of each 16, in the upper one the others. What is then widened by interleaving leaves o in an order of its own. */
AVX512_INLINE void avx512_interleave(__m512i a, __m512i b, const avx512_part part, __m512i *lower, __m512i *upper)
{
    *lower = part == AVX512_UPPER ? _mm512_unpackhi_epi8(a, b) : _mm512_unpacklo_epi8(a, b); /* a half: the first register has it */
    *upper = _mm512_unpackhi_epi8(a, b);
}

/* Puts whole chunks of o in order: in each, the four dims that begin at 4 i of every 16 lie together, which is the transpose of 4 x 4 lanes. */
static inline void avx512_put_in_order(float *o, uint32_t dim)
{
    for (uint32_t d = 0; d + 64 <= dim; d += 64, o += 64) {
        const __m512 a = _mm512_load_ps(o), b = _mm512_load_ps(o + 16), c = _mm512_load_ps(o + 32), e = _mm512_load_ps(o + 48);
        const __m512 ab = _mm512_shuffle_f32x4(a, b, 0x44), ab_high = _mm512_shuffle_f32x4(a, b, 0xEE);
        const __m512 ce = _mm512_shuffle_f32x4(c, e, 0x44), ce_high = _mm512_shuffle_f32x4(c, e, 0xEE);
        _mm512_store_ps(o, _mm512_shuffle_f32x4(ab, ce, 0x88));
        _mm512_store_ps(o + 16, _mm512_shuffle_f32x4(ab, ce, 0xDD));
        _mm512_store_ps(o + 32, _mm512_shuffle_f32x4(ab_high, ce_high, 0x88));
        _mm512_store_ps(o + 48, _mm512_shuffle_f32x4(ab_high, ce_high, 0xDD));
    }
}

#endif
