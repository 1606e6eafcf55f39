/* rig.h: owns one problem made ready to run through the public API: pages and operands, and choices of who computes it. One thread drives a
 * rig with all its choices. */
#ifndef APP_BENCH_RIG_H
#define APP_BENCH_RIG_H

#include "apps/bench/device_clock.h"
#include "apps/bench/problem.h"

typedef struct bench_rig bench_rig;

/* Pages lie in random order and hold normally distributed values, stored by the library's own write. cold_bytes: runs go round layers of more than
 * so many bytes together, so that each finds its pages out of the caches; 0: one layer. The context outlives the rig; its threads run it. clock: of the
 * context's GPU, outlives the rig too; NULL on the CPU. Errors: those of the library. */
oct_status bench_rig_create(const bench_problem *problem, oct_context *context, bench_device_clock *clock, uint64_t cold_bytes, bench_rig **rig, oct_error *error);
void bench_rig_destroy(bench_rig *rig);   /* NULL is fine; its choices are freed first */

/* Values that were cut to the format's largest when the pages were filled, and all values. */
void bench_rig_saturated(const bench_rig *rig, uint64_t *n_saturated, uint64_t *n_values);

/* Who computes it. Zero-initialise. */
typedef struct bench_choice {
    bench_rig *rig;
    oct_plan *plan;               /* of attention */
    char variant[64];             /* full name of what runs */
    double predicted_seconds;     /* of attention on the CPU, else 0 */
    void *graph;                  /* on a GPU: a run over each layer */
} bench_choice;

/* force, deny: as in oct_attn_spec; a write and a merge can't be asked for either and ignore them. UNSUPPORTED when a forced variant's gate fails. */
oct_status bench_choice_make(bench_rig *rig, const char *force, const char *deny, bench_choice *choice, oct_error *error);
void bench_choice_free(bench_choice *choice);   /* fine on a zeroed one */

/* One call of the operation, over the next layer; on a GPU it is enqueued. */
oct_status bench_choice_run(bench_choice *choice);

/* On a GPU: seconds of one call, from a graph that goes once round the layers; its first layer is as cold as the others. what: a bench_choice. n_runs: ignored. As
 * bench_contender.sample. */
oct_status bench_choice_sample(void *what, uint32_t n_runs, double *seconds);

#endif
