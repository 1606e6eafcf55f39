/* Every architecture on small random models against libllama: prefill, decode, batches; windows and RoPE that are wrong must show. The
 * cache is f32 on both sides, so that only the order of additions differs. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/compare_logits.h"
#include "engine/engine.h"
#include "engine/reference.h"
#include "engine/tiny_model.h"

enum { N_PROMPT = 75, N_TOKENS = 100, MAX_ROWS = 40, CONTEXT = 160 };
#define BOUND 1e-6

static void fill_tokens(int32_t *tokens, uint32_t n, uint32_t seed)
{
    uint32_t x = seed * 2654435761u + 1;
    for (uint32_t i = 0; i < n; i++) {
        x = x * 1664525u + 1013904223u;
        tokens[i] = (int32_t)((x >> 16) % TINY_VOCAB);
    }
}

static octe_model *open_model(const tiny_model *m)
{
    octe_model *model;
    oct_error error = OCT_ERROR_INIT;
    tiny_model_write(m, tiny_path("tiny.gguf"));
    if (octe_model_open(tiny_path("tiny.gguf"), NULL, &model, &error) != OCT_OK) {
        fail_msg("%s", error.text);
    }
    return model;
}

static octe_engine *open_engine(const octe_model *model, const octe_engine_test *test, const char *kv, uint32_t page_size, uint32_t n_threads)
{
    octe_engine *e;
    octe_engine_options o;
    oct_error error = OCT_ERROR_INIT;
    octe_engine_options_init(&o);
    assert_int_equal(octe_kv_config_from_name(kv, &o.kv, NULL), OCT_OK);
    o.kv.page_size = page_size;
    o.n_threads = n_threads;
    o.max_context_tokens = CONTEXT;
    o.max_step_rows = MAX_ROWS;
    o.max_step_logits = MAX_ROWS;
    o.test = test != NULL ? *test : (octe_engine_test){0};
    if (octe_engine_open(model, &o, &e, &error) != OCT_OK) {
        fail_msg("%s", error.text);
    }
    return e;
}

/* Logits of every token but the prompt's first chunks: [N_TOKENS - N_PROMPT + 1][V], by chunks, then one at a time. */
static void run_engine(octe_engine *e, const int32_t *tokens, float *out)
{
    oct_error error = OCT_ERROR_INIT;
    const float *logits;
    if (octe_engine_prefill(e, 0, tokens, N_PROMPT, &logits, &error) != OCT_OK) {
        fail_msg("%s", error.text);
    }
    memcpy(out, logits, TINY_VOCAB * sizeof(*out));
    for (uint32_t i = N_PROMPT; i < N_TOKENS; i++) {
        const octe_part part = {0, 1, tokens + i, 1};
        assert_int_equal(octe_engine_step(e, &part, 1, &logits, &error), OCT_OK);
        memcpy(out + (size_t)(i - N_PROMPT + 1) * TINY_VOCAB, logits, TINY_VOCAB * sizeof(*out));
    }
}

static void run_reference(const int32_t *tokens, float *out)
{
    octe_reference *r;
    oct_error error = OCT_ERROR_INIT;
    const float *logits;
    const octe_reference_options o = {.n_threads = 1, .max_context_tokens = CONTEXT, .max_step_rows = MAX_ROWS, .cache = OCTE_REFERENCE_F32, .flash = OCTE_REFERENCE_FLASH_OFF};
    if (octe_reference_open(tiny_path("tiny.gguf"), &o, &r, &error) != OCT_OK || octe_reference_prefill(r, 0, tokens, N_PROMPT, &logits, &error) != OCT_OK) {
        fail_msg("%s", error.text);
    }
    memcpy(out, logits, TINY_VOCAB * sizeof(*out));
    for (uint32_t i = N_PROMPT; i < N_TOKENS; i++) {
        const octe_part part = {0, 1, tokens + i, 1};
        assert_int_equal(octe_reference_step(r, &part, 1, &logits, &error), OCT_OK);
        memcpy(out + (size_t)(i - N_PROMPT + 1) * TINY_VOCAB, logits, TINY_VOCAB * sizeof(*out));
    }
    octe_reference_close(r);
}

static logits_match match(const float *a, const float *b)
{
    logits_match m = {0};
    for (uint32_t i = 0; i < N_TOKENS - N_PROMPT + 1; i++) {
        logits_match_add(&m, a + (size_t)i * TINY_VOCAB, b + (size_t)i * TINY_VOCAB, TINY_VOCAB);
    }
    return m;
}

static void equals_libllama(void **state)
{
    (void)state;
    static float ours[(N_TOKENS - N_PROMPT + 1) * TINY_VOCAB], theirs[(N_TOKENS - N_PROMPT + 1) * TINY_VOCAB];
    int32_t tokens[N_TOKENS];
    tiny_model tm;
    for (uint32_t i = 0; tiny_model_at(i, &tm); i++) {
        static const uint32_t page_sizes[] = {16, 1, 32, 5};
        octe_model *model = open_model(&tm);
        fill_tokens(tokens, N_TOKENS, i + 1);
        run_reference(tokens, theirs);
        octe_engine *e = open_engine(model, NULL, "f32", page_sizes[i % 4], 1);
        run_engine(e, tokens, ours);
        const logits_match m = match(ours, theirs);
        print_message("%s: %u rows, 1 - cos %.1e, same top %u\n", tiny_model_name(i), m.n, m.worst, m.n_same_top);
        assert_true(m.worst <= BOUND);
        assert_int_equal(m.n_same_top, m.n);
        octe_engine_close(e);
        octe_model_close(model);
    }
}

static void wrong_windows_and_bases_show(void **state)
{
    (void)state;
    static float right[(N_TOKENS - N_PROMPT + 1) * TINY_VOCAB], wrong[(N_TOKENS - N_PROMPT + 1) * TINY_VOCAB];
    static const octe_engine_test faults[] = {{.window_tokens = 23}, {.window_tokens = 25}, {.rope_base_window = 50000.0f}};
    int32_t tokens[N_TOKENS];
    tiny_model tm = {0};
    for (uint32_t i = 0; tiny_model_at(i, &tm) && tm.window == 0; i++) {
    }
    assert_int_equal(tm.window, 24);
    octe_model *model = open_model(&tm);
    fill_tokens(tokens, N_TOKENS, 6);
    run_reference(tokens, right);
    for (size_t f = 0; f < sizeof(faults) / sizeof(faults[0]); f++) {
        octe_engine *e = open_engine(model, &faults[f], "f32", 16, 1);
        run_engine(e, tokens, wrong);
        const logits_match m = match(wrong, right);
        print_message("window %u, base %g: 1 - cos %.1e\n", faults[f].window_tokens, (double)faults[f].rope_base_window, m.worst);
        assert_true(m.worst > 100 * BOUND);
        octe_engine_close(e);
    }
    octe_model_close(model);
}

/* One thread or two: the logits stay. (Two threads of ggml spin at every barrier, which a busy machine punishes: one test is enough.) */
static void threads_change_little(void **state)
{
    (void)state;
    static float one[(N_TOKENS - N_PROMPT + 1) * TINY_VOCAB], two[(N_TOKENS - N_PROMPT + 1) * TINY_VOCAB];
    int32_t tokens[N_TOKENS];
    tiny_model tm;
    assert_true(tiny_model_at(1, &tm));
    octe_model *model = open_model(&tm);
    fill_tokens(tokens, N_TOKENS, 9);
    octe_engine *e = open_engine(model, NULL, "f16", 16, 2);
    run_engine(e, tokens, two);
    octe_engine_close(e);
    octe_engine_options o;
    octe_engine_options_init(&o);
    o.n_threads = 1;
    o.max_context_tokens = CONTEXT;
    o.max_step_rows = MAX_ROWS;
    o.deterministic = true;
    assert_int_equal(octe_engine_open(model, &o, &e, NULL), OCT_OK);
    run_engine(e, tokens, one);
    octe_engine_close(e);
    const logits_match m = match(one, two);
    assert_true(m.worst <= BOUND);
    octe_model_close(model);
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
        cmocka_unit_test(equals_libllama),
        cmocka_unit_test(wrong_windows_and_bases_show),
        cmocka_unit_test(threads_change_little),
    };
    return cmocka_run_group_tests(tests, NULL, done);
}
