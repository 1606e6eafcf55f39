/* device_clock.h: owns the time that work takes on a GPU: graphs of what a stream is given, replayed between two events of the vendor's own, with the
 * caches flushed before. It calls the driver as any program beside the library may, in the same primary context. NVIDIA only. One thread a clock. */
#ifndef APP_BENCH_DEVICE_CLOCK_H
#define APP_BENCH_DEVICE_CLOCK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "octavo/status.h"

typedef struct bench_device_clock bench_device_clock;

/* Whether there is a clock for a device of this name: "cuda", "cuda:N". */
bool bench_device_clock_serves(const char *device);

/* device, library: as in oct_context_options, of a context that is open. Errors: UNSUPPORTED (no driver, a function that it lacks, a device that is not
 * "cuda" or "cuda:N"), DEVICE_FAULT, OUT_OF_MEMORY. */
oct_status bench_device_clock_open(const char *device, const char *library, bench_device_clock **clock, oct_error *error);
void bench_device_clock_close(bench_device_clock *clock);   /* NULL is fine */

/* Of work that a graph is made of; given to the library as it is. */
void *bench_device_clock_stream(const bench_device_clock *clock);

/* The driver's call that failed first, for messages; "" when none did. */
const char *bench_device_clock_fault(const bench_device_clock *clock);

/* The second-level cache: what a run must go past to find its pages in memory. */
uint64_t bench_device_clock_cache_bytes(const bench_device_clock *clock);

/* A graph of everything that enqueue puts on the stream. Drop it before the clock. */
oct_status bench_device_graph_make(bench_device_clock *clock, oct_status (*enqueue)(void *what), void *what, void **graph);
void bench_device_graph_drop(bench_device_clock *clock, void *graph);   /* NULL is fine */

/* Seconds from the beginning of the first of n replays to the end of the last; with flush, after a write over four times the cache. */
oct_status bench_device_graph_time(bench_device_clock *clock, void *graph, uint32_t n, bool flush, double *seconds);

#endif
