/* Strict validation of a GGUF file before any other code parses it. ggml trusts counts, types and offsets of a file in places,
 * so nothing here reaches it unless every number has been checked against the bytes that are really there.
 * Pure functions over memory; any thread. Memory use is bounded (16 bytes a key, 32 a tensor, as much again for sorting: under 64 MiB), time grows with the header alone. */
#ifndef OCTE_GGUF_CHECK_H
#define OCTE_GGUF_CHECK_H

#include <stddef.h>
#include <stdint.h>

#include "octavo/status.h"

typedef struct octe_gguf_summary {
    uint32_t version;
    uint32_t alignment_bytes;
    uint64_t n_keys;
    uint64_t n_tensors;
    uint64_t data_offset_bytes;   /* of the first tensor, from the start of the file */
    uint64_t data_size_bytes;     /* from there to the end of the last tensor */
} octe_gguf_summary;

/* Checks size bytes at data: magic and version (2, 3), counts, string lengths, key names unique, value and array types (no nested
 * arrays), general.alignment (a power of two, 8 .. 65536), tensor names unique, 1 to 4 dimensions >= 1, element and byte products
 * within 63 bits, known tensor types with rows of whole blocks, offsets aligned and contiguous, and every tensor inside the file.
 * name: for messages. summary may be NULL. Errors: BAD_DATA (the text names the file and the key or tensor), OUT_OF_MEMORY. */
oct_status octe_gguf_check_memory(const void *data, size_t size, const char *name, octe_gguf_summary *summary, oct_error *error);

/* The same for a regular file, through a read-only map. IO_ERROR when it can't be opened, mapped or is no regular file. */
oct_status octe_gguf_check_file(const char *path, octe_gguf_summary *summary, oct_error *error);

#endif
