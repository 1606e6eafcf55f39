/* clock.h: owns time as the library measures it: monotonic, never set back.
 *
 * Threads: no state; any thread. */
#ifndef OCT_HOST_CLOCK_H
#define OCT_HOST_CLOCK_H

#include <stdint.h>

/* Nanoseconds since some fixed point; only differences mean anything. */
uint64_t oct__clock_ns(void);

/* oct__clock_ns() in seconds. */
double oct__clock_seconds(void);

#endif
