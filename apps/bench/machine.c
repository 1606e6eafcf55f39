/* machine.c: see machine.h. */
#include "apps/bench/machine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "apps/machine_name.h"
#include "apps/output.h"

enum { COLD_BYTES_MIN = 64 << 20 };
static const double measure_seconds = 2, measure_gpu_seconds = 0.5;

oct_context *bench_machine_context(const bench_machine *machine, uint32_t n_threads)
{
    const bool on_gpu = machine->device != NULL;
    const oct_context_options options = {
        .struct_size = sizeof(options), .max_threads = on_gpu ? 1 : n_threads, .rates = on_gpu ? NULL : machine->rates.pointer, .device = machine->device,
        .device_library = machine->library,
    };
    oct_error error = OCT_ERROR_INIT;
    oct_context *context = NULL;
    if (oct_context_create(&options, &context, &error) != OCT_OK) {
        (void)app_output_error(&error);
        return NULL;
    }
    return context;
}

/* The library says its facts in words only: what stands behind a key, up to the next comma, a text's quotes left out. */
static void word_of(const oct_context *context, const char *name, char *word, size_t size)
{
    const size_t length = oct_context_machine(context, OCT_TEXT_JSON, NULL, 0);
    char *const text = malloc(length + 1);
    word[0] = '\0';
    if (text != NULL) {
        char key[64];
        (void)oct_context_machine(context, OCT_TEXT_JSON, text, length + 1);
        const int n = snprintf(key, sizeof(key), "\"%s\": ", name);
        const char *at = strstr(text, key);
        if (at != NULL) {
            at += n;
            at += *at == '"';
            (void)snprintf(word, size, "%.*s", (int)strcspn(at, ",}\""), at);
        }
    }
    free(text);
}

static uint64_t fact_of(const oct_context *context, const char *name)
{
    char word[32];
    word_of(context, name, word, sizeof(word));
    return strtoull(word, NULL, 10);
}

int bench_machine_open(const char *rates, bool measure, uint32_t max_threads, const char *device, const char *library, bench_machine *machine)
{
    *machine = (bench_machine){ .limits = { .struct_size = sizeof(oct_rates) }, .library = library };
    machine->device = device != NULL && strcmp(device, "cpu") != 0 ? device : NULL;
    if (machine->device != NULL && !bench_device_clock_serves(machine->device)) {
        return app_output_fail("--device is '%.40s'; must be cpu, cuda or cuda:N: nobody has measured on an AMD GPU yet", device);
    }
    const int code = machine->device != NULL ? APP_OK : app_rates_load(rates, &machine->rates);
    if (code != APP_OK) {
        return code;
    }
    oct_context *const context = bench_machine_context(machine, max_threads);
    if (context == NULL) {
        return APP_FAILED;
    }
    app_machine_name(machine->cpu, sizeof(machine->cpu));
    machine->l3_bytes = fact_of(context, "cpu.l3_bytes");
    oct_error error = OCT_ERROR_INIT;
    oct_status status = OCT_OK;
    if (machine->device != NULL) {
        word_of(context, "name", machine->device_name, sizeof(machine->device_name));
        machine->n_units = (uint32_t)fact_of(context, "dev.units");
        status = bench_device_clock_open(machine->device, library, &machine->clock, &error);
    }
    if (status == OCT_OK && machine->rates.pointer != NULL) {
        machine->limits = machine->rates.rates;
    } else if (status == OCT_OK && measure) {
        machine->measured_now = true;
        status = oct_rates_measure(context, machine->device != NULL ? measure_gpu_seconds : measure_seconds, &machine->limits, &error);
    }
    oct_context_destroy(context);
    return status == OCT_OK ? APP_OK : app_output_error(&error);
}

void bench_machine_close(bench_machine *machine)
{
    bench_device_clock_close(machine->clock);
    machine->clock = NULL;
}

uint64_t bench_machine_cold_bytes(const bench_machine *machine)
{
    if (machine->clock != NULL) {
        return 8 * bench_device_clock_cache_bytes(machine->clock);
    }
    return 2 * machine->l3_bytes > COLD_BYTES_MIN ? 2 * machine->l3_bytes : COLD_BYTES_MIN;
}
