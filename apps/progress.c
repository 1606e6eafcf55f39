/* progress.c: see progress.h. */
#include "apps/progress.h"

#include <stdio.h>
#include <unistd.h>

#include "host/clock.h"

enum { BAR_COLUMNS = 28 };
static const double redraw_seconds = 0.1;

static void draw(app_progress *progress, bool always)
{
    const double now = oct__clock_seconds();
    if (!progress->shown || (!always && now - progress->drawn_seconds < redraw_seconds)) {
        return;
    }
    progress->drawn_seconds = now;
    const double share = progress->total > 0 && progress->done < progress->total ? progress->done / progress->total : 1;
    char bar[BAR_COLUMNS + 1];
    for (int i = 0; i < BAR_COLUMNS; i++) {
        bar[i] = i < (int)(share * BAR_COLUMNS) ? '#' : '.';
    }
    bar[BAR_COLUMNS] = '\0';
    const double spent = now - progress->begun_seconds;
    fprintf(stderr, "\r[%s] %3.0f %%", bar, share * 100);
    /* An estimate from the first seconds would only mislead. */
    if (spent > 5 && share > 0.02) {
        const double left = spent / share - spent;
        fprintf(stderr, "  %d:%02d left", (int)left / 60, (int)left % 60);
    }
    fprintf(stderr, "  %.*s\x1b[K", (int)sizeof(progress->doing) - 1, progress->doing);
    fflush(stderr);
}

void app_progress_begin(app_progress *progress, double total)
{
    *progress = (app_progress){ .shown = isatty(STDERR_FILENO) != 0, .total = total, .begun_seconds = oct__clock_seconds() };
    draw(progress, true);
}

void app_progress_say(app_progress *progress, const char *doing)
{
    (void)snprintf(progress->doing, sizeof(progress->doing), "%s", doing);
    draw(progress, true);
}

void app_progress_add(app_progress *progress, double work)
{
    progress->done += work;
    draw(progress, false);
}

void app_progress_end(app_progress *progress)
{
    if (progress->shown) {
        fputs("\r\x1b[K", stderr);
        fflush(stderr);
        progress->shown = false;
    }
}
