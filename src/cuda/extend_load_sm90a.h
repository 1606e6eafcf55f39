/* extend_load_sm90a.h: the warpgroups of attn_extend_sm90a.h that bring the keys: from pages to 16 bits in shared memory, in the order in which the
 * matrix units read them. Two warps bring K and two V, each its part of a tile's keys, at most two a lane; their lanes find the pages a tile ahead. Elements
 * of 16 bits are copied past the registers, and the tile's barrier counts the copies' ends. Those of 8 bits are copied as they are, a tile or two ahead, each lane's to
 * places of its own, from where it takes them, once its copies are there, and stores them as f16: nobody else waits for that. V of 8 bits beside K of bf16 comes to
 * registers a tile ahead of its use and becomes bf16 on its way. A page id outside of the layer is no key at all: its V is NaN, so that the rows that meet it are
 * done once more, key by key (ext_solo), and the loop over tiles need not look. */
#ifndef OCT_CUDA_EXTEND_LOAD_SM90A_H
#define OCT_CUDA_EXTEND_LOAD_SM90A_H

#include "cuda/simt_group_sm90a.h"
#include "device/attn_finish.h"
#include "device/extend_sm90a.h"
#include "device/tile.h"

#define EXTEND_HELD 32u             /* the most words of its part of a tile that a lane holds */

/* Parts in which a loader's 8-bit elements come, of which it holds the first a tile ahead: what fits its registers. */
#define EXTEND_PARTS(dim_k) ((dim_k) <= 64 ? 2u : (dim_k) == 192 ? 8u : 4u)

/* What a kernel is compiled for; every field a constant. */
typedef struct ext_kind {
    uint32_t dim_k, dim_v, keys;
    uint32_t stages, loaders;       /* tiles of a ring; warps a side */
    uint32_t parts, ahead;          /* in which a loader holds its 8-bit elements; or tiles of them that it has in shared memory */
    uint32_t is_bf16;               /* products of bf16; else of f16 */
} ext_kind;

/* What all warps of a block know. */
typedef struct ext_block {
    const oct__attn_params *p;
    uint32_t warp, lane;
    uint8_t *shared;
    oct__extend_shared at;
    shared_at base;
    uint32_t n_tasks_tiles;         /* tasks x head tiles */
    uint32_t has_k_scale, has_v_scale;
    uint32_t stages;
} ext_block;

/* A barrier: kind 0 K full, 1 K empty, 2 V full, 3 V empty, 4 (stage 0 and on: of each warpgroup) its turn. */
DEV shared_at ext_bar(const ext_block *t, uint32_t kind, uint32_t stage)
{
    return t->base + t->at.bars + (kind * t->stages + stage) * 8;
}

/* Of the block's work i: longest first, since later rows see more keys. */
DEV uint32_t ext_work(const ext_block *t, uint32_t i)
{
    return t->n_tasks_tiles - 1 - i;
}

/* K or V of a layer as the loader sees it. */
typedef struct ext_side {
    const oct__dev_side *side;
    uint32_t size, is_wide;         /* bytes of an element; rows begin and end at multiples of 16 bytes */
    uint64_t chunk_stride;          /* from a token's 16-byte chunk to its next */
    shared_at ring;
    uint32_t dim;                   /* of the kernel */
} ext_side;

/* The tiles of the block's work in order. */
typedef struct ext_stream {
    uint32_t work;                  /* what `base` is a tile of */
    int32_t base, first, key0, key1;
    uint32_t head_kv;
    const int32_t *pages;
    uint32_t is_found;
    int32_t page[2];                /* the lane's keys', just asked for; -1: it has none. The second is 32 keys on, where a warp has 64 */
    uint32_t token[2];              /* UINT32_MAX: no key */
} ext_stream;

/* Where the lane's key of a tile lies, on the warp's side; 0: not there. */
typedef struct ext_place {
    uint64_t at[2];
    float k_scale[2], v_scale[2];
    uint32_t is_found;
    uint32_t strays;                /* bit i: of V: key i's page id is outside of the layer */
} ext_place;

DEV void ext_open(const ext_block *t, ext_stream *s, const ext_kind k)
{
    while (s->work < t->n_tasks_tiles) {
        const uint32_t work = ext_work(t, s->work);
        const oct__dev_task *task = t->p->tasks + work / t->p->n_head_tiles;
        s->key0 = GET(task->key0);
        s->key1 = GET(task->key1);
        s->head_kv = work % t->p->n_head_tiles / t->p->n_cuts;
        s->pages = batch_pages(&t->p->batch, (uint32_t)GET(task->sequence));
        if (s->key0 < s->key1) {
            s->first = (int32_t)((uint32_t)s->key0 / k.keys * k.keys);
            s->base = (int32_t)((uint32_t)(s->key1 - 1) / k.keys * k.keys);
            return;
        }
        s->work += (uint32_t)block_count();
    }
}

/* Asks for the page id of the lane's key of the tile at hand. */
DEV void ext_find(const ext_block *t, ext_stream *s, const ext_kind k)
{
    const uint32_t each = k.keys / k.loaders, page_size = t->p->layer.page_size;
    s->is_found = s->work < t->n_tasks_tiles;
    UNROLL
    for (uint32_t i = 0; i < 2; i++) {
        const int32_t key = s->base + (int32_t)(t->warp % k.loaders * each + t->lane + 32 * i);
        s->page[i] = -1;
        s->token[i] = UINT32_MAX;
        if (32 * i < each && s->is_found && t->lane < each && key >= s->key0 && key < s->key1) {
            s->page[i] = GET(s->pages[(uint32_t)key / page_size]);
            s->token[i] = (uint32_t)key % page_size;
        }
    }
}

DEV void ext_next(const ext_block *t, ext_stream *s, const ext_kind k)
{
    s->base -= (int32_t)k.keys;
    if (s->base < s->first) {
        s->work += (uint32_t)block_count();
        ext_open(t, s, k);
    }
}

/* The lane's places in the tile whose page ids were asked for last. */
DEV ext_place ext_place_of(const ext_block *t, const ext_stream *s, uint32_t head_kv, const ext_side *side, uint32_t is_k)
{
    const oct__dev_layer *layer = &t->p->layer;
    ext_place at;
    at.is_found = s->is_found;
    at.strays = 0;
    UNROLL
    for (uint32_t i = 0; i < 2; i++) {
        at.at[i] = 0;
        at.k_scale[i] = at.v_scale[i] = 0.0f;
        if (s->page[i] >= 0 && s->page[i] < layer->n_pages) {
            at.at[i] = (uint64_t)(uintptr_t)side->side->base +
                       (uint64_t)side_at(side->side, layer->layout, layer->page_size, (int)is_k, s->page[i], s->token[i], head_kv) * side->size;
            if (is_k && t->has_k_scale) {
                at.k_scale[i] = token_scale(&layer->k, layer->heads, s->page[i], s->token[i], head_kv);
            }
            if (is_k && t->has_v_scale) {
                at.v_scale[i] = token_scale(&layer->v, layer->heads, s->page[i], s->token[i], head_kv);
            }
        } else if (!is_k && s->token[i] != UINT32_MAX) {
            at.strays |= 1u << i;
        }
    }
    return at;
}

/* Of row first + row of the warp's part, which is of one 32 with first: where it lies. */
DEV uint64_t ext_row_at(const uint64_t *own, const uint32_t first, uint32_t row)
{
    return warp_shuffle_u64(first < 32 ? own[0] : own[1], first % 32 + row);
}

/* Where 16-byte chunk `chunk` of key `key` of a tile of 16-bit rows goes. */
DEV uint32_t ext_spot(uint32_t key, uint32_t chunk, const uint32_t keys)
{
    return chunk / 8 * (keys * 128) + key * 128 + ((chunk % 8) ^ (key % 8)) * 16;
}

/* Lanes that share a row's 16-byte chunks: a power of two. */
DEV uint32_t ext_lanes_of_row(const uint32_t row_bytes)
{
    return row_bytes <= 64 ? 4 : row_bytes <= 128 ? 8 : row_bytes <= 256 ? 16 : 32;
}

/* How a warp's lanes share the rows of its part of a tile: turn i brings rows [i * rows, (i + 1) * rows). */
typedef struct ext_turns {
    uint32_t rows, row, chunk;      /* of a turn; the lane's */
    uint32_t is_within;
    shared_at own;                  /* where the lane's chunk of turn 0 goes */
    uint64_t offset;                /* of the chunk in a token */
} ext_turns;

/* size: bytes of an element. An 8-bit chunk becomes two, whose places differ in bit 4. */
DEV ext_turns ext_turns_of(const ext_block *t, const ext_side *s, shared_at to, const uint32_t size, const uint32_t dim, const ext_kind k)
{
    const uint32_t lanes = ext_lanes_of_row(dim * size), each = k.keys / k.loaders;
    ext_turns u;
    u.rows = 32 / lanes;
    u.row = t->lane / lanes;
    u.chunk = t->lane % lanes;
    u.is_within = u.chunk * 16 < s->side->dim * size;
    u.own = to + t->warp % k.loaders * each * 128 + ext_spot(u.row, size == 2 ? u.chunk : 2 * u.chunk, k.keys);
    u.offset = u.chunk * s->chunk_stride;
    return u;
}

/* Rows of a turn begin at a multiple of their number, a power of two: their place in the order of eights is or'ed, so the swizzle is XORed. */
DEV shared_at ext_turn_place(const ext_turns *u, const uint32_t turn)
{
    return (u->own ^ (turn * u->rows % 8 * 16)) + turn * u->rows * 128;
}

/* Whether all keys of the warp's part are there. */
DEV uint32_t ext_is_whole(const ext_block *t, const uint64_t *own, const ext_kind k)
{
    return !warp_any((own[0] == 0 && t->lane < k.keys / k.loaders) || (own[1] == 0 && k.keys / k.loaders > 32));
}

DEV void ext_write_16(shared_at at, uint32_t x, uint32_t y, uint32_t z, uint32_t w)
{
    const u32x4 v = { x, y, z, w };
    shared_write_16(at, v);
}

/* Rows of 16 bits: copies. strays: as in ext_place. */
DEV void ext_copy(const ext_block *t, const ext_side *s, const uint64_t *own, uint32_t strays, shared_at to, const uint32_t dim, const ext_kind k)
{
    const ext_turns u = ext_turns_of(t, s, to, 2, dim, k);
    if (t->p->layer.page_size % 16 == 0 && ext_is_whole(t, own, k)) {   /* 16 keys are of one page, a stride apart */
        const uint32_t each = k.keys / k.loaders;
        const uint64_t stride = (uint64_t)s->side->token_stride * 2, step = stride * u.rows, lane_off = u.row * stride + u.offset;
        UNROLL
        for (uint32_t run = 0; run < each / 16; run++) {
            uint64_t at = ext_row_at(own, run * 16, 0) + lane_off;
            if (u.is_within) {
                UNROLL
                for (uint32_t i = 0; i < 16 / u.rows; i++) {
                    async_load_16(ext_turn_place(&u, run * (16 / u.rows) + i), (const void *)(uintptr_t)at);
                    at += step;
                }
            }
        }
        return;
    }
    if (ext_is_whole(t, own, k)) {
        UNROLL
        for (uint32_t i = 0; i < k.keys / k.loaders / u.rows; i++) {
            const uint64_t at = ext_row_at(own, i * u.rows, u.row) + u.offset;
            if (u.is_within) {
                async_load_16(ext_turn_place(&u, i), (const void *)(uintptr_t)at);
            }
        }
        return;
    }
    NO_UNROLL
    for (uint32_t i = 0; i < k.keys / k.loaders / u.rows; i++) {
        const uint64_t at = ext_row_at(own, i * u.rows, u.row);
        if (warp_shuffle_u32(strays, (i * u.rows + u.row) % 32) >> (i * u.rows / 32) & (u.chunk == 0)) {
            ext_write_16(ext_turn_place(&u, i), ~0u, ~0u, ~0u, ~0u);
        } else if (u.is_within) {
            async_load(ext_turn_place(&u, i), (const void *)(uintptr_t)(at != 0 ? at + u.offset : (uint64_t)(uintptr_t)s->side->base), at != 0 ? 16 : 0);
        }
    }
}

/* Rows of 8 bits: into registers. */
DEV void ext_hold(const ext_block *t, const ext_side *s, const uint64_t *own, const uint32_t part, const uint32_t dim, const ext_kind k, uint32_t *held)
{
    const ext_turns u = ext_turns_of(t, s, 0, 1, dim, k);
    UNROLL
    for (uint32_t i = 0; i < k.keys / k.loaders / u.rows / k.parts; i++) {
        const uint64_t at = ext_row_at(own, part * (k.keys / k.loaders / k.parts) + i * u.rows, u.row);
        u32x4 v = { 0, 0, 0, 0 };
        if (u.is_within && at != 0) {
            v = global_load_16((const void *)(uintptr_t)(at + u.offset));
        }
        held[4 * i] = v.x;
        held[4 * i + 1] = v.y;
        held[4 * i + 2] = v.z;
        held[4 * i + 3] = v.w;
    }
}

/* Rows of 8 bits: to the lane's own places in shared memory, from where the same lane takes them. */
DEV void ext_fetch(const ext_block *t, const ext_side *s, const uint64_t *own, const shared_at raw, const uint32_t dim, const ext_kind k)
{
    const ext_turns u = ext_turns_of(t, s, 0, 1, dim, k);
    const uint32_t each = k.keys / k.loaders;
    if (!ext_is_whole(t, own, k)) {
        NO_UNROLL
        for (uint32_t i = 0; i < each / u.rows; i++) {
            const uint32_t row = i * u.rows;
            const uint64_t at = warp_shuffle_u64(row < 32 ? own[0] : own[1], row % 32 + u.row);
            if (u.is_within) {
                async_load(raw + i * 512, (const void *)(uintptr_t)(at != 0 ? at + u.offset : (uint64_t)(uintptr_t)s->side->base), at != 0 ? 16 : 0);
            }
        }
    } else if (t->p->layer.page_size % 16 == 0) {   /* 16 keys are of one page, a stride apart */
        const uint64_t stride = (uint64_t)s->side->token_stride, step = stride * u.rows, lane_off = u.row * stride + u.offset;
        UNROLL
        for (uint32_t run = 0; run < each / 16; run++) {
            uint64_t at = ext_row_at(own, run * 16, 0) + lane_off;
            if (u.is_within) {
                UNROLL
                for (uint32_t i = 0; i < 16 / u.rows; i++) {
                    async_load_16(raw + (run * (16 / u.rows) + i) * 512, (const void *)(uintptr_t)at);
                    at += step;
                }
            }
        }
    } else {
        UNROLL
        for (uint32_t i = 0; i < each / u.rows; i++) {
            const uint64_t at = ext_row_at(own, i * u.rows, u.row) + u.offset;
            if (u.is_within) {
                async_load_16(raw + i * 512, (const void *)(uintptr_t)at);
            }
        }
    }
}

/* Two f16 as two bf16: exact for every 8-bit format. */
DEV uint32_t ext_bf16_of_f16(uint32_t pair)
{
    return pack_bf16(decode_f16(pair & 0xFFFF), decode_f16(pair >> 16));
}

/* ... and from there. */
DEV void ext_convert(const ext_block *t, const ext_side *s, const uint32_t *held, shared_at to, const uint32_t part, const uint32_t dtype, const uint32_t dim,
                     const ext_kind k)
{
    const ext_turns u = ext_turns_of(t, s, to, 1, dim, k);
    UNROLL
    for (uint32_t i = 0; i < k.keys / k.loaders / u.rows / k.parts; i++) {
        uint32_t word[8];
        UNROLL
        for (uint32_t w = 0; w < 4; w++) {
            to_16(held[4 * i + w], dtype, word + 2 * w);
        }
        if (k.is_bf16) {
            UNROLL
            for (uint32_t w = 0; w < 8; w++) {
                word[w] = ext_bf16_of_f16(word[w]);
            }
        }
        if (u.is_within) {
            const shared_at place = ext_turn_place(&u, part * (k.keys / k.loaders / u.rows / k.parts) + i);
            ext_write_16(place, word[0], word[1], word[2], word[3]);
            ext_write_16(place ^ 16, word[4], word[5], word[6], word[7]);
        }
    }
}

/* Turns at once: eight rows or more, so that others differ in places alone. */
#define EXTEND_TURNS 4u

/* What ext_fetch has brought, which this lane has waited for, to 16 bits. */
DEV void ext_turn_16(const ext_block *t, const ext_side *s, const shared_at raw, const shared_at to, const uint32_t dtype, const uint32_t dim, const ext_kind k)
{
    ext_turns u = ext_turns_of(t, s, to, 1, dim, k);
    const uint32_t second = u.chunk / 4 % 2;   /* of eight lanes that store at once four begin with their second half, or they would meet in banks */
    u.own ^= second * 16;
    NO_UNROLL
    for (uint32_t first = 0; u.is_within && first < k.keys / k.loaders / u.rows; first += EXTEND_TURNS) {
        u32x4 v[EXTEND_TURNS];
        UNROLL
        for (uint32_t i = 0; i < EXTEND_TURNS; i++) {
            v[i] = shared_read_16(raw + (first + i) * 512);
        }
        UNROLL
        for (uint32_t i = 0; i < EXTEND_TURNS; i++) {
            uint32_t word[8];
            to_16(second ? v[i].z : v[i].x, dtype, word);
            to_16(second ? v[i].w : v[i].y, dtype, word + 2);
            to_16(second ? v[i].x : v[i].z, dtype, word + 4);
            to_16(second ? v[i].y : v[i].w, dtype, word + 6);
            const shared_at place = ext_turn_place(&u, i) + first * u.rows * 128;
            ext_write_16(place, word[0], word[1], word[2], word[3]);
            ext_write_16(place ^ 16, word[4], word[5], word[6], word[7]);
        }
    }
}

/* Rows that lie anyhow. */
DEV void ext_gather(const ext_block *t, const ext_side *s, const uint64_t *own, shared_at to, const ext_kind k)
{
    const uint32_t eights = s->side->dim / 8, each = k.keys / k.loaders;
    NO_UNROLL
    for (uint32_t e = 0; e < (each * eights + WARP - 1) / WARP; e++) {
        const uint32_t i = e * WARP + t->lane, row = i / eights, chunk = i % eights;
        const uint64_t low = warp_shuffle_u64(own[0], row % 32), high = each > 32 ? warp_shuffle_u64(own[1], row % 32) : 0, at = row < 32 ? low : high;
        float x[8] = { 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f };
        if (row < each) {
            if (at != 0) {
                const uint64_t offset = s->chunk_stride == 16 ? chunk * 8 * s->size : chunk * 8 * s->size / 16 * s->chunk_stride + chunk * 8 * s->size % 16;
                load_eight((const void *)(uintptr_t)(at + offset), s->side->dtype, x);
            }
            const shared_at place = to + ext_spot(t->warp % k.loaders * each + row, chunk, k.keys);
            if (k.is_bf16) {
                ext_write_16(place, pack_bf16(x[0], x[1]), pack_bf16(x[2], x[3]), pack_bf16(x[4], x[5]), pack_bf16(x[6], x[7]));
            } else {
                ext_write_16(place, pack_f16(x[0], x[1]), pack_f16(x[2], x[3]), pack_f16(x[4], x[5]), pack_f16(x[6], x[7]));
            }
        }
    }
}

/* Of the way of a side: copies, registers, or anyhow. */
DEV uint32_t ext_is_copied(const ext_side *s)
{
    return s->is_wide && s->size == 2;
}

/* Arrivals that make a side's tile full. */
DEV uint32_t ext_arrivals(const ext_side *s, const ext_kind k)
{
    return k.loaders * (ext_is_copied(s) ? 33 : 1);
}

/* What is held of the warp's part of a tile. */
DEV void ext_convert_any(const ext_block *t, const ext_side *s, const uint32_t *held, shared_at to, const uint32_t part, const uint32_t dim, const ext_kind k)
{
    if (s->side->dtype == OCT_DTYPE_E4M3FN) {
        ext_convert(t, s, held, to, part, OCT_DTYPE_E4M3FN, dim, k);
    } else if (s->side->dtype == OCT_DTYPE_I8) {
        ext_convert(t, s, held, to, part, OCT_DTYPE_I8, dim, k);
    } else if (s->side->dtype == OCT_DTYPE_E5M2) {
        ext_convert(t, s, held, to, part, OCT_DTYPE_E5M2, dim, k);
    } else {
        ext_convert(t, s, held, to, part, OCT_DTYPE_E4M3FNUZ, dim, k);
    }
}

/* V of keys whose page id is outside of the layer, after the rest of the warp's part: eight dims are enough. Not of copies, which nobody waits for. */
DEV void ext_stray(const ext_block *t, uint32_t strays, shared_at to, const ext_kind k)
{
    if (warp_any(strays)) {
        warp_sync();
        UNROLL
        for (uint32_t i = 0; i < 2; i++) {
            if (strays >> i & 1) {
                ext_write_16(to + ext_spot(t->warp % k.loaders * (k.keys / k.loaders) + t->lane + 32 * i, 0, k.keys), ~0u, ~0u, ~0u, ~0u);
            }
        }
    }
}

/* The warp's part of a side's tile. */
DEV void ext_put(const ext_block *t, const ext_side *s, const uint64_t *own, uint32_t strays, uint32_t *held, shared_at to, const uint32_t dim, const ext_kind k)
{
    if (ext_is_copied(s)) {
        ext_copy(t, s, own, strays, to, dim, k);
        return;
    }
    if (!s->is_wide) {
        ext_gather(t, s, own, to, k);
    } else if (k.ahead == 0) {
        NO_UNROLL
        for (uint32_t part = 0; part < k.parts; part++) {
            if (part > 0) {
                ext_hold(t, s, own, part, dim, k, held);
            }
            ext_convert_any(t, s, held, to, part, dim, k);
        }
    }
    ext_stray(t, strays, to, k);
}

DEV ext_side ext_side_of(const ext_block *t, const oct__dev_side *side, uint32_t is_k, const uint32_t size, const uint32_t dim)
{
    ext_side s;
    const oct__dev_layer *layer = &t->p->layer;
    s.side = side;
    s.dim = dim;
    s.size = size;
    s.ring = t->base + (is_k ? t->at.k : t->at.v);
    s.chunk_stride = layer->layout == OCT_LAYOUT_V5D ? (uint64_t)layer->page_size * 16 : 16;
    s.is_wide = (((uint64_t)(uintptr_t)side->base |
                  ((uint64_t)side->page_stride | (uint64_t)side->token_stride | (uint64_t)side->head_stride | side->dim) * s.size) & 15) == 0;
    return s;
}

/* The warp's part of the tile is there, or will be: whoever multiplies fences for copies itself. */
DEV void ext_announce(const ext_block *t, shared_at full, uint32_t is_copied)
{
    if (is_copied) {
        bar_arrive_loaded(full);
    } else {
        proxy_fence();
    }
    warp_sync();
    if (t->lane == 0) {
        bar_arrive(full);
    }
}

/* The lane's places in the next tile, and page ids asked for of the one after it. */
DEV ext_place ext_step(const ext_block *t, ext_stream *s, uint32_t *head_kv, const ext_side *side, const uint32_t is_k, const ext_kind k)
{
    const ext_place at = ext_place_of(t, s, *head_kv, side, is_k);
    if (s->is_found) {
        ext_next(t, s, k);
        ext_find(t, s, k);
        *head_kv = s->head_kv;
    }
    return at;
}

/* Scales of the lane's tokens, for those who multiply. */
DEV void ext_note(const ext_block *t, const float *k_scale, const float *v_scale, uint32_t stage, const ext_kind k)
{
    float *own = (float *)(t->shared + t->at.scale + stage * OCT__EXTEND_SCALES(k.keys)), *scale = own + t->warp % k.loaders * (k.keys / k.loaders) + t->lane;
    UNROLL
    for (uint32_t i = 0; i < k.keys / k.loaders; i += 32) {
        if (t->lane < k.keys / k.loaders) {
            SPUT(scale[i], k_scale[i / 32]);
            SPUT(scale[k.keys + i], v_scale[i / 32]);
        }
    }
    if (t->has_v_scale) {
        float largest = 0.0f;
        UNROLL
        for (uint32_t i = 0; i < 2; i++) {
            largest = max_f32(largest, oct__f32_bits_are_finite(oct__f32_to_bits(v_scale[i])) ? v_scale[i] : 0.0f);
        }
        largest = warp_max_f32(largest);
        if (t->lane < 4 / k.loaders) {
            SPUT(own[2 * k.keys + t->warp % k.loaders * (4 / k.loaders) + t->lane], largest);
        }
    }
}

DEV void ext_turn_any(const ext_block *t, const ext_side *s, const shared_at raw, const shared_at to, const uint32_t dim, const ext_kind k)
{
    if (s->side->dtype == OCT_DTYPE_E4M3FN) {
        ext_turn_16(t, s, raw, to, OCT_DTYPE_E4M3FN, dim, k);
    } else if (s->side->dtype == OCT_DTYPE_I8) {
        ext_turn_16(t, s, raw, to, OCT_DTYPE_I8, dim, k);
    } else if (s->side->dtype == OCT_DTYPE_E5M2) {
        ext_turn_16(t, s, raw, to, OCT_DTYPE_E5M2, dim, k);
    } else {
        ext_turn_16(t, s, raw, to, OCT_DTYPE_E4M3FNUZ, dim, k);
    }
}

/* A warp's work: one side in 8 bits, some tiles ahead in shared memory. */
DEV void ext_load_ahead(const ext_block *t, const ext_side *side, const uint32_t is_k, const uint32_t dim, const ext_kind k)
{
    const uint32_t has_scales = is_k && (t->has_k_scale | t->has_v_scale), each = k.keys / k.loaders, raw_tile = k.keys * OCT__EXTEND_RAW_ROW(dim);
    const shared_at raw = t->base + t->at.raw + (is_k ? 0 : k.ahead * k.keys * OCT__EXTEND_RAW_ROW(k.dim_k)) +
                          t->warp % k.loaders * (each * OCT__EXTEND_RAW_ROW(dim)) + t->lane * 16;
    float k_scale[2][2], v_scale[2][2];   /* of the tiles ahead */
    uint32_t strays = 0;                  /* of these, two bits each, the next one's lowest */
    ext_stream s;
    uint32_t n_tiles = 0;
    s.work = (uint32_t)block_id();
    s.base = s.first = s.key0 = s.key1 = 0;
    s.head_kv = 0;
    s.pages = 0;
    s.token[0] = s.token[1] = UINT32_MAX;
    ext_open(t, &s, k);
    ext_find(t, &s, k);
    uint32_t head_kv = s.head_kv;
    UNROLL
    for (uint32_t a = 0; a < k.ahead; a++) {
        const ext_place at = ext_step(t, &s, &head_kv, side, is_k, k);
        if (at.is_found) {
            ext_fetch(t, side, at.at, raw + a * raw_tile, dim, k);
            n_tiles++;
        }
        async_commit();
        strays |= at.strays << (2 * a);
        UNROLL
        for (uint32_t i = 0; i < 2; i++) {
            k_scale[a][i] = at.k_scale[i];
            v_scale[a][i] = at.v_scale[i];
        }
    }
    NO_UNROLL
    for (uint32_t n = 0; n < n_tiles; n++) {
        const uint32_t stage = n % k.stages, slot = n % k.ahead;
        bar_wait(ext_bar(t, is_k ? 1 : 3, stage), (n / k.stages & 1) ^ 1);
        if (has_scales) {
            ext_note(t, k_scale[0], v_scale[0], stage, k);
        }
        async_wait(k.ahead - 1);
        ext_turn_any(t, side, raw + slot * raw_tile, side->ring + stage * (k.keys * dim * 2), dim, k);
        ext_stray(t, strays & 3, side->ring + stage * (k.keys * dim * 2), k);
        ext_announce(t, ext_bar(t, is_k ? 0 : 2, stage), 0);
        const ext_place at = ext_step(t, &s, &head_kv, side, is_k, k);
        if (at.is_found) {
            ext_fetch(t, side, at.at, raw + slot * raw_tile, dim, k);
            n_tiles++;
        }
        async_commit();
        strays = strays >> 2 | at.strays << (2 * (k.ahead - 1));
        UNROLL
        for (uint32_t i = 0; i < 2; i++) {
            k_scale[0][i] = k_scale[k.ahead - 1][i];
            v_scale[0][i] = v_scale[k.ahead - 1][i];
            k_scale[k.ahead - 1][i] = at.k_scale[i];
            v_scale[k.ahead - 1][i] = at.v_scale[i];
        }
    }
}

/* A warp's work: one side. */
DEV void ext_load(const ext_block *t, const ext_side *side, const uint32_t is_k, const uint32_t dim, const ext_kind k)
{
    if (k.ahead > 0 && side->is_wide && side->size == 1) {
        ext_load_ahead(t, side, is_k, dim, k);
        return;
    }
    ext_stream s;
    uint32_t held[EXTEND_HELD], head_kv;
    const uint32_t holds = k.ahead == 0 && side->is_wide && side->size == 1, is_copied = ext_is_copied(side), has_scales = is_k && (t->has_k_scale | t->has_v_scale);
    s.work = (uint32_t)block_id();
    s.base = s.first = s.key0 = s.key1 = 0;
    s.head_kv = 0;
    s.pages = 0;
    s.token[0] = s.token[1] = UINT32_MAX;
    ext_open(t, &s, k);
    ext_find(t, &s, k);
    head_kv = s.head_kv;
    ext_place at = ext_step(t, &s, &head_kv, side, is_k, k);
    if (holds) {
        ext_hold(t, side, at.at, 0, dim, k, held);
    }
    uint32_t n = 0;
    NO_UNROLL
    for (; at.is_found; n++) {
        const uint32_t stage = n % k.stages, parity = (n / k.stages & 1) ^ 1;
        bar_wait(ext_bar(t, is_k ? 1 : 3, stage), parity);
        if (has_scales) {
            ext_note(t, at.k_scale, at.v_scale, stage, k);
        }
        ext_put(t, side, at.at, at.strays, held, side->ring + stage * (k.keys * dim * 2), dim, k);
        ext_announce(t, ext_bar(t, is_k ? 0 : 2, stage), is_copied);
        at = ext_step(t, &s, &head_kv, side, is_k, k);
        if (holds) {
            ext_hold(t, side, at.at, 0, dim, k, held);
        }
    }
}

#endif
