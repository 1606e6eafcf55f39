/* seam.c: the two operations a layer adds to ggml's graph, write then attend. ggml's barrier between nodes is the barrier between them. */
#include <stdlib.h>
#include <string.h>

#include "engine/graph.h"
#include "engine/report.h"
#include "engine/seam.h"

/* Elements of axis i of an f32 tensor. */
static int64_t stride(const struct ggml_tensor *t, int axis) { return (int64_t)(t->nb[axis] / sizeof(float)); }

/* Every thread of an operation meets the same error; the first one stays. */
static void remember(octe__seam *seam, oct_status status, uint32_t layer)
{
    int none = OCT_OK;
    if (atomic_compare_exchange_strong(&seam->status, &none, (int)status)) {
        atomic_store(&seam->status_layer, layer);
    }
}

static void write_kv(octe__seam_layer *l, const struct ggml_tensor *k, const struct ggml_tensor *v, int ith, int nth)
{
    octe__seam *seam = l->seam;
    if (atomic_load_explicit(&seam->status, memory_order_relaxed) != OCT_OK) {
        return;
    }
    oct_kv_write_args args = {
        .struct_size = sizeof(args),
        .checked = 1,
        .layer = l->write,
        .slots = seam->slots[l->group],
        .n_tokens = k->ne[2],
        .src_dtype = OCT_DTYPE_F32,
        .k = k->data,
        .v = v->data,
        .k_token_stride = stride(k, 2),
        .k_head_stride = stride(k, 1),
        .v_token_stride = stride(v, 2),
        .v_head_stride = stride(v, 1),
    };
    if (seam->k_counts != NULL) {
        args.k_counts = seam->k_counts + (size_t)l->index * seam->n_threads;
        args.v_counts = seam->v_counts + (size_t)l->index * seam->n_threads;
        args.n_counts = seam->n_threads;
    }
    const oct_status s = oct_kv_write_part(seam->context, &args, (uint32_t)ith, (uint32_t)nth);
    if (s != OCT_OK) {
        remember(seam, s, l->index);
    }
}

/* dst is q itself, untouched: it carries the order only. */
void octe__seam_write_op(struct ggml_tensor *dst, int ith, int nth, void *user) { write_kv(user, dst->src[1], dst->src[2], ith, nth); }

/* dst is k itself: the last layer of a step without outputs needs no q. */
void octe__seam_write_only_op(struct ggml_tensor *dst, int ith, int nth, void *user) { write_kv(user, dst->src[0], dst->src[1], ith, nth); }

void octe__seam_attend_op(struct ggml_tensor *dst, int ith, int nth, void *user)
{
    octe__seam_layer *l = user;
    octe__seam *seam = l->seam;
    if (atomic_load_explicit(&seam->status, memory_order_relaxed) != OCT_OK) {
        return;
    }
    const struct ggml_tensor *q = dst->src[0];
    /* Idle rows are in no sequence: the plan leaves their results alone, and ggml's memory holds anything. */
    if (ith == 0 && seam->n_rows < dst->ne[1]) {
        memset((char *)dst->data + seam->n_rows * dst->nb[1], 0, (size_t)(dst->ne[1] - seam->n_rows) * dst->nb[1]);
    }
    const oct_attn_args args = {
        .struct_size = sizeof(args),
        .layer = l->read,
        .q = q->data,
        .q_row_stride = stride(q, 2),
        .q_head_stride = stride(q, 1),
        .out = dst->data,
        .out_row_stride = stride(dst, 1),
        .out_head_stride = q->ne[0],
        .mask = seam->mask,
        .mask_row_stride = seam->mask_words,
    };
    const oct_status s = oct_attn_run_part(seam->mask != NULL ? seam->tree_plan[l->kind] : seam->plan[l->kind], &args, (uint32_t)ith, (uint32_t)nth);
    if (s != OCT_OK) {
        remember(seam, s, l->index);
    }
}

static octe_tap_rows rows_of(const octe__seam_layer *l, struct ggml_tensor *q, struct ggml_tensor *k, struct ggml_tensor *v)
{
    return (octe_tap_rows){
        .layer = l->index,
        .n_rows = l->seam->n_rows,
        .q = q->data,
        .k = k->data,
        .v = v->data,
        .q_row_stride = stride(q, 2),
        .q_head_stride = stride(q, 1),
        .k_row_stride = stride(k, 2),
        .k_head_stride = stride(k, 1),
        .v_row_stride = stride(v, 2),
        .v_head_stride = stride(v, 1),
    };
}

void octe__seam_before_op(struct ggml_tensor *dst, int ith, int nth, void *user)
{
    const octe__seam_layer *l = user;
    const octe_engine_tap *tap = l->seam->tap;
    const octe_tap_rows rows = rows_of(l, dst->src[0], dst->src[1], dst->src[2]);
    if (tap->before != NULL) {
        tap->before(tap->user, &rows, (uint32_t)ith, (uint32_t)nth);
    }
}

void octe__seam_after_op(struct ggml_tensor *dst, int ith, int nth, void *user)
{
    const octe__seam_layer *l = user;
    const octe_engine_tap *tap = l->seam->tap;
    octe_tap_rows rows = rows_of(l, dst->src[1], dst->src[2], dst->src[3]);
    rows.out = dst->data;
    rows.out_row_stride = stride(dst, 1);
    rows.out_head_stride = dst->src[1]->ne[0];
    if (tap->after != NULL && atomic_load_explicit(&l->seam->status, memory_order_relaxed) == OCT_OK) {
        tap->after(tap->user, &rows, (uint32_t)ith, (uint32_t)nth);
    }
}

oct_status octe__seam_open(octe__seam *seam, oct_error *error)
{
    const uint32_t n = seam->cache->n_layers;
    seam->layers = calloc(n, sizeof(*seam->layers));
    if (seam->layers == NULL) {
        return octe__report(error, OCT_OUT_OF_MEMORY, "octe_engine_open", NULL, "no memory for the operations of %u layers", n);
    }
    for (uint32_t il = 0; il < n; il++) {
        seam->layers[il] = (octe__seam_layer){.seam = seam, .index = il, .group = (octe__group)seam->cache->group[il], .kind = seam->cache->kind[il],
                                                .write = &seam->cache->layers[il], .read = &seam->cache->layers[il]};
    }
    return OCT_OK;
}

void octe__seam_close(octe__seam *seam)
{
    free(seam->layers);
    seam->layers = NULL;
}
