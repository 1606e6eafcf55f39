/* run.h: owns what every part of an evaluation is handed: model, vocabulary, engine settings, progress, and how partial results are kept. Single-threaded. */
#ifndef APP_EVAL_RUN_H
#define APP_EVAL_RUN_H

#include "apps/compare/scales.h"
#include "apps/eval/result.h"
#include "apps/progress.h"
#include "engine/engine.h"
#include "engine/vocab.h"

typedef struct eval_run {
    const octe_model *model;        /* of the pass: the file as it is, or its F32 copy */
    const char *path;               /* of the same */
    const octe_vocab *vocab;
    uint32_t n_vocab;               /* rows of logits */
    const compare_format *formats;
    uint32_t n_formats;
    compare_scales *scales;
    uint32_t n_threads, page_size;
    const oct_rates *rates;
    app_progress *progress;
    /* Called when a piece is done that need not be done again. May be NULL. */
    oct_status (*keep)(void *user, oct_error *error);
    void *user;
} eval_run;

/* BAD_DATA: the base's logits are not numbers, so that there is nothing to hold others against. */
oct_status eval_run_no_numbers(oct_error *error);

/* A piece is done: keeps it, if that is wanted; CANCELLED after Ctrl-C. */
oct_status eval_run_keep(const eval_run *run, oct_error *error);

/* CANCELLED after Ctrl-C, else OK. */
oct_status eval_run_check(oct_error *error);

/* How a format keeps K and V here. */
octe_kv_config eval_run_config(const eval_run *run, uint32_t format);

/* Our engine under one format, for many sequences at once. */
typedef struct eval_engine_size {
    uint32_t context_tokens, n_sequences, step_rows, step_logits;
    int64_t pool_tokens;
} eval_engine_size;
oct_status eval_run_open(const eval_run *run, uint32_t format, const eval_engine_size *size, octe_engine **engine, oct_error *error);

/* n tokens as valid UTF-8, free() it; special: control tokens by their names. NULL: no memory. */
char *eval_run_words(const octe_vocab *vocab, const int32_t *tokens, uint32_t n, bool special);

#endif
