/* row.c: owns rows in the vectors of plain x86-64. */
#include "cpu/row_text.h"
#include "number/hadamard.h"

/* The first three steps of a transform, on elements that lie together. */
static void rotate_8(float *x)
{
    const float a0 = x[0] + x[1], a1 = x[0] - x[1], a2 = x[2] + x[3], a3 = x[2] - x[3];
    const float a4 = x[4] + x[5], a5 = x[4] - x[5], a6 = x[6] + x[7], a7 = x[6] - x[7];
    const float b0 = a0 + a2, b1 = a1 + a3, b2 = a0 - a2, b3 = a1 - a3;
    const float b4 = a4 + a6, b5 = a5 + a7, b6 = a4 - a6, b7 = a5 - a7;
    x[0] = b0 + b4, x[1] = b1 + b5, x[2] = b2 + b6, x[3] = b3 + b7;
    x[4] = b0 - b4, x[5] = b1 - b5, x[6] = b2 - b6, x[7] = b3 - b7;
}

/* One step on n pairs. */
static void rotate_pairs(float *restrict a, float *restrict b, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const float sum = a[i] + b[i], difference = a[i] - b[i];
        a[i] = sum;
        b[i] = difference;
    }
}

/* Two steps on n quadruples, which halves the loads and stores. */
static void rotate_quadruples(float *restrict a, float *restrict b, float *restrict c, float *restrict d, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const float ab = a[i] + b[i], a_b = a[i] - b[i], cd = c[i] + d[i], c_d = c[i] - d[i];
        a[i] = ab + cd;
        b[i] = a_b + c_d;
        c[i] = ab - cd;
        d[i] = a_b - c_d;
    }
}

static void rotate(float *x, size_t dim)
{
    const size_t block = oct__hadamard_block(dim);
    const float norm = oct__hadamard_norm(block);
    size_t step = 8;
    for (size_t i = 0; i < dim; i += 8) {
        rotate_8(x + i);
    }
    for (; step * 4 <= block; step *= 4) {
        for (size_t i = 0; i < dim; i += 4 * step) {
            rotate_quadruples(x + i, x + i + step, x + i + 2 * step, x + i + 3 * step, step);
        }
    }
    for (size_t i = 0; step * 2 <= block && i < dim; i += 2 * step) {
        rotate_pairs(x + i, x + i + step, step);
    }
    for (size_t i = 0; i < dim; i++) {
        x[i] *= norm;
    }
}

static void weigh(float *to, const float *const *parts, const double *weights, uint32_t n, uint32_t dim, bool is_more)
{
    enum { SUMS = 64 }; /* in L1 */
    for (uint32_t d0 = 0; d0 < dim; d0 += SUMS) {
        const uint32_t n_dims = dim - d0 < SUMS ? dim - d0 : SUMS;
        double sum[SUMS] = { 0 };
        for (uint32_t d = 0; is_more && d < n_dims; d++) {
            sum[d] = (double)to[d0 + d];
        }
        for (uint32_t p = 0; p < n; p++) {
            const double weight = weights[p];
            const float *const from = parts[p] + d0;
            for (uint32_t d = 0; d < n_dims; d++) {
                sum[d] += weight * (double)from[d];
            }
        }
        for (uint32_t d = 0; d < n_dims; d++) {
            to[d0 + d] = (float)sum[d];
        }
    }
}

const oct__row_kernels oct__row_plain = { bring, deliver, rotate, scale_all, scale_each, weigh };
