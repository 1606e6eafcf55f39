/* avx2_word.h: owns the two products of the row avx2word, attention of few vectors by AVX2 over i8 pages in integers: vpmaddwd takes 16 products of words and sums them in
 * pairs, beside vpaddd, where f32 takes two FMAs and has to convert as many registers again. As avx512_word.h, which says what is lost:
 *   scores   q in 16 bits against its largest element; K's bytes become words, one instruction for 16
 *   values   pairs of keys; weights in 15 bits against a block's largest, V's dynamic scale in them
 * A weight beside which a block's others are small is set apart and added by itself (avx512_word.h). To look for one takes 1.1 % of the instructions with few vectors
 * and 1.9 % with many (callgrind, 131 keys of 64 dims, 4 and 40 vectors).
 * `bench_avx2 one 7 i8 VECTORS DIM KEYS 1`, one thread of a Zen 4 at 3.7 GHz with other work on the machine, percent of its FMA peak (117 GFLOP/s):
 *                             1,024 keys of dim 128 in L2, by vectors               dim 64   8,192 cold keys
 *                               1    2    3    4    8   16                        4        1 x 128   4 x 128   8 x 256
 *   f32                        24         51   59   64   65                       48       17        51        64
 *   sums as __m256i            35   49         69   76
 *   sums as vectors of int32   36   54   63   73   80   85                       54       19        62        87
 * Three keys of four vectors at a time, or six of two, instead of two and four: 73 and 52 %.
 *
 * vpmaddubsw takes 32 products, but of bytes: q would need two of them, each with K's sign moved over to q first, since 255 x 127 x 2 saturates.
 *
 * Threads: pure but for what they write. */
#ifndef OCT_CPU_AVX2_WORD_H
#define OCT_CPU_AVX2_WORD_H

#include <math.h>
#include <string.h>

#include "cpu/avx2_dims.h"

#define AVX2_Q_MAX 32639 /* 128 x it x 512 dims stays below 2^31 */
#define AVX2_WEIGHT_MAX 32767
#define AVX2_WEIGHT_MIN 0x1p-110f /* a block whose weights are all below this adds nothing that f32 would keep */
#define AVX2_WEIGHT_REST 0.07f /* AVX512_WEIGHT_REST, for the same reason */
#define AVX2_SCORE_ERROR 5e-4f /* a third of AVX-512's, which has q in 24 bits besides; above it scores are f32 here */

/* Running sums as vectors of int32 and not as __m256i, whose elements are int64: gcc 12 would copy each sum at every addition. */
typedef int32_t avx2_sums __attribute__((vector_size(32)));

/* Words of a prepared vector. */
AVX2_INLINE size_t avx2_word_stride(uint32_t dim) { return (dim + 15u) / 16 * 16; }

/* The largest magnitude of n floats (a multiple of 8), as bits: NaN above infinity. */
static inline float avx2_word_largest(const float *x, uint32_t n)
{
    __m256i largest = _mm256_setzero_si256();
    for (uint32_t i = 0; i < n; i += 8) {
        const __m256i bits = _mm256_loadu_si256((const __m256i *)(const void *)(x + i));
        largest = _mm256_max_epi32(largest, _mm256_and_si256(bits, _mm256_set1_epi32(INT32_MAX)));
    }
    __m128i half = _mm_max_epi32(_mm256_castsi256_si128(largest), _mm256_extracti128_si256(largest, 1));
    half = _mm_max_epi32(half, _mm_shuffle_epi32(half, 0x4E));
    half = _mm_max_epi32(half, _mm_shuffle_epi32(half, 0xB1));
    return _mm_cvtss_f32(_mm_castsi128_ps(half));
}

/* q[dim], zero-padded to 16, to words. Returns the unit. */
static inline float avx2_word_q(int16_t *to, const float *q, uint32_t dim, float largest)
{
    const __m256 scale = _mm256_set1_ps(largest > 0 ? AVX2_Q_MAX / largest : 0.0f);
    for (uint32_t d = 0; d < dim; d += 16) {
        const __m256i a = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_load_ps(q + d), scale)), b = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_load_ps(q + d + 8), scale));
        _mm256_store_si256((__m256i *)(void *)(to + d), _mm256_permute4x64_epi64(_mm256_packs_epi32(a, b), 0xD8));
    }
    return largest / AVX2_Q_MAX;
}

/* Whether integers can stand for a q of this largest element: finite, and far from both ends of f32's range. */
static inline bool avx2_word_holds(float largest) { return largest == 0 || (largest > 0x1p-60f && largest < 0x1p60f); }

/* What a dynamic K scale of a block may be at most for scores of such q, whose largest element is `most`; without dynamic scales it is 1 that must not
 * exceed it. 0: integers can't stand for q, or only in more than 16 bits. */
static inline float avx2_word_scale_max(float most, float score_scale, uint32_t dim)
{
    return AVX2_SCORE_ERROR / (127 * fabsf(score_scale) * (most / AVX2_Q_MAX) * sqrtf((float)dim / 12));
}

/* Whether the scores of all of a block's keys may be integers. A row that sees few keys has nothing over which errors would average, so at edges, and in tiles of
 * less than a block, scores are f32. */
static inline bool avx2_word_fits(const oct_kv_spec *spec, float scale_max, const avx2_block *b)
{
    if (spec->k.scale_mode != OCT_SCALE_TOKEN_HEAD) {
        return scale_max >= 1.0f;
    }
    bool fits = scale_max > 0;
    for (uint32_t j = 0; j < b->n; j++) {
        fits &= fabsf(b->k_scale[j]) <= scale_max; /* not a NaN */
    }
    return fits;
}

/* ---- scores ------------------------------------------------------------------------------------------------------------------ */

/* As avx2_score_fn. q: words, unit[v]: of vector v. */
typedef void avx2_word_score_fn(float *s, const int16_t *q, const float *unit, const uint8_t *const *rows, uint32_t n, uint32_t dim, avx2_ahead next);

AVX2_INLINE __m256i avx2_word_sum4(const avx2_sums *x)
{
    return _mm256_hadd_epi32(_mm256_hadd_epi32((__m256i)x[0], (__m256i)x[1]), _mm256_hadd_epi32((__m256i)x[2], (__m256i)x[3]));
}

/* 16 bytes as words, or the last 8 of a row. */
AVX2_INLINE __m256i avx2_word_load(const uint8_t *at, const bool is_half)
{
    const __m128i *from = (const __m128i *)(const void *)at;
    return _mm256_cvtepi8_epi16(is_half ? _mm_loadl_epi64(from) : _mm_loadu_si128(from));
}

AVX2_INLINE void avx2_word_score_dims(avx2_sums *sum, const int16_t *q, size_t q_stride, const uint8_t *const *rows, uint32_t d, const bool is_half,
                                      const uint32_t n_vectors, const uint32_t n_keys)
{
    __m256i x[12];
    const uint32_t row = avx2_row_of(n_vectors);
    AVX2_UNROLL
    for (uint32_t k = 0; k < n_keys; k++) {
        if (n_vectors == 1) {
            const __m256i y = _mm256_load_si256((const __m256i *)(const void *)(q + d));
            sum[k] += (avx2_sums)_mm256_madd_epi16(avx2_word_load(rows[k] + d, is_half), y);
        } else {
            x[k] = avx2_word_load(rows[k] + d, is_half);
        }
    }
    AVX2_UNROLL
    for (uint32_t v = 0; n_vectors > 1 && v < n_vectors; v++) {
        const __m256i y = _mm256_load_si256((const __m256i *)(const void *)(q + v * q_stride + d));
        AVX2_UNROLL
        for (uint32_t k = 0; k < n_keys; k++) {
            sum[k * row + v] += (avx2_sums)_mm256_madd_epi16(x[k], y);
        }
    }
}

AVX2_INLINE void avx2_word_score(float *s, const int16_t *q, const float *unit, const uint8_t *const *rows, uint32_t n, uint32_t dim, avx2_ahead next,
                                 const uint32_t n_vectors, const uint32_t n_keys)
{
    const uint32_t row = avx2_row_of(n_vectors), n_sums = n_keys * row;
    const size_t q_stride = avx2_word_stride(dim);
    float units[8];
    for (uint32_t i = 0; i < 8; i++) {
        units[i] = i % row < n_vectors ? unit[i % row] : 0.0f;
    }
    for (uint32_t j = 0; j < n; j += n_keys, s += n_sums) {
        avx2_sums sum[12];
        avx2_rows_ahead(next.rows + j, n_keys, next.row_bytes);
        AVX2_UNROLL
        for (uint32_t i = 0; i < n_sums; i++) {
            sum[i] = (avx2_sums)_mm256_setzero_si256();
        }
        uint32_t d = 0;
        for (; d + 16 <= dim; d += 16) {
            avx2_word_score_dims(sum, q, q_stride, rows + j, d, false, n_vectors, n_keys);
        }
        if (d < dim) {
            avx2_word_score_dims(sum, q, q_stride, rows + j, d, true, n_vectors, n_keys);
        }
        const __m256 by = _mm256_loadu_ps(units);
        AVX2_UNROLL
        for (uint32_t i = 0; i + 8 <= n_sums; i += 8) {
            const __m256i a = avx2_word_sum4(sum + i), b = avx2_word_sum4(sum + i + 4);
            const __m256i both = _mm256_add_epi32(_mm256_permute2x128_si256(a, b, 0x20), _mm256_permute2x128_si256(a, b, 0x31));
            _mm256_storeu_ps(s + i, _mm256_mul_ps(_mm256_cvtepi32_ps(both), by));
        }
        if (n_sums % 8 == 4) {
            const __m256i a = avx2_word_sum4(sum + n_sums - 4);
            const __m128i both = _mm_add_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
            _mm_store_ps(s + n_sums - 4, _mm_mul_ps(_mm_cvtepi32_ps(both), _mm256_castps256_ps128(by)));
        }
    }
}

/* ---- weights ----------------------------------------------------------------------------------------------------------------- */

/* A weight that a block's integers leave out, and whose; 0: none. */
typedef struct avx2_apart {
    float p;
    uint32_t key;
} avx2_apart;

/* Takes the first weight of this magnitude from p[n], `stride` floats from one to the next. */
static inline avx2_apart avx2_word_set_apart(float *p, uint32_t stride, uint32_t n, float largest)
{
    avx2_apart apart = { 0, 0 };
    for (uint32_t j = 0; j < n && apart.p == 0; j++) {
        if (fabsf(p[(size_t)j * stride]) == largest) {
            apart = (avx2_apart){ p[(size_t)j * stride], j };
            p[(size_t)j * stride] = 0.0f;
        }
    }
    return apart;
}

/* The largest magnitudes of weights of vectors in rows of 1, 2 or 4, and their sums, in every lane of a vector's. */
AVX2_INLINE __m256 avx2_word_most(const float *p, uint32_t n, uint32_t row, __m256 *sum)
{
    __m256i largest = _mm256_setzero_si256();
    __m256 x = _mm256_setzero_ps();
    for (uint32_t i = 0; i < n; i += 8) {
        const __m256i bits = _mm256_and_si256(_mm256_load_si256((const __m256i *)(const void *)(p + i)), _mm256_set1_epi32(INT32_MAX));
        largest = _mm256_max_epi32(largest, bits);
        x = _mm256_add_ps(x, _mm256_castsi256_ps(bits));
    }
    largest = _mm256_max_epi32(largest, _mm256_permute2x128_si256(largest, largest, 1));
    x = _mm256_add_ps(x, _mm256_permute2f128_ps(x, x, 1));
    if (row <= 2) {
        largest = _mm256_max_epi32(largest, _mm256_shuffle_epi32(largest, 0x4E));
        x = _mm256_add_ps(x, _mm256_permute_ps(x, 0x4E));
    }
    if (row == 1) {
        largest = _mm256_max_epi32(largest, _mm256_shuffle_epi32(largest, 0xB1));
        x = _mm256_add_ps(x, _mm256_permute_ps(x, 0xB1));
    }
    *sum = x;
    return _mm256_castsi256_ps(largest);
}

/* From weights p[key][row], rows of 1, 2 or 4, n floats of them and zeros up to a multiple of 8, to words: of keys j and j + 1, j even, side by side.
 * gain[row]: the unit of each vector's; apart[row]: the weight that its words leave out, and p no longer has. False where integers can't stand for them. */
static inline bool avx2_word_weigh(int16_t *to, float *p, uint32_t n, uint32_t row, float *gain, avx2_apart *apart)
{
    const __m128i order = row == 1   ? _mm_setr_epi8(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)
                          : row == 2 ? _mm_setr_epi8(0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15)
                                     : _mm_setr_epi8(0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15);
    float units[8];
    __m256 sum, most = avx2_word_most(p, n, row, &sum);
    if (_mm256_movemask_ps(_mm256_cmp_ps(most, _mm256_set1_ps(0x1p100f), _CMP_LT_OQ)) != 0xFF) {
        return false;
    }
    const int lonely = _mm256_movemask_ps(_mm256_cmp_ps(sum, _mm256_mul_ps(most, _mm256_set1_ps(1 + AVX2_WEIGHT_REST)), _CMP_LT_OQ)); /* not one of zeros */
    _mm256_storeu_ps(units, most);
    for (uint32_t v = 0; v < row; v++) {
        apart[v] = lonely >> v & 1 ? avx2_word_set_apart(p + v, row, n / row, units[v]) : (avx2_apart){ 0, 0 };
    }
    if (lonely != 0) {
        most = avx2_word_most(p, n, row, &sum);
    }
    const __m256 counts = _mm256_cmp_ps(most, _mm256_set1_ps(AVX2_WEIGHT_MIN), _CMP_GE_OQ);
    const __m256 scale = _mm256_and_ps(counts, _mm256_div_ps(_mm256_set1_ps(AVX2_WEIGHT_MAX), _mm256_max_ps(most, _mm256_set1_ps(AVX2_WEIGHT_MIN))));
    for (uint32_t i = 0; i < n; i += 8) {
        const __m256i x = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_load_ps(p + i), scale));
        const __m128i words = _mm_packs_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
        _mm_store_si128((__m128i *)(void *)(to + i), _mm_shuffle_epi8(words, order));
    }
    _mm256_storeu_ps(units, _mm256_mul_ps(_mm256_and_ps(counts, most), _mm256_set1_ps(1.0f / AVX2_WEIGHT_MAX)));
    for (uint32_t v = 0; v < row; v++) {
        gain[v] = units[v];
    }
    return true;
}

/* ---- values ------------------------------------------------------------------------------------------------------------------ */

/* As avx2_value_fn. p: words of avx2_word_weigh. */
typedef void avx2_word_value_fn(float *o, int64_t o_stride, const float *keep, const float *gain, const int16_t *p, const uint8_t *const *rows, uint32_t n,
                                uint32_t dim, avx2_ahead next);

/* n8 x 8 dims at d, n8 even or 1. */
AVX2_INLINE void avx2_word_value_dims(float *o, int64_t o_stride, const float *keep, const float *gain, const int16_t *p, const uint8_t *const *rows, uint32_t n,
                                      uint32_t d, const uint32_t n_vectors, const uint32_t n8)
{
    avx2_sums sum[AVX2_PASS][8];
    AVX2_UNROLL
    for (uint32_t v = 0; v < n_vectors; v++) {
        AVX2_UNROLL
        for (uint32_t i = 0; i < n8; i++) {
            sum[v][i] = (avx2_sums)_mm256_setzero_si256();
        }
    }
    for (uint32_t j = 0; j < n; j += 2, p += 2 * avx2_row_of(n_vectors)) {
        const uint8_t *a = rows[j] + d, *b = rows[j + 1] + d;
        __m256i x[8];
        AVX2_UNROLL
        for (uint32_t i = 0; i < n8; i += 2) {
            const __m128i *from_a = (const __m128i *)(const void *)(a + 8 * i), *from_b = (const __m128i *)(const void *)(b + 8 * i);
            const __m128i c = n8 == 1 ? _mm_loadl_epi64(from_a) : _mm_loadu_si128(from_a), e = n8 == 1 ? _mm_loadl_epi64(from_b) : _mm_loadu_si128(from_b);
            x[i] = _mm256_cvtepi8_epi16(_mm_unpacklo_epi8(c, e));
            if (n8 > 1) {
                x[i + 1] = _mm256_cvtepi8_epi16(_mm_unpackhi_epi8(c, e));
            }
        }
        AVX2_UNROLL
        for (uint32_t v = 0; v < n_vectors; v++) {
            int32_t pair;
            memcpy(&pair, p + 2 * v, sizeof(pair));
            const __m256i weights = _mm256_set1_epi32(pair);
            AVX2_UNROLL
            for (uint32_t i = 0; i < n8; i++) {
                sum[v][i] += (avx2_sums)_mm256_madd_epi16(x[i], weights);
            }
        }
    }
    AVX2_UNROLL
    for (uint32_t v = 0; v < n_vectors; v++) {
        const __m256 factor = _mm256_broadcast_ss(keep + v), worth = _mm256_broadcast_ss(gain + v);
        AVX2_UNROLL
        for (uint32_t i = 0; i < n8; i++) {
            float *to = o + v * o_stride + d + 8 * i;
            _mm256_store_ps(to, _mm256_fmadd_ps(_mm256_load_ps(to), factor, _mm256_mul_ps(_mm256_cvtepi32_ps((__m256i)sum[v][i]), worth)));
        }
    }
}

AVX2_INLINE void avx2_word_value(float *o, int64_t o_stride, const float *keep, const float *gain, const int16_t *p, const uint8_t *const *rows, uint32_t n,
                                 uint32_t dim, avx2_ahead next, const uint32_t n_vectors)
{
    const uint32_t most = n_vectors == 1 ? 64 : n_vectors == 2 ? 32 : 16; /* dims: eight sums */
    for (uint32_t d = 0; d < dim;) {
        const uint32_t n_dims = dim - d >= most ? most : dim - d >= 16 ? 16 : 8, from = n * d / dim, to = n * (d + n_dims) / dim;
        avx2_rows_ahead(next.rows + from, to - from, next.row_bytes);
        if (n_dims == most) {
            avx2_word_value_dims(o, o_stride, keep, gain, p, rows, n, d, n_vectors, n_vectors == 1 ? 8 : n_vectors == 2 ? 4 : 2);
        } else if (n_dims == 16) {
            avx2_word_value_dims(o, o_stride, keep, gain, p, rows, n, d, n_vectors, 2);
        } else {
            avx2_word_value_dims(o, o_stride, keep, gain, p, rows, n, d, n_vectors, 1);
        }
        d += n_dims;
    }
}

#endif
