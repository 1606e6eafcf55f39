/* The 4-bit format of V: its numbers written down from doc/NUMERICS.md, every i8 to its nearest code, every scale under every code,
 * and whole blocks: zero, not finite, subnormal, beyond f16, at any alignment. */
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
#include "octavo/kv.h"

static const int numbers[16] = {0, 11, 22, 35, 48, 63, 80, 99, 124, -123, -94, -73, -56, -41, -26, -13};

static uint16_t scale_of(const uint8_t *block)
{
    uint16_t code;
    memcpy(&code, block, sizeof code);
    return code;
}

static void every_code_and_every_i8(void **state)
{
    (void)state;
    for (uint32_t code = 0; code < 16; code++) {
        assert_int_equal(oct__v4_number(code), numbers[code]);
        assert_int_equal(oct__v4_code((int8_t)numbers[code]), code);
    }
    for (int x = -128; x <= 127; x++) {
        int nearest = 0, n = 0;
        for (int c = 1; c < 16; c++) {
            nearest = abs(x - numbers[c]) < abs(x - numbers[nearest]) ? c : nearest;
        }
        for (int c = 0; c < 16; c++) {
            n += abs(x - numbers[c]) == abs(x - numbers[nearest]);
        }
        assert_int_equal(n, 1); /* no ties */
        assert_int_equal(oct__v4_code((int8_t)x), nearest);
    }
}

/* All 65,536 scales x 16 codes, in both halves of a byte: the product in double, a NaN where the scale is one. */
static void every_scale_under_every_code(void **state)
{
    uint8_t block[18];
    float x[32];
    (void)state;
    for (uint32_t i = 0; i < 16; i++) {
        block[2 + i] = (uint8_t)(i | (15 - i) << 4);
    }
    for (uint32_t scale = 0; scale < 65536; scale++) {
        const uint16_t code = (uint16_t)scale;
        const double factor = (double)oct__f16_to_f32(code);
        memcpy(block, &code, sizeof code);
        assert_true(oct__row_to_f32(x, block, OCT_DTYPE_V4, 32));
        for (uint32_t i = 0; i < 32; i++) {
            const double right = numbers[i < 16 ? i : 31 - i] * factor;
            assert_true(isnan(right) ? isnan(x[i]) : (double)x[i] == right);
        }
    }
}

/* A block of 32 through the write's rule by hand: amax / 127 in f32, floored, up to f16; i8; nearest number. */
static void check_block(const float *x, const uint8_t *block)
{
    float amax = 0;
    int has_nan = 0;
    for (int i = 0; i < 32; i++) {
        has_nan |= isnan(x[i]);
        amax = isfinite(x[i]) && fabsf(x[i]) > amax ? fabsf(x[i]) : amax;
    }
    const double least = fmax((double)(amax / 127.0f), (double)1e-6f), scale = (double)oct__f16_to_f32(scale_of(block));
    if (has_nan) {
        assert_int_equal(scale_of(block), 0x7E00);
        for (int i = 2; i < 18; i++) {
            assert_int_equal(block[i], 0);
        }
        return;
    }
    assert_true(least > 65504.0 ? scale == 65504.0 : scale >= least && (double)oct__f16_to_f32((uint16_t)(scale_of(block) - 1)) < least);
    for (int i = 0; i < 32; i++) {
        const double quotient = fmin(fmax((double)(float)((double)x[i] / scale), -127.0), 127.0), whole = nearbyint(quotient);
        int nearest = 0;
        for (int c = 1; c < 16; c++) {
            nearest = fabs(whole - numbers[c]) < fabs(whole - numbers[nearest]) ? c : nearest;
        }
        assert_int_equal(block[2 + i % 16] >> (i < 16 ? 0 : 4) & 15, nearest);
    }
}

static uint32_t next(uint32_t *seed)
{
    *seed = *seed * 1664525u + 1013904223u;
    return *seed >> 8;
}

/* 20,000 blocks over all magnitudes of f32; every 16th with an infinity, every 32nd with a NaN, some all zero. */
static void blocks_follow_the_rule(void **state)
{
    uint32_t seed = 9;
    (void)state;
    for (int n = 0; n < 20000; n++) {
        float x[32], back[32];
        uint8_t block[18];
        struct oct__convert_count count = {0, 0};
        uint64_t saturated = 0, nans = 0;
        const int exponent = (int)(next(&seed) % 200) - 110;
        for (int i = 0; i < 32; i++) {
            x[i] = n % 50 == 0 ? 0.0f : (float)ldexp((double)next(&seed) / 0x1p23 - 1.0, exponent);
        }
        if (n % 16 == 1) {
            x[next(&seed) % 32] = next(&seed) % 2 ? INFINITY : -INFINITY;
        }
        if (n % 32 == 3) {
            x[next(&seed) % 32] = NAN;
        }
        assert_true(oct__row_from_f32(block, OCT_DTYPE_V4, x, 32, 1.0f, &count));
        check_block(x, block);
        assert_true(oct__row_to_f32(back, block, OCT_DTYPE_V4, 32));
        const float scale = oct__f16_to_f32(scale_of(block));
        for (int i = 0; i < 32; i++) {
            nans += isnan(x[i]) != 0;
            saturated += !isnan(scale) && (isinf(x[i]) || fabs((double)x[i]) / (double)scale >= 127.5);
            assert_true(isnan(scale) ? isnan(back[i]) : x[i] != 0 || back[i] == 0);
        }
        assert_int_equal(count.nans, nans);
        assert_int_equal(count.saturated, saturated);
    }
}

/* Two blocks in a row, each with a scale of its own; at odd addresses, exactly as many bytes as there are; no half blocks. */
static void rows_of_whole_blocks_at_any_alignment(void **state)
{
    float x[64], *back = malloc(64 * sizeof *back);
    uint8_t *bytes = malloc(37);
    (void)state;
    assert_true(back != NULL && bytes != NULL);
    for (int i = 0; i < 64; i++) {
        x[i] = (float)(i % 32 - 16) * (i < 32 ? 1.0f : 1024.0f);
    }
    assert_true(oct__row_from_f32(bytes + 1, OCT_DTYPE_V4, x, 64, 1.0f, NULL));
    check_block(x, bytes + 1);
    check_block(x + 32, bytes + 19);
    assert_memory_equal(bytes + 3, bytes + 21, 16);
    assert_true(oct__row_to_f32(back, bytes + 1, OCT_DTYPE_V4, 64));
    for (int i = 0; i < 32; i++) {
        assert_true(back[i] * 1024.0f == back[i + 32]);
        assert_true(fabsf(back[i] - x[i]) <= 16.0f / 127.0f * 15.0f);
    }
    assert_false(oct__row_from_f32(bytes, OCT_DTYPE_V4, x, 16, 1.0f, NULL));
    assert_false(oct__row_to_f32(back, bytes, OCT_DTYPE_V4, 33));
    memset(bytes, 0, 37);
    assert_true(oct__row_to_f32(back, bytes, OCT_DTYPE_V4, 64));
    for (int i = 0; i < 64; i++) {
        assert_int_equal(oct__f32_to_bits(back[i]), 0); /* zero bytes are zeros */
    }
    assert_int_equal(oct__v4_block_at(64), 36);
    free(bytes);
    free(back);
}

/* Other sets of sixteen numbers for a block, as far as the largest magnitude or, by_sign, the largest element with its sign, is the first of them. */
static const struct { const char *name; int by_sign; double first, numbers[16]; } others[] = {
    { "-7..7 in equal steps", 0, 7, { -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7, 7 } },
    { "-8..7 by the signed largest", 1, -8, { -8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7 } },
    { "NF4", 0, 1, { -1, -0.6962, -0.5251, -0.3949, -0.2844, -0.1848, -0.0911, 0, 0.0796, 0.1609, 0.2461, 0.3379, 0.4407, 0.5626, 0.7230, 1 } },
    { "iq4_nl by the signed largest", 1, -127, { -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113 } },
};
enum { N_OTHERS = sizeof others / sizeof others[0] };

static double lost_by(int which, const float *x)
{
    double most = 0, lost = 0;
    for (int i = 0; i < 32; i++) {
        most = fabs((double)x[i]) > fabs(most) ? (double)x[i] : most;
    }
    const double scale = (others[which].by_sign ? most : fabs(most)) / others[which].first;
    for (int i = 0; i < 32; i++) {
        double least = INFINITY;
        for (int c = 0; c < 16; c++) {
            least = fmin(least, fabs(others[which].numbers[c] * scale - (double)x[i]));
        }
        lost += least * least;
    }
    return lost;
}

/* What the head of v4.h and doc/NUMERICS.md say: 0.0067 of the square of normal numbers, and what others lose. */
static void normal_numbers_lose_as_much_as_is_said(void **state)
{
    double lost = 0, all = 0, other[N_OTHERS] = {0};
    uint32_t seed = 5;
    (void)state;
    for (int n = 0; n < 20000; n++) {
        float x[32], back[32];
        uint8_t block[18];
        for (int i = 0; i < 32; i += 2) {
            const double r = sqrt(-2.0 * log(((double)next(&seed) + 1) / 0x1p24)), a = 6.283185307179586 * (double)next(&seed) / 0x1p24;
            x[i] = (float)(r * cos(a));
            x[i + 1] = (float)(r * sin(a));
        }
        assert_true(oct__row_from_f32(block, OCT_DTYPE_V4, x, 32, 1.0f, NULL) && oct__row_to_f32(back, block, OCT_DTYPE_V4, 32));
        for (int i = 0; i < 32; i++) {
            lost += ((double)back[i] - (double)x[i]) * ((double)back[i] - (double)x[i]);
            all += (double)x[i] * (double)x[i];
        }
        for (int k = 0; k < N_OTHERS; k++) {
            other[k] += lost_by(k, x);
        }
    }
    print_message("mean square error of blocks of 32 normal numbers: %.5f of their square\n", lost / all);
    for (int k = 0; k < N_OTHERS; k++) {
        print_message("  %s: %.5f\n", others[k].name, other[k] / all);
        assert_true(k == N_OTHERS - 1 ? other[k] < lost : other[k] > lost);
    }
    assert_true(lost / all > 0.0065 && lost / all < 0.0069);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_code_and_every_i8),
        cmocka_unit_test(every_scale_under_every_code),
        cmocka_unit_test(blocks_follow_the_rule),
        cmocka_unit_test(rows_of_whole_blocks_at_any_alignment),
        cmocka_unit_test(normal_numbers_lose_as_much_as_is_said),
    };
    return cmocka_run_group_tests_name("number_v4", tests, NULL, NULL);
}
