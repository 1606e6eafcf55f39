/* attn_decode_avx512.c: owns attention of few vectors (decode: the query heads of one KV head): stored bytes are decoded in registers, once
 * for four vectors, and never stored as f32.
 *
 * A block of 64 keys at a time, four vectors after four vectors while the block's bytes are in L1:
 *   scores   dims in the lanes; 16 sums of keys x vectors side by side, added over the lanes all at once by a tree of 45 instructions
 *   softmax  by vector, keys in the lanes, in powers of two
 *   values   64 dims x 4 vectors in registers, running over the block's keys; o takes a block's sum at once, so that its rounding error
 *            grows with the number of blocks and not of keys
 * Decoding 64 elements takes 10 instructions outside the FMA pipes or beside them, so with four vectors the FMAs hide it.
 * Keys that only some rows see (the edges of causal and window, a token mask) are taken row by row, and then only visible keys are
 * touched at all.
 *
 * Threads: works in the tile's scratch and outputs. */
#include <math.h>

#include "cpu/avx512.h"
#include "cpu/avx512_keys.h"
#include "cpu/avx512_softmax.h"

#define GROUP 4u /* vectors that share decoded elements */

/* ---- scores -------------------------------------------------------------------------------------------------------------- */

/* Where a score product has its keys. quarters: 4 keys x 4 dims in a register, since the words of a table lookup come in 16-byte lanes;
 * halves: 2 keys x 8 dims, for what is converted from the lower half of a register. */
AVX512_INLINE bool in_quarters(avx512_kind kind) { return avx512_is_byte_float(kind) || kind == AVX512_BF16; }

/* q as score products want it: each group of dims that goes into a lane, in the order in which words leave their lanes, as often as there
 * are lanes, because Zen 4 spends a shuffle on a broadcast from memory to 512 bits. [dim / 16][4 or 2][16]; dims past the last are 0. */
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

/* Sixteen bytes of each of four rows, at `at`; or eight, zeros above. */
AVX512_INLINE __m512i load_lanes(const uint8_t *const *rows, size_t at, const bool is_half)
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
        words[0] = load_lanes(rows, 2 * (size_t)d, false);
        words[1] = is_half ? _mm512_setzero_si512() : load_lanes(rows, 2 * (size_t)d + 16, false);
        break;
    default: {
        __m512i low, high;
        avx512_lookup(load_lanes(rows, d, is_half), decoder, kind, &low, &high);
        words[0] = _mm512_unpacklo_epi8(low, high);
        words[1] = _mm512_unpackhi_epi8(low, high);
    }
    }
    AVX512_UNROLL for (uint32_t i = 0; i < 4; i++)
    {
        x[i] = _mm512_castsi512_ps(i % 2 == 0 ? _mm512_slli_epi32(words[i / 2], 16) : _mm512_and_si512(words[i / 2], _mm512_set1_epi32((int32_t)0xFFFF0000)));
    }
}

/* s[vector][AVX512_BLOCK]: raw products for n keys, rounded up to the kernel's step; keys past n are zero rows. q: arranged, vectors q_stride
 * apart. next: rows to prefetch. */
typedef void score_fn(float *s, const float *q, int64_t q_stride, const uint8_t *const *rows, const uint8_t *const *next, uint32_t n, uint32_t dim,
                      const avx512_table *table);

/* n_groups groups of four keys x n_vectors make `columns` of sums, four of which leave together. */
AVX512_INLINE uint32_t column(uint32_t v, uint32_t g, const uint32_t n_vectors)
{
    return n_vectors == 1 ? g : n_vectors == 2 ? g / 2 * 4 + 2 * v + g % 2 : 4 * g + v;
}

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
                    __m512 *to = sum[column(v, g, n_vectors)];
                    to[0] = _mm512_fmadd_ps(x[g][i], y, to[0]);
                }
            } else {
                const __m512 y = _mm512_load_ps(from + 2 * d + i % 2 * 16);
                AVX512_UNROLL for (uint32_t g = 0; g < n_groups; g++)
                {
                    __m512 *to = &sum[column(v, g, n_vectors)][i / 2];
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
        uint32_t d = 0;
        AVX512_UNROLL for (uint32_t c = 0; c < n_columns; c++)
        {
            sum[c][0] = sum[c][1] = _mm512_setzero_ps();
        }
        for (; d + 16 <= dim; d += 16) {
            score_dims(sum, q, q_stride, rows, d, &decoder, kind, n_vectors, n_groups, false);
        }
        if (d < dim) {
            score_dims(sum, q, q_stride, rows, d, &decoder, kind, n_vectors, n_groups, true);
        }
        AVX512_UNROLL for (uint32_t k = 0; k < n_keys; k++)
        {
            avx512_prefetch(next[k], row_bytes);
        }
        AVX512_UNROLL for (uint32_t c = 0; c < n_columns; c += 4)
        {
            __m512 y = avx512_sum4(sum[c][0], sum[c + 1][0], sum[c + 2][0], sum[c + 3][0]);
            if (!in_quarters(kind)) {
                const __m512 z = avx512_sum4(sum[c][1], sum[c + 1][1], sum[c + 2][1], sum[c + 3][1]);
                y = avx512_sum2_128(y, z);
            }
            y = avx512_turn4(y);
            switch (n_vectors) {
            case 1:
                _mm512_store_ps(s + j, y);
                break;
            case 2:
                _mm256_store_ps(s + j + 2 * c, _mm512_castps512_ps256(y));
                _mm256_store_ps(s + AVX512_BLOCK + j + 2 * c, _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(y), 1)));
                break;
            default:
                _mm_store_ps(s + j + c, _mm512_castps512_ps128(y));
                _mm_store_ps(s + AVX512_BLOCK + j + c, _mm512_extractf32x4_ps(y, 1));
                _mm_store_ps(s + 2 * AVX512_BLOCK + j + c, _mm512_extractf32x4_ps(y, 2));
                if (n_vectors == 4) {
                    _mm_store_ps(s + 3 * AVX512_BLOCK + j + c, _mm512_extractf32x4_ps(y, 3));
                }
            }
        }
    }
}

/* ---- values -------------------------------------------------------------------------------------------------------------- */

/* o[v][dim] = o[v][dim] * keep[v] + sum over n keys of p[v][key] * row[key][dim]. */
typedef void value_fn(float *o, int64_t o_stride, const float *keep, const float *p, const uint8_t *const *rows, const uint8_t *const *next, uint32_t n,
                      uint32_t dim, const avx512_table *table);

/* n_dims dims from d on; 64 is the fast case. */
AVX512_INLINE void value_dims(float *o, int64_t o_stride, const float *keep, const float *p, const uint8_t *const *rows, const uint8_t *const *next,
                              uint32_t n, uint32_t d, uint32_t n_dims, const avx512_decoder *decoder, const avx512_kind kind, const uint32_t n_vectors,
                              const bool is_whole)
{
    const uint32_t size = avx512_size(kind);
    __m512 sum[GROUP][4];
    AVX512_UNROLL for (uint32_t v = 0; v < n_vectors; v++)
    {
        AVX512_UNROLL for (uint32_t i = 0; i < 4; i++)
        {
            sum[v][i] = _mm512_setzero_ps();
        }
    }
    for (uint32_t j = 0; j < n; j++) {
        const uint8_t *at = rows[j] + d * size;
        const avx512_chunk chunk = is_whole ? avx512_open(at, decoder, kind) : avx512_open_some(at, n_dims, decoder, kind);
        avx512_prefetch(next[j] + d * size, n_dims * size);
        AVX512_UNROLL for (uint32_t i = 0; i < 4; i++)
        {
            if (!is_whole && 16 * i >= n_dims) {
                break;
            }
            const __m512 x = is_whole ? avx512_piece(&chunk, i, kind) : avx512_piece_some(&chunk, i, n_dims, kind);
            AVX512_UNROLL for (uint32_t v = 0; v < n_vectors; v++)
            {
                sum[v][i] = _mm512_fmadd_ps(_mm512_set1_ps(p[v * AVX512_BLOCK + j]), x, sum[v][i]);
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
        value_dims(o, o_stride, keep, p, rows, next, n, d, 64, &decoder, kind, n_vectors, true);
    }
    if (d < dim) {
        value_dims(o, o_stride, keep, p, rows, next, n, d, dim - d, &decoder, kind, n_vectors, false);
    }
}

/* ---- one function for each kind and number of vectors ------------------------------------------------------------------------ */

#define KIND_VECTORS(kind, n_vectors)                                                                                                       \
    static void score_##kind##_##n_vectors(float *s, const float *q, int64_t q_stride, const uint8_t *const *rows, const uint8_t *const *next, \
                                           uint32_t n, uint32_t dim, const avx512_table *table)                                             \
    {                                                                                                                                       \
        score(s, q, q_stride, rows, next, n, dim, table, AVX512_##kind, n_vectors);                                                         \
    }                                                                                                                                       \
    static void value_##kind##_##n_vectors(float *o, int64_t o_stride, const float *keep, const float *p, const uint8_t *const *rows,       \
                                           const uint8_t *const *next, uint32_t n, uint32_t dim, const avx512_table *table)                 \
    {                                                                                                                                       \
        value(o, o_stride, keep, p, rows, next, n, dim, table, AVX512_##kind, n_vectors);                                                   \
    }
#define KIND(kind) KIND_VECTORS(kind, 1) KIND_VECTORS(kind, 2) KIND_VECTORS(kind, 3) KIND_VECTORS(kind, 4)
KIND(BYTE)
KIND(BYTE_NUZ)
KIND(I8)
KIND(F16)
KIND(BF16)
KIND(F32)

#define KIND_ROW(way, kind) [AVX512_##kind] = { way##_##kind##_1, way##_##kind##_2, way##_##kind##_3, way##_##kind##_4 }
#define KIND_ROWS(way) { KIND_ROW(way, BYTE), KIND_ROW(way, BYTE_NUZ), KIND_ROW(way, I8), KIND_ROW(way, F16), KIND_ROW(way, BF16), KIND_ROW(way, F32) }
static score_fn *const scores[AVX512_KINDS][GROUP] = KIND_ROWS(score);
static value_fn *const values[AVX512_KINDS][GROUP] = KIND_ROWS(value);

/* ---- the tile ------------------------------------------------------------------------------------------------------------ */

/* Scratch of a tile; q and the staging memory follow. */
typedef struct few_scratch {
    _Alignas(64) float s[GROUP * AVX512_BLOCK];
    avx512_walk walk;
    avx512_block visible; /* the keys of the block that one row sees */
    float *q;             /* spread, [n_vectors][q_stride] */
    int64_t q_stride;
} few_scratch;

/* Takes a block of keys that all of the vectors [i0, i0 + n_vectors) see. */
static void take_block(const oct__attn_tile *tile, few_scratch *x, const avx512_block *b, const avx512_block *next, uint32_t i0, uint32_t n_vectors)
{
    const oct_kv_spec *spec = &tile->kv->spec;
    const avx512_kind k_kind = avx512_kind_of(spec->k.dtype), v_kind = avx512_kind_of(spec->v.dtype);
    const uint32_t end = i0 + n_vectors, n_groups = (n_vectors + GROUP - 1) / GROUP;
    for (uint32_t g = 0, i = i0; g < n_groups; g++) {
        const uint32_t n = (end - i + n_groups - g - 1) / (n_groups - g); /* groups of nearly one size */
        float keep[GROUP];
        scores[k_kind][n - 1](x->s, x->q + i * x->q_stride, x->q_stride, b->k, next->k, b->n, spec->dim_k, avx512_table_of(spec->k.dtype));
        for (uint32_t v = 0; v < n; v++) {
            keep[v] = avx512_softmax_keys(tile, b, x->s + v * AVX512_BLOCK, &tile->m[i + v], &tile->z[i + v]);
        }
        values[v_kind][n - 1](tile->o + i * tile->o_stride, tile->o_stride, keep, x->s, b->v, next->v, b->n, spec->dim_v, avx512_table_of(spec->v.dtype));
        next = b; /* has been prefetched */
        i += n;
    }
}

/* Takes a block of which each row sees its own part. */
static void take_edge(const oct__attn_tile *tile, few_scratch *x, const avx512_block *b)
{
    for (uint32_t r = 0; r < tile->n_rows; r++) {
        if (avx512_block_visible(&x->visible, tile, b, r)) {
            take_block(tile, x, &x->visible, &x->visible, r * tile->n_heads, tile->n_heads);
        }
    }
}

static size_t q_floats(const oct_kv_spec *spec)
{
    return (size_t)(spec->dim_k + 15) / 16 * (in_quarters(avx512_kind_of(spec->k.dtype)) ? 64 : 32);
}

size_t oct__attn_few_scratch__avx512(const oct_kv_spec *spec, uint32_t n_vectors)
{
    return sizeof(few_scratch) + n_vectors * q_floats(spec) * sizeof(float) + 2 * avx512_stage_bytes(spec);
}

void oct__attn_few__avx512(const oct__attn_tile *tile)
{
    const oct_kv_spec *spec = &tile->kv->spec;
    const uint32_t n_vectors = tile->n_rows * tile->n_heads;
    few_scratch *x = tile->scratch;
    const avx512_block *b, *next;

    x->q = (float *)(void *)(x + 1);
    x->q_stride = (int64_t)q_floats(spec);
    for (uint32_t i = 0; i < n_vectors; i++) {
        spread_q(x->q + i * x->q_stride, tile->q + i * tile->q_stride, spec->dim_k, avx512_kind_of(spec->k.dtype));
        tile->m[i] = -INFINITY;
        tile->z[i] = 0.0f;
        memset(tile->o + i * tile->o_stride, 0, (spec->dim_v + 15) / 16 * 16 * sizeof(float));
    }
    if (avx512_walk_begin(&x->walk, tile, (uint8_t *)(x->q + n_vectors * x->q_stride))) {
        do {
            avx512_walk_look(&x->walk, tile, &b, &next);
            if (avx512_all_see(tile, b->first, b->first + b->n)) {
                take_block(tile, x, b, next, 0, n_vectors);
            } else {
                take_edge(tile, x, b);
            }
        } while (avx512_walk_step(&x->walk, b, next));
    }
    for (uint32_t i = 0; i < n_vectors; i++) {
        avx512_leave(&tile->m[i], &tile->z[i], tile->o + i * tile->o_stride, spec->dim_v);
    }
}

/* ---- the row ------------------------------------------------------------------------------------------------------------- */

size_t oct__attn_decode_scratch__avx512(const oct_kv_spec *spec, uint32_t n_vectors)
{
    const size_t few = oct__attn_few_scratch__avx512(spec, n_vectors < OCT__AVX512_FEW ? n_vectors : OCT__AVX512_FEW);
    const size_t many = oct__attn_many_scratch__avx512(spec, n_vectors);
    return few > many ? few : many;
}

void oct__attn_decode__avx512(const oct__attn_tile *tile)
{
    if (tile->n_rows * tile->n_heads <= OCT__AVX512_FEW) {
        oct__attn_few__avx512(tile);
    } else {
        oct__attn_many__avx512(tile);
    }
}
