/* measure.h: owns what this CPU can do in a second, measured: oct_rates of octavo/rates.h.
 *
 * Threads: one measurement at a time; its tasks run on the executor, each on memory of its own. */
#ifndef OCT_CPU_MEASURE_H
#define OCT_CPU_MEASURE_H

#include "host/threads.h"
#include "octavo/rates.h"
#include "plan/variant.h"

/* Fills all numbers of *rates in about `seconds`; leaves cpu and source alone. OUT_OF_MEMORY. */
oct_status oct__cpu_measure(const oct__facts *machine, const oct__allocator *allocator, const oct__executor *executor, double seconds, oct_rates *rates);

/* A piece of work, some tens of microseconds of it. Returns what was done, in the rate's unit; *sink takes a result, so that it is not
 * left out. `to` is written by copies only. */
typedef struct oct__measure_work {
    const uint8_t *from;
    uint8_t *to;
    size_t bytes;            /* a multiple of 2048 */
    size_t stride;           /* from one of four streams to the next; who reads one stream doesn't look at it */
} oct__measure_work;
typedef double oct__measure_fn(const oct__measure_work *work, float *sink);

/* By instruction set, each in a file of its own: measure.c, measure_avx2.c, measure_avx512*.c. */
oct__measure_fn oct__measure_clock, oct__measure_read__plain, oct__measure_copy;
oct__measure_fn oct__measure_copy_cached__avx2, oct__measure_fma__avx2, oct__measure_convert__avx2;
oct__measure_fn oct__measure_copy_cached__avx512, oct__measure_fma__avx512, oct__measure_convert__avx512;
oct__measure_fn oct__measure_dot_bf16, oct__measure_dot_i8, oct__measure_dot_amx, oct__measure_convert_i8__avx2, oct__measure_convert_i8__avx512;

/* Ways of reading: a core gets the most from memory by another one on each machine. One stream, or a fourth of the bytes from each of four, side by side as
 * attention reads K's and V's pages; and with lines asked for ahead or left to the hardware. */
enum { OCT__MEASURE_READS = 4, OCT__MEASURE_STREAMS = 4, OCT__MEASURE_AHEAD_BYTES = 2048 };
extern oct__measure_fn *const oct__measure_read__avx2[OCT__MEASURE_READS], *const oct__measure_read__avx512[OCT__MEASURE_READS];   /* 1, 1 ahead, 4, 4 ahead */
static inline int oct__measure_read_streams(int way) { return way < 2 ? 1 : OCT__MEASURE_STREAMS; }

/* Twelve chains: more than any core has multiply-add units times their latency (2 x 5), and few enough for 16 registers. */
#define OCT__MEASURE_CHAINS(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11)
enum { OCT__MEASURE_N_CHAINS = 12, OCT__MEASURE_TURNS = 4096 };

#endif
