/* libcuda_double.c: a double of libcuda.so.1: the entry points that src/cuda and the tests use, under NVIDIA's names and rules, over driver/double.h.
 * What works on the device wants its context to be current, and dynamic shared memory above 48 KiB to be asked for.
 *
 * Threads: see double.h. */
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "driver/double.h"

#define API __attribute__((visibility("default")))

typedef unsigned long long address;

enum { INVALID_VALUE = 1, NO_DEVICE = 100, INVALID_DEVICE = 101, INVALID_CONTEXT = 201, SHARED_BY_DEFAULT = 48 * 1024 };

static const driver_double control = {
    .usual = { .name = "a double of an H200", .capability = 90, .n_devices = 1, .warp = 32, .n_units = 3, .shared_limit_bytes = 227 * 1024,
               .memory_clock_khz = 3201000, .bus_bits = 6144, .memory_bytes = (size_t)4 << 30 },
    .reset = double_reset, .plan_failure = double_fail, .calls = double_calls, .lose = double_lose, .live = double_is_live, .report = double_report,
};

API const driver_double *oct_driver_double(void) { return &control; }

static void __attribute__((constructor)) begin(void) { double_define(&control); }

/* For what works on the device. */
static int enter_device(const char *entry)
{
    const int error = double_enter(entry);
    const double_context *current = double_current();
    return error != 0 ? error : current == NULL || current->n_retained == 0 ? INVALID_CONTEXT : 0;
}

#define PLAIN(entry, work)                                          \
    do {                                                            \
        int error_ = double_enter(entry);                           \
        return double_leave(error_ != 0 ? error_ : (work));         \
    } while (0)
#define ON_DEVICE(entry, work)                                      \
    do {                                                            \
        int error_ = enter_device(entry);                           \
        return double_leave(error_ != 0 ? error_ : (work));         \
    } while (0)

/* ---- devices --------------------------------------------------------------------------------------------------------------------------- */

API int cuInit(unsigned flags) { PLAIN("cuInit", flags != 0 ? INVALID_VALUE : double_this.n_devices == 0 ? NO_DEVICE : 0); }

API int cuGetErrorName(int error, const char **name)
{
    static const struct { int error; const char *name; } names[] = {
        { 1, "CUDA_ERROR_INVALID_VALUE" }, { 2, "CUDA_ERROR_OUT_OF_MEMORY" }, { 100, "CUDA_ERROR_NO_DEVICE" }, { 201, "CUDA_ERROR_INVALID_CONTEXT" },
        { 209, "CUDA_ERROR_NO_BINARY_FOR_GPU" }, { 222, "CUDA_ERROR_UNSUPPORTED_PTX_VERSION" }, { 400, "CUDA_ERROR_INVALID_HANDLE" },
        { 500, "CUDA_ERROR_NOT_FOUND" }, { 700, "CUDA_ERROR_ILLEGAL_ADDRESS" }, { 716, "CUDA_ERROR_MISALIGNED_ADDRESS" },
        { 719, "CUDA_ERROR_LAUNCH_FAILED" }, { 803, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH" }, { 900, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED" },
    };
    int known = 0;
    double_enter("cuGetErrorName");
    *name = NULL;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (names[i].error == error) {
            *name = names[i].name;
            known = 1;
        }
    return double_leave(known ? 0 : INVALID_VALUE);
}

API int cuDeviceGetCount(int *count) { PLAIN("cuDeviceGetCount", (*count = double_this.n_devices, 0)); }

API int cuDeviceGet(int *device, int ordinal)
{
    PLAIN("cuDeviceGet", double_context_of(ordinal) == NULL ? INVALID_DEVICE : (*device = ordinal, 0));
}

API int cuDeviceGetName(char *name, int size, int device)
{
    PLAIN("cuDeviceGetName", double_context_of(device) == NULL ? INVALID_DEVICE : (snprintf(name, (size_t)size, "%s", double_this.name), 0));
}

static int attribute(int *value, int which)
{
    switch (which) {
    case 10: *value = (int)double_this.warp; return 0;
    case 16: *value = (int)double_this.n_units; return 0;
    case 36: *value = (int)double_this.memory_clock_khz; return 0;
    case 37: *value = (int)double_this.bus_bits; return 0;
    case 38: *value = 4096; return 0;   /* second-level cache; small, so that benchmarks are */
    case 75: *value = double_this.capability / 10; return 0;
    case 76: *value = double_this.capability % 10; return 0;
    case 97: *value = (int)double_this.shared_limit_bytes; return 0;
    default: return INVALID_VALUE;
    }
}

API int cuDeviceGetAttribute(int *value, int which, int device)
{
    PLAIN("cuDeviceGetAttribute", double_context_of(device) == NULL ? INVALID_DEVICE : attribute(value, which));
}

API int cuDeviceTotalMem_v2(size_t *bytes, int device)
{
    PLAIN("cuDeviceTotalMem_v2", double_context_of(device) == NULL ? INVALID_DEVICE : (*bytes = double_this.memory_bytes, 0));
}

API int cuDevicePrimaryCtxRetain(void **context, int device)
{
    double_context *c = double_context_of(device);
    PLAIN("cuDevicePrimaryCtxRetain", c == NULL ? INVALID_DEVICE : (c->n_retained++, *context = c, 0));
}

API int cuDevicePrimaryCtxRelease_v2(int device)
{
    double_context *c = double_context_of(device);
    PLAIN("cuDevicePrimaryCtxRelease_v2", c == NULL || c->n_retained == 0 ? INVALID_CONTEXT : (c->n_retained--, 0));
}

API int cuCtxPushCurrent_v2(void *context) { PLAIN("cuCtxPushCurrent_v2", context == NULL ? INVALID_CONTEXT : double_push(context)); }

API int cuCtxPopCurrent_v2(void **context) { PLAIN("cuCtxPopCurrent_v2", (*context = double_pop()) == NULL ? INVALID_CONTEXT : 0); }

API int cuCtxSetCurrent(void *context) { PLAIN("cuCtxSetCurrent", (double_pop(), context == NULL ? 0 : double_push(context))); }

API int cuCtxGetCurrent(void **context) { PLAIN("cuCtxGetCurrent", (*context = double_current(), 0)); }

/* ---- modules --------------------------------------------------------------------------------------------------------------------------- */

/* The error log of the compiler of PTX, as far as there is something to say. */
API int cuModuleLoadDataEx(void **module, const void *image, unsigned n, int *options, void **values)
{
    double_module *loaded = NULL;
    int error = enter_device("cuModuleLoadDataEx");
    if (error == 0)
        error = double_load(&loaded, image, double_current()->device);
    for (unsigned i = 0; i + 1 < n && error != 0; i++)
        if (options[i] == 5 && options[i + 1] == 6)
            snprintf(values[i], (size_t)(uintptr_t)values[i + 1], "the double's log");
    *module = loaded;
    return double_leave(error);
}

API int cuModuleUnload(void *module) { ON_DEVICE("cuModuleUnload", double_unload(module)); }

API int cuModuleGetFunction(void **function, void *module, const char *name)
{
    double_function *found = NULL;
    int error = enter_device("cuModuleGetFunction");
    if (error == 0)
        error = double_find(&found, module, name, SHARED_BY_DEFAULT);
    *function = found;
    return double_leave(error);
}

API int cuFuncGetAttribute(int *value, int which, void *function)
{
    ON_DEVICE("cuFuncGetAttribute", which != 1 ? INVALID_VALUE : (*value = (int)((double_function *)function)->static_bytes, 0));
}

API int cuFuncSetAttribute(void *function, int which, int value)
{
    double_function *f = function;
    ON_DEVICE("cuFuncSetAttribute", which != 8 || value < 0 || (uint32_t)value + f->static_bytes > double_this.shared_limit_bytes
                                        ? INVALID_VALUE
                                        : (f->dynamic_limit_bytes = (uint32_t)value, 0));
}

/* ---- memory and work --------------------------------------------------------------------------------------------------------------------- */

static void *pointer(address at) { return (void *)(uintptr_t)at; }

API int cuMemAlloc_v2(address *memory, size_t bytes)
{
    void *at = NULL;
    int error = enter_device("cuMemAlloc_v2");
    if (error == 0)
        error = double_alloc(&at, bytes);
    *memory = (uintptr_t)at;
    return double_leave(error);
}

API int cuMemFree_v2(address memory) { ON_DEVICE("cuMemFree_v2", double_free(pointer(memory))); }

API int cuMemcpyHtoDAsync_v2(address to, const void *from, size_t bytes, void *stream)
{
    ON_DEVICE("cuMemcpyHtoDAsync_v2", double_copy_in(pointer(to), from, bytes, stream));
}

API int cuMemcpyDtoHAsync_v2(void *to, address from, size_t bytes, void *stream)
{
    ON_DEVICE("cuMemcpyDtoHAsync_v2", double_copy_out(to, pointer(from), bytes, stream));
}

API int cuMemcpyDtoDAsync_v2(address to, address from, size_t bytes, void *stream)
{
    ON_DEVICE("cuMemcpyDtoDAsync_v2", double_copy(pointer(to), pointer(from), bytes, stream));
}

API int cuMemsetD8Async(address to, unsigned char byte, size_t bytes, void *stream)
{
    ON_DEVICE("cuMemsetD8Async", double_fill(pointer(to), byte, bytes, stream));
}

API int cuLaunchKernel(void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y, unsigned block_z,
                       unsigned shared_bytes, void *stream, void **params, void **extra)
{
    const uint32_t grid[3] = { grid_x, grid_y, grid_z }, block[3] = { block_x, block_y, block_z };
    ON_DEVICE("cuLaunchKernel", params == NULL || extra != NULL || double_function_device(function) != double_current()->device
                                    ? INVALID_VALUE
                                    : double_launch(function, grid, block, shared_bytes, params[0], stream));
}

/* CUlaunchConfig, with its one attribute: a kernel that starts early. Here it starts when its turn comes, which it may. */
struct launch_attribute { int id; char padding[4]; union { int value; char room[64]; } of; };
struct launch_config { unsigned grid[3], block[3], shared_bytes; void *stream; const struct launch_attribute *attributes; unsigned n_attributes; };

API int cuLaunchKernelEx(const struct launch_config *config, void *function, void **params, void **extra)
{
    ON_DEVICE("cuLaunchKernelEx", params == NULL || extra != NULL || config->n_attributes != 1 || config->attributes[0].id != 6 || config->attributes[0].of.value != 1 ||
                                          double_function_device(function) != double_current()->device
                                      ? INVALID_VALUE
                                      : double_launch(function, config->grid, config->block, config->shared_bytes, params[0], config->stream));
}

API int cuStreamSynchronize(void *stream) { ON_DEVICE("cuStreamSynchronize", double_wait(stream)); }

API int cuStreamIsCapturing(void *stream, int *status) { ON_DEVICE("cuStreamIsCapturing", double_capture_status(stream, status)); }

/* ---- what the tests call themselves -------------------------------------------------------------------------------------------------------- */

API int cuStreamCreate(void **stream, unsigned flags) { ON_DEVICE("cuStreamCreate", double_stream_make(stream, flags)); }
API int cuStreamDestroy_v2(void *stream) { ON_DEVICE("cuStreamDestroy_v2", double_stream_drop(stream)); }
API int cuStreamBeginCapture_v2(void *stream, int mode) { ON_DEVICE("cuStreamBeginCapture_v2", double_capture_begin(stream, mode)); }
API int cuStreamEndCapture(void *stream, void **graph) { ON_DEVICE("cuStreamEndCapture", double_capture_end(stream, graph)); }

API int cuGraphInstantiateWithFlags(void **exec, void *graph, unsigned long long flags)
{
    (void)flags;
    ON_DEVICE("cuGraphInstantiateWithFlags", double_graph_copy(exec, graph));
}

API int cuGraphLaunch(void *exec, void *stream) { ON_DEVICE("cuGraphLaunch", double_graph_run(exec, stream)); }
API int cuGraphExecDestroy(void *exec) { ON_DEVICE("cuGraphExecDestroy", (double_graph_drop(exec), 0)); }
API int cuGraphDestroy(void *graph) { ON_DEVICE("cuGraphDestroy", (double_graph_drop(graph), 0)); }
API int cuEventCreate(void **event, unsigned flags) { ON_DEVICE("cuEventCreate", flags != 0 ? INVALID_VALUE : double_event_make(event)); }
API int cuEventDestroy_v2(void *event) { ON_DEVICE("cuEventDestroy_v2", (double_event_drop(event), 0)); }
API int cuEventRecord(void *event, void *stream) { ON_DEVICE("cuEventRecord", double_event_record(event, stream)); }
API int cuEventElapsedTime(float *milliseconds, void *from, void *to) { ON_DEVICE("cuEventElapsedTime", double_event_elapsed(milliseconds, from, to)); }
