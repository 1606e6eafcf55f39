/* tiny_model.c: see tiny_model.h. */
#include "engine/tiny_model.h"

#include <dirent.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>
#include <ggml.h>
#include <gguf.h>

enum { MAX_TENSORS = 128 };

static const struct {
    const char *name;
    tiny_model model;
} models[] = {
    {"llama", {.architecture = "llama", .n_layers = 3, .n_embd = 96, .n_heads = 6, .n_heads_kv = 2, .head_dim = 16, .n_ff = 160, .n_ctx = 512, .seed = 1}},
    {"llama with rope factors",
     {.architecture = "llama", .n_layers = 2, .n_embd = 128, .n_heads = 4, .n_heads_kv = 1, .head_dim = 32, .n_ff = 96, .n_ctx = 512, .tied = true, .rope_factors = true, .seed = 2}},
    {"llama with linear scaling and biases",
     {.architecture = "llama", .n_layers = 2, .n_embd = 64, .n_heads = 4, .n_heads_kv = 4, .head_dim = 16, .n_ff = 96, .n_ctx = 512, .bias = true, .rope_scale = 4.0f, .seed = 3}},
    {"qwen2", {.architecture = "qwen2", .n_layers = 3, .n_embd = 112, .n_heads = 7, .n_heads_kv = 1, .head_dim = 16, .n_ff = 128, .n_ctx = 512, .bias = true, .tied = true, .seed = 4}},
    {"qwen3", {.architecture = "qwen3", .n_layers = 3, .n_embd = 64, .n_heads = 4, .n_heads_kv = 2, .head_dim = 32, .n_ff = 128, .n_ctx = 512, .seed = 5}},
    {"gemma3",
     {.architecture = "gemma3", .n_layers = 7, .n_embd = 64, .n_heads = 4, .n_heads_kv = 1, .head_dim = 32, .n_ff = 96, .n_ctx = 512, .tied = true, .window = 24, .seed = 6}},
    {"gemma3 with scaling and soft cap, no window",
     {.architecture = "gemma3", .n_layers = 2, .n_embd = 64, .n_heads = 2, .n_heads_kv = 2, .head_dim = 32, .n_ff = 96, .n_ctx = 512, .tied = true, .rope_scale = 8.0f, .final_softcap = 3.0f, .seed = 7}},
};

enum { N_MODELS = sizeof(models) / sizeof(models[0]) };

bool tiny_model_at(uint32_t index, tiny_model *m)
{
    if (index < N_MODELS) {
        *m = models[index].model;
    }
    return index < N_MODELS;
}

const char *tiny_model_name(uint32_t index) { return models[index].name; }

/* ---- weights -------------------------------------------------------------------------------------------------- */

typedef struct writer {
    const tiny_model *m;
    struct ggml_context *context;
    struct gguf_context *gguf;
    uint64_t random;
} writer;

static float uniform(writer *w)
{
    w->random = w->random * 6364136223846793005u + 1442695040888963407u;
    return (float)((double)(w->random >> 11) / 9007199254740992.0);
}

/* Centred, of standard deviation `spread`: the sum of four is near enough to normal. */
static float around(writer *w, float mean, float spread)
{
    const float sum = uniform(w) + uniform(w) + uniform(w) + uniform(w) - 2.0f;
    return mean + spread * sum * sqrtf(3.0f);
}

static void add(writer *w, const char *name, uint32_t ne0, uint32_t ne1, float mean, float spread)
{
    if (w->m->leave_out != NULL && strcmp(w->m->leave_out, name) == 0) {
        return;
    }
    const uint32_t more = w->m->reshape != NULL && strcmp(w->m->reshape, name) == 0;
    const bool half = w->m->halve != NULL && strcmp(w->m->halve, name) == 0;
    ne0 += ne1 == 0 ? more : 0;
    ne1 += ne1 == 0 ? 0 : more;
    const enum ggml_type type = half ? GGML_TYPE_F16 : GGML_TYPE_F32;
    struct ggml_tensor *t = ne1 == 0 ? ggml_new_tensor_1d(w->context, type, ne0) : ggml_new_tensor_2d(w->context, type, ne0, ne1);
    assert_non_null(t);
    ggml_set_name(t, name);
    const int64_t n = ggml_nelements(t);
    for (int64_t i = 0; i < n; i++) {
        const float x = around(w, mean, spread);
        if (half) {
            ((ggml_fp16_t *)t->data)[i] = ggml_fp32_to_fp16(x);
        } else {
            ((float *)t->data)[i] = x;
        }
    }
    gguf_add_tensor(w->gguf, t);
}

static void add_layer(writer *w, uint32_t il)
{
    const tiny_model *m = w->m;
    const bool gemma = strcmp(m->architecture, "gemma3") == 0, norms = gemma || strcmp(m->architecture, "qwen3") == 0;
    const uint32_t q = m->head_dim * m->n_heads, kv = m->head_dim * m->n_heads_kv;
    const struct {
        const char *name;
        uint32_t ne0, ne1;
        bool when;
    } list[] = {
        {"attn_norm.weight", m->n_embd, 0, true},       {"attn_q.weight", m->n_embd, q, true},
        {"attn_k.weight", m->n_embd, kv, true},         {"attn_v.weight", m->n_embd, kv, true},
        {"attn_q.bias", q, 0, m->bias},                 {"attn_k.bias", kv, 0, m->bias},
        {"attn_v.bias", kv, 0, m->bias},                {"attn_q_norm.weight", m->head_dim, 0, norms},
        {"attn_k_norm.weight", m->head_dim, 0, norms},  {"attn_output.weight", q, m->n_embd, true},
        {"post_attention_norm.weight", m->n_embd, 0, gemma}, {"ffn_norm.weight", m->n_embd, 0, true},
        {"ffn_gate.weight", m->n_embd, m->n_ff, true},  {"ffn_up.weight", m->n_embd, m->n_ff, true},
        {"ffn_down.weight", m->n_ff, m->n_embd, true},  {"post_ffw_norm.weight", m->n_embd, 0, gemma},
    };
    for (size_t i = 0; i < sizeof(list) / sizeof(list[0]); i++) {
        char name[64];
        snprintf(name, sizeof(name), "blk.%u.%s", il, list[i].name);
        if (!list[i].when) {
            continue;
        }
        if (list[i].ne1 > 0) {
            /* Twice what keeps the variance: attention then picks keys instead of averaging them. */
            add(w, name, list[i].ne0, list[i].ne1, 0.0f, 2.0f / sqrtf((float)list[i].ne0));
        } else {
            add(w, name, list[i].ne0, 0, strstr(name, "bias") != NULL ? 0.0f : 1.0f, 0.3f);
        }
    }
}

/* ---- keys -------------------------------------------------------------------------------------------------------- */

static void set_u32(const writer *w, const char *key, uint32_t value)
{
    char name[96];
    snprintf(name, sizeof(name), "%s.%s", w->m->architecture, key);
    gguf_set_val_u32(w->gguf, name, value);
}

static void set_f32(const writer *w, const char *key, float value)
{
    char name[96];
    snprintf(name, sizeof(name), "%s.%s", w->m->architecture, key);
    gguf_set_val_f32(w->gguf, name, value);
}

static void set_keys(const writer *w)
{
    const tiny_model *m = w->m;
    gguf_set_val_str(w->gguf, "general.architecture", m->architecture);
    gguf_set_val_str(w->gguf, "general.name", "tiny");
    set_u32(w, "block_count", m->n_layers);
    set_u32(w, "context_length", m->n_ctx);
    set_u32(w, "embedding_length", m->n_embd);
    set_u32(w, "feed_forward_length", m->n_ff);
    set_u32(w, "attention.head_count", m->n_heads);
    set_u32(w, "attention.head_count_kv", m->n_heads_kv);
    set_u32(w, "attention.key_length", m->head_dim);
    set_u32(w, "attention.value_length", m->head_dim);
    set_f32(w, "attention.layer_norm_rms_epsilon", 1e-6f);
    set_f32(w, "rope.freq_base", 50000.0f);
    if (m->rope_scale > 0.0f) {
        char name[96];
        snprintf(name, sizeof(name), "%s.rope.scaling.type", m->architecture);
        gguf_set_val_str(w->gguf, name, "linear");
        set_f32(w, "rope.scaling.factor", m->rope_scale);
    }
    if (m->window > 0) {
        set_u32(w, "attention.sliding_window", m->window);
    }
    if (m->final_softcap > 0.0f) {
        set_f32(w, "final_logit_softcapping", m->final_softcap);
    }
}

/* <unk> <s> </s>, 256 bytes, 41 pieces. */
static void set_vocabulary(const writer *w)
{
    static const char *const words[TINY_VOCAB - TINY_WORDS] = {
        "\xE2\x96\x81", "a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l", "m", "n", "o", "p", "q", "r", "s", "t", "u", "v", "w", "x", "y", "z",
        "\xE2\x96\x81t", "he", "\xE2\x96\x81the", "in", "er", "an", "re", "on", "at", "en", "ing", "nd", "\xE4\xB8\x96", "and"};
    const char *tokens[TINY_VOCAB];
    float scores[TINY_VOCAB];
    int32_t types[TINY_VOCAB];
    char bytes[256][8];
    for (int i = 0; i < TINY_VOCAB; i++) {
        scores[i] = 0.0f;
        types[i] = i == 0 ? 2 : i < TINY_BYTES ? 3 : i < TINY_WORDS ? 6 : 1;
        if (i >= TINY_WORDS) {
            tokens[i] = words[i - TINY_WORDS];
            scores[i] = (float)(TINY_WORDS - i) - 1.0f;
        } else if (i >= TINY_BYTES) {
            snprintf(bytes[i - TINY_BYTES], sizeof(bytes[0]), "<0x%02X>", (unsigned)(i - TINY_BYTES) & 0xffu);
            tokens[i] = bytes[i - TINY_BYTES];
        } else {
            tokens[i] = i == 0 ? "<unk>" : i == TINY_BOS ? "<s>" : "</s>";
        }
    }
    gguf_set_val_str(w->gguf, "tokenizer.ggml.model", "llama");
    gguf_set_val_str(w->gguf, "tokenizer.ggml.pre", "default");
    gguf_set_arr_str(w->gguf, "tokenizer.ggml.tokens", tokens, TINY_VOCAB);
    gguf_set_arr_data(w->gguf, "tokenizer.ggml.scores", GGUF_TYPE_FLOAT32, scores, TINY_VOCAB);
    gguf_set_arr_data(w->gguf, "tokenizer.ggml.token_type", GGUF_TYPE_INT32, types, TINY_VOCAB);
    gguf_set_val_u32(w->gguf, "tokenizer.ggml.bos_token_id", TINY_BOS);
    gguf_set_val_u32(w->gguf, "tokenizer.ggml.eos_token_id", TINY_EOS);
    gguf_set_val_u32(w->gguf, "tokenizer.ggml.unknown_token_id", 0);
}

void tiny_model_write(const tiny_model *m, const char *path)
{
    const struct ggml_init_params params = {(size_t)64 << 20, NULL, false};
    writer w = {.m = m, .context = ggml_init(params), .gguf = gguf_init_empty(), .random = m->seed};
    assert_non_null(w.context);
    assert_non_null(w.gguf);
    set_keys(&w);
    set_vocabulary(&w);
    add(&w, "token_embd.weight", m->n_embd, TINY_VOCAB, 0.0f, strcmp(m->architecture, "gemma3") == 0 ? 0.15f : 1.0f);
    add(&w, "output_norm.weight", m->n_embd, 0, 1.0f, 0.3f);
    if (!m->tied) {
        add(&w, "output.weight", m->n_embd, TINY_VOCAB, 0.0f, 2.0f / sqrtf((float)m->n_embd));
    }
    if (m->rope_factors) {
        add(&w, "rope_freqs.weight", m->head_dim / 2, 0, 4.0f, 1.0f);
    }
    for (uint32_t il = 0; il < m->n_layers; il++) {
        add_layer(&w, il);
    }
    if (m->extra != NULL) {
        add(&w, m->extra, 32, 0, 0.0f, 1.0f);
    }
    if (m->edit != NULL) {
        m->edit(w.gguf, m->user);
    }
    assert_true(gguf_write_to_file(w.gguf, path, false));
    gguf_free(w.gguf);
    ggml_free(w.context);
}

/* ---- a folder -------------------------------------------------------------------------------------------------------- */

static char folder[64];

const char *tiny_path(const char *name)
{
    static char path[128];
    if (folder[0] == '\0') {
        snprintf(folder, sizeof(folder), "/tmp/octavo_engine_XXXXXX");
        assert_non_null(mkdtemp(folder));
    }
    snprintf(path, sizeof(path), "%s/%s", folder, name);
    return path;
}

void tiny_folder_remove(void)
{
    DIR *dir = folder[0] != '\0' ? opendir(folder) : NULL;
    if (dir == NULL) {
        return;
    }
    for (struct dirent *entry = readdir(dir); entry != NULL; entry = readdir(dir)) {
        char path[512];
        snprintf(path, sizeof(path), "%s/%s", folder, entry->d_name);
        (void)unlink(path);
    }
    closedir(dir);
    (void)rmdir(folder);
    folder[0] = '\0';
}
