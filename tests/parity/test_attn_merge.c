/* test_attn_merge.c: every row of attn_merge, and the public door, against the oracle: random parts, empty parts with garbage, strides. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "parity/compare.h"
#include "parity/guard.h"
#include "parity/isolate.h"
#include "parity/problem.h"
#include "parity/rng.h"
#include "parity/roster.h"

typedef struct merge_case {
    oct_attn_merge_args args;
    guard out, lse, merged, lse_merged;
    oracle_result expected;
    int64_t merged_elements, lse_elements;
} merge_case;

enum { BLANK = 0x7FC0DEAD };

static int64_t extent(int64_t a, int64_t a_stride, int64_t b, int64_t b_stride, int64_t c, int64_t c_stride, int64_t inner)
{
    return a == 0 || b == 0 || c == 0 ? 0 : (a - 1) * a_stride + (b - 1) * b_stride + (c - 1) * c_stride + inner;
}

static void set_strides(oct_attn_merge_args *a, rng *r)
{
    const int64_t gap = rng_one_in(r, 2) ? 0 : rng_between(r, 1, 9), dim = a->dim;
    if (rng_one_in(r, 3)) {   /* head-major parts and lse, as some attention kernels leave them */
        a->out_row_stride = dim + gap;
        a->out_head_stride = a->rows * a->out_row_stride + gap;
        a->out_part_stride = a->heads * a->out_head_stride + gap;
        a->lse_row_stride = 1 + gap;
        a->lse_head_stride = a->rows * a->lse_row_stride;
        a->lse_part_stride = a->heads * a->lse_head_stride;
    } else {
        a->out_head_stride = dim + gap;
        a->out_row_stride = a->heads * a->out_head_stride + gap;
        a->out_part_stride = a->rows * a->out_row_stride + gap;
        a->lse_head_stride = 1;
        a->lse_row_stride = a->heads + gap;
        a->lse_part_stride = a->rows * a->lse_row_stride;
    }
    a->merged_head_stride = dim + gap;
    a->merged_row_stride = a->heads * a->merged_head_stride + gap;
    a->lse_merged_head_stride = 1 + gap;
    a->lse_merged_row_stride = a->heads * a->lse_merged_head_stride;
}

/* Values of part i, row r, head h. An empty part's out is garbage. */
static void fill_parts(merge_case *c, rng *r)
{
    static const double empties[] = { -INFINITY, -INFINITY, -INFINITY, INFINITY, NAN };
    static const double garbage[] = { NAN, INFINITY, -INFINITY, 3e38, 0.0 };
    const oct_attn_merge_args *a = &c->args;
    const int64_t n_empty = rng_below(r, 4);   /* in four */
    const double spread = RNG_PICK(r, ((const double[]){ 0.0, 1.0, 20.0, 1000.0 }));
    for (int64_t i = 0; i < a->n_parts; i++)
        for (int64_t row = 0; row < a->rows; row++)
            for (int64_t h = 0; h < a->heads; h++) {
                float *lse = (float *)c->lse.at + i * a->lse_part_stride + row * a->lse_row_stride + h * a->lse_head_stride;
                float *out = (float *)c->out.at + i * a->out_part_stride + row * a->out_row_stride + h * a->out_head_stride;
                const int empty = rng_below(r, 4) < n_empty;
                *lse = (float)(empty ? RNG_PICK(r, empties) : spread * rng_normal(r));
                for (uint32_t d = 0; d < a->dim; d++)
                    out[d] = (float)(empty ? RNG_PICK(r, garbage) : rng_normal(r));
            }
}

static int make_case(merge_case *c, int64_t seed)
{
    static const uint32_t dims[] = { 16, 24, 64, 80, 128, 256, 512, 1, 7 };
    rng r = rng_make((uint64_t)seed + 5000);
    oct_attn_merge_args *a = &c->args;
    memset(c, 0, sizeof *c);
    a->struct_size = sizeof *a;
    a->n_parts = (uint32_t)rng_between(&r, 1, rng_one_in(&r, 5) ? 40 : 4);
    a->rows = rng_between(&r, 0, 9);
    a->heads = (uint32_t)rng_between(&r, 1, 6);
    a->dim = RNG_PICK(&r, dims);
    set_strides(a, &r);
    const int64_t out = extent(a->n_parts, a->out_part_stride, a->rows, a->out_row_stride, a->heads, a->out_head_stride, a->dim);
    const int64_t lse = extent(a->n_parts, a->lse_part_stride, a->rows, a->lse_row_stride, a->heads, a->lse_head_stride, 1);
    c->merged_elements = extent(1, 0, a->rows, a->merged_row_stride, a->heads, a->merged_head_stride, a->dim);
    c->lse_elements = extent(1, 0, a->rows, a->lse_merged_row_stride, a->heads, a->lse_merged_head_stride, 1);
    const size_t vectors = (size_t)(a->rows * a->heads) + 1;
    c->expected.out = calloc(vectors * a->dim, sizeof(double));
    c->expected.lse = calloc(vectors, sizeof(double));
    c->expected.v_max = calloc(vectors, sizeof(double));
    if (c->expected.out == NULL || c->expected.lse == NULL || c->expected.v_max == NULL ||
        guard_make(&c->out, (size_t)out * sizeof(float), GUARD_END) != 0 || guard_make(&c->lse, (size_t)lse * sizeof(float), GUARD_END) != 0 ||
        guard_make(&c->merged, (size_t)c->merged_elements * sizeof(float), GUARD_END) != 0 ||
        guard_make(&c->lse_merged, (size_t)c->lse_elements * sizeof(float), GUARD_END) != 0)
        return -1;
    memset(c->out.at, 0xFF, c->out.size_bytes);
    a->out = c->out.at;
    a->lse = c->lse.at;
    a->merged = c->merged.at;
    a->lse_merged = rng_one_in(&r, 4) ? NULL : c->lse_merged.at;
    fill_parts(c, &r);
    oracle_merge(a, c->expected.out, c->expected.lse, c->expected.v_max);
    return 0;
}

static void drop_case(merge_case *c)
{
    guard_drop(&c->out);
    guard_drop(&c->lse);
    guard_drop(&c->merged);
    guard_drop(&c->lse_merged);
    free(c->expected.out);
    free(c->expected.lse);
    free(c->expected.v_max);
}

static void blank(merge_case *c)
{
    for (int64_t i = 0; i < c->merged_elements; i++)
        oracle_put_code(OCT_DTYPE_F32, c->merged.at, i, BLANK);
    for (int64_t i = 0; i < c->lse_elements; i++)
        oracle_put_code(OCT_DTYPE_F32, c->lse_merged.at, i, BLANK);
}

static int64_t judge(merge_case *c, double *worst)
{
    const oct_attn_merge_args *a = &c->args;
    const compare_output output = { OCT_DTYPE_F32, a->merged, a->merged_row_stride, a->merged_head_stride, 1.0, a->lse_merged,
                                    a->lse_merged_row_stride, a->lse_merged_head_stride, a->rows, a->heads, a->dim };
    const compare_bound bound = { 1e-6, 0.9999, 1.0, 1e-6, 1e-6, 0.0 };   /* merging adds at most one part in a million */
    const compare_verdict verdict = compare_judge(&output, &c->expected, &bound);
    *worst = verdict.max_error;
    if (!verdict.ok)
        isolate_fail("%s", verdict.text);
    if (!guard_intact(&c->merged) || !guard_intact(&c->lse_merged)) {
        isolate_fail("memory around the results was written");
        return 1;
    }
    return !verdict.ok;
}

static int64_t run_case(void *arg, int64_t index)
{
    merge_case c;
    uint32_t n;
    int64_t failures = 0;
    double worst = 0.0;
    (void)arg;
    isolate_doing("making the case");
    isolate_repeat("parity_attn_merge, case %lld", (long long)index);
    oracle_init();
    if (make_case(&c, index) != 0)
        return 1;
    const oct__variant *all = oct__variants(&n);
    for (uint32_t i = 0; i < n; i++) {
        if (all[i].op != OCT__OP_attn_merge || !roster_machine_can(&all[i]))
            continue;
        isolate_doing("%s", all[i].full_name);
        blank(&c);
        const int64_t middle = c.args.rows / 2;   /* two shares of the rows, the later one first */
        all[i].merge(&c.args, middle, c.args.rows);
        all[i].merge(&c.args, 0, middle);
        failures += judge(&c, &worst);
        isolate_ran(all[i].full_name, worst);
    }
    isolate_doing("oct_attn_merge");
    blank(&c);
    const oct_status status = oct_attn_merge(problem_context(2), &c.args);
    if (status != OCT_OK) {
        isolate_fail("%s", oct_status_name(status));
        failures++;
    } else {
        failures += judge(&c, &worst);
    }
    drop_case(&c);
    return failures;
}

static void random_merges(void **state)
{
    (void)state;
    assert_int_equal(isolate_run("merge", 2000, 30, run_case, NULL), 0);
    isolate_report();
    assert_true(roster_all_ran(OCT__OP_attn_merge, 2000));
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(random_merges) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
