/* attn_decode_avx512vnni.c: owns attention of few vectors over i8 pages by integer dot products; avx512_word.h says how good they are.
 *   scores   four keys x 16 dims in a register, as they are stored; q as two bytes, 256 high + low, so two vpdpbusd take 64 products of 16 by
 *            8 bits. That instruction wants one side unsigned: K goes in with 128 added, and 128 times q's sum comes off again
 *   values   pairs of keys in words, 64 dims x 4 vectors or 32 x 8 in registers; V of another format is summed in f32 or in bf16. Words come by
 *            interleaving a byte with itself and shifting it down; by permutations, whose four indices took the sums' registers, 8/1 x 256 from
 *            memory had 56 % of the bf16 peak instead of 62
 * Otherwise as attn_decode_avx512.c. In cache, dim 128, i8, GB/s of one Zen 4 core at 3.7 GHz by query heads a KV head:
 *                                          1      2      4      8
 *   f32 (attn_decode_avx512.c)          17.5   14.1    9.6    5.2
 *   q in 15 or 16 bits                  25.2   19.5   13.6    7.6
 *   q in 24 bits, always                22.5   18.5   12.3    6.9    hence only where scores are far apart
 *
 * Beside e4m3, whose bf16 dot products take as many elements an instruction as these do (vpdpbusd 64, but twice for a q of 16 bits; vpdpwssd 32), only what is
 * not a product can be less, and dynamic scales are more: 1.5 times is out of reach of this bound, and q in 8 bits would not hold it (doc/NUMERICS.md). Where
 * the time goes, 8/1 x 256, 4,096 keys from memory, one thread, by samples of perf over `octavo bench attn -t 1 -r 100`, us:
 *                     scores   values   softmax   rows and scales   weights to words   rest   together
 *   i8, rotated K        118      101        10                 8                  5      5        247
 *   e4m3                 111       96         8                 3                  -      3        221
 * In cache 199 and 187: 0.94 as fast, 0.89 from memory. The rotation itself is 1 %.
 *
 * Threads: works in the tile's scratch and outputs. */
#include "cpu/avx512_word.h"

/* ---- scores -------------------------------------------------------------------------------------------------------------- */

/* A vector of q: what must be added to the sums of each term, the first one's unit, then for every 16 dims the high bytes, the low bytes and the
 * second term, each four times. */
typedef struct q_head {
    _Alignas(64) float unit;
    int32_t correction[2];
} q_head;

static size_t q_bytes(const oct_kv_spec *spec)
{
    return sizeof(q_head) + (size_t)(spec->dim_k + 15) / 16 * 192;
}

static void prepare(const oct_kv_spec *spec, void *q, const float *from, uint32_t n_most)
{
    const float largest = avx512_largest(from, spec->dim_k);
    const float scale = largest > 0 ? AVX512_Q_MAX / largest : 0.0f;
    q_head *head = q;
    int8_t *to = (int8_t *)(head + 1);
    __m512i sum = _mm512_setzero_si512(), sum_rest = sum;
    for (uint32_t d = 0; d < spec->dim_k; d += 16, to += 192) {
        __m512i whole, rest;
        avx512_whole_q(from + d, scale, &whole, &rest);
        /* The low byte is the lower one as it is, signed; the high byte is what that leaves. */
        const __m512i high = _mm512_srai_epi32(_mm512_add_epi32(whole, _mm512_set1_epi32(128)), 8);
        _mm512_store_si512(to, _mm512_broadcast_i32x4(_mm512_cvtepi32_epi8(high)));
        _mm512_store_si512(to + 64, _mm512_broadcast_i32x4(_mm512_cvtepi32_epi8(whole)));
        sum = _mm512_add_epi32(sum, whole);
        if (n_most > 1) {
            _mm512_store_si512(to + 128, _mm512_broadcast_i32x4(_mm512_cvtepi32_epi8(rest)));
            sum_rest = _mm512_add_epi32(sum_rest, rest);
        }
    }
    head->unit = largest / AVX512_Q_MAX;
    head->correction[0] = -128 * _mm512_reduce_add_epi32(sum);
    head->correction[1] = n_most > 1 ? -128 * _mm512_reduce_add_epi32(sum_rest) : 0;
}

/* Within each 16-byte lane: the sum of a's, of b's, of c's and of d's four integers. */
AVX512_INLINE __m512i sum4(__m512i a, __m512i b, __m512i c, __m512i d)
{
    const __m512i x = _mm512_add_epi32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
    const __m512i y = _mm512_add_epi32(_mm512_unpacklo_epi32(c, d), _mm512_unpackhi_epi32(c, d));
    return _mm512_add_epi32(_mm512_unpacklo_epi64(x, y), _mm512_unpackhi_epi64(x, y));
}

/* What the columns of sums are worth, [column][key] as they leave. */
AVX512_INLINE __m512 units_of(const uint8_t *q, size_t bytes, const uint32_t n_vectors)
{
    float unit[4];
    for (uint32_t i = 0; i < 4; i++) {
        const uint32_t v = n_vectors == 1 ? 0 : n_vectors == 2 ? i / 2 : i < n_vectors ? i : 0;
        unit[i] = ((const q_head *)(const void *)(q + v * bytes))->unit;
    }
    return _mm512_broadcast_f32x4(_mm_loadu_ps(unit));
}

/* Running sums of a step's columns: 256 high + low is the first term, rest the second. */
typedef struct sums { avx512_sums high[8], low[8], rest[8]; } sums;

AVX512_INLINE void score_dims(sums *sum, const uint8_t *q, size_t bytes, const uint8_t *const *rows, uint32_t d, const uint32_t n_vectors,
                              const uint32_t n_groups, const uint32_t n_terms, const bool is_half)
{
    __m512i x[4];
    AVX512_UNROLL for (uint32_t g = 0; g < n_groups; g++)
    {
        x[g] = _mm512_xor_si512(avx512_load_lanes(rows + 4 * g, d, is_half), _mm512_set1_epi8((char)0x80));
    }
    AVX512_UNROLL for (uint32_t v = 0; v < n_vectors; v++)
    {
        const uint8_t *from = q + v * bytes + sizeof(q_head) + 12 * (size_t)d;
        const __m512i high = _mm512_load_si512(from), low = _mm512_load_si512(from + 64);
        AVX512_UNROLL for (uint32_t g = 0; g < n_groups; g++)
        {
            const uint32_t c = avx512_column(v, g, n_vectors);
            sum->high[c] = avx512_dot_bytes(sum->high[c], x[g], high);
            sum->low[c] = avx512_dot_bytes(sum->low[c], x[g], low);
            if (n_terms == 2) {
                sum->rest[c] = avx512_dot_bytes(sum->rest[c], x[g], _mm512_load_si512(from + 128));
            }
        }
    }
}

AVX512_INLINE void score(float *s, const uint8_t *q, size_t bytes, const uint8_t *const *rows, const uint8_t *const *next, uint32_t n, uint32_t dim,
                         const uint32_t n_vectors, const uint32_t n_terms)
{
    const uint32_t n_groups = n_vectors <= 2 ? 4 : 2, n_columns = n_vectors == 1 ? 4 : 8, n_keys = 4 * n_groups;
    const uint32_t row_bytes = dim;
    const __m512 units = units_of(q, bytes, n_vectors);
    for (uint32_t j = 0; j < n; j += n_keys, rows += n_keys, next += n_keys) {
        sums sum;
        uint32_t d = 0, asked = next == rows ? n_keys : 0;
        AVX512_UNROLL for (uint32_t c = 0; c < 8; c++)
        {
            sum.high[c] = sum.low[c] = sum.rest[c] = avx512_no_sums();
        }
        AVX512_UNROLL for (uint32_t v = 0; v < n_vectors; v++)
        {
            const q_head *head = (const q_head *)(const void *)(q + v * bytes);
            AVX512_UNROLL for (uint32_t g = 0; g < n_groups; g++)
            {
                const uint32_t c = avx512_column(v, g, n_vectors);
                sum.low[c] = (avx512_sums)_mm512_maskz_set1_epi32(0x1111, head->correction[0]); /* once for each key */
                sum.rest[c] = (avx512_sums)_mm512_maskz_set1_epi32(0x1111, head->correction[1]);
            }
        }
        for (; d + 64 <= dim; d += 64) { /* the rows are pointed at once for 64 dims */
            AVX512_UNROLL for (uint32_t i = 0; i < 4; i++)
            {
                if (n_vectors <= 2) { /* more are no faster than memory */
                    asked = avx512_prefetch_rows(next, asked, dim, (d + 16 * i + 16) * n_keys, row_bytes);
                }
                score_dims(&sum, q, bytes, rows, d + 16 * i, n_vectors, n_groups, n_terms, false);
            }
        }
        for (; d + 16 <= dim; d += 16) {
            if (n_vectors <= 2) {
                asked = avx512_prefetch_rows(next, asked, dim, (d + 16) * n_keys, row_bytes);
            }
            score_dims(&sum, q, bytes, rows, d, n_vectors, n_groups, n_terms, false);
        }
        if (d < dim) {
            score_dims(&sum, q, bytes, rows, d, n_vectors, n_groups, n_terms, true);
        }
        asked = avx512_prefetch_rows(next, asked, 1, n_keys, row_bytes);
        AVX512_UNROLL for (uint32_t c = 0; c < n_columns; c += 4)
        {
            __m512i y[4];
            AVX512_UNROLL for (uint32_t i = 0; i < 4; i++)
            {
                y[i] = _mm512_add_epi32(_mm512_slli_epi32((__m512i)sum.high[c + i], 8), (__m512i)sum.low[c + i]);
            }
            __m512 total = _mm512_cvtepi32_ps(sum4(y[0], y[1], y[2], y[3]));
            if (n_terms == 2) {
                const __m512i rest = sum4((__m512i)sum.rest[c], (__m512i)sum.rest[c + 1], (__m512i)sum.rest[c + 2], (__m512i)sum.rest[c + 3]);
                total = _mm512_fmadd_ps(_mm512_cvtepi32_ps(rest), _mm512_set1_ps(1.0f / AVX512_Q_REST), total);
            }
            avx512_store_columns(s, j, c, _mm512_mul_ps(total, units), n_vectors);
        }
    }
}

/* ---- values -------------------------------------------------------------------------------------------------------------- */

/* A weight that a block's integers leave out, and whose; 0: none. */
typedef struct apart_weight {
    float p;
    uint32_t key;
} apart_weight;

/* Takes the first weight of this magnitude from p[AVX512_BLOCK], `stride` floats from one to the next. */
static apart_weight set_apart(float *p, uint32_t stride, float largest)
{
    apart_weight apart = { 0, 0 };
    for (uint32_t j = 0; j < AVX512_BLOCK && apart.p == 0; j++) {
        if (fabsf(p[j * stride]) == largest) {
            apart = (apart_weight){ p[j * stride], j };
            p[j * stride] = 0.0f;
        }
    }
    return apart;
}

/* Weights p[AVX512_BLOCK] as integers; returns what one is worth: NaN where a weight is not finite. */
static float weigh(int16_t *to, float *p, apart_weight *apart)
{
    const __m512i low_words = _mm512_set_epi16(62, 60, 58, 56, 54, 52, 50, 48, 46, 44, 42, 40, 38, 36, 34, 32, 30, 28, 26, 24, 22, 20, 18, 16, 14, 12, 10, 8, 6,
                                               4, 2, 0);
    float largest = avx512_largest(p, AVX512_BLOCK);
    const __m512 sum = _mm512_add_ps(_mm512_add_ps(_mm512_abs_ps(_mm512_load_ps(p)), _mm512_abs_ps(_mm512_load_ps(p + 16))),
                                     _mm512_add_ps(_mm512_abs_ps(_mm512_load_ps(p + 32)), _mm512_abs_ps(_mm512_load_ps(p + 48))));
    *apart = (apart_weight){ 0, 0 };
    if (avx512_sum16(sum) < (1 + AVX512_WEIGHT_REST) * largest) { /* neither 0 nor a NaN */
        *apart = set_apart(p, 1, largest);
        largest = avx512_largest(p, AVX512_BLOCK);
    }
    const bool counts = largest >= AVX512_WEIGHT_MIN && largest < INFINITY;
    const __m512 scale = _mm512_set1_ps(counts ? 32767.0f / largest : 0.0f);
    for (uint32_t j = 0; j < AVX512_BLOCK; j += 32) {
        const __m512i a = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_load_ps(p + j), scale)), b = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_load_ps(p + j + 16), scale));
        _mm512_store_si512(to + j, _mm512_permutex2var_epi16(a, low_words, b));
    }
    return counts ? largest / 32767.0f : largest < INFINITY ? 0.0f : NAN;
}

/* The largest magnitudes of four vectors' weights, and their sums, in every lane of 16 bytes. */
AVX512_INLINE __m512 largest_of_four(const float *p, __m512 *sum)
{
    __m512i most = _mm512_setzero_si512();
    __m512 sums[2] = { _mm512_setzero_ps(), _mm512_setzero_ps() };
    for (uint32_t j = 0; j < 4 * AVX512_BLOCK; j += 32) {
        const __m512i a = _mm512_and_si512(_mm512_load_si512(p + j), _mm512_set1_epi32(INT32_MAX));
        const __m512i b = _mm512_and_si512(_mm512_load_si512(p + j + 16), _mm512_set1_epi32(INT32_MAX));
        most = _mm512_max_epi32(most, _mm512_max_epi32(a, b));
        sums[0] = _mm512_add_ps(sums[0], _mm512_castsi512_ps(a));
        sums[1] = _mm512_add_ps(sums[1], _mm512_castsi512_ps(b));
    }
    most = _mm512_max_epi32(most, _mm512_shuffle_i32x4(most, most, 0x4E));
    sums[0] = _mm512_add_ps(sums[0], sums[1]);
    sums[0] = _mm512_add_ps(sums[0], _mm512_shuffle_f32x4(sums[0], sums[0], 0x4E));
    *sum = _mm512_add_ps(sums[0], _mm512_shuffle_f32x4(sums[0], sums[0], 0xB1));
    return _mm512_castsi512_ps(_mm512_max_epi32(most, _mm512_shuffle_i32x4(most, most, 0xB1)));
}

/* The same of four vectors at once, p by avx512_at, to avx512_pair_at's order. */
static void weigh_four(int16_t *to, float *p, float *gain, apart_weight *apart, uint32_t n_vectors)
{
    const __m512i words = _mm512_slli_epi16(_mm512_load_si512(avx512_pairs_of_four), 1); /* the lower ones of two registers of double words */
    const __m512 limit = _mm512_set1_ps(INFINITY);
    __m512 sum, largest = largest_of_four(p, &sum);
    const __mmask16 lonely = _mm512_cmp_ps_mask(sum, _mm512_mul_ps(largest, _mm512_set1_ps(1 + AVX512_WEIGHT_REST)), _CMP_LT_OQ); /* neither 0 nor a NaN */
    float each_largest[16];
    _mm512_storeu_ps(each_largest, largest);
    for (uint32_t v = 0; v < n_vectors; v++) {
        apart[v] = lonely >> v & 1 ? set_apart(p + v, 4, each_largest[v]) : (apart_weight){ 0, 0 };
    }
    if (lonely != 0) {
        largest = largest_of_four(p, &sum);
    }
    const __mmask16 finite = _mm512_cmp_ps_mask(largest, limit, _CMP_LT_OQ);
    const __mmask16 counts = finite & _mm512_cmp_ps_mask(largest, _mm512_set1_ps(AVX512_WEIGHT_MIN), _CMP_GE_OQ);
    const __m512 scale = _mm512_maskz_div_ps(counts, _mm512_set1_ps(32767.0f), largest);
    for (uint32_t j = 0; j < 4 * AVX512_BLOCK; j += 32) {
        const __m512i a = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_load_ps(p + j), scale)), b = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_load_ps(p + j + 16), scale));
        _mm512_store_si512(to + j, _mm512_permutex2var_epi16(a, words, b));
    }
    const __m512 worth = _mm512_maskz_div_ps(counts, largest, _mm512_set1_ps(32767.0f));
    const __m512 each = _mm512_mask_mov_ps(_mm512_set1_ps(NAN), finite, worth);
    avx512_store_some(gain, each, n_vectors);
}

/* A pass over the keys, for n_vectors. */
AVX512_INLINE void value_dims(float *o, int64_t o_stride, const float *keep, const float *gain, const int16_t *p, const uint8_t *const *rows,
                              const uint8_t *const *next, uint32_t n, uint32_t d, uint32_t dim, const uint32_t n_vectors, const avx512_part part)
{
    const bool is_half = part == AVX512_LOWER || part == AVX512_UPPER;
    const uint32_t n_pieces = is_half ? 2 : 4, n_dims = part == AVX512_REST ? dim - d : 64, row_bytes = dim;
    const uint32_t pass = (is_half ? 2 : 1) * (d / 64) + (part == AVX512_UPPER), n_passes = (is_half ? 2 : 1) * ((dim + 63) / 64);
    avx512_sums sum[AVX512_GROUP_MOST][4];
    AVX512_UNROLL for (uint32_t v = 0; v < n_vectors; v++)
    {
        AVX512_UNROLL for (uint32_t i = 0; i < n_pieces; i++)
        {
            sum[v][i] = avx512_no_sums();
        }
    }
    avx512_ahead ahead = { next, pass * n / n_passes, next == rows ? 0 : (pass + 1) * n / n_passes, 0, row_bytes }; /* each pass asks for its share of rows */
    for (uint32_t j = 0; j < n; j += 2) {
        const __m512i a = avx512_load_row(rows[j] + d, n_dims, part != AVX512_REST), b = avx512_load_row(rows[j + 1] + d, n_dims, part != AVX512_REST);
        __m512i codes[2], x[4];
        avx512_interleave(a, b, part, &codes[0], &codes[1]);
        AVX512_UNROLL for (uint32_t i = 0; i < n_pieces; i++)
        {
            if (part == AVX512_REST) {
                x[i] = avx512_pair_words(a, b, i);
            } else {
                const __m512i c = codes[i / 2]; /* each byte twice in its word, shifted down with its sign */
                x[i] = _mm512_srai_epi16(i % 2 == 0 ? _mm512_unpacklo_epi8(c, c) : _mm512_unpackhi_epi8(c, c), 8);
            }
        }
        avx512_ask(&ahead, is_half ? 1 : 2);
        AVX512_UNROLL for (uint32_t v = 0; v < n_vectors; v++)
        {
            int32_t weights;
            memcpy(&weights, p + avx512_pair_at(v, j, n_vectors), sizeof(weights));
            AVX512_UNROLL for (uint32_t i = 0; i < n_pieces; i++)
            {
                if (part != AVX512_REST || 16 * i < n_dims) {
                    sum[v][i] = avx512_dot_words(sum[v][i], x[i], _mm512_set1_epi32(weights));
                }
            }
        }
    }
    AVX512_UNROLL for (uint32_t v = 0; v < n_vectors; v++)
    {
        const __m512 factor = _mm512_set1_ps(keep[v]), worth = _mm512_set1_ps(gain[v]);
        AVX512_UNROLL for (uint32_t i = 0; i < n_pieces; i++)
        {
            if (part != AVX512_REST || 16 * i < n_dims) {
                float *to = o + v * o_stride + d + 16 * i + (part == AVX512_UPPER ? 32 : 0);
                _mm512_store_ps(to, _mm512_fmadd_ps(_mm512_load_ps(to), factor, _mm512_mul_ps(avx512_of_sums(sum[v][i]), worth)));
            }
        }
    }
}

typedef void pass_fn(float *o, int64_t o_stride, const float *keep, const float *gain, const int16_t *p, const uint8_t *const *rows,
                     const uint8_t *const *next, uint32_t n, uint32_t d, uint32_t dim);

/* Functions of their own, or gcc 12 runs out of registers for the sums. */
#define PASS(n_vectors, part)                                                                                                             \
    static __attribute__((noinline)) void pass_##n_vectors##_##part(float *o, int64_t o_stride, const float *keep, const float *gain,     \
                                                                    const int16_t *p, const uint8_t *const *rows,                         \
                                                                    const uint8_t *const *next, uint32_t n, uint32_t d, uint32_t dim)     \
    {                                                                                                                                     \
        value_dims(o, o_stride, keep, gain, p, rows, next, n, d, dim, n_vectors, AVX512_##part);                                          \
    }
PASS(1, WHOLE) PASS(2, WHOLE) PASS(3, WHOLE) PASS(4, WHOLE)
PASS(1, REST) PASS(2, REST) PASS(3, REST) PASS(4, REST)
PASS(8, LOWER) PASS(8, UPPER)

/* ---- the parts ----------------------------------------------------------------------------------------------------------- */

#define SCORE(n_terms, n_vectors)                                                                                                         \
    static void score_##n_terms##_##n_vectors(float *s, const uint8_t *q, size_t bytes, const uint8_t *const *rows, const uint8_t *const *next, \
                                              uint32_t n, uint32_t dim)                                                                    \
    {                                                                                                                                     \
        score(s, q, bytes, rows, next, n, dim, n_vectors, n_terms);                                                                       \
    }
AVX512_FOUR(SCORE, 1)
AVX512_FOUR(SCORE, 2)
typedef void score_fn(float *s, const uint8_t *q, size_t bytes, const uint8_t *const *rows, const uint8_t *const *next, uint32_t n, uint32_t dim);
static score_fn *const scores[2][AVX512_GROUP] = { AVX512_FOUR_NAMES(score, 1), AVX512_FOUR_NAMES(score, 2) };
static pass_fn *const whole_passes[] = { pass_1_WHOLE, pass_2_WHOLE, pass_3_WHOLE, pass_4_WHOLE };
static pass_fn *const rest_passes[] = { pass_1_REST, pass_2_REST, pass_3_REST, pass_4_REST };

static void score_any(const oct_kv_spec *spec, float *s, const void *q, const uint8_t *const *rows, const uint8_t *const *next, uint32_t n,
                      uint32_t n_vectors, uint32_t n_terms)
{
    if (n_vectors == AVX512_GROUP_MOST) { /* nothing is decoded that could serve all eight */
        score_any(spec, s, q, rows, next, n, AVX512_GROUP, n_terms);
        score_any(spec, s + AVX512_GROUP * AVX512_BLOCK, (const uint8_t *)q + AVX512_GROUP * q_bytes(spec), rows, rows, n, AVX512_GROUP, n_terms);
        return;
    }
    scores[n_terms - 1][n_vectors - 1](s, q, q_bytes(spec), rows, next, n, spec->dim_k);
}

/* A weight that was set apart, as an integer of its own beside no other. */
static __attribute__((noinline)) void add_apart(float *o, const apart_weight *apart, const uint8_t *const *rows, uint32_t dim)
{
    const int16_t weights[2] = { 32767, 0 };
    const float keep = 1.0f, gain = apart->p / 32767.0f;
    const uint8_t *const row[2] = { rows[apart->key], avx512_no_row };
    uint32_t d = 0;
    for (; d + 64 <= dim; d += 64) {
        whole_passes[0](o, 0, &keep, &gain, weights, row, row, 2, d, dim);
    }
    if (d < dim) {
        rest_passes[0](o, 0, &keep, &gain, weights, row, row, 2, d, dim);
    }
}

static void value_any(const oct_kv_spec *spec, float *o, int64_t o_stride, const float *keep, float *p, const uint8_t *const *rows,
                      const uint8_t *const *next, uint32_t n, uint32_t n_vectors)
{
    _Alignas(64) int16_t weights[AVX512_GROUP_MOST * AVX512_BLOCK];
    float gain[AVX512_GROUP_MOST];
    apart_weight apart[AVX512_GROUP_MOST];
    const uint32_t dim = spec->dim_v;
    uint32_t d = 0;
    for (uint32_t v = 0; v < n_vectors; v += n_vectors <= 2 ? 1 : AVX512_GROUP) {
        if (n_vectors <= 2) {
            gain[v] = weigh(weights + v * AVX512_BLOCK, p + v * AVX512_BLOCK, &apart[v]);
        } else {
            weigh_four(weights + v * AVX512_BLOCK, p + v * AVX512_BLOCK, gain + v, apart + v, n_vectors < AVX512_GROUP ? n_vectors : AVX512_GROUP);
        }
    }
    for (; d + 64 <= dim; d += 64) {
        if (n_vectors == AVX512_GROUP_MOST) { /* 16 sums in registers */
            pass_8_LOWER(o, o_stride, keep, gain, weights, rows, next, n, d, dim);
            pass_8_UPPER(o, o_stride, keep, gain, weights, rows, next, n, d, dim);
        } else {
            whole_passes[n_vectors - 1](o, o_stride, keep, gain, weights, rows, next, n, d, dim);
        }
    }
    for (uint32_t v = 0; v < n_vectors && d < dim; v += AVX512_GROUP) {
        const uint32_t n_here = n_vectors == AVX512_GROUP_MOST ? AVX512_GROUP : n_vectors;
        rest_passes[n_here - 1](o + v * o_stride, o_stride, keep + v, gain + v, weights + v * AVX512_BLOCK, rows, next, n, d, dim);
    }
    for (uint32_t v = 0; v < n_vectors; v++) {
        if (apart[v].p != 0) {
            add_apart(o + v * o_stride, &apart[v], rows, dim);
        }
    }
}

const avx512_few_scores oct__avx512_few_scores_word = { OCT__AVX512_FEW_WORD, AVX512_GROUP_MOST, q_bytes, prepare, score_any };
const avx512_few_values oct__avx512_few_values_word = { value_any, avx512_put_in_order };

/* Integers can stand for a finite q that is far from both ends of the range. */
avx512_terms oct__avx512_terms_word(const oct__attn_tile *tile)
{
    const oct_kv_spec *spec = &tile->kv->spec;
    float most = 0;
    for (uint32_t i = 0; i < tile->n_rows * tile->n_heads; i++) {
        const float largest = avx512_largest(tile->q + i * tile->q_stride, spec->dim_k);
        if (largest != 0 && !(largest > 0x1p-60f && largest < 0x1p60f)) {
            return (avx512_terms){ 0, 0, 0 };
        }
        most = largest > most ? largest : most;
    }
    const float error = 127 * fabsf(tile->score_scale) * (most / AVX512_Q_MAX) * sqrtf((float)spec->dim_k / 12); /* at scale 1 */
    avx512_terms terms = { 1, 2, AVX512_SCORE_ERROR / error };
    if (spec->k.scale_mode != OCT_SCALE_TOKEN_HEAD && !(error <= AVX512_SCORE_ERROR)) {
        terms.n = 2;
    }
    return terms;
}

/* ---- the row ------------------------------------------------------------------------------------------------------------- */

static const avx512_few_values *few_values(const oct_kv_spec *spec)
{
    return spec->v.dtype == OCT_DTYPE_I8 ? &oct__avx512_few_values_word : &oct__avx512_few_values_f32;
}
static const avx512_many_values *many_values(const oct_kv_spec *spec)
{
    return spec->v.dtype == OCT_DTYPE_I8 ? &oct__avx512_many_values_word : &oct__avx512_many_values_f32;
}

size_t oct__attn_decode_scratch__avx512vnni(const oct_kv_spec *spec, uint32_t n_vectors)
{
    return oct__avx512_scratch(spec, n_vectors, &oct__avx512_few_scores_word, &oct__avx512_many_scores_word, many_values(spec));
}

void oct__attn_decode__avx512vnni(const oct__attn_tile *tile)
{
    const oct_kv_spec *spec = &tile->kv->spec;
    oct__avx512_run(tile, &oct__avx512_few_scores_word, few_values(spec), &oct__avx512_many_scores_word, many_values(spec),
                    oct__avx512_terms_word(tile));
}
