/* problem_door.c: runs a problem with forced variants through the public API of the CPU. Alone in its file, so that a program may run problems elsewhere
 * by bringing these functions itself. */
#define _DEFAULT_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "parity/problem_data.h"
#include "parity/roster.h"

enum { THREADS_MAX = 16 };

const oct__variant *problem_rows(uint32_t *n)
{
    return oct__variants(n);
}

int problem_row_can(const oct__variant *row)
{
    return roster_machine_can(row);
}

typedef struct share { oct_plan *plan; const oct_attn_args *args; uint32_t ith, nth; oct_status status; } share;

static void *run_share(void *arg)
{
    share *s = arg;
    s->status = oct_attn_run_part(s->plan, s->args, s->ith, s->nth);
    return NULL;
}

static oct_status run_shares(oct_plan *plan, const oct_attn_args *args, uint32_t nth, problem_way way, uint64_t seed)
{
    share shares[THREADS_MAX];
    pthread_t threads[THREADS_MAX];
    oct_status status = OCT_OK;
    rng r = rng_make(seed);
    if (nth > THREADS_MAX)
        return OCT_INVALID_ARGUMENT;
    for (uint32_t i = 0; i < nth; i++) {   /* in a random order */
        const int64_t j = rng_below(&r, (int64_t)i + 1);
        shares[i] = shares[j];
        shares[j] = (share){ plan, args, i, nth, OCT_OK };
    }
    for (uint32_t i = 0; i < nth; i++)
        if (way != RUN_THREADS)
            run_share(&shares[i]);
        else if (pthread_create(&threads[i], NULL, run_share, &shares[i]) != 0)
            abort();
    for (uint32_t i = 0; i < nth; i++) {
        if (way == RUN_THREADS)
            pthread_join(threads[i], NULL);
        if (shares[i].status != OCT_OK)
            status = shares[i].status;
    }
    return status;
}

static void protect(problem *p, int on)
{
    guard *const inputs[] = { &p->k, &p->v, &p->k_token_scale, &p->v_token_scale, &p->k_scale, &p->v_scale, &p->q, &p->q_scale,
                              &p->out_scale, &p->sink, &p->mask };
    for (size_t i = 0; i < sizeof inputs / sizeof inputs[0]; i++)
        guard_write_protect(inputs[i], on);
}

problem_outcome problem_run(problem *p, oct_context *context, const char *force, problem_way way)
{
    problem_outcome outcome;
    oct_plan *plan = NULL;
    oct_error error = OCT_ERROR_INIT;
    oct_attn_spec spec = p->spec;
    memset(&outcome, 0, sizeof outcome);
    outcome.info.struct_size = sizeof outcome.info;
    spec.force_variant = force;
    problem_blank(p);
    outcome.status = oct_plan_create(context, &spec, &plan, &error);
    if (outcome.status == OCT_OK)
        outcome.status = problem_update(p, plan, &error);
    if (outcome.status == OCT_OK)
        outcome.status = oct_attn_check(plan, &p->args, &error);
    if (outcome.status == OCT_OK) {
        const uint32_t nth = p->spec.max_threads != 0 ? p->spec.max_threads : 1;
        protect(p, 1);
        outcome.status = way == RUN_WHOLE ? oct_attn_run(plan, &p->args) : run_shares(plan, &p->args, nth, way, (uint64_t)p->shape.seed);
        protect(p, 0);
        oct_plan_info_get(plan, &outcome.info);
    }
    snprintf(outcome.text, sizeof outcome.text, "%s: %s", oct_status_name(outcome.status), outcome.status == OCT_OK ? "" : error.text);
    oct_plan_destroy(plan);
    return outcome;
}
