/* Opening models: what a file lacks or has wrong is a message that names the file and the key or tensor, never an abort. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>
#include <gguf.h>

#include "engine/kv_config.h"
#include "engine/model.h"
#include "engine/tiny_model.h"

static tiny_model base(const char *architecture)
{
    tiny_model m;
    for (uint32_t i = 0; tiny_model_at(i, &m); i++) {
        if (strcmp(m.architecture, architecture) == 0) {
            return m;
        }
    }
    fail_msg("no tiny model of %s", architecture);
    return m;
}

static void refuse(const tiny_model *m, oct_status status, const char *says)
{
    oct_error error = OCT_ERROR_INIT;
    octe_model *model = (octe_model *)&error;
    const char *path = tiny_path("refused.gguf");
    tiny_model_write(m, path);
    const oct_status s = octe_model_open(path, NULL, &model, &error);
    if (s != status || error.status != (uint32_t)status || strstr(error.text, says) == NULL || strstr(error.text, "refused.gguf: ") == NULL) {
        fail_msg("status %d ('%s'); expected %d with '%s'", (int)s, error.text, (int)status, says);
    }
    assert_null(model);
}

static void opens_every_architecture(void **state)
{
    (void)state;
    tiny_model m;
    for (uint32_t i = 0; tiny_model_at(i, &m); i++) {
        oct_error error = OCT_ERROR_INIT;
        octe_model *model;
        const char *path = tiny_path("right.gguf");
        tiny_model_write(&m, path);
        if (octe_model_open(path, NULL, &model, &error) != OCT_OK) {
            fail_msg("%s: %s", tiny_model_name(i), error.text);
        }
        const octe_model_info *info = octe_model_info_get(model);
        assert_string_equal(info->architecture, m.architecture);
        assert_string_equal(info->name, "tiny");
        assert_string_equal(info->path, path);
        assert_int_equal(info->n_layers, m.n_layers);
        assert_int_equal(info->n_vocab, TINY_VOCAB);
        assert_int_equal(info->head_dim, m.head_dim);
        assert_int_equal(info->n_heads, m.n_heads);
        assert_int_equal(info->n_heads_kv, m.n_heads_kv);
        assert_int_equal(info->window_tokens, m.window);
        /* Gemma's pattern where the file has none: the last of each six sees everything. */
        for (uint32_t il = 0; il < m.n_layers; il++) {
            assert_int_equal(octe_model_layer_has_window(model, il), m.window > 0 && il % 6 != 5);
        }
        assert_int_equal(info->n_layers_window, m.window > 0 ? m.n_layers - m.n_layers / 6 : 0);
        assert_true(info->rope_base == 50000.0f);
        assert_true(info->rope_base_window == (m.window > 0 ? 10000.0f : 50000.0f));
        octe_model_close(model);
    }
    assert_non_null(octe_architecture_name(3));
    assert_null(octe_architecture_name(4));
}

static void bad_arguments(void **state)
{
    (void)state;
    octe_model *model;
    oct_error error = OCT_ERROR_INIT;
    assert_int_equal(octe_model_open(NULL, NULL, &model, &error), OCT_INVALID_ARGUMENT);
    assert_int_equal(octe_model_open("/no/such.gguf", NULL, &model, &error), OCT_IO_ERROR);
    assert_non_null(strstr(error.text, "/no/such.gguf"));
    assert_int_equal(octe_model_open("/no/such.gguf", NULL, &model, NULL), OCT_IO_ERROR);
    octe_model_close(NULL);
}

/* ---- keys ------------------------------------------------------------------------------------------------------ */

static void remove_key(struct gguf_context *gguf, const void *key) { assert_true(gguf_remove_key(gguf, key) >= 0); }

static void misses_keys(void **state)
{
    (void)state;
    static const char *const keys[] = {"general.architecture",     "llama.block_count",          "llama.context_length",
                                       "llama.embedding_length",   "llama.feed_forward_length",  "llama.attention.head_count",
                                       "llama.attention.layer_norm_rms_epsilon"};
    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++) {
        tiny_model m = base("llama");
        m.edit = remove_key;
        m.user = keys[i];
        refuse(&m, OCT_BAD_DATA, keys[i]);
    }
}

typedef struct change {
    const char *key, *says;
    oct_status status;
    int kind;            /* 0 u32, 1 f32, 2 string, 3 bool, 4 i32, 5 array of f32, 6 array of u32, 7 u64 */
    double number;
    const char *text;
} change;

static void apply(struct gguf_context *gguf, const void *user)
{
    const change *c = user;
    float f[3];
    uint32_t u[3];
    (void)gguf_remove_key(gguf, c->key);
    switch (c->kind) {
    case 0:
        gguf_set_val_u32(gguf, c->key, (uint32_t)c->number);
        break;
    case 1:
        gguf_set_val_f32(gguf, c->key, (float)c->number);
        break;
    case 2:
        gguf_set_val_str(gguf, c->key, c->text);
        break;
    case 3:
        gguf_set_val_bool(gguf, c->key, c->number != 0);
        break;
    case 4:
        gguf_set_val_i32(gguf, c->key, (int32_t)c->number);
        break;
    case 5:
        f[0] = f[1] = f[2] = (float)c->number;
        gguf_set_arr_data(gguf, c->key, GGUF_TYPE_FLOAT32, f, 3);
        break;
    case 6:
        u[0] = u[1] = (uint32_t)c->number;
        u[2] = u[0] + 1;
        gguf_set_arr_data(gguf, c->key, GGUF_TYPE_UINT32, u, 3);
        break;
    default:
        gguf_set_val_u64(gguf, c->key, (uint64_t)c->number);
        break;
    }
}

static void wrong_values(void **state)
{
    (void)state;
    static const change changes[] = {
        {"general.architecture", "general.architecture", OCT_UNSUPPORTED, 2, 0, "mamba"},
        {"general.architecture", "general.architecture", OCT_BAD_DATA, 0, 7, NULL},
        {"general.name", "general.name", OCT_BAD_DATA, 0, 7, NULL},
        {"llama.block_count", "llama.block_count", OCT_BAD_DATA, 0, 0, NULL},
        {"llama.block_count", "llama.block_count", OCT_BAD_DATA, 0, 4294967295.0, NULL},
        {"llama.block_count", "llama.block_count", OCT_BAD_DATA, 1, 3, NULL},
        {"llama.block_count", "llama.block_count", OCT_BAD_DATA, 2, 0, "3"},
        {"llama.block_count", "llama.block_count", OCT_BAD_DATA, 4, -1, NULL},
        {"llama.block_count", "llama.block_count", OCT_BAD_DATA, 7, 18446744073709549568.0, NULL},
        {"llama.block_count", "blk.3.attn_norm.weight", OCT_BAD_DATA, 0, 4, NULL},
        {"llama.block_count", "blk.2.", OCT_UNSUPPORTED, 0, 2, NULL},
        {"llama.embedding_length", "token_embd.weight", OCT_BAD_DATA, 0, 64, NULL},
        {"llama.embedding_length", "llama.embedding_length", OCT_BAD_DATA, 3, 1, NULL},
        {"llama.feed_forward_length", "ffn_gate", OCT_BAD_DATA, 0, 159, NULL},
        {"llama.feed_forward_length", "llama.feed_forward_length", OCT_UNSUPPORTED, 6, 160, NULL},
        {"llama.feed_forward_length", "llama.feed_forward_length", OCT_BAD_DATA, 5, 160, NULL},
        {"llama.context_length", "llama.context_length", OCT_BAD_DATA, 0, 0, NULL},
        {"llama.attention.head_count", "llama.attention.head_count", OCT_BAD_DATA, 0, 0, NULL},
        {"llama.attention.head_count", "head_count_kv", OCT_BAD_DATA, 0, 5, NULL},
        {"llama.attention.head_count", "llama.attention.head_count", OCT_BAD_DATA, 1, 6, NULL},
        {"llama.attention.head_count_kv", "head_count_kv", OCT_BAD_DATA, 0, 4, NULL},
        {"llama.attention.head_count_kv", "head_count_kv", OCT_BAD_DATA, 0, 0, NULL},
        {"llama.attention.key_length", "value_length", OCT_UNSUPPORTED, 0, 17, NULL},
        {"llama.attention.value_length", "value_length", OCT_UNSUPPORTED, 0, 32, NULL},
        {"llama.attention.layer_norm_rms_epsilon", "rms_epsilon", OCT_BAD_DATA, 1, -1, NULL},
        {"llama.attention.layer_norm_rms_epsilon", "rms_epsilon", OCT_BAD_DATA, 0, 1, NULL},
        {"llama.attention.causal", "causal", OCT_UNSUPPORTED, 3, 0, NULL},
        {"llama.rope.dimension_count", "dimension_count", OCT_UNSUPPORTED, 0, 8, NULL},
        {"llama.rope.freq_base", "freq_base", OCT_BAD_DATA, 1, 0, NULL},
        {"llama.rope.freq_base", "freq_base", OCT_BAD_DATA, 2, 0, "50000"},
        {"llama.rope.scaling.type", "rope.scaling.type", OCT_UNSUPPORTED, 2, 0, "yarn"},
        {"llama.rope.scaling.type", "rope.scaling.type", OCT_UNSUPPORTED, 2, 0, "longrope"},
        {"llama.rope.scaling.type", "rope.scaling.type", OCT_BAD_DATA, 0, 1, NULL},
        {"llama.rope.scaling.factor", "rope.scaling.factor", OCT_BAD_DATA, 1, -2, NULL},
        {"llama.expert_count", "expert_count", OCT_UNSUPPORTED, 0, 8, NULL},
        {"split.count", "split.count", OCT_UNSUPPORTED, 0, 2, NULL},
    };
    for (size_t i = 0; i < sizeof(changes) / sizeof(changes[0]); i++) {
        tiny_model m = base("llama");
        m.edit = apply;
        m.user = &changes[i];
        refuse(&m, changes[i].status, changes[i].says);
    }
    static const change gemma[] = {
        {"gemma3.attention.sliding_window", "sliding_window", OCT_BAD_DATA, 1, 24, NULL},
        {"gemma3.attention.sliding_window_pattern", "sliding_window_pattern", OCT_BAD_DATA, 6, 1, NULL},   /* three flags for seven layers */
        {"gemma3.attention.sliding_window_pattern", "sliding_window_pattern", OCT_BAD_DATA, 2, 0, "6"},
        {"gemma3.rope.freq_base_swa", "freq_base_swa", OCT_BAD_DATA, 1, -5, NULL},
        {"gemma3.final_logit_softcapping", "final_logit_softcapping", OCT_BAD_DATA, 0, 30, NULL},
    };
    for (size_t i = 0; i < sizeof(gemma) / sizeof(gemma[0]); i++) {
        tiny_model m = base("gemma3");
        m.edit = apply;
        m.user = &gemma[i];
        refuse(&m, gemma[i].status, gemma[i].says);
    }
}

static void other_forms_of_keys(void **state)
{
    (void)state;
    static const change changes[] = {
        {"llama.block_count", "", OCT_OK, 4, 3, NULL},
        {"llama.block_count", "", OCT_OK, 7, 3, NULL},
        {"llama.rope.scaling.type", "", OCT_OK, 2, 0, "none"},
    };
    for (size_t i = 0; i < sizeof(changes) / sizeof(changes[0]); i++) {
        tiny_model m = base("llama");
        oct_error error = OCT_ERROR_INIT;
        octe_model *model;
        m.edit = apply;
        m.user = &changes[i];
        tiny_model_write(&m, tiny_path("other.gguf"));
        if (octe_model_open(tiny_path("other.gguf"), NULL, &model, &error) != OCT_OK) {
            fail_msg("%zu: %s", i, error.text);
        }
        octe_model_close(model);
    }
}

/* ---- tensors ------------------------------------------------------------------------------------------------------ */

static void wrong_tensors(void **state)
{
    (void)state;
    static const struct {
        const char *architecture, *tensor;
    } list[] = {
        {"llama", "token_embd.weight"},       {"llama", "output_norm.weight"},        {"llama", "blk.0.attn_norm.weight"},
        {"llama", "blk.1.attn_q.weight"},     {"llama", "blk.1.attn_k.weight"},       {"llama", "blk.2.attn_v.weight"},
        {"llama", "blk.0.attn_output.weight"}, {"llama", "blk.0.ffn_norm.weight"},    {"llama", "blk.0.ffn_gate.weight"},
        {"llama", "blk.0.ffn_up.weight"},     {"llama", "blk.0.ffn_down.weight"},     {"qwen3", "blk.0.attn_q_norm.weight"},
        {"qwen3", "blk.2.attn_k_norm.weight"}, {"gemma3", "blk.0.post_attention_norm.weight"}, {"gemma3", "blk.6.post_ffw_norm.weight"},
    };
    for (size_t i = 0; i < sizeof(list) / sizeof(list[0]); i++) {
        tiny_model m = base(list[i].architecture);
        m.leave_out = list[i].tensor;
        refuse(&m, OCT_BAD_DATA, list[i].tensor);
        m.leave_out = NULL;
        m.reshape = list[i].tensor;
        /* More rows of the embedding are more tokens: the head is then the one that doesn't fit. */
        refuse(&m, OCT_BAD_DATA, strcmp(list[i].tensor, "token_embd.weight") == 0 ? "output.weight" : list[i].tensor);
    }
    tiny_model m = base("llama");
    m.reshape = "output.weight";
    refuse(&m, OCT_BAD_DATA, "output.weight");
    m = base("llama");
    m.extra = "blk.0.attn_output.bias";
    refuse(&m, OCT_UNSUPPORTED, "blk.0.attn_output.bias");
    m.extra = "surprise.weight";
    refuse(&m, OCT_UNSUPPORTED, "surprise.weight");
    m.extra = NULL;
    m.halve = "blk.1.ffn_norm.weight";
    refuse(&m, OCT_UNSUPPORTED, "blk.1.ffn_norm.weight");
    m = base("qwen2");
    m.reshape = "blk.0.attn_q.bias";
    refuse(&m, OCT_BAD_DATA, "blk.0.attn_q.bias");
    m = base("qwen2");
    m.extra = "rope_freqs.weight";
    refuse(&m, OCT_UNSUPPORTED, "rope_freqs.weight");
}

/* ---- what a token costs ---------------------------------------------------------------------------------------------- */

static void capacity(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        uint64_t one_layer;   /* bytes of a token in one layer: 2 sides x 32 dims, 1 head */
    } formats[] = {
        {"f32", 256}, {"auto", 128}, {"bf16", 128}, {"fp8", 64}, {"fp8_e5m2", 64}, {"fp8_per_token_head", 68}, {"int8_per_token_head", 68}, {"int8_rotated", 68},
        {"int8_v4", 34 + 18},
    };
    oct_error error = OCT_ERROR_INIT;
    octe_model *model;
    const tiny_model m = base("gemma3");
    tiny_model_write(&m, tiny_path("capacity.gguf"));
    assert_int_equal(octe_model_open(tiny_path("capacity.gguf"), NULL, &model, &error), OCT_OK);
    for (size_t i = 0; i < sizeof(formats) / sizeof(formats[0]); i++) {
        octe_kv_config config;
        octe_kv_capacity c;
        const int64_t one = (int64_t)formats[i].one_layer, gib = (int64_t)1 << 30;
        assert_int_equal(octe_kv_config_from_name(formats[i].name, &config, &error), OCT_OK);
        assert_int_equal(octe_kv_capacity_get(model, &config, &c, &error), OCT_OK);
        assert_int_equal(c.bytes_per_token, 7 * one);
        assert_int_equal(c.bytes_per_token_full, one);
        assert_int_equal(c.bytes_per_token_window, 6 * one);
        assert_int_equal(c.tokens_per_gib, gib / (7 * one * 16) * 16);
        /* A window of 24 lies in at most 3 pages of 16 in each of six layers. */
        assert_int_equal(c.tokens_per_gib_window, (gib - 3 * 6 * one * 16) / (one * 16) * 16);
    }
    octe_model_close(model);
}

static void format_names(void **state)
{
    (void)state;
    static const char *const good[] = {"f32", "f16", "bf16+rot", "e4m3fn", "e4m3fnuz:layer", "e5m2:head+rot", "e4m3fn:tensor", "e4m3fn:channel", "e4m3fn:token",
                                       "e4m3fn:token32", "i8:token", "i8:token+rot", "i8:channel"};
    static const char *const bad[] = {"", "f8", "e4m3:", "e4m3:rows", "f16:layer", "i8:layer", "i8:head", "i8+rotated", "i8+", "e4m3fn :layer", "E4M3", "e4m3fn:layer:layer",
                                      "averyveryverylongname"};
    oct_kv_format f;
    oct_error error = OCT_ERROR_INIT;
    char text[64];
    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
        assert_int_equal(octe_kv_format_from_name(good[i], &f, &error), OCT_OK);
        octe_kv_format_name(&f, text, sizeof(text));
        assert_string_equal(text, good[i]);
    }
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        assert_int_equal(octe_kv_format_from_name(bad[i], &f, &error), OCT_INVALID_ARGUMENT);
        assert_non_null(strstr(error.text, bad[i]));
    }
    assert_int_equal(octe_kv_format_from_name("e4m3", &f, &error), OCT_OK);
    assert_int_equal(f.dtype, OCT_DTYPE_E4M3FN);
    assert_int_equal(octe_kv_format_from_name("i8", &f, &error), OCT_OK);
    assert_int_equal(f.scale_mode, OCT_SCALE_TOKEN_HEAD);
    octe_kv_config config;
    for (uint32_t i = 0; octe_kv_config_name(i) != NULL; i++) {
        assert_int_equal(octe_kv_config_from_name(octe_kv_config_name(i), &config, &error), OCT_OK);
        assert_false(octe_kv_format_is_static(&config.k) || octe_kv_format_is_static(&config.v));
    }
    assert_int_equal(octe_kv_config_from_name("int8", &config, &error), OCT_INVALID_ARGUMENT);
    assert_non_null(strstr(error.text, "int8_rotated"));
    assert_int_equal(octe_kv_config_from_name(NULL, &config, &error), OCT_INVALID_ARGUMENT);
}

static int done(void **state)
{
    (void)state;
    tiny_folder_remove();
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(opens_every_architecture), cmocka_unit_test(bad_arguments), cmocka_unit_test(misses_keys),
        cmocka_unit_test(wrong_values),             cmocka_unit_test(other_forms_of_keys), cmocka_unit_test(wrong_tensors),
        cmocka_unit_test(capacity),                 cmocka_unit_test(format_names),
    };
    return cmocka_run_group_tests(tests, NULL, done);
}
