/* Page tables: who has which page of a pool. Bookkeeping only: no page's bytes are touched here. */
#ifndef OCTAVO_PAGE_H
#define OCTAVO_PAGE_H

#include "octavo/context.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Hands out the pages of one pool (or of several pools of one geometry) to sequences, with reference counts. With a window,
 * pages that no future query can see are given back, and the sequence's table holds OCT_PAGE_NONE there.
 * One thread at a time. */
typedef struct oct_kv_table oct_kv_table;

#define OCT_PAGE_NONE (-1)

typedef struct oct_kv_table_options {
    uint32_t struct_size;
    uint32_t page_size;         /* tokens */
    int64_t n_pages;
    uint32_t max_sequences;     /* sequence ids are 0 .. max_sequences - 1 */
    uint32_t window_tokens;     /* 0: keep everything; else the attention window, the token itself included */
} oct_kv_table_options;

typedef struct oct_kv_table_stats {
    uint32_t struct_size;
    uint32_t n_sequences;
    int64_t n_pages, n_free, n_used, n_shared;   /* used + free == pages; shared: reference count > 1 */
    int64_t n_tokens;                            /* sum of the lengths of live sequences */
    int64_t n_copied;                            /* pages copied on write since creation */
} oct_kv_table_stats;

/* A page that must be copied before it is written: every layer's K, V and scales of page `from` go to page `to`. */
typedef struct oct_kv_copy { int32_t from, to; } oct_kv_copy;

OCT_API oct_status oct_kv_table_create(oct_context *context, const oct_kv_table_options *options, oct_kv_table **table, oct_error *error);
OCT_API void oct_kv_table_destroy(oct_kv_table *table);

/* Makes room for n_tokens more of a sequence and writes their slots. All or nothing: OUT_OF_PAGES and OUT_OF_MEMORY change nothing.
 * slots: int32[n_tokens], may be NULL. copies: the pages to copy first (a shared, partly filled last page); at most one per call, `n_copies` is set to 0 or 1.
 * Several sequences' copies are made in the order of their appends, before any token is written. INVALID_ARGUMENT when a page must be copied and
 * copies or n_copies is NULL, or when the length would pass 2^31 - 1. */
OCT_API oct_status oct_kv_table_append(oct_kv_table *table, uint32_t sequence, uint32_t n_tokens, int32_t *slots, oct_kv_copy *copies, uint32_t *n_copies);

/* Pages that an append of n_tokens to the sequence would take now; -1 for an unknown sequence. */
OCT_API int64_t oct_kv_table_pages_needed(const oct_kv_table *table, uint32_t sequence, uint32_t n_tokens);

/* The empty sequence `to` becomes a copy of the first n_tokens of `from`, sharing its pages. INVALID_ARGUMENT when `to` is not empty,
 * n_tokens exceeds the length, or (with a window) a page of the visible tail was already given back. */
OCT_API oct_status oct_kv_table_share(oct_kv_table *table, uint32_t from, uint32_t to, uint32_t n_tokens);

/* Cuts the sequence to n_tokens (<= length) and frees pages past it. INVALID_ARGUMENT if that would expose pages already given back. */
OCT_API oct_status oct_kv_table_truncate(oct_kv_table *table, uint32_t sequence, uint32_t n_tokens);
OCT_API oct_status oct_kv_table_free(oct_kv_table *table, uint32_t sequence);

/* With a window: gives back the pages that no query at position >= length can see. No-op without a window. */
OCT_API oct_status oct_kv_table_slide(oct_kv_table *table, uint32_t sequence);

/* Pages of a sequence from key 0 on (OCT_PAGE_NONE where given back); valid until the next call that changes the table. */
OCT_API const int32_t *oct_kv_table_pages(const oct_kv_table *table, uint32_t sequence, uint32_t *n_pages);
OCT_API uint32_t oct_kv_table_length(const oct_kv_table *table, uint32_t sequence);
OCT_API uint32_t oct_kv_table_refcount(const oct_kv_table *table, int32_t page);
OCT_API oct_status oct_kv_table_stats_get(const oct_kv_table *table, oct_kv_table_stats *stats);

/* ---- twin tables: full-attention layers and sliding-window layers of one model ------------------------------ */

/* Two tables for one set of sequences: `full` keeps every token, `window` (a pool of its own, usually far smaller) only what the
 * window still sees. Each call acts on both or on neither. One thread at a time. */
typedef struct oct_kv_twin oct_kv_twin;

typedef struct oct_kv_twin_options {
    uint32_t struct_size;
    uint32_t page_size;            /* tokens, both pools */
    int64_t n_pages_full;
    int64_t n_pages_window;
    uint32_t max_sequences;
    uint32_t window_tokens;        /* >= 1 */
} oct_kv_twin_options;

OCT_API oct_status oct_kv_twin_create(oct_context *context, const oct_kv_twin_options *options, oct_kv_twin **twin, oct_error *error);
OCT_API void oct_kv_twin_destroy(oct_kv_twin *twin);

/* As oct_kv_table_append, for both pools at once; copies[0], n_copies[0] speak of the full pool, [1] of the window pool. */
OCT_API oct_status oct_kv_twin_append(oct_kv_twin *twin, uint32_t sequence, uint32_t n_tokens, int32_t *slots, int32_t *slots_window,
                                      oct_kv_copy copies[2], uint32_t n_copies[2]);
OCT_API oct_status oct_kv_twin_share(oct_kv_twin *twin, uint32_t from, uint32_t to, uint32_t n_tokens);
OCT_API oct_status oct_kv_twin_truncate(oct_kv_twin *twin, uint32_t sequence, uint32_t n_tokens);
OCT_API oct_status oct_kv_twin_free(oct_kv_twin *twin, uint32_t sequence);
OCT_API oct_status oct_kv_twin_slide(oct_kv_twin *twin, uint32_t sequence);

/* The window pool's slot of each full-pool slot; -1 where the window has let it go or the slot is negative, free or out of range. */
OCT_API oct_status oct_kv_twin_map(const oct_kv_twin *twin, const int32_t *slots, int64_t n, int32_t *slots_window);

/* The two tables, for reading pages, lengths and statistics; change them through the twin only. */
OCT_API const oct_kv_table *oct_kv_twin_full(const oct_kv_twin *twin);
OCT_API const oct_kv_table *oct_kv_twin_window(const oct_kv_twin *twin);

#ifdef __cplusplus
}
#endif
#endif
