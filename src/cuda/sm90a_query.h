/* sm90a_query.h: q of attn_decode_sm90a.h, straight into the fragments that meet K as its bytes lie. */
#ifndef OCT_CUDA_SM90A_QUERY_H
#define OCT_CUDA_SM90A_QUERY_H

#include "cuda/sm90a_ring.h"

/* Whether lanes load q's elements straight to their places. */
DEV uint32_t sm90_q_is_wide(const oct__attn_params *p)
{
    const uint64_t bytes = ((uint64_t)p->q_row_stride | (uint64_t)p->q_head_stride) * element_bytes(p->q_dtype);
    return element_bytes(p->q_dtype) == 2 && (((uint64_t)(uintptr_t)p->q | bytes) & 15) == 0;
}

/* Asks for the lane's elements of q of vector lane / 4 of block b of 8, at the very dims of its K chunks, where they are wide. raw: [dim / 8]. */
DEV void sm90_fetch_q(const sm90_warp *t, const sm90_rows *r, uint32_t b, uint32_t half, const sm90_kind k, uint32_t *raw)
{
    const oct__attn_params *p = t->p;
    const uint32_t chunk = 16 / k.k_size;
    if (!k.is_plain && !sm90_q_is_wide(p)) {
        return;
    }
    const uint32_t vector = b * 8 + t->lane / 4, is_there = vector < sm90_vectors(t, r);
    const uint8_t *at = (const uint8_t *)p->q + (GET(sm90_task(t, r)->row0) + vector / t->cut.n_heads) * p->q_row_stride * 2 +
                        (int64_t)(head_cut_of(p, t->head_tile).head0 + vector % t->cut.n_heads) * p->q_head_stride * 2;
    UNROLL
    for (uint32_t i = 0; i < k.dim / 32; i++) {   /* eights */
        const uint32_t d = (t->lane % 4 + 4 * (i * 8 / chunk)) * chunk + i * 8 % chunk;
        u32x4 v = { 0, 0, 0, 0 };
        if (is_there && half * k.dim + d < p->layer.k.dim) {
            v = global_load_16(at + (half * k.dim + d) * 2);
        }
        raw[4 * i] = v.x;
        raw[4 * i + 1] = v.y;
        raw[4 * i + 2] = v.z;
        raw[4 * i + 3] = v.w;
    }
}

/* Asks for q of the rows, for the warp's dims and as it is, at `to`: vector v's chunk c of eight at c ^ v % 8 of its row. Of plain kernels. */
DEV void sm90_ask_q(const sm90_warp *t, const sm90_rows *r, shared_at to, const sm90_kind k)
{
    const oct__attn_params *p = t->p;
    const uint32_t chunks = k.dim / 8, n = sm90_vectors(t, r);
    const int64_t row0 = GET(sm90_task(t, r)->row0);
    UNROLL
    for (uint32_t i = 0; i < k.blocks * 8 * chunks / WARP; i++) {
        const uint32_t vector = i * (WARP / chunks) + t->lane / chunks, c = t->lane % chunks;
        const shared_at there = to + (vector * chunks + (c ^ (vector & 7))) * 16;
        if (vector < n && c * 8 < t->k_dim) {
            async_load_16(there, (const uint8_t *)p->q + ((row0 + vector / t->cut.n_heads) * p->q_row_stride +
                                                          (int64_t)(t->cut.head0 + vector % t->cut.n_heads) * p->q_head_stride + t->half * k.dim + c * 8) * 2);
        } else {
            const u32x4 none = { 0, 0, 0, 0 };
            shared_write_16(there, none);
        }
    }
}

DEV shared_at sm90_next_q(const sm90_warp *t, const sm90_kind k, uint32_t half)
{
    return shared_at_of(t->shared + t->at.next_q + (t->head * k.halves + half) * k.dim * k.blocks * 16);
}

/* The lane's own of it, as sm90_fetch_q brings them. */
DEV void sm90_take_q(const sm90_warp *t, shared_at from, uint32_t b, const sm90_kind k, uint32_t *raw)
{
    const uint32_t chunk = 16 / k.k_size, chunks = k.dim / 8, vector = b * 8 + t->lane / 4;
    UNROLL
    for (uint32_t i = 0; i < k.dim / 32; i++) {
        const uint32_t c = ((t->lane % 4 + 4 * (i * 8 / chunk)) * chunk + i * 8 % chunk) / 8;
        const u32x4 v = shared_read_16(from + (vector * chunks + (c ^ (vector & 7))) * 16);
        raw[4 * i] = v.x;
        raw[4 * i + 1] = v.y;
        raw[4 * i + 2] = v.z;
        raw[4 * i + 3] = v.w;
    }
}

/* The same elements as f32. raw: from sm90_fetch_q; spare: the slot that nobody uses. */
DEV void sm90_load_q(const sm90_warp *t, const sm90_rows *r, uint32_t block, uint32_t half, const uint32_t *raw, float *spare,
                     const sm90_kind k, float *x)
{
    const oct__attn_params *p = t->p;
    const uint32_t chunk = 16 / k.k_size, eights = k.dim / 32, first = half * k.dim, q_bytes = element_bytes(p->q_dtype);   /* eights of a lane */
    const int64_t row0 = GET(sm90_task(t, r)->row0);
    const int64_t row_bytes = p->q_row_stride * (int64_t)q_bytes, head_bytes = p->q_head_stride * (int64_t)q_bytes;
    if (k.is_plain || sm90_q_is_wide(p)) {
        if (p->q_dtype == OCT_DTYPE_BF16) {
            UNROLL
            for (uint32_t i = 0; i < eights * 4; i++) {
                decode_word(raw[i], OCT_DTYPE_BF16, x + 2 * i);
            }
        } else {
            UNROLL
            for (uint32_t i = 0; i < eights * 4; i++) {
                decode_word(raw[i], OCT_DTYPE_F16, x + 2 * i);
            }
        }
        return;
    }
    const uint32_t dim = p->layer.k.dim <= first ? 0 : p->layer.k.dim - first < k.dim ? p->layer.k.dim - first : k.dim;   /* of the half */
    NO_UNROLL
    for (uint32_t e = t->lane; e < 8 * (dim / 8); e += WARP) {
        const uint32_t own = block * 8 + e / (dim / 8), d = e % (dim / 8) * 8;
        float eight[8] = { 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f };
        if (own < sm90_vectors(t, r)) {
            load_eight((const uint8_t *)p->q + (row0 + own / t->cut.n_heads) * row_bytes + (int64_t)(head_cut_of(p, t->head_tile).head0 + own % t->cut.n_heads) * head_bytes + (first + d) * q_bytes,
                       p->q_dtype, eight);
        }
        const f32x4 low = { eight[0], eight[1], eight[2], eight[3] }, high = { eight[4], eight[5], eight[6], eight[7] };
        shared_store_f32x4(spare + e / (dim / 8) * k.dim + d, low);
        shared_store_f32x4(spare + e / (dim / 8) * k.dim + d + 4, high);
    }
    warp_sync();
    UNROLL
    for (uint32_t i = 0; i < eights * 2; i++) {
        const uint32_t d = (t->lane % 4 + 4 * (i * 4 / chunk)) * chunk + i * 4 % chunk;
        f32x4 v = { 0.0f, 0.0f, 0.0f, 0.0f };
        if (d < dim) {
            v = shared_load_f32x4(spare + t->lane / 4 * k.dim + d);
        }
        x[4 * i] = v.x;
        x[4 * i + 1] = v.y;
        x[4 * i + 2] = v.z;
        x[4 * i + 3] = v.w;
    }
    warp_sync();
}

/* The transform of row_rotate over elements that lie as sm90_load_q brings them: within a chunk, over the four lanes of a row, over a lane's chunks. */
DEV void sm90_rotate(const sm90_warp *t, uint32_t dim, const sm90_kind k, float *x)
{
    const uint32_t chunk = 16 / k.k_size, n = k.dim / 4, block = dim & (~dim + 1u);
    float norm = 1.0f;
    UNROLL
    for (uint32_t step = 1; step < chunk; step *= 2) {
        if (step < block) {
            UNROLL
            for (uint32_t i = 0; i < n; i++) {
                if ((i & step) == 0) {
                    const float a = x[i], b = x[i + step];
                    x[i] = a + b;
                    x[i + step] = a - b;
                }
            }
        }
    }
    UNROLL
    for (uint32_t lanes = 1; lanes < 4; lanes *= 2) {
        if (chunk * lanes < block) {
            UNROLL
            for (uint32_t i = 0; i < n; i++) {
                x[i] = butterfly(x[i], shfl_xor_f32(x[i], lanes), t->lane & lanes);
            }
        }
    }
    UNROLL
    for (uint32_t step = chunk; step < n; step *= 2) {
        if (step * 4 < block) {
            UNROLL
            for (uint32_t i = 0; i < n; i++) {
                if ((i & step) == 0) {
                    const float a = x[i], b = x[i + step];
                    x[i] = a + b;
                    x[i + step] = a - b;
                }
            }
        }
    }
    for (uint32_t rest = block; rest > 1; rest /= 4) {
        norm *= rest >= 4 ? 0.5f : 0.707106781186547524f;
    }
    UNROLL
    for (uint32_t i = 0; i < n; i++) {
        x[i] *= norm;
    }
}

/* q as fragments: times K's channel scales, rotated as K is, brought to [1, 2) by a power of two, which goes into the score's factor, so that f16 holds it
 * whatever its size. q: [blocks][steps][2], or `q_at` in shared memory. */
DEV void sm90_bring_q(const sm90_warp *t, const sm90_rows *r, float *spare, shared_at q_at, const sm90_kind k, sm90_state *state,
                       const uint32_t *raw, uint32_t *q)
{
    const oct__attn_params *p = t->p;
    const uint32_t n = k.dim / 4, chunk = 16 / k.k_size, dim = p->layer.k.dim;
    const float score_scale = p->sm_scale * t->q_scale * t->k_scale * LOG2_E;
    UNROLL
    for (uint32_t b = 0; b < k.blocks; b++) {
        float x[32], amax = 0.0f;
        uint32_t fetched[16];
        if (k.is_plain) {
            sm90_take_q(t, sm90_next_q(t, k, t->half), b, k, fetched);
        } else if (k.blocks == 2) {
            sm90_fetch_q(t, r, b, t->half, k, fetched);
        }
        sm90_load_q(t, r, b, t->half, k.is_plain || k.blocks == 2 ? fetched : raw, spare, k, x);
        if (p->layer.k.rotated && k.halves == 2 && dim == 2 * k.dim) {   /* the rotation's step over both halves */
            uint32_t its[16];
            float y[32];
            if (k.is_plain) {
                sm90_take_q(t, sm90_next_q(t, k, t->half ^ 1), b, k, its);
            } else {
                sm90_fetch_q(t, r, b, t->half ^ 1, k, its);
            }
            sm90_load_q(t, r, b, t->half ^ 1, its, spare, k, y);
            UNROLL
            for (uint32_t i = 0; i < n; i++) {
                x[i] = butterfly(x[i], y[i], t->half);
            }
        }
        if (p->layer.k.rotated) {
            sm90_rotate(t, dim, k, x);
        }
        if (p->layer.k.scale_mode == OCT_SCALE_CHANNEL) {
            const float *scale = p->layer.k.scale + (uint64_t)t->cut.head_kv * dim;
            UNROLL
            for (uint32_t i = 0; i < n; i++) {
                const uint32_t d = t->half * k.dim + (t->lane % 4 + 4 * (i / chunk)) * chunk + i % chunk;
                x[i] *= d < dim ? GET(scale[d]) : 0.0f;
            }
        }
        UNROLL
        for (uint32_t i = 0; i < n; i++) {
            const uint32_t bits = oct__f32_to_bits(x[i]) & OCT__F32_ABS_MASK;
            amax = max_f32(amax, bits < OCT__F32_INF_BITS ? oct__f32_of_bits(bits) : 0.0f);
        }
        amax = max_f32(amax, shfl_xor_f32(amax, 1));
        amax = max_f32(amax, shfl_xor_f32(amax, 2));
        if (k.halves == 2) {   /* one factor for the sums of both halves */
            float *m = (float *)(t->shared + t->at.state) + t->warp * k.blocks * 8;
            if (t->lane % 4 == 0) {
                SPUT(m[b * 8 + t->lane / 4], amax);
            }
            sm90_pair_sync(t, k);
            amax = max_f32(amax, SGET(m[(int32_t)(k.blocks * 8) * (t->half == 0 ? 1 : -1) + (int32_t)(b * 8 + t->lane / 4)]));
        }
        uint32_t exponent = oct__f32_to_bits(amax) >> 23;
        exponent = exponent < 2 ? 2 : exponent > 252 ? 252 : exponent;
        exponent = amax > 0.0f ? exponent : 127;
        const float shrink = oct__f32_of_bits((254 - exponent) << 23), grow = oct__f32_of_bits(exponent << 23);
        UNROLL
        for (uint32_t j = 0; j < 2; j++) {
            state->factor[2 * b + j] = score_scale * warp_shuffle_f32(grow, 4 * tile_own_vector(j));
            state->m[2 * b + j] = -SM90_FAR;
            state->z[2 * b + j] = 0.0f;
        }
        UNROLL
        for (uint32_t i = 0; i < n; i += 4) {
            uint32_t word[2];
            if (k.k_size == 2 && p->layer.k.dtype == OCT_DTYPE_BF16) {
                word[0] = oct__bf16_from_f32(x[i] * shrink) | (uint32_t)oct__bf16_from_f32(x[i + 1] * shrink) << 16;
                word[1] = oct__bf16_from_f32(x[i + 2] * shrink) | (uint32_t)oct__bf16_from_f32(x[i + 3] * shrink) << 16;
            } else {
                word[0] = pack_f16(x[i] * shrink, x[i + 1] * shrink);
                word[1] = pack_f16(x[i + 2] * shrink, x[i + 3] * shrink);
            }
            if (oct__sm90a_q_bytes(k.dim, k.blocks * 8) == 0) {
                q[b * (k.dim / 8) + i / 2] = word[0];
                q[b * (k.dim / 8) + i / 2 + 1] = word[1];
            } else if (t->share == 0) {
                const u32x2 both = { word[0], word[1] };
                shared_write_8(q_at + ((b * (k.dim / 16) + i / 4) * 32 + t->lane) * 8, both);
            }
        }
    }
    state->unit = t->has_v_scale ? 0.0f : 1.0f;
    state->inverse = t->has_v_scale ? 0.0f : 1.0f;
}

#endif
