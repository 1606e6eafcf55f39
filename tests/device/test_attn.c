/* test_attn.c: attn_decode_*, attn_extend and attn_finish, planned by plan_step, at one warp width against the float64 oracle: a covering array
 * in which every pair of feature values meets, another one over the formats and dims that the matrix units' kernels are made for, and random problems.
 * Arguments: 32 or 64, then random=N problems from seed=S on, cover=0, short=1 (fewer rows, keys and heads: for instrumented builds). */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "device/device_check.h"
#include "parity/cover.h"

enum { ROWS_MAX = 2000 };

static uint32_t warp;
static int64_t n_random = 20, first_seed = 1, with_cover = 1, is_short;

typedef struct kv_format { uint32_t dtype, mode, scale_dtype, rotated; } kv_format;

/* Every format with every scale mode, and rotation of each. */
static const kv_format kv_formats[] = {
    { OCT_DTYPE_E4M3FN, OCT_SCALE_NONE, 0, 0 },
    { OCT_DTYPE_E4M3FN, OCT_SCALE_TENSOR, 0, 0 },
    { OCT_DTYPE_E4M3FN, OCT_SCALE_LAYER, 0, 1 },
    { OCT_DTYPE_E4M3FN, OCT_SCALE_LAYER_HEAD, 0, 0 },
    { OCT_DTYPE_E4M3FN, OCT_SCALE_TOKEN_HEAD, OCT_DTYPE_F32, 0 },
    { OCT_DTYPE_E4M3FN, OCT_SCALE_TOKEN_HEAD, OCT_DTYPE_F16, 1 },
    { OCT_DTYPE_E4M3FN, OCT_SCALE_CHANNEL, 0, 0 },
    { OCT_DTYPE_E5M2, OCT_SCALE_NONE, 0, 1 },
    { OCT_DTYPE_E5M2, OCT_SCALE_LAYER, 0, 0 },
    { OCT_DTYPE_E5M2, OCT_SCALE_TOKEN_HEAD, OCT_DTYPE_F16, 0 },
    { OCT_DTYPE_E4M3FNUZ, OCT_SCALE_LAYER_HEAD, 0, 0 },
    { OCT_DTYPE_E4M3FNUZ, OCT_SCALE_TOKEN_HEAD, OCT_DTYPE_F32, 1 },
    { OCT_DTYPE_I8, OCT_SCALE_TOKEN_HEAD, OCT_DTYPE_F32, 1 },
    { OCT_DTYPE_I8, OCT_SCALE_TOKEN_HEAD, OCT_DTYPE_F16, 0 },
    { OCT_DTYPE_I8, OCT_SCALE_CHANNEL, 0, 1 },
    { OCT_DTYPE_BF16, OCT_SCALE_NONE, 0, 0 },
    { OCT_DTYPE_F16, OCT_SCALE_NONE, 0, 1 },
    { OCT_DTYPE_F32, OCT_SCALE_NONE, 0, 0 },
    { OCT_DTYPE_V4, OCT_SCALE_NONE, 0, 1 },   /* V's alone, last */
};
enum { V_ONLY = 1 };

static const int64_t pages[] = { 1, 4, 5, 16, 64, 128 };
static const int64_t dims[][2] = { { 64, 64 }, { 16, 16 }, { 24, 40 }, { 80, 80 }, { 96, 112 }, { 128, 128 }, { 192, 128 }, { 72, 256 }, { 256, 256 }, { 512, 512 } };
static const int64_t ratios[] = { 1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 20 };
static const int64_t floats[] = { OCT_DTYPE_F32, OCT_DTYPE_F16, OCT_DTYPE_BF16, OCT_DTYPE_E4M3FN, OCT_DTYPE_E4M3FNUZ, OCT_DTYPE_E5M2 };
static const int64_t windows[] = { 0, 1, 16, 100 };
static const double caps[] = { 0.0, 1.0, 30.0 };
static const int64_t splits[] = { 0, 7, 64 };
/* Sequences of one batch: decode, decode of several rows, prefill, a chunk after a prefix, more rows than keys, mixtures. */
static const int32_t q_lens[][3] = { { 1, 1, 1 }, { 4, 7, 1 }, { 19, 0, 1 }, { 1, 5, 11 }, { 9, 3, 5 }, { 0, 1, 13 } };
static const int32_t kv_lens[][3] = { { 33, 1, 130 }, { 16, 15, 17 }, { 33, 5, 0 }, { 66, 40, 51 }, { 5, 0, 7 }, { 20, 110, 24 } };
static const int64_t data[][2] = { { DATA_NORMAL, DATA_NORMAL }, { DATA_CODES, DATA_CODES }, { DATA_NEEDLE, DATA_NORMAL }, { DATA_EQUAL, DATA_SUBNORMAL },
                                   { DATA_SATURATED, DATA_SATURATED }, { DATA_SUBNORMAL, DATA_ONE_HOT }, { DATA_NORMAL, DATA_HALF } };

#define COUNT(array) ((int)(sizeof(array) / sizeof((array)[0])))

enum feature { K_FORMAT, V_FORMAT, LAYOUT, PAGE, DIMS, RATIO, HEADS, Q_DTYPE, OUT_DTYPE, CAUSAL, WINDOW, CAP, SINK, MASK, DETERMINISTIC, SPLIT, LENGTHS,
               FORM, STRIDES, DATA, LSE, POISON, FEATURES };

static const int n_values[FEATURES] = {
    [K_FORMAT] = COUNT(kv_formats) - V_ONLY, [V_FORMAT] = COUNT(kv_formats), [LAYOUT] = 3, [PAGE] = COUNT(pages), [DIMS] = COUNT(dims), [RATIO] = COUNT(ratios),
    [HEADS] = 2, [Q_DTYPE] = COUNT(floats), [OUT_DTYPE] = COUNT(floats), [CAUSAL] = 2, [WINDOW] = COUNT(windows), [CAP] = COUNT(caps), [SINK] = 5,
    [MASK] = 2, [DETERMINISTIC] = 2, [SPLIT] = COUNT(splits), [LENGTHS] = COUNT(q_lens), [FORM] = 4, [STRIDES] = 4, [DATA] = COUNT(data), [LSE] = 2,
    [POISON] = 4,
};

static unsigned char rows[ROWS_MAX][COVER_FEATURES];

/* Of the second array: as much of each as kernels of the matrix units have forms. */
static const kv_format mma_formats[] = {
    { OCT_DTYPE_BF16, OCT_SCALE_NONE, 0, 0 },
    { OCT_DTYPE_F16, OCT_SCALE_NONE, 0, 1 },
    { OCT_DTYPE_E4M3FN, OCT_SCALE_LAYER, 0, 0 },
    { OCT_DTYPE_I8, OCT_SCALE_TOKEN_HEAD, OCT_DTYPE_F32, 1 },
};
static const int64_t mma_dims[][2] = { { 64, 64 }, { 80, 80 }, { 96, 96 }, { 112, 112 }, { 128, 128 }, { 192, 192 }, { 192, 128 }, { 256, 256 } };

static int32_t at_most(int32_t n, int32_t most) { return n < most ? n : most; }

static problem_shape shape_of(int64_t index, int is_mma)
{
    const unsigned char *row = rows[index];
    const kv_format *formats = is_mma ? mma_formats : kv_formats, *k = &formats[row[K_FORMAT]], *v = &formats[row[V_FORMAT]];
    const int64_t(*const dim)[2] = is_mma ? mma_dims : dims;
    problem_shape s = problem_plain((is_mma ? 3000000 : 2000000) + index);
    s.k_dtype = k->dtype, s.k_scale_mode = k->mode, s.k_scale_dtype = k->scale_dtype, s.k_rotated = k->rotated;
    s.v_dtype = v->dtype, s.v_scale_mode = v->mode, s.v_scale_dtype = v->scale_dtype, s.v_rotated = v->rotated;
    s.layout = row[LAYOUT];
    s.page_size = pages[row[PAGE]];
    s.dim_k = dim[row[DIMS]][0];
    s.dim_v = dim[row[DIMS]][1];
    if (s.layout == OCT_LAYOUT_V5D) {   /* chunks of up to 16 dims and 16 tokens */
        s.page_size = (s.page_size + 15) / 16 * 16;
        s.dim_k = (s.dim_k + 15) / 16 * 16;
    }
    if (s.v_dtype == OCT_DTYPE_V4) {
        s.layout = s.layout == OCT_LAYOUT_V5D ? OCT_LAYOUT_HND : s.layout;
        s.dim_v = (s.dim_v + 31) / 32 * 32;
    }
    s.heads = is_short || ratios[row[RATIO]] > 8 ? 1 : row[HEADS] + 1;
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
    int32_t q_len[3], kv_len[3];
    for (int i = 0; i < 3; i++) {
        q_len[i] = is_short ? at_most(q_lens[row[LENGTHS]][i], 11) : q_lens[row[LENGTHS]][i];
        kv_len[i] = is_short ? at_most(kv_lens[row[LENGTHS]][i], 40) : kv_lens[row[LENGTHS]][i];
    }
    problem_lengths(&s, 3, q_len, kv_len);
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

static int64_t run_cover(void *arg, int64_t index)
{
    (void)arg;
    const problem_shape s = shape_of(index, 0);
    return device_check_attn(warp, &s);
}

static int64_t run_mma_cover(void *arg, int64_t index)
{
    (void)arg;
    const problem_shape s = shape_of(index, 1);
    return device_check_attn_of(warp, &s, DEVICE_MMA);
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

static void every_pair_of_mma_forms(void **state)
{
    int n_mma[FEATURES];
    (void)state;
    if (!with_cover)
        skip();
    memcpy(n_mma, n_values, sizeof n_mma);
    n_mma[K_FORMAT] = n_mma[V_FORMAT] = COUNT(mma_formats);
    n_mma[DIMS] = COUNT(mma_dims);
    n_mma[PAGE] = n_mma[Q_DTYPE] = n_mma[OUT_DTYPE] = n_mma[SINK] = n_mma[RATIO] = 3;   /* the first array has the others */
    n_mma[FORM] = n_mma[STRIDES] = n_mma[POISON] = 2;
    const int n = cover_make(FEATURES, n_mma, 8, ROWS_MAX, rows);
    assert_true(n > 0);
    print_message("covering array: %d problems\n", n);
    assert_int_equal(isolate_run("matrix units", n, 60, run_mma_cover, NULL), 0);
}

/* A NaN or an infinity in q, which codes of i8 and e4m3 cannot say, comes out of its row and head, and of no other. In this process, so after
 * all that fork: a GPU that it has opened is no use to its children. */
static void q_that_is_no_number(void **state)
{
    static const uint32_t dtypes[] = { OCT_DTYPE_I8, OCT_DTYPE_E4M3FN, OCT_DTYPE_E4M3FNUZ };
    device_rig *rig = device_check_rig(warp);
    (void)state;
    for (int64_t i = 0; i < 6; i++) {
        enum { ROWS = 2, HEADS = 3, DIM = 64, AT_ROW = 1, AT_HEAD = 2 };
        problem p;
        problem_shape s = problem_plain(50 + i);
        char why[640];
        float before[ROWS * HEADS * DIM];
        s.k_dtype = dtypes[i % 3];
        s.k_scale_mode = s.k_dtype == OCT_DTYPE_I8 ? OCT_SCALE_TOKEN_HEAD : OCT_SCALE_LAYER;
        s.k_scale_dtype = s.k_dtype == OCT_DTYPE_I8 ? OCT_DTYPE_F32 : 0;
        s.heads = 1;
        s.heads_q = HEADS;
        s.dim_k = s.dim_v = DIM;
        s.q_dtype = s.out_dtype = OCT_DTYPE_F32;
        problem_lengths(&s, 1, (int32_t[]){ ROWS }, (int32_t[]){ 21 });
        assert_int_equal(problem_make(&p, &s), 0);
        assert_true(p.args.q_row_stride == HEADS * DIM && p.args.out_row_stride == HEADS * DIM);
        rig->chip.has_mma = 1;
        int bad = device_run_attn(rig, &p, NULL, NULL, why, sizeof why);
        memcpy(before, p.args.out, sizeof before);
        ((float *)(void *)p.q.at)[(AT_ROW * HEADS + AT_HEAD) * DIM + 7] = i < 3 ? NAN : INFINITY;
        bad |= device_run_attn(rig, &p, NULL, NULL, why, sizeof why);
        rig->chip.has_mma = 0;
        if (bad)
            print_message("%s\n", why);
        assert_int_equal(bad, 0);
        for (int at = 0; at < ROWS * HEADS * DIM; at++) {
            const float after = ((const float *)p.args.out)[at];
            if (at / DIM == AT_ROW * HEADS + AT_HEAD ? !isnan(after) : memcmp(&after, &before[at], 4) != 0)
                fail_msg("K of %u, element %d: %g, was %g", (unsigned)s.k_dtype, at, (double)after, (double)before[at]);
        }
        problem_drop(&p);
    }
}

/* The largest numbers that q may have keep their sign in codes of i8: the key that they agree with most is the one that is seen. Not their size, so
 * no log-sum is asked for. */
static void q_of_the_largest_numbers(void **state)
{
    device_rig *rig = device_check_rig(warp);
    (void)state;
    for (int64_t i = 0; i < 8; i++) {
        problem p;
        problem_shape s = problem_plain(60 + i % 4);
        char why[640];
        s.k_dtype = OCT_DTYPE_I8;
        s.k_scale_mode = OCT_SCALE_TOKEN_HEAD;
        s.k_scale_dtype = OCT_DTYPE_F32;
        s.heads = 1;
        s.heads_q = 3;
        s.dim_k = s.dim_v = 64;
        s.q_dtype = s.out_dtype = OCT_DTYPE_F32;
        s.with_lse = 0;
        s.sm_scale = i < 4 ? 0x1p-10 : 1.0;
        problem_lengths(&s, 1, (int32_t[]){ i % 4 < 2 ? 2 : 20 }, (int32_t[]){ 37 });
        assert_int_equal(problem_make(&p, &s), 0);
        /* From 4 on: scores that are within f32 only once a token's scale is in them. */
        float *scale = (float *)p.layer.k_token_scale;
        for (int64_t at = 0; i >= 4 && at < p.layer.n_pages * p.layer.k_scale_page_stride; at++)
            scale[at] *= 0x1p-10f;
        for (int64_t row = 0; row < p.rows * 3; row++)
            ((float *)(void *)p.q.at)[row / 3 * p.args.q_row_stride + row % 3 * p.args.q_head_stride + 7] = i % 2 ? -0x1p127f : 0x1p127f;
        assert_int_equal(problem_expect(&p), 0);
        rig->chip.has_mma = 1;
        const int bad = device_run_attn(rig, &p, NULL, NULL, why, sizeof why);
        rig->chip.has_mma = 0;
        if (bad)
            print_message("%s\n", why);
        assert_int_equal(bad, 0);
        const compare_bound bound = device_check_bound(1);
        const compare_verdict verdict = problem_judge(&p, &bound);
        if (!verdict.ok)
            print_message("%s\n", verdict.text);
        assert_true(verdict.ok);
        problem_drop(&p);
    }
}

/* Rows of decode, rows of extend; the key is one that the first rows do not see yet, then one that has left the last rows' window. */
static void hidden_codes_that_are_no_numbers(void **state)
{
    static const struct { uint32_t dtype, code; int64_t dim; } planted[] = { { OCT_DTYPE_E4M3FN, 0x7F, 64 }, { OCT_DTYPE_E4M3FNUZ, 0x80, 64 }, { OCT_DTYPE_E5M2, 0x7C, 64 },
        { OCT_DTYPE_E5M2, 0xFE, 256 }, { OCT_DTYPE_BF16, 0x7FC0, 64 }, { OCT_DTYPE_F16, 0xFC00, 64 }, { OCT_DTYPE_E4M3FN, 0xFF, 256 }, { OCT_DTYPE_F32, 0x7FC00000, 64 } };
    (void)state;
    for (int i = 0; i < 8 * COUNT(planted); i++) {
        const uint32_t dtype = planted[i / 8].dtype;
        const device_hidden hidden = { .k_dtype = dtype, .v_dtype = dtype, .code = planted[i / 8].code, .dim = planted[i / 8].dim, .n_rows = i % 2 ? 20 : 2,
                                       .is_new = i / 2 % 2, .is_in_k = i / 4 % 2 };
        char why[640];
        if (device_check_hidden(device_check_rig(warp), &hidden, why, sizeof why) != 0)
            fail_msg("%s", why);
    }
    for (int i = 0; i < 8; i++) {   /* scales of blocks of V */
        const device_hidden hidden = { .k_dtype = OCT_DTYPE_BF16, .v_dtype = OCT_DTYPE_V4, .code = i / 4 ? 0x7C00 : 0x7E00, .dim = 64, .n_rows = i % 2 ? 20 : 2, .is_new = i / 2 % 2 };
        char why[640];
        if (device_check_hidden(device_check_rig(warp), &hidden, why, sizeof why) != 0)
            fail_msg("%s", why);
    }
}

static int64_t run_random(void *arg, int64_t index)
{
    (void)arg;
    const problem_shape s = problem_random(first_seed + index);
    return device_check_attn(warp, &s);
}

static int64_t run_v4(void *arg, int64_t index)
{
    (void)arg;
    const problem_shape s = problem_random_v4(first_seed + index);
    return device_check_attn(warp, &s);
}

static void random_problems(void **state)
{
    (void)state;
    print_message("seeds %lld to %lld\n", (long long)first_seed, (long long)(first_seed + n_random - 1));
    assert_int_equal(isolate_run("random", n_random, 60, run_random, NULL), 0);
    assert_int_equal(isolate_run("random, V in v4", n_random / 2, 60, run_v4, NULL), 0);
}

static void every_kernel_ran(void **state)
{
    (void)state;
    isolate_report();
    if (!with_cover)
        skip();
    for (uint32_t i = 0; simt_nth(warp, i) != NULL; i++) {
        const char *kernel = simt_nth(warp, i)->name;
        char name[64];
        if (strncmp(kernel, "attn_", 5) != 0 || strcmp(kernel, "attn_merge") == 0 || strstr(kernel, "_sm90a") != NULL)   /* have tests of their own */
            continue;
        snprintf(name, sizeof name, "%s/%u", kernel, warp);
        if (isolate_n_ran(name) < (is_short ? 1 : 3))
            fail_msg("%s was judged on %lld cases", name, (long long)isolate_n_ran(name));
    }
}

int main(int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        if (strncmp(argv[i], "random=", 7) == 0)
            n_random = strtoll(argv[i] + 7, NULL, 10);
        else if (strncmp(argv[i], "seed=", 5) == 0)
            first_seed = strtoll(argv[i] + 5, NULL, 10);
        else if (strncmp(argv[i], "cover=", 6) == 0)
            with_cover = strtoll(argv[i] + 6, NULL, 10);
        else if (strncmp(argv[i], "short=", 6) == 0)
            is_short = strtoll(argv[i] + 6, NULL, 10);
        else
            warp = (uint32_t)strtoul(argv[i], NULL, 10);
    }
    if (warp != 32 && warp != 64)
        return fprintf(stderr, "usage: device_attn 32|64 [random=N] [seed=S] [cover=0] [short=1]\n"), 2;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_pair_of_features),
        cmocka_unit_test(every_pair_of_mma_forms),
        cmocka_unit_test(random_problems),
        cmocka_unit_test(q_that_is_no_number),
        cmocka_unit_test(q_of_the_largest_numbers),
        cmocka_unit_test(hidden_codes_that_are_no_numbers),
        cmocka_unit_test(every_kernel_ran),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
