/* rope.h: owns the rotary embedding that a write applies to K before it is stored. All write variants take the angles from here and
 * do the arithmetic of oct__rope_apply_f32 in its order, without contraction, so that they store the same bytes.
 *
 * Threads: a table belongs to one thread. */
#ifndef OCT_CPU_ROPE_H
#define OCT_CPU_ROPE_H

#include <stdint.h>

#include "octavo/kv.h"

#define OCT__ROPE_MAX_PAIRS 256u /* dim_k is at most 512 */

typedef struct oct__rope_table {
    double frequency[OCT__ROPE_MAX_PAIRS]; /* radians per position */
    float cosine[OCT__ROPE_MAX_PAIRS], sine[OCT__ROPE_MAX_PAIRS];
} oct__rope_table;

/* Fills the frequencies, once for a call; then the cosines and sines of one position. rope: checked, n_dims even and <= 512. */
void oct__rope_prepare(oct__rope_table *table, const oct_rope *rope);
void oct__rope_turn_to(oct__rope_table *table, const oct_rope *rope, int32_t position);

/* Turns the first n_dims of x in place: for pair i with elements (a, b),
 *   a, b = a * cosine[i] - b * sine[i], a * sine[i] + b * cosine[i]        each product and each sum rounded to f32. */
void oct__rope_apply_f32(float *x, const oct_rope *rope, const oct__rope_table *table);

#endif
