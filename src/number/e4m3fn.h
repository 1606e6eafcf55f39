/* e4m3fn.h: owns the 8-bit format 1-4-3, bias 7 (OCP "E4M3"; NVIDIA, AMD gfx950): largest finite 448,
 * NaN 0x7F and 0xFF, no infinity, negative zero kept. Pure functions, any thread, any device. */
#ifndef OCT_NUMBER_E4M3FN_H
#define OCT_NUMBER_E4M3FN_H

#include "float_bits.h"

#define OCT__E4M3FN_MAX_F32 448.0f
/* The least |x|, as binary32 bits, that rounds beyond 448: just above 464, half way to the 480 that the
 * NaN code took; the tie itself goes to 448, whose mantissa is even. */
#define OCT__E4M3FN_SATURATES_FROM_BITS UINT32_C(0x43E80001)

/* Rounds to nearest even; finite overflow and infinity give +-448, NaN gives NaN with x's sign. */
OCT__FN uint8_t oct__e4m3fn_from_f32_bits(uint32_t bits)
{
    uint32_t sign = (bits >> 24) & 0x80;
    uint32_t abs_bits = bits & OCT__F32_ABS_MASK;
    if (abs_bits > OCT__F32_INF_BITS) {
        return (uint8_t)(sign | 0x7F);
    }
    if (abs_bits >= OCT__E4M3FN_SATURATES_FROM_BITS) {
        return (uint8_t)(sign | 0x7E);
    }
    return (uint8_t)(sign | oct__narrow_abs_rne(abs_bits, 3, 7));
}

/* Exact for every byte; NaN comes out quiet with the byte's sign. */
OCT__FN uint32_t oct__e4m3fn_to_f32_bits(uint8_t byte)
{
    uint32_t sign = (uint32_t)(byte & 0x80) << 24;
    uint32_t code = byte & 0x7F;
    return sign | (code == 0x7F ? OCT__F32_QNAN_BITS : oct__widen_abs(code, 3, 7));
}

OCT__FN uint8_t oct__e4m3fn_from_f32(float x)
{
    return oct__e4m3fn_from_f32_bits(oct__f32_to_bits(x));
}

OCT__FN float oct__e4m3fn_to_f32(uint8_t byte)
{
    return oct__f32_of_bits(oct__e4m3fn_to_f32_bits(byte));
}

#endif
