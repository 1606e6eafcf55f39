/* device_clock.c: see device_clock.h. */
#include "apps/bench/device_clock.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "host/error.h"
#include "host/library.h"

static const char where[] = "octavo bench";

enum { L2_CACHE_SIZE = 38, CAPTURE_OF_THIS_THREAD = 1, DOES_NOT_WAIT_FOR_DEFAULT = 1, FLUSH_TIMES = 4 };

typedef unsigned long long address;   /* CUdeviceptr */

/* As cuda.h of version 13 declares them; each returns a CUresult. */
#define ENTRIES(ENTRY)                                                                        \
    ENTRY(get, "cuDeviceGet", (int *device, int ordinal))                                     \
    ENTRY(get_attribute, "cuDeviceGetAttribute", (int *value, int attribute, int device))     \
    ENTRY(retain, "cuDevicePrimaryCtxRetain", (void **context, int device))                   \
    ENTRY(release, "cuDevicePrimaryCtxRelease_v2", (int device))                              \
    ENTRY(push, "cuCtxPushCurrent_v2", (void *context))                                       \
    ENTRY(pop, "cuCtxPopCurrent_v2", (void **context))                                        \
    ENTRY(alloc, "cuMemAlloc_v2", (address *memory, size_t bytes))                            \
    ENTRY(free, "cuMemFree_v2", (address memory))                                             \
    ENTRY(fill, "cuMemsetD8Async", (address to, unsigned char byte, size_t bytes, void *stream)) \
    ENTRY(stream_create, "cuStreamCreate", (void **stream, unsigned flags))                   \
    ENTRY(stream_destroy, "cuStreamDestroy_v2", (void *stream))                               \
    ENTRY(stream_wait, "cuStreamSynchronize", (void *stream))                                 \
    ENTRY(capture_begin, "cuStreamBeginCapture_v2", (void *stream, int mode))                 \
    ENTRY(capture_end, "cuStreamEndCapture", (void *stream, void **graph))                    \
    ENTRY(graph_make, "cuGraphInstantiateWithFlags", (void **made, void *graph, unsigned long long flags)) \
    ENTRY(graph_launch, "cuGraphLaunch", (void *graph, void *stream))                         \
    ENTRY(graph_drop, "cuGraphExecDestroy", (void *graph))                                    \
    ENTRY(graph_drop_text, "cuGraphDestroy", (void *graph))                                   \
    ENTRY(event_create, "cuEventCreate", (void **event, unsigned flags))                      \
    ENTRY(event_destroy, "cuEventDestroy_v2", (void *event))                                  \
    ENTRY(event_record, "cuEventRecord", (void *event, void *stream))                         \
    ENTRY(event_elapsed, "cuEventElapsedTime", (float *milliseconds, void *from, void *to))

struct bench_device_clock {
    void *library, *context, *stream, *begin, *end;
    int device;
    address flushed;
    size_t cache_bytes;
    char fault[64];             /* the call that failed, and its number */
#define FIELD(field, symbol, arguments) int (*field) arguments;
    ENTRIES(FIELD)
#undef FIELD
};

/* CALL(c, field, arguments): the entry's result; the first that is not 0 is kept for texts. */
static int note(bench_device_clock *c, const char *symbol, int result)
{
    if (result != 0 && c->fault[0] == '\0') {
        (void)snprintf(c->fault, sizeof(c->fault), "%s: error %d", symbol, result);
    }
    return result;
}
#define CALL(c, field, ...) note(c, #field, (c)->field(__VA_ARGS__))

static oct_status find_entries(bench_device_clock *c, const char *library, oct_error *error)
{
    const char *const names[] = { library != NULL ? library : "libcuda.so.1", NULL };
    char why[160];
    c->library = oct__library_open(names, why, sizeof(why));
    if (c->library == NULL) {
        return oct__error_set(error, OCT_UNSUPPORTED, where, "no driver: %s", why);
    }
#define FIND(field, symbol, arguments)                                                                    \
    c->field = (int (*) arguments)oct__library_find(c->library, symbol);                                  \
    if (c->field == NULL) {                                                                               \
        return oct__error_set(error, OCT_UNSUPPORTED, where, "the driver's library lacks %s", symbol);    \
    }
    ENTRIES(FIND)
#undef FIND
    return OCT_OK;
}

static oct_status open_device(bench_device_clock *c, int ordinal)
{
    int cache = 0;
    int result = CALL(c, get, &c->device, ordinal);
    result = result == 0 ? CALL(c, get_attribute, &cache, L2_CACHE_SIZE, c->device) : result;
    result = result == 0 ? CALL(c, retain, &c->context, c->device) : result;
    if (result != 0) {
        c->context = NULL;
        return OCT_DEVICE_FAULT;
    }
    c->cache_bytes = (size_t)cache;
    result = CALL(c, push, c->context);
    if (result != 0) {
        c->release(c->device);
        c->context = NULL;
        return OCT_DEVICE_FAULT;
    }
    result = CALL(c, stream_create, &c->stream, DOES_NOT_WAIT_FOR_DEFAULT);
    result = result == 0 ? CALL(c, event_create, &c->begin, 0) : result;
    result = result == 0 ? CALL(c, event_create, &c->end, 0) : result;
    if (result != 0) {
        return OCT_DEVICE_FAULT;
    }
    return CALL(c, alloc, &c->flushed, FLUSH_TIMES * c->cache_bytes) == 0 ? OCT_OK : OCT_OUT_OF_MEMORY;
}

/* -1: no NVIDIA GPU's name. */
static int ordinal_of(const char *device)
{
    int ordinal = 0;
    char after;
    return strcmp(device, "cuda") == 0 || (sscanf(device, "cuda:%d%c", &ordinal, &after) == 1 && ordinal >= 0) ? ordinal : -1;
}

bool bench_device_clock_serves(const char *device)
{
    return ordinal_of(device) >= 0;
}

oct_status bench_device_clock_open(const char *device, const char *library, bench_device_clock **out, oct_error *error)
{
    const int ordinal = ordinal_of(device);
    *out = NULL;
    if (ordinal < 0) {
        return oct__error_set(error, OCT_UNSUPPORTED, where, "there is no clock for the device '%.40s'", device);
    }
    bench_device_clock *const c = calloc(1, sizeof(*c));
    if (c == NULL) {
        return oct__error_set(error, OCT_OUT_OF_MEMORY, where, "out of memory for a clock");
    }
    oct_status status = find_entries(c, library, error);
    if (status == OCT_OK) {
        status = open_device(c, ordinal);
        if (status != OCT_OK) {
            (void)oct__error_set(error, status, where, "no stream, events and %zu bytes on the device (%s)", FLUSH_TIMES * c->cache_bytes, c->fault);
        }
    }
    if (status != OCT_OK) {
        bench_device_clock_close(c);
        return status;
    }
    *out = c;
    return OCT_OK;
}

void bench_device_clock_close(bench_device_clock *c)
{
    if (c == NULL) {
        return;
    }
    if (c->context != NULL) {
        void *popped;
        if (c->stream != NULL) {
            c->stream_wait(c->stream);
            c->stream_destroy(c->stream);
        }
        if (c->begin != NULL) {
            c->event_destroy(c->begin);
        }
        if (c->end != NULL) {
            c->event_destroy(c->end);
        }
        if (c->flushed != 0) {
            c->free(c->flushed);
        }
        c->pop(&popped);
        c->release(c->device);
    }
    /* The driver's library stays open: its threads outlive the last context. */
    free(c);
}

void *bench_device_clock_stream(const bench_device_clock *clock)
{
    return clock->stream;
}

const char *bench_device_clock_fault(const bench_device_clock *clock)
{
    return clock->fault;
}

uint64_t bench_device_clock_cache_bytes(const bench_device_clock *clock)
{
    return clock->cache_bytes;
}

oct_status bench_device_graph_make(bench_device_clock *c, oct_status (*enqueue)(void *what), void *what, void **made)
{
    void *graph = NULL;
    *made = NULL;
    if (CALL(c, stream_wait, c->stream) != 0 || CALL(c, capture_begin, c->stream, CAPTURE_OF_THIS_THREAD) != 0) {
        return OCT_DEVICE_FAULT;
    }
    const oct_status status = enqueue(what);
    if (CALL(c, capture_end, c->stream, &graph) != 0) {
        return status != OCT_OK ? status : OCT_DEVICE_FAULT;
    }
    const int result = status == OCT_OK ? CALL(c, graph_make, made, graph, 0) : 0;
    c->graph_drop_text(graph);
    return status != OCT_OK ? status : result == 0 ? OCT_OK : OCT_DEVICE_FAULT;
}

void bench_device_graph_drop(bench_device_clock *c, void *graph)
{
    if (graph != NULL) {
        c->graph_drop(graph);
    }
}

oct_status bench_device_graph_time(bench_device_clock *c, void *graph, uint32_t n, bool flush, double *seconds)
{
    float milliseconds = 0;
    int result = flush ? CALL(c, fill, c->flushed, 0xA5, FLUSH_TIMES * c->cache_bytes, c->stream) : 0;
    result = result == 0 ? CALL(c, event_record, c->begin, c->stream) : result;
    for (uint32_t i = 0; i < n && result == 0; i++) {
        result = CALL(c, graph_launch, graph, c->stream);
    }
    result = result == 0 ? CALL(c, event_record, c->end, c->stream) : result;
    result = result == 0 ? CALL(c, stream_wait, c->stream) : result;
    result = result == 0 ? CALL(c, event_elapsed, &milliseconds, c->begin, c->end) : result;
    /* Below what an event can tell. */
    *seconds = milliseconds > 0 ? milliseconds * 1e-3 : 1e-7;
    return result == 0 ? OCT_OK : OCT_DEVICE_FAULT;
}
