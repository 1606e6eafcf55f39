/* machine.h: owns what benchmarks know of this machine: its name, its rates, the size of its caches; and the contexts they run in.
 * Single-threaded. */
#ifndef APP_BENCH_MACHINE_H
#define APP_BENCH_MACHINE_H

#include "apps/rates.h"

typedef struct bench_machine {
    char cpu[128];
    app_rates rates;           /* what contexts get: what the user has, or nothing */
    oct_rates limits;          /* what fractions are of: the same, or measured now */
    bool measured_now;
    uint64_t l3_bytes;
} bench_machine;

/* rates: the flag's value or NULL. Without rates, and with `measure`, takes two seconds to find the limits on max_threads threads. Returns 0, or the
 * exit code after a message. */
int bench_machine_open(const char *rates, bool measure, uint32_t max_threads, bench_machine *machine);

/* A context for so many threads; NULL after a message. Destroy it. */
oct_context *bench_machine_context(const bench_machine *machine, uint32_t n_threads);

/* Bytes that runs must go over so that the next one finds its pages in memory: twice the third-level cache, 64 MiB at least. */
uint64_t bench_machine_cold_bytes(const bench_machine *machine);

#endif
