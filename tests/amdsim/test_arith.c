/* test_arith.c: the steps of a division and the conversions of the simulator against the host's. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

#include "amdsim/arith.h"

#define INFINITE 0x7F800000
#define ONE 0x3F800000

/* ---- division --------------------------------------------------------------------------------------------------------------------------------- */

/* The compiler's own sequence must give the correctly rounded quotient, subnormals, overflow and special values included. */
static uint32_t divided(uint32_t a, uint32_t b)
{
    uint32_t scaled = 0, unused;
    const uint32_t d = div_scale_f32(b, b, a, &unused), n = div_scale_f32(a, b, a, &scaled), r = reciprocal(d);
    const float e = fmaf(-F(d), F(r), 1.0f), r1 = fmaf(e, F(r), F(r)), q = F(n) * r1, t = fmaf(-F(d), q, F(n)), q1 = fmaf(t, r1, q), t1 = fmaf(-F(d), q1, F(n));
    return div_fixup_f32(div_fmas_f32(B(t1), B(r1), B(q1), scaled), b, a);
}

static uint64_t divided64(uint64_t a, uint64_t b)
{
    uint32_t scaled = 0, unused;
    const uint64_t d = div_scale_f64(b, b, a, &unused), n = div_scale_f64(a, b, a, &scaled), r = reciprocal_f64(d);
    const double e = fma(-D(d), D(r), 1.0), r1 = fma(e, D(r), D(r)), e1 = fma(-D(d), r1, 1.0), r2 = fma(e1, r1, r1), q = D(n) * r2, t = fma(-D(d), q, D(n));
    return div_fixup_f64(div_fmas_f64(B64(t), B64(r2), B64(q), scaled), b, a);
}

static uint64_t next(uint64_t *state)
{
    *state += UINT64_C(0x9E3779B97F4A7C15);
    uint64_t z = *state;
    z = (z ^ (z >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94D049BB133111EB);
    return z ^ (z >> 31);
}

static void division(void **state)
{
    static const uint32_t special[] = { 0, 0x80000000, INFINITE, 0xFF800000, 0x7FC00000, 1, 0x007FFFFF, 0x00800000, 0x7F7FFFFF, ONE };
    uint64_t seed = 5;
    (void)state;
    for (int i = 0; i < 400000; i++) {
        uint32_t a = (uint32_t)next(&seed), b = (uint32_t)next(&seed);
        if (i < 100) {
            a = special[i % 10];
            b = special[i / 10];
        } else if (i % 4 == 0) {   /* exponents near those whose quotient is subnormal or infinite */
            b = (b & 0x807FFFFF) | (0xFD - (uint32_t)(i % 3)) << 23;
            a &= 0x81FFFFFF;
        }
        const uint32_t r = divided(a, b), expected = B(F(a) / F(b));
        if (!(is_nan(r) && is_nan(expected)) && r != expected)
            print_message("0x%08x / 0x%08x is 0x%08x, expected 0x%08x\n", a, b, r, expected);
        assert_true((is_nan(r) && is_nan(expected)) || r == expected);
        const uint64_t a64 = next(&seed), b64 = next(&seed), r64 = divided64(a64, b64), expected64 = B64(D(a64) / D(b64));
        const int is_subnormal = (expected64 & INT64_MAX) < UINT64_C(0x0010000000000000);   /* rounded twice: arith.c */
        assert_true((is_nan_64(r64) && is_nan_64(expected64)) || r64 == expected64 || (is_subnormal && r64 - expected64 + 1 <= 2));
    }
}

/* ---- f16 ---------------------------------------------------------------------------------------------------------------------------------------- */

/* Every f16 comes back from f32; values around each midpoint of two neighbours go to the nearer one, the midpoint to the even one. */
static void conversions(void **state)
{
    (void)state;
    for (uint32_t h = 0; h < 0x10000; h++) {
        const uint32_t f = f32_of_f16(h), is_special = (h & 0x7C00) == 0x7C00;
        assert_int_equal(f16_of_f32(f), is_special && (h & 0x3FF) != 0 ? h | 0x200 : h);
        if (is_special || (h & 0x7FFF) == 0x7BFF)
            continue;
        const uint32_t above = f32_of_f16(h + 1), middle = B((F(f) + F(above)) / 2.0f);
        assert_int_equal(f16_of_f32(middle), h + (h & 1));
        assert_int_equal(f16_of_f32(middle - 1), h);
        assert_int_equal(f16_of_f32(middle + 1), h + 1);
        assert_int_equal(f16_toward_zero(middle + 1), h);
    }
    assert_int_equal(to_u32(-1.5), 0);
    assert_int_equal(to_u32(4294967295.5), UINT32_MAX);
    assert_int_equal(to_i32(-2147483649.0), 0x80000000);
    assert_int_equal(to_i32(2147483648.0), 0x7FFFFFFF);
}

int test_arith(void);
int test_arith(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(division),
        cmocka_unit_test(conversions),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
