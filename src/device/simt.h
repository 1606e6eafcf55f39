/* simt.h: owns what a kernel text may use of a GPU, for three compilers: nvcc (simt_cuda.h), clang for AMD (simt_amd.h), and gcc or clang
 * for the host executor (simt_host.h). A kernel text includes this, <stdint.h>, octavo/kv.h and src/number, nothing else, and keeps to what
 * C11 and C++17 have in common. Each lane is a thread; the words below say which lanes must meet.
 *
 * Memory. Global memory is read by GET(lvalue) and written by PUT(lvalue, value), shared memory by SGET and SPUT, vectors by the functions
 * below; nothing else may touch it. On the host a device address cannot be dereferenced at all, so that no access escapes the executor's
 * checks. A kernel's parameters are read directly.
 *
 *   KERNEL(name, threads, blocks, type) { ... p->field ... }   a kernel of `threads` lanes a block, p: const type *. blocks: how many must
 *                                  fit into an NVIDIA multiprocessor's registers, the compiler's only bound on how many it takes
 *   SHARED(T, name, n)             n elements of block-shared memory; at the top of a kernel, in the same order in every lane
 *   SHARED_DYNAMIC(T, name)        the bytes that the launch asks for, 16-byte aligned
 *   WARP                           lanes of a warp: 32 or 64, a constant
 *   tid(), block_id(), block_count()          lane of the block; block of the grid and blocks of it, 64 bits, over both grid axes
 *   block_sync()                   all lanes of the block: what was written before is seen after
 *   warp_sync()                    all lanes of the warp: the same within the warp
 *   shfl_xor_f32(v, mask) shfl_xor_u32(v, mask)   all lanes of the warp: the value of lane ^ mask
 *   warp_sum_f32 warp_max_f32 warp_sum_u32 warp_any   all lanes of the warp; all get the result. max ignores NaN
 *   group8_sum(v, n)               all lanes of the warp: sums over groups of 8 lanes. v[n], n a multiple of 8; afterwards v[i], i < n / 8, is the
 *                                  group's sum of element (lane % 8) * (n / 8) + i
 *   atomic_add_u32 atomic_add_u64 atomic_max_u32   global, relaxed, at device scope; give the old value
 *   atomic_add_acq_rel_u32         as well: what the block wrote before it (a block_sync between) is seen by whoever gets a later value
 *   shared_or_u32(&x, bits)        atomic on shared memory
 *   global_load_16(ptr)            16 bytes at a 16-byte aligned address that nobody writes during the launch; u32x4
 *   global_load_u32, global_load_8 likewise 4 bytes, 8 bytes (u32x2)
 *   global_store_16 global_store_8 aligned likewise
 *   shared_load_f32x4 shared_store_f32x4      16-byte aligned; shared_load_16 shared_store_16 shared_load_8
 *   shared_store_8                 likewise
 *   fetch_16(held, to, from, is_there)        16 bytes from global memory that nobody writes to shared memory, zeros unless is_there. Either on its way at
 *                                  once (OCT__FETCH_IS_ASYNC): there after fetch_wait, for others after a sync too; or in the register *held, and
 *                                  the kernel stores it. fetch_16_there(held, to, from): of bytes that are there
 *   fetch_commit(), fetch_wait(n)  a group of the lane's fetches ends; until all but the last n groups are there. n: 0 or 1, a constant
 *   exp2_f32 log_f32 tanh_f32 max_f32         log_f32 is natural. exp2_f32(-inf) is 0, and subnormal results may be
 *   fma_f32(a, b, c)               one rounding where the device has it; a * b + c elsewhere rounds twice (-ffp-contract=off, -fmad=false)
 *   decode_word(word, dtype, out)  the 4, 2 or 1 elements of a 32-bit word of `dtype`, a constant, exactly, into floats
 *   decode_v4_4(word, out)         the codes of v4 in four bytes as numbers: of their low four bits, out[0] to [3], and of the high ones, [4] to [7]
 *   byte_perm(a, b, selector)      four bytes of a (0..3) and b (4..7), the lowest first, by the selector's hex digits
 *   pack_f16(low, high) pack_bf16  two floats as halves, nearest even. sub_f16x2(a, b): of both halves
 *   e4m3_to_f16(word, is_fnuz, out)   four e4m3 bytes as two words of f16, exactly
 *   tile_mma..., tile_transpose    the matrix units: tile.h
 *   encode_fp8_4(x, dtype, is_e5m2) decode_e5m2_4(word, dtype, x)   four floats that are in range into codes of `dtype`, an e4m3 that the matrix units take,
 *                                  or of the e5m2 beside it, to nearest even; and from that e5m2 exactly back. No -0 into the fnuz formats
 *   encode_e4m3fn_8(code) encode_e5m2_8(code)   eight floats, as bits, into codes in place: those of src/number, a NaN's sign included
 *   UNROLL                         before a loop with constant bounds whose body indexes registers
 *   NO_UNROLL                      before a loop whose body is long: copies of it would cost the instruction cache and minutes of compiling
 *   DEV                            before a function of a kernel text
 */
#ifndef OCT_DEVICE_SIMT_H
#define OCT_DEVICE_SIMT_H

#include <stdint.h>

#include "number/number.h"
#include "octavo/kv.h"

typedef struct u32x2 { uint32_t x, y; } __attribute__((aligned(8))) u32x2;
typedef struct u32x4 { uint32_t x, y, z, w; } __attribute__((aligned(16))) u32x4;
typedef struct f32x4 { float x, y, z, w; } __attribute__((aligned(16))) f32x4;

#if defined(__CUDACC__)
#include "device/simt_cuda.h"
#elif defined(__AMDGCN__)
#include "device/simt_amd.h"
#else
#include "device/simt_host.h"
#endif

#define OCT__MINUS_INF oct__f32_of_bits(UINT32_C(0xFF800000))

#if !defined(OCT__PACKS_BF16)
DEV uint32_t pack_bf16(float low, float high)
{
    return oct__bf16_from_f32(low) | (uint32_t)oct__bf16_from_f32(high) << 16;
}
#endif

#if !defined(OCT__ENCODES_FP8)
DEV void encode_e4m3fn_8(uint32_t *code)
{
    UNROLL
    for (uint32_t i = 0; i < 8; i++) {
        code[i] = oct__e4m3fn_from_f32_bits(code[i]);
    }
}

DEV void encode_e5m2_8(uint32_t *code)
{
    UNROLL
    for (uint32_t i = 0; i < 8; i++) {
        code[i] = oct__e5m2_from_f32_bits(code[i]);
    }
}
#endif

/* ---- the same text for all three -------------------------------------------------------------------------------------- */

/* tanh within 2 ulp: an odd polynomial where 1 - 2 / (e^2x + 1) would cancel. Infinity gives 1, NaN stays. */
DEV float tanh_f32(float x)
{
    const float a = oct__f32_of_bits(oct__f32_to_bits(x) & OCT__F32_ABS_MASK);
    float y;
    if (a < 0.55f) {
        const float s = x * x;
        float t = fma_f32(s, -6.27423e-3f, 2.107167244e-2f);
        t = fma_f32(s, t, -5.385230854e-2f);
        t = fma_f32(s, t, 1.333258599e-1f);
        t = fma_f32(s, t, -3.333331645e-1f);
        return fma_f32(x * s, t, x);
    }
    y = 1.0f - 2.0f / (exp2_f32(a * 2.88539008f) + 1.0f);
    return x < 0.0f ? -y : y;
}

/* A byte of an 8-bit float format: exponent and mantissa are moved into a float, whose exponent is then corrected by a product that is
 * exact for subnormals too. Only the NaN codes need a selection. */
DEV float decode_e4m3fn(uint32_t byte)
{
    const uint32_t code = byte & 0x7Fu, sign = (byte & 0x80u) << 24;
    const uint32_t bits = oct__f32_to_bits(oct__f32_of_bits(code << 20) * 0x1p120f);
    return oct__f32_of_bits(sign | (code == 0x7Fu ? OCT__F32_QNAN_BITS : bits));
}

DEV float decode_e4m3fnuz(uint32_t byte)
{
    const uint32_t code = byte & 0x7Fu, sign = (byte & 0x80u) << 24;
    const uint32_t bits = oct__f32_to_bits(oct__f32_of_bits(code << 20) * 0x1p119f);
    return oct__f32_of_bits((byte & 0xFFu) == 0x80u ? OCT__F32_QNAN_BITS : sign | bits);
}

/* e5m2 is the upper byte of an f16. */
DEV float decode_e5m2(uint32_t byte)
{
    return decode_f16((byte & 0xFFu) << 8);
}

DEV void decode_word(uint32_t word, const uint32_t dtype, float *out)
{
    switch (dtype) {
    case OCT_DTYPE_E4M3FN:
        decode_e4m3fn_4(word, out);
        break;
    case OCT_DTYPE_E4M3FNUZ:
        decode_e4m3fnuz_4(word, out);
        break;
    case OCT_DTYPE_E5M2:
        out[0] = decode_e5m2(word);
        out[1] = decode_e5m2(word >> 8);
        out[2] = decode_e5m2(word >> 16);
        out[3] = decode_e5m2(word >> 24);
        break;
    case OCT_DTYPE_I8:
        out[0] = (float)(int8_t)(word & 0xFFu);
        out[1] = (float)(int8_t)((word >> 8) & 0xFFu);
        out[2] = (float)(int8_t)((word >> 16) & 0xFFu);
        out[3] = (float)(int8_t)(word >> 24);
        break;
    case OCT_DTYPE_F16:
        out[0] = decode_f16(word & 0xFFFFu);
        out[1] = decode_f16(word >> 16);
        break;
    case OCT_DTYPE_BF16:
        out[0] = oct__f32_of_bits(word << 16);
        out[1] = oct__f32_of_bits(word & 0xFFFF0000u);
        break;
    default:
        out[0] = oct__f32_of_bits(word);
        break;
    }
}

#endif
