/* step.h: owns attention over a driver as a backend enqueues it: all that a problem needs is sent to the device once, then plan and kernels go to a
 * stream without a wait between them, as often as wanted, inside a capture too.
 *
 * Threads: a step belongs to one thread. */
#ifndef DRIVER_STEP_H
#define DRIVER_STEP_H

#include "device/driver.h"
#include "parity/problem.h"

enum { STEP_ARRAYS = 24, STEP_TABLE = 1024 };

typedef struct step {
    oct__driver *driver;
    void *stream;
    problem *p;
    void *there[STEP_ARRAYS];
    int n;
    oct_status status;              /* the first that was not OK */
    oct_kv_layer layer;             /* device pointers; a test may point it to other pages, whose ids are then those of its own table */
    oct_attn_args args;
    oct_attn_batch batch;
    int32_t *seq_lens, *table;      /* the device's */
    void *out, *lse;
    oct__dev_workspace workspace;
    void *memory;
} step;

/* Problems of the padded form whose table has at most STEP_TABLE places. Asserts. */
void step_make(step *s, oct__driver *driver, void *stream, problem *p);
void step_drop(step *s);

/* The device's copy of these bytes; step_drop frees it. */
void *step_send(step *s, const void *host, size_t bytes);

/* Everything that a run launches. out and lse are first blanked, by fills. */
oct_status step_enqueue(step *s);

/* Waits, and lets the problem's out and lse be the device's. */
oct_status step_fetch(step *s);

/* Whether a kernel of attention rounds q and the weights to 16 bits, as matrix units want them. */
int step_rounds(const char *kernel);

/* Asserts that the problem's out and lse are the oracle's, by the bound of the kernels that ran. */
void step_judge(const step *s);

#endif
