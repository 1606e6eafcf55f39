/* check.c: see check.h. */
#include "api/check.h"

#include <inttypes.h>

#include "api/struct.h"
#include "host/error.h"
#include "kv/spec.h"
#include "number/dtype.h"
#include "number/scale.h"
#include "number/v4.h"

bool oct__spec_equal(const oct_kv_spec *a, const oct_kv_spec *b)
{
    return a->layout == b->layout && a->heads == b->heads && a->dim_k == b->dim_k && a->dim_v == b->dim_v && a->page_size == b->page_size && a->k.dtype == b->k.dtype &&
           a->k.scale_mode == b->k.scale_mode && a->k.scale_dtype == b->k.scale_dtype && a->k.rotated == b->k.rotated && a->v.dtype == b->v.dtype &&
           a->v.scale_mode == b->v.scale_mode && a->v.scale_dtype == b->v.scale_dtype && a->v.rotated == b->v.rotated;
}

oct_status oct__check_pointer(const void *pointer, uint32_t element_bytes, int64_t n, const char *key, const char *where, oct_error *error)
{
    if (n > 0 && pointer == NULL) {
        return oct__error_set(error, OCT_INVALID_ARGUMENT, where, "%s is NULL", key);
    }
    if ((uintptr_t)pointer % element_bytes != 0) {
        return oct__error_set(error, OCT_INVALID_ARGUMENT, where, "%s is not aligned to its elements of %" PRIu32 " bytes", key, element_bytes);
    }
    return OCT_OK;
}

/* ---- strides ---------------------------------------------------------------------------------------------------------- */

bool oct__axes_are_readable(const oct__axis *axes, uint32_t n_axes, int64_t inner, uint32_t element_bytes)
{
    int64_t span = inner;
    for (uint32_t i = 0; i < n_axes; i++) {
        int64_t far = 0;
        if (axes[i].n <= 1) {
            continue;
        }
        if (axes[i].stride < 0 || __builtin_mul_overflow(axes[i].n - 1, axes[i].stride, &far) || __builtin_add_overflow(span, far, &span)) {
            return false;
        }
    }
    return span <= INT64_MAX / element_bytes;
}

bool oct__axes_are_apart(const oct__axis *axes, uint32_t n_axes, int64_t inner, uint32_t element_bytes)
{
    if (!oct__axes_are_readable(axes, n_axes, inner, element_bytes)) {
        return false;
    }
    /* From the smallest stride up: each must step over all that lies within. No more than four axes, so no sort. */
    int64_t span = inner;
    uint32_t used = 0;
    for (uint32_t step = 0; step < n_axes; step++) {
        uint32_t next = n_axes;
        for (uint32_t i = 0; i < n_axes; i++) {
            if ((used >> i & 1) == 0 && axes[i].n > 1 && (next == n_axes || axes[i].stride < axes[next].stride)) {
                next = i;
            }
        }
        if (next == n_axes) {
            return true;
        }
        used |= 1u << next;
        if (axes[next].stride < span) {
            return false;
        }
        span += (axes[next].n - 1) * axes[next].stride;
    }
    return true;
}

/* ---- layers ----------------------------------------------------------------------------------------------------------- */

/* One of K and V. */
typedef struct side {
    char letter;
    uint32_t which, dim;
    const oct_kv_format *format;
    const void *base;
    int64_t page_stride, token_stride, head_stride, scale_page_stride;
    const float *scale;
    const void *token_scale;
} side;

static oct_status check_strides(const oct_kv_layer *layer, const side *s, const char *key, const char *where, oct_error *error)
{
    const uint32_t element_bytes = oct__dtype_align_bytes(s->format->dtype); /* v4: more than an element's */
    bool apart;
    if (layer->spec.layout == OCT_LAYOUT_V5D) {
        const oct__axis axes[] = { { layer->n_pages, s->page_stride }, { layer->spec.heads, s->head_stride } };
        apart = oct__axes_are_apart(axes, 2, (int64_t)layer->spec.page_size * s->dim, element_bytes);
    } else {
        const oct__axis axes[] = { { layer->n_pages, s->page_stride }, { layer->spec.page_size, s->token_stride }, { layer->spec.heads, s->head_stride } };
        apart = oct__axes_are_apart(axes, 3, s->dim, element_bytes);
    }
    const bool whole = (layer->n_pages <= 1 || s->page_stride % OCT__V4_BLOCK == 0) && (layer->spec.page_size <= 1 || s->token_stride % OCT__V4_BLOCK == 0) &&
                       (layer->spec.heads <= 1 || s->head_stride % OCT__V4_BLOCK == 0);
    if (s->format->dtype == OCT_DTYPE_V4 && !whole) {
        return oct__error_set(error, OCT_INVALID_ARGUMENT, where, "%s: %c strides (page %" PRId64 ", token %" PRId64 ", head %" PRId64 ") must be multiples of %d: v4 lies in blocks",
                              key, s->letter, s->page_stride, s->token_stride, s->head_stride, OCT__V4_BLOCK);
    }
    if (!apart) {
        return oct__error_set(error, OCT_INVALID_ARGUMENT, where, "%s: %c strides (page %" PRId64 ", token %" PRId64 ", head %" PRId64 ") let vectors overlap or leave the address space",
                              key, s->letter, s->page_stride, s->token_stride, s->head_stride);
    }
    return OCT_OK;
}

static oct_status check_scale_values(const oct_kv_layer *layer, const side *s, const char *key, const char *where, oct_error *error)
{
    const uint64_t n = oct__kv_static_scales(&layer->spec, s->which), per_head = n / layer->spec.heads;
    for (uint64_t i = 0; i < n; i++) {
        if (!oct__scale_is_valid(s->scale[i])) {
            return oct__error_set(error, OCT_INVALID_ARGUMENT, where, "%s.%c_scale[%" PRIu64 "] (head %" PRIu64 ") is %g; must be finite and > 0", key, s->letter, i,
                                  per_head > 0 ? i / per_head : 0, (double)s->scale[i]);
        }
    }
    return OCT_OK;
}

static oct_status check_scales(const oct_kv_layer *layer, const side *s, bool on_device, const char *key, const char *where, oct_error *error)
{
    const uint32_t mode = s->format->scale_mode;
    const bool is_static = oct__kv_static_scales(&layer->spec, s->which) > 0;
    if (is_static && (s->scale == NULL || (uintptr_t)s->scale % sizeof(float) != 0)) {
        return oct__error_set(error, OCT_INVALID_ARGUMENT, where, "%s.%c_scale is %s; scale mode %s reads it", key, s->letter, s->scale == NULL ? "NULL" : "not aligned to f32",
                              oct__scale_mode_name(mode));
    }
    /* A scale that nobody would read is a mistake that nobody would notice. */
    if (!is_static && s->scale != NULL) {
        return oct__error_set(error, OCT_INVALID_ARGUMENT, where, "%s.%c_scale is given, but scale mode %s does not read it; must be NULL", key, s->letter, oct__scale_mode_name(mode));
    }
    if (mode != OCT_SCALE_TOKEN_HEAD) {
        if (s->token_scale != NULL) {
            return oct__error_set(error, OCT_INVALID_ARGUMENT, where, "%s.%c_token_scale is given, but scale mode %s does not read it; must be NULL", key, s->letter,
                                  oct__scale_mode_name(mode));
        }
        return on_device ? OCT_OK : check_scale_values(layer, s, key, where, error);
    }
    if (layer->n_pages > 0 && (s->token_scale == NULL || (uintptr_t)s->token_scale % oct__dtype_size_bytes(s->format->scale_dtype) != 0)) {
        return oct__error_set(error, OCT_INVALID_ARGUMENT, where, "%s.%c_token_scale is %s; scale mode token_head reads it", key, s->letter,
                              s->token_scale == NULL ? "NULL" : "not aligned to its elements");
    }
    const oct__axis axis = { layer->n_pages, s->scale_page_stride };
    if (!oct__axes_are_apart(&axis, 1, (int64_t)layer->spec.page_size * layer->spec.heads, oct__dtype_size_bytes(s->format->scale_dtype))) {
        return oct__error_set(error, OCT_INVALID_ARGUMENT, where, "%s.%c_scale_page_stride is %" PRId64 "; must be at least page_size x heads = %" PRId64, key, s->letter,
                              s->scale_page_stride, (int64_t)layer->spec.page_size * layer->spec.heads);
    }
    return OCT_OK;
}

static oct_status check_side(const oct_kv_layer *layer, const side *s, bool on_device, const char *key, const char *where, oct_error *error)
{
    if (layer->n_pages > 0 && s->base == NULL) {
        return oct__error_set(error, OCT_INVALID_ARGUMENT, where, "%s.%c is NULL", key, s->letter);
    }
    if ((uintptr_t)s->base % oct__dtype_align_bytes(s->format->dtype) != 0) {
        return oct__error_set(error, OCT_INVALID_ARGUMENT, where, "%s.%c is not aligned to its elements of %s", key, s->letter, oct__dtype_name(s->format->dtype));
    }
    const oct_status status = check_strides(layer, s, key, where, error);
    return status == OCT_OK ? check_scales(layer, s, on_device, key, where, error) : status;
}

oct_status oct__check_layer(oct_kv_layer *layer, const oct_kv_layer *given, bool on_device, oct__layer_keys keys, const char *where, oct_error *error)
{
    const char *key = keys.layer;
    oct_status status = oct__struct_read(layer, sizeof(*layer), sizeof(*layer), given, key, where, error);
    if (status != OCT_OK) {
        return status;
    }
    status = oct__kv_spec_check(&layer->spec, keys.spec, where, error);
    if (status == OCT_OK) {
        status = oct__kv_n_pages_check(layer->n_pages, 0, &layer->spec, keys.n_pages, where, error);
    }
    if (status != OCT_OK) {
        return status;
    }
    if (layer->reserved != 0) {
        return oct__error_set(error, OCT_INVALID_ARGUMENT, where, "%s.reserved is %" PRIu32 "; must be 0", key, layer->reserved);
    }
    const side k = { 'k', 0, layer->spec.dim_k, &layer->spec.k, layer->k, layer->k_page_stride, layer->k_token_stride, layer->k_head_stride, layer->k_scale_page_stride,
                     layer->k_scale, layer->k_token_scale };
    const side v = { 'v', 1, layer->spec.dim_v, &layer->spec.v, layer->v, layer->v_page_stride, layer->v_token_stride, layer->v_head_stride, layer->v_scale_page_stride,
                     layer->v_scale, layer->v_token_scale };
    status = check_side(layer, &k, on_device, key, where, error);
    return status == OCT_OK ? check_side(layer, &v, on_device, key, where, error) : status;
}
