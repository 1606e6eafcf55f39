/* simt_group_sm90a.h: what texts whose warps have different work use of Hopper beyond simt_sm90a.h: barriers in shared memory, warpgroups, and the matrix
 * units' operands there. For nvcc, and for the host executor at warps of 32.
 *
 *   shared_write_16(at, v) shared_write_4(at, v)   u32x4, uint32_t; aligned
 *   bar_init(at, n)            8 bytes of shared memory become a barrier of n arrivals a phase; by one lane, before a block_sync
 *   bar_arrive(at)             one arrival: what the lane wrote before is seen by whoever waits for the phase
 *   bar_arrive_loaded(at)      one arrival once all copies that this lane has asked for (async_load) are there
 *   byte_pick(a, b, selector)  byte_perm (simt.h) whose selector need not be a constant
 *   bar_arrive_expecting(at, bytes)   one arrival; the phase ends no sooner than that many more bytes of bulk_load are there
 *   bulk_load(at, from, bytes, bar)   the copy engine brings `bytes`, all of them multiples of 16, and counts them at a barrier that expects them in the phase
 *                              at hand; whoever waits there may look, and so may the matrix units
 *   bar_wait(at, parity)       until the phase of that parity is complete; of a new barrier, the phase before its first has parity 1 and is complete
 *   proxy_fence()              what this lane has written to shared memory, or knows to be written, is seen by the matrix units
 *   named_sync(id, n)          barrier `id` (1 to 15) of n lanes, whole warps: as block_sync among them
 *   warp_uniform(v)            v, the same in all lanes of the warp, as the compiler should know
 *   registers_of(n)            a constant: the warpgroup's lanes have n registers each from here on
 *   wg_blocks(at, along, down) operand of bytes without the swizzle: eight rows of 16 bytes to 128 bytes; the next eight rows `down` bytes on, the next 16
 *                              bytes of the rows `along` on
 *   wg_rows(at)                operand in shared memory at a multiple of 1024 (plus 32 bytes for each 16 elements along K): rows of 64 elements, 128 bytes,
 *                              16-byte chunk c of row r at c ^ (r % 8); the next 64 elements of a row wherever the text says
 *   wg_columns(at, stride)     operand whose rows lie along N: [16][N], 64 elements in 128 bytes, chunks likewise, the next 64 of them `stride` bytes on
 *   wg_begin()                 registers that were written are seen by the instructions that follow
 *   wg_end(), wg_wait(n)       what was issued since the last one is a batch; until at most n (0, 1) batches are on their way: until then nobody may look at
 *                              their sums nor write their operands
 *   wg_hold_f32(x, n)          the compiler keeps x[n] where it is, across the words above */
#ifndef OCT_CUDA_SIMT_GROUP_SM90A_H
#define OCT_CUDA_SIMT_GROUP_SM90A_H

#include "cuda/simt_sm90a.h"

#if defined(__CUDACC__)

DEV void shared_write_16(shared_at at, u32x4 v)
{
    asm volatile("st.shared.v4.u32 [%0], {%1,%2,%3,%4};" : : "r"(at), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
}

DEV void shared_write_4(shared_at at, uint32_t v)
{
    asm volatile("st.shared.u32 [%0], %1;" : : "r"(at), "r"(v) : "memory");
}

DEV uint32_t shared_read_4(shared_at at)
{
    uint32_t v;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(at));
    return v;
}

DEV void bar_init(shared_at at, uint32_t n)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" : : "r"(at), "r"(n) : "memory");
}

DEV void bar_arrive(shared_at at)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" : : "r"(at) : "memory");
}

DEV void bar_arrive_loaded(shared_at at)
{
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" : : "r"(at) : "memory");
}

DEV uint32_t byte_pick(uint32_t a, uint32_t b, uint32_t selector)
{
    return __byte_perm(a, b, selector);
}

DEV void bar_arrive_expecting(shared_at at, uint32_t bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" : : "r"(at), "r"(bytes) : "memory");
}

DEV void bulk_load(shared_at at, const void *from, uint32_t bytes, shared_at bar)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" : : "r"(at), "l"(from), "r"(bytes), "r"(bar) : "memory");
}

DEV void bar_wait(shared_at at, uint32_t parity)
{
    asm volatile("{.reg .pred p;\nW%=: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n@!p bra W%=;\n}" : : "r"(at), "r"(parity) : "memory");
}

DEV void proxy_fence(void)
{
    asm volatile("fence.proxy.async.shared::cta;" : : : "memory");
}

DEV void named_sync(uint32_t id, const uint32_t n)
{
    asm volatile("bar.sync %0, %1;" : : "r"(id), "r"(n) : "memory");
}

DEV uint32_t warp_uniform(uint32_t v)
{
    return __shfl_sync(~0u, v, 0);
}

DEV uint64_t warp_shuffle_u64(uint64_t v, uint32_t lane)
{
    return __shfl_sync(~0u, v, (int)lane);
}

#define registers_fewer(n) asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" : : "n"(n))
#define registers_more(n) asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" : : "n"(n))

DEV uint64_t wg_rows(shared_at at)
{
    return (uint64_t)((at & 0x3FFFF) >> 4) | (uint64_t)1 << 16 | (uint64_t)(1024 >> 4) << 32 | (uint64_t)1 << 62;
}

DEV uint64_t wg_blocks(shared_at at, uint32_t along, uint32_t down)
{
    return (uint64_t)((at & 0x3FFFF) >> 4) | (uint64_t)(along >> 4) << 16 | (uint64_t)(down >> 4) << 32;
}

DEV uint64_t wg_columns(shared_at at, uint32_t stride)
{
    return (uint64_t)((at & 0x3FFFF) >> 4) | (uint64_t)(stride >> 4) << 16 | (uint64_t)(1024 >> 4) << 32 | (uint64_t)1 << 62;
}

DEV void wg_begin(void)
{
    asm volatile("wgmma.fence.sync.aligned;" : : : "memory");
}

DEV void wg_end(void)
{
    asm volatile("wgmma.commit_group.sync.aligned;" : : : "memory");
}

DEV void wg_wait(const uint32_t n)
{
    if (n == 0) {
        asm volatile("wgmma.wait_group.sync.aligned 0;" : : : "memory");
    } else {
        asm volatile("wgmma.wait_group.sync.aligned 1;" : : : "memory");
    }
}

DEV void wg_hold_f32(float *x, const uint32_t n)
{
    UNROLL
    for (uint32_t i = 0; i < n; i++) {
        asm volatile("" : "+f"(x[i]) : : "memory");
    }
}

DEV void wg_hold_u32(uint32_t *x, const uint32_t n)
{
    UNROLL
    for (uint32_t i = 0; i < n; i++) {
        asm volatile("" : "+r"(x[i]) : : "memory");
    }
}

#include "cuda/wgmma_sm90a.h"

#else
#include "cuda/wgmma_model.h"
#endif
#endif
