/* log.c: see log.h. */
#include "host/log.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

void oct__log_write(const oct__log *log, oct__log_level level, const char *format, ...)
{
    char text[512];
    if (log == NULL || log->write == NULL) {
        return;
    }
    va_list arguments;
    va_start(arguments, format);
    const int length = vsnprintf(text, sizeof(text), format, arguments);
    va_end(arguments);
    if (length >= 0) {
        log->write(log->user, (int)level, text);
    }
}
