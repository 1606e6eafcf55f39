/* numa.c: see numa.h. */
#define _GNU_SOURCE /* cpu_set_t, sched_setaffinity, syscall */
#include "host/numa.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { LIST_BYTES = 8192, POLICY_INTERLEAVE = 3 /* MPOL_INTERLEAVE of linux/mempolicy.h */ };

static const char system_folder[] = "/sys/devices/system/node";

/* "0-3,8" as one flag each, up to n; what lies above is dropped. False: no such list. */
static bool read_list(const char *text, bool *flags, uint32_t n)
{
    memset(flags, 0, n * sizeof(*flags));
    while (*text != '\0' && *text != '\n') {
        char *end;
        const unsigned long first = strtoul(text, &end, 10);
        unsigned long last = first;
        if (end == text) {
            return false;
        }
        if (*end == '-') {
            text = end + 1;
            last = strtoul(text, &end, 10);
            if (end == text || last < first) {
                return false;
            }
        }
        for (unsigned long i = first; i <= last && i < n; i++) {
            flags[i] = true;
        }
        text = end + (*end == ',');
        if (*end != ',' && *end != '\0' && *end != '\n') {
            return false;
        }
    }
    return true;
}

static bool read_file_list(const char *folder, const char *name, bool *flags, uint32_t n)
{
    char path[512], text[LIST_BYTES] = "";
    snprintf(path, sizeof(path), "%s/%s", folder, name);
    FILE *const file = fopen(path, "r");
    if (file == NULL) {
        return false;
    }
    const size_t length = fread(text, 1, sizeof(text) - 1, file);
    fclose(file);
    text[length] = '\0';
    return read_list(text, flags, n);
}

static void usable_cpus(bool *flags)
{
    memset(flags, 0, OCT__NUMA_CPUS_MAX * sizeof(*flags));
#if defined(__linux__)
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof(set), &set) == 0) {
        for (int i = 0; i < OCT__NUMA_CPUS_MAX && i < CPU_SETSIZE; i++) {
            flags[i] = CPU_ISSET(i, &set);
        }
    }
#endif
}

void oct__numa_read(oct__numa *numa, const char *folder, const char *allowed)
{
    bool may[OCT__NUMA_CPUS_MAX], nodes[OCT__NUMA_NODES_MAX], memory[OCT__NUMA_NODES_MAX], cpus[OCT__NUMA_CPUS_MAX];
    folder = folder != NULL ? folder : system_folder;
    memset(numa, 0, sizeof(*numa));
    if (allowed == NULL) {
        usable_cpus(may);
    } else if (!read_list(allowed, may, OCT__NUMA_CPUS_MAX)) {
        return;
    }
    if (!read_file_list(folder, "online", nodes, OCT__NUMA_NODES_MAX)) {
        return;
    }
    const bool has_memory = read_file_list(folder, "has_memory", memory, OCT__NUMA_NODES_MAX);
    for (uint32_t n = 0; n < OCT__NUMA_NODES_MAX; n++) {
        char name[32];
        snprintf(name, sizeof(name), "node%u/cpulist", n);
        if (!nodes[n]) {
            continue;
        }
        if (!read_file_list(folder, name, cpus, OCT__NUMA_CPUS_MAX)) {
            continue;
        }
        const uint32_t before = numa->n_cpus;
        for (uint32_t i = 0; i < OCT__NUMA_CPUS_MAX && numa->n_cpus < OCT__NUMA_CPUS_MAX; i++) {
            if (cpus[i] && may[i]) {
                numa->cpu[numa->n_cpus] = (uint16_t)i;
                numa->node[numa->n_cpus++] = (uint16_t)n;
            }
        }
        numa->n_cpu_nodes += numa->n_cpus > before;
        numa->memory_nodes |= numa->n_cpus > before && (!has_memory || memory[n]) ? UINT64_C(1) << n : 0;
    }
}

uint32_t oct__numa_n_memory_nodes(const oct__numa *numa)
{
    uint32_t n = 0;
    for (uint64_t left = numa->memory_nodes; left != 0; left &= left - 1) {
        n++;
    }
    return n;
}

bool oct__numa_interleave(const oct__numa *numa, void *memory, size_t bytes)
{
    if (oct__numa_n_memory_nodes(numa) < 2) {
        return false;
    }
#if defined(SYS_mbind)
    /* The system drops nodes that this process may not use. It wants one bit more than the mask has. */
    const unsigned long mask[2] = { (unsigned long)numa->memory_nodes, sizeof(unsigned long) < 8 ? (unsigned long)(numa->memory_nodes >> 16 >> 16) : 0 };
    return syscall(SYS_mbind, memory, bytes, POLICY_INTERLEAVE, mask, (unsigned long)OCT__NUMA_NODES_MAX + 1, 0u) == 0;
#else
    (void)memory;
    (void)bytes;
    return false;
#endif
}

uint32_t oct__numa_node_of_thread(const oct__numa *numa, uint32_t index, uint32_t n_threads)
{
    return numa->node[(uint64_t)index * numa->n_cpus / n_threads % numa->n_cpus];
}

bool oct__numa_stay(const oct__numa *numa, uint32_t node)
{
#if defined(__linux__)
    cpu_set_t set;
    CPU_ZERO(&set);
    for (uint32_t i = 0; i < numa->n_cpus; i++) {
        if (numa->node[i] == node && numa->cpu[i] < CPU_SETSIZE) {
            CPU_SET(numa->cpu[i], &set);
        }
    }
    return sched_setaffinity(0, sizeof(set), &set) == 0;
#else
    (void)numa;
    (void)node;
    return false;
#endif
}
