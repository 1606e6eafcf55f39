/* page.h: owns where a key lies on the device: a sequence's length and pages in both forms of a batch, and the addresses of kv/layout.h
 * in terms of params.h. */
#ifndef OCT_DEVICE_PAGE_H
#define OCT_DEVICE_PAGE_H

#include "device/params.h"
#include "device/simt.h"

DEV int32_t batch_kv_len(const oct__dev_batch *batch, uint32_t sequence)
{
    if (batch->seq_lens != 0) {
        return GET(batch->seq_lens[sequence]);
    }
    const int32_t n_pages = GET(batch->kv_indptr[sequence + 1]) - GET(batch->kv_indptr[sequence]);
    return n_pages <= 0 ? 0 : (n_pages - 1) * (int32_t)batch->page_size + GET(batch->kv_last_page_len[sequence]);
}

/* Page ids of a sequence, from key 0. */
DEV const int32_t *batch_pages(const oct__dev_batch *batch, uint32_t sequence)
{
    if (batch->block_table != 0) {
        return batch->block_table + sequence * batch->max_pages;
    }
    return batch->kv_indices + GET(batch->kv_indptr[sequence]);
}

/* Element where (page, token, head) begins. NHD, HND: dim 0, and the dims follow. V5D: K's dims follow in chunks that are page_size chunks apart;
 * V's token stands at token % x of chunks whose dims are x elements apart. */
DEV int64_t side_at(const oct__dev_side *side, uint32_t layout, uint32_t page_size, int is_k, int64_t page, uint32_t token, uint32_t head)
{
    const int64_t page_at = page * side->page_stride + head * side->head_stride;
    (void)page_size;
    if (layout != OCT_LAYOUT_V5D) {
        return page_at + token * side->token_stride;
    }
    const uint32_t x = oct__dev_chunk(side->dtype);
    return page_at + (is_k ? (int64_t)token * x : (int64_t)(token / x) * side->dim * x + token % x);
}

DEV uint32_t element_bytes(uint32_t dtype)
{
    return dtype >= OCT_DTYPE_E4M3FN ? 1u : dtype == OCT_DTYPE_F32 ? 4u : 2u;
}

/* The dynamic scale of (page, token, head). */
DEV float token_scale(const oct__dev_side *side, uint32_t heads, int64_t page, uint32_t token, uint32_t head)
{
    const int64_t at = page * side->scale_page_stride + (int64_t)token * heads + head;
    if (side->scale_dtype == OCT_DTYPE_F16) {
        return decode_f16(GET(((const uint16_t *)side->token_scale)[at]));
    }
    return GET(((const float *)side->token_scale)[at]);
}

/* A static scale of the head; 1 where there is none, where it lies beside the page, or where it goes by channel. */
DEV float static_scale(const oct__dev_side *side, uint32_t head)
{
    switch (side->scale_mode) {
    case OCT_SCALE_TENSOR:
    case OCT_SCALE_LAYER:
        return GET(side->scale[0]);
    case OCT_SCALE_LAYER_HEAD:
        return GET(side->scale[head]);
    default:
        return 1.0f;
    }
}

#endif
