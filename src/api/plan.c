/* plan.c: the doors of octavo/plan.h.
 *
 * Threads: as octavo/plan.h says; nothing here locks. */
#include "octavo/plan.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

#include "api/context.h"
#include "api/struct.h"
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
    return oct__dtype_is_valid(dtype) && dtype != OCT_DTYPE_I8;
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
    if (spec->reserved != 0) {
        return oct__error_set(error, OCT_INVALID_ARGUMENT, where, "spec.reserved is %" PRIu32 "; must be 0", spec->reserved);
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
    oct_status status = oct__struct_read(&spec, sizeof(spec), sizeof(spec), given, "spec", where, error);
    if (status == OCT_OK) {
        status = check_spec(&spec, where, error);
    }
    return status == OCT_OK ? oct__plan_create(&context->machine, &context->allocator, &context->executor, &spec, where, plan, error) : status;
}

void oct_plan_destroy(oct_plan *plan)
{
    oct__plan_destroy(plan);
}

oct_status oct_plan_update(oct_plan *plan, const oct_attn_batch *given, oct_error *error)
{
    static const char where[] = "oct_plan_update";
    oct_attn_batch batch;
    if (plan == NULL) {
        return oct__error_set(error, OCT_INVALID_ARGUMENT, where, "plan is NULL");
    }
    const oct_status status = oct__struct_read(&batch, sizeof(batch), sizeof(batch), given, "batch", where, error);
    if (status != OCT_OK) {
        oct__plan_clear(plan);
        return status;
    }
    return oct__plan_update(plan, &batch, where, error);
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

const char *oct_variant_name(uint32_t index)
{
    uint32_t n;
    const oct__variant *rows = oct__variants(&n);
    return index < n ? rows[index].full_name : NULL;
}
