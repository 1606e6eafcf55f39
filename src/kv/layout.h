/* Where a token's K or V lies: the address arithmetic of the three layouts, stated once. Pure functions, 64-bit offsets. */
#ifndef OCT_KV_LAYOUT_H
#define OCT_KV_LAYOUT_H

#include <stdint.h>

#include "number/v4.h"
#include "octavo/kv.h"

/* Bytes before element `index` of a tensor; v4 asks for the first element of a block only. */
static inline int64_t oct__element_at(uint32_t dtype, int64_t index)
{
    return dtype == OCT_DTYPE_V4 ? oct__v4_block_at(index) : index * (dtype >= OCT_DTYPE_E4M3FN ? 1 : dtype == OCT_DTYPE_F32 ? 4 : 2);
}

/* Elements in one V5D chunk: 16 bytes. Inline and without a table, since kernels ask for every index. */
static inline uint32_t oct__v5d_x(uint32_t dtype) { return dtype >= OCT_DTYPE_E4M3FN ? 16 : dtype == OCT_DTYPE_F32 ? 4 : 8; }

/* Element index of (page, token, head, dim) of K; NHD and HND are contiguous over dim, V5D over x = 16 bytes of dims. */
static inline int64_t oct__k_index(const oct_kv_layer *l, int64_t page, uint32_t token, uint32_t head, uint32_t dim)
{
    if (l->spec.layout != OCT_LAYOUT_V5D)
        return page * l->k_page_stride + token * l->k_token_stride + head * l->k_head_stride + dim;
    const uint32_t x = oct__v5d_x(l->spec.k.dtype);
    return page * l->k_page_stride + head * l->k_head_stride + ((int64_t)(dim / x) * l->spec.page_size + token) * x + dim % x;
}

/* The same of V; V5D is contiguous over x tokens of one dim. */
static inline int64_t oct__v_index(const oct_kv_layer *l, int64_t page, uint32_t token, uint32_t head, uint32_t dim)
{
    if (l->spec.layout != OCT_LAYOUT_V5D)
        return page * l->v_page_stride + token * l->v_token_stride + head * l->v_head_stride + dim;
    const uint32_t x = oct__v5d_x(l->spec.v.dtype);
    return page * l->v_page_stride + head * l->v_head_stride + ((int64_t)(token / x) * l->spec.dim_v + dim) * x + token % x;
}

/* Index of the dynamic scale of (page, token, head). */
static inline int64_t oct__k_scale_index(const oct_kv_layer *l, int64_t page, uint32_t token, uint32_t head)
{
    return page * l->k_scale_page_stride + (int64_t)token * l->spec.heads + head;
}
static inline int64_t oct__v_scale_index(const oct_kv_layer *l, int64_t page, uint32_t token, uint32_t head)
{
    return page * l->v_scale_page_stride + (int64_t)token * l->spec.heads + head;
}

#endif
