/* memory.c: see memory.h. */
#define _GNU_SOURCE /* MAP_ANONYMOUS, madvise */
#include "host/memory.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* A cache line, and the widest vector a kernel loads. */
enum { RESERVE_ALIGN = 64 };

void *oct__memory_alloc(const oct__allocator *allocator, size_t size_bytes, size_t align)
{
    void *memory = NULL;
    if (size_bytes == 0) {
        return NULL;
    }
    if (align < sizeof(void *)) {
        align = sizeof(void *);
    }
    if (allocator->alloc != NULL) {
        return allocator->alloc(allocator->user, size_bytes, align);
    }
    return posix_memalign(&memory, align, size_bytes) == 0 ? memory : NULL;
}

void oct__memory_free(const oct__allocator *allocator, void *memory, size_t size_bytes)
{
    if (memory == NULL) {
        return;
    }
    if (allocator->alloc != NULL) {
        allocator->free(allocator->user, memory, size_bytes);
    } else {
        free(memory);
    }
}

void *oct__memory_alloc_zeroed(const oct__allocator *allocator, size_t n, size_t size_bytes)
{
    if (size_bytes == 0 || n == 0 || n > SIZE_MAX / size_bytes) {
        return NULL;
    }
    if (allocator->alloc == NULL) {
        return calloc(n, size_bytes);
    }
    void *memory = allocator->alloc(allocator->user, n * size_bytes, _Alignof(max_align_t));
    if (memory != NULL) {
        memset(memory, 0, n * size_bytes);
    }
    return memory;
}

void *oct__memory_reserve(const oct__allocator *allocator, size_t size_bytes)
{
    if (size_bytes == 0) {
        return NULL;
    }
    if (allocator->alloc != NULL) {
        void *memory = allocator->alloc(allocator->user, size_bytes, RESERVE_ALIGN);
        if (memory != NULL) {
            memset(memory, 0, size_bytes);
        }
        return memory;
    }
    /* Not MAP_NORESERVE: a region that this machine can never hold should fail here, not when the kernel kills the
     * process at the first page that does not fit. */
    void *memory = mmap(NULL, size_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
        return NULL;
    }
#ifdef MADV_HUGEPAGE
    /* Attention reads pages in any order, each in a corner of its own: with 4 KiB of system page it waits for the TLB
     * (read at random in pieces of 3 KiB: 6 GB/s; with 2 MiB: 8; pieces of 64 KiB: 19 and 23). Advice: it may fail. */
    (void)madvise(memory, size_bytes, MADV_HUGEPAGE);
#endif
    return memory;
}

void oct__memory_release(const oct__allocator *allocator, void *memory, size_t size_bytes)
{
    if (memory == NULL) {
        return;
    }
    if (allocator->alloc != NULL) {
        allocator->free(allocator->user, memory, size_bytes);
    } else {
        munmap(memory, size_bytes);
    }
}

bool oct__array_reserve(const oct__allocator *allocator, oct__array *array, uint64_t n, size_t element_bytes)
{
    if (n > SIZE_MAX / 2 / element_bytes) {
        return false;
    }
    const size_t needed = (size_t)n * element_bytes;
    if (needed <= array->capacity_bytes) {
        return true;
    }
    /* A batch that grows by one sequence a step must not allocate each step. */
    size_t wanted = array->capacity_bytes + array->capacity_bytes / 2;
    wanted = (wanted > needed ? wanted : needed) + RESERVE_ALIGN - 1;
    wanted -= wanted % RESERVE_ALIGN;
    void *memory = oct__memory_alloc(allocator, wanted, RESERVE_ALIGN);
    if (memory == NULL) {
        return false;
    }
    oct__memory_free(allocator, array->memory, array->capacity_bytes);
    array->memory = memory;
    array->capacity_bytes = wanted;
    return true;
}

void oct__array_free(const oct__allocator *allocator, oct__array *array)
{
    oct__memory_free(allocator, array->memory, array->capacity_bytes);
    array->memory = NULL;
    array->capacity_bytes = 0;
}
