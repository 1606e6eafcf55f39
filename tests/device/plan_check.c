/* plan_check.c: see plan_check.h. */
#include "device/plan_check.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "device/device_check.h"

void plan_case_drop(plan_case *s)
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

oct_attn_spec plan_case_spec(int64_t seed)
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

void plan_case_run(uint32_t warp, plan_case *s, const oct__dev_step_limits *limits, double scale)
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
static void check_sequence(const plan_case *s, uint32_t b, int op, uint32_t *at, uint32_t *group, int64_t *partial)
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

void plan_case_check(const plan_case *s)
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

void plan_case_fill(plan_case *s, rng *r, uint32_t n, int32_t longest)
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

oct__dev_step_limits plan_case_limits(const plan_case *s)
{
    oct__dev_step_limits limits = { s->n, s->indptr[s->n], 1 };
    for (uint32_t b = 0; b < s->n; b++)
        limits.n_keys = s->kv_len[b] > limits.n_keys ? s->kv_len[b] : limits.n_keys;
    return limits;
}
