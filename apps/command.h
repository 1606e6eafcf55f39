/* command.h: owns what a command of the program is, and the table of all of them. Single-threaded. */
#ifndef APP_COMMAND_H
#define APP_COMMAND_H

#include "apps/arguments.h"

/* Exit codes. */
enum { APP_OK = 0, APP_FAILED = 1, APP_USAGE = 2, APP_INTERRUPTED = 130 };

typedef struct app_command {
    const char *name;
    const char *summary;        /* one line, for the list of commands */
    const char *operands;       /* what follows the name in its usage line, or NULL: "-m MODEL -p PROMPT [flags]" */
    const char *notes;          /* paragraphs under the flags, or NULL */
    const app_flag *flags;      /* usage text and parsing both come from here */
    size_t n_flags;
    int (*run)(const struct app_command *command, int argc, char **argv);   /* argv: what follows the name; returns the exit code */
    int (*help)(void);          /* prints a usage text of its own and returns the exit code; NULL: the one made of flags */
} app_command;

extern const app_command app_command_advise, app_command_bench, app_command_calibrate, app_command_compare, app_command_eval, app_command_explain, app_command_export_hf, app_command_export_scales, app_command_machine, app_command_run,
    app_command_serve, app_command_tune;

#endif
