/* text.c: see text.h. */
#include "host/text.h"

#include <math.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

void oct__text_init(oct__text *text, char *bytes, size_t size)
{
    text->bytes = bytes;
    text->size = bytes != NULL ? size : 0;
    text->length = 0;
    if (text->size > 0) {
        bytes[0] = '\0';
    }
}

static void add_bytes(oct__text *text, const char *bytes, size_t n)
{
    if (text->length + 1 < text->size) {
        const size_t room = text->size - 1 - text->length;
        const size_t fits = n < room ? n : room;
        memcpy(text->bytes + text->length, bytes, fits);
        text->bytes[text->length + fits] = '\0';
    }
    text->length += n;
}

void oct__text_add(oct__text *text, const char *format, ...)
{
    char piece[1024];
    va_list arguments;
    va_start(arguments, format);
    const int length = vsnprintf(piece, sizeof(piece), format, arguments);
    va_end(arguments);
    if (length > 0) {
        add_bytes(text, piece, (size_t)length < sizeof(piece) ? (size_t)length : sizeof(piece) - 1);
    }
}

/* Whatever stands between the digits and is neither sign nor exponent is the locale's decimal point, of one byte or more. */
void oct__text_point_number(char *number)
{
    char *to = number;
    bool in_point = false;
    for (const char *from = number; *from != '\0'; from++) {
        const bool own = (*from >= '0' && *from <= '9') || *from == '-' || *from == '+' || *from == 'e';
        if (own) {
            *to++ = *from;
        } else if (!in_point) {
            *to++ = '.';
        }
        in_point = !own;
    }
    *to = '\0';
}

void oct__text_add_number(oct__text *text, double value, int digits)
{
    char number[64];
    if (!isfinite(value)) {
        add_bytes(text, "null", 4);
        return;
    }
    snprintf(number, sizeof(number), "%.*g", digits, value);
    oct__text_point_number(number);
    add_bytes(text, number, strlen(number));
}

/* Bytes of the UTF-8 sequence at s (RFC 3629: no overlong form, no surrogate), 0 when it is none. */
static size_t utf8_length(const unsigned char *s)
{
    static const struct { unsigned char first, last, second_first, second_last; size_t n; } forms[] = {
        { 0x00, 0x7f, 0x00, 0x00, 1 }, { 0xc2, 0xdf, 0x80, 0xbf, 2 }, { 0xe0, 0xe0, 0xa0, 0xbf, 3 }, { 0xe1, 0xec, 0x80, 0xbf, 3 },
        { 0xed, 0xed, 0x80, 0x9f, 3 }, { 0xee, 0xef, 0x80, 0xbf, 3 }, { 0xf0, 0xf0, 0x90, 0xbf, 4 }, { 0xf1, 0xf3, 0x80, 0xbf, 4 },
        { 0xf4, 0xf4, 0x80, 0x8f, 4 },
    };
    for (size_t i = 0; i < sizeof(forms) / sizeof(forms[0]); i++) {
        if (s[0] < forms[i].first || s[0] > forms[i].last) {
            continue;
        }
        if (forms[i].n > 1 && (s[1] < forms[i].second_first || s[1] > forms[i].second_last)) {
            return 0;
        }
        for (size_t j = 2; j < forms[i].n; j++) {
            if (s[j] < 0x80 || s[j] > 0xbf) {
                return 0;
            }
        }
        return forms[i].n;
    }
    return 0;
}

void oct__text_add_json_string(oct__text *text, const char *string)
{
    if (string == NULL) {
        add_bytes(text, "null", 4);
        return;
    }
    add_bytes(text, "\"", 1);
    for (const unsigned char *s = (const unsigned char *)string; *s != 0;) {
        const size_t n = utf8_length(s);
        if (n == 0) {
            add_bytes(text, "\\ufffd", 6);
            s++;
            continue;
        }
        if (*s == '"' || *s == '\\') {
            const char escaped[2] = { '\\', (char)*s };
            add_bytes(text, escaped, 2);
        } else if (*s < 0x20 || *s == 0x7f) {
            char escaped[8];
            snprintf(escaped, sizeof(escaped), "\\u%04x", *s);
            add_bytes(text, escaped, 6);
        } else {
            add_bytes(text, (const char *)s, n);
        }
        s += n;
    }
    add_bytes(text, "\"", 1);
}
