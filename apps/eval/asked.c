/* asked.c: what an evaluation is asked to do, from its options; see session.h. */
#include <stdio.h>
#include <string.h>

#include "apps/eval/session.h"
#include "apps/output.h"
#include "host/error.h"

static const char where[] = "octavo eval";

static bool is_item(const char *item, size_t n, const char *name)
{
    return strlen(name) == n && memcmp(item, name, n) == 0;
}

/* The list with its base first: f16, unless it begins with a 16-bit format. */
static oct_status read_formats(eval_session *s, oct_error *error)
{
    const char *const list = s->options.formats;
    const size_t n_first = strcspn(list, ",");
    const bool has_base = is_item(list, n_first, "f16") || is_item(list, n_first, "bf16") || is_item(list, n_first, "auto");
    app_text full = { 0 };
    app_text_add(&full, "%s", has_base ? "" : "f16");
    for (const char *at = list;; at++) {
        const size_t n = strcspn(at, ",");
        if (has_base || !is_item(at, n, "f16")) {
            app_text_add(&full, "%s", full.length > 0 ? "," : "");
            app_text_add_bytes(&full, at, n);
        }
        at += n;
        if (*at == '\0') {
            break;
        }
    }
    oct_error inner = OCT_ERROR_INIT;
    oct_status status = full.failed ? oct__error_set(error, OCT_OUT_OF_MEMORY, where, "out of memory") : OCT_OK;
    if (status == OCT_OK && compare_formats_parse(full.bytes, s->formats, &s->n_formats, &inner) != OCT_OK) {
        status = oct__error_set(error, OCT_INVALID_ARGUMENT, where, "--kv-cache-dtype: %.200s", inner.text);
    }
    app_text_free(&full);
    for (uint32_t i = 0; i < s->n_formats && status == OCT_OK; i++) {
        if (s->formats[i].is_reference) {
            return oct__error_set(error, OCT_INVALID_ARGUMENT, where, "--kv-cache-dtype: '%s' is llama.cpp's; octavo compare judges that, here only ours run", s->formats[i].name);
        }
    }
    return status;
}

static oct_status read_task(eval_session *s, const char *item, size_t n, oct_error *error)
{
    const eval_task_kind *const kind = eval_task_kind_find(item, n);
    if (is_item(item, n, "all")) {
        s->all = s->tokens = s->greedy = s->inside = true;
    } else if (is_item(item, n, "tokens")) {
        s->tokens = true;
    } else if (is_item(item, n, "greedy")) {
        s->greedy = true;
    } else if (is_item(item, n, "inside")) {
        s->inside = true;
    } else if (kind == NULL) {
        return oct__error_set(error, OCT_INVALID_ARGUMENT, where, "--tasks: '%.*s' is none of tokens greedy inside hellaswag truthfulqa needle recall copy lookup gsm8k all",
                              (int)(n < 40 ? n : 40), item);
    }
    for (uint32_t i = 0; kind != NULL && i < s->n_kinds; i++) {
        if (s->kinds[i] == kind) {
            return oct__error_set(error, OCT_INVALID_ARGUMENT, where, "--tasks: '%s' is given twice", kind->name);
        }
    }
    if (kind != NULL) {
        s->kinds[s->n_kinds++] = kind;
    }
    return OCT_OK;
}

static oct_status read_tasks(eval_session *s, oct_error *error)
{
    oct_status status = OCT_OK;
    for (const char *at = s->options.tasks; status == OCT_OK; at++) {
        const size_t n = strcspn(at, ",");
        status = read_task(s, at, n, error);
        at += n;
        if (*at == '\0') {
            break;
        }
    }
    for (uint32_t i = 0; s->all && status == OCT_OK && eval_task_kind_at(i) != NULL; i++) {
        s->kinds[i] = eval_task_kind_at(i);
        s->n_kinds = i + 1;
    }
    return status;
}

oct_status eval_session_asked(eval_session *s, oct_error *error)
{
    const eval_options *const o = &s->options;
    s->items = (eval_item_options){ .folder = o->folder, .n_items = o->n_items, .generate_tokens = o->generate_tokens, .seed = o->seed };
    oct_status status = read_formats(s, error);
    if (status == OCT_OK) {
        status = read_tasks(s, error);
    }
    if (status == OCT_OK && !app_arguments_counts(o->lengths, 1u << 24, s->items.lengths, EVAL_MAX_LENGTHS, &s->items.n_lengths)) {
        status = oct__error_set(error, OCT_INVALID_ARGUMENT, where, "--lengths wants at most %d whole numbers such as 512,2048, not '%.60s'", EVAL_MAX_LENGTHS, o->lengths);
    }
    for (uint32_t i = 0; i < s->items.n_lengths && status == OCT_OK; i++) {
        if (s->items.lengths[i] < 128) {
            status = oct__error_set(error, OCT_INVALID_ARGUMENT, where, "--lengths: %u tokens are too few; the shortest is 128", s->items.lengths[i]);
        }
    }
    return status;
}

const char *eval_form_of(const char *path)
{
    static const char *const forms[] = { "html", "md", "json" };
    const char *const point = strrchr(path, '.');
    for (size_t i = 0; point != NULL && point != path && i < sizeof(forms) / sizeof(forms[0]); i++) {
        if (strcmp(point + 1, forms[i]) == 0) {
            return forms[i];
        }
    }
    return NULL;
}

/* No list of items, asked for or not, is overwritten. */
static oct_status check_items(const eval_options *o, const char *path, const char *what, oct_error *error)
{
    for (uint32_t i = 0; eval_task_kind_at(i) != NULL; i++) {
        const eval_task_kind *const kind = eval_task_kind_at(i);
        char list[4096];
        const bool is_made = kind->scoring == EVAL_RECITE, fits = !is_made && snprintf(list, sizeof(list), "%s/%s.jsonl", o->folder, kind->name) < (int)sizeof(list);
        if (fits && app_output_is_same(path, list)) {
            return oct__error_set(error, OCT_INVALID_ARGUMENT, where, "%s '%s' is the list of --data that %s reads; nothing would be left of it", what, path, kind->name);
        }
    }
    return OCT_OK;
}

/* What is written must not be what is read, nor another of what is written: the later would take the place of the earlier. */
static oct_status check_apart(const eval_options *o, oct_error *error)
{
    struct { const char *path, *what; bool is_written; } files[2 * APP_TEXTS_MAX + 5];
    uint32_t n = 0;
    files[n].path = o->model, files[n].what = "--model", files[n++].is_written = false;
    for (uint32_t i = 0; i < o->texts.n; i++) {
        files[n].path = o->texts.item[i], files[n].what = "--file", files[n++].is_written = false;
    }
    for (uint32_t i = 0; i < o->saves.n; i++) {
        files[n].path = o->saves.item[i], files[n].what = "--save", files[n++].is_written = true;
    }
    if (o->output != NULL) {
        files[n].path = o->output, files[n].what = "--output", files[n++].is_written = true;
    }
    if (o->items != NULL) {
        files[n].path = o->items, files[n].what = "--save-items", files[n++].is_written = true;
    }
    if (o->partial != NULL && strcmp(o->partial, "none") != 0) {
        files[n].path = o->partial, files[n].what = "--partial", files[n++].is_written = true;
    }
    for (uint32_t i = 0; i < n; i++) {
        const oct_status status = files[i].is_written ? check_items(o, files[i].path, files[i].what, error) : OCT_OK;
        if (status != OCT_OK) {
            return status;
        }
        for (uint32_t j = 0; j < i; j++) {
            if ((files[i].is_written || files[j].is_written) && app_output_is_same(files[i].path, files[j].path)) {
                return oct__error_set(error, OCT_INVALID_ARGUMENT, where, "%s and %s are both '%s'; nothing would be left of one of them", files[j].what, files[i].what, files[i].path);
            }
        }
    }
    return OCT_OK;
}

oct_status eval_session_check_outputs(const eval_session *s, oct_error *error)
{
    const eval_options *const o = &s->options;
    oct_status status = check_apart(o, error);
    if (status == OCT_OK && o->output != NULL) {
        status = app_output_check(o->output, error);
    }
    for (uint32_t i = 0; i < o->saves.n && status == OCT_OK; i++) {
        status = app_output_check(o->saves.item[i], error);
    }
    if (status == OCT_OK && o->items != NULL) {
        status = app_output_check(o->items, error);
    }
    if (status == OCT_OK && o->partial != NULL && strcmp(o->partial, "none") != 0) {
        status = app_output_check(o->partial, error);
    }
    return status;
}
