/* bf16.h: owns bfloat16, the upper half of binary32. Pure functions, any thread, any device. */
#ifndef OCT_NUMBER_BF16_H
#define OCT_NUMBER_BF16_H

#include "float_bits.h"

/* 0x7F7F: (2 - 2^-7) * 2^127. */
#define OCT__BF16_MAX_F32 3.38953139e38f
/* The least |x|, as binary32 bits, that rounds beyond the largest finite value, to infinity. */
#define OCT__BF16_SATURATES_FROM_BITS UINT32_C(0x7F7F8000)

/* Rounds to nearest even; overflow gives infinity as IEEE says, subnormals are kept, NaN becomes quiet and
 * keeps its sign and the upper payload. */
OCT__FN uint16_t oct__bf16_from_f32_bits(uint32_t bits)
{
    if (oct__f32_bits_are_nan(bits)) {
        return (uint16_t)((bits >> 16) | 0x40);
    }
    return (uint16_t)((bits + UINT32_C(0x7FFF) + ((bits >> 16) & 1)) >> 16);
}

/* Exact: all bits are kept, those of a NaN too. */
OCT__FN uint32_t oct__bf16_to_f32_bits(uint16_t code)
{
    return (uint32_t)code << 16;
}

OCT__FN uint16_t oct__bf16_from_f32(float x)
{
    return oct__bf16_from_f32_bits(oct__f32_to_bits(x));
}

OCT__FN float oct__bf16_to_f32(uint16_t code)
{
    return oct__f32_of_bits(oct__bf16_to_f32_bits(code));
}

#endif
