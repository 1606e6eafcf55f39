/* executor_cuda.c: the doors of executor.h with an NVIDIA GPU behind them, so that the programs of this folder run there unchanged: the target
 * device_gpu builds them, for a machine that has one. Opens libcuda.so.1 at run time and loads octavo_sm_90a.cubin from the working
 * directory. Races and strays are compute-sanitizer's business there.
 *
 * Threads: one. A process that forks does so before its first call. */
#define _GNU_SOURCE
#include "device/executor.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "device/write_sm90a.h"

typedef unsigned long long address;

/* The driver's functions that are needed; numbers are CUresult, 0 for success. */
static struct driver {
    void *library;
    int (*cuInit)(unsigned);
    int (*cuDeviceGet)(int *, int);
    int (*cuDeviceGetAttribute)(int *, int, int);
    int (*cuDevicePrimaryCtxRetain)(void **, int);
    int (*cuCtxSetCurrent)(void *);
    int (*cuModuleLoad)(void **, const char *);
    int (*cuModuleGetFunction)(void **, void *, const char *);
    int (*cuFuncSetAttribute)(void *, int, int);
    int (*cuMemAlloc_v2)(address *, size_t);
    int (*cuMemFree_v2)(address);
    int (*cuMemcpyHtoD_v2)(address, const void *, size_t);
    int (*cuMemcpyDtoH_v2)(void *, address, size_t);
    int (*cuMemsetD8_v2)(address, unsigned char, size_t);
    int (*cuLaunchKernel)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);
    int (*cuCtxSynchronize)(void);
    int (*cuGetErrorName)(int, const char **);
} cu;

enum { MULTIPROCESSOR_COUNT = 16, MAX_DYNAMIC_SHARED_SIZE_BYTES = 8 };

struct simt_device { void *module; int units; };

const char *simt_fault_name(simt_fault fault) { return fault == SIMT_OK ? "ok" : "the driver's error"; }

static const char *error_name(int error)
{
    const char *name = "?";
    cu.cuGetErrorName(error, &name);
    return name;
}

static void *entry(const char *name)
{
    void *at = dlsym(cu.library, name);
    if (at == NULL)
        fprintf(stderr, "libcuda lacks %s\n", name);
    return at;
}

static int open_driver(void)
{
    if (cu.library != NULL)
        return 0;
    cu.library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (cu.library == NULL) {
        fprintf(stderr, "%s\n", dlerror());
        return -1;
    }
    int complete = 1;
#define ENTRY(name) complete &= (*(void **)&cu.name = entry(#name)) != NULL
    ENTRY(cuInit);
    ENTRY(cuDeviceGet);
    ENTRY(cuDeviceGetAttribute);
    ENTRY(cuDevicePrimaryCtxRetain);
    ENTRY(cuCtxSetCurrent);
    ENTRY(cuModuleLoad);
    ENTRY(cuModuleGetFunction);
    ENTRY(cuFuncSetAttribute);
    ENTRY(cuMemAlloc_v2);
    ENTRY(cuMemFree_v2);
    ENTRY(cuMemcpyHtoD_v2);
    ENTRY(cuMemcpyDtoH_v2);
    ENTRY(cuMemsetD8_v2);
    ENTRY(cuLaunchKernel);
    ENTRY(cuCtxSynchronize);
    ENTRY(cuGetErrorName);
#undef ENTRY
    return complete ? 0 : -1;
}

simt_device *simt_open(size_t memory_bytes, uint32_t shared_limit_bytes)
{
    simt_device *d = calloc(1, sizeof *d);
    void *context = NULL;
    int error = 0, device = 0;
    (void)memory_bytes;
    (void)shared_limit_bytes;
    if (d == NULL || open_driver() != 0) {
        free(d);
        return NULL;
    }
    if ((error = cu.cuInit(0)) != 0 || (error = cu.cuDeviceGet(&device, 0)) != 0 || (error = cu.cuDevicePrimaryCtxRetain(&context, device)) != 0 ||
        (error = cu.cuCtxSetCurrent(context)) != 0 || (error = cu.cuDeviceGetAttribute(&d->units, MULTIPROCESSOR_COUNT, device)) != 0 ||
        (error = cu.cuModuleLoad(&d->module, "octavo_sm_90a.cubin")) != 0) {
        fprintf(stderr, "no GPU: %s\n", error_name(error));
        free(d);
        return NULL;
    }
    return d;
}

void simt_close(simt_device *device) { free(device); }
uint32_t simt_units(const simt_device *device) { return (uint32_t)device->units; }

void *simt_alloc(simt_device *device, size_t size_bytes, const char *name)
{
    address at = 0;
    (void)device;
    (void)name;
    if (cu.cuMemAlloc_v2(&at, size_bytes + 1) != 0)
        return NULL;
    cu.cuMemsetD8_v2(at, 0xFF, size_bytes + 1);
    return (void *)(uintptr_t)at;
}

void simt_free(simt_device *device, void *at)
{
    (void)device;
    if (at != NULL)
        cu.cuMemFree_v2((address)(uintptr_t)at);
}

int simt_copy_in(simt_device *device, void *to, const void *from, size_t size_bytes)
{
    (void)device;
    return size_bytes > 0 && cu.cuMemcpyHtoD_v2((address)(uintptr_t)to, from, size_bytes) != 0 ? -1 : 0;
}

int simt_copy_out(simt_device *device, void *to, const void *from, size_t size_bytes)
{
    (void)device;
    return size_bytes > 0 && cu.cuMemcpyDtoH_v2(to, (address)(uintptr_t)from, size_bytes) != 0 ? -1 : 0;
}

int simt_fill(simt_device *device, void *to, int byte, size_t size_bytes)
{
    (void)device;
    return cu.cuMemsetD8_v2((address)(uintptr_t)to, (unsigned char)byte, size_bytes) != 0 ? -1 : 0;
}

int simt_protect(simt_device *device, void *at, int on)
{
    (void)device;
    (void)at;
    (void)on;
    return 0;
}

static const simt_kernel kernels[] = {
#define X(name, threads, type) { #name, NULL, 32, threads, sizeof(type) },
#include "device/kernels.def"
#include "cuda/kernels_sm90a.def"
#undef X
};

const simt_kernel *simt_nth(uint32_t warp, uint32_t index)
{
    return warp == 32 && index < sizeof kernels / sizeof kernels[0] ? &kernels[index] : NULL;
}

/* The code is for sm_90a. */
simt_fp8_use simt_fp8(uint32_t warp, uint32_t dtype)
{
    return warp == 32 && dtype == OCT_DTYPE_E4M3FN ? SIMT_FP8_SLOW : SIMT_FP8_NONE;
}

const simt_kernel *simt_find(uint32_t warp, const char *name)
{
    const simt_kernel *kernel;
    for (uint32_t i = 0; (kernel = simt_nth(warp, i)) != NULL; i++)
        if (strcmp(kernel->name, name) == 0)
            return kernel;
    return NULL;
}

simt_fault simt_launch(simt_device *device, const simt_kernel *kernel, uint32_t grid_x, uint32_t grid_y, uint32_t dynamic_shared_bytes,
                       const void *params, simt_report *report)
{
    char symbol[96];
    void *function = NULL;
    union {
        const void *from;
        void *to;
    } pun = { .from = params };
    void *arguments[] = { pun.to };
    int error;
    memset(report, 0, sizeof *report);
    snprintf(symbol, sizeof symbol, "oct__dev_%s", kernel->name);
    if ((error = cu.cuModuleGetFunction(&function, device->module, symbol)) != 0 ||
        (error = cu.cuFuncSetAttribute(function, MAX_DYNAMIC_SHARED_SIZE_BYTES, (int)dynamic_shared_bytes)) != 0 ||
        (error = cu.cuLaunchKernel(function, grid_x, grid_y, 1, kernel->threads, 1, 1, dynamic_shared_bytes, NULL, arguments, NULL)) != 0 ||
        (error = cu.cuCtxSynchronize()) != 0) {
        report->fault = SIMT_BAD_LAUNCH;
        snprintf(report->text, sizeof report->text, "%s: %s", symbol, error_name(error));
    }
    return report->fault;
}
