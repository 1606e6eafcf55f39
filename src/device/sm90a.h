/* sm90a.h: owns what the launcher and src/cuda/attn_decode_sm90a.h must agree on: the shared memory of a block of attn_decode_sm90a_*, and from it how
 * many blocks a multiprocessor holds at a time. */
#ifndef OCT_DEVICE_SM90A_H
#define OCT_DEVICE_SM90A_H

#include "device/params.h"

/* Warps of a block; each has a ring of its own. Where two share 256 dims of 16 vectors a block has a multiprocessor for itself: half as many sums to merge. */
#if !defined(OCT__SM90A_MANY_WARPS)
#define OCT__SM90A_MANY_WARPS 8u
#endif
#define OCT__SM90A_WARPS(dim, vectors) ((dim) > 128 && (vectors) == 16 ? OCT__SM90A_MANY_WARPS : 4u)
#if !defined(OCT__SM90A_LIGHT_BLOCKS)
#define OCT__SM90A_LIGHT_BLOCKS 3u    /* of a multiprocessor, where registers allow more than 2: 8 vectors, rows of at most 256 bytes */
#endif
#define OCT__FINISH_SM90A_LANES 256   /* of a block of attn_finish_sm90a */
#define OCT__SM90A_PART_KEYS 32u      /* even parts of a plan begin at multiples of it: the most keys of a tile */

/* Rings first. Per warp: [warps]. */
typedef struct oct__sm90a_shared {
    uint32_t keys, stages, stage_bytes;   /* of a warp's ring: keys of a tile, tiles, bytes of K and V of one */
    uint32_t at;                          /* per warp: where the keys of the next tile lie: u64 K [keys], V [keys] */
    uint32_t scale;                       /* per warp and stage: f32 K [keys], V [keys] */
    uint32_t consumed;                    /* per warp: u32, the slot consumed last */
    uint32_t state;                       /* per warp: f32 m [vectors], z [vectors] */
    uint32_t q;                           /* per head tile of the block: f16 or bf16 fragments; only where registers do not hold them */
    uint32_t next_q;                      /* per head tile of the block: q of the next task, as it is; of plain kernels */
    uint32_t bytes;
} oct__sm90a_shared;

/* q in shared memory: its registers (16 of 8 vectors and 128 dims) are wanted for a third block, or are too many beside the sums. */
OCT__FN uint32_t oct__sm90a_q_bytes(uint32_t dim, uint32_t vectors)
{
    return dim > 64 ? dim * vectors * 2 : 0;
}

/* Dims of a warp: two share rows of more than 128. */
#define OCT__SM90A_DIMS(dim) ((dim) > 128 ? 128u : (dim))

/* Blocks that share a multiprocessor's registers. is_one: the kernel is not of every 8-bit format, which takes more of them. A constant for constants. */
#define OCT__SM90A_BLOCKS(k_size, v_size, dim, vectors, is_one) \
    ((is_one) && (dim) <= 128 && (dim) * ((k_size) + (v_size)) <= 256 && (vectors) == 8 ? OCT__SM90A_LIGHT_BLOCKS : 8u / OCT__SM90A_WARPS(dim, vectors))

/* k_size, v_size: bytes of an element; dim: 64, 128 or 256, the most of the kernel; vectors: 8 or 16. */
OCT__FN oct__sm90a_shared oct__sm90a_shared_of(uint32_t k_size, uint32_t v_size, uint32_t dim, uint32_t vectors, uint32_t is_one, uint32_t heads_a_block)
{
    const uint32_t row_bytes = OCT__SM90A_DIMS(dim) * (k_size + v_size), blocks = OCT__SM90A_BLOCKS(k_size, v_size, dim, vectors, is_one);
    const uint32_t ring_bytes = blocks == 3 ? 16384 : 24576, warps = OCT__SM90A_WARPS(dim, vectors);
    oct__sm90a_shared s;
    s.keys = row_bytes <= 256 ? 32 : 16;
    s.stage_bytes = s.keys * row_bytes;
    s.stages = ring_bytes / s.stage_bytes;
    s.at = warps * s.stages * s.stage_bytes;
    s.scale = s.at + warps * s.keys * 16;
    s.consumed = s.scale + warps * s.stages * s.keys * 8;
    s.state = s.consumed + warps * 4;
    s.q = s.state + warps * vectors * 8;
    s.next_q = s.q + heads_a_block * oct__sm90a_q_bytes(dim, vectors);
    s.bytes = s.next_q + heads_a_block * dim * vectors * 2;
    return s;
}

#endif
