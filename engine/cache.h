/* An engine's cache: the pools of full-attention layers and of window layers, the tables that hand out their pages, the static scales.
 * One thread at a time changes it; layers' views are read by every thread of a step. */
#ifndef OCTE_CACHE_H
#define OCTE_CACHE_H

#include "engine/kv_config.h"

/* Tokens of a page where nobody says: vLLM's default, and what the CPU kernels walk best. */
enum { OCTE__PAGE_SIZE = 16 };

/* Which of the two kinds of layers. */
typedef enum octe__group { OCTE__FULL = 0, OCTE__WINDOW = 1, OCTE__GROUPS = 2 } octe__group;

/* Layers of one group and one pair of formats: they share a pool, and a plan. */
typedef struct octe__kind {
    octe__group group;
    uint32_t n_layers;
    oct_kv_spec spec;
    oct_kv_pool *pool;
} octe__kind;

typedef struct octe__cache {
    oct_context *context;
    oct_kv_spec spec;                      /* of the config's own k and v; layout, heads, dims and page size are every kind's */
    uint32_t n_layers, max_sequences, window_tokens;
    int64_t n_pages[OCTE__GROUPS];         /* of each layer of the group */
    uint32_t n_in_group[OCTE__GROUPS];     /* layers */
    uint32_t n_kinds;
    octe__kind kinds[OCTE_KV_MAX_KINDS];   /* full layers' before window layers' */
    oct_kv_table *table;                   /* without window layers */
    oct_kv_twin *twin;                     /* with */
    oct_kv_layer *layers;                  /* [n_layers] views */
    uint8_t *group;                        /* [n_layers] octe__group */
    uint8_t *kind;                         /* [n_layers] index of kinds */
    int64_t n_copied;
} octe__cache;

typedef struct octe__cache_options {
    const octe_kv_config *config;
    uint32_t max_sequences, max_step_rows, window_tokens;   /* window_tokens 0: no window layers */
    uint32_t *max_context_tokens;   /* in: 0 for the model's; out: what the pool bears */
    int64_t pool_tokens;
    uint64_t pool_bytes;
} octe__cache_options;

/* The spec that a config means for a layer of a model; checked. */
oct_status octe__kv_spec(const octe_model_info *info, const octe_kv_config *config, uint32_t layer, oct_kv_spec *spec, oct_error *error);

/* Most pages that a resting sequence holds in the window pool. */
uint64_t octe__window_pages(uint32_t window_tokens, uint32_t page_size);

/* On an error the caller still calls octe__cache_close. */
oct_status octe__cache_open(octe__cache *cache, oct_context *context, const octe_model *model, const octe__cache_options *options, oct_error *error);
void octe__cache_close(octe__cache *cache);

/* The table of a group, for reading. */
const oct_kv_table *octe__cache_table(const octe__cache *cache, octe__group group);
uint32_t octe__cache_length(const octe__cache *cache, uint32_t sequence);

/* Room for n_tokens more; slots: int32[n_tokens] of each group that has layers. Copies shared pages that would be written. OUT_OF_PAGES
 * says what is needed and free, and changes nothing. */
oct_status octe__cache_append(octe__cache *cache, uint32_t sequence, uint32_t n_tokens, int32_t *slots, int32_t *slots_window, oct_error *error);
oct_status octe__cache_truncate(octe__cache *cache, uint32_t sequence, uint32_t n_tokens);
oct_status octe__cache_share(octe__cache *cache, uint32_t from, uint32_t to, uint32_t n_tokens);
oct_status octe__cache_free(octe__cache *cache, uint32_t sequence);

/* Copies a page of a group in all its layers; OK for a group without layers. */
oct_status octe__cache_copy_page(octe__cache *cache, octe__group group, int32_t from, int32_t to);

/* Gives back what the window no longer sees. */
void octe__cache_slide(octe__cache *cache, uint32_t sequence);

#endif
