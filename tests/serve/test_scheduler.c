/* The scheduler over a pool that remembers texts instead of keys (fake_pool.h): random work with aborts, order, refusals, preemption, the prefix cache.
 * --more runs twenty times as many random seeds. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "serve/fake_pool.h"

static uint32_t n_seeds = 1;
static uint64_t random_state;

static uint32_t some(uint32_t below)
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((random_state >> 33) % below);
}

static octe_scheduler_options plain(void)
{
    return (octe_scheduler_options){.page_size = 4, .n_pages = 64, .max_running = 8, .max_context_tokens = 200, .max_step_rows = 24, .prefix_cache = true};
}

/* ---- random work --------------------------------------------------------------------------------------------------- */

enum { N_REQUESTS = 500, VOCAB = 64 };

typedef struct work {
    uint64_t id;
    uint32_t n_prompt, n_new, n_answer;
    int32_t prompt[160], answer[64];
    bool aborts, over, finished;
    uint64_t begun, ended;      /* steps */
} work;

/* Ends at the token 7, as a model's end would; the text must be what the request asked for. */
static bool take_token(const octe_scheduled *part, int32_t token, void *context)
{
    (void)context;
    work *w = part->user;
    assert_int_equal(part->id, w->id);
    assert_true(w->n_answer < w->n_new);
    assert_memory_equal(part->tokens, w->prompt, w->n_prompt * sizeof(int32_t));
    w->answer[w->n_answer++] = token;
    const bool ends = token == 7;
    w->finished = ends || w->n_answer == w->n_new;
    return ends;
}

/* The answer of a request that has the machine for itself. */
static void check_answer(const fake_pool *f, const work *w)
{
    int32_t text[160 + 64];
    memcpy(text, w->prompt, w->n_prompt * sizeof(int32_t));
    for (uint32_t i = 0; i < w->n_answer; i++) {
        text[w->n_prompt + i] = fake_next(f, text, w->n_prompt + i);
        assert_int_equal(w->answer[i], text[w->n_prompt + i]);
    }
    assert_true(w->n_answer == w->n_new || w->answer[w->n_answer - 1] == 7);
}

/* Texts that begin alike: one of four beginnings of any length, then words of its own out of few. */
static void invent(work *w)
{
    const uint32_t beginning = some(4), n_shared = some(100);
    *w = (work){.n_prompt = 1 + n_shared + some(40), .n_new = 1 + some(40), .aborts = some(100) < 30};
    for (uint32_t i = 0; i < w->n_prompt; i++) {
        w->prompt[i] = i < n_shared ? (int32_t)((beginning * 31 + i * i) % 5) : (int32_t)some(3);
    }
}

static uint64_t same_hash(const int32_t *tokens, uint32_t n)
{
    (void)tokens;
    (void)n;
    return 42;
}

static void run_random(const octe_scheduler_options *given, uint64_t seed)
{
    octe_scheduler_options o = *given;
    fake_pool f;
    fake_pool_open(&f, &o, VOCAB);
    f.repeats = o.draft.n_tokens > 0;
    work *w = calloc(N_REQUESTS, sizeof(*w));
    uint32_t n = 0, n_over = 0;
    uint64_t most_waited = 0;
    random_state = seed;
    while (n_over < N_REQUESTS) {
        for (uint32_t more = n < N_REQUESTS ? some(3) * some(3) : 0; more > 0 && n < N_REQUESTS; more--, n++) {
            invent(&w[n]);
            const octe_request_spec q = {w[n].prompt, w[n].n_prompt, w[n].n_new, (int32_t)some(3) - 1, some(6), (int32_t)some(5) - 1, &w[n]};
            assert_int_equal(octe_scheduler_add(f.scheduler, &q, &w[n].id, NULL), OCT_OK);
            w[n].begun = f.n_steps;
        }
        if (some(50) == 0) {
            octe_step_plan step;   /* a step that failed */
            if (octe_scheduler_plan(f.scheduler, &step)) {
                octe_scheduler_abandon(f.scheduler);
            }
            fake_count_up(&f);
        }
        const bool worked = fake_step(&f, take_token, NULL);
        fake_count_up(&f);
        assert_true(worked || n < N_REQUESTS || n_over == N_REQUESTS);
        for (uint32_t i = 0; i < n; i++) {
            if (w[i].over) {
                continue;
            }
            if (w[i].finished) {
                check_answer(&f, &w[i]);
                assert_false(octe_scheduler_cancel(f.scheduler, w[i].id));
            } else if (!w[i].aborts || some(12) != 0) {
                continue;
            } else {
                assert_true(octe_scheduler_cancel(f.scheduler, w[i].id));
                fake_count_up(&f);
            }
            w[i].over = true;
            w[i].ended = f.n_steps;
            most_waited = w[i].ended - w[i].begun > most_waited ? w[i].ended - w[i].begun : most_waited;
            n_over++;
        }
        assert_true(f.n_steps < 200000);
    }
    octe_scheduler_stats stats;
    octe_scheduler_stats_get(f.scheduler, &stats);
    assert_int_equal(stats.n_running + stats.n_waiting, 0);
    assert_int_equal(stats.pool[0].n_used, 0);
    assert_int_equal(stats.pool[1].n_used, 0);
    assert_int_equal(stats.n_finished + stats.n_cancelled, N_REQUESTS);
    print_message("  steps %llu, longest stay %llu, preempted %llu, cancelled %llu, cached %llu of %llu prompt tokens, copied %llu, evicted %llu and %llu, swapped %llu and %llu\n",
                  (unsigned long long)stats.n_steps, (unsigned long long)most_waited, (unsigned long long)stats.n_preempted, (unsigned long long)stats.n_cancelled,
                  (unsigned long long)stats.n_cached_tokens, (unsigned long long)stats.n_prompt_tokens, (unsigned long long)stats.n_pages_copied,
                  (unsigned long long)stats.pool[0].n_evicted, (unsigned long long)stats.pool[1].n_evicted, (unsigned long long)stats.n_swapped_out,
                  (unsigned long long)stats.n_swapped_in);
    /* What the configuration is there for has happened. */
    assert_int_equal(stats.n_cached_tokens > 0, o.prefix_cache);
    assert_int_equal(stats.n_pages_copied > 0, o.prefix_cache && !o.deterministic);
    assert_true(stats.n_preempted > 0 && stats.n_cancelled > 50);
    assert_int_equal(stats.n_swapped_in > 0, o.n_swap > 0);
    assert_int_equal(stats.n_swap_used, 0);
    assert_true(stats.n_accepted_tokens <= stats.n_draft_tokens && stats.n_draft_tokens <= stats.n_drafts * o.draft.n_tokens);
    assert_int_equal(stats.n_accepted_tokens > 100, o.draft.n_tokens > 0);
    assert_int_equal(stats.n_draft_tokens > stats.n_accepted_tokens, o.draft.n_tokens > 0);
    const bool trees = o.draft.n_tokens > 1 && o.draft.n_branches > 1 && !o.deterministic && o.window_tokens == 0;
    assert_int_equal(f.n_beside > 20, trees);
    octe_scheduler_clear_cache(f.scheduler);
    octe_scheduler_stats_get(f.scheduler, &stats);
    assert_int_equal(stats.pool[0].n_free, stats.pool[0].n);
    assert_int_equal(stats.pool[1].n_free, stats.pool[1].n);
    free(w);
    fake_pool_close(&f);
}

static void random_work(void **state)
{
    (void)state;
    for (uint32_t round = 0; round < n_seeds; round++) {
        for (uint32_t i = 0; i < 64; i++) {
            octe_scheduler_options o = plain();
            o.n_swap = (i & 16) != 0 ? 30 : 0;
            o.deterministic = (i & 1) != 0;
            o.chunk_tokens = o.deterministic ? 16 : 11;
            o.prefix_cache = (i & 2) == 0;
            o.hash = (i & 4) != 0 ? same_hash : NULL;
            o.n_pages = i == 0 ? 60 : 64;
            if ((i & 8) != 0) {
                o.window_tokens = 10;
                o.n_pages_window = 40;
            }
            if ((i & 32) != 0) {
                o.draft = (octe_draft_options){i % 4 == 0 ? 8 : 3 + i % 3, 1, 2, i % 5 == 0 ? 4 : 0, i % 4 == 0 ? 3 : i % 3};
                o.max_step_samples = i % 7 == 0 ? 10 : 24;
            }
            const uint64_t seed = 20260 + round * 64 + i;
            print_message("seed %llu: %s, cache %s, hash %s, window %u, host's places %u, guesses %u\n", (unsigned long long)seed, o.deterministic ? "deterministic" : "free", o.prefix_cache ? "on" : "off",
                          o.hash != NULL ? "always the same" : "good", o.window_tokens, o.n_swap, o.draft.n_tokens);
            run_random(&o, seed);
        }
    }
}

/* ---- refusals --------------------------------------------------------------------------------------------------------- */

static void refused(octe_scheduler *s, uint32_t n_prompt, uint32_t n_new, oct_status status, const char *text)
{
    static int32_t prompt[400];
    const octe_request_spec q = {.prompt = prompt, .n_prompt = n_prompt, .max_new_tokens = n_new};
    oct_error error = OCT_ERROR_INIT;
    uint64_t id = 5;
    assert_int_equal(octe_scheduler_add(s, &q, &id, &error), status);
    assert_int_equal(id, 0);
    if (strstr(error.text, text) == NULL) {
        fail_msg("'%s' does not say '%s'", error.text, text);
    }
}

static void refusals(void **state)
{
    (void)state;
    octe_scheduler_options o = plain();
    o.max_waiting = 2;
    o.n_pages = 32;   /* 128 tokens, less than the context */
    fake_pool f;
    fake_pool_open(&f, &o, VOCAB);
    refused(f.scheduler, 0, 4, OCT_INVALID_ARGUMENT, "the prompt has 0 tokens");
    refused(f.scheduler, 4, 0, OCT_INVALID_ARGUMENT, "may have 0");
    refused(f.scheduler, 150, 51, OCT_INVALID_ARGUMENT, "make 201; the context holds 200");
    refused(f.scheduler, 1, UINT32_MAX, OCT_INVALID_ARGUMENT, "make 4294967296");
    refused(f.scheduler, 100, 29, OCT_INVALID_ARGUMENT, "need 33 pages of 4 tokens; the pool has 32");
    const int32_t prompt[2] = {1, 2};
    uint64_t id;
    octe_request_spec q = {.prompt = prompt, .n_prompt = 2, .max_new_tokens = 2, .priority = OCTE_PRIORITY_MAX + 1};
    assert_int_equal(octe_scheduler_add(f.scheduler, &q, &id, NULL), OCT_INVALID_ARGUMENT);
    q.priority = 0;
    assert_int_equal(octe_scheduler_add(f.scheduler, &q, &id, NULL), OCT_OK);
    assert_int_equal(octe_scheduler_add(f.scheduler, &q, &id, NULL), OCT_OK);
    refused(f.scheduler, 4, 4, OCT_OUT_OF_PAGES, "2 requests are waiting already");
    assert_false(octe_scheduler_cancel(f.scheduler, 99));
    assert_true(octe_scheduler_cancel(f.scheduler, id));
    assert_false(octe_scheduler_cancel(f.scheduler, id));
    fake_pool_close(&f);

    /* The largest that fits does run. */
    o = plain();
    o.n_pages = 32;
    fake_pool_open(&f, &o, VOCAB);
    int32_t long_prompt[100] = {0};
    q = (octe_request_spec){.prompt = long_prompt, .n_prompt = 100, .max_new_tokens = 28};
    assert_int_equal(octe_scheduler_add(f.scheduler, &q, &id, NULL), OCT_OK);
    while (fake_step(&f, NULL, NULL)) {
        fake_count_up(&f);
    }
    assert_int_equal(f.scheduler->stats.n_finished, 1);
    fake_pool_close(&f);

    octe_scheduler *s;
    o = plain();
    o.max_step_rows = 7;
    assert_int_equal(octe_scheduler_open(&o, &s, NULL), OCT_INVALID_ARGUMENT);
    o = plain();
    o.deterministic = true;   /* chunks of 24 leave no row for others */
    assert_int_equal(octe_scheduler_open(&o, &s, NULL), OCT_INVALID_ARGUMENT);
    o.window_tokens = 8;
    assert_int_equal(octe_scheduler_open(&o, &s, NULL), OCT_INVALID_ARGUMENT);
}

/* ---- order ------------------------------------------------------------------------------------------------------------------ */

static uint64_t add(fake_pool *f, const int32_t *prompt, uint32_t n_prompt, uint32_t n_new, int32_t priority, uint64_t client)
{
    const octe_request_spec q = {prompt, n_prompt, n_new, priority, client, 0, NULL};
    uint64_t id;
    oct_error error = OCT_ERROR_INIT;
    if (octe_scheduler_add(f->scheduler, &q, &id, &error) != OCT_OK) {
        fail_msg("%s", error.text);
    }
    return id;
}

static const octe_scheduled *part_of(const octe_step_plan *step, uint64_t id)
{
    for (uint32_t i = 0; i < step->n_parts; i++) {
        if (step->parts[i].id == id) {
            return &step->parts[i];
        }
    }
    return NULL;
}

/* A prompt's chunk and others' single tokens make one step; the single tokens are never left out. */
static void mixed_steps(void **state)
{
    (void)state;
    octe_scheduler_options o = plain();
    fake_pool f;
    fake_pool_open(&f, &o, VOCAB);
    int32_t a[3] = {1, 2, 3}, b[60];
    for (int i = 0; i < 60; i++) {
        b[i] = i % 7;
    }
    const uint64_t short_one = add(&f, a, 3, 40, 0, 0);
    assert_true(fake_step(&f, NULL, NULL));
    const uint64_t long_one = add(&f, b, 60, 5, 0, 0);
    static const uint32_t rows[] = {23, 23, 14};
    for (int i = 0; i < 3; i++) {
        octe_step_plan step;
        assert_true(octe_scheduler_plan(f.scheduler, &step));
        assert_int_equal(step.n_parts, 2);
        assert_int_equal(part_of(&step, short_one)->n_tokens, 1);
        assert_true(part_of(&step, short_one)->samples);
        assert_int_equal(part_of(&step, long_one)->n_tokens, rows[i]);
        assert_int_equal(part_of(&step, long_one)->samples, i == 2);
        octe_scheduler_abandon(f.scheduler);
        assert_true(fake_step(&f, NULL, NULL));
    }
    fake_pool_close(&f);
}

/* What a client has asked for and given up costs its next request no place. */
static void given_up_is_not_paid_for(void **state)
{
    (void)state;
    octe_scheduler_options o = plain();
    o.max_running = 1;
    fake_pool f;
    fake_pool_open(&f, &o, VOCAB);
    const int32_t prompt[8] = {1, 2, 3, 4, 5, 6, 7, 0};
    uint64_t given_up[10];
    for (int i = 0; i < 10; i++) {
        given_up[i] = add(&f, prompt, 8, 8, 0, 1);
    }
    assert_true(fake_step(&f, NULL, NULL));   /* the first has begun */
    for (int i = 0; i < 10; i++) {
        assert_true(octe_scheduler_cancel(f.scheduler, given_up[i]));
    }
    const uint64_t own = add(&f, prompt, 8, 8, 0, 1), other = add(&f, prompt, 8, 8, 0, 2);
    assert_true(fake_step(&f, NULL, NULL));
    assert_int_equal(f.scheduler->stats.n_running, 1);
    assert_int_equal(f.scheduler->running[0]->id, own);
    assert_true(octe_scheduler_cancel(f.scheduler, own) && octe_scheduler_cancel(f.scheduler, other));
    fake_pool_close(&f);
}

/* One client's hundred requests leave room for another's one; a better priority goes before both. */
static void fairness(void **state)
{
    (void)state;
    octe_scheduler_options o = plain();
    o.max_running = 1;
    fake_pool f;
    fake_pool_open(&f, &o, VOCAB);
    const int32_t prompt[8] = {1, 2, 3, 4, 5, 6, 7, 0};
    for (int i = 0; i < 100; i++) {
        (void)add(&f, prompt, 8, 8, 0, 1);
    }
    assert_true(fake_step(&f, NULL, NULL));
    const uint64_t other = add(&f, prompt, 8, 8, 0, 2), urgent = add(&f, prompt, 8, 8, -1, 1);
    uint64_t urgent_done = 0, other_done = 0;
    while (other_done == 0) {
        assert_true(fake_step(&f, NULL, NULL));
        fake_count_up(&f);
        /* What no longer can be cancelled has ended; what can is asked for by its record, not cancelled. */
        bool urgent_there = false, other_there = false;
        for (uint32_t i = 0; i < f.scheduler->stats.n_running; i++) {
            urgent_there |= f.scheduler->running[i]->id == urgent;
            other_there |= f.scheduler->running[i]->id == other;
        }
        for (const octe__request *r = f.scheduler->first_waiting; r != NULL; r = r->next) {
            urgent_there |= r->id == urgent;
            other_there |= r->id == other;
        }
        urgent_done = urgent_done == 0 && !urgent_there ? f.n_steps : urgent_done;
        other_done = other_done == 0 && !other_there ? f.n_steps : other_done;
    }
    assert_in_range(urgent_done, 1, 12);      /* it preempted the first */
    assert_true(other_done > urgent_done && other_done < 40);
    assert_true(f.scheduler->stats.n_waiting > 90);
    fake_pool_close(&f);
}

/* An endless stream of a better priority holds a request up for what the priority is worth, no longer. */
static void no_starvation(void **state)
{
    (void)state;
    octe_scheduler_options o = plain();
    o.max_running = 2;
    o.prefix_cache = false;
    fake_pool f;
    fake_pool_open(&f, &o, VOCAB);
    const int32_t prompt[8] = {1, 2, 3, 4, 5, 6, 7, 0};
    for (int i = 0; i < 3; i++) {
        (void)add(&f, prompt, 8, 8, 0, 0);
    }
    const uint64_t slow = add(&f, prompt, 8, 1, 1, 0);
    bool there = true;
    while (there) {
        while (f.scheduler->stats.n_waiting < 3) {
            (void)add(&f, prompt, 8, 8, 0, 0);
        }
        octe_step_plan step;
        assert_true(octe_scheduler_plan(f.scheduler, &step));
        there = part_of(&step, slow) == NULL;
        octe_outcome outcomes[2] = {{.token = 1}, {.token = 1}};
        octe_scheduler_commit(f.scheduler, outcomes);
        assert_true(f.scheduler->stats.n_rows < OCTE_PRIORITY_TOKENS + 100);
    }
    assert_true(f.scheduler->stats.n_rows > OCTE_PRIORITY_TOKENS / 2);
    fake_pool_close(&f);
}

/* ---- the cache ---------------------------------------------------------------------------------------------------------- */

static uint32_t cached_of_next(fake_pool *f, const int32_t *prompt, uint32_t n)
{
    const uint64_t id = add(f, prompt, n, 1, 0, 0);
    octe_step_plan step;
    assert_true(octe_scheduler_plan(f->scheduler, &step));
    const uint32_t n_cached = part_of(&step, id)->n_cached;
    octe_scheduler_abandon(f->scheduler);
    while (fake_step(f, NULL, NULL)) {
        fake_count_up(f);
    }
    return n_cached;
}

static void cached_tokens(void **state)
{
    (void)state;
    for (int deterministic = 0; deterministic < 2; deterministic++) {
        octe_scheduler_options o = plain();
        o.deterministic = deterministic != 0;
        o.chunk_tokens = 16;
        fake_pool f;
        fake_pool_open(&f, &o, VOCAB);
        int32_t a[50];
        for (int i = 0; i < 50; i++) {
            a[i] = i % 13;
        }
        assert_int_equal(cached_of_next(&f, a, 50), 0);
        assert_int_equal(cached_of_next(&f, a, 50), deterministic ? 48 : 49);   /* 12 pages and one token copied */
        assert_int_equal(cached_of_next(&f, a, 48), deterministic ? 32 : 47);
        assert_int_equal(cached_of_next(&f, a, 30), deterministic ? 16 : 29);
        a[17] = 60;
        assert_int_equal(cached_of_next(&f, a, 50), deterministic ? 16 : 17);
        a[0] = 60;
        assert_int_equal(cached_of_next(&f, a, 50), 0);
        octe_scheduler_clear_cache(f.scheduler);
        assert_int_equal(cached_of_next(&f, a, 50), 0);
        fake_pool_close(&f);
    }
}

/* Sixteen prompts of one beginning that come together: it is computed once. */
static void together(void **state)
{
    (void)state;
    octe_scheduler_options o = plain();
    o.max_running = 16;
    o.n_pages = 200;
    fake_pool f;
    fake_pool_open(&f, &o, VOCAB);
    int32_t prompt[70] = {0};
    for (int i = 0; i < 64; i++) {
        prompt[i] = i % 11;
    }
    for (int i = 0; i < 16; i++) {
        prompt[65] = i;
        (void)add(&f, prompt, 70, 3, 0, 0);
    }
    while (fake_step(&f, NULL, NULL)) {
        fake_count_up(&f);
    }
    assert_int_equal(f.scheduler->stats.n_finished, 16);
    /* The first's 70, the others' last 6 at most, and two more tokens of each. */
    assert_true(f.scheduler->stats.n_rows <= 70 + 15 * 6 + 16 * 2);
    assert_true(f.scheduler->stats.n_cached_tokens >= 15 * 64);
    fake_pool_close(&f);
}

/* What was used longest ago goes first, and a text's end before its beginning. */
static void least_recently_used(void **state)
{
    (void)state;
    octe_scheduler_options o = plain();
    o.n_pages = 16;
    fake_pool f;
    fake_pool_open(&f, &o, VOCAB);
    int32_t text[3][24];
    for (int t = 0; t < 3; t++) {
        for (int i = 0; i < 24; i++) {
            text[t][i] = t * 20 + i % 5;
        }
    }
    assert_int_equal(cached_of_next(&f, text[0], 24), 0);
    assert_int_equal(cached_of_next(&f, text[1], 24), 0);
    assert_int_equal(cached_of_next(&f, text[0], 24), 23);   /* used again: the second is the oldest now */
    assert_int_equal(cached_of_next(&f, text[2], 24), 0);
    assert_int_equal(cached_of_next(&f, text[0], 24), 23);
    const uint32_t rest = cached_of_next(&f, text[1], 24);
    assert_in_range(rest, 4, 20);                            /* its beginning is still there */
    fake_pool_close(&f);
}

/* A window's pages are given back while the request runs, and a beginning whose window is gone is not used. */
static void window_pages(void **state)
{
    (void)state;
    octe_scheduler_options o = plain();
    o.window_tokens = 8;
    o.n_pages_window = 14;
    fake_pool f;
    fake_pool_open(&f, &o, VOCAB);
    int32_t a[120], b[120];
    for (int i = 0; i < 120; i++) {
        a[i] = i % 13;
        b[i] = 30 + i % 13;
    }
    const uint64_t id = add(&f, a, 120, 60, 0, 0);
    uint32_t most = 0;
    while (fake_step(&f, NULL, NULL)) {
        fake_count_up(&f);
        const uint32_t used = (uint32_t)octe__pages_used(&f.scheduler->pages[1]);
        most = used > most ? used : most;
    }
    (void)id;
    assert_in_range(most, 2, 4);                             /* at rest: the window and a page begun */
    assert_int_equal(f.scheduler->stats.n_finished, 1);
    assert_int_equal(cached_of_next(&f, a, 120), 0);         /* its answer has pushed the prompt's window out of the cache */
    assert_true(cached_of_next(&f, a, 120) >= 116);          /* now it is there again */
    assert_int_equal(cached_of_next(&f, b, 120), 0);
    assert_int_equal(cached_of_next(&f, a, 120), 0);
    fake_pool_close(&f);
}

/* Preempted and computed again: the answer is the same, and what is still in the cache is not computed again. */
static void preemption(void **state)
{
    (void)state;
    for (int i = 0; i < 4; i++) {
        const bool deterministic = (i & 1) != 0, swaps = (i & 2) != 0;
        octe_scheduler_options o = plain();
        o.n_pages = 20;
        o.max_running = 4;
        o.deterministic = deterministic;
        o.n_swap = swaps ? 20 : 0;
        o.prefix_cache = !swaps;
        o.chunk_tokens = o.deterministic ? 16 : 0;
        fake_pool f;
        fake_pool_open(&f, &o, VOCAB);
        work w[2];
        for (int k = 0; k < 2; k++) {
            w[k] = (work){.n_prompt = 20, .n_new = 40};
            for (int t = 0; t < 20; t++) {
                w[k].prompt[t] = k * 20 + t;
            }
            const octe_request_spec q = {w[k].prompt, 20, 40, 0, 0, 0, &w[k]};
            assert_int_equal(octe_scheduler_add(f.scheduler, &q, &w[k].id, NULL), OCT_OK);
        }
        while (fake_step(&f, take_token, NULL)) {
            fake_count_up(&f);
        }
        check_answer(&f, &w[0]);
        check_answer(&f, &w[1]);
        assert_true(f.scheduler->stats.n_preempted >= 1);
        /* Out of the host nothing is computed twice. */
        const uint64_t once = w[0].n_prompt + w[0].n_answer - 1 + w[1].n_prompt + w[1].n_answer - 1;
        assert_int_equal(f.scheduler->stats.n_swapped_in, swaps ? f.scheduler->stats.n_preempted : 0);
        assert_true(swaps ? f.scheduler->stats.n_rows == once : f.scheduler->stats.n_rows > once);
        fake_pool_close(&f);
    }
}

/* At most `most` steps in which no guess comes true; how many there were. */
static uint32_t guess_wrong(octe_scheduler *s, uint32_t most)
{
    octe_step_plan step;
    uint32_t n = 0;
    for (; n < most && octe_scheduler_plan(s, &step); n++) {
        octe_outcome outcomes[8] = {{0}};
        for (uint32_t i = 0; i < step.n_parts; i++) {
            const octe_scheduled *p = &step.parts[i];
            const uint32_t at = p->n_past + p->n_tokens - p->n_draft;
            outcomes[i].token = p->n_draft > 0 && p->tokens[at] == 1 ? 2 : p->n_draft > 0 ? 1 : (int32_t)(at % 2) + 1;
        }
        octe_scheduler_commit(s, outcomes);
    }
    return n;
}

typedef struct toll {
    uint32_t n_steps, n_waited;
    int64_t rank;
    octe_scheduler_stats pressed, cached;
} toll;

static toll toll_of(uint32_t n_draft, uint32_t window_tokens)
{
    toll t = {0};
    const int32_t few[2] = {1, 1};
    int32_t prompt[24];
    octe_scheduler_options o = {.page_size = 2, .n_pages = 22, .max_running = 2, .max_context_tokens = 64, .max_step_rows = 64, .max_step_samples = 64, .draft = {n_draft, 1, 3, 0, 1},
                                .window_tokens = window_tokens, .n_pages_window = window_tokens > 0 ? 44 : 0};
    fake_pool f;
    fake_pool_open(&f, &o, VOCAB);
    octe_request_spec q = {.prompt = few, .n_prompt = 2, .max_new_tokens = 20, .draft_tokens = -1};
    uint64_t id;
    assert_int_equal(octe_scheduler_add(f.scheduler, &q, &id, NULL), OCT_OK);
    q.max_new_tokens = 40;
    q.draft_tokens = 0;
    assert_int_equal(octe_scheduler_add(f.scheduler, &q, &id, NULL), OCT_OK);
    t.n_steps = guess_wrong(f.scheduler, 1000);
    octe_scheduler_stats_get(f.scheduler, &t.pressed);
    (void)add(&f, few, 2, 1, 0, 0);
    t.rank = f.scheduler->first_waiting->rank;
    fake_pool_close(&f);

    /* A text in the cache, three that guess, and one that comes later. */
    o.n_pages = 40;
    o.max_running = 4;
    o.prefix_cache = true;
    fake_pool_open(&f, &o, VOCAB);
    for (int32_t i = 0; i < 24; i++) {
        prompt[i] = 10 + i;
    }
    (void)add(&f, prompt, 24, 1, 0, 0);
    (void)guess_wrong(f.scheduler, 100);
    for (int32_t i = 0; i < 3; i++) {
        (void)add(&f, (int32_t[]){3 + i, 2, 1, 2}, 4, 40, 0, 0);
    }
    (void)guess_wrong(f.scheduler, 8);
    octe_scheduler_stats_get(f.scheduler, &t.cached);
    for (int32_t i = 0; i < 24; i++) {
        prompt[i] = 34 + i;
    }
    (void)add(&f, prompt, 24, 1, 0, 0);
    while (f.scheduler->stats.n_waiting > 0) {
        t.n_waited += guess_wrong(f.scheduler, 1);
    }
    fake_pool_close(&f);
    return t;
}

/* Nobody is preempted, waits longer, loses cached pages or ranks later for guesses that do not come true. */
static void wrong_guesses_cost_others_nothing(void **state)
{
    (void)state;
    for (uint32_t window = 0; window <= 8; window += 8) {
        const toll without = toll_of(0, window);
        for (uint32_t n = 5; n <= OCTE_DRAFT_MAX; n += 5) {
            const toll with = toll_of(n, window);
            assert_true(with.pressed.n_draft_tokens > 50 && with.cached.n_draft_tokens > 50);
            assert_int_equal(with.pressed.n_accepted_tokens + with.cached.n_accepted_tokens, 0);
            assert_int_equal(with.n_steps, without.n_steps);
            assert_int_equal(with.pressed.n_preempted, without.pressed.n_preempted);
            assert_int_equal(with.rank, without.rank);
            assert_int_equal(with.n_waited, without.n_waited);
            assert_memory_equal(&with.cached.pool, &without.cached.pool, sizeof(with.cached.pool));
        }
    }
}

/* A second prompt that fits only where the first has been promised room waits, though nothing of that room is taken yet. */
static void admission(void **state)
{
    (void)state;
    octe_scheduler_options o = plain();
    o.n_pages = 30;
    o.chunk_tokens = 8;
    fake_pool f;
    fake_pool_open(&f, &o, VOCAB);
    int32_t a[80], b[80];
    for (int i = 0; i < 80; i++) {
        a[i] = i % 13;
        b[i] = 20 + i % 13;
    }
    (void)add(&f, a, 80, 4, 0, 0);
    const uint64_t second = add(&f, b, 80, 4, 0, 0), third = add(&f, b + 7, 4, 1, 0, 0);
    octe_step_plan step;
    assert_true(octe_scheduler_plan(f.scheduler, &step));
    assert_null(part_of(&step, second));
    assert_null(part_of(&step, third));   /* small, and yet not before its turn */
    octe_scheduler_abandon(f.scheduler);
    while (fake_step(&f, NULL, NULL)) {
        fake_count_up(&f);
    }
    assert_int_equal(f.scheduler->stats.n_finished, 3);
    assert_int_equal(f.scheduler->stats.n_preempted, 0);
    fake_pool_close(&f);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(refusals),      cmocka_unit_test(mixed_steps),         cmocka_unit_test(given_up_is_not_paid_for), cmocka_unit_test(fairness),     cmocka_unit_test(no_starvation), cmocka_unit_test(cached_tokens),
        cmocka_unit_test(together),      cmocka_unit_test(least_recently_used), cmocka_unit_test(window_pages), cmocka_unit_test(preemption),    cmocka_unit_test(random_work),
        cmocka_unit_test(admission),     cmocka_unit_test(wrong_guesses_cost_others_nothing),
    };
    if (argc > 1 && strcmp(argv[1], "--more") == 0) {
        n_seeds = 20;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
