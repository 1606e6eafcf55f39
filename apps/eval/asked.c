/* asked.c: what an evaluation is asked to do, from its options; see session.h. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "apps/eval/session.h"
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

/* A file that is there must open; one that is not must be possible to make, and is taken away again. */
static oct_status check_output(const char *path, oct_error *error)
{
    struct stat about;
    const bool exists = stat(path, &about) == 0;
    if (exists && !S_ISREG(about.st_mode) && !S_ISDIR(about.st_mode)) {
        return OCT_OK;   /* a pipe: opening it may wait */
    }
    const int file = exists ? open(path, O_WRONLY | O_CLOEXEC) : open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (file < 0) {
        return oct__error_set(error, OCT_IO_ERROR, where, "%s cannot be written: %s", path, strerror(errno));
    }
    (void)close(file);
    if (!exists) {
        (void)unlink(path);
    }
    return OCT_OK;
}

oct_status eval_session_check_outputs(const eval_session *s, oct_error *error)
{
    const eval_options *const o = &s->options;
    oct_status status = o->output != NULL ? check_output(o->output, error) : OCT_OK;
    for (uint32_t i = 0; i < o->saves.n && status == OCT_OK; i++) {
        status = check_output(o->saves.item[i], error);
    }
    if (status == OCT_OK && o->partial != NULL && strcmp(o->partial, "none") != 0) {
        status = check_output(o->partial, error);
    }
    return status;
}
