/* token_level.c: see token_level.h. greedy.c has the continuations. */
#include "apps/eval/token_level.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "apps/compare/divergence.h"
#include "apps/compare/quality.h"
#include "host/error.h"

static const char where[] = "octavo eval";

/* All that a judgement holds. */
typedef struct judgement {
    const eval_run *run;
    eval_text *text;
    compare_runner runners[EVAL_MAX_FORMATS + 1];   /* the last one, of the noise, is llama.cpp's */
    uint32_t n_runners, block_rows;
    compare_base *bases;            /* [block_rows] */
    float *shares;                  /* [block_rows][n_vocab] */
    int32_t *chunk;                 /* [chunk_tokens] */
} judgement;

/* Text tokens of a sequence, and how many of a sequence's are judged: the first has nothing before it. */
static uint32_t room_of(const eval_source *s) { return s->chunk_tokens - (s->bos >= 0); }
static uint32_t judged_of(const eval_source *s, uint32_t n_text) { return n_text + (s->bos >= 0) - 1; }

uint64_t eval_source_judged(const eval_source *s)
{
    const uint32_t room = room_of(s), whole = s->n_tokens / room, rest = s->n_tokens % room;
    return (uint64_t)whole * judged_of(s, room) + (rest > 0 ? judged_of(s, rest) : 0);
}

double eval_source_work(const eval_source *s) { return s->n_tokens; }

oct_status eval_text_prepare(eval_text *text, const eval_source *source, uint32_t n_formats, bool noise, oct_error *error)
{
    text->n_tokens = eval_source_judged(source);
    text->chunk_tokens = source->chunk_tokens;
    text->quality = calloc(n_formats, sizeof(*text->quality));
    text->tokens = calloc(text->n_tokens * n_formats + 1, sizeof(*text->tokens));
    text->noise = noise ? calloc(text->n_tokens + 1, sizeof(*text->noise)) : NULL;
    text->positions = calloc(text->n_tokens + 1, sizeof(*text->positions));
    const bool all = text->quality != NULL && text->tokens != NULL && text->positions != NULL && (text->noise != NULL || !noise);
    return all ? OCT_OK : oct__error_set(error, OCT_OUT_OF_MEMORY, where, "out of memory for %llu judged tokens", (unsigned long long)text->n_tokens);
}

const compare_format *eval_noise_of(const compare_format *base)
{
    static const compare_format f16 = { .name = "llama:f16", .label = "f16", .is_reference = true, .reference_cache = OCTE_REFERENCE_F16 };
    static const compare_format bf16 = { .name = "llama:bf16", .label = "bf16", .is_reference = true, .reference_cache = OCTE_REFERENCE_BF16 };
    return base->k.dtype == OCT_DTYPE_BF16 ? &bf16 : &f16;
}

static oct_status open_all(judgement *j, const eval_source *source, oct_error *error)
{
    const eval_run *const run = j->run;
    const uint32_t rows = compare_block_rows(run->n_vocab);
    j->block_rows = rows < source->chunk_tokens ? rows : source->chunk_tokens;
    j->n_runners = run->n_formats + (j->text->noise != NULL);
    j->bases = calloc(j->block_rows, sizeof(*j->bases));
    j->shares = malloc((size_t)j->block_rows * run->n_vocab * sizeof(*j->shares));
    j->chunk = malloc(source->chunk_tokens * sizeof(*j->chunk));
    if (j->bases == NULL || j->shares == NULL || j->chunk == NULL) {
        return oct__error_set(error, OCT_OUT_OF_MEMORY, where, "out of memory for %u rows of logits", j->block_rows);
    }
    oct_status status = OCT_OK;
    for (uint32_t r = 0; r < j->n_runners && status == OCT_OK; r++) {
        const compare_format *const format = r < run->n_formats ? &run->formats[r] : eval_noise_of(&run->formats[0]);
        const compare_runner_options options = {
            .model = run->model, .path = run->path, .scales = compare_scales_of(run->scales, format), .n_threads = run->n_threads, .context_tokens = source->chunk_tokens,
            .step_rows = j->block_rows, .step_logits = j->block_rows, .page_size = run->page_size, .count = true, .rates = run->rates,
        };
        status = compare_runner_open(&j->runners[r], format, &options, error);
    }
    return status;
}

static void close_all(judgement *j)
{
    for (uint32_t r = 0; r <= EVAL_MAX_FORMATS; r++) {
        compare_runner_close(&j->runners[r]);
    }
    free(j->bases);
    free(j->shares);
    free(j->chunk);
}

/* Rows first .. first + rows of a sequence of n tokens, through every runner; the judged tokens of the sequence begin at `at`. Its last row has no token to
 * predict. */
static oct_status judge_block(judgement *j, uint64_t at, uint32_t first, uint32_t rows, uint32_t n, oct_error *error)
{
    const uint32_t n_vocab = j->run->n_vocab, judged = first + rows < n ? rows : rows - 1;
    for (uint32_t r = 0; r < j->n_runners; r++) {
        const float *logits = NULL;
        oct_status status = eval_run_check(error);
        if (status == OCT_OK) {
            status = compare_runner_step(&j->runners[r], j->chunk + first, rows, rows, &logits, error);
        }
        if (status != OCT_OK) {
            return status;
        }
        eval_token *const out = (r < j->run->n_formats ? j->text->tokens + r * j->text->n_tokens : j->text->noise) + at + first;
        for (uint32_t i = 0; i < judged; i++) {
            const float *const row = logits + (size_t)i * n_vocab;
            if (r == 0) {
                compare_base_prepare(&j->bases[i], row, j->shares + (size_t)i * n_vocab, n_vocab);
                j->text->positions[at + first + i] = first + i + 1;
            }
            const compare_verdict verdict = compare_judge(&j->bases[i], row, (uint32_t)j->chunk[first + i + 1]);
            if (r == 0 && isnan(verdict.nll)) {
                return eval_run_no_numbers(error);
            }
            out[i] = (eval_token){ .nll = verdict.nll, .kl = verdict.kl, .reverse_kl = verdict.reverse_kl, .top = (int32_t)verdict.top };
        }
        app_progress_add(j->run->progress, rows);
    }
    return OCT_OK;
}

static oct_status judge_chunk(judgement *j, uint64_t at, uint32_t n, oct_error *error)
{
    oct_status status = OCT_OK;
    for (uint32_t r = 0; r < j->n_runners && status == OCT_OK; r++) {
        status = compare_runner_empty(&j->runners[r], error);
        (void)compare_runner_saturated(&j->runners[r], j->run->model);
    }
    for (uint32_t first = 0; first < n && status == OCT_OK; first += j->block_rows) {
        const uint32_t rows = n - first < j->block_rows ? n - first : j->block_rows;
        status = judge_block(j, at, first, rows, n, error);
    }
    /* Counted with the sequence: an interrupted one is judged again from its beginning. */
    for (uint32_t r = 0; r < j->run->n_formats && status == OCT_OK; r++) {
        j->text->quality[r].saturated += compare_runner_saturated(&j->runners[r], j->run->model);
    }
    return status;
}

oct_status eval_text_run(const eval_run *run, const eval_source *source, eval_text *text, oct_error *error)
{
    judgement j = { .run = run, .text = text };
    if (text->n_done == text->n_tokens) {
        return OCT_OK;
    }
    oct_status status = open_all(&j, source, error);
    const uint32_t n_special = source->bos >= 0, room = room_of(source);
    uint64_t judged = 0;
    for (uint32_t at = 0; at < source->n_tokens && status == OCT_OK;) {
        const uint32_t n = source->n_tokens - at < room ? source->n_tokens - at : room, of_chunk = judged_of(source, n);
        if (judged >= text->n_done && of_chunk > 0) {
            j.chunk[0] = source->bos;
            memcpy(j.chunk + n_special, source->tokens + at, n * sizeof(*j.chunk));
            status = judge_chunk(&j, judged, n_special + n, error);
            if (status == OCT_OK) {
                text->n_done = judged + of_chunk;
                status = eval_run_keep(run, error);
            }
        }
        judged += of_chunk;
        at += n;
    }
    close_all(&j);
    return status;
}

/* ---- the words of the worst ---------------------------------------------------------------------------------------------------- */

oct_status eval_text_words(const eval_run *run, const eval_source *source, eval_text *text, oct_error *error)
{
    enum { BEFORE_TOKENS = 24 };
    const uint32_t n_special = source->bos >= 0, room = room_of(source), per_chunk = judged_of(source, room);
    for (uint32_t f = 0; f < run->n_formats; f++) {
        for (uint32_t i = 0; i < text->quality[f].n_worst; i++) {
            eval_worst *const w = &text->quality[f].worst[i];
            const uint32_t begin = w->index / per_chunk * room, at = begin + w->position - n_special;
            const uint32_t before = at - begin < BEFORE_TOKENS ? at - begin : BEFORE_TOKENS;
            w->before = eval_run_words(run->vocab, source->tokens + at - before, before, true);
            w->token = eval_run_words(run->vocab, source->tokens + at, 1, true);
            w->base_top = eval_run_words(run->vocab, &eval_text_tokens(text, 0)[w->index].top, 1, true);
            w->top = eval_run_words(run->vocab, &eval_text_tokens(text, f)[w->index].top, 1, true);
            if (w->before == NULL || w->token == NULL || w->base_top == NULL || w->top == NULL) {
                return oct__error_set(error, OCT_OUT_OF_MEMORY, where, "out of memory for the worst tokens");
            }
        }
    }
    return OCT_OK;
}
