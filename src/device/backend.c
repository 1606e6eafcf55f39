/* backend.c: see backend.h. */
#include "device/backend.h"

#include <string.h>

#include "device/launch_write_sm90a.h"
#include "host/error.h"

struct oct__backend_plan {
    oct__driver *driver;
    const oct__allocator *allocator;
    oct__dev_workspace workspace;
    void *memory;                   /* workspace.bytes on the device */
    oct__dev_batch batch;
    int64_t n_pages;
};

oct_status oct__backend_error(oct__driver *driver, oct_status status, const char *doing, const char *where, oct_error *error)
{
    const char *fault = driver->table->fault(driver);
    return oct__error_set(error, status, where, "%s: the %s driver says %s (%s)", doing, driver->table->name, fault[0] != '\0' ? fault : oct_status_name(status), driver->device);
}

oct_status oct__backend_alloc(oct__driver *driver, size_t bytes, void **memory)
{
    *memory = NULL;
    return driver->table->is_capturing(driver, NULL) ? OCT_UNSUPPORTED : driver->table->alloc(driver, bytes, memory);
}

/* ---- plans -------------------------------------------------------------------------------------------------------------------- */

oct_status oct__backend_plan_create(oct__driver *driver, const oct__allocator *allocator, const oct_attn_spec *spec, const oct__variant *const *chosen,
                                    const char *where, oct__backend_plan **out, oct_error *error)
{
    const oct__dev_chip *chip = &driver->chip;
    const oct__dev_step_limits limits = { spec->max_sequences, spec->max_rows, spec->max_keys };
    oct__dev_attn_shape shapes[OCT__DEV_OPS];
    *out = NULL;
    for (uint32_t op = 0; op < OCT__DEV_OPS; op++) {
        if (!oct__dev_attn_shape_for(chip, spec, chosen[op]->kernel, chosen[op]->tile_vectors, &shapes[op])) {
            return oct__error_set(error, OCT_UNSUPPORTED, where, "%s: a tile takes %u bytes of shared memory, a block of this device may have %u", chosen[op]->full_name,
                                  shapes[op].shared_bytes, chip->shared_limit_bytes);
        }
    }
    oct__backend_plan *plan = oct__memory_alloc(allocator, sizeof(*plan), 64);
    if (plan == NULL) {
        return oct__error_set(error, OCT_OUT_OF_MEMORY, where, "no memory for a plan");
    }
    memset(plan, 0, sizeof(*plan));
    plan->driver = driver;
    plan->allocator = allocator;
    oct__dev_workspace_for(chip, spec, &limits, shapes, &plan->workspace);
    const oct_status status = oct__backend_alloc(driver, plan->workspace.bytes, &plan->memory);
    if (status != OCT_OK) {
        plan->memory = NULL;
        oct__backend_plan_destroy(plan);
        return oct__backend_error(driver, status, "the plan's workspace", where, error);
    }
    *out = plan;
    return OCT_OK;
}

void oct__backend_plan_destroy(oct__backend_plan *plan)
{
    if (plan == NULL) {
        return;
    }
    if (plan->memory != NULL) {
        plan->driver->table->free(plan->driver, plan->memory);
    }
    oct__memory_free(plan->allocator, plan, sizeof(*plan));
}

uint64_t oct__backend_plan_bytes(const oct__backend_plan *plan)
{
    return plan->workspace.bytes;
}

uint32_t oct__backend_plan_sequences(const oct__backend_plan *plan)
{
    return plan->batch.n_sequences;
}

int64_t oct__backend_plan_pages(const oct__backend_plan *plan)
{
    return plan->n_pages;
}

oct_status oct__backend_plan_update(oct__backend_plan *plan, const oct_attn_spec *spec, const oct_attn_batch *batch)
{
    oct__driver *driver = plan->driver;
    oct__plan_params params;
    oct__dev_launch launch;
    plan->batch.n_sequences = 0;
    plan->n_pages = 0;
    if (batch == NULL || batch->n_sequences == 0) {
        return OCT_OK;
    }
    oct__dev_batch packed;
    oct__dev_pack_batch(spec, batch, &packed);
    oct__dev_pack_plan(&driver->chip, spec, &packed, &plan->workspace, plan->memory, &params, &launch);
    for (uint32_t op = 0; op < OCT__DEV_OPS; op++) {   /* what a run does not launch must not be planned: a step of it is too large, as a whole */
        if (!oct__dev_may_have(spec, &plan->workspace, op)) {
            params.op[op].max_tasks = 0;
        }
    }
    const oct_status status = driver->table->launch(driver, &launch, &params, sizeof(params), batch->stream);
    if (status == OCT_OK) {
        plan->batch = packed;
        plan->n_pages = batch->n_pages;
    }
    return status;
}

oct_status oct__backend_plan_status(oct__backend_plan *plan, void *stream, uint32_t *found)
{
    oct__driver *driver = plan->driver;
    uint32_t left = OCT__DEV_PLAN_OK;
    *found = OCT__DEV_PLAN_OK;
    if (plan->batch.n_sequences == 0) {
        return OCT_OK;
    }
    oct_status status = driver->table->copy_out(driver, &left, (unsigned char *)plan->memory + plan->workspace.plan_at + offsetof(oct__dev_plan, status), sizeof(left), stream);
    if (status == OCT_OK) {
        status = driver->table->wait(driver, stream);
    }
    if (status == OCT_OK) {
        *found = left;
    }
    return status;
}

/* ---- the steps' calls ----------------------------------------------------------------------------------------------------------- */

oct_status oct__backend_attn(oct__backend_plan *plan, const oct_attn_spec *spec, const oct_attn_args *args)
{
    oct__driver *driver = plan->driver;
    if (plan->batch.n_sequences == 0) {
        return OCT_OK;
    }
    for (uint32_t op = 0; op < OCT__DEV_OPS; op++) {
        oct__attn_params params;
        oct__dev_launch attend, finish;
        if (!oct__dev_may_have(spec, &plan->workspace, op)) {
            continue;
        }
        oct__dev_pack_attn(spec, &plan->batch, args, &plan->workspace, plan->memory, op, &params, &attend, &finish);
        oct_status status = driver->table->launch(driver, &attend, &params, sizeof(params), args->stream);
        /* Where nothing can be split, be it into parts of the plan, there is nothing to finish. */
        if (status == OCT_OK && plan->workspace.max_groups[op] > 0) {
            status = driver->table->launch(driver, &finish, &params, sizeof(params), args->stream);
        }
        if (status != OCT_OK) {
            return status;
        }
    }
    return OCT_OK;
}

oct_status oct__backend_write(oct__driver *driver, const oct__variant *variant, const oct_kv_write_args *args)
{
    oct__dev_launch launch;
    oct_status status = OCT_OK;
    uint32_t *refused = args->checked != 0 ? args->refused : NULL;
    if (refused != NULL) {
        oct__kv_check_params check;
        status = driver->table->fill(driver, refused, 0, sizeof(*refused), args->stream);
        if (status == OCT_OK && oct__dev_pack_kv_check(args, refused, &check, &launch)) {
            status = driver->table->launch(driver, &launch, &check, sizeof(check), args->stream);
        }
    }
    if (status != OCT_OK || args->n_tokens <= 0) {
        return status;
    }
    if (strcmp(variant->kernel, "kv_write_sm90a") == 0) {
        oct__kv_write_sm90a_params params;
        oct__dev_pack_kv_write_sm90a(&driver->chip, args, refused, &params, &launch);
        return driver->table->launch(driver, &launch, &params, sizeof(params), args->stream);
    }
    oct__kv_write_params params;
    oct__dev_pack_kv_write(&driver->chip, args, refused, &params, &launch);
    launch.kernel = variant->kernel;
    return driver->table->launch(driver, &launch, &params, sizeof(params), args->stream);
}

oct_status oct__backend_merge(oct__driver *driver, const oct__variant *variant, const oct_attn_merge_args *args)
{
    oct__dev_launch launch;
    if (strcmp(variant->kernel, "attn_merge_sm90a") == 0) {
        oct__merge_sm90a_params params;
        return oct__dev_pack_merge_sm90a(&driver->chip, args, &params, &launch) ? driver->table->launch(driver, &launch, &params, sizeof(params), args->stream) : OCT_OK;
    }
    oct__merge_params params;
    if (!oct__dev_pack_merge(&driver->chip, args, &params, &launch)) {
        return OCT_OK;
    }
    launch.kernel = variant->kernel;
    return driver->table->launch(driver, &launch, &params, sizeof(params), args->stream);
}
