/* Outcomes of the library as Python exceptions: one class a status, each with .status, .name, .text and .where. */
#ifndef OCTAVO_PYTHON_ERROR_H
#define OCTAVO_PYTHON_ERROR_H

#include <nanobind/nanobind.h>

#include "octavo/octavo.h"

namespace octavo_python {

[[noreturn]] void raise(oct_status status, const char *text, const char *where);
[[noreturn]] void refuse(const char *where, const char *format, ...) __attribute__((format(printf, 2, 3)));   /* InvalidArgument */

inline void check(oct_status status, const oct_error &error)
{
    if (status != OCT_OK) {
        raise(status, error.text, error.where);
    }
}

void bind_errors(nanobind::module_ &m);

}
#endif
