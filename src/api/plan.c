/* plan.c: the doors of octavo/plan.h.
 *
 * Threads: as octavo/plan.h says; nothing here locks. */
#include "octavo/plan.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

#include "api/device.h"
#include "api/check.h"
#include "api/struct.h"
#include "device/backend.h"
#include "host/error.h"
#include "kv/spec.h"
#include "number/dtype.h"
#include "plan/explain.h"
#include "plan/plan.h"

/* Beyond any model, low enough that no product of heads, keys and dims of a batch leaves 64 bits. */
enum { HEADS_Q_MAX = 65536 };

static bool is_operand_dtype(uint32_t dtype)
{
    /* i8 needs a scale a vector, which q and out have no room for. */
    return oct__dtype_is_valid(dtype) && dtype != OCT_DTYPE_I8 && dtype != OCT_DTYPE_V4;
}

static oct_status check_spec(const oct_attn_spec *spec, const char *where, oct_error *error)
{
    const oct_status status = oct__kv_spec_check(&spec->kv, "spec.kv", where, error);
    if (status != OCT_OK) {
        return status;
    }
    if (spec->heads_q == 0 || spec->heads_q % spec->kv.heads != 0) {
        return oct__error_set(error, OCT_INVALID_ARGUMENT, where, "spec.heads_q is %" PRIu32 "; must be a multiple of spec.kv.heads = %" PRIu32, spec->heads_q, spec->kv.heads);
    }
    if (spec->heads_q > HEADS_Q_MAX) {
        return oct__error_set(error, OCT_INVALID_ARGUMENT, where, "spec.heads_q is %" PRIu32 "; must be at most %d", spec->heads_q, HEADS_Q_MAX);
    }
    if (!is_operand_dtype(spec->q_dtype) || !is_operand_dtype(spec->out_dtype)) {
        const bool q = !is_operand_dtype(spec->q_dtype);
        return oct__error_set(error, OCT_INVALID_ARGUMENT, where, "spec.%s is %" PRIu32 "; must be f32, f16, bf16 or an 8-bit float", q ? "q_dtype" : "out_dtype",
                              q ? spec->q_dtype : spec->out_dtype);
    }
    if (!isfinite(spec->sm_scale) || spec->sm_scale <= 0) {
        return oct__error_set(error, OCT_INVALID_ARGUMENT, where, "spec.sm_scale is %g; must be finite and > 0", (double)spec->sm_scale);
    }
    if (!isfinite(spec->softcap) || spec->softcap < 0) {
        return oct__error_set(error, OCT_INVALID_ARGUMENT, where, "spec.softcap is %g; must be finite and >= 0 (0: none)", (double)spec->softcap);
    }
    const struct { const char *name; uint32_t value; } flags[] = {
        { "causal", spec->causal }, { "has_sink", spec->has_sink }, { "has_mask", spec->has_mask }, { "deterministic", spec->deterministic },
    };
    for (size_t i = 0; i < sizeof(flags) / sizeof(flags[0]); i++) {
        if (flags[i].value > 1) {
            return oct__error_set(error, OCT_INVALID_ARGUMENT, where, "spec.%s is %" PRIu32 "; must be 0 or 1", flags[i].name, flags[i].value);
        }
    }
    if (spec->max_threads > OCT__THREADS_MAX) {
        return oct__error_set(error, OCT_INVALID_ARGUMENT, where, "spec.max_threads is %" PRIu32 "; must be at most %u", spec->max_threads, OCT__THREADS_MAX);
    }
    if (spec->products > OCT_PRODUCTS_8BIT_PRECISE) {
        return oct__error_set(error, OCT_INVALID_ARGUMENT, where, "spec.products is %" PRIu32 "; must be one of OCT_PRODUCTS_*", spec->products);
    }
    if (spec->reserved2 != 0) {
        return oct__error_set(error, OCT_INVALID_ARGUMENT, where, "spec.reserved2 is %" PRIu32 "; must be 0", spec->reserved2);
    }
    return OCT_OK;
}

/* Rows, keys and sequences are counted in int32. */
static oct_status check_limits(const oct_attn_spec *spec, const char *where, oct_error *error)
{
    const struct { const char *name; int64_t value; } limits[] = {
        { "max_sequences", spec->max_sequences }, { "max_rows", spec->max_rows }, { "max_keys", spec->max_keys },
    };
    for (size_t i = 0; i < sizeof(limits) / sizeof(limits[0]); i++) {
        if (limits[i].value < 1 || limits[i].value > INT32_MAX - 1) {
            return oct__error_set(error, OCT_INVALID_ARGUMENT, where, "spec.%s is %" PRId64 "; on a GPU it must be 1 to 2^31 - 2", limits[i].name, limits[i].value);
        }
    }
    return OCT_OK;
}

oct_status oct_plan_create(oct_context *context, const oct_attn_spec *given, oct_plan **plan, oct_error *error)
{
    static const char where[] = "oct_plan_create";
    oct_attn_spec spec;
    if (context == NULL || plan == NULL) {
        return oct__error_set(error, OCT_INVALID_ARGUMENT, where, "%s is NULL", context == NULL ? "context" : "plan");
    }
    *plan = NULL;
    oct_status status = oct__struct_read(&spec, sizeof(spec), offsetof(oct_attn_spec, max_sequences), given, "spec", where, error);
    if (status == OCT_OK) {
        status = check_spec(&spec, where, error);
    }
    if (status == OCT_OK && context->driver != NULL) {
        status = check_limits(&spec, where, error);
    }
    if (status == OCT_OK) {
        status = oct__plan_create(&context->machine, &context->allocator, &context->executor, &spec, where, plan, error);
    }
    if (status == OCT_OK && context->driver != NULL) {
        _Static_assert((int)OCT__PLAN_DECODE == (int)OCT__DEV_DECODE && (int)OCT__PLAN_EXTEND == (int)OCT__DEV_EXTEND, "one order of operations");
        status = oct__backend_plan_create(context->driver, &context->allocator, &(*plan)->spec, (*plan)->chosen, where, &(*plan)->on_device, error);
        if (status != OCT_OK) {
            oct_plan_destroy(*plan);
            *plan = NULL;
        }
    }
    return status;
}

void oct_plan_destroy(oct_plan *plan)
{
    if (plan != NULL) {
        oct__backend_plan_destroy(plan->on_device);
        oct__plan_destroy(plan);
    }
}

/* What can be said of a GPU's batch without its bytes. */
static oct_status check_device_batch(const oct_plan *plan, const oct_attn_batch *batch, const char *where, oct_error *error)
{
    const bool padded = batch->block_table != NULL || batch->seq_lens != NULL, compressed = batch->kv_indptr != NULL || batch->kv_indices != NULL || batch->kv_last_page_len != NULL;
    if (batch->n_sequences > plan->spec.max_sequences) {
        return oct__error_set(error, OCT_INVALID_ARGUMENT, where, "batch.n_sequences is %" PRIu32 "; the plan was made for max_sequences %" PRIu32, batch->n_sequences,
                              plan->spec.max_sequences);
    }
    if (batch->n_sequences > 0 && padded == compressed) {
        return oct__error_set(error, OCT_INVALID_ARGUMENT, where, "%s; give block_table and seq_lens, or kv_indptr, kv_indices and kv_last_page_len",
                              padded ? "both forms of keys are given" : "no keys are given");
    }
    if (batch->n_pages < 0 || batch->max_pages < 0) {
        return oct__error_set(error, OCT_INVALID_ARGUMENT, where, "batch.%s is %" PRId64 "; must be >= 0", batch->n_pages < 0 ? "n_pages" : "max_pages",
                              batch->n_pages < 0 ? batch->n_pages : batch->max_pages);
    }
    const struct { const char *key; const int32_t *pointer; bool needed; } pointers[] = {
        { "batch.qo_indptr", batch->qo_indptr, true },
        { "batch.block_table", batch->block_table, padded && batch->max_pages > 0 },
        { "batch.seq_lens", batch->seq_lens, padded },
        { "batch.kv_indptr", batch->kv_indptr, compressed },
        { "batch.kv_indices", batch->kv_indices, false },
        { "batch.kv_last_page_len", batch->kv_last_page_len, compressed },
    };
    oct_status status = OCT_OK;
    for (size_t i = 0; i < sizeof(pointers) / sizeof(pointers[0]) && status == OCT_OK; i++) {
        status = oct__check_pointer(pointers[i].pointer, sizeof(int32_t), pointers[i].needed ? batch->n_sequences : 0, pointers[i].key, where, error);
    }
    return status;
}

static oct_status update_on_device(oct_plan *plan, const oct_attn_batch *batch, const char *where, oct_error *error)
{
    oct_status status = check_device_batch(plan, batch, where, error);
    (void)oct__backend_plan_update(plan->on_device, &plan->spec, NULL);
    if (status == OCT_OK) {
        status = oct__backend_plan_update(plan->on_device, &plan->spec, batch);
        if (status != OCT_OK) {
            return oct__error_set(error, status, where, "the step's planning could not be enqueued (%s)", oct_status_message(status));
        }
    }
    return status;
}

oct_status oct_plan_update(oct_plan *plan, const oct_attn_batch *given, oct_error *error)
{
    static const char where[] = "oct_plan_update";
    oct_attn_batch batch;
    if (plan == NULL) {
        return oct__error_set(error, OCT_INVALID_ARGUMENT, where, "plan is NULL");
    }
    oct_status status = oct__struct_read(&batch, sizeof(batch), offsetof(oct_attn_batch, stream), given, "batch", where, error);
    if (status == OCT_OK && plan->on_device == NULL && batch.stream != NULL) {
        status = oct__error_set(error, OCT_INVALID_ARGUMENT, where, "batch.stream is given; must be NULL on the CPU");
    }
    if (status == OCT_OK && plan->on_device == NULL && plan->machine->device != OCT__DEVICE_CPU) {
        status = oct__error_set(error, OCT_UNSUPPORTED, where, "the plan is of a recorded machine, where nothing can run");
    }
    if (status != OCT_OK) {
        if (plan->on_device != NULL) {
            (void)oct__backend_plan_update(plan->on_device, &plan->spec, NULL);
        }
        oct__plan_clear(plan);
        return status;
    }
    return plan->on_device != NULL ? update_on_device(plan, &batch, where, error) : oct__plan_update(plan, &batch, where, error);
}

oct_status oct_plan_info_get(const oct_plan *plan, oct_plan_info *out)
{
    if (plan == NULL) {
        return OCT_INVALID_ARGUMENT;
    }
    oct_plan_info info = {
        .struct_size = sizeof(info),
        .n_sequences = plan->batch.n_sequences,
        .n_rows = plan->batch.n_rows,
        .n_items = plan->split.n_items,
        .n_items_split = plan->split.n_items_split,
        .n_keys = plan->batch.n_keys,
        .workspace_bytes = oct__plan_workspace_bytes(plan),
        .predicted_seconds = plan->predicted_seconds,
    };
    int64_t n_decode = 0, n_extend = 0, n_keys = 0;
    if (plan->on_device != NULL) {
        /* Which rows there are only the device knows: both variants stand by. */
        info.workspace_bytes = oct__backend_plan_bytes(plan->on_device);
        info.n_sequences = oct__backend_plan_sequences(plan->on_device);
        n_decode = n_extend = info.n_sequences;
    }
    if (plan->batch.n_sequences > 0) {
        oct__split_count(&plan->split, OCT__OP_attn_decode, &n_decode, &n_keys);
        oct__split_count(&plan->split, OCT__OP_attn_extend, &n_extend, &n_keys);
    }
    snprintf(info.decode_variant, sizeof(info.decode_variant), "%s", n_decode > 0 ? plan->chosen[OCT__PLAN_DECODE]->full_name : "");
    snprintf(info.extend_variant, sizeof(info.extend_variant), "%s", n_extend > 0 ? plan->chosen[OCT__PLAN_EXTEND]->full_name : "");
    return oct__struct_write(out, &info, sizeof(info), sizeof(info));
}

size_t oct_plan_explain(const oct_plan *plan, uint32_t format, char *bytes, size_t size)
{
    oct__text text;
    oct__text_init(&text, bytes, size);
    if (plan != NULL && format <= OCT_TEXT_JSON) {
        oct__explain_plan(&text, format, plan);
    }
    return text.length;
}

static const char *variant_name(oct__device device, uint32_t index)
{
    uint32_t n;
    const oct__variant *rows = oct__variants_of(device, &n);
    return index < n ? rows[index].full_name : NULL;
}

const char *oct_variant_name(uint32_t index)
{
    return variant_name(OCT__DEVICE_CPU, index);
}

const char *oct_context_variant_name(const oct_context *context, uint32_t index)
{
    return context != NULL ? variant_name(context->machine.device, index) : NULL;
}
