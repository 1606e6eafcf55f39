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

enum { SEQUENCES_MAX = 70000, TASKS_MAX = 1 << 18 };

static uint32_t warp;

/* ---- plans on their own ------------------------------------------------------------------------------------------------------------- */

typedef struct step {
    oct_attn_spec spec;
    uint32_t n;
    int32_t *q_len, *kv_len, *indptr;
    oct__dev_workspace w;
    oct__dev_plan plan;
    oct__dev_task *tasks[OCT__DEV_OPS];
    oct__dev_group *groups[OCT__DEV_OPS];
    int32_t decode_rows_max;
} step;

static void drop_step(step *s)
{
    free(s->q_len);
    free(s->kv_len);
    free(s->indptr);
    for (int i = 0; i < OCT__DEV_OPS; i++) {
        free(s->tasks[i]);
        free(s->groups[i]);
    }
    memset(s, 0, sizeof *s);
}

static oct_attn_spec spec_of(int64_t seed)
{
    problem p;
    problem_shape shape = problem_plain(seed);
    shape.heads = 1 + seed % 3;
    shape.heads_q = shape.heads * (int64_t[]){ 1, 4, 7, 20 }[seed % 4];
    shape.window = seed % 3 == 1 ? 100 : 0;
    shape.causal = seed % 5 != 4;
    shape.deterministic = seed % 4 == 3;
    shape.split_tokens = seed % 6 == 5 ? 50 : 0;
    assert_int_equal(problem_make(&p, &shape), 0);
    const oct_attn_spec spec = p.spec;
    problem_drop(&p);
    return spec;
}

/* Runs plan_step over the step's lengths. capacity: of sequences and rows, at least the step's. scale: capacities are multiplied by it. */
static void run_plan(step *s, const oct__dev_step_limits *limits, double scale)
{
    device_rig *rig = device_check_rig(warp);
    oct_attn_batch batch;
    oct__dev_batch packed;
    oct__plan_params params;
    oct__dev_launch launch;
    simt_report report;
    memset(&batch, 0, sizeof batch);
    assert_true(oct__dev_workspace_of(&rig->chip, &s->spec, limits, &s->w));
    for (int i = 0; i < OCT__DEV_OPS; i++) {
        s->w.max_tasks[i] = (uint32_t)(s->w.max_tasks[i] * scale);
        s->w.max_partials[i] = (uint32_t)(s->w.max_partials[i] * scale);
    }
    batch.n_sequences = s->n;
    void *indptr = simt_alloc(rig->device, (s->n + 1) * sizeof(int32_t), "qo_indptr"), *lens = simt_alloc(rig->device, s->n * sizeof(int32_t), "seq_lens");
    unsigned char *memory = simt_alloc(rig->device, s->w.partials_at[0], "workspace");   /* nothing is attended to */
    assert_true(indptr != NULL && lens != NULL && memory != NULL);
    simt_copy_in(rig->device, indptr, s->indptr, (s->n + 1) * sizeof(int32_t));
    simt_copy_in(rig->device, lens, s->kv_len, s->n * sizeof(int32_t));
    batch.qo_indptr = indptr;
    batch.block_table = indptr;   /* not looked at */
    batch.seq_lens = lens;
    oct__dev_pack_batch(&s->spec, &batch, &packed);
    oct__dev_pack_plan(&rig->chip, &s->spec, &packed, &s->w, memory, &params, &launch);
    s->decode_rows_max = params.decode_rows_max;
    const simt_fault fault = device_launch(rig, &launch, &params, &report);
    if (fault != SIMT_OK)
        print_message("%s\n", report.text);
    assert_int_equal(fault, SIMT_OK);
    simt_copy_out(rig->device, &s->plan, memory + s->w.plan_at, sizeof s->plan);
    for (int i = 0; i < OCT__DEV_OPS; i++) {
        free(s->tasks[i]);
        free(s->groups[i]);
        s->tasks[i] = calloc(s->plan.n_tasks[i] + 1, sizeof *s->tasks[i]);
        s->groups[i] = calloc(s->plan.n_groups[i] + 1, sizeof *s->groups[i]);
        assert_true(s->plan.n_tasks[i] <= s->w.max_tasks[i] && s->plan.n_groups[i] <= s->w.max_groups[i] && s->plan.n_partials[i] <= s->w.max_partials[i]);
        simt_copy_out(rig->device, s->tasks[i], memory + s->w.tasks_at[i], s->plan.n_tasks[i] * sizeof *s->tasks[i]);
        simt_copy_out(rig->device, s->groups[i], memory + s->w.groups_at[i], s->plan.n_groups[i] * sizeof *s->groups[i]);
    }
    simt_free(rig->device, memory);
    simt_free(rig->device, lens);
    simt_free(rig->device, indptr);
}

/* One sequence's tasks, found at *at: rows in order, each row's keys without gap or overlap over all that any row of the tile sees. */
static void check_sequence(const step *s, uint32_t b, int op, uint32_t *at, uint32_t *group, int64_t *partial)
{
    const int32_t n_rows = s->indptr[b + 1] - s->indptr[b], kv_len = s->kv_len[b];
    for (int32_t r = 0; r < n_rows;) {
        assert_true(*at < s->plan.n_tasks[op]);
        const oct__dev_task *first = &s->tasks[op][*at];
        const int32_t n = first->n_rows, pos0 = kv_len - n_rows + r;
        const int64_t low = s->spec.window_tokens > 0 ? (int64_t)pos0 - s->spec.window_tokens + 1 : 0;
        const int64_t high = s->spec.causal ? (int64_t)pos0 + n : kv_len;
        int64_t key0 = low > 0 ? low : 0, key1 = high < kv_len ? high : kv_len;
        if (key0 >= key1)
            key0 = key1 = 0;
        assert_true(n >= 1 && n <= (int32_t)s->w.shape[op].tile_rows && (n == (int32_t)s->w.shape[op].tile_rows || r + n == n_rows));
        assert_true(first->n_splits >= 1 && *at + (uint32_t)first->n_splits <= s->plan.n_tasks[op]);
        for (int32_t i = 0; i < first->n_splits; i++) {
            const oct__dev_task *t = first + i;
            assert_true(t->sequence == (int32_t)b && t->row0 == s->indptr[b] + r && t->n_rows == n && t->pos0 == pos0 && t->n_splits == first->n_splits);
            assert_true(t->key0 == (i == 0 ? key0 : (t - 1)->key1) && (t->key1 > t->key0 || key0 == key1));
            if (t->n_splits > 1)
                assert_true(t->partial == *partial + i);
        }
        assert_true(first[first->n_splits - 1].key1 == key1);
        if (first->n_splits > 1) {
            const oct__dev_group *g = &s->groups[op][(*group)++];
            assert_true(g->row0 == first->row0 && g->n_rows == n && g->n_splits == first->n_splits && g->partial == *partial);
            *partial += first->n_splits;
        }
        *at += (uint32_t)first->n_splits;
        r += n;
    }
}

static void check_step(const step *s)
{
    for (int op = 0; op < OCT__DEV_OPS; op++) {
        uint32_t at = 0, group = 0;
        int64_t partial = 0;
        for (uint32_t b = 0; b < s->n; b++)
            if ((s->indptr[b + 1] - s->indptr[b] <= s->decode_rows_max) == (op == OCT__DEV_DECODE))
                check_sequence(s, b, op, &at, &group, &partial);
        assert_int_equal(at, s->plan.n_tasks[op]);
        assert_int_equal(group, s->plan.n_groups[op]);
        assert_int_equal(partial, s->plan.n_partials[op]);
    }
}

static void fill_step(step *s, rng *r, uint32_t n, int32_t longest)
{
    free(s->q_len);
    free(s->kv_len);
    free(s->indptr);
    s->n = n;
    s->q_len = calloc(n + 1, sizeof *s->q_len);
    s->kv_len = calloc(n + 1, sizeof *s->kv_len);
    s->indptr = calloc(n + 1, sizeof *s->indptr);
    for (uint32_t b = 0; b < n; b++) {
        s->kv_len[b] = (int32_t)(rng_one_in(r, 5) ? rng_below(r, longest) : rng_below(r, 50));
        s->q_len[b] = (int32_t)(rng_one_in(r, 3) ? rng_below(r, 60) : rng_one_in(r, 8) ? 0 : 1);
        s->indptr[b + 1] = s->indptr[b] + s->q_len[b];
    }
}

static oct__dev_step_limits limits_of(const step *s)
{
    oct__dev_step_limits limits = { s->n, s->indptr[s->n], 1 };
    for (uint32_t b = 0; b < s->n; b++)
        limits.n_keys = s->kv_len[b] > limits.n_keys ? s->kv_len[b] : limits.n_keys;
    return limits;
}

static void plans_cover_rows_and_keys(void **state)
{
    (void)state;
    int split = 0;
    for (int64_t seed = 0; seed < 60; seed++) {
        step s = { .spec = spec_of(seed) };
        rng r = rng_make((uint64_t)seed + 7000);
        fill_step(&s, &r, (uint32_t)rng_between(&r, 1, seed % 10 == 0 ? 2000 : 40), seed % 7 == 0 ? 1 << 20 : 5000);
        const oct__dev_step_limits limits = limits_of(&s);
        run_plan(&s, &limits, 1.0);
        assert_int_equal(s.plan.status, OCT__DEV_PLAN_OK);
        check_step(&s);
        split += s.plan.n_groups[0] > 0;
        drop_step(&s);
    }
    assert_true(split > 20);
}

/* A graph's capacity is for its largest step: each smaller one fits. And lengths are read when the kernel runs, so nothing else changes. */
static void plans_follow_lengths(void **state)
{
    (void)state;
    step s = { .spec = spec_of(1) };
    rng r = rng_make(8000);
    const oct__dev_step_limits limits = { 64, 64 * 60, 100000 };
    for (int i = 0; i < 12; i++) {
        fill_step(&s, &r, i % 2 ? 64 : (uint32_t)rng_between(&r, 1, 64), 100000);
        run_plan(&s, &limits, 1.0);
        assert_int_equal(s.plan.status, OCT__DEV_PLAN_OK);
        check_step(&s);
    }
    drop_step(&s);
}

/* Where splits do not fit they grow, and the plan says so; where not even whole rows fit nothing runs. */
static void capacities_hold(void **state)
{
    int n_full = 0;
    (void)state;
    for (int64_t seed = 0; seed < 12; seed++) {
        step s = { .spec = spec_of(seed) };
        rng r = rng_make((uint64_t)seed + 9000);
        fill_step(&s, &r, 30, 20000);
        oct__dev_step_limits limits = limits_of(&s);
        limits.n_rows += 100;
        run_plan(&s, &limits, 0.8);
        if (s.plan.status != OCT__DEV_PLAN_FULL)
            check_step(&s);
        run_plan(&s, &limits, 0.03 / device_check_rig(warp)->chip.n_units);   /* capacities grow with them */
        if (s.plan.status != OCT__DEV_PLAN_FULL) {   /* a hundredth of very many */
            assert_true(s.spec.split_tokens > 0 || s.spec.deterministic);
            check_step(&s);
            drop_step(&s);
            continue;
        }
        n_full++;
        assert_true(s.plan.n_tasks[0] + s.plan.n_tasks[1] + s.plan.n_groups[0] + s.plan.n_groups[1] == 0);
        drop_step(&s);
    }
    assert_true(n_full >= 6);
    /* Fixed splits of 50 keys, room for a tenth of them. */
    step s = { .spec = spec_of(5) };
    rng r = rng_make(9100);
    fill_step(&s, &r, 10, 3000);
    for (uint32_t b = 0; b < s.n; b++)
        s.kv_len[b] = 3000;
    const oct__dev_step_limits limits = limits_of(&s);
    run_plan(&s, &limits, 0.1);
    assert_int_equal(s.plan.status, OCT__DEV_PLAN_COARSER);
    check_step(&s);
    drop_step(&s);
}

/* Fault E3: more sequences than one grid axis takes; and the longest one is what decides how keys are split. */
static void many_sequences(void **state)
{
    (void)state;
    step s = { .spec = spec_of(0) };
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
    const oct__dev_step_limits limits = limits_of(&s);
    run_plan(&s, &limits, 1.0);
    assert_int_equal(s.plan.status, OCT__DEV_PLAN_OK);
    assert_true(s.plan.n_tasks[0] >= SEQUENCES_MAX && s.plan.n_groups[0] == 1 && s.plan.n_partials[0] >= 8);
    check_step(&s);
    drop_step(&s);
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
    for (int64_t i = 0; i < 8; i++) {
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
    warp = argc == 2 ? (uint32_t)strtoul(argv[1], NULL, 10) : 0;
    if (warp != 32 && warp != 64)
        return fprintf(stderr, "usage: device_plan 32|64\n"), 2;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plans_cover_rows_and_keys),
        cmocka_unit_test(plans_follow_lengths),
        cmocka_unit_test(capacities_hold),
        cmocka_unit_test(many_sequences),
        cmocka_unit_test(splits_agree_with_one_pass),
        cmocka_unit_test(batch_mates_do_not_change_bits),
        cmocka_unit_test(empty_batches),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
