/* kv_config.c: see kv_config.h. */
#include "engine/kv_config.h"

#include <stdio.h>
#include <string.h>

#include "engine/cache.h"
#include "engine/report.h"

/* One row: what --kv-cache-dtype calls it, and the two sides in the words of octe_kv_format_from_name. */
typedef struct row {
    const char *name, *k, *v;
} row;

static const row rows[] = {
    {"auto", "f16", "f16"},
    {"bf16", "bf16", "bf16"},
    {"f16", "f16", "f16"},
    {"f32", "f32", "f32"},
    {"fp8", "e4m3fn", "e4m3fn"},
    {"fp8_e4m3", "e4m3fn", "e4m3fn"},
    {"fp8_e5m2", "e5m2", "e5m2"},
    {"fp8_e4m3fnuz", "e4m3fnuz", "e4m3fnuz"},
    {"fp8_per_token_head", "e4m3fn:token", "e4m3fn:token"},
    {"int8_per_token_head", "i8:token", "i8:token"},
    {"int8_rotated", "i8:token+rot", "i8:token"},
    {"int8_v4", "i8:token+rot", "v4+rot"},
};

enum { N_ROWS = sizeof(rows) / sizeof(rows[0]) };

typedef struct granularity {
    const char *suffix;
    uint32_t mode, scale_dtype;
} granularity;

static const granularity granularities[] = {
    {"", OCT_SCALE_NONE, 0},
    {":tensor", OCT_SCALE_TENSOR, 0},
    {":layer", OCT_SCALE_LAYER, 0},
    {":head", OCT_SCALE_LAYER_HEAD, 0},
    {":channel", OCT_SCALE_CHANNEL, 0},
    {":token", OCT_SCALE_TOKEN_HEAD, OCT_DTYPE_F16},
    {":token32", OCT_SCALE_TOKEN_HEAD, OCT_DTYPE_F32},
};

enum { N_GRANULARITIES = sizeof(granularities) / sizeof(granularities[0]) };

#define FORMAT_NAMES "f32 f16 bf16 e4m3fn (e4m3) e4m3fnuz e5m2 i8 v4 (V only), 8-bit ones with :tensor :layer :head :channel :token :token32, each with +rot"

static uint32_t dtype_of(const char *name, size_t n)
{
    char text[16] = "";
    if (n >= sizeof(text)) {
        return 0;
    }
    memcpy(text, name, n);
    return strcmp(text, "e4m3") == 0 ? (uint32_t)OCT_DTYPE_E4M3FN : oct_dtype_from_name(text);
}

/* The format of a name, or false. */
static bool parse(const char *name, oct_kv_format *format)
{
    const char *plus = strchr(name, '+');
    if (plus != NULL && strcmp(plus, "+rot") != 0) {
        return false;
    }
    const size_t n = plus != NULL ? (size_t)(plus - name) : strlen(name);
    const char *colon = memchr(name, ':', n);
    const size_t n_dtype = colon != NULL ? (size_t)(colon - name) : n;
    const uint32_t dtype = dtype_of(name, n_dtype);
    if (dtype == 0) {
        return false;
    }
    const bool wide = oct_dtype_size_bytes(dtype) != 1; /* or v4, whose scales are its own business */
    const char *suffix = name + n_dtype;
    size_t n_suffix = n - n_dtype;
    if (n_suffix == 0 && dtype == OCT_DTYPE_I8) {
        suffix = ":token";
        n_suffix = strlen(suffix);
    }
    for (int i = 0; i < N_GRANULARITIES; i++) {
        const granularity *g = &granularities[i];
        if (strlen(g->suffix) != n_suffix || memcmp(g->suffix, suffix, n_suffix) != 0) {
            continue;
        }
        const bool legal = wide ? g->mode == OCT_SCALE_NONE : dtype != OCT_DTYPE_I8 || g->mode == OCT_SCALE_TOKEN_HEAD || g->mode == OCT_SCALE_CHANNEL;
        *format = (oct_kv_format){.dtype = dtype, .scale_mode = g->mode, .scale_dtype = g->scale_dtype, .rotated = plus != NULL};
        return legal;
    }
    return false;
}

oct_status octe_kv_format_from_name(const char *name, oct_kv_format *format, oct_error *error)
{
    char quoted[OCTE__QUOTE_SIZE];
    if (name != NULL && parse(name, format)) {
        return OCT_OK;
    }
    return octe__report(error, OCT_INVALID_ARGUMENT, "octe_kv_format_from_name", NULL, "cache format '%s' is unknown; known are %s",
                        name != NULL ? octe__quote(quoted, name, strlen(name)) : "(null)", FORMAT_NAMES);
}

size_t octe_kv_format_name(const oct_kv_format *format, char *text, size_t size)
{
    const char *suffix = "?";
    for (int i = 0; i < N_GRANULARITIES; i++) {
        const granularity *g = &granularities[i];
        if (g->mode == format->scale_mode && (g->mode != OCT_SCALE_TOKEN_HEAD || g->scale_dtype == format->scale_dtype)) {
            suffix = g->suffix;
        }
    }
    const int n = snprintf(text, size, "%s%s%s", oct_dtype_name(format->dtype), suffix, format->rotated ? "+rot" : "");
    return n > 0 ? (size_t)n : 0;
}

bool octe_kv_format_is_static(const oct_kv_format *format)
{
    return format->scale_mode != OCT_SCALE_NONE && format->scale_mode != OCT_SCALE_TOKEN_HEAD;
}

octe_kv_layer_format octe_kv_config_layer(const octe_kv_config *config, uint32_t layer)
{
    return config->layers != NULL && layer < config->n_layers ? config->layers[layer] : (octe_kv_layer_format){config->k, config->v};
}

static bool same_side(const oct_kv_format *a, const oct_kv_format *b)
{
    return a->dtype == b->dtype && a->scale_mode == b->scale_mode && a->scale_dtype == b->scale_dtype && a->rotated == b->rotated;
}

bool octe_kv_layer_format_same(const octe_kv_layer_format *a, const octe_kv_layer_format *b) { return same_side(&a->k, &b->k) && same_side(&a->v, &b->v); }

void octe_kv_config_set_layers(octe_kv_config *config, const octe_kv_layer_format *layers, uint32_t n_layers)
{
    uint32_t most = 0;
    config->layers = layers;
    config->n_layers = n_layers;
    for (uint32_t i = 0; i < n_layers; i++) {
        uint32_t n = 0;
        for (uint32_t j = 0; j < n_layers; j++) {
            n += octe_kv_layer_format_same(&layers[i], &layers[j]);
        }
        if (n > most) {
            most = n;
            config->k = layers[i].k;
            config->v = layers[i].v;
        }
    }
}

bool octe_kv_config_is_static(const octe_kv_config *config, int side)
{
    const uint32_t n = config->layers != NULL ? config->n_layers : 1;
    for (uint32_t il = 0; il < n; il++) {
        const octe_kv_layer_format f = octe_kv_config_layer(config, il);
        if (octe_kv_format_is_static(side == 0 ? &f.k : &f.v)) {
            return true;
        }
    }
    return false;
}

const char *octe_kv_config_name(uint32_t index) { return index < N_ROWS ? rows[index].name : NULL; }

oct_status octe_kv_config_from_name(const char *name, octe_kv_config *config, oct_error *error)
{
    for (int i = 0; i < N_ROWS && name != NULL; i++) {
        if (strcmp(rows[i].name, name) == 0) {
            *config = (octe_kv_config){.layout = OCT_LAYOUT_NHD, .page_size = OCTE__PAGE_SIZE};
            return parse(rows[i].k, &config->k) && parse(rows[i].v, &config->v)
                       ? OCT_OK
                       : octe__report(error, OCT_INVALID_ARGUMENT, "octe_kv_config_from_name", NULL, "cache type '%s' is not built", name);
        }
    }
    char known[256] = "", quoted[OCTE__QUOTE_SIZE];
    for (int i = 0; i < N_ROWS; i++) {
        strncat(known, i > 0 ? " " : "", sizeof(known) - strlen(known) - 1);
        strncat(known, rows[i].name, sizeof(known) - strlen(known) - 1);
    }
    return octe__report(error, OCT_INVALID_ARGUMENT, "octe_kv_config_from_name", NULL, "cache type '%s' is unknown; known are %s",
                        name != NULL ? octe__quote(quoted, name, strlen(name)) : "(null)", known);
}

oct_status octe_kv_capacity_get(const octe_model *model, const octe_kv_config *config, octe_kv_capacity *capacity, oct_error *error)
{
    const octe_model_info *info = octe_model_info_get(model);
    uint64_t page[OCTE__GROUPS] = {0, 0};   /* of all layers of a group */
    uint32_t page_size = 1;
    for (uint32_t il = 0; il < info->n_layers; il++) {
        oct_kv_spec spec;
        const oct_status s = octe__kv_spec(info, config, il, &spec, error);
        if (s != OCT_OK) {
            return s;
        }
        page_size = spec.page_size;
        page[octe_model_layer_has_window(model, il) ? OCTE__WINDOW : OCTE__FULL] += oct_kv_page_bytes(&spec);
    }
    /* Every part of a page is so many bytes a token: the division is exact. */
    const uint64_t gib = (uint64_t)1 << 30, full = page[OCTE__FULL], window = page[OCTE__WINDOW];
    *capacity = (octe_kv_capacity){
        .bytes_per_token_full = full / page_size,
        .bytes_per_token_window = window / page_size,
        .bytes_per_token = (full + window) / page_size,
    };
    const uint64_t pages_all = gib / (full + window);
    const uint64_t pages_window = window > 0 ? octe__window_pages(info->window_tokens, page_size) : 0;
    uint64_t pages = pages_all;
    if (window > 0 && pages_all > pages_window) {
        pages = full > 0 ? (gib - pages_window * window) / full : (uint64_t)INT32_MAX;
    }
    capacity->tokens_per_gib = (int64_t)(pages_all * page_size);
    capacity->tokens_per_gib_window = (int64_t)(pages * page_size);
    return OCT_OK;
}
