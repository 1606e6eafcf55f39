/* fake_driver.h: owns a GPU's driver that runs kernels on the host executor of tests/device, without any vendor's library. It keeps the
 * contract of device/driver.h to the letter where a real one may happen to be kind: nothing that is enqueued runs before somebody waits, nothing
 * is legal inside a capture but launches and fills, and memory is only what alloc gave. Allocations can be made to fail, and the device to be lost.
 *
 * Threads: one. */
#ifndef API_DEVICE_FAKE_DRIVER_H
#define API_DEVICE_FAKE_DRIVER_H

#include "device/driver.h"

typedef struct fake_driver fake_driver;
typedef struct fake_stream fake_stream;
typedef struct fake_graph fake_graph;

typedef struct fake_counts {
    size_t n_made, n_live;        /* allocations */
    size_t fail_at;               /* the allocation that fails, counted from 1 as n_made counts; 0: none */
    size_t n_enqueued, n_waits;
    bool is_lost;                 /* set by a test, or by a kernel's fault */
    bool is_closed;
} fake_counts;

/* kind: "cuda" (warps of 32) or "hip" (of 64). counts: the caller's, outlives the driver. NULL without memory. Closed by its table. */
fake_driver *fake_open(const char *kind, uint32_t has_mma, fake_counts *counts);
oct__driver *fake_base(fake_driver *driver);

/* What a kernel's fault said; "" when there was none. */
const char *fake_report(const fake_driver *driver);

/* To be given as void *. Destroyed with the driver. */
fake_stream *fake_stream_make(fake_driver *driver);
void fake_capture_begin(fake_stream *stream);
fake_graph *fake_capture_end(fake_stream *stream);        /* the launches and fills in order; destroyed with the driver */
void fake_graph_launch(fake_graph *graph, fake_stream *stream);

#endif
