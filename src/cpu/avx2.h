/* avx2.h: the AVX2 rows of variants.def and what their files share by name. Included by files compiled with AVX2, FMA and F16C only;
 * nothing here runs before the gates have said yes. plan/variant.h is the contract of the rows.
 *
 * Threads: every function works in its tile's own scratch and outputs. */
#ifndef OCT_CPU_AVX2_H
#define OCT_CPU_AVX2_H

#include "plan/variant.h"

oct__kv_write_fn oct__kv_write__avx2;
oct__attn_merge_fn oct__attn_merge__avx2;
oct__attn_fn oct__attn_decode__avx2;
oct__attn_scratch_fn oct__attn_decode_scratch__avx2;
oct__attn_fn oct__attn_decode__avx2word;
oct__attn_scratch_fn oct__attn_decode_scratch__avx2word;
oct__attn_fn oct__attn_extend__avx2;
oct__attn_scratch_fn oct__attn_extend_scratch__avx2;
oct__attn_fn oct__attn_extend__avx2word;
oct__attn_scratch_fn oct__attn_extend_scratch__avx2word;

/* The two ways through a tile, each complete for any tile it is given; the rows take the one that fits the number of vectors.
 * few: fastest up to OCT__AVX2_FEW vectors; elements are decoded in registers, dims lie in the lanes. attn_decode_avx2.c.
 * many: any number; keys are decoded once into scratch, vectors (scores) and dims (values) lie in the lanes. attn_extend_avx2.c.
 * Each again for avx2word, where i8 is multiplied in integers. */
#define OCT__AVX2_FEW 24u
oct__attn_fn oct__attn_few__avx2, oct__attn_few__avx2word, oct__attn_many__avx2, oct__attn_many__avx2word;
oct__attn_scratch_fn oct__attn_few_scratch__avx2, oct__attn_few_scratch__avx2word, oct__attn_many_scratch__avx2, oct__attn_many_scratch__avx2word;

#endif
