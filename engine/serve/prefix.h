/* The prefix cache: which pages store which beginning of a text. A radix tree whose edges are pages of tokens; a child is found by a hash of
 * its tokens and then compared token by token, so that two texts of one hash never share a page. Layers with a sliding window have pages of
 * their own, which a node may lose before its page of full attention goes. One thread at a time. */
#ifndef OCTE_SERVE_PREFIX_H
#define OCTE_SERVE_PREFIX_H

#include <stddef.h>

#include "engine/serve/pages.h"

enum { OCTE__POOL_FULL = 0, OCTE__POOL_WINDOW = 1, OCTE__POOLS = 2 };

/* A node is the full page it stores, so that nothing need be allocated for it; the root stores none. */
typedef int32_t octe__node;
enum { OCTE__ROOT = -1, OCTE__NO_NODE = -2 };

/* A node's page has n_tokens of the pool's page_size; one with fewer has no children. */
typedef struct octe__prefix_node {
    octe__node parent, first_child, next_sibling, previous_sibling, next_in_bucket;
    uint64_t hash;
    uint32_t n_tokens;              /* 0: this page is in no tree */
    int32_t window_page;            /* OCTE__NO_PAGE: none, or gone */
} octe__prefix_node;

typedef uint64_t octe__prefix_hash(const int32_t *tokens, uint32_t n);

typedef struct octe__prefix {
    octe__pages *pool[OCTE__POOLS];   /* of the caller; [OCTE__POOL_WINDOW] NULL without window layers */
    uint32_t page_size, window_tokens;
    octe__prefix_hash *hash;
    octe__prefix_node *nodes;         /* [pages of the full pool] */
    int32_t *tokens;                  /* [pages of the full pool][page_size] */
    octe__node *bucket;               /* [n_buckets], a power of two */
    octe__node *node_of_window;       /* [pages of the window pool] */
    size_t n_buckets;
    octe__node first_at_root;
    uint64_t n_evicted[OCTE__POOLS];
} octe__prefix;

/* hash NULL: a good one. False: no memory. On false, too, the caller closes. */
bool octe__prefix_open(octe__prefix *prefix, octe__pages *full, octe__pages *window, uint32_t page_size, uint32_t window_tokens, octe__prefix_hash *hash);
void octe__prefix_close(octe__prefix *prefix);

/* First page of a pool that a query at position n_tokens can see. */
uint32_t octe__first_visible_page(uint32_t n_tokens, uint32_t window_tokens, uint32_t page_size);

/* What is stored of a text's beginning. n_tokens is a multiple of granule (a multiple of the page size) and `node` its last page; of a child
 * of `node`, `partial`, n_partial tokens follow: a page to copy from, OCTE__NO_NODE when there is none. */
typedef struct octe__prefix_match {
    uint32_t n_tokens, n_partial;
    octe__node node, partial;
} octe__prefix_match;

/* The longest beginning of tokens[n] that can serve: the window's pages must be there too. partial false: whole pages only. Changes nothing. */
octe__prefix_match octe__prefix_find(const octe__prefix *prefix, const int32_t *tokens, uint32_t n, uint32_t granule, bool partial);

/* The node of these tokens below parent: an old one, or a new one of the pages given, which are kept from now on. window_page may be
 * OCTE__NO_PAGE; an old node that has lost its window page takes it. A page with n < page_size tokens gets no node (OCTE__NO_NODE) where a child of
 * parent begins with the same. */
octe__node octe__prefix_insert(octe__prefix *prefix, octe__node parent, const int32_t *tokens, uint32_t n, int32_t full_page, int32_t window_page);

/* Makes the cached page free that was used longest ago; false: none is cached. Held pages never go. */
bool octe__prefix_evict(octe__prefix *prefix, int pool);

/* Forgets everything that nobody holds. */
void octe__prefix_clear(octe__prefix *prefix);

#endif
