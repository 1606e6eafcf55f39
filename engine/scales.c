/* scales.c: see scales.h. Reading; writing is in scales_write.c. */
#include "engine/scales.h"

#include <float.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "engine/kv_config.h"
#include "engine/report.h"
#include "host/file.h"

static const char *const where = "octe_scales_read";

/* A parsed value takes some 40 bytes: the text is counted before it is parsed, so that a small file can't fill the memory. */
enum { MAX_VALUES = 1 << 20 };

oct_status octe_scales_create(octe_scales *sc, uint32_t n_layers, uint32_t n_heads, uint32_t dim, oct_error *error)
{
    static const char who[] = "octe_scales_create";
    *sc = (octe_scales){.dtype = OCT_DTYPE_E4M3FN, .n_layers = n_layers, .n_heads = n_heads, .dim = n_heads > 0 ? dim : 0};
    if (n_layers < 1 || n_layers > OCTE_SCALES_MAX_LAYERS || n_heads > OCTE_SCALES_MAX_HEADS || dim > OCTE_SCALES_MAX_DIM) {
        return octe__report(error, OCT_INVALID_ARGUMENT, who, NULL, "%u layers of %u heads of %u dims; must be 1 to %d, at most %d and %d", n_layers, n_heads, dim,
                            OCTE_SCALES_MAX_LAYERS, OCTE_SCALES_MAX_HEADS, OCTE_SCALES_MAX_DIM);
    }
    const size_t by_layer = n_layers, by_head = by_layer * n_heads, by_channel = by_head * sc->dim;
    bool there = true;
    for (int which = 0; which < 2; which++) {
        float **const arrays[] = {&sc->layer[which], &sc->head[which], &sc->channel[which]};
        const size_t counts[] = {by_layer, by_head, by_channel};
        for (int a = 0; a < 3; a++) {
            if (counts[a] == 0) {
                continue;
            }
            float *values = malloc(counts[a] * sizeof(*values));
            *arrays[a] = values;
            there = there && values != NULL;
            for (size_t i = 0; i < counts[a] && values != NULL; i++) {
                values[i] = 1.0f;
            }
        }
    }
    if (!there) {
        octe_scales_free(sc);
        return octe__report(error, OCT_OUT_OF_MEMORY, who, NULL, "no memory for scales of %u layers, %u heads, %u dims", n_layers, n_heads, dim);
    }
    return OCT_OK;
}

void octe_scales_free(octe_scales *sc)
{
    for (int which = 0; which < 2; which++) {
        free(sc->layer[which]);
        free(sc->head[which]);
        free(sc->channel[which]);
    }
    free(sc->formats);
    *sc = (octe_scales){0};
}

oct_status octe_scales_set_formats(octe_scales *sc, const octe_kv_layer_format *formats, oct_error *error)
{
    octe_kv_layer_format *own = malloc(sc->n_layers * sizeof(*own));
    if (own == NULL) {
        return octe__report(error, OCT_OUT_OF_MEMORY, "octe_scales_set_formats", NULL, "no memory for formats of %u layers", sc->n_layers);
    }
    memcpy(own, formats, sc->n_layers * sizeof(*own));
    free(sc->formats);
    sc->formats = own;
    return OCT_OK;
}

typedef struct parser {
    const char *file;
    oct_error *error;
} parser;

static oct_status bad(const parser *p, const char *key, const char *format, ...)
#if defined(__GNUC__)
    __attribute__((format(printf, 3, 4)))
#endif
    ;
static oct_status bad(const parser *p, const char *key, const char *format, ...)
{
    char message[160], quoted[OCTE__QUOTE_SIZE];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message, sizeof(message), format, arguments);
    va_end(arguments);
    return octe__report(p->error, OCT_BAD_DATA, where, p->file, "key '%s' %s", octe__quote(quoted, key, strlen(key)), message);
}

static const char *kind(const json_t *value)
{
    switch (value != NULL ? (int)json_typeof(value) : -1) {
    case JSON_OBJECT:
        return "an object";
    case JSON_ARRAY:
        return "an array";
    case JSON_STRING:
        return "a string";
    case JSON_INTEGER:
    case JSON_REAL:
        return "a number";
    case JSON_TRUE:
    case JSON_FALSE:
        return "true or false";
    case JSON_NULL:
        return "null";
    default:
        return "missing";
    }
}

static oct_status read_scale(const parser *p, const char *key, const json_t *value, float *scale)
{
    if (!json_is_number(value)) {
        return bad(p, key, "is %s; must be a number", kind(value));
    }
    const double number = json_number_value(value);
    const float rounded = (float)number;
    if (!(rounded > 0.0f && rounded <= FLT_MAX)) {
        return bad(p, key, "is %g; must be finite and > 0", number);
    }
    *scale = rounded;
    return OCT_OK;
}

static oct_status read_object(const parser *p, const char *key, const json_t *parent, const char *name, const json_t **object)
{
    *object = json_object_get(parent, name);
    return json_is_object(*object) ? OCT_OK : bad(p, key, "is %s; must be an object", kind(*object));
}

/* kv_cache.scaling_factor.<rank>: { "0": number, ... }. Makes *sc, or raises what an earlier rank made of it. */
static oct_status read_rank(const parser *p, const json_t *ranks, uint32_t rank, octe_scales *sc)
{
    const json_t *layers;
    char key[96], name[16];
    snprintf(name, sizeof(name), "%u", rank);
    snprintf(key, sizeof(key), "kv_cache.scaling_factor.%u", rank);
    oct_status s = read_object(p, key, ranks, name, &layers);
    if (s != OCT_OK) {
        return s;
    }
    const size_t n_layers = json_object_size(layers);
    if (n_layers < 1 || n_layers > OCTE_SCALES_MAX_LAYERS) {
        return bad(p, key, "has %zu layers; must be 1 to %d", n_layers, OCTE_SCALES_MAX_LAYERS);
    }
    const bool first = sc->layer[0] == NULL;
    if (!first && n_layers != sc->n_layers) {
        return bad(p, key, "has %zu layers, an earlier rank %u", n_layers, sc->n_layers);
    }
    s = first ? octe_scales_create(sc, (uint32_t)n_layers, 0, 0, p->error) : OCT_OK;
    for (uint32_t il = 0; il < n_layers && s == OCT_OK; il++) {
        snprintf(name, sizeof(name), "%u", il);
        snprintf(key, sizeof(key), "kv_cache.scaling_factor.%u.%u", rank, il);
        const json_t *value = json_object_get(layers, name);
        float scale = 0.0f;
        s = value == NULL ? bad(p, key, "is missing, though the rank has %zu layers", n_layers) : read_scale(p, key, value, &scale);
        for (int which = 0; which < 2 && s == OCT_OK; which++) {
            sc->layer[which][il] = first || scale > sc->layer[which][il] ? scale : sc->layer[which][il];
        }
    }
    return s;
}

/* kv_cache.scaling_factor: { "0": a rank, ... }. Makes *sc. */
static oct_status read_factors(const parser *p, const json_t *root, uint32_t rank, octe_scales *sc)
{
    const json_t *cache, *ranks;
    const bool all = rank == OCTE_SCALES_ALL_RANKS;
    char name[16];
    oct_status s = read_object(p, "kv_cache", root, "kv_cache", &cache);
    if (s != OCT_OK) {
        return s;
    }
    const char *dtype = json_string_value(json_object_get(cache, "dtype"));
    if (dtype == NULL || strcmp(dtype, "float8_e4m3fn") != 0) {
        char quoted[OCTE__QUOTE_SIZE];
        return bad(p, "kv_cache.dtype", "is '%s'; must be 'float8_e4m3fn'", dtype != NULL ? octe__quote(quoted, dtype, strlen(dtype)) : kind(json_object_get(cache, "dtype")));
    }
    s = read_object(p, "kv_cache.scaling_factor", cache, "scaling_factor", &ranks);
    if (s != OCT_OK) {
        return s;
    }
    const size_t n_ranks = json_object_size(ranks);
    if (n_ranks > OCTE_SCALES_MAX_RANKS) {
        return bad(p, "kv_cache.scaling_factor", "has %zu ranks; at most %d", n_ranks, OCTE_SCALES_MAX_RANKS);
    }
    if (n_ranks == 0 || (!all && rank >= n_ranks)) {
        return bad(p, "kv_cache.scaling_factor", "has %zu ranks; rank %u is asked for", n_ranks, all ? 0 : rank);
    }
    for (size_t r = 0; r < n_ranks; r++) {
        snprintf(name, sizeof(name), "%zu", r);
        if (json_object_get(ranks, name) == NULL) {
            return bad(p, "kv_cache.scaling_factor", "has %zu ranks, but none is '%s'", n_ranks, name);
        }
    }
    const uint32_t first = all ? 0 : rank, last = all ? (uint32_t)n_ranks - 1 : rank;
    for (uint32_t r = first; r <= last && s == OCT_OK; r++) {
        s = read_rank(p, ranks, r, sc);
    }
    return s;
}

/* An array of n, each a number (depth 0) or an array again. Fills values in order. */
static oct_status read_nested(const parser *p, const char *key, const json_t *array, const uint32_t *sizes, int n_sizes, float **next)
{
    if (!json_is_array(array) || json_array_size(array) != sizes[0]) {
        return bad(p, key, "is %s of %zu; must be an array of %u", kind(array), json_is_array(array) ? json_array_size(array) : (size_t)0, sizes[0]);
    }
    for (uint32_t i = 0; i < sizes[0]; i++) {
        char inner[96];
        snprintf(inner, sizeof(inner), "%.80s.%u", key, i);
        const json_t *value = json_array_get(array, i);
        const oct_status s = n_sizes > 1 ? read_nested(p, inner, value, sizes + 1, n_sizes - 1, next) : read_scale(p, inner, value, *next);
        if (s != OCT_OK) {
            return s;
        }
        *next += n_sizes == 1;
    }
    return OCT_OK;
}

static oct_status read_size(const parser *p, const char *key, const json_t *parent, const char *name, uint32_t max, uint32_t *size)
{
    const json_t *value = json_object_get(parent, name);
    *size = 0;
    if (value == NULL) {
        return OCT_OK;
    }
    if (!json_is_integer(value) || json_integer_value(value) < 1 || json_integer_value(value) > (json_int_t)max) {
        return bad(p, key, "is %s; must be an integer from 1 to %u", json_is_integer(value) ? "out of range" : kind(value), max);
    }
    *size = (uint32_t)json_integer_value(value);
    return OCT_OK;
}

/* One side of our form: numbers by layer, and where the file has them by head and channel. */
static oct_status read_side(const parser *p, const json_t *ours, int which, octe_scales *sc)
{
    static const char *const names[] = {"layer", "head", "channel"};
    const uint32_t sizes[] = {sc->n_layers, sc->n_heads, sc->dim};
    const json_t *object;
    char key[48];
    snprintf(key, sizeof(key), "octavo.%s", which == 0 ? "k" : "v");
    oct_status s = read_object(p, key, ours, which == 0 ? "k" : "v", &object);
    for (int a = 0; a < 3 && s == OCT_OK; a++) {
        float *next = a == 0 ? sc->layer[which] : a == 1 ? sc->head[which] : sc->channel[which];
        const json_t *array = json_object_get(object, names[a]);
        snprintf(key, sizeof(key), "octavo.%s.%s", which == 0 ? "k" : "v", names[a]);
        if (array == NULL && a > 0) {
            /* The file may be without; the struct then says so. */
            float **const absent = a == 1 ? &sc->head[which] : &sc->channel[which];
            free(*absent);
            *absent = NULL;
            continue;
        }
        if (next == NULL) {
            s = bad(p, key, "is given without octavo.%s", a == 1 ? "heads" : "dim");
            break;
        }
        s = read_nested(p, key, array, sizes, a + 1, &next);
    }
    return s;
}

/* From version 2 on: a name for every layer, K and V. */
static oct_status read_formats(const parser *p, const json_t *ours, octe_scales *sc)
{
    const json_t *object;
    oct_status s = read_object(p, "octavo.formats", ours, "formats", &object);
    if (s != OCT_OK) {
        return s;
    }
    sc->formats = calloc(sc->n_layers, sizeof(*sc->formats));
    if (sc->formats == NULL) {
        return octe__report(p->error, OCT_OUT_OF_MEMORY, where, p->file, "no memory for formats of %u layers", sc->n_layers);
    }
    for (uint32_t i = 0; i < 2 * sc->n_layers; i++) {
        const bool is_v = i >= sc->n_layers;
        const uint32_t il = i % sc->n_layers;
        const json_t *names = json_object_get(object, is_v ? "v" : "k");
        char key[48];
        snprintf(key, sizeof(key), is_v ? "octavo.formats.v" : "octavo.formats.k");
        if (!json_is_array(names) || json_array_size(names) != sc->n_layers) {
            return bad(p, key, "is %s of %zu; must be an array of %u names", kind(names), json_array_size(names), sc->n_layers);
        }
        const char *name = json_string_value(json_array_get(names, il));
        if (name == NULL || octe_kv_format_from_name(name, is_v ? &sc->formats[il].v : &sc->formats[il].k, NULL) != OCT_OK) {
            char quoted[OCTE__QUOTE_SIZE];
            snprintf(key, sizeof(key), "octavo.formats.%c.%u", is_v ? 'v' : 'k', il);
            return bad(p, key, "is '%s', which is no cache format", name != NULL ? octe__quote(quoted, name, strlen(name)) : kind(json_array_get(names, il)));
        }
    }
    return OCT_OK;
}

/* The key "octavo", which other readers ignore. Replaces *sc by the finer numbers. */
static oct_status read_ours(const parser *p, const json_t *root, octe_scales *sc)
{
    const json_t *ours = json_object_get(root, "octavo");
    if (ours == NULL) {
        return OCT_OK;
    }
    if (!json_is_object(ours)) {
        return bad(p, "octavo", "is %s; must be an object", kind(ours));
    }
    const json_t *version = json_object_get(ours, "version");
    if (!json_is_integer(version) || json_integer_value(version) < 1 || json_integer_value(version) > OCTE_SCALES_VERSION) {
        return bad(p, "octavo.version", "is not 1 or %d, which this reader knows", OCTE_SCALES_VERSION);
    }
    uint32_t n_heads, dim;
    oct_status s = read_size(p, "octavo.heads", ours, "heads", OCTE_SCALES_MAX_HEADS, &n_heads);
    if (s == OCT_OK) {
        s = read_size(p, "octavo.dim", ours, "dim", OCTE_SCALES_MAX_DIM, &dim);
    }
    if (s == OCT_OK && dim > 0 && n_heads == 0) {
        s = bad(p, "octavo.dim", "is given without octavo.heads");
    }
    if (s == OCT_OK && (uint64_t)sc->n_layers * (n_heads > 0 ? n_heads : 1) * (dim > 0 ? dim : 1) > MAX_VALUES) {
        s = bad(p, "octavo", "would hold %u x %u x %u numbers; at most %d", sc->n_layers, n_heads, dim, MAX_VALUES);
    }
    if (s != OCT_OK) {
        return s;
    }
    octe_scales finer;
    s = octe_scales_create(&finer, sc->n_layers, n_heads, dim, p->error);
    if (s != OCT_OK) {
        return s;
    }
    memcpy(finer.model_type, sc->model_type, sizeof(finer.model_type));
    finer.layer_split = true;
    const json_t *rotated = json_object_get(ours, "rotated");
    if (rotated != NULL && (json_array_size(rotated) != 2 || !json_is_boolean(json_array_get(rotated, 0)) || !json_is_boolean(json_array_get(rotated, 1)))) {
        s = bad(p, "octavo.rotated", "is %s; must be an array of two booleans", kind(rotated));
    }
    for (int which = 0; which < 2 && s == OCT_OK; which++) {
        finer.rotated[which] = rotated != NULL && json_is_true(json_array_get(rotated, (size_t)which));
        s = read_side(p, ours, which, &finer);
    }
    if (s == OCT_OK && json_integer_value(version) >= 2) {
        s = read_formats(p, ours, &finer);
    }
    if (s != OCT_OK) {
        octe_scales_free(&finer);
        return s;
    }
    octe_scales_free(sc);
    *sc = finer;
    return OCT_OK;
}

static oct_status read_root(const parser *p, const json_t *root, uint32_t rank, octe_scales *sc)
{
    if (!json_is_object(root)) {
        return octe__report(p->error, OCT_BAD_DATA, where, p->file, "the file holds %s; must be an object with the key 'kv_cache'", kind(root));
    }
    oct_status s = read_factors(p, root, rank, sc);
    const json_t *type = json_object_get(root, "model_type");
    if (s == OCT_OK && type != NULL && !json_is_null(type)) {
        const char *text = json_string_value(type);
        char quoted[OCTE__QUOTE_SIZE];
        if (text == NULL || strlen(text) >= sizeof(sc->model_type) || strcmp(octe__quote(quoted, text, strlen(text)), text) != 0) {
            s = bad(p, "model_type", "is %s; must be a plain string of at most %zu bytes", kind(type), sizeof(sc->model_type) - 1);
        } else {
            snprintf(sc->model_type, sizeof(sc->model_type), "%s", text);
        }
    }
    if (s == OCT_OK) {
        s = read_ours(p, root, sc);
    }
    return s;
}

oct_status octe_scales_parse(const char *json, size_t size, const char *name, uint32_t rank, octe_scales *sc, oct_error *error)
{
    const parser p = {name, error};
    *sc = (octe_scales){0};
    size_t n_values = 0;
    for (size_t i = 0; i < size; i++) {
        n_values += json[i] == ',' || json[i] == '[' || json[i] == '{';
    }
    if (size > OCTE_SCALES_MAX_FILE_BYTES || n_values > MAX_VALUES) {
        return octe__report(error, OCT_BAD_DATA, where, name, "%zu bytes with %zu values; at most %d bytes and %d values are read", size, n_values,
                            OCTE_SCALES_MAX_FILE_BYTES, MAX_VALUES);
    }
    json_error_t why;
    json_t *root = json_loadb(json, size, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &why);
    if (root == NULL) {
        char quoted[OCTE__QUOTE_SIZE];
        const bool memory = json_error_code(&why) == json_error_out_of_memory;
        return octe__report(error, memory ? OCT_OUT_OF_MEMORY : OCT_BAD_DATA, where, name, "not JSON at line %d, column %d: %s", why.line, why.column,
                            octe__quote(quoted, why.text, strlen(why.text)));
    }
    const oct_status s = read_root(&p, root, rank, sc);
    json_decref(root);
    if (s != OCT_OK) {
        octe_scales_free(sc);
    }
    return s;
}

oct_status octe_scales_read(const char *path, uint32_t rank, octe_scales *sc, oct_error *error)
{
    static const oct__allocator c_library = {0};
    char *data;
    size_t size;
    *sc = (octe_scales){0};
    if (path == NULL) {
        return octe__report(error, OCT_INVALID_ARGUMENT, where, NULL, "path is NULL");
    }
    oct_status s = oct__file_read(&c_library, path, OCTE_SCALES_MAX_FILE_BYTES, &data, &size, error);
    if (s != OCT_OK) {
        return s;
    }
    s = octe_scales_parse(data, size, path, rank, sc, error);
    oct__file_release(&c_library, data, size);
    return s;
}
