/* sm90a_ring.h: what a warp of attn_decode_sm90a.h knows, and the way of its tiles from pages to its ring in shared memory: page ids are asked for a tile
 * ahead of their use, and all but one of the ring's slots are on their way at any time. */
#ifndef OCT_CUDA_SM90A_RING_H
#define OCT_CUDA_SM90A_RING_H

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
    uint32_t warp, lane, share;             /* share: among the warps of its head tile */
    uint32_t head_tile;
    head_cut cut;
    uint8_t *shared;
    oct__sm90a_shared at;
    shared_at ring;
    uint64_t *key_at;                       /* shared: addresses of K and V of the keys of the next tile; 0: not there */
    float *scale;
    uint32_t *valid;
    uint32_t page_shift;                    /* of a page size that is a power of two; else 32 */
    uint32_t is_wide;                       /* rows of K and V begin at multiples of 16 bytes and end there */
    uint32_t has_scales, has_k_scale, has_v_scale;   /* beside the pages */
    uint64_t k_head, v_head;                /* addresses of the head in page 0 */
} sm90_warp;

/* The tiles of the block's tasks in order, ahead of their use. */
typedef struct sm90_stream {
    uint32_t task, end, slot;
    int32_t base, key0, key1;
    const int32_t *pages;
    uint32_t is_found;
    int32_t page;                           /* the lane's, of the tile that is copied next; -1: none */
    uint32_t token;
    uint32_t scale_slot;                    /* where the scales just read belong */
    float k_scale, v_scale;
} sm90_stream;

/* Rows of a task. */
typedef struct sm90_rows {
    const oct__dev_task *task;              /* what is seldom looked at is read there */
    int32_t key0, key1, pos0, mask_key0;
    int32_t seen_from, seen_to;             /* keys that all rows see */
    uint32_t n_vectors;
} sm90_rows;

/* A warp's running state, of the vectors that are its lanes' own: [blocks][2]. */
typedef struct sm90_state {
    float m[4], z[4];                       /* m: log2 */
    float factor[4];                        /* from a raw score to log2 */
    float unit, inverse;                    /* sums are in units of it: a power of two >= the V scales met, so that weights stay f16 */
} sm90_state;

/* Warps of a head tile: four, two or one. */
DEV uint32_t sm90_shares(const sm90_warp *t)
{
    return SM90_WARPS >> (t->p->heads_a_block >> 1);
}

/* 16-byte chunks of row r are stored XORed with this, so that both the reads of K (8 rows, 4 chunks) and of V (4 rows, 8 chunks) meet all banks. */
DEV uint32_t sm90_swizzle(uint32_t row, const uint32_t row_bytes)
{
    return ((row >> 1 & 3) * 2) ^ (row_bytes > 64 ? (row & 1) * 4 : 0);
}

/* ---- tiles, from pages to rings ---------------------------------------------------------------------------------------------------- */

DEV void sm90_open_task(const sm90_warp *t, sm90_stream *s, const sm90_kind k)
{
    if (s->task < s->end) {
        const oct__dev_task *task = t->p->tasks + s->task;
        s->key0 = GET(task->key0);
        s->key1 = GET(task->key1);
        s->pages = batch_pages(&t->p->batch, (uint32_t)GET(task->sequence));
        s->base = (int32_t)((uint32_t)s->key0 / k.keys * k.keys + t->share * k.keys);
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
    s->page = -1;
    if (s->is_found) {
        const int32_t key = s->base + (int32_t)t->lane;
        const uint32_t page_size = t->p->layer.page_size;
        uint32_t index = (uint32_t)key >> (t->page_shift & 31);
        s->token = (uint32_t)key & (page_size - 1);
        if (t->page_shift == 32) {
            index = (uint32_t)key / page_size;
            s->token = (uint32_t)key % page_size;
        }
        if (t->lane < k.keys && key >= s->key0 && key < s->key1) {
            s->page = GET(s->pages[index]);
        }
        s->base += (int32_t)(sm90_shares(t) * k.keys);
    }
}

/* Rows of one side: which of its chunks a lane brings, turn after turn. */
typedef struct sm90_side {
    const oct__dev_side *side;
    uint32_t index;                         /* of the addresses: K 0, V 1 */
    uint32_t size, row_bytes;               /* of an element; of a row in the ring */
    uint32_t rows, row, chunk;              /* of a turn of the warp; the lane's */
    uint32_t own;                           /* where its chunk of the first turn goes */
} sm90_side;

DEV sm90_side sm90_side_of(const sm90_warp *t, const oct__dev_side *side, uint32_t index, const uint32_t size, const uint32_t dim)
{
    sm90_side s;
    s.side = side;
    s.index = index;
    s.size = size;
    s.row_bytes = dim * size;
    s.rows = 32 / (s.row_bytes / 16);
    s.row = t->lane / (s.row_bytes / 16);
    s.chunk = t->lane % (s.row_bytes / 16);
    s.own = (s.row * s.row_bytes + s.chunk * 16) ^ (sm90_swizzle(s.row, s.row_bytes) * 16);
    return s;
}

DEV shared_at sm90_place(const sm90_side *s, shared_at to, const uint32_t turn)
{
    return to + (s->own ^ (sm90_swizzle(turn * s->rows, s->row_bytes) * 16)) + turn * s->rows * s->row_bytes;
}

/* All keys are there. Addresses first, then copies, four turns at a time, without anything in between that waits. */
DEV void sm90_copy_whole(const sm90_warp *t, const sm90_side *s, shared_at to, const uint32_t keys)
{
    const uint32_t turns = keys / s->rows, is_within = s->chunk * 16 < s->side->dim * s->size;
    UNROLL
    for (uint32_t first = 0; first < turns; first += 4) {
        const uint8_t *from[4];
        UNROLL
        for (uint32_t i = 0; i < 4 && first + i < turns; i++) {
            from[i] = (const uint8_t *)(uintptr_t)SGET(t->key_at[((first + i) * s->rows + s->row) * 2 + s->index]) + s->chunk * 16;
        }
        if (is_within) {
            UNROLL
            for (uint32_t i = 0; i < 4 && first + i < turns; i++) {
                async_load_16(sm90_place(s, to, first + i), from[i]);
            }
        }
    }
}

/* The same where both sides' rows lie alike: each pair of addresses is read once. */
DEV void sm90_copy_both(const sm90_warp *t, const sm90_side *k, shared_at to_k, const sm90_side *v, shared_at to_v, const uint32_t keys)
{
    const uint32_t turns = keys / k->rows, k_is_within = k->chunk * 16 < k->side->dim * k->size, v_is_within = v->chunk * 16 < v->side->dim * v->size;
    UNROLL
    for (uint32_t first = 0; first < turns; first += 4) {
        u32x4 at[4];
        UNROLL
        for (uint32_t i = 0; i < 4 && first + i < turns; i++) {
            at[i] = shared_read_16(shared_at_of(t->key_at) + ((first + i) * k->rows + k->row) * 16);
        }
        if (k_is_within) {
            UNROLL
            for (uint32_t i = 0; i < 4 && first + i < turns; i++) {
                async_load_16(sm90_place(k, to_k, first + i), (const uint8_t *)(uintptr_t)((uint64_t)at[i].y << 32 | at[i].x) + k->chunk * 16);
            }
        }
        if (v_is_within) {
            UNROLL
            for (uint32_t i = 0; i < 4 && first + i < turns; i++) {
                async_load_16(sm90_place(v, to_v, first + i), (const uint8_t *)(uintptr_t)((uint64_t)at[i].w << 32 | at[i].z) + v->chunk * 16);
            }
        }
    }
}

/* Some keys are not there, or rows do not begin at 16 bytes: those that are not are zeros, and so is what follows dim in a chunk. */
DEV void sm90_copy_some(const sm90_warp *t, const sm90_side *s, shared_at to, const uint32_t keys)
{
    const uint32_t have = s->side->dim * s->size, left = s->chunk * 16 < have ? have - s->chunk * 16 : 0, bytes = left < 16 ? left : 16;
    NO_UNROLL
    for (uint32_t i = 0; i < keys / s->rows; i++) {
        const uint64_t at = SGET(t->key_at[(i * s->rows + s->row) * 2 + s->index]);
        const uint8_t *from = (const uint8_t *)(uintptr_t)(at + s->chunk * 16);
        const shared_at there = sm90_place(s, to, i);
        if (t->is_wide) {
            async_load(there, at != 0 && bytes != 0 ? from : (const uint8_t *)s->side->base, at != 0 ? bytes : 0);
        } else {
            uint32_t word[4] = { 0, 0, 0, 0 };
            if (at != 0 && bytes == 16) {
                load_words(from, 16, s->size, word);
            } else if (at != 0 && bytes == 8) {
                load_words(from, 8, s->size, word);
            }
            const u32x2 low = { word[0], word[1] }, high = { word[2], word[3] };
            shared_write_8(there, low);
            shared_write_8(there + 8, high);
        }
    }
}

/* Asks for the bytes of the tile found last, into the slot consumed last, and finds the next one. All lanes of the warp. */
DEV void sm90_issue(const sm90_warp *t, sm90_stream *s, const sm90_kind k)
{
    const oct__dev_layer *layer = &t->p->layer;
    const uint32_t is_tile = s->is_found, slot = s->slot;
    const int32_t page = s->page;
    const uint32_t token = s->token;
    if (t->has_scales && s->scale_slot < k.stages && t->lane < k.keys) {
        SPUT(t->scale[s->scale_slot * 2 * k.keys + t->lane], s->k_scale);
        SPUT(t->scale[(s->scale_slot * 2 + 1) * k.keys + t->lane], s->v_scale);
    }
    s->scale_slot = k.stages;
    sm90_find(t, s, k);   /* its loads are on their way while the page ids at hand are used */
    if (is_tile) {
        const uint32_t is_there = page >= 0 && page < layer->n_pages, seen = warp_ballot(is_there);
        if (t->lane < k.keys) {
            const uint64_t k_at = t->k_head + ((uint64_t)(uint32_t)page * (uint64_t)layer->k.page_stride + (uint64_t)token * (uint64_t)layer->k.token_stride) * k.k_size;
            const uint64_t v_at = t->v_head + ((uint64_t)(uint32_t)page * (uint64_t)layer->v.page_stride + (uint64_t)token * (uint64_t)layer->v.token_stride) * k.v_size;
            SPUT(t->key_at[2 * t->lane], is_there ? k_at : 0);
            SPUT(t->key_at[2 * t->lane + 1], is_there ? v_at : 0);
        }
        if (t->has_scales) {
            s->k_scale = 1.0f;
            s->v_scale = 0.0f;
            s->scale_slot = slot;
            if (is_there && layer->k.scale_mode == OCT_SCALE_TOKEN_HEAD) {
                s->k_scale = token_scale(&layer->k, layer->heads, page, token, t->cut.head_kv);
            }
            if (is_there && layer->v.scale_mode == OCT_SCALE_TOKEN_HEAD) {
                s->v_scale = token_scale(&layer->v, layer->heads, page, token, t->cut.head_kv);
            }
        }
        if (t->lane == 0) {
            SPUT(t->valid[slot], seen);
        }
        warp_sync();
        const sm90_side k_side = sm90_side_of(t, &layer->k, 0, k.k_size, k.dim), v_side = sm90_side_of(t, &layer->v, 1, k.v_size, k.dim);
        const shared_at to_k = t->ring + slot * k.stage_bytes, to_v = to_k + k.keys * k.dim * k.k_size;
        if (!t->is_wide || seen != (k.keys == 32 ? ~0u : 0xFFFFu)) {
            sm90_copy_some(t, &k_side, to_k, k.keys);
            sm90_copy_some(t, &v_side, to_v, k.keys);
        } else if (k.k_size == k.v_size) {
            sm90_copy_both(t, &k_side, to_k, &v_side, to_v, k.keys);
        } else {
            sm90_copy_whole(t, &k_side, to_k, k.keys);
            sm90_copy_whole(t, &v_side, to_v, k.keys);
        }
        s->slot = slot + 1 == k.stages ? 0 : slot + 1;
    }
    async_commit();
}

#endif
