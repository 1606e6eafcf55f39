/* context.c: the doors of octavo/context.h, and what the rooms below may ask of a context. */
#include "api/context.h"

#include <inttypes.h>
#include <string.h>

#include "api/struct.h"
#include "cpu/probe.h"
#include "host/error.h"
#include "host/text.h"

const oct__allocator *oct__context_allocator(const oct_context *context)
{
    return &context->allocator;
}

const oct__log *oct__context_log(const oct_context *context)
{
    return &context->log;
}

const oct__executor *oct__context_executor(const oct_context *context)
{
    return &context->executor;
}

oct_status oct_context_create(const oct_context_options *given, oct_context **out, oct_error *error)
{
    static const char where[] = "oct_context_create";
    oct_context_options options = { .struct_size = sizeof(options) };
    if (out == NULL) {
        return oct__error_set(error, OCT_INVALID_ARGUMENT, where, "context is NULL");
    }
    *out = NULL;
    if (given != NULL) {
        const oct_status status = oct__struct_read(&options, sizeof(options), sizeof(options), given, "options", where, error);
        if (status != OCT_OK) {
            return status;
        }
    }
    if ((options.alloc == NULL) != (options.free == NULL)) {
        return oct__error_set(error, OCT_INVALID_ARGUMENT, where, "options.%s is NULL and options.%s is not; give both or neither", options.alloc == NULL ? "alloc" : "free",
                              options.alloc == NULL ? "free" : "alloc");
    }
    if (options.max_threads > OCT__THREADS_MAX) {
        return oct__error_set(error, OCT_INVALID_ARGUMENT, where, "options.max_threads is %" PRIu32 "; must be at most %u", options.max_threads, OCT__THREADS_MAX);
    }
    const oct__allocator allocator = { options.alloc, options.free, options.user };
    oct_context *context = oct__memory_alloc(&allocator, sizeof(*context), 64);
    if (context == NULL) {
        return oct__error_set(error, OCT_OUT_OF_MEMORY, where, "no memory for a context");
    }
    memset(context, 0, sizeof(*context));
    context->allocator = allocator;
    context->log = (oct__log){ options.log, options.user };
    context->executor = (oct__executor){
        .parallel_for = options.parallel_for,
        .user = options.user,
        .max_threads = options.max_threads > 0 ? options.max_threads : 1,
    };
    oct__cpu_probe(&context->machine.facts, context->machine.cpu, sizeof(context->machine.cpu));
    context->machine.rates = oct__rates_default(&context->machine.facts);
    if (options.parallel_for == NULL && context->executor.max_threads > 1 &&
        oct__threads_create(&context->allocator, context->executor.max_threads, &context->executor.threads) != OCT_OK) {
        oct__memory_free(&allocator, context, sizeof(*context));
        return oct__error_set(error, OCT_OUT_OF_MEMORY, where, "no memory for, or no more of, %" PRIu32 " threads", options.max_threads);
    }
    *out = context;
    return OCT_OK;
}

void oct_context_destroy(oct_context *context)
{
    if (context == NULL) {
        return;
    }
    oct__threads_destroy(context->executor.threads);
    const oct__allocator allocator = context->allocator;
    oct__memory_free(&allocator, context, sizeof(*context));
}

/* ---- words ---------------------------------------------------------------------------------------------------------- */

static void add_rate(oct__text *text, const char *name, double value, const char *after)
{
    oct__text_add(text, "%s", name);
    oct__text_add_number(text, value, 4);
    oct__text_add(text, "%s", after);
}

static void machine_json(oct__text *text, const oct_context *context)
{
    const oct__machine *machine = &context->machine;
    oct__text_add(text, "{\"cpu\": ");
    oct__text_add_json_string(text, machine->cpu);
    oct__text_add(text, ", \"max_threads\": %" PRIu32 ", \"facts\": {", context->executor.max_threads);
    const char *between = "";
    for (unsigned fact = 0; fact < OCT__FACT_COUNT; fact++) {
        if (oct__fact_is_machine((oct__fact)fact)) {
            oct__text_add(text, "%s\"%s\": %" PRIu64, between, oct__fact_name((oct__fact)fact), machine->facts.v[fact]);
            between = ", ";
        }
    }
    oct__text_add(text, "}, \"rates\": {\"source\": ");
    oct__text_add_json_string(text, machine->rates.source);
    add_rate(text, ", \"core_read_bytes_per_s\": ", machine->rates.core_read_bytes, "");
    add_rate(text, ", \"machine_read_bytes_per_s\": ", machine->rates.machine_read_bytes, "");
    add_rate(text, ", \"speed\": ", machine->rates.speed, "}}\n");
}

static void machine_plain(oct__text *text, const oct_context *context)
{
    const oct__machine *machine = &context->machine;
    oct__text_add(text, "cpu         %s\n", machine->cpu);
    oct__text_add(text, "threads     %" PRIu32 " of %" PRIu64 " usable\n", context->executor.max_threads, machine->facts.v[OCT__FACT_CPU_CORES]);
    for (int yes = 1; yes >= 0; yes--) {
        oct__text_add(text, "%s", yes ? "has        " : "lacks      ");
        for (unsigned fact = 0; fact < OCT__FACT_COUNT; fact++) {
            const char *name = oct__fact_name((oct__fact)fact);
            const bool is_number = fact == OCT__FACT_CPU_CORES || fact == OCT__FACT_CPU_L2_BYTES || fact == OCT__FACT_CPU_L3_BYTES || fact == OCT__FACT_CPU_VENDOR ||
                                   fact == OCT__FACT_CPU_FAMILY || fact == OCT__FACT_CPU_MODEL;
            if (oct__fact_is_machine((oct__fact)fact) && !is_number && (machine->facts.v[fact] != 0) == yes) {
                oct__text_add(text, " %s", name);
            }
        }
        oct__text_add(text, "\n");
    }
    oct__text_add(text, "caches      L2 %" PRIu64 " KiB, L3 %" PRIu64 " KiB\n", machine->facts.v[OCT__FACT_CPU_L2_BYTES] / 1024, machine->facts.v[OCT__FACT_CPU_L3_BYTES] / 1024);
    add_rate(text, "memory      ", machine->rates.core_read_bytes * 1e-9, " GB/s one thread, ");
    add_rate(text, "", machine->rates.machine_read_bytes * 1e-9, " GB/s all");
    add_rate(text, ", core speed ", machine->rates.speed, "");
    oct__text_add(text, " (defaults of %s)\n", machine->rates.source);
}

size_t oct_context_machine(const oct_context *context, uint32_t format, char *bytes, size_t size)
{
    oct__text text;
    oct__text_init(&text, bytes, size);
    if (context != NULL && format == OCT_TEXT_JSON) {
        machine_json(&text, context);
    } else if (context != NULL && format == OCT_TEXT_PLAIN) {
        machine_plain(&text, context);
    }
    return text.length;
}
