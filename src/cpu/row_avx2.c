/* row_avx2.c: owns rows in 256-bit vectors. A decode of one key, 32 query heads in bf16 x dim 128, one Zen 4 core, with row.c's and with these: bf16
 * cache 5.1 and 4.2 us, i8 with rotated K 7.2 and 5.0. */
#include "cpu/avx2_rotate.h"
#include "cpu/row_text.h"

/* Rows of the runner lie at multiples of 64 bytes. */
static void rotate(float *x, size_t dim)
{
    (void)avx2_rotate(x, x, (uint32_t)dim);
}

/* 4 n_registers dims. */
AVX2_INLINE void weigh_in_registers(float *to, const float *const *parts, const double *weights, uint32_t n, uint32_t d, bool is_more, const uint32_t n_registers)
{
    __m256d sum[8];
    AVX2_UNROLL
    for (uint32_t i = 0; i < n_registers; i++) {
        sum[i] = is_more ? _mm256_cvtps_pd(_mm_loadu_ps(to + d + 4 * i)) : _mm256_setzero_pd();
    }
    for (uint32_t p = 0; p < n; p++) {
        const __m256d weight = _mm256_set1_pd(weights[p]);
        const float *from = parts[p] + d;
        AVX2_UNROLL
        for (uint32_t i = 0; i < n_registers; i++) {
            sum[i] = _mm256_fmadd_pd(weight, _mm256_cvtps_pd(_mm_loadu_ps(from + 4 * i)), sum[i]);
        }
    }
    AVX2_UNROLL
    for (uint32_t i = 0; i < n_registers; i++) {
        _mm_storeu_ps(to + d + 4 * i, _mm256_cvtpd_ps(sum[i]));
    }
}

static void weigh(float *to, const float *const *parts, const double *weights, uint32_t n, uint32_t dim, bool is_more)
{
    uint32_t d = 0;
    for (; d + 32 <= dim; d += 32) {
        weigh_in_registers(to, parts, weights, n, d, is_more, 8);
    }
    for (; d + 4 <= dim; d += 4) {
        weigh_in_registers(to, parts, weights, n, d, is_more, 1);
    }
    oct__row_weigh_last(to, parts, weights, n, d, dim, is_more);
}

const oct__row_kernels oct__row_avx2 = { bring, deliver, rotate, scale_all, scale_each, weigh };
