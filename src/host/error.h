/* error.h: owns how an oct_error is filled.
 *
 * Threads: no state; any thread, one writer an oct_error. */
#ifndef OCT_HOST_ERROR_H
#define OCT_HOST_ERROR_H

#include "octavo/status.h"

/* Fills *error, if there is one with room for it (its struct_size says so), and returns status:
 *   return oct__error_set(error, OCT_INVALID_ARGUMENT, "oct_kv_pool_create", "options.n_pages is %lld; must be ...", n);
 * where: the public function, a static text. Too long texts are cut. */
#if defined(__GNUC__)
__attribute__((format(printf, 4, 5)))
#endif
oct_status oct__error_set(oct_error *error, oct_status status, const char *where, const char *format, ...);

#endif
