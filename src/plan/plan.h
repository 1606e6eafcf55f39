/* plan.h: owns a plan: the problem, the chosen rows, a step's items and the memory that a run needs.
 *
 * Threads: create, update and destroy by one thread at a time and not during a run; a run reads only, but for the step's own atomics. */
#ifndef OCT_PLAN_PLAN_H
#define OCT_PLAN_PLAN_H

#include "host/threads.h"
#include "plan/batch.h"
#include "plan/choose.h"
#include "plan/facts.h"
#include "plan/split.h"
#include "plan/work.h"

/* Decode and extend, the operations that a plan chooses for. */
enum { OCT__PLAN_DECODE, OCT__PLAN_EXTEND, OCT__PLAN_OPS };

struct oct__backend_plan;            /* what a GPU needs of a plan: device/backend.h */

struct oct_plan {
    const oct__allocator *allocator;
    const oct__executor *executor;
    const oct__machine *machine;
    const oct__variant *rows;        /* the table of the machine's device */
    uint32_t n_rows;
    oct_attn_spec spec;              /* the names are read at creation and then NULL */
    oct__facts facts;
    oct__rules rules;
    uint32_t max_threads;            /* a GPU: its units */
    const oct__variant *chosen[OCT__PLAN_OPS];
    int32_t nominal_indptr[OCT__PLAN_OPS][2], nominal_kv_len[OCT__PLAN_OPS];   /* the problem that they are compared on without a batch */
    oct__batch batch;
    oct__split split;                /* of the batch */
    oct__step step;
    double predicted_seconds;
    uint32_t run_threads;            /* that are worth waking for this batch, 1..max_threads */
    uint64_t scratch_bytes;
    oct__array items, arrived, partials;
    oct__claims claims[OCT__EIGHTS_MAX];
    /* On a GPU there are neither items nor scratch, and the batch stays empty: its lengths stand in device memory. Owned and filled by the doors. */
    struct oct__backend_plan *on_device;
};

/* spec has passed the doors' check. All pointers outlive the plan. `where`: the public function, for errors. */
oct_status oct__plan_create(const oct__machine *machine, const oct__allocator *allocator, const oct__executor *executor, const oct_attn_spec *spec,
                            const char *where, oct_plan **plan, oct_error *error);
void oct__plan_destroy(oct_plan *plan);

/* Not on a GPU. After an error the plan holds an empty batch. */
oct_status oct__plan_update(oct_plan *plan, const oct_attn_batch *batch, const char *where, oct_error *error);

/* As after an error. */
void oct__plan_clear(oct_plan *plan);

uint64_t oct__plan_workspace_bytes(const oct_plan *plan);

/* OCT__PLAN_DECODE or _EXTEND. */
oct__op oct__plan_operation(int i);

/* The threads (a GPU: units) that rows are compared on. */
uint32_t oct__plan_compare_threads(const oct_plan *plan);

/* The problem that an operation's variants are compared on: the batch when it has rows for it, else (and always in deterministic mode) the nominal
 * one: one row over 4096 keys (on a GPU as many as the limits suggest), or 512 rows over 512 keys. Returns whether it is the batch; fills split's input fields, and the predicted seconds of each row of the table (0 for
 * rows of other operations) on n_threads. */
bool oct__plan_compare(const oct_plan *plan, int i, uint32_t n_threads, oct__split *problem, double seconds[OCT__VARIANTS_MAX], int64_t *n_rows, int64_t *n_keys);

#endif
