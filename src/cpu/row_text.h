/* row_text.h: owns the conversion of rows as row.c and row_avx2.c compile it, for different instructions but to the same bits. Branches are written
 * as selections, and every shift is by a constant: the vectors of plain x86-64 (SSE2) have no more.
 *
 * Threads: as row.h says. */
#ifndef OCT_CPU_ROW_TEXT_H
#define OCT_CPU_ROW_TEXT_H

#include "cpu/row.h"

#include <string.h>

#include "number/convert.h"
#include "number/number.h"
#include "octavo/kv.h"

/* `condition ? yes : no` that no compiler makes a branch of: gcc 12 moves the float arithmetic of a ternary into one and then
 * does not vectorise the loop. */
static inline uint32_t choose(int condition, uint32_t yes, uint32_t no)
{
    const uint32_t mask = 0u - (uint32_t)condition;
    return (yes & mask) | (no & ~mask);
}

static void bring_bf16(float *dst, const unsigned char *src, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        uint16_t code;
        memcpy(&code, src + 2 * i, sizeof code);
        dst[i] = oct__bf16_to_f32(code);
    }
}

static void bring_f16(float *dst, const unsigned char *src, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        uint16_t code;
        memcpy(&code, src + 2 * i, sizeof code);
        const uint32_t sign = (uint32_t)(code & 0x8000) << 16;
        const uint32_t abs_code = code & 0x7FFF;
        const uint32_t moved = abs_code << 13;
        /* A subnormal is counted up from 2^-14: the subtraction is exact and meets no f32 subnormal, so no mode of the thread matters. */
        const uint32_t subnormal = oct__f32_to_bits(oct__f32_of_bits(moved + (UINT32_C(113) << 23)) - 0x1p-14f);
        const uint32_t normal = moved + (UINT32_C(112) << 23);
        const uint32_t special = (moved + (UINT32_C(224) << 23)) | choose(abs_code > 0x7C00, UINT32_C(0x400000), 0);
        const uint32_t finite = choose(abs_code < 0x400, subnormal, normal);
        dst[i] = oct__f32_of_bits(sign | choose(abs_code < 0x7C00, finite, special));
    }
}

static void deliver_bf16(unsigned char *dst, const float *src, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const uint32_t bits = oct__f32_to_bits(src[i]);
        const uint32_t nan = (bits >> 16) | 0x40;
        const uint32_t number = (bits + UINT32_C(0x7FFF) + ((bits >> 16) & 1)) >> 16;
        const uint16_t code = (uint16_t)choose((bits & OCT__F32_ABS_MASK) > OCT__F32_INF_BITS, nan, number);
        memcpy(dst + 2 * i, &code, sizeof code);
    }
}

static void deliver_f16(unsigned char *dst, const float *src, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const uint32_t bits = oct__f32_to_bits(src[i]);
        const uint32_t sign = (bits >> 16) & 0x8000;
        const uint32_t abs_bits = bits & OCT__F32_ABS_MASK;
        /* Below 2^-14 the unit is 2^-24, which is that of an f32 in [0.5, 1): the addition rounds. A flushed f32 subnormal gives 0, as
         * it must. */
        const uint32_t small = choose(abs_bits < UINT32_C(0x38800000), abs_bits, 0);
        const uint32_t subnormal = oct__f32_to_bits(oct__f32_of_bits(small) + 0.5f) - UINT32_C(0x3F000000);
        const uint32_t normal = (abs_bits - (UINT32_C(112) << 23) + 0xFFF + ((abs_bits >> 13) & 1)) >> 13;
        const uint32_t nan = 0x7E00 | ((abs_bits >> 13) & 0x3FF);
        const uint32_t finite = choose(abs_bits < UINT32_C(0x38800000), subnormal, normal);
        const uint32_t number = choose(abs_bits >= OCT__F16_SATURATES_FROM_BITS, 0x7C00, finite);
        const uint16_t code = (uint16_t)(sign | choose(abs_bits > OCT__F32_INF_BITS, nan, number));
        memcpy(dst + 2 * i, &code, sizeof code);
    }
}

static void bring(float *dst, const void *src, uint32_t dtype, size_t n)
{
    switch (dtype) {
    case OCT_DTYPE_F32:
        memcpy(dst, src, n * sizeof(float));
        break;
    case OCT_DTYPE_BF16:
        bring_bf16(dst, src, n);
        break;
    case OCT_DTYPE_F16:
        bring_f16(dst, src, n);
        break;
    default:
        oct__row_to_f32(dst, src, dtype, n);
        break;
    }
}

static void deliver(void *dst, uint32_t dtype, const float *src, size_t n, float scale)
{
    if (scale == 1.0f) {
        switch (dtype) {
        case OCT_DTYPE_F32:
            memcpy(dst, src, n * sizeof(float));
            return;
        case OCT_DTYPE_BF16:
            deliver_bf16(dst, src, n);
            return;
        case OCT_DTYPE_F16:
            deliver_f16(dst, src, n);
            return;
        default:
            break;
        }
    }
    oct__row_from_f32(dst, dtype, src, n, scale, NULL);
}

static void scale_all(float *x, float factor, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        x[i] *= factor;
    }
}

static void scale_each(float *restrict x, const float *restrict by, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        x[i] *= by[i];
    }
}

#endif
