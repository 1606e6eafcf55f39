/* A pool without a model: for every slot it remembers which text had been read up to there, so that a page used for a wrong text, a wrong position or too
 * early is seen. The "next token" is a function of the whole text before it. One thread. */
#ifndef TEST_FAKE_POOL_H
#define TEST_FAKE_POOL_H

#include "engine/serve/scheduler_state.h"

typedef struct fake_pool {
    octe_scheduler *scheduler;
    uint64_t *stored[2];      /* [pages][page_size] */
    uint64_t *host;           /* [n_swap][page_size] */
    uint32_t n_vocab;
    bool repeats;             /* mostly what stood five tokens before */
    uint64_t n_steps;
    uint64_t n_beside;        /* guesses that came true on another branch than the first */
} fake_pool;

/* Fills the options' copy_page and swap and opens both. */
void fake_pool_open(fake_pool *f, octe_scheduler_options *o, uint32_t n_vocab);
void fake_pool_close(fake_pool *f);

/* The token after tokens[n]. */
int32_t fake_next(const fake_pool *f, const int32_t *tokens, uint32_t n);

/* One step: plan, check every visible key of every row, store, sample, commit. done: called for each part that sampled, before the commit, to say
 * whether it ends there. False: nothing to do. Fails the test on a wrong page. */
bool fake_step(fake_pool *f, bool (*done)(const octe_scheduled *part, int32_t token, void *context), void *context);

/* Counts everything up: pages, holders, lists, tree. Fails the test where a number is wrong. */
void fake_count_up(const fake_pool *f);

#endif
