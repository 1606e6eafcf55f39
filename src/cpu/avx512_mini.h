/* avx512_mini.h: owns the encoding of e4m3 and e5m2 by AVX-512 from words: the upper half of a binary32, its last bit set where the lower half is not
 * zero, which says all that rounding to four bits or fewer asks for. A bf16 is such a word as it is.
 *
 * Above the smallest normal number the code is the word less a base, shifted, plus 1 where what was shifted out says so: the bits beside the last place
 * and that place itself look the 1 up. Below it the code is constant between neighbouring words of few bits, 32 of them or 12, each with its own end
 * apart; these are looked up whole. A scale that is a power of two is an exponent taken from the base.
 *
 * Ladder, 64 elements from bf16: in f32, by adding the power of two whose last place is the code's, 58 instructions; words with a variable shift for
 * subnormals 33; this 19, of which six are shuffles, and 16 where no word can be an end of codes. Elements/ns are in avx512_through.h.
 *
 * Threads: pure. */
#ifndef OCT_CPU_AVX512_MINI_H
#define OCT_CPU_AVX512_MINI_H

#include "cpu/avx512_number.h"

/* Words of a format with M mantissa bits: those of [half the smallest subnormal, the smallest normal) fall into this many ranges of equal codes, ends
 * apart; the first normal code is 2^M. */
#define AVX512_MINI_DROP(M)  (7 - (M))
#define AVX512_MINI_SMALL(M) (((M) + 1) << (M))
#define AVX512_MINI_LESS(M)  (AVX512_MINI_SMALL(M) - (1 << (M)))

/* What to add, by the word's low six bits. */
#define AVX512_MINI_REST(c, M) ((c) & ((1 << AVX512_MINI_DROP(M)) - 1))
#define AVX512_MINI_ROUND(c, M)                                                                                              \
    (uint8_t)((AVX512_MINI_REST(c, M) + ((c) >> AVX512_MINI_DROP(M) & 1) > 1 << (AVX512_MINI_DROP(M) - 1)) - AVX512_MINI_LESS(M))

/* The code of a small one, by its range, and 32 where it is not the range's lower end: that end in halves of the code's unit times 2^M, rounded. */
#define AVX512_MINI_END(c, M)  (((1 << (M)) + ((c) & ((1 << (M)) - 1))) << (((c) & 31) >> (M)))
#define AVX512_MINI_CODE(e, is_above, M) (((e) + (1 << (M)) - 1 + ((is_above) | ((e) >> ((M) + 1) & 1))) >> ((M) + 1))
#define AVX512_MINI_LOW(c, M)  (uint8_t)(((c) & 31) < AVX512_MINI_SMALL(M) ? AVX512_MINI_CODE(AVX512_MINI_END(c, M), (c) >> 5, M) : 0)

#define AVX512_ROUND_3(c) AVX512_MINI_ROUND(c, 3)
#define AVX512_ROUND_2(c) AVX512_MINI_ROUND(c, 2)
#define AVX512_LOW_3(c)   AVX512_MINI_LOW(c, 3)
#define AVX512_LOW_2(c)   AVX512_MINI_LOW(c, 2)
static const _Alignas(64) uint8_t avx512_mini_round[2][64] = { { AVX512_64(AVX512_ROUND_2, 0) }, { AVX512_64(AVX512_ROUND_3, 0) } };
static const _Alignas(64) uint8_t avx512_mini_low[2][64] = { { AVX512_64(AVX512_LOW_2, 0) }, { AVX512_64(AVX512_LOW_3, 0) } };

/* The same where no word lies at an end, since it stands for numbers between it and the next, and the base is a range lower. */
#define AVX512_BETWEEN_ROUND(c, M) (uint8_t)((AVX512_MINI_REST(c, M) >> (AVX512_MINI_DROP(M) - 1)) - AVX512_MINI_LESS(M) - 1)
#define AVX512_BETWEEN_LOW(c, M)   (uint8_t)((c) == 0 ? 0 : AVX512_MINI_LOW((((c) - 1) & 31) | 32, M))
#define AVX512_BETWEEN_ROUND_3(c)  AVX512_BETWEEN_ROUND(c, 3)
#define AVX512_BETWEEN_ROUND_2(c)  AVX512_BETWEEN_ROUND(c, 2)
#define AVX512_BETWEEN_LOW_3(c)    AVX512_BETWEEN_LOW(c, 3)
#define AVX512_BETWEEN_LOW_2(c)    AVX512_BETWEEN_LOW(c, 2)
static const _Alignas(64) uint8_t avx512_between_round[2][64] = { { AVX512_64(AVX512_BETWEEN_ROUND_2, 0) }, { AVX512_64(AVX512_BETWEEN_ROUND_3, 0) } };
static const _Alignas(64) uint8_t avx512_between_low[2][64] = { { AVX512_64(AVX512_BETWEEN_LOW_2, 0) }, { AVX512_64(AVX512_BETWEEN_LOW_3, 0) } };

/* Bytes 0, 2, 4 … of two registers, and words. */
#define AVX512_EVEN(c) (2 * (c))
static const _Alignas(64) uint8_t avx512_even_bytes[64] = { AVX512_64(AVX512_EVEN, 0) };
static const _Alignas(64) uint16_t avx512_even_words[32] = { AVX512_8(AVX512_EVEN, 0), AVX512_8(AVX512_EVEN, 8), AVX512_8(AVX512_EVEN, 16),
                                                             AVX512_8(AVX512_EVEN, 24) };

AVX512_INLINE bool avx512_is_mini(uint32_t dtype) { return dtype == OCT_DTYPE_E4M3FN || dtype == OCT_DTYPE_E4M3FNUZ || dtype == OCT_DTYPE_E5M2; }

/* The word below which everything rounds to zero, once divided by 2^exponent, -100 to 100. */
AVX512_INLINE __m512i avx512_mini_base(uint32_t dtype, int32_t exponent)
{
    const int32_t man = dtype == OCT_DTYPE_E5M2 ? 2 : 3, bias = dtype == OCT_DTYPE_E4M3FN ? 7 : dtype == OCT_DTYPE_E4M3FNUZ ? 8 : 15;
    return _mm512_set1_epi16((int16_t)((127 - bias - man + exponent) << 7));
}

/* Codes of 64 words in order, of finite numbers that don't saturate, for others any; their signs are those of `signed_words`. is_between: of numbers
 * strictly between words and the next, none of which lies at an end of codes. */
AVX512_INLINE __m512i avx512_mini64(const __m512i words[2], const __m512i signed_words[2], __m512i base, const uint32_t dtype, const bool is_between)
{
    const int32_t man = dtype == OCT_DTYPE_E5M2 ? 2 : 3, t = man - 2;
    const __m512i even = _mm512_load_si512(avx512_even_bytes), odd = _mm512_or_si512(even, _mm512_set1_epi8(1));
    const __m512i abs = _mm512_set1_epi16(0x7FFF);
    base = is_between ? _mm512_sub_epi16(base, _mm512_set1_epi16((int16_t)(128 >> man))) : base;
    const __m512i a = _mm512_subs_epu16(_mm512_and_si512(words[0], abs), base), b = _mm512_subs_epu16(_mm512_and_si512(words[1], abs), base);
    const __m512i range = _mm512_permutex2var_epi8(_mm512_srli_epi16(a, (uint32_t)(7 - man)), even, _mm512_srli_epi16(b, (uint32_t)(7 - man)));
    const __m512i rest = _mm512_permutex2var_epi8(a, even, b), signs = _mm512_permutex2var_epi8(signed_words[0], odd, signed_words[1]);
    const __mmask64 is_small = _mm512_cmplt_epu8_mask(range, _mm512_set1_epi8((char)(AVX512_MINI_SMALL(man) + is_between)));
    const __mmask64 is_above = is_between ? 0 : _mm512_test_epi8_mask(rest, _mm512_set1_epi8((char)((1 << (7 - man)) - 1)));
    const __m512i low = is_between ? range : _mm512_mask_add_epi8(range, is_above, range, _mm512_set1_epi8(32));
    __m512i codes = _mm512_add_epi8(range, _mm512_permutexvar_epi8(rest, _mm512_load_si512(is_between ? avx512_between_round[t] : avx512_mini_round[t])));
    codes = _mm512_mask_permutexvar_epi8(codes, is_small, low, _mm512_load_si512(is_between ? avx512_between_low[t] : avx512_mini_low[t]));
    const __m512i with_signs = _mm512_ternarylogic_epi32(codes, signs, _mm512_set1_epi8((char)0x80), 0xF8); /* a | (b & c) */
    return dtype == OCT_DTYPE_E4M3FNUZ ? _mm512_mask_mov_epi8(codes, _mm512_test_epi8_mask(codes, codes), with_signs) : with_signs;
}

/* The upper and the lower words of two registers; the first of in_pairs has elements 0, 2, 4 … and the second the others. */
AVX512_INLINE void avx512_halves(__m512i a, __m512i b, const bool in_pairs, __m512i *upper, __m512i *lower)
{
    if (in_pairs) {
        *upper = _mm512_mask_blend_epi16(0xAAAAAAAA, _mm512_srli_epi32(a, 16), b);
        *lower = _mm512_mask_blend_epi16(0xAAAAAAAA, a, _mm512_slli_epi32(b, 16));
    } else {
        const __m512i even = _mm512_load_si512(avx512_even_words);
        *upper = _mm512_permutex2var_epi16(a, _mm512_or_si512(even, _mm512_set1_epi16(1)), b);
        *lower = _mm512_permutex2var_epi16(a, even, b);
    }
}

#endif
