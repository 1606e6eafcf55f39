/* config.c: config.json, generation_config.json, tokenizer_config.json. See parts.h. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/export/parts.h"
#include "octavo/kv.h"

int64_t octe__hf_token_id(const octe__metadata *m, const char *key)
{
    uint32_t id = 0;
    return octe__metadata_has(m, key) && octe__metadata_u32(m, key, OCTE__OPTIONAL, 0, INT32_MAX, &id) == OCT_OK ? (int64_t)id : -1;
}

const char *octe__hf_token(const octe__metadata *m, int64_t id)
{
    const int64_t key = gguf_find_key(m->gguf, "tokenizer.ggml.tokens");
    if (key < 0 || gguf_get_kv_type(m->gguf, key) != GGUF_TYPE_ARRAY || gguf_get_arr_type(m->gguf, key) != GGUF_TYPE_STRING) {
        return NULL;
    }
    return id >= 0 && (uint64_t)id < gguf_get_arr_n(m->gguf, key) ? gguf_get_arr_str(m->gguf, key, (size_t)id) : NULL;
}

oct_status octe__hf_config_check(const octe_model *model, const octe__metadata *m)
{
    const octe__hparams *const h = &model->hparams;
    if (model->weights.rope_factors != NULL) {
        return octe__metadata_fail(m, OCT_UNSUPPORTED, "rope_freqs.weight", "scales RoPE by factors; a config.json gives the rule that made them, which the file no longer has");
    }
    if (h->rope_attn_factor != 1.0f) {
        return octe__metadata_fail(m, OCT_UNSUPPORTED, ".rope.scaling.attn_factor", "is %g; only 1 can be exported", (double)h->rope_attn_factor);
    }
    if (h->n_rot != h->head_dim) {
        return octe__metadata_fail(m, OCT_UNSUPPORTED, ".rope.dimension_count", "is %u, the head dim %u; must be equal to be exported", h->n_rot, h->head_dim);
    }
    return OCT_OK;
}

static int set(json_t *to, const char *key, json_t *value) { return json_object_set_new(to, key, value); }

/* A float as the shortest decimal that reads back as it: 1e-06, not 9.99999997e-07. */
static json_t *real(float x)
{
    char text[32];
    for (int digits = 6; digits <= 9; digits++) {
        snprintf(text, sizeof(text), "%.*g", digits, (double)x);
        if (strtof(text, NULL) == x) {
            break;
        }
    }
    return json_real(strtod(text, NULL));
}

static json_t *rope(float base, float scale)
{
    json_t *const o = json_pack("{s:s, s:o}", "rope_type", scale == 1.0f ? "default" : "linear", "rope_theta", real(base));
    if (o != NULL && scale != 1.0f) {
        (void)set(o, "factor", real(1.0f / scale));
    }
    return o;
}

static void set_token(json_t *to, const char *key, const octe__metadata *m, const char *gguf_key)
{
    const int64_t id = octe__hf_token_id(m, gguf_key);
    (void)set(to, key, id >= 0 ? json_integer(id) : json_null());
}

static void set_tokens(json_t *to, const octe__metadata *m)
{
    set_token(to, "bos_token_id", m, "tokenizer.ggml.bos_token_id");
    set_token(to, "eos_token_id", m, "tokenizer.ggml.eos_token_id");
    set_token(to, "pad_token_id", m, "tokenizer.ggml.padding_token_id");
}

static void set_gemma(json_t *o, const octe__hparams *h)
{
    json_t *const types = json_array();
    for (uint32_t i = 0; i < h->n_layers && types != NULL; i++) {
        (void)json_array_append_new(types, json_string(h->layer_window[i] ? "sliding_attention" : "full_attention"));
    }
    (void)set(o, "layer_types", types);
    (void)set(o, "hidden_activation", json_string("gelu_pytorch_tanh"));
    /* Scores times scalar ** -0.5: a whole number, but for what a float's root loses. */
    const double scalar = 1.0 / ((double)h->attn_scale * (double)h->attn_scale), near = round(scalar);
    (void)set(o, "query_pre_attn_scalar", fabs(scalar - near) <= 1e-5 * near ? json_integer((json_int_t)near) : json_real(scalar));
    (void)set(o, "sliding_window", json_integer(h->window_tokens > 0 ? h->window_tokens : h->n_ctx_train));
    (void)set(o, "final_logit_softcapping", h->final_softcap > 0.0f ? real(h->final_softcap) : json_null());
    (void)set(o, "attn_logit_softcapping", json_null());
    (void)set(o, "rope_local_base_freq", real(h->rope_base_window));
    (void)set(o, "rope_parameters", json_pack("{s:o, s:o}", "full_attention", rope(h->rope_base, h->rope_scale), "sliding_attention", rope(h->rope_base_window, 1.0f)));
}

json_t *octe__hf_config(const octe_model *model, const octe__metadata *m, uint32_t dtype)
{
    const octe__hparams *const h = &model->hparams;
    static const struct { const char *name, *class; } classes[] = {
        { "llama", "LlamaForCausalLM" }, { "qwen2", "Qwen2ForCausalLM" }, { "qwen3", "Qwen3ForCausalLM" }, { "gemma3", "Gemma3ForCausalLM" },
    };
    const char *class = NULL;
    for (size_t i = 0; i < sizeof(classes) / sizeof(classes[0]); i++) {
        class = strcmp(classes[i].name, h->arch->name) == 0 ? classes[i].class : class;
    }
    json_t *const o = class != NULL ? json_pack("{s:[s], s:s}", "architectures", class, "model_type", h->arch->model_type) : NULL;
    if (o == NULL) {
        return NULL;
    }
    const bool own_head = gguf_find_tensor(m->gguf, "output.weight") >= 0;
    (void)set(o, "dtype", json_string(dtype == OCT_DTYPE_F32 ? "float32" : dtype == OCT_DTYPE_F16 ? "float16" : "bfloat16"));
    (void)set(o, "vocab_size", json_integer(model->weights.n_vocab));
    (void)set(o, "hidden_size", json_integer(h->n_embd));
    (void)set(o, "intermediate_size", json_integer(h->n_ff));
    (void)set(o, "num_hidden_layers", json_integer(h->n_layers));
    (void)set(o, "num_attention_heads", json_integer(h->n_heads));
    (void)set(o, "num_key_value_heads", json_integer(h->n_heads_kv));
    (void)set(o, "head_dim", json_integer(h->head_dim));
    (void)set(o, "max_position_embeddings", json_integer(h->n_ctx_train));
    (void)set(o, "rms_norm_eps", real(h->norm_epsilon));
    (void)set(o, "tie_word_embeddings", json_boolean(!own_head));
    (void)set(o, "attention_bias", json_boolean(model->weights.layers[0].q_bias != NULL));
    (void)set(o, "attention_dropout", json_real(0.0));
    (void)set(o, "rope_theta", real(h->rope_base));
    if (h->arch->window_pattern > 0) {
        set_gemma(o, h);
    } else {
        (void)set(o, "hidden_act", json_string("silu"));
        (void)set(o, "rope_parameters", rope(h->rope_base, h->rope_scale));
    }
    set_tokens(o, m);
    return o;
}

json_t *octe__hf_generation_config(const octe__metadata *m)
{
    json_t *const o = json_object();
    if (o != NULL) {
        set_tokens(o, m);
    }
    return o;
}

json_t *octe__hf_tokenizer_config(const octe__metadata *m)
{
    static const struct { const char *key, *gguf; } tokens[] = {
        { "bos_token", "tokenizer.ggml.bos_token_id" }, { "eos_token", "tokenizer.ggml.eos_token_id" },
        { "unk_token", "tokenizer.ggml.unknown_token_id" }, { "pad_token", "tokenizer.ggml.padding_token_id" },
    };
    json_t *const o = json_pack("{s:s, s:b}", "tokenizer_class", "PreTrainedTokenizerFast", "clean_up_tokenization_spaces", 0);
    for (size_t i = 0; i < sizeof(tokens) / sizeof(tokens[0]) && o != NULL; i++) {
        const char *const text = octe__hf_token(m, octe__hf_token_id(m, tokens[i].gguf));
        if (text != NULL) {
            (void)set(o, tokens[i].key, json_string(text));
        }
    }
    const char *chat = NULL;
    if (o != NULL && octe__metadata_string(m, "tokenizer.chat_template", OCTE__OPTIONAL, &chat) == OCT_OK && chat != NULL) {
        (void)set(o, "chat_template", json_string(chat));
    }
    return o;
}
