/* cost.h: owns predicted times: how much there is to do, how fast this machine is, and what follows.
 *
 * Threads: pure functions. */
#ifndef OCT_PLAN_COST_H
#define OCT_PLAN_COST_H

#include "octavo/rates.h"
#include "plan/variant.h"

/* What a machine does in a second, as far as costs ask. Defaults ship by CPU family; `octavo tune` measures them. */
typedef struct oct__rates {
    double core_read_bytes;     /* one thread reading memory */
    double machine_read_bytes;  /* all threads together */
    double speed;               /* of one core, against the core on which the rows' costs were measured */
    const char *source;         /* where the numbers are from, for people; lives as long as the machine */
    double bf16_dot;            /* of a core's bf16 dot products, against `speed` times those of that same core; 0: unknown, taken as 1 */
} oct__rates;

/* The defaults for a machine with these facts. */
oct__rates oct__rates_default(const oct__facts *machine);

/* The same from a measurement that oct__rates_complaint finds nothing wrong with; source points into it. */
oct__rates oct__rates_measured(const oct_rates *measured);

/* Why a measurement cannot be this machine's, as the name of the field; NULL when it can. */
const char *oct__rates_complaint(const oct_rates *measured);

/* How much there is to do: what oct__cost's fields are multiplied by, and the bytes that must come from memory. */
typedef struct oct__amount {
    double items, macs, converts, exps, bytes;
    double vectors;                                          /* elements of q and o */
    double converts_i8, converts_16bit, converts_f32;        /* of the converts, those of elements that are no 8-bit floats */
    /* Multiply-adds of scores for lanes that stay empty where a kernel has vectors in lanes of 16: with more than 8 vectors, what rounding
     * their number up to 16 adds. */
    double pads;
} oct__amount;

/* The empty lanes of a tile of so many vectors. */
double oct__amount_pads(uint32_t n_vectors);

/* n tiles of n_vectors query vectors x n_keys keys of one KV head. */
oct__amount oct__amount_of_tiles(const oct_kv_spec *kv, double n, uint32_t n_vectors, int64_t n_keys);

/* A write of n_tokens, and a merge. */
oct__amount oct__amount_of_write(const oct_kv_spec *kv, uint32_t src_dtype, int64_t n_tokens);
oct__amount oct__amount_of_merge(int64_t rows, uint32_t heads, uint32_t dim, uint32_t n_parts);

/* Seconds on n_threads threads that share the work evenly: arithmetic over the cores, but never less than the bytes over
 * what the machine can read. */
double oct__cost_seconds(const oct__cost *cost, const oct__rates *rates, const oct__amount *amount, uint32_t n_threads);

/* Threads worth waking for work that takes one thread this long: at least 1, at most max_threads. */
uint32_t oct__cost_threads(double seconds, uint32_t max_threads);

#endif
