/* kv_write_avx2.c: the write by AVX2, byte for byte and count for count what kv_write_scalar.c defines. Vectors are brought to f32 once,
 * turned, rotated, scaled and encoded from L1. A token with a NaN or an infinity in any vector, before or after rotation, is written by the
 * scalar row instead: which NaN survives a sum of two is the scalar order's to say.
 *
 * A call works in the default floating-point mode whatever its thread has set: with denormals-are-zero the division by a subnormal scale
 * would give other bytes.
 *
 * Threads: each call writes the tokens of its own range; slots of one write are distinct, so no two threads meet in a byte. */
#include <string.h>

#include "cpu/avx2.h"
#include "cpu/avx2_encode.h"
#include "cpu/rope.h"
#include "cpu/scalar.h"
#include "kv/layout.h"
#include "number/dtype.h"
#include "number/hadamard.h"
#include "number/scale.h"

#define MAX_DIM 512u          /* oct_kv_spec: dims are 16..512 */
#define DEFAULT_MXCSR 0x1F80u /* nearest even, no flush-to-zero, no denormals-are-zero, all exceptions masked */

/* ---- from the source to f32 ----------------------------------------------------------------------------------------------- */

AVX2_INLINE void bring(float *x, const uint8_t *src, uint32_t dim, const uint32_t dtype)
{
    for (uint32_t d = 0; d < dim; d += 8) {
        _mm256_store_ps(x + d, avx2_load8(src + d * avx2_size(dtype), dtype));
    }
}

static void bring_any(float *x, const uint8_t *src, uint32_t dim, uint32_t dtype)
{
    switch (dtype) {
    case OCT_DTYPE_F16:
        bring(x, src, dim, OCT_DTYPE_F16);
        break;
    case OCT_DTYPE_BF16:
        bring(x, src, dim, OCT_DTYPE_BF16);
        break;
    default:
        bring(x, src, dim, OCT_DTYPE_F32);
        break;
    }
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

/* ---- rotation --------------------------------------------------------------------------------------------------------------- */

/* The steps 1, 2 and 4 of number/hadamard.h inside one register: each lane adds its partner, the upper of a pair its own negative. */
AVX2_INLINE __m256 rotate_lanes(__m256 x)
{
    const __m256 sign1 = _mm256_castsi256_ps(_mm256_setr_epi32(0, INT32_MIN, 0, INT32_MIN, 0, INT32_MIN, 0, INT32_MIN));
    const __m256 sign2 = _mm256_castsi256_ps(_mm256_setr_epi32(0, 0, INT32_MIN, INT32_MIN, 0, 0, INT32_MIN, INT32_MIN));
    const __m256 sign4 = _mm256_castsi256_ps(_mm256_setr_epi32(0, 0, 0, 0, INT32_MIN, INT32_MIN, INT32_MIN, INT32_MIN));
    x = _mm256_add_ps(_mm256_permute_ps(x, 0xB1), _mm256_xor_ps(x, sign1));
    x = _mm256_add_ps(_mm256_permute_ps(x, 0x4E), _mm256_xor_ps(x, sign2));
    return _mm256_add_ps(_mm256_permute2f128_ps(x, x, 1), _mm256_xor_ps(x, sign4));
}

/* Two steps at once, h and 2h, on registers h floats apart. */
AVX2_INLINE void rotate_four(__m256 *a, __m256 *b, __m256 *c, __m256 *d)
{
    const __m256 ab = _mm256_add_ps(*a, *b), a_b = _mm256_sub_ps(*a, *b);
    const __m256 cd = _mm256_add_ps(*c, *d), c_d = _mm256_sub_ps(*c, *d);
    *a = _mm256_add_ps(ab, cd);
    *b = _mm256_add_ps(a_b, c_d);
    *c = _mm256_sub_ps(ab, cd);
    *d = _mm256_sub_ps(a_b, c_d);
}

/* oct__hadamard_f32 on 32-byte aligned finite x, in its order of operations. */
static void rotate(float *x, uint32_t dim)
{
    const uint32_t block = (uint32_t)oct__hadamard_block(dim);
    const __m256 norm = _mm256_set1_ps(oct__hadamard_norm(block));
    for (float *end = x + dim; x < end; x += block) {
        uint32_t step = 8;
        for (uint32_t i = 0; i < block; i += 8) {
            _mm256_store_ps(x + i, rotate_lanes(_mm256_load_ps(x + i)));
        }
        for (; 4 * step <= block; step *= 4) {
            for (uint32_t base = 0; base < block; base += 4 * step) {
                for (uint32_t i = base; i < base + step; i += 8) {
                    __m256 a = _mm256_load_ps(x + i), b = _mm256_load_ps(x + i + step);
                    __m256 c = _mm256_load_ps(x + i + 2 * step), d = _mm256_load_ps(x + i + 3 * step);
                    rotate_four(&a, &b, &c, &d);
                    _mm256_store_ps(x + i, a);
                    _mm256_store_ps(x + i + step, b);
                    _mm256_store_ps(x + i + 2 * step, c);
                    _mm256_store_ps(x + i + 3 * step, d);
                }
            }
        }
        if (2 * step == block) {
            for (uint32_t i = 0; i < step; i += 8) {
                const __m256 a = _mm256_load_ps(x + i), b = _mm256_load_ps(x + i + step);
                _mm256_store_ps(x + i, _mm256_add_ps(a, b));
                _mm256_store_ps(x + i + step, _mm256_sub_ps(a, b));
            }
        }
        for (uint32_t i = 0; i < block; i += 8) {
            _mm256_store_ps(x + i, _mm256_mul_ps(_mm256_load_ps(x + i), norm));
        }
    }
}

/* ---- encoding, one function for each format and way to divide ---------------------------------------------------------------- */

typedef uint32_t encode_fn(uint8_t *to, const float *x, uint32_t dim, const float *scale);

#define ENCODE(format, divisor)                                                                              \
    static uint32_t encode_##format##_##divisor(uint8_t *to, const float *x, uint32_t dim, const float *scale) \
    {                                                                                                        \
        return avx2_encode(to, x, dim, scale, AVX2_DIVIDE_##divisor, OCT_DTYPE_##format);                    \
    }
#define ENCODE_SCALED(format) ENCODE(format, NONE) ENCODE(format, ONE) ENCODE(format, EACH)
ENCODE(F32, NONE)
ENCODE(F16, NONE)
ENCODE(BF16, NONE)
ENCODE_SCALED(E4M3FN)
ENCODE_SCALED(E4M3FNUZ)
ENCODE_SCALED(E5M2)
ENCODE_SCALED(I8)

#define ROW_SCALED(format) [OCT_DTYPE_##format] = { encode_##format##_NONE, encode_##format##_ONE, encode_##format##_EACH }
static encode_fn *const encoders[][3] = {
    [OCT_DTYPE_F32] = { encode_F32_NONE }, [OCT_DTYPE_F16] = { encode_F16_NONE }, [OCT_DTYPE_BF16] = { encode_BF16_NONE },
    ROW_SCALED(E4M3FN),                    ROW_SCALED(E4M3FNUZ),                  ROW_SCALED(E5M2),
    ROW_SCALED(I8),
};

/* ---- one vector --------------------------------------------------------------------------------------------------------------- */

/* Largest magnitude; infinity or NaN bits when there is one among them. */
static float largest_of(const float *x, uint32_t dim)
{
    __m256i largest = _mm256_setzero_si256();
    for (uint32_t d = 0; d < dim; d += 8) {
        largest = _mm256_max_epi32(largest, avx2_abs_bits(_mm256_load_ps(x + d)));
    }
    __m128i half = _mm_max_epi32(_mm256_castsi256_si128(largest), _mm256_extracti128_si256(largest, 1));
    half = _mm_max_epi32(half, _mm_shuffle_epi32(half, 0x4E));
    half = _mm_max_epi32(half, _mm_shuffle_epi32(half, 0xB1));
    return oct__f32_of_bits((uint32_t)_mm_cvtsi128_si32(half));
}

/* Scatters an encoded vector into V5D pages. */
static void store_v5d(const oct_kv_layer *layer, bool is_k, int64_t page, uint32_t token, uint32_t head, const uint8_t *encoded)
{
    const uint32_t size = oct__dtype_size_bytes(is_k ? layer->spec.k.dtype : layer->spec.v.dtype);
    if (is_k) {
        uint8_t *to = (uint8_t *)layer->k + oct__k_index(layer, page, token, head, 0) * size;
        for (uint32_t c = 0; c < layer->spec.dim_k * size / 16; c++) {
            memcpy(to + (size_t)c * layer->spec.page_size * 16, encoded + 16 * c, 16);
        }
        return;
    }
    uint8_t *to = (uint8_t *)layer->v + oct__v_index(layer, page, token, head, 0) * size;
    for (uint32_t d = 0; d < layer->spec.dim_v; d++) {
        memcpy(to + (size_t)d * 16, encoded + d * size, size);
    }
}

/* Rotates, scales, encodes and stores x, which is used up. False, and nothing stored, when x holds no finite vector. */
static bool write_vector(const oct_kv_layer *layer, bool is_k, int64_t page, uint32_t token, uint32_t head, float *x, oct_kv_counts *counts)
{
    const oct_kv_format *format = is_k ? &layer->spec.k : &layer->spec.v;
    const uint32_t dim = is_k ? layer->spec.dim_k : layer->spec.dim_v;
    const float *scale = is_k ? layer->k_scale : layer->v_scale;
    _Alignas(32) uint8_t staged[MAX_DIM * sizeof(float)];
    avx2_divisor divisor = AVX2_DIVIDE_ONE;
    float dynamic;

    if (format->rotated) {
        rotate(x, dim);
    }
    const float largest = largest_of(x, dim);
    if (!oct__f32_bits_are_finite(oct__f32_to_bits(largest))) {
        return false;
    }
    switch (format->scale_mode) {
    case OCT_SCALE_TENSOR:
    case OCT_SCALE_LAYER:
        break;
    case OCT_SCALE_LAYER_HEAD:
        scale += head;
        break;
    case OCT_SCALE_TOKEN_HEAD: {
        void *kept = is_k ? layer->k_token_scale : layer->v_token_scale;
        const int64_t at = is_k ? oct__k_scale_index(layer, page, token, head) : oct__v_scale_index(layer, page, token, head);
        dynamic = oct__scale_from_amax(largest, oct__dtype_max_f32(format->dtype));
        if (format->scale_dtype == OCT_DTYPE_F16) {
            const uint16_t half = oct__scale_to_f16(dynamic);
            ((uint16_t *)kept)[at] = half;
            dynamic = oct__f16_to_f32(half);
        } else {
            ((float *)kept)[at] = dynamic;
        }
        scale = &dynamic;
        break;
    }
    case OCT_SCALE_CHANNEL:
        scale += (size_t)head * dim;
        divisor = AVX2_DIVIDE_EACH;
        break;
    default:
        divisor = AVX2_DIVIDE_NONE;
        break;
    }
    if (divisor == AVX2_DIVIDE_ONE && *scale == 1.0f) {
        divisor = AVX2_DIVIDE_NONE;
    }
    uint8_t *to = staged;
    if (layer->spec.layout != OCT_LAYOUT_V5D) {
        const int64_t at = is_k ? oct__k_index(layer, page, token, head, 0) : oct__v_index(layer, page, token, head, 0);
        to = (uint8_t *)(is_k ? layer->k : layer->v) + at * (int64_t)oct__dtype_size_bytes(format->dtype);
    }
    const uint32_t saturated = encoders[format->dtype][divisor](to, x, dim, scale);
    if (to == staged) {
        store_v5d(layer, is_k, page, token, head, staged);
    }
    if (counts != NULL) {
        counts->amax = largest > counts->amax ? largest : counts->amax;
        counts->n_values += dim;
        counts->n_saturated += saturated;
    }
    return true;
}

/* ---- tokens -------------------------------------------------------------------------------------------------------------------- */

/* A destination's slot of one token; page < 0: none. */
typedef struct place {
    int64_t page;
    uint32_t token;
} place;

static place place_of(const oct_kv_layer *layer, const int32_t *slots, int64_t token)
{
    place at = { -1, 0 };
    if (layer != NULL && slots[token] >= 0 && slots[token] < layer->n_pages * (int64_t)layer->spec.page_size) {
        at.page = (uint32_t)slots[token] / layer->spec.page_size;
        at.token = (uint32_t)slots[token] % layer->spec.page_size;
    }
    return at;
}

/* One vector into both destinations; x is used up. */
static bool write_both(const oct_kv_write_args *args, bool is_k, place at, place at_window, uint32_t head, float *x, oct_kv_counts *counts)
{
    const uint32_t dim = is_k ? args->layer->spec.dim_k : args->layer->spec.dim_v;
    _Alignas(32) float copy[MAX_DIM];
    if (at_window.page >= 0) {
        float *work = x;
        if (at.page >= 0) {
            memcpy(copy, x, dim * sizeof(float));
            work = copy;
        }
        if (!write_vector(args->layer_window, is_k, at_window.page, at_window.token, head, work, NULL)) {
            return false;
        }
    }
    return at.page < 0 || write_vector(args->layer, is_k, at.page, at.token, head, x, counts);
}

static void add_counts(oct_kv_counts *to, const oct_kv_counts *from)
{
    if (to != NULL) {
        to->n_values += from->n_values;
        to->n_saturated += from->n_saturated;
        to->amax = from->amax > to->amax ? from->amax : to->amax;
    }
}

/* Not inlined: a compiler may move arithmetic across the change of mode around the call. */
static __attribute__((noinline)) void write_tokens(const oct_kv_write_args *args, int64_t token0, int64_t token1, oct_kv_counts *k_counts, oct_kv_counts *v_counts)
{
    const oct_kv_spec *spec = &args->layer->spec;
    const int64_t src_size = oct__dtype_size_bytes(args->src_dtype);
    oct__rope_table rope;
    _Alignas(32) float x[MAX_DIM];

    if (args->rope != NULL) {
        oct__rope_prepare(&rope, args->rope);
    }
    for (int64_t t = token0; t < token1; t++) {
        const place at = place_of(args->layer, args->slots, t);
        const place at_window = place_of(args->layer_window, args->slots_window, t);
        /* A token counts once it is whole. */
        oct_kv_counts k_met = { 0 }, v_met = { 0 };
        bool is_finite = true;
        if (at.page < 0 && at_window.page < 0) {
            continue; /* the source row of a skipped token need not exist */
        }
        if (args->rope != NULL) {
            oct__rope_turn_to(&rope, args->rope, args->positions[t]);
        }
        for (uint32_t head = 0; head < spec->heads && is_finite; head++) {
            const uint8_t *k = (const uint8_t *)args->k + (t * args->k_token_stride + head * args->k_head_stride) * src_size;
            const uint8_t *v = (const uint8_t *)args->v + (t * args->v_token_stride + head * args->v_head_stride) * src_size;
            bring_any(x, k, spec->dim_k, args->src_dtype);
            if (args->rope != NULL) {
                turn(x, args->rope, &rope);
            }
            is_finite = write_both(args, true, at, at_window, head, x, k_counts != NULL ? &k_met : NULL);
            bring_any(x, v, spec->dim_v, args->src_dtype);
            is_finite = is_finite && write_both(args, false, at, at_window, head, x, v_counts != NULL ? &v_met : NULL);
        }
        if (is_finite) {
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
    _mm_setcsr(mode);
}
