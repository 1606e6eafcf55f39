/* pages.c: see pages.h. */
#include "engine/serve/pages.h"

#include <stdlib.h>

bool octe__pages_open(octe__pages *p, int64_t n)
{
    *p = (octe__pages){.n = n, .n_free = n, .free_first = OCTE__NO_PAGE, .oldest = OCTE__NO_PAGE, .newest = OCTE__NO_PAGE};
    p->holders = calloc((size_t)n, sizeof(*p->holders));
    p->kept = calloc((size_t)n, sizeof(*p->kept));
    p->next = calloc((size_t)n, sizeof(*p->next));
    p->previous = calloc((size_t)n, sizeof(*p->previous));
    return p->holders != NULL && p->kept != NULL && p->next != NULL && p->previous != NULL;
}

void octe__pages_close(octe__pages *p)
{
    free(p->holders);
    free(p->kept);
    free(p->next);
    free(p->previous);
    *p = (octe__pages){0};
}

static void give_free(octe__pages *p, int32_t page)
{
    p->next[page] = p->free_first;
    p->free_first = page;
    p->n_free++;
}

static void unlink_cached(octe__pages *p, int32_t page)
{
    const int32_t before = p->previous[page], after = p->next[page];
    *(before == OCTE__NO_PAGE ? &p->oldest : &p->next[before]) = after;
    *(after == OCTE__NO_PAGE ? &p->newest : &p->previous[after]) = before;
    p->n_cached--;
}

int32_t octe__pages_take(octe__pages *p)
{
    int32_t page = p->free_first;
    if (page != OCTE__NO_PAGE) {
        p->free_first = p->next[page];
    } else if (p->n_fresh < p->n) {
        page = (int32_t)p->n_fresh++;
    } else {
        return OCTE__NO_PAGE;
    }
    p->n_free--;
    p->holders[page] = 1;
    return page;
}

void octe__pages_hold(octe__pages *p, int32_t page)
{
    const uint32_t n = p->holders[page]++;
    p->n_shared += n == 1;
    if (n == 0) {
        unlink_cached(p, page);
    }
}

void octe__pages_release(octe__pages *p, int32_t page)
{
    if (--p->holders[page] > 0) {
        p->n_shared -= p->holders[page] == 1;
        return;
    }
    if (!p->kept[page]) {
        give_free(p, page);
        return;
    }
    p->previous[page] = p->newest;
    p->next[page] = OCTE__NO_PAGE;
    *(p->newest == OCTE__NO_PAGE ? &p->oldest : &p->next[p->newest]) = page;
    p->newest = page;
    p->n_cached++;
}

void octe__pages_keep(octe__pages *p, int32_t page) { p->kept[page] = true; }

void octe__pages_forget(octe__pages *p, int32_t page)
{
    p->kept[page] = false;
    if (p->holders[page] == 0) {
        unlink_cached(p, page);
        give_free(p, page);
    }
}
