/* token_level.h: owns the judging of a text token by token: every format runs the same sequences in lockstep, so that the base's logits lie beside everybody's
 * and none need be kept. Single-threaded. */
#ifndef APP_EVAL_TOKEN_LEVEL_H
#define APP_EVAL_TOKEN_LEVEL_H

#include "apps/eval/run.h"

/* A text as tokens without special ones, cut into sequences of chunk_tokens, which include the BOS where the model wants one. */
typedef struct eval_source {
    const int32_t *tokens;
    uint32_t n_tokens, chunk_tokens;
    int32_t bos;                    /* -1: none */
} eval_source;

/* Tokens of it that are judged: each that has something before it. */
uint64_t eval_source_judged(const eval_source *source);

/* Rows that a call will run: of the judged ones from n_done on, for one format. */
double eval_source_work(const eval_source *source);

/* Makes room in *text, which has its name only, for n_formats. */
oct_status eval_text_prepare(eval_text *text, const eval_source *source, uint32_t n_formats, bool noise, oct_error *error);

/* The cache of llama.cpp that stores what the base stores: the floor's; its label is "f16" or "bf16". */
const compare_format *eval_noise_of(const compare_format *base);

/* Judges what is not judged yet, a sequence at a time, each kept when it is done. With text->noise also under eval_noise_of the base. CANCELLED after Ctrl-C. */
oct_status eval_text_run(const eval_run *run, const eval_source *source, eval_text *text, oct_error *error);

/* The words of the worst tokens, from the concluded text. */
oct_status eval_text_words(const eval_run *run, const eval_source *source, eval_text *text, oct_error *error);

/* Greedy continuations of n_prompts places of the text, all formats. Does nothing when done. */
enum { EVAL_GREEDY_PROMPT_TOKENS = 64 };
oct_status eval_greedy_prepare(eval_greedy *greedy, uint32_t n_prompts, uint32_t n_tokens, uint32_t n_formats, oct_error *error);
double eval_greedy_work(const eval_greedy *greedy);
oct_status eval_greedy_run(const eval_run *run, const eval_source *source, eval_greedy *greedy, oct_error *error);

#endif
