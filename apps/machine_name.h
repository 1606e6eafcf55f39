/* machine_name.h: owns the CPU's name for reports. */
#ifndef APP_MACHINE_NAME_H
#define APP_MACHINE_NAME_H

#include <stddef.h>

/* "AMD EPYC 9654", or "unknown CPU"; cut to fit, zero-terminated. */
void app_machine_name(char *name, size_t size);

#endif
