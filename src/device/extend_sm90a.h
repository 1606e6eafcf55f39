/* extend_sm90a.h: owns what the launcher and src/cuda/attn_extend_sm90a.h must agree on: the kernels' tiles and the shared memory of a block. */
#ifndef OCT_DEVICE_EXTEND_SM90A_H
#define OCT_DEVICE_EXTEND_SM90A_H

#include "device/params.h"

#define OCT__EXTEND_GROUPS 2u         /* warpgroups that multiply, each with 64 vectors */
#define OCT__EXTEND_VECTORS (OCT__EXTEND_GROUPS * 64u)

/* Two warps bring K, two V: pages of 16 bits are copied as they lie; those of 8 bits come to shared memory as they are, some tiles ahead, and become 16 there. */
#define OCT__EXTEND_LOADERS 2u        /* warps a side */
#define OCT__EXTEND_LANES(dim_k, is_bf16) (OCT__EXTEND_LOADERS * 64u + OCT__EXTEND_GROUPS * 128u)   /* of a block; the same of all */

/* Keys of a tile: what the registers hold beside the output, scores of 64 vectors, and shared memory. Tiles of a ring: what shared memory holds. */
#define OCT__EXTEND_KEYS(dim_k, is_bf16) ((dim_k) <= 128 || ((dim_k) <= 192 && (is_bf16)) ? 128u : 64u)
#define OCT__EXTEND_STAGES(dim_k) ((dim_k) <= 64 ? 4u : 2u)
/* Tiles of 8 bits that are on their way to shared memory, or there and not yet of 16; 0: V beside K of bf16, which comes by registers. */
#define OCT__EXTEND_AHEAD(dim_k, is_bf16) ((is_bf16) ? 0u : (dim_k) > 192 ? 1u : 2u)
#define OCT__EXTEND_RAW_ROW(dim) ((dim) <= 64 ? 64u : (dim) <= 128 ? 128u : 256u)   /* bytes: lanes that share a row are a power of two */
#define OCT__EXTEND_SCALES(keys) ((keys) * 8u + 16u)   /* bytes of a tile */

typedef struct oct__extend_shared {
    uint32_t k, v;                    /* [stages][keys][dim] of 16 bits, in the order of the instructions; multiples of 1024 */
    uint32_t q;                       /* [groups][64][dim_k] likewise */
    uint32_t raw;                     /* K [ahead][keys][raw row], V likewise, of 8 bits: each lane's own chunks side by side */
    uint32_t scale;                   /* [stages] f32 K [keys], V [keys], the largest finite V of each loading warp's keys [4] */
    uint32_t factor;                  /* f32 [vectors] */
    uint32_t bars;                    /* u64 K full [stages], K empty, V full, V empty; turns [groups] */
    uint32_t bytes;
} oct__extend_shared;

OCT__FN oct__extend_shared oct__extend_shared_of(uint32_t dim_k, uint32_t dim_v, uint32_t is_bf16)
{
    const uint32_t keys = OCT__EXTEND_KEYS(dim_k, is_bf16), stages = OCT__EXTEND_STAGES(dim_k);
    oct__extend_shared s;
    s.k = 0;
    s.v = s.k + stages * keys * dim_k * 2;
    s.q = s.v + stages * keys * dim_v * 2;
    s.raw = s.q + OCT__EXTEND_VECTORS * dim_k * 2;
    s.scale = s.raw + OCT__EXTEND_AHEAD(dim_k, is_bf16) * keys * (OCT__EXTEND_RAW_ROW(dim_k) + OCT__EXTEND_RAW_ROW(dim_v));
    s.factor = s.scale + stages * OCT__EXTEND_SCALES(keys);
    s.bars = s.factor + OCT__EXTEND_VECTORS * 4;
    s.bytes = s.bars + (4 * stages + OCT__EXTEND_GROUPS) * 8;
    return s;
}

#endif
