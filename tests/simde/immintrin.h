/* immintrin.h: AVX-512 for machines that lack it: SIMDe under the compilers' own names, and beside it what SIMDe 0.7.4 has not, or has in
 * another accuracy or far too slowly. The AVX-512 sources of src/cpu include <immintrin.h>; in this folder's builds they find this file.
 * test_models.c checks every function that is modelled here bit for bit against the instructions, on a machine that has them.
 *
 * Threads: pure functions. */
#ifndef TEST_SIMDE_IMMINTRIN_H
#define TEST_SIMDE_IMMINTRIN_H

#define SIMDE_ENABLE_NATIVE_ALIASES
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <simde/x86/avx512.h>

/* Calls of the kernels' parts stay calls: a copy for each kind and number of vectors takes a minute to compile. */
#define AVX512_INLINE static inline
#define AVX512_UNROLL

#define __mmask8 simde__mmask8
#define __mmask16 simde__mmask16
#define __mmask32 simde__mmask32
#define __mmask64 simde__mmask64

/* The models work on arrays of lanes. */
typedef union model_512 {
    __m512 ps;
    __m512i si;
    float f[16];
    uint32_t u[16];
    int32_t i[16];
    uint16_t w[32];
    uint8_t b[64];
} model_512;
typedef union model_256 {
    __m256 ps;
    __m256i si;
    float f[8];
    uint16_t w[16];
    uint8_t b[32];
} model_256;
typedef union model_128 {
    __m128i si;
    int32_t i[4];
    uint16_t w[8];
    int8_t c[16];
    uint8_t b[16];
} model_128;

#define MODEL static inline

MODEL model_512 model_of_ps(__m512 x) { model_512 m; m.ps = x; return m; }
MODEL model_512 model_of_si(__m512i x) { model_512 m; m.si = x; return m; }

/* ---- half precision ------------------------------------------------------------------------------------------------------ */

MODEL float model_half_to_f32(uint16_t h)
{
    const uint32_t sign = (uint32_t)(h & 0x8000) << 16, exponent = h >> 10 & 31, mantissa = h & 0x3FF;
    uint32_t bits;
    float x;
    if (exponent == 31) {
        bits = sign | 0x7F800000 | mantissa << 13 | (mantissa != 0 ? 0x400000 : 0);
    } else if (exponent != 0) {
        bits = sign | (exponent + 112) << 23 | mantissa << 13;
    } else {
        x = (float)mantissa * 0x1p-24f;
        memcpy(&bits, &x, sizeof(bits));
        bits |= sign;
    }
    memcpy(&x, &bits, sizeof(x));
    return x;
}

/* To nearest even. */
MODEL uint16_t model_half_of_f32(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof(bits));
    const uint16_t sign = (uint16_t)(bits >> 16 & 0x8000);
    const uint32_t abs = bits & 0x7FFFFFFF;
    if (abs > 0x7F800000) {
        return (uint16_t)(sign | 0x7E00 | (abs >> 13 & 0x3FF));
    }
    if (abs >= 0x477FF000) {
        return (uint16_t)(sign | 0x7C00);
    }
    if (abs < 0x38800000) { /* a count of 2^-24 */
        float magnitude;
        memcpy(&magnitude, &abs, sizeof(magnitude));
        return (uint16_t)(sign | (uint16_t)rintf(magnitude * 0x1p24f));
    }
    return (uint16_t)(sign | (uint16_t)((abs - (112u << 23) + 0xFFF + (abs >> 13 & 1)) >> 13));
}

MODEL __m512 model_cvtph_ps(__m256i x)
{
    model_256 from;
    model_512 to;
    from.si = x;
    for (int i = 0; i < 16; i++) {
        to.f[i] = model_half_to_f32(from.w[i]);
    }
    return to.ps;
}
#define _mm512_cvtph_ps model_cvtph_ps

MODEL __m256i model_cvtps_ph(__m512 x)
{
    const model_512 from = model_of_ps(x);
    model_256 to;
    for (int i = 0; i < 16; i++) {
        to.w[i] = model_half_of_f32(from.f[i]);
    }
    return to.si;
}
#define _mm512_cvtps_ph(x, nearest) model_cvtps_ph(x)

/* ---- bf16 ---------------------------------------------------------------------------------------------------------------- */

/* Both instructions take subnormals as 0, keep signs of zeros, and round to nearest even. */
MODEL uint16_t model_bf16_of_f32(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof(bits));
    const uint32_t abs = bits & 0x7FFFFFFF;
    if (abs > 0x7F800000) {
        return (uint16_t)(bits >> 16 | 0x40);
    }
    if (abs < 0x00800000) {
        return (uint16_t)(bits >> 16 & 0x8000);
    }
    return (uint16_t)((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

MODEL __m512bh model_cvtne2ps_pbh(__m512 high, __m512 low)
{
    const model_512 a = model_of_ps(low), b = model_of_ps(high);
    model_512 to;
    __m512bh bh;
    for (int i = 0; i < 16; i++) {
        to.w[i] = model_bf16_of_f32(a.f[i]);
        to.w[16 + i] = model_bf16_of_f32(b.f[i]);
    }
    memcpy(&bh, &to, sizeof(bh));
    return bh;
}
#define _mm512_cvtne2ps_pbh model_cvtne2ps_pbh

/* A subnormal counts as a zero of its sign. */
MODEL float model_flush(float x) { return fabsf(x) < 0x1p-126f ? copysignf(0.0f, x) : x; }
MODEL float model_bf16_to_f32(uint16_t h)
{
    const uint32_t bits = (uint32_t)h << 16;
    float x;
    memcpy(&x, &bits, sizeof(x));
    return model_flush(x);
}

MODEL __m512 model_dpbf16_ps(__m512 sum, __m512bh a, __m512bh b)
{
    model_512 to = model_of_ps(sum), x, y;
    memcpy(&x, &a, sizeof(x));
    memcpy(&y, &b, sizeof(y));
    for (int i = 0; i < 16; i++) {
        const float s = model_flush(fmaf(model_bf16_to_f32(x.w[2 * i + 1]), model_bf16_to_f32(y.w[2 * i + 1]), model_flush(to.f[i])));
        to.f[i] = model_flush(fmaf(model_bf16_to_f32(x.w[2 * i]), model_bf16_to_f32(y.w[2 * i]), s));
    }
    return to.ps;
}
#undef _mm512_dpbf16_ps
#define _mm512_dpbf16_ps model_dpbf16_ps

/* SIMDe without FMA rounds twice, and what is left of a quotient is all in the second half of the product. */
MODEL __m512 model_fnmadd_ps(__m512 a, __m512 b, __m512 c)
{
    const model_512 x = model_of_ps(a), y = model_of_ps(b);
    model_512 to = model_of_ps(c);
    for (int i = 0; i < 16; i++) {
        to.f[i] = fmaf(-x.f[i], y.f[i], to.f[i]);
    }
    return to.ps;
}
#undef _mm512_fnmadd_ps
#define _mm512_fnmadd_ps model_fnmadd_ps

/* ---- conversions --------------------------------------------------------------------------------------------------------- */

MODEL __m512i model_cvtps_epi32(__m512 x)
{
    const model_512 from = model_of_ps(x);
    model_512 to;
    for (int i = 0; i < 16; i++) {
        to.i[i] = from.f[i] >= -0x1p31f && from.f[i] < 0x1p31f ? (int32_t)rintf(from.f[i]) : INT32_MIN;
    }
    return to.si;
}
#define _mm512_cvtps_epi32 model_cvtps_epi32

MODEL __m512 model_cvtepi32_ps(__m512i x)
{
    model_512 m = model_of_si(x);
    for (int i = 0; i < 16; i++) {
        m.f[i] = (float)m.i[i];
    }
    return m.ps;
}
#define _mm512_cvtepi32_ps model_cvtepi32_ps

MODEL __m512i model_cvtepu16_epi32(__m256i x)
{
    model_256 from;
    model_512 to;
    from.si = x;
    for (int i = 0; i < 16; i++) {
        to.u[i] = from.w[i];
    }
    return to.si;
}
#define _mm512_cvtepu16_epi32 model_cvtepu16_epi32

MODEL __m512i model_cvtepi8_epi32(__m128i x)
{
    model_128 from;
    model_512 to;
    from.si = x;
    for (int i = 0; i < 16; i++) {
        to.i[i] = from.c[i];
    }
    return to.si;
}
#define _mm512_cvtepi8_epi32 model_cvtepi8_epi32

MODEL __m128i model_cvtepi32_epi8(__m512i x)
{
    const model_512 from = model_of_si(x);
    model_128 to;
    for (int i = 0; i < 16; i++) {
        to.b[i] = (uint8_t)from.u[i];
    }
    return to.si;
}
#define _mm512_cvtepi32_epi8 model_cvtepi32_epi8

MODEL float model_cvtss_f32(__m512 x) { return model_of_ps(x).f[0]; }
#define _mm512_cvtss_f32 model_cvtss_f32

MODEL int model_cvtsi512_si32(__m512i x) { return model_of_si(x).i[0]; }
#define _mm512_cvtsi512_si32 model_cvtsi512_si32

/* ---- f64 ------------------------------------------------------------------------------------------------------------------ */

MODEL __m512d model_cvtps_pd(__m256 x)
{
    double to[8];
    model_256 from;
    from.ps = x;
    for (int i = 0; i < 8; i++) {
        to[i] = (double)from.f[i];
    }
    return _mm512_loadu_pd(to);
}
#define _mm512_cvtps_pd model_cvtps_pd

MODEL __m256 model_cvtpd_ps(__m512d x)
{
    double from[8];
    model_256 to;
    _mm512_storeu_pd(from, x);
    for (int i = 0; i < 8; i++) {
        to.f[i] = (float)from[i];
    }
    return to.ps;
}
#define _mm512_cvtpd_ps model_cvtpd_ps

MODEL __m512 model_zextps256_ps512(__m256 x)
{
    model_512 to;
    model_256 from;
    from.ps = x;
    memset(&to, 0, sizeof(to));
    memcpy(&to, &from, sizeof(from));
    return to.ps;
}
#define _mm512_zextps256_ps512 model_zextps256_ps512

/* ---- arithmetic ---------------------------------------------------------------------------------------------------------- */

/* SIMDe's asks exp2f for its scale each time. Only whole numbers, to nearest even. */
MODEL __m512 model_round_ps(__m512 x)
{
    model_512 m = model_of_ps(x);
    for (int i = 0; i < 16; i++) {
        m.f[i] = rintf(m.f[i]);
    }
    return m.ps;
}
#undef _mm512_roundscale_ps
#define _mm512_roundscale_ps(x, nearest) model_round_ps(x)

/* SIMDe's leaves the sign of -0. */
MODEL __m512 model_abs_ps(__m512 x)
{
    model_512 m = model_of_ps(x);
    for (int i = 0; i < 16; i++) {
        m.u[i] &= 0x7FFFFFFF;
    }
    return m.ps;
}
#undef _mm512_abs_ps
#define _mm512_abs_ps model_abs_ps

/* y * 2^n for whole n, as it is used: results are normal or the lane is masked out. */
MODEL __m512 model_maskz_scalef_ps(__mmask16 k, __m512 y, __m512 n)
{
    model_512 a = model_of_ps(y);
    const model_512 b = model_of_ps(n);
    for (int i = 0; i < 16; i++) {
        a.f[i] = !(k >> i & 1) ? 0.0f : isnan(b.f[i]) ? b.f[i] : ldexpf(a.f[i], (int)b.f[i]);
    }
    return a.ps;
}
#undef _mm512_maskz_scalef_ps
#define _mm512_maskz_scalef_ps model_maskz_scalef_ps

MODEL __m512i model_srai_epi32(__m512i x, unsigned int n)
{
    model_512 m = model_of_si(x);
    for (int i = 0; i < 16; i++) {
        m.i[i] >>= n;
    }
    return m.si;
}
#define _mm512_srai_epi32 model_srai_epi32

/* Sums over lanes in the compilers' order: halves of what is left, until one is. */
MODEL float model_reduce_add_ps(__m512 x)
{
    model_512 m = model_of_ps(x);
    for (int n = 8; n > 0; n /= 2) {
        for (int i = 0; i < n; i++) {
            m.f[i] += m.f[i + n];
        }
    }
    return m.f[0];
}
#define _mm512_reduce_add_ps model_reduce_add_ps

MODEL float model_reduce_max_ps(__m512 x)
{
    model_512 m = model_of_ps(x);
    for (int n = 8; n > 0; n /= 2) {
        for (int i = 0; i < n; i++) {
            m.f[i] = m.f[i] > m.f[i + n] ? m.f[i] : m.f[i + n];
        }
    }
    return m.f[0];
}
#define _mm512_reduce_max_ps model_reduce_max_ps

MODEL int32_t model_reduce_max_epi32(__m512i x)
{
    const model_512 m = model_of_si(x);
    int32_t max = m.i[0];
    for (int i = 1; i < 16; i++) {
        max = m.i[i] > max ? m.i[i] : max;
    }
    return max;
}
#define _mm512_reduce_max_epi32 model_reduce_max_epi32

MODEL int32_t model_reduce_add_epi32(__m512i x)
{
    const model_512 m = model_of_si(x);
    uint32_t sum = 0;
    for (int i = 0; i < 16; i++) {
        sum += m.u[i];
    }
    return (int32_t)sum;
}
#define _mm512_reduce_add_epi32 model_reduce_add_epi32

/* ---- lanes and memory ---------------------------------------------------------------------------------------------------- */

MODEL __m512 model_shuffle_f32x4(__m512 a, __m512 b, int control)
{
    const model_512 x = model_of_ps(a), y = model_of_ps(b);
    model_512 to;
    for (int lane = 0; lane < 4; lane++) {
        memcpy(to.f + 4 * lane, (lane < 2 ? x.f : y.f) + 4 * (control >> 2 * lane & 3), 16);
    }
    return to.ps;
}
#define _mm512_shuffle_f32x4 model_shuffle_f32x4

/* Masked lanes are not touched: the last element may end at an unreadable page. */
MODEL __m512i model_maskz_loadu_epi8(__mmask64 k, const void *from)
{
    model_512 to;
    for (int i = 0; i < 64; i++) {
        to.b[i] = k >> i & 1 ? ((const uint8_t *)from)[i] : 0;
    }
    return to.si;
}
#define _mm512_maskz_loadu_epi8 model_maskz_loadu_epi8

MODEL __m512 model_maskz_loadu_ps(__mmask16 k, const void *from)
{
    model_512 to;
    for (int i = 0; i < 16; i++) {
        to.u[i] = 0;
        if (k >> i & 1) {
            memcpy(&to.u[i], (const uint8_t *)from + 4 * i, 4);
        }
    }
    return to.ps;
}
#define _mm512_maskz_loadu_ps model_maskz_loadu_ps

MODEL void model_mask_storeu_epi8(void *to, __mmask64 k, __m512i x)
{
    const model_512 from = model_of_si(x);
    for (int i = 0; i < 64; i++) {
        if (k >> i & 1) {
            ((uint8_t *)to)[i] = from.b[i];
        }
    }
}
#define _mm512_mask_storeu_epi8 model_mask_storeu_epi8

MODEL void model_stream_si512(void *to, __m512i x) { memcpy(to, &x, 64); }
#define _mm512_stream_si512 model_stream_si512

#include "simde/tiles.h"

#endif
