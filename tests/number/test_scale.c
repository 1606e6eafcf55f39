/* Scales: which are legal, how a dynamic one meets zero, NaN, infinity and f16, and the import to e4m3fnuz. */
#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "number/convert.h"
#include "number/dtype.h"
#include "number/number.h"
#include "number/scale.h"

static const uint32_t eight_bit[] = {OCT_DTYPE_E4M3FN, OCT_DTYPE_E4M3FNUZ, OCT_DTYPE_E5M2, OCT_DTYPE_I8};

static void a_legal_scale_is_finite_and_positive(void **state)
{
    static const float legal[] = {1.0f, 1e-6f, FLT_MIN, FLT_TRUE_MIN, FLT_MAX};
    static const float illegal[] = {0.0f, -0.0f, -1.0f, -FLT_TRUE_MIN, INFINITY, -INFINITY, NAN, -NAN};
    (void)state;
    for (size_t i = 0; i < sizeof legal / sizeof legal[0]; i++) {
        assert_true(oct__scale_is_valid(legal[i]));
    }
    for (size_t i = 0; i < sizeof illegal / sizeof illegal[0]; i++) {
        assert_false(oct__scale_is_valid(illegal[i]));
    }
}

static void amax_takes_the_finite_elements(void **state)
{
    float x[5] = {-3.0f, INFINITY, 2.0f, -INFINITY, NAN};
    bool has_nan = false;
    (void)state;
    assert_true(oct__scale_amax(x, 5, &has_nan) == 3.0f && has_nan);
    assert_true(oct__scale_amax(x, 4, &has_nan) == 3.0f && !has_nan);
    assert_true(oct__scale_amax(x + 3, 2, NULL) == 0.0f);
    assert_true(oct__scale_amax(x, 0, &has_nan) == 0.0f && !has_nan);
}

static void the_largest_element_takes_the_largest_code(void **state)
{
    static const uint8_t top[] = {0x7E, 0x7F, 0x7B, 127};
    (void)state;
    for (size_t f = 0; f < 4; f++) {
        float x[3] = {-0.7f, 0.3f, 6.1f};
        uint8_t bytes[3];
        float scale = oct__scale_dynamic(x, 3, eight_bit[f], OCT_DTYPE_F32, NULL);
        assert_true(scale == 6.1f / oct__dtype_max_f32(eight_bit[f]));
        assert_true(oct__row_from_f32(bytes, eight_bit[f], x, 3, scale, NULL));
        assert_int_equal(bytes[2], top[f]);
    }
}

static void the_floor_holds(void **state)
{
    (void)state;
    for (size_t f = 0; f < 4; f++) {
        float zeros[4] = {0.0f, -0.0f, 0.0f, 0.0f}, tiny[2] = {FLT_TRUE_MIN, -1e-30f};
        float f16_floor = oct__scale_dynamic(zeros, 4, eight_bit[f], OCT_DTYPE_F16, NULL);
        assert_true(oct__scale_dynamic(zeros, 4, eight_bit[f], OCT_DTYPE_F32, NULL) == 1e-6f);
        assert_true(oct__scale_dynamic(tiny, 2, eight_bit[f], OCT_DTYPE_F32, NULL) == 1e-6f);
        assert_true(oct__scale_dynamic(zeros, 0, eight_bit[f], OCT_DTYPE_F32, NULL) == 1e-6f);
        assert_true(f16_floor == 17.0f * 0x1p-24f && f16_floor >= 1e-6f);
    }
}

static void a_nan_makes_an_i8_vector_nan(void **state)
{
    float x[4] = {1.0f, NAN, -2.0f, 0.5f};
    static const uint32_t scale_dtypes[] = {OCT_DTYPE_F32, OCT_DTYPE_F16};
    uint64_t nan_vectors = 5;
    (void)state;
    for (size_t s = 0; s < 2; s++) {
        assert_true(isnan(oct__scale_dynamic(x, 4, OCT_DTYPE_I8, scale_dtypes[s], &nan_vectors)));
        assert_true(isnan(oct__scale_dynamic(x, 4, OCT_DTYPE_I8, scale_dtypes[s], NULL)));
    }
    assert_int_equal(nan_vectors, 7);
    /* It survives being kept as f16. */
    assert_true(isnan(oct__f16_to_f32(oct__scale_to_f16(NAN))));
    assert_true(oct__scale_dynamic(x, 4, OCT_DTYPE_E4M3FN, OCT_DTYPE_F32, &nan_vectors) == 2.0f / 448.0f);
    assert_true(oct__scale_dynamic(x, 4, OCT_DTYPE_E5M2, OCT_DTYPE_F32, &nan_vectors) == 2.0f / 57344.0f);
    assert_true(oct__scale_dynamic(x + 2, 2, OCT_DTYPE_I8, OCT_DTYPE_F32, &nan_vectors) == 2.0f / 127.0f);
    assert_int_equal(nan_vectors, 7);
}

static void an_infinity_saturates_beside_finite_elements(void **state)
{
    (void)state;
    for (size_t f = 0; f < 4; f++) {
        float x[3] = {1.5f, -INFINITY, 0.75f}, back[3];
        uint8_t bytes[3];
        struct oct__convert_count count = {0, 0};
        float scale = oct__scale_dynamic(x, 3, eight_bit[f], OCT_DTYPE_F32, NULL);
        assert_true(scale == 1.5f / oct__dtype_max_f32(eight_bit[f]));
        assert_true(oct__row_from_f32(bytes, eight_bit[f], x, 3, scale, &count));
        assert_true(oct__row_to_f32(back, bytes, eight_bit[f], 3));
        assert_int_equal(count.saturated, 1);
        assert_true(back[1] == -oct__dtype_max_f32(eight_bit[f]));
        assert_true(fabsf(back[0] * scale - 1.5f) < 1e-6f);
        assert_true(fabsf(back[2] * scale - 0.75f) < 0.05f);
    }
}

/* The number divided by is the number kept; no finite element is cut off; at the top it saturates, countably. */
static void f16_scales_never_fall_below(void **state)
{
    (void)state;
    for (size_t f = 0; f < 4; f++) {
        for (float amax = 1e-8f; amax < 1e6f; amax *= 1.0037f) {
            float x[2] = {amax, -amax};
            uint8_t bytes[2];
            struct oct__convert_count count = {0, 0};
            float exact = oct__scale_dynamic(x, 2, eight_bit[f], OCT_DTYPE_F32, NULL);
            float scale = oct__scale_dynamic(x, 2, eight_bit[f], OCT_DTYPE_F16, NULL);
            assert_true(oct__f16_to_f32(oct__f16_from_f32(scale)) == scale);
            assert_true(oct__scale_to_f16(scale) == oct__f16_from_f32(scale));
            assert_true(scale >= exact);
            assert_true((double)scale - exact <= fmax(exact * 0x1p-10, 0x1p-24));
            assert_true((double)amax <= (double)scale * oct__dtype_max_f32(eight_bit[f]));
            assert_true(oct__row_from_f32(bytes, eight_bit[f], x, 2, scale, &count));
            assert_int_equal(count.saturated, 0);
        }
    }
    {
        float x[1] = {FLT_MAX};
        uint8_t byte;
        struct oct__convert_count count = {0, 0};
        float scale = oct__scale_dynamic(x, 1, OCT_DTYPE_E4M3FN, OCT_DTYPE_F16, NULL);
        assert_true(scale == 65504.0f);
        assert_true(oct__row_from_f32(&byte, OCT_DTYPE_E4M3FN, x, 1, scale, &count));
        assert_int_equal(byte, 0x7E);
        assert_int_equal(count.saturated, 1);
    }
    assert_int_equal(oct__scale_to_f16(65504.0f), 0x7BFF);
    assert_int_equal(oct__scale_to_f16(65504.5f), 0x7BFF);
    assert_int_equal(oct__scale_to_f16(FLT_TRUE_MIN), 0x0001);
    assert_int_equal(oct__scale_to_f16(1.0f), 0x3C00);
    assert_int_equal(oct__scale_to_f16(nextafterf(1.0f, 2.0f)), 0x3C01);
}

static void formats_without_a_scale(void **state)
{
    float x[1] = {3.0f};
    (void)state;
    assert_true(oct__scale_dynamic(x, 1, OCT_DTYPE_BF16, OCT_DTYPE_F32, NULL) == 1.0f);
    assert_true(oct__scale_dynamic(x, 1, OCT_DTYPE_F32, OCT_DTYPE_F16, NULL) == 1.0f);
    assert_false(oct__scale_is_valid(oct__scale_dynamic(x, 1, 0, OCT_DTYPE_F32, NULL)));
    assert_false(oct__scale_is_valid(oct__scale_dynamic(x, 1, 99, OCT_DTYPE_F32, NULL)));
    assert_false(oct__scale_is_valid(oct__scale_dynamic(x, 1, OCT_DTYPE_I8, OCT_DTYPE_BF16, NULL)));
}

static void import_doubles_for_e4m3fnuz_only(void **state)
{
    static const float illegal[] = {0.0f, -1.0f, INFINITY, NAN};
    float out = 77.0f;
    (void)state;
    assert_int_equal(oct__scale_import(0.25f, OCT_DTYPE_E4M3FN, OCT_DTYPE_E4M3FNUZ, &out), OCT__SCALE_IMPORT_DOUBLED);
    assert_true(out == 0.5f);
    /* The doubled scale gives the same real value for the same byte. */
    assert_true(oct__e4m3fn_to_f32(0x38) * 0.25f == oct__e4m3fnuz_to_f32(0x38) * out);
    assert_int_equal(oct__scale_import(0.3f, OCT_DTYPE_E4M3FN, OCT_DTYPE_E4M3FN, &out), OCT__SCALE_IMPORT_AS_IS);
    assert_true(out == 0.3f);
    out = 77.0f;
    for (uint32_t from = 0; from <= OCT__DTYPE_LAST + 1; from++) {
        for (uint32_t to = 0; to <= OCT__DTYPE_LAST + 1; to++) {
            if (!(from == to && oct__dtype_is_8bit(from)) && !(from == OCT_DTYPE_E4M3FN && to == OCT_DTYPE_E4M3FNUZ)) {
                assert_int_equal(oct__scale_import(0.3f, from, to, &out), OCT__SCALE_IMPORT_REFUSED);
            }
        }
    }
    for (size_t i = 0; i < sizeof illegal / sizeof illegal[0]; i++) {
        assert_int_equal(oct__scale_import(illegal[i], OCT_DTYPE_E5M2, OCT_DTYPE_E5M2, &out),
                         OCT__SCALE_IMPORT_REFUSED);
    }
    assert_int_equal(oct__scale_import(FLT_MAX, OCT_DTYPE_E4M3FN, OCT_DTYPE_E4M3FNUZ, &out), OCT__SCALE_IMPORT_REFUSED);
    assert_true(out == 77.0f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_legal_scale_is_finite_and_positive),
        cmocka_unit_test(amax_takes_the_finite_elements),
        cmocka_unit_test(the_largest_element_takes_the_largest_code),
        cmocka_unit_test(the_floor_holds),
        cmocka_unit_test(a_nan_makes_an_i8_vector_nan),
        cmocka_unit_test(an_infinity_saturates_beside_finite_elements),
        cmocka_unit_test(f16_scales_never_fall_below),
        cmocka_unit_test(formats_without_a_scale),
        cmocka_unit_test(import_doubles_for_e4m3fnuz_only),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
