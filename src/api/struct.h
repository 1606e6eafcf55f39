/* struct.h: owns how public structs cross the door while both sides age: doc/ABI.md states the rule.
 *
 * Threads: pure functions. */
#ifndef OCT_API_STRUCT_H
#define OCT_API_STRUCT_H

#include <stddef.h>

#include "octavo/status.h"

/* Copies a caller's struct, which begins with its struct_size, into `known`, of known_size bytes as this library knows it; what
 * the caller's lacks becomes zero, and known's struct_size is known_size. INVALID_ARGUMENT: NULL; struct_size below least_size (what the
 * struct had when it was first released: 0 is below it); or larger than known_size and not zero past it. `key` names the struct in the error. */
oct_status oct__struct_read(void *known, size_t known_size, size_t least_size, const void *given, const char *key, const char *where, oct_error *error);

/* The other way: fills as much of the caller's struct as it has room for, and zeroes what it has beyond; its struct_size stays.
 * INVALID_ARGUMENT: NULL, or below least_size. */
oct_status oct__struct_write(void *given, const void *known, size_t known_size, size_t least_size);

#endif
