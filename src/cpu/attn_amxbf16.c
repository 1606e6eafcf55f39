/* attn_amxbf16.c: owns attention by AMX's bf16 tile products, for any number of vectors: the parts of attn_extend_avx512bf16.c, whose decoded
 * keys already lie as tiles want them, with products of 16 x 16 results over 32 dims or keys at a time:
 *   scores   S[key][vector]: K's rows as they are, q in tiles of [dim / 2][vector] pairs
 *   values   O[vector][dim]: weights turned from [key][vector] to [vector][key], V in pairs of keys as it is. o goes through the tiles
 * A product of 16 x 16 x 32 takes 16 cycles and loading a tile 8: two tiles by two are loaded for four products, in 24 ns at 2.9 GHz.
 * Pages of bf16 and i8 are taken as well; of bf16, rows of V with elements below 2^-100 are added in f32, since tiles have no subnormals.
 *
 * `octavo bench attn`, one core of an Emerald Rapids Xeon at 2.4 to 2.9 GHz (f32 FMAs peak at 144 GFLOP/s, vdpbf16ps at 70). Extend, 512 rows over
 * 2048 keys, 8/2 heads, GFLOP/s by head dim:
 *                                     64    128    256
 *   f32 (attn_extend_avx512.c)       129    141    144
 *   vdpbf16ps                         73     79     80
 *   tiles, e4m3                      283    359    441
 *   tiles, e4m3, 256 vectors         270    377    479    no gain over 512 keys: 238 beside 240 at dim 128
 *   tiles, bf16 pages, sums apart    248    309    329
 *   tiles, i8                        262    230    425    (words: 177, 186, 247)
 * Where a block's time goes at dim 128: products of scores 25 % and of values 38 %, of which the tiles themselves take 13 %, o's way through them from L2
 * the most; softmax 18 %, decoding 9 %, turning weights 6 %.
 * Decode, e4m3, 8192 cold keys, us, f32 and tiles: 32/8 x 128 2590, 3236; 8/1 x 128 548, 395; 8/1 x 256 1045, 696. A key costs the same for 1 to 16
 * vectors. Configuring the tiles takes 132 ns, so it is done once a call.
 *
 * Threads: works in the tile's scratch and outputs, and in the thread's tile registers between entry and return. */
#include "cpu/amx.h"
#include "cpu/avx512_bf16.h"
#include "cpu/avx512_many.h"

#define SPAN 2u   /* registers of vectors in a score product */
#define KEYS 32u  /* keys of a score product, and of a step of a value product */

/* A subnormal element of K, 2^-126 at most, counts as 0; with q below 2^60 (oct__avx512_terms_bf16) and this, 256 of them move a score by 2^-18. */
#define SCORE_SCALE_MAX 0x1p40f

enum { TILE_WORDS = AMX_TILE_BYTES / 2 };

static uint32_t n_steps(const oct_kv_spec *spec)
{
    return (spec->dim_k + AMX_PAIRS - 1) / AMX_PAIRS;
}

/* ---- products ------------------------------------------------------------------------------------------------------------- */

/* s of 32 keys and 32 vectors. k: words, rows k_stride bytes apart. q: [step][term] tiles, those of the next 16 vectors q_step bytes on. */
static void score_32_32(float *s, size_t s_stride, const uint8_t *k, size_t k_stride, const uint8_t *q, size_t q_step, uint32_t steps, uint32_t n_terms)
{
    amx_fence();
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (uint32_t d = 0; d < steps; d++, k += AMX_ROW_BYTES) {
        _tile_loadd(4, k, k_stride);
        _tile_loadd(5, k + 16 * k_stride, k_stride);
        for (uint32_t t = 0; t < n_terms; t++, q += AMX_TILE_BYTES) {
            _tile_loadd(6, q, AMX_ROW_BYTES);
            _tile_dpbf16ps(0, 4, 6);
            _tile_loadd(7, q + q_step, AMX_ROW_BYTES);
            _tile_dpbf16ps(2, 5, 6);
            _tile_dpbf16ps(1, 4, 7);
            _tile_dpbf16ps(3, 5, 7);
        }
    }
    _tile_stored(0, s, s_stride * 4);
    _tile_stored(1, s + 16, s_stride * 4);
    _tile_stored(2, s + 16 * s_stride, s_stride * 4);
    _tile_stored(3, s + 16 * s_stride + 16, s_stride * 4);
    amx_fence();
}

/* s of 32 or 64 keys and 16 vectors. */
static void score_32_16(float *s, size_t s_stride, const uint8_t *k, size_t k_stride, const uint8_t *q, uint32_t steps, uint32_t n_terms)
{
    amx_fence();
    _tile_zero(0);
    _tile_zero(1);
    for (uint32_t d = 0; d < steps; d++, k += AMX_ROW_BYTES) {
        _tile_loadd(4, k, k_stride);
        _tile_loadd(5, k + 16 * k_stride, k_stride);
        for (uint32_t t = 0; t < n_terms; t++, q += AMX_TILE_BYTES) {
            _tile_loadd(6, q, AMX_ROW_BYTES);
            _tile_dpbf16ps(0, 4, 6);
            _tile_dpbf16ps(1, 5, 6);
        }
    }
    _tile_stored(0, s, s_stride * 4);
    _tile_stored(1, s + 16 * s_stride, s_stride * 4);
    amx_fence();
}

static void score_64_16(float *s, size_t s_stride, const uint8_t *k, size_t k_stride, const uint8_t *q, uint32_t steps, uint32_t n_terms)
{
    amx_fence();
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (uint32_t d = 0; d < steps; d++, k += AMX_ROW_BYTES) {
        for (uint32_t t = 0; t < n_terms; t++, q += AMX_TILE_BYTES) {
            _tile_loadd(6, q, AMX_ROW_BYTES);
            _tile_loadd(4, k, k_stride);
            _tile_dpbf16ps(0, 4, 6);
            _tile_loadd(5, k + 16 * k_stride, k_stride);
            _tile_dpbf16ps(1, 5, 6);
            _tile_loadd(4, k + 32 * k_stride, k_stride);
            _tile_dpbf16ps(2, 4, 6);
            _tile_loadd(5, k + 48 * k_stride, k_stride);
            _tile_dpbf16ps(3, 5, 6);
        }
    }
    _tile_stored(0, s, s_stride * 4);
    _tile_stored(1, s + 16 * s_stride, s_stride * 4);
    _tile_stored(2, s + 32 * s_stride, s_stride * 4);
    _tile_stored(3, s + 48 * s_stride, s_stride * 4);
    amx_fence();
}

/* o of 32 vectors and 16 or 32 dims += steps x 32 keys. o: rows o_stride bytes apart. p: [step] tiles, those of the next 16 vectors p_step bytes
 * on. v: pairs of keys, v_stride bytes apart. */
AVX512_INLINE void value_32(float *o, size_t o_stride, const uint8_t *p, size_t p_step, const uint8_t *v, size_t v_stride, uint32_t steps,
                            const uint32_t n_dims)
{
    float *const below = o + 4 * o_stride; /* 16 rows of o_stride / 4 floats */
    amx_fence();
    _tile_loadd(0, o, o_stride);
    _tile_loadd(2, below, o_stride);
    if (n_dims > 1) {
        _tile_loadd(1, o + 16, o_stride);
        _tile_loadd(3, below + 16, o_stride);
    }
    for (uint32_t j = 0; j < steps; j++, p += AMX_TILE_BYTES, v += 16 * v_stride) {
        _tile_loadd(4, p, AMX_ROW_BYTES);
        _tile_loadd(6, v, v_stride);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(5, p + p_step, AMX_ROW_BYTES);
        _tile_dpbf16ps(2, 5, 6);
        if (n_dims > 1) {
            _tile_loadd(7, v + AMX_ROW_BYTES, v_stride);
            _tile_dpbf16ps(1, 4, 7);
            _tile_dpbf16ps(3, 5, 7);
        }
    }
    _tile_stored(0, o, o_stride);
    _tile_stored(2, below, o_stride);
    if (n_dims > 1) {
        _tile_stored(1, o + 16, o_stride);
        _tile_stored(3, below + 16, o_stride);
    }
    amx_fence();
}

/* o of 16 vectors and n_dims x 16 dims, 4 at most. */
AVX512_INLINE void value_16(float *o, size_t o_stride, const uint8_t *p, const uint8_t *v, size_t v_stride, uint32_t steps, const uint32_t n_dims)
{
    amx_fence();
    _tile_loadd(0, o, o_stride);
    if (n_dims > 1) {
        _tile_loadd(1, o + 16, o_stride);
    }
    if (n_dims > 2) {
        _tile_loadd(2, o + 32, o_stride);
    }
    if (n_dims > 3) {
        _tile_loadd(3, o + 48, o_stride);
    }
    for (uint32_t j = 0; j < steps; j++, p += AMX_TILE_BYTES, v += 16 * v_stride) {
        _tile_loadd(4, p, AMX_ROW_BYTES);
        _tile_loadd(6, v, v_stride);
        _tile_dpbf16ps(0, 4, 6);
        if (n_dims > 1) {
            _tile_loadd(7, v + AMX_ROW_BYTES, v_stride);
            _tile_dpbf16ps(1, 4, 7);
        }
        if (n_dims > 2) {
            _tile_loadd(6, v + 2 * AMX_ROW_BYTES, v_stride);
            _tile_dpbf16ps(2, 4, 6);
        }
        if (n_dims > 3) {
            _tile_loadd(7, v + 3 * AMX_ROW_BYTES, v_stride);
            _tile_dpbf16ps(3, 4, 7);
        }
    }
    _tile_stored(0, o, o_stride);
    if (n_dims > 1) {
        _tile_stored(1, o + 16, o_stride);
    }
    if (n_dims > 2) {
        _tile_stored(2, o + 32, o_stride);
    }
    if (n_dims > 3) {
        _tile_stored(3, o + 48, o_stride);
    }
    amx_fence();
}

/* ---- scores --------------------------------------------------------------------------------------------------------------- */

/* By 16 vectors: [step][term] tiles. */
static size_t q_bytes(const oct_kv_spec *spec, uint32_t n_lanes)
{
    return (size_t)n_lanes / AMX_LANES * n_steps(spec) * 2 * AMX_TILE_BYTES;
}

static void prepare(const oct__attn_tile *tile, avx512_many *x, uint32_t n_most)
{
    const uint32_t dim = tile->kv->spec.dim_k;
    uint16_t *to = x->q;
    for (uint32_t lane = 0; lane < x->n_lanes; lane += AMX_LANES) {
        for (uint32_t d = 0; d < dim; d += AMX_PAIRS, to += n_most * TILE_WORDS) {
            __m512i term[2][AMX_LANES];
            for (uint32_t i = 0; i < AMX_LANES; i++) {
                avx512_split_q(tile->q + avx512_lane_vector(tile, lane + i) * tile->q_stride + d, dim - d, &term[0][i], &term[1][i]);
            }
            for (uint32_t t = 0; t < n_most; t++) {
                amx_turn(term[t]);
                for (uint32_t i = 0; i < AMX_LANES; i++) {
                    _mm512_store_si512(to + t * TILE_WORDS + i * AMX_PAIRS, term[t][i]);
                }
            }
        }
    }
}

static void score_keys(const oct_kv_spec *spec, avx512_many *x, uint32_t lane, uint32_t n_registers, uint32_t from, uint32_t to, uint32_t n_terms)
{
    const size_t k_stride = oct__avx512_bf16_k_stride(spec) * 2, q_step = (size_t)n_steps(spec) * n_terms * AMX_TILE_BYTES;
    const uint8_t *q = (const uint8_t *)x->q + lane / AMX_LANES * q_step;
    for (uint32_t j = from / KEYS * KEYS; j < to; j += KEYS) {
        float *s = x->s + j * x->s_stride + lane;
        const uint8_t *k = (const uint8_t *)x->k + j * k_stride;
        if (n_registers == 2) {
            score_32_32(s, x->s_stride, k, k_stride, q, q_step, n_steps(spec), n_terms);
        } else if (to - j > KEYS) {
            score_64_16(s, x->s_stride, k, k_stride, q, n_steps(spec), n_terms);
            j += KEYS;
        } else {
            score_32_16(s, x->s_stride, k, k_stride, q, n_steps(spec), n_terms);
        }
    }
}

/* ---- values --------------------------------------------------------------------------------------------------------------- */

/* By 16 vectors: [step of a block] tiles of [vector][key]; behind them o of vectors that don't fill 16. */
enum { P_STEPS = AVX512_BLOCK / KEYS, PAD_FLOATS = 64 };
static size_t p_bytes(const oct_kv_spec *spec, uint32_t n_lanes)
{
    (void)spec;
    return (size_t)n_lanes / AMX_LANES * P_STEPS * AMX_TILE_BYTES + AMX_LANES * PAD_FLOATS * sizeof(float);
}

/* Past n the weights of a step are 0. */
static void weigh(avx512_many *x, uint32_t lane, uint32_t n)
{
    const __m512i mix = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    uint16_t *to = (uint16_t *)x->p + (size_t)lane / AMX_LANES * P_STEPS * TILE_WORDS;
    for (uint32_t j = 0; j < n; j += KEYS, to += TILE_WORDS) {
        __m512i pairs[AMX_LANES];
        AVX512_UNROLL for (uint32_t i = 0; i < AMX_LANES; i++)
        {
            const uint32_t key = j + 2 * i;
            const float *s = x->s + key * x->s_stride + lane;
            const __m512 first = key < n ? _mm512_load_ps(s) : _mm512_setzero_ps();
            const __m512 second = key + 1 < n ? _mm512_load_ps(s + x->s_stride) : _mm512_setzero_ps();
            pairs[i] = _mm512_permutexvar_epi16(mix, avx512_to_bf16(first, second));
        }
        amx_turn(pairs);
        AVX512_UNROLL for (uint32_t i = 0; i < AMX_LANES; i++)
        {
            _mm512_store_si512(to + i * AMX_PAIRS, pairs[i]);
        }
    }
}

/* o of vectors [i, i + n) by what their maxima rose. */
static void keep_share(const oct__attn_tile *tile, const avx512_many *x, uint32_t i, uint32_t n)
{
    for (uint32_t end = i + n; i < end; i++) {
        float *o = tile->o + i * tile->o_stride;
        if (x->keep[i] == 1.0f) {
            continue;
        }
        for (uint32_t d = 0; d < tile->kv->spec.dim_v; d += 16) {
            _mm512_store_ps(o + d, _mm512_mul_ps(_mm512_load_ps(o + d), _mm512_set1_ps(x->keep[i])));
        }
    }
}

static void value_16_any(float *o, size_t o_stride, const uint8_t *p, const uint8_t *v, size_t v_stride, uint32_t steps, uint32_t n_dims)
{
    switch (n_dims) {
    case 1:
        value_16(o, o_stride, p, v, v_stride, steps, 1);
        break;
    case 2:
        value_16(o, o_stride, p, v, v_stride, steps, 2);
        break;
    case 3:
        value_16(o, o_stride, p, v, v_stride, steps, 3);
        break;
    default:
        value_16(o, o_stride, p, v, v_stride, steps, 4);
    }
}

/* By way of `pad`: o of n < 16 vectors, which has no more rows; and sums that are added to o as f32, which takes a subnormal o as it is. */
static void value_some(float *o, size_t o_stride, float *pad, const uint8_t *p, const uint8_t *v, size_t v_stride, uint32_t steps, uint32_t n_dims, uint32_t n,
                       bool is_apart)
{
    const size_t step = o_stride / sizeof(float);
    for (uint32_t i = 0; i < n; i++) {
        for (uint32_t d = 0; d < 16 * n_dims; d += 16) {
            _mm512_store_ps(pad + i * PAD_FLOATS + d, is_apart ? _mm512_setzero_ps() : _mm512_load_ps(o + i * step + d));
        }
    }
    value_16_any(pad, PAD_FLOATS * sizeof(float), p, v, v_stride, steps, n_dims);
    for (uint32_t i = 0; i < n; i++) {
        for (uint32_t d = 0; d < 16 * n_dims; d += 16) {
            const __m512 sum = _mm512_load_ps(pad + i * PAD_FLOATS + d);
            _mm512_store_ps(o + i * step + d, is_apart ? _mm512_add_ps(_mm512_load_ps(o + i * step + d), sum) : sum);
        }
    }
}

static void sum_values(const oct__attn_tile *tile, const avx512_many *x)
{
    const oct_kv_spec *spec = &tile->kv->spec;
    const uint32_t n_vectors = tile->n_rows * tile->n_heads;
    const size_t o_stride = (size_t)tile->o_stride * sizeof(float), v_stride = oct__avx512_bf16_v_stride(spec) * 2;
    const size_t p_step = P_STEPS * AMX_TILE_BYTES;
    const bool is_apart = spec->v.dtype == OCT_DTYPE_BF16;
    float *pad = (float *)(void *)((uint8_t *)x->p + x->n_lanes / AMX_LANES * p_step);
    for (uint32_t i = 0, n; i < n_vectors; i += n) {
        uint32_t from, to;
        n = n_vectors - i >= 2 * AMX_LANES && !is_apart ? 2 * AMX_LANES : n_vectors - i >= AMX_LANES ? AMX_LANES : n_vectors - i;
        avx512_lanes_range(x, i, i + n, &from, &to);
        if (from >= to) {
            continue;
        }
        keep_share(tile, x, i, n);
        const uint32_t first = from / KEYS, steps = (to + KEYS - 1) / KEYS - first;
        const uint8_t *p = (const uint8_t *)x->p + i / AMX_LANES * p_step + first * AMX_TILE_BYTES;
        const uint8_t *v = (const uint8_t *)x->v + first * 16 * v_stride;
        float *o = tile->o + i * tile->o_stride;
        for (uint32_t d = 0, n_dims; d < spec->dim_v; d += 16 * n_dims, v += n_dims * AMX_ROW_BYTES) {
            const uint32_t left = (spec->dim_v - d + 15) / 16;
            if (n == 2 * AMX_LANES) {
                n_dims = left > 1 ? 2 : 1;
                if (n_dims == 2) {
                    value_32(o + d, o_stride, p, p_step, v, v_stride, steps, 2);
                } else {
                    value_32(o + d, o_stride, p, p_step, v, v_stride, steps, 1);
                }
            } else {
                n_dims = left < 4 ? left : 4;
                if (n == AMX_LANES && !is_apart) {
                    value_16_any(o + d, o_stride, p, v, v_stride, steps, n_dims);
                } else {
                    value_some(o + d, o_stride, pad, p, v, v_stride, steps, n_dims, n, is_apart);
                }
            }
        }
    }
}

/* Tiles take subnormals as 0 and leave them as 0, products with small weights among them. In a cache of bf16 all elements may be that small: rows
 * that hold one below 2^-100 are kept out. What the others lose is 2^-126 a key. */
static bool is_odd(const oct_kv_spec *spec, const uint8_t *row)
{
    const __m512i abs = _mm512_set1_epi16(0x7FFF), one = _mm512_set1_epi16(1), most = _mm512_set1_epi16(0x0D7E);
    __mmask32 odd = 0;
    for (uint32_t d = 0; d < spec->dim_v; d += 32) {
        const uint32_t left = spec->dim_v - d;
        const __m512i x = _mm512_and_si512(left < 32 ? avx512_load_row(row + 2 * d, 2 * left, false) : avx512_load_row(row + 2 * d, 64, true), abs);
        odd |= _mm512_cmple_epu16_mask(_mm512_sub_epi16(x, one), most); /* 1 to 0x0D7F */
    }
    return odd != 0;
}

const avx512_many_scores oct__amx_scores_bf16 = { q_bytes, oct__avx512_bf16_k_bytes, prepare, oct__avx512_bf16_decode_k, score_keys, SPAN, KEYS };
const avx512_many_values oct__amx_values_bf16 = { oct__avx512_bf16_v_bytes, p_bytes, oct__avx512_bf16_decode_v, weigh, NULL, sum_values, KEYS };
/* For pages of bf16. */
const avx512_many_values oct__amx_values_of_bf16 = { oct__avx512_bf16_v_bytes, p_bytes, oct__avx512_bf16_decode_v, weigh, is_odd, sum_values, KEYS };

/* ---- the rows ------------------------------------------------------------------------------------------------------------- */

size_t oct__attn_decode_scratch__amxbf16(const oct_kv_spec *spec, uint32_t n_vectors)
{
    const size_t own = oct__avx512_many_scratch(spec, n_vectors, &oct__amx_scores_bf16, &oct__amx_values_bf16);
    const size_t f32 = oct__attn_decode_scratch__avx512(spec, n_vectors);
    return own > f32 ? own : f32;
}

void oct__attn_decode__amxbf16(const oct__attn_tile *tile)
{
    const avx512_terms terms = oct__avx512_terms_bf16(tile);
    const avx512_many_values *values = tile->kv->spec.v.dtype == OCT_DTYPE_BF16 ? &oct__amx_values_of_bf16 : &oct__amx_values_bf16;
    if (terms.n == 0 || (tile->kv->spec.k.dtype == OCT_DTYPE_BF16 && !(fabsf(tile->score_scale) < SCORE_SCALE_MAX))) {
        oct__attn_decode__avx512(tile);
        return;
    }
    _tile_loadconfig(&amx_whole_tiles);
    oct__avx512_many_run(tile, &oct__amx_scores_bf16, values, terms);
    _tile_release();
}

size_t oct__attn_extend_scratch__amxbf16(const oct_kv_spec *spec, uint32_t n_vectors)
{
    return oct__attn_decode_scratch__amxbf16(spec, n_vectors);
}

void oct__attn_extend__amxbf16(const oct__attn_tile *tile)
{
    oct__attn_decode__amxbf16(tile);
}
