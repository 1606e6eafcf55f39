/* gguf_bytes.c: see gguf_bytes.h. */
#include "engine/gguf_bytes.h"

#include <stdlib.h>
#include <string.h>

void gguf_bytes_free(gguf_bytes *b)
{
    free(b->data);
    *b = (gguf_bytes){0};
}

void gguf_put(gguf_bytes *b, const void *bytes, size_t n)
{
    if (n > b->room - b->size) {
        b->room = 2 * (b->size + n) + 256;
        unsigned char *larger = realloc(b->data, b->room);
        if (larger == NULL) {
            abort();
        }
        b->data = larger;
    }
    if (n > 0) {
        memcpy(b->data + b->size, bytes, n);
        b->size += n;
    }
}

void gguf_put_u32(gguf_bytes *b, uint32_t v)
{
    const unsigned char bytes[4] = {(unsigned char)v, (unsigned char)(v >> 8), (unsigned char)(v >> 16), (unsigned char)(v >> 24)};
    gguf_put(b, bytes, sizeof(bytes));
}

void gguf_put_u64(gguf_bytes *b, uint64_t v)
{
    gguf_put_u32(b, (uint32_t)v);
    gguf_put_u32(b, (uint32_t)(v >> 32));
}

void gguf_put_string_n(gguf_bytes *b, const char *text, size_t n)
{
    gguf_put_u64(b, n);
    gguf_put(b, text, n);
}

void gguf_put_string(gguf_bytes *b, const char *text) { gguf_put_string_n(b, text, strlen(text)); }

void gguf_put_header(gguf_bytes *b, uint32_t version, uint64_t n_tensors, uint64_t n_keys)
{
    gguf_put(b, "GGUF", 4);
    gguf_put_u32(b, version);
    gguf_put_u64(b, n_tensors);
    gguf_put_u64(b, n_keys);
}

void gguf_put_key_u32(gguf_bytes *b, const char *key, uint32_t v)
{
    gguf_put_string(b, key);
    gguf_put_u32(b, 4);
    gguf_put_u32(b, v);
}

void gguf_put_key_string(gguf_bytes *b, const char *key, const char *text)
{
    gguf_put_string(b, key);
    gguf_put_u32(b, 8);
    gguf_put_string(b, text);
}

void gguf_put_tensor(gguf_bytes *b, const char *name, uint32_t n_dims, const uint64_t *dims, uint32_t type, uint64_t offset)
{
    gguf_put_string(b, name);
    gguf_put_u32(b, n_dims);
    for (uint32_t i = 0; i < n_dims; i++) {
        gguf_put_u64(b, dims[i]);
    }
    gguf_put_u32(b, type);
    gguf_put_u64(b, offset);
}

void gguf_pad(gguf_bytes *b, size_t n)
{
    while (b->size % n != 0) {
        gguf_put(b, "", 1);
    }
}

void gguf_put_sample(gguf_bytes *b)
{
    gguf_put_header(b, 3, 3, 5);
    gguf_put_key_string(b, "general.architecture", "llama");
    gguf_put_key_u32(b, "general.alignment", 32);
    gguf_put_key_u32(b, "llama.block_count", 2);
    gguf_put_string(b, "tokenizer.ggml.tokens");
    gguf_put_u32(b, 9);
    gguf_put_u32(b, 8);
    gguf_put_u64(b, 3);
    gguf_put_string(b, "<unk>");
    gguf_put_string(b, "");
    gguf_put_string(b, "abc");
    gguf_put_string(b, "tokenizer.ggml.scores");
    gguf_put_u32(b, 9);
    gguf_put_u32(b, 6);
    gguf_put_u64(b, 2);
    gguf_put_u64(b, 0);
    const uint64_t f32[] = {4, 2}, f16[] = {8}, q8[] = {32, 1, 2};
    gguf_put_tensor(b, "a.weight", 2, f32, 0, 0);     /* 32 bytes */
    gguf_put_tensor(b, "b.weight", 1, f16, 1, 32);    /* 16 bytes, padded */
    gguf_put_tensor(b, "c.weight", 3, q8, 8, 64);     /* 68 bytes */
    gguf_pad(b, 32);
    static const unsigned char zeros[64 + 68];
    gguf_put(b, zeros, sizeof(zeros));
}
