/* machine.h: owns what benchmarks know of this machine, or of the GPU that they are asked about: its name, its rates, the size of its caches; and the
 * contexts they run in.
 * Single-threaded. */
#ifndef APP_BENCH_MACHINE_H
#define APP_BENCH_MACHINE_H

#include "apps/bench/device_clock.h"
#include "apps/rates.h"

typedef struct bench_machine {
    char cpu[128];
    app_rates rates;           /* what contexts get: what the user has, or nothing */
    oct_rates limits;          /* what fractions are of: the same, or measured now */
    bool measured_now;
    uint64_t l3_bytes;
    const char *device, *library;   /* as in oct_context_options; NULL: the CPU */
    char device_name[64];
    uint32_t n_units;          /* of a GPU */
    bench_device_clock *clock; /* of a GPU, or NULL */
} bench_machine;

/* The flags of commands that run on a GPU too. */
#define BENCH_DEVICE_FLAGS(device, library)                                                                                                              \
    { "--device", "cpu|cuda|cuda:N", APP_TEXT, device, 0, 0, false, "what computes: this machine, or an NVIDIA GPU (cpu)" },                                \
    { "--device-library", "FILE", APP_TEXT, library, 0, 0, false, "the GPU's driver, where the system does not find it by itself" }

/* rates: the flag's value or NULL. Without rates, and with `measure`, takes two seconds to find the limits on max_threads threads. device, library: the
 * flags' values or NULL; a GPU's limits are always measured, with `measure`, and its rates not loaded. Returns 0, or the exit code after a message. Closed in any case. */
int bench_machine_open(const char *rates, bool measure, uint32_t max_threads, const char *device, const char *library, bench_machine *machine);
void bench_machine_close(bench_machine *machine);   /* after all contexts; fine on a zeroed one */

/* A context for so many threads; NULL after a message. Destroy it. */
oct_context *bench_machine_context(const bench_machine *machine, uint32_t n_threads);

/* Bytes that runs must go over so that the next one finds its pages in memory: twice the third-level cache, 64 MiB at least. On a GPU: eight times its
 * second-level cache, since what a graph's end leaves in it must not help the next one much. */
uint64_t bench_machine_cold_bytes(const bench_machine *machine);

#endif
