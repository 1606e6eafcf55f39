/* machine.c: see machine.h. */
#include "apps/bench/machine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "apps/machine_name.h"
#include "apps/output.h"

enum { COLD_BYTES_MIN = 64 << 20 };
static const double measure_seconds = 2;

oct_context *bench_machine_context(const bench_machine *machine, uint32_t n_threads)
{
    const oct_context_options options = { .struct_size = sizeof(options), .max_threads = n_threads, .rates = machine->rates.pointer };
    oct_error error = OCT_ERROR_INIT;
    oct_context *context = NULL;
    if (oct_context_create(&options, &context, &error) != OCT_OK) {
        (void)app_output_error(&error);
        return NULL;
    }
    return context;
}

/* The library says its facts in words only. */
static uint64_t fact_of(const oct_context *context, const char *name)
{
    uint64_t value = 0;
    const size_t length = oct_context_machine(context, OCT_TEXT_JSON, NULL, 0);
    char *const text = malloc(length + 1);
    if (text != NULL) {
        char key[64];
        (void)oct_context_machine(context, OCT_TEXT_JSON, text, length + 1);
        const int n = snprintf(key, sizeof(key), "\"%s\": ", name);
        const char *const at = strstr(text, key);
        value = at != NULL ? strtoull(at + n, NULL, 10) : 0;
    }
    free(text);
    return value;
}

int bench_machine_open(const char *rates, bool measure, uint32_t max_threads, bench_machine *machine)
{
    *machine = (bench_machine){ .limits = { .struct_size = sizeof(oct_rates) } };
    const int code = app_rates_load(rates, &machine->rates);
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
    if (machine->rates.pointer != NULL) {
        machine->limits = machine->rates.rates;
    } else if (measure) {
        machine->measured_now = true;
        status = oct_rates_measure(context, measure_seconds, &machine->limits, &error);
    }
    oct_context_destroy(context);
    return status == OCT_OK ? APP_OK : app_output_error(&error);
}

uint64_t bench_machine_cold_bytes(const bench_machine *machine)
{
    return 2 * machine->l3_bytes > COLD_BYTES_MIN ? 2 * machine->l3_bytes : COLD_BYTES_MIN;
}
