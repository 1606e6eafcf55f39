/* attn_merge_scalar.c: partial results of the same rows into one, weighted by their lse.
 *
 * Threads: each call writes the rows of its own range. */
#include <math.h>
#include <stdbool.h>

#include "cpu/scalar.h"

#define CHUNK 64u /* dims summed at a time: f64 sums without memory of our own, whatever dim and n_parts are */

/* -inf says so; +inf and NaN are what broken or never written partials hold. */
static bool is_empty(float lse)
{
    return !isfinite(lse);
}

void oct__attn_merge__scalar(const oct_attn_merge_args *args, int64_t row0, int64_t row1)
{
    for (int64_t row = row0; row < row1; row++) {
        for (uint32_t head = 0; head < args->heads; head++) {
            const float *lse = args->lse + row * args->lse_row_stride + head * args->lse_head_stride;
            const float *out = args->out + row * args->out_row_stride + head * args->out_head_stride;
            float *merged = args->merged + row * args->merged_row_stride + head * args->merged_head_stride;
            float max = -INFINITY;
            double z = 0.0;
            for (uint32_t p = 0; p < args->n_parts; p++) {
                const float l = lse[p * args->lse_part_stride];
                max = !is_empty(l) && l > max ? l : max;
            }
            for (uint32_t p = 0; p < args->n_parts; p++) {
                const float l = lse[p * args->lse_part_stride];
                z += is_empty(l) ? 0.0 : exp((double)l - (double)max);
            }
            for (uint32_t d0 = 0; d0 < args->dim; d0 += CHUNK) {
                const uint32_t n = args->dim - d0 < CHUNK ? args->dim - d0 : CHUNK;
                double sum[CHUNK] = { 0 };
                for (uint32_t p = 0; p < args->n_parts; p++) {
                    const float l = lse[p * args->lse_part_stride];
                    if (is_empty(l)) {
                        continue; /* whatever its out holds: 0 x NaN is not computed */
                    }
                    const double weight = exp((double)l - (double)max) / z;
                    const float *part = out + p * args->out_part_stride + d0;
                    for (uint32_t d = 0; d < n; d++) {
                        sum[d] += weight * (double)part[d];
                    }
                }
                for (uint32_t d = 0; d < n; d++) {
                    merged[d0 + d] = (float)sum[d];
                }
            }
            if (args->lse_merged != NULL) {
                args->lse_merged[row * args->lse_merged_row_stride + head * args->lse_merged_head_stride] =
                    max == -INFINITY ? -INFINITY : (float)((double)max + log(z));
            }
        }
    }
}
