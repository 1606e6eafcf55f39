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
#include "cpu/avx512_many.h"

/* ---- products ------------------------------------------------------------------------------------------------------------- */

/* s[key][lane] for AVX512_KEYS keys and n x 16 lanes. q: [dim][n x 16]. */
AVX512_INLINE void score_product(float *s, size_t s_stride, const float *k, size_t k_stride, const float *q, uint32_t dim, const uint32_t n)
{
    __m512 sum[AVX512_KEYS][AVX512_SPAN];
    AVX512_UNROLL for (uint32_t j = 0; j < AVX512_KEYS; j++)
    {
        AVX512_UNROLL for (uint32_t l = 0; l < n; l++)
        {
            sum[j][l] = _mm512_setzero_ps();
        }
    }
    for (uint32_t d = 0; d < dim; d++, q += 16 * n) {
        __m512 x[AVX512_SPAN];
        AVX512_UNROLL for (uint32_t l = 0; l < n; l++)
        {
            x[l] = _mm512_load_ps(q + 16 * l);
        }
        AVX512_UNROLL for (uint32_t j = 0; j < AVX512_KEYS; j++)
        {
            const __m512 y = _mm512_set1_ps(k[j * k_stride + d]);
            AVX512_UNROLL for (uint32_t l = 0; l < n; l++)
            {
                sum[j][l] = _mm512_fmadd_ps(y, x[l], sum[j][l]);
            }
        }
    }
    AVX512_UNROLL for (uint32_t j = 0; j < AVX512_KEYS; j++)
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
static score_product_fn *const score_products[AVX512_SPAN] = { score_1, score_2, score_3 };

/* ---- the parts ------------------------------------------------------------------------------------------------------------- */

/* Strides carry 16 floats of padding: a power of two would put a column of rows into a few sets of L1. */
static size_t padded(uint32_t dim)
{
    return (dim + 15u) / 16 * 16 + 16;
}

/* q by group of up to AVX512_SPAN registers: [dim_k][lanes of the group]. */
static size_t q_bytes(const oct_kv_spec *spec, uint32_t n_lanes)
{
    return (size_t)n_lanes * spec->dim_k * sizeof(float);
}
static size_t k_bytes(const oct_kv_spec *spec)
{
    return AVX512_BLOCK * padded(spec->dim_k) * sizeof(float);
}
static size_t v_bytes(const oct_kv_spec *spec)
{
    return AVX512_BLOCK * padded(spec->dim_v) * sizeof(float);
}
static size_t p_bytes(const oct_kv_spec *spec, uint32_t n_lanes)
{
    (void)spec, (void)n_lanes;
    return 0;
}

static void prepare(const oct__attn_tile *tile, avx512_many *x, uint32_t n_most)
{
    const uint32_t dim = tile->kv->spec.dim_k, n_registers = x->n_lanes / 16;
    (void)n_most;
    for (uint32_t r = 0, n; r < n_registers; r += n) {
        n = avx512_span(n_registers, r, AVX512_SPAN);
        float *to = (float *)x->q + (size_t)16 * r * dim;
        for (uint32_t l = 0; l < 16 * n; l++) {
            const float *from = tile->q + avx512_lane_vector(tile, 16 * r + l) * tile->q_stride;
            for (uint32_t d = 0; d < dim; d++) {
                to[d * 16 * n + l] = from[d];
            }
        }
    }
}

static void decode_rows(float *to, size_t stride, const uint8_t *const *rows, const uint8_t *const *next, uint32_t n, uint32_t dim, uint32_t dtype)
{
    const avx512_decoder decoder = avx512_decoder_of(avx512_table_of(dtype));
    switch (avx512_kind_of(dtype)) {
    case AVX512_BYTE:
        avx512_decode(to, stride, rows, next, n, dim, &decoder, AVX512_BYTE);
        break;
    case AVX512_BYTE_NUZ:
        avx512_decode(to, stride, rows, next, n, dim, &decoder, AVX512_BYTE_NUZ);
        break;
    case AVX512_I8:
        avx512_decode(to, stride, rows, next, n, dim, &decoder, AVX512_I8);
        break;
    case AVX512_F16:
        avx512_decode(to, stride, rows, next, n, dim, &decoder, AVX512_F16);
        break;
    case AVX512_BF16:
        avx512_decode(to, stride, rows, next, n, dim, &decoder, AVX512_BF16);
        break;
    case AVX512_V4:
        avx512_decode(to, stride, rows, next, n, dim, &decoder, AVX512_V4);
        break;
    default:
        avx512_decode(to, stride, rows, next, n, dim, &decoder, AVX512_F32);
    }
}

static void decode_k(const oct_kv_spec *spec, avx512_many *x, const uint8_t *const *rows, const uint8_t *const *next, uint32_t n)
{
    decode_rows(x->k, padded(spec->dim_k), rows, next, n, spec->dim_k, spec->k.dtype);
}

static void decode_v(const oct_kv_spec *spec, avx512_many *x, const uint8_t *const *rows, const uint8_t *const *next, uint32_t n)
{
    decode_rows(x->v, padded(spec->dim_v), rows, next, n, spec->dim_v, spec->v.dtype);
}

static void score_keys(const oct_kv_spec *spec, avx512_many *x, uint32_t lane, uint32_t n_registers, uint32_t from, uint32_t to, uint32_t n_terms)
{
    (void)n_terms;
    for (uint32_t j = from / AVX512_KEYS * AVX512_KEYS; j < to; j += AVX512_KEYS) {
        score_products[n_registers - 1](x->s + j * x->s_stride + lane, x->s_stride, (const float *)x->k + j * padded(spec->dim_k), padded(spec->dim_k),
                                        (const float *)x->q + (size_t)lane * spec->dim_k, spec->dim_k);
    }
}

typedef float value_element;
typedef __m512 value_sums;
enum { VALUE_KEYS = 1 };
AVX512_INLINE value_sums value_none(void) { return _mm512_setzero_ps(); }
AVX512_INLINE __m512i value_weights(const value_element *p) { return _mm512_castps_si512(_mm512_set1_ps(*p)); }
AVX512_INLINE value_sums value_dot(value_sums sums, __m512i weights, __m512i v)
{
    return _mm512_fmadd_ps(_mm512_castsi512_ps(weights), _mm512_castsi512_ps(v), sums);
}
AVX512_INLINE __m512 value_of(value_sums sums, const float *gain)
{
    (void)gain;
    return sums;
}
static size_t value_v_stride(const oct_kv_spec *spec) { return padded(spec->dim_v); }
static const value_element *value_p(const avx512_many *x) { return x->s; }
static size_t value_p_stride(const avx512_many *x) { return x->s_stride; }
#include "cpu/avx512_value.h"

const avx512_many_scores oct__avx512_many_scores_f32 = { q_bytes, k_bytes, prepare, decode_k, score_keys, AVX512_SPAN, AVX512_KEYS };
const avx512_many_values oct__avx512_many_values_f32 = { v_bytes, p_bytes, decode_v, NULL, NULL, sum_values, VALUE_KEYS };

/* ---- scratch --------------------------------------------------------------------------------------------------------------- */

/* Takes `bytes` at *at from memory (NULL: only counts). */
static void *take(uint8_t *memory, size_t *at, size_t bytes)
{
    uint8_t *taken = memory != NULL ? memory + *at : NULL;
    *at += avx512_round_64(bytes);
    return taken;
}

/* Lays the scratch out from `memory` (NULL: only counts) and returns the bytes taken. */
static size_t lay_out(avx512_many *x, uint8_t *memory, const oct_kv_spec *spec, uint32_t n_vectors, const avx512_many_scores *scores,
                      const avx512_many_values *values)
{
    size_t at = avx512_round_64(sizeof(avx512_many));
    x->n_lanes = (n_vectors + 15) / 16 * 16;
    x->s_stride = x->n_lanes + 16;
    x->s = take(memory, &at, AVX512_BLOCK * x->s_stride * sizeof(float));
    x->m = take(memory, &at, x->n_lanes * sizeof(float));
    x->z = take(memory, &at, x->n_lanes * sizeof(float));
    x->keep = take(memory, &at, x->n_lanes * sizeof(float));
    x->gain = take(memory, &at, x->n_lanes * sizeof(float));
    x->apart = take(memory, &at, x->n_lanes * sizeof(float));
    x->apart_key = take(memory, &at, x->n_lanes * sizeof(int32_t));
    x->low = take(memory, &at, x->n_lanes * sizeof(int32_t));
    x->high = take(memory, &at, x->n_lanes * sizeof(int32_t));
    x->row = take(memory, &at, padded(spec->dim_v) * sizeof(float));
    x->q = take(memory, &at, scores->q_bytes(spec, x->n_lanes));
    x->k = take(memory, &at, scores->k_bytes(spec));
    x->v = take(memory, &at, values->v_bytes(spec));
    x->p = take(memory, &at, values->p_bytes(spec, x->n_lanes));
    x->stage = take(memory, &at, avx512_stage_bytes(spec));
    return at;
}

size_t oct__avx512_many_scratch(const oct_kv_spec *spec, uint32_t n_vectors, const avx512_many_scores *scores, const avx512_many_values *values)
{
    avx512_many counted;
    return lay_out(&counted, NULL, spec, n_vectors, scores, values);
}

/* ---- a block --------------------------------------------------------------------------------------------------------------- */

/* The V rows of a block for the product: without those that it can't take, and, where not all vectors see all keys, without those that hold a NaN
 * or an infinity, since 0 x NaN is NaN. */
static void set_odd_rows_aside(const oct__attn_tile *tile, avx512_many *x, const avx512_block *b, const avx512_many_values *values, const uint8_t **fine)
{
    const oct_kv_spec *spec = &tile->kv->spec;
    for (uint32_t j = 0; j < b->n; j++) {
        const bool is_odd = (values->is_odd != NULL && values->is_odd(spec, b->v[j])) || (x->is_edge && !avx512_is_finite(b->v[j], spec->dim_v, spec->v.dtype));
        fine[j] = b->v[j];
        if (is_odd) {
            x->odd[x->n_odd++] = j;
            fine[j] = avx512_no_row;
        }
    }
    for (uint32_t j = b->n; j < AVX512_BLOCK; j++) {
        fine[j] = avx512_no_row;
    }
}

static void take_block(const oct__attn_tile *tile, avx512_many *x, const avx512_block *b, const avx512_block *next, const avx512_many_scores *scores,
                       const avx512_many_values *values, avx512_terms terms)
{
    const oct_kv_spec *spec = &tile->kv->spec;
    const uint32_t n_registers = x->n_lanes / 16;
    const uint8_t *fine[AVX512_BLOCK];

    avx512_many_ranges(tile, x, b);
    const uint32_t n_terms = x->is_edge ? terms.n_most : avx512_block_terms(spec, b, &terms);
    scores->decode(spec, x, b->k, next->k, (b->n + scores->keys - 1) / scores->keys * scores->keys);
    for (uint32_t r = 0, n; r < n_registers; r += n) {
        uint32_t from, to;
        n = avx512_span(n_registers, r, scores->span);
        avx512_lanes_range(x, 16 * r, 16 * (r + n), &from, &to);
        scores->score(spec, x, 16 * r, n, from, to, n_terms);
        for (uint32_t lane = 16 * r; lane < 16 * (r + n); lane += 16) {
            avx512_many_softmax(tile, x, b, lane);
            if (values->weigh != NULL) {
                values->weigh(x, lane, b->n);
            }
        }
    }
    x->n_odd = 0;
    const bool may_be_odd = x->is_edge || values->is_odd != NULL;
    if (may_be_odd) {
        set_odd_rows_aside(tile, x, b, values, fine);
    }
    values->decode(spec, x, may_be_odd ? fine : b->v, next->v, (b->n + values->keys - 1) / values->keys * values->keys);
    values->sum(tile, x);
    for (uint32_t i = 0; i < x->n_odd; i++) {
        decode_rows(x->row, 0, &b->v[x->odd[i]], &b->v[x->odd[i]], 1, spec->dim_v, spec->v.dtype);
        avx512_many_add_odd(tile, x, b, x->odd[i]);
    }
}

/* ---- the tile -------------------------------------------------------------------------------------------------------------- */

void oct__avx512_many_run(const oct__attn_tile *tile, const avx512_many_scores *scores, const avx512_many_values *values, avx512_terms terms)
{
    const oct_kv_spec *spec = &tile->kv->spec;
    const uint32_t n_vectors = tile->n_rows * tile->n_heads;
    const avx512_block *b, *next;
    avx512_many *x = tile->scratch;

    lay_out(x, tile->scratch, spec, n_vectors, scores, values);
    scores->prepare(tile, x, terms.n_most);
    for (uint32_t lane = 0; lane < x->n_lanes; lane++) {
        x->m[lane] = -INFINITY;
        x->z[lane] = 0.0f;
    }
    for (uint32_t i = 0; i < n_vectors; i++) {
        memset(tile->o + i * tile->o_stride, 0, (spec->dim_v + 15) / 16 * 16 * sizeof(float));
    }
    if (avx512_walk_begin(&x->walk, tile, x->stage)) {
        do {
            avx512_walk_look(&x->walk, &b, &next);
            take_block(tile, x, b, next, scores, values, terms);
        } while (avx512_walk_step(&x->walk, b, next));
    }
    for (uint32_t i = 0; i < n_vectors; i++) {
        tile->m[i] = x->m[i];
        tile->z[i] = x->z[i];
        avx512_leave(&tile->m[i], &tile->z[i], tile->o + i * tile->o_stride, spec->dim_v);
    }
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
