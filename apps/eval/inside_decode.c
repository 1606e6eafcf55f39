/* inside_decode.c: see inside_decode.h. */
#include "apps/eval/inside_decode.h"

#include <math.h>
#include <string.h>

/* A small float: sign, exponent, mantissa; subnormals where the exponent is 0. */
static double small_float(uint32_t bits, uint32_t n_exponent, uint32_t n_mantissa, int bias)
{
    const uint32_t mantissa = bits & ((1u << n_mantissa) - 1), exponent = (bits >> n_mantissa) & ((1u << n_exponent) - 1);
    const double one = (double)(1u << n_mantissa);
    const double magnitude = exponent == 0 ? ldexp(mantissa / one, 1 - bias) : ldexp(1 + mantissa / one, (int)exponent - bias);
    return (bits >> (n_exponent + n_mantissa)) & 1 ? -magnitude : magnitude;
}

static double half(uint32_t bits)
{
    const bool special = (bits & 0x7C00) == 0x7C00;
    return !special ? small_float(bits, 5, 10, 15) : (bits & 0x3FF) != 0 ? NAN : (bits & 0x8000) != 0 ? -INFINITY : INFINITY;
}

static double byte_of(uint32_t dtype, uint32_t bits)
{
    switch (dtype) {
    case OCT_DTYPE_E4M3FN:
        return (bits & 0x7F) == 0x7F ? NAN : small_float(bits, 4, 3, 7);
    case OCT_DTYPE_E4M3FNUZ:
        return bits == 0x80 ? NAN : small_float(bits, 4, 3, 8);
    case OCT_DTYPE_E5M2:
        return (bits & 0x7C) != 0x7C ? small_float(bits, 5, 2, 15) : (bits & 3) != 0 ? NAN : (bits & 0x80) != 0 ? -INFINITY : INFINITY;
    default:
        return (double)(int8_t)(uint8_t)bits;
    }
}

static float largest(uint32_t dtype)
{
    return dtype == OCT_DTYPE_E4M3FN ? 448.0f : dtype == OCT_DTYPE_E4M3FNUZ ? 240.0f : dtype == OCT_DTYPE_E5M2 ? 57344.0f : dtype == OCT_DTYPE_I8 ? 127.0f : 0.0f;
}

static double scale_of(const oct_kv_format *f, const float *fixed, const void *by_token, int64_t token_at, uint32_t head, size_t channel)
{
    switch (f->scale_mode) {
    case OCT_SCALE_TENSOR:
    case OCT_SCALE_LAYER:
        return (double)fixed[0];
    case OCT_SCALE_LAYER_HEAD:
        return (double)fixed[head];
    case OCT_SCALE_CHANNEL:
        return (double)fixed[channel];
    case OCT_SCALE_TOKEN_HEAD:
        return f->scale_dtype == OCT_DTYPE_F16 ? half(((const uint16_t *)by_token)[token_at]) : (double)((const float *)by_token)[token_at];
    default:
        return 1;
    }
}

/* Blocks of 32: an f16 scale, then sixteen bytes, the low halves first. */
static void decode_v4(const unsigned char *base, int64_t at, uint32_t dim, float *values, float *limit)
{
    static const int8_t numbers[16] = { 0, 11, 22, 35, 48, 63, 80, 99, 124, -123, -94, -73, -56, -41, -26, -13 };
    for (uint32_t d = 0; d < dim; d++) {
        const unsigned char *const block = base + (at + d) / 32 * 18;
        const uint32_t i = (uint32_t)((at + d) % 32), byte = block[2 + i % 16], code = i < 16 ? byte & 15 : byte >> 4;
        const double scale = half((uint32_t)block[0] | (uint32_t)block[1] << 8);
        values[d] = (float)(numbers[code] * scale);
        limit[d] = 0;
    }
}

bool eval_decode(const oct_kv_layer *l, int side, int32_t slot, uint32_t head, float *values, float *limit)
{
    enum { V4 = 8 };
    const oct_kv_format *const f = side == 0 ? &l->spec.k : &l->spec.v;
    const uint32_t dim = side == 0 ? l->spec.dim_k : l->spec.dim_v;
    const int64_t page_size = l->spec.page_size, page = slot / page_size, token = slot % page_size;
    const int64_t at = side == 0 ? page * l->k_page_stride + token * l->k_token_stride + head * l->k_head_stride
                                 : page * l->v_page_stride + token * l->v_token_stride + head * l->v_head_stride;
    const void *const base = side == 0 ? l->k : l->v;
    const int64_t token_at = page * (side == 0 ? l->k_scale_page_stride : l->v_scale_page_stride) + token * l->spec.heads + head;
    if (l->spec.layout == OCT_LAYOUT_V5D) {
        return false;
    }
    if (f->dtype == V4) {
        decode_v4(base, at, dim, values, limit);
        return true;
    }
    for (uint32_t d = 0; d < dim; d++) {
        const double scale = scale_of(f, side == 0 ? l->k_scale : l->v_scale, side == 0 ? l->k_token_scale : l->v_token_scale, token_at, head, (size_t)head * dim + d);
        switch (f->dtype) {
        case OCT_DTYPE_F32:
            values[d] = ((const float *)base)[at + d];
            break;
        case OCT_DTYPE_F16:
            values[d] = (float)half(((const uint16_t *)base)[at + d]);
            break;
        case OCT_DTYPE_BF16: {
            const uint32_t bits = (uint32_t)((const uint16_t *)base)[at + d] << 16;
            memcpy(&values[d], &bits, sizeof(bits));
            break;
        }
        case OCT_DTYPE_E4M3FN:
        case OCT_DTYPE_E4M3FNUZ:
        case OCT_DTYPE_E5M2:
        case OCT_DTYPE_I8:
            values[d] = (float)(byte_of(f->dtype, ((const unsigned char *)base)[at + d]) * scale);
            break;
        default:
            return false;
        }
        limit[d] = (float)(largest(f->dtype) * scale);
    }
    return true;
}

void eval_rotate(float *x, uint32_t dim)
{
    const uint32_t block = dim & (~dim + 1);
    const float norm = (float)(1 / sqrt((double)block));
    for (uint32_t from = 0; from < dim; from += block) {
        for (uint32_t step = 1; step < block; step *= 2) {
            for (uint32_t i = 0; i < block; i++) {
                if ((i & step) == 0) {
                    float *const a = &x[from + i], *const b = &x[from + i + step], sum = *a + *b;
                    *b = *a - *b;
                    *a = sum;
                }
            }
        }
        for (uint32_t i = 0; i < block; i++) {
            x[from + i] *= norm;
        }
    }
}
