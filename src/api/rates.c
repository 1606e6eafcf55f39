/* rates.c: the doors of octavo/rates.h. */
#include <stddef.h>
#include "octavo/rates.h"

#include <stdio.h>
#include <string.h>

#include "api/device.h"
#include "api/struct.h"
#include "cpu/measure.h"
#include "device/backend.h"
#include "host/error.h"

/* Callers from before the rates that came later. */
#define RATES_LEAST_BYTES offsetof(oct_rates, convert_i8_elements)

oct_status oct_rates_measure(oct_context *context, double seconds, oct_rates *out, oct_error *error)
{
    static const char where[] = "oct_rates_measure";
    oct_rates rates = { .struct_size = sizeof(rates) };
    if (context == NULL || out == NULL) {
        return oct__error_set(error, OCT_INVALID_ARGUMENT, where, "%s is NULL", context == NULL ? "context" : "rates");
    }
    if (oct__device_check_runs(context, where, error) != OCT_OK) {
        return OCT_UNSUPPORTED;
    }
    if (!(seconds >= 0.1 && seconds <= 60)) {
        return oct__error_set(error, OCT_INVALID_ARGUMENT, where, "seconds is %g; must be 0.1 to 60", seconds);
    }
    if (oct__struct_write(out, &rates, sizeof(rates), RATES_LEAST_BYTES) != OCT_OK) {
        return oct__error_set(error, OCT_INVALID_ARGUMENT, where, "rates.struct_size is %u; must be the struct's sizeof, at least %zu", out->struct_size, RATES_LEAST_BYTES);
    }
    if (context->driver != NULL) {
        const oct_status measured = oct__backend_measure(context->driver, seconds, rates.read_memory_bytes, rates.copy_memory_bytes);
        if (measured != OCT_OK) {
            return oct__backend_error(context->driver, measured, "measuring", where, error);
        }
        rates.threads = context->driver->chip.n_units;
        snprintf(rates.cpu, sizeof(rates.cpu), "%s", context->machine.device_name);
        snprintf(rates.source, sizeof(rates.source), "measured");
        return oct__struct_write(out, &rates, sizeof(rates), RATES_LEAST_BYTES);
    }
    const oct_status status = oct__cpu_measure(&context->machine.facts, &context->allocator, &context->executor, seconds, &rates);
    if (status != OCT_OK) {
        return oct__error_set(error, status, where, "no memory to measure in");
    }
    snprintf(rates.cpu, sizeof(rates.cpu), "%s", context->machine.cpu);
    snprintf(rates.source, sizeof(rates.source), "measured");
    return oct__struct_write(out, &rates, sizeof(rates), RATES_LEAST_BYTES);
}
