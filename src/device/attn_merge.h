/* attn_merge.h: partial results of the same rows into one, weighted by their lse: oct_attn_merge on the device. A warp a row and head. */
#ifndef OCT_DEVICE_ATTN_MERGE_H
#define OCT_DEVICE_ATTN_MERGE_H

#include "device/attn_finish.h"

/* -inf says so; +inf and NaN are what broken or never written partials hold. */
DEV int lse_is_empty(float lse)
{
    return !oct__f32_bits_are_finite(oct__f32_to_bits(lse));
}

KERNEL(attn_merge, 128, 8, oct__merge_params)
{
    const uint64_t n_work = (uint64_t)p->rows * p->heads;
    const uint32_t lane = tid() % WARP;
    for (uint64_t work = block_id() * (128 / WARP) + tid() / WARP; work < n_work; work += block_count() * (128 / WARP)) {
        const int64_t row = (int64_t)(work / p->heads), head = (int64_t)(work % p->heads);
        const float *lse = p->lse + row * p->lse_row_stride + head * p->lse_head_stride;
        const float *out = p->out + row * p->out_row_stride + head * p->out_head_stride;
        float *merged = p->merged + row * p->merged_row_stride + head * p->merged_head_stride;
        float max = OCT__MINUS_INF;
        double z = 0.0;
        for (uint32_t part = lane; part < p->n_parts; part += WARP) {
            const float l = GET(lse[part * p->lse_part_stride]);
            max = max_f32(max, lse_is_empty(l) ? OCT__MINUS_INF : l);
        }
        max = warp_max_f32(max);
        for (uint32_t part = 0; part < p->n_parts; part++) {
            const float l = GET(lse[part * p->lse_part_stride]);
            z += lse_is_empty(l) ? 0.0 : (double)weight_of(l, max);
        }
        for (uint32_t d = lane; d < p->dim; d += WARP) {
            double sum = 0.0;
            for (uint32_t part = 0; part < p->n_parts; part++) {
                const float l = GET(lse[part * p->lse_part_stride]);
                if (!lse_is_empty(l)) {   /* whatever an empty part's out holds: 0 x NaN is not computed */
                    sum += (double)weight_of(l, max) * (double)GET(out[part * p->out_part_stride + d]);
                }
            }
            PUT(merged[d], z > 0.0 ? (float)(sum / z) : 0.0f);
        }
        if (p->lse_merged != 0 && lane == 0) {
            PUT(p->lse_merged[row * p->lse_merged_row_stride + head * p->lse_merged_head_stride],
                max == OCT__MINUS_INF ? max : max + log_f32((float)z));
        }
    }
}

#endif
