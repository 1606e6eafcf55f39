/* Row conversions: the scale divides, counts are right and add up, alignment, in-place f32, unknown formats. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "number/convert.h"
#include "number/dtype.h"
#include "number/number.h"

/* Fault A1 at its root: another scale gives other bytes, each equal to the conversion of x / scale. */
static void the_scale_divides(void **state)
{
    static const float scales[] = {0.04f, 0.5f, 2.0f, 0.07f};
    float x[64];
    uint8_t bytes[4][64];
    (void)state;
    for (int i = 0; i < 64; i++) {
        x[i] = (float)(i - 31) * 0.37f;
    }
    for (size_t s = 0; s < 4; s++) {
        assert_true(oct__row_from_f32(bytes[s], OCT_DTYPE_E4M3FN, x, 64, scales[s], NULL));
        for (int i = 0; i < 64; i++) {
            assert_int_equal(bytes[s][i], oct__e4m3fn_from_f32(x[i] / scales[s]));
        }
        assert_true(s == 0 || memcmp(bytes[s], bytes[s - 1], 64) != 0);
    }
}

/* Here a rounded reciprocal crosses a tie: x / scale is exactly 17, half way between 16 and 18; x * (1 / scale)
 * is not. */
static void the_scale_is_not_a_reciprocal(void **state)
{
    int found = 0;
    (void)state;
    for (int i = 1; i < 2000; i++) {
        float scale = (float)i / 1024.0f / 7.0f;
        float x = 17.0f * scale;
        uint8_t byte;
        if (x / scale != 17.0f || oct__e4m3fn_from_f32(x * (1.0f / scale)) == oct__e4m3fn_from_f32(17.0f)) {
            continue;
        }
        assert_true(oct__row_from_f32(&byte, OCT_DTYPE_E4M3FN, &x, 1, scale, NULL));
        assert_int_equal(byte, oct__e4m3fn_from_f32(16.0f));
        found++;
    }
    assert_true(found > 0);
}

static void counts_say_what_was_met(void **state)
{
    static const struct {
        uint32_t dtype;
        float last_kept, first_saturated;
    } rows[] = {
        {OCT_DTYPE_E4M3FN, 464.0f, 0x1.D00002p8f},  {OCT_DTYPE_E4M3FNUZ, 0x1.EFFFFEp7f, 248.0f},
        {OCT_DTYPE_E5M2, 0x1.DFFFFEp15f, 61440.0f}, {OCT_DTYPE_I8, 0x1.FDFFFEp6f, 127.5f},
        {OCT_DTYPE_F16, 0x1.FFDFFEp15f, 65520.0f},  {OCT_DTYPE_BF16, 0x1.FEFFFEp127f, 0x1.FFp127f},
        {OCT_DTYPE_F32, 0x1.FFFFFEp127f, INFINITY},
    };
    (void)state;
    for (size_t r = 0; r < sizeof rows / sizeof rows[0]; r++) {
        uint8_t out[9 * sizeof(float)];
        struct oct__convert_count count = {100, 200};
        float first = rows[r].first_saturated;
        float x[9] = {rows[r].last_kept, -rows[r].last_kept, first, -first, INFINITY, -INFINITY, NAN, -NAN, 0.0f};
        assert_true(oct__row_from_f32(out, rows[r].dtype, x, 9, 1.0f, &count));
        assert_int_equal(count.saturated, 104);
        assert_int_equal(count.nans, 202);
        /* Under a scale it is the quotient that counts; an infinity and a NaN stay what they are. */
        assert_true(oct__row_from_f32(out, rows[r].dtype, x, 9, 4.0f, &count));
        assert_int_equal(count.saturated, 104 + (isinf(first) ? 4 : 2));
        assert_int_equal(count.nans, 204);
    }
}

static void a_nan_scale_gives_zero_bytes(void **state)
{
    float x[4] = {1.0f, NAN, INFINITY, -3.0f};
    int8_t bytes[4] = {9, 9, 9, 9};
    struct oct__convert_count count = {0, 0};
    (void)state;
    assert_true(oct__row_from_f32(bytes, OCT_DTYPE_I8, x, 4, NAN, &count));
    for (int i = 0; i < 4; i++) {
        assert_int_equal(bytes[i], 0);
    }
    assert_int_equal(count.saturated, 0);
    assert_int_equal(count.nans, 1);
}

static void signs_of_nan_pass_a_scale(void **state)
{
    float x[2] = {oct__f32_of_bits(0x7FC00000), oct__f32_of_bits(0xFFC00000)};
    uint8_t bytes[2];
    (void)state;
    assert_true(oct__row_from_f32(bytes, OCT_DTYPE_E4M3FN, x, 2, 0.3f, NULL));
    assert_int_equal(bytes[0], 0x7F);
    assert_int_equal(bytes[1], 0xFF);
}

/* The exact heap size lets the address sanitizer see one element too many; offset 1 lets UBSan see a wide access. */
static void rows_of_any_length_at_any_alignment(void **state)
{
    (void)state;
    for (uint32_t dtype = 1; dtype <= OCT__DTYPE_LAST; dtype++) {
        if (dtype == OCT_DTYPE_V4) {
            continue; /* test_v4.c: whole blocks */
        }
        for (size_t n = 0; n <= 17; n++) {
            size_t bytes = n * oct__dtype_size_bytes(dtype);
            unsigned char *codes = malloc(bytes + 1), *again = malloc(bytes + 1);
            float *x = malloc((n + 1) * sizeof(float)), *back = malloc((n + 1) * sizeof(float));
            assert_true(codes != NULL && again != NULL && x != NULL && back != NULL);
            codes[0] = 0xA5;
            for (size_t i = 0; i < n; i++) {
                x[i] = (float)(int)i - 8.0f; /* exact in every format */
            }
            back[n] = 12345.0f;
            assert_true(oct__row_from_f32(codes + 1, dtype, x, n, 1.0f, NULL));
            assert_int_equal(codes[0], 0xA5);
            assert_true(oct__row_to_f32(back, codes + 1, dtype, n));
            assert_memory_equal(back, x, n * sizeof(float));
            assert_true(back[n] == 12345.0f);
            assert_true(oct__row_from_f32(again + 1, dtype, back, n, 1.0f, NULL));
            assert_memory_equal(again + 1, codes + 1, bytes);
            free(codes);
            free(again);
            free(x);
            free(back);
        }
    }
}

static void f32_converts_in_place(void **state)
{
    float x[3] = {1.0f, -6.0f, 0.5f};
    (void)state;
    assert_true(oct__row_from_f32(x, OCT_DTYPE_F32, x, 3, 2.0f, NULL));
    assert_true(x[0] == 0.5f && x[1] == -3.0f && x[2] == 0.25f);
    assert_true(oct__row_to_f32(x, x, OCT_DTYPE_F32, 3));
    assert_true(x[0] == 0.5f && x[1] == -3.0f && x[2] == 0.25f);
}

static void unknown_formats_are_refused(void **state)
{
    static const uint32_t unknown[] = {0, 8, UINT32_MAX};
    (void)state;
    for (size_t i = 0; i < 3; i++) {
        float x[2] = {1.0f, NAN}, y[2] = {5.0f, 6.0f};
        struct oct__convert_count count = {1, 2};
        assert_false(oct__row_from_f32(y, unknown[i], x, 2, 1.0f, &count));
        assert_false(oct__row_to_f32(y, x, unknown[i], 2));
        assert_true(y[0] == 5.0f && y[1] == 6.0f && count.saturated == 1 && count.nans == 2);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_scale_divides),
        cmocka_unit_test(the_scale_is_not_a_reciprocal),
        cmocka_unit_test(counts_say_what_was_met),
        cmocka_unit_test(a_nan_scale_gives_zero_bytes),
        cmocka_unit_test(signs_of_nan_pass_a_scale),
        cmocka_unit_test(rows_of_any_length_at_any_alignment),
        cmocka_unit_test(f32_converts_in_place),
        cmocka_unit_test(unknown_formats_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
