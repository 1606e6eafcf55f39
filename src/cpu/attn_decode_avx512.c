/* attn_decode_avx512.c: owns attention of few vectors (decode: the query heads of one KV head): stored bytes are decoded in registers, once
 * for four vectors, and never stored as f32.
 *
 * A block of 64 keys at a time, four vectors after four vectors while the block's bytes are in L1:
 *   scores   dims in the lanes; 16 sums of keys x vectors side by side, added over the lanes all at once by a tree of 45 instructions
 *   softmax  keys in the lanes, or keys x four vectors, in powers of two
 *   values   64 dims x 4 vectors in registers, running over the block's keys; o takes a block's sum at once, so that its rounding error
 *            grows with the number of blocks and not of keys
 * Decoding 64 elements takes 10 instructions outside the FMA pipes or beside them, so with four vectors the FMAs hide it.
 * Keys that only some rows see (the edges of causal and window, a token mask) are taken row by row, and then only visible keys are
 * touched at all.
 *
 * Threads: works in the tile's scratch and outputs. */
#include "cpu/avx512_few.h"

#define COMMON_KEYS 16 /* keys a row of a tile from which on its rows see mostly the same */

/* ---- scores -------------------------------------------------------------------------------------------------------------- */

/* Where a score product has its keys. quarters: 4 keys x 4 dims in a register, since the words of a table lookup come in 16-byte lanes;
 * halves: 2 keys x 8 dims, for what is converted from the lower half of a register. */
AVX512_INLINE bool in_quarters(avx512_kind kind) { return avx512_is_byte_float(kind) || kind == AVX512_BF16; }

/* q as score products want it: each group of dims that goes into a lane, in the order in which words leave their lanes, as often as there
 * are lanes, because Zen 4 spends a shuffle on a broadcast of 128 bits from memory. [dim / 16][4 or 2][16]; dims past the last are 0. */
static void spread_q(float *to, const float *q, uint32_t dim, avx512_kind kind)
{
    const __m512i order = _mm512_setr_epi32(0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15);
    for (uint32_t d = 0; d < dim; d += 16) {
        const __m512 x = _mm512_load_ps(q + d);
        if (in_quarters(kind)) {
            const __m512 y = _mm512_permutexvar_ps(order, x);
            _mm512_store_ps(to, _mm512_shuffle_f32x4(y, y, 0x00));
            _mm512_store_ps(to + 16, _mm512_shuffle_f32x4(y, y, 0x55));
            _mm512_store_ps(to + 32, _mm512_shuffle_f32x4(y, y, 0xAA));
            _mm512_store_ps(to + 48, _mm512_shuffle_f32x4(y, y, 0xFF));
            to += 64;
        } else {
            _mm512_store_ps(to, _mm512_shuffle_f32x4(x, x, 0x44));
            _mm512_store_ps(to + 16, _mm512_shuffle_f32x4(x, x, 0xEE));
            to += 32;
        }
    }
}

/* 16 dims of four keys in f32: x[0..3] in quarters, or x[0..1] of keys 0 and 1 and x[2..3] of keys 2 and 3. is_half: 8 dims, the rest 0. */
AVX512_INLINE void load_keys(__m512 *x, const uint8_t *const *rows, uint32_t d, const avx512_decoder *decoder, const avx512_kind kind, const bool is_half)
{
    __m512i words[2];
    switch (kind) {
    case AVX512_F32:
        AVX512_UNROLL for (uint32_t i = 0; i < 4; i++)
        {
            const float *a = (const float *)(const void *)rows[i / 2 * 2], *b = (const float *)(const void *)rows[i / 2 * 2 + 1];
            const uint32_t at = d + i % 2 * 8;
            x[i] = is_half && i % 2 ? _mm512_setzero_ps()
                                    : _mm512_castpd_ps(_mm512_insertf64x4(_mm512_castpd256_pd512(_mm256_castps_pd(_mm256_loadu_ps(a + at))),
                                                                          _mm256_castps_pd(_mm256_loadu_ps(b + at)), 1));
        }
        return;
    case AVX512_F16:
        AVX512_UNROLL for (uint32_t i = 0; i < 4; i++)
        {
            const __m128i *a = (const __m128i *)(const void *)(rows[i / 2 * 2] + 2 * (d + i % 2 * 8));
            const __m128i *b = (const __m128i *)(const void *)(rows[i / 2 * 2 + 1] + 2 * (d + i % 2 * 8));
            x[i] = is_half && i % 2 ? _mm512_setzero_ps()
                                    : _mm512_cvtph_ps(_mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128(a)), _mm_loadu_si128(b), 1));
        }
        return;
    case AVX512_I8:
        AVX512_UNROLL for (uint32_t i = 0; i < 4; i++)
        {
            const uint32_t at = d + i % 2 * 8;
            const __m128i *a = (const __m128i *)(const void *)(rows[i / 2 * 2] + at), *b = (const __m128i *)(const void *)(rows[i / 2 * 2 + 1] + at);
            x[i] = is_half && i % 2 ? _mm512_setzero_ps()
                                    : _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_unpacklo_epi64(_mm_loadl_epi64(a), _mm_loadl_epi64(b))));
        }
        return;
    case AVX512_BF16:
        words[0] = avx512_load_lanes(rows, 2 * (size_t)d, false);
        words[1] = is_half ? _mm512_setzero_si512() : avx512_load_lanes(rows, 2 * (size_t)d + 16, false);
        break;
    default: {
        __m512i low, high;
        avx512_lookup(avx512_load_lanes(rows, d, is_half), decoder, kind, &low, &high);
        words[0] = _mm512_unpacklo_epi8(low, high);
        words[1] = _mm512_unpackhi_epi8(low, high);
    }
    }
    AVX512_UNROLL for (uint32_t i = 0; i < 4; i++)
    {
        x[i] = _mm512_castsi512_ps(i % 2 == 0 ? _mm512_slli_epi32(words[i / 2], 16) : _mm512_and_si512(words[i / 2], _mm512_set1_epi32((int32_t)0xFFFF0000)));
    }
}

/* s, by avx512_at: raw products for n keys, rounded up to the kernel's step; keys past n are zero rows. q: arranged, vectors q_stride
 * apart. next: rows to prefetch. */
typedef void score_fn(float *s, const float *q, int64_t q_stride, const uint8_t *const *rows, const uint8_t *const *next, uint32_t n, uint32_t dim,
                      const avx512_table *table);

AVX512_INLINE void score_dims(__m512 (*sum)[2], const float *q, int64_t q_stride, const uint8_t *const *rows, uint32_t d, const avx512_decoder *decoder,
                              const avx512_kind kind, const uint32_t n_vectors, const uint32_t n_groups, const bool is_half)
{
    __m512 x[4][4];
    AVX512_UNROLL for (uint32_t g = 0; g < n_groups; g++)
    {
        load_keys(x[g], rows + 4 * g, d, decoder, kind, is_half);
    }
    AVX512_UNROLL for (uint32_t v = 0; v < n_vectors; v++)
    {
        AVX512_UNROLL for (uint32_t i = 0; i < 4; i++)
        {
            const float *from = q + v * q_stride;
            if (in_quarters(kind)) {
                const __m512 y = _mm512_load_ps(from + 4 * d + 16 * i);
                AVX512_UNROLL for (uint32_t g = 0; g < n_groups; g++)
                {
                    __m512 *to = sum[avx512_column(v, g, n_vectors)];
                    to[0] = _mm512_fmadd_ps(x[g][i], y, to[0]);
                }
            } else {
                const __m512 y = _mm512_load_ps(from + 2 * d + i % 2 * 16);
                AVX512_UNROLL for (uint32_t g = 0; g < n_groups; g++)
                {
                    __m512 *to = &sum[avx512_column(v, g, n_vectors)][i / 2];
                    *to = _mm512_fmadd_ps(x[g][i], y, *to);
                }
            }
        }
    }
}

AVX512_INLINE void score(float *s, const float *q, int64_t q_stride, const uint8_t *const *rows, const uint8_t *const *next, uint32_t n, uint32_t dim,
                         const avx512_table *table, const avx512_kind kind, const uint32_t n_vectors)
{
    const uint32_t n_groups = n_vectors <= 2 ? 4 : 2, n_columns = n_vectors == 1 ? 4 : 8, n_keys = 4 * n_groups;
    const uint32_t row_bytes = dim * avx512_size(kind);
    const avx512_decoder decoder = avx512_decoder_of(table);
    for (uint32_t j = 0; j < n; j += n_keys, rows += n_keys, next += n_keys) {
        __m512 sum[8][2];
        uint32_t d = 0, asked = next == rows ? n_keys : 0;
        AVX512_UNROLL for (uint32_t c = 0; c < n_columns; c++)
        {
            sum[c][0] = sum[c][1] = _mm512_setzero_ps();
        }
        for (; d + 16 <= dim; d += 16) {
            if (n_vectors <= 2) { /* more are no faster than memory */
                asked = avx512_prefetch_rows(next, asked, dim, (d + 16) * n_keys, row_bytes);
            }
            score_dims(sum, q, q_stride, rows, d, &decoder, kind, n_vectors, n_groups, false);
        }
        if (d < dim) {
            score_dims(sum, q, q_stride, rows, d, &decoder, kind, n_vectors, n_groups, true);
        }
        asked = avx512_prefetch_rows(next, asked, 1, n_keys, row_bytes);
        AVX512_UNROLL for (uint32_t c = 0; c < n_columns; c += 4)
        {
            __m512 y = avx512_sum4(sum[c][0], sum[c + 1][0], sum[c + 2][0], sum[c + 3][0]);
            if (!in_quarters(kind)) {
                const __m512 z = avx512_sum4(sum[c][1], sum[c + 1][1], sum[c + 2][1], sum[c + 3][1]);
                y = avx512_sum2_128(y, z);
            }
            avx512_store_columns(s, j, c, y, n_vectors);
        }
    }
}

/* ---- values -------------------------------------------------------------------------------------------------------------- */

/* o[v][dim] = o[v][dim] * keep[v] + sum over n keys of p[v][key] * row[key][dim]; p by avx512_at. */
typedef void value_fn(float *o, int64_t o_stride, const float *keep, const float *p, const uint8_t *const *rows, const uint8_t *const *next, uint32_t n,
                      uint32_t dim, const avx512_table *table);

/* 64 dims from d on, or the rest. */
AVX512_INLINE void value_dims(float *o, int64_t o_stride, const float *keep, const float *p, const uint8_t *const *rows, const uint8_t *const *next,
                              uint32_t n, uint32_t d, uint32_t dim, const avx512_decoder *decoder, const avx512_kind kind, const uint32_t n_vectors,
                              const bool is_whole)
{
    const uint32_t size = avx512_size(kind);
    const uint32_t n_dims = is_whole ? 64 : dim - d, pass = d / 64, n_passes = (dim + 63) / 64, row_bytes = avx512_bytes(dim, kind);
    __m512 sum[AVX512_GROUP][4];
    AVX512_UNROLL for (uint32_t v = 0; v < n_vectors; v++)
    {
        AVX512_UNROLL for (uint32_t i = 0; i < 4; i++)
        {
            sum[v][i] = _mm512_setzero_ps();
        }
    }
    avx512_ahead ahead = { next, pass * n / n_passes, next == rows ? 0 : (pass + 1) * n / n_passes, 0, row_bytes }; /* each pass asks for its share of rows */
    for (uint32_t j = 0; j < n; j++) {
        const uint8_t *at = rows[j] + avx512_bytes(d, kind);
        const avx512_chunk chunk = is_whole ? avx512_open(at, decoder, kind) : avx512_open_some(at, n_dims, decoder, kind);
        avx512_ask(&ahead, size);
        AVX512_UNROLL for (uint32_t i = 0; i < 4; i++)
        {
            if (!is_whole && 16 * i >= n_dims) {
                break;
            }
            const __m512 x = is_whole ? avx512_piece(&chunk, i, kind) : avx512_piece_some(&chunk, i, n_dims, kind);
            AVX512_UNROLL for (uint32_t v = 0; v < n_vectors; v++)
            {
                sum[v][i] = _mm512_fmadd_ps(_mm512_set1_ps(p[avx512_at(v, j, n_vectors)]), x, sum[v][i]);
            }
        }
    }
    AVX512_UNROLL for (uint32_t v = 0; v < n_vectors; v++)
    {
        const __m512 factor = _mm512_set1_ps(keep[v]);
        AVX512_UNROLL for (uint32_t i = 0; i < 4; i++)
        {
            if (is_whole || 16 * i < n_dims) {
                float *to = o + v * o_stride + d + 16 * i;
                _mm512_store_ps(to, _mm512_fmadd_ps(_mm512_load_ps(to), factor, sum[v][i]));
            }
        }
    }
}

AVX512_INLINE void value(float *o, int64_t o_stride, const float *keep, const float *p, const uint8_t *const *rows, const uint8_t *const *next,
                         uint32_t n, uint32_t dim, const avx512_table *table, const avx512_kind kind, const uint32_t n_vectors)
{
    const avx512_decoder decoder = avx512_decoder_of(table);
    uint32_t d = 0;
    for (; d + 64 <= dim; d += 64) {
        value_dims(o, o_stride, keep, p, rows, next, n, d, dim, &decoder, kind, n_vectors, true);
    }
    if (d < dim) {
        value_dims(o, o_stride, keep, p, rows, next, n, d, dim, &decoder, kind, n_vectors, false);
    }
}

/* ---- one function for each kind and number of vectors ------------------------------------------------------------------------ */

#define SCORE(kind, n_vectors)                                                                                                               \
    static void score_##kind##_##n_vectors(float *s, const float *q, int64_t q_stride, const uint8_t *const *rows, const uint8_t *const *next, \
                                           uint32_t n, uint32_t dim, const avx512_table *table)                                              \
    {                                                                                                                                        \
        score(s, q, q_stride, rows, next, n, dim, table, AVX512_##kind, n_vectors);                                                          \
    }
#define VALUE(kind, n_vectors)                                                                                                         \
    static void value_##kind##_##n_vectors(float *o, int64_t o_stride, const float *keep, const float *p, const uint8_t *const *rows,  \
                                           const uint8_t *const *next, uint32_t n, uint32_t dim, const avx512_table *table)            \
    {                                                                                                                                  \
        value(o, o_stride, keep, p, rows, next, n, dim, table, AVX512_##kind, n_vectors);                                              \
    }
AVX512_FOUR(VALUE, V4)
#define KIND(kind) AVX512_FOUR(SCORE, kind) AVX512_FOUR(VALUE, kind)
KIND(BYTE)
KIND(BYTE_NUZ)
KIND(I8)
KIND(F16)
KIND(BF16)
KIND(F32)

#define ROW(name, kind) [AVX512_##kind] = AVX512_FOUR_NAMES(name, kind)
#define ROWS(name) ROW(name, BYTE), ROW(name, BYTE_NUZ), ROW(name, I8), ROW(name, F16), ROW(name, BF16), ROW(name, F32)
static score_fn *const scores[AVX512_KINDS][AVX512_GROUP] = { ROWS(score) };
static value_fn *const values[AVX512_KINDS][AVX512_GROUP] = { ROWS(value), ROW(value, V4) };

/* ---- the parts ----------------------------------------------------------------------------------------------------------- */

static size_t q_bytes(const oct_kv_spec *spec)
{
    return (size_t)(spec->dim_k + 15) / 16 * (in_quarters(avx512_kind_of(spec->k.dtype)) ? 64 : 32) * sizeof(float);
}

static void prepare(const oct_kv_spec *spec, void *q, const float *from, uint32_t n_most)
{
    (void)n_most;
    spread_q(q, from, spec->dim_k, avx512_kind_of(spec->k.dtype));
}

static void score_any(const oct_kv_spec *spec, float *s, const void *q, const uint8_t *const *rows, const uint8_t *const *next, uint32_t n,
                      uint32_t n_vectors, uint32_t n_terms)
{
    (void)n_terms;
    scores[avx512_kind_of(spec->k.dtype)][n_vectors - 1](s, q, (int64_t)(q_bytes(spec) / sizeof(float)), rows, next, n, spec->dim_k,
                                                         avx512_table_of(spec->k.dtype));
}

static void value_any(const oct_kv_spec *spec, float *o, int64_t o_stride, const float *keep, float *p, const uint8_t *const *rows,
                      const uint8_t *const *next, uint32_t n, uint32_t n_vectors)
{
    if (n_vectors == AVX512_GROUP_MOST) { /* beside scores that take so many */
        value_any(spec, o, o_stride, keep, p, rows, next, n, AVX512_GROUP);
        value_any(spec, o + AVX512_GROUP * o_stride, o_stride, keep + AVX512_GROUP, p + AVX512_GROUP * AVX512_BLOCK, rows, rows, n, AVX512_GROUP);
        return;
    }
    values[avx512_kind_of(spec->v.dtype)][n_vectors - 1](o, o_stride, keep, p, rows, next, n, spec->dim_v, avx512_table_of(spec->v.dtype));
}

const avx512_few_scores oct__avx512_few_scores_f32 = { OCT__AVX512_FEW_F32, AVX512_GROUP, q_bytes, prepare, score_any };
const avx512_few_values oct__avx512_few_values_f32 = { value_any, NULL };

/* ---- the tile ------------------------------------------------------------------------------------------------------------ */

/* Scratch of a tile; q and the staging memory follow. */
typedef struct few_scratch {
    _Alignas(64) float s[AVX512_GROUP_MOST * AVX512_BLOCK];
    avx512_walk walk;
    avx512_block visible; /* the keys of a block that one row sees */
    const avx512_few_scores *scores;
    const avx512_few_values *values;
    avx512_terms terms;
    uint8_t *q; /* prepared, q_bytes apart */
    size_t q_bytes;
} few_scratch;

/* Takes a block of keys that all of the vectors [i0, i0 + n_vectors) see. */
static void take_block(const oct__attn_tile *tile, few_scratch *x, const avx512_block *b, const avx512_block *next, uint32_t i0, uint32_t n_vectors)
{
    const oct_kv_spec *spec = &tile->kv->spec;
    const uint32_t end = i0 + n_vectors, n_terms = avx512_block_terms(spec, b, &x->terms);
    for (uint32_t i = i0; i < end;) {
        const uint32_t left = end - i, n_groups = (left + AVX512_GROUP - 1) / AVX512_GROUP;
        const uint32_t n = left >= x->scores->n_group ? x->scores->n_group : (left + n_groups - 1) / n_groups; /* the rest in groups of nearly one size */
        float keep[AVX512_GROUP_MOST];
        x->scores->score(spec, x->s, x->q + i * x->q_bytes, b->k, next->k, b->n, n, n_terms);
        avx512_softmax_keys(tile, b, x->s, tile->m + i, tile->z + i, keep, n);
        x->values->sum(spec, tile->o + i * tile->o_stride, tile->o_stride, keep, x->s, b->v, next->v, b->n, n);
        next = b; /* has been prefetched */
        i += n;
    }
}

size_t oct__avx512_few_scratch(const oct_kv_spec *spec, uint32_t n_vectors, const avx512_few_scores *with)
{
    return sizeof(few_scratch) + n_vectors * with->q_bytes(spec) + avx512_stage_bytes(spec);
}

void oct__avx512_few_run(const oct__attn_tile *tile, const avx512_few_scores *with, const avx512_few_values *and_with, avx512_terms terms)
{
    const oct_kv_spec *spec = &tile->kv->spec;
    const uint32_t n_vectors = tile->n_rows * tile->n_heads;
    const avx512_block *b, *next;
    few_scratch *x = tile->scratch;

    x->scores = with;
    x->values = and_with;
    x->terms = terms;
    x->q = (uint8_t *)(x + 1);
    x->q_bytes = with->q_bytes(spec);
    for (uint32_t i = 0; i < n_vectors; i++) {
        with->prepare(spec, x->q + i * x->q_bytes, tile->q + i * tile->q_stride, terms.n_most);
        tile->m[i] = -INFINITY;
        tile->z[i] = 0.0f;
        memset(tile->o + i * tile->o_stride, 0, (spec->dim_v + 15) / 16 * 16 * sizeof(float));
    }
    if (avx512_walk_begin(&x->walk, tile, x->q + n_vectors * x->q_bytes)) {
        do {
            avx512_walk_look(&x->walk, &b, &next);
            if (avx512_all_see(tile, b->first, b->first + b->n)) {
                take_block(tile, x, b, next, 0, n_vectors);
            } else { /* row by row, so that only visible keys are touched */
                for (uint32_t r = 0; r < tile->n_rows; r++) {
                    if (avx512_block_visible(&x->visible, tile, b, r)) {
                        take_block(tile, x, &x->visible, &x->visible, r * tile->n_heads, tile->n_heads);
                    }
                }
            }
        } while (avx512_walk_step(&x->walk, b, next));
    }
    for (uint32_t i = 0; i < n_vectors; i++) {
        if (and_with->put_in_order != NULL) {
            and_with->put_in_order(tile->o + i * tile->o_stride, spec->dim_v);
        }
        avx512_leave(&tile->m[i], &tile->z[i], tile->o + i * tile->o_stride, spec->dim_v);
    }
}

/* ---- rows ---------------------------------------------------------------------------------------------------------------- */

size_t oct__avx512_scratch(const oct_kv_spec *spec, uint32_t n_vectors, const avx512_few_scores *few_scores, const avx512_many_scores *many_scores,
                           const avx512_many_values *many_values)
{
    const size_t few = oct__avx512_few_scratch(spec, n_vectors < few_scores->n_few ? n_vectors : few_scores->n_few, few_scores);
    const size_t many = oct__avx512_many_scratch(spec, n_vectors, many_scores, many_values), most = few > many ? few : many;
    const size_t f32 = few_scores == &oct__avx512_few_scores_f32 ? 0 : oct__attn_decode_scratch__avx512(spec, n_vectors);
    return most > f32 ? most : f32;
}

void oct__avx512_run(const oct__attn_tile *tile, const avx512_few_scores *few_scores, const avx512_few_values *few_values,
                     const avx512_many_scores *many_scores, const avx512_many_values *many_values, avx512_terms terms)
{
    /* Few takes the rows one by one where they see different keys of a block: not worth it where that is most of the keys. */
    const bool is_mostly_common = tile->n_rows == 1 || tile->key1 - tile->key0 >= COMMON_KEYS * (int64_t)tile->n_rows;
    if (terms.n == 0) {
        oct__attn_decode__avx512(tile);
    } else if (tile->n_rows * tile->n_heads <= few_scores->n_few && is_mostly_common) {
        oct__avx512_few_run(tile, few_scores, few_values, terms);
    } else {
        oct__avx512_many_run(tile, many_scores, many_values, terms);
    }
}

size_t oct__attn_decode_scratch__avx512(const oct_kv_spec *spec, uint32_t n_vectors)
{
    return oct__avx512_scratch(spec, n_vectors, &oct__avx512_few_scores_f32, &oct__avx512_many_scores_f32, &oct__avx512_many_values_f32);
}

void oct__attn_decode__avx512(const oct__attn_tile *tile)
{
    oct__avx512_run(tile, &oct__avx512_few_scores_f32, &oct__avx512_few_values_f32, &oct__avx512_many_scores_f32, &oct__avx512_many_values_f32,
                    (avx512_terms){ 1, 1, INFINITY });
}
