/* prefix.c: see prefix.h. A request that holds a node's page holds all pages above it, and lets go from the end; so in the list of cached pages a
 * node comes after its children, and the oldest is always a leaf. */
#include "engine/serve/prefix.h"

#include <stdlib.h>
#include <string.h>

/* FNV-1a by words, with a last mix so that the low bits that choose a bucket see all of it. */
static uint64_t default_hash(const int32_t *tokens, uint32_t n)
{
    uint64_t h = 14695981039346656037u;
    for (uint32_t i = 0; i < n; i++) {
        h = (h ^ (uint32_t)tokens[i]) * 1099511628211u;
    }
    h ^= h >> 32;
    h *= 0x9E3779B97F4A7C15u;
    return h ^ (h >> 29);
}

bool octe__prefix_open(octe__prefix *x, octe__pages *full, octe__pages *window, uint32_t page_size, uint32_t window_tokens, octe__prefix_hash *hash)
{
    *x = (octe__prefix){.pool = {full, window}, .page_size = page_size, .window_tokens = window_tokens, .hash = hash != NULL ? hash : default_hash};
    x->first_at_root = OCTE__NO_NODE;
    x->n_buckets = 16;
    while (x->n_buckets < (size_t)full->n) {
        x->n_buckets *= 2;
    }
    x->nodes = calloc((size_t)full->n, sizeof(*x->nodes));
    x->tokens = calloc((size_t)full->n, page_size * sizeof(*x->tokens));
    x->bucket = malloc(x->n_buckets * sizeof(*x->bucket));
    x->node_of_window = window != NULL ? calloc((size_t)window->n, sizeof(*x->node_of_window)) : NULL;
    if (x->nodes == NULL || x->tokens == NULL || x->bucket == NULL || (window != NULL && x->node_of_window == NULL)) {
        return false;
    }
    for (size_t i = 0; i < x->n_buckets; i++) {
        x->bucket[i] = OCTE__NO_NODE;
    }
    return true;
}

void octe__prefix_close(octe__prefix *x)
{
    free(x->nodes);
    free(x->tokens);
    free(x->bucket);
    free(x->node_of_window);
    *x = (octe__prefix){0};
}

uint32_t octe__first_visible_page(uint32_t n_tokens, uint32_t window_tokens, uint32_t page_size)
{
    return window_tokens == 0 || n_tokens < window_tokens ? 0 : (n_tokens - window_tokens + 1) / page_size;
}

static const int32_t *tokens_of(const octe__prefix *x, octe__node node) { return x->tokens + (size_t)node * x->page_size; }

static octe__node *bucket_of(const octe__prefix *x, octe__node parent, uint64_t hash)
{
    const uint64_t mixed = hash ^ ((uint64_t)(uint32_t)(parent + 1) * 0x9E3779B97F4A7C15u);
    return &x->bucket[(mixed ^ (mixed >> 32)) & (x->n_buckets - 1)];
}

static octe__node first_child(const octe__prefix *x, octe__node parent) { return parent == OCTE__ROOT ? x->first_at_root : x->nodes[parent].first_child; }

/* The child of parent that stores exactly this page. */
static octe__node find_child(const octe__prefix *x, octe__node parent, const int32_t *tokens, uint64_t hash)
{
    octe__node node = *bucket_of(x, parent, hash);
    while (node != OCTE__NO_NODE &&
           (x->nodes[node].hash != hash || x->nodes[node].parent != parent || memcmp(tokens_of(x, node), tokens, x->page_size * sizeof(*tokens)) != 0)) {
        node = x->nodes[node].next_in_bucket;
    }
    return node;
}

static uint32_t common(const int32_t *a, uint32_t n_a, const int32_t *b, uint32_t n_b)
{
    const uint32_t most = n_a < n_b ? n_a : n_b;
    uint32_t n = 0;
    while (n < most && a[n] == b[n]) {
        n++;
    }
    return n;
}

/* Siblings are looked at one by one for a partial page, the newest first; thousands of short texts must not cost a step its time. */
enum { MAX_SIBLINGS_TRIED = 256 };

/* The child of parent that begins with most of tokens[n]. */
static octe__node nearest_child(const octe__prefix *x, octe__node parent, const int32_t *tokens, uint32_t n, uint32_t *n_common)
{
    octe__node best = OCTE__NO_NODE;
    int tried = 0;
    *n_common = 0;
    for (octe__node node = first_child(x, parent); node != OCTE__NO_NODE && tried++ < MAX_SIBLINGS_TRIED; node = x->nodes[node].next_sibling) {
        const uint32_t k = common(tokens_of(x, node), x->nodes[node].n_tokens, tokens, n);
        if (k > *n_common && (x->pool[OCTE__POOL_WINDOW] == NULL || x->nodes[node].window_page != OCTE__NO_PAGE)) {
            best = node;
            *n_common = k;
        }
    }
    return best;
}

octe__prefix_match octe__prefix_find(const octe__prefix *x, const int32_t *tokens, uint32_t n, uint32_t granule, bool partial)
{
    const bool window = x->pool[OCTE__POOL_WINDOW] != NULL;
    octe__prefix_match best = {0, 0, OCTE__ROOT, OCTE__NO_NODE};
    octe__node node = OCTE__ROOT;
    uint32_t depth = 0, run = 0;   /* run: nodes up to here that have their window page */
    while ((uint64_t)(depth + 1) * x->page_size <= n) {
        const int32_t *page = tokens + (size_t)depth * x->page_size;
        const octe__node child = find_child(x, node, page, x->hash(page, x->page_size));
        if (child == OCTE__NO_NODE) {
            break;
        }
        node = child;
        depth++;
        run = x->nodes[node].window_page != OCTE__NO_PAGE ? run + 1 : 0;
        const uint32_t so_far = depth * x->page_size;
        if (so_far % granule == 0 && (!window || run >= depth - octe__first_visible_page(so_far, x->window_tokens, x->page_size))) {
            best.n_tokens = so_far;
            best.node = node;
        }
    }
    const uint32_t so_far = depth * x->page_size;
    if (partial && best.n_tokens == so_far && so_far < n) {
        best.partial = nearest_child(x, node, tokens + so_far, n - so_far, &best.n_partial);
        /* A partial page stands one page further: the window may see no page fewer before it, so the whole pages' check holds for it. */
    }
    return best;
}

static void link_node(octe__prefix *x, octe__node node, octe__node parent)
{
    octe__prefix_node *self = &x->nodes[node];
    octe__node *first = parent == OCTE__ROOT ? &x->first_at_root : &x->nodes[parent].first_child;
    self->parent = parent;
    self->previous_sibling = OCTE__NO_NODE;
    self->next_sibling = *first;
    if (*first != OCTE__NO_NODE) {
        x->nodes[*first].previous_sibling = node;
    }
    *first = node;
    if (self->n_tokens == x->page_size) {
        octe__node *bucket = bucket_of(x, parent, self->hash);
        self->next_in_bucket = *bucket;
        *bucket = node;
    }
}

static void unlink_node(octe__prefix *x, octe__node node)
{
    const octe__prefix_node *self = &x->nodes[node];
    octe__node *first = self->parent == OCTE__ROOT ? &x->first_at_root : &x->nodes[self->parent].first_child;
    *(self->previous_sibling == OCTE__NO_NODE ? first : &x->nodes[self->previous_sibling].next_sibling) = self->next_sibling;
    if (self->next_sibling != OCTE__NO_NODE) {
        x->nodes[self->next_sibling].previous_sibling = self->previous_sibling;
    }
    if (self->n_tokens == x->page_size) {
        octe__node *at = bucket_of(x, self->parent, self->hash);
        while (*at != node) {
            at = &x->nodes[*at].next_in_bucket;
        }
        *at = self->next_in_bucket;
    }
}

static void take_window_page(octe__prefix *x, octe__node node, int32_t page)
{
    x->nodes[node].window_page = page;
    if (page != OCTE__NO_PAGE) {
        x->node_of_window[page] = node;
        octe__pages_keep(x->pool[OCTE__POOL_WINDOW], page);
    }
}

octe__node octe__prefix_insert(octe__prefix *x, octe__node parent, const int32_t *tokens, uint32_t n, int32_t full_page, int32_t window_page)
{
    const bool whole = n == x->page_size;
    const uint64_t hash = whole ? x->hash(tokens, n) : 0;
    if (whole) {
        const octe__node old = find_child(x, parent, tokens, hash);
        if (old != OCTE__NO_NODE) {
            if (x->nodes[old].window_page == OCTE__NO_PAGE && window_page != OCTE__NO_PAGE) {
                take_window_page(x, old, window_page);
            }
            return old;
        }
    } else {
        uint32_t n_common;
        if (nearest_child(x, parent, tokens, n, &n_common) != OCTE__NO_NODE && n_common == n) {
            return OCTE__NO_NODE;
        }
    }
    x->nodes[full_page] = (octe__prefix_node){.first_child = OCTE__NO_NODE, .next_in_bucket = OCTE__NO_NODE, .hash = hash, .n_tokens = n};
    memcpy(x->tokens + (size_t)full_page * x->page_size, tokens, n * sizeof(*tokens));
    link_node(x, full_page, parent);
    octe__pages_keep(x->pool[OCTE__POOL_FULL], full_page);
    take_window_page(x, full_page, window_page);
    return full_page;
}

static void drop_window_page(octe__prefix *x, octe__node node)
{
    const int32_t page = x->nodes[node].window_page;
    if (page != OCTE__NO_PAGE) {
        x->nodes[node].window_page = OCTE__NO_PAGE;
        octe__pages_forget(x->pool[OCTE__POOL_WINDOW], page);
    }
}

bool octe__prefix_evict(octe__prefix *x, int pool)
{
    const int32_t page = x->pool[pool]->oldest;
    if (page == OCTE__NO_PAGE) {
        return false;
    }
    x->n_evicted[pool]++;
    if (pool == OCTE__POOL_WINDOW) {
        drop_window_page(x, x->node_of_window[page]);
        return true;
    }
    drop_window_page(x, page);
    unlink_node(x, page);
    x->nodes[page].n_tokens = 0;
    octe__pages_forget(x->pool[OCTE__POOL_FULL], page);
    return true;
}

void octe__prefix_clear(octe__prefix *x)
{
    while (octe__prefix_evict(x, OCTE__POOL_FULL)) {
    }
}
