/* threads.c: a pool of threads, each with a part of its own in every run.
 *
 * A run publishes (task, arg) and then one atomic word: the run's number and its nth. Part i is worker i's, so that a thread meets the same part in
 * every run, layer after layer; but whoever is early takes what is left: a worker looks through the parts of its group of eight, the caller
 * through all of them. So a thread that the system wakes late takes nothing and holds up nobody. A part is claimed by raising its slot from an older run's
 * number to this one's; a claim for an old run fails, since slots only grow.
 *
 * Made for 128 cores. No word is raised by all: claims lie on lines of their own, and arrivals are counted per group, whose last one counts the group. Wakes go
 * down a tree: who wakes, or spins and sees the run, wakes those of its children that sleep and have a part; workers without one sleep on.
 * With several NUMA nodes a worker stays on one of them, neighbours on the same, so that a group and most of the tree's branches lie within a node.
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

#include "host/clock.h"
#include "host/numa.h"

enum {
    SPIN_NS = 50000,         /* longer than the gap between two layers' calls; by the clock, since a pause takes 10 cycles on one core and 140 on another */
    SPINS_PER_LOOK = 16,     /* at the clock, some 30 ns */
    GROUP = 8,               /* parts that count their arrivals in one word and help each other out */
    FANOUT = 4,              /* children in the tree of wakes: a signal is a system call, one a microsecond or two; 128 threads are 4 deep */
    CACHE_LINE = 64
};

/* What a run is, in one word: number << 16 | nth. Numbers never come again. */
#define CALL(run, nth) ((uint64_t)(run) << 16 | (uint64_t)(nth))
#define CALL_RUN(call) ((call) >> 16)
#define CALL_NTH(call) ((uint32_t)((call) & 0xffff))

/* A part and the worker whose it is. */
typedef struct slot {
    _Alignas(CACHE_LINE) atomic_uint_least64_t claimed;   /* the last run in which somebody took this part */
    _Alignas(CACHE_LINE) pthread_mutex_t mutex;           /* for sleeping and waking only */
    pthread_cond_t work;
    atomic_bool sleeps;
    oct__threads *owner;
    uint32_t index;
    pthread_t handle;
} slot;

typedef struct group {
    _Alignas(CACHE_LINE) atomic_uint done;                /* parts of this run that have returned; 0 between runs */
} group;

struct oct__threads {
    const oct__allocator *allocator;
    uint32_t n_threads, n_started;
    uint64_t spin_ns;           /* 0 with more threads than CPUs, where spinning takes the CPU from who has work */
    size_t size_bytes;
    bool binds;                 /* there are several nodes, and each thread stays on one */
    oct__numa numa;
    group *groups;              /* [(n_threads + GROUP - 1) / GROUP] */
    pthread_mutex_t owner;      /* held by the caller of a run */

    _Alignas(CACHE_LINE) atomic_uint_least64_t call;
    oct_task task;              /* constant while a part of the run is unfinished; beside `call`, which all read anyway */
    void *arg;
    atomic_bool stop;

    _Alignas(CACHE_LINE) atomic_uint done;      /* groups of this run that have returned */

    _Alignas(CACHE_LINE) pthread_mutex_t mutex; /* for the caller's sleep only */
    pthread_cond_t finished;
    atomic_bool caller_sleeps;

    slot slots[];               /* [n_threads]; the first is the caller's, whoever that is */
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

/* Spins until the clock says that it has been long enough: *spins counts from 0, *until from the first look. */
static bool may_spin(const oct__threads *t, uint32_t *spins, uint64_t *until)
{
    if (t->spin_ns == 0) {
        return false;
    }
    if (*spins % SPINS_PER_LOOK == 0) {
        const uint64_t now = oct__clock_ns();
        *until = *spins == 0 ? now + t->spin_ns : *until;
        if (now >= *until) {
            return false;
        }
    }
    (*spins)++;
    pause_briefly();
    return true;
}

/* ---- parts --------------------------------------------------------------------------------------------------------------- */

/* Takes part i in the run, and runs it. False: it is taken, or the run is over. */
static bool run_part(oct__threads *t, uint64_t call, uint32_t i)
{
    const uint64_t run = CALL_RUN(call);
    const uint32_t nth = CALL_NTH(call);
    uint64_t seen = atomic_load_explicit(&t->slots[i].claimed, memory_order_relaxed);
    do {
        if (seen >= run) {
            return false;
        }
    } while (!atomic_compare_exchange_weak_explicit(&t->slots[i].claimed, &seen, run, memory_order_acq_rel, memory_order_relaxed));
    /* The run lasts until this part is counted below, so task and arg are its own. */
    t->task(t->arg, i, nth);
    group *const g = &t->groups[i / GROUP];
    const uint32_t in_group = nth - i / GROUP * GROUP < GROUP ? nth - i / GROUP * GROUP : GROUP, n_groups = (nth + GROUP - 1) / GROUP;
    if (atomic_fetch_add_explicit(&g->done, 1, memory_order_acq_rel) + 1 < in_group) {
        return true;
    }
    atomic_store_explicit(&g->done, 0, memory_order_relaxed);
    /* Sequentially consistent, as is the caller's announcement that it sleeps: one of the two sees the other. */
    if (atomic_fetch_add(&t->done, 1) + 1 == n_groups && atomic_load(&t->caller_sleeps)) {
        pthread_mutex_lock(&t->mutex);
        pthread_cond_signal(&t->finished);
        pthread_mutex_unlock(&t->mutex);
    }
    return true;
}

/* ---- workers ------------------------------------------------------------------------------------------------------------- */

static void wake_one(slot *s)
{
    /* Sequentially consistent against a worker that says it sleeps and then looks at the run once more. */
    if (atomic_load(&s->sleeps)) {
        pthread_mutex_lock(&s->mutex);
        pthread_cond_signal(&s->work);
        pthread_mutex_unlock(&s->mutex);
    }
}

/* Those below `index` in the tree that have a part. */
static void wake_children(oct__threads *t, uint32_t index, uint32_t nth)
{
    for (uint32_t child = FANOUT * index + 1; child <= FANOUT * index + FANOUT && child < nth; child++) {
        wake_one(&t->slots[child]);
    }
}

/* Whether another run than last_call's has begun that has a part for this worker: waking for others would be for nothing. */
static bool has_work(oct__threads *t, const slot *s, uint64_t last_call)
{
    const uint64_t call = atomic_load(&t->call);
    return (call != last_call && s->index < CALL_NTH(call)) || atomic_load(&t->stop);
}

static void sleep_until_work(oct__threads *t, slot *s, uint64_t last_call)
{
    pthread_mutex_lock(&s->mutex);
    atomic_store(&s->sleeps, true);
    while (!has_work(t, s, last_call)) {
        pthread_cond_wait(&s->work, &s->mutex);
    }
    atomic_store(&s->sleeps, false);
    pthread_mutex_unlock(&s->mutex);
}

static void *worker(void *argument)
{
    slot *const s = argument;
    oct__threads *const t = s->owner;
    uint64_t last_call = 0;
    if (t->binds) { /* refused, it runs where the system likes */
        (void)oct__numa_stay(&t->numa, oct__numa_node_of_thread(&t->numa, s->index, t->n_threads));
    }
    for (;;) {
        uint32_t spins = 0;
        uint64_t until = 0;
        while (!has_work(t, s, last_call) && may_spin(t, &spins, &until)) {
        }
        if (!has_work(t, s, last_call)) {
            sleep_until_work(t, s, last_call);
        }
        if (atomic_load(&t->stop)) {
            return NULL;
        }
        last_call = atomic_load(&t->call);
        const uint32_t nth = CALL_NTH(last_call);
        if (s->index >= nth) { /* a run for fewer has come since */
            continue;
        }
        wake_children(t, s->index, nth);
        (void)run_part(t, last_call, s->index);
        const uint32_t first = s->index / GROUP * GROUP;
        for (uint32_t i = 1; i < GROUP; i++) {
            const uint32_t other = first + (s->index - first + i) % GROUP;
            if (other < nth) {
                (void)run_part(t, last_call, other);
            }
        }
    }
}

/* ---- a run --------------------------------------------------------------------------------------------------------------- */

static void threads_run(oct__threads *t, uint32_t nth, oct_task task, void *arg)
{
    t->task = task;
    t->arg = arg;
    atomic_store(&t->done, 0);
    /* Run 0 is "no run yet", what a new thread has seen. */
    const uint64_t call = CALL(CALL_RUN(atomic_load(&t->call)) + 1, nth);
    const uint32_t n_groups = (nth + GROUP - 1) / GROUP;
    atomic_store(&t->call, call);
    wake_children(t, 0, nth);
    for (uint32_t i = 0; i < nth; i++) {
        (void)run_part(t, call, i);
    }
    uint32_t spins = 0;
    uint64_t until = 0;
    while (atomic_load_explicit(&t->done, memory_order_acquire) != n_groups && may_spin(t, &spins, &until)) {
    }
    if (atomic_load(&t->done) != n_groups) {
        pthread_mutex_lock(&t->mutex);
        atomic_store(&t->caller_sleeps, true);
        while (atomic_load(&t->done) != n_groups) {
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
    atomic_store(&t->stop, true);
    for (uint32_t i = 1; i <= t->n_started; i++) {
        slot *const s = &t->slots[i];
        pthread_mutex_lock(&s->mutex);
        pthread_cond_signal(&s->work);
        pthread_mutex_unlock(&s->mutex);
    }
    for (uint32_t i = 1; i <= t->n_started; i++) {
        pthread_join(t->slots[i].handle, NULL);
    }
}

static void prepare(oct__threads *t, const oct__allocator *allocator, uint32_t n_threads, const oct__numa *numa, size_t size_bytes)
{
    memset(t, 0, size_bytes);
    t->allocator = allocator;
    t->n_threads = n_threads;
    t->spin_ns = n_threads <= oct__threads_usable_cpus() ? SPIN_NS : 0;
    t->size_bytes = size_bytes;
    t->numa = *numa;
    t->binds = numa->n_cpu_nodes > 1;
    t->groups = (group *)(void *)&t->slots[n_threads];
    pthread_mutex_init(&t->owner, NULL);
    pthread_mutex_init(&t->mutex, NULL);
    pthread_cond_init(&t->finished, NULL);
    atomic_init(&t->call, 0);
    atomic_init(&t->done, 0);
    atomic_init(&t->caller_sleeps, false);
    atomic_init(&t->stop, false);
    for (uint32_t i = 0; i < n_threads; i++) {
        slot *const s = &t->slots[i];
        atomic_init(&s->claimed, 0);
        atomic_init(&s->sleeps, false);
        atomic_init(&t->groups[i / GROUP].done, 0);
        pthread_mutex_init(&s->mutex, NULL);
        pthread_cond_init(&s->work, NULL);
        s->owner = t;
        s->index = i;
    }
}

oct_status oct__threads_create(const oct__allocator *allocator, uint32_t n_threads, oct__threads **threads)
{
    oct__numa numa;
    oct__numa_read(&numa, NULL, NULL);
    return oct__threads_create_on(allocator, n_threads, &numa, threads);
}

oct_status oct__threads_create_on(const oct__allocator *allocator, uint32_t n_threads, const oct__numa *numa, oct__threads **threads)
{
    if (n_threads < 1 || n_threads > OCT__THREADS_MAX) {
        return OCT_INVALID_ARGUMENT;
    }
    const size_t size_bytes = sizeof(oct__threads) + n_threads * sizeof(slot) + (n_threads + GROUP - 1) / GROUP * sizeof(group);
    oct__threads *t = oct__memory_alloc(allocator, size_bytes, CACHE_LINE);
    if (t == NULL) {
        return OCT_OUT_OF_MEMORY;
    }
    prepare(t, allocator, n_threads, numa, size_bytes);

    /* The program's signals are for the program's threads. */
    sigset_t all, before;
    sigfillset(&all);
    const bool masked = pthread_sigmask(SIG_SETMASK, &all, &before) == 0;
    while (t->n_started < n_threads - 1) {
        slot *const s = &t->slots[t->n_started + 1];
        if (pthread_create(&s->handle, NULL, worker, s) != 0) {
            break;
        }
        pthread_setname_np(s->handle, "octavo");
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
    for (uint32_t i = 0; i < threads->n_threads; i++) {
        pthread_cond_destroy(&threads->slots[i].work);
        pthread_mutex_destroy(&threads->slots[i].mutex);
    }
    pthread_cond_destroy(&threads->finished);
    pthread_mutex_destroy(&threads->mutex);
    pthread_mutex_destroy(&threads->owner);
    oct__memory_free(threads->allocator, threads, threads->size_bytes);
}
