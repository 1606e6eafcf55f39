/* calibrate.c: see calibrate.h. The amax is taken from what the cache really holds, so that rotation and RoPE are in it without a second
 * implementation of either. */
#include "engine/calibrate.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/report.h"

/* Below this a scale would only turn rounding noise into full range; also what the dynamic scales are floored at. */
#define SCALE_FLOOR 1e-6f

enum { DEFAULT_CHUNK = 2048, DEFAULT_ROWS = 512 };

typedef struct calibration {
    const octe_model_info *info;
    octe_engine *engine;
    octe_scales *scales;              /* holds amax while running */
    float largest;                    /* of the format */
} calibration;

static float largest_finite(uint32_t dtype)
{
    switch (dtype) {
    case OCT_DTYPE_E4M3FN:
        return 448.0f;
    case OCT_DTYPE_E4M3FNUZ:
        return 240.0f;
    case OCT_DTYPE_E5M2:
        return 57344.0f;
    case OCT_DTYPE_I8:
        return 127.0f;
    default:
        return 0.0f;
    }
}

/* One stored token of one layer and side: f32, NHD. */
static oct_status take(calibration *c, uint32_t il, int which, uint32_t position)
{
    const uint32_t dim = c->info->head_dim, n_heads = c->info->n_heads_kv;
    oct_kv_layer view = {.struct_size = sizeof(view)};
    int32_t slot;
    oct_status s = octe_engine_stored(c->engine, il, 0, position, &view, &slot);
    if (s != OCT_OK || slot < 0) {
        return s != OCT_OK ? s : OCT_UNSUPPORTED;
    }
    const float *base = which == 0 ? view.k : view.v;
    const int64_t page_stride = which == 0 ? view.k_page_stride : view.v_page_stride, token_stride = which == 0 ? view.k_token_stride : view.v_token_stride,
                  head_stride = which == 0 ? view.k_head_stride : view.v_head_stride;
    const float *token = base + slot / (int32_t)view.spec.page_size * page_stride + slot % (int32_t)view.spec.page_size * token_stride;
    for (uint32_t h = 0; h < n_heads; h++) {
        float *channels = c->scales->channel[which] + ((size_t)il * n_heads + h) * dim;
        for (uint32_t d = 0; d < dim; d++) {
            const float x = fabsf(token[h * head_stride + d]);
            if (!isfinite(x)) {
                return OCT_BAD_DATA;
            }
            channels[d] = fmaxf(channels[d], x);
        }
    }
    return OCT_OK;
}

/* Tokens first .. first + n - 1 of sequence 0, just written and still in every window's pages. */
static oct_status take_step(calibration *c, uint32_t first, uint32_t n, oct_error *error)
{
    for (uint32_t il = 0; il < c->info->n_layers; il++) {
        for (uint32_t i = 0; i < n; i++) {
            for (int which = 0; which < 2; which++) {
                const oct_status s = take(c, il, which, first + i);
                if (s != OCT_OK) {
                    return octe__report(error, s, "octe_calibrate", c->info->path, "%s of layer %u, token %u can't be measured: it is %s", which == 0 ? "K" : "V", il, first + i,
                                        s == OCT_BAD_DATA ? "not finite" : "not kept after its step (a window of 1)");
                }
            }
        }
    }
    return OCT_OK;
}

static oct_status run(calibration *c, const int32_t *tokens, uint32_t n_tokens, const octe_calibrate_options *o, uint32_t chunk, oct_error *error)
{
    /* After a step the window layers keep what the next token sees: itself and window - 1 tokens before it. */
    const uint32_t window = c->info->window_tokens;
    const uint32_t rows = window > 1 && window - 1 < DEFAULT_ROWS ? window - 1 : DEFAULT_ROWS;
    oct_status s = OCT_OK;
    for (uint32_t done = 0; done < n_tokens && s == OCT_OK;) {
        const uint32_t at = octe_engine_length(c->engine, 0);
        uint32_t n = n_tokens - done < rows ? n_tokens - done : rows;
        n = n < chunk - at ? n : chunk - at;
        const octe_part part = {.sequence = 0, .n_tokens = n, .tokens = tokens + done, .n_logits = 0};
        s = octe_engine_step(c->engine, &part, 1, NULL, error);
        if (s == OCT_OK) {
            s = take_step(c, at, n, error);
        }
        done += n;
        if (s == OCT_OK && at + n == chunk) {
            s = octe_engine_free(c->engine, 0, error);
        }
        if (s == OCT_OK && o != NULL && o->progress != NULL && !o->progress(o->user, done, n_tokens)) {
            s = octe__report(error, OCT_CANCELLED, "octe_calibrate", c->info->path, "stopped after %u of %u tokens", done, n_tokens);
        }
    }
    return s;
}

/* amax of channels into scales of channels, heads and layers. */
static void finish(calibration *c)
{
    octe_scales *sc = c->scales;
    for (int which = 0; which < 2; which++) {
        for (uint32_t il = 0; il < sc->n_layers; il++) {
            float by_layer = SCALE_FLOOR;
            for (uint32_t h = 0; h < sc->n_heads; h++) {
                const size_t head = (size_t)il * sc->n_heads + h;
                float by_head = SCALE_FLOOR;
                for (uint32_t d = 0; d < sc->dim; d++) {
                    float *channel = &sc->channel[which][head * sc->dim + d];
                    *channel = fmaxf(*channel / c->largest, SCALE_FLOOR);
                    by_head = fmaxf(by_head, *channel);
                }
                sc->head[which][head] = by_head;
                by_layer = fmaxf(by_layer, by_head);
            }
            sc->layer[which][il] = by_layer;
        }
    }
}

static oct_status open_engine(calibration *c, const octe_model *model, const octe_calibrate_options *o, uint32_t chunk, oct_error *error)
{
    octe_engine_options options;
    octe_engine_options_init(&options);
    options.n_threads = o != NULL ? o->n_threads : 0;
    options.max_context_tokens = chunk;
    options.max_step_rows = chunk < DEFAULT_ROWS ? chunk : DEFAULT_ROWS;
    options.max_step_logits = 1;
    options.kv.k = (oct_kv_format){.dtype = OCT_DTYPE_F32, .rotated = o != NULL && o->rotate[0]};
    options.kv.v = (oct_kv_format){.dtype = OCT_DTYPE_F32, .rotated = o != NULL && o->rotate[1]};
    return octe_engine_open(model, &options, &c->engine, error);
}

oct_status octe_calibrate(const octe_model *model, const int32_t *tokens, uint32_t n_tokens, const octe_calibrate_options *o, octe_scales *scales, oct_error *error)
{
    static const char where[] = "octe_calibrate";
    *scales = (octe_scales){0};
    const uint32_t dtype = o != NULL && o->dtype != 0 ? o->dtype : (uint32_t)OCT_DTYPE_E4M3FN;
    calibration c = {.info = octe_model_info_get(model), .scales = scales, .largest = largest_finite(dtype)};
    if (tokens == NULL || n_tokens == 0 || c.largest == 0.0f) {
        return octe__report(error, OCT_INVALID_ARGUMENT, where, c.info->path, "%u tokens and format %u; must be at least 1, and an 8-bit format", tokens == NULL ? 0 : n_tokens,
                            dtype);
    }
    uint32_t chunk = o != NULL && o->chunk_tokens != 0 ? o->chunk_tokens : DEFAULT_CHUNK;
    chunk = chunk < c.info->n_ctx_train ? chunk : c.info->n_ctx_train;
    oct_status s = octe_scales_create(scales, c.info->n_layers, c.info->n_heads_kv, c.info->head_dim, error);
    if (s != OCT_OK) {
        return s;
    }
    for (int which = 0; which < 2; which++) {
        memset(scales->channel[which], 0, (size_t)scales->n_layers * scales->n_heads * scales->dim * sizeof(float));
        scales->rotated[which] = o != NULL && o->rotate[which];
    }
    scales->dtype = dtype;
    scales->layer_split = true;
    strncpy(scales->model_type, c.info->model_type, sizeof(scales->model_type) - 1);
    s = open_engine(&c, model, o, chunk, error);
    if (s == OCT_OK) {
        s = run(&c, tokens, n_tokens, o, chunk, error);
    }
    octe_engine_close(c.engine);
    if (s != OCT_OK) {
        octe_scales_free(scales);
        return s;
    }
    finish(&c);
    return OCT_OK;
}
