/* tile.h: owns the matrix units as kernel texts see them: one warp, 16 keys a tile, operands of 16 or 8 bits, f32 sums. Two shapes behind one set of words:
 * mma.sync m16n8k16 of NVIDIA (warps of 32, 8 query vectors a tile) and MFMA 16x16x16 of AMD (warps of 64, 16 vectors). The host executor
 * runs both fragment layouts, so that a wrong lane is found without a GPU.
 *
 * Scores are S[key][vector] = K q, sums O[dim][vector] += V^T P: keys, then dims, lie along the 16 rows of A, so that a vector's factor is
 * already in the lanes that rescale its sums.
 *
 *   TILE_KEYS 16, TILE_VECTORS 8 | 16
 *   TILE_K_ROWS 2 | 1       keys whose K a lane brings: tile_k_key(i); of their 16-byte chunks it takes tile_part() + 4 n, and of a chunk four elements
 *                           make a step of 16 dims with the other three parts'. q comes in the same order: tile_q_vector(), same part, same elements
 *   TILE_OWN 2 | 1          vectors that a lane's scores and sums belong to: tile_own(i), of element i of the four of a fragment, is which of them
 *   tile_own_vector(j), tile_s_key(i)    vector j of a lane; key of score i
 *   tile_v_key(i)           the 4 keys whose V a lane brings: TILE_V_RUN(bytes of an element) neighbouring dims of each, the run tile_v_position() of
 *                           TILE_V_POSITIONS
 *   tile_o_dim(run, m, i)   dim within a group of runs of element i of the sums of tile m (of TILE_M(run) a group)
 *
 *   tile_mma(d, a, b, is_bf16)            d[4] += A B, all lanes of the warp. a: TILE_A words, b: 2 words
 *   tile_a_of_k(k, a)                     k: [TILE_K_ROWS][2] words, a step's four elements of each row
 *   tile_a_of_v(pair, run, m, a)          pair: see tile_pairs
 *   tile_b_of_weights(p, is_bf16, b)      from 4 scores' places to B; all lanes of the warp
 *   tile_max_over_keys(s, m), tile_sum_over_keys(z)    over the tile's keys, of each own vector; all lanes of the warp
 *   to_16(word, dtype, out)               the 4 elements of an 8-bit word as two pairs of f16, exactly. dtype: a constant
 *
 * Of 8-bit elements, multiplied as they are stored, in steps of 32:
 *   TILE_FP8(dtype)                       whether the chip multiplies them so. dtype: a constant; i8: always
 *   tile_mma_fp8(d, a, b, dtype, b_is_e5m2)   d[4] += A B. A: of dtype, an e4m3; B: the same, or the e5m2 beside it. a, b: as of tile_mma, K's rows 8 elements
 *                                         a step; whoever calls it on a chip that has none gets nothing
 *   TILE_FP8_WIDE(dtype), tile_mma_fp8_wide(d, a, b)   steps of 128: 8 words each of a and b, a lane's two chunks
 *   tile_mma_i8(n, a, b)                  n[4], integers, += A B
 *   tile_quads(w, quad)                   words of the lane's four keys, the same four dims of each, into a word for each dim
 *   tile_a_of_quads(quad, m, a)           quad: [run]. A with every key twice: for
 *   tile_b_of_codes(p, dtype, b)          four weights of at most 1 to B, in units of 1 / TILE_WEIGHT_UNIT(dtype), each in two codes of e5m2; all lanes of the warp
 */
#ifndef OCT_DEVICE_TILE_H
#define OCT_DEVICE_TILE_H

#include "device/simt.h"

#define TILE_KEYS 16u

/* ---- bytes and pairs ------------------------------------------------------------------------------------------------------------- */

/* The four elements of an 8-bit word as two words of f16 pairs. */
DEV void to_16(uint32_t word, const uint32_t dtype, uint32_t *out)
{
    if (dtype == OCT_DTYPE_E5M2) {
        out[0] = byte_perm(word, 0, 0x1404);   /* e5m2 is the upper byte of an f16 */
        out[1] = byte_perm(word, 0, 0x3424);
    } else if (dtype == OCT_DTYPE_I8) {
        /* 1024 + n is an f16 whose lower byte is n: n = code + 128, and the difference is exact. */
        const uint32_t shifted = word ^ 0x80808080u;
        out[0] = sub_f16x2(byte_perm(shifted, 0x64646464u, 0x4140), 0x64806480u);
        out[1] = sub_f16x2(byte_perm(shifted, 0x64646464u, 0x4342), 0x64806480u);
    } else {
        e4m3_to_f16(word, dtype == OCT_DTYPE_E4M3FNUZ, out);
    }
}

/* Words of two keys, the same dims of each, as pairs (key a, key b) of f16 or bf16 for each dim: four pairs from 8-bit words, two from 16-bit ones. */
DEV void tile_pairs(uint32_t a, uint32_t b, const uint32_t dtype, uint32_t *pair)
{
    if (dtype >= OCT_DTYPE_E4M3FN) {
        to_16(byte_perm(a, b, 0x5140), dtype, pair);
        to_16(byte_perm(a, b, 0x7362), dtype, pair + 2);
    } else {
        pair[0] = byte_perm(a, b, 0x5410);
        pair[1] = byte_perm(a, b, 0x7632);
    }
}

/* Four keys, four dims: bytes change places. */
DEV void tile_quads(const uint32_t *w, uint32_t *quad)
{
    const uint32_t low01 = byte_perm(w[0], w[1], 0x5140), low23 = byte_perm(w[2], w[3], 0x5140);
    const uint32_t high01 = byte_perm(w[0], w[1], 0x7362), high23 = byte_perm(w[2], w[3], 0x7362);
    quad[0] = byte_perm(low01, low23, 0x5410);
    quad[1] = byte_perm(low01, low23, 0x7632);
    quad[2] = byte_perm(high01, high23, 0x5410);
    quad[3] = byte_perm(high01, high23, 0x7632);
}

/* Nothing may round to a negative zero, which is NaN in the fnuz formats. tiny: the smallest number of the format. */
DEV float tile_no_negative_zero(float x, const uint32_t dtype, const float tiny)
{
    return dtype == OCT_DTYPE_E4M3FNUZ && (oct__f32_to_bits(x) & OCT__F32_ABS_MASK) < oct__f32_to_bits(tiny) ? 0.0f : x;
}

#define TILE_WEIGHT_UNIT(dtype) ((dtype) == OCT_DTYPE_E4M3FNUZ ? 0x1p14f : 0x1p15f)

/* A weight as the nearest code and the nearest of what that leaves: within 1.6 % of it. e5m2 and not e4m3, since the smallest code must be no matter even where
 * a hundred thousand keys have such weights: 2^-31 of the largest, as against 2^-17. */
DEV void tile_weight_codes(const float *p, const uint32_t dtype, uint32_t *high, uint32_t *low)
{
    float x[4], y[4];
    UNROLL
    for (uint32_t i = 0; i < 4; i++) {
        x[i] = p[i] * TILE_WEIGHT_UNIT(dtype);
        x[i] += x[i] - x[i];   /* infinity would saturate: NaN says it */
    }
    *high = encode_fp8_4(x, dtype, 1);
    decode_e5m2_4(*high, dtype, y);
    UNROLL
    for (uint32_t i = 0; i < 4; i++) {
        y[i] = tile_no_negative_zero(x[i] - y[i], dtype, 0x1p-17f);
    }
    *low = encode_fp8_4(y, dtype, 1);
}

#if WARP == 32

/* ---- mma.sync m16n8k16 -------------------------------------------------------------------------------------------------------------
 * Lane l = 4 g + c. A: rows g, g + 8, columns 2c, 2c + 1 and 8 more. B: rows 2c, 2c + 1 and 8 more, column g. D: rows g, g + 8, columns 2c, 2c + 1. */
#define TILE_VECTORS 8u
#define TILE_K_ROWS 2u
#define TILE_OWN 2u
#define TILE_A 4u
#define TILE_V_POSITIONS 8u
#define TILE_V_RUN(bytes) (16u / (bytes))
#define TILE_M(run) ((run) / 2)

DEV uint32_t tile_lane(void)
{
    return tid() % WARP;
}

DEV uint32_t tile_part(void)
{
    return tile_lane() % 4;
}

DEV uint32_t tile_k_key(uint32_t i)
{
    return tile_lane() / 4 + 8 * i;
}

DEV uint32_t tile_q_vector(void)
{
    return tile_lane() / 4;
}

DEV uint32_t tile_own(uint32_t i)
{
    return i % 2;
}

DEV uint32_t tile_own_vector(uint32_t j)
{
    return 2 * (tile_lane() % 4) + j;
}

DEV uint32_t tile_s_key(uint32_t i)
{
    return tile_lane() / 4 + 8 * (i / 2);
}

DEV uint32_t tile_v_key(uint32_t i)
{
    return 2 * (tile_lane() % 4) + i % 2 + 8 * (i / 2);
}

DEV uint32_t tile_v_position(void)
{
    return tile_lane() / 4;
}

/* Tile m holds dims 2 m (rows g) and 2 m + 1 (rows g + 8) of each run. */
DEV uint32_t tile_o_dim(uint32_t run, uint32_t m, uint32_t i)
{
    return tile_lane() / 4 * run + 2 * m + i / 2;
}

DEV void tile_a_of_k(const uint32_t *k, uint32_t *a)
{
    a[0] = k[0];
    a[1] = k[2];
    a[2] = k[1];
    a[3] = k[3];
}

/* pair: [2][run]: of keys 0 and 1, of keys 2 and 3. */
DEV void tile_a_of_v(const uint32_t *pair, const uint32_t run, const uint32_t m, uint32_t *a)
{
    a[0] = pair[2 * m];
    a[1] = pair[2 * m + 1];
    a[2] = pair[run + 2 * m];
    a[3] = pair[run + 2 * m + 1];
}

DEV void tile_b_of_weights(const float *p, const int is_bf16, uint32_t *b)
{
    b[0] = tile_transpose(is_bf16 ? pack_bf16(p[0], p[1]) : pack_f16(p[0], p[1]));
    b[1] = tile_transpose(is_bf16 ? pack_bf16(p[2], p[3]) : pack_f16(p[2], p[3]));
}

/* m16n8k32. A: as of m16n8k16 with four columns for two, 4c .. 4c + 3 and 16 more: the first codes of the four keys meet the lower columns, the second codes
 * the upper. The weights' codes of one key travel as one half-word. */
DEV void tile_a_of_quads(const uint32_t *quad, const uint32_t m, uint32_t *a)
{
    a[0] = a[2] = quad[2 * m];
    a[1] = a[3] = quad[2 * m + 1];
}

DEV void tile_b_of_codes(const float *p, const uint32_t dtype, uint32_t *b)
{
    uint32_t high, low;
    tile_weight_codes(p, dtype, &high, &low);
    const uint32_t two = tile_transpose(byte_perm(high, low, 0x5140)), two_more = tile_transpose(byte_perm(high, low, 0x7362));
    b[0] = byte_perm(two, two_more, 0x6420);
    b[1] = byte_perm(two, two_more, 0x7531);
}

DEV void tile_max_over_keys(const float *s, float *m)
{
    UNROLL
    for (uint32_t j = 0; j < 2; j++) {
        m[j] = max_f32(s[j], s[2 + j]);
        UNROLL
        for (uint32_t mask = 4; mask < 32; mask *= 2) {
            m[j] = max_f32(m[j], shfl_xor_f32(m[j], mask));
        }
    }
}

DEV void tile_sum_over_keys(float *z)
{
    UNROLL
    for (uint32_t j = 0; j < 2; j++) {
        UNROLL
        for (uint32_t mask = 4; mask < 32; mask *= 2) {
            z[j] += shfl_xor_f32(z[j], mask);
        }
    }
}

#else

/* ---- MFMA 16x16x16 -----------------------------------------------------------------------------------------------------------------
 * Lane l = 16 h + r. A: row r, columns 4h .. 4h + 3. B: rows 4h .. 4h + 3, column r. D: rows 4h .. 4h + 3, column r: weights are B as they come. */
#define TILE_VECTORS 16u
#define TILE_K_ROWS 1u
#define TILE_OWN 1u
#define TILE_A 2u
#define TILE_V_POSITIONS 16u
#define TILE_V_RUN(bytes) (8u + 0 * (bytes))
#define TILE_M(run) (run)

DEV uint32_t tile_lane(void)
{
    return tid() % WARP;
}

DEV uint32_t tile_part(void)
{
    return tile_lane() / 16;
}

DEV uint32_t tile_k_key(uint32_t i)
{
    (void)i;
    return tile_lane() % 16;
}

DEV uint32_t tile_q_vector(void)
{
    return tile_lane() % 16;
}

DEV uint32_t tile_own(uint32_t i)
{
    (void)i;
    return 0;
}

DEV uint32_t tile_own_vector(uint32_t j)
{
    (void)j;
    return tile_lane() % 16;
}

DEV uint32_t tile_s_key(uint32_t i)
{
    return tile_lane() / 16 * 4 + i;
}

DEV uint32_t tile_v_key(uint32_t i)
{
    return tile_lane() / 16 * 4 + i;
}

DEV uint32_t tile_v_position(void)
{
    return tile_lane() % 16;
}

/* Tile m holds dim m of each run. */
DEV uint32_t tile_o_dim(uint32_t run, uint32_t m, uint32_t i)
{
    return (tile_lane() / 16 * 4 + i) * run + m;
}

DEV void tile_a_of_k(const uint32_t *k, uint32_t *a)
{
    a[0] = k[0];
    a[1] = k[1];
}

DEV void tile_a_of_v(const uint32_t *pair, const uint32_t run, const uint32_t m, uint32_t *a)
{
    a[0] = pair[m];
    a[1] = pair[run + m];
}

DEV void tile_b_of_weights(const float *p, const int is_bf16, uint32_t *b)
{
    b[0] = is_bf16 ? pack_bf16(p[0], p[1]) : pack_f16(p[0], p[1]);
    b[1] = is_bf16 ? pack_bf16(p[2], p[3]) : pack_f16(p[2], p[3]);
}

/* 16x16x32. A: row r, columns 8h .. 8h + 7; B: the same rows of column r: first the four keys' first codes, then their second ones. */
DEV void tile_a_of_quads(const uint32_t *quad, const uint32_t m, uint32_t *a)
{
    a[0] = a[1] = quad[m];
}

DEV void tile_b_of_codes(const float *p, const uint32_t dtype, uint32_t *b)
{
    tile_weight_codes(p, dtype, &b[0], &b[1]);
}

DEV void tile_max_over_keys(const float *s, float *m)
{
    m[0] = max_f32(max_f32(s[0], s[1]), max_f32(s[2], s[3]));
    m[0] = max_f32(m[0], shfl_xor_f32(m[0], 16));
    m[0] = max_f32(m[0], shfl_xor_f32(m[0], 32));
}

DEV void tile_sum_over_keys(float *z)
{
    z[0] += shfl_xor_f32(z[0], 16);
    z[0] += shfl_xor_f32(z[0], 32);
}

#endif
#endif
