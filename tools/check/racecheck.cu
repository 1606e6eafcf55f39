/* racecheck.cu: what compute-sanitizer's racecheck makes of two ways to meet that Hopper's kernels have, in kernels of a few lines beside their counter-proofs
 * (doc/KERNELS.md has its hazards of each). ring_NO_MEETING and pairs_NO_BLOCK_SYNC alone have races.
 *
 * usage: nvcc -O3 -arch=sm_90a tools/check/racecheck.cu -o racecheck && compute-sanitizer --tool racecheck --show-backtrace no ./racecheck */
#include <cstdio>
#include <cstdint>
__device__ inline uint32_t at_of(const void *p) { return (uint32_t)__cvta_generic_to_shared(p); }
__device__ inline void bar_init(uint32_t at, uint32_t n) { asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(at), "r"(n) : "memory"); }
__device__ inline void bar_arrive(uint32_t at) { asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(at) : "memory"); }
__device__ inline void bar_wait(uint32_t at, uint32_t parity)
{
    asm volatile("{.reg .pred p;\nW%=: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n@!p bra W%=;\n}" ::"r"(at), "r"(parity) : "memory");
}
__device__ inline void proxy_fence() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

enum { LANE0, FULL_ALL, BOTH_ALL, NO_MEETING, LANE0_FENCED };
/* Warp 0 writes, warp 1 reads, a ring of two. */
template <int MODE> __device__ void ring(float *out, int n)
{
    __shared__ float place[2][32];
    __shared__ uint64_t bars[4];
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (threadIdx.x == 0)
        for (int i = 0; i < 2; i++) {
            bar_init(at_of(&bars[i]), MODE == FULL_ALL || MODE == BOTH_ALL ? 32 : 1);
            bar_init(at_of(&bars[2 + i]), MODE == BOTH_ALL ? 32 : 1);
        }
    __syncthreads();
    float sum = 0;
    for (int i = 0; i < n; i++) {
        const int stage = i % 2;
        if (warp == 0) {
            bar_wait(at_of(&bars[2 + stage]), (i / 2 & 1) ^ 1);
            ((volatile float *)place[stage])[lane] = i + lane;
            if (MODE == LANE0_FENCED) proxy_fence();
            if (MODE == FULL_ALL || MODE == BOTH_ALL) {
                bar_arrive(at_of(&bars[stage]));
            } else {
                if (MODE != NO_MEETING) __syncwarp();
                if (lane == 0) bar_arrive(at_of(&bars[stage]));
            }
        } else {
            bar_wait(at_of(&bars[stage]), i / 2 & 1);
            sum += ((volatile float *)place[stage])[lane ^ 1];
            if (MODE == BOTH_ALL) {
                bar_arrive(at_of(&bars[2 + stage]));
            } else {
                __syncwarp();
                if (lane == 0) bar_arrive(at_of(&bars[2 + stage]));
            }
        }
    }
    if (warp == 1) out[blockIdx.x * 32 + lane] = sum;
}

enum { NAMED, NAMED_CONSTANT, NO_PAIRS, NO_BLOCK_SYNC, LAST_OF_BLOCK, PAIRS_BY_MBARRIER };
/* Four warps in two pairs, as a decode of 256 dims: pairs meet as often as they have tiles, the block at a task's end, twice. */
template <int MODE> __device__ void pairs(float *out, int n)
{
    __shared__ float m[4][8], sums[4][32];
    __shared__ uint64_t bars[2];
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    uint32_t phase = 0;
    if (threadIdx.x < 2) bar_init(at_of(&bars[threadIdx.x]), 64);
    __syncthreads();
    float x = 0;
    for (int task = 0; task < n; task++) {
        const uint32_t tiles = (blockIdx.x * 7 + task * 5 + warp / 2 * 3) % 9;
        for (uint32_t tile = 0; tile <= tiles; tile++) {
            ((volatile float *)sums[warp])[lane] = x;   /* scores through the pair's place */
            if (MODE == LAST_OF_BLOCK && tile == tiles) __syncthreads();
            else if (MODE == NAMED_CONSTANT) {
                if (warp / 2 == 0) asm volatile("bar.sync 1, 64;" ::: "memory");
                else asm volatile("bar.sync 2, 64;" ::: "memory");
            } else if (MODE == PAIRS_BY_MBARRIER) {
                bar_arrive(at_of(&bars[warp / 2]));
                bar_wait(at_of(&bars[warp / 2]), phase);
                phase ^= 1;
            } else if (MODE != NO_PAIRS) asm volatile("bar.sync %0, %1;" ::"r"(1 + warp / 2), "r"(64) : "memory");
            else __syncwarp();
            if (MODE != NO_PAIRS && MODE != LAST_OF_BLOCK) x += ((volatile float *)sums[warp ^ 1])[lane];
            else x += ((volatile float *)sums[warp])[lane];
            if (MODE == NAMED_CONSTANT) {
                if (warp / 2 == 0) asm volatile("bar.sync 1, 64;" ::: "memory");
                else asm volatile("bar.sync 2, 64;" ::: "memory");
            } else if (MODE == PAIRS_BY_MBARRIER) {
                bar_arrive(at_of(&bars[warp / 2]));
                bar_wait(at_of(&bars[warp / 2]), phase);
                phase ^= 1;
            } else if (MODE != NO_PAIRS && !(MODE == LAST_OF_BLOCK && tile == tiles)) asm volatile("bar.sync %0, %1;" ::"r"(1 + warp / 2), "r"(64) : "memory");
        }
        if (lane < 4)
            for (int j = 0; j < 2; j++) ((volatile float *)m[warp])[lane * 2 + j] = x + j;
        ((volatile float *)sums[warp])[lane] = x;
        if (MODE != NO_BLOCK_SYNC) __syncthreads();
        for (uint32_t v = warp; v < 8; v += 4)
            for (uint32_t w = 0; w < 4; w += 2) x += ((volatile float *)m[w])[v] + ((volatile float *)sums[w])[lane];
        __syncthreads();
    }
    out[blockIdx.x * 128 + threadIdx.x] = x;
}
#define RING(mode) extern "C" __global__ void ring_##mode(float *out, int n) { ring<mode>(out, n); }
#define PAIRS(mode) extern "C" __global__ void pairs_##mode(float *out, int n) { pairs<mode>(out, n); }
RING(LANE0) RING(FULL_ALL) RING(BOTH_ALL) RING(NO_MEETING) RING(LANE0_FENCED)
PAIRS(NAMED) PAIRS(NAMED_CONSTANT) PAIRS(NO_PAIRS) PAIRS(NO_BLOCK_SYNC) PAIRS(LAST_OF_BLOCK) PAIRS(PAIRS_BY_MBARRIER)
int main()
{
    float *out;
    cudaMalloc(&out, 4 << 20);
#define RUN(kernel, threads) kernel<<<264, threads>>>(out, 12); printf(#kernel ": %s\n", cudaGetErrorString(cudaDeviceSynchronize())); fflush(stdout);
    RUN(ring_LANE0, 64) RUN(ring_FULL_ALL, 64) RUN(ring_BOTH_ALL, 64) RUN(ring_NO_MEETING, 64) RUN(ring_LANE0_FENCED, 64)
    RUN(pairs_NAMED, 128) RUN(pairs_NAMED_CONSTANT, 128) RUN(pairs_NO_PAIRS, 128) RUN(pairs_NO_BLOCK_SYNC, 128) RUN(pairs_LAST_OF_BLOCK, 128) RUN(pairs_PAIRS_BY_MBARRIER, 128)
}
