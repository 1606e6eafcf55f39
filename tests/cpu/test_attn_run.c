/* test_attn_run.c: the runner with the scalar kernel: splits, threads, sinks, empty rows, formats in and out, scales, rotation. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "fixture.h"
#include "number/dtype.h"

#define F32_BOUND 1e-5 /* of max |V|: the bound of the f32 path */

static void three_sequences(fixture *f)
{
    f->n_sequences = 3;
    f->q_len[0] = 5, f->kv_len[0] = 19;
    f->q_len[1] = 1, f->kv_len[1] = 33;
    f->q_len[2] = 3, f->kv_len[2] = 3;
}

static void test_plain(void **state)
{
    (void)state;
    fixture f;
    fixture_init(&f);
    three_sequences(&f);
    fixture_make(&f);
    fixture_run(&f, 2, 2, 1, 1);
    assert_true(fixture_worst(&f) <= F32_BOUND);
    fixture_free(&f);
}

/* Any number of splits gives the one-pass result within 1e-6 of it, also where splits see nothing. */
static void test_splits(void **state)
{
    (void)state;
    for (uint32_t window = 0; window < 8; window += 7) {
        fixture f;
        fixture_init(&f);
        three_sequences(&f);
        f.spec.window_tokens = window;
        f.spec.has_sink = 1;
        fixture_make(&f);
        fixture_run(&f, 4, 2, 1, 1);
        float once[9][2][24];
        for (int64_t row = 0; row < 9; row++) {
            for (uint32_t h = 0; h < 2; h++) {
                fixture_out_f32(&f, row, h, once[row][h]);
            }
        }
        for (uint32_t n_splits = 2; n_splits <= 19; n_splits++) {
            fixture_run(&f, 4, 2, n_splits, 1);
            assert_true(fixture_worst(&f) <= F32_BOUND);
            for (int64_t row = 0; row < 9; row++) {
                for (uint32_t h = 0; h < 2; h++) {
                    float x[24], norm = 0.0f;
                    fixture_out_f32(&f, row, h, x);
                    for (uint32_t d = 0; d < 24; d++) {
                        norm = fabsf(once[row][h][d]) > norm ? fabsf(once[row][h][d]) : norm;
                    }
                    for (uint32_t d = 0; d < 24; d++) {
                        assert_true(fabsf(x[d] - once[row][h][d]) <= 1e-6f * norm);
                    }
                }
            }
        }
        fixture_free(&f);
    }
}

/* Whoever arrives last merges, yet the bits are those of one thread. */
static void test_threads_bits(void **state)
{
    (void)state;
    fixture f;
    fixture_init(&f);
    f.spec.kv.heads = 3;
    f.spec.heads_q = 9;
    three_sequences(&f);
    fixture_make(&f);
    const size_t n_bytes = (size_t)(9 * f.args.out_row_stride) * sizeof(float);
    unsigned char *once = malloc(n_bytes);
    assert_non_null(once);
    fixture_run(&f, 1, 3, 7, 1);
    assert_true(fixture_worst(&f) <= F32_BOUND);
    memcpy(once, f.out, n_bytes);
    for (int repeat = 0; repeat < 20; repeat++) {
        memset(f.out, 0xFF, n_bytes);
        fixture_run(&f, 1, 3, 7, repeat % 2 == 0 ? 4 : 16);   /* 16: two eights */
        assert_memory_equal(f.out, once, n_bytes);
    }
    free(once);
    fixture_free(&f);
}

/* A sink of -inf is none; one of +50 takes all the weight; an empty row's lse is its sink. */
static void test_sinks(void **state)
{
    (void)state;
    for (uint32_t n_splits = 1; n_splits <= 3; n_splits++) {
        fixture f;
        fixture_init(&f);
        three_sequences(&f);
        f.q_len[0] = 22; /* rows 0..2 see nothing */
        f.spec.has_sink = 1;
        fixture_make(&f);
        f.sink[0] = -INFINITY;
        f.sink[1] = 50.0f;
        fixture_run(&f, 4, 2, n_splits, 1);
        assert_true(fixture_worst(&f) <= F32_BOUND);
        for (int64_t row = 0; row < 26; row++) {
            float x[24];
            fixture_out_f32(&f, row, 1, x);
            for (uint32_t d = 0; d < 24; d++) {
                assert_true(fabsf(x[d]) < 1e-15f);
            }
        }
        assert_true(f.lse[0] == -INFINITY);
        assert_true(f.lse[1] == 50.0f);
        f.sink[1] = 1000.0f; /* whose exp no float holds */
        fixture_run(&f, 4, 2, n_splits, 1);
        assert_true(fixture_worst(&f) <= F32_BOUND);
        fixture_free(&f);
    }
}

static void test_empty_rows(void **state)
{
    (void)state;
    fixture f;
    fixture_init(&f);
    f.n_sequences = 5;
    const int32_t kv_len[5] = { 0, 5, 0, 16, 0 };
    for (int s = 0; s < 5; s++) {
        f.q_len[s] = s == 1 ? 33 : 1;
        f.kv_len[s] = kv_len[s];
    }
    fixture_make(&f);
    for (uint32_t n_splits = 1; n_splits <= 2; n_splits++) {
        memset(f.out, 0xFF, (size_t)(37 * f.args.out_row_stride) * sizeof(float));
        fixture_run(&f, 8, 1, n_splits, 2);
        assert_true(fixture_worst(&f) <= F32_BOUND);
        float x[24];
        fixture_out_f32(&f, 0, 0, x);
        for (uint32_t d = 0; d < 24; d++) {
            assert_true(x[d] == 0.0f);
        }
        assert_true(f.lse[0] == -INFINITY);
        assert_true(f.lse[1 * f.args.lse_row_stride] == -INFINITY);      /* row 0 of 33 over 5 keys */
        assert_true(f.lse[33 * f.args.lse_row_stride] > -INFINITY);      /* its last row sees all 5 */
    }
    fixture_free(&f);
}

/* q and out in every format, judged in what the format can hold: half a unit in the last place of the largest |out|. */
static void test_q_and_out_formats(void **state)
{
    (void)state;
    static const struct { uint32_t dtype; double bound; } outs[] = {
        { OCT_DTYPE_F32, 0.0 }, { OCT_DTYPE_F16, 0x1p-11 }, { OCT_DTYPE_BF16, 0x1p-8 },
        { OCT_DTYPE_E4M3FN, 0x1p-4 }, { OCT_DTYPE_E4M3FNUZ, 0x1p-4 }, { OCT_DTYPE_E5M2, 0x1p-3 },
    };
    for (size_t o = 0; o < sizeof outs / sizeof outs[0]; o++) {
        for (uint32_t q_dtype = OCT_DTYPE_F32; q_dtype <= OCT_DTYPE_E5M2; q_dtype++) {
            fixture f;
            fixture_init(&f);
            three_sequences(&f);
            f.spec.q_dtype = q_dtype;
            f.spec.out_dtype = outs[o].dtype;
            fixture_make(&f);
            fixture_run(&f, 2, 2, 2, 1);
            assert_true(fixture_worst(&f) <= F32_BOUND + outs[o].bound);
            fixture_free(&f);
        }
    }
}

/* 8-bit outputs beyond the largest value saturate; they never become NaN or infinity. */
static void test_out_saturates(void **state)
{
    (void)state;
    fixture f;
    fixture_init(&f);
    three_sequences(&f);
    f.spec.out_dtype = OCT_DTYPE_E4M3FN;
    fixture_make(&f);
    f.out_scale = 1e-8f;
    fixture_run(&f, 2, 2, 1, 1);
    for (uint32_t d = 0; d < 24; d++) {
        assert_int_equal(fixture_out(&f, 0, 0)[d] & 0x7F, 0x7E);
    }
    fixture_free(&f);
}

/* Every scale mode of K and V, plain and rotated: the runner's share of the scales meets the kernel's. */
static void test_scales_and_rotation(void **state)
{
    (void)state;
    static const oct_kv_format formats[] = {
        { OCT_DTYPE_BF16, OCT_SCALE_NONE, 0, 0 },       { OCT_DTYPE_E4M3FN, OCT_SCALE_NONE, 0, 0 },
        { OCT_DTYPE_E4M3FN, OCT_SCALE_TENSOR, 0, 0 },   { OCT_DTYPE_E4M3FNUZ, OCT_SCALE_LAYER, 0, 1 },
        { OCT_DTYPE_E5M2, OCT_SCALE_LAYER_HEAD, 0, 0 }, { OCT_DTYPE_I8, OCT_SCALE_CHANNEL, 0, 1 },
        { OCT_DTYPE_E4M3FN, OCT_SCALE_CHANNEL, 0, 0 },  { OCT_DTYPE_I8, OCT_SCALE_TOKEN_HEAD, OCT_DTYPE_F32, 1 },
        { OCT_DTYPE_I8, OCT_SCALE_TOKEN_HEAD, OCT_DTYPE_F16, 0 },
    };
    const size_t n = sizeof formats / sizeof formats[0];
    for (size_t k = 0; k < n; k++) {
        for (size_t v = 0; v < n; v++) {
            fixture f;
            fixture_init(&f);
            f.spec.kv.heads = 2;
            f.spec.heads_q = 4;
            f.spec.kv.layout = (k + v) % 2 ? OCT_LAYOUT_NHD : OCT_LAYOUT_HND;
            f.spec.kv.k = formats[k];
            f.spec.kv.v = formats[v];
            f.seed = 100 + k * n + v;
            three_sequences(&f);
            fixture_make(&f);
            fixture_run(&f, 2, 2, 1 + (uint32_t)(k + v) % 3, 1);
            assert_true(fixture_worst(&f) <= F32_BOUND);
            fixture_free(&f);
        }
    }
}

static void test_mask_window_softcap(void **state)
{
    (void)state;
    for (uint32_t bits = 0; bits < 16; bits++) {
        fixture f;
        fixture_init(&f);
        three_sequences(&f);
        f.q_len[0] = 40; /* wider than one mask word, longer than its keys */
        f.spec.has_mask = bits & 1;
        f.spec.window_tokens = bits & 2 ? 6 : 0;
        f.spec.softcap = bits & 4 ? 1.0f : 0.0f;
        f.spec.causal = !(bits & 8);
        f.seed = 7 + bits;
        fixture_make(&f);
        fixture_run(&f, 3, 1, 2, 1);
        assert_true(fixture_worst(&f) <= F32_BOUND);
        fixture_free(&f);
    }
}

/* V5D holds the same numbers elsewhere: same bits out. */
static void test_layouts_agree(void **state)
{
    (void)state;
    float out[3][9][24];
    for (uint32_t layout = 0; layout < 3; layout++) {
        fixture f;
        fixture_init(&f);
        f.spec.kv.layout = layout;
        f.spec.kv.page_size = 16;
        f.spec.kv.dim_k = 32; /* V5D keeps K in whole chunks of 16 */
        f.spec.kv.k = f.spec.kv.v = (oct_kv_format){ OCT_DTYPE_E4M3FN, OCT_SCALE_TOKEN_HEAD, OCT_DTYPE_F32, 0 };
        three_sequences(&f);
        fixture_make(&f);
        fixture_run(&f, 2, 2, 2, 1);
        assert_true(fixture_worst(&f) <= F32_BOUND);
        for (int64_t row = 0; row < 9; row++) {
            fixture_out_f32(&f, row, 1, out[layout][row]);
        }
        fixture_free(&f);
    }
    assert_memory_equal(out[0], out[1], sizeof out[0]);
    assert_memory_equal(out[0], out[2], sizeof out[0]);
}

/* Items are dealt to eights of threads; an eight's threads take its own first, in order, and then the others' that are left. Every item is taken once, whoever comes when, and the
 * counters end at zero. */
static void test_claims(void **state)
{
    (void)state;
    static const uint32_t threads[] = { 1, 7, 8, 9, 16, 20, 128, 1024 };
    for (size_t t = 0; t < sizeof threads / sizeof threads[0]; t++) {
        const uint32_t nth = threads[t], n_eights = oct__eights_of(nth);
        assert_int_equal(n_eights, (nth + 7) / 8);
        for (int64_t n_items = 0; n_items <= 300; n_items += n_items < 20 ? 1 : 70) {
            static oct__claims claims[OCT__EIGHTS_MAX];
            const oct__step step = { .n_items = n_items, .claims = claims };
            oct__claimant *const who = malloc(nth * sizeof *who);
            int *const is_done = calloc(nth, sizeof *is_done), *const taken = calloc((size_t)n_items + 1, sizeof *taken);
            int64_t own[2] = { 0, 0 };
            assert_true(who != NULL && is_done != NULL && taken != NULL);
            for (uint32_t i = 0; i < nth; i++) {
                who[i] = oct__claimant_of(i, nth);
            }
            for (uint32_t left = nth, i = nth / 2; left > 0; i = (i + 7) % nth) {   /* in some order, each again and again */
                for (; is_done[i]; i = (i + 1) % nth) {
                }
                const int64_t claim = oct__claim(&step, &who[i]);
                if (claim < 0) {
                    is_done[i] = 1;
                    left--;
                } else {
                    assert_true(claim < n_items && taken[claim]++ == 0);
                    own[claim % n_eights == i / 8]++;
                    assert_true(oct__claim_ahead(&who[i], claim) > claim);
                }
            }
            for (int64_t i = 0; i < n_items; i++) {
                assert_int_equal(taken[i], 1);
            }
            for (uint32_t e = 0; e < n_eights; e++) {
                assert_int_equal(atomic_load(&claims[e].next), 0);
            }
            assert_true(n_eights > 1 || own[0] == 0);
            assert_true(n_items < 8 * n_eights || nth % 8 != 0 || own[1] > own[0]);   /* with whole eights in step, most items stay at home */
            free(who);
            free(is_done);
            free(taken);
        }
    }
    /* The same eight meets the same items in every layer: alone in its eight, a thread begins with those that are its own. */
    static oct__claims claims[2];
    const oct__step step = { .n_items = 5, .claims = claims };
    oct__claimant second = oct__claimant_of(8, 16);
    const int64_t order[] = { 1, 3, 0, 2, 4, -1 };
    for (size_t i = 0; i < sizeof order / sizeof order[0]; i++) {
        assert_int_equal(oct__claim(&step, &second), order[i]);
    }
    oct__claims_reset(claims, 16);
    assert_true(atomic_load(&claims[0].next) == 0 && atomic_load(&claims[1].next) == 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_claims),          cmocka_unit_test(test_plain),           cmocka_unit_test(test_splits),
        cmocka_unit_test(test_threads_bits),    cmocka_unit_test(test_sinks),
        cmocka_unit_test(test_empty_rows),      cmocka_unit_test(test_q_and_out_formats),
        cmocka_unit_test(test_out_saturates),   cmocka_unit_test(test_scales_and_rotation),
        cmocka_unit_test(test_mask_window_softcap), cmocka_unit_test(test_layouts_agree),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
