/* weights.c: see weights.h. */
#include "engine/weights.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <ggml-cpu.h>

#include "engine/report.h"
#include "engine/runtime.h"

/* Tensors of one layer, and of the whole model, are far fewer; a file with more is none of ours, and looking each up would cost. */
enum { MAX_TENSORS_PER_LAYER = 32, MAX_TENSORS_OUTSIDE = 64 };
/* Rows for which ggml is asked whether a buffer type takes a matrix: as many as libllama asks with. */
enum { PROBE_ROWS = 512 };

typedef struct loader {
    octe_model *model;
    const octe__metadata *m;
    ggml_backend_dev_t cpu;
    ggml_backend_buffer_type_t *extra;   /* NULL-terminated, or NULL */
    bool *used;                          /* by index of the tensor in the file */
} loader;

typedef enum kind {
    VECTOR,     /* f32, added or multiplied element by element */
    TABLE,      /* rows are looked up */
    MATRIX      /* rows are multiplied with activations */
} kind;

static oct_status tensor_fail(const loader *l, oct_status status, const char *name, const char *format, ...)
#if defined(__GNUC__)
    __attribute__((format(printf, 4, 5)))
#endif
    ;
static oct_status tensor_fail(const loader *l, oct_status status, const char *name, const char *format, ...)
{
    char message[192];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message, sizeof(message), format, arguments);
    va_end(arguments);
    return octe__report(l->m->error, status, l->m->where, l->m->file, "tensor '%s' %s", name, message);
}

static ggml_backend_buffer_type_t *extra_buffer_types(ggml_backend_dev_t cpu)
{
    void *const address = ggml_backend_reg_get_proc_address(ggml_backend_dev_backend_reg(cpu), "ggml_backend_dev_get_extra_bufts");
    ggml_backend_dev_get_extra_bufts_t get;
    /* Copied, not cast: ISO C knows no way from void * to a function. */
    _Static_assert(sizeof(get) == sizeof(address), "POSIX: a function's address fits a void *");
    memcpy(&get, &address, sizeof(get));
    return get != NULL ? get(cpu) : NULL;
}

/* Would this buffer type take this matrix? Asked as libllama asks: a product whose weights lie in an empty buffer of the type. */
static bool buffer_takes(ggml_backend_dev_t cpu, ggml_backend_buffer_type_t type, const struct ggml_tensor *w)
{
    const struct ggml_init_params params = {ggml_tensor_overhead() * 8, NULL, true};
    struct ggml_context *context = ggml_init(params);
    if (context == NULL) {
        return false;
    }
    struct ggml_tensor *weights = ggml_new_tensor_2d(context, w->type, w->ne[0], w->ne[1]);
    struct ggml_tensor *rows = ggml_new_tensor_2d(context, GGML_TYPE_F32, w->ne[0], PROBE_ROWS);
    struct ggml_tensor *product = ggml_mul_mat(context, weights, rows);
    weights->buffer = ggml_backend_buft_alloc_buffer(type, 0);
    const bool takes = weights->buffer != NULL && ggml_backend_dev_supports_op(cpu, product);
    ggml_backend_buffer_free(weights->buffer);
    ggml_free(context);
    return takes;
}

static bool type_serves(const struct ggml_tensor *t, kind kind)
{
    switch (kind) {
    case VECTOR:
        return t->type == GGML_TYPE_F32;
    case TABLE:
        return t->type == GGML_TYPE_F32 || t->type == GGML_TYPE_F16 || t->type == GGML_TYPE_BF16 ||
               (ggml_is_quantized(t->type) && ggml_get_type_traits(t->type)->to_float != NULL);
    default: {
        /* ggml's supports_op doesn't ask for the dot product itself, and calls it whether it is there or not. */
        const struct ggml_type_traits_cpu *traits = ggml_get_type_traits_cpu(t->type);
        return traits->vec_dot != NULL && (traits->vec_dot_type == GGML_TYPE_F32 || ggml_get_type_traits_cpu(traits->vec_dot_type)->from_float != NULL);
    }
    }
}

/* Where a matrix will lie: itself, or a tensor of the same name in the first extra buffer type that takes it. */
static oct_status place(loader *l, struct ggml_tensor *t, struct ggml_tensor **placed)
{
    octe__weights *w = &l->model->weights;
    *placed = t;
    for (int i = 0; i < OCTE__MAX_EXTRA_BUFFERS && l->extra != NULL && l->extra[i] != NULL; i++) {
        if (!buffer_takes(l->cpu, l->extra[i], t)) {
            continue;
        }
        if (w->repacked_context[i] == NULL) {
            const size_t most = (size_t)l->model->hparams.n_layers * MAX_TENSORS_PER_LAYER + MAX_TENSORS_OUTSIDE;
            w->repacked_context[i] = ggml_init((struct ggml_init_params){ggml_tensor_overhead() * most, NULL, true});
        }
        if (w->repacked_context[i] == NULL) {
            return octe__report(l->m->error, OCT_OUT_OF_MEMORY, l->m->where, l->m->file, "no memory for the records of repacked weights");
        }
        *placed = ggml_new_tensor_2d(w->repacked_context[i], t->type, t->ne[0], t->ne[1]);
        ggml_set_name(*placed, ggml_get_name(t));
        w->n_tensors_repacked++;
        w->repacked_bytes += ggml_nbytes(t);
        return OCT_OK;
    }
    return OCT_OK;
}

/* Finds a tensor of shape [ne0] or, with ne1 > 0, [ne0, ne1] (ggml's order: ne0 is a row). *tensor stays NULL when an optional one is missing. */
static oct_status find(loader *l, const char *name, int64_t ne0, int64_t ne1, kind kind, octe__presence presence, struct ggml_tensor **tensor)
{
    const octe__weights *w = &l->model->weights;
    const int64_t index = gguf_find_tensor(w->gguf, name);
    *tensor = NULL;
    if (index < 0) {
        return presence == OCTE__OPTIONAL ? OCT_OK : tensor_fail(l, OCT_BAD_DATA, name, "is missing");
    }
    struct ggml_tensor *t = ggml_get_tensor(w->mapped_context, name);
    const int64_t rows = ne1 > 0 ? ne1 : 1;
    if (t == NULL || t->ne[0] != ne0 || t->ne[1] != rows || t->ne[2] != 1 || t->ne[3] != 1) {
        return tensor_fail(l, OCT_BAD_DATA, name, "has shape [%" PRId64 ", %" PRId64 ", %" PRId64 ", %" PRId64 "]; must be [%" PRId64 ", %" PRId64 ", 1, 1]",
                           t != NULL ? t->ne[0] : 0, t != NULL ? t->ne[1] : 0, t != NULL ? t->ne[2] : 0, t != NULL ? t->ne[3] : 0, ne0, rows);
    }
    if (!type_serves(t, kind)) {
        return tensor_fail(l, OCT_UNSUPPORTED, name, "has type %s, which ggml's CPU backend can't use as a %s", ggml_type_name(t->type),
                           kind == VECTOR ? "vector (f32 only)" : kind == TABLE ? "table" : "matrix");
    }
    l->used[index] = true;
    *tensor = t;
    return kind == MATRIX ? place(l, t, tensor) : OCT_OK;
}

/* One line a tensor of a layer: where the pointer goes, name, shape. ne1 0: a vector. */
typedef struct wanted {
    struct ggml_tensor **into;
    const char *name;
    int64_t ne0, ne1;
    bool when;                   /* false: not part of this architecture */
    octe__presence presence;
} wanted;

static oct_status find_layer(loader *l, uint32_t il)
{
    const octe__hparams *h = &l->model->hparams;
    const octe__arch *a = h->arch;
    octe__layer *w = &l->model->weights.layers[il];
    const int64_t embd = h->n_embd, ff = h->n_ff, dim = h->head_dim, q = dim * h->n_heads, kv = dim * h->n_heads_kv;
    const wanted list[] = {
        {&w->attn_norm, "attn_norm.weight", embd, 0, true, OCTE__REQUIRED},
        {&w->q, "attn_q.weight", embd, q, true, OCTE__REQUIRED},
        {&w->k, "attn_k.weight", embd, kv, true, OCTE__REQUIRED},
        {&w->v, "attn_v.weight", embd, kv, true, OCTE__REQUIRED},
        {&w->q_bias, "attn_q.bias", q, 0, a->qkv_bias, OCTE__OPTIONAL},
        {&w->k_bias, "attn_k.bias", kv, 0, a->qkv_bias, OCTE__OPTIONAL},
        {&w->v_bias, "attn_v.bias", kv, 0, a->qkv_bias, OCTE__OPTIONAL},
        {&w->q_norm, "attn_q_norm.weight", dim, 0, a->qk_norm, OCTE__REQUIRED},
        {&w->k_norm, "attn_k_norm.weight", dim, 0, a->qk_norm, OCTE__REQUIRED},
        {&w->out, "attn_output.weight", q, embd, true, OCTE__REQUIRED},
        {&w->post_attn_norm, "post_attention_norm.weight", embd, 0, a->post_norm, OCTE__REQUIRED},
        {&w->ffn_norm, "ffn_norm.weight", embd, 0, true, OCTE__REQUIRED},
        {&w->gate, "ffn_gate.weight", embd, ff, true, OCTE__REQUIRED},
        {&w->up, "ffn_up.weight", embd, ff, true, OCTE__REQUIRED},
        {&w->down, "ffn_down.weight", ff, embd, true, OCTE__REQUIRED},
        {&w->post_ffn_norm, "post_ffw_norm.weight", embd, 0, a->post_norm, OCTE__REQUIRED},
    };
    for (size_t i = 0; i < sizeof(list) / sizeof(list[0]); i++) {
        if (!list[i].when) {
            continue;
        }
        char name[GGML_MAX_NAME];
        snprintf(name, sizeof(name), "blk.%u.%s", il, list[i].name);
        const oct_status s = find(l, name, list[i].ne0, list[i].ne1, list[i].ne1 > 0 ? MATRIX : VECTOR, list[i].presence, list[i].into);
        if (s != OCT_OK) {
            return s;
        }
    }
    return OCT_OK;
}

static oct_status find_all(loader *l)
{
    octe__weights *w = &l->model->weights;
    const octe__hparams *h = &l->model->hparams;
    const struct ggml_tensor *embd = ggml_get_tensor(w->mapped_context, "token_embd.weight");
    /* The table itself says how many tokens there are; the vocabulary is checked against it where both are used. */
    const int64_t n_vocab = embd != NULL ? embd->ne[1] : 0;
    if (embd != NULL && n_vocab > INT32_MAX) {
        return tensor_fail(l, OCT_BAD_DATA, "token_embd.weight", "has %" PRId64 " rows; at most 2^31 - 1 tokens can be named", n_vocab);
    }
    w->n_vocab = (uint32_t)n_vocab;
    oct_status s = find(l, "token_embd.weight", h->n_embd, n_vocab, TABLE, OCTE__REQUIRED, &w->embd);
    if (s == OCT_OK) {
        s = find(l, "output_norm.weight", h->n_embd, 0, VECTOR, OCTE__REQUIRED, &w->out_norm);
    }
    if (s == OCT_OK) {
        const bool own = gguf_find_tensor(w->gguf, "output.weight") >= 0;
        s = find(l, own ? "output.weight" : "token_embd.weight", h->n_embd, n_vocab, MATRIX, OCTE__REQUIRED, &w->head);
    }
    if (s == OCT_OK && h->arch->rope_factors) {
        s = find(l, "rope_freqs.weight", h->n_rot / 2, 0, VECTOR, OCTE__OPTIONAL, &w->rope_factors);
    }
    for (uint32_t il = 0; il < h->n_layers && s == OCT_OK; il++) {
        s = find_layer(l, il);
    }
    const int64_t n_tensors = gguf_get_n_tensors(w->gguf);
    for (int64_t i = 0; i < n_tensors && s == OCT_OK; i++) {
        if (!l->used[i]) {
            s = tensor_fail(l, OCT_UNSUPPORTED, gguf_get_tensor_name(w->gguf, i), "is not used by architecture %s as it is built here; leaving it out would change the model",
                            h->arch->name);
        }
    }
    return s;
}

static oct_status check_rope_factors(const loader *l)
{
    const struct ggml_tensor *t = l->model->weights.rope_factors;
    for (int64_t i = 0; t != NULL && i < t->ne[0]; i++) {
        float factor;
        memcpy(&factor, (const char *)t->data + i * (int64_t)sizeof(factor), sizeof(factor));
        if (!(factor > 0.0f && factor <= 1e30f)) {
            return tensor_fail(l, OCT_BAD_DATA, "rope_freqs.weight", "has element %" PRId64 " of %g; must be finite and > 0", i, (double)factor);
        }
    }
    return OCT_OK;
}

static oct_status map_tensors(loader *l)
{
    octe_model *model = l->model;
    octe__weights *w = &model->weights;
    /* The whole map is the buffer: ggml wants its start aligned, and a map's start always is. */
    w->mapped_buffer = ggml_backend_cpu_buffer_from_ptr(model->map.data, model->map.size_bytes);
    if (w->mapped_buffer == NULL) {
        return octe__report(l->m->error, OCT_OUT_OF_MEMORY, l->m->where, l->m->file, "ggml can't make a buffer of the mapped file");
    }
    ggml_backend_buffer_set_usage(w->mapped_buffer, GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
    const size_t start = gguf_get_data_offset(w->gguf);
    int64_t i = 0;
    /* ggml made the tensors in the file's order: walking both costs one pass, looking each up by name a square. */
    for (struct ggml_tensor *t = ggml_get_first_tensor(w->mapped_context); t != NULL; t = ggml_get_next_tensor(w->mapped_context, t), i++) {
        const size_t at = start + gguf_get_tensor_offset(w->gguf, i);
        if (i >= gguf_get_n_tensors(w->gguf) || strcmp(ggml_get_name(t), gguf_get_tensor_name(w->gguf, i)) != 0 || at > model->map.size_bytes ||
            ggml_nbytes(t) > model->map.size_bytes - at ||
            ggml_backend_tensor_alloc(w->mapped_buffer, t, (char *)model->map.data + at) != GGML_STATUS_SUCCESS) {
            return tensor_fail(l, OCT_BAD_DATA, ggml_get_name(t), "doesn't lie where the header says");
        }
        w->n_params += (uint64_t)ggml_nelements(t);
    }
    return OCT_OK;
}

static oct_status fill_repacked(loader *l)
{
    octe__weights *w = &l->model->weights;
    for (int i = 0; i < OCTE__MAX_EXTRA_BUFFERS; i++) {
        if (w->repacked_context[i] == NULL) {
            continue;
        }
        w->repacked_buffer[i] = ggml_backend_alloc_ctx_tensors_from_buft(w->repacked_context[i], l->extra[i]);
        if (w->repacked_buffer[i] == NULL) {
            return octe__report(l->m->error, OCT_OUT_OF_MEMORY, l->m->where, l->m->file, "no memory for %" PRIu64 " bytes of repacked weights", w->repacked_bytes);
        }
        ggml_backend_buffer_set_usage(w->repacked_buffer[i], GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
        struct ggml_context *context = w->repacked_context[i];
        for (struct ggml_tensor *t = ggml_get_first_tensor(context); t != NULL; t = ggml_get_next_tensor(context, t)) {
            /* Setting a tensor repacks it, and needs it whole. */
            const struct ggml_tensor *source = ggml_get_tensor(w->mapped_context, ggml_get_name(t));
            ggml_backend_tensor_set(t, source->data, 0, ggml_nbytes(source));
        }
    }
    return OCT_OK;
}

oct_status octe__weights_load(octe_model *model, const octe__metadata *m, bool repack)
{
    octe__weights *w = &model->weights;
    loader l = {.model = model, .m = m, .cpu = octe__runtime_cpu()};
    const int64_t n_tensors = gguf_get_n_tensors(w->gguf);
    if (l.cpu == NULL) {
        return octe__report(m->error, OCT_UNSUPPORTED, m->where, NULL, "ggml has no CPU backend");
    }
    if (n_tensors > (int64_t)model->hparams.n_layers * MAX_TENSORS_PER_LAYER + MAX_TENSORS_OUTSIDE) {
        return octe__report(m->error, OCT_UNSUPPORTED, m->where, m->file, "has %" PRId64 " tensors, too many for %u layers of architecture %s", n_tensors,
                            model->hparams.n_layers, model->hparams.arch->name);
    }
    l.extra = repack ? extra_buffer_types(l.cpu) : NULL;
    l.used = calloc((size_t)n_tensors + 1, sizeof(*l.used));
    w->layers = calloc(model->hparams.n_layers, sizeof(*w->layers));
    oct_status s = l.used != NULL && w->layers != NULL ? OCT_OK : octe__report(m->error, OCT_OUT_OF_MEMORY, m->where, m->file, "no memory for the layers' records");
    if (s == OCT_OK) {
        s = map_tensors(&l);
    }
    if (s == OCT_OK) {
        s = find_all(&l);
    }
    if (s == OCT_OK) {
        s = check_rope_factors(&l);
    }
    if (s == OCT_OK) {
        s = fill_repacked(&l);
    }
    free(l.used);
    return s;
}

void octe__weights_free(octe__weights *w)
{
    for (int i = 0; i < OCTE__MAX_EXTRA_BUFFERS; i++) {
        ggml_backend_buffer_free(w->repacked_buffer[i]);
        ggml_free(w->repacked_context[i]);
    }
    ggml_backend_buffer_free(w->mapped_buffer);
    ggml_free(w->mapped_context);
    if (w->gguf != NULL) {
        gguf_free(w->gguf);
    }
    free(w->layers);
    *w = (octe__weights){0};
}
