/* table.h: owns who has which page: free pages, reference counts, and the page list of every sequence.
 *
 * Threads: one at a time, as octavo/page.h says. */
#ifndef OCT_KV_TABLE_H
#define OCT_KV_TABLE_H

#include "host/memory.h"
#include "octavo/page.h"

/* oct_kv_table_create with the allocator of its context, which outlives the table. The door in src/api has checked the pointers and
 * read the options, so they have this library's size. */
oct_status oct__kv_table_create(const oct__allocator *allocator, const oct_kv_table_options *options, oct_kv_table **table,
                                oct_error *error);

/* The check and the making apart, for tables within something larger: key_n_pages names the option at fault. */
oct_status oct__kv_table_options_check(const oct_kv_table_options *options, const char *key_n_pages, const char *where, oct_error *error);
oct_kv_table *oct__kv_table_make(const oct__allocator *allocator, const oct_kv_table_options *checked); /* NULL: no memory */

/* Kept up to date by every change, so reading them costs nothing. */
oct_kv_table_stats oct__kv_table_stats(const oct_kv_table *table);

/* An append in two steps, so that two tables can do it together or not at all. */
typedef struct oct__kv_append {
    uint32_t sequence, n_tokens;
    uint32_t first_page;    /* index of the first page that the tokens go to */
    uint32_t n_pages;       /* of the sequence, afterwards */
    uint32_t copies_last;   /* 1: the last page is shared and partly filled, so it is copied on write */
} oct__kv_append;

/* Fills *append if the table can do it; OUT_OF_PAGES, OUT_OF_MEMORY or INVALID_ARGUMENT if it can't. May enlarge the
 * room for the sequence's list, changes nothing else. */
oct_status oct__kv_table_append_prepare(oct_kv_table *table, uint32_t sequence, uint32_t n_tokens, oct__kv_append *append);

/* Does it; nothing may have changed the table in between. slots: NULL or int32[n_tokens]. copy: written if copies_last. */
void oct__kv_table_append_commit(oct_kv_table *table, const oct__kv_append *append, int32_t *slots, oct_kv_copy *copy);

#endif
