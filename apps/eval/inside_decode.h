/* inside_decode.h: owns the reading back of stored vectors, from the formats' definitions alone (doc/NUMERICS.md) and not through the library that stored them,
 * so that a wrong write or a wrong read of the library's can't hide. Pure; any thread. */
#ifndef APP_EVAL_INSIDE_DECODE_H
#define APP_EVAL_INSIDE_DECODE_H

#include <stdbool.h>

#include "octavo/octavo.h"

/* K (side 0) or V (1) of one slot and head of a layer in NHD or HND: dim numbers as stored, rotated if they are kept so. limit: [dim] the largest number that
 * each place could hold; 0 where the format's range is not what limits (16 and 32 bits). False: no such format here. */
bool eval_decode(const oct_kv_layer *layer, int side, int32_t slot, uint32_t head, float *values, float *limit);

/* The orthonormal Hadamard transform over blocks of dim's largest power-of-two divisor; its own inverse. */
void eval_rotate(float *values, uint32_t dim);

#endif
