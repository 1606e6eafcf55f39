/* kv_write_sm90a.h: Hopper's write. The bytes are those of src/device/kv_write.h.
 *
 * The reckoning. 8 heads of 128, bf16 to 8 bits: 6 KB a token, read and written; at 16,384 tokens 100 MB, 23.4 us of an H200's copy. To be bound by that an
 * element may cost 20 lane instructions in all, and a correctly rounded division alone is more than half of it. So:
 * - a division is a product and two multiply-adds (quotient), where it is proved that the stored byte is the same; vectors for which it is not
 *   (a NaN, an infinity, numbers beyond 2^80, a handful of scales) are noted and written afterwards by the text of kv_write.h;
 * - a lane has eight dims of K and of V of one head, so that a slot is found once for both, and all its loads, 16 bytes each, are under way before the
 *   first is used; 1 token is two blocks' worth of lanes, many tokens are two a lane;
 * - a vector's lanes are neighbours in a warp: amax and rotation are shuffles.
 *
 * Slots of one write are distinct, so no two lanes meet in a byte. */
#ifndef OCT_CUDA_KV_WRITE_SM90A_H
#define OCT_CUDA_KV_WRITE_SM90A_H

#include "cuda/rotate_sm90a.h"
#include "cuda/simt_write_sm90a.h"
#include "device/kv_write.h"
#include "device/write_sm90a.h"

#define WRITE_ROUNDS_MAX 2

/* What a lane is to the block: the same in all its rounds. */
typedef struct writer {
    uint32_t team, lane;               /* lanes of the team; of them, this one */
    uint32_t head, d;                  /* the head, and the first of eight dims */
    uint64_t token;                    /* of round 0 */
    int is_mine;
} writer;

/* ---- the division ------------------------------------------------------------------------------------------------------------- */

/* x / by, rounded to nearest: the steps by which nvcc divides, whose result is the rounded quotient where nothing on the way leaves the range of normal
 * numbers. `by` is kept to [2^-80, 2^100]: then a quotient too small for that is 0 in every 8-bit format (with the sign of x: the signs of the products
 * keep that of -0), and one too large comes out as a NaN or an infinity, and so does one of a NaN or an infinity: the vector is then written
 * again by the text of kv_write.h. */
DEV float quotient(float x, float by, float near)
{
    float q = x * near;
    q = fma_once_f32(-fma_once_f32(q, by, -x), near, q);
    return fma_once_f32(-fma_once_f32(q, by, -x), near, q);
}

DEV float reciprocal_near(float by)
{
    const float near = reciprocal_fast(by);
    return fma_once_f32(near, fma_once_f32(-by, near, 1.0f), near);
}

DEV int is_plain_divisor(float by)
{
    return (oct__f32_to_bits(by) >> 23) - 47u <= 180u;
}

/* ---- a team ------------------------------------------------------------------------------------------------------------------- */

/* The largest of the team, in all its lanes; all lanes of the warp. */
DEV uint32_t team_max_u32(uint32_t v, uint32_t team)
{
    UNROLL
    for (uint32_t mask = WARP / 2; mask > 0; mask /= 2) {
        if (mask < team) {
            const uint32_t other = shfl_xor_u32(v, mask);
            v = other > v ? other : v;
        }
    }
    return v;
}

/* ---- eight dims ----------------------------------------------------------------------------------------------------------------- */

DEV uint32_t pack_bytes(uint32_t a, uint32_t b, uint32_t c, uint32_t d)
{
    return byte_perm(byte_perm(a, b, 0x0040), byte_perm(c, d, 0x0040), 0x5410);
}

/* Eight finite quotients into words of the format: 2, 4 or 8 of them. */
DEV void encode_quick(uint32_t dtype, const float *x, uint32_t *word)
{
    uint32_t code[8];
    switch (dtype) {
    case OCT_DTYPE_E4M3FN:
        word[0] = encode_e4m3fn_4(x);
        word[1] = encode_e4m3fn_4(x + 4);
        break;
    case OCT_DTYPE_E5M2:
        word[0] = encode_e5m2_4(x);
        word[1] = encode_e5m2_4(x + 4);
        break;
    case OCT_DTYPE_I8:
        UNROLL
        for (uint32_t i = 0; i < 8; i++) {   /* the sum rounds to a whole number, which then stands in the low byte */
            const float y = x[i] > 127.0f ? 127.0f : x[i] < -127.0f ? -127.0f : x[i];
            code[i] = oct__f32_to_bits(y + 12582912.0f);
        }
        word[0] = pack_bytes(code[0], code[1], code[2], code[3]);
        word[1] = pack_bytes(code[4], code[5], code[6], code[7]);
        break;
    case OCT_DTYPE_E4M3FNUZ:
        UNROLL
        for (uint32_t i = 0; i < 8; i++) {
            code[i] = oct__e4m3fnuz_from_f32_bits(oct__f32_to_bits(x[i]));
        }
        word[0] = pack_bytes(code[0], code[1], code[2], code[3]);
        word[1] = pack_bytes(code[4], code[5], code[6], code[7]);
        break;
    case OCT_DTYPE_F16:
        UNROLL
        for (uint32_t i = 0; i < 4; i++) {
            word[i] = pack_f16(x[2 * i], x[2 * i + 1]);
        }
        break;
    case OCT_DTYPE_BF16:
        UNROLL
        for (uint32_t i = 0; i < 4; i++) {
            word[i] = pack_bf16(x[2 * i], x[2 * i + 1]);
        }
        break;
    default:
        UNROLL
        for (uint32_t i = 0; i < 8; i++) {
            word[i] = oct__f32_to_bits(x[i]);
        }
    }
}

/* A scale of a vector: what divides it, its reciprocal, and its code where it is kept in f16. */
typedef struct divisor {
    float by, near;
    uint32_t code;
} divisor;

/* The static ones; 1 for the others. */
DEV divisor divisor_of(const oct__write_way *way, uint32_t head)
{
    divisor s = { 1.0f, 1.0f, 0 };
    if (way->scale_kind == OCT__WRITE_STATIC || way->scale_kind == OCT__WRITE_HEAD) {
        s.by = GET(way->scale[way->scale_kind == OCT__WRITE_HEAD ? head : 0]);
        s.near = reciprocal_near(s.by);
    }
    return s;
}

/* What is known when a kernel is compiled; of FORM_ANY nothing. A kernel for all is 400 KB of code, whose few instructions that run lie so far apart that
 * fetching them is what it waits for (62 us at 16,384 tokens), so the common forms have kernels of their own: one destination, no RoPE, nothing counted. */
typedef enum form { FORM_ANY, FORM_E4M3, FORM_E4M3_V5D, FORM_E4M3_TOKEN, FORM_I8_TOKEN, FORM_16 } form;

DEV uint32_t form_dtype(const form f, uint32_t dtype)
{
    return f == FORM_E4M3 || f == FORM_E4M3_V5D || f == FORM_E4M3_TOKEN ? OCT_DTYPE_E4M3FN : f == FORM_I8_TOKEN ? OCT_DTYPE_I8 : dtype;
}

DEV uint32_t form_kind(const form f, uint32_t kind)
{
    return f == FORM_E4M3 || f == FORM_E4M3_V5D ? OCT__WRITE_STATIC : f == FORM_E4M3_TOKEN || f == FORM_I8_TOKEN ? OCT__WRITE_TOKEN_F32 : f == FORM_16 ? OCT__WRITE_ONE : kind;
}

DEV place place_cut(const oct__dev_cut *cut, uint32_t page_size, uint32_t slot)
{
    place at;
    at.page = -1;
    at.token = 0;
    if (slot < cut->capacity) {
        const uint32_t page = (uint32_t)((uint64_t)slot * cut->magic >> cut->shift);
        at.page = page;
        at.token = slot - page * page_size;
    }
    return at;
}

/* V of V5D pages stands token by token, its dims 16 bytes apart: a block has tokens of one head, turns their bytes in shared memory and stores them a byte
 * of 16 tokens at a time, which the hardware joins where their slots are neighbours. Bytes of a token's row there: tokens meet different banks. */
DEV uint32_t turned_stride(const writer *w)
{
    return 8 * w->team + 8;
}

/* The block's V, of oct__kv_write_sm90a_params.way[0][1]. turned: [tokens_a_block][turned_stride]. All lanes of the block. */
DEV void store_turned(const oct__kv_write_sm90a_params *p, const writer *w, uint64_t token0, const uint8_t *turned)
{
    const oct__write_way *way = &p->way[0][1];
    const uint32_t tokens = p->tokens_a_block, own = tid() & (tokens - 1);   /* heads_a_block is 1: a power of two */
    const uint64_t token = token0 + own;
    const place at = place_cut(&p->cut[0], p->page_size, token < p->n_tokens ? (uint32_t)GET(p->slots[0][token]) : UINT32_MAX);
    block_sync();
    if (at.page >= 0) {
        uint8_t *to = way->to + (uint64_t)at.page * way->to_page + (uint64_t)w->head * way->to_head + (uint64_t)(at.token / 16) * (16 * way->dim) + at.token % 16;
        NO_UNROLL
        for (uint32_t d = tid() / tokens * 4; d < way->dim; d += OCT__WRITE_SM90A_LANES / tokens * 4) {
            const uint32_t four = SGET(*(const uint32_t *)(const void *)(turned + own * turned_stride(w) + d));
            UNROLL
            for (uint32_t i = 0; i < 4; i++) {
                PUT(to[(d + i) * 16], (uint8_t)(four >> (8 * i)));
            }
        }
    }
    block_sync();   /* whoever writes a vector of these again comes after */
}

/* Whether the warp's vectors were written; if not, to be done again. x is rotated in place. to: the eight's address; at: page < 0 where there is none.
 * turned: the eight's place in shared memory, to which it goes instead; or NULL. */
DEV uint32_t write_quick(const form f, const oct__write_way *way, const writer *w, uint32_t heads, place at, uint8_t *to, uint8_t *turned, divisor s, float *x,
                         uint32_t is_counted, write_met *met)
{
    const uint32_t dtype = form_dtype(f, way->dtype), kind = form_kind(f, way->scale_kind);
    const int is_there = at.page >= 0 && w->d < way->dim;
    uint32_t amax = 0, word[8] = { 0, 0, 0, 0, 0, 0, 0, 0 };
    float y[8], odd = 0.0f;
    if (f != FORM_E4M3 && f != FORM_E4M3_V5D && f != FORM_16 && way->rotated) {
        team_rotate(x, way->dim);
    }
    if (kind >= OCT__WRITE_TOKEN_F32 || is_counted) {
        UNROLL
        for (uint32_t i = 0; i < 8; i++) {
            const uint32_t bits = oct__f32_to_bits(x[i]) & OCT__F32_ABS_MASK;
            amax = bits > amax ? bits : amax;   /* a NaN is above all */
        }
    }
    if (kind == OCT__WRITE_TOKEN_F32 || (f == FORM_ANY && kind == OCT__WRITE_TOKEN_F16)) {
        amax = team_max_u32(amax, w->team);
        const float max = format_max(dtype), floor = OCT__SCALE_FLOOR;   /* as oct__scale_from_amax */
        s.by = quotient(oct__f32_of_bits(amax), max, reciprocal_near(max));
        s.by = s.by >= floor ? s.by : floor;
        if ((f == FORM_ANY && kind == OCT__WRITE_TOKEN_F16)) {
            s.code = oct__scale_to_f16(s.by);
            s.by = oct__f16_to_f32((uint16_t)s.code);
        }
        odd = amax >= OCT__F32_INF_BITS ? oct__f32_of_bits(OCT__F32_QNAN_BITS) : 0.0f;
        s.near = reciprocal_near(s.by);
    }
    if (kind == OCT__WRITE_ONE) {
        UNROLL
        for (uint32_t i = 0; i < 8; i++) {
            y[i] = x[i];
        }
    } else if (kind == OCT__WRITE_CHANNEL) {
        UNROLL
        for (uint32_t i = 0; i < 8; i++) {
            s.by = is_there ? GET(way->scale[(uint64_t)w->head * way->dim + w->d + i]) : 1.0f;
            odd = is_plain_divisor(s.by) ? odd : oct__f32_of_bits(OCT__F32_QNAN_BITS);
            y[i] = quotient(x[i], s.by, reciprocal_near(s.by));
        }
    } else {
        odd = is_plain_divisor(s.by) ? odd : oct__f32_of_bits(OCT__F32_QNAN_BITS);
        UNROLL
        for (uint32_t i = 0; i < 8; i++) {
            y[i] = quotient(x[i], s.by, s.near);
        }
    }
    UNROLL
    for (uint32_t i = 0; i < 8; i++) {
        odd = fma_f32(y[i], 0.0f, odd);   /* stays 0 unless one is a NaN or an infinity */
    }
    if (warp_any(odd != 0.0f || odd != odd)) {
        if (turned != 0) {
            const u32x2 none = { 0, 0 };
            shared_store_8(turned, none);
        }
        return 1;
    }
    if (is_there) {
        encode_quick(dtype, y, word);
        if (turned != 0) {
            const u32x2 v = { word[0], word[1] };
            shared_store_8(turned, v);
        } else if (dtype >= OCT_DTYPE_E4M3FN) {
            const u32x2 v = { word[0], word[1] };
            global_store_8(to, v);
        } else {
            const u32x4 v = { word[0], word[1], word[2], word[3] };
            global_store_16(to, v);
            if (f == FORM_ANY && dtype == OCT_DTYPE_F32) {
                const u32x4 more = { word[4], word[5], word[6], word[7] };
                global_store_16(to + 16, more);
            }
        }
    }
    if (at.page >= 0 && w->lane == 0) {
        const uint64_t to_scale = (uint64_t)at.page * way->scale_page + at.token * heads + w->head;
        if (kind == OCT__WRITE_TOKEN_F32) {
            PUT(((float *)way->token_scale)[to_scale], s.by);
        } else if ((f == FORM_ANY && kind == OCT__WRITE_TOKEN_F16)) {
            PUT(((uint16_t *)way->token_scale)[to_scale], (uint16_t)s.code);
        }
    }
    if (is_counted && at.page >= 0) {
        const uint32_t limit = saturates_from(dtype);
        met->n_values += w->lane == 0 ? way->dim : 0;
        met->amax_bits = amax > met->amax_bits ? amax : met->amax_bits;
        UNROLL
        for (uint32_t i = 0; i < 8; i++) {
            met->n_saturated += (oct__f32_to_bits(y[i]) & OCT__F32_ABS_MASK) >= limit;
        }
    }
    return 0;
}

/* Writes x, whatever is in it. */
DEV void write_slow(const oct__dev_layer *layer, const oct__dev_side *side, int is_k, const writer *w, place at, float *x, int is_counted, write_met *met)
{
    uint32_t amax = 0, has_nan = 0;
    write_met own = { 0, 0, 0, 0 };
    if (side->rotated) {
        team_rotate(x, side->dim);
    }
    UNROLL
    for (uint32_t i = 0; i < 8; i++) {
        const uint32_t bits = oct__f32_to_bits(x[i]) & OCT__F32_ABS_MASK;
        has_nan |= bits > OCT__F32_INF_BITS;
        amax = bits < OCT__F32_INF_BITS && bits > amax ? bits : amax;
    }
    amax = team_max_u32(amax, w->team);
    has_nan = team_max_u32(has_nan, w->team);
    if (at.page < 0) {
        return;
    }
    const float scale = vector_scale(layer, side, at, w->head, amax, has_nan, w->lane == 0);
    if (w->d < side->dim) {
        write_eight(layer, side, is_k, side_at(side, layer->layout, layer->page_size, is_k, at.page, at.token, w->head), w->head, w->d, x, scale, &own);
    }
    if (is_counted) {
        met->n_values += w->lane == 0 ? side->dim : 0;
        met->n_saturated += own.n_saturated;
        met->n_nan += own.n_nan;
        met->amax_bits = amax > met->amax_bits ? amax : met->amax_bits;
    }
}

/* ---- where and what ------------------------------------------------------------------------------------------------------------- */

DEV uint32_t slot_of(const int32_t *slots, const oct__kv_write_sm90a_params *p, const writer *w, uint64_t token)
{
    return w->is_mine && token < p->n_tokens ? (uint32_t)GET(slots[token]) : UINT32_MAX;
}

/* Turns x, of K; all lanes of the warp. */
DEV void turn(const oct__kv_write_sm90a_params *p, const writer *w, const float *cosine, const float *sine, float *staged_all, float *x)
{
    const oct__kv_write_params *p0 = &p->write;
    float *staged = staged_all + 8 * (tid() - w->lane);   /* the team's row */
    const uint32_t row = ((tid() >> p->team_shift) * p->head_magic >> 16) * (p0->rope_dims / 2);
    warp_sync();   /* the row before may still be read */
    UNROLL
    for (uint32_t i = 0; i < 8; i++) {
        SPUT(staged[w->d + i], x[i]);
    }
    warp_sync();
    if (w->is_mine) {
        UNROLL
        for (uint32_t i = 0; i < 8; i++) {
            if (w->d + i < p0->rope_dims) {
                x[i] = rope_one(p0, staged, cosine + row, sine + row, w->d + i);
            }
        }
    }
}

/* The lane's tokens into all destinations, all loads first. turned: of V5D's V (store_turned). Bit 4 r + 2 (destination) + (V) of the result: left to do. The same in a warp. */
DEV uint32_t write_tokens(const form f, const uint32_t src, const uint32_t rounds, const oct__kv_write_sm90a_params *p, const writer *w, const float *cosine,
                          const float *sine, float *staged, uint8_t *turned, write_met *met)
{
    const uint32_t words = src == OCT_DTYPE_F32 ? 8 : 4, n_ways = f == FORM_ANY ? p->n_ways : 1;
    uint32_t slot[2][WRITE_ROUNDS_MAX], raw[WRITE_ROUNDS_MAX * 2 * 4], left = 0;
    divisor s[2];
    UNROLL
    for (uint32_t r = 0; r < rounds; r++) {
        slot[0][r] = slot_of(p->slots[0], p, w, w->token + r * p->tokens_a_block);
        slot[1][r] = n_ways > 1 ? slot_of(p->slots[1], p, w, w->token + r * p->tokens_a_block) : UINT32_MAX;
    }
    UNROLL
    for (uint32_t side = 0; side < 2; side++) {
        s[side] = divisor_of(&p->way[0][side], w->is_mine ? w->head : 0);
    }
    UNROLL
    for (uint32_t r = 0; r < rounds; r++) {
        UNROLL
        for (uint32_t side = 0; side < 2; side++) {
            const oct__write_way *way = &p->way[0][side];
            const int is_there = (slot[0][r] < p->cut[0].capacity || slot[1][r] < p->cut[1].capacity) && w->d < way->dim;
            const uint8_t *from = way->from + (w->token + r * p->tokens_a_block) * way->from_token + (uint64_t)w->head * way->from_head + w->lane * (4 * words);
            UNROLL
            for (uint32_t i = 0; i < words / 4; i++) {
                u32x4 v = { 0, 0, 0, 0 };
                if (is_there) {
                    v = global_load_16(from + 16 * i);
                }
                uint32_t *to = raw + (2 * r + side) * words + 4 * i;
                to[0] = v.x;
                to[1] = v.y;
                to[2] = v.z;
                to[3] = v.w;
            }
        }
    }
    UNROLL
    for (uint32_t n = 0; n < 2; n++) {
        if (n < n_ways) {
            UNROLL
            for (uint32_t r = 0; r < rounds; r++) {
                const place at = place_cut(&p->cut[n], n == 0 ? p->page_size : p->page_size_window, slot[n][r]);
                UNROLL
                for (uint32_t side = 0; side < 2; side++) {
                    const oct__write_way *way = &p->way[n][side];
                    const uint32_t *from = raw + (2 * r + side) * words;
                    uint8_t *to = way->to + (uint64_t)w->head * way->to_head + (w->lane >> 1) * way->to_pair + (w->lane & 1) * way->to_odd;
                    float x[8];
                    UNROLL
                    for (uint32_t i = 0; i < words; i++) {
                        decode_word(from[i], src, x + (src == OCT_DTYPE_F32 ? 1 : 2) * i);
                    }
                    if (f == FORM_ANY && side == 0 && p->write.has_rope) {
                        turn(p, w, cosine, sine, staged, x);
                    }
                    to += (uint64_t)(uint32_t)at.page * way->to_page + (uint64_t)at.token * way->to_place;
                    left |= write_quick(f, way, w, p->heads, at, to, f == FORM_E4M3_V5D && side == 1 ? turned + (tid() >> p->team_shift) * turned_stride(w) + w->d : 0, n == 0 ? s[side] : divisor_of(way, w->is_mine ? w->head : 0), x,
                                        f == FORM_ANY && n == 0 ? p->is_counted : 0, met + side)
                            << (4 * r + 2 * n + side);
                }
            }
        }
    }
    return left;
}

typedef struct both_met { write_met of[2]; } both_met;

/* The other way: any source, any destination, any value. left: as of write_tokens. */
DEV both_met write_left(const oct__kv_write_sm90a_params *p, const writer *w, uint32_t left, const float *cosine, const float *sine, float *staged)
{
    const oct__kv_write_params *p0 = &p->write;
    both_met met = { { { 0, 0, 0, 0 }, { 0, 0, 0, 0 } } };
    NO_UNROLL
    for (uint32_t i = 0; left >> i != 0; i++) {
        if ((left >> i & 1) == 0) {
            continue;
        }
        const int is_k = i % 2 == 0, is_window = i / 2 % 2;
        const uint64_t token = w->token + i / 4 * p->tokens_a_block;
        const oct__dev_layer *layer = is_window ? &p0->window : &p0->layer;
        const oct__dev_side *side = is_k ? &layer->k : &layer->v;
        const place at = place_cut(is_window ? &p->cut[1] : &p->cut[0], layer->page_size, slot_of(is_window ? p->slots[1] : p->slots[0], p, w, token));
        float x[8] = { 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f };
        if (at.page >= 0 && w->d < side->dim) {
            const int64_t from = (int64_t)token * (is_k ? p0->k_token_stride : p0->v_token_stride) + w->head * (is_k ? p0->k_head_stride : p0->v_head_stride) + w->d;
            load_eight((const uint8_t *)(is_k ? p0->k : p0->v) + from * element_bytes(p0->src_dtype), p0->src_dtype, x);
        }
        if (is_k && p0->has_rope) {
            turn(p, w, cosine, sine, staged, x);
        }
        write_met own = { 0, 0, 0, 0 };
        write_slow(layer, side, is_k, w, at, x, !is_window && p->is_counted, &own);
        UNROLL
        for (uint32_t j = 0; j < 2; j++) {   /* no index of registers */
            const int is_it = is_k == (j == 0);
            met.of[j].n_values += is_it ? own.n_values : 0;
            met.of[j].n_saturated += is_it ? own.n_saturated : 0;
            met.of[j].n_nan += is_it ? own.n_nan : 0;
            met.of[j].amax_bits = is_it && own.amax_bits > met.of[j].amax_bits ? own.amax_bits : met.of[j].amax_bits;
        }
    }
    return met;
}

/* cosine, sine [tokens_a_block][rope_dims / 2]; all lanes of the block. */
DEV void turn_all(const oct__kv_write_sm90a_params *p, uint64_t token0, float *cosine, float *sine)
{
    const oct__kv_write_params *p0 = &p->write;
    const uint32_t n_pairs = p0->rope_dims / 2;
    NO_UNROLL
    for (uint32_t i = tid(); i < p->tokens_a_block * n_pairs; i += OCT__WRITE_SM90A_LANES) {
        const uint64_t token = token0 + i / n_pairs;
        float s = 0.0f, c = 1.0f;
        if (token < p->n_tokens) {
            rope_turn(p0, GET(p0->positions[token]), i % n_pairs, &s, &c);
        }
        SPUT(sine[i], s);
        SPUT(cosine[i], c);
    }
    block_sync();
}

/* The lane's part; *token0: the block's first token. */
DEV writer writer_of(const oct__kv_write_sm90a_params *p, uint64_t *token0)
{
    const uint32_t team = tid() >> p->team_shift, local = team * p->head_magic >> 16;
    uint64_t block = block_id();
    writer w;
    w.team = 1u << p->team_shift;
    w.lane = tid() & (w.team - 1);
    w.d = 8 * w.lane;
    w.head = team - local * p->heads_a_block;
    if (p->parts > 1) {
        const uint64_t of_tokens = block >> 32 == 0 ? (uint32_t)block / p->parts : block / p->parts;   /* 64 bits take several times as long */
        w.head += (uint32_t)(block - of_tokens * p->parts) * p->heads_a_block;
        block = of_tokens;
    }
    *token0 = block * (p->tokens_a_block * p->rounds);
    w.token = *token0 + local;
    w.is_mine = local < p->tokens_a_block && w.head < p->heads;
    return w;
}

/* Of the forms with a kernel of their own. A call, which finds out for itself where it is: what it were given would cost the kernel registers. */
SELDOM void write_rest(const oct__kv_write_sm90a_params *p, uint32_t left)
{
    uint64_t token0;
    const writer w = writer_of(p, &token0);
    (void)write_left(p, &w, left, 0, 0, 0);
}

/* A kernel's work. shared: of oct__write_sm90a_shared_bytes, with RoPE. turned: of FORM_E4M3_V5D. */
DEV void write_all(const form f, const oct__kv_write_sm90a_params *p, float *shared, uint8_t *turned)
{
    uint64_t token0;
    const writer w = writer_of(p, &token0);
    if (p->is_early) {
        wait_previous();
        launch_next();
    }
    if (p->refused != 0 && GET(*p->refused) != 0) {
        return;
    }
    write_met met[2] = { { 0, 0, 0, 0 }, { 0, 0, 0, 0 } };
    const uint32_t turns = f == FORM_ANY && p->write.has_rope ? p->tokens_a_block * (p->write.rope_dims / 2) : 0;
    /* Without turns shared may be NULL, to which C does not even allow 0 to be added. */
    float *sine = turns != 0 ? shared + turns : shared, *staged = turns != 0 ? sine + turns : shared;
    uint32_t left = p->n_ways == 2 ? 0xF : 3;
    if (f == FORM_ANY && p->write.has_rope) {
        turn_all(p, token0, shared, sine);
    }
    if (f == FORM_ANY && p->is_quick) {
        left = p->src_dtype == OCT_DTYPE_F32  ? write_tokens(f, OCT_DTYPE_F32, 1, p, &w, shared, sine, staged, turned, met)
             : p->src_dtype == OCT_DTYPE_BF16 ? write_tokens(f, OCT_DTYPE_BF16, 1, p, &w, shared, sine, staged, turned, met)
                                              : write_tokens(f, OCT_DTYPE_F16, 1, p, &w, shared, sine, staged, turned, met);
    } else if (f != FORM_ANY && p->src_dtype == OCT_DTYPE_BF16) {
        left = p->rounds == 2 ? write_tokens(f, OCT_DTYPE_BF16, 2, p, &w, shared, sine, staged, turned, met) : write_tokens(f, OCT_DTYPE_BF16, 1, p, &w, shared, sine, staged, turned, met);
    } else if (f != FORM_ANY) {
        left = p->rounds == 2 ? write_tokens(f, OCT_DTYPE_F16, 2, p, &w, shared, sine, staged, turned, met) : write_tokens(f, OCT_DTYPE_F16, 1, p, &w, shared, sine, staged, turned, met);
    }
    if (f == FORM_E4M3_V5D) {
        store_turned(p, &w, token0, turned);
    }
    if (f != FORM_ANY && left != 0) {
        write_rest(p, left);
    } else if (left != 0) {
        const both_met own = write_left(p, &w, left, shared, sine, staged);
        UNROLL
        for (uint32_t side = 0; side < 2; side++) {
            met[side].n_values += own.of[side].n_values;
            met[side].n_saturated += own.of[side].n_saturated;
            met[side].n_nan += own.of[side].n_nan;
            met[side].amax_bits = own.of[side].amax_bits > met[side].amax_bits ? own.of[side].amax_bits : met[side].amax_bits;
        }
    }
    if (f == FORM_ANY && p->is_counted) {
        UNROLL
        for (uint32_t side = 0; side < 2; side++) {
            oct_kv_counts *counts = side == 0 ? p->write.k_counts : p->write.v_counts;
            if (counts != 0) {
                met[side].amax_bits = oct__f32_to_bits(warp_max_f32(oct__f32_of_bits(met[side].amax_bits)));
                add_counts(counts, &met[side]);
            }
        }
    }
}

KERNEL(kv_write_sm90a, OCT__WRITE_SM90A_LANES, OCT__WRITE_SM90A_BLOCKS_ANY, oct__kv_write_sm90a_params)
{
    SHARED_DYNAMIC(float, shared);
    write_all(FORM_ANY, p, shared, 0);
}

KERNEL(kv_write_sm90a_e4m3, OCT__WRITE_SM90A_LANES, OCT__WRITE_SM90A_BLOCKS, oct__kv_write_sm90a_params)
{
    write_all(FORM_E4M3, p, 0, 0);
}

KERNEL(kv_write_sm90a_e4m3_v5d, OCT__WRITE_SM90A_LANES, OCT__WRITE_SM90A_BLOCKS, oct__kv_write_sm90a_params)
{
    SHARED(uint64_t, turned, OCT__WRITE_SM90A_LANES * 2);   /* heads of 8 dims: 256 rows of 16 bytes; larger ones have fewer */
    write_all(FORM_E4M3_V5D, p, 0, (uint8_t *)turned);
}

KERNEL(kv_write_sm90a_e4m3_token, OCT__WRITE_SM90A_LANES, OCT__WRITE_SM90A_BLOCKS, oct__kv_write_sm90a_params)
{
    write_all(FORM_E4M3_TOKEN, p, 0, 0);
}

KERNEL(kv_write_sm90a_i8_token, OCT__WRITE_SM90A_LANES, OCT__WRITE_SM90A_BLOCKS, oct__kv_write_sm90a_params)
{
    write_all(FORM_I8_TOKEN, p, 0, 0);
}

KERNEL(kv_write_sm90a_16, OCT__WRITE_SM90A_LANES, OCT__WRITE_SM90A_BLOCKS, oct__kv_write_sm90a_params)
{
    write_all(FORM_16, p, 0, 0);
}

#endif
