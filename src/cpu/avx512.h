/* avx512.h: the AVX-512 rows of variants.def and what their files share by name. Included by files compiled with AVX-512 F, BW, VL and VBMI
 * only; nothing here runs before the gates have said yes. plan/variant.h is the contract of the rows.
 *
 * Threads: every function works in its tile's own scratch and outputs. */
#ifndef OCT_CPU_AVX512_H
#define OCT_CPU_AVX512_H

#include "plan/variant.h"

oct__kv_write_fn oct__kv_write__avx512;
oct__attn_fn oct__attn_decode__avx512;
oct__attn_scratch_fn oct__attn_decode_scratch__avx512;
oct__attn_fn oct__attn_extend__avx512;
oct__attn_scratch_fn oct__attn_extend_scratch__avx512;

/* The two ways through a tile, each complete for any tile it is given; both rows take the one that fits the number of vectors.
 * few: stored bytes are decoded in registers for four vectors at a time, dims lie in the lanes. attn_decode_avx512.c.
 * many: keys are decoded once into scratch, vectors (scores) and dims (values) lie in the lanes. attn_extend_avx512.c. */
#define OCT__AVX512_FEW 8u
oct__attn_fn oct__attn_few__avx512, oct__attn_many__avx512;
oct__attn_scratch_fn oct__attn_few_scratch__avx512, oct__attn_many_scratch__avx512;

#endif
