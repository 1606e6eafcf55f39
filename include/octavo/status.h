/* Outcomes. Every call that can fail returns an oct_status; set-up calls also fill an optional oct_error.
 * The library never prints, aborts or exits. */
#ifndef OCTAVO_STATUS_H
#define OCTAVO_STATUS_H

#include <stddef.h>
#include <stdint.h>

#if defined(_WIN32)
#define OCT_API
#elif defined(__GNUC__)
#define OCT_API __attribute__((visibility("default")))
#else
#define OCT_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* X(enumerator, value, name, message). The one list of outcomes; values never change meaning. */
#define OCT_STATUS_MAP(X)                                                                             \
    X(OCT_OK, 0, "ok", "success")                                                                     \
    X(OCT_INVALID_ARGUMENT, 1, "invalid_argument", "an argument is wrong whatever the machine")       \
    X(OCT_UNSUPPORTED, 2, "unsupported", "legal, but no variant on this machine can do it")           \
    X(OCT_OUT_OF_MEMORY, 3, "out_of_memory", "memory could not be allocated")                         \
    X(OCT_OUT_OF_PAGES, 4, "out_of_pages", "the pool has too few free pages")                         \
    X(OCT_DEVICE_FAULT, 5, "device_fault", "the device reported a fault")                             \
    X(OCT_IO_ERROR, 6, "io_error", "a file could not be read or written")                             \
    X(OCT_BAD_DATA, 7, "bad_data", "a file or buffer does not hold what it should")                   \
    X(OCT_CANCELLED, 8, "cancelled", "the caller asked to stop")

typedef enum oct_status {
#define OCT_STATUS_ENUM(id, value, name, message) id = value,
    OCT_STATUS_MAP(OCT_STATUS_ENUM)
#undef OCT_STATUS_ENUM
} oct_status;

/* What went wrong, for people. Set struct_size before the call, or pass NULL. Untouched on success.
 * Texts are cut to fit and always end in a zero byte. */
typedef struct oct_error {
    uint32_t struct_size;
    uint32_t status;   /* oct_status */
    char text[256];    /* the argument or file, what it is and what it must be */
    char where[64];    /* the public function */
} oct_error;

#define OCT_ERROR_INIT { (uint32_t)sizeof(oct_error), 0, { 0 }, { 0 } }

/* Static texts for any value; "unknown" for one that is no oct_status. Any thread. */
OCT_API const char *oct_status_name(oct_status status);
OCT_API const char *oct_status_message(oct_status status);

#ifdef __cplusplus
}
#endif
#endif
