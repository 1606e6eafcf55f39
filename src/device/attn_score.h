/* attn_score.h: owns what attn_mma.h makes of q and K: q's fragments, and the scores of a tile. K is multiplied as it is stored where the matrix units take its
 * format (i8 everywhere, the chip's own e4m3), else in 16 bits.
 *
 * 8-bit products: q, brought to [1, 2) by a power of two, is the sum of two codes of K's kind, the nearest one and that of what it leaves, and each has products of
 * its own: as many as in 16 bits, since a step is twice as long, and nothing is converted. In e4m3 that holds q to 2^-8 of each element, in i8 to 2^-15 of the largest.
 * On an H200, 32/8 heads x 128 dims, 64 x 4,096 keys (tools/h200/decode -k mma; microseconds): i8 by f16 262, as it is stored 259, and with a fifth less error; at 256 dims
 * 264 and 258. e4m3 by f16 223 to 226, by mma.sync's e4m3, which that chip does not have but as conversions and products of f16, 256.
 * A q that is not finite makes the row NaN through its factor: codes could not say it. */
#ifndef OCT_DEVICE_ATTN_SCORE_H
#define OCT_DEVICE_ATTN_SCORE_H

#include "device/attn_finish.h"
#include "device/attn_ring.h"

#define MMA_WARPS (OCT__MMA_LANES / WARP)

/* Tiles of vectors of a warp; wide rows leave no registers for a second one. */
#define MMA_N_MAX 2u
DEV uint32_t form_n(const mma_form f)
{
    return f.is_extend && f.dim <= 128 ? 2u : 1u;
}

/* Vectors of a block. */
DEV uint32_t form_vectors(const mma_form f)
{
    return f.is_extend ? MMA_WARPS * form_n(f) * TILE_VECTORS : TILE_VECTORS;
}

/* Of q, 16-byte chunks of K in a lane; of o, groups of runs and floats in a lane, for one tile of vectors. */
#define FORM_CK(f) ((f).dim * (f).k_size / 64)
#define FORM_GV(f) ((f).dim / (TILE_V_RUN((f).v_size) * TILE_V_POSITIONS))
#define FORM_O(f) (FORM_GV(f) * TILE_M(TILE_V_RUN((f).v_size)) * 4)
#define FORM_Q(f) (FORM_CK(f) * (16 / (f).k_size / 4) * 2)
/* Long rows of q stay in shared memory, as fragments: registers hold the output. */
#define FORM_Q_IS_SHARED(f) ((f).dim > 128)

/* What a warp knows of its tile. */
typedef struct mma_tile {
    const oct__attn_params *p;
    head_cut cut;
    uint32_t n_vectors, vector0;           /* of the block; the warp's first */
    int32_t pos0, mask_key0;
    uint32_t open0, open1, some0, some1;    /* keys that every row of the warp's vectors sees; that some row may see */
    int64_t row0;
    /* shared: of the block */
    float *q, *factor, *m, *z;
    /* of the lane's own vectors */
    float own_factor[MMA_N_MAX * TILE_OWN];   /* of a raw score */
    uint32_t own_row[MMA_N_MAX * TILE_OWN];
    int is_own[MMA_N_MAX * TILE_OWN];         /* the vector exists */
} mma_tile;

/* Vector of the block that the lane owns as its j-th of tile i. */
DEV uint32_t mma_vector(const mma_tile *t, uint32_t i, uint32_t j)
{
    return t->vector0 + i * TILE_VECTORS + tile_own_vector(j);
}

/* What q of [1, 2) is multiplied by before it becomes codes: the largest stay in the format. A second code of i8 is in units of 1 / Q_SECOND_I8 of the first's. */
#define Q_SECOND_I8 256.0f
#define Q_UNIT(dtype) ((dtype) == OCT_DTYPE_I8 ? 63.5f : (dtype) == OCT_DTYPE_E4M3FNUZ ? 64.0f : 128.0f)

/* Whether K of this format is multiplied as it is stored; and then, what a raw score is divided by. */
DEV int mma_takes_codes(uint32_t dtype)
{
    return dtype == OCT_DTYPE_I8 || (TILE_FP8(OCT_DTYPE_E4M3FN) && dtype == OCT_DTYPE_E4M3FN) || (TILE_FP8(OCT_DTYPE_E4M3FNUZ) && dtype == OCT_DTYPE_E4M3FNUZ);
}

DEV float mma_q_unit(uint32_t dtype)
{
    return mma_takes_codes(dtype) ? 1.0f / Q_UNIT(dtype) : 1.0f;
}

/* ---- scores --------------------------------------------------------------------------------------------------------------------------- */

/* A lane's word pair of q's fragments in shared memory, which take q's place; decode's warps have the same ones. */
DEV uint8_t *mma_q_fragment(const mma_tile *t, const mma_form f, uint32_t pair)
{
    const uint32_t warp = f.is_extend ? tid() / WARP : 0;
    return (uint8_t *)t->q + ((warp * form_n(f) * (FORM_Q(f) / 2) + pair) * WARP + tid() % WARP) * 8;
}

/* Pair `pair` of q's words for tile n of vectors. */
DEV void mma_q_pair(const mma_tile *t, const uint32_t *q, const mma_form f, uint32_t n, uint32_t pair, uint32_t *b)
{
    const uint32_t at = n * FORM_Q(f) + pair * 2;
    if (FORM_Q_IS_SHARED(f)) {
        const u32x2 two = shared_load_8(mma_q_fragment(t, f, at / 2));
        b[0] = two.x;
        b[1] = two.y;
    } else {
        b[0] = q[at];
        b[1] = q[at + 1];
    }
}

DEV void mma_k_chunks(uint8_t *rows, const mma_form f, uint32_t c, uint32_t *word)
{
    UNROLL
    for (uint32_t i = 0; i < TILE_K_ROWS; i++) {
        const u32x4 x = shared_load_16(ring_chunk(rows, form_k_row(f), tile_k_key(i), tile_part() + 4 * c));
        word[4 * i] = x.x;
        word[4 * i + 1] = x.y;
        word[4 * i + 2] = x.z;
        word[4 * i + 3] = x.w;
    }
}

/* s[n][4] = K q of the tile, raw. q: [n][steps][2] words. */
DEV void mma_scores(const mma_tile *t, uint8_t *rows, const uint32_t *q, const uint32_t dtype, const mma_form f, float *s)
{
    const uint32_t steps = dtype >= OCT_DTYPE_E4M3FN ? 4 : 2;   /* of a chunk */
    float odd[4 * MMA_N_MAX];                                   /* of every other step: two chains of products that wait for each other */
    UNROLL
    for (uint32_t i = 0; i < 4 * form_n(f); i++) {
        s[i] = odd[i] = 0.0f;
    }
    UNROLL
    for (uint32_t c = 0; c < FORM_CK(f); c++) {
        uint32_t word[4 * TILE_K_ROWS];
        mma_k_chunks(rows, f, c, word);
        UNROLL
        for (uint32_t n = 0; n < steps; n++) {
            uint32_t row[TILE_K_ROWS * 2], a[TILE_A];
            UNROLL
            for (uint32_t i = 0; i < TILE_K_ROWS; i++) {
                if (dtype >= OCT_DTYPE_E4M3FN) {
                    to_16(word[4 * i + n], dtype, row + 2 * i);
                } else {
                    row[2 * i] = word[4 * i + 2 * n % 4];
                    row[2 * i + 1] = word[4 * i + (2 * n + 1) % 4];
                }
            }
            tile_a_of_k(row, a);
            UNROLL
            for (uint32_t i = 0; i < form_n(f); i++) {
                uint32_t b[2];
                mma_q_pair(t, q, f, i, c * steps + n, b);
                tile_mma((n % 2 ? odd : s) + 4 * i, a, b, dtype == OCT_DTYPE_BF16);
            }
        }
    }
    UNROLL
    for (uint32_t i = 0; i < 4 * form_n(f); i++) {
        s[i] += odd[i];
    }
}

/* The same with K as it is stored, i8 or e4m3. Of a chunk, q has four pairs: first and second codes of its lower half, and of its upper one. */
DEV void mma_scores_codes(const mma_tile *t, uint8_t *rows, const uint32_t *q, const uint32_t dtype, const mma_form f, float *s)
{
    float second[4 * MMA_N_MAX];                       /* of q's second codes */
    int32_t whole[4 * MMA_N_MAX], rest[4 * MMA_N_MAX];   /* of i8: at most 127 x 127 x 256: exact, in f32 too */
    UNROLL
    for (uint32_t i = 0; i < 4 * form_n(f); i++) {
        s[i] = second[i] = 0.0f;
        whole[i] = rest[i] = 0;
    }
    UNROLL
    for (uint32_t c = 0; c < FORM_CK(f); c++) {
        uint32_t word[4 * TILE_K_ROWS];
        mma_k_chunks(rows, f, c, word);
        UNROLL
        for (uint32_t half = 0; half < 2; half++) {
            uint32_t row[TILE_K_ROWS * 2], a[TILE_A];
            UNROLL
            for (uint32_t i = 0; i < TILE_K_ROWS * 2; i++) {
                row[i] = word[i / 2 * 4 + 2 * half + i % 2];
            }
            tile_a_of_k(row, a);
            UNROLL
            for (uint32_t i = 0; i < 2 * form_n(f); i++) {
                uint32_t b[2];
                mma_q_pair(t, q, f, i / 2, 4 * c + 2 * half + i % 2, b);
                if (dtype == OCT_DTYPE_I8) {
                    tile_mma_i8((i % 2 ? rest : whole) + 4 * (i / 2), a, b);
                } else {
                    tile_mma_fp8((i % 2 ? second : s) + 4 * (i / 2), a, b, dtype, 0);
                }
            }
        }
    }
    UNROLL
    for (uint32_t i = 0; i < 4 * form_n(f); i++) {
        s[i] = dtype == OCT_DTYPE_I8 ? (float)whole[i] + (float)rest[i] * (1.0f / Q_SECOND_I8) : s[i] + second[i];
    }
}

/* By two chunks: steps of 128. */
DEV void mma_scores_fp8_wide(const mma_tile *t, uint8_t *rows, const uint32_t *q, const mma_form f, float *s)
{
    float second[4 * MMA_N_MAX];
    UNROLL
    for (uint32_t i = 0; i < 4 * form_n(f); i++) {
        s[i] = second[i] = 0.0f;
    }
    UNROLL
    for (uint32_t c = 0; c < FORM_CK(f); c += 2) {
        uint32_t a[8];
        mma_k_chunks(rows, f, c, a);
        mma_k_chunks(rows, f, c + 1, a + 4);
        UNROLL
        for (uint32_t i = 0; i < 2 * form_n(f); i++) {
            uint32_t b[8];
            UNROLL
            for (uint32_t half = 0; half < 4; half++) {
                mma_q_pair(t, q, f, i / 2, 4 * c + 2 * half + i % 2, b + 2 * half);
            }
            tile_mma_fp8_wide((i % 2 ? second : s) + 4 * (i / 2), a, b);
        }
    }
    UNROLL
    for (uint32_t i = 0; i < 4 * form_n(f); i++) {
        s[i] += second[i];
    }
}

/* ---- q --------------------------------------------------------------------------------------------------------------------------------- */

/* The lane's fragments of q: [n][steps][2]. */
DEV void mma_take_q(const mma_tile *t, const mma_form f, int is_bf16, uint32_t *q)
{
    const uint32_t chunk = 16 / f.k_size;
    UNROLL
    for (uint32_t i = 0; i < form_n(f); i++) {
        UNROLL
        for (uint32_t c = 0; c < FORM_CK(f); c++) {
            UNROLL
            for (uint32_t n = 0; n < chunk / 4; n++) {
                const uint32_t d = (tile_part() + 4 * c) * chunk + 4 * n;
                uint32_t *to = q + i * FORM_Q(f) + (c * (chunk / 4) + n) * 2;
                const f32x4 x = shared_load_f32x4(t->q + (t->vector0 + i * TILE_VECTORS + tile_q_vector()) * f.dim + d);
                to[0] = is_bf16 ? pack_bf16(x.x, x.y) : pack_f16(x.x, x.y);
                to[1] = is_bf16 ? pack_bf16(x.z, x.w) : pack_f16(x.z, x.w);
            }
        }
    }
}

/* x as the whole number of 16 bits nearest to it in units of 1 / Q_SECOND_I8, of which the second code is the signed low byte and the first what is left: every number of
 * that size is there, so that whole q up to 127 (and any q of 7 bits) are held exactly. Two roundings would not do: a rest of half a unit has no second code, and integers of
 * one sign would be off by 2^-14 of themselves, which scores hundreds apart do not forgive. Past +-127 (|q| of 2^126 and more, which mma_bring_q does not bring below 2) it stays at the end: sixteen bits would turn the sign. */
DEV void q_codes_i8(float x, uint32_t *first, uint32_t *second)
{
    x = -max_f32(-max_f32(x, -127.0f), -127.0f);
    const uint32_t n = oct__f32_to_bits(x * Q_SECOND_I8 + 0x1.8p23f);
    *second = n & 0xFFu;
    *first = (n + 128) >> 8 & 0xFFu;
}

DEV void q_codes(const f32x4 x, const uint32_t dtype, uint32_t *first, uint32_t *second)
{
    float y[4] = { x.x * Q_UNIT(dtype), x.y * Q_UNIT(dtype), x.z * Q_UNIT(dtype), x.w * Q_UNIT(dtype) };
    if (dtype == OCT_DTYPE_I8) {
        *first = *second = 0;
        UNROLL
        for (uint32_t i = 0; i < 4; i++) {
            uint32_t high, low;
            q_codes_i8(y[i], &high, &low);
            *first |= high << (8 * i);
            *second |= low << (8 * i);
        }
    } else {
        float near[4];
        UNROLL
        for (uint32_t i = 0; i < 4; i++) {
            y[i] = tile_no_negative_zero(y[i], dtype, 0x1p-10f);
        }
        *first = encode_fp8_4(y, dtype, 0);
        decode_word(*first, dtype, near);
        UNROLL
        for (uint32_t i = 0; i < 4; i++) {
            y[i] = tile_no_negative_zero(y[i] - near[i], dtype, 0x1p-10f);
        }
        *second = encode_fp8_4(y, dtype, 0);
    }
}

/* As mma_take_q, in codes of K's format. */
DEV void mma_take_q_codes(const mma_tile *t, const mma_form f, const uint32_t dtype, uint32_t *q)
{
    UNROLL
    for (uint32_t i = 0; i < form_n(f); i++) {
        UNROLL
        for (uint32_t c = 0; c < FORM_CK(f); c++) {
            UNROLL
            for (uint32_t n = 0; n < 4; n++) {   /* words of the chunk */
                const uint32_t d = (tile_part() + 4 * c) * 16 + 4 * n, pair = 4 * c + n / 2 * 2;
                uint32_t *to = q + i * FORM_Q(f) + pair * 2 + n % 2;
                q_codes(shared_load_f32x4(t->q + (t->vector0 + i * TILE_VECTORS + tile_q_vector()) * f.dim + d), dtype, &to[0], &to[2]);
            }
        }
    }
}

DEV void mma_take_q_of(const mma_tile *t, uint32_t dtype, const mma_form f, uint32_t *q)
{
    if (f.k_size == 1 && dtype == OCT_DTYPE_I8) {
        mma_take_q_codes(t, f, OCT_DTYPE_I8, q);
    } else if (f.k_size == 1 && TILE_FP8(OCT_DTYPE_E4M3FN) && dtype == OCT_DTYPE_E4M3FN) {
        mma_take_q_codes(t, f, OCT_DTYPE_E4M3FN, q);
    } else if (f.k_size == 1 && TILE_FP8(OCT_DTYPE_E4M3FNUZ) && dtype == OCT_DTYPE_E4M3FNUZ) {
        mma_take_q_codes(t, f, OCT_DTYPE_E4M3FNUZ, q);
    } else {
        mma_take_q(t, f, f.k_size == 2 && dtype == OCT_DTYPE_BF16, q);
    }
}

/* Formats become constants here. */
DEV void mma_scores_8(const mma_tile *t, uint8_t *rows, const uint32_t *q, const uint32_t dtype, const mma_form f, float *s)
{
    if (TILE_FP8_WIDE(dtype)) {
        mma_scores_fp8_wide(t, rows, q, f, s);
    } else if (dtype == OCT_DTYPE_I8 || TILE_FP8(dtype)) {
        mma_scores_codes(t, rows, q, dtype, f, s);
    } else {
        mma_scores(t, rows, q, dtype, f, s);
    }
}

DEV void mma_scores_of(const mma_tile *t, uint8_t *rows, const uint32_t *q, uint32_t dtype, const mma_form f, float *s)
{
    if (f.k_size == 1) {
        switch (dtype) {
        case OCT_DTYPE_E4M3FN:
            mma_scores_8(t, rows, q, OCT_DTYPE_E4M3FN, f, s);
            break;
        case OCT_DTYPE_E4M3FNUZ:
            mma_scores_8(t, rows, q, OCT_DTYPE_E4M3FNUZ, f, s);
            break;
        case OCT_DTYPE_E5M2:
            mma_scores_8(t, rows, q, OCT_DTYPE_E5M2, f, s);
            break;
        default:
            mma_scores_8(t, rows, q, OCT_DTYPE_I8, f, s);
            break;
        }
    } else if (dtype == OCT_DTYPE_F16) {
        mma_scores(t, rows, q, OCT_DTYPE_F16, f, s);
    } else {
        mma_scores(t, rows, q, OCT_DTYPE_BF16, f, s);
    }
}

#endif
