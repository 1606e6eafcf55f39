/* memory.h: owns where memory comes from: a context's allocator hooks, or the C library and the system without them.
 *
 * Threads: no state here; any thread, as far as the hooks allow it. */
#ifndef OCT_HOST_MEMORY_H
#define OCT_HOST_MEMORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The hooks of oct_context_options. alloc NULL: the C library. Whoever keeps a pointer to one keeps the context alive. */
typedef struct oct__allocator {
    void *(*alloc)(void *user, size_t size_bytes, size_t align);
    void (*free)(void *user, void *memory, size_t size_bytes);
    void *user;
} oct__allocator;

/* Uninitialised memory for bookkeeping, aligned to `align` (a power of two; below that of a pointer counts as that).
 * NULL when there is none or size_bytes is 0. Freed by oct__memory_free with the same size; NULL is fine. */
void *oct__memory_alloc(const oct__allocator *allocator, size_t size_bytes, size_t align);
void oct__memory_free(const oct__allocator *allocator, void *memory, size_t size_bytes);

/* n elements of size_bytes each, all zero, aligned for any C type. NULL when there is none, n * size_bytes is 0 or
 * overflows. The C library's memory costs nothing until it is touched. Freed by oct__memory_free with the product. */
void *oct__memory_alloc_zeroed(const oct__allocator *allocator, size_t n, size_t size_bytes);

/* One large zero-filled region, aligned to 64 bytes at least. Without hooks the system zeroes each of its pages when it is
 * first touched, so that a pool costs only what is used of it; with hooks the region is zeroed here. NULL when
 * there is none or size_bytes is 0. Given back by oct__memory_release with the same size; NULL is fine. */
void *oct__memory_reserve(const oct__allocator *allocator, size_t size_bytes);
void oct__memory_release(const oct__allocator *allocator, void *memory, size_t size_bytes);

/* An array whose room only grows. All zero is an empty one. */
typedef struct oct__array {
    void *memory;           /* aligned to 64 bytes */
    size_t capacity_bytes;
} oct__array;

/* Room for n elements of element_bytes. What the array held is lost when it has to grow, and kept otherwise; when there
 * is no memory, false and nothing changes. n == 0 is fine and may leave memory NULL. */
bool oct__array_reserve(const oct__allocator *allocator, oct__array *array, uint64_t n, size_t element_bytes);
void oct__array_free(const oct__allocator *allocator, oct__array *array);

#endif
