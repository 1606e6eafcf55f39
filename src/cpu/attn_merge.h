/* attn_merge.h: owns how partial results of a vector become one, for the rows of attn_merge and for the splits of a run (attn_run.c), which differ in
 * what a part holds and in whether the sum is divided. The sum over the parts is the caller's: plain, AVX2 or AVX-512.
 *
 * One exponential a part: weights come first, for MERGE_BATCH parts at a time, and so no memory is needed for however many there are. Eight parts of 128
 * dims, one thread of a Zen 4 at 3.7 GHz with other work on the machine, GB/s from L2, L3 and memory:
 *   loops over 64 dims, an exponential a part in each, sums in L1        8     8     7
 *   exponentials once, plain sums                                       10    10     8
 *   sums in registers, AVX2 32 dims, AVX-512 128                     35 33 30 29 16 14
 * Two parts: 9, 27, 28 from L2; 32: 11, 29, 34. A polynomial of eight weights at once in place of libm's exp gains nothing (it overlaps the sums of the vector
 * before), nor does asking for the next vector's parts. The products are in f64: two instructions for what would be one in f32, whose error would grow
 * with the parts.
 *
 * Threads: works in what it is given. */
#ifndef OCT_CPU_ATTN_MERGE_H
#define OCT_CPU_ATTN_MERGE_H

#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "cpu/row.h"

#define MERGE_BATCH 64u /* parts whose weights are made at a time */
#define MERGE_CHUNK 64u /* dims summed at a time where there are more parts than that */

/* The parts of one vector: part p's are o[p * o_stride + ...], m[p * state_stride] and z[p * state_stride]. z NULL: o is divided by its sum already and m
 * is an lse, of which +inf and NaN are what broken or never written partials hold. */
typedef struct merge_parts {
    const float *o, *m, *z;
    int64_t o_stride, state_stride;
    uint32_t n;
} merge_parts;

static inline bool merge_is_empty(const merge_parts *parts, uint32_t p)
{
    const float m = parts->m[p * parts->state_stride];
    if (parts->z == NULL) {
        return !isfinite(m);
    }
    /* A NaN in z is a stored NaN that was seen, whatever m says, and must come out. */
    const float z = parts->z[p * parts->state_stride];
    return z == 0.0f || (m == -INFINITY && !isnan(z));
}

/* The parts that hold a key, from *p on, at most MERGE_BATCH of them: where their o lies and what it weighs. Adds their sums to *z. An empty part's o may
 * hold anything, so 0 x it is never computed. */
static inline uint32_t merge_weights(const merge_parts *parts, uint32_t *p, float max, const float **o, double *weights, double *z)
{
    uint32_t n = 0;
    for (; *p < parts->n && n < MERGE_BATCH; ++*p) {
        if (merge_is_empty(parts, *p)) {
            continue;
        }
        const double weight = exp((double)parts->m[*p * parts->state_stride] - (double)max);
        o[n] = parts->o + *p * parts->o_stride;
        weights[n++] = weight;
        *z += parts->z == NULL ? weight : weight * (double)parts->z[*p * parts->state_stride];
    }
    return n;
}

static inline float merge_max(const merge_parts *parts)
{
    float max = -INFINITY;
    for (uint32_t p = 0; p < parts->n; p++) {
        const float m = parts->m[p * parts->state_stride];
        max = m > max && (parts->z != NULL || isfinite(m)) ? m : max;
    }
    return max;
}

/* to[dim] = sum of o * exp(m - max) over the parts, divided by the sum *z of their weights where parts->z is NULL; *m = max. to may be the o of a part.
 * No part with a key: 0, -inf, 0. */
static inline void merge_vector(const merge_parts *parts, uint32_t dim, float *to, float *m, double *z, oct__row_weigh_fn *weigh)
{
    const float max = merge_max(parts);
    const float *o[MERGE_BATCH];
    double weights[MERGE_BATCH], sum = 0.0;
    uint32_t p = 0;
    uint32_t n = merge_weights(parts, &p, max, o, weights, &sum);
    const bool is_all = p == parts->n;
    while (p < parts->n) {
        (void)merge_weights(parts, &p, max, o, weights, &sum);
    }
    const double factor = parts->z == NULL && sum > 0.0 ? 1.0 / sum : 1.0;
    *m = max;
    *z = sum;
    if (is_all) {
        for (uint32_t i = 0; i < n; i++) {
            weights[i] *= factor;
        }
        weigh(to, o, weights, n, dim, false);
        return;
    }
    for (uint32_t d0 = 0; d0 < dim; d0 += MERGE_CHUNK) {
        const uint32_t n_dims = dim - d0 < MERGE_CHUNK ? dim - d0 : MERGE_CHUNK;
        float chunk[MERGE_CHUNK];
        double again = 0.0;
        for (p = 0; p < parts->n;) {
            const bool is_more = p > 0;
            n = merge_weights(parts, &p, max, o, weights, &again);
            for (uint32_t i = 0; i < n; i++) {
                weights[i] *= factor;
                o[i] += d0;
            }
            weigh(chunk, o, weights, n, n_dims, is_more);
        }
        memcpy(to + d0, chunk, n_dims * sizeof(float));
    }
}

/* A row of attn_merge. */
static inline void merge_rows(const oct_attn_merge_args *args, int64_t row0, int64_t row1, oct__row_weigh_fn *weigh)
{
    for (int64_t row = row0; row < row1; row++) {
        for (uint32_t head = 0; head < args->heads; head++) {
            const merge_parts parts = {
                .o = args->out + row * args->out_row_stride + head * args->out_head_stride,
                .m = args->lse + row * args->lse_row_stride + head * args->lse_head_stride,
                .o_stride = args->out_part_stride,
                .state_stride = args->lse_part_stride,
                .n = args->n_parts,
            };
            float max;
            double z;
            merge_vector(&parts, args->dim, args->merged + row * args->merged_row_stride + head * args->merged_head_stride, &max, &z, weigh);
            if (args->lse_merged != NULL) {
                args->lse_merged[row * args->lse_merged_row_stride + head * args->lse_merged_head_stride] =
                    max == -INFINITY ? -INFINITY : (float)((double)max + log(z));
            }
        }
    }
}

#endif
