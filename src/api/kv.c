/* kv.c: the doors of octavo/kv.h. The write's are here whole; pools' and specs' stand in src/kv where they need no context.
 *
 * Threads: any, as octavo/kv.h says; a write reads a context and its arguments only, and writes through them. */
#include "octavo/kv.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "api/check.h"
#include "api/device.h"
#include "api/struct.h"
#include "device/backend.h"
#include "host/error.h"
#include "kv/pool.h"
#include "number/dtype.h"
#include "number/v4.h"
#include "plan/choose.h"
#include "plan/explain.h"

/* ---- formats ---------------------------------------------------------------------------------------------------------- */

uint32_t oct_dtype_size_bytes(uint32_t dtype)
{
    return oct__dtype_size_bytes(dtype);
}

uint64_t oct_dtype_bytes(uint32_t dtype, uint64_t n)
{
    return dtype == OCT_DTYPE_V4 && n % OCT__V4_BLOCK != 0 ? 0 : oct__dtype_bytes(dtype, n);
}

const char *oct_dtype_name(uint32_t dtype)
{
    return oct__dtype_name(dtype);
}

uint32_t oct_dtype_from_name(const char *name)
{
    return oct__dtype_from_name(name);
}

/* ---- pool --------------------------------------------------------------------------------------------------------------- */

oct_status oct_kv_pool_create(oct_context *context, const oct_kv_pool_options *given, oct_kv_pool **pool, oct_error *error)
{
    static const char where[] = "oct_kv_pool_create";
    oct_kv_pool_options options;
    if (context == NULL || pool == NULL) {
        return oct__error_set(error, OCT_INVALID_ARGUMENT, where, "%s is NULL; must %s", context == NULL ? "context" : "pool",
                              context == NULL ? "come from oct_context_create" : "point to an oct_kv_pool *");
    }
    *pool = NULL;
    oct_status status = oct__struct_read(&options, sizeof(options), sizeof(options), given, "options", where, error);
    if (status == OCT_OK) {
        status = oct__device_check_runs(context, where, error);
    }
    if (status != OCT_OK) {
        return status;
    }
    if (context->driver != NULL) {
        const oct__kv_store store = oct__device_store(context->driver);
        return oct__kv_pool_create(&context->allocator, &store, &options, pool, error);
    }
    return oct__kv_pool_create(&context->allocator, NULL, &options, pool, error);
}

/* ---- the write ------------------------------------------------------------------------------------------------------------ */

/* A write that has passed its checks. */
typedef struct checked_write {
    oct_kv_write_args args;
    oct_kv_layer layer, layer_window;
    oct_rope rope;
    const oct__variant *variant;
    uint32_t nth;
} checked_write;

static const char write_where[] = "oct_kv_write";

static oct_status check_rope(checked_write *w, bool on_device, oct_error *error)
{
    oct_rope *rope = &w->rope;
    if (w->args.rope == NULL) {
        return OCT_OK;
    }
    const oct_status status = oct__struct_read(rope, sizeof(*rope), sizeof(*rope), w->args.rope, "args.rope", write_where, error);
    if (status != OCT_OK) {
        return status;
    }
    w->args.rope = rope;
    if (rope->style > 1) {
        return oct__error_set(error, OCT_INVALID_ARGUMENT, write_where, "args.rope.style is %" PRIu32 "; must be 0 (neox) or 1 (normal)", rope->style);
    }
    if (rope->n_dims < 2 || rope->n_dims % 2 != 0 || rope->n_dims > w->layer.spec.dim_k) {
        return oct__error_set(error, OCT_INVALID_ARGUMENT, write_where, "args.rope.n_dims is %" PRIu32 "; must be even, from 2 to dim_k = %" PRIu32, rope->n_dims, w->layer.spec.dim_k);
    }
    if (!isfinite(rope->base) || rope->base <= 0) {
        return oct__error_set(error, OCT_INVALID_ARGUMENT, write_where, "args.rope.base is %g; must be finite and > 0", (double)rope->base);
    }
    if (!isfinite(rope->position_scale)) {
        return oct__error_set(error, OCT_INVALID_ARGUMENT, write_where, "args.rope.position_scale is %g; must be finite", (double)rope->position_scale);
    }
    const oct_status factors = oct__check_pointer(rope->factors, sizeof(float), 0, "args.rope.factors", write_where, error);
    if (factors != OCT_OK) {
        return factors;
    }
    for (uint32_t i = 0; rope->factors != NULL && !on_device && i < rope->n_dims / 2; i++) {
        if (!isfinite(rope->factors[i]) || rope->factors[i] == 0) {
            return oct__error_set(error, OCT_INVALID_ARGUMENT, write_where, "args.rope.factors[%" PRIu32 "] is %g; must be finite and not 0", i, (double)rope->factors[i]);
        }
    }
    return oct__check_pointer(w->args.positions, sizeof(int32_t), w->args.n_tokens, "args.positions", write_where, error);
}

static oct_status check_layers(checked_write *w, bool on_device, oct_error *error)
{
    oct_kv_write_args *args = &w->args;
    oct_status status = oct__check_layer(&w->layer, args->layer, on_device, OCT__LAYER_KEYS("args.layer"), write_where, error);
    if (status != OCT_OK) {
        return status;
    }
    args->layer = &w->layer;
    if (args->layer_window == NULL) {
        if (args->slots_window != NULL) {
            return oct__error_set(error, OCT_INVALID_ARGUMENT, write_where, "args.slots_window is given, but args.layer_window is NULL; nothing would read it");
        }
        return OCT_OK;
    }
    status = oct__check_layer(&w->layer_window, args->layer_window, on_device, OCT__LAYER_KEYS("args.layer_window"), write_where, error);
    if (status != OCT_OK) {
        return status;
    }
    args->layer_window = &w->layer_window;
    const oct_kv_spec *a = &w->layer.spec, *b = &w->layer_window.spec;
    if (a->heads != b->heads || a->dim_k != b->dim_k || a->dim_v != b->dim_v) {
        return oct__error_set(error, OCT_INVALID_ARGUMENT, write_where,
                              "args.layer_window has %" PRIu32 " heads of %" PRIu32 " and %" PRIu32 " dims, args.layer %" PRIu32 " of %" PRIu32 " and %" PRIu32 "; must be equal", b->heads,
                              b->dim_k, b->dim_v, a->heads, a->dim_k, a->dim_v);
    }
    return OCT_OK;
}

static oct_status check_source(const oct_kv_write_args *args, const oct_kv_spec *spec, oct_error *error)
{
    if (args->src_dtype != OCT_DTYPE_F32 && args->src_dtype != OCT_DTYPE_F16 && args->src_dtype != OCT_DTYPE_BF16) {
        return oct__error_set(error, OCT_INVALID_ARGUMENT, write_where, "args.src_dtype is %" PRIu32 "; must be f32, f16 or bf16", args->src_dtype);
    }
    const uint32_t element_bytes = oct__dtype_size_bytes(args->src_dtype);
    oct_status status = oct__check_pointer(args->k, element_bytes, args->n_tokens, "args.k", write_where, error);
    if (status == OCT_OK) {
        status = oct__check_pointer(args->v, element_bytes, args->n_tokens, "args.v", write_where, error);
    }
    if (status != OCT_OK) {
        return status;
    }
    const oct__axis k[] = { { args->n_tokens, args->k_token_stride }, { spec->heads, args->k_head_stride } };
    const oct__axis v[] = { { args->n_tokens, args->v_token_stride }, { spec->heads, args->v_head_stride } };
    if (!oct__axes_are_readable(k, 2, spec->dim_k, element_bytes)) {
        return oct__error_set(error, OCT_INVALID_ARGUMENT, write_where, "args.k_token_stride %" PRId64 ", k_head_stride %" PRId64 ": must be >= 0 and stay in the address space",
                              args->k_token_stride, args->k_head_stride);
    }
    if (!oct__axes_are_readable(v, 2, spec->dim_v, element_bytes)) {
        return oct__error_set(error, OCT_INVALID_ARGUMENT, write_where, "args.v_token_stride %" PRId64 ", v_head_stride %" PRId64 ": must be >= 0 and stay in the address space",
                              args->v_token_stride, args->v_head_stride);
    }
    return OCT_OK;
}

static oct_status check_slots(const int32_t *slots, int64_t n_tokens, const oct_kv_layer *layer, bool checked, const char *key, oct_error *error)
{
    const oct_status status = oct__check_pointer(slots, sizeof(int32_t), n_tokens, key, write_where, error);
    if (status != OCT_OK || !checked) {
        return status;
    }
    const int64_t capacity = layer->n_pages * layer->spec.page_size;   /* below 2^31, as the layer's check says */
    for (int64_t i = 0; i < n_tokens; i++) {
        if (slots[i] >= capacity) {
            return oct__error_set(error, OCT_INVALID_ARGUMENT, write_where, "%s[%" PRId64 "] is %" PRId32 "; the layer has %" PRId64 " slots", key, i, slots[i], capacity);
        }
    }
    return OCT_OK;
}

static oct_status check_counts(const oct_kv_write_args *args, uint32_t nth, oct_error *error)
{
    oct_status status = oct__check_pointer(args->k_counts, _Alignof(oct_kv_counts), 0, "args.k_counts", write_where, error);
    if (status == OCT_OK) {
        status = oct__check_pointer(args->v_counts, _Alignof(oct_kv_counts), 0, "args.v_counts", write_where, error);
    }
    if (status != OCT_OK) {
        return status;
    }
    if ((args->k_counts != NULL || args->v_counts != NULL) && args->n_counts < nth) {
        return oct__error_set(error, OCT_INVALID_ARGUMENT, write_where, "args.n_counts is %" PRIu32 "; must be at least %" PRIu32 ", one entry a thread", args->n_counts, nth);
    }
    return OCT_OK;
}

/* Everything is checked before anything is written, so that an error leaves the pool untouched. nth: threads that are sure to take part. */
static oct_status check_write(checked_write *w, oct_context *context, const oct_kv_write_args *given, uint32_t nth, oct_error *error)
{
    oct_kv_write_args *args = &w->args;
    if (context == NULL) {
        return oct__error_set(error, OCT_INVALID_ARGUMENT, write_where, "context is NULL");
    }
    const bool on_device = context->driver != NULL;
    oct_status status = oct__struct_read(args, sizeof(*args), offsetof(oct_kv_write_args, stream), given, "args", write_where, error);
    if (status == OCT_OK) {
        status = oct__device_check_runs(context, write_where, error);
    }
    if (status != OCT_OK) {
        return status;
    }
    if (oct__device_stream_is_wrong(context, args->stream)) {
        return oct__error_set(error, OCT_INVALID_ARGUMENT, write_where, "args.stream is given; must be NULL on the CPU");
    }
    if (args->checked > 1 || args->reserved != 0 || args->reserved2 != 0) {
        return oct__error_set(error, OCT_INVALID_ARGUMENT, write_where, "args.%s", args->checked > 1 ? "checked must be 0 or 1" : "reserved and reserved2 must be 0");
    }
    if (args->n_tokens < 0) {
        return oct__error_set(error, OCT_INVALID_ARGUMENT, write_where, "args.n_tokens is %" PRId64 "; must be >= 0", args->n_tokens);
    }
    const bool wants_refused = on_device && args->checked != 0;
    if (wants_refused != (args->refused != NULL) || (uintptr_t)args->refused % sizeof(uint32_t) != 0) {
        return oct__error_set(error, OCT_INVALID_ARGUMENT, write_where, "args.refused is %s; %s", args->refused == NULL ? "NULL" : wants_refused ? "not aligned" : "given",
                              wants_refused ? "a checked write on a GPU tells there what it refused" : "only a checked write on a GPU sets it");
    }
    status = check_layers(w, on_device, error);
    if (status == OCT_OK) {
        status = check_source(args, &w->layer.spec, error);
    }
    if (status == OCT_OK) {
        status = check_rope(w, on_device, error);
    }
    if (status == OCT_OK) {
        status = check_counts(args, nth, error);
    }
    if (status == OCT_OK) {
        status = check_slots(args->slots, args->n_tokens, &w->layer, args->checked != 0 && !on_device, "args.slots", error);
    }
    if (status == OCT_OK && args->layer_window != NULL) {
        status = check_slots(args->slots_window, args->n_tokens, &w->layer_window, args->checked != 0 && !on_device, "args.slots_window", error);
    }
    if (status != OCT_OK) {
        return status;
    }
    w->variant = oct__choose_write(&context->machine, &w->layer.spec, args->layer_window != NULL ? &w->layer_window.spec : NULL, args->src_dtype, args->n_tokens, nth);
    if (w->variant == NULL) {
        return oct__error_set(error, OCT_UNSUPPORTED, write_where, "no variant on this machine writes this format; see oct_kv_write_explain");
    }
    return OCT_OK;
}

static oct_status check_write_logged(checked_write *w, oct_context *context, const oct_kv_write_args *given, uint32_t nth)
{
    oct_error error = OCT_ERROR_INIT;
    const oct_status status = check_write(w, context, given, nth, &error);
    if (status != OCT_OK && context != NULL) {
        oct__log_write(&context->log, OCT__LOG_ERROR, "%s: %s", write_where, error.text);
    }
    return status;
}

static void write_share(const checked_write *w, uint32_t ith, uint32_t nth)
{
    int64_t token0, token1;
    oct__executor_share(w->args.n_tokens, ith, nth, &token0, &token1);
    if (token0 < token1) {
        w->variant->write(&w->args, token0, token1, w->args.k_counts != NULL ? w->args.k_counts + ith : NULL, w->args.v_counts != NULL ? w->args.v_counts + ith : NULL);
    }
}

static void write_task(void *arg, uint32_t ith, uint32_t nth)
{
    write_share(arg, ith, nth);
}

oct_status oct_kv_write(oct_context *context, const oct_kv_write_args *args)
{
    checked_write w;
    const oct_status status = check_write_logged(&w, context, args, 1);
    if (status != OCT_OK) {
        return status;
    }
    if (context->driver != NULL) {
        const oct_status enqueued = oct__backend_write(context->driver, w.variant, &w.args);
        if (enqueued != OCT_OK) {
            oct_error error = OCT_ERROR_INIT;
            (void)oct__backend_error(context->driver, enqueued, "the write", write_where, &error);
            oct__log_write(&context->log, OCT__LOG_ERROR, "%s: %s", write_where, error.text);
        }
        return enqueued;
    }
    const oct__amount amount = oct__amount_of_write(&w.layer.spec, w.args.src_dtype, w.args.n_tokens);
    uint32_t nth = oct__cost_threads(oct__cost_seconds(&w.variant->cost, &context->machine.rates, &amount, 1), context->executor.max_threads);
    if ((w.args.k_counts != NULL || w.args.v_counts != NULL) && w.args.n_counts < nth) {
        nth = w.args.n_counts;
    }
    oct__executor_run(&context->executor, nth, write_task, &w);
    return OCT_OK;
}

oct_status oct_kv_write_part(oct_context *context, const oct_kv_write_args *args, uint32_t ith, uint32_t nth)
{
    checked_write w;
    if (nth == 0 || ith >= nth) {
        if (context != NULL) {
            oct__log_write(&context->log, OCT__LOG_ERROR, "oct_kv_write_part: ith is %" PRIu32 ", nth %" PRIu32 "; must be ith < nth", ith, nth);
        }
        return OCT_INVALID_ARGUMENT;
    }
    const oct_status status = check_write_logged(&w, context, args, nth);
    if (status == OCT_OK && context->driver != NULL) {
        return OCT_UNSUPPORTED;
    }
    if (status == OCT_OK) {
        write_share(&w, ith, nth);
    }
    return status;
}

size_t oct_kv_write_explain(oct_context *context, const oct_kv_spec *spec, uint32_t src_dtype, uint32_t format, char *bytes, size_t size)
{
    oct__text text;
    oct__text_init(&text, bytes, size);
    if (context != NULL && format <= OCT_TEXT_JSON && oct_kv_spec_check(spec, NULL) == OCT_OK) {
        const oct__machine *machine = &context->machine;
        const uint32_t n_units = (uint32_t)machine->facts.v[OCT__FACT_DEV_UNITS];
        oct__explain_write(&text, format, machine, spec, src_dtype, machine->device != OCT__DEVICE_CPU ? n_units : context->executor.max_threads);
    }
    return text.length;
}
