/* float_bits.h: owns the integer arithmetic that every format of this room stands on: bit casts,
 * rounding to nearest even, narrowing from and widening to IEEE binary32, and a division that
 * does not see the flush-to-zero state of the thread.
 *
 * Threads: pure functions, no state, any thread, any device.
 *
 * The functions whose names end in `_bits` take and give binary32 as uint32_t. They are the form
 * for code that may be compiled with -ffast-math: there a compiler may assume that a float argument
 * is never NaN or infinite, so the NaN must never be a float on its way in.
 */
#ifndef OCT_NUMBER_FLOAT_BITS_H
#define OCT_NUMBER_FLOAT_BITS_H

#include <stdint.h>

#if defined(__CUDACC__)
#define OCT__FN static inline __host__ __device__
#elif defined(__HIP__) /* the words of the line above are macros of a header that device code does without */
#define OCT__FN static inline __attribute__((host, device))
#else
#define OCT__FN static inline
#endif

#define OCT__F32_ABS_MASK  UINT32_C(0x7FFFFFFF)
#define OCT__F32_INF_BITS  UINT32_C(0x7F800000)
#define OCT__F32_QNAN_BITS UINT32_C(0x7FC00000)
#define OCT__F32_ONE_BITS  UINT32_C(0x3F800000)

/* The bits of x. A union and not memcpy, so that this needs no C library. In C++ reading the other
 * member is undefined, so C++ takes __builtin_bit_cast, which gcc has from 11 and clang from 9. */
OCT__FN uint32_t oct__f32_to_bits(float x)
{
#if defined(__cplusplus)
    return __builtin_bit_cast(uint32_t, x);
#else
    union {
        float f;
        uint32_t u;
    } pun;
    pun.f = x;
    return pun.u;
#endif
}

/* The float whose bits these are; every pattern is legal. */
OCT__FN float oct__f32_of_bits(uint32_t bits)
{
#if defined(__cplusplus)
    return __builtin_bit_cast(float, bits);
#else
    union {
        uint32_t u;
        float f;
    } pun;
    pun.u = bits;
    return pun.f;
#endif
}

/* 1 for NaN, else 0; unlike isnan() and x != x also under -ffast-math. */
OCT__FN int oct__f32_bits_are_nan(uint32_t bits)
{
    return (bits & OCT__F32_ABS_MASK) > OCT__F32_INF_BITS;
}

/* 1 for a finite value, else 0. */
OCT__FN int oct__f32_bits_are_finite(uint32_t bits)
{
    return (bits & OCT__F32_ABS_MASK) < OCT__F32_INF_BITS;
}

/* value / 2^shift rounded to nearest, ties to even. 1 <= shift <= 31, value < 2^31. */
OCT__FN uint32_t oct__shift_right_rne(uint32_t value, uint32_t shift)
{
    uint32_t half_less_one = (UINT32_C(1) << (shift - 1)) - 1;
    return (value + half_less_one + ((value >> shift) & 1)) >> shift;
}

/* Narrows |x|, given as binary32 bits without sign, to a format with `man_bits` mantissa bits and
 * the exponent bias `bias`: round to nearest even, subnormals kept. Gives exponent and mantissa as
 * one integer in that format's layout. The caller has dealt with NaN, infinity and overflow before:
 * the result simply counts on past the format's top code. 1 <= man_bits <= 10, 7 <= bias <= 15. */
OCT__FN uint32_t oct__narrow_abs_rne(uint32_t abs_bits, uint32_t man_bits, uint32_t bias)
{
    uint32_t exponent = abs_bits >> 23;
    uint32_t drop_bits = 23 - man_bits;
    uint32_t shift;
    if (exponent >= 128 - bias) {
        /* Exponent and mantissa are rounded as one number, so that a carry moves to the next binade. */
        return oct__shift_right_rne(abs_bits, drop_bits) - ((127 - bias) << man_bits);
    }
    /* Below the smallest normal: count the value in units of the smallest subnormal. A carry out
     * of the mantissa gives the code of the smallest normal, which is right. */
    shift = drop_bits + 128 - bias - exponent;
    if (shift > 24) {
        return 0; /* below half a unit; f32 subnormals and zero end here too */
    }
    return oct__shift_right_rne((abs_bits & UINT32_C(0x7FFFFF)) | UINT32_C(0x800000), shift);
}

/* The inverse for finite codes without sign: exact, since binary32 has room for all of them as
 * normal numbers. 1 <= man_bits <= 10, 7 <= bias <= 15. */
OCT__FN uint32_t oct__widen_abs(uint32_t code, uint32_t man_bits, uint32_t bias)
{
    uint32_t exponent = code >> man_bits;
    uint32_t mantissa = code & ((UINT32_C(1) << man_bits) - 1);
    uint32_t rebias = 127 - bias;
    if (exponent != 0) {
        return ((exponent + rebias) << 23) | (mantissa << (23 - man_bits));
    }
    if (mantissa == 0) {
        return 0;
    }
    rebias += 1;
    while ((mantissa >> man_bits) == 0) {
        mantissa <<= 1;
        rebias -= 1;
    }
    return (rebias << 23) | ((mantissa & ((UINT32_C(1) << man_bits) - 1)) << (23 - man_bits));
}

/* x / y as IEEE 754 rounds it (nearest even), also where a thread has set flush-to-zero or
 * denormals-are-zero, as numerical host programs do. Take it wherever a value is divided by its
 * scale. A NaN result is quiet; its payload is unspecified. */
OCT__FN uint32_t oct__f32_divide_bits(uint32_t x_bits, uint32_t y_bits)
{
    uint32_t sign = (x_bits ^ y_bits) & ~OCT__F32_ABS_MASK;
    uint32_t x_abs = x_bits & OCT__F32_ABS_MASK;
    uint32_t y_abs = y_bits & OCT__F32_ABS_MASK;
    int32_t x_exponent = (int32_t)(x_abs >> 23);
    int32_t y_exponent = (int32_t)(y_abs >> 23);
    uint32_t x_mantissa, y_mantissa, quotient;
    uint64_t numerator;
    int32_t exponent;
#if defined(__CUDA_ARCH__) || defined(__AMDGCN__)
    /* A kernel has no modes of a thread, and its division is IEEE unless it is compiled otherwise, which the device room is not. */
    return oct__f32_to_bits(oct__f32_of_bits(x_bits) / oct__f32_of_bits(y_bits));
#endif
#if !defined(__FAST_MATH__) && !defined(__RECIPROCAL_MATH__)
    /* Normal operands and a quotient far from both ends of the range: the hardware's division gives
     * the same and is faster. Only where a subnormal may come in does the thread's mode matter. */
    if (x_exponent > 0 && x_exponent < 255 && y_exponent > 0 && y_exponent < 255 &&
        x_exponent - y_exponent > -120 && x_exponent - y_exponent < 120) {
        return oct__f32_to_bits(oct__f32_of_bits(x_bits) / oct__f32_of_bits(y_bits));
    }
#endif
    if (x_abs > OCT__F32_INF_BITS || y_abs > OCT__F32_INF_BITS || (x_abs == 0 && y_abs == 0) ||
        (x_abs == OCT__F32_INF_BITS && y_abs == OCT__F32_INF_BITS)) {
        return OCT__F32_QNAN_BITS;
    }
    if (x_abs == OCT__F32_INF_BITS || y_abs == 0) {
        return sign | OCT__F32_INF_BITS;
    }
    if (x_abs == 0 || y_abs == OCT__F32_INF_BITS) {
        return sign;
    }
    x_mantissa = x_abs & UINT32_C(0x7FFFFF);
    y_mantissa = y_abs & UINT32_C(0x7FFFFF);
    if (x_exponent != 0) {
        x_mantissa |= UINT32_C(0x800000);
    } else {
        x_exponent = 1;
        while (x_mantissa < UINT32_C(0x800000)) {
            x_mantissa <<= 1;
            x_exponent -= 1;
        }
    }
    if (y_exponent != 0) {
        y_mantissa |= UINT32_C(0x800000);
    } else {
        y_exponent = 1;
        while (y_mantissa < UINT32_C(0x800000)) {
            y_mantissa <<= 1;
            y_exponent -= 1;
        }
    }
    exponent = x_exponent - y_exponent + 127;
    if (x_mantissa < y_mantissa) {
        x_mantissa <<= 1;
        exponent -= 1;
    }
    /* The quotient lies in [1, 2): its 24 bits, two more, and a sticky bit for the rest are all
     * that rounding needs. So it has 27 bits, of which 3 are rounded off. */
    numerator = (uint64_t)x_mantissa << 25;
    quotient = (uint32_t)(numerator / y_mantissa) << 1;
    quotient |= (numerator % y_mantissa) != 0;
    if (exponent >= 255) {
        return sign | OCT__F32_INF_BITS;
    }
    if (exponent <= 0) {
        uint32_t shift = (uint32_t)(4 - exponent);
        return shift > 28 ? sign : sign | oct__shift_right_rne(quotient, shift);
    }
    return sign | (((uint32_t)(exponent - 1) << 23) + oct__shift_right_rne(quotient, 3));
}

OCT__FN float oct__f32_divide(float x, float y)
{
    return oct__f32_of_bits(oct__f32_divide_bits(oct__f32_to_bits(x), oct__f32_to_bits(y)));
}

#endif
