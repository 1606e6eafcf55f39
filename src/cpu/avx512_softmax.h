/* avx512_softmax.h: owns what AVX-512 kernels do between scores and values of few vectors, keys in the lanes: scale, cap, running maximum
 * and sum, weights. The state is kept in powers of two: m is the maximum of log2(e) * s, and leaves in natural units at the end. */
#ifndef OCT_CPU_AVX512_SOFTMAX_H
#define OCT_CPU_AVX512_SOFTMAX_H

#include <float.h>
#include <math.h>

#include "cpu/avx512_keys.h"

#define AVX512_LOG2E 1.44269504088896341
#define AVX512_LN2 0.693147180559945309

/* ---- sums over lanes --------------------------------------------------------------------------------------------------------- */

/* Within each 16-byte lane: the sum of a's, of b's, of c's and of d's four floats. */
AVX512_INLINE __m512 avx512_sum4(__m512 a, __m512 b, __m512 c, __m512 d)
{
    const __m512d x = _mm512_castps_pd(_mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b)));
    const __m512d y = _mm512_castps_pd(_mm512_add_ps(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d)));
    return _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(x, y)), _mm512_castpd_ps(_mm512_unpackhi_pd(x, y)));
}

/* Sums of neighbouring lanes of 16 bytes: a's two, then b's. */
AVX512_INLINE __m512 avx512_sum2_128(__m512 a, __m512 b)
{
    return _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xDD));
}

/* The transpose of four lanes of four floats. */
AVX512_INLINE __m512 avx512_turn4(__m512 x)
{
    return _mm512_permutexvar_ps(_mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15), x);
}

/* All 16 lanes, in the order in which avx512_sum_keys adds. */
AVX512_INLINE float avx512_sum16(__m512 x)
{
    x = _mm512_add_ps(x, _mm512_shuffle_f32x4(x, x, 0x4E));
    x = _mm512_add_ps(x, _mm512_shuffle_f32x4(x, x, 0xB1));
    x = _mm512_add_ps(x, _mm512_shuffle_ps(x, x, 0x4E));
    return _mm512_cvtss_f32(_mm512_add_ps(x, _mm512_shuffle_ps(x, x, 0xB1)));
}

/* The same of four vectors, where lane l of x[i] has key 4 i + l: their sums, in every lane. */
AVX512_INLINE __m512 avx512_sum_keys(const __m512 *x)
{
    const __m512 y = _mm512_add_ps(_mm512_add_ps(x[0], x[2]), _mm512_add_ps(x[1], x[3]));
    const __m512 z = _mm512_add_ps(y, _mm512_shuffle_f32x4(y, y, 0x4E));
    return _mm512_add_ps(z, _mm512_shuffle_f32x4(z, z, 0xB1));
}

/* ---- where scores and weights lie ----------------------------------------------------------------------------------------------- */

/* One or two vectors: s[vector][AVX512_BLOCK]. Three and four: s[AVX512_BLOCK][4], a lane of 16 bytes for each key, as sums over lanes leave them, and
 * maxima, sums and factors of all vectors come out at once; the fourth of three is 0 and goes along. Eight: twice four. */
AVX512_INLINE uint32_t avx512_at(uint32_t v, uint32_t j, const uint32_t n_vectors)
{
    return n_vectors <= 2 ? v * AVX512_BLOCK + j : v / 4 * 4 * AVX512_BLOCK + 4 * j + v % 4;
}

/* In words, the weights of keys j and j + 1, j even, side by side. */
AVX512_INLINE uint32_t avx512_pair_at(uint32_t v, uint32_t j, const uint32_t n_vectors)
{
    return n_vectors <= 2 ? v * AVX512_BLOCK + j : v / 4 * 4 * AVX512_BLOCK + 4 * j + 2 * (v % 4);
}

/* ---- one vector over one block ------------------------------------------------------------------------------------------------ */

/* Above this, log2(e) * cap and scale / cap come near the ends of f32's range. */
#define AVX512_CAP_WIDE 1e30f

/* A cap near f32's largest: the score first, since scale / cap may be subnormal; a score that is small beside the cap is its own capped value
 * (tanh x = x - x^3 / 3); and log2(e) * cap may not be finite. */
static inline __m512 avx512_scores_wide_cap(const oct__attn_tile *tile, __m512 raw)
{
    const __m512 s = _mm512_mul_ps(raw, _mm512_set1_ps(tile->score_scale)), cap = _mm512_set1_ps(tile->softcap), limit = _mm512_set1_ps(FLT_MAX);
    const __m512 capped = _mm512_mul_ps(avx512_tanh(_mm512_div_ps(s, cap)), cap);
    const __mmask16 linear = _mm512_cmp_ps_mask(_mm512_abs_ps(s), _mm512_set1_ps(1e-4f * tile->softcap), _CMP_LT_OQ);
    const __m512 x = _mm512_mul_ps(_mm512_mask_mov_ps(capped, linear, s), _mm512_set1_ps((float)AVX512_LOG2E));
    return _mm512_max_ps(_mm512_sub_ps(_mm512_setzero_ps(), limit), _mm512_min_ps(limit, x)); /* the second operand, so that a NaN stays */
}

/* Raw products to log2(e) * s without its maximum: scale, K's dynamic scale, cap. */
AVX512_INLINE __m512 avx512_scores(const oct__attn_tile *tile, __m512 raw)
{
    if (tile->softcap > AVX512_CAP_WIDE) {
        return avx512_scores_wide_cap(tile, raw);
    }
    if (tile->softcap > 0) {
        const __m512 t = avx512_tanh(_mm512_mul_ps(raw, _mm512_set1_ps(tile->score_scale / tile->softcap)));
        return _mm512_mul_ps(t, _mm512_set1_ps(tile->softcap * (float)AVX512_LOG2E));
    }
    return _mm512_mul_ps(raw, _mm512_set1_ps(tile->score_scale * (float)AVX512_LOG2E));
}

/* While nothing but -inf has been seen, -inf - -inf would be NaN: subtract 0 instead. */
AVX512_INLINE float avx512_base(float max) { return max == -INFINITY ? 0.0f : max; }

/* From raw products s[AVX512_BLOCK] of a vector to scores in powers of two, in place, K's dynamic scale included. Returns their maximum. */
AVX512_INLINE float avx512_softmax_scores(const oct__attn_tile *tile, const avx512_block *b, float *s, const uint32_t n, const bool k_dynamic)
{
    const __m512 hidden = _mm512_set1_ps(-INFINITY);
    __m512 max = hidden;
    for (uint32_t i = 0; i < n; i += 16) {
        __m512 x = _mm512_load_ps(s + i);
        if (k_dynamic) {
            x = _mm512_mul_ps(x, _mm512_load_ps(b->k_scale + i));
        }
        x = avx512_scores(tile, x);
        if (i + 16 > n) {
            x = _mm512_mask_mov_ps(hidden, (__mmask16)((1u << (n - i)) - 1), x);
        }
        _mm512_store_ps(s + i, x);
        max = _mm512_max_ps(x, max); /* a NaN score is passed over here and comes out of exp2 */
    }
    return _mm512_reduce_max_ps(max);
}

/* From there to weights, in place, V's dynamic scale included; past n they are 0. Returns what o must be multiplied by. */
AVX512_INLINE float avx512_softmax_weights(const avx512_block *b, float *s, float block_max, float *m, float *z, const uint32_t n, const bool v_dynamic)
{
    const float now = block_max > *m ? block_max : *m;
    const __m512 base = _mm512_set1_ps(avx512_base(now));
    const float keep = _mm512_cvtss_f32(avx512_exp2(_mm512_sub_ps(_mm512_set1_ps(*m), base)));
    __m512 sum = _mm512_setzero_ps();
    for (uint32_t i = 0; i < AVX512_BLOCK; i += 16) {
        if (i >= n) {
            _mm512_store_ps(s + i, _mm512_setzero_ps());
            continue;
        }
        __m512 p = avx512_exp2(_mm512_sub_ps(_mm512_load_ps(s + i), base));
        sum = _mm512_add_ps(sum, p);
        if (v_dynamic) {
            p = _mm512_mul_ps(p, _mm512_load_ps(b->v_scale + i));
        }
        _mm512_store_ps(s + i, p);
    }
    *z = *z * keep + avx512_sum16(sum);
    *m = now;
    return keep;
}

/* ---- four vectors over one block ------------------------------------------------------------------------------------------------ */

/* The scale of each of four keys in its lane. */
AVX512_INLINE __m512 avx512_scales_of(const float *scale)
{
    const __m512i lanes = _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3);
    return _mm512_permutexvar_ps(lanes, _mm512_castps128_ps512(_mm_loadu_ps(scale)));
}

/* The first n floats. By bytes: SIMDe 0.7.4 has no other masked stores. */
AVX512_INLINE void avx512_store_some(float *to, __m512 x, uint32_t n) { _mm512_mask_storeu_epi8(to, ((__mmask64)1 << 4 * n) - 1, _mm512_castps_si512(x)); }

/* From raw products to weights, in place, as avx512_softmax_scores and avx512_softmax_weights do, bit for bit. n_vectors: 3 or 4. */
AVX512_INLINE void avx512_softmax_four(const oct__attn_tile *tile, const avx512_block *b, float *s, float *m, float *z, float *keep, uint32_t n_vectors,
                                       const uint32_t n, const bool k_dynamic, const bool v_dynamic)
{
    const __mmask16 present = (__mmask16)((1u << n_vectors) - 1);
    const __m512 hidden = _mm512_set1_ps(-INFINITY);
    __m512 max[2] = { hidden, hidden };
    AVX512_UNROLL for (uint32_t i = 0; i < AVX512_BLOCK / 4; i++)
    {
        if (4 * i < n) {
            __m512 x = _mm512_load_ps(s + 16 * i);
            if (k_dynamic) {
                x = _mm512_mul_ps(x, avx512_scales_of(b->k_scale + 4 * i));
            }
            x = avx512_scores(tile, x);
            if (4 * i + 4 > n) {
                x = _mm512_mask_mov_ps(hidden, (__mmask16)((1u << 4 * (n - 4 * i)) - 1), x);
            }
            _mm512_store_ps(s + 16 * i, x);
            max[i % 2] = _mm512_max_ps(x, max[i % 2]);
        }
    }
    __m512 now = _mm512_max_ps(max[0], max[1]);
    now = _mm512_max_ps(now, _mm512_shuffle_f32x4(now, now, 0x4E));
    now = _mm512_max_ps(now, _mm512_shuffle_f32x4(now, now, 0xB1));
    const __m512 before = _mm512_broadcast_f32x4(_mm512_castps512_ps128(_mm512_maskz_loadu_ps(present, m)));
    now = _mm512_max_ps(now, before);
    const __m512 base = _mm512_mask_mov_ps(now, _mm512_cmp_ps_mask(now, hidden, _CMP_EQ_OQ), _mm512_setzero_ps());
    const __m512 factor = avx512_exp2(_mm512_sub_ps(before, base));
    __m512 sum[4] = { _mm512_setzero_ps(), _mm512_setzero_ps(), _mm512_setzero_ps(), _mm512_setzero_ps() };
    AVX512_UNROLL for (uint32_t i = 0; i < AVX512_BLOCK / 4; i++)
    {
        __m512 p = _mm512_setzero_ps();
        if (4 * i < n) {
            p = avx512_exp2(_mm512_sub_ps(_mm512_load_ps(s + 16 * i), base));
            sum[i % 4] = _mm512_add_ps(sum[i % 4], p);
            if (v_dynamic) {
                p = _mm512_mul_ps(p, avx512_scales_of(b->v_scale + 4 * i));
            }
        }
        _mm512_store_ps(s + 16 * i, p);
    }
    const __m512 kept = _mm512_mul_ps(_mm512_maskz_loadu_ps(present, z), factor); /* every lane has all factors */
    avx512_store_some(z, _mm512_add_ps(kept, avx512_sum_keys(sum)), n_vectors);
    avx512_store_some(m, now, n_vectors);
    avx512_store_some(keep, factor, n_vectors);
}

AVX512_INLINE void avx512_softmax_as(const oct__attn_tile *tile, const avx512_block *b, float *s, float *m, float *z, float *keep, uint32_t n_vectors,
                                     const uint32_t n, const bool k_dynamic, const bool v_dynamic)
{
    float max[2];
    if (n_vectors > 2) {
        for (uint32_t v = 0; v < n_vectors; v += AVX512_GROUP) {
            avx512_softmax_four(tile, b, s + v * AVX512_BLOCK, m + v, z + v, keep + v, n_vectors == AVX512_GROUP_MOST ? AVX512_GROUP : n_vectors, n, k_dynamic,
                                v_dynamic);
        }
        return;
    }
    for (uint32_t v = 0; v < n_vectors; v++) {
        max[v] = avx512_softmax_scores(tile, b, s + v * AVX512_BLOCK, n, k_dynamic);
    }
    for (uint32_t v = 0; v < n_vectors; v++) {
        keep[v] = avx512_softmax_weights(b, s + v * AVX512_BLOCK, max[v], &m[v], &z[v], n, v_dynamic);
    }
}

/* From the raw products s of some vectors to their weights, in place. keep[v]: what o must be multiplied by. All maxima come first, so
 * that nobody waits for one. */
static inline void avx512_softmax_keys(const oct__attn_tile *tile, const avx512_block *b, float *s, float *m, float *z, float *keep, uint32_t n_vectors)
{
    const oct_kv_spec *spec = &tile->kv->spec;
    const bool k_dynamic = spec->k.scale_mode == OCT_SCALE_TOKEN_HEAD, v_dynamic = spec->v.scale_mode == OCT_SCALE_TOKEN_HEAD;
    if (b->n == AVX512_BLOCK && !k_dynamic && !v_dynamic) {
        avx512_softmax_as(tile, b, s, m, z, keep, n_vectors, AVX512_BLOCK, false, false);
    } else {
        avx512_softmax_as(tile, b, s, m, z, keep, n_vectors, b->n, k_dynamic, v_dynamic);
    }
}

/* ---- terms of q ------------------------------------------------------------------------------------------------------------- */

/* Terms of q for a block that all vectors see. */
static inline uint32_t avx512_block_terms(const oct_kv_spec *spec, const avx512_block *b, const avx512_terms *terms)
{
    const __m512 max = _mm512_set1_ps(terms->k_scale_max);
    __mmask16 fine = 0xFFFF;
    for (uint32_t i = 0; spec->k.scale_mode == OCT_SCALE_TOKEN_HEAD && i < AVX512_BLOCK; i += 16) {
        fine &= _mm512_cmp_ps_mask(_mm512_abs_ps(_mm512_load_ps(b->k_scale + i)), max, _CMP_LE_OQ); /* not a NaN */
    }
    return fine == 0xFFFF ? terms->n : terms->n_most;
}

/* ---- edges --------------------------------------------------------------------------------------------------------------------- */

/* The keys of b that row r sees, as a block of their own; false when there is none. */
static inline bool avx512_block_visible(avx512_block *visible, const oct__attn_tile *tile, const avx512_block *b, uint32_t r)
{
    const int64_t low = avx512_low(tile, tile->pos0 + r), high = avx512_high(tile, tile->pos0 + r);
    uint32_t n = 0;
    for (uint32_t j = 0; j < b->n; j++) {
        const int64_t key = b->first + j;
        if (key >= low && key < high && avx512_mask_shows(tile, r, key)) {
            visible->k[n] = b->k[j];
            visible->v[n] = b->v[j];
            visible->k_scale[n] = b->k_scale[j];
            visible->v_scale[n] = b->v_scale[j];
            n++;
        }
    }
    visible->n = n;
    for (uint32_t j = n; j < AVX512_BLOCK + AVX512_PAD; j++) {
        visible->k[j] = visible->v[j] = avx512_no_row;
    }
    for (uint32_t j = n; j < AVX512_BLOCK; j++) {
        visible->k_scale[j] = visible->v_scale[j] = 0.0f;
    }
    return n > 0;
}

/* ---- the end ------------------------------------------------------------------------------------------------------------------- */

/* A vector's state in natural units. m leaves in f32; what that rounds off goes into z and o, so that nothing is lost at large scores.
 * Beyond 2^24 a unit of f32 is more than the exponent of z and o could take; out = o / z does not need it. */
static inline void avx512_leave(float *m, float *z, float *o, uint32_t dim)
{
    if (*m == -INFINITY) {
        return;
    }
    const double exact = (double)*m * AVX512_LN2;
    const float rounded = (float)exact;
    const double rounded_off = exact - (double)rounded;
    float rest = 1.0f;
    if (fabs(rounded_off) <= 0x1p-8) { /* as good as exp in f32, which takes a tenth of a vector with few keys */
        rest = (float)(1.0 + rounded_off * (1.0 + rounded_off * (0.5 + rounded_off / 6.0)));
    } else if (fabs(rounded_off) <= 1.0) {
        rest = (float)exp(rounded_off);
    }
    *m = rounded;
    *z *= rest;
    for (uint32_t d = 0; d < dim; d += 16) {
        _mm512_store_ps(o + d, _mm512_mul_ps(_mm512_load_ps(o + d), _mm512_set1_ps(rest)));
    }
}

#endif
