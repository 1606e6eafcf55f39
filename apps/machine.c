/* machine.c: owns `octavo machine`: what the library sees of this machine. */
#include <stdlib.h>
#include <string.h>

#include "apps/machine_text.h"
#include "apps/output.h"

typedef struct machine_options {
    const char *format, *output, *rates;
} machine_options;

static const app_flag flags[] = {
    APP_RATES_FLAG(offsetof(machine_options, rates)),
    { "-o, --output-format", "text|json", APP_CHOICE, offsetof(machine_options, format), 0, 0, false, "form of the report (text)" },
    { "--output", "FILE", APP_TEXT, offsetof(machine_options, output), 0, 0, false, "write it to FILE, whole or not at all, instead of standard output" },
};

int app_machine_report(const app_rates *rates, const char *file, uint32_t form, const char *path)
{
    const oct_context_options wanted = { .struct_size = sizeof(wanted), .rates = rates->pointer };
    oct_error error = OCT_ERROR_INIT;
    oct_context *context = NULL;
    if (oct_context_create(&wanted, &context, &error) != OCT_OK) {
        return app_output_error(&error);
    }
    int code;
    app_text text = { 0 };
    const size_t length = oct_context_machine(context, form, NULL, 0);
    char *const bytes = malloc(length + 1);
    if (bytes == NULL) {
        code = app_output_fail("out of memory");
    } else {
        (void)oct_context_machine(context, form, bytes, length + 1);
        app_text_add(&text, "%s%s", bytes, length > 0 && bytes[length - 1] == '\n' ? "" : "\n");
        if (file != NULL && form == OCT_TEXT_PLAIN) {
            app_text_add(&text, "kept in     %s\n", file);
        }
        code = app_output_report(&text, path);
    }
    free(bytes);
    app_text_free(&text);
    oct_context_destroy(context);
    return code;
}

static int run(const app_command *command, int argc, char **argv)
{
    machine_options options = { .format = "text" };
    int code;
    if (!app_arguments_parse(command, argc, argv, &options, &code)) {
        return code;
    }
    app_rates rates;
    code = app_rates_load(options.rates, &rates);
    return code != APP_OK ? code : app_machine_report(&rates, NULL, strcmp(options.format, "json") == 0 ? OCT_TEXT_JSON : OCT_TEXT_PLAIN, options.output);
}

const app_command app_command_machine = {
    .name = "machine", .summary = "what the library sees of this machine: CPU, features, caches, rates", .operands = "[flags]",
    .flags = flags, .n_flags = sizeof(flags) / sizeof(flags[0]), .run = run,
};
