/* fill.c: owns octe_engine_fill: a deep sequence without the hours of a prefill, for measurements of speed. */
#include <stdlib.h>

#include "engine/engine_state.h"
#include "engine/report.h"

static const char *const where = "octe_engine_fill";

/* Numbers between -2 and 2 that repeat for nobody who looks: xorshift, the same on every machine. */
static void scatter(float *values, size_t n)
{
    uint32_t x = 2463534242u;
    for (size_t i = 0; i < n; i++) {
        x ^= x << 13;
        x ^= x >> 17;
        x ^= x << 5;
        values[i] = (float)(int32_t)x * 0x1p-30f;
    }
}

/* Stores n tokens of every layer at the slots of the step. */
static oct_status store(octe_engine *e, const float *values, uint32_t n, oct_error *error)
{
    const oct_kv_spec *spec = &e->cache.spec;
    for (uint32_t il = 0; il < e->cache.n_layers; il++) {
        const oct_kv_write_args args = {
            .struct_size = sizeof(args),
            .checked = 1,
            .layer = &e->cache.layers[il],
            .slots = e->step.slots[e->cache.group[il]],
            .n_tokens = n,
            .src_dtype = OCT_DTYPE_F32,
            .k = values,
            .v = values,
            .k_token_stride = (int64_t)spec->heads * spec->dim_k,
            .k_head_stride = spec->dim_k,
            .v_token_stride = (int64_t)spec->heads * spec->dim_v,
            .v_head_stride = spec->dim_v,
        };
        const oct_status s = oct_kv_write(e->context, &args);
        if (s != OCT_OK) {
            return octe__report(error, s, where, NULL, "layer %u can't be written: %s", il, oct_status_message(s));
        }
    }
    return OCT_OK;
}

oct_status octe_engine_fill(octe_engine *e, uint32_t sequence, uint32_t n_tokens, oct_error *error)
{
    const uint32_t old_length = octe_engine_length(e, sequence), most = e->options.max_step_rows;
    if (sequence >= e->options.max_sequences || n_tokens > e->options.max_context_tokens - old_length) {
        return octe__report(error, OCT_INVALID_ARGUMENT, where, NULL, "%u more tokens after the %u of sequence %u; the context is %u, sequences are 0 to %u", n_tokens,
                            old_length, sequence, e->options.max_context_tokens, e->options.max_sequences - 1);
    }
    const oct_kv_spec *spec = &e->cache.spec;
    const size_t token = (size_t)spec->heads * (spec->dim_k > spec->dim_v ? spec->dim_k : spec->dim_v);
    float *values = malloc((n_tokens < most ? n_tokens : most) * token * sizeof(*values));
    oct_status s = OCT_OK;
    if (values == NULL && n_tokens > 0) {
        s = octe__report(error, OCT_OUT_OF_MEMORY, where, NULL, "no memory for the values of %u tokens", most);
    } else {
        scatter(values, (n_tokens < most ? n_tokens : most) * token);
    }
    for (uint32_t done = 0; done < n_tokens && s == OCT_OK;) {
        const uint32_t n = n_tokens - done < most ? n_tokens - done : most;
        s = octe__cache_append(&e->cache, sequence, n, e->step.slots[OCTE__FULL], e->step.slots[OCTE__WINDOW], error);
        if (s == OCT_OK) {
            s = store(e, values, n, error);
        }
        octe__cache_slide(&e->cache, sequence);
        done += n;
    }
    free(values);
    if (s != OCT_OK && octe_engine_length(e, sequence) > old_length && octe__cache_truncate(&e->cache, sequence, old_length) != OCT_OK) {
        (void)octe__cache_free(&e->cache, sequence);
    }
    return s;
}
