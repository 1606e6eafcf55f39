/* attn_extend_avx2.c: owns attention of many vectors (rows x query heads of one KV head), as two register-blocked matrix products over key
 * blocks that are decoded to f32 once for all vectors:
 *   scores  S[key][vector] = K q, vectors in the lanes: 6 keys x 16 vectors in registers. q is transposed once a tile, so K needs no
 *           transposing, and softmax has its vectors in lanes: maxima and sums never cross them
 *   values  O[vector][dim] += P V, dims in the lanes: 6 vectors x 16 dims in registers. o takes a block's sum at once, so that its
 *           rounding error grows with the number of blocks and not of keys
 * Percent of the FMA peak of a Zen 4 at 3.7 GHz, causal, q = kv = 2048, e4m3, tiles of 128 vectors: dim 64 75, dim 128 82, dim 256 84; tiles of
 * 64 lose 1.5, of 256 gain 1. At dim 64 softmax takes a fifth of the time, decoding 2 %.
 * avx2word does both over i8 in integers (avx2_word_vectors.h), the scores of blocks that all rows see and whose error would be small enough, and all weights.
 * Keys that no vector of a group sees are not computed. Where only some see a key, its score becomes -inf after the cap and its weight 0;
 * a V row with a NaN or an infinity is then kept out of the product and added only to the vectors that see it (0 x NaN is NaN).
 *
 * Threads: works in the tile's scratch and outputs. */
#include <math.h>

#include "cpu/avx2.h"
#include "cpu/avx2_v4.h"
#include "cpu/avx2_word_vectors.h"

#define BLOCK_MANY 64u

/* Keys in a block: K, V and S of a block should stay in L1 for a handful of vectors. */
static uint32_t block_keys(uint32_t n_vectors)
{
    return n_vectors <= 16 ? 32 : BLOCK_MANY;
}

/* ---- decoding, one function for each format -------------------------------------------------------------------------------- */

#define FORMAT(format)                                                                                          \
    static void decode_##format(float *to, size_t stride, const uint8_t *const *rows, uint32_t n, uint32_t dim) \
    {                                                                                                           \
        avx2_decode(to, stride, rows, n, dim, OCT_DTYPE_##format);                                              \
    }
FORMAT(F32)
FORMAT(F16)
FORMAT(BF16)
FORMAT(E4M3FN)
FORMAT(E4M3FNUZ)
FORMAT(E5M2)
FORMAT(I8)
static avx2_decode_fn *const decoders[] = {
    [OCT_DTYPE_F32] = decode_F32,       [OCT_DTYPE_F16] = decode_F16,           [OCT_DTYPE_BF16] = decode_BF16,
    [OCT_DTYPE_E4M3FN] = decode_E4M3FN, [OCT_DTYPE_E4M3FNUZ] = decode_E4M3FNUZ, [OCT_DTYPE_E5M2] = decode_E5M2,
    [OCT_DTYPE_I8] = decode_I8,         [OCT_DTYPE_V4] = avx2_v4_decode,
};

/* ---- scratch --------------------------------------------------------------------------------------------------------------- */

/* Strides carry 16 floats of padding: a power of two would put a column of rows into a few sets of L1. */
typedef struct many_scratch {
    uint32_t n_lanes; /* vectors rounded up to 8; lanes past the vectors repeat the last one's q and see what it sees */
    size_t k_stride, v_stride, s_stride;
    float *q;         /* by group: [dim_k][16], the last [dim_k][8] when 8 lanes are left */
    float *k, *v, *s; /* [block][stride] */
    float *m, *z, *keep;
    int32_t *low, *high; /* visible keys of the block by lane, counted from its first */
    float *row;          /* one V row */
    uint8_t *stage;
    avx2_block block;
    bool in_words;        /* i8 is multiplied in integers where they can stand for the floats */
    float word_scale_max; /* K scales up to which scores are integers; 0: none are */
    int16_t *q_words;     /* by group as q, pairs of dims; K's and V's words lie in k and v */
    int16_t *p_words;     /* [block / 2][p_stride], pairs of keys */
    float *q_unit, *gain; /* by lane */
    avx2_apart *apart;    /* by lane */
    size_t k_word_stride, v_word_stride, p_stride;
    uint32_t n_odd, odd[BLOCK_MANY]; /* keys of the block whose V row is not finite and not seen by all */
} many_scratch;

static size_t round_64(size_t bytes)
{
    return (bytes + 63) / 64 * 64;
}

/* Lays the scratch out from `memory` (NULL: only counts) and returns the bytes taken. */
static size_t lay_out(many_scratch *x, uint8_t *memory, const oct_kv_spec *spec, uint32_t n_vectors, bool in_words)
{
    const uint32_t block = block_keys(n_vectors);
    size_t at = round_64(sizeof(many_scratch));
    x->n_lanes = (n_vectors + 7) / 8 * 8;
    x->k_stride = (spec->dim_k + 15u) / 16 * 16 + 16;
    x->v_stride = (spec->dim_v + 15u) / 16 * 16 + 16;
    x->s_stride = (x->n_lanes + 15u) / 16 * 16 + 16;
    const size_t n_word_lanes = in_words ? x->n_lanes : 0;
    x->in_words = in_words;
    x->k_word_stride = (spec->dim_k + 15u) / 16 * 16 + 16;
    x->v_word_stride = 2 * (size_t)spec->dim_v + 32;
    x->p_stride = 2 * (size_t)x->n_lanes + 32;
#define TAKE(field, type, count)                                      \
    x->field = memory != NULL ? (type *)(void *)(memory + at) : NULL; \
    at += round_64((count) * sizeof(type))
    TAKE(q, float, (size_t)x->n_lanes * spec->dim_k);
    TAKE(k, float, block * x->k_stride);
    TAKE(v, float, block * x->v_stride);
    TAKE(s, float, block * x->s_stride);
    TAKE(m, float, x->n_lanes);
    TAKE(z, float, x->n_lanes);
    TAKE(keep, float, x->n_lanes);
    TAKE(low, int32_t, x->n_lanes);
    TAKE(high, int32_t, x->n_lanes);
    TAKE(row, float, spec->dim_v);
    TAKE(q_words, int16_t, n_word_lanes * spec->dim_k);
    TAKE(p_words, int16_t, in_words ? block / 2 * x->p_stride : 0);
    TAKE(q_unit, float, n_word_lanes);
    TAKE(gain, float, n_word_lanes);
    TAKE(apart, avx2_apart, n_word_lanes);
    TAKE(stage, uint8_t, avx2_stage_bytes(spec, AVX2_BLOCK_MAX));
#undef TAKE
    return at;
}

size_t oct__attn_many_scratch__avx2(const oct_kv_spec *spec, uint32_t n_vectors)
{
    many_scratch counted;
    return lay_out(&counted, NULL, spec, n_vectors, false); /* fewer vectors never take more */
}

size_t oct__attn_many_scratch__avx2word(const oct_kv_spec *spec, uint32_t n_vectors)
{
    many_scratch counted;
    return lay_out(&counted, NULL, spec, n_vectors, true);
}

static uint32_t lane_vector(const oct__attn_tile *tile, uint32_t lane)
{
    const uint32_t last = tile->n_rows * tile->n_heads - 1;
    return lane < last ? lane : last;
}

static void transpose_q(const oct__attn_tile *tile, many_scratch *x)
{
    const uint32_t dim = tile->kv->spec.dim_k;
    for (uint32_t lane = 0; lane < x->n_lanes; lane += 8) {
        const uint32_t group = lane / AVX2_GROUP * AVX2_GROUP, lanes = x->n_lanes - group < AVX2_GROUP ? 8 : AVX2_GROUP;
        float *to = x->q + (size_t)group * dim + (lane - group);
        for (uint32_t d = 0; d < dim; d += 8) {
            __m256 y[8];
            for (uint32_t l = 0; l < 8; l++) {
                y[l] = _mm256_load_ps(tile->q + lane_vector(tile, lane + l) * tile->q_stride + d);
            }
            avx2_transpose8(y);
            for (uint32_t i = 0; i < 8; i++) {
                _mm256_store_ps(to + (size_t)(d + i) * lanes, y[i]);
            }
        }
    }
}

/* q in integers, where they can stand for it, as prepare_words of attn_decode_avx2.c. */
static void prepare_words(const oct__attn_tile *tile, many_scratch *x)
{
    const uint32_t dim = tile->kv->spec.dim_k, stride = (uint32_t)avx2_word_stride(dim);
    _Alignas(32) int16_t rows[8][512];
    float most = 0;
    for (uint32_t lane = 0; lane < x->n_lanes; lane += 8) {
        const uint32_t group = lane / AVX2_GROUP * AVX2_GROUP, lanes = x->n_lanes - group < AVX2_GROUP ? 8 : AVX2_GROUP;
        int16_t *to = x->q_words + (size_t)group * dim + (size_t)2 * (lane - group);
        for (uint32_t l = 0; l < 8; l++) {
            const float *q = tile->q + lane_vector(tile, lane + l) * tile->q_stride;
            const float largest = avx2_word_largest(q, stride);
            if (!avx2_word_holds(largest)) {
                return;
            }
            x->q_unit[lane + l] = avx2_word_q(rows[l], q, dim, largest);
            most = largest > most ? largest : most;
        }
        for (uint32_t d = 0; d < dim; d += 16) {
            __m256 y[8];
            for (uint32_t l = 0; l < 8; l++) {
                y[l] = _mm256_castsi256_ps(_mm256_load_si256((const __m256i *)(const void *)(rows[l] + d)));
            }
            avx2_transpose8(y);
            for (uint32_t i = 0; i < 8 && d + 2 * i < dim; i++) {
                _mm256_store_si256((__m256i *)(void *)(to + (size_t)(d / 2 + i) * 2 * lanes), _mm256_castps_si256(y[i]));
            }
        }
    }
    x->word_scale_max = avx2_word_scale_max(most, tile->score_scale, dim);
}

/* ---- who sees what --------------------------------------------------------------------------------------------------------- */

static int32_t clip(int64_t key, int64_t first, uint32_t n)
{
    return key <= first ? 0 : key - first >= n ? (int32_t)n : (int32_t)(key - first);
}

/* Fills low and high of all lanes for a block. */
static void find_ranges(const oct__attn_tile *tile, many_scratch *x)
{
    const avx2_block *b = &x->block;
    for (uint32_t lane = 0; lane < x->n_lanes; lane++) {
        const int64_t position = tile->pos0 + lane_vector(tile, lane) / tile->n_heads;
        x->low[lane] = clip(avx2_low(tile, position), b->first, b->n);
        x->high[lane] = clip(avx2_high(tile, position), b->first, b->n);
    }
}

/* Ranges rise with the row, so the first and last lane bound what a run of lanes sees. Empty: *from >= *to. */
static void lanes_range(const many_scratch *x, uint32_t lane0, uint32_t lane1, uint32_t *from, uint32_t *to)
{
    *from = (uint32_t)x->low[lane0];
    *to = (uint32_t)x->high[lane1 - 1];
}

/* All ones in lanes [lane, lane + 8) that see key j of the block by the token mask. */
static __m256i mask_lanes(const oct__attn_tile *tile, uint32_t lane, int64_t key)
{
    int32_t seen[8];
    for (uint32_t l = 0; l < 8; l++) {
        seen[l] = avx2_mask_shows(tile, lane_vector(tile, lane + l) / tile->n_heads, key) ? -1 : 0;
    }
    return _mm256_loadu_si256((const __m256i *)(const void *)seen);
}

/* Takes the V rows that hold a NaN or an infinity out of the block, which not all vectors see: see the head of this file. */
static void set_odd_rows_aside(many_scratch *x, uint32_t dim)
{
    const __m256i abs = _mm256_set1_epi32(0x7FFFFFFF);
    x->n_odd = 0;
    for (uint32_t j = 0; j < x->block.n; j++) {
        float *row = x->v + j * x->v_stride;
        __m256i largest = _mm256_setzero_si256();
        for (uint32_t d = 0; d < dim; d += 8) {
            largest = _mm256_max_epi32(largest, _mm256_and_si256(_mm256_castps_si256(_mm256_load_ps(row + d)), abs));
        }
        if (_mm256_movemask_epi8(_mm256_cmpgt_epi32(largest, _mm256_set1_epi32(0x7F7FFFFF))) != 0) {
            x->odd[x->n_odd++] = j;
            memset(row, 0, dim * sizeof(float));
        }
    }
}

static void add_odd_rows(const oct__attn_tile *tile, many_scratch *x)
{
    const oct_kv_spec *spec = &tile->kv->spec;
    const uint32_t n_vectors = tile->n_rows * tile->n_heads;
    for (uint32_t k = 0; k < x->n_odd; k++) {
        const uint32_t j = x->odd[k];
        decoders[spec->v.dtype](x->row, spec->dim_v, &x->block.v[j], 1, spec->dim_v);
        for (uint32_t i = 0; i < n_vectors; i++) {
            if ((int32_t)j < x->low[i] || (int32_t)j >= x->high[i] || !avx2_mask_shows(tile, i / tile->n_heads, x->block.first + j)) {
                continue;
            }
            const __m256 weight = _mm256_broadcast_ss(x->s + j * x->s_stride + i);
            for (uint32_t d = 0; d < spec->dim_v; d += 8) {
                float *o = tile->o + i * tile->o_stride + d;
                _mm256_store_ps(o, _mm256_fmadd_ps(weight, _mm256_load_ps(x->row + d), _mm256_load_ps(o)));
            }
        }
    }
}

/* ---- softmax --------------------------------------------------------------------------------------------------------------- */

/* From raw products to weights, in place, for lanes [lane, lane + 8) and keys [from, to) of the block: scale, cap, mask, the running
 * maximum and sum, exp, V's dynamic scale. is_edge: some lane doesn't see some key. */
AVX2_INLINE void softmax_lanes(const oct__attn_tile *tile, many_scratch *x, uint32_t lane, uint32_t from, uint32_t to, float factor,
                               bool is_edge)
{
    const avx2_block *b = &x->block;
    const oct_kv_spec *spec = &tile->kv->spec;
    const bool k_dynamic = spec->k.scale_mode == OCT_SCALE_TOKEN_HEAD, v_dynamic = spec->v.scale_mode == OCT_SCALE_TOKEN_HEAD;
    const __m256 hidden = _mm256_set1_ps(-INFINITY);
    const __m256i low = _mm256_load_si256((const __m256i *)(const void *)(x->low + lane));
    const __m256i high = _mm256_load_si256((const __m256i *)(const void *)(x->high + lane));
    __m256 max = hidden, sum = _mm256_setzero_ps();
    float *s = x->s + from * x->s_stride + lane;

    for (uint32_t j = from; j < to; j++, s += x->s_stride) {
        __m256 y = _mm256_mul_ps(_mm256_load_ps(s), _mm256_set1_ps(k_dynamic ? factor * b->k_scale[j] : factor));
        if (tile->softcap > 0) {
            y = avx2_softcap(y, tile->softcap);
        }
        if (is_edge) {
            const __m256i key = _mm256_set1_epi32((int32_t)j);
            __m256i seen = _mm256_andnot_si256(_mm256_cmpgt_epi32(low, key), _mm256_cmpgt_epi32(high, key));
            if (tile->mask != NULL && b->first + j >= tile->mask_key0) {
                seen = _mm256_and_si256(seen, mask_lanes(tile, lane, b->first + j));
            }
            y = _mm256_blendv_ps(hidden, y, _mm256_castsi256_ps(seen));
        }
        _mm256_store_ps(s, y);
        max = _mm256_max_ps(y, max); /* a NaN score is passed over here and comes out of exp */
    }
    const __m256 before = _mm256_load_ps(x->m + lane);
    const __m256 now = _mm256_max_ps(max, before);
    /* While nothing but -inf has been seen, exp(-inf - -inf) would be NaN: subtract 0 instead. */
    const __m256 base = _mm256_andnot_ps(_mm256_cmp_ps(now, hidden, _CMP_EQ_OQ), now);
    const __m256 keep = avx2_exp(_mm256_sub_ps(before, base));
    s = x->s + from * x->s_stride + lane;
    for (uint32_t j = from; j < to; j++, s += x->s_stride) {
        __m256 y = _mm256_load_ps(s);
        const __m256 counts = _mm256_cmp_ps(y, hidden, _CMP_NEQ_UQ);
        y = avx2_exp(_mm256_sub_ps(y, base));
        sum = _mm256_add_ps(sum, y);
        if (v_dynamic) { /* the scale of an unseen key may be anything */
            y = _mm256_and_ps(_mm256_mul_ps(y, _mm256_set1_ps(b->v_scale[j])), counts);
        }
        _mm256_store_ps(s, y);
    }
    _mm256_store_ps(x->keep + lane, keep);
    _mm256_store_ps(x->m + lane, now);
    _mm256_store_ps(x->z + lane, _mm256_fmadd_ps(_mm256_load_ps(x->z + lane), keep, sum));
}

/* ---- a block --------------------------------------------------------------------------------------------------------------- */

/* Weights 0 for keys that the lanes don't compute, since the value product may run over them for a neighbour's sake. */
static void clear_weights(many_scratch *x, uint32_t lane, uint32_t from, uint32_t to)
{
    for (uint32_t j = from; j < to; j++) {
        _mm256_store_ps(x->s + j * x->s_stride + lane, _mm256_setzero_ps());
    }
}

static void take_scores(const oct__attn_tile *tile, many_scratch *x, float factor, bool is_edge, bool has_words)
{
    const uint32_t dim = tile->kv->spec.dim_k;
    for (uint32_t g = 0; g < x->n_lanes; g += AVX2_GROUP) {
        const uint32_t lanes = x->n_lanes - g < AVX2_GROUP ? 8 : AVX2_GROUP;
        uint32_t from, to;
        lanes_range(x, g, g + lanes, &from, &to);
        for (uint32_t j = from; j < to && has_words; j += AVX2_KEYS) { /* all keys of a block, so that a pair begins at an even one */
            const uint32_t n = to - j < AVX2_KEYS ? to - j : AVX2_KEYS;
            avx2_word_lanes[lanes / 8 - 1][(n - 1) / 2](x->s + j * x->s_stride + g, x->s_stride, (const int16_t *)(const void *)x->k + j * x->k_word_stride, x->k_word_stride,
                                                        x->q_words + (size_t)g * dim, x->q_unit + g, dim);
        }
        for (uint32_t j = from; j < to && !has_words; j += AVX2_KEYS) {
            const uint32_t n = to - j < AVX2_KEYS ? to - j : AVX2_KEYS;
            avx2_score_products[lanes / 8 - 1][n - 1](x->s + j * x->s_stride + g, x->s_stride, x->k + j * x->k_stride, x->k_stride,
                                                      x->q + (size_t)g * dim, dim);
        }
        for (uint32_t lane = g; lane < g + lanes; lane += 8) {
            if (from >= to) {
                _mm256_store_ps(x->keep + lane, _mm256_set1_ps(1.0f));
                clear_weights(x, lane, 0, x->block.n);
                continue;
            }
            if (is_edge) {
                clear_weights(x, lane, 0, from);
                clear_weights(x, lane, to, x->block.n);
                softmax_lanes(tile, x, lane, from, to, factor, true);
            } else {
                softmax_lanes(tile, x, lane, from, to, factor, false);
            }
        }
    }
}

static void take_values(const oct__attn_tile *tile, many_scratch *x, bool has_words)
{
    const uint32_t dim = tile->kv->spec.dim_v, n_vectors = tile->n_rows * tile->n_heads;
    const uint32_t n_parts = (n_vectors + AVX2_VECTORS - 1) / AVX2_VECTORS;
    for (uint32_t d = 0; d < dim; d += 16) {
        const uint32_t n_dims = dim - d < 16 ? 1 : 2;
        /* Parts of nearly one size: a last part of one vector would wait for its few sums. */
        for (uint32_t part = 0, i = 0; part < n_parts; part++) {
            const uint32_t next = (uint32_t)((uint64_t)n_vectors * (part + 1) / n_parts);
            uint32_t from, to;
            lanes_range(x, i, next, &from, &to);
            if (from < to && has_words) {
                avx2_word_sums[n_dims - 1][next - i - 1](tile->o + i * tile->o_stride + d, tile->o_stride, x->keep + i, x->gain + i,
                                                         x->p_words + from / 2 * x->p_stride + 2 * (size_t)i, x->p_stride,
                                                         (const int16_t *)(const void *)x->v + from / 2 * x->v_word_stride + 2 * (size_t)d, x->v_word_stride,
                                                         (to + 1) / 2 - from / 2);
            } else if (from < to) {
                avx2_value_products[n_dims - 1][next - i - 1](tile->o + i * tile->o_stride + d, tile->o_stride, x->keep + i,
                                                              x->s + from * x->s_stride + i, x->s_stride, x->v + from * x->v_stride + d,
                                                              x->v_stride, to - from);
            }
            i = next;
        }
    }
}

/* The weights that were set apart, each as a word of its own beside none. */
static void add_apart(const oct__attn_tile *tile, const many_scratch *x)
{
    const uint32_t dim = tile->kv->spec.dim_v;
    const float keep = 1.0f;
    for (uint32_t i = 0; i < tile->n_rows * tile->n_heads; i++) {
        const avx2_apart apart = x->apart[i];
        const int16_t words[2] = { apart.key % 2 == 0 ? AVX2_WEIGHT_MAX : 0, apart.key % 2 == 0 ? 0 : AVX2_WEIGHT_MAX };
        const float gain = apart.p / AVX2_WEIGHT_MAX;
        for (uint32_t d = 0; apart.p != 0 && d < dim; d += 16) {
            avx2_word_sums[dim - d < 16 ? 0 : 1][0](tile->o + i * tile->o_stride + d, tile->o_stride, &keep, &gain, words, 0,
                                                    (const int16_t *)(const void *)x->v + apart.key / 2 * x->v_word_stride + 2 * (size_t)d, 0, 1);
        }
    }
}

static void take_block(const oct__attn_tile *tile, many_scratch *x)
{
    const oct_kv_spec *spec = &tile->kv->spec;
    const avx2_block *b = &x->block;
    const bool is_edge = !avx2_all_see(tile, b->first, b->first + b->n), has_words = !is_edge && avx2_word_fits(spec, x->word_scale_max, b); /* at edges unseen keys' scales would have a say */
    find_ranges(tile, x);
    if (has_words) {
        avx2_word_decode_k((int16_t *)(void *)x->k, x->k_word_stride, b->k, b->n, spec->dim_k);
    } else {
        decoders[spec->k.dtype](x->k, x->k_stride, b->k, b->n, spec->dim_k);
    }
    take_scores(tile, x, tile->score_scale * avx2_unit(spec->k.dtype), is_edge, has_words);
    if (x->in_words && spec->v.dtype == OCT_DTYPE_I8) {
        avx2_word_decode_v((int16_t *)(void *)x->v, x->v_word_stride, b->v, b->n, spec->dim_v);
        for (uint32_t lane = 0; lane < x->n_lanes; lane += 8) {
            avx2_word_weigh_lanes(x->p_words + (size_t)2 * lane, x->p_stride, x->s + lane, x->s_stride, b->n, x->gain + lane, x->apart + lane);
        }
        take_values(tile, x, true);
        add_apart(tile, x);
        return;
    }
    decoders[spec->v.dtype](x->v, x->v_stride, b->v, b->n, spec->dim_v);
    if (is_edge) {
        set_odd_rows_aside(x, spec->dim_v);
    }
    take_values(tile, x, false);
    if (is_edge) {
        add_odd_rows(tile, x);
    }
}

/* ---- the tile -------------------------------------------------------------------------------------------------------------- */

static void attend(const oct__attn_tile *tile, bool in_words)
{
    const oct_kv_spec *spec = &tile->kv->spec;
    const uint32_t n_vectors = tile->n_rows * tile->n_heads, block = block_keys(n_vectors);
    const __m256 unit = _mm256_set1_ps(avx2_unit(spec->v.dtype));
    many_scratch *x = tile->scratch;
    int64_t key0, key1;

    lay_out(x, tile->scratch, spec, n_vectors, in_words);
    transpose_q(tile, x);
    for (uint32_t lane = 0; lane < x->n_lanes; lane++) {
        x->m[lane] = -INFINITY;
        x->z[lane] = 0.0f;
    }
    for (uint32_t i = 0; i < n_vectors; i++) {
        memset(tile->o + i * tile->o_stride, 0, spec->dim_v * sizeof(float));
    }
    avx2_tile_range(tile, &key0, &key1);
    x->word_scale_max = 0;
    if (in_words && spec->k.dtype == OCT_DTYPE_I8 && key1 - key0 >= block) {
        prepare_words(tile, x);
    }
    for (int64_t first = key0; first < key1;) {
        const int64_t next = (first / block + 1) * block, end = next < key1 ? next : key1;
        avx2_block_point(&x->block, tile, first, (uint32_t)(end - first), block, x->stage);
        avx2_block_scales(&x->block, tile);
        take_block(tile, x);
        first = end;
    }
    for (uint32_t i = 0; i < n_vectors; i++) {
        tile->m[i] = x->m[i];
        tile->z[i] = x->z[i];
        for (uint32_t d = 0; d < spec->dim_v; d += 8) {
            float *o = tile->o + i * tile->o_stride + d;
            _mm256_store_ps(o, _mm256_mul_ps(_mm256_load_ps(o), unit));
        }
    }
}

void oct__attn_many__avx2(const oct__attn_tile *tile)
{
    attend(tile, false);
}

void oct__attn_many__avx2word(const oct__attn_tile *tile)
{
    attend(tile, true);
}

/* ---- the rows -------------------------------------------------------------------------------------------------------------- */

size_t oct__attn_extend_scratch__avx2(const oct_kv_spec *spec, uint32_t n_vectors)
{
    return oct__attn_decode_scratch__avx2(spec, n_vectors);
}

void oct__attn_extend__avx2(const oct__attn_tile *tile)
{
    oct__attn_decode__avx2(tile);
}

size_t oct__attn_extend_scratch__avx2word(const oct_kv_spec *spec, uint32_t n_vectors)
{
    return oct__attn_decode_scratch__avx2word(spec, n_vectors);
}

void oct__attn_extend__avx2word(const oct__attn_tile *tile)
{
    oct__attn_decode__avx2word(tile);
}
