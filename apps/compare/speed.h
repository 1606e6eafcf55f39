/* speed.h: owns the measuring of speed: all formats take turns at every depth, so that a noisy moment hits them alike, and medians are
 * reported. Single-threaded. */
#ifndef APP_COMPARE_SPEED_H
#define APP_COMPARE_SPEED_H

#include "apps/compare/runner.h"
#include "apps/progress.h"

enum { COMPARE_MAX_DEPTHS = 8, COMPARE_MAX_ROUNDS = 15 };

typedef struct compare_speed {
    double prefill_tps[COMPARE_MAX_DEPTHS], decode_tps[COMPARE_MAX_DEPTHS];
} compare_speed;

typedef struct compare_speed_options {
    const octe_model *model;
    const int32_t *tokens;          /* what is fed: any real text, repeated as need be */
    uint32_t n_tokens;              /* >= prefill_tokens */
    uint32_t depths[COMPARE_MAX_DEPTHS], n_depths;   /* ascending */
    uint32_t prefill_tokens;        /* one step of this many tokens is timed */
    uint32_t decode_tokens;         /* this many single-token steps are timed */
    uint32_t n_rounds;
    uint32_t step_rows;
} compare_speed_options;

/* Cuts depths to what a context leaves for a prefill or a decode after it, sorts them and drops what is double. */
void compare_speed_depths(compare_speed_options *options, uint32_t context_tokens);

/* Brings the runner to a depth, for a measurement that appends `after` tokens; uses tokens, n_tokens and step_rows of the options. CANCELLED after
 * Ctrl-C. */
oct_status compare_speed_go_to(compare_runner *runner, const compare_speed_options *options, uint32_t depth, uint32_t after, app_progress *progress,
                               oct_error *error);

/* In the unit of compare_quality_work: tokens of a prefill at depth 0. */
double compare_speed_work(const compare_speed_options *options, const compare_format *formats, uint32_t n_formats);

/* speed: [n_runners]. CANCELLED after Ctrl-C. */
oct_status compare_speed_measure(compare_runner *runners, uint32_t n_runners, const compare_speed_options *options, compare_speed *speed,
                                 app_progress *progress, oct_error *error);

#endif
