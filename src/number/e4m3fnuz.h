/* e4m3fnuz.h: owns the 8-bit format 1-4-3, bias 8, that AMD gfx942 has: largest finite 240, one NaN
 * (0x80), no infinity, no negative zero. Pure functions, any thread, any device. */
#ifndef OCT_NUMBER_E4M3FNUZ_H
#define OCT_NUMBER_E4M3FNUZ_H

#include "float_bits.h"

#define OCT__E4M3FNUZ_MAX_F32 240.0f
/* The least |x|, as binary32 bits, that rounds beyond 240: 248, a tie that goes up, as 240's mantissa
 * is odd. */
#define OCT__E4M3FNUZ_SATURATES_FROM_BITS UINT32_C(0x43780000)

/* Rounds to nearest even; finite overflow and infinity give +-240, any NaN gives 0x80, and whatever rounds
 * to zero gives 0x00, since the code of negative zero is the NaN. */
OCT__FN uint8_t oct__e4m3fnuz_from_f32_bits(uint32_t bits)
{
    uint32_t sign = (bits >> 24) & 0x80;
    uint32_t abs_bits = bits & OCT__F32_ABS_MASK;
    uint32_t code;
    if (abs_bits > OCT__F32_INF_BITS) {
        return 0x80;
    }
    if (abs_bits >= OCT__E4M3FNUZ_SATURATES_FROM_BITS) {
        return (uint8_t)(sign | 0x7F);
    }
    code = oct__narrow_abs_rne(abs_bits, 3, 8);
    return (uint8_t)(code == 0 ? 0 : sign | code);
}

/* Exact for every byte; 0x80 gives a positive quiet NaN. */
OCT__FN uint32_t oct__e4m3fnuz_to_f32_bits(uint8_t byte)
{
    uint32_t sign = (uint32_t)(byte & 0x80) << 24;
    return byte == 0x80 ? OCT__F32_QNAN_BITS : sign | oct__widen_abs(byte & 0x7F, 3, 8);
}

OCT__FN uint8_t oct__e4m3fnuz_from_f32(float x)
{
    return oct__e4m3fnuz_from_f32_bits(oct__f32_to_bits(x));
}

OCT__FN float oct__e4m3fnuz_to_f32(uint8_t byte)
{
    return oct__f32_of_bits(oct__e4m3fnuz_to_f32_bits(byte));
}

#endif
