/* speed.c: see speed.h. */
#include "apps/compare/speed.h"

#include <stdlib.h>

#include "apps/interrupt.h"
#include "host/clock.h"
#include "host/error.h"

static const char where[] = "octavo compare";

/* A step of decoding costs about as much as this many tokens of a prefill, and attention doubles a token's price about here. Only the
 * progress bar believes it. */
static const double decode_price = 4, double_depth = 4096;

static int compare_numbers(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values, uint32_t n)
{
    qsort(values, n, sizeof(*values), compare_numbers);
    return n % 2 == 1 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

void compare_speed_depths(compare_speed_options *o, uint32_t context_tokens)
{
    /* One warm-up step comes before the timed ones. */
    const uint32_t after = o->prefill_tokens > o->decode_tokens + 1 ? o->prefill_tokens : o->decode_tokens + 1;
    const uint32_t deepest = context_tokens > after ? context_tokens - after : 0;
    uint32_t n = 0;
    for (uint32_t i = 0; i < o->n_depths; i++) {
        const uint32_t depth = o->depths[i] < deepest ? o->depths[i] : deepest;
        uint32_t at = 0;
        while (at < n && o->depths[at] < depth) {
            at++;
        }
        if (at < n && o->depths[at] == depth) {
            continue;
        }
        for (uint32_t j = n; j > at; j--) {
            o->depths[j] = o->depths[j - 1];
        }
        o->depths[at] = depth;
        n++;
    }
    o->n_depths = n;
}

static double turn_work(const compare_speed_options *o, uint32_t depth)
{
    return (o->prefill_tokens + decode_price * o->decode_tokens) * (1 + depth / double_depth);
}

double compare_speed_work(const compare_speed_options *o, const compare_format *formats, uint32_t n_formats)
{
    double work = 0;
    for (uint32_t d = 0; d < o->n_depths; d++) {
        work += turn_work(o, o->depths[d]) * o->n_rounds * n_formats;
    }
    const uint32_t deepest = o->n_depths > 0 ? o->depths[o->n_depths - 1] : 0;
    for (uint32_t i = 0; i < n_formats; i++) {
        work += formats[i].is_reference ? deepest * (1 + deepest / double_depth / 2) : 0;
    }
    return work;
}

oct_status compare_speed_go_to(compare_runner *runner, const compare_speed_options *o, uint32_t depth, uint32_t after, app_progress *progress,
                               oct_error *error)
{
    oct_status status = OCT_OK;
    for (bool there = false; !there && status == OCT_OK;) {
        const uint32_t before = compare_runner_length(runner);
        if (app_interrupted()) {
            return oct__error_set(error, OCT_CANCELLED, where, "stopped");
        }
        status = compare_runner_approach(runner, depth, after, o->tokens, o->n_tokens, o->step_rows, &there, error);
        if (runner->format->is_reference && compare_runner_length(runner) > before) {
            app_progress_add(progress, (compare_runner_length(runner) - before) * (1 + before / double_depth));
        }
    }
    return status;
}

/* One prefill and one run of decoding from a depth; seconds of the prefill, and of each decoded token. */
static oct_status take_turn(compare_runner *runner, const compare_speed_options *o, uint32_t depth, double *prefill, double *decode,
                            app_progress *progress, oct_error *error)
{
    const float *logits;
    oct_status status = compare_speed_go_to(runner, o, depth, o->prefill_tokens, progress, error);
    if (status == OCT_OK) {
        const double begin = oct__clock_seconds();
        status = compare_runner_step(runner, o->tokens, o->prefill_tokens, 1, &logits, error);
        *prefill = oct__clock_seconds() - begin;
    }
    if (status == OCT_OK) {
        status = compare_speed_go_to(runner, o, depth, o->decode_tokens + 1, progress, error);
    }
    /* The first step finds cold caches and a graph to build: it warms up. */
    for (uint32_t i = 0; i <= o->decode_tokens && status == OCT_OK; i++) {
        const double begin = oct__clock_seconds();
        status = compare_runner_step(runner, o->tokens + i % o->n_tokens, 1, 1, &logits, error);
        if (i > 0) {
            decode[i - 1] = oct__clock_seconds() - begin;
        }
    }
    app_progress_add(progress, turn_work(o, depth));
    return status;
}

/* All rounds at one depth. decode: [n_runners][n_rounds][decode_tokens], prefill: [n_runners][n_rounds]. */
static oct_status measure_depth(compare_runner *runners, uint32_t n_runners, const compare_speed_options *o, uint32_t depth, double *prefill, double *decode,
                                app_progress *progress, oct_error *error)
{
    for (uint32_t round = 0; round < o->n_rounds; round++) {
        for (uint32_t r = 0; r < n_runners; r++) {
            const size_t at = (size_t)r * o->n_rounds + round;
            const oct_status status = take_turn(&runners[r], o, depth, &prefill[at], &decode[at * o->decode_tokens], progress, error);
            if (status != OCT_OK) {
                return status;
            }
        }
    }
    return OCT_OK;
}

oct_status compare_speed_measure(compare_runner *runners, uint32_t n_runners, const compare_speed_options *o, compare_speed *speed, app_progress *progress,
                                 oct_error *error)
{
    const size_t n_turns = (size_t)n_runners * o->n_rounds;
    double *const prefill = malloc(n_turns * sizeof(*prefill)), *const decode = malloc(n_turns * o->decode_tokens * sizeof(*decode));
    oct_status status = OCT_OK;
    if (prefill == NULL || decode == NULL) {
        status = oct__error_set(error, OCT_OUT_OF_MEMORY, where, "out of memory for the times of %zu turns", n_turns);
    }
    /* The first prefill of a runner builds its graph and touches its memory: it is not timed. */
    for (uint32_t r = 0; r < n_runners && status == OCT_OK; r++) {
        const float *logits;
        status = compare_runner_step(&runners[r], o->tokens, o->prefill_tokens, 1, &logits, error);
        status = status == OCT_OK ? compare_runner_empty(&runners[r], error) : status;
    }
    for (uint32_t d = 0; d < o->n_depths && status == OCT_OK; d++) {
        status = measure_depth(runners, n_runners, o, o->depths[d], prefill, decode, progress, error);
        for (uint32_t r = 0; r < n_runners && status == OCT_OK; r++) {
            const size_t at = (size_t)r * o->n_rounds;
            speed[r].prefill_tps[d] = o->prefill_tokens / median(&prefill[at], o->n_rounds);
            speed[r].decode_tps[d] = 1 / median(&decode[at * o->decode_tokens], o->n_rounds * o->decode_tokens);
        }
    }
    free(prefill);
    free(decode);
    return status;
}
