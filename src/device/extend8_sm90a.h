/* extend8_sm90a.h: owns what the launcher and src/cuda/attn_extend8_sm90a.h must agree on: the tiles of an extend with products of 8 bits and the shared
 * memory of a block. */
#ifndef OCT_DEVICE_EXTEND8_SM90A_H
#define OCT_DEVICE_EXTEND8_SM90A_H

#include "device/extend_sm90a.h"

#define OCT__EXTEND8_LOADERS 4u       /* warps that bring K and V */
#define OCT__EXTEND8_LANES (OCT__EXTEND8_LOADERS * 32u + OCT__EXTEND_GROUPS * 128u)

/* Keys of a tile, tiles of a ring, and whether scales of K's tokens have a place: what registers and shared memory hold. */
#define OCT__EXTEND8_KEYS(dim, terms) ((dim) > 128 && (terms) > 1 ? 64u : 128u)
#define OCT__EXTEND8_STAGES(dim) ((dim) > 128 ? 2u : 4u)
#define OCT__EXTEND8_HAS_SCALES(dim, terms) ((dim) <= 128 || (terms) > 1)

/* A run of V: 16 tokens of all dims, then eight rows of ones, whose products are the sums of the weights. */
#define OCT__EXTEND8_RUN_BYTES(dim) ((dim) * 16u + 128u)

/* The ranges after which sums go over to a total, powers of two: their error grows with the range, doc/NUMERICS.md has both. */
#define OCT__EXTEND8_TOTAL_KEYS 1024u
#define OCT__EXTEND8_TOTAL_KEYS_PRECISE 128u

/* The runs of a tile as the warp that loads them finds them. */
typedef struct oct__extend8_runs {
    uint64_t at[8];                   /* where its first key lies; 0: its page is outside of the layer */
    uint32_t bits[8];                 /* bit i: key i is one of the work's */
    int32_t key0, key1;               /* of the work at hand */
    uint32_t head_kv, work;
    const int32_t *pages;
    int32_t base;                     /* first key of the tile */
    uint32_t whole;                   /* bit i: run i can be brought whole */
} oct__extend8_runs;

typedef struct oct__extend8_shared {
    oct__extend_shared at;            /* k: [stages][keys][dim], v: [stages][keys / 16] runs, q: [groups][terms][64][dim]; factor takes turns with totals, then q */
    uint32_t totals;                  /* bf16 [groups][64][dim]; then rows on their way out */
    uint32_t z;                       /* f32 [vectors], of weights as they are */
    uint32_t work;                    /* oct__extend8_runs [K, V]: of the warp that loads it, what would be registers too many */
} oct__extend8_shared;

OCT__FN oct__extend8_shared oct__extend8_shared_of(uint32_t dim, uint32_t terms)
{
    const uint32_t keys = OCT__EXTEND8_KEYS(dim, terms), stages = OCT__EXTEND8_STAGES(dim);
    oct__extend8_shared s;
    s.at.k = 0;
    s.at.q = s.at.k + stages * keys * dim;
    s.totals = s.at.q + OCT__EXTEND_VECTORS * dim * terms;
    s.at.factor = s.totals;
    s.at.v = s.totals + OCT__EXTEND_VECTORS * dim * 2;
    s.at.scale = s.at.v + stages * (keys / 16) * OCT__EXTEND8_RUN_BYTES(dim);
    s.at.bars = s.at.scale + (OCT__EXTEND8_HAS_SCALES(dim, terms) ? stages * keys * 4 : 0);
    s.work = s.at.bars + 4 * stages * 8;
    s.z = s.work + 2 * (uint32_t)sizeof(oct__extend8_runs);
    s.at.bytes = s.z + OCT__EXTEND_VECTORS * 4;
    return s;
}

#endif
