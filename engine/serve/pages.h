/* Page accounting of one pool: every page is free, used (held by requests) or cached (held by nobody, kept for what it stores). Numbers
 * only, no page's bytes are touched. One thread at a time. */
#ifndef OCTE_SERVE_PAGES_H
#define OCTE_SERVE_PAGES_H

#include <stdbool.h>
#include <stdint.h>

enum { OCTE__NO_PAGE = -1 };   /* = OCT_PAGE_NONE */

typedef struct octe__pages {
    int64_t n, n_free, n_cached;     /* used: what is left */
    int64_t n_shared;                /* held by more than one */
    int64_t n_fresh;                 /* pages from this one on were never handed out */
    uint32_t *holders;               /* [n] requests that hold it */
    bool *kept;                      /* [n] cached, once nobody holds it */
    int32_t *next, *previous;        /* [n] of the list that the page is in: free ones (next alone), or cached ones, the oldest first */
    int32_t free_first, oldest, newest;
} octe__pages;

/* False: no memory. n >= 1. On false, too, the caller closes. */
bool octe__pages_open(octe__pages *pages, int64_t n);
void octe__pages_close(octe__pages *pages);

/* A free page, now held once; OCTE__NO_PAGE when none is free (cached ones are not: forget one first). */
int32_t octe__pages_take(octe__pages *pages);

/* One holder more, one fewer. With the last one gone a kept page becomes the newest cached one, another is free. */
void octe__pages_hold(octe__pages *pages, int32_t page);
void octe__pages_release(octe__pages *pages, int32_t page);

/* Whether what a page stores is worth keeping. A cached page that is forgotten is free. */
void octe__pages_keep(octe__pages *pages, int32_t page);
void octe__pages_forget(octe__pages *pages, int32_t page);

static inline int64_t octe__pages_available(const octe__pages *pages) { return pages->n_free + pages->n_cached; }
static inline int64_t octe__pages_used(const octe__pages *pages) { return pages->n - pages->n_free - pages->n_cached; }

#endif
