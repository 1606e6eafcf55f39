/* runner.h: owns one model under one cache, ours or llama.cpp's, behind the same few calls. One sequence each, number 0.
 * Single-threaded; the model and the scales outlive the runner. */
#ifndef APP_COMPARE_RUNNER_H
#define APP_COMPARE_RUNNER_H

#include "apps/compare/format.h"
#include "engine/reference.h"

typedef struct compare_runner {
    const compare_format *format;
    octe_engine *engine;            /* one of the two is NULL */
    octe_reference *reference;
    uint32_t context_tokens;
} compare_runner;

typedef struct compare_runner_options {
    const octe_model *model;
    const char *path;               /* of the same model, for llama.cpp */
    const octe_scales *scales;      /* of formats that need them; rotated as they are */
    uint32_t n_threads, context_tokens, step_rows, step_logits, page_size;
    bool count;                     /* count what saturates */
    const oct_rates *rates;         /* of this machine, for our engines; NULL: defaults */
} compare_runner_options;

oct_status compare_runner_open(compare_runner *runner, const compare_format *format, const compare_runner_options *options, oct_error *error);
void compare_runner_close(compare_runner *runner);   /* fine on a zeroed one */

/* Appends n <= step_rows tokens; *logits: the last n_logits rows, valid until this runner's next call; NULL with n_logits 0. */
oct_status compare_runner_step(compare_runner *runner, const int32_t *tokens, uint32_t n, uint32_t n_logits, const float **logits, oct_error *error);

/* As step, for any n; the logits of the last token. */
oct_status compare_runner_prefill(compare_runner *runner, const int32_t *tokens, uint32_t n, const float **logits, oct_error *error);

oct_status compare_runner_empty(compare_runner *runner, oct_error *error);

/* One step towards a sequence of a depth, for a measurement of speed that will append `after` tokens; call it until *there. Cuts a longer one;
 * fills up a shorter one: our pages at once, with arbitrary values through the same write, llama.cpp's by a real prefill of `tokens` (n of
 * them, repeated as need be), at most step_rows a call. Where a model has window layers llama.cpp's sequence can't be cut: it is left
 * deeper than asked while the context has room, else begun again. */
oct_status compare_runner_approach(compare_runner *runner, uint32_t depth, uint32_t after, const int32_t *tokens, uint32_t n, uint32_t step_rows, bool *there,
                                   oct_error *error);

uint32_t compare_runner_length(const compare_runner *runner);

/* Values of K and V saturated since the last call; -1 where nobody counts. */
int64_t compare_runner_saturated(compare_runner *runner, const octe_model *model);

oct_status compare_runner_capacity(const compare_runner *runner, const octe_model *model, octe_kv_capacity *capacity, oct_error *error);

#endif
