/* arith.c: see arith.h. The steps of a division: both sides are scaled away from subnormals and overflow (div_scale), the quotient is refined by
 * plain multiply-adds and scaled back in the last of them (div_fmas), and special values are put in (div_fixup). */
#include "amdsim/arith.h"

int is_of_class_f32(uint32_t a, uint32_t classes)
{
    const uint32_t e = a >> 23 & 255, m = a & 0x7FFFFF, negative = a >> 31;
    uint32_t bit;
    if (e == 255)
        bit = m != 0 ? (m & QUIET_32 ? 1 : 0) : negative ? 2 : 9;
    else if (e == 0)
        bit = m == 0 ? (negative ? 5 : 6) : negative ? 4 : 7;
    else
        bit = negative ? 3 : 8;
    return classes >> bit & 1;
}

static int exponent32(uint32_t a) { return (int)(a >> 23 & 255); }
static int exponent64(uint64_t a) { return (int)(a >> 52 & 2047); }
static int is_subnormal32(double x) { return x != 0.0 && fabs(x) < 0x1p-126; }
static int is_subnormal64(long double x) { return x != 0.0L && fabsl(x) < 0x1p-1022L; }

uint32_t div_scale_f32(uint32_t a, uint32_t b, uint32_t c, uint32_t *scaled)
{
    const double denominator = (double)F(b), numerator = (double)F(c);
    *scaled = 0;
    if (numerator == 0.0 || denominator == 0.0)
        return NAN_32;
    if (!isfinite(numerator) || !isfinite(denominator))
        return a;
    const int is_denominator = a == b, is_numerator = a == c;
    if (exponent32(c) - exponent32(b) >= 96) {   /* a quotient near overflow: the denominator grows */
        *scaled = 1;
        return is_denominator ? B(ldexpf(F(a), 64)) : a;
    }
    if (is_subnormal32(denominator))
        return B(ldexpf(F(a), 64));
    if (is_subnormal32(1.0 / denominator) && is_subnormal32(numerator / denominator)) {   /* the denominator shrinks */
        *scaled = 1;
        return is_denominator ? B(ldexpf(F(a), -64)) : a;
    }
    if (is_subnormal32(1.0 / denominator))
        return B(ldexpf(F(a), -64));
    if (is_subnormal32(numerator / denominator)) {   /* the numerator grows */
        *scaled = 1;
        return is_numerator ? B(ldexpf(F(a), 64)) : a;
    }
    return exponent32(c) <= 23 ? B(ldexpf(F(a), 64)) : a;
}

uint64_t div_scale_f64(uint64_t a, uint64_t b, uint64_t c, uint32_t *scaled)
{
    const long double denominator = (long double)D(b), numerator = (long double)D(c);
    *scaled = 0;
    if (numerator == 0.0L || denominator == 0.0L)
        return NAN_64;
    if (!isfinite(D(b)) || !isfinite(D(c)))
        return a;
    const int is_denominator = a == b, is_numerator = a == c;
    if (exponent64(c) - exponent64(b) >= 768) {
        *scaled = 1;
        return is_denominator ? B64(ldexp(D(a), 128)) : a;
    }
    if (is_subnormal64(denominator))
        return B64(ldexp(D(a), 128));
    if (is_subnormal64(1.0L / denominator) && is_subnormal64(numerator / denominator)) {
        *scaled = 1;
        return is_denominator ? B64(ldexp(D(a), -128)) : a;
    }
    if (is_subnormal64(1.0L / denominator))
        return B64(ldexp(D(a), -128));
    if (is_subnormal64(numerator / denominator)) {
        *scaled = 1;
        return is_numerator ? B64(ldexp(D(a), 128)) : a;
    }
    return exponent64(c) <= 53 ? B64(ldexp(D(a), 128)) : a;
}

/* Whichever side was scaled, the quotient's own size says in which direction. A quotient that becomes subnormal is rounded once: the sum is taken
 * in double, where the product is exact, and made odd if it was not, so that the second rounding knows. */
uint32_t div_fmas_f32(uint32_t a, uint32_t b, uint32_t c, uint32_t scaled)
{
    if (!scaled)
        return settle3(a, b, c, fmaf(F(a), F(b), F(c)));
    const double p = (double)F(a) * (double)F(b), addend = (double)F(c), sum = p + addend, part = sum - p, error = (p - (sum - part)) + (addend - part);
    uint64_t bits = B64(sum);
    if (isfinite(sum) && error != 0.0 && !(bits & 1))
        bits = (error > 0.0) == (sum > 0.0) ? bits + 1 : bits - 1;
    return settle3(a, b, c, (float)ldexp(D(bits), exponent32(c) > 127 ? 64 : -64));
}

/* Here a subnormal quotient is rounded twice. */
uint64_t div_fmas_f64(uint64_t a, uint64_t b, uint64_t c, uint32_t scaled)
{
    const double sum = fma(D(a), D(b), D(c));
    return settle3_64(a, b, c, scaled ? ldexp(sum, exponent64(c) > 1023 ? 128 : -128) : sum);
}

uint32_t div_fixup_f32(uint32_t a, uint32_t b, uint32_t c)
{
    const uint32_t sign = (b ^ c) & 0x80000000, x = b & 0x7FFFFFFF, y = c & 0x7FFFFFFF, infinity = 0x7F800000;
    if (is_nan(c))
        return c | QUIET_32;
    if (is_nan(b))
        return b | QUIET_32;
    if ((x == 0 && y == 0) || (x == infinity && y == infinity))
        return 0xFFC00000;
    if (x == 0 || y == infinity)
        return sign | infinity;
    if (x == infinity || y == 0)
        return sign;
    if (exponent32(c) - exponent32(b) < -150)
        return sign;
    return sign | (is_nan(a) ? infinity : a & 0x7FFFFFFF);
}

uint64_t div_fixup_f64(uint64_t a, uint64_t b, uint64_t c)
{
    const uint64_t sign = (b ^ c) & UINT64_C(0x8000000000000000), x = b & INT64_MAX, y = c & INT64_MAX, infinity = UINT64_C(0x7FF0000000000000);
    if (is_nan_64(c))
        return c | QUIET_64;
    if (is_nan_64(b))
        return b | QUIET_64;
    if ((x == 0 && y == 0) || (x == infinity && y == infinity))
        return UINT64_C(0xFFF8000000000000);
    if (x == 0 || y == infinity)
        return sign | infinity;
    if (x == infinity || y == 0)
        return sign;
    if (exponent64(c) - exponent64(b) < -1075)
        return sign;
    return sign | (is_nan_64(a) ? infinity : a & INT64_MAX);
}
