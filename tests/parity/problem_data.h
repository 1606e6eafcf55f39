/* problem_data.h: what problem.c, which lays out a problem's memory, and problem_data.c, which fills it, share. */
#ifndef PARITY_PROBLEM_DATA_H
#define PARITY_PROBLEM_DATA_H

#include "parity/problem.h"

enum { STRIDE_Q = 1 };   /* bit of shape.strides that the mask's rows follow too */

enum { STREAM_PAGES = 1, STREAM_POISON, STREAM_SCALES, STREAM_K, STREAM_V, STREAM_Q, STREAM_SINK, STREAM_MASK, STREAM_PAD };

static inline rng problem_stream(const problem *p, uint64_t which) { return rng_make((uint64_t)p->shape.seed * 64 + which); }

static inline guard_side problem_side(const problem *p) { return p->shape.guard_start ? GUARD_START : GUARD_END; }

/* Each 0 on success; in this order, since a needle's queries point along its key and scores set sm_scale. */
void problem_fill(problem *p, oracle_which which);
int problem_fill_by_write(problem *p);   /* instead of problem_fill */
int problem_fill_q(problem *p);
int problem_choose_scales(problem *p);
int problem_make_sink_and_mask(problem *p);

#endif
