/* quality.c: see quality.h. */
#include "apps/compare/quality.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "apps/compare/divergence.h"
#include "apps/interrupt.h"
#include "host/error.h"

static const char where[] = "octavo compare";

typedef struct sums {
    double nll, nll_squared, kl;
    uint64_t n, n_same;
} sums;

/* All that a judgement holds. */
typedef struct judgement {
    compare_runner *runners;
    uint32_t n_runners;
    const compare_quality_options *options;
    compare_base *bases;            /* [block_rows] */
    float *shares;                  /* [block_rows][n_vocab] */
    int32_t *chunk;                 /* [chunk_tokens] */
    sums sums[COMPARE_MAX_FORMATS];
} judgement;

uint32_t compare_block_rows(uint32_t n_vocab)
{
    const uint64_t rows = (UINT64_C(32) << 20) / (sizeof(float) * (uint64_t)n_vocab);
    return rows < 8 ? 8 : rows > 256 ? 256 : (uint32_t)rows;
}

static uint32_t used_tokens(const compare_quality_options *o, const compare_text *text)
{
    return text->n_tokens < o->n_tokens ? text->n_tokens : o->n_tokens;
}

uint32_t compare_quality_work(const compare_quality_options *options, const compare_text *text)
{
    return used_tokens(options, text);
}

/* Rows first .. first + rows of a chunk of n tokens, through every runner. The chunk's last row has no token to predict. */
static oct_status judge_block(judgement *j, uint32_t first, uint32_t rows, uint32_t n, app_progress *progress, oct_error *error)
{
    const uint32_t n_vocab = j->options->n_vocab;
    const uint32_t judged = first + rows < n ? rows : rows - 1;
    for (uint32_t r = 0; r < j->n_runners; r++) {
        const float *logits = NULL;
        if (app_interrupted()) {
            return oct__error_set(error, OCT_CANCELLED, where, "stopped");
        }
        const oct_status status = compare_runner_step(&j->runners[r], j->chunk + first, rows, rows, &logits, error);
        if (status != OCT_OK) {
            return status;
        }
        sums *const sum = &j->sums[r];
        for (uint32_t i = 0; i < judged; i++) {
            const float *const row = logits + (size_t)i * n_vocab;
            if (r == 0) {
                compare_base_prepare(&j->bases[i], row, j->shares + (size_t)i * n_vocab, n_vocab);
            }
            const compare_verdict verdict = compare_judge(&j->bases[i], row, (uint32_t)j->chunk[first + i + 1]);
            sum->nll += verdict.nll;
            sum->nll_squared += verdict.nll * verdict.nll;
            sum->kl += verdict.kl;
            sum->n_same += verdict.same_top;
            sum->n++;
        }
        app_progress_add(progress, rows);
    }
    return OCT_OK;
}

static oct_status judge_chunk(judgement *j, uint32_t n, app_progress *progress, oct_error *error)
{
    oct_status status = OCT_OK;
    for (uint32_t r = 0; r < j->n_runners && status == OCT_OK; r++) {
        status = compare_runner_empty(&j->runners[r], error);
    }
    for (uint32_t first = 0; first < n && status == OCT_OK; first += j->options->block_rows) {
        const uint32_t rows = n - first < j->options->block_rows ? n - first : j->options->block_rows;
        status = judge_block(j, first, rows, n, progress, error);
    }
    return status;
}

static compare_quality conclude(const sums *sum, int64_t saturated)
{
    const double n = (double)sum->n, mean = sum->nll / n;
    const double variance = sum->n > 1 ? (sum->nll_squared / n - mean * mean) * n / (n - 1) : NAN;
    const double ppl = exp(mean);
    return (compare_quality){
        .n_tokens = sum->n,
        .ppl = ppl,
        /* First order of exp around the mean. */
        .ppl_stderr = ppl * sqrt((variance > 0 ? variance : isnan(variance) ? NAN : 0) / n),
        .kld_mean = sum->kl / n,
        .same_top = (double)sum->n_same / n,
        .saturated = saturated,
    };
}

oct_status compare_quality_judge(compare_runner *runners, uint32_t n_runners, const compare_quality_options *o, const compare_text *text,
                                 compare_quality *quality, app_progress *progress, oct_error *error)
{
    judgement j = { .runners = runners, .n_runners = n_runners, .options = o };
    j.bases = calloc(o->block_rows, sizeof(*j.bases));
    j.shares = malloc((size_t)o->block_rows * o->n_vocab * sizeof(*j.shares));
    j.chunk = malloc(o->chunk_tokens * sizeof(*j.chunk));
    oct_status status = OCT_OK;
    if (j.bases == NULL || j.shares == NULL || j.chunk == NULL) {
        status = oct__error_set(error, OCT_OUT_OF_MEMORY, where, "out of memory for %u rows of logits", o->block_rows);
    }
    for (uint32_t r = 0; r < n_runners; r++) {
        (void)compare_runner_saturated(&runners[r], o->model);
    }
    const uint32_t n_used = used_tokens(o, text), n_special = o->bos >= 0;
    for (uint32_t at = 0; at < n_used && status == OCT_OK;) {
        const uint32_t room = o->chunk_tokens - n_special, n = n_used - at < room ? n_used - at : room;
        j.chunk[0] = o->bos;
        memcpy(j.chunk + n_special, text->tokens + at, n * sizeof(*j.chunk));
        /* A lone token predicts nothing. */
        if (n_special + n > 1) {
            status = judge_chunk(&j, n_special + n, progress, error);
        }
        at += n;
    }
    for (uint32_t r = 0; r < n_runners && status == OCT_OK; r++) {
        quality[r] = conclude(&j.sums[r], compare_runner_saturated(&runners[r], o->model));
        status = compare_runner_empty(&runners[r], error);
    }
    free(j.bases);
    free(j.shares);
    free(j.chunk);
    return status;
}
