/* amount.h: owns how much there is to do: counts of what oct__cost's fields are multiplied by, and of bytes.
 *
 * Threads: pure functions. */
#ifndef OCT_PLAN_AMOUNT_H
#define OCT_PLAN_AMOUNT_H

#include "plan/variant.h"

typedef struct oct__amount_way {
    double macs, again, exps, blocks, converts, staged /* 8-bit floats of the keys, once */;
    double converts_i8, converts_16bit, converts_f32;        /* of the converts, those of elements that are no 8-bit floats */
    /* Multiply-adds of scores for lanes that stay empty where a kernel has vectors in lanes of 16: what rounding their number up to 16 adds. */
    double pads;
    double values;    /* multiply-adds with a V that isn't i8 */
} oct__amount_way;

typedef struct oct__amount {
    double items, vectors /* elements of q and o */, keys, pages, bytes;
    double edges;                                            /* V elements of blocks that not all of many see */
    double scales, lanes;                                    /* pages with scales of tokens, of K and of V; elements of q in lanes of many */
    oct__amount_way many, few;
} oct__amount;

/* Whole numbers that amounts of attention are linear in, so that a batch of 70,000 sequences costs integer sums only. Of one KV head. */
typedef struct oct__tally_way {
    int64_t scores, seen /* of them, those that count: products with V */, exps, keys, loads /* keys brought into registers, each time */, blocks, pads;
} oct__tally_way;
typedef struct oct__tally {
    int64_t tiles, vectors, keys, pages, edges, lanes;
    oct__tally_way many, few;
} oct__tally;

/* Adds a tile: n_rows rows x n_heads query heads over the keys [key0, key1), row 0 at pos0. */
void oct__tally_tile(oct__tally *tally, const oct_attn_spec *spec, const oct__cost *cost, uint32_t n_rows, uint32_t n_heads, int64_t key0, int64_t key1,
                     int64_t pos0);

/* What a tally comes to on n_heads KV heads. */
oct__amount oct__amount_of_tally(const oct_attn_spec *spec, const oct__tally *tally, double n_heads);

/* A write of n_tokens, and a merge. */
oct__amount oct__amount_of_write(const oct_kv_spec *kv, uint32_t src_dtype, int64_t n_tokens);
oct__amount oct__amount_of_merge(int64_t rows, uint32_t heads, uint32_t dim, uint32_t n_parts);

#endif
