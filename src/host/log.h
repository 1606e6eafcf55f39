/* log.h: owns how a text reaches a context's log hook. Without a hook nothing is formatted.
 *
 * Threads: no state; any thread, as the hook's contract says. */
#ifndef OCT_HOST_LOG_H
#define OCT_HOST_LOG_H

typedef struct oct__log {
    void (*write)(void *user, int level, const char *text);   /* NULL: nothing is logged */
    void *user;
} oct__log;

typedef enum oct__log_level { OCT__LOG_ERROR, OCT__LOG_WARNING, OCT__LOG_INFO, OCT__LOG_DEBUG } oct__log_level;

/* One line without a line feed; cut at 511 bytes. log may be NULL. */
#if defined(__GNUC__)
__attribute__((format(printf, 3, 4)))
#endif
void oct__log_write(const oct__log *log, oct__log_level level, const char *format, ...);

#endif
