/* struct.c: see struct.h. */
#include "api/struct.h"

#include <string.h>

#include "host/error.h"

static size_t size_of(const void *given)
{
    uint32_t size;
    memcpy(&size, given, sizeof(size));
    return size;
}

oct_status oct__struct_read(void *known, size_t known_size, size_t least_size, const void *given, const char *key, const char *where, oct_error *error)
{
    if (given == NULL) {
        return oct__error_set(error, OCT_INVALID_ARGUMENT, where, "%s is NULL", key);
    }
    const size_t size = size_of(given);
    if (size < least_size) {
        return oct__error_set(error, OCT_INVALID_ARGUMENT, where, "%s.struct_size is %zu; must be the struct's sizeof, at least %zu", key, size, least_size);
    }
    const unsigned char *bytes = given;
    for (size_t i = known_size; i < size; i++) {
        if (bytes[i] != 0) {
            return oct__error_set(error, OCT_INVALID_ARGUMENT, where, "%s uses a field at byte %zu that this version of the library does not know", key, i);
        }
    }
    memset(known, 0, known_size);
    memcpy(known, given, size < known_size ? size : known_size);
    const uint32_t now = (uint32_t)known_size;
    memcpy(known, &now, sizeof(now));
    return OCT_OK;
}

oct_status oct__struct_write(void *given, const void *known, size_t known_size, size_t least_size)
{
    if (given == NULL || size_of(given) < least_size) {
        return OCT_INVALID_ARGUMENT;
    }
    const size_t size = size_of(given), n = size < known_size ? size : known_size, head = sizeof(uint32_t);
    memcpy((unsigned char *)given + head, (const unsigned char *)known + head, n - head);
    memset((unsigned char *)given + n, 0, size - n);
    return OCT_OK;
}
