/* A model: a checked GGUF file, its hyper parameters and its weights, mapped and where it pays repacked.
 * Immutable once open and shared freely by engines and threads; close it after every engine made from it. */
#ifndef OCTE_MODEL_H
#define OCTE_MODEL_H

#include <stdbool.h>

#include "octavo/octavo.h"

typedef struct octe_model octe_model;

typedef struct octe_model_options {
    bool no_repack;         /* keep the file's weight layout: slower prefill, no second copy in memory */
} octe_model_options;

#define OCTE_MODEL_OPTIONS_INIT { false }

/* Facts of a model, for reports and for whoever sizes a cache. Texts live as long as the model. */
typedef struct octe_model_info {
    const char *path;
    const char *name;               /* general.name, or the file's base name */
    const char *architecture;       /* GGUF: "llama", "qwen2", "qwen3", "gemma3" */
    const char *model_type;         /* what Hugging Face configurations call it: "llama", "qwen2", "qwen3", "gemma3_text" */
    uint32_t n_layers;
    uint32_t n_layers_window;       /* of which see only a sliding window */
    uint32_t n_embd;
    uint32_t n_heads;               /* query heads */
    uint32_t n_heads_kv;
    uint32_t head_dim;              /* of K and V */
    uint32_t n_vocab;
    uint32_t n_ctx_train;           /* tokens of context the model was made for */
    uint32_t window_tokens;         /* visible keys of the window layers, the token itself included; 0: none */
    float rope_base;
    float rope_base_window;         /* = rope_base without window layers */
    float attn_scale;               /* scores times this */
    uint64_t n_params;
    uint64_t file_bytes;
    uint64_t repacked_bytes;        /* weights held a second time in the CPU's preferred layout */
    uint32_t n_tensors_repacked;
} octe_model_info;

/* Opens path. options may be NULL. Errors: IO_ERROR (file), BAD_DATA (not a GGUF, truncated, hostile, a key or tensor missing, of a
 * wrong type or shape), UNSUPPORTED (architecture, rope scaling, or a feature of it that is not built), OUT_OF_MEMORY; the text
 * names the file and the key or tensor. */
oct_status octe_model_open(const char *path, const octe_model_options *options, octe_model **model, oct_error *error);
void octe_model_close(octe_model *model);   /* NULL is fine */

const octe_model_info *octe_model_info_get(const octe_model *model);

/* True when layer (0 .. n_layers - 1) sees only the window. */
bool octe_model_layer_has_window(const octe_model *model, uint32_t layer);

/* Names of the architectures built in, by index from 0; NULL past the end. */
const char *octe_architecture_name(uint32_t index);

#endif
