/* v4.h: owns the 4-bit format of V: blocks of 32 elements, each an f16 scale and 16 bytes of codes. Element i of a block has
 * the low four bits of byte i, element i + 16 the high ones. A code is one of sixteen whole numbers within +-127, real value =
 * that number * the block's scale, exact in f32. Pure functions, any thread, any device.
 *
 * The numbers are those that lose least on blocks of 32 normal numbers scaled to their largest magnitude, which is what a
 * rotated V is: mean square error, relative to the values', 0.0067; -7..7 in equal steps 0.0094, -8..7 by the signed largest
 * 0.0074, NF4 0.0077. Code 0 is 0, so that zero bytes are zeros. Neighbours differ by odd numbers: no i8 lies midway. */
#ifndef OCT_NUMBER_V4_H
#define OCT_NUMBER_V4_H

#include "float_bits.h"

#define OCT__V4_BLOCK       32
#define OCT__V4_BLOCK_BYTES 18 /* the scale first */
#define OCT__V4_MAX_F32     124.0f

/* X(number) by code. */
#define OCT__V4_NUMBERS(X) X(0) X(11) X(22) X(35) X(48) X(63) X(80) X(99) X(124) X(-123) X(-94) X(-73) X(-56) X(-41) X(-26) X(-13)

/* The code nearest to a whole number within +-128, as a constant where x is one: codes rise with the number from 9 through 15 and 0 to 8. */
#define OCT__V4_CODE(x)                                                                                                                \
    ((9 + ((x) >= -108) + ((x) >= -83) + ((x) >= -64) + ((x) >= -48) + ((x) >= -33) + ((x) >= -19) + ((x) >= -6) + ((x) >= 6) + ((x) >= 17) + \
      ((x) >= 29) + ((x) >= 42) + ((x) >= 56) + ((x) >= 72) + ((x) >= 90) + ((x) >= 112)) & 15)

/* The numbers of codes 0 to 7 and 8 to 15, a byte each: a table that a device needs no memory for. */
#define OCT__V4_LOW  UINT64_C(0x63503F3023160B00)
#define OCT__V4_HIGH UINT64_C(0xF3E6D7C8B7A2857C)

OCT__FN int8_t oct__v4_number(uint32_t code)
{
    return (int8_t)(uint8_t)(((code & 8) != 0 ? OCT__V4_HIGH : OCT__V4_LOW) >> (8 * (code & 7)));
}

/* x: an i8 as oct__i8_from_f32 gives it. */
OCT__FN uint32_t oct__v4_code(int8_t x)
{
    return (uint32_t)OCT__V4_CODE(x);
}

/* Where the element of this index lies, and the block that holds it, in bytes from an array of such elements. */
OCT__FN int64_t oct__v4_block_at(int64_t index)
{
    return index / OCT__V4_BLOCK * OCT__V4_BLOCK_BYTES;
}

#endif
