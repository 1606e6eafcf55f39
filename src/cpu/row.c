/* row.c: branches are written as selections, and every shift is by a constant: the vectors of plain x86-64 (SSE2) have no more. */
#include "cpu/row.h"

#include <string.h>

#include "number/convert.h"
#include "number/hadamard.h"
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

void oct__row_bring(float *dst, const void *src, uint32_t dtype, size_t n)
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

void oct__row_deliver(void *dst, uint32_t dtype, const float *src, size_t n, float scale)
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

/* The first three steps of a transform, on elements that lie together. */
static void rotate_8(float *x)
{
    const float a0 = x[0] + x[1], a1 = x[0] - x[1], a2 = x[2] + x[3], a3 = x[2] - x[3];
    const float a4 = x[4] + x[5], a5 = x[4] - x[5], a6 = x[6] + x[7], a7 = x[6] - x[7];
    const float b0 = a0 + a2, b1 = a1 + a3, b2 = a0 - a2, b3 = a1 - a3;
    const float b4 = a4 + a6, b5 = a5 + a7, b6 = a4 - a6, b7 = a5 - a7;
    x[0] = b0 + b4, x[1] = b1 + b5, x[2] = b2 + b6, x[3] = b3 + b7;
    x[4] = b0 - b4, x[5] = b1 - b5, x[6] = b2 - b6, x[7] = b3 - b7;
}

/* One step on n pairs. */
static void rotate_pairs(float *restrict a, float *restrict b, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const float sum = a[i] + b[i], difference = a[i] - b[i];
        a[i] = sum;
        b[i] = difference;
    }
}

/* Two steps on n quadruples, which halves the loads and stores. */
static void rotate_quadruples(float *restrict a, float *restrict b, float *restrict c, float *restrict d, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const float ab = a[i] + b[i], a_b = a[i] - b[i], cd = c[i] + d[i], c_d = c[i] - d[i];
        a[i] = ab + cd;
        b[i] = a_b + c_d;
        c[i] = ab - cd;
        d[i] = a_b - c_d;
    }
}

void oct__row_rotate(float *x, size_t dim)
{
    const size_t block = oct__hadamard_block(dim);
    const float norm = oct__hadamard_norm(block);
    size_t step = 8;
    for (size_t i = 0; i < dim; i += 8) {
        rotate_8(x + i);
    }
    for (; step * 4 <= block; step *= 4) {
        for (size_t i = 0; i < dim; i += 4 * step) {
            rotate_quadruples(x + i, x + i + step, x + i + 2 * step, x + i + 3 * step, step);
        }
    }
    for (size_t i = 0; step * 2 <= block && i < dim; i += 2 * step) {
        rotate_pairs(x + i, x + i + step, step);
    }
    for (size_t i = 0; i < dim; i++) {
        x[i] *= norm;
    }
}
