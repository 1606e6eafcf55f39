/* attn_tile.h: attention of up to 64 vectors (query rows x query heads of one KV head) of a sequence over a span of its keys, in f32 on the
 * plain lanes of any GPU: all of doc/NUMERICS.md. One text for decode and extend, instantiated for the vectors that a lane holds (NV), the
 * dims of V that it sums for each (CPT: NV x CPT accumulators stay in registers), and for V in v4, whose blocks are read by kernels of their own:
 * in those of the other formats they would cost registers.
 *
 * Steps of 64 keys, at multiples of 64, so that a row's sums do not depend on who shares its tile:
 *   scores    eight lanes take a key: 16-byte chunks of K, decoded once for all NV vectors, four keys at a time so that q's reads from
 *             shared memory serve four products
 *   weights   a warp takes a vector: scale, cap, mask, the running maximum; weights go where the scores were, -1 where a key is unseen
 *   output    lanes share V's dims, and what is left of the block shares the keys
 * Keys' addresses and dynamic scales of the next step are found while the weights are made. */
#ifndef OCT_DEVICE_ATTN_TILE_H
#define OCT_DEVICE_ATTN_TILE_H

#include "device/attn_finish.h"
#include "device/v4.h"

#define KEYS_MAX 16u   /* most lanes that share the keys of a dim: their sums are added one after the other */

/* What the lanes of a block know of their tile. */
typedef struct tile {
    const oct__attn_params *p;
    const int32_t *pages;
    head_cut cut;
    uint32_t n_vectors;
    int32_t key0, key1, pos0, n_rows;
    int32_t mask_key0;                 /* the mask's bit 0 */
    int64_t row0;
    float score_scale;
    /* shared */
    float *q, *s, *m, *z, *alpha;
    int64_t *k_at, *v_at;              /* [2][keys]: element where the key begins, of V in v4 the byte; -1: not to be read */
    float *k_scale, *v_scale;
    uint32_t *irregular;               /* some vector does not see some key of the step's span */
    uint32_t q_stride, s_stride;
    /* this lane's part of scores and output: vectors [vector0, vector0 + n_own) */
    uint32_t vector0, n_own;
    uint32_t lane_in_part, lanes_in_part;
} tile;

DEV void tile_lay_out(tile *t, uint8_t *shared)
{
    const oct__dev_layer *layer = &t->p->layer;
    const oct__attn_shared at = oct__attn_shared_of(layer->k.dim, layer->k.dtype, layer->v.dim, t->p->tile_vectors);
    t->q = (float *)(shared + at.q);
    t->s = (float *)(shared + at.s);
    t->m = (float *)(shared + at.m);
    t->z = (float *)(shared + at.z);
    t->alpha = (float *)(shared + at.alpha);
    t->irregular = (uint32_t *)(shared + at.irregular);
    t->k_at = (int64_t *)(shared + at.k_at);
    t->v_at = (int64_t *)(shared + at.v_at);
    t->k_scale = (float *)(shared + at.k_scale);
    t->v_scale = (float *)(shared + at.v_scale);
    t->q_stride = at.q_stride;
    t->s_stride = at.s_stride;
}

/* q in f32 so that its product with K's bytes is the score up to one factor: rotated as K is, then times K's channel scales, which were
 * divided out of K after its rotation. Kept in the order in which scores are made: quarter of the chunk, chunk, element, so that lanes of
 * neighbouring chunks read neighbouring banks. */
DEV void tile_bring_q(const tile *t, const uint32_t threads)
{
    const oct__attn_params *p = t->p;
    const uint32_t dim = p->layer.k.dim, q_bytes = element_bytes(p->q_dtype);
    const uint32_t chunk = oct__dev_chunk(p->layer.k.dtype), n_chunks = t->q_stride / chunk;
    for (uint32_t v = tid() / WARP; v < t->n_vectors; v += threads / WARP) {
        const int64_t at = (t->row0 + v / t->cut.n_heads) * p->q_row_stride + (int64_t)(t->cut.head0 + v % t->cut.n_heads) * p->q_head_stride;
        float x[ROW_FLOATS];
        row_load(x, (const uint8_t *)p->q + at * q_bytes, p->q_dtype, q_bytes, dim);
        if (p->layer.k.rotated) {
            row_rotate(x, dim);
        }
        if (p->layer.k.scale_mode == OCT_SCALE_CHANNEL) {
            row_scale(x, p->layer.k.scale + (uint64_t)t->cut.head_kv * dim, dim);
        }
        UNROLL
        for (uint32_t i = 0; i < ROW_FLOATS; i += 4) {
            const uint32_t d = row_element(i / 8) + i % 8;
            if (d < t->q_stride) {   /* elements past dim are 0 */
                const f32x4 four = { x[i], x[i + 1], x[i + 2], x[i + 3] };
                shared_store_f32x4(t->q + (uint64_t)v * t->q_stride + (d % chunk / 4 * n_chunks + d / chunk) * 4, four);
            }
        }
    }
}

/* Where the keys of a step lie, one lane a key. half: which of the two sets of places. */
DEV void tile_find_keys(const tile *t, int32_t base, uint32_t half, const int is_v4)
{
    const oct__dev_layer *layer = &t->p->layer;
    const uint32_t i = tid();
    if (i < OCT__DEV_KEYS) {
        const int32_t key = base + (int32_t)i;
        int64_t page = -1, k_at = -1, v_at = -1;
        if (key >= t->key0 && key < t->key1) {
            page = GET(t->pages[(uint32_t)key / layer->page_size]);
        }
        if (page >= 0 && page < layer->n_pages) {
            const uint32_t token = (uint32_t)key % layer->page_size;
            k_at = side_at(&layer->k, layer->layout, layer->page_size, 1, page, token, t->cut.head_kv);
            v_at = side_at(&layer->v, layer->layout, layer->page_size, 0, page, token, t->cut.head_kv);
            if (is_v4) {
                v_at = oct__v4_block_at(v_at);
            }
            SPUT(t->k_scale[half * OCT__DEV_KEYS + i],
                 layer->k.scale_mode == OCT_SCALE_TOKEN_HEAD ? token_scale(&layer->k, layer->heads, page, token, t->cut.head_kv) : 1.0f);
            SPUT(t->v_scale[half * OCT__DEV_KEYS + i],
                 layer->v.scale_mode == OCT_SCALE_TOKEN_HEAD ? token_scale(&layer->v, layer->heads, page, token, t->cut.head_kv) : 1.0f);
        }
        SPUT(t->k_at[half * OCT__DEV_KEYS + i], k_at);
        SPUT(t->v_at[half * OCT__DEV_KEYS + i], v_at);
    }
}

/* ---- scores ------------------------------------------------------------------------------------------------------------------- */

DEV void tile_scores(const tile *t, uint32_t half, const uint32_t nv)
{
    const oct__dev_layer *layer = &t->p->layer;
    const uint32_t dtype = layer->k.dtype, size = element_bytes(dtype), chunk = oct__dev_chunk(dtype), n_chunks = t->q_stride / chunk;
    const int64_t chunk_step = layer->layout == OCT_LAYOUT_V5D ? (int64_t)layer->page_size * chunk : chunk;
    const uint32_t lane = tid() % 8, slot = t->lane_in_part / 8, n_slots = t->lanes_in_part / 8;
    const uint8_t *k = (const uint8_t *)layer->k.base;
    NO_UNROLL
    for (uint32_t first = 0; first < OCT__DEV_KEYS; first += 4 * n_slots) {
        float sum[4 * 16];
        int64_t at[4];
        UNROLL
        for (uint32_t u = 0; u < 4; u++) {
            const uint32_t key = first + u * n_slots + slot;
            at[u] = key < OCT__DEV_KEYS ? SGET(t->k_at[half * OCT__DEV_KEYS + key]) : -1;
        }
        UNROLL
        for (uint32_t i = 0; i < 4 * nv; i++) {
            sum[i] = 0.0f;
        }
        NO_UNROLL
        for (uint32_t c = lane; c < n_chunks; c += 8) {
            uint32_t word[16];
            UNROLL
            for (uint32_t u = 0; u < 4; u++) {
                word[4 * u] = word[4 * u + 1] = word[4 * u + 2] = word[4 * u + 3] = 0;
                if (at[u] >= 0) {
                    const uint8_t *from = k + (at[u] + c * chunk_step) * size;
                    if (chunk == 16 && (c + 1) * chunk > layer->k.dim) {   /* dims are multiples of 8 */
                        load_words(from, 8, 1, word + 4 * u);
                    } else if (size == 1) {
                        load_words(from, 16, 1, word + 4 * u);
                    } else {
                        load_words(from, 16, 2, word + 4 * u);   /* f32 is read by words before halves are looked at */
                    }
                }
            }
            NO_UNROLL
            for (uint32_t g = 0; g < chunk / 4; g++) {
                float x[16];
                decode_fours(word, 4, 4, dtype, x);
                next_fours(word, 4, 4, dtype);
                UNROLL
                for (uint32_t i = 0; i < nv; i++) {
                    if (i < t->n_own) {
                        const f32x4 q = shared_load_f32x4(t->q + (uint64_t)(t->vector0 + i) * t->q_stride + (g * n_chunks + c) * 4);
                        UNROLL
                        for (uint32_t u = 0; u < 4; u++) {
                            float dot = sum[u * nv + i];
                            dot = fma_f32(q.x, x[4 * u], dot);
                            dot = fma_f32(q.y, x[4 * u + 1], dot);
                            dot = fma_f32(q.z, x[4 * u + 2], dot);
                            dot = fma_f32(q.w, x[4 * u + 3], dot);
                            sum[u * nv + i] = dot;
                        }
                    }
                }
            }
        }
        group8_sum(sum, 4 * nv);
        const uint32_t key = first + lane / 2 * n_slots + slot, i0 = lane % 2 * (nv / 2);
        UNROLL
        for (uint32_t i = 0; i < nv / 2; i++) {
            if (key < OCT__DEV_KEYS && i0 + i < t->n_own) {
                SPUT(t->s[key * t->s_stride + t->vector0 + i0 + i], sum[i]);
            }
        }
    }
}

/* ---- weights ------------------------------------------------------------------------------------------------------------------ */

DEV int tile_sees(const tile *t, uint32_t row, int32_t key)
{
    const oct__attn_params *p = t->p;
    const int64_t position = (int64_t)t->pos0 + row;
    if ((p->causal && key > position) || (p->window > 0 && position - key >= (int64_t)p->window)) {
        return 0;
    }
    if (p->mask != 0 && key >= t->mask_key0) {
        const int64_t bit = (int64_t)key - t->mask_key0;
        return (int)(GET(p->mask[(t->row0 + row) * p->mask_row_stride + bit / 32]) >> (bit % 32)) & 1;
    }
    return 1;
}

/* Keys [low, high) of the step belong to the tile. */
DEV void tile_weights(const tile *t, int32_t base, uint32_t low, uint32_t high, uint32_t half, const uint32_t threads)
{
    const float softcap = t->p->softcap;
    const uint32_t lane = tid() % WARP, n_round = (t->n_vectors + 3) / 4 * 4;   /* the output reads weights by fours */
    uint32_t irregular = 0;
    for (uint32_t v = tid() / WARP; v < n_round; v += threads / WARP) {
        if (v >= t->n_vectors) {
            for (uint32_t key = lane; key < OCT__DEV_KEYS; key += WARP) {
                SPUT(t->s[key * t->s_stride + v], 0.0f);
            }
            continue;
        }
        const uint32_t row = v / t->cut.n_heads;
        const float old_m = SGET(t->m[v]), old_z = SGET(t->z[v]);
        float s[OCT__DEV_KEYS / WARP], m = old_m, z = 0.0f;
        uint32_t seen[OCT__DEV_KEYS / WARP];
        UNROLL
        for (uint32_t i = 0; i < OCT__DEV_KEYS / WARP; i++) {
            const uint32_t key = i * WARP + lane;
            seen[i] = key >= low && key < high && SGET(t->k_at[half * OCT__DEV_KEYS + key]) >= 0 && tile_sees(t, row, base + (int32_t)key);
            s[i] = OCT__MINUS_INF;
            if (seen[i]) {
                s[i] = SGET(t->s[key * t->s_stride + v]) * (t->score_scale * SGET(t->k_scale[half * OCT__DEV_KEYS + key]));
                if (softcap > 0.0f) {
                    s[i] = softcap * tanh_f32(s[i] / softcap);
                }
                seen[i] = s[i] != OCT__MINUS_INF;   /* a stored infinity: weight 0, and its V is not looked at */
                m = max_f32(m, s[i]);
            }
            irregular |= key >= low && key < high && !seen[i];
        }
        m = warp_max_f32(m);
        UNROLL
        for (uint32_t i = 0; i < OCT__DEV_KEYS / WARP; i++) {
            const uint32_t key = i * WARP + lane;
            float weight = -1.0f;
            if (seen[i]) {
                const float p = exp2_f32((s[i] - m) * LOG2_E);   /* the difference first: large scores keep their distance */
                z += p;
                weight = p * SGET(t->v_scale[half * OCT__DEV_KEYS + key]);
            }
            SPUT(t->s[key * t->s_stride + v], weight);
        }
        z = warp_sum_f32(z);
        warp_sync();   /* all have read the old state */
        if (lane == 0) {
            const float alpha = weight_of(old_m, m);
            SPUT(t->m[v], m);
            SPUT(t->z[v], old_z * alpha + z);
            SPUT(t->alpha[v], alpha);
        }
    }
    if (warp_any(irregular) && lane == 0) {
        (void)shared_or_u32(t->irregular, 1);
    }
}

/* ---- output ------------------------------------------------------------------------------------------------------------------- */

/* o[i][c] += weight of (key, vector i) * x[c]. */
DEV void tile_add(const tile *t, uint32_t key, const uint32_t nv, const uint32_t cpt, int is_irregular, const float *x, float *o)
{
    UNROLL
    for (uint32_t i = 0; i < nv; i += 4) {
        if (i < t->n_own) {
            const f32x4 four = shared_load_f32x4(t->s + key * t->s_stride + t->vector0 + i);
            const float weight[4] = { four.x, four.y, four.z, four.w };
            UNROLL
            for (uint32_t j = 0; j < 4; j++) {
                /* A vector that does not see the key must not meet its bytes: 0 x NaN. */
                if (!is_irregular || !(weight[j] < 0.0f)) {
                    UNROLL
                    for (uint32_t c = 0; c < cpt; c++) {
                        o[(i + j) * cpt + c] = fma_f32(weight[j], x[c], o[(i + j) * cpt + c]);
                    }
                }
            }
        }
    }
}

DEV void tile_output(const tile *t, uint32_t low, uint32_t high, uint32_t half, uint32_t dim0, uint32_t own, uint32_t n_shares, const uint32_t nv,
                     const uint32_t cpt, float *o)
{
    const uint32_t dtype = t->p->layer.v.dtype, size = element_bytes(dtype);
    const uint8_t *v = (const uint8_t *)t->p->layer.v.base;
    const int is_irregular = SGET(*t->irregular) != 0;
    NO_UNROLL
    for (uint32_t first = low + own; first < high; first += 4 * n_shares) {
        uint32_t word[4 * 8];
        float x[4 * 8];
        int64_t at[4];
        UNROLL
        for (uint32_t i = 0; i < 4 * cpt; i++) {
            word[i] = 0;
        }
        UNROLL
        for (uint32_t u = 0; u < 4; u++) {
            const uint32_t key = first + u * n_shares;
            at[u] = key < high ? SGET(t->v_at[half * OCT__DEV_KEYS + key]) : -1;
            if (at[u] >= 0) {
                load_codes(v + (at[u] + dim0) * size, dtype, cpt, word + u * cpt);
            }
        }
        /* Rows of cpt words; by fours of dims: x holds [four][key][4]. */
        decode_fours(word, cpt, 4, dtype, x);
        if (cpt > 4) {
            next_fours(word, cpt, 4, dtype);
            decode_fours(word, cpt, 4, dtype, x + 16);
        }
        UNROLL
        for (uint32_t u = 0; u < 4; u++) {
            if (at[u] >= 0) {
                float y[8];
                UNROLL
                for (uint32_t c = 0; c < cpt; c++) {
                    y[c] = x[c / 4 * 16 + u * 4 + c % 4];
                }
                tile_add(t, first + u * n_shares, nv, cpt, is_irregular, y, o);
            }
        }
    }
}

/* V in v4. */
DEV void tile_output_v4(const tile *t, uint32_t low, uint32_t high, uint32_t half, uint32_t dim0, uint32_t own, uint32_t n_shares, const uint32_t nv,
                        const uint32_t cpt, float *o)
{
    const uint8_t *v = (const uint8_t *)t->p->layer.v.base;
    const int is_irregular = SGET(*t->irregular) != 0;
    NO_UNROLL
    for (uint32_t first = low + own; first < high; first += 4 * n_shares) {
        uint32_t word[4], scale[4];
        int64_t at[4];
        UNROLL
        for (uint32_t u = 0; u < 4; u++) {
            const uint32_t key = first + u * n_shares;
            at[u] = key < high ? SGET(t->v_at[half * OCT__DEV_KEYS + key]) : -1;
            word[u] = scale[u] = 0;
            if (at[u] >= 0) {
                v4_load(v + at[u], dim0, cpt, &word[u], &scale[u]);
            }
        }
        UNROLL
        for (uint32_t u = 0; u < 4; u++) {
            if (at[u] >= 0) {
                float y[8];
                v4_decode(word[u], scale[u], cpt, y);
                tile_add(t, first + u * n_shares, nv, cpt, is_irregular, y, o);
            }
        }
    }
}

/* V5D: 16 bytes hold a dim of chunk-many tokens, so a lane takes its dims of a whole chunk of tokens. */
DEV void tile_output_v5d(const tile *t, uint32_t low, uint32_t high, uint32_t half, uint32_t dim0, uint32_t own, uint32_t n_shares, const uint32_t nv,
                         const uint32_t cpt, float *o)
{
    const uint32_t dtype = t->p->layer.v.dtype, size = element_bytes(dtype), chunk = oct__dev_chunk(dtype);
    const uint8_t *v = (const uint8_t *)t->p->layer.v.base;
    const int is_irregular = SGET(*t->irregular) != 0;
    NO_UNROLL
    for (uint32_t begin = low / chunk * chunk + own * chunk; begin < high; begin += n_shares * chunk) {
        const uint32_t from = begin > low ? begin : low, to = begin + chunk < high ? begin + chunk : high;
        const int64_t at = SGET(t->v_at[half * OCT__DEV_KEYS + from]);   /* a chunk lies in one page */
        uint32_t word[8 * 4];
        if (at < 0) {
            continue;
        }
        UNROLL
        for (uint32_t c = 0; c < cpt; c++) {
            const uint8_t *dim = v + (at - (int64_t)(from % chunk) + (int64_t)(dim0 + c) * chunk) * size;
            if (size == 1) {
                load_words(dim, 16, 1, word + 4 * c);
            } else {
                load_words(dim, 16, 2, word + 4 * c);   /* f32 too */
            }
        }
        NO_UNROLL
        for (uint32_t g = 0; g < chunk / 4; g++) {
            float x[8 * 4];
            decode_fours(word, 4, cpt, dtype, x);
            next_fours(word, 4, cpt, dtype);
            UNROLL
            for (uint32_t j = 0; j < 4; j++) {
                const uint32_t key = begin + 4 * g + j;
                if (key >= from && key < to) {
                    float y[8];
                    UNROLL
                    for (uint32_t c = 0; c < cpt; c++) {
                        y[c] = x[4 * c + j];
                    }
                    tile_add(t, key, nv, cpt, is_irregular, y, o);
                }
            }
        }
    }
}

/* ---- the tile ----------------------------------------------------------------------------------------------------------------- */

DEV void tile_run(tile *t, const oct__dev_task *task, uint32_t head_tile, const uint32_t threads, const uint32_t nv, const uint32_t cpt, const int is_v4)
{
    const oct__attn_params *p = t->p;
    const uint32_t dim_v = p->layer.v.dim, n_shares_all = t->lanes_in_part / (dim_v / cpt);
    const uint32_t n_shares = n_shares_all < KEYS_MAX ? n_shares_all : KEYS_MAX;
    const uint32_t own = t->lane_in_part / (dim_v / cpt), dim0 = t->lane_in_part % (dim_v / cpt) * cpt;
    const int32_t n_splits = GET(task->n_splits);
    float o[64];
    uint32_t half = 0;

    tile_bring_q(t, threads);
    for (uint32_t v = tid(); v < t->n_vectors; v += threads) {
        SPUT(t->m[v], OCT__MINUS_INF);
        SPUT(t->z[v], 0.0f);
    }
    UNROLL
    for (uint32_t i = 0; i < nv * cpt; i++) {
        o[i] = 0.0f;
    }
    const int32_t step0 = t->key0 / (int32_t)OCT__DEV_KEYS * (int32_t)OCT__DEV_KEYS;
    tile_find_keys(t, step0, 0, is_v4);
    block_sync();
    NO_UNROLL
    for (int32_t base = step0; base < t->key1; base += (int32_t)OCT__DEV_KEYS, half ^= 1) {
        const uint32_t low = t->key0 > base ? (uint32_t)(t->key0 - base) : 0;
        const uint32_t high = t->key1 - base < (int32_t)OCT__DEV_KEYS ? (uint32_t)(t->key1 - base) : OCT__DEV_KEYS;
        if (tid() == 0) {
            SPUT(*t->irregular, 0);
        }
        tile_scores(t, half, nv);
        block_sync();
        tile_weights(t, base, low, high, half, threads);
        tile_find_keys(t, base + (int32_t)OCT__DEV_KEYS, half ^ 1, is_v4);
        block_sync();
        UNROLL
        for (uint32_t i = 0; i < nv; i++) {
            if (i < t->n_own) {
                const float alpha = SGET(t->alpha[t->vector0 + i]);
                UNROLL
                for (uint32_t c = 0; c < cpt; c++) {
                    o[i * cpt + c] *= alpha;
                }
            }
        }
        if (own < n_shares) {
            if (is_v4) {
                tile_output_v4(t, low, high, half, dim0, own, n_shares, nv, cpt, o);
            } else if (p->layer.layout == OCT_LAYOUT_V5D) {
                tile_output_v5d(t, low, high, half, dim0, own, n_shares, nv, cpt, o);
            } else {
                tile_output(t, low, high, half, dim0, own, n_shares, nv, cpt, o);
            }
        }
        block_sync();
    }

    /* The shares of the keys, in order; o takes the place of q. */
    NO_UNROLL
    for (uint32_t share = 0; share < n_shares; share++) {
        if (own == share) {
            UNROLL
            for (uint32_t i = 0; i < nv; i++) {
                if (i < t->n_own) {
                    UNROLL
                    for (uint32_t c = 0; c < cpt; c++) {
                        float *to = t->q + (uint64_t)(t->vector0 + i) * dim_v + (is_v4 ? v4_dim(dim0, c, cpt) : dim0 + c);
                        const float before = share == 0 ? 0.0f : SGET(*to);
                        SPUT(*to, before + o[i * cpt + c]);
                    }
                }
            }
        }
        block_sync();
    }
    for (uint32_t v = tid() / WARP; v < t->n_vectors; v += threads / WARP) {
        float x[ROW_FLOATS];
        const float m = SGET(t->m[v]), z = SGET(t->z[v]);
        UNROLL
        for (uint32_t i = 0; i < ROW_FLOATS; i++) {
            const uint32_t d = row_element(i / 8) + i % 8;
            x[i] = d < dim_v ? SGET(t->q[(uint64_t)v * dim_v + d]) : 0.0f;
        }
        if (n_splits > 1) {
            store_state(p, GET(task->partial), head_tile, v, x, m, z);
        } else {
            finish_row(p, t->row0 + v / t->cut.n_heads, t->cut.head0 + v % t->cut.n_heads, t->cut.head_kv, x, m, z);
        }
    }
    block_sync();   /* before the next tile takes the shared memory */
}

/* threads lanes a block, at most nv vectors a lane; tile_vectors of up to 4 x nv are shared by one, two or four parts of the block. is_v4: V in that
 * format, and in no other. */
DEV void attn_blocks(const oct__attn_params *p, uint8_t *shared, const uint32_t threads, const uint32_t nv, const uint32_t cpt, const int is_v4)
{
    const uint64_t n_work = (uint64_t)GET(p->plan->n_tasks[p->op]) * p->n_head_tiles;
    const uint32_t n_parts = p->tile_vectors <= nv ? 1 : p->tile_vectors <= 2 * nv ? 2 : 4;
    NO_UNROLL
    for (uint64_t work = block_id(); work < n_work; work += block_count()) {
        const oct__dev_task *task = p->tasks + work / p->n_head_tiles;
        const uint32_t head_tile = (uint32_t)(work % p->n_head_tiles);
        const uint32_t sequence = (uint32_t)GET(task->sequence);
        tile t;
        t.p = p;
        t.pages = batch_pages(&p->batch, sequence);
        t.cut = head_cut_of(p, head_tile);
        t.row0 = GET(task->row0);
        t.n_rows = GET(task->n_rows);
        t.key0 = GET(task->key0);
        t.key1 = GET(task->key1);
        t.pos0 = GET(task->pos0);
        t.n_vectors = (uint32_t)t.n_rows * t.cut.n_heads;
        t.mask_key0 = t.pos0 - (int32_t)(t.row0 - GET(p->batch.qo_indptr[sequence]));   /* kv_len - the sequence's rows */
        t.score_scale = p->sm_scale * (p->q_scale != 0 ? GET(*p->q_scale) : 1.0f) * static_scale(&p->layer.k, t.cut.head_kv);
        tile_lay_out(&t, shared);
        t.lanes_in_part = threads / n_parts;
        t.lane_in_part = tid() % t.lanes_in_part;
        t.vector0 = tid() / t.lanes_in_part * nv;
        t.n_own = t.n_vectors <= t.vector0 ? 0 : t.n_vectors - t.vector0 < nv ? t.n_vectors - t.vector0 : nv;
        tile_run(&t, task, head_tile, threads, nv, cpt, is_v4);
    }
}

KERNEL(attn_decode_4, 128, 3, oct__attn_params)
{
    SHARED_DYNAMIC(uint8_t, shared);
    attn_blocks(p, shared, 128, 4, 8, 0);
}

KERNEL(attn_decode_8, 128, 2, oct__attn_params)
{
    SHARED_DYNAMIC(uint8_t, shared);
    attn_blocks(p, shared, 128, 8, 8, 0);
}

KERNEL(attn_decode_16, 128, 2, oct__attn_params)
{
    SHARED_DYNAMIC(uint8_t, shared);
    attn_blocks(p, shared, 128, 16, 4, 0);
}

KERNEL(attn_extend, 256, 1, oct__attn_params)
{
    SHARED_DYNAMIC(uint8_t, shared);
    attn_blocks(p, shared, 256, 16, 4, 0);
}

KERNEL(attn_decode_v4_4, 128, 3, oct__attn_params)
{
    SHARED_DYNAMIC(uint8_t, shared);
    attn_blocks(p, shared, 128, 4, 8, 1);
}

KERNEL(attn_decode_v4_8, 128, 2, oct__attn_params)
{
    SHARED_DYNAMIC(uint8_t, shared);
    attn_blocks(p, shared, 128, 8, 8, 1);
}

KERNEL(attn_extend_v4, 256, 1, oct__attn_params)
{
    SHARED_DYNAMIC(uint8_t, shared);
    attn_blocks(p, shared, 256, 16, 4, 1);
}

#endif
