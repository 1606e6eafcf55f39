/* output.c: see output.h. */
#include "apps/output.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "apps/command.h"
#include "engine/vocab.h"
#include "host/error.h"
#include "host/file.h"

/* The errno of the first failed write; later ones often say less. */
static int first_error;

bool app_output_write(const char *bytes, size_t n)
{
    errno = 0;
    if (first_error == 0 && (fwrite(bytes, 1, n, stdout) != n || fflush(stdout) != 0)) {
        first_error = errno != 0 ? errno : EIO;
    }
    return first_error == 0;
}

int app_output_finish(int code)
{
    errno = 0;
    /* Closing is where a network file system may report what it could not store. */
    if (fclose(stdout) != 0 && first_error == 0) {
        first_error = errno != 0 ? errno : EIO;
    }
    if (first_error != 0) {
        const int failed = app_output_fail("standard output: %s", strerror(first_error));
        return code != APP_OK ? code : failed;
    }
    return code;
}

/* Valid UTF-8 without control characters, whatever the names of files brought in. */
static void add_clean(app_text *clean, const app_text *report)
{
    octe_stream stream = { 0 };
    char out[8];   /* of one byte: at most what was held and the byte itself, both replaced */
    for (size_t i = 0; i < report->length; i++) {
        const char byte = report->bytes[i];
        /* U+0080 to U+009F are control characters too: one begins a terminal's commands. */
        const bool is_high = (unsigned char)byte == 0xc2 && i + 1 < report->length && (unsigned char)report->bytes[i + 1] >= 0x80 && (unsigned char)report->bytes[i + 1] < 0xa0;
        const bool is_control = ((unsigned char)byte < 0x20 && byte != '\n' && byte != '\t') || byte == 0x7f || is_high;
        i += is_high;
        app_text_add_bytes(clean, out, octe_stream_bytes(&stream, is_control ? "\xff" : &byte, 1, out));
    }
    octe_stream_finish(&stream, out);
    app_text_add(clean, "%s", out);
}

int app_output_report(const app_text *report, const char *path)
{
    app_text clean = { 0 };
    int code = APP_OK;
    add_clean(&clean, report);
    if (report->failed || clean.failed || report->bytes == NULL) {
        code = app_output_fail("out of memory while writing the report");
    } else if (path == NULL) {
        code = app_output_write(clean.bytes, clean.length) ? APP_OK : APP_FAILED;
    } else {
        oct_error error = OCT_ERROR_INIT;
        if (oct__file_write(path, clean.bytes, clean.length, &error) != OCT_OK) {
            (void)app_output_error(&error);
            code = APP_FAILED;
        }
    }
    app_text_free(&clean);
    return code;
}

/* A file that is there must open; one that is not must be possible to make, and is taken away again. */
oct_status app_output_check(const char *path, oct_error *error)
{
    struct stat about;
    const bool exists = stat(path, &about) == 0;
    if (exists && !S_ISREG(about.st_mode) && !S_ISDIR(about.st_mode)) {
        return OCT_OK;   /* a pipe: opening it may wait */
    }
    const int file = exists ? open(path, O_WRONLY | O_CLOEXEC) : open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (file < 0) {
        return oct__error_set(error, OCT_IO_ERROR, "octavo", "%s cannot be written: %s", path, strerror(errno));
    }
    (void)close(file);
    if (!exists) {
        (void)unlink(path);
    }
    return OCT_OK;
}

static bool same_place(const struct stat *a, const struct stat *b) { return a->st_dev == b->st_dev && a->st_ino == b->st_ino; }

/* The folder that a path ends in, and the name there. */
static bool folder_of(const char *path, struct stat *folder, const char **name)
{
    const char *const slash = strrchr(path, '/');
    app_text text = { 0 };
    *name = slash != NULL ? slash + 1 : path;
    app_text_add_bytes(&text, path, (size_t)(*name - path));
    app_text_add(&text, ".");
    const bool there = !text.failed && stat(text.bytes, folder) == 0;
    app_text_free(&text);
    return there;
}

bool app_output_is_same(const char *a, const char *b)
{
    struct stat x, y;
    const char *p, *q;
    if (strcmp(a, b) == 0 || (stat(a, &x) == 0 && stat(b, &y) == 0 && same_place(&x, &y))) {
        return true;
    }
    return folder_of(a, &x, &p) && folder_of(b, &y, &q) && same_place(&x, &y) && strcmp(p, q) == 0;
}

int app_output_fail(const char *format, ...)
{
    va_list arguments;
    char line[8192];
    app_text clean = { 0 };
    va_start(arguments, format);
    const int n = vsnprintf(line, sizeof(line), format, arguments);
    va_end(arguments);
    /* Messages quote files and names: what would steer a terminal is not sent there. */
    const app_text said = { .bytes = line, .length = n < 0 ? 0 : n < (int)sizeof(line) ? (size_t)n : sizeof(line) - 1 };
    add_clean(&clean, &said);
    fprintf(stderr, "octavo: %s\n", clean.failed || clean.bytes == NULL ? "out of memory for a message" : clean.bytes);
    app_text_free(&clean);
    return APP_FAILED;
}

int app_output_error(const oct_error *error)
{
    if (error->status == OCT_CANCELLED) {
        return APP_INTERRUPTED;
    }
    (void)app_output_fail("%s", error->text[0] != '\0' ? error->text : oct_status_message((oct_status)error->status));
    return error->status == OCT_INVALID_ARGUMENT ? APP_USAGE : APP_FAILED;
}
