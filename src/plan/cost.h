/* cost.h: owns predicted times: how fast this machine is, and what follows from how much there is to do (amount.h).
 *
 * Threads: pure functions. */
#ifndef OCT_PLAN_COST_H
#define OCT_PLAN_COST_H

#include "octavo/rates.h"
#include "plan/amount.h"

/* What a machine does in a second, as far as costs ask. Defaults ship by CPU family; `octavo tune` measures them. */
typedef struct oct__rates {
    double core_read_bytes;     /* one thread reading memory */
    double machine_read_bytes;  /* all threads together */
    double speed;               /* of one core, against the core on which the rows' costs were measured */
    const char *source;         /* where the numbers are from, for people; lives as long as the machine */
    /* Of a core's bf16 and int8 dot products and 512-bit FMAs, against `speed` times those of that same core; 0: unknown, taken as 1. */
    double bf16_dot, i8_dot, fma512;
} oct__rates;

/* The defaults for a machine with these facts. */
oct__rates oct__rates_default(const oct__facts *machine);

/* The same from a measurement that oct__rates_complaint finds nothing wrong with; source points into it. */
oct__rates oct__rates_measured(const oct_rates *measured);

/* Why a measurement cannot be this machine's, as the name of the field; NULL when it can. */
const char *oct__rates_complaint(const oct_rates *measured);

/* Seconds on n_threads threads that share the work evenly: arithmetic over the cores and a row's share of the time that memory takes, but never less
 * than that time, the bytes over what the machine can read. */
double oct__cost_seconds(const oct__cost *cost, const oct__rates *rates, const oct__amount *amount, uint32_t n_threads);

/* Threads worth waking for work that takes one thread this long: at least 1, at most max_threads. */
uint32_t oct__cost_threads(double seconds, uint32_t max_threads);

#endif
