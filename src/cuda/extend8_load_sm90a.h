/* extend8_load_sm90a.h: the warps of attn_extend8_sm90a.h that bring the keys: e4m3 from V5D pages to shared memory, as they lie, by the copy engine.
 *
 * The instructions take operands in blocks of eight rows of 16 bytes, 128 bytes. A row of K is a key's 16 dims: of 16 keys, a run, K lies so in a page of 16 as a
 * whole, [dims / 16][16][16]; larger pages have [dims / 16][page size][16], and a copy brings 16 dims of a page's keys. A row of V is a dim's 16 keys: a run of V is [dims][16], whatever the page. So nothing is
 * turned and nothing goes through registers; a tile's barrier counts the bytes. Runs of which not every key is there, or that don't begin at 16 bytes, are the
 * exception: those go through registers, and what is not there is 0. */
#ifndef OCT_CUDA_EXTEND8_LOAD_SM90A_H
#define OCT_CUDA_EXTEND8_LOAD_SM90A_H

#include "cuda/extend_load_sm90a.h"
#include "device/extend8_sm90a.h"

/* What a kernel is compiled for; every field a constant. */
typedef struct ext8_kind {
    ext_kind x;                     /* dims, keys, stages, loaders */
    uint32_t terms, has_scales;     /* of q; whether K's tokens may have scales */
} ext8_kind;

/* 16 bytes of a row that begins anywhere; dims are multiples of 8, what follows them is 0. */
DEV u32x4 ext8_chunk(uint64_t at, uint32_t bytes)
{
    uint32_t word[4] = { 0, 0, 0, 0 };
    if (bytes >= 16) {
        load_words((const uint8_t *)(uintptr_t)at, 16, 1, word);
    } else if (bytes == 8) {
        load_words((const uint8_t *)(uintptr_t)at, 8, 1, word);
    }
    const u32x4 v = { word[0], word[1], word[2], word[3] };
    return v;
}

#define EXT8_STRAY 0x7F7F7F7Fu        /* V of a key whose page id is outside of the layer: NaN, so that rows that meet it are done once more, key by key (ext_solo) */

/* Where K lies in shared memory. Pages of 16: runs as the page has them, [keys / 16][dims / 16][16] rows of 16 bytes. Longer pages have more keys behind one
 * another: [dims / 16][keys], so that a copy brings as many as a page has; but for tiles of 64 keys, whose kernel has no register for a stride that is no constant.
 * Both are read by the same instructions: bytes from 16 dims to the next, from a run to the next. */
DEV uint32_t ext8_is_long(const ext_block *t, const ext8_kind k) { return k.x.keys == 128 && t->p->layer.page_size != 16; }
DEV uint32_t ext8_k_chunk(uint32_t is_long, const ext8_kind k) { return is_long ? k.x.keys * 16 : 256; }
DEV uint32_t ext8_k_run(uint32_t is_long, const ext8_kind k) { return is_long ? 256 : k.x.dim_k * 16; }

/* Keys of a tile that lie in one page behind one another: a power of two from 16 on. */
DEV uint32_t ext8_piece(uint32_t page_size, const ext8_kind k)
{
    const uint32_t even = page_size & (0u - page_size);
    return even < k.x.keys ? even : k.x.keys;
}

/* Of 16 bytes, one a key, those whose bit is set; the others 0. */
DEV u32x4 ext8_keep(u32x4 v, uint32_t bits)
{
    v.x &= ((bits & 15) * 0x00204081u & 0x01010101u) * 255;
    v.y &= ((bits >> 4 & 15) * 0x00204081u & 0x01010101u) * 255;
    v.z &= ((bits >> 8 & 15) * 0x00204081u & 0x01010101u) * 255;
    v.w &= ((bits >> 12 & 15) * 0x00204081u & 0x01010101u) * 255;
    return v;
}

/* The next work from `work` on that has keys. Where it stands is kept in shared memory: the warps that load have few registers. */
DEV void ext8_open(const ext_block *t, oct__extend8_runs *runs, uint32_t work, const ext8_kind k)
{
    warp_sync();   /* what the lanes knew has been read */
    while (work < t->n_tasks_tiles) {
        const uint32_t place = ext_work(t, work);
        const oct__dev_task *task = t->p->tasks + place / t->p->n_head_tiles;
        const int32_t key0 = GET(task->key0), key1 = GET(task->key1);
        if (key0 < key1) {
            if (t->lane == 0) {
                SPUT(runs->key0, key0);
                SPUT(runs->key1, key1);
                SPUT(runs->head_kv, place % t->p->n_head_tiles / t->p->n_cuts);
                SPUT(runs->pages, batch_pages(&t->p->batch, (uint32_t)GET(task->sequence)));
                SPUT(runs->base, (int32_t)((uint32_t)(key1 - 1) / k.x.keys * k.x.keys));
            }
            break;
        }
        work += (uint32_t)block_count();
    }
    if (t->lane == 0) {
        SPUT(runs->work, work);
    }
    warp_sync();
}

DEV void ext8_next(const ext_block *t, oct__extend8_runs *runs, const ext8_kind k)
{
    if (SGET(runs->base) > SGET(runs->key0)) {
        const int32_t base = SGET(runs->base) - (int32_t)k.x.keys;
        warp_sync();
        if (t->lane == 0) {
            SPUT(runs->base, base);
        }
        warp_sync();
    } else {
        ext8_open(t, runs, SGET(runs->work) + (uint32_t)block_count(), k);
    }
}

/* Finds the tile's runs, a lane each. */
DEV void ext8_find(const ext_block *t, oct__extend8_runs *runs, const ext_side *side, const uint32_t is_k, const ext8_kind k)
{
    const oct__dev_layer *layer = &t->p->layer;
    uint32_t bits = 0;
    uint64_t at = 0;
    if (t->lane < k.x.keys / 16) {
        const int32_t key = SGET(runs->base) + (int32_t)(t->lane * 16), low = SGET(runs->key0) - key, high = SGET(runs->key1) - key;
        const int32_t from = low > 0 ? low : 0, to = high < 16 ? high : 16;
        if (from < to) {
            const int32_t page = GET(SGET(runs->pages)[(uint32_t)key / layer->page_size]);
            bits = (1u << to) - (1u << from);
            if (page >= 0 && page < layer->n_pages) {
                at = (uint64_t)(uintptr_t)side->side->base + (uint64_t)side_at(side->side, layer->layout, layer->page_size, (int)is_k, page,
                                                                               (uint32_t)key % layer->page_size, SGET(runs->head_kv));
            }
        }
        SPUT(runs->at[t->lane], at);
        SPUT(runs->bits[t->lane], bits);
    }
    const uint32_t whole = warp_ballot(bits == 0xFFFF && at != 0 && side->is_wide);
    if (t->lane == 0) {
        SPUT(runs->whole, whole);
    }
    warp_sync();
}

/* The runs that are not brought whole, through registers; returns how many are. */
DEV uint32_t ext8_bring_some(const ext_block *t, const oct__extend8_runs *runs, const ext_side *side, const uint32_t is_k, shared_at tile, uint32_t run_bytes,
                             uint32_t chunk, const ext8_kind k)
{
    uint32_t n_whole = 0;
    NO_UNROLL
    for (uint32_t run = 0; run < k.x.keys / 16; run++) {
        if ((SGET(runs->whole) >> run & 1) != 0) {
            n_whole++;
            continue;
        }
        NO_UNROLL
        for (uint32_t i = t->lane; i < side->side->dim; i += WARP) {   /* of K 16 dims of a key, of V 16 keys of a dim */
            const uint32_t bits = SGET(runs->bits[run]);
            const uint64_t at = SGET(runs->at[run]);
            u32x4 v = { 0, 0, 0, 0 };
            if (at == 0) {   /* no key of the work, or of a page outside of the layer */
                v.x = v.y = v.z = v.w = is_k ? 0 : EXT8_STRAY;
            } else if (is_k ? bits >> (i % 16) & 1 : bits != 0) {
                v = ext8_chunk(at + (is_k ? i / 16 * side->chunk_stride + i % 16 * 16 : i * 16), 16);
            }
            if (!is_k) {
                v = ext8_keep(v, bits);
            }
            shared_write_16(tile + run * run_bytes + (is_k ? i / 16 * chunk + i % 16 * 16 : i * 16), v);
        }
    }
    return n_whole;
}

/* K of pages longer than a run, 16 dims in a copy, which a lane asks for: of as many keys as lie behind one another in both places, of a run where not all of them
 * are there. */
DEV void ext8_bring_long(const ext_block *t, const oct__extend8_runs *runs, const ext_side *side, shared_at tile, shared_at full, const ext8_kind k)
{
    const uint32_t is_long = ext8_is_long(t, k), piece = is_long ? ext8_piece(t->p->layer.page_size, k) / 16 : 1;
    uint32_t whole = SGET(runs->whole);
    NO_UNROLL
    for (uint32_t run = 0; run < k.x.keys / 16;) {
        const uint32_t n = (~whole & ((1u << piece) - 1)) == 0 && run % piece == 0 ? piece : 1;
        if ((whole & 1) != 0 && t->lane * 16 < side->side->dim) {
            bulk_load(tile + t->lane * ext8_k_chunk(is_long, k) + run * ext8_k_run(is_long, k), (const void *)(uintptr_t)(SGET(runs->at[run]) + t->lane * side->chunk_stride), n * 256, full);
        }
        run += n;
        whole >>= n;
    }
}

/* Scales of K's tokens, beside the tile. */
DEV void ext8_bring_scales(const ext_block *t, const oct__extend8_runs *runs, uint32_t stage, const ext8_kind k)
{
    const oct__dev_layer *layer = &t->p->layer;
    NO_UNROLL
    for (uint32_t i = t->lane; i < k.x.keys; i += WARP) {
        const uint32_t key = (uint32_t)SGET(runs->base) + i;
        float scale = 0.0f;
        if (SGET(runs->at[i / 16]) != 0 && (SGET(runs->bits[i / 16]) >> (i % 16) & 1) != 0) {
            scale = token_scale(&layer->k, layer->heads, GET(SGET(runs->pages)[key / layer->page_size]), key % layer->page_size, SGET(runs->head_kv));
        }
        SPUT(((float *)(t->shared + t->at.scale))[stage * k.x.keys + i], scale);
    }
}

/* The work of a warp: all tiles of a side. at: of oct__extend8_shared. */
DEV void ext8_load(const ext_block *block, const ext_side *side, uint32_t at, const uint32_t is_k, const ext8_kind k)
{
    ext_block own = *block;
    const ext_block *t = &own;
    const uint32_t is_long = ext8_is_long(t, k), run_bytes = is_k ? ext8_k_run(is_long, k) : OCT__EXTEND8_RUN_BYTES(k.x.dim_v), n_runs = k.x.keys / 16;
    const uint32_t tile_bytes = is_k ? k.x.keys * k.x.dim_k : n_runs * OCT__EXTEND8_RUN_BYTES(k.x.dim_v);
    oct__extend8_runs *runs = (oct__extend8_runs *)(t->shared + at) + (is_k ? 0 : 1);
    ext8_open(t, runs, (uint32_t)block_id(), k);
    NO_UNROLL
    for (uint32_t n = 0; SGET(runs->work) < t->n_tasks_tiles; n++) {
        const uint32_t stage = n % k.x.stages;
        const shared_at tile = side->ring + stage * tile_bytes, full = ext_bar(t, is_k ? 0 : 2, stage);
        wg_hold_u32(&own.lane, 1);   /* places that follow from it are reckoned here, not kept */
        ext8_find(t, runs, side, is_k, k);
        bar_wait(ext_bar(t, is_k ? 1 : 3, stage), (n / k.x.stages & 1) ^ 1);
        if (is_k && k.has_scales && t->has_k_scale) {
            ext8_bring_scales(t, runs, stage, k);
        }
        uint32_t n_whole = n_runs;
        if (is_k && t->p->layer.page_size != 16) {
            ext8_bring_long(t, runs, side, tile, full, k);
        } else if ((SGET(runs->whole) >> t->lane & 1) != 0) {
            bulk_load(tile + t->lane * run_bytes, (const void *)(uintptr_t)SGET(runs->at[t->lane]), side->side->dim * 16, full);
        }
        if (SGET(runs->whole) != (1u << n_runs) - 1) {
            n_whole = ext8_bring_some(t, runs, side, is_k, tile, run_bytes, ext8_k_chunk(is_long, k), k);
            proxy_fence();
        }
        warp_sync();
        if (t->lane == 0) {
            bar_arrive_expecting(full, n_whole * side->side->dim * 16);
        }
        ext8_next(t, runs, k);
    }
}

#endif
