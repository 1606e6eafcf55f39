/* rig.h: owns what the tests and the benchmark of the AVX2 kernels share: random numbers, one layer with pages that end at a guard page,
 * and whether this machine can run the kernels at all.
 *
 * Threads: a rig belongs to one thread. */
#ifndef TEST_CPU_AVX2_RIG_H
#define TEST_CPU_AVX2_RIG_H

#include <cpuid.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "kv/layout.h"
#include "number/convert.h"
#include "number/dtype.h"
#include "number/number.h"
#include "number/scale.h"
#include "octavo/page.h"

static inline bool rig_can_run(void)
{
    unsigned int a, b, c, d;
    __builtin_cpu_init();
    /* clang 14 has no name for F16C here: leaf 1, ecx bit 29 */
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __get_cpuid(1, &a, &b, &c, &d) && (c >> 29 & 1);
}

static inline uint64_t rig_random(uint64_t *seed)
{
    *seed ^= *seed << 13;
    *seed ^= *seed >> 7;
    *seed ^= *seed << 17;
    return *seed * UINT64_C(0x2545F4914F6CDD1D) >> 32;
}
static inline uint32_t rig_below(uint64_t *seed, uint32_t n)
{
    return (uint32_t)(rig_random(seed) % n);
}
static inline float rig_normal(uint64_t *seed)
{
    const double u = ((double)rig_random(seed) + 1.0) / 4294967297.0, v = (double)rig_random(seed) / 4294967296.0;
    return (float)(sqrt(-2.0 * log(u)) * cos(6.283185307179586 * v));
}

static inline void *rig_alloc(size_t bytes)
{
    void *memory = aligned_alloc(64, (bytes + 63) / 64 * 64 + 64);
    if (memory == NULL) {
        abort();
    }
    return memory;
}

/* Memory whose last byte is followed by an inaccessible page. */
typedef struct rig_guarded {
    uint8_t *map, *at;
    size_t map_bytes;
} rig_guarded;

static inline rig_guarded rig_guard(size_t bytes)
{
    rig_guarded g;
    const size_t body = (bytes + 4095) / 4096 * 4096;
    g.map_bytes = body + 4096;
    g.map = mmap(NULL, g.map_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (g.map == MAP_FAILED || mprotect(g.map + body, 4096, PROT_NONE) != 0) {
        abort();
    }
    (void)madvise(g.map, body, MADV_HUGEPAGE);
    g.at = g.map + body - bytes;
    return g;
}

typedef struct rig_layer {
    oct_kv_layer kv;
    rig_guarded k, v, k_scale, v_scale;
    size_t k_bytes, v_bytes, k_scale_bytes, v_scale_bytes;
} rig_layer;

/* Pages of the spec, filled with 0xFF. Static scales are the caller's to set. */
static inline void rig_layer_make(rig_layer *r, const oct_kv_spec *spec, int64_t n_pages)
{
    memset(r, 0, sizeof(*r));
    if (oct_kv_layer_init(&r->kv, spec, n_pages, NULL) != OCT_OK) {
        fprintf(stderr, "rig: illegal spec\n");
        abort();
    }
    r->k_bytes = (size_t)(n_pages * r->kv.k_page_stride) * oct__dtype_size_bytes(spec->k.dtype);
    r->v_bytes = (size_t)(n_pages * r->kv.v_page_stride) * oct__dtype_size_bytes(spec->v.dtype);
    r->k = rig_guard(r->k_bytes);
    r->v = rig_guard(r->v_bytes);
    memset(r->k.at, 0xFF, r->k_bytes);
    memset(r->v.at, 0xFF, r->v_bytes);
    r->kv.k = r->k.at;
    r->kv.v = r->v.at;
    if (spec->k.scale_mode == OCT_SCALE_TOKEN_HEAD) {
        r->k_scale_bytes = (size_t)(n_pages * r->kv.k_scale_page_stride) * oct__dtype_size_bytes(spec->k.scale_dtype);
        r->k_scale = rig_guard(r->k_scale_bytes);
        memset(r->k_scale.at, 0xFF, r->k_scale_bytes);
        r->kv.k_token_scale = r->k_scale.at;
    }
    if (spec->v.scale_mode == OCT_SCALE_TOKEN_HEAD) {
        r->v_scale_bytes = (size_t)(n_pages * r->kv.v_scale_page_stride) * oct__dtype_size_bytes(spec->v.scale_dtype);
        r->v_scale = rig_guard(r->v_scale_bytes);
        memset(r->v_scale.at, 0xFF, r->v_scale_bytes);
        r->kv.v_token_scale = r->v_scale.at;
    }
}

static inline void rig_layer_free(rig_layer *r)
{
    const rig_guarded all[] = { r->k, r->v, r->k_scale, r->v_scale };
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
        if (all[i].map != NULL) {
            munmap(all[i].map, all[i].map_bytes);
        }
    }
}

#endif
