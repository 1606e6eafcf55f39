/* Typed reading of GGUF keys. ggml's own getters abort on a wrong type, so every type is looked at first and a wrong one is a message.
 * Reads only; any thread. */
#ifndef OCTE_METADATA_H
#define OCTE_METADATA_H

#include <stdbool.h>
#include <stdint.h>

#include <gguf.h>

#include "octavo/status.h"

/* Whose keys, and for messages. A key that begins with '.' gets the architecture's name before it. */
typedef struct octe__metadata {
    const struct gguf_context *gguf;
    const char *file;
    const char *architecture;
    const char *where;
    oct_error *error;
} octe__metadata;

/* What a reader does when the key is missing. */
typedef enum octe__presence { OCTE__OPTIONAL, OCTE__REQUIRED } octe__presence;

bool octe__metadata_has(const octe__metadata *m, const char *key);

/* Each leaves *value as it was when an optional key is missing. BAD_DATA: missing though required, of another type, outside min .. max or,
 * for floats, not finite. Integers of any width are taken. */
oct_status octe__metadata_u32(const octe__metadata *m, const char *key, octe__presence presence, uint32_t min, uint32_t max, uint32_t *value);
oct_status octe__metadata_f32(const octe__metadata *m, const char *key, octe__presence presence, float min, float max, float *value);
oct_status octe__metadata_bool(const octe__metadata *m, const char *key, octe__presence presence, bool *value);
/* *value lives as long as the gguf_context. */
oct_status octe__metadata_string(const octe__metadata *m, const char *key, octe__presence presence, const char **value);

/* A number, or an array of n equal numbers (per layer). An array that differs is UNSUPPORTED. */
oct_status octe__metadata_u32_uniform(const octe__metadata *m, const char *key, octe__presence presence, uint32_t n, uint32_t min, uint32_t max,
                                      uint32_t *value);

/* An array of at least n booleans or integers (non-zero is true). *found is false when the key is missing or no array. */
oct_status octe__metadata_flags(const octe__metadata *m, const char *key, uint32_t n, bool *flags, bool *found);

/* Fails with status about a key: "<file>: key '<key>' <message>". */
#if defined(__GNUC__)
__attribute__((format(printf, 4, 5)))
#endif
oct_status octe__metadata_fail(const octe__metadata *m, oct_status status, const char *key, const char *format, ...);

#endif
