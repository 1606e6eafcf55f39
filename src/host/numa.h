/* numa.h: owns what the system says of NUMA nodes, where a pool's memory goes on them and where the library's threads stay. Without libnuma: files of
 * Linux's /sys and two system calls; elsewhere there is one node.
 *
 * Threads: a topology is plain memory; the calls change the calling thread's own affinity, or the policy of the memory given. */
#ifndef OCT_HOST_NUMA_H
#define OCT_HOST_NUMA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { OCT__NUMA_NODES_MAX = 64, OCT__NUMA_CPUS_MAX = 1024 };

typedef struct oct__numa {
    uint64_t memory_nodes;      /* bit n: node n has memory, and CPUs that this process may use; memory without CPUs is slower, and far from all */
    uint32_t n_cpu_nodes;       /* nodes with CPUs that this process may use */
    uint32_t n_cpus;            /* of those, in order of node and number: */
    uint16_t cpu[OCT__NUMA_CPUS_MAX], node[OCT__NUMA_CPUS_MAX];
} oct__numa;

/* folder: as /sys/devices/system/node, which NULL stands for. allowed: the CPUs that may be used, as "0-3,8"; NULL: the calling thread's affinity. What
 * cannot be read or understood is left out; with nothing left there are no nodes, and nothing is placed or bound. */
void oct__numa_read(oct__numa *numa, const char *folder, const char *allowed);

uint32_t oct__numa_n_memory_nodes(const oct__numa *numa);

/* Memory that nobody has touched yet, whole system pages of it (oct__memory_reserve without hooks), goes to all of memory_nodes in turns. False: there is one
 * node or none, or the system refuses; then each page goes to the node of who touches it first. */
bool oct__numa_interleave(const oct__numa *numa, void *memory, size_t bytes);

/* The node of thread index of n_threads: neighbours share one, and each node has threads in proportion to its CPUs. n_cpus > 0. */
uint32_t oct__numa_node_of_thread(const oct__numa *numa, uint32_t index, uint32_t n_threads);

/* From now on the calling thread runs on the usable CPUs of this node. False: the system refuses; then it runs where it did. */
bool oct__numa_stay(const oct__numa *numa, uint32_t node);

#endif
