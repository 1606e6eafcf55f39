/* simt_amd.h: the shim of simt.h for clang -x hip without any HIP header: CDNA (gfx942, gfx950), wave64. Lanes of a wave run in step, so
 * warp_sync only keeps the compiler from moving accesses over it. */
#ifndef OCT_DEVICE_SIMT_AMD_H
#define OCT_DEVICE_SIMT_AMD_H

#define WARP 64
#define DEV static __attribute__((device, always_inline))
#define UNROLL _Pragma("unroll")
#define NO_UNROLL _Pragma("unroll 1")

/* The parameters are read where they lie, when they are needed: as an ordinary argument all of them would be loaded at entry, into more
 * scalar registers than there are. */
#define KERNEL(name, threads, blocks, type)                                                                                     \
    DEV void name##_body(const type *p);                                                                                \
    extern "C" __attribute__((global, visibility("protected"), amdgpu_flat_work_group_size(threads, threads))) void     \
        oct__dev_##name(const type params)                                                                              \
    {                                                                                                                   \
        (void)params;                                                                                                   \
        name##_body((const type *)__builtin_amdgcn_kernarg_segment_ptr());                                              \
    }                                                                                                                   \
    DEV void name##_body(const type *p)

/* Said to be global, so that loads need not wait for the LDS counter as flat ones do. */
#define OCT__GLOBAL __attribute__((address_space(1)))
#define GET(x) (*(OCT__GLOBAL __typeof__(x) *)&(x))
#define PUT(x, value) ((void)(*(OCT__GLOBAL __typeof__(x) *)&(x) = (value)))
#define SGET(x) (x)
#define SPUT(x, value) ((void)((x) = (value)))
#define SHARED(T, name, n) static __attribute__((shared)) T name[n]
#define SHARED_DYNAMIC(T, name)                                        \
    extern __attribute__((shared)) u32x4 oct__shared_dynamic[];        \
    T *const name = (T *)oct__shared_dynamic

typedef uint32_t oct__u32x4_native __attribute__((ext_vector_type(4)));
typedef uint32_t oct__u32x2_native __attribute__((ext_vector_type(2)));
typedef float oct__f32x4_native __attribute__((ext_vector_type(4)));
typedef float oct__f32x2_native __attribute__((ext_vector_type(2)));

DEV uint32_t tid(void)
{
    return __builtin_amdgcn_workitem_id_x();
}

DEV uint32_t oct__grid_blocks_x(void)
{
    return __builtin_amdgcn_grid_size_x() / __builtin_amdgcn_workgroup_size_x();
}

DEV uint64_t block_id(void)
{
    return (uint64_t)__builtin_amdgcn_workgroup_id_y() * oct__grid_blocks_x() + __builtin_amdgcn_workgroup_id_x();
}

/* Blocks are one lane high. */
DEV uint64_t block_count(void)
{
    return (uint64_t)__builtin_amdgcn_grid_size_y() * oct__grid_blocks_x();
}

/* The wait for LDS (lgkmcnt(0) alone) is said apart from the fence: clang 22 drops the fence's own before a barrier at the head of a loop where only
 * the way back brings LDS writes, and another wave may then read too early. tests/amdsim saw it. */
DEV void block_sync(void)
{
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
    __builtin_amdgcn_s_waitcnt(0xC07F);
    __builtin_amdgcn_s_barrier();
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
}

DEV void warp_sync(void)
{
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "wavefront");
    __builtin_amdgcn_wave_barrier();
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "wavefront");
}

DEV uint32_t shfl_xor_u32(uint32_t v, uint32_t mask)
{
    const uint32_t lane = __builtin_amdgcn_mbcnt_hi(~0u, __builtin_amdgcn_mbcnt_lo(~0u, 0u));
    return (uint32_t)__builtin_amdgcn_ds_bpermute((int)((lane ^ mask) << 2), (int)v);
}

DEV float shfl_xor_f32(float v, uint32_t mask)
{
    return __builtin_bit_cast(float, shfl_xor_u32(__builtin_bit_cast(uint32_t, v), mask));
}

DEV uint32_t warp_any(uint32_t v)
{
    return __builtin_amdgcn_ballot_w64(v != 0) != 0;
}

DEV float max_f32(float a, float b)
{
    return __builtin_fmaxf(a, b);
}

DEV uint32_t atomic_add_u32(uint32_t *at, uint32_t v)
{
    return __scoped_atomic_fetch_add((OCT__GLOBAL uint32_t *)at, v, __ATOMIC_RELAXED, __MEMORY_SCOPE_DEVICE);
}

DEV uint64_t atomic_add_u64(uint64_t *at, uint64_t v)
{
    return __scoped_atomic_fetch_add((OCT__GLOBAL uint64_t *)at, v, __ATOMIC_RELAXED, __MEMORY_SCOPE_DEVICE);
}

DEV uint32_t atomic_max_u32(uint32_t *at, uint32_t v)
{
    return __scoped_atomic_fetch_max((OCT__GLOBAL uint32_t *)at, v, __ATOMIC_RELAXED, __MEMORY_SCOPE_DEVICE);
}

DEV uint32_t atomic_add_acq_rel_u32(uint32_t *at, uint32_t v)
{
    return __scoped_atomic_fetch_add((OCT__GLOBAL uint32_t *)at, v, __ATOMIC_ACQ_REL, __MEMORY_SCOPE_DEVICE);
}

DEV uint32_t shared_or_u32(uint32_t *at, uint32_t v)
{
    return __scoped_atomic_fetch_or(at, v, __ATOMIC_RELAXED, __MEMORY_SCOPE_WRKGRP);
}

DEV u32x4 global_load_16(const void *at)
{
    const oct__u32x4_native v = *(const OCT__GLOBAL oct__u32x4_native *)at;
    const u32x4 r = { v.x, v.y, v.z, v.w };
    return r;
}

DEV u32x2 global_load_8(const void *at)
{
    const oct__u32x2_native v = *(const OCT__GLOBAL oct__u32x2_native *)at;
    const u32x2 r = { v.x, v.y };
    return r;
}

DEV uint32_t global_load_u32(const void *at)
{
    return *(const OCT__GLOBAL uint32_t *)at;
}

DEV void global_store_16(void *at, u32x4 v)
{
    const oct__u32x4_native n = { v.x, v.y, v.z, v.w };
    *(OCT__GLOBAL oct__u32x4_native *)at = n;
}

DEV void global_store_8(void *at, u32x2 v)
{
    const oct__u32x2_native n = { v.x, v.y };
    *(OCT__GLOBAL oct__u32x2_native *)at = n;
}

DEV f32x4 shared_load_f32x4(const void *at)
{
    const oct__f32x4_native v = *(const oct__f32x4_native *)at;
    const f32x4 r = { v.x, v.y, v.z, v.w };
    return r;
}

DEV void shared_store_f32x4(void *at, f32x4 v)
{
    const oct__f32x4_native n = { v.x, v.y, v.z, v.w };
    *(oct__f32x4_native *)at = n;
}

DEV u32x4 shared_load_16(const void *at)
{
    const oct__u32x4_native v = *(const oct__u32x4_native *)at;
    const u32x4 r = { v.x, v.y, v.z, v.w };
    return r;
}

DEV u32x2 shared_load_8(const void *at)
{
    const oct__u32x2_native v = *(const oct__u32x2_native *)at;
    const u32x2 r = { v.x, v.y };
    return r;
}

DEV void shared_store_8(void *at, u32x2 v)
{
    const oct__u32x2_native n = { v.x, v.y };
    *(oct__u32x2_native *)at = n;
}

DEV void shared_store_16(void *at, u32x4 v)
{
    const oct__u32x4_native n = { v.x, v.y, v.z, v.w };
    *(oct__u32x4_native *)at = n;
}

#define OCT__FETCH_IS_ASYNC 0
DEV void fetch_16(u32x4 *held, void *to, const void *from, int is_there)
{
    const u32x4 zero = { 0, 0, 0, 0 };
    (void)to;
    *held = is_there ? global_load_16(from) : zero;
}

DEV void fetch_16_there(u32x4 *held, void *to, const void *from)
{
    (void)to;
    *held = global_load_16(from);
}

DEV void fetch_commit(void)
{
}

DEV void fetch_wait(const uint32_t n)
{
    (void)n;
}

DEV float fma_f32(float a, float b, float c)
{
    return __builtin_fmaf(a, b, c);
}

DEV float exp2_f32(float x)
{
    return __builtin_amdgcn_exp2f(x);
}

/* v_log_f32 is base 2 and flushes subnormals, which a sum of weights with a largest of 1 never is. */
DEV float log_f32(float x)
{
    return __builtin_amdgcn_logf(x) * 0.693147181f;
}

DEV float decode_f16(uint32_t code)
{
    return (float)__builtin_bit_cast(_Float16, (uint16_t)code);
}

typedef _Float16 oct__f16x2_native __attribute__((ext_vector_type(2)));
typedef _Float16 oct__f16x4_native __attribute__((ext_vector_type(4)));
typedef short oct__s16x4_native __attribute__((ext_vector_type(4)));

/* v_perm_b32 numbers the bytes of its second operand first. */
DEV uint32_t byte_perm(uint32_t a, uint32_t b, const uint32_t selector)
{
    const uint32_t wide = (selector & 7u) | (selector >> 4 & 7u) << 8 | (selector >> 8 & 7u) << 16 | (selector >> 12 & 7u) << 24;
    return __builtin_amdgcn_perm(b, a, wide);
}

/* Codes are selectors into a table of bytes, of numbers + 128: unsigned bytes become floats by an instruction of their own. */
DEV void decode_v4_4(uint32_t word, float *out)
{
    const uint64_t low = OCT__V4_LOW ^ UINT64_C(0x8080808080808080), high = OCT__V4_HIGH ^ UINT64_C(0x8080808080808080);
    UNROLL
    for (uint32_t i = 0; i < 2; i++) {
        const uint32_t codes = word >> (4 * i), eighth = codes & 0x07070707u;
        const uint32_t a = __builtin_amdgcn_perm((uint32_t)(low >> 32), (uint32_t)low, eighth), b = __builtin_amdgcn_perm((uint32_t)(high >> 32), (uint32_t)high, eighth);
        const uint32_t number = __builtin_amdgcn_perm(b, a, 0x03020100u | (codes >> 1 & 0x04040404u));
        UNROLL
        for (uint32_t j = 0; j < 4; j++) {
            out[4 * i + j] = (float)(number >> (8 * j) & 0xFFu) - 128.0f;
        }
    }
}

DEV uint32_t pack_f16(float low, float high)
{
    const oct__f16x2_native two = { (_Float16)low, (_Float16)high };
    return __builtin_bit_cast(uint32_t, two);
}

DEV uint32_t sub_f16x2(uint32_t a, uint32_t b)
{
    return __builtin_bit_cast(uint32_t, __builtin_bit_cast(oct__f16x2_native, a) - __builtin_bit_cast(oct__f16x2_native, b));
}

DEV uint32_t oct__mul_f16x2(uint32_t a, uint32_t b)
{
    return __builtin_bit_cast(uint32_t, __builtin_bit_cast(oct__f16x2_native, a) * __builtin_bit_cast(oct__f16x2_native, b));
}

#include "device/simt_e4m3.h"

DEV void e4m3_to_f16(uint32_t word, const int is_fnuz, uint32_t *out)
{
#if defined(__gfx942__)
    const int is_native = is_fnuz;
#else
    const int is_native = !is_fnuz;
#endif
    if (is_native) {
        const oct__f32x2_native low = __builtin_amdgcn_cvt_pk_f32_fp8((int)word, false), high = __builtin_amdgcn_cvt_pk_f32_fp8((int)word, true);
        out[0] = pack_f16(low.x, low.y);
        out[1] = pack_f16(high.x, high.y);
    } else {
        oct__e4m3_to_f16_by_hand(word, is_fnuz, out);
    }
}

DEV void tile_mma(float *d, const uint32_t *a, const uint32_t *b, const int is_bf16)
{
    oct__f32x4_native c = { d[0], d[1], d[2], d[3] };
    const oct__u32x2_native wide_a = { a[0], a[1] }, wide_b = { b[0], b[1] };
    if (is_bf16) {
        c = __builtin_amdgcn_mfma_f32_16x16x16bf16_1k(__builtin_bit_cast(oct__s16x4_native, wide_a), __builtin_bit_cast(oct__s16x4_native, wide_b), c, 0, 0, 0);
    } else {
        c = __builtin_amdgcn_mfma_f32_16x16x16f16(__builtin_bit_cast(oct__f16x4_native, wide_a), __builtin_bit_cast(oct__f16x4_native, wide_b), c, 0, 0, 0);
    }
    d[0] = c.x;
    d[1] = c.y;
    d[2] = c.z;
    d[3] = c.w;
}

/* 16x16x32, in the e4m3 of the chip and, for weights, its e5m2: fnuz on gfx942, OCP's on gfx950. The latter also has 16x16x128, whose scales are 1 here
 * (e8m0 127 for each block of 32); 32 elements a lane, in the order of their registers. */
#if defined(__gfx942__)
#define TILE_FP8(dtype) ((dtype) == OCT_DTYPE_E4M3FNUZ)
#define TILE_FP8_WIDE(dtype) (0 * (dtype))
#else
#define TILE_FP8(dtype) ((dtype) == OCT_DTYPE_E4M3FN)
#define TILE_FP8_WIDE(dtype) TILE_FP8(dtype)
#endif
typedef int oct__s32x4_native __attribute__((ext_vector_type(4)));
typedef int oct__s32x8_native __attribute__((ext_vector_type(8)));

DEV void tile_mma_fp8(float *d, const uint32_t *a, const uint32_t *b, const uint32_t dtype, const int b_is_e5m2)
{
    oct__f32x4_native c = { d[0], d[1], d[2], d[3] };
    const long wide_a = (long)(a[0] | (uint64_t)a[1] << 32), wide_b = (long)(b[0] | (uint64_t)b[1] << 32);
    (void)dtype;
    if (b_is_e5m2) {
        c = __builtin_amdgcn_mfma_f32_16x16x32_fp8_bf8(wide_a, wide_b, c, 0, 0, 0);
    } else {
        c = __builtin_amdgcn_mfma_f32_16x16x32_fp8_fp8(wide_a, wide_b, c, 0, 0, 0);
    }
    d[0] = c.x;
    d[1] = c.y;
    d[2] = c.z;
    d[3] = c.w;
}

DEV void tile_mma_fp8_wide(float *d, const uint32_t *a, const uint32_t *b)
{
#if defined(__gfx950__)
    enum { FORMAT_E4M3 = 0, SCALES_OF_1 = 0x7F7F7F7F };
    oct__f32x4_native c = { d[0], d[1], d[2], d[3] };
    const oct__s32x8_native wide_a = { (int)a[0], (int)a[1], (int)a[2], (int)a[3], (int)a[4], (int)a[5], (int)a[6], (int)a[7] };
    const oct__s32x8_native wide_b = { (int)b[0], (int)b[1], (int)b[2], (int)b[3], (int)b[4], (int)b[5], (int)b[6], (int)b[7] };
    c = __builtin_amdgcn_mfma_scale_f32_16x16x128_f8f6f4(wide_a, wide_b, c, FORMAT_E4M3, FORMAT_E4M3, 0, SCALES_OF_1, 0, SCALES_OF_1);
    d[0] = c.x;
    d[1] = c.y;
    d[2] = c.z;
    d[3] = c.w;
#else
    (void)d, (void)a, (void)b;
#endif
}

DEV void tile_mma_i8(int32_t *d, const uint32_t *a, const uint32_t *b)
{
    oct__s32x4_native c = { d[0], d[1], d[2], d[3] };
    c = __builtin_amdgcn_mfma_i32_16x16x32_i8((long)(a[0] | (uint64_t)a[1] << 32), (long)(b[0] | (uint64_t)b[1] << 32), c, 0, 0, 0);
    d[0] = c.x;
    d[1] = c.y;
    d[2] = c.z;
    d[3] = c.w;
}

DEV uint32_t encode_fp8_4(const float *x, const uint32_t dtype, const int is_e5m2)
{
    int word;
    (void)dtype;
    if (is_e5m2) {
        word = __builtin_amdgcn_cvt_pk_bf8_f32(x[0], x[1], 0, false);
        word = __builtin_amdgcn_cvt_pk_bf8_f32(x[2], x[3], word, true);
    } else {
        word = __builtin_amdgcn_cvt_pk_fp8_f32(x[0], x[1], 0, false);
        word = __builtin_amdgcn_cvt_pk_fp8_f32(x[2], x[3], word, true);
    }
    return (uint32_t)word;
}

DEV void decode_e5m2_4(uint32_t word, const uint32_t dtype, float *x)
{
    const oct__f32x2_native low = __builtin_amdgcn_cvt_pk_f32_bf8((int)word, false), high = __builtin_amdgcn_cvt_pk_f32_bf8((int)word, true);
    (void)dtype;
    x[0] = low.x;
    x[1] = low.y;
    x[2] = high.x;
    x[3] = high.y;
}

DEV float decode_e4m3fn(uint32_t byte);
DEV float decode_e4m3fnuz(uint32_t byte);

/* v_cvt_pk_f32_fp8 takes the format of the chip: e4m3fnuz on gfx942, e4m3fn on gfx950. */
DEV void oct__decode_fp8_4(uint32_t word, float *out)
{
    const oct__f32x2_native low = __builtin_amdgcn_cvt_pk_f32_fp8((int)word, false);
    const oct__f32x2_native high = __builtin_amdgcn_cvt_pk_f32_fp8((int)word, true);
    out[0] = low.x;
    out[1] = low.y;
    out[2] = high.x;
    out[3] = high.y;
}

DEV void decode_e4m3fn_4(uint32_t word, float *out)
{
#if defined(__gfx950__)
    oct__decode_fp8_4(word, out);
#else
    out[0] = decode_e4m3fn(word);
    out[1] = decode_e4m3fn(word >> 8);
    out[2] = decode_e4m3fn(word >> 16);
    out[3] = decode_e4m3fn(word >> 24);
#endif
}

DEV void decode_e4m3fnuz_4(uint32_t word, float *out)
{
#if defined(__gfx942__)
    oct__decode_fp8_4(word, out);
#else
    out[0] = decode_e4m3fnuz(word);
    out[1] = decode_e4m3fnuz(word >> 8);
    out[2] = decode_e4m3fnuz(word >> 16);
    out[3] = decode_e4m3fnuz(word >> 24);
#endif
}

#include "device/simt_warp.h"

#endif
