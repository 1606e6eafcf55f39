/* gpu.c: see gpu.h. The vendors' functions are declared here as their headers declare them; what fails ends the test. */
#include "api_device/gpu.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/context.h"

/* A function of the library; POSIX makes pointers to objects and to functions the same. */
static void *find(const gpu *g, const char *name)
{
    void *found = dlsym(g->library, name);
    if (found == NULL) {
        fprintf(stderr, "no %s in the driver's library\n", name);
        abort();
    }
    return found;
}

#define CALL(g, name, types, ...)                                      \
    do {                                                               \
        int (*function_) types;                                        \
        *(void **)(void *)&function_ = find(g, name);                  \
        const int error_ = function_(__VA_ARGS__);                     \
        if (error_ != 0) {                                             \
            fprintf(stderr, "%s: error %d\n", name, error_);           \
            abort();                                                   \
        }                                                              \
    } while (0)

/* The library is open already, for the context: this finds it again. */
static void open_library(gpu *g, const char *path)
{
    static const char *const names[2][4] = { { "libcuda.so.1", NULL }, { "libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so", NULL } };
    g->library = path != NULL ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;
    for (int i = 0; path == NULL && g->library == NULL && names[g->is_hip][i] != NULL; i++)
        g->library = dlopen(names[g->is_hip][i], RTLD_NOW | RTLD_LOCAL);
    if (g->library == NULL) {
        fprintf(stderr, "%s\n", dlerror());
        abort();
    }
    if (!g->is_hip) {
        void *context;
        CALL(g, "cuDevicePrimaryCtxRetain", (void **, int), &context, 0);
        CALL(g, "cuCtxSetCurrent", (void *), context);
    }
}

oct_status gpu_open(gpu *g, const char *what, const char *library, uint32_t has_mma, const oct_context_options *more, oct_error *error)
{
    oct_context_options options = { .struct_size = sizeof options };
    const bool is_fake = strncmp(what, "fake:", 5) == 0;
    if (more != NULL)
        options = *more;
    memset(g, 0, sizeof *g);
    if (is_fake) {
        g->fake = fake_open(what + 5, has_mma, &g->counts);
        if (g->fake == NULL)
            abort();
        const oct_status status = oct__context_create_on(fake_base(g->fake), &options, &g->context, error);
        if (status != OCT_OK)
            fake_base(g->fake)->table->close(fake_base(g->fake));
        else
            g->stream = fake_stream_make(g->fake);
        return status;
    }
    options.device = what;
    options.device_library = library;
    const oct_status status = oct_context_create(&options, &g->context, error);
    if (status == OCT_OK) {
        g->is_hip = strncmp(what, "hip", 3) == 0;
        open_library(g, library);
        g->stream = gpu_stream(g);
    }
    return status;
}

void gpu_close(gpu *g)
{
    oct_context_destroy(g->context);
    if (g->library != NULL)
        dlclose(g->library);
}

void *gpu_stream(gpu *g)
{
    void *stream = NULL;
    if (g->fake != NULL)
        return fake_stream_make(g->fake);
    CALL(g, g->is_hip ? "hipStreamCreateWithFlags" : "cuStreamCreate", (void **, unsigned), &stream, 1 /* does not wait for the default stream */);
    return stream;
}

void gpu_capture_begin(gpu *g, void *stream)
{
    if (g->fake != NULL)
        fake_capture_begin(stream);
    else
        CALL(g, g->is_hip ? "hipStreamBeginCapture" : "cuStreamBeginCapture_v2", (void *, int), stream, 0 /* global: nothing else may be forbidden */);
}

void *gpu_capture_end(gpu *g, void *stream)
{
    void *graph = NULL, *made = NULL;
    if (g->fake != NULL)
        return fake_capture_end(stream);
    CALL(g, g->is_hip ? "hipStreamEndCapture" : "cuStreamEndCapture", (void *, void **), stream, &graph);
    if (g->is_hip)
        CALL(g, "hipGraphInstantiate", (void **, void *, void **, char *, size_t), &made, graph, NULL, NULL, (size_t)0);
    else
        CALL(g, "cuGraphInstantiateWithFlags", (void **, void *, unsigned long long), &made, graph, 0ull);
    return made;
}

void gpu_graph_launch(gpu *g, void *graph, void *stream)
{
    if (g->fake != NULL)
        fake_graph_launch(graph, stream);
    else
        CALL(g, g->is_hip ? "hipGraphLaunch" : "cuGraphLaunch", (void *, void *), graph, stream);
}
