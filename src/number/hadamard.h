/* hadamard.h: owns the rotation of a head: the orthonormal Hadamard transform over the head dim, in binary32. The
 * order of operations below is part of the contract, so that vector and device forms give the same bits:
 *
 *   block = largest power of two that divides dim; each block of consecutive elements on its own:
 *   for step = 1, 2, 4 ... block/2: for each pair (i, i + step) with (i & step) == 0:  a, b = a + b, a - b
 *   then every element once times oct__hadamard_norm(block)
 *
 * This is Sylvester's order: H[r][c] = norm * (-1)^popcount(r & c). H is symmetric and orthogonal, hence its own
 * inverse, up to rounding.
 *
 * Threads: no state; any thread, as long as no other uses the same row. */
#ifndef OCT_NUMBER_HADAMARD_H
#define OCT_NUMBER_HADAMARD_H

#include <stddef.h>

/* Largest power of two that divides dim; 0 for 0. 80 gives 16, 96 gives 32, 128 gives 128. */
size_t oct__hadamard_block(size_t dim);

/* 1/sqrt(block) rounded to binary32; block is a power of two. */
float oct__hadamard_norm(size_t block);

/* Transforms x[dim] in place. A NaN or an infinity spreads over its block. */
void oct__hadamard_f32(float *x, size_t dim);

/* Undoes oct__hadamard_f32: the same transform, under the name that says what the caller means. */
void oct__hadamard_inverse_f32(float *x, size_t dim);

#endif
