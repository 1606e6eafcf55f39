/* machine_text.h: owns the library's words about this machine, as a report. Single-threaded. */
#ifndef APP_MACHINE_TEXT_H
#define APP_MACHINE_TEXT_H

#include "apps/rates.h"

/* What a context with these rates says of the machine, to standard output (path NULL) or a file. file: where the rates were kept, said in a
 * last line of the plain form; NULL: GPUs are looked for instead. Returns the exit code. */
int app_machine_report(const app_rates *rates, const char *file, uint32_t form, const char *path);

#endif
