/* avx2_number.h: owns what AVX2 kernels do to single numbers: exact decoding of stored elements to f32, exp and tanh.
 * All functions are inlined; `dtype` must be a constant where a loop is meant to be fast.
 *
 * Decoding e4m3: the byte moved into f16's fields (sign 15, exponent and mantissa from bit 7) is the value times 2^-8 (fnuz: 2^-7), f16's
 * own subnormals included, and vcvtph2ps is exact on those on every CPU, whatever DAZ says. The power of two is left in:
 * avx2_unit() says by how much a decoded number must still be multiplied, and callers fold that into the score scale or into o.
 * NaN bytes come out as finite numbers there, so callers ask avx2_has_nan_byte() first and then take avx2_load8_nan.
 * Elements/ns, one Zen 4 core at 3.7 GHz, alone / inside a dot product with 4 q rows: this way 16.8 / 9.1; shift into f32 and multiply by
 * 2^120 12.6-15.2 / 9.0-7.4 (on a Xeon 2.4 / 0.45, it multiplies denormals); the same with 2^120 folded into q 24.7 / 10.7, but it loses
 * subnormals under DAZ and drops to 0.5 on that Xeon; blend of a separate subnormal path 9.3 / 6.9; two vpshufb tables 9.4 / 6.7;
 * gather 2.9; i8 29.0 / 11.0, bf16 28.9 / 11.1, f16 36.4 / 11.1. */
#ifndef OCT_CPU_AVX2_NUMBER_H
#define OCT_CPU_AVX2_NUMBER_H

#include <immintrin.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "octavo/kv.h"

#define AVX2_INLINE static inline __attribute__((always_inline))
/* Before a loop over an array of registers, which stay registers only if the loop is gone early enough; clang takes gcc's pragma for a
 * request to unroll late, and the array goes to the stack. */
#if defined(__clang__)
#define AVX2_UNROLL _Pragma("clang loop unroll(full)")
#else
#define AVX2_UNROLL _Pragma("GCC unroll 16")
#endif

/* ---- decoding -------------------------------------------------------------------------------------------------------- */

AVX2_INLINE size_t avx2_size(uint32_t dtype)
{
    return dtype == OCT_DTYPE_F32 ? 4 : dtype == OCT_DTYPE_F16 || dtype == OCT_DTYPE_BF16 ? 2 : 1;
}

/* value = loaded * unit, exactly. */
AVX2_INLINE float avx2_unit(uint32_t dtype)
{
    return dtype == OCT_DTYPE_E4M3FN ? 256.0f : dtype == OCT_DTYPE_E4M3FNUZ ? 128.0f : 1.0f;
}

/* Whether loading needs the NaN check below. */
AVX2_INLINE bool avx2_hides_nan(uint32_t dtype)
{
    return dtype == OCT_DTYPE_E4M3FN || dtype == OCT_DTYPE_E4M3FNUZ;
}

/* Formats that are f16 with its bits moved: kernels that read an element more than once keep those words. */
AVX2_INLINE bool avx2_is_half_of_f16(uint32_t dtype)
{
    return dtype == OCT_DTYPE_E4M3FN || dtype == OCT_DTYPE_E4M3FNUZ || dtype == OCT_DTYPE_E5M2;
}

/* The f16 words of eight such elements, in avx2_unit()s; NaN bytes of e4m3 too when `with_nan`. */
AVX2_INLINE __m128i avx2_words8(const uint8_t *at, uint32_t dtype, bool with_nan)
{
    const __m128i bytes = _mm_loadl_epi64((const __m128i *)(const void *)at);
    if (dtype == OCT_DTYPE_E5M2) {
        return _mm_unpacklo_epi8(_mm_setzero_si128(), bytes);
    }
    const __m128i wide = _mm_cvtepi8_epi16(bytes); /* the sign lands in bits 15 and 14 below, and 14 is cleared */
    const __m128i words = _mm_and_si128(_mm_slli_epi16(wide, 7), _mm_set1_epi16((short)0xBF80));
    if (!with_nan) {
        return words;
    }
    const __m128i is_nan = dtype == OCT_DTYPE_E4M3FN
                               ? _mm_cmpeq_epi16(_mm_or_si128(wide, _mm_set1_epi16((short)0xFF80)), _mm_set1_epi16(-1))
                               : _mm_cmpeq_epi16(wide, _mm_set1_epi16(-128));
    return _mm_or_si128(words, is_nan); /* all ones is a NaN of f16 */
}

/* And of sixteen. */
AVX2_INLINE __m256i avx2_words16(const uint8_t *at, uint32_t dtype)
{
    const __m128i bytes = _mm_loadu_si128((const __m128i *)(const void *)at);
    if (dtype == OCT_DTYPE_E5M2) { /* each byte becomes the upper one of a word */
        return _mm256_slli_epi16(_mm256_cvtepu8_epi16(bytes), 8);
    }
    return _mm256_and_si256(_mm256_slli_epi16(_mm256_cvtepi8_epi16(bytes), 7), _mm256_set1_epi16((short)0xBF80));
}

/* Eight elements. Reads exactly 8 * size bytes, at any alignment. */
AVX2_INLINE __m256 avx2_load8(const uint8_t *at, uint32_t dtype)
{
    const __m128i *x = (const __m128i *)(const void *)at;
    switch (dtype) {
    case OCT_DTYPE_F32:
        return _mm256_loadu_ps((const float *)(const void *)at);
    case OCT_DTYPE_F16:
        return _mm256_cvtph_ps(_mm_loadu_si128(x));
    case OCT_DTYPE_BF16:
        return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(x)), 16));
    case OCT_DTYPE_I8:
        return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(x)));
    default: /* e4m3fn, e4m3fnuz, e5m2 */
        return _mm256_cvtph_ps(avx2_words8(at, dtype, false));
    }
}

/* Sixteen elements; reads exactly 16 * size bytes. */
AVX2_INLINE void avx2_load16(const uint8_t *at, uint32_t dtype, __m256 *low, __m256 *high)
{
    if (!avx2_is_half_of_f16(dtype)) {
        *low = avx2_load8(at, dtype);
        *high = avx2_load8(at + 8 * avx2_size(dtype), dtype);
        return;
    }
    const __m256i words = avx2_words16(at, dtype);
    *low = _mm256_cvtph_ps(_mm256_castsi256_si128(words));
    *high = _mm256_cvtph_ps(_mm256_extracti128_si256(words, 1));
}

/* Gathers evidence of NaN bytes among 32 stored elements, or 8; avx2_nan_found tells. fn: 0x7F and 0xFF are the largest bytes once the
 * sign is set; fnuz: 0x80 is the only byte that is the least signed one. */
AVX2_INLINE __m256i avx2_nan_gather32(__m256i evidence, const uint8_t *at, uint32_t dtype)
{
    const __m256i bytes = _mm256_loadu_si256((const __m256i *)(const void *)at);
    return dtype == OCT_DTYPE_E4M3FN ? _mm256_max_epu8(evidence, _mm256_or_si256(bytes, _mm256_set1_epi8((char)0x80)))
                                     : _mm256_min_epi8(evidence, bytes);
}
AVX2_INLINE __m256i avx2_nan_gather8(__m256i evidence, const uint8_t *at, uint32_t dtype)
{
    const __m256i bytes = _mm256_zextsi128_si256(_mm_loadl_epi64((const __m128i *)(const void *)at));
    return dtype == OCT_DTYPE_E4M3FN ? _mm256_max_epu8(evidence, _mm256_or_si256(bytes, _mm256_set1_epi8((char)0x80)))
                                     : _mm256_min_epi8(evidence, bytes);
}

AVX2_INLINE bool avx2_nan_found(__m256i evidence, uint32_t dtype)
{
    const __m256i nan = dtype == OCT_DTYPE_E4M3FN ? _mm256_set1_epi8((char)0xFF) : _mm256_set1_epi8((char)0x80);
    return _mm256_movemask_epi8(_mm256_cmpeq_epi8(evidence, nan)) != 0;
}

/* As avx2_load8, NaN bytes of e4m3 included. Slow; only for blocks that hold one. */
AVX2_INLINE __m256 avx2_load8_nan(const uint8_t *at, uint32_t dtype)
{
    return avx2_is_half_of_f16(dtype) ? _mm256_cvtph_ps(avx2_words8(at, dtype, true)) : avx2_load8(at, dtype);
}

AVX2_INLINE __m256i avx2_abs_bits(__m256 x)
{
    return _mm256_and_si256(_mm256_castps_si256(x), _mm256_set1_epi32(0x7FFFFFFF));
}

/* ---- functions ------------------------------------------------------------------------------------------------------- */

/* e^x for x <= 0 (it holds for all x up to 88): relative error below 1.5e-7, 0 below -87.33 (e^x would be subnormal) and for -inf,
 * NaN for NaN. */
AVX2_INLINE __m256 avx2_exp(__m256 x)
{
    const __m256 n = _mm256_round_ps(_mm256_mul_ps(x, _mm256_set1_ps(1.44269504f)), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m256 r = _mm256_fnmadd_ps(n, _mm256_set1_ps(0.693359375f), x); /* ln 2 in two parts: n times the first is exact */
    r = _mm256_fnmadd_ps(n, _mm256_set1_ps(-2.12194440e-4f), r);
    __m256 y = _mm256_set1_ps(1.9875691500e-4f);
    y = _mm256_fmadd_ps(y, r, _mm256_set1_ps(1.3981999507e-3f));
    y = _mm256_fmadd_ps(y, r, _mm256_set1_ps(8.3334519073e-3f));
    y = _mm256_fmadd_ps(y, r, _mm256_set1_ps(4.1665795894e-2f));
    y = _mm256_fmadd_ps(y, r, _mm256_set1_ps(1.6666665459e-1f));
    y = _mm256_fmadd_ps(y, r, _mm256_set1_ps(5.0000001201e-1f));
    y = _mm256_fmadd_ps(y, _mm256_mul_ps(r, r), _mm256_add_ps(r, _mm256_set1_ps(1.0f)));
    /* 2^n goes straight into the exponent: y lies in [0.7, 1.5] and n >= -126 wherever the result is kept. */
    y = _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(y), _mm256_slli_epi32(_mm256_cvtps_epi32(n), 23)));
    return _mm256_andnot_ps(_mm256_cmp_ps(x, _mm256_set1_ps(-87.33f), _CMP_LT_OQ), y);
}

/* Below 0.625 an odd polynomial (relative error 2e-7), above it (1 - e) / (1 + e) with e = e^-2|x|; +-1 for +-inf, NaN for NaN. */
AVX2_INLINE __m256 avx2_tanh(__m256 x)
{
    const __m256 sign = _mm256_and_ps(x, _mm256_set1_ps(-0.0f));
    const __m256 a = _mm256_andnot_ps(_mm256_set1_ps(-0.0f), x);
    const __m256 one = _mm256_set1_ps(1.0f);
    const __m256 e = avx2_exp(_mm256_mul_ps(a, _mm256_set1_ps(-2.0f)));
    const __m256 large = _mm256_or_ps(_mm256_div_ps(_mm256_sub_ps(one, e), _mm256_add_ps(one, e)), sign);
    const __m256 square = _mm256_mul_ps(x, x);
    __m256 y = _mm256_set1_ps(-5.70498872745e-3f);
    y = _mm256_fmadd_ps(y, square, _mm256_set1_ps(2.06390887954e-2f));
    y = _mm256_fmadd_ps(y, square, _mm256_set1_ps(-5.37397155531e-2f));
    y = _mm256_fmadd_ps(y, square, _mm256_set1_ps(1.33314422036e-1f));
    y = _mm256_fmadd_ps(y, square, _mm256_set1_ps(-3.33332819422e-1f));
    const __m256 small = _mm256_fmadd_ps(_mm256_mul_ps(y, square), x, x);
    return _mm256_blendv_ps(large, small, _mm256_cmp_ps(a, _mm256_set1_ps(0.625f), _CMP_LT_OQ));
}

/* cap * tanh(s / cap). */
AVX2_INLINE __m256 avx2_softcap(__m256 s, float cap)
{
    return _mm256_mul_ps(_mm256_set1_ps(cap), avx2_tanh(_mm256_div_ps(s, _mm256_set1_ps(cap))));
}

#endif
