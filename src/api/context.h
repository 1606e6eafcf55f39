/* context.h: owns the struct behind oct_context.
 *
 * Threads: immutable after creation; any thread. */
#ifndef OCT_API_CONTEXT_H
#define OCT_API_CONTEXT_H

#include "device/driver.h"
#include "host/context.h"
#include "plan/facts.h"

struct oct_context {
    oct__allocator allocator;
    oct__log log;
    oct__executor executor;
    oct__machine machine;
    oct__driver *driver;      /* of the GPU that computes; NULL on the CPU and for a recorded machine */
};

/* oct_context_create on a driver that is open already, which the context then closes; after an error it is still the caller's. options.device and
 * device_library are not looked at. */
oct_status oct__context_create_on(oct__driver *driver, const oct_context_options *options, oct_context **context, oct_error *error);

#endif
