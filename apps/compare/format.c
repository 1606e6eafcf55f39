/* format.c: see format.h. */
#include "apps/compare/format.h"

#include <stdio.h>
#include <string.h>

#include "engine/reference.h"
#include "host/error.h"

static const char where[] = "octavo compare";

static const struct { const char *name, *label; } labels[] = {
    { "e4m3", "e4m3, scale 1" },
    { "e4m3:layer", "e4m3, layer scales" },
    { "e4m3:token", "e4m3, token×head" },
    { "e5m2", "e5m2, scale 1" },
    { "i8", "i8, token×head" },
    { "i8+rot/i8", "i8, K rotated *" },
    { "i8+rot/e4m3", "K i8 rotated, V e4m3" },
    { "f16/e4m3", "K f16, V e4m3" },
    { "bf16/e4m3", "K bf16, V e4m3" },
    { "llama:f16", "llama.cpp f16" },
    { "llama:q8_0", "llama.cpp q8_0" },
};

static const struct { const char *name; uint32_t cache; const char *scale_mode; } references[] = {
    { "f16", OCTE_REFERENCE_F16, "none" },
    { "f32", OCTE_REFERENCE_F32, "none" },
    { "bf16", OCTE_REFERENCE_BF16, "none" },
    { "q8_0", OCTE_REFERENCE_Q8_0, "block" },
};

static const char *scale_mode_name(uint32_t mode)
{
    static const char *const names[] = { "none", "tensor", "layer", "head", "token", "channel" };
    return mode < sizeof(names) / sizeof(names[0]) ? names[mode] : "unknown";
}

static oct_status parse_reference(const char *name, compare_format *format, oct_error *error)
{
    for (size_t i = 0; i < sizeof(references) / sizeof(references[0]); i++) {
        if (strcmp(name, references[i].name) == 0) {
            format->is_reference = true;
            format->reference_cache = references[i].cache;
            format->k_scale_mode = references[i].scale_mode;
            return OCT_OK;
        }
    }
    return oct__error_set(error, OCT_INVALID_ARGUMENT, where, "llama.cpp's cache '%.40s' is unknown; known are llama:f16 llama:f32 llama:bf16 llama:q8_0", name);
}

static oct_status parse_one(compare_format *format, oct_error *error)
{
    static const char prefix[] = "llama:";
    (void)snprintf(format->label, sizeof(format->label), "%.39s", format->name);
    for (size_t i = 0; i < sizeof(labels) / sizeof(labels[0]); i++) {
        if (strcmp(format->name, labels[i].name) == 0) {
            (void)snprintf(format->label, sizeof(format->label), "%s", labels[i].label);
        }
    }
    if (strncmp(format->name, prefix, sizeof(prefix) - 1) == 0) {
        return parse_reference(format->name + sizeof(prefix) - 1, format, error);
    }
    char k[sizeof(format->name)];
    (void)snprintf(k, sizeof(k), "%s", format->name);
    char *const slash = strchr(k, '/');
    if (slash != NULL) {
        *slash = '\0';
    }
    oct_status status = octe_kv_format_from_name(k, &format->k, error);
    octe_kv_config config;
    if (status != OCT_OK && slash == NULL && octe_kv_config_from_name(k, &config, NULL) == OCT_OK) {
        format->k = config.k;
        format->v = config.v;
        status = OCT_OK;
    } else if (status == OCT_OK) {
        status = octe_kv_format_from_name(slash != NULL ? slash + 1 : k, &format->v, error);
    }
    if (status == OCT_OK) {
        format->k_scale_mode = scale_mode_name(format->k.scale_mode);
    }
    return status;
}

oct_status compare_formats_parse(const char *list, compare_format *formats, uint32_t *n, oct_error *error)
{
    for (*n = 0;; list++) {
        const size_t length = strcspn(list, ",");
        if (*n == COMPARE_MAX_FORMATS) {
            return oct__error_set(error, OCT_INVALID_ARGUMENT, where, "more than %d cache formats", COMPARE_MAX_FORMATS);
        }
        compare_format *const format = &formats[*n];
        *format = (compare_format){ 0 };
        if (length == 0 || length >= sizeof(format->name)) {
            return oct__error_set(error, OCT_INVALID_ARGUMENT, where, "'%.*s' is no cache format", (int)(length < 60 ? length : 60), list);
        }
        memcpy(format->name, list, length);
        const oct_status status = parse_one(format, error);
        if (status != OCT_OK) {
            return status;
        }
        if (*n == 0 && format->is_reference) {
            return oct__error_set(error, OCT_INVALID_ARGUMENT, where, "the first format is what the others are judged against and must be ours, not '%s'", format->name);
        }
        for (uint32_t i = 0; i < *n; i++) {
            if (strcmp(formats[i].name, format->name) == 0) {
                return oct__error_set(error, OCT_INVALID_ARGUMENT, where, "the format '%s' is given twice", format->name);
            }
        }
        ++*n;
        list += length;
        if (*list == '\0') {
            return OCT_OK;
        }
    }
}

bool compare_format_needs_scales(const compare_format *format)
{
    return !format->is_reference && (octe_kv_format_is_static(&format->k) || octe_kv_format_is_static(&format->v));
}
