/* avx512_encode.h: owns the encoding of finite f32 vectors into stored elements by AVX-512: round to nearest even, saturating, subnormals
 * kept, bit for bit what number/ defines. NaN and infinity never come here (kv_write_avx512.c sends such tokens to the scalar row); a
 * quotient may still overflow to infinity.
 *
 * 8-bit codes come from words: e4m3's and e5m2's of avx512_mini.h, i8's from quotients in fixed point, 16 bits behind the point. Where something
 * may saturate, magnitudes are clamped to the largest finite value first, which is right because everything between it and the first magnitude
 * that saturates rounds to it.
 *
 * A quotient is rounded to f32 before it is rounded to its code. Dividing 16 takes 6 cycles; a product with the reciprocal is at most three units away,
 * so where no product of 64 comes that close to where codes change, its codes are the quotient's; else the 64 are divided. Of bf16 a scale says by itself
 * whether any could come that close to an end of e4m3 or e5m2; where one could, and for i8, two more fused operations make the product the quotient: with
 * all 2^30 pairs of mantissas they did. */
#ifndef OCT_CPU_AVX512_ENCODE_H
#define OCT_CPU_AVX512_ENCODE_H

#include "cpu/avx512_mini.h"
#include "number/number.h"

/* What the elements are divided by before they are rounded. FIT: the caller knows that no quotient saturates, which it sees from the
 * largest one; then nothing is clamped or counted. */
typedef enum avx512_divisor { AVX512_FIT_NONE, AVX512_FIT_ONE, AVX512_DIVIDE_NONE, AVX512_DIVIDE_ONE, AVX512_DIVIDE_EACH } avx512_divisor;

AVX512_INLINE __m512 avx512_abs(__m512 x)
{
    return _mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32(INT32_MAX)));
}

AVX512_INLINE float avx512_largest(uint32_t dtype)
{
    switch (dtype) {
    case OCT_DTYPE_E4M3FN:
        return OCT__E4M3FN_MAX_F32;
    case OCT_DTYPE_E4M3FNUZ:
        return OCT__E4M3FNUZ_MAX_F32;
    case OCT_DTYPE_E5M2:
        return OCT__E5M2_MAX_F32;
    default:
        return OCT__I8_MAX_F32;
    }
}

/* binary32 bits of the least magnitude that rounds beyond the largest finite value. */
AVX512_INLINE int32_t avx512_saturates_from(uint32_t dtype)
{
    switch (dtype) {
    case OCT_DTYPE_E4M3FN:
        return (int32_t)OCT__E4M3FN_SATURATES_FROM_BITS;
    case OCT_DTYPE_E4M3FNUZ:
        return (int32_t)OCT__E4M3FNUZ_SATURATES_FROM_BITS;
    case OCT_DTYPE_E5M2:
        return (int32_t)OCT__E5M2_SATURATES_FROM_BITS;
    case OCT_DTYPE_I8:
        return (int32_t)OCT__I8_SATURATES_FROM_BITS;
    case OCT_DTYPE_BF16:
        return (int32_t)OCT__BF16_SATURATES_FROM_BITS;
    case OCT_DTYPE_F16:
        return (int32_t)OCT__F16_SATURATES_FROM_BITS;
    default:
        return (int32_t)OCT__F32_INF_BITS;
    }
}

/* What 64 elements are divided by. */
typedef struct avx512_by {
    __m512 scale, reciprocal;
    bool is_plain;            /* the reciprocal may serve */
} avx512_by;

/* Whether reciprocals of the first n scales may serve, and these reciprocals. */
AVX512_INLINE bool avx512_reciprocals(__m512 scales, uint32_t n, __m512 *reciprocals)
{
    const uint32_t asked = (1u << n) - 1;
    *reciprocals = _mm512_div_ps(_mm512_set1_ps(1.0f), scales);
    return (asked & _mm512_cmp_ps_mask(scales, _mm512_set1_ps(0x1p-60f), _CMP_GE_OQ) & _mm512_cmp_ps_mask(scales, _mm512_set1_ps(0x1p60f), _CMP_LE_OQ)) == asked;
}

AVX512_INLINE avx512_by avx512_by_scale(float scale)
{
    avx512_by by = { .scale = _mm512_set1_ps(scale) };
    by.is_plain = avx512_reciprocals(by.scale, 1, &by.reciprocal);
    return by;
}

/* Lower words within three units of 0. */
AVX512_INLINE bool avx512_is_near(__m512i a, __m512i b)
{
    const __m512i three = _mm512_set1_epi16(3), six = _mm512_set1_epi16(6);
    return (_mm512_cmple_epu16_mask(_mm512_add_epi16(a, three), six) | _mm512_cmple_epu16_mask(_mm512_add_epi16(b, three), six)) != 0;
}

/* Codes of 64 quotients that don't saturate; base: avx512_mini_base, which may divide them. raw: words with their signs, or
 * NULL. in_pairs: x[0] and x[2] hold the even ones of each half, x[1] and x[3] the odd ones. */
AVX512_INLINE __m512i avx512_fit64(const __m512 x[4], const __m512i *raw, __m512i base, const uint32_t dtype, const bool in_pairs)
{
    __m512i words[2], rest[2];
    if (dtype == OCT_DTYPE_I8) { /* the conversion rounds to nearest even */
        avx512_halves(_mm512_cvtps_epi32(x[0]), _mm512_cvtps_epi32(x[1]), in_pairs, &rest[0], &words[0]);
        avx512_halves(_mm512_cvtps_epi32(x[2]), _mm512_cvtps_epi32(x[3]), in_pairs, &rest[1], &words[1]);
        return _mm512_permutex2var_epi8(words[0], _mm512_load_si512(avx512_even_bytes), words[1]);
    }
    AVX512_UNROLL for (uint32_t i = 0; i < 2; i++)
    {
        avx512_halves(_mm512_castps_si512(x[2 * i]), _mm512_castps_si512(x[2 * i + 1]), in_pairs, &words[i], &rest[i]);
        words[i] = _mm512_or_si512(words[i], _mm512_min_epu16(rest[i], _mm512_set1_epi16(1)));
    }
    return avx512_mini64(words, raw != NULL ? raw : words, base, dtype, false);
}

/* The same of quotients of 64 bf16, whose words give the signs: a zero's is lost on the way. Quotients that underflow round to zero anyhow. */
AVX512_INLINE __m512i avx512_divide64_bf16(const __m512i raw[2], const avx512_by *by, const uint32_t dtype)
{
    __m512 y[4];
    AVX512_UNROLL for (uint32_t i = 0; i < 4; i++)
    {
        const __m512i bits = i % 2 == 0 ? _mm512_slli_epi32(raw[i / 2], 16) : _mm512_and_si512(raw[i / 2], _mm512_set1_epi32((int32_t)0xFFFF0000));
        const __m512 x = _mm512_castsi512_ps(bits), product = _mm512_mul_ps(x, by->reciprocal);
        y[i] = by->is_plain ? _mm512_fmadd_ps(_mm512_fnmadd_ps(product, by->scale, x), by->reciprocal, product) : _mm512_div_ps(x, by->scale);
    }
    return avx512_fit64(y, raw, avx512_mini_base(dtype, 0), dtype, true);
}

/* Whether no bf16 over the scale lies within three units of an end of codes, so that products with the reciprocal have the quotients' codes. The ends of
 * e4m3 and of e5m2 are numbers of five bits; times the scale they are no closer to a bf16 than eight units. */
AVX512_INLINE bool avx512_is_far_bf16(const avx512_by *by)
{
    const __m512 ends = _mm512_setr_ps(1.0f, 1.0625f, 1.125f, 1.1875f, 1.25f, 1.3125f, 1.375f, 1.4375f, 1.5f, 1.5625f, 1.625f, 1.6875f, 1.75f, 1.8125f,
                                       1.875f, 1.9375f);
    const __m512i at = _mm512_castps_si512(_mm512_mul_ps(by->scale, ends));
    return _mm512_cmpgt_epi32_mask(_mm512_set1_epi32(17), _mm512_and_si512(_mm512_add_epi32(at, _mm512_set1_epi32(8)), _mm512_set1_epi32(0xFFFF))) == 0;
}

/* Codes of 64 bf16 over such a scale. */
AVX512_INLINE __m512i avx512_far64_bf16(const __m512i raw[2], const avx512_by *by, const uint32_t dtype)
{
    __m512i words[2];
    AVX512_UNROLL for (uint32_t i = 0; i < 2; i++)
    {
        const __m512 even = _mm512_mul_ps(_mm512_castsi512_ps(_mm512_slli_epi32(raw[i], 16)), by->reciprocal);
        const __m512 odd = _mm512_mul_ps(_mm512_castsi512_ps(_mm512_and_si512(raw[i], _mm512_set1_epi32((int32_t)0xFFFF0000))), by->reciprocal);
        words[i] = _mm512_mask_blend_epi16(0xAAAAAAAA, _mm512_srli_epi32(_mm512_castps_si512(even), 16), _mm512_castps_si512(odd));
    }
    return avx512_mini64(words, raw, avx512_mini_base(dtype, 0), dtype, true);
}

/* Codes of 64 elements over a scale, of which none saturates. in_pairs: as for avx512_fit64. */
AVX512_INLINE __m512i avx512_divide64(const __m512 x[4], const avx512_by *by, const uint32_t dtype, const bool in_pairs)
{
    const __m512 fixed = _mm512_mul_ps(by->reciprocal, _mm512_set1_ps(65536.0f)); /* 16 bits behind the point */
    __m512 y[4];
    __m512i words[2], rest[2];
    if (by->is_plain) {
        AVX512_UNROLL for (uint32_t i = 0; i < 2; i++)
        {
            __m512i z[2];
            AVX512_UNROLL for (uint32_t j = 0; j < 2; j++)
            {
                const __m512 product = _mm512_mul_ps(x[2 * i + j], dtype == OCT_DTYPE_I8 ? fixed : by->reciprocal);
                z[j] = dtype == OCT_DTYPE_I8 ? _mm512_add_epi32(_mm512_cvtps_epi32(product), _mm512_set1_epi32(0x8000)) : _mm512_castps_si512(product);
            }
            avx512_halves(z[0], z[1], in_pairs, &words[i], &rest[i]);
        }
        if (!avx512_is_near(rest[0], rest[1])) {
            if (dtype == OCT_DTYPE_I8) {
                return _mm512_permutex2var_epi8(words[0], _mm512_load_si512(avx512_even_bytes), words[1]);
            }
            return avx512_mini64(words, words, avx512_mini_base(dtype, 0), dtype, true); /* the lower half is not zero */
        }
    }
    AVX512_UNROLL for (uint32_t i = 0; i < 4; i++)
    {
        y[i] = _mm512_div_ps(x[i], by->scale);
    }
    return avx512_fit64(y, NULL, avx512_mini_base(dtype, 0), dtype, in_pairs);
}

/* Codes of 64 quotients; clamps. */
AVX512_INLINE __m512i avx512_clamp64(const __m512 x[4], const uint32_t dtype)
{
    const float largest = avx512_largest(dtype);
    __m512 y[4];
    AVX512_UNROLL for (uint32_t i = 0; i < 4; i++)
    {
        y[i] = _mm512_max_ps(_mm512_min_ps(x[i], _mm512_set1_ps(largest)), _mm512_set1_ps(-largest));
    }
    return avx512_fit64(y, NULL, avx512_mini_base(dtype, 0), dtype, false);
}

/* 32 words of bf16. */
AVX512_INLINE __m512i avx512_encode_bf16(__m512 a, __m512 b)
{
    const __m512i one = _mm512_set1_epi32(1), half = _mm512_set1_epi32(0x7FFF);
    const __m512i x = _mm512_castps_si512(a), y = _mm512_castps_si512(b);
    const __m512i p = _mm512_add_epi32(_mm512_add_epi32(x, half), _mm512_and_si512(_mm512_srli_epi32(x, 16), one));
    const __m512i q = _mm512_add_epi32(_mm512_add_epi32(y, half), _mm512_and_si512(_mm512_srli_epi32(y, 16), one));
    const __m512i odd_words = _mm512_set_epi16(63, 61, 59, 57, 55, 53, 51, 49, 47, 45, 43, 41, 39, 37, 35, 33, 31, 29, 27, 25, 23, 21, 19, 17, 15, 13, 11, 9, 7,
                                               5, 3, 1);
    return _mm512_permutex2var_epi16(p, odd_words, q);
}

AVX512_INLINE __m512i avx512_encode_f16(__m512 a, __m512 b)
{
    const __m256i low = _mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT), high = _mm512_cvtps_ph(b, _MM_FROUND_TO_NEAREST_INT);
    return _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
}

/* Quotients of 16 elements, or 0 where there is none. */
AVX512_INLINE __m512 avx512_quotients(const float *x, const float *scale, const avx512_divisor divisor, const __mmask16 there)
{
    const __m512 value = there == 0xFFFF ? _mm512_loadu_ps(x) : _mm512_maskz_loadu_ps(there, x);
    switch (divisor) {
    case AVX512_DIVIDE_ONE:
        return _mm512_div_ps(value, _mm512_set1_ps(*scale));
    case AVX512_DIVIDE_EACH:
        return there == 0xFFFF ? _mm512_div_ps(value, _mm512_loadu_ps(scale)) : _mm512_maskz_div_ps(there, value, _mm512_maskz_loadu_ps(there, scale));
    default:
        return value;
    }
}

/* 64 dims from d on, of which `dim` says how many there are: quotients, counted, encoded, stored. */
AVX512_INLINE uint32_t avx512_encode_chunk(uint8_t *to, const float *x, uint32_t d, uint32_t dim, const float *scale, const avx512_by *by, bool is_streamed,
                                           const avx512_divisor divisor, const uint32_t dtype, const bool is_whole)
{
    const bool fits = divisor == AVX512_FIT_NONE || divisor == AVX512_FIT_ONE;
    const uint32_t size = dtype == OCT_DTYPE_F32 ? 4 : dtype == OCT_DTYPE_F16 || dtype == OCT_DTYPE_BF16 ? 2 : 1;
    uint32_t saturated = 0;
    __m512 y[4];
    __m512i out[4];
    AVX512_UNROLL for (uint32_t i = 0; i < 4; i++)
    {
        const uint32_t at = d + 16 * i;
        const __mmask16 there = is_whole || at + 16 <= dim ? 0xFFFF : at >= dim ? 0 : 0x00FF;
        y[i] = avx512_quotients(x + at, divisor == AVX512_DIVIDE_EACH ? scale + at : scale, divisor, there);
        if (!fits) {
            const __m512i bits = _mm512_castps_si512(avx512_abs(y[i]));
            saturated += (uint32_t)__builtin_popcount(_mm512_cmpgt_epi32_mask(bits, _mm512_set1_epi32(avx512_saturates_from(dtype) - 1)));
        }
    }
    if (size == 1) {
        if (divisor == AVX512_FIT_ONE) {
            out[0] = avx512_divide64(y, by, dtype, false);
        } else {
            out[0] = fits ? avx512_fit64(y, NULL, avx512_mini_base(dtype, 0), dtype, false) : avx512_clamp64(y, dtype);
        }
    } else if (size == 2) {
        out[0] = dtype == OCT_DTYPE_BF16 ? avx512_encode_bf16(y[0], y[1]) : avx512_encode_f16(y[0], y[1]);
        out[1] = dtype == OCT_DTYPE_BF16 ? avx512_encode_bf16(y[2], y[3]) : avx512_encode_f16(y[2], y[3]);
    } else {
        AVX512_UNROLL for (uint32_t i = 0; i < 4; i++)
        {
            out[i] = _mm512_castps_si512(y[i]);
        }
    }
    to += d * size;
    AVX512_UNROLL for (uint32_t i = 0; i < size; i++)
    {
        if (!is_whole) {
            const uint32_t bytes = (dim - d) * size;
            if (64 * i < bytes) {
                const uint32_t rest = bytes - 64 * i;
                _mm512_mask_storeu_epi8(to + 64 * i, rest >= 64 ? ~(__mmask64)0 : ((__mmask64)1 << rest) - 1, out[i]);
            }
        } else if (is_streamed) {
            _mm512_stream_si512((__m512i *)(void *)(to + 64 * i), out[i]);
        } else {
            _mm512_storeu_si512(to + 64 * i, out[i]);
        }
    }
    return saturated;
}

/* Encodes dim (a multiple of 8) finite floats at any alignment into `to`, any alignment (is_streamed: 64 bytes, and whole chunks of 64 dims);
 * writes exactly dim * size bytes. Returns how many saturated. scale: one number or dim of them, finite and > 0. */
AVX512_INLINE uint32_t avx512_encode(uint8_t *to, const float *x, uint32_t dim, const float *scale, bool is_streamed, const avx512_divisor divisor,
                                     const uint32_t dtype)
{
    const avx512_by by = avx512_by_scale(divisor == AVX512_FIT_ONE ? *scale : 1.0f);
    uint32_t saturated = 0, d = 0;
    for (; d + 64 <= dim; d += 64) {
        saturated += avx512_encode_chunk(to, x, d, dim, scale, &by, is_streamed, divisor, dtype, true);
    }
    if (d < dim) {
        saturated += avx512_encode_chunk(to, x, d, dim, scale, &by, false, divisor, dtype, false);
    }
    return saturated;
}

#endif
