/* ways.h: owns the two ways through a tile as functions of their own, for each part of the AVX-512 rows: the rows choose by the number of
 * vectors, tests take either for any number.
 *
 * Threads: pure. */
#ifndef TEST_CPU_AVX512_WAYS_H
#define TEST_CPU_AVX512_WAYS_H

#include <math.h>

#include "cpu/avx512.h"

/* few_<name> and many_<name> with their scratch; terms_of: what a tile's q asks for. */
#define WAYS(name, scores, values, terms_of)                                                                                             \
    static inline void few_##name(const oct__attn_tile *tile)                                                                          \
    {                                                                                                                                  \
        oct__avx512_few_run(tile, &oct__avx512_few_scores_##scores, &oct__avx512_few_values_##values, terms_of(tile));                   \
    }                                                                                                                                  \
    static inline size_t few_scratch_##name(const oct_kv_spec *spec, uint32_t n_vectors)                                               \
    {                                                                                                                                  \
        return oct__avx512_few_scratch(spec, n_vectors, &oct__avx512_few_scores_##scores);                                             \
    }                                                                                                                                  \
    static inline void many_##name(const oct__attn_tile *tile)                                                                         \
    {                                                                                                                                  \
        oct__avx512_many_run(tile, &oct__avx512_many_scores_##scores, &oct__avx512_many_values_##values, terms_of(tile));                \
    }                                                                                                                                  \
    static inline size_t many_scratch_##name(const oct_kv_spec *spec, uint32_t n_vectors)                                              \
    {                                                                                                                                  \
        return oct__avx512_many_scratch(spec, n_vectors, &oct__avx512_many_scores_##scores, &oct__avx512_many_values_##values);        \
    }

static inline avx512_terms terms_f32(const oct__attn_tile *tile)
{
    (void)tile;
    return (avx512_terms){ 1, 1, INFINITY };
}

#endif
