/* fault_visible.c: which keys a row sees: windows, sinks, soft caps, future keys. */
#include <math.h>

#include "faults/faults.h"

/* ---- B1 ------------------------------------------------------------------------------------------------------- */

/* Uniform scores and one-hot values: the output is 1 / n on exactly the n keys that the row sees. */
static int64_t judge_window(problem *p, const compare_bound *bound, void *arg)
{
    const int64_t kv_len = p->kv_len[0], n_rows = p->rows, window = p->shape.window;
    (void)arg;
    for (int64_t row = 0; row < n_rows; row++) {
        const int64_t position = kv_len - n_rows + row, first = position - window + 1 > 0 ? position - window + 1 : 0;
        const double share = 1.0 / (double)(position - first + 1);
        for (uint32_t h = 0; h < p->spec.heads_q; h++)
            for (int64_t d = 0; d < p->shape.dim_v; d++) {
                const double want = d >= first && d <= position ? share : 0.0, out = problem_out(p, row, h, (uint32_t)d);
                if (!(fabs(out - want) <= bound->watch)) {
                    isolate_fail("window %lld, position %lld: key %lld has the weight %g, must have %g", (long long)window, (long long)position,
                                 (long long)d, out, want);
                    return 1;
                }
            }
    }
    return 0;
}

static int64_t run_window(void *arg, int64_t index)
{
    static const int32_t windows[] = { 1, 2, 15, 16, 17, 128 };
    static const uint32_t formats[][2] = { { OCT_DTYPE_E4M3FN, OCT_SCALE_NONE }, { OCT_DTYPE_I8, OCT_SCALE_TOKEN_HEAD }, { OCT_DTYPE_BF16, OCT_SCALE_NONE } };
    const int32_t window = windows[index % 6], length = (int32_t[]){ window - 1, window, window + 1, 3 * window + 5 }[index / 6 % 4];
    problem_shape s = problem_plain(200 + index);
    problem p;
    int64_t failures = 0;
    (void)arg;
    fault_set_formats(&s, formats[index % 3][0], formats[index % 3][1]);
    s.window = window;
    s.dim_v = 512;   /* a dim for every key */
    s.k_data = DATA_EQUAL;
    s.v_data = DATA_ONE_HOT;
    s.page_none = 1;
    s.split_tokens = index / 48 % 2 ? 16 : 0;
    problem_lengths(&s, 1, (int32_t[]){ index / 24 % 2 ? length : 1 }, &length);
    if (length == 0)
        s.q_len[0] = 1;
    if (problem_make(&p, &s) != 0)
        return 1;
    failures += problem_check_made(&p, RUN_WHOLE);
    if (length > 0)
        failures += fault_each_pair(&p, judge_window, NULL);
    problem_drop(&p);
    return failures;
}

void fault_B1_window_counts_the_token_itself(void **state)
{
    (void)state;
    RUN_CASES("B1", 96, 60, run_window);
}

/* ---- B3 ------------------------------------------------------------------------------------------------------- */

static int64_t run_wide_window(void *arg, int64_t index)
{
    static const int64_t splits[] = { 4096, 2048, 586, 0 };   /* 1, 2, 7 parts, and the plan's choice */
    problem_shape s = problem_plain(300);
    problem p;
    int64_t failures = 0;
    (void)arg;
    s.heads_q = 8;
    s.dim_k = s.dim_v = 128;
    s.window = 333;
    s.causal = index % 2;
    s.threads = 2;
    problem_lengths(&s, 1, (int32_t[]){ 300 }, (int32_t[]){ 4096 });
    if (index >= 2) {   /* the same as verification of a few rows */
        s.q_len[0] = 12;
    }
    if (problem_make(&p, &s) != 0)
        return 1;
    for (int64_t i = 0; i < COUNT(splits); i++) {
        p.shape.split_tokens = splits[i];
        p.spec.split_tokens = (uint32_t)splits[i];
        failures += problem_check_made(&p, RUN_WHOLE);   /* every row, so rows 0..127 too */
    }
    problem_drop(&p);
    return failures;
}

void fault_B3_window_without_causal_over_splits(void **state)
{
    (void)state;
    RUN_CASES("B3", 4, 120, run_wide_window);
}

/* ---- C1 ------------------------------------------------------------------------------------------------------- */

static problem_shape mixed_batch(int64_t sink)
{
    problem_shape s = problem_plain(320);
    s.heads_q = 64;
    s.heads = 8;
    s.window = 128;
    s.sink = sink;
    problem_lengths(&s, 8, (int32_t[]){ 200, 33, 1, 1, 1, 1, 1, 1 }, (int32_t[]){ 200, 533, 1, 16, 17, 129, 500, 2000 });
    return s;
}

typedef struct plain_run { float *out, *lse; } plain_run;

static int64_t judge_as_without(problem *p, const compare_bound *bound, void *arg)
{
    const plain_run *plain = arg;
    (void)bound;
    if (memcmp(plain->out, p->out.at, p->out.size_bytes) == 0 && memcmp(plain->lse, p->lse.at, p->lse.size_bytes) == 0)
        return 0;
    isolate_fail("a sink of -inf changes the bits of the result without sinks");
    return 1;
}

static int64_t judge_drowned(problem *p, const compare_bound *bound, void *arg)
{
    (void)bound;
    (void)arg;
    for (int64_t i = 0; i < p->out_elements; i++)
        if (!(fabs((double)((float *)p->out.at)[i]) < 1e-6)) {
            isolate_fail("element %lld is %g under a sink of 50", (long long)i, (double)((float *)p->out.at)[i]);
            return 1;
        }
    return 0;
}

static int64_t run_sinks(void *arg, int64_t index)
{
    static const int64_t sinks[] = { SINK_RANDOM, SINK_MIXED, SINK_MINUS_INFINITY, SINK_HUGE };
    problem_shape s = mixed_batch(sinks[index]);
    problem p, plain;
    char force[96];
    int64_t failures = 0;
    (void)arg;
    if (problem_make(&p, &s) != 0)
        return 1;
    failures += problem_check_made(&p, RUN_WHOLE);
    if (sinks[index] == SINK_HUGE)
        failures += fault_each_pair(&p, judge_drowned, NULL);
    if (sinks[index] == SINK_MINUS_INFINITY) {
        s.sink = SINK_NONE;
        if (problem_make(&plain, &s) != 0)
            return 1;
        for (uint32_t i = 0; problem_pair(i, force, sizeof force); i++) {
            plain_run kept = { plain.out.at, plain.lse.at };
            const compare_bound bound = problem_pair_bound(i);
            isolate_doing("%s", force);
            isolate_repeat("faults fault_C1*");
            if (problem_run(&plain, problem_context(1), force, RUN_WHOLE).status != OCT_OK || problem_run(&p, problem_context(1), force, RUN_WHOLE).status != OCT_OK)
                problem_skip_pair(i);
            else
                failures += judge_as_without(&p, &bound, &kept);
        }
        problem_drop(&plain);
    }
    problem_drop(&p);
    return failures;
}

void fault_C1_sink_and_window_in_a_mixed_batch(void **state)
{
    (void)state;
    RUN_CASES("C1", 4, 240, run_sinks);
}

/* ---- C3 ------------------------------------------------------------------------------------------------------- */

static int64_t judge_small(problem *p, const compare_bound *bound, void *arg)
{
    (void)bound;
    (void)arg;
    for (int64_t row = 0; row < p->rows; row++)
        for (uint32_t h = 0; h < p->spec.heads_q; h++)
            for (uint32_t d = 0; d < p->spec.kv.dim_v; d++)
                if (!(fabs(problem_out(p, row, h, d)) < 10.0)) {
                    isolate_fail("row %lld head %u dim %u is %g: an unseen key leaks", (long long)row, h, d, problem_out(p, row, h, d));
                    return 1;
                }
    return 0;
}

/* Values of 10^6 where no judged row may look: in the future, behind the window, or in the page's tail. */
static int64_t run_leak(void *arg, int64_t index)
{
    static const uint32_t formats[][2] = { { OCT_DTYPE_BF16, OCT_SCALE_NONE }, { OCT_DTYPE_E5M2, OCT_SCALE_LAYER }, { OCT_DTYPE_E4M3FN, OCT_SCALE_LAYER } };
    const int where = (int)(index % 4);
    problem_shape s = problem_plain(340 + index);
    problem p;
    double values[512];
    (void)arg;
    fault_set_formats(&s, formats[index / 4][0], formats[index / 4][1]);
    s.softcap = 1.0;
    s.page_size = 64;
    s.score_deviation = 3.0;
    s.poison = POISON_ZERO;
    problem_lengths(&s, 1, (int32_t[]){ where == 3 ? 1 : 32 }, (int32_t[]){ 64 });
    if (where == 1)
        s.window = 20;
    if (problem_make(&p, &s) != 0)
        return 1;
    for (uint32_t d = 0; d < 64; d++)
        values[d] = 1e6;
    if (p.v_scale.at != NULL)   /* 10^6 must be a number of the format, and the seen values small */
        *(float *)p.v_scale.at = s.v_dtype == OCT_DTYPE_E5M2 ? 20.0f : 2500.0f;
    double seen[512];
    for (int64_t j = 0; j < 64; j++) {
        rng r = rng_make((uint64_t)(index * 64 + j));
        for (uint32_t d = 0; d < 64; d++)
            seen[d] = rng_unit(&r);
        const int unseen = where == 0 ? j >= 48 : where == 1 ? j < 13 : j >= 33;
        for (uint32_t h = 0; h < 2; h++)
            problem_put(&p, ORACLE_V, 0, j, h, unseen ? values : seen);
    }
    /* 0: rows at 32..63, of which those up to 47 see no such key; 1: all rows, the first sees keys 13..32; 2, 3: kv_len 33, the tail of
     * the page is full of them. */
    const problem_part part = { 0, 0, where == 3 ? 1 : 32, where < 2 ? 64 : 33, 0 };
    problem view;
    if (problem_select(&view, &p, &part, 1) != 0)
        return 1;
    int64_t failures = problem_check_made(&view, RUN_WHOLE);
    if (where == 0)
        view.rows = 16;   /* of the judge only: the plan has all rows */
    failures += fault_each_pair(&view, judge_small, NULL);
    problem_drop(&view);
    problem_drop(&p);
    return failures;
}

void fault_C3_mask_comes_after_the_soft_cap(void **state)
{
    (void)state;
    RUN_CASES("C3", 12, 60, run_leak);
}
