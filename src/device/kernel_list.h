/* kernel_list.h: owns kernels.def as a table, for drivers that load and launch kernels by name.
 *
 * Threads: constants; any thread. */
#ifndef OCT_DEVICE_KERNEL_LIST_H
#define OCT_DEVICE_KERNEL_LIST_H

#include <stddef.h>
#include <stdint.h>

#include "device/params.h"

enum {
#define X(name, threads, type) OCT__DEV_KERNEL_##name,
#include "device/kernels.def"
#undef X
    OCT__DEV_KERNELS
};

typedef struct oct__dev_kernel {
    const char *name, *symbol;      /* "kv_write", "oct__dev_kv_write" */
    uint32_t threads;
    size_t params_bytes;
} oct__dev_kernel;

/* A row of kernels.def as an initializer. */
#define OCT__DEV_KERNEL_ROW(name, threads, type) { #name, "oct__dev_" #name, threads, sizeof(type) }

/* The kernels of kernels.def: OCT__DEV_KERNELS of them. */
extern const oct__dev_kernel oct__dev_kernel_list[];

#endif
