/* A whole file mapped read-only. Immutable once open; the map stays valid when the file is renamed or deleted, not when it is cut. */
#ifndef OCTE_MAP_H
#define OCTE_MAP_H

#include <stddef.h>

#include "octavo/status.h"

typedef struct octe__map {
    void *data;          /* page aligned; NULL for an empty file */
    size_t size_bytes;
} octe__map;

/* IO_ERROR names the file and the system's reason: missing, not readable, no regular file. */
oct_status octe__map_open(const char *path, octe__map *map, const char *where, oct_error *error);
void octe__map_close(octe__map *map);   /* fine on a zeroed one */

#endif
