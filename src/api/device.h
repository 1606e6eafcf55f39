/* device.h: owns what the doors share about GPUs: opening one by the name in a context's options, what dispatch learns of it, and the memory of pools
 * on it.
 *
 * Threads: as device/driver.h says. */
#ifndef OCT_API_DEVICE_H
#define OCT_API_DEVICE_H

#include "api/context.h"
#include "host/text.h"
#include "kv/pool.h"

/* name: of oct_context_options.device, NULL included; NULL in *driver: the CPU. Errors: INVALID_ARGUMENT (no such kind, a bad ordinal, a library for
 * the CPU), those of the drivers. */
oct_status oct__device_open(const oct__allocator *allocator, const char *name, const char *library, const char *where, oct__driver **driver, oct_error *error);

/* Adds what a driver tells to a machine whose CPU is known: facts, names, rates. */
void oct__device_describe(const oct__driver *driver, oct__machine *machine);

/* A pool's memory on the driver's device. */
oct__kv_store oct__device_store(oct__driver *driver);

/* oct_device_describe. */
void oct__device_text(oct__text *text, uint32_t format, const oct_context *context);

/* UNSUPPORTED for a recorded machine's context, which runs nothing; OK for the others. */
oct_status oct__device_check_runs(const oct_context *context, const char *where, oct_error *error);

/* Whether a stream is given though the CPU has none. */
bool oct__device_stream_is_wrong(const oct_context *context, const void *stream);

#endif
