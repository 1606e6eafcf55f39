/* extend_sm90a.h: owns what the launcher and src/cuda/attn_extend_sm90a.h must agree on: the kernels' tiles and the shared memory of a block. */
#ifndef OCT_DEVICE_EXTEND_SM90A_H
#define OCT_DEVICE_EXTEND_SM90A_H

#include "device/params.h"

#define OCT__EXTEND_GROUPS 2u         /* warpgroups that multiply, each with 64 vectors */
#define OCT__EXTEND_VECTORS (OCT__EXTEND_GROUPS * 64u)
#define OCT__EXTEND_LOADERS 4u        /* warps that bring K; as many bring V */
#define OCT__EXTEND_LANES (OCT__EXTEND_LOADERS * 64u + OCT__EXTEND_GROUPS * 128u)
#define OCT__EXTEND_STAGES 4u

/* Keys of a tile: what the registers hold beside the output and q, of those that multiply (scores of 64 vectors), and of those that load (8-bit elements a
 * tile ahead). */
#define OCT__EXTEND_KEYS(dim_k) ((dim_k) > 64 ? 64u : 128u)

typedef struct oct__extend_shared {
    uint32_t k, v;                    /* [stages][keys][dim] of 16 bits, in the order of the instructions; multiples of 1024 */
    uint32_t q;                       /* [groups][64][dim_k] likewise */
    uint32_t scale;                   /* [stages] f32 K [keys], V [keys] */
    uint32_t factor;                  /* f32 [vectors] */
    uint32_t bars;                    /* u64 K full [stages], K empty, V full, V empty */
    uint32_t bytes;
} oct__extend_shared;

OCT__FN oct__extend_shared oct__extend_shared_of(uint32_t dim_k, uint32_t dim_v, uint32_t keys)
{
    oct__extend_shared s;
    s.k = 0;
    s.v = s.k + OCT__EXTEND_STAGES * keys * dim_k * 2;
    s.q = s.v + OCT__EXTEND_STAGES * keys * dim_v * 2;
    s.scale = s.q + OCT__EXTEND_VECTORS * dim_k * 2;
    s.factor = s.scale + OCT__EXTEND_STAGES * keys * 8;
    s.bars = s.factor + OCT__EXTEND_VECTORS * 4;
    s.bytes = s.bars + 4 * OCT__EXTEND_STAGES * 8;
    return s;
}

#endif
