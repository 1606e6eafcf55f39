/* kv_write.h: the write: quantise and store K and V in one pass. The bytes are those of src/cpu/kv_write_scalar.c, its order of
 * operations included; with RoPE only the last bit of a cosine may differ.
 *
 * A warp takes one vector (a head of K or of V) at a time. RoPE pairs elements that any two lanes hold, so it goes through shared memory;
 * everything else stays in registers. Slots of one write are distinct, so no two blocks meet in a byte.
 *
 * kv_write_v4 is the same text with V's blocks of 4 bits beside all other formats, which it takes too: one destination may keep V in v4, the other not. */
#ifndef OCT_DEVICE_KV_WRITE_H
#define OCT_DEVICE_KV_WRITE_H

#include "device/angle.h"
#include "device/page.h"
#include "device/row.h"
#include "device/v4.h"
#include "number/scale.h"

#define WRITE_WARPS (128 / WARP)

KERNEL(kv_check, 256, 4, oct__kv_check_params)
{
    const int64_t t = (int64_t)(block_id() * 256 + tid());
    if (t < p->n_tokens) {
        int beyond = GET(p->slots[t]) >= p->capacity;
        if (p->slots_window != 0) {
            beyond |= GET(p->slots_window[t]) >= p->capacity_window;
        }
        if (beyond) {
            (void)atomic_max_u32(p->refused, 1);
        }
    }
}

/* ---- where ----------------------------------------------------------------------------------------------------------------- */

typedef struct place {
    int64_t page;            /* < 0: none */
    uint32_t token;
} place;

DEV place place_of(const oct__dev_layer *layer, int32_t slot)
{
    place at;
    at.page = -1;
    at.token = 0;
    if (slot >= 0 && slot < layer->n_pages * (int64_t)layer->page_size) {
        at.page = slot / (int32_t)layer->page_size;
        at.token = (uint32_t)slot % layer->page_size;
    }
    return at;
}

/* An eight of codes of elements d .. d + 7 where the layout wants it. */
DEV void store_eight(const oct__dev_side *side, uint32_t layout, uint32_t page_size, int is_k, int64_t at, uint32_t d, const uint32_t *code)
{
    const uint32_t size = element_bytes(side->dtype), x = oct__dev_chunk(side->dtype);
    uint8_t *base = (uint8_t *)side->base;
    if (layout != OCT_LAYOUT_V5D) {
        store_8(base + (at + d) * size, side->dtype, code);
    } else if (is_k && x >= 8) {
        store_8(base + (at + (int64_t)(d / x) * page_size * x + d % x) * size, side->dtype, code);
    } else {
        /* f32 K, whose chunks hold four, and V, whose dims lie x tokens apart. */
        UNROLL
        for (uint32_t i = 0; i < 8; i++) {
            const int64_t to = is_k ? at + (int64_t)((d + i) / x) * page_size * x + (d + i) % x : at + (int64_t)(d + i) * x;
            if (size == 1) {
                PUT(base[to], (uint8_t)code[i]);
            } else if (size == 2) {
                PUT(((uint16_t *)side->base)[to], (uint16_t)code[i]);
            } else {
                PUT(((uint32_t *)side->base)[to], code[i]);
            }
        }
    }
}

/* ---- what ------------------------------------------------------------------------------------------------------------------ */

/* What was met in writing; each lane holds its own elements' share. */
typedef struct write_met {
    uint32_t n_values, n_saturated, n_nan, amax_bits;
} write_met;

DEV float format_max(uint32_t dtype)
{
    switch (dtype) {
    case OCT_DTYPE_E4M3FN:
        return OCT__E4M3FN_MAX_F32;
    case OCT_DTYPE_E4M3FNUZ:
        return OCT__E4M3FNUZ_MAX_F32;
    case OCT_DTYPE_E5M2:
        return OCT__E5M2_MAX_F32;
    default:
        return OCT__I8_MAX_F32;
    }
}

DEV uint32_t saturates_from(uint32_t dtype)
{
    switch (dtype) {
    case OCT_DTYPE_F16:
        return OCT__F16_SATURATES_FROM_BITS;
    case OCT_DTYPE_BF16:
        return OCT__BF16_SATURATES_FROM_BITS;
    case OCT_DTYPE_E4M3FN:
        return OCT__E4M3FN_SATURATES_FROM_BITS;
    case OCT_DTYPE_E4M3FNUZ:
        return OCT__E4M3FNUZ_SATURATES_FROM_BITS;
    case OCT_DTYPE_E5M2:
        return OCT__E5M2_SATURATES_FROM_BITS;
    case OCT_DTYPE_I8:
        return OCT__I8_SATURATES_FROM_BITS;
    default:
        return OCT__F32_INF_BITS;
    }
}

/* The largest finite |x| of the row, as bits, in all lanes; *has_nan likewise. */
DEV uint32_t row_amax_bits(const float *x, uint32_t *has_nan)
{
    uint32_t amax = 0, nan = 0;
    UNROLL
    for (uint32_t i = 0; i < ROW_FLOATS; i++) {   /* elements past dim are 0 */
        const uint32_t bits = oct__f32_to_bits(x[i]) & OCT__F32_ABS_MASK;
        if (bits > OCT__F32_INF_BITS) {
            nan = 1;
        } else if (bits < OCT__F32_INF_BITS && bits > amax) {
            amax = bits;
        }
    }
    *has_nan = warp_any(nan);
    return oct__f32_to_bits(warp_max_f32(oct__f32_of_bits(amax)));   /* finite floats order like their bits */
}

/* The scale of the whole vector; a dynamic one is stored beside the page, by the lane with is_first. */
DEV float vector_scale(const oct__dev_layer *layer, const oct__dev_side *side, place at, uint32_t head, uint32_t amax_bits, uint32_t has_nan, uint32_t is_first)
{
    if (side->scale_mode != OCT_SCALE_TOKEN_HEAD) {
        return static_scale(side, head);
    }
    const int64_t to = at.page * side->scale_page_stride + (int64_t)at.token * layer->heads + head;
    float scale = oct__scale_from_amax(oct__f32_of_bits(amax_bits), format_max(side->dtype));
    if (has_nan && side->dtype == OCT_DTYPE_I8) {
        scale = oct__f32_of_bits(OCT__F32_QNAN_BITS);   /* no byte can say it */
    }
    if (side->scale_dtype == OCT_DTYPE_F16) {
        const uint16_t code = oct__scale_to_f16(scale);
        if (is_first) {
            PUT(((uint16_t *)side->token_scale)[to], code);
        }
        return oct__f16_to_f32(code);
    }
    if (is_first) {
        PUT(((float *)side->token_scale)[to], scale);
    }
    return scale;
}

/* Divides, encodes and stores elements d .. d + 7 of a vector that begins at element `to`. */
DEV void write_eight(const oct__dev_layer *layer, const oct__dev_side *side, int is_k, int64_t to, uint32_t head, uint32_t d, const float *x, float scale,
                     write_met *met)
{
    const uint32_t limit = saturates_from(side->dtype), scale_bits = oct__f32_to_bits(scale);
    uint32_t code[8];
    UNROLL
    for (uint32_t i = 0; i < 8; i++) {
        uint32_t bits = oct__f32_to_bits(x[i]);
        const int is_nan = oct__f32_bits_are_nan(bits);
        /* A NaN is not divided: a division may change its sign, which the byte keeps. */
        if (side->scale_mode == OCT_SCALE_CHANNEL && !is_nan) {
            bits = oct__f32_divide_bits(bits, oct__f32_to_bits(GET(side->scale[(uint64_t)head * side->dim + d + i])));
        }
        if (!oct__f32_bits_are_nan(bits) && scale_bits != OCT__F32_ONE_BITS) {
            bits = oct__f32_divide_bits(bits, scale_bits);
        }
        met->n_nan += (uint32_t)is_nan;
        met->n_saturated += (bits & OCT__F32_ABS_MASK) >= limit && !oct__f32_bits_are_nan(bits);
        code[i] = bits;
    }
    encode_eight(side->dtype, code);
    store_eight(side, layer->layout, layer->page_size, is_k, to, d, code);
}

/* Rotates, scales, encodes and stores a row; x is used up. */
DEV void write_row(const oct__dev_layer *layer, const oct__dev_side *side, int is_k, place at, uint32_t head, float *x, write_met *met, const int with_v4)
{
    const int64_t to = side_at(side, layer->layout, layer->page_size, is_k, at.page, at.token, head);
    uint32_t has_nan = 0;
    if (side->rotated) {
        row_rotate(x, side->dim);
    }
    const uint32_t amax_bits = row_amax_bits(x, &has_nan);
    if (with_v4 && side->dtype == OCT_DTYPE_V4) {
        v4_store_row((uint8_t *)side->base + oct__v4_block_at(to), x, side->dim, &met->n_nan, &met->n_saturated);
    } else {
        const float scale = vector_scale(layer, side, at, head, amax_bits, has_nan, tid() % WARP == 0);
        UNROLL
        for (uint32_t e = 0; e < ROW_EIGHTS; e++) {
            const uint32_t d = row_element(e);
            if (e * 8 * WARP < side->dim && d < side->dim) {
                write_eight(layer, side, is_k, to, head, d, x + 8 * e, scale, met);
            }
        }
    }
    met->n_values += tid() % WARP == 0 ? side->dim : 0;
    met->amax_bits = amax_bits > met->amax_bits ? amax_bits : met->amax_bits;
}

/* All lanes of the warp. */
DEV void add_counts(oct_kv_counts *counts, const write_met *met)
{
    const uint32_t n_values = warp_sum_u32(met->n_values), n_saturated = warp_sum_u32(met->n_saturated), n_nan = warp_sum_u32(met->n_nan);
    if (tid() % WARP == 0 && n_values > 0) {
        (void)atomic_add_u64(&counts->n_values, n_values);
        if (n_saturated > 0) {
            (void)atomic_add_u64(&counts->n_saturated, n_saturated);
        }
        if (n_nan > 0) {
            (void)atomic_add_u64(&counts->n_nan, n_nan);
        }
        (void)atomic_max_u32((uint32_t *)&counts->amax, met->amax_bits);
    }
}

/* ---- RoPE -------------------------------------------------------------------------------------------------------------------- */

/* Sine and cosine of pair i at a position. */
DEV void rope_turn(const oct__kv_write_params *p, int32_t position, uint32_t i, float *sine, float *cosine)
{
    double turns = exp2_f64(-2.0 * (double)i / (double)p->rope_dims * p->rope_log2_base) * p->rope_turns;
    if (p->rope_factors != 0) {
        turns /= (double)GET(p->rope_factors[i]);
    }
    sincos_turns((double)position * turns, sine, cosine);
}

/* Element d < rope_dims of the turned row, a copy of which stands in `staged`: each element reads its pair. */
DEV float rope_one(const oct__kv_write_params *p, const float *staged, const float *cosine, const float *sine, uint32_t d)
{
    const uint32_t n_pairs = p->rope_dims / 2;
    const uint32_t pair = p->rope_style == 0 ? d % n_pairs : d / 2;
    const uint32_t is_second = p->rope_style == 0 ? d / n_pairs : d % 2;
    const uint32_t at = p->rope_style == 0 ? pair : 2 * pair, apart = p->rope_style == 0 ? n_pairs : 1;
    const float a = SGET(staged[at]), b = SGET(staged[at + apart]), c = SGET(cosine[pair]), s = SGET(sine[pair]);
    return is_second ? a * s + b * c : a * c - b * s;
}

DEV void write_token(const oct__kv_write_params *p, float *cosine, float *sine, float *staged_all, const int with_v4)
{
    const int64_t token = (int64_t)(block_id() / p->parts);
    const uint32_t heads = p->layer.heads, src_bytes = element_bytes(p->src_dtype);
    float *staged = staged_all + tid() / WARP * OCT__DEV_DIM_MAX;
    place at, at_window;
    if (token >= p->n_tokens || (p->refused != 0 && GET(*p->refused) != 0)) {
        return;
    }
    at = place_of(&p->layer, GET(p->slots[token]));
    at_window = place_of(&p->window, p->has_window ? GET(p->slots_window[token]) : -1);
    if (at.page < 0 && at_window.page < 0) {
        return;   /* the source row of a skipped token need not exist */
    }
    if (p->has_rope) {
        const int32_t position = GET(p->positions[token]);
        NO_UNROLL
        for (uint32_t i = tid(); i < p->rope_dims / 2; i += 128) {
            float s, c;
            rope_turn(p, position, i, &s, &c);
            SPUT(sine[i], s);
            SPUT(cosine[i], c);
        }
        block_sync();
    }
    /* All heads of K, then all of V: neighbouring warps write neighbouring heads. One text for K, V and both destinations. */
    uint32_t vector = (uint32_t)(block_id() % p->parts) * WRITE_WARPS + tid() / WARP;
    NO_UNROLL
    for (int is_k = 1; is_k >= 0; is_k--) {
        const uint32_t end = is_k ? heads : 2 * heads, dim = is_k ? p->layer.k.dim : p->layer.v.dim;
        write_met met = { 0, 0, 0, 0 };
        NO_UNROLL
        for (; vector < end; vector += p->parts * WRITE_WARPS) {
            const uint32_t head = is_k ? vector : vector - heads;
            const int64_t from = is_k ? token * p->k_token_stride + head * p->k_head_stride : token * p->v_token_stride + head * p->v_head_stride;
            float x[ROW_FLOATS];
            row_load(x, (const uint8_t *)(is_k ? p->k : p->v) + from * src_bytes, p->src_dtype, src_bytes, dim);
            if (is_k && p->has_rope) {
                warp_sync();   /* the row before may still be read */
                UNROLL
                for (uint32_t i = 0; i < ROW_FLOATS; i++) {
                    const uint32_t d = row_element(i / 8) + i % 8;
                    if (d < p->rope_dims) {
                        SPUT(staged[d], x[i]);
                    }
                }
                warp_sync();
                UNROLL
                for (uint32_t i = 0; i < ROW_FLOATS; i++) {
                    const uint32_t d = row_element(i / 8) + i % 8;
                    if (d < p->rope_dims) {
                        x[i] = rope_one(p, staged, cosine, sine, d);
                    }
                }
            }
            NO_UNROLL
            for (uint32_t to = 0; to < 2; to++) {
                const place there = to == 0 ? at : at_window;
                if (there.page >= 0) {
                    const oct__dev_layer *layer = to == 0 ? &p->layer : &p->window;
                    write_met own = { 0, 0, 0, 0 };
                    float y[ROW_FLOATS];
                    UNROLL
                    for (uint32_t i = 0; i < ROW_FLOATS; i++) {
                        y[i] = x[i];
                    }
                    write_row(layer, is_k ? &layer->k : &layer->v, is_k, there, head, y, &own, with_v4);
                    if (to == 0) {   /* counts speak of the first destination */
                        met.n_values += own.n_values;
                        met.n_saturated += own.n_saturated;
                        met.n_nan += own.n_nan;
                        met.amax_bits = own.amax_bits > met.amax_bits ? own.amax_bits : met.amax_bits;
                    }
                }
            }
        }
        oct_kv_counts *counts = is_k ? p->k_counts : p->v_counts;
        if (counts != 0) {
            add_counts(counts, &met);
        }
    }
}

KERNEL(kv_write, 128, 4, oct__kv_write_params)
{
    SHARED(float, cosine, OCT__DEV_DIM_MAX / 2);
    SHARED(float, sine, OCT__DEV_DIM_MAX / 2);
    SHARED(float, staged_all, WRITE_WARPS * OCT__DEV_DIM_MAX);
    write_token(p, cosine, sine, staged_all, 0);
}

KERNEL(kv_write_v4, 128, 4, oct__kv_write_params)
{
    SHARED(float, cosine, OCT__DEV_DIM_MAX / 2);
    SHARED(float, sine, OCT__DEV_DIM_MAX / 2);
    SHARED(float, staged_all, WRITE_WARPS * OCT__DEV_DIM_MAX);
    write_token(p, cosine, sine, staged_all, 1);
}

#endif
