/* simt_sm90a.h: what the texts of sm_90a use of a GPU beyond device/simt.h: copies from global to shared memory that run by themselves, shared memory by
 * offset, a few warp operations, and the hand-over between kernels of a stream. For nvcc, and for the host executor at warps of 32.
 *
 *   shared_at, shared_at_of(ptr)       a place in dynamic shared memory as a number; offsets may be added and XORed
 *   shared_read_16(at) shared_read_8(at)   u32x4, u32x2; aligned
 *   shared_write_8(at, v)
 *   async_load(at, from, bytes)        16 bytes at `at`: `bytes` (0, 8 or 16) of them from `from`, which must be 16-byte aligned, the rest zeros.
 *                                      Nobody may look there until this lane has waited and a warp_sync or block_sync has passed
 *   async_load_16(at, from)            the same of 16 bytes
 *   async_commit()                     what this lane has asked for since the last one is a group
 *   async_wait(n)                      until at most n (0, 1, 2 or 4, a constant) groups of this lane are on their way
 *   warp_ballot(v)                     all lanes of the warp: bit l says whether lane l's v is not 0
 *   warp_shuffle_f32(v, lane) warp_shuffle_u32   all lanes of the warp: the value of that lane
 *   as_it_is_u64(v)                    v, of which the compiler knows no parts: it adds to it, and takes no sum apart
 *   exp2_fast(x)                       2^x within 2 ulp, subnormal results are 0
 *   reciprocal_fast(x)                 1 / x within an ulp or two; 0 of infinity
 *   launch_next(), wait_previous()     the next kernel of the stream may start, if it was launched to; until the one before has ended and its writes
 *                                      are seen. Without effect where the launch does not ask for it
 */
#ifndef OCT_CUDA_SIMT_SM90A_H
#define OCT_CUDA_SIMT_SM90A_H

#include "device/simt.h"

#if defined(__CUDACC__)

typedef uint32_t shared_at;

DEV shared_at shared_at_of(const void *at)
{
    return (uint32_t)__cvta_generic_to_shared(at);
}

DEV u32x4 shared_read_16(shared_at at)
{
    u32x4 v;
    asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(at));
    return v;
}

DEV u32x2 shared_read_8(shared_at at)
{
    u32x2 v;
    asm volatile("ld.shared.v2.u32 {%0,%1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(at));
    return v;
}

DEV void shared_write_8(shared_at at, u32x2 v)
{
    asm volatile("st.shared.v2.u32 [%0], {%1,%2};" : : "r"(at), "r"(v.x), "r"(v.y) : "memory");
}

DEV void async_load(shared_at at, const void *from, uint32_t bytes)
{
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" : : "r"(at), "l"(from), "r"(bytes) : "memory");
}

DEV void async_load_16(shared_at at, const void *from)
{
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" : : "r"(at), "l"(from) : "memory");
}

DEV void async_commit(void)
{
    asm volatile("cp.async.commit_group;" : : : "memory");
}

DEV void async_wait(const uint32_t n)
{
    switch (n) {   /* an immediate */
    case 0:
        asm volatile("cp.async.wait_group 0;" : : : "memory");
        break;
    case 1:
        asm volatile("cp.async.wait_group 1;" : : : "memory");
        break;
    case 2:
        asm volatile("cp.async.wait_group 2;" : : : "memory");
        break;
    case 3:
        asm volatile("cp.async.wait_group 3;" : : : "memory");
        break;
    default:
        asm volatile("cp.async.wait_group 4;" : : : "memory");
        break;
    }
}

DEV uint32_t warp_ballot(uint32_t v)
{
    return __ballot_sync(~0u, v != 0);
}

DEV float warp_shuffle_f32(float v, uint32_t lane)
{
    return __shfl_sync(~0u, v, (int)lane);
}

DEV uint64_t as_it_is_u64(uint64_t v)
{
    asm volatile("" : "+l"(v));
    return v;
}

DEV uint32_t warp_shuffle_u32(uint32_t v, uint32_t lane)
{
    return __shfl_sync(~0u, v, (int)lane);
}

DEV float exp2_fast(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

DEV float reciprocal_fast(float x)
{
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

DEV void launch_next(void)
{
    asm volatile("griddepcontrol.launch_dependents;" : : : "memory");
}

DEV void wait_previous(void)
{
    asm volatile("griddepcontrol.wait;" : : : "memory");
}

#else

/* An offset from the beginning of dynamic shared memory. */
typedef uint32_t shared_at;

/* The executor's; each lane has its own queue of copies. */
void oct__simt_async_load(shared_at at, const void *from, uint32_t bytes, const char *site);
void oct__simt_async_commit(void);
void oct__simt_async_wait(uint32_t n, const char *site);

#define shared_at_of(at) ((shared_at)((uintptr_t)(at) - (uintptr_t)oct__simt_shared_dynamic()))
#define oct__shared_place(at) ((uint8_t *)oct__simt_shared_dynamic() + (at))
#define shared_read_16(at) (*(const u32x4 *)oct__simt_shared_read(oct__shared_place(at), 16, OCT__SITE))
#define shared_read_8(at) (*(const u32x2 *)oct__simt_shared_read(oct__shared_place(at), 8, OCT__SITE))
#define shared_write_8(at, v) ((void)(*(u32x2 *)oct__simt_shared_write(oct__shared_place(at), 8, OCT__SITE) = (v)))
#define async_load(at, from, bytes) oct__simt_async_load(at, from, bytes, OCT__SITE)
#define async_load_16(at, from) oct__simt_async_load(at, from, 16, OCT__SITE)
#define async_commit() oct__simt_async_commit()
#define async_wait(n) oct__simt_async_wait(n, OCT__SITE)
#define warp_ballot(v) warp_sum_u32((uint32_t)((v) != 0) << (tid() % 32))
#define warp_shuffle_f32(v, lane) shfl_xor_f32(v, (lane) ^ (tid() % 32))   /* each lane's own mask */
#define as_it_is_u64(v) (v)
#define warp_shuffle_u32(v, lane) shfl_xor_u32(v, (lane) ^ (tid() % 32))
#define exp2_fast(x) exp2_f32(x)
#define reciprocal_fast(x) (1.0f / (x))
#define launch_next() ((void)0)
#define wait_previous() ((void)0)

#endif
#endif
