/* inside_json.c: what was seen inside the model as JSON, and back; its release. See inside.h. */
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "apps/eval/inside.h"
#include "host/error.h"

enum { DIGITS = 6, RAW_DIGITS = 17 };

const char *eval_part_name(uint32_t part)
{
    static const char *const names[] = { "K", "V", "attention", "layer" };
    return part < sizeof(names) / sizeof(names[0]) ? names[part] : "?";
}

void eval_inside_free(eval_inside *in)
{
    if (in == NULL) {
        return;
    }
    for (uint32_t i = 0; i < EVAL_INSIDE_MAX_FORMATS; i++) {
        free(in->formats[i].kept[0]);
        free(in->formats[i].kept[1]);
        free(in->formats[i].attended);
        free(in->sensitivities[i].alone);
    }
    free(in);
}

/* A number of every layer and head: where it lies in a record. */
typedef struct column { const char *key; size_t offset; bool is_whole; } column;

#define KEPT(field, whole) { #field, offsetof(eval_kept, field), whole }
static const column kept_columns[] = {
    KEPT(snr_db, false), KEPT(asked_db, false), KEPT(amax, false), KEPT(rms, false), KEPT(saturated, false), KEPT(zeroed, false), KEPT(range_used, false),
    KEPT(n_outliers, true), KEPT(top_channel, true), KEPT(top_ratio, false),
};
#define ATTENDED(field) { #field, offsetof(eval_attended, field), false }
static const column attended_columns[] = { ATTENDED(scores_db), ATTENDED(output_db), ATTENDED(kernel_db) };

/* One kind of records, [n_layers][n]. */
typedef struct table {
    const column *columns;
    size_t n_columns, record_bytes;
    uint32_t n_layers, n;
} table;

static table kept_table(const eval_inside *in)
{
    return (table){ kept_columns, sizeof(kept_columns) / sizeof(kept_columns[0]), sizeof(eval_kept), in->n_layers, in->n_heads_kv };
}

static table attended_table(const eval_inside *in)
{
    return (table){ attended_columns, sizeof(attended_columns) / sizeof(attended_columns[0]), sizeof(eval_attended), in->n_layers, in->n_heads };
}

/* ---- out ------------------------------------------------------------------------------------------------------------------------------- */

static void add_table(const table *t, const void *records, int digits, app_text *text)
{
    app_text_add(text, "{");
    for (size_t c = 0; c < t->n_columns; c++) {
        app_text_add(text, "%s\"%s\": [", c > 0 ? ", " : "", t->columns[c].key);
        for (size_t i = 0; i < (size_t)t->n_layers * t->n; i++) {
            const char *const at = (const char *)records + i * t->record_bytes + t->columns[c].offset;
            uint32_t whole;
            double real;
            app_text_add(text, "%s", i % t->n > 0 ? ", " : i > 0 ? "], [" : "[");
            if (t->columns[c].is_whole) {
                memcpy(&whole, at, sizeof(whole));
                app_text_add(text, "%u", whole);
            } else {
                memcpy(&real, at, sizeof(real));
                app_text_add_number(text, real, digits);
            }
        }
        app_text_add(text, "]]");
    }
    app_text_add(text, "}");
}

static void add_member(app_text *text, const char *key, double value, int digits)
{
    app_text_add(text, ", \"%s\": ", key);
    app_text_add_number(text, value, digits);
}

static void add_sensitivity(const eval_sensitivity *s, int digits, app_text *text)
{
    app_text_add(text, "{\"format\": %u", s->format);
    add_member(text, "floor", s->floor, digits);
    add_member(text, "kl_all", s->kl_all, digits);
    app_text_add(text, ", \"alone\": [");
    for (uint32_t i = 0; i < s->n; i++) {
        const eval_alone *const a = &s->alone[i];
        app_text_add(text, "%s{\"layer\": %u", i > 0 ? ", " : "", a->layer);
        add_member(text, "kl", a->kl, digits);
        add_member(text, "kl_k", a->kl_k, digits);
        add_member(text, "kl_v", a->kl_v, digits);
        add_member(text, "same_top", a->same_top, digits);
        app_text_add(text, "}");
    }
    app_text_add(text, "]}");
}

void eval_inside_json(const eval_inside *in, bool raw, app_text *text)
{
    const int digits = raw ? RAW_DIGITS : DIGITS;
    const table kept = kept_table(in), attended = attended_table(in);
    app_text_add(text, "{\"n_layers\": %u, \"n_heads\": %u, \"n_heads_kv\": %u, \"head_dim\": %u, \"window_tokens\": %u, \"n_tokens\": %u, \"n_rows\": %u, ", in->n_layers, in->n_heads,
                 in->n_heads_kv, in->head_dim, in->window_tokens, in->n_tokens, in->n_rows);
    app_text_add(text, "\"n_alone_tokens\": %u, \"n_alone_judged\": %u, \"formats\": [", in->n_alone_tokens, in->n_alone_judged);
    for (uint32_t i = 0; i < in->n_formats; i++) {
        app_text_add(text, "%s\n   {\"format\": %u, \"k\": ", i > 0 ? "," : "", in->formats[i].format);
        add_table(&kept, in->formats[i].kept[0], digits, text);
        app_text_add(text, ", \"v\": ");
        add_table(&kept, in->formats[i].kept[1], digits, text);
        app_text_add(text, ", \"attention\": ");
        add_table(&attended, in->formats[i].attended, digits, text);
        app_text_add(text, "}");
    }
    app_text_add(text, "], \"n_findings_more\": %u, \"sensitivities\": [", in->n_findings_more);
    for (uint32_t i = 0; i < in->n_sensitivities; i++) {
        app_text_add(text, "%s\n   ", i > 0 ? "," : "");
        add_sensitivity(&in->sensitivities[i], digits, text);
    }
    app_text_add(text, "], \"findings\": [");
    for (uint32_t i = 0; i < in->n_findings; i++) {
        const eval_finding *const f = &in->findings[i];
        app_text_add(text, "%s\n   {\"format\": %u, \"layer\": %u, \"part\": \"%s\", \"head\": ", i > 0 ? "," : "", f->format, f->layer, eval_part_name(f->part));
        if (f->head >= 0) {
            app_text_add(text, "%d", (int)f->head);
        } else {
            app_text_add(text, "null");
        }
        app_text_add(text, ", \"text\": ");
        app_text_add_json(text, f->text);
        app_text_add(text, "}");
    }
    app_text_add(text, "]}");
}

/* ---- back ------------------------------------------------------------------------------------------------------------------------------ */

static oct_status wrong(const char *key, oct_error *error)
{
    return oct__error_set(error, OCT_BAD_DATA, "octavo eval", "inside.%s is missing or wrong", key);
}

static oct_status no_memory(oct_error *error) { return oct__error_set(error, OCT_OUT_OF_MEMORY, "octavo eval", "out of memory for what was seen inside the model"); }

static oct_status read_u32(const json_t *object, const char *key, uint32_t most, uint32_t *value, oct_error *error)
{
    const json_t *const json = json_object_get(object, key);
    if (!json_is_integer(json) || json_integer_value(json) < 0 || json_integer_value(json) > (json_int_t)most) {
        return wrong(key, error);
    }
    *value = (uint32_t)json_integer_value(json);
    return OCT_OK;
}

static oct_status read_real(const json_t *json, const char *key, double *value, oct_error *error)
{
    *value = json_is_null(json) ? (double)NAN : json_number_value(json);
    return json_is_null(json) || json_is_number(json) ? OCT_OK : wrong(key, error);
}

static oct_status read_table(const table *t, const json_t *object, void *records, oct_error *error)
{
    for (size_t c = 0; c < t->n_columns; c++) {
        const json_t *const layers = json_object_get(object, t->columns[c].key);
        for (size_t i = 0; i < (size_t)t->n_layers * t->n; i++) {
            const json_t *const layer = json_array_get(layers, i / t->n), *const value = json_array_get(layer, i % t->n);
            char *const at = (char *)records + i * t->record_bytes + t->columns[c].offset;
            double real = 0;
            if (json_array_size(layers) != t->n_layers || json_array_size(layer) != t->n) {
                return wrong(t->columns[c].key, error);
            }
            const oct_status status = read_real(value, t->columns[c].key, &real, error);
            if (status != OCT_OK || (t->columns[c].is_whole && !(json_is_integer(value) && real >= 0 && real <= UINT32_MAX))) {
                return status != OCT_OK ? status : wrong(t->columns[c].key, error);
            }
            if (t->columns[c].is_whole) {
                memcpy(at, &(uint32_t){ (uint32_t)real }, sizeof(uint32_t));
            } else {
                memcpy(at, &real, sizeof(real));
            }
        }
    }
    return OCT_OK;
}

static oct_status read_format(const json_t *json, eval_inside *in, eval_inside_format *f, oct_error *error)
{
    const table kept = kept_table(in), attended = attended_table(in);
    const size_t by_kv = (size_t)in->n_layers * in->n_heads_kv;
    const json_t *const k = json_object_get(json_object_get(json, "k"), "snr_db"), *const scores = json_object_get(json_object_get(json, "attention"), "scores_db");
    /* Before memory is taken by these numbers. */
    if (json_array_size(k) != in->n_layers || json_array_size(json_array_get(k, 0)) != in->n_heads_kv || json_array_size(scores) != in->n_layers ||
        json_array_size(json_array_get(scores, 0)) != in->n_heads) {
        return wrong("formats", error);
    }
    f->kept[0] = calloc(by_kv, sizeof(*f->kept[0]));
    f->kept[1] = calloc(by_kv, sizeof(*f->kept[1]));
    f->attended = calloc((size_t)in->n_layers * in->n_heads, sizeof(*f->attended));
    if (f->kept[0] == NULL || f->kept[1] == NULL || f->attended == NULL) {
        return no_memory(error);
    }
    oct_status status = read_u32(json, "format", UINT32_MAX, &f->format, error);
    if (status == OCT_OK) {
        status = read_table(&kept, json_object_get(json, "k"), f->kept[0], error);
    }
    if (status == OCT_OK) {
        status = read_table(&kept, json_object_get(json, "v"), f->kept[1], error);
    }
    return status == OCT_OK ? read_table(&attended, json_object_get(json, "attention"), f->attended, error) : status;
}

static oct_status read_sensitivity(const json_t *json, const eval_inside *in, eval_sensitivity *s, oct_error *error)
{
    const json_t *const alone = json_object_get(json, "alone");
    oct_status status = read_u32(json, "format", UINT32_MAX, &s->format, error);
    if (status == OCT_OK) {
        status = read_real(json_object_get(json, "floor"), "floor", &s->floor, error);
    }
    if (status == OCT_OK) {
        status = read_real(json_object_get(json, "kl_all"), "kl_all", &s->kl_all, error);
    }
    if (status == OCT_OK && (!json_is_array(alone) || json_array_size(alone) > in->n_layers)) {
        status = wrong("alone", error);
    }
    s->n = (uint32_t)json_array_size(alone);
    s->alone = calloc(s->n > 0 ? s->n : 1, sizeof(*s->alone));
    if (s->alone == NULL) {
        s->n = 0;
        return status == OCT_OK ? no_memory(error) : status;
    }
    for (uint32_t i = 0; i < s->n && status == OCT_OK; i++) {
        const json_t *const one = json_array_get(alone, i);
        eval_alone *const a = &s->alone[i];
        const struct { const char *key; double *value; } numbers[] = { { "kl", &a->kl }, { "kl_k", &a->kl_k }, { "kl_v", &a->kl_v }, { "same_top", &a->same_top } };
        status = read_u32(one, "layer", in->n_layers - 1, &a->layer, error);
        for (size_t n = 0; n < 4 && status == OCT_OK; n++) {
            status = read_real(json_object_get(one, numbers[n].key), numbers[n].key, numbers[n].value, error);
        }
    }
    return status;
}

static oct_status read_finding(const json_t *json, const eval_inside *in, eval_finding *f, oct_error *error)
{
    const char *const part = json_string_value(json_object_get(json, "part")), *const text = json_string_value(json_object_get(json, "text"));
    const json_t *const head = json_object_get(json, "head");
    oct_status status = read_u32(json, "format", UINT32_MAX, &f->format, error);
    if (status == OCT_OK) {
        status = read_u32(json, "layer", in->n_layers - 1, &f->layer, error);
    }
    f->part = 0;
    while (part != NULL && f->part <= EVAL_PART_LAYER && strcmp(part, eval_part_name(f->part)) != 0) {
        f->part++;
    }
    if (status == OCT_OK && (part == NULL || f->part > EVAL_PART_LAYER || text == NULL || strlen(text) >= sizeof(f->text) ||
                             !(json_is_null(head) || (json_is_integer(head) && json_integer_value(head) >= 0 && json_integer_value(head) < in->n_heads_kv)))) {
        status = wrong("findings", error);
    }
    if (status == OCT_OK) {
        f->head = json_is_null(head) ? -1 : (int32_t)json_integer_value(head);
        memcpy(f->text, text, strlen(text) + 1);
    }
    return status;
}

static oct_status read_sizes(const json_t *json, eval_inside *in, oct_error *error)
{
    /* As the engine's own limits. */
    const struct { const char *key; uint32_t least, most; uint32_t *value; } sizes[] = {
        { "n_layers", 1, 1024, &in->n_layers }, { "n_heads", 1, 1024, &in->n_heads }, { "n_heads_kv", 1, 1024, &in->n_heads_kv }, { "head_dim", 1, 1024, &in->head_dim },
        { "window_tokens", 0, INT32_MAX, &in->window_tokens }, { "n_tokens", 0, INT32_MAX, &in->n_tokens }, { "n_rows", 0, INT32_MAX, &in->n_rows },
        { "n_alone_tokens", 0, INT32_MAX, &in->n_alone_tokens }, { "n_alone_judged", 0, INT32_MAX, &in->n_alone_judged },
        { "n_findings_more", 0, INT32_MAX, &in->n_findings_more },
    };
    oct_status status = OCT_OK;
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]) && status == OCT_OK; i++) {
        status = read_u32(json, sizes[i].key, sizes[i].most, sizes[i].value, error);
        status = status == OCT_OK && *sizes[i].value < sizes[i].least ? wrong(sizes[i].key, error) : status;
    }
    return status;
}

oct_status eval_inside_read(const struct json_t *json, eval_inside **inside, oct_error *error)
{
    const json_t *const formats = json_object_get(json, "formats"), *const sensitivities = json_object_get(json, "sensitivities"), *const findings = json_object_get(json, "findings");
    eval_inside *const in = calloc(1, sizeof(*in));
    *inside = NULL;
    if (in == NULL) {
        return no_memory(error);
    }
    oct_status status = read_sizes(json, in, error);
    if (status == OCT_OK && (!json_is_array(formats) || json_array_size(formats) > EVAL_INSIDE_MAX_FORMATS || !json_is_array(sensitivities) ||
                             json_array_size(sensitivities) > EVAL_INSIDE_MAX_FORMATS || !json_is_array(findings) || json_array_size(findings) > EVAL_INSIDE_MAX_FINDINGS)) {
        status = wrong("formats, sensitivities or findings", error);
    }
    for (size_t i = 0; status == OCT_OK && i < json_array_size(formats); i++) {
        status = read_format(json_array_get(formats, i), in, &in->formats[in->n_formats++], error);
    }
    for (size_t i = 0; status == OCT_OK && i < json_array_size(sensitivities); i++) {
        status = read_sensitivity(json_array_get(sensitivities, i), in, &in->sensitivities[in->n_sensitivities++], error);
    }
    for (size_t i = 0; status == OCT_OK && i < json_array_size(findings); i++) {
        status = read_finding(json_array_get(findings, i), in, &in->findings[in->n_findings++], error);
    }
    if (status != OCT_OK) {
        eval_inside_free(in);
        return status;
    }
    *inside = in;
    return OCT_OK;
}
