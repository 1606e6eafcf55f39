/* A scheduler tied to an engine: each step is planned, run on the engine's pools and handed out row by row for sampling. One thread at a time. */
#ifndef OCTE_SERVE_RUNNER_H
#define OCTE_SERVE_RUNNER_H

#include "engine/engine.h"
#include "engine/serve/scheduler.h"

typedef struct octe_runner octe_runner;

typedef struct octe_runner_options {
    uint32_t max_running;      /* requests at once; 0: the engine's max_sequences */
    uint32_t chunk_tokens;     /* prompt tokens of one request in a step; 0: as many as there are rows (deterministic: what leaves a row for every sequence) */
    uint32_t max_waiting;      /* 0: any number */
    bool no_prefix_cache;
    octe_draft_options draft;  /* the engine should take rows with logits of the guesses, too: max_step_logits bounds them; deterministic, each guess is a part of its own, and
                                  max_step_parts does as well */
    uint64_t swap_bytes;       /* of the host, for the pages of preempted requests; 0: they are computed again */
    void (*planned)(void *user, const octe_step_plan *step);   /* before each step runs; may be NULL */
    void *user;
} octe_runner_options;

/* The rest follows the engine's options: max_context_tokens of a request, max_step_rows a step, and its deterministic mode. The engine must
 * take a row with logits of every sequence (max_step_logits >= max_sequences) and outlive the runner; nobody else steps it. Errors as
 * octe_scheduler_open. */
oct_status octe_runner_open(octe_engine *engine, const octe_runner_options *options, octe_runner **runner, oct_error *error);
void octe_runner_close(octe_runner *runner);   /* NULL is fine */

/* Where the seconds of all steps went: the model, and the sampling of its logits. What is left of a step is the scheduler's. */
typedef struct octe_runner_seconds { double model, sampling; } octe_runner_seconds;
octe_runner_seconds octe_runner_seconds_get(const octe_runner *runner);

/* For add, cancel, statistics, clear_cache; not for plan and commit. */
octe_scheduler *octe_runner_scheduler(octe_runner *runner);

/* The whole pages of the prefix cache into a file, which is the old one or the new one and nothing between; needs memory for a second copy of them. */
oct_status octe_runner_save(octe_runner *runner, const char *path, uint64_t *n_pages, oct_error *error);

/* And back, as far as pages are free or held by nobody. Errors: IO_ERROR; BAD_DATA: damaged, cut off, of another version, model, cache format or mode: nothing is taken over.
 * *n_pages: those that the cache had not. */
oct_status octe_runner_restore(octe_runner *runner, const char *path, uint64_t *n_pages, oct_error *error);

/* The same of one text's beginning, as far as the cache has it: whole pages, deterministic whole chunks. Nothing of it there: OCT_OK, n_tokens 0 and no file. Between steps.
 * folder, file: descriptors, so that what was judged is what is read and written (oct__file_write_in); errors name `name` alone. */
typedef struct octe_prefix_moved { uint32_t n_tokens; uint64_t n_bytes; } octe_prefix_moved;   /* tokens saved, or in the cache now; bytes of the file */
oct_status octe_runner_save_prefix(octe_runner *runner, const int32_t *tokens, uint32_t n_tokens, int folder, const char *name, octe_prefix_moved *moved, oct_error *error);
oct_status octe_runner_restore_prefix(octe_runner *runner, int file, const char *name, octe_prefix_moved *moved, oct_error *error);

/* The next token of part->id from its logits f32[n_vocab]; true: it is the last one (max_new_tokens end it anyway). Called once for each token, in order: after a guess that it
 * confirms again in the same step, with the logits of the guess. */
typedef bool octe_runner_sample(void *context, const octe_scheduled *part, const float *logits, int32_t *token);

/* One step. *n_rows: what it computed; 0: no request was there. After an error nothing was sampled and all requests of the step are as before; who
 * steps again meets the same ones. failed (may be NULL) is called with each of them. */
oct_status octe_runner_step(octe_runner *runner, octe_runner_sample *sample, void (*failed)(void *context, const octe_scheduled *part), void *context, uint32_t *n_rows,
                            oct_error *error);

#endif
