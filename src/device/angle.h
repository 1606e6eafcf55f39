/* angle.h: owns the sine and cosine of RoPE, in f64 from basic arithmetic alone, so that every compiler and chip gives what the host gives to
 * within a rounding. Angles are counted in turns: taking off whole turns is then exact, at any position. */
#ifndef OCT_DEVICE_ANGLE_H
#define OCT_DEVICE_ANGLE_H

#include "device/simt.h"

DEV double f64_of_bits(uint64_t bits)
{
#if defined(__cplusplus)
    return __builtin_bit_cast(double, bits);
#else
    union {
        uint64_t u;
        double f;
    } pun;
    pun.u = bits;
    return pun.f;
#endif
}

/* 2^x for x in [-1000, 1000], relative error below 1e-15. */
DEV double exp2_f64(double x)
{
    const int32_t whole = (int32_t)(x < 0.0 ? x - 0.5 : x + 0.5);
    const double r = (x - (double)whole) * 0.69314718055994530942; /* |r| <= 0.35: the 15th term of the series is below 1e-18 */
    /* The series' terms up to r^14 / 14!; as constants, since fourteen divisions would be most of a write with RoPE. */
    double sum = 1.0 / 87178291200.0;
    sum = sum * r + 1.0 / 6227020800.0;
    sum = sum * r + 1.0 / 479001600.0;
    sum = sum * r + 1.0 / 39916800.0;
    sum = sum * r + 1.0 / 3628800.0;
    sum = sum * r + 1.0 / 362880.0;
    sum = sum * r + 1.0 / 40320.0;
    sum = sum * r + 1.0 / 5040.0;
    sum = sum * r + 1.0 / 720.0;
    sum = sum * r + 1.0 / 120.0;
    sum = sum * r + 1.0 / 24.0;
    sum = sum * r + 1.0 / 6.0;
    sum = sum * r + 0.5;
    sum = sum * r + 1.0;
    sum = sum * r + 1.0;
    /* The power of two in two halves, each a normal number. */
    const int32_t half = whole / 2;
    return sum * f64_of_bits((uint64_t)(half + 1023) << 52) * f64_of_bits((uint64_t)(whole - half + 1023) << 52);
}

/* sin and cos of 2 pi turns, correctly rounded to f32 but for ties within 1e-16. |turns| < 2^31. */
DEV void sincos_turns(double turns, float *sine, float *cosine)
{
    const double whole = (double)(int64_t)(turns < 0.0 ? turns - 0.5 : turns + 0.5);
    const double part = turns - whole;                                     /* exact, in [-1/2, 1/2] */
    const int32_t quarter = (int32_t)(part < 0.0 ? part * 4.0 - 0.5 : part * 4.0 + 0.5);
    const double x = (part - 0.25 * (double)quarter) * 6.28318530717958647693; /* in [-pi / 4, pi / 4] */
    const double s = x * x;
    const double sin_x = x * (1.0 + s * (-1.0 / 6.0 + s * (1.0 / 120.0 + s * (-1.0 / 5040.0 + s * (1.0 / 362880.0 + s * (-1.0 / 39916800.0 +
                         s * (1.0 / 6227020800.0 + s * (-1.0 / 1307674368000.0))))))));
    const double cos_x = 1.0 + s * (-0.5 + s * (1.0 / 24.0 + s * (-1.0 / 720.0 + s * (1.0 / 40320.0 + s * (-1.0 / 3628800.0 +
                         s * (1.0 / 479001600.0 + s * (-1.0 / 87178291200.0 + s * (1.0 / 20922789888000.0))))))));
    const int32_t q = quarter & 3;
    *sine = (float)(q == 0 ? sin_x : q == 1 ? cos_x : q == 2 ? -sin_x : -cos_x);
    *cosine = (float)(q == 0 ? cos_x : q == 1 ? -sin_x : q == 2 ? -cos_x : sin_x);
}

#endif
