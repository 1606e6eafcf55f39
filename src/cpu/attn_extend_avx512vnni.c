/* attn_extend_avx512vnni.c: owns attention of many vectors over i8 pages by integer dot products; avx512_word.h says how good they are. As
 * attn_extend_avx512bf16.c, but in words: pairs of dims for scores, pairs of keys for values, whose weights are brought to integers block by
 * block. Causal prompt of 2048 tokens over i8, GFLOP/s of one Zen 4 core at 3.7 GHz by head dim (f32 FMAs peak at 118):
 *                                               64    128    256
 *   f32 (attn_extend_avx512.c)                  94    102    106
 *   words, sums as __m512i: gcc 12 spills       91     98    105
 *   words, sums as vectors of int32            154    176    189
 *
 * Threads: works in the tile's scratch and outputs. */
#include "cpu/avx512_many.h"
#include "cpu/avx512_word.h"

/* ---- products ------------------------------------------------------------------------------------------------------------- */

AVX512_INLINE __m512i pair_at(const int16_t *words)
{
    int32_t pair;
    memcpy(&pair, words, sizeof(pair));
    return _mm512_set1_epi32(pair);
}

/* s[key][lane] = unit[lane] * product for AVX512_KEYS keys and n x 16 lanes; is_rest: += a 256th of that. k: words. q: a term's words,
 * [dim / 2][n x 16 pairs]. */
AVX512_INLINE void score_product(float *s, size_t s_stride, const int16_t *k, size_t k_stride, const int16_t *q, const float *unit, uint32_t dim,
                                 const uint32_t n, const bool is_rest)
{
    avx512_sums sum[AVX512_KEYS][AVX512_SPAN];
    AVX512_UNROLL for (uint32_t j = 0; j < AVX512_KEYS; j++)
    {
        AVX512_UNROLL for (uint32_t l = 0; l < n; l++)
        {
            sum[j][l] = avx512_no_sums();
        }
    }
    for (uint32_t d = 0; d < dim; d += 2, q += 32 * n) {
        __m512i x[AVX512_SPAN];
        AVX512_UNROLL for (uint32_t l = 0; l < n; l++)
        {
            x[l] = _mm512_load_si512(q + 32 * l);
        }
        AVX512_UNROLL for (uint32_t j = 0; j < AVX512_KEYS; j++)
        {
            const __m512i y = pair_at(k + j * k_stride + d);
            AVX512_UNROLL for (uint32_t l = 0; l < n; l++)
            {
                sum[j][l] = avx512_dot_words(sum[j][l], y, x[l]);
            }
        }
    }
    AVX512_UNROLL for (uint32_t j = 0; j < AVX512_KEYS; j++)
    {
        AVX512_UNROLL for (uint32_t l = 0; l < n; l++)
        {
            float *to = s + j * s_stride + 16 * l;
            const __m512 y = _mm512_mul_ps(avx512_of_sums(sum[j][l]), _mm512_load_ps(unit + 16 * l));
            _mm512_store_ps(to, is_rest ? _mm512_fmadd_ps(y, _mm512_set1_ps(1.0f / AVX512_Q_REST), _mm512_load_ps(to)) : y);
        }
    }
}

#define SCORE(n, is_rest)                                                                                                                       \
    static void score_##n##_##is_rest(float *s, size_t s_stride, const int16_t *k, size_t k_stride, const int16_t *q, const float *unit,        \
                                      uint32_t dim)                                                                                             \
    {                                                                                                                                           \
        score_product(s, s_stride, k, k_stride, q, unit, dim, n, is_rest);                                                                      \
    }
SCORE(1, 0) SCORE(2, 0) SCORE(3, 0) SCORE(1, 1) SCORE(2, 1) SCORE(3, 1)

typedef void score_product_fn(float *s, size_t s_stride, const int16_t *k, size_t k_stride, const int16_t *q, const float *unit, uint32_t dim);
static score_product_fn *const score_products[2][AVX512_SPAN] = { { score_1_0, score_2_0, score_3_0 }, { score_1_1, score_2_1, score_3_1 } };

/* ---- the parts ------------------------------------------------------------------------------------------------------------- */

/* All strides in words, padded against L1's sets. K: [AVX512_BLOCK][k_stride]; V and weights: [AVX512_BLOCK / 2][stride], pairs. */
static size_t k_stride(const oct_kv_spec *spec)
{
    return (spec->dim_k + 31u) / 32 * 32 + 32;
}
static size_t v_stride(const oct_kv_spec *spec)
{
    return 2 * ((spec->dim_v + 63u) / 64 * 64) + 32;
}
static size_t p_stride(uint32_t n_lanes)
{
    return 2 * n_lanes + 32;
}

/* q: what each lane's unit is worth, then for each of two terms, by group of up to AVX512_SPAN registers: [dim_k / 2][lanes of the group], pairs. */
static size_t q_bytes(const oct_kv_spec *spec, uint32_t n_lanes)
{
    return (size_t)n_lanes * (sizeof(float) + 2 * spec->dim_k * sizeof(int16_t));
}
static size_t k_bytes(const oct_kv_spec *spec)
{
    return AVX512_BLOCK * k_stride(spec) * sizeof(int16_t);
}
static size_t v_bytes(const oct_kv_spec *spec)
{
    return AVX512_BLOCK / 2 * v_stride(spec) * sizeof(int16_t);
}
static size_t p_bytes(const oct_kv_spec *spec, uint32_t n_lanes)
{
    (void)spec;
    return AVX512_BLOCK / 2 * p_stride(n_lanes) * sizeof(int16_t);
}

static void prepare(const oct__attn_tile *tile, avx512_many *x, uint32_t n_most)
{
    const uint32_t dim = tile->kv->spec.dim_k, n_registers = x->n_lanes / 16;
    const size_t term = (size_t)x->n_lanes * dim;
    float *unit = x->q;
    int16_t *to = (int16_t *)(void *)(unit + x->n_lanes);
    (void)n_most;
    for (uint32_t r = 0, n; r < n_registers; r += n) {
        n = avx512_span(n_registers, r, AVX512_SPAN);
        for (uint32_t l = 0; l < 16 * n; l++) {
            const float *from = tile->q + avx512_lane_vector(tile, 16 * r + l) * tile->q_stride;
            const float largest = avx512_largest(from, dim), scale = largest > 0 ? AVX512_Q_MAX / largest : 0.0f;
            unit[16 * r + l] = largest / AVX512_Q_MAX;
            for (uint32_t d = 0; d < dim; d += 16) {
                int32_t first[16], second[16];
                __m512i whole, rest;
                avx512_whole_q(from + d, scale, &whole, &rest);
                _mm512_storeu_si512(first, whole);
                _mm512_storeu_si512(second, rest);
                for (uint32_t i = 0; i < 16 && d + i < dim; i++) {
                    int16_t *at = to + (size_t)(d + i) / 2 * 32 * n + 2 * l + i % 2;
                    at[0] = (int16_t)first[i];
                    at[term] = (int16_t)second[i];
                }
            }
        }
        to += (size_t)16 * n * dim;
    }
}

static void decode_k(const oct_kv_spec *spec, avx512_many *x, const uint8_t *const *rows, const uint8_t *const *next, uint32_t n)
{
    int16_t *to = x->k;
    for (uint32_t j = 0; j < n; j++, to += k_stride(spec)) {
        uint32_t d = 0;
        avx512_prefetch(next[j], spec->dim_k);
        for (; d + 32 <= spec->dim_k; d += 32) {
            _mm512_store_si512(to + d, _mm512_cvtepi8_epi16(_mm256_loadu_si256((const __m256i *)(const void *)(rows[j] + d))));
        }
        if (d < spec->dim_k) {
            const __m512i bytes = avx512_load_row(rows[j] + d, spec->dim_k - d, false);
            _mm512_store_si512(to + d, _mm512_cvtepi8_epi16(_mm512_castsi512_si256(bytes)));
        }
    }
}

/* The row after an odd last one is zeros. */
static void decode_v(const oct_kv_spec *spec, avx512_many *x, const uint8_t *const *rows, const uint8_t *const *next, uint32_t n)
{
    const uint32_t dim = spec->dim_v;
    int16_t *to = x->v;
    for (uint32_t j = 0; j < n; j += 2, to += v_stride(spec)) {
        avx512_prefetch(next[j], dim);
        avx512_prefetch(next[j + 1], dim);
        for (uint32_t d = 0; d < dim; d += 64) {
            const bool is_whole = d + 64 <= dim;
            const __m512i a = is_whole ? avx512_load_row(rows[j] + d, 64, true) : avx512_load_row(rows[j] + d, dim - d, false);
            const __m512i b = is_whole ? avx512_load_row(rows[j + 1] + d, 64, true) : avx512_load_row(rows[j + 1] + d, dim - d, false);
            AVX512_UNROLL for (uint32_t i = 0; i < 4; i++)
            {
                _mm512_store_si512(to + 2 * d + 32 * i, avx512_pair_words(a, b, i));
            }
        }
    }
}

static void score_keys(const oct_kv_spec *spec, avx512_many *x, uint32_t lane, uint32_t n_registers, uint32_t from, uint32_t to, uint32_t n_terms)
{
    const float *unit = x->q;
    const int16_t *q = (const int16_t *)(const void *)(unit + x->n_lanes) + (size_t)lane * spec->dim_k;
    for (uint32_t j = from / AVX512_KEYS * AVX512_KEYS; j < to; j += AVX512_KEYS) {
        for (uint32_t t = 0; t < n_terms; t++) {
            score_products[t][n_registers - 1](x->s + j * x->s_stride + lane, x->s_stride, (const int16_t *)x->k + j * k_stride(spec), k_stride(spec),
                                               q + t * x->n_lanes * (size_t)spec->dim_k, unit + lane, spec->dim_k);
        }
    }
}

/* Sets the largest weight apart in each of `lanes` and leaves 0 in its place; returns the magnitudes that are the largest now, in all lanes. */
static __m512i set_apart(avx512_many *x, uint32_t lane, uint32_t n, __m512i largest_bits, __mmask16 lanes)
{
    const __m512i abs = _mm512_set1_epi32(INT32_MAX);
    __m512i now = _mm512_setzero_si512(), key = _mm512_setzero_si512();
    __m512 weight = _mm512_setzero_ps();
    for (uint32_t j = 0; j < n; j++) {
        float *s = x->s + j * x->s_stride + lane;
        __m512 p = _mm512_load_ps(s);
        const __mmask16 here = lanes & _mm512_cmpeq_epi32_mask(_mm512_and_si512(_mm512_castps_si512(p), abs), largest_bits);
        lanes = (__mmask16)(lanes & ~here);
        weight = _mm512_mask_mov_ps(weight, here, p);
        key = _mm512_mask_mov_epi32(key, here, _mm512_set1_epi32((int32_t)j));
        p = _mm512_mask_mov_ps(p, here, _mm512_setzero_ps());
        _mm512_store_ps(s, p);
        now = _mm512_max_epi32(now, _mm512_and_si512(_mm512_castps_si512(p), abs));
    }
    _mm512_store_ps(x->apart + lane, weight);
    _mm512_store_si512(x->apart_key + lane, key);
    return now;
}

/* Pairs of keys as integers; past n they are 0. A lane with a weight that is not finite gets a NaN for what its sums are worth. */
static void weigh(avx512_many *x, uint32_t lane, uint32_t n)
{
    const __m512i abs = _mm512_set1_epi32(INT32_MAX);
    __m512i largest_bits = _mm512_setzero_si512();
    __m512 sum = _mm512_setzero_ps();
    const float *s = x->s + lane;
    for (uint32_t j = 0; j < n; j++) {
        const __m512i bits = _mm512_and_si512(_mm512_load_si512(s + j * x->s_stride), abs);
        largest_bits = _mm512_max_epi32(largest_bits, bits);
        sum = _mm512_add_ps(sum, _mm512_castsi512_ps(bits));
    }
    const __mmask16 lonely = _mm512_cmp_ps_mask(sum, _mm512_mul_ps(_mm512_castsi512_ps(largest_bits), _mm512_set1_ps(1 + AVX512_WEIGHT_REST)), _CMP_LT_OQ);
    if (lonely != 0) { /* not one whose weights are all 0, or one of them not finite */
        largest_bits = set_apart(x, lane, n, largest_bits, lonely);
    } else {
        _mm512_store_ps(x->apart + lane, _mm512_setzero_ps());
    }
    const __m512 largest = _mm512_castsi512_ps(largest_bits);
    const __mmask16 finite = _mm512_cmp_ps_mask(largest, _mm512_set1_ps(INFINITY), _CMP_LT_OQ);
    const __mmask16 counts = finite & _mm512_cmp_ps_mask(largest, _mm512_set1_ps(AVX512_WEIGHT_MIN), _CMP_GE_OQ);
    const __m512 scale = _mm512_maskz_div_ps(counts, _mm512_set1_ps(32767.0f), largest);
    const __m512 worth = _mm512_maskz_mul_ps(counts, largest, _mm512_set1_ps(1.0f / 32767.0f));
    _mm512_store_ps(x->gain + lane, _mm512_mask_mov_ps(_mm512_set1_ps(NAN), finite, worth));
    for (uint32_t j = 0; j < n; j += 2) {
        const __m512i first = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_load_ps(s + j * x->s_stride), scale));
        const __m512i second = j + 1 < n ? _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_load_ps(s + (j + 1) * x->s_stride), scale)) : _mm512_setzero_si512();
        const __m512i pairs = _mm512_mask_mov_epi16(first, 0xAAAAAAAA, _mm512_slli_epi32(second, 16));
        _mm512_store_si512((int16_t *)x->p + j / 2 * p_stride(x->n_lanes) + 2 * lane, pairs);
    }
}

typedef int16_t value_element;
typedef avx512_sums value_sums;
enum { VALUE_KEYS = 2 };
AVX512_INLINE value_sums value_none(void) { return avx512_no_sums(); }
AVX512_INLINE __m512i value_weights(const value_element *p) { return pair_at(p); }
AVX512_INLINE value_sums value_dot(value_sums sums, __m512i weights, __m512i v) { return avx512_dot_words(sums, weights, v); }
AVX512_INLINE __m512 value_of(value_sums sums, const float *gain) { return _mm512_mul_ps(avx512_of_sums(sums), _mm512_set1_ps(*gain)); }
static size_t value_v_stride(const oct_kv_spec *spec) { return v_stride(spec); }
static const value_element *value_p(const avx512_many *x) { return x->p; }
static size_t value_p_stride(const avx512_many *x) { return p_stride(x->n_lanes); }
#include "cpu/avx512_value.h"

/* And the weights that were set apart. */
static void sum_words(const oct__attn_tile *tile, const avx512_many *x)
{
    const uint32_t dim = tile->kv->spec.dim_v;
    const float keep = 1.0f;
    sum_values(tile, x);
    for (uint32_t i = 0; i < tile->n_rows * tile->n_heads; i++) {
        if (x->apart[i] == 0) {
            continue;
        }
        const uint32_t key = (uint32_t)x->apart_key[i];
        const int16_t pair[VALUE_KEYS] = { key % 2 == 0 ? 32767 : 0, key % 2 == 0 ? 0 : 32767 };
        const float gain = x->apart[i] / 32767.0f;
        for (uint32_t d = 0; d < dim; d += 64) {
            const uint32_t n_dims = dim - d < 64 ? (dim - d + 15) / 16 : 4;
            value_products[n_dims - 1][0](tile->o + i * tile->o_stride + d, tile->o_stride, &keep, &gain, pair, 0,
                                          (const int16_t *)x->v + key / 2 * v_stride(&tile->kv->spec) + VALUE_KEYS * d, 0, 1);
        }
    }
}

const avx512_many_scores oct__avx512_many_scores_word = { q_bytes, k_bytes, prepare, decode_k, score_keys, AVX512_SPAN, AVX512_KEYS };
const avx512_many_values oct__avx512_many_values_word = { v_bytes, p_bytes, decode_v, weigh, NULL, sum_words, VALUE_KEYS };

/* ---- the row --------------------------------------------------------------------------------------------------------------- */

size_t oct__attn_extend_scratch__avx512vnni(const oct_kv_spec *spec, uint32_t n_vectors)
{
    return oct__attn_decode_scratch__avx512vnni(spec, n_vectors);
}

void oct__attn_extend__avx512vnni(const oct__attn_tile *tile)
{
    oct__attn_decode__avx512vnni(tile);
}
