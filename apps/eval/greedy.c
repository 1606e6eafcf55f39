/* greedy.c: greedy continuations of the same prompts under every format; see token_level.h. */
#include <stdlib.h>

#include "apps/eval/token_level.h"
#include "apps/prompt.h"
#include "host/error.h"

static const char where[] = "octavo eval";

oct_status eval_greedy_prepare(eval_greedy *greedy, uint32_t n_prompts, uint32_t n_tokens, uint32_t n_formats, oct_error *error)
{
    greedy->n_prompts = n_prompts;
    greedy->n_tokens = n_tokens;
    greedy->first_different = calloc((size_t)n_prompts * n_formats + 1, sizeof(*greedy->first_different));
    greedy->summary = calloc(n_formats, sizeof(*greedy->summary));
    return greedy->first_different != NULL && greedy->summary != NULL ? OCT_OK : oct__error_set(error, OCT_OUT_OF_MEMORY, where, "out of memory for %u prompts", n_prompts);
}

double eval_greedy_work(const eval_greedy *greedy)
{
    return (double)greedy->n_prompts * (EVAL_GREEDY_PROMPT_TOKENS + greedy->n_tokens);
}

/* All prompts of one format at once. said: [n_tokens][n_prompts]. An end of generation is a token like another here. */
static oct_status continue_all(const eval_run *run, uint32_t format, const eval_source *source, const eval_greedy *greedy, octe_part *parts, int32_t *said, oct_error *error)
{
    const uint32_t n = greedy->n_prompts, stride = (source->n_tokens - EVAL_GREEDY_PROMPT_TOKENS) / n;
    const eval_engine_size size = { EVAL_GREEDY_PROMPT_TOKENS + greedy->n_tokens, n, n * EVAL_GREEDY_PROMPT_TOKENS < 512 ? n * EVAL_GREEDY_PROMPT_TOKENS : 512, n, 0 };
    octe_engine *engine = NULL;
    oct_status status = eval_run_open(run, format, &size, &engine, error);
    const float *logits = NULL;
    const uint32_t together = size.step_rows / EVAL_GREEDY_PROMPT_TOKENS;
    for (uint32_t first = 0; first < n && status == OCT_OK; first += together) {
        const uint32_t n_parts = n - first < together ? n - first : together;
        for (uint32_t i = 0; i < n_parts; i++) {
            parts[i] = (octe_part){ .sequence = first + i, .n_tokens = EVAL_GREEDY_PROMPT_TOKENS, .tokens = source->tokens + (size_t)(first + i) * stride, .n_logits = 1 };
        }
        status = octe_engine_step(engine, parts, n_parts, &logits, error);
        for (uint32_t i = 0; i < n_parts && status == OCT_OK; i++) {
            said[first + i] = app_prompt_greedy(logits + (size_t)i * run->n_vocab, run->n_vocab);
        }
        app_progress_add(run->progress, n_parts * (double)EVAL_GREEDY_PROMPT_TOKENS);
    }
    for (uint32_t t = 1; t < greedy->n_tokens && status == OCT_OK; t++) {
        for (uint32_t i = 0; i < n; i++) {
            parts[i] = (octe_part){ .sequence = i, .n_tokens = 1, .tokens = &said[(size_t)(t - 1) * n + i], .n_logits = 1 };
        }
        status = eval_run_check(error);
        if (status == OCT_OK) {
            status = octe_engine_step(engine, parts, n, &logits, error);
        }
        for (uint32_t i = 0; i < n && status == OCT_OK; i++) {
            said[(size_t)t * n + i] = app_prompt_greedy(logits + (size_t)i * run->n_vocab, run->n_vocab);
        }
        app_progress_add(run->progress, n);
    }
    octe_engine_close(engine);
    return status;
}

/* Not kept by format: the base's words, which all are held against, are not in the result. */
oct_status eval_greedy_run(const eval_run *run, const eval_source *source, eval_greedy *greedy, oct_error *error)
{
    const uint32_t n = greedy->n_prompts;
    if (greedy->n_done == run->n_formats || n == 0) {
        return OCT_OK;
    }
    int32_t *const said = malloc(2 * (size_t)n * greedy->n_tokens * sizeof(*said)), *const base = said;
    octe_part *const parts = malloc(n * sizeof(*parts));
    oct_status status = said != NULL && parts != NULL ? OCT_OK : oct__error_set(error, OCT_OUT_OF_MEMORY, where, "out of memory for %u continuations", n);
    for (uint32_t f = 0; f < run->n_formats && status == OCT_OK; f++) {
        int32_t *const own = said + (f > 0 ? (size_t)n * greedy->n_tokens : 0);
        status = continue_all(run, f, source, greedy, parts, own, error);
        for (uint32_t i = 0; i < n && status == OCT_OK; i++) {
            uint32_t t = 0;
            while (t < greedy->n_tokens && own[(size_t)t * n + i] == base[(size_t)t * n + i]) {
                t++;
            }
            greedy->first_different[(size_t)f * n + i] = t;
        }
    }
    free(said);
    free(parts);
    if (status == OCT_OK) {
        greedy->n_done = run->n_formats;
        status = eval_run_keep(run, error);
    }
    return status;
}
