/* trace.h: owns the steps that a serving engine with chunked prefill makes of a load: `conc` requests at once, each with a prompt of isl tokens and osl tokens of
 * answer; and the shapes that those steps are measured as. Pure. */
#ifndef APP_BENCH_TRACE_H
#define APP_BENCH_TRACE_H

#include "apps/bench/problem.h"

typedef struct bench_load {
    uint32_t isl, osl, conc;
    uint32_t chunk;            /* tokens of a step: those of all answers under way, then of the first prompt that is not done; > conc */
} bench_load;

typedef struct bench_step {
    uint32_t n_decode;         /* sequences that get a token each */
    uint64_t decode_keys;      /* theirs together, the new ones included */
    uint32_t n_prompt;         /* tokens of one prompt, the last of prompt_keys; 0: none */
    uint32_t prompt_keys;
} bench_step;

/* Every step in order until all answers are complete. A prompt's last chunk makes the answer's first token. False: out of memory. */
bool bench_trace_walk(const bench_load *load, void (*visit)(void *of, const bench_step *step), void *of);

/* What a step's operation is measured as, so that a trace is a few dozen of measurements: rounded up, alike for every format. Decode: a power of two of
 * sequences, at most conc, of one length, their mean to half an answer; extend: tokens to a sixteenth, keys to half a chunk; write: a power of two of tokens. False: the
 * step has no such operation. problem: only op, batch, q_len and kv_len are set. */
bool bench_step_shape(const bench_load *load, const bench_step *step, bench_op op, bench_problem *problem);

enum { BENCH_SHAPES_MAX = 1024, BENCH_LOADS_MAX = 32 };

/* Distinct shapes and how many steps of each load have them. Zero-initialise. */
typedef struct bench_shapes {
    uint32_t n, n_loads;
    bool is_full;              /* a shape found no room: sums would lack it */
    struct { bench_op op; uint32_t batch, q_len, kv_len; uint32_t steps[BENCH_LOADS_MAX]; } item[BENCH_SHAPES_MAX];
    uint32_t n_steps[BENCH_LOADS_MAX];
} bench_shapes;

/* The next load's steps; at most BENCH_LOADS_MAX. False: out of memory. */
bool bench_shapes_add(bench_shapes *shapes, const bench_load *load);

/* Seconds of a load by operation: seconds[i] is one call of shape i. */
void bench_shapes_sum(const bench_shapes *shapes, uint32_t load, const double *seconds, double sums[BENCH_OPS]);

#endif
