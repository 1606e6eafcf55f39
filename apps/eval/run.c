/* run.c: see run.h. */
#include "apps/eval/run.h"

#include <stdlib.h>

#include "apps/interrupt.h"
#include "host/error.h"

oct_status eval_run_check(oct_error *error)
{
    return app_interrupted() ? oct__error_set(error, OCT_CANCELLED, "octavo eval", "stopped") : OCT_OK;
}

oct_status eval_run_no_numbers(oct_error *error)
{
    return oct__error_set(error, OCT_BAD_DATA, "octavo eval", "with the base's cache the model's logits are not all numbers: nothing can be judged against it; "
                                                              "bf16 holds larger values than f16 and may be the base: --kv-cache-dtype bf16,...");
}

oct_status eval_run_keep(const eval_run *run, oct_error *error)
{
    const oct_status status = run->keep != NULL ? run->keep(run->user, error) : OCT_OK;
    return status == OCT_OK ? eval_run_check(error) : status;
}

octe_kv_config eval_run_config(const eval_run *run, uint32_t format)
{
    const compare_format *const f = &run->formats[format];
    return (octe_kv_config){ .k = f->k, .v = f->v, .page_size = run->page_size, .scales = compare_format_needs_scales(f) ? compare_scales_of(run->scales, f) : NULL };
}

oct_status eval_run_open(const eval_run *run, uint32_t format, const eval_engine_size *size, octe_engine **engine, oct_error *error)
{
    octe_engine_options options;
    octe_engine_options_init(&options);
    options.n_threads = run->n_threads;
    options.max_context_tokens = size->context_tokens;
    options.max_sequences = size->n_sequences;
    options.max_step_rows = size->step_rows;
    options.max_step_logits = size->step_logits;
    options.pool_tokens = size->pool_tokens;
    options.rates = run->rates;
    options.kv = eval_run_config(run, format);
    return octe_engine_open(run->model, &options, engine, error);
}

char *eval_run_words(const octe_vocab *vocab, const int32_t *tokens, uint32_t n, bool special)
{
    app_text text = { 0 };
    octe_stream stream = { 0 };
    char rest[4];
    app_text_add(&text, "%s", "");
    for (uint32_t i = 0; i < n; i++) {
        char *piece = NULL;
        oct_error error = OCT_ERROR_INIT;
        if (octe_stream_add(&stream, vocab, tokens[i], special, &piece, NULL, &error) != OCT_OK) {
            app_text_free(&text);
            return NULL;
        }
        app_text_add(&text, "%s", piece);
        free(piece);
    }
    octe_stream_finish(&stream, rest);
    app_text_add(&text, "%s", rest);
    if (text.failed) {
        app_text_free(&text);
    }
    return text.bytes;
}
