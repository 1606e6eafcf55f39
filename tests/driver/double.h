/* double.h: owns what stands behind the doubles of both vendors' drivers (libcuda_double.so, libamdhip_double.so): a device whose kernels run on the
 * host executor, its memory, streams, captures and modules, and the faults that a test plans for it. The doubles' own files (tests/cuda,
 * tests/hip) give it the vendors' names and rules. A test opens the same library as the driver does and asks it for driver_double().
 *
 * As on a GPU, what is enqueued runs later: when someone waits, copies out or frees. All streams share one queue, which is one of the orders that
 * a GPU may take.
 *
 * Threads: any; calls take turns. The current context or device is each thread's own. */
#ifndef DRIVER_DOUBLE_H
#define DRIVER_DOUBLE_H

#include <stddef.h>
#include <stdint.h>

typedef struct double_chip {
    char name[64], arch[64];        /* arch: AMD's "gfx942:sramecc+:xnack-" */
    int capability;                 /* NVIDIA's: 10 * major + minor */
    int n_devices;                  /* at most 4 */
    uint32_t warp, n_units, shared_limit_bytes, memory_clock_khz, bus_bits;
    size_t memory_bytes;
} double_chip;

/* What the driver under test has not given back. */
typedef struct double_live { int allocations, modules, contexts, current; } double_live;

typedef struct driver_double {
    double_chip usual;                                  /* an H200, an MI300X; with 3 units, so that grids stride */
    void (*reset)(const double_chip *chip);             /* everything as new; no plan. A chip stays until the next reset */
    void (*plan_failure)(const char *entry, unsigned nth, int error);   /* the nth call from now on of the entry fails so, once; 0: none does. NULL: of
                                                         * any but those that give something back */
    unsigned (*calls)(const char *entry);               /* since reset; NULL: of all but those that give something back */
    void (*lose)(void);                                 /* the device is gone: every later call of it says so */
    double_live (*live)(void);
    const char *(*report)(void);                        /* of the kernel that failed last */
} driver_double;

typedef const driver_double *driver_double_door(void);

/* ---- for the doubles' own files: numbers are the vendors' errors, 0 for success ---------------------------------------------------------- */

/* Every entry: begins with one, ends with the other, whatever the first has returned. */
int double_enter(const char *entry);                    /* not 0: to be returned as it is */
int double_leave(int error);

extern double_chip double_this;
void double_define(const driver_double *control);       /* once, by a constructor: whose usual chip it is */

/* Control's functions, the same for both. */
void double_reset(const double_chip *chip);
void double_fail(const char *entry, unsigned nth, int error);
unsigned double_calls(const char *entry);
void double_lose(void);
double_live double_is_live(void);
const char *double_report(void);

/* The running thread's contexts (CUDA: a stack of them) or device (HIP). */
typedef struct double_context { int device, n_retained; } double_context;
double_context *double_context_of(int device);
double_context *double_current(void);                   /* NULL: none */
int double_push(double_context *context);
double_context *double_pop(void);
int *double_device(void);

/* Modules: the image is looked through for the kernels that are asked for. fits: what a code object must be. */
typedef struct double_module double_module;
typedef struct double_function { double_module *module; const void *kernel; uint32_t static_bytes, dynamic_limit_bytes; } double_function;
int double_load(double_module **module, const void *image, int device);
int double_unload(double_module *module);
int double_find(double_function **function, double_module *module, const char *symbol, uint32_t dynamic_limit_bytes);
int double_function_device(const double_function *function);

int double_alloc(void **memory, size_t bytes);
int double_free(void *memory);

/* Streams: NULL is the default one. A call that a capture forbids ends it. flags: bit 0: does not wait for the default stream. mode: the vendors':
 * 0 global, 1 of the thread, 2 relaxed. */
int double_stream_make(void **stream, unsigned flags);
int double_stream_drop(void *stream);
int double_capture_begin(void *stream, int mode);
int double_capture_end(void *stream, void **graph);
int double_capture_status(void *stream, int *status);
int double_graph_copy(void **copy, const void *graph);
int double_graph_run(void *graph, void *stream);
void double_graph_drop(void *graph);

/* Events note when the device came by. */
int double_event_make(void **made);
void double_event_drop(void *dropped);
int double_event_record(void *noted, void *stream);
int double_event_elapsed(float *milliseconds, const void *from, const void *to);   /* of two that have run */

int double_copy_in(void *to, const void *from, size_t bytes, void *stream);
int double_copy_out(void *to, const void *from, size_t bytes, void *stream);
int double_copy(void *to, const void *from, size_t bytes, void *stream);   /* within the device */
int double_fill(void *to, uint8_t byte, size_t bytes, void *stream);
int double_launch(const double_function *function, const uint32_t grid[3], const uint32_t block[3], uint32_t shared_bytes, const void *params, void *stream);
int double_wait(void *stream);

#endif
