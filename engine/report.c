/* report.c: see report.h. */
#include "engine/report.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "host/error.h"

/* oct_error.text holds 256 bytes: the message matters more than the folders before the file. */
enum { FILE_MAX_BYTES = 88 };

oct_status octe__report(oct_error *error, oct_status status, const char *where, const char *file, const char *format, ...)
{
    char message[256];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message, sizeof(message), format, arguments);
    va_end(arguments);
    if (file == NULL || file[0] == '\0') {
        return oct__error_set(error, status, where, "%s", message);
    }
    const size_t length = strlen(file);
    const char *end = length > FILE_MAX_BYTES ? file + length - FILE_MAX_BYTES : file;
    return oct__error_set(error, status, where, "%s%s: %s", end == file ? "" : "...", end, message);
}

const char *octe__quote(char text[OCTE__QUOTE_SIZE], const char *bytes, size_t n)
{
    size_t i = 0;
    for (; i < n && i < OCTE__QUOTE_SIZE - 4; i++) {
        text[i] = bytes[i] >= 0x20 && bytes[i] < 0x7f ? bytes[i] : '?';
    }
    text[i] = '\0';
    if (i < n) {
        memcpy(text + i, "...", 4);
    }
    return text;
}
