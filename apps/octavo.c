/* octavo.c: owns the program: which commands there are, help and version. Each command has a file of its name. */
#include <stdio.h>
#include <string.h>

#include "apps/bench/bench.h"
#include "apps/command.h"
#include "apps/interrupt.h"
#include "apps/output.h"
#include "octavo/version.h"

static const app_command *const commands[] = {
    &app_command_compare, &app_command_eval, &app_command_advise, &app_command_run, &app_command_serve, &app_command_explain, &app_command_calibrate, &app_command_export_hf,
    &app_command_export_scales, &app_command_machine, &app_command_tune, &app_command_bench,
};
enum { N_COMMANDS = sizeof(commands) / sizeof(commands[0]) };

static const app_command *find_command(const char *name)
{
    for (size_t i = 0; i < N_COMMANDS; i++) {
        if (strcmp(commands[i]->name, name) == 0) {
            return commands[i];
        }
    }
    return NULL;
}

static void add_overview(app_text *text)
{
    app_text_add(text, "octavo %s: attention over key/value pages kept in 8 bits\n\nusage: octavo COMMAND [flags]\n\n", oct_version_string());
    for (size_t i = 0; i < N_COMMANDS; i++) {
        app_text_add(text, "  %-13s %s\n", commands[i]->name, commands[i]->summary);
    }
    app_text_add(text, "  %-13s %s\n", "version", "the version of the library");
    app_text_add(text, "  %-13s %s\n", "help", "this text, or with a command its flags");
    app_text_add(text, "\nExit codes: 0 done, 1 the work failed, 2 the command line is wrong, 130 stopped by Ctrl-C.\n");
}

static int say(app_text *text)
{
    const int code = app_output_report(text, NULL);
    app_text_free(text);
    return code;
}

static int unknown(const char *name)
{
    fprintf(stderr, "octavo: unknown command '%.60s'\n'octavo help' lists the commands.\n", name);
    return APP_USAGE;
}

static int run(int argc, char **argv)
{
    app_text text = { 0 };
    if (argc < 2) {
        add_overview(&text);
        fputs(text.bytes != NULL ? text.bytes : "octavo: out of memory\n", stderr);
        app_text_free(&text);
        return APP_USAGE;
    }
    const char *const name = argv[1];
    const bool is_version = strcmp(name, "version") == 0 || strcmp(name, "--version") == 0;
    const bool is_help = strcmp(name, "help") == 0 || strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0;
    if (is_version || is_help) {
        const bool of_bench = is_help && argc > 3 && strcmp(argv[2], app_command_bench.name) == 0;
        const int most = is_help ? 3 + of_bench : 2;
        if (argc > most) {
            fprintf(stderr, "octavo %s: unexpected argument '%.60s'\n", name, argv[most]);
            return APP_USAGE;
        }
        if (is_version) {
            app_text_add(&text, "octavo %s\n", oct_version_string());
            return say(&text);
        }
        if (argc >= 3) {
            const app_command *const about = of_bench ? app_bench_find(argv[3]) : find_command(argv[2]);
            return about != NULL ? app_arguments_help(about) : unknown(argv[argc - 1]);
        }
        add_overview(&text);
        return say(&text);
    }
    const app_command *const command = find_command(name);
    return command != NULL ? command->run(command, argc - 2, argv + 2) : unknown(name);
}

int main(int argc, char **argv)
{
    app_interrupt_install();
    return app_output_finish(run(argc, argv));
}
