/* test_merge.c: the merge of partial results, by every row that this machine can run: weights by lse, empty parts neutral whatever they hold, strides, in
 * place, more parts than have their weights made at once. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "parity/roster.h"

static const oct__variant *row; /* under test */

/* One row and head, contiguous parts of `dim`. */
static void merge(uint32_t n_parts, uint32_t dim, const float *out, const float *lse, float *merged, float *lse_merged)
{
    const oct_attn_merge_args args = { .struct_size = sizeof args, .n_parts = n_parts, .rows = 1, .heads = 1, .dim = dim, .out = out,
                                       .out_part_stride = dim, .lse = lse, .lse_part_stride = 1, .merged = merged,
                                       .lse_merged = lse_merged };
    row->merge(&args, 0, 1);
}

static void test_weights(void **state)
{
    (void)state;
    /* Three parts of 1, 2 and 5 keys of weight 1: their means 1, 10, 100 merge into (1 + 20 + 500) / 8. */
    const float out[3] = { 1.0f, 10.0f, 100.0f };
    const float lse[3] = { 0.0f, logf(2.0f), logf(5.0f) };
    float merged, merged_lse;
    merge(3, 1, out, lse, &merged, &merged_lse);
    assert_true(fabsf(merged - 521.0f / 8.0f) < 1e-4f);
    assert_true(fabsf(merged_lse - logf(8.0f)) < 1e-6f);
}

/* Far lse: exp of neither overflows. */
static void test_far_apart(void **state)
{
    (void)state;
    const float out[2] = { 3.0f, 4.0f }, lse[2] = { -1000.0f, 1000.0f };
    float merged, merged_lse;
    merge(2, 1, out, lse, &merged, &merged_lse);
    assert_true(merged == 4.0f && merged_lse == 1000.0f);
}

static void test_empty_parts(void **state)
{
    (void)state;
    const float nothing[] = { -INFINITY, INFINITY, NAN };
    for (size_t a = 0; a < 3; a++) {
        float out[2] = { NAN, 5.0f }, lse[2] = { nothing[a], -3.0f }, merged, merged_lse;
        merge(2, 1, out, lse, &merged, &merged_lse);
        assert_true(merged == 5.0f && merged_lse == -3.0f);
        out[0] = 5.0f, out[1] = INFINITY, lse[0] = -3.0f, lse[1] = nothing[a];
        merge(2, 1, out, lse, &merged, &merged_lse);
        assert_true(merged == 5.0f && merged_lse == -3.0f);
        for (size_t b = 0; b < 3; b++) {
            lse[0] = nothing[b], out[0] = NAN;
            merge(2, 1, out, lse, &merged, &merged_lse);
            assert_true(merged == 0.0f && merged_lse == -INFINITY);
        }
    }
    const float unread = NAN;
    float merged = NAN, merged_lse = NAN;
    merge(0, 1, &unread, &unread, &merged, &merged_lse);
    assert_true(merged == 0.0f && merged_lse == -INFINITY);
}

/* Rows and heads with gaps, a dim that is no multiple of anything, no lse asked for, and the first part as the destination. */
static void test_strides_in_place(void **state)
{
    (void)state;
    enum { PARTS = 3, ROWS = 4, HEADS = 2, DIM = 71, HEAD = 80, ROW = 170, PART = 700 };
    static float out[PARTS * PART], want[ROWS][HEADS][DIM];
    float lse[PARTS][ROWS][HEADS + 1];
    for (int i = 0; i < PARTS * PART; i++) {
        out[i] = sinf((float)i);
    }
    for (int r = 0; r < ROWS; r++) {
        for (int h = 0; h < HEADS; h++) {
            double z = 0.0;
            for (int p = 0; p < PARTS; p++) {
                lse[p][r][h] = (float)(p - r + 2 * h);
                z += exp((double)lse[p][r][h]);
            }
            for (int d = 0; d < DIM; d++) {
                double sum = 0.0;
                for (int p = 0; p < PARTS; p++) {
                    sum += exp((double)lse[p][r][h]) / z * (double)out[p * PART + r * ROW + h * HEAD + d];
                }
                want[r][h][d] = (float)sum;
            }
        }
    }
    const oct_attn_merge_args args = { .struct_size = sizeof args, .n_parts = PARTS, .rows = ROWS, .heads = HEADS, .dim = DIM,
                                       .out = out, .out_part_stride = PART, .out_row_stride = ROW, .out_head_stride = HEAD,
                                       .lse = &lse[0][0][0], .lse_part_stride = ROWS * (HEADS + 1), .lse_row_stride = HEADS + 1,
                                       .lse_head_stride = 1, .merged = out, .merged_row_stride = ROW, .merged_head_stride = HEAD };
    const float gap = out[DIM], untouched = out[3 * ROW];
    row->merge(&args, 0, 3);
    assert_true(out[DIM] == gap);
    assert_true(out[3 * ROW] == untouched); /* row 3 belongs to another call */
    row->merge(&args, 3, 4);
    for (int r = 0; r < ROWS; r++) {
        for (int h = 0; h < HEADS; h++) {
            for (int d = 0; d < DIM; d++) {
                assert_true(fabsf(out[r * ROW + h * HEAD + d] - want[r][h][d]) <= 1e-6f);
            }
        }
    }
}

/* 150 parts of 4 to 200 dims, every third empty, the first one and one of the last as the destination; against sums in f64 of another order. */
static void test_many_parts(void **state)
{
    (void)state;
    enum { PARTS = 150, DIM_MOST = 200 };
    static const uint32_t dims[] = { 4, 64, 71, 128, 200 };
    static float out[PARTS][DIM_MOST];
    for (size_t c = 0; c < 2 * sizeof(dims) / sizeof(dims[0]); c++) {
        const uint32_t dim = dims[c / 2], to = c % 2 == 0 ? 0 : PARTS - 2;
        float lse[PARTS], want[DIM_MOST];
        double z = 0.0;
        for (int p = 0; p < PARTS; p++) {
            lse[p] = p % 3 == 2 ? -INFINITY : 5.0f * sinf((float)(7 * p + 1));
            z += exp((double)lse[p]);
            for (uint32_t d = 0; d < dim; d++) {
                out[p][d] = p % 3 == 2 ? NAN : sinf((float)((uint32_t)p * dim + d));
            }
        }
        for (uint32_t d = 0; d < dim; d++) {
            double sum = 0.0;
            for (int p = PARTS - 1; p >= 0; p--) {
                sum += p % 3 == 2 ? 0.0 : exp((double)lse[p]) * (double)out[p][d];
            }
            want[d] = (float)(sum / z);
        }
        const oct_attn_merge_args args = { .struct_size = sizeof args, .n_parts = PARTS, .rows = 1, .heads = 1, .dim = dim, .out = out[0],
                                           .out_part_stride = DIM_MOST, .lse = lse, .lse_part_stride = 1, .merged = out[to] };
        const float behind = out[to][dim % DIM_MOST];
        row->merge(&args, 0, 1);
        for (uint32_t d = 0; d < dim; d++) {
            assert_true(fabsf(out[to][d] - want[d]) <= 3e-7f);
        }
        assert_true(dim == DIM_MOST || memcmp(&out[to][dim], &behind, sizeof behind) == 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_weights),           cmocka_unit_test(test_far_apart),  cmocka_unit_test(test_empty_parts),
        cmocka_unit_test(test_strides_in_place), cmocka_unit_test(test_many_parts),
    };
    uint32_t n;
    const oct__variant *const all = oct__variants(&n);
    int failures = 0, n_rows = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (all[i].op != OCT__OP_attn_merge) {
            continue;
        }
        if (!roster_machine_can(&all[i])) {
            printf("skipped: %s, this machine can't\n", all[i].full_name);
            continue;
        }
        printf("%s\n", all[i].full_name);
        row = &all[i];
        n_rows++;
        failures += cmocka_run_group_tests(tests, NULL, NULL);
    }
    return failures + (n_rows == 0);
}
