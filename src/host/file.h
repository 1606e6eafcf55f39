/* file.h: owns whole files: reading one with a limit on its size, and writing one so that a reader sees the old or the
 * new content and nothing between. Error texts name the file and the system's reason.
 *
 * Threads: no state; any thread. Two writers of one file: the last to finish wins, whole. */
#ifndef OCT_HOST_FILE_H
#define OCT_HOST_FILE_H

#include <stddef.h>

#include "host/memory.h"
#include "octavo/status.h"

/* Reads all of a file (pipes too). *data is terminated by a zero byte that *size_bytes does not count, and freed by
 * oct__file_release. IO_ERROR: missing, a folder, unreadable; BAD_DATA: more than max_bytes; OUT_OF_MEMORY. */
oct_status oct__file_read(const oct__allocator *allocator, const char *path, size_t max_bytes, char **data, size_t *size_bytes, oct_error *error);
/* The same of what is open already, from where it stands; `name` is for errors alone. The caller closes. */
oct_status oct__file_read_open(const oct__allocator *allocator, int file, const char *name, size_t max_bytes, char **data, size_t *size_bytes, oct_error *error);
void oct__file_release(const oct__allocator *allocator, char *data, size_t size_bytes);

/* Writes size_bytes to a new file beside `path`, brings it to the disk, and renames it to `path`; a failure leaves
 * `path` as it was and nothing else behind. An existing file keeps its permissions, a symbolic link stays one and
 * its target is replaced. What is no regular file (a pipe, /dev/stdout) is written directly. IO_ERROR, INVALID_ARGUMENT (path too long). */
oct_status oct__file_write(const char *path, const void *data, size_t size_bytes, oct_error *error);

/* The same of a file of this name (no '/') in a folder that is open, for the owner alone (mode 0600, whatever was there before): what strangers name. A link or pipe of that name is
 * replaced, and neither followed nor written to. Errors name `name` alone. */
oct_status oct__file_write_in(int folder, const char *name, const void *data, size_t size_bytes, oct_error *error);

#endif
