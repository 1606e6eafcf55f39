/* cache_file.c: owns the file that keeps a prefix cache between runs: a header that says whose pages these are, then each page after the one it continues.
 * The numbers are this machine's own (little-endian); pages mean nothing to another model or format anyway. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/engine_state.h"
#include "engine/report.h"
#include "engine/serve/runner_state.h"
#include "engine/serve/scheduler_state.h"
#include "host/file.h"

typedef struct header {
    char magic[8];
    uint64_t owner;              /* of model, format, scales and the way rows are computed */
    uint64_t page_bytes[2];
    uint32_t page_size, n_nodes;
    uint64_t body_bytes, body_sum, header_sum;   /* header_sum: of what stands before it */
} header;

/* What stands before a page's tokens. */
typedef struct record {
    int32_t parent;              /* a record before this one, or -1 */
    uint32_t has_window;
} record;

static const char magic[8] = "OCTPAGE1";

/* FNV-1a by eight bytes, a multiply for each: enough against damage, and as fast as the disk. */
static uint64_t sum(uint64_t h, const void *data, size_t n)
{
    const unsigned char *bytes = data;
    for (; n >= 8; n -= 8, bytes += 8) {
        uint64_t word;
        memcpy(&word, bytes, 8);
        h = (h ^ word) * 1099511628211u;
        h ^= h >> 29;
    }
    for (; n > 0; n--, bytes++) {
        h = (h ^ *bytes) * 1099511628211u;
    }
    return h;
}

static uint64_t sum_scales(uint64_t h, const oct_kv_format *f, const float *scale, uint32_t heads, uint32_t dim)
{
    const size_t n = f->scale_mode == OCT_SCALE_LAYER_HEAD ? heads : f->scale_mode == OCT_SCALE_CHANNEL ? (size_t)heads * dim : 1;
    return scale != NULL ? sum(h, scale, n * sizeof(*scale)) : h;
}

/* Two models of one shape and name differ in their weights: pieces of the file are part of it. */
static bool owner_of(const octe_runner *r, uint64_t *owner)
{
    enum { N_PIECES = 64, PIECE_BYTES = 4096 };
    const octe_engine *e = r->engine;
    const octe_model_info *info = octe_model_info_get(e->model);
    const oct_kv_spec *spec = &e->cache.spec;
    const uint32_t numbers[] = {spec->layout, spec->heads, spec->dim_k, spec->dim_v, spec->page_size, e->window_tokens, info->n_layers, info->n_vocab, e->options.deterministic,
                                e->options.deterministic ? r->scheduler->options.chunk_tokens : 0};
    uint64_t h = sum(14695981039346656037u, numbers, sizeof(numbers));
    h = sum(sum(h, &spec->k, sizeof(spec->k)), &spec->v, sizeof(spec->v));
    h = sum(sum(h, &info->file_bytes, sizeof(info->file_bytes)), &e->options.test.rope_base_window, sizeof(float));
    for (uint32_t il = 0; il < e->cache.n_layers; il++) {
        const oct_kv_layer *l = &e->cache.layers[il];
        if (e->options.kv.layers != NULL) {
            h = sum(sum(h, &l->spec.k, sizeof(l->spec.k)), &l->spec.v, sizeof(l->spec.v));
        }
        h = sum_scales(sum_scales(h, &l->spec.k, l->k_scale, spec->heads, spec->dim_k), &l->spec.v, l->v_scale, spec->heads, spec->dim_v);
    }
    FILE *file = fopen(info->path, "rb");
    unsigned char piece[PIECE_BYTES];
    for (uint64_t i = 0; file != NULL && i < N_PIECES; i++) {
        if (fseek(file, (long)(info->file_bytes / N_PIECES * i), SEEK_SET) != 0) {
            break;
        }
        h = sum(h, piece, fread(piece, 1, sizeof(piece), file));
    }
    const bool there = file != NULL;
    if (there) {
        (void)fclose(file);
    }
    *owner = h;
    return there;
}

static size_t record_bytes(const octe_scheduler *s, const size_t page_bytes[2], bool window)
{
    return sizeof(record) + s->options.page_size * sizeof(int32_t) + page_bytes[OCTE_POOL_FULL] + (window ? page_bytes[OCTE_POOL_WINDOW] : 0);
}

/* The next whole page of the tree, a page before those that continue it; OCTE__NO_NODE after the last. */
static octe__node next_node(const octe__prefix *x, octe__node node)
{
    octe__node next = node == OCTE__ROOT ? x->first_at_root : x->nodes[node].first_child;
    for (;;) {
        while (next != OCTE__NO_NODE && x->nodes[next].n_tokens < x->page_size) {
            next = x->nodes[next].next_sibling;
        }
        if (next != OCTE__NO_NODE || node == OCTE__ROOT) {
            return next;
        }
        next = x->nodes[node].next_sibling;
        node = x->nodes[node].parent;
    }
}

enum { BY_PATH = -1 };   /* no descriptor */

/* Writes nodes[n], each after its parent, to the file of this name in a folder, or to a path. */
static oct_status write_nodes(octe_runner *r, const octe__node *nodes, uint32_t n, int folder, const char *path, uint64_t *n_bytes, oct_error *error)
{
    static const char where[] = "octe_runner_save";
    const octe_scheduler *s = r->scheduler;
    const octe__prefix *x = &s->prefix;
    const size_t page_bytes[2] = {octe_engine_page_bytes(r->engine, OCTE_POOL_FULL), octe_engine_page_bytes(r->engine, OCTE_POOL_WINDOW)};
    header h = {.page_bytes = {page_bytes[0], page_bytes[1]}, .page_size = s->options.page_size};
    memcpy(h.magic, magic, sizeof(magic));
    if (!owner_of(r, &h.owner)) {
        return octe__report(error, OCT_IO_ERROR, where, NULL, "the model's file can't be read any more");
    }
    for (uint32_t i = 0; i < n; i++) {
        h.body_bytes += record_bytes(s, page_bytes, x->nodes[nodes[i]].window_page != OCTE__NO_PAGE);
    }
    unsigned char *const all = malloc(sizeof(h) + h.body_bytes), *at = all + sizeof(h);
    int32_t *const place = malloc((size_t)s->pages[OCTE__POOL_FULL].n * sizeof(*place));
    oct_status status = all != NULL && place != NULL ? OCT_OK : octe__report(error, OCT_OUT_OF_MEMORY, where, path, "no memory for %" PRIu64 " bytes", h.body_bytes);
    for (uint32_t i = 0; status == OCT_OK && i < n; i++) {
        const octe__node node = nodes[i];
        const octe__prefix_node *self = &x->nodes[node];
        const record head = {self->parent == OCTE__ROOT ? -1 : place[self->parent], self->window_page != OCTE__NO_PAGE};
        memcpy(at, &head, sizeof(head));
        at += sizeof(head);
        memcpy(at, x->tokens + (size_t)node * x->page_size, x->page_size * sizeof(int32_t));
        at += x->page_size * sizeof(int32_t);
        (void)octe_engine_page_read(r->engine, OCTE_POOL_FULL, node, at);
        at += page_bytes[OCTE_POOL_FULL];
        if (head.has_window) {
            (void)octe_engine_page_read(r->engine, OCTE_POOL_WINDOW, self->window_page, at);
            at += page_bytes[OCTE_POOL_WINDOW];
        }
        place[node] = (int32_t)h.n_nodes++;
    }
    if (status == OCT_OK) {
        h.body_sum = sum(14695981039346656037u, all + sizeof(h), h.body_bytes);
        h.header_sum = sum(14695981039346656037u, &h, offsetof(header, header_sum));
        memcpy(all, &h, sizeof(h));
        status = folder == BY_PATH ? oct__file_write(path, all, sizeof(h) + h.body_bytes, error) : oct__file_write_in(folder, path, all, sizeof(h) + h.body_bytes, error);
        *n_bytes = sizeof(h) + h.body_bytes;
    }
    free(all);
    free(place);
    return status;
}

oct_status octe_runner_save(octe_runner *r, const char *path, uint64_t *n_pages, oct_error *error)
{
    const octe__prefix *x = &r->scheduler->prefix;
    octe__node *const nodes = malloc((size_t)r->scheduler->pages[OCTE__POOL_FULL].n * sizeof(*nodes));
    uint32_t n = 0;
    uint64_t n_bytes;
    *n_pages = 0;
    if (nodes == NULL) {
        return octe__report(error, OCT_OUT_OF_MEMORY, "octe_runner_save", path, "no memory for a list of %" PRId64 " pages", r->scheduler->pages[OCTE__POOL_FULL].n);
    }
    for (octe__node node = next_node(x, OCTE__ROOT); node != OCTE__NO_NODE; node = next_node(x, node)) {
        nodes[n++] = node;
    }
    const oct_status status = write_nodes(r, nodes, n, BY_PATH, path, &n_bytes, error);
    *n_pages = status == OCT_OK ? n : 0;
    free(nodes);
    return status;
}

oct_status octe_runner_save_prefix(octe_runner *r, const int32_t *tokens, uint32_t n_tokens, int folder, const char *name, octe_prefix_moved *moved, oct_error *error)
{
    const octe_scheduler *s = r->scheduler;
    const octe__prefix *x = &s->prefix;
    *moved = (octe_prefix_moved){0};
    if (!s->options.prefix_cache) {
        return octe__report(error, OCT_INVALID_ARGUMENT, "octe_runner_save_prefix", name, "there is no prefix cache");
    }
    const octe__prefix_match found = octe__prefix_find(x, tokens, n_tokens, s->options.deterministic ? s->options.chunk_tokens : s->options.page_size, false);
    const uint32_t n = found.n_tokens / s->options.page_size;
    octe__node *const nodes = malloc((n + 1) * sizeof(*nodes));
    if (nodes == NULL) {
        return octe__report(error, OCT_OUT_OF_MEMORY, "octe_runner_save_prefix", name, "no memory for a list of %u pages", n);
    }
    octe__node node = found.node;
    for (uint32_t i = n; i-- > 0; node = x->nodes[node].parent) {
        nodes[i] = node;
    }
    const oct_status status = n > 0 ? write_nodes(r, nodes, n, folder, name, &moved->n_bytes, error) : OCT_OK;
    moved->n_tokens = status == OCT_OK ? found.n_tokens : 0;
    free(nodes);
    return status;
}

/* Everything is looked at before anything is taken over. */
static oct_status check(const octe_runner *r, const char *path, const unsigned char *data, size_t n, header *h, oct_error *error)
{
    static const char where[] = "octe_runner_restore";
    const octe_scheduler *s = r->scheduler;
    const size_t page_bytes[2] = {octe_engine_page_bytes(r->engine, OCTE_POOL_FULL), octe_engine_page_bytes(r->engine, OCTE_POOL_WINDOW)};
    uint64_t owner;
    if (n < sizeof(*h) || memcmp(data, magic, sizeof(magic)) != 0) {
        return octe__report(error, OCT_BAD_DATA, where, path, "is no file of cached pages of this version");
    }
    memcpy(h, data, sizeof(*h));
    if (h->header_sum != sum(14695981039346656037u, h, offsetof(header, header_sum)) || h->body_bytes != n - sizeof(*h) ||
        h->body_sum != sum(14695981039346656037u, data + sizeof(*h), n - sizeof(*h))) {
        return octe__report(error, OCT_BAD_DATA, where, path, "is damaged or cut off");
    }
    if (!owner_of(r, &owner) || h->owner != owner || h->page_size != s->options.page_size || h->page_bytes[0] != page_bytes[0] || h->page_bytes[1] != page_bytes[1]) {
        return octe__report(error, OCT_BAD_DATA, where, path, "has pages of another model, cache format or mode");
    }
    const uint32_t n_vocab = octe_model_info_get(r->engine->model)->n_vocab;
    size_t at = sizeof(*h);
    for (uint32_t i = 0; i < h->n_nodes; i++) {
        record head;
        if (n - at < sizeof(head)) {
            return octe__report(error, OCT_BAD_DATA, where, path, "ends in page %u of %u", i, h->n_nodes);
        }
        memcpy(&head, data + at, sizeof(head));
        const size_t bytes = record_bytes(s, page_bytes, head.has_window != 0);
        if (n - at < bytes || head.parent < -1 || head.parent >= (int32_t)i || head.has_window > (s->options.window_tokens > 0)) {
            return octe__report(error, OCT_BAD_DATA, where, path, "page %u of %u is wrong", i, h->n_nodes);
        }
        for (uint32_t t = 0; t < h->page_size; t++) {
            int32_t token;
            memcpy(&token, data + at + sizeof(head) + t * sizeof(token), sizeof(token));
            if (token < 0 || (uint32_t)token >= n_vocab) {
                return octe__report(error, OCT_BAD_DATA, where, path, "page %u of %u has token %" PRId32, i, h->n_nodes, token);
            }
        }
        at += bytes;
    }
    return at == n ? OCT_OK : octe__report(error, OCT_BAD_DATA, where, path, "has %zu bytes too many", n - at);
}

/* A page for what is read; of the others the one used longest ago goes. */
static int32_t take_page(octe_scheduler *s, int pool)
{
    const int32_t page = octe__pages_take(&s->pages[pool]);
    return page == OCTE__NO_PAGE && octe__prefix_evict(&s->prefix, pool) ? octe__pages_take(&s->pages[pool]) : page;
}

/* Pages taken here are held until all are in, and let go from the end: so children are older than what they continue. Returns how many pages of the file the cache has
 * now; *n_new: of these, those that it had not. */
static uint32_t take_over(octe_runner *r, const unsigned char *data, const header *h, octe__node *nodes, int32_t *windows, uint64_t *n_new)
{
    octe_scheduler *s = r->scheduler;
    octe__pages *const full = &s->pages[OCTE__POOL_FULL], *const window = &s->pages[OCTE__POOL_WINDOW];
    const unsigned char *at = data + sizeof(*h);
    int32_t *const tokens = malloc(h->page_size * sizeof(*tokens));
    uint32_t n = 0, n_there = 0;
    for (; tokens != NULL && n < h->n_nodes; n++) {
        record head;
        memcpy(&head, at, sizeof(head));
        memcpy(tokens, at + sizeof(head), h->page_size * sizeof(*tokens));
        at += sizeof(head) + h->page_size * sizeof(*tokens);
        const octe__node parent = head.parent < 0 ? OCTE__ROOT : nodes[head.parent];
        const int32_t page = parent == OCTE__NO_NODE ? OCTE__NO_PAGE : take_page(s, OCTE__POOL_FULL);
        int32_t window_page = page != OCTE__NO_PAGE && head.has_window ? take_page(s, OCTE__POOL_WINDOW) : OCTE__NO_PAGE;
        nodes[n] = OCTE__NO_NODE;
        if (page != OCTE__NO_PAGE) {
            (void)octe_engine_page_write(r->engine, OCTE_POOL_FULL, page, at);
            if (window_page != OCTE__NO_PAGE) {
                (void)octe_engine_page_write(r->engine, OCTE_POOL_WINDOW, window_page, at + h->page_bytes[OCTE_POOL_FULL]);
            }
            nodes[n] = octe__prefix_insert(&s->prefix, parent, tokens, h->page_size, page, window_page);
            if (nodes[n] != page) {   /* it was there */
                octe__pages_hold(full, nodes[n]);
                octe__pages_release(full, page);
            } else {
                ++*n_new;
            }
            n_there++;
        }
        windows[n] = window_page;
        at += h->page_bytes[OCTE_POOL_FULL] + (head.has_window ? h->page_bytes[OCTE_POOL_WINDOW] : 0);
    }
    while (n-- > 0) {
        if (windows[n] != OCTE__NO_PAGE) {
            octe__pages_release(window, windows[n]);
        }
        if (nodes[n] != OCTE__NO_NODE) {
            octe__pages_release(full, nodes[n]);
        }
    }
    free(tokens);
    return n_there;
}

/* file BY_PATH: opens the path. */
static oct_status restore(octe_runner *r, int file, const char *path, uint64_t *n_new, octe_prefix_moved *moved, oct_error *error)
{
    static const char where[] = "octe_runner_restore";
    const octe_scheduler *s = r->scheduler;
    char *data = NULL;
    size_t n = 0;
    header h;
    *n_new = 0;
    *moved = (octe_prefix_moved){0};
    if (!s->options.prefix_cache) {
        return octe__report(error, OCT_INVALID_ARGUMENT, where, path, "there is no prefix cache to restore it into");
    }
    const oct__allocator plain = {0};
    oct_status status = file == BY_PATH ? oct__file_read(&plain, path, SIZE_MAX / 2, &data, &n, error) : oct__file_read_open(&plain, file, path, SIZE_MAX / 2, &data, &n, error);
    if (status != OCT_OK) {
        return status;
    }
    status = check(r, path, (const unsigned char *)data, n, &h, error);
    if (status == OCT_OK && h.n_nodes > 0) {
        octe__node *const nodes = malloc(h.n_nodes * sizeof(*nodes));
        int32_t *const windows = malloc(h.n_nodes * sizeof(*windows));
        if (nodes != NULL && windows != NULL) {
            *moved = (octe_prefix_moved){take_over(r, (const unsigned char *)data, &h, nodes, windows, n_new) * h.page_size, n};
        } else {
            status = octe__report(error, OCT_OUT_OF_MEMORY, where, path, "no memory for the records of %u pages", h.n_nodes);
        }
        free(nodes);
        free(windows);
    }
    oct__file_release(&plain, data, n);
    return status;
}

oct_status octe_runner_restore(octe_runner *r, const char *path, uint64_t *n_pages, oct_error *error)
{
    octe_prefix_moved moved;
    return restore(r, BY_PATH, path, n_pages, &moved, error);
}

oct_status octe_runner_restore_prefix(octe_runner *r, int file, const char *name, octe_prefix_moved *moved, oct_error *error)
{
    uint64_t n_new;
    return restore(r, file, name, &n_new, moved, error);
}
