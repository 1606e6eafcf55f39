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

DEV u32x4 shared_load_16(const void *at)
{
    const uint4 v = *(const uint4 *)at;
    const u32x4 r = { v.x, v.y, v.z, v.w };
    return r;
}

DEV u32x2 shared_load_8(const void *at)
{
    const uint2 v = *(const uint2 *)at;
    const u32x2 r = { v.x, v.y };
    return r;
}

DEV void shared_store_8(void *at, u32x2 v)
{
    *(uint2 *)at = make_uint2(v.x, v.y);
}

DEV void shared_store_16(void *at, u32x4 v)
{
    *(uint4 *)at = make_uint4(v.x, v.y, v.z, v.w);
}

#define OCT__FETCH_IS_ASYNC 1
DEV void fetch_16(u32x4 *held, void *to, const void *from, int is_there)
{
    (void)held;
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;"
                 : : "r"((uint32_t)__cvta_generic_to_shared(to)), "l"(from), "r"(is_there ? 16 : 0) : "memory");
}

/* A dozen instructions fewer. */
DEV void fetch_16_there(u32x4 *held, void *to, const void *from)
{
    (void)held;
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" : : "r"((uint32_t)__cvta_generic_to_shared(to)), "l"(from) : "memory");
}

DEV void fetch_commit(void)
{
    asm volatile("cp.async.commit_group;" : : : "memory");
}

DEV void fetch_wait(const uint32_t n)
{
    if (n == 0) {
        asm volatile("cp.async.wait_group 0;" : : : "memory");
    } else {
        asm volatile("cp.async.wait_group 1;" : : : "memory");
    }
}

DEV float fma_f32(float a, float b, float c)
{
    return fmaf(a, b, c);
}

/* Subnormal results are 0, as on AMD: no weight of 2^-126 matters beside the largest, 1. */
DEV float exp2_f32(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
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

DEV uint32_t byte_perm(uint32_t a, uint32_t b, const uint32_t selector)
{
    return __byte_perm(a, b, selector);
}

/* A code is the digit of a selector into a table of bytes, of numbers + 128; a byte becomes the last one of a float of 2^23 and more. */
DEV void decode_v4_4(uint32_t word, float *out)
{
    const uint64_t low = OCT__V4_LOW ^ UINT64_C(0x8080808080808080), high = OCT__V4_HIGH ^ UINT64_C(0x8080808080808080);
    const uint32_t digits = word & 0x77777777u, is_high = word >> 1 & 0x44444444u;
    UNROLL
    for (uint32_t i = 0; i < 2; i++) {   /* two bytes, which are four digits */
        const uint32_t a = __byte_perm((uint32_t)low, (uint32_t)(low >> 32), digits >> (16 * i)), b = __byte_perm((uint32_t)high, (uint32_t)(high >> 32), digits >> (16 * i));
        const uint32_t number = __byte_perm(a, b, 0x3210u | is_high >> (16 * i));
        UNROLL
        for (uint32_t j = 0; j < 4; j++) {
            out[2 * i + j / 2 + j % 2 * 4] = __uint_as_float(__byte_perm(number, 0x4B000000u, 0x7540u + j)) - 8388736.0f;
        }
    }
}

DEV uint32_t pack_f16(float low, float high)
{
    uint32_t two;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(two) : "f"(high), "f"(low));
    return two;
}

#define OCT__PACKS_BF16 1
DEV uint32_t pack_bf16(float low, float high)
{
    uint32_t two;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(two) : "f"(high), "f"(low));
    return two;
}

DEV uint32_t sub_f16x2(uint32_t a, uint32_t b)
{
    uint32_t d;
    asm("sub.rn.f16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
    return d;
}

DEV uint32_t oct__mul_f16x2(uint32_t a, uint32_t b)
{
    uint32_t d;
    asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
    return d;
}

#include "device/simt_e4m3.h"

DEV void e4m3_to_f16(uint32_t word, const int is_fnuz, uint32_t *out)
{
#if __CUDA_ARCH__ >= 890
    if (!is_fnuz) {
        /* Halves by name: a shift would be an instruction, the conversion picks its half by itself. */
        asm("{.reg .b16 l, h; mov.b32 {l, h}, %2; cvt.rn.f16x2.e4m3x2 %0, l; cvt.rn.f16x2.e4m3x2 %1, h;}" : "=r"(out[0]), "=r"(out[1]) : "r"(word));
        return;
    }
#endif
    oct__e4m3_to_f16_by_hand(word, is_fnuz, out);
}

/* Lane 4 g + c gives columns 2c, 2c + 1 of row g and gets rows 2c, 2c + 1 of column g. */
DEV uint32_t tile_transpose(uint32_t v)
{
    uint32_t d;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(d) : "r"(v));
    return d;
}

DEV void tile_mma(float *d, const uint32_t *a, const uint32_t *b, const int is_bf16)
{
    if (is_bf16) {
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
    } else {
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
    }
}

/* m16n8k32. sm_89 and sm_120 multiply e4m3 as it is (QMMA); for sm_90 and sm_100 ptxas makes conversions to f16 and two products of the same instruction,
 * which the kernels' own conversions undercut: there they keep to f16. Integers are multiplied as they are everywhere (IMMA). */
#define TILE_FP8(dtype) (OCT__HAS_QMMA && (dtype) == OCT_DTYPE_E4M3FN)
#define TILE_FP8_WIDE(dtype) (0 * (dtype))
#if __CUDA_ARCH__ == 890 || __CUDA_ARCH__ >= 1200
#define OCT__HAS_QMMA 1
#else
#define OCT__HAS_QMMA 0
#endif

DEV void tile_mma_fp8(float *d, const uint32_t *a, const uint32_t *b, const uint32_t dtype, const int b_is_e5m2)
{
    (void)dtype;
#if __CUDA_ARCH__ >= 890
    if (b_is_e5m2) {
        asm volatile("mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e5m2.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
    } else {
        asm volatile("mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
    }
#else
    (void)d, (void)a, (void)b, (void)b_is_e5m2;
#endif
}

DEV void tile_mma_fp8_wide(float *d, const uint32_t *a, const uint32_t *b)
{
    (void)d, (void)a, (void)b;
}

DEV void tile_mma_i8(int32_t *d, const uint32_t *a, const uint32_t *b)
{
    asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

DEV uint32_t encode_fp8_4(const float *x, const uint32_t dtype, const int is_e5m2)
{
    uint32_t word = 0;
    (void)dtype;
#if __CUDA_ARCH__ >= 890
    unsigned short low, high;
    if (is_e5m2) {
        asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(low) : "f"(x[1]), "f"(x[0]));
        asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(high) : "f"(x[3]), "f"(x[2]));
    } else {
        asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(low) : "f"(x[1]), "f"(x[0]));
        asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(high) : "f"(x[3]), "f"(x[2]));
    }
    word = low | (uint32_t)high << 16;
#else
    (void)x, (void)is_e5m2;
#endif
    return word;
}

DEV void decode_e5m2_4(uint32_t word, const uint32_t dtype, float *x)
{
    (void)dtype;
    x[0] = decode_f16(word << 8 & 0xFF00u);
    x[1] = decode_f16(word & 0xFF00u);
    x[2] = decode_f16(word >> 8 & 0xFF00u);
    x[3] = decode_f16(word >> 16 & 0xFF00u);
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

#if __CUDA_ARCH__ >= 890
/* The conversion saturates as the write does; only a NaN's sign is lost in it. */
#define OCT__ENCODES_FP8 1
DEV uint32_t oct__with_nan(uint32_t code, uint32_t bits)
{
    return oct__f32_bits_are_nan(bits) ? 0x7Fu | (bits >> 24 & 0x80u) : code;
}

DEV void encode_e4m3fn_8(uint32_t *code)
{
    UNROLL
    for (uint32_t i = 0; i < 8; i += 2) {
        unsigned short two;
        asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(two) : "f"(oct__f32_of_bits(code[i + 1])), "f"(oct__f32_of_bits(code[i])));
        code[i] = oct__with_nan(two & 0xFFu, code[i]);
        code[i + 1] = oct__with_nan((uint32_t)two >> 8, code[i + 1]);
    }
}

DEV void encode_e5m2_8(uint32_t *code)
{
    UNROLL
    for (uint32_t i = 0; i < 8; i += 2) {
        unsigned short two;
        asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(two) : "f"(oct__f32_of_bits(code[i + 1])), "f"(oct__f32_of_bits(code[i])));
        code[i] = oct__with_nan(two & 0xFFu, code[i]);
        code[i + 1] = oct__with_nan((uint32_t)two >> 8, code[i + 1]);
    }
}
#endif

#include "device/simt_warp.h"

#endif
