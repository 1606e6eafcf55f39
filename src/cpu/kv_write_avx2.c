/* kv_write_avx2.c: the write by AVX2, byte for byte and count for count what kv_write_scalar.c defines. Eight heads of a token at a time
 * are brought to f32 in L1 (an f32 source that is not changed is read in place), turned and rotated; their dynamic scales are made in
 * one register, and then each is encoded. From bf16 to 8-bit floats vectors may go straight to their page (avx2_words.h), and the long way only
 * where something saturates. A token with a NaN or an infinity in any vector, before or after rotation, is written by the
 * scalar row instead: which NaN survives a sum of two is the scalar order's to say.
 *
 * A call works in the default floating-point mode whatever its thread has set: with denormals-are-zero the division by a subnormal scale
 * would give other bytes.
 *
 * Ladder, f32 to e4m3 and i8, 8 heads of dim 128 in HND pages, one thread of a Zen 4 at 3.7 GHz with other work on the machine,
 * elements/ns from DRAM (streaming copy of the same bytes = 6-8 of these):
 *   head by head, brought to L1 and encoded there                  1.9 layer scale, 1.6 e4m3 dynamic, 1.4 i8 rotated
 *   f32 read in place, no clamp where the largest quotient fits    2.2, 1.7, 1.5
 *   stores past the caches, where rows are whole lines             3.5, 2.4, 2.2   (a prefetch of the rows instead: 1.6-2.6)
 *   heads together, so that scales don't wait for each other       3.7, 3.5, 3.0   (i8 not rotated 4.7, no division 4.6)
 *
 * Threads: each call writes the tokens of its own range; slots of one write are distinct, so no two threads meet in a byte. */
#include <string.h>

#include "cpu/avx2.h"
#include "cpu/avx2_encode.h"
#include "cpu/avx2_rotate.h"
#include "cpu/avx2_v4.h"
#include "cpu/avx2_words.h"
#include "cpu/rope.h"
#include "cpu/scalar.h"
#include "kv/layout.h"
#include "number/dtype.h"
#include "number/scale.h"

#define MAX_DIM    512u /* oct_kv_spec: dims are 16..512 */
#define HEADS      8u   /* taken together: a register of scales */
#define LINE_BYTES 64
/* A call that writes at least this much of K or V writes past the caches: a store that first fetches its line costs a third of the rate,
 * more than attention loses by reading the keys from DRAM once. */
#define STREAM_BYTES  (INT64_C(512) << 10)
#define DEFAULT_MXCSR 0x1F80u /* nearest even, no flush-to-zero, no denormals-are-zero, all exceptions masked */

/* ---- from the source to f32 ----------------------------------------------------------------------------------------------- */

/* x = the source in f32; returns the largest magnitude, infinity or NaN when there is one among them. */
AVX2_INLINE float bring(float *x, const uint8_t *src, uint32_t dim, const uint32_t dtype)
{
    __m256i largest = _mm256_setzero_si256();
    for (uint32_t d = 0; d < dim; d += 8) {
        const __m256 value = avx2_load8(src + d * avx2_size(dtype), dtype);
        _mm256_store_ps(x + d, value);
        largest = _mm256_max_epi32(largest, avx2_abs_bits(value));
    }
    return avx2_largest_lane(largest);
}

static float bring_any(float *x, const uint8_t *src, uint32_t dim, uint32_t dtype)
{
    switch (dtype) {
    case OCT_DTYPE_F16:
        return bring(x, src, dim, OCT_DTYPE_F16);
    case OCT_DTYPE_BF16:
        return bring(x, src, dim, OCT_DTYPE_BF16);
    default:
        return bring(x, src, dim, OCT_DTYPE_F32);
    }
}

/* The same of floats that stay where they are. */
static float largest_of(const float *x, uint32_t dim)
{
    __m256i largest = _mm256_setzero_si256();
    for (uint32_t d = 0; d < dim; d += 8) {
        largest = _mm256_max_epi32(largest, avx2_abs_bits(_mm256_loadu_ps(x + d)));
    }
    return avx2_largest_lane(largest);
}

/* As oct__rope_apply_f32, eight elements at a time: each product and each sum rounded, no fused multiply-add. */
static void turn(float *x, const oct_rope *rope, const oct__rope_table *table)
{
    const uint32_t n_pairs = rope->n_dims / 2;
    if (n_pairs % 8 != 0) {
        oct__rope_apply_f32(x, rope, table);
        return;
    }
    for (uint32_t i = 0; i < n_pairs; i += 8) {
        const __m256 cosine = _mm256_loadu_ps(table->cosine + i), sine = _mm256_loadu_ps(table->sine + i);
        if (rope->style == 0) {
            const __m256 a = _mm256_load_ps(x + i), b = _mm256_load_ps(x + i + n_pairs);
            _mm256_store_ps(x + i, _mm256_sub_ps(_mm256_mul_ps(a, cosine), _mm256_mul_ps(b, sine)));
            _mm256_store_ps(x + i + n_pairs, _mm256_add_ps(_mm256_mul_ps(a, sine), _mm256_mul_ps(b, cosine)));
            continue;
        }
        for (uint32_t half = 0; half < 2; half++) { /* pairs lie side by side: four to a register */
            const __m256i twice = half == 0 ? _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3) : _mm256_setr_epi32(4, 4, 5, 5, 6, 6, 7, 7);
            float *at = x + 2 * i + 8 * half;
            const __m256 y = _mm256_load_ps(at);
            const __m256 straight = _mm256_mul_ps(y, _mm256_permutevar8x32_ps(cosine, twice));
            const __m256 crossed = _mm256_mul_ps(_mm256_permute_ps(y, 0xB1), _mm256_permutevar8x32_ps(sine, twice));
            _mm256_store_ps(at, _mm256_addsub_ps(straight, crossed));
        }
    }
}

/* ---- encoding, one function for each format and way to divide ---------------------------------------------------------------- */

typedef uint32_t encode_fn(uint8_t *to, const float *x, uint32_t dim, const float *scale, bool is_streamed);

#define ENCODE(format, divisor)                                                                                                  \
    static uint32_t encode_##format##_##divisor(uint8_t *to, const float *x, uint32_t dim, const float *scale, bool is_streamed) \
    {                                                                                                                            \
        return avx2_encode(to, x, dim, scale, is_streamed, AVX2_##divisor, OCT_DTYPE_##format);                                  \
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

#define ROW_WIDE(format) [AVX2_FIT_NONE] = encode_##format##_FIT_NONE, [AVX2_DIVIDE_NONE] = encode_##format##_DIVIDE_NONE
#define ROW_SCALED(format)                                                                                          \
    ROW_WIDE(format), [AVX2_FIT_ONE] = encode_##format##_FIT_ONE, [AVX2_DIVIDE_ONE] = encode_##format##_DIVIDE_ONE, \
                      [AVX2_DIVIDE_EACH] = encode_##format##_DIVIDE_EACH
static encode_fn *const encoders[][AVX2_DIVIDE_EACH + 1] = {
    [OCT_DTYPE_F32] = { ROW_WIDE(F32) },
    [OCT_DTYPE_F16] = { ROW_WIDE(F16) },
    [OCT_DTYPE_BF16] = { ROW_WIDE(BF16) },
    [OCT_DTYPE_E4M3FN] = { ROW_SCALED(E4M3FN) },
    [OCT_DTYPE_E4M3FNUZ] = { ROW_SCALED(E4M3FNUZ) },
    [OCT_DTYPE_E5M2] = { ROW_SCALED(E5M2) },
    [OCT_DTYPE_I8] = { ROW_SCALED(I8) },
};

/* ---- straight from bf16 to 8-bit floats -------------------------------------------------------------------------------------------- */

typedef uint32_t words_fn(uint8_t *to, const uint8_t *src, uint32_t dim, int32_t exponent, bool is_streamed);

#define WORDS(format)                                                                                                        \
    static uint32_t words_##format(uint8_t *to, const uint8_t *src, uint32_t dim, int32_t exponent, bool is_streamed)        \
    {                                                                                                                        \
        return avx2_words_through(to, src, dim, exponent, is_streamed, OCT_DTYPE_##format);                                  \
    }
WORDS(E4M3FN)
WORDS(E4M3FNUZ)
WORDS(E5M2)

/* NULL for other formats. */
static words_fn *words_of(uint32_t dtype)
{
    return dtype == OCT_DTYPE_E4M3FN ? words_E4M3FN : dtype == OCT_DTYPE_E4M3FNUZ ? words_E4M3FNUZ : dtype == OCT_DTYPE_E5M2 ? words_E5M2 : NULL;
}

/* ---- the heads of a token -------------------------------------------------------------------------------------------------------- */

/* K or V of one destination: what stays the same for all tokens of a call. */
typedef struct target {
    const oct_kv_layer *layer;
    uint8_t *base;
    const float *scale;
    void *token_scale;
    encode_fn *const *encode; /* NULL: V in 4 bits, whose blocks make their own scales */
    words_fn *words; /* NULL where vectors are changed on the way, or divided by something else than a power of two */
    float largest;           /* of the format */
    uint32_t saturates_from; /* bits of the least magnitude that rounds beyond it */
    uint32_t dim, size, scale_mode;
    int32_t exponent; /* of the scale, for words */
    float fixed;      /* the scale, for words */
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
        .scale_mode = format->scale_mode,
        .is_k = is_k,
        .is_rotated = format->rotated != 0,
        .is_v5d = layer->spec.layout == OCT_LAYOUT_V5D,
        .is_scale_f16 = format->scale_dtype == OCT_DTYPE_F16,
    };
    const bool is_static = t.scale_mode == OCT_SCALE_NONE || t.scale_mode == OCT_SCALE_TENSOR || t.scale_mode == OCT_SCALE_LAYER;
    if (args->src_dtype == OCT_DTYPE_BF16 && is_static && !t.is_rotated && !t.is_v5d && t.dim % 32 == 0 && !(is_k && args->rope != NULL)) {
        const float scale = t.scale_mode == OCT_SCALE_NONE ? 1.0f : t.scale[0];
        const uint32_t bits = oct__f32_to_bits(scale);
        t.words = (bits & 0x7FFFFF) == 0 && scale > 0x1p-100f && scale < 0x1p100f ? words_of(format->dtype) : NULL;
        t.exponent = (int32_t)(bits >> 23) - 127;
        t.fixed = scale;
    }
    const int64_t row_bytes = (int64_t)t.dim * t.size;
    t.is_streamed = !t.is_v5d && row_bytes % LINE_BYTES == 0 && n_tokens * layer->spec.heads * row_bytes >= STREAM_BYTES;
    return t;
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
    const float *x[HEADS];
    _Alignas(32) float largest[HEADS]; /* magnitudes; 0 past n */
} vectors;

/* Dynamic scales from the largest magnitudes, as number/scale.h makes them, stored beside the page. */
static __m256 make_scales(const target *t, place at, const vectors *v)
{
    const int64_t index =
        t->is_k ? oct__k_scale_index(t->layer, at.page, at.token, v->head0) : oct__v_scale_index(t->layer, at.page, at.token, v->head0);
    __m256 scale = _mm256_max_ps(_mm256_div_ps(_mm256_load_ps(v->largest), _mm256_set1_ps(t->largest)), _mm256_set1_ps(OCT__SCALE_FLOOR));
    if (t->is_scale_f16) { /* up to the next f16, at most the largest */
        uint16_t half[HEADS];
        __m128i code = _mm256_cvtps_ph(scale, _MM_FROUND_TO_NEAREST_INT);
        const __m256i is_below = _mm256_castps_si256(_mm256_cmp_ps(_mm256_cvtph_ps(code), scale, _CMP_LT_OQ));
        code = _mm_sub_epi16(code, _mm_packs_epi32(_mm256_castsi256_si128(is_below), _mm256_extracti128_si256(is_below, 1)));
        code = _mm_min_epu16(code, _mm_set1_epi16(0x7BFF));
        _mm_storeu_si128((__m128i *)(void *)half, code);
        memcpy((uint16_t *)t->token_scale + index, half, v->n * sizeof(half[0]));
        return _mm256_cvtph_ps(code);
    }
    float kept[HEADS];
    _mm256_storeu_ps(kept, scale);
    memcpy((float *)t->token_scale + index, kept, v->n * sizeof(kept[0]));
    return scale;
}

/* What each vector is divided by: where there is one number for a vector it goes to scale[]. How, by head, goes to divisor[]. */
static void choose_divisors(const target *t, place at, const vectors *v, float *scale, avx2_divisor *divisor)
{
    __m256 scales = _mm256_set1_ps(1.0f);
    bool is_one = true;
    switch (t->scale_mode) {
    case OCT_SCALE_TENSOR:
    case OCT_SCALE_LAYER:
        scales = _mm256_set1_ps(t->scale[0]);
        is_one = t->scale[0] == 1.0f;
        break;
    case OCT_SCALE_LAYER_HEAD:
        for (uint32_t i = 0; i < HEADS; i++) {
            scale[i] = i < v->n ? t->scale[v->head0 + i] : 1.0f;
        }
        scales = _mm256_load_ps(scale);
        is_one = false;
        break;
    case OCT_SCALE_TOKEN_HEAD:
        scales = make_scales(t, at, v);
        is_one = false;
        break;
    case OCT_SCALE_CHANNEL:
        for (uint32_t i = 0; i < v->n; i++) {
            divisor[i] = AVX2_DIVIDE_EACH;
        }
        return;
    default:
        break;
    }
    /* Division keeps order, so the largest quotient says whether any saturates. */
    const __m256i quotients = _mm256_castps_si256(_mm256_div_ps(_mm256_load_ps(v->largest), scales));
    const __m256i saturates = _mm256_cmpgt_epi32(quotients, _mm256_set1_epi32((int32_t)(t->saturates_from - 1)));
    const int which = _mm256_movemask_ps(_mm256_castsi256_ps(saturates));
    for (uint32_t i = 0; i < v->n; i++) {
        const bool fits = (which >> i & 1) == 0;
        divisor[i] = is_one ? (fits ? AVX2_FIT_NONE : AVX2_DIVIDE_NONE) : fits ? AVX2_FIT_ONE : AVX2_DIVIDE_ONE;
    }
    _mm256_store_ps(scale, scales);
}

/* Rotates, scales, encodes and stores the vectors. False when one of them is not finite; what has been stored then is written again by
 * the scalar row. */
static bool write_vectors(const target *t, place at, const vectors *source, oct_kv_counts *counts)
{
    _Alignas(32) float rotated[HEADS * MAX_DIM];
    _Alignas(32) uint8_t staged[MAX_DIM * sizeof(float)];
    _Alignas(32) float scale[HEADS];
    avx2_divisor divisor[HEADS];
    vectors v = *source;

    for (uint32_t i = 0; i < v.n && t->is_rotated; i++) {
        v.largest[i] = avx2_rotate(rotated + i * t->dim, v.x[i], t->dim);
        v.x[i] = rotated + i * t->dim;
    }
    const __m256i largest = _mm256_castps_si256(_mm256_load_ps(v.largest));
    if (_mm256_movemask_epi8(_mm256_cmpgt_epi32(largest, _mm256_set1_epi32((int32_t)OCT__F32_INF_BITS - 1))) != 0) {
        return false;
    }
    if (t->encode != NULL) {
        choose_divisors(t, at, &v, scale, divisor);
    }
    for (uint32_t i = 0; i < v.n; i++) {
        const uint32_t head = v.head0 + i;
        if (t->encode == NULL) {
            const uint32_t saturated = avx2_v4_encode(t->base + oct__v4_block_at(index_of(t, at, head)), v.x[i], t->dim);
            if (counts != NULL) {
                counts->amax = v.largest[i] > counts->amax ? v.largest[i] : counts->amax;
                counts->n_values += t->dim;
                counts->n_saturated += saturated;
            }
            continue;
        }
        const float *by = divisor[i] == AVX2_DIVIDE_EACH ? t->scale + (size_t)head * t->dim : scale + i;
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
    v->head0 = head0;
    v->n = heads - head0 < HEADS ? heads - head0 : HEADS;
    _mm256_store_ps(v->largest, _mm256_setzero_ps());
    for (uint32_t i = 0; i < v->n; i++, buffer += dim, src += head_stride * (int64_t)w->src_size) {
        v->x[i] = buffer;
        if (is_k && args->rope != NULL) {
            bring_any(buffer, src, dim, args->src_dtype);
            turn(buffer, args->rope, &w->rope);
            v->largest[i] = largest_of(buffer, dim);
        } else if (args->src_dtype == OCT_DTYPE_F32) {
            v->x[i] = (const float *)(const void *)src;
            v->largest[i] = largest_of(v->x[i], dim);
        } else {
            v->largest[i] = bring_any(buffer, src, dim, args->src_dtype);
        }
    }
}

/* K or V of up to HEADS heads from head0 on, from the source to a place without a stop. False where they have to go the long way. */
static bool write_words(const work *w, const target *t, place at, int64_t token, uint32_t head0, oct_kv_counts *counts)
{
    const oct_kv_write_args *args = w->args;
    const uint32_t heads = args->layer->spec.heads, n_heads = heads - head0 < HEADS ? heads - head0 : HEADS;
    const int64_t token_stride = t->is_k ? args->k_token_stride : args->v_token_stride, head_stride = t->is_k ? args->k_head_stride : args->v_head_stride;
    const int64_t to_step = t->is_k ? t->layer->k_head_stride : t->layer->v_head_stride;
    const uint8_t *src = (const uint8_t *)(t->is_k ? args->k : args->v) + (token * token_stride + head0 * head_stride) * (int64_t)w->src_size;
    uint8_t *to = t->base + index_of(t, at, head0);
    const bool is_one = head_stride == t->dim && to_step == t->dim; /* heads side by side are as good as one long vector */
    const bool is_streamed = t->is_streamed && (((uintptr_t)to | (uintptr_t)to_step) % LINE_BYTES) == 0;
    const uint32_t n = is_one ? 1 : n_heads, dim = is_one ? n_heads * t->dim : t->dim;
    uint32_t most = 0;
    for (uint32_t i = 0; i < n; i++, to += to_step, src += head_stride * (int64_t)w->src_size) {
        const uint32_t largest = t->words(to, src, dim, t->exponent, is_streamed);
        most = largest > most ? largest : most;
    }
    if (most >= OCT__F32_INF_BITS || oct__f32_to_bits(oct__f32_of_bits(most) / t->fixed) >= t->saturates_from) {
        return false;
    }
    if (counts != NULL) {
        const float largest = oct__f32_of_bits(most);
        counts->amax = largest > counts->amax ? largest : counts->amax;
        counts->n_values += (uint64_t)n_heads * t->dim;
    }
    return true;
}

/* Whether nothing is left to do for a destination. */
static bool is_written(const work *w, const target *t, place at, int64_t token, uint32_t head0, oct_kv_counts *counts)
{
    return at.page < 0 || (t->words != NULL && write_words(w, t, at, token, head0, counts));
}

/* One token into both destinations. False when a vector is not finite. */
static bool write_token(work *w, int64_t token, place at, place at_window, oct_kv_counts *k_counts, oct_kv_counts *v_counts)
{
    const oct_kv_write_args *args = w->args;
    _Alignas(32) float buffer[HEADS * MAX_DIM];
    vectors v;
    if (args->rope != NULL) {
        oct__rope_turn_to(&w->rope, args->rope, args->positions[token]);
    }
    for (uint32_t head0 = 0; head0 < args->layer->spec.heads; head0 += HEADS) {
        bool is_done = is_written(w, &w->k, at, token, head0, k_counts), is_window_done = is_written(w, &w->k_window, at_window, token, head0, NULL);
        if (!is_done || !is_window_done) {
            bring_vectors(w, true, token, head0, buffer, &v);
            if ((!is_done && !write_vectors(&w->k, at, &v, k_counts)) || (!is_window_done && !write_vectors(&w->k_window, at_window, &v, NULL))) {
                return false;
            }
        }
        is_done = is_written(w, &w->v, at, token, head0, v_counts);
        is_window_done = is_written(w, &w->v_window, at_window, token, head0, NULL);
        if (!is_done || !is_window_done) {
            bring_vectors(w, false, token, head0, buffer, &v);
            if ((!is_done && !write_vectors(&w->v, at, &v, v_counts)) || (!is_window_done && !write_vectors(&w->v_window, at_window, &v, NULL))) {
                return false;
            }
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
    if (args->layer_window != NULL) {
        w.k_window = target_of(args, args->layer_window, true, token1 - token0);
        w.v_window = target_of(args, args->layer_window, false, token1 - token0);
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

void oct__kv_write__avx2(const oct_kv_write_args *args, int64_t token0, int64_t token1, oct_kv_counts *k_counts, oct_kv_counts *v_counts)
{
    const unsigned int mode = _mm_getcsr();
    _mm_setcsr(DEFAULT_MXCSR);
    write_tokens(args, token0, token1, k_counts, v_counts);
    _mm_sfence(); /* streamed stores are ordered before whatever tells other threads that the write is done */
    _mm_setcsr(mode);
}
