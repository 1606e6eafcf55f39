/* v4.h: owns V in 4 bits (number/v4.h) on the device: a lane's share of a block as floats, and a row of a warp as blocks, with the bytes of number/convert.c.
 * Blocks lie at any even address.
 *
 * In both, byte i of a block holds elements i and i + 16, so a lane that takes bytes has half of its dims 16 apart: no byte is read twice. */
#ifndef OCT_DEVICE_V4_H
#define OCT_DEVICE_V4_H

#include "device/row.h"
#include "number/scale.h"

/* ---- reading ----------------------------------------------------------------------------------------------------------------- */

/* Lanes that share rows by n (4 or 8, a constant) dims each: element c < n of the lane whose share begins at dim0, a multiple of n. */
DEV uint32_t v4_dim(uint32_t dim0, uint32_t c, const uint32_t n)
{
    return dim0 / 32 * 32 + dim0 % 32 / 2 + c % (n / 2) + c / (n / 2) * 16;
}

/* Codes of that lane and the scale of its block, undecoded, of a row of blocks. */
DEV void v4_load(const uint8_t *row, uint32_t dim0, const uint32_t n, uint32_t *word, uint32_t *scale)
{
    const uint8_t *block = row + dim0 / 32 * OCT__V4_BLOCK_BYTES, *codes = block + 2 + dim0 % 32 / 2;
    *scale = GET(*(const uint16_t *)block);
    *word = GET(*(const uint16_t *)codes);
    if (n == 8) {
        *word |= (uint32_t)GET(*(const uint16_t *)(codes + 2)) << 16;
    }
}

DEV void v4_decode(uint32_t word, uint32_t scale, const uint32_t n, float *x)
{
    const float factor = decode_f16(scale);
    float number[8];
    decode_v4_4(word, number);
    UNROLL
    for (uint32_t c = 0; c < n; c++) {
        x[c] = number[c % (n / 2) + c / (n / 2) * 4] * factor;   /* exact */
    }
}

/* ---- writing ----------------------------------------------------------------------------------------------------------------- */

/* oct__v4_code by halves: the bounds from which one code follows another, below and above the one at 6, a byte each. */
DEV uint32_t v4_code(int32_t x)
{
    const int is_above = x >= 6;
    const uint64_t bounds = is_above ? UINT64_C(0x705A48382A1D11) : UINT64_C(0xFAEDDFD0C0AD94);
    uint32_t n = x >= (int8_t)(uint8_t)(bounds >> 24) ? 4u : 0u;
    n += x >= (int8_t)(uint8_t)(bounds >> (8 * n + 8)) ? 2u : 0u;
    n += x >= (int8_t)(uint8_t)(bounds >> (8 * n)) ? 1u : 0u;
    return (9u + n + (is_above ? 8u : 0u)) & 15u;
}

/* Four codes, four bits each, a byte each. */
DEV uint32_t v4_spread(uint32_t codes)
{
    const uint32_t two = (codes | codes << 8) & 0x00FF00FFu;
    return (two | two << 4) & 0x0F0F0F0Fu;
}

/* The scale's f16 code of the block that four lanes share, whose elements are in their eights x. All lanes of the warp. */
DEV uint16_t v4_scale(const float *x)
{
    uint32_t most = 0;   /* of the finite; a NaN is more than all */
    UNROLL
    for (uint32_t i = 0; i < 8; i++) {
        const uint32_t bits = oct__f32_to_bits(x[i]) & OCT__F32_ABS_MASK;
        if (bits != OCT__F32_INF_BITS && bits > most) {
            most = bits;
        }
    }
    UNROLL
    for (uint32_t step = 1; step < 4; step *= 2) {
        const uint32_t other = shfl_xor_u32(most, step);
        most = other > most ? other : most;
    }
    return oct__scale_to_f16(oct__f32_bits_are_nan(most) ? oct__f32_of_bits(OCT__F32_QNAN_BITS) : oct__scale_from_amax(oct__f32_of_bits(most), OCT__I8_MAX_F32));
}

/* A row in the warp's registers (row.h) to its blocks at `to`; adds to *n_nan and *n_saturated. All lanes of the warp. */
DEV void v4_store_row(uint8_t *to, const float *x, uint32_t dim, uint32_t *n_nan, uint32_t *n_saturated)
{
    UNROLL
    for (uint32_t e = 0; e < ROW_EIGHTS; e++) {
        const uint32_t d = row_element(e);
        if (e * 8 * WARP < dim) {
            const uint16_t scale = v4_scale(x + 8 * e);
            const uint32_t divisor = oct__f16_to_f32_bits(scale);
            uint32_t codes = 0;
            UNROLL
            for (uint32_t i = 0; i < 8; i++) {
                uint32_t bits = oct__f32_to_bits(x[8 * e + i]);
                const int is_nan = oct__f32_bits_are_nan(bits);
                if (!is_nan && divisor != OCT__F32_ONE_BITS) {
                    bits = oct__f32_divide_bits(bits, divisor);
                }
                *n_nan += (uint32_t)is_nan;
                *n_saturated += (bits & OCT__F32_ABS_MASK) >= OCT__I8_SATURATES_FROM_BITS && !oct__f32_bits_are_nan(bits);
                codes |= v4_code(oct__i8_from_f32_bits(bits)) << (4 * i);
            }
            /* The second half's lanes have what stands in the high bits of the first half's bytes: each of a pair stores four of the eight bytes. */
            const uint32_t other = shfl_xor_u32(codes, 2), is_second = tid() / 2 % 2;
            const uint32_t low = (is_second ? other >> 16 : codes) & 0xFFFFu, high = (is_second ? codes >> 16 : other) & 0xFFFFu;
            const uint32_t bytes = v4_spread(low) | v4_spread(high) << 4;
            if (d < dim) {
                uint8_t *block = to + d / 32 * OCT__V4_BLOCK_BYTES;
                uint16_t *half = (uint16_t *)(block + 2 + tid() % 2 * 8 + is_second * 4);
                PUT(half[0], (uint16_t)bytes);
                PUT(half[1], (uint16_t)(bytes >> 16));
                if (tid() % 4 == 0) {
                    PUT(*(uint16_t *)block, scale);
                }
            }
        }
    }
}

#endif
