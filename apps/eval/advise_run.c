/* advise_run.c: what candidates cost and lose, and the file of the choice; see advise.h. advise_choose.c chooses. */
#include "apps/eval/advise.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "apps/chronicle.h"
#include "apps/compare/divergence.h"
#include "apps/eval/statistics.h"
#include "apps/interrupt.h"
#include "apps/texts.h"
#include "engine/calibrate.h"
#include "host/error.h"

static const char where[] = "octavo advise";

enum { SEED = 1, CALIBRATION_TOKENS = 1024 };

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
    octe_kv_capacity capacity = { 0 };
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
        if (status == OCT_OK && isnan(a->floor)) {
            /* Else the base would win: it is not held against itself. */
            status = oct__error_set(error, OCT_BAD_DATA, where, "with a 16-bit cache the model's logits are not all numbers: nothing can be judged against it");
        }
    }
    return status;
}

/* ---- the target machine ---------------------------------------------------------------------------------------------------------------------- */

static void copy_name(char *to, size_t size, const json_t *from)
{
    (void)snprintf(to, size, "%s", json_is_string(from) ? json_string_value(from) : "");
}

/* The kernel that a plan's explanation has chosen for a decode, its predicted time, and by whose rates. */
static void read_choice(const char *json, advise *a, advise_candidate *c)
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
    const char *const device = json_string_value(json_object_get(root, "device"));
    copy_name(a->machine_name, sizeof(a->machine_name), json_object_get(root, device != NULL && device[0] != '\0' ? "device" : "cpu"));
    copy_name(a->rates_name, sizeof(a->rates_name), json_object_get(root, "rates"));
    a->decode_rows = json_integer_value(json_object_get(operation, "rows"));
    a->decode_keys = json_integer_value(json_object_get(operation, "keys"));
    json_decref(root);
}

/* Which kernel decodes this format there; refused when none does. */
static oct_status ask_machine(advise *a, oct_context *context, advise_candidate *c, oct_error *error)
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
        /* The first kernel's reason: the others' are like it. Of a spec that nobody takes there is one. */
        const int n = (int)(status == OCT_UNSUPPORTED ? strcspn(why.text, ";") : strlen(why.text));
        (void)snprintf(c->why, sizeof(c->why), "no kernel for it there: %.*s", n < 280 ? n : 280, why.text);
        return status == OCT_OUT_OF_MEMORY ? oct__error_set(error, status, where, "%s", why.text) : OCT_OK;
    }
    const size_t size = oct_plan_explain(plan, OCT_TEXT_JSON, NULL, 0) + 1;
    char *const json = malloc(size);
    if (json != NULL) {
        (void)oct_plan_explain(plan, OCT_TEXT_JSON, json, size);
        read_choice(json, a, c);
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
    octe_kv_capacity capacity = { 0 };
    const octe_kv_config kv = advise_config(a, c);
    const oct_status status = octe_kv_capacity_get(a->model, &kv, &capacity, error);
    c->bytes_per_token = capacity.bytes_per_token;
    c->share = (double)capacity.bytes_per_token / (double)a->base.bytes_per_token;
    return status;
}

oct_status advise_judge_one(advise *a, advise_candidate *c, oct_error *error)
{
    const octe_kv_config kv = advise_config(a, c);
    oct_status status = weigh(a, c, error);
    if (status == OCT_OK) {
        status = judge(a, &kv, &c->kl, &c->kl_interval, &c->same_top, error);
    }
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
            status = advise_judge_one(a, &a->candidates[i], error);
        }
    }
    a->base.meets = a->target.max_share <= 0 || a->target.max_share >= 1;
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
