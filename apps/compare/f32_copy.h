/* f32_copy.h: owns where the F32 copy of a model lies and when it is made. Single-threaded. */
#ifndef APP_COMPARE_F32_COPY_H
#define APP_COMPARE_F32_COPY_H

#include <stddef.h>

#include "octavo/status.h"

/* The copy of `model` in `folder` (NULL: beside the model), made now unless it is there. Its name carries a number of the model's path,
 * size and time, so that a changed model gets a new copy. IO_ERROR, or what the making says. */
oct_status compare_f32_copy(const char *model, const char *folder, unsigned n_threads, char *path, size_t size, oct_error *error);

#endif
