/* test_extend_sm90a.c: the extend kernels of Hopper, planned by plan_step, against the float64 oracle: a covering array over what
 * they take, random problems, splits against one pass, batch mates to the bit, and what they do not take. Over the host executor, and over a GPU.
 * Arguments: random=N, seed=S, cover=0, 8bit=N. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "device/device_check.h"
#include "device/launch_sm90a.h"
#include "parity/cover.h"

enum { ROWS_MAX = 600 };

static int64_t n_random = 8, first_seed = 1, with_cover = 1, n_8bit = 24;
static uint32_t n_merged;   /* groups of the last check whose splits were merged */
static double last_l2;

static device_rig *rig_of_hopper(void)
{
    device_rig *rig = device_check_rig(32);
    assert_non_null(rig);
    rig->chip.has_sm90a = 1;
    return rig;
}

typedef struct kv_format { uint32_t dtype, mode, scale_dtype, rotated; } kv_format;

static const kv_format kv_formats[] = {
    { OCT_DTYPE_E4M3FN, OCT_SCALE_LAYER, 0, 0 },
    { OCT_DTYPE_I8, OCT_SCALE_TOKEN_HEAD, OCT_DTYPE_F16, 1 },
    { OCT_DTYPE_BF16, OCT_SCALE_NONE, 0, 0 },
    { OCT_DTYPE_E4M3FN, OCT_SCALE_CHANNEL, 0, 1 },
    { OCT_DTYPE_E5M2, OCT_SCALE_LAYER_HEAD, 0, 0 },
    { OCT_DTYPE_F16, OCT_SCALE_NONE, 0, 1 },
    { OCT_DTYPE_E4M3FN, OCT_SCALE_TOKEN_HEAD, OCT_DTYPE_F32, 0 },
    { OCT_DTYPE_E4M3FNUZ, OCT_SCALE_TENSOR, 0, 0 },
};
static const int64_t pages[] = { 16, 1, 5, 64 };
static const int64_t dims[][2] = { { 128, 128 }, { 64, 64 }, { 80, 80 }, { 192, 128 }, { 96, 112 }, { 24, 40 }, { 160, 72 }, { 256, 256 }, { 192, 192 } };
static const int64_t ratios[] = { 4, 1, 7, 12 };
static const int64_t floats[] = { OCT_DTYPE_BF16, OCT_DTYPE_F32, OCT_DTYPE_F16, OCT_DTYPE_E4M3FN };
static const int64_t windows[] = { 0, 1, 30 };
static const double caps[] = { 0.0, 30.0, 2000.0 };
static const int64_t splits[] = { 0, 100 };
static const int32_t q_lens[][3] = { { 40, 17, 1 }, { 20, 0, 50 }, { 33, 19, 21 } };
static const int32_t kv_lens[][3] = { { 230, 17, 97 }, { 16, 150, 50 }, { 33, 260, 9 } };
static const int64_t data[][2] = { { DATA_NORMAL, DATA_NORMAL }, { DATA_CODES, DATA_CODES }, { DATA_NEEDLE, DATA_NORMAL }, { DATA_EQUAL, DATA_SUBNORMAL },
                                   { DATA_SATURATED, DATA_ONE_HOT }, { DATA_NORMAL, DATA_HALF } };

#define COUNT(array) ((int)(sizeof(array) / sizeof((array)[0])))

enum feature { K_FORMAT, V_FORMAT, LAYOUT, PAGE, DIMS, RATIO, HEADS, Q_DTYPE, OUT_DTYPE, CAUSAL, WINDOW, CAP, SINK, MASK, DETERMINISTIC, SPLIT, LENGTHS,
               FORM, STRIDES, DATA, LSE, POISON, FEATURES };

static const int n_values[FEATURES] = {
    [K_FORMAT] = COUNT(kv_formats), [V_FORMAT] = COUNT(kv_formats), [LAYOUT] = 2, [PAGE] = COUNT(pages), [DIMS] = COUNT(dims), [RATIO] = COUNT(ratios),
    [HEADS] = 1, [Q_DTYPE] = COUNT(floats), [OUT_DTYPE] = COUNT(floats), [CAUSAL] = 2, [WINDOW] = COUNT(windows), [CAP] = COUNT(caps), [SINK] = 3,
    [MASK] = 2, [DETERMINISTIC] = 2, [SPLIT] = COUNT(splits), [LENGTHS] = COUNT(q_lens), [FORM] = 4, [STRIDES] = 4, [DATA] = COUNT(data), [LSE] = 2,
    [POISON] = 3,
};

static unsigned char rows[ROWS_MAX][COVER_FEATURES];

static problem_shape shape_of(int64_t index)
{
    const unsigned char *row = rows[index];
    const kv_format *k = &kv_formats[row[K_FORMAT]], *v = &kv_formats[row[V_FORMAT]];
    if (v->dtype == (k->dtype == OCT_DTYPE_BF16 ? OCT_DTYPE_F16 : OCT_DTYPE_BF16))   /* not taken: no products of both */
        v = k;
    problem_shape s = problem_plain(8000000 + index);
    s.k_dtype = k->dtype, s.k_scale_mode = k->mode, s.k_scale_dtype = k->scale_dtype, s.k_rotated = k->rotated;
    s.v_dtype = v->dtype, s.v_scale_mode = v->mode, s.v_scale_dtype = v->scale_dtype, s.v_rotated = v->rotated;
    s.layout = row[LAYOUT];
    s.page_size = pages[row[PAGE]];
    s.dim_k = dims[row[DIMS]][0];
    s.dim_v = dims[row[DIMS]][1];
    s.heads = row[HEADS] + 1;
    s.heads_q = s.heads * ratios[row[RATIO]];
    s.q_dtype = floats[row[Q_DTYPE]];
    s.out_dtype = floats[row[OUT_DTYPE]];
    s.causal = row[CAUSAL];
    s.window = windows[row[WINDOW]];
    s.softcap = caps[row[CAP]];
    s.sink = row[SINK];
    s.mask = row[MASK];
    s.deterministic = row[DETERMINISTIC];
    s.split_tokens = splits[row[SPLIT]];
    problem_lengths(&s, 3, q_lens[row[LENGTHS]], kv_lens[row[LENGTHS]]);
    s.compressed = row[FORM] & 1;
    s.page_none = row[FORM] >> 1;
    s.strides = (int64_t[]){ 0, 1 | 2 | 4, 8 | 16, 63 }[row[STRIDES]];
    s.base_offset = row[STRIDES] == 2 ? 3 : 0;
    s.k_data = data[row[DATA]][0];
    s.v_data = data[row[DATA]][1];
    s.with_lse = row[LSE];
    s.poison = row[POISON];
    return s;
}

/* 0; 1 for a verdict against it; -1 where the kernels do not take the shape. */
static int64_t check(const problem_shape *shape)
{
    problem p;
    char text[PROBLEM_TEXT], why[640];
    oct__dev_plan plan;
    oct__dev_attn_shape used;
    device_rig *rig = rig_of_hopper();
    problem_print(shape, text, sizeof text);
    isolate_doing("attention, Hopper's extend");
    isolate_repeat("device_extend_sm90a '%s'", text);
    if (problem_make(&p, shape) != 0 || problem_expect(&p) != 0) {
        isolate_fail("the problem could not be made");
        return 1;
    }
    if (!oct__dev_attn_shape_of(&rig->chip, &p.spec, OCT__DEV_EXTEND, &used) || !oct__dev_is_sm90a_extend(used.kernel)) {
        problem_drop(&p);
        return -1;
    }
    isolate_doing("%s", used.kernel);
    int64_t bad = device_run_attn(rig, &p, NULL, &plan, why, sizeof why);
    if (bad) {
        isolate_fail("%s", why);
    } else {
        n_merged = plan.n_groups[OCT__DEV_EXTEND];
        const compare_bound bound = strstr(used.kernel, "_e4m3_") != NULL ? compare_bound_of(OCT__TOL_8BIT) : device_check_bound(1);
        const compare_verdict verdict = problem_judge(&p, &bound);
        last_l2 = verdict.l2;
        if (plan.n_tasks[OCT__DEV_EXTEND] > 0)
            isolate_ran(used.kernel, verdict.max_error);
        bad = !verdict.ok;
        if (bad)
            isolate_fail("%s", verdict.text);
    }
    problem_drop(&p);
    return bad;
}

static int64_t run_cover(void *arg, int64_t index)
{
    (void)arg;
    const problem_shape s = shape_of(index);
    const int64_t bad = check(&s);
    if (bad < 0)
        isolate_fail("not taken");
    return bad != 0;
}

static void every_pair_of_features(void **state)
{
    (void)state;
    if (!with_cover)
        skip();
    const int n = cover_make(FEATURES, n_values, 7, ROWS_MAX, rows);
    assert_true(n > 0);
    print_message("covering array: %d problems\n", n);
    assert_int_equal(isolate_run("features", n, 60, run_cover, NULL), 0);
}

static int64_t run_random(void *arg, int64_t index)
{
    (void)arg;
    const problem_shape s = problem_random(first_seed + index);
    return check(&s) > 0;
}

static void random_problems(void **state)
{
    (void)state;
    print_message("seeds %lld to %lld\n", (long long)first_seed, (long long)(first_seed + n_random - 1));
    assert_int_equal(isolate_run("random", n_random, 60, run_random, NULL), 0);
}

/* Each kernel's own case: formats and dims, over rows long enough for rings to go round. */
static int64_t run_kernel(void *arg, int64_t i)
{
    static const int64_t dtypes[][2] = { { OCT_DTYPE_E4M3FN, OCT_DTYPE_E4M3FN }, { OCT_DTYPE_BF16, OCT_DTYPE_BF16 }, { OCT_DTYPE_F16, OCT_DTYPE_E5M2 },
                                         { OCT_DTYPE_BF16, OCT_DTYPE_E4M3FN } };
    (void)arg;
    problem_shape s = problem_plain(8100000 + i);
    s.k_dtype = dtypes[i / 4][0];
    s.v_dtype = dtypes[i / 4][1];
    s.k_scale_mode = s.k_dtype >= OCT_DTYPE_E4M3FN ? OCT_SCALE_LAYER : OCT_SCALE_NONE;
    s.v_scale_mode = s.v_dtype >= OCT_DTYPE_E4M3FN ? OCT_SCALE_LAYER : OCT_SCALE_NONE;
    s.dim_k = (int64_t[]){ 64, 128, 192, 256 }[i % 4];
    s.dim_v = (int64_t[]){ 64, 128, 128, 256 }[i % 4];
    s.heads = 1;
    s.heads_q = 4;
    s.page_size = 16;
    s.q_dtype = OCT_DTYPE_BF16;
    s.out_dtype = i % 8 < 4 ? OCT_DTYPE_BF16 : OCT_DTYPE_F32;
    problem_lengths(&s, 2, (int32_t[]){ 70, 40 }, (int32_t[]){ 700, 333 });
    return check(&s) != 0;
}

static void every_kernel(void **state)
{
    (void)state;
    assert_int_equal(isolate_run("kernels", 16, 60, run_kernel, NULL), 0);
}

/* Products of 8 bits: everything that their kernels take, in turn. */
static int64_t run_8bit(void *arg, int64_t i)
{
    static const int64_t sizes[][2] = { { 128, 128 }, { 256, 256 }, { 96, 112 }, { 192, 192 }, { 64, 64 }, { 208, 144 } };
    static const kv_format formats[] = { { OCT_DTYPE_E4M3FN, OCT_SCALE_LAYER, 0, 0 }, { OCT_DTYPE_E4M3FN, OCT_SCALE_TOKEN_HEAD, OCT_DTYPE_F32, 0 },
                                         { OCT_DTYPE_E4M3FN, OCT_SCALE_CHANNEL, 0, 1 }, { OCT_DTYPE_E4M3FN, OCT_SCALE_LAYER_HEAD, 0, 0 } };
    const kv_format *k = &formats[i / 2 % 4], *v = &formats[(int[]){ 0, 2, 3 }[i / 3 % 3]];
    problem_shape s = problem_plain(8300000 + i);
    (void)arg;
    s.k_dtype = k->dtype, s.k_scale_mode = k->mode, s.k_scale_dtype = k->scale_dtype, s.k_rotated = k->rotated;
    s.v_dtype = v->dtype, s.v_scale_mode = v->mode, s.v_scale_dtype = v->scale_dtype, s.v_rotated = v->rotated;
    s.dim_k = sizes[i % 6][0];
    s.dim_v = sizes[i % 6][1];
    s.layout = OCT_LAYOUT_V5D;
    s.page_size = (int64_t[]){ 16, 64, 32 }[i % 3];
    s.heads = 1 + i % 2;
    s.heads_q = s.heads * (int64_t[]){ 4, 1, 7, 12 }[i / 2 % 4];
    s.q_dtype = i % 3 != 1 ? OCT_DTYPE_E4M3FN : floats[i % 4];
    s.out_dtype = floats[i / 2 % 4];
    s.causal = i % 4 != 3;
    s.window = windows[i / 4 % 3];
    s.softcap = caps[i / 5 % 3];
    s.sink = i % 3;
    s.mask = i % 7 == 6;
    s.with_lse = i % 2;
    s.split_tokens = i % 8 == 7 ? 300 : 0;
    s.compressed = i & 1;
    s.poison = i % 3;
    s.strides = i % 5 == 4 ? 63 : 0;
    problem_lengths(&s, 2, (int32_t[]){ i % 2 ? 70 : 33, 40 }, i % 3 == 0 ? (int32_t[]){ 1500, 333 } : (int32_t[]){ 290, 41 });
    s.products = OCT_PRODUCTS_8BIT + i % 2;
    const int64_t bad = check(&s);
    if (bad < 0)
        isolate_fail("not taken");
    return bad != 0;
}

static void products_of_8_bits(void **state)
{
    (void)state;
    assert_int_equal(isolate_run("8bit", n_8bit, 240, run_8bit, NULL), 0);
}

/* Sums of many like weights, which the 14 bits of the products cut off: totals hold the error. */
static int64_t run_flat(void *arg, int64_t i)
{
    static const double most[] = { 1.5e-2, 2e-3 };
    (void)arg;
    problem_shape s = problem_plain(8400000 + i);
    s.k_dtype = s.v_dtype = s.q_dtype = OCT_DTYPE_E4M3FN;
    s.k_scale_mode = s.v_scale_mode = OCT_SCALE_LAYER;
    s.out_dtype = OCT_DTYPE_F32;
    s.layout = OCT_LAYOUT_V5D;
    s.dim_k = s.dim_v = 128;
    s.heads = s.heads_q = 1;
    s.page_size = 16;
    s.k_data = DATA_EQUAL;
    s.v_data = DATA_HALF;
    s.split_tokens = 100000;
    s.products = OCT_PRODUCTS_8BIT + i;
    problem_lengths(&s, 1, (int32_t[]){ 17 }, (int32_t[]){ 4000 });
    const int64_t bad = check(&s);
    if (bad == 0 && !(last_l2 <= most[i]))
        isolate_fail("relative L2 %.3g, at most %.3g", last_l2, most[i]);
    return bad != 0 || !(last_l2 <= most[i]);
}

static void totals_hold_the_error(void **state)
{
    (void)state;
    assert_int_equal(isolate_run("flat", 2, 60, run_flat, NULL), 0);
}

static void every_kernel_ran(void **state)
{
    (void)state;
    isolate_report();
    const simt_kernel *kernel;
    uint32_t n = 0;
    for (uint32_t i = 0; (kernel = simt_nth(32, i)) != NULL; i++)
        if (strstr(kernel->name, "extend_sm90a") != NULL) {
            n++;
            if (isolate_n_ran(kernel->name) < 1)
                print_message("%s did not run\n", kernel->name);
            assert_true(isolate_n_ran(kernel->name) >= 1);
        }
    assert_true(n >= 12);
}

/* Rows in chosen and in fixed splits, merged, against the oracle: dims of 64, 128 and 192/128 in turn. */
static int64_t run_split(void *arg, int64_t i)
{
    (void)arg;
    problem_shape s = problem_plain(8200000 + i);
    s.dim_k = (int64_t[]){ 64, 128, 192 }[i % 3];
    s.dim_v = (int64_t[]){ 64, 128, 128 }[i % 3];
    s.split_tokens = (int64_t[]){ 0, 0, 0, 100, 300, 100 }[i];
    s.heads = 1;
    s.heads_q = 2;
    s.with_lse = 1;
    problem_lengths(&s, 2, (int32_t[]){ 40, 17 }, (int32_t[]){ 3000, 1300 });
    n_merged = 0;
    if (check(&s) != 0)
        return 1;
    if (n_merged == 0)
        isolate_fail("nothing was split");
    return n_merged == 0;
}

static int64_t run_few_splits(void *arg, int64_t i)
{
    return run_split(arg, (int64_t[]){ 0, 4, 5 }[i]);
}

static void splits_are_merged(void **state)
{
    (void)state;
    /* Where everything is instrumented, each of the dims and each of the splits once. */
    assert_int_equal(with_cover ? isolate_run("splits", 6, 60, run_split, NULL) : isolate_run("splits", 3, 60, run_few_splits, NULL), 0);
}

/* Deterministic mode: a sequence's bits do not depend on its batch mates. The second has nine splits and mates of two: the average, and with it who
 * merges a row, changes with them. */
static void batch_mates_do_not_change_bits(void **state)
{
    enum { SEQUENCES = 4 };
    (void)state;
    problem_shape s = problem_plain(812);
    problem all, view;
    char why[640];
    s.deterministic = 1;
    s.split_tokens = 128;
    s.heads = 1;
    s.heads_q = 2;
    problem_lengths(&s, SEQUENCES, (int32_t[]){ 20, 40, 20, 20 }, (int32_t[]){ 200, 1100, 200, 200 });
    assert_int_equal(problem_make(&all, &s), 0);
    float *alone = NULL;
    size_t bytes = 0;
    for (int32_t n = 1; n <= SEQUENCES; n += SEQUENCES - 1) {
        problem_part parts[SEQUENCES];
        oct__dev_plan plan;
        for (int32_t b = 0; b < n; b++)
            parts[b] = problem_whole(&all, (1 + n - 1 - b) % SEQUENCES);   /* the watched one, 1, last */
        assert_int_equal(problem_select(&view, &all, parts, n), 0);
        assert_int_equal(device_run_attn(rig_of_hopper(), &view, &all, &plan, why, sizeof why), 0);
        assert_int_equal(plan.n_groups[OCT__DEV_EXTEND], n);
        const size_t row = (size_t)view.qo_indptr[n - 1] * view.spec.heads_q * view.spec.kv.dim_v;
        if (n == 1) {
            assert_true(plan.n_partials[OCT__DEV_EXTEND] > 4);
            bytes = (size_t)parts[0].n_rows * view.spec.heads_q * view.spec.kv.dim_v * sizeof(float);
            alone = malloc(bytes);
            memcpy(alone, view.out.at, bytes);
        } else {
            assert_true(plan.n_partials[OCT__DEV_EXTEND] <= 4 * SEQUENCES);
            assert_memory_equal((float *)view.out.at + row, alone, bytes);
        }
        problem_drop(&view);
    }
    free(alone);
    problem_drop(&all);
}

/* Page ids outside of a layer are no keys at all: a sequence whose first three pages are such gives what it gives without them. Every way of loading V: copies of
 * 16 bits, 8 bits ahead in shared memory, in registers beside bf16, and rows that lie anyhow; in one pass and in splits; and products of 8 bits. */
static int64_t run_stray(void *arg, int64_t i)
{
    static const uint32_t formats[][2] = { { OCT_DTYPE_E4M3FN, OCT_DTYPE_E4M3FN }, { OCT_DTYPE_BF16, OCT_DTYPE_BF16 }, { OCT_DTYPE_BF16, OCT_DTYPE_E4M3FN },
                                           { OCT_DTYPE_I8, OCT_DTYPE_I8 }, { OCT_DTYPE_E4M3FN, OCT_DTYPE_E4M3FN } };
    static const int64_t sizes[] = { 128, 128, 64, 256, 40 };
    const uint32_t k_is_16 = formats[i % 5][0] == OCT_DTYPE_BF16, v_is_16 = formats[i % 5][1] == OCT_DTYPE_BF16;
    problem_shape s = problem_plain(8500000 + i);
    problem all, strays, without;
    char why[640];
    (void)arg;
    s.k_dtype = formats[i % 5][0];
    s.v_dtype = formats[i % 5][1];
    s.k_scale_mode = k_is_16 ? OCT_SCALE_NONE : i % 5 == 3 ? OCT_SCALE_TOKEN_HEAD : OCT_SCALE_LAYER;
    s.v_scale_mode = v_is_16 ? OCT_SCALE_NONE : i % 5 == 3 ? OCT_SCALE_TOKEN_HEAD : OCT_SCALE_LAYER;
    s.k_scale_dtype = s.v_scale_dtype = i % 5 == 3 ? OCT_DTYPE_F16 : 0;
    s.dim_k = s.dim_v = sizes[i % 5];
    s.page_size = 16;
    s.heads = 1;
    s.heads_q = 4;
    s.with_lse = 1;
    s.split_tokens = i >= 5 && i < 10 ? 100 : 0;
    if (i >= 10) {
        s.products = OCT_PRODUCTS_8BIT;
        s.k_dtype = s.v_dtype = s.q_dtype = OCT_DTYPE_E4M3FN;
        s.k_scale_mode = s.v_scale_mode = OCT_SCALE_LAYER;
        s.dim_k = s.dim_v = i == 10 ? 128 : 256;
        s.layout = OCT_LAYOUT_V5D;
    }
    problem_lengths(&s, 1, (int32_t[]){ 40 }, (int32_t[]){ 230 });
    const problem_part whole = { 0, 0, 40, 230, 0 }, rest = { 0, 0, 40, 230 - 48, 3 };
    if (problem_make(&all, &s) != 0 || problem_select(&strays, &all, &whole, 1) != 0 || problem_select(&without, &all, &rest, 1) != 0) {
        isolate_fail("the problem could not be made");
        return 1;
    }
    strays.table_pages[0] = OCT_PAGE_NONE;
    strays.table_pages[1] = (int32_t)all.layer.n_pages;
    strays.table_pages[2] = INT32_MAX;
    int64_t bad = problem_expect(&without) != 0 || device_run_attn(rig_of_hopper(), &strays, &all, NULL, why, sizeof why) != 0;
    if (bad) {
        isolate_fail("%s", why);
    } else {
        const compare_bound bound = i >= 10 ? compare_bound_of(OCT__TOL_8BIT) : device_check_bound(1);
        memcpy(without.out.at, strays.out.at, without.out.size_bytes);
        memcpy(without.lse.at, strays.lse.at, without.lse.size_bytes);
        const compare_verdict verdict = problem_judge(&without, &bound);
        bad = !verdict.ok;
        if (bad)
            isolate_fail("%s", verdict.text);
    }
    problem_drop(&without);
    problem_drop(&strays);
    problem_drop(&all);
    return bad;
}

static void pages_outside_are_no_keys(void **state)
{
    (void)state;
    assert_int_equal(isolate_run("strays", 12, 60, run_stray, NULL), 0);
}

/* What no kernel takes is said, with a reason; everything else has one. */
static void gates(void **state)
{
    (void)state;
    const problem_shape plain = problem_plain(813);
    problem p;
    const char *why;
    assert_int_equal(problem_make(&p, &plain), 0);
    assert_non_null(oct__dev_sm90a_extend_kernel(&p.spec, &why));
    assert_null(why);
    oct_attn_spec spec = p.spec;
    spec.kv.k.dtype = OCT_DTYPE_F32;
    assert_null(oct__dev_sm90a_extend_kernel(&spec, &why));
    assert_non_null(why);
    spec = p.spec;
    spec.kv.dim_v = 512;
    assert_null(oct__dev_sm90a_extend_kernel(&spec, &why));
    spec = p.spec;
    spec.kv.v.dtype = OCT_DTYPE_BF16;
    assert_null(oct__dev_sm90a_extend_kernel(&spec, &why));
    spec = p.spec;
    spec.kv.layout = OCT_LAYOUT_V5D;
    assert_null(oct__dev_sm90a_extend_kernel(&spec, &why));
    spec.products = OCT_PRODUCTS_8BIT;   /* q of bf16: two terms */
    assert_string_equal(oct__dev_sm90a_extend_kernel(&spec, &why), spec.kv.dim_k > 128 ? "attn_extend_sm90a_e4m3_256_2" : "attn_extend_sm90a_e4m3_128_2");
    spec.kv.v.scale_mode = OCT_SCALE_TOKEN_HEAD;
    assert_null(oct__dev_sm90a_extend_kernel(&spec, &why));
    problem_drop(&p);
}

int main(int argc, char **argv)
{
    problem_shape one;
    for (int i = 1; i < argc; i++) {
        if (strncmp(argv[i], "random=", 7) == 0)
            n_random = strtoll(argv[i] + 7, NULL, 10);
        else if (strncmp(argv[i], "seed=", 5) == 0 && strchr(argv[i], ',') == NULL)
            first_seed = strtoll(argv[i] + 5, NULL, 10);
        else if (strncmp(argv[i], "cover=", 6) == 0)
            with_cover = strtoll(argv[i] + 6, NULL, 10);
        else if (strncmp(argv[i], "8bit=", 5) == 0)
            n_8bit = strtoll(argv[i] + 5, NULL, 10);
        else if (problem_parse(&one, argv[i]) == 0)
            return check(&one) != 0;
        else
            return fprintf(stderr, "usage: device_extend_sm90a [random=N] [seed=S] [cover=0] [8bit=N] | device_extend_sm90a 'seed=...,...'\n"), 2;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_pair_of_features),
        cmocka_unit_test(random_problems),
        cmocka_unit_test(every_kernel),
        cmocka_unit_test(products_of_8_bits),
        cmocka_unit_test(totals_hold_the_error),
        cmocka_unit_test(every_kernel_ran),
        cmocka_unit_test(splits_are_merged),
        cmocka_unit_test(pages_outside_are_no_keys),
        cmocka_unit_test(batch_mates_do_not_change_bits),   /* opens the device: over a GPU no test behind it may be a child process's */
        cmocka_unit_test(gates),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
