/* driver_rules.h: owns what both vendors' drivers have in common: which launches are legal, what error numbers mean (HIP took over CUDA's), and
 * how a driver remembers errors.
 *
 * Threads: any; a state's fields are atomic. */
#ifndef OCT_DEVICE_DRIVER_RULES_H
#define OCT_DEVICE_DRIVER_RULES_H

#include <stdatomic.h>
#include <stdbool.h>

#include "device/driver.h"
#include "device/kernel_list.h"

/* Numbers with a meaning of their own when a driver is opened. */
enum { OCT__DRIVER_ERROR_OUT_OF_MEMORY = 2, OCT__DRIVER_ERROR_NO_DEVICE = 100, OCT__DRIVER_ERROR_CAPTURE_IMPLICIT = 906 };

typedef struct oct__driver_state {
    _Atomic(const char *) fault;    /* the vendor's static name of the last error; NULL when none */
    atomic_bool is_lost;            /* the device takes no more work in this process */
} oct__driver_state;

/* OK for 0. */
oct_status oct__driver_status_of(int error);

/* Keeps the error's name and, when it is one that ends the device's use, that the device is lost. Returns oct__driver_status_of(error). */
oct_status oct__driver_note(oct__driver_state *state, int error, const char *name);

/* Index in a list of n kernels of a legal launch; -1: no such kernel, or lanes, parameters or a grid that do not fit it. */
int oct__driver_kernel_of(const oct__dev_kernel *kernels, int n, const oct__dev_launch *launch, const void *params, size_t params_bytes);

#endif
