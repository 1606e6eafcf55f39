/* inside_rig.c: see inside_rig.h. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "engine/tiny_model.h"
#include "inside_rig.h"

octe_model *llama, *gemma;
static int32_t tokens[N_TOKENS];
octe_scales scales[2];

static octe_model *make(const char *name, const tiny_model *m)
{
    octe_model *model;
    oct_error error = OCT_ERROR_INIT;
    tiny_model_write(m, tiny_path(name));
    if (octe_model_open(tiny_path(name), NULL, &model, &error) != OCT_OK) {
        fail_msg("%s", error.text);
    }
    return model;
}

int rig_set_up(void **state)
{
    (void)state;
    tiny_model m;
    assert_true(tiny_model_at(0, &m));
    m.n_layers = 6;
    m.head_dim = 32;
    llama = make("llama.gguf", &m);
    assert_true(tiny_model_at(5, &m));
    gemma = make("gemma.gguf", &m);
    uint32_t x = 99;
    for (int i = 0; i < N_TOKENS; i++) {
        x = x * 1664525u + 1013904223u;
        tokens[i] = (int32_t)((x >> 16) % TINY_VOCAB);
    }
    const octe_calibrate_options o = { .n_threads = 1 };
    assert_int_equal(octe_calibrate(llama, tokens, N_TOKENS, &o, &scales[0], NULL), OCT_OK);
    assert_int_equal(octe_calibrate(gemma, tokens, N_TOKENS, &o, &scales[1], NULL), OCT_OK);
    return 0;
}

int rig_tear_down(void **state)
{
    (void)state;
    octe_scales_free(&scales[0]);
    octe_scales_free(&scales[1]);
    octe_model_close(llama);
    octe_model_close(gemma);
    tiny_folder_remove();
    return 0;
}

eval_inside_wanted wanted_of(const octe_model *model, uint32_t index, const char *name, bool sensitivity)
{
    char k[48];
    eval_inside_wanted w = { .format = index, .sensitivity = sensitivity };
    snprintf(k, sizeof(k), "%s", name);
    char *slash = strchr(k, '/');
    if (slash != NULL) {
        *slash = '\0';
    }
    assert_int_equal(octe_kv_format_from_name(k, &w.kv.k, NULL), OCT_OK);
    assert_int_equal(octe_kv_format_from_name(slash != NULL ? slash + 1 : k, &w.kv.v, NULL), OCT_OK);
    w.kv.scales = octe_kv_config_is_static(&w.kv, 0) || octe_kv_config_is_static(&w.kv, 1) ? &scales[model == gemma] : NULL;
    return w;
}

eval_inside_options options_of(const octe_model *model)
{
    eval_inside_options o = { .model = model, .tokens = tokens, .n_tokens = N_TOKENS, .n_threads = 1 };
    o.base.k.dtype = o.base.v.dtype = OCT_DTYPE_F16;
    return o;
}

eval_inside *measure(const eval_inside_options *o, const eval_inside_wanted *wanted, uint32_t n)
{
    eval_inside *in;
    oct_error error = OCT_ERROR_INIT;
    if (eval_inside_measure(o, wanted, n, &in, &error) != OCT_OK) {
        fail_msg("%s", error.text);
    }
    return in;
}

void print_findings(const eval_inside *in)
{
    for (uint32_t i = 0; i < in->n_findings; i++) {
        print_message("format %u: %s\n", in->findings[i].format, in->findings[i].text);
    }
}

bool is_cost(const eval_inside *in, uint32_t i) { return strstr(in->findings[i].text, "alone costs") != NULL; }

uint32_t faults(const eval_inside *in)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < in->n_findings; i++) {
        n += !is_cost(in, i);
    }
    return n;
}

void named(const eval_inside *in, uint32_t layer, uint32_t part, int32_t head, const char *words)
{
    const char *const formats[] = { "base", "tried" };
    app_text text = { 0 };
    eval_inside_markdown(in, formats, &text);
    assert_false(text.failed);
    for (uint32_t i = 0; i < in->n_findings; i++) {
        const eval_finding *f = &in->findings[i];
        if (f->layer == layer && f->part == part && f->head == head && strstr(f->text, words) != NULL) {
            assert_non_null(strstr(text.bytes, f->text));
            app_text_free(&text);
            return;
        }
    }
    print_findings(in);
    fail_msg("no finding of %s of layer %u says '%s'", eval_part_name(part), layer, words);
}

eval_inside *plant(octe_model *model, const char *format, opener *open)
{
    eval_inside_options o = options_of(model);
    o.open = open;
    const eval_inside_wanted wanted[2] = { wanted_of(model, 0, "f16", false), wanted_of(model, 1, format, true) };
    return measure(&o, wanted, 2);
}
