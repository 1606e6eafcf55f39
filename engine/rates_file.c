/* rates_file.c: see rates_file.h. */
#include "engine/rates_file.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "engine/report.h"
#include "host/file.h"

enum { FILE_VERSION = 1, DIGITS = 9 };

static const struct { const char *name; size_t offset; } pairs[] = {
#define PAIR(field) { #field, offsetof(oct_rates, field) }
    PAIR(read_l1_bytes), PAIR(read_l2_bytes), PAIR(read_l3_bytes), PAIR(read_memory_bytes), PAIR(copy_memory_bytes), PAIR(fma_avx2_flops),
    PAIR(fma_avx512_flops), PAIR(dot_bf16_flops), PAIR(dot_i8_ops), PAIR(convert_elements), PAIR(convert_i8_elements), PAIR(dot_amx_bf16_flops),
    PAIR(copy_l1_bytes), PAIR(copy_l2_bytes), PAIR(copy_l3_bytes),
#undef PAIR
};
/* Files from before the last three lack them, older ones the two before as well, and are fine. */
enum { N_PAIRS = sizeof(pairs) / sizeof(pairs[0]), N_PAIRS_LATER = 3, N_PAIRS_LATER_TOO = 5, N_KEYS = N_PAIRS + 5 };

static const char *const where_read = "octe_rates_read";

static oct_status bad(const char *name, const char *key, const char *what, oct_error *error)
{
    return octe__report(error, OCT_BAD_DATA, where_read, name, "key '%s' %s", key, what);
}

static oct_status take_text(const json_t *root, const char *key, char text[64], const char *name, oct_error *error)
{
    const json_t *const value = json_object_get(root, key);
    /* jansson hands out UTF-8 without zero bytes. */
    if (!json_is_string(value) || json_string_length(value) >= 64) {
        return bad(name, key, "must be a text of at most 63 bytes", error);
    }
    memcpy(text, json_string_value(value), json_string_length(value) + 1);
    return OCT_OK;
}

static oct_status take_root(const json_t *root, const char *name, oct_rates *rates, oct_error *error)
{
    if (!json_is_object(root) || json_integer_value(json_object_get(root, "octavo_rates")) != FILE_VERSION) {
        return bad(name, "octavo_rates", "must be 1: this is no file of rates", error);
    }
    oct_status status = take_text(root, "cpu", rates->cpu, name, error);
    if (status == OCT_OK) {
        status = take_text(root, "source", rates->source, name, error);
    }
    if (status != OCT_OK) {
        return status;
    }
    const json_t *const threads = json_object_get(root, "threads"), *const clock = json_object_get(root, "clock_hz");
    if (!json_is_integer(threads) || json_integer_value(threads) < 1 || json_integer_value(threads) > 1 << 20) {
        return bad(name, "threads", "must be a whole number from 1", error);
    }
    if (!json_is_number(clock)) {
        return bad(name, "clock_hz", "must be a number", error);
    }
    rates->threads = (uint32_t)json_integer_value(threads);
    rates->clock_hz = json_number_value(clock);
    const size_t n_keys = json_object_size(root), n_absent = n_keys == N_KEYS - N_PAIRS_LATER || n_keys == N_KEYS - N_PAIRS_LATER_TOO ? N_KEYS - n_keys : 0;
    for (size_t i = 0; i < N_PAIRS - n_absent; i++) {
        const json_t *const pair = json_object_get(root, pairs[i].name);
        double *const to = (double *)(void *)((char *)rates + pairs[i].offset);
        if (!json_is_array(pair) || json_array_size(pair) != 2 || !json_is_number(json_array_get(pair, 0)) || !json_is_number(json_array_get(pair, 1))) {
            return bad(name, pairs[i].name, "must be two numbers", error);
        }
        to[0] = json_number_value(json_array_get(pair, 0));
        to[1] = json_number_value(json_array_get(pair, 1));
    }
    if (n_keys != N_KEYS - n_absent) {
        return octe__report(error, OCT_BAD_DATA, where_read, name, "has %zu keys, not the %d of a file of rates", json_object_size(root), (int)N_KEYS);
    }
    return OCT_OK;
}

oct_status octe_rates_parse(const char *json, size_t size, const char *name, oct_rates *rates, oct_error *error)
{
    json_error_t why;
    if (size > OCTE_RATES_MAX_FILE_BYTES) {
        return octe__report(error, OCT_BAD_DATA, where_read, name, "is longer than %d bytes", (int)OCTE_RATES_MAX_FILE_BYTES);
    }
    json_t *const root = json_loadb(json, size, JSON_REJECT_DUPLICATES, &why);
    if (root == NULL) {
        char quoted[OCTE__QUOTE_SIZE];
        return octe__report(error, OCT_BAD_DATA, where_read, name, "line %d: %s", why.line, octe__quote(quoted, why.text, strlen(why.text)));
    }
    *rates = (oct_rates){ .struct_size = sizeof(*rates) };
    const oct_status status = take_root(root, name, rates, error);
    json_decref(root);
    return status;
}

oct_status octe_rates_read(const char *path, oct_rates *rates, oct_error *error)
{
    static const oct__allocator system = { 0 };
    char *data;
    size_t size;
    oct_status status = oct__file_read(&system, path, OCTE_RATES_MAX_FILE_BYTES, &data, &size, error);
    if (status == OCT_OK) {
        status = octe_rates_parse(data, size, path, rates, error);
        oct__file_release(&system, data, size);
    }
    return status;
}

static bool set(json_t *object, const char *key, json_t *value) { return json_object_set_new(object, key, value) == 0; }

oct_status octe_rates_write(const oct_rates *rates, const char *path, oct_error *error)
{
    static const char where[] = "octe_rates_write";
    json_t *const root = json_object();
    bool fine = root != NULL && set(root, "octavo_rates", json_integer(FILE_VERSION)) && set(root, "cpu", json_string(rates->cpu)) &&
                set(root, "source", json_string(rates->source)) && set(root, "threads", json_integer(rates->threads)) && set(root, "clock_hz", json_real(rates->clock_hz));
    for (size_t i = 0; i < N_PAIRS && fine; i++) {
        const double *const from = (const double *)(const void *)((const char *)rates + pairs[i].offset);
        json_t *const pair = json_array();
        fine = set(root, pairs[i].name, pair) && json_array_append_new(pair, json_real(from[0])) == 0 && json_array_append_new(pair, json_real(from[1])) == 0;
    }
    char *const text = fine ? json_dumps(root, JSON_INDENT(2) | JSON_REAL_PRECISION(DIGITS)) : NULL;
    json_decref(root);
    if (text == NULL) {
        return octe__report(error, OCT_OUT_OF_MEMORY, where, path, "no memory for the file");
    }
    const oct_status status = oct__file_write(path, text, strlen(text), error);
    free(text);
    return status;
}
