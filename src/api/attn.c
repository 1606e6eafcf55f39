/* attn.c: the doors of octavo/attn.h.
 *
 * Threads: a run reads its plan and arguments; what its threads share is the step's own atomics. A merge shares nothing. */
#include "octavo/attn.h"

#include <inttypes.h>
#include <math.h>

#include "api/check.h"
#include "api/device.h"
#include "api/struct.h"
#include "device/backend.h"
#include "host/error.h"
#include "number/dtype.h"
#include "number/scale.h"
#include "plan/choose.h"
#include "plan/explain.h"
#include "plan/plan.h"

/* ---- run ---------------------------------------------------------------------------------------------------------------- */

typedef struct checked_run {
    const oct_plan *plan;
    oct_attn_args args;
    oct_kv_layer layer;
} checked_run;

/* The rows that operands must have room for: those of the batch, or of the largest one where only the device knows. */
static int64_t rows_of(const oct_plan *plan)
{
    return plan->on_device == NULL ? plan->batch.n_rows : oct__backend_plan_sequences(plan->on_device) > 0 ? plan->spec.max_rows : 0;
}

/* The scale of an 8-bit operand: there when the format needs it and only then, finite and > 0 as far as the host can see. */
static oct_status check_operand_scale(const float *scale, uint32_t dtype, bool on_device, const char *key, const char *where, oct_error *error)
{
    const bool needed = oct__dtype_is_8bit(dtype);
    if (needed != (scale != NULL)) {
        return oct__error_set(error, OCT_INVALID_ARGUMENT, where, "args.%s is %s; %s", key, needed ? "NULL" : "given",
                              needed ? "an 8-bit operand needs one" : "nothing would read it, so it must be NULL");
    }
    if (needed && ((uintptr_t)scale % sizeof(float) != 0 || (!on_device && !oct__scale_is_valid(scale[0])))) {
        return oct__error_set(error, OCT_INVALID_ARGUMENT, where, "args.%s is not an aligned f32 that is finite and > 0", key);
    }
    return OCT_OK;
}

static oct_status check_operands(const checked_run *r, const char *where, oct_error *error)
{
    const oct_attn_spec *spec = &r->plan->spec;
    const oct_attn_args *args = &r->args;
    const int64_t rows = rows_of(r->plan);
    const uint32_t q_bytes = oct__dtype_size_bytes(spec->q_dtype), out_bytes = oct__dtype_size_bytes(spec->out_dtype);
    oct_status status = oct__check_pointer(args->q, q_bytes, rows, "args.q", where, error);
    if (status == OCT_OK) {
        status = oct__check_pointer(args->out, out_bytes, rows, "args.out", where, error);
    }
    if (status == OCT_OK) {
        status = oct__check_pointer(args->lse, sizeof(float), 0, "args.lse", where, error);
    }
    if (status != OCT_OK) {
        return status;
    }
    const oct__axis q[] = { { rows, args->q_row_stride }, { spec->heads_q, args->q_head_stride } };
    const oct__axis out[] = { { rows, args->out_row_stride }, { spec->heads_q, args->out_head_stride } };
    const oct__axis lse[] = { { rows, args->lse_row_stride }, { spec->heads_q, args->lse_head_stride } };
    if (!oct__axes_are_readable(q, 2, spec->kv.dim_k, q_bytes)) {
        return oct__error_set(error, OCT_INVALID_ARGUMENT, where, "args.q_row_stride %" PRId64 ", q_head_stride %" PRId64 ": must be >= 0 and stay in the address space",
                              args->q_row_stride, args->q_head_stride);
    }
    if (!oct__axes_are_apart(out, 2, spec->kv.dim_v, out_bytes)) {
        return oct__error_set(error, OCT_INVALID_ARGUMENT, where, "args.out_row_stride %" PRId64 ", out_head_stride %" PRId64 " let vectors of %" PRIu32 " elements overlap",
                              args->out_row_stride, args->out_head_stride, spec->kv.dim_v);
    }
    if (args->lse != NULL && !oct__axes_are_apart(lse, 2, 1, sizeof(float))) {
        return oct__error_set(error, OCT_INVALID_ARGUMENT, where, "args.lse_row_stride %" PRId64 ", lse_head_stride %" PRId64 " let values overlap", args->lse_row_stride,
                              args->lse_head_stride);
    }
    return OCT_OK;
}

static oct_status check_sink(const checked_run *r, const char *where, oct_error *error)
{
    const oct_attn_spec *spec = &r->plan->spec;
    const float *sink = r->args.sink;
    if ((sink != NULL) != (spec->has_sink != 0)) {
        return oct__error_set(error, OCT_INVALID_ARGUMENT, where, "args.sink is %s, but the plan's has_sink is %" PRIu32, sink != NULL ? "given" : "NULL", spec->has_sink);
    }
    if ((uintptr_t)sink % sizeof(float) != 0) {
        return oct__error_set(error, OCT_INVALID_ARGUMENT, where, "args.sink is not aligned to f32");
    }
    for (uint32_t head = 0; sink != NULL && r->plan->on_device == NULL && head < spec->heads_q; head++) {
        if (isnan(sink[head]) || sink[head] == INFINITY) {
            return oct__error_set(error, OCT_INVALID_ARGUMENT, where, "args.sink[%" PRIu32 "] is %g; must be finite or -inf", head, (double)sink[head]);
        }
    }
    return OCT_OK;
}

static oct_status check_mask(const checked_run *r, const char *where, oct_error *error)
{
    const oct_attn_spec *spec = &r->plan->spec;
    /* The rows of a sequence are not known of a batch on a device: a word holds the first 32. */
    const int32_t longest_rows = r->plan->on_device != NULL ? 1 : r->plan->batch.longest_rows;
    const int64_t rows = rows_of(r->plan), words = ((int64_t)longest_rows + 31) / 32;
    const bool expected = spec->has_mask != 0;
    if ((r->args.mask != NULL && !expected) || (r->args.mask == NULL && expected && rows > 0)) {
        return oct__error_set(error, OCT_INVALID_ARGUMENT, where, "args.mask is %s, but the plan's has_mask is %" PRIu32, expected ? "NULL" : "given", spec->has_mask);
    }
    if ((uintptr_t)r->args.mask % sizeof(uint32_t) != 0) {
        return oct__error_set(error, OCT_INVALID_ARGUMENT, where, "args.mask is not aligned to 32-bit words");
    }
    const oct__axis axis = { rows, r->args.mask_row_stride };
    if (expected && !oct__axes_are_apart(&axis, 1, words, sizeof(uint32_t))) {
        return oct__error_set(error, OCT_INVALID_ARGUMENT, where, "args.mask_row_stride is %" PRId64 "; must be at least %" PRId64 " words for %" PRId32 " rows of one sequence",
                              r->args.mask_row_stride, words, longest_rows);
    }
    return OCT_OK;
}

static oct_status check_run(checked_run *r, const oct_plan *plan, const oct_attn_args *given, const char *where, oct_error *error)
{
    r->plan = plan;
    if (plan == NULL) {
        return oct__error_set(error, OCT_INVALID_ARGUMENT, where, "plan is NULL");
    }
    const bool on_device = plan->on_device != NULL;
    oct_status status = oct__struct_read(&r->args, sizeof(r->args), offsetof(oct_attn_args, stream), given, "args", where, error);
    if (status != OCT_OK) {
        return status;
    }
    if (plan->machine->is_recorded) {
        return oct__error_set(error, OCT_UNSUPPORTED, where, "the plan is of a recorded machine, where nothing can run");
    }
    if (!on_device && r->args.stream != NULL) {
        return oct__error_set(error, OCT_INVALID_ARGUMENT, where, "args.stream is given; must be NULL on the CPU");
    }
    if (r->args.reserved != 0) {
        return oct__error_set(error, OCT_INVALID_ARGUMENT, where, "args.reserved is %" PRIu32 "; must be 0", r->args.reserved);
    }
    status = oct__check_layer(&r->layer, r->args.layer, on_device, OCT__LAYER_KEYS("args.layer"), where, error);
    if (status != OCT_OK) {
        return status;
    }
    r->args.layer = &r->layer;
    if (!oct__spec_equal(&r->layer.spec, &plan->spec.kv)) {
        return oct__error_set(error, OCT_INVALID_ARGUMENT, where, "args.layer.spec differs from the plan's kv spec; bytes of one format are never read as another");
    }
    if (plan->batch.page_end > r->layer.n_pages) {
        return oct__error_set(error, OCT_INVALID_ARGUMENT, where, "the batch uses page %" PRId64 ", args.layer has %" PRId64 " pages", plan->batch.page_end - 1, r->layer.n_pages);
    }
    if (on_device && oct__backend_plan_pages(plan->on_device) > r->layer.n_pages) {
        return oct__error_set(error, OCT_INVALID_ARGUMENT, where, "the batch has indices of up to %" PRId64 " pages, args.layer has %" PRId64,
                              oct__backend_plan_pages(plan->on_device), r->layer.n_pages);
    }
    status = check_operands(r, where, error);
    if (status == OCT_OK) {
        status = check_operand_scale(r->args.q_scale, plan->spec.q_dtype, on_device, "q_scale", where, error);
    }
    if (status == OCT_OK) {
        status = check_operand_scale(r->args.out_scale, plan->spec.out_dtype, on_device, "out_scale", where, error);
    }
    if (status == OCT_OK) {
        status = check_sink(r, where, error);
    }
    return status == OCT_OK ? check_mask(r, where, error) : status;
}

static void run_task(void *arg, uint32_t ith, uint32_t nth)
{
    const checked_run *r = arg;
    oct__attn_run_part(&r->plan->step, &r->plan->spec, &r->args, ith, nth);
}

oct_status oct_attn_run(oct_plan *plan, const oct_attn_args *args)
{
    checked_run r;
    const oct_status status = check_run(&r, plan, args, "oct_attn_run", NULL);
    if (status == OCT_OK && plan->on_device != NULL) {
        return oct__backend_attn(plan->on_device, &plan->spec, &r.args);
    }
    if (status == OCT_OK && plan->step.n_items > 0) {
        /* Runs of one plan never overlap; one by parts that some thread never joined may have left counters behind the last item. */
        oct__claims_reset(plan->claims, plan->max_threads);
        oct__executor_run(plan->executor, plan->run_threads, run_task, &r);
    }
    return status;
}

oct_status oct_attn_run_part(oct_plan *plan, const oct_attn_args *args, uint32_t ith, uint32_t nth)
{
    checked_run r;
    const oct_status status = check_run(&r, plan, args, "oct_attn_run_part", NULL);
    if (status != OCT_OK) {
        return status;
    }
    if (plan->on_device != NULL) {
        return OCT_UNSUPPORTED;
    }
    if (ith >= nth || nth > plan->max_threads) {
        return OCT_INVALID_ARGUMENT;
    }
    if (plan->step.n_items > 0) {
        run_task(&r, ith, nth);
    }
    return OCT_OK;
}

oct_status oct_attn_check(const oct_plan *plan, const oct_attn_args *args, oct_error *error)
{
    checked_run r;
    return check_run(&r, plan, args, "oct_attn_check", error);
}

/* ---- merge -------------------------------------------------------------------------------------------------------------- */

typedef struct checked_merge {
    oct_attn_merge_args args;
    const oct__variant *variant;
} checked_merge;

static oct_status check_merge(const oct_context *context, oct_attn_merge_args *args, const oct_attn_merge_args *given, oct_error *error)
{
    static const char where[] = "oct_attn_merge";
    oct_status status = oct__struct_read(args, sizeof(*args), offsetof(oct_attn_merge_args, stream), given, "args", where, error);
    if (status == OCT_OK) {
        status = oct__device_check_runs(context, where, error);
    }
    if (status != OCT_OK) {
        return status;
    }
    if (oct__device_stream_is_wrong(context, args->stream)) {
        return oct__error_set(error, OCT_INVALID_ARGUMENT, where, "args.stream is given; must be NULL on the CPU");
    }
    if (args->n_parts == 0 || args->heads == 0 || args->dim == 0) {
        return oct__error_set(error, OCT_INVALID_ARGUMENT, where, "args.%s is 0; must be at least 1", args->n_parts == 0 ? "n_parts" : args->heads == 0 ? "heads" : "dim");
    }
    if (args->rows < 0) {
        return oct__error_set(error, OCT_INVALID_ARGUMENT, where, "args.rows is %" PRId64 "; must be >= 0", args->rows);
    }
    const struct { const float *pointer; const char *key; int64_t n; } pointers[] = {
        { args->out, "args.out", args->rows }, { args->lse, "args.lse", args->rows }, { args->merged, "args.merged", args->rows }, { args->lse_merged, "args.lse_merged", 0 },
    };
    for (size_t i = 0; i < sizeof(pointers) / sizeof(pointers[0]) && status == OCT_OK; i++) {
        status = oct__check_pointer(pointers[i].pointer, sizeof(float), pointers[i].n, pointers[i].key, where, error);
    }
    if (status != OCT_OK) {
        return status;
    }
    const oct__axis out[] = { { args->n_parts, args->out_part_stride }, { args->rows, args->out_row_stride }, { args->heads, args->out_head_stride } };
    const oct__axis lse[] = { { args->n_parts, args->lse_part_stride }, { args->rows, args->lse_row_stride }, { args->heads, args->lse_head_stride } };
    const oct__axis merged[] = { { args->rows, args->merged_row_stride }, { args->heads, args->merged_head_stride } };
    const oct__axis lse_merged[] = { { args->rows, args->lse_merged_row_stride }, { args->heads, args->lse_merged_head_stride } };
    if (!oct__axes_are_readable(out, 3, args->dim, sizeof(float)) || !oct__axes_are_readable(lse, 3, 1, sizeof(float))) {
        return oct__error_set(error, OCT_INVALID_ARGUMENT, where, "strides of args.out or args.lse must be >= 0 and stay in the address space");
    }
    if (!oct__axes_are_apart(merged, 2, args->dim, sizeof(float)) || (args->lse_merged != NULL && !oct__axes_are_apart(lse_merged, 2, 1, sizeof(float)))) {
        return oct__error_set(error, OCT_INVALID_ARGUMENT, where, "strides of args.merged or args.lse_merged let vectors overlap");
    }
    return OCT_OK;
}

static void merge_task(void *arg, uint32_t ith, uint32_t nth)
{
    const checked_merge *m = arg;
    int64_t row0, row1;
    oct__executor_share(m->args.rows, ith, nth, &row0, &row1);
    if (row0 < row1) {
        m->variant->merge(&m->args, row0, row1);
    }
}

size_t oct_attn_merge_explain(oct_context *context, int64_t n_rows, uint32_t heads, uint32_t dim, uint32_t n_parts, uint32_t format, char *bytes, size_t size)
{
    oct__text text;
    oct__text_init(&text, bytes, size);
    if (context != NULL && format <= OCT_TEXT_JSON && n_rows >= 0 && heads > 0 && dim > 0 && n_parts > 0) {
        oct__explain_merge(&text, format, &context->machine, n_rows, heads, dim, n_parts);
    }
    return text.length;
}

oct_status oct_attn_merge(oct_context *context, const oct_attn_merge_args *given)
{
    checked_merge m;
    if (context == NULL) {
        return OCT_INVALID_ARGUMENT;
    }
    oct_error error = OCT_ERROR_INIT;
    const oct_status status = check_merge(context, &m.args, given, &error);
    if (status != OCT_OK) {
        oct__log_write(&context->log, OCT__LOG_ERROR, "oct_attn_merge: %s", error.text);
        return status;
    }
    const oct_attn_merge_args *args = &m.args;
    m.variant = oct__choose_merge(&context->machine, args->rows, args->heads, args->dim, args->n_parts, 1);
    if (m.variant == NULL) {
        oct__log_write(&context->log, OCT__LOG_ERROR, "oct_attn_merge: no variant on this machine");
        return OCT_UNSUPPORTED;
    }
    if (context->driver != NULL) {
        const oct_status enqueued = oct__backend_merge(context->driver, m.variant, args);
        if (enqueued != OCT_OK) {
            (void)oct__backend_error(context->driver, enqueued, "the merge", "oct_attn_merge", &error);
            oct__log_write(&context->log, OCT__LOG_ERROR, "oct_attn_merge: %s", error.text);
        }
        return enqueued;
    }
    const oct__amount amount = oct__amount_of_merge(args->rows, args->heads, args->dim, args->n_parts);
    const uint32_t nth = oct__cost_threads(oct__cost_seconds(&m.variant->cost, &context->machine.rates, &amount, 1), context->executor.max_threads);
    oct__executor_run(&context->executor, nth, merge_task, &m);
    return OCT_OK;
}
