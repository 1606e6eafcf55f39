/* text.h: owns text written into a caller's buffer as snprintf does it: at most size bytes, always terminated, and the whole
 * length counted. Numbers come out the same in every locale, so that JSON stays JSON.
 *
 * Threads: no state; one thread a text. */
#ifndef OCT_HOST_TEXT_H
#define OCT_HOST_TEXT_H

#include <stddef.h>

typedef struct oct__text {
    char *bytes;        /* may be NULL with size 0 */
    size_t size;
    size_t length;      /* of the whole text, whether it fits or not */
} oct__text;

/* Starts an empty text; with size > 0 the buffer holds "" at once. */
void oct__text_init(oct__text *text, char *bytes, size_t size);

#if defined(__GNUC__)
__attribute__((format(printf, 2, 3)))
#endif
void oct__text_add(oct__text *text, const char *format, ...);   /* a piece may have up to 1023 bytes; no %f, %g, %e: see oct__text_add_number */

/* A double with `digits` significant digits and a point whatever the locale; not finite: null, as JSON needs it. */
void oct__text_add_number(oct__text *text, double value, int digits);

/* Its one step that matters: a number as some locale's %g writes it, with a point instead, in place. */
void oct__text_point_number(char *number);

/* The string in quotes, escaped for JSON; bytes that are no UTF-8 become U+FFFD. NULL gives null. */
void oct__text_add_json_string(oct__text *text, const char *string);

#endif
