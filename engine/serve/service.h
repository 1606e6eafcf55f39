/* A service: a thread that runs an engine for many answers at once, and the answers, which any thread may ask for, read and abandon.
 * octe_service_lock guards everything that an answer has brought so far; `notify` is called with it held. */
#ifndef OCTE_SERVE_SERVICE_H
#define OCTE_SERVE_SERVICE_H

#include "engine/sampler.h"
#include "engine/serve/runner.h"

typedef struct octe_service octe_service;
typedef struct octe_answer octe_answer;

typedef struct octe_service_options {
    octe_runner_options runner;   /* planned and user are the service's own */
    uint32_t max_open;         /* answers asked for and not ended; more are refused. 0: 1024 */
} octe_service_options;

/* Engine and vocabulary outlive the service; nobody else steps the engine. */
oct_status octe_service_open(octe_engine *engine, const octe_vocab *vocab, const octe_service_options *options, octe_service **service, oct_error *error);
/* Ends all answers with CANCELLED first. No answer may be asked for any more; those that there are can still be read and abandoned until
 * octe_service_destroy. */
void octe_service_stop(octe_service *service);
void octe_service_destroy(octe_service *service);   /* every answer abandoned; NULL is fine */

/* octe_runner_restore before the first answer is asked for, octe_runner_save after octe_service_stop; else INVALID_ARGUMENT. */
oct_status octe_service_restore(octe_service *service, const char *path, uint64_t *n_pages, oct_error *error);
oct_status octe_service_save(octe_service *service, const char *path, uint64_t *n_pages, oct_error *error);

/* A text's beginning between the cache and a file, between two steps: octe_runner_save_prefix, octe_runner_restore_prefix. */
typedef struct octe_prefix_job {
    bool restore;
    const int32_t *tokens;                 /* to save; the caller's until it is done, as folder, name and file are */
    uint32_t n_tokens;
    int folder;                            /* to save: a descriptor of the folder */
    const char *name;                      /* within it; to restore: as errors name the file */
    int file;                              /* to restore: a descriptor, read from where it stands */
    void (*notify)(void *context);         /* it is done. Service thread; lock held */
    void *context;
    /* out */
    bool done, withdrawn;                  /* with the lock */
    oct_status status;                     /* CANCELLED: the service has stopped */
    octe_prefix_moved moved;
    oct_error error;
    struct octe_prefix_job *next;
} octe_prefix_job;

enum { OCTE_JOBS_MAX = 16 };               /* that wait: each has tokens, or a file open, and steps wait for each */

/* Not with the lock held. On an error nothing is notified: OUT_OF_PAGES (as many as may be are waiting), CANCELLED (stopping). */
oct_status octe_service_submit(octe_service *service, octe_prefix_job *job, oct_error *error);
/* With the lock held. True: it had not begun, will not, and nothing is notified; false: it has begun or is done. */
bool octe_service_withdraw(octe_service *service, octe_prefix_job *job);

enum { OCTE_STOPS_MAX = 16, OCTE_STOP_CHARACTERS_MAX = 1024, OCTE_LOGPROBS_MAX = 20 };

typedef struct octe_answer_spec {
    octe_request_spec request;             /* user is not looked at */
    octe_sampler_options sampling;
    const char *stop[OCTE_STOPS_MAX];      /* texts that end the answer, copied; the answer ends before them */
    uint32_t n_stop;
    int32_t n_logprobs;                    /* -1: none; else of the token and of the likeliest n, at most OCTE_LOGPROBS_MAX */
    void (*notify)(void *context);         /* something new has come, or the end. Service thread; lock held; not after octe_answer_abandon */
    void *context;
} octe_answer_spec;

/* Errors: INVALID_ARGUMENT (lengths, with the numbers; sampling), OUT_OF_PAGES (too many open), CANCELLED (stopping), OUT_OF_MEMORY. Not with the lock held. */
oct_status octe_service_ask(octe_service *service, const octe_answer_spec *spec, octe_answer **answer, oct_error *error);
/* Ends it if it hasn't ended and frees it. Not with the lock held. */
void octe_answer_abandon(octe_answer *answer);

typedef enum octe_answer_end { OCTE_END_NOT_YET, OCTE_END_STOP, OCTE_END_LENGTH, OCTE_END_FAILED } octe_answer_end;

typedef struct octe_logprob { int32_t token; float logprob; } octe_logprob;

/* One token of an answer. */
typedef struct octe_answer_token {
    int32_t token;
    size_t begin, end;         /* bytes of the text that it brought (held back bytes belong to the token that completes them) */
    size_t begin_characters;   /* begin, counted in characters */
    float logprob;
    octe_logprob *top;         /* [n_logprobs], likeliest first */
} octe_answer_token;

/* What has come so far. With the lock held; what it points to is valid until it is given up. */
typedef struct octe_answer_view {
    const char *text;          /* valid UTF-8, zero-terminated */
    size_t n_text;             /* of these, that will not change: what might be the beginning of a stop text is held back */
    const octe_answer_token *tokens;
    uint32_t n_tokens;         /* whose text is given out */
    uint32_t n_prompt, n_cached, n_sampled;
    uint32_t n_drafted, n_accepted;   /* guesses computed for it, and those that came true */
    octe_answer_end end;
    const oct_error *error;    /* of OCTE_END_FAILED */
} octe_answer_view;

void octe_service_lock(octe_service *service);
void octe_service_unlock(octe_service *service);
octe_answer_view octe_answer_look(const octe_answer *answer);

/* Seconds by upper bounds; the last bucket has none. */
enum { OCTE_BUCKETS = 16 };
extern const double octe_bucket_seconds[OCTE_BUCKETS - 1], octe_bucket_tokens[OCTE_BUCKETS - 1];   /* vLLM's, of tokens */
typedef struct octe_histogram {
    uint64_t n[OCTE_BUCKETS];
    double sum;
} octe_histogram;

typedef struct octe_service_stats {
    octe_scheduler_stats scheduler;        /* as of the last step */
    uint32_t n_open;
    uint64_t n_prompt, n_sampled, n_failed_steps, n_ended[4];   /* by octe_answer_end */
    double busy_seconds;                   /* with requests there: steps and what lies between them */
    octe_runner_seconds seconds;           /* of these, the model's and the sampling's */
    octe_histogram first_token, between_tokens, whole;   /* from asking to the first token, from one to the next (those of one step share its time), from asking to the end */
    octe_histogram queue, inference, prefill, decode;    /* of answers that ended well: from asking to the first step that has it, from there to the last token, of this to the first and from it */
    octe_histogram prompt_tokens, answer_tokens;         /* of answers that ended well */
} octe_service_stats;

/* Not with the lock held. */
void octe_service_stats_get(octe_service *service, octe_service_stats *stats);

/* An answer that has not ended. */
typedef struct octe_open_answer {
    uint32_t n_prompt, n_cached, n_sampled, max_new_tokens;
    double seconds;            /* since it was asked for */
} octe_open_answer;

/* Of the answers that have not ended, the newest `most`; returns how many. Not with the lock held. */
uint32_t octe_service_list(octe_service *service, octe_open_answer *list, uint32_t most);

/* Which kernels run and why, as of a step in the last seconds (it waits for none): oct_plan_explain as JSON, of window layers or the others. malloc'ed; NULL: no such layers, or no memory. Not
 * with the lock held. */
char *octe_service_explain(octe_service *service, bool window);

#endif
