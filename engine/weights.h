/* The weights of a model: ggml tensors over the mapped file, the matrices among them repacked where the CPU prefers another layout.
 * Immutable once loaded. */
#ifndef OCTE_WEIGHTS_H
#define OCTE_WEIGHTS_H

#include <ggml-backend.h>
#include <ggml.h>

#include "engine/arch.h"
#include "engine/map.h"
#include "engine/model.h"

/* Most kinds of CPU buffers beside the plain one that ggml may offer (repack, AMX, KleidiAI, ...). */
enum { OCTE__MAX_EXTRA_BUFFERS = 8 };

typedef struct octe__layer {
    struct ggml_tensor *attn_norm, *q, *k, *v, *out;
    struct ggml_tensor *q_bias, *k_bias, *v_bias;           /* or NULL */
    struct ggml_tensor *q_norm, *k_norm;                    /* with qk_norm */
    struct ggml_tensor *post_attn_norm, *post_ffn_norm;     /* with post_norm */
    struct ggml_tensor *ffn_norm, *gate, *up, *down;
} octe__layer;

typedef struct octe__weights {
    struct gguf_context *gguf;
    struct ggml_context *mapped_context;
    ggml_backend_buffer_t mapped_buffer;
    struct ggml_context *repacked_context[OCTE__MAX_EXTRA_BUFFERS];
    ggml_backend_buffer_t repacked_buffer[OCTE__MAX_EXTRA_BUFFERS];
    struct ggml_tensor *embd, *out_norm, *head, *rope_factors;
    octe__layer *layers;
    uint64_t n_params, repacked_bytes;
    uint32_t n_tensors_repacked;
    uint32_t n_vocab;
} octe__weights;

struct octe_model {
    octe_model_info info;
    char *path;
    char *name;
    octe__map map;
    octe__hparams hparams;
    octe__weights weights;
};

/* Makes tensors of the checked map and finds those that the architecture needs: names, shapes, types; a tensor that nothing uses is
 * UNSUPPORTED. m->gguf must be model->weights.gguf. On an error the caller still calls octe__weights_free. */
oct_status octe__weights_load(octe_model *model, const octe__metadata *m, bool repack);
void octe__weights_free(octe__weights *weights);

#endif
