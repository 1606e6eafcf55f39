/* e5m2.h: owns the 8-bit format 1-5-2, bias 15 (OCP "E5M2"): largest finite 57344, infinity 0x7C and
 * 0xFC, NaN 0x7D-0x7F and 0xFD-0xFF, negative zero kept. Pure functions, any thread, any device. */
#ifndef OCT_NUMBER_E5M2_H
#define OCT_NUMBER_E5M2_H

#include "float_bits.h"

#define OCT__E5M2_MAX_F32 57344.0f
/* The least |x|, as binary32 bits, that rounds beyond 57344: 61440, a tie that goes up, as 57344's
 * mantissa is odd. */
#define OCT__E5M2_SATURATES_FROM_BITS UINT32_C(0x47700000)

/* Rounds to nearest even; finite overflow and infinity give +-57344 (the codes of infinity are never
 * written, though they are read), NaN gives 0x7F or 0xFF by x's sign. */
OCT__FN uint8_t oct__e5m2_from_f32_bits(uint32_t bits)
{
    uint32_t sign = (bits >> 24) & 0x80;
    uint32_t abs_bits = bits & OCT__F32_ABS_MASK;
    if (abs_bits > OCT__F32_INF_BITS) {
        return (uint8_t)(sign | 0x7F);
    }
    if (abs_bits >= OCT__E5M2_SATURATES_FROM_BITS) {
        return (uint8_t)(sign | 0x7B);
    }
    return (uint8_t)(sign | oct__narrow_abs_rne(abs_bits, 2, 15));
}

/* Exact for every byte; 0x7C and 0xFC give infinity, the three codes above each a quiet NaN. */
OCT__FN uint32_t oct__e5m2_to_f32_bits(uint8_t byte)
{
    uint32_t sign = (uint32_t)(byte & 0x80) << 24;
    uint32_t code = byte & 0x7F;
    if (code >= 0x7C) {
        return sign | (code == 0x7C ? OCT__F32_INF_BITS : OCT__F32_QNAN_BITS | ((code & 3) << 21));
    }
    return sign | oct__widen_abs(code, 2, 15);
}

OCT__FN uint8_t oct__e5m2_from_f32(float x)
{
    return oct__e5m2_from_f32_bits(oct__f32_to_bits(x));
}

OCT__FN float oct__e5m2_to_f32(uint8_t byte)
{
    return oct__f32_of_bits(oct__e5m2_to_f32_bits(byte));
}

#endif
