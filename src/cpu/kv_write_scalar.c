/* kv_write_scalar.c: the write in its executable definition. What it stores for a vector of head_dim elements x:
 *   x      = source brought to f32; K turned by RoPE; rotated (Hadamard) where the destination keeps it rotated
 *   scale  = 1, the static scale, or the dynamic one of number/scale.h, which is stored beside the page
 *   byte_i = encode(x_i / scale), encode(x_i / scale_i) with channel scales; a true division, NaN kept
 *   v4: each block of 32 with the dynamic scale that stands in it
 * The second destination starts from the same turned f32 vector and goes through its own rotation, scale and format.
 * Counts speak of args->layer only: what a token leaves there, over x as it meets the division (amax too), so that amax / largest
 * finite value is the scale a calibration wants. A NaN in a rotated vector has spread over its block by then and counts as often.
 *
 * Threads: each call writes the tokens of its own range; slots of one write are distinct, so no two threads meet in a byte. */
#include <stdbool.h>
#include <string.h>

#include "cpu/rope.h"
#include "cpu/scalar.h"
#include "kv/layout.h"
#include "number/convert.h"
#include "number/dtype.h"
#include "number/hadamard.h"
#include "number/number.h"
#include "number/scale.h"

#define MAX_DIM 512u /* oct_kv_spec: dims are 16..512 */

/* Puts the encoded vector where the layout wants it. */
static void store_encoded(const oct_kv_layer *layer, bool is_k, int64_t page, uint32_t token, uint32_t head, const uint8_t *encoded)
{
    const oct_kv_format *format = is_k ? &layer->spec.k : &layer->spec.v;
    const uint32_t dim = is_k ? layer->spec.dim_k : layer->spec.dim_v;
    const size_t size = oct__dtype_size_bytes(format->dtype);
    uint8_t *base = is_k ? layer->k : layer->v;
    /* Elements that stay together in V5D: a chunk of K, single elements of V. Else it is the whole vector. */
    const uint32_t run = is_k ? oct__v5d_x(format->dtype) : 1;
    if (layer->spec.layout != OCT_LAYOUT_V5D) {
        const int64_t at = is_k ? oct__k_index(layer, page, token, head, 0) : oct__v_index(layer, page, token, head, 0);
        memcpy(base + oct__element_at(format->dtype, at), encoded, (size_t)oct__dtype_bytes(format->dtype, dim));
        return;
    }
    for (uint32_t d = 0; d < dim; d += run) {
        const int64_t at = is_k ? oct__k_index(layer, page, token, head, d) : oct__v_index(layer, page, token, head, d);
        memcpy(base + at * (int64_t)size, encoded + d * size, (d + run < dim ? run : dim - d) * size);
    }
}

/* Rotates, scales, encodes and stores x, which is used up. */
static void write_vector(const oct_kv_layer *layer, bool is_k, int64_t page, uint32_t token, uint32_t head, float *x, oct_kv_counts *counts)
{
    const oct_kv_format *format = is_k ? &layer->spec.k : &layer->spec.v;
    const uint32_t dim = is_k ? layer->spec.dim_k : layer->spec.dim_v;
    const float *static_scale = is_k ? layer->k_scale : layer->v_scale;
    uint8_t encoded[MAX_DIM * sizeof(float)];
    struct oct__convert_count met = { 0, 0 };
    float scale = 1.0f;

    if (format->rotated) {
        oct__hadamard_f32(x, dim);
    }
    if (counts != NULL) {
        const float amax = oct__scale_amax(x, dim, NULL);
        counts->amax = amax > counts->amax ? amax : counts->amax;
    }
    switch (format->scale_mode) {
    case OCT_SCALE_TENSOR:
    case OCT_SCALE_LAYER:
        scale = static_scale[0];
        break;
    case OCT_SCALE_LAYER_HEAD:
        scale = static_scale[head];
        break;
    case OCT_SCALE_TOKEN_HEAD: {
        void *token_scale = is_k ? layer->k_token_scale : layer->v_token_scale;
        const int64_t at = is_k ? oct__k_scale_index(layer, page, token, head) : oct__v_scale_index(layer, page, token, head);
        scale = oct__scale_dynamic(x, dim, format->dtype, format->scale_dtype, NULL);
        if (format->scale_dtype == OCT_DTYPE_F16) {
            ((uint16_t *)token_scale)[at] = oct__f16_from_f32(scale); /* exact: oct__scale_dynamic has rounded it */
        } else {
            ((float *)token_scale)[at] = scale;
        }
        break;
    }
    case OCT_SCALE_CHANNEL:
        for (uint32_t d = 0; d < dim; d++) {
            /* A division may change the sign of a NaN, and the byte keeps the sign. */
            if (!oct__f32_bits_are_nan(oct__f32_to_bits(x[d]))) {
                x[d] = oct__f32_divide(x[d], static_scale[(size_t)head * dim + d]);
            }
        }
        break;
    default: /* OCT_SCALE_NONE */
        break;
    }
    oct__row_from_f32(encoded, format->dtype, x, dim, scale, &met);
    store_encoded(layer, is_k, page, token, head, encoded);
    if (counts != NULL) {
        counts->n_values += dim;
        counts->n_saturated += met.saturated;
        counts->n_nan += met.nans;
    }
}

/* A destination's slot of one token; page < 0: none. */
typedef struct place {
    int64_t page;
    uint32_t token;
} place;

static place place_of(const oct_kv_layer *layer, const int32_t *slots, int64_t token)
{
    place none = { -1, 0 };
    if (layer == NULL || slots[token] < 0 || slots[token] >= layer->n_pages * (int64_t)layer->spec.page_size) {
        return none;
    }
    place at = { slots[token] / (int64_t)layer->spec.page_size, (uint32_t)slots[token] % layer->spec.page_size };
    return at;
}

/* One vector of the source into both destinations. */
static void write_both(const oct_kv_write_args *args, bool is_k, place at, place at_window, uint32_t head, const float *x, oct_kv_counts *counts)
{
    const size_t dim_bytes = (is_k ? args->layer->spec.dim_k : args->layer->spec.dim_v) * sizeof(float);
    float work[MAX_DIM];
    if (at.page >= 0) {
        memcpy(work, x, dim_bytes);
        write_vector(args->layer, is_k, at.page, at.token, head, work, counts);
    }
    if (at_window.page >= 0) {
        memcpy(work, x, dim_bytes);
        write_vector(args->layer_window, is_k, at_window.page, at_window.token, head, work, NULL);
    }
}

void oct__kv_write__scalar(const oct_kv_write_args *args, int64_t token0, int64_t token1, oct_kv_counts *k_counts, oct_kv_counts *v_counts)
{
    const oct_kv_spec *spec = &args->layer->spec;
    const int64_t src_size = oct__dtype_size_bytes(args->src_dtype);
    oct__rope_table rope;
    float x[MAX_DIM];

    if (args->rope != NULL) {
        oct__rope_prepare(&rope, args->rope);
    }
    for (int64_t t = token0; t < token1; t++) {
        const place at = place_of(args->layer, args->slots, t);
        const place at_window = place_of(args->layer_window, args->slots_window, t);
        if (at.page < 0 && at_window.page < 0) {
            continue; /* the source row of a skipped token need not exist */
        }
        if (args->rope != NULL) {
            oct__rope_turn_to(&rope, args->rope, args->positions[t]);
        }
        for (uint32_t head = 0; head < spec->heads; head++) {
            const uint8_t *k = (const uint8_t *)args->k + (t * args->k_token_stride + head * args->k_head_stride) * src_size;
            const uint8_t *v = (const uint8_t *)args->v + (t * args->v_token_stride + head * args->v_head_stride) * src_size;
            oct__row_to_f32(x, k, args->src_dtype, spec->dim_k);
            if (args->rope != NULL) {
                oct__rope_apply_f32(x, args->rope, &rope);
            }
            write_both(args, true, at, at_window, head, x, k_counts);
            oct__row_to_f32(x, v, args->src_dtype, spec->dim_v);
            write_both(args, false, at, at_window, head, x, v_counts);
        }
    }
}
