/* map.c: see map.h. */
#define _GNU_SOURCE /* O_CLOEXEC */
#include "engine/map.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/report.h"

static oct_status failed(const char *path, const char *where, const char *doing, int number, oct_error *error)
{
    char text[128];
    return octe__report(error, OCT_IO_ERROR, where, path, "%s: %s", doing, strerror_r(number, text, sizeof(text)));
}

static oct_status map_descriptor(int fd, const char *path, octe__map *map, const char *where, oct_error *error)
{
    struct stat about;
    if (fstat(fd, &about) != 0) {
        return failed(path, where, "cannot be read", errno, error);
    }
    if (!S_ISREG(about.st_mode)) {
        return octe__report(error, OCT_IO_ERROR, where, path, "is %s; must be a regular file", S_ISDIR(about.st_mode) ? "a folder" : "a device or pipe");
    }
    map->size_bytes = (size_t)about.st_size;
    if (map->size_bytes == 0) {
        return OCT_OK;
    }
    /* Private and shared read-only maps read the same page cache; private can't be surprised by a writable one elsewhere. */
    void *data = mmap(NULL, map->size_bytes, PROT_READ, MAP_PRIVATE, fd, 0);
    if (data == MAP_FAILED) {
        return failed(path, where, "cannot be mapped", errno, error);
    }
    map->data = data;
    return OCT_OK;
}

oct_status octe__map_open(const char *path, octe__map *map, const char *where, oct_error *error)
{
    *map = (octe__map){NULL, 0};
    if (path == NULL || path[0] == '\0') {
        return octe__report(error, OCT_INVALID_ARGUMENT, where, NULL, "path is %s; must name a file", path == NULL ? "NULL" : "empty");
    }
    /* Not blocking: a pipe without a writer must be an error, not a wait. */
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) {
        return failed(path, where, "cannot be opened", errno, error);
    }
    const oct_status status = map_descriptor(fd, path, map, where, error);
    close(fd);
    return status;
}

void octe__map_close(octe__map *map)
{
    if (map->data != NULL) {
        munmap(map->data, map->size_bytes);
    }
    *map = (octe__map){NULL, 0};
}
