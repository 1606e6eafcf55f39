/* step.c: see step.h. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "driver/step.h"

int step_rounds(const char *kernel)
{
    return strstr(kernel, "_mma") != NULL || strstr(kernel, "_sm90a") != NULL;
}

static void keep(step *s, oct_status status)
{
    s->status = s->status != OCT_OK ? s->status : status;
}

void *step_send(step *s, const void *host, size_t bytes)
{
    void *at = NULL;
    if (host == NULL || bytes == 0)
        return NULL;
    assert_true(s->n < STEP_ARRAYS);
    assert_int_equal(s->driver->table->alloc(s->driver, bytes, &at), OCT_OK);
    s->there[s->n++] = at;
    assert_int_equal(s->driver->table->copy_in(s->driver, at, host, bytes, s->stream), OCT_OK);
    return at;
}

static void *send_guard(step *s, const guard *g)
{
    return g->map == NULL ? NULL : step_send(s, g->at, g->size_bytes);
}

/* As `at` lies within the block that went to `there`. */
static void *moved(void *there, const guard *block, const void *at)
{
    return there == NULL ? NULL : (unsigned char *)there + ((const unsigned char *)at - (const unsigned char *)block->at);
}

void step_make(step *s, oct__driver *driver, void *stream, problem *p)
{
    memset(s, 0, sizeof *s);
    s->driver = driver;
    s->stream = stream;
    s->p = p;
    const int64_t n = p->shape.n_sequences;
    int64_t widest = 1;
    for (int64_t b = 0; b < n; b++)
        widest = p->page_at[b + 1] - p->page_at[b] > widest ? p->page_at[b + 1] - p->page_at[b] : widest;
    int32_t table[STEP_TABLE] = { 0 };
    assert_true(n > 0 && n * widest <= STEP_TABLE);
    for (int64_t b = 0; b < n; b++)
        memcpy(table + b * widest, p->table_pages + p->page_at[b], (size_t)(p->page_at[b + 1] - p->page_at[b]) * sizeof *table);

    s->layer = p->layer;
    s->layer.k = moved(send_guard(s, &p->k), &p->k, p->layer.k);
    s->layer.v = moved(send_guard(s, &p->v), &p->v, p->layer.v);
    s->layer.k_scale = send_guard(s, &p->k_scale);
    s->layer.v_scale = send_guard(s, &p->v_scale);
    s->layer.k_token_scale = send_guard(s, &p->k_token_scale);
    s->layer.v_token_scale = send_guard(s, &p->v_token_scale);
    problem_blank(p);
    s->args = p->args;
    s->args.layer = &s->layer;
    s->args.q = send_guard(s, &p->q);
    s->args.q_scale = send_guard(s, &p->q_scale);
    s->args.out = s->out = send_guard(s, &p->out);
    s->args.out_scale = send_guard(s, &p->out_scale);
    s->args.lse = s->lse = p->args.lse != NULL ? send_guard(s, &p->lse) : NULL;
    s->args.sink = send_guard(s, &p->sink);
    s->args.mask = send_guard(s, &p->mask);
    s->batch.struct_size = sizeof s->batch;
    s->batch.n_sequences = (uint32_t)n;
    s->batch.n_pages = p->n_pages;
    s->batch.max_pages = widest;
    s->batch.qo_indptr = step_send(s, p->qo_indptr, (size_t)(n + 1) * sizeof(int32_t));
    s->batch.block_table = s->table = step_send(s, table, (size_t)(n * widest) * sizeof *table);
    s->batch.seq_lens = s->seq_lens = step_send(s, p->kv_len, (size_t)n * sizeof(int32_t));

    oct__dev_step_limits limits = { (uint32_t)n, p->rows, 0 };
    for (int64_t b = 0; b < n; b++)
        limits.n_keys = p->kv_len[b] > limits.n_keys ? p->kv_len[b] : limits.n_keys;
    assert_true(oct__dev_workspace_of(&driver->chip, &p->spec, &limits, &s->workspace));
    assert_int_equal(driver->table->alloc(driver, s->workspace.bytes, &s->memory), OCT_OK);
    s->there[s->n++] = s->memory;
    assert_int_equal(s->status, OCT_OK);
}

void step_drop(step *s)
{
    while (s->n > 0)
        s->driver->table->free(s->driver, s->there[--s->n]);
}

oct_status step_enqueue(step *s)
{
    const oct__driver_table *t = s->driver->table;
    oct__dev_batch packed;
    oct__plan_params plan;
    oct__dev_launch launch;
    s->status = OCT_OK;
    keep(s, t->fill(s->driver, s->out, 0xFF, s->p->out.size_bytes, s->stream));
    if (s->lse != NULL)
        keep(s, t->fill(s->driver, s->lse, 0xFF, s->p->lse.size_bytes, s->stream));
    oct__dev_pack_batch(&s->p->spec, &s->batch, &packed);
    oct__dev_pack_plan(&s->driver->chip, &s->p->spec, &packed, &s->workspace, s->memory, &plan, &launch);
    keep(s, t->launch(s->driver, &launch, &plan, sizeof plan, s->stream));
    for (uint32_t op = 0; op < OCT__DEV_OPS; op++) {
        oct__attn_params params;
        oct__dev_launch attend, finish;
        oct__dev_pack_attn(&s->p->spec, &packed, &s->args, &s->workspace, s->memory, op, &params, &attend, &finish);
        keep(s, t->launch(s->driver, &attend, &params, sizeof params, s->stream));
        keep(s, t->launch(s->driver, &finish, &params, sizeof params, s->stream));
        memset(&params, 0xEE, sizeof params);   /* a launch has its own copy */
    }
    return s->status;
}

oct_status step_fetch(step *s)
{
    const oct__driver_table *t = s->driver->table;
    s->status = OCT_OK;
    keep(s, t->copy_out(s->driver, s->p->out.at, s->out, s->p->out.size_bytes, s->stream));
    if (s->lse != NULL)
        keep(s, t->copy_out(s->driver, s->p->lse.at, s->lse, s->p->lse.size_bytes, s->stream));
    keep(s, t->wait(s->driver, s->stream));
    return s->status;
}

void step_judge(const step *s)
{
    oct__dev_plan plan;
    int is_mma = 0;
    assert_int_equal(s->driver->table->copy_out(s->driver, &plan, (unsigned char *)s->memory + s->workspace.plan_at, sizeof plan, s->stream), OCT_OK);
    assert_int_equal(s->driver->table->wait(s->driver, s->stream), OCT_OK);
    assert_int_equal(plan.status, OCT__DEV_PLAN_OK);
    for (uint32_t op = 0; op < OCT__DEV_OPS; op++)
        is_mma |= plan.n_tasks[op] > 0 && step_rounds(s->workspace.shape[op].kernel);
    const compare_bound bound = compare_bound_of(is_mma ? OCT__TOL_16BIT : OCT__TOL_F32);
    const compare_verdict verdict = problem_judge(s->p, &bound);
    if (!verdict.ok)
        print_message("%s\n", verdict.text);
    assert_true(verdict.ok);
}
