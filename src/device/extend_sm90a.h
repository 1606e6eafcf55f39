/* extend_sm90a.h: owns what the launcher and src/cuda/attn_extend_sm90a.h must agree on: the kernels' tiles and the shared memory of a block. */
#ifndef OCT_DEVICE_EXTEND_SM90A_H
#define OCT_DEVICE_EXTEND_SM90A_H

#include "device/params.h"

#define OCT__EXTEND_GROUPS 2u         /* warpgroups that multiply, each with 64 vectors */
#define OCT__EXTEND_VECTORS (OCT__EXTEND_GROUPS * 64u)

/* Two forms. Four warps bring K, as many V, and those that multiply have 184 registers: pages of 8 bits are turned into 16 on their way, which is what the
 * warps are for. Or two warps and 216 registers: pages of bf16, copied as they lie, and the 256 dims of output that leave no other choice. */
#define OCT__EXTEND_LOADERS(dim_k, is_bf16) ((dim_k) > 192 || (is_bf16) ? 2u : 4u)
#define OCT__EXTEND_LANES_OF(loaders) ((loaders) * 64u + OCT__EXTEND_GROUPS * 128u)
#define OCT__EXTEND_LANES(dim_k, is_bf16) OCT__EXTEND_LANES_OF(OCT__EXTEND_LOADERS(dim_k, is_bf16))

/* Keys of a tile: what the registers hold beside the output, scores of 64 vectors. Tiles of a ring: what shared memory holds. */
#define OCT__EXTEND_KEYS(dim_k, is_bf16) ((dim_k) <= 64 || ((dim_k) <= 192 && (is_bf16)) ? 128u : 64u)
#define OCT__EXTEND_STAGES(dim_k, is_bf16) ((dim_k) > 64 && OCT__EXTEND_LOADERS(dim_k, is_bf16) == 2 ? 2u : 4u)

typedef struct oct__extend_shared {
    uint32_t k, v;                    /* [stages][keys][dim] of 16 bits, in the order of the instructions; multiples of 1024 */
    uint32_t q;                       /* [groups][64][dim_k] likewise */
    uint32_t scale;                   /* [stages] f32 K [keys], V [keys] */
    uint32_t factor;                  /* f32 [vectors] */
    uint32_t bars;                    /* u64 K full [stages], K empty, V full, V empty */
    uint32_t bytes;
} oct__extend_shared;

OCT__FN oct__extend_shared oct__extend_shared_of(uint32_t dim_k, uint32_t dim_v, uint32_t is_bf16)
{
    const uint32_t keys = OCT__EXTEND_KEYS(dim_k, is_bf16), stages = OCT__EXTEND_STAGES(dim_k, is_bf16);
    oct__extend_shared s;
    s.k = 0;
    s.v = s.k + stages * keys * dim_k * 2;
    s.q = s.v + stages * keys * dim_v * 2;
    s.scale = s.q + OCT__EXTEND_VECTORS * dim_k * 2;
    s.factor = s.scale + stages * keys * 8;
    s.bars = s.factor + OCT__EXTEND_VECTORS * 4;
    s.bytes = s.bars + 4 * stages * 8;
    return s;
}

#endif
