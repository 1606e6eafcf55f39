/* attn_finish_sm90a.h: merges the states of rows whose keys were split, in an order that is fixed, as attn_finish does, for plans of few rows and many
 * splits too: where a row has more than a few splits, a block takes it and its warps (at dims of up to 128, halves of them) share the splits, with all
 * loads of a turn on their way together; where rows have a few on average, a warp takes a row and walks in turn what the block's warps would have summed.
 * Who takes a row depends on its batch mates, its bits do not. f32 sums: the class of 16-bit products. */
#ifndef OCT_CUDA_ATTN_FINISH_SM90A_H
#define OCT_CUDA_ATTN_FINISH_SM90A_H

#include "cuda/simt_sm90a.h"
#include "device/attn_finish.h"
#include "device/sm90a.h"

#define FINISH_WARPS (OCT__FINISH_SM90A_LANES / WARP)
#define FINISH_FEW 4u         /* splits that a warp merges on its own */
#define FINISH_QUAD 4u        /* warps that take rows of one tile then */
#define FINISH_AT_ONCE 4u     /* splits of a lane's turn */

/* A running merge: the lane's eight dims, and the state's maximum and sum. */
typedef struct finish_sum {
    float x[8], m, z;
} finish_sum;

DEV finish_sum finish_nothing(void)
{
    finish_sum sum;
    UNROLL
    for (uint32_t i = 0; i < 8; i++) {
        sum.x[i] = 0.0f;
    }
    sum.m = OCT__MINUS_INF;
    sum.z = 0.0f;
    return sum;
}

/* Adds `other`, of the same dims. Empty ones, of m -inf, are neutral: no product of theirs is made. */
DEV void finish_add(finish_sum *sum, const float *x, float m, float z)
{
    const float top = max_f32(sum->m, m), keep = weight_of(sum->m, top), weight = weight_of(m, top);
    if (!state_is_empty(m, z)) {
        UNROLL
        for (uint32_t i = 0; i < 8; i++) {
            sum->x[i] = fma_f32(x[i], weight, sum->x[i] * keep);
        }
        sum->z = fma_f32(z, weight, sum->z * keep);
        sum->m = top;
    }
}

/* As finish_row, with the sink and V's scale, which whoever calls has asked for long before: behind the requests for K and V they would wait for
 * microseconds. A plain row is bf16 at multiples of 16 bytes. */
DEV void finish_row_sm90a(const oct__attn_params *p, int64_t row, uint32_t head, uint32_t head_kv, float sink, float v_scale, float *x, float m, float z,
                          const uint32_t is_plain)
{
    const float lse = finish_values(p, head_kv, sink, v_scale, x, m, z);
    const uint32_t d = tid() % WARP * 8, out_bytes = element_bytes(p->out_dtype);
    if (!is_plain) {
        row_store((uint8_t *)p->out + (row * p->out_row_stride + head * p->out_head_stride) * out_bytes, p->out_dtype, out_bytes, x, p->layer.v.dim,
                  p->out_scale != 0 ? GET(*p->out_scale) : 1.0f);
    } else if (d < p->layer.v.dim) {
        const u32x4 eight = { pack_bf16(x[0], x[1]), pack_bf16(x[2], x[3]), pack_bf16(x[4], x[5]), pack_bf16(x[6], x[7]) };
        global_store_16((uint8_t *)p->out + (row * p->out_row_stride + head * p->out_head_stride + d) * 2, eight);
    }
    finish_lse(p, row, head, lse);
}

/* part_x: [warps][256]; part_m, part_z: [warps]. All of a block. */
DEV void finish_blocks(const oct__attn_params *p, float *part_x, float *part_m, float *part_z, const uint32_t is_plain)
{
    uint32_t waited = 0;
    launch_next();   /* it waits for this kernel's end, and this one for the decode's */
    const uint32_t dim = p->layer.v.dim, n_vectors_max = p->tile_vectors, warp = tid() / WARP, lane = tid() % WARP;
    const uint32_t lanes = dim <= 128 ? 16 : 32, n_subs = 32 / lanes, sub = lane / lanes, d = lane % lanes * 8;
    const uint64_t stride = oct__dev_state_floats(n_vectors_max, dim) * p->n_head_tiles;   /* from split to split */
    const uint32_t n_groups = GET(p->plan->n_groups[p->op]), n_tiles = n_groups * p->n_head_tiles;
    const uint32_t is_few = GET(p->plan->n_partials[p->op]) <= FINISH_FEW * n_groups;   /* on average: both ways take any number */
    const uint32_t at_a_time = is_few ? FINISH_WARPS / FINISH_QUAD : 1;   /* of a block: its quads go their own ways */
    const uint64_t n_work = (uint64_t)n_tiles * (is_few ? (n_vectors_max + FINISH_QUAD - 1) / FINISH_QUAD : n_vectors_max);
    NO_UNROLL
    for (uint64_t at = block_id() * at_a_time + (is_few ? warp / FINISH_QUAD : 0); at < n_work; at += block_count() * at_a_time) {
        const uint32_t work = (uint32_t)at;   /* fixed splits of very long rows are what comes next to 2^32 */
        /* Slices, of which the last ones may be empty, go slowest, so that the blocks share the others evenly. */
        const uint32_t slice = work / n_tiles, head_tile = work % n_tiles % p->n_head_tiles;
        const oct__dev_group *group = p->groups + work % n_tiles / p->n_head_tiles;
        const head_cut cut = head_cut_of(p, head_tile);
        const uint32_t n_splits = (uint32_t)GET(group->n_splits), n_vectors = (uint32_t)GET(group->n_rows) * cut.n_heads;
        const uint32_t vector = is_few ? slice * FINISH_QUAD + warp % FINISH_QUAD : slice;
        const uint32_t part0 = is_few ? 0 : warp, n_parts = is_few ? FINISH_WARPS : 1, step = FINISH_WARPS * n_subs;
        const float *state = state_of(p, GET(group->partial), head_tile);
        const uint32_t head = cut.head0 + vector % cut.n_heads;
        const float sink = p->sink != 0 && vector < n_vectors ? GET(p->sink[head]) : OCT__MINUS_INF, v_scale = static_scale(&p->layer.v, cut.head_kv);
        finish_sum sum = finish_nothing();
        if (slice * (is_few ? FINISH_QUAD : 1) >= n_vectors) {
            continue;
        }
        if (!waited) {   /* the plan stood before the decode began; its states may still be on their way */
            wait_previous();
            waited = 1;
        }
        NO_UNROLL
        for (uint32_t part = part0; part < part0 + n_parts && (part == part0 || part * n_subs < n_splits); part++) {   /* further parts are empty */
            finish_sum one = finish_nothing();
            if (vector < n_vectors) {
                const float *at_x = state + (uint64_t)vector * dim + d, *at_m = state + (uint64_t)n_vectors_max * dim + vector, *at_z = at_m + n_vectors_max;
                NO_UNROLL
                for (uint32_t s = part * n_subs + sub; s < n_splits; s += FINISH_AT_ONCE * step) {
                    float x[FINISH_AT_ONCE][8], m[FINISH_AT_ONCE], z[FINISH_AT_ONCE];
                    UNROLL
                    for (uint32_t u = 0; u < FINISH_AT_ONCE; u++) {
                        const uint64_t from = (uint64_t)(s + u * step) * stride;
                        f32x4 low = { 0.0f, 0.0f, 0.0f, 0.0f }, high = low;
                        m[u] = OCT__MINUS_INF;
                        z[u] = 0.0f;
                        if (s + u * step < n_splits) {
                            m[u] = GET(at_m[from]);
                            z[u] = GET(at_z[from]);
                            if (d < dim) {
                                low = GET(*(const f32x4 *)(at_x + from));
                                high = GET(*(const f32x4 *)(at_x + from + 4));
                            }
                        }
                        x[u][0] = low.x;
                        x[u][1] = low.y;
                        x[u][2] = low.z;
                        x[u][3] = low.w;
                        x[u][4] = high.x;
                        x[u][5] = high.y;
                        x[u][6] = high.z;
                        x[u][7] = high.w;
                    }
                    UNROLL
                    for (uint32_t u = 0; u < FINISH_AT_ONCE; u++) {
                        finish_add(&one, x[u], m[u], z[u]);
                    }
                }
            }
            if (n_subs == 2) {
                float x[8];
                UNROLL
                for (uint32_t i = 0; i < 8; i++) {
                    x[i] = shfl_xor_f32(one.x[i], 16);
                }
                const float m = shfl_xor_f32(one.m, 16), z = shfl_xor_f32(one.z, 16);
                finish_add(&one, x, m, z);
            }
            if (part == part0) {   /* not added to nothing, which would take a zero's sign */
                sum = one;
            } else {
                finish_add(&sum, one.x, one.m, one.z);
            }
        }
        if (!is_few) {
            if (lane < lanes) {
                const f32x4 low = { sum.x[0], sum.x[1], sum.x[2], sum.x[3] }, high = { sum.x[4], sum.x[5], sum.x[6], sum.x[7] };
                shared_store_f32x4(part_x + warp * 256 + d, low);
                shared_store_f32x4(part_x + warp * 256 + d + 4, high);
            }
            if (lane == 0) {
                SPUT(part_m[warp], sum.m);
                SPUT(part_z[warp], sum.z);
            }
            block_sync();
            if (warp == 0) {
                NO_UNROLL
                for (uint32_t w = 1; w < FINISH_WARPS; w++) {
                    const f32x4 low = shared_load_f32x4(part_x + w * 256 + d), high = shared_load_f32x4(part_x + w * 256 + d + 4);
                    const float x[8] = { low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w };
                    finish_add(&sum, x, SGET(part_m[w]), SGET(part_z[w]));
                }
            }
            block_sync();
        }
        if (vector < n_vectors && (is_few || warp == 0)) {
            /* Rows of row.h: lane l holds eight l, whatever follows dim is 0. */
            float x[ROW_FLOATS];
            UNROLL
            for (uint32_t i = 0; i < ROW_FLOATS; i++) {
                x[i] = i < 8 && lane * 8 < dim ? sum.x[i % 8] : 0.0f;
            }
            finish_row_sm90a(p, GET(group->row0) + vector / cut.n_heads, head, cut.head_kv, sink, v_scale, x, sum.m, sum.z, is_plain);
        }
    }
    if (!waited) {   /* no block may end before the decode has: what follows this kernel relies on both */
        wait_previous();
    }
}

KERNEL(attn_finish_sm90a, OCT__FINISH_SM90A_LANES, 2, oct__attn_params)
{
    SHARED(float, part_x, FINISH_WARPS * 256);
    SHARED(float, part_m, FINISH_WARPS);
    SHARED(float, part_z, FINISH_WARPS);
    finish_blocks(p, part_x, part_m, part_z, 0);
}

/* Of plain outputs (device/launch_sm90a.h): a quarter of the text. */
KERNEL(attn_finish_sm90a_plain, OCT__FINISH_SM90A_LANES, 2, oct__attn_params)
{
    SHARED(float, part_x, FINISH_WARPS * 256);
    SHARED(float, part_m, FINISH_WARPS);
    SHARED(float, part_z, FINISH_WARPS);
    oct__attn_params own = *p;
    own.layer.v.rotated = 0;
    own.layer.v.scale_mode = own.layer.v.scale_mode < OCT_SCALE_TOKEN_HEAD ? own.layer.v.scale_mode : OCT_SCALE_TOKEN_HEAD;
    finish_blocks(&own, part_x, part_m, part_z, 1);
}

#endif
