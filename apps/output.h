/* output.h: owns what leaves the program: standard output with its errors seen, files written whole or not at all, and messages
 * on standard error. Single-threaded. */
#ifndef APP_OUTPUT_H
#define APP_OUTPUT_H

#include "apps/text.h"
#include "octavo/status.h"

/* Writes and flushes. False once any write failed (a full disk, a closed pipe); app_output_finish says why. */
bool app_output_write(const char *bytes, size_t n);

/* The end of standard output: code when everything written has arrived, else 1 after a message. */
int app_output_finish(int code);

/* A finished report to standard output (path NULL) or in one step to a file. What is no UTF-8 in it, and control characters but for line
 * feeds and tabs, become U+FFFD. Returns the exit code; messages are out. */
int app_output_report(const app_text *report, const char *path);

/* IO_ERROR unless a file can be written there: asked before long work, not behind it. Leaves no file; a pipe or device passes. */
oct_status app_output_check(const char *path, oct_error *error);

/* Whether two paths lead to one file, which need not be there yet. */
bool app_output_is_same(const char *a, const char *b);

/* "octavo: <message>" on standard error, cleaned as a report is. Returns 1. */
#if defined(__GNUC__)
__attribute__((format(printf, 1, 2)))
#endif
int app_output_fail(const char *format, ...);

/* The text of an error on standard error. Returns 2 for INVALID_ARGUMENT, which is what was typed, 130 for CANCELLED, else 1. */
int app_output_error(const oct_error *error);

#endif
