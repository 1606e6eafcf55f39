/* error.c: see error.h. */
#include "host/error.h"

#include <stdarg.h>
#include <stdio.h>

oct_status oct__error_set(oct_error *error, oct_status status, const char *where, const char *format, ...)
{
    /* A struct_size that was never set says nothing about the memory behind it. */
    if (error == NULL || error->struct_size < sizeof(oct_error)) {
        return status;
    }
    va_list arguments;
    va_start(arguments, format);
    if (vsnprintf(error->text, sizeof(error->text), format, arguments) < 0) {
        error->text[0] = '\0';
    }
    va_end(arguments);
    snprintf(error->where, sizeof(error->where), "%s", where);
    error->status = (uint32_t)status;
    return status;
}
