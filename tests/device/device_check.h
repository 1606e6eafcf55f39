/* device_check.h: owns the verdict on one case at one warp width: made, run on the executor, judged by the oracle. Threads: one. */
#ifndef DEVICE_CHECK_H
#define DEVICE_CHECK_H

#include "device/device_run.h"
#include "parity/isolate.h"

/* The rig of this process for a width, made at the first call; NULL without memory. */
device_rig *device_check_rig(uint32_t warp);

/* What a portable attention kernel must hold: they compute in f32 throughout, so the class of the scalar reference. */
compare_bound device_check_bound(void);

/* Each returns the failures, and prints them with the line that repeats the case. */
int64_t device_check_attn(uint32_t warp, const problem_shape *shape);
int64_t device_check_write(uint32_t warp, const write_shape *shape);

#endif
