/* pool.h: owns the memory of every layer's pages and of the static scales, be it the host's or a device's.
 *
 * Threads: one writer at a time, as octavo/kv.h says; nothing here locks. */
#ifndef OCT_KV_POOL_H
#define OCT_KV_POOL_H

#include "host/memory.h"
#include "octavo/kv.h"

/* Memory that the host may not touch. Calls that copy are enqueued; wait ends them. */
typedef struct oct__kv_store {
    void *user;
    oct_status (*alloc)(void *user, size_t bytes, void **memory);   /* zero-filled by the time it returns */
    void (*free)(void *user, void *memory);
    oct_status (*put)(void *user, void *to, const void *from, size_t bytes);
    oct_status (*copy)(void *user, void *to, const void *from, size_t bytes);   /* within the store */
    oct_status (*wait)(void *user);
} oct__kv_store;

/* oct_kv_pool_create with the allocator of its context, which outlives the pool. The door in src/api has checked the pointers and
 * read the options, so they have this library's size. store: where pages and static scales lie, copied; NULL: on the host. */
oct_status oct__kv_pool_create(const oct__allocator *allocator, const oct__kv_store *store, const oct_kv_pool_options *options, oct_kv_pool **pool,
                               oct_error *error);

#endif
