/* avx512_encode.h: owns the encoding of finite f32 vectors into stored elements by AVX-512: round to nearest even, saturating, subnormals
 * kept, bit for bit what number/ defines. NaN and infinity never come here (kv_write_avx512.c sends such tokens to the scalar row); a
 * quotient may still overflow to infinity.
 *
 * e4m3 and e5m2: the magnitude is clamped to the largest finite value, which is right because everything between it and the first
 * magnitude that saturates rounds to it. Then 2^k is added, k so that the sum's last place is the code's last place (below the smallest
 * normal: that of the subnormals): the addition rounds, and the sum's low bits are the mantissa with its leading one. Signs are packed
 * apart, 64 at a time. */
#ifndef OCT_CPU_AVX512_ENCODE_H
#define OCT_CPU_AVX512_ENCODE_H

#include "cpu/avx512_number.h"
#include "number/number.h"

/* What the elements are divided by before they are rounded. FIT: the caller knows that no quotient saturates, which it sees from the
 * largest one; then nothing is clamped or counted. */
typedef enum avx512_divisor { AVX512_FIT_NONE, AVX512_FIT_ONE, AVX512_DIVIDE_NONE, AVX512_DIVIDE_ONE, AVX512_DIVIDE_EACH } avx512_divisor;

AVX512_INLINE __m512 avx512_abs(__m512 x)
{
    return _mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32(INT32_MAX)));
}

/* Codes without sign of a minifloat, one a dword, of magnitudes that don't round beyond the largest finite value. */
AVX512_INLINE __m512i avx512_encode_mini(__m512 x, const int32_t man_bits, const int32_t bias)
{
    const int32_t drop = 23 - man_bits;
    /* The exponent field above that of the smallest normal, 0 below it: a saturating subtraction in words, since the field lies in the
     * upper word of each dword. */
    const __m512i exponent = _mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32(0x7F800000));
    const __m512i above = _mm512_subs_epu16(exponent, _mm512_set1_epi32((128 - bias) << 23));
    const __m512i magic = _mm512_add_epi32(above, _mm512_set1_epi32((128 - bias + drop) << 23));
    const __m512i mantissa = _mm512_sub_epi32(_mm512_castps_si512(_mm512_add_ps(x, _mm512_castsi512_ps(magic))), magic);
    return _mm512_add_epi32(mantissa, _mm512_srli_epi32(above, (uint32_t)drop));
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

/* Codes of a quotient in dwords: without sign for the minifloats, signed for i8. */
AVX512_INLINE __m512i avx512_encode16(__m512 x, uint32_t dtype, bool fits)
{
    if (dtype == OCT_DTYPE_I8) { /* the conversion rounds to nearest even */
        if (!fits) {
            x = _mm512_max_ps(_mm512_min_ps(x, _mm512_set1_ps(OCT__I8_MAX_F32)), _mm512_set1_ps(-OCT__I8_MAX_F32));
        }
        return _mm512_cvtps_epi32(x);
    }
    __m512 magnitude = avx512_abs(x);
    if (!fits) {
        magnitude = _mm512_min_ps(magnitude, _mm512_set1_ps(avx512_largest(dtype)));
    }
    return dtype == OCT_DTYPE_E4M3FN     ? avx512_encode_mini(magnitude, 3, 7)
           : dtype == OCT_DTYPE_E4M3FNUZ ? avx512_encode_mini(magnitude, 3, 8)
                                         : avx512_encode_mini(magnitude, 2, 15);
}

/* 64 bytes of four registers of dwords with saturation to signed bytes; packing works within 16-byte lanes, and is put in order. */
AVX512_INLINE __m512i avx512_pack(__m512i a, __m512i b, __m512i c, __m512i d)
{
    const __m512i in_order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    return _mm512_permutexvar_epi32(in_order, _mm512_packs_epi16(_mm512_packs_epi32(a, b), _mm512_packs_epi32(c, d)));
}

/* Bytes of 64 quotients. */
AVX512_INLINE __m512i avx512_encode64(const __m512 x[4], uint32_t dtype, bool fits)
{
    const __m512i codes = avx512_pack(avx512_encode16(x[0], dtype, fits), avx512_encode16(x[1], dtype, fits), avx512_encode16(x[2], dtype, fits),
                                      avx512_encode16(x[3], dtype, fits));
    if (dtype == OCT_DTYPE_I8) {
        return codes;
    }
    /* Saturation keeps the sign bit. */
    const __m512i sign = _mm512_set1_epi8((char)0x80);
    const __m512i signs = avx512_pack(_mm512_castps_si512(x[0]), _mm512_castps_si512(x[1]), _mm512_castps_si512(x[2]), _mm512_castps_si512(x[3]));
    if (dtype == OCT_DTYPE_E4M3FNUZ) { /* what rounds to zero has no sign */
        return _mm512_mask_mov_epi8(codes, _mm512_test_epi8_mask(codes, codes), _mm512_ternarylogic_epi32(codes, signs, sign, 0xF8));
    }
    return _mm512_ternarylogic_epi32(codes, signs, sign, 0xF8); /* a | (b & c) */
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
    case AVX512_FIT_ONE:
    case AVX512_DIVIDE_ONE:
        return _mm512_div_ps(value, _mm512_set1_ps(*scale));
    case AVX512_DIVIDE_EACH:
        return there == 0xFFFF ? _mm512_div_ps(value, _mm512_loadu_ps(scale)) : _mm512_maskz_div_ps(there, value, _mm512_maskz_loadu_ps(there, scale));
    default:
        return value;
    }
}

/* 64 dims from d on, of which `dim` says how many there are: quotients, counted, encoded, stored. */
AVX512_INLINE uint32_t avx512_encode_chunk(uint8_t *to, const float *x, uint32_t d, uint32_t dim, const float *scale, bool is_streamed,
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
        out[0] = avx512_encode64(y, dtype, fits);
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
    uint32_t saturated = 0, d = 0;
    for (; d + 64 <= dim; d += 64) {
        saturated += avx512_encode_chunk(to, x, d, dim, scale, is_streamed, divisor, dtype, true);
    }
    if (d < dim) {
        saturated += avx512_encode_chunk(to, x, d, dim, scale, false, divisor, dtype, false);
    }
    return saturated;
}

#endif
