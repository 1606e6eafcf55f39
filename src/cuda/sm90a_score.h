/* sm90a_score.h: scores and weights of a tile of attn_decode_sm90a.h. */
#ifndef OCT_CUDA_SM90A_SCORE_H
#define OCT_CUDA_SM90A_SCORE_H

#include "cuda/sm90a_ring.h"

/* ---- scores ---------------------------------------------------------------------------------------------------------------------------- */

/* s: [blocks][16 keys each][4] = K q of the tile, raw. */
DEV void sm90_scores(const sm90_warp *t, shared_at tile, const uint32_t *q, shared_at q_at, const sm90_kind k, const uint32_t dtype, float *s)
{
    const uint32_t steps = k.k_size == 1 ? 4 : 2, row_bytes = k.dim * k.k_size, parts = k.keys / 16;
    const uint32_t own = (t->lane / 4 * row_bytes + t->lane % 4 * 16) ^ (sm90_swizzle(t->lane / 4, row_bytes) * 16);
    const uint32_t first = t->lane / 4 * row_bytes ^ (sm90_swizzle(t->lane / 4, row_bytes) * 16);
    const uint32_t chains = k.blocks == 1 ? 2 : 1;   /* of products that wait for each other, beside those of other blocks */
    float other[2 * 2 * 4];
    UNROLL
    for (uint32_t i = 0; i < k.blocks * parts * 4; i++) {
        s[i] = other[i] = 0.0f;
    }
    UNROLL
    for (uint32_t u = 0; u < row_bytes / 64; u++) {
        if (k.halves == 1 || u * (64 / k.k_size) < t->k_dim) {   /* a cut that pays: dims of 192 */
            u32x4 row[2][2];
            /* Past dim nothing was copied: the row's first chunk instead, where a NaN makes the score NaN anyway. An infinity would not, so a format that
             * has some gets zeros. */
            const uint32_t is_past = (t->lane % 4 + 4 * u) * (16 / k.k_size) >= t->k_dim;
            const shared_at at = tile + (is_past ? first : (own ^ (u % 2 * 64)) + u / 2 * 128);
            UNROLL
            for (uint32_t m = 0; m < parts; m++) {
                UNROLL
                for (uint32_t h = 0; h < 2; h++) {
                    row[m][h] = shared_read_16(at + (m * 16 + h * 8) * row_bytes);
                }
            }
            if (dtype != OCT_DTYPE_E4M3FN && dtype != OCT_DTYPE_E4M3FNUZ && dtype != OCT_DTYPE_I8 && (u + 1) * (64 / k.k_size) > t->k_dim && is_past) {
                const u32x4 none = { 0, 0, 0, 0 };
                UNROLL
                for (uint32_t m = 0; m < parts; m++) {
                    row[m][0] = row[m][1] = none;
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
                        tile_mma(n % chains == 0 ? s + (c * parts + m) * 4 : other + (c * parts + m) * 4, a, b[c], dtype == OCT_DTYPE_BF16);
                    }
                }
            }
        }
    }
    UNROLL
    for (uint32_t i = 0; i < k.blocks * parts * 4 && chains == 2; i++) {
        s[i] += other[i];
    }
}

/* ---- weights ---------------------------------------------------------------------------------------------------------------------------- */

DEV uint32_t sm90_sees(const sm90_warp *t, const sm90_rows *r, int32_t mask_key0, uint32_t row, int32_t key)
{
    const oct__attn_params *p = t->p;
    const int64_t position = (int64_t)r->pos0 + row;
    if ((p->causal && key > position) || (p->window > 0 && position - key >= (int64_t)p->window)) {
        return 0;
    }
    if (p->mask != 0 && key >= mask_key0) {
        const int64_t bit = (int64_t)key - mask_key0;
        return GET(p->mask[(GET(sm90_task(t, r)->row0) + row) * p->mask_row_stride + bit / 32]) >> (bit % 32) & 1;
    }
    return 1;
}

/* A pair's scores: each half's sum over its own dims, by way of the place of its part of K, which nobody looks at any more. */
DEV void sm90_exchange(const sm90_warp *t, shared_at tile, const sm90_kind k, float *s)
{
    const shared_at other = t->half == 0 ? tile + k.stages * k.stage_bytes : tile - k.stages * k.stage_bytes;
    warp_sync();
    UNROLL
    for (uint32_t i = 0; i < k.blocks * k.keys / 16; i++) {
        const u32x4 own = { oct__f32_to_bits(s[4 * i]), oct__f32_to_bits(s[4 * i + 1]), oct__f32_to_bits(s[4 * i + 2]), oct__f32_to_bits(s[4 * i + 3]) };
        shared_write_16(tile + (i * WARP + t->lane) * 16, own);
    }
    sm90_pair_sync(t, k);
    UNROLL
    for (uint32_t i = 0; i < k.blocks * k.keys / 16; i++) {
        const u32x4 its = shared_read_16(other + (i * WARP + t->lane) * 16);
        s[4 * i] += oct__f32_of_bits(its.x);
        s[4 * i + 1] += oct__f32_of_bits(its.y);
        s[4 * i + 2] += oct__f32_of_bits(its.z);
        s[4 * i + 3] += oct__f32_of_bits(its.w);
    }
}

/* softcap tanh(x / softcap). Scores are compared by their differences, so an error that is small beside the cap is small, unless the cap is huge: there the
 * beginning of the series has what the other way cancels. */
DEV float sm90_cap(float x, float softcap, float inverse)
{
    const float y = x * inverse, t = y * y, far = softcap - 2.0f * softcap * reciprocal_fast(exp2_fast(y * (2.0f * LOG2_E)) + 1.0f);
    const float near = fma_f32(x * t, fma_f32(t, fma_f32(t, -5.3968254e-2f, 1.3333333e-1f), -3.3333333e-1f), x);
    return t < 0.01f ? near : far;
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
DEV uint32_t sm90_weights(const sm90_warp *t, const sm90_rows *r, int32_t base, uint32_t slot, uint32_t valid, const sm90_kind k, sm90_state *state, float *s, float *o,
                          uint32_t *seen)
{
    const uint32_t parts = k.keys / 16;
    const float softcap = t->p->softcap * LOG2_E, *scale = sm90_scale(t) + slot * 2 * k.keys;
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
            s[i] *= mul[i / (parts * 4) * 2 + i % 2];
        }
        UNROLL
        for (uint32_t j = 0; j < k.blocks * 2; j++) {
            mul[j] = 1.0f;
        }
    }
    if (softcap > 0.0f) {
        const float inverse = reciprocal_fast(softcap);
        UNROLL
        for (uint32_t i = 0; i < k.blocks * parts * 4; i++) {
            s[i] = sm90_cap(s[i], softcap, inverse);
        }
    }
    if (is_irregular) {
        const uint32_t n_vectors = sm90_vectors(t, r);
        const int32_t mask_key0 = t->p->mask != 0 ? sm90_mask_key0(t, r) : 0;
        UNROLL
        for (uint32_t j = 0; j < k.blocks * 2; j++) {
            const uint32_t vector = j / 2 * 8 + tile_own_vector(j % 2), row = vector / t->cut.n_heads;
            uint32_t there = valid >> t->lane / 4;   /* key lane / 4 + 8 i at bit 8 i */
            NO_UNROLL
            for (uint32_t i = 0; i < parts * 2 && vector < n_vectors; i++) {   /* a vector that does not exist sees all */
                there &= sm90_sees(t, r, mask_key0, row, base + (int32_t)(i * 8 + t->lane / 4)) ? ~0u : ~(1u << 8 * i);
            }
            UNROLL
            for (uint32_t i = 0; i < parts * 2; i++) {
                float *x = s + (j / 2 * parts + i / 2) * 4 + i % 2 * 2 + j % 2;
                *x = there >> 8 * i & 1 ? *x : OCT__MINUS_INF;
            }
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
        s[i] = exp2_fast(fma_f32(s[i], mul[own], -state->m[own]));
        state->z[own] += s[i];
    }
    if (t->has_v_scale) {
        UNROLL
        for (uint32_t i = 0; i < parts * 2; i++) {
            v_scale[i] *= state->inverse;
        }
        UNROLL
        for (uint32_t i = 0; i < k.blocks * parts * 4; i++) {   /* an unseen key's scale may be anything */
            const uint32_t own = i / (parts * 4) * 2 + i % 2, key = i / 4 % parts * 16 + tile_s_key(i % 4);
            s[i] = is_irregular && !(seen[own] >> key & 1) ? 0.0f : s[i] * v_scale[i / 4 % parts * 2 + i % 4 / 2];
        }
    }
    return is_irregular;
}

#endif
