/* arguments.h: owns the command line: one table of flags per command, from which parsing and usage text both come.
 * Single-threaded; strings point into argv. */
#ifndef APP_ARGUMENTS_H
#define APP_ARGUMENTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct app_command;
struct app_output;

/* What a flag fills; the field it names must have this type. */
typedef enum app_flag_kind {
    APP_SWITCH,    /* bool: set true. A name "--x/--no-x" sets true or false */
    APP_TEXT,      /* const char * */
    APP_TEXTS,     /* app_texts: may be given several times */
    APP_COUNT,     /* uint32_t within min .. max */
    APP_BYTES,     /* uint64_t within min .. max; takes the suffixes K, M, G (powers of 1024) */
    APP_NUMBER,    /* float within min .. max, finite */
    APP_CHOICE     /* const char *: one of value's alternatives, "text|json" */
} app_flag_kind;

enum { APP_TEXTS_MAX = 16 };

typedef struct app_texts {
    const char *item[APP_TEXTS_MAX];
    uint32_t n;
} app_texts;

typedef struct app_flag {
    const char *names;          /* "-m, --model": any number, separated by ", " */
    const char *value;          /* "MODEL.gguf", NULL for a switch */
    app_flag_kind kind;
    size_t offset;              /* of the field in the command's options */
    double min, max;
    bool required;
    const char *help;           /* says the default */
} app_flag;

/* Reads argv into *options, which holds the defaults. True: go on. False: *exit_code is what the program ends with: 0 after --help
 * (its text has gone to standard output), 2 after a message that names the flag. */
bool app_arguments_parse(const struct app_command *command, int argc, char **argv, void *options, int *exit_code);

/* The usage text of a command on standard output; returns the exit code. */
int app_arguments_help(const struct app_command *command);

/* "octavo run: <message>" and where to find help, on standard error. Returns 2. */
#if defined(__GNUC__)
__attribute__((format(printf, 2, 3)))
#endif
int app_arguments_complain(const struct app_command *command, const char *format, ...);

/* A list "0,2048,8192" into at most max numbers, each at most limit. False: not such a list. */
bool app_arguments_counts(const char *text, uint32_t limit, uint32_t *counts, uint32_t max, uint32_t *n);

#endif
