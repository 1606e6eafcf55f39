/* executor_state.h: what executor.c, which runs lanes, and executor_memory.c, which checks their accesses, share. One device runs at a time.
 *
 * A device's memory is mapped twice: the view, whose addresses kernels have and which nobody may touch, and the bytes, a constant distance away.
 * Every byte has two 32-bit stamps: who wrote it last and who read it last, as (written before, time, who). Time counts barriers,
 * warp_syncs and blocks over all launches, so that "since the last barrier" is a comparison. */
#ifndef DEVICE_EXECUTOR_STATE_H
#define DEVICE_EXECUTOR_STATE_H

#include <stdint.h>

#include "device/executor.h"
#include "device/fiber.h"
#include "device/simt.h"

enum {
    LANES_MAX = 1024,
    SHARED_STATIC_BYTES = 64 * 1024,        /* of the view, from offset 0; then the dynamic part */
    SHARED_BYTES = 320 * 1024,
    SHARED_ARRAYS = 16,
    SHARED_GAP_BYTES = 64                   /* so that one array's overrun is not another's element */
};

/* A stamp: bit 31 written, 20 bits of time, 11 bits of who. 0: look at the allocation. */
#define STAMP_WRITTEN UINT32_C(0x80000000)
#define STAMP_NEVER UINT32_C(1)             /* known, and not written */
#define STAMP_CONST UINT32_C(0xFFFFFFFF)    /* written and not to be written */
#define TIME_MAX UINT32_C(0xFFFFE)
#define WHO_WARP 1024u                      /* + warp: several lanes of it */
#define WHO_ATOMIC 2046u
#define WHO_MANY 2047u

static inline uint32_t stamp_time(uint32_t stamp) { return stamp >> 11 & UINT32_C(0xFFFFF); }
static inline uint32_t stamp_who(uint32_t stamp) { return stamp & 2047; }
static inline uint32_t stamp_make(uint32_t time, uint32_t who) { return time << 11 | who; }

typedef struct allocation {
    size_t at, size_bytes;                  /* offset in the view */
    uint32_t stamp;                         /* what its bytes are until they have a stamp of their own */
    const char *name;
} allocation;

/* A block's acq_rel atomic on an address: what it had written by then. */
typedef struct release { size_t at; uint64_t block; uint32_t time, lane; } release;

typedef enum lane_state { LANE_RUNS, LANE_MEETS, LANE_AT_BARRIER, LANE_WAITS, LANE_DONE } lane_state;

typedef struct lane {
    fiber fiber;
    lane_state state;
    oct__simt_op op;
    void *v;
    uint32_t n, argument;
    const char *site;
    uint32_t n_shared;                      /* static arrays it has asked for */
} lane;

typedef struct shared_array { uint32_t at, size_bytes; const char *site; } shared_array;

struct simt_device {
    unsigned char *view, *bytes;
    size_t size_bytes;
    uint32_t *wrote, *read;                 /* [size_bytes] */
    uint32_t shared_limit_bytes;
    allocation *allocations;                /* by address */
    size_t n_allocations, allocations_room;
    unsigned char *stacks;
    size_t stack_stride_bytes;
    lane lanes[LANES_MAX];
    int lanes_are_made;
    fiber main;

    /* of the launch */
    const simt_kernel *kernel;
    const void *params;
    uint32_t grid_x, grid_y, dynamic_shared_bytes;
    uint64_t block;
    simt_report *report;
    lane *self;
    uint32_t me, my_warp;                   /* its number and its warp's */
    uint32_t warp, cursor;                  /* the warp that runs, its next lane */
    int has_run;                            /* some lane, since the warps were last walked over */
    shared_array arrays[SHARED_ARRAYS];
    uint32_t n_arrays;

    /* time */
    uint32_t now, launch_time, block_time, barrier_time, warp_time[LANES_MAX / 32];
    uint32_t *block_times;                  /* [n_block_times]: when each block of the launch began */
    uint64_t n_block_times, block_times_room;
    release *releases;
    size_t n_releases, releases_room;
    release *acquired;                      /* by this block: others' releases that it has met */
    size_t n_acquired, acquired_room;
};

extern simt_device *simt_running;           /* NULL between launches */

/* Ends the launch from within a lane; does not return. */
void simt_raise(simt_fault fault, const char *site, const char *form, ...) __attribute__((format(printf, 3, 4), noreturn));

/* The running lane stops until group_may_pass (executor_group.h) lets its warp go on. */
void simt_wait(simt_device *device);

/* One more tick; stamps are brought back to the beginning when time runs out. */
void simt_tick(simt_device *device);

/* Begins the time of a launch, of a block. */
void simt_begin_launch(simt_device *device);
void simt_begin_block(simt_device *device);

#endif
