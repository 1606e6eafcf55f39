/* context.c: the doors of octavo/context.h, and what the rooms below may ask of a context. */
#include "api/context.h"

#include <inttypes.h>
#include <string.h>

#include "api/device.h"
#include "api/struct.h"
#include "cpu/probe.h"
#include "host/error.h"
#include "host/text.h"
#include "plan/machine.h"

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

/* All but the rates that are made of it, which point into the machine where it stays. */
static oct_status read_machine(oct__machine *machine, const oct_rates *given, const char *where, oct_error *error)
{
    oct__cpu_probe(&machine->facts, machine->cpu, sizeof(machine->cpu));
    if (given == NULL) {
        return OCT_OK;
    }
    const oct_status status = oct__struct_read(&machine->measured, sizeof(machine->measured), offsetof(oct_rates, convert_i8_elements), given, "options.rates", where, error);
    if (status != OCT_OK) {
        return status;
    }
    const char *const wrong = oct__rates_complaint(&machine->measured);
    if (wrong != NULL) {
        return oct__error_set(error, OCT_INVALID_ARGUMENT, where, "options.rates.%s is no rate that a machine can have", wrong);
    }
    if (strcmp(machine->measured.cpu, machine->cpu) != 0) {
        return oct__error_set(error, OCT_INVALID_ARGUMENT, where, "options.rates are of another CPU: '%s', this is '%s'", machine->measured.cpu, machine->cpu);
    }
    return OCT_OK;
}

static const char create_where[] = "oct_context_create";

static oct_status read_options(oct_context_options *options, const oct_context_options *given, oct_error *error)
{
    static const char *const where = create_where;
    memset(options, 0, sizeof(*options));
    options->struct_size = sizeof(*options);
    if (given != NULL) {
        const oct_status status = oct__struct_read(options, sizeof(*options), offsetof(oct_context_options, rates), given, "options", where, error);
        if (status != OCT_OK) {
            return status;
        }
    }
    if ((options->alloc == NULL) != (options->free == NULL)) {
        return oct__error_set(error, OCT_INVALID_ARGUMENT, where, "options.%s is NULL and options.%s is not; give both or neither", options->alloc == NULL ? "alloc" : "free",
                              options->alloc == NULL ? "free" : "alloc");
    }
    if (options->max_threads > OCT__THREADS_MAX) {
        return oct__error_set(error, OCT_INVALID_ARGUMENT, where, "options.max_threads is %" PRIu32 "; must be at most %u", options->max_threads, OCT__THREADS_MAX);
    }
    if (options->machine != NULL && (options->device != NULL || options->device_library != NULL || options->rates != NULL)) {
        return oct__error_set(error, OCT_INVALID_ARGUMENT, where, "options.machine and options.%s are both given; a recorded machine has its own",
                              options->device != NULL ? "device" : options->device_library != NULL ? "device_library" : "rates");
    }
    return OCT_OK;
}

/* driver: the GPU's, or NULL. */
static oct_status create(const oct_context_options *options, oct__driver *driver, oct_context **out, oct_error *error)
{
    static const char *const where = create_where;
    oct__machine machine = { .measured = { .struct_size = 0 } };
    if (options->machine == NULL) {
        const oct_status probed = read_machine(&machine, options->rates, where, error);
        if (probed != OCT_OK) {
            return probed;
        }
    } else if (!oct__machine_recorded(options->machine, &machine)) {
        return oct__error_set(error, OCT_INVALID_ARGUMENT, where, "options.machine is '%.64s'; there is no such recorded machine", options->machine);
    }
    const oct__allocator allocator = { options->alloc, options->free, options->user };
    oct_context *context = oct__memory_alloc(&allocator, sizeof(*context), 64);
    if (context == NULL) {
        return oct__error_set(error, OCT_OUT_OF_MEMORY, where, "no memory for a context");
    }
    memset(context, 0, sizeof(*context));
    context->allocator = allocator;
    context->log = (oct__log){ options->log, options->user };
    context->executor = (oct__executor){
        .parallel_for = options->parallel_for,
        .user = options->user,
        .max_threads = options->max_threads > 0 ? options->max_threads : 1,
    };
    const uint64_t n_cores = machine.facts.v[OCT__FACT_CPU_CORES];
    if (machine.is_recorded && options->max_threads == 0 && n_cores > 0) {
        context->executor.max_threads = (uint32_t)n_cores;   /* nobody is asked to run on them */
    }
    context->machine = machine;
    if (!machine.is_recorded) {
        context->machine.rates = machine.measured.struct_size > 0 ? oct__rates_measured(&context->machine.measured) : oct__rates_default(&machine.facts);
    }
    if (driver != NULL) {
        context->driver = driver;
        oct__device_describe(driver, &context->machine);
    }
    /* Threads of the library's own compute on the CPU only. */
    const bool wants_threads = driver == NULL && !machine.is_recorded && options->parallel_for == NULL && context->executor.max_threads > 1;
    if (driver != NULL && options->parallel_for == NULL) {
        context->executor.max_threads = 1;
    }
    if (wants_threads && oct__threads_create(&context->allocator, context->executor.max_threads, &context->executor.threads) != OCT_OK) {
        oct__memory_free(&allocator, context, sizeof(*context));
        return oct__error_set(error, OCT_OUT_OF_MEMORY, where, "no memory for, or no more of, %" PRIu32 " threads", options->max_threads);
    }
    *out = context;
    return OCT_OK;
}

oct_status oct__context_create_on(oct__driver *driver, const oct_context_options *given, oct_context **out, oct_error *error)
{
    oct_context_options options;
    const oct_status status = read_options(&options, given, error);
    *out = NULL;
    return status == OCT_OK ? create(&options, driver, out, error) : status;
}

oct_status oct_context_create(const oct_context_options *given, oct_context **out, oct_error *error)
{
    oct_context_options options;
    oct__driver *driver = NULL;
    if (out == NULL) {
        return oct__error_set(error, OCT_INVALID_ARGUMENT, create_where, "context is NULL");
    }
    *out = NULL;
    oct_status status = read_options(&options, given, error);
    if (status == OCT_OK) {
        /* A driver keeps its allocator: the hooks live in the context, which is made after it. */
        const oct__allocator allocator = { options.alloc, options.free, options.user };
        status = oct__device_open(&allocator, options.device, options.device_library, create_where, &driver, error);
    }
    if (status == OCT_OK) {
        status = create(&options, driver, out, error);
        if (status != OCT_OK && driver != NULL) {
            driver->table->close(driver);
        }
    }
    return status;
}

void oct_context_destroy(oct_context *context)
{
    if (context == NULL) {
        return;
    }
    if (context->driver != NULL) {
        context->driver->table->close(context->driver);
    }
    oct__threads_destroy(context->executor.threads);
    const oct__allocator allocator = context->allocator;
    oct__memory_free(&allocator, context, sizeof(*context));
}

const char *oct_machine_name(uint32_t index)
{
    return oct__machine_recorded_name(index);
}

/* ---- words ---------------------------------------------------------------------------------------------------------- */

static void add_rate(oct__text *text, const char *name, double value, const char *after)
{
    oct__text_add(text, "%s", name);
    oct__text_add_number(text, value, 4);
    oct__text_add(text, "%s", after);
}

/* The pairs of a measurement, for both forms. */
typedef struct named_rate { const char *key, *name, *unit; size_t offset; } named_rate;
static const named_rate named_rates[] = {
    { "read_l1_bytes_per_s", "L1 read", "GB/s", offsetof(oct_rates, read_l1_bytes) },
    { "read_l2_bytes_per_s", "L2 read", "GB/s", offsetof(oct_rates, read_l2_bytes) },
    { "read_l3_bytes_per_s", "L3 read", "GB/s", offsetof(oct_rates, read_l3_bytes) },
    { "copy_l1_bytes_per_s", "L1 copy", "GB/s", offsetof(oct_rates, copy_l1_bytes) },
    { "copy_l2_bytes_per_s", "L2 copy", "GB/s", offsetof(oct_rates, copy_l2_bytes) },
    { "copy_l3_bytes_per_s", "L3 copy", "GB/s", offsetof(oct_rates, copy_l3_bytes) },
    { "read_memory_bytes_per_s", "memory read", "GB/s", offsetof(oct_rates, read_memory_bytes) },
    { "copy_memory_bytes_per_s", "memory copy", "GB/s", offsetof(oct_rates, copy_memory_bytes) },
    { "fma_avx2_flop_per_s", "FMA f32 AVX2", "GFLOP/s", offsetof(oct_rates, fma_avx2_flops) },
    { "fma_avx512_flop_per_s", "FMA f32 AVX-512", "GFLOP/s", offsetof(oct_rates, fma_avx512_flops) },
    { "dot_bf16_flop_per_s", "bf16 dot", "GFLOP/s", offsetof(oct_rates, dot_bf16_flops) },
    { "dot_i8_op_per_s", "i8 dot", "Gop/s", offsetof(oct_rates, dot_i8_ops) },
    { "convert_elements_per_s", "e4m3 to f32", "G/s", offsetof(oct_rates, convert_elements) },
    { "convert_i8_elements_per_s", "i8 to f32", "G/s", offsetof(oct_rates, convert_i8_elements) },
    { "dot_amx_bf16_flop_per_s", "AMX bf16", "GFLOP/s", offsetof(oct_rates, dot_amx_bf16_flops) },
};
enum { N_NAMED_RATES = sizeof(named_rates) / sizeof(named_rates[0]) };

static const double *pair_of(const oct_rates *rates, const named_rate *named)
{
    return (const double *)(const void *)((const char *)rates + named->offset);
}

static void measured_json(oct__text *text, const oct_rates *rates)
{
    oct__text_add(text, ", \"measured\": ");
    if (rates->struct_size == 0) {
        oct__text_add(text, "null");
        return;
    }
    oct__text_add(text, "{\"threads\": %" PRIu32, rates->threads);
    add_rate(text, ", \"clock_hz\": ", rates->clock_hz, "");
    for (size_t i = 0; i < N_NAMED_RATES; i++) {
        const double *const pair = pair_of(rates, &named_rates[i]);
        oct__text_add(text, ", \"%s\": ", named_rates[i].key);
        add_rate(text, "[", pair[0], ", ");
        add_rate(text, "", pair[1], "]");
    }
    oct__text_add(text, "}");
}

static void measured_plain(oct__text *text, const oct_rates *rates)
{
    if (rates->struct_size == 0) {
        return;
    }
    oct__text_add(text, "measured    one thread / %" PRIu32 " threads; clock ", rates->threads);
    add_rate(text, "", rates->clock_hz * 1e-9, " GHz\n");
    for (size_t i = 0; i < N_NAMED_RATES; i++) {
        const double *const pair = pair_of(rates, &named_rates[i]);
        if (pair[0] > 0) {
            oct__text_add(text, "  %-16s ", named_rates[i].name);
            add_rate(text, "", pair[0] * 1e-9, " / ");
            add_rate(text, "", pair[1] * 1e-9, " ");
            oct__text_add(text, "%s\n", named_rates[i].unit);
        }
    }
}

static void machine_json(oct__text *text, const oct_context *context)
{
    const oct__machine *machine = &context->machine;
    oct__text_add(text, "{\"cpu\": ");
    oct__text_add_json_string(text, machine->cpu);
    oct__text_add(text, ", \"device\": ");
    oct__device_text(text, OCT_TEXT_JSON, context);
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
    add_rate(text, ", \"speed\": ", machine->rates.speed, "");
    measured_json(text, &machine->measured);
    oct__text_add(text, "}}\n");
}

static void machine_plain(oct__text *text, const oct_context *context)
{
    const oct__machine *machine = &context->machine;
    oct__device_text(text, OCT_TEXT_PLAIN, context);
    if (machine->cpu[0] == '\0') {   /* a recorded GPU, in no computer */
        return;
    }
    oct__text_add(text, "cpu         %s\n", machine->cpu);
    oct__text_add(text, "threads     %" PRIu32 " of %" PRIu64 " usable\n", context->executor.max_threads, machine->facts.v[OCT__FACT_CPU_CORES]);
    for (int yes = 1; yes >= 0; yes--) {
        oct__text_add(text, "%s", yes ? "has        " : "lacks      ");
        for (unsigned fact = 0; fact < OCT__FACT_COUNT; fact++) {
            const char *name = oct__fact_name((oct__fact)fact);
            const bool is_number = fact == OCT__FACT_CPU_CORES || fact == OCT__FACT_CPU_L2_BYTES || fact == OCT__FACT_CPU_L3_BYTES || fact == OCT__FACT_CPU_VENDOR ||
                                   fact == OCT__FACT_CPU_FAMILY || fact == OCT__FACT_CPU_MODEL || fact == OCT__FACT_CPU_STEPPING || fact == OCT__FACT_OS_NODES;
            if (oct__fact_is_machine((oct__fact)fact) && !oct__fact_is_device((oct__fact)fact) && !is_number && (machine->facts.v[fact] != 0) == yes) {
                oct__text_add(text, " %s", name);
            }
        }
        oct__text_add(text, "\n");
    }
    oct__text_add(text, "caches      L2 %" PRIu64 " KiB, L3 %" PRIu64 " KiB\n", machine->facts.v[OCT__FACT_CPU_L2_BYTES] / 1024, machine->facts.v[OCT__FACT_CPU_L3_BYTES] / 1024);
    if (machine->facts.v[OCT__FACT_OS_NODES] > 0) {
        oct__text_add(text, "nodes       %" PRIu64 " of memory and CPUs%s\n", machine->facts.v[OCT__FACT_OS_NODES],
                      machine->facts.v[OCT__FACT_OS_NODES] > 1 ? ": pools lie on all in turns, each thread stays on one" : "");
    }
    if (machine->device == OCT__DEVICE_CPU) {
        add_rate(text, "memory      ", machine->rates.core_read_bytes * 1e-9, " GB/s one thread, ");
        add_rate(text, "", machine->rates.machine_read_bytes * 1e-9, " GB/s all");
        add_rate(text, ", core speed ", machine->rates.speed, "");
        oct__text_add(text, " (%s%s)\n", machine->measured.struct_size > 0 ? "" : "defaults of ", machine->rates.source);
    }
    measured_plain(text, &machine->measured);
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
