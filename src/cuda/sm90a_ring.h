/* sm90a_ring.h: what a warp of attn_decode_sm90a.h knows, and the way of its tiles from pages to its ring in shared memory: page ids are asked for a tile
 * ahead of their use, and all but one of the ring's slots are on their way at any time. */
#ifndef OCT_CUDA_SM90A_RING_H
#define OCT_CUDA_SM90A_RING_H

#include "cuda/simt_group_sm90a.h"
#include "device/attn_finish.h"
#include "device/sm90a.h"
#include "device/tile.h"

#define SM90_FAR 3e38f              /* minus it: a maximum before any key */
#define SM90_SLACK 8.0f             /* log2 by which a score may pass the maximum: weights of up to 2^8 are f16 too */
#define SM90_STAGES_MAX 6u

/* How rows of K and V lie: anyhow; beginning and ending at multiples of 16 bytes; in caches that 32 bits count in chunks of 16 bytes; with one stride for both. */
enum { SM90_NARROW, SM90_WIDE, SM90_NEAR, SM90_ALIKE };

/* What a kernel is compiled for; every field a constant. */
typedef struct sm90_kind {
    uint32_t k_size, v_size;        /* bytes of an element */
    uint32_t dim;                   /* most dims of a warp: 64, 128 */
    uint32_t warps;                 /* of a block */
    uint32_t halves;                /* of them that share a row's dims: 1, or 2 of 128 each */
    uint32_t blocks;                /* of 8 vectors */
    uint32_t keys, stages, stage_bytes;
    uint32_t dtype;                 /* of K and V; 0: as the layer says */
    uint32_t is_plain;              /* for what oct__dev_sm90a_make_plain has seen alone */
} sm90_kind;

/* What a warp knows for as long as its block lives. */
typedef struct sm90_warp {
    const oct__attn_params *p;
    uint32_t warp, lane, share;             /* share: among the warps, or pairs of them, of its head tile */
    uint32_t half, head;                    /* which dims are its own; which of the block's head tiles */
    uint32_t k_dim, v_dim;                  /* dims of its own: 0 to k.dim */
    uint32_t head_tile;
    head_cut cut;
    uint8_t *shared;
    oct__sm90a_shared at;
    shared_at ring;
    uint32_t page_shift;                    /* of a page size that is a power of two; else 32 */
    uint32_t n_pages;                       /* at most 2^31: a page id is there if it is below */
    uint32_t form;                          /* SM90_NARROW to SM90_ALIKE; the strides are in chunks of 16 bytes: */
    uint32_t k_page, k_token, v_page, v_token;
    uint32_t has_scales, has_k_scale, has_v_scale;   /* beside the pages */
    float q_scale, k_scale, v_scale, sink;  /* of the head tile: static ones; of head `lane` of the tile. Asked for before K and V, looked at after them */
    uint64_t k_chunk, v_chunk;              /* addresses in page 0 of the head's own dims, at the lane's chunk */
} sm90_warp;

/* The tiles of the block's tasks in order, ahead of their use. */
typedef struct sm90_stream {
    uint32_t task, end, slot;
    int32_t base, key0, key1;
    const int32_t *pages;
    uint32_t is_found;
    int32_t page;                           /* the lane's, of the tile that is copied next; -1: none */
    uint32_t token;
    uint32_t seen[SM90_STAGES_MAX];         /* bit i: key i is there; of the tile in use and those on their way, in order */
    uint32_t scale_slot;                    /* where the scales just read belong */
    float k_scale, v_scale;
} sm90_stream;

/* Rows of a task. */
typedef struct sm90_rows {
    uint32_t task;                          /* what is seldom looked at is read there */
    int32_t key0, key1, pos0;
    int32_t seen_from, seen_to;             /* keys that all rows see */
} sm90_rows;

DEV const oct__dev_task *sm90_task(const sm90_warp *t, const sm90_rows *r)
{
    return t->p->tasks + r->task;
}

DEV uint32_t sm90_vectors(const sm90_warp *t, const sm90_rows *r)
{
    return (uint32_t)GET(sm90_task(t, r)->n_rows) * t->cut.n_heads;
}

/* Where a mask's bits begin: the sequence's length less its rows. */
DEV int32_t sm90_mask_key0(const sm90_warp *t, const sm90_rows *r)
{
    const oct__dev_task *task = sm90_task(t, r);
    return r->pos0 - (int32_t)(GET(task->row0) - GET(t->p->batch.qo_indptr[GET(task->sequence)]));
}

/* A warp's running state, of the vectors that are its lanes' own: [blocks][2]. */
typedef struct sm90_state {
    float m[4], z[4];                       /* m: log2 */
    float factor[4];                        /* from a raw score to log2 */
    float unit, inverse;                    /* sums are in units of it: a power of two >= the V scales met, so that weights stay f16 */
} sm90_state;

/* Warps, or pairs of them, of a head tile: four, two or one. */
DEV uint32_t sm90_shares(const sm90_warp *t, const sm90_kind k)
{
    return k.warps / k.halves >> (t->p->heads_a_block >> 1);
}

/* The warp's own places beside its ring, worked out where they are wanted: registers are short. Addresses of K and V of the keys of the next tile, 0 where
 * there is none; scales [stages][K, V][keys]; which slot the warp consumed last. */
DEV uint64_t *sm90_key_at(const sm90_warp *t)
{
    return (uint64_t *)(t->shared + t->at.at) + t->warp * 2 * t->at.keys;
}

DEV float *sm90_scale(const sm90_warp *t)
{
    return (float *)(t->shared + t->at.scale) + t->warp * t->at.stages * 2 * t->at.keys;
}

DEV uint32_t *sm90_consumed(const sm90_warp *t, uint32_t warp)
{
    return (uint32_t *)(t->shared + t->at.consumed) + warp;
}

/* The warps that share a row's dims meet; a warp alone, its lanes. */
DEV void sm90_pair_sync(const sm90_warp *t, const sm90_kind k)
{
    warp_sync();
    if (k.halves == 2) {
        named_sync(1 + t->warp / 2, 2 * WARP);
    }
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
        if (!k.is_plain && t->page_shift == 32) {
            index = (uint32_t)key / page_size;
            s->token = (uint32_t)key % page_size;
        }
        if (t->lane < k.keys && key >= s->key0 && key < s->key1) {
            s->page = GET(s->pages[index]);
        }
        s->base += (int32_t)(sm90_shares(t, k) * k.keys);
    }
}

/* Rows of one side: which of its chunks a lane brings, turn after turn. */
typedef struct sm90_side {
    const void *base;                       /* some place that may be read */
    uint32_t dim, index;                    /* of the addresses: K 0, V 1 */
    uint32_t size, row_bytes;               /* of an element; of a row in the ring */
    uint32_t rows, row, chunk;              /* of a turn of the warp; the lane's */
    uint32_t own;                           /* where its chunk of the first turn goes */
} sm90_side;

DEV sm90_side sm90_side_of(const sm90_warp *t, uint32_t index, const uint32_t size, const uint32_t dim)
{
    sm90_side s;
    s.base = index == 0 ? t->p->layer.k.base : t->p->layer.v.base;
    s.dim = index == 0 ? t->k_dim : t->v_dim;
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

/* From a row's beginning to the chunk that is the lane's in sm90_copy_near. */
DEV uint32_t sm90_own_bytes(const sm90_warp *t, const uint32_t size, const sm90_kind k)
{
    return t->lane % (k.dim * size == 64 ? 4 : 8) * 16;
}

/* All keys are there and near. A lane brings the same chunk of several rows, eight lanes (of rows of 64 bytes, four) a row, whole lines of 128 bytes at a
 * time: fewer at a time were slower. at: of the lane's key, in chunks; head: the address of the lane's chunk in page 0. */
DEV void sm90_copy_near(const sm90_warp *t, uint64_t head, uint32_t at, uint32_t dim, shared_at to, const uint32_t size, const sm90_kind k)
{
    const uint32_t row_bytes = k.dim * size, lanes = row_bytes == 64 ? 4 : 8, rows = 32 / lanes, row = t->lane / lanes, chunk = t->lane % lanes;
    const shared_at own = to + ((row * row_bytes + chunk * 16) ^ (sm90_swizzle(row, row_bytes) * 16));
    UNROLL
    for (uint32_t j = 0; j < row_bytes / 16 / lanes; j++) {
        uint32_t from[8];
        UNROLL
        for (uint32_t i = 0; i < k.keys / rows; i++) {
            from[i] = warp_shuffle_u32(at, i * rows + row);
        }
        if ((chunk + j * lanes) * 16 < dim * size) {
            UNROLL
            for (uint32_t i = 0; i < k.keys / rows; i++) {
                const shared_at there = (own ^ (sm90_swizzle(i * rows, row_bytes) * 16)) + i * rows * row_bytes + j * lanes * 16;
                async_load_16(there, (const uint8_t *)(uintptr_t)(head + (uint64_t)from[i] * 16) + j * lanes * 16);
            }
        }
    }
}

/* The same of K and V, which are of one size and lie alike. */
DEV void sm90_copy_alike(const sm90_warp *t, uint32_t at, shared_at to, const sm90_kind k)
{
    const uint32_t row_bytes = k.dim * k.k_size, lanes = row_bytes == 64 ? 4 : 8, rows = 32 / lanes, row = t->lane / lanes, chunk = t->lane % lanes;
    const shared_at own = to + ((row * row_bytes + chunk * 16) ^ (sm90_swizzle(row, row_bytes) * 16));
    uint32_t from[8];
    UNROLL
    for (uint32_t i = 0; i < k.keys / rows; i++) {
        from[i] = warp_shuffle_u32(at, i * rows + row);
    }
    UNROLL
    for (uint32_t j = 0; j < 2 * (row_bytes / 16 / lanes); j++) {
        const uint32_t side = j % 2, first = j / 2 * lanes;
        if ((chunk + first) * 16 < (side == 0 ? t->k_dim : t->v_dim) * k.k_size) {
            UNROLL
            for (uint32_t i = 0; i < k.keys / rows; i++) {
                const shared_at there = (own ^ (sm90_swizzle(i * rows, row_bytes) * 16)) + (side * k.keys + i * rows) * row_bytes + first * 16;
                async_load_16(there, (const uint8_t *)(uintptr_t)((side == 0 ? t->k_chunk : t->v_chunk) + (uint64_t)from[i] * 16) + first * 16);
            }
        }
    }
}

/* Some keys are not there, or rows do not begin at 16 bytes: those that are not are zeros, and so is what follows dim in a chunk. */
DEV void sm90_copy_some(const sm90_warp *t, const sm90_side *s, shared_at to, const sm90_kind k)
{
    const uint32_t have = s->dim * s->size, left = s->chunk * 16 < have ? have - s->chunk * 16 : 0, bytes = left < 16 ? left : 16;
    NO_UNROLL
    for (uint32_t i = 0; i < k.keys / s->rows; i++) {
        const uint64_t at = SGET(sm90_key_at(t)[(i * s->rows + s->row) * 2 + s->index]);
        const uint8_t *from = (const uint8_t *)(uintptr_t)(at + s->chunk * 16);
        const shared_at there = sm90_place(s, to, i);
        if (k.is_plain || t->form >= SM90_WIDE) {
            async_load(there, at != 0 && bytes != 0 ? from : (const uint8_t *)s->base, at != 0 ? bytes : 0);
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

/* A tile of which some keys are not there, or that is not near. */
DEV void sm90_copy_far(const sm90_warp *t, int32_t page, uint32_t token, uint32_t is_there, shared_at to, const sm90_kind k)
{
    const oct__dev_layer *layer = &t->p->layer;
    const sm90_side k_side = sm90_side_of(t, 0, k.k_size, k.dim), v_side = sm90_side_of(t, 1, k.v_size, k.dim);
    warp_sync();   /* the addresses of the tile before have been read */
    if (t->lane < k.keys) {
        const uint64_t k_at = t->k_chunk - sm90_own_bytes(t, k.k_size, k) + ((uint64_t)(uint32_t)page * (uint64_t)layer->k.page_stride + (uint64_t)token * (uint64_t)layer->k.token_stride) * k.k_size;
        const uint64_t v_at = t->v_chunk - sm90_own_bytes(t, k.v_size, k) + ((uint64_t)(uint32_t)page * (uint64_t)layer->v.page_stride + (uint64_t)token * (uint64_t)layer->v.token_stride) * k.v_size;
        SPUT(sm90_key_at(t)[2 * t->lane], is_there ? k_at : 0);
        SPUT(sm90_key_at(t)[2 * t->lane + 1], is_there ? v_at : 0);
    }
    warp_sync();
    sm90_copy_some(t, &k_side, to, k);
    sm90_copy_some(t, &v_side, to + k.keys * k.dim * k.k_size, k);
}

/* Asks for the bytes of the tile found last, into the slot consumed last, and finds the next one. All lanes of the warp. */
DEV void sm90_issue(const sm90_warp *t, sm90_stream *s, const sm90_kind k)
{
    const oct__dev_layer *layer = &t->p->layer;
    const uint32_t is_tile = s->is_found, slot = s->slot, token = s->token;
    const int32_t page = s->page;
    uint32_t seen = 0;
    if (t->has_scales && s->scale_slot < k.stages && t->lane < k.keys) {
        SPUT(sm90_scale(t)[s->scale_slot * 2 * k.keys + t->lane], s->k_scale);
        SPUT(sm90_scale(t)[(s->scale_slot * 2 + 1) * k.keys + t->lane], s->v_scale);
    }
    s->scale_slot = k.stages;
    sm90_find(t, s, k);   /* its loads are on their way while the page ids at hand are used */
    if (is_tile) {
        const uint32_t is_there = (uint32_t)page < t->n_pages;
        const shared_at to = t->ring + slot * k.stage_bytes;
        seen = warp_ballot(is_there);
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
        const uint32_t k_at = (uint32_t)page * t->k_page + token * t->k_token;
        if (k.is_plain && seen == (k.keys == 32 ? ~0u : 0xFFFFu)) {
            sm90_copy_alike(t, k_at, to, k);
        } else if (!k.is_plain && t->form >= SM90_NEAR && seen == (k.keys == 32 ? ~0u : 0xFFFFu)) {
            sm90_copy_near(t, t->k_chunk, k_at, t->k_dim, to, k.k_size, k);
            sm90_copy_near(t, t->v_chunk, t->form == SM90_ALIKE ? k_at : (uint32_t)page * t->v_page + token * t->v_token, t->v_dim,
                           to + k.keys * k.dim * k.k_size, k.v_size, k);
        } else {
            sm90_copy_far(t, page, token, is_there, to, k);
        }
        s->slot = slot + 1 == k.stages ? 0 : slot + 1;
    }
    UNROLL
    for (uint32_t i = 0; i + 1 < k.stages; i++) {
        s->seen[i] = s->seen[i + 1];
    }
    s->seen[k.stages - 1] = seen;
    async_commit();
}

#endif
