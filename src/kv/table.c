/* table.c: see table.h. Nothing here costs more than the pages it speaks of: free pages are a stack, pages that were
 * never handed out are only counted, and statistics are kept up to date by every change. */
#include "kv/table.h"

#include <stdbool.h>
#include <string.h>

#include "host/error.h"

enum { PAGE_SIZE_MAX = 1024, LIST_CAPACITY_MIN = 16 };

/* A sequence is empty when its length is 0; then it has no page either. */
typedef struct sequence {
    int32_t *pages;          /* [capacity], n_pages in use; the first n_given_back are OCT_PAGE_NONE */
    uint32_t capacity;
    uint32_t n_pages;
    uint32_t n_given_back;
    uint32_t length;
} sequence;

struct oct_kv_table {
    const oct__allocator *allocator;
    uint32_t page_size;
    uint32_t max_sequences;
    uint32_t window_tokens;
    int64_t n_pages;
    int64_t n_fresh;         /* pages from this one on were never handed out */
    int64_t n_stacked;
    int32_t *stack;          /* [n_pages]: free pages that were handed out before, the next one on top */
    uint32_t *refcount;      /* [n_pages] */
    sequence *sequences;     /* [max_sequences] */
    int64_t n_shared, n_tokens, n_copied;
    uint32_t n_sequences;
};

/* ---- making ------------------------------------------------------------------------------------------- */

oct_status oct__kv_table_options_check(const oct_kv_table_options *options, const char *key_n_pages, const char *where, oct_error *error)
{
    if (options->page_size == 0 || options->page_size > PAGE_SIZE_MAX) {
        return oct__error_set(error, OCT_INVALID_ARGUMENT, where, "options.page_size is %u; must be from 1 to %d tokens",
                              options->page_size, PAGE_SIZE_MAX);
    }
    const int64_t most = INT32_MAX / options->page_size;
    if (options->n_pages < 1 || options->n_pages > most) {
        return oct__error_set(error, OCT_INVALID_ARGUMENT, where, "%s is %lld; must be from 1 to %lld: slots of %u tokens a page are int32",
                              key_n_pages, (long long)options->n_pages, (long long)most, options->page_size);
    }
    if (options->max_sequences == 0) {
        return oct__error_set(error, OCT_INVALID_ARGUMENT, where, "options.max_sequences is 0; must be at least 1");
    }
    if (options->window_tokens > INT32_MAX) {
        return oct__error_set(error, OCT_INVALID_ARGUMENT, where, "options.window_tokens is %u; must be at most %d (0: no window)",
                              options->window_tokens, INT32_MAX);
    }
    return OCT_OK;
}

OCT_API void oct_kv_table_destroy(oct_kv_table *table)
{
    if (table == NULL) {
        return;
    }
    const oct__allocator *allocator = table->allocator;
    const size_t n_pages = (size_t)table->n_pages;
    if (table->sequences != NULL) {
        for (uint32_t i = 0; i < table->max_sequences; i++) {
            oct__memory_free(allocator, table->sequences[i].pages, table->sequences[i].capacity * sizeof(int32_t));
        }
    }
    oct__memory_free(allocator, table->sequences, table->max_sequences * sizeof(sequence));
    oct__memory_free(allocator, table->refcount, n_pages * sizeof(*table->refcount));
    oct__memory_free(allocator, table->stack, n_pages * sizeof(*table->stack));
    oct__memory_free(allocator, table, sizeof(*table));
}

oct_kv_table *oct__kv_table_make(const oct__allocator *allocator, const oct_kv_table_options *checked)
{
    oct_kv_table *table = oct__memory_alloc_zeroed(allocator, 1, sizeof(*table));
    if (table == NULL) {
        return NULL;
    }
    table->allocator = allocator;
    table->page_size = checked->page_size;
    table->max_sequences = checked->max_sequences;
    table->window_tokens = checked->window_tokens;
    table->n_pages = checked->n_pages;
    table->stack = oct__memory_alloc_zeroed(allocator, (size_t)checked->n_pages, sizeof(*table->stack));
    table->refcount = oct__memory_alloc_zeroed(allocator, (size_t)checked->n_pages, sizeof(*table->refcount));
    table->sequences = oct__memory_alloc_zeroed(allocator, checked->max_sequences, sizeof(sequence));
    if (table->stack == NULL || table->refcount == NULL || table->sequences == NULL) {
        oct_kv_table_destroy(table);
        return NULL;
    }
    return table;
}

oct_status oct__kv_table_create(const oct__allocator *allocator, const oct_kv_table_options *options, oct_kv_table **table,
                                oct_error *error)
{
    static const char where[] = "oct_kv_table_create";
    *table = NULL;
    const oct_status status = oct__kv_table_options_check(options, "options.n_pages", where, error);
    if (status != OCT_OK) {
        return status;
    }
    *table = oct__kv_table_make(allocator, options);
    if (*table == NULL) {
        return oct__error_set(error, OCT_OUT_OF_MEMORY, where, "no memory for a table of %lld pages and %u sequences",
                              (long long)options->n_pages, options->max_sequences);
    }
    return OCT_OK;
}

/* ---- pages -------------------------------------------------------------------------------------------- */

static int64_t n_free(const oct_kv_table *table)
{
    return table->n_pages - table->n_fresh + table->n_stacked;
}

/* The caller has made sure that one is free. The one freed last comes first: its bytes may still be in a cache. */
static int32_t page_take(oct_kv_table *table)
{
    const int32_t page = table->n_stacked > 0 ? table->stack[--table->n_stacked] : (int32_t)table->n_fresh++;
    table->refcount[page] = 1;
    return page;
}

static void page_share(oct_kv_table *table, int32_t page)
{
    if (++table->refcount[page] == 2) {
        table->n_shared++;
    }
}

static void page_release(oct_kv_table *table, int32_t page)
{
    const uint32_t left = --table->refcount[page];
    if (left == 1) {
        table->n_shared--;
    } else if (left == 0) {
        table->stack[table->n_stacked++] = page;
    }
}

/* Pages that n_tokens tokens fill or begin. */
static uint32_t pages_for(const oct_kv_table *table, uint32_t n_tokens)
{
    return (uint32_t)(((uint64_t)n_tokens + table->page_size - 1) / table->page_size);
}

/* The first page that a query at position >= n_tokens can still see (the window counts the query's own token), or that
 * takes the next token. */
static uint32_t first_visible_page(const oct_kv_table *table, uint32_t n_tokens)
{
    if (table->window_tokens == 0 || n_tokens < table->window_tokens) {
        return 0;
    }
    return (n_tokens - table->window_tokens + 1) / table->page_size;
}

/* Whether a sequence cut to n_tokens (<= its length) has lost no page that matters. */
static bool has_visible_pages(const oct_kv_table *table, const sequence *s, uint32_t n_tokens)
{
    const uint32_t first = first_visible_page(table, n_tokens);
    return first >= s->n_given_back || first >= pages_for(table, n_tokens);
}

static sequence *find(const oct_kv_table *table, uint32_t id)
{
    return table != NULL && id < table->max_sequences ? &table->sequences[id] : NULL;
}

static void set_length(oct_kv_table *table, sequence *s, uint32_t length)
{
    table->n_tokens += (int64_t)length - s->length;
    table->n_sequences += (length > 0) - (s->length > 0);
    s->length = length;
}

/* Room for n_pages in the list. Doubling keeps the cost of an append constant; the room stays with the sequence id. */
static bool list_grow(oct_kv_table *table, sequence *s, uint32_t n_pages)
{
    if (n_pages <= s->capacity) {
        return true;
    }
    uint32_t capacity = s->capacity < LIST_CAPACITY_MIN / 2 ? LIST_CAPACITY_MIN : 2 * s->capacity; /* n_pages < 2^31: no overflow */
    if (capacity < n_pages) {
        capacity = n_pages;
    }
    int32_t *pages = oct__memory_alloc(table->allocator, capacity * sizeof(*pages), sizeof(*pages));
    if (pages == NULL) {
        return false;
    }
    if (s->n_pages > 0) {
        memcpy(pages, s->pages, s->n_pages * sizeof(*pages));
    }
    oct__memory_free(table->allocator, s->pages, s->capacity * sizeof(*pages));
    s->pages = pages;
    s->capacity = capacity;
    return true;
}

/* ---- append ------------------------------------------------------------------------------------------- */

static bool copies_last(const oct_kv_table *table, const sequence *s, uint32_t n_tokens)
{
    return n_tokens > 0 && s->length % table->page_size != 0 && table->refcount[s->pages[s->n_pages - 1]] > 1;
}

static int64_t pages_needed(const oct_kv_table *table, const sequence *s, uint32_t n_tokens)
{
    const int64_t n_pages = ((int64_t)s->length + n_tokens + table->page_size - 1) / table->page_size;
    return n_pages - s->n_pages + copies_last(table, s, n_tokens);
}

OCT_API int64_t oct_kv_table_pages_needed(const oct_kv_table *table, uint32_t sequence_id, uint32_t n_tokens)
{
    const sequence *s = find(table, sequence_id);
    return s == NULL ? -1 : pages_needed(table, s, n_tokens);
}

oct_status oct__kv_table_append_prepare(oct_kv_table *table, uint32_t sequence_id, uint32_t n_tokens, oct__kv_append *append)
{
    sequence *s = find(table, sequence_id);
    if (s == NULL || n_tokens > INT32_MAX - s->length) { /* positions are int32 */
        return OCT_INVALID_ARGUMENT;
    }
    if (pages_needed(table, s, n_tokens) > n_free(table)) {
        return OCT_OUT_OF_PAGES;
    }
    *append = (oct__kv_append){
        .sequence = sequence_id,
        .n_tokens = n_tokens,
        .first_page = s->length / table->page_size,
        .n_pages = pages_for(table, s->length + n_tokens),
        .copies_last = copies_last(table, s, n_tokens),
    };
    return list_grow(table, s, append->n_pages) ? OCT_OK : OCT_OUT_OF_MEMORY;
}

static void slots_fill(const oct_kv_table *table, const sequence *s, uint32_t n_tokens, int32_t *slots)
{
    uint32_t index = s->length / table->page_size, offset = s->length % table->page_size;
    while (n_tokens > 0) {
        const uint32_t room = table->page_size - offset, n = n_tokens < room ? n_tokens : room;
        const int32_t first = s->pages[index++] * (int32_t)table->page_size + (int32_t)offset;
        for (uint32_t i = 0; i < n; i++) {
            *slots++ = first + (int32_t)i;
        }
        n_tokens -= n;
        offset = 0;
    }
}

void oct__kv_table_append_commit(oct_kv_table *table, const oct__kv_append *append, int32_t *slots, oct_kv_copy *copy)
{
    sequence *s = &table->sequences[append->sequence];
    if (append->copies_last) {
        int32_t *last = &s->pages[s->n_pages - 1];
        *copy = (oct_kv_copy){.from = *last, .to = page_take(table)};
        page_release(table, *last);
        *last = copy->to;
        table->n_copied++;
    }
    while (s->n_pages < append->n_pages) {
        s->pages[s->n_pages++] = page_take(table);
    }
    if (slots != NULL) {
        slots_fill(table, s, append->n_tokens, slots);
    }
    set_length(table, s, s->length + append->n_tokens);
}

OCT_API oct_status oct_kv_table_append(oct_kv_table *table, uint32_t sequence_id, uint32_t n_tokens, int32_t *slots, oct_kv_copy *copies,
                                       uint32_t *n_copies)
{
    oct__kv_append append;
    if (n_copies != NULL) {
        *n_copies = 0;
    }
    const oct_status status = oct__kv_table_append_prepare(table, sequence_id, n_tokens, &append);
    if (status != OCT_OK) {
        return status;
    }
    if (append.copies_last) {
        if (copies == NULL || n_copies == NULL) {
            return OCT_INVALID_ARGUMENT; /* nobody would make the copy */
        }
        *n_copies = 1;
    }
    oct__kv_table_append_commit(table, &append, slots, copies);
    return OCT_OK;
}

/* ---- share, cut, give back ---------------------------------------------------------------------------- */

OCT_API oct_status oct_kv_table_share(oct_kv_table *table, uint32_t from, uint32_t to, uint32_t n_tokens)
{
    const sequence *source = find(table, from);
    sequence *target = find(table, to);
    if (source == NULL || target == NULL || target->length != 0 || n_tokens > source->length ||
        !has_visible_pages(table, source, n_tokens)) {
        return OCT_INVALID_ARGUMENT;
    }
    if (n_tokens == 0) {
        return OCT_OK;
    }
    const uint32_t n_pages = pages_for(table, n_tokens);
    if (!list_grow(table, target, n_pages)) {
        return OCT_OUT_OF_MEMORY;
    }
    memcpy(target->pages, source->pages, n_pages * sizeof(*target->pages));
    target->n_pages = n_pages;
    target->n_given_back = source->n_given_back < n_pages ? source->n_given_back : n_pages;
    for (uint32_t i = target->n_given_back; i < n_pages; i++) {
        page_share(table, target->pages[i]);
    }
    set_length(table, target, n_tokens);
    return OCT_OK;
}

OCT_API oct_status oct_kv_table_truncate(oct_kv_table *table, uint32_t sequence_id, uint32_t n_tokens)
{
    sequence *s = find(table, sequence_id);
    if (s == NULL || n_tokens > s->length || !has_visible_pages(table, s, n_tokens)) {
        return OCT_INVALID_ARGUMENT;
    }
    const uint32_t n_pages = pages_for(table, n_tokens);
    while (s->n_pages > n_pages) { /* from the end, so that the next sequence gets them in ascending order */
        const int32_t page = s->pages[--s->n_pages];
        if (page != OCT_PAGE_NONE) {
            page_release(table, page);
        }
    }
    if (s->n_given_back > n_pages) {
        s->n_given_back = n_pages;
    }
    set_length(table, s, n_tokens);
    return OCT_OK;
}

OCT_API oct_status oct_kv_table_free(oct_kv_table *table, uint32_t sequence_id)
{
    return oct_kv_table_truncate(table, sequence_id, 0);
}

OCT_API oct_status oct_kv_table_slide(oct_kv_table *table, uint32_t sequence_id)
{
    sequence *s = find(table, sequence_id);
    if (s == NULL) {
        return OCT_INVALID_ARGUMENT;
    }
    const uint32_t first = first_visible_page(table, s->length);
    while (s->n_given_back < first) {
        int32_t *page = &s->pages[s->n_given_back++];
        page_release(table, *page);
        *page = OCT_PAGE_NONE;
    }
    return OCT_OK;
}

/* ---- reading ------------------------------------------------------------------------------------------ */

OCT_API const int32_t *oct_kv_table_pages(const oct_kv_table *table, uint32_t sequence_id, uint32_t *n_pages)
{
    static const int32_t none = OCT_PAGE_NONE; /* an empty list is no NULL, so that it may be copied */
    const sequence *s = find(table, sequence_id);
    if (n_pages != NULL) {
        *n_pages = s == NULL ? 0 : s->n_pages;
    }
    if (s == NULL) {
        return NULL;
    }
    return s->pages == NULL ? &none : s->pages;
}

OCT_API uint32_t oct_kv_table_length(const oct_kv_table *table, uint32_t sequence_id)
{
    const sequence *s = find(table, sequence_id);
    return s == NULL ? 0 : s->length;
}

OCT_API uint32_t oct_kv_table_refcount(const oct_kv_table *table, int32_t page)
{
    return table == NULL || page < 0 || page >= table->n_pages ? 0 : table->refcount[page];
}

oct_kv_table_stats oct__kv_table_stats(const oct_kv_table *table)
{
    return (oct_kv_table_stats){
        .struct_size = (uint32_t)sizeof(oct_kv_table_stats),
        .n_sequences = table->n_sequences,
        .n_pages = table->n_pages,
        .n_free = n_free(table),
        .n_used = table->n_pages - n_free(table),
        .n_shared = table->n_shared,
        .n_tokens = table->n_tokens,
        .n_copied = table->n_copied,
    };
}
