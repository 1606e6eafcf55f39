/* attn_decode_avx512bf16.c: owns attention of few vectors over 8-bit pages by bf16 dot products; avx512_bf16.h says what they are good for.
 * Stored bytes are decoded to bf16 in registers, once for up to four vectors or for eight, which takes 5 instructions for 64 elements, and a dot product
 * does the work of two FMAs:
 *   scores   four keys x 8 dims in a register against q, which lies as often as there are lanes
 *   values   pairs of keys: 64 dims x 4 vectors or 32 x 8 in registers, weights in pairs too
 *
 * What an instruction costs beside dot products, one a cycle on a Zen 4, in cycles: vpermt2b 0.75, vpermb and other shuffles 0.33, shifts 0.4,
 * interleaving bytes 0.12, ternary logic 0.32, vinserti32x4 from memory 0.19, vinserti64x4 0.37; a broadcast of 32 bits from memory nothing, of 128
 * bits 0.34; loads of 512 bits come one a cycle. So 128 elements for four vectors, 16 cycles of dot products, take at least 21.7 in scores and 20.4 in
 * values, for eight 18.
 *
 * Ladder, e4m3, share of the dot products' peak, one thread, pages from memory (in cache): 8/1 x 256, 32/8 x 128
 *   four vectors at a time                                                            50 (58)    39 (43)
 *   eight; weights broadcast once a block into 16 KiB                                 51 (64)
 *   the next block's rows asked for between dims of a score, not after all of them    61
 *   lines asked for without an inner loop, around which gcc spills a sum              63         42 (51)
 *   all maxima of a block before its weights; rows pointed at eight at a time         64 (69)    44 (52)
 *   rows interleaved by bytes instead of permuted, o put in order at the end; broadcasts where they are used; each pass a function, or gcc spills
 *                                                                                     68 (74)    45 (53)
 *   with four vectors whole rows asked for after a score                                         47
 *   16 keys instead of 8 in a score for four vectors: 0
 *   four vectors: pointers to rows once for 64 dims, which gcc kept in vector registers; scores, softmax and weights [key][vector] (avx512_at)
 *                                                                                                   (56)
 * 32/8 x 128 in cycles a key, 32 of them dot products; 58.6 before: score 22.2 in L1 (25.5 before), values 19.5, softmax 3.3 (4.3), pointing at rows 1.6.
 * Rows from L2 at a stride of 1 KiB take 8 more, rows from memory another 6. Nothing came of: lanes of dims and keys in double words, interleaved by
 * words and double words instead of inserted (the same for four, 12 % slower for one); three vinserti32x4 from memory (8 % slower); the scores of a
 * block before the values of the one before it (0: the parts overlap already); rows into L1 before each step (0); one line of each pair (twice the
 * time: nobody fetches the other).
 *
 * Otherwise as attn_decode_avx512.c. In cache, dim 128, e4m3, GB/s of one Zen 4 core at 3.7 GHz by query heads a KV head:
 *                                          1      2      4      8
 *   f32 (attn_decode_avx512.c)          18.3   14.4    9.8    5.1
 *   bf16, q as two bf16                 23.7   18.5   12.1    6.3
 *   bf16, q that bf16 holds             25.9   20.9   14.8    7.8
 *   i8 by the bf16 table                16.2   13.1    9.3    5.0    left out: f32 is faster, and integers are (attn_decode_avx512vnni.c)
 *
 * Threads: works in the tile's scratch and outputs. */
#include "cpu/avx512_bf16.h"

/* ---- scores -------------------------------------------------------------------------------------------------------------- */

/* One vector's q: for every 16 dims and each of its terms, dims 0-7 and dims 8-15, each four times. In words. */
static void spread_q(uint16_t *to, const float *q, uint32_t dim, uint32_t n_terms)
{
    for (uint32_t d = 0; d < dim; d += 32) {
        __m512i term[2];
        avx512_split_q(q + d, dim - d, &term[0], &term[1]);
        for (uint32_t half = 0; half < 2 && d + 16 * half < dim; half++) {
            for (uint32_t i = 0; i < n_terms; i++, to += 64) {
                const __m512i x = term[i];
                _mm512_store_si512(to, half == 0 ? _mm512_shuffle_i32x4(x, x, 0x00) : _mm512_shuffle_i32x4(x, x, 0xAA));
                _mm512_store_si512(to + 32, half == 0 ? _mm512_shuffle_i32x4(x, x, 0x55) : _mm512_shuffle_i32x4(x, x, 0xFF));
            }
        }
    }
}

AVX512_INLINE void score_dims(__m512 *sum, const uint16_t *q, int64_t q_stride, const uint8_t *const *rows, uint32_t d, const avx512_decoder *decoder,
                              const avx512_kind kind, const uint32_t n_vectors, const uint32_t n_groups, const uint32_t n_terms, const bool is_half)
{
    __m512i x[4][2];
    AVX512_UNROLL for (uint32_t g = 0; g < n_groups; g++)
    {
        avx512_words_of(avx512_load_lanes(rows + 4 * g, d, is_half), decoder, kind, &x[g][0], &x[g][1]);
    }
    AVX512_UNROLL for (uint32_t v = 0; v < n_vectors; v++)
    {
        AVX512_UNROLL for (uint32_t i = 0; i < 2 * n_terms; i++)
        {
            const __m512i y = _mm512_load_si512(q + v * q_stride + (size_t)4 * n_terms * d + 32 * i);
            AVX512_UNROLL for (uint32_t g = 0; g < n_groups; g++)
            {
                __m512 *to = &sum[avx512_column(v, g, n_vectors)];
                *to = avx512_dot(*to, x[g][i % 2], y);
            }
        }
    }
}

/* s, by avx512_at: raw products for n keys, rounded up to the kernel's step; keys past n are zero rows. q: spread, vectors q_stride
 * words apart. next: rows to prefetch. */
typedef void score_fn(float *s, const uint16_t *q, int64_t q_stride, const uint8_t *const *rows, const uint8_t *const *next, uint32_t n, uint32_t dim,
                      const avx512_table *table);

AVX512_INLINE void score(float *s, const uint16_t *q, int64_t q_stride, const uint8_t *const *rows, const uint8_t *const *next, uint32_t n, uint32_t dim,
                         const avx512_table *table, const avx512_kind kind, const uint32_t n_vectors, const uint32_t n_terms)
{
    const uint32_t n_groups = n_vectors <= 2 ? 4 : 2, n_columns = n_vectors == 1 ? 4 : n_vectors == 8 ? 16 : 8, n_keys = 4 * n_groups;
    const uint32_t row_bytes = dim;
    const avx512_decoder decoder = avx512_decoder_of(table);
    for (uint32_t j = 0; j < n; j += n_keys, rows += n_keys, next += n_keys) {
        __m512 sum[16];
        avx512_ahead ahead = { next, 0, next == rows ? 0 : n_keys, 0, row_bytes };
        uint32_t d = 0;
        AVX512_UNROLL for (uint32_t c = 0; c < n_columns; c++)
        {
            sum[c] = _mm512_setzero_ps();
        }
        for (; n_vectors != 8 && d + 64 <= dim; d += 64) { /* pointers to rows come once for 64 dims; with eight it takes longer */
            AVX512_UNROLL for (uint32_t i = 0; i < 4; i++)
            {
                if (n_vectors <= 2) { /* with four, asking between costs more than it brings */
                    avx512_ask(&ahead, n_keys / 4);
                }
                score_dims(sum, q, q_stride, rows, d + 16 * i, &decoder, kind, n_vectors, n_groups, n_terms, false);
            }
        }
        for (; d + 16 <= dim; d += 16) {
            if (n_vectors <= 2 || n_vectors == 8) {
                avx512_ask(&ahead, n_keys / 4);
            }
            score_dims(sum, q, q_stride, rows, d, &decoder, kind, n_vectors, n_groups, n_terms, false);
        }
        if (d < dim) {
            score_dims(sum, q, q_stride, rows, d, &decoder, kind, n_vectors, n_groups, n_terms, true);
        }
        AVX512_UNROLL for (uint32_t c = 0; c < n_columns; c += 4)
        {
            avx512_store_columns(s, j, c, avx512_sum4(sum[c], sum[c + 1], sum[c + 2], sum[c + 3]), n_vectors);
        }
        if (n_vectors <= 2 || n_vectors == 8) {
            avx512_ask_rest(&ahead);
        } else if (next != rows) {
            (void)avx512_prefetch_rows(next, 0, 1, n_keys, row_bytes);
        }
    }
}

/* ---- values -------------------------------------------------------------------------------------------------------------- */

/* o[v][dim] = o[v][dim] * keep[v] + sum over n keys of p[v][key] * row[key][dim]; p: bf16, by avx512_pair_at, 0 past n. Whole chunks of 64 dims of o
 * lie as interleaving two rows leaves them, until avx512_put_in_order: the four dims that begin at 4 i of each 16 together. */
typedef void value_fn(float *o, int64_t o_stride, const float *keep, const uint16_t *p, const uint8_t *const *rows, const uint8_t *const *next,
                      uint32_t n, uint32_t dim, const avx512_table *table);

AVX512_INLINE void value_dims(float *o, int64_t o_stride, const float *keep, const uint16_t *p, const uint8_t *const *rows, const uint8_t *const *next,
                              uint32_t n, uint32_t d, uint32_t dim, const avx512_table *table, const avx512_kind kind, const uint32_t n_vectors,
                              const avx512_part part)
{
    const avx512_decoder decoder = avx512_decoder_of(table);
    const bool is_half = part == AVX512_LOWER || part == AVX512_UPPER;
    const uint32_t n_pieces = is_half ? 2 : 4, n_dims = part == AVX512_REST ? dim - d : 64, row_bytes = dim;
    const uint32_t pass = (is_half ? 2 : 1) * (d / 64) + (part == AVX512_UPPER), n_passes = (is_half ? 2 : 1) * ((dim + 63) / 64);
    __m512 sum[AVX512_GROUP_MOST][4];
    AVX512_UNROLL for (uint32_t v = 0; v < n_vectors; v++)
    {
        AVX512_UNROLL for (uint32_t i = 0; i < n_pieces; i++)
        {
            sum[v][i] = _mm512_setzero_ps();
        }
    }
    avx512_ahead ahead = { next, pass * n / n_passes, next == rows ? 0 : (pass + 1) * n / n_passes, 0, row_bytes }; /* each pass asks for its share of rows */
    for (uint32_t j = 0; j < n; j += 2) {
        __m512i codes[2], x[4];
        const __m512i a = avx512_load_row(rows[j] + d, n_dims, part != AVX512_REST), b = avx512_load_row(rows[j + 1] + d, n_dims, part != AVX512_REST);
        if (part == AVX512_REST) {
            avx512_pair_rows(a, b, &codes[0], &codes[1]);
        } else {
            avx512_interleave(a, b, part, &codes[0], &codes[1]);
        }
        avx512_words_of(codes[0], &decoder, kind, &x[0], &x[1]);
        if (!is_half) {
            avx512_words_of(codes[1], &decoder, kind, &x[2], &x[3]);
        }
        avx512_ask(&ahead, is_half ? 1 : 2);
        AVX512_UNROLL for (uint32_t v = 0; v < n_vectors; v++)
        {
            int32_t weights;
            memcpy(&weights, p + avx512_pair_at(v, j, n_vectors), sizeof(weights));
            AVX512_UNROLL for (uint32_t i = 0; i < n_pieces; i++)
            {
                if (part != AVX512_REST || 16 * i < n_dims) {
                    sum[v][i] = avx512_dot(sum[v][i], x[i], _mm512_set1_epi32(weights));
                }
            }
        }
    }
    AVX512_UNROLL for (uint32_t v = 0; v < n_vectors; v++)
    {
        const __m512 factor = _mm512_set1_ps(keep[v]);
        AVX512_UNROLL for (uint32_t i = 0; i < n_pieces; i++)
        {
            if (part != AVX512_REST || 16 * i < n_dims) {
                float *to = o + v * o_stride + d + 16 * i + (part == AVX512_UPPER ? 32 : 0);
                _mm512_store_ps(to, _mm512_fmadd_ps(_mm512_load_ps(to), factor, sum[v][i]));
            }
        }
    }
}

typedef void pass_fn(float *o, int64_t o_stride, const float *keep, const uint16_t *p, const uint8_t *const *rows, const uint8_t *const *next,
                     uint32_t n, uint32_t d, uint32_t dim, const avx512_table *table);

/* The passes are functions of their own, or gcc 12 runs out of registers for the sums. With 8 vectors 16 sums are half a chunk. */
AVX512_INLINE void value(float *o, int64_t o_stride, const float *keep, const uint16_t *p, const uint8_t *const *rows, const uint8_t *const *next,
                         uint32_t n, uint32_t dim, const avx512_table *table, pass_fn *first, pass_fn *second, pass_fn *rest, const uint32_t n_vectors)
{
    uint32_t d = 0;
    for (; d + 64 <= dim; d += 64) {
        first(o, o_stride, keep, p, rows, next, n, d, dim, table);
        if (second != NULL) {
            second(o, o_stride, keep, p, rows, next, n, d, dim, table);
        }
    }
    for (uint32_t v = 0; v < n_vectors && d < dim; v += 4) {
        rest(o + v * o_stride, o_stride, keep + v, p + v * AVX512_BLOCK, rows, next, n, d, dim, table);
    }
}

/* ---- one function for each kind, number of vectors and of terms ---------------------------------------------------------------- */

#define SCORE_TERMS(kind, n_vectors, n_terms)                                                                                            \
    static void score##n_terms##_##kind##_##n_vectors(float *s, const uint16_t *q, int64_t q_stride, const uint8_t *const *rows,         \
                                                      const uint8_t *const *next, uint32_t n, uint32_t dim, const avx512_table *table)   \
    {                                                                                                                                    \
        score(s, q, q_stride, rows, next, n, dim, table, AVX512_##kind, n_vectors, n_terms);                                             \
    }
#define SCORE(kind, n_vectors) SCORE_TERMS(kind, n_vectors, 1) SCORE_TERMS(kind, n_vectors, 2)
#define PASS(kind, n_vectors, part)                                                                                                      \
    static __attribute__((noinline)) void pass_##kind##_##n_vectors##_##part(                                                            \
        float *o, int64_t o_stride, const float *keep, const uint16_t *p, const uint8_t *const *rows, const uint8_t *const *next,        \
        uint32_t n, uint32_t d, uint32_t dim, const avx512_table *table)                                                                 \
    {                                                                                                                                    \
        value_dims(o, o_stride, keep, p, rows, next, n, d, dim, table, AVX512_##kind, n_vectors, AVX512_##part);                                  \
    }
#define VALUE_BY(kind, n_vectors, first, second, rest)                                                                                   \
    static void value_##kind##_##n_vectors(float *o, int64_t o_stride, const float *keep, const uint16_t *p, const uint8_t *const *rows, \
                                           const uint8_t *const *next, uint32_t n, uint32_t dim, const avx512_table *table)              \
    {                                                                                                                                    \
        value(o, o_stride, keep, p, rows, next, n, dim, table, first, second, rest, n_vectors);                                          \
    }
#define VALUE(kind, n_vectors)                                                                                                           \
    PASS(kind, n_vectors, WHOLE)                                                                                                         \
    PASS(kind, n_vectors, REST)                                                                                                          \
    VALUE_BY(kind, n_vectors, pass_##kind##_##n_vectors##_WHOLE, NULL, pass_##kind##_##n_vectors##_REST)
#define VALUES(kind)                                                                                                                     \
    AVX512_FOUR(VALUE, kind)                                                                                                             \
    PASS(kind, 8, LOWER)                                                                                                                 \
    PASS(kind, 8, UPPER)                                                                                                                 \
    VALUE_BY(kind, 8, pass_##kind##_8_LOWER, pass_##kind##_8_UPPER, pass_##kind##_4_REST)
AVX512_FOUR(SCORE, BYTE)
AVX512_FOUR(SCORE, BYTE_NUZ)
SCORE(BYTE, 8)
SCORE(BYTE_NUZ, 8)
VALUES(BYTE)
VALUES(BYTE_NUZ)
VALUES(I8)

#define ROW(name, kind) [AVX512_##kind] = { name##_##kind##_1, name##_##kind##_2, name##_##kind##_3, name##_##kind##_4, name##_##kind##_8 }
static score_fn *const scores[2][AVX512_KINDS][5] = { { ROW(score1, BYTE), ROW(score1, BYTE_NUZ) }, { ROW(score2, BYTE), ROW(score2, BYTE_NUZ) } };
static value_fn *const values[AVX512_KINDS][5] = { ROW(value, BYTE), ROW(value, BYTE_NUZ), ROW(value, I8) };

static uint32_t function_of(uint32_t n_vectors) { return n_vectors == AVX512_GROUP_MOST ? AVX512_GROUP : n_vectors - 1; }

/* ---- the parts ----------------------------------------------------------------------------------------------------------- */

static size_t q_bytes(const oct_kv_spec *spec)
{
    return (size_t)(spec->dim_k + 15) / 16 * 256; /* of two terms */
}

static void prepare(const oct_kv_spec *spec, void *q, const float *from, uint32_t n_most)
{
    spread_q(q, from, spec->dim_k, n_most);
}

static void score_any(const oct_kv_spec *spec, float *s, const void *q, const uint8_t *const *rows, const uint8_t *const *next, uint32_t n,
                      uint32_t n_vectors, uint32_t n_terms)
{
    scores[n_terms - 1][avx512_kind_of(spec->k.dtype)][function_of(n_vectors)](s, q, (int64_t)(q_bytes(spec) / sizeof(uint16_t)), rows, next, n, spec->dim_k,
                                                                  avx512_table_of(spec->k.dtype));
}

static void value_any(const oct_kv_spec *spec, float *o, int64_t o_stride, const float *keep, float *p, const uint8_t *const *rows,
                      const uint8_t *const *next, uint32_t n, uint32_t n_vectors)
{
    _Alignas(64) uint16_t rounded[AVX512_GROUP_MOST * AVX512_BLOCK];
    const uint32_t n_lanes = n_vectors <= 2 ? n_vectors : (n_vectors + 3) / 4 * 4;
    const __m512i pairs = _mm512_load_si512(avx512_pairs_of_four);
    for (uint32_t j = 0; j < n_lanes * AVX512_BLOCK; j += 32) {
        const __m512i words = avx512_to_bf16(_mm512_load_ps(p + j), _mm512_load_ps(p + j + 16));
        _mm512_store_si512(rounded + j, n_vectors <= 2 ? words : _mm512_permutexvar_epi16(pairs, words));
    }
    values[avx512_kind_of(spec->v.dtype)][function_of(n_vectors)](o, o_stride, keep, rounded, rows, next, n, spec->dim_v, avx512_table_of(spec->v.dtype));
}

const avx512_few_scores oct__avx512_few_scores_bf16 = { OCT__AVX512_FEW_BF16, AVX512_GROUP_MOST, q_bytes, prepare, score_any };
const avx512_few_values oct__avx512_few_values_bf16 = { value_any, avx512_put_in_order };

/* One or two; none for a q that comes near the subnormals or the largest number. */
avx512_terms oct__avx512_terms_bf16(const oct__attn_tile *tile)
{
    const __m512i odd_bits = _mm512_set1_epi32(0xFFFF), abs = _mm512_set1_epi32(INT32_MAX);
    __m512i rest = _mm512_setzero_si512();
    for (uint32_t i = 0; i < tile->n_rows * tile->n_heads; i++) {
        __m512i largest = _mm512_setzero_si512();
        for (uint32_t d = 0; d < tile->kv->spec.dim_k; d += 16) {
            const __m512i x = _mm512_load_si512(tile->q + i * tile->q_stride + d);
            rest = _mm512_or_si512(rest, _mm512_and_si512(x, odd_bits));
            largest = _mm512_max_epi32(largest, _mm512_and_si512(x, abs));
        }
        const int32_t top = _mm512_reduce_max_epi32(largest);
        if (top != 0 && (top < (127 - 60) << 23 || top > (127 + 60) << 23)) {
            return (avx512_terms){ 0, 0, 0 };
        }
    }
    const uint32_t n = _mm512_test_epi32_mask(rest, rest) == 0 ? 1 : 2;
    return (avx512_terms){ n, n, INFINITY };
}

/* ---- the row ------------------------------------------------------------------------------------------------------------- */

size_t oct__attn_decode_scratch__avx512bf16(const oct_kv_spec *spec, uint32_t n_vectors)
{
    return oct__avx512_scratch(spec, n_vectors, &oct__avx512_few_scores_bf16, &oct__avx512_many_scores_bf16, &oct__avx512_many_values_bf16);
}

void oct__attn_decode__avx512bf16(const oct__attn_tile *tile)
{
    oct__avx512_run(tile, &oct__avx512_few_scores_bf16, &oct__avx512_few_values_bf16, &oct__avx512_many_scores_bf16, &oct__avx512_many_values_bf16,
                    oct__avx512_terms_bf16(tile));
}
