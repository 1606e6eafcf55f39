/* The parts of a checkpoint, between hf.c and its fellows. `m` names the file in messages and holds the error. */
#ifndef OCTE_EXPORT_PARTS_H
#define OCTE_EXPORT_PARTS_H

#include <jansson.h>
#include <stdio.h>

#include "engine/export/hf.h"
#include "engine/metadata.h"
#include "engine/weights.h"

/* New references; NULL: no memory, or text that is no UTF-8 (for octe__hf_tokenizer the error says which). */
json_t *octe__hf_config(const octe_model *model, const octe__metadata *m, uint32_t dtype);
json_t *octe__hf_generation_config(const octe__metadata *m);
json_t *octe__hf_tokenizer_config(const octe__metadata *m);
oct_status octe__hf_tokenizer(const octe__metadata *m, json_t **tokenizer);

/* UNSUPPORTED where config.json has no word for what the model does. */
oct_status octe__hf_config_check(const octe_model *model, const octe__metadata *m);

/* The whole model.safetensors. */
oct_status octe__hf_weights(const octe_model *model, const octe__metadata *m, const octe_export_hf_options *options, FILE *file, octe_export_hf_result *result);

/* The text of a token, or NULL; the id at a key such as "tokenizer.ggml.bos_token_id", or -1. */
const char *octe__hf_token(const octe__metadata *m, int64_t id);
int64_t octe__hf_token_id(const octe__metadata *m, const char *key);

#endif
