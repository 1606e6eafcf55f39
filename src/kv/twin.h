/* twin.h: owns the two tables of a model that has full-attention and sliding-window layers, and which window page
 * goes with which full page.
 *
 * Threads: one at a time, as octavo/page.h says. */
#ifndef OCT_KV_TWIN_H
#define OCT_KV_TWIN_H

#include "host/memory.h"
#include "octavo/page.h"

/* oct_kv_twin_create with the allocator of its context, which outlives the twin. The door in src/api has checked the pointers and
 * read the options, so they have this library's size. */
oct_status oct__kv_twin_create(const oct__allocator *allocator, const oct_kv_twin_options *options, oct_kv_twin **twin, oct_error *error);

#endif
