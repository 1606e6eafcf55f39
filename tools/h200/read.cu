// read.cu: what decode.c needs of a GPU beside the library's kernels: pages filled with drawn codes, and the floor: a cold read of as many bytes.
#include <stdint.h>

// n words of codes drawn from a table of 65536 bytes; code_bytes: 1 or 2.
extern "C" __global__ void bench_fill(uint32_t *to, uint64_t n, const uint8_t *table, uint32_t code_bytes, uint64_t seed)
{
    for (uint64_t i = blockIdx.x * (uint64_t)blockDim.x + threadIdx.x; i < n; i += (uint64_t)gridDim.x * blockDim.x) {
        uint64_t z = (i + 1) * 0x9E3779B97F4A7C15ull + seed * 0xD1B54A32D192ED03ull;
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
        z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
        z ^= z >> 31;
        const uint32_t a = z & 0xFFFF, b = z >> 16 & 0xFFFF, c = z >> 32 & 0xFFFF, d = z >> 48 & 0xFFFF;
        to[i] = code_bytes == 1 ? table[a] | table[b] << 8 | table[c] << 16 | (uint32_t)table[d] << 24
                                : ((const uint16_t *)table)[a / 2] | (uint32_t)((const uint16_t *)table)[b / 2] << 16;
    }
}

extern "C" __global__ void bench_fill_f32(float *to, uint64_t n, float low, float high)
{
    for (uint64_t i = blockIdx.x * (uint64_t)blockDim.x + threadIdx.x; i < n; i += (uint64_t)gridDim.x * blockDim.x) {
        to[i] = low + (high - low) * (float)((i * 2654435761u >> 8) & 0xFFFF) / 65536.0f;
    }
}

// blocks steps of 16 KB, one array, contiguous; 256 lanes, 8 blocks a multiprocessor.
extern "C" __global__ void __launch_bounds__(256) bench_read(const uint4 *from, uint64_t blocks, uint32_t *sink)
{
    uint32_t x = 0;
    for (uint64_t i = blockIdx.x; i < blocks; i += gridDim.x) {
        uint4 v[4];
#pragma unroll
        for (int u = 0; u < 4; u++) {
            v[u] = __ldg(from + i * 1024 + u * 256 + threadIdx.x);
        }
#pragma unroll
        for (int u = 0; u < 4; u++) {
            x ^= v[u].x ^ v[u].y ^ v[u].z ^ v[u].w;
        }
    }
    if (x == 0x12345678) {
        *sink = x;
    }
}
