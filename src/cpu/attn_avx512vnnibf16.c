/* attn_avx512vnnibf16.c: owns the decode and extend rows for i8 K and 8-bit float V: integer scores, bf16 values. Nothing but those parts.
 *
 * Threads: works in the tile's scratch and outputs. */
#include "cpu/avx512.h"

size_t oct__attn_decode_scratch__avx512vnnibf16(const oct_kv_spec *spec, uint32_t n_vectors)
{
    return oct__avx512_scratch(spec, n_vectors, &oct__avx512_few_scores_word, &oct__avx512_many_scores_word, &oct__avx512_many_values_bf16);
}

void oct__attn_decode__avx512vnnibf16(const oct__attn_tile *tile)
{
    oct__avx512_run(tile, &oct__avx512_few_scores_word, &oct__avx512_few_values_bf16, &oct__avx512_many_scores_word, &oct__avx512_many_values_bf16,
                    oct__avx512_terms_word(tile));
}

size_t oct__attn_extend_scratch__avx512vnnibf16(const oct_kv_spec *spec, uint32_t n_vectors)
{
    return oct__attn_decode_scratch__avx512vnnibf16(spec, n_vectors);
}

void oct__attn_extend__avx512vnnibf16(const oct__attn_tile *tile)
{
    oct__attn_decode__avx512vnnibf16(tile);
}
