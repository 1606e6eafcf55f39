/* What a model is: the table of architectures and the hyper parameters that a file gives for one of them. Plain data. */
#ifndef OCTE_ARCH_H
#define OCTE_ARCH_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/metadata.h"

/* libllama's own limit. */
enum { OCTE__MAX_LAYERS = 512 };

/* A dense decoder: norm, attention, norm, gated feed-forward, each added to its input. What differs is in the row. */
typedef struct octe__arch {
    const char *name;           /* GGUF's general.architecture */
    const char *model_type;     /* Hugging Face's model_type */
    bool rope_neox;             /* pairs (i, i + n/2); else (2i, 2i + 1) */
    bool rope_factors;          /* rope_freqs.weight scales the frequencies (llama 3) */
    bool qk_norm;               /* RMS norm of each head's q and k before RoPE */
    bool post_norm;             /* RMS norm of attention's and of the feed-forward's result, before the addition */
    bool gelu;                  /* gate through GELU; else SiLU */
    bool embd_sqrt;             /* embeddings times sqrt(n_embd) */
    bool qkv_bias;              /* q, k and v may have biases */
    uint32_t window_pattern;    /* > 0: where the file names a window, all layers of a group but its last have it; the group's size where the file gives none */
    float rope_base_window;     /* of window layers where the file gives none */
} octe__arch;

/* NULL past the end. */
const octe__arch *octe__arch_at(uint32_t index);

typedef struct octe__hparams {
    const octe__arch *arch;
    uint32_t n_layers, n_layers_window, n_embd, n_ff, n_heads, n_heads_kv, head_dim, n_rot, n_ctx_train, window_tokens;
    float norm_epsilon, rope_base, rope_base_window;
    float rope_scale;           /* positions times this in layers without a window (linear scaling) */
    float rope_attn_factor;     /* rotated vectors times this */
    float attn_scale;           /* scores times this */
    float embd_scale;
    float final_softcap;        /* logits = cap * tanh(logits / cap); 0: none */
    bool layer_window[OCTE__MAX_LAYERS];
} octe__hparams;

/* Reads and checks every key that the architecture needs. m->architecture is filled in. Errors: BAD_DATA, UNSUPPORTED. */
oct_status octe__hparams_read(octe__metadata *m, octe__hparams *hparams);

#endif
