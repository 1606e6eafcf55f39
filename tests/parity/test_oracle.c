/* test_oracle.c: the judge judged: the oracle against numbers known from elsewhere, and the comparison against results that are
 * wrong in one place. */
#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "parity/compare.h"
#include "parity/guard.h"
#include "parity/isolate.h"
#include "parity/problem.h"
#include "parity/write_case.h"

typedef struct known { uint32_t dtype, code; double value; } known;

static void formats_mean_what_their_papers_say(void **state)
{
    static const known values[] = {
        { OCT_DTYPE_E4M3FN, 0x38, 1.0 }, { OCT_DTYPE_E4M3FN, 0x7E, 448.0 }, { OCT_DTYPE_E4M3FN, 0x01, 0x1p-9 }, { OCT_DTYPE_E4M3FN, 0xFE, -448.0 },
        { OCT_DTYPE_E4M3FNUZ, 0x38, 0.5 }, { OCT_DTYPE_E4M3FNUZ, 0x7F, 240.0 }, { OCT_DTYPE_E4M3FNUZ, 0x01, 0x1p-10 }, { OCT_DTYPE_E4M3FNUZ, 0x40, 1.0 },
        { OCT_DTYPE_E5M2, 0x3C, 1.0 }, { OCT_DTYPE_E5M2, 0x7B, 57344.0 }, { OCT_DTYPE_E5M2, 0x01, 0x1p-16 }, { OCT_DTYPE_E5M2, 0x7C, INFINITY },
        { OCT_DTYPE_I8, 0x7F, 127.0 }, { OCT_DTYPE_I8, 0x81, -127.0 }, { OCT_DTYPE_I8, 0xFF, -1.0 },
        { OCT_DTYPE_V4, 8, 124.0 }, { OCT_DTYPE_V4, 9, -123.0 }, { OCT_DTYPE_V4, 1, 11.0 },
        { OCT_DTYPE_F16, 0x3C00, 1.0 }, { OCT_DTYPE_F16, 0x7BFF, 65504.0 }, { OCT_DTYPE_F16, 0x0001, 0x1p-24 }, { OCT_DTYPE_F16, 0xFC00, -INFINITY },
        { OCT_DTYPE_BF16, 0x3F80, 1.0 }, { OCT_DTYPE_BF16, 0x7F7F, 0x1.FEp127 }, { OCT_DTYPE_BF16, 0x4049, 3.140625 },
    };
    static const known nans[] = { { OCT_DTYPE_E4M3FN, 0x7F, 0 }, { OCT_DTYPE_E4M3FN, 0xFF, 0 }, { OCT_DTYPE_E4M3FNUZ, 0x80, 0 }, { OCT_DTYPE_E5M2, 0x7D, 0 },
                                  { OCT_DTYPE_E5M2, 0xFF, 0 }, { OCT_DTYPE_F16, 0x7E00, 0 }, { OCT_DTYPE_BF16, 0x7FC0, 0 } };
    (void)state;
    for (size_t i = 0; i < sizeof values / sizeof values[0]; i++)
        assert_true(oracle_decode_code(values[i].dtype, values[i].code) == values[i].value);
    for (size_t i = 0; i < sizeof nans / sizeof nans[0]; i++)
        assert_true(oracle_code_is_nan(nans[i].dtype, nans[i].code));
}

static void rounding_goes_to_even_and_saturates(void **state)
{
    static const known roundings[] = {
        { OCT_DTYPE_E4M3FN, 0x7E, 464.0 }, { OCT_DTYPE_E4M3FN, 0x7E, 1e30 }, { OCT_DTYPE_E4M3FN, 0xFE, -INFINITY }, { OCT_DTYPE_E4M3FN, 0x00, 0x1p-10 },
        { OCT_DTYPE_E4M3FN, 0x02, 0x1.8p-9 }, { OCT_DTYPE_E4M3FN, 0x80, -0.0 }, { OCT_DTYPE_E4M3FN, 0x38, 1.0625 }, { OCT_DTYPE_E4M3FN, 0x3A, 1.1875 },
        { OCT_DTYPE_E4M3FNUZ, 0x00, -0.0 }, { OCT_DTYPE_E4M3FNUZ, 0x00, -0x1p-12 }, { OCT_DTYPE_E4M3FNUZ, 0x7F, 1e9 }, { OCT_DTYPE_E5M2, 0x7B, 61440.0 },
        { OCT_DTYPE_E5M2, 0xFB, -1e9 }, { OCT_DTYPE_I8, 2, 2.5 }, { OCT_DTYPE_I8, 4, 3.5 }, { OCT_DTYPE_I8, 0x81, -300.0 }, { OCT_DTYPE_I8, 0xFE, -1.5 },
        { OCT_DTYPE_V4, 8, 500.0 }, { OCT_DTYPE_V4, 0, 5.4 }, { OCT_DTYPE_V4, 1, 5.5 }, { OCT_DTYPE_V4, 1, 6.5 }, { OCT_DTYPE_V4, 15, -6.51 }, { OCT_DTYPE_V4, 0, (double)NAN },
        { OCT_DTYPE_F16, 0x7BFF, 65519.0 }, { OCT_DTYPE_F16, 0x7C00, 65520.0 }, { OCT_DTYPE_BF16, 0x3F80, 1.00390625 }, { OCT_DTYPE_BF16, 0x3F82, 1.01171875 },
    };
    (void)state;
    for (size_t i = 0; i < sizeof roundings / sizeof roundings[0]; i++)
        assert_int_equal(oracle_encode(roundings[i].dtype, roundings[i].value), roundings[i].code);
    for (uint32_t dtype = OCT_DTYPE_F16; dtype <= OCT_DTYPE_I8; dtype++)   /* every code rounds to itself and lies in its cell */
        for (uint32_t code = 0; code < (oracle_is_8bit(dtype) ? 256u : 65536u); code++) {
            const double value = oracle_decode_code(dtype, code);
            double low, high;
            if (!isfinite(value) || (dtype == OCT_DTYPE_I8 && code == 0x80))
                continue;
            assert_int_equal(oracle_encode(dtype, value), code);
            oracle_cell(dtype, code, &low, &high);
            assert_true(low < value && value < high);
        }
}

static void rotation_is_orthonormal(void **state)
{
    static const uint32_t dims[] = { 16, 24, 64, 80, 96, 128, 512 };
    (void)state;
    for (size_t i = 0; i < sizeof dims / sizeof dims[0]; i++) {
        double x[512], y[512], length = 0.0, turned = 0.0;
        float f[512];
        rng r = rng_make(i);
        for (uint32_t d = 0; d < dims[i]; d++) {
            f[d] = (float)rng_normal(&r);
            x[d] = y[d] = (double)f[d];
            length += x[d] * x[d];
        }
        oracle_hadamard(y, dims[i]);
        oracle_hadamard_f32(f, dims[i]);
        for (uint32_t d = 0; d < dims[i]; d++) {
            turned += y[d] * y[d];
            assert_true(fabs(y[d] - (double)f[d]) < 1e-5);
        }
        assert_true(fabs(length - turned) < 1e-9 * length);
        oracle_hadamard(y, dims[i]);
        for (uint32_t d = 0; d < dims[i]; d++)
            assert_true(fabs(x[d] - y[d]) < 1e-12);
    }
    double pair[16] = { 1.0 };   /* one spike spreads evenly */
    oracle_hadamard(pair, 16);
    for (int d = 0; d < 16; d++)
        assert_true(fabs(pair[d] - 0.25) < 1e-15);
}

static void rope_turns_pairs(void **state)
{
    const oct_rope neox = { (uint32_t)sizeof neox, 0, 4, 100.0f, 1.0f, NULL }, normal = { (uint32_t)sizeof normal, 1, 4, 100.0f, 1.0f, NULL };
    double a[6] = { 1, 0, 0, 1, 5, 6 }, b[6] = { 1, 0, 0, 1, 5, 6 };
    (void)state;
    oracle_rope(a, &neox, 3);    /* pairs (0, 2) by 3 and (1, 3) by 0.3 */
    oracle_rope(b, &normal, 3);  /* pairs (0, 1) by 3 and (2, 3) by 0.3 */
    assert_true(fabs(a[0] - cos(3.0)) < 1e-12 && fabs(a[2] - sin(3.0)) < 1e-12 && fabs(a[1] + sin(0.3)) < 1e-12 && fabs(a[3] - cos(0.3)) < 1e-12);
    assert_true(fabs(b[0] - cos(3.0)) < 1e-12 && fabs(b[1] - sin(3.0)) < 1e-12 && fabs(b[2] + sin(0.3)) < 1e-12 && fabs(b[3] - cos(0.3)) < 1e-12);
    assert_true(a[4] == 5.0 && a[5] == 6.0 && b[4] == 5.0 && b[5] == 6.0);
}

static void visibility_counts_the_token_itself(void **state)
{
    oct_attn_spec spec;
    oct_attn_args args;
    uint32_t mask[2] = { 1, 2 };
    (void)state;
    memset(&spec, 0, sizeof spec);
    memset(&args, 0, sizeof args);
    spec.causal = 1;
    assert_true(oracle_visible(&spec, &args, 0, 0, 1, 5, 4));       /* decode sees all five */
    assert_true(oracle_visible(&spec, &args, 0, 0, 2, 5, 3));       /* right-aligned */
    assert_false(oracle_visible(&spec, &args, 0, 0, 2, 5, 4));
    assert_false(oracle_visible(&spec, &args, 0, 0, 3, 2, 0));      /* more rows than keys: the first sees none */
    spec.window_tokens = 1;
    assert_true(oracle_visible(&spec, &args, 0, 0, 1, 5, 4));
    assert_false(oracle_visible(&spec, &args, 0, 0, 1, 5, 3));
    spec.causal = 0;
    assert_true(oracle_visible(&spec, &args, 0, 0, 2, 5, 4));       /* without causal only the left side is bounded */
    spec.window_tokens = 0;
    spec.has_mask = 1;
    args.mask = mask;
    args.mask_row_stride = 1;
    assert_true(oracle_visible(&spec, &args, 0, 0, 2, 5, 0));       /* keys before the rows' own are not masked */
    assert_true(oracle_visible(&spec, &args, 0, 0, 2, 5, 3));
    assert_false(oracle_visible(&spec, &args, 0, 0, 2, 5, 4));
    assert_false(oracle_visible(&spec, &args, 1, 1, 2, 5, 3));
}

/* Two keys by hand: scores 0 and ln 3, values 1 and 5: weights 1/4 and 3/4. */
static void attention_of_two_keys(void **state)
{
    problem_shape s = problem_plain(3);
    problem p;
    double key[64] = { 0 }, value[64];
    (void)state;
    s.heads_q = s.heads = 1;
    s.k_dtype = s.v_dtype = OCT_DTYPE_F32;
    s.k_scale_mode = s.v_scale_mode = OCT_SCALE_NONE;
    s.q_dtype = OCT_DTYPE_F32;
    s.sm_scale = 1.0;
    s.kv_len[0] = 2;
    assert_int_equal(problem_make(&p, &s), 0);
    memset(p.q.at, 0, p.q.size_bytes);
    *(float *)p.q.at = 1.0f;
    for (int j = 0; j < 2; j++) {
        key[0] = j == 0 ? 0.0 : log(3.0);
        for (int d = 0; d < 64; d++)
            value[d] = j == 0 ? 1.0 : 5.0;
        problem_put(&p, ORACLE_K, 0, j, 0, key);
        problem_put(&p, ORACLE_V, 0, j, 0, value);
    }
    assert_int_equal(problem_expect(&p), 0);
    assert_true(fabs(p.expected.out[0] - 4.0) < 1e-6 && fabs(p.expected.lse[0] - log(4.0)) < 1e-6);
    problem_drop(&p);
}

/* One key of score 2 by hand: an error of q moves the score as it is, or by the slope of the cap there. */
static void score_norms_know_the_cap(void **state)
{
    double key[64] = { 2.0 };
    (void)state;
    for (int i = 0; i < 3; i++) {
        const double cap = (double[]){ 0.0, 2.0, 0.5 }[i], t = cap > 0.0 ? tanh(2.0 / cap) : 0.0;
        problem_shape s = problem_plain(4);
        problem p;
        s.heads_q = s.heads = 1;
        s.k_dtype = s.v_dtype = OCT_DTYPE_F32;
        s.k_scale_mode = s.v_scale_mode = OCT_SCALE_NONE;
        s.q_dtype = OCT_DTYPE_F32;
        s.sm_scale = 1.0;
        s.softcap = cap;
        s.kv_len[0] = 1;
        assert_int_equal(problem_make(&p, &s), 0);
        memset(p.q.at, 0, p.q.size_bytes);
        *(float *)p.q.at = 1.0f;
        problem_put(&p, ORACLE_K, 0, 0, 0, key);
        assert_int_equal(problem_expect(&p), 0);
        assert_non_null(p.expected.of);
        assert_true(fabs(oracle_score_norm(p.expected.of, 0, 0) - 2.0 * (1.0 - t * t)) < 1e-6);
        problem_drop(&p);
    }
}

/* A right result is accepted in every output format; the same with one element moved by two bounds, or unwritten, is not. */
static void comparison_sees_one_wrong_element(void **state)
{
    (void)state;
    for (uint32_t dtype = OCT_DTYPE_F32; dtype <= OCT_DTYPE_E5M2; dtype++) {
        enum { ROWS = 3, HEADS = 2, DIM = 16 };
        double out[ROWS * HEADS * DIM], lse[ROWS * HEADS], v_max[ROWS * HEADS];
        unsigned char stored[ROWS * HEADS * DIM * 4];
        float stored_lse[ROWS * HEADS];
        rng r = rng_make(dtype);
        const compare_bound bound = compare_bound_of(OCT__TOL_F32);
        const oracle_result expected = { out, lse, v_max, NULL, NULL };
        const compare_output output = { dtype, stored, HEADS * DIM, DIM, 0.5, stored_lse, HEADS, 1, ROWS, HEADS, DIM };
        for (int i = 0; i < ROWS * HEADS * DIM; i++) {
            out[i] = rng_normal(&r);
            oracle_put_code(dtype, stored, i, oracle_encode(dtype, out[i] / 0.5));
        }
        for (int i = 0; i < ROWS * HEADS; i++) {
            lse[i] = 1.0 + i;
            stored_lse[i] = (float)lse[i];
            v_max[i] = 4.0;
        }
        assert_true(compare_judge(&output, &expected, &bound).ok);
        const int at = (2 * HEADS + 1) * DIM + 5;
        const uint32_t right = oracle_code_at(dtype, stored, at);
        double low, high;
        oracle_cell(dtype, right, &low, &high);
        const double before = out[at];
        out[at] = high * 0.5 + 2.0 * bound.max_error * v_max[0];
        assert_false(compare_judge(&output, &expected, &bound).ok);
        out[at] = high * 0.5 + 0.5 * bound.max_error * v_max[0];
        assert_true(compare_judge(&output, &expected, &bound).ok);
        out[at] = before;
        oracle_put_code(dtype, stored, at, oracle_encode(dtype, (double)NAN));
        assert_false(compare_judge(&output, &expected, &bound).ok);
        oracle_put_code(dtype, stored, at, right);
        stored_lse[1] += 1e-3f;
        assert_false(compare_judge(&output, &expected, &bound).ok);
        stored_lse[1] = -INFINITY;
        assert_false(compare_judge(&output, &expected, &bound).ok);
    }
}

static int64_t crash_in_the_third(void *arg, int64_t index)
{
    (void)arg;
    isolate_doing("a planted crash");
    isolate_ran("planted", 0.0);
    if (index == 2)
        raise(SIGKILL);
    return index == 4;
}

static void crashes_and_failures_are_counted(void **state)
{
    (void)state;
    assert_int_equal(isolate_run("planted", 6, 10, crash_in_the_third, NULL), 2);
    assert_int_equal(isolate_n_ran("planted"), 6);
}

static void guards_see_strays(void **state)
{
    guard g;
    (void)state;
    assert_int_equal(guard_make(&g, 100, GUARD_END), 0);
    assert_true(guard_intact(&g));
    ((unsigned char *)g.at)[99] = 1;
    assert_true(guard_intact(&g));
    *((unsigned char *)g.at - 1) = 1;
    assert_false(guard_intact(&g));
    guard_drop(&g);
}

/* A shape's text says everything: parsed again it prints the same. */
static void shapes_survive_their_text(void **state)
{
    (void)state;
    for (int64_t seed = 0; seed < 200; seed++) {
        char text[PROBLEM_TEXT], again[PROBLEM_TEXT];
        problem_shape parsed;
        write_shape parsed_write;
        const problem_shape s = problem_random(seed);
        const write_shape w = write_random(seed);
        problem_print(&s, text, sizeof text);
        assert_int_equal(problem_parse(&parsed, text), 0);
        problem_print(&parsed, again, sizeof again);
        assert_string_equal(text, again);
        write_print(&w, text, sizeof text);
        assert_int_equal(write_parse(&parsed_write, text), 0);
        write_print(&parsed_write, again, sizeof again);
        assert_string_equal(text, again);
    }
}

static int set_up(void **state)
{
    (void)state;
    oracle_init();
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(formats_mean_what_their_papers_say),
        cmocka_unit_test(rounding_goes_to_even_and_saturates),
        cmocka_unit_test(rotation_is_orthonormal),
        cmocka_unit_test(rope_turns_pairs),
        cmocka_unit_test(visibility_counts_the_token_itself),
        cmocka_unit_test(attention_of_two_keys),
        cmocka_unit_test(score_norms_know_the_cap),
        cmocka_unit_test(comparison_sees_one_wrong_element),
        cmocka_unit_test(crashes_and_failures_are_counted),
        cmocka_unit_test(guards_see_strays),
        cmocka_unit_test(shapes_survive_their_text),
    };
    return cmocka_run_group_tests(tests, set_up, NULL);
}
