/* runner.c: see runner.h. */
#include "apps/compare/runner.h"

#include <stdlib.h>


oct_status compare_runner_open(compare_runner *runner, const compare_format *format, const compare_runner_options *o, oct_error *error)
{
    *runner = (compare_runner){ .format = format, .context_tokens = o->context_tokens };
    if (format->is_reference) {
        const octe_reference_options options = {
            .n_threads = o->n_threads, .max_context_tokens = o->context_tokens, .max_step_rows = o->step_rows, .cache = format->reference_cache,
        };
        return octe_reference_open(o->path, &options, &runner->reference, error);
    }
    octe_engine_options options;
    octe_engine_options_init(&options);
    options.n_threads = o->n_threads;
    options.max_context_tokens = o->context_tokens;
    options.max_step_rows = o->step_rows;
    options.max_step_logits = o->step_logits;
    options.count = o->count;
    options.rates = o->rates;
    options.kv = (octe_kv_config){ .k = format->k, .v = format->v, .page_size = o->page_size, .scales = compare_format_needs_scales(format) ? o->scales : NULL };
    return octe_engine_open(o->model, &options, &runner->engine, error);
}

void compare_runner_close(compare_runner *runner)
{
    octe_engine_close(runner->engine);
    octe_reference_close(runner->reference);
    *runner = (compare_runner){ 0 };
}

oct_status compare_runner_step(compare_runner *runner, const int32_t *tokens, uint32_t n, uint32_t n_logits, const float **logits, oct_error *error)
{
    const octe_part part = { .sequence = 0, .n_tokens = n, .tokens = tokens, .n_logits = n_logits };
    const float **const wanted = n_logits > 0 ? logits : NULL;
    return runner->engine != NULL ? octe_engine_step(runner->engine, &part, 1, wanted, error)
                                  : octe_reference_step(runner->reference, &part, 1, wanted, error);
}

oct_status compare_runner_prefill(compare_runner *runner, const int32_t *tokens, uint32_t n, const float **logits, oct_error *error)
{
    return runner->engine != NULL ? octe_engine_prefill(runner->engine, 0, tokens, n, logits, error)
                                  : octe_reference_prefill(runner->reference, 0, tokens, n, logits, error);
}

oct_status compare_runner_empty(compare_runner *runner, oct_error *error)
{
    return runner->engine != NULL ? octe_engine_free(runner->engine, 0, error) : octe_reference_free(runner->reference, 0, error);
}

uint32_t compare_runner_length(const compare_runner *runner)
{
    return runner->engine != NULL ? octe_engine_length(runner->engine, 0) : octe_reference_length(runner->reference, 0);
}

static oct_status approach_reference(compare_runner *runner, uint32_t depth, uint32_t after, const int32_t *tokens, uint32_t n, uint32_t step_rows,
                                     bool *there, oct_error *error)
{
    const uint32_t length = octe_reference_length(runner->reference, 0), at = length % n;
    if (length > depth && octe_reference_truncate(runner->reference, 0, depth, NULL) != OCT_OK && after > runner->context_tokens - length) {
        *there = false;
        return octe_reference_free(runner->reference, 0, error);
    }
    if (length >= depth) {
        *there = true;
        return OCT_OK;
    }
    uint32_t rows = depth - length < step_rows ? depth - length : step_rows;
    rows = rows < n - at ? rows : n - at;
    *there = length + rows == depth;
    return compare_runner_step(runner, tokens + at, rows, 0, NULL, error);
}

oct_status compare_runner_approach(compare_runner *runner, uint32_t depth, uint32_t after, const int32_t *tokens, uint32_t n, uint32_t step_rows, bool *there,
                                   oct_error *error)
{
    if (runner->engine == NULL) {
        return approach_reference(runner, depth, after, tokens, n, step_rows, there, error);
    }
    *there = true;
    uint32_t length = octe_engine_length(runner->engine, 0);
    if (length > depth && octe_engine_truncate(runner->engine, 0, depth, NULL) == OCT_OK) {
        return OCT_OK;
    }
    if (length > depth) {
        /* Window layers have given back what a shorter sequence would need. */
        const oct_status status = octe_engine_free(runner->engine, 0, error);
        if (status != OCT_OK) {
            return status;
        }
        length = 0;
    }
    return length < depth ? octe_engine_fill(runner->engine, 0, depth - length, error) : OCT_OK;
}

int64_t compare_runner_saturated(compare_runner *runner, const octe_model *model)
{
    if (runner->engine == NULL || !octe_engine_options_get(runner->engine)->count) {
        return -1;
    }
    const uint32_t n_layers = octe_model_info_get(model)->n_layers;
    oct_kv_counts *const k = calloc(n_layers, sizeof(*k)), *const v = calloc(n_layers, sizeof(*v));
    int64_t sum = -1;
    if (k != NULL && v != NULL) {
        octe_engine_counts(runner->engine, k, v);
        octe_engine_counts_reset(runner->engine);
        sum = 0;
        for (uint32_t i = 0; i < n_layers; i++) {
            sum += (int64_t)(k[i].n_saturated + v[i].n_saturated);
        }
    }
    free(k);
    free(v);
    return sum;
}

oct_status compare_runner_capacity(const compare_runner *runner, const octe_model *model, octe_kv_capacity *capacity, oct_error *error)
{
    if (runner->engine == NULL) {
        octe_reference_capacity(runner->reference, capacity);
        return OCT_OK;
    }
    return octe_kv_capacity_get(model, &octe_engine_options_get(runner->engine)->kv, capacity, error);
}
