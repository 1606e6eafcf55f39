/* driver.c: owns the NVIDIA driver: libcuda.so.1, opened at run time, behind device/driver.h. It works in the device's primary context, which
 * PyTorch and the CUDA runtime use too, so that their streams and memory are ours and the other way round.
 *
 * Threads: see driver.h. What is written after open is atomic. */
#include <stdio.h>
#include <string.h>

#include "device/code.h"
#include "device/driver_rules.h"
#include "device/write_sm90a.h"
#include "host/error.h"
#include "host/library.h"

typedef unsigned long long address;   /* CUdeviceptr */

/* CUlaunchAttribute and CUlaunchConfig. */
typedef struct launch_attribute {
    int id;
    char padding[4];
    union {
        int value;
        char room[64];
    } of;
} launch_attribute;
typedef struct launch_config {
    unsigned grid[3], block[3], shared_bytes;
    void *stream;
    launch_attribute *attributes;
    unsigned n_attributes;
} launch_config;

/* ENTRY(field, symbol, arguments): the driver's functions, as cuda.h of version 13 declares them; each returns a CUresult. A symbol with a
 * version is the one that cuda.h's plain name means; older drivers have it as well. */
#define ENTRIES(ENTRY)                                                                                                                      \
    ENTRY(init, "cuInit", (unsigned flags))                                                                                                 \
    ENTRY(error_name, "cuGetErrorName", (int error, const char **name))                                                                     \
    ENTRY(count, "cuDeviceGetCount", (int *count))                                                                                          \
    ENTRY(get, "cuDeviceGet", (int *device, int ordinal))                                                                                   \
    ENTRY(get_name, "cuDeviceGetName", (char *name, int size, int device))                                                                  \
    ENTRY(get_attribute, "cuDeviceGetAttribute", (int *value, int attribute, int device))                                                   \
    ENTRY(total_memory, "cuDeviceTotalMem_v2", (size_t *bytes, int device))                                                                 \
    ENTRY(retain, "cuDevicePrimaryCtxRetain", (void **context, int device))                                                                 \
    ENTRY(release, "cuDevicePrimaryCtxRelease_v2", (int device))                                                                            \
    ENTRY(push, "cuCtxPushCurrent_v2", (void *context))                                                                                     \
    ENTRY(pop, "cuCtxPopCurrent_v2", (void **context))                                                                                      \
    ENTRY(load, "cuModuleLoadDataEx", (void **module, const void *image, unsigned n, int *options, void **values))                          \
    ENTRY(unload, "cuModuleUnload", (void *module))                                                                                         \
    ENTRY(get_function, "cuModuleGetFunction", (void **function, void *module, const char *name))                                           \
    ENTRY(get_function_attribute, "cuFuncGetAttribute", (int *value, int attribute, void *function))                                        \
    ENTRY(set_function_attribute, "cuFuncSetAttribute", (void *function, int attribute, int value))                                         \
    ENTRY(alloc, "cuMemAlloc_v2", (address *memory, size_t bytes))                                                                          \
    ENTRY(free, "cuMemFree_v2", (address memory))                                                                                           \
    ENTRY(copy_in, "cuMemcpyHtoDAsync_v2", (address to, const void *from, size_t bytes, void *stream))                                      \
    ENTRY(copy_out, "cuMemcpyDtoHAsync_v2", (void *to, address from, size_t bytes, void *stream))                                           \
    ENTRY(copy, "cuMemcpyDtoDAsync_v2", (address to, address from, size_t bytes, void *stream))                                             \
    ENTRY(fill, "cuMemsetD8Async", (address to, unsigned char byte, size_t bytes, void *stream))                                            \
    ENTRY(launch, "cuLaunchKernel",                                                                                                         \
          (void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y, unsigned block_z,         \
           unsigned shared_bytes, void *stream, void **params, void **extra))                                                               \
    ENTRY(launch_early, "cuLaunchKernelEx", (const launch_config *config, void *function, void **params, void **extra))                          \
    ENTRY(wait, "cuStreamSynchronize", (void *stream))                                                                                      \
    ENTRY(is_capturing, "cuStreamIsCapturing", (void *stream, int *status))

/* cuda.h's numbers. */
enum {
    DEVICE_WARP_SIZE = 10,
    DEVICE_MULTIPROCESSOR_COUNT = 16,
    DEVICE_MEMORY_CLOCK_RATE = 36,      /* kHz */
    DEVICE_GLOBAL_MEMORY_BUS_WIDTH = 37,   /* bits */
    DEVICE_CAPABILITY_MAJOR = 75,
    DEVICE_CAPABILITY_MINOR = 76,
    DEVICE_MAX_SHARED_PER_BLOCK_OPTIN = 97,
    FUNCTION_SHARED_SIZE_BYTES = 1,
    FUNCTION_MAX_DYNAMIC_SHARED_SIZE_BYTES = 8,
    JIT_ERROR_LOG_BUFFER = 5,
    JIT_ERROR_LOG_BUFFER_SIZE_BYTES = 6,
    ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION = 6,
    NOT_FOUND = 500,
    MMA_FROM_CAPABILITY = 80            /* tile.h */
};

/* What is loaded: the kernels of every GPU, then Hopper's own, which only machine code for 9.0 holds. */
static const oct__dev_kernel kernels[] = {
#define X(name, threads, type) OCT__DEV_KERNEL_ROW(name, threads, type),
#include "device/kernels.def"
#include "cuda/kernels_sm90a.def"
#undef X
};
enum { KERNELS = sizeof kernels / sizeof kernels[0] };

typedef struct cuda {
    oct__driver base;
    oct__allocator allocator;
    oct__driver_state state;
    void *library;
    int device;
    void *context, *module;
    void *functions[KERNELS];       /* of kernels; NULL: not in this code */
#define FIELD(field, symbol, arguments) int (*field) arguments;
    ENTRIES(FIELD)
#undef FIELD
} cuda;

static const char where[] = "cuda driver";

static const char *name_of(const cuda *c, int error)
{
    const char *name = NULL;
    return c->error_name(error, &name) == 0 && name != NULL ? name : "an error without a name";
}

static oct_status note(cuda *c, int error)
{
    return error == 0 ? OCT_OK : oct__driver_note(&c->state, error, name_of(c, error));
}

/* ---- what the table offers ----------------------------------------------------------------------------------------------------------- */

/* Makes the context current, above whatever the caller has there. Not OK: nothing is to be left. */
static oct_status enter(cuda *c)
{
    return atomic_load(&c->state.is_lost) ? OCT_DEVICE_FAULT : note(c, c->push(c->context));
}

static oct_status leave(cuda *c, int error)
{
    void *popped;
    const oct_status status = note(c, error), popping = note(c, c->pop(&popped));
    return status != OCT_OK ? status : popping;
}

/* Called between enter and leave. What cuStreamIsCapturing says of the default stream while another one is captured is an error, but one that
 * leaves the capture alone. */
static bool captures(cuda *c, void *stream)
{
    int status = 0;
    const int error = c->is_capturing(stream, &status);
    return error == 0 ? status != 0 : error == OCT__DRIVER_ERROR_CAPTURE_IMPLICIT;
}

/* Enters for a call that a capture forbids. The vendor would refuse it too, but end the capture with that. */
static oct_status enter_outside_capture(cuda *c, void *stream)
{
    oct_status status = enter(c);
    if (status == OCT_OK && captures(c, stream)) {
        status = leave(c, 0);
        return status != OCT_OK ? status : OCT_UNSUPPORTED;
    }
    return status;
}

static oct_status cuda_alloc(oct__driver *driver, size_t bytes, void **memory)
{
    cuda *c = (cuda *)driver;
    address at = 0;
    *memory = NULL;
    oct_status status = bytes == 0 ? OCT_OK : enter(c);
    if (status == OCT_OK && bytes > 0) {
        status = leave(c, c->alloc(&at, bytes));
    }
    if (status == OCT_OK) {
        *memory = (void *)(uintptr_t)at;
    }
    return status;
}

static void cuda_free(oct__driver *driver, void *memory)
{
    cuda *c = (cuda *)driver;
    if (memory != NULL && enter(c) == OCT_OK) {
        leave(c, c->free((address)(uintptr_t)memory));
    }
}

static oct_status cuda_copy_in(oct__driver *driver, void *device, const void *host, size_t bytes, void *stream)
{
    cuda *c = (cuda *)driver;
    const oct_status status = enter_outside_capture(c, stream);
    return status != OCT_OK ? status : leave(c, bytes == 0 ? 0 : c->copy_in((address)(uintptr_t)device, host, bytes, stream));
}

static oct_status cuda_copy_out(oct__driver *driver, void *host, const void *device, size_t bytes, void *stream)
{
    cuda *c = (cuda *)driver;
    const oct_status status = enter_outside_capture(c, stream);
    return status != OCT_OK ? status : leave(c, bytes == 0 ? 0 : c->copy_out(host, (address)(uintptr_t)device, bytes, stream));
}

static oct_status cuda_copy(oct__driver *driver, void *to, const void *from, size_t bytes, void *stream)
{
    cuda *c = (cuda *)driver;
    const oct_status status = enter_outside_capture(c, stream);
    return status != OCT_OK ? status : leave(c, bytes == 0 ? 0 : c->copy((address)(uintptr_t)to, (address)(uintptr_t)from, bytes, stream));
}

static oct_status cuda_fill(oct__driver *driver, void *device, uint8_t byte, size_t bytes, void *stream)
{
    cuda *c = (cuda *)driver;
    const oct_status status = enter(c);
    return status != OCT_OK ? status : leave(c, bytes == 0 ? 0 : c->fill((address)(uintptr_t)device, byte, bytes, stream));
}

static oct_status cuda_launch(oct__driver *driver, const oct__dev_launch *launch, const void *params, size_t params_bytes, void *stream)
{
    cuda *c = (cuda *)driver;
    const int kernel = oct__driver_kernel_of(kernels, KERNELS, launch, params, params_bytes);
    if (kernel < 0 || c->functions[kernel] == NULL) {
        return OCT_INVALID_ARGUMENT;
    }
    const oct_status status = enter(c);
    if (status != OCT_OK) {
        return status;
    }
    union {
        const void *from;
        void *to;
    } pun = { .from = params };
    void *arguments[] = { pun.to };
    if (launch->is_early) {
        launch_attribute early = { .id = ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION, .of.value = 1 };
        const launch_config config = {
            .grid = { launch->grid_x, launch->grid_y, 1 },
            .block = { launch->threads, 1, 1 },
            .shared_bytes = launch->shared_bytes,
            .stream = stream,
            .attributes = &early,
            .n_attributes = 1,
        };
        return leave(c, c->launch_early(&config, c->functions[kernel], arguments, NULL));
    }
    return leave(c, c->launch(c->functions[kernel], launch->grid_x, launch->grid_y, 1, launch->threads, 1, 1, launch->shared_bytes, stream, arguments, NULL));
}

static oct_status cuda_wait(oct__driver *driver, void *stream)
{
    cuda *c = (cuda *)driver;
    const oct_status status = enter_outside_capture(c, stream);
    return status != OCT_OK ? status : leave(c, c->wait(stream));
}

static bool cuda_is_capturing(oct__driver *driver, void *stream)
{
    cuda *c = (cuda *)driver;
    if (enter(c) != OCT_OK) {
        return false;
    }
    const bool answer = captures(c, stream);
    leave(c, 0);
    return answer;
}

static const char *cuda_fault(oct__driver *driver)
{
    const char *name = atomic_load(&((cuda *)driver)->state.fault);
    return name != NULL ? name : "";
}

/* The library stays open: its threads and exit handlers outlive the last context. */
static void cuda_close(oct__driver *driver)
{
    cuda *c = (cuda *)driver;
    if (c == NULL) {
        return;
    }
    if (c->context != NULL) {
        void *popped;
        if (c->push(c->context) == 0) {
            if (c->module != NULL) {
                c->unload(c->module);
            }
            c->pop(&popped);
        }
        c->release(c->device);
    }
    const oct__allocator allocator = c->allocator;
    oct__memory_free(&allocator, c, sizeof *c);
}

/* ---- opening --------------------------------------------------------------------------------------------------------------------------- */

static oct_status find_entries(cuda *c, const char *library, oct_error *error)
{
    char why[160] = "";
    const char *const names[] = { library != NULL ? library : "libcuda.so.1", NULL };
    c->library = oct__library_open(names, why, sizeof why);
    if (c->library == NULL) {
        return oct__error_set(error, OCT_UNSUPPORTED, where, "no NVIDIA driver: %s", why);
    }
#define FIND(field, symbol, arguments)                                                                                                  \
    c->field = (int (*) arguments)oct__library_find(c->library, symbol);                                                                \
    if (c->field == NULL) {                                                                                                             \
        oct__library_close(c->library);                                                                                                 \
        return oct__error_set(error, OCT_UNSUPPORTED, where, "%s lacks %s; a driver of version 580 or newer is needed", names[0], symbol); \
    }
    ENTRIES(FIND)
#undef FIND
    return OCT_OK;
}

/* A driver that does not start: without a device, or one that does not fit the kernel's, there is nothing to open. */
static oct_status start(cuda *c, uint32_t ordinal, oct_error *error)
{
    int result = c->init(0), count = 0;
    if (result == 0) {
        result = c->count(&count);
    }
    if (result == OCT__DRIVER_ERROR_NO_DEVICE || (result == 0 && count == 0)) {
        return oct__error_set(error, OCT_UNSUPPORTED, where, "no NVIDIA GPU: CUDA_ERROR_NO_DEVICE");
    }
    if (result != 0) {
        const bool is_mismatch = result == 34 || result == 803 || result == 804;   /* STUB_LIBRARY, SYSTEM_DRIVER_MISMATCH, COMPAT_NOT_SUPPORTED */
        return oct__error_set(error, is_mismatch ? OCT_UNSUPPORTED : OCT_DEVICE_FAULT, where, "the NVIDIA driver does not start: %s", name_of(c, result));
    }
    if (ordinal >= (uint32_t)count) {
        return oct__error_set(error, OCT_UNSUPPORTED, where, "device %u: there are %d", ordinal, count);
    }
    result = c->get(&c->device, (int)ordinal);
    return result == 0 ? OCT_OK : oct__error_set(error, OCT_DEVICE_FAULT, where, "device %u: %s", ordinal, name_of(c, result));
}

/* 0 for what the driver does not tell. */
static uint32_t attribute(cuda *c, int which)
{
    int value = 0;
    return c->get_attribute(&value, which, c->device) == 0 && value > 0 ? (uint32_t)value : 0;
}

static oct_status describe(cuda *c, uint32_t *capability, oct_error *error)
{
    oct__driver *d = &c->base;
    size_t memory_bytes = 0;
    int result = c->get_name(d->device, sizeof d->device - 1, c->device);
    if (result == 0) {
        result = c->total_memory(&memory_bytes, c->device);
    }
    d->chip.warp = attribute(c, DEVICE_WARP_SIZE);
    d->chip.n_units = attribute(c, DEVICE_MULTIPROCESSOR_COUNT);
    d->chip.shared_limit_bytes = attribute(c, DEVICE_MAX_SHARED_PER_BLOCK_OPTIN);
    *capability = 10 * attribute(c, DEVICE_CAPABILITY_MAJOR) + attribute(c, DEVICE_CAPABILITY_MINOR);
    d->chip.has_mma = *capability >= MMA_FROM_CAPABILITY;
    d->memory_bytes = memory_bytes;
    /* Two transfers a clock, on both GDDR and HBM. */
    d->read_bytes_per_s = 2.0 * 1e3 * attribute(c, DEVICE_MEMORY_CLOCK_RATE) * (attribute(c, DEVICE_GLOBAL_MEMORY_BUS_WIDTH) / 8.0);
    snprintf(d->arch, sizeof d->arch, "sm_%u", *capability);
    if (result != 0 || d->chip.warp == 0 || d->chip.n_units == 0 || d->chip.shared_limit_bytes == 0 || *capability == 0) {
        return oct__error_set(error, OCT_DEVICE_FAULT, where, "%s does not tell what it is: %s", d->device, result != 0 ? name_of(c, result) : "no attributes");
    }
    /* The kernels' texts are written for this width. */
    return d->chip.warp == 32 ? OCT_OK : oct__error_set(error, OCT_UNSUPPORTED, where, "%s has warps of %u lanes", d->device, d->chip.warp);
}

/* Machine code for this very chip, else the text that the driver compiles. A cubin for sm_90a runs on 9.0 alone. */
static const oct__dev_code *choose_code(uint32_t capability, char *there, size_t size)
{
    const oct__dev_code *code, *chosen = NULL;
    size_t at = 0;
    there[0] = '\0';
    for (uint32_t i = 0; (code = oct__dev_code_nth(i)) != NULL; i++) {
        if (code->kind == OCT__DEV_CODE_AMDGPU) {
            continue;
        }
        if (code->kind == OCT__DEV_CODE_CUBIN ? code->capability == capability : code->capability <= capability && chosen == NULL) {
            chosen = code;
        }
        const int n = snprintf(there + at, size - at, "%s%s", at > 0 ? ", " : "", code->name);
        at = n > 0 && (size_t)n < size - at ? at + (size_t)n : at;
    }
    return chosen;
}

static oct_status load(cuda *c, const oct__dev_code *code, oct_error *error)
{
    char log[160] = "";
    int options[] = { JIT_ERROR_LOG_BUFFER, JIT_ERROR_LOG_BUFFER_SIZE_BYTES };
    void *values[] = { log, (void *)(uintptr_t)(sizeof log - 1) };
    int result = c->load(&c->module, code->bytes, 2, options, values);
    if (result != 0) {
        c->module = NULL;
        const bool is_memory = result == OCT__DRIVER_ERROR_OUT_OF_MEMORY;
        /* INVALID_IMAGE, NO_BINARY_FOR_GPU, INVALID_PTX, UNSUPPORTED_PTX_VERSION: what a driver older than the compiler says. */
        const bool is_old = result == 200 || result == 209 || result == 218 || result == 222;
        return oct__error_set(error, is_memory ? OCT_OUT_OF_MEMORY : OCT_UNSUPPORTED, where, "%s does not take %s: %s%s%s%s", c->base.device, code->name,
                              name_of(c, result), is_old ? " (a driver of version 580 or newer takes it)" : "", log[0] != '\0' ? " " : "", log);
    }
    bool has_own = code->kind == OCT__DEV_CODE_CUBIN;
    for (int i = 0; i < (has_own ? KERNELS : OCT__DEV_KERNELS); i++) {
        const oct__dev_kernel *kernel = &kernels[i];
        int static_bytes = 0;
        result = c->get_function(&c->functions[i], c->module, kernel->symbol);
        if (result == NOT_FOUND && i >= OCT__DEV_KERNELS) {
            c->functions[i] = NULL;
            has_own = false;
            break;
        }
        if (result == 0) {
            result = c->get_function_attribute(&static_bytes, FUNCTION_SHARED_SIZE_BYTES, c->functions[i]);
        }
        if (result == 0) {
            /* Above 48 KiB a kernel must be told once; here, so that no launch has to. */
            result = c->set_function_attribute(c->functions[i], FUNCTION_MAX_DYNAMIC_SHARED_SIZE_BYTES, (int)c->base.chip.shared_limit_bytes - static_bytes);
        }
        if (result != 0) {
            const oct_status status = result == OCT__DRIVER_ERROR_OUT_OF_MEMORY ? OCT_OUT_OF_MEMORY : OCT_UNSUPPORTED;
            return oct__error_set(error, status, where, "kernel %s of %s: %s", kernel->name, code->name, name_of(c, result));
        }
    }
    c->base.chip.has_sm90a = has_own;
    return OCT_OK;
}

static oct_status prepare(cuda *c, oct_error *error)
{
    char there[128];
    uint32_t capability;
    oct_status status = describe(c, &capability, error);
    if (status != OCT_OK) {
        return status;
    }
    const oct__dev_code *code = choose_code(capability, there, sizeof there);
    if (code == NULL) {
        return oct__error_set(error, OCT_UNSUPPORTED, where, "no kernels for %s (%s) in this library; it has: %s", c->base.arch, c->base.device,
                              there[0] != '\0' ? there : "none, it was built without code for GPUs");
    }
    snprintf(c->base.code, sizeof c->base.code, "%s", code->name);
    int result = c->retain(&c->context, c->device);
    if (result != 0) {
        c->context = NULL;
    } else {
        result = c->push(c->context);
    }
    if (result != 0) {
        const oct_status failed = result == OCT__DRIVER_ERROR_OUT_OF_MEMORY ? OCT_OUT_OF_MEMORY : OCT_DEVICE_FAULT;
        return oct__error_set(error, failed, where, "no context on %s: %s", c->base.device, name_of(c, result));
    }
    void *popped;
    status = load(c, code, error);
    c->pop(&popped);
    return status;
}

oct_status oct__cuda_open(const oct__driver_options *options, oct__driver **driver, oct_error *error)
{
    static const oct__driver_table table = {
        .name = "cuda", .close = cuda_close, .alloc = cuda_alloc, .free = cuda_free, .copy_in = cuda_copy_in, .copy_out = cuda_copy_out, .copy = cuda_copy,
        .fill = cuda_fill, .launch = cuda_launch, .wait = cuda_wait, .is_capturing = cuda_is_capturing, .fault = cuda_fault,
    };
    static const oct__allocator c_library;
    const oct__allocator *allocator = options->allocator != NULL ? options->allocator : &c_library;
    *driver = NULL;
    cuda *c = oct__memory_alloc_zeroed(allocator, 1, sizeof *c);
    if (c == NULL) {
        return oct__error_set(error, OCT_OUT_OF_MEMORY, where, "no memory for a driver");
    }
    c->allocator = *allocator;
    c->base.table = &table;
    atomic_init(&c->state.fault, NULL);
    atomic_init(&c->state.is_lost, false);
    oct_status status = find_entries(c, options->library, error);
    if (status == OCT_OK) {
        status = start(c, options->ordinal, error);
    }
    if (status == OCT_OK) {
        status = prepare(c, error);
    }
    if (status != OCT_OK) {
        cuda_close(&c->base);
        return status;
    }
    *driver = &c->base;
    return OCT_OK;
}
