/* fault_shape.c: head dims that differ or are odd, ratios of heads that are no power of two. */
#include <math.h>

#include "faults/faults.h"

/* ---- G1 ------------------------------------------------------------------------------------------------------- */

static int64_t run_unequal(void *arg, int64_t index)
{
    static const uint32_t dtypes[] = { OCT_DTYPE_E4M3FN, OCT_DTYPE_E5M2, OCT_DTYPE_E4M3FNUZ, OCT_DTYPE_BF16 };
    static const int64_t dims[][2] = { { 192, 128 }, { 128, 192 }, { 64, 256 }, { 256, 16 } };
    problem_shape s = problem_plain(800 + index);
    (void)arg;
    fault_set_formats(&s, dtypes[index % 4], dtypes[index % 4] == OCT_DTYPE_BF16 ? OCT_SCALE_NONE : OCT_SCALE_LAYER);
    s.q_dtype = index / 4 % 2 ? OCT_DTYPE_F16 : OCT_DTYPE_BF16;
    s.out_dtype = s.q_dtype;
    s.causal = index / 8 % 2;
    s.dim_k = dims[index / 16 % 4][0];
    s.dim_v = dims[index / 16 % 4][1];
    s.layout = index / 16 % 3;
    s.heads = s.heads_q = index < 16 ? 16 : 2;
    problem_lengths(&s, 2, (int32_t[]){ 99, 1 }, (int32_t[]){ 99, 99 });
    return problem_check(&s);
}

void fault_G1_k_and_v_dims_differ(void **state)
{
    oct_kv_spec spec = { (uint32_t)sizeof spec, OCT_LAYOUT_NHD, 1, 576, 512, 16, { OCT_DTYPE_E4M3FN, OCT_SCALE_NONE, 0, 0 }, { OCT_DTYPE_E4M3FN, OCT_SCALE_NONE, 0, 0 } };
    oct_error error = OCT_ERROR_INIT;
    (void)state;
    assert_int_equal(oct_kv_spec_check(&spec, &error), OCT_INVALID_ARGUMENT);   /* latent attention is not supported, and says so */
    assert_non_null(strstr(error.text, "576"));
    RUN_CASES("G1", 64, 60, run_unequal);
}

/* ---- G3 ------------------------------------------------------------------------------------------------------- */

static const int64_t odd_dims[] = { 64, 72, 80, 88, 96, 100, 104, 112, 120, 128, 46, 8, 520 };

static int dim_is_legal(int64_t dim) { return dim % 8 == 0 && dim >= 16 && dim <= 512; }

static int64_t run_store_and_decode(void *arg, int64_t index)
{
    static const uint32_t formats[][2] = { { OCT_DTYPE_E4M3FN, OCT_SCALE_LAYER }, { OCT_DTYPE_I8, OCT_SCALE_TOKEN_HEAD }, { OCT_DTYPE_BF16, OCT_SCALE_NONE } };
    const int64_t dim = odd_dims[index % COUNT(odd_dims)], variation = index / COUNT(odd_dims);
    const uint32_t dtype = formats[variation % 3][0], mode = formats[variation % 3][1];
    problem_shape s = problem_plain(1000 + index);
    write_shape w = write_plain(1000 + index);
    (void)arg;
    fault_set_formats(&s, dtype, mode);
    s.dim_k = s.dim_v = dim;
    s.heads = variation / 3 % 2 ? 3 : 1;
    s.heads_q = s.heads * 2;
    s.base_offset = 4 / oracle_size_bytes(dtype) + variation / 6 % 2;   /* 4 bytes, and then one element more */
    s.strides = variation % 2 ? 8 | 16 : 0;
    s.by_write = 1;
    problem_lengths(&s, 2, (int32_t[]){ 1, 20 }, (int32_t[]){ 33, 50 });
    if (!dim_is_legal(dim)) {
        oct_kv_spec spec = { (uint32_t)sizeof spec, OCT_LAYOUT_NHD, 1, (uint32_t)dim, (uint32_t)dim, 16, { OCT_DTYPE_E4M3FN, OCT_SCALE_NONE, 0, 0 },
                             { OCT_DTYPE_E4M3FN, OCT_SCALE_NONE, 0, 0 } };
        if (oct_kv_spec_check(&spec, NULL) == OCT_INVALID_ARGUMENT)
            return 0;
        isolate_fail("head dim %lld is not refused", (long long)dim);
        return 1;
    }
    w.k_dtype = w.v_dtype = dtype;
    w.k_scale_mode = w.v_scale_mode = mode;
    w.k_scale_dtype = w.v_scale_dtype = mode == OCT_SCALE_TOKEN_HEAD ? OCT_DTYPE_F32 : 0;
    w.dim_k = w.dim_v = dim;
    w.heads = s.heads;
    w.base_offset = s.base_offset;
    w.source_offset = variation % 2;
    w.strides = variation % 2 ? 15 : 0;
    w.src_dtype = variation % 2 ? OCT_DTYPE_BF16 : OCT_DTYPE_F32;
    return write_check(&w) + problem_check(&s);
}

void fault_G3_odd_head_dims_and_bases(void **state)
{
    (void)state;
    RUN_CASES("G3", 12 * COUNT(odd_dims), 60, run_store_and_decode);
}

/* ---- G4 ------------------------------------------------------------------------------------------------------- */

/* Values are the number of the KV head plus 1: the output names the head that was read. */
static int64_t judge_mapping(problem *p, const compare_bound *bound, void *arg)
{
    const uint32_t ratio = p->spec.heads_q / p->spec.kv.heads;
    (void)bound;
    (void)arg;
    for (int64_t row = 0; row < p->rows; row++)
        for (uint32_t h = 0; h < p->spec.heads_q; h++)
            for (uint32_t d = 0; d < p->spec.kv.dim_v; d++)
                if (!(fabs(problem_out(p, row, h, d) - (double)(h / ratio + 1)) < 0.25)) {
                    isolate_fail("row %lld head %u reads %g, its KV head holds %u", (long long)row, h, problem_out(p, row, h, d), h / ratio + 1);
                    return 1;
                }
    return 0;
}

static int64_t run_ratio(void *arg, int64_t index)
{
    static const int64_t heads[][2] = { { 5, 1 }, { 6, 1 }, { 7, 1 }, { 28, 4 }, { 40, 8 }, { 24, 4 }, { 12, 1 }, { 64, 4 }, { 71, 1 }, { 64, 1 }, { 3, 1 }, { 9, 3 }, { 33, 3 } };
    problem_shape s = problem_plain(1200 + index);
    problem p;
    (void)arg;
    s.heads_q = heads[index / 2][0];
    s.heads = heads[index / 2][1];
    s.dim_k = s.dim_v = 128;
    s.v_data = DATA_HEAD;
    fault_set_formats(&s, OCT_DTYPE_E4M3FN, OCT_SCALE_NONE);
    if (index % 2)
        problem_lengths(&s, 3, (int32_t[]){ 1, 20, 17 }, (int32_t[]){ 1, 33, 300 });
    else
        problem_lengths(&s, 3, (int32_t[]){ 1, 1, 1 }, (int32_t[]){ 1, 33, 1000 });
    if (problem_make(&p, &s) != 0)
        return 1;
    int64_t failures = problem_check_made(&p, RUN_WHOLE);
    failures += fault_each_pair(&p, judge_mapping, NULL);
    problem_drop(&p);
    return failures;
}

void fault_G4_any_ratio_of_heads(void **state)
{
    oct_error error = OCT_ERROR_INIT;
    oct_plan *plan = NULL;
    problem p;
    problem_shape s = problem_plain(1);
    (void)state;
    assert_int_equal(problem_make(&p, &s), 0);
    p.spec.heads_q = 7;   /* over two KV heads */
    assert_int_equal(oct_plan_create(problem_context(1), &p.spec, &plan, &error), OCT_INVALID_ARGUMENT);
    assert_non_null(strstr(error.text, "7"));
    p.spec.heads_q = 0;
    assert_int_equal(oct_plan_create(problem_context(1), &p.spec, &plan, &error), OCT_INVALID_ARGUMENT);
    problem_drop(&p);
    RUN_CASES("G4", 26, 60, run_ratio);
}
