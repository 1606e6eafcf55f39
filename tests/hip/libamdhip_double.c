/* libamdhip_double.c: a double of libamdhip64.so: the entry points that src/hip and the tests use, under AMD's names and rules, over driver/double.h.
 * What works on the device works on the thread's current one, and a kernel wants its own.
 *
 * Threads: see double.h. */
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "driver/double.h"

#define API __attribute__((visibility("default")))

enum { INVALID_VALUE = 1, NO_DEVICE = 100, INVALID_DEVICE = 101, INVALID_HANDLE = 400 };

static const driver_double control = {
    .usual = { .name = "a double of an MI300X", .arch = "gfx942:sramecc+:xnack-", .n_devices = 2, .warp = 64, .n_units = 3, .shared_limit_bytes = 64 * 1024,
               .memory_clock_khz = 1300000, .bus_bits = 8192, .memory_bytes = (size_t)4 << 30 },
    .reset = double_reset, .plan_failure = double_fail, .calls = double_calls, .lose = double_lose, .live = double_is_live, .report = double_report,
};

API const driver_double *oct_driver_double(void) { return &control; }

static void __attribute__((constructor)) begin(void) { double_define(&control); }

static _Thread_local int last;

/* HIP keeps a thread's last error until someone takes it. */
static int leave(int error)
{
    last = error != 0 ? error : last;
    return double_leave(error);
}

#define ENTRY(entry, work)                                  \
    do {                                                    \
        int error_ = double_enter(entry);                   \
        return leave(error_ != 0 ? error_ : (work));        \
    } while (0)

/* ---- devices --------------------------------------------------------------------------------------------------------------------------- */

API int hipInit(unsigned flags) { ENTRY("hipInit", flags != 0 ? INVALID_VALUE : double_this.n_devices == 0 ? NO_DEVICE : 0); }

API const char *hipGetErrorName(int error)
{
    switch (error) {
    case 1: return "hipErrorInvalidValue";
    case 2: return "hipErrorOutOfMemory";
    case 35: return "hipErrorInsufficientDriver";
    case 100: return "hipErrorNoDevice";
    case 209: return "hipErrorNoBinaryForGpu";
    case 400: return "hipErrorInvalidHandle";
    case 500: return "hipErrorNotFound";
    case 700: return "hipErrorIllegalAddress";
    case 716: return "hipErrorMisalignedAddress";
    case 719: return "hipErrorLaunchFailure";
    case 900: return "hipErrorStreamCaptureUnsupported";
    default: return "hipErrorUnknown";
    }
}

API int hipGetLastError(void)
{
    const int error = last;
    double_enter("hipGetLastError");
    last = 0;
    return double_leave(error);
}

API int hipPeekAtLastError(void) { return last; }

API int hipGetDeviceCount(int *count) { ENTRY("hipGetDeviceCount", double_this.n_devices == 0 ? NO_DEVICE : (*count = double_this.n_devices, 0)); }

/* hipDeviceProp_tR0600: 1472 bytes, the architecture's name at 1160. What the driver has no business with holds nonsense. */
API int hipGetDevicePropertiesR0600(void *properties, int device)
{
    unsigned char *at = properties;
    const int error = double_enter("hipGetDevicePropertiesR0600");
    if (error != 0 || double_context_of(device) == NULL)
        return leave(error != 0 ? error : INVALID_DEVICE);
    memset(at, 0x5A, 1472);
    memset(at, 0, 256);
    memset(at + 1160, 0, 256);
    memcpy(at, double_this.name, sizeof double_this.name);
    memcpy(at + 1160, double_this.arch, sizeof double_this.arch);
    return leave(0);
}

static int attribute(int *value, int which)
{
    switch (which) {
    case 59: *value = (int)double_this.bus_bits; return 0;
    case 60: *value = (int)double_this.memory_clock_khz; return 0;
    case 63: *value = (int)double_this.n_units; return 0;
    case 74: *value = (int)double_this.shared_limit_bytes; return 0;
    case 87: *value = (int)double_this.warp; return 0;
    default: return INVALID_VALUE;
    }
}

API int hipDeviceGetAttribute(int *value, int which, int device)
{
    ENTRY("hipDeviceGetAttribute", double_context_of(device) == NULL ? INVALID_DEVICE : attribute(value, which));
}

API int hipDeviceTotalMem(size_t *bytes, int device)
{
    ENTRY("hipDeviceTotalMem", double_context_of(device) == NULL ? INVALID_DEVICE : (*bytes = double_this.memory_bytes, 0));
}

API int hipGetDevice(int *device) { ENTRY("hipGetDevice", (*device = *double_device(), 0)); }

API int hipSetDevice(int device) { ENTRY("hipSetDevice", double_context_of(device) == NULL ? INVALID_DEVICE : (*double_device() = device, 0)); }

/* ---- modules --------------------------------------------------------------------------------------------------------------------------- */

API int hipModuleLoadData(void **module, const void *image)
{
    double_module *loaded = NULL;
    int error = double_enter("hipModuleLoadData");
    if (error == 0)
        error = double_load(&loaded, image, *double_device());
    *module = loaded;
    return leave(error);
}

API int hipModuleUnload(void *module) { ENTRY("hipModuleUnload", double_unload(module)); }

API int hipModuleGetFunction(void **function, void *module, const char *name)
{
    double_function *found = NULL;
    int error = double_enter("hipModuleGetFunction");
    if (error == 0)
        error = double_find(&found, module, name, double_this.shared_limit_bytes);
    *function = found;
    return leave(error);
}

/* ---- memory and work --------------------------------------------------------------------------------------------------------------------- */

API int hipMalloc(void **memory, size_t bytes) { ENTRY("hipMalloc", double_alloc(memory, bytes)); }
API int hipFree(void *memory) { ENTRY("hipFree", double_free(memory)); }
API int hipMemcpyHtoDAsync(void *to, const void *from, size_t bytes, void *stream) { ENTRY("hipMemcpyHtoDAsync", double_copy_in(to, from, bytes, stream)); }
API int hipMemcpyDtoHAsync(void *to, const void *from, size_t bytes, void *stream) { ENTRY("hipMemcpyDtoHAsync", double_copy_out(to, from, bytes, stream)); }
API int hipMemcpyDtoDAsync(void *to, const void *from, size_t bytes, void *stream) { ENTRY("hipMemcpyDtoDAsync", double_copy(to, from, bytes, stream)); }
API int hipMemsetD8Async(void *to, unsigned char byte, size_t bytes, void *stream) { ENTRY("hipMemsetD8Async", double_fill(to, byte, bytes, stream)); }

API int hipModuleLaunchKernel(void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y, unsigned block_z,
                              unsigned shared_bytes, void *stream, void **params, void **extra)
{
    const uint32_t grid[3] = { grid_x, grid_y, grid_z }, block[3] = { block_x, block_y, block_z };
    /* HIP counts lanes in 32 bits on each axis. */
    const int is_wide = (uint64_t)grid_x * block_x > UINT32_MAX;
    ENTRY("hipModuleLaunchKernel", double_function_device(function) != *double_device() ? INVALID_HANDLE
                                   : params == NULL || extra != NULL || is_wide         ? INVALID_VALUE
                                                                                : double_launch(function, grid, block, shared_bytes, params[0], stream));
}

API int hipStreamSynchronize(void *stream) { ENTRY("hipStreamSynchronize", double_wait(stream)); }
API int hipStreamIsCapturing(void *stream, int *status) { ENTRY("hipStreamIsCapturing", double_capture_status(stream, status)); }

/* ---- what the tests call themselves -------------------------------------------------------------------------------------------------------- */

API int hipStreamCreate(void **stream) { ENTRY("hipStreamCreate", double_stream_make(stream, 0)); }
API int hipStreamCreateWithFlags(void **stream, unsigned flags) { ENTRY("hipStreamCreateWithFlags", double_stream_make(stream, flags)); }
API int hipStreamDestroy(void *stream) { ENTRY("hipStreamDestroy", double_stream_drop(stream)); }
API int hipStreamBeginCapture(void *stream, int mode) { ENTRY("hipStreamBeginCapture", double_capture_begin(stream, mode)); }
API int hipStreamEndCapture(void *stream, void **graph) { ENTRY("hipStreamEndCapture", double_capture_end(stream, graph)); }

API int hipGraphInstantiate(void **exec, void *graph, void **node, char *log, size_t log_bytes)
{
    (void)node;
    (void)log;
    (void)log_bytes;
    ENTRY("hipGraphInstantiate", double_graph_copy(exec, graph));
}

API int hipGraphLaunch(void *exec, void *stream) { ENTRY("hipGraphLaunch", double_graph_run(exec, stream)); }
API int hipGraphExecDestroy(void *exec) { ENTRY("hipGraphExecDestroy", (double_graph_drop(exec), 0)); }
API int hipGraphDestroy(void *graph) { ENTRY("hipGraphDestroy", (double_graph_drop(graph), 0)); }
