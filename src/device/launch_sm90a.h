/* launch_sm90a.h: owns which kernel of src/cuda/kernels_sm90a.def takes a decode, and how its blocks share a step. Beside launch.h, for launch.c.
 *
 * Threads: pure functions. */
#ifndef OCT_DEVICE_LAUNCH_SM90A_H
#define OCT_DEVICE_LAUNCH_SM90A_H

#include "device/launch.h"

/* The decode kernel for a spec and the vectors of its tile; NULL and why not. The chip's has_sm90a is not asked. */
const char *oct__dev_sm90a_kernel(const oct_attn_spec *spec, uint32_t *tile_vectors, const char **why);

bool oct__dev_is_sm90a(const char *kernel);

/* The kernel that runs where a row's is chosen, and the vectors of its tile: rows go by the bits of K and V, kernels by formats too, and of head dims above
 * 128 a row is for both tiles. */
const char *oct__dev_sm90a_form(const oct_attn_spec *spec, const char *kernel, uint32_t *tile_vectors);

/* Puts the kernels in whose text has no more than these parameters ask for, where there are some: they take what is usual (launch_sm90a.c says what), from the
 * same shape and plan, and give the same bits. */
void oct__dev_sm90a_make_plain(const oct__attn_params *params, oct__dev_launch *attend, oct__dev_launch *finish);

/* Fills threads, shared_bytes and blocks a unit of a shape whose heads are cut; and for it says parts and heads a block. */
void oct__dev_sm90a_shape(const oct__dev_chip *chip, const oct_attn_spec *spec, oct__dev_attn_shape *shape);
void oct__dev_sm90a_parts(const oct__dev_chip *chip, const oct_attn_spec *spec, const oct__dev_attn_shape *shape, uint32_t *n_parts, uint32_t *heads_a_block);

/* ---- extends: src/cuda/attn_extend_sm90a.h ---- */

/* The extend kernel for a spec; NULL and why not. The chip's has_sm90a is not asked. */
const char *oct__dev_sm90a_extend_kernel(const oct_attn_spec *spec, const char **why);

bool oct__dev_is_sm90a_extend(const char *kernel);

/* Fills threads and shared_bytes of a shape. */
void oct__dev_sm90a_extend_shape(const char *kernel, oct__dev_attn_shape *shape);

#endif
