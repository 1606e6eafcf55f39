/* arguments.c: see arguments.h. */
#include "apps/arguments.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "apps/command.h"
#include "apps/output.h"

enum { HELP_INDENT = 32, HELP_COLUMNS = 110 };

int app_arguments_complain(const app_command *command, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    fprintf(stderr, "octavo %s: ", command->name);
    vfprintf(stderr, format, arguments);
    fprintf(stderr, "\n'octavo help %s' lists its flags.\n", command->name);
    va_end(arguments);
    return APP_USAGE;
}

/* The n bytes at name among names ("-m, --model"; a switch's "--x/--no-x"). *off: it was the form after the slash. */
static bool has_name(const char *names, const char *name, size_t n, bool *off)
{
    *off = false;
    while (*names != '\0') {
        const size_t length = strcspn(names, ",/");
        if (length == n && memcmp(names, name, n) == 0) {
            return true;
        }
        names += length;
        *off = *names == '/';
        names += strspn(names, ",/ ");
    }
    return false;
}

static const app_flag *find_flag(const app_command *command, const char *name, size_t n, bool *off)
{
    for (size_t i = 0; i < command->n_flags; i++) {
        if (has_name(command->flags[i].names, name, n, off)) {
            return &command->flags[i];
        }
    }
    return NULL;
}

/* A whole number written in digits only: strtoull alone takes "-1", " 1" and "1x". */
static bool read_whole(const char *text, size_t n, uint64_t *value)
{
    uint64_t sum = 0;
    if (n == 0) {
        return false;
    }
    for (size_t i = 0; i < n; i++) {
        const unsigned digit = (unsigned)text[i] - '0';
        if (digit > 9 || sum > (UINT64_MAX - digit) / 10) {
            return false;
        }
        sum = sum * 10 + digit;
    }
    *value = sum;
    return true;
}

static bool read_bytes(const char *text, uint64_t *value)
{
    size_t n = strlen(text);
    unsigned shift = 0;
    if (n > 0 && strchr("KMG", text[n - 1]) != NULL) {
        shift = text[n - 1] == 'K' ? 10 : text[n - 1] == 'M' ? 20 : 30;
        n--;
    }
    if (!read_whole(text, n, value) || *value > UINT64_MAX >> shift) {
        return false;
    }
    *value <<= shift;
    return true;
}

static bool is_choice(const char *alternatives, const char *value)
{
    const size_t n = strlen(value);
    while (*alternatives != '\0') {
        const size_t length = strcspn(alternatives, "|");
        if (length == n && memcmp(alternatives, value, n) == 0) {
            return true;
        }
        alternatives += length;
        alternatives += *alternatives == '|';
    }
    return false;
}

/* Puts a value where the flag says. */
static bool set_value(const app_command *command, const app_flag *flag, const char *shown, const char *value, void *options)
{
    void *const field = (char *)options + flag->offset;
    uint64_t whole = 0;
    switch (flag->kind) {
    case APP_TEXT:
        *(const char **)field = value;
        return true;
    case APP_TEXTS: {
        app_texts *const texts = field;
        if (texts->n == APP_TEXTS_MAX) {
            (void)app_arguments_complain(command, "%s may be given at most %d times", shown, APP_TEXTS_MAX);
            return false;
        }
        texts->item[texts->n++] = value;
        return true;
    }
    case APP_COUNT:
        if (!read_whole(value, strlen(value), &whole) || (double)whole < flag->min || (double)whole > flag->max) {
            (void)app_arguments_complain(command, "%s wants a whole number from %.0f to %.0f, not '%s'", shown, flag->min, flag->max, value);
            return false;
        }
        *(uint32_t *)field = (uint32_t)whole;
        return true;
    case APP_BYTES:
        if (!read_bytes(value, &whole) || (double)whole < flag->min || (double)whole > flag->max) {
            (void)app_arguments_complain(command, "%s wants a number of bytes such as 512M, not '%s'", shown, value);
            return false;
        }
        *(uint64_t *)field = whole;
        return true;
    case APP_NUMBER: {
        char *end = NULL;
        errno = 0;
        const float number = strtof(value, &end);
        if (end == value || *end != '\0' || !isfinite(number) || number < (float)flag->min || number > (float)flag->max) {
            (void)app_arguments_complain(command, "%s wants a number from %g to %g, not '%s'", shown, flag->min, flag->max, value);
            return false;
        }
        *(float *)field = number;
        return true;
    }
    case APP_CHOICE:
        if (!is_choice(flag->value, value)) {
            (void)app_arguments_complain(command, "%s wants one of %s, not '%s'", shown, flag->value, value);
            return false;
        }
        *(const char **)field = value;
        return true;
    case APP_SWITCH:
        break;
    }
    return false;
}

bool app_arguments_parse(const app_command *command, int argc, char **argv, void *options, int *exit_code)
{
    uint64_t given = 0;   /* one bit a flag, for those that are required */
    *exit_code = APP_USAGE;
    for (int i = 0; i < argc; i++) {
        const char *const argument = argv[i];
        if (strcmp(argument, "-h") == 0 || strcmp(argument, "--help") == 0) {
            *exit_code = app_arguments_help(command);
            return false;
        }
        if (argument[0] != '-' || argument[1] == '\0') {
            (void)app_arguments_complain(command, "unexpected argument '%s'", argument);
            return false;
        }
        const char *const equals = argument[1] == '-' ? strchr(argument, '=') : NULL;
        const size_t n = equals != NULL ? (size_t)(equals - argument) : strlen(argument);
        char shown[64];
        (void)snprintf(shown, sizeof(shown), "%.*s", (int)(n < 60 ? n : 60), argument);
        bool off;
        const app_flag *const flag = find_flag(command, argument, n, &off);
        if (flag == NULL) {
            (void)app_arguments_complain(command, "unknown flag '%s'", shown);
            return false;
        }
        given |= UINT64_C(1) << (flag - command->flags);
        if (flag->kind == APP_SWITCH) {
            if (equals != NULL) {
                (void)app_arguments_complain(command, "%s takes no value", shown);
                return false;
            }
            *(bool *)((char *)options + flag->offset) = !off;
            continue;
        }
        if (equals == NULL && i + 1 == argc) {
            (void)app_arguments_complain(command, "%s needs a value (%s)", shown, flag->value);
            return false;
        }
        const char *const value = equals != NULL ? equals + 1 : argv[++i];
        if (!set_value(command, flag, shown, value, options)) {
            return false;
        }
    }
    for (size_t i = 0; i < command->n_flags; i++) {
        if (command->flags[i].required && (given >> i & 1) == 0) {
            (void)app_arguments_complain(command, "%s %s is missing", command->flags[i].names, command->flags[i].value);
            return false;
        }
    }
    return true;
}

bool app_arguments_counts(const char *text, uint32_t limit, uint32_t *counts, uint32_t max, uint32_t *n)
{
    *n = 0;
    for (;;) {
        uint64_t value;
        const size_t length = strcspn(text, ",");
        if (*n == max || !read_whole(text, length, &value) || value > limit) {
            return false;
        }
        counts[(*n)++] = (uint32_t)value;
        if (text[length] == '\0') {
            return true;
        }
        text += length + 1;
    }
}

/* Words of `words`, broken before HELP_COLUMNS, the first line going on at `column`, later ones indented. Line feeds stay. */
static void add_wrapped(app_text *text, const char *words, int column, int indent)
{
    while (*words != '\0') {
        const size_t n = strcspn(words, " \n");
        if (column > indent && column + 1 + (int)n > HELP_COLUMNS) {
            app_text_add(text, "\n%*s", indent, "");
            column = indent;
        }
        app_text_add(text, "%s%.*s", column > indent ? " " : "", (int)n, words);
        column += (int)n + (column > indent);
        words += n;
        if (*words == '\n') {
            app_text_add(text, "\n%*s", indent, "");
            column = indent;
        }
        words += *words != '\0';
    }
}

int app_arguments_help(const app_command *command)
{
    if (command->help != NULL) {
        return command->help();
    }
    app_text text = { 0 };
    app_text_add(&text, "octavo %s: %s\n\nusage: octavo %s%s%s\n\n", command->name, command->summary, command->name,
                 command->operands != NULL ? " " : "", command->operands != NULL ? command->operands : "");
    for (size_t i = 0; i < command->n_flags; i++) {
        const app_flag *const flag = &command->flags[i];
        char left[128];
        const int length = snprintf(left, sizeof(left), "  %s%s%s", flag->names, flag->value != NULL ? " " : "", flag->value != NULL ? flag->value : "");
        app_text_add(&text, "%s", left);
        if (length >= HELP_INDENT) {
            app_text_add(&text, "\n%*s", HELP_INDENT, "");
        } else {
            app_text_add(&text, "%*s", HELP_INDENT - length, "");
        }
        add_wrapped(&text, flag->help, HELP_INDENT, HELP_INDENT);
        app_text_add(&text, "\n");
    }
    app_text_add(&text, "  -h, --help%*sthis text\n", HELP_INDENT - 12, "");
    if (command->notes != NULL) {
        app_text_add(&text, "\n");
        add_wrapped(&text, command->notes, 0, 0);
        app_text_add(&text, "\n");
    }
    const int code = app_output_report(&text, NULL);
    app_text_free(&text);
    return code;
}
