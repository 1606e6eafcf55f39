/* spec.h: owns what a legal spec is, and the sizes that follow from one.
 *
 * Threads: pure functions, any thread. */
#ifndef OCT_KV_SPEC_H
#define OCT_KV_SPEC_H

#include <stdint.h>

#include "octavo/kv.h"

/* oct_kv_spec_check for a caller of its own name: errors speak of `key` ("options.spec") and of the public function `where`. */
oct_status oct__kv_spec_check(const oct_kv_spec *spec, const char *key, const char *where, oct_error *error);

/* OK when n_pages pages of this (legal) spec have int32 slots and a layer's bytes fit the address space; least: the
 * smallest n_pages that makes sense to the caller. */
oct_status oct__kv_n_pages_check(int64_t n_pages, int64_t least, const oct_kv_spec *spec, const char *key, const char *where,
                                 oct_error *error);

/* oct_kv_layer_init for a legal spec and n_pages. */
void oct__kv_layer_fill(oct_kv_layer *layer, const oct_kv_spec *spec, int64_t n_pages);

/* What one page of one layer of a legal spec is made of. */
typedef struct oct__kv_page_parts {
    uint64_t k_bytes, v_bytes;
    uint64_t k_token_scale_bytes, v_token_scale_bytes; /* 0 unless TOKEN_HEAD */
} oct__kv_page_parts;

oct__kv_page_parts oct__kv_page_parts_of(const oct_kv_spec *spec);

/* Numbers in the static scale of one layer's K (which 0) or V (1); 0 for NONE and TOKEN_HEAD. The spec is legal. */
uint64_t oct__kv_static_scales(const oct_kv_spec *spec, uint32_t which);

/* "token_head"; "unknown" for a value that is no oct_scale_mode. Static texts. */
const char *oct__scale_mode_name(uint32_t scale_mode);

#endif
