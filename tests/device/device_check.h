/* device_check.h: owns the verdict on one case at one warp width: made, run on the executor, judged by the oracle. Threads: one. */
#ifndef DEVICE_CHECK_H
#define DEVICE_CHECK_H

#include "device/device_run.h"
#include "parity/isolate.h"

/* The rig of this process for a width, made at the first call; NULL without memory. */
device_rig *device_check_rig(uint32_t warp);

/* What attention must hold. Portable kernels compute in f32 throughout: the class of the scalar reference. Those of the matrix units round q and the
 * weights to 16 bits: the law's bound of that class, and a watch at what such rounding costs at most in these tests. */
compare_bound device_check_bound(int has_mma);

enum { DEVICE_PORTABLE = 1, DEVICE_MMA = 2 };

/* Each returns the failures, and prints them with the line that repeats the case. kernels: DEVICE_*; those of the matrix units where they hold
 * the formats. Without the word: all of them. */
int64_t device_check_attn_of(uint32_t warp, const problem_shape *shape, int kernels);
int64_t device_check_attn(uint32_t warp, const problem_shape *shape);
int64_t device_check_write(uint32_t warp, const write_shape *shape);

/* Checked writes of 300 tokens: one that is right; and with a slot past either pool, which must leave every byte as it was. */
int64_t device_check_checked_writes(device_rig *rig);

/* A code that is no finite number, in a key that some rows of a tile do not see: no bit of those rows moves, and of the others K's moves the whole row, V's its own
 * dim alone. Of V in v4 it is the f16 of a block's scale, and the block's dims. One sequence of n_rows (at most 20), on the matrix units' kernels where they take it. 0, or what is wrong in `why`. */
typedef struct device_hidden {
    uint32_t k_dtype, v_dtype, code;
    int64_t dim;
    int n_rows;
    int is_new;    /* the last key, which the first rows do not see yet; 0: one that has left the last rows' window */
    int is_in_k;
    int is_everywhere;   /* in every dim of the key, and every dim of the rows that see it may be spoiled; 0: in one */
} device_hidden;
int device_check_hidden(device_rig *rig, const device_hidden *hidden, char *why, size_t why_bytes);

#endif
