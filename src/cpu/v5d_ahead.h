/* v5d_ahead.h: owns where the bytes of a V5D block lie that a vector kernel will stage next, as rows that it can prefetch while it works on the
 * block before: staging reads a block all at once, so nothing else hides the way from memory. Decode, GB/s of cold pages of one Zen 4 core, dim
 * 128, pages of 16, 1 / 4 vectors:
 *                                              AVX2, e4m3    AVX-512, e4m3    AVX-512 BF16, e4m3    VNNI, i8
 *   next block staged ahead (AVX-512) or not     3.4 / 2.9        4.7 / 3.7             4.9 / 4.1    4.8 / 4.1
 *   its bytes asked for all at once              5.5 / 4.3        7.4 / 5.4             7.4 / 6.1    8.2 / 6.4
 *   asked for row by row                         5.5 / 4.3        7.4 / 5.4             8.2 / 6.2    8.2 / 6.3
 *   from L2, for comparison                      7.0 / 5.2       10.4 / 6.9            11.8 / 8.0   12.2 / 8.6
 * In cache staging a block ahead was 5 % better.
 *
 * Threads: pure. */
#ifndef OCT_CPU_V5D_AHEAD_H
#define OCT_CPU_V5D_AHEAD_H

#include "kv/layout.h"
#include "number/dtype.h"
#include "plan/variant.h"

/* Points k[i] and v[i] at n rows of dim elements that together are the stored K and V of keys [first, first + n), nearly: what starts or ends
 * within a row's bytes may be missed. They are for prefetching only. */
static inline void v5d_ahead_of(const oct_kv_layer *kv, const int32_t *pages, uint32_t head, int64_t first, uint32_t n, const uint8_t **k, const uint8_t **v)
{
    const uint32_t page_size = kv->spec.page_size, k_size = oct__dtype_size_bytes(kv->spec.k.dtype), v_size = oct__dtype_size_bytes(kv->spec.v.dtype);
    const size_t k_bytes = (size_t)kv->spec.dim_k * k_size, v_bytes = (size_t)kv->spec.dim_v * v_size;
    for (uint32_t j = 0; j < n;) {
        const uint32_t token = (uint32_t)((first + j) % page_size), take = page_size - token < n - j ? page_size - token : n - j;
        const int64_t page = pages[(first + j) / page_size];
        const int64_t at = page < 0 ? 0 : page; /* gone: any address will do */
        /* K: of each 16 bytes of the head dim a run of `take` tokens. V: dims of 16 bytes' tokens lie together, and those one after another. */
        const uint8_t *k_at = (const uint8_t *)kv->k + oct__k_index(kv, at, token, head, 0) * k_size;
        const uint8_t *v_at = (const uint8_t *)kv->v + oct__v_index(kv, at, token - token % (16 / v_size), head, 0) * v_size;
        for (uint32_t i = 0; i < take; i++, j++) {
            const size_t behind = i * k_bytes, run = (size_t)take * 16;
            k[j] = k_at + behind / run * page_size * 16 + behind % run;
            v[j] = v_at + i * v_bytes;
        }
    }
}

static inline void v5d_ahead(const oct__attn_tile *tile, int64_t first, uint32_t n, const uint8_t **k, const uint8_t **v)
{
    v5d_ahead_of(tile->kv, tile->pages, tile->head_kv, first, n, k, v);
}

#endif
