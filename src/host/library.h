/* library.h: owns the opening of shared libraries while the program runs: drivers of GPUs, which a machine may have or not.
 *
 * Threads: no state of ours; any thread. */
#ifndef OCT_HOST_LIBRARY_H
#define OCT_HOST_LIBRARY_H

#include <stddef.h>

/* Any function of a library; to be cast to its own type. */
typedef void (*oct__symbol)(void);

/* The first of `names` that opens, each a path or a name that the system's loader looks for; a NULL ends them. NULL when none opens: why, if
 * not NULL, then holds what the loader said of the first (at most size bytes). Closed by oct__library_close. */
void *oct__library_open(const char *const *names, char *why, size_t size);
void oct__library_close(void *library);   /* NULL is fine */

/* NULL when the library has no such function. */
oct__symbol oct__library_find(void *library, const char *name);

#endif
