/* driver_rules.c: see driver_rules.h. */
#include "device/driver_rules.h"

#include <string.h>

const oct__dev_kernel oct__dev_kernel_list[] = {
#define X(name, threads, type) OCT__DEV_KERNEL_ROW(name, threads, type),
#include "device/kernels.def"
#undef X
};

oct_status oct__driver_status_of(int error)
{
    switch (error) {
    case 0:
        return OCT_OK;
    case OCT__DRIVER_ERROR_OUT_OF_MEMORY:
        return OCT_OUT_OF_MEMORY;
    case 1:      /* INVALID_VALUE */
    case 9:      /* hipErrorInvalidConfiguration */
    case 17:     /* hipErrorInvalidDevicePointer */
    case 400:    /* INVALID_HANDLE: a stream that is none */
        return OCT_INVALID_ARGUMENT;
    case 701:    /* LAUNCH_OUT_OF_RESOURCES: refused before it began */
    case 801:    /* NOT_SUPPORTED */
        return OCT_UNSUPPORTED;
    default:
        /* 900 to 908: what a capture forbids. Whatever else there is comes from a kernel that failed or a device that is gone, and
         * neither vendor lets the process go on from that. */
        return error >= 900 && error <= 908 ? OCT_UNSUPPORTED : OCT_DEVICE_FAULT;
    }
}

oct_status oct__driver_note(oct__driver_state *state, int error, const char *name)
{
    const oct_status status = oct__driver_status_of(error);
    if (status != OCT_OK) {
        atomic_store(&state->fault, name);
    }
    if (status == OCT_DEVICE_FAULT) {
        atomic_store(&state->is_lost, true);
    }
    return status;
}

int oct__driver_kernel_of(const oct__dev_kernel *kernels, int n, const oct__dev_launch *launch, const void *params, size_t params_bytes)
{
    for (int i = 0; i < n; i++) {
        const oct__dev_kernel *kernel = &kernels[i];
        if (strcmp(kernel->name, launch->kernel) == 0) {
            /* y: both vendors; x: HIP keeps blocks x lanes of an axis below 2^32, CUDA blocks below 2^31. */
            const bool is_legal = params != NULL && params_bytes == kernel->params_bytes && launch->threads == kernel->threads && launch->grid_x > 0 &&
                                  launch->grid_y > 0 && launch->grid_y <= 65535 && (uint64_t)launch->grid_x * launch->threads <= UINT32_MAX &&
                                  launch->grid_x <= INT32_MAX;
            return is_legal ? i : -1;
        }
    }
    return -1;
}
