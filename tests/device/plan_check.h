/* plan_check.h: owns steps of plan_step on their own: lengths, the launch, and what its tasks and groups must be, on whatever stands behind executor.h.
 * Called from within a test, which fails at the first thing that is wrong. Threads: one. */
#ifndef DEVICE_PLAN_CHECK_H
#define DEVICE_PLAN_CHECK_H

#include "device/launch.h"
#include "parity/rng.h"

typedef struct plan_case {
    oct_attn_spec spec;
    uint32_t n;
    int32_t *q_len, *kv_len, *indptr;
    oct__dev_workspace w;
    oct__dev_plan plan;
    oct__dev_task *tasks[OCT__DEV_OPS];
    oct__dev_group *groups[OCT__DEV_OPS];
    int32_t decode_rows_max;
} plan_case;

oct_attn_spec plan_case_spec(int64_t seed);

/* n sequences of drawn lengths, one in five of up to `longest` keys. s: zeros but for the spec, or filled before. */
void plan_case_fill(plan_case *s, rng *r, uint32_t n, int32_t longest);
oct__dev_step_limits plan_case_limits(const plan_case *s);

/* Runs plan_step over the step's lengths. limits: of sequences and rows, at least the step's. scale: capacities are multiplied by it. */
void plan_case_run(uint32_t warp, plan_case *s, const oct__dev_step_limits *limits, double scale);

/* Each row x key that the rules let a row see is in exactly one task, and groups and partials agree with the tasks. Of a plan whose status is not FULL. */
void plan_case_check(const plan_case *s);
void plan_case_drop(plan_case *s);

#endif
