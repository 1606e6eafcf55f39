/* tile_probe.h: a kernel that does with the matrix units' words (tile.h) just what attention does with them, once and with nothing around it: scores of 16 keys, or
 * sums over them. Tests compare it with plain loops on everything that runs kernels; nothing in the library launches it. */
#ifndef OCT_DEVICE_TILE_PROBE_H
#define OCT_DEVICE_TILE_PROBE_H

#include "device/elements.h"
#include "device/params.h"
#include "device/tile.h"

/* Words [first, first + n) of a row of `bytes`. */
DEV void probe_words(const uint8_t *rows, uint32_t row, uint32_t bytes, uint32_t first, const uint32_t n, uint32_t *word)
{
    UNROLL
    for (uint32_t i = 0; i < n; i++) {
        word[i] = global_load_u32(rows + row * bytes + (first + i) * 4);
    }
}

/* K [16][bytes] and q [TILE_VECTORS][bytes], one step of the instruction: eight bytes a part, or two chunks of 16. */
DEV void probe_scores(const oct__tile_probe_params *p, const uint32_t kind)
{
    const uint32_t bytes = kind == OCT__PROBE_FP8_WIDE ? 128 : 32, at = tile_part() * 2;
    uint32_t row[8], a[8], b[8];
    float s[4] = { 0, 0, 0, 0 };
    int32_t n[4] = { 0, 0, 0, 0 };
    if (kind == OCT__PROBE_FP8_WIDE) {
        UNROLL
        for (uint32_t c = 0; c < 2; c++) {
            probe_words(p->a, tile_k_key(0), bytes, (tile_part() + 4 * c) * 4, 4, a + 4 * c);
            probe_words(p->b, tile_q_vector(), bytes, (tile_part() + 4 * c) * 4, 4, b + 4 * c);
        }
        tile_mma_fp8_wide(s, a, b);
    } else {
        UNROLL
        for (uint32_t i = 0; i < TILE_K_ROWS; i++) {
            probe_words(p->a, tile_k_key(i), bytes, at, 2, row + 2 * i);
        }
        tile_a_of_k(row, a);
        probe_words(p->b, tile_q_vector(), bytes, at, 2, b);
        if (kind == OCT__PROBE_I8) {
            tile_mma_i8(n, a, b);
        } else if (kind == OCT__PROBE_E4M3FN || kind == OCT__PROBE_E4M3FNUZ) {
            tile_mma_fp8(s, a, b, kind == OCT__PROBE_E4M3FN ? OCT_DTYPE_E4M3FN : OCT_DTYPE_E4M3FNUZ, 0);
        } else {
            tile_mma(s, a, b, kind == OCT__PROBE_BF16);
        }
    }
    UNROLL
    for (uint32_t i = 0; i < 4; i++) {
        PUT(p->d[tile_s_key(i) * TILE_VECTORS + tile_own_vector(tile_own(i))], s[i] + (float)n[i]);
    }
}

/* V [16][a group of runs] of e4m3, weights f32 [16][TILE_VECTORS]: d [dim][TILE_VECTORS]. In codes, or by way of f16. */
DEV void probe_sums(const oct__tile_probe_params *p, const uint32_t dtype, const int in_codes)
{
    const uint32_t run = TILE_V_RUN(1), dims = run * TILE_V_POSITIONS;
    uint32_t v[4][4], pair[2 * 16], b[2];
    float w[4];
    UNROLL
    for (uint32_t i = 0; i < 4; i++) {
        w[i] = GET(((const float *)p->b)[tile_s_key(i) * TILE_VECTORS + tile_own_vector(tile_own(i))]);
        probe_words(p->a, tile_v_key(i), dims, tile_v_position() * (run / 4), run / 4, v[i]);
    }
    UNROLL
    for (uint32_t at = 0; at < run / 4; at++) {
        const uint32_t four[4] = { v[0][at], v[1][at], v[2][at], v[3][at] };
        if (in_codes) {
            tile_quads(four, pair + 4 * at);
        } else {
            tile_pairs(four[0], four[1], dtype, pair + 4 * at);
            tile_pairs(four[2], four[3], dtype, pair + run + 4 * at);
        }
    }
    if (in_codes) {
        tile_b_of_codes(w, dtype, b);
    } else {
        tile_b_of_weights(w, 0, b);
    }
    UNROLL
    for (uint32_t m = 0; m < TILE_M(run); m++) {
        uint32_t a[TILE_A];
        float o[4] = { 0, 0, 0, 0 };
        if (in_codes) {
            tile_a_of_quads(pair, m, a);
            tile_mma_fp8(o, a, b, dtype, 1);
        } else {
            tile_a_of_v(pair, run, m, a);
            tile_mma(o, a, b, 0);
        }
        UNROLL
        for (uint32_t i = 0; i < 4; i++) {
            PUT(p->d[tile_o_dim(run, m, i) * TILE_VECTORS + tile_own_vector(tile_own(i))], in_codes ? o[i] * (1.0f / TILE_WEIGHT_UNIT(dtype)) : o[i]);
        }
    }
}

KERNEL(tile_probe, 64, 1, oct__tile_probe_params)
{
    if (tid() >= WARP) {
        return;
    }
    switch (p->kind) {
#define PROBE_SCORES(kind)     \
    case kind:                 \
        probe_scores(p, kind); \
        break;
        PROBE_SCORES(OCT__PROBE_F16)
        PROBE_SCORES(OCT__PROBE_BF16)
        PROBE_SCORES(OCT__PROBE_I8)
        PROBE_SCORES(OCT__PROBE_E4M3FN)
        PROBE_SCORES(OCT__PROBE_E4M3FNUZ)
        PROBE_SCORES(OCT__PROBE_FP8_WIDE)
#undef PROBE_SCORES
    case OCT__PROBE_SUMS_E4M3FN:
        probe_sums(p, OCT_DTYPE_E4M3FN, 1);
        break;
    case OCT__PROBE_SUMS_E4M3FNUZ:
        probe_sums(p, OCT_DTYPE_E4M3FNUZ, 1);
        break;
    case OCT__PROBE_SUMS_F16:
        probe_sums(p, OCT_DTYPE_E4M3FN, 0);
        break;
    default:
        break;
    }
}

#endif
