/* context.h: owns what a room below the doors may ask of a context. The struct and these functions live in
 * src/api/context.c; nobody else knows its fields.
 *
 * Threads: a context is immutable; any thread. What is returned lives as long as the context. */
#ifndef OCT_HOST_CONTEXT_H
#define OCT_HOST_CONTEXT_H

#include "host/log.h"
#include "host/memory.h"
#include "host/threads.h"
#include "octavo/context.h"

const oct__allocator *oct__context_allocator(const oct_context *context);
const oct__log *oct__context_log(const oct_context *context);

/* Who runs the tasks: the hook, or the library's own threads. */
const oct__executor *oct__context_executor(const oct_context *context);

#endif
