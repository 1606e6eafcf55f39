/* file.c: see file.h. */
#define _GNU_SOURCE /* O_CLOEXEC, realpath */
#include "host/file.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "host/error.h"

/* GNU strerror_r: the text may lie in its own static storage, which never changes. */
static oct_status system_error(oct_error *error, const char *where, const char *doing, const char *path, int number)
{
    char text[128] = "";
    const char *said = strerror_r(number, text, sizeof(text));
    return oct__error_set(error, OCT_IO_ERROR, where, "%s '%s': %s", doing, path, said);
}

static int open_retrying(int folder, const char *path, int flags, mode_t mode)
{
    int fd;
    do {
        fd = openat(folder, path, flags, mode);
    } while (fd < 0 && errno == EINTR);
    return fd;
}

static bool grow(const oct__allocator *allocator, char **data, size_t *capacity, size_t used, size_t wanted)
{
    char *larger = oct__memory_alloc(allocator, wanted, 1);
    if (larger == NULL) {
        return false;
    }
    if (used > 0) {
        memcpy(larger, *data, used);
    }
    oct__memory_free(allocator, *data, *capacity);
    *data = larger;
    *capacity = wanted;
    return true;
}

oct_status oct__file_read_open(const oct__allocator *allocator, int fd, const char *path, size_t max_bytes, char **data, size_t *size_bytes, oct_error *error)
{
    const char *where = "file_read";
    struct stat about;
    if (fstat(fd, &about) != 0) {
        return system_error(error, where, "cannot read", path, errno);
    }
    if (S_ISDIR(about.st_mode)) {
        return system_error(error, where, "cannot read", path, EISDIR);
    }
    if (S_ISREG(about.st_mode) && (uintmax_t)about.st_size > max_bytes) {
        return oct__error_set(error, OCT_BAD_DATA, where, "'%s' has %jd bytes; at most %zu are read", path, (intmax_t)about.st_size, max_bytes);
    }
    char *bytes = NULL;
    size_t capacity = 0, used = 0;
    /* The size is a hint only: files grow, and /proc says 0. Where it is right, nothing is copied: only the end has to be seen. */
    size_t wanted = S_ISREG(about.st_mode) && about.st_size > 0 ? (size_t)about.st_size + 1 : 65536;
    oct_status status = OCT_OK;
    for (bool at_end = false; !at_end;) {
        char probe;
        const bool is_full = capacity > 0 && used == capacity - 1;
        if (capacity == 0 && !grow(allocator, &bytes, &capacity, used, wanted)) {
            status = oct__error_set(error, OCT_OUT_OF_MEMORY, where, "no memory for %zu bytes of '%s'", wanted, path);
            break;
        }
        const ssize_t n = is_full ? read(fd, &probe, 1) : read(fd, bytes + used, capacity - used - 1);
        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n < 0) {
            status = system_error(error, where, "cannot read", path, errno);
            break;
        }
        at_end = n == 0;
        if (is_full && !at_end) {
            wanted = capacity > SIZE_MAX / 2 ? SIZE_MAX : capacity * 2;
            if (!grow(allocator, &bytes, &capacity, used, wanted)) {
                status = oct__error_set(error, OCT_OUT_OF_MEMORY, where, "no memory for %zu bytes of '%s'", wanted, path);
                break;
            }
            bytes[used] = probe;
        }
        used += (size_t)n;
        if (used > max_bytes) {
            status = oct__error_set(error, OCT_BAD_DATA, where, "'%s' has more than the %zu bytes that are read", path, max_bytes);
            break;
        }
    }
    /* The caller frees by the size it knows: an allocator may want the exact one. */
    if (status == OCT_OK && capacity != used + 1 && !grow(allocator, &bytes, &capacity, used, used + 1)) {
        status = oct__error_set(error, OCT_OUT_OF_MEMORY, where, "no memory for %zu bytes of '%s'", used + 1, path);
    }
    if (status != OCT_OK) {
        oct__memory_free(allocator, bytes, capacity);
        return status;
    }
    bytes[used] = '\0';
    *data = bytes;
    *size_bytes = used;
    return OCT_OK;
}

oct_status oct__file_read(const oct__allocator *allocator, const char *path, size_t max_bytes, char **data, size_t *size_bytes, oct_error *error)
{
    const int fd = open_retrying(AT_FDCWD, path, O_RDONLY | O_CLOEXEC, 0);
    if (fd < 0) {
        return system_error(error, "file_read", "cannot open", path, errno);
    }
    const oct_status status = oct__file_read_open(allocator, fd, path, max_bytes, data, size_bytes, error);
    close(fd);
    return status;
}

void oct__file_release(const oct__allocator *allocator, char *data, size_t size_bytes)
{
    oct__memory_free(allocator, data, size_bytes + 1);
}

/* 0 or errno. */
static int write_all(int fd, const char *data, size_t size_bytes)
{
    while (size_bytes > 0) {
        const ssize_t n = write(fd, data, size_bytes);
        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n < 0) {
            return errno;
        }
        data += n;
        size_bytes -= (size_t)n;
    }
    return 0;
}

static oct_status write_directly(const char *path, const void *data, size_t size_bytes, oct_error *error)
{
    const int fd = open_retrying(AT_FDCWD, path, O_WRONLY | O_CLOEXEC, 0);
    if (fd < 0) {
        return system_error(error, "file_write", "cannot open", path, errno);
    }
    int failure = write_all(fd, data, size_bytes);
    if (close(fd) != 0 && failure == 0) {
        failure = errno;
    }
    return failure == 0 ? OCT_OK : system_error(error, "file_write", "cannot write", path, failure);
}

/* A rename is on the disk when its folder is. Best effort: some file systems refuse to sync a folder. */
static void sync_folder(const char *path)
{
    char folder[PATH_MAX];
    const char *slash = strrchr(path, '/');
    const size_t length = slash == NULL ? 0 : (size_t)(slash - path);
    if (slash == NULL) {
        memcpy(folder, ".", 2);
    } else if (length == 0) {
        memcpy(folder, "/", 2);
    } else {
        memcpy(folder, path, length);
        folder[length] = '\0';
    }
    const int fd = open_retrying(AT_FDCWD, folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0);
    if (fd >= 0) {
        (void)fsync(fd);
        close(fd);
    }
}

/* Through a new file of this mode beside `target`, which is relative to folder or a whole path; keep: the permissions that it is to have (NULL: as the mode gives). */
static oct_status write_beside(int folder, const char *target, const char *path, mode_t mode, const struct stat *keep, const void *data, size_t size_bytes, oct_error *error)
{
    const char *where = "file_write";
    char temporary[PATH_MAX];
    /* Not mkstemp, which ignores the umask: a new file has the permissions that open() gives. */
    static atomic_uint n_temporaries;
    int fd = -1;
    for (int attempt = 0; attempt < 100 && fd < 0; attempt++) {
        const int length = snprintf(temporary, sizeof(temporary), "%s.%ld-%u.tmp", target, (long)getpid(), atomic_fetch_add(&n_temporaries, 1));
        if (length < 0 || (size_t)length >= sizeof(temporary)) {
            return oct__error_set(error, OCT_INVALID_ARGUMENT, where, "the path '%s' is too long", path);
        }
        fd = open_retrying(folder, temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
        if (fd < 0 && errno != EEXIST) {
            break;
        }
    }
    if (fd < 0) {
        return system_error(error, where, "cannot write", path, errno);
    }
    int failure = write_all(fd, data, size_bytes);
    if (failure == 0 && keep != NULL && fchmod(fd, keep->st_mode & 07777) != 0) {
        failure = errno;
    }
    if (failure == 0 && fsync(fd) != 0 && errno != EINVAL && errno != ENOTSUP) {
        failure = errno;
    }
    if (close(fd) != 0 && failure == 0) {
        failure = errno;
    }
    if (failure == 0 && renameat(folder, temporary, folder, target) != 0) {
        failure = errno;
    }
    if (failure != 0) {
        (void)unlinkat(folder, temporary, 0);
        return system_error(error, where, "cannot write", path, failure);
    }
    return OCT_OK;
}

oct_status oct__file_write_in(int folder, const char *name, const void *data, size_t size_bytes, oct_error *error)
{
    const oct_status status = write_beside(folder, name, name, S_IRUSR | S_IWUSR, NULL, data, size_bytes, error);
    if (status == OCT_OK) {
        (void)fsync(folder);
    }
    return status;
}

oct_status oct__file_write(const char *path, const void *data, size_t size_bytes, oct_error *error)
{
    const char *where = "file_write";
    char target[PATH_MAX];
    struct stat about;
    const bool exists = stat(path, &about) == 0;
    if (exists && S_ISDIR(about.st_mode)) {
        return system_error(error, where, "cannot write", path, EISDIR);
    }
    if (exists && !S_ISREG(about.st_mode)) {
        return write_directly(path, data, size_bytes, error);
    }
    if (!exists || realpath(path, target) == NULL) {
        if (strlen(path) >= sizeof(target)) {
            return oct__error_set(error, OCT_INVALID_ARGUMENT, where, "the path '%s' is too long", path);
        }
        memcpy(target, path, strlen(path) + 1);
    }
    const oct_status status = write_beside(AT_FDCWD, target, path, 0666, exists ? &about : NULL, data, size_bytes, error);
    if (status == OCT_OK) {
        sync_folder(target);
    }
    return status;
}
