/* write_sm90a.h: owns what src/cuda/kv_write_sm90a.h and attn_merge_sm90a.h and their launcher must agree on: parameters, and how lanes share the work.
 *
 * The write: a team of 2 to 32 lanes (a power of two) holds one head of one token, eight dims a lane, K and V; a lane serves `rounds` tokens. */
#ifndef OCT_DEVICE_WRITE_SM90A_H
#define OCT_DEVICE_WRITE_SM90A_H

#include "device/params.h"

#if !defined(OCT__WRITE_SM90A_LANES)
#define OCT__WRITE_SM90A_LANES 256u
#endif
#define OCT__WRITE_SM90A_BLOCKS_ANY 2u /* of the kernel for every form */
#if !defined(OCT__WRITE_SM90A_BLOCKS)
#define OCT__WRITE_SM90A_BLOCKS 4u    /* of a multiprocessor, at the least */
#endif
#define OCT__WRITE_SM90A_DIM_MAX 256u /* a warp's eights */

/* Where slots lie: page = slot * magic >> shift, exact below 2^31. */
typedef struct oct__dev_cut {
    uint32_t capacity;                 /* slots from here on are skipped, negative ones as unsigned too */
    uint32_t magic, shift;
} oct__dev_cut;

enum { OCT__WRITE_ONE, OCT__WRITE_STATIC, OCT__WRITE_HEAD, OCT__WRITE_TOKEN_F32, OCT__WRITE_TOKEN_F16, OCT__WRITE_CHANNEL };

/* K or V of one destination, in bytes: the eight of lane l of token t, head h lies at from + t * from_token + h * from_head + l * 8 elements, and goes to
 * to + page * to_page + place * to_place + h * to_head + l / 2 * to_pair + l % 2 * to_odd. */
typedef struct oct__write_way {
    const unsigned char *from;
    unsigned char *to;
    const float *scale;
    void *token_scale;
    uint32_t from_token, from_head, to_page, to_place, to_head, to_pair, to_odd;
    uint32_t scale_page;               /* elements */
    uint32_t scale_kind, dtype, dim, rotated;
} oct__write_way;

/* Block b: tokens [b / parts * tokens_a_block * rounds, ...), round r's side by side; heads [b % parts * heads_a_block, ...). What the quick way needs stands
 * first; `write` (with its parts: blocks that share a token's heads) is for the rest. */
typedef struct oct__kv_write_sm90a_params {
    oct__write_way way[2][2];          /* destination; K, V */
    const int32_t *slots[2];
    const uint32_t *refused;
    uint64_t n_tokens;
    oct__dev_cut cut[2];
    uint32_t page_size, page_size_window, heads, parts;
    uint32_t team_shift;               /* lanes of a team: 1 << team_shift */
    uint32_t heads_a_block, tokens_a_block;
    uint32_t head_magic;               /* team / heads_a_block = team * head_magic >> 16 */
    uint32_t rounds;                   /* 1 or 2 */
    uint32_t is_quick;                 /* source and destinations by 16 and 8 bytes at a time, strides of 32 bits; V5D's V by a kernel of its own or not at all */
    uint32_t src_dtype, n_ways, is_counted;
    uint32_t is_early;                 /* launched early: it waits for the end of what is ahead of it */
    uint32_t reserved;
    oct__kv_write_params write;
} oct__kv_write_sm90a_params;

/* Dynamic shared memory, with RoPE: f32 cosine and sine [tokens_a_block][rope_dims / 2] each, then eight floats a lane. */
OCT__FN uint32_t oct__write_sm90a_shared_bytes(uint32_t tokens_a_block, uint32_t rope_dims)
{
    return (tokens_a_block * rope_dims + 8 * OCT__WRITE_SM90A_LANES) * 4;
}

/* The merge: a team of 1 to 32 lanes holds one row and head, four dims a lane (and again, past 128). */
typedef struct oct__merge_sm90a_params {
    oct__merge_params merge;
    uint32_t team_shift;
    uint32_t is_wide;                  /* parts and results begin at 16-byte addresses, and dim is a multiple of 4 */
} oct__merge_sm90a_params;

#endif
