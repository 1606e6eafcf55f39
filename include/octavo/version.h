/* The version of the library: of this header at compile time, of the loaded library at run time. */
#ifndef OCTAVO_VERSION_H
#define OCTAVO_VERSION_H

#include "octavo/status.h"

#ifdef __cplusplus
extern "C" {
#endif

#define OCT_VERSION_MAJOR 0
#define OCT_VERSION_MINOR 1
#define OCT_VERSION_PATCH 0
#define OCT_VERSION_STRING "0.1.0"

/* MAJOR * 10000 + MINOR * 100 + PATCH of the library in use. Any thread. */
OCT_API uint32_t oct_version_number(void);

/* The same as text, static storage. Any thread. */
OCT_API const char *oct_version_string(void);

#ifdef __cplusplus
}
#endif
#endif
