/* executor.h: owns the host executor: it runs kernel texts (src/device/simt.h) block after block on the CPU, one fiber a lane, and refuses what
 * a GPU would let pass in silence:
 *   - warp operations and barriers that not every lane reaches, or that lanes reach at different places;
 *   - accesses outside of allocations, to read-only ones, misaligned ones, and around GET and PUT (a device address is not a host address);
 *   - reads of bytes that nobody has written (global: since their allocation; shared: in this block);
 *   - races: two lanes of a block touch a byte, one of them writing, without a barrier between them (a warp_sync will do within a warp), or
 *     two blocks of a launch do so; atomics do not race with each other, and what a block wrote before an acq_rel atomic is visible to
 *     a block that got a later value from it.
 * The first fault ends the launch; the report names kernel, block, lane and place. Lanes run in a fixed order, but what counts as a race does
 * not depend on it.
 *
 * Threads: one launch at a time in a process. */
#ifndef DEVICE_EXECUTOR_H
#define DEVICE_EXECUTOR_H

#include <stddef.h>
#include <stdint.h>

typedef enum simt_fault {
    SIMT_OK, SIMT_BAD_LAUNCH, SIMT_DIVERGENT_WARP, SIMT_DIVERGENT_BARRIER, SIMT_OUT_OF_BOUNDS, SIMT_READ_ONLY, SIMT_MISALIGNED, SIMT_UNWRITTEN,
    SIMT_RACE, SIMT_RAW_ACCESS
} simt_fault;

typedef struct simt_report {
    simt_fault fault;
    uint64_t block;
    uint32_t lane;
    char text[512];        /* "" when OK */
} simt_report;

const char *simt_fault_name(simt_fault fault);

/* ---- memory ------------------------------------------------------------------------------------------------------------------- */

typedef struct simt_device simt_device;

/* memory_bytes: of address space, touched as it is used. shared_limit_bytes: what a block may have, static and dynamic. NULL without memory. */
simt_device *simt_open(size_t memory_bytes, uint32_t shared_limit_bytes);
void simt_close(simt_device *device);   /* NULL is fine */

/* Multiprocessors: few here, so that grids stride; those of the chip where a GPU stands behind this door (executor_cuda.c). */
uint32_t simt_units(const simt_device *device);

/* A device address, 256-byte aligned, unreadable for a megabyte on either side; nothing of it counts as written. `name` (kept) stands
 * in reports. NULL without memory. */
void *simt_alloc(simt_device *device, size_t size_bytes, const char *name);
void simt_free(simt_device *device, void *at);   /* NULL is fine */

/* 0; -1 when the range is not within one allocation. Bytes copied in count as written. */
int simt_copy_in(simt_device *device, void *to, const void *from, size_t size_bytes);
int simt_copy_out(simt_device *device, void *to, const void *from, size_t size_bytes);
int simt_fill(simt_device *device, void *to, int byte, size_t size_bytes);

/* The whole allocation counts as written from here on, and kernels may not write it; or may again. */
int simt_protect(simt_device *device, void *at, int on);

/* ---- launches ------------------------------------------------------------------------------------------------------------------ */

typedef struct simt_kernel {
    const char *name;
    void (*run)(const void *params);
    uint32_t warp, threads;
    size_t params_bytes;
} simt_kernel;

/* A kernel of src/device by name, compiled for warps of 32 or 64; NULL when there is none. By index from 0 for walking all of a width. */
const simt_kernel *simt_find(uint32_t warp, const char *name);
const simt_kernel *simt_nth(uint32_t warp, uint32_t index);

/* Whether matrix units multiply an 8-bit float as it is stored: not at all; by an instruction that the kernels have no use for; by one that they use; by that and
 * one of 128 elements. */
typedef enum simt_fp8_use { SIMT_FP8_NONE, SIMT_FP8_SLOW, SIMT_FP8_USED, SIMT_FP8_WIDE } simt_fp8_use;
simt_fp8_use simt_fp8(uint32_t warp, uint32_t dtype);

/* params: copied before the first lane runs. */
simt_fault simt_launch(simt_device *device, const simt_kernel *kernel, uint32_t grid_x, uint32_t grid_y, uint32_t dynamic_shared_bytes,
                       const void *params, simt_report *report);

#endif
