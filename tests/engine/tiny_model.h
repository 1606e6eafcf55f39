/* Complete GGUF models of a few layers with random f32 weights and a SentencePiece vocabulary of 300 tokens, small enough to make in
 * milliseconds and right enough for libllama to run. One thread. */
#ifndef TEST_TINY_MODEL_H
#define TEST_TINY_MODEL_H

#include <stdbool.h>
#include <stdint.h>

struct gguf_context;

enum { TINY_BOS = 1, TINY_EOS = 2, TINY_BYTES = 3, TINY_WORDS = 259, TINY_VOCAB = 300 };

typedef struct tiny_model {
    const char *architecture;
    uint32_t n_layers, n_embd, n_heads, n_heads_kv, head_dim, n_ff, n_ctx;
    bool tied;                      /* no output.weight */
    bool bias;                      /* q, k, v */
    bool rope_factors;              /* rope_freqs.weight */
    float rope_scale;               /* > 0: linear scaling by this */
    uint32_t window;                /* > 0: attention.sliding_window */
    float final_softcap;            /* > 0 */
    uint32_t seed;
    const char *leave_out;          /* a tensor not written */
    const char *reshape;            /* a tensor written with one row or element more */
    const char *extra;              /* a tensor that nobody asked for */
    const char *halve;              /* a tensor written as f16 */
    void (*edit)(struct gguf_context *gguf, const void *user);   /* last look at the keys */
    const void *user;
} tiny_model;

/* A model of each architecture that the engine knows, by index from 0; false past the end. */
bool tiny_model_at(uint32_t index, tiny_model *m);
const char *tiny_model_name(uint32_t index);

/* Writes it to path; fails the test when it can't. */
void tiny_model_write(const tiny_model *m, const char *path);

/* A fresh name in a temporary folder of this process; the folder is removed with what is in it by tiny_folder_remove. */
const char *tiny_path(const char *name);
void tiny_folder_remove(void);

#endif
