/* interrupt.h: owns what Ctrl-C does: the first one asks the command to stop cleanly, a second one ends the program at once. */
#ifndef APP_INTERRUPT_H
#define APP_INTERRUPT_H

#include <stdbool.h>

void app_interrupt_install(void);

/* True after Ctrl-C (or SIGTERM): loops look between steps. Any thread. */
bool app_interrupted(void);

#endif
