/* attn_scalar.c: the attention tile in its executable definition: one key after the other, one online softmax a vector.
 * Operands are f32 as every variant has them; products, scores and running sums are f64, so that the error does not grow with the
 * number of keys and what the vector variants are compared with is right to the last f32 bit or two.
 *
 * Threads: works in the tile's own scratch and outputs. */
#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "cpu/scalar.h"
#include "kv/layout.h"
#include "number/convert.h"
#include "number/dtype.h"
#include "number/f16.h"

#define MAX_DIM 512u /* oct_kv_spec: dims are 16..512 */

/* ---- the stored key ------------------------------------------------------------------------------------------------ */

/* The decoded elements of one token and head, no scale applied. */
static void load_vector(const oct_kv_layer *layer, bool is_k, int64_t page, uint32_t token, uint32_t head, float *x)
{
    const uint32_t dtype = is_k ? layer->spec.k.dtype : layer->spec.v.dtype;
    const uint32_t dim = is_k ? layer->spec.dim_k : layer->spec.dim_v;
    const size_t size = oct__dtype_size_bytes(dtype);
    const uint8_t *base = is_k ? layer->k : layer->v;
    if (layer->spec.layout != OCT_LAYOUT_V5D) {
        const int64_t at = is_k ? oct__k_index(layer, page, token, head, 0) : oct__v_index(layer, page, token, head, 0);
        oct__row_to_f32(x, base + oct__element_at(dtype, at), dtype, dim);
        return;
    }
    uint8_t gathered[MAX_DIM * sizeof(float)];
    const uint32_t run = is_k ? oct__v5d_x(dtype) : 1; /* elements that lie together */
    for (uint32_t d = 0; d < dim; d += run) {
        const int64_t at = is_k ? oct__k_index(layer, page, token, head, d) : oct__v_index(layer, page, token, head, d);
        memcpy(gathered + d * size, base + at * (int64_t)size, (d + run < dim ? run : dim - d) * size);
    }
    oct__row_to_f32(x, gathered, dtype, dim);
}

/* The dynamic scale beside the page; 1 for the other modes, whose scale the runner applies. */
static double token_scale(const oct_kv_layer *layer, bool is_k, int64_t page, uint32_t token, uint32_t head)
{
    const oct_kv_format *format = is_k ? &layer->spec.k : &layer->spec.v;
    const void *scale = is_k ? layer->k_token_scale : layer->v_token_scale;
    if (format->scale_mode != OCT_SCALE_TOKEN_HEAD) {
        return 1.0;
    }
    const int64_t at = is_k ? oct__k_scale_index(layer, page, token, head) : oct__v_scale_index(layer, page, token, head);
    return format->scale_dtype == OCT_DTYPE_F16 ? (double)oct__f16_to_f32(((const uint16_t *)scale)[at]) : (double)((const float *)scale)[at];
}

/* ---- who sees it ----------------------------------------------------------------------------------------------------- */

static bool is_visible(const oct__attn_tile *tile, uint32_t row, int64_t key)
{
    const int64_t position = tile->pos0 + row;
    if (tile->causal && key > position) {
        return false;
    }
    if (tile->window > 0 && position - key >= (int64_t)tile->window) {
        return false;
    }
    if (tile->mask != NULL && key >= tile->mask_key0) {
        const int64_t bit = key - tile->mask_key0;
        return (tile->mask[row * tile->mask_row_stride + bit / 32] >> (bit % 32)) & 1;
    }
    return true;
}

/* ---- the tile -------------------------------------------------------------------------------------------------------- */

/* Scratch: m, z [n_vectors], o [n_vectors][dim_v] in f64, then one k and one v in f32. */
size_t oct__attn_scratch__scalar(const oct_kv_spec *spec, uint32_t n_vectors)
{
    return (size_t)n_vectors * (2 + spec->dim_v) * sizeof(double) + ((size_t)spec->dim_k + spec->dim_v) * sizeof(float);
}

/* Eight sums side by side, since an addition waits for the one before it; dims are multiples of 8. */
static double dot(const float *a, const float *b, uint32_t n)
{
    double sum[8] = { 0 };
    for (uint32_t i = 0; i < n; i += 8) {
        for (uint32_t l = 0; l < 8; l++) {
            sum[l] += (double)a[i + l] * (double)b[i + l];
        }
    }
    return ((sum[0] + sum[4]) + (sum[1] + sum[5])) + ((sum[2] + sum[6]) + (sum[3] + sum[7]));
}

/* Takes a visible key with score s into one vector's state. A NaN score (a NaN was stored, or is in q) makes the whole state NaN. */
static void take_key(double *m, double *z, double *o, uint32_t dim_v, double s, const float *v, double v_scale)
{
    if (s == -INFINITY) {
        return; /* weight 0: a stored infinity of e5m2; exp(s - m) would be NaN while m is -inf */
    }
    if (!(s <= *m)) {
        const double keep = *m == -INFINITY ? 0.0 : exp(*m - s); /* nothing to keep before the first key */
        *m = s;
        *z *= keep;
        for (uint32_t d = 0; d < dim_v; d++) {
            o[d] *= keep;
        }
    }
    const double p = exp(s - *m);
    const double weight = p * v_scale;
    *z += p;
    for (uint32_t d = 0; d < dim_v; d++) {
        o[d] += weight * (double)v[d];
    }
}

void oct__attn__scalar(const oct__attn_tile *tile)
{
    const oct_kv_layer *kv = tile->kv;
    const uint32_t n_vectors = tile->n_rows * tile->n_heads;
    const uint32_t dim_k = kv->spec.dim_k, dim_v = kv->spec.dim_v, page_size = kv->spec.page_size;
    double *m = tile->scratch;
    double *z = m + n_vectors;
    double *o = z + n_vectors;
    float *k = (float *)(o + (size_t)n_vectors * dim_v);
    float *v = k + dim_k;

    for (uint32_t i = 0; i < n_vectors; i++) {
        m[i] = -INFINITY;
        z[i] = 0.0;
    }
    for (size_t i = 0; i < (size_t)n_vectors * dim_v; i++) {
        o[i] = 0.0;
    }
    for (int64_t key = tile->key0; key < tile->key1; key++) {
        bool is_loaded = false; /* a page that no row sees may be gone */
        double k_scale = 1.0, v_scale = 1.0;
        for (uint32_t row = 0; row < tile->n_rows; row++) {
            if (!is_visible(tile, row, key)) {
                continue;
            }
            if (!is_loaded) {
                const int64_t page = tile->pages[key / page_size];
                const uint32_t token = (uint32_t)(key % page_size);
                load_vector(kv, true, page, token, tile->head_kv, k);
                load_vector(kv, false, page, token, tile->head_kv, v);
                k_scale = token_scale(kv, true, page, token, tile->head_kv);
                v_scale = token_scale(kv, false, page, token, tile->head_kv);
                is_loaded = true;
            }
            for (uint32_t head = 0; head < tile->n_heads; head++) {
                const size_t i = (size_t)row * tile->n_heads + head;
                double s = (double)tile->score_scale * k_scale * dot(tile->q + i * (size_t)tile->q_stride, k, dim_k);
                if (tile->softcap > 0) {
                    s = (double)tile->softcap * tanh(s / (double)tile->softcap);
                }
                take_key(&m[i], &z[i], o + i * dim_v, dim_v, s, v, v_scale);
            }
        }
    }
    for (uint32_t i = 0; i < n_vectors; i++) {
        /* m leaves in f32; what that rounds off goes into z and o, so that nothing is lost at large scores. Beyond 2^24 a unit of f32 is
         * more than the exponent of z and o could take; out = o / z does not need it. */
        tile->m[i] = (float)m[i];
        const double rounded_off = m[i] - (double)tile->m[i];
        const double rest = fabs(rounded_off) <= 1.0 ? exp(rounded_off) : 1.0;
        tile->z[i] = (float)(z[i] * rest);
        for (uint32_t d = 0; d < dim_v; d++) {
            tile->o[i * (size_t)tile->o_stride + d] = (float)(o[i * (size_t)dim_v + d] * rest);
        }
    }
}
