/* test_attn.c: every row of attn_decode and attn_extend against the oracle: a covering array in which every pair of feature
 * values meets, and random problems. Arguments: random=N problems from seed=S on; only=PATTERN
 * of test names. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "parity/cover.h"
#include "parity/isolate.h"
#include "parity/problem.h"
#include "parity/roster.h"
#include "test_pattern.h"

enum { ROWS_MAX = 2000 };

static int64_t n_random = 1500, first_seed = 1;

typedef struct kv_format { uint32_t dtype, mode, scale_dtype, rotated; } kv_format;

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
    { OCT_DTYPE_I8, OCT_SCALE_TOKEN_HEAD, OCT_DTYPE_F32, 0 },
    { OCT_DTYPE_I8, OCT_SCALE_TOKEN_HEAD, OCT_DTYPE_F16, 0 },
    { OCT_DTYPE_I8, OCT_SCALE_TOKEN_HEAD, OCT_DTYPE_F32, 1 },
    { OCT_DTYPE_I8, OCT_SCALE_TOKEN_HEAD, OCT_DTYPE_F16, 1 },
    { OCT_DTYPE_I8, OCT_SCALE_CHANNEL, 0, 0 },
    { OCT_DTYPE_I8, OCT_SCALE_CHANNEL, 0, 1 },
    { OCT_DTYPE_BF16, OCT_SCALE_NONE, 0, 0 },
    { OCT_DTYPE_BF16, OCT_SCALE_NONE, 0, 1 },
    { OCT_DTYPE_F16, OCT_SCALE_NONE, 0, 0 },
    { OCT_DTYPE_F32, OCT_SCALE_NONE, 0, 0 },
};

static const int64_t pages[] = { 1, 4, 5, 16, 64, 128 };
static const int64_t dims[][2] = { { 64, 64 }, { 16, 16 }, { 24, 40 }, { 80, 80 }, { 96, 96 }, { 128, 128 }, { 192, 128 }, { 72, 256 }, { 256, 256 } };
static const int64_t ratios[] = { 1, 2, 3, 4, 5, 6, 7, 8, 16 };
static const int64_t floats[] = { OCT_DTYPE_F32, OCT_DTYPE_F16, OCT_DTYPE_BF16, OCT_DTYPE_E4M3FN, OCT_DTYPE_E4M3FNUZ, OCT_DTYPE_E5M2 };
static const int64_t windows[] = { 0, 1, 16, 100 };
static const double caps[] = { 0.0, 1.0, 30.0 };
static const int64_t splits[] = { 0, 1, 7, 64 };
/* Sequences of one batch: decode, decode of several rows, prefill, a chunk after a prefix, more rows than keys, mixtures. */
static const int32_t q_lens[][4] = { { 1, 1, 1, 1 }, { 4, 2, 7, 1 }, { 33, 0, 20, 1 }, { 1, 16, 40, 17 }, { 9, 3, 1, 5 }, { 0, 1, 1, 24 } };
static const int32_t kv_lens[][4] = { { 33, 1, 64, 130 }, { 16, 48, 15, 17 }, { 33, 5, 20, 0 }, { 100, 16, 60, 81 }, { 5, 0, 0, 7 }, { 20, 200, 3, 24 } };
static const int64_t data[][2] = { { DATA_NORMAL, DATA_NORMAL }, { DATA_CODES, DATA_CODES }, { DATA_NEEDLE, DATA_NORMAL }, { DATA_EQUAL, DATA_SUBNORMAL },
                                   { DATA_SATURATED, DATA_SATURATED }, { DATA_SUBNORMAL, DATA_ONE_HOT }, { DATA_NORMAL, DATA_HALF } };

#define COUNT(array) ((int)(sizeof(array) / sizeof((array)[0])))

enum feature { K_FORMAT, V_FORMAT, LAYOUT, PAGE, DIMS, RATIO, HEADS, Q_DTYPE, OUT_DTYPE, CAUSAL, WINDOW, CAP, SINK, MASK, DETERMINISTIC, SPLIT, THREADS,
               LENGTHS, FORM, STRIDES, DATA, LSE, POISON, FEATURES };

static const int n_values[FEATURES] = {
    [K_FORMAT] = COUNT(kv_formats), [V_FORMAT] = COUNT(kv_formats), [LAYOUT] = 3, [PAGE] = COUNT(pages), [DIMS] = COUNT(dims), [RATIO] = COUNT(ratios),
    [HEADS] = 3, [Q_DTYPE] = COUNT(floats), [OUT_DTYPE] = COUNT(floats), [CAUSAL] = 2, [WINDOW] = COUNT(windows), [CAP] = COUNT(caps), [SINK] = 5,
    [MASK] = 2, [DETERMINISTIC] = 2, [SPLIT] = COUNT(splits), [THREADS] = 3, [LENGTHS] = COUNT(q_lens), [FORM] = 4, [STRIDES] = 4, [DATA] = COUNT(data),
    [LSE] = 2, [POISON] = 4,
};

static unsigned char rows[ROWS_MAX][COVER_FEATURES];

static problem_shape shape_of(int64_t index)
{
    const unsigned char *row = rows[index];
    const kv_format *k = &kv_formats[row[K_FORMAT]], *v = &kv_formats[row[V_FORMAT]];
    problem_shape s = problem_plain(1000000 + index);
    s.k_dtype = k->dtype, s.k_scale_mode = k->mode, s.k_scale_dtype = k->scale_dtype, s.k_rotated = k->rotated;
    s.v_dtype = v->dtype, s.v_scale_mode = v->mode, s.v_scale_dtype = v->scale_dtype, s.v_rotated = v->rotated;
    s.layout = row[LAYOUT];
    s.page_size = pages[row[PAGE]];
    s.dim_k = dims[row[DIMS]][0];
    s.dim_v = dims[row[DIMS]][1];
    if (s.layout == OCT_LAYOUT_V5D) {   /* chunks of up to 16 dims and 16 tokens */
        s.page_size = (s.page_size + 15) / 16 * 16;
        s.dim_k = (s.dim_k + 15) / 16 * 16;
    }
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
    s.threads = row[THREADS] + 1;
    problem_lengths(&s, 4, q_lens[row[LENGTHS]], kv_lens[row[LENGTHS]]);
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
    const problem_shape s = shape_of(index);
    return problem_check(&s);
}

static void every_pair_of_features(void **state)
{
    (void)state;
    const int n = cover_make(FEATURES, n_values, 7, ROWS_MAX, rows);
    assert_true(n > 0);
    print_message("covering array: %d problems\n", n);
    assert_int_equal(isolate_run("features", n, 120, run_cover, NULL), 0);
}

/* The cap is any positive f32: what a variant multiplies it by must not leave f32's range, nor fall below it. */
static int64_t run_cap(void *arg, int64_t index)
{
    static const float sizes[] = { 1e-38f, 1e-30f, 1e-6f, 1e6f, 1e30f, 2.4e38f, 3.4e38f };
    (void)arg;
    problem_shape s = problem_random(7000 + index);
    s.softcap = sizes[index % COUNT(sizes)];
    return problem_check(&s);
}

static void caps_of_any_size(void **state)
{
    (void)state;
    assert_int_equal(isolate_run("caps", 70, 120, run_cap, NULL), 0);
}

static int64_t run_random(void *arg, int64_t index)
{
    (void)arg;
    const problem_shape s = problem_random(first_seed + index);
    return problem_check(&s);
}

/* Random problems with V in v4: every row takes them or says by its gate that it doesn't. */
static int64_t run_v4(void *arg, int64_t index)
{
    (void)arg;
    const problem_shape s = problem_random_v4(first_seed + 500000 + index);
    return problem_check(&s);
}

static void v_in_4_bits(void **state)
{
    (void)state;
    assert_int_equal(isolate_run("v4", n_random / 10, 120, run_v4, NULL), 0);
}

static void random_problems(void **state)
{
    (void)state;
    print_message("seeds %lld to %lld\n", (long long)first_seed, (long long)(first_seed + n_random - 1));
    assert_int_equal(isolate_run("random", n_random, 120, run_random, NULL), 0);
}

static void every_variant_ran(void **state)
{
    (void)state;
    isolate_report();
    assert_true(roster_all_ran(OCT__OP_attn_decode, n_random / 4));
    assert_true(roster_all_ran(OCT__OP_attn_extend, n_random / 8));
}

int main(int argc, char **argv)
{
    const char *only = "*";
    for (int i = 1; i < argc; i++) {
        if (strncmp(argv[i], "random=", 7) == 0)
            n_random = strtoll(argv[i] + 7, NULL, 10);
        else if (strncmp(argv[i], "seed=", 5) == 0)
            first_seed = strtoll(argv[i] + 5, NULL, 10);
        else if (strncmp(argv[i], "only=", 5) == 0)
            only = argv[i] + 5;
        else
            return fprintf(stderr, "usage: parity_attn [random=N] [seed=S] [only=PATTERN]\n"), 2;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_pair_of_features),
        cmocka_unit_test(caps_of_any_size),
        cmocka_unit_test(v_in_4_bits),
        cmocka_unit_test(random_problems),
        cmocka_unit_test(every_variant_ran),
    };
    if (!test_pattern(tests, sizeof(tests) / sizeof(tests[0]), only))
        return 2;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
