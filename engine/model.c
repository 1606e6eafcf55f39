/* model.c: see model.h. */
#include "engine/model.h"

#include <stdlib.h>
#include <string.h>

#include "engine/gguf_check.h"
#include "engine/report.h"
#include "engine/runtime.h"
#include "engine/weights.h"

static const char *const where = "octe_model_open";

/* ggml reads weights with vector loads of up to this many bytes; a file with a smaller alignment would have to be copied. */
enum { MIN_ALIGNMENT_BYTES = 32 };

static oct_status parse(octe_model *model, oct_error *error)
{
    octe_gguf_summary summary;
    oct_status s = octe_gguf_check_memory(model->map.data, model->map.size_bytes, model->path, &summary, error);
    if (s != OCT_OK) {
        return s;
    }
    if (summary.alignment_bytes < MIN_ALIGNMENT_BYTES) {
        return octe__report(error, OCT_UNSUPPORTED, where, model->path, "key 'general.alignment' is %u; mapped weights need at least %d", summary.alignment_bytes,
                            MIN_ALIGNMENT_BYTES);
    }
    /* From the bytes that were checked, not from the path: the file may have changed in between. */
    const struct gguf_init_params params = {.no_alloc = true, .ctx = &model->weights.mapped_context};
    octe__runtime_clear();
    model->weights.gguf = gguf_init_from_buffer(model->map.data, model->map.size_bytes, params);
    if (model->weights.gguf == NULL || model->weights.mapped_context == NULL) {
        return octe__report(error, OCT_BAD_DATA, where, model->path, "ggml refuses the header: %s", octe__runtime_complaint());
    }
    return OCT_OK;
}

static oct_status describe(octe_model *model, const octe__metadata *m)
{
    const octe__hparams *h = &model->hparams;
    const char *slash = strrchr(model->path, '/');
    const char *name = slash != NULL ? slash + 1 : model->path;
    const oct_status s = octe__metadata_string(m, "general.name", OCTE__OPTIONAL, &name);
    if (s != OCT_OK) {
        return s;
    }
    model->name = strdup(name);
    if (model->name == NULL) {
        return octe__report(m->error, OCT_OUT_OF_MEMORY, where, model->path, "no memory for the model's name");
    }
    model->info = (octe_model_info){
        .path = model->path,
        .name = model->name,
        .architecture = h->arch->name,
        .model_type = h->arch->model_type,
        .n_layers = h->n_layers,
        .n_layers_window = h->n_layers_window,
        .n_embd = h->n_embd,
        .n_heads = h->n_heads,
        .n_heads_kv = h->n_heads_kv,
        .head_dim = h->head_dim,
        .n_vocab = model->weights.n_vocab,
        .n_ctx_train = h->n_ctx_train,
        .window_tokens = h->window_tokens,
        .rope_base = h->rope_base,
        .rope_base_window = h->rope_base_window,
        .attn_scale = h->attn_scale,
        .n_params = model->weights.n_params,
        .file_bytes = model->map.size_bytes,
        .repacked_bytes = model->weights.repacked_bytes,
        .n_tensors_repacked = model->weights.n_tensors_repacked,
    };
    return OCT_OK;
}

static oct_status load(octe_model *model, const octe_model_options *options, oct_error *error)
{
    oct_status s = octe__map_open(model->path, &model->map, where, error);
    if (s == OCT_OK) {
        s = parse(model, error);
    }
    octe__metadata m = {.gguf = model->weights.gguf, .file = model->path, .architecture = "", .where = where, .error = error};
    if (s == OCT_OK) {
        s = octe__hparams_read(&m, &model->hparams);
    }
    if (s == OCT_OK) {
        s = octe__weights_load(model, &m, options == NULL || !options->no_repack);
    }
    if (s == OCT_OK) {
        s = describe(model, &m);
    }
    if (s == OCT_OK) {
        /* The tensors stand on their own; the keys, a vocabulary of 262,144 texts among them, have been read. */
        gguf_free(model->weights.gguf);
        model->weights.gguf = NULL;
    }
    return s;
}

oct_status octe_model_open(const char *path, const octe_model_options *options, octe_model **model, oct_error *error)
{
    if (model == NULL || path == NULL) {
        return octe__report(error, OCT_INVALID_ARGUMENT, where, NULL, "%s is NULL", path == NULL ? "path" : "model");
    }
    *model = NULL;
    octe__runtime_start();
    octe_model *m = calloc(1, sizeof(*m));
    if (m == NULL || (m->path = strdup(path)) == NULL) {
        free(m);
        return octe__report(error, OCT_OUT_OF_MEMORY, where, path, "no memory for the model's record");
    }
    const oct_status s = load(m, options, error);
    if (s != OCT_OK) {
        octe_model_close(m);
        return s;
    }
    *model = m;
    return OCT_OK;
}

void octe_model_close(octe_model *model)
{
    if (model == NULL) {
        return;
    }
    octe__weights_free(&model->weights);
    octe__map_close(&model->map);
    free(model->name);
    free(model->path);
    free(model);
}

const octe_model_info *octe_model_info_get(const octe_model *model) { return &model->info; }

bool octe_model_layer_has_window(const octe_model *model, uint32_t layer)
{
    return layer < model->hparams.n_layers && model->hparams.layer_window[layer];
}
