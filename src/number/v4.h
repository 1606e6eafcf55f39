/* v4.h: owns the 4-bit format of V: blocks of 32 elements, each an f16 scale and 16 bytes of codes. Element i of a block has
 * the low four bits of byte i, element i + 16 the high ones. A code is one of sixteen whole numbers within +-127, real value =
 * that number * the block's scale, exact in f32. Pure functions, any thread, any device.
 *
 * The numbers are those that lose least on blocks of 32 normal numbers scaled to their largest magnitude, which is what a
 * rotated V is: mean square error, relative to the values', 0.0067; -7..7 in equal steps 0.0094, -8..7 by the signed largest
 * 0.0074, NF4 0.0076. Code 0 is 0, so that zero bytes are zeros. Neighbours differ by odd numbers: no i8 lies midway. */
#ifndef OCT_NUMBER_V4_H
#define OCT_NUMBER_V4_H

#include "float_bits.h"

#define OCT__V4_BLOCK       32
#define OCT__V4_BLOCK_BYTES 18 /* the scale first */
#define OCT__V4_MAX_F32     124.0f

/* X(number, least i8 that rounds to it) by code; the first code's is never asked for: what lies between 9's and 15's goes on from there. */
#define OCT__V4_CODES(X)                                                                                                          \
    X(0, -6) X(11, 6) X(22, 17) X(35, 29) X(48, 42) X(63, 56) X(80, 72) X(99, 90) X(124, 112) X(-123, -127) X(-94, -108) X(-73, -83) \
        X(-56, -64) X(-41, -48) X(-26, -33) X(-13, -19)

/* The numbers of codes 0 to 7 and 8 to 15, a byte each: a table that a device needs no memory for. */
#define OCT__V4_LOW  UINT64_C(0x63503F3023160B00)
#define OCT__V4_HIGH UINT64_C(0xF3E6D7C8B7A2857C)

OCT__FN int8_t oct__v4_number(uint32_t code)
{
    return (int8_t)(uint8_t)(((code & 8) != 0 ? OCT__V4_HIGH : OCT__V4_LOW) >> (8 * (code & 7)));
}

/* The code nearest to x, an i8 as oct__i8_from_f32 gives it. */
OCT__FN uint32_t oct__v4_code(int8_t x)
{
#define OCT__V4_COUNT(number, least) +(uint32_t)((least) > -127 && x >= (least))
    return (9 OCT__V4_CODES(OCT__V4_COUNT)) & 15; /* codes rise with the number from 9 through 15 and 0 to 8 */
#undef OCT__V4_COUNT
}

/* Where the element of this index lies, and the block that holds it, in bytes from an array of such elements. */
OCT__FN int64_t oct__v4_block_at(int64_t index)
{
    return index / OCT__V4_BLOCK * OCT__V4_BLOCK_BYTES;
}

#endif
