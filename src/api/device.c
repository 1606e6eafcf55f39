/* device.c: the doors of octavo/device.h, and what device.h says.
 *
 * Threads: any, as far as the driver and the allocator's hooks allow it. */
#include "api/device.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "device/backend.h"
#include "host/error.h"
#include "octavo/device.h"
#include "plan/machine.h"
#include "plan/plan.h"

enum { HOST_ALIGN = 64 };   /* of device memory that is the host's: the widest vector a kernel loads */

/* ---- by name ------------------------------------------------------------------------------------------------------------------ */

/* "cuda", "cuda:3": the kind's length and the number; false when the rest is neither empty nor a colon and a number. */
static bool split_name(const char *name, size_t *kind_length, uint32_t *ordinal)
{
    *kind_length = strcspn(name, ":");
    *ordinal = 0;
    if (name[*kind_length] == '\0') {
        return true;
    }
    const char *digits = name + *kind_length + 1;
    const size_t n = strspn(digits, "0123456789");
    if (n == 0 || n > 4 || digits[n] != '\0') {
        return false;
    }
    *ordinal = (uint32_t)strtoul(digits, NULL, 10);
    return true;
}

oct_status oct__device_open(const oct__allocator *allocator, const char *name, const char *library, const char *where, oct__driver **driver, oct_error *error)
{
    static const struct { const char *kind; oct_status (*open)(const oct__driver_options *, oct__driver **, oct_error *); } kinds[] = {
        { "cuda", oct__cuda_open },
        { "hip", oct__hip_open },
    };
    oct__driver_options options = { .allocator = allocator, .library = library };
    size_t length;
    *driver = NULL;
    if (name == NULL || strcmp(name, "cpu") == 0) {
        if (library != NULL) {
            return oct__error_set(error, OCT_INVALID_ARGUMENT, where, "options.device_library is given, but the CPU opens none; must be NULL");
        }
        return OCT_OK;
    }
    if (split_name(name, &length, &options.ordinal)) {
        for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
            if (strlen(kinds[i].kind) == length && strncmp(kinds[i].kind, name, length) == 0) {
                return kinds[i].open(&options, driver, error);
            }
        }
    }
    return oct__error_set(error, OCT_INVALID_ARGUMENT, where, "options.device is '%.64s'; must be cpu, cuda or hip, the latter two with :N for the device's number", name);
}

/* "sm_90": 90; "gfx942": 942; "gfx90a" stays below the numbers that matter. */
static uint64_t arch_number(const char *arch)
{
    const char *digits = arch + strcspn(arch, "0123456789");
    return strtoull(digits, NULL, 10);
}

void oct__device_describe(const oct__driver *driver, oct__machine *machine)
{
    uint64_t *v = machine->facts.v;
    machine->device = strcmp(driver->table->name, "hip") == 0 ? OCT__DEVICE_HIP : OCT__DEVICE_CUDA;
    snprintf(machine->device_name, sizeof(machine->device_name), "%s", driver->device);
    v[OCT__FACT_DEV_KIND] = machine->device;
    v[OCT__FACT_DEV_ARCH] = arch_number(driver->arch);
    v[OCT__FACT_DEV_WARP] = driver->chip.warp;
    v[OCT__FACT_DEV_UNITS] = driver->chip.n_units;
    v[OCT__FACT_DEV_SHARED_BYTES] = driver->chip.shared_limit_bytes;
    v[OCT__FACT_DEV_HAS_MMA] = driver->chip.has_mma;
    v[OCT__FACT_DEV_HAS_SM90A] = driver->chip.has_sm90a;
    v[OCT__FACT_DEV_MEMORY_BYTES] = driver->memory_bytes;
    v[OCT__FACT_DEV_READ_MB_PER_S] = driver->read_bytes_per_s > 0 && driver->read_bytes_per_s < 1e18 ? (uint64_t)(driver->read_bytes_per_s * 1e-6) : 0;
    machine->rates = oct__rates_of_device(&machine->facts);
}

/* ---- words ---------------------------------------------------------------------------------------------------------------------- */

static void device_json(oct__text *text, const oct_context *context)
{
    const oct__machine *machine = &context->machine;
    if (machine->device == OCT__DEVICE_CPU) {
        oct__text_add(text, "null");
        return;
    }
    oct__text_add(text, "{\"kind\": \"%s\", \"name\": ", oct__device_name(machine->device));
    oct__text_add_json_string(text, machine->device_name);
    if (context->driver != NULL) {
        oct__text_add(text, ", \"arch\": ");
        oct__text_add_json_string(text, context->driver->arch);
        oct__text_add(text, ", \"code\": ");
        oct__text_add_json_string(text, context->driver->code);
    }
    oct__text_add(text, ", \"facts\": {");
    const char *between = "";
    for (unsigned fact = 0; fact < OCT__FACT_COUNT; fact++) {
        if (oct__fact_is_device((oct__fact)fact)) {
            oct__text_add(text, "%s\"%s\": %" PRIu64, between, oct__fact_name((oct__fact)fact), machine->facts.v[fact]);
            between = ", ";
        }
    }
    oct__text_add(text, "}}");
}

static void device_plain(oct__text *text, const oct_context *context)
{
    const oct__machine *machine = &context->machine;
    if (machine->device == OCT__DEVICE_CPU) {
        return;
    }
    const uint64_t *v = machine->facts.v;
    oct__text_add(text, "device      %s (%s", machine->device_name, oct__device_name(machine->device));
    if (context->driver != NULL) {
        oct__text_add(text, ", %s, runs the library's %s", context->driver->arch, context->driver->code);
    }
    oct__text_add(text, ")\n            %" PRIu64 " units in warps of %" PRIu64 ", %" PRIu64 " KiB of shared memory a block, %s\n", v[OCT__FACT_DEV_UNITS], v[OCT__FACT_DEV_WARP],
                  v[OCT__FACT_DEV_SHARED_BYTES] / 1024, v[OCT__FACT_DEV_HAS_MMA] != 0 ? "matrix units" : "no matrix units");
    oct__text_add(text, "            ");
    oct__text_add_number(text, (double)v[OCT__FACT_DEV_MEMORY_BYTES] * 1e-9, 4);
    oct__text_add(text, " GB of memory");
    if (v[OCT__FACT_DEV_READ_MB_PER_S] > 0) {
        oct__text_add(text, " at ");
        oct__text_add_number(text, (double)v[OCT__FACT_DEV_READ_MB_PER_S] * 1e-3, 4);
        oct__text_add(text, " GB/s on paper");
    }
    oct__text_add(text, "\n");
}

void oct__device_text(oct__text *text, uint32_t format, const oct_context *context)
{
    if (format == OCT_TEXT_JSON) {
        device_json(text, context);
    } else {
        device_plain(text, context);
    }
}

size_t oct_device_describe(const oct_context *context, uint32_t format, char *bytes, size_t size)
{
    oct__text text;
    oct__text_init(&text, bytes, size);
    if (context != NULL && format <= OCT_TEXT_JSON) {
        oct__device_text(&text, format, context);
    }
    return text.length;
}

/* ---- pools' memory --------------------------------------------------------------------------------------------------------------- */

static void free_memory(void *user, void *memory)
{
    oct__driver *driver = user;
    driver->table->free(driver, memory);
}

static oct_status alloc_zeroed(void *user, size_t bytes, void **memory)
{
    oct__driver *driver = user;
    oct_status status = oct__backend_alloc(driver, bytes, memory);
    if (status != OCT_OK) {
        *memory = NULL;
        return status;
    }
    status = driver->table->fill(driver, *memory, 0, bytes, NULL);
    if (status == OCT_OK) {
        status = driver->table->wait(driver, NULL);
    }
    if (status != OCT_OK) {
        driver->table->free(driver, *memory);
        *memory = NULL;
    }
    return status;
}

static oct_status put(void *user, void *to, const void *from, size_t bytes)
{
    oct__driver *driver = user;
    return driver->table->copy_in(driver, to, from, bytes, NULL);
}

static oct_status copy_within(void *user, void *to, const void *from, size_t bytes)
{
    oct__driver *driver = user;
    return driver->table->copy(driver, to, from, bytes, NULL);
}

static oct_status wait_for_all(void *user)
{
    oct__driver *driver = user;
    return driver->table->wait(driver, NULL);
}

oct__kv_store oct__device_store(oct__driver *driver)
{
    return (oct__kv_store){ .user = driver, .alloc = alloc_zeroed, .free = free_memory, .put = put, .copy = copy_within, .wait = wait_for_all };
}

oct_status oct__device_check_runs(const oct_context *context, const char *where, oct_error *error)
{
    if (context->machine.is_recorded) {
        return oct__error_set(error, OCT_UNSUPPORTED, where, "the context is of a recorded machine, where nothing can run");
    }
    return OCT_OK;
}

bool oct__device_stream_is_wrong(const oct_context *context, const void *stream)
{
    return context->driver == NULL && stream != NULL;
}

/* ---- doors ------------------------------------------------------------------------------------------------------------------------ */

oct_status oct_device_alloc(oct_context *context, size_t size_bytes, void **memory)
{
    if (context == NULL || memory == NULL || size_bytes == 0) {
        return OCT_INVALID_ARGUMENT;
    }
    *memory = NULL;
    const oct_status status = oct__device_check_runs(context, "oct_device_alloc", NULL);
    if (status != OCT_OK) {
        return status;
    }
    if (context->driver != NULL) {
        return oct__backend_alloc(context->driver, size_bytes, memory);
    }
    *memory = oct__memory_alloc(&context->allocator, size_bytes, HOST_ALIGN);
    return *memory != NULL ? OCT_OK : OCT_OUT_OF_MEMORY;
}

void oct_device_free(oct_context *context, void *memory, size_t size_bytes)
{
    if (context == NULL || memory == NULL) {
        return;
    }
    if (context->driver != NULL) {
        context->driver->table->free(context->driver, memory);
    } else {
        oct__memory_free(&context->allocator, memory, size_bytes);
    }
}

/* What the two copies refuse alike. */
static oct_status check_copy(const oct_context *context, const void *to, const void *from, size_t size_bytes, const void *stream)
{
    if (context == NULL || (size_bytes > 0 && (to == NULL || from == NULL)) || oct__device_stream_is_wrong(context, stream)) {
        return OCT_INVALID_ARGUMENT;
    }
    return oct__device_check_runs(context, "oct_device_copy", NULL);
}

oct_status oct_device_copy_in(oct_context *context, void *device, const void *host, size_t size_bytes, void *stream)
{
    const oct_status status = check_copy(context, device, host, size_bytes, stream);
    if (status != OCT_OK || size_bytes == 0) {
        return status;
    }
    if (context->driver != NULL) {
        return context->driver->table->copy_in(context->driver, device, host, size_bytes, stream);
    }
    memmove(device, host, size_bytes);
    return OCT_OK;
}

oct_status oct_device_copy_out(oct_context *context, void *host, const void *device, size_t size_bytes, void *stream)
{
    const oct_status status = check_copy(context, host, device, size_bytes, stream);
    if (status != OCT_OK || size_bytes == 0) {
        return status;
    }
    if (context->driver != NULL) {
        return context->driver->table->copy_out(context->driver, host, device, size_bytes, stream);
    }
    memmove(host, device, size_bytes);
    return OCT_OK;
}

oct_status oct_device_wait(oct_context *context, void *stream)
{
    if (context == NULL || oct__device_stream_is_wrong(context, stream)) {
        return OCT_INVALID_ARGUMENT;
    }
    return context->driver != NULL ? context->driver->table->wait(context->driver, stream) : oct__device_check_runs(context, "oct_device_wait", NULL);
}

oct_status oct_plan_status(oct_plan *plan, void *stream, oct_error *error)
{
    static const char where[] = "oct_plan_status";
    if (plan == NULL) {
        return oct__error_set(error, OCT_INVALID_ARGUMENT, where, "plan is NULL");
    }
    if (plan->on_device == NULL) {
        return stream == NULL ? OCT_OK : oct__error_set(error, OCT_INVALID_ARGUMENT, where, "stream is given; must be NULL on the CPU");
    }
    uint32_t found;
    const oct_status status = oct__backend_plan_status(plan->on_device, stream, &found);
    if (status != OCT_OK) {
        return oct__error_set(error, status, where, "the plan's status could not be read (%s)", oct_status_message(status));
    }
    if (found == OCT__DEV_PLAN_FULL) {
        return oct__error_set(error, OCT_INVALID_ARGUMENT, where,
                              "the step is larger than spec.max_sequences %" PRIu32 ", max_rows %" PRId64 ", max_keys %" PRId64 " or its metadata is none; its runs write nothing",
                              plan->spec.max_sequences, plan->spec.max_rows, plan->spec.max_keys);
    }
    return OCT_OK;
}
