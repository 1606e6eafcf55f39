/* convert.h: owns the conversion of rows between binary32 and any format of enum oct_dtype, one element after
 * the other: what scalar kernels use and vector kernels are compared with.
 *
 * Threads: no state; any thread, as long as no other writes the same row or count. */
#ifndef OCT_NUMBER_CONVERT_H
#define OCT_NUMBER_CONVERT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What a conversion met; the functions add to it, so that one count serves many rows. */
struct oct__convert_count {
    uint64_t saturated; /* |x / scale| rounded beyond the largest finite value, or was infinite. The 8-bit formats
                         * store +-largest for it, f16 and bf16 infinity */
    uint64_t nans;      /* x was NaN */
};

/* dst[i] = the exact value of src[i], without any scale. src: n elements of `dtype`, at any alignment. dst and src do
 * not overlap (f32 may be converted in place). Of v4 n is a multiple of 32, and its blocks' scales are in the values. False, and dst
 * untouched, when dtype is unknown or n is no such multiple. */
bool oct__row_to_f32(float *dst, const void *src, uint32_t dtype, size_t n);

/* dst[i] = round_to_nearest_even_saturating(src[i] / scale) in `dtype`. The scale is finite and > 0 (the caller has
 * asked oct__scale_is_valid), or the NaN of an i8 row that holds a NaN (scale.h): all its bytes are 0. Pass 1 for
 * formats without a scale: division by 1 changes nothing. dst: n elements, at any alignment; no overlap (f32 may be
 * converted in place). v4 makes a scale for each block of 32 (scale.h, as for i8 in f16), and `scale` is not looked at. count: added to, or NULL.
 * False, and dst and count untouched, when dtype is unknown, or n no multiple of 32 for v4. */
bool oct__row_from_f32(void *dst, uint32_t dtype, const float *src, size_t n, float scale,
                       struct oct__convert_count *count);

#endif
