/* cache_flags.c: see cache_flags.h. */
#include "apps/cache_flags.h"

#include <stdio.h>
#include <string.h>

#include "apps/output.h"

/* An 8-bit float whose scale is 1 for want of a better one. */
static bool wants_scale(const oct_kv_format *format)
{
    return format->scale_mode == OCT_SCALE_NONE && oct_dtype_size_bytes(format->dtype) == 1;
}

static int take_side(const app_command *command, const char *flag, const char *name, oct_kv_format *format)
{
    oct_error error = OCT_ERROR_INIT;
    if (name == NULL || octe_kv_format_from_name(name, format, &error) == OCT_OK) {
        return APP_OK;
    }
    return app_arguments_complain(command, "%s: %s", flag, error.text);
}

/* A file that says what each layer is kept in, when nothing else was said. *taken: it did. */
static int take_layers(const app_cache_flags *flags, octe_kv_config *config, octe_scales *scales, bool *taken)
{
    oct_error error = OCT_ERROR_INIT;
    *taken = false;
    if (flags->scales == NULL || flags->dtype != NULL || flags->k != NULL || flags->v != NULL) {
        return APP_OK;
    }
    if (octe_scales_read(flags->scales, OCTE_SCALES_ALL_RANKS, scales, &error) != OCT_OK) {
        return app_output_error(&error);
    }
    if (scales->formats == NULL) {
        octe_scales_free(scales);
        return APP_OK;
    }
    octe_kv_config_set_layers(config, scales->formats, scales->n_layers);
    config->scales = scales;
    *taken = true;
    return APP_OK;
}

/* The scales of a file, or the one number of --k-scale, --v-scale. */
static int take_scales(const app_command *command, const app_cache_flags *flags, octe_kv_config *config, octe_scales *scales)
{
    oct_kv_format *const format[2] = { &config->k, &config->v };
    const float fixed[2] = { flags->k_scale, flags->v_scale };
    static const char *const flag[2] = { "--k-scale", "--v-scale" };
    bool used = false;
    for (int side = 0; side < 2; side++) {
        if (flags->scales != NULL && fixed[side] > 0) {
            return app_arguments_complain(command, "%s and --kv-scales exclude each other", flag[side]);
        }
        if (wants_scale(format[side]) && (flags->scales != NULL || fixed[side] > 0)) {
            format[side]->scale_mode = flags->scales != NULL ? OCT_SCALE_LAYER : OCT_SCALE_TENSOR;
        }
        const bool is_static = octe_kv_format_is_static(format[side]);
        used |= is_static;
        if (is_static && flags->scales == NULL && !(fixed[side] > 0)) {
            return app_arguments_complain(command, "the format of %c needs scales: give --kv-scales FILE or %s", "KV"[side], flag[side]);
        }
        if (!is_static && fixed[side] > 0) {
            return app_arguments_complain(command, "%s: the format of %c takes no fixed scale", flag[side], "KV"[side]);
        }
    }
    config->k_scale = flags->k_scale;
    config->v_scale = flags->v_scale;
    if (flags->scales == NULL) {
        return APP_OK;
    }
    if (!used) {
        return app_arguments_complain(command, "--kv-scales: neither K nor V is kept in a format with calibrated scales");
    }
    oct_error error = OCT_ERROR_INIT;
    if (octe_scales_read(flags->scales, OCTE_SCALES_ALL_RANKS, scales, &error) != OCT_OK) {
        return app_output_error(&error);
    }
    config->scales = scales;
    return APP_OK;
}

int app_cache_config(const app_command *command, const app_cache_flags *flags, octe_kv_config *config, octe_scales *scales)
{
    static const struct { const char *name; uint32_t layout; } layouts[] = { { "nhd", OCT_LAYOUT_NHD }, { "hnd", OCT_LAYOUT_HND }, { "v5d", OCT_LAYOUT_V5D } };
    *scales = (octe_scales){ 0 };
    *config = (octe_kv_config){ 0 };
    oct_error error = OCT_ERROR_INIT;
    if (octe_kv_config_from_name(flags->dtype != NULL ? flags->dtype : "auto", config, &error) != OCT_OK) {
        return app_arguments_complain(command, "--kv-cache-dtype: %s", error.text);
    }
    int code = take_side(command, "-ctk", flags->k, &config->k);
    if (code == APP_OK) {
        code = take_side(command, "-ctv", flags->v, &config->v);
    }
    for (size_t i = 0; flags->layout != NULL && i < sizeof(layouts) / sizeof(layouts[0]); i++) {
        if (strcmp(flags->layout, layouts[i].name) == 0) {
            config->layout = layouts[i].layout;
        }
    }
    if (flags->block_size > 0) {
        config->page_size = flags->block_size;
    }
    bool taken = false;
    if (code == APP_OK) {
        code = take_layers(flags, config, scales, &taken);
    }
    if (taken && (flags->k_scale > 0 || flags->v_scale > 0)) {
        return app_arguments_complain(command, "%s and --kv-scales exclude each other", flags->k_scale > 0 ? "--k-scale" : "--v-scale");
    }
    return code == APP_OK && !taken ? take_scales(command, flags, config, scales) : code;
}

void app_cache_name(const octe_kv_config *config, char *text, size_t size)
{
    char k[48], v[48];
    (void)octe_kv_format_name(&config->k, k, sizeof(k));
    (void)octe_kv_format_name(&config->v, v, sizeof(v));
    uint32_t n_other = 0;
    for (uint32_t il = 0; config->layers != NULL && il < config->n_layers; il++) {
        n_other += !octe_kv_layer_format_same(&config->layers[il], &(octe_kv_layer_format){ config->k, config->v });
    }
    char other[48] = "";
    if (n_other > 0) {
        (void)snprintf(other, sizeof(other), "; %u of %u layers otherwise", n_other, config->n_layers);
    }
    if (strcmp(k, v) == 0) {
        (void)snprintf(text, size, "%s%s", k, other);
    } else {
        (void)snprintf(text, size, "K %s, V %s%s", k, v, other);
    }
}
