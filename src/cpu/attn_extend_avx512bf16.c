/* attn_extend_avx512bf16.c: owns attention of many vectors over 8-bit pages by bf16 dot products; avx512_bf16.h says what they are good for.
 * As attn_extend_avx512.c, but keys are decoded to bf16, and products take two elements at a time:
 *   scores   pairs of dims: K rows as they are, q as [dim / 2][vector] pairs
 *   values   pairs of keys: V and the weights as [key / 2][..] pairs
 * Causal prompt of 2048 tokens over e4m3, GFLOP/s of one Zen 4 core at 3.7 GHz by head dim (f32 FMAs peak at 118):
 *                                               64    128    256
 *   f32 (attn_extend_avx512.c)                  98    102    106
 *   bf16, q as two bf16                        117    128    134
 *   bf16, q that bf16 holds                    156    178    190
 *
 * Threads: works in the tile's scratch and outputs. */
#include "cpu/avx512_bf16.h"
#include "cpu/avx512_many.h"

/* ---- products ------------------------------------------------------------------------------------------------------------- */

AVX512_INLINE __m512i pair_at(const uint16_t *words)
{
    int32_t pair;
    memcpy(&pair, words, sizeof(pair));
    return _mm512_set1_epi32(pair);
}

/* s[key][lane] for AVX512_KEYS keys and n x 16 lanes. k: words. q: words, [dim / 2][term][n x 16 pairs]. */
AVX512_INLINE void score_product(float *s, size_t s_stride, const uint16_t *k, size_t k_stride, const uint16_t *q, uint32_t dim, const uint32_t n,
                                 const uint32_t n_terms)
{
    __m512 sum[AVX512_KEYS][AVX512_SPAN];
    AVX512_UNROLL for (uint32_t j = 0; j < AVX512_KEYS; j++)
    {
        AVX512_UNROLL for (uint32_t l = 0; l < n; l++)
        {
            sum[j][l] = _mm512_setzero_ps();
        }
    }
    for (uint32_t d = 0; d < dim; d += 2, q += 32 * n * n_terms) {
        AVX512_UNROLL for (uint32_t t = 0; t < n_terms; t++)
        {
            __m512i x[AVX512_SPAN];
            AVX512_UNROLL for (uint32_t l = 0; l < n; l++)
            {
                x[l] = _mm512_load_si512(q + 32 * (n * t + l));
            }
            AVX512_UNROLL for (uint32_t j = 0; j < AVX512_KEYS; j++)
            {
                const __m512i y = pair_at(k + j * k_stride + d);
                AVX512_UNROLL for (uint32_t l = 0; l < n; l++)
                {
                    sum[j][l] = avx512_dot(sum[j][l], y, x[l]);
                }
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

#define SCORE(n, n_terms)                                                                                                                \
    static void score_##n##_##n_terms(float *s, size_t s_stride, const uint16_t *k, size_t k_stride, const uint16_t *q, uint32_t dim)    \
    {                                                                                                                                    \
        score_product(s, s_stride, k, k_stride, q, dim, n, n_terms);                                                                     \
    }
SCORE(1, 1) SCORE(2, 1) SCORE(3, 1) SCORE(1, 2) SCORE(2, 2) SCORE(3, 2)

typedef void score_product_fn(float *s, size_t s_stride, const uint16_t *k, size_t k_stride, const uint16_t *q, uint32_t dim);
static score_product_fn *const score_products[2][AVX512_SPAN] = { { score_1_1, score_2_1, score_3_1 }, { score_1_2, score_2_2, score_3_2 } };

/* ---- decoding -------------------------------------------------------------------------------------------------------------- */

/* Where byte p of a row must come from, so that words come out in order: 0-31 in the first register, 32-63 in the second. */
#define WORD_ORDER(p) ((((p) & 15) >= 8) * 32 + ((p) >> 4) * 8 + ((p) & 7))
static const _Alignas(64) uint8_t word_order[64] = { AVX512_64(WORD_ORDER, 0) };

/* n rows of dim elements to words. next: rows to prefetch. */
AVX512_INLINE void decode_k(uint16_t *to, size_t stride, const uint8_t *const *rows, const uint8_t *const *next, uint32_t n, uint32_t dim,
                            const avx512_decoder *decoder, const avx512_kind kind)
{
    const __m512i order = _mm512_load_si512(word_order);
    for (uint32_t j = 0; j < n; j++, to += stride) {
        avx512_prefetch(next[j], dim);
        for (uint32_t d = 0; d < dim; d += 64) {
            __m512i first, second;
            const __m512i codes = d + 64 <= dim ? avx512_load_row(rows[j] + d, 64, true) : avx512_load_row(rows[j] + d, dim - d, false);
            avx512_words_of(_mm512_permutexvar_epi8(order, codes), decoder, kind, &first, &second);
            _mm512_store_si512(to + d, first);
            _mm512_store_si512(to + d + 32, second);
        }
    }
}

/* n rows of dim elements, n even, to pairs. */
AVX512_INLINE void decode_v(uint16_t *to, size_t stride, const uint8_t *const *rows, const uint8_t *const *next, uint32_t n, uint32_t dim,
                            const avx512_decoder *decoder, const avx512_kind kind)
{
    for (uint32_t j = 0; j < n; j += 2, to += stride) {
        avx512_prefetch(next[j], dim);
        avx512_prefetch(next[j + 1], dim);
        for (uint32_t d = 0; d < dim; d += 64) {
            const bool is_whole = d + 64 <= dim;
            __m512i codes[2], x[4];
            if (is_whole) {
                avx512_pair_rows(avx512_load_row(rows[j] + d, 64, true), avx512_load_row(rows[j + 1] + d, 64, true), &codes[0], &codes[1]);
            } else {
                avx512_pair_rows(avx512_load_row(rows[j] + d, dim - d, false), avx512_load_row(rows[j + 1] + d, dim - d, false), &codes[0], &codes[1]);
            }
            avx512_words_of(codes[0], decoder, kind, &x[0], &x[1]);
            avx512_words_of(codes[1], decoder, kind, &x[2], &x[3]);
            AVX512_UNROLL for (uint32_t i = 0; i < 4; i++)
            {
                _mm512_store_si512(to + 2 * d + 32 * i, x[i]);
            }
        }
    }
}

#define DECODE(name, kind)                                                                                                                      \
    static void name##_##kind(uint16_t *to, size_t stride, const uint8_t *const *rows, const uint8_t *const *next, uint32_t n, uint32_t dim,   \
                              const avx512_decoder *decoder)                                                                                   \
    {                                                                                                                                          \
        name(to, stride, rows, next, n, dim, decoder, AVX512_##kind);                                                                          \
    }
DECODE(decode_k, BYTE)
DECODE(decode_k, BYTE_NUZ)
DECODE(decode_k, I8)
DECODE(decode_v, BYTE)
DECODE(decode_v, BYTE_NUZ)
DECODE(decode_v, I8)

/* The same for pages that hold bf16: AMX's row takes them. */
static void copy_k(uint16_t *to, size_t stride, const uint8_t *const *rows, const uint8_t *const *next, uint32_t n, uint32_t dim, const avx512_decoder *decoder)
{
    (void)decoder;
    for (uint32_t j = 0; j < n; j++, to += stride) {
        avx512_prefetch(next[j], 2 * dim);
        for (uint32_t d = 0; d < dim; d += 32) {
            const __m512i x = d + 32 <= dim ? avx512_load_row(rows[j] + 2 * d, 64, true) : avx512_load_row(rows[j] + 2 * d, 2 * (dim - d), false);
            _mm512_store_si512(to + d, x);
        }
    }
}
static void copy_v(uint16_t *to, size_t stride, const uint8_t *const *rows, const uint8_t *const *next, uint32_t n, uint32_t dim, const avx512_decoder *decoder)
{
    const __m512i low = _mm512_set_epi16(47, 15, 46, 14, 45, 13, 44, 12, 43, 11, 42, 10, 41, 9, 40, 8, 39, 7, 38, 6, 37, 5, 36, 4, 35, 3, 34, 2, 33, 1, 32, 0);
    const __m512i high = _mm512_or_si512(low, _mm512_set1_epi16(16));
    (void)decoder;
    for (uint32_t j = 0; j < n; j += 2, to += stride) {
        avx512_prefetch(next[j], 2 * dim);
        avx512_prefetch(next[j + 1], 2 * dim);
        for (uint32_t d = 0; d < dim; d += 32) {
            const bool is_whole = d + 32 <= dim;
            const __m512i a = is_whole ? avx512_load_row(rows[j] + 2 * d, 64, true) : avx512_load_row(rows[j] + 2 * d, 2 * (dim - d), false);
            const __m512i b = is_whole ? avx512_load_row(rows[j + 1] + 2 * d, 64, true) : avx512_load_row(rows[j + 1] + 2 * d, 2 * (dim - d), false);
            _mm512_store_si512(to + 2 * d, _mm512_permutex2var_epi16(a, low, b));
            _mm512_store_si512(to + 2 * d + 32, _mm512_permutex2var_epi16(a, high, b));
        }
    }
}

typedef void decode_fn(uint16_t *to, size_t stride, const uint8_t *const *rows, const uint8_t *const *next, uint32_t n, uint32_t dim,
                       const avx512_decoder *decoder);
static decode_fn *const decode_ks[AVX512_KINDS] = { [AVX512_BYTE] = decode_k_BYTE, [AVX512_BYTE_NUZ] = decode_k_BYTE_NUZ, [AVX512_I8] = decode_k_I8,
                                                     [AVX512_BF16] = copy_k };
static decode_fn *const decode_vs[AVX512_KINDS] = { [AVX512_BYTE] = decode_v_BYTE, [AVX512_BYTE_NUZ] = decode_v_BYTE_NUZ, [AVX512_I8] = decode_v_I8,
                                                     [AVX512_BF16] = copy_v };

/* ---- the parts ------------------------------------------------------------------------------------------------------------- */

/* Strides in words, padded against L1's sets. */
size_t oct__avx512_bf16_k_stride(const oct_kv_spec *spec)
{
    return (spec->dim_k + 63u) / 64 * 64 + 32;
}
size_t oct__avx512_bf16_v_stride(const oct_kv_spec *spec)
{
    return 2 * ((spec->dim_v + 63u) / 64 * 64) + 32;
}
static size_t p_stride(uint32_t n_lanes)
{
    return 2 * n_lanes + 32;
}

/* q by group of up to AVX512_SPAN registers: [dim_k / 2][term][lanes of the group], pairs. */
static size_t q_bytes(const oct_kv_spec *spec, uint32_t n_lanes)
{
    return (size_t)n_lanes * spec->dim_k * 2 * sizeof(uint16_t);
}
size_t oct__avx512_bf16_k_bytes(const oct_kv_spec *spec)
{
    return AVX512_BLOCK * oct__avx512_bf16_k_stride(spec) * sizeof(uint16_t);
}
size_t oct__avx512_bf16_v_bytes(const oct_kv_spec *spec)
{
    return AVX512_BLOCK / 2 * oct__avx512_bf16_v_stride(spec) * sizeof(uint16_t);
}
static size_t p_bytes(const oct_kv_spec *spec, uint32_t n_lanes)
{
    (void)spec;
    return AVX512_BLOCK / 2 * p_stride(n_lanes) * sizeof(uint16_t);
}

static void prepare(const oct__attn_tile *tile, avx512_many *x, uint32_t n_terms)
{
    const uint32_t dim = tile->kv->spec.dim_k, n_registers = x->n_lanes / 16;
    for (uint32_t r = 0, n; r < n_registers; r += n) {
        n = avx512_span(n_registers, r, AVX512_SPAN);
        uint16_t *to = (uint16_t *)x->q + (size_t)16 * r * dim * n_terms;
        for (uint32_t l = 0; l < 16 * n; l++) {
            const float *from = tile->q + avx512_lane_vector(tile, 16 * r + l) * tile->q_stride;
            for (uint32_t d = 0; d < dim; d += 32) {
                _Alignas(64) uint16_t term[2][32];
                __m512i high, low;
                avx512_split_q(from + d, dim - d, &high, &low);
                _mm512_store_si512(term[0], high);
                _mm512_store_si512(term[1], low);
                for (uint32_t i = 0; i < 32 && d + i < dim; i += 2) {
                    for (uint32_t t = 0; t < n_terms; t++) {
                        memcpy(to + ((size_t)(d + i) / 2 * n_terms + t) * 32 * n + 2 * l, &term[t][i], 4);
                    }
                }
            }
        }
    }
}

void oct__avx512_bf16_decode_k(const oct_kv_spec *spec, avx512_many *x, const uint8_t *const *rows, const uint8_t *const *next, uint32_t n)
{
    const avx512_decoder decoder = avx512_decoder_of(avx512_table_of(spec->k.dtype));
    decode_ks[avx512_kind_of(spec->k.dtype)](x->k, oct__avx512_bf16_k_stride(spec), rows, next, n, spec->dim_k, &decoder);
}

void oct__avx512_bf16_decode_v(const oct_kv_spec *spec, avx512_many *x, const uint8_t *const *rows, const uint8_t *const *next, uint32_t n)
{
    const avx512_decoder decoder = avx512_decoder_of(avx512_table_of(spec->v.dtype));
    decode_vs[avx512_kind_of(spec->v.dtype)](x->v, oct__avx512_bf16_v_stride(spec), rows, next, n, spec->dim_v, &decoder);
}

static void score_keys(const oct_kv_spec *spec, avx512_many *x, uint32_t lane, uint32_t n_registers, uint32_t from, uint32_t to, uint32_t n_terms)
{
    const size_t k_stride = oct__avx512_bf16_k_stride(spec);
    for (uint32_t j = from / AVX512_KEYS * AVX512_KEYS; j < to; j += AVX512_KEYS) {
        score_products[n_terms - 1][n_registers - 1](x->s + j * x->s_stride + lane, x->s_stride, (const uint16_t *)x->k + j * k_stride, k_stride,
                                                     (const uint16_t *)x->q + (size_t)lane * spec->dim_k * n_terms, spec->dim_k);
    }
}

/* Pairs of keys; past n they are 0. */
static void weigh(avx512_many *x, uint32_t lane, uint32_t n)
{
    const __m512i mix = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    for (uint32_t j = 0; j < n; j += 2) {
        const float *s = x->s + j * x->s_stride + lane;
        const __m512 first = _mm512_load_ps(s), second = j + 1 < n ? _mm512_load_ps(s + x->s_stride) : _mm512_setzero_ps();
        _mm512_store_si512((uint16_t *)x->p + j / 2 * p_stride(x->n_lanes) + 2 * lane, _mm512_permutexvar_epi16(mix, avx512_to_bf16(first, second)));
    }
}

typedef uint16_t value_element;
typedef __m512 value_sums;
enum { VALUE_KEYS = 2 };
AVX512_INLINE value_sums value_none(void) { return _mm512_setzero_ps(); }
AVX512_INLINE __m512i value_weights(const value_element *p) { return pair_at(p); }
AVX512_INLINE value_sums value_dot(value_sums sums, __m512i weights, __m512i v) { return avx512_dot(sums, weights, v); }
AVX512_INLINE __m512 value_of(value_sums sums, const float *gain)
{
    (void)gain;
    return sums;
}
static size_t value_v_stride(const oct_kv_spec *spec) { return oct__avx512_bf16_v_stride(spec); }
static const value_element *value_p(const avx512_many *x) { return x->p; }
static size_t value_p_stride(const avx512_many *x) { return p_stride(x->n_lanes); }
#include "cpu/avx512_value.h"

const avx512_many_scores oct__avx512_many_scores_bf16 = { q_bytes,    oct__avx512_bf16_k_bytes, prepare,    oct__avx512_bf16_decode_k,
                                                          score_keys, AVX512_SPAN,              AVX512_KEYS };
const avx512_many_values oct__avx512_many_values_bf16 = { oct__avx512_bf16_v_bytes, p_bytes, oct__avx512_bf16_decode_v, weigh, NULL, sum_values, VALUE_KEYS };

/* ---- the row --------------------------------------------------------------------------------------------------------------- */

size_t oct__attn_extend_scratch__avx512bf16(const oct_kv_spec *spec, uint32_t n_vectors)
{
    return oct__attn_decode_scratch__avx512bf16(spec, n_vectors);
}

void oct__attn_extend__avx512bf16(const oct__attn_tile *tile)
{
    oct__attn_decode__avx512bf16(tile);
}
