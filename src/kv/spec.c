/* spec.c: see spec.h. */
#include "kv/spec.h"

#include <stdbool.h>
#include <stddef.h>

#include "host/error.h"
#include "kv/layout.h"
#include "number/dtype.h"

enum { DIM_MIN = 16, DIM_MAX = 512, DIM_MULTIPLE = 8, PAGE_SIZE_MAX = 1024 };

static const char *const scale_mode_names[] = {
    [OCT_SCALE_NONE] = "none",
    [OCT_SCALE_TENSOR] = "tensor",
    [OCT_SCALE_LAYER] = "layer",
    [OCT_SCALE_LAYER_HEAD] = "layer_head",
    [OCT_SCALE_TOKEN_HEAD] = "token_head",
    [OCT_SCALE_CHANNEL] = "channel",
};

const char *oct__scale_mode_name(uint32_t scale_mode)
{
    return scale_mode <= OCT_SCALE_CHANNEL ? scale_mode_names[scale_mode] : "unknown";
}

/* Why a format is illegal: the field's name and value, and what it must be. */
typedef struct complaint {
    const char *field;
    uint32_t value;
    const char *must_be;
} complaint;

static bool format_is_legal(const oct_kv_format *format, complaint *why)
{
    if (!oct__dtype_is_valid(format->dtype)) {
        *why = (complaint){"dtype", format->dtype, "must be an oct_dtype, 1 (f32) to 8 (v4)"};
        return false;
    }
    if (format->scale_mode > OCT_SCALE_CHANNEL) {
        *why = (complaint){"scale_mode", format->scale_mode, "must be an oct_scale_mode, 0 (none) to 5 (channel)"};
        return false;
    }
    if (format->dtype == OCT_DTYPE_V4 && format->scale_mode != OCT_SCALE_NONE) {
        *why = (complaint){"scale_mode", format->scale_mode, "must be 0 (none) with dtype v4: its scales lie among its elements"};
        return false;
    }
    if (!oct__dtype_is_8bit(format->dtype) && format->scale_mode != OCT_SCALE_NONE) {
        *why = (complaint){"scale_mode", format->scale_mode, "must be 0 (none): 16- and 32-bit formats take no scale"};
        return false;
    }
    /* An integer has no exponent of its own: one scale for a whole layer would leave it with two or three levels
     * where the layer's outliers are not. */
    if (format->dtype == OCT_DTYPE_I8 && format->scale_mode != OCT_SCALE_TOKEN_HEAD && format->scale_mode != OCT_SCALE_CHANNEL) {
        *why = (complaint){"scale_mode", format->scale_mode, "must be 4 (token_head) or 5 (channel) with dtype i8"};
        return false;
    }
    if (format->scale_mode == OCT_SCALE_TOKEN_HEAD) {
        if (format->scale_dtype != OCT_DTYPE_F32 && format->scale_dtype != OCT_DTYPE_F16) {
            *why = (complaint){"scale_dtype", format->scale_dtype, "must be 1 (f32) or 2 (f16) with scale_mode token_head"};
            return false;
        }
    } else if (format->scale_dtype != 0) {
        *why = (complaint){"scale_dtype", format->scale_dtype, "must be 0 unless scale_mode is 4 (token_head)"};
        return false;
    }
    if (format->rotated > 1) {
        *why = (complaint){"rotated", format->rotated, "must be 0 or 1"};
        return false;
    }
    return true;
}

static bool dim_is_legal(uint32_t dim)
{
    return dim >= DIM_MIN && dim <= DIM_MAX && dim % DIM_MULTIPLE == 0;
}

oct_status oct__kv_spec_check(const oct_kv_spec *spec, const char *key, const char *where, oct_error *error)
{
    complaint why;
    if (spec == NULL) {
        return oct__error_set(error, OCT_INVALID_ARGUMENT, where, "%s is NULL; must point to an oct_kv_spec", key);
    }
    /* Exactly this size: a field that this library does not know could change what the bytes mean. */
    if (spec->struct_size != sizeof(*spec)) {
        return oct__error_set(error, OCT_INVALID_ARGUMENT, where, "%s.struct_size is %u; must be sizeof(oct_kv_spec) = %zu", key,
                              spec->struct_size, sizeof(*spec));
    }
    if (spec->layout > OCT_LAYOUT_V5D) {
        return oct__error_set(error, OCT_INVALID_ARGUMENT, where, "%s.layout is %u; must be 0 (NHD), 1 (HND) or 2 (V5D)", key,
                              spec->layout);
    }
    if (spec->heads == 0) {
        return oct__error_set(error, OCT_INVALID_ARGUMENT, where, "%s.heads is 0; must be at least 1", key);
    }
    if (!dim_is_legal(spec->dim_k) || !dim_is_legal(spec->dim_v)) {
        const bool k_is_wrong = !dim_is_legal(spec->dim_k);
        return oct__error_set(error, OCT_INVALID_ARGUMENT, where, "%s.%s is %u; must be a multiple of %d from %d to %d", key,
                              k_is_wrong ? "dim_k" : "dim_v", k_is_wrong ? spec->dim_k : spec->dim_v, DIM_MULTIPLE, DIM_MIN, DIM_MAX);
    }
    if (spec->page_size == 0 || spec->page_size > PAGE_SIZE_MAX) {
        return oct__error_set(error, OCT_INVALID_ARGUMENT, where, "%s.page_size is %u; must be from 1 to %d tokens", key, spec->page_size,
                              PAGE_SIZE_MAX);
    }
    for (int which = 0; which < 2; which++) {
        const oct_kv_format *format = which == 0 ? &spec->k : &spec->v;
        if (which == 0 && format->dtype == OCT_DTYPE_V4) {
            return oct__error_set(error, OCT_UNSUPPORTED, where,
                                  "%s.k.dtype is 8 (v4); K is not kept in 4 bits: what it cost models was a KL divergence of 0.046 and more, five times all of e4m3's", key);
        }
        if (!format_is_legal(format, &why)) {
            return oct__error_set(error, OCT_INVALID_ARGUMENT, where, "%s.%c.%s is %u; %s", key, which == 0 ? 'k' : 'v', why.field,
                                  why.value, why.must_be);
        }
    }
    if (spec->v.dtype == OCT_DTYPE_V4) {
        if (spec->layout == OCT_LAYOUT_V5D) {
            return oct__error_set(error, OCT_INVALID_ARGUMENT, where, "%s.layout is 2 (V5D); must be 0 (NHD) or 1 (HND) with V in v4, whose blocks are dims of one token", key);
        }
        if (spec->dim_v % OCT__V4_BLOCK != 0) {
            return oct__error_set(error, OCT_INVALID_ARGUMENT, where, "%s.dim_v is %u; must be a multiple of %d with V in v4", key, spec->dim_v, OCT__V4_BLOCK);
        }
    }
    if (spec->layout == OCT_LAYOUT_V5D) {
        const uint32_t k_x = oct__v5d_x(spec->k.dtype), v_x = oct__v5d_x(spec->v.dtype);
        if (spec->dim_k % k_x != 0) {
            return oct__error_set(error, OCT_INVALID_ARGUMENT, where,
                                  "%s.dim_k is %u; must be a multiple of %u in layout V5D: 16 bytes of %s", key, spec->dim_k, k_x,
                                  oct__dtype_name(spec->k.dtype));
        }
        if (spec->page_size % v_x != 0) {
            return oct__error_set(error, OCT_INVALID_ARGUMENT, where,
                                  "%s.page_size is %u; must be a multiple of %u in layout V5D: 16 bytes of V in %s", key, spec->page_size,
                                  v_x, oct__dtype_name(spec->v.dtype));
        }
    }
    return OCT_OK;
}

OCT_API oct_status oct_kv_spec_check(const oct_kv_spec *spec, oct_error *error)
{
    return oct__kv_spec_check(spec, "spec", "oct_kv_spec_check", error);
}

static uint64_t token_scale_bytes(const oct_kv_spec *spec, const oct_kv_format *format)
{
    return format->scale_mode == OCT_SCALE_TOKEN_HEAD
               ? (uint64_t)spec->page_size * spec->heads * oct__dtype_size_bytes(format->scale_dtype)
               : 0;
}

/* No overflow: 2^10 tokens x 2^32 heads x 2^9 dims x 4 bytes is below 2^54. */
oct__kv_page_parts oct__kv_page_parts_of(const oct_kv_spec *spec)
{
    const uint64_t vectors = (uint64_t)spec->page_size * spec->heads;
    return (oct__kv_page_parts){
        .k_bytes = oct__dtype_bytes(spec->k.dtype, vectors * spec->dim_k),
        .v_bytes = oct__dtype_bytes(spec->v.dtype, vectors * spec->dim_v),
        .k_token_scale_bytes = token_scale_bytes(spec, &spec->k),
        .v_token_scale_bytes = token_scale_bytes(spec, &spec->v),
    };
}

OCT_API uint64_t oct_kv_page_bytes(const oct_kv_spec *spec)
{
    if (oct_kv_spec_check(spec, NULL) != OCT_OK) {
        return 0;
    }
    const oct__kv_page_parts parts = oct__kv_page_parts_of(spec);
    return parts.k_bytes + parts.v_bytes + parts.k_token_scale_bytes + parts.v_token_scale_bytes;
}

uint64_t oct__kv_static_scales(const oct_kv_spec *spec, uint32_t which)
{
    switch (which == 0 ? spec->k.scale_mode : spec->v.scale_mode) {
    case OCT_SCALE_TENSOR:
    case OCT_SCALE_LAYER:
        return 1;
    case OCT_SCALE_LAYER_HEAD:
        return spec->heads;
    case OCT_SCALE_CHANNEL:
        return (uint64_t)spec->heads * (which == 0 ? spec->dim_k : spec->dim_v);
    default:
        return 0;
    }
}

oct_status oct__kv_n_pages_check(int64_t n_pages, int64_t least, const oct_kv_spec *spec, const char *key, const char *where,
                                 oct_error *error)
{
    const int64_t most_slots = INT32_MAX / spec->page_size;
    const uint64_t page_bytes = oct_kv_page_bytes(spec);
    if (n_pages < least || n_pages > most_slots) {
        return oct__error_set(error, OCT_INVALID_ARGUMENT, where,
                              "%s is %lld; must be from %lld to %lld: slots of %u tokens a page are int32", key, (long long)n_pages,
                              (long long)least, (long long)most_slots, spec->page_size);
    }
    /* Offsets are int64 and objects no larger than half the address space. */
    if ((uint64_t)n_pages > (uint64_t)PTRDIFF_MAX / page_bytes) {
        return oct__error_set(error, OCT_INVALID_ARGUMENT, where, "%s is %lld; pages of %llu bytes must fit the address space", key,
                              (long long)n_pages, (unsigned long long)page_bytes);
    }
    return OCT_OK;
}

void oct__kv_layer_fill(oct_kv_layer *layer, const oct_kv_spec *spec, int64_t n_pages)
{
    const int64_t heads = spec->heads, tokens = spec->page_size, dim_k = spec->dim_k, dim_v = spec->dim_v;
    const bool by_token = spec->layout == OCT_LAYOUT_NHD;
    *layer = (oct_kv_layer){
        .struct_size = (uint32_t)sizeof(*layer),
        .spec = *spec,
        .n_pages = n_pages,
        .k_page_stride = tokens * heads * dim_k,
        .k_token_stride = by_token ? heads * dim_k : dim_k,
        .k_head_stride = by_token ? dim_k : tokens * dim_k,
        .v_page_stride = tokens * heads * dim_v,
        .v_token_stride = by_token ? heads * dim_v : dim_v,
        .v_head_stride = by_token ? dim_v : tokens * dim_v,
        .k_scale_page_stride = spec->k.scale_mode == OCT_SCALE_TOKEN_HEAD ? tokens * heads : 0,
        .v_scale_page_stride = spec->v.scale_mode == OCT_SCALE_TOKEN_HEAD ? tokens * heads : 0,
    };
    if (spec->layout == OCT_LAYOUT_V5D) { /* tokens have no stride of their own there */
        layer->k_token_stride = 0;
        layer->v_token_stride = 0;
    }
}

OCT_API oct_status oct_kv_layer_init(oct_kv_layer *layer, const oct_kv_spec *spec, int64_t n_pages, oct_error *error)
{
    static const char where[] = "oct_kv_layer_init";
    if (layer == NULL) {
        return oct__error_set(error, OCT_INVALID_ARGUMENT, where, "layer is NULL; must point to an oct_kv_layer");
    }
    oct_status status = oct__kv_spec_check(spec, "spec", where, error);
    if (status == OCT_OK) {
        status = oct__kv_n_pages_check(n_pages, 0, spec, "n_pages", where, error);
    }
    if (status == OCT_OK) {
        oct__kv_layer_fill(layer, spec, n_pages);
    }
    return status;
}
