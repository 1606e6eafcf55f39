/* avx512_many.h: owns what AVX-512 kernels of many vectors have in common, whatever they multiply with: S[key][vector] with vectors in the
 * lanes, who sees what, softmax, and the V rows that are not finite. Scores are log2(e) * s, as in avx512_softmax.h. */
#ifndef OCT_CPU_AVX512_MANY_H
#define OCT_CPU_AVX512_MANY_H

#include "cpu/avx512_softmax.h"

/* ---- scratch --------------------------------------------------------------------------------------------------------------- */

typedef struct avx512_many {
    uint32_t n_lanes; /* vectors rounded up to 16; lanes past the vectors repeat the last one's q and see what it sees */
    size_t s_stride;
    float *s; /* [AVX512_BLOCK][s_stride]: raw products, then weights */
    float *m, *z, *keep;
    float *gain;         /* by lane: what the int32 sums of the word values are worth */
    float *apart;        /* by lane: a weight that its word values leave out, or 0; apart_key: whose, counted from the block's first */
    int32_t *apart_key;
    int32_t *low, *high; /* visible keys of the block by lane, counted from its first */
    bool is_edge;        /* some lane doesn't see some key of the block */
    uint32_t n_odd, odd[AVX512_BLOCK]; /* keys of the block whose V row is not finite and not seen by all */
    void *q, *k, *v, *p;               /* in the forms that the parts give them */
    float *row;                        /* one V row in f32 */
    uint8_t *stage;
    avx512_walk walk;
} avx512_many;

/* A score product takes 8 keys x 3 registers of vectors, which are 24 accumulators; 3 more hold q, one a broadcast. A value product takes 6
 * vectors x 4 registers of dims. */
#define AVX512_KEYS 8u
#define AVX512_SPAN 3u
#define AVX512_VECTORS 6u

AVX512_INLINE size_t avx512_round_64(size_t bytes) { return (bytes + 63) / 64 * 64; }

AVX512_INLINE uint32_t avx512_lane_vector(const oct__attn_tile *tile, uint32_t lane)
{
    const uint32_t last = tile->n_rows * tile->n_heads - 1;
    return lane < last ? lane : last;
}

/* Registers of vectors in the group of at most `most` that begins at register r: groups of nearly one size. */
static inline uint32_t avx512_span(uint32_t n_registers, uint32_t r, uint32_t most)
{
    const uint32_t n_groups = (n_registers + most - 1) / most;
    for (uint32_t g = 0, begin = 0;; g++) {
        const uint32_t end = n_registers * (g + 1) / n_groups;
        if (begin == r) {
            return end - begin;
        }
        begin = end;
    }
}

/* ---- who sees what --------------------------------------------------------------------------------------------------------- */

AVX512_INLINE int32_t avx512_clip(int64_t key, int64_t first, uint32_t n)
{
    return key <= first ? 0 : key - first >= n ? (int32_t)n : (int32_t)(key - first);
}

/* Fills is_edge, and low and high of all lanes, for a block. */
static inline void avx512_many_ranges(const oct__attn_tile *tile, avx512_many *x, const avx512_block *b)
{
    x->is_edge = !avx512_all_see(tile, b->first, b->first + b->n);
    if (!x->is_edge) {
        for (uint32_t lane = 0; lane < x->n_lanes; lane += 16) {
            _mm512_store_si512(x->low + lane, _mm512_setzero_si512());
            _mm512_store_si512(x->high + lane, _mm512_set1_epi32((int32_t)b->n));
        }
        return;
    }
    for (uint32_t lane = 0; lane < x->n_lanes; lane++) {
        const int64_t position = tile->pos0 + avx512_lane_vector(tile, lane) / tile->n_heads;
        x->low[lane] = avx512_clip(avx512_low(tile, position), b->first, b->n);
        x->high[lane] = avx512_clip(avx512_high(tile, position), b->first, b->n);
    }
}

/* Ranges rise with the row, so the first and last lane bound what a run of lanes sees. Empty: *from >= *to. */
AVX512_INLINE void avx512_lanes_range(const avx512_many *x, uint32_t lane0, uint32_t lane1, uint32_t *from, uint32_t *to)
{
    *from = (uint32_t)x->low[lane0];
    *to = (uint32_t)x->high[lane1 - 1];
}

/* Lanes [lane, lane + 16) that see key j of the block by the token mask. */
static inline __mmask16 avx512_mask_lanes(const oct__attn_tile *tile, uint32_t lane, int64_t key)
{
    uint32_t seen = 0;
    for (uint32_t l = 0; l < 16; l++) {
        seen |= (uint32_t)avx512_mask_shows(tile, avx512_lane_vector(tile, lane + l) / tile->n_heads, key) << l;
    }
    return (__mmask16)seen;
}

/* ---- softmax --------------------------------------------------------------------------------------------------------------- */

/* The score of key j from a raw product; hidden ones -inf. */
AVX512_INLINE __m512 avx512_many_score(const oct__attn_tile *tile, const avx512_many *x, const avx512_block *b, uint32_t lane, uint32_t j, __m512 raw,
                                       const bool is_edge, const bool k_dynamic)
{
    if (k_dynamic) {
        raw = _mm512_mul_ps(raw, _mm512_set1_ps(b->k_scale[j]));
    }
    const __m512 y = avx512_scores(tile, raw);
    if (!is_edge) {
        return y;
    }
    const __m512i key = _mm512_set1_epi32((int32_t)j);
    __mmask16 seen = _mm512_cmple_epi32_mask(_mm512_load_si512(x->low + lane), key);
    seen = _mm512_mask_cmpgt_epi32_mask(seen, _mm512_load_si512(x->high + lane), key);
    if (tile->mask != NULL && b->first + j >= tile->mask_key0) {
        seen &= avx512_mask_lanes(tile, lane, b->first + j);
    }
    return _mm512_mask_mov_ps(_mm512_set1_ps(-INFINITY), seen, y);
}

/* Weights of keys [from, to): 0, since the value product may run over them for a neighbour's sake. */
static inline void avx512_many_clear(avx512_many *x, uint32_t lane, uint32_t from, uint32_t to)
{
    for (uint32_t j = from; j < to; j++) {
        _mm512_store_ps(x->s + j * x->s_stride + lane, _mm512_setzero_ps());
    }
}

/* From raw products to weights, in place, for lanes [lane, lane + 16): scale, cap, mask, the running maximum and sum, exp, V's dynamic
 * scale. Fills keep. */
AVX512_INLINE void avx512_many_softmax_as(const oct__attn_tile *tile, avx512_many *x, const avx512_block *b, uint32_t lane, uint32_t from, uint32_t to,
                                          const bool is_edge, const bool is_plain)
{
    const oct_kv_spec *spec = &tile->kv->spec;
    const bool k_dynamic = !is_plain && spec->k.scale_mode == OCT_SCALE_TOKEN_HEAD, v_dynamic = !is_plain && spec->v.scale_mode == OCT_SCALE_TOKEN_HEAD;
    const __m512 hidden = _mm512_set1_ps(-INFINITY);
    __m512 max = hidden, sum = _mm512_setzero_ps();
    float *s = x->s + from * x->s_stride + lane;

    for (uint32_t j = from; j < to; j++, s += x->s_stride) {
        __m512 y = _mm512_load_ps(s);
        if (!is_plain) {
            y = avx512_many_score(tile, x, b, lane, j, y, is_edge, k_dynamic);
            _mm512_store_ps(s, y);
        }
        max = _mm512_max_ps(y, max); /* a NaN score is passed over here and comes out of exp2 */
    }
    if (is_plain) { /* the factor is positive, and so is what rounding makes of the order */
        max = avx512_scores(tile, max);
    }
    const __m512 before = _mm512_load_ps(x->m + lane);
    const __m512 now = _mm512_max_ps(max, before);
    /* While nothing but -inf has been seen, -inf - -inf would be NaN: subtract 0 instead. */
    const __m512 base = _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(now, hidden, _CMP_NEQ_UQ), now);
    const __m512 keep = avx512_exp2(_mm512_sub_ps(before, base));
    s = x->s + from * x->s_stride + lane;
    for (uint32_t j = from; j < to; j++, s += x->s_stride) {
        __m512 y = _mm512_load_ps(s);
        __mmask16 counts = 0xFFFF;
        if (is_plain) {
            y = avx512_scores(tile, y);
        } else if (v_dynamic) { /* the scale of an unseen key may be anything */
            counts = _mm512_cmp_ps_mask(y, hidden, _CMP_NEQ_UQ);
        }
        y = avx512_exp2(_mm512_sub_ps(y, base));
        sum = _mm512_add_ps(sum, y);
        if (v_dynamic) {
            y = _mm512_maskz_mul_ps(counts, y, _mm512_set1_ps(b->v_scale[j]));
        }
        _mm512_store_ps(s, y);
    }
    _mm512_store_ps(x->keep + lane, keep);
    _mm512_store_ps(x->m + lane, now);
    _mm512_store_ps(x->z + lane, _mm512_fmadd_ps(_mm512_load_ps(x->z + lane), keep, sum));
}

static inline void avx512_many_softmax(const oct__attn_tile *tile, avx512_many *x, const avx512_block *b, uint32_t lane)
{
    const oct_kv_spec *spec = &tile->kv->spec;
    uint32_t from, to;
    avx512_lanes_range(x, lane, lane + 16, &from, &to);
    if (from >= to) {
        _mm512_store_ps(x->keep + lane, _mm512_set1_ps(1.0f));
        avx512_many_clear(x, lane, 0, b->n);
        return;
    }
    if (x->is_edge) {
        avx512_many_clear(x, lane, 0, from);
        avx512_many_clear(x, lane, to, b->n);
        avx512_many_softmax_as(tile, x, b, lane, from, to, true, false);
    } else if (tile->softcap == 0 && spec->k.scale_mode != OCT_SCALE_TOKEN_HEAD && spec->v.scale_mode != OCT_SCALE_TOKEN_HEAD) {
        avx512_many_softmax_as(tile, x, b, lane, from, to, false, true);
    } else {
        avx512_many_softmax_as(tile, x, b, lane, from, to, false, false);
    }
}

/* ---- decoding -------------------------------------------------------------------------------------------------------------- */

/* n rows of dim elements to f32 rows that are `stride` floats apart and end in zeros up to a multiple of 16. next: rows to prefetch. */
AVX512_INLINE void avx512_decode(float *to, size_t stride, const uint8_t *const *rows, const uint8_t *const *next, uint32_t n, uint32_t dim,
                          const avx512_decoder *decoder, const avx512_kind kind)
{
    for (uint32_t j = 0; j < n; j++, to += stride) {
        uint32_t d = 0;
        avx512_prefetch(next[j], avx512_bytes(dim, kind));
        for (; d + 64 <= dim; d += 64) {
            const avx512_chunk chunk = avx512_open(rows[j] + avx512_bytes(d, kind), decoder, kind);
            AVX512_UNROLL for (uint32_t i = 0; i < 4; i++)
            {
                _mm512_store_ps(to + d + 16 * i, avx512_piece(&chunk, i, kind));
            }
        }
        if (d < dim) {
            const avx512_chunk chunk = avx512_open_some(rows[j] + avx512_bytes(d, kind), dim - d, decoder, kind);
            AVX512_UNROLL for (uint32_t i = 0; i < 4; i++)
            {
                if (d + 16 * i < dim) {
                    _mm512_store_ps(to + d + 16 * i, avx512_piece_some(&chunk, i, dim - d, kind));
                }
            }
        }
    }
}

/* ---- V rows that are not finite ---------------------------------------------------------------------------------------------- */

/* Whether a stored row holds neither a NaN nor an infinity, by its codes: decoding them first takes ten times as long. */
static inline bool avx512_is_finite(const uint8_t *row, uint32_t dim, uint32_t dtype)
{
    /* What of a code says so, and what it is then; in each byte, word or double word. */
    uint32_t bits, special, size = 1;
    switch (dtype) {
    case OCT_DTYPE_I8:
        return true;
    case OCT_DTYPE_V4:
        return avx512_v4_is_finite(row, dim);
    case OCT_DTYPE_E4M3FN:
        bits = special = 0x7F7F7F7F;
        break;
    case OCT_DTYPE_E4M3FNUZ:
        bits = 0xFFFFFFFF, special = 0x80808080;
        break;
    case OCT_DTYPE_E5M2:
        bits = special = 0x7C7C7C7C;
        break;
    case OCT_DTYPE_F16:
        bits = special = 0x7C007C00, size = 2;
        break;
    case OCT_DTYPE_BF16:
        bits = special = 0x7F807F80, size = 2;
        break;
    default:
        bits = special = 0x7F800000, size = 4;
        break;
    }
    const __m512i b = _mm512_set1_epi32((int32_t)bits), s = _mm512_set1_epi32((int32_t)special);
    const uint64_t firsts = size == 1 ? UINT64_MAX : size == 2 ? UINT64_MAX / 3 : UINT64_MAX / 15;
    uint64_t found = 0;
    for (uint32_t at = 0; at < dim * size; at += 64) {
        const uint32_t left = dim * size - at;
        const __m512i x = _mm512_and_si512(left >= 64 ? _mm512_loadu_si512(row + at) : _mm512_maskz_loadu_epi8(((__mmask64)1 << left) - 1, row + at), b);
        uint64_t same = _mm512_cmpeq_epi8_mask(x, s); /* an element's bytes all at once */
        same &= size > 1 ? same >> 1 : same;
        same &= size > 2 ? same >> 2 : same;
        found |= same & firsts;
    }
    return found == 0;
}

/* Adds the row of key j, now in x->row, for the vectors that see it. */
static inline void avx512_many_add_odd(const oct__attn_tile *tile, const avx512_many *x, const avx512_block *b, uint32_t j)
{
    const oct_kv_spec *spec = &tile->kv->spec;
    for (uint32_t i = 0; i < tile->n_rows * tile->n_heads; i++) {
        if ((int32_t)j < x->low[i] || (int32_t)j >= x->high[i] || !avx512_mask_shows(tile, i / tile->n_heads, b->first + j)) {
            continue;
        }
        const __m512 weight = _mm512_set1_ps(x->s[j * x->s_stride + i]);
        for (uint32_t d = 0; d < spec->dim_v; d += 16) {
            float *o = tile->o + i * tile->o_stride + d;
            _mm512_store_ps(o, _mm512_fmadd_ps(weight, _mm512_load_ps(x->row + d), _mm512_load_ps(o)));
        }
    }
}

#endif
