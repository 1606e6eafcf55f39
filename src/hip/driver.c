/* driver.c: owns the AMD driver: libamdhip64.so, opened at run time, behind device/driver.h. Every function of HIP works on the calling thread's
 * current device, whose primary context PyTorch uses too.
 *
 * Threads: see driver.h. What is written after open is atomic. */
#include <stdio.h>
#include <string.h>

#include "device/code.h"
#include "device/driver_rules.h"
#include "host/error.h"
#include "host/library.h"

/* ENTRY(field, symbol, arguments): HIP's functions, as hip_runtime_api.h of ROCm 6 and 7 declares them; each returns a hipError_t. */
#define ENTRIES(ENTRY)                                                                                                                      \
    ENTRY(init, "hipInit", (unsigned flags))                                                                                                \
    ENTRY(last_error, "hipGetLastError", (void))                                                                                            \
    ENTRY(count, "hipGetDeviceCount", (int *count))                                                                                         \
    ENTRY(get_properties, "hipGetDevicePropertiesR0600", (properties *properties, int device))                                              \
    ENTRY(get_attribute, "hipDeviceGetAttribute", (int *value, int attribute, int device))                                                  \
    ENTRY(total_memory, "hipDeviceTotalMem", (size_t *bytes, int device))                                                                   \
    ENTRY(get_device, "hipGetDevice", (int *device))                                                                                        \
    ENTRY(set_device, "hipSetDevice", (int device))                                                                                         \
    ENTRY(load, "hipModuleLoadData", (void **module, const void *image))                                                                    \
    ENTRY(unload, "hipModuleUnload", (void *module))                                                                                        \
    ENTRY(get_function, "hipModuleGetFunction", (void **function, void *module, const char *name))                                          \
    ENTRY(alloc, "hipMalloc", (void **memory, size_t bytes))                                                                                \
    ENTRY(free, "hipFree", (void *memory))                                                                                                  \
    ENTRY(copy_in, "hipMemcpyHtoDAsync", (void *to, const void *from, size_t bytes, void *stream))                                          \
    ENTRY(copy_out, "hipMemcpyDtoHAsync", (void *to, const void *from, size_t bytes, void *stream))                                         \
    ENTRY(copy, "hipMemcpyDtoDAsync", (void *to, const void *from, size_t bytes, void *stream))                                             \
    ENTRY(fill, "hipMemsetD8Async", (void *to, unsigned char byte, size_t bytes, void *stream))                                             \
    ENTRY(launch, "hipModuleLaunchKernel",                                                                                                  \
          (void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y, unsigned block_z,         \
           unsigned shared_bytes, void *stream, void **params, void **extra))                                                               \
    ENTRY(wait, "hipStreamSynchronize", (void *stream))                                                                                     \
    ENTRY(is_capturing, "hipStreamIsCapturing", (void *stream, int *status))

/* hipDeviceProp_tR0600: the one layout since ROCm 6, which its symbol's name carries. Only two fields are read. */
typedef struct properties {
    char name[256];
    char between[904];
    char arch[256];                 /* gcnArchName: "gfx942:sramecc+:xnack-" */
    char rest[56];
    uint64_t room[64];              /* for fields that a later library may add */
} properties;
_Static_assert(offsetof(properties, arch) == 1160 && offsetof(properties, room) == 1472, "the layout of hipDeviceProp_tR0600");

/* hip_runtime_api.h's numbers. */
enum {
    DEVICE_MEMORY_BUS_WIDTH = 59,       /* bits */
    DEVICE_MEMORY_CLOCK_RATE = 60,      /* kHz */
    DEVICE_MULTIPROCESSOR_COUNT = 63,
    DEVICE_MAX_SHARED_PER_BLOCK = 74,
    DEVICE_WARP_SIZE = 87
};

typedef struct hip {
    oct__driver base;
    oct__allocator allocator;
    oct__driver_state state;
    void *library;
    int device;
    void *module;
    void *functions[OCT__DEV_KERNELS];      /* of oct__dev_kernel_list */
    const char *(*error_name)(int error);   /* hipGetErrorName: a static text for any number */
#define FIELD(field, symbol, arguments) int (*field) arguments;
    ENTRIES(FIELD)
#undef FIELD
} hip;

static const char where[] = "hip driver";

/* HIP keeps each thread's last error, and other users of it take one that they find for their own. */
static oct_status note(hip *h, int error)
{
    if (error == 0) {
        return OCT_OK;
    }
    h->last_error();
    return oct__driver_note(&h->state, error, h->error_name(error));
}

/* ---- what the table offers ----------------------------------------------------------------------------------------------------------- */

/* Makes the device current. caller: what was, for leave. Not OK: nothing is to be left. */
static oct_status enter(hip *h, int *caller)
{
    if (atomic_load(&h->state.is_lost)) {
        return OCT_DEVICE_FAULT;
    }
    const oct_status status = note(h, h->get_device(caller));
    return status != OCT_OK || *caller == h->device ? status : note(h, h->set_device(h->device));
}

static oct_status leave(hip *h, int caller, int error)
{
    const oct_status status = note(h, error), leaving = caller == h->device ? OCT_OK : note(h, h->set_device(caller));
    return status != OCT_OK ? status : leaving;
}

/* Called between enter and leave. What hipStreamIsCapturing says of the default stream while another one is captured is an error, but one that
 * leaves the capture alone. */
static bool captures(hip *h, void *stream)
{
    int status = 0;
    const int error = h->is_capturing(stream, &status);
    if (error != 0) {
        h->last_error();
    }
    return error == 0 ? status != 0 : error == OCT__DRIVER_ERROR_CAPTURE_IMPLICIT;
}

/* Enters for a call that a capture forbids. The vendor would refuse it too, but end the capture with that. */
static oct_status enter_outside_capture(hip *h, void *stream, int *caller)
{
    oct_status status = enter(h, caller);
    if (status == OCT_OK && captures(h, stream)) {
        status = leave(h, *caller, 0);
        return status != OCT_OK ? status : OCT_UNSUPPORTED;
    }
    return status;
}

static oct_status hip_alloc(oct__driver *driver, size_t bytes, void **memory)
{
    hip *h = (hip *)driver;
    int caller;
    void *at = NULL;
    *memory = NULL;
    oct_status status = bytes == 0 ? OCT_OK : enter(h, &caller);
    if (status == OCT_OK && bytes > 0) {
        status = leave(h, caller, h->alloc(&at, bytes));
    }
    if (status == OCT_OK) {
        *memory = at;
    }
    return status;
}

static void hip_free(oct__driver *driver, void *memory)
{
    hip *h = (hip *)driver;
    int caller;
    if (memory != NULL && enter(h, &caller) == OCT_OK) {
        leave(h, caller, h->free(memory));
    }
}

static oct_status hip_copy_in(oct__driver *driver, void *device, const void *host, size_t bytes, void *stream)
{
    hip *h = (hip *)driver;
    int caller;
    const oct_status status = enter_outside_capture(h, stream, &caller);
    return status != OCT_OK ? status : leave(h, caller, bytes == 0 ? 0 : h->copy_in(device, host, bytes, stream));
}

static oct_status hip_copy_out(oct__driver *driver, void *host, const void *device, size_t bytes, void *stream)
{
    hip *h = (hip *)driver;
    int caller;
    const oct_status status = enter_outside_capture(h, stream, &caller);
    return status != OCT_OK ? status : leave(h, caller, bytes == 0 ? 0 : h->copy_out(host, device, bytes, stream));
}

static oct_status hip_copy(oct__driver *driver, void *to, const void *from, size_t bytes, void *stream)
{
    hip *h = (hip *)driver;
    int caller;
    const oct_status status = enter_outside_capture(h, stream, &caller);
    return status != OCT_OK ? status : leave(h, caller, bytes == 0 ? 0 : h->copy(to, from, bytes, stream));
}

static oct_status hip_fill(oct__driver *driver, void *device, uint8_t byte, size_t bytes, void *stream)
{
    hip *h = (hip *)driver;
    int caller;
    const oct_status status = enter(h, &caller);
    return status != OCT_OK ? status : leave(h, caller, bytes == 0 ? 0 : h->fill(device, byte, bytes, stream));
}

static oct_status hip_launch(oct__driver *driver, const oct__dev_launch *launch, const void *params, size_t params_bytes, void *stream)
{
    hip *h = (hip *)driver;
    const int kernel = oct__driver_kernel_of(oct__dev_kernel_list, OCT__DEV_KERNELS, launch, params, params_bytes);
    int caller;
    if (kernel < 0) {
        return OCT_INVALID_ARGUMENT;
    }
    const oct_status status = enter(h, &caller);
    if (status != OCT_OK) {
        return status;
    }
    union {
        const void *from;
        void *to;
    } pun = { .from = params };
    void *arguments[] = { pun.to };
    return leave(h, caller,
                 h->launch(h->functions[kernel], launch->grid_x, launch->grid_y, 1, launch->threads, 1, 1, launch->shared_bytes, stream, arguments, NULL));
}

static oct_status hip_wait(oct__driver *driver, void *stream)
{
    hip *h = (hip *)driver;
    int caller;
    const oct_status status = enter_outside_capture(h, stream, &caller);
    return status != OCT_OK ? status : leave(h, caller, h->wait(stream));
}

static bool hip_is_capturing(oct__driver *driver, void *stream)
{
    hip *h = (hip *)driver;
    int caller;
    if (enter(h, &caller) != OCT_OK) {
        return false;
    }
    const bool answer = captures(h, stream);
    leave(h, caller, 0);
    return answer;
}

static const char *hip_fault(oct__driver *driver)
{
    const char *name = atomic_load(&((hip *)driver)->state.fault);
    return name != NULL ? name : "";
}

/* The library stays open: its threads and exit handlers outlive the last module. */
static void hip_close(oct__driver *driver)
{
    hip *h = (hip *)driver;
    int caller;
    if (h == NULL) {
        return;
    }
    if (h->module != NULL && h->get_device(&caller) == 0 && h->set_device(h->device) == 0) {
        h->unload(h->module);
        h->set_device(caller);
        h->last_error();
    }
    const oct__allocator allocator = h->allocator;
    oct__memory_free(&allocator, h, sizeof *h);
}

/* ---- opening --------------------------------------------------------------------------------------------------------------------------- */

static oct_status find_entries(hip *h, const char *library, oct_error *error)
{
    static const char *const usual[] = { "libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so", NULL };
    char why[160] = "";
    const char *const given[] = { library, NULL }, *const *names = library != NULL ? given : usual;
    const char *missing = NULL;
    h->library = oct__library_open(names, why, sizeof why);
    if (h->library == NULL) {
        return oct__error_set(error, OCT_UNSUPPORTED, where, "no AMD driver: %s", why);
    }
    h->error_name = (const char *(*)(int))oct__library_find(h->library, "hipGetErrorName");
    if (h->error_name == NULL) {
        missing = "hipGetErrorName";
    }
#define FIND(field, symbol, arguments)                                  \
    h->field = (int (*) arguments)oct__library_find(h->library, symbol); \
    if (h->field == NULL && missing == NULL) {                          \
        missing = symbol;                                               \
    }
    ENTRIES(FIND)
#undef FIND
    if (missing != NULL) {
        oct__library_close(h->library);
        return oct__error_set(error, OCT_UNSUPPORTED, where, "libamdhip64 lacks %s; that of ROCm 6 or newer has it", missing);
    }
    return OCT_OK;
}

static oct_status start(hip *h, uint32_t ordinal, oct_error *error)
{
    int count = 0, result = h->init(0);
    if (result == 0) {
        result = h->count(&count);
    }
    if (result == OCT__DRIVER_ERROR_NO_DEVICE || (result == 0 && count == 0)) {
        return oct__error_set(error, OCT_UNSUPPORTED, where, "no AMD GPU: hipErrorNoDevice");
    }
    if (result != 0) {
        const bool is_mismatch = result == 35;   /* hipErrorInsufficientDriver */
        return oct__error_set(error, is_mismatch ? OCT_UNSUPPORTED : OCT_DEVICE_FAULT, where, "the AMD driver does not start: %s", h->error_name(result));
    }
    if (ordinal >= (uint32_t)count) {
        return oct__error_set(error, OCT_UNSUPPORTED, where, "device %u: there are %d", ordinal, count);
    }
    h->device = (int)ordinal;
    return OCT_OK;
}

/* 0 for what the driver does not tell. */
static uint32_t attribute(hip *h, int which)
{
    int value = 0;
    return h->get_attribute(&value, which, h->device) == 0 && value > 0 ? (uint32_t)value : 0;
}

static oct_status describe(hip *h, oct_error *error)
{
    oct__driver *d = &h->base;
    properties told;
    size_t memory_bytes = 0;
    memset(&told, 0, sizeof told);
    int result = h->get_properties(&told, h->device);
    if (result == 0) {
        result = h->total_memory(&memory_bytes, h->device);
    }
    told.name[sizeof told.name - 1] = told.arch[sizeof told.arch - 1] = '\0';
    snprintf(d->device, sizeof d->device, "%.63s", told.name);
    /* "gfx942:sramecc+:xnack-": the code objects ask for no particular setting of the two. */
    snprintf(d->arch, sizeof d->arch, "%.*s", (int)(strcspn(told.arch, ":") < sizeof d->arch ? strcspn(told.arch, ":") : sizeof d->arch - 1), told.arch);
    d->chip.warp = attribute(h, DEVICE_WARP_SIZE);
    d->chip.n_units = attribute(h, DEVICE_MULTIPROCESSOR_COUNT);
    d->chip.shared_limit_bytes = attribute(h, DEVICE_MAX_SHARED_PER_BLOCK);
    const bool is_known = strcmp(d->arch, "gfx942") == 0 || strcmp(d->arch, "gfx950") == 0;
    d->chip.has_mma = is_known;
    d->memory_bytes = memory_bytes;
    /* The HBM3 of these two chips moves four words a clock that the driver tells (MI300X: 1.3 GHz x 8192 bits x 4 = 5.3 TB/s). Others: two. */
    d->read_bytes_per_s = (is_known ? 4.0 : 2.0) * 1e3 * attribute(h, DEVICE_MEMORY_CLOCK_RATE) * (attribute(h, DEVICE_MEMORY_BUS_WIDTH) / 8.0);
    if (result != 0 || d->arch[0] == '\0' || d->chip.warp == 0 || d->chip.n_units == 0 || d->chip.shared_limit_bytes == 0) {
        return oct__error_set(error, OCT_DEVICE_FAULT, where, "device %d does not tell what it is: %s", h->device,
                              result != 0 ? h->error_name(result) : "no attributes");
    }
    /* The kernels' texts are compiled for this width. */
    return d->chip.warp == 64 || !is_known ? OCT_OK : oct__error_set(error, OCT_UNSUPPORTED, where, "%s has warps of %u lanes", d->device, d->chip.warp);
}

static const oct__dev_code *choose_code(const char *arch, char *there, size_t size)
{
    const oct__dev_code *code, *chosen = NULL;
    size_t at = 0;
    there[0] = '\0';
    for (uint32_t i = 0; (code = oct__dev_code_nth(i)) != NULL; i++) {
        if (code->kind != OCT__DEV_CODE_AMDGPU) {
            continue;
        }
        if (strcmp(code->arch, arch) == 0) {
            chosen = code;
        }
        const int n = snprintf(there + at, size - at, "%s%s", at > 0 ? ", " : "", code->name);
        at = n > 0 && (size_t)n < size - at ? at + (size_t)n : at;
    }
    return chosen;
}

static oct_status load(hip *h, const oct__dev_code *code, oct_error *error)
{
    int result = h->load(&h->module, code->bytes);
    if (result != 0) {
        h->module = NULL;
        const oct_status status = result == OCT__DRIVER_ERROR_OUT_OF_MEMORY ? OCT_OUT_OF_MEMORY : OCT_UNSUPPORTED;
        return oct__error_set(error, status, where, "%s does not take the code for %s: %s", h->base.device, code->name, h->error_name(result));
    }
    for (int i = 0; i < OCT__DEV_KERNELS; i++) {
        const oct__dev_kernel *kernel = &oct__dev_kernel_list[i];
        result = h->get_function(&h->functions[i], h->module, kernel->symbol);
        if (result != 0) {
            const oct_status status = result == OCT__DRIVER_ERROR_OUT_OF_MEMORY ? OCT_OUT_OF_MEMORY : OCT_UNSUPPORTED;
            return oct__error_set(error, status, where, "kernel %s of %s: %s", kernel->name, code->name, h->error_name(result));
        }
    }
    return OCT_OK;
}

static oct_status prepare(hip *h, oct_error *error)
{
    char there[128];
    int caller;
    oct_status status = describe(h, error);
    if (status != OCT_OK) {
        return status;
    }
    const oct__dev_code *code = choose_code(h->base.arch, there, sizeof there);
    if (code == NULL) {
        return oct__error_set(error, OCT_UNSUPPORTED, where, "no kernels for %s (%s) in this library; it has: %s", h->base.arch, h->base.device,
                              there[0] != '\0' ? there : "none, it was built without code for GPUs");
    }
    snprintf(h->base.code, sizeof h->base.code, "%s", code->name);
    int result = h->get_device(&caller);
    if (result == 0) {
        result = h->set_device(h->device);
    }
    if (result != 0) {
        const oct_status failed = result == OCT__DRIVER_ERROR_OUT_OF_MEMORY ? OCT_OUT_OF_MEMORY : OCT_DEVICE_FAULT;
        return oct__error_set(error, failed, where, "no context on %s: %s", h->base.device, h->error_name(result));
    }
    status = load(h, code, error);
    h->set_device(caller);
    return status;
}

oct_status oct__hip_open(const oct__driver_options *options, oct__driver **driver, oct_error *error)
{
    static const oct__driver_table table = {
        .name = "hip", .close = hip_close, .alloc = hip_alloc, .free = hip_free, .copy_in = hip_copy_in, .copy_out = hip_copy_out, .copy = hip_copy,
        .fill = hip_fill, .launch = hip_launch, .wait = hip_wait, .is_capturing = hip_is_capturing, .fault = hip_fault,
    };
    static const oct__allocator c_library;
    const oct__allocator *allocator = options->allocator != NULL ? options->allocator : &c_library;
    *driver = NULL;
    hip *h = oct__memory_alloc_zeroed(allocator, 1, sizeof *h);
    if (h == NULL) {
        return oct__error_set(error, OCT_OUT_OF_MEMORY, where, "no memory for a driver");
    }
    h->allocator = *allocator;
    h->base.table = &table;
    atomic_init(&h->state.fault, NULL);
    atomic_init(&h->state.is_lost, false);
    oct_status status = find_entries(h, options->library, error);
    const bool is_found = status == OCT_OK;
    if (status == OCT_OK) {
        status = start(h, options->ordinal, error);
    }
    if (status == OCT_OK) {
        status = prepare(h, error);
    }
    if (status != OCT_OK) {
        if (is_found) {
            h->last_error();
        }
        hip_close(&h->base);
        return status;
    }
    *driver = &h->base;
    return OCT_OK;
}
