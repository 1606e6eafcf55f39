/* launch.h: owns how kernels are launched: from the library's host structs to params.h, grids and sizes of workspace. For both drivers and
 * the host executor. Pointers inside the given structs are device pointers (oct_rope.factors too); nothing here follows them.
 *
 * Threads: pure functions. */
#ifndef OCT_DEVICE_LAUNCH_H
#define OCT_DEVICE_LAUNCH_H

#include <stdbool.h>
#include <stddef.h>

#include "device/params.h"
#include "octavo/attn.h"

/* The chip. */
typedef struct oct__dev_chip {
    uint32_t warp;                  /* 32 or 64 */
    uint32_t n_units;               /* multiprocessors or compute units */
    uint32_t shared_limit_bytes;    /* that a block may have */
    uint32_t has_mma;               /* matrix units of tile.h: NVIDIA from sm_80 on, AMD gfx942 and gfx950; 0: the portable kernels alone */
    uint32_t has_sm90a;             /* Hopper, and its code: kernels of src/cuda/kernels_sm90a.def where nothing else is asked for */
} oct__dev_chip;

typedef struct oct__dev_launch {
    const char *kernel;             /* a name of kernels.def */
    uint32_t grid_x, grid_y, threads, shared_bytes;
    uint32_t is_early;              /* where the driver can: blocks start once those of the kernel before it have said so (launch_next), and wait for its end themselves */
} oct__dev_launch;

/* A grid for at least n blocks (n >= 1) whose axes every driver takes; blocks beyond n find nothing to do. */
void oct__dev_grid(uint64_t n, oct__dev_launch *launch);

/* ---- the write --------------------------------------------------------------------------------------------------------------- */

void oct__dev_pack_layer(const oct_kv_layer *layer, oct__dev_layer *packed);

/* args: checked. refused: u32[1], zeroed by the caller, that kv_check sets (for args->checked, before the write); or NULL. Counts go to
 * entry 0. n_tokens of 0: no launch, false. */
bool oct__dev_pack_kv_check(const oct_kv_write_args *args, uint32_t *refused, oct__kv_check_params *params, oct__dev_launch *launch);
bool oct__dev_pack_kv_write(const oct__dev_chip *chip, const oct_kv_write_args *args, const uint32_t *refused, oct__kv_write_params *params,
                            oct__dev_launch *launch);

/* ---- attention ----------------------------------------------------------------------------------------------------------------- */

/* How one of decode and extend is cut, for a spec on a chip. */
typedef struct oct__dev_attn_shape {
    const char *kernel;
    uint32_t threads, shared_bytes;
    uint32_t tile_vectors;          /* most vectors of a block's tile */
    uint32_t tile_rows, n_cuts, n_head_tiles;
    uint32_t blocks_a_unit;         /* > 0: so many stay on a unit, and each takes a part of the plan */
} oct__dev_attn_shape;

/* With a kernel of kernels.def, whose tiles hold at most tile_vectors vectors (an extend's fewer, where shared memory is short; a name other than a
 * decode's is an extend's). False when the chip's shared memory does not hold even the smallest tile. */
bool oct__dev_attn_shape_for(const oct__dev_chip *chip, const oct_attn_spec *spec, const char *kernel, uint32_t tile_vectors, oct__dev_attn_shape *shape);

/* With the kernel that the chip's features and the group's size suggest, for whoever has no table of variants to choose by. */
bool oct__dev_attn_shape_of(const oct__dev_chip *chip, const oct_attn_spec *spec, uint32_t op, oct__dev_attn_shape *shape);

/* The largest step that a plan is made for; a captured graph serves every step up to it. */
typedef struct oct__dev_step_limits {
    uint32_t n_sequences;
    int64_t n_rows;                 /* query rows of the batch */
    int64_t n_keys;                 /* of the longest sequence */
} oct__dev_step_limits;

/* A plan's device memory: one block, and where its arrays begin. */
typedef struct oct__dev_workspace {
    oct__dev_attn_shape shape[OCT__DEV_OPS];
    uint32_t max_tasks[OCT__DEV_OPS], max_groups[OCT__DEV_OPS], max_partials[OCT__DEV_OPS];
    size_t plan_at, tasks_at[OCT__DEV_OPS], groups_at[OCT__DEV_OPS], partials_at[OCT__DEV_OPS];
    size_t bytes;
    uint32_t n_blocks[OCT__DEV_OPS];   /* of attention's grids */
    uint32_t n_parts[OCT__DEV_OPS], heads_a_block[OCT__DEV_OPS];
    size_t parts_at[OCT__DEV_OPS];
} oct__dev_workspace;

/* With shapes of oct__dev_attn_shape_for, and with those of oct__dev_attn_shape_of (false when one of these does not fit). */
void oct__dev_workspace_for(const oct__dev_chip *chip, const oct_attn_spec *spec, const oct__dev_step_limits *limits,
                            const oct__dev_attn_shape shapes[OCT__DEV_OPS], oct__dev_workspace *workspace);
bool oct__dev_workspace_of(const oct__dev_chip *chip, const oct_attn_spec *spec, const oct__dev_step_limits *limits, oct__dev_workspace *workspace);

/* memory: workspace->bytes, 256-byte aligned. batch: device pointers, at most the limits. */
void oct__dev_pack_batch(const oct_attn_spec *spec, const oct_attn_batch *batch, oct__dev_batch *packed);
void oct__dev_pack_plan(const oct__dev_chip *chip, const oct_attn_spec *spec, const oct__dev_batch *batch, const oct__dev_workspace *workspace,
                        void *memory, oct__plan_params *params, oct__dev_launch *launch);

/* Whether a step within spec's limits may have rows of the operation: one of fewer rows than an extend has is all decodes, and needs no launch of it. */
bool oct__dev_may_have(const oct_attn_spec *spec, const oct__dev_workspace *workspace, uint32_t op);

/* Attention of one operation, and the finishing of its split rows, which must follow it. The two take the same parameters. */
void oct__dev_pack_attn(const oct_attn_spec *spec, const oct__dev_batch *batch, const oct_attn_args *args, const oct__dev_workspace *workspace,
                        void *memory, uint32_t op, oct__attn_params *params, oct__dev_launch *attend, oct__dev_launch *finish);

/* ---- merge ----------------------------------------------------------------------------------------------------------------------- */

/* False: there is nothing to merge. */
bool oct__dev_pack_merge(const oct__dev_chip *chip, const oct_attn_merge_args *args, oct__merge_params *params, oct__dev_launch *launch);

/* ---- measuring -------------------------------------------------------------------------------------------------------------------- */

/* Words that `left` of oct__measure_params needs. */
uint64_t oct__dev_measure_words(const oct__dev_chip *chip);

/* steps >= 1. to: NULL for reading alone. one_block: by one block instead of as many as the chip holds. */
void oct__dev_pack_measure(const oct__dev_chip *chip, const void *from, void *to, uint32_t *left, uint64_t steps, bool one_block, oct__measure_params *params,
                           oct__dev_launch *launch);

#endif
