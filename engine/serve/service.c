/* service.c: see service.h. One lock for everything that threads share; the thread holds it between steps and while it hands out tokens, never while the model
 * runs. */
#include "engine/serve/service.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "engine/report.h"
#include "engine/serve/text.h"
#include "host/clock.h"

enum { DEFAULT_OPEN = 1024, EXPLAIN_SECONDS = 1 };

const double octe_bucket_seconds[OCTE_BUCKETS - 1] = {0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120};
const double octe_bucket_tokens[OCTE_BUCKETS - 1] = {1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000};

typedef enum answer_state { ASKED, RUNNING, ENDED } answer_state;

struct octe_answer {
    octe_service *service;
    octe_answer *next, *previous;     /* of all answers */
    answer_state state;
    bool abandoned;                   /* the thread frees it */
    uint64_t id;                      /* of the scheduler, while RUNNING */
    octe_request_spec request;        /* prompt: owned until it is RUNNING */
    octe_sampler_options sampling;
    octe_sampler *sampler;            /* made with the first token that needs one */
    octe__answer_text text;
    void (*notify)(void *context);
    void *context;
    uint32_t n_cached, n_sampled, n_drafted, n_accepted;
    double asked, last;               /* seconds: when it was asked for, when its last step's tokens came */
    double begun, first;              /* when a step had it for the first time, when its first token came; 0: not yet */
    double between;                   /* seconds from the step before to that one, shared by its n_together tokens */
    uint32_t n_together;
    octe_answer_end end;
    oct_error error;
};

struct octe_service {
    octe_engine *engine;
    const octe_vocab *vocab;
    octe_runner *runner;
    uint32_t max_open, n_vocab;
    pthread_t thread;
    bool started;
    pthread_mutex_t lock;
    pthread_cond_t work, done;        /* work: for the thread; done: it has explained for the first time */
    octe_answer *first;               /* in no order */
    uint32_t n_new, n_abandoned;      /* answers that the thread has not looked at */
    octe_prefix_job *first_job;       /* in the order of submission */
    bool stopping, has_explained;
    char *explain[2];                 /* of the full layers, of the window's; at most EXPLAIN_SECONDS and a step old */
    double explained;                 /* when, in seconds */
    octe_service_stats stats;
};

void octe_service_lock(octe_service *s) { (void)pthread_mutex_lock(&s->lock); }
void octe_service_unlock(octe_service *s) { (void)pthread_mutex_unlock(&s->lock); }

/* ---- answers, with the lock held ------------------------------------------------------------------------------ */

static void answer_destroy(octe_answer *a)
{
    octe_service *s = a->service;
    *(a->previous != NULL ? &a->previous->next : &s->first) = a->next;
    if (a->next != NULL) {
        a->next->previous = a->previous;
    }
    octe_sampler_destroy(a->sampler);
    octe__answer_text_free(&a->text);
    free((int32_t *)a->request.prompt);
    free(a);
}

static void count_into(octe_histogram *h, const double *bounds, double value)
{
    uint32_t i = 0;
    while (i < OCTE_BUCKETS - 1 && value > bounds[i]) {
        i++;
    }
    h->n[i]++;
    h->sum += value;
}

static void count_seconds(octe_histogram *h, double seconds) { count_into(h, octe_bucket_seconds, seconds); }

/* How many tokens a step has brought is known when the next one comes, or the end. */
static void count_between(octe_answer *a)
{
    for (uint32_t i = 0; i < a->n_together; i++) {
        count_seconds(&a->service->stats.between_tokens, a->between / a->n_together);
    }
    a->n_together = 0;
}

static void answer_end(octe_answer *a, octe_answer_end end)
{
    octe_service *s = a->service;
    count_between(a);
    if (end != OCTE_END_FAILED) {
        count_seconds(&s->stats.whole, oct__clock_seconds() - a->asked);
        count_seconds(&s->stats.queue, a->begun - a->asked);
        count_seconds(&s->stats.inference, a->last - a->begun);
        count_seconds(&s->stats.prefill, a->first - a->begun);
        count_seconds(&s->stats.decode, a->last - a->first);
        count_into(&s->stats.prompt_tokens, octe_bucket_tokens, a->request.n_prompt);
        count_into(&s->stats.answer_tokens, octe_bucket_tokens, a->n_sampled);
    }
    a->state = ENDED;
    a->end = end;
    octe__answer_text_finish(&a->text);
    octe_sampler_destroy(a->sampler);
    a->sampler = NULL;
    s->stats.n_open--;
    s->stats.n_ended[end]++;
    if (!a->abandoned) {
        a->notify(a->context);
    }
}

static void answer_fail(octe_answer *a, const oct_error *error)
{
    a->error = *error;
    answer_end(a, OCTE_END_FAILED);
}

octe_answer_view octe_answer_look(const octe_answer *a)
{
    octe_answer_view view = {.n_prompt = a->request.n_prompt, .n_cached = a->n_cached, .n_sampled = a->n_sampled, .n_drafted = a->n_drafted, .n_accepted = a->n_accepted, .end = a->end, .error = &a->error};
    octe__answer_text_look(&a->text, &view);
    return view;
}

/* ---- sampling -------------------------------------------------------------------------------------------------------- */

static oct_status choose(octe_answer *a, const float *logits, int32_t *token, oct_error *error)
{
    octe_service *s = a->service;
    /* The likeliest token needs no list of candidates, which for large vocabularies costs more than the token's step. */
    if (a->sampling.temp <= 0.0f && a->sampler == NULL) {
        const uint32_t n = octe_vocab_size(s->vocab) < s->n_vocab ? octe_vocab_size(s->vocab) : s->n_vocab;
        return octe__likeliest(logits, n, a->sampling.ignore_eog ? s->vocab : NULL, token, error);
    }
    if (a->sampler == NULL) {
        const oct_status status = octe_sampler_create(s->vocab, &a->sampling, &a->sampler, error);
        if (status != OCT_OK) {
            return status;
        }
    }
    return octe_sampler_sample(a->sampler, logits, s->n_vocab, token, error);
}

/* The lock is held: octe_runner_step is called without it, and hands out its rows in here. */
static bool sample(void *context, const octe_scheduled *part, const float *logits, int32_t *token)
{
    octe_service *s = context;
    octe_answer *a = part->user;
    oct_error error = OCT_ERROR_INIT;
    bool stopped = false;
    octe_service_lock(s);
    *token = 0;
    a->n_cached = part->n_cached;
    /* The step's first token for this answer, or one behind a guess that has just come true. */
    const bool first = part->n_prompt + a->n_sampled == part->n_past + part->n_tokens - part->n_draft;
    a->n_drafted += first ? part->n_draft : 0;
    a->n_accepted += first ? 0 : 1;
    bool ended = a->abandoned;
    if (ended) {
        answer_end(a, OCTE_END_FAILED);
        octe_service_unlock(s);
        return true;
    }
    oct_status status = choose(a, logits, token, &error);
    if (status == OCT_OK) {
        a->n_sampled++;
        s->stats.n_sampled++;
        if (first) {
            const double now = oct__clock_seconds();
            count_between(a);
            a->between = now - a->last;
            a->last = now;
        }
        if (a->n_sampled == 1) {
            a->first = a->last;
            s->stats.n_prompt += a->request.n_prompt;
            count_seconds(&s->stats.first_token, a->last - a->asked);
        } else {
            a->n_together++;
        }
        const bool eog = octe_vocab_is_eog(s->vocab, *token) && !a->sampling.ignore_eog;
        if (!eog) {
            status = octe__answer_text_add(&a->text, s->vocab, *token, logits, s->n_vocab, &stopped, &error);
        }
        stopped = stopped || eog;
    }
    if (status != OCT_OK) {
        answer_fail(a, &error);
        ended = true;
    } else if (stopped || a->n_sampled == a->request.max_new_tokens) {
        answer_end(a, stopped ? OCTE_END_STOP : OCTE_END_LENGTH);
        ended = true;
    } else {
        a->notify(a->context);
    }
    octe_service_unlock(s);
    return ended;
}


/* ---- the thread ------------------------------------------------------------------------------------------------------- */

/* Takes over what has been asked for and given up. With the lock held. */
static void settle(octe_service *s)
{
    octe_scheduler *scheduler = octe_runner_scheduler(s->runner);
    for (octe_answer *a = s->first, *next; a != NULL && (s->n_new > 0 || s->n_abandoned > 0 || s->stopping); a = next) {
        next = a->next;
        if (s->stopping && a->state != ENDED) {
            oct_error error = OCT_ERROR_INIT;
            (void)octe__report(&error, OCT_CANCELLED, "octe_service_stop", NULL, "the service is stopping");
            if (a->state == RUNNING) {
                (void)octe_scheduler_cancel(scheduler, a->id);
            }
            answer_fail(a, &error);
        }
        if (a->abandoned) {
            if (a->state == RUNNING) {
                (void)octe_scheduler_cancel(scheduler, a->id);
            }
            if (a->state != ENDED) {
                answer_end(a, OCTE_END_FAILED);
            }
            answer_destroy(a);
        } else if (a->state == ASKED) {
            oct_error error = OCT_ERROR_INIT;
            octe_request_spec spec = a->request;
            spec.user = a;
            if (octe_scheduler_add(scheduler, &spec, &a->id, &error) != OCT_OK) {
                answer_fail(a, &error);
            } else {
                a->state = RUNNING;
            }
            free((int32_t *)a->request.prompt);
            a->request.prompt = NULL;
        }
    }
    s->n_new = s->n_abandoned = 0;
}

/* Ahead of who asks, who would hold all connections up until the step is over. With the lock held. */
static void write_explain(octe_service *s)
{
    for (int window = 0; window < 2; window++) {
        const oct_plan *plan = octe_engine_plan(s->engine, window != 0);
        const size_t n = plan != NULL ? oct_plan_explain(plan, OCT_TEXT_JSON, NULL, 0) : 0;
        free(s->explain[window]);
        s->explain[window] = n > 0 ? malloc(n + 1) : NULL;
        if (s->explain[window] != NULL) {
            (void)oct_plan_explain(plan, OCT_TEXT_JSON, s->explain[window], n + 1);
        }
    }
    s->explained = oct__clock_seconds();
    s->has_explained = true;
    (void)pthread_cond_broadcast(&s->done);
}

static void note_planned(void *context, const octe_step_plan *step)
{
    octe_service *s = context;
    const double now = oct__clock_seconds();
    octe_service_lock(s);
    for (uint32_t i = 0; i < step->n_parts; i++) {
        octe_answer *a = step->parts[i].user;
        a->begun = a->begun > 0.0 ? a->begun : now;
    }
    octe_service_unlock(s);
}

static void note_failed(void *context, const octe_scheduled *part)
{
    octe_service *s = context;
    octe_service_lock(s);
    ((octe_answer *)part->user)->error.status = OCT_DEVICE_FAULT;   /* marked; ended below, outside the plan */
    octe_service_unlock(s);
}

/* A step that failed would fail again: its requests end with the engine's words, the others go on. With the lock held. */
static void end_failed(octe_service *s, const oct_error *error)
{
    s->stats.n_failed_steps++;
    for (octe_answer *a = s->first; a != NULL; a = a->next) {
        if (a->state == RUNNING && a->error.status != OCT_OK) {
            (void)octe_scheduler_cancel(octe_runner_scheduler(s->runner), a->id);
            answer_fail(a, error);
        }
    }
}

/* The next job, if there is one, or what is left when stopping: a step comes between two. With the lock held, which it lets go while a file is read or written: steps wait
 * for that, other threads don't. */
static void run_jobs(octe_service *s)
{
    for (uint32_t n = 0; s->first_job != NULL && (n == 0 || s->stopping); n++) {
        octe_prefix_job *const job = s->first_job;
        s->first_job = job->next;
        job->error = (oct_error)OCT_ERROR_INIT;
        if (s->stopping) {
            job->status = octe__report(&job->error, OCT_CANCELLED, "octe_service_stop", NULL, "the service is stopping");
        } else {
            octe_service_unlock(s);
            job->status = job->restore ? octe_runner_restore_prefix(s->runner, job->file, job->name, &job->moved, &job->error)
                                       : octe_runner_save_prefix(s->runner, job->tokens, job->n_tokens, job->folder, job->name, &job->moved, &job->error);
            octe_service_lock(s);
        }
        job->done = true;
        job->notify(job->context);
    }
}

oct_status octe_service_submit(octe_service *s, octe_prefix_job *job, oct_error *error)
{
    static const char where[] = "octe_service_submit";
    octe_service_lock(s);
    octe_prefix_job **last = &s->first_job;
    uint32_t n = 0;
    for (; *last != NULL; last = &(*last)->next) {
        n++;
    }
    oct_status status = OCT_OK;
    if (s->stopping) {
        status = octe__report(error, OCT_CANCELLED, where, NULL, "the service is stopping");
    } else if (n >= OCTE_JOBS_MAX) {
        status = octe__report(error, OCT_OUT_OF_PAGES, where, NULL, "%u saves and restores of prefixes are waiting already; at most %d may", n, OCTE_JOBS_MAX);
    } else {
        job->next = NULL;
        job->done = job->withdrawn = false;
        *last = job;
        (void)pthread_cond_signal(&s->work);
    }
    octe_service_unlock(s);
    return status;
}

bool octe_service_withdraw(octe_service *s, octe_prefix_job *job)
{
    for (octe_prefix_job **at = &s->first_job; *at != NULL; at = &(*at)->next) {
        if (*at == job) {
            *at = job->next;
            job->withdrawn = true;
            return true;
        }
    }
    return false;
}

static void *work(void *argument)
{
    octe_service *s = argument;
    octe_service_lock(s);
    for (;;) {
        run_jobs(s);
        const double begin = oct__clock_seconds();
        settle(s);
        octe_scheduler_stats_get(octe_runner_scheduler(s->runner), &s->stats.scheduler);
        if (s->stats.scheduler.n_running + s->stats.scheduler.n_waiting == 0 || oct__clock_seconds() - s->explained >= EXPLAIN_SECONDS) {
            write_explain(s);
        }
        if (s->stopping) {
            run_jobs(s);
            break;
        }
        if (s->stats.scheduler.n_running + s->stats.scheduler.n_waiting == 0) {
            if (s->first_job == NULL) {
                (void)pthread_cond_wait(&s->work, &s->lock);
            }
            continue;
        }
        octe_service_unlock(s);
        oct_error error = OCT_ERROR_INIT;
        uint32_t n_rows;
        const oct_status status = octe_runner_step(s->runner, sample, note_failed, s, &n_rows, &error);
        octe_service_lock(s);
        s->stats.seconds = octe_runner_seconds_get(s->runner);
        s->stats.busy_seconds += oct__clock_seconds() - begin;
        if (status != OCT_OK) {
            end_failed(s, &error);
        }
    }
    octe_service_unlock(s);
    return NULL;
}

/* ---- opening -------------------------------------------------------------------------------------------------------------- */

oct_status octe_service_open(octe_engine *engine, const octe_vocab *vocab, const octe_service_options *options, octe_service **service, oct_error *error)
{
    *service = NULL;
    octe_service *s = calloc(1, sizeof(*s));
    if (s == NULL) {
        return octe__report(error, OCT_OUT_OF_MEMORY, "octe_service_open", NULL, "no memory for a service");
    }
    s->engine = engine;
    s->vocab = vocab;
    s->n_vocab = octe_model_info_get(octe_engine_model(engine))->n_vocab;
    s->max_open = options->max_open != 0 ? options->max_open : DEFAULT_OPEN;
    (void)pthread_mutex_init(&s->lock, NULL);
    (void)pthread_cond_init(&s->work, NULL);
    (void)pthread_cond_init(&s->done, NULL);
    octe_runner_options runner = options->runner;
    runner.planned = note_planned;
    runner.user = s;
    oct_status status = octe_runner_open(engine, &runner, &s->runner, error);
    if (status == OCT_OK && pthread_create(&s->thread, NULL, work, s) != 0) {
        status = octe__report(error, OCT_OUT_OF_MEMORY, "octe_service_open", NULL, "no thread for the service");
    }
    if (status != OCT_OK) {
        octe_service_destroy(s);
        return status;
    }
    s->started = true;
    *service = s;
    return OCT_OK;
}

void octe_service_stop(octe_service *s)
{
    if (!s->started) {
        return;
    }
    octe_service_lock(s);
    s->stopping = true;
    (void)pthread_cond_signal(&s->work);
    octe_service_unlock(s);
    (void)pthread_join(s->thread, NULL);
    s->started = false;
}

oct_status octe_service_restore(octe_service *s, const char *path, uint64_t *n_pages, oct_error *error)
{
    octe_service_lock(s);
    /* Without a request the thread waits for the lock or for work. */
    const bool fresh = s->first == NULL && s->stats.n_sampled == 0;
    const oct_status status = fresh ? octe_runner_restore(s->runner, path, n_pages, error)
                                    : octe__report(error, OCT_INVALID_ARGUMENT, "octe_service_restore", NULL, "answers have been asked for already");
    octe_service_unlock(s);
    return status;
}

oct_status octe_service_save(octe_service *s, const char *path, uint64_t *n_pages, oct_error *error)
{
    return !s->started ? octe_runner_save(s->runner, path, n_pages, error)
                       : octe__report(error, OCT_INVALID_ARGUMENT, "octe_service_save", NULL, "the service has not stopped");
}

void octe_service_destroy(octe_service *s)
{
    if (s == NULL) {
        return;
    }
    octe_service_stop(s);
    while (s->first != NULL) {
        answer_destroy(s->first);
    }
    octe_runner_close(s->runner);
    (void)pthread_cond_destroy(&s->work);
    (void)pthread_cond_destroy(&s->done);
    (void)pthread_mutex_destroy(&s->lock);
    free(s->explain[0]);
    free(s->explain[1]);
    free(s);
}

/* ---- for other threads ---------------------------------------------------------------------------------------------------- */

oct_status octe_service_ask(octe_service *s, const octe_answer_spec *spec, octe_answer **answer, oct_error *error)
{
    static const char where[] = "octe_service_ask";
    *answer = NULL;
    oct_status status = octe_scheduler_check(octe_runner_scheduler(s->runner), &spec->request, error);
    if (status != OCT_OK) {
        return status;
    }
    octe_answer *a = calloc(1, sizeof(*a));
    int32_t *prompt = malloc(spec->request.n_prompt * sizeof(*prompt));
    if (a == NULL || prompt == NULL || !octe__answer_text_init(&a->text, spec)) {
        free(prompt);
        if (a != NULL) {
            octe__answer_text_free(&a->text);
        }
        free(a);
        return octe__report(error, OCT_OUT_OF_MEMORY, where, NULL, "no memory for a prompt of %u tokens", spec->request.n_prompt);
    }
    memcpy(prompt, spec->request.prompt, spec->request.n_prompt * sizeof(*prompt));
    a->service = s;
    a->request = spec->request;
    a->request.prompt = prompt;
    a->sampling = spec->sampling;
    a->notify = spec->notify;
    a->context = spec->context;
    a->asked = oct__clock_seconds();
    a->error.struct_size = sizeof(a->error);
    const octe_sampler_options *const o = &spec->sampling;
    /* What the options point to is the caller's, so this sampler can't wait for its first token; and a plain one must not take memory while it waits. */
    if (o->n_bias > 0 || o->grammar != NULL || o->penalty_tokens > 0) {
        status = octe_sampler_create(s->vocab, o, &a->sampler, error);
        a->sampling.bias = NULL;
        a->sampling.n_bias = 0;
        a->sampling.grammar = NULL;
    }
    octe_service_lock(s);
    if (status != OCT_OK) {
        /* said already */
    } else if (s->stopping) {
        status = octe__report(error, OCT_CANCELLED, where, NULL, "the service is stopping");
    } else if (s->stats.n_open >= s->max_open) {
        status = octe__report(error, OCT_OUT_OF_PAGES, where, NULL, "%u answers are being made or wait already; at most %u may", s->stats.n_open, s->max_open);
    }
    a->next = s->first;
    if (s->first != NULL) {
        s->first->previous = a;
    }
    s->first = a;
    if (status != OCT_OK) {
        answer_destroy(a);
    } else {
        s->stats.n_open++;
        s->n_new++;
        (void)pthread_cond_signal(&s->work);
        *answer = a;
    }
    octe_service_unlock(s);
    return status;
}

void octe_answer_abandon(octe_answer *a)
{
    octe_service *s = a->service;
    octe_service_lock(s);
    if (a->state == ENDED) {
        answer_destroy(a);
    } else {
        a->abandoned = true;
        s->n_abandoned++;
        (void)pthread_cond_signal(&s->work);
    }
    octe_service_unlock(s);
}

void octe_service_stats_get(octe_service *s, octe_service_stats *stats)
{
    octe_service_lock(s);
    *stats = s->stats;
    octe_service_unlock(s);
}

uint32_t octe_service_list(octe_service *s, octe_open_answer *list, uint32_t most)
{
    uint32_t n = 0;
    const double now = oct__clock_seconds();
    octe_service_lock(s);
    for (const octe_answer *a = s->first; a != NULL && n < most; a = a->next) {
        if (a->state != ENDED && !a->abandoned) {
            list[n++] = (octe_open_answer){a->request.n_prompt, a->n_cached, a->n_sampled, a->request.max_new_tokens, now - a->asked};
        }
    }
    octe_service_unlock(s);
    return n;
}

char *octe_service_explain(octe_service *s, bool window)
{
    octe_service_lock(s);
    while (!s->has_explained && !s->stopping) {
        (void)pthread_cond_wait(&s->done, &s->lock);
    }
    char *const text = s->explain[window] != NULL ? strdup(s->explain[window]) : NULL;
    octe_service_unlock(s);
    return text;
}
