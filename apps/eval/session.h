/* session.h: owns one evaluation from its options to its reports: what is run, in which order, what is kept of it when it is stopped. Single-threaded. */
#ifndef APP_EVAL_SESSION_H
#define APP_EVAL_SESSION_H

#include "apps/arguments.h"
#include "apps/eval/answer.h"
#include "apps/eval/token_level.h"
#include "apps/rates.h"
#include "apps/texts.h"

#define EVAL_DEFAULT_FORMATS "f16,e4m3,i8+rot/i8"
#define EVAL_FORMS "html|md|json"
#define EVAL_ENDINGS ".html .md .json"

typedef struct eval_options {
    const char *model, *formats, *tasks, *form, *output, *items, *f32_folder, *lengths, *folder, *partial, *rates_file;
    app_texts texts, saves;
    uint32_t n_tokens, chunk_tokens, n_items, n_generated, generate_tokens, seed, keep_seconds, n_threads, block_size, n_sensitivities;
    bool f32_weights, quick, no_floor;
} eval_options;

_Static_assert((int)EVAL_MAX_FORMATS >= (int)COMPARE_MAX_FORMATS, "the list of caches fits");

/* Zero-initialise, fill options and rates, then in this order. */
typedef struct eval_session {
    eval_options options;
    app_rates rates;
    char *command;                               /* as typed; the session's */
    /* What was asked. */
    compare_format formats[EVAL_MAX_FORMATS];
    uint32_t n_formats;
    bool tokens, greedy, inside, all;
    const eval_task_kind *kinds[EVAL_MAX_TASKS]; /* in the order they are run in */
    uint32_t n_kinds;
    eval_item_options items;
    /* What is open. */
    octe_model *model, *copy;
    octe_vocab *vocab;
    char copy_path[4096];
    compare_scales scales[EVAL_MAX_PASSES];
    eval_source sources[EVAL_MAX_TEXTS];
    eval_questions questions[EVAL_MAX_TASKS];
    char *skipped[EVAL_MAX_TASKS];
    app_progress progress;
    /* What came of it. */
    char partial[4096];                          /* "": nothing is kept */
    app_text asked;                              /* as of eval_partial_write */
    eval_result result;
    double begun, kept_at, seconds_before, inside_done;
    bool is_kept, is_full;                       /* the partial file holds something of this session; no more can be written to it */
} eval_session;

/* Reads the lists among the options. INVALID_ARGUMENT names the flag. */
oct_status eval_session_asked(eval_session *s, oct_error *error);

/* The form that a file's ending says; NULL: none. */
const char *eval_form_of(const char *path);

/* That each output can be written: better known before minutes have passed. */
oct_status eval_session_check_outputs(const eval_session *s, oct_error *error);

/* prepare.c: model, vocabulary, texts and items. */
oct_status eval_session_open(eval_session *s, oct_error *error);

/* The empty result, and what a continuation must share. */
oct_status eval_session_prepare(eval_session *s, oct_error *error);

/* Whether a result that was read has the shape of the empty one. */
bool eval_session_fits(const eval_session *s, const eval_result *read);

/* Opens all, continues a partial result or begins, runs, concludes. Whatever it returns, what is done has been kept. */
oct_status eval_session_run(eval_session *s, oct_error *error);

/* Writes the reports; the partial result goes when all of them are written. Returns the exit code; messages are out. */
int eval_session_deliver(eval_session *s);

/* After a failure: where what is done waits, on standard error. */
void eval_session_say_kept(const eval_session *s);

void eval_session_close(eval_session *s);

#endif
