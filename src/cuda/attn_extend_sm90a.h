/* attn_extend_sm90a.h: extend on Hopper: 128 vectors (query rows x query heads of a KV head) against the keys of a task, pages of 8 or 16 bits, products of
 * warpgroups with 16-bit operands (f16; bf16 over K of bf16) and f32 sums: the class of attn_mma.h.
 *
 * What an extend costs. 32/8 heads of 128 dims, 16,384 causal rows: 2.2 TFLOP, 2.8 ms at the 780 TFLOP/s of bf16 that an H200 was measured to multiply. A tile
 * of 128 vectors and 128 keys is 2,048 cycles of a multiprocessor's matrix units, 1,024 of its exponentials, some 700 instructions of each of 8 warps
 * (1,400 cycles of a scheduler), and 64 KB of 16-bit operands, which come from L2 (pages of 8 bits: 32 KB) in as many cycles as there are products if
 * nothing waits. So everything must overlap.
 *
 * Two warpgroups multiply, 64 vectors each (few rows are one's alone): S = Q K^T from shared memory; P stays in registers,
 * where the sums of S are what the next product takes, and meets V as it lies in an NHD page, keys along K (the instructions transpose it). S of the next tile is
 * asked for before P V of this one, so that the exponentials run under both. The maximum moves only when a score passes it by 2^8. Four more warps bring the
 * tiles (extend_load_sm90a.h). A block has a multiprocessor for itself and takes tile after tile, from the last rows of a batch to the first, since they see the most keys; beside a step of decodes it finds no tasks and ends. Stored NaN and infinities need no look in the loop:
 * a row whose sums are no numbers although its weights are is done once more, key by key, where only what it sees counts (ext_solo; slow, and rare).
 *
 * The ladder, TFLOP/s of 32/8 x 128, 16,384 rows, bf16 and e4m3 pages (other kernels: 72, 76):
 *   copies by four warps, 33 instructions each; a fence before each product       262, 269
 *   two warps a side, 7 instructions a copy, 8-bit tiles in registers ahead       331, 283
 *   four warps a side; a barrier counts the copies' ends, nobody waits for them   482, 448   with tiles of 128 keys, which spill
 *   tiles of 64 keys in rings of four, q in registers; nothing spills             474, 425
 *   16 keys of a page by one address, four instructions a copy                    480, 428
 *   four loading warps, 216 registers, tiles of 128 keys                          557, 339
 *   8 bits come to shared memory as they are, two tiles ahead, and become 16 there   550, 500
 *   ends and beginnings of rows by lanes that share them (extend_rows_sm90a.h)    530, 463   scales by channel 141 to 275, of each token 278 to 359
 *   128 dims: the warpgroups ask for their products in turns                      543, 469   beside 526, 439 of the text before, in one run each (predicted: 640 of bf16); 32/2 x 256 of bf16 707 without, 687 with them
 *   both tiles are waited for before the turn, with one fence                     552, 476   beside 542, 467; and turns at 256 dims over 8 bits 568 for 501, at 192/128 bf16 535 for 531
 * ncu of the last but one, 1 December 2026: matrix units busy 56 % of 7.31 M cycles (before, 54 of 7.57), instructions issued 40 %, shared memory's data path 42 %; 3,650 cycles a
 * tile, at 1.8 GHz. So no unit, issue slots or power bound it, but waits, of which copies are a part (below). Of the loop's 2,996 instructions a usual tile takes some 470.
 * With turns, sums of the weights among the exponentials give nothing (543); no fences at all (wrong) 545; a turn passed on once the scores are there, not once both
 * products are asked for, 553; no copies of bf16 (wrong) 610 to 615.
 * Before the fourth, by leaving parts out: without loads 583, without loads and weights 721, without weights 359. With half of its rows read twice in place of
 * the others, as many copies of half the bytes, the sixth's bf16 is 598: the way from L2 is a part of what it waits for. More registers alone (216, tiles of
 * 64 keys): 469. The sixth at 64, 192/128 and 256 dims (32/2 heads), bf16: 380, 532, 707 (before 316, 447 and nothing).
 *
 * Pages of 8 bits. What fills shared memory's 128 bytes a cycle, of a tile of 128 keys and 128 dims: the products' operands 160 KB, the 16-bit rows' stores 64 KB,
 * the 8-bit rows in and out 64 KB: 2,304 cycles, where the products take 2,048; of 64 keys and 256 dims 2,560. Stores of a lane's two chunks that met in banks cost
 * 512 more: 256 dims 500 with them and 520 without, e4m3. Tried: q in registers with tiles of 64 keys and 128 dims (448); turning a batch of rows and asking
 * for the next tile's in its place by turns, with 88 registers for those that load (454, 64 dims 335).
 *
 * Threads: blocks share nothing; lanes of a block meet at barriers in shared memory. */
#ifndef OCT_CUDA_ATTN_EXTEND_SM90A_H
#define OCT_CUDA_ATTN_EXTEND_SM90A_H

#include "cuda/extend_rows_sm90a.h"
#include "cuda/sm90a_score.h"

/* Registers of a lane: blocks of 384 lanes begin with 168. A block has what its lanes began with, which the compiler bounds by a multiple of 8, and who asks
 * for more waits for ever: two warpgroups of 216 leave 72 for the third, not the 80 that the multiprocessor has. */
#define EXTEND_LOADS_WITH 72
#define EXTEND_MULTIPLIES_WITH 216
#define EXTEND_HAS (OCT__EXTEND_LANES(128, 1) * (65536u / OCT__EXTEND_LANES(128, 1) / 8u * 8u))
#if EXTEND_LOADS_WITH * OCT__EXTEND_LOADERS * 64u + EXTEND_MULTIPLIES_WITH * OCT__EXTEND_GROUPS * 128u > EXTEND_HAS
#error "a block of the extend would ask for more registers than it began with"
#endif

/* S = Q K^T of a tile. */
DEV void ext_scores(uint64_t q, uint64_t k_at, const ext_kind k, float *s)
{
    q = as_it_is_u64(q);   /* or each step's would be kept */
    UNROLL
    for (uint32_t i = 0; i < k.dim_k / 16; i++) {
        const uint64_t a = q + i / 4 * (64 * 128 / 16) + i % 4 * 2, b = k_at + i / 4 * (k.keys * 128 / 16) + i % 4 * 2;
        if (k.keys == 64) {
            wg_mma_shared_64(s, a, b, i == 0, k.is_bf16);
        } else {
            wg_mma_shared_128(s, a, b, i == 0, k.is_bf16);
        }
    }
}

/* O += P V. weight: [keys / 16][4] */
DEV void ext_sums(const uint32_t *weight, uint64_t v_at, const ext_kind k, float *o)
{
    UNROLL
    for (uint32_t i = 0; i < k.keys / 16; i++) {
        const uint64_t b = v_at + i * (16 * 128 / 16);
        if (k.dim_v == 64) {
            wg_mma_64(o, weight + 4 * i, b, 0, k.is_bf16);
        } else if (k.dim_v == 128) {
            wg_mma_128(o, weight + 4 * i, b, 0, k.is_bf16);
        } else {
            wg_mma_256(o, weight + 4 * i, b, 0, k.is_bf16);
        }
    }
}

/* The soft cap, log2: its tanh without the cancellation that a large cap would show. */
DEV float ext_wide_cap(float x, float softcap)
{
    const float y = x * reciprocal_fast(softcap), a = y < 0.0f ? -y : y, s = y * y;
    float poly = fma_f32(s, -6.27423e-3f, 2.107167244e-2f);
    poly = fma_f32(s, poly, -5.385230854e-2f);
    poly = fma_f32(s, poly, 1.333258599e-1f);
    poly = fma_f32(s, poly, -3.333331645e-1f);
    const float small = fma_f32(y * s, poly, y), large = 1.0f - 2.0f * reciprocal_fast(exp2_fast(y * (2.0f * LOG2_E)) + 1.0f);
    return softcap * (a < 0.55f ? small : large);
}

/* From raw scores to weights, in place. Returns whether a maximum or the unit moved: the sums are then to be multiplied by alpha. */
DEV uint32_t ext_weights(const ext_block *t, const ext_rows *r, int32_t base, uint32_t stage, const ext_kind k, ext_state *state, float *s)
{
    const oct__attn_params *p = t->p;
    const uint32_t blocks = k.keys / 8;
    const float softcap = p->softcap * LOG2_E;
    const shared_at scale = t->base + t->at.scale + stage * OCT__EXTEND_SCALES(k.keys) + t->lane % 4 * 8;
    const uint32_t is_irregular = base < r->seen_from || (int64_t)base + k.keys > r->seen_to;
    float top[2], mul[2], grow = 1.0f;
    uint32_t moves = 0;
    if (t->has_k_scale) {
        UNROLL
        for (uint32_t b = 0; b < blocks; b++) {
            const u32x2 pair = shared_read_8(scale + 32 * b);
            const float x = oct__f32_of_bits(pair.x), y = oct__f32_of_bits(pair.y);
            s[4 * b] *= x;
            s[4 * b + 1] *= y;
            s[4 * b + 2] *= x;
            s[4 * b + 3] *= y;
        }
    }
    mul[0] = state->factor[0];
    mul[1] = state->factor[1];
    if (is_irregular || softcap > 0.0f) {
        if (softcap > 0.0f) {
            if (softcap > 1024.0f) {
                UNROLL
                for (uint32_t i = 0; i < blocks * 4; i++) {
                    s[i] = ext_wide_cap(s[i] * state->factor[i % 4 / 2], softcap);
                }
            } else {
                const float unit = 2.0f * LOG2_E * reciprocal_fast(softcap);
                UNROLL
                for (uint32_t i = 0; i < blocks * 4; i++) {
                    s[i] = fma_f32(-2.0f * softcap, reciprocal_fast(exp2_fast(s[i] * (state->factor[i % 4 / 2] * unit)) + 1.0f), softcap);
                }
            }
            mul[0] = mul[1] = 1.0f;
        }
        if (is_irregular) {
            /* A negative factor would turn the sign of what is not seen. */
            UNROLL
            for (uint32_t h = 0; h < 2; h++) {
                const int32_t first = base + (int32_t)(t->lane % 4 * 2);
                const uint32_t from = (uint32_t)(r->low[h] - first), width = r->low[h] < r->high[h] ? (uint32_t)(r->high[h] - r->low[h]) : 0;
                UNROLL
                for (uint32_t i = 0; i < blocks * 2; i++) {
                    float *x = s + i / 2 * 4 + 2 * h + i % 2;
                    *x = i / 2 * 8 + i % 2 - from < width ? *x * mul[h] : OCT__MINUS_INF;
                }
            }
            if (p->mask != 0) {
                UNROLL
                for (uint32_t h = 0; h < 2; h++) {
                    UNROLL
                    for (uint32_t c = 0; c < k.keys / 16; c += 2) {
                        uint32_t key = (uint32_t)base + c * 16;
                        wg_hold_u32(&key, 1);   /* or the words' places would all be reckoned at once */
                        const uint32_t bits = ext_mask_word(t, r, r->row[h], (int32_t)key) >> (t->lane % 4 * 2);
                        UNROLL
                        for (uint32_t i = 0; i < 8 && c * 4 + i < blocks * 2; i++) {
                            float *x = s + c * 8 + i / 2 * 4 + 2 * h + i % 2;
                            *x = bits >> (i / 2 * 8 + i % 2) & 1 ? *x : OCT__MINUS_INF;
                        }
                    }
                }
            }
            mul[0] = mul[1] = 1.0f;
        }
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
    if (t->has_v_scale) {
        const u32x4 four = shared_read_16(scale - t->lane % 4 * 8 + 8 * k.keys);
        const float largest = max_f32(max_f32(oct__f32_of_bits(four.x), oct__f32_of_bits(four.y)), max_f32(oct__f32_of_bits(four.z), oct__f32_of_bits(four.w)));
        if (largest > state->unit) {
            uint32_t exponent = (oct__f32_to_bits(largest) >> 23) + 1;
            exponent = exponent > 252 ? 252 : exponent;
            grow = state->unit * oct__f32_of_bits((254 - exponent) << 23);
            state->unit = oct__f32_of_bits(exponent << 23);
            moves = 1;
        }
    }
    UNROLL
    for (uint32_t h = 0; h < 2; h++) {
        const float m = top[h] > state->m[h] + SM90_SLACK ? top[h] : state->m[h];
        const float keep = exp2_fast(state->m[h] - m);
        moves |= m != state->m[h];
        state->m[h] = m;
        state->alpha[h] = keep * grow;
        float sum[2] = { 0.0f, 0.0f };
        UNROLL
        for (uint32_t i = 0; i < blocks * 2; i++) {
            float *x = s + i / 2 * 4 + 2 * h + i % 2;
            *x = exp2_fast(fma_f32(*x, mul[h], -m));
            sum[i % 2] += *x;
        }
        state->z[h] = fma_f32(state->z[h], keep, sum[0] + sum[1]);
    }
    if (t->has_v_scale) {
        const float inverse = oct__f32_of_bits((254u << 23) - oct__f32_to_bits(state->unit));
        UNROLL
        for (uint32_t b = 0; b < blocks; b++) {
            const u32x2 pair = shared_read_8(scale + 4 * k.keys + 32 * b);
            const float x = oct__f32_of_bits(pair.x) * inverse, y = oct__f32_of_bits(pair.y) * inverse;
            s[4 * b] *= x;
            s[4 * b + 1] *= y;
            s[4 * b + 2] *= x;
            s[4 * b + 3] *= y;
        }
    }
    return moves;
}

/* Weights as the operand of the sums; not before the sums that read the last ones are through. */
DEV void ext_pack(const float *s, const ext_kind k, uint32_t *weight)
{
    UNROLL
    for (uint32_t i = 0; i < k.keys / 4; i++) {
        weight[i] = k.is_bf16 ? pack_bf16(s[2 * i], s[2 * i + 1]) : pack_f16(s[2 * i], s[2 * i + 1]);
    }
}

/* Tile n of a side is there, for the matrix units after a fence. */
DEV void ext_wait_tile(const ext_block *t, uint32_t kind, uint32_t stage, uint32_t n)
{
    bar_wait(ext_bar(t, kind, stage), n / t->stages & 1);
}

/* And they see it, and what else was waited for. */
DEV void ext_take(const ext_block *t, uint32_t kind, uint32_t stage, uint32_t n)
{
    ext_wait_tile(t, kind, stage, n);
    proxy_fence();   /* copies have none of their own */
}

/* Which kernels' warpgroups take turns: bf16 of 256 dims and tiles of 64 dims lose by it (685 for 705, 377 for 380 TFLOP/s). */
DEV uint32_t ext_is_turning(const ext_kind k)
{
    return k.dim_k > 64 && !(k.is_bf16 && k.dim_k == 256);
}

/* Two warpgroups ask for their products in turns, so that one's exponentials run under the other's products; left alone they fall into step, and the matrix
 * units idle while both take exponentials. Each waits for what the other has asked for of the tile before its own. n: turns so far. */
DEV void ext_wait_turn(const ext_block *t, uint32_t group, uint32_t n)
{
    bar_wait(ext_bar(t, 4, 0) + group * 8, (n & 1) ^ (group == 0));
}

DEV void ext_pass_turn(const ext_block *t, uint32_t group)
{
    warp_sync();
    if (t->lane == 0) {
        bar_arrive(ext_bar(t, 4, 0) + (group ^ 1) * 8);
    }
}

/* All warps of a consuming warpgroup have read a side's tile. */
DEV void ext_release(const ext_block *t, uint32_t kind, uint32_t stage)
{
    warp_sync();
    if (t->lane == 0) {
        bar_arrive(ext_bar(t, kind, stage));
    }
}

DEV void ext_take_rows(const ext_block *t, uint32_t work, ext_rows *r)
{
    const oct__attn_params *p = t->p;
    const oct__dev_task *task = p->tasks + work / p->n_head_tiles;
    const uint32_t n_rows = (uint32_t)GET(task->n_rows);
    r->task = task;
    r->head_tile = work % p->n_head_tiles;
    r->cut = head_cut_of(p, r->head_tile);
    r->row0 = GET(task->row0);
    r->key0 = GET(task->key0);
    r->key1 = GET(task->key1);
    r->pos0 = GET(task->pos0);
    r->n_splits = GET(task->n_splits);
    r->n_vectors = n_rows * r->cut.n_heads;
    r->vector0 = t->warp * 16;
    r->mask_key0 = 0x7FFFFFFF;
    if (p->mask != 0) {
        r->mask_key0 = r->pos0 - (int32_t)(r->row0 - GET(p->batch.qo_indptr[GET(task->sequence)]));   /* kv_len - the sequence's rows */
    }
    UNROLL
    for (uint32_t h = 0; h < 2; h++) {
        const uint32_t vector = r->vector0 + t->lane / 4 + 8 * h, last = r->n_vectors - 1;
        r->row[h] = (vector < last ? vector : last) / r->cut.n_heads;
        const int64_t position = (int64_t)r->pos0 + r->row[h], low = position - (int64_t)p->window + 1;
        r->low[h] = p->window > 0 && low > r->key0 ? (int32_t)low : r->key0;
        r->high[h] = p->causal && position < r->key1 ? (int32_t)position + 1 : r->key1;
    }
    const uint32_t end = r->vector0 + 15 < r->n_vectors - 1 ? r->vector0 + 15 : r->n_vectors - 1, begin = r->vector0 < end ? r->vector0 : end;
    const int64_t first = (int64_t)r->pos0 + begin / r->cut.n_heads, last = (int64_t)r->pos0 + end / r->cut.n_heads;
    const int64_t from = p->window > 0 ? last - (int64_t)p->window + 1 : 0;
    r->seen_from = from > r->key0 ? (int32_t)from : r->key0;
    r->seen_to = p->causal && first < r->key1 ? (int32_t)first + 1 : r->key1;
    r->seen_to = r->seen_to < r->mask_key0 ? r->seen_to : r->mask_key0;
}

/* All lanes of a warpgroup that multiplies. */
DEV void ext_multiply(const ext_block *t, const ext_kind k)
{
    const uint32_t group = t->warp / 4;
    const uint64_t q_at = wg_rows(t->base + t->at.q + group * (64 * k.dim_k * 2));
    uint32_t n = 0, n_turns = 0;   /* tiles so far; of them in turns with the other warpgroup */
    NO_UNROLL
    for (uint32_t i = (uint32_t)block_id(); i < t->n_tasks_tiles; i += (uint32_t)block_count()) {
        ext_rows r;
        ext_state state;
        float o[128], s[64];
        uint32_t weight[32];
        ext_take_rows(t, ext_work(t, i), &r);
        if (group * 64 >= r.n_vectors) {   /* few rows are the other warpgroup's alone; the tiles are both's */
            const uint32_t tiles = r.key0 < r.key1 ? (uint32_t)(r.key1 - 1) / k.keys - (uint32_t)r.key0 / k.keys + 1 : 0;
            NO_UNROLL
            for (const uint32_t end = n + tiles; n != end; n++) {
                const uint32_t stage = n % k.stages;
                bar_wait(ext_bar(t, 0, stage), n / k.stages & 1);
                ext_release(t, 1, stage);
                bar_wait(ext_bar(t, 2, stage), n / k.stages & 1);
                ext_release(t, 3, stage);
            }
            continue;
        }
        ext_bring_q(t, &r, k, &state);
        named_sync(1 + group, 128);   /* q is there */
        UNROLL
        for (uint32_t h = 0; h < 2; h++) {
            state.m[h] = -SM90_FAR;
            state.z[h] = 0.0f;
            state.alpha[h] = 1.0f;
        }
        state.unit = t->has_v_scale ? 0.0f : 1.0f;
        UNROLL
        for (uint32_t d = 0; d < k.dim_v / 2; d++) {
            o[d] = 0.0f;
        }
        if (r.key0 < r.key1) {
            const uint32_t holds_scales = t->has_k_scale | t->has_v_scale;
            const int32_t first = (int32_t)((uint32_t)r.key0 / k.keys * k.keys);
            int32_t base = (int32_t)((uint32_t)(r.key1 - 1) / k.keys * k.keys);
            const uint32_t is_turning = ext_is_turning(k), in_turns = is_turning && r.n_vectors > 64;   /* the other has rows too */
            uint32_t stage = n % k.stages, n_v = n;   /* of V */
            ext_take(t, 0, stage, n);
            wg_begin();
            ext_scores(q_at, wg_rows(t->base + t->at.k + stage * (k.keys * k.dim_k * 2)), k, s);
            wg_end();
            wg_wait(0);
            wg_hold_f32(s, k.keys / 2);
            if (!holds_scales) {
                ext_release(t, 1, stage);
            }
            (void)ext_weights(t, &r, base, stage, k, &state, s);
            ext_pack(s, k, weight);
            if (holds_scales) {
                ext_release(t, 1, stage);
            }
            n++;
            NO_UNROLL
            for (base -= (int32_t)k.keys; base >= first; base -= (int32_t)k.keys) {
                const uint32_t v_stage = n_v % k.stages;
                stage = n % k.stages;
                if (is_turning) {   /* or the other waits for this one's wait and its fence */
                    ext_wait_tile(t, 2, v_stage, n_v);
                }
                ext_take(t, 0, stage, n);
                if (in_turns) {
                    ext_wait_turn(t, group, n_turns);
                }
                wg_hold_f32(s, k.keys / 2);
                wg_hold_u32(weight, k.keys / 4);
                wg_hold_f32(o, k.dim_v / 2);
                wg_begin();
                ext_scores(q_at, wg_rows(t->base + t->at.k + stage * (k.keys * k.dim_k * 2)), k, s);
                wg_end();
                if (!is_turning) {
                    ext_take(t, 2, v_stage, n_v);
                }
                wg_hold_u32(weight, k.keys / 4);
                wg_hold_f32(o, k.dim_v / 2);
                wg_begin();
                ext_sums(weight, wg_columns(t->base + t->at.v + v_stage * (k.keys * k.dim_v * 2), k.keys * 128), k, o);
                wg_end();
                if (in_turns) {
                    ext_pass_turn(t, group);
                    n_turns++;
                }
                wg_wait(1);
                wg_hold_f32(s, k.keys / 2);
                if (!holds_scales) {
                    ext_release(t, 1, stage);
                }
                const uint32_t moves = ext_weights(t, &r, base, stage, k, &state, s);
                if (holds_scales) {
                    ext_release(t, 1, stage);
                }
                wg_wait(0);
                wg_hold_f32(o, k.dim_v / 2);
                wg_hold_u32(weight, k.keys / 4);
                ext_release(t, 3, v_stage);
                if (warp_any(moves)) {
                    UNROLL
                    for (uint32_t d = 0; d < k.dim_v / 2; d++) {
                        o[d] *= state.alpha[d % 4 / 2];
                    }
                }
                ext_pack(s, k, weight);
                n++;
                n_v++;
            }
            const uint32_t v_stage = n_v % k.stages;
            ext_take(t, 2, v_stage, n_v);
            wg_hold_u32(weight, k.keys / 4);
            wg_hold_f32(o, k.dim_v / 2);
            wg_begin();
            ext_sums(weight, wg_columns(t->base + t->at.v + v_stage * (k.keys * k.dim_v * 2), k.keys * 128), k, o);
            wg_end();
            wg_wait(0);
            wg_hold_f32(o, k.dim_v / 2);
            ext_release(t, 3, v_stage);
        }
        named_sync(1 + group, 128);   /* q has been read: its place takes the rows */
        wg_hold_f32(o, k.dim_v / 2);   /* or the first of them would wait in memory */
        ext_block own = *t;
        wg_hold_u32(&own.lane, 1);   /* places that nothing needs before: reckoned here, not kept through the loop */
        wg_hold_u32(&own.warp, 1);
        if (k.dim_v > 128) {   /* what of the rows only the end needs would take registers from the sums */
            uint32_t again = i;
            wg_hold_u32(&again, 1);
            ext_take_rows(&own, ext_work(&own, again), &r);
        }
        ext_leave(&own, &r, k, &state, o);
        named_sync(1 + group, 128);
    }
}

/* Elements past the layer's dims are never brought: zeros for as long as the block lives. */
DEV void ext_blank(const ext_block *t, const ext_kind k)
{
    const u32x4 none = { 0, 0, 0, 0 };
    const uint32_t from = t->p->layer.k.dim == k.dim_k ? t->at.v : t->at.k, to = t->p->layer.v.dim == k.dim_v ? (from == t->at.k ? t->at.v : from) : t->at.q;
    NO_UNROLL
    for (uint32_t at = from + tid() * 16; at < to; at += OCT__EXTEND_LANES(k.dim_k, k.is_bf16) * 16) {
        shared_write_16(t->base + at, none);
    }
    proxy_fence();
}

DEV void ext_blocks(const oct__attn_params *p, uint8_t *shared, const ext_kind k)
{
    const oct__dev_layer *layer = &p->layer;
    ext_block t;
    t.p = p;
    t.warp = warp_uniform(tid() / WARP);
    t.lane = tid() % WARP;
    t.stages = k.stages;
    t.shared = shared;
    t.at = oct__extend_shared_of(k.dim_k, k.dim_v, k.is_bf16);
    t.base = shared_at_of(shared);
    t.n_tasks_tiles = GET(p->plan->n_tasks[p->op]) * p->n_head_tiles;
    if (block_id() >= t.n_tasks_tiles) {   /* all of them, beside a step of decodes */
        return;
    }
    t.has_k_scale = layer->k.scale_mode == OCT_SCALE_TOKEN_HEAD;
    t.has_v_scale = layer->v.scale_mode == OCT_SCALE_TOKEN_HEAD;
    /* K beside products of bf16 is bf16 itself: without a way for 8 bits its loaders have the registers that they need. */
    const ext_side k_side = ext_side_of(&t, &layer->k, 1, k.is_bf16 ? 2 : element_bytes(layer->k.dtype), k.dim_k);
    const ext_side v_side = ext_side_of(&t, &layer->v, 0, element_bytes(layer->v.dtype), k.dim_v);
    ext_blank(&t, k);
    if (tid() == 0) {
        UNROLL
        for (uint32_t i = 0; i < k.stages; i++) {
            bar_init(ext_bar(&t, 0, i), ext_arrivals(&k_side, k));
            bar_init(ext_bar(&t, 1, i), OCT__EXTEND_GROUPS * 4);
            bar_init(ext_bar(&t, 2, i), ext_arrivals(&v_side, k));
            bar_init(ext_bar(&t, 3, i), OCT__EXTEND_GROUPS * 4);
        }
        UNROLL
        for (uint32_t i = 0; i < OCT__EXTEND_GROUPS; i++) {
            bar_init(ext_bar(&t, 4, 0) + i * 8, 4);
        }
    }
    block_sync();
    if (t.warp >= OCT__EXTEND_GROUPS * 4) {
        registers_fewer(EXTEND_LOADS_WITH);
        t.warp -= OCT__EXTEND_GROUPS * 4;
        if (t.warp < k.loaders) {
            ext_load(&t, &k_side, 1, k.dim_k, k);
        } else {
            ext_load(&t, &v_side, 0, k.dim_v, k);
        }
    } else {
        registers_more(EXTEND_MULTIPLIES_WITH);
        ext_multiply(&t, k);
    }
}

/* attn_extend_sm90a_<products>_<dims of K>_<of V> */
#define EXTEND_KERNEL(type, is_bf16, dim_k, dim_v)                                                                                         \
    KERNEL(attn_extend_sm90a_##type##_##dim_k##_##dim_v, OCT__EXTEND_LANES(dim_k, is_bf16), 1, oct__attn_params)                               \
    {                                                                                                                                       \
        const ext_kind kind = { dim_k, dim_v, OCT__EXTEND_KEYS(dim_k, is_bf16), OCT__EXTEND_STAGES(dim_k), OCT__EXTEND_LOADERS,                \
                                EXTEND_PARTS(dim_k), OCT__EXTEND_AHEAD(dim_k, is_bf16), is_bf16 };                                           \
        SHARED_DYNAMIC(uint8_t, shared);                                                                                                    \
        ext_blocks(p, shared, kind);                                                                                                        \
    }
EXTEND_KERNEL(f16, 0, 64, 64)
EXTEND_KERNEL(bf16, 1, 64, 64)
EXTEND_KERNEL(f16, 0, 192, 128)
EXTEND_KERNEL(bf16, 1, 192, 128)
EXTEND_KERNEL(f16, 0, 128, 128)
EXTEND_KERNEL(bf16, 1, 128, 128)
EXTEND_KERNEL(f16, 0, 256, 256)
EXTEND_KERNEL(bf16, 1, 256, 256)

#endif
