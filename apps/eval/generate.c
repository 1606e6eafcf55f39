/* generate.c: see generate.h. */
#include "apps/eval/generate.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "apps/prompt.h"
#include "host/error.h"

static const char where[] = "octavo eval";

enum { GROUP_QUESTIONS = 10, STEP_ROWS = 512 };

/* A group while it runs: what each sequence has said. */
typedef struct group {
    const eval_run *run;
    octe_engine *engine;
    const eval_question *questions;
    uint32_t n, generate_tokens;
    int32_t *said;                  /* [n][generate_tokens] */
    uint32_t n_said[GROUP_QUESTIONS];
    bool ended[GROUP_QUESTIONS];
} group;

static void take(group *g, uint32_t i, const float *logits)
{
    const int32_t token = app_prompt_greedy(logits, g->run->n_vocab);
    g->ended[i] = octe_vocab_is_eog(g->run->vocab, token);
    if (!g->ended[i]) {
        g->said[(size_t)i * g->generate_tokens + g->n_said[i]++] = token;
        g->ended[i] = g->n_said[i] == g->generate_tokens;
    }
}

static oct_status generate(group *g, oct_error *error)
{
    oct_status status = OCT_OK;
    const float *logits = NULL;
    for (uint32_t i = 0; i < g->n && status == OCT_OK; i++) {
        status = octe_engine_prefill(g->engine, i, g->questions[i].context, g->questions[i].n_context, &logits, error);
        if (status == OCT_OK) {
            take(g, i, logits);
        }
        app_progress_add(g->run->progress, g->questions[i].n_context);
    }
    while (status == OCT_OK) {
        octe_part parts[GROUP_QUESTIONS];
        uint32_t n_parts = 0;
        for (uint32_t i = 0; i < g->n; i++) {
            if (!g->ended[i]) {
                parts[n_parts++] = (octe_part){ .sequence = i, .n_tokens = 1, .tokens = &g->said[(size_t)i * g->generate_tokens + g->n_said[i] - 1], .n_logits = 1 };
            }
        }
        if (n_parts == 0) {
            return OCT_OK;
        }
        status = eval_run_check(error);
        if (status == OCT_OK) {
            status = octe_engine_step(g->engine, parts, n_parts, &logits, error);
        }
        for (uint32_t p = 0; p < n_parts && status == OCT_OK; p++) {
            take(g, parts[p].sequence, logits + (size_t)p * g->run->n_vocab);
        }
        app_progress_add(g->run->progress, n_parts);
    }
    return status;
}

static oct_status conclude(group *g, eval_answer *answers, oct_error *error)
{
    for (uint32_t i = 0; i < g->n; i++) {
        char number[64];
        char *const text = eval_run_words(g->run->vocab, g->said + (size_t)i * g->generate_tokens, g->n_said[i], false);
        if (text == NULL) {
            return oct__error_set(error, OCT_OUT_OF_MEMORY, where, "out of memory for an answer");
        }
        answers[i] = (eval_answer){ .correct = 0, .choice = -1, .score = NAN };
        if (eval_extract_number(text, number, sizeof(number))) {
            answers[i].correct = eval_same_number(g->questions[i].expected, number);
            answers[i].said = malloc(strlen(number) + 1);
            if (answers[i].said != NULL) {
                memcpy(answers[i].said, number, strlen(number) + 1);
            }
        }
        free(text);
        /* What an answer did not use of its share is done as well. */
        app_progress_add(g->run->progress, g->generate_tokens - g->n_said[i]);
    }
    return OCT_OK;
}

static oct_status run_group(group *g, eval_answer *answers, oct_error *error)
{
    oct_status status = generate(g, error);
    if (status == OCT_OK) {
        status = conclude(g, answers, error);
    }
    for (uint32_t i = 0; i < g->n && status == OCT_OK; i++) {
        status = octe_engine_free(g->engine, i, error);
    }
    return status;
}

oct_status eval_generate_run(const eval_run *run, uint32_t format, const eval_questions *questions, uint32_t generate_tokens, eval_answer *answers, uint32_t *n_done,
                             oct_error *error)
{
    eval_engine_size size = { .n_sequences = GROUP_QUESTIONS, .step_rows = STEP_ROWS, .step_logits = GROUP_QUESTIONS };
    for (uint32_t i = 0; i < questions->n; i++) {
        const uint32_t longest = questions->items[i].n_context + generate_tokens;
        size.context_tokens = longest > size.context_tokens ? longest : size.context_tokens;
    }
    octe_engine *engine = NULL;
    int32_t *const said = malloc((size_t)GROUP_QUESTIONS * generate_tokens * sizeof(*said));
    oct_status status = said != NULL ? eval_run_open(run, format, &size, &engine, error) : oct__error_set(error, OCT_OUT_OF_MEMORY, where, "out of memory for answers");
    /* Kept at the ends of groups only, so that a continued run has the same groups. */
    while (*n_done < questions->n && status == OCT_OK) {
        const uint32_t rest = questions->n - *n_done;
        group g = {
            .run = run, .engine = engine, .questions = questions->items + *n_done, .n = rest < GROUP_QUESTIONS ? rest : GROUP_QUESTIONS, .generate_tokens = generate_tokens, .said = said,
        };
        status = run_group(&g, answers + *n_done, error);
        if (status == OCT_OK) {
            *n_done += g.n;
            status = eval_run_keep(run, error);
        }
    }
    octe_engine_close(engine);
    free(said);
    return status;
}
