/* partial.h: owns the file in which an unfinished evaluation waits to be continued: a first line with the checksum of the rest, lines that say what was
 * asked, an empty line, the raw result as JSON. Written whole or not at all. Single-threaded. */
#ifndef APP_EVAL_PARTIAL_H
#define APP_EVAL_PARTIAL_H

#include "apps/eval/result.h"

/* asked: lines "name: value\n", none empty; what must be the same for a continuation. */
oct_status eval_partial_write(const char *path, const char *asked, const eval_result *result, oct_error *error);

/* *found false: there is no such file. BAD_DATA, with *result empty: no partial result, damaged, or of another evaluation, and which line differs. */
oct_status eval_partial_read(const char *path, const char *asked, eval_result *result, bool *found, oct_error *error);

#endif
