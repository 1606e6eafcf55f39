/* launch_write_sm90a.h: owns how Hopper's write and merge are launched. Beside launch.h.
 *
 * Threads: pure functions. */
#ifndef OCT_DEVICE_LAUNCH_WRITE_SM90A_H
#define OCT_DEVICE_LAUNCH_WRITE_SM90A_H

#include "device/launch.h"
#include "device/write_sm90a.h"

/* As oct__dev_pack_kv_write, for kv_write_sm90a: head dims of at most OCT__WRITE_SM90A_DIM_MAX. */
bool oct__dev_pack_kv_write_sm90a(const oct__dev_chip *chip, const oct_kv_write_args *args, const uint32_t *refused, oct__kv_write_sm90a_params *params,
                                  oct__dev_launch *launch);

/* As oct__dev_pack_merge, for attn_merge_sm90a. */
bool oct__dev_pack_merge_sm90a(const oct__dev_chip *chip, const oct_attn_merge_args *args, oct__merge_sm90a_params *params, oct__dev_launch *launch);

#endif
