/* pool.h: owns the memory of every layer's pages and of the static scales.
 *
 * Threads: one writer at a time, as octavo/kv.h says; nothing here locks. */
#ifndef OCT_KV_POOL_H
#define OCT_KV_POOL_H

#include "host/memory.h"
#include "octavo/kv.h"

/* oct_kv_pool_create with the allocator of its context, which outlives the pool. The door in src/api has checked the pointers and
 * read the options, so they have this library's size. */
oct_status oct__kv_pool_create(const oct__allocator *allocator, const oct_kv_pool_options *options, oct_kv_pool **pool, oct_error *error);

#endif
