/* run_problem.h: owns the running of the parity tests' problems through the public API on a context whose device has memory of its own: what lies
 * in a problem's memory is copied there, and results come back to where a CPU would have left them. Threads: one. */
#ifndef API_DEVICE_RUN_PROBLEM_H
#define API_DEVICE_RUN_PROBLEM_H

#include "octavo/octavo.h"
#include "parity/problem.h"
#include "parity/write_case.h"

enum { DEVICE_ARRAYS_MAX = 40 };

/* Host blocks and their copies on the device. */
typedef struct device_arrays {
    oct_context *context;
    void *stream;
    struct { void *host, *there; size_t size_bytes; } all[DEVICE_ARRAYS_MAX];   /* host: where it comes back to, or NULL */
    int n;
    oct_status status;            /* of the first call that failed */
} device_arrays;

/* The device's address of a copy of the block; NULL stays NULL. */
void *device_send(device_arrays *a, const void *host, size_t size_bytes, int comes_back);
void *device_send_guard(device_arrays *a, const guard *g, int comes_back);
/* The address that `at`, a place within a block that went to `there`, has on the device. */
void *device_moved(void *there, const void *block, const void *at);
/* Waits, copies back what comes back, frees everything. The first status that was not OK. */
oct_status device_fetch(device_arrays *a);
void device_drop(device_arrays *a);   /* frees everything */

/* The problem's operands on the device. */
typedef struct device_problem {
    device_arrays arrays;
    oct_kv_layer layer;
    oct_attn_args args;
    oct_attn_batch batch;
    oct_attn_spec spec;           /* with limits that the batch just fits */
    int32_t *scratch;
} device_problem;

/* owner: as in tests/device/device_run.h. In an error arrays.status tells; drop it all the same. */
void device_problem_send(device_problem *d, oct_context *context, void *stream, problem *p, const problem *owner);
void device_problem_drop(device_problem *d);   /* without copying back */

/* Plans, updates and runs with these variants forced (NULL: free choice) and judges nothing; out and lse hold the results. 0, or 1 and the reason. */
int device_run_problem(oct_context *context, void *stream, problem *p, const problem *owner, const char *force, oct_plan_info *info, char *text, size_t size);

/* Runs the case's write; pools and counts then hold what the device's memory held. *refused: what a checked write told, else 0. */
int device_run_case(oct_context *context, void *stream, write_case *c, uint32_t *refused, char *text, size_t size);

#endif
