/* The scheduler: which tokens of which requests the next step computes, and in which pages their keys and values lie. Knows no model: whoever
 * drives it runs the steps (service.c) or pretends to (the tests). One thread at a time.
 *
 *   octe_scheduler_plan -> run the step, sample where a part asks for it -> octe_scheduler_commit, again and again.
 *
 * Prompts are computed in chunks, in one step with others' single tokens. A request's rank is fixed when it comes: the work done so far (or, for a
 * client with requests of its own waiting, what those will cost), plus its priority's worth of tokens; the lowest goes first. So nobody starves: what comes
 * later ranks lower in the end. Requests are admitted in the order of ranks when the pages of their whole prompt are there. When pages run out later, the
 * request of the highest rank gives its own back, and is computed again or, where the host has room for its pages, copied back. */
#ifndef OCTE_SERVE_SCHEDULER_H
#define OCTE_SERVE_SCHEDULER_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/serve/draft.h"
#include "octavo/status.h"

typedef struct octe_scheduler octe_scheduler;

/* Speculation: a running answer's next token is computed together with guesses of those after it (draft.h), and as many of them stay as the sampling confirms. */
typedef struct octe_draft_options {
    uint32_t n_tokens;                    /* most guesses of a request and step, at most OCTE_DRAFT_MAX; 0: off */
    uint32_t least_match, most_match;     /* tokens at the text's end that must have stood before: 1 <= least <= most */
    uint32_t max_running;                 /* none while more requests than this run; 0: any number */
    uint32_t n_branches;                  /* trees of at most so many branches, OCTE_BRANCHES_MAX; 0, 1: one guess after the other. Neither deterministic nor with windows */
} octe_draft_options;

typedef struct octe_scheduler_options {
    uint32_t page_size;            /* tokens, both pools */
    int64_t n_pages;               /* of the layers of full attention */
    int64_t n_pages_window;        /* of the layers with a window; 0: none */
    uint32_t window_tokens;        /* 0: none */
    uint32_t max_running;          /* requests that hold pages at once, and parts of a step */
    uint32_t max_context_tokens;   /* prompt and answer of one request */
    uint32_t max_step_rows;        /* tokens of a step */
    uint32_t chunk_tokens;         /* prompt tokens of one request in a step; 0: max_step_rows */
    uint32_t max_waiting;          /* 0: any number */
    uint32_t max_step_samples;     /* rows of a step with logits, guesses among them; 0: max_running */
    octe_draft_options draft;
    bool deterministic;            /* where a request's text is cut into chunks depends on itself alone: chunks end at multiples of chunk_tokens, cached
                                      beginnings are whole chunks, and an answer that is computed again is so token by token. chunk_tokens: a multiple of the page
                                      size, at most max_step_rows - max_running */
    bool prefix_cache;             /* keep the pages of what is done for texts that begin the same */
    uint64_t (*hash)(const int32_t *tokens, uint32_t n);   /* of a page's tokens, for tests; NULL: a good one */
    /* Copies a page (of the window pool or the other) before the next step runs; called by plan. False: it can't, the beginning is computed instead.
     * NULL: partly equal pages are not used. */
    bool (*copy_page)(void *user, bool window, int32_t from, int32_t to);
    /* Preempted requests keep what they have computed in n_swap places of the host, a page of either pool each; 0: they are computed again. out moves a page
     * to a place, else a place to a page; called by plan. False: it can't, the request is computed again. */
    uint32_t n_swap;
    bool (*swap)(void *user, bool window, bool out, int32_t page, uint32_t place);
    void *user;
} octe_scheduler_options;

/* INVALID_ARGUMENT names the option; OUT_OF_MEMORY. */
oct_status octe_scheduler_open(const octe_scheduler_options *options, octe_scheduler **scheduler, oct_error *error);
void octe_scheduler_close(octe_scheduler *scheduler);   /* NULL is fine */

typedef struct octe_request_spec {
    const int32_t *prompt;         /* copied */
    uint32_t n_prompt;             /* >= 1 */
    uint32_t max_new_tokens;       /* >= 1 */
    int32_t priority;              /* lower goes first; one step of it is worth OCTE_PRIORITY_TOKENS of waiting. -1000 .. 1000 */
    uint64_t client;               /* requests of one client queue behind each other; 0: of nobody in particular */
    int32_t draft_tokens;          /* of octe_draft_options.n_tokens, at most so many; 0: all of them; -1: none */
    void *user;
} octe_request_spec;

enum { OCTE_PRIORITY_TOKENS = 65536, OCTE_PRIORITY_MAX = 1000 };

/* Takes a request in. *id: never 0, never again. Errors, with the numbers: INVALID_ARGUMENT (empty, longer than the context or than the pool can ever hold),
 * OUT_OF_PAGES (max_waiting are waiting), OUT_OF_MEMORY. */
oct_status octe_scheduler_add(octe_scheduler *scheduler, const octe_request_spec *spec, uint64_t *id, oct_error *error);

/* The errors of add that depend on the request and the options alone. Any thread. */
oct_status octe_scheduler_check(const octe_scheduler *scheduler, const octe_request_spec *spec, oct_error *error);

/* Drops a request; not between plan and commit. False: there is none of that id (it has ended). */
bool octe_scheduler_cancel(octe_scheduler *scheduler, uint64_t id);

/* One request's part of a step: tokens[n_past .. n_past + n_tokens) of it, continuing n_past stored ones. */
typedef struct octe_scheduled {
    uint64_t id;
    void *user;
    const int32_t *tokens;         /* from the request's first one on */
    uint32_t n_past, n_tokens;
    uint32_t n_draft;              /* the last so many of n_tokens are guesses, and have logits like the one before them */
    const uint8_t *parents;        /* NULL: each token follows the one before. Else [1 + n_draft] of a tree (draft.h); n_tokens is 1 + n_draft */
    bool samples;                  /* the logits of its last token (that is no guess) give the next one */
    const int32_t *pages[2];       /* of the full pool and the window's, from key 0 on; -1 where the window has passed. [1] NULL without window */
    uint32_t n_prompt, n_cached;   /* n_cached: prompt tokens that were taken from the cache when it last was admitted */
} octe_scheduled;

typedef struct octe_step_plan {
    const octe_scheduled *parts;   /* owned by the scheduler, until the next call */
    uint32_t n_parts, n_rows, n_samples;
} octe_step_plan;

/* The next step. False: no request is there. Every plan is followed by a commit or an abandon. */
bool octe_scheduler_plan(octe_scheduler *scheduler, octe_step_plan *step);

/* The guess of this token that follows guess `at`, counted from 1 (0: what is no guess); 0: there is none. */
static inline uint32_t octe__guess_after(const octe_scheduled *part, uint32_t at, int32_t token)
{
    const int32_t *const guess = part->tokens + part->n_past + part->n_tokens - part->n_draft;
    for (uint32_t i = at + 1; i <= part->n_draft; i++) {
        if ((part->parents != NULL ? part->parents[i] : i - 1u) == at && guess[i - 1] == token) {
            return i;
        }
    }
    return 0;
}

/* What came of a part that samples; of another part nothing is looked at. */
typedef struct octe_outcome {
    uint32_t n_accepted;           /* of the part's guesses, the first so many were sampled; each confirms the row that follows it. Of a tree: so many on a way from its beginning */
    uint8_t way[OCTE_DRAFT_MAX];   /* of a tree: the places of these, counted from 1 */
    int32_t token;                 /* after those */
    bool finish;                   /* in: this token was the last. out: also when max_new_tokens are there */
} octe_outcome;

/* The step has run. outcomes[n_parts]. A request that finishes is forgotten; its pages stay in the cache. */
void octe_scheduler_commit(octe_scheduler *scheduler, octe_outcome *outcomes);

/* The step has not run: as before the plan, but for pages already handed out. */
void octe_scheduler_abandon(octe_scheduler *scheduler);

typedef struct octe_scheduler_stats {
    struct octe_pool_stats { int64_t n, n_free, n_cached, n_used, n_shared; uint64_t n_evicted; } pool[2];
    uint32_t n_running, n_waiting;
    uint64_t n_added, n_finished, n_cancelled, n_refused, n_preempted, n_steps, n_pages_copied;
    uint64_t n_swapped_out, n_swapped_in;   /* requests */
    uint32_t n_swap_used;                   /* places */
    uint64_t n_rows;                   /* tokens computed, guesses among them */
    uint64_t n_drafts, n_draft_tokens, n_accepted_tokens, n_accepted_at[OCTE_DRAFT_MAX];   /* parts with guesses, guesses, those that came true, by place */
    uint64_t n_prompt_tokens, n_cached_tokens;   /* looked up in the cache, found there; each admission counts */
} octe_scheduler_stats;

void octe_scheduler_stats_get(const octe_scheduler *scheduler, octe_scheduler_stats *stats);

/* Forgets every cached page that no request holds. */
void octe_scheduler_clear_cache(octe_scheduler *scheduler);

#endif
