/* test_attn_sm90a.c: the decode kernels of Hopper and their finish, planned in parts by plan_step, against the float64 oracle: a covering array over what
 * they take, random problems, splits against one pass, batch mates to the bit, and what they do not take. Over the host executor, and over a GPU.
 * Arguments: random=N, seed=S, cover=0. */
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

static int64_t n_random = 24, first_seed = 1, with_cover = 1;

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
static const int64_t dims[][2] = { { 128, 128 }, { 64, 64 }, { 256, 256 }, { 80, 80 }, { 192, 128 }, { 96, 112 }, { 24, 40 } };
static const int64_t ratios[] = { 4, 8, 16, 1, 5, 6, 7, 12, 20 };
static const int64_t floats[] = { OCT_DTYPE_BF16, OCT_DTYPE_F32, OCT_DTYPE_F16, OCT_DTYPE_E4M3FN };
static const int64_t windows[] = { 0, 1, 50 };
static const double caps[] = { 0.0, 30.0 };
static const int64_t splits[] = { 0, 40 };
static const int32_t q_lens[][3] = { { 1, 1, 1 }, { 4, 2, 1 }, { 1, 0, 3 } };
static const int32_t kv_lens[][3] = { { 230, 1, 97 }, { 16, 150, 2 }, { 33, 5, 250 } };
static const int64_t data[][2] = { { DATA_NORMAL, DATA_NORMAL }, { DATA_CODES, DATA_CODES }, { DATA_NEEDLE, DATA_NORMAL }, { DATA_EQUAL, DATA_SUBNORMAL },
                                   { DATA_SATURATED, DATA_ONE_HOT }, { DATA_NORMAL, DATA_HALF } };

#define COUNT(array) ((int)(sizeof(array) / sizeof((array)[0])))

enum feature { K_FORMAT, V_FORMAT, LAYOUT, PAGE, DIMS, RATIO, HEADS, Q_DTYPE, OUT_DTYPE, CAUSAL, WINDOW, CAP, SINK, MASK, DETERMINISTIC, SPLIT, LENGTHS,
               FORM, STRIDES, DATA, LSE, POISON, FEATURES };

static const int n_values[FEATURES] = {
    [K_FORMAT] = COUNT(kv_formats), [V_FORMAT] = COUNT(kv_formats), [LAYOUT] = 2, [PAGE] = COUNT(pages), [DIMS] = COUNT(dims), [RATIO] = COUNT(ratios),
    [HEADS] = 2, [Q_DTYPE] = COUNT(floats), [OUT_DTYPE] = COUNT(floats), [CAUSAL] = 2, [WINDOW] = COUNT(windows), [CAP] = COUNT(caps), [SINK] = 3,
    [MASK] = 2, [DETERMINISTIC] = 2, [SPLIT] = COUNT(splits), [LENGTHS] = COUNT(q_lens), [FORM] = 4, [STRIDES] = 4, [DATA] = COUNT(data), [LSE] = 2,
    [POISON] = 3,
};

static unsigned char rows[ROWS_MAX][COVER_FEATURES];

static problem_shape shape_of(int64_t index)
{
    const unsigned char *row = rows[index];
    const kv_format *k = &kv_formats[row[K_FORMAT]], *v = &kv_formats[row[V_FORMAT]];
    problem_shape s = problem_plain(7000000 + index);
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
    isolate_doing("attention, Hopper's kernels");
    isolate_repeat("device_attn_sm90a '%s'", text);
    if (problem_make(&p, shape) != 0 || problem_expect(&p) != 0) {
        isolate_fail("the problem could not be made");
        return 1;
    }
    if (!oct__dev_attn_shape_of(&rig->chip, &p.spec, OCT__DEV_DECODE, &used) || !oct__dev_is_sm90a(used.kernel)) {
        problem_drop(&p);
        return -1;
    }
    isolate_doing("%s", used.kernel);
    int64_t bad = device_run_attn(rig, &p, NULL, &plan, why, sizeof why);
    if (bad) {
        isolate_fail("%s", why);
    } else {
        const compare_bound bound = device_check_bound(1);
        const compare_verdict verdict = problem_judge(&p, &bound);
        if (plan.n_tasks[OCT__DEV_DECODE] > 0)
            isolate_ran(rig->attended_by[OCT__DEV_DECODE], verdict.max_error);
        if (plan.n_groups[OCT__DEV_DECODE] > 0)
            isolate_ran(rig->finished_by[OCT__DEV_DECODE], verdict.max_error);
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

/* As a plain kernel takes it: what oct__dev_sm90a_make_plain asks for, and nothing else is changed. */
static problem_shape made_plain(problem_shape s, int64_t i)
{
    static const struct { uint32_t dtype, mode, scale_dtype; } formats[] = {
        { OCT_DTYPE_E4M3FN, OCT_SCALE_LAYER, 0 }, { OCT_DTYPE_I8, OCT_SCALE_TOKEN_HEAD, OCT_DTYPE_F32 }, { OCT_DTYPE_BF16, OCT_SCALE_NONE, 0 },
        { OCT_DTYPE_E4M3FN, OCT_SCALE_LAYER_HEAD, 0 }, { OCT_DTYPE_E4M3FN, OCT_SCALE_NONE, 0 },
    };
    const int64_t at = i % COUNT(formats);
    s.k_dtype = s.v_dtype = formats[at].dtype;
    s.k_scale_mode = s.v_scale_mode = formats[at].mode;
    s.k_scale_dtype = s.v_scale_dtype = formats[at].scale_dtype;
    s.k_rotated = s.k_dtype == OCT_DTYPE_I8 && i % 2 == 0;
    s.v_rotated = 0;
    s.q_dtype = s.out_dtype = OCT_DTYPE_BF16;
    s.layout = i % 2;
    s.page_size = (int64_t[]){ 16, 1, 64, 4 }[i % 4];
    s.dim_k = s.dim_v = (int64_t[]){ 128, 256, 64, 192, 80, 96 }[i % 6];
    s.softcap = 0.0;
    s.mask = 0;
    s.strides &= 4;
    s.base_offset = 0;
    return s;
}

/* The same bits as the kernel of everything gives, which the oracle judges too: it runs where q begins aside of 16 bytes. */
static int64_t run_plain(void *arg, int64_t index)
{
    (void)arg;
    problem_shape s = made_plain(problem_random(first_seed + 500000 + index), index);
    const int64_t bad = check(&s);
    if (bad == 0 && strstr(rig_of_hopper()->attended_by[OCT__DEV_DECODE], "plain") == NULL)
        isolate_fail("%s was launched", rig_of_hopper()->attended_by[OCT__DEV_DECODE]);
    return bad != 0;
}

static void plain_problems(void **state)
{
    (void)state;
    assert_int_equal(isolate_run("plain", n_random / 2, 60, run_plain, NULL), 0);
}

/* Each kernel's own case: bits of K and V, dims, heads a group, over rows long enough for rings to go round and for parts to end within them. */
static int64_t run_kernel(void *arg, int64_t i)
{
    static const int64_t dtypes[][2] = { { OCT_DTYPE_E4M3FN, OCT_DTYPE_E4M3FN }, { OCT_DTYPE_BF16, OCT_DTYPE_BF16 }, { OCT_DTYPE_F16, OCT_DTYPE_F16 },
                                         { OCT_DTYPE_E4M3FN, OCT_DTYPE_BF16 }, { OCT_DTYPE_F16, OCT_DTYPE_E5M2 },
                                         { OCT_DTYPE_E5M2, OCT_DTYPE_E4M3FN }, { OCT_DTYPE_I8, OCT_DTYPE_I8 } };
    static const int64_t plain[][2] = { { OCT_DTYPE_E4M3FN, OCT_DTYPE_E4M3FN }, { OCT_DTYPE_BF16, OCT_DTYPE_BF16 }, { OCT_DTYPE_I8, OCT_DTYPE_I8 } };
    (void)arg;
    problem_shape s = problem_plain(7100000 + i);
    const int64_t *pair = i < 42 ? dtypes[i / 6] : plain[i / 6 - 7];
    s.k_dtype = pair[0];
    s.v_dtype = pair[1];
    s.k_scale_mode = s.k_dtype >= OCT_DTYPE_E4M3FN ? OCT_SCALE_LAYER : OCT_SCALE_NONE;
    s.v_scale_mode = s.v_dtype >= OCT_DTYPE_E4M3FN ? OCT_SCALE_LAYER : OCT_SCALE_NONE;
    if (s.k_dtype == OCT_DTYPE_I8) {
        s.k_scale_mode = s.v_scale_mode = OCT_SCALE_TOKEN_HEAD;
        s.k_scale_dtype = s.v_scale_dtype = OCT_DTYPE_F32;
    }
    s.q_dtype = s.out_dtype = i < 42 ? OCT_DTYPE_F32 : OCT_DTYPE_BF16;
    s.dim_k = s.dim_v = (int64_t[]){ 64, 128, 256 }[i % 3];
    s.heads = 1;
    s.heads_q = i / 3 % 2 == 0 ? 4 : 16;
    s.page_size = 16;
    problem_lengths(&s, 3, (int32_t[]){ 1, 1, 1 }, (int32_t[]){ 900, 20, 333 });
    return check(&s) != 0;
}

static void every_kernel(void **state)
{
    (void)state;
    assert_int_equal(isolate_run("kernels", 60, 60, run_kernel, NULL), 0);
}

static void every_kernel_ran(void **state)
{
    (void)state;
    isolate_report();
    const simt_kernel *kernel;
    uint32_t n = 0;
    for (uint32_t i = 0; (kernel = simt_nth(32, i)) != NULL; i++)
        if (strstr(kernel->name, "attn_decode_sm90a") != NULL || strstr(kernel->name, "attn_finish_sm90a") != NULL) {
            n++;
            if (isolate_n_ran(kernel->name) < 1)
                print_message("%s did not run\n", kernel->name);
            assert_true(isolate_n_ran(kernel->name) >= 1);
        }
    assert_true(n >= 45);
}

/* Long rows in parts and in fixed splits of several sizes against one pass. */
static void splits_agree(void **state)
{
    static const uint32_t sizes[] = { 1 << 20, 0, 300, 64 };
    (void)state;
    problem_shape s = problem_plain(811);
    problem p;
    oct__dev_plan plan;
    char why[640];
    s.heads = 2;
    s.heads_q = 8;
    s.dim_k = s.dim_v = 64;
    problem_lengths(&s, 4, (int32_t[]){ 1, 1, 2, 1 }, (int32_t[]){ 700, 31, 300, 1 });
    assert_int_equal(problem_make(&p, &s), 0);
    assert_int_equal(problem_expect(&p), 0);
    float *reference = malloc(p.out.size_bytes);
    double worst = 0.0;
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        p.spec.split_tokens = sizes[i];
        const int bad = device_run_attn(rig_of_hopper(), &p, NULL, &plan, why, sizeof why);
        if (bad)
            print_message("%s\n", why);
        assert_int_equal(bad, 0);
        if (i == 0) {
            assert_int_equal(plan.n_groups[0], 0);
            memcpy(reference, p.out.at, p.out.size_bytes);
            continue;
        }
        assert_true(plan.n_groups[0] > 0);
        for (int64_t at = 0; at < p.out_elements; at++)
            worst = fmax(worst, fabs((double)((float *)p.out.at)[at] - (double)reference[at]) / p.expected.v_max[at / s.dim_v]);
    }
    print_message("worst difference: %.3g of max|V|\n", worst);
    assert_true(worst <= 5e-4);   /* weights are rounded to f16 relative to maxima that differ */
    free(reference);
    problem_drop(&p);
}

/* Deterministic mode: a sequence's bits do not depend on its batch mates. The second has nine splits and mates of two: the average, and with it who
 * merges a row, changes with them. */
static void batch_mates_do_not_change_bits(const int32_t *rows_of, const int32_t *keys_of)
{
    enum { SEQUENCES = 4 };
    problem_shape s = problem_plain(812);
    problem all, view;
    char why[640];
    s.deterministic = 1;
    s.heads = 2;
    s.heads_q = 10;
    problem_lengths(&s, SEQUENCES, rows_of, keys_of);
    assert_int_equal(problem_make(&all, &s), 0);
    float *alone = NULL;
    size_t bytes = 0;
    for (int32_t n = 1; n <= SEQUENCES; n++) {
        problem_part parts[SEQUENCES];
        oct__dev_plan plan;
        for (int32_t b = 0; b < n; b++)
            parts[b] = problem_whole(&all, (1 + n - 1 - b) % SEQUENCES);   /* the watched one, 1, last */
        assert_int_equal(problem_select(&view, &all, parts, n), 0);
        assert_int_equal(device_run_attn(rig_of_hopper(), &view, &all, &plan, why, sizeof why), 0);
        assert_true(plan.n_groups[0] >= 1);
        const size_t row = (size_t)view.qo_indptr[n - 1] * view.spec.heads_q * view.spec.kv.dim_v;
        if (n == 1) {
            bytes = (size_t)parts[0].n_rows * view.spec.heads_q * view.spec.kv.dim_v * sizeof(float);
            alone = malloc(bytes);
            memcpy(alone, view.out.at, bytes);
            const oct__dev_step_limits limits = { 1, rows_of[1], keys_of[1] };
            oct__dev_workspace w;
            assert_true(oct__dev_workspace_of(&rig_of_hopper()->chip, &view.spec, &limits, &w));
            assert_true(plan.n_partials[0] < 4 || plan.n_partials[0] < w.n_parts[0] || plan.n_partials[0] % w.n_parts[0] == 0);   /* a long row leaves no part idle */
        } else {
            assert_memory_equal((float *)view.out.at + row, alone, bytes);
        }
        problem_drop(&view);
    }
    free(alone);
    problem_drop(&all);
}

static void short_mates_do_not_change_bits(void **state)
{
    (void)state;
    batch_mates_do_not_change_bits((int32_t[]){ 1, 1, 3, 1 }, (int32_t[]){ 40, 1100, 120, 9 });
}

static void split_mates_do_not_change_bits(void **state)
{
    (void)state;
    batch_mates_do_not_change_bits((int32_t[]){ 1, 1, 1, 1 }, (int32_t[]){ 1100, 9900, 1100, 1100 });   /* ten splits of 1,024 keys, three parts */
}

/* What no kernel takes is said, with a reason; everything else has one. */
static void gates(void **state)
{
    (void)state;
    const problem_shape plain = problem_plain(813);
    problem p;
    const char *why;
    uint32_t vectors;
    assert_int_equal(problem_make(&p, &plain), 0);
    assert_non_null(oct__dev_sm90a_kernel(&p.spec, &vectors, &why));
    assert_null(why);
    oct_attn_spec spec = p.spec;
    spec.kv.k.dtype = OCT_DTYPE_F32;
    assert_null(oct__dev_sm90a_kernel(&spec, &vectors, &why));
    assert_non_null(why);
    spec = p.spec;
    spec.kv.dim_v = 512;
    assert_null(oct__dev_sm90a_kernel(&spec, &vectors, &why));
    spec = p.spec;
    spec.kv.layout = OCT_LAYOUT_V5D;
    assert_null(oct__dev_sm90a_kernel(&spec, &vectors, &why));
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
        else if (problem_parse(&one, argv[i]) == 0)
            return check(&one) != 0;
        else
            return fprintf(stderr, "usage: device_attn_sm90a [random=N] [seed=S] [cover=0] | device_attn_sm90a 'seed=...,...'\n"), 2;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_pair_of_features),
        cmocka_unit_test(random_problems),
        cmocka_unit_test(plain_problems),
        cmocka_unit_test(every_kernel),
        cmocka_unit_test(every_kernel_ran),
        cmocka_unit_test(splits_agree),
        cmocka_unit_test(short_mates_do_not_change_bits),
        cmocka_unit_test(split_mates_do_not_change_bits),
        cmocka_unit_test(gates),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
