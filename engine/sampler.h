/* Choosing the next token from logits, through libllama's samplers. One thread at a time; reproducible for a seed. */
#ifndef OCTE_SAMPLER_H
#define OCTE_SAMPLER_H

#include "engine/vocab.h"

typedef struct octe_sampler octe_sampler;

typedef struct octe_sampler_options {
    float temp;         /* <= 0: greedy, the rest is not looked at */
    int32_t top_k;      /* <= 0: off */
    float top_p;        /* >= 1: off */
    float min_p;        /* <= 0: off */
    uint32_t seed;
    bool ignore_eog;    /* tokens that end a generation are never chosen */
} octe_sampler_options;

#define OCTE_SAMPLER_OPTIONS_INIT { 0.8f, 40, 0.95f, 0.05f, 0u, false }

/* The chain is top-k, top-p, min-p, temperature, draw: llama.cpp's order. vocab must outlive the sampler. INVALID_ARGUMENT: a NaN, or
 * top_p or min_p outside 0 .. 1. */
oct_status octe_sampler_create(const octe_vocab *vocab, const octe_sampler_options *options, octe_sampler **sampler, oct_error *error);
void octe_sampler_destroy(octe_sampler *sampler);   /* NULL is fine */

/* logits: f32[n_logits]; n_logits may exceed the vocabulary (padded heads): the excess is never chosen. BAD_DATA: no finite logit. */
oct_status octe_sampler_sample(octe_sampler *sampler, const float *logits, uint32_t n_logits, int32_t *token, oct_error *error);

#endif
