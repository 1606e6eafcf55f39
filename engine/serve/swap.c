/* swap.c: owns the host's places: what preempted requests have computed waits there. */
#include <stdlib.h>

#include "engine/serve/scheduler_state.h"

void octe__request_drop_swap(octe_scheduler *s, octe__request *r)
{
    for (int g = 0; g < OCTE__POOLS; g++) {
        for (uint32_t i = g == OCTE__POOL_WINDOW ? r->n_swapped_passed : 0; r->places[g] != NULL && i < r->n_swapped; i++) {
            s->free_places[s->n_free_places++] = r->places[g][i];
        }
        free(r->places[g]);
        r->places[g] = NULL;
    }
    r->n_swapped = r->n_swapped_passed = r->n_swapped_tokens = 0;
    s->stats.n_swap_used = s->options.n_swap - s->n_free_places;
}

bool octe__request_swap_out(octe_scheduler *s, octe__request *r)
{
    const uint32_t n = octe__pages_for(s, r->n_computed), passed = r->n_passed < n ? r->n_passed : n;
    const bool window = s->options.window_tokens > 0;
    if (n == 0 || s->n_free_places < n + (window ? n - passed : 0)) {
        return false;
    }
    for (int g = 0; g < octe__n_pools(s); g++) {
        r->places[g] = malloc(n * sizeof(uint32_t));
        if (r->places[g] == NULL) {
            free(r->places[0]);
            r->places[0] = NULL;
            return false;
        }
    }
    r->n_swapped = n;
    r->n_swapped_passed = passed;
    r->n_swapped_tokens = r->n_computed;
    bool moved = true;
    for (int g = 0; g < octe__n_pools(s); g++) {
        for (uint32_t i = g == OCTE__POOL_WINDOW ? passed : 0; i < n; i++) {
            r->places[g][i] = s->free_places[--s->n_free_places];
            moved = moved && s->options.swap(s->options.user, g == OCTE__POOL_WINDOW, true, r->pages[g][i], r->places[g][i]);
        }
    }
    if (!moved) {
        octe__request_drop_swap(s, r);
        return false;
    }
    s->stats.n_swapped_out++;
    s->stats.n_swap_used = s->options.n_swap - s->n_free_places;
    return true;
}

bool octe__request_swap_in(octe_scheduler *s, octe__request *r)
{
    bool moved = true;
    for (int g = 0; g < octe__n_pools(s); g++) {
        for (uint32_t i = g == OCTE__POOL_WINDOW ? r->n_swapped_passed : 0; i < r->n_swapped && moved; i++) {
            moved = s->options.swap(s->options.user, g == OCTE__POOL_WINDOW, false, r->pages[g][i], r->places[g][i]);
        }
    }
    r->n_computed = moved ? r->n_swapped_tokens : 0;
    s->stats.n_swapped_in += moved;
    return moved;
}
