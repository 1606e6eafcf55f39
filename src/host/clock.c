/* clock.c: see clock.h. */
#include "host/clock.h"

#include <time.h>

uint64_t oct__clock_ns(void)
{
    struct timespec now;
    /* CLOCK_MONOTONIC exists wherever POSIX threads do; it cannot fail with a valid pointer. */
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * UINT64_C(1000000000) + (uint64_t)now.tv_nsec;
}

double oct__clock_seconds(void)
{
    return (double)oct__clock_ns() * 1e-9;
}
