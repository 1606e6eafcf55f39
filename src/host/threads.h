/* threads.h: owns the library's own threads and the call that spreads a task over them or over the caller's hook.
 *
 * Threads: oct__executor_run may be called from any thread, from several at once, and from within a task: whoever
 * finds the threads taken runs all of its own task itself, so that nobody ever waits for somebody who waits. */
#ifndef OCT_HOST_THREADS_H
#define OCT_HOST_THREADS_H

#include <stdint.h>

#include "host/memory.h"
#include "host/numa.h"
#include "octavo/context.h"

typedef struct oct__threads oct__threads;

/* CPUs that this process may use, at least 1. */
uint32_t oct__threads_usable_cpus(void);

/* Most threads that one executor uses; more than this and a claim no longer fits its field. */
#define OCT__THREADS_MAX 1024u

/* Starts n_threads - 1 sleeping threads (the caller of a run is the first). n_threads in 1..OCT__THREADS_MAX.
 * OUT_OF_MEMORY when memory or threads run out; then nothing is left behind. The allocator outlives the threads. */
oct_status oct__threads_create(const oct__allocator *allocator, uint32_t n_threads, oct__threads **threads);

/* The same on a given topology instead of the system's: with CPUs on several nodes each thread stays on the CPUs of its node (oct__numa_node_of_thread). */
oct_status oct__threads_create_on(const oct__allocator *allocator, uint32_t n_threads, const oct__numa *numa, oct__threads **threads);

/* Ends and joins them; not during a run. NULL is fine. */
void oct__threads_destroy(oct__threads *threads);

/* A context's way of running tasks: the hook if there is one, else `threads`, else the calling thread. */
typedef struct oct__executor {
    void (*parallel_for)(void *user, uint32_t nth, oct_task task, void *arg);
    void *user;
    oct__threads *threads;     /* NULL with a hook, or when max_threads is 1 */
    uint32_t max_threads;
} oct__executor;

/* task(arg, ith, nth) once for each ith in [0, nth); returns when all have returned, and all they wrote is seen.
 * nth is cut to max_threads; 0 counts as 1. */
void oct__executor_run(const oct__executor *executor, uint32_t nth, oct_task task, void *arg);

/* The share of part ith of nth in n things, [*begin, *end): every thing in one share, shares in order and equal but for one. n >= 0. */
static inline void oct__executor_share(int64_t n, uint32_t ith, uint32_t nth, int64_t *begin, int64_t *end)
{
    const int64_t each = n / nth, rest = n % nth;
    *begin = each * ith + (ith < rest ? ith : rest);
    *end = *begin + each + (ith < rest);
}

#endif
