/* attn_mma.h: attention on the matrix units (tile.h), f32 state. 8-bit pages are multiplied as they are stored where the chip does that (attn_score.h, tile_b_of_codes), q
 * and the weights then being pairs of codes; else they become f16 exactly, and q and the weights are rounded to f16 (bf16 over bf16 pages). Keys come through attn_ring.h, 16 at a time.
 *
 * Decode: the warps of a block take turns at the tiles of the span, each with a running state of its own for all vectors of the block (TILE_VECTORS);
 * the states are merged at the end, so that nothing waits inside the loop but for memory. Extend: the warps share the keys and each has
 * vectors of its own, MMA_N tiles of them.
 *
 * One kernel for each size of K's and V's elements, and for dims of up to 128 and 256: what a lane holds is then a constant.
 *
 * Measured on an H200, decode of e4m3 pages, 32/8 heads x 128 dims, cold cache, share of the read bandwidth measured in the same run (4.35 TB/s), for
 * 8 sequences x 65,536 keys and 128 x 4,096:
 *   portable kernel (64 x 4,096)                                                             13 %
 *   fragments loaded straight into registers, a tile ahead                                   not measured: spills
 *   rings of three tiles by cp.async, 12 warps a multiprocessor                              49, 49 %
 *   no division by powers of two, addresses of fetches by increments, visibility and scales
 *   looked at only where there are any; some 1000 instructions a tile become 740              61, 58 %
 *   two chains of products for the scores, first pages asked for together                     62, 60 %
 *   5 instead of 8 blocks a multiprocessor wanted of the splits: a block costs some 10 us     62, 65 %
 *   (with what V's NaN took since: 59, 63 %)
 *   copies told their size in tiles that lack a key alone, no step to new maxima where none
 *   grows, exp2 without subnormals; 700 instructions a tile become 540                        69, 71 %
 * 16 warps with two tiles in the ring, 88 bytes spilled: 58, 71 %. The last kernel waits for memory in 2 % of the samples: 32 are results of fixed latency that 12 warps do not
 * cover, 13 shared memory and shuffles, 11 fetches of instructions (it walks around code of other formats), 18 are issues. 16-bit pages, twice the bytes for about the
 * same instructions, reach 82 %. Next would be two tiles a turn. Hopper's own kernel (src/cuda) does more. Extend, 4,096 rows of one sequence: 61
 * TFLOP/s, 8 with the portable kernel. */
#ifndef OCT_DEVICE_ATTN_MMA_H
#define OCT_DEVICE_ATTN_MMA_H

#include "device/attn_finish.h"
#include "device/attn_score.h"

/* ---- output --------------------------------------------------------------------------------------------------------------------------- */

/* What sums over V of this format come out multiplied by, inverted. */
DEV float mma_weight_unit(uint32_t dtype)
{
    return TILE_FP8(OCT_DTYPE_E4M3FN) && dtype == OCT_DTYPE_E4M3FN ? 1.0f / TILE_WEIGHT_UNIT(OCT_DTYPE_E4M3FN)
           : TILE_FP8(OCT_DTYPE_E4M3FNUZ) && dtype == OCT_DTYPE_E4M3FNUZ ? 1.0f / TILE_WEIGHT_UNIT(OCT_DTYPE_E4M3FNUZ)
                                                                        : 1.0f;
}

/* The lane's part of a group of runs: of each of its four keys a run of dims. */
DEV void mma_take_v(uint8_t *rows, const mma_form f, uint32_t g, uint32_t *v)
{
    const uint32_t bytes = TILE_V_RUN(f.v_size) * f.v_size, at = (g * TILE_V_POSITIONS + tile_v_position()) * bytes;
    UNROLL
    for (uint32_t i = 0; i < 4; i++) {
        uint8_t *from = ring_chunk(rows, form_v_row(f), tile_v_key(i), at / 16) + at % 16;
        if (bytes == 16) {
            const u32x4 x = shared_load_16(from);
            v[4 * i] = x.x;
            v[4 * i + 1] = x.y;
            v[4 * i + 2] = x.z;
            v[4 * i + 3] = x.w;
        } else {
            const u32x2 x = shared_load_8(from);
            v[2 * i] = x.x;
            v[2 * i + 1] = x.y;
        }
    }
}

/* o += V^T P of one group of runs, for all of the warp's vectors. is_parted: in pass 0 of finite elements alone; in pass 1 + key of those of the key that are
 * not, for the vectors that see it (mask). */
DEV void mma_add_group(const uint32_t *v, const uint32_t *b, const uint32_t dtype, const mma_form f, const int is_parted, uint32_t pass, const uint32_t *mask,
                       float *o)
{
    const uint32_t run = TILE_V_RUN(f.v_size), words = run * f.v_size / 4;
    uint32_t pair[2 * 16];
    UNROLL
    for (uint32_t w = 0; w < words; w++) {
        uint32_t word[4];
        UNROLL
        for (uint32_t i = 0; i < 4; i++) {
            word[i] = v[i * words + w];
            if (is_parted) {
                const uint32_t odd = word_odd_codes(word[i], dtype);
                word[i] &= pass == 0 ? ~odd : tile_v_key(i) + 1 == pass ? odd : 0;
            }
        }
        if (TILE_FP8(dtype)) {
            tile_quads(word, pair + 4 * w);
        } else {
            tile_pairs(word[0], word[1], dtype, pair + w * (4 / f.v_size));
            tile_pairs(word[2], word[3], dtype, pair + run + w * (4 / f.v_size));
        }
    }
    UNROLL
    for (uint32_t m = 0; m < TILE_M(run); m++) {
        uint32_t a[TILE_A];
        if (TILE_FP8(dtype)) {
            tile_a_of_quads(pair, m, a);
        } else {
            tile_a_of_v(pair, run, m, a);
        }
        UNROLL
        for (uint32_t n = 0; n < form_n(f); n++) {
            float sum[4];
            UNROLL
            for (uint32_t i = 0; i < 4; i++) {
                sum[i] = o[n * FORM_O(f) + 4 * m + i];
            }
            if (TILE_FP8(dtype)) {
                tile_mma_fp8(sum, a, b + 2 * n, dtype, 1);
            } else {
                tile_mma(sum, a, b + 2 * n, dtype == OCT_DTYPE_BF16);
            }
            UNROLL
            for (uint32_t i = 0; i < 4; i++) {
                float *to = o + n * FORM_O(f) + 4 * m + i;
                *to = !is_parted || pass == 0 || (mask[n * TILE_OWN + tile_own(i)] >> (pass - 1) & 1) ? sum[i] : *to;
            }
        }
    }
}

/* o += V^T P. weight: of the lane's scores; < 0 where the vector does not see the key. is_irregular: some weight is.
 * 0 x NaN must not be: where a key is seen by some vectors only, and some V of the tile is not finite, finite elements are added first, with 0 for the others, and
 * those then key by key, each to the vectors that see it: no bit moves of a vector that does not see such a key, since its sums are added as ever. */
DEV void mma_output(uint8_t *rows, const float *weight, const uint32_t dtype, const mma_form f, uint32_t is_irregular, float *o)
{
    const uint32_t words = TILE_V_RUN(f.v_size) * f.v_size / 4, o_of_group = TILE_M(TILE_V_RUN(f.v_size)) * 4;
    uint32_t b[2 * MMA_N_MAX], odd = 0, mask[MMA_N_MAX * TILE_OWN], v[16];
    UNROLL
    for (uint32_t n = 0; n < form_n(f); n++) {
        float p[4];
        UNROLL
        for (uint32_t i = 0; i < 4; i++) {
            p[i] = weight[4 * n + i] < 0.0f ? 0.0f : weight[4 * n + i];
        }
        if (TILE_FP8(dtype)) {
            tile_b_of_codes(p, dtype, b + 2 * n);
        } else {
            tile_b_of_weights(p, dtype == OCT_DTYPE_BF16, b + 2 * n);
        }
    }
    if (is_irregular && dtype != OCT_DTYPE_I8) {
        UNROLL
        for (uint32_t g = 0; g < FORM_GV(f); g++) {
            mma_take_v(rows, f, g, v);
            UNROLL
            for (uint32_t w = 0; w < 4 * words; w++) {
                odd |= word_is_odd(v[w], dtype);
            }
        }
        odd = warp_any(odd);
    }
    UNROLL
    for (uint32_t j = 0; j < MMA_N_MAX * TILE_OWN; j++) {
        mask[j] = 0;
    }
    if (odd == 0) {
        UNROLL
        for (uint32_t g = 0; g < FORM_GV(f); g++) {
            mma_take_v(rows, f, g, v);
            mma_add_group(v, b, dtype, f, 0, 0, mask, o + g * o_of_group);
        }
        return;
    }
    UNROLL
    for (uint32_t i = 0; i < 4 * form_n(f); i++) {
        mask[i / 4 * TILE_OWN + tile_own(i % 4)] |= (weight[i] < 0.0f ? 0u : 1u) << tile_s_key(i % 4);
    }
    UNROLL
    for (uint32_t j = 0; j < form_n(f) * TILE_OWN; j++) {
        UNROLL
        for (uint32_t lanes = WARP == 32 ? 4 : 16; lanes < WARP; lanes *= 2) {
            mask[j] |= shfl_xor_u32(mask[j], lanes);
        }
    }
    NO_UNROLL
    for (uint32_t pass = 0; pass <= TILE_KEYS; pass++) {
        UNROLL
        for (uint32_t g = 0; g < FORM_GV(f); g++) {
            mma_take_v(rows, f, g, v);
            mma_add_group(v, b, dtype, f, 1, pass, mask, o + g * o_of_group);
        }
    }
}

/* ---- the tile --------------------------------------------------------------------------------------------------------------------------- */

/* q of the vectors in f32: rotated as K is, times K's channel scales; then brought to [1, 2) by a power of two, which goes into the score's factor,
 * so that f16 holds it whatever its size. Vectors that do not exist are 0. All warps of the block. */
DEV void mma_bring_q(const mma_tile *t, const mma_form f)
{
    const oct__attn_params *p = t->p;
    const uint32_t dim = p->layer.k.dim, q_bytes = element_bytes(p->q_dtype);
    NO_UNROLL
    for (uint32_t v = tid() / WARP; v < form_vectors(f); v += MMA_WARPS) {
        float x[ROW_FLOATS], amax = 0.0f;
        uint32_t odd = 0;
        UNROLL
        for (uint32_t i = 0; i < ROW_FLOATS; i++) {
            x[i] = 0.0f;
        }
        if (v < t->n_vectors) {
            const int64_t at = (t->row0 + v / t->cut.n_heads) * p->q_row_stride + (int64_t)(t->cut.head0 + v % t->cut.n_heads) * p->q_head_stride;
            row_load(x, (const uint8_t *)p->q + at * q_bytes, p->q_dtype, q_bytes, dim);
            if (p->layer.k.rotated) {
                row_rotate(x, dim);
            }
            if (p->layer.k.scale_mode == OCT_SCALE_CHANNEL) {
                row_scale(x, p->layer.k.scale + (uint64_t)t->cut.head_kv * dim, dim);
            }
        }
        UNROLL
        for (uint32_t i = 0; i < ROW_FLOATS; i++) {
            const uint32_t bits = oct__f32_to_bits(x[i]) & OCT__F32_ABS_MASK;
            amax = max_f32(amax, bits < OCT__F32_INF_BITS ? oct__f32_of_bits(bits) : 0.0f);
            odd |= bits >= OCT__F32_INF_BITS;
        }
        amax = warp_max_f32(amax);
        const float nan = oct__f32_of_bits(OCT__F32_QNAN_BITS);
        odd = mma_takes_codes(p->layer.k.dtype) && warp_any(odd);
        uint32_t exponent = oct__f32_to_bits(amax) >> 23;   /* of the largest, biased */
        exponent = exponent < 2 ? 2 : exponent > 252 ? 252 : exponent;
        exponent = amax > 0.0f ? exponent : 127;
        const float shrink = oct__f32_of_bits((254 - exponent) << 23);
        UNROLL
        for (uint32_t i = 0; i < ROW_FLOATS; i++) {
            const uint32_t d = row_element(i / 8) + i % 8;
            if (d < f.dim) {
                SPUT(t->q[v * f.dim + d], x[i] * shrink);
            }
        }
        if (tid() % WARP == 0) {
            SPUT(t->factor[v], odd ? nan : oct__f32_of_bits(exponent << 23));
        }
    }
}

DEV int mma_sees(const mma_tile *t, uint32_t row, int32_t key)
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

/* A warp's running state. */
typedef struct mma_state {
    float m[MMA_N_MAX * TILE_OWN], z[MMA_N_MAX * TILE_OWN];   /* z: of the lane's own keys */
    float unit;                       /* o is in units of it: a power of two >= the V scales met, so that weights stay within f16 */
} mma_state;

/* The unit moves up only, and then by whole powers of two. A scale of NaN or infinity is none: its weights are NaN or infinite anyway. Returns what
 * sums so far are to be multiplied by. All lanes of the warp. */
DEV float mma_grow_unit(mma_state *state, float largest)
{
    float grow = 1.0f;
    largest = warp_max_f32(oct__f32_bits_are_finite(oct__f32_to_bits(largest)) ? largest : 0.0f);
    if (largest > state->unit) {
        uint32_t exponent = (oct__f32_to_bits(largest) >> 23) + 1;
        exponent = exponent > 252 ? 252 : exponent;
        const float unit = oct__f32_of_bits(exponent << 23);
        grow = state->unit > 0.0f ? state->unit / unit : 0.0f;
        state->unit = unit;
    }
    return grow;
}

/* From raw scores to weights (-1: unseen); the state and the sums o move on to the new maxima. Returns whether some vector does not see some key of the tile. */
DEV uint32_t mma_weights(const mma_tile *t, const ring *r, const mma_form f, uint32_t n, mma_state *state, float *s, float *o)
{
    const oct__attn_params *p = t->p;
    const uint32_t note = n % RING_NOTES;
    const uint32_t base = ring_key(r, n, 0);
    const int is_open = base >= t->open0 && base + TILE_KEYS <= t->open1;
    const int has_k = p->layer.k.scale_mode == OCT_SCALE_TOKEN_HEAD, has_v = p->layer.v.scale_mode == OCT_SCALE_TOKEN_HEAD;
    float v_factor[4];
    float grow = 1.0f;
    uint32_t unseen = 0, is_there[4], is_seen[4 * MMA_N_MAX];
    UNROLL
    for (uint32_t i = 0; i < 4; i++) {
        is_there[i] = SGET(r->there[note * TILE_KEYS + tile_s_key(i)]);
        v_factor[i] = 1.0f;
    }
    UNROLL
    for (uint32_t i = 0; i < 4 * form_n(f); i++) {
        float factor = t->own_factor[i / 4 * TILE_OWN + tile_own(i % 4)];
        if (has_k) {
            factor *= SGET(r->scale[note * 2 * TILE_KEYS + tile_s_key(i % 4)]);   /* first: q of 2^127 times K's codes would be infinite, and is not once scaled */
        }
        s[i] *= factor;
        is_seen[i] = is_there[i % 4];
    }
    if (p->softcap > 0.0f) {
        UNROLL
        for (uint32_t i = 0; i < 4 * form_n(f); i++) {
            s[i] = p->softcap * tanh_f32(s[i] / p->softcap);
        }
    }
    if (!is_open) {
        UNROLL
        for (uint32_t i = 0; i < 4 * form_n(f); i++) {
            const uint32_t own = i / 4 * TILE_OWN + tile_own(i % 4);
            if (is_seen[i] && t->is_own[own]) {
                is_seen[i] = (uint32_t)mma_sees(t, t->own_row[own], (int32_t)(base + tile_s_key(i % 4)));
            }
        }
    }
    UNROLL
    for (uint32_t i = 0; i < 4 * form_n(f); i++) {
        is_seen[i] &= s[i] != OCT__MINUS_INF ? 1u : 0u;
        s[i] = is_seen[i] ? s[i] : OCT__MINUS_INF;
        unseen |= is_there[i % 4] & ~is_seen[i];
    }
    if (has_v) {
        float largest = 0.0f;
        UNROLL
        for (uint32_t i = 0; i < 4; i++) {
            uint32_t is_seen_by_any = 0;
            UNROLL
            for (uint32_t j = 0; j < form_n(f); j++) {
                is_seen_by_any |= is_seen[4 * j + i];
            }
            v_factor[i] = SGET(r->scale[(note * 2 + 1) * TILE_KEYS + tile_s_key(i)]);
            largest = is_seen_by_any ? max_f32(largest, v_factor[i]) : largest;
        }
        grow = mma_grow_unit(state, largest);
        const float inverse = state->unit > 0.0f ? 1.0f / state->unit : 0.0f;
        UNROLL
        for (uint32_t i = 0; i < 4; i++) {
            v_factor[i] *= inverse;
        }
    }
    float m[MMA_N_MAX * TILE_OWN];
    uint32_t moves = grow != 1.0f;
    UNROLL
    for (uint32_t i = 0; i < form_n(f); i++) {
        tile_max_over_keys(s + 4 * i, m + i * TILE_OWN);
    }
    UNROLL
    for (uint32_t own = 0; own < form_n(f) * TILE_OWN; own++) {
        m[own] = max_f32(m[own], state->m[own]);
        moves |= m[own] != state->m[own];
    }
    if (warp_any(moves)) {   /* seldom, once some keys have been seen */
        float alpha[MMA_N_MAX * TILE_OWN];
        UNROLL
        for (uint32_t own = 0; own < form_n(f) * TILE_OWN; own++) {
            const float keep = weight_of(state->m[own], m[own]);
            alpha[own] = keep * grow;
            state->z[own] *= keep;
            state->m[own] = m[own];
        }
        UNROLL
        for (uint32_t i = 0; i < form_n(f) * FORM_O(f); i++) {
            o[i] *= alpha[i / FORM_O(f) * TILE_OWN + tile_own(i % 4)];
        }
    }
    UNROLL
    for (uint32_t i = 0; i < 4 * form_n(f); i++) {
        const uint32_t own = i / 4 * TILE_OWN + tile_own(i % 4);
        const float x = is_seen[i] ? exp2_f32((s[i] - m[own]) * LOG2_E) : 0.0f;
        state->z[own] += x;
        s[i] = is_seen[i] ? x * v_factor[i % 4] : -1.0f;
    }
    return warp_any(unseen);
}

/* Formats become constants here. */
DEV void mma_output_of(uint8_t *rows, const float *weight, uint32_t dtype, const mma_form f, uint32_t is_irregular, float *o)
{
    if (f.v_size == 1) {
        switch (dtype) {
        case OCT_DTYPE_E4M3FN:
            mma_output(rows, weight, OCT_DTYPE_E4M3FN, f, is_irregular, o);
            break;
        case OCT_DTYPE_E4M3FNUZ:
            mma_output(rows, weight, OCT_DTYPE_E4M3FNUZ, f, is_irregular, o);
            break;
        case OCT_DTYPE_E5M2:
            mma_output(rows, weight, OCT_DTYPE_E5M2, f, is_irregular, o);
            break;
        default:
            mma_output(rows, weight, OCT_DTYPE_I8, f, is_irregular, o);
            break;
        }
    } else if (dtype == OCT_DTYPE_F16) {
        mma_output(rows, weight, OCT_DTYPE_F16, f, is_irregular, o);
    } else {
        mma_output(rows, weight, OCT_DTYPE_BF16, f, is_irregular, o);
    }
}

/* The warps' states into o [vector][dim] (in q's place; what lies past V's dim is nobody's), m and z: of the block in warp order, or each warp's own. All warps; ends synced. */
DEV void mma_gather(const mma_tile *t, const mma_form f, const mma_state *state, const float *o)
{
    const uint32_t warp = tid() / WARP, run = TILE_V_RUN(f.v_size), m_tiles = TILE_M(run);
    float z[MMA_N_MAX * TILE_OWN], scale[MMA_N_MAX * TILE_OWN];
    int is_empty[MMA_N_MAX * TILE_OWN];
    UNROLL
    for (uint32_t i = 0; i < form_n(f); i++) {
        UNROLL
        for (uint32_t j = 0; j < TILE_OWN; j++) {
            z[i * TILE_OWN + j] = state->z[i * TILE_OWN + j];
        }
        tile_sum_over_keys(z + i * TILE_OWN);
        /* One lane speaks for each vector: the first of those that own it. */
        if (WARP == 32 ? tid() % WARP < 4 : tid() % WARP < 16) {
            UNROLL
            for (uint32_t j = 0; j < TILE_OWN; j++) {
                const uint32_t at = (f.is_extend ? 0 : warp * TILE_VECTORS) + mma_vector(t, i, j);
                SPUT(t->m[at], state->m[i * TILE_OWN + j]);
                SPUT(t->z[at], z[i * TILE_OWN + j]);
            }
        }
    }
    block_sync();
    UNROLL
    for (uint32_t j = 0; j < form_n(f) * TILE_OWN; j++) {
        float m = state->m[j];
        if (!f.is_extend) {
            UNROLL
            for (uint32_t w = 0; w < MMA_WARPS; w++) {
                m = max_f32(m, SGET(t->m[w * TILE_VECTORS + mma_vector(t, 0, j)]));
            }
        }
        scale[j] = weight_of(state->m[j], m) * state->unit * mma_weight_unit(t->p->layer.v.dtype);
        is_empty[j] = state->m[j] == OCT__MINUS_INF && z[j] == 0.0f;
    }
    NO_UNROLL
    for (uint32_t w = 0; w < (f.is_extend ? 1 : MMA_WARPS); w++) {
        if (f.is_extend || w == warp) {
            UNROLL
            for (uint32_t e = 0; e < form_n(f) * FORM_O(f); e++) {
                const uint32_t n = e / FORM_O(f), in = e % FORM_O(f), own = n * TILE_OWN + tile_own(in % 4);
                const uint32_t d = in / (4 * m_tiles) * (run * TILE_V_POSITIONS) + tile_o_dim(run, in / 4 % m_tiles, in % 4);
                float *to = t->q + mma_vector(t, n, tile_own(in % 4)) * f.dim + d;
                /* A warp without a key has nothing but zeros to give. */
                SPUT(*to, (w == 0 ? 0.0f : SGET(*to)) + (is_empty[own] ? 0.0f : o[e] * scale[own]));
            }
        }
        block_sync();
    }
}

/* m and z of a vector of the block. All lanes of a warp. */
DEV void mma_total(const mma_tile *t, const mma_form f, uint32_t vector, float *m, float *z)
{
    if (f.is_extend) {
        *m = SGET(t->m[vector]);
        *z = SGET(t->z[vector]);
        return;
    }
    *m = OCT__MINUS_INF;
    *z = 0.0f;
    UNROLL
    for (uint32_t w = 0; w < MMA_WARPS; w++) {
        *m = max_f32(*m, SGET(t->m[w * TILE_VECTORS + vector]));
    }
    UNROLL
    for (uint32_t w = 0; w < MMA_WARPS; w++) {
        const float own_m = SGET(t->m[w * TILE_VECTORS + vector]), own_z = SGET(t->z[w * TILE_VECTORS + vector]);
        *z += own_z == 0.0f ? 0.0f : own_z * weight_of(own_m, *m);
    }
}

/* The warp's keys, one tile after the other. */
DEV void mma_walk(const mma_tile *t, ring *r, const mma_form f, u32x4 *held, const uint32_t *q, mma_state *state, float *o)
{
    const oct__attn_params *p = t->p;
    const int has_vectors = t->vector0 < t->n_vectors;
    NO_UNROLL
    for (uint32_t n = 0; ring_key(r, n, 0) < r->key1; n++) {
        float s[4 * MMA_N_MAX];
        ring_turn(r, f, n, held);
        const uint32_t base = ring_key(r, n, 0);
        if (f.is_extend && (!has_vectors || base >= t->some1 || base + TILE_KEYS <= t->some0)) {
            continue;
        }
        uint8_t *rows = ring_slot(r, f, n);
        mma_scores_of(t, rows, q, p->layer.k.dtype, f, s);
        const uint32_t is_irregular = mma_weights(t, r, f, n, state, s, o);
        mma_output_of(rows + TILE_KEYS * form_k_row(f), s, p->layer.v.dtype, f, is_irregular, o);
    }
}

DEV void mma_run(mma_tile *t, ring *r, const oct__dev_task *task, uint32_t head_tile, const mma_form f)
{
    const oct__attn_params *p = t->p;
    const uint32_t warp = tid() / WARP;
    const int32_t n_splits = GET(task->n_splits);
    uint32_t q[MMA_N_MAX * 32];
    float o[MMA_N_MAX * 64];
    u32x4 held[RING_HELD_MAX];
    mma_state state;

    ring_begin(r, f, held);   /* the first keys are on their way while q is brought */
    mma_bring_q(t, f);
    block_sync();
    mma_take_q_of(t, p->layer.k.dtype, f, q);
    UNROLL
    for (uint32_t i = 0; i < form_n(f) * TILE_OWN; i++) {
        const uint32_t vector = mma_vector(t, i / TILE_OWN, i % TILE_OWN);
        t->is_own[i] = vector < t->n_vectors;
        t->own_row[i] = vector / t->cut.n_heads;
        t->own_factor[i] = SGET(t->factor[vector]) * (mma_q_unit(p->layer.k.dtype) * p->sm_scale * (p->q_scale != 0 ? GET(*p->q_scale) : 1.0f) * static_scale(&p->layer.k, t->cut.head_kv));
        state.m[i] = OCT__MINUS_INF;
        state.z[i] = 0.0f;
    }
    state.unit = p->layer.v.scale_mode == OCT_SCALE_TOKEN_HEAD ? 0.0f : 1.0f;
    UNROLL
    for (uint32_t i = 0; i < form_n(f) * FORM_O(f); i++) {
        o[i] = 0.0f;
    }
    if (FORM_Q_IS_SHARED(f)) {
        block_sync();         /* q has been read */
        if (f.is_extend || warp == 0) {
            UNROLL
            for (uint32_t i = 0; i < form_n(f) * FORM_Q(f); i += 2) {
                const u32x2 two = { q[i], q[i + 1] };
                shared_store_8(mma_q_fragment(t, f, i / 2), two);
            }
        }
        block_sync();
    }
    mma_walk(t, r, f, held, q, &state, o);
    mma_gather(t, f, &state, o);
    NO_UNROLL
    for (uint32_t vector = warp; vector < t->n_vectors; vector += MMA_WARPS) {
        float x[ROW_FLOATS], m, z;
        mma_total(t, f, vector, &m, &z);
        UNROLL
        for (uint32_t i = 0; i < ROW_FLOATS; i++) {
            const uint32_t d = row_element(i / 8) + i % 8;
            x[i] = d < f.dim ? SGET(t->q[vector * f.dim + d]) : 0.0f;
        }
        if (n_splits > 1) {
            store_state(p, GET(task->partial), head_tile, vector, x, m, z);
        } else {
            finish_row(p, t->row0 + vector / t->cut.n_heads, t->cut.head0 + vector % t->cut.n_heads, t->cut.head_kv, x, m, z);
        }
    }
    block_sync();   /* before the next tile takes the shared memory */
}

/* Which keys need no look at positions, and which no look at all. */
DEV void mma_bound_keys(mma_tile *t, const ring *r, const mma_form f)
{
    const oct__attn_params *p = t->p;
    const uint32_t end = t->vector0 + (f.is_extend ? form_n(f) * TILE_VECTORS : t->n_vectors);
    const int64_t first = (int64_t)t->pos0 + t->vector0 / t->cut.n_heads;
    const int64_t last = (int64_t)t->pos0 + ((end < t->n_vectors ? end : t->n_vectors) - 1) / t->cut.n_heads;
    int64_t open0 = r->key0, open1 = r->key1, some0 = open0, some1 = open1;
    if (p->causal) {
        open1 = open1 < first + 1 ? open1 : first + 1;
        some1 = some1 < last + 1 ? some1 : last + 1;
    }
    if (p->window > 0) {
        open0 = open0 > last + 1 - (int64_t)p->window ? open0 : last + 1 - (int64_t)p->window;
        some0 = some0 > first + 1 - (int64_t)p->window ? some0 : first + 1 - (int64_t)p->window;
    }
    if (p->mask != 0 && open1 > t->mask_key0) {
        open1 = t->mask_key0;
    }
    t->open0 = (uint32_t)open0;
    t->open1 = open1 < 0 ? 0u : (uint32_t)open1;
    t->some0 = (uint32_t)some0;
    t->some1 = some1 < 0 ? 0u : (uint32_t)some1;
}

DEV void mma_blocks(const oct__attn_params *p, uint8_t *shared, const mma_form f)
{
    const uint64_t n_work = (uint64_t)GET(p->plan->n_tasks[p->op]) * p->n_head_tiles;
    const oct__mma_shared at = oct__mma_shared_of(WARP, f.k_size, f.v_size, f.dim, f.is_extend);
    const uint32_t warp = tid() / WARP, own_ring = f.is_extend ? 0 : warp;
    NO_UNROLL
    for (uint64_t work = block_id(); work < n_work; work += block_count()) {
        const oct__dev_task *task = p->tasks + work / p->n_head_tiles;
        const uint32_t head_tile = (uint32_t)(work % p->n_head_tiles);
        const uint32_t sequence = (uint32_t)GET(task->sequence);
        mma_tile t;
        ring r;
        t.p = r.p = p;
        t.cut = head_cut_of(p, head_tile);
        t.row0 = GET(task->row0);
        t.pos0 = GET(task->pos0);
        t.n_vectors = (uint32_t)GET(task->n_rows) * t.cut.n_heads;
        t.vector0 = f.is_extend ? warp * form_n(f) * TILE_VECTORS : 0;
        t.mask_key0 = t.pos0 - (int32_t)(t.row0 - GET(p->batch.qo_indptr[sequence]));   /* kv_len - the sequence's rows */
        t.q = (float *)(shared + at.q);
        t.factor = (float *)(shared + at.factor);
        t.m = (float *)(shared + at.m);
        t.z = (float *)(shared + at.z);
        r.pages = batch_pages(&p->batch, sequence);
        r.head_kv = t.cut.head_kv;
        r.key0 = (uint32_t)GET(task->key0);
        r.key1 = (uint32_t)GET(task->key1);
        r.first = (r.key0 / TILE_KEYS + own_ring) * TILE_KEYS;
        r.stride = (f.is_extend ? 1 : MMA_WARPS) * TILE_KEYS;
        r.slots = shared + at.slots + own_ring * (RING_SLOTS(form_stage(f)) * form_stage(f));
        r.at = (int64_t *)(shared + at.at) + own_ring * (RING_NOTES * 2 * TILE_KEYS);
        r.there = (uint32_t *)(shared + at.there) + own_ring * (RING_NOTES * TILE_KEYS);
        r.scale = (float *)(shared + at.scale) + own_ring * (RING_NOTES * 2 * TILE_KEYS);
        mma_bound_keys(&t, &r, f);
        mma_run(&t, &r, task, head_tile, f);
    }
}

/* attn_decode_mma_<bits of K>_<bits of V>_<dims>, attn_extend_mma_... */
#define MMA_KERNEL(name, k_bits, v_bits, dim, is_extend, blocks)                                                   \
    KERNEL(name##_mma_##k_bits##_##v_bits##_##dim, OCT__MMA_LANES, blocks, oct__attn_params)                          \
    {                                                                                                                \
        const mma_form form = { k_bits / 8, v_bits / 8, dim, is_extend };                                            \
        SHARED_DYNAMIC(uint8_t, shared);                                                                             \
        mma_blocks(p, shared, form);                                                                                 \
    }
MMA_KERNEL(attn_decode, 8, 8, 128, 0, 3)
MMA_KERNEL(attn_decode, 8, 8, 256, 0, 2)
MMA_KERNEL(attn_decode, 8, 16, 128, 0, 2)
MMA_KERNEL(attn_decode, 8, 16, 256, 0, 2)
MMA_KERNEL(attn_decode, 16, 8, 128, 0, 2)
MMA_KERNEL(attn_decode, 16, 8, 256, 0, 2)
MMA_KERNEL(attn_decode, 16, 16, 128, 0, 2)
MMA_KERNEL(attn_decode, 16, 16, 256, 0, 2)
MMA_KERNEL(attn_extend, 8, 8, 128, 1, 2)
MMA_KERNEL(attn_extend, 8, 8, 256, 1, 2)
MMA_KERNEL(attn_extend, 16, 16, 128, 1, 2)
MMA_KERNEL(attn_extend, 16, 16, 256, 1, 2)

#endif
