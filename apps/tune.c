/* tune.c: owns `octavo tune`: measures this machine's rates and keeps them for later runs. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "apps/machine_text.h"
#include "apps/output.h"
#include "apps/rates.h"
#include "apps/thread_note.h"
#include "engine/rates_file.h"
#include "host/threads.h"

typedef struct tune_options {
    const char *out, *form;
    uint32_t n_threads;
    float seconds;
} tune_options;

#define OPTION(field) offsetof(tune_options, field)
static const app_flag flags[] = {
    { "--out", "FILE", APP_TEXT, OPTION(out), 0, 0, false, "where the rates are kept ($XDG_CACHE_HOME/octavo/rates.json, or below ~/.cache)" },
    { "-t, --threads", "N", APP_COUNT, OPTION(n_threads), 0, 512, false, "threads of the second figure of each rate; 0: the machine's cores (0)" },
    { "--seconds", "S", APP_NUMBER, OPTION(seconds), 0.1, 50, false, "how long to measure; more evens out what else runs (10)" },
    { "-o, --output-format", "text|json", APP_CHOICE, OPTION(form), 0, 0, false, "form of the report (text)" },
};

static int measure(const tune_options *options, oct_rates *rates)
{
    const oct_context_options wanted = { .struct_size = sizeof(wanted), .max_threads = options->n_threads > 0 ? options->n_threads : oct__threads_usable_cpus() };
    oct_context *context = NULL;
    oct_error error = OCT_ERROR_INIT;
    oct_status status = oct_context_create(&wanted, &context, &error);
    if (status == OCT_OK) {
        status = oct_rates_measure(context, (double)options->seconds, rates, &error);
    }
    oct_context_destroy(context);
    error.status = status;
    return status == OCT_OK ? APP_OK : app_output_error(&error);
}

static int run(const app_command *command, int argc, char **argv)
{
    tune_options options = { .form = "text", .seconds = 10 };
    char path[4096];
    int code;
    if (!app_arguments_parse(command, argc, argv, &options, &code)) {
        return code;
    }
    app_thread_note(options.n_threads);
    if (options.out == NULL && (!app_rates_path(path, sizeof(path)) || !app_rates_make_folder(path))) {
        return app_output_fail("there is no folder for the rates: set HOME or XDG_CACHE_HOME, or give --out FILE");
    }
    const char *const file = options.out != NULL ? options.out : path;
    app_rates rates = { .rates = { .struct_size = sizeof(oct_rates) } };
    rates.pointer = &rates.rates;
    code = measure(&options, &rates.rates);
    if (code != APP_OK) {
        return code;
    }
    const time_t now = time(NULL);
    struct tm day;
    if (gmtime_r(&now, &day) != NULL) {
        char date[16];
        (void)strftime(date, sizeof(date), "%Y-%m-%d", &day);
        (void)snprintf(rates.rates.source, sizeof(rates.rates.source), "octavo tune, %s", date);
    }
    oct_error error = OCT_ERROR_INIT;
    if (octe_rates_write(&rates.rates, file, &error) != OCT_OK) {
        (void)app_output_error(&error);
        return APP_FAILED;
    }
    return app_machine_report(&rates, file, strcmp(options.form, "json") == 0 ? OCT_TEXT_JSON : OCT_TEXT_PLAIN, NULL);
}

const app_command app_command_tune = {
    .name = "tune", .summary = "measure this machine's rates, which costs and reports are made of", .operands = "[flags]",
    .notes = "Measures on a quiet machine: read and copy bandwidth of each cache level and of memory, f32 multiply-adds, bf16 and int8 dot "
             "products where the CPU has them, and conversion of e4m3. Later runs of octavo on this CPU take them from the file; octavo machine shows them.",
    .flags = flags, .n_flags = sizeof(flags) / sizeof(flags[0]), .run = run,
};
