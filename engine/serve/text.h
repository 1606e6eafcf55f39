/* What an answer's tokens add up to: text in whole characters, the texts that stop it, log-probabilities. One thread at a time. */
#ifndef OCTE_SERVE_TEXT_H
#define OCTE_SERVE_TEXT_H

#include "engine/serve/service.h"

typedef struct octe__answer_text {
    octe_stream stream;
    char *text;                   /* zero-terminated once there is any */
    size_t n, room, n_given;      /* bytes; n_given: that no stop text can take back */
    size_t n_characters;          /* that tokens brought, those cut off among them */
    octe_answer_token *tokens;
    uint32_t n_tokens, tokens_room;
    char *stop[OCTE_STOPS_MAX];
    uint32_t n_stop;
    int32_t n_logprobs;           /* -1: none */
    bool finished;
} octe__answer_text;

/* Copies the stop texts. False: no memory; free it then, too. */
bool octe__answer_text_init(octe__answer_text *text, const octe_answer_spec *spec);
void octe__answer_text_free(octe__answer_text *text);

/* Adds a token that was chosen from logits[n_logits]. *stopped: it completed a stop text, which has been cut off. */
oct_status octe__answer_text_add(octe__answer_text *text, const octe_vocab *vocab, int32_t token, const float *logits, uint32_t n_logits, bool *stopped, oct_error *error);

/* No token follows: what was held back is text now. */
void octe__answer_text_finish(octe__answer_text *text);

/* Fills text, n_text, tokens, n_tokens. */
void octe__answer_text_look(const octe__answer_text *text, octe_answer_view *view);

/* The finite logit that is largest, the first of equals; never_ending (NULL: any token): none of this vocabulary's ends of text. BAD_DATA: none is finite. */
oct_status octe__likeliest(const float *logits, uint32_t n, const octe_vocab *never_ending, int32_t *token, oct_error *error);

#endif
