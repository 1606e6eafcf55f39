/* i8.h: owns the 8-bit integer format, two's complement within +-127 (-128 is never written). It has
 * no NaN: a vector that holds one gets a NaN scale (scale.h). Pure functions, any thread, any device. */
#ifndef OCT_NUMBER_I8_H
#define OCT_NUMBER_I8_H

#include "float_bits.h"

#define OCT__I8_MAX_F32 127.0f
/* The least |x|, as binary32 bits, that rounds beyond 127: 127.5, a tie that goes to 128. */
#define OCT__I8_SATURATES_FROM_BITS UINT32_C(0x42FF0000)

/* x is already divided by the scale. Rounds to nearest even, clamps to +-127. NaN gives 0: the
 * caller stores the NaN scale. */
OCT__FN int8_t oct__i8_from_f32_bits(uint32_t bits)
{
    uint32_t abs_bits = bits & OCT__F32_ABS_MASK;
    uint32_t exponent = abs_bits >> 23;
    int32_t magnitude;
    if (abs_bits > OCT__F32_INF_BITS || exponent < 126) {
        return 0; /* NaN, or below a half */
    }
    if (abs_bits >= OCT__I8_SATURATES_FROM_BITS) {
        magnitude = 127;
    } else {
        magnitude = (int32_t)oct__shift_right_rne(
            (abs_bits & UINT32_C(0x7FFFFF)) | UINT32_C(0x800000), 150 - exponent);
    }
    return (int8_t)((bits >> 31) != 0 ? -magnitude : magnitude);
}

OCT__FN int8_t oct__i8_from_f32(float x)
{
    return oct__i8_from_f32_bits(oct__f32_to_bits(x));
}

/* Exact. Reads -128 as -128, though nothing here writes it. */
OCT__FN float oct__i8_to_f32(int8_t value)
{
    return (float)value;
}

#endif
