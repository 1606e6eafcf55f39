/* threads.c: a pool of threads that claim the parts of one task after the other.
 *
 * A run publishes (task, arg) and then a ticket: the run's number, its nth, and the next part to claim, in one atomic
 * word. Whoever raises the ticket has that part; a claim on an old run fails, since the number differs. So a thread that the
 * system wakes late takes nothing and holds up nobody: the caller claims parts as well until none is left.
 * Between runs a thread spins for some microseconds (the layers of a model follow each other closely) and then sleeps. */
#define _GNU_SOURCE /* pthread_setname_np, sched_getaffinity */
#include "host/threads.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>
#include <unistd.h>

enum {
    SPINS = 4000,   /* about 40 us of pause on a server core: longer than the gap between two layers' calls */
    CACHE_LINE = 64
};

/* ticket = run << 32 | nth << 16 | next */
#define TICKET(run, nth, next) ((uint64_t)(uint32_t)(run) << 32 | (uint64_t)(nth) << 16 | (uint64_t)(next))
#define TICKET_RUN(t) ((uint32_t)((t) >> 32))
#define TICKET_NTH(t) ((uint32_t)((t) >> 16 & 0xffff))
#define TICKET_NEXT(t) ((uint32_t)((t) & 0xffff))

struct oct__threads {
    const oct__allocator *allocator;
    uint32_t n_threads, n_started;
    int spins;                  /* SPINS; 0 with more threads than CPUs, where spinning takes the CPU from who has work */
    size_t size_bytes;

    pthread_mutex_t owner;      /* held by the caller of a run */
    oct_task task;              /* constant while a part of the run is unfinished */
    void *arg;

    _Alignas(CACHE_LINE) atomic_uint_least64_t ticket;
    _Alignas(CACHE_LINE) atomic_uint done;      /* parts of this run that have returned */

    _Alignas(CACHE_LINE) pthread_mutex_t mutex; /* for sleeping and waking only */
    pthread_cond_t work, finished;
    atomic_uint n_sleeping;
    atomic_bool caller_sleeps, stop;

    pthread_t handles[];        /* [n_threads - 1] */
};

uint32_t oct__threads_usable_cpus(void)
{
#if defined(__linux__)
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof(set), &set) == 0) {
        return (uint32_t)CPU_COUNT(&set);
    }
#endif
    /* A machine with more CPUs than cpu_set_t has bits, or another system. */
    const long online = sysconf(_SC_NPROCESSORS_ONLN);
    return online > 0 ? (uint32_t)online : 1;
}

static inline void pause_briefly(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#else
    atomic_signal_fence(memory_order_seq_cst);
#endif
}

/* Claims and runs parts of the run numbered `run` until none is left. */
static void run_parts(oct__threads *t, uint32_t run)
{
    uint64_t seen = atomic_load_explicit(&t->ticket, memory_order_acquire);
    for (;;) {
        if (TICKET_RUN(seen) != run || TICKET_NEXT(seen) >= TICKET_NTH(seen)) {
            return;
        }
        if (!atomic_compare_exchange_weak_explicit(&t->ticket, &seen, seen + 1, memory_order_acq_rel, memory_order_acquire)) {
            continue;
        }
        const uint32_t nth = TICKET_NTH(seen);
        t->task(t->arg, TICKET_NEXT(seen), nth);
        /* Sequentially consistent, as is the caller's announcement that it sleeps: one of the two sees the other. */
        if (atomic_fetch_add(&t->done, 1) + 1 == nth && atomic_load(&t->caller_sleeps)) {
            pthread_mutex_lock(&t->mutex);
            pthread_cond_signal(&t->finished);
            pthread_mutex_unlock(&t->mutex);
        }
        seen = atomic_load_explicit(&t->ticket, memory_order_acquire);
    }
}

static bool run_is_new(oct__threads *t, uint32_t last_run)
{
    return TICKET_RUN(atomic_load(&t->ticket)) != last_run || atomic_load(&t->stop);
}

static void *worker(void *argument)
{
    oct__threads *t = argument;
    uint32_t last_run = 0;
    for (;;) {
        int spins = 0;
        while (!run_is_new(t, last_run) && spins < t->spins) {
            pause_briefly();
            spins++;
        }
        if (!run_is_new(t, last_run)) {
            pthread_mutex_lock(&t->mutex);
            atomic_fetch_add(&t->n_sleeping, 1);
            while (!run_is_new(t, last_run)) {
                pthread_cond_wait(&t->work, &t->mutex);
            }
            atomic_fetch_sub(&t->n_sleeping, 1);
            pthread_mutex_unlock(&t->mutex);
        }
        if (atomic_load(&t->stop)) {
            return NULL;
        }
        last_run = TICKET_RUN(atomic_load(&t->ticket));
        run_parts(t, last_run);
    }
}

static void wake(oct__threads *t)
{
    if (atomic_load(&t->n_sleeping) > 0) {
        pthread_mutex_lock(&t->mutex);
        pthread_cond_broadcast(&t->work);
        pthread_mutex_unlock(&t->mutex);
    }
}

static void threads_run(oct__threads *t, uint32_t nth, oct_task task, void *arg)
{
    t->task = task;
    t->arg = arg;
    atomic_store(&t->done, 0);
    /* Run 0 is "no run yet", what a new thread has seen. */
    uint32_t run = TICKET_RUN(atomic_load(&t->ticket)) + 1;
    run += run == 0;
    atomic_store(&t->ticket, TICKET(run, nth, 0));
    wake(t);
    run_parts(t, run);

    for (int spins = 0; spins < t->spins && atomic_load_explicit(&t->done, memory_order_acquire) != nth; spins++) {
        pause_briefly();
    }
    if (atomic_load(&t->done) != nth) {
        pthread_mutex_lock(&t->mutex);
        atomic_store(&t->caller_sleeps, true);
        while (atomic_load(&t->done) != nth) {
            pthread_cond_wait(&t->finished, &t->mutex);
        }
        atomic_store(&t->caller_sleeps, false);
        pthread_mutex_unlock(&t->mutex);
    }
}

static void run_alone(uint32_t nth, oct_task task, void *arg)
{
    for (uint32_t ith = 0; ith < nth; ith++) {
        task(arg, ith, nth);
    }
}

void oct__executor_run(const oct__executor *executor, uint32_t nth, oct_task task, void *arg)
{
    if (nth > executor->max_threads) {
        nth = executor->max_threads;
    }
    if (nth <= 1) {
        task(arg, 0, 1);
        return;
    }
    if (executor->parallel_for != NULL) {
        executor->parallel_for(executor->user, nth, task, arg);
        return;
    }
    oct__threads *t = executor->threads;
    /* Taken: by another thread's run, or by the very run this call is a part of. */
    if (t == NULL || pthread_mutex_trylock(&t->owner) != 0) {
        run_alone(nth, task, arg);
        return;
    }
    threads_run(t, nth, task, arg);
    pthread_mutex_unlock(&t->owner);
}

static void stop_and_join(oct__threads *t)
{
    pthread_mutex_lock(&t->mutex);
    atomic_store(&t->stop, true);
    pthread_cond_broadcast(&t->work);
    pthread_mutex_unlock(&t->mutex);
    for (uint32_t i = 0; i < t->n_started; i++) {
        pthread_join(t->handles[i], NULL);
    }
}

oct_status oct__threads_create(const oct__allocator *allocator, uint32_t n_threads, oct__threads **threads)
{
    if (n_threads < 1 || n_threads > OCT__THREADS_MAX) {
        return OCT_INVALID_ARGUMENT;
    }
    const size_t size_bytes = sizeof(oct__threads) + (n_threads - 1) * sizeof(pthread_t);
    oct__threads *t = oct__memory_alloc(allocator, size_bytes, CACHE_LINE);
    if (t == NULL) {
        return OCT_OUT_OF_MEMORY;
    }
    memset(t, 0, size_bytes);
    t->allocator = allocator;
    t->n_threads = n_threads;
    t->spins = n_threads <= oct__threads_usable_cpus() ? SPINS : 0;
    t->size_bytes = size_bytes;
    pthread_mutex_init(&t->owner, NULL);
    pthread_mutex_init(&t->mutex, NULL);
    pthread_cond_init(&t->work, NULL);
    pthread_cond_init(&t->finished, NULL);
    atomic_init(&t->ticket, 0);
    atomic_init(&t->done, 0);
    atomic_init(&t->n_sleeping, 0);
    atomic_init(&t->caller_sleeps, false);
    atomic_init(&t->stop, false);

    /* The program's signals are for the program's threads. */
    sigset_t all, before;
    sigfillset(&all);
    const bool masked = pthread_sigmask(SIG_SETMASK, &all, &before) == 0;
    while (t->n_started < n_threads - 1) {
        if (pthread_create(&t->handles[t->n_started], NULL, worker, t) != 0) {
            break;
        }
        pthread_setname_np(t->handles[t->n_started], "octavo");
        t->n_started++;
    }
    if (masked) {
        pthread_sigmask(SIG_SETMASK, &before, NULL);
    }
    if (t->n_started < n_threads - 1) {
        oct__threads_destroy(t);
        return OCT_OUT_OF_MEMORY;
    }
    *threads = t;
    return OCT_OK;
}

void oct__threads_destroy(oct__threads *threads)
{
    if (threads == NULL) {
        return;
    }
    stop_and_join(threads);
    pthread_cond_destroy(&threads->work);
    pthread_cond_destroy(&threads->finished);
    pthread_mutex_destroy(&threads->mutex);
    pthread_mutex_destroy(&threads->owner);
    oct__memory_free(threads->allocator, threads, threads->size_bytes);
}
