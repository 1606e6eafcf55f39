/* GGUF files byte by byte, right or wrong on purpose. A gguf_bytes has one owner. */
#ifndef TEST_GGUF_BYTES_H
#define TEST_GGUF_BYTES_H

#include <stddef.h>
#include <stdint.h>

typedef struct gguf_bytes {
    unsigned char *data;
    size_t size, room;
} gguf_bytes;

void gguf_bytes_free(gguf_bytes *b);
void gguf_put(gguf_bytes *b, const void *bytes, size_t n);
void gguf_put_u32(gguf_bytes *b, uint32_t v);
void gguf_put_u64(gguf_bytes *b, uint64_t v);
void gguf_put_string(gguf_bytes *b, const char *text);
void gguf_put_string_n(gguf_bytes *b, const char *text, size_t n);
void gguf_put_header(gguf_bytes *b, uint32_t version, uint64_t n_tensors, uint64_t n_keys);
void gguf_put_key_u32(gguf_bytes *b, const char *key, uint32_t v);
void gguf_put_key_string(gguf_bytes *b, const char *key, const char *text);
/* A record with up to four dims; offset is relative to the data. */
void gguf_put_tensor(gguf_bytes *b, const char *name, uint32_t n_dims, const uint64_t *dims, uint32_t type, uint64_t offset);
/* Zero bytes up to a multiple of n. */
void gguf_pad(gguf_bytes *b, size_t n);

/* A small right file: 5 keys (one array of strings, one of numbers) and 3 tensors (f32, f16, q8_0). */
void gguf_put_sample(gguf_bytes *b);

#endif
