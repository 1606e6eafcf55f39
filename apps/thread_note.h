/* thread_note.h: owns the warning about more threads than cores. Single-threaded. */
#ifndef APP_THREAD_NOTE_H
#define APP_THREAD_NOTE_H

#include <stdint.h>

/* A line on standard error when n_threads is more than the CPUs that this process may use. */
void app_thread_note(uint32_t n_threads);

#endif
