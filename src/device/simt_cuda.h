/* simt_cuda.h: the shim of simt.h for nvcc. sm_80 is the oldest target; newer instructions stand behind __CUDA_ARCH__. */
#ifndef OCT_DEVICE_SIMT_CUDA_H
#define OCT_DEVICE_SIMT_CUDA_H

#define WARP 32
#define DEV static __device__ __forceinline__
#define UNROLL _Pragma("unroll")
#define NO_UNROLL _Pragma("unroll 1")

/* __grid_constant__: the address of the parameters may be taken without a copy in local memory. */
#define KERNEL(name, threads, blocks, type)                                                                                      \
    DEV void name##_body(const type *p);                                                                                         \
    extern "C" __global__ void __launch_bounds__(threads, blocks) oct__dev_##name(const __grid_constant__ type params)           \
    {                                                                                                                            \
        name##_body(&params);                                                                                                    \
    }                                                                                                                            \
    DEV void name##_body(const type *p)

#define GET(x) (x)
#define PUT(x, value) ((void)((x) = (value)))
#define SGET(x) (x)
#define SPUT(x, value) ((void)((x) = (value)))
#define SHARED(T, name, n) __shared__ T name[n]
#define SHARED_DYNAMIC(T, name)                    \
    extern __shared__ uint4 oct__shared_dynamic[]; \
    T *const name = (T *)oct__shared_dynamic

DEV uint32_t tid(void)
{
    return threadIdx.x;
}

DEV uint64_t block_id(void)
{
    return (uint64_t)blockIdx.y * gridDim.x + blockIdx.x;
}

DEV uint64_t block_count(void)
{
    return (uint64_t)gridDim.y * gridDim.x;
}

DEV void block_sync(void)
{
    __syncthreads();
}

DEV void warp_sync(void)
{
    __syncwarp();
}

DEV float shfl_xor_f32(float v, uint32_t mask)
{
    return __shfl_xor_sync(~0u, v, (int)mask);
}

DEV uint32_t shfl_xor_u32(uint32_t v, uint32_t mask)
{
    return __shfl_xor_sync(~0u, v, (int)mask);
}

DEV uint32_t warp_any(uint32_t v)
{
    return (uint32_t)__any_sync(~0u, v != 0);
}

DEV float max_f32(float a, float b)
{
    return fmaxf(a, b);
}

DEV uint32_t atomic_add_u32(uint32_t *at, uint32_t v)
{
    return atomicAdd(at, v);
}

DEV uint64_t atomic_add_u64(uint64_t *at, uint64_t v)
{
    return atomicAdd((unsigned long long *)at, (unsigned long long)v);
}

DEV uint32_t atomic_max_u32(uint32_t *at, uint32_t v)
{
    return atomicMax(at, v);
}

DEV uint32_t atomic_add_acq_rel_u32(uint32_t *at, uint32_t v)
{
    __threadfence();
    const uint32_t old = atomicAdd(at, v);
    __threadfence();
    return old;
}

DEV uint32_t shared_or_u32(uint32_t *at, uint32_t v)
{
    return atomicOr(at, v);
}

/* Through the read-only path: nobody writes these bytes during the launch. */
DEV u32x4 global_load_16(const void *at)
{
    const uint4 v = __ldg((const uint4 *)at);
    const u32x4 r = { v.x, v.y, v.z, v.w };
    return r;
}

DEV u32x2 global_load_8(const void *at)
{
    const uint2 v = __ldg((const uint2 *)at);
    const u32x2 r = { v.x, v.y };
    return r;
}

DEV uint32_t global_load_u32(const void *at)
{
    return __ldg((const uint32_t *)at);
}

DEV void global_store_16(void *at, u32x4 v)
{
    *(uint4 *)at = make_uint4(v.x, v.y, v.z, v.w);
}

DEV void global_store_8(void *at, u32x2 v)
{
    *(uint2 *)at = make_uint2(v.x, v.y);
}

DEV f32x4 shared_load_f32x4(const void *at)
{
    const float4 v = *(const float4 *)at;
    const f32x4 r = { v.x, v.y, v.z, v.w };
    return r;
}

DEV void shared_store_f32x4(void *at, f32x4 v)
{
    *(float4 *)at = make_float4(v.x, v.y, v.z, v.w);
}

DEV float fma_f32(float a, float b, float c)
{
    return fmaf(a, b, c);
}

DEV float exp2_f32(float x)
{
    return exp2f(x);
}

DEV float log_f32(float x)
{
    return logf(x);
}

DEV float decode_f16(uint32_t code)
{
    float x;
    asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"((unsigned short)code));
    return x;
}

DEV float decode_e4m3fn(uint32_t byte);
DEV float decode_e4m3fnuz(uint32_t byte);

DEV void decode_e4m3fn_4(uint32_t word, float *out)
{
#if __CUDA_ARCH__ >= 890
    /* One instruction for two, exact. */
    uint32_t low, high;
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(low) : "h"((unsigned short)word));
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(high) : "h"((unsigned short)(word >> 16)));
    out[0] = decode_f16(low & 0xFFFFu);
    out[1] = decode_f16(low >> 16);
    out[2] = decode_f16(high & 0xFFFFu);
    out[3] = decode_f16(high >> 16);
#else
    out[0] = decode_e4m3fn(word);
    out[1] = decode_e4m3fn(word >> 8);
    out[2] = decode_e4m3fn(word >> 16);
    out[3] = decode_e4m3fn(word >> 24);
#endif
}

DEV void decode_e4m3fnuz_4(uint32_t word, float *out)
{
    out[0] = decode_e4m3fnuz(word);
    out[1] = decode_e4m3fnuz(word >> 8);
    out[2] = decode_e4m3fnuz(word >> 16);
    out[3] = decode_e4m3fnuz(word >> 24);
}

#include "device/simt_warp.h"

#endif
