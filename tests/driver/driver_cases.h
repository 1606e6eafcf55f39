/* driver_cases.h: owns the tests that hold for every driver behind device/driver.h, over a double as over a GPU, and what a vendor must bring to them.
 * Threads: one, but for the tests of threads. */
#ifndef DRIVER_DRIVER_CASES_H
#define DRIVER_DRIVER_CASES_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "device/driver.h"
#include "driver/double.h"

typedef struct driver_vendor {
    oct_status (*open)(const oct__driver_options *options, oct__driver **driver, oct_error *error);
    const char *error_prefix;                              /* of all its errors' names */
    /* The library's own streams and graphs: 0 on success. attach finds them; the driver's device must be current for the rest, which current
     * sees to (1) and undoes (0). */
    int (*attach)(void *library);
    void (*current)(int on);
    int (*stream_make)(void **stream);
    void (*stream_drop)(void *stream);
    int (*capture_begin)(void *stream);
    int (*capture_end)(void *stream, void **graph);        /* ready to run; not 0, or NULL: the capture was broken */
    int (*graph_run)(void *graph, void *stream);
    void (*graph_drop)(void *graph);
    /* For tests of the double: its entry of allocation, and what the texts of errors hold. */
    const char *alloc_entry, *init_entry, *no_library, *lacks, *no_device;
    int mismatch;                                          /* init's error that means an unfit driver */
    void (*make_old)(double_chip *chip);                   /* a chip that no embedded code is for */
    const char *no_code;
    void (*make_small)(double_chip *chip);                 /* one with less shared memory */
} driver_vendor;

extern const driver_vendor *driver_cases_vendor;
extern const char *driver_cases_path, *driver_cases_lacking;
extern const driver_double *driver_cases_double;           /* NULL over a GPU */

/* The driver, opened; a failure is the test's. Give it back with its table's close. */
oct__driver *driver_cases_open(void);

/* cmocka tests. The last one leaves the device lost. */
void driver_opens(void **state);
void driver_keeps_memory(void **state);
void driver_refuses_launches(void **state);
void driver_runs_writes(void **state);
void driver_runs_attention(void **state);
void driver_runs_merges(void **state);
void driver_runs_large_grids(void **state);                /* E3 */
void driver_reaches_large_pools(void **state);             /* E1 */
void driver_captures(void **state);
void driver_runs_streams_from_threads(void **state);
void driver_tells_faults(void **state);

/* Over a double only (double_cases.c). */
void driver_says_what_is_missing(void **state);
void driver_survives_each_failure_at_open(void **state);
void driver_survives_failing_allocations(void **state);
void driver_uses_the_callers_allocator(void **state);
void driver_stays_lost(void **state);
void driver_adapts_to_small_chips(void **state);
void driver_refuses_what_is_no_stream(void **state);
void driver_gives_everything_back(void **state);

/* The two groups; argv: "gpu", or the paths of the double and of a library that lacks entries. */
int driver_cases_main(const driver_vendor *vendor, const char *usual, const struct CMUnitTest *own, size_t n_own, int argc, char **argv);

#endif
