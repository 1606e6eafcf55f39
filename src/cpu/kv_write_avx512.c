/* kv_write_avx512.c: the write by AVX-512, byte for byte and count for count what kv_write_scalar.c defines. Sixteen heads of a token at a
 * time are brought to f32 in L1 (an f32 source that is not changed is read in place), turned and rotated; their dynamic scales are made in
 * one register, and then each is encoded. Vectors that are neither turned nor rotated go from source to page in registers (avx512_through.h), those
 * rotated into bytes by way of one buffer (write_rotated), and the long way only where something saturates. A token with a NaN or
 * an infinity in any vector, before or after rotation, is written by the scalar row instead: which NaN survives a sum of two is the scalar order's to say.
 *
 * A call works in the default floating-point mode whatever its thread has set: with denormals-are-zero the division by a subnormal scale
 * would give other bytes.
 *
 * Figures, 8 heads of dim 128, one thread of a Zen 4 at 3.7 GHz: avx512_through.h has what goes straight from source to page. Rotated i8 with dynamic
 * scales from bf16: 2.3 elements/ns by way of f32 in L1, 2.6 rotated from the source and by the reciprocal, 3.1 with all heads of a token rotated and
 * then all encoded, bf16 in pairs (avx512_rotate_pairs); from f32 2.5 and 3.0. With 64 tokens in cache, two programs in turns: 3.24; the rotation step by
 * step over all registers 3.29; scales stored from their register and quotients judged there 3.34 (i8 not rotated 8.0 and 8.25); from L3 2.90 and 3.0.
 *
 * Of 142 cycles for 128 elements (samples of perf) the rotation takes 92, the encoding 36, scales and calls 14. A rotation of 128 bf16 has 128 instructions of
 * 512 bits (32 shuffles, 32 fused, 32 added or subtracted and as many for words, norm and magnitudes), and pipes take two a cycle: 64 cycles at the least,
 * beside 50 of the rest 56 % of the time. For a quarter the rest would have to take 192, so what asks for a quarter asks for a slower encoding. The order of
 * additions is law (bytes are the scalar row's), so products with a matrix are none. Shuffles may only use pipes that fused operations or additions use too,
 * which is the way from 64 to 92. Tried: lanes exchanged with the next register by additions in place of fused multiplies by 1 and -1, in all steps 15 % of
 * the rotation lost, in the last one 4 % of the write; vpermpd and valignq for vshuff32x4 0; the next token's source asked for while encoding 0. Not tried: a head in each lane of
 * 16 bytes, which has two steps of shuffles in place of four, but 32 registers that meet.
 *
 * Threads: each call writes the tokens of its own range; slots of one write are distinct, so no two threads meet in a byte. */
#include <string.h>

#include "cpu/avx512.h"
#include "cpu/avx512_rotate.h"
#include "cpu/avx512_through.h"
#include "cpu/avx512_v4_encode.h"
#include "cpu/rope.h"
#include "cpu/scalar.h"
#include "kv/layout.h"
#include "number/dtype.h"
#include "number/scale.h"

#define MAX_DIM    512u /* oct_kv_spec: dims are 16..512 */
#define HEADS      16u  /* taken together: a register of scales */
#define LINE_BYTES 64
/* A call that writes at least this much of K or V writes past the caches: a store that first fetches its line costs a third of the rate,
 * more than attention loses by reading the keys from DRAM once. */
#define STREAM_BYTES  (INT64_C(512) << 10)
#define SHARE_LEAST   4096 /* elements that share a scale, from which on tables for it pay */
#define DEFAULT_MXCSR 0x1F80u /* nearest even, no flush-to-zero, no denormals-are-zero, all exceptions masked */

/* Floats from vector to vector in buffers: whole registers. */
static uint32_t padded(uint32_t dim)
{
    return (dim + 15) / 16 * 16;
}

/* ---- from the source to f32 ----------------------------------------------------------------------------------------------- */

AVX512_INLINE float largest_lane(__m512i largest) { return oct__f32_of_bits((uint32_t)_mm512_reduce_max_epi32(largest)); }

/* x = the source in f32; returns the largest magnitude, infinity or NaN when there is one among them. */
AVX512_INLINE float bring(float *x, const uint8_t *src, uint32_t dim, const avx512_kind kind)
{
    __m512i largest = _mm512_setzero_si512();
    const avx512_chunk chunk = { .at = src };
    for (uint32_t d = 0; d < dim; d += 16) {
        const __m512 value = avx512_piece_some(&chunk, d / 16, dim, kind);
        _mm512_store_ps(x + d, value);
        largest = _mm512_max_epi32(largest, _mm512_castps_si512(avx512_abs(value)));
    }
    return largest_lane(largest);
}

static float bring_any(float *x, const uint8_t *src, uint32_t dim, uint32_t dtype)
{
    switch (dtype) {
    case OCT_DTYPE_F16:
        return bring(x, src, dim, AVX512_F16);
    case OCT_DTYPE_BF16:
        return bring(x, src, dim, AVX512_BF16);
    default:
        return bring(x, src, dim, AVX512_F32);
    }
}

/* The same of floats that stay where they are. */
static float largest_of(const float *x, uint32_t dim)
{
    __m512i largest = _mm512_setzero_si512();
    uint32_t d = 0;
    for (; d + 16 <= dim; d += 16) {
        largest = _mm512_max_epi32(largest, _mm512_castps_si512(avx512_abs(_mm512_loadu_ps(x + d))));
    }
    if (d < dim) {
        largest = _mm512_max_epi32(largest, _mm512_castps_si512(avx512_abs(_mm512_maskz_loadu_ps(0x00FF, x + d))));
    }
    return largest_lane(largest);
}

/* As oct__rope_apply_f32, sixteen elements at a time: each product and each sum rounded, no fused multiply-add. */
static void turn(float *x, const oct_rope *rope, const oct__rope_table *table)
{
    const uint32_t n_pairs = rope->n_dims / 2;
    if (n_pairs % 16 != 0) {
        oct__rope_apply_f32(x, rope, table);
        return;
    }
    for (uint32_t i = 0; i < n_pairs; i += 16) {
        const __m512 cosine = _mm512_loadu_ps(table->cosine + i), sine = _mm512_loadu_ps(table->sine + i);
        if (rope->style == 0) {
            const __m512 a = _mm512_loadu_ps(x + i), b = _mm512_loadu_ps(x + i + n_pairs);
            _mm512_storeu_ps(x + i, _mm512_sub_ps(_mm512_mul_ps(a, cosine), _mm512_mul_ps(b, sine)));
            _mm512_storeu_ps(x + i + n_pairs, _mm512_add_ps(_mm512_mul_ps(a, sine), _mm512_mul_ps(b, cosine)));
            continue;
        }
        for (uint32_t half = 0; half < 2; half++) { /* pairs lie side by side: eight to a register */
            const __m512i low = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
            const __m512i twice = _mm512_add_epi32(low, _mm512_set1_epi32(half == 0 ? 0 : 8));
            float *at = x + 2 * i + 16 * half;
            const __m512 y = _mm512_loadu_ps(at);
            const __m512 straight = _mm512_mul_ps(y, _mm512_permutexvar_ps(twice, cosine));
            const __m512 crossed = _mm512_mul_ps(_mm512_shuffle_ps(y, y, 0xB1), _mm512_permutexvar_ps(twice, sine));
            _mm512_storeu_ps(at, _mm512_mask_sub_ps(_mm512_add_ps(straight, crossed), 0x5555, straight, crossed));
        }
    }
}

/* ---- encoding, one function for each format and way to divide ---------------------------------------------------------------- */

typedef uint32_t encode_fn(uint8_t *to, const float *x, uint32_t dim, const float *scale, bool is_streamed);

#define ENCODE(format, divisor)                                                                                                  \
    static uint32_t encode_##format##_##divisor(uint8_t *to, const float *x, uint32_t dim, const float *scale, bool is_streamed) \
    {                                                                                                                            \
        return avx512_encode(to, x, dim, scale, is_streamed, AVX512_##divisor, OCT_DTYPE_##format);                                  \
    }
#define ENCODE_WIDE(format)   ENCODE(format, FIT_NONE) ENCODE(format, DIVIDE_NONE)
#define ENCODE_SCALED(format) ENCODE_WIDE(format) ENCODE(format, FIT_ONE) ENCODE(format, DIVIDE_ONE) ENCODE(format, DIVIDE_EACH)
ENCODE_WIDE(F32)
ENCODE_WIDE(F16)
ENCODE_WIDE(BF16)
ENCODE_SCALED(E4M3FN)
ENCODE_SCALED(E4M3FNUZ)
ENCODE_SCALED(E5M2)
ENCODE_SCALED(I8)

#define ROW_WIDE(format) [AVX512_FIT_NONE] = encode_##format##_FIT_NONE, [AVX512_DIVIDE_NONE] = encode_##format##_DIVIDE_NONE
#define ROW_SCALED(format)                                                                                          \
    ROW_WIDE(format), [AVX512_FIT_ONE] = encode_##format##_FIT_ONE, [AVX512_DIVIDE_ONE] = encode_##format##_DIVIDE_ONE, \
                      [AVX512_DIVIDE_EACH] = encode_##format##_DIVIDE_EACH
static encode_fn *const encoders[][AVX512_DIVIDE_EACH + 1] = {
    [OCT_DTYPE_F32] = { ROW_WIDE(F32) },
    [OCT_DTYPE_F16] = { ROW_WIDE(F16) },
    [OCT_DTYPE_BF16] = { ROW_WIDE(BF16) },
    [OCT_DTYPE_E4M3FN] = { ROW_SCALED(E4M3FN) },
    [OCT_DTYPE_E4M3FNUZ] = { ROW_SCALED(E4M3FNUZ) },
    [OCT_DTYPE_E5M2] = { ROW_SCALED(E5M2) },
    [OCT_DTYPE_I8] = { ROW_SCALED(I8) },
};

/* ---- straight through ----------------------------------------------------------------------------------------------------------- */

typedef void through_fn(const avx512_heads *heads);
typedef void largest_fn(float *largest, const uint8_t *src, int64_t src_step, uint32_t n, uint32_t dim);

#define LARGEST(kind)                                                                                              \
    static void largest_##kind(float *largest, const uint8_t *src, int64_t src_step, uint32_t n, uint32_t dim)     \
    {                                                                                                              \
        avx512_through_largest(largest, src, src_step, n, dim, AVX512_##kind);                                     \
    }
LARGEST(F32)
LARGEST(F16)
LARGEST(BF16)

typedef float rotate_fn(float *to, const uint8_t *from, uint32_t dim);

#define ROTATE(kind) \
    static float rotate_##kind(float *to, const uint8_t *from, uint32_t dim) { return avx512_rotate(to, from, dim, AVX512_##kind); }
ROTATE(F32)
ROTATE(F16)
ROTATE(BF16)

/* Rotated heads of a token, of which none saturates, to a byte each. */
typedef __m512 rotate_heads_fn(float *to, const uint8_t *from, int64_t step, uint32_t n, uint32_t dim);
typedef void encode_heads_fn(const avx512_heads *heads, const float *x);

#define ROTATE_HEADS(kind)                                                                                                     \
    static __m512 rotate_heads_##kind(float *to, const uint8_t *from, int64_t step, uint32_t n, uint32_t dim)                  \
    {                                                                                                                          \
        return avx512_rotate_heads(to, from, step, n, dim, AVX512_##kind);                                                     \
    }
ROTATE_HEADS(F32)
ROTATE_HEADS(F16)
ROTATE_HEADS(BF16)

#define ENCODE_HEADS(format)                                                                                                                           \
    static void encode_heads_##format(const avx512_heads *h, const float *x) { avx512_encode_heads(h, x, false, OCT_DTYPE_##format); }                  \
    static void encode_heads_in_pairs_##format(const avx512_heads *h, const float *x) { avx512_encode_heads(h, x, true, OCT_DTYPE_##format); }
ENCODE_HEADS(E4M3FN)
ENCODE_HEADS(E4M3FNUZ)
ENCODE_HEADS(E5M2)
ENCODE_HEADS(I8)
#define ENCODE_HEADS_ROW(format) [OCT_DTYPE_##format] = { encode_heads_##format, encode_heads_in_pairs_##format }
static encode_heads_fn *const heads_encoders[OCT_DTYPE_I8 + 1][2] = { ENCODE_HEADS_ROW(E4M3FN), ENCODE_HEADS_ROW(E4M3FNUZ), ENCODE_HEADS_ROW(E5M2),
                                                                      ENCODE_HEADS_ROW(I8) };

#define THROUGH_AS(kind, format, way)                                                        \
    static void through_##kind##_##format##_##way(const avx512_heads *heads)                 \
    {                                                                                        \
        avx512_through_heads(heads, AVX512_##kind, AVX512_##way, OCT_DTYPE_##format);        \
    }
#define THROUGH(format)              THROUGH_AS(F32, format, SHIFT) THROUGH_AS(F16, format, SHIFT) THROUGH_AS(BF16, format, SHIFT)
#define THROUGH_SCALED_AS(kind, format) THROUGH_AS(kind, format, DIVIDE) THROUGH_AS(kind, format, DIVIDE_KNOWN)
#define THROUGH_SCALED(format)       THROUGH(format) THROUGH_SCALED_AS(F32, format) THROUGH_SCALED_AS(F16, format) THROUGH_SCALED_AS(BF16, format)
#define THROUGH_MINI(format)         THROUGH_SCALED(format) THROUGH_AS(BF16, format, LOOK_UP)
THROUGH(F32)
THROUGH(F16)
THROUGH(BF16)
THROUGH_MINI(E4M3FN)
THROUGH_MINI(E4M3FNUZ)
THROUGH_MINI(E5M2)
THROUGH_SCALED(I8)

typedef void make_tables_fn(avx512_mini_scaled *to, float scale);
#define MAKE_TABLES(format) \
    static void make_tables_##format(avx512_mini_scaled *to, float scale) { avx512_mini_scaled_make(to, scale, OCT_DTYPE_##format); }
MAKE_TABLES(E4M3FN)
MAKE_TABLES(E4M3FNUZ)
MAKE_TABLES(E5M2)
static make_tables_fn *const make_tables[] = {
    [OCT_DTYPE_E4M3FN] = make_tables_E4M3FN,
    [OCT_DTYPE_E4M3FNUZ] = make_tables_E4M3FNUZ,
    [OCT_DTYPE_E5M2] = make_tables_E5M2,
};

/* [source: f32, f16, bf16][way] */
#define THROUGHS(format)           [OCT_DTYPE_##format] = { { through_F32_##format##_SHIFT }, { through_F16_##format##_SHIFT }, { through_BF16_##format##_SHIFT } }
#define THROUGHS_OF(kind, format)  through_##kind##_##format##_SHIFT, through_##kind##_##format##_DIVIDE, through_##kind##_##format##_DIVIDE_KNOWN
#define THROUGHS_SCALED(format)    [OCT_DTYPE_##format] = { { THROUGHS_OF(F32, format) }, { THROUGHS_OF(F16, format) }, { THROUGHS_OF(BF16, format) } }
#define THROUGHS_MINI(format)      [OCT_DTYPE_##format] = { { THROUGHS_OF(F32, format) }, { THROUGHS_OF(F16, format) }, \
                                                            { THROUGHS_OF(BF16, format), through_BF16_##format##_LOOK_UP } }
static through_fn *const throughs[][3][AVX512_WAYS] = {
    THROUGHS(F32), THROUGHS(F16), THROUGHS(BF16), THROUGHS_MINI(E4M3FN), THROUGHS_MINI(E4M3FNUZ), THROUGHS_MINI(E5M2), THROUGHS_SCALED(I8),
};

static uint32_t source_index(uint32_t dtype)
{
    return dtype == OCT_DTYPE_F16 ? 1 : dtype == OCT_DTYPE_BF16 ? 2 : 0;
}

/* ---- the heads of a token -------------------------------------------------------------------------------------------------------- */

/* K or V of one destination: what stays the same for all tokens of a call. */
typedef struct target {
    const oct_kv_layer *layer;
    uint8_t *base;
    const float *scale;
    void *token_scale;
    encode_fn *const *encode;   /* NULL: V in 4 bits, whose blocks make their own scales */
    through_fn *const *through; /* by the way; NULL where vectors are turned, rotated, scattered or divided by channel first, or have
                                 * no whole chunks of 64 */
    largest_fn *source_largest;
    const avx512_mini_scaled *scaled; /* tables of the scale, or of each head's; NULL: none were made */
    bool is_one; /* heads that lie side by side on both ends and share a scale are as good as one long vector, with these: */
    bool is_one_plain;
    avx512_way one_way;
    float one_scale, one_reciprocal;
    rotate_fn *rotate; /* from the source */
    rotate_heads_fn *rotate_heads; /* where rotated vectors go from the source to bytes in whole chunks of 64; NULL: another way */
    encode_heads_fn *encode_heads;
    float largest;           /* of the format */
    uint32_t saturates_from; /* bits of the least magnitude that rounds beyond it */
    uint32_t dim, size, dtype, scale_mode;
    bool is_k, is_rotated, is_v5d, is_scale_f16;
    bool is_streamed; /* a call this large writes past the caches; rows are whole lines */
} target;

static target target_of(const oct_kv_write_args *args, const oct_kv_layer *layer, bool is_k, int64_t n_tokens)
{
    const oct_kv_format *format = is_k ? &layer->spec.k : &layer->spec.v;
    target t = {
        .layer = layer,
        .base = is_k ? layer->k : layer->v,
        .scale = is_k ? layer->k_scale : layer->v_scale,
        .token_scale = is_k ? layer->k_token_scale : layer->v_token_scale,
        .encode = format->dtype == OCT_DTYPE_V4 ? NULL : encoders[format->dtype],
        .largest = oct__dtype_max_f32(format->dtype),
        .saturates_from = oct__dtype_saturates_from_bits(format->dtype),
        .dim = is_k ? layer->spec.dim_k : layer->spec.dim_v,
        .size = oct__dtype_size_bytes(format->dtype),
        .dtype = format->dtype,
        .scale_mode = format->scale_mode,
        .is_k = is_k,
        .is_rotated = format->rotated != 0,
        .is_v5d = layer->spec.layout == OCT_LAYOUT_V5D,
        .is_scale_f16 = format->scale_dtype == OCT_DTYPE_F16,
    };
    static rotate_fn *const rotations[] = { rotate_F32, rotate_F16, rotate_BF16 };
    const bool is_turned = is_k && args->rope != NULL;
    t.rotate = rotations[source_index(args->src_dtype)];
    if (!is_turned && !t.is_rotated && !t.is_v5d && t.size > 0 && t.dim % 64 == 0 && t.scale_mode != OCT_SCALE_CHANNEL) {
        static largest_fn *const largest[] = { largest_F32, largest_F16, largest_BF16 };
        t.through = throughs[format->dtype][source_index(args->src_dtype)];
        t.source_largest = largest[source_index(args->src_dtype)];
    }
    if (!is_turned && t.is_rotated && !t.is_v5d && t.dim % 64 == 0 && t.dim % 512 != 0 && t.size == 1 && t.scale_mode != OCT_SCALE_CHANNEL) {
        static rotate_heads_fn *const rotations_of_heads[] = { rotate_heads_F32, rotate_heads_F16, rotate_heads_BF16 };
        t.rotate_heads = rotations_of_heads[source_index(args->src_dtype)];
        t.encode_heads = heads_encoders[format->dtype][args->src_dtype == OCT_DTYPE_BF16];
    }
    const int64_t row_bytes = (int64_t)t.dim * t.size;
    if (t.through != NULL && t.scale_mode != OCT_SCALE_LAYER_HEAD && t.scale_mode != OCT_SCALE_TOKEN_HEAD) {
        __m512 reciprocals;
        t.is_one = (is_k ? args->k_head_stride : args->v_head_stride) == t.dim && (is_k ? layer->k_head_stride : layer->v_head_stride) == t.dim;
        t.one_scale = t.scale_mode == OCT_SCALE_NONE ? 1.0f : t.scale[0];
        t.one_way = avx512_is_shift(t.one_scale, t.dtype) ? AVX512_SHIFT : AVX512_DIVIDE;
        t.is_one_plain = avx512_reciprocals(_mm512_set1_ps(t.one_scale), 1, &reciprocals);
        t.one_reciprocal = _mm512_cvtss_f32(reciprocals);
    }
    t.is_streamed = !t.is_v5d && row_bytes % LINE_BYTES == 0 && n_tokens * layer->spec.heads * row_bytes >= STREAM_BYTES;
    return t;
}

/* Makes tables for the target's scales, in `to`, where they serve and n_tokens are enough of them. */
static void look_up(target *t, avx512_mini_scaled to[HEADS], const oct_kv_write_args *args, int64_t n_tokens)
{
    const uint32_t heads = args->layer->spec.heads, n = t->scale_mode == OCT_SCALE_LAYER_HEAD ? heads : 1;
    if (t->through == NULL || args->src_dtype != OCT_DTYPE_BF16 || !avx512_is_mini(t->dtype) || n > HEADS || n_tokens * heads * t->dim < (int64_t)n * SHARE_LEAST ||
        (t->scale_mode != OCT_SCALE_TENSOR && t->scale_mode != OCT_SCALE_LAYER && t->scale_mode != OCT_SCALE_LAYER_HEAD)) {
        return;
    }
    bool is_shift = true;
    for (uint32_t i = 0; i < n; i++) {
        if (!avx512_is_scalable(t->scale[i])) {
            return;
        }
        is_shift = is_shift && avx512_is_shift(t->scale[i], t->dtype);
    }
    for (uint32_t i = 0; i < n && !is_shift; i++) {
        make_tables[t->dtype](&to[i], t->scale[i]);
    }
    if (!is_shift) {
        t->scaled = to;
        t->one_way = AVX512_LOOK_UP;
    }
}

/* A token's slot in a destination; page < 0: none. */
typedef struct place {
    int64_t page;
    uint32_t token;
} place;

static int64_t index_of(const target *t, place at, uint32_t head)
{
    return t->is_k ? oct__k_index(t->layer, at.page, at.token, head, 0) : oct__v_index(t->layer, at.page, at.token, head, 0);
}

/* Scatters an encoded vector into a V5D page. */
static void store_v5d(const target *t, place at, uint32_t head, const uint8_t *encoded)
{
    uint8_t *to = t->base + index_of(t, at, head) * t->size;
    if (t->is_k) {
        for (uint32_t c = 0; c < t->dim * t->size / 16; c++) {
            memcpy(to + (size_t)c * t->layer->spec.page_size * 16, encoded + 16 * c, 16);
        }
    } else if (t->size == 1) {
        for (uint32_t d = 0; d < t->dim; d++) {
            to[(size_t)d * 16] = encoded[d];
        }
    } else {
        for (uint32_t d = 0; d < t->dim; d++) {
            memcpy(to + (size_t)d * 16, encoded + d * t->size, t->size);
        }
    }
}

/* HEADS vectors of one token on their way to a destination: so many that their scales fill a register. */
typedef struct vectors {
    uint32_t head0, n;
    const uint8_t *source; /* where they came from, source_step bytes apart, if they were not turned on the way */
    int64_t source_step;
    const float *x[HEADS]; /* in f32; NULL where they are rotated from the source */
    _Alignas(64) float largest[HEADS]; /* magnitudes; 0 past n */
} vectors;

/* The first n bytes of x. By bytes: SIMDe 0.7.4 has no other masked stores. */
AVX512_INLINE void store_bytes(void *to, __m512i x, uint32_t n) { _mm512_mask_storeu_epi8(to, n < 64 ? ((__mmask64)1 << n) - 1 : ~(__mmask64)0, x); }

/* Dynamic scales from the largest magnitudes, as number/scale.h makes them, stored beside the page. */
static __m512 make_scales(const target *t, place at, const vectors *v)
{
    const int64_t index =
        t->is_k ? oct__k_scale_index(t->layer, at.page, at.token, v->head0) : oct__v_scale_index(t->layer, at.page, at.token, v->head0);
    __m512 scale = _mm512_max_ps(_mm512_div_ps(_mm512_load_ps(v->largest), _mm512_set1_ps(t->largest)), _mm512_set1_ps(OCT__SCALE_FLOOR));
    if (t->is_scale_f16) { /* up to the next f16, at most the largest */
        __m256i code = _mm512_cvtps_ph(scale, _MM_FROUND_TO_NEAREST_INT);
        const __mmask16 is_below = _mm512_cmp_ps_mask(_mm512_cvtph_ps(code), scale, _CMP_LT_OQ);
        code = _mm256_add_epi16(code, _mm256_maskz_mov_epi16(is_below, _mm256_set1_epi16(1)));
        code = _mm256_min_epu16(code, _mm256_set1_epi16(0x7BFF));
        store_bytes((uint16_t *)t->token_scale + index, _mm512_castsi256_si512(code), v->n * (uint32_t)sizeof(uint16_t));
        return _mm512_cvtph_ps(code);
    }
    store_bytes((float *)t->token_scale + index, _mm512_castps_si512(scale), v->n * (uint32_t)sizeof(float));
    return scale;
}

/* Whether a vector saturates. Division keeps order, so the largest quotient says it. By head, in bits. */
AVX512_INLINE uint32_t saturating(const target *t, __m512 largest, __m512 scales)
{
    return _mm512_cmpgt_epi32_mask(_mm512_castps_si512(_mm512_div_ps(largest, scales)), _mm512_set1_epi32((int32_t)(t->saturates_from - 1)));
}

/* What each vector is divided by: where there is one number for a vector it goes to scale[]. How, by head, goes to divisor[]. */
static void choose_divisors(const target *t, place at, const vectors *v, float *scale, avx512_divisor *divisor)
{
    __m512 scales = _mm512_set1_ps(1.0f);
    bool is_one = true;
    switch (t->scale_mode) {
    case OCT_SCALE_TENSOR:
    case OCT_SCALE_LAYER:
        scales = _mm512_set1_ps(t->scale[0]);
        is_one = t->scale[0] == 1.0f;
        break;
    case OCT_SCALE_LAYER_HEAD:
        for (uint32_t i = 0; i < HEADS; i++) {
            scale[i] = i < v->n ? t->scale[v->head0 + i] : 1.0f;
        }
        scales = _mm512_load_ps(scale);
        is_one = false;
        break;
    case OCT_SCALE_TOKEN_HEAD:
        scales = make_scales(t, at, v);
        is_one = false;
        break;
    case OCT_SCALE_CHANNEL:
        for (uint32_t i = 0; i < v->n; i++) {
            divisor[i] = AVX512_DIVIDE_EACH;
        }
        return;
    default:
        break;
    }
    const uint32_t which = saturating(t, _mm512_load_ps(v->largest), scales);
    for (uint32_t i = 0; i < v->n; i++) {
        const bool fits = (which >> i & 1) == 0;
        divisor[i] = is_one ? (fits ? AVX512_FIT_NONE : AVX512_DIVIDE_NONE) : fits ? AVX512_FIT_ONE : AVX512_DIVIDE_ONE;
    }
    _mm512_store_ps(scale, scales);
}

/* Rotates, scales, encodes and stores the vectors. False when one of them is not finite; what has been stored then is written again by
 * the scalar row. */
static bool write_vectors(const target *t, place at, const vectors *source, oct_kv_counts *counts)
{
    _Alignas(64) float rotated[HEADS * MAX_DIM];
    _Alignas(64) uint8_t staged[MAX_DIM * sizeof(float)];
    _Alignas(64) float scale[HEADS];
    avx512_divisor divisor[HEADS];
    vectors v = *source;

    for (uint32_t i = 0; i < v.n && t->is_rotated; i++) {
        float *const to = rotated + i * padded(t->dim);
        v.largest[i] = v.x[i] != NULL ? rotate_F32(to, (const uint8_t *)v.x[i], t->dim) : t->rotate(to, v.source + i * v.source_step, t->dim);
        v.x[i] = to;
    }
    if (_mm512_cmpgt_epi32_mask(_mm512_load_si512(v.largest), _mm512_set1_epi32((int32_t)OCT__F32_INF_BITS - 1)) != 0) {
        return false;
    }
    if (t->encode != NULL) {
        choose_divisors(t, at, &v, scale, divisor);
    }
    for (uint32_t i = 0; i < v.n; i++) {
        const uint32_t head = v.head0 + i;
        if (t->encode == NULL) {
            const uint32_t saturated = avx512_v4_encode(t->base + oct__v4_block_at(index_of(t, at, head)), v.x[i], t->dim);
            if (counts != NULL) {
                counts->amax = v.largest[i] > counts->amax ? v.largest[i] : counts->amax;
                counts->n_values += t->dim;
                counts->n_saturated += saturated;
            }
            continue;
        }
        const float *by = divisor[i] == AVX512_DIVIDE_EACH ? t->scale + (size_t)head * t->dim : scale + i;
        uint8_t *to = t->is_v5d ? staged : t->base + index_of(t, at, head) * t->size;
        const bool is_streamed = t->is_streamed && (uintptr_t)to % LINE_BYTES == 0;
        const uint32_t saturated = t->encode[divisor[i]](to, v.x[i], t->dim, by, is_streamed);
        if (t->is_v5d) {
            store_v5d(t, at, head, staged);
        }
        if (counts != NULL) {
            counts->amax = v.largest[i] > counts->amax ? v.largest[i] : counts->amax;
            counts->n_values += t->dim;
            counts->n_saturated += saturated;
        }
    }
    return true;
}

/* ---- tokens -------------------------------------------------------------------------------------------------------------------- */

static place place_of(const oct_kv_layer *layer, const int32_t *slots, int64_t token)
{
    place at = { -1, 0 };
    if (layer != NULL && slots[token] >= 0 && slots[token] < layer->n_pages * (int64_t)layer->spec.page_size) {
        at.page = (uint32_t)slots[token] / layer->spec.page_size;
        at.token = (uint32_t)slots[token] % layer->spec.page_size;
    }
    return at;
}

static void add_counts(oct_kv_counts *to, const oct_kv_counts *from)
{
    if (to != NULL) {
        to->n_values += from->n_values;
        to->n_saturated += from->n_saturated;
        to->amax = from->amax > to->amax ? from->amax : to->amax;
    }
}

/* What a call works with. */
typedef struct work {
    const oct_kv_write_args *args;
    target k, v, k_window, v_window;
    oct__rope_table rope;
    size_t src_size;
} work;

/* K or V of up to HEADS heads from head0 on, in f32: in place or in buffer. */
static void bring_vectors(work *w, bool is_k, int64_t token, uint32_t head0, float *buffer, vectors *v)
{
    const oct_kv_write_args *args = w->args;
    const uint32_t heads = args->layer->spec.heads, dim = is_k ? w->k.dim : w->v.dim;
    const int64_t token_stride = is_k ? args->k_token_stride : args->v_token_stride,
                  head_stride = is_k ? args->k_head_stride : args->v_head_stride;
    const uint8_t *src = (const uint8_t *)(is_k ? args->k : args->v) + (token * token_stride + head0 * head_stride) * (int64_t)w->src_size;
    const target *window = is_k ? &w->k_window : &w->v_window;
    const bool is_f32_needed = !(is_k ? w->k : w->v).is_rotated || (args->layer_window != NULL && !window->is_rotated);
    v->head0 = head0;
    v->n = heads - head0 < HEADS ? heads - head0 : HEADS;
    v->source = src;
    v->source_step = head_stride * (int64_t)w->src_size;
    _mm512_store_ps(v->largest, _mm512_setzero_ps());
    for (uint32_t i = 0; i < v->n; i++, buffer += padded(dim), src += head_stride * (int64_t)w->src_size) {
        v->x[i] = buffer;
        if (is_k && args->rope != NULL) {
            bring_any(buffer, src, dim, args->src_dtype);
            turn(buffer, args->rope, &w->rope);
            v->largest[i] = largest_of(buffer, dim);
        } else if (args->src_dtype == OCT_DTYPE_F32) {
            v->x[i] = (const float *)(const void *)src;
            v->largest[i] = largest_of(v->x[i], dim);
        } else if (is_f32_needed) {
            v->largest[i] = bring_any(buffer, src, dim, args->src_dtype);
        } else {
            v->x[i] = NULL;
        }
    }
}

/* K or V of up to HEADS heads from head0 on, from the source to a place without a stop. False when one of them is not finite or saturates; then
 * they have to go the long way. This where heads are as good as one. */
static bool write_one(const work *w, const target *t, place at, int64_t token, uint32_t head0, oct_kv_counts *counts)
{
    const oct_kv_write_args *args = w->args;
    const int64_t token_stride = t->is_k ? args->k_token_stride : args->v_token_stride;
    const uint8_t *const src = (const uint8_t *)(t->is_k ? args->k : args->v) + (token * token_stride + (int64_t)head0 * t->dim) * (int64_t)w->src_size;
    uint8_t *const to = t->base + index_of(t, at, head0) * t->size;
    const uint32_t n = args->layer->spec.heads - head0 < HEADS ? args->layer->spec.heads - head0 : HEADS;
    float largest = 0.0f;
    const avx512_heads all = { .to = to, .src = src, .n = 1, .dim = n * t->dim, .scale = &t->one_scale, .reciprocal = t->is_one_plain ? &t->one_reciprocal : NULL,
                               .scaled = t->scaled, .is_shared = true, .largest = &largest, .is_streamed = t->is_streamed && (uintptr_t)to % LINE_BYTES == 0 };
    t->through[t->one_way](&all);
    /* Infinity and NaN are above every limit. */
    if (oct__f32_to_bits(largest / t->one_scale) >= t->saturates_from || oct__f32_to_bits(largest) >= OCT__F32_INF_BITS) {
        return false;
    }
    if (counts != NULL) {
        counts->amax = largest > counts->amax ? largest : counts->amax;
        counts->n_values += (uint64_t)n * t->dim;
    }
    return true;
}

/* This where they are not. */
static bool write_through(const work *w, const target *t, place at, int64_t token, uint32_t head0, oct_kv_counts *counts)
{
    const oct_kv_write_args *args = w->args;
    const uint32_t heads = args->layer->spec.heads;
    const int64_t token_stride = t->is_k ? args->k_token_stride : args->v_token_stride, head_stride = t->is_k ? args->k_head_stride : args->v_head_stride;
    const int64_t src_step = head_stride * (int64_t)w->src_size, to_step = (t->is_k ? t->layer->k_head_stride : t->layer->v_head_stride) * (int64_t)t->size;
    const uint8_t *const src = (const uint8_t *)(t->is_k ? args->k : args->v) + (token * token_stride + head0 * head_stride) * (int64_t)w->src_size;
    uint8_t *const to = t->base + index_of(t, at, head0) * t->size;
    const __m512i infinity = _mm512_set1_epi32((int32_t)OCT__F32_INF_BITS - 1);
    _Alignas(64) float scale[HEADS], reciprocal[HEADS];
    vectors v;
    v.head0 = head0;
    v.n = heads - head0 < HEADS ? heads - head0 : HEADS;
    _mm512_store_ps(v.largest, _mm512_setzero_ps());
    __m512 scales = _mm512_set1_ps(1.0f);
    switch (t->scale_mode) {
    case OCT_SCALE_TENSOR:
    case OCT_SCALE_LAYER:
        scales = _mm512_set1_ps(t->scale[0]);
        break;
    case OCT_SCALE_LAYER_HEAD:
        memcpy(scale, t->scale + head0, v.n * sizeof(scale[0]));
        for (uint32_t i = v.n; i < HEADS; i++) {
            scale[i] = 1.0f;
        }
        scales = _mm512_load_ps(scale);
        break;
    case OCT_SCALE_TOKEN_HEAD:
        t->source_largest(v.largest, src, src_step, v.n, t->dim);
        if (_mm512_cmpgt_epi32_mask(_mm512_load_si512(v.largest), infinity) != 0) {
            return false; /* before a scale is made of it */
        }
        scales = make_scales(t, at, &v);
        break;
    default:
        break;
    }
    _mm512_store_ps(scale, scales);
    avx512_way way = t->scale_mode == OCT_SCALE_TOKEN_HEAD ? AVX512_DIVIDE_KNOWN : AVX512_SHIFT;
    for (uint32_t i = 0; i < v.n && way == AVX512_SHIFT; i++) {
        way = avx512_is_shift(scale[i], t->dtype) ? AVX512_SHIFT : t->scaled != NULL ? AVX512_LOOK_UP : AVX512_DIVIDE;
    }
    __m512 reciprocals;
    const bool is_plain = avx512_reciprocals(scales, v.n, &reciprocals);
    _mm512_store_ps(reciprocal, reciprocals);
    const avx512_heads all = { to, src, to_step, src_step, v.n, t->dim, scale, is_plain ? reciprocal : NULL, t->scaled,
                               t->scale_mode != OCT_SCALE_LAYER_HEAD, v.largest,
                               t->is_streamed && (((uintptr_t)to | (uintptr_t)to_step) % LINE_BYTES) == 0 };
    t->through[way](&all);
    /* Division keeps order, so the largest quotient says whether any saturates; infinity and NaN are above every limit. */
    const __m512i quotients = _mm512_castps_si512(_mm512_div_ps(_mm512_load_ps(v.largest), scales));
    if (_mm512_cmpgt_epi32_mask(quotients, _mm512_set1_epi32((int32_t)(t->saturates_from - 1))) != 0 ||
        _mm512_cmpgt_epi32_mask(_mm512_load_si512(v.largest), infinity) != 0) {
        return false;
    }
    if (counts != NULL) {
        const float largest = _mm512_reduce_max_ps(_mm512_load_ps(v.largest));
        counts->amax = largest > counts->amax ? largest : counts->amax;
        counts->n_values += (uint64_t)v.n * t->dim;
    }
    return true;
}

/* The same of vectors that are rotated from the source. */
static bool write_rotated(const work *w, const target *t, place at, int64_t token, uint32_t head0, oct_kv_counts *counts)
{
    _Alignas(64) float rotated[HEADS * MAX_DIM];
    _Alignas(64) float scale[HEADS], reciprocal[HEADS];
    avx512_divisor divisor[HEADS];
    const oct_kv_write_args *args = w->args;
    const int64_t token_stride = t->is_k ? args->k_token_stride : args->v_token_stride, head_stride = t->is_k ? args->k_head_stride : args->v_head_stride;
    const int64_t src_step = head_stride * (int64_t)w->src_size, to_step = (t->is_k ? t->layer->k_head_stride : t->layer->v_head_stride) * (int64_t)t->size;
    const uint8_t *const src = (const uint8_t *)(t->is_k ? args->k : args->v) + (token * token_stride + head0 * head_stride) * (int64_t)w->src_size;
    uint8_t *const to = t->base + index_of(t, at, head0) * t->size;
    vectors v;
    v.head0 = head0;
    v.n = args->layer->spec.heads - head0 < HEADS ? args->layer->spec.heads - head0 : HEADS;
    const __m512 largest = t->rotate_heads(rotated, src, src_step, v.n, t->dim);
    _mm512_store_ps(v.largest, largest);
    if (_mm512_cmpgt_epi32_mask(_mm512_castps_si512(largest), _mm512_set1_epi32((int32_t)OCT__F32_INF_BITS - 1)) != 0) {
        return false;
    }
    __m512 scales, reciprocals;
    if (t->scale_mode == OCT_SCALE_TOKEN_HEAD) { /* in registers all the way, since the encoding waits for it */
        scales = make_scales(t, at, &v);
        if (saturating(t, largest, scales) != 0) {
            return false;
        }
        _mm512_store_ps(scale, scales);
    } else {
        choose_divisors(t, at, &v, scale, divisor);
        for (uint32_t i = 0; i < v.n; i++) {
            if (divisor[i] != AVX512_FIT_NONE && divisor[i] != AVX512_FIT_ONE) {
                return false;
            }
        }
        scales = _mm512_load_ps(scale);
    }
    const bool is_plain = avx512_reciprocals(scales, v.n, &reciprocals);
    _mm512_store_ps(reciprocal, reciprocals);
    const avx512_heads all = { .to = to, .to_step = to_step, .n = v.n, .dim = t->dim, .scale = scale, .reciprocal = is_plain ? reciprocal : NULL,
                               .is_streamed = t->is_streamed && (((uintptr_t)to | (uintptr_t)to_step) % LINE_BYTES) == 0 };
    t->encode_heads(&all, rotated);
    if (counts != NULL) {
        const float most = _mm512_reduce_max_ps(largest);
        counts->amax = most > counts->amax ? most : counts->amax;
        counts->n_values += (uint64_t)v.n * t->dim;
    }
    return true;
}

/* The same by whichever way is open. *v: what bring_vectors made of them, once it was needed (v->n > 0). False when one is not finite. */
static bool write_heads(work *w, const target *t, place at, int64_t token, uint32_t head0, float *buffer, vectors *v, oct_kv_counts *counts)
{
    if (at.page < 0 || (t->through != NULL && (t->is_one ? write_one : write_through)(w, t, at, token, head0, counts)) ||
        (t->rotate_heads != NULL && write_rotated(w, t, at, token, head0, counts))) {
        return true;
    }
    if (v->n == 0) {
        bring_vectors(w, t->is_k, token, head0, buffer, v);
    }
    return write_vectors(t, at, v, counts);
}

/* One token into both destinations. False when a vector is not finite. */
static bool write_token(work *w, int64_t token, place at, place at_window, oct_kv_counts *k_counts, oct_kv_counts *v_counts)
{
    const oct_kv_write_args *args = w->args;
    _Alignas(64) float buffer[HEADS * MAX_DIM];
    if (args->rope != NULL) {
        oct__rope_turn_to(&w->rope, args->rope, args->positions[token]);
    }
    for (uint32_t head0 = 0; head0 < args->layer->spec.heads; head0 += HEADS) {
        vectors v;
        v.n = 0;
        if (!write_heads(w, &w->k, at, token, head0, buffer, &v, k_counts) || !write_heads(w, &w->k_window, at_window, token, head0, buffer, &v, NULL)) {
            return false;
        }
        v.n = 0;
        if (!write_heads(w, &w->v, at, token, head0, buffer, &v, v_counts) || !write_heads(w, &w->v_window, at_window, token, head0, buffer, &v, NULL)) {
            return false;
        }
    }
    return true;
}

/* Not inlined: a compiler may move arithmetic across the change of mode around the call. */
static __attribute__((noinline)) void write_tokens(const oct_kv_write_args *args, int64_t token0, int64_t token1, oct_kv_counts *k_counts,
                                                   oct_kv_counts *v_counts)
{
    work w = {
        .args = args,
        .k = target_of(args, args->layer, true, token1 - token0),
        .v = target_of(args, args->layer, false, token1 - token0),
        .src_size = oct__dtype_size_bytes(args->src_dtype),
    };
    avx512_mini_scaled tables[4][HEADS]; /* filled where they serve */
    look_up(&w.k, tables[0], args, token1 - token0);
    look_up(&w.v, tables[1], args, token1 - token0);
    if (args->layer_window != NULL) {
        w.k_window = target_of(args, args->layer_window, true, token1 - token0);
        w.v_window = target_of(args, args->layer_window, false, token1 - token0);
        look_up(&w.k_window, tables[2], args, token1 - token0);
        look_up(&w.v_window, tables[3], args, token1 - token0);
    }
    if (args->rope != NULL) {
        oct__rope_prepare(&w.rope, args->rope);
    }
    for (int64_t t = token0; t < token1; t++) {
        const place at = place_of(args->layer, args->slots, t), at_window = place_of(args->layer_window, args->slots_window, t);
        oct_kv_counts k_met = { 0 }, v_met = { 0 }; /* a token counts once it is whole */
        if (at.page < 0 && at_window.page < 0) {
            continue; /* the source row of a skipped token need not exist */
        }
        if (write_token(&w, t, at, at_window, k_counts != NULL ? &k_met : NULL, v_counts != NULL ? &v_met : NULL)) {
            add_counts(k_counts, &k_met);
            add_counts(v_counts, &v_met);
        } else {
            oct__kv_write__scalar(args, t, t + 1, k_counts, v_counts);
        }
    }
}

void oct__kv_write__avx512(const oct_kv_write_args *args, int64_t token0, int64_t token1, oct_kv_counts *k_counts, oct_kv_counts *v_counts)
{
    const unsigned int mode = _mm_getcsr();
    _mm_setcsr(DEFAULT_MXCSR);
    write_tokens(args, token0, token1, k_counts, v_counts);
    _mm_sfence(); /* streamed stores are ordered before whatever tells other threads that the write is done */
    _mm_setcsr(mode);
}
