/* arith.h: owns the arithmetic of single values: bits and floats, the conversions' rounding, the approximations and the steps of a division.
 * From the vendor's ISA documents of CDNA3 and CDNA4; nothing here comes from src/number, whose codes the simulator is to check. Pure functions. */
#ifndef AMDSIM_ARITH_H
#define AMDSIM_ARITH_H

#include <math.h>
#include <stdint.h>
#include <string.h>

static inline float F(uint32_t bits)
{
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

static inline uint32_t B(float f)
{
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    return bits;
}

static inline double D(uint64_t bits)
{
    double d;
    memcpy(&d, &bits, sizeof d);
    return d;
}

static inline uint64_t B64(double d)
{
    uint64_t bits;
    memcpy(&bits, &d, sizeof bits);
    return bits;
}

/* ---- NaN ------------------------------------------------------------------------------------------------------------------------ */

#define NAN_32 UINT32_C(0x7FC00000)
#define QUIET_32 UINT32_C(0x00400000)
#define NAN_64 UINT64_C(0x7FF8000000000000)
#define QUIET_64 UINT64_C(0x0008000000000000)

static inline int is_nan(uint32_t a) { return (a & 0x7FFFFFFF) > 0x7F800000; }
static inline int is_nan_64(uint64_t a) { return (a & INT64_MAX) > UINT64_C(0x7FF0000000000000); }

/* The bits of a result whose NaN the machine, not this host, chooses. */
static inline uint32_t settle2(uint32_t a, uint32_t b, float r)
{
    const uint32_t nan = is_nan(a) ? a | QUIET_32 : is_nan(b) ? b | QUIET_32 : NAN_32, bits = B(r);
    return is_nan(bits) ? nan : bits;
}

static inline uint32_t settle3(uint32_t a, uint32_t b, uint32_t c, float r)
{
    const uint32_t bits = B(r);
    return !is_nan(bits) ? bits : is_nan(a) || is_nan(b) || !is_nan(c) ? settle2(a, b, r) : c | QUIET_32;
}

static inline uint64_t settle2_64(uint64_t a, uint64_t b, double r)
{
    const uint64_t bits = B64(r);
    return !is_nan_64(bits) ? bits : is_nan_64(a) ? a | QUIET_64 : is_nan_64(b) ? b | QUIET_64 : NAN_64;
}

static inline uint64_t settle3_64(uint64_t a, uint64_t b, uint64_t c, double r)
{
    const uint64_t bits = B64(r);
    return !is_nan_64(bits) ? bits : is_nan_64(a) || is_nan_64(b) || !is_nan_64(c) ? settle2_64(a, b, r) : c | QUIET_64;
}

/* IEEE mode: a signalling NaN comes out quiet, a quiet one loses to a number; -0 is less than +0. */
static inline uint32_t larger(uint32_t a, uint32_t b)
{
    if (is_nan(a))
        return a & QUIET_32 ? (is_nan(b) ? b | QUIET_32 : b) : a | QUIET_32;
    if (is_nan(b))
        return b & QUIET_32 ? a : b | QUIET_32;
    return F(a) > F(b) || (F(a) == F(b) && a >> 31 == 0) ? a : b;
}

static inline uint32_t smaller(uint32_t a, uint32_t b)
{
    if (is_nan(a))
        return a & QUIET_32 ? (is_nan(b) ? b | QUIET_32 : b) : a | QUIET_32;
    if (is_nan(b))
        return b & QUIET_32 ? a : b | QUIET_32;
    return F(a) < F(b) || (F(a) == F(b) && a >> 31 != 0) ? a : b;
}

/* ---- bits ----------------------------------------------------------------------------------------------------------------------- */

static inline uint32_t field(uint32_t a, uint32_t at, uint32_t n)
{
    n &= 31;
    return a >> (at & 31) & ((1u << n) - 1);
}

static inline uint32_t field_signed(uint32_t a, uint32_t at, uint32_t n)
{
    n &= 31;
    return n == 0 ? 0 : (uint32_t)((int32_t)(field(a, at, n) << (32 - n)) >> (32 - n));
}

static inline uint32_t reversed(uint32_t a)
{
    a = (a >> 1 & 0x55555555) | (a & 0x55555555) << 1;
    a = (a >> 2 & 0x33333333) | (a & 0x33333333) << 2;
    a = (a >> 4 & 0x0F0F0F0F) | (a & 0x0F0F0F0F) << 4;
    return __builtin_bswap32(a);
}

static inline uint32_t leading_zeros(uint32_t a) { return a == 0 ? UINT32_MAX : (uint32_t)__builtin_clz(a); }
static inline int bounded(int32_t n) { return n < -5000 ? -5000 : n > 5000 ? 5000 : n; }

/* Bytes 0 to 3 are b's, 4 to 7 a's; 8 to 11 signs of halves, 12 zero, above ones. */
static inline uint32_t permuted(uint32_t a, uint32_t b, uint32_t selector)
{
    const uint64_t both = (uint64_t)a << 32 | b;
    uint32_t r = 0;
    for (uint32_t i = 0; i < 4; i++) {
        const uint32_t s = selector >> (8 * i) & 255;
        const uint32_t byte = s < 8 ? (uint32_t)(both >> (8 * s)) & 255 : s < 12 ? (both >> (16 * (s - 8) + 15) & 1) * 255 : s == 12 ? 0 : 255;
        r |= byte << (8 * i);
    }
    return r;
}

/* Bit 4a + 2b + c of the table, for each bit. */
static inline uint32_t bitop3(uint32_t a, uint32_t b, uint32_t c, uint32_t table)
{
    uint32_t r = 0;
    for (uint32_t i = 0; i < 8; i++)
        if (table >> i & 1)
            r |= (i & 4 ? a : ~a) & (i & 2 ? b : ~b) & (i & 1 ? c : ~c);
    return r;
}

/* ---- conversions ------------------------------------------------------------------------------------------------------------------ */

static inline uint32_t to_u32(double d) { return !(d > -1.0) ? 0 : d >= 4294967296.0 ? UINT32_MAX : (uint32_t)d; }
static inline uint32_t to_i32(double d)
{
    return d != d ? 0 : d <= -2147483648.0 ? 0x80000000 : d >= 2147483647.0 ? 0x7FFFFFFF : (uint32_t)(int32_t)d;
}

static inline uint32_t f32_of_f64(uint64_t a)
{
    if (is_nan_64(a))
        return (uint32_t)(a >> 32 & 0x80000000) | NAN_32 | (uint32_t)(a >> 29 & 0x3FFFFF);
    return B((float)D(a));
}

static inline uint64_t f64_of_f32(uint32_t a)
{
    if (is_nan(a))
        return (uint64_t)(a & 0x80000000) << 32 | NAN_64 | (uint64_t)(a & 0x3FFFFF) << 29;
    return B64((double)F(a));
}

static inline uint32_t f32_of_f16(uint32_t h)
{
    const uint32_t sign = (h & 0x8000) << 16, e = h >> 10 & 31, m = h & 0x3FF;
    if (e == 31)
        return sign | 0x7F800000 | (m != 0 ? QUIET_32 | m << 13 : 0);
    return sign | (e == 0 ? B((float)m * 0x1p-24f) : (e + 112) << 23 | m << 13);
}

/* A finite number to a format of `mantissa` bits and a least exponent; nearest even, or toward zero. The value, exactly. */
static inline double rounded(double x, int mantissa, int least_exponent, int toward_zero)
{
    int e;
    if (x == 0.0)
        return x;
    (void)frexp(x, &e);
    e = e - 1 < least_exponent ? least_exponent : e - 1;
    const double scaled = ldexp(x, mantissa - e);
    return ldexp(toward_zero ? trunc(scaled) : nearbyint(scaled), e - mantissa);
}

static inline uint32_t f16_bits(double x, uint32_t sign, int toward_zero)
{
    const double y = fabs(rounded(x, 10, -14, toward_zero));
    if (y >= 65536.0)
        return sign | (toward_zero && isfinite(x) ? 0x7BFF : 0x7C00);
    if (y < 0x1p-14)
        return sign | (uint32_t)(y * 0x1p24);
    int e;
    const double m = frexp(y, &e);
    return sign | ((uint32_t)(e + 14) << 10) | ((uint32_t)(m * 2048.0) & 0x3FF);
}

static inline uint32_t f16_of_f32(uint32_t a)
{
    const uint32_t sign = a >> 16 & 0x8000;
    if (is_nan(a))
        return sign | 0x7E00 | (a >> 13 & 0x1FF);
    return isinf(F(a)) ? sign | 0x7C00 : f16_bits((double)F(a), sign, 0);
}

static inline uint32_t f16_toward_zero(uint32_t a)
{
    const uint32_t sign = a >> 16 & 0x8000;
    if (is_nan(a))
        return sign | 0x7E00 | (a >> 13 & 0x1FF);
    return isinf(F(a)) ? sign | 0x7C00 : f16_bits((double)F(a), sign, 1);
}

static inline uint32_t bf16_of_f32(uint32_t a)
{
    return is_nan(a) ? a >> 16 | 0x40 : (a + 0x7FFF + (a >> 16 & 1)) >> 16;
}

/* e4m3 with a bias of 7 (OCP: 0x7F and 0xFF are NaN) or 8 (fnuz: 0x80 is the NaN), or e5m2 with 15 or 16. */
static inline uint32_t f32_of_fp8(uint32_t byte, int is_bf8, int is_fnuz)
{
    const uint32_t mantissa_bits = is_bf8 ? 2 : 3, code = byte & 0x7F, m = code & ((1u << mantissa_bits) - 1), e = code >> mantissa_bits;
    const uint32_t sign = (byte & 0x80) << 24;
    const int bias = (is_bf8 ? 15 : 7) + is_fnuz;
    if (is_fnuz ? (byte & 0xFF) == 0x80 : is_bf8 ? e == 31 && m != 0 : code == 0x7F)
        return is_fnuz ? NAN_32 : sign | NAN_32;
    if (!is_fnuz && is_bf8 && e == 31)
        return sign | 0x7F800000;
    const float one = 1.0f / (float)(1u << mantissa_bits);
    return sign | B(ldexpf((float)m * one + (e != 0 ? 1.0f : 0.0f), (int)(e != 0 ? e : 1) - bias));
}

/* To the nearest code, ties to the even one. What rounds beyond the largest is infinity where there is one, else NaN (the mode that saturates is not used); a negative
 * number that rounds to zero gets its sign, which is NaN in the fnuz formats: no document says that it does not. */
static inline uint32_t fp8_of_f32(uint32_t a, int is_bf8, int is_fnuz)
{
    const uint32_t sign = a >> 24 & 0x80, none = is_fnuz ? 0x80 : sign | (is_bf8 ? 0x7E : 0x7F), most = is_fnuz ? 0x7F : is_bf8 ? 0x7B : 0x7E;
    const double x = (double)fabsf(F(a));
    uint32_t low = 0, high = most + 1;   /* the last code at or below x is in [low, high) */
    if (is_nan(a))
        return none;
    while (high - low > 1) {
        const uint32_t middle = (low + high) / 2;
        if ((double)F(f32_of_fp8(middle, is_bf8, is_fnuz)) <= x)
            low = middle;
        else
            high = middle;
    }
    const double below = (double)F(f32_of_fp8(low, is_bf8, is_fnuz));
    const double step = low == most ? below - (double)F(f32_of_fp8(low - 1, is_bf8, is_fnuz)) : (double)F(f32_of_fp8(low + 1, is_bf8, is_fnuz)) - below;
    if (x - below > step / 2 || (x - below == step / 2 && low % 2 == 1))
        low++;
    return low <= most ? sign | low : is_bf8 && !is_fnuz ? sign | 0x7C : none;
}

/* ---- approximations: correctly rounded here; subnormals count as zero, in and out, where the documents say so -------------------------------- */

static inline float flushed(float x) { return fabsf(x) < 0x1p-126f ? copysignf(0.0f, x) : x; }
static inline uint32_t reciprocal(uint32_t a) { return settle2(a, a, flushed((float)(1.0 / (double)flushed(F(a))))); }
static inline uint32_t exp2_of(uint32_t a) { return settle2(a, a, flushed((float)exp2((double)F(a)))); }
static inline uint32_t log2_of(uint32_t a)
{
    const float x = flushed(F(a));
    return settle2(a, a, x == 0.0f ? -INFINITY : x < 0.0f ? NAN : (float)log2((double)x));
}
/* The documents promise about 2^-28 here: kept to 29 bits, so that what a kernel then adds by its own steps is needed. */
static inline uint64_t reciprocal_f64(uint64_t a)
{
    const uint64_t r = settle2_64(a, a, 1.0 / D(a));
    return is_nan_64(r) || isinf(D(r)) ? r : r & ~UINT64_C(0xFFFFFF);
}

/* ---- classes and division: arith.c ---------------------------------------------------------------------------------------------------- */

int is_of_class_f32(uint32_t a, uint32_t classes);
/* a: the value to scale, which is b (denominator) or c (numerator). *scaled: the quotient will need v_div_fmas's scale. */
uint32_t div_scale_f32(uint32_t a, uint32_t b, uint32_t c, uint32_t *scaled);
uint64_t div_scale_f64(uint64_t a, uint64_t b, uint64_t c, uint32_t *scaled);
uint32_t div_fmas_f32(uint32_t a, uint32_t b, uint32_t c, uint32_t scaled);
uint64_t div_fmas_f64(uint64_t a, uint64_t b, uint64_t c, uint32_t scaled);
/* a: the quotient so far; b: denominator; c: numerator. */
uint32_t div_fixup_f32(uint32_t a, uint32_t b, uint32_t c);
uint64_t div_fixup_f64(uint64_t a, uint64_t b, uint64_t c);

#endif
