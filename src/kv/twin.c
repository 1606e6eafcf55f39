/* twin.c: see twin.h. Both tables see the same calls, so at one index of one sequence's lists stand a full page and its
 * window page, and whoever holds the window page holds the full page: the window only ever gives back earlier. */
#include "kv/twin.h"

#include "host/error.h"
#include "kv/table.h"

struct oct_kv_twin {
    const oct__allocator *allocator;
    oct_kv_table *full, *window;
    uint32_t page_size;
    int64_t n_pages_full, n_pages_window;
    /* Partners as of the last append to a page. Never cleared: an entry counts only while both pages are in use and
     * name each other, and a page taken again is written here again. */
    int32_t *window_of_full;   /* [n_pages_full] */
    int32_t *full_of_window;   /* [n_pages_window] */
};

OCT_API void oct_kv_twin_destroy(oct_kv_twin *twin)
{
    if (twin == NULL) {
        return;
    }
    oct_kv_table_destroy(twin->full);
    oct_kv_table_destroy(twin->window);
    oct__memory_free(twin->allocator, twin->window_of_full, (size_t)twin->n_pages_full * sizeof(int32_t));
    oct__memory_free(twin->allocator, twin->full_of_window, (size_t)twin->n_pages_window * sizeof(int32_t));
    oct__memory_free(twin->allocator, twin, sizeof(*twin));
}

oct_status oct__kv_twin_create(const oct__allocator *allocator, const oct_kv_twin_options *options, oct_kv_twin **twin, oct_error *error)
{
    static const char where[] = "oct_kv_twin_create";
    *twin = NULL;
    if (options->window_tokens == 0) {
        return oct__error_set(error, OCT_INVALID_ARGUMENT, where, "options.window_tokens is 0; must be at least 1");
    }
    oct_kv_table_options full = {
        .struct_size = (uint32_t)sizeof(full),
        .page_size = options->page_size,
        .n_pages = options->n_pages_full,
        .max_sequences = options->max_sequences,
    };
    oct_kv_table_options window = full;
    window.n_pages = options->n_pages_window;
    window.window_tokens = options->window_tokens;
    oct_status status = oct__kv_table_options_check(&full, "options.n_pages_full", where, error);
    if (status == OCT_OK) {
        status = oct__kv_table_options_check(&window, "options.n_pages_window", where, error);
    }
    if (status != OCT_OK) {
        return status;
    }

    oct_kv_twin *made = oct__memory_alloc_zeroed(allocator, 1, sizeof(*made));
    if (made != NULL) {
        made->allocator = allocator;
        made->page_size = options->page_size;
        made->n_pages_full = full.n_pages;
        made->n_pages_window = window.n_pages;
        made->full = oct__kv_table_make(allocator, &full);
        made->window = oct__kv_table_make(allocator, &window);
        made->window_of_full = oct__memory_alloc_zeroed(allocator, (size_t)full.n_pages, sizeof(int32_t));
        made->full_of_window = oct__memory_alloc_zeroed(allocator, (size_t)window.n_pages, sizeof(int32_t));
    }
    if (made == NULL || made->full == NULL || made->window == NULL || made->window_of_full == NULL || made->full_of_window == NULL) {
        oct_kv_twin_destroy(made);
        return oct__error_set(error, OCT_OUT_OF_MEMORY, where, "no memory for tables of %lld and %lld pages and %u sequences",
                              (long long)full.n_pages, (long long)window.n_pages, full.max_sequences);
    }
    *twin = made;
    return OCT_OK;
}

OCT_API oct_status oct_kv_twin_append(oct_kv_twin *twin, uint32_t sequence, uint32_t n_tokens, int32_t *slots, int32_t *slots_window,
                                      oct_kv_copy copies[2], uint32_t n_copies[2])
{
    oct__kv_append full, window;
    if (n_copies != NULL) {
        n_copies[0] = n_copies[1] = 0;
    }
    if (twin == NULL) {
        return OCT_INVALID_ARGUMENT;
    }
    oct_status status = oct__kv_table_append_prepare(twin->full, sequence, n_tokens, &full);
    if (status == OCT_OK) {
        status = oct__kv_table_append_prepare(twin->window, sequence, n_tokens, &window);
    }
    if (status != OCT_OK) {
        return status;
    }
    if (full.copies_last || window.copies_last) {
        if (copies == NULL || n_copies == NULL) {
            return OCT_INVALID_ARGUMENT; /* nobody would make the copies */
        }
        n_copies[0] = full.copies_last;
        n_copies[1] = window.copies_last;
    }
    oct__kv_table_append_commit(twin->full, &full, slots, copies);
    oct__kv_table_append_commit(twin->window, &window, slots_window, copies == NULL ? NULL : copies + 1);

    const int32_t *full_pages = oct_kv_table_pages(twin->full, sequence, NULL);
    const int32_t *window_pages = oct_kv_table_pages(twin->window, sequence, NULL);
    for (uint32_t i = full.first_page; i < full.n_pages; i++) { /* a page that takes tokens is never one given back */
        twin->window_of_full[full_pages[i]] = window_pages[i];
        twin->full_of_window[window_pages[i]] = full_pages[i];
    }
    return OCT_OK;
}

OCT_API oct_status oct_kv_twin_share(oct_kv_twin *twin, uint32_t from, uint32_t to, uint32_t n_tokens)
{
    if (twin == NULL) {
        return OCT_INVALID_ARGUMENT;
    }
    oct_status status = oct_kv_table_share(twin->full, from, to, n_tokens);
    if (status != OCT_OK) {
        return status;
    }
    status = oct_kv_table_share(twin->window, from, to, n_tokens);
    if (status != OCT_OK) {
        oct_kv_table_free(twin->full, to); /* `to` was empty, so that is all there is to undo */
    }
    return status;
}

OCT_API oct_status oct_kv_twin_truncate(oct_kv_twin *twin, uint32_t sequence, uint32_t n_tokens)
{
    /* Lengths are the same in both, and only the window can have lost pages. */
    if (twin == NULL || oct_kv_table_truncate(twin->window, sequence, n_tokens) != OCT_OK) {
        return OCT_INVALID_ARGUMENT;
    }
    return oct_kv_table_truncate(twin->full, sequence, n_tokens);
}

OCT_API oct_status oct_kv_twin_free(oct_kv_twin *twin, uint32_t sequence)
{
    return oct_kv_twin_truncate(twin, sequence, 0);
}

OCT_API oct_status oct_kv_twin_slide(oct_kv_twin *twin, uint32_t sequence)
{
    return twin == NULL ? OCT_INVALID_ARGUMENT : oct_kv_table_slide(twin->window, sequence);
}

static int32_t map_page(const oct_kv_twin *twin, int32_t full_page)
{
    if (oct_kv_table_refcount(twin->full, full_page) == 0) { /* free, or no page at all */
        return OCT_PAGE_NONE;
    }
    const int32_t window_page = twin->window_of_full[full_page];
    const int is_partner = oct_kv_table_refcount(twin->window, window_page) > 0 && twin->full_of_window[window_page] == full_page;
    return is_partner ? window_page : OCT_PAGE_NONE;
}

OCT_API oct_status oct_kv_twin_map(const oct_kv_twin *twin, const int32_t *slots, int64_t n, int32_t *slots_window)
{
    if (twin == NULL || n < 0 || (n > 0 && (slots == NULL || slots_window == NULL))) {
        return OCT_INVALID_ARGUMENT;
    }
    const int32_t page_size = (int32_t)twin->page_size;
    for (int64_t i = 0; i < n; i++) {
        const int32_t window_page = slots[i] < 0 ? OCT_PAGE_NONE : map_page(twin, slots[i] / page_size);
        slots_window[i] = window_page == OCT_PAGE_NONE ? -1 : window_page * page_size + slots[i] % page_size;
    }
    return OCT_OK;
}

OCT_API const oct_kv_table *oct_kv_twin_full(const oct_kv_twin *twin)
{
    return twin == NULL ? NULL : twin->full;
}

OCT_API const oct_kv_table *oct_kv_twin_window(const oct_kv_twin *twin)
{
    return twin == NULL ? NULL : twin->window;
}
