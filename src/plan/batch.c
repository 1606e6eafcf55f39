/* batch.c: see batch.h.
 *
 * The lengths are checked and copied first, which gives the number of pages; then the pages. Pages are most of the work of an update, so
 * their loop has no branch: it folds all faults into one word, and only a batch that has one is walked again for its name. */
#include "plan/batch.h"

#include <inttypes.h>
#include <stdbool.h>
#include <string.h>

#include "host/error.h"
#include "octavo/page.h"

/* Where the page ids of sequence b stand in the caller's arrays. */
static const int32_t *given_pages(const oct_attn_batch *given, uint32_t b)
{
    return given->block_table != NULL ? given->block_table + (int64_t)b * given->max_pages : given->kv_indices + given->kv_indptr[b];
}

static oct_status check_pointers(const oct_attn_batch *given, const char *where, oct_error *error)
{
    const bool padded = given->block_table != NULL || given->seq_lens != NULL;
    const bool compressed = given->kv_indptr != NULL || given->kv_indices != NULL || given->kv_last_page_len != NULL;
    if (given->n_pages < 0) {
        return oct__error_set(error, OCT_INVALID_ARGUMENT, where, "batch.n_pages is %" PRId64 "; must be >= 0", given->n_pages);
    }
    if (given->qo_indptr == NULL && given->n_sequences > 0) {
        return oct__error_set(error, OCT_INVALID_ARGUMENT, where, "batch.qo_indptr is NULL");
    }
    if (given->n_sequences > INT32_MAX) {
        return oct__error_set(error, OCT_INVALID_ARGUMENT, where, "batch.n_sequences is %" PRIu32 "; must be below 2^31", given->n_sequences);
    }
    if (given->qo_indptr != NULL && given->qo_indptr[0] != 0) {
        return oct__error_set(error, OCT_INVALID_ARGUMENT, where, "batch.qo_indptr[0] is %" PRId32 "; must be 0", given->qo_indptr[0]);
    }
    if (padded && compressed) {
        return oct__error_set(error, OCT_INVALID_ARGUMENT, where, "batch holds both a block_table or seq_lens and a kv_indptr, kv_indices or kv_last_page_len; give one form");
    }
    if (given->n_sequences == 0) {
        return OCT_OK;
    }
    if (!padded && !compressed) {
        return oct__error_set(error, OCT_INVALID_ARGUMENT, where, "batch holds neither block_table and seq_lens nor kv_indptr, kv_indices and kv_last_page_len");
    }
    if (padded) {
        if (given->seq_lens == NULL) {
            return oct__error_set(error, OCT_INVALID_ARGUMENT, where, "batch.block_table is given, batch.seq_lens is NULL");
        }
        if (given->max_pages < 0) {
            return oct__error_set(error, OCT_INVALID_ARGUMENT, where, "batch.max_pages is %" PRId64 "; must be >= 0", given->max_pages);
        }
        return OCT_OK;
    }
    if (given->kv_indptr == NULL || given->kv_last_page_len == NULL) {
        return oct__error_set(error, OCT_INVALID_ARGUMENT, where, "batch.%s is NULL", given->kv_indptr == NULL ? "kv_indptr" : "kv_last_page_len");
    }
    if (given->kv_indptr[0] != 0) {
        return oct__error_set(error, OCT_INVALID_ARGUMENT, where, "batch.kv_indptr[0] is %" PRId32 "; must be 0", given->kv_indptr[0]);
    }
    return OCT_OK;
}

/* The length of sequence b and its number of pages. */
static oct_status read_length(const oct_attn_batch *given, uint32_t b, int64_t page_size, int64_t *length, int64_t *n_pages, const char *where, oct_error *error)
{
    if (given->seq_lens != NULL) {
        *length = given->seq_lens[b];
        *n_pages = (*length + page_size - 1) / page_size;
        if (*length < 0) {
            return oct__error_set(error, OCT_INVALID_ARGUMENT, where, "sequence %" PRIu32 ": batch.seq_lens is %" PRId64 "; must be >= 0", b, *length);
        }
        if (*n_pages > given->max_pages) {
            return oct__error_set(error, OCT_INVALID_ARGUMENT, where,
                                  "sequence %" PRIu32 ": batch.seq_lens is %" PRId64 ", but batch.max_pages %" PRId64 " x page size %" PRId64 " hold only %" PRId64 " keys",
                                  b, *length, given->max_pages, page_size, given->max_pages * page_size);
        }
        if (*n_pages > 0 && given->block_table == NULL) {
            return oct__error_set(error, OCT_INVALID_ARGUMENT, where, "sequence %" PRIu32 ": batch.seq_lens is %" PRId64 ", but batch.block_table is NULL", b, *length);
        }
        return OCT_OK;
    }
    *n_pages = (int64_t)given->kv_indptr[b + 1] - given->kv_indptr[b];
    const int64_t last = given->kv_last_page_len[b];
    if (*n_pages < 0) {
        return oct__error_set(error, OCT_INVALID_ARGUMENT, where, "sequence %" PRIu32 ": batch.kv_indptr falls from %" PRId32 " to %" PRId32, b, given->kv_indptr[b],
                              given->kv_indptr[b + 1]);
    }
    if (*n_pages == 0 && last != 0) {
        return oct__error_set(error, OCT_INVALID_ARGUMENT, where, "sequence %" PRIu32 ": batch.kv_last_page_len is %" PRId64 " without a page; must be 0", b, last);
    }
    if (*n_pages > 0 && (last < 1 || last > page_size)) {
        return oct__error_set(error, OCT_INVALID_ARGUMENT, where, "sequence %" PRIu32 ": batch.kv_last_page_len is %" PRId64 "; must be 1..%" PRId64 ", the page size", b, last,
                              page_size);
    }
    if (*n_pages > 0 && given->kv_indices == NULL) {
        return oct__error_set(error, OCT_INVALID_ARGUMENT, where, "sequence %" PRIu32 " has %" PRId64 " pages, but batch.kv_indices is NULL", b, *n_pages);
    }
    *length = *n_pages == 0 ? 0 : (*n_pages - 1) * page_size + last;
    if (*length > INT32_MAX) {
        return oct__error_set(error, OCT_INVALID_ARGUMENT, where, "sequence %" PRIu32 " has %" PRId64 " keys; must be below 2^31", b, *length);
    }
    return OCT_OK;
}

static oct_status read_lengths(oct__batch *batch, const oct_attn_spec *spec, const oct_attn_batch *given, const char *where, oct_error *error)
{
    int32_t *qo_indptr = batch->qo_indptr.memory, *kv_len = batch->kv_len.memory;
    int64_t *page_offset = batch->page_offset.memory;
    qo_indptr[0] = 0;
    page_offset[0] = 0;
    for (uint32_t b = 0; b < given->n_sequences; b++) {
        int64_t length = 0, n_pages = 0;
        /* Each pair in order, and the first 0: no value can be negative. */
        const int64_t n_rows = (int64_t)given->qo_indptr[b + 1] - given->qo_indptr[b];
        if (n_rows < 0) {
            return oct__error_set(error, OCT_INVALID_ARGUMENT, where, "sequence %" PRIu32 ": batch.qo_indptr falls from %" PRId32 " to %" PRId32, b, given->qo_indptr[b],
                                  given->qo_indptr[b + 1]);
        }
        const oct_status status = read_length(given, b, spec->kv.page_size, &length, &n_pages, where, error);
        if (status != OCT_OK) {
            return status;
        }
        qo_indptr[b + 1] = given->qo_indptr[b + 1];
        kv_len[b] = (int32_t)length;
        page_offset[b + 1] = page_offset[b] + n_pages;
        batch->n_keys += length;
        batch->longest_rows = n_rows > batch->longest_rows ? (int32_t)n_rows : batch->longest_rows;
    }
    batch->n_rows = qo_indptr[given->n_sequences];
    return OCT_OK;
}

/* Leading pages of sequence b that none of its rows can see. */
static int64_t unseen_pages(const oct__batch *batch, const oct_attn_spec *spec, uint32_t b)
{
    const int32_t *qo_indptr = batch->qo_indptr.memory, *kv_len = batch->kv_len.memory;
    const int64_t *page_offset = batch->page_offset.memory;
    const int64_t n_pages = page_offset[b + 1] - page_offset[b], n_rows = (int64_t)qo_indptr[b + 1] - qo_indptr[b];
    if (n_rows == 0) {
        return n_pages;
    }
    /* The first row sees furthest back. */
    const int64_t first_key = spec->window_tokens > 0 ? kv_len[b] - n_rows - (int64_t)spec->window_tokens + 1 : 0;
    const int64_t unseen = first_key > 0 ? first_key / spec->kv.page_size : 0;
    return unseen < n_pages ? unseen : n_pages;
}

/* Copies n ids; false when one is below `least` or not below `limit`. *end: raised above the largest id. */
static bool copy_pages(int32_t *to, const int32_t *from, int64_t n, int32_t least, int32_t limit, int64_t *end)
{
    int32_t smallest = INT32_MAX, largest = INT32_MIN;
    for (int64_t i = 0; i < n; i++) {
        const int32_t page = from[i];
        to[i] = page;
        smallest = page < smallest ? page : smallest;
        largest = page > largest ? page : largest;
    }
    if (n > 0 && (int64_t)largest + 1 > *end) {
        *end = (int64_t)largest + 1;
    }
    return n == 0 || (smallest >= least && largest < limit);
}

static oct_status name_bad_page(const int32_t *from, int64_t n, int64_t n_unseen, int64_t limit, uint32_t b, const char *where, oct_error *error)
{
    for (int64_t i = 0; i < n; i++) {
        if (from[i] < 0 || from[i] >= limit) {
            if (from[i] == OCT_PAGE_NONE && i < n_unseen) {
                continue;
            }
            return oct__error_set(error, OCT_INVALID_ARGUMENT, where, "sequence %" PRIu32 ": page %" PRId64 " of its %" PRId64 " is %" PRId32 "; must be 0..%" PRId64 "%s", b, i, n,
                                  from[i], limit - 1, from[i] == OCT_PAGE_NONE ? ", since a row sees it" : "");
        }
    }
    return OCT_OK;
}

static oct_status read_pages(oct__batch *batch, const oct_attn_spec *spec, const oct_attn_batch *given, const char *where, oct_error *error)
{
    const int64_t *page_offset = batch->page_offset.memory;
    int32_t *pages = batch->pages.memory;
    const int32_t limit = given->n_pages < INT32_MAX ? (int32_t)given->n_pages : INT32_MAX;
    for (uint32_t b = 0; b < given->n_sequences; b++) {
        const int64_t n = page_offset[b + 1] - page_offset[b];
        if (n == 0) {
            continue;
        }
        const int32_t *from = given_pages(given, b);
        const int64_t n_unseen = unseen_pages(batch, spec, b);
        int32_t *to = pages + page_offset[b];
        bool good = copy_pages(to, from, n_unseen, OCT_PAGE_NONE, limit, &batch->page_end);
        good &= copy_pages(to + n_unseen, from + n_unseen, n - n_unseen, 0, limit, &batch->page_end);
        if (!good) {
            return name_bad_page(from, n, n_unseen, limit, b, where, error);
        }
    }
    return OCT_OK;
}

static void make_empty(oct__batch *batch)
{
    batch->n_sequences = 0;
    batch->n_rows = batch->n_keys = batch->page_end = 0;
    batch->longest_rows = 0;
}

oct_status oct__batch_read(oct__batch *batch, const oct__allocator *allocator, const oct_attn_spec *spec, const oct_attn_batch *given,
                           const char *where, oct_error *error)
{
    const uint64_t n = given->n_sequences;
    make_empty(batch);
    oct_status status = check_pointers(given, where, error);
    if (status != OCT_OK) {
        return status;
    }
    if (!oct__array_reserve(allocator, &batch->qo_indptr, n + 1, sizeof(int32_t)) || !oct__array_reserve(allocator, &batch->kv_len, n, sizeof(int32_t)) ||
        !oct__array_reserve(allocator, &batch->page_offset, n + 1, sizeof(int64_t))) {
        return oct__error_set(error, OCT_OUT_OF_MEMORY, where, "no memory for the lengths of %" PRIu64 " sequences", n);
    }
    status = read_lengths(batch, spec, given, where, error);
    const int64_t n_pages = status == OCT_OK ? ((int64_t *)batch->page_offset.memory)[n] : 0;
    if (status == OCT_OK && !oct__array_reserve(allocator, &batch->pages, (uint64_t)n_pages, sizeof(int32_t))) {
        status = oct__error_set(error, OCT_OUT_OF_MEMORY, where, "no memory for %" PRId64 " page ids", n_pages);
    }
    if (status == OCT_OK) {
        status = read_pages(batch, spec, given, where, error);
    }
    if (status != OCT_OK) {
        make_empty(batch);
        return status;
    }
    batch->n_sequences = given->n_sequences;
    return OCT_OK;
}

void oct__batch_free(oct__batch *batch, const oct__allocator *allocator)
{
    oct__array_free(allocator, &batch->qo_indptr);
    oct__array_free(allocator, &batch->kv_len);
    oct__array_free(allocator, &batch->page_offset);
    oct__array_free(allocator, &batch->pages);
}
