/* driver.h: owns what the library asks of a GPU's driver. src/cuda and src/hip each open their vendor's library at run time and fill the table;
 * nothing links against it, and a machine without one gets a status.
 *
 * Threads: a driver is opened and closed by one thread; between the two, every function may be called from any thread. Each makes the device's
 * context current for itself and leaves the caller's as it was. Streams are the caller's, as void *; NULL is the default stream. */
#ifndef OCT_DEVICE_DRIVER_H
#define OCT_DEVICE_DRIVER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "device/launch.h"
#include "host/memory.h"
#include "octavo/status.h"

typedef struct oct__driver oct__driver;

/* Errors of the functions that return a status: OUT_OF_MEMORY; DEVICE_FAULT (the device is lost or a kernel before this call failed: every later
 * call says so too); INVALID_ARGUMENT (a stream that is none); UNSUPPORTED (the call is not allowed while the stream is captured). */
typedef struct oct__driver_table {
    const char *name;                                        /* "cuda", "hip" */
    void (*close)(oct__driver *driver);
    oct_status (*alloc)(oct__driver *driver, size_t bytes, void **memory);      /* 256-byte aligned; not inside a capture. 0 bytes: NULL */
    void (*free)(oct__driver *driver, void *memory);                            /* waits for the device; not inside a capture. NULL is fine */
    /* Enqueued on the stream. Pageable host memory is copied from before copy_in returns. Not inside a capture (the copies would be made when
     * the graph runs, from and to memory that may be gone): UNSUPPORTED, and the capture goes on. */
    oct_status (*copy_in)(oct__driver *driver, void *device, const void *host, size_t bytes, void *stream);
    oct_status (*copy_out)(oct__driver *driver, void *host, const void *device, size_t bytes, void *stream);
    oct_status (*copy)(oct__driver *driver, void *to, const void *from, size_t bytes, void *stream);    /* within the device; by the same rules */
    oct_status (*fill)(oct__driver *driver, void *device, uint8_t byte, size_t bytes, void *stream);    /* legal inside a capture */
    /* params: one of params.h, copied before it returns. Never allocates, never waits, legal inside a capture. */
    oct_status (*launch)(oct__driver *driver, const oct__dev_launch *launch, const void *params, size_t params_bytes, void *stream);
    oct_status (*wait)(oct__driver *driver, void *stream);   /* until all that is enqueued has run; also tells faults of kernels. Not inside a capture */
    bool (*is_capturing)(oct__driver *driver, void *stream); /* NULL: whether any stream's capture forbids work on the default stream */
    const char *(*fault)(oct__driver *driver);               /* the vendor's name of the last error that a function above met, "" when none */
} oct__driver_table;

/* What every driver begins with. */
struct oct__driver {
    const oct__driver_table *table;
    oct__dev_chip chip;
    char device[64];                /* the vendor's name of the device */
    char arch[32];                  /* "sm_90", "gfx942" */
    char code[32];                  /* which embedded code object serves it: "sm_90a cubin", "sm_80 ptx", "gfx942" */
    uint64_t memory_bytes;
    double read_bytes_per_s;        /* from memory clock and bus width; 0 when the driver does not tell */
};

typedef struct oct__driver_options {
    const oct__allocator *allocator;
    const char *library;            /* NULL: libcuda.so.1, libamdhip64.so.7, .so.6 or .so; else the path of one (test doubles, unusual places) */
    uint32_t ordinal;
} oct__driver_options;

/* Errors: UNSUPPORTED (no such library, no such device, or no embedded code that the device takes; the text says which), DEVICE_FAULT,
 * OUT_OF_MEMORY. */
oct_status oct__cuda_open(const oct__driver_options *options, oct__driver **driver, oct_error *error);
oct_status oct__hip_open(const oct__driver_options *options, oct__driver **driver, oct_error *error);

#endif
