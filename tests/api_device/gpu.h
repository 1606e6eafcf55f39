/* gpu.h: owns what the tests here run on: a context on the fake driver of this folder, or on a vendor's library (the real one, or a double of it),
 * with a stream of the tests' own and, on either, graphs. Threads: one. */
#ifndef API_DEVICE_GPU_H
#define API_DEVICE_GPU_H

#include "api_device/fake_driver.h"
#include "octavo/octavo.h"

typedef struct gpu {
    oct_context *context;
    void *stream;
    fake_driver *fake;            /* NULL on a vendor's library */
    fake_counts counts;           /* of the fake */
    void *library;                /* a vendor's, for streams and graphs */
    bool is_hip;
} gpu;

/* what: "fake:cuda", "fake:hip", "cuda", "cuda:1", "hip" ...; library: as oct_context_options.device_library. has_mma: of a fake. more: options whose
 * device and library are not looked at, or NULL. g stays where it is. The status of the context's creation, with error filled; where it fails nothing is left open. */
oct_status gpu_open(gpu *g, const char *what, const char *library, uint32_t has_mma, const oct_context_options *more, oct_error *error);
void gpu_close(gpu *g);

/* A further stream. */
void *gpu_stream(gpu *g);

/* What is enqueued on the stream from begin to end becomes a graph; launching it enqueues it again. */
void gpu_capture_begin(gpu *g, void *stream);
void *gpu_capture_end(gpu *g, void *stream);
void gpu_graph_launch(gpu *g, void *graph, void *stream);

#endif
