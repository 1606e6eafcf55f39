/* attn_extend8_sm90a.h: the extend of attn_extend_sm90a.h with products of 8 bits, over pages of e4m3 whose V lies transposed (V5D): the class of 8-bit q and
 * P, for callers who allow it (oct_attn_spec.products).
 *
 * q of e4m3 is multiplied as it is; any other becomes two terms of e4m3 under a power of two of each vector's own, the second what the first has rounded
 * away, so that scores keep some eight bits of q. Weights are of 2^8 at the row's maximum, which moves when a score passes it by 2^0.75 (431 < 448).
 *
 * z comes from the matrix units: beside V lie eight columns of ones, so a product of 136 columns sums the weights as they were rounded. Rows whose weights
 * are nearly equal, and so are rounded all one way, come out right, and the exponentials' loop, which at 128 dims is what takes longest, has an addition
 * less. A log-sum wants the weights as they are: where it is asked for they are summed beside.
 *
 * Sums of 8-bit products keep some 14 bits, and truncate: over 64k near-equal weights 0.69 of the mean is lost. So every total_keys keys a total in shared
 * memory takes them over as bf16, and what its rounding leaves stays in the registers: nothing is lost by the 16 bits, and the error is bounded by that of
 * so many keys.
 *
 * The ladder, TFLOP/s of 32/2 x 256 and 32/8 x 128, 16,384 rows, q of e4m3, pages of 16:
 *   K by 16-byte copies of four warps, its rows put so that weights need no shuffles; a fence in every lane that waits   774, 583
 *   K by the copy engine as it lies; weights change lanes; what the loaders know in shared memory                        910, 587
 *   the loaders fence only what went through registers                                                                   915, 628
 *   totals every total_keys alone: a maximum that moves, as of a warp's 16 vectors one often does, multiplies a factor of
 *   its vector, which the next total takes                                                                             1107, 688
 *   the last one without totals                                                                                        1162, 704
 * Pages of 64, 32/8 x 128: K by copies of 16 keys of 16 dims 347, of all that a page has behind one another 554; copies of 1,024 bytes are still more than those of
 * 2,048 that a page of 16 needs. One run of pages of 16 at 688: no shuffles (wrong weights) 742, no text for masks 714, no copies 754, all three
 * and no columns of ones 769; those columns alone cost nothing. Exponentials as polynomials, a fourth, three eighths or half of them: 682, 665, 647: warps wait for their own instructions
 * (ncu: 42 % of issue slots, matrix units 37 % busy), not for the special function unit.
 * Leaving out of the third: exponentials 1000, 777; the comparisons of half of the scores 930, 645. The factors' two registers are there because totals begin
 * as zeros, tiles are counted once for rings and totals, and q as it is has one factor for all of a lane's vectors. Tiles of 128 keys for two terms of q at
 * 256 dims spill.
 *
 * Threads: blocks share nothing; lanes of a block meet at barriers in shared memory. */
#ifndef OCT_CUDA_ATTN_EXTEND8_SM90A_H
#define OCT_CUDA_ATTN_EXTEND8_SM90A_H

#include "cuda/attn_extend_sm90a.h"
#include "cuda/extend8_rows_sm90a.h"

#define EXTEND8_LIFT 8.0f             /* log2 of the weight at the maximum */
#define EXTEND8_SLACK 0.75f           /* by which it may be passed */

/* Where a lane's score of run j, half of a run, vector h and neighbour e stands: key 16 j + 8 half + 2 (lane % 4) + e. */
DEV uint32_t ext8_at(const uint32_t j, const uint32_t half, const uint32_t h, const uint32_t e, const ext8_kind k)
{
    return (half * (k.x.keys / 16) + j) * 4 + 2 * h + e;
}

/* S = Q K^T of a tile, of all terms of q: of the runs' first halves, and of the others. */
DEV void ext8_scores(const ext_block *t, uint64_t q, uint64_t k_at, const ext8_kind k, float *s)
{
    const uint32_t two = 2 * ext8_k_chunk(ext8_is_long(t, k), k) / 16;
    UNROLL
    for (uint32_t i = 0; i < k.terms * k.x.dim_k / 32; i++) {
        const uint64_t a = q + i / 4 * (64 * 128 / 16) + i % 4 * 2, b = k_at + i % (k.x.dim_k / 32) * two;
        if (k.x.keys == 64) {
            wg_mma8_shared_32(s, a, b, i == 0);
            wg_mma8_shared_32(s + 16, a, b + 128 / 16, i == 0);
        } else {
            wg_mma8_shared_64(s, a, b, i == 0);
            wg_mma8_shared_64(s + 32, a, b + 128 / 16, i == 0);
        }
    }
}

/* O += P V, z += P 1. weight: [keys / 32][4] */
DEV void ext8_sums(const uint32_t *weight, uint64_t v_at, const ext8_kind k, float *o)
{
    UNROLL
    for (uint32_t i = 0; i < k.x.keys / 32; i++) {
        const uint64_t b = v_at + i * (2 * OCT__EXTEND8_RUN_BYTES(k.x.dim_v) / 16);
        if (k.x.dim_v > 128) {
            wg_mma8_128(o, weight + 4 * i, b);
            wg_mma8_136(o + 64, weight + 4 * i, b + 128 * 16 / 16);
        } else {
            wg_mma8_136(o, weight + 4 * i, b);
        }
    }
}

/* How the four lanes that share a vector hand on weights. Of 16 keys, lane t has the pairs 2 t and 8 + 2 t, and the next product wants 4 t to 4 t + 3 of it: two
 * pairs that lanes 2 t % 4 and 2 t % 4 + 1 have. Two words, of two vectors, go in two shuffles, in each of which every lane sends to one. */
typedef struct ext8_exchange { uint32_t send[2], from[2], take[2]; } ext8_exchange;

DEV ext8_exchange ext8_exchange_of(uint32_t lane)
{
    const uint32_t t = lane % 4, is_odd = t % 2, is_high = t / 2;
    ext8_exchange x;
    x.send[0] = is_odd ? 0x7632 : 0x5410;
    x.send[1] = is_odd ? 0x5410 : 0x7632;
    x.from[0] = (lane & ~3u) + 2 * (t % 2) + is_high;
    x.from[1] = x.from[0] ^ 1;
    x.take[0] = is_high ? 0x1054 : 0x5410;
    x.take[1] = is_high ? 0x3276 : 0x7632;
    return x;
}

/* Weights as the operand of the sums. */
DEV void ext8_pack(const float *s, uint32_t lane, const ext8_kind k, uint32_t *weight)
{
    wg_hold_u32(&lane, 1);   /* what follows from it is reckoned here, not kept */
    const ext8_exchange x = ext8_exchange_of(lane);
    UNROLL
    for (uint32_t j = 0; j < k.x.keys / 16; j++) {
        uint32_t word[2];
        UNROLL
        for (uint32_t h = 0; h < 2; h++) {
            const float four[4] = { s[ext8_at(j, 0, h, 0, k)], s[ext8_at(j, 0, h, 1, k)], s[ext8_at(j, 1, h, 0, k)], s[ext8_at(j, 1, h, 1, k)] };
            word[h] = encode_fp8_4(four, OCT_DTYPE_E4M3FN, 0);
        }
        const uint32_t a = warp_shuffle_u32(byte_pick(word[0], word[1], x.send[0]), x.from[0]);
        const uint32_t b = warp_shuffle_u32(byte_pick(word[0], word[1], x.send[1]), x.from[1]);
        weight[2 * j] = byte_pick(a, b, x.take[0]);
        weight[2 * j + 1] = byte_pick(a, b, x.take[1]);
    }
}

DEV void ext8_mask(const ext_block *t, const ext_rows *r, int32_t base, const float *mul, const ext8_kind k, float *s)
{
    const int32_t first = base + (int32_t)(t->lane % 4 * 2);
    UNROLL
    for (uint32_t h = 0; h < 2; h++) {
        const uint32_t from = (uint32_t)(r->low[h] - first), width = r->low[h] < r->high[h] ? (uint32_t)(r->high[h] - r->low[h]) : 0;
        UNROLL
        for (uint32_t i = 0; i < k.x.keys / 4; i++) {
            float *x = s + ext8_at(i / 4, i / 2 % 2, h, i % 2, k);
            *x = i / 2 * 8 + i % 2 - from < width ? *x * mul[h] : OCT__MINUS_INF;
        }
        if (t->p->mask != 0) {
            UNROLL
            for (uint32_t c = 0; c < k.x.keys / 32; c++) {
                uint32_t key = (uint32_t)base + c * 32;
                wg_hold_u32(&key, 1);   /* or the words' places would all be reckoned at once */
                const uint32_t bits = ext_mask_word(t, r, r->row[h], (int32_t)key) >> (t->lane % 4 * 2);
                UNROLL
                for (uint32_t i = 0; i < 8; i++) {
                    float *x = s + ext8_at(2 * c + i / 4, i / 2 % 2, h, i % 2, k);
                    *x = bits >> (i / 2 * 8 + i % 2) & 1 ? *x : OCT__MINUS_INF;
                }
            }
        }
    }
}

/* Of a warp's rows what every tile asks; the rest is reckoned again where a tile is not seen by all of them, or it would take registers from the sums. */
typedef struct ext8_span {
    uint32_t i;                     /* the block's work */
    uint32_t z;                     /* of oct__extend8_shared */
    int32_t seen_from, seen_to;
} ext8_span;

DEV void ext8_rows_again(const ext_block *t, uint32_t i, ext_rows *r)
{
    ext_block own = *t;
    wg_hold_u32(&i, 1);
    wg_hold_u32(&own.lane, 1);
    wg_hold_u32(&own.warp, 1);
    ext_take_rows(&own, ext_work(&own, i), r);
}

/* From raw scores to weights, in place. Returns whether a maximum moved: the sums are then to be multiplied by alpha. */
DEV uint32_t ext8_weights(const ext_block *t, const ext8_span *span, int32_t base, uint32_t stage, const ext8_kind k, uint32_t wants_z, ext_state *state, float *s)
{
    const oct__attn_params *p = t->p;
    const uint32_t blocks = k.x.keys / 8;
    const float softcap = p->softcap * LOG2_E;
    const float *scale = (const float *)(t->shared + t->at.scale) + stage * k.x.keys + t->lane % 4 * 2;
    const uint32_t is_irregular = base < span->seen_from || (int64_t)base + k.x.keys > span->seen_to;
    float top[2], mul[2];
    uint32_t moves = 0;
    if (k.has_scales && t->has_k_scale) {
        UNROLL
        for (uint32_t i = 0; i < k.x.keys / 4; i++) {
            const float x = SGET(scale[i / 2 * 8 + i % 2]);
            s[ext8_at(i / 4, i / 2 % 2, 0, i % 2, k)] *= x;
            s[ext8_at(i / 4, i / 2 % 2, 1, i % 2, k)] *= x;
        }
    }
    mul[0] = state->factor[0];
    mul[1] = state->factor[1];
    if (softcap > 0.0f) {
        UNROLL
        for (uint32_t i = 0; i < blocks * 4; i++) {
            s[i] = ext_wide_cap(s[i] * state->factor[i % 4 / 2], softcap);
        }
        mul[0] = mul[1] = 1.0f;
    }
    if (is_irregular) {   /* a negative factor would turn the sign of what is not seen */
        ext_rows r;
        ext8_rows_again(t, span->i, &r);
        ext8_mask(t, &r, base, mul, k, s);
        mul[0] = mul[1] = 1.0f;
    }
    UNROLL
    for (uint32_t h = 0; h < 2; h++) {
        float high[4];
        UNROLL
        for (uint32_t b = 0; b < blocks; b++) {
            const float x = max_f32(s[4 * b + 2 * h], s[4 * b + 2 * h + 1]);
            high[b % 4] = b < 4 ? x : max_f32(high[b % 4], x);
        }
        top[h] = max_f32(max_f32(high[0], high[1]), max_f32(high[2], high[3])) * mul[h];
    }
    UNROLL
    for (uint32_t h = 0; h < 2; h++) {
        top[h] = max_f32(top[h], shfl_xor_f32(top[h], 1));
        top[h] = max_f32(top[h], shfl_xor_f32(top[h], 2));
    }
    UNROLL
    for (uint32_t h = 0; h < 2; h++) {
        const float m = top[h] > state->m[h] + EXTEND8_SLACK ? top[h] : state->m[h];
        const float keep = exp2_fast(state->m[h] - m), lift = EXTEND8_LIFT - m;
        moves |= m != state->m[h];
        state->m[h] = m;
        state->alpha[h] = keep;
        UNROLL
        for (uint32_t i = 0; i < blocks * 2; i++) {
            float *x = s + i / 2 * 4 + 2 * h + i % 2;
            *x = exp2_fast(fma_f32(*x, mul[h], lift));
        }
        if (wants_z) {
            float sum[2] = { 0.0f, 0.0f };
            UNROLL
            for (uint32_t i = 0; i < blocks * 2; i++) {
                sum[i % 2] += s[i / 2 * 4 + 2 * h + i % 2];
            }
            sum[0] += sum[1];
            sum[0] += shfl_xor_f32(sum[0], 1);
            sum[0] += shfl_xor_f32(sum[0], 2);
            if (t->lane % 4 == 0) {
                float *z = (float *)(t->shared + span->z) + t->warp * 16 + t->lane / 4 + 8 * h;
                SPUT(*z, fma_f32(SGET(*z), keep, sum[0]));
            }
        }
    }
    return moves;
}

/* ---- the kernels ----------------------------------------------------------------------------------------------------------------------------------- */

/* A side's tile is there, in its place for the turn-th time: the copy engine's, or stores that have been fenced. */
DEV void ext8_take(const ext_block *t, uint32_t kind, uint32_t stage, uint32_t turn)
{
    bar_wait(ext_bar(t, kind, stage), turn & 1);
}

/* All lanes of a warpgroup that multiplies. */
DEV void ext8_multiply(const ext_block *t, const oct__extend8_shared *at, const ext8_kind k)
{
    const shared_at totals = t->base + at->totals;
    const uint32_t group = t->warp / 4, n_sums = k.x.dim_v / 2 + 4;
    const uint64_t q_at = wg_rows(t->base + t->at.q + group * (64 * k.x.dim_k * k.terms));
    const uint32_t is_long = ext8_is_long(t, k);
    const uint64_t k_at = wg_blocks(t->base + t->at.k, ext8_k_chunk(is_long, k), ext8_k_run(is_long, k)), v_at = wg_blocks(t->base + t->at.v, OCT__EXTEND8_RUN_BYTES(k.x.dim_v), 128);
    const uint32_t k_stage = k.x.keys * k.x.dim_k / 16, v_stage_of = k.x.keys / 16 * OCT__EXTEND8_RUN_BYTES(k.x.dim_v) / 16;
    uint32_t n = 0;   /* tiles so far */
    NO_UNROLL
    for (uint32_t i = (uint32_t)block_id(); i < t->n_tasks_tiles; i += (uint32_t)block_count()) {
        ext_rows r;
        ext_state state;
        float o[132], s[64], keep[2] = { 1.0f, 1.0f };   /* keep: by which totals are to come down */
        float *z = o + k.x.dim_v / 2;
        uint32_t weight[16], total = 0;   /* total: of z, two bf16 */
        const uint32_t wants_z = t->p->lse != 0;
        ext_take_rows(t, ext_work(t, i), &r);
        ext8_bring_q(t, &r, k, &state);
        named_sync(1 + group, 128);   /* q is there, factors have been read */
        UNROLL
        for (uint32_t d = 0; d < k.x.dim_v / 16; d++) {
            ext_write_16(ext8_totals(t, totals, k) + d * 2048, 0, 0, 0, 0);
        }
        UNROLL
        for (uint32_t h = 0; h < 2; h++) {
            state.m[h] = -SM90_FAR;
            state.alpha[h] = 1.0f;
        }
        state.unit = 1.0f;
        const ext8_span span = { i, at->z, r.seen_from, r.seen_to };
        if (wants_z && t->lane < 16) {
            SPUT(((float *)(t->shared + at->z))[t->warp * 16 + t->lane], 0.0f);
        }
        warp_sync();
        UNROLL
        for (uint32_t d = 0; d < n_sums; d++) {
            o[d] = 0.0f;
        }
        if (r.key0 < r.key1) {
            const uint32_t holds_scales = k.has_scales ? t->has_k_scale : 0;
            const int32_t first = (int32_t)((uint32_t)r.key0 / k.x.keys * k.x.keys);
            int32_t base = (int32_t)((uint32_t)(r.key1 - 1) / k.x.keys * k.x.keys);
            uint32_t stage = n % k.x.stages;
            ext8_take(t, 0, stage, n / k.x.stages);
            wg_begin();
            ext8_scores(t, q_at, k_at + stage * k_stage, k, s);
            wg_end();
            wg_wait(0);
            wg_hold_f32(s, k.x.keys / 2);
            if (!holds_scales) {
                ext_release(t, 1, stage);
            }
            (void)ext8_weights(t, &span, base, stage, k, wants_z, &state, s);
            ext8_pack(s, t->lane, k, weight);
            if (holds_scales) {
                ext_release(t, 1, stage);
            }
            n++;
            NO_UNROLL
            for (base -= (int32_t)k.x.keys; base >= first; base -= (int32_t)k.x.keys) {
                const uint32_t v_stage = (n - 1) % k.x.stages;
                stage = n % k.x.stages;
                ext8_take(t, 0, stage, n / k.x.stages);
                wg_hold_f32(s, k.x.keys / 2);
                wg_hold_u32(weight, k.x.keys / 8);
                wg_hold_f32(o, n_sums);
                wg_begin();
                ext8_scores(t, q_at, k_at + stage * k_stage, k, s);
                wg_end();
                ext8_take(t, 2, v_stage, (n - 1) / k.x.stages);
                wg_hold_u32(weight, k.x.keys / 8);
                wg_hold_f32(o, n_sums);
                wg_begin();
                ext8_sums(weight, v_at + v_stage * v_stage_of, k, o);
                wg_end();
                wg_wait(1);
                wg_hold_f32(s, k.x.keys / 2);
                if (!holds_scales) {
                    ext_release(t, 1, stage);
                }
                const uint32_t moves = ext8_weights(t, &span, base, stage, k, wants_z, &state, s);
                if (holds_scales) {
                    ext_release(t, 1, stage);
                }
                wg_wait(0);
                wg_hold_f32(o, n_sums);
                wg_hold_u32(weight, k.x.keys / 8);
                ext_release(t, 3, v_stage);
                if (warp_any(moves)) {
                    UNROLL
                    for (uint32_t d = 0; d < n_sums; d++) {
                        o[d] *= state.alpha[d % 4 / 2];
                    }
                    keep[0] *= state.alpha[0];
                    keep[1] *= state.alpha[1];
                }
                if ((n & (t->p->total_keys / k.x.keys - 1)) == 0) {
                    ext8_total(ext8_totals(t, totals, k), k, keep, o);
                    ext8_add(&total, keep, z);
                    keep[0] = keep[1] = 1.0f;
                }
                ext8_pack(s, t->lane, k, weight);
                n++;
            }
            const uint32_t v_stage = (n - 1) % k.x.stages;
            ext8_take(t, 2, v_stage, (n - 1) / k.x.stages);
            wg_hold_u32(weight, k.x.keys / 8);
            wg_hold_f32(o, n_sums);
            wg_begin();
            ext8_sums(weight, v_at + v_stage * v_stage_of, k, o);
            wg_end();
            wg_wait(0);
            wg_hold_f32(o, n_sums);
            ext_release(t, 3, v_stage);
            ext8_join(ext8_totals(t, totals, k), k, keep, o);
        }
        warp_sync();
        UNROLL
        for (uint32_t h = 0; h < 2; h++) {   /* rounded weights sum to z of the same; a log-sum wants the weights as they are */
            float sum = fma_f32(oct__f32_of_bits(h == 0 ? total << 16 : total & 0xFFFF0000u), keep[h], z[2 * h]);
            if (wants_z) {
                const float as_is = SGET(((const float *)(t->shared + at->z))[t->warp * 16 + t->lane / 4 + 8 * h]);
                const float ratio = sum != 0.0f ? as_is / sum : 1.0f;
                UNROLL
                for (uint32_t d = 0; d < k.x.dim_v / 4; d++) {
                    o[d / 2 * 4 + 2 * h + d % 2] *= ratio;
                }
                sum = as_is;
            }
            state.z[h] = sum * (0.00390625f * 0.25f);   /* all four lanes of a vector have it */
        }
        state.unit *= 0.00390625f;
        named_sync(1 + group, 128);   /* q and the totals have been read: rows take the totals' place */
        wg_hold_f32(o, k.x.dim_v / 2);   /* or the first of them would wait in memory */
        ext_block own = *t;
        wg_hold_u32(&own.lane, 1);   /* places that nothing needs before: reckoned here, not kept through the loop */
        wg_hold_u32(&own.warp, 1);
        own.at.factor = t->at.q + group * (64 * k.x.dim_k * k.terms);
        own.at.q = totals - t->base;
        ext8_rows_again(&own, i, &r);
        ext_send(&own, &r, k.x, &state, o);
        named_sync(1 + group, 128);
    }
}

/* Ones beside V; elements past the layer's dims, which are never brought: zeros for as long as the block lives. */
DEV void ext8_blank(const ext_block *t, const ext8_kind k)
{
    const uint32_t run = OCT__EXTEND8_RUN_BYTES(k.x.dim_v), end = t->at.v + k.x.stages * (k.x.keys / 16) * run;
    if (t->p->layer.k.dim != k.x.dim_k || t->p->layer.v.dim != k.x.dim_v) {
        NO_UNROLL
        for (uint32_t at = tid() * 16; at < end; at += OCT__EXTEND8_LANES * 16) {
            ext_write_16(t->base + at, 0, 0, 0, 0);
        }
        block_sync();
    }
    NO_UNROLL
    for (uint32_t i = tid(); i < k.x.stages * (k.x.keys / 16) * 8; i += OCT__EXTEND8_LANES) {
        ext_write_16(t->base + t->at.v + i / 8 * run + k.x.dim_v * 16 + i % 8 * 16, 0x38383838u, 0x38383838u, 0x38383838u, 0x38383838u);
    }
    proxy_fence();
}

DEV void ext8_blocks(const oct__attn_params *p, uint8_t *shared, const ext8_kind k)
{
    const oct__dev_layer *layer = &p->layer;
    const oct__extend8_shared at = oct__extend8_shared_of(k.x.dim_k, k.terms);
    const uint32_t is_tight = k.x.dim_v > 128 && k.x.keys == 128;   /* sums of 264 columns, scores of 128 and their weights */
    ext_block t;
    t.p = p;
    t.warp = warp_uniform(tid() / WARP);
    t.lane = tid() % WARP;
    t.stages = k.x.stages;
    t.shared = shared;
    t.at = at.at;
    t.base = shared_at_of(shared);
    t.n_tasks_tiles = GET(p->plan->n_tasks[p->op]) * p->n_head_tiles;
    if (block_id() >= t.n_tasks_tiles) {   /* all of them, beside a step of decodes */
        return;
    }
    t.has_k_scale = layer->k.scale_mode == OCT_SCALE_TOKEN_HEAD;
    t.has_v_scale = 0;   /* not taken: a weight would be rounded with its scale, z without */
    ext_side k_side = ext_side_of(&t, &layer->k, 1, 1, k.x.dim_k), v_side = ext_side_of(&t, &layer->v, 0, 1, k.x.dim_v);
    k_side.is_wide = (((uint64_t)(uintptr_t)layer->k.base | (uint64_t)layer->k.page_stride | (uint64_t)layer->k.head_stride) & 15) == 0;
    v_side.is_wide = (((uint64_t)(uintptr_t)layer->v.base | (uint64_t)layer->v.page_stride | (uint64_t)layer->v.head_stride) & 15) == 0;
    ext8_blank(&t, k);
    if (tid() == 0) {
        UNROLL
        for (uint32_t i = 0; i < k.x.stages; i++) {
            bar_init(ext_bar(&t, 0, i), 1);
            bar_init(ext_bar(&t, 1, i), OCT__EXTEND_GROUPS * 4);
            bar_init(ext_bar(&t, 2, i), 1);
            bar_init(ext_bar(&t, 3, i), OCT__EXTEND_GROUPS * 4);
        }
        proxy_fence();   /* the copy engine counts at them */
    }
    block_sync();
    if (t.warp >= OCT__EXTEND_GROUPS * 4) {
        if (is_tight) {
            registers_fewer(24);
        } else {
            registers_fewer(40);
        }
        if (t.warp == OCT__EXTEND_GROUPS * 4) {
            ext8_load(&t, &k_side, at.work, 1, k);
        } else if (t.warp == OCT__EXTEND_GROUPS * 4 + 1) {
            ext8_load(&t, &v_side, at.work, 0, k);
        }
    } else {
        if (is_tight) {
            registers_more(240);
        } else {
            registers_more(232);
        }
        t.at.factor += t.warp / 4 * (64 * k.x.dim_v * 2);   /* in the group's own totals */
        ext8_multiply(&t, &at, k);
    }
}

/* attn_extend_sm90a_e4m3_<dims>_<terms of q> */
#define EXTEND8_KERNEL(dim, terms)                                                                                                                       \
    KERNEL(attn_extend_sm90a_e4m3_##dim##_##terms, OCT__EXTEND8_LANES, 1, oct__attn_params)                                                              \
    {                                                                                                                                                    \
        const ext8_kind kind = { { dim, dim, OCT__EXTEND8_KEYS(dim, terms), OCT__EXTEND8_STAGES(dim), OCT__EXTEND8_LOADERS, 1, 0, 0 }, terms,            \
                                 OCT__EXTEND8_HAS_SCALES(dim, terms) };                                                                                  \
        SHARED_DYNAMIC(uint8_t, shared);                                                                                                                 \
        ext8_blocks(p, shared, kind);                                                                                                                    \
    }
EXTEND8_KERNEL(128, 1)
EXTEND8_KERNEL(128, 2)
EXTEND8_KERNEL(256, 1)
EXTEND8_KERNEL(256, 2)

#endif
