/* avx2_dims.h: owns the two products of attention of few vectors by AVX2, with dims in the lanes: scores of up to four vectors with a
 * block's keys, and their weighted sums of its values. Rows are read in place, in f32, f16, bf16 or i8, each element once for all vectors.
 *
 * Cycles for 16 elements and 4 vectors of dim 128 from L1 on Zen 4, of which FMA alone takes 4.0: scores of e4m3 decoded in the loop 6.5
 * (2 keys x 4 vectors, q from memory or in registers, or 3 keys x 4), of f16 words 4.3 (3 x 4), of f32 4.6 (2 x 4); values of e4m3
 * decoded in the loop 5.7-6.2 (16 dims x 4), of f16 words 4.4 (16 x 4) and 4.0 (24 x 4). Making the words takes 1.4 with the NaN check. */
#ifndef OCT_CPU_AVX2_DIMS_H
#define OCT_CPU_AVX2_DIMS_H

#include "cpu/avx2_keys.h"

#define AVX2_PASS 4u /* vectors that share an element: 4 x 3 accumulators, 3 elements and one factor fill the registers */

/* ---- scores -------------------------------------------------------------------------------------------------------------- */

/* Stored rows that the next block reads, one for each key of this block; row_bytes 0: none. */
typedef struct avx2_ahead {
    const uint8_t *const *rows;
    uint32_t row_bytes;
} avx2_ahead;

/* s[key][vector], rows of 1, 2 or 4 floats, for n keys; takes keys in groups, so up to 11 more than n are read and written. */
typedef void avx2_score_fn(float *s, const float *q, int64_t q_stride, const uint8_t *const *rows, uint32_t n, uint32_t dim,
                           avx2_ahead next);

/* Sums of the lanes of a, b, c, d: in each half of the register, {a, b, c, d} of that half. */
AVX2_INLINE __m256 avx2_sum4(__m256 a, __m256 b, __m256 c, __m256 d)
{
    return _mm256_hadd_ps(_mm256_hadd_ps(a, b), _mm256_hadd_ps(c, d));
}
AVX2_INLINE void avx2_store4(float *s, __m256 x)
{
    _mm_store_ps(s, _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1)));
}
AVX2_INLINE void avx2_store8(float *s, __m256 a, __m256 b)
{
    _mm256_storeu_ps(s, _mm256_add_ps(_mm256_permute2f128_ps(a, b, 0x20), _mm256_permute2f128_ps(a, b, 0x31)));
}

/* Three vectors keep rows of four, the last of which is zero. */
AVX2_INLINE uint32_t avx2_row_of(uint32_t n_vectors)
{
    return n_vectors == 3 ? 4 : n_vectors;
}

AVX2_INLINE void avx2_score(float *s, const float *q, int64_t q_stride, const uint8_t *const *rows, uint32_t n, uint32_t dim,
                            avx2_ahead next, const uint32_t dtype, const uint32_t n_vectors, const uint32_t n_keys)
{
    const uint32_t row = avx2_row_of(n_vectors), n_sums = n_keys * row;
    for (uint32_t j = 0; j < n; j += n_keys, s += n_sums) {
        __m256 sum[12];
        avx2_rows_ahead(next.rows + j, n_keys, next.row_bytes);
        AVX2_UNROLL
        for (uint32_t i = 0; i < n_sums; i++) {
            sum[i] = _mm256_setzero_ps();
        }
        for (uint32_t d = 0; d < dim; d += 8) {
            __m256 y[AVX2_PASS];
            if (n_vectors == 1) { /* one key at a time: its element is used once */
                y[0] = _mm256_load_ps(q + d);
                AVX2_UNROLL
                for (uint32_t k = 0; k < n_keys; k++) {
                    sum[k] = _mm256_fmadd_ps(avx2_load8(rows[j + k] + d * avx2_size(dtype), dtype), y[0], sum[k]);
                }
                continue;
            }
            __m256 x[8];
            AVX2_UNROLL
            for (uint32_t k = 0; k < n_keys; k++) {
                x[k] = avx2_load8(rows[j + k] + d * avx2_size(dtype), dtype);
            }
            AVX2_UNROLL
            for (uint32_t v = 0; v < n_vectors; v++) {
                y[v] = _mm256_load_ps(q + v * q_stride + d);
                AVX2_UNROLL
                for (uint32_t k = 0; k < n_keys; k++) {
                    sum[k * row + v] = _mm256_fmadd_ps(x[k], y[v], sum[k * row + v]);
                }
            }
        }
        AVX2_UNROLL
        for (uint32_t i = 0; i + 8 <= n_sums; i += 8) {
            avx2_store8(s + i, avx2_sum4(sum[i], sum[i + 1], sum[i + 2], sum[i + 3]),
                        avx2_sum4(sum[i + 4], sum[i + 5], sum[i + 6], sum[i + 7]));
        }
        if (n_sums % 8 == 4) {
            avx2_store4(s + n_sums - 4, avx2_sum4(sum[n_sums - 4], sum[n_sums - 3], sum[n_sums - 2], sum[n_sums - 1]));
        }
    }
}

/* ---- values -------------------------------------------------------------------------------------------------------------- */

/* o[v][dim] = o[v][dim] * keep[v] + sum over keys of p[key][v] * row[key][dim]. */
typedef void avx2_value_fn(float *o, int64_t o_stride, const float *keep, const float *p, const uint8_t *const *rows, uint32_t n,
                           uint32_t dim, avx2_ahead next);

/* n8 x 8 dims at d. */
AVX2_INLINE void avx2_value_dims(float *o, int64_t o_stride, const float *keep, const float *p, const uint8_t *const *rows, uint32_t n,
                                 uint32_t d, const uint32_t dtype, const uint32_t n_vectors, const uint32_t n8)
{
    __m256 sum[AVX2_PASS][8];
    AVX2_UNROLL
    for (uint32_t v = 0; v < n_vectors; v++) {
        AVX2_UNROLL
        for (uint32_t i = 0; i < n8; i++) {
            sum[v][i] = _mm256_setzero_ps();
        }
    }
    for (uint32_t j = 0; j < n; j++, p += avx2_row_of(n_vectors)) {
        const uint8_t *at = rows[j] + d * avx2_size(dtype);
        __m256 x[8];
        AVX2_UNROLL
        for (uint32_t i = 0; i < n8; i++) {
            x[i] = avx2_load8(at + 8 * i * avx2_size(dtype), dtype);
        }
        AVX2_UNROLL
        for (uint32_t v = 0; v < n_vectors; v++) {
            const __m256 weight = _mm256_broadcast_ss(p + v);
            AVX2_UNROLL
            for (uint32_t i = 0; i < n8; i++) {
                sum[v][i] = _mm256_fmadd_ps(weight, x[i], sum[v][i]);
            }
        }
    }
    AVX2_UNROLL
    for (uint32_t v = 0; v < n_vectors; v++) {
        const __m256 factor = _mm256_broadcast_ss(keep + v);
        AVX2_UNROLL
        for (uint32_t i = 0; i < n8; i++) {
            float *to = o + v * o_stride + d + 8 * i;
            _mm256_store_ps(to, _mm256_fmadd_ps(_mm256_load_ps(to), factor, sum[v][i]));
        }
    }
}

/* Before dims [d, d + 8 n8): asks for the same share of the next block's rows, so that requests are spread over the work. */
AVX2_INLINE void avx2_value_part(float *o, int64_t o_stride, const float *keep, const float *p, const uint8_t *const *rows, uint32_t n,
                                 uint32_t d, uint32_t dim, avx2_ahead next, const uint32_t dtype, const uint32_t n_vectors,
                                 const uint32_t n8)
{
    const uint32_t from = n * d / dim, to = n * (d + 8 * n8) / dim;
    avx2_rows_ahead(next.rows + from, to - from, next.row_bytes);
    avx2_value_dims(o, o_stride, keep, p, rows, n, d, dtype, n_vectors, n8);
}

AVX2_INLINE void avx2_value(float *o, int64_t o_stride, const float *keep, const float *p, const uint8_t *const *rows, uint32_t n,
                            uint32_t dim, avx2_ahead next, const uint32_t dtype, const uint32_t n_vectors)
{
    uint32_t d = 0;
    if (n_vectors == 1) {
        for (; d + 64 <= dim; d += 64) {
            avx2_value_part(o, o_stride, keep, p, rows, n, d, dim, next, dtype, n_vectors, 8);
        }
    }
    if (n_vectors <= 2) {
        for (; d + 32 <= dim; d += 32) {
            avx2_value_part(o, o_stride, keep, p, rows, n, d, dim, next, dtype, n_vectors, 4);
        }
    } else {
        for (; d + 24 <= dim && d + 32 != dim; d += 24) { /* two times 16 rather than 24 and 8: fewer sums wait for each other */
            avx2_value_part(o, o_stride, keep, p, rows, n, d, dim, next, dtype, n_vectors, 3);
        }
    }
    for (; d + 16 <= dim; d += 16) {
        avx2_value_part(o, o_stride, keep, p, rows, n, d, dim, next, dtype, n_vectors, 2);
    }
    if (d < dim) {
        avx2_value_part(o, o_stride, keep, p, rows, n, d, dim, next, dtype, n_vectors, 1);
    }
}

#endif
