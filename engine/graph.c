/* graph.c: see graph.h. */
#include "engine/graph.h"

#include <math.h>
#include <string.h>

#include "engine/report.h"
#include "engine/runtime.h"
#include "engine/seam.h"

/* Tensors of one layer at most (with biases, norms and views: 40), and around the layers. */
enum { NODES_PER_LAYER = 48, NODES_OUTSIDE = 64 };

typedef struct builder {
    const octe__graphs *graphs;
    const octe__hparams *h;
    const octe__weights *w;
    struct ggml_context *context;
    struct ggml_cgraph *graph;
    struct ggml_tensor *positions;
    int64_t n_rows;
} builder;

static struct ggml_tensor *norm(const builder *b, struct ggml_tensor *x, struct ggml_tensor *weight)
{
    return ggml_mul(b->context, ggml_rms_norm(b->context, x, b->h->norm_epsilon), weight);
}

/* [head_dim][heads][rows] */
static struct ggml_tensor *project(const builder *b, struct ggml_tensor *weight, struct ggml_tensor *bias, struct ggml_tensor *x, uint32_t n_heads)
{
    struct ggml_tensor *y = ggml_mul_mat(b->context, weight, x);
    if (bias != NULL) {
        y = ggml_add(b->context, y, bias);
    }
    return ggml_reshape_3d(b->context, y, b->h->head_dim, n_heads, b->n_rows);
}

static struct ggml_tensor *rope(const builder *b, struct ggml_tensor *x, uint32_t il)
{
    const octe__hparams *h = b->h;
    const bool window = h->layer_window[il];
    /* beta_fast and beta_slow act with YaRN alone, which ext_factor 0 leaves out. */
    const float ext_factor = 0.0f, beta_fast = 32.0f, beta_slow = 1.0f;
    return ggml_rope_ext(b->context, x, b->positions, b->w->rope_factors, (int)h->n_rot, h->arch->rope_neox ? GGML_ROPE_TYPE_NEOX : GGML_ROPE_TYPE_NORMAL,
                         (int)h->n_ctx_train, window ? b->graphs->rope_base_window : h->rope_base, window ? 1.0f : h->rope_scale, ext_factor, h->rope_attn_factor,
                         beta_fast, beta_slow);
}

/* The layer's K and V into the cache and its attention out of it; NULL when only the cache is wanted. */
static struct ggml_tensor *attention(const builder *b, struct ggml_tensor *x, uint32_t il, bool write_only)
{
    const octe__hparams *h = b->h;
    const octe__layer *l = &b->w->layers[il];
    octe__seam_layer *user = &b->graphs->seam->layers[il];
    struct ggml_tensor *k = project(b, l->k, l->k_bias, x, h->n_heads_kv);
    struct ggml_tensor *v = project(b, l->v, l->v_bias, x, h->n_heads_kv);
    k = rope(b, l->k_norm != NULL ? norm(b, k, l->k_norm) : k, il);
    if (write_only) {
        struct ggml_tensor *written = ggml_custom_inplace(b->context, k, &v, 1, octe__seam_write_only_op, GGML_N_TASKS_MAX, user);
        ggml_build_forward_expand(b->graph, written);
        return NULL;
    }
    struct ggml_tensor *q = project(b, l->q, l->q_bias, x, h->n_heads);
    q = rope(b, l->q_norm != NULL ? norm(b, q, l->q_norm) : q, il);
    struct ggml_tensor *kv[] = {k, v};
    const bool tapped = b->graphs->seam->tap != NULL;
    if (tapped) {
        q = ggml_custom_inplace(b->context, q, kv, 2, octe__seam_before_op, GGML_N_TASKS_MAX, user);
    }
    struct ggml_tensor *written = ggml_custom_inplace(b->context, q, kv, 2, octe__seam_write_op, GGML_N_TASKS_MAX, user);
    struct ggml_tensor *y = ggml_custom_4d(b->context, GGML_TYPE_F32, (int64_t)h->head_dim * h->n_heads, b->n_rows, 1, 1, &written, 1, octe__seam_attend_op, GGML_N_TASKS_MAX, user);
    if (tapped) {
        /* K and V as sources, so that their memory is not given away before they are looked at. */
        struct ggml_tensor *seen[] = {q, k, v};
        y = ggml_custom_inplace(b->context, y, seen, 3, octe__seam_after_op, GGML_N_TASKS_MAX, user);
    }
    return y;
}

static struct ggml_tensor *feed_forward(const builder *b, struct ggml_tensor *x, const octe__layer *l)
{
    struct ggml_tensor *up = ggml_mul_mat(b->context, l->up, x), *gate = ggml_mul_mat(b->context, l->gate, x);
    struct ggml_tensor *y = b->h->arch->gelu ? ggml_geglu_split(b->context, gate, up) : ggml_swiglu_split(b->context, gate, up);
    return ggml_mul_mat(b->context, l->down, y);
}

static struct ggml_tensor *logits(const builder *b, struct ggml_tensor *x)
{
    struct ggml_tensor *y = ggml_mul_mat(b->context, b->w->head, norm(b, x, b->w->out_norm));
    const float cap = b->h->final_softcap;
    if (cap > 0.0f) {
        y = ggml_scale(b->context, ggml_tanh(b->context, ggml_scale(b->context, y, 1.0f / cap)), cap);
    }
    return y;
}

static void build_layers(builder *b, octe__graph *g)
{
    const octe__hparams *h = b->h;
    struct ggml_context *c = b->context;
    struct ggml_tensor *x = ggml_get_rows(c, b->w->embd, g->tokens);
    if (h->embd_scale != 1.0f) {
        x = ggml_scale(c, x, h->embd_scale);
    }
    for (uint32_t il = 0; il < h->n_layers; il++) {
        const octe__layer *l = &b->w->layers[il];
        const bool last = il + 1 == h->n_layers;
        struct ggml_tensor *y = attention(b, norm(b, x, l->attn_norm), il, last && g->n_outputs == 0);
        if (y == NULL) {
            return;
        }
        y = ggml_mul_mat(c, l->out, y);
        if (last && g->output_rows != NULL) {
            y = ggml_get_rows(c, y, g->output_rows);
            x = ggml_get_rows(c, x, g->output_rows);
        }
        if (l->post_attn_norm != NULL) {
            y = norm(b, y, l->post_attn_norm);
        }
        x = ggml_add(c, y, x);
        y = feed_forward(b, norm(b, x, l->ffn_norm), l);
        if (l->post_ffn_norm != NULL) {
            y = norm(b, y, l->post_ffn_norm);
        }
        x = ggml_add(c, y, x);
    }
    g->logits = logits(b, x);
    ggml_set_output(g->logits);
    ggml_build_forward_expand(b->graph, g->logits);
}

static bool build(octe__graphs *graphs, octe__graph *g, uint32_t n_rows, uint32_t n_outputs)
{
    const octe__hparams *h = &graphs->model->hparams;
    const size_t max_nodes = NODES_OUTSIDE + (size_t)h->n_layers * NODES_PER_LAYER;
    const struct ggml_init_params params = {ggml_tensor_overhead() * max_nodes + ggml_graph_overhead_custom(max_nodes, false), NULL, true};
    struct ggml_context *c = ggml_init(params);
    if (c == NULL) {
        return false;
    }
    *g = (octe__graph){.n_rows = n_rows, .n_outputs = n_outputs, .context = c, .graph = ggml_new_graph_custom(c, max_nodes, false)};
    g->tokens = ggml_new_tensor_1d(c, GGML_TYPE_I32, n_rows);
    g->positions = ggml_new_tensor_1d(c, GGML_TYPE_I32, n_rows);
    ggml_set_input(g->tokens);
    ggml_set_input(g->positions);
    if (n_outputs > 0 && n_outputs < n_rows) {
        g->output_rows = ggml_new_tensor_1d(c, GGML_TYPE_I32, n_outputs);
        ggml_set_input(g->output_rows);
    }
    builder b = {.graphs = graphs, .h = h, .w = &graphs->model->weights, .context = c, .graph = g->graph, .positions = g->positions, .n_rows = n_rows};
    build_layers(&b, g);
    return true;
}

static void drop(octe__graph *g)
{
    ggml_free(g->context);
    *g = (octe__graph){0};
}

octe__graph *octe__graphs_get(octe__graphs *graphs, uint32_t n_rows, uint32_t n_outputs)
{
    octe__graph *place = &graphs->graph[0];
    graphs->clock++;
    for (int i = 0; i < OCTE__MAX_GRAPHS; i++) {
        octe__graph *g = &graphs->graph[i];
        if (g->context != NULL && g->n_rows == n_rows && g->n_outputs == n_outputs) {
            g->last_used = graphs->clock;
            graphs->n_reused++;
            return g;
        }
        /* An empty place was never used. */
        if (g->last_used < place->last_used) {
            place = g;
        }
    }
    drop(place);
    if (!build(graphs, place, n_rows, n_outputs)) {
        return NULL;
    }
    place->last_used = graphs->clock;
    graphs->n_built++;
    const size_t before = ggml_gallocr_get_buffer_size(graphs->arena, 0);
    if (!ggml_gallocr_alloc_graph(graphs->arena, place->graph)) {
        drop(place);
        return NULL;
    }
    /* The arena was reserved for the largest shape, but placing is a heuristic: should a smaller shape need more, the arena has moved
     * and every other graph points into memory that is gone. */
    if (ggml_gallocr_get_buffer_size(graphs->arena, 0) != before) {
        for (int i = 0; i < OCTE__MAX_GRAPHS; i++) {
            if (&graphs->graph[i] != place) {
                drop(&graphs->graph[i]);
            }
        }
    }
    return place;
}

oct_status octe__graphs_compute(octe__graphs *graphs, octe__graph *g, oct_error *error)
{
    octe__seam *seam = graphs->seam;
    atomic_store(&seam->status, OCT_OK);
    octe__runtime_clear();
    const enum ggml_status done = ggml_backend_graph_compute(graphs->backend, g->graph);
    const oct_status s = (oct_status)atomic_load(&seam->status);
    if (s != OCT_OK) {
        return octe__report(error, s, "octe_engine_step", NULL, "attention or cache write of layer %u failed: %s", atomic_load(&seam->status_layer),
                            oct_status_message(s));
    }
    if (done != GGML_STATUS_SUCCESS) {
        return octe__report(error, done == GGML_STATUS_ALLOC_FAILED ? OCT_OUT_OF_MEMORY : OCT_DEVICE_FAULT, "octe_engine_step", NULL, "ggml failed with status %d: %s",
                            (int)done, octe__runtime_complaint());
    }
    return OCT_OK;
}

oct_status octe__graphs_open(octe__graphs *graphs, const octe_model *model, octe__seam *seam, uint32_t n_threads, uint32_t max_rows, uint32_t max_outputs,
                             float rope_base_window, oct_error *error)
{
    static const char where[] = "octe_engine_open";
    *graphs = (octe__graphs){.model = model, .seam = seam, .rope_base_window = rope_base_window};
    graphs->backend = ggml_backend_dev_init(octe__runtime_cpu(), NULL);
    graphs->threads = octe__runtime_threads(n_threads);
    if (graphs->backend == NULL || graphs->threads == NULL) {
        return octe__report(error, OCT_OUT_OF_MEMORY, where, NULL, "ggml can't start %u threads", n_threads);
    }
    ggml_backend_cpu_set_n_threads(graphs->backend, (int)n_threads);
    ggml_backend_cpu_set_threadpool(graphs->backend, graphs->threads);
    graphs->arena = ggml_gallocr_new(ggml_backend_get_default_buffer_type(graphs->backend));
    octe__graph largest = {0};
    const bool built = graphs->arena != NULL && build(graphs, &largest, max_rows, max_outputs);
    const bool reserved = built && ggml_gallocr_reserve(graphs->arena, largest.graph);
    drop(&largest);
    return reserved ? OCT_OK : octe__report(error, OCT_OUT_OF_MEMORY, where, NULL, "no memory for the activations of %u rows with %u rows of logits", max_rows, max_outputs);
}

void octe__graphs_close(octe__graphs *graphs)
{
    for (int i = 0; i < OCTE__MAX_GRAPHS; i++) {
        drop(&graphs->graph[i]);
    }
    if (graphs->arena != NULL) {
        ggml_gallocr_free(graphs->arena);
    }
    if (graphs->backend != NULL) {
        ggml_backend_free(graphs->backend);
    }
    if (graphs->threads != NULL) {
        ggml_threadpool_free(graphs->threads);
    }
    *graphs = (octe__graphs){0};
}

uint64_t octe__graphs_arena_bytes(const octe__graphs *graphs) { return ggml_gallocr_get_buffer_size(graphs->arena, 0); }
