/* attn_decode_avx2.c: owns attention of few vectors (at most 4: the query heads of one KV head in decode): stored bytes are decoded in
 * registers, once for all vectors, and never stored as f32.
 *
 * A block of 64 keys at a time:
 *   scores   dims in the lanes; a few keys x all vectors are accumulated side by side and summed over the lanes at the end
 *   softmax  scores lie as [key][vector], so one register holds two keys of four vectors, and maxima and sums stay in lanes
 *   values   16 to 64 dims x all vectors in registers, running over the block's keys; o takes a block's sum at once, so that its
 *            rounding error grows with the number of blocks and not of keys
 * Keys that only some rows see (the edges of causal and window, a token mask) are taken row by row, and then only visible keys are
 * touched at all.
 *
 * Threads: works in the tile's scratch and outputs. */
#include <math.h>

#include "cpu/avx2.h"
#include "cpu/avx2_keys.h"

#define BLOCK 64u

/* ---- scores -------------------------------------------------------------------------------------------------------------- */

/* s[key][vector], rows of 1, 2 or 4 floats, for n keys rounded up to n_keys at a time; keys past n repeat the last. */
typedef void score_fn(float *s, const float *q, int64_t q_stride, const uint8_t *const *rows, uint32_t n, uint32_t dim);

/* Sums of the lanes of a, b, c, d: in each half of the register, {a, b, c, d} of that half. */
AVX2_INLINE __m256 sum4(__m256 a, __m256 b, __m256 c, __m256 d)
{
    return _mm256_hadd_ps(_mm256_hadd_ps(a, b), _mm256_hadd_ps(c, d));
}
AVX2_INLINE __m256 add_halves(__m256 a, __m256 b)
{
    return _mm256_add_ps(_mm256_permute2f128_ps(a, b, 0x20), _mm256_permute2f128_ps(a, b, 0x31));
}

/* n_vectors x n_keys accumulators; their count is 8 (6 for three vectors), as much as two FMA pipes of four cycles need. */
AVX2_INLINE void score(float *s, const float *q, int64_t q_stride, const uint8_t *const *rows, uint32_t n, uint32_t dim, const uint32_t dtype,
                       const uint32_t n_vectors, const uint32_t n_keys)
{
    for (uint32_t j = 0; j < n; j += n_keys, s += 8) {
        __m256 sum[8]; /* [key][vector], three vectors in rows of four */
        const uint32_t row = n_vectors == 3 ? 4 : n_vectors;
        uint32_t d = 0;
        AVX2_UNROLL for (uint32_t i = 0; i < 8; i++)
        {
            sum[i] = _mm256_setzero_ps();
        }
        for (; d + 16 <= dim; d += 16) {
            __m256 low[8], high[8];
            AVX2_UNROLL for (uint32_t k = 0; k < n_keys; k++)
            {
                avx2_load16(rows[j + k] + d * avx2_size(dtype), dtype, &low[k], &high[k]);
                if (n_vectors == 1) { /* one key at a time leaves registers for eight sums */
                    sum[k] = _mm256_fmadd_ps(low[k], _mm256_load_ps(q + d), sum[k]);
                    sum[k] = _mm256_fmadd_ps(high[k], _mm256_load_ps(q + d + 8), sum[k]);
                }
            }
            AVX2_UNROLL for (uint32_t v = 0; v < n_vectors && n_vectors > 1; v++)
            {
                const __m256 q_low = _mm256_load_ps(q + v * q_stride + d), q_high = _mm256_load_ps(q + v * q_stride + d + 8);
                AVX2_UNROLL for (uint32_t k = 0; k < n_keys; k++)
                {
                    sum[k * row + v] = _mm256_fmadd_ps(low[k], q_low, sum[k * row + v]);
                    sum[k * row + v] = _mm256_fmadd_ps(high[k], q_high, sum[k * row + v]);
                }
            }
        }
        if (d < dim) {
            AVX2_UNROLL for (uint32_t k = 0; k < n_keys; k++)
            {
                const __m256 x = avx2_load8(rows[j + k] + d * avx2_size(dtype), dtype);
                AVX2_UNROLL for (uint32_t v = 0; v < n_vectors; v++)
                {
                    sum[k * row + v] = _mm256_fmadd_ps(x, _mm256_load_ps(q + v * q_stride + d), sum[k * row + v]);
                }
            }
        }
        _mm256_store_ps(s, add_halves(sum4(sum[0], sum[1], sum[2], sum[3]), sum4(sum[4], sum[5], sum[6], sum[7])));
    }
}

/* ---- values -------------------------------------------------------------------------------------------------------------- */

/* o[v][dim] = o[v][dim] * keep[v] + sum over keys of p[key][v] * row[key][dim]. */
typedef void value_fn(float *o, int64_t o_stride, const float *keep, const float *p, const uint8_t *const *rows, uint32_t n, uint32_t dim);

/* n16 x 16 dims at d. */
AVX2_INLINE void value_dims(float *o, int64_t o_stride, const float *keep, const float *p, const uint8_t *const *rows, uint32_t n, uint32_t d,
                            const uint32_t dtype, const uint32_t n_vectors, const uint32_t n16)
{
    const uint32_t row = n_vectors == 3 ? 4 : n_vectors;
    __m256 sum[4][8];
    AVX2_UNROLL for (uint32_t v = 0; v < n_vectors; v++)
    {
        AVX2_UNROLL for (uint32_t i = 0; i < 2 * n16; i++)
        {
            sum[v][i] = _mm256_setzero_ps();
        }
    }
    for (uint32_t j = 0; j < n; j++, p += row) {
        const uint8_t *at = rows[j] + d * avx2_size(dtype);
        AVX2_UNROLL for (uint32_t i = 0; i < n16; i++)
        {
            __m256 low, high;
            avx2_load16(at + 16 * i * avx2_size(dtype), dtype, &low, &high);
            AVX2_UNROLL for (uint32_t v = 0; v < n_vectors; v++)
            {
                const __m256 weight = _mm256_broadcast_ss(p + v);
                sum[v][2 * i] = _mm256_fmadd_ps(weight, low, sum[v][2 * i]);
                sum[v][2 * i + 1] = _mm256_fmadd_ps(weight, high, sum[v][2 * i + 1]);
            }
        }
    }
    AVX2_UNROLL for (uint32_t v = 0; v < n_vectors; v++)
    {
        const __m256 factor = _mm256_broadcast_ss(keep + v);
        AVX2_UNROLL for (uint32_t i = 0; i < 2 * n16; i++)
        {
            float *to = o + v * o_stride + d + 8 * i;
            _mm256_store_ps(to, _mm256_fmadd_ps(_mm256_load_ps(to), factor, sum[v][i]));
        }
    }
}

AVX2_INLINE void value(float *o, int64_t o_stride, const float *keep, const float *p, const uint8_t *const *rows, uint32_t n, uint32_t dim,
                       const uint32_t dtype, const uint32_t n_vectors)
{
    const uint32_t row = n_vectors == 3 ? 4 : n_vectors;
    uint32_t d = 0;
    if (n_vectors == 1) {
        for (; d + 64 <= dim; d += 64) {
            value_dims(o, o_stride, keep, p, rows, n, d, dtype, n_vectors, 4);
        }
    }
    if (n_vectors <= 3) {
        for (; d + 32 <= dim; d += 32) {
            value_dims(o, o_stride, keep, p, rows, n, d, dtype, n_vectors, 2);
        }
    }
    for (; d + 16 <= dim; d += 16) {
        value_dims(o, o_stride, keep, p, rows, n, d, dtype, n_vectors, 1);
    }
    if (d < dim) {
        __m256 sum[4];
        AVX2_UNROLL for (uint32_t v = 0; v < n_vectors; v++)
        {
            sum[v] = _mm256_setzero_ps();
        }
        for (uint32_t j = 0; j < n; j++, p += row) {
            const __m256 x = avx2_load8(rows[j] + d * avx2_size(dtype), dtype);
            AVX2_UNROLL for (uint32_t v = 0; v < n_vectors; v++)
            {
                sum[v] = _mm256_fmadd_ps(_mm256_broadcast_ss(p + v), x, sum[v]);
            }
        }
        AVX2_UNROLL for (uint32_t v = 0; v < n_vectors; v++)
        {
            float *to = o + v * o_stride + d;
            _mm256_store_ps(to, _mm256_fmadd_ps(_mm256_load_ps(to), _mm256_broadcast_ss(keep + v), sum[v]));
        }
    }
}

/* ---- one function for each format and number of vectors ------------------------------------------------------------------- */

#define FORMAT_VECTORS(format, n_vectors, n_keys)                                                                                       \
    static void score_##format##_##n_vectors(float *s, const float *q, int64_t q_stride, const uint8_t *const *rows, uint32_t n, uint32_t dim) \
    {                                                                                                                                   \
        score(s, q, q_stride, rows, n, dim, OCT_DTYPE_##format, n_vectors, n_keys);                                                     \
    }                                                                                                                                   \
    static void value_##format##_##n_vectors(float *o, int64_t o_stride, const float *keep, const float *p, const uint8_t *const *rows, \
                                             uint32_t n, uint32_t dim)                                                                  \
    {                                                                                                                                   \
        value(o, o_stride, keep, p, rows, n, dim, OCT_DTYPE_##format, n_vectors);                                                       \
    }
#define FORMAT(format)                                                                                                                  \
    FORMAT_VECTORS(format, 1, 8)                                                                                                        \
    FORMAT_VECTORS(format, 2, 4)                                                                                                        \
    FORMAT_VECTORS(format, 3, 2)                                                                                                        \
    FORMAT_VECTORS(format, 4, 2)                                                                                                        \
    static void decode_##format(float *to, size_t stride, const uint8_t *const *rows, uint32_t n, uint32_t dim)                         \
    {                                                                                                                                   \
        avx2_decode(to, stride, rows, n, dim, OCT_DTYPE_##format);                                                                      \
    }
FORMAT(F32)
FORMAT(F16)
FORMAT(BF16)
FORMAT(E4M3FN)
FORMAT(E4M3FNUZ)
FORMAT(E5M2)
FORMAT(I8)

typedef struct format_row {
    score_fn *score[OCT__AVX2_FEW];
    value_fn *value[OCT__AVX2_FEW];
    avx2_decode_fn *decode;
} format_row;

#define FORMAT_ROW(format)                                                                                         \
    [OCT_DTYPE_##format] = { { score_##format##_1, score_##format##_2, score_##format##_3, score_##format##_4 },   \
                             { value_##format##_1, value_##format##_2, value_##format##_3, value_##format##_4 },   \
                             decode_##format }
static const format_row formats[] = { FORMAT_ROW(F32),    FORMAT_ROW(F16),      FORMAT_ROW(BF16), FORMAT_ROW(E4M3FN),
                                      FORMAT_ROW(E4M3FNUZ), FORMAT_ROW(E5M2), FORMAT_ROW(I8) };

/* ---- softmax ------------------------------------------------------------------------------------------------------------- */

/* Scratch of a tile. */
typedef struct few_scratch {
    float s[(BLOCK + 8) * 4];
    avx2_block block, visible; /* visible: the keys of the block that one row sees */
    float *decoded;            /* [BLOCK][dim], for blocks that hold a NaN byte */
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
static void softmax(const oct__attn_tile *tile, const avx2_block *b, float *s, uint32_t row, uint32_t n_vectors, float factor, float *m, float *z,
                    float *keep)
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

/* The rows to use for a block: the stored ones, or decoded f32 ones when there is a NaN byte among them (then *dtype becomes f32). */
static const uint8_t *const *check_rows(const uint8_t *const *rows, const uint8_t **decoded_rows, float *decoded, uint32_t n, uint32_t dim,
                                        uint32_t *dtype)
{
    __m256i evidence = _mm256_setzero_si256();
    if (*dtype == OCT_DTYPE_E4M3FN) {
        for (uint32_t j = 0; j < n; j++) {
            evidence = avx2_nan_gather(evidence, rows[j], dim, OCT_DTYPE_E4M3FN);
        }
    } else if (*dtype == OCT_DTYPE_E4M3FNUZ) {
        for (uint32_t j = 0; j < n; j++) {
            evidence = avx2_nan_gather(evidence, rows[j], dim, OCT_DTYPE_E4M3FNUZ);
        }
    } else {
        return rows;
    }
    if (!avx2_nan_found(evidence, *dtype)) {
        return rows;
    }
    formats[*dtype].decode(decoded, dim, rows, n, dim);
    for (uint32_t j = 0; j < n + 8; j++) {
        decoded_rows[j] = (const uint8_t *)(decoded + (size_t)(j < n ? j : n - 1) * dim);
    }
    *dtype = OCT_DTYPE_F32;
    return decoded_rows;
}

/* Takes a block of keys that all of the vectors [i0, i0 + n_vectors) see. */
static void take_block(const oct__attn_tile *tile, few_scratch *scratch, const avx2_block *b, uint32_t i0, uint32_t n_vectors)
{
    const oct_kv_spec *spec = &tile->kv->spec;
    const uint32_t row = n_vectors == 3 ? 4 : n_vectors;
    const float factor = tile->score_scale * avx2_unit(spec->k.dtype);
    const uint8_t *decoded_rows[BLOCK + 8];
    uint32_t k_dtype = spec->k.dtype, v_dtype = spec->v.dtype;
    float keep[4];

    const uint8_t *const *k = check_rows(b->k, decoded_rows, scratch->decoded, b->n, spec->dim_k, &k_dtype);
    formats[k_dtype].score[n_vectors - 1](scratch->s, tile->q + i0 * tile->q_stride, tile->q_stride, k, b->n, spec->dim_k);
    softmax(tile, b, scratch->s, row, n_vectors, factor, tile->m + i0, tile->z + i0, keep);
    const uint8_t *const *v = check_rows(b->v, decoded_rows, scratch->decoded, b->n, spec->dim_v, &v_dtype);
    formats[v_dtype].value[n_vectors - 1](tile->o + i0 * tile->o_stride, tile->o_stride, keep, scratch->s, v, b->n, spec->dim_v);
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
        for (uint32_t j = n; j < n + 8; j++) {
            visible->k[j] = visible->k[n - 1];
            visible->v[j] = visible->v[n - 1];
        }
        visible->n = n;
        take_block(tile, scratch, visible, r * tile->n_heads, tile->n_heads);
    }
}

size_t oct__attn_few_scratch__avx2(const oct_kv_spec *spec, uint32_t n_vectors)
{
    const size_t dim = spec->dim_k > spec->dim_v ? spec->dim_k : spec->dim_v;
    (void)n_vectors; /* never more than OCT__AVX2_FEW */
    return (sizeof(few_scratch) + 63) / 64 * 64 + BLOCK * dim * sizeof(float) + avx2_stage_bytes(spec, AVX2_BLOCK_MAX);
}

void oct__attn_few__avx2(const oct__attn_tile *tile)
{
    const oct_kv_spec *spec = &tile->kv->spec;
    const size_t dim = spec->dim_k > spec->dim_v ? spec->dim_k : spec->dim_v;
    const uint32_t n_vectors = tile->n_rows * tile->n_heads;
    const float v_unit = avx2_unit(spec->v.dtype);
    few_scratch *scratch = tile->scratch;
    int64_t key0, key1;

    scratch->decoded = (float *)(void *)((uint8_t *)tile->scratch + (sizeof(few_scratch) + 63) / 64 * 64);
    scratch->stage = (uint8_t *)(scratch->decoded + BLOCK * dim);
    for (uint32_t i = 0; i < n_vectors; i++) {
        tile->m[i] = -INFINITY;
        tile->z[i] = 0.0f;
        memset(tile->o + i * tile->o_stride, 0, spec->dim_v * sizeof(float));
    }
    avx2_tile_range(tile, &key0, &key1);
    for (int64_t first = key0; first < key1;) {
        const int64_t end = (first / BLOCK + 1) * BLOCK < key1 ? (first / BLOCK + 1) * BLOCK : key1;
        avx2_block_point(&scratch->block, tile, first, (uint32_t)(end - first), scratch->stage);
        if (avx2_all_see(tile, first, end)) {
            take_block(tile, scratch, &scratch->block, 0, n_vectors);
        } else {
            take_edge(tile, scratch, &scratch->block);
        }
        first = end;
    }
    for (uint32_t i = 0; i < n_vectors && v_unit != 1.0f; i++) {
        for (uint32_t d = 0; d < spec->dim_v; d += 8) {
            float *o = tile->o + i * tile->o_stride + d;
            _mm256_store_ps(o, _mm256_mul_ps(_mm256_load_ps(o), _mm256_set1_ps(v_unit)));
        }
    }
}

/* ---- the row ------------------------------------------------------------------------------------------------------------- */

size_t oct__attn_decode_scratch__avx2(const oct_kv_spec *spec, uint32_t n_vectors)
{
    const size_t few = oct__attn_few_scratch__avx2(spec, n_vectors), many = oct__attn_many_scratch__avx2(spec, n_vectors);
    return few > many ? few : many;
}

void oct__attn_decode__avx2(const oct__attn_tile *tile)
{
    if (tile->n_rows * tile->n_heads <= OCT__AVX2_FEW) {
        oct__attn_few__avx2(tile);
    } else {
        oct__attn_many__avx2(tile);
    }
}
