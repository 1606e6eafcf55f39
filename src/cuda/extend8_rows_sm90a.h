/* extend8_rows_sm90a.h: what a warp of attn_extend8_sm90a.h does with its 16 vectors besides their keys: q into shared memory, in one or two terms of e4m3,
 * and the totals that take over its sums. */
#ifndef OCT_CUDA_EXTEND8_ROWS_SM90A_H
#define OCT_CUDA_EXTEND8_ROWS_SM90A_H

#include "cuda/extend8_load_sm90a.h"
#include "cuda/extend_rows_sm90a.h"

/* ---- q --------------------------------------------------------------------------------------------------------------------------------------------- */

/* Where eight elements of a vector of the warp's go, of the first term. */
DEV shared_at ext8_q_spot(const ext_block *t, const ext8_kind k, uint32_t row, uint32_t eight)
{
    const uint32_t in_group = t->warp % 4 * 16 + row, chunk = eight / 2;
    return t->base + t->at.q + t->warp / 4 * (64 * k.x.dim_k * k.terms) + chunk / 8 * (64 * 128) + in_group * 128 + ((chunk % 8) ^ (in_group % 8)) * 16 + eight % 2 * 8;
}

/* x: eight elements, under 256. */
DEV void ext8_put_q(const ext8_kind k, shared_at place, float *x)
{
    UNROLL
    for (uint32_t term = 0; term < k.terms; term++) {
        u32x2 code;
        float back[4];
        code.x = encode_fp8_4(x, OCT_DTYPE_E4M3FN, 0);
        code.y = encode_fp8_4(x + 4, OCT_DTYPE_E4M3FN, 0);
        if (term + 1 < k.terms) {
            decode_word(code.x, OCT_DTYPE_E4M3FN, back);
            UNROLL
            for (uint32_t i = 0; i < 4; i++) {
                x[i] -= back[i];
            }
            decode_word(code.y, OCT_DTYPE_E4M3FN, back);
            UNROLL
            for (uint32_t i = 0; i < 4; i++) {
                x[4 + i] -= back[i];
            }
        }
        shared_write_8(place + term * (64 * k.x.dim_k), code);
    }
}

/* The warp's vectors of q, in the place where the instructions read them; their factors. */
DEV void ext8_bring_q(const ext_block *t, const ext_rows *r, const ext8_kind k, ext_state *state)
{
    const oct__attn_params *p = t->p;
    const uint32_t dim = p->layer.k.dim, q_bytes = element_bytes(p->q_dtype);
    const int64_t row_bytes = p->q_row_stride * (int64_t)q_bytes, head_bytes = p->q_head_stride * (int64_t)q_bytes;
    const uint8_t *q = (const uint8_t *)p->q + r->row0 * row_bytes + (int64_t)r->cut.head0 * head_bytes;
    float *factor = (float *)(t->shared + t->at.factor) + t->warp * 16;
    const int is_plain = !p->layer.k.rotated && p->layer.k.scale_mode != OCT_SCALE_CHANNEL &&
                         (((uint64_t)(uintptr_t)p->q | (uint64_t)row_bytes | (uint64_t)head_bytes | dim * q_bytes) & 15) == 0;
    if (is_plain && k.terms == 1) {
        const uint32_t lanes = k.x.dim_k / 16, rows = 32 / lanes, chunk = t->lane % lanes, turns = 16 / rows;
        u32x4 held[8];
        UNROLL
        for (uint32_t i = 0; i < turns; i++) {
            const uint32_t vector = r->vector0 + i * rows + t->lane / lanes;
            const u32x4 none = { 0, 0, 0, 0 };
            held[i] = none;
            if (chunk * 16 < dim && vector < r->n_vectors) {
                held[i] = global_load_16(q + vector / r->cut.n_heads * row_bytes + (int64_t)(vector % r->cut.n_heads) * head_bytes + chunk * 16);
            }
        }
        UNROLL
        for (uint32_t i = 0; i < turns; i++) {
            shared_write_16(ext8_q_spot(t, k, i * rows + t->lane / lanes, 2 * chunk), held[i]);
        }
    } else if (is_plain && q_bytes == 2) {
        const uint32_t lanes = ext_lanes_of_row(k.x.dim_k * 2), rows = 32 / lanes, chunk = t->lane % lanes, turns = 16 / rows, batch = turns < 8 ? turns : 8;
        NO_UNROLL
        for (uint32_t first = 0; first < turns; first += batch) {
            u32x4 held[8];
            UNROLL
            for (uint32_t i = 0; i < batch; i++) {
                const uint32_t vector = r->vector0 + (first + i) * rows + t->lane / lanes;
                const u32x4 none = { 0, 0, 0, 0 };
                held[i] = none;
                if (chunk * 8 < dim && vector < r->n_vectors) {
                    held[i] = global_load_16(q + vector / r->cut.n_heads * row_bytes + (int64_t)(vector % r->cut.n_heads) * head_bytes + chunk * 16);
                }
            }
            UNROLL
            for (uint32_t i = 0; i < batch; i++) {
                const uint32_t row = (first + i) * rows + t->lane / lanes, word[4] = { held[i].x, held[i].y, held[i].z, held[i].w };
                float x[8], grow;
                UNROLL
                for (uint32_t w = 0; w < 4; w++) {
                    if (p->q_dtype == OCT_DTYPE_BF16) {
                        decode_word(word[w], OCT_DTYPE_BF16, x + 2 * w);
                    } else {
                        decode_word(word[w], OCT_DTYPE_F16, x + 2 * w);
                    }
                }
                float amax = ext_amax(x);
                UNROLL
                for (uint32_t step = 1; step < lanes; step *= 2) {
                    amax = max_f32(amax, shfl_xor_f32(amax, step));
                }
                const float shrink = ext_shrink(amax, &grow) * 128.0f;   /* up to 256 */
                UNROLL
                for (uint32_t e = 0; e < 8; e++) {
                    x[e] *= shrink;
                }
                ext8_put_q(k, ext8_q_spot(t, k, row, chunk), x);
                if (chunk == 0) {
                    SPUT(factor[row], grow * 0.0078125f);
                }
            }
        }
    } else {
        NO_UNROLL
        for (uint32_t row = 0; row < 16; row++) {
            const uint32_t vector = r->vector0 + row;
            float x[ROW_FLOATS], grow = 1.0f;
            UNROLL
            for (uint32_t i = 0; i < ROW_FLOATS; i++) {
                x[i] = 0.0f;
            }
            if (vector < r->n_vectors) {
                row_load(x, q + vector / r->cut.n_heads * row_bytes + (int64_t)(vector % r->cut.n_heads) * head_bytes, p->q_dtype, q_bytes, dim);
                if (p->layer.k.rotated) {
                    row_rotate(x, dim);
                }
                if (p->layer.k.scale_mode == OCT_SCALE_CHANNEL) {
                    row_scale(x, p->layer.k.scale + (uint64_t)r->cut.head_kv * dim, dim);
                }
            }
            if (k.terms > 1) {   /* else of e4m3, as it is */
                const float shrink = ext_shrink(warp_max_f32(ext_amax(x)), &grow) * 128.0f;
                grow *= 0.0078125f;
                UNROLL
                for (uint32_t i = 0; i < 8; i++) {
                    x[i] *= shrink;
                }
            }
            if (t->lane * 8 < k.x.dim_k) {
                ext8_put_q(k, ext8_q_spot(t, k, row, t->lane), x);
            }
            if (k.terms > 1 && t->lane == 0) {
                SPUT(factor[row], grow);
            }
        }
    }
    proxy_fence();
    warp_sync();
    const float score_scale = p->sm_scale * (p->q_scale != 0 ? GET(*p->q_scale) : 1.0f) * static_scale(&p->layer.k, r->cut.head_kv) * LOG2_E;
    UNROLL
    for (uint32_t h = 0; h < 2; h++) {
        state->factor[h] = k.terms > 1 ? score_scale * SGET(factor[t->lane / 4 + 8 * h]) : score_scale;   /* of e4m3 as it is: one for all, in one register */
    }
}

/* ---- totals ------------------------------------------------------------------------------------------------------------------------------------------ */

DEV shared_at ext8_totals(const ext_block *t, shared_at totals, const ext8_kind k)
{
    return totals + t->warp / 4 * (64 * k.x.dim_v * 2) + (t->warp % 4 * 32 + t->lane) * 16;
}

/* A word of a total, two bf16, comes down by `keep` and takes x and y over; what rounding leaves stays in them. */
DEV uint32_t ext8_take_over(uint32_t word, float keep, float *x, float *y)
{
    const float low = fma_f32(oct__f32_of_bits(word << 16), keep, *x), high = fma_f32(oct__f32_of_bits(word & 0xFFFF0000u), keep, *y);
    const uint32_t sum = pack_bf16(low, high);
    *x = low - oct__f32_of_bits(sum << 16);
    *y = high - oct__f32_of_bits(sum & 0xFFFF0000u);
    return sum;
}

/* The sums go into the lane's part of the totals, whose unit comes down by `keep`. */
DEV void ext8_total(shared_at own, const ext8_kind k, const float *keep, float *o)
{
    UNROLL
    for (uint32_t i = 0; i < k.x.dim_v / 16; i++) {
        u32x4 v = shared_read_16(own + i * 2048);
        v.x = ext8_take_over(v.x, keep[0], o + 8 * i, o + 8 * i + 1);
        v.y = ext8_take_over(v.y, keep[1], o + 8 * i + 2, o + 8 * i + 3);
        v.z = ext8_take_over(v.z, keep[0], o + 8 * i + 4, o + 8 * i + 5);
        v.w = ext8_take_over(v.w, keep[1], o + 8 * i + 6, o + 8 * i + 7);
        shared_write_16(own + i * 2048, v);
    }
}

/* The same of z, whose columns are alike; total: of both vectors. */
DEV void ext8_add(uint32_t *total, const float *keep, float *z)
{
    const float low = fma_f32(oct__f32_of_bits(*total << 16), keep[0], z[0]), high = fma_f32(oct__f32_of_bits(*total & 0xFFFF0000u), keep[1], z[2]);
    *total = pack_bf16(low, high);
    z[0] = z[1] = low - oct__f32_of_bits(*total << 16);
    z[2] = z[3] = high - oct__f32_of_bits(*total & 0xFFFF0000u);
}

/* At the end: totals and sums together. */
DEV void ext8_join(shared_at own, const ext8_kind k, const float *keep, float *o)
{
    UNROLL
    for (uint32_t i = 0; i < k.x.dim_v / 16; i++) {
        const u32x4 v = shared_read_16(own + i * 2048);
        const uint32_t word[4] = { v.x, v.y, v.z, v.w };
        UNROLL
        for (uint32_t e = 0; e < 4; e++) {
            o[8 * i + 2 * e] = fma_f32(oct__f32_of_bits(word[e] << 16), keep[e % 2], o[8 * i + 2 * e]);
            o[8 * i + 2 * e + 1] = fma_f32(oct__f32_of_bits(word[e] & 0xFFFF0000u), keep[e % 2], o[8 * i + 2 * e + 1]);
        }
    }
}

#endif
