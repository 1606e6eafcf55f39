/* progress.h: owns the progress bar: on standard error when that is a terminal, nowhere else. Single-threaded. */
#ifndef APP_PROGRESS_H
#define APP_PROGRESS_H

#include <stdbool.h>

/* Zero-initialise, then begin. */
typedef struct app_progress {
    bool shown;
    double total, done;       /* in any unit of work */
    double begun_seconds, drawn_seconds;
    char doing[48];
} app_progress;

void app_progress_begin(app_progress *progress, double total);
void app_progress_say(app_progress *progress, const char *doing);   /* what is being done now */
void app_progress_add(app_progress *progress, double work);
void app_progress_end(app_progress *progress);                      /* erases the bar; fine without begin */

#endif
