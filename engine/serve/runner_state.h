/* What a runner is made of, for runner.c and cache_file.c. */
#ifndef OCTE_SERVE_RUNNER_STATE_H
#define OCTE_SERVE_RUNNER_STATE_H

#include "engine/serve/runner.h"

struct octe_runner {
    octe_engine *engine;
    octe_scheduler *scheduler;
    octe_paged_part *parts;      /* [max_step_parts] */
    octe_outcome *outcomes;      /* [max_sequences] */
    uint32_t n_vocab;
    unsigned char *host;         /* [n_swap][place_bytes] */
    size_t place_bytes;
    octe_runner_seconds seconds;
    void (*planned)(void *user, const octe_step_plan *step);
    void *user;
};

#endif
