/* scale.h: owns what a scale may be and how a dynamic one is made. real value = byte * scale; the write divides by
 * the very number that attention multiplies with.
 *
 * How a dynamic scale comes about, step by step (vector and device forms do the same and get the same bits):
 *   amax  = the largest |x| over the FINITE elements of the vector (0 if there is none)
 *   scale = amax / largest finite value of the format, rounded to nearest in f32
 *   scale = max(scale, OCT__SCALE_FLOOR)
 *   kept as f16: rounded UP to the next f16, at most 65504; the write divides by that f16's value
 *   i8 and the vector holds a NaN: scale = the quiet NaN, every byte 0, the vector counted
 *
 * Infinity in the vector: it takes no part in amax, or the finite elements would all become 0; it saturates to the
 * largest code, so it reads back as +-amax (as +-largest * OCT__SCALE_FLOOR in a vector with nothing else) and is
 * counted as saturated by oct__row_from_f32.
 * v4 makes one so of every block of 32, as i8 in f16, and the codes are those nearest to the i8 (v4.h).
 * NaN in the vector, formats with a NaN code: it takes no part in amax and stays a NaN in its byte.
 *
 * Threads: no state; any thread. The inline part also compiles for devices. */
#ifndef OCT_NUMBER_SCALE_H
#define OCT_NUMBER_SCALE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "f16.h"
#include "float_bits.h"

/* A channel or a whole head may be exactly zero in real models; the floor keeps the division defined. In f16 it
 * becomes 17 * 2^-24, still far from 0. */
#define OCT__SCALE_FLOOR 1e-6f

/* A given scale is legal when it is finite and > 0; subnormals are legal. 1 or 0. */
OCT__FN int oct__scale_is_valid(float scale)
{
    uint32_t bits = oct__f32_to_bits(scale);
    return bits != 0 && bits < OCT__F32_INF_BITS;
}

/* amax: finite, >= 0. format_max: OCT__F_MAX_F32 of the format. Never below the floor. */
OCT__FN float oct__scale_from_amax(float amax, float format_max)
{
    uint32_t bits = oct__f32_divide_bits(oct__f32_to_bits(amax), oct__f32_to_bits(format_max));
    uint32_t floor_bits = oct__f32_to_bits(OCT__SCALE_FLOOR);
    return oct__f32_of_bits(bits < floor_bits ? floor_bits : bits); /* positive floats order like their bits */
}

/* The f16 that stands beside the page for a dynamic scale: the least f16 >= scale, at most 65504; NaN stays NaN. Up
 * and not to nearest: a scale below amax/largest pushes the vector's largest element beyond the largest code, and near
 * the floor, where f16 is subnormal, by up to 3 %: i8 would clip it. Beyond 65504 elements saturate, and are counted.
 * scale: > 0 or NaN. The caller divides by oct__f16_to_f32 of the result. */
OCT__FN uint16_t oct__scale_to_f16(float scale)
{
    uint32_t bits = oct__f32_to_bits(scale);
    uint16_t code = oct__f16_from_f32_bits(bits);
    if (oct__f32_bits_are_nan(bits)) {
        return code;
    }
    if (oct__f16_to_f32_bits(code) < bits) {
        code++; /* f16 codes of one sign count upwards */
    }
    return code > 0x7BFF ? (uint16_t)0x7BFF : code;
}

/* The scale of one vector of n elements, as the write divides by it and stores it. scale_dtype: OCT_DTYPE_F32, or
 * OCT_DTYPE_F16, and then the result is exact in f16 (oct__f16_from_f32 stores it). Adds 1 to *nan_vectors (if not
 * NULL) when the result is the NaN scale of an i8 vector. Formats without a scale (f32, f16, bf16) give 1. Unknown
 * dtype or scale_dtype: 0, which no write accepts. */
float oct__scale_dynamic(const float *x, size_t n, uint32_t dtype, uint32_t scale_dtype, uint64_t *nan_vectors);

/* The largest |x| over the finite elements, 0 if there is none; *has_nan (if not NULL) says whether a NaN was met. */
float oct__scale_amax(const float *x, size_t n, bool *has_nan);

enum oct__scale_import {
    OCT__SCALE_IMPORT_REFUSED = 0, /* the scale is not legal, or says nothing about the pool's format */
    OCT__SCALE_IMPORT_AS_IS = 1,
    OCT__SCALE_IMPORT_DOUBLED = 2, /* tell the user */
};

/* Takes a calibrated scale made for `from` into a pool of the format `to`. e4m3fn to e4m3fnuz doubles it: the range
 * is about half (240 against 448), and the same byte means half the value. The same format: as it is. Any other pair
 * is refused, and so is a scale that is not legal or is not after doubling; *out is then untouched. */
enum oct__scale_import oct__scale_import(float scale, uint32_t from, uint32_t to, float *out);

#endif
