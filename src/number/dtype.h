/* dtype.h: owns the facts about the formats of enum oct_dtype as functions: size, range, name. A format crosses
 * as uint32_t; every function takes any value and says below what an unknown one gives.
 *
 * Threads: pure functions over constant tables, any thread. */
#ifndef OCT_NUMBER_DTYPE_H
#define OCT_NUMBER_DTYPE_H

#include <stdbool.h>
#include <stdint.h>

#include "octavo/kv.h"

/* Formats are numbered from 1 to OCT__DTYPE_LAST without a gap: `for (d = 1; d <= OCT__DTYPE_LAST; d++)`. */
#define OCT__DTYPE_LAST OCT_DTYPE_V4

bool oct__dtype_is_valid(uint32_t dtype);

/* 4 (v4, without its scales), 8, 16 or 32; 0 when unknown. */
uint32_t oct__dtype_bits(uint32_t dtype);

/* 1, 2 or 4; 0 when unknown, and for v4, whose elements have no byte of their own. */
uint32_t oct__dtype_size_bytes(uint32_t dtype);

/* Bytes of n elements that lie together, scales within included; v4: n is a multiple of 32. 0 when unknown. */
uint64_t oct__dtype_bytes(uint32_t dtype, uint64_t n);

/* The alignment of an array: of an element, of v4 a block's scale. 1 when unknown. */
uint32_t oct__dtype_align_bytes(uint32_t dtype);

/* The formats that are stored with a scale: e4m3fn, e4m3fnuz, e5m2, i8. */
bool oct__dtype_is_8bit(uint32_t dtype);

/* Largest finite value, of v4 in units of a block's scale; 0 when unknown. */
float oct__dtype_max_f32(uint32_t dtype);

/* binary32 bits of the least |x| that rounds beyond the largest finite value; UINT32_MAX when unknown. For
 * f32 it is the bits of infinity. */
uint32_t oct__dtype_saturates_from_bits(uint32_t dtype);

/* Whether some code of the format is a NaN; false for i8, v4 and when unknown. */
bool oct__dtype_has_nan(uint32_t dtype);

/* Whether some code of the format is an infinity; false when unknown. */
bool oct__dtype_has_inf(uint32_t dtype);

/* "f32", "f16", "bf16", "e4m3fn", "e4m3fnuz", "e5m2", "i8", "v4"; NULL when unknown. Never freed. */
const char *oct__dtype_name(uint32_t dtype);

/* The format of exactly such a name; 0 when there is none, or for NULL. */
uint32_t oct__dtype_from_name(const char *name);

#endif
