/* attn_extend_avx512.c: owns attention of many vectors (rows x query heads of one KV head), as two register-blocked matrix products over key
 * blocks that are decoded to f32 once for all vectors:
 *   scores  S[key][vector] = K q, vectors in the lanes: 8 keys x 48 vectors in registers. q is transposed once a tile, so K needs no
 *           transposing, and softmax has its vectors in lanes: maxima and sums never cross them
 *   values  O[vector][dim] += P V, dims in the lanes: 6 vectors x 64 dims in registers. o takes a block's sum at once, so that its
 *           rounding error grows with the number of blocks and not of keys
 * Keys that no vector of a register sees are not computed. Where only some see a key, its score becomes -inf after the cap and its weight 0;
 * a V row with a NaN or an infinity is then kept out of the product and added only to the vectors that see it (0 x NaN is NaN).
 *
 * Threads: works in the tile's scratch and outputs. */
#include "cpu/avx512.h"
#include "cpu/avx512_many.h"

#define KEYS 8u    /* of a score product: with 3 registers of vectors 24 accumulators; 3 more hold q, one a broadcast */
#define SPAN 3u    /* registers of vectors of a score product */
#define VECTORS 6u /* of a value product: with 4 registers of dims 24 accumulators */

/* ---- products ------------------------------------------------------------------------------------------------------------- */

/* s[key][lane] for KEYS keys and n x 16 lanes. q: [dim][n x 16]. */
AVX512_INLINE void score_product(float *s, size_t s_stride, const float *k, size_t k_stride, const float *q, uint32_t dim, const uint32_t n)
{
    __m512 sum[KEYS][SPAN];
    AVX512_UNROLL for (uint32_t j = 0; j < KEYS; j++)
    {
        AVX512_UNROLL for (uint32_t l = 0; l < n; l++)
        {
            sum[j][l] = _mm512_setzero_ps();
        }
    }
    for (uint32_t d = 0; d < dim; d++, q += 16 * n) {
        __m512 x[SPAN];
        AVX512_UNROLL for (uint32_t l = 0; l < n; l++)
        {
            x[l] = _mm512_load_ps(q + 16 * l);
        }
        AVX512_UNROLL for (uint32_t j = 0; j < KEYS; j++)
        {
            const __m512 y = _mm512_set1_ps(k[j * k_stride + d]);
            AVX512_UNROLL for (uint32_t l = 0; l < n; l++)
            {
                sum[j][l] = _mm512_fmadd_ps(y, x[l], sum[j][l]);
            }
        }
    }
    AVX512_UNROLL for (uint32_t j = 0; j < KEYS; j++)
    {
        AVX512_UNROLL for (uint32_t l = 0; l < n; l++)
        {
            _mm512_store_ps(s + j * s_stride + 16 * l, sum[j][l]);
        }
    }
}

#define SCORE(n)                                                                                                           \
    static void score_##n(float *s, size_t s_stride, const float *k, size_t k_stride, const float *q, uint32_t dim)        \
    {                                                                                                                      \
        score_product(s, s_stride, k, k_stride, q, dim, n);                                                                \
    }
SCORE(1)
SCORE(2)
SCORE(3)

typedef void score_product_fn(float *s, size_t s_stride, const float *k, size_t k_stride, const float *q, uint32_t dim);
static score_product_fn *const score_products[SPAN] = { score_1, score_2, score_3 };

/* o[vector][dim] = o * keep + sum over n keys of p[key][vector] * v[key][dim], for n_vectors vectors and n_dims x 16 dims. */
AVX512_INLINE void value_product(float *o, int64_t o_stride, const float *keep, const float *p, size_t p_stride, const float *v, size_t v_stride,
                                 uint32_t n, const uint32_t n_vectors, const uint32_t n_dims)
{
    __m512 sum[VECTORS][4];
    AVX512_UNROLL for (uint32_t i = 0; i < n_vectors; i++)
    {
        AVX512_UNROLL for (uint32_t d = 0; d < n_dims; d++)
        {
            sum[i][d] = _mm512_setzero_ps();
        }
    }
    for (uint32_t j = 0; j < n; j++, p += p_stride, v += v_stride) {
        __m512 x[4];
        AVX512_UNROLL for (uint32_t d = 0; d < n_dims; d++)
        {
            x[d] = _mm512_load_ps(v + 16 * d);
        }
        AVX512_UNROLL for (uint32_t i = 0; i < n_vectors; i++)
        {
            const __m512 weight = _mm512_set1_ps(p[i]);
            AVX512_UNROLL for (uint32_t d = 0; d < n_dims; d++)
            {
                sum[i][d] = _mm512_fmadd_ps(weight, x[d], sum[i][d]);
            }
        }
    }
    AVX512_UNROLL for (uint32_t i = 0; i < n_vectors; i++)
    {
        const __m512 factor = _mm512_set1_ps(keep[i]);
        AVX512_UNROLL for (uint32_t d = 0; d < n_dims; d++)
        {
            float *to = o + i * o_stride + 16 * d;
            _mm512_store_ps(to, _mm512_fmadd_ps(_mm512_load_ps(to), factor, sum[i][d]));
        }
    }
}

#define VALUE(n_vectors, n_dims)                                                                                                              \
    static void value_##n_vectors##_##n_dims(float *o, int64_t o_stride, const float *keep, const float *p, size_t p_stride, const float *v,     \
                                             size_t v_stride, uint32_t n)                                                                     \
    {                                                                                                                                         \
        value_product(o, o_stride, keep, p, p_stride, v, v_stride, n, n_vectors, n_dims);                                                     \
    }
#define VALUES(n_dims) VALUE(1, n_dims) VALUE(2, n_dims) VALUE(3, n_dims) VALUE(4, n_dims) VALUE(5, n_dims) VALUE(6, n_dims)
VALUES(1)
VALUES(2)
VALUES(3)
VALUES(4)

typedef void value_product_fn(float *o, int64_t o_stride, const float *keep, const float *p, size_t p_stride, const float *v, size_t v_stride,
                              uint32_t n);
#define VALUE_ROW(n_dims) { value_1_##n_dims, value_2_##n_dims, value_3_##n_dims, value_4_##n_dims, value_5_##n_dims, value_6_##n_dims }
static value_product_fn *const value_products[4][VECTORS] = { VALUE_ROW(1), VALUE_ROW(2), VALUE_ROW(3), VALUE_ROW(4) };

/* ---- scratch --------------------------------------------------------------------------------------------------------------- */

/* Strides carry 16 floats of padding: a power of two would put a column of rows into a few sets of L1. */
typedef struct many_scratch {
    avx512_many many;
    size_t k_stride, v_stride;
    float *q;     /* by group of up to SPAN registers: [dim_k][lanes of the group] */
    float *k, *v; /* [AVX512_BLOCK][stride] */
    uint8_t *stage;
    avx512_walk walk;
} many_scratch;

/* Lays the scratch out from `memory` (NULL: only counts) and returns the bytes taken. */
static size_t lay_out(many_scratch *x, uint8_t *memory, const oct_kv_spec *spec, uint32_t n_vectors)
{
    size_t at = avx512_round_64(sizeof(many_scratch));
    at += avx512_many_lay_out(&x->many, memory != NULL ? memory + at : NULL, n_vectors);
    x->k_stride = (spec->dim_k + 15u) / 16 * 16 + 16;
    x->v_stride = (spec->dim_v + 15u) / 16 * 16 + 16;
    AVX512_TAKE(x->q, memory, at, float, (size_t)x->many.n_lanes * spec->dim_k);
    AVX512_TAKE(x->k, memory, at, float, AVX512_BLOCK * x->k_stride);
    AVX512_TAKE(x->v, memory, at, float, AVX512_BLOCK * x->v_stride);
    AVX512_TAKE(x->stage, memory, at, uint8_t, 2 * avx512_stage_bytes(spec));
    return at;
}

size_t oct__attn_many_scratch__avx512(const oct_kv_spec *spec, uint32_t n_vectors)
{
    many_scratch counted;
    return lay_out(&counted, NULL, spec, n_vectors);
}

/* Registers of vectors in the group that begins at register r: groups of nearly one size. */
static uint32_t span_of(uint32_t n_registers, uint32_t r)
{
    const uint32_t n_groups = (n_registers + SPAN - 1) / SPAN;
    for (uint32_t g = 0, begin = 0;; g++) {
        const uint32_t end = n_registers * (g + 1) / n_groups;
        if (begin == r) {
            return end - begin;
        }
        begin = end;
    }
}

static void transpose_q(const oct__attn_tile *tile, many_scratch *x)
{
    const uint32_t dim = tile->kv->spec.dim_k, n_registers = x->many.n_lanes / 16;
    for (uint32_t r = 0, n; r < n_registers; r += n) {
        n = span_of(n_registers, r);
        float *to = x->q + (size_t)16 * r * dim;
        for (uint32_t l = 0; l < 16 * n; l++) {
            const float *from = tile->q + avx512_lane_vector(tile, 16 * r + l) * tile->q_stride;
            for (uint32_t d = 0; d < dim; d++) {
                to[d * 16 * n + l] = from[d];
            }
        }
    }
}

/* ---- decoding -------------------------------------------------------------------------------------------------------------- */

/* n rows of dim elements to f32 rows that are `stride` floats apart and end in zeros up to a multiple of 16. next: rows to prefetch. */
AVX512_INLINE void decode(float *to, size_t stride, const uint8_t *const *rows, const uint8_t *const *next, uint32_t n, uint32_t dim,
                          const avx512_decoder *decoder, const avx512_kind kind)
{
    const uint32_t size = avx512_size(kind);
    for (uint32_t j = 0; j < n; j++, to += stride) {
        uint32_t d = 0;
        avx512_prefetch(next[j], dim * size);
        for (; d + 64 <= dim; d += 64) {
            const avx512_chunk chunk = avx512_open(rows[j] + d * size, decoder, kind);
            AVX512_UNROLL for (uint32_t i = 0; i < 4; i++)
            {
                _mm512_store_ps(to + d + 16 * i, avx512_piece(&chunk, i, kind));
            }
        }
        if (d < dim) {
            const avx512_chunk chunk = avx512_open_some(rows[j] + d * size, dim - d, decoder, kind);
            AVX512_UNROLL for (uint32_t i = 0; i < 4; i++)
            {
                if (d + 16 * i < dim) {
                    _mm512_store_ps(to + d + 16 * i, avx512_piece_some(&chunk, i, dim - d, kind));
                }
            }
        }
    }
}

static void decode_rows(float *to, size_t stride, const uint8_t *const *rows, const uint8_t *const *next, uint32_t n, uint32_t dim, uint32_t dtype)
{
    const avx512_decoder decoder = avx512_decoder_of(avx512_table_of(dtype));
    switch (avx512_kind_of(dtype)) {
    case AVX512_BYTE:
        decode(to, stride, rows, next, n, dim, &decoder, AVX512_BYTE);
        break;
    case AVX512_BYTE_NUZ:
        decode(to, stride, rows, next, n, dim, &decoder, AVX512_BYTE_NUZ);
        break;
    case AVX512_I8:
        decode(to, stride, rows, next, n, dim, &decoder, AVX512_I8);
        break;
    case AVX512_F16:
        decode(to, stride, rows, next, n, dim, &decoder, AVX512_F16);
        break;
    case AVX512_BF16:
        decode(to, stride, rows, next, n, dim, &decoder, AVX512_BF16);
        break;
    default:
        decode(to, stride, rows, next, n, dim, &decoder, AVX512_F32);
    }
}

/* ---- a block --------------------------------------------------------------------------------------------------------------- */

static void take_scores(const oct__attn_tile *tile, many_scratch *x, const avx512_block *b)
{
    const uint32_t dim = tile->kv->spec.dim_k, n_registers = x->many.n_lanes / 16;
    for (uint32_t r = 0, n; r < n_registers; r += n) {
        uint32_t from, to;
        n = span_of(n_registers, r);
        avx512_lanes_range(&x->many, 16 * r, 16 * (r + n), &from, &to);
        for (uint32_t j = from / KEYS * KEYS; j < to; j += KEYS) {
            score_products[n - 1](x->many.s + j * x->many.s_stride + 16 * r, x->many.s_stride, x->k + j * x->k_stride, x->k_stride,
                                  x->q + (size_t)16 * r * dim, dim);
        }
        for (uint32_t lane = 16 * r; lane < 16 * (r + n); lane += 16) {
            avx512_many_softmax(tile, &x->many, b, lane);
        }
    }
}

static void take_values(const oct__attn_tile *tile, many_scratch *x)
{
    const uint32_t dim = tile->kv->spec.dim_v, n_vectors = tile->n_rows * tile->n_heads;
    const uint32_t n_parts = (n_vectors + VECTORS - 1) / VECTORS;
    for (uint32_t d = 0; d < dim; d += 64) {
        const uint32_t n_dims = dim - d < 64 ? (dim - d + 15) / 16 : 4;
        /* Parts of nearly one size: a last part of one vector would wait for its few sums. */
        for (uint32_t part = 0, i = 0; part < n_parts; part++) {
            const uint32_t next = (uint32_t)((uint64_t)n_vectors * (part + 1) / n_parts);
            uint32_t from, to;
            avx512_lanes_range(&x->many, i, next, &from, &to);
            if (from < to) {
                value_products[n_dims - 1][next - i - 1](tile->o + i * tile->o_stride + d, tile->o_stride, x->many.keep + i,
                                                         x->many.s + from * x->many.s_stride + i, x->many.s_stride, x->v + from * x->v_stride + d,
                                                         x->v_stride, to - from);
            }
            i = next;
        }
    }
}

static void take_block(const oct__attn_tile *tile, many_scratch *x, const avx512_block *b, const avx512_block *next)
{
    const oct_kv_spec *spec = &tile->kv->spec;
    avx512_many_ranges(tile, &x->many, b);
    decode_rows(x->k, x->k_stride, b->k, next->k, (b->n + KEYS - 1) / KEYS * KEYS, spec->dim_k, spec->k.dtype);
    take_scores(tile, x, b);
    decode_rows(x->v, x->v_stride, b->v, next->v, b->n, spec->dim_v, spec->v.dtype);
    x->many.n_odd = 0;
    if (x->many.is_edge) {
        for (uint32_t j = 0; j < b->n; j++) {
            avx512_many_set_aside(&x->many, j, x->v + j * x->v_stride, spec->dim_v);
        }
    }
    take_values(tile, x);
    for (uint32_t i = 0; i < x->many.n_odd; i++) {
        const uint32_t j = x->many.odd[i];
        decode_rows(x->v, x->v_stride, &b->v[j], &b->v[j], 1, spec->dim_v, spec->v.dtype);
        avx512_many_add_odd(tile, &x->many, b, j, x->v);
    }
}

/* ---- the tile -------------------------------------------------------------------------------------------------------------- */

void oct__attn_many__avx512(const oct__attn_tile *tile)
{
    many_scratch *x = tile->scratch;
    const avx512_block *b, *next;

    lay_out(x, tile->scratch, &tile->kv->spec, tile->n_rows * tile->n_heads);
    transpose_q(tile, x);
    avx512_many_begin(tile, &x->many);
    if (avx512_walk_begin(&x->walk, tile, x->stage)) {
        do {
            avx512_walk_look(&x->walk, tile, &b, &next);
            take_block(tile, x, b, next);
        } while (avx512_walk_step(&x->walk, b, next));
    }
    avx512_many_end(tile, &x->many);
}

/* ---- the row --------------------------------------------------------------------------------------------------------------- */

size_t oct__attn_extend_scratch__avx512(const oct_kv_spec *spec, uint32_t n_vectors)
{
    return oct__attn_decode_scratch__avx512(spec, n_vectors);
}

void oct__attn_extend__avx512(const oct__attn_tile *tile)
{
    oct__attn_decode__avx512(tile);
}
