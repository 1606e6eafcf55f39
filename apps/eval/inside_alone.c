/* inside_alone.c: what one layer alone costs: the whole model runs with that layer in the format and all others in the base. See inside_probe.h. */
#include <math.h>
#include <stdlib.h>

#include "apps/compare/divergence.h"
#include "apps/eval/inside_probe.h"
#include "host/error.h"

static const char where[] = "octavo eval";

enum { TOKENS_QUICK = 128, TOKENS = 256, JUDGED_QUICK = 64, JUDGED = 128, LOGITS_BYTES = 32 << 20, APART_QUICK = 6 };

uint32_t eval_alone_tokens(const octe_model_info *info, uint32_t n_tokens, bool quick)
{
    uint32_t n = quick ? TOKENS_QUICK : TOKENS;
    n = n < n_tokens ? n : n_tokens;
    return n < info->n_ctx_train ? n : info->n_ctx_train;
}

uint32_t eval_alone_judged(const octe_model_info *info, uint32_t n_tokens, bool quick)
{
    const uint64_t room = LOGITS_BYTES / (sizeof(float) * (uint64_t)info->n_vocab);
    uint32_t n = quick ? JUDGED_QUICK : JUDGED;
    n = n < room ? n : (uint32_t)room;
    /* The first token has nothing before it that a cache could have spoiled. */
    n = n < eval_alone_tokens(info, n_tokens, quick) - 1 ? n : eval_alone_tokens(info, n_tokens, quick) - 1;
    return n > 0 ? n : 1;
}

uint32_t eval_alone_apart(uint32_t n_layers, bool quick) { return quick && n_layers > APART_QUICK ? APART_QUICK : n_layers; }

typedef struct alone {
    const eval_inside_options *options;
    const eval_inside_wanted *wanted;
    const octe_model_info *info;
    uint32_t n_tokens, n_judged;
    double done_before, total;        /* tokens of the whole measurement */
    float *logits, *shares;           /* of the base: [n_judged][n_vocab] */
    compare_base *bases;              /* [n_judged] */
    octe_kv_layer_format *layers;     /* [n_layers] */
} alone;

/* A prefill under layers' formats, in one engine of its own. logits: the last n_judged rows, valid until the engine is closed. */
static oct_status prefill(const alone *a, const octe_kv_config *kv, octe_engine **engine, const float **logits, oct_error *error)
{
    octe_engine_options o;
    octe_engine_options_init(&o);
    o.n_threads = a->options->n_threads;
    o.max_context_tokens = o.max_step_rows = a->n_tokens;
    o.max_step_logits = a->n_judged;
    o.rates = a->options->rates;
    o.kv = *kv;
    oct_status status = (a->options->open != NULL ? a->options->open : octe_engine_open)(a->options->model, &o, engine, error);
    const octe_part part = { .sequence = 0, .n_tokens = a->n_tokens, .tokens = a->options->tokens, .n_logits = a->n_judged };
    return status == OCT_OK ? octe_engine_step(*engine, &part, 1, logits, error) : status;
}

static oct_status run_base(alone *a, oct_error *error)
{
    octe_engine *engine = NULL;
    const float *logits;
    const uint32_t n_vocab = a->info->n_vocab;
    oct_status status = prefill(a, &a->options->base, &engine, &logits, error);
    for (uint32_t i = 0; i < a->n_judged && status == OCT_OK; i++) {
        float *const row = a->logits + (size_t)i * n_vocab;
        for (uint32_t v = 0; v < n_vocab; v++) {
            row[v] = logits[(size_t)i * n_vocab + v];
        }
        compare_base_prepare(&a->bases[i], row, a->shares + (size_t)i * n_vocab, n_vocab);
    }
    octe_engine_close(engine);
    return status;
}

/* KL of a cache against the base, mean over the judged rows. */
static oct_status judge(const alone *a, const octe_kv_config *kv, double *kl, double *same_top, oct_error *error)
{
    octe_engine *engine = NULL;
    const float *logits;
    oct_status status = prefill(a, kv, &engine, &logits, error);
    *kl = *same_top = 0;
    for (uint32_t i = 0; i < a->n_judged && status == OCT_OK; i++) {
        const compare_verdict v = compare_judge(&a->bases[i], logits + (size_t)i * a->info->n_vocab, 0);
        *kl += v.kl / a->n_judged;
        *same_top += (v.same_top ? 1.0 : 0.0) / a->n_judged;
    }
    octe_engine_close(engine);
    return status;
}

/* Layer il's K, V or both in the format. */
static oct_status judge_layer(const alone *a, uint32_t il, bool k, bool v, double *kl, double *same_top, oct_error *error)
{
    octe_kv_config kv = a->options->base;
    const octe_kv_layer_format base = { kv.k, kv.v }, wanted = octe_kv_config_layer(&a->wanted->kv, il);
    for (uint32_t i = 0; i < a->info->n_layers; i++) {
        a->layers[i] = base;
    }
    a->layers[il] = (octe_kv_layer_format){ k ? wanted.k : base.k, v ? wanted.v : base.v };
    kv.layers = a->layers;
    kv.n_layers = a->info->n_layers;
    kv.scales = a->wanted->kv.scales;
    kv.k_scale = a->wanted->kv.k_scale;
    kv.v_scale = a->wanted->kv.v_scale;
    return judge(a, &kv, kl, same_top, error);
}

static int by_cost(const void *left, const void *right)
{
    const eval_alone *const a = left, *const b = right;
    /* A NaN costs most. */
    const double x = isnan(a->kl) ? (double)INFINITY : a->kl, y = isnan(b->kl) ? (double)INFINITY : b->kl;
    return x != y ? (x < y) - (x > y) : (a->layer > b->layer) - (a->layer < b->layer);
}

static oct_status go_on(const alone *a, const char *doing, double done, oct_error *error)
{
    return a->options->progress == NULL || a->options->progress(a->options->user, doing, a->done_before + done, a->total) ? OCT_OK : oct__error_set(error, OCT_CANCELLED, where, "stopped");
}

static oct_status run_all(alone *a, eval_sensitivity *s, oct_error *error)
{
    const uint32_t n_layers = a->info->n_layers, n_apart = eval_alone_apart(n_layers, a->options->quick);
    double ignored, done = a->n_tokens;
    oct_status status = run_base(a, error);
    if (status == OCT_OK) {
        octe_kv_config exact = a->options->base;
        exact.k.dtype = exact.v.dtype = OCT_DTYPE_F32;
        status = judge(a, &exact, &s->floor, &ignored, error);
        if (status == OCT_OK && isnan(s->floor)) {
            status = oct__error_set(error, OCT_BAD_DATA, where, "with the base's cache the model's logits are not all numbers: no layer can be judged against it");
        }
    }
    if (status == OCT_OK) {
        status = judge(a, &a->wanted->kv, &s->kl_all, &ignored, error);
    }
    done += 2.0 * a->n_tokens;
    for (uint32_t il = 0; il < n_layers && status == OCT_OK; il++) {
        eval_alone *const one = &s->alone[il];
        *one = (eval_alone){ .layer = il, .kl_k = (double)NAN, .kl_v = (double)NAN };
        status = judge_layer(a, il, true, true, &one->kl, &one->same_top, error);
        done += a->n_tokens;
        if (status == OCT_OK) {
            status = go_on(a, "one layer at a time", done, error);
        }
    }
    if (status == OCT_OK) {
        qsort(s->alone, n_layers, sizeof(*s->alone), by_cost);
    }
    for (uint32_t i = 0; i < n_apart && status == OCT_OK; i++) {
        eval_alone *const one = &s->alone[i];
        status = judge_layer(a, one->layer, true, false, &one->kl_k, &ignored, error);
        if (status == OCT_OK) {
            status = judge_layer(a, one->layer, false, true, &one->kl_v, &ignored, error);
        }
        done += 2.0 * a->n_tokens;
        if (status == OCT_OK) {
            status = go_on(a, "K and V apart", done, error);
        }
    }
    return status;
}

oct_status eval_alone_run(const eval_inside_options *o, const eval_inside_wanted *wanted, double done_before, double total, eval_inside *inside, eval_sensitivity *s, oct_error *error)
{
    alone a = { .options = o, .wanted = wanted, .done_before = done_before, .total = total, .info = octe_model_info_get(o->model), .n_tokens = inside->n_alone_tokens, .n_judged = inside->n_alone_judged };
    const size_t n = (size_t)a.n_judged * a.info->n_vocab;
    a.logits = malloc(n * sizeof(*a.logits));
    a.shares = malloc(n * sizeof(*a.shares));
    a.bases = calloc(a.n_judged, sizeof(*a.bases));
    a.layers = calloc(a.info->n_layers, sizeof(*a.layers));
    s->format = wanted->format;
    s->alone = calloc(a.info->n_layers, sizeof(*s->alone));
    oct_status status = OCT_OK;
    if (a.logits == NULL || a.shares == NULL || a.bases == NULL || a.layers == NULL || s->alone == NULL) {
        status = oct__error_set(error, OCT_OUT_OF_MEMORY, where, "out of memory for %u rows of logits", a.n_judged);
    } else {
        status = run_all(&a, s, error);
        s->n = a.info->n_layers;
    }
    free(a.logits);
    free(a.shares);
    free(a.bases);
    free(a.layers);
    return status;
}
