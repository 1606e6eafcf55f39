/* test_attn_merge.c: attn_merge at one warp width against the oracle: random parts, empty parts with garbage, strides. Arguments: 32 or 64; 32 sm90a: Hopper's own. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "device/device_check.h"

enum { BLANK = 0x7FC0DEAD, CASES = 300 };

static uint32_t warp, is_sm90a;

typedef struct merge_case {
    device_merge m;
    guard out, lse, merged, lse_merged;
    oracle_result expected;
} merge_case;

static size_t extent(int64_t a, int64_t a_stride, int64_t b, int64_t b_stride, int64_t c, int64_t c_stride, int64_t inner)
{
    return a == 0 || b == 0 || c == 0 ? 0 : (size_t)((a - 1) * a_stride + (b - 1) * b_stride + (c - 1) * c_stride + inner);
}

static void set_strides(oct_attn_merge_args *a, rng *r)
{
    const int64_t gap = rng_one_in(r, 2) ? 0 : rng_between(r, 1, 9), dim = a->dim;
    if (rng_one_in(r, 3)) {   /* head-major, as some attention kernels leave them */
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

/* An empty part's out is garbage. */
static void fill_parts(merge_case *c, rng *r)
{
    static const double empties[] = { -INFINITY, -INFINITY, -INFINITY, INFINITY, NAN };
    static const double garbage[] = { NAN, INFINITY, -INFINITY, 3e38, 0.0 };
    const oct_attn_merge_args *a = &c->m.args;
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

static int make_case(merge_case *c, int64_t seed)
{
    static const uint32_t dims[] = { 16, 24, 64, 80, 128, 256, 512, 1, 7 };
    rng r = rng_make((uint64_t)seed + 6000);
    device_merge *m = &c->m;
    oct_attn_merge_args *a = &m->args;
    memset(c, 0, sizeof *c);
    a->struct_size = sizeof *a;
    a->n_parts = (uint32_t)rng_between(&r, 1, rng_one_in(&r, 5) ? 70 : 4);
    a->rows = rng_between(&r, 0, 9);
    a->heads = (uint32_t)rng_between(&r, 1, 6);
    a->dim = RNG_PICK(&r, dims);
    set_strides(a, &r);
    m->out_elements = extent(a->n_parts, a->out_part_stride, a->rows, a->out_row_stride, a->heads, a->out_head_stride, a->dim);
    m->lse_elements = extent(a->n_parts, a->lse_part_stride, a->rows, a->lse_row_stride, a->heads, a->lse_head_stride, 1);
    m->merged_elements = extent(1, 0, a->rows, a->merged_row_stride, a->heads, a->merged_head_stride, a->dim);
    m->lse_merged_elements = extent(1, 0, a->rows, a->lse_merged_row_stride, a->heads, a->lse_merged_head_stride, 1);
    const size_t vectors = (size_t)(a->rows * a->heads) + 1;
    c->expected.out = calloc(vectors * a->dim, sizeof(double));
    c->expected.lse = calloc(vectors, sizeof(double));
    c->expected.v_max = calloc(vectors, sizeof(double));
    if (c->expected.out == NULL || c->expected.lse == NULL || c->expected.v_max == NULL ||
        guard_make(&c->out, m->out_elements * sizeof(float), GUARD_END) != 0 || guard_make(&c->lse, m->lse_elements * sizeof(float), GUARD_END) != 0 ||
        guard_make(&c->merged, m->merged_elements * sizeof(float), GUARD_END) != 0 ||
        guard_make(&c->lse_merged, m->lse_merged_elements * sizeof(float), GUARD_END) != 0)
        return -1;
    memset(c->out.at, 0xFF, c->out.size_bytes);
    memset(c->lse.at, 0xFF, c->lse.size_bytes);
    a->out = c->out.at;
    a->lse = c->lse.at;
    a->merged = c->merged.at;
    a->lse_merged = rng_one_in(&r, 4) ? NULL : c->lse_merged.at;
    fill_parts(c, &r);
    oracle_merge(a, c->expected.out, c->expected.lse, c->expected.v_max);
    for (size_t i = 0; i < m->merged_elements; i++)
        oracle_put_code(OCT_DTYPE_F32, c->merged.at, (int64_t)i, BLANK);
    for (size_t i = 0; i < m->lse_merged_elements; i++)
        oracle_put_code(OCT_DTYPE_F32, c->lse_merged.at, (int64_t)i, BLANK);
    return 0;
}

/* The elements between rows are as blank as before. */
static int gaps_are_blank(const merge_case *c)
{
    const oct_attn_merge_args *a = &c->m.args;
    unsigned char *own = calloc(c->m.merged_elements + 1, 1);
    int clean = own != NULL;
    for (int64_t row = 0; row < a->rows && clean; row++)
        for (int64_t h = 0; h < a->heads; h++)
            memset(own + row * a->merged_row_stride + h * a->merged_head_stride, 1, a->dim);
    for (size_t i = 0; i < c->m.merged_elements && clean; i++)
        clean = own[i] || oracle_code_at(OCT_DTYPE_F32, c->merged.at, (int64_t)i) == BLANK;
    free(own);
    return clean;
}

static int64_t run_case(void *arg, int64_t index)
{
    merge_case c;
    char why[640], name[32];
    (void)arg;
    isolate_doing("attn_merge%s, warp %u", is_sm90a ? "_sm90a" : "", warp);
    isolate_repeat("device_attn_merge %u, case %lld", warp, (long long)index);
    oracle_init();
    if (make_case(&c, index) != 0)
        return 1;
    const oct_attn_merge_args *a = &c.m.args;
    int64_t failures = 1;
    device_rig *rig = device_check_rig(warp);
    rig->chip.has_sm90a = is_sm90a;
    if (device_run_merge(rig, &c.m, why, sizeof why) != 0) {
        isolate_fail("%s", why);
    } else {
        const compare_output output = { OCT_DTYPE_F32, a->merged, a->merged_row_stride, a->merged_head_stride, 1.0, a->lse_merged,
                                        a->lse_merged_row_stride, a->lse_merged_head_stride, a->rows, a->heads, a->dim };
        const compare_bound bound = { 1e-6, 0.9999, 1.0, 1e-6, 1e-6, 0.0 };   /* merging adds at most one part in a million */
        const compare_verdict verdict = compare_judge(&output, &c.expected, &bound);
        snprintf(name, sizeof name, "attn_merge%s/%u", is_sm90a ? "_sm90a" : "", warp);
        isolate_ran(name, verdict.max_error);
        failures = !verdict.ok || !gaps_are_blank(&c);
        if (failures)
            isolate_fail("%s", verdict.ok ? "something was written between the rows" : verdict.text);
    }
    drop_case(&c);
    return failures;
}

static void random_merges(void **state)
{
    (void)state;
    assert_int_equal(isolate_run("merge", CASES, 30, run_case, NULL), 0);
    isolate_report();
}

int main(int argc, char **argv)
{
    warp = argc >= 2 ? (uint32_t)strtoul(argv[1], NULL, 10) : 0;
    is_sm90a = argc == 3 && strcmp(argv[2], "sm90a") == 0;
    if ((warp != 32 && warp != 64) || (is_sm90a && warp != 32) || argc > 2 + (int)is_sm90a)
        return fprintf(stderr, "usage: device_attn_merge 32|64, or 32 sm90a\n"), 2;
    const struct CMUnitTest tests[] = { cmocka_unit_test(random_merges) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
