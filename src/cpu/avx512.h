/* avx512.h: the AVX-512 rows of variants.def, and the parts they are put together from: a way to make scores and a way to sum values, for few
 * vectors and for many. Included by files compiled with AVX-512; nothing here runs before the gates have said yes. plan/variant.h is the
 * contract of the rows.
 *
 * Threads: every function works in its tile's own scratch and outputs; the parts are constant. */
#ifndef OCT_CPU_AVX512_H
#define OCT_CPU_AVX512_H

#include <stdbool.h>

#include "plan/variant.h"

oct__kv_write_fn oct__kv_write__avx512;
oct__attn_merge_fn oct__attn_merge__avx512;
oct__attn_fn oct__attn_decode__avx512;
oct__attn_scratch_fn oct__attn_decode_scratch__avx512;
oct__attn_fn oct__attn_extend__avx512;
oct__attn_scratch_fn oct__attn_extend_scratch__avx512;
oct__attn_fn oct__attn_decode__avx512bf16;
oct__attn_scratch_fn oct__attn_decode_scratch__avx512bf16;
oct__attn_fn oct__attn_extend__avx512bf16;
oct__attn_scratch_fn oct__attn_extend_scratch__avx512bf16;
oct__attn_fn oct__attn_decode__avx512vnni;
oct__attn_scratch_fn oct__attn_decode_scratch__avx512vnni;
oct__attn_fn oct__attn_extend__avx512vnni;
oct__attn_scratch_fn oct__attn_extend_scratch__avx512vnni;
oct__attn_fn oct__attn_decode__avx512vnnibf16;
oct__attn_scratch_fn oct__attn_decode_scratch__avx512vnnibf16;
oct__attn_fn oct__attn_extend__avx512vnnibf16;
oct__attn_scratch_fn oct__attn_extend_scratch__avx512vnnibf16;
oct__attn_fn oct__attn_decode__amxbf16;
oct__attn_scratch_fn oct__attn_decode_scratch__amxbf16;
oct__attn_fn oct__attn_extend__amxbf16;
oct__attn_scratch_fn oct__attn_extend_scratch__amxbf16;

/* Tiles of few vectors go the way of few: stored bytes are decoded in registers for up to AVX512_GROUP vectors at a time. The others go the way of
 * many: keys are decoded into scratch once for all vectors, which come in lanes of 16. How many are few depends on what they multiply with: the
 * dearer a multiply-add beside a decoded byte, the more vectors it takes until lanes that stay empty cost less than decoding again. Measured on a
 * Zen 4, dims 64 to 256, 1,024 keys, vectors up to which few is faster: f32 from 28 (bf16 K and V, dim 128) to 40; words 24; bf16 12 to 14. At 9
 * vectors many takes 1.5 times the time in f32 and words, 1.1 times in bf16. */
#define OCT__AVX512_FEW_F32 28u
#define OCT__AVX512_FEW_WORD 24u
#define OCT__AVX512_FEW_BF16 12u
#define AVX512_GROUP 4u
#define AVX512_GROUP_MOST 8u /* some parts take these at once as well */
#define AVX512_BLOCK 64u /* keys taken at a time; blocks end at multiples of it from key 0 */

/* How many terms make up q in score products: n; or n_most in a block where a dynamic K scale exceeds k_scale_max, or where some row doesn't see
 * some key, whose scale may not change its bits. n 0: only f32 will do. */
typedef struct avx512_terms {
    uint32_t n, n_most;
    float k_scale_max;
} avx512_terms;

/* ---- few ----------------------------------------------------------------------------------------------------------------- */

/* Score products of up to AVX512_GROUP vectors, or of n_group, with the keys of a block. */
typedef struct avx512_few_scores {
    uint32_t n_few;   /* tiles of at most so many vectors are few */
    uint32_t n_group; /* AVX512_GROUP or AVX512_GROUP_MOST, which all values take */
    size_t (*q_bytes)(const oct_kv_spec *spec); /* of one prepared vector, a multiple of 64 */
    void (*prepare)(const oct_kv_spec *spec, void *q, const float *from, uint32_t n_most);
    /* s, where avx512_at says, = products of n keys, rounded up to at most 16 more. next: rows to prefetch. */
    void (*score)(const oct_kv_spec *spec, float *s, const void *q, const uint8_t *const *rows, const uint8_t *const *next, uint32_t n,
                  uint32_t n_vectors, uint32_t n_terms);
} avx512_few_scores;

/* o[v][dim] = o * keep[v] + sum over n keys of p[v][key] * row[key][dim]; p: where avx512_at says, 0 past n, used up. */
typedef struct avx512_few_values {
    void (*sum)(const oct_kv_spec *spec, float *o, int64_t o_stride, const float *keep, float *p, const uint8_t *const *rows,
                const uint8_t *const *next, uint32_t n, uint32_t n_vectors);
    void (*put_in_order)(float *o, uint32_t dim); /* dims of o that sum has left in another order, once for all; or NULL */
} avx512_few_values;

/* ---- many ---------------------------------------------------------------------------------------------------------------- */

struct avx512_many; /* avx512_many.h */

/* Score products of all vectors with the keys of a block. */
typedef struct avx512_many_scores {
    size_t (*q_bytes)(const oct_kv_spec *spec, uint32_t n_lanes);
    size_t (*k_bytes)(const oct_kv_spec *spec); /* of a decoded block */
    void (*prepare)(const oct__attn_tile *tile, struct avx512_many *x, uint32_t n_most);
    void (*decode)(const oct_kv_spec *spec, struct avx512_many *x, const uint8_t *const *rows, const uint8_t *const *next, uint32_t n);
    /* s of lanes [lane, lane + 16 n_registers) and keys [from, to), rounded outwards to multiples of `keys`. */
    void (*score)(const oct_kv_spec *spec, struct avx512_many *x, uint32_t lane, uint32_t n_registers, uint32_t from, uint32_t to,
                  uint32_t n_terms);
    uint32_t span; /* most registers in a call */
    uint32_t keys; /* decode is asked for a multiple of it, zero rows behind the block's */
} avx512_many_scores;

typedef struct avx512_many_values {
    size_t (*v_bytes)(const oct_kv_spec *spec);                     /* of a decoded block */
    size_t (*p_bytes)(const oct_kv_spec *spec, uint32_t n_lanes);   /* of weights in a form of its own, or 0 */
    void (*decode)(const oct_kv_spec *spec, struct avx512_many *x, const uint8_t *const *rows, const uint8_t *const *next, uint32_t n);
    /* Brings the weights of lanes [lane, lane + 16) and n keys to its own form; or NULL. */
    void (*weigh)(struct avx512_many *x, uint32_t lane, uint32_t n);
    /* Whether a finite stored row of V must not go into the product, and is added in f32 instead; or NULL. */
    bool (*is_odd)(const oct_kv_spec *spec, const uint8_t *row);
    /* o of all vectors = o * keep + what the block adds. */
    void (*sum)(const oct__attn_tile *tile, const struct avx512_many *x);
    uint32_t keys; /* decode is asked for a multiple of it, zero rows behind the block's */
} avx512_many_values;

/* ---- the parts, and what runs them --------------------------------------------------------------------------------------- */

/* f32 takes every format. bf16: K in 8-bit floats, V in those and i8; terms: of a bf16 each. word: i8, sums in int32; terms: q in about 16 bits,
 * or in 24. */
extern const avx512_few_scores oct__avx512_few_scores_f32, oct__avx512_few_scores_bf16, oct__avx512_few_scores_word;
extern const avx512_few_values oct__avx512_few_values_f32, oct__avx512_few_values_bf16, oct__avx512_few_values_word;
extern const avx512_many_scores oct__avx512_many_scores_f32, oct__avx512_many_scores_bf16, oct__avx512_many_scores_word;
extern const avx512_many_values oct__avx512_many_values_f32, oct__avx512_many_values_bf16, oct__avx512_many_values_word;

/* What bf16 and word scores need for the tile's q. */
avx512_terms oct__avx512_terms_bf16(const oct__attn_tile *tile);
avx512_terms oct__avx512_terms_word(const oct__attn_tile *tile);

/* attn_decode_avx512.c and attn_extend_avx512.c. */
size_t oct__avx512_few_scratch(const oct_kv_spec *spec, uint32_t n_vectors, const avx512_few_scores *scores);
void oct__avx512_few_run(const oct__attn_tile *tile, const avx512_few_scores *scores, const avx512_few_values *values, avx512_terms terms);
size_t oct__avx512_many_scratch(const oct_kv_spec *spec, uint32_t n_vectors, const avx512_many_scores *scores, const avx512_many_values *values);
void oct__avx512_many_run(const oct__attn_tile *tile, const avx512_many_scores *scores, const avx512_many_values *values, avx512_terms terms);

/* A row of these parts: few or many by the number of vectors; the f32 row where terms.n is 0. The scratch serves all of them. */
size_t oct__avx512_scratch(const oct_kv_spec *spec, uint32_t n_vectors, const avx512_few_scores *few_scores, const avx512_many_scores *many_scores,
                           const avx512_many_values *many_values);
void oct__avx512_run(const oct__attn_tile *tile, const avx512_few_scores *few_scores, const avx512_few_values *few_values,
                     const avx512_many_scores *many_scores, const avx512_many_values *many_values, avx512_terms terms);

#endif
