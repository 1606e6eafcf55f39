/* scales_write.c: the file that scales.c reads. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "engine/kv_config.h"
#include "engine/report.h"
#include "engine/scales.h"
#include "host/file.h"

static const char *const where = "octe_scales_write";

/* Nine digits bring every float back. */
enum { FLOAT_DIGITS = 9 };

/* jansson's *_new functions take ownership even when they fail, and take NULL: one check at the end is enough. */
static json_t *nested(const float **next, const uint32_t *sizes, int n_sizes)
{
    json_t *array = json_array();
    bool fine = array != NULL;
    for (uint32_t i = 0; i < sizes[0] && fine; i++) {
        json_t *value = n_sizes > 1 ? nested(next, sizes + 1, n_sizes - 1) : json_real((double)*(*next)++);
        fine = json_array_append_new(array, value) == 0;
    }
    if (!fine) {
        json_decref(array);
        return NULL;
    }
    return array;
}

static json_t *side(const octe_scales *sc, int which)
{
    static const char *const names[] = {"layer", "head", "channel"};
    const uint32_t sizes[] = {sc->n_layers, sc->n_heads, sc->dim};
    const float *const arrays[] = {sc->layer[which], sc->head[which], sc->channel[which]};
    json_t *object = json_object();
    bool fine = object != NULL;
    for (int a = 0; a < 3 && fine; a++) {
        const float *next = arrays[a];
        fine = next == NULL || json_object_set_new(object, names[a], nested(&next, sizes, a + 1)) == 0;
    }
    if (!fine) {
        json_decref(object);
        return NULL;
    }
    return object;
}

static bool set(json_t *object, const char *key, json_t *value) { return json_object_set_new(object, key, value) == 0; }

static bool add_factors(json_t *root, const octe_scales *sc, uint32_t n_ranks)
{
    json_t *cache = json_object();
    bool fine = set(root, "kv_cache", cache) && set(cache, "dtype", json_string("float8_e4m3fn"));
    json_t *ranks = fine ? json_object() : NULL;
    fine = fine && set(cache, "scaling_factor", ranks);
    for (uint32_t r = 0; r < n_ranks && fine; r++) {
        char name[16];
        json_t *layers = json_object();
        snprintf(name, sizeof(name), "%u", r);
        fine = set(ranks, name, layers);
        for (uint32_t il = 0; il < sc->n_layers && fine; il++) {
            snprintf(name, sizeof(name), "%u", il);
            fine = set(layers, name, json_real((double)fmaxf(sc->layer[0][il], sc->layer[1][il])));
        }
    }
    return fine;
}

static json_t *format_names(const octe_scales *sc, int which)
{
    json_t *names = json_array();
    bool fine = names != NULL;
    for (uint32_t il = 0; il < sc->n_layers && fine; il++) {
        char name[48];
        (void)octe_kv_format_name(which == 0 ? &sc->formats[il].k : &sc->formats[il].v, name, sizeof(name));
        fine = json_array_append_new(names, json_string(name)) == 0;
    }
    if (!fine) {
        json_decref(names);
        return NULL;
    }
    return names;
}

static bool add_formats(json_t *ours, const octe_scales *sc)
{
    if (sc->formats == NULL) {
        return true;
    }
    json_t *formats = json_object();
    return set(ours, "formats", formats) && set(formats, "k", format_names(sc, 0)) && set(formats, "v", format_names(sc, 1));
}

static bool add_ours(json_t *root, const octe_scales *sc)
{
    json_t *ours = json_object();
    return set(root, "octavo", ours) && set(ours, "version", json_integer(sc->formats != NULL ? OCTE_SCALES_VERSION : 1)) && add_formats(ours, sc) && (sc->n_heads == 0 || set(ours, "heads", json_integer(sc->n_heads))) &&
           (sc->dim == 0 || set(ours, "dim", json_integer(sc->dim))) && set(ours, "rotated", json_pack("[b, b]", (int)sc->rotated[0], (int)sc->rotated[1])) &&
           set(ours, "k", side(sc, 0)) && set(ours, "v", side(sc, 1));
}

static oct_status check(const octe_scales *sc, uint32_t n_ranks, const char *path, oct_error *error)
{
    if (sc->dtype != OCT_DTYPE_E4M3FN) {
        return octe__report(error, OCT_INVALID_ARGUMENT, where, path, "the scales were made for %s; files carry e4m3fn", oct_dtype_name(sc->dtype));
    }
    if (n_ranks < 1 || n_ranks > OCTE_SCALES_MAX_RANKS) {
        return octe__report(error, OCT_INVALID_ARGUMENT, where, path, "n_ranks is %u; must be 1 to %d", n_ranks, OCTE_SCALES_MAX_RANKS);
    }
    for (int which = 0; which < 2; which++) {
        const size_t by_head = (size_t)sc->n_layers * sc->n_heads;
        const float *const arrays[] = {sc->layer[which], sc->head[which], sc->channel[which]};
        const size_t counts[] = {sc->n_layers, by_head, by_head * sc->dim};
        for (int a = 0; a < 3; a++) {
            for (size_t i = 0; arrays[a] != NULL && i < counts[a]; i++) {
                if (!(arrays[a][i] > 0.0f && isfinite(arrays[a][i]))) {
                    return octe__report(error, OCT_INVALID_ARGUMENT, where, path, "a scale of %s is %g; must be finite and > 0", which == 0 ? "K" : "V", (double)arrays[a][i]);
                }
            }
        }
    }
    return OCT_OK;
}

/* What engines without octavo can't be told. */
static oct_status check_shared(const octe_scales *sc, oct_error *error)
{
    const oct_kv_format fits = { .dtype = OCT_DTYPE_E4M3FN, .scale_mode = OCT_SCALE_LAYER };
    for (int which = 0; which < 2; which++) {
        if (sc->rotated[which]) {
            return octe__report(error, OCT_UNSUPPORTED, where, NULL, "the scales of %s were made for rotated values, which others don't rotate", which == 0 ? "K" : "V");
        }
        for (uint32_t il = 0; sc->formats != NULL && il < sc->n_layers; il++) {
            const oct_kv_format *const format = which == 0 ? &sc->formats[il].k : &sc->formats[il].v;
            if (format->dtype != fits.dtype || format->scale_mode != fits.scale_mode || format->rotated) {
                char name[48];
                (void)octe_kv_format_name(format, name, sizeof(name));
                return octe__report(error, OCT_UNSUPPORTED, where, NULL, "%s of layer %u is to be kept in %s; others have one format for all, and e4m3fn:layer for such a file",
                                    which == 0 ? "K" : "V", il, name);
            }
        }
    }
    return OCT_OK;
}

static oct_status write_file(const octe_scales *sc, uint32_t n_ranks, const char *path, bool shared, oct_error *error)
{
    if (sc == NULL || path == NULL || sc->layer[0] == NULL || sc->layer[1] == NULL) {
        return octe__report(error, OCT_INVALID_ARGUMENT, where, NULL, "%s is NULL", path == NULL ? "path" : "scales");
    }
    oct_status s = check(sc, n_ranks, path, error);
    if (s == OCT_OK && shared) {
        s = check_shared(sc, error);
    }
    if (s != OCT_OK) {
        return s;
    }
    json_t *root = json_object();
    char *text = NULL;
    if (root != NULL && (sc->model_type[0] == '\0' || set(root, "model_type", json_string(sc->model_type))) && add_factors(root, sc, n_ranks) && (shared || add_ours(root, sc))) {
        text = json_dumps(root, JSON_INDENT(1) | JSON_REAL_PRECISION(FLOAT_DIGITS));
    }
    json_decref(root);
    s = text != NULL ? oct__file_write(path, text, strlen(text), error) : octe__report(error, OCT_OUT_OF_MEMORY, where, path, "no memory for the text");
    free(text);
    return s;
}

oct_status octe_scales_write(const octe_scales *sc, uint32_t n_ranks, const char *path, oct_error *error) { return write_file(sc, n_ranks, path, false, error); }

oct_status octe_scales_write_shared(const octe_scales *sc, uint32_t n_ranks, const char *path, oct_error *error) { return write_file(sc, n_ranks, path, true, error); }
