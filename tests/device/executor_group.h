/* executor_group.h: what the model of barriers in shared memory and of warpgroups (executor_group.c, executor_wgmma.c) lends to the executor. Within a block
 * that uses such barriers, "it happened before" is no longer a point in time for all: each lane knows up to when it sees each other lane's accesses. */
#ifndef DEVICE_EXECUTOR_GROUP_H
#define DEVICE_EXECUTOR_GROUP_H

#include "device/executor_state.h"

/* Whether this block has barriers in shared memory. */
extern int group_is_used;

void group_begin_block(simt_device *device);

/* The executor's time ran out and begins anew at 1. */
void group_rewind(void);

/* Whether the running lane sees what `lane` did at `time`. */
int group_sees(const simt_device *device, uint32_t lane, uint32_t time);

/* A warp_sync has passed: its lanes know what each of them knew. */
void group_join_warp(simt_device *device);

/* Reads of shared memory, by 16 bytes and warp. The lane of another warp that read the place and that the running lane has not heard of since; -1: none. */
void group_read(simt_device *device, size_t at, size_t size_bytes);
int group_reader(const simt_device *device, size_t at, size_t size_bytes);

/* All lanes of the warp wait at `lane`'s place: whether they may go on. */
int group_may_pass(simt_device *device, uint32_t first_lane);

/* Whether a lane's store of `time` may be read by the matrix units on behalf of `reader`. */
int group_is_fenced(const simt_device *device, uint32_t reader, uint32_t writer, uint32_t time);

/* Whether a stamp of a byte of shared memory is the copy engine's, whose writes the matrix units see without a fence. */
int group_is_of_engine(size_t at, uint32_t stamp);

/* Operations of a warp whose lanes have met. */
void wgmma_begin_block(void);
void wgmma_issue(simt_device *device, uint32_t first_lane);
void wgmma_settle(simt_device *device, oct__simt_op op, uint32_t argument, const char *site);

/* executor_async.c: lets the first n copies of a lane's queue land. */
uint32_t async_queue_length(uint32_t lane);
void async_land(simt_device *device, uint32_t lane, uint32_t n);

#endif
