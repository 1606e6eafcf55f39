/* isolate.h: owns the running of cases in a child process, so that a crash, a sanitizer report or a hang of one kernel is that
 * kernel's failure and not the end of the suite. What a case is doing stands on a board that parent and child share.
 * Threads: one thread in the child's case at a time writes the board. */
#ifndef PARITY_ISOLATE_H
#define PARITY_ISOLATE_H

#include <stdint.h>

enum { ISOLATE_NAMES = 64 };

typedef struct isolate_board {
    int64_t next, failures, crashes, skipped, passed_over;
    char doing[256];          /* which variant on which case, for the report of a crash */
    char repeat[1536];        /* the command line that repeats it */
    char names[ISOLATE_NAMES][72];   /* what ran, and on how many cases */
    int64_t n_ran[ISOLATE_NAMES];
    double worst[ISOLATE_NAMES];
} isolate_board;

/* Runs one case and returns its number of failures. */
typedef int64_t isolate_case(void *arg, int64_t index);

/* Cases 0 .. n - 1, each given `seconds` before it counts as hung; after a crash the next child goes on with the next case, at
 * most 20 times. Returns the failures, crashes included. */
int64_t isolate_run(const char *title, int64_t n, unsigned seconds, isolate_case *run, void *arg);

/* For use within a case (outside of one they do nothing): what is being done, a variant that has been judged, a skip (a row that this machine cannot run), a
 * row that the problem is not for, and the printing of a failure with the line that repeats it. isolate_run prints how many of both, skips as cmocka does, so
 * that who counts skips counts these. */
void isolate_doing(const char *form, ...) __attribute__((format(printf, 1, 2)));
void isolate_repeat(const char *form, ...) __attribute__((format(printf, 1, 2)));
void isolate_ran(const char *name, double worst);
void isolate_skipped(void);
void isolate_passed_over(void);
void isolate_fail(const char *form, ...) __attribute__((format(printf, 1, 2)));

/* How many cases `name` was judged on since the program started, over all isolate_run calls. */
int64_t isolate_n_ran(const char *name);

/* One line for each name: how many cases, the worst error. */
void isolate_report(void);

#endif
