/* peer_attn.c: see peer_attn.h. */
#include "engine/peer_attn.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <ggml-alloc.h>
#include <ggml-backend.h>
#include <ggml-cpu.h>
#include <ggml.h>

#include "engine/report.h"
#include "engine/runtime.h"

static const char *const where = "octe_peer_attn_open";

enum { CACHES_MAX = 64, TENSORS_PER_CACHE = 6, MASK_ROWS = 64 };

struct octe_peer_attn {
    octe_peer_attn_options options;
    ggml_backend_t backend;
    ggml_backend_buffer_t buffer;
    struct ggml_context *tensors;
    struct ggml_cgraph *graph;
    struct ggml_tensor *q, *mask, *k[CACHES_MAX], *v[CACHES_MAX], *out[CACHES_MAX];
    uint32_t n_caches;
    uint64_t cache_bytes;
};

static enum ggml_type type_of(const char *name)
{
    for (int i = 0; i < GGML_TYPE_COUNT; i++) {
        const char *const known = ggml_type_name((enum ggml_type)i);
        if (known != NULL && strcmp(known, name) == 0) {
            return (enum ggml_type)i;
        }
    }
    return GGML_TYPE_COUNT;
}

/* xorshift, a sum of four uniform numbers. */
static float draw(uint64_t *state)
{
    float sum = 0;
    for (int i = 0; i < 4; i++) {
        *state ^= *state << 13;
        *state ^= *state >> 7;
        *state ^= *state << 17;
        sum += (float)(*state >> 40) * (1.0f / (1 << 24));
    }
    return (sum - 2.0f) * 1.7320508f;
}

/* A row of a position at a time, the first 256 rows over and over: what is stored doesn't change the time. */
static bool fill(struct ggml_tensor *to, enum ggml_type type, int64_t row, int64_t n_rows, uint64_t seed)
{
    enum { DRAWN = 256 };
    float *const values = malloc((size_t)row * DRAWN * sizeof(*values));
    if (values == NULL) {
        return false;
    }
    for (int64_t i = 0; i < row * DRAWN; i++) {
        values[i] = draw(&seed);
    }
    const size_t bytes = ggml_row_size(type, row);
    const int64_t n = n_rows < DRAWN ? n_rows : DRAWN;
    ggml_quantize_chunk(type, values, to->data, 0, n, row, NULL);
    for (int64_t i = n; i < n_rows; i += n) {
        memcpy((char *)to->data + (size_t)i * bytes, to->data, (size_t)(n_rows - i < n ? n_rows - i : n) * bytes);
    }
    free(values);
    return true;
}

static void fill_mask(const octe_peer_attn *p)
{
    const octe_peer_attn_options *const o = &p->options;
    ggml_fp16_t *const mask = p->mask->data, hidden = ggml_fp32_to_fp16(-INFINITY), seen = ggml_fp32_to_fp16(0);
    for (int64_t r = 0; r < p->mask->ne[1]; r++) {
        const int64_t position = (int64_t)o->kv_len - o->q_len + r;
        for (int64_t j = 0; j < o->kv_len; j++) {
            mask[r * o->kv_len + j] = j > position || (o->window_tokens > 0 && position - j >= o->window_tokens) ? hidden : seen;
        }
    }
}

static oct_status build(octe_peer_attn *p, enum ggml_type type, oct_error *error)
{
    const octe_peer_attn_options *const o = &p->options;
    const size_t n_tensors = (size_t)p->n_caches * TENSORS_PER_CACHE + 8;
    struct ggml_context *const t = p->tensors = ggml_init((struct ggml_init_params){ ggml_tensor_overhead() * n_tensors + ggml_graph_overhead_custom(n_tensors, false), NULL, true });
    p->backend = ggml_backend_cpu_init();
    if (t == NULL || p->backend == NULL) {
        return octe__report(error, OCT_OUT_OF_MEMORY, where, NULL, "no memory for ggml");
    }
    ggml_backend_cpu_set_n_threads(p->backend, (int)o->n_threads);
    p->graph = ggml_new_graph_custom(t, n_tensors, false);
    p->q = ggml_new_tensor_4d(t, GGML_TYPE_F32, o->dim_k, o->q_len, o->heads_q, o->batch);
    p->mask = ggml_new_tensor_2d(t, GGML_TYPE_F16, o->kv_len, ((int64_t)o->q_len + MASK_ROWS - 1) / MASK_ROWS * MASK_ROWS);
    const size_t head_k = ggml_row_size(type, o->dim_k), head_v = ggml_row_size(type, o->dim_v);
    for (uint32_t i = 0; i < p->n_caches; i++) {
        p->k[i] = ggml_new_tensor_2d(t, type, (int64_t)o->dim_k * o->heads_kv, (int64_t)o->kv_len * o->batch);
        p->v[i] = ggml_new_tensor_2d(t, type, (int64_t)o->dim_v * o->heads_kv, (int64_t)o->kv_len * o->batch);
        struct ggml_tensor *const k = ggml_view_4d(t, p->k[i], o->dim_k, o->kv_len, o->heads_kv, o->batch, head_k * o->heads_kv, head_k, head_k * o->heads_kv * o->kv_len, 0);
        struct ggml_tensor *const v = ggml_view_4d(t, p->v[i], o->dim_v, o->kv_len, o->heads_kv, o->batch, head_v * o->heads_kv, head_v, head_v * o->heads_kv * o->kv_len, 0);
        p->out[i] = ggml_flash_attn_ext(t, p->q, k, v, p->mask, 1.0f / sqrtf((float)o->dim_k), 0, 0);
        (void)ggml_prec_set_acc(p->out[i], GGML_PREC_F32);   /* as llama.cpp asks; a hint */
        ggml_build_forward_expand(p->graph, p->out[i]);
    }
    p->buffer = ggml_backend_alloc_ctx_tensors(t, p->backend);
    if (p->buffer == NULL) {
        return octe__report(error, OCT_OUT_OF_MEMORY, where, NULL, "no memory for %u caches of %llu bytes", p->n_caches, (unsigned long long)p->cache_bytes);
    }
    uint64_t seed = 88172645463325252u;
    for (int64_t i = 0; i < ggml_nelements(p->q); i++) {
        ((float *)p->q->data)[i] = draw(&seed);
    }
    fill_mask(p);
    const bool filled = fill(p->k[0], type, (int64_t)o->dim_k * o->heads_kv, (int64_t)o->kv_len * o->batch, 3) &&
                        fill(p->v[0], type, (int64_t)o->dim_v * o->heads_kv, (int64_t)o->kv_len * o->batch, 4);
    if (!filled) {
        return octe__report(error, OCT_OUT_OF_MEMORY, where, NULL, "no memory for values");
    }
    for (uint32_t i = 1; i < p->n_caches; i++) {
        memcpy(p->k[i]->data, p->k[0]->data, ggml_nbytes(p->k[0]));
        memcpy(p->v[i]->data, p->v[0]->data, ggml_nbytes(p->v[0]));
    }
    return OCT_OK;
}

oct_status octe_peer_attn_open(const octe_peer_attn_options *options, octe_peer_attn **peer, oct_error *error)
{
    octe__runtime_start();
    const enum ggml_type type = type_of(options->type);
    if (type == GGML_TYPE_COUNT) {
        return octe__report(error, OCT_INVALID_ARGUMENT, where, NULL, "ggml has no type '%s'", options->type);
    }
    const int64_t block = ggml_blck_size(type);
    if (options->dim_k % block != 0 || options->dim_v % block != 0) {
        return octe__report(error, OCT_UNSUPPORTED, where, NULL, "dims of %u and %u are no whole blocks of %s", options->dim_k, options->dim_v, options->type);
    }
    octe_peer_attn *const p = calloc(1, sizeof(*p));
    if (p == NULL) {
        return octe__report(error, OCT_OUT_OF_MEMORY, where, NULL, "no memory for the peer");
    }
    p->options = *options;
    p->options.type = ggml_type_name(type);
    p->cache_bytes = ((uint64_t)ggml_row_size(type, options->dim_k) + ggml_row_size(type, options->dim_v)) * options->heads_kv * options->kv_len * options->batch;
    const uint64_t wanted = options->cold_bytes > 0 ? options->cold_bytes / p->cache_bytes + 1 : 1;
    p->n_caches = wanted < CACHES_MAX ? (uint32_t)wanted : CACHES_MAX;
    const oct_status status = build(p, type, error);
    if (status != OCT_OK) {
        octe_peer_attn_close(p);
        return status;
    }
    *peer = p;
    return OCT_OK;
}

void octe_peer_attn_close(octe_peer_attn *p)
{
    if (p == NULL) {
        return;
    }
    ggml_backend_buffer_free(p->buffer);
    ggml_backend_free(p->backend);
    ggml_free(p->tensors);
    free(p);
}

uint32_t octe_peer_attn_operations(const octe_peer_attn *p) { return p->n_caches; }

uint64_t octe_peer_attn_bytes(const octe_peer_attn *p) { return p->cache_bytes; }

oct_status octe_peer_attn_run(octe_peer_attn *p)
{
    return ggml_backend_graph_compute(p->backend, p->graph) == GGML_STATUS_SUCCESS ? OCT_OK : OCT_OUT_OF_MEMORY;
}

const float *octe_peer_attn_out(const octe_peer_attn *p) { return p->out[p->n_caches - 1]->data; }

const float *octe_peer_attn_q(const octe_peer_attn *p) { return p->q->data; }

void octe_peer_attn_stored(const octe_peer_attn *p, int which, uint32_t sequence, uint32_t position, uint32_t head, float *to)
{
    const struct ggml_tensor *const t = which == 0 ? p->k[p->n_caches - 1] : p->v[p->n_caches - 1];
    const int64_t dim = which == 0 ? p->options.dim_k : p->options.dim_v;
    const size_t head_bytes = ggml_row_size(t->type, dim);
    const char *const at = (const char *)t->data + ((size_t)sequence * p->options.kv_len + position) * t->nb[1] + head * head_bytes;
    const struct ggml_type_traits *const traits = ggml_get_type_traits(t->type);
    if (traits->to_float != NULL) {
        traits->to_float(at, to, dim);
    } else {
        memcpy(to, at, (size_t)dim * sizeof(float));   /* f32 */
    }
}
