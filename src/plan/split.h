/* split.h: owns how a batch becomes items (plan/work.h): which rows go to decode and which to extend, tiles of rows and
 * heads, the span of keys a tile can see, and how long spans are split over threads.
 *
 * Threads: pure functions over the caller's memory. */
#ifndef OCT_PLAN_SPLIT_H
#define OCT_PLAN_SPLIT_H

#include "plan/cost.h"
#include "plan/work.h"

/* A sequence with at most this many query rows is a decode. */
#define OCT__DECODE_ROWS_MAX 16u

/* Items are sorted by buckets of predicted time, eight to an octave. */
#define OCT__SPLIT_BUCKETS 2048u

typedef struct oct__split {
    /* in */
    const oct_attn_spec *spec;       /* legal */
    const oct__rates *rates;
    const oct__variant *decode, *extend;
    uint32_t n_threads, n_sequences;
    const int32_t *qo_indptr;        /* [n_sequences + 1], checked */
    const int32_t *kv_len;           /* [n_sequences], checked */
    /* out of oct__split_measure */
    int64_t n_items, n_items_split, n_groups, n_partial_floats;
    double seconds;                  /* of all items on one thread */
    double seconds_per_split;        /* a tile dearer than this is split; 0: by the spec's own rule, or never */
    int64_t bucket_at[OCT__SPLIT_BUCKETS];
} oct__split;

/* The rows of the batch that go to an operation, and the keys of the sequences they belong to. */
void oct__split_count(const oct__split *split, oct__op op, int64_t *n_rows, int64_t *n_keys);

/* What a variant would have to do in this batch: its operation's part of it, on one thread or many. */
oct__amount oct__split_amount(const oct__split *split, const oct__variant *variant);

/* Counts; then writes the n_items items, dearest first. Between the two nothing may change. */
void oct__split_measure(oct__split *split);
void oct__split_emit(oct__split *split, oct__item *items);

#endif
