/* avx512_few.h: owns how score products of few vectors hold four keys in the four lanes of a register, whatever they multiply with. */
#ifndef OCT_CPU_AVX512_FEW_H
#define OCT_CPU_AVX512_FEW_H

#include "cpu/avx512_softmax.h"

/* ---- score products ---------------------------------------------------------------------------------------------------------- */

/* Sixteen bytes of each of four rows, at `at`; or eight, zeros above. */
AVX512_INLINE __m512i avx512_load_lanes(const uint8_t *const *rows, size_t at, const bool is_half)
{
    __m128i x[4];
    AVX512_UNROLL for (uint32_t i = 0; i < 4; i++)
    {
        const __m128i *from = (const __m128i *)(const void *)(rows[i] + at);
        x[i] = is_half ? _mm_loadl_epi64(from) : _mm_loadu_si128(from);
    }
    const __m256i low = _mm256_inserti128_si256(_mm256_castsi128_si256(x[0]), x[1], 1), high = _mm256_inserti128_si256(_mm256_castsi128_si256(x[2]), x[3], 1);
    return _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
}

/* n_groups groups of four keys x n_vectors make `columns` of sums, four of which leave together; 8 vectors are twice 4, of two groups. */
AVX512_INLINE uint32_t avx512_column(uint32_t v, uint32_t g, const uint32_t n_vectors)
{
    return n_vectors == 8 ? v / 4 * 8 + 4 * g + v % 4 : n_vectors == 1 ? g : n_vectors == 2 ? g / 2 * 4 + 2 * v + g % 2 : 4 * g + v;
}

/* Four columns, y[key][column] as avx512_sum4 leaves them, to s, from column c of the step on, whose first key is j. */
AVX512_INLINE void avx512_store_columns(float *s, uint32_t j, uint32_t c, __m512 y, const uint32_t n_vectors)
{
    switch (n_vectors) {
    case 1:
        _mm512_store_ps(s + j, avx512_turn4(y));
        break;
    case 2:
        y = avx512_turn4(y);
        _mm256_store_ps(s + j + 2 * c, _mm512_castps512_ps256(y));
        _mm256_store_ps(s + AVX512_BLOCK + j + 2 * c, _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(y), 1)));
        break;
    default:
        _mm512_store_ps(s + c / 8 * 4 * AVX512_BLOCK + 4 * (j + c % 8), y);
    }
}

/* The next block's rows are asked for row by row, in time with the work on this one: asks for the rows from `row` on for which
 * row * n_parts < at, and returns the first of the others.
 * A row's lines must be asked for together, for they lie in one row of the memory as well; but not many rows at once, or the first level's miss
 * buffers are full and loads wait behind them. One thread, 1 vector of 128 dims, e4m3 in NHD pages of 8 heads, cold: a step's rows of K at
 * once and V line by line 11.9 GB/s, both line by line 15.2, both row by row 22. */
AVX512_INLINE uint32_t avx512_prefetch_rows(const uint8_t *const *next, uint32_t row, uint32_t n_parts, uint32_t at, uint32_t row_bytes)
{
    for (; row * n_parts < at; row++) {
        avx512_prefetch(next[row], row_bytes);
    }
    return row;
}

/* The same line by line, without a loop, around which gcc 12 moves sums out of registers. */
typedef struct avx512_ahead {
    const uint8_t *const *next;
    uint32_t row, n, at, row_bytes;
} avx512_ahead;

AVX512_INLINE void avx512_ask(avx512_ahead *a, const uint32_t n_lines)
{
    AVX512_UNROLL for (uint32_t i = 0; i < n_lines; i++)
    {
        if (a->row < a->n) {
            _mm_prefetch((const char *)(a->next[a->row] + a->at), _MM_HINT_T1);
            a->at += 64;
            a->row += a->at >= a->row_bytes;
            a->at = a->at >= a->row_bytes ? 0 : a->at;
        }
    }
}

/* What is left. */
AVX512_INLINE void avx512_ask_rest(avx512_ahead *a)
{
    while (a->row < a->n) {
        avx512_ask(a, 1);
    }
}

/* Defines, for vectors 1 to 4, name_kind_1 .. name_kind_4 as calls of an always-inlined `name` with constants behind the arguments. */
#define AVX512_FOUR(X, kind) X(kind, 1) X(kind, 2) X(kind, 3) X(kind, 4)
#define AVX512_FOUR_NAMES(name, kind) { name##_##kind##_1, name##_##kind##_2, name##_##kind##_3, name##_##kind##_4 }

#endif
