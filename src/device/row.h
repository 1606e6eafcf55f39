/* row.h: owns rows of a head in the registers of a warp: brought from any format, rotated, and sent out. Lane l holds the eights
 * of elements l, l + WARP, ...; eights past dim are zero. All functions are for all lanes of a warp. */
#ifndef OCT_DEVICE_ROW_H
#define OCT_DEVICE_ROW_H

#include "device/elements.h"
#include "device/params.h"

#define ROW_EIGHTS ((OCT__DEV_DIM_MAX / 8 + WARP - 1) / WARP)   /* eights of a lane: 2 or 1 */
#define ROW_FLOATS (8 * ROW_EIGHTS)

/* First element of a lane's eight. */
DEV uint32_t row_element(uint32_t eight)
{
    return (eight * WARP + tid() % WARP) * 8;
}

DEV void row_load(float *x, const void *at, uint32_t dtype, uint32_t element_bytes, uint32_t dim)
{
    UNROLL
    for (uint32_t e = 0; e < ROW_EIGHTS; e++) {
        const uint32_t d = row_element(e);
        if (e * 8 * WARP < dim && d < dim) {   /* the first half is the same for all: no lane looks at eights that nobody has */
            load_eight((const uint8_t *)at + (uint64_t)d * element_bytes, dtype, x + 8 * e);
        } else {
            UNROLL
            for (uint32_t i = 0; i < 8; i++) {
                x[8 * e + i] = 0.0f;
            }
        }
    }
}

/* a + b in the lower of the two places, a - b in the upper. */
DEV float butterfly(float own, float other, uint32_t is_upper)
{
    return is_upper ? other - own : own + other;
}

/* The orthonormal Hadamard transform of number/hadamard.h, in its order of operations: the same bits. dim: a multiple of 8. */
DEV void row_rotate(float *x, uint32_t dim)
{
    const uint32_t block = dim & (~dim + 1u);
    float norm = 1.0f;
    UNROLL
    for (uint32_t e = 0; e < ROW_EIGHTS; e++) {
        float *y = x + 8 * e;
        UNROLL
        for (uint32_t step = 1; step < 8; step *= 2) {
            UNROLL
            for (uint32_t i = 0; i < 8; i++) {
                if ((i & step) == 0) {
                    const float a = y[i], b = y[i + step];
                    y[i] = a + b;
                    y[i + step] = a - b;
                }
            }
        }
    }
    for (uint32_t step = 8; step < block && step < 8 * WARP; step *= 2) {
        UNROLL
        for (uint32_t e = 0; e < ROW_EIGHTS; e++) {
            if (e * 8 * WARP < dim) {
                UNROLL
                for (uint32_t i = 0; i < 8; i++) {
                    x[8 * e + i] = butterfly(x[8 * e + i], shfl_xor_f32(x[8 * e + i], step / 8), tid() & (step / 8));
                }
            }
        }
    }
    if (ROW_EIGHTS > 1 && block > 8 * WARP) {   /* 512 in warps of 32: the two eights of a lane */
        UNROLL
        for (uint32_t i = 0; i < 8; i++) {
            const float a = x[i], b = x[ROW_FLOATS - 8 + i];
            x[i] = a + b;
            x[ROW_FLOATS - 8 + i] = a - b;
        }
    }
    for (uint32_t rest = block; rest > 1; rest /= 4) {   /* powers of two stay exact, as in oct__hadamard_norm */
        norm *= rest >= 4 ? 0.5f : 0.707106781186547524f;
    }
    UNROLL
    for (uint32_t i = 0; i < ROW_FLOATS; i++) {
        x[i] *= norm;
    }
}

/* x[d] *= factor[d] */
DEV void row_scale(float *x, const float *factor, uint32_t dim)
{
    UNROLL
    for (uint32_t e = 0; e < ROW_EIGHTS; e++) {
        const uint32_t d = row_element(e);
        if (d < dim) {
            UNROLL
            for (uint32_t i = 0; i < 8; i++) {
                x[8 * e + i] *= GET(factor[d + i]);
            }
        }
    }
}

/* x / scale, rounded to nearest even and saturated as the format says, side by side at `at`. */
DEV void row_store(void *at, uint32_t dtype, uint32_t element_bytes, const float *x, uint32_t dim, float scale)
{
    UNROLL
    for (uint32_t e = 0; e < ROW_EIGHTS; e++) {
        const uint32_t d = row_element(e);
        uint32_t code[8];
        if (e * 8 * WARP < dim && d < dim) {
            UNROLL
            for (uint32_t i = 0; i < 8; i++) {
                uint32_t bits = oct__f32_to_bits(x[8 * e + i]);
                if (oct__f32_to_bits(scale) != OCT__F32_ONE_BITS && !oct__f32_bits_are_nan(bits)) {
                    bits = oct__f32_divide_bits(bits, oct__f32_to_bits(scale));
                }
                code[i] = bits;
            }
            encode_eight(dtype, code);
            store_8((uint8_t *)at + (uint64_t)d * element_bytes, dtype, code);
        }
    }
}

#endif
