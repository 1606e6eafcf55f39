/* device_run.c: see device_run.h. */
#include "device/device_run.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MEMORY_BYTES ((size_t)4 << 30)   /* of address space */
enum { ARRAYS_MAX = 32 };

int device_rig_make(device_rig *rig, uint32_t warp)
{
    rig->chip = (oct__dev_chip){ .warp = warp, .n_units = 1, .shared_limit_bytes = warp == 32 ? 227 * 1024 : 64 * 1024 };
    rig->device = simt_open(MEMORY_BYTES, rig->chip.shared_limit_bytes);
    if (rig->device == NULL)
        return -1;
    rig->chip.n_units = simt_units(rig->device);
    return 0;
}

void device_rig_drop(device_rig *rig)
{
    simt_close(rig->device);
    rig->device = NULL;
}

simt_fault device_launch(device_rig *rig, const oct__dev_launch *launch, const void *params, simt_report *report)
{
    const simt_kernel *kernel = simt_find(rig->chip.warp, launch->kernel);
    if (kernel == NULL || kernel->threads != launch->threads) {
        memset(report, 0, sizeof *report);
        report->fault = SIMT_BAD_LAUNCH;
        snprintf(report->text, sizeof report->text, "no kernel %s of %u lanes", launch->kernel, launch->threads);
        return report->fault;
    }
    return simt_launch(rig->device, kernel, launch->grid_x, launch->grid_y, launch->shared_bytes, params, report);
}

/* ---- arrays ---------------------------------------------------------------------------------------------------------------------- */

/* Host memory and its copy on the device. */
typedef struct array { void *host, *there; size_t size_bytes; } array;
typedef struct arrays { simt_device *device; array all[ARRAYS_MAX]; int n, failed; } arrays;

/* The device's address of host + offset, whose block (host, size) is copied; NULL stays NULL. */
static void *send(arrays *a, const void *host, size_t size_bytes, const char *name, int may_write)
{
    if (host == NULL)
        return NULL;
    void *there = simt_alloc(a->device, size_bytes, name);
    if (there == NULL || a->n == ARRAYS_MAX || simt_copy_in(a->device, there, host, size_bytes) != 0) {
        a->failed = 1;
        return NULL;
    }
    if (!may_write)
        simt_protect(a->device, there, 1);
    union {
        const void *from;
        void *to;
    } pun = { .from = host };
    a->all[a->n++] = (array){ may_write ? pun.to : NULL, there, size_bytes };
    return there;
}

static void *send_guard(arrays *a, const guard *g, const char *name, int may_write)
{
    return g->map == NULL ? NULL : send(a, g->at, g->size_bytes, name, may_write);
}

/* What kernels may have written comes back; everything is freed. */
static void fetch_all(arrays *a)
{
    for (int i = 0; i < a->n; i++) {
        if (a->all[i].host != NULL)
            simt_copy_out(a->device, a->all[i].host, a->all[i].there, a->all[i].size_bytes);
        simt_free(a->device, a->all[i].there);
    }
    a->n = 0;
}

/* The device's address for `at`, a place within a host block that went to `there`. */
static void *moved(void *there, const void *block, const void *at)
{
    return at == NULL || there == NULL ? NULL : (unsigned char *)there + ((const unsigned char *)at - (const unsigned char *)block);
}

static int fail(char *text, size_t size, const char *form, ...) __attribute__((format(printf, 3, 4)));
static int fail(char *text, size_t size, const char *form, ...)
{
    va_list args;
    va_start(args, form);
    vsnprintf(text, size, form, args);
    va_end(args);
    return 1;
}

/* ---- attention -------------------------------------------------------------------------------------------------------------------- */

/* The batch in the shape's form, as problem_run.c gives it to a plan: places past a sequence's pages hold nonsense. */
static void send_batch(arrays *a, const problem *p, oct_attn_batch *batch, int32_t **scratch)
{
    const int64_t n = p->shape.n_sequences;
    int64_t widest = 1;
    memset(batch, 0, sizeof *batch);
    batch->struct_size = sizeof *batch;
    batch->n_sequences = (uint32_t)n;
    batch->n_pages = p->n_pages;
    batch->qo_indptr = send(a, p->qo_indptr, (size_t)(n + 1) * sizeof(int32_t), "qo_indptr", 0);
    if (p->shape.compressed) {
        int32_t *indptr = *scratch = calloc((size_t)(2 * n + 1), sizeof *indptr), *last = indptr + n + 1;
        for (int64_t b = 0; b <= n; b++)
            indptr[b] = (int32_t)p->page_at[b];
        for (int64_t b = 0; b < n; b++)
            last[b] = p->kv_len[b] == 0 ? 0 : (int32_t)((p->kv_len[b] - 1) % p->shape.page_size + 1);
        batch->kv_indptr = send(a, indptr, (size_t)(n + 1) * sizeof *indptr, "kv_indptr", 0);
        batch->kv_indices = send(a, p->table_pages, (size_t)p->page_at[n] * sizeof(int32_t), "kv_indices", 0);
        batch->kv_last_page_len = send(a, last, (size_t)n * sizeof *last, "kv_last_page_len", 0);
        return;
    }
    for (int64_t b = 0; b < n; b++)
        if (p->page_at[b + 1] - p->page_at[b] > widest)
            widest = p->page_at[b + 1] - p->page_at[b];
    widest += p->shape.seed % 3;
    int32_t *table = *scratch = calloc((size_t)(n * widest + 1), sizeof *table);
    for (int64_t i = 0; i < n * widest; i++)
        table[i] = INT32_MAX - 7;
    for (int64_t b = 0; b < n; b++)
        memcpy(table + b * widest, p->table_pages + p->page_at[b], (size_t)(p->page_at[b + 1] - p->page_at[b]) * sizeof *table);
    batch->block_table = send(a, table, (size_t)(n * widest) * sizeof *table, "block_table", 0);
    batch->seq_lens = send(a, p->kv_len, (size_t)n * sizeof(int32_t), "seq_lens", 0);
    batch->max_pages = widest;
}

static int run_all(device_rig *rig, problem *p, const oct_attn_batch *batch, const oct_attn_args *args, oct__dev_plan *plan, char *text, size_t size)
{
    oct__dev_step_limits limits = { batch->n_sequences, p->rows, 0 };
    oct__dev_workspace w;
    oct__dev_batch packed;
    oct__plan_params plan_params;
    oct__dev_launch launch;
    simt_report report;
    oct__dev_plan left;
    for (int64_t b = 0; b < p->shape.n_sequences; b++)
        limits.n_keys = p->kv_len[b] > limits.n_keys ? p->kv_len[b] : limits.n_keys;
    if (!oct__dev_workspace_of(&rig->chip, &p->spec, &limits, &w))
        return fail(text, size, "the chip's shared memory does not hold a tile");
    void *memory = simt_alloc(rig->device, w.bytes, "workspace");
    if (memory == NULL)
        return fail(text, size, "no room for a workspace of %zu bytes", w.bytes);
    oct__dev_pack_batch(&p->spec, batch, &packed);
    oct__dev_pack_plan(&rig->chip, &p->spec, &packed, &w, memory, &plan_params, &launch);
    int bad = device_launch(rig, &launch, &plan_params, &report) != SIMT_OK;
    for (uint32_t op = 0; op < OCT__DEV_OPS && !bad; op++) {
        oct__attn_params params;
        oct__dev_launch attend, finish;
        oct__dev_pack_attn(&p->spec, &packed, args, &w, memory, op, &params, &attend, &finish);
        rig->attended_by[op] = attend.kernel;
        rig->finished_by[op] = finish.kernel;
        bad = device_launch(rig, &attend, &params, &report) != SIMT_OK || device_launch(rig, &finish, &params, &report) != SIMT_OK;
    }
    if (bad)
        fail(text, size, "%s", report.text);
    simt_copy_out(rig->device, &left, (unsigned char *)memory + w.plan_at, sizeof left);
    simt_free(rig->device, memory);
    if (plan != NULL)
        *plan = left;
    if (!bad && left.status != OCT__DEV_PLAN_OK)
        return fail(text, size, "plan_step says %u: %u and %u tasks", left.status, left.n_tasks[0], left.n_tasks[1]);
    return bad;
}

int device_run_attn(device_rig *rig, problem *p, const problem *owner, oct__dev_plan *plan, char *text, size_t size)
{
    arrays a = { .device = rig->device };
    oct_kv_layer layer = p->layer;
    oct_attn_args args = p->args;
    oct_attn_batch batch;
    int32_t *scratch = NULL;
    int bad;
    const problem *o = owner != NULL ? owner : p;
    problem_blank(p);
    send_batch(&a, p, &batch, &scratch);
    layer.k = moved(send_guard(&a, &o->k, "k", 0), o->k.at, o->layer.k);
    layer.v = moved(send_guard(&a, &o->v, "v", 0), o->v.at, o->layer.v);
    layer.k_scale = send_guard(&a, &o->k_scale, "k_scale", 0);
    layer.v_scale = send_guard(&a, &o->v_scale, "v_scale", 0);
    layer.k_token_scale = send_guard(&a, &o->k_token_scale, "k_token_scale", 0);
    layer.v_token_scale = send_guard(&a, &o->v_token_scale, "v_token_scale", 0);
    args.layer = &layer;
    args.q = send_guard(&a, &p->q, "q", 0);
    args.q_scale = send_guard(&a, &o->q_scale, "q_scale", 0);
    args.out = send_guard(&a, &p->out, "out", 1);
    args.out_scale = send_guard(&a, &o->out_scale, "out_scale", 0);
    args.lse = p->args.lse != NULL ? send_guard(&a, &p->lse, "lse", 1) : NULL;
    args.sink = send_guard(&a, &o->sink, "sink", 0);
    args.mask = send_guard(&a, &o->mask, "mask", 0);
    if (a.failed)
        bad = fail(text, size, "no room on the device");
    else
        bad = run_all(rig, p, &batch, &args, plan, text, size);
    fetch_all(&a);
    free(scratch);
    return bad;
}

/* ---- the write ---------------------------------------------------------------------------------------------------------------------- */

static void send_pool(arrays *a, const write_pool *pool, oct_kv_layer *layer)
{
    *layer = pool->layer;
    layer->k = moved(send_guard(a, &pool->memory[0], "k pages", 1), pool->memory[0].at, pool->layer.k);
    layer->v = moved(send_guard(a, &pool->memory[1], "v pages", 1), pool->memory[1].at, pool->layer.v);
    layer->k_token_scale = send_guard(a, &pool->memory[2], "k token scales", 1);
    layer->v_token_scale = send_guard(a, &pool->memory[3], "v token scales", 1);
    layer->k_scale = send_guard(a, &pool->memory[4], "k scales", 0);
    layer->v_scale = send_guard(a, &pool->memory[5], "v scales", 0);
}

int device_write_fits_sm90a(const oct_kv_spec *spec)
{
    return spec->v.dtype != OCT_DTYPE_V4 && spec->dim_k <= OCT__WRITE_SM90A_DIM_MAX && spec->dim_v <= OCT__WRITE_SM90A_DIM_MAX;
}

int device_run_write(device_rig *rig, write_case *c, char *text, size_t size)
{
    arrays a = { .device = rig->device };
    oct_kv_layer layers[2];
    oct_kv_write_args args = c->args;
    oct_rope rope = c->rope;
    oct__kv_write_params params;
    oct__kv_write_sm90a_params params_sm90a;
    oct__kv_check_params check;
    oct__dev_launch launch;
    simt_report report;
    const uint32_t zero = 0;
    int bad = 0;
    for (int i = 0; i < c->n_pools; i++)
        send_pool(&a, &c->pool[i], &layers[i]);
    args.layer = &layers[0];
    args.slots = send_guard(&a, &c->pool[0].slots_guard, "slots", 0);
    if (c->n_pools > 1) {
        args.layer_window = &layers[1];
        args.slots_window = send_guard(&a, &c->pool[1].slots_guard, "slots_window", 0);
    }
    args.k = moved(send_guard(&a, &c->k, "k", 0), c->k.at, c->args.k);
    args.v = moved(send_guard(&a, &c->v, "v", 0), c->v.at, c->args.v);
    if (args.rope != NULL) {
        rope.factors = send_guard(&a, &c->factors, "factors", 0);
        args.rope = &rope;
        args.positions = send_guard(&a, &c->positions, "positions", 0);
    }
    args.k_counts = args.k_counts != NULL ? send(&a, c->k_counts, sizeof c->k_counts[0], "k counts", 1) : NULL;
    args.v_counts = args.v_counts != NULL ? send(&a, c->v_counts, sizeof c->v_counts[0], "v counts", 1) : NULL;
    uint32_t *refused = args.checked ? send(&a, &zero, sizeof zero, "refused", 0) : NULL;
    if (refused != NULL)
        simt_protect(rig->device, refused, 0);
    if (a.failed)
        bad = fail(text, size, "no room on the device");
    if (!bad && refused != NULL && oct__dev_pack_kv_check(&args, refused, &check, &launch) && device_launch(rig, &launch, &check, &report) != SIMT_OK)
        bad = fail(text, size, "%s", report.text);
    const int is_sm90a = rig->chip.has_sm90a && device_write_fits_sm90a(&layers[0].spec);
    const int is_some = is_sm90a ? oct__dev_pack_kv_write_sm90a(&rig->chip, &args, refused, &params_sm90a, &launch)
                                 : oct__dev_pack_kv_write(&rig->chip, &args, refused, &params, &launch);
    rig->written_by = launch.kernel;
    if (!bad && is_some && device_launch(rig, &launch, is_sm90a ? (const void *)&params_sm90a : &params, &report) != SIMT_OK)
        bad = fail(text, size, "%s", report.text);
    fetch_all(&a);
    return bad;
}

/* ---- merge --------------------------------------------------------------------------------------------------------------------------- */

int device_run_merge(device_rig *rig, const device_merge *m, char *text, size_t size)
{
    arrays a = { .device = rig->device };
    oct_attn_merge_args args = m->args;
    oct__merge_params params;
    oct__merge_sm90a_params params_sm90a;
    oct__dev_launch launch;
    simt_report report;
    int bad = 0;
    args.out = send(&a, m->args.out, m->out_elements * sizeof(float), "out", 0);
    args.lse = send(&a, m->args.lse, m->lse_elements * sizeof(float), "lse", 0);
    args.merged = send(&a, m->args.merged, m->merged_elements * sizeof(float), "merged", 1);
    args.lse_merged = send(&a, m->args.lse_merged, m->lse_merged_elements * sizeof(float), "lse_merged", 1);
    if (a.failed)
        bad = fail(text, size, "no room on the device");
    else if (rig->chip.has_sm90a) {
        if (oct__dev_pack_merge_sm90a(&rig->chip, &args, &params_sm90a, &launch) && device_launch(rig, &launch, &params_sm90a, &report) != SIMT_OK)
            bad = fail(text, size, "%s", report.text);
    } else if (oct__dev_pack_merge(&rig->chip, &args, &params, &launch) && device_launch(rig, &launch, &params, &report) != SIMT_OK)
        bad = fail(text, size, "%s", report.text);
    fetch_all(&a);
    return bad;
}
