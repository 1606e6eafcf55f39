/* machine.c: owns `octavo machine`: what the library sees of this machine. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "apps/machine_text.h"
#include "apps/output.h"
#include "octavo/device.h"

typedef struct machine_options {
    const char *format, *output, *rates;
} machine_options;

static const app_flag flags[] = {
    APP_RATES_FLAG(offsetof(machine_options, rates)),
    { "-o, --output-format", "text|json", APP_CHOICE, offsetof(machine_options, format), 0, 0, false, "form of the report (text)" },
    { "--output", "FILE", APP_TEXT, offsetof(machine_options, output), 0, 0, false, "write it to FILE, whole or not at all, instead of standard output" },
};

enum { GPUS_MAX = 64 };

/* The context's device, in the library's words. */
static void add_device(app_text *text, const oct_context *context, uint32_t form)
{
    const size_t length = oct_device_describe(context, form, NULL, 0);
    char *const bytes = malloc(length + 1);
    if (bytes == NULL) {
        text->failed = true;
        return;
    }
    (void)oct_device_describe(context, form, bytes, length + 1);
    app_text_add(text, "%s", bytes);
    free(bytes);
}

/* Every GPU that a driver here offers, and for a driver that offers none, why. */
static void add_gpus(app_text *text, uint32_t form)
{
    static const char *const kinds[] = { "cuda", "hip" };
    app_text none = { 0 };
    const bool json = form == OCT_TEXT_JSON;
    const char *between = "";
    app_text_add(text, "%s", json ? ", \"gpus\": {" : "");
    for (size_t kind = 0; kind < sizeof(kinds) / sizeof(kinds[0]); kind++) {
        for (int i = 0; i < GPUS_MAX; i++) {
            char name[16];
            (void)snprintf(name, sizeof(name), "%s:%d", kinds[kind], i);
            const oct_context_options options = { .struct_size = sizeof(options), .device = name };
            oct_context *context = NULL;
            oct_error error = OCT_ERROR_INIT;
            if (oct_context_create(&options, &context, &error) != OCT_OK) {
                if (i == 0 && json) {
                    app_text_add(&none, "%s\"%s\": ", none.length > 0 ? ", " : "", kinds[kind]);
                    app_text_add_json(&none, error.text);
                } else if (i == 0) {
                    app_text_add(text, "no %-4s GPU  %s\n", kinds[kind], error.text);
                }
                break;
            }
            if (json) {
                app_text_add(text, "%s\"%s\": ", between, name);
                between = ", ";
            } else {
                app_text_add(text, "%s\n", name);
            }
            add_device(text, context, form);
            oct_context_destroy(context);
        }
    }
    if (json) {
        app_text_add(text, "}, \"no_gpus\": {%s}}\n", none.bytes != NULL ? none.bytes : "");
    }
    text->failed |= none.failed;
    app_text_free(&none);
}

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
        if (file == NULL && form == OCT_TEXT_JSON) {
            /* One object: what is said of the GPUs goes in before its end. */
            app_text_add_bytes(&text, bytes, length - strlen("}\n"));
            add_gpus(&text, form);
        } else {
            app_text_add(&text, "%s%s", bytes, length > 0 && bytes[length - 1] == '\n' ? "" : "\n");
        }
        if (file == NULL && form == OCT_TEXT_PLAIN) {
            add_gpus(&text, form);
        }
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
    .name = "machine", .summary = "what the library sees of this machine: CPU, features, caches, rates, GPUs", .operands = "[flags]",
    .flags = flags, .n_flags = sizeof(flags) / sizeof(flags[0]), .run = run,
};
