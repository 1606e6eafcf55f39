/* avx2_word_vectors.h: owns the two register-blocked products of attention of many vectors by AVX2 over i8 pages in integers: those of avx2_vectors.h, in
 * words and by pairs of dims (scores) or of keys (sums of values), as avx2_word.h has them for few vectors. Included once, by attn_extend_avx2.c.
 * `bench_avx2 one 9 i8 4 DIM KEYS KEYS`, causal, one thread of a Zen 4 at 3.7 GHz with other work on the machine, percent of its FMA peak, f32 and words in turns:
 *               64 x 512   64 x 2048   128 x 512   128 x 2048   256 x 512   256 x 2048
 *   f32               72          74          80           82          85           86
 *   words             88          95         104          112         114          122
 * vpmaddwd takes two multiply-adds a lane where FMA takes one, and vpaddd goes to units that FMA leaves idle; a block on the diagonal has f32 scores.
 *
 * Threads: pure but for what they write. */
#ifndef OCT_CPU_AVX2_WORD_VECTORS_H
#define OCT_CPU_AVX2_WORD_VECTORS_H

#include "cpu/avx2_vectors.h"
#include "cpu/avx2_word.h"

AVX2_INLINE __m256i avx2_word_pair(const int16_t *at)
{
    int32_t pair;
    memcpy(&pair, at, sizeof(pair));
    return _mm256_set1_epi32(pair);
}

/* s[key][lane] = unit[lane] * product for n_keys keys and n_lanes x 8 lanes. k: words. q: [dim / 2][lanes], pairs. */
AVX2_INLINE void avx2_word_score_product(float *s, size_t s_stride, const int16_t *k, size_t k_stride, const int16_t *q, const float *unit, uint32_t dim,
                                         const uint32_t n_keys, const uint32_t n_lanes)
{
    avx2_sums sum[AVX2_KEYS][2];
    AVX2_UNROLL
    for (uint32_t j = 0; j < n_keys; j++) {
        AVX2_UNROLL
        for (uint32_t l = 0; l < n_lanes; l++) {
            sum[j][l] = (avx2_sums)_mm256_setzero_si256();
        }
    }
    for (uint32_t d = 0; d < dim; d += 2, q += 16 * n_lanes) {
        __m256i x[2];
        AVX2_UNROLL
        for (uint32_t l = 0; l < n_lanes; l++) {
            x[l] = _mm256_load_si256((const __m256i *)(const void *)(q + 16 * l));
        }
        AVX2_UNROLL
        for (uint32_t j = 0; j < n_keys; j++) {
            const __m256i y = avx2_word_pair(k + j * k_stride + d);
            AVX2_UNROLL
            for (uint32_t l = 0; l < n_lanes; l++) {
                sum[j][l] += (avx2_sums)_mm256_madd_epi16(y, x[l]);
            }
        }
    }
    AVX2_UNROLL
    for (uint32_t j = 0; j < n_keys; j++) {
        AVX2_UNROLL
        for (uint32_t l = 0; l < n_lanes; l++) {
            _mm256_store_ps(s + j * s_stride + 8 * l, _mm256_mul_ps(_mm256_cvtepi32_ps((__m256i)sum[j][l]), _mm256_load_ps(unit + 8 * l)));
        }
    }
}

#define AVX2_WORD_SCORE(n_keys, n_lanes)                                                                                                            \
    static void avx2_word_lanes_##n_keys##_##n_lanes(float *s, size_t s_stride, const int16_t *k, size_t k_stride, const int16_t *q, const float *unit, \
                                                     uint32_t dim)                                                                                  \
    {                                                                                                                                               \
        avx2_word_score_product(s, s_stride, k, k_stride, q, unit, dim, n_keys, n_lanes);                                                           \
    }
AVX2_WORD_SCORE(2, 1)
AVX2_WORD_SCORE(4, 1)
AVX2_WORD_SCORE(6, 1)
AVX2_WORD_SCORE(2, 2)
AVX2_WORD_SCORE(4, 2)
AVX2_WORD_SCORE(6, 2)

typedef void avx2_word_lanes_fn(float *s, size_t s_stride, const int16_t *k, size_t k_stride, const int16_t *q, const float *unit, uint32_t dim);
/* By lanes and pairs of keys: an odd last key has a row of zeros beside it. */
static avx2_word_lanes_fn *const avx2_word_lanes[2][AVX2_KEYS / 2] = { { avx2_word_lanes_2_1, avx2_word_lanes_4_1, avx2_word_lanes_6_1 },
                                                                       { avx2_word_lanes_2_2, avx2_word_lanes_4_2, avx2_word_lanes_6_2 } };

/* o[vector][dim] = o * keep + gain * sum over n pairs of keys of p * v, for n_vectors vectors and n_dims x 8 dims. */
AVX2_INLINE void avx2_word_value_product(float *o, int64_t o_stride, const float *keep, const float *gain, const int16_t *p, size_t p_stride, const int16_t *v,
                                         size_t v_stride, uint32_t n, const uint32_t n_vectors, const uint32_t n_dims)
{
    avx2_sums sum[AVX2_VECTORS][2];
    AVX2_UNROLL
    for (uint32_t i = 0; i < n_vectors; i++) {
        AVX2_UNROLL
        for (uint32_t d = 0; d < n_dims; d++) {
            sum[i][d] = (avx2_sums)_mm256_setzero_si256();
        }
    }
    for (uint32_t j = 0; j < n; j++, p += p_stride, v += v_stride) {
        __m256i x[2];
        AVX2_UNROLL
        for (uint32_t d = 0; d < n_dims; d++) {
            x[d] = _mm256_load_si256((const __m256i *)(const void *)(v + 16 * d));
        }
        AVX2_UNROLL
        for (uint32_t i = 0; i < n_vectors; i++) {
            const __m256i weight = avx2_word_pair(p + 2 * i);
            AVX2_UNROLL
            for (uint32_t d = 0; d < n_dims; d++) {
                sum[i][d] += (avx2_sums)_mm256_madd_epi16(weight, x[d]);
            }
        }
    }
    AVX2_UNROLL
    for (uint32_t i = 0; i < n_vectors; i++) {
        const __m256 factor = _mm256_broadcast_ss(keep + i), worth = _mm256_broadcast_ss(gain + i);
        AVX2_UNROLL
        for (uint32_t d = 0; d < n_dims; d++) {
            float *to = o + i * o_stride + 8 * d;
            _mm256_store_ps(to, _mm256_fmadd_ps(_mm256_load_ps(to), factor, _mm256_mul_ps(_mm256_cvtepi32_ps((__m256i)sum[i][d]), worth)));
        }
    }
}

#define AVX2_WORD_VALUE(n_vectors, n_dims)                                                                                                          \
    static void avx2_word_sum_##n_vectors##_##n_dims(float *o, int64_t o_stride, const float *keep, const float *gain, const int16_t *p, size_t p_stride, \
                                                     const int16_t *v, size_t v_stride, uint32_t n)                                                 \
    {                                                                                                                                               \
        avx2_word_value_product(o, o_stride, keep, gain, p, p_stride, v, v_stride, n, n_vectors, n_dims);                                           \
    }
AVX2_WORD_VALUE(1, 1)
AVX2_WORD_VALUE(2, 1)
AVX2_WORD_VALUE(3, 1)
AVX2_WORD_VALUE(4, 1)
AVX2_WORD_VALUE(5, 1)
AVX2_WORD_VALUE(6, 1)
AVX2_WORD_VALUE(1, 2)
AVX2_WORD_VALUE(2, 2)
AVX2_WORD_VALUE(3, 2)
AVX2_WORD_VALUE(4, 2)
AVX2_WORD_VALUE(5, 2)
AVX2_WORD_VALUE(6, 2)

typedef void avx2_word_sum_fn(float *o, int64_t o_stride, const float *keep, const float *gain, const int16_t *p, size_t p_stride, const int16_t *v, size_t v_stride,
                              uint32_t n);
static avx2_word_sum_fn *const avx2_word_sums[2][AVX2_VECTORS] = {
    { avx2_word_sum_1_1, avx2_word_sum_2_1, avx2_word_sum_3_1, avx2_word_sum_4_1, avx2_word_sum_5_1, avx2_word_sum_6_1 },
    { avx2_word_sum_1_2, avx2_word_sum_2_2, avx2_word_sum_3_2, avx2_word_sum_4_2, avx2_word_sum_5_2, avx2_word_sum_6_2 },
};

/* n rows of K to words, and one of zeros after an odd last. */
static inline void avx2_word_decode_k(int16_t *to, size_t stride, const uint8_t *const *rows, uint32_t n, uint32_t dim)
{
    for (uint32_t j = 0; j < n; j++, to += stride) {
        for (uint32_t d = 0; d < dim; d += 16) {
            _mm256_store_si256((__m256i *)(void *)(to + d), avx2_word_load(rows[j] + d, d + 16 > dim));
        }
    }
    if (n % 2 != 0) { /* the product takes keys in twos; of what stands there its sums could leave their range */
        memset(to, 0, (size_t)((dim + 15u) / 16 * 16) * sizeof(*to));
    }
}

/* n rows of V to words, those of keys j and j + 1, j even, side by side. The row after an odd last one is any: its weights are 0. */
static inline void avx2_word_decode_v(int16_t *to, size_t stride, const uint8_t *const *rows, uint32_t n, uint32_t dim)
{
    for (uint32_t j = 0; j < n; j += 2, to += stride) {
        for (uint32_t d = 0; d < dim; d += 8) {
            const __m128i a = _mm_loadl_epi64((const __m128i *)(const void *)(rows[j] + d)), b = _mm_loadl_epi64((const __m128i *)(const void *)(rows[j + 1] + d));
            _mm256_store_si256((__m256i *)(void *)(to + 2 * d), _mm256_cvtepi8_epi16(_mm_unpacklo_epi8(a, b)));
        }
    }
}

/* Weights s[n][s_stride] of eight lanes to words, keys j and j + 1 side by side; past n 0. gain: what their units are worth, a NaN for a lane with a weight that
 * is not finite. apart: by lane, the weight that its words leave out, and s no longer has. */
static inline void avx2_word_weigh_lanes(int16_t *to, size_t stride, float *s, size_t s_stride, uint32_t n, float *gain, avx2_apart *apart)
{
    const __m256i abs = _mm256_set1_epi32(INT32_MAX);
    __m256i largest_bits = _mm256_setzero_si256();
    __m256 sum = _mm256_setzero_ps();
    for (uint32_t j = 0; j < n; j++) {
        const __m256i bits = _mm256_and_si256(_mm256_load_si256((const __m256i *)(const void *)(s + j * s_stride)), abs);
        largest_bits = _mm256_max_epi32(largest_bits, bits);
        sum = _mm256_add_ps(sum, _mm256_castsi256_ps(bits));
    }
    const __m256 limit = _mm256_mul_ps(_mm256_castsi256_ps(largest_bits), _mm256_set1_ps(1 + AVX2_WEIGHT_REST));
    const int lonely = _mm256_movemask_ps(_mm256_cmp_ps(sum, limit, _CMP_LT_OQ)); /* not a lane of zeros, nor with a weight that is not finite */
    float each_largest[8];
    _mm256_storeu_ps(each_largest, _mm256_castsi256_ps(largest_bits));
    for (uint32_t l = 0; l < 8; l++) {
        apart[l] = lonely >> l & 1 ? avx2_word_set_apart(s + l, (uint32_t)s_stride, n, each_largest[l]) : (avx2_apart){ 0, 0 };
    }
    for (uint32_t j = 0; lonely != 0 && j < n; j++) {
        const __m256i bits = _mm256_and_si256(_mm256_load_si256((const __m256i *)(const void *)(s + j * s_stride)), abs);
        largest_bits = _mm256_max_epi32(j == 0 ? _mm256_setzero_si256() : largest_bits, bits);
    }
    const __m256 largest = _mm256_castsi256_ps(largest_bits), finite = _mm256_cmp_ps(largest, _mm256_set1_ps(INFINITY), _CMP_LT_OQ);
    const __m256 counts = _mm256_and_ps(finite, _mm256_cmp_ps(largest, _mm256_set1_ps(AVX2_WEIGHT_MIN), _CMP_GE_OQ));
    const __m256 scale = _mm256_and_ps(counts, _mm256_div_ps(_mm256_set1_ps(AVX2_WEIGHT_MAX), largest));
    const __m256 worth = _mm256_mul_ps(_mm256_and_ps(counts, largest), _mm256_set1_ps(1.0f / AVX2_WEIGHT_MAX));
    _mm256_store_ps(gain, _mm256_blendv_ps(_mm256_set1_ps(NAN), worth, finite));
    for (uint32_t j = 0; j < n; j += 2, to += stride) {
        const __m256i first = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_load_ps(s + j * s_stride), scale));
        const __m256i second = j + 1 < n ? _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_load_ps(s + (j + 1) * s_stride), scale)) : _mm256_setzero_si256();
        _mm256_store_si256((__m256i *)(void *)to, _mm256_blend_epi16(first, _mm256_slli_epi32(second, 16), 0xAA));
    }
}

#endif
