/* attn_decode_avx2.c: owns attention of few vectors (up to 24: the query heads of one KV head in decode, a few rows of a speculative
 * step), up to four at a time over one block of keys. Dims lie in the lanes; keys are never stored as f32. Two rows take it: avx2 multiplies in f32, avx2word
 * over i8 in integers where they can stand for q and weights (avx2_word.h), and in f32 at edges, in short tiles and where q does not fit.
 *
 * A block of keys at a time:
 *   staging  e4m3 and e5m2 become f16 words in L1, once for all vectors, and V in 4 bits f32; that also finds NaN bytes. The other formats are read in place
 *   scores   keys x vectors accumulated side by side in 9 to 12 registers, summed over the lanes at the end
 *   softmax  scores lie as [key][vector], so one register holds two keys of four vectors, and maxima and sums stay in lanes
 *   values   dims x vectors in 8 to 12 registers, running over the block's keys; o takes a block's sum at once, so that its rounding
 *            error grows with the number of blocks and not of keys
 * The bytes of the next block are prefetched in small shares while this one is computed.
 * Ladder, e4m3, 4 vectors x dim 128, one thread of a Zen 4 at 3.7 GHz with other work on the machine, percent of its FMA peak from L2 /
 * from cold pages (2 flop a vector and element, so FMA is the roof): bytes decoded inside both products 46 / 32; next block prefetched
 * into L1 47 / 41; f16 words, 3 keys x 4 vectors and 24 dims x 4 vectors 47 / 39; words and NaN check in one loop 53 / 42; prefetch into
 * L2 53 / 49. Cycles of the loops themselves are in avx2_dims.h. Blocks of 32 keys lose 3 % to the work around the products; 128 gain
 * nothing. Eight vectors 63 / 58, sixteen 71 / 66; i8 in f32 with four 59 / 50, with eight 64 / 57, in integers 73 / 62 with four.
 * Keys that only some rows see (the edges of causal and window, a token mask) are taken row by row, and then only visible keys are
 * touched at all.
 *
 * Threads: works in the tile's scratch and outputs. */
#include <math.h>

#include "cpu/avx2.h"
#include "cpu/avx2_dims.h"
#include "cpu/avx2_keys.h"
#include "cpu/avx2_v4.h"
#include "cpu/avx2_word.h"

#define BLOCK 64u /* keys */

/* ---- one function for each format in place and number of vectors ----------------------------------------------------------- */

#define FORMAT_VECTORS(format, n_vectors, n_keys)                                                                                       \
    static void score_##format##_##n_vectors(float *s, const float *q, int64_t q_stride, const uint8_t *const *rows, uint32_t n,        \
                                             uint32_t dim, avx2_ahead next)                                                             \
    {                                                                                                                                   \
        avx2_score(s, q, q_stride, rows, n, dim, next, OCT_DTYPE_##format, n_vectors, n_keys);                                          \
    }                                                                                                                                   \
    static void value_##format##_##n_vectors(float *o, int64_t o_stride, const float *keep, const float *p, const uint8_t *const *rows, \
                                             uint32_t n, uint32_t dim, avx2_ahead next)                                                 \
    {                                                                                                                                   \
        avx2_value(o, o_stride, keep, p, rows, n, dim, next, OCT_DTYPE_##format, n_vectors);                                            \
    }
#define FORMAT(format)            \
    FORMAT_VECTORS(format, 1, 12) \
    FORMAT_VECTORS(format, 2, 6)  \
    FORMAT_VECTORS(format, 3, 3)  \
    FORMAT_VECTORS(format, 4, 3)
FORMAT(F32)
FORMAT(F16)
FORMAT(BF16)
FORMAT(I8)

typedef struct format_row {
    avx2_score_fn *score[AVX2_PASS];
    avx2_value_fn *value[AVX2_PASS];
} format_row;

#define FORMAT_ROW(format)                                                                                       \
    [OCT_DTYPE_##format] = { { score_##format##_1, score_##format##_2, score_##format##_3, score_##format##_4 }, \
                             { value_##format##_1, value_##format##_2, value_##format##_3, value_##format##_4 } }
static const format_row formats[OCT_DTYPE_I8 + 1] = { FORMAT_ROW(F32), FORMAT_ROW(F16), FORMAT_ROW(BF16), FORMAT_ROW(I8) };

/* i8 in integers. */
#define WORD_VECTORS(n_vectors, n_keys)                                                                                                              \
    static void word_score_##n_vectors(float *s, const int16_t *q, const float *unit, const uint8_t *const *rows, uint32_t n, uint32_t dim,          \
                                       avx2_ahead next)                                                                                              \
    {                                                                                                                                                \
        avx2_word_score(s, q, unit, rows, n, dim, next, n_vectors, n_keys);                                                                          \
    }                                                                                                                                                \
    static void word_value_##n_vectors(float *o, int64_t o_stride, const float *keep, const float *gain, const int16_t *p, const uint8_t *const *rows, \
                                       uint32_t n, uint32_t dim, avx2_ahead next)                                                                    \
    {                                                                                                                                                \
        avx2_word_value(o, o_stride, keep, gain, p, rows, n, dim, next, n_vectors);                                                                  \
    }
WORD_VECTORS(1, 8)
WORD_VECTORS(2, 4)
WORD_VECTORS(3, 2)
WORD_VECTORS(4, 2)
static avx2_word_score_fn *const word_scores[AVX2_PASS] = { word_score_1, word_score_2, word_score_3, word_score_4 };
static avx2_word_value_fn *const word_values[AVX2_PASS] = { word_value_1, word_value_2, word_value_3, word_value_4 };

/* ---- staging ------------------------------------------------------------------------------------------------------------- */

/* f16 words from one staged row to the next: 16 more than the dim, so that a column of rows doesn't fall into a few sets of L1. */
static size_t words_stride(uint32_t dim)
{
    return (dim + 15u) / 16 * 16 + 16;
}

/* The same of V: in 4 bits it is staged as f32, which take two words each. */
static size_t v_words_stride(const oct_kv_spec *spec)
{
    return words_stride(spec->dim_v) * (spec->v.dtype == OCT_DTYPE_V4 ? 2 : 1);
}

AVX2_INLINE void stage_rows(uint16_t *to, const uint8_t *const *rows, uint32_t n, uint32_t dim, const uint32_t dtype)
{
    const size_t stride = words_stride(dim);
    __m256i evidence = _mm256_setzero_si256();
    for (uint32_t j = 0; j < n; j++) {
        const uint8_t *row = rows[j];
        uint16_t *words = to + j * stride;
        uint32_t d = 0;
        for (; d + 32 <= dim; d += 32) {
            if (avx2_hides_nan(dtype)) {
                evidence = avx2_nan_gather32(evidence, row + d, dtype);
            }
            _mm256_store_si256((__m256i *)(void *)(words + d), avx2_words16(row + d, dtype));
            _mm256_store_si256((__m256i *)(void *)(words + d + 16), avx2_words16(row + d + 16, dtype));
        }
        for (; d < dim; d += 8) {
            if (avx2_hides_nan(dtype)) {
                evidence = avx2_nan_gather8(evidence, row + d, dtype);
            }
            _mm_store_si128((__m128i *)(void *)(words + d), avx2_words8(row + d, dtype, false));
        }
    }
    if (avx2_hides_nan(dtype) && avx2_nan_found(evidence, dtype)) {
        for (uint32_t j = 0; j < n; j++) {
            for (uint32_t d = 0; d < dim; d += 8) {
                _mm_store_si128((__m128i *)(void *)(to + j * stride + d), avx2_words8(rows[j] + d, dtype, true));
            }
        }
    }
}

static void stage(uint16_t *to, const uint8_t *const *rows, uint32_t n, uint32_t dim, uint32_t dtype)
{
    switch (dtype) {
    case OCT_DTYPE_E4M3FN:
        stage_rows(to, rows, n, dim, OCT_DTYPE_E4M3FN);
        break;
    case OCT_DTYPE_E4M3FNUZ:
        stage_rows(to, rows, n, dim, OCT_DTYPE_E4M3FNUZ);
        break;
    default:
        stage_rows(to, rows, n, dim, OCT_DTYPE_E5M2);
        break;
    }
}

/* ---- softmax ------------------------------------------------------------------------------------------------------------- */

/* Scratch of a tile. */
typedef struct few_scratch {
    float s[(BLOCK + 12) * AVX2_PASS];
    _Alignas(32) int16_t weights[(BLOCK + 12) * AVX2_PASS]; /* those of s, for values in integers */
    bool in_words;                                          /* i8 is multiplied in integers where they can stand for the floats */
    float q_unit[OCT__AVX2_FEW];
    float word_scale_max;                                   /* K scales up to which scores are integers; 0: none are */
    avx2_block blocks[2], visible;                          /* this block and the next; visible: the keys of a block that one row sees */
    uint16_t *k_words, *v_words;                            /* [BLOCK][words_stride], [BLOCK][v_words_stride] */
    int16_t *q_words;                                       /* [vector][avx2_word_stride] */
    const uint8_t *k_rows[BLOCK + 16], *v_rows[BLOCK + 16]; /* rows of the same; past the block its last one again */
    uint8_t *stage;
} few_scratch;

/* A number for each key, spread over the key's row of 1, 2 or 4 floats; eight floats from float i on. */
AVX2_INLINE __m256 spread(const float *by_key, uint32_t i, uint32_t row)
{
    switch (row) {
    case 1:
        return _mm256_loadu_ps(by_key + i);
    case 2:
        return _mm256_permutevar8x32_ps(_mm256_castps128_ps256(_mm_loadu_ps(by_key + i / 2)), _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3));
    default:
        return _mm256_set_m128(_mm_broadcast_ss(by_key + i / 4 + 1), _mm_broadcast_ss(by_key + i / 4));
    }
}

/* Combines lanes that belong to the same vector; every lane gets the result. */
AVX2_INLINE __m256 fold(__m256 x, uint32_t row, bool is_max)
{
    __m256 other = _mm256_permute2f128_ps(x, x, 1);
    x = is_max ? _mm256_max_ps(x, other) : _mm256_add_ps(x, other);
    if (row <= 2) {
        other = _mm256_permute_ps(x, 0x4E);
        x = is_max ? _mm256_max_ps(x, other) : _mm256_add_ps(x, other);
    }
    if (row == 1) {
        other = _mm256_permute_ps(x, 0xB1);
        x = is_max ? _mm256_max_ps(x, other) : _mm256_add_ps(x, other);
    }
    return x;
}

/* From raw products to weights, in place: scale, cap, the running maximum m and sum z of each vector, exp, V's dynamic scale.
 * keep[v] is what o must be multiplied by. s: [b->n][row]; as many floats past its end as fill a register are ours. */
static void softmax(const oct__attn_tile *tile, const avx2_block *b, float *s, uint32_t row, uint32_t n_vectors, float factor, float *m,
                    float *z, float *keep)
{
    const oct_kv_spec *spec = &tile->kv->spec;
    const bool k_dynamic = spec->k.scale_mode == OCT_SCALE_TOKEN_HEAD, v_dynamic = spec->v.scale_mode == OCT_SCALE_TOKEN_HEAD;
    const uint32_t n = b->n * row;
    __m256 max = _mm256_set1_ps(-INFINITY), sum = _mm256_setzero_ps();
    float lanes[8] = { 0 };

    for (uint32_t i = 0; i < n; i += 8) {
        __m256 x = _mm256_mul_ps(_mm256_load_ps(s + i), _mm256_set1_ps(factor));
        if (k_dynamic) {
            x = _mm256_mul_ps(x, spread(b->k_scale, i, row));
        }
        if (tile->softcap > 0) {
            x = avx2_softcap(x, tile->softcap);
        }
        _mm256_store_ps(s + i, x);
        if (i + 8 > n) { /* the last register: what lies past the keys is no score */
            for (uint32_t l = n; l < i + 8; l++) {
                s[l] = -INFINITY;
            }
            x = _mm256_load_ps(s + i);
        }
        max = _mm256_max_ps(x, max); /* a NaN score is passed over here and comes out of exp */
    }
    max = fold(max, row, true);
    for (uint32_t l = 0; l < 8; l++) {
        lanes[l] = m[l % row < n_vectors ? l % row : 0];
    }
    const __m256 before = _mm256_loadu_ps(lanes);
    const __m256 now = _mm256_max_ps(max, before);
    /* While nothing but -inf has been seen, exp(-inf - -inf) would be NaN: subtract 0 instead. */
    const __m256 base = _mm256_andnot_ps(_mm256_cmp_ps(now, _mm256_set1_ps(-INFINITY), _CMP_EQ_OQ), now);
    const __m256 factors = avx2_exp(_mm256_sub_ps(before, base));
    for (uint32_t i = 0; i < n; i += 8) {
        __m256 x = avx2_exp(_mm256_sub_ps(_mm256_load_ps(s + i), base));
        sum = _mm256_add_ps(sum, x);
        if (v_dynamic) {
            x = _mm256_mul_ps(x, spread(b->v_scale, i, row));
        }
        _mm256_store_ps(s + i, x);
    }
    for (uint32_t l = n; l % 8 != 0; l++) { /* 0 times the scale of a key that is none may be NaN, which integers would take for a weight */
        s[l] = 0.0f;
    }
    sum = fold(sum, row, false);
    float sums[8], maxima[8];
    _mm256_storeu_ps(lanes, factors);
    _mm256_storeu_ps(sums, sum);
    _mm256_storeu_ps(maxima, now);
    for (uint32_t v = 0; v < n_vectors; v++) {
        keep[v] = lanes[v];
        z[v] = z[v] * lanes[v] + sums[v];
        m[v] = maxima[v];
    }
}

/* ---- the tile ------------------------------------------------------------------------------------------------------------ */

/* A weight that was set apart, as a word of its own beside none. */
static void add_apart(float *o, const avx2_apart *apart, const uint8_t *const *rows, uint32_t dim)
{
    const int16_t words[2] = { AVX2_WEIGHT_MAX, 0 };
    const float keep = 1.0f, gain = apart->p / AVX2_WEIGHT_MAX;
    const uint8_t *const row[2] = { rows[apart->key], rows[apart->key] };
    word_values[0](o, 0, &keep, &gain, words, row, 2, dim, (avx2_ahead){ row, 0 });
}

/* Takes a block of keys that all of the vectors [i0, i0 + n_vectors) see. next_block: the one after it, or NULL. */
static void take_block(const oct__attn_tile *tile, few_scratch *scratch, const avx2_block *b, const avx2_block *next_block, uint32_t i0,
                       uint32_t n_vectors, bool has_words)
{
    const oct_kv_spec *spec = &tile->kv->spec;
    const float factor = tile->score_scale * avx2_unit(spec->k.dtype);
    const uint32_t n_passes = (n_vectors + AVX2_PASS - 1) / AVX2_PASS;
    avx2_ahead k_next = { b->k, 0 }, v_next = { b->v, 0 };
    uint32_t k_dtype = spec->k.dtype, v_dtype = spec->v.dtype;
    const uint8_t *const *k = b->k, *const *v = b->v;

    if (avx2_is_half_of_f16(k_dtype)) {
        stage(scratch->k_words, k, b->n, spec->dim_k, k_dtype);
        k = scratch->k_rows;
        k_dtype = OCT_DTYPE_F16;
    }
    if (avx2_is_half_of_f16(v_dtype)) {
        stage(scratch->v_words, v, b->n, spec->dim_v, v_dtype);
        v = scratch->v_rows;
        v_dtype = OCT_DTYPE_F16;
    }
    if (v_dtype == OCT_DTYPE_V4) {
        avx2_v4_decode((float *)(void *)scratch->v_words, words_stride(spec->dim_v), v, b->n, spec->dim_v);
        v = scratch->v_rows;
        v_dtype = OCT_DTYPE_F32;
    }
    if (next_block != NULL) {
        k_next = (avx2_ahead){ next_block->k, spec->dim_k * oct__dtype_size_bytes(spec->k.dtype) };
        v_next = (avx2_ahead){ next_block->v, (uint32_t)oct__element_at(spec->v.dtype, spec->dim_v) };
    }
    for (uint32_t pass = 0, i = 0; pass < n_passes; pass++) {
        const uint32_t next = n_vectors * (pass + 1) / n_passes, n = next - i, row = avx2_row_of(n);
        avx2_apart apart[AVX2_PASS];
        float keep[AVX2_PASS], gain[AVX2_PASS], *o = tile->o + (i0 + i) * tile->o_stride;
        if (has_words) {
            word_scores[n - 1](scratch->s, scratch->q_words + (i0 + i) * avx2_word_stride(spec->dim_k), scratch->q_unit + i0 + i, k, b->n, spec->dim_k, k_next);
        } else {
            formats[k_dtype].score[n - 1](scratch->s, tile->q + (i0 + i) * tile->q_stride, tile->q_stride, k, b->n, spec->dim_k, k_next);
        }
        softmax(tile, b, scratch->s, row, n, factor, tile->m + i0 + i, tile->z + i0 + i, keep);
        if (scratch->in_words && v_dtype == OCT_DTYPE_I8 && avx2_word_weigh(scratch->weights, scratch->s, b->n * row, row, gain, apart)) {
            word_values[n - 1](o, tile->o_stride, keep, gain, scratch->weights, v, b->n, spec->dim_v, v_next);
            for (uint32_t l = 0; l < n; l++) {
                if (apart[l].p != 0) {
                    add_apart(o + l * tile->o_stride, &apart[l], v, spec->dim_v);
                }
            }
        } else {
            formats[v_dtype].value[n - 1](o, tile->o_stride, keep, scratch->s, v, b->n, spec->dim_v, v_next);
        }
        k_next.row_bytes = v_next.row_bytes = 0;
        i = next;
    }
}

/* Takes a block of which each row sees its own part. */
static void take_edge(const oct__attn_tile *tile, few_scratch *scratch, const avx2_block *b)
{
    avx2_block *visible = &scratch->visible;
    for (uint32_t r = 0; r < tile->n_rows; r++) {
        const int64_t low = avx2_low(tile, tile->pos0 + r), high = avx2_high(tile, tile->pos0 + r);
        uint32_t n = 0;
        for (uint32_t j = 0; j < b->n; j++) {
            const int64_t key = b->first + j;
            if (key >= low && key < high && avx2_mask_shows(tile, r, key)) {
                visible->k[n] = b->k[j];
                visible->v[n] = b->v[j];
                visible->k_scale[n] = b->k_scale[j];
                visible->v_scale[n] = b->v_scale[j];
                n++;
            }
        }
        if (n == 0) {
            continue;
        }
        for (uint32_t j = n; j < n + 12; j++) {
            visible->k[j] = visible->k[n - 1];
            visible->v[j] = visible->v[n - 1];
        }
        visible->n = n;
        take_block(tile, scratch, visible, NULL, r * tile->n_heads, tile->n_heads, false);
    }
}

static size_t round_64(size_t bytes)
{
    return (bytes + 63) / 64 * 64;
}

/* n_word_vectors: those that have q in words; vectors are taken AVX2_PASS at a time, but these are all made before the first. */
static size_t scratch_bytes(const oct_kv_spec *spec, uint32_t n_word_vectors)
{
    return round_64(sizeof(few_scratch)) + (BLOCK * (words_stride(spec->dim_k) + v_words_stride(spec)) + n_word_vectors * avx2_word_stride(spec->dim_k)) * sizeof(uint16_t) +
           avx2_stage_bytes(spec, AVX2_BLOCK_MAX);
}

/* Keys of the block that starts at `first`. */
static uint32_t block_length(int64_t first, int64_t key1)
{
    const int64_t end = (first / BLOCK + 1) * BLOCK;
    return (uint32_t)((end < key1 ? end : key1) - first);
}

/* q in integers, where they can stand for it: finite, and far from both ends of f32's range. */
static void prepare_words(few_scratch *scratch, const oct__attn_tile *tile, uint32_t n_vectors)
{
    const oct_kv_spec *spec = &tile->kv->spec;
    const size_t stride = avx2_word_stride(spec->dim_k);
    float most = 0;
    scratch->word_scale_max = 0;
    for (uint32_t i = 0; i < n_vectors; i++) {
        const float *q = tile->q + i * tile->q_stride;
        const float largest = avx2_word_largest(q, (uint32_t)stride);
        if (!avx2_word_holds(largest)) {
            return;
        }
        scratch->q_unit[i] = avx2_word_q(scratch->q_words + i * stride, q, spec->dim_k, largest);
        most = largest > most ? largest : most;
    }
    scratch->word_scale_max = avx2_word_scale_max(most, tile->score_scale, spec->dim_k);
}

static void lay_out(few_scratch *scratch, const oct_kv_spec *spec, uint32_t n_word_vectors)
{
    const size_t k_stride = words_stride(spec->dim_k), v_stride = v_words_stride(spec);
    scratch->k_words = (uint16_t *)(void *)((uint8_t *)scratch + round_64(sizeof(few_scratch)));
    scratch->v_words = scratch->k_words + BLOCK * k_stride;
    scratch->q_words = (int16_t *)(void *)(scratch->v_words + BLOCK * v_stride);
    scratch->stage = (uint8_t *)(scratch->q_words + n_word_vectors * avx2_word_stride(spec->dim_k));
    for (uint32_t j = 0; j < BLOCK + 16; j++) {
        const uint32_t row = j < BLOCK ? j : BLOCK - 1;
        scratch->k_rows[j] = (const uint8_t *)(scratch->k_words + row * k_stride);
        scratch->v_rows[j] = (const uint8_t *)(scratch->v_words + row * v_stride);
    }
}

static void attend(const oct__attn_tile *tile, bool in_words)
{
    const oct_kv_spec *spec = &tile->kv->spec;
    const uint32_t n_vectors = tile->n_rows * tile->n_heads;
    const __m256 v_unit = _mm256_set1_ps(avx2_unit(spec->v.dtype));
    few_scratch *scratch = tile->scratch;
    avx2_block *now = &scratch->blocks[0], *next = &scratch->blocks[1];
    int64_t key0, key1;

    lay_out(scratch, spec, in_words ? n_vectors : 0);
    for (uint32_t i = 0; i < n_vectors; i++) {
        tile->m[i] = -INFINITY;
        tile->z[i] = 0.0f;
        memset(tile->o + i * tile->o_stride, 0, spec->dim_v * sizeof(float));
    }
    avx2_tile_range(tile, &key0, &key1);
    scratch->in_words = in_words;
    scratch->word_scale_max = 0;
    if (in_words && spec->k.dtype == OCT_DTYPE_I8 && key1 - key0 >= BLOCK) {
        prepare_words(scratch, tile, n_vectors);
    }
    if (key0 < key1) {
        avx2_block_point(now, tile, key0, block_length(key0, key1), BLOCK, scratch->stage);
    }
    for (int64_t first = key0; first < key1;) {
        const int64_t end = first + now->n;
        /* V5D has one stage: until this block is done, only the bytes of the next one can be pointed at. */
        const bool has_next = end < key1, is_staged = spec->layout == OCT_LAYOUT_V5D;
        if (has_next) {
            if (is_staged) {
                avx2_block_ahead(next, tile, end, block_length(end, key1));
            } else {
                avx2_block_point(next, tile, end, block_length(end, key1), BLOCK, NULL);
            }
            avx2_block_scales_ahead(next, tile);
        }
        avx2_block_scales(now, tile);
        if (avx2_all_see(tile, first, end)) {
            take_block(tile, scratch, now, has_next ? next : NULL, 0, n_vectors, avx2_word_fits(spec, scratch->word_scale_max, now));
        } else {
            take_edge(tile, scratch, now);
        }
        first = end;
        if (has_next && !is_staged) {
            avx2_block *swap = now;
            now = next;
            next = swap;
        } else if (has_next) {
            avx2_block_point(now, tile, end, block_length(end, key1), BLOCK, scratch->stage);
        }
    }
    for (uint32_t i = 0; i < n_vectors; i++) {
        for (uint32_t d = 0; d < spec->dim_v; d += 8) {
            float *o = tile->o + i * tile->o_stride + d;
            _mm256_store_ps(o, _mm256_mul_ps(_mm256_load_ps(o), v_unit));
        }
    }
}

void oct__attn_few__avx2(const oct__attn_tile *tile)
{
    attend(tile, false);
}

void oct__attn_few__avx2word(const oct__attn_tile *tile)
{
    attend(tile, true);
}

size_t oct__attn_few_scratch__avx2(const oct_kv_spec *spec, uint32_t n_vectors)
{
    (void)n_vectors; /* they are taken AVX2_PASS at a time */
    return scratch_bytes(spec, 0);
}

size_t oct__attn_few_scratch__avx2word(const oct_kv_spec *spec, uint32_t n_vectors)
{
    return scratch_bytes(spec, n_vectors < OCT__AVX2_FEW ? n_vectors : OCT__AVX2_FEW);
}

/* ---- the rows ------------------------------------------------------------------------------------------------------------ */

static size_t larger(size_t a, size_t b)
{
    return a > b ? a : b;
}

size_t oct__attn_decode_scratch__avx2(const oct_kv_spec *spec, uint32_t n_vectors)
{
    return larger(oct__attn_few_scratch__avx2(spec, n_vectors), oct__attn_many_scratch__avx2(spec, n_vectors));
}

size_t oct__attn_decode_scratch__avx2word(const oct_kv_spec *spec, uint32_t n_vectors)
{
    return larger(oct__attn_few_scratch__avx2word(spec, n_vectors), oct__attn_many_scratch__avx2word(spec, n_vectors));
}

static bool are_few(const oct__attn_tile *tile)
{
    /* Rows that see different keys of a block are taken one by one, which pays only where most keys are seen by all. */
    const bool is_mostly_common = tile->n_rows == 1 || tile->key1 - tile->key0 >= 32 * (int64_t)tile->n_rows;
    return tile->n_rows * tile->n_heads <= OCT__AVX2_FEW && is_mostly_common;
}

void oct__attn_decode__avx2(const oct__attn_tile *tile)
{
    if (are_few(tile)) {
        oct__attn_few__avx2(tile);
    } else {
        oct__attn_many__avx2(tile);
    }
}

void oct__attn_decode__avx2word(const oct__attn_tile *tile)
{
    if (are_few(tile)) {
        oct__attn_few__avx2word(tile);
    } else {
        oct__attn_many__avx2word(tile);
    }
}
