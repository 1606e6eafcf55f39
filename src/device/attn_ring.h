/* attn_ring.h: owns the way of K and V into shared memory for attn_mma.h: tiles of 16 keys, several on the way at once. A ring belongs to one warp
 * (decode: warps take turns at the keys) or to the block (extend: warps take different rows).
 *
 * Slots hold rows of [key][chunk of 16 bytes], chunks swizzled so that neither the reads of K (neighbouring keys, the same chunks) nor
 * those of V (every other key) meet in a bank. Rows are as wide as the kernel's most dims; what lies past dim is zeroed once. A key that is not
 * there is zero in V: 0 x NaN must not be.
 *
 * A tile passes four stations, each a turn of the loop ahead of the next, so that no turn waits for an address: its pages are read, its addresses
 * found (and token scales asked for), its bytes asked for, its bytes used. On NVIDIA bytes go to their slot by cp.async, RING_AHEAD
 * tiles ahead; elsewhere they wait in registers, one tile ahead, for the one slot. Rows that are not made of whole 16-byte words, and V5D's V,
 * are brought by ordinary loads when they are needed: right, not fast. */
#ifndef OCT_DEVICE_ATTN_RING_H
#define OCT_DEVICE_ATTN_RING_H

#include "device/elements.h"
#include "device/page.h"
#include "device/tile.h"

#define RING_NOTES 4u
#define RING_SLOTS(stage_bytes) oct__mma_slots(WARP, stage_bytes)
/* Tiles asked for before the first is used. */
#define RING_AHEAD(stage_bytes) (OCT__FETCH_IS_ASYNC ? RING_SLOTS(stage_bytes) - 1 : 1u)

/* What the kernel fixes: bytes of an element, most dims, whose ring it is. Always constants. */
typedef struct mma_form {
    uint32_t k_size, v_size, dim, is_extend;
} mma_form;

DEV uint32_t form_k_row(const mma_form f)
{
    return f.dim * f.k_size;
}

DEV uint32_t form_v_row(const mma_form f)
{
    return f.dim * f.v_size;
}

DEV uint32_t form_stage(const mma_form f)
{
    return TILE_KEYS * (form_k_row(f) + form_v_row(f));
}

DEV uint32_t form_lanes(const mma_form f)
{
    return f.is_extend ? OCT__MMA_LANES : WARP;
}

/* Everyone who shares the ring. */
DEV void form_sync(const mma_form f)
{
    if (f.is_extend) {
        block_sync();
    } else {
        warp_sync();
    }
}

typedef struct ring {
    const oct__attn_params *p;
    const int32_t *pages;
    uint8_t *slots;                /* shared: [slots][keys' K, then V] */
    int64_t *at;                   /* shared: [notes][K, V][key]: element where the key begins; -1: not to be read */
    uint32_t *there;               /* shared: [notes][key] */
    float *scale;                  /* shared: [notes][K, V][key]; 1 where scales do not go by token */
    uint32_t k_chunk_step;         /* bytes */
    uint32_t head_kv;
    uint32_t key0, key1, first, stride;   /* 32 bits hold the keys a few turns past the last one too */
    uint32_t is_wide_k, is_wide_v; /* rows are whole 16-byte words */
    uint32_t page_shift;           /* of a page size that is a power of two; 32: it is none */
    int32_t page;                  /* the lane's: of the tile last looked up */
    float next_scale;
} ring;

DEV uint32_t ring_swizzle(uint32_t row)
{
    return ((row >> 1 & 3u) * 2u) ^ ((row & 1u) * 4u);
}

DEV uint8_t *ring_chunk(uint8_t *rows, const uint32_t row_bytes, uint32_t row, uint32_t chunk)
{
    return rows + row * row_bytes + (chunk ^ ring_swizzle(row)) * 16u;
}

DEV uint8_t *ring_slot(const ring *r, const mma_form f, uint32_t n)
{
    return r->slots + n % RING_SLOTS(form_stage(f)) * form_stage(f);
}

DEV uint32_t ring_lane(const mma_form f)
{
    return tid() % form_lanes(f);
}

/* ---- stations -------------------------------------------------------------------------------------------------------------------- */

/* One lane a key and side; lanes from 32 on have nothing to do. */
DEV uint32_t ring_key(const ring *r, uint32_t n, uint32_t lane)
{
    return r->first + n * r->stride + lane % TILE_KEYS;
}

DEV void ring_look(ring *r, const mma_form f, uint32_t n)
{
    const uint32_t lane = ring_lane(f);
    const uint32_t key = ring_key(r, n, lane);
    r->page = -1;
    if (lane < 2 * TILE_KEYS && key >= r->key0 && key < r->key1) {
        r->page = GET(r->pages[r->page_shift < 32 ? key >> r->page_shift : key / r->p->layer.page_size]);
    }
}

DEV void ring_place(ring *r, const mma_form f, uint32_t n)
{
    const oct__dev_layer *layer = &r->p->layer;
    const uint32_t lane = ring_lane(f), is_v = lane / TILE_KEYS, note = n % RING_NOTES;
    r->next_scale = 1.0f;
    if (lane < 2 * TILE_KEYS) {
        const oct__dev_side *side = is_v ? &layer->v : &layer->k;
        int64_t at = -1;
        if (r->page >= 0 && r->page < layer->n_pages) {
            const uint32_t key = ring_key(r, n, lane), token = r->page_shift < 32 ? key & (layer->page_size - 1) : key % layer->page_size;
            at = side_at(side, layer->layout, layer->page_size, !is_v, r->page, token, r->head_kv);
            if (side->scale_mode == OCT_SCALE_TOKEN_HEAD) {
                r->next_scale = token_scale(side, layer->heads, r->page, token, r->head_kv);
            }
        }
        SPUT(r->at[note * 2 * TILE_KEYS + lane], at);
        if (!is_v) {
            SPUT(r->there[note * TILE_KEYS + lane], at >= 0 ? 1u : 0u);
        }
    }
}

/* A turn later, when the scale has come. */
DEV void ring_note(const ring *r, const mma_form f, uint32_t n)
{
    const uint32_t lane = ring_lane(f);
    if (lane < 2 * TILE_KEYS) {
        SPUT(r->scale[n % RING_NOTES * 2 * TILE_KEYS + lane], r->next_scale);
    }
}

/* Where pass i's chunk of the lane lies in the slot. key0, chunk: of pass 0. The swizzle of a key four on differs in one bit, of one eight on in none. */
DEV uint8_t *ring_place_of(uint8_t *rows, const uint32_t row_bytes, uint32_t key0, uint32_t chunk, const uint32_t a_pass, const uint32_t i)
{
    const uint32_t key = key0 + i * a_pass, swizzled = chunk ^ ring_swizzle(key0);
    const uint32_t place = a_pass % 8 == 0 ? swizzled : a_pass == 4 ? swizzled ^ (i % 2 * 4) : chunk ^ ring_swizzle(key);
    return rows + key * row_bytes + place * 16;
}

/* The lane's chunks of one side: asked for (is_landing 0), or from its registers into the slot. All lanes of a warp. */
DEV void ring_move(const ring *r, const mma_form f, uint32_t n, const uint32_t is_v, const int is_landing, u32x4 *held)
{
    const oct__dev_side *side = is_v ? &r->p->layer.v : &r->p->layer.k;
    const uint32_t size = is_v ? f.v_size : f.k_size, row_bytes = is_v ? form_v_row(f) : form_k_row(f);
    const uint32_t chunks = row_bytes / 16, n_real = side->dim * size / 16, lanes = form_lanes(f);
    const uint32_t step = is_v ? 16 : r->k_chunk_step;
    uint8_t *rows = ring_slot(r, f, n) + (is_v ? TILE_KEYS * form_k_row(f) : 0);
    const uint32_t lane = ring_lane(f), a_pass = lanes / chunks, key0 = lane / chunks, chunk = lane % chunks;   /* keys a pass: 1 to 16 */
    const uint8_t *from = (const uint8_t *)side->base + (uint64_t)(chunk * step);
    const int64_t *at_of = r->at + (n % RING_NOTES * 2 + is_v) * TILE_KEYS + key0;
    if (is_landing) {
        if (chunk < n_real) {
            UNROLL
            for (uint32_t i = 0; i < TILE_KEYS / a_pass; i++) {
                shared_store_16(ring_place_of(rows, row_bytes, key0, chunk, a_pass, i), held[i]);
            }
        }
        return;
    }
    int64_t at[TILE_KEYS];
    uint32_t missing = !OCT__FETCH_IS_ASYNC;
    UNROLL
    for (uint32_t i = 0; i < TILE_KEYS / a_pass; i++) {   /* addresses first, so that copies follow each other */
        at[i] = SGET(at_of[i * a_pass]);
        missing |= at[i] < 0;
    }
    if (OCT__FETCH_IS_ASYNC) {
        missing = warp_any(missing);   /* copies that may have to be zeros cost more than this */
    }
    if (!missing && chunk < n_real) {
        UNROLL
        for (uint32_t i = 0; i < TILE_KEYS / a_pass; i++) {
            fetch_16_there(held, ring_place_of(rows, row_bytes, key0, chunk, a_pass, i), from + at[i] * size);
        }
    }
    if (missing && chunk < n_real) {
        UNROLL
        for (uint32_t i = 0; i < TILE_KEYS / a_pass; i++) {
            fetch_16(OCT__FETCH_IS_ASYNC ? held : held + i, ring_place_of(rows, row_bytes, key0, chunk, a_pass, i), from + (at[i] < 0 ? 0 : at[i]) * size, at[i] >= 0);
        }
    }
}

/* One side of a tile by ordinary loads, straight into its slot. */
DEV void ring_move_slowly(const ring *r, const mma_form f, uint32_t n, const uint32_t is_v)
{
    const oct__dev_side *side = is_v ? &r->p->layer.v : &r->p->layer.k;
    const uint32_t size = is_v ? f.v_size : f.k_size, row_bytes = is_v ? form_v_row(f) : form_k_row(f), chunks = row_bytes / 16, elements = 16 / size;
    const int is_apart = is_v && r->p->layer.layout == OCT_LAYOUT_V5D;   /* dims of a token lie 16 bytes apart */
    uint8_t *rows = ring_slot(r, f, n) + (is_v ? TILE_KEYS * form_k_row(f) : 0);
    NO_UNROLL
    for (uint32_t index = ring_lane(f); index < TILE_KEYS * chunks; index += form_lanes(f)) {
        const uint32_t key = index / chunks, chunk = index % chunks, dim0 = chunk * elements;
        const int64_t at = SGET(r->at[(n % RING_NOTES * 2 + is_v) * TILE_KEYS + key]);
        uint32_t word[4] = { 0, 0, 0, 0 };
        if (at >= 0 && dim0 < side->dim) {
            const uint8_t *from = (const uint8_t *)side->base + at * size;
            if (is_apart) {
                UNROLL
                for (uint32_t d = 0; d < elements; d++) {
                    if (dim0 + d < side->dim) {
                        const uint8_t *one = from + (int64_t)(dim0 + d) * 16;
                        const uint32_t code = size == 1 ? GET(*one) : GET(*(const uint16_t *)one);
                        word[d * size / 4] |= code << (8 * (d * size % 4));
                    }
                }
            } else {
                from += chunk * (is_v ? 16 : r->k_chunk_step);
                if (dim0 + elements <= side->dim) {
                    load_words(from, 16, size, word);
                } else {
                    load_words(from, 8, size, word);   /* dims are multiples of 8 */
                }
            }
        }
        const u32x4 v = { word[0], word[1], word[2], word[3] };
        shared_store_16(ring_chunk(rows, row_bytes, key, chunk), v);
    }
}

/* Registers of chunks on their way, the most of any form; where K's end. */
#define RING_HELD_MAX (OCT__FETCH_IS_ASYNC ? 1u : 16u)
#define RING_HELD_K(f) (OCT__FETCH_IS_ASYNC ? 0u : (TILE_KEYS * form_k_row(f) / 16 + form_lanes(f) - 1) / form_lanes(f))

DEV void ring_fetch(const ring *r, const mma_form f, uint32_t n, u32x4 *held)
{
    if (ring_key(r, n, 0) < r->key1) {
        if (r->is_wide_k) {
            ring_move(r, f, n, 0, 0, held);
        }
        if (r->is_wide_v) {
            ring_move(r, f, n, 1, 0, held + RING_HELD_K(f));
        }
    }
    fetch_commit();
}

/* ---- the loop's two words ------------------------------------------------------------------------------------------------------------ */

DEV int ring_is_wide(const oct__dev_side *side, const uint32_t size)
{
    return (((uint64_t)(uintptr_t)side->base | (uint64_t)(side->page_stride * size) | (uint64_t)(side->token_stride * size) |
             (uint64_t)(side->head_stride * size) | (uint64_t)(side->dim * size)) & 15u) == 0;
}

/* p, pages, head_kv, keys and the shared arrays stand in r. Everyone who shares the ring; ends with nothing synced. */
DEV void ring_begin(ring *r, const mma_form f, u32x4 *held)
{
    const oct__dev_layer *layer = &r->p->layer;
    const uint32_t ahead = RING_AHEAD(form_stage(f)), bytes = RING_SLOTS(form_stage(f)) * form_stage(f);
    r->is_wide_k = ring_is_wide(&layer->k, f.k_size);
    r->is_wide_v = layer->layout != OCT_LAYOUT_V5D && ring_is_wide(&layer->v, f.v_size);
    r->page_shift = 32;
    if ((layer->page_size & (layer->page_size - 1)) == 0) {
        r->page_shift = 0;
        NO_UNROLL
        while (layer->page_size >> r->page_shift > 1) {
            r->page_shift++;
        }
    }
    r->k_chunk_step = layer->layout == OCT_LAYOUT_V5D ? layer->page_size * 16 : 16;
    if (layer->k.dim < f.dim || layer->v.dim < f.dim) {
        const u32x4 zero = { 0, 0, 0, 0 };
        NO_UNROLL
        for (uint32_t i = ring_lane(f) * 16; i < bytes; i += form_lanes(f) * 16) {
            shared_store_16(r->slots + i, zero);
        }
    }
    int32_t page[RING_NOTES];   /* all asked for at once */
    UNROLL
    for (uint32_t n = 0; n < ahead + 2; n++) {
        ring_look(r, f, n);
        page[n] = r->page;
    }
    UNROLL
    for (uint32_t n = 0; n < ahead; n++) {
        r->page = page[n];
        ring_place(r, f, n);
        form_sync(f);
        ring_fetch(r, f, n, held);
        ring_note(r, f, n);
    }
    r->page = page[ahead];
    ring_place(r, f, ahead);
    r->page = page[ahead + 1];
}

/* Tile n is in its slot and its notes are there, for everyone; the next ones are on their way. */
DEV void ring_turn(ring *r, const mma_form f, uint32_t n, u32x4 *held)
{
    const uint32_t ahead = RING_AHEAD(form_stage(f));
    fetch_wait(ahead - 1);
    form_sync(f);
#if !OCT__FETCH_IS_ASYNC
    if (r->is_wide_k) {
        ring_move(r, f, n, 0, 1, held);
    }
    if (r->is_wide_v) {
        ring_move(r, f, n, 1, 1, held + RING_HELD_K(f));
    }
#endif
    if (!r->is_wide_k) {
        ring_move_slowly(r, f, n, 0);
    }
    if (!r->is_wide_v) {
        ring_move_slowly(r, f, n, 1);
    }
    if (!OCT__FETCH_IS_ASYNC || !r->is_wide_k || !r->is_wide_v) {
        form_sync(f);
    }
    ring_fetch(r, f, n + ahead, held);
    ring_note(r, f, n + ahead);
    ring_place(r, f, n + ahead + 1);
    ring_look(r, f, n + ahead + 2);
}

#endif
