/* fake_pool.c: see fake_pool.h. */
#include "serve/fake_pool.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static uint64_t read_on(uint64_t text, int32_t token) { return (text ^ (uint64_t)(uint32_t)token) * 0x9E3779B97F4A7C15u + 0x1234567u + (text >> 31); }

static bool copy_page(void *user, bool window, int32_t from, int32_t to)
{
    fake_pool *f = user;
    const uint32_t n = f->scheduler->options.page_size;
    memcpy(f->stored[window] + (size_t)to * n, f->stored[window] + (size_t)from * n, n * sizeof(uint64_t));
    return true;
}

static bool swap(void *user, bool window, bool out, int32_t page, uint32_t place)
{
    fake_pool *f = user;
    const uint32_t n = f->scheduler->options.page_size;
    uint64_t *in_pool = f->stored[window] + (size_t)page * n, *in_host = f->host + (size_t)place * n;
    assert_in_range(place, 0, f->scheduler->options.n_swap - 1);
    assert_true(out || f->scheduler->pages[window].holders[page] == 1);
    memcpy(out ? in_host : in_pool, out ? in_pool : in_host, n * sizeof(uint64_t));
    return true;
}

void fake_pool_open(fake_pool *f, octe_scheduler_options *o, uint32_t n_vocab)
{
    *f = (fake_pool){.n_vocab = n_vocab};
    o->copy_page = copy_page;
    o->swap = swap;
    o->user = f;
    oct_error error = OCT_ERROR_INIT;
    if (octe_scheduler_open(o, &f->scheduler, &error) != OCT_OK) {
        fail_msg("%s", error.text);
    }
    f->stored[0] = calloc((size_t)o->n_pages * o->page_size, sizeof(uint64_t));
    f->host = calloc((size_t)o->n_swap * o->page_size + 1, sizeof(uint64_t));
    f->stored[1] = calloc((size_t)o->n_pages_window * o->page_size + 1, sizeof(uint64_t));
}

void fake_pool_close(fake_pool *f)
{
    octe_scheduler_close(f->scheduler);
    free(f->stored[0]);
    free(f->stored[1]);
    free(f->host);
}

int32_t fake_next(const fake_pool *f, const int32_t *tokens, uint32_t n)
{
    uint64_t text = 1;
    for (uint32_t i = 0; i < n; i++) {
        text = read_on(text, tokens[i]);
    }
    if (f->repeats && n > 5 && (text >> 40) % 4 != 0) {
        return tokens[n - 5];   /* so that a lookup often guesses right, and not always */
    }
    return (int32_t)(text >> 17) & 0x7FFFFFFF & (int32_t)(f->n_vocab - 1);   /* n_vocab: a power of two */
}

/* Reads what a row at position n - 1 sees and stores the part's rows. */
static void run_part(fake_pool *f, const octe_scheduled *p)
{
    const octe_scheduler_options *o = &f->scheduler->options;
    const uint32_t end = p->n_past + p->n_tokens;
    /* Deterministic, how a row is computed depends on its request alone: whole chunks, a rest, single tokens after the prompt; and only rows of whole chunks
     * serve others. The lowest bit of what is stored says which they were. */
    const uint32_t chunk = o->deterministic ? o->chunk_tokens : 1;
    const bool whole = !o->deterministic || p->n_tokens == chunk;
    if (o->deterministic && p->n_past < p->n_prompt) {
        assert_int_equal(p->n_past % chunk, 0);
        assert_int_equal(end, p->n_past + chunk < p->n_prompt ? p->n_past + chunk : p->n_prompt);
    } else if (o->deterministic) {
        assert_int_equal(p->n_tokens, 1 + p->n_draft);
    }
    uint64_t text = 1, of_guess[1 + OCTE_DRAFT_MAX];
    assert_true(p->parents == NULL || (p->n_draft > 0 && p->n_tokens == 1 + p->n_draft && !o->deterministic && o->window_tokens == 0));
    for (uint32_t i = 0; i < end; i++) {
        /* A guess of a tree has read those on its way alone. */
        const uint32_t guess = p->parents != NULL && i > p->n_past ? i - p->n_past : 0;
        assert_true(guess == 0 || p->parents[guess] < guess);
        text = read_on(guess > 0 ? of_guess[p->parents[guess]] : text, p->tokens[i]);
        if (i >= p->n_past && p->parents != NULL) {
            of_guess[guess] = text;
        }
        for (int g = 0; g < octe__n_pools(f->scheduler); g++) {
            /* Of the window's pool, only what the part's first row sees and what comes after. */
            if (g == OCTE__POOL_WINDOW && i + o->window_tokens <= p->n_past) {
                continue;
            }
            const int32_t page = p->pages[g][i / o->page_size];
            assert_in_range(page, 0, f->scheduler->pages[g].n - 1);
            uint64_t *slot = &f->stored[g][(size_t)page * o->page_size + i % o->page_size];
            if (i >= p->n_past) {
                /* Nobody else holds what is written, and no text in the tree is written over. */
                assert_int_equal(f->scheduler->pages[g].holders[page], 1);
                assert_false(f->scheduler->pages[g].kept[page]);
                *slot = text << 1 | whole;
            } else if (*slot >> 1 != text << 1 >> 1 || (i < p->n_prompt / chunk * chunk && (*slot & 1) == 0)) {
                fail_msg("request %llu: pool %d has another text at position %u, page %d", (unsigned long long)p->id, g, i, page);
            }
        }
    }
}

bool fake_step(fake_pool *f, bool (*done)(const octe_scheduled *part, int32_t token, void *context), void *context)
{
    octe_step_plan step;
    if (!octe_scheduler_plan(f->scheduler, &step)) {
        assert_int_equal(f->scheduler->stats.n_running + f->scheduler->stats.n_waiting, 0);
        return false;
    }
    assert_in_range(step.n_rows, 1, f->scheduler->options.max_step_rows);
    octe_outcome *outcomes = calloc(step.n_parts, sizeof(*outcomes));
    uint32_t n_rows = 0, n_samples = 0;
    for (uint32_t i = 0; i < step.n_parts; i++) {
        run_part(f, &step.parts[i]);
        const octe_scheduled *p = &step.parts[i];
        const uint32_t n = p->n_past + p->n_tokens - p->n_draft;   /* tokens that are no guesses */
        octe_outcome *o = &outcomes[i];
        n_rows += p->n_tokens;
        n_samples += p->samples ? 1 + p->n_draft : 0;
        assert_true(p->n_draft <= f->scheduler->options.draft.n_tokens && (p->n_draft == 0 || p->samples));
        if (p->samples) {
            int32_t *text = malloc((n + OCTE_DRAFT_MAX) * sizeof(*text));
            memcpy(text, p->tokens, n * sizeof(*text));
            o->token = fake_next(f, text, n);
            o->finish = done != NULL && done(p, o->token, context);
            for (uint32_t at = octe__guess_after(p, 0, o->token); !o->finish && at > 0; at = octe__guess_after(p, at, o->token)) {
                f->n_beside += p->parents != NULL && at != o->n_accepted + 1;
                text[n + o->n_accepted] = o->token;
                o->way[o->n_accepted++] = (uint8_t)at;
                o->token = fake_next(f, text, n + o->n_accepted);
                o->finish = done != NULL && done(p, o->token, context);
            }
            free(text);
        }
    }
    assert_int_equal(n_rows, step.n_rows);
    assert_int_equal(n_samples, step.n_samples);
    assert_in_range(n_samples, 0, f->scheduler->options.max_step_samples);
    octe_scheduler_commit(f->scheduler, outcomes);
    free(outcomes);
    f->n_steps++;
    return true;
}

static void count_pool(const fake_pool *f, int g)
{
    const octe_scheduler *s = f->scheduler;
    const octe__pages *p = &s->pages[g];
    uint32_t *holders = calloc((size_t)p->n, sizeof(*holders));
    for (uint32_t i = 0; i < s->stats.n_running; i++) {
        const octe__request *r = s->running[i];
        assert_true(r->n_pages >= octe__pages_for(s, r->n_computed));
        assert_true(r->n_pages <= octe__pages_for(s, r->n_tokens));   /* none of guesses: one token is not computed yet */
        for (uint32_t k = 0; k < r->n_pages; k++) {
            if (g == OCTE__POOL_WINDOW && k < r->n_passed) {
                assert_int_equal(r->pages[g][k], OCTE__NO_PAGE);
            } else {
                assert_in_range(r->pages[g][k], 0, p->n - 1);
                holders[r->pages[g][k]]++;
            }
        }
    }
    int64_t n_free = p->n - p->n_fresh, n_cached = 0, n_used = 0, n_shared = 0;
    for (int32_t page = p->free_first; page != OCTE__NO_PAGE; page = p->next[page]) {
        assert_int_equal(p->holders[page], 0);
        assert_false(p->kept[page]);
        n_free++;
    }
    for (int32_t page = p->oldest; page != OCTE__NO_PAGE; page = p->next[page]) {
        assert_int_equal(p->holders[page], 0);
        assert_true(p->kept[page]);
        n_cached++;
    }
    for (int64_t i = 0; i < p->n; i++) {
        assert_int_equal(p->holders[i], holders[i]);
        n_used += holders[i] > 0;
        n_shared += holders[i] > 1;
    }
    assert_int_equal(n_free, p->n_free);
    assert_int_equal(n_cached, p->n_cached);
    assert_int_equal(n_shared, p->n_shared);
    assert_int_equal(n_free + n_cached + n_used, p->n);
    free(holders);
}

void fake_count_up(const fake_pool *f)
{
    const octe_scheduler *s = f->scheduler;
    for (int g = 0; g < octe__n_pools(s); g++) {
        count_pool(f, g);
    }
    for (int64_t i = 0; i < s->pages[0].n; i++) {
        const octe__prefix_node *node = &s->prefix.nodes[i];
        assert_int_equal(node->n_tokens > 0, s->pages[0].kept[i]);
        if (node->n_tokens > 0 && node->parent != OCTE__ROOT) {
            assert_int_equal(s->prefix.nodes[node->parent].n_tokens, s->options.page_size);
            assert_true(s->pages[0].holders[node->parent] >= s->pages[0].holders[i]);
        }
        if (node->n_tokens > 0 && node->window_page != OCTE__NO_PAGE) {
            assert_true(s->pages[1].kept[node->window_page]);
            assert_int_equal(s->prefix.node_of_window[node->window_page], i);
        }
    }
    uint32_t n_waiting = 0, n_places = 0;
    bool *taken = calloc(s->options.n_swap + 1, sizeof(*taken));
    for (uint32_t i = 0; i < s->n_free_places; i++, n_places++) {
        assert_false(taken[s->free_places[i]]);
        taken[s->free_places[i]] = true;
    }
    for (const octe__request *r = s->first_waiting; r != NULL; r = r->next, n_waiting++) {
        for (int g = 0; g < octe__n_pools(s); g++) {
            for (uint32_t i = g == OCTE__POOL_WINDOW ? r->n_swapped_passed : 0; i < r->n_swapped; i++, n_places++) {
                assert_false(taken[r->places[g][i]]);
                taken[r->places[g][i]] = true;
            }
        }
        assert_int_equal(r->n_pages, 0);
        assert_true(r->next == NULL || octe__request_before(r, r->next));
    }
    free(taken);
    assert_int_equal(n_places, s->options.n_swap);
    assert_int_equal(s->n_free_places + s->stats.n_swap_used, s->options.n_swap);
    assert_int_equal(n_waiting, s->stats.n_waiting);
    for (uint32_t i = 0; i < s->stats.n_running; i++) {
        assert_int_equal(s->running[i]->n_swapped, 0);
    }
    for (uint32_t i = 1; i < s->stats.n_running; i++) {
        assert_true(octe__request_before(s->running[i - 1], s->running[i]));
    }
}
