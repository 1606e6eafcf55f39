/* test_threads.c: each part of a task runs once and is seen by the caller, whatever else goes on: nested runs, runs from several threads at
 * once, sleeping and waking, hooks, failing allocation; who is woken, and who runs which part. Meant to be run under the thread sanitizer too. */
#define _GNU_SOURCE /* syscall */
#include "host_test.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "host/clock.h"
#include "host/threads.h"

static const oct__allocator c_library;

static oct__executor executor_of(uint32_t n_threads)
{
    oct__executor executor = { .max_threads = n_threads };
    assert_int_equal(oct__threads_create(&c_library, n_threads, &executor.threads), OCT_OK);
    return executor;
}

/* Plain memory: that the caller sees it, and that no part runs twice, is what the thread sanitizer judges. */
typedef struct tally {
    uint32_t count[64], nth[64];
} tally;

static void count_part(void *arg, uint32_t ith, uint32_t nth)
{
    tally *t = arg;
    t->count[ith]++;
    t->nth[ith] = nth;
}

static void check_run(const oct__executor *executor, uint32_t nth, uint32_t expected)
{
    tally t = { { 0 }, { 0 } };
    oct__executor_run(executor, nth, count_part, &t);
    for (uint32_t i = 0; i < 64; i++) {
        assert_int_equal(t.count[i], i < expected);
        assert_int_equal(t.nth[i], i < expected ? expected : 0);
    }
}

static void each_part_runs_once(void **state)
{
    (void)state;
    for (uint32_t n_threads = 1; n_threads <= 9; n_threads += 2) {
        const oct__executor executor = executor_of(n_threads);
        for (uint32_t i = 0; i < 2000; i++) {
            const uint32_t nth = i % 12;
            check_run(&executor, nth, nth == 0 ? 1 : nth > n_threads ? n_threads : nth);
        }
        oct__threads_destroy(executor.threads);
    }
}

static void sleepers_wake(void **state)
{
    (void)state;
    const oct__executor executor = executor_of(4);
    for (int i = 0; i < 20; i++) {
        const struct timespec long_enough_to_sleep = { 0, 2000000 };
        nanosleep(&long_enough_to_sleep, NULL);
        check_run(&executor, 4, 4);
    }
    oct__threads_destroy(executor.threads);
}

/* A part that takes far longer than the caller spins: the caller sleeps, and is woken. */
static void slow_part(void *arg, uint32_t ith, uint32_t nth)
{
    if (ith + 1 == nth) {
        const struct timespec slow = { 0, 5000000 };
        nanosleep(&slow, NULL);
    }
    count_part(arg, ith, nth);
}

static void a_caller_sleeps_until_the_last_part(void **state)
{
    (void)state;
    const oct__executor executor = executor_of(2);
    for (int i = 0; i < 20; i++) {
        tally t = { { 0 }, { 0 } };
        oct__executor_run(&executor, 2, slow_part, &t);
        assert_int_equal(t.count[0] + t.count[1], 2);
    }
    oct__threads_destroy(executor.threads);
}

/* ---- who runs what, and who is woken ------------------------------------------------------------------------------------------ */

enum { CREW = 8, MANY = 128 };

typedef struct crew {
    long thread[CREW];
} crew;

static void slow_part_of_whom(void *arg, uint32_t ith, uint32_t nth)
{
    const struct timespec slow = { 0, 3000000 };   /* time enough for the others to wake */
    crew *c = arg;
    (void)nth;
    c->thread[ith] = syscall(SYS_gettid);
    nanosleep(&slow, NULL);
}

/* The layers of a model are runs after each other: a part is the same thread's in all of them, as far as the system wakes it in time. */
static void a_thread_keeps_its_part(void **state)
{
    (void)state;
    enum { RUNS = 15 };
    const oct__executor executor = executor_of(4);
    crew runs[RUNS];
    for (int i = 0; i < RUNS; i++) {
        oct__executor_run(&executor, 4, slow_part_of_whom, &runs[i]);
    }
    for (uint32_t part = 0; part < 4; part++) {
        int most = 0;
        for (int i = 0; i < RUNS; i++) {
            int same = 0;
            for (int k = 0; k < RUNS; k++) {
                same += runs[k].thread[part] == runs[i].thread[part];
            }
            most = same > most ? same : most;
        }
        if (2 * most <= RUNS) {
            fail_msg("part %u was run at most %d times of %d by one thread", part, most, RUNS);
        }
    }
    oct__threads_destroy(executor.threads);
}

/* How often a thread of this process has gone to sleep by itself; -1 where the system doesn't tell. */
static long sleeps_of(long thread)
{
    char path[64], line[256];
    long n = -1;
    snprintf(path, sizeof(path), "/proc/self/task/%ld/status", thread);
    FILE *const file = fopen(path, "r");
    while (file != NULL && n < 0 && fgets(line, sizeof(line), file) != NULL) {
        if (sscanf(line, "voluntary_ctxt_switches: %ld", &n) != 1) {
            n = -1;
        }
    }
    if (file != NULL) {
        fclose(file);
    }
    return n;
}

static long sleeps_of_idle(const crew *c, uint32_t first)
{
    long n = 0;
    for (uint32_t i = first; i < CREW; i++) {
        n += sleeps_of(c->thread[i]);
    }
    return n;
}

/* A call of two parts wakes one of seven sleepers: the others stay asleep. */
static void only_who_has_a_part_is_woken(void **state)
{
    (void)state;
    const oct__executor executor = executor_of(CREW);
    const struct timespec rest = { 0, 20000000 }, gap = { 0, 1000000 };
    crew c = { { 0 } };
    bool apart = false;
    for (int tries = 0; tries < 100 && !apart; tries++) {   /* each of its own part, and so all known */
        oct__executor_run(&executor, CREW, slow_part_of_whom, &c);
        apart = true;
        for (uint32_t i = 0; i < CREW; i++) {
            for (uint32_t k = 0; k < i; k++) {
                apart = apart && c.thread[i] != c.thread[k];
            }
        }
    }
    assert_true(apart);
    if (sleeps_of(c.thread[1]) < 0) {
        printf("no /proc here that tells of a thread's sleeps\n");
        oct__threads_destroy(executor.threads);
        skip();
    }
    long before = -1, now = sleeps_of_idle(&c, 2);
    while (before != now) {   /* until the six sleep */
        nanosleep(&rest, NULL);
        before = now;
        now = sleeps_of_idle(&c, 2);
    }
    const long one_before = sleeps_of(c.thread[1]);
    for (int i = 0; i < 20; i++) {
        tally t = { { 0 }, { 0 } };
        oct__executor_run(&executor, 2, slow_part, &t);
        assert_int_equal(t.count[0] + t.count[1], 2);
        nanosleep(&gap, NULL);
    }
    assert_int_equal(sleeps_of_idle(&c, 2), before);
    assert_true(sleeps_of(c.thread[1]) > one_before);
    oct__threads_destroy(executor.threads);
}

static void mark_part(void *arg, uint32_t ith, uint32_t nth)
{
    uint32_t *const mark = arg;
    mark[ith] += nth;
}

/* As many as a large machine has: a tree of wakes four deep, sixteen groups of arrivals. */
static void many_threads_run_each_part_once(void **state)
{
    (void)state;
    const oct__executor executor = executor_of(MANY);
    for (uint32_t i = 0; i < 60; i++) {
        static uint32_t mark[MANY];
        const uint32_t nth = i % 3 == 0 ? MANY : 2 + i * 37 % (MANY - 2);
        const struct timespec gap = { 0, 500000 };
        memset(mark, 0, sizeof(mark));
        oct__executor_run(&executor, nth, mark_part, mark);
        for (uint32_t part = 0; part < MANY; part++) {
            assert_int_equal(mark[part], part < nth ? nth : 0);
        }
        if (i % 8 == 0) {
            nanosleep(&gap, NULL);   /* some asleep, some not yet */
        }
    }
    oct__threads_destroy(executor.threads);
}

static double cpu_seconds(void)
{
    struct timespec t;
    assert_int_equal(clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t), 0);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Spinning ends by the clock: threads that have nothing to do take no CPU, however long a pause is. */
static void idle_threads_sleep(void **state)
{
    (void)state;
    const oct__executor executor = executor_of(2);
    const struct timespec idle = { 0, 50000000 };
    check_run(&executor, 2, 2);
    const double before = cpu_seconds();
    nanosleep(&idle, NULL);
    const double spent = cpu_seconds() - before;
    if (spent > 0.01) {
        fail_msg("two idle threads took %.1f ms of 50", spent * 1e3);
    }
    oct__threads_destroy(executor.threads);
}

/* ---- nested and concurrent ----------------------------------------------------------------------------------------------- */

typedef struct nest {
    const oct__executor *executor;
    uint32_t depth;
    atomic_uint leaves;
} nest;

static void nested_part(void *arg, uint32_t ith, uint32_t nth)
{
    nest *outer = arg;
    (void)ith;
    (void)nth;
    if (outer->depth == 0) {
        atomic_fetch_add(&outer->leaves, 1);
        return;
    }
    nest inner = { .executor = outer->executor, .depth = outer->depth - 1 };
    oct__executor_run(outer->executor, 3, nested_part, &inner);
    atomic_fetch_add(&outer->leaves, atomic_load(&inner.leaves));
}

static void nested_runs_end(void **state)
{
    (void)state;
    const oct__executor executor = executor_of(3);
    for (int i = 0; i < 50; i++) {
        nest n = { .executor = &executor, .depth = 3 };
        oct__executor_run(&executor, 3, nested_part, &n);
        assert_int_equal(atomic_load(&n.leaves), 81);
    }
    oct__threads_destroy(executor.threads);
}

static atomic_uint wrong_runs;

static void *run_many(void *arg)
{
    for (uint32_t i = 0; i < 3000; i++) {
        tally t = { { 0 }, { 0 } };
        const uint32_t nth = 1 + i % 4;
        oct__executor_run(arg, nth, count_part, &t);
        for (uint32_t part = 0; part < nth; part++) {
            if (t.count[part] != 1 || t.nth[part] != nth) {
                atomic_fetch_add(&wrong_runs, 1);
            }
        }
    }
    return NULL;
}

static void runs_from_several_threads_do_not_meet(void **state)
{
    (void)state;
    oct__executor executor = executor_of(4);
    pthread_t callers[4];
    for (int i = 0; i < 4; i++) {
        assert_int_equal(pthread_create(&callers[i], NULL, run_many, &executor), 0);
    }
    for (int i = 0; i < 4; i++) {
        pthread_join(callers[i], NULL);
    }
    assert_int_equal(atomic_load(&wrong_runs), 0);
    oct__threads_destroy(executor.threads);
}

/* ---- hooks and limits ---------------------------------------------------------------------------------------------------- */

static uint32_t hook_calls, hook_nth;

static void backwards(void *user, uint32_t nth, oct_task task, void *arg)
{
    assert_ptr_equal(user, &hook_calls);
    hook_calls++;
    hook_nth = nth;
    for (uint32_t i = nth; i-- > 0;) {
        task(arg, i, nth);
    }
}

static void a_hook_is_asked_for_at_most_max_threads(void **state)
{
    (void)state;
    const oct__executor executor = { .parallel_for = backwards, .user = &hook_calls, .max_threads = 5 };
    check_run(&executor, 7, 5);
    assert_int_equal(hook_calls, 1);
    assert_int_equal(hook_nth, 5);
    check_run(&executor, 1, 1);
    assert_int_equal(hook_calls, 1);   /* one part needs nobody else */
}

static void *no_memory(void *user, size_t size_bytes, size_t align)
{
    (void)user, (void)size_bytes, (void)align;
    return NULL;
}

static void no_free(void *user, void *memory, size_t size_bytes)
{
    (void)user, (void)memory, (void)size_bytes;
    fail_msg("nothing was allocated");
}

static void creation_fails_cleanly(void **state)
{
    (void)state;
    const oct__allocator allocator = { no_memory, no_free, NULL };
    oct__threads *threads = NULL;
    assert_int_equal(oct__threads_create(&allocator, 3, &threads), OCT_OUT_OF_MEMORY);
    assert_int_equal(oct__threads_create(&c_library, 0, &threads), OCT_INVALID_ARGUMENT);
    assert_int_equal(oct__threads_create(&c_library, OCT__THREADS_MAX + 1, &threads), OCT_INVALID_ARGUMENT);
    assert_null(threads);
    oct__threads_destroy(NULL);
    assert_true(oct__threads_usable_cpus() >= 1);
}

static void shares_are_even_and_complete(void **state)
{
    (void)state;
    static const int64_t sizes[] = { 0, 1, 2, 7, 64, 1000003, INT64_MAX };
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        for (uint32_t nth = 1; nth <= 17; nth++) {
            int64_t at = 0;
            for (uint32_t ith = 0; ith < nth; ith++) {
                int64_t begin, end;
                oct__executor_share(sizes[i], ith, nth, &begin, &end);
                assert_true(begin == at && (end - begin == sizes[i] / nth || end - begin == sizes[i] / nth + 1));
                at = end;
            }
            assert_true(at == sizes[i]);
        }
    }
}

static void time_goes_on(void **state)
{
    (void)state;
    const struct timespec two_ms = { 0, 2000000 };
    const uint64_t before = oct__clock_ns();
    const double before_seconds = oct__clock_seconds();
    nanosleep(&two_ms, NULL);
    assert_in_range(oct__clock_ns() - before, 1990000, 60000000000);
    assert_true(oct__clock_seconds() - before_seconds >= 1.99e-3 && oct__clock_seconds() - before_seconds < 60);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_part_runs_once),
        cmocka_unit_test(sleepers_wake),
        cmocka_unit_test(a_caller_sleeps_until_the_last_part),
        cmocka_unit_test(a_thread_keeps_its_part),
        cmocka_unit_test(only_who_has_a_part_is_woken),
        cmocka_unit_test(many_threads_run_each_part_once),
        cmocka_unit_test(idle_threads_sleep),
        cmocka_unit_test(nested_runs_end),
        cmocka_unit_test(runs_from_several_threads_do_not_meet),
        cmocka_unit_test(a_hook_is_asked_for_at_most_max_threads),
        cmocka_unit_test(creation_fails_cleanly),
        cmocka_unit_test(shares_are_even_and_complete),
        cmocka_unit_test(time_goes_on),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
