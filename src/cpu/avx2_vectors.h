/* avx2_vectors.h: owns the two register-blocked products of attention of many vectors by AVX2, over f32 in scratch: scores with vectors in
 * the lanes, sums of values with dims in the lanes. Included once, by attn_extend_avx2.c: the functions are its own. */
#ifndef OCT_CPU_AVX2_VECTORS_H
#define OCT_CPU_AVX2_VECTORS_H

#include "cpu/avx2_keys.h"

#define AVX2_GROUP   16u /* vectors in the lanes of a score product: two registers */
#define AVX2_KEYS    6u  /* keys of a score product: 12 accumulators, and 3 registers left for 2 of q and one broadcast */
#define AVX2_VECTORS 6u  /* vectors of a value product, likewise */

/* Eight registers as the rows of a square, turned into its columns. */
AVX2_INLINE void avx2_transpose8(__m256 *x)
{
    __m256 pairs[8], fours[8];
    AVX2_UNROLL
    for (uint32_t i = 0; i < 8; i += 2) {
        pairs[i] = _mm256_unpacklo_ps(x[i], x[i + 1]);
        pairs[i + 1] = _mm256_unpackhi_ps(x[i], x[i + 1]);
    }
    AVX2_UNROLL
    for (uint32_t i = 0; i < 8; i += 4) {
        fours[i] = _mm256_shuffle_ps(pairs[i], pairs[i + 2], 0x44);
        fours[i + 1] = _mm256_shuffle_ps(pairs[i], pairs[i + 2], 0xEE);
        fours[i + 2] = _mm256_shuffle_ps(pairs[i + 1], pairs[i + 3], 0x44);
        fours[i + 3] = _mm256_shuffle_ps(pairs[i + 1], pairs[i + 3], 0xEE);
    }
    AVX2_UNROLL
    for (uint32_t i = 0; i < 4; i++) {
        x[i] = _mm256_permute2f128_ps(fours[i], fours[i + 4], 0x20);
        x[i + 4] = _mm256_permute2f128_ps(fours[i], fours[i + 4], 0x31);
    }
}

/* s[key][lane] for n_keys keys and n_lanes x 8 lanes. q: [dim][lanes]. */
AVX2_INLINE void avx2_score_product(float *s, size_t s_stride, const float *k, size_t k_stride, const float *q, uint32_t dim,
                                    const uint32_t n_keys, const uint32_t n_lanes)
{
    __m256 sum[AVX2_KEYS][2];
    AVX2_UNROLL
    for (uint32_t j = 0; j < n_keys; j++) {
        AVX2_UNROLL
        for (uint32_t l = 0; l < n_lanes; l++) {
            sum[j][l] = _mm256_setzero_ps();
        }
    }
    for (uint32_t d = 0; d < dim; d++, q += 8 * n_lanes) {
        __m256 x[2];
        AVX2_UNROLL
        for (uint32_t l = 0; l < n_lanes; l++) {
            x[l] = _mm256_load_ps(q + 8 * l);
        }
        AVX2_UNROLL
        for (uint32_t j = 0; j < n_keys; j++) {
            const __m256 y = _mm256_broadcast_ss(k + j * k_stride + d);
            AVX2_UNROLL
            for (uint32_t l = 0; l < n_lanes; l++) {
                sum[j][l] = _mm256_fmadd_ps(y, x[l], sum[j][l]);
            }
        }
    }
    AVX2_UNROLL
    for (uint32_t j = 0; j < n_keys; j++) {
        AVX2_UNROLL
        for (uint32_t l = 0; l < n_lanes; l++) {
            _mm256_store_ps(s + j * s_stride + 8 * l, sum[j][l]);
        }
    }
}

#define AVX2_SCORE(n_keys, n_lanes)                                                                                                       \
    static void avx2_score_##n_keys##_##n_lanes(float *s, size_t s_stride, const float *k, size_t k_stride, const float *q, uint32_t dim) \
    {                                                                                                                                     \
        avx2_score_product(s, s_stride, k, k_stride, q, dim, n_keys, n_lanes);                                                            \
    }
AVX2_SCORE(1, 1)
AVX2_SCORE(2, 1)
AVX2_SCORE(3, 1)
AVX2_SCORE(4, 1)
AVX2_SCORE(5, 1)
AVX2_SCORE(6, 1)
AVX2_SCORE(1, 2)
AVX2_SCORE(2, 2)
AVX2_SCORE(3, 2)
AVX2_SCORE(4, 2)
AVX2_SCORE(5, 2)
AVX2_SCORE(6, 2)

typedef void avx2_score_product_fn(float *s, size_t s_stride, const float *k, size_t k_stride, const float *q, uint32_t dim);
static avx2_score_product_fn *const avx2_score_products[2][AVX2_KEYS] = {
    { avx2_score_1_1, avx2_score_2_1, avx2_score_3_1, avx2_score_4_1, avx2_score_5_1, avx2_score_6_1 },
    { avx2_score_1_2, avx2_score_2_2, avx2_score_3_2, avx2_score_4_2, avx2_score_5_2, avx2_score_6_2 },
};

/* o[vector][dim] = o * keep + sum over keys of p[key][vector] * v[key][dim], for n_vectors vectors and n_dims x 8 dims. */
AVX2_INLINE void avx2_value_product(float *o, int64_t o_stride, const float *keep, const float *p, size_t p_stride, const float *v,
                                    size_t v_stride, uint32_t n, const uint32_t n_vectors, const uint32_t n_dims)
{
    __m256 sum[AVX2_VECTORS][4];
    AVX2_UNROLL
    for (uint32_t i = 0; i < n_vectors; i++) {
        AVX2_UNROLL
        for (uint32_t d = 0; d < n_dims; d++) {
            sum[i][d] = _mm256_setzero_ps();
        }
    }
    for (uint32_t j = 0; j < n; j++, p += p_stride, v += v_stride) {
        __m256 x[4];
        AVX2_UNROLL
        for (uint32_t d = 0; d < n_dims; d++) {
            x[d] = _mm256_load_ps(v + 8 * d);
        }
        AVX2_UNROLL
        for (uint32_t i = 0; i < n_vectors; i++) {
            const __m256 weight = _mm256_broadcast_ss(p + i);
            AVX2_UNROLL
            for (uint32_t d = 0; d < n_dims; d++) {
                sum[i][d] = _mm256_fmadd_ps(weight, x[d], sum[i][d]);
            }
        }
    }
    AVX2_UNROLL
    for (uint32_t i = 0; i < n_vectors; i++) {
        const __m256 factor = _mm256_broadcast_ss(keep + i);
        AVX2_UNROLL
        for (uint32_t d = 0; d < n_dims; d++) {
            float *to = o + i * o_stride + 8 * d;
            _mm256_store_ps(to, _mm256_fmadd_ps(_mm256_load_ps(to), factor, sum[i][d]));
        }
    }
}

#define AVX2_VALUE(n_vectors, n_dims)                                                                                             \
    static void avx2_value_##n_vectors##_##n_dims(float *o, int64_t o_stride, const float *keep, const float *p, size_t p_stride, \
                                                  const float *v, size_t v_stride, uint32_t n)                                    \
    {                                                                                                                             \
        avx2_value_product(o, o_stride, keep, p, p_stride, v, v_stride, n, n_vectors, n_dims);                                    \
    }
AVX2_VALUE(1, 1)
AVX2_VALUE(2, 1)
AVX2_VALUE(3, 1)
AVX2_VALUE(4, 1)
AVX2_VALUE(5, 1)
AVX2_VALUE(6, 1)
AVX2_VALUE(1, 2)
AVX2_VALUE(2, 2)
AVX2_VALUE(3, 2)
AVX2_VALUE(4, 2)
AVX2_VALUE(5, 2)
AVX2_VALUE(6, 2)

typedef void avx2_value_product_fn(float *o, int64_t o_stride, const float *keep, const float *p, size_t p_stride, const float *v,
                                           size_t v_stride, uint32_t n);
static avx2_value_product_fn *const avx2_value_products[2][AVX2_VECTORS] = {
    { avx2_value_1_1, avx2_value_2_1, avx2_value_3_1, avx2_value_4_1, avx2_value_5_1, avx2_value_6_1 },
    { avx2_value_1_2, avx2_value_2_2, avx2_value_3_2, avx2_value_4_2, avx2_value_5_2, avx2_value_6_2 },
};

#endif
