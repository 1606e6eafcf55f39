/* machine_name.h: owns the CPU's name for reports. */
#ifndef APP_MACHINE_NAME_H
#define APP_MACHINE_NAME_H

#include <stddef.h>

/* As the library tells CPUs apart, which rates are kept by: "AMD EPYC 9654 [25/17/1 1ff]", brand, family, model, stepping and features (doc/BENCH.md);
 * "unknown CPU" without memory. Cut to fit, zero-terminated. */
void app_machine_name(char *name, size_t size);

#endif
