/* attn_decode_sm90a.h: decode on Hopper: up to 8 or 16 vectors (query rows x query heads of a KV head) over a span of keys, pages of 8 or 16 bits, 16-bit
 * matrix products with f32 sums and state: the class of attn_mma.h and its error, at the speed of the memory.
 *
 * What a decode costs. Bytes: K and V of every key once; 32/8 heads of 128 dims, e4m3, 64 x 4,096: 537 MB. At the 4,507 GB/s that an H200 was measured
 * to read, 119 us; the floor that a cold read of as many bytes reaches is 122. Products: 4 x 128 flops for each key and query head, 4.3 GFLOP: 6 us
 * at a quarter of the matrix units' rate. Conversions: an instruction for two codes, 17 M a head of... of all SMs together 537 M / 2 / (132 x 64 a clock):
 * 18 us. So the bytes decide, if enough of them are on their way at any time (34 GB/s and SM x 1.5 us = 51 KB) and nobody waits for a block's end.
 *
 * The ladder (prototype, 64 x 4,096, floor 122.4 us, and 1 x 65,536, floor 33.1):
 *   fragments straight from global memory (attn_mma.h's way)     more registers than warps to hide the latency: 1.5 x the floor
 *   cp.async into rings of three tiles a warp, 192 KB an SM      1.16, 1.32; no block-wide barrier in the loop
 *   S^T = K q^T, O^T = V^T P^T: heads in the 8 columns           half the products and half the accumulators of packing heads into the 16 rows
 *   equal parts of all keys, one a resident block, across        1.13, 1.28; shrinking parts or a queue were slower: each piece costs 2 to 4 us
 *     sequences, with the copies running ahead over their ends
 *   the maximum moves only when a score passes it by 2^8         no shuffle in the usual tile
 *   1D bulk copies (TMA) by a producer warp                      no faster than cp.async here, and they take whole rows of all heads only
 *
 * Every warp has a ring of its own and walks over the tasks of the block's part; `heads_a_block` neighbouring head tiles are shared among the four warps of a
 * block, and the warps of one take turns at its tiles. Warps meet at the end of a task only, to add their sums. Threads: blocks share nothing. */
#ifndef OCT_CUDA_ATTN_DECODE_SM90A_H
#define OCT_CUDA_ATTN_DECODE_SM90A_H

#include "cuda/simt_sm90a.h"
#include "device/attn_finish.h"
#include "device/sm90a.h"
#include "device/tile.h"

#define SM90_WARPS OCT__SM90A_WARPS
#define SM90_FAR 3e38f              /* minus it: a maximum before any key */
#define SM90_SLACK 8.0f             /* log2 by which a score may pass the maximum: weights of up to 2^8 are f16 too */
#define SM90_FREE 7u                /* word of `valid` that holds the slot consumed last */

/* What a kernel is compiled for; every field a constant. */
typedef struct sm90_kind {
    uint32_t k_size, v_size;        /* bytes of an element */
    uint32_t dim;                   /* most dims: 64, 128, 256 */
    uint32_t blocks;                /* of 8 vectors */
    uint32_t keys, stages, stage_bytes;
} sm90_kind;

/* What a warp knows for as long as its block lives. */
typedef struct sm90_warp {
    const oct__attn_params *p;
    uint32_t warp, lane, share, n_shares;   /* share: among the warps of its head tile */
    uint32_t head_tile, n_heads;
    head_cut cut;
    uint8_t *shared;
    oct__sm90a_shared at;
    shared_at ring;
    uint64_t *k_at, *v_at;                  /* shared: addresses of the keys of the next tile; 0: not there */
    float *scale;
    uint32_t *valid;
    uint32_t page_shift;                    /* of a page size that is a power of two; else 32 */
    uint32_t is_wide;                       /* rows of K and V begin at multiples of 16 bytes */
    uint32_t has_k_scale, has_v_scale;      /* beside the pages */
} sm90_warp;

/* The tiles of the block's tasks in order, ahead of their use. */
typedef struct sm90_stream {
    uint32_t task, end, slot;
    int32_t base, key0, key1;
    const int32_t *pages;
    int32_t next_key0, next_key1, next_sequence;   /* of task + 1, asked for early */
    uint32_t is_found;
    int32_t key, page;                      /* the lane's, of the tile that is copied next; key -1: none */
    uint32_t scale_slot;                    /* where the scales just read belong */
    float k_scale, v_scale;
} sm90_stream;

/* Rows of a task. */
typedef struct sm90_rows {
    int64_t row0;
    int32_t key0, key1, pos0, mask_key0;
    int32_t seen_from, seen_to;             /* keys that all rows see */
    uint32_t n_rows, n_vectors;
} sm90_rows;

/* A warp's running state, of the vectors that are its lanes' own: [blocks][2]. */
typedef struct sm90_state {
    float m[4], z[4];                       /* m: log2 */
    float factor[4];                        /* from a raw score to log2 */
    uint32_t row[4], is_own[4];
    float unit, inverse;                    /* sums are in units of it: a power of two >= the V scales met, so that weights stay f16 */
} sm90_state;

/* 16-byte chunks of row r are stored XORed with this, so that both the reads of K (8 rows, 4 chunks) and of V (4 rows, 8 chunks) meet all banks. */
DEV uint32_t sm90_swizzle(uint32_t row, const uint32_t row_bytes)
{
    return ((row >> 1 & 3) * 2) ^ (row_bytes > 64 ? (row & 1) * 4 : 0);
}

/* ---- tiles, from pages to rings ---------------------------------------------------------------------------------------------------- */

DEV void sm90_ask_for_task(const sm90_warp *t, sm90_stream *s, uint32_t task)
{
    if (task < s->end) {
        const oct__dev_task *at = t->p->tasks + task;
        s->next_key0 = GET(at->key0);
        s->next_key1 = GET(at->key1);
        s->next_sequence = GET(at->sequence);
    }
}

DEV void sm90_open_task(const sm90_warp *t, sm90_stream *s, const sm90_kind k)
{
    if (s->task < s->end) {
        s->key0 = s->next_key0;
        s->key1 = s->next_key1;
        s->pages = batch_pages(&t->p->batch, (uint32_t)s->next_sequence);
        s->base = (int32_t)((uint32_t)s->key0 / k.keys * k.keys + t->share * k.keys);
        sm90_ask_for_task(t, s, s->task + 1);
    }
}

/* Finds the next tile and asks for its page ids. */
DEV void sm90_find(const sm90_warp *t, sm90_stream *s, const sm90_kind k)
{
    while (s->task < s->end && s->base >= s->key1) {
        s->task++;
        sm90_open_task(t, s, k);
    }
    s->is_found = s->task < s->end;
    s->key = -1;
    s->page = -1;
    if (s->is_found) {
        const int32_t key = s->base + (int32_t)t->lane;
        if (t->lane < k.keys && key >= s->key0 && key < s->key1) {
            s->key = key;
            s->page = GET(s->pages[t->page_shift < 32 ? (uint32_t)key >> t->page_shift : (uint32_t)key / t->p->layer.page_size]);
        }
        s->base += (int32_t)(t->n_shares * k.keys);
    }
}

/* Copies one side of a tile. from: [keys], addresses in shared memory. */
DEV void sm90_copy_side(const sm90_warp *t, const oct__dev_side *side, const uint64_t *from, shared_at to, const uint32_t size, const uint32_t row_bytes,
                        const uint32_t keys, uint32_t chunk_step_bytes)
{
    const uint32_t chunks = row_bytes / 16, rows = 32 / chunks;   /* of one turn of the warp */
    const uint32_t chunk = t->lane % chunks, row = t->lane / chunks, have = side->dim * size;
    const uint32_t bytes = chunk * 16 >= have ? 0 : have - chunk * 16 < 16 ? have - chunk * 16 : 16;
    const uint32_t own = (row * row_bytes + chunk * 16) ^ (sm90_swizzle(row, row_bytes) * 16);
    if (t->is_wide) {
        UNROLL
        for (uint32_t i = 0; i < keys / rows; i++) {
            const uint64_t at = SGET(from[i * rows + row]);
            const uint8_t *chunk_at = at != 0 ? (const uint8_t *)(uintptr_t)at + (uint64_t)chunk * chunk_step_bytes : (const uint8_t *)side->base;
            async_load(to + (own ^ (sm90_swizzle(i * rows, row_bytes) * 16)) + i * rows * row_bytes, chunk_at, at != 0 ? bytes : 0);
        }
        return;
    }
    NO_UNROLL
    for (uint32_t i = 0; i < keys / rows; i++) {
        const uint64_t at = SGET(from[i * rows + row]);
        const uint8_t *chunk_at = (const uint8_t *)(uintptr_t)at + (uint64_t)chunk * chunk_step_bytes;
        uint32_t word[4] = { 0, 0, 0, 0 };
        if (at != 0 && bytes == 16) {
            load_words(chunk_at, 16, size, word);
        } else if (at != 0 && bytes == 8) {
            load_words(chunk_at, 8, size, word);
        }
        const shared_at there = to + (own ^ (sm90_swizzle(i * rows, row_bytes) * 16)) + i * rows * row_bytes;
        const u32x2 low = { word[0], word[1] }, high = { word[2], word[3] };
        shared_write_8(there, low);
        shared_write_8(there + 8, high);
    }
}

/* Asks for the bytes of the tile found last, into the slot consumed last, and finds the next one. All lanes of the warp. */
DEV void sm90_issue(const sm90_warp *t, sm90_stream *s, const sm90_kind k)
{
    const oct__dev_layer *layer = &t->p->layer;
    const uint32_t is_tile = s->is_found, slot = s->slot;
    const int32_t key = s->key;
    const int64_t page = s->page;
    if ((t->has_k_scale || t->has_v_scale) && s->scale_slot < k.stages && t->lane < k.keys) {
        SPUT(t->scale[s->scale_slot * 2 * k.keys + t->lane], s->k_scale);
        SPUT(t->scale[(s->scale_slot * 2 + 1) * k.keys + t->lane], s->v_scale);
    }
    s->scale_slot = k.stages;
    sm90_find(t, s, k);   /* its loads are on their way while the page ids at hand are used */
    if (is_tile) {
        const uint32_t is_there = key >= 0 && page >= 0 && page < layer->n_pages;
        const uint32_t seen = warp_ballot(is_there);
        if (t->lane < k.keys) {
            uint64_t k_at = 0, v_at = 0;
            if (is_there) {
                const uint32_t token = t->page_shift < 32 ? (uint32_t)key & (layer->page_size - 1) : (uint32_t)key % layer->page_size;
                k_at = (uint64_t)(uintptr_t)layer->k.base + (uint64_t)side_at(&layer->k, layer->layout, layer->page_size, 1, page, token, t->cut.head_kv) * k.k_size;
                v_at = (uint64_t)(uintptr_t)layer->v.base + (uint64_t)side_at(&layer->v, layer->layout, layer->page_size, 0, page, token, t->cut.head_kv) * k.v_size;
                if (t->has_k_scale) {
                    s->k_scale = token_scale(&layer->k, layer->heads, page, token, t->cut.head_kv);
                }
                if (t->has_v_scale) {
                    s->v_scale = token_scale(&layer->v, layer->heads, page, token, t->cut.head_kv);
                }
            } else {
                s->k_scale = 1.0f;
                s->v_scale = 0.0f;
            }
            s->scale_slot = slot;
            SPUT(t->k_at[t->lane], k_at);
            SPUT(t->v_at[t->lane], v_at);
        }
        if (t->lane == 0) {
            SPUT(t->valid[slot], seen);
        }
        warp_sync();
        const shared_at to = t->ring + slot * k.stage_bytes;
        sm90_copy_side(t, &layer->k, t->k_at, to, k.k_size, k.dim * k.k_size, k.keys, layer->layout == OCT_LAYOUT_V5D ? layer->page_size * 16 : 16);
        sm90_copy_side(t, &layer->v, t->v_at, to + k.keys * k.dim * k.k_size, k.v_size, k.dim * k.v_size, k.keys, 16);
        s->slot = slot + 1 == k.stages ? 0 : slot + 1;
    }
    async_commit();
}

/* ---- q ------------------------------------------------------------------------------------------------------------------------------- */

/* The lane's elements of q of vector lane / 4 of a block of 8, as f32, at the very dims of its K chunks. spare: the slot that nobody uses. */
DEV void sm90_load_q(const sm90_warp *t, const sm90_rows *r, uint32_t block, float *spare, const sm90_kind k, float *x)
{
    const oct__attn_params *p = t->p;
    const uint32_t chunk = 16 / k.k_size, eights = k.dim / 32, dim = p->layer.k.dim, q_bytes = element_bytes(p->q_dtype);   /* eights of a lane */
    const uint32_t vector = block * 8 + t->lane / 4, is_there = vector < r->n_vectors;
    const int64_t row_bytes = p->q_row_stride * (int64_t)q_bytes, head_bytes = p->q_head_stride * (int64_t)q_bytes;
    if (q_bytes == 2 && (((uint64_t)(uintptr_t)p->q | (uint64_t)row_bytes | (uint64_t)head_bytes) & 15) == 0) {
        const uint8_t *at = (const uint8_t *)p->q + (r->row0 + vector / t->cut.n_heads) * row_bytes + (int64_t)(t->cut.head0 + vector % t->cut.n_heads) * head_bytes;
        uint32_t word[32];
        UNROLL
        for (uint32_t i = 0; i < eights; i++) {
            const uint32_t d = (t->lane % 4 + 4 * (i * 8 / chunk)) * chunk + i * 8 % chunk;
            u32x4 v = { 0, 0, 0, 0 };
            if (is_there && d < dim) {
                v = global_load_16(at + d * 2);
            }
            word[4 * i] = v.x;
            word[4 * i + 1] = v.y;
            word[4 * i + 2] = v.z;
            word[4 * i + 3] = v.w;
        }
        if (p->q_dtype == OCT_DTYPE_BF16) {
            UNROLL
            for (uint32_t i = 0; i < eights * 4; i++) {
                decode_word(word[i], OCT_DTYPE_BF16, x + 2 * i);
            }
        } else {
            UNROLL
            for (uint32_t i = 0; i < eights * 4; i++) {
                decode_word(word[i], OCT_DTYPE_F16, x + 2 * i);
            }
        }
        return;
    }
    NO_UNROLL
    for (uint32_t e = t->lane; e < 8 * (dim / 8); e += WARP) {
        const uint32_t own = block * 8 + e / (dim / 8), d = e % (dim / 8) * 8;
        float eight[8] = { 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f };
        if (own < r->n_vectors) {
            load_eight((const uint8_t *)p->q + (r->row0 + own / t->cut.n_heads) * row_bytes + (int64_t)(t->cut.head0 + own % t->cut.n_heads) * head_bytes + d * q_bytes,
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
DEV void sm90_bring_q(const sm90_warp *t, const sm90_rows *r, float *spare, shared_at q_at, const sm90_kind k, sm90_state *state, uint32_t *q)
{
    const oct__attn_params *p = t->p;
    const uint32_t n = k.dim / 4, chunk = 16 / k.k_size, dim = p->layer.k.dim;
    const float score_scale = p->sm_scale * (p->q_scale != 0 ? GET(*p->q_scale) : 1.0f) * static_scale(&p->layer.k, t->cut.head_kv) * LOG2_E;
    UNROLL
    for (uint32_t b = 0; b < k.blocks; b++) {
        float x[64], amax = 0.0f;
        sm90_load_q(t, r, b, spare, k, x);
        if (p->layer.k.rotated) {
            sm90_rotate(t, dim, k, x);
        }
        if (p->layer.k.scale_mode == OCT_SCALE_CHANNEL) {
            const float *scale = p->layer.k.scale + (uint64_t)t->cut.head_kv * dim;
            UNROLL
            for (uint32_t i = 0; i < n; i++) {
                const uint32_t d = (t->lane % 4 + 4 * (i / chunk)) * chunk + i % chunk;
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
        uint32_t exponent = oct__f32_to_bits(amax) >> 23;
        exponent = exponent < 2 ? 2 : exponent > 252 ? 252 : exponent;
        exponent = amax > 0.0f ? exponent : 127;
        const float shrink = oct__f32_of_bits((254 - exponent) << 23), grow = oct__f32_of_bits(exponent << 23);
        UNROLL
        for (uint32_t j = 0; j < 2; j++) {
            const uint32_t vector = b * 8 + tile_own_vector(j);
            state->factor[2 * b + j] = score_scale * warp_shuffle_f32(grow, 4 * tile_own_vector(j));
            state->is_own[2 * b + j] = vector < r->n_vectors;
            state->row[2 * b + j] = vector / t->cut.n_heads;
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

/* ---- scores ---------------------------------------------------------------------------------------------------------------------------- */

/* s: [blocks][16 keys each][4] = K q of the tile, raw. */
DEV void sm90_scores(const sm90_warp *t, shared_at tile, const uint32_t *q, shared_at q_at, const sm90_kind k, const uint32_t dtype, float *s)
{
    const uint32_t steps = k.k_size == 1 ? 4 : 2, row_bytes = k.dim * k.k_size, parts = k.keys / 16;
    const uint32_t own = (t->lane / 4 * row_bytes + t->lane % 4 * 16) ^ (sm90_swizzle(t->lane / 4, row_bytes) * 16);
    float other[2 * 2 * 4];   /* two chains of products that wait for each other */
    UNROLL
    for (uint32_t i = 0; i < k.blocks * parts * 4; i++) {
        s[i] = other[i] = 0.0f;
    }
    UNROLL
    for (uint32_t u = 0; u < row_bytes / 64; u++) {
        if (u == 0 || u * (64 / k.k_size) < t->p->layer.k.dim) {
            u32x4 row[2][2];
            UNROLL
            for (uint32_t m = 0; m < parts; m++) {
                UNROLL
                for (uint32_t h = 0; h < 2; h++) {
                    row[m][h] = shared_read_16(tile + (own ^ (u % 2 * 64)) + u / 2 * 128 + (m * 16 + h * 8) * row_bytes);
                }
            }
            UNROLL
            for (uint32_t n = 0; n < steps; n++) {
                uint32_t b[2][2];
                UNROLL
                for (uint32_t c = 0; c < k.blocks; c++) {
                    if (oct__sm90a_q_bytes(k.dim, k.blocks * 8) == 0) {
                        b[c][0] = q[c * (k.dim / 8) + (u * steps + n) * 2];
                        b[c][1] = q[c * (k.dim / 8) + (u * steps + n) * 2 + 1];
                    } else {
                        const u32x2 both = shared_read_8(q_at + ((c * (k.dim / 16) + u * steps + n) * 32 + t->lane) * 8);
                        b[c][0] = both.x;
                        b[c][1] = both.y;
                    }
                }
                UNROLL
                for (uint32_t m = 0; m < parts; m++) {
                    uint32_t pair[4], a[TILE_A];
                    UNROLL
                    for (uint32_t h = 0; h < 2; h++) {
                        const uint32_t word[4] = { row[m][h].x, row[m][h].y, row[m][h].z, row[m][h].w };
                        if (k.k_size == 1) {
                            to_16(word[n], dtype, pair + 2 * h);
                        } else {
                            pair[2 * h] = word[2 * n % 4];
                            pair[2 * h + 1] = word[2 * n % 4 + 1];
                        }
                    }
                    tile_a_of_k(pair, a);
                    UNROLL
                    for (uint32_t c = 0; c < k.blocks; c++) {
                        tile_mma(n % 2 == 0 ? s + (c * parts + m) * 4 : other + (c * parts + m) * 4, a, b[c], dtype == OCT_DTYPE_BF16);
                    }
                }
            }
        }
    }
    UNROLL
    for (uint32_t i = 0; i < k.blocks * parts * 4; i++) {
        s[i] += other[i];
    }
}

/* ---- weights ---------------------------------------------------------------------------------------------------------------------------- */

DEV uint32_t sm90_sees(const sm90_warp *t, const sm90_rows *r, uint32_t row, int32_t key)
{
    const oct__attn_params *p = t->p;
    const int64_t position = (int64_t)r->pos0 + row;
    if ((p->causal && key > position) || (p->window > 0 && position - key >= (int64_t)p->window)) {
        return 0;
    }
    if (p->mask != 0 && key >= r->mask_key0) {
        const int64_t bit = (int64_t)key - r->mask_key0;
        return GET(p->mask[(r->row0 + row) * p->mask_row_stride + bit / 32]) >> (bit % 32) & 1;
    }
    return 1;
}

/* The maxima move, where a score passes one by more than the slack, and the unit of the sums, where a V scale passes it. Each vector's by its own scores:
 * nothing depends on who shares the tile. */
DEV void sm90_move(const sm90_warp *t, const sm90_kind k, const float *top, float largest, sm90_state *state, float *o)
{
    float grow = 1.0f, alpha[4];
    if (t->has_v_scale) {
        UNROLL
        for (uint32_t lanes = 4; lanes < 32; lanes *= 2) {
            largest = max_f32(largest, shfl_xor_f32(largest, lanes));
        }
        if (largest > state->unit) {
            uint32_t exponent = (oct__f32_to_bits(largest) >> 23) + 1;
            exponent = exponent > 252 ? 252 : exponent;
            const float unit = oct__f32_of_bits(exponent << 23);
            grow = state->unit * oct__f32_of_bits((254 - exponent) << 23);
            state->unit = unit;
            state->inverse = oct__f32_of_bits((254 - exponent) << 23);
        }
    }
    UNROLL
    for (uint32_t j = 0; j < k.blocks * 2; j++) {
        float x = top[j];
        UNROLL
        for (uint32_t lanes = 4; lanes < 32; lanes *= 2) {
            x = max_f32(x, shfl_xor_f32(x, lanes));
        }
        x = x > state->m[j] + SM90_SLACK ? x : state->m[j];
        const float keep = exp2_fast(state->m[j] - x);
        state->m[j] = x;
        state->z[j] *= keep;
        alpha[j] = keep * grow;
    }
    UNROLL
    for (uint32_t i = 0; i < k.blocks * k.dim / 4; i++) {
        o[i] *= alpha[i / (k.dim / 4) * 2 + i % 2];
    }
}

/* From raw scores to weights in their place. seen: [blocks * 2] bits of the lane's own keys, where the result, whether some vector may not see some key,
 * is not 0. */
DEV uint32_t sm90_weights(const sm90_warp *t, const sm90_rows *r, int32_t base, uint32_t slot, const sm90_kind k, sm90_state *state, float *s, float *o,
                          uint32_t *seen)
{
    const uint32_t parts = k.keys / 16, valid = SGET(t->valid[slot]);
    const float softcap = t->p->softcap * LOG2_E, *scale = t->scale + slot * 2 * k.keys;
    uint32_t is_irregular = valid != (k.keys == 32 ? ~0u : 0xFFFFu) || base < r->seen_from || (int64_t)base + k.keys > r->seen_to;
    float v_scale[4], top[4], mul[4], largest = 0.0f;
    uint32_t moves = 0, minus_inf = 0;
    if (t->has_k_scale) {
        UNROLL
        for (uint32_t i = 0; i < parts * 2; i++) {
            const float k_scale = SGET(scale[i / 2 * 16 + t->lane / 4 + i % 2 * 8]);
            UNROLL
            for (uint32_t b = 0; b < k.blocks; b++) {
                s[(b * parts + i / 2) * 4 + i % 2 * 2] *= k_scale;
                s[(b * parts + i / 2) * 4 + i % 2 * 2 + 1] *= k_scale;
            }
        }
    }
    if (t->has_v_scale) {
        UNROLL
        for (uint32_t i = 0; i < parts * 2; i++) {
            v_scale[i] = SGET(scale[k.keys + i / 2 * 16 + t->lane / 4 + i % 2 * 8]);
            largest = max_f32(largest, oct__f32_bits_are_finite(oct__f32_to_bits(v_scale[i])) ? v_scale[i] : 0.0f);
        }
        moves = largest > state->unit;
    }
    UNROLL
    for (uint32_t j = 0; j < k.blocks * 2; j++) {
        mul[j] = state->factor[j];
    }
    if (is_irregular || softcap > 0.0f) {
        UNROLL
        for (uint32_t i = 0; i < k.blocks * parts * 4; i++) {
            const uint32_t own = i / (parts * 4) * 2 + i % 2, key = i / 4 % parts * 16 + tile_s_key(i % 4);
            float x = s[i] * state->factor[own];
            if (softcap > 0.0f) {
                x = softcap * tanh_f32(x / softcap);
            }
            if (is_irregular && !((valid >> key & 1) && (!state->is_own[own] || sm90_sees(t, r, state->row[own], base + (int32_t)key)))) {
                x = OCT__MINUS_INF;
            }
            s[i] = x;
        }
        UNROLL
        for (uint32_t j = 0; j < k.blocks * 2; j++) {
            mul[j] = 1.0f;
        }
    }
    UNROLL
    for (uint32_t j = 0; j < k.blocks * 2; j++) {
        const float *own = s + j / 2 * parts * 4 + j % 2;
        float high = max_f32(own[0], own[2]), low = max_f32(-own[0], -own[2]);
        UNROLL
        for (uint32_t m = 1; m < parts; m++) {
            high = max_f32(high, max_f32(own[4 * m], own[4 * m + 2]));
            low = max_f32(low, max_f32(-own[4 * m], -own[4 * m + 2]));
        }
        top[j] = high * mul[j];
        moves |= top[j] > state->m[j] + SM90_SLACK;
        minus_inf |= low == -OCT__MINUS_INF;
    }
    if (warp_any(moves | minus_inf)) {
        is_irregular |= warp_any(minus_inf);   /* a stored infinity too: weight 0, and its V is not looked at */
        sm90_move(t, k, top, largest, state, o);
        if (is_irregular) {
            UNROLL
            for (uint32_t j = 0; j < k.blocks * 2; j++) {
                seen[j] = 0;
                UNROLL
                for (uint32_t i = 0; i < parts * 2; i++) {
                    seen[j] |= (s[(j / 2 * parts + i / 2) * 4 + i % 2 * 2 + j % 2] == OCT__MINUS_INF ? 0u : 1u) << (i / 2 * 16 + t->lane / 4 + i % 2 * 8);
                }
            }
        }
    } else {
        is_irregular = 0;
    }
    UNROLL
    for (uint32_t i = 0; i < k.blocks * parts * 4; i++) {
        const uint32_t own = i / (parts * 4) * 2 + i % 2;
        const float x = exp2_fast(fma_f32(s[i], mul[own], -state->m[own]));
        state->z[own] += x;
        if (t->has_v_scale) {
            s[i] = s[i] == OCT__MINUS_INF ? 0.0f : x * (v_scale[i / 4 % parts * 2 + i % 4 / 2] * state->inverse);
        } else {
            s[i] = x;
        }
    }
    return is_irregular;
}

/* ---- output ------------------------------------------------------------------------------------------------------------------------------- */

/* Neighbouring dims that a lane brings of each of its four keys. */
DEV uint32_t sm90_run(const sm90_kind k)
{
    return k.dim == 64 ? 8 : 16 / k.v_size;
}

/* Whether some code of the word is no finite number. */
DEV uint32_t sm90_is_odd(uint32_t word, const uint32_t dtype)
{
    switch (dtype) {
    case OCT_DTYPE_E4M3FN:
        return ((word & 0x7F7F7F7Fu) + 0x01010101u) & 0x80808080u;
    case OCT_DTYPE_E4M3FNUZ: {
        const uint32_t like = word ^ 0x80808080u;   /* a zero byte is a NaN */
        return (like - 0x01010101u) & ~like & 0x80808080u;
    }
    case OCT_DTYPE_E5M2:
        return ((word & 0x7F7F7F7Fu) + 0x04040404u) & 0x80808080u;
    case OCT_DTYPE_F16:
        return ((word & 0x7FFF7FFFu) + 0x04000400u) & 0x80008000u;
    case OCT_DTYPE_BF16:
        return ((word & 0x7FFF7FFFu) + 0x00800080u) & 0x80008000u;
    default:
        return 0;
    }
}

/* The lane's run of group g of its four keys among the 16 of part m: [4][run words]. */
DEV void sm90_read_v(const sm90_warp *t, shared_at v, uint32_t m, uint32_t g, const sm90_kind k, uint32_t *word)
{
    const uint32_t row_bytes = k.dim * k.v_size, run_bytes = sm90_run(k) * k.v_size, row = 2 * (t->lane % 4);
    const uint32_t own = (row * row_bytes + t->lane / 4 * run_bytes) ^ (sm90_swizzle(row, row_bytes) * 16);
    UNROLL
    for (uint32_t i = 0; i < 4; i++) {
        /* An odd row lies 64 bytes aside: by the swizzle, and by the row itself where a row has no more. */
        const shared_at at = v + (own ^ (i % 2 * 64)) + (row_bytes > 64 ? i % 2 * row_bytes : 0) + (m * 16 + i / 2 * 8) * row_bytes + g * 128;
        if (run_bytes == 16) {
            const u32x4 x = shared_read_16(at);
            word[4 * i] = x.x;
            word[4 * i + 1] = x.y;
            word[4 * i + 2] = x.z;
            word[4 * i + 3] = x.w;
        } else {
            const u32x2 x = shared_read_8(at);
            word[2 * i] = x.x;
            word[2 * i + 1] = x.y;
        }
    }
}

/* o += V^T P of one group of 16 keys. b: [blocks][part stride 2]. is_solo: of one key alone, for the vectors that see it (bit `first + key` of seen). */
DEV void sm90_add(const uint32_t *word, const uint32_t *b, uint32_t b_stride, const sm90_kind k, const uint32_t dtype, const uint32_t is_solo, uint32_t key,
                  uint32_t first, const uint32_t *seen, uint32_t o_stride, float *o)
{
    const uint32_t run = sm90_run(k), words = run * k.v_size / 4;
    uint32_t pair[2 * 16];
    UNROLL
    for (uint32_t w = 0; w < words; w++) {
        uint32_t of[4];
        UNROLL
        for (uint32_t i = 0; i < 4; i++) {
            of[i] = is_solo && tile_v_key(i) != key ? 0 : word[i * words + w];
        }
        tile_pairs(of[0], of[1], dtype, pair + w * (4 / k.v_size));
        tile_pairs(of[2], of[3], dtype, pair + run + w * (4 / k.v_size));
    }
    UNROLL
    for (uint32_t m = 0; m < run / 2; m++) {
        uint32_t a[TILE_A];
        tile_a_of_v(pair, run, m, a);
        UNROLL
        for (uint32_t c = 0; c < k.blocks; c++) {
            float *sum = o + c * o_stride + 4 * m;
            if (!is_solo) {
                tile_mma(sum, a, b + c * b_stride, dtype == OCT_DTYPE_BF16);
            } else {
                float with[4] = { sum[0], sum[1], sum[2], sum[3] };
                tile_mma(with, a, b + c * b_stride, dtype == OCT_DTYPE_BF16);
                UNROLL
                for (uint32_t i = 0; i < 4; i++) {
                    sum[i] = seen[2 * c + i % 2] >> (first + key) & 1 ? with[i] : sum[i];
                }
            }
        }
    }
}

/* o: [blocks][groups][run / 2][4] */
DEV void sm90_output(const sm90_warp *t, shared_at v, const float *weight, uint32_t is_irregular, uint32_t *seen, const sm90_kind k, const uint32_t dtype, float *o)
{
    const uint32_t parts = k.keys / 16, run = sm90_run(k), groups = k.dim / (8 * run), o_stride = k.dim / 4;
    uint32_t b[2 * 2 * 2];
    UNROLL
    for (uint32_t i = 0; i < k.blocks * parts; i++) {
        tile_b_of_weights(weight + 4 * i, dtype == OCT_DTYPE_BF16, b + 2 * i);
    }
    if (is_irregular && dtype != OCT_DTYPE_I8) {
        uint32_t odd = 0;
        NO_UNROLL
        for (uint32_t i = 0; i < parts * groups; i++) {
            uint32_t word[16];
            sm90_read_v(t, v, i / groups, i % groups, k, word);
            UNROLL
            for (uint32_t w = 0; w < run * k.v_size; w++) {
                odd |= sm90_is_odd(word[w], dtype);
            }
        }
        if (warp_any(odd)) {
            UNROLL
            for (uint32_t j = 0; j < k.blocks * 2; j++) {
                UNROLL
                for (uint32_t lanes = 4; lanes < WARP; lanes *= 2) {
                    seen[j] |= shfl_xor_u32(seen[j], lanes);
                }
            }
            UNROLL
            for (uint32_t i = 0; i < parts * groups; i++) {
                uint32_t word[16];
                sm90_read_v(t, v, i / groups, i % groups, k, word);
                NO_UNROLL
                for (uint32_t key = 0; key < 16; key++) {   /* 0 x NaN must not be */
                    sm90_add(word, b + i / groups * 2, parts * 2, k, dtype, 1, key, i / groups * 16, seen, o_stride, o + i % groups * run * 2);
                }
            }
            return;
        }
    }
    UNROLL
    for (uint32_t i = 0; i < parts * groups; i++) {
        uint32_t word[16];
        sm90_read_v(t, v, i / groups, i % groups, k, word);
        sm90_add(word, b + i / groups * 2, parts * 2, k, dtype, 0, 0, 0, seen, o_stride, o + i % groups * run * 2);
    }
}

/* Formats become constants here. */
DEV void sm90_scores_of(const sm90_warp *t, shared_at tile, const uint32_t *q, shared_at q_at, const sm90_kind k, float *s)
{
    const uint32_t dtype = t->p->layer.k.dtype;
    if (k.k_size == 1) {
        if (dtype == OCT_DTYPE_E4M3FN) {
            sm90_scores(t, tile, q, q_at, k, OCT_DTYPE_E4M3FN, s);
        } else if (dtype == OCT_DTYPE_I8) {
            sm90_scores(t, tile, q, q_at, k, OCT_DTYPE_I8, s);
        } else if (dtype == OCT_DTYPE_E5M2) {
            sm90_scores(t, tile, q, q_at, k, OCT_DTYPE_E5M2, s);
        } else {
            sm90_scores(t, tile, q, q_at, k, OCT_DTYPE_E4M3FNUZ, s);
        }
    } else if (dtype == OCT_DTYPE_BF16) {
        sm90_scores(t, tile, q, q_at, k, OCT_DTYPE_BF16, s);
    } else {
        sm90_scores(t, tile, q, q_at, k, OCT_DTYPE_F16, s);
    }
}

DEV void sm90_output_of(const sm90_warp *t, shared_at v, const float *weight, uint32_t is_irregular, uint32_t *seen, const sm90_kind k, float *o)
{
    const uint32_t dtype = t->p->layer.v.dtype;
    if (k.v_size == 1) {
        if (dtype == OCT_DTYPE_E4M3FN) {
            sm90_output(t, v, weight, is_irregular, seen, k, OCT_DTYPE_E4M3FN, o);
        } else if (dtype == OCT_DTYPE_I8) {
            sm90_output(t, v, weight, is_irregular, seen, k, OCT_DTYPE_I8, o);
        } else if (dtype == OCT_DTYPE_E5M2) {
            sm90_output(t, v, weight, is_irregular, seen, k, OCT_DTYPE_E5M2, o);
        } else {
            sm90_output(t, v, weight, is_irregular, seen, k, OCT_DTYPE_E4M3FNUZ, o);
        }
    } else if (dtype == OCT_DTYPE_BF16) {
        sm90_output(t, v, weight, is_irregular, seen, k, OCT_DTYPE_BF16, o);
    } else {
        sm90_output(t, v, weight, is_irregular, seen, k, OCT_DTYPE_F16, o);
    }
}

/* ---- a task's end -------------------------------------------------------------------------------------------------------------------------- */

/* Bytes between vectors of the sums in a slot; a few more than they have, where there is room, so that their writes meet more banks. */
DEV uint32_t sm90_sum_stride(const sm90_kind k)
{
    return k.dim + (8 * (k.dim + 4) * 4 <= k.stage_bytes ? 4 : 0);
}

/* Adds the sums of the warps of each head tile, in the slots that they consumed last, and hands each row on. All lanes of the block. */
DEV void sm90_gather(const sm90_warp *t, const sm90_rows *r, const oct__dev_task *task, uint32_t free_slot, const sm90_kind k, sm90_state *state, const float *o)
{
    const oct__attn_params *p = t->p;
    const uint32_t run = sm90_run(k), groups = k.dim / (8 * run), vectors = k.blocks * 8, stride = sm90_sum_stride(k), dim_v = p->layer.v.dim;
    const uint32_t ring_bytes = k.stages * k.stage_bytes, n_splits = (uint32_t)GET(task->n_splits);
    float *m = (float *)(t->shared + t->at.state), *z = m + SM90_WARPS * vectors;
    float *own = (float *)(t->shared + t->warp * ring_bytes + free_slot * k.stage_bytes);
    UNROLL
    for (uint32_t b = 0; b < k.blocks; b++) {
        tile_sum_over_keys(state->z + 2 * b);
    }
    if (t->lane < 4) {
        UNROLL
        for (uint32_t j = 0; j < k.blocks * 2; j++) {
            SPUT(m[t->warp * vectors + j / 2 * 8 + tile_own_vector(j % 2)], state->m[j]);
            SPUT(z[t->warp * vectors + j / 2 * 8 + tile_own_vector(j % 2)], state->z[j]);
        }
    }
    if (t->lane == 0) {
        SPUT(t->valid[SM90_FREE], free_slot);
    }
    UNROLL
    for (uint32_t b = 0; b < k.blocks; b++) {
        UNROLL
        for (uint32_t i = 0; i < groups * run / 2; i++) {   /* fours of dims of both own vectors */
            const uint32_t j = i % 2, four = i / 2, g = four / (run / 4), d = g * 8 * run + t->lane / 4 * run + four % (run / 4) * 4;
            const float *sum = o + b * (k.dim / 4) + g * run * 2 + four % (run / 4) * 8;
            if (d < dim_v && state->is_own[2 * b + j]) {
                const f32x4 v = { sum[j] * state->unit, sum[2 + j] * state->unit, sum[4 + j] * state->unit, sum[6 + j] * state->unit };
                shared_store_f32x4(own + tile_own_vector(j) * stride + d, v);
            }
        }
        block_sync();
        NO_UNROLL
        for (uint32_t e = t->warp; e < 8 * t->n_heads; e += SM90_WARPS) {
            const uint32_t head = e % t->n_heads, in_block = e / t->n_heads, vector = b * 8 + in_block;
            const uint32_t head_tile = t->head_tile - t->warp % t->n_heads + head;
            const head_cut cut = head_cut_of(p, head_tile);
            if (vector < r->n_rows * cut.n_heads) {
                float x[ROW_FLOATS], top = -SM90_FAR, total = 0.0f;
                UNROLL
                for (uint32_t i = 0; i < ROW_FLOATS; i++) {
                    x[i] = 0.0f;
                }
                for (uint32_t w = head; w < SM90_WARPS; w += t->n_heads) {
                    top = max_f32(top, SGET(m[w * vectors + vector]));
                }
                NO_UNROLL
                for (uint32_t w = head; w < SM90_WARPS; w += t->n_heads) {
                    const float weight = exp2_fast(SGET(m[w * vectors + vector]) - top);
                    const uint32_t slot = SGET(*((uint32_t *)(t->shared + t->at.valid) + w * 8 + SM90_FREE));
                    const float *from = (const float *)(t->shared + w * ring_bytes + slot * k.stage_bytes) + in_block * stride + t->lane * 8;
                    total = fma_f32(SGET(z[w * vectors + vector]), weight, total);
                    if (t->lane * 8 < dim_v) {
                        const f32x4 low = shared_load_f32x4(from), high = shared_load_f32x4(from + 4);
                        x[0] = fma_f32(low.x, weight, x[0]);
                        x[1] = fma_f32(low.y, weight, x[1]);
                        x[2] = fma_f32(low.z, weight, x[2]);
                        x[3] = fma_f32(low.w, weight, x[3]);
                        x[4] = fma_f32(high.x, weight, x[4]);
                        x[5] = fma_f32(high.y, weight, x[5]);
                        x[6] = fma_f32(high.z, weight, x[6]);
                        x[7] = fma_f32(high.w, weight, x[7]);
                    }
                }
                top = total == 0.0f ? OCT__MINUS_INF : top * 0.693147181f;
                if (n_splits > 1) {
                    store_state(p, GET(task->partial), head_tile, vector, x, top, total);
                } else {
                    finish_row(p, r->row0 + vector / cut.n_heads, cut.head0 + vector % cut.n_heads, cut.head_kv, x, top, total);
                }
            }
        }
        block_sync();
    }
}

/* ---- a part ---------------------------------------------------------------------------------------------------------------------------------- */

DEV void sm90_take_rows(const sm90_warp *t, const oct__dev_task *task, sm90_rows *r)
{
    const oct__attn_params *p = t->p;
    r->row0 = GET(task->row0);
    r->n_rows = (uint32_t)GET(task->n_rows);
    r->key0 = GET(task->key0);
    r->key1 = GET(task->key1);
    r->pos0 = GET(task->pos0);
    r->n_vectors = r->n_rows * t->cut.n_heads;
    const int64_t from = p->window > 0 ? (int64_t)r->pos0 + r->n_rows - (int64_t)p->window : 0;
    r->seen_from = from > 0 ? (int32_t)from : 0;
    r->seen_to = p->causal ? r->pos0 + 1 : 0x7FFFFFFF;
    r->mask_key0 = 0;
    if (p->mask != 0) {
        r->mask_key0 = r->pos0 - (int32_t)(r->row0 - GET(p->batch.qo_indptr[GET(task->sequence)]));   /* kv_len - the sequence's rows */
        r->seen_to = r->seen_to < r->mask_key0 ? r->seen_to : r->mask_key0;
    }
}

/* Tasks [begin, end) for the block's head tiles. */
DEV void sm90_run_part(sm90_warp *t, uint32_t begin, uint32_t end, const sm90_kind k)
{
    const oct__attn_params *p = t->p;
    const shared_at q_at = shared_at_of(t->shared + t->at.q + t->warp % t->n_heads * oct__sm90a_q_bytes(k.dim, k.blocks * 8));
    sm90_stream stream;
    sm90_state state;
    uint32_t q[64], slot = 0;
    float o[128];
    stream.task = begin;
    stream.end = end;
    stream.slot = 0;
    stream.scale_slot = k.stages;
    stream.k_scale = stream.v_scale = 1.0f;
    stream.base = stream.key0 = stream.key1 = 0;
    stream.next_key0 = stream.next_key1 = stream.next_sequence = 0;
    stream.pages = 0;
    sm90_ask_for_task(t, &stream, begin);
    sm90_open_task(t, &stream, k);
    sm90_find(t, &stream, k);
    NO_UNROLL
    for (uint32_t i = 0; i + 1 < k.stages; i++) {
        sm90_issue(t, &stream, k);
        warp_sync();   /* the addresses have been read */
    }
    NO_UNROLL
    for (uint32_t i = begin; i < end; i++) {
        const oct__dev_task *task = p->tasks + i;
        sm90_rows r;
        const uint32_t free_at_first = slot == 0 ? k.stages - 1 : slot - 1;
        sm90_take_rows(t, task, &r);
        sm90_bring_q(t, &r, (float *)(t->shared + t->warp * k.stages * k.stage_bytes + free_at_first * k.stage_bytes), q_at, k, &state, q);
        UNROLL
        for (uint32_t j = 0; j < k.blocks * k.dim / 4; j++) {
            o[j] = 0.0f;
        }
        if (oct__sm90a_q_bytes(k.dim, k.blocks * 8) != 0) {
            block_sync();
        }
        NO_UNROLL
        for (int32_t base = (int32_t)((uint32_t)r.key0 / k.keys * k.keys + t->share * k.keys); base < r.key1; base += (int32_t)(t->n_shares * k.keys)) {
            const shared_at tile = t->ring + slot * k.stage_bytes;
            float s[2 * 2 * 4];
            uint32_t seen[4] = { 0, 0, 0, 0 };
            async_wait(k.stages - 2);
            warp_sync();
            sm90_issue(t, &stream, k);
            sm90_scores_of(t, tile, q, q_at, k, s);
            const uint32_t is_irregular = sm90_weights(t, &r, base, slot, k, &state, s, o, seen);
            sm90_output_of(t, tile + k.keys * k.dim * k.k_size, s, is_irregular, seen, k, o);
            slot = slot + 1 == k.stages ? 0 : slot + 1;
        }
        warp_sync();
        sm90_gather(t, &r, task, slot == 0 ? k.stages - 1 : slot - 1, k, &state, o);
    }
    async_wait(0);
    block_sync();
}

DEV void sm90_blocks(const oct__attn_params *p, uint8_t *shared, const uint32_t k_size, const uint32_t v_size, const uint32_t dim, const uint32_t vectors)
{
    const oct__sm90a_shared at = oct__sm90a_shared_of(k_size, v_size, dim, vectors, p->heads_a_block);
    const sm90_kind k = { k_size, v_size, dim, vectors / 8, at.keys, at.stages, at.stage_bytes };
    const oct__dev_layer *layer = &p->layer;
    const uint32_t n_blocks = p->n_head_tiles / p->heads_a_block, n_work = p->n_parts * n_blocks;
    sm90_warp t;
    t.p = p;
    t.warp = tid() / WARP;
    t.lane = tid() % WARP;
    t.n_heads = p->heads_a_block;
    t.share = t.warp / t.n_heads;
    t.n_shares = SM90_WARPS / t.n_heads;
    t.shared = shared;
    t.at = at;
    t.ring = shared_at_of(shared + t.warp * at.stages * at.stage_bytes);
    t.k_at = (uint64_t *)(shared + at.at) + t.warp * 2 * at.keys;
    t.v_at = t.k_at + at.keys;
    t.scale = (float *)(shared + at.scale) + t.warp * at.stages * 2 * at.keys;
    t.valid = (uint32_t *)(shared + at.valid) + t.warp * 8;
    t.has_k_scale = layer->k.scale_mode == OCT_SCALE_TOKEN_HEAD;
    t.has_v_scale = layer->v.scale_mode == OCT_SCALE_TOKEN_HEAD;
    t.page_shift = 0;
    while (t.page_shift < 32 && 1u << t.page_shift < layer->page_size) {
        t.page_shift++;
    }
    t.page_shift = 1u << t.page_shift == layer->page_size ? t.page_shift : 32;
    const uint64_t k_places = (uint64_t)layer->k.page_stride | (uint64_t)layer->k.token_stride | (uint64_t)layer->k.head_stride;
    const uint64_t v_places = (uint64_t)layer->v.page_stride | (uint64_t)layer->v.token_stride | (uint64_t)layer->v.head_stride;
    t.is_wide = (((uint64_t)(uintptr_t)layer->k.base | (uint64_t)(uintptr_t)layer->v.base | k_places * k_size | v_places * v_size) & 15) == 0;
    wait_previous();
    launch_next();
    NO_UNROLL
    for (uint64_t work = block_id(); work < n_work; work += block_count()) {
        const uint32_t part = (uint32_t)(work / n_blocks);
        t.head_tile = (uint32_t)(work % n_blocks) * t.n_heads + t.warp % t.n_heads;
        t.cut = head_cut_of(p, t.head_tile);
        sm90_run_part(&t, GET(p->parts[part]), GET(p->parts[part + 1]), k);
    }
}

/* attn_decode_sm90a_<bits of K>_<bits of V>_<dims>_<vectors> */
#define SM90_KERNEL(k_bits, v_bits, dim, vectors, blocks)                                                \
    KERNEL(attn_decode_sm90a_##k_bits##_##v_bits##_##dim##_##vectors, 128, blocks, oct__attn_params)     \
    {                                                                                                    \
        SHARED_DYNAMIC(uint8_t, shared);                                                                 \
        sm90_blocks(p, shared, k_bits / 8, v_bits / 8, dim, vectors);                                    \
    }
SM90_KERNEL(8, 8, 64, 8, 2)
SM90_KERNEL(8, 8, 128, 8, 2)
SM90_KERNEL(8, 8, 256, 8, 2)
SM90_KERNEL(8, 8, 64, 16, 2)
SM90_KERNEL(8, 8, 128, 16, 2)
SM90_KERNEL(8, 8, 256, 16, 2)
SM90_KERNEL(16, 16, 64, 8, 2)
SM90_KERNEL(16, 16, 128, 8, 2)
SM90_KERNEL(16, 16, 256, 8, 1)
SM90_KERNEL(16, 16, 128, 16, 2)
SM90_KERNEL(16, 16, 256, 16, 1)
SM90_KERNEL(8, 16, 128, 8, 2)
SM90_KERNEL(8, 16, 256, 8, 1)
SM90_KERNEL(16, 8, 128, 8, 2)
SM90_KERNEL(16, 8, 256, 8, 1)

#endif
