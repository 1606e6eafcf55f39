/* result_json.c: an evaluation as JSON and its release; both walk result_shape.h. */
#include <stdlib.h>
#include <string.h>

#include "apps/eval/inside.h"
#include "apps/eval/result_shape.h"

enum { DIGITS = 6, RAW_DIGITS = 17 };

typedef struct writer {
    app_text *text;
    const eval_result *result;
    bool raw;
} writer;

static void add_record(const writer *w, const eval_shape *shape, const void *record, int depth);

static void add_number(const writer *w, double value)
{
    app_text_add_number(w->text, value, w->raw ? RAW_DIGITS : DIGITS);
}

/* A line of its own for what is large, so that a person can read the file. */
static void add_break(const writer *w, int depth)
{
    enum { DEEPEST = 6 };
    if (depth <= DEEPEST) {
        app_text_add(w->text, "\n%*s", depth, "");
    }
}

static const void *array_of(const eval_field *field, const void *at)
{
    const void *heap;
    if (field->size > 0) {
        return at;
    }
    memcpy(&heap, at, sizeof(heap));
    return heap;
}

/* Where an array on the heap is not there (yet) its list is null. */
static void add_array(const writer *w, const eval_field *field, const void *record, const void *at, int depth)
{
    const char *const array = array_of(field, at);
    const uint64_t n = eval_field_count(field, record, w->result);
    const bool is_grid = field->count == EVAL_GRID || field->count == EVAL_GRID_64;
    const uint64_t row = is_grid && w->result->n_formats > 0 ? n / w->result->n_formats : n;
    if (array == NULL) {
        app_text_add(w->text, "null");
        return;
    }
    app_text_add(w->text, "[");
    for (uint64_t i = 0; i < n; i++) {
        if (is_grid && i % row == 0) {
            app_text_add(w->text, "%s[", i > 0 ? "], " : "");
        }
        app_text_add(w->text, "%s", i > 0 && (!is_grid || i % row > 0) ? ", " : "");
        if (field->kind == EVAL_NUMBERS) {
            uint32_t number;
            memcpy(&number, array + i * sizeof(number), sizeof(number));
            app_text_add(w->text, "%u", number);
        } else {
            add_break(w, depth);
            add_record(w, field->of, array + i * field->of->size, depth + 1);
        }
    }
    /* No items: still a list a format. */
    for (uint32_t i = 0; is_grid && n == 0 && i < w->result->n_formats; i++) {
        app_text_add(w->text, "%s[%s", i > 0 ? ", " : "", i + 1 < w->result->n_formats ? "]" : "");
    }
    app_text_add(w->text, is_grid && w->result->n_formats > 0 ? "]]" : "]");
}

static void add_value(const writer *w, const eval_field *field, const void *record, int depth)
{
    const char *const at = (const char *)record + field->offset;
    app_text *const text = w->text;
    switch (field->kind) {
    case EVAL_CHARS: app_text_add_json(text, at); break;
    case EVAL_TEXT: app_text_add_json(text, *(char *const *)(const void *)at); break;
    case EVAL_BOOL: app_text_add(text, *(const bool *)at ? "true" : "false"); break;
    case EVAL_I8: app_text_add(text, "%d", *(const int8_t *)at); break;
    case EVAL_I32: app_text_add(text, "%d", *(const int32_t *)(const void *)at); break;
    case EVAL_U32: app_text_add(text, "%u", *(const uint32_t *)(const void *)at); break;
    case EVAL_I64: app_text_add(text, "%lld", (long long)*(const int64_t *)(const void *)at); break;
    case EVAL_U64: app_text_add(text, "%llu", (unsigned long long)*(const uint64_t *)(const void *)at); break;
    case EVAL_F64: add_number(w, *(const double *)(const void *)at); break;
    case EVAL_RANGE:
        app_text_add(text, "[");
        add_number(w, ((const eval_interval *)(const void *)at)->low);
        app_text_add(text, ", ");
        add_number(w, ((const eval_interval *)(const void *)at)->high);
        app_text_add(text, "]");
        break;
    case EVAL_RECORD: add_record(w, field->of, at, depth); break;
    case EVAL_INSIDE:
        if (*(struct eval_inside *const *)(const void *)at == NULL) {
            app_text_add(text, "null");
        } else {
            eval_inside_json(*(struct eval_inside *const *)(const void *)at, w->raw, text);
        }
        break;
    case EVAL_RECORDS: case EVAL_NUMBERS: add_array(w, field, record, at, depth); break;
    }
}

static void add_record(const writer *w, const eval_shape *shape, const void *record, int depth)
{
    bool first = true;
    app_text_add(w->text, "%s", shape->tuple ? "[" : "{");
    for (size_t i = 0; i < shape->n_fields; i++) {
        const eval_field *const field = &shape->fields[i];
        if (field->raw && !w->raw) {
            continue;
        }
        app_text_add(w->text, "%s", first ? "" : ", ");
        if (!shape->tuple) {
            add_break(w, depth < 3 ? depth + 1 : 99);
            app_text_add(w->text, "\"%s\": ", field->key);
        }
        add_value(w, field, record, depth + 1);
        first = false;
    }
    app_text_add(w->text, "%s", shape->tuple ? "]" : "}");
}

void eval_result_json(const eval_result *result, bool raw, app_text *text)
{
    const writer w = { text, result, raw };
    add_record(&w, &eval_result_shape, result, 0);
    app_text_add(text, "\n");
}

static void free_record(const eval_result *result, const eval_shape *shape, void *record)
{
    for (size_t i = 0; i < shape->n_fields; i++) {
        const eval_field *const field = &shape->fields[i];
        char *const at = (char *)record + field->offset;
        const bool is_array = field->kind == EVAL_RECORDS || field->kind == EVAL_NUMBERS;
        if (field->kind == EVAL_TEXT) {
            free(*(char **)(void *)at);
        } else if (field->kind == EVAL_INSIDE) {
            eval_inside_free(*(struct eval_inside **)(void *)at);
        } else if (field->kind == EVAL_RECORD) {
            free_record(result, field->of, at);
        } else if (is_array) {
            char *const array = field->size > 0 ? at : *(char **)(void *)at;
            const uint64_t n = array != NULL && field->kind == EVAL_RECORDS ? eval_field_count(field, record, result) : 0;
            for (uint64_t j = 0; j < n; j++) {
                free_record(result, field->of, array + j * field->of->size);
            }
            if (field->size == 0) {
                free(array);
            }
        }
    }
}

void eval_result_free(eval_result *result)
{
    free_record(result, &eval_result_shape, result);
    memset(result, 0, sizeof(*result));
}
