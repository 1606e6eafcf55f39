/* html_all.c: every number of the JSON as tables, whatever the JSON holds. See html.h. */
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "apps/eval/html.h"

enum { DIGITS = 6, DEEPEST = 12 };

static void add_scalar(const json_t *value, app_text *text)
{
    switch (json_typeof(value)) {
    case JSON_STRING:
        app_text_add(text, "<bdi>");
        eval_html_text(text, json_string_value(value));
        app_text_add(text, "</bdi>");
        break;
    case JSON_INTEGER:
        app_text_add(text, "%" JSON_INTEGER_FORMAT, json_integer_value(value));
        break;
    case JSON_REAL:
        app_text_add_number(text, json_real_value(value), DIGITS);
        break;
    case JSON_TRUE:
    case JSON_FALSE:
        app_text_add(text, json_is_true(value) ? "yes" : "no");
        break;
    default:
        app_text_add(text, "\xE2\x80\x93");
    }
}

static bool is_scalar(const json_t *value) { return !json_is_object(value) && !json_is_array(value); }

static const char *class_of(const json_t *value) { return json_is_string(value) ? " class=\"t\"" : ""; }

static void add_value(const char *path, const json_t *value, int depth, app_text *text);

static void begin_table(const char *path, app_text *text)
{
    app_text_add(text, "<div class=\"wide\" tabindex=\"0\" role=\"region\" aria-label=\"");
    eval_html_text(text, path);
    app_text_add(text, "\"><table>\n<caption>");
    eval_html_text(text, path);
    app_text_add(text, "</caption>\n");
}

static void end_table(app_text *text) { app_text_add(text, "</table></div>\n"); }

/* Small enough for a cell: an interval. */
static bool is_small(const json_t *value)
{
    const char *key;
    json_t *inner;
    if (json_is_array(value)) {
        return json_array_size(value) <= 2 && (json_array_size(value) == 0 || (is_scalar(json_array_get(value, 0)) && is_scalar(json_array_get(value, json_array_size(value) - 1))));
    }
    json_object_foreach((json_t *)(uintptr_t)value, key, inner) {
        if (!is_scalar(inner)) {
            return false;
        }
    }
    return is_scalar(value) || json_object_size(value) <= 2;
}

static void add_small(const json_t *value, app_text *text)
{
    const char *key;
    json_t *inner;
    size_t n = 0;
    const json_t *item;
    if (is_scalar(value)) {
        add_scalar(value, text);
    }
    json_array_foreach(value, n, item) {
        app_text_add(text, "%s", n > 0 ? " to " : "");
        add_scalar(item, text);
    }
    n = 0;
    json_object_foreach((json_t *)(uintptr_t)value, key, inner) {
        app_text_add(text, "%s", n++ > 0 ? ", " : "");
        eval_html_text(text, key);
        app_text_add(text, " ");
        add_scalar(inner, text);
    }
}

/* Records of plain values side by side; what else they hold comes after, under its own path. */
static void add_records(const char *path, const json_t *list, int depth, app_text *text)
{
    const json_t *const first = json_array_get(list, 0);
    const char *key;
    json_t *value;
    size_t i;
    const json_t *record;
    begin_table(path, text);
    app_text_add(text, "<tr><th scope=\"col\">#</th>");
    json_object_foreach((json_t *)(uintptr_t)first, key, value) {
        app_text_add(text, "<th scope=\"col\">");
        eval_html_text(text, key);
        app_text_add(text, "</th>");
    }
    app_text_add(text, "</tr>\n");
    json_array_foreach(list, i, record) {
        app_text_add(text, "<tr><th scope=\"row\">%zu</th>", i);
        json_object_foreach((json_t *)(uintptr_t)first, key, value) {
            const json_t *const cell = json_object_get(record, key);
            app_text_add(text, "<td%s>", class_of(cell));
            if (cell != NULL && is_small(cell)) {
                add_small(cell, text);
            } else {
                app_text_add(text, "below");
            }
            app_text_add(text, "</td>");
        }
        app_text_add(text, "</tr>\n");
    }
    end_table(text);
    json_array_foreach(list, i, record) {
        json_object_foreach((json_t *)(uintptr_t)record, key, value) {
            if (!is_small(value) || json_object_get(first, key) == NULL) {
                char inner[256];
                (void)snprintf(inner, sizeof(inner), "%.160s[%zu].%.60s", path, i, key);
                add_value(inner, value, depth + 1, text);
            }
        }
    }
}

/* Lists of plain values, or of lists of them, as rows. */
static void add_matrix(const char *path, const json_t *list, app_text *text)
{
    size_t i, j;
    const json_t *row, *cell;
    begin_table(path, text);
    json_array_foreach(list, i, row) {
        app_text_add(text, "<tr><th scope=\"row\">%zu</th>", i);
        if (is_scalar(row)) {
            app_text_add(text, "<td%s>", class_of(row));
            add_scalar(row, text);
            app_text_add(text, "</td>");
        }
        json_array_foreach(row, j, cell) {
            app_text_add(text, "<td%s>", class_of(cell));
            add_scalar(cell, text);
            app_text_add(text, "</td>");
        }
        app_text_add(text, "</tr>\n");
    }
    end_table(text);
}

static bool is_matrix(const json_t *list)
{
    size_t i, j;
    const json_t *row, *cell;
    json_array_foreach(list, i, row) {
        if (json_is_object(row)) {
            return false;
        }
        json_array_foreach(row, j, cell) {
            if (!is_scalar(cell)) {
                return false;
            }
        }
    }
    return true;
}

static void add_object(const char *path, const json_t *object, int depth, app_text *text)
{
    const char *key;
    json_t *value;
    bool open = false;
    json_object_foreach((json_t *)(uintptr_t)object, key, value) {
        if (!is_small(value)) {
            continue;
        }
        if (!open) {
            begin_table(path, text);
            open = true;
        }
        app_text_add(text, "<tr><th class=\"t\" scope=\"row\">");
        eval_html_text(text, key);
        app_text_add(text, "</th><td%s>", class_of(value));
        add_small(value, text);
        app_text_add(text, "</td></tr>\n");
    }
    if (open) {
        end_table(text);
    }
    json_object_foreach((json_t *)(uintptr_t)object, key, value) {
        if (!is_small(value)) {
            char inner[256];
            (void)snprintf(inner, sizeof(inner), "%.180s%s%.60s", path, path[0] != '\0' ? "." : "", key);
            add_value(inner, value, depth + 1, text);
        }
    }
}

static void add_value(const char *path, const json_t *value, int depth, app_text *text)
{
    size_t i;
    const json_t *inner;
    if (depth > DEEPEST) {
        text->failed = true;   /* no result is so deep: better none than half a page */
    } else if (json_is_object(value)) {
        add_object(path, value, depth, text);
    } else if (json_array_size(value) == 0) {
        return;
    } else if (is_matrix(value)) {
        add_matrix(path, value, text);
    } else if (json_is_object(json_array_get(value, 0))) {
        add_records(path, value, depth, text);
    } else {
        json_array_foreach(value, i, inner) {
            char name[256];
            (void)snprintf(name, sizeof(name), "%.230s[%zu]", path, i);
            add_value(name, inner, depth + 1, text);
        }
    }
}

void eval_html_all(const eval_result *r, app_text *text)
{
    app_text json = { 0 };
    json_error_t why;
    eval_result_json(r, false, &json);
    json_t *const root = json.failed || json.bytes == NULL ? NULL : json_loadb(json.bytes, json.length, 0, &why);
    app_text_free(&json);
    if (root == NULL) {
        text->failed = true;
        return;
    }
    app_text_add(text, "<section aria-label=\"all numbers\">\n<h2 id=\"all\">All numbers</h2>\n<p>What the JSON of the same evaluation holds, under the names that it has there.</p>\n");
    add_value("result", root, 0, text);
    app_text_add(text, "</section>\n");
    json_decref(root);
}
