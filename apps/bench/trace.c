/* trace.c: see trace.h. */
#include "apps/bench/trace.h"

#include <stdlib.h>

bool bench_trace_walk(const bench_load *load, void (*visit)(void *of, const bench_step *step), void *of)
{
    uint32_t *const answered = calloc(load->conc, sizeof(*answered));
    uint32_t prompt = 0, done = 0;   /* the first prompt that is not done, and how much of it is */
    uint32_t n_complete = 0;
    if (answered == NULL) {
        return false;
    }
    while (n_complete < load->conc) {
        bench_step step = { 0, 0, 0, 0 };
        for (uint32_t i = 0; i < prompt; i++) {
            if (answered[i] < load->osl) {
                step.n_decode++;
                step.decode_keys += (uint64_t)load->isl + answered[i];
                answered[i]++;
                n_complete += answered[i] == load->osl;
            }
        }
        if (prompt < load->conc) {
            const uint32_t room = load->chunk - step.n_decode, rest = load->isl - done;
            step.n_prompt = room < rest ? room : rest;
            step.prompt_keys = done += step.n_prompt;
            if (done == load->isl) {
                answered[prompt] = 1;
                n_complete += load->osl == 1;
                prompt++;
                done = 0;
            }
        }
        visit(of, &step);
    }
    free(answered);
    return true;
}

static uint32_t up_to_multiple(uint64_t n, uint32_t of)
{
    return (uint32_t)((n + of - 1) / of * of);
}

static uint32_t up_to_power(uint32_t n)
{
    uint32_t power = 1;
    while (power < n) {
        power *= 2;
    }
    return power;
}

bool bench_step_shape(const bench_load *load, const bench_step *step, bench_op op, bench_problem *problem)
{
    const uint32_t sixteenth = load->chunk >= 16 ? load->chunk / 16 : 1, half = load->chunk >= 2 ? load->chunk / 2 : 1, answer = load->osl >= 2 ? load->osl / 2 : 1;
    *problem = (bench_problem){ .op = op, .batch = 1 };
    switch (op) {
    case BENCH_DECODE:
        if (step->n_decode > 0) {
            const uint32_t batch = up_to_power(step->n_decode);
            problem->batch = batch < load->conc ? batch : load->conc;
            problem->q_len = 1;
            problem->kv_len = load->isl + up_to_multiple(step->decode_keys / step->n_decode - load->isl + 1, answer);
        }
        return step->n_decode > 0;
    case BENCH_EXTEND:
        problem->q_len = up_to_multiple(step->n_prompt, sixteenth);
        problem->kv_len = up_to_multiple(step->prompt_keys, half);
        problem->kv_len = problem->kv_len > problem->q_len ? problem->kv_len : problem->q_len;
        return step->n_prompt > 0;
    case BENCH_WRITE:
        problem->q_len = problem->kv_len = up_to_power(step->n_decode + step->n_prompt);
        return true;
    default:
        return false;
    }
}

static void count_step(void *of, const bench_step *step)
{
    static const bench_op ops[] = { BENCH_WRITE, BENCH_DECODE, BENCH_EXTEND };
    bench_shapes *const s = ((void **)of)[0];
    const bench_load *const load = ((void **)of)[1];
    s->n_steps[s->n_loads]++;
    for (size_t o = 0; o < sizeof(ops) / sizeof(ops[0]); o++) {
        bench_problem p;
        uint32_t i = 0;
        if (!bench_step_shape(load, step, ops[o], &p)) {
            continue;
        }
        while (i < s->n && (s->item[i].op != p.op || s->item[i].batch != p.batch || s->item[i].q_len != p.q_len || s->item[i].kv_len != p.kv_len)) {
            i++;
        }
        if (i == BENCH_SHAPES_MAX) {
            s->is_full = true;
            continue;
        }
        if (i == s->n) {
            s->item[s->n].op = p.op, s->item[s->n].batch = p.batch, s->item[s->n].q_len = p.q_len, s->item[s->n].kv_len = p.kv_len;
            s->n++;
        }
        s->item[i].steps[s->n_loads]++;
    }
}

bool bench_shapes_add(bench_shapes *shapes, const bench_load *load)
{
    bench_load own = *load;
    void *of[2] = { shapes, &own };
    const bool walked = shapes->n_loads < BENCH_LOADS_MAX && bench_trace_walk(load, count_step, of);
    shapes->n_loads += walked;
    return walked;
}

void bench_shapes_sum(const bench_shapes *shapes, uint32_t load, const double *seconds, double sums[BENCH_OPS])
{
    for (int op = 0; op < BENCH_OPS; op++) {
        sums[op] = 0.0;
    }
    for (uint32_t i = 0; i < shapes->n; i++) {
        sums[shapes->item[i].op] += seconds[i] * shapes->item[i].steps[load];
    }
}
