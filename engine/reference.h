/* llama.cpp itself, its own cache and attention, as the peer that comparisons and tests measure against. It takes the same parts as
 * octe_engine_step. One thread at a time. */
#ifndef OCTE_REFERENCE_H
#define OCTE_REFERENCE_H

#include "engine/engine.h"

typedef struct octe_reference octe_reference;

typedef enum octe_reference_cache { OCTE_REFERENCE_F16 = 0, OCTE_REFERENCE_F32 = 1, OCTE_REFERENCE_BF16 = 2, OCTE_REFERENCE_Q8_0 = 3 } octe_reference_cache;
typedef enum octe_reference_flash { OCTE_REFERENCE_FLASH_AUTO = 0, OCTE_REFERENCE_FLASH_OFF = 1, OCTE_REFERENCE_FLASH_ON = 2 } octe_reference_flash;

typedef struct octe_reference_options {
    uint32_t n_threads;            /* 0: the machine's cores */
    uint32_t max_context_tokens;   /* of one sequence; 0: the model's */
    uint32_t max_sequences;        /* 0: 1 */
    uint32_t max_step_rows;        /* 0: 512 */
    uint32_t cache;                /* octe_reference_cache, K and V */
    uint32_t flash;                /* octe_reference_flash; AUTO: on where the cache needs it (q8_0), else llama.cpp's own choice */
    bool no_repack;
} octe_reference_options;

/* Loads the model a second time, in libllama. options may be NULL. Errors: as octe_model_open; UNSUPPORTED when libllama refuses it. */
oct_status octe_reference_open(const char *path, const octe_reference_options *options, octe_reference **reference, oct_error *error);
void octe_reference_close(octe_reference *reference);   /* NULL is fine */

/* As octe_engine_step; positions continue each sequence. *logits is owned by the reference and valid until its next call. After an error
 * the sequences of the step are in an undefined state: clear. */
oct_status octe_reference_step(octe_reference *reference, const octe_part *parts, uint32_t n_parts, const float **logits, oct_error *error);

/* As octe_engine_prefill. */
oct_status octe_reference_prefill(octe_reference *reference, uint32_t sequence, const int32_t *tokens, uint32_t n_tokens, const float **logits, oct_error *error);

/* Cuts to n_tokens. INVALID_ARGUMENT when longer than the sequence, UNSUPPORTED for a model with window layers: what their window would need may be gone. */
oct_status octe_reference_truncate(octe_reference *reference, uint32_t sequence, uint32_t n_tokens, oct_error *error);

uint32_t octe_reference_length(const octe_reference *reference, uint32_t sequence);
oct_status octe_reference_free(octe_reference *reference, uint32_t sequence, oct_error *error);   /* empties one sequence */
void octe_reference_clear(octe_reference *reference);                                            /* empties all */

uint32_t octe_reference_n_vocab(const octe_reference *reference);

/* Exact bytes that one token takes in its cache, as octe_kv_capacity says it of ours. */
void octe_reference_capacity(const octe_reference *reference, octe_kv_capacity *capacity);

/* Writes a copy of the model with every weight in f32, through llama_model_quantize: with no activation quantised, what differs between two
 * runs is the cache alone. Written beside `out` first and renamed: nothing half-written. n_threads 0: the machine's cores. */
oct_status octe_f32_copy(const char *in, const char *out, uint32_t n_threads, oct_error *error);

#endif
