/* test_numa.c: what is read of a machine's nodes, from folders made here as /sys has them; where memory and threads go on such machines. A machine of one node
 * shows the decisions and the system calls, not the times. */
#define _GNU_SOURCE /* sched_getaffinity, syscall */
#include "host_test.h"

#include <sched.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "host/numa.h"
#include "host/threads.h"

static char folder[256];

static void put(const char *name, const char *text)
{
    char path[512];
    snprintf(path, sizeof(path), "%s/%s", folder, name);
    FILE *const file = fopen(path, "w");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
}

/* Nodes 0, 1 and 3 of this shape: lists of CPUs, NULL for no such node. */
static void make_machine(const char *online, const char *has_memory, const char *const cpus[4])
{
    char name[64];
    snprintf(folder, sizeof(folder), "/tmp/octavo_numa_XXXXXX");
    assert_non_null(mkdtemp(folder));
    put("online", online);
    if (has_memory != NULL) {
        put("has_memory", has_memory);
    }
    for (int n = 0; n < 4; n++) {
        if (cpus[n] != NULL) {
            char path[512];
            snprintf(path, sizeof(path), "%s/node%d", folder, n);
            assert_int_equal(mkdir(path, 0700), 0);
            snprintf(name, sizeof(name), "node%d/cpulist", n);
            put(name, cpus[n]);
        }
    }
}

static void remove_machine(void)
{
    char path[512];
    for (int n = 0; n < 4; n++) {
        snprintf(path, sizeof(path), "%s/node%d/cpulist", folder, n);
        (void)unlink(path);
        snprintf(path, sizeof(path), "%s/node%d", folder, n);
        (void)rmdir(path);
    }
    snprintf(path, sizeof(path), "%s/online", folder);
    (void)unlink(path);
    snprintf(path, sizeof(path), "%s/has_memory", folder);
    (void)unlink(path);
    assert_int_equal(rmdir(folder), 0);
}

static void a_machine_of_two_sockets(void **state)
{
    (void)state;
    /* 128 CPUs with hyper-threads, as Linux numbers them; node 1 has memory only, as CXL does; node 2 went offline. */
    make_machine("0-1,3\n", "0-1,3\n", (const char *const[]){ "0-31,64-95\n", "\n", NULL, "32-63,96-127\n" });
    oct__numa numa;
    oct__numa_read(&numa, folder, "0-127");
    assert_int_equal(numa.memory_nodes, 0x9);
    assert_int_equal(oct__numa_n_memory_nodes(&numa), 2);
    assert_int_equal(numa.n_cpu_nodes, 2);
    assert_int_equal(numa.n_cpus, 128);
    for (uint32_t i = 0; i < 128; i++) {
        assert_int_equal(numa.node[i], i < 64 ? 0 : 3);
        assert_int_equal(numa.cpu[i], i % 64 % 32 + (i % 64 < 32 ? 0 : 64) + (i < 64 ? 0 : 32));
    }
    /* Threads: neighbours on a node, half on each, however many. */
    for (uint32_t n_threads = 2; n_threads <= 256; n_threads *= 2) {
        for (uint32_t i = 0; i < n_threads; i++) {
            assert_int_equal(oct__numa_node_of_thread(&numa, i, n_threads), i < n_threads / 2 ? 0 : 3);
        }
    }
    /* A process that may use CPUs of one node only has no nodes to choose from; of both, in proportion. */
    oct__numa_read(&numa, folder, "32-39");
    assert_true(numa.n_cpu_nodes == 1 && numa.n_cpus == 8 && numa.memory_nodes == 0x8 && !oct__numa_interleave(&numa, &numa, sizeof(numa)));
    oct__numa_read(&numa, folder, "0-2,32");
    assert_true(numa.n_cpu_nodes == 2 && numa.n_cpus == 4);
    for (uint32_t i = 0; i < 8; i++) {
        assert_int_equal(oct__numa_node_of_thread(&numa, i, 8), i < 6 ? 0 : 3);
    }
    remove_machine();
}

static void what_cannot_be_read_is_left_out(void **state)
{
    (void)state;
    oct__numa numa;
    oct__numa_read(&numa, "/nonexistent", NULL);
    assert_true(numa.n_cpus == 0 && numa.memory_nodes == 0 && !oct__numa_interleave(&numa, &numa, sizeof(numa)));
    static const char *const broken[] = { "x\n", "0-\n", "1-0\n", "0;1\n", "0 1\n", "-1\n" };
    for (size_t i = 0; i < sizeof(broken) / sizeof(broken[0]); i++) {
        make_machine(broken[i], NULL, (const char *const[]){ "0", NULL, NULL, NULL });
        oct__numa_read(&numa, folder, "0-3");
        assert_true(numa.n_cpus == 0 && numa.memory_nodes == 0);
        remove_machine();
        make_machine("0-1", NULL, (const char *const[]){ broken[i], "0-2000", NULL, NULL });
        oct__numa_read(&numa, folder, "0-5000");
        assert_true(numa.n_cpu_nodes == 1 && numa.n_cpus == OCT__NUMA_CPUS_MAX && numa.memory_nodes == 2);   /* an older kernel lists no has_memory */
        remove_machine();
    }
    make_machine("0-1000000000", "64-70", (const char *const[]){ "", NULL, NULL, "5" });
    oct__numa_read(&numa, folder, "5");
    assert_true(numa.n_cpu_nodes == 1 && numa.n_cpus == 1 && numa.cpu[0] == 5 && numa.node[0] == 3 && numa.memory_nodes == 0);
    oct__numa_read(&numa, folder, "5,");
    assert_int_equal(numa.n_cpus, 1);
    remove_machine();
}

static void this_machine_has_nodes(void **state)
{
    (void)state;
    oct__numa numa;
    oct__numa_read(&numa, NULL, NULL);
    if (numa.memory_nodes == 0) {
        printf("no /sys/devices/system/node here\n");
        skip();
    }
    assert_true(numa.n_cpus <= oct__threads_usable_cpus() && oct__numa_n_memory_nodes(&numa) <= numa.n_cpu_nodes);
    printf("%u nodes with memory, %u with CPUs, %u CPUs\n", oct__numa_n_memory_nodes(&numa), numa.n_cpu_nodes, numa.n_cpus);
}

static int policy_of(void *memory)
{
#if defined(SYS_get_mempolicy)
    int policy = -1;
    unsigned long mask[16];
    return syscall(SYS_get_mempolicy, &policy, mask, sizeof(mask) * 8, memory, 2 /* MPOL_F_ADDR */) == 0 ? policy : -1;
#else
    (void)memory;
    return -1;
#endif
}

/* Memory of a machine with several nodes is spread; with one it is left alone. A made-up second node is dropped by the system, the first stays. */
static void memory_is_spread_over_nodes(void **state)
{
    (void)state;
    const size_t bytes = 8 << 20;
    oct__numa numa = { .memory_nodes = 1 };
    unsigned char *const memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(memory != MAP_FAILED);
    assert_false(oct__numa_interleave(&numa, memory, bytes));
    if (policy_of(memory) != 0) {
        munmap(memory, bytes);
        printf("no memory policies here\n");
        skip();
    }
    numa.memory_nodes = 3;
    assert_true(oct__numa_interleave(&numa, memory, bytes));
    assert_int_equal(policy_of(memory), 3);                /* MPOL_INTERLEAVE */
    assert_int_equal(policy_of(memory + bytes - 1), 3);
    memory[0] = memory[bytes - 1] = 1;
    assert_false(oct__numa_interleave(&numa, memory + 1, bytes - 4096));   /* not at a page: refused, and said */
    munmap(memory, bytes);
}

typedef struct seen {
    int32_t cpus[2];            /* of each part: the only CPU that its thread may use, or -1 */
} seen;

static void look(void *arg, uint32_t ith, uint32_t nth)
{
    seen *const s = arg;
    const struct timespec slow = { 0, 2000000 };
    cpu_set_t set;
    (void)nth;
    s->cpus[ith] = -1;
    if (sched_getaffinity(0, sizeof(set), &set) == 0 && CPU_COUNT(&set) == 1) {
        for (int i = 0; i < CPU_SETSIZE; i++) {
            s->cpus[ith] = CPU_ISSET(i, &set) ? i : s->cpus[ith];
        }
    }
    nanosleep(&slow, NULL);
}

/* This machine's CPUs as two nodes: the library's thread stays on the second one's, and the caller is left alone. With one node nobody is bound. */
static void threads_stay_on_their_node(void **state)
{
    (void)state;
    static const oct__allocator c_library;
    oct__numa real, two;
    oct__numa_read(&real, NULL, NULL);
    if (real.n_cpus < 2) {
        printf("one CPU here\n");
        skip();
    }
    memset(&two, 0, sizeof(two));
    two.n_cpus = two.n_cpu_nodes = 2;
    two.cpu[0] = real.cpu[0];
    two.cpu[1] = real.cpu[1];
    two.node[1] = 1;
    for (int k = 0; k < 2; k++) {
        oct__executor executor = { .max_threads = 2 };
        seen s = { { 0, 0 } };
        two.n_cpu_nodes = k == 0 ? 2 : 1;
        assert_int_equal(oct__threads_create_on(&c_library, 2, &two, &executor.threads), OCT_OK);
        bool was_there = false;
        for (int tries = 0; tries < (k == 0 ? 200 : 5) && !was_there; tries++) {   /* until the worker had its part itself */
            oct__executor_run(&executor, 2, look, &s);
            was_there = s.cpus[1] != -1;
        }
        assert_int_equal(s.cpus[1], k == 0 ? real.cpu[1] : -1);
        assert_true(s.cpus[0] == -1 || oct__threads_usable_cpus() == 1);
        oct__threads_destroy(executor.threads);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_machine_of_two_sockets),
        cmocka_unit_test(what_cannot_be_read_is_left_out),
        cmocka_unit_test(this_machine_has_nodes),
        cmocka_unit_test(memory_is_spread_over_nodes),
        cmocka_unit_test(threads_stay_on_their_node),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
