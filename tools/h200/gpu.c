/* gpu.c: see gpu.h. */
#include "gpu.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef unsigned long long address;
typedef struct config { unsigned grid[3], block[3], shared; void *stream; void *attributes; unsigned n_attributes; } config;
typedef struct attribute { int id; char pad[4]; union { int allowed; char room[64]; } value; } attribute;

enum { UNITS = 16, SHARED_LIMIT = 97, DYNAMIC_SHARED = 8, EARLY = 6, FLUSH_BYTES = 256 << 20, REPEATS_MAX = 64 };

#define ENTRIES(X)                                                            \
    X(cuInit, (unsigned))                                                     \
    X(cuDeviceGet, (int *, int))                                              \
    X(cuDeviceGetName, (char *, int, int))                                    \
    X(cuDeviceGetAttribute, (int *, int, int))                                \
    X(cuDevicePrimaryCtxRetain, (void **, int))                               \
    X(cuCtxSetCurrent, (void *))                                              \
    X(cuModuleLoad, (void **, const char *))                                  \
    X(cuModuleGetFunction, (void **, void *, const char *))                   \
    X(cuFuncSetAttribute, (void *, int, int))                                 \
    X(cuMemAlloc_v2, (address *, size_t))                                     \
    X(cuMemFree_v2, (address))                                                \
    X(cuMemcpyHtoD_v2, (address, const void *, size_t))                       \
    X(cuMemcpyDtoH_v2, (void *, address, size_t))                             \
    X(cuMemsetD8Async, (address, unsigned char, size_t, void *))              \
    X(cuLaunchKernelEx, (const config *, void *, void **, void **))           \
    X(cuStreamCreate, (void **, unsigned))                                    \
    X(cuStreamSynchronize, (void *))                                          \
    X(cuStreamBeginCapture_v2, (void *, int))                                 \
    X(cuStreamEndCapture, (void *, void **))                                  \
    X(cuGraphInstantiateWithFlags, (void **, void *, unsigned long long))     \
    X(cuGraphLaunch, (void *, void *))                                        \
    X(cuGraphExecDestroy, (void *))                                           \
    X(cuGraphDestroy, (void *))                                               \
    X(cuEventCreate, (void **, unsigned))                                     \
    X(cuEventRecord, (void *, void *))                                        \
    X(cuEventElapsedTime, (float *, void *, void *))

static struct {
#define X(name, arguments) int (*name) arguments;
    ENTRIES(X)
#undef X
} cu;

static void *stream, *begin_event, *end_event, *module, *flush_at;
static int n_units, shared_limit;
static char device_name[128];

static void must(int error, const char *what)
{
    if (error != 0) {
        fprintf(stderr, "%s: error %d\n", what, error);
        exit(1);
    }
}
#define MUST(call) must(cu.call, #call)

static address address_of(const void *at) { return (address)(uintptr_t)at; }

void gpu_open(const char *code)
{
    void *context, *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    int device;
    if (library == NULL) {
        fprintf(stderr, "%s\n", dlerror());
        exit(1);
    }
#define X(entry, arguments)                                \
    *(void **)&cu.entry = dlsym(library, #entry);          \
    if (cu.entry == NULL) {                                \
        fprintf(stderr, "libcuda lacks %s\n", #entry);     \
        exit(1);                                           \
    }
    ENTRIES(X)
#undef X
    MUST(cuInit(0));
    MUST(cuDeviceGet(&device, 0));
    MUST(cuDeviceGetName(device_name, sizeof device_name, device));
    MUST(cuDeviceGetAttribute(&n_units, UNITS, device));
    MUST(cuDeviceGetAttribute(&shared_limit, SHARED_LIMIT, device));
    MUST(cuDevicePrimaryCtxRetain(&context, device));
    MUST(cuCtxSetCurrent(context));
    MUST(cuModuleLoad(&module, code));
    MUST(cuStreamCreate(&stream, 1));
    MUST(cuEventCreate(&begin_event, 0));
    MUST(cuEventCreate(&end_event, 0));
    flush_at = gpu_alloc(FLUSH_BYTES);
}

const char *gpu_name(void) { return device_name; }

oct__dev_chip gpu_chip(void)
{
    oct__dev_chip chip = gpu_chip_portable();
    chip.has_mma = chip.has_sm90a = 1;
    return chip;
}

oct__dev_chip gpu_chip_portable(void)
{
    return (oct__dev_chip){ .warp = 32, .n_units = (uint32_t)n_units, .shared_limit_bytes = (uint32_t)shared_limit };
}

void *gpu_alloc(size_t size_bytes)
{
    address at = 0;
    MUST(cuMemAlloc_v2(&at, size_bytes + 256));
    return (void *)(uintptr_t)at;
}

void gpu_free(void *at)
{
    if (at != NULL)
        MUST(cuMemFree_v2(address_of(at)));
}

void *gpu_upload(const void *from, size_t size_bytes)
{
    void *at = gpu_alloc(size_bytes);
    MUST(cuMemcpyHtoD_v2(address_of(at), from, size_bytes));
    return at;
}

void gpu_copy_out(void *to, const void *from, size_t size_bytes)
{
    gpu_wait();
    MUST(cuMemcpyDtoH_v2(to, address_of(from), size_bytes));
}

void gpu_fill(void *at, unsigned char byte, size_t size_bytes) { MUST(cuMemsetD8Async(address_of(at), byte, size_bytes, stream)); }
void gpu_wait(void) { MUST(cuStreamSynchronize(stream)); }

void gpu_run(const oct__dev_launch *l, const void *params)
{
    void *function;
    char symbol[96];
    union { const void *from; void *to; } pun = { params };
    void *arguments[] = { pun.to };
    attribute early = { EARLY, { 0 }, { 1 } };
    const config c = { { l->grid_x, l->grid_y, 1 }, { l->threads, 1, 1 }, l->shared_bytes, stream, &early, l->is_early != 0 };
    snprintf(symbol, sizeof symbol, "oct__dev_%s", l->kernel);
    MUST(cuModuleGetFunction(&function, module, symbol));
    if (l->shared_bytes > 48 * 1024)
        MUST(cuFuncSetAttribute(function, DYNAMIC_SHARED, (int)l->shared_bytes));
    MUST(cuLaunchKernelEx(&c, function, arguments, NULL));
}

static int compare(const void *a, const void *b)
{
    const float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

double gpu_time(gpu_turn *turn, void *of, int n, int repeats, double *least, double *most)
{
    void *graph, *ready;
    float times[REPEATS_MAX];
    repeats = repeats < REPEATS_MAX ? repeats : REPEATS_MAX;
    for (int i = 0; i < (n < 2 ? n : 2); i++)
        turn(of, i);
    gpu_wait();
    MUST(cuStreamBeginCapture_v2(stream, 0));
    for (int i = 0; i < n; i++)
        turn(of, i);
    MUST(cuStreamEndCapture(stream, &graph));
    MUST(cuGraphInstantiateWithFlags(&ready, graph, 0));
    MUST(cuGraphLaunch(ready, stream));
    gpu_wait();
    for (int i = 0; i < repeats; i++) {
        gpu_fill(flush_at, 0, FLUSH_BYTES);
        MUST(cuEventRecord(begin_event, stream));
        MUST(cuGraphLaunch(ready, stream));
        MUST(cuEventRecord(end_event, stream));
        gpu_wait();
        MUST(cuEventElapsedTime(&times[i], begin_event, end_event));
    }
    MUST(cuGraphExecDestroy(ready));
    MUST(cuGraphDestroy(graph));
    qsort(times, (size_t)repeats, sizeof times[0], compare);
    if (least != NULL)
        *least = (double)times[0] * 1e3 / n;
    if (most != NULL)
        *most = (double)times[repeats - 1] * 1e3 / n;
    return (double)times[repeats / 2] * 1e3 / n;
}
