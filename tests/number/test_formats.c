/* Golden values of the formats, written down from their definitions; test_number_oracle.py has the exhaustive part. */
#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "number/dtype.h"
#include "number/number.h"

static float f32(uint32_t bits)
{
    return oct__f32_of_bits(bits);
}

static uint32_t bits_of(float x)
{
    return oct__f32_to_bits(x);
}

/* Through a 16-bit source and back to f32, as a write from f16 or bf16 does; source 0 is f32. */
static float through(uint32_t source, float x)
{
    switch (source) {
    case OCT_DTYPE_BF16:
        return oct__bf16_to_f32(oct__bf16_from_f32(x));
    case OCT_DTYPE_F16:
        return oct__f16_to_f32(oct__f16_from_f32(x));
    default:
        return x;
    }
}

/* Fault A8: a value past the range must saturate, never become NaN; NaN stays NaN; all sources. */
static void values_beyond_the_range_saturate(void **state)
{
    static const struct {
        float x;
        uint8_t e4m3fn, e4m3fnuz, e5m2;
        int i8;
    } rows[] = {
        {447.0f, 0x7E, 0x7F, 0x5F, 127},
        {448.0f, 0x7E, 0x7F, 0x5F, 127},
        {449.0f, 0x7E, 0x7F, 0x5F, 127},
        {464.0f, 0x7E, 0x7F, 0x5F, 127},
        {465.0f, 0x7E, 0x7F, 0x5F, 127},
        {-465.0f, 0xFE, 0xFF, 0xDF, -127},
        {1e6f, 0x7E, 0x7F, 0x7B, 127},
        {-1e6f, 0xFE, 0xFF, 0xFB, -127},
        {INFINITY, 0x7E, 0x7F, 0x7B, 127},
        {-INFINITY, 0xFE, 0xFF, 0xFB, -127},
        {0x1p-9f, 0x01, 0x02, 0x18, 0},
        {-0x1p-9f, 0x81, 0x82, 0x98, 0},
        {0x1p-10f, 0x00, 0x01, 0x14, 0}, /* half the least e4m3fn subnormal: a tie, to even */
        {-0x1p-10f, 0x80, 0x81, 0x94, 0},
        {0.0f, 0x00, 0x00, 0x00, 0},
        {-0.0f, 0x80, 0x00, 0x80, 0},
    };
    static const uint32_t sources[] = {OCT_DTYPE_F32, OCT_DTYPE_BF16, OCT_DTYPE_F16};
    (void)state;
    for (size_t s = 0; s < 3; s++) {
        for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
            float x = through(sources[s], rows[i].x);
            assert_int_equal(oct__e4m3fn_from_f32(x), rows[i].e4m3fn);
            assert_int_equal(oct__e4m3fnuz_from_f32(x), rows[i].e4m3fnuz);
            assert_int_equal(oct__e5m2_from_f32(x), rows[i].e5m2);
            assert_int_equal(oct__i8_from_f32(x), rows[i].i8);
        }
    }
}

static void nan_stays_nan_with_its_sign(void **state)
{
    /* Quiet, signalling, least and largest payload. */
    static const uint32_t nans[] = {0x7FC00000, 0x7F800001, 0x7FFFFFFF, 0x7FA00000, 0x7F802000};
    (void)state;
    for (size_t i = 0; i < sizeof nans / sizeof nans[0]; i++) {
        uint32_t plus = nans[i], minus = nans[i] | 0x80000000;
        assert_int_equal(oct__e4m3fn_from_f32_bits(plus), 0x7F);
        assert_int_equal(oct__e4m3fn_from_f32_bits(minus), 0xFF);
        assert_int_equal(oct__e4m3fn_from_f32(f32(minus)), 0xFF);
        assert_int_equal(oct__e4m3fnuz_from_f32_bits(plus), 0x80);
        assert_int_equal(oct__e4m3fnuz_from_f32_bits(minus), 0x80);
        assert_int_equal(oct__e5m2_from_f32_bits(plus), 0x7F);
        assert_int_equal(oct__e5m2_from_f32_bits(minus), 0xFF);
        assert_int_equal(oct__i8_from_f32_bits(plus), 0);
        assert_int_equal(oct__i8_from_f32_bits(minus), 0);
        /* Quiet bit set, sign and upper payload kept. */
        assert_int_equal(oct__bf16_from_f32_bits(plus), (plus >> 16) | 0x0040);
        assert_int_equal(oct__bf16_from_f32_bits(minus), (minus >> 16) | 0x0040);
        assert_int_equal(oct__f16_from_f32_bits(plus), 0x7E00 | ((plus >> 13) & 0x3FF));
        assert_int_equal(oct__f16_from_f32_bits(minus), 0xFE00 | ((plus >> 13) & 0x3FF));
    }
}

/* Fault A6: the same byte is another number in another format. */
static void the_same_byte_differs_by_format(void **state)
{
    (void)state;
    assert_true(oct__e4m3fn_to_f32(0x38) == 1.0f);
    assert_true(oct__e4m3fnuz_to_f32(0x38) == 0.5f);
    assert_true(oct__e5m2_to_f32(0x38) == 0.5f);
    assert_true(oct__e4m3fn_to_f32(0x7E) == 448.0f);
    assert_true(oct__e4m3fnuz_to_f32(0x7E) == 224.0f);
    assert_true(isnan(oct__e4m3fn_to_f32(0x7F)));
    assert_true(oct__e4m3fnuz_to_f32(0x7F) == 240.0f);
    assert_int_equal(bits_of(oct__e4m3fn_to_f32(0x80)), 0x80000000);
    assert_true(isnan(oct__e4m3fnuz_to_f32(0x80)));
    assert_int_equal(bits_of(oct__e5m2_to_f32(0x80)), 0x80000000);
    assert_true(oct__e5m2_to_f32(0x7B) == 57344.0f);
    assert_true(oct__e5m2_to_f32(0x7C) == INFINITY);
    assert_true(oct__e5m2_to_f32(0xFC) == -INFINITY);
    for (uint8_t low = 0x7D; low <= 0x7F; low++) {
        assert_true(isnan(oct__e5m2_to_f32(low)) && !signbit(oct__e5m2_to_f32(low)));
        assert_true(isnan(oct__e5m2_to_f32(low | 0x80)) && signbit(oct__e5m2_to_f32(low | 0x80)));
    }
    assert_true(oct__e4m3fn_to_f32(0x01) == 0x1p-9f);
    assert_true(oct__e4m3fnuz_to_f32(0x01) == 0x1p-10f);
    assert_true(oct__e5m2_to_f32(0x01) == 0x1p-16f);
    assert_true(oct__i8_to_f32(-127) == -127.0f);
}

/* Decoding by the definition sign * 2^(e - bias) * 1.m, computed in double. */
static void decoders_follow_the_definition(void **state)
{
    (void)state;
    for (int byte = 0; byte < 256; byte++) {
        double sign = byte & 0x80 ? -1 : 1;
        int e4 = (byte >> 3) & 15, m3 = byte & 7, e5 = (byte >> 2) & 31, m2 = byte & 3;
        double fn = e4 ? ldexp(8 + m3, e4 - 7 - 3) : ldexp(m3, 1 - 7 - 3);
        double fnuz = e4 ? ldexp(8 + m3, e4 - 8 - 3) : ldexp(m3, 1 - 8 - 3);
        double e5m2 = e5 ? ldexp(4 + m2, e5 - 15 - 2) : ldexp(m2, 1 - 15 - 2);
        if ((byte & 0x7F) != 0x7F) {
            assert_true((double)oct__e4m3fn_to_f32((uint8_t)byte) == sign * fn);
        }
        if (byte != 0x80) {
            assert_true((double)oct__e4m3fnuz_to_f32((uint8_t)byte) == sign * fnuz);
        }
        if (e5 != 31) {
            assert_true((double)oct__e5m2_to_f32((uint8_t)byte) == sign * e5m2);
        }
    }
}

/* Between any two neighbouring codes: the midpoint goes to the even one, a step of one f32 to the nearer one. */
static void ties_go_to_even(uint8_t (*encode)(float), float (*decode)(uint8_t), int last_code)
{
    for (int code = 0; code < last_code; code++) {
        float low = decode((uint8_t)code), high = decode((uint8_t)(code + 1));
        float middle = low + (high - low) / 2; /* exact */
        int even = code % 2 == 0 ? code : code + 1;
        assert_int_equal(encode(low), code);
        assert_int_equal(encode(middle), even);
        assert_int_equal(encode(nextafterf(middle, 0)), code);
        assert_int_equal(encode(nextafterf(middle, INFINITY)), code + 1);
        if (code > 0) {
            assert_int_equal(encode(-nextafterf(middle, INFINITY)), (code + 1) | 0x80);
            assert_int_equal(encode(-low), code | 0x80);
        }
    }
}

static void fp8_ties_go_to_even(void **state)
{
    (void)state;
    ties_go_to_even(oct__e4m3fn_from_f32, oct__e4m3fn_to_f32, 0x7E);
    ties_go_to_even(oct__e4m3fnuz_from_f32, oct__e4m3fnuz_to_f32, 0x7F);
    ties_go_to_even(oct__e5m2_from_f32, oct__e5m2_to_f32, 0x7B);
}

static void i8_rounds_to_even_and_clamps(void **state)
{
    (void)state;
    for (int n = 0; n <= 126; n++) {
        int even = n % 2 == 0 ? n : n + 1;
        float tie = (float)n + 0.5f;
        assert_int_equal(oct__i8_from_f32((float)n), n);
        assert_int_equal(oct__i8_from_f32((float)-n), -n);
        assert_int_equal(oct__i8_from_f32(tie), even);
        assert_int_equal(oct__i8_from_f32(-tie), -even);
        assert_int_equal(oct__i8_from_f32(nextafterf(tie, 0)), n);
        assert_int_equal(oct__i8_from_f32(nextafterf(tie, INFINITY)), n + 1);
    }
    assert_int_equal(oct__i8_from_f32(127.5f), 127);
    assert_int_equal(oct__i8_from_f32(-127.5f), -127);
    assert_int_equal(oct__i8_from_f32(-128.0f), -127);
    assert_int_equal(oct__i8_from_f32(FLT_MAX), 127);
    assert_int_equal(oct__i8_from_f32(-FLT_MAX), -127);
    assert_int_equal(oct__i8_from_f32(FLT_TRUE_MIN), 0);
}

static void negative_underflow_keeps_or_drops_the_sign(void **state)
{
    (void)state;
    assert_int_equal(oct__e4m3fn_from_f32(-1e-30f), 0x80);
    assert_int_equal(oct__e5m2_from_f32(-1e-30f), 0x80);
    assert_int_equal(oct__e4m3fnuz_from_f32(-1e-30f), 0x00);
    assert_int_equal(oct__e4m3fnuz_from_f32(-0x1p-11f), 0x00); /* a tie with zero */
    assert_int_equal(oct__e4m3fnuz_from_f32(nextafterf(-0x1p-11f, -1.0f)), 0x81);
    assert_int_equal(oct__e4m3fnuz_from_f32(-FLT_TRUE_MIN), 0x00);
}

static void sixteen_bit_golden_values(void **state)
{
    (void)state;
    assert_int_equal(oct__f16_from_f32(1.0f), 0x3C00);
    assert_int_equal(oct__f16_from_f32(65504.0f), 0x7BFF);
    assert_int_equal(oct__f16_from_f32(65519.0f), 0x7BFF);
    assert_int_equal(oct__f16_from_f32(65520.0f), 0x7C00);
    assert_int_equal(oct__f16_from_f32(-1e30f), 0xFC00);
    assert_int_equal(oct__f16_from_f32(INFINITY), 0x7C00);
    assert_int_equal(oct__f16_from_f32(0x1p-24f), 0x0001);
    assert_int_equal(oct__f16_from_f32(0x1p-25f), 0x0000);
    assert_int_equal(oct__f16_from_f32(-0x1p-25f), 0x8000);
    assert_int_equal(oct__f16_from_f32(0x1.8p-24f), 0x0002);
    assert_int_equal(oct__f16_from_f32(0x1.FFCp-15f), 0x03FF + 1); /* the largest subnormal's tie carries over */
    assert_true(oct__f16_to_f32(0x03FF) == 0x1.FF8p-15f);
    assert_true(oct__f16_to_f32(0xFC00) == -INFINITY);
    assert_int_equal(oct__bf16_from_f32(1.0f), 0x3F80);
    assert_int_equal(oct__bf16_from_f32(FLT_MAX), 0x7F80);
    assert_int_equal(oct__bf16_from_f32(f32(0x7F7F7FFF)), 0x7F7F);
    assert_int_equal(oct__bf16_from_f32(f32(0x7F7F8000)), 0x7F80);
    assert_int_equal(oct__bf16_from_f32(f32(0x3F808000)), 0x3F80);
    assert_int_equal(oct__bf16_from_f32(f32(0x3F818000)), 0x3F82);
    assert_int_equal(oct__bf16_from_f32(f32(0x00008001)), 0x0001); /* subnormals are kept */
    assert_true(bits_of(OCT__BF16_MAX_F32) == 0x7F7F0000);
}

static void dtype_facts_agree_with_the_formats(void **state)
{
    static const struct {
        uint32_t dtype, bits;
        float max;
        const char *name;
        bool nan, inf;
    } rows[] = {
        {1, 32, FLT_MAX, "f32", true, true},         {2, 16, 65504.0f, "f16", true, true},
        {3, 16, 0x1.FEp127f, "bf16", true, true},    {4, 8, 448.0f, "e4m3fn", true, false},
        {5, 8, 240.0f, "e4m3fnuz", true, false},     {6, 8, 57344.0f, "e5m2", true, true},
        {7, 8, 127.0f, "i8", false, false},           {8, 4, 124.0f, "v4", false, false},
    };
    static const uint32_t unknown[] = {0, 9, 255, UINT32_MAX};
    static const char *const foreign[] = {"", "e4m3", "E5M2", "f32 ", "fp8_e4m3", "int8"};
    (void)state;
    assert_int_equal(sizeof rows / sizeof rows[0], OCT__DTYPE_LAST);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        uint32_t d = rows[i].dtype;
        uint32_t from = oct__dtype_saturates_from_bits(d);
        assert_true(oct__dtype_is_valid(d));
        assert_int_equal(oct__dtype_bits(d), rows[i].bits);
        assert_int_equal(oct__dtype_size_bytes(d), rows[i].bits / 8);
        assert_int_equal(oct__dtype_bytes(d, 96), d == OCT_DTYPE_V4 ? 54 : 96 * rows[i].bits / 8);
        assert_int_equal(oct__dtype_align_bytes(d), d == OCT_DTYPE_V4 ? 2 : rows[i].bits / 8);
        assert_int_equal(oct__dtype_is_8bit(d), rows[i].bits == 8);
        assert_true(oct__dtype_max_f32(d) == rows[i].max);
        assert_string_equal(oct__dtype_name(d), rows[i].name);
        assert_int_equal(oct__dtype_from_name(rows[i].name), d);
        assert_int_equal(oct__dtype_has_nan(d), rows[i].nan);
        assert_int_equal(oct__dtype_has_inf(d), rows[i].inf);
        assert_true(f32(from) > rows[i].max && f32(from) <= rows[i].max * 1.25f);
    }
    for (size_t i = 0; i < sizeof unknown / sizeof unknown[0]; i++) {
        uint32_t d = unknown[i];
        assert_false(oct__dtype_is_valid(d));
        assert_int_equal(oct__dtype_bits(d), 0);
        assert_int_equal(oct__dtype_size_bytes(d), 0);
        assert_false(oct__dtype_is_8bit(d) || oct__dtype_has_nan(d) || oct__dtype_has_inf(d));
        assert_true(oct__dtype_max_f32(d) == 0.0f);
        assert_null(oct__dtype_name(d));
        assert_true(oct__dtype_saturates_from_bits(d) == UINT32_MAX);
    }
    for (size_t i = 0; i < sizeof foreign / sizeof foreign[0]; i++) {
        assert_int_equal(oct__dtype_from_name(foreign[i]), 0);
    }
    assert_int_equal(oct__dtype_from_name(NULL), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_beyond_the_range_saturate),
        cmocka_unit_test(nan_stays_nan_with_its_sign),
        cmocka_unit_test(the_same_byte_differs_by_format),
        cmocka_unit_test(decoders_follow_the_definition),
        cmocka_unit_test(fp8_ties_go_to_even),
        cmocka_unit_test(i8_rounds_to_even_and_clamps),
        cmocka_unit_test(negative_underflow_keeps_or_drops_the_sign),
        cmocka_unit_test(sixteen_bit_golden_values),
        cmocka_unit_test(dtype_facts_agree_with_the_formats),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
