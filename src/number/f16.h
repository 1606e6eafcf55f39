/* f16.h: owns IEEE binary16. Pure functions, any thread, any device. */
#ifndef OCT_NUMBER_F16_H
#define OCT_NUMBER_F16_H

#include "float_bits.h"

#define OCT__F16_MAX_F32 65504.0f
/* The least |x|, as binary32 bits, that rounds beyond 65504, to infinity: 65520, a tie that goes up. */
#define OCT__F16_SATURATES_FROM_BITS UINT32_C(0x477FF000)

/* Rounds to nearest even; overflow gives infinity as IEEE says, subnormals are kept, NaN becomes quiet and
 * keeps its sign and the upper payload, as F16C and the GPUs do. */
OCT__FN uint16_t oct__f16_from_f32_bits(uint32_t bits)
{
    uint32_t sign = (bits >> 16) & 0x8000;
    uint32_t abs_bits = bits & OCT__F32_ABS_MASK;
    if (abs_bits > OCT__F32_INF_BITS) {
        return (uint16_t)(sign | 0x7E00 | ((abs_bits >> 13) & 0x3FF));
    }
    if (abs_bits >= OCT__F16_SATURATES_FROM_BITS) {
        return (uint16_t)(sign | 0x7C00);
    }
    return (uint16_t)(sign | oct__narrow_abs_rne(abs_bits, 10, 15));
}

/* Exact; NaN comes out quiet. */
OCT__FN uint32_t oct__f16_to_f32_bits(uint16_t code)
{
    uint32_t sign = (uint32_t)(code & 0x8000) << 16;
    uint32_t abs_code = code & 0x7FFF;
    if (abs_code > 0x7C00) {
        return sign | OCT__F32_QNAN_BITS | ((abs_code & 0x3FF) << 13);
    }
    return sign | (abs_code == 0x7C00 ? OCT__F32_INF_BITS : oct__widen_abs(abs_code, 10, 15));
}

OCT__FN uint16_t oct__f16_from_f32(float x)
{
    return oct__f16_from_f32_bits(oct__f32_to_bits(x));
}

OCT__FN float oct__f16_to_f32(uint16_t code)
{
    return oct__f32_of_bits(oct__f16_to_f32_bits(code));
}

#endif
