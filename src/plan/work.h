/* A step's work: what split.c makes of a batch and what a backend's runner executes. Constant during a run but for the atomic
 * counters, which every run leaves at zero, so that the next one needs no reset and no barrier of its own. */
#ifndef OCT_PLAN_WORK_H
#define OCT_PLAN_WORK_H

#include <stdatomic.h>
#include <stdbool.h>

#include "plan/variant.h"

/* One tile for one thread: rows [row0, row0 + n_rows) of the batch x heads [head0, head0 + n_heads) x keys [key0, key1). */
typedef struct oct__item {
    const oct__variant *variant;
    int32_t sequence;
    uint32_t n_rows;
    int64_t row0;
    uint32_t head_kv, head0, n_heads;
    uint32_t split, n_splits;      /* n_splits > 1: the states of a group's items are merged in split order by whoever arrives last */
    int64_t group;                 /* index into arrived[], or -1 when n_splits == 1 */
    int64_t partial0;              /* partials + partial0: this item's state, see oct__partial_floats */
    int64_t key0, key1;            /* key0 == key1: no row sees a key; no kernel runs, the rows are still written */
    int64_t pos0;
} oct__item;

/* Claims. The threads of a run go by eights, which lie on one NUMA node and help each other out (src/host/threads.c), and items are dealt out to the eights in turns: a thread
 * claims those of its own from a counter that no other eight touches, and what is left of the others' when they are gone. So no counter is raised by all threads of a
 * large machine, and the same eight walks the same pages in every layer. */
enum { OCT__EIGHT = 8, OCT__EIGHTS_MAX = 128 };

typedef struct oct__claims {
    _Alignas(64) atomic_llong next;   /* of the eight's items: their number + nth claims a run, whoever makes the last one resets it */
} oct__claims;

static inline uint32_t oct__eights_of(uint32_t nth)
{
    const uint32_t n = (nth + OCT__EIGHT - 1) / OCT__EIGHT;
    return n < OCT__EIGHTS_MAX ? n : OCT__EIGHTS_MAX;
}

typedef struct oct__step {
    uint32_t n_sequences;
    int64_t n_rows, n_items, n_groups;
    oct__item *items;              /* dearest first */
    const int64_t *page_offset;    /* [n_sequences + 1] into pages */
    const int32_t *pages;
    const int32_t *kv_len;         /* [n_sequences] */
    const int32_t *qo_indptr;      /* [n_sequences + 1] */
    atomic_uint *arrived;          /* [n_groups] */
    oct__claims *claims;           /* [oct__eights_of(most threads of a run)], zero before a run and after it */
    float *partials;               /* 64-byte aligned */
    unsigned char *scratch;        /* a block for each thread, 64-byte aligned: the runner's part, then the variant's */
    size_t scratch_stride_bytes;   /* >= max over the variants of run_scratch_bytes(spec, tile_vectors) + scratch(spec, tile_vectors) */
    uint32_t q_stride, o_stride;   /* floats: dim_k, dim_v rounded up to 16 */
    bool has_avx2;                 /* the machine has AVX2, FMA and F16C, and the kernel saves YMM state: rows come and go by them */
} oct__step;

/* Where a thread is in its claims. */
typedef struct oct__claimant {
    uint32_t nth, n_eights, eight, n_done;   /* the eight whose items it claims now; eights that have none left */
} oct__claimant;

static inline oct__claimant oct__claimant_of(uint32_t ith, uint32_t nth)
{
    const uint32_t n = oct__eights_of(nth);
    return (oct__claimant){ .nth = nth, .n_eights = n, .eight = ith / OCT__EIGHT % n };
}

/* The next item for this thread; -1 when there is none, after which it claims no more in this run. */
static inline int64_t oct__claim(const oct__step *step, oct__claimant *c)
{
    for (; c->n_done < c->n_eights; c->n_done++) {
        atomic_llong *const next = &step->claims[c->eight].next;
        const int64_t n = (step->n_items - c->eight + c->n_eights - 1) / c->n_eights;
        const int64_t i = atomic_fetch_add_explicit(next, 1, memory_order_relaxed);
        if (i < n) {
            return c->eight + i * c->n_eights;
        }
        /* Each thread's last claim of an eight fails, so the one that gets this number is the last of the run. */
        if (i == n + c->nth - 1) {
            atomic_store_explicit(next, 0, memory_order_relaxed);
        }
        c->eight = c->eight + 1 < c->n_eights ? c->eight + 1 : 0;
    }
    return -1;
}

/* The item that the thread claims after this one if all of its eight go on alike; it may be past the last. */
static inline int64_t oct__claim_ahead(const oct__claimant *c, int64_t claim)
{
    return claim + (int64_t)c->n_eights * (c->nth < OCT__EIGHT ? c->nth : OCT__EIGHT);
}

/* Before a run, where one that some thread never joined may have left counters anywhere. */
static inline void oct__claims_reset(oct__claims *claims, uint32_t n_threads)
{
    for (uint32_t i = 0; i < oct__eights_of(n_threads); i++) {
        atomic_store_explicit(&claims[i].next, 0, memory_order_relaxed);
    }
}

/* Floats of one item's state: o [n_vectors][o_stride], then m [n_vectors], then z [n_vectors], rounded up to 16. The states of a
 * group lie one after the other in split order, so split s of a group begins (s - own split) states from the own partial0. */
static inline int64_t oct__partial_floats(uint32_t n_vectors, uint32_t o_stride)
{
    return ((int64_t)n_vectors * (o_stride + 2) + 15) / 16 * 16;
}

/* What the runner needs of a thread's scratch block besides the variant's own: q, o, m, z of the largest tile. src/cpu/attn_run.c. */
size_t oct__attn_run_scratch_bytes(const oct_attn_spec *spec, uint32_t tile_vectors);

/* Executes the step over one layer: the share of thread ith of nth. Checked arguments. src/cpu/attn_run.c. */
void oct__attn_run_part(const oct__step *step, const oct_attn_spec *spec, const oct_attn_args *args, uint32_t ith, uint32_t nth);

#endif
