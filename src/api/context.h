/* context.h: owns the struct behind oct_context.
 *
 * Threads: immutable after creation; any thread. */
#ifndef OCT_API_CONTEXT_H
#define OCT_API_CONTEXT_H

#include "host/context.h"
#include "plan/facts.h"

struct oct_context {
    oct__allocator allocator;
    oct__log log;
    oct__executor executor;
    oct__machine machine;
};

#endif
