/* weights.c: tensors of a GGUF as a safetensors file: names, shapes and what the converter to GGUF had changed put back. See parts.h. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "engine/export/parts.h"
#include "engine/report.h"
#include "octavo/kv.h"

enum { NAME_BYTES = 96 };

/* Names of a layer's tensors in a GGUF and in a checkpoint. */
static const struct { const char *gguf, *hf; } layer_names[] = {
    { "attn_norm", "input_layernorm" },       { "attn_q", "self_attn.q_proj" },           { "attn_k", "self_attn.k_proj" },
    { "attn_v", "self_attn.v_proj" },         { "attn_output", "self_attn.o_proj" },      { "attn_q_norm", "self_attn.q_norm" },
    { "attn_k_norm", "self_attn.k_norm" },    { "ffn_gate", "mlp.gate_proj" },            { "ffn_up", "mlp.up_proj" },
    { "ffn_down", "mlp.down_proj" },          { "post_attention_norm", "post_attention_layernorm" },
    { "post_ffw_norm", "post_feedforward_layernorm" },
};

typedef struct source {
    const struct ggml_tensor *tensor;
    char name[NAME_BYTES];
    uint32_t rotary_heads;   /* > 0: q or k of so many heads whose rows the GGUF has in pairs (2i, 2i + 1), a checkpoint as halves */
    bool minus_one;          /* the GGUF holds 1 + weight */
} source;

static bool layer_name(const octe__arch *arch, const char *rest, unsigned long layer, char *name)
{
    const char *const dot = strrchr(rest, '.');
    const size_t n = dot != NULL ? (size_t)(dot - rest) : 0;
    if (n == strlen("ffn_norm") && strncmp(rest, "ffn_norm", n) == 0) {
        snprintf(name, NAME_BYTES, "model.layers.%lu.%s%s", layer, arch->post_norm ? "pre_feedforward_layernorm" : "post_attention_layernorm", dot);
        return true;
    }
    for (size_t i = 0; i < sizeof(layer_names) / sizeof(layer_names[0]); i++) {
        if (strlen(layer_names[i].gguf) == n && strncmp(layer_names[i].gguf, rest, n) == 0) {
            snprintf(name, NAME_BYTES, "model.layers.%lu.%s%s", layer, layer_names[i].hf, dot);
            return true;
        }
    }
    return false;
}

static bool describe(const octe_model *model, const struct ggml_tensor *t, source *s)
{
    const octe__hparams *const h = &model->hparams;
    const char *const name = ggml_get_name(t);
    *s = (source){ .tensor = t };
    if (strcmp(name, "token_embd.weight") == 0) {
        strcpy(s->name, "model.embed_tokens.weight");
    } else if (strcmp(name, "output_norm.weight") == 0) {
        strcpy(s->name, "model.norm.weight");
    } else if (strcmp(name, "output.weight") == 0) {
        strcpy(s->name, "lm_head.weight");
    } else {
        char *rest;
        if (strncmp(name, "blk.", 4) != 0) {
            return false;
        }
        const unsigned long layer = strtoul(name + 4, &rest, 10);
        if (*rest != '.' || !layer_name(h->arch, rest + 1, layer, s->name)) {
            return false;
        }
        if (!h->arch->rope_neox) {
            s->rotary_heads = strncmp(rest, ".attn_q.", 8) == 0 ? h->n_heads : strncmp(rest, ".attn_k.", 8) == 0 ? h->n_heads_kv : 0;
        }
    }
    s->minus_one = strncmp(h->arch->name, "gemma", 5) == 0 && strstr(name, "norm") != NULL;
    return true;
}

/* The GGUF's row of a checkpoint's row. For a vector (a bias) rows are its elements. */
static int64_t source_row(const source *s, uint32_t head_dim, int64_t row)
{
    if (s->rotary_heads == 0) {
        return row;
    }
    const int64_t head = row / head_dim, r = row % head_dim, half = head_dim / 2;
    return head * head_dim + 2 * (r % half) + r / half;
}

static void to_float(const struct ggml_tensor *t, int64_t row, float *out)
{
    const char *const data = (const char *)t->data + (size_t)row * t->nb[1];
    if (t->type == GGML_TYPE_F32) {
        memcpy(out, data, (size_t)t->ne[0] * sizeof(float));
    } else {
        ggml_get_type_traits(t->type)->to_float(data, out, t->ne[0]);
    }
}

static void encode(const float *x, int64_t n, uint32_t dtype, void *out)
{
    if (dtype == OCT_DTYPE_F32) {
        memcpy(out, x, (size_t)n * sizeof(*x));
    } else if (dtype == OCT_DTYPE_F16) {
        ggml_fp32_to_fp16_row(x, out, n);
    } else {
        ggml_fp32_to_bf16_row(x, out, n);
    }
}

static oct_status write_tensor(const source *s, uint32_t head_dim, uint32_t dtype, float *row, float *bent, void *bytes, FILE *file, const octe__metadata *m)
{
    const struct ggml_tensor *const t = s->tensor;
    const int64_t n = t->ne[0];
    const bool vector = ggml_n_dims(t) == 1;
    for (int64_t r = 0; r < t->ne[1]; r++) {
        to_float(t, vector ? 0 : source_row(s, head_dim, r), row);
        const float *x = row;
        if (s->minus_one || (vector && s->rotary_heads > 0)) {
            for (int64_t i = 0; i < n; i++) {
                bent[i] = row[vector ? source_row(s, head_dim, i) : i] - (s->minus_one ? 1.0f : 0.0f);
            }
            x = bent;
        }
        encode(x, n, dtype, bytes);
        if (fwrite(bytes, oct_dtype_size_bytes(dtype), (size_t)n, file) != (size_t)n) {
            return octe__report(m->error, OCT_IO_ERROR, m->where, "model.safetensors", "can't be written");
        }
    }
    return OCT_OK;
}

static char *header_of(const source *sources, uint64_t n, uint32_t dtype, uint64_t *total)
{
    static const char *const names[] = { [OCT_DTYPE_F32] = "F32", [OCT_DTYPE_F16] = "F16", [OCT_DTYPE_BF16] = "BF16" };
    json_t *const header = json_pack("{s:{s:s}}", "__metadata__", "format", "pt");
    bool good = header != NULL;
    uint64_t at = 0;
    for (uint64_t i = 0; i < n && good; i++) {
        const struct ggml_tensor *const t = sources[i].tensor;
        const uint64_t end = at + (uint64_t)ggml_nelements(t) * oct_dtype_size_bytes(dtype);
        json_t *const shape = ggml_n_dims(t) == 1 ? json_pack("[I]", (json_int_t)t->ne[0]) : json_pack("[I,I]", (json_int_t)t->ne[1], (json_int_t)t->ne[0]);
        json_t *const entry = json_pack("{s:s, s:o, s:[I,I]}", "dtype", names[dtype], "shape", shape, "data_offsets", (json_int_t)at, (json_int_t)end);
        good = entry != NULL && json_object_set_new(header, sources[i].name, entry) == 0;
        at = end;
    }
    *total = at;
    char *const text = good ? json_dumps(header, JSON_COMPACT) : NULL;
    json_decref(header);
    return text;
}

oct_status octe__hf_weights(const octe_model *model, const octe__metadata *m, const octe_export_hf_options *options, FILE *file, octe_export_hf_result *result)
{
    const octe__weights *const w = &model->weights;
    const uint64_t n = (uint64_t)gguf_get_n_tensors(m->gguf);
    source *const sources = calloc(n, sizeof(*sources));
    uint64_t widest = 0, i = 0, done = 0, total = 0;
    oct_status status = sources != NULL ? OCT_OK : OCT_OUT_OF_MEMORY;
    for (struct ggml_tensor *t = ggml_get_first_tensor(w->mapped_context); t != NULL && i < n && status == OCT_OK; t = ggml_get_next_tensor(w->mapped_context, t), i++) {
        widest = (uint64_t)t->ne[0] > widest ? (uint64_t)t->ne[0] : widest;
        if (!describe(model, t, &sources[i])) {
            status = octe__report(m->error, OCT_UNSUPPORTED, m->where, m->file, "tensor '%s' has no place in a checkpoint of %s", ggml_get_name(t), model->hparams.arch->model_type);
        }
    }
    char *const header = status == OCT_OK ? header_of(sources, n, options->dtype, &total) : NULL;
    float *const row = malloc((widest + 1) * sizeof(*row)), *const bent = malloc((widest + 1) * sizeof(*bent));
    void *const bytes = malloc((widest + 1) * sizeof(float));
    if (status == OCT_OK && (header == NULL || row == NULL || bent == NULL || bytes == NULL)) {
        status = OCT_OUT_OF_MEMORY;
    }
    if (status == OCT_OK) {
        /* Padded, so that the weights begin at a multiple of 8. */
        const uint64_t length = strlen(header), padded = (length + 7) / 8 * 8;
        unsigned char size[8];
        for (int b = 0; b < 8; b++) {
            size[b] = (unsigned char)(padded >> (8 * b));
        }
        if (fwrite(size, 1, 8, file) != 8 || fwrite(header, 1, length, file) != length || fwrite("       ", 1, padded - length, file) != padded - length) {
            status = octe__report(m->error, OCT_IO_ERROR, m->where, "model.safetensors", "can't be written");
        }
    }
    for (i = 0; i < n && status == OCT_OK; i++) {
        if (options->progress != NULL && !options->progress(options->user, done, total)) {
            status = octe__report(m->error, OCT_CANCELLED, m->where, m->file, "stopped");
        } else {
            status = write_tensor(&sources[i], model->hparams.head_dim, options->dtype, row, bent, bytes, file, m);
            done += (uint64_t)ggml_nelements(sources[i].tensor) * oct_dtype_size_bytes(options->dtype);
        }
    }
    if (status == OCT_OUT_OF_MEMORY) {
        (void)octe__report(m->error, status, m->where, m->file, "no memory for rows of %" PRIu64 " weights", widest);
    }
    *result = (octe_export_hf_result){ .n_tensors = n, .weight_bytes = total, .n_vocab = w->n_vocab };
    free(bytes);
    free(bent);
    free(row);
    free(header);
    free(sources);
    return status;
}
