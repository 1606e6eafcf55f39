/* inside.c: see inside.h. */
#include "apps/eval/inside.h"

#include <stdlib.h>

#include "apps/eval/inside_probe.h"
#include "host/error.h"

static const char where[] = "octavo eval";

double eval_inside_work(const eval_inside_options *o, uint32_t n, uint32_t n_sensitivity)
{
    const octe_model_info *const info = octe_model_info_get(o->model);
    const double runs = 3.0 + info->n_layers + 2.0 * eval_alone_apart(info->n_layers, o->quick);
    return (double)n * eval_probe_tokens(info, o->n_tokens, o->quick) + n_sensitivity * runs * eval_alone_tokens(info, o->n_tokens, o->quick);
}

static oct_status make_room(eval_inside *in, eval_inside_format *f, oct_error *error)
{
    const size_t by_kv = (size_t)in->n_layers * in->n_heads_kv;
    f->kept[0] = calloc(by_kv, sizeof(*f->kept[0]));
    f->kept[1] = calloc(by_kv, sizeof(*f->kept[1]));
    f->attended = calloc((size_t)in->n_layers * in->n_heads, sizeof(*f->attended));
    return f->kept[0] != NULL && f->kept[1] != NULL && f->attended != NULL ? OCT_OK : oct__error_set(error, OCT_OUT_OF_MEMORY, where, "out of memory for %u layers", in->n_layers);
}

static oct_status look_into(const eval_inside_options *o, const eval_inside_wanted *wanted, eval_inside *in, oct_error *error)
{
    eval_inside_format *const f = &in->formats[in->n_formats++];
    f->format = wanted->format;
    oct_status status = make_room(in, f, error);
    if (status != OCT_OK) {
        return status;
    }
    eval_probe probe;
    status = eval_probe_run(&probe, o, wanted, in, f, error);
    if (status == OCT_OK) {
        eval_probe_find(&probe, in, f);
    }
    eval_probe_close(&probe);
    return status;
}

oct_status eval_inside_measure(const eval_inside_options *o, const eval_inside_wanted *wanted, uint32_t n, eval_inside **inside, oct_error *error)
{
    const octe_model_info *const info = octe_model_info_get(o->model);
    *inside = NULL;
    if (o->n_tokens < 2 || o->tokens == NULL || n > EVAL_INSIDE_MAX_FORMATS) {
        return oct__error_set(error, OCT_INVALID_ARGUMENT, where, "%u tokens and %u formats; must be at least 2, and at most %d", o->n_tokens, n, EVAL_INSIDE_MAX_FORMATS);
    }
    eval_inside *const in = calloc(1, sizeof(*in));
    if (in == NULL) {
        return oct__error_set(error, OCT_OUT_OF_MEMORY, where, "out of memory");
    }
    in->n_layers = info->n_layers;
    in->n_heads = info->n_heads;
    in->n_heads_kv = info->n_heads_kv;
    in->head_dim = info->head_dim;
    in->window_tokens = info->window_tokens;
    in->n_tokens = eval_probe_tokens(info, o->n_tokens, o->quick);
    in->n_rows = eval_probe_rows(in->n_tokens, o->quick);
    in->n_alone_tokens = eval_alone_tokens(info, o->n_tokens, o->quick);
    in->n_alone_judged = eval_alone_judged(info, o->n_tokens, o->quick);
    oct_status status = OCT_OK;
    uint32_t n_sensitivity = 0;
    for (uint32_t i = 0; i < n; i++) {
        n_sensitivity += wanted[i].sensitivity;
    }
    const double total = eval_inside_work(o, n, n_sensitivity), one = n_sensitivity > 0 ? eval_inside_work(o, 0, 1) : 0;
    for (uint32_t i = 0; i < n && status == OCT_OK; i++) {
        status = look_into(o, &wanted[i], in, error);
        if (status == OCT_OK && o->progress != NULL && !o->progress(o->user, "inside the model", (i + 1.0) * in->n_tokens, total)) {
            status = oct__error_set(error, OCT_CANCELLED, where, "stopped");
        }
    }
    for (uint32_t i = 0; i < n && status == OCT_OK; i++) {
        if (wanted[i].sensitivity) {
            const double before = (double)n * in->n_tokens + in->n_sensitivities * one;
            eval_sensitivity *const s = &in->sensitivities[in->n_sensitivities++];
            status = eval_alone_run(o, &wanted[i], before, total, in, s, error);
            if (status == OCT_OK) {
                status = eval_alone_find(in, s, error);
            }
        }
    }
    if (status != OCT_OK) {
        eval_inside_free(in);
        return status;
    }
    *inside = in;
    return OCT_OK;
}
