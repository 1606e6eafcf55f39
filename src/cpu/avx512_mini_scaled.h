/* avx512_mini_scaled.h: owns the encoding of bf16 over a scale that many of them share into e4m3 and e5m2 by AVX-512, in tables made once for the scale.
 *
 * A quotient's code depends on the word of the element alone, and far from zero on little of it: one exponent further on it is the same code one exponent
 * further on. So the word less a base, shifted, plus what its seven mantissa bits look up, is the code; avx512_mini.h has the same with a step of 0 or 1.
 * Near zero, where codes are a fixed distance apart, words that share their upper bits (a range) have one code or two, since a range is no wider than the
 * distance: the lower one and the last word that has it are looked up by range. Tables are filled by avx512_divide64_bf16, so their codes are its codes.
 *
 * Making one takes 18 times 64 quotients (e5m2 34). Figures are in avx512_through.h. Threads: pure. */
#ifndef OCT_CPU_AVX512_MINI_SCALED_H
#define OCT_CPU_AVX512_MINI_SCALED_H

#include "cpu/avx512_encode.h"

/* Registers, so that a copy of it stays in them beside stores to pages. */
typedef struct avx512_mini_scaled {
    __m512i step[2];      /* by mantissa: what to add to a range */
    __m512i code, last;   /* by range: the lower code, and the last byte of a word less base that has it */
    __m512i base, smalls; /* ranges below are near zero */
} avx512_mini_scaled;

/* Whether tables can be made for a scale: none of their words leaves the normal numbers. */
AVX512_INLINE bool avx512_is_scalable(float scale) { return scale > 0x1p-100f && scale < 0x1p100f; }

AVX512_INLINE void avx512_mini_scaled_make(avx512_mini_scaled *to, float scale, const uint32_t dtype)
{
    const uint32_t man = dtype == OCT_DTYPE_E5M2 ? 2 : 3, n_low = 128u >> man, bits = oct__f32_to_bits(scale);
    const avx512_by by = avx512_by_scale(scale);
    const __m512i zero = _mm512_setzero_si512(), base = avx512_mini_base(dtype, (int32_t)(bits >> 23) - 127);
    _Alignas(64) uint16_t counted[64]; /* 0, 1, 2 … */
    for (uint32_t i = 0; i < 64; i++) {
        counted[i] = (uint16_t)i;
    }
    const __m512i first = _mm512_load_si512(counted), second = _mm512_load_si512(counted + 32);
    for (uint32_t half = 0; half < 2; half++) { /* of all mantissas, at an exponent whose codes are all normal */
        const __m512i at = _mm512_set1_epi16((int16_t)(((man + 2) << 7) + 64 * half));
        const __m512i a = _mm512_add_epi16(first, at), b = _mm512_add_epi16(second, at);
        const __m512i words[2] = { _mm512_add_epi16(a, base), _mm512_add_epi16(b, base) };
        const __m512i range = _mm512_permutex2var_epi8(_mm512_srli_epi16(a, 7 - man), _mm512_load_si512(avx512_even_bytes), _mm512_srli_epi16(b, 7 - man));
        to->step[half] = _mm512_sub_epi8(avx512_divide64_bf16(words, &by, dtype), range);
    }
    __m512i lower = zero, n_upper = zero;
    for (uint32_t low = 0; low < n_low; low++) {
        const __m512i at = _mm512_add_epi16(base, _mm512_set1_epi16((int16_t)low));
        const __m512i words[2] = { _mm512_add_epi16(_mm512_slli_epi16(first, 7 - man), at), _mm512_add_epi16(_mm512_slli_epi16(second, 7 - man), at) };
        const __m512i codes = avx512_divide64_bf16(words, &by, dtype);
        lower = low == 0 ? codes : lower;
        n_upper = _mm512_add_epi8(n_upper, _mm512_sub_epi8(codes, lower));
    }
    const __m512i starts = _mm512_permutex2var_epi8(_mm512_slli_epi16(first, 7 - man), _mm512_load_si512(avx512_even_bytes), _mm512_slli_epi16(second, 7 - man));
    to->code = lower;
    to->last = _mm512_sub_epi8(_mm512_add_epi8(starts, _mm512_set1_epi8((char)(n_low - 1))), n_upper);
    to->base = base;
    /* The first range from the smallest normal number on: the scale's mantissa, rounded up to ranges, four or three exponents above the base. */
    to->smalls = _mm512_set1_epi8((char)(((man + 1) << man) + (((bits & 0x7FFFFF) + ((1u << (23 - man)) - 1)) >> (23 - man))));
}

/* Codes of 64 bf16 in order, whose quotients are finite and don't saturate; for others any. */
AVX512_INLINE __m512i avx512_mini_scaled64(const __m512i raw[2], const avx512_mini_scaled *by, const uint32_t dtype)
{
    const uint32_t man = dtype == OCT_DTYPE_E5M2 ? 2 : 3;
    const __m512i even = _mm512_load_si512(avx512_even_bytes), odd = _mm512_or_si512(even, _mm512_set1_epi8(1));
    const __m512i abs = _mm512_set1_epi32(0x7FFF7FFF);
    const __m512i a = _mm512_subs_epu16(_mm512_and_si512(raw[0], abs), by->base), b = _mm512_subs_epu16(_mm512_and_si512(raw[1], abs), by->base);
    const __m512i range = _mm512_permutex2var_epi8(_mm512_srli_epi16(a, 7 - man), even, _mm512_srli_epi16(b, 7 - man));
    const __m512i rest = _mm512_permutex2var_epi8(a, even, b), signs = _mm512_permutex2var_epi8(raw[0], odd, raw[1]);
    const __mmask64 is_small = _mm512_cmplt_epu8_mask(range, by->smalls);
    const __mmask64 is_upper = is_small & _mm512_cmplt_epu8_mask(_mm512_permutexvar_epi8(range, by->last), rest);
    __m512i codes = _mm512_add_epi8(range, _mm512_permutex2var_epi8(by->step[0], rest, by->step[1]));
    codes = _mm512_mask_permutexvar_epi8(codes, is_small, range, by->code);
    codes = _mm512_mask_add_epi8(codes, is_upper, codes, _mm512_set1_epi8(1));
    const __m512i with_signs = _mm512_ternarylogic_epi32(codes, signs, _mm512_set1_epi8((char)0x80), 0xF8); /* a | (b & c) */
    return dtype == OCT_DTYPE_E4M3FNUZ ? _mm512_mask_mov_epi8(codes, _mm512_test_epi8_mask(codes, codes), with_signs) : with_signs;
}

#endif
