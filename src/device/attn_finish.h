/* attn_finish.h: from the state of a query row and head (o, m, z) to its row of out and lse: sink, division, V's scales, the inverse
 * rotation, the output's format. And attn_finish, which merges the states of rows whose keys were split, in split order, so that bits do
 * not depend on which block ended last. */
#ifndef OCT_DEVICE_ATTN_FINISH_H
#define OCT_DEVICE_ATTN_FINISH_H

#include "device/page.h"
#include "device/row.h"

#define LOG2_E 1.44269504f

/* The heads of a head tile. */
typedef struct head_cut {
    uint32_t head_kv, head0, n_heads;
} head_cut;

DEV head_cut head_cut_of(const oct__attn_params *p, uint32_t head_tile)
{
    const uint32_t cut = head_tile % p->n_cuts, begin = cut * p->group / p->n_cuts;
    head_cut c;
    c.head_kv = head_tile / p->n_cuts;
    c.head0 = c.head_kv * p->group + begin;
    c.n_heads = (cut + 1) * p->group / p->n_cuts - begin;
    return c;
}

/* exp(x) / exp(max) of a weight: 0 for -inf, whatever max is. */
DEV float weight_of(float x, float max)
{
    return x == OCT__MINUS_INF ? 0.0f : exp2_f32((x - max) * LOG2_E);
}

/* A state that holds no key. A NaN in z is a stored NaN that was seen, whatever m says, and must come out. */
DEV int state_is_empty(float m, float z)
{
    return z == 0.0f || (m == OCT__MINUS_INF && z == z);
}

/* From o of a row, in the warp's registers, to its values of out; returns its lse. sink: -inf where there is none; v_scale: V's static one. All lanes of a
 * warp. */
DEV float finish_values(const oct__attn_params *p, uint32_t head_kv, float sink, float v_scale, float *x, float m, float z)
{
    const oct__dev_side *v = &p->layer.v;
    float lse = sink;
    if (state_is_empty(m, z)) {
        UNROLL
        for (uint32_t i = 0; i < ROW_FLOATS; i++) {
            x[i] = 0.0f;
        }
    } else {
        const float max = max_f32(sink, m), keep = weight_of(m, max);
        const float total = z * keep + weight_of(sink, max);
        const float factor = keep / total * v_scale;
        lse = max + log_f32(total);
        UNROLL
        for (uint32_t i = 0; i < ROW_FLOATS; i++) {
            x[i] *= factor;
        }
        if (v->scale_mode == OCT_SCALE_CHANNEL) {
            /* Divided out of V after its rotation, so back in before the inverse, which is the rotation itself. */
            row_scale(x, v->scale + (uint64_t)head_kv * v->dim, v->dim);
        }
        if (v->rotated) {
            row_rotate(x, v->dim);
        }
    }
    return lse;
}

DEV void finish_lse(const oct__attn_params *p, int64_t row, uint32_t head, float lse)
{
    if (p->lse != 0 && tid() % WARP == 0) {
        PUT(p->lse[row * p->lse_row_stride + head * p->lse_head_stride], lse);
    }
}

/* x: o of the row in the warp's registers; used up. All lanes of a warp. */
DEV void finish_row(const oct__attn_params *p, int64_t row, uint32_t head, uint32_t head_kv, float *x, float m, float z)
{
    const oct__dev_side *v = &p->layer.v;
    const uint32_t out_bytes = element_bytes(p->out_dtype);
    const float sink = p->sink != 0 ? GET(p->sink[head]) : OCT__MINUS_INF;
    const float lse = finish_values(p, head_kv, sink, static_scale(v, head_kv), x, m, z);
    row_store((uint8_t *)p->out + (row * p->out_row_stride + head * p->out_head_stride) * out_bytes, p->out_dtype, out_bytes, x, v->dim,
              p->out_scale != 0 ? GET(*p->out_scale) : 1.0f);
    finish_lse(p, row, head, lse);
}

/* The state of a split's head tile. */
DEV float *state_of(const oct__attn_params *p, int64_t partial, uint32_t head_tile)
{
    return p->partials + ((uint64_t)partial * p->n_head_tiles + head_tile) * oct__dev_state_floats(p->tile_vectors, p->layer.v.dim);
}

/* o (in the warp's registers), m and z of a vector to their places in it. All lanes of a warp. */
DEV void store_state(const oct__attn_params *p, int64_t partial, uint32_t head_tile, uint32_t vector, const float *x, float m, float z)
{
    float *state = state_of(p, partial, head_tile), *last = state + (uint64_t)p->tile_vectors * p->layer.v.dim + vector;
    row_store(state + (uint64_t)vector * p->layer.v.dim, OCT_DTYPE_F32, 4, x, p->layer.v.dim, 1.0f);
    if (tid() % WARP == 0) {
        PUT(*last, m);
        PUT(last[p->tile_vectors], z);
    }
}

KERNEL(attn_finish, 128, 4, oct__attn_params)
{
    const uint32_t dim = p->layer.v.dim, n_vectors_max = p->tile_vectors;
    const uint64_t stride = oct__dev_state_floats(n_vectors_max, dim) * p->n_head_tiles;   /* from split to split */
    const uint64_t n_work = (uint64_t)GET(p->plan->n_groups[p->op]) * p->n_head_tiles;
    for (uint64_t work = block_id(); work < n_work; work += block_count()) {
        const oct__dev_group *group = p->groups + work / p->n_head_tiles;
        const uint32_t head_tile = (uint32_t)(work % p->n_head_tiles);
        const head_cut cut = head_cut_of(p, head_tile);
        const float *first = state_of(p, GET(group->partial), head_tile);
        const int32_t n_splits = GET(group->n_splits);
        const uint32_t n_vectors = (uint32_t)GET(group->n_rows) * cut.n_heads;
        const int64_t row0 = GET(group->row0);
        for (uint32_t vector = tid() / WARP; vector < n_vectors; vector += 128 / WARP) {
            const float *at_m = first + (uint64_t)n_vectors_max * dim + vector;
            const float *at_z = at_m + n_vectors_max;
            double sum[ROW_FLOATS], total = 0.0;
            float x[ROW_FLOATS], m = OCT__MINUS_INF;
            for (int32_t s = (int32_t)(tid() % WARP); s < n_splits; s += WARP) {
                m = max_f32(m, GET(at_m[(uint64_t)s * stride]));
            }
            m = warp_max_f32(m);
            UNROLL
            for (uint32_t i = 0; i < ROW_FLOATS; i++) {
                sum[i] = 0.0;
            }
            /* f64 sums: with hundreds of splits the result must not differ from one pass. */
            for (int32_t s = 0; s < n_splits; s++) {
                const float split_m = GET(at_m[(uint64_t)s * stride]), split_z = GET(at_z[(uint64_t)s * stride]);
                if (!state_is_empty(split_m, split_z)) {
                    const double weight = (double)weight_of(split_m, m);
                    float part[ROW_FLOATS];
                    total += weight * (double)split_z;
                    row_load(part, first + (uint64_t)s * stride + (uint64_t)vector * dim, OCT_DTYPE_F32, 4, dim);
                    UNROLL
                    for (uint32_t i = 0; i < ROW_FLOATS; i++) {
                        sum[i] += weight * (double)part[i];
                    }
                }
            }
            UNROLL
            for (uint32_t i = 0; i < ROW_FLOATS; i++) {
                x[i] = (float)sum[i];
            }
            finish_row(p, row0 + vector / cut.n_heads, cut.head0 + vector % cut.n_heads, cut.head_kv, x, m, (float)total);
        }
    }
}

#endif
