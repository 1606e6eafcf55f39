/* metadata.c: see metadata.h. */
#include "engine/metadata.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "engine/report.h"

enum { KEY_MAX_BYTES = 160 };

static const char *full_key(const octe__metadata *m, const char *key, char text[KEY_MAX_BYTES])
{
    snprintf(text, KEY_MAX_BYTES, "%s%s", key[0] == '.' ? m->architecture : "", key);
    return text;
}

static int64_t find(const octe__metadata *m, const char *key)
{
    char text[KEY_MAX_BYTES];
    return gguf_find_key(m->gguf, full_key(m, key, text));
}

bool octe__metadata_has(const octe__metadata *m, const char *key) { return find(m, key) >= 0; }

oct_status octe__metadata_fail(const octe__metadata *m, oct_status status, const char *key, const char *format, ...)
{
    char text[KEY_MAX_BYTES], message[192];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message, sizeof(message), format, arguments);
    va_end(arguments);
    return octe__report(m->error, status, m->where, m->file, "key '%s' %s", full_key(m, key, text), message);
}

static oct_status missing(const octe__metadata *m, const char *key, octe__presence presence)
{
    return presence == OCTE__OPTIONAL ? OCT_OK : octe__metadata_fail(m, OCT_BAD_DATA, key, "is missing");
}

static oct_status wrong_type(const octe__metadata *m, const char *key, int64_t id, const char *wanted)
{
    const enum gguf_type type = gguf_get_kv_type(m->gguf, id);
    const char *of = type == GGUF_TYPE_ARRAY ? gguf_type_name(gguf_get_arr_type(m->gguf, id)) : "";
    return octe__metadata_fail(m, OCT_BAD_DATA, key, "has type %s%s%s; must be %s", gguf_type_name(type), of[0] != '\0' ? " of " : "", of, wanted);
}

/* Any integer type as a signed 64-bit number; false for another type or a u64 above 2^63. */
static bool integer_at(enum gguf_type type, const void *data, size_t i, int64_t *value)
{
    const unsigned char *bytes = data;
    uint64_t u;
    switch (type) {
    case GGUF_TYPE_UINT8:
        *value = bytes[i];
        return true;
    case GGUF_TYPE_INT8:
    case GGUF_TYPE_BOOL:
        *value = (int8_t)bytes[i];
        return true;
    case GGUF_TYPE_UINT16: {
        uint16_t v;
        memcpy(&v, bytes + 2 * i, sizeof(v));
        *value = v;
        return true;
    }
    case GGUF_TYPE_INT16: {
        int16_t v;
        memcpy(&v, bytes + 2 * i, sizeof(v));
        *value = v;
        return true;
    }
    case GGUF_TYPE_UINT32: {
        uint32_t v;
        memcpy(&v, bytes + 4 * i, sizeof(v));
        *value = v;
        return true;
    }
    case GGUF_TYPE_INT32: {
        int32_t v;
        memcpy(&v, bytes + 4 * i, sizeof(v));
        *value = v;
        return true;
    }
    case GGUF_TYPE_INT64:
        memcpy(value, bytes + 8 * i, sizeof(*value));
        return true;
    case GGUF_TYPE_UINT64:
        memcpy(&u, bytes + 8 * i, sizeof(u));
        *value = (int64_t)u;
        return u <= INT64_MAX;
    default:
        return false;
    }
}

static bool is_integer(enum gguf_type type)
{
    switch (type) {
    case GGUF_TYPE_UINT8:
    case GGUF_TYPE_INT8:
    case GGUF_TYPE_UINT16:
    case GGUF_TYPE_INT16:
    case GGUF_TYPE_UINT32:
    case GGUF_TYPE_INT32:
    case GGUF_TYPE_UINT64:
    case GGUF_TYPE_INT64:
        return true;
    default:
        return false;
    }
}

static oct_status in_range(const octe__metadata *m, const char *key, bool read, int64_t number, uint32_t min, uint32_t max, uint32_t *value)
{
    if (!read || number < (int64_t)min || number > (int64_t)max) {
        return octe__metadata_fail(m, OCT_BAD_DATA, key, "is %" PRId64 "; must be %" PRIu32 " to %" PRIu32, number, min, max);
    }
    *value = (uint32_t)number;
    return OCT_OK;
}

oct_status octe__metadata_u32(const octe__metadata *m, const char *key, octe__presence presence, uint32_t min, uint32_t max, uint32_t *value)
{
    const int64_t id = find(m, key);
    if (id < 0) {
        return missing(m, key, presence);
    }
    if (!is_integer(gguf_get_kv_type(m->gguf, id))) {
        return wrong_type(m, key, id, "an integer");
    }
    int64_t number = 0;
    const bool read = integer_at(gguf_get_kv_type(m->gguf, id), gguf_get_val_data(m->gguf, id), 0, &number);
    return in_range(m, key, read, number, min, max, value);
}

oct_status octe__metadata_f32(const octe__metadata *m, const char *key, octe__presence presence, float min, float max, float *value)
{
    const int64_t id = find(m, key);
    if (id < 0) {
        return missing(m, key, presence);
    }
    const enum gguf_type type = gguf_get_kv_type(m->gguf, id);
    if (type != GGUF_TYPE_FLOAT32 && type != GGUF_TYPE_FLOAT64) {
        return wrong_type(m, key, id, "f32");
    }
    const double number = type == GGUF_TYPE_FLOAT32 ? (double)gguf_get_val_f32(m->gguf, id) : gguf_get_val_f64(m->gguf, id);
    if (!(number >= (double)min && number <= (double)max)) {
        return octe__metadata_fail(m, OCT_BAD_DATA, key, "is %g; must be %g to %g", number, (double)min, (double)max);
    }
    *value = (float)number;
    return OCT_OK;
}

oct_status octe__metadata_bool(const octe__metadata *m, const char *key, octe__presence presence, bool *value)
{
    const int64_t id = find(m, key);
    if (id < 0) {
        return missing(m, key, presence);
    }
    if (gguf_get_kv_type(m->gguf, id) != GGUF_TYPE_BOOL) {
        return wrong_type(m, key, id, "bool");
    }
    /* Through the bytes: a file may hold 2, which no C bool may. */
    *value = *(const unsigned char *)gguf_get_val_data(m->gguf, id) != 0;
    return OCT_OK;
}

oct_status octe__metadata_string(const octe__metadata *m, const char *key, octe__presence presence, const char **value)
{
    const int64_t id = find(m, key);
    if (id < 0) {
        return missing(m, key, presence);
    }
    if (gguf_get_kv_type(m->gguf, id) != GGUF_TYPE_STRING) {
        return wrong_type(m, key, id, "a string");
    }
    *value = gguf_get_val_str(m->gguf, id);
    return OCT_OK;
}

oct_status octe__metadata_u32_uniform(const octe__metadata *m, const char *key, octe__presence presence, uint32_t n, uint32_t min, uint32_t max,
                                      uint32_t *value)
{
    const int64_t id = find(m, key);
    if (id < 0 || gguf_get_kv_type(m->gguf, id) != GGUF_TYPE_ARRAY) {
        return octe__metadata_u32(m, key, presence, min, max, value);
    }
    const enum gguf_type type = gguf_get_arr_type(m->gguf, id);
    if (!is_integer(type)) {
        return wrong_type(m, key, id, "an integer or an array of integers");
    }
    if (gguf_get_arr_n(m->gguf, id) != n || n == 0) {
        return octe__metadata_fail(m, OCT_BAD_DATA, key, "has %zu elements; must have one for each of %" PRIu32 " layers", gguf_get_arr_n(m->gguf, id), n);
    }
    for (uint32_t i = 0; i < n; i++) {
        int64_t number = 0, first = 0;
        const bool read = integer_at(type, gguf_get_arr_data(m->gguf, id), i, &number);
        (void)integer_at(type, gguf_get_arr_data(m->gguf, id), 0, &first);
        const oct_status status = in_range(m, key, read, number, min, max, value);
        if (status != OCT_OK) {
            return status;
        }
        if (number != first) {
            return octe__metadata_fail(m, OCT_UNSUPPORTED, key, "differs from layer to layer (%" PRId64 ", and %" PRId64 " in layer %" PRIu32 "), which is not built", first,
                                       number, i);
        }
    }
    return OCT_OK;
}

oct_status octe__metadata_flags(const octe__metadata *m, const char *key, uint32_t n, bool *flags, bool *found)
{
    const int64_t id = find(m, key);
    *found = id >= 0 && gguf_get_kv_type(m->gguf, id) == GGUF_TYPE_ARRAY;
    if (!*found) {
        return OCT_OK;
    }
    const enum gguf_type type = gguf_get_arr_type(m->gguf, id);
    if (!is_integer(type) && type != GGUF_TYPE_BOOL) {
        return wrong_type(m, key, id, "an array of bool");
    }
    if (gguf_get_arr_n(m->gguf, id) < n) {
        return octe__metadata_fail(m, OCT_BAD_DATA, key, "has %zu elements; must have one for each of %" PRIu32 " layers", gguf_get_arr_n(m->gguf, id), n);
    }
    for (uint32_t i = 0; i < n; i++) {
        int64_t number = 0;
        flags[i] = !integer_at(type, gguf_get_arr_data(m->gguf, id), i, &number) || number != 0;
    }
    return OCT_OK;
}
