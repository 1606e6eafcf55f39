/* text.h: owns text that grows: what a report is put together in before any of it is written. One thread a text. */
#ifndef APP_TEXT_H
#define APP_TEXT_H

#include <stdbool.h>
#include <stddef.h>

/* Zero-initialise. `failed` stays set once memory ran out, so that it need be looked at only at the end. */
typedef struct app_text {
    char *bytes;       /* zero-terminated; NULL while empty */
    size_t length;
    size_t room;
    bool failed;
} app_text;

#if defined(__GNUC__)
__attribute__((format(printf, 2, 3)))
#endif
void app_text_add(app_text *text, const char *format, ...);
void app_text_add_bytes(app_text *text, const char *bytes, size_t n);
void app_text_add_json(app_text *text, const char *string);                     /* in quotes, escaped; NULL: null */
void app_text_add_number(app_text *text, double value, int digits);             /* JSON: significant digits, null when not finite */

/* Into a line of Markdown as the string is: what would begin markup is escaped, line feeds and tabs are blanks, marks that turn the direction of
 * writing are named ("[U+202E]"). NULL: nothing. */
void app_text_add_markdown(app_text *text, const char *string);
void app_text_add_line(app_text *text, const char *string);                     /* the same without markup to escape */

/* The string, blanks up to `columns` characters after or (negative columns) before it; characters counted as code points. */
void app_text_add_padded(app_text *text, const char *string, int columns);
void app_text_free(app_text *text);                                             /* frees and zeroes */

size_t app_text_columns(const char *string);                                    /* code points of UTF-8 */

#endif
