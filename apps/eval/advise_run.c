/* advise_run.c: judging and choosing; see advise.h. */
#include "apps/eval/advise.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "apps/chronicle.h"
#include "apps/compare/divergence.h"
#include "apps/eval/inside.h"
#include "apps/eval/statistics.h"
#include "apps/interrupt.h"
#include "apps/texts.h"
#include "engine/calibrate.h"
#include "host/error.h"

static const char where[] = "octavo advise";

enum { SEED = 1, MOST_MIXED = 3, CALIBRATION_TOKENS = 1024 };

/* ---- one cache --------------------------------------------------------------------------------------------------------------------------- */

octe_kv_config advise_config(advise *a, const advise_candidate *c)
{
    octe_kv_config kv = { .k = c->format.k, .v = c->format.v, .scales = compare_format_needs_scales(&c->format) ? compare_scales_of(&a->scales, &c->format) : NULL };
    if (c->layers != NULL) {
        octe_kv_config_set_layers(&kv, c->layers, octe_model_info_get(a->model)->n_layers);
    }
    return kv;
}

static oct_status prefill(advise *a, const octe_kv_config *kv, octe_engine **engine, const float **logits, oct_error *error)
{
    octe_engine_options o;
    octe_engine_options_init(&o);
    o.n_threads = a->n_threads;
    o.max_context_tokens = o.max_step_rows = a->n_tokens;
    o.max_step_logits = a->n_judged;
    o.rates = a->rates;
    o.kv = *kv;
    if (app_interrupted()) {
        return oct__error_set(error, OCT_CANCELLED, where, "stopped");
    }
    oct_status status = octe_engine_open(a->model, &o, engine, error);
    const octe_part part = { .sequence = 0, .n_tokens = a->n_tokens, .tokens = a->tokens, .n_logits = a->n_judged };
    if (status == OCT_OK) {
        status = octe_engine_step(*engine, &part, 1, logits, error);
    }
    app_progress_add(a->progress, a->n_tokens);
    return status;
}

/* KL from the base, with its interval over blocks of neighbours. */
static oct_status judge(advise *a, const octe_kv_config *kv, double *kl, eval_interval *interval, double *same_top, oct_error *error)
{
    octe_engine *engine = NULL;
    const float *logits;
    const uint32_t n_vocab = octe_model_info_get(a->model)->n_vocab, n_blocks = (a->n_judged + EVAL_BLOCK_TOKENS - 1) / EVAL_BLOCK_TOKENS;
    float *const share = malloc(n_vocab * sizeof(*share));
    eval_cluster *const blocks = calloc(n_blocks, sizeof(*blocks));
    uint32_t n_same = 0;
    oct_status status = share != NULL && blocks != NULL ? OCT_OK : oct__error_set(error, OCT_OUT_OF_MEMORY, where, "out of memory");
    if (status == OCT_OK) {
        status = prefill(a, kv, &engine, &logits, error);
    }
    for (uint32_t i = 0; i < a->n_judged && status == OCT_OK; i++) {
        compare_base base;
        compare_base_prepare(&base, a->logits + (size_t)i * n_vocab, share, n_vocab);
        const compare_verdict v = compare_judge(&base, logits + (size_t)i * n_vocab, 0);
        blocks[i / EVAL_BLOCK_TOKENS].sum += v.kl;
        blocks[i / EVAL_BLOCK_TOKENS].n++;
        n_same += v.same_top;
    }
    if (status == OCT_OK) {
        *kl = eval_clusters_mean(blocks, n_blocks);
        *interval = eval_bootstrap(blocks, n_blocks, SEED);
        *same_top = (double)n_same / a->n_judged;
    }
    octe_engine_close(engine);
    free(share);
    free(blocks);
    return status;
}

oct_status advise_begin(advise *a, oct_error *error)
{
    octe_engine *engine = NULL;
    const float *logits;
    const size_t n = (size_t)a->n_judged * octe_model_info_get(a->model)->n_vocab;
    octe_kv_capacity capacity;
    a->base = (advise_candidate){ .name = "f16", .share = 1, .same_top = 1, .seconds = (double)NAN, .meets = true };
    a->base.format.k.dtype = a->base.format.v.dtype = OCT_DTYPE_F16;
    (void)snprintf(a->base.format.name, sizeof(a->base.format.name), "f16");
    const octe_kv_config kv = advise_config(a, &a->base);
    oct_status status = octe_kv_capacity_get(a->model, &kv, &capacity, error);
    a->base.bytes_per_token = capacity.bytes_per_token;
    free(a->logits);
    a->logits = malloc(n * sizeof(*a->logits));
    if (status == OCT_OK && a->logits == NULL) {
        status = oct__error_set(error, OCT_OUT_OF_MEMORY, where, "out of memory for %u rows of logits", a->n_judged);
    }
    if (status == OCT_OK) {
        status = prefill(a, &kv, &engine, &logits, error);
    }
    if (status == OCT_OK) {
        memcpy(a->logits, logits, n * sizeof(*a->logits));
    }
    octe_engine_close(engine);
    if (status == OCT_OK) {
        octe_kv_config exact = kv;
        eval_interval ignored;
        double same_top;
        exact.k.dtype = exact.v.dtype = OCT_DTYPE_F32;
        status = judge(a, &exact, &a->floor, &ignored, &same_top, error);
    }
    return status;
}

/* ---- the target machine ---------------------------------------------------------------------------------------------------------------------- */

/* The kernel that a plan's explanation has chosen for a decode, and its predicted time. */
static void read_choice(const char *json, advise_candidate *c)
{
    json_t *const root = json_loads(json, 0, NULL);
    const json_t *const operation = json_array_get(json_object_get(root, "operations"), 0);
    size_t i;
    const json_t *variant;
    json_array_foreach(json_object_get(operation, "variants"), i, variant) {
        const char *const state = json_string_value(json_object_get(variant, "state")), *const name = json_string_value(json_object_get(variant, "name"));
        if (state != NULL && name != NULL && strcmp(state, "chosen") == 0) {
            (void)snprintf(c->kernel, sizeof(c->kernel), "%s", name);
            c->seconds = json_number_value(json_object_get(variant, "seconds"));
        }
    }
    json_decref(root);
}

/* Which kernel decodes this format there; refused when none does. */
static oct_status ask_machine(const advise *a, oct_context *context, advise_candidate *c, oct_error *error)
{
    const octe_model_info *const info = octe_model_info_get(a->model);
    const oct_attn_spec spec = {
        .struct_size = sizeof(spec), .heads_q = info->n_heads, .q_dtype = OCT_DTYPE_F32, .out_dtype = OCT_DTYPE_F32, .sm_scale = 1.0f, .causal = 1, .max_sequences = 1, .max_rows = 512, .max_keys = 4096,
        .max_threads = a->n_threads,
        .kv = { .struct_size = sizeof(spec.kv), .layout = OCT_LAYOUT_NHD, .heads = info->n_heads_kv, .dim_k = info->head_dim, .dim_v = info->head_dim, .page_size = 16, .k = c->format.k, .v = c->format.v },
    };
    oct_plan *plan = NULL;
    oct_error why = OCT_ERROR_INIT;
    const oct_status status = oct_plan_create(context, &spec, &plan, &why);
    if (status != OCT_OK) {
        c->is_refused = true;
        (void)snprintf(c->why, sizeof(c->why), "no kernel for it there: %.150s", why.text);
        return status == OCT_OUT_OF_MEMORY ? oct__error_set(error, status, where, "%s", why.text) : OCT_OK;
    }
    const size_t size = oct_plan_explain(plan, OCT_TEXT_JSON, NULL, 0) + 1;
    char *const json = malloc(size);
    if (json != NULL) {
        (void)oct_plan_explain(plan, OCT_TEXT_JSON, json, size);
        read_choice(json, c);
    }
    free(json);
    oct_plan_destroy(plan);
    return json != NULL ? OCT_OK : oct__error_set(error, OCT_OUT_OF_MEMORY, where, "out of memory");
}

static oct_status ask_machines(advise *a, oct_error *error)
{
    const bool here = a->target.machine == NULL || strcmp(a->target.machine, "cpu") == 0;
    const oct_context_options options = { .struct_size = sizeof(options), .max_threads = a->n_threads, .machine = here ? NULL : a->target.machine, .rates = here ? a->rates : NULL };
    oct_context *context = NULL;
    oct_status status = oct_context_create(&options, &context, error);
    if (status == OCT_OK) {
        status = ask_machine(a, context, &a->base, error);
    }
    for (uint32_t i = 0; i < a->n_candidates && status == OCT_OK; i++) {
        status = ask_machine(a, context, &a->candidates[i], error);
    }
    oct_context_destroy(context);
    return status;
}

/* ---- all candidates ----------------------------------------------------------------------------------------------------------------------------- */

static bool meets(const advise *a, const advise_candidate *c)
{
    /* The target holds for what the loss may well be, not only for what was measured. */
    const double most = isfinite(c->kl_interval.high) && c->kl_interval.high > c->kl ? c->kl_interval.high : c->kl;
    return (a->target.max_kl <= 0 || most <= a->target.max_kl) && (a->target.max_share <= 0 || c->share <= a->target.max_share) && !isnan(c->kl);
}

static oct_status weigh(advise *a, advise_candidate *c, oct_error *error)
{
    octe_kv_capacity capacity;
    const octe_kv_config kv = advise_config(a, c);
    const oct_status status = octe_kv_capacity_get(a->model, &kv, &capacity, error);
    c->bytes_per_token = capacity.bytes_per_token;
    c->share = (double)capacity.bytes_per_token / (double)a->base.bytes_per_token;
    return status;
}

static oct_status judge_one(advise *a, advise_candidate *c, oct_error *error)
{
    const octe_kv_config kv = advise_config(a, c);
    const oct_status status = judge(a, &kv, &c->kl, &c->kl_interval, &c->same_top, error);
    c->meets = status == OCT_OK && meets(a, c);
    return status;
}

oct_status advise_judge_all(advise *a, oct_error *error)
{
    oct_status status = OCT_OK;
    for (uint32_t i = 0; i < a->n_candidates && status == OCT_OK; i++) {
        advise_candidate *const c = &a->candidates[i];
        oct_error why = OCT_ERROR_INIT;
        c->kl = c->same_top = c->seconds = (double)NAN;
        /* A model's dims may forbid a format (v4 wants blocks of 32). */
        if (weigh(a, c, &why) != OCT_OK) {
            c->is_refused = true;
            (void)snprintf(c->why, sizeof(c->why), "%.190s", why.text);
        }
        if (!c->is_refused) {
            status = compare_scales_calibrate(&a->scales, &c->format, 1, a->model, a->vocab, a->n_threads, a->n_tokens, error);
        }
    }
    if (status == OCT_OK) {
        status = ask_machines(a, error);
    }
    for (uint32_t i = 0; i < a->n_candidates && status == OCT_OK; i++) {
        if (!a->candidates[i].is_refused) {
            app_progress_say(a->progress, a->candidates[i].name);
            status = judge_one(a, &a->candidates[i], error);
        }
    }
    a->base.meets = a->target.max_share <= 0 || a->target.max_share >= 1;
    return status;
}

/* ---- choosing ------------------------------------------------------------------------------------------------------------------------------------ */

/* What a candidate costs: the time of a decode on the machine that was asked for, else bytes. */
static double cost(const advise *a, const advise_candidate *c)
{
    return a->target.machine != NULL && !isnan(c->seconds) ? c->seconds : (double)c->bytes_per_token;
}

/* Negative: the first is the better choice of two that both meet the target. */
static int compare_choice(const advise *a, const advise_candidate *x, const advise_candidate *y)
{
    /* A loss is sought as small as possible where only the size was given, else the cheapest. */
    if (a->target.max_kl <= 0 && a->target.machine == NULL && x->kl != y->kl) {
        return x->kl < y->kl ? -1 : 1;
    }
    const double p = cost(a, x), q = cost(a, y);
    if (fabs(p - q) > 1e-3 * (p < q ? p : q)) {
        return p < q ? -1 : 1;
    }
    return x->bytes_per_token != y->bytes_per_token ? (x->bytes_per_token < y->bytes_per_token ? -1 : 1) : (x->kl > y->kl) - (x->kl < y->kl);
}

static advise_candidate *best_of(advise *a)
{
    advise_candidate *best = a->base.meets ? &a->base : NULL;
    for (uint32_t i = 0; i < a->n_candidates; i++) {
        advise_candidate *const c = &a->candidates[i];
        if (!c->is_refused && c->meets && (best == NULL || compare_choice(a, c, best) < 0)) {
            best = c;
        }
    }
    return best;
}

static void name_mixed(const advise_candidate *parent, const octe_kv_layer_format *layers, const octe_kv_layer_format *wide, uint32_t n_layers, advise_candidate *mixed)
{
    int n = snprintf(mixed->name, sizeof(mixed->name), "%s, in f16:", parent->name);
    for (uint32_t il = 0; il < n_layers; il++) {
        if (octe_kv_layer_format_same(&layers[il], wide) && n > 0 && (size_t)n + 10 < sizeof(mixed->name)) {
            n += snprintf(mixed->name + n, sizeof(mixed->name) - (size_t)n, " %u", il);
        }
    }
}

/* parent with the n costliest layers of `order` in 16 bits, judged. */
static oct_status try_mixed(advise *a, const advise_candidate *parent, const eval_alone *order, uint32_t n, advise_candidate *mixed, oct_error *error)
{
    const uint32_t n_layers = octe_model_info_get(a->model)->n_layers;
    const octe_kv_layer_format wide = { a->base.format.k, a->base.format.v };
    if (mixed->layers == NULL) {
        *mixed = *parent;
        mixed->layers = calloc(n_layers, sizeof(*mixed->layers));
        if (mixed->layers == NULL) {
            return oct__error_set(error, OCT_OUT_OF_MEMORY, where, "out of memory");
        }
    }
    for (uint32_t il = 0; il < n_layers; il++) {
        mixed->layers[il] = (octe_kv_layer_format){ parent->format.k, parent->format.v };
    }
    for (uint32_t i = 0; i < n; i++) {
        mixed->layers[order[i].layer] = wide;
    }
    mixed->n_kept = n;
    mixed->seconds = (parent->seconds * (n_layers - n) + a->base.seconds * n) / n_layers;
    name_mixed(parent, mixed->layers, &wide, n_layers, mixed);
    const oct_status status = weigh(a, mixed, error);
    return status == OCT_OK ? judge_one(a, mixed, error) : status;
}

/* The layers of a candidate by what each costs alone. */
static oct_status order_layers(advise *a, const advise_candidate *c, eval_inside **inside, oct_error *error)
{
    const eval_inside_wanted wanted = { .format = 0, .kv = advise_config(a, c), .sensitivity = true };
    const eval_inside_options o = { .model = a->model, .tokens = a->tokens, .n_tokens = a->n_tokens, .n_threads = a->n_threads, .quick = true, .base = advise_config(a, &a->base), .rates = a->rates };
    return app_interrupted() ? oct__error_set(error, OCT_CANCELLED, where, "stopped") : eval_inside_measure(&o, &wanted, 1, inside, error);
}

/* The fewest kept layers that meet the loss, or (without a loss) as many as the size allows. Nothing is added where that can't win over `best`. */
static oct_status mix(advise *a, const advise_candidate *parent, const advise_candidate *best, oct_error *error)
{
    const uint32_t n_layers = octe_model_info_get(a->model)->n_layers;
    const double step = (1 - parent->share) / n_layers;   /* a layer's bytes, in shares */
    const double most_share = a->target.max_share > 0 && (best == NULL || a->target.max_kl <= 0) ? a->target.max_share : best != NULL ? best->share : 1;
    uint32_t most = step > 0 ? (uint32_t)floor((most_share - parent->share) / step + 1e-9) : 0;
    most = most < n_layers ? most : n_layers - 1;
    /* As dear as the best there is: no win. */
    if (most > 0 && a->target.max_kl > 0 && best != NULL && parent->share + most * step >= best->share - 1e-9) {
        most--;
    }
    if (most == 0 || a->n_candidates == ADVISE_MAX_CANDIDATES) {
        return OCT_OK;
    }
    eval_inside *inside = NULL;
    app_progress_say(a->progress, "one layer at a time");
    oct_status status = order_layers(a, parent, &inside, error);
    advise_candidate mixed = { .layers = NULL }, last = { .layers = NULL };
    uint32_t low = 1, high = most;
    while (status == OCT_OK && low <= high) {
        /* Without a loss to meet, all that fit; else the fewest, by halving. */
        const uint32_t n = a->target.max_kl > 0 && last.layers == NULL && low == 1 && high == most ? most : a->target.max_kl > 0 ? (low + high) / 2 : most;
        status = try_mixed(a, parent, inside->sensitivities[0].alone, n, &mixed, error);
        if (status != OCT_OK || a->target.max_kl <= 0 || !mixed.meets) {
            if (n == most) {
                break;   /* not even with all that would pay, or nothing to seek */
            }
            low = n + 1;
            continue;
        }
        free(last.layers);
        last = mixed;
        mixed.layers = NULL;
        high = n - 1;
    }
    eval_inside_free(inside);
    if (last.layers == NULL && mixed.layers != NULL && status == OCT_OK) {
        last = mixed;
        mixed.layers = NULL;
    }
    free(mixed.layers);
    if (last.layers != NULL && status == OCT_OK) {
        a->candidates[a->n_candidates++] = last;
    } else {
        free(last.layers);
    }
    return status;
}

/* Candidates that might win with some layers in 16 bits: too lossy as they are, and small enough. */
static bool may_mix(const advise *a, const advise_candidate *c, const advise_candidate *best)
{
    const bool small = best == NULL || c->share < best->share - 1e-9 || a->target.max_kl <= 0;
    return !c->is_refused && c->layers == NULL && !isnan(c->kl) && small && (a->target.max_kl > 0 ? !c->meets && c->kl <= 100 * a->target.max_kl : c->meets);
}

static void explain_choice(advise *a, const advise_candidate *chosen)
{
    for (uint32_t i = 0; i < a->n_candidates; i++) {
        advise_candidate *const c = &a->candidates[i];
        const double most = isfinite(c->kl_interval.high) && c->kl_interval.high > c->kl ? c->kl_interval.high : c->kl;
        if (c == chosen || c->is_refused) {
            continue;
        }
        if (isnan(c->kl)) {
            (void)snprintf(c->why, sizeof(c->why), "its loss is not a number");
        } else if (a->target.max_share > 0 && c->share > a->target.max_share) {
            (void)snprintf(c->why, sizeof(c->why), "%.3f of the 16-bit cache's bytes, allowed are %.3f", c->share, a->target.max_share);
        } else if (a->target.max_kl > 0 && c->kl > a->target.max_kl) {
            (void)snprintf(c->why, sizeof(c->why), "loses %.2e, allowed is %.2e", c->kl, a->target.max_kl);
        } else if (a->target.max_kl > 0 && most > a->target.max_kl) {
            (void)snprintf(c->why, sizeof(c->why), "may lose %.2e (95 %%), allowed is %.2e", most, a->target.max_kl);
        } else if (chosen == NULL) {
            (void)snprintf(c->why, sizeof(c->why), "no target to meet");
        } else if (a->target.max_kl <= 0 && a->target.machine == NULL) {
            const bool apart = chosen->kl_interval.high < c->kl_interval.low;
            (void)snprintf(c->why, sizeof(c->why), "loses %.2g times as much%s", c->kl / chosen->kl, apart ? "" : "; the intervals overlap");
        } else if (a->target.machine != NULL && c->seconds > chosen->seconds * 1.001) {
            (void)snprintf(c->why, sizeof(c->why), "a decode takes %.2f times as long on %s (predicted)", c->seconds / chosen->seconds, a->target.machine);
        } else if (c->bytes_per_token > chosen->bytes_per_token) {
            (void)snprintf(c->why, sizeof(c->why), "%.1f %% more bytes", 100 * ((double)c->bytes_per_token / (double)chosen->bytes_per_token - 1));
        } else {
            (void)snprintf(c->why, sizeof(c->why), "as cheap, loses %.2e", c->kl);
        }
    }
}

oct_status advise_choose(advise *a, advise_candidate **chosen, oct_error *error)
{
    oct_status status = OCT_OK;
    const uint32_t n = a->n_candidates;
    bool tried[ADVISE_MAX_CANDIDATES] = { false };
    for (uint32_t round = 0; round < MOST_MIXED && status == OCT_OK; round++) {
        const advise_candidate *const best = best_of(a);
        uint32_t next = n;
        for (uint32_t i = 0; i < n; i++) {
            const advise_candidate *const c = &a->candidates[i];
            /* The least lossy first: it needs the fewest layers. */
            if (!tried[i] && may_mix(a, c, best) && (next == n || c->kl < a->candidates[next].kl)) {
                next = i;
            }
        }
        if (next == n) {
            break;
        }
        tried[next] = true;
        status = mix(a, &a->candidates[next], best, error);
    }
    *chosen = status == OCT_OK ? best_of(a) : NULL;
    if (*chosen != NULL) {
        (*chosen)->is_chosen = true;
        (void)snprintf((*chosen)->why, sizeof((*chosen)->why), a->target.max_kl <= 0 && a->target.machine == NULL ? "the least loss within the bytes" : "the cheapest that meets the target");
    }
    if (status == OCT_OK) {
        explain_choice(a, *chosen);
    }
    return status;
}

/* ---- the file -------------------------------------------------------------------------------------------------------------------------------------- */

/* As much as the formats read: layers, heads, channels. */
static oct_status copy_scales(const octe_scales *all, const oct_kv_format *k, const oct_kv_format *v, octe_scales *scales, oct_error *error)
{
    const bool channels = k->scale_mode == OCT_SCALE_CHANNEL || v->scale_mode == OCT_SCALE_CHANNEL, heads = channels || k->scale_mode == OCT_SCALE_LAYER_HEAD || v->scale_mode == OCT_SCALE_LAYER_HEAD;
    const oct_status status = octe_scales_create(scales, all->n_layers, heads ? all->n_heads : 0, channels ? all->dim : 0, error);
    for (int side = 0; side < 2 && status == OCT_OK; side++) {
        scales->rotated[side] = all->rotated[side];
        memcpy(scales->layer[side], all->layer[side], all->n_layers * sizeof(float));
        if (heads) {
            memcpy(scales->head[side], all->head[side], (size_t)all->n_layers * all->n_heads * sizeof(float));
        }
        if (channels) {
            memcpy(scales->channel[side], all->channel[side], (size_t)all->n_layers * all->n_heads * all->dim * sizeof(float));
        }
    }
    if (status == OCT_OK) {
        memcpy(scales->model_type, all->model_type, sizeof(scales->model_type));
        scales->dtype = all->dtype;
        scales->layer_split = all->layer_split;
    }
    return status;
}

oct_status advise_scales(advise *a, const advise_candidate *chosen, octe_scales *scales, oct_error *error)
{
    const uint32_t n_layers = octe_model_info_get(a->model)->n_layers;
    octe_scales measured = { 0 };
    const octe_scales *all = compare_format_needs_scales(&chosen->format) ? compare_scales_of(&a->scales, &chosen->format) : NULL;
    octe_kv_layer_format *const layers = calloc(n_layers, sizeof(*layers));
    oct_status status = layers != NULL ? OCT_OK : oct__error_set(error, OCT_OUT_OF_MEMORY, where, "out of memory");
    *scales = (octe_scales){ 0 };
    if (status == OCT_OK && all == NULL) {
        /* Others who read the file want numbers by layer, whatever we keep. */
        int32_t *tokens = NULL;
        uint32_t n = 0;
        const octe_calibrate_options options = { .n_threads = a->n_threads, .chunk_tokens = a->n_tokens };
        status = app_text_tokens(a->vocab, APP_TEXT_BUILT_IN, APP_CHRONICLE_CALIBRATION, CALIBRATION_TOKENS, &tokens, &n, error);
        if (status == OCT_OK) {
            status = octe_calibrate(a->model, tokens, n, &options, &measured, error);
        }
        free(tokens);
        all = &measured;
    }
    if (status == OCT_OK) {
        status = copy_scales(all, &chosen->format.k, &chosen->format.v, scales, error);
    }
    for (uint32_t il = 0; il < n_layers && status == OCT_OK; il++) {
        layers[il] = chosen->layers != NULL ? chosen->layers[il] : (octe_kv_layer_format){ chosen->format.k, chosen->format.v };
    }
    if (status == OCT_OK) {
        status = octe_scales_set_formats(scales, layers, error);
    }
    free(layers);
    octe_scales_free(&measured);
    if (status != OCT_OK) {
        octe_scales_free(scales);
    }
    return status;
}

void advise_end(advise *a)
{
    for (uint32_t i = 0; i < a->n_candidates; i++) {
        free(a->candidates[i].layers);
    }
    free(a->logits);
    compare_scales_free(&a->scales);
}
