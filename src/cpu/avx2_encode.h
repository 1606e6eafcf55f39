/* avx2_encode.h: owns the encoding of finite f32 vectors into stored elements by AVX2: round to nearest even, saturating, subnormals kept,
 * bit for bit what number/ defines. NaN and infinity never come here (kv_write_avx2.c sends such tokens to the scalar row); a quotient
 * may still overflow to infinity.
 *
 * e4m3 and e5m2: the magnitude is clamped to the largest finite value, which is right because everything between it and the first
 * magnitude that saturates rounds to it; normals are rounded as integers (a carry moves to the next binade); below the smallest normal
 * an addition of 2^k, whose last place is the smallest subnormal, leaves the code in the sum's lowest bits.
 * Elements/ns in registers, one Zen 4 core at 3.7 GHz, f32 to e4m3: this way 6.1, rounding by magic addition and vcvtps2ph 5.4. */
#ifndef OCT_CPU_AVX2_ENCODE_H
#define OCT_CPU_AVX2_ENCODE_H

#include "cpu/avx2_number.h"
#include "number/number.h"

/* What the elements are divided by before they are rounded. */
typedef enum avx2_divisor { AVX2_DIVIDE_NONE, AVX2_DIVIDE_ONE, AVX2_DIVIDE_EACH } avx2_divisor;

AVX2_INLINE __m256i avx2_abs_bits(__m256 x)
{
    return _mm256_and_si256(_mm256_castps_si256(x), _mm256_set1_epi32(0x7FFFFFFF));
}

/* Codes of a minifloat in dwords. */
AVX2_INLINE __m256i avx2_encode_mini(__m256 x, const int32_t man_bits, const int32_t bias, const float largest, const bool has_negative_zero)
{
    const int32_t drop = 23 - man_bits;
    /* 2^k has its last place at 2^(1 - bias - man_bits), the smallest subnormal. */
    const __m256 magic = _mm256_castsi256_ps(_mm256_set1_epi32((127 + 23 + 1 - bias - man_bits) << 23));
    const __m256 magnitude = _mm256_min_ps(_mm256_castsi256_ps(avx2_abs_bits(x)), _mm256_set1_ps(largest));
    const __m256i bits = _mm256_castps_si256(magnitude);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, drop), _mm256_set1_epi32(1));
    const __m256i rounded = _mm256_add_epi32(_mm256_add_epi32(bits, odd), _mm256_set1_epi32((1 << (drop - 1)) - 1 - ((127 - bias) << 23)));
    const __m256i normal = _mm256_srli_epi32(rounded, drop);
    const __m256i small = _mm256_sub_epi32(_mm256_castps_si256(_mm256_add_ps(magnitude, magic)), _mm256_castps_si256(magic));
    const __m256i is_small = _mm256_cmpgt_epi32(_mm256_set1_epi32((128 - bias) << 23), bits);
    __m256i code = _mm256_blendv_epi8(normal, small, is_small);
    __m256i sign = _mm256_and_si256(_mm256_srli_epi32(_mm256_castps_si256(x), 24), _mm256_set1_epi32(0x80));
    if (!has_negative_zero) {
        sign = _mm256_andnot_si256(_mm256_cmpeq_epi32(code, _mm256_setzero_si256()), sign);
    }
    return _mm256_or_si256(code, sign);
}

/* Codes of eight quotients, one in the low byte or word of each dword (f32: the bits). i8 comes sign-extended, -127..127. */
AVX2_INLINE __m256i avx2_encode8(__m256 x, uint32_t dtype)
{
    switch (dtype) {
    case OCT_DTYPE_E4M3FN:
        return avx2_encode_mini(x, 3, 7, OCT__E4M3FN_MAX_F32, true);
    case OCT_DTYPE_E4M3FNUZ:
        return avx2_encode_mini(x, 3, 8, OCT__E4M3FNUZ_MAX_F32, false);
    case OCT_DTYPE_E5M2:
        return avx2_encode_mini(x, 2, 15, OCT__E5M2_MAX_F32, true);
    case OCT_DTYPE_I8: /* the conversion rounds to nearest even */
        return _mm256_cvtps_epi32(_mm256_max_ps(_mm256_min_ps(x, _mm256_set1_ps(OCT__I8_MAX_F32)), _mm256_set1_ps(-OCT__I8_MAX_F32)));
    case OCT_DTYPE_BF16: {
        const __m256i bits = _mm256_castps_si256(x);
        const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
        return _mm256_srli_epi32(_mm256_add_epi32(_mm256_add_epi32(bits, odd), _mm256_set1_epi32(0x7FFF)), 16);
    }
    case OCT_DTYPE_F16:
        return _mm256_cvtepu16_epi32(_mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
    default:
        return _mm256_castps_si256(x);
    }
}

/* binary32 bits of the least magnitude that rounds beyond the largest finite value. */
AVX2_INLINE int32_t avx2_saturates_from(uint32_t dtype)
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

/* One step of eight: divided, counted in *saturated (a count for each lane), encoded. */
AVX2_INLINE __m256i avx2_encode_step(const float *x, const float *scale, avx2_divisor divisor, uint32_t dtype, __m256i *saturated)
{
    __m256 quotient = _mm256_load_ps(x);
    if (divisor == AVX2_DIVIDE_ONE) {
        quotient = _mm256_div_ps(quotient, _mm256_broadcast_ss(scale));
    } else if (divisor == AVX2_DIVIDE_EACH) {
        quotient = _mm256_div_ps(quotient, _mm256_loadu_ps(scale));
    }
    *saturated = _mm256_sub_epi32(*saturated, _mm256_cmpgt_epi32(avx2_abs_bits(quotient), _mm256_set1_epi32(avx2_saturates_from(dtype) - 1)));
    return avx2_encode8(quotient, dtype);
}

/* Encodes dim (a multiple of 8) finite floats, 32-byte aligned, into `to`, any alignment; writes exactly dim * size bytes. Returns how
 * many saturated. scale: one number or dim of them, finite and > 0. */
AVX2_INLINE uint32_t avx2_encode(uint8_t *to, const float *x, uint32_t dim, const float *scale, avx2_divisor divisor, uint32_t dtype)
{
    const uint32_t each = divisor == AVX2_DIVIDE_EACH ? 1 : 0;
    __m256i saturated = _mm256_setzero_si256();
    uint32_t d = 0;
    if (avx2_size(dtype) == 1) {
        const __m256i in_order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7); /* packing works within halves */
        for (; d + 32 <= dim; d += 32) {
            const __m256i a = avx2_encode_step(x + d, scale + each * d, divisor, dtype, &saturated);
            const __m256i b = avx2_encode_step(x + d + 8, scale + each * (d + 8), divisor, dtype, &saturated);
            const __m256i c = avx2_encode_step(x + d + 16, scale + each * (d + 16), divisor, dtype, &saturated);
            const __m256i e = avx2_encode_step(x + d + 24, scale + each * (d + 24), divisor, dtype, &saturated);
            const __m256i ab = _mm256_packs_epi32(a, b), ce = _mm256_packs_epi32(c, e);
            const __m256i bytes = dtype == OCT_DTYPE_I8 ? _mm256_packs_epi16(ab, ce) : _mm256_packus_epi16(ab, ce);
            _mm256_storeu_si256((__m256i *)(void *)(to + d), _mm256_permutevar8x32_epi32(bytes, in_order));
        }
        for (; d < dim; d += 8) {
            const __m256i a = avx2_encode_step(x + d, scale + each * d, divisor, dtype, &saturated);
            const __m256i words = _mm256_packs_epi32(a, a);
            const __m256i bytes = dtype == OCT_DTYPE_I8 ? _mm256_packs_epi16(words, words) : _mm256_packus_epi16(words, words);
            _mm_storel_epi64((__m128i *)(void *)(to + d), _mm256_castsi256_si128(_mm256_permutevar8x32_epi32(bytes, in_order)));
        }
    } else {
        for (; d < dim; d += 8) {
            const __m256i a = avx2_encode_step(x + d, scale + each * d, divisor, dtype, &saturated);
            if (avx2_size(dtype) == 2) {
                const __m256i words = _mm256_permute4x64_epi64(_mm256_packus_epi32(a, a), 0x08);
                _mm_storeu_si128((__m128i *)(void *)(to + 2 * (size_t)d), _mm256_castsi256_si128(words));
            } else {
                _mm256_storeu_si256((__m256i *)(void *)(to + 4 * (size_t)d), a);
            }
        }
    }
    uint32_t lanes[8], sum = 0;
    _mm256_storeu_si256((__m256i *)(void *)lanes, saturated);
    for (uint32_t l = 0; l < 8; l++) {
        sum += lanes[l];
    }
    return sum;
}

#endif
