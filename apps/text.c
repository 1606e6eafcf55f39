/* text.c: see text.h. */
#include "apps/text.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "host/text.h"

/* Room for n more bytes and the zero. */
static bool reserve(app_text *text, size_t n)
{
    if (text->failed) {
        return false;
    }
    if (n < text->room - text->length && text->bytes != NULL) {
        return true;
    }
    size_t room = text->room > 0 ? text->room : 256;
    while (room - text->length <= n) {
        if (room > SIZE_MAX / 2) {
            text->failed = true;
            return false;
        }
        room *= 2;
    }
    char *const bytes = realloc(text->bytes, room);
    if (bytes == NULL) {
        text->failed = true;
        return false;
    }
    text->bytes = bytes;
    text->room = room;
    return true;
}

void app_text_add_bytes(app_text *text, const char *bytes, size_t n)
{
    if (reserve(text, n)) {
        if (n > 0) {
            memcpy(text->bytes + text->length, bytes, n);
        }
        text->length += n;
        text->bytes[text->length] = '\0';
    }
}

void app_text_add(app_text *text, const char *format, ...)
{
    va_list arguments, again;
    va_start(arguments, format);
    va_copy(again, arguments);
    const int length = vsnprintf(NULL, 0, format, arguments);
    if (length >= 0 && reserve(text, (size_t)length)) {
        (void)vsnprintf(text->bytes + text->length, (size_t)length + 1, format, again);
        text->length += (size_t)length;
    } else {
        text->failed = true;
    }
    va_end(again);
    va_end(arguments);
}

void app_text_add_json(app_text *text, const char *string)
{
    oct__text measure;
    oct__text_init(&measure, NULL, 0);
    oct__text_add_json_string(&measure, string);
    if (reserve(text, measure.length)) {
        oct__text fill;
        oct__text_init(&fill, text->bytes + text->length, measure.length + 1);
        oct__text_add_json_string(&fill, string);
        text->length += measure.length;
    }
}

void app_text_add_number(app_text *text, double value, int digits)
{
    char bytes[64];
    oct__text number;
    oct__text_init(&number, bytes, sizeof(bytes));
    oct__text_add_number(&number, value, digits);
    app_text_add_bytes(text, bytes, number.length);
}

/* Of the marks that turn the direction of writing: the number of the one that begins here, else 0. */
static unsigned turning_mark(const unsigned char *s)
{
    const unsigned code = s[0] == 0xd8 && s[1] == 0x9c ? 0x061c : s[0] == 0xe2 && (s[1] == 0x80 || s[1] == 0x81) && s[2] >= 0x80 && s[2] < 0xc0 ? 0x2000u + (s[1] & 1u) * 64 + (s[2] & 63u) : 0;
    const bool turns = code == 0x061c || code == 0x200e || code == 0x200f || (code >= 0x202a && code <= 0x202e) || (code >= 0x2066 && code <= 0x2069);
    return turns ? code : 0;
}

/* What ends a cell, begins HTML, code, emphasis, a character's name, or makes a link of brackets. */
static bool is_markup(const char *s) { return strchr("\\|<`*_&~", *s) != NULL || (*s == ']' && (s[1] == '(' || s[1] == '[')); }

static void add_line(app_text *text, const char *string, bool escaped)
{
    for (const char *at = string != NULL ? string : ""; *at != '\0'; at++) {
        const unsigned mark = turning_mark((const unsigned char *)at);
        if (mark != 0) {
            app_text_add(text, "[U+%04X]", mark);
            at += mark < 0x800 ? 1 : 2;
            continue;
        }
        if (escaped && is_markup(at)) {
            app_text_add_bytes(text, "\\", 1);
        }
        app_text_add_bytes(text, *at == '\n' || *at == '\r' || *at == '\t' ? " " : at, 1);
    }
}

void app_text_add_markdown(app_text *text, const char *string) { add_line(text, string, true); }

void app_text_add_line(app_text *text, const char *string) { add_line(text, string, false); }

size_t app_text_columns(const char *string)
{
    size_t n = 0;
    for (; *string != '\0'; string++) {
        n += ((unsigned char)*string & 0xc0) != 0x80;
    }
    return n;
}

void app_text_add_padded(app_text *text, const char *string, int columns)
{
    const int have = (int)app_text_columns(string);
    const int blanks = (columns < 0 ? -columns : columns) - have;
    if (columns < 0 && blanks > 0) {
        app_text_add(text, "%*s", blanks, "");
    }
    app_text_add_bytes(text, string, strlen(string));
    if (columns > 0 && blanks > 0) {
        app_text_add(text, "%*s", blanks, "");
    }
}

void app_text_free(app_text *text)
{
    free(text->bytes);
    *text = (app_text){ 0 };
}
