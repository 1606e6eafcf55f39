/* runner.c: see runner.h. */
#include "engine/serve/runner.h"

#include <stdlib.h>

#include "engine/report.h"
#include "engine/serve/runner_state.h"
#include "host/clock.h"

static bool copy_page(void *user, bool window, int32_t from, int32_t to)
{
    octe_runner *r = user;
    return octe_engine_copy_page(r->engine, window ? OCTE_POOL_WINDOW : OCTE_POOL_FULL, from, to, NULL) == OCT_OK;
}

static bool swap(void *user, bool window, bool out, int32_t page, uint32_t place)
{
    octe_runner *r = user;
    unsigned char *const bytes = r->host + (size_t)place * r->place_bytes;
    const uint32_t pool = window ? OCTE_POOL_WINDOW : OCTE_POOL_FULL;
    return (out ? octe_engine_page_read(r->engine, pool, page, bytes) : octe_engine_page_write(r->engine, pool, page, bytes)) == OCT_OK;
}

/* Places of one size for the pages of both pools. False: no memory. */
static bool open_host(octe_runner *r, uint64_t bytes, octe_scheduler_options *s)
{
    const size_t full = octe_engine_page_bytes(r->engine, OCTE_POOL_FULL), window = octe_engine_page_bytes(r->engine, OCTE_POOL_WINDOW);
    r->place_bytes = full > window ? full : window;
    const uint64_t n = bytes / r->place_bytes, most = (uint64_t)s->n_pages + (uint64_t)s->n_pages_window;
    s->n_swap = (uint32_t)(n < 4 * most ? n : 4 * most);
    s->swap = swap;
    r->host = s->n_swap > 0 ? malloc(s->n_swap * r->place_bytes) : NULL;
    return s->n_swap == 0 || r->host != NULL;
}

/* A model without full layers has no pool that would bound the pages of their accounting; what all sequences together can use does. */
static int64_t full_pages(const octe_engine_options *o, const octe_engine_stats *stats)
{
    const int64_t most = (int64_t)o->max_sequences * ((o->max_context_tokens - 1) / o->kv.page_size + 1);
    return stats->pages_window > 0 && stats->pages_full > 2 * most ? 2 * most : stats->pages_full;
}

oct_status octe_runner_open(octe_engine *engine, const octe_runner_options *options, octe_runner **runner, oct_error *error)
{
    const octe_engine_options *o = octe_engine_options_get(engine);
    const octe_model_info *info = octe_model_info_get(octe_engine_model(engine));
    *runner = NULL;
    if (o->max_step_logits < o->max_sequences) {
        return octe__report(error, OCT_INVALID_ARGUMENT, "octe_runner_open", NULL, "the engine gives logits of %u rows a step, fewer than its %u sequences", o->max_step_logits,
                            o->max_sequences);
    }
    octe_runner *r = calloc(1, sizeof(*r));
    if (r == NULL) {
        return octe__report(error, OCT_OUT_OF_MEMORY, "octe_runner_open", NULL, "no memory for a runner");
    }
    *r = (octe_runner){.engine = engine, .n_vocab = info->n_vocab, .planned = options->planned, .user = options->user};
    octe_engine_stats stats;
    octe_engine_stats_get(engine, &stats);
    octe_scheduler_options s = {
        .page_size = o->kv.page_size,
        .n_pages = full_pages(o, &stats),
        .n_pages_window = stats.pages_window,
        .window_tokens = stats.pages_window > 0 ? info->window_tokens : 0,
        .max_running = options->max_running != 0 && options->max_running < o->max_sequences ? options->max_running : o->max_sequences,
        .max_context_tokens = o->max_context_tokens,
        .max_step_rows = o->max_step_rows,
        .chunk_tokens = options->chunk_tokens,
        .max_waiting = options->max_waiting,
        .max_step_samples = o->deterministic && o->max_step_parts < o->max_step_logits ? o->max_step_parts : o->max_step_logits,
        .draft = options->draft,
        .deterministic = o->deterministic,
        .prefix_cache = !options->no_prefix_cache,
        .copy_page = copy_page,
        .user = r,
    };
    if (s.deterministic && s.chunk_tokens == 0 && s.max_step_rows > s.max_running) {
        s.chunk_tokens = (s.max_step_rows - s.max_running) / s.page_size * s.page_size;
    }
    r->parts = calloc(o->max_step_parts, sizeof(*r->parts));
    r->outcomes = calloc(o->max_sequences, sizeof(*r->outcomes));
    oct_status status = OCT_OK;
    if (!open_host(r, options->swap_bytes, &s)) {
        status = octe__report(error, OCT_OUT_OF_MEMORY, "octe_runner_open", NULL, "no memory for %u pages of preempted requests", s.n_swap);
    } else if (r->parts == NULL || r->outcomes == NULL) {
        status = octe__report(error, OCT_OUT_OF_MEMORY, "octe_runner_open", NULL, "no memory for steps of %u parts", o->max_step_parts);
    } else {
        status = octe_scheduler_open(&s, &r->scheduler, error);
    }
    if (status != OCT_OK) {
        octe_runner_close(r);
        return status;
    }
    *runner = r;
    return OCT_OK;
}

void octe_runner_close(octe_runner *r)
{
    if (r != NULL) {
        octe_scheduler_close(r->scheduler);
        free(r->host);
        free(r->parts);
        free(r->outcomes);
        free(r);
    }
}

octe_runner_seconds octe_runner_seconds_get(const octe_runner *r) { return r->seconds; }

octe_scheduler *octe_runner_scheduler(octe_runner *r) { return r->scheduler; }

/* A scheduled part as the engine takes it. How a decode rounds depends on how many query rows its sequence has; deterministic, the row of a guess is a part by itself, over
 * the same pages and as long as its text: what it would be without the guesses before it. Returns the number of parts. */
static uint32_t hand_over(const octe_runner *r, const octe_scheduled *p, octe_paged_part *parts)
{
    const bool apart = p->n_draft > 0 && octe_engine_options_get(r->engine)->deterministic;
    const uint32_t n = apart ? p->n_tokens : 1, n_tokens = apart ? 1 : p->n_tokens;
    for (uint32_t i = 0; i < n; i++) {
        parts[i] = (octe_paged_part){
            .tokens = p->tokens + p->n_past + i,
            .n_tokens = n_tokens,
            .n_past = p->n_past + i,
            .n_logits = !p->samples ? 0 : apart ? 1 : 1 + p->n_draft,
            .parents = p->parents,
            .pages = {p->pages[0], p->pages[1]},
        };
    }
    return n;
}

/* Samples a part's next token and, as long as each guess is what was sampled before it, those after: the rows of these guesses are right, and any sampling gives what it
 * would give token by token. */
static void sample_part(const octe_runner *r, octe_runner_sample *sample, void *context, const octe_scheduled *p, const float *logits, octe_outcome *outcome)
{
    outcome->finish = sample(context, p, logits, &outcome->token);
    for (uint32_t at = octe__guess_after(p, 0, outcome->token); !outcome->finish && at > 0; at = octe__guess_after(p, at, outcome->token)) {
        outcome->way[outcome->n_accepted++] = (uint8_t)at;
        outcome->finish = sample(context, p, logits + (size_t)at * r->n_vocab, &outcome->token);
    }
}

oct_status octe_runner_step(octe_runner *r, octe_runner_sample *sample, void (*failed)(void *context, const octe_scheduled *part), void *context, uint32_t *n_rows,
                            oct_error *error)
{
    octe_step_plan step;
    *n_rows = 0;
    if (!octe_scheduler_plan(r->scheduler, &step)) {
        return OCT_OK;
    }
    if (r->planned != NULL) {
        r->planned(r->user, &step);
    }
    uint32_t n_parts = 0;
    for (uint32_t i = 0; i < step.n_parts; i++) {
        n_parts += hand_over(r, &step.parts[i], r->parts + n_parts);
    }
    const float *logits = NULL;
    const double begin = oct__clock_seconds();
    const oct_status status = octe_engine_step_paged(r->engine, r->parts, n_parts, &logits, error);
    const double done = oct__clock_seconds();
    r->seconds.model += done - begin;
    if (status != OCT_OK) {
        octe_scheduler_abandon(r->scheduler);
        for (uint32_t i = 0; i < step.n_parts && failed != NULL; i++) {
            failed(context, &step.parts[i]);
        }
        return status;
    }
    for (uint32_t i = 0; i < step.n_parts; i++) {
        r->outcomes[i] = (octe_outcome){0};
        if (step.parts[i].samples) {
            sample_part(r, sample, context, &step.parts[i], logits, &r->outcomes[i]);
            logits += (size_t)(1 + step.parts[i].n_draft) * r->n_vocab;
        }
    }
    r->seconds.sampling += oct__clock_seconds() - done;
    *n_rows = step.n_rows;
    octe_scheduler_commit(r->scheduler, r->outcomes);
    return OCT_OK;
}
