/* run_problem.c: see run_problem.h. */
#include "api_device/run_problem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- arrays -------------------------------------------------------------------------------------------------------------------- */

static void note(device_arrays *a, oct_status status)
{
    if (a->status == OCT_OK)
        a->status = status;
}

void *device_send(device_arrays *a, const void *host, size_t size_bytes, int comes_back)
{
    void *there = NULL;
    if (host == NULL)
        return NULL;
    if (a->n == DEVICE_ARRAYS_MAX) {
        note(a, OCT_INVALID_ARGUMENT);
        return NULL;
    }
    /* An empty block is one byte there: the device has no address for nothing. */
    const oct_status status = oct_device_alloc(a->context, size_bytes > 0 ? size_bytes : 1, &there);
    note(a, status);
    if (status != OCT_OK)
        return NULL;
    union { const void *from; void *to; } pun = { .from = host };
    a->all[a->n].host = comes_back ? pun.to : NULL;
    a->all[a->n].there = there;
    a->all[a->n++].size_bytes = size_bytes;
    note(a, oct_device_copy_in(a->context, there, host, size_bytes, a->stream));
    return there;
}

void *device_send_guard(device_arrays *a, const guard *g, int comes_back)
{
    return g->map == NULL ? NULL : device_send(a, g->at, g->size_bytes, comes_back);
}

void *device_moved(void *there, const void *block, const void *at)
{
    return at == NULL || there == NULL ? NULL : (unsigned char *)there + ((const unsigned char *)at - (const unsigned char *)block);
}

void device_drop(device_arrays *a)
{
    for (int i = 0; i < a->n; i++)
        oct_device_free(a->context, a->all[i].there, a->all[i].size_bytes > 0 ? a->all[i].size_bytes : 1);
    a->n = 0;
}

oct_status device_fetch(device_arrays *a)
{
    for (int i = 0; i < a->n && a->status == OCT_OK; i++)
        if (a->all[i].host != NULL)
            note(a, oct_device_copy_out(a->context, a->all[i].host, a->all[i].there, a->all[i].size_bytes, a->stream));
    if (a->status == OCT_OK)
        note(a, oct_device_wait(a->context, a->stream));
    device_drop(a);
    return a->status;
}

static int fail(char *text, size_t size, const char *what, oct_status status, const char *why)
{
    snprintf(text, size, "%s: %s%s%s", what, oct_status_name(status), why[0] != '\0' ? ", " : "", why);
    return 1;
}

/* ---- attention ------------------------------------------------------------------------------------------------------------------ */

/* The batch in the shape's form; places past a sequence's pages hold nonsense. */
static void send_batch(device_problem *d, const problem *p)
{
    device_arrays *a = &d->arrays;
    const int64_t n = p->shape.n_sequences;
    int64_t widest = 1;
    oct_attn_batch *batch = &d->batch;
    *batch = (oct_attn_batch){ .struct_size = sizeof *batch, .n_sequences = (uint32_t)n, .n_pages = p->n_pages, .stream = a->stream };
    batch->qo_indptr = device_send(a, p->qo_indptr, (size_t)(n + 1) * sizeof(int32_t), 0);
    if (p->shape.compressed) {
        int32_t *indptr = d->scratch = calloc((size_t)(2 * n + 1), sizeof *indptr), *last = indptr + n + 1;
        for (int64_t b = 0; b <= n; b++)
            indptr[b] = (int32_t)p->page_at[b];
        for (int64_t b = 0; b < n; b++)
            last[b] = p->kv_len[b] == 0 ? 0 : (int32_t)((p->kv_len[b] - 1) % p->shape.page_size + 1);
        batch->kv_indptr = device_send(a, indptr, (size_t)(n + 1) * sizeof *indptr, 0);
        batch->kv_indices = device_send(a, p->table_pages, (size_t)p->page_at[n] * sizeof(int32_t), 0);
        batch->kv_last_page_len = device_send(a, last, (size_t)n * sizeof *last, 0);
        return;
    }
    for (int64_t b = 0; b < n; b++)
        if (p->page_at[b + 1] - p->page_at[b] > widest)
            widest = p->page_at[b + 1] - p->page_at[b];
    widest += p->shape.seed % 3;
    int32_t *table = d->scratch = calloc((size_t)(n * widest + 1), sizeof *table);
    for (int64_t i = 0; i < n * widest; i++)
        table[i] = INT32_MAX - 7;
    for (int64_t b = 0; b < n; b++)
        memcpy(table + b * widest, p->table_pages + p->page_at[b], (size_t)(p->page_at[b + 1] - p->page_at[b]) * sizeof *table);
    batch->block_table = device_send(a, table, (size_t)(n * widest) * sizeof *table, 0);
    batch->seq_lens = device_send(a, p->kv_len, (size_t)n * sizeof(int32_t), 0);
    batch->max_pages = widest;
}

void device_problem_send(device_problem *d, oct_context *context, void *stream, problem *p, const problem *owner)
{
    const problem *o = owner != NULL ? owner : p->owner != NULL ? p->owner : p;
    device_arrays *a = &d->arrays;
    memset(d, 0, sizeof *d);
    a->context = context;
    a->stream = stream;
    d->layer = p->layer;
    d->args = p->args;
    d->spec = p->spec;
    send_batch(d, p);
    d->layer.k = device_moved(device_send_guard(a, &o->k, 0), o->k.at, o->layer.k);
    d->layer.v = device_moved(device_send_guard(a, &o->v, 0), o->v.at, o->layer.v);
    d->layer.k_scale = device_send_guard(a, &o->k_scale, 0);
    d->layer.v_scale = device_send_guard(a, &o->v_scale, 0);
    d->layer.k_token_scale = device_send_guard(a, &o->k_token_scale, 0);
    d->layer.v_token_scale = device_send_guard(a, &o->v_token_scale, 0);
    d->args.layer = &d->layer;
    d->args.stream = stream;
    d->args.q = device_send_guard(a, &p->q, 0);
    d->args.q_scale = device_send_guard(a, &o->q_scale, 0);
    d->args.out = device_send_guard(a, &p->out, 1);
    d->args.out_scale = device_send_guard(a, &o->out_scale, 0);
    d->args.lse = p->args.lse != NULL ? device_send_guard(a, &p->lse, 1) : NULL;
    d->args.sink = device_send_guard(a, &o->sink, 0);
    d->args.mask = device_send_guard(a, &o->mask, 0);
    d->spec.max_sequences = p->shape.n_sequences > 0 ? (uint32_t)p->shape.n_sequences : 1;
    const int32_t rows = p->qo_indptr[p->shape.n_sequences];   /* a test may judge fewer */
    d->spec.max_rows = rows > 0 ? rows : 1;
    d->spec.max_keys = 1;
    for (int64_t b = 0; b < p->shape.n_sequences; b++)
        d->spec.max_keys = p->kv_len[b] > d->spec.max_keys ? p->kv_len[b] : d->spec.max_keys;
}

void device_problem_drop(device_problem *d)
{
    device_drop(&d->arrays);
    free(d->scratch);
    d->scratch = NULL;
}

int device_run_problem(oct_context *context, void *stream, problem *p, const problem *owner, const char *force, oct_plan_info *info, char *text, size_t size)
{
    device_problem d;
    oct_plan *plan = NULL;
    oct_error error = OCT_ERROR_INIT;
    const char *doing = "sending the problem";
    problem_blank(p);
    device_problem_send(&d, context, stream, p, owner);
    oct_status status = d.arrays.status;
    d.spec.force_variant = force;
    if (status == OCT_OK) {
        doing = "oct_plan_create";
        status = oct_plan_create(context, &d.spec, &plan, &error);
    }
    if (status == OCT_OK) {
        doing = "oct_plan_update";
        status = oct_plan_update(plan, &d.batch, &error);
    }
    if (status == OCT_OK) {
        doing = "oct_attn_check";
        status = oct_attn_check(plan, &d.args, &error);
    }
    if (status == OCT_OK) {
        doing = "oct_attn_run";
        status = oct_attn_run(plan, &d.args);
    }
    if (status == OCT_OK) {
        doing = "oct_plan_status";
        status = oct_plan_status(plan, stream, &error);
    }
    if (status == OCT_OK && info != NULL) {
        info->struct_size = sizeof *info;
        doing = "oct_plan_info_get";
        status = oct_plan_info_get(plan, info);
    }
    if (status == OCT_OK) {
        doing = "fetching the results";
        status = device_fetch(&d.arrays);
    }
    oct_plan_destroy(plan);
    device_problem_drop(&d);
    return status == OCT_OK ? 0 : fail(text, size, doing, status, error.text);
}

/* ---- the write -------------------------------------------------------------------------------------------------------------------- */

static void send_pool(device_arrays *a, const write_pool *pool, oct_kv_layer *layer)
{
    *layer = pool->layer;
    layer->k = device_moved(device_send_guard(a, &pool->memory[0], 1), pool->memory[0].at, pool->layer.k);
    layer->v = device_moved(device_send_guard(a, &pool->memory[1], 1), pool->memory[1].at, pool->layer.v);
    layer->k_token_scale = device_send_guard(a, &pool->memory[2], 1);
    layer->v_token_scale = device_send_guard(a, &pool->memory[3], 1);
    layer->k_scale = device_send_guard(a, &pool->memory[4], 0);
    layer->v_scale = device_send_guard(a, &pool->memory[5], 0);
}

int device_run_case(oct_context *context, void *stream, write_case *c, uint32_t *refused, char *text, size_t size)
{
    device_arrays a = { .context = context, .stream = stream };
    oct_kv_layer layers[2];
    oct_kv_write_args args = c->args;
    oct_rope rope = c->rope;
    *refused = 0xDEAD;
    for (int i = 0; i < c->n_pools; i++)
        send_pool(&a, &c->pool[i], &layers[i]);
    args.struct_size = sizeof args;
    args.stream = stream;
    args.layer = &layers[0];
    args.slots = device_send_guard(&a, &c->pool[0].slots_guard, 0);
    if (c->n_pools > 1) {
        args.layer_window = &layers[1];
        args.slots_window = device_send_guard(&a, &c->pool[1].slots_guard, 0);
    }
    args.k = device_moved(device_send_guard(&a, &c->k, 0), c->k.at, c->args.k);
    args.v = device_moved(device_send_guard(&a, &c->v, 0), c->v.at, c->args.v);
    if (args.rope != NULL) {
        rope.factors = device_send_guard(&a, &c->factors, 0);
        args.rope = &rope;
        args.positions = device_send_guard(&a, &c->positions, 0);
    }
    args.k_counts = args.k_counts != NULL ? device_send(&a, c->k_counts, sizeof c->k_counts[0], 1) : NULL;
    args.v_counts = args.v_counts != NULL ? device_send(&a, c->v_counts, sizeof c->v_counts[0], 1) : NULL;
    args.refused = args.checked ? device_send(&a, refused, sizeof *refused, 1) : NULL;
    if (!args.checked)
        *refused = 0;
    oct_status status = a.status;
    if (status == OCT_OK)
        status = oct_kv_write(context, &args);
    if (status != OCT_OK) {
        device_drop(&a);
        return fail(text, size, "oct_kv_write", status, "");
    }
    status = device_fetch(&a);
    return status == OCT_OK ? 0 : fail(text, size, "fetching the pools", status, "");
}
