/* row.h: owns the conversion and rotation of rows on the runner's way in and out, in loops that a compiler turns into vectors, of
 * plain x86-64 or of AVX2. Bit for bit what number/convert.h and number/hadamard.h give; formats that are not worth a loop of their own go there.
 *
 * Threads: pure functions, any thread, as long as no other writes the same row. */
#ifndef OCT_CPU_ROW_H
#define OCT_CPU_ROW_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* to[i] = sum of weights[p] * parts[p][i] over n parts, and of to[i] itself where is_more; in f64, rounded once. dim elements at any alignment; to may be a part. */
typedef void oct__row_weigh_fn(float *to, const float *const *parts, const double *weights, uint32_t n, uint32_t dim, bool is_more);

typedef struct oct__row_kernels {
    /* dst[i] = the exact value of src[i]. src: n elements of a known dtype, at any alignment; no overlap. */
    void (*bring)(float *dst, const void *src, uint32_t dtype, size_t n);
    /* dst[i] = round_to_nearest_even_saturating(src[i] / scale), scale finite and > 0. dst: n elements, at any alignment; no overlap. */
    void (*deliver)(void *dst, uint32_t dtype, const float *src, size_t n, float scale);
    /* Rotates x[dim] in place, as oct__hadamard_f32; its own inverse. dim: a multiple of 8; x: 32-byte aligned. */
    void (*rotate)(float *x, size_t dim);
    /* x[i] = x[i] * factor, and x[i] = x[i] * by[i]; no overlap. */
    void (*scale)(float *x, float factor, size_t n);
    void (*scale_each)(float *restrict x, const float *restrict by, size_t n);
    oct__row_weigh_fn *weigh;
} oct__row_kernels;

/* The dims from d on, which fill no register. */
static inline void oct__row_weigh_last(float *to, const float *const *parts, const double *weights, uint32_t n, uint32_t d, uint32_t dim, bool is_more)
{
    for (; d < dim; d++) {
        double sum = is_more ? (double)to[d] : 0.0;
        for (uint32_t p = 0; p < n; p++) {
            sum += weights[p] * (double)parts[p][d];
        }
        to[d] = (float)sum;
    }
}

/* For any machine, and for one with AVX2, FMA and F16C. */
extern const oct__row_kernels oct__row_plain, oct__row_avx2;

#endif
