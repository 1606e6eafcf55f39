/* extend_rows_sm90a.h: what a warp of attn_extend_sm90a.h does with its 16 vectors before and after their keys: q into shared memory, in the order of the
 * instructions; sums to rows of out or to the state of a split; and rows whose sums are no numbers once more, key by key. */
#ifndef OCT_CUDA_EXTEND_ROWS_SM90A_H
#define OCT_CUDA_EXTEND_ROWS_SM90A_H

#include "cuda/extend_load_sm90a.h"
#include "cuda/rotate_sm90a.h"

/* A warpgroup's part of a task. */
typedef struct ext_rows {
    const oct__dev_task *task;
    head_cut cut;
    uint32_t head_tile, vector0, n_vectors;   /* the warp's first of 16; of the block */
    int64_t row0;
    int32_t key0, key1, pos0, mask_key0;
    int32_t n_splits;
    uint32_t row[2];                          /* of the lane's vectors lane / 4 and 8 more; past the last: of the last */
    int32_t low[2], high[2];                  /* keys [low, high) that they see but for the mask */
    int32_t seen_from, seen_to;               /* keys that all of the warp's vectors see */
} ext_rows;

/* The running state of the lane's two vectors. */
typedef struct ext_state {
    float m[2], z[2];                         /* m: log2 */
    float factor[2], alpha[2];                /* from a raw score to log2; of the sums, when the maximum moved */
    float unit;                               /* sums are in units of it: a power of two >= the V scales met */
} ext_state;

DEV uint32_t ext_q_spot(const ext_block *t, const ext_kind k, uint32_t row, uint32_t chunk)
{
    const uint32_t in_group = t->warp % 4 * 16 + row;
    return t->base + t->at.q + t->warp / 4 * (64 * k.dim_k * 2) + chunk / 8 * (64 * 128) + in_group * 128 + ((chunk % 8) ^ (in_group % 8)) * 16;
}

/* Power of two that brings the largest finite of a row to [1, 2), and its inverse. */
DEV float ext_shrink(float amax, float *grow)
{
    uint32_t exponent = oct__f32_to_bits(amax) >> 23;
    exponent = exponent < 2 ? 2 : exponent > 252 ? 252 : exponent;
    exponent = amax > 0.0f ? exponent : 127;
    *grow = oct__f32_of_bits(exponent << 23);
    return oct__f32_of_bits((254 - exponent) << 23);
}

DEV float ext_amax(const float *x)
{
    float amax = 0.0f;
    UNROLL
    for (uint32_t i = 0; i < 8; i++) {
        const uint32_t bits = oct__f32_to_bits(x[i]) & OCT__F32_ABS_MASK;
        amax = max_f32(amax, bits < OCT__F32_INF_BITS ? oct__f32_of_bits(bits) : 0.0f);
    }
    return amax;
}

DEV void ext_put_q(const ext_block *t, const ext_kind k, uint32_t row, uint32_t chunk, const float *x, float shrink)
{
    uint32_t word[4];
    UNROLL
    for (uint32_t i = 0; i < 4; i++) {
        word[i] = k.is_bf16 ? pack_bf16(x[2 * i] * shrink, x[2 * i + 1] * shrink) : pack_f16(x[2 * i] * shrink, x[2 * i + 1] * shrink);
    }
    ext_write_16(ext_q_spot(t, k, row, chunk), word[0], word[1], word[2], word[3]);
}

/* The warp's vectors of q, each by as many lanes as it has eights, in chunks of 16 bytes, `words` (1, 2) an eight. is_plain: neither rotated nor scaled. */
DEV void ext_bring_rows(const ext_block *t, const ext_rows *r, const ext_kind k, const uint8_t *q, int64_t row_bytes, int64_t head_bytes, const uint32_t words,
                        const uint32_t is_plain, float *factor)
{
    const oct__attn_params *p = t->p;
    const uint32_t lanes = ext_lanes_of_row(k.dim_k * 2), rows = 32 / lanes, chunk = t->lane % lanes, turns = 16 / rows, most = is_plain ? 8 : 4,
                   batch = turns < most ? turns : most, dim = p->layer.k.dim, is_within = chunk * 8 < dim;
    float by[8];
    UNROLL
    for (uint32_t i = 0; i < 8; i++) {
        by[i] = !is_plain && p->layer.k.scale_mode == OCT_SCALE_CHANNEL && is_within ? GET(p->layer.k.scale[(uint64_t)r->cut.head_kv * dim + chunk * 8 + i]) : 1.0f;
    }
    NO_UNROLL
    for (uint32_t first = 0; first < turns; first += batch) {
        u32x4 held[8];
        UNROLL
        for (uint32_t i = 0; i < batch; i++) {
            const uint32_t vector = r->vector0 + (first + i) * rows + t->lane / lanes;
            UNROLL
            for (uint32_t w = 0; w < words; w++) {
                const u32x4 none = { 0, 0, 0, 0 };
                held[i * words + w] = none;
                if (is_within && vector < r->n_vectors) {
                    held[i * words + w] = global_load_16(q + vector / r->cut.n_heads * row_bytes + (int64_t)(vector % r->cut.n_heads) * head_bytes +
                                                         chunk * (16 * words) + 16 * w);
                }
            }
        }
        UNROLL
        for (uint32_t i = 0; i < batch; i++) {
            const uint32_t row = (first + i) * rows + t->lane / lanes;
            float grow = 1.0f;
            if (is_plain && k.is_bf16 && p->q_dtype == OCT_DTYPE_BF16) {
                if (chunk * 8 < k.dim_k) {
                    ext_write_16(ext_q_spot(t, k, row, chunk), held[i].x, held[i].y, held[i].z, held[i].w);
                }
            } else {
                float x[8];
                UNROLL
                for (uint32_t w = 0; w < words; w++) {
                    const uint32_t word[4] = { held[i * words + w].x, held[i * words + w].y, held[i * words + w].z, held[i * words + w].w };
                    UNROLL
                    for (uint32_t j = 0; j < 4; j++) {
                        if (words == 2) {
                            x[4 * w + j] = oct__f32_of_bits(word[j]);
                        } else if (p->q_dtype == OCT_DTYPE_BF16) {
                            decode_word(word[j], OCT_DTYPE_BF16, x + 2 * j);
                        } else {
                            decode_word(word[j], OCT_DTYPE_F16, x + 2 * j);
                        }
                    }
                }
                if (!is_plain) {
                    if (p->layer.k.rotated) {
                        team_rotate(x, dim);
                    }
                    UNROLL
                    for (uint32_t j = 0; j < 8; j++) {
                        x[j] *= by[j];
                    }
                }
                float amax = ext_amax(x);
                UNROLL
                for (uint32_t step = 1; step < lanes; step *= 2) {
                    amax = max_f32(amax, shfl_xor_f32(amax, step));
                }
                const float shrink = ext_shrink(amax, &grow);
                if (chunk * 8 < k.dim_k) {
                    ext_put_q(t, k, row, chunk, x, shrink);
                }
            }
            if (chunk == 0) {
                SPUT(factor[row], grow);
            }
        }
    }
}

/* The warp's vectors of q: times K's channel scales, rotated as K is, brought to [1, 2) by a power of two that goes into the score's factor. */
DEV void ext_bring_q(const ext_block *t, const ext_rows *r, const ext_kind k, ext_state *state)
{
    const oct__attn_params *p = t->p;
    const uint32_t dim = p->layer.k.dim, q_bytes = element_bytes(p->q_dtype);
    const int64_t row_bytes = p->q_row_stride * (int64_t)q_bytes, head_bytes = p->q_head_stride * (int64_t)q_bytes;
    const uint8_t *q = (const uint8_t *)p->q + r->row0 * row_bytes + (int64_t)r->cut.head0 * head_bytes;
    float *factor = (float *)(t->shared + t->at.factor) + t->warp * 16;
    const int is_plain = !p->layer.k.rotated && p->layer.k.scale_mode != OCT_SCALE_CHANNEL;
    if (q_bytes >= 2 && (((uint64_t)(uintptr_t)p->q | (uint64_t)row_bytes | (uint64_t)head_bytes) & 15) == 0) {
        if (is_plain && q_bytes == 2) {
            ext_bring_rows(t, r, k, q, row_bytes, head_bytes, 1, 1, factor);
        } else if (q_bytes == 2) {
            ext_bring_rows(t, r, k, q, row_bytes, head_bytes, 1, 0, factor);
        } else {
            ext_bring_rows(t, r, k, q, row_bytes, head_bytes, 2, 0, factor);
        }
    } else {
        NO_UNROLL
        for (uint32_t row = 0; row < 16; row++) {
            const uint32_t vector = r->vector0 + row;
            float x[ROW_FLOATS], grow;
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
            const float shrink = ext_shrink(warp_max_f32(ext_amax(x)), &grow);
            if (t->lane * 8 < k.dim_k) {
                ext_put_q(t, k, row, t->lane, x, shrink);
            }
            if (t->lane == 0) {
                SPUT(factor[row], grow);
            }
        }
    }
    proxy_fence();
    warp_sync();
    const float score_scale = p->sm_scale * (p->q_scale != 0 ? GET(*p->q_scale) : 1.0f) * static_scale(&p->layer.k, r->cut.head_kv) * LOG2_E;
    UNROLL
    for (uint32_t h = 0; h < 2; h++) {
        state->factor[h] = score_scale * SGET(factor[t->lane / 4 + 8 * h]);
    }
}

/* ---- rows that come out as no numbers ----------------------------------------------------------------------------------------------------------- */

DEV int ext_sees(const ext_block *t, const ext_rows *r, uint32_t row, int32_t key)
{
    const oct__attn_params *p = t->p;
    const int64_t position = (int64_t)r->pos0 + row;
    if ((p->causal && key > position) || (p->window > 0 && position - key >= (int64_t)p->window)) {
        return 0;
    }
    if (p->mask != 0 && key >= r->mask_key0) {
        const int64_t bit = (int64_t)key - r->mask_key0;
        return (int)(GET(p->mask[(r->row0 + row) * p->mask_row_stride + bit / 32]) >> (bit % 32)) & 1;
    }
    return 1;
}

/* Bit i: whether the row sees key + i by the mask; 1 before its first key. */
DEV uint32_t ext_mask_word(const ext_block *t, const ext_rows *r, uint32_t row, int32_t key)
{
    const oct__attn_params *p = t->p;
    const int32_t bit = key - r->mask_key0, last = (r->key1 - 1 - r->mask_key0) >> 5, at = bit >> 5;   /* rows of 32-bit words */
    const uint32_t *words = p->mask + (r->row0 + row) * p->mask_row_stride;
    const uint32_t low = at < 0 ? ~0u : at <= last ? GET(words[at]) : 0, high = at + 1 < 0 ? ~0u : at + 1 <= last ? GET(words[at + 1]) : 0;
    return (bit & 31) == 0 ? low : low >> (bit & 31) | high << (32 - (bit & 31));
}

/* The lane's eight of K or V of a key, as stored. */
DEV void ext_eight(const ext_block *t, const oct__dev_side *side, uint32_t is_k, int32_t page, uint32_t token, uint32_t head, float *x)
{
    const oct__dev_layer *layer = &t->p->layer;
    const uint32_t size = element_bytes(side->dtype), d = t->lane * 8, chunk = oct__dev_chunk(side->dtype);
    UNROLL
    for (uint32_t i = 0; i < 8; i++) {
        x[i] = 0.0f;
    }
    if (d < side->dim) {
        const int64_t at = side_at(side, layer->layout, layer->page_size, (int)is_k, page, token, head);
        if (!is_k && layer->layout == OCT_LAYOUT_V5D) {   /* e4m3: dims lie a chunk apart */
            UNROLL
            for (uint32_t w = 0; w < 2; w++) {
                uint32_t word = 0;
                UNROLL
                for (uint32_t i = 0; i < 4; i++) {
                    word |= (uint32_t)GET(((const uint8_t *)side->base)[at + (int64_t)(d + 4 * w + i) * chunk]) << (8 * i);
                }
                decode_word(word, OCT_DTYPE_E4M3FN, x + 4 * w);
            }
            return;
        }
        const uint64_t offset = layer->layout != OCT_LAYOUT_V5D ? d : (uint64_t)(d / chunk) * layer->page_size * chunk + d % chunk;
        load_eight((const uint8_t *)side->base + ((uint64_t)at + offset) * size, side->dtype, x);
    }
}

/* One vector in f32, key by key: a weight of 0 times a stored NaN or infinity must not be, where the vector does not see the key. All lanes of the warp. */
DEV void ext_solo(const ext_block *t, const ext_rows *r, uint32_t vector, const ext_kind k, float *x, float *m, float *z)
{
    const oct__attn_params *p = t->p;
    const oct__dev_layer *layer = &p->layer;
    const uint32_t row = vector / r->cut.n_heads, q_bytes = element_bytes(p->q_dtype), head_kv = r->cut.head_kv;
    const int32_t *pages = batch_pages(&p->batch, (uint32_t)GET(r->task->sequence));
    const float scale = p->sm_scale * (p->q_scale != 0 ? GET(*p->q_scale) : 1.0f) * static_scale(&layer->k, head_kv);
    float q[ROW_FLOATS];
    (void)k;
    row_load(q, (const uint8_t *)p->q + ((r->row0 + row) * p->q_row_stride + (int64_t)(r->cut.head0 + vector % r->cut.n_heads) * p->q_head_stride) * q_bytes,
             p->q_dtype, q_bytes, layer->k.dim);
    if (layer->k.rotated) {
        row_rotate(q, layer->k.dim);
    }
    if (layer->k.scale_mode == OCT_SCALE_CHANNEL) {
        row_scale(q, layer->k.scale + (uint64_t)head_kv * layer->k.dim, layer->k.dim);
    }
    *m = OCT__MINUS_INF;
    *z = 0.0f;
    UNROLL
    for (uint32_t i = 0; i < ROW_FLOATS; i++) {
        x[i] = 0.0f;
    }
    NO_UNROLL
    for (int32_t key = r->key0; key < r->key1; key++) {
        if (ext_sees(t, r, row, key)) {
            const int32_t page = GET(pages[(uint32_t)key / layer->page_size]);
            const uint32_t token = (uint32_t)key % layer->page_size;
            if (page < 0 || page >= layer->n_pages) {
                continue;
            }
            float kv[8], dot = 0.0f;
            ext_eight(t, &layer->k, 1, page, token, head_kv, kv);
            UNROLL
            for (uint32_t i = 0; i < 8; i++) {
                dot = fma_f32(q[i], kv[i], dot);
            }
            float s = warp_sum_f32(t->lane * 8 < layer->k.dim ? dot : 0.0f) * scale;
            s *= t->has_k_scale ? token_scale(&layer->k, layer->heads, page, token, head_kv) : 1.0f;
            s = p->softcap > 0.0f ? p->softcap * tanh_f32(s / p->softcap) : s;
            if (s != OCT__MINUS_INF) {   /* a stored infinity: weight 0, and its V is not looked at */
                const float top = max_f32(*m, s), keep = weight_of(*m, top), weight = weight_of(s, top);
                const float v_scale = t->has_v_scale ? token_scale(&layer->v, layer->heads, page, token, head_kv) : 1.0f;
                ext_eight(t, &layer->v, 0, page, token, head_kv, kv);
                *m = top;
                *z = fma_f32(*z, keep, weight);
                UNROLL
                for (uint32_t i = 0; i < 8; i++) {
                    x[i] = fma_f32(weight * v_scale, kv[i], x[i] * keep);
                }
            }
        }
    }
}

/* ---- out -------------------------------------------------------------------------------------------------------------------------------------- */

/* What the sums of the lane's vector h become rows of out by, but for what belongs to dims; its log-sum is written. */
DEV float ext_close(const ext_block *t, const ext_rows *r, float m_log2, float z, float unit, uint32_t h, uint32_t odd)
{
    const oct__attn_params *p = t->p;
    const uint32_t row = t->lane / 4 + 8 * h, vector = r->vector0 + row, head = r->cut.head0 + vector % r->cut.n_heads;
    const int is_there = vector < r->n_vectors && (odd >> row & 1) == 0;
    const float sink = p->sink != 0 && is_there ? GET(p->sink[head]) : OCT__MINUS_INF, m = m_log2 * 0.693147181f;
    float lse = sink, factor = 0.0f;
    if (z != 0.0f) {   /* NaN too */
        const float max = max_f32(sink, m), keep = weight_of(m, max), total = z * keep + weight_of(sink, max);
        factor = keep / total * static_scale(&p->layer.v, r->cut.head_kv) * unit;
        lse = max + log_f32(total);
    }
    if (p->lse != 0 && t->lane % 4 == 0 && is_there) {
        PUT(p->lse[(r->row0 + vector / r->cut.n_heads) * p->lse_row_stride + (int64_t)head * p->lse_head_stride], lse);
    }
    return factor;
}

/* Rows of 16 bits that need nothing but a factor: through shared memory, so that they leave in whole chunks. */
DEV void ext_leave_plain(const ext_block *t, const ext_rows *r, const ext_kind k, const ext_state *state, const float *o)
{
    const oct__attn_params *p = t->p;
    const uint32_t row_bytes = k.dim_v * 2, lanes = ext_lanes_of_row(row_bytes), rows = 32 / lanes, chunk = t->lane % lanes;
    const shared_at own = t->base + t->at.q + t->warp * (16 * k.dim_k * 2);
    UNROLL
    for (uint32_t h = 0; h < 2; h++) {
        const uint32_t row = t->lane / 4 + 8 * h;
        const float factor = ext_close(t, r, state->m[h], state->z[h], state->unit, h, 0);
        UNROLL
        for (uint32_t b = 0; b < k.dim_v / 8; b++) {
            const float low = o[4 * b + 2 * h] * factor, high = o[4 * b + 2 * h + 1] * factor;
            shared_write_4(own + row * row_bytes + (b ^ (row % 8)) * 16 + t->lane % 4 * 4, p->out_dtype == OCT_DTYPE_BF16 ? pack_bf16(low, high) : pack_f16(low, high));
        }
    }
    warp_sync();
    UNROLL
    for (uint32_t i = 0; i < 16 / rows; i++) {
        const uint32_t row = i * rows + t->lane / lanes, vector = r->vector0 + row;
        if (chunk * 8 < p->layer.v.dim && vector < r->n_vectors) {
            const int64_t to = (r->row0 + vector / r->cut.n_heads) * p->out_row_stride + (int64_t)(r->cut.head0 + vector % r->cut.n_heads) * p->out_head_stride;
            global_store_16((uint8_t *)p->out + to * 2 + chunk * 16, shared_read_16(own + row * row_bytes + (chunk ^ (row % 8)) * 16));
        }
    }
}

/* Eight values of a row, x / scale, as out has them. */
DEV void ext_put_eight(void *at, uint32_t dtype, const float *x, float scale)
{
    uint32_t code[8];
    UNROLL
    for (uint32_t i = 0; i < 8; i++) {
        code[i] = oct__f32_to_bits(x[i]);
        if (oct__f32_to_bits(scale) != OCT__F32_ONE_BITS && !oct__f32_bits_are_nan(code[i])) {
            code[i] = oct__f32_divide_bits(code[i], oct__f32_to_bits(scale));
        }
    }
    encode_eight(dtype, code);
    store_8(at, dtype, code);
}

/* Any out, and states of splits: rows by way of f32 in shared memory, eight at a time, from where lanes take eights of as many rows as a warp has lanes for.
 * odd: bit i: vector i of the warp's is to be done once more. */
DEV void ext_leave_any(const ext_block *t, const ext_rows *r, const ext_kind k, const ext_state *state, const float *o, uint32_t odd)
{
    const oct__attn_params *p = t->p;
    const oct__dev_side *v = &p->layer.v;
    const uint32_t lanes = ext_lanes_of_row(k.dim_v * 2), rows = 32 / lanes, chunk = t->lane % lanes, is_within = chunk * 8 < v->dim, is_split = r->n_splits > 1;
    const shared_at own = t->base + t->at.q + t->warp * (16 * k.dim_k * 2);   /* [8][dim_v], eight b of row i at b ^ i */
    float *partial = is_split ? state_of(p, GET(r->task->partial), r->head_tile) : 0;
    NO_UNROLL
    for (uint32_t h = 0; h < 2; h++) {
        const uint32_t mine = t->lane / 4, vector = r->vector0 + 8 * h + mine;
        const float m = h == 0 ? state->m[0] : state->m[1], z = h == 0 ? state->z[0] : state->z[1];   /* no index of registers */
        float factor = state->unit;
        if (!is_split) {
            factor = ext_close(t, r, m, z, state->unit, h, odd);
        } else if (t->lane % 4 == 0 && vector < r->n_vectors && (odd >> (8 * h + mine) & 1) == 0) {
            float *last = partial + (uint64_t)p->tile_vectors * v->dim + vector;
            PUT(*last, z == 0.0f ? OCT__MINUS_INF : m * 0.693147181f);
            PUT(last[p->tile_vectors], z);
        }
        UNROLL
        for (uint32_t b = 0; b < k.dim_v / 8; b++) {
            const u32x2 pair = { oct__f32_to_bits((h == 0 ? o[4 * b] : o[4 * b + 2]) * factor), oct__f32_to_bits((h == 0 ? o[4 * b + 1] : o[4 * b + 3]) * factor) };
            shared_write_8(own + mine * (k.dim_v * 4) + (b ^ mine) * 32 + t->lane % 4 * 8, pair);
        }
        warp_sync();
        NO_UNROLL
        for (uint32_t i = 0; i < 8; i += rows) {
            const uint32_t row = i + t->lane / lanes, to = r->vector0 + 8 * h + row;
            const shared_at from = own + row * (k.dim_v * 4) + (chunk ^ row) * 32;
            const u32x4 low = shared_read_16(from), high = shared_read_16(from + 16);
            const uint32_t word[8] = { low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w };
            float x[8];
            UNROLL
            for (uint32_t e = 0; e < 8; e++) {
                x[e] = oct__f32_of_bits(word[e]);
            }
            if (!is_split && v->scale_mode == OCT_SCALE_CHANNEL && is_within) {   /* asked for each time: the other sums of 256 dims leave few registers */
                UNROLL
                for (uint32_t e = 0; e < 8; e++) {
                    x[e] *= GET(v->scale[(uint64_t)r->cut.head_kv * v->dim + chunk * 8 + e]);
                }
            }
            if (v->rotated && !is_split) {
                team_rotate(x, v->dim);
            }
            if (is_within && to < r->n_vectors && (odd >> (8 * h + row) & 1) == 0) {
                if (is_split) {
                    ext_put_eight(partial + (uint64_t)to * v->dim + chunk * 8, OCT_DTYPE_F32, x, 1.0f);
                } else {
                    ext_put_eight((uint8_t *)p->out + ((r->row0 + to / r->cut.n_heads) * p->out_row_stride +
                                                       (int64_t)(r->cut.head0 + to % r->cut.n_heads) * p->out_head_stride + chunk * 8) * element_bytes(p->out_dtype),
                                  p->out_dtype, x, p->out_scale != 0 ? GET(*p->out_scale) : 1.0f);
                }
            }
        }
        warp_sync();
    }
    NO_UNROLL
    for (uint32_t i = 0; odd >> i != 0; i++) {
        float x[ROW_FLOATS], m, z;
        const uint32_t vector = r->vector0 + i;
        if ((odd >> i & 1) != 0 && vector < r->n_vectors) {
            ext_solo(t, r, vector, k, x, &m, &z);
            if (is_split) {
                store_state(p, GET(r->task->partial), r->head_tile, vector, x, m, z);
            } else {
                finish_row(p, r->row0 + vector / r->cut.n_heads, r->cut.head0 + vector % r->cut.n_heads, r->cut.head_kv, x, m, z);
            }
        }
    }
}

/* The warp's rows, once its keys are through. o: sums of the lane's vectors. */
DEV void ext_leave(const ext_block *t, const ext_rows *r, const ext_kind k, ext_state *state, const float *o)
{
    const oct__attn_params *p = t->p;
    uint32_t is_odd[2], odd = 0;
    UNROLL
    for (uint32_t h = 0; h < 2; h++) {
        uint32_t most = 0;
        UNROLL
        for (uint32_t i = 0; i < k.dim_v / 4; i++) {
            const uint32_t bits = oct__f32_to_bits(o[i / 2 * 4 + 2 * h + i % 2]) & OCT__F32_ABS_MASK;
            most = most > bits ? most : bits;
        }
        state->z[h] += shfl_xor_f32(state->z[h], 1);
        state->z[h] += shfl_xor_f32(state->z[h], 2);
        is_odd[h] = most >= OCT__F32_INF_BITS && state->z[h] == state->z[h];
    }
    if (warp_any(is_odd[0] | is_odd[1])) {
        const uint32_t low = warp_ballot(is_odd[0]), high = warp_ballot(is_odd[1]);
        NO_UNROLL
        for (uint32_t i = 0; i < 8; i++) {
            odd |= ((low >> (4 * i) & 15) != 0 ? 1u : 0u) << i | ((high >> (4 * i) & 15) != 0 ? 1u : 0u) << (i + 8);
        }
    }
    if (odd == 0 && r->n_splits <= 1 && element_bytes(p->out_dtype) == 2 && p->out_scale == 0 && !p->layer.v.rotated &&
        p->layer.v.scale_mode != OCT_SCALE_CHANNEL &&
        (((uint64_t)(uintptr_t)p->out | ((uint64_t)p->out_row_stride | (uint64_t)p->out_head_stride) * 2) & 15) == 0) {
        ext_leave_plain(t, r, k, state, o);
    } else {
        ext_leave_any(t, r, k, state, o, odd);
    }
}

/* ---- the same of the products of 8 bits, whose registers the lanes' shared rows do not fit (4 bytes of 256 dims and two terms would spill): row by row --------- */

/* Rows of 16 bits that need nothing but a factor: through shared memory, so that they leave in whole chunks. */
DEV void ext_send_plain(const ext_block *t, const ext_rows *r, const ext_kind k, const ext_state *state, const float *o)
{
    const oct__attn_params *p = t->p;
    const uint32_t row_bytes = k.dim_v * 2, lanes = ext_lanes_of_row(row_bytes), rows = 32 / lanes, chunk = t->lane % lanes;
    const shared_at own = t->base + t->at.q + t->warp * (16 * k.dim_k * 2);
    float factor[2];
    UNROLL
    for (uint32_t h = 0; h < 2; h++) {
        const uint32_t row = t->lane / 4 + 8 * h, vector = r->vector0 + row, head = r->cut.head0 + vector % r->cut.n_heads;
        const int is_there = vector < r->n_vectors;
        const float sink = p->sink != 0 && is_there ? GET(p->sink[head]) : OCT__MINUS_INF, m = state->m[h] * 0.693147181f;
        float lse = sink;
        factor[h] = 0.0f;
        if (state->z[h] != 0.0f) {   /* NaN too */
            const float max = max_f32(sink, m), keep = weight_of(m, max), total = state->z[h] * keep + weight_of(sink, max);
            factor[h] = keep / total * static_scale(&p->layer.v, r->cut.head_kv) * state->unit;
            lse = max + log_f32(total);
        }
        if (p->lse != 0 && t->lane % 4 == 0 && is_there) {
            PUT(p->lse[(r->row0 + vector / r->cut.n_heads) * p->lse_row_stride + (int64_t)head * p->lse_head_stride], lse);
        }
        UNROLL
        for (uint32_t b = 0; b < k.dim_v / 8; b++) {
            const float low = o[4 * b + 2 * h] * factor[h], high = o[4 * b + 2 * h + 1] * factor[h];
            shared_write_4(own + row * row_bytes + (b ^ (row % 8)) * 16 + t->lane % 4 * 4, p->out_dtype == OCT_DTYPE_BF16 ? pack_bf16(low, high) : pack_f16(low, high));
        }
    }
    warp_sync();
    UNROLL
    for (uint32_t i = 0; i < 16 / rows; i++) {
        const uint32_t row = i * rows + t->lane / lanes, vector = r->vector0 + row;
        if (chunk * 8 < p->layer.v.dim && vector < r->n_vectors) {
            const int64_t to = (r->row0 + vector / r->cut.n_heads) * p->out_row_stride + (int64_t)(r->cut.head0 + vector % r->cut.n_heads) * p->out_head_stride;
            global_store_16((uint8_t *)p->out + to * 2 + chunk * 16, shared_read_16(own + row * row_bytes + (chunk ^ (row % 8)) * 16));
        }
    }
}

/* Any out, and states of splits: rows by way of f32 in shared memory, eight at a time. odd: bit i: vector i of the warp's is to be done once more. */
DEV void ext_send_any(const ext_block *t, const ext_rows *r, const ext_kind k, const ext_state *state, const float *o, uint32_t odd)
{
    const oct__attn_params *p = t->p;
    float *own = (float *)(t->shared + t->at.q + t->warp * (16 * k.dim_k * 2));
    float *last = (float *)(t->shared + t->at.factor) + t->warp * 16;   /* the factors of q have been read */
    NO_UNROLL
    for (uint32_t h = 0; h < 2; h++) {
        const uint32_t row = t->lane / 4;
        UNROLL
        for (uint32_t b = 0; b < k.dim_v / 8; b++) {
            const float x = h == 0 ? o[4 * b] : o[4 * b + 2], y = h == 0 ? o[4 * b + 1] : o[4 * b + 3];
            SPUT(own[row * k.dim_v + 8 * b + t->lane % 4 * 2], x * state->unit);
            SPUT(own[row * k.dim_v + 8 * b + t->lane % 4 * 2 + 1], y * state->unit);
        }
        if (t->lane % 4 == 0) {
            SPUT(last[row], h == 0 ? state->m[0] : state->m[1]);
            SPUT(last[8 + row], h == 0 ? state->z[0] : state->z[1]);
        }
        warp_sync();
        NO_UNROLL
        for (uint32_t i = 8 * h; i < 8 * h + 8; i++) {
            const uint32_t vector = r->vector0 + i;
            if (vector < r->n_vectors) {
                float x[ROW_FLOATS], m = OCT__MINUS_INF, z = 0.0f;
                UNROLL
                for (uint32_t e = 0; e < ROW_FLOATS; e++) {
                    x[e] = 0.0f;
                }
                if (odd >> i & 1) {
                    ext_solo(t, r, vector, k, x, &m, &z);
                } else {
                    z = SGET(last[8 + i % 8]);
                    m = z == 0.0f ? OCT__MINUS_INF : SGET(last[i % 8]) * 0.693147181f;
                    if (t->lane * 8 < p->layer.v.dim) {
                        const float *from = own + i % 8 * k.dim_v + t->lane * 8;
                        const f32x4 a = shared_load_f32x4(from), b = shared_load_f32x4(from + 4);
                        x[0] = a.x;
                        x[1] = a.y;
                        x[2] = a.z;
                        x[3] = a.w;
                        x[4] = b.x;
                        x[5] = b.y;
                        x[6] = b.z;
                        x[7] = b.w;
                    }
                }
                if (r->n_splits > 1) {
                    store_state(p, GET(r->task->partial), r->head_tile, vector, x, m, z);
                } else {
                    finish_row(p, r->row0 + vector / r->cut.n_heads, r->cut.head0 + vector % r->cut.n_heads, r->cut.head_kv, x, m, z);
                }
            }
        }
        warp_sync();
    }
}

/* The warp's rows, once its keys are through. o: sums of the lane's vectors. */
DEV void ext_send(const ext_block *t, const ext_rows *r, const ext_kind k, ext_state *state, const float *o)
{
    const oct__attn_params *p = t->p;
    uint32_t is_odd[2], odd = 0;
    UNROLL
    for (uint32_t h = 0; h < 2; h++) {
        uint32_t most = 0;
        UNROLL
        for (uint32_t i = 0; i < k.dim_v / 4; i++) {
            const uint32_t bits = oct__f32_to_bits(o[i / 2 * 4 + 2 * h + i % 2]) & OCT__F32_ABS_MASK;
            most = most > bits ? most : bits;
        }
        state->z[h] += shfl_xor_f32(state->z[h], 1);
        state->z[h] += shfl_xor_f32(state->z[h], 2);
        is_odd[h] = most >= OCT__F32_INF_BITS && state->z[h] == state->z[h];
    }
    if (warp_any(is_odd[0] | is_odd[1])) {
        const uint32_t low = warp_ballot(is_odd[0]), high = warp_ballot(is_odd[1]);
        NO_UNROLL
        for (uint32_t i = 0; i < 8; i++) {
            odd |= ((low >> (4 * i) & 15) != 0 ? 1u : 0u) << i | ((high >> (4 * i) & 15) != 0 ? 1u : 0u) << (i + 8);
        }
    }
    if (odd == 0 && r->n_splits <= 1 && element_bytes(p->out_dtype) == 2 && p->out_scale == 0 && !p->layer.v.rotated &&
        p->layer.v.scale_mode != OCT_SCALE_CHANNEL &&
        (((uint64_t)(uintptr_t)p->out | ((uint64_t)p->out_row_stride | (uint64_t)p->out_head_stride) * 2) & 15) == 0) {
        ext_send_plain(t, r, k, state, o);
    } else {
        ext_send_any(t, r, k, state, o, odd);
    }
}

#endif
