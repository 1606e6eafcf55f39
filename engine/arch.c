/* arch.c: see arch.h. */
#include "engine/arch.h"

#include <float.h>
#include <math.h>
#include <string.h>

#include "engine/model.h"
#include "engine/report.h"

/* A new dense decoder of this family is a row here; what no row can say is a field and its use in graph.c. */
static const octe__arch archs[] = {
    {.name = "llama", .model_type = "llama", .rope_factors = true, .qkv_bias = true},
    {.name = "qwen2", .model_type = "qwen2", .rope_neox = true, .qkv_bias = true},
    {.name = "qwen3", .model_type = "qwen3", .rope_neox = true, .qk_norm = true, .qkv_bias = true},
    {.name = "gemma3",
     .model_type = "gemma3_text",
     .rope_neox = true,
     .qk_norm = true,
     .post_norm = true,
     .gelu = true,
     .embd_sqrt = true,
     .window_pattern = 6,
     .rope_base_window = 10000.0f},
};

enum { N_ARCHS = sizeof(archs) / sizeof(archs[0]) };

/* Far above any model, low enough that no product of two of them overflows 64 bits. */
enum { MAX_EMBD = 1 << 20, MAX_HEADS = 1 << 10, MAX_CTX = 1 << 30 };
/* Multiples of 8 from 16 on: what liboctavo attends over. */
enum { MIN_HEAD_DIM = 16, MAX_HEAD_DIM = 512, HEAD_DIM_STEP = 8 };

const octe__arch *octe__arch_at(uint32_t index) { return index < N_ARCHS ? &archs[index] : NULL; }

const char *octe_architecture_name(uint32_t index) { return index < N_ARCHS ? archs[index].name : NULL; }

static oct_status read_arch(octe__metadata *m, octe__hparams *h)
{
    const oct_status status = octe__metadata_string(m, "general.architecture", OCTE__REQUIRED, &m->architecture);
    if (status != OCT_OK) {
        return status;
    }
    for (uint32_t i = 0; i < N_ARCHS; i++) {
        if (strcmp(archs[i].name, m->architecture) == 0) {
            h->arch = &archs[i];
            return OCT_OK;
        }
    }
    char quoted[OCTE__QUOTE_SIZE], known[96] = "";
    for (uint32_t i = 0; i < N_ARCHS; i++) {
        strncat(known, i > 0 ? ", " : "", sizeof(known) - strlen(known) - 1);
        strncat(known, archs[i].name, sizeof(known) - strlen(known) - 1);
    }
    return octe__metadata_fail(m, OCT_UNSUPPORTED, "general.architecture", "is '%s'; built in are %s",
                               octe__quote(quoted, m->architecture, strlen(m->architecture)), known);
}

static oct_status read_sizes(const octe__metadata *m, octe__hparams *h)
{
    oct_status s = octe__metadata_u32(m, ".block_count", OCTE__REQUIRED, 1, OCTE__MAX_LAYERS, &h->n_layers);
    if (s == OCT_OK) {
        s = octe__metadata_u32(m, ".embedding_length", OCTE__REQUIRED, 1, MAX_EMBD, &h->n_embd);
    }
    if (s == OCT_OK) {
        s = octe__metadata_u32(m, ".context_length", OCTE__REQUIRED, 1, MAX_CTX, &h->n_ctx_train);
    }
    if (s == OCT_OK) {
        s = octe__metadata_u32_uniform(m, ".feed_forward_length", OCTE__REQUIRED, h->n_layers, 1, MAX_EMBD, &h->n_ff);
    }
    if (s == OCT_OK) {
        s = octe__metadata_u32_uniform(m, ".attention.head_count", OCTE__REQUIRED, h->n_layers, 1, MAX_HEADS, &h->n_heads);
    }
    h->n_heads_kv = h->n_heads;
    if (s == OCT_OK) {
        s = octe__metadata_u32_uniform(m, ".attention.head_count_kv", OCTE__OPTIONAL, h->n_layers, 1, MAX_HEADS, &h->n_heads_kv);
    }
    if (s == OCT_OK && h->n_heads % h->n_heads_kv != 0) {
        s = octe__metadata_fail(m, OCT_BAD_DATA, ".attention.head_count_kv", "is %u; must divide the %u query heads", h->n_heads_kv, h->n_heads);
    }
    if (s == OCT_OK) {
        s = octe__metadata_f32(m, ".attention.layer_norm_rms_epsilon", OCTE__REQUIRED, 0.0f, 1.0f, &h->norm_epsilon);
    }
    return s;
}

static oct_status read_head_dim(const octe__metadata *m, octe__hparams *h)
{
    const bool given = octe__metadata_has(m, ".attention.key_length");
    if (!given && h->n_embd % h->n_heads != 0) {
        return octe__metadata_fail(m, OCT_BAD_DATA, ".attention.head_count", "is %u; must divide the embedding length %u, or .attention.key_length be given",
                                   h->n_heads, h->n_embd);
    }
    h->head_dim = given ? 0 : h->n_embd / h->n_heads;
    oct_status s = octe__metadata_u32(m, ".attention.key_length", OCTE__OPTIONAL, 1, MAX_EMBD, &h->head_dim);
    uint32_t value_dim = given ? h->head_dim : h->n_embd / h->n_heads;
    if (s == OCT_OK) {
        s = octe__metadata_u32(m, ".attention.value_length", OCTE__OPTIONAL, 1, MAX_EMBD, &value_dim);
    }
    if (s == OCT_OK && value_dim != h->head_dim) {
        s = octe__metadata_fail(m, OCT_UNSUPPORTED, ".attention.value_length", "is %u, the heads of K have %u; different dims are not built for %s", value_dim,
                                h->head_dim, m->architecture);
    }
    if (s == OCT_OK && (h->head_dim < MIN_HEAD_DIM || h->head_dim > MAX_HEAD_DIM || h->head_dim % HEAD_DIM_STEP != 0)) {
        s = octe__metadata_fail(m, OCT_UNSUPPORTED, ".attention.key_length", "gives heads of %u dims; must be a multiple of %d from %d to %d", h->head_dim,
                                HEAD_DIM_STEP, MIN_HEAD_DIM, MAX_HEAD_DIM);
    }
    h->n_rot = h->head_dim;
    if (s == OCT_OK) {
        s = octe__metadata_u32(m, ".rope.dimension_count", OCTE__OPTIONAL, 2, h->head_dim, &h->n_rot);
    }
    if (s == OCT_OK && h->n_rot != h->head_dim) {
        s = octe__metadata_fail(m, OCT_UNSUPPORTED, ".rope.dimension_count", "is %u of %u dims; partial rotation is not built for %s", h->n_rot, h->head_dim,
                                m->architecture);
    }
    return s;
}

static oct_status read_rope(const octe__metadata *m, octe__hparams *h)
{
    const char *type = "linear";
    float factor = 0.0f;
    h->rope_base = 10000.0f;
    h->rope_scale = 1.0f;
    h->rope_attn_factor = 1.0f;
    oct_status s = octe__metadata_f32(m, ".rope.freq_base", OCTE__OPTIONAL, FLT_MIN, FLT_MAX, &h->rope_base);
    if (s == OCT_OK) {
        s = octe__metadata_string(m, ".rope.scaling.type", OCTE__OPTIONAL, &type);
    }
    if (s == OCT_OK && strcmp(type, "linear") != 0 && strcmp(type, "none") != 0) {
        char quoted[OCTE__QUOTE_SIZE];
        s = octe__metadata_fail(m, OCT_UNSUPPORTED, ".rope.scaling.type", "is '%s'; built are 'none', 'linear' and llama 3's rope_freqs.weight",
                                octe__quote(quoted, type, strlen(type)));
    }
    if (s == OCT_OK) {
        /* The older name first: the newer one, if given, wins. */
        s = octe__metadata_f32(m, ".rope.scale_linear", OCTE__OPTIONAL, 0.0f, 1e6f, &factor);
    }
    if (s == OCT_OK) {
        s = octe__metadata_f32(m, ".rope.scaling.factor", OCTE__OPTIONAL, 0.0f, 1e6f, &factor);
    }
    if (s == OCT_OK && strcmp(type, "none") != 0 && factor != 0.0f) {
        h->rope_scale = 1.0f / factor;
        if (!isfinite(h->rope_scale)) {
            s = octe__metadata_fail(m, OCT_BAD_DATA, ".rope.scaling.factor", "is %g; too small", (double)factor);
        }
    }
    if (s == OCT_OK) {
        s = octe__metadata_f32(m, ".rope.scaling.attn_factor", OCTE__OPTIONAL, FLT_MIN, 1e6f, &h->rope_attn_factor);
    }
    return s;
}

static oct_status read_window(const octe__metadata *m, octe__hparams *h)
{
    h->rope_base_window = h->rope_base;
    if (h->arch->window_pattern == 0) {
        return OCT_OK;
    }
    oct_status s = octe__metadata_u32(m, ".attention.sliding_window", OCTE__OPTIONAL, 0, MAX_CTX, &h->window_tokens);
    if (s != OCT_OK || h->window_tokens == 0) {
        return s;
    }
    bool listed;
    s = octe__metadata_flags(m, ".attention.sliding_window_pattern", h->n_layers, h->layer_window, &listed);
    if (s == OCT_OK && !listed) {
        uint32_t group = h->arch->window_pattern;
        s = octe__metadata_u32(m, ".attention.sliding_window_pattern", OCTE__OPTIONAL, 0, OCTE__MAX_LAYERS, &group);
        for (uint32_t i = 0; i < h->n_layers; i++) {
            h->layer_window[i] = group == 0 || i % group < group - 1;
        }
    }
    for (uint32_t i = 0; i < h->n_layers; i++) {
        h->n_layers_window += h->layer_window[i];
    }
    if (s == OCT_OK && h->n_layers_window > 0) {
        h->rope_base_window = h->arch->rope_base_window;
        s = octe__metadata_f32(m, ".rope.freq_base_swa", OCTE__OPTIONAL, FLT_MIN, FLT_MAX, &h->rope_base_window);
    }
    if (h->n_layers_window == 0) {
        h->window_tokens = 0;
    }
    return s;
}

/* What would change the numbers and is not built must be refused, not ignored. */
static oct_status refuse_unbuilt(const octe__metadata *m)
{
    uint32_t experts = 0, splits = 0;
    bool causal = true;
    oct_status s = octe__metadata_u32(m, ".expert_count", OCTE__OPTIONAL, 0, UINT32_MAX, &experts);
    if (s == OCT_OK && experts > 0) {
        s = octe__metadata_fail(m, OCT_UNSUPPORTED, ".expert_count", "is %u; mixtures of experts are not built", experts);
    }
    if (s == OCT_OK) {
        s = octe__metadata_bool(m, ".attention.causal", OCTE__OPTIONAL, &causal);
    }
    if (s == OCT_OK && !causal) {
        s = octe__metadata_fail(m, OCT_UNSUPPORTED, ".attention.causal", "is false; encoders are not built");
    }
    if (s == OCT_OK) {
        s = octe__metadata_u32(m, "split.count", OCTE__OPTIONAL, 0, UINT32_MAX, &splits);
    }
    if (s == OCT_OK && splits > 1) {
        s = octe__metadata_fail(m, OCT_UNSUPPORTED, "split.count", "is %u; join the parts into one file first", splits);
    }
    return s;
}

oct_status octe__hparams_read(octe__metadata *m, octe__hparams *h)
{
    *h = (octe__hparams){0};
    oct_status s = read_arch(m, h);
    if (s == OCT_OK) {
        s = refuse_unbuilt(m);
    }
    if (s == OCT_OK) {
        s = read_sizes(m, h);
    }
    if (s == OCT_OK) {
        s = read_head_dim(m, h);
    }
    if (s == OCT_OK) {
        s = read_rope(m, h);
    }
    if (s == OCT_OK) {
        s = read_window(m, h);
    }
    if (s == OCT_OK && h->arch->window_pattern > 0) {
        s = octe__metadata_f32(m, ".final_logit_softcapping", OCTE__OPTIONAL, 0.0f, 1e6f, &h->final_softcap);
    }
    if (s != OCT_OK) {
        return s;
    }
    /* Gemma 3 27B (62 layers) scales by the embedding's share of a head, all others by the head itself; no key says so. */
    const bool by_embedding = strcmp(h->arch->name, "gemma3") == 0 && h->n_layers == 62;
    h->attn_scale = 1.0f / sqrtf((float)(by_embedding ? h->n_embd / h->n_heads : h->head_dim));
    h->embd_scale = h->arch->embd_sqrt ? sqrtf((float)h->n_embd) : 1.0f;
    return OCT_OK;
}
