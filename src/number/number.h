/* number.h: the door to this room's pure functions, one header a format. The room owns the rounding
 * truth: whatever a kernel does with vectors or on a device, its bytes equal these functions' bytes.
 *
 * Threads: no state anywhere; any thread, any device. Headers compile as C11 and as C++17 (CUDA, HIP).
 *
 * For a format F of e4m3fn, e4m3fnuz, e5m2 (uint8_t codes), i8 (int8_t), bf16, f16 (uint16_t):
 *   F = oct__F_from_f32(x)       round to nearest even; the 8-bit formats saturate, i8 has no NaN
 *   x = oct__F_to_f32(F)         exact
 *   OCT__F_MAX_F32               the largest finite value
 *   OCT__F_SATURATES_FROM_BITS   binary32 bits of the least |x| that rounds beyond it
 * v4 (v4.h) has no code of a single value: its elements come in blocks with a scale.
 * and the _bits forms of both (float_bits.h says when). oct__f32_divide divides a value by its scale.
 *
 * All of it is integer arithmetic: it depends neither on the rounding mode nor on flush-to-zero
 * and denormals-are-zero. oct__f32_divide alone uses the hardware's division, where no
 * subnormal can occur, and so needs the rounding mode to be the default.
 */
#ifndef OCT_NUMBER_NUMBER_H
#define OCT_NUMBER_NUMBER_H

#include "bf16.h"
#include "e4m3fn.h"
#include "e4m3fnuz.h"
#include "e5m2.h"
#include "f16.h"
#include "float_bits.h"
#include "i8.h"
#include "v4.h"

#endif
