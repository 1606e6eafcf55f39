/* scheduler.c: see scheduler.h. Opening, requests in and out, what a step leaves behind; compose.c plans the steps. */
#include "engine/serve/scheduler.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "engine/report.h"
#include "engine/serve/scheduler_state.h"

/* ---- opening ---------------------------------------------------------------------------------------------------- */

static oct_status check_options(octe_scheduler_options *o, oct_error *error)
{
    static const char where[] = "octe_scheduler_open";
    if (o->page_size == 0 || o->n_pages < 1 || o->n_pages > INT32_MAX || o->n_pages_window > INT32_MAX || (o->window_tokens > 0) != (o->n_pages_window > 0)) {
        return octe__report(error, OCT_INVALID_ARGUMENT, where, NULL, "page_size is %u, n_pages %" PRId64 ", n_pages_window %" PRId64 " with window_tokens %u; must be positive, the last two both or neither",
                            o->page_size, o->n_pages, o->n_pages_window, o->window_tokens);
    }
    if (o->n_swap > 0 && o->swap == NULL) {
        return octe__report(error, OCT_INVALID_ARGUMENT, where, NULL, "n_swap is %u, but nothing swaps", o->n_swap);
    }
    if (o->max_running == 0 || o->max_step_rows < o->max_running || o->max_context_tokens == 0 || o->max_context_tokens > INT32_MAX) {
        return octe__report(error, OCT_INVALID_ARGUMENT, where, NULL, "max_running is %u, max_step_rows %u, max_context_tokens %u; must be positive, a step must take one row of each running request",
                            o->max_running, o->max_step_rows, o->max_context_tokens);
    }
    const octe_draft_options *d = &o->draft;
    o->max_step_samples = o->max_step_samples != 0 ? o->max_step_samples : o->max_running;
    if (d->n_branches > OCTE_BRANCHES_MAX) {
        return octe__report(error, OCT_INVALID_ARGUMENT, where, NULL, "guesses of %u branches; at most %d", d->n_branches, OCTE_BRANCHES_MAX);
    }
    if (d->n_tokens > OCTE_DRAFT_MAX || (d->n_tokens > 0 && (d->least_match == 0 || d->least_match > d->most_match)) || o->max_step_samples < o->max_running) {
        return octe__report(error, OCT_INVALID_ARGUMENT, where, NULL,
                            "%u guesses after %u to %u equal tokens, %u rows with logits; must be at most %d after at least one, with logits of each running request's row", d->n_tokens,
                            d->least_match, d->most_match, o->max_step_samples, OCTE_DRAFT_MAX);
    }
    o->chunk_tokens = o->chunk_tokens != 0 && o->chunk_tokens < o->max_step_rows ? o->chunk_tokens : o->max_step_rows;
    if (o->deterministic && (o->chunk_tokens % o->page_size != 0 || o->chunk_tokens > o->max_step_rows - o->max_running)) {
        return octe__report(error, OCT_INVALID_ARGUMENT, where, NULL, "chunk_tokens is %u; deterministic, it must be a multiple of the page size (%u) and at most max_step_rows - max_running = %u",
                            o->chunk_tokens, o->page_size, o->max_step_rows - o->max_running);
    }
    return OCT_OK;
}

oct_status octe_scheduler_open(const octe_scheduler_options *options, octe_scheduler **scheduler, oct_error *error)
{
    *scheduler = NULL;
    octe_scheduler_options o = *options;
    const oct_status status = check_options(&o, error);
    if (status != OCT_OK) {
        return status;
    }
    octe_scheduler *s = calloc(1, sizeof(*s));
    if (s == NULL) {
        return octe__report(error, OCT_OUT_OF_MEMORY, "octe_scheduler_open", NULL, "no memory for a scheduler");
    }
    s->options = o;
    octe__pages *const window = o.window_tokens > 0 ? &s->pages[OCTE__POOL_WINDOW] : NULL;
    bool there = octe__pages_open(&s->pages[OCTE__POOL_FULL], o.n_pages);
    there = (window == NULL || octe__pages_open(window, o.n_pages_window)) && there;
    there = octe__prefix_open(&s->prefix, &s->pages[OCTE__POOL_FULL], window, o.page_size, o.window_tokens, o.hash) && there;
    s->running = calloc(o.max_running, sizeof(*s->running));
    s->planned = calloc(o.max_running, sizeof(*s->planned));
    s->parts = calloc(o.max_running, sizeof(*s->parts));
    s->free_places = o.n_swap > 0 ? malloc(o.n_swap * sizeof(*s->free_places)) : NULL;
    there = there && (o.n_swap == 0 || s->free_places != NULL);
    for (uint32_t i = 0; there && i < o.n_swap; i++) {
        s->free_places[s->n_free_places++] = o.n_swap - 1 - i;
    }
    if (!there || s->running == NULL || s->planned == NULL || s->parts == NULL) {
        octe_scheduler_close(s);
        return octe__report(error, OCT_OUT_OF_MEMORY, "octe_scheduler_open", NULL, "no memory to account for %" PRId64 " pages", o.n_pages);
    }
    *scheduler = s;
    return OCT_OK;
}

static void request_destroy(octe_scheduler *s, octe__request *r)
{
    octe__request_drop_swap(s, r);
    free(r->tokens);
    free(r->pages[OCTE__POOL_FULL]);
    free(r->pages[OCTE__POOL_WINDOW]);
    free(r);
}

void octe_scheduler_close(octe_scheduler *s)
{
    if (s == NULL) {
        return;
    }
    for (uint32_t i = 0; i < s->stats.n_running; i++) {
        request_destroy(s, s->running[i]);
    }
    while (s->first_waiting != NULL) {
        octe__request *r = s->first_waiting;
        s->first_waiting = r->next;
        request_destroy(s, r);
    }
    octe__prefix_close(&s->prefix);
    octe__pages_close(&s->pages[OCTE__POOL_FULL]);
    octe__pages_close(&s->pages[OCTE__POOL_WINDOW]);
    free(s->running);
    free(s->planned);
    free(s->parts);
    free(s->clients);
    free(s->free_places);
    free(s);
}

/* ---- the queue ----------------------------------------------------------------------------------------------------- */

/* Most requests come last: the search begins there. */
void octe__scheduler_enqueue(octe_scheduler *s, octe__request *r)
{
    octe__request *before = s->last_waiting;
    while (before != NULL && octe__request_before(r, before)) {
        before = before->previous;
    }
    r->previous = before;
    r->next = before != NULL ? before->next : s->first_waiting;
    *(before != NULL ? &before->next : &s->first_waiting) = r;
    *(r->next != NULL ? &r->next->previous : &s->last_waiting) = r;
    s->stats.n_waiting++;
}

void octe__scheduler_dequeue(octe_scheduler *s, octe__request *r)
{
    *(r->previous != NULL ? &r->previous->next : &s->first_waiting) = r->next;
    *(r->next != NULL ? &r->next->previous : &s->last_waiting) = r->previous;
    r->next = r->previous = NULL;
    s->stats.n_waiting--;
}

/* Where a client's next request begins to count: now, or after what it has booked already. False: no memory. */
static bool book(octe_scheduler *s, uint64_t id, int64_t cost, int64_t *start)
{
    const int64_t now = s->clock;
    *start = now;
    if (id == 0) {
        return true;
    }
    uint32_t n = 0;
    octe__client *mine = NULL;
    /* Who has booked nothing ahead needs no record. */
    for (uint32_t i = 0; i < s->n_clients; i++) {
        if (s->clients[i].id == id || s->clients[i].paid > now) {
            s->clients[n] = s->clients[i];
            mine = s->clients[n].id == id ? &s->clients[n] : mine;
            n++;
        }
    }
    s->n_clients = n;
    if (mine == NULL) {
        if (n == s->clients_room) {
            const uint32_t room = n * 2 + 16;
            octe__client *larger = realloc(s->clients, room * sizeof(*larger));
            if (larger == NULL) {
                return false;
            }
            s->clients = larger;
            s->clients_room = room;
        }
        mine = &s->clients[s->n_clients++];
        *mine = (octe__client){id, now};
    }
    *start = mine->paid > now ? mine->paid : now;
    mine->paid = *start + cost;
    return true;
}

/* What a request has booked and not used, or found in the cache, is its client's again. */
static void give_back(octe_scheduler *s, const octe__request *r)
{
    for (uint32_t i = 0; r->client != 0 && i < s->n_clients; i++) {
        if (s->clients[i].id == r->client) {
            s->clients[i].paid -= (int64_t)r->max_tokens - (r->n_computed > r->n_cached ? r->n_computed - r->n_cached : 0);
        }
    }
}

uint32_t octe__most_window_pages(const octe_scheduler *s, uint32_t n_tokens)
{
    const octe_scheduler_options *o = &s->options;
    const uint32_t rows = o->chunk_tokens > o->draft.n_tokens ? o->chunk_tokens : o->draft.n_tokens + 1;
    /* The window's last key and a chunk's first token may lie anywhere in their pages. */
    const uint64_t most = ((uint64_t)o->window_tokens + rows + o->page_size - 1) / o->page_size + 2, all = octe__pages_for(s, n_tokens);
    return (uint32_t)(most < all ? most : all);
}

oct_status octe_scheduler_check(const octe_scheduler *s, const octe_request_spec *q, oct_error *error)
{
    static const char where[] = "octe_scheduler_add";
    const octe_scheduler_options *o = &s->options;
    if (q->prompt == NULL || q->n_prompt == 0 || q->max_new_tokens == 0) {
        return octe__report(error, OCT_INVALID_ARGUMENT, where, NULL, "the prompt has %u tokens, the answer may have %u; both must have one", q->n_prompt, q->max_new_tokens);
    }
    if (q->priority < -OCTE_PRIORITY_MAX || q->priority > OCTE_PRIORITY_MAX) {
        return octe__report(error, OCT_INVALID_ARGUMENT, where, NULL, "priority is %" PRId32 "; must be -%d to %d", q->priority, OCTE_PRIORITY_MAX, OCTE_PRIORITY_MAX);
    }
    const uint64_t all = (uint64_t)q->n_prompt + q->max_new_tokens;
    if (all > o->max_context_tokens) {
        return octe__report(error, OCT_INVALID_ARGUMENT, where, NULL, "the prompt of %u tokens and an answer of %u make %" PRIu64 "; the context holds %u", q->n_prompt, q->max_new_tokens,
                            all, o->max_context_tokens);
    }
    const uint32_t n_tokens = (uint32_t)all;
    if (octe__pages_for(s, n_tokens) > o->n_pages) {
        return octe__report(error, OCT_INVALID_ARGUMENT, where, NULL, "the prompt of %u tokens and an answer of %u need %u pages of %u tokens; the pool has %" PRId64, q->n_prompt,
                            q->max_new_tokens, octe__pages_for(s, n_tokens), o->page_size, o->n_pages);
    }
    if (o->window_tokens > 0 && octe__most_window_pages(s, n_tokens) > o->n_pages_window) {
        return octe__report(error, OCT_INVALID_ARGUMENT, where, NULL, "the prompt of %u tokens in chunks of %u needs %u pages of %u tokens at once in the window pool, which has %" PRId64,
                            q->n_prompt, o->chunk_tokens, octe__most_window_pages(s, n_tokens), o->page_size, o->n_pages_window);
    }
    return OCT_OK;
}

oct_status octe_scheduler_add(octe_scheduler *s, const octe_request_spec *spec, uint64_t *id, oct_error *error)
{
    oct_status status = octe_scheduler_check(s, spec, error);
    if (status == OCT_OK && s->options.max_waiting > 0 && s->stats.n_waiting >= s->options.max_waiting) {
        status = octe__report(error, OCT_OUT_OF_PAGES, "octe_scheduler_add", NULL, "%u requests are waiting already; at most %u may", s->stats.n_waiting, s->options.max_waiting);
    }
    *id = 0;
    if (status != OCT_OK) {
        s->stats.n_refused++;
        return status;
    }
    const uint32_t all = spec->n_prompt + spec->max_new_tokens;
    octe__request *r = calloc(1, sizeof(*r));
    if (r != NULL) {
        *r = (octe__request){.priority = spec->priority, .client = spec->client, .user = spec->user, .n_prompt = spec->n_prompt, .n_tokens = spec->n_prompt, .max_tokens = all, .node = OCTE__ROOT,
                            .draft_tokens = spec->draft_tokens};
        r->tokens = malloc(all * sizeof(*r->tokens));
        r->pages[OCTE__POOL_FULL] = malloc(octe__pages_for(s, all) * sizeof(int32_t));
        r->pages[OCTE__POOL_WINDOW] = s->options.window_tokens > 0 ? malloc(octe__pages_for(s, all) * sizeof(int32_t)) : NULL;
    }
    int64_t start;
    if (r == NULL || r->tokens == NULL || r->pages[OCTE__POOL_FULL] == NULL || (s->options.window_tokens > 0 && r->pages[OCTE__POOL_WINDOW] == NULL) ||
        !book(s, spec->client, all, &start)) {
        if (r != NULL) {
            request_destroy(s, r);
        }
        s->stats.n_refused++;
        return octe__report(error, OCT_OUT_OF_MEMORY, "octe_scheduler_add", NULL, "no memory for a request of %u tokens", all);
    }
    memcpy(r->tokens, spec->prompt, spec->n_prompt * sizeof(*r->tokens));
    r->rank = start + (int64_t)spec->priority * OCTE_PRIORITY_TOKENS;
    *id = r->id = ++s->last_id;
    s->stats.n_added++;
    octe__scheduler_enqueue(s, r);
    return OCT_OK;
}

/* ---- going -------------------------------------------------------------------------------------------------------- */

void octe__request_let_go(octe_scheduler *s, octe__request *r)
{
    for (int g = 0; g < octe__n_pools(s); g++) {
        for (uint32_t i = r->n_pages; i-- > 0;) {
            if (r->pages[g][i] != OCTE__NO_PAGE) {
                octe__pages_release(&s->pages[g], r->pages[g][i]);
            }
        }
    }
    r->n_pages = r->n_passed = r->n_computed = r->n_nodes = 0;
    r->node = OCTE__ROOT;
}

static void leave(octe_scheduler *s, uint32_t at)
{
    octe__request *r = s->running[at];
    give_back(s, r);
    octe__request_let_go(s, r);
    s->stats.n_running--;
    memmove(&s->running[at], &s->running[at + 1], (s->stats.n_running - at) * sizeof(*s->running));
    request_destroy(s, r);
}

bool octe_scheduler_cancel(octe_scheduler *s, uint64_t id)
{
    for (uint32_t i = 0; i < s->stats.n_running; i++) {
        if (s->running[i]->id == id) {
            leave(s, i);
            s->stats.n_cancelled++;
            return true;
        }
    }
    for (octe__request *r = s->first_waiting; r != NULL; r = r->next) {
        if (r->id == id) {
            octe__scheduler_dequeue(s, r);
            give_back(s, r);
            request_destroy(s, r);
            s->stats.n_cancelled++;
            return true;
        }
    }
    return false;
}

/* ---- after a step ------------------------------------------------------------------------------------------------------ */

/* Of which tokens the pages may serve others. Deterministic, only what was computed in whole chunks: a row's last bits depend on its chunk. */
static uint32_t shareable_tokens(const octe_scheduler *s, const octe__request *r)
{
    return s->options.deterministic ? r->n_prompt / s->options.chunk_tokens * s->options.chunk_tokens : r->max_tokens;
}

/* Another request has stored the same meanwhile: use its page and give ours back. */
static void use_instead(octe__pages *pages, int32_t *mine, int32_t other)
{
    if (*mine != other && *mine != OCTE__NO_PAGE && other != OCTE__NO_PAGE) {
        octe__pages_hold(pages, other);
        octe__pages_release(pages, *mine);
        *mine = other;
    }
}

/* Puts the pages that have become full into the tree. */
static void remember(octe_scheduler *s, octe__request *r)
{
    const uint32_t page_size = s->options.page_size, limit = shareable_tokens(s, r), n = r->n_computed < limit ? r->n_computed : limit;
    const bool window = s->options.window_tokens > 0;
    while ((uint64_t)(r->n_nodes + 1) * page_size <= n) {
        const uint32_t i = r->n_nodes;
        int32_t *window_page = window ? &r->pages[OCTE__POOL_WINDOW][i] : NULL;
        const octe__node node = octe__prefix_insert(&s->prefix, r->node, r->tokens + (size_t)i * page_size, page_size, r->pages[OCTE__POOL_FULL][i],
                                                    window ? *window_page : OCTE__NO_PAGE);
        use_instead(&s->pages[OCTE__POOL_FULL], &r->pages[OCTE__POOL_FULL][i], node);
        if (window) {
            use_instead(&s->pages[OCTE__POOL_WINDOW], window_page, s->prefix.nodes[node].window_page);
        }
        r->node = node;
        r->n_nodes++;
    }
}

/* Gives back the window's pages that no later token can see. */
static void pass(octe_scheduler *s, octe__request *r)
{
    const uint32_t first = octe__first_visible_page(r->n_computed, s->options.window_tokens, s->options.page_size);
    while (s->options.window_tokens > 0 && r->n_passed < first) {
        int32_t *page = &r->pages[OCTE__POOL_WINDOW][r->n_passed++];
        octe__pages_release(&s->pages[OCTE__POOL_WINDOW], *page);
        *page = OCTE__NO_PAGE;
    }
}

/* Gives back what was taken for guesses that did not come true: the next token's page stays, no other request makes room for the rest. */
static void return_guesses(octe_scheduler *s, octe__request *r)
{
    const uint32_t n = octe__pages_for(s, r->n_computed + 1);
    for (; r->n_draft > 0 && r->n_pages > n; r->n_pages--) {
        for (int g = 0; g < octe__n_pools(s); g++) {
            octe__pages_release(&s->pages[g], r->pages[g][r->n_pages - 1]);
        }
    }
    r->n_draft = 0;
}

/* The end of a text that fills no page is kept too: the next turn of a talk continues it. */
static void remember_rest(octe_scheduler *s, octe__request *r)
{
    const uint32_t page_size = s->options.page_size, rest = r->n_computed % page_size;
    if (rest > 0 && !s->options.deterministic && r->n_nodes == r->n_computed / page_size && s->options.copy_page != NULL) {
        const uint32_t i = r->n_nodes;
        (void)octe__prefix_insert(&s->prefix, r->node, r->tokens + (size_t)i * page_size, rest, r->pages[OCTE__POOL_FULL][i],
                                  s->options.window_tokens > 0 ? r->pages[OCTE__POOL_WINDOW][i] : OCTE__NO_PAGE);
    }
}

/* Guesses of a tree that came true go behind the text in their order. Returns how many of them lie in the pages where they belong: on another branch than the first the
 * rest is computed again, with the next token. */
static uint32_t straighten(octe__request *r, const octe_outcome *outcome, uint32_t n_accepted)
{
    uint32_t n = 0;
    for (uint32_t k = 0; k < n_accepted; k++) {
        r->tokens[r->n_tokens + k] = r->tokens[r->n_tokens + outcome->way[k] - 1u];   /* a way goes forward: way[k] > k */
        n += n == k && outcome->way[k] == k + 1;
    }
    return n;
}

void octe_scheduler_commit(octe_scheduler *s, octe_outcome *outcomes)
{
    s->stats.n_steps++;
    for (uint32_t i = 0; i < s->n_parts; i++) {
        octe__request *r = s->planned[i];
        const bool samples = s->parts[i].samples;
        const uint32_t n_draft = r->n_draft, n_accepted = n_draft > 0 ? outcomes[i].n_accepted : 0;
        /* What rows of wrong guesses have stored is written over by the next ones. */
        const uint32_t n_kept = r->is_tree && n_draft > 0 ? straighten(r, &outcomes[i], n_accepted) : n_accepted;
        r->n_computed += r->n_planned - n_draft + n_kept;
        s->clock += r->n_planned - n_draft + n_kept;
        r->n_tokens += n_accepted;
        s->stats.n_rows += r->n_planned;
        s->stats.n_drafts += n_draft > 0;
        s->stats.n_draft_tokens += n_draft;
        s->stats.n_accepted_tokens += n_accepted;
        for (uint32_t k = 0; k < n_accepted; k++) {
            s->stats.n_accepted_at[k]++;
        }
        r->n_planned = 0;
        return_guesses(s, r);
        if (s->options.prefix_cache) {
            remember(s, r);
        }
        pass(s, r);
        if (!samples) {
            outcomes[i].finish = false;
            continue;
        }
        r->tokens[r->n_tokens++] = outcomes[i].token;
        outcomes[i].finish = outcomes[i].finish || r->n_tokens == r->max_tokens;
        if (outcomes[i].finish) {
            if (s->options.prefix_cache) {
                remember_rest(s, r);
            }
            uint32_t at = 0;
            while (s->running[at] != r) {
                at++;
            }
            leave(s, at);
            s->stats.n_finished++;
        }
    }
    s->n_parts = 0;
}

void octe_scheduler_abandon(octe_scheduler *s)
{
    for (uint32_t i = 0; i < s->n_parts; i++) {
        s->planned[i]->n_planned = 0;
        return_guesses(s, s->planned[i]);
    }
    s->n_parts = 0;
}

void octe_scheduler_clear_cache(octe_scheduler *s) { octe__prefix_clear(&s->prefix); }

void octe_scheduler_stats_get(const octe_scheduler *s, octe_scheduler_stats *stats)
{
    *stats = s->stats;
    for (int g = 0; g < octe__n_pools(s); g++) {
        const octe__pages *p = &s->pages[g];
        stats->pool[g] = (struct octe_pool_stats){p->n, p->n_free, p->n_cached, octe__pages_used(p), p->n_shared, s->prefix.n_evicted[g]};
    }
}
