/* What a scheduler is made of, for scheduler.c, compose.c and the tests that count it up. */
#ifndef OCTE_SERVE_SCHEDULER_STATE_H
#define OCTE_SERVE_SCHEDULER_STATE_H

#include "engine/serve/prefix.h"
#include "engine/serve/scheduler.h"

typedef struct octe__request {
    struct octe__request *next, *previous;   /* of the waiting list */
    uint64_t id;
    int64_t rank;
    int32_t priority;
    uint64_t client;
    void *user;
    uint32_t n_prompt, n_tokens, max_tokens;  /* n_tokens: prompt and answer so far */
    uint32_t n_computed;                      /* whose keys and values are in pages */
    uint32_t n_cached;
    int32_t *tokens;                          /* [max_tokens] */
    int32_t *pages[OCTE__POOLS];              /* [pages of max_tokens]; n_pages in use */
    uint32_t n_pages;                         /* in both lists; the window's first n_passed are OCTE__NO_PAGE */
    uint32_t n_passed;
    octe__node node;                          /* the last of its n_nodes first pages, which are in the tree */
    uint32_t n_nodes;
    uint32_t *places[OCTE__POOLS];            /* [n_swapped] of the host, NULL: not swapped out; the window's first n_swapped_passed have none */
    uint32_t n_swapped, n_swapped_passed, n_swapped_tokens;
    uint8_t parents[1 + OCTE_DRAFT_MAX];      /* of a tree of guesses */
    bool is_tree;
    uint32_t n_planned, n_draft;              /* rows of the step being planned; the last n_draft of them are guesses, behind tokens[n_tokens] */
    int32_t draft_tokens;
    bool running;
} octe__request;

typedef struct octe__client {
    uint64_t id;
    int64_t paid;                             /* up to where its requests so far have booked the machine */
} octe__client;

struct octe_scheduler {
    octe_scheduler_options options;           /* resolved */
    octe__pages pages[OCTE__POOLS];
    octe__prefix prefix;
    octe__request **running;                  /* [max_running], by rank */
    octe__request *first_waiting, *last_waiting;   /* by rank */
    octe__client *clients;
    uint32_t n_clients, clients_room;
    octe_scheduled *parts;                    /* [max_running] */
    octe__request **planned;                  /* [max_running] by part */
    uint32_t n_parts, rows_left;
    uint32_t *free_places, n_free_places;     /* [n_swap] */
    uint64_t last_id;
    int64_t clock;                            /* tokens computed, wrong guesses not among them: nobody asked for those */
    octe_scheduler_stats stats;
};

/* Whether a goes before b. */
static inline bool octe__request_before(const octe__request *a, const octe__request *b) { return a->rank != b->rank ? a->rank < b->rank : a->id < b->id; }

static inline uint32_t octe__pages_for(const octe_scheduler *s, uint32_t n_tokens) { return (uint32_t)(((uint64_t)n_tokens + s->options.page_size - 1) / s->options.page_size); }

static inline int octe__n_pools(const octe_scheduler *s) { return s->options.window_tokens > 0 ? OCTE__POOLS : 1; }

/* Most pages of the window pool that a request of n_tokens ever holds. */
uint32_t octe__most_window_pages(const octe_scheduler *s, uint32_t n_tokens);

/* Queues a request by its rank. */
void octe__scheduler_enqueue(octe_scheduler *s, octe__request *r);
void octe__scheduler_dequeue(octe_scheduler *s, octe__request *r);

/* swap.c. Copies the pages of a request that is about to let go to the host; false: there is no room, or it can't be. Back into pages that the request has
 * taken. Gives the places back. */
bool octe__request_swap_out(octe_scheduler *s, octe__request *r);
bool octe__request_swap_in(octe_scheduler *s, octe__request *r);
void octe__request_drop_swap(octe_scheduler *s, octe__request *r);

/* Gives back all pages, the last one first: nothing of it counts as computed then. */
void octe__request_let_go(octe_scheduler *s, octe__request *r);

#endif
