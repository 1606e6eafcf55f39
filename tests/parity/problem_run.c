/* problem_run.c: what a run of a problem needs and leaves: contexts, the batch's arrays, verdicts; and runs of every variant. problem_door.c runs. */
#define _DEFAULT_SOURCE
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "parity/isolate.h"
#include "parity/problem_data.h"

enum { THREADS_MAX = 16 };

oct_context *problem_context(uint32_t n_threads)
{
    static oct_context *contexts[THREADS_MAX + 1];
    if (n_threads == 0 || n_threads > THREADS_MAX)
        return NULL;
    if (contexts[n_threads] == NULL) {
        oct_context_options options;
        memset(&options, 0, sizeof options);
        options.struct_size = sizeof options;
        options.max_threads = n_threads;
        if (oct_context_create(&options, &contexts[n_threads], NULL) != OCT_OK)
            contexts[n_threads] = NULL;
    }
    return contexts[n_threads];
}

/* ---- the batch's arrays ---------------------------------------------------------------------------------------- */

typedef struct batch_memory { guard indptr, table, lens, kv_indptr, indices, last; } batch_memory;

static void drop_batch(batch_memory *m)
{
    guard *const all[] = { &m->indptr, &m->table, &m->lens, &m->kv_indptr, &m->indices, &m->last };
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        guard_drop(all[i]);
}

static int make_copy(guard *g, const int32_t *from, int64_t n)
{
    if (guard_make(g, (size_t)n * sizeof *from, GUARD_END) != 0)
        return -1;
    if (from != NULL && n > 0)
        memcpy(g->at, from, (size_t)n * sizeof *from);
    return 0;
}

static int make_padded(const problem *p, oct_attn_batch *batch, batch_memory *m)
{
    const int64_t n = p->shape.n_sequences;
    int64_t widest = 1;
    for (int64_t b = 0; b < n; b++)
        if (p->page_at[b + 1] - p->page_at[b] > widest)
            widest = p->page_at[b + 1] - p->page_at[b];
    widest += p->shape.seed % 3;
    if (make_copy(&m->table, NULL, n * widest) != 0 || make_copy(&m->lens, p->kv_len, n) != 0)
        return -1;
    int32_t *table = m->table.at;
    for (int64_t i = 0; i < n * widest; i++)
        table[i] = INT32_MAX - 7;   /* entries past a sequence's pages may hold anything */
    for (int64_t b = 0; b < n; b++)
        memcpy(table + b * widest, p->table_pages + p->page_at[b], (size_t)(p->page_at[b + 1] - p->page_at[b]) * sizeof *table);
    batch->block_table = table;
    batch->seq_lens = m->lens.at;
    batch->max_pages = widest;
    return 0;
}

static int make_compressed(const problem *p, oct_attn_batch *batch, batch_memory *m)
{
    const int64_t n = p->shape.n_sequences;
    if (make_copy(&m->kv_indptr, NULL, n + 1) != 0 || make_copy(&m->indices, p->table_pages, p->page_at[n]) != 0 || make_copy(&m->last, NULL, n) != 0)
        return -1;
    int32_t *indptr = m->kv_indptr.at, *last = m->last.at;
    for (int64_t b = 0; b <= n; b++)
        indptr[b] = (int32_t)p->page_at[b];
    for (int64_t b = 0; b < n; b++)
        last[b] = p->kv_len[b] == 0 ? 0 : (int32_t)((p->kv_len[b] - 1) % p->shape.page_size + 1);
    batch->kv_indptr = indptr;
    batch->kv_indices = m->indices.at;
    batch->kv_last_page_len = last;
    return 0;
}

oct_status problem_update(const problem *p, oct_plan *plan, oct_error *error)
{
    batch_memory m;
    oct_attn_batch batch;
    memset(&m, 0, sizeof m);
    memset(&batch, 0, sizeof batch);
    batch.struct_size = sizeof batch;
    batch.n_sequences = (uint32_t)p->shape.n_sequences;
    batch.n_pages = p->n_pages;
    oct_status status = OCT_OUT_OF_MEMORY;
    if (make_copy(&m.indptr, p->qo_indptr, p->shape.n_sequences + 1) == 0 &&
        (p->shape.compressed ? make_compressed(p, &batch, &m) : make_padded(p, &batch, &m)) == 0) {
        batch.qo_indptr = m.indptr.at;
        status = oct_plan_update(plan, &batch, error);
    }
    drop_batch(&m);   /* pointers are read during update only: a later look faults */
    return status;
}

/* ---- running --------------------------------------------------------------------------------------------------- */

/* A NaN of the format that no kernel makes by itself. */
static uint32_t blank_code(uint32_t dtype)
{
    switch (dtype) {
    case OCT_DTYPE_F32: return 0x7FC0DEADu;
    case OCT_DTYPE_F16: return 0x7EADu;
    case OCT_DTYPE_BF16: return 0x7FEDu;
    case OCT_DTYPE_E4M3FNUZ: return 0x80u;
    default: return 0xFFu;
    }
}

void problem_blank(problem *p)
{
    for (int64_t i = 0; i < p->out_elements; i++)
        oracle_put_code(p->spec.out_dtype, p->out.at, i, blank_code(p->spec.out_dtype));
    for (int64_t i = 0; i < p->lse_elements; i++)
        oracle_put_code(OCT_DTYPE_F32, p->lse.at, i, blank_code(OCT_DTYPE_F32));
}

/* ---- judging --------------------------------------------------------------------------------------------------- */

double problem_out(const problem *p, int64_t row, uint32_t head, uint32_t dim)
{
    return oracle_decode(p->spec.out_dtype, p->out.at, row * p->args.out_row_stride + head * p->args.out_head_stride + dim) *
           (p->args.out_scale != NULL ? (double)p->args.out_scale[0] : 1.0);
}

/* 1 when everything between the rows and heads is as blank as before. */
static int gaps_are_blank(const problem *p)
{
    const size_t n_out = (size_t)p->out_elements, n_lse = (size_t)p->lse_elements;
    unsigned char *owned = calloc(n_out + n_lse, 1);
    int clean = owned != NULL;
    for (int64_t r = 0; r < p->rows && clean; r++)
        for (int64_t h = 0; h < p->shape.heads_q; h++) {
            memset(owned + r * p->args.out_row_stride + h * p->args.out_head_stride, 1, (size_t)p->shape.dim_v);
            owned[(int64_t)n_out + r * p->args.lse_row_stride + h * p->args.lse_head_stride] = p->args.lse != NULL;
        }
    for (size_t i = 0; i < n_out && clean; i++)
        clean = owned[i] || oracle_code_at(p->spec.out_dtype, p->out.at, (int64_t)i) == blank_code(p->spec.out_dtype);
    for (size_t i = 0; i < n_lse && clean; i++)
        clean = owned[n_out + i] || oracle_code_at(OCT_DTYPE_F32, p->lse.at, (int64_t)i) == blank_code(OCT_DTYPE_F32);
    free(owned);
    return clean;
}

compare_verdict problem_judge(const problem *p, const compare_bound *bound)
{
    const compare_output output = { p->spec.out_dtype, p->args.out, p->args.out_row_stride, p->args.out_head_stride,
                                    p->args.out_scale != NULL ? (double)p->args.out_scale[0] : 1.0, p->args.lse, p->args.lse_row_stride,
                                    p->args.lse_head_stride, p->rows, p->spec.heads_q, p->spec.kv.dim_v };
    compare_verdict verdict = compare_judge(&output, &p->expected, bound);
    if (verdict.ok && !(guard_intact(&p->out) && guard_intact(&p->lse) && gaps_are_blank(p))) {
        verdict.ok = 0;
        snprintf(verdict.text, sizeof verdict.text, "something was written outside the rows and heads of out or lse");
    }
    return verdict;
}

/* ---- every variant ---------------------------------------------------------------------------------------------- */

static const oct__variant *nth_of(oct__op op, uint32_t i, uint32_t *n)
{
    uint32_t n_all;
    const oct__variant *all = problem_rows(&n_all), *found = NULL;
    *n = 0;
    for (uint32_t j = 0; j < n_all; j++)
        if (all[j].op == op) {
            if (*n == i || found == NULL)
                found = &all[j];
            ++*n;
        }
    if (i >= *n) {   /* the shorter list begins again */
        uint32_t ignored;
        return *n == 0 ? NULL : nth_of(op, i % *n, &ignored);
    }
    return found;
}

/* Whether some K, V and head dims pass both rows' gates. */
static int can_meet(const oct__variant *a, const oct__variant *b)
{
    static const oct__fact facts[] = { OCT__FACT_K_DTYPE, OCT__FACT_V_DTYPE, OCT__FACT_HEAD_DIM_K, OCT__FACT_HEAD_DIM_V };
    for (size_t f = 0; f < sizeof facts / sizeof facts[0]; f++) {
        uint64_t set = UINT64_MAX, least = 0, most = UINT64_MAX;
        for (uint32_t i = 0; i < a->n_gates + b->n_gates; i++) {
            const oct__gate *gate = i < a->n_gates ? &a->gates[i] : &b->gates[i - a->n_gates];
            if (gate->fact != facts[f])
                continue;
            if (gate->op == OCT__GATE_IN)
                set &= gate->arg;
            else if (gate->op == OCT__GATE_MIN && gate->arg > least)
                least = gate->arg;
            else if (gate->op == OCT__GATE_MAX && gate->arg < most)
                most = gate->arg;
        }
        if (set == 0 || least > most)
            return 0;
    }
    return 1;
}

/* The rows of pair i: an extend that takes the decode's formats, where there is one. */
static void rows_of_pair(uint32_t i, const oct__variant *rows[2], uint32_t *n_decode, uint32_t *n_extend)
{
    rows[0] = nth_of(OCT__OP_attn_decode, i, n_decode);
    rows[1] = nth_of(OCT__OP_attn_extend, i, n_extend);
    for (uint32_t j = 1; rows[0] != NULL && rows[1] != NULL && j < *n_extend && !can_meet(rows[0], rows[1]); j++) {
        uint32_t ignored;
        const oct__variant *other = nth_of(OCT__OP_attn_extend, i + j, &ignored);
        if (can_meet(rows[0], other))
            rows[1] = other;
    }
}

int problem_pair(uint32_t i, char *text, size_t size)
{
    uint32_t n_decode, n_extend;
    const oct__variant *rows[2];
    rows_of_pair(i, rows, &n_decode, &n_extend);
    const oct__variant *decode = rows[0], *extend = rows[1];
    if (decode == NULL || extend == NULL || (i >= n_decode && i >= n_extend))
        return 0;
    snprintf(text, size, "attn_decode.%s,attn_extend.%s", decode->name, extend->name);
    return 1;
}

int problem_pair_can(uint32_t i)
{
    uint32_t n;
    const oct__variant *rows[2];
    rows_of_pair(i, rows, &n, &n);
    return rows[0] != NULL && rows[1] != NULL && problem_row_can(rows[0]) && problem_row_can(rows[1]);
}

void problem_skip_pair(uint32_t i)
{
    if (problem_pair_can(i))
        isolate_passed_over();
    else
        isolate_skipped();
}

compare_bound problem_pair_bound(uint32_t i)
{
    uint32_t n;
    const oct__variant *rows[2];
    rows_of_pair(i, rows, &n, &n);
    return compare_bound_either(compare_bound_for(rows[0]), compare_bound_for(rows[1]));
}

static int is_name(const char *info, const oct__variant *variant)
{
    return strcmp(info, variant->name) == 0 || strcmp(info, variant->full_name) == 0;
}

/* Failures of one pair; -1 when its gates refuse the problem. */
static int64_t check_pair(problem *p, uint32_t i, problem_way way)
{
    uint32_t n_decode, n_extend;
    const oct__variant *used[2];
    rows_of_pair(i, used, &n_decode, &n_extend);
    compare_bound bound = compare_bound_of(OCT__TOL_F32);
    char force[96];
    problem_pair(i, force, sizeof force);
    isolate_doing("%s", force);
    const problem_outcome outcome = problem_run(p, problem_context(way == RUN_WHOLE && p->spec.max_threads > 0 ? p->spec.max_threads : 1), force, way);
    if (outcome.status == OCT_UNSUPPORTED)
        return -1;
    if (outcome.status != OCT_OK) {
        isolate_fail("%s", outcome.text);
        return 1;
    }
    for (int j = 0; j < 2; j++) {
        const char *name = j == 0 ? outcome.info.decode_variant : outcome.info.extend_variant;
        if (name[0] == 0) {
            used[j] = NULL;
        } else if (!is_name(name, used[j])) {
            isolate_fail("the plan used %s", name);
            return 1;
        } else {
            bound = compare_bound_either(bound, compare_bound_for(used[j]));
        }
    }
    const compare_verdict verdict = problem_judge(p, &bound);
    for (int j = 0; j < 2; j++)
        if (used[j] != NULL)
            isolate_ran(used[j]->full_name, verdict.max_error);
    if (!verdict.ok)
        isolate_fail("%s", verdict.text);
    return !verdict.ok;
}

int64_t problem_check_made(problem *p, problem_way way)
{
    char text[PROBLEM_TEXT], pair[96];
    int64_t failures = 0;
    problem_print(&p->shape, text, sizeof text);
    isolate_repeat("parity_one '%s'%s", text, way == RUN_WHOLE ? "" : way == RUN_PARTS ? " parts" : " threads");
    if (problem_expect(p) != 0) {
        isolate_fail("no memory for the oracle");
        return 1;
    }
    for (uint32_t i = 0; problem_pair(i, pair, sizeof pair); i++) {
        const int64_t n = check_pair(p, i, way);
        if (n < 0)
            isolate_skipped();
        else
            failures += n;
    }
    return failures;
}

int64_t problem_check(const problem_shape *shape)
{
    problem p;
    char text[PROBLEM_TEXT];
    problem_print(shape, text, sizeof text);
    isolate_doing("making the problem");
    isolate_repeat("parity_one '%s'", text);
    const int made = problem_make(&p, shape);
    if (made != 0) {
        isolate_fail(made > 0 ? "oct_kv_spec_check refuses the spec" : "the problem could not be made");
        return 1;
    }
    const problem_way way = shape->threads > 1 ? (problem_way)(shape->seed % 3) : RUN_WHOLE;
    const int64_t failures = problem_check_made(&p, way);
    problem_drop(&p);
    return failures;
}
