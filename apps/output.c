/* output.c: see output.h. */
#include "apps/output.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "apps/command.h"
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

int app_output_report(const app_text *report, const char *path)
{
    if (report->failed || report->bytes == NULL) {
        return app_output_fail("out of memory while writing the report");
    }
    if (path == NULL) {
        return app_output_write(report->bytes, report->length) ? APP_OK : APP_FAILED;
    }
    oct_error error = OCT_ERROR_INIT;
    if (oct__file_write(path, report->bytes, report->length, &error) != OCT_OK) {
        (void)app_output_error(&error);
        return APP_FAILED;
    }
    return APP_OK;
}

int app_output_fail(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    fputs("octavo: ", stderr);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
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
