/* attn_decode_sm90a.h: decode on Hopper: up to 8 or 16 vectors (query rows x query heads of a KV head) over a span of keys, pages of 8 or 16 bits, 16-bit
 * matrix products with f32 sums and state: the class of attn_mma.h and its error, at the speed of the memory.
 *
 * What a decode costs. Bytes: K and V of every key once; 32/8 heads of 128 dims, e4m3, 64 x 4,096: 537 MB. At the 4,507 GB/s that an H200 was measured
 * to read, 119 us; a cold read of as many bytes takes 122 to 125, and of each head's rows in turn 127. Products: 4 x 128 flops for each key and query
 * head, 4.3 GFLOP in tiles half empty: 11 us of the matrix units' rate. Instructions: a tile of 8 KB (32 keys of a head) comes to an SM every 240 ns, in
 * which it can issue 1,700; the tile's conversions, permutes and products are 192. So the bytes decide, if enough of them are on their way at any time
 * (34 bytes a ns and SM x 1.5 us = 51 KB), and if so few warps, each a long chain of dependent instructions, keep up. Launch: 1.2 us.
 *
 * The ladder, microseconds of 64 x 4,096 and 1 x 65,536, floors of 122 to 125 and 33.5. The prototype's steps (host plan, no features):
 *   cp.async into rings of three tiles a warp, 192 KB an SM; S^T = K q^T, O^T = V^T P^T, so that query heads lie in the 8 columns: half the products and
 *     half the accumulators of heads in the 16 rows; equal parts of all keys, one a resident block, with copies running ahead over the tasks' ends; a maximum
 *     that moves only when a score passes it by 2^8: 138, 42.3. TMA (1D bulk copies, a producer warp) was no faster; shrinking parts or a queue slower.
 * This text's:
 *   the same with all features, plan on the device              200, 56.2   892 instructions a tile: a copy told its size costs 15 of them
 *   whole tiles copied without sizes, addresses first           158, 51.1   621
 *   no branch in the weights, no look for infinities in vain    152, 49.1   550
 *   12 warps an SM, rings of two tiles, for 8 with three        149, 50.0   everything on: 209 to 167
 *   one head a block instead of two; q in shared memory         146, 49.6
 *   (another card: floors of 124.6, 33.6)
 *   offsets by shuffle for addresses in shared memory, q before the first copies    151, 49.9   four lanes a row; the same with both waits ahead 155, 50.3
 *   eight lanes a row, kernels of one format, masks in a loop   142, 46.4   two formats in one kernel, each a copy of its own: 160, 58.8: it is cold code
 *   three blocks a multiprocessor for pairs of 256 dims         no faster
 *   (32/2 x 256 beside them: 64 x 4,096 and 1 x 65,536, floors of 65.7 and 17.5)
 *   before                                                      142.8, 45.9, 108.0, 49.0
 *   plain kernels: a fourth of the text                         138.9, 43.3, 87.2, 37.2   some 10 us of the last two were waits for code
 *   pages as evict_first in L2, so that code and plan stay      145.8, 44.3, 86.9, 36.4   dropped
 *   static scales before the copies, 8 warps of 256 x 16, early launches, eight warps a finish    142.2, 42.8, 87.8, 30.8   but its finish of few splits was slow
 *   the next task's q asked for a task ahead                    141.0, 42.3, 87.7, 29.8
 *   quads of a finish's warps go their own ways where splits are few    137.4, 42.5, 84.0, 30.2
 *   (1 December: 64 x 4,096, 1 x 65,536, 1 x 8,192; 256 dims 1 x 65,536 of 32/2 and of 8/4 heads)
 *   before                                                      135.0, 42.0, 12.4, 30.1, 43.9
 *   parts and tasks read before the wait for the kernel ahead   135.0, 41.4, 11.7, 29.5, 43.4
 *   and L2 asked for the first 2 (4) tiles there, ids first     136.1 (138.5), 41.9 (43.5), 12.3 (12.4), 29.4 (29.9), 43.0 (43.7): dropped; by bulk prefetches
 *     136.9, 42.5, 13.7, 30.8, 44.0
 *   two blocks of four warps at 256 x 16 for one of eight       32/2 x 256, 64 x 4,096: 88.1 for 83.3; 1 x 65,536: 29.7 for 29.4
 *   a finish of a third of the blocks                           64/8 x 128: 141.0 for 141.8, but 32/2 x 256: 88.1 for 83.4
 * doc/BENCH.md says what bounds it now.
 *
 * Every warp has a ring of its own (two of them share a key's dims above 128, and add their scores by way of it) and walks over the tasks of the block's part; `heads_a_block` neighbouring head tiles are shared among the four warps of a
 * block, and the warps of one take turns at its tiles. Warps meet at the end of a task only, to add their sums. Threads: blocks share nothing. */
#ifndef OCT_CUDA_ATTN_DECODE_SM90A_H
#define OCT_CUDA_ATTN_DECODE_SM90A_H

#include "cuda/attn_finish_sm90a.h"
#include "cuda/sm90a_query.h"
#include "cuda/sm90a_score.h"

/* ---- output ------------------------------------------------------------------------------------------------------------------------------- */

/* Neighbouring dims that a lane brings of each of its four keys. */
DEV uint32_t sm90_run(const sm90_kind k)
{
    return k.dim == 64 ? 8 : 16 / k.v_size;
}

/* The lane's run of group g of its four keys among the 16 of part m: [4][words]. */
DEV void sm90_read_v(const sm90_warp *t, shared_at v, uint32_t m, uint32_t g, const sm90_kind k, uint32_t *word)
{
    const uint32_t row_bytes = k.dim * k.v_size, run_bytes = sm90_run(k) * k.v_size, row = 2 * (t->lane % 4);
    const uint32_t is_past = (g * 8 + t->lane / 4) * sm90_run(k) >= t->v_dim;   /* nothing was copied there, and nobody looks at what it gives */
    const uint32_t own = ((row * row_bytes + (is_past ? 0 : t->lane / 4 * run_bytes)) ^ (sm90_swizzle(row, row_bytes) * 16)) + (is_past ? 0 : g * 128);
    UNROLL
    for (uint32_t i = 0; i < 4; i++) {
        /* An odd row lies 64 bytes aside: by the swizzle, and by the row itself where a row has no more. */
        const shared_at at = v + (own ^ (i % 2 * 64)) + (row_bytes > 64 ? i % 2 * row_bytes : 0) + (m * 16 + i / 2 * 8) * row_bytes;
        if (run_bytes == 16) {
            const u32x4 x = shared_read_16(at);
            word[4 * i] = x.x;
            word[4 * i + 1] = x.y;
            word[4 * i + 2] = x.z;
            word[4 * i + 3] = x.w;
        } else {
            const u32x2 x = shared_read_8(at);
            word[2 * i] = x.x;
            word[2 * i + 1] = x.y;
        }
    }
}

/* o += V^T P of one group of 16 keys. b: [blocks][part stride 2]. is_solo: of one key alone, for the vectors that see it (bit `first + key` of seen). */
DEV void sm90_add(const uint32_t *word, const uint32_t *b, uint32_t b_stride, const sm90_kind k, const uint32_t dtype, const uint32_t is_solo, uint32_t key,
                  uint32_t first, const uint32_t *seen, uint32_t o_stride, float *o)
{
    const uint32_t words = sm90_run(k) * k.v_size / 4, dims = 4 / k.v_size;   /* of the run; of a word */
    UNROLL
    for (uint32_t w = 0; w < words; w++) {
        uint32_t of[4], pair[2 * 4];
        UNROLL
        for (uint32_t i = 0; i < 4; i++) {
            of[i] = is_solo && tile_v_key(i) != key ? 0 : word[i * words + w];
        }
        tile_pairs(of[0], of[1], dtype, pair);
        tile_pairs(of[2], of[3], dtype, pair + dims);
        UNROLL
        for (uint32_t m = 0; m < dims / 2; m++) {
            uint32_t a[TILE_A];
            tile_a_of_v(pair, dims, m, a);
            UNROLL
            for (uint32_t c = 0; c < k.blocks; c++) {
                float *sum = o + c * o_stride + (w * (dims / 2) + m) * 4;
                if (!is_solo) {
                    tile_mma(sum, a, b + c * b_stride, dtype == OCT_DTYPE_BF16);
                } else {
                    float with[4] = { sum[0], sum[1], sum[2], sum[3] };
                    tile_mma(with, a, b + c * b_stride, dtype == OCT_DTYPE_BF16);
                    UNROLL
                    for (uint32_t i = 0; i < 4; i++) {
                        sum[i] = seen[2 * c + i % 2] >> (first + key) & 1 ? with[i] : sum[i];
                    }
                }
            }
        }
    }
}

/* o: [blocks][groups][run / 2][4] */
DEV void sm90_output(const sm90_warp *t, shared_at v, const float *weight, uint32_t is_irregular, uint32_t *seen, const sm90_kind k, const uint32_t dtype, float *o)
{
    const uint32_t parts = k.keys / 16, run = sm90_run(k), groups = k.dim / (8 * run), o_stride = k.dim / 4;
    uint32_t b[2 * 2 * 2];
    UNROLL
    for (uint32_t i = 0; i < k.blocks * parts; i++) {
        tile_b_of_weights(weight + 4 * i, dtype == OCT_DTYPE_BF16, b + 2 * i);
    }
    if (is_irregular && dtype != OCT_DTYPE_I8) {
        uint32_t odd = 0;
        NO_UNROLL
        for (uint32_t i = 0; i < parts * groups; i++) {
            uint32_t word[16];
            sm90_read_v(t, v, i / groups, i % groups, k, word);
            UNROLL
            for (uint32_t w = 0; w < run * k.v_size; w++) {
                odd |= word_is_odd(word[w], dtype);
            }
        }
        if (warp_any(odd)) {
            UNROLL
            for (uint32_t j = 0; j < k.blocks * 2; j++) {
                UNROLL
                for (uint32_t lanes = 4; lanes < WARP; lanes *= 2) {
                    seen[j] |= shfl_xor_u32(seen[j], lanes);
                }
            }
            UNROLL
            for (uint32_t i = 0; i < parts * groups; i++) {
                const uint32_t m = i / groups, g = i % groups;
                NO_UNROLL
                for (uint32_t key = 0; key < 16; key++) {   /* key by key, each for the vectors that see it: 0 x NaN must not be */
                    uint32_t word[16];
                    sm90_read_v(t, v, m, g, k, word);
                    sm90_add(word, b + m * 2, parts * 2, k, dtype, 1, key, m * 16, seen, o_stride, o + g * run * 2);
                }
            }
            return;
        }
    }
    UNROLL
    for (uint32_t i = 0; i < parts * groups; i++) {
        const uint32_t m = i / groups, g = i % groups;
        uint32_t word[16];
        sm90_read_v(t, v, m, g, k, word);
        sm90_add(word, b + m * 2, parts * 2, k, dtype, 0, 0, 0, seen, o_stride, o + g * run * 2);
    }
}

/* Formats become constants here. */
DEV void sm90_scores_of(const sm90_warp *t, shared_at tile, const uint32_t *q, shared_at q_at, const sm90_kind k, float *s)
{
    const uint32_t dtype = k.dtype != 0 ? k.dtype : t->p->layer.k.dtype;
    if (k.k_size == 1) {
        if (dtype == OCT_DTYPE_E4M3FN) {
            sm90_scores(t, tile, q, q_at, k, OCT_DTYPE_E4M3FN, s);
        } else if (dtype == OCT_DTYPE_I8) {
            sm90_scores(t, tile, q, q_at, k, OCT_DTYPE_I8, s);
        } else if (dtype == OCT_DTYPE_E5M2) {
            sm90_scores(t, tile, q, q_at, k, OCT_DTYPE_E5M2, s);
        } else {
            sm90_scores(t, tile, q, q_at, k, OCT_DTYPE_E4M3FNUZ, s);
        }
    } else if (dtype == OCT_DTYPE_BF16) {
        sm90_scores(t, tile, q, q_at, k, OCT_DTYPE_BF16, s);
    } else {
        sm90_scores(t, tile, q, q_at, k, OCT_DTYPE_F16, s);
    }
}

DEV void sm90_output_of(const sm90_warp *t, shared_at v, const float *weight, uint32_t is_irregular, uint32_t *seen, const sm90_kind k, float *o)
{
    const uint32_t dtype = k.dtype != 0 ? k.dtype : t->p->layer.v.dtype;
    if (k.v_size == 1) {
        if (dtype == OCT_DTYPE_E4M3FN) {
            sm90_output(t, v, weight, is_irregular, seen, k, OCT_DTYPE_E4M3FN, o);
        } else if (dtype == OCT_DTYPE_I8) {
            sm90_output(t, v, weight, is_irregular, seen, k, OCT_DTYPE_I8, o);
        } else if (dtype == OCT_DTYPE_E5M2) {
            sm90_output(t, v, weight, is_irregular, seen, k, OCT_DTYPE_E5M2, o);
        } else {
            sm90_output(t, v, weight, is_irregular, seen, k, OCT_DTYPE_E4M3FNUZ, o);
        }
    } else if (dtype == OCT_DTYPE_BF16) {
        sm90_output(t, v, weight, is_irregular, seen, k, OCT_DTYPE_BF16, o);
    } else {
        sm90_output(t, v, weight, is_irregular, seen, k, OCT_DTYPE_F16, o);
    }
}

/* ---- a task's end -------------------------------------------------------------------------------------------------------------------------- */

/* Bytes between vectors of the sums in a slot; a few more than they have, where there is room, so that their writes meet more banks. */
DEV uint32_t sm90_sum_stride(const sm90_kind k)
{
    return k.dim + (8 * (k.dim + 4) * 4 <= k.stage_bytes ? 4 : 0);
}

/* store_state, whose vectors all begin at 16 bytes. */
DEV void sm90_store_state(const oct__attn_params *p, int64_t partial, uint32_t head_tile, uint32_t vector, const float *x, float m, float z)
{
    const uint32_t dim = p->layer.v.dim, d = tid() % WARP * 8;
    float *state = state_of(p, partial, head_tile), *last = state + (uint64_t)p->tile_vectors * dim + vector;
    if (d < dim) {
        UNROLL
        for (uint32_t i = 0; i < 8; i += 4) {
            const u32x4 four = { oct__f32_to_bits(x[i]), oct__f32_to_bits(x[i + 1]), oct__f32_to_bits(x[i + 2]), oct__f32_to_bits(x[i + 3]) };
            global_store_16(state + (uint64_t)vector * dim + d + i, four);
        }
    }
    if (tid() % WARP == 0) {
        PUT(*last, m);
        PUT(last[p->tile_vectors], z);
    }
}

/* Adds the sums of the warps of each head tile, in the slots that they consumed last, and hands each row on. All lanes of the block. */
DEV void sm90_gather(const sm90_warp *t, const sm90_rows *r, uint32_t free_slot, const sm90_kind k, sm90_state *state, const float *o)
{
    const oct__attn_params *p = t->p;
    const uint32_t run = sm90_run(k), groups = k.dim / (8 * run), vectors = k.blocks * 8, stride = sm90_sum_stride(k), dim_v = p->layer.v.dim, half = t->lane * 8 / k.dim;
    const uint32_t ring_bytes = k.stages * k.stage_bytes, n_splits = (uint32_t)GET(sm90_task(t, r)->n_splits), n_rows = (uint32_t)GET(sm90_task(t, r)->n_rows);
    float *m = (float *)(t->shared + t->at.state), *z = m + k.warps * vectors;
    float *own = (float *)(t->shared + t->warp * ring_bytes + free_slot * k.stage_bytes);
    UNROLL
    for (uint32_t b = 0; b < k.blocks; b++) {
        tile_sum_over_keys(state->z + 2 * b);
    }
    if (t->lane < 4) {
        UNROLL
        for (uint32_t j = 0; j < k.blocks * 2; j++) {
            SPUT(m[t->warp * vectors + j / 2 * 8 + tile_own_vector(j % 2)], state->m[j]);
            SPUT(z[t->warp * vectors + j / 2 * 8 + tile_own_vector(j % 2)], state->z[j]);
        }
    }
    if (t->lane == 0) {
        SPUT(*sm90_consumed(t, t->warp), free_slot);
    }
    UNROLL
    for (uint32_t b = 0; b < k.blocks; b++) {
        UNROLL
        for (uint32_t i = 0; i < groups * run / 2; i++) {   /* fours of dims of both own vectors */
            const uint32_t j = i % 2, four = i / 2, g = four / (run / 4), d = g * 8 * run + t->lane / 4 * run + four % (run / 4) * 4;
            const float *sum = o + b * (k.dim / 4) + g * run * 2 + four % (run / 4) * 8;
            if (d < t->v_dim && b * 8 + tile_own_vector(j) < n_rows * t->cut.n_heads) {
                const f32x4 v = { sum[j] * state->unit, sum[2 + j] * state->unit, sum[4 + j] * state->unit, sum[6 + j] * state->unit };
                shared_store_f32x4(own + tile_own_vector(j) * stride + d, v);
            }
        }
        block_sync();
        NO_UNROLL
        for (uint32_t e = t->warp; e < 8 * p->heads_a_block; e += k.warps) {
            const uint32_t head = e % p->heads_a_block, in_block = e / p->heads_a_block, vector = b * 8 + in_block;
            const uint32_t head_tile = t->head_tile - t->head + head;
            const head_cut cut = head_cut_of(p, head_tile);
            if (vector < n_rows * cut.n_heads) {
                float x[ROW_FLOATS], top = -SM90_FAR, total = 0.0f;
                UNROLL
                for (uint32_t i = 0; i < ROW_FLOATS; i++) {
                    x[i] = 0.0f;
                }
                for (uint32_t w = head * k.halves; w < k.warps; w += p->heads_a_block * k.halves) {
                    top = max_f32(top, SGET(m[w * vectors + vector]));
                }
                NO_UNROLL
                for (uint32_t w = head * k.halves; w < k.warps; w += p->heads_a_block * k.halves) {
                    const uint32_t its = k.halves == 2 ? w + (half < 2 ? half : 0) : w;
                    const float weight = exp2_fast(SGET(m[w * vectors + vector]) - top);
                    const uint32_t slot = SGET(*sm90_consumed(t, its));
                    const float *from = (const float *)(t->shared + its * ring_bytes + slot * k.stage_bytes) + in_block * stride + t->lane * 8 % (k.halves == 2 ? k.dim : 256);
                    total = fma_f32(SGET(z[w * vectors + vector]), weight, total);
                    if (t->lane * 8 < dim_v) {
                        const f32x4 low = shared_load_f32x4(from), high = shared_load_f32x4(from + 4);
                        x[0] = fma_f32(low.x, weight, x[0]);
                        x[1] = fma_f32(low.y, weight, x[1]);
                        x[2] = fma_f32(low.z, weight, x[2]);
                        x[3] = fma_f32(low.w, weight, x[3]);
                        x[4] = fma_f32(high.x, weight, x[4]);
                        x[5] = fma_f32(high.y, weight, x[5]);
                        x[6] = fma_f32(high.z, weight, x[6]);
                        x[7] = fma_f32(high.w, weight, x[7]);
                    }
                }
                top = total == 0.0f ? OCT__MINUS_INF : top * 0.693147181f;
                if (n_splits > 1) {
                    sm90_store_state(p, GET(sm90_task(t, r)->partial), head_tile, vector, x, top, total);
                } else {
                    finish_row_sm90a(p, GET(sm90_task(t, r)->row0) + vector / cut.n_heads, cut.head0 + vector % cut.n_heads, cut.head_kv,
                                     warp_shuffle_f32(t->sink, vector % cut.n_heads), t->v_scale, x, top, total, k.is_plain);   /* head is the warp's own */
                }
            }
        }
        block_sync();
    }
}

/* ---- a part ---------------------------------------------------------------------------------------------------------------------------------- */

DEV void sm90_take_rows(const sm90_warp *t, uint32_t index, sm90_rows *r)
{
    const oct__attn_params *p = t->p;
    const oct__dev_task *task = p->tasks + index;
    const uint32_t n_rows = (uint32_t)GET(task->n_rows);
    r->task = index;
    r->key0 = GET(task->key0);
    r->key1 = GET(task->key1);
    r->pos0 = GET(task->pos0);
    const int64_t from = p->window > 0 ? (int64_t)r->pos0 + n_rows - (int64_t)p->window : 0;
    r->seen_from = from > 0 ? (int32_t)from : 0;
    r->seen_to = p->causal ? r->pos0 + 1 : 0x7FFFFFFF;
    if (p->mask != 0) {
        const int32_t mask_key0 = sm90_mask_key0(t, r);
        r->seen_to = r->seen_to < mask_key0 ? r->seen_to : mask_key0;
    }
}

/* Static scales and sinks: asked for before K and V, looked at after them. */
DEV void sm90_ask_scales(sm90_warp *t)
{
    const oct__attn_params *p = t->p;
    t->q_scale = p->q_scale != 0 ? GET(*p->q_scale) : 1.0f;
    t->k_scale = static_scale(&p->layer.k, t->cut.head_kv);
    t->v_scale = static_scale(&p->layer.v, t->cut.head_kv);
    t->sink = p->sink != 0 && t->lane < t->cut.n_heads ? GET(p->sink[t->cut.head0 + t->lane]) : OCT__MINUS_INF;
}

/* Tasks [begin, end) for the block's head tiles. waited: whether the kernel ahead has ended; its end is waited for once what the plan says has been read. */
DEV void sm90_run_part(sm90_warp *t, uint32_t begin, uint32_t end, uint32_t *waited, const sm90_kind k)
{
    const shared_at q_at = shared_at_of(t->shared + t->at.q + (t->head * k.halves + t->half) * oct__sm90a_q_bytes(k.dim, k.blocks * 8));
    sm90_stream stream;
    sm90_state state;
    uint32_t q[32], slot = 0;
    float o[2 * 32];
    stream.task = begin;
    stream.end = end;
    stream.slot = 0;
    stream.scale_slot = k.stages;
    stream.k_scale = stream.v_scale = 1.0f;
    stream.base = stream.key0 = stream.key1 = 0;
    stream.pages = 0;
    stream.token = 0;
    UNROLL
    for (uint32_t i = 0; i < k.stages; i++) {
        stream.seen[i] = 0;
    }
    sm90_open_task(t, &stream, k);   /* from the plan, which stood before any kernel after it began, as did the batch's kv_indptr: it is older */
    if (!*waited) {
        wait_previous();
        launch_next();
        *waited = 1;
    }
    sm90_ask_scales(t);
    sm90_find(t, &stream, k);
    NO_UNROLL
    for (uint32_t i = begin; i < end; i++) {
        sm90_rows r;
        uint32_t raw[16];
        float *spare = (float *)(t->shared + t->warp * k.stages * k.stage_bytes + (slot == 0 ? k.stages - 1 : slot - 1) * k.stage_bytes);
        sm90_take_rows(t, i, &r);
        if (k.is_plain && i == begin) {
            if (t->share == 0) {
                sm90_ask_q(t, &r, sm90_next_q(t, k, t->half), k);
            }
            async_commit();
        } else if (k.is_plain) {
            ;   /* it is there */
        } else if (k.blocks == 1) {
            sm90_fetch_q(t, &r, 0, t->half, k, raw);
        } else {   /* too many registers to be held any longer */
            sm90_bring_q(t, &r, spare, q_at, k, &state, raw, q);
        }
        if (i == begin) {   /* q first: behind the requests of all blocks for K and V it would wait for them */
            NO_UNROLL
            for (uint32_t stage = 0; stage + 1 < k.stages; stage++) {
                sm90_issue(t, &stream, k);
            }
        }
        if (k.is_plain && i == begin) {
            async_wait(k.stages - 1);
            block_sync();
        }
        if (k.is_plain || k.blocks == 1) {
            sm90_bring_q(t, &r, spare, q_at, k, &state, raw, q);
        }
        UNROLL
        for (uint32_t j = 0; j < k.blocks * k.dim / 4; j++) {
            o[j] = 0.0f;
        }
        if (k.is_plain || oct__sm90a_q_bytes(k.dim, k.blocks * 8) != 0) {
            block_sync();
        }
        uint32_t n_tiles = 0;
        if (k.is_plain && t->share == 0 && i + 1 < end) {   /* long before it is wanted, since it waits behind the requests of all blocks; part of the next tile's group */
            sm90_rows next;
            sm90_take_rows(t, i + 1, &next);
            sm90_ask_q(t, &next, sm90_next_q(t, k, t->half), k);
        }
        NO_UNROLL
        for (int32_t base = (int32_t)((uint32_t)r.key0 / k.keys * k.keys + t->share * k.keys); base < r.key1; base += (int32_t)(sm90_shares(t, k) * k.keys)) {
            const shared_at tile = t->ring + slot * k.stage_bytes;
            float s[2 * 2 * 4];
            uint32_t seen[4] = { 0, 0, 0, 0 };
            async_wait(k.stages - 2);
            sm90_pair_sync(t, k);
            sm90_issue(t, &stream, k);
            if (k.stages == 2 && t->has_scales) {
                warp_sync();   /* this tile's scales have only just come to their place */
            }
            sm90_scores_of(t, tile, q, q_at, k, s);
            if (k.halves == 2) {
                sm90_exchange(t, tile, k, s);
            }
            const uint32_t is_irregular = sm90_weights(t, &r, base, slot, stream.seen[0], k, &state, s, o, seen);
            if (k.halves == 1 || t->v_dim > 0) {
                sm90_output_of(t, tile + k.keys * k.dim * k.k_size, s, is_irregular, seen, k, o);
            }
            slot = slot + 1 == k.stages ? 0 : slot + 1;
            n_tiles++;
        }
        if (k.is_plain && n_tiles < k.stages) {   /* else the waits for tiles have seen to it */
            async_commit();
            async_wait(0);
        }
        sm90_pair_sync(t, k);   /* the sums go where the other half may still read scores */
        sm90_gather(t, &r, slot == 0 ? k.stages - 1 : slot - 1, k, &state, o);
    }
    async_wait(0);
    block_sync();
}

#define SM90_IS_ONE(k_size, dtype) ((dtype) != 0 || (k_size) == 2)

DEV void sm90_blocks(const oct__attn_params *p, uint8_t *shared, const uint32_t k_size, const uint32_t v_size, const uint32_t dim, const uint32_t vectors, const uint32_t dtype, const uint32_t is_plain)
{
    const oct__sm90a_shared at = oct__sm90a_shared_of(k_size, v_size, dim, vectors, SM90_IS_ONE(k_size, dtype), p->heads_a_block);
    const sm90_kind k = { k_size, v_size, dim > 128 ? 128 : dim, OCT__SM90A_WARPS(dim, vectors), dim > 128 ? 2 : 1, vectors / 8, at.keys, at.stages, at.stage_bytes, dtype, is_plain };
    const oct__dev_layer *layer = &p->layer;
    const uint32_t n_blocks = p->n_head_tiles / p->heads_a_block, n_work = p->n_parts * n_blocks;   /* parts are at most 2^15 */
    sm90_warp t;
    t.p = p;
    t.warp = tid() / WARP;
    t.lane = tid() % WARP;
    t.half = t.warp % k.halves;
    t.head = t.warp / k.halves % p->heads_a_block;
    t.share = t.warp / k.halves / p->heads_a_block;
    t.k_dim = layer->k.dim <= t.half * k.dim ? 0 : layer->k.dim - t.half * k.dim < k.dim ? layer->k.dim - t.half * k.dim : k.dim;
    t.v_dim = layer->v.dim <= t.half * k.dim ? 0 : layer->v.dim - t.half * k.dim < k.dim ? layer->v.dim - t.half * k.dim : k.dim;
    t.shared = shared;
    t.at = at;
    t.ring = shared_at_of(shared + t.warp * at.stages * at.stage_bytes);
    t.has_k_scale = layer->k.scale_mode == OCT_SCALE_TOKEN_HEAD;
    t.has_v_scale = layer->v.scale_mode == OCT_SCALE_TOKEN_HEAD;
    t.has_scales = t.has_k_scale || t.has_v_scale;
    t.page_shift = 0;
    while (t.page_shift < 32 && 1u << t.page_shift < layer->page_size) {
        t.page_shift++;
    }
    t.page_shift = 1u << t.page_shift == layer->page_size ? t.page_shift : 32;
    const uint64_t k_places = (uint64_t)layer->k.page_stride | (uint64_t)layer->k.token_stride | (uint64_t)layer->k.head_stride;
    const uint64_t v_places = (uint64_t)layer->v.page_stride | (uint64_t)layer->v.token_stride | (uint64_t)layer->v.head_stride;
    const uint32_t is_wide = (((uint64_t)(uintptr_t)layer->k.base | (uint64_t)(uintptr_t)layer->v.base | (k_places | layer->k.dim) * k_size |
                               (v_places | layer->v.dim) * v_size) & 15) == 0;
    const uint64_t k_page = (uint64_t)layer->k.page_stride * k_size / 16, v_page = (uint64_t)layer->v.page_stride * v_size / 16;
    const uint64_t k_token = (uint64_t)layer->k.token_stride * k_size / 16, v_token = (uint64_t)layer->v.token_stride * v_size / 16;
    const uint64_t page = k_page > v_page ? k_page : v_page, token = k_token > v_token ? k_token : v_token;
    t.n_pages = layer->n_pages < INT32_MAX ? (uint32_t)layer->n_pages : INT32_MAX;
    t.k_page = (uint32_t)k_page;
    t.v_page = (uint32_t)v_page;
    t.k_token = (uint32_t)k_token;
    t.v_token = (uint32_t)v_token;
    t.form = k.is_plain ? SM90_ALIKE
             : !is_wide ? SM90_NARROW
             : page >= UINT32_MAX || token >= UINT32_MAX || page * t.n_pages + token * layer->page_size >= UINT32_MAX ? SM90_WIDE
             : k_page != v_page || k_token != v_token ? SM90_NEAR : SM90_ALIKE;
    uint32_t waited = 0;
    NO_UNROLL
    for (uint32_t work = (uint32_t)block_id(); work < n_work; work += (uint32_t)block_count()) {
        const uint32_t part = work / n_blocks;
        t.head_tile = work % n_blocks * p->heads_a_block + t.head;
        t.cut = head_cut_of(p, t.head_tile);
        t.k_chunk = as_it_is_u64((uint64_t)(uintptr_t)layer->k.base + (uint64_t)t.cut.head_kv * (uint64_t)layer->k.head_stride * k_size + t.half * k.dim * k_size +
                                 sm90_own_bytes(&t, k_size, k));
        t.v_chunk = as_it_is_u64((uint64_t)(uintptr_t)layer->v.base + (uint64_t)t.cut.head_kv * (uint64_t)layer->v.head_stride * v_size + t.half * k.dim * v_size +
                                 sm90_own_bytes(&t, v_size, k));
        sm90_run_part(&t, GET(p->parts[part]), GET(p->parts[part + 1]), &waited, k);
    }
    if (!waited) {
        wait_previous();
        launch_next();
    }
}

/* attn_decode_sm90a_<bits of K>_<bits of V>_<dims>_<vectors>, of all formats of those bits; and of K and V of one format alone: a cold kernel waits for its
 * instructions, and these have a fourth of them. */
#define SM90_KERNEL_OF(name, k_bits, v_bits, dim, vectors, dtype)                                                                                       \
    KERNEL(attn_decode_sm90a_##name##_##dim##_##vectors, 32 * OCT__SM90A_WARPS(dim, vectors), OCT__SM90A_BLOCKS(k_bits / 8, v_bits / 8, dim, vectors, SM90_IS_ONE(k_bits / 8, dtype)), oct__attn_params)                \
    {                                                                                                                                                    \
        SHARED_DYNAMIC(uint8_t, shared);                                                                                                                 \
        sm90_blocks(p, shared, k_bits / 8, v_bits / 8, dim, vectors, dtype, 0);                                                                          \
    }
#define SM90_KERNEL(k_bits, v_bits, dim, vectors) SM90_KERNEL_OF(k_bits##_##v_bits, k_bits, v_bits, dim, vectors, 0)

/* What oct__dev_sm90a_make_plain has seen of the parameters, as constants. */
DEV oct__attn_params sm90_plain_params(const oct__attn_params *p, const uint32_t dtype)
{
    oct__attn_params own = *p;
    own.softcap = 0.0f;
    own.mask = 0;
    own.out_scale = 0;
    own.q_dtype = own.out_dtype = OCT_DTYPE_BF16;
    own.layer.k.dtype = own.layer.v.dtype = dtype;
    own.layer.v.rotated = 0;
    if (dtype == OCT_DTYPE_I8) {
        own.layer.k.scale_mode = own.layer.v.scale_mode = OCT_SCALE_TOKEN_HEAD;
        own.layer.k.scale_dtype = own.layer.v.scale_dtype = OCT_DTYPE_F32;
    } else {
        own.layer.k.rotated = 0;
        own.layer.k.scale_mode = own.layer.k.scale_mode < OCT_SCALE_LAYER_HEAD ? own.layer.k.scale_mode : OCT_SCALE_LAYER_HEAD;
        own.layer.v.scale_mode = own.layer.v.scale_mode < OCT_SCALE_LAYER_HEAD ? own.layer.v.scale_mode : OCT_SCALE_LAYER_HEAD;
    }
    return own;
}

/* attn_decode_sm90a_plain_<format>_<dims>_<vectors>: of what is usual, in a fourth of the text. */
#define SM90_PLAIN_KERNEL(name, size, dim, vectors, dtype)                                                                                               \
    KERNEL(attn_decode_sm90a_plain_##name##_##dim##_##vectors, 32 * OCT__SM90A_WARPS(dim, vectors), OCT__SM90A_BLOCKS(size, size, dim, vectors, 1), oct__attn_params)                    \
    {                                                                                                                                                    \
        SHARED_DYNAMIC(uint8_t, shared);                                                                                                                 \
        const oct__attn_params own = sm90_plain_params(p, dtype);                                                                                        \
        sm90_blocks(&own, shared, size, size, dim, vectors, dtype, 1);                                                                                   \
    }
SM90_PLAIN_KERNEL(e4m3, 1, 64, 8, OCT_DTYPE_E4M3FN)
SM90_PLAIN_KERNEL(e4m3, 1, 64, 16, OCT_DTYPE_E4M3FN)
SM90_PLAIN_KERNEL(e4m3, 1, 128, 8, OCT_DTYPE_E4M3FN)
SM90_PLAIN_KERNEL(e4m3, 1, 128, 16, OCT_DTYPE_E4M3FN)
SM90_PLAIN_KERNEL(e4m3, 1, 256, 8, OCT_DTYPE_E4M3FN)
SM90_PLAIN_KERNEL(e4m3, 1, 256, 16, OCT_DTYPE_E4M3FN)
SM90_PLAIN_KERNEL(i8, 1, 64, 8, OCT_DTYPE_I8)
SM90_PLAIN_KERNEL(i8, 1, 64, 16, OCT_DTYPE_I8)
SM90_PLAIN_KERNEL(i8, 1, 128, 8, OCT_DTYPE_I8)
SM90_PLAIN_KERNEL(i8, 1, 128, 16, OCT_DTYPE_I8)
SM90_PLAIN_KERNEL(i8, 1, 256, 8, OCT_DTYPE_I8)
SM90_PLAIN_KERNEL(i8, 1, 256, 16, OCT_DTYPE_I8)
SM90_PLAIN_KERNEL(bf16, 2, 64, 8, OCT_DTYPE_BF16)
SM90_PLAIN_KERNEL(bf16, 2, 128, 8, OCT_DTYPE_BF16)
SM90_PLAIN_KERNEL(bf16, 2, 128, 16, OCT_DTYPE_BF16)
SM90_PLAIN_KERNEL(bf16, 2, 256, 8, OCT_DTYPE_BF16)
SM90_PLAIN_KERNEL(bf16, 2, 256, 16, OCT_DTYPE_BF16)

SM90_KERNEL_OF(e4m3, 8, 8, 64, 8, OCT_DTYPE_E4M3FN)
SM90_KERNEL_OF(e4m3, 8, 8, 128, 8, OCT_DTYPE_E4M3FN)
SM90_KERNEL_OF(e4m3, 8, 8, 256, 8, OCT_DTYPE_E4M3FN)
SM90_KERNEL_OF(e4m3, 8, 8, 64, 16, OCT_DTYPE_E4M3FN)
SM90_KERNEL_OF(e4m3, 8, 8, 128, 16, OCT_DTYPE_E4M3FN)
SM90_KERNEL_OF(e4m3, 8, 8, 256, 16, OCT_DTYPE_E4M3FN)
SM90_KERNEL_OF(i8, 8, 8, 64, 8, OCT_DTYPE_I8)
SM90_KERNEL_OF(i8, 8, 8, 128, 8, OCT_DTYPE_I8)
SM90_KERNEL_OF(i8, 8, 8, 256, 8, OCT_DTYPE_I8)
SM90_KERNEL_OF(i8, 8, 8, 64, 16, OCT_DTYPE_I8)
SM90_KERNEL_OF(i8, 8, 8, 128, 16, OCT_DTYPE_I8)
SM90_KERNEL_OF(i8, 8, 8, 256, 16, OCT_DTYPE_I8)
SM90_KERNEL(8, 8, 64, 8)
SM90_KERNEL(8, 8, 128, 8)
SM90_KERNEL(8, 8, 256, 8)
SM90_KERNEL(8, 8, 64, 16)
SM90_KERNEL(8, 8, 256, 16)
SM90_KERNEL(16, 16, 64, 8)
SM90_KERNEL(16, 16, 128, 8)
SM90_KERNEL(16, 16, 256, 8)
SM90_KERNEL(16, 16, 128, 16)
SM90_KERNEL(16, 16, 256, 16)
SM90_KERNEL(8, 16, 128, 8)
SM90_KERNEL(8, 16, 256, 8)
SM90_KERNEL(16, 8, 128, 8)
SM90_KERNEL(16, 8, 256, 8)

#endif
