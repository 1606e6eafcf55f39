/* attn_merge_sm90a.h: Hopper's merge of partial results. The text of src/device/attn_merge.h takes a weight's exponential once for every dim and part, and reads
 * four bytes a lane at a time; here a lane takes it once for its part, the team hands it round, and four loads of 16 bytes are under way. Sums in f64,
 * in the order of the parts, as there: the read of the parts is what it costs. */
#ifndef OCT_CUDA_ATTN_MERGE_SM90A_H
#define OCT_CUDA_ATTN_MERGE_SM90A_H

#include "cuda/simt_write_sm90a.h"
#include "device/attn_merge.h"
#include "device/write_sm90a.h"

#define MERGE_AHEAD 4

/* Four floats at `at`, zeros unless is_there; n of them where they are not wide. */
DEV f32x4 merge_load(const float *at, int is_there, uint32_t is_wide, uint32_t n)
{
    f32x4 x = { 0.0f, 0.0f, 0.0f, 0.0f };
    if (is_there && is_wide) {
        const u32x4 v = global_load_16(at);
        x.x = oct__f32_of_bits(v.x);
        x.y = oct__f32_of_bits(v.y);
        x.z = oct__f32_of_bits(v.z);
        x.w = oct__f32_of_bits(v.w);
    } else if (is_there) {
        x.x = GET(at[0]);
        x.y = n > 1 ? GET(at[1]) : 0.0f;
        x.z = n > 2 ? GET(at[2]) : 0.0f;
        x.w = n > 3 ? GET(at[3]) : 0.0f;
    }
    return x;
}

KERNEL(attn_merge_sm90a, 128, 8, oct__merge_sm90a_params)
{
    const oct__merge_params *m = &p->merge;
    const uint32_t team = 1u << p->team_shift, lane = tid() & (team - 1), first = (tid() % WARP) & ~(team - 1);
    const uint64_t n_work = (uint64_t)m->rows * m->heads, teams = 128 >> p->team_shift;
    wait_previous();
    launch_next();
    for (uint64_t base = block_id() * teams; base < n_work; base += block_count() * teams) {
        const uint64_t mine = base + (tid() >> p->team_shift);
        const int is_mine = mine < n_work;
        const uint64_t work = is_mine ? mine : 0;
        const int64_t row = (int64_t)(n_work >> 32 == 0 ? (uint32_t)work / m->heads : work / m->heads), head = (int64_t)work - row * m->heads;
        const float *lse = m->lse + row * m->lse_row_stride + head * m->lse_head_stride;
        const float *out = m->out + row * m->out_row_stride + head * m->out_head_stride;
        float *merged = m->merged + row * m->merged_row_stride + head * m->merged_head_stride;
        float max = OCT__MINUS_INF;
        double z = 0.0;
        for (uint32_t part = lane; part < m->n_parts; part += team) {
            const float l = GET(lse[part * m->lse_part_stride]);
            max = max_f32(max, lse_is_empty(l) ? OCT__MINUS_INF : l);
        }
        UNROLL
        for (uint32_t mask = WARP / 2; mask > 0; mask /= 2) {
            if (mask < team) {
                max = max_f32(max, shfl_xor_f32(max, mask));
            }
        }
        for (uint32_t d0 = 0; d0 < m->dim; d0 += 4 * team) {
            const uint32_t d = d0 + 4 * lane, n = d < m->dim ? m->dim - d : 0;
            double sum[4] = { 0.0, 0.0, 0.0, 0.0 };
            z = 0.0;
            for (uint32_t part0 = 0; part0 < m->n_parts; part0 += team) {
                const uint32_t here = m->n_parts - part0 < team ? m->n_parts - part0 : team;
                const float l = lane < here ? GET(lse[(part0 + lane) * m->lse_part_stride]) : OCT__MINUS_INF;
                const float own = lse_is_empty(l) ? -1.0f : weight_of(l, max);   /* -1: whatever its out holds, 0 x NaN is not computed */
                for (uint32_t i0 = 0; i0 < here; i0 += MERGE_AHEAD) {
                    float weight[MERGE_AHEAD];
                    f32x4 x[MERGE_AHEAD];
                    UNROLL
                    for (uint32_t i = 0; i < MERGE_AHEAD; i++) {
                        const float w = warp_shuffle_f32(own, first + ((i0 + i) & (team - 1)));
                        weight[i] = i0 + i < here ? w : -1.0f;
                        x[i] = merge_load(out + (part0 + i0 + i) * m->out_part_stride + d, weight[i] >= 0.0f && n > 0 && is_mine, p->is_wide, n);
                    }
                    UNROLL
                    for (uint32_t i = 0; i < MERGE_AHEAD; i++) {
                        if (weight[i] >= 0.0f) {
                            const double w = (double)weight[i];
                            z += w;
                            sum[0] += w * (double)x[i].x;
                            sum[1] += w * (double)x[i].y;
                            sum[2] += w * (double)x[i].z;
                            sum[3] += w * (double)x[i].w;
                        }
                    }
                }
            }
            if (is_mine && n > 0) {
                uint32_t y[4];
                UNROLL
                for (uint32_t i = 0; i < 4; i++) {
                    y[i] = oct__f32_to_bits(z > 0.0 ? (float)(sum[i] / z) : 0.0f);
                }
                if (p->is_wide) {
                    const u32x4 v = { y[0], y[1], y[2], y[3] };
                    global_store_16(merged + d, v);
                } else {
                    UNROLL
                    for (uint32_t i = 0; i < 4; i++) {
                        if (i < n) {
                            PUT(merged[d + i], oct__f32_of_bits(y[i]));
                        }
                    }
                }
            }
        }
        if (m->lse_merged != 0 && lane == 0 && is_mine) {
            PUT(m->lse_merged[row * m->lse_merged_row_stride + head * m->lse_merged_head_stride], max == OCT__MINUS_INF ? max : max + log_f32((float)z));
        }
    }
}

#endif
