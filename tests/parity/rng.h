/* rng.h: owns the tests' random numbers: splitmix64, so that a printed seed gives the same problem on every machine.
 * Threads: a generator belongs to one thread. */
#ifndef PARITY_RNG_H
#define PARITY_RNG_H

#include <math.h>
#include <stdint.h>

typedef struct rng { uint64_t state; } rng;

static inline rng rng_make(uint64_t seed)
{
    rng r = { seed * UINT64_C(0x9E3779B97F4A7C15) + UINT64_C(0xD1B54A32D192ED03) };
    return r;
}

static inline uint64_t rng_next(rng *r)
{
    uint64_t z = (r->state += UINT64_C(0x9E3779B97F4A7C15));
    z = (z ^ (z >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94D049BB133111EB);
    return z ^ (z >> 31);
}

/* In [0, 1). */
static inline double rng_unit(rng *r) { return (double)(rng_next(r) >> 11) * 0x1p-53; }

/* In [0, n); n >= 1. The bias of the remainder does not matter for n far below 2^64. */
static inline int64_t rng_below(rng *r, int64_t n) { return (int64_t)(rng_next(r) % (uint64_t)n); }

/* In [low, high]. */
static inline int64_t rng_between(rng *r, int64_t low, int64_t high) { return low + rng_below(r, high - low + 1); }

/* True once in n. */
static inline int rng_one_in(rng *r, int64_t n) { return rng_below(r, n) == 0; }

static inline double rng_normal(rng *r)
{
    const double u = 1.0 - rng_unit(r);
    return sqrt(-2.0 * log(u)) * cos(6.283185307179586 * rng_unit(r));
}

#define RNG_PICK(r, array) ((array)[rng_below((r), (int64_t)(sizeof(array) / sizeof((array)[0])))])

#endif
