/* quality.h: owns the judging of caches on a text: every format runs the same tokens in lockstep, block by block, so that the base's logits
 * lie beside everybody's and none need be kept. Single-threaded. */
#ifndef APP_COMPARE_QUALITY_H
#define APP_COMPARE_QUALITY_H

#include "apps/compare/runner.h"
#include "apps/progress.h"

/* What one format lost on one text. Not a number where nothing was judged. */
typedef struct compare_quality {
    uint64_t n_tokens;              /* predicted and judged */
    double ppl, ppl_stderr;         /* exp(mean nll) and its standard error */
    double kld_mean;                /* nats a token, KL(base || this) */
    double same_top;                /* share of tokens, 0 .. 1 */
    int64_t saturated;              /* values of K and V; -1: not counted */
} compare_quality;

typedef struct compare_text {
    const char *name;
    int32_t *tokens;                /* without special ones; owned by whoever read it */
    uint32_t n_tokens;
} compare_text;

typedef struct compare_quality_options {
    const octe_model *model;
    uint32_t n_vocab;
    int32_t bos;                    /* put before each chunk; -1: none */
    uint32_t n_tokens;              /* of the text to use, at most */
    uint32_t chunk_tokens;          /* each chunk is a sequence of its own; includes the BOS */
    uint32_t block_rows;            /* rows of logits that lie in memory per format */
} compare_quality_options;

/* Rows of logits within about 32 MiB, at least 8, at most 256. */
uint32_t compare_block_rows(uint32_t n_vocab);

/* Tokens that a call will run per format, for a progress bar. */
uint32_t compare_quality_work(const compare_quality_options *options, const compare_text *text);

/* runners[0] is the base. quality: [n_runners]. CANCELLED after Ctrl-C. */
oct_status compare_quality_judge(compare_runner *runners, uint32_t n_runners, const compare_quality_options *options, const compare_text *text,
                                 compare_quality *quality, app_progress *progress, oct_error *error);

#endif
