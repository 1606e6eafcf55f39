/* simt_write_sm90a.h: what kv_write_sm90a.h uses of a GPU beyond simt_sm90a.h. For nvcc, and for the host executor.
 *
 *   fma_once_f32(a, b, c)              a * b + c rounded once, everywhere
 *   encode_e4m3fn_4(x) encode_e5m2_4(x)   four floats, none of them a NaN, into bytes of a word, the first lowest
 *   SELDOM                             before a function that is called and not inlined: its registers are not the kernel's
 */
#ifndef OCT_CUDA_SIMT_WRITE_SM90A_H
#define OCT_CUDA_SIMT_WRITE_SM90A_H

#include "cuda/simt_sm90a.h"

#if defined(__CUDACC__)
#define SELDOM static __device__ __noinline__

DEV float fma_once_f32(float a, float b, float c)
{
    return fmaf(a, b, c);
}

DEV uint32_t encode_e4m3fn_4(const float *x)
{
    uint32_t word;
    asm("{.reg .b16 l, h; cvt.rn.satfinite.e4m3x2.f32 l, %2, %1; cvt.rn.satfinite.e4m3x2.f32 h, %4, %3; mov.b32 %0, {l, h};}"
        : "=r"(word) : "f"(x[0]), "f"(x[1]), "f"(x[2]), "f"(x[3]));
    return word;
}

DEV uint32_t encode_e5m2_4(const float *x)
{
    uint32_t word;
    asm("{.reg .b16 l, h; cvt.rn.satfinite.e5m2x2.f32 l, %2, %1; cvt.rn.satfinite.e5m2x2.f32 h, %4, %3; mov.b32 %0, {l, h};}"
        : "=r"(word) : "f"(x[0]), "f"(x[1]), "f"(x[2]), "f"(x[3]));
    return word;
}

#else
#define SELDOM static

DEV float fma_once_f32(float a, float b, float c)
{
    return fmaf(a, b, c);
}

DEV uint32_t encode_e4m3fn_4(const float *x)
{
    return oct__e4m3fn_from_f32(x[0]) | (uint32_t)oct__e4m3fn_from_f32(x[1]) << 8 | (uint32_t)oct__e4m3fn_from_f32(x[2]) << 16 |
           (uint32_t)oct__e4m3fn_from_f32(x[3]) << 24;
}

DEV uint32_t encode_e5m2_4(const float *x)
{
    return oct__e5m2_from_f32_bits(oct__f32_to_bits(x[0])) | (uint32_t)oct__e5m2_from_f32_bits(oct__f32_to_bits(x[1])) << 8 |
           (uint32_t)oct__e5m2_from_f32_bits(oct__f32_to_bits(x[2])) << 16 | (uint32_t)oct__e5m2_from_f32_bits(oct__f32_to_bits(x[3])) << 24;
}

#endif
#endif
