/* A context: hooks for memory, threads and log, what computes (the CPU or a GPU), and the facts of this machine. Immutable once created,
 * shared freely between threads; destroy it after everything made from it. */
#ifndef OCTAVO_CONTEXT_H
#define OCTAVO_CONTEXT_H

#include "octavo/rates.h"
#include "octavo/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct oct_context oct_context;

/* Runs task(arg, ith, nth) once for every ith in [0, nth), on up to nth threads, and returns when all have
 * returned. nth is what the library asked for, at most max_threads. The tasks of one call meet only through atomics and
 * never wait for each other, so any schedule is right, one thread after the other included. */
typedef void (*oct_task)(void *arg, uint32_t ith, uint32_t nth);

typedef struct oct_context_options {
    uint32_t struct_size;
    uint32_t max_threads;   /* for parallel_for; 0: 1 with the library's own loop, see below */
    /* Memory. Both or neither; NULL: the C library. alloc returns memory aligned to `align` (a power of two), or NULL. */
    void *(*alloc)(void *user, size_t size_bytes, size_t align);
    void (*free)(void *user, void *memory, size_t size_bytes);
    /* Threads. NULL: the library starts max_threads - 1 threads of its own at creation, which sleep between calls. */
    void (*parallel_for)(void *user, uint32_t nth, oct_task task, void *arg);
    /* Log. NULL: nothing is logged. Called from any thread; level 0 error, 1 warning, 2 info, 3 debug. */
    void (*log)(void *user, int level, const char *text);
    void *user;
    /* What oct_rates_measure found on this machine; copied. NULL: defaults by CPU family. */
    const oct_rates *rates;
    /* What computes. NULL or "cpu": the host. "cuda", "cuda:1", "hip", "hip:0": a GPU, through its driver's library, which is opened here. */
    const char *device;
    const char *device_library;   /* path of the driver's library; NULL: where the system finds it */
    /* NULL: this machine; else the name of a recorded one (oct_machine_name), whose device computes: plans can be made and explained, nothing runs. */
    const char *machine;
} oct_context_options;

/* options may be NULL (all defaults). Errors: INVALID_ARGUMENT (half an allocator; rates of another CPU, or that no machine has; a
 * device or machine that is none), UNSUPPORTED (no such GPU, or no driver for it here; the text says why), OUT_OF_MEMORY, DEVICE_FAULT. */
OCT_API oct_status oct_context_create(const oct_context_options *options, oct_context **context, oct_error *error);
OCT_API void oct_context_destroy(oct_context *context);   /* NULL is fine */

/* The machines recorded in the library, by index from 0: "zen4", "h200"; NULL past the end. Any thread. */
OCT_API const char *oct_machine_name(uint32_t index);

/* What this machine is: CPU or GPU name, features that dispatch looks at, caches, rates used for costs. Writes at most size bytes,
 * zero-terminated, and returns the length the whole text has (as snprintf). Any thread. */
typedef enum oct_text_format { OCT_TEXT_PLAIN = 0, OCT_TEXT_JSON = 1 } oct_text_format;
OCT_API size_t oct_context_machine(const oct_context *context, uint32_t format, char *text, size_t size);

#ifdef __cplusplus
}
#endif
#endif
