/* Choosing the next token from logits, through libllama's samplers. One thread at a time; reproducible for a seed. */
#ifndef OCTE_SAMPLER_H
#define OCTE_SAMPLER_H

#include "engine/vocab.h"

typedef struct octe_sampler octe_sampler;

typedef struct octe_logit_bias { int32_t token; float bias; } octe_logit_bias;

typedef struct octe_sampler_options {
    float temp;         /* <= 0: greedy, the rest is not looked at */
    int32_t top_k;      /* <= 0: off */
    float top_p;        /* >= 1: off */
    float min_p;        /* <= 0: off */
    uint32_t seed;
    bool ignore_eog;    /* tokens that end a generation are never chosen */
    float frequency_penalty, presence_penalty;   /* taken off a token's logit for each time, and once, that this sampler has chosen it before */
    uint32_t penalty_tokens;                     /* of the last so many; 0: no penalties */
    const octe_logit_bias *bias;                 /* [n_bias] added to logits; read by create only */
    uint32_t n_bias;
    const char *grammar;                         /* NULL, or llama.cpp's GBNF with the rule "root": only texts of it are chosen; read by create only */
} octe_sampler_options;

#define OCTE_SAMPLER_OPTIONS_INIT { 0.8f, 40, 0.95f, 0.05f, 0u, false, 0.0f, 0.0f, 0u, NULL, 0u, NULL }

/* A JSON object, for `grammar`. */
extern const char octe_grammar_json_object[];

/* The chain is bias, penalties, grammar, top-k, top-p, min-p, temperature, draw: llama.cpp's order. vocab must outlive the sampler. INVALID_ARGUMENT: a NaN,
 * top_p or min_p outside 0 .. 1, a bias for a token that is none, a grammar that can't be read. */
oct_status octe_sampler_create(const octe_vocab *vocab, const octe_sampler_options *options, octe_sampler **sampler, oct_error *error);
void octe_sampler_destroy(octe_sampler *sampler);   /* NULL is fine */

/* logits: f32[n_logits]; n_logits may exceed the vocabulary (padded heads): the excess is never chosen. BAD_DATA: no finite logit, or
 * no token that the grammar allows. */
oct_status octe_sampler_sample(octe_sampler *sampler, const float *logits, uint32_t n_logits, int32_t *token, oct_error *error);

#endif
