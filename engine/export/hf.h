/* A GGUF as a Hugging Face checkpoint: config.json, generation_config.json, model.safetensors, tokenizer.json, tokenizer_config.json. One thread a call. */
#ifndef OCTE_EXPORT_HF_H
#define OCTE_EXPORT_HF_H

#include <stdbool.h>
#include <stdint.h>

#include "octavo/status.h"

typedef struct octe_export_hf_options {
    uint32_t dtype;                 /* of the weights: OCT_DTYPE_BF16, F16 or F32 */
    bool (*progress)(void *user, uint64_t done, uint64_t total);   /* bytes of weights; false: stop, CANCELLED. May be NULL */
    void *user;
} octe_export_hf_options;

typedef struct octe_export_hf_result {
    uint64_t n_tensors, weight_bytes;
    uint32_t n_vocab;
} octe_export_hf_result;

/* Dequantises the model at path (as octe_model_open takes it) into a new folder, which appears whole or not at all; one that is there must be empty.
 * Errors: those of octe_model_open; UNSUPPORTED (a RoPE scaling or a tokenizer that a checkpoint can't say), BAD_DATA, IO_ERROR, OUT_OF_MEMORY,
 * CANCELLED. result may be NULL. */
oct_status octe_export_hf(const char *path, const char *folder, const octe_export_hf_options *options, octe_export_hf_result *result, oct_error *error);

#endif
