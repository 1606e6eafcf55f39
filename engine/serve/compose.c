/* compose.c: owns what goes into a step: single tokens of running requests first, so that no answer waits for a prompt, then chunks of running prompts,
 * then new requests, each in the order of ranks; and who gives pages back when they run out. */
#include <string.h>

#include "engine/serve/scheduler_state.h"

/* Requests behind the first that are looked at for admission while those before wait for a prompt that another one computes. */
enum { MAX_CANDIDATES = 64 };

/* Rows that the request would take in a step of rows_left; 0: its next chunk does not fit. */
static uint32_t rows_wanted(const octe_scheduler *s, const octe__request *r, uint32_t rows_left)
{
    const octe_scheduler_options *o = &s->options;
    uint32_t n = r->n_tokens - r->n_computed;
    if (!o->deterministic) {
        n = n < o->chunk_tokens ? n : o->chunk_tokens;
        return n < rows_left ? n : rows_left;
    }
    if (r->n_computed >= r->n_prompt) {
        n = 1;
    } else {
        const uint32_t end = (r->n_computed / o->chunk_tokens + 1) * o->chunk_tokens;
        n = (end < r->n_prompt ? end : r->n_prompt) - r->n_computed;
    }
    return n <= rows_left ? n : 0;
}

static bool is_single(const octe_scheduler *s, const octe__request *r)
{
    /* Of an answer, guesses of a tree that came true elsewhere than where they belong are computed with the next token. */
    const uint32_t most = s->options.draft.n_branches > 1 && r->n_computed >= r->n_prompt ? 1 + OCTE_DRAFT_MAX : 1;
    return r->n_tokens - r->n_computed <= most || (s->options.deterministic && r->n_computed >= r->n_prompt);
}

/* ---- pages ------------------------------------------------------------------------------------------------------- */

/* The caller has made sure that one is available. */
static int32_t take_page(octe_scheduler *s, int pool)
{
    int32_t page = octe__pages_take(&s->pages[pool]);
    if (page == OCTE__NO_PAGE && octe__prefix_evict(&s->prefix, pool)) {
        page = octe__pages_take(&s->pages[pool]);
    }
    return page;
}

/* Takes the request out of the step being planned, if it is in it. */
static void unplan(octe_scheduler *s, octe__request *r)
{
    if (r->n_planned == 0) {
        return;
    }
    uint32_t at = 0;
    while (s->planned[at] != r) {
        at++;
    }
    s->rows_left += r->n_planned;
    r->n_planned = 0;
    s->n_parts--;
    memmove(&s->planned[at], &s->planned[at + 1], (s->n_parts - at) * sizeof(*s->planned));
}

/* The running request of the highest rank gives its pages back and waits. */
static void preempt_last(octe_scheduler *s)
{
    octe__request *r = s->running[--s->stats.n_running];
    unplan(s, r);
    (void)octe__request_swap_out(s, r);
    octe__request_let_go(s, r);
    r->running = false;
    s->stats.n_preempted++;
    octe__scheduler_enqueue(s, r);
}

/* Pages that n more tokens of r need and it has not. A step that was abandoned may have left more than this one needs. */
static uint32_t pages_wanted(const octe_scheduler *s, const octe__request *r, uint32_t n)
{
    const uint32_t all = octe__pages_for(s, r->n_computed + n);
    return all > r->n_pages ? all - r->n_pages : 0;
}

static void take_pages(octe_scheduler *s, octe__request *r, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        for (int g = 0; g < octe__n_pools(s); g++) {
            r->pages[g][r->n_pages] = take_page(s, g);
        }
        r->n_pages++;
    }
}

/* Pages for n more tokens of r, at the cost of requests that rank behind it. False: those before it hold too many; nothing has changed. */
static bool make_room(octe_scheduler *s, octe__request *r, uint32_t n)
{
    const uint32_t wanted = pages_wanted(s, r, n);
    for (int g = 0; g < octe__n_pools(s); g++) {
        while (octe__pages_available(&s->pages[g]) < wanted) {
            if (s->running[s->stats.n_running - 1] == r) {
                return false;
            }
            preempt_last(s);
        }
    }
    take_pages(s, r, wanted);
    return true;
}

static void put_into_step(octe_scheduler *s, octe__request *r, uint32_t n)
{
    r->n_planned = n;
    s->rows_left -= n;
    s->planned[s->n_parts++] = r;
}

/* Preemption shortens the list from its end only, so walking it by index is safe. */
static void plan_running(octe_scheduler *s, bool singles)
{
    for (uint32_t i = 0; i < s->stats.n_running && s->rows_left > 0; i++) {
        octe__request *r = s->running[i];
        const uint32_t n = r->n_planned == 0 && is_single(s, r) == singles ? rows_wanted(s, r, s->rows_left) : 0;
        if (n > 0 && make_room(s, r, n)) {
            put_into_step(s, r, n);
        }
    }
}

/* ---- admission ------------------------------------------------------------------------------------------------------ */

static uint32_t granule(const octe_scheduler *s) { return s->options.deterministic ? s->options.chunk_tokens : s->options.page_size; }

/* What the cache has of the request's text. The last token must be computed, or there would be no logits. */
static octe__prefix_match look_up(const octe_scheduler *s, const octe__request *r)
{
    if (!s->options.prefix_cache) {
        return (octe__prefix_match){0, 0, OCTE__ROOT, OCTE__NO_NODE};
    }
    const bool partial = !s->options.deterministic && s->options.copy_page != NULL;
    const uint32_t most = s->options.deterministic ? r->n_prompt : r->n_tokens;
    return octe__prefix_find(&s->prefix, r->tokens, most - 1, granule(s), partial);
}

/* Whether a running request is computing what this one could take from the cache in a moment. */
static bool comes_soon(const octe_scheduler *s, const octe__request *r, uint32_t n_found)
{
    const uint32_t g = granule(s), most = r->n_prompt - 1;
    for (uint32_t i = 0; s->options.prefix_cache && i < s->stats.n_running; i++) {
        const octe__request *other = s->running[i];
        const uint32_t n = other->n_prompt < most ? other->n_prompt : most;
        if (other->n_computed >= other->n_prompt || n < n_found + g || memcmp(other->tokens, r->tokens, (n_found + g) * sizeof(*r->tokens)) != 0) {
            continue;
        }
        uint32_t common = n_found + g;
        while (common + g <= n && memcmp(other->tokens + common, r->tokens + common, g * sizeof(*r->tokens)) == 0) {
            common += g;
        }
        if (other->n_computed < common) {
            return true;
        }
    }
    return false;
}

/* Pages that running requests were promised for their texts as they are now and have not taken yet. */
static int64_t promised(const octe_scheduler *s, int pool)
{
    int64_t n = 0;
    for (uint32_t i = 0; i < s->stats.n_running; i++) {
        const octe__request *r = s->running[i];
        const uint32_t all = pool == OCTE__POOL_WINDOW ? octe__most_window_pages(s, r->n_tokens) : octe__pages_for(s, r->n_tokens);
        const uint32_t has = pool == OCTE__POOL_WINDOW ? r->n_pages - r->n_passed : r->n_pages;
        n += all > has ? all - has : 0;
    }
    return n;
}

/* Whether the rest of the request's text fits beside what others were promised, and a page for each of them to go on. It holds what it found. */
static bool fits(const octe_scheduler *s, const octe__request *r)
{
    for (int g = 0; g < octe__n_pools(s); g++) {
        const uint32_t all = g == OCTE__POOL_WINDOW ? octe__most_window_pages(s, r->n_tokens) : octe__pages_for(s, r->n_tokens);
        const uint32_t has = g == OCTE__POOL_WINDOW ? r->n_pages - r->n_passed : r->n_pages;
        const int64_t wanted = all > has ? all - has : 0, going_on = g == OCTE__POOL_FULL ? s->stats.n_running : 0;
        if (wanted + promised(s, g) + going_on > octe__pages_available(&s->pages[g])) {
            return false;
        }
    }
    return true;
}

/* Takes over what was found, whole pages only. */
static void hold_found(octe_scheduler *s, octe__request *r, const octe__prefix_match *m)
{
    const uint32_t n = m->n_tokens / s->options.page_size;
    const bool window = s->options.window_tokens > 0;
    r->n_pages = r->n_nodes = n;
    r->n_computed = m->n_tokens;
    r->n_passed = window ? octe__first_visible_page(m->n_tokens, s->options.window_tokens, s->options.page_size) : 0;
    r->n_passed = r->n_passed < n ? r->n_passed : n;
    r->node = m->node;
    octe__node node = m->node;
    for (uint32_t i = n; i-- > 0; node = s->prefix.nodes[node].parent) {
        r->pages[OCTE__POOL_FULL][i] = node;
        octe__pages_hold(&s->pages[OCTE__POOL_FULL], node);
        if (window) {
            const int32_t page = i < r->n_passed ? OCTE__NO_PAGE : s->prefix.nodes[node].window_page;
            r->pages[OCTE__POOL_WINDOW][i] = page;
            if (page != OCTE__NO_PAGE) {
                octe__pages_hold(&s->pages[OCTE__POOL_WINDOW], page);
            }
        }
    }
}

/* Copies the page that begins as this request goes on, so that both can be written on. The source is held meanwhile: making room must not evict it. */
static void copy_partial(octe_scheduler *s, octe__request *r, const octe__prefix_match *m)
{
    if (m->partial == OCTE__NO_NODE) {
        return;
    }
    const int n_pools = octe__n_pools(s);
    const int32_t from[OCTE__POOLS] = {m->partial, s->prefix.nodes[m->partial].window_page};
    for (int g = 0; g < n_pools; g++) {
        octe__pages_hold(&s->pages[g], from[g]);
    }
    bool copied = true;
    for (int g = 0; g < n_pools; g++) {
        copied = copied && octe__pages_available(&s->pages[g]) > 0;
    }
    for (int g = 0; g < n_pools && copied; g++) {
        r->pages[g][r->n_pages] = take_page(s, g);
    }
    if (copied) {
        r->n_pages++;
        for (int g = 0; g < n_pools; g++) {
            copied = copied && s->options.copy_page(s->options.user, g == OCTE__POOL_WINDOW, from[g], r->pages[g][r->n_pages - 1]);
        }
        /* A page that could not be copied is still room for what is computed instead. */
        r->n_computed += copied ? m->n_partial : 0;
        s->stats.n_pages_copied += copied;
    }
    for (int g = n_pools; g-- > 0;) {
        octe__pages_release(&s->pages[g], from[g]);
    }
}

static void run_request(octe_scheduler *s, octe__request *r)
{
    uint32_t at = s->stats.n_running++;
    for (; at > 0 && octe__request_before(r, s->running[at - 1]); at--) {
        s->running[at] = s->running[at - 1];
    }
    s->running[at] = r;
    r->running = true;
}

/* What was swapped out comes back as it was; in the tree it is no more, and gets there again with the next step. True: it runs. */
static bool admit_swapped(octe_scheduler *s, octe__request *r)
{
    if (!fits(s, r)) {
        return false;
    }
    octe__scheduler_dequeue(s, r);
    run_request(s, r);
    for (uint32_t i = 0; i < r->n_swapped; i++) {
        r->pages[OCTE__POOL_FULL][i] = take_page(s, OCTE__POOL_FULL);
        if (s->options.window_tokens > 0) {
            r->pages[OCTE__POOL_WINDOW][i] = i < r->n_swapped_passed ? OCTE__NO_PAGE : take_page(s, OCTE__POOL_WINDOW);
        }
    }
    r->n_pages = r->n_swapped;
    r->n_passed = r->n_swapped_passed;
    if (!octe__request_swap_in(s, r)) {
        octe__request_let_go(s, r);   /* computed again, from its first token on */
    }
    octe__request_drop_swap(s, r);
    const uint32_t n = rows_wanted(s, r, s->rows_left);
    if (n > 0 && make_room(s, r, n)) {
        put_into_step(s, r, n);
    }
    return true;
}

/* True: it runs now, and is in the step if a row was left for it. */
static bool admit(octe_scheduler *s, octe__request *r, const octe__prefix_match *m)
{
    if (r->n_swapped > 0) {
        return admit_swapped(s, r);
    }
    hold_found(s, r, m);
    if (!fits(s, r)) {
        octe__request_let_go(s, r);
        return false;
    }
    octe__scheduler_dequeue(s, r);
    copy_partial(s, r, m);
    run_request(s, r);
    r->n_cached = r->n_computed < r->n_prompt ? r->n_computed : r->n_prompt;
    s->stats.n_prompt_tokens += r->n_prompt;
    s->stats.n_cached_tokens += r->n_cached;
    const uint32_t n = rows_wanted(s, r, s->rows_left);
    if (n > 0 && make_room(s, r, n)) {
        put_into_step(s, r, n);
    }
    return true;
}

/* A request of better priority than the last running one does not wait for it to end. */
static bool preempt_for(octe_scheduler *s, const octe__request *r)
{
    const uint32_t n = s->stats.n_running;
    if (n == 0 || s->running[n - 1]->priority <= r->priority || !octe__request_before(r, s->running[n - 1])) {
        return false;
    }
    preempt_last(s);
    return true;
}

/* In the order of ranks; the first that does not fit ends it, so that small requests never pass a large one by for good. */
static void plan_waiting(octe_scheduler *s)
{
    octe__request *r = s->first_waiting;
    for (int n_tried = 0; r != NULL && s->rows_left > 0 && n_tried < MAX_CANDIDATES; n_tried++) {
        const octe__prefix_match m = look_up(s, r);
        octe__request *const next = r->next;   /* what is preempted for r waits for another step */
        if (r->n_swapped > 0 || !comes_soon(s, r, m.n_tokens)) {
            bool there = s->stats.n_running < s->options.max_running && admit(s, r, &m);
            while (!there && preempt_for(s, r)) {
                const octe__prefix_match again = look_up(s, r);
                there = admit(s, r, &again);
            }
            if (!there) {
                return;
            }
        }
        r = next;
    }
}

/* ---- guesses --------------------------------------------------------------------------------------------------------- */

/* Guesses that fit in the pages that r has and in free ones: no cached page goes for a guess. */
static uint32_t guesses_that_fit(const octe_scheduler *s, const octe__request *r)
{
    int64_t n_free = INT32_MAX;
    for (int g = 0; g < octe__n_pools(s); g++) {
        n_free = s->pages[g].n_free < n_free ? s->pages[g].n_free : n_free;
    }
    const int64_t n = (r->n_pages + n_free) * s->options.page_size - r->n_computed - r->n_planned;
    return (uint32_t)(n < OCTE_DRAFT_MAX ? n : OCTE_DRAFT_MAX);
}

/* In what is left of the step, so that nobody waits for a guess; and nobody is preempted for one. */
static void plan_drafts(octe_scheduler *s)
{
    const octe_draft_options *d = &s->options.draft;
    uint32_t samples_left = s->options.max_step_samples - s->n_parts;   /* at least: not every part samples */
    if (d->n_tokens == 0 || (d->max_running > 0 && s->stats.n_running > d->max_running)) {
        return;
    }
    /* A mask has a bit for each token of the longest part: beside chunks of prompts guesses are chains. */
    bool trees = d->n_branches > 1 && !s->options.deterministic && s->options.window_tokens == 0;
    for (uint32_t i = 0; i < s->n_parts; i++) {
        trees = trees && s->planned[i]->n_planned <= 32;
    }
    for (uint32_t i = 0; i < s->n_parts && s->rows_left > 0 && samples_left > 0; i++) {
        octe__request *r = s->planned[i];
        const uint32_t limits[] = {d->n_tokens, r->draft_tokens > 0 ? (uint32_t)r->draft_tokens : d->n_tokens, s->rows_left, samples_left, r->max_tokens - r->n_tokens - 1, guesses_that_fit(s, r)};
        uint32_t n = limits[0];
        for (size_t k = 1; k < sizeof(limits) / sizeof(limits[0]); k++) {
            n = n < limits[k] ? n : limits[k];
        }
        if (r->draft_tokens < 0 || r->n_planned != 1 || r->n_computed < r->n_prompt || r->n_computed + 1 != r->n_tokens || n == 0) {
            continue;
        }
        r->is_tree = trees;
        n = trees ? octe__draft_tree(r->tokens, r->n_tokens, d->least_match, d->most_match, d->n_branches, n, r->tokens + r->n_tokens, r->parents)
                  : octe__draft_lookup(r->tokens, r->n_tokens, d->least_match, d->most_match, n, r->tokens + r->n_tokens);
        take_pages(s, r, pages_wanted(s, r, 1 + n));
        r->n_draft = n;
        r->n_planned += n;
        s->rows_left -= n;
        samples_left -= n;
    }
}

/* ---- the step --------------------------------------------------------------------------------------------------------- */

bool octe_scheduler_plan(octe_scheduler *s, octe_step_plan *step)
{
    s->n_parts = 0;
    s->rows_left = s->options.max_step_rows;
    plan_running(s, true);
    plan_running(s, false);
    plan_waiting(s);
    plan_drafts(s);
    *step = (octe_step_plan){.parts = s->parts, .n_parts = s->n_parts};
    for (uint32_t i = 0; i < s->n_parts; i++) {
        const octe__request *r = s->planned[i];
        s->parts[i] = (octe_scheduled){
            .id = r->id,
            .user = r->user,
            .tokens = r->tokens,
            .n_past = r->n_computed,
            .n_tokens = r->n_planned,
            .n_draft = r->n_draft,
            .parents = r->n_draft > 0 && r->is_tree ? r->parents : NULL,
            .samples = r->n_computed + r->n_planned - r->n_draft == r->n_tokens,
            .pages = {r->pages[OCTE__POOL_FULL], r->pages[OCTE__POOL_WINDOW]},
            .n_prompt = r->n_prompt,
            .n_cached = r->n_cached,
        };
        step->n_rows += r->n_planned;
        step->n_samples += s->parts[i].samples ? 1 + r->n_draft : 0;
    }
    return s->n_parts > 0;
}
