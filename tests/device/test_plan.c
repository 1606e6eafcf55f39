/* test_plan.c: plan_step at one warp width: its tasks cover each row x key that the rules let a row see exactly once, agree with its groups, stay
 * within the capacities, and follow lengths that change in device memory. And attention must not change with how keys are split: to a part
 * in a million, and in deterministic mode, for a sequence and its batch mates, to the bit. Arguments: 32 or 64. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "device/device_check.h"
#include "device/plan_check.h"

enum { SEQUENCES_MAX = 70000 };

static uint32_t warp;
static int64_t every = 1;   /* of the numbered cases every nth alone: for instrumented builds, ten times as slow */

/* ---- plans on their own ------------------------------------------------------------------------------------------------------------- */

static void plans_cover_rows_and_keys(void **state)
{
    (void)state;
    int split = 0;
    for (int64_t seed = 0; seed < 60; seed += every) {
        plan_case s = { .spec = plan_case_spec(seed) };
        rng r = rng_make((uint64_t)seed + 7000);
        plan_case_fill(&s, &r, (uint32_t)rng_between(&r, 1, seed % 10 == 0 ? 2000 : 40), seed % 7 == 0 ? 1 << 20 : 5000);
        const oct__dev_step_limits limits = plan_case_limits(&s);
        plan_case_run(warp, &s, &limits, 1.0);
        assert_int_equal(s.plan.status, OCT__DEV_PLAN_OK);
        plan_case_check(&s);
        split += s.plan.n_groups[0] > 0;
        plan_case_drop(&s);
    }
    assert_true(split > 20 / every);
}

/* A graph's capacity is for its largest step: each smaller one fits. And lengths are read when the kernel runs, so nothing else changes. */
static void plans_follow_lengths(void **state)
{
    (void)state;
    plan_case s = { .spec = plan_case_spec(1) };
    rng r = rng_make(8000);
    const oct__dev_step_limits limits = { 64, 64 * 60, 100000 };
    for (int i = 0; i < 12; i++) {
        plan_case_fill(&s, &r, i % 2 ? 64 : (uint32_t)rng_between(&r, 1, 64), 100000);
        plan_case_run(warp, &s, &limits, 1.0);
        assert_int_equal(s.plan.status, OCT__DEV_PLAN_OK);
        plan_case_check(&s);
    }
    plan_case_drop(&s);
}

/* Where splits do not fit they grow, and the plan says so; where not even whole rows fit nothing runs. */
static void capacities_hold(void **state)
{
    int n_full = 0;
    (void)state;
    for (int64_t seed = 0; seed < 12; seed += every) {
        plan_case s = { .spec = plan_case_spec(seed) };
        rng r = rng_make((uint64_t)seed + 9000);
        plan_case_fill(&s, &r, 30, 20000);
        oct__dev_step_limits limits = plan_case_limits(&s);
        limits.n_rows += 100;
        plan_case_run(warp, &s, &limits, 0.8);
        if (s.plan.status != OCT__DEV_PLAN_FULL)
            plan_case_check(&s);
        plan_case_run(warp, &s, &limits, 0.03 / device_check_rig(warp)->chip.n_units);   /* capacities grow with them */
        if (s.plan.status != OCT__DEV_PLAN_FULL) {   /* a hundredth of very many */
            assert_true(s.spec.split_tokens > 0 || s.spec.deterministic);
            plan_case_check(&s);
            plan_case_drop(&s);
            continue;
        }
        n_full++;
        assert_true(s.plan.n_tasks[0] + s.plan.n_tasks[1] + s.plan.n_groups[0] + s.plan.n_groups[1] == 0);
        plan_case_drop(&s);
    }
    assert_true(n_full >= 6 / every);
    /* Fixed splits of 50 keys, room for a tenth of them. */
    plan_case s = { .spec = plan_case_spec(5) };
    rng r = rng_make(9100);
    plan_case_fill(&s, &r, 10, 3000);
    for (uint32_t b = 0; b < s.n; b++)
        s.kv_len[b] = 3000;
    const oct__dev_step_limits limits = plan_case_limits(&s);
    plan_case_run(warp, &s, &limits, 0.1);
    assert_int_equal(s.plan.status, OCT__DEV_PLAN_COARSER);
    plan_case_check(&s);
    plan_case_drop(&s);
}

/* Fault E3: more sequences than one grid axis takes; and the longest one is what decides how keys are split. */
static void many_sequences(void **state)
{
    (void)state;
    plan_case s = { .spec = plan_case_spec(0) };
    s.spec.kv.heads = 1;
    s.spec.heads_q = 1;
    s.n = SEQUENCES_MAX;
    s.q_len = calloc(s.n + 1, sizeof *s.q_len);
    s.kv_len = calloc(s.n + 1, sizeof *s.kv_len);
    s.indptr = calloc(s.n + 1, sizeof *s.indptr);
    for (uint32_t b = 0; b < s.n; b++) {
        s.kv_len[b] = b == 4321 ? 1 << 20 : (int32_t)(b % 3);
        s.indptr[b + 1] = s.indptr[b] + 1;
    }
    const oct__dev_step_limits limits = plan_case_limits(&s);
    plan_case_run(warp, &s, &limits, 1.0);
    assert_int_equal(s.plan.status, OCT__DEV_PLAN_OK);
    assert_true(s.plan.n_tasks[0] >= SEQUENCES_MAX && s.plan.n_groups[0] == 1 && s.plan.n_partials[0] >= 8);
    plan_case_check(&s);
    plan_case_drop(&s);
}

/* ---- results and splits -------------------------------------------------------------------------------------------------------------- */

/* Problems that splits may hurt. */
static problem_shape split_shape(int64_t i)
{
    static const int64_t formats[][4] = { { OCT_DTYPE_E4M3FN, OCT_SCALE_LAYER, 0, 0 }, { OCT_DTYPE_I8, OCT_SCALE_TOKEN_HEAD, OCT_DTYPE_F16, 1 },
                                          { OCT_DTYPE_E5M2, OCT_SCALE_CHANNEL, 0, 0 }, { OCT_DTYPE_BF16, OCT_SCALE_NONE, 0, 0 } };
    static const int64_t k_data[] = { DATA_NORMAL, DATA_NEEDLE, DATA_EQUAL, DATA_CODES };
    problem_shape s = problem_plain(500 + i);
    const int64_t *k = formats[i % 4], *v = formats[(i / 4 + i) % 4];
    s.k_dtype = k[0], s.k_scale_mode = k[1], s.k_scale_dtype = k[2], s.k_rotated = k[3];
    s.v_dtype = v[0], s.v_scale_mode = v[1], s.v_scale_dtype = v[2], s.v_rotated = v[3];
    s.heads = 1;
    s.heads_q = (int64_t[]){ 2, 6, 10, 16 }[i % 4];
    s.dim_k = s.dim_v = (int64_t[]){ 64, 128, 80 }[i % 3];
    s.page_size = (int64_t[]){ 16, 1, 64, 5 }[(i / 3) % 4];
    s.layout = (i / 2) % 2;
    s.q_dtype = i % 2 ? OCT_DTYPE_F32 : OCT_DTYPE_BF16;
    s.k_data = k_data[i % 4];
    s.v_data = i % 3 == 0 ? DATA_HALF : DATA_NORMAL;
    s.score_deviation = i % 2 ? 0.01 : 2.0;
    s.window = i % 5 == 4 ? 150 : 0;
    s.sink = i % 3 == 1 ? SINK_RANDOM : i % 7 == 3 ? SINK_HUGE : SINK_NONE;
    s.softcap = i % 6 == 5 ? 20.0 : 0.0;
    s.causal = i % 8 != 7;
    s.compressed = i % 2;
    problem_lengths(&s, 5, (int32_t[]){ 1, 3, 20, 1, 2 }, (int32_t[]){ 700, 333, 200, 0, 1 });
    return s;
}

static void run_or_fail(problem *p, const problem *owner, oct__dev_plan *plan)
{
    char why[640];
    const int bad = device_run_attn(device_check_rig(warp), p, owner, plan, why, sizeof why);
    if (bad)
        print_message("%s\n", why);
    assert_int_equal(bad, 0);
}

static void splits_agree_with_one_pass(void **state)
{
    static const uint32_t splits[] = { 1 << 20, 350, 100, 14, 1 };
    double worst = 0.0;
    (void)state;
    for (int64_t i = every / 2; i < 8; i += every) {   /* 1 is among them for an `every` of up to 3 */
        const problem_shape shape = split_shape(i);
        problem p;
        assert_int_equal(problem_make(&p, &shape), 0);
        assert_int_equal(problem_expect(&p), 0);
        float *reference = malloc(p.out.size_bytes);
        assert_non_null(reference);
        for (size_t c = 0; c < sizeof splits / sizeof splits[0]; c++) {
            oct__dev_plan plan;
            if (splits[c] == 1 && i % 4 != 1)   /* 700 splits take their time */
                continue;
            p.spec.split_tokens = splits[c];
            run_or_fail(&p, NULL, &plan);
            if (c == 0) {
                assert_int_equal(plan.n_groups[0], 0);
                memcpy(reference, p.out.at, p.out.size_bytes);
                continue;
            }
            assert_true(plan.n_groups[0] > 0 || shape.window > 0);
            for (int64_t at = 0; at < p.out_elements; at++) {
                const int64_t vector = at / shape.dim_v;
                const double v_max = p.expected.v_max[vector], difference = fabs((double)((float *)p.out.at)[at] - (double)reference[at]);
                if (!(difference <= 0.0))
                    worst = fmax(worst, difference / v_max);
            }
        }
        free(reference);
        problem_drop(&p);
    }
    print_message("worst difference: %.3g of max|V|\n", worst);
    assert_true(worst <= 1e-6);
}

static void batch_mates_do_not_change_bits(void **state)
{
    enum { SEQUENCES = 6 };
    (void)state;
    for (int64_t i = 0; i < 3; i++) {
        problem_shape s = split_shape(i);
        problem all, view;
        rng r = rng_make((uint64_t)i + 900);
        s.deterministic = 1;
        s.n_sequences = s.n_lengths = SEQUENCES;
        for (int b = 0; b < SEQUENCES; b++) {
            s.q_len[b] = b % 3 == 2 ? (int32_t)rng_between(&r, 17, 30) : (int32_t)rng_between(&r, 1, 3);
            s.q_len[b] = b == 1 ? 1 : s.q_len[b];
            s.kv_len[b] = (int32_t)rng_between(&r, b == 1 ? 1100 : 40, b == 1 ? 2300 : 300);
        }
        assert_int_equal(problem_make(&all, &s), 0);
        for (int32_t watched = 1; watched <= 2; watched++) {   /* one decode in splits, one extend */
            problem_part parts[SEQUENCES];
            float *alone = NULL;
            size_t bytes = 0;
            for (int32_t trial = 0; trial < 4; trial++) {
                const int32_t n = (int32_t[]){ 1, 2, 4, SEQUENCES }[trial];
                oct__dev_plan plan;
                for (int32_t b = 0; b < n; b++)   /* the watched one last */
                    parts[b] = problem_whole(&all, (watched + n - 1 - b) % SEQUENCES);
                assert_int_equal(problem_select(&view, &all, parts, n), 0);
                run_or_fail(&view, &all, &plan);
                const size_t row = (size_t)view.qo_indptr[n - 1] * view.spec.heads_q * view.spec.kv.dim_v;
                if (trial == 0) {
                    bytes = (size_t)parts[0].n_rows * view.spec.heads_q * view.spec.kv.dim_v * sizeof(float);
                    alone = malloc(bytes);
                    memcpy(alone, view.out.at, bytes);
                    assert_true(watched == 2 || s.window > 0 || plan.n_groups[0] == 1);
                } else {
                    assert_memory_equal((float *)view.out.at + row, alone, bytes);
                }
                problem_drop(&view);
            }
            free(alone);
        }
        problem_drop(&all);
    }
}

/* Fault I-like: one plan, lengths that change in place; rows of a batch that is mostly empty are still written. */
static void empty_batches(void **state)
{
    (void)state;
    problem_shape s = problem_plain(77);
    problem p;
    oct__dev_plan plan;
    const compare_bound bound = device_check_bound(0);
    problem_lengths(&s, 4, (int32_t[]){ 0, 2, 0, 18 }, (int32_t[]){ 0, 0, 5, 0 });
    assert_int_equal(problem_make(&p, &s), 0);
    assert_int_equal(problem_expect(&p), 0);
    run_or_fail(&p, NULL, &plan);
    const compare_verdict verdict = problem_judge(&p, &bound);
    assert_true(verdict.ok);
    problem_drop(&p);
}

int main(int argc, char **argv)
{
    warp = argc >= 2 ? (uint32_t)strtoul(argv[1], NULL, 10) : 0;
    if (argc == 3 && strncmp(argv[2], "every=", 6) == 0)
        every = strtoll(argv[2] + 6, NULL, 10);
    if ((warp != 32 && warp != 64) || argc > 3 || (argc == 3 && every < 2))
        return fprintf(stderr, "usage: device_plan 32|64 [every=N]\n"), 2;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plans_cover_rows_and_keys),
        cmocka_unit_test(plans_follow_lengths),
        cmocka_unit_test(capacities_hold),
        cmocka_unit_test(many_sequences),
        cmocka_unit_test(splits_agree_with_one_pass),
        cmocka_unit_test(batch_mates_do_not_change_bits),
        cmocka_unit_test(empty_batches),
    };
    const int n_failed = cmocka_run_group_tests(tests, NULL, NULL);
    if (n_failed != 0)
        print_error("plan_step, warp %u: %d tests failed\n", warp, n_failed);
    return n_failed;
}
