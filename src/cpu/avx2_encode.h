/* avx2_encode.h: owns the encoding of finite f32 vectors into stored elements by AVX2: round to nearest even, saturating, subnormals kept,
 * bit for bit what number/ defines. NaN and infinity never come here (kv_write_avx2.c sends such tokens to the scalar row); a quotient
 * may still overflow to infinity.
 *
 * e4m3 and e5m2: the magnitude is clamped to the largest finite value, which is right because everything between it and the first
 * magnitude that saturates rounds to it. Then 2^k is added, k so that the sum's last place is the code's last place (below the smallest
 * normal: that of the subnormals): the addition rounds, and the sum's low bits are the mantissa with its leading one. Signs are
 * packed apart, 32 at a time.
 * Ladder, elements/ns in registers, one Zen 4 core at 3.7 GHz, f32 to e4m3: rounding by magic addition and vcvtps2ph 5.4; rounding normals
 * as integers and blending subnormals in 6.1; this way: see bench_avx2, "write_hot". */
#ifndef OCT_CPU_AVX2_ENCODE_H
#define OCT_CPU_AVX2_ENCODE_H

#include "cpu/avx2_number.h"
#include "number/number.h"

/* What the elements are divided by before they are rounded. FIT: the caller knows that no quotient saturates, which it sees from the
 * largest one; then nothing is clamped or counted. */
typedef enum avx2_divisor { AVX2_FIT_NONE, AVX2_FIT_ONE, AVX2_DIVIDE_NONE, AVX2_DIVIDE_ONE, AVX2_DIVIDE_EACH } avx2_divisor;

/* Codes without sign of a minifloat, one a dword, of magnitudes. */
AVX2_INLINE __m256i avx2_encode_mini(__m256 x, const int32_t man_bits, const int32_t bias)
{
    const int32_t drop = 23 - man_bits;
    /* The exponent field above that of the smallest normal, 0 below it: a saturating subtraction in words, since the field lies in the
     * upper word of each dword. */
    const __m256i exponent = _mm256_and_si256(_mm256_castps_si256(x), _mm256_set1_epi32(0x7F800000));
    const __m256i above = _mm256_subs_epu16(exponent, _mm256_set1_epi32((128 - bias) << 23));
    const __m256i magic = _mm256_add_epi32(above, _mm256_set1_epi32((128 - bias + drop) << 23));
    const __m256i mantissa = _mm256_sub_epi32(_mm256_castps_si256(_mm256_add_ps(x, _mm256_castsi256_ps(magic))), magic);
    return _mm256_add_epi32(mantissa, _mm256_srli_epi32(above, drop));
}

AVX2_INLINE float avx2_largest(uint32_t dtype)
{
    return dtype == OCT_DTYPE_E4M3FN     ? OCT__E4M3FN_MAX_F32
           : dtype == OCT_DTYPE_E4M3FNUZ ? OCT__E4M3FNUZ_MAX_F32
           : dtype == OCT_DTYPE_E5M2     ? OCT__E5M2_MAX_F32
                                         : OCT__I8_MAX_F32;
}

/* Codes of magnitudes that don't round beyond the largest finite value. */
AVX2_INLINE __m256i avx2_encode_abs(__m256 magnitude, uint32_t dtype)
{
    switch (dtype) {
    case OCT_DTYPE_E4M3FN:
        return avx2_encode_mini(magnitude, 3, 7);
    case OCT_DTYPE_E4M3FNUZ:
        return avx2_encode_mini(magnitude, 3, 8);
    case OCT_DTYPE_E5M2:
        return avx2_encode_mini(magnitude, 2, 15);
    default: /* i8: the conversion rounds to nearest even */
        return _mm256_cvtps_epi32(magnitude);
    }
}

/* Signs into codes: sign bytes 0x80 or 0 beside codes 0..0x7F. */
AVX2_INLINE __m256i avx2_sign(__m256i codes, __m256i signs, uint32_t dtype)
{
    const __m256i zero = _mm256_setzero_si256();
    switch (dtype) {
    case OCT_DTYPE_I8: { /* two's complement: invert and add one where negative */
        const __m256i negative = _mm256_cmpgt_epi8(zero, signs);
        return _mm256_sub_epi8(_mm256_xor_si256(codes, negative), negative);
    }
    case OCT_DTYPE_E4M3FNUZ: /* what rounds to zero has no sign */
        return _mm256_or_si256(codes, _mm256_andnot_si256(_mm256_cmpeq_epi8(codes, zero), signs));
    default:
        return _mm256_or_si256(codes, signs);
    }
}

/* bf16 and f16 words, one a dword; f32: the bits. */
AVX2_INLINE __m256i avx2_encode_wide(__m256 x, uint32_t dtype)
{
    switch (dtype) {
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

/* Counts, in each lane, what rounds beyond the largest finite value. */
AVX2_INLINE void avx2_count_saturated(__m256i *count, __m256i abs_bits, uint32_t dtype)
{
    *count = _mm256_sub_epi32(*count, _mm256_cmpgt_epi32(abs_bits, _mm256_set1_epi32(avx2_saturates_from(dtype) - 1)));
}

/* One step of eight into an 8-bit format: |x| / scale, counted, encoded; the bits of x, whose sign is still to go in, into *bits. */
AVX2_INLINE __m256i avx2_encode_step(const float *x, const float *scale, avx2_divisor divisor, uint32_t dtype, __m256i *bits,
                                     __m256i *saturated)
{
    const __m256 value = _mm256_loadu_ps(x);
    __m256 magnitude = _mm256_castsi256_ps(avx2_abs_bits(value));
    if (divisor == AVX2_DIVIDE_ONE || divisor == AVX2_FIT_ONE) {
        magnitude = _mm256_div_ps(magnitude, _mm256_broadcast_ss(scale));
    } else if (divisor == AVX2_DIVIDE_EACH) {
        magnitude = _mm256_div_ps(magnitude, _mm256_loadu_ps(scale));
    }
    *bits = _mm256_castps_si256(value);
    if (divisor != AVX2_FIT_NONE && divisor != AVX2_FIT_ONE) {
        avx2_count_saturated(saturated, _mm256_castps_si256(magnitude), dtype);
        magnitude = _mm256_min_ps(magnitude, _mm256_set1_ps(avx2_largest(dtype)));
    }
    return avx2_encode_abs(magnitude, dtype);
}

/* And into a wide one. */
AVX2_INLINE __m256i avx2_wide_step(const float *x, avx2_divisor divisor, uint32_t dtype, __m256i *saturated)
{
    const __m256 value = _mm256_loadu_ps(x);
    if (divisor != AVX2_FIT_NONE) {
        avx2_count_saturated(saturated, avx2_abs_bits(value), dtype);
    }
    return avx2_encode_wide(value, dtype);
}

AVX2_INLINE void avx2_store32(uint8_t *to, __m256i bytes, bool is_streamed)
{
    if (is_streamed) {
        _mm256_stream_si256((__m256i *)(void *)to, bytes);
    } else {
        _mm256_storeu_si256((__m256i *)(void *)to, bytes);
    }
}

/* Encodes dim (a multiple of 8) finite floats, any alignment, into `to`, any alignment; writes exactly dim * size bytes. Returns how
 * many saturated. scale: one number or dim of them, finite and > 0. is_streamed: past the caches; then `to` is 64-byte aligned and
 * dim * size a multiple of 64. */
AVX2_INLINE uint32_t avx2_encode(uint8_t *to, const float *x, uint32_t dim, const float *scale, bool is_streamed, avx2_divisor divisor,
                                 uint32_t dtype)
{
    const uint32_t each = divisor == AVX2_DIVIDE_EACH ? 1 : 0;
    __m256i saturated = _mm256_setzero_si256();
    uint32_t d = 0;
    if (avx2_size(dtype) == 1) {
        const __m256i in_order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7); /* packing works within halves */
        const __m256i sign = _mm256_set1_epi8((char)0x80);
        __m256i bits[4], code[4];
        for (; d + 32 <= dim; d += 32) {
            AVX2_UNROLL
            for (uint32_t i = 0; i < 4; i++) {
                code[i] = avx2_encode_step(x + d + 8 * i, each != 0 ? scale + d + 8 * i : scale, divisor, dtype, &bits[i], &saturated);
            }
            /* Signed saturation keeps the sign of the bits and nothing else. */
            const __m256i codes = _mm256_packus_epi16(_mm256_packs_epi32(code[0], code[1]), _mm256_packs_epi32(code[2], code[3]));
            const __m256i signs = _mm256_packs_epi16(_mm256_packs_epi32(bits[0], bits[1]), _mm256_packs_epi32(bits[2], bits[3]));
            const __m256i bytes = avx2_sign(codes, _mm256_and_si256(signs, sign), dtype);
            avx2_store32(to + d, _mm256_permutevar8x32_epi32(bytes, in_order), is_streamed);
        }
        for (; d < dim; d += 8) {
            code[0] = avx2_encode_step(x + d, each != 0 ? scale + d : scale, divisor, dtype, &bits[0], &saturated);
            code[0] = _mm256_packs_epi32(code[0], code[0]);
            bits[0] = _mm256_packs_epi32(bits[0], bits[0]);
            const __m256i signs = _mm256_and_si256(_mm256_packs_epi16(bits[0], bits[0]), sign);
            const __m256i bytes = avx2_sign(_mm256_packus_epi16(code[0], code[0]), signs, dtype);
            _mm_storel_epi64((__m128i *)(void *)(to + d), _mm256_castsi256_si128(_mm256_permutevar8x32_epi32(bytes, in_order)));
        }
    } else {
        for (; d + 16 <= dim; d += 16) {
            const __m256i a = avx2_wide_step(x + d, divisor, dtype, &saturated), b = avx2_wide_step(x + d + 8, divisor, dtype, &saturated);
            if (avx2_size(dtype) == 2) {
                avx2_store32(to + 2 * (size_t)d, _mm256_permute4x64_epi64(_mm256_packus_epi32(a, b), 0xD8), is_streamed);
            } else {
                avx2_store32(to + 4 * (size_t)d, a, is_streamed);
                avx2_store32(to + 4 * (size_t)d + 32, b, is_streamed);
            }
        }
        if (d < dim) {
            const __m256i a = avx2_wide_step(x + d, divisor, dtype, &saturated);
            if (avx2_size(dtype) == 2) {
                const __m256i words = _mm256_permute4x64_epi64(_mm256_packus_epi32(a, a), 0xD8);
                _mm_storeu_si128((__m128i *)(void *)(to + 2 * (size_t)d), _mm256_castsi256_si128(words));
            } else {
                _mm256_storeu_si256((__m256i *)(void *)(to + 4 * (size_t)d), a);
            }
        }
    }
    if (divisor == AVX2_FIT_NONE || divisor == AVX2_FIT_ONE) {
        return 0;
    }
    uint32_t lanes[8], sum = 0;
    _mm256_storeu_si256((__m256i *)(void *)lanes, saturated);
    for (uint32_t l = 0; l < 8; l++) {
        sum += lanes[l];
    }
    return sum;
}

#endif
