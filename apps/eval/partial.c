/* partial.c: see partial.h. */
#include "apps/eval/partial.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "apps/sum.h"
#include "host/error.h"
#include "host/file.h"

static const char where[] = "octavo eval";
static const char magic[] = "octavo eval partial 3 ";
enum { HEAD_BYTES = sizeof(magic) - 1 + 16 + 1 };   /* magic, checksum, line feed */
static const size_t most_bytes = (size_t)1 << 30;

oct_status eval_partial_write(const char *path, const char *asked, const eval_result *result, oct_error *error)
{
    app_text text = { 0 };
    char head[HEAD_BYTES + 1];
    app_text_add(&text, "%s%016d\n%s\n", magic, 0, asked);
    eval_result_json(result, true, &text);
    if (text.failed) {
        app_text_free(&text);
        return oct__error_set(error, OCT_OUT_OF_MEMORY, where, "out of memory for the partial result");
    }
    if (text.length > most_bytes) {
        /* It could not be read back, and would stand in the next run's way. */
        const size_t length = text.length;
        app_text_free(&text);
        return oct__error_set(error, OCT_UNSUPPORTED, where, "the partial result takes %zu bytes; at most %zu can be read back", length, most_bytes);
    }
    const uint64_t sum = app_sum(APP_SUM_INIT, text.bytes + HEAD_BYTES, text.length - HEAD_BYTES);
    (void)snprintf(head, sizeof(head), "%s%016llx\n", magic, (unsigned long long)sum);
    memcpy(text.bytes, head, HEAD_BYTES);
    const oct_status status = oct__file_write(path, text.bytes, text.length, error);
    app_text_free(&text);
    return status;
}

/* The first line in which what was asked differs: "tokens: 512" and "tokens: 1024". */
static oct_status other_evaluation(const char *path, const char *there, const char *here, oct_error *error)
{
    while (true) {
        const size_t a = strcspn(there, "\n"), b = strcspn(here, "\n");
        if (a != b || memcmp(there, here, a) != 0 || a == 0) {
            return oct__error_set(error, OCT_BAD_DATA, where, "%s is the partial result of another evaluation: it has '%.*s', this one '%.*s'; give --partial another name or remove it",
                                  path, (int)(a < 60 ? a : 60), there, (int)(b < 60 ? b : 60), here);
        }
        there += a + 1;
        here += b + 1;
    }
}

static oct_status read_checked(const char *path, const char *bytes, size_t n, const char *asked, eval_result *result, oct_error *error)
{
    if (n < HEAD_BYTES || memcmp(bytes, magic, sizeof(magic) - 1) != 0) {
        return oct__error_set(error, OCT_BAD_DATA, where, "%s is no partial result of octavo eval", path);
    }
    char sum[17];
    (void)snprintf(sum, sizeof(sum), "%016llx", (unsigned long long)app_sum(APP_SUM_INIT, bytes + HEAD_BYTES, n - HEAD_BYTES));
    const char *const body = bytes + HEAD_BYTES, *const end = strstr(body, "\n\n");
    if (memcmp(bytes + sizeof(magic) - 1, sum, 16) != 0 || bytes[HEAD_BYTES - 1] != '\n' || end == NULL) {
        return oct__error_set(error, OCT_BAD_DATA, where, "%s is damaged: its checksum does not match; remove it to begin again", path);
    }
    const size_t n_asked = (size_t)(end - body) + 1;
    if (strlen(asked) != n_asked || memcmp(asked, body, n_asked) != 0) {
        return other_evaluation(path, body, asked, error);
    }
    oct_error inner = OCT_ERROR_INIT;
    const oct_status status = eval_result_read(end + 2, n - (size_t)(end + 2 - bytes), result, &inner);
    return status == OCT_OK ? OCT_OK : oct__error_set(error, status, where, "%s: %.200s", path, inner.text);
}

oct_status eval_partial_read(const char *path, const char *asked, eval_result *result, bool *found, oct_error *error)
{
    const oct__allocator plain = { 0 };
    char *bytes = NULL;
    size_t n = 0;
    memset(result, 0, sizeof(*result));
    struct stat about;
    *found = stat(path, &about) == 0;
    if (!*found) {
        return OCT_OK;
    }
    if (!S_ISREG(about.st_mode)) {
        /* A device may have no end, a pipe no beginning. */
        return oct__error_set(error, OCT_BAD_DATA, where, "%s is no partial result of octavo eval: it is no file", path);
    }
    oct_status status = oct__file_read(&plain, path, most_bytes, &bytes, &n, error);
    if (status == OCT_OK) {
        status = read_checked(path, bytes, n, asked, result, error);
        oct__file_release(&plain, bytes, n);
    }
    if (status != OCT_OK) {
        eval_result_free(result);
    }
    return status;
}
