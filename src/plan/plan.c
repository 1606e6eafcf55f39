/* plan.c: see plan.h. */
#include "plan/plan.h"

#include <inttypes.h>
#include <string.h>

#include "host/error.h"
#include "plan/gate.h"

/* What rows are compared on before there is a batch. */
static const int32_t nominal_rows[OCT__PLAN_OPS] = { 1, 512 };
static const int32_t nominal_keys[OCT__PLAN_OPS] = { 4096, 512 };

/* On a GPU, where a plan chooses once, the limits say more of its decodes: no more keys than they may have, and as many rows as each sequence may have
 * where that is a decode's number (drafts are verified so). */
static void set_nominal(oct_plan *plan)
{
    const oct_attn_spec *spec = &plan->spec;
    for (int i = 0; i < OCT__PLAN_OPS; i++) {
        plan->nominal_indptr[i][1] = nominal_rows[i];
        plan->nominal_kv_len[i] = nominal_keys[i];
    }
    if (plan->machine->device == OCT__DEVICE_CPU) {
        return;
    }
    const int64_t rows = spec->max_sequences > 0 ? spec->max_rows / spec->max_sequences : 0;
    if (rows > 1 && rows <= OCT__DECODE_ROWS_MAX) {
        plan->nominal_indptr[OCT__PLAN_DECODE][1] = (int32_t)rows;
    }
    if (spec->max_keys > 0 && spec->max_keys < nominal_keys[OCT__PLAN_DECODE]) {
        plan->nominal_kv_len[OCT__PLAN_DECODE] = (int32_t)spec->max_keys;
    }
}

oct__op oct__plan_operation(int i)
{
    return i == OCT__PLAN_DECODE ? OCT__OP_attn_decode : OCT__OP_attn_extend;
}

/* ---- choice ----------------------------------------------------------------------------------------------------------- */

static void fill_seconds(const oct_plan *plan, oct__op op, const oct__split *problem, uint32_t n_threads, double *seconds)
{
    for (uint32_t row = 0; row < plan->n_rows; row++) {
        seconds[row] = 0;
        if (plan->rows[row].op == op) {
            const oct__amount amount = oct__split_amount(problem, &plan->rows[row]);
            seconds[row] = oct__cost_seconds(&plan->rows[row].cost, &plan->machine->rates, &amount, n_threads);
        }
    }
}

bool oct__plan_compare(const oct_plan *plan, int i, uint32_t n_threads, oct__split *problem, double seconds[OCT__VARIANTS_MAX], int64_t *n_rows, int64_t *n_keys)
{
    const oct__op op = oct__plan_operation(i);
    problem->spec = &plan->spec;
    problem->rates = &plan->machine->rates;
    problem->n_threads = n_threads;
    problem->n_sequences = plan->batch.n_sequences;
    problem->qo_indptr = plan->batch.qo_indptr.memory;
    problem->kv_len = plan->batch.kv_len.memory;
    oct__split_count(problem, op, n_rows, n_keys);
    /* A deterministic plan has chosen once, before any batch. */
    const bool is_batch = *n_rows > 0 && !plan->spec.deterministic;
    if (!is_batch) {
        problem->n_sequences = 1;
        problem->qo_indptr = plan->nominal_indptr[i];
        problem->kv_len = &plan->nominal_kv_len[i];
        oct__split_count(problem, op, n_rows, n_keys);
    }
    fill_seconds(plan, op, problem, n_threads, seconds);
    return is_batch;
}

uint32_t oct__plan_compare_threads(const oct_plan *plan)
{
    /* Deterministic: a plan's choice may depend neither on batch mates nor on threads, so it falls once, at creation. */
    return plan->spec.deterministic && plan->machine->device == OCT__DEVICE_CPU ? 1 : plan->max_threads;
}

static oct_status choose(oct_plan *plan, const char *where, oct_error *error)
{
    const uint32_t n_threads = oct__plan_compare_threads(plan);
    for (int i = 0; i < OCT__PLAN_OPS; i++) {
        double seconds[OCT__VARIANTS_MAX];
        oct__split problem;
        int64_t n_rows, n_keys;
        const bool is_batch = oct__plan_compare(plan, i, n_threads, &problem, seconds, &n_rows, &n_keys);
        if (plan->chosen[i] != NULL && !is_batch) {
            continue;
        }
        const oct_status status = oct__choose(plan->rows, plan->n_rows, oct__plan_operation(i), &plan->facts, &plan->rules, seconds, where, &plan->chosen[i], error);
        if (status != OCT_OK) {
            return status;
        }
    }
    return OCT_OK;
}

/* ---- life --------------------------------------------------------------------------------------------------------------- */

/* Room for any row that may ever be chosen, so that update need not look again. A row whose gates fail is not even asked: its file may be
 * compiled for instructions that this machine lacks. */
static size_t scratch_stride(const oct_plan *plan)
{
    size_t largest = 0;
    for (uint32_t row = 0; row < plan->n_rows; row++) {
        const oct__variant *v = &plan->rows[row];
        if ((v->op == OCT__OP_attn_decode || v->op == OCT__OP_attn_extend) && oct__gates_first_failed(v, &plan->facts) == NULL) {
            const size_t bytes = oct__attn_run_scratch_bytes(&plan->spec, v->tile_vectors) + v->scratch(&plan->spec.kv, v->tile_vectors);
            largest = bytes > largest ? bytes : largest;
        }
    }
    /* Two threads' blocks never share a cache line, nor the pair of lines that a prefetcher fetches. */
    return (largest + 127) / 128 * 128;
}

void oct__plan_clear(oct_plan *plan)
{
    plan->batch.n_sequences = 0;
    plan->batch.n_rows = plan->batch.n_keys = plan->batch.page_end = 0;
    plan->batch.longest_rows = 0;
    plan->split.n_items = plan->split.n_items_split = plan->split.n_groups = plan->split.n_partial_floats = 0;
    plan->step.n_sequences = 0;
    plan->step.n_rows = plan->step.n_items = plan->step.n_groups = 0;
    plan->predicted_seconds = 0;
    plan->run_threads = 1;
}

oct_status oct__plan_create(const oct__machine *machine, const oct__allocator *allocator, const oct__executor *executor, const oct_attn_spec *spec,
                            const char *where, oct_plan **out, oct_error *error)
{
    oct_plan *plan = oct__memory_alloc(allocator, sizeof(*plan), 64);
    if (plan == NULL) {
        return oct__error_set(error, OCT_OUT_OF_MEMORY, where, "no memory for a plan");
    }
    memset(plan, 0, sizeof(*plan));
    plan->allocator = allocator;
    plan->executor = executor;
    plan->machine = machine;
    plan->rows = oct__variants_of(machine->device, &plan->n_rows);
    plan->spec = *spec;
    plan->spec.force_variant = plan->spec.deny_variant = NULL;
    plan->facts = oct__facts_of_attn(&machine->facts, spec);
    const uint32_t n_units = (uint32_t)machine->facts.v[OCT__FACT_DEV_UNITS];
    plan->max_threads = machine->device != OCT__DEVICE_CPU ? n_units : spec->max_threads > 0 ? spec->max_threads : executor->max_threads;
    for (uint32_t i = 0; i < OCT__EIGHTS_MAX; i++) {
        atomic_init(&plan->claims[i].next, 0);
    }
    set_nominal(plan);
    oct__plan_clear(plan);

    oct_status status = oct__rules_read(plan->rows, plan->n_rows, 1u << OCT__OP_attn_decode | 1u << OCT__OP_attn_extend, spec->force_variant, spec->deny_variant, where,
                                        &plan->rules, error);
    if (status == OCT_OK) {
        status = choose(plan, where, error);
    }
    /* Of a machine that is not here no row may even be asked: see scratch_stride. */
    if (status == OCT_OK && machine->device == OCT__DEVICE_CPU && !machine->is_recorded) {
        plan->step.scratch_stride_bytes = scratch_stride(plan);
        plan->scratch_bytes = (uint64_t)plan->step.scratch_stride_bytes * plan->max_threads;
        plan->step.scratch = plan->scratch_bytes <= SIZE_MAX ? oct__memory_alloc(allocator, (size_t)plan->scratch_bytes, 128) : NULL;
        if (plan->step.scratch == NULL) {
            status = oct__error_set(error, OCT_OUT_OF_MEMORY, where, "no memory for the scratch of %" PRIu32 " threads, %" PRIu64 " bytes", plan->max_threads, plan->scratch_bytes);
        }
    }
    if (status != OCT_OK) {
        oct__plan_destroy(plan);
        return status;
    }
    plan->step.claims = plan->claims;
    plan->step.q_stride = (spec->kv.dim_k + 15) / 16 * 16;
    plan->step.o_stride = (spec->kv.dim_v + 15) / 16 * 16;
    *out = plan;
    return OCT_OK;
}

void oct__plan_destroy(oct_plan *plan)
{
    if (plan == NULL) {
        return;
    }
    const oct__allocator *allocator = plan->allocator;
    oct__batch_free(&plan->batch, allocator);
    oct__array_free(allocator, &plan->items);
    oct__array_free(allocator, &plan->arrived);
    oct__array_free(allocator, &plan->partials);
    oct__memory_free(allocator, plan->step.scratch, (size_t)plan->scratch_bytes);
    oct__memory_free(allocator, plan, sizeof(*plan));
}

/* ---- update --------------------------------------------------------------------------------------------------------------- */

static oct_status split_batch(oct_plan *plan, const char *where, oct_error *error)
{
    oct__split *split = &plan->split;
    split->spec = &plan->spec;
    split->rates = &plan->machine->rates;
    split->decode = plan->chosen[OCT__PLAN_DECODE];
    split->extend = plan->chosen[OCT__PLAN_EXTEND];
    split->n_threads = plan->max_threads;
    split->n_sequences = plan->batch.n_sequences;
    split->qo_indptr = plan->batch.qo_indptr.memory;
    split->kv_len = plan->batch.kv_len.memory;
    oct__split_measure(split);
    if (!oct__array_reserve(plan->allocator, &plan->items, (uint64_t)split->n_items, sizeof(oct__item)) ||
        !oct__array_reserve(plan->allocator, &plan->arrived, (uint64_t)split->n_groups, sizeof(atomic_uint)) ||
        !oct__array_reserve(plan->allocator, &plan->partials, (uint64_t)split->n_partial_floats, sizeof(float))) {
        return oct__error_set(error, OCT_OUT_OF_MEMORY, where, "no memory for %" PRId64 " items in %" PRId64 " split groups, %" PRId64 " bytes of partial results", split->n_items,
                              split->n_groups, split->n_partial_floats * 4);
    }
    oct__split_emit(split, plan->items.memory);
    atomic_uint *arrived = plan->arrived.memory;
    for (int64_t i = 0; i < split->n_groups; i++) {
        atomic_init(&arrived[i], 0);
    }
    return OCT_OK;
}

oct_status oct__plan_update(oct_plan *plan, const oct_attn_batch *batch, const char *where, oct_error *error)
{
    oct__plan_clear(plan);
    oct_status status = oct__batch_read(&plan->batch, plan->allocator, &plan->spec, batch, where, error);
    if (status == OCT_OK && !plan->spec.deterministic) {
        status = choose(plan, where, error);
    }
    if (status == OCT_OK) {
        status = split_batch(plan, where, error);
    }
    if (status != OCT_OK) {
        oct__plan_clear(plan);
        return status;
    }
    oct__step *step = &plan->step;
    const uint64_t *const has = plan->machine->facts.v;
    step->has_avx2 = has[OCT__FACT_CPU_AVX2] != 0 && has[OCT__FACT_CPU_FMA] != 0 && has[OCT__FACT_CPU_F16C] != 0 && has[OCT__FACT_OS_YMM] != 0;
    step->n_sequences = plan->batch.n_sequences;
    step->n_rows = plan->batch.n_rows;
    step->n_items = plan->split.n_items;
    step->n_groups = plan->split.n_groups;
    step->items = plan->items.memory;
    step->page_offset = plan->batch.page_offset.memory;
    step->pages = plan->batch.pages.memory;
    step->kv_len = plan->batch.kv_len.memory;
    step->qo_indptr = plan->batch.qo_indptr.memory;
    step->arrived = plan->arrived.memory;
    step->partials = plan->partials.memory;
    oct__claims_reset(plan->claims, plan->max_threads);

    for (int i = 0; i < OCT__PLAN_OPS; i++) {
        const oct__amount amount = oct__split_amount(&plan->split, plan->chosen[i]);
        plan->predicted_seconds += oct__cost_seconds(&plan->chosen[i]->cost, &plan->machine->rates, &amount, plan->max_threads);
    }
    plan->run_threads = oct__cost_threads(plan->split.seconds, plan->max_threads);
    if (step->n_items < plan->run_threads) {
        plan->run_threads = step->n_items > 0 ? (uint32_t)step->n_items : 1;
    }
    return OCT_OK;
}

uint64_t oct__plan_workspace_bytes(const oct_plan *plan)
{
    return plan->scratch_bytes + plan->partials.capacity_bytes + plan->items.capacity_bytes + plan->arrived.capacity_bytes + plan->batch.qo_indptr.capacity_bytes +
           plan->batch.kv_len.capacity_bytes + plan->batch.page_offset.capacity_bytes + plan->batch.pages.capacity_bytes;
}
