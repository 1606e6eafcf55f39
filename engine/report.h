/* How the engine words an error: the file first, then what is wrong in it. Pure; any thread. */
#ifndef OCTE_REPORT_H
#define OCTE_REPORT_H

#include <stddef.h>

#include "octavo/status.h"

/* Fills *error (may be NULL) with "<file>: <message>" and returns status. A long path keeps its end; a text from a file goes through
 * octe__quote first. where: the public function. */
#if defined(__GNUC__)
__attribute__((format(printf, 5, 6)))
#endif
oct_status octe__report(oct_error *error, oct_status status, const char *where, const char *file, const char *format, ...);

/* The first bytes of a name found in a file, safe to print: what is no printable ASCII becomes '?'. Returns text. */
enum { OCTE__QUOTE_SIZE = 72 };
const char *octe__quote(char text[OCTE__QUOTE_SIZE], const char *bytes, size_t n);

#endif
