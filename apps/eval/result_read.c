/* result_read.c: an evaluation back from JSON, checked field by field against result_shape.h. */
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "apps/eval/inside.h"
#include "apps/eval/result_shape.h"
#include "host/error.h"

static const char where[] = "octavo eval";

typedef struct reader {
    eval_result *result;
    oct_error *error;
} reader;

static oct_status read_record(const reader *r, const eval_shape *shape, const json_t *json, void *record);

static oct_status wrong(const reader *r, const eval_shape *shape, const eval_field *field, const char *what)
{
    return oct__error_set(r->error, OCT_BAD_DATA, where, "%s.%s %s", shape->name, field->key, what);
}

static oct_status no_memory(const reader *r)
{
    return oct__error_set(r->error, OCT_OUT_OF_MEMORY, where, "out of memory for a result");
}

static bool read_real(const json_t *json, double *value)
{
    *value = json_is_null(json) ? NAN : json_number_value(json);
    return json_is_null(json) || json_is_number(json);
}

/* The i-th element, of a list or of a list of lists of `row`. */
static const json_t *element(const json_t *list, uint64_t i, uint64_t row, bool is_grid)
{
    return is_grid ? json_array_get(json_array_get(list, i / row), i % row) : json_array_get(list, i);
}

static oct_status read_array(const reader *r, const eval_shape *shape, const eval_field *field, const json_t *json, void *record)
{
    char *const at = (char *)record + field->offset;
    const bool is_grid = field->count == EVAL_GRID || field->count == EVAL_GRID_64;
    const size_t size = field->kind == EVAL_NUMBERS ? sizeof(uint32_t) : field->of->size;
    if (json_is_null(json) && field->size == 0) {
        return OCT_OK;
    }
    if (!json_is_array(json)) {
        return wrong(r, shape, field, "is no list");
    }
    if (field->count == EVAL_OWN) {
        const uint32_t n = json_array_size(json) <= UINT32_MAX ? (uint32_t)json_array_size(json) : 0;
        if (field->size > 0 && json_array_size(json) > field->size) {
            return wrong(r, shape, field, "is too long");
        }
        memcpy((char *)record + field->n_offset, &n, sizeof(n));
    }
    const uint64_t n = eval_field_count(field, record, r->result), row = is_grid && r->result->n_formats > 0 ? n / r->result->n_formats : n;
    bool fits = json_array_size(json) == (is_grid ? r->result->n_formats : n);
    for (uint32_t i = 0; fits && is_grid && i < r->result->n_formats; i++) {
        fits = json_is_array(json_array_get(json, i)) && json_array_size(json_array_get(json, i)) == row;
    }
    if (!fits) {
        return wrong(r, shape, field, "has not as many values as it must");
    }
    char *array = at;
    if (field->size == 0) {
        array = calloc(n > 0 ? n : 1, size);
        memcpy(at, &array, sizeof(array));
        if (array == NULL) {
            return no_memory(r);
        }
    }
    for (uint64_t i = 0; i < n; i++) {
        const json_t *const one = element(json, i, row, is_grid);
        if (field->kind == EVAL_RECORDS) {
            const oct_status status = read_record(r, field->of, one, array + i * size);
            if (status != OCT_OK) {
                return status;
            }
            continue;
        }
        const json_int_t number = json_integer_value(one);
        if (!json_is_integer(one) || number < 0 || number > (json_int_t)UINT32_MAX) {
            return wrong(r, shape, field, "holds what is no whole number");
        }
        memcpy(array + i * size, &(uint32_t){ (uint32_t)number }, sizeof(uint32_t));
    }
    return OCT_OK;
}

/* Whole numbers that fit their field. False: not such a one. */
static bool read_whole(const eval_field *field, const json_t *json, void *at)
{
    static const struct { eval_kind kind; long long low, high; } limits[] = {
        { EVAL_I8, INT8_MIN, INT8_MAX }, { EVAL_I32, INT32_MIN, INT32_MAX }, { EVAL_U32, 0, UINT32_MAX }, { EVAL_I64, INT64_MIN, INT64_MAX }, { EVAL_U64, 0, INT64_MAX },
    };
    const long long value = json_integer_value(json);
    for (size_t i = 0; i < sizeof(limits) / sizeof(limits[0]); i++) {
        if (limits[i].kind == field->kind && (!json_is_integer(json) || value < limits[i].low || value > limits[i].high)) {
            return false;
        }
    }
    switch (field->kind) {
    case EVAL_I8: *(int8_t *)at = (int8_t)value; break;
    case EVAL_I32: *(int32_t *)at = (int32_t)value; break;
    case EVAL_U32: *(uint32_t *)at = (uint32_t)value; break;
    case EVAL_I64: *(int64_t *)at = (int64_t)value; break;
    default: *(uint64_t *)at = (uint64_t)value; break;
    }
    return true;
}

static oct_status read_value(const reader *r, const eval_shape *shape, const eval_field *field, const json_t *json, void *record)
{
    void *const at = (char *)record + field->offset;
    switch (field->kind) {
    case EVAL_CHARS:
        if (!json_is_string(json) || json_string_length(json) >= field->size) {
            return wrong(r, shape, field, "is no text, or one that is too long");
        }
        memcpy(at, json_string_value(json), json_string_length(json) + 1);
        return OCT_OK;
    case EVAL_TEXT:
        if (json_is_null(json)) {
            return OCT_OK;
        }
        if (!json_is_string(json)) {
            return wrong(r, shape, field, "is no text");
        }
        *(char **)at = calloc(json_string_length(json) + 1, 1);
        if (*(char **)at == NULL) {
            return no_memory(r);
        }
        memcpy(*(char **)at, json_string_value(json), json_string_length(json));
        return OCT_OK;
    case EVAL_BOOL:
        *(bool *)at = json_is_true(json);
        return json_is_boolean(json) ? OCT_OK : wrong(r, shape, field, "is neither true nor false");
    case EVAL_F64:
        return read_real(json, at) ? OCT_OK : wrong(r, shape, field, "is no number");
    case EVAL_RANGE: {
        eval_interval *const range = at;
        const bool good = json_array_size(json) == 2 && read_real(json_array_get(json, 0), &range->low) && read_real(json_array_get(json, 1), &range->high);
        return good ? OCT_OK : wrong(r, shape, field, "is no interval");
    }
    case EVAL_RECORD:
        return read_record(r, field->of, json, at);
    case EVAL_INSIDE:
        return json_is_null(json) ? OCT_OK : eval_inside_read(json, (struct eval_inside **)at, r->error);
    case EVAL_RECORDS: case EVAL_NUMBERS:
        return read_array(r, shape, field, json, record);
    case EVAL_I8: case EVAL_I32: case EVAL_U32: case EVAL_I64: case EVAL_U64:
        break;
    }
    return read_whole(field, json, at) ? OCT_OK : wrong(r, shape, field, "is no whole number, or too large");
}

static oct_status read_record(const reader *r, const eval_shape *shape, const json_t *json, void *record)
{
    for (size_t i = 0; i < shape->n_fields; i++) {
        const eval_field *const field = &shape->fields[i];
        const json_t *const value = shape->tuple ? json_array_get(json, i) : json_object_get(json, field->key);
        if (value == NULL && field->raw) {
            continue;
        }
        const oct_status status = value != NULL ? read_value(r, shape, field, value, record) : wrong(r, shape, field, "is missing");
        if (status != OCT_OK) {
            return status;
        }
    }
    return OCT_OK;
}

oct_status eval_result_read(const char *json, size_t n_bytes, eval_result *result, oct_error *error)
{
    json_error_t at;
    json_t *const root = json_loadb(json, n_bytes, JSON_REJECT_DUPLICATES, &at);
    const reader r = { result, error };
    memset(result, 0, sizeof(*result));
    if (root == NULL) {
        return oct__error_set(error, OCT_BAD_DATA, where, "no JSON: %.120s (line %d)", at.text, at.line);
    }
    const oct_status status = read_record(&r, &eval_result_shape, root, result);
    json_decref(root);
    return status;
}
