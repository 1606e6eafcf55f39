/* test_depth.c: how a measurement of speed comes to its depth: filling, cutting, and what is left when it can't be. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "apps/compare/runner.h"
#include "engine/tiny_model.h"

enum { CONTEXT = 256, ROWS = 64, N_TOKENS = 96 };

static int32_t tokens[N_TOKENS];

typedef struct fixture {
    const char *path;
    octe_model *model;
    compare_format formats[4];
} fixture;

static void open_model(fixture *f, const char *architecture, uint32_t window)
{
    tiny_model tiny = { 0 };
    for (uint32_t i = 0; tiny_model_at(i, &tiny) && (strcmp(tiny.architecture, architecture) != 0 || tiny.rope_factors); i++) {
    }
    assert_string_equal(tiny.architecture, architecture);
    tiny.n_ctx = CONTEXT;
    tiny.window = window;
    f->path = tiny_path("depth.gguf");
    tiny_model_write(&tiny, f->path);
    uint32_t n;
    oct_error error = OCT_ERROR_INIT;
    assert_int_equal(octe_model_open(f->path, NULL, &f->model, &error), OCT_OK);
    assert_int_equal(compare_formats_parse("f16,i8+rot/e4m3,e5m2,llama:f16", f->formats, &n, &error), OCT_OK);
    for (int i = 0; i < N_TOKENS; i++) {
        tokens[i] = TINY_WORDS + (i * 7) % (TINY_VOCAB - TINY_WORDS);
    }
}

static compare_runner open_runner(const fixture *f, const compare_format *format)
{
    compare_runner runner;
    oct_error error = OCT_ERROR_INIT;
    const compare_runner_options options = {
        .model = f->model, .path = f->path, .n_threads = 1, .context_tokens = CONTEXT, .step_rows = ROWS, .step_logits = 1, .page_size = 16,
    };
    assert_int_equal(compare_runner_open(&runner, format, &options, &error), OCT_OK);
    return runner;
}

/* Calls until there; the number of calls. */
static int go_to(compare_runner *runner, uint32_t depth, uint32_t after)
{
    int n = 0;
    for (bool there = false; !there; n++) {
        assert_true(n < 100);
        assert_int_equal(compare_runner_approach(runner, depth, after, tokens, N_TOKENS, ROWS, &there, NULL), OCT_OK);
    }
    return n;
}

/* The logits after one more step, copied. */
static float *logits_of_step(compare_runner *runner, uint32_t n, uint32_t n_vocab)
{
    const float *logits = NULL;
    assert_int_equal(compare_runner_step(runner, tokens, n, 1, &logits, NULL), OCT_OK);
    float *const copy = malloc(n_vocab * sizeof(*copy));
    assert_non_null(copy);
    memcpy(copy, logits, n_vocab * sizeof(*copy));
    for (uint32_t i = 0; i < n_vocab; i++) {
        assert_true(isfinite(copy[i]));
    }
    return copy;
}

/* Filled to a depth at once, or deeper and cut back: the same pages, the same bits. */
static void check_filling(const char *architecture, uint32_t window)
{
    fixture f;
    open_model(&f, architecture, window);
    const uint32_t n_vocab = octe_model_info_get(f.model)->n_vocab;
    for (int i = 0; i < 3; i++) {
        compare_runner straight = open_runner(&f, &f.formats[i]), detour = open_runner(&f, &f.formats[i]);
        assert_int_equal(go_to(&straight, 40, 8), 1);
        assert_int_equal(go_to(&detour, 200, 8), 1);
        assert_int_equal(compare_runner_length(&detour), 200);
        (void)go_to(&detour, 40, 8);
        assert_int_equal(compare_runner_length(&straight), 40);
        assert_int_equal(compare_runner_length(&detour), 40);
        float *const a = logits_of_step(&straight, 8, n_vocab), *const b = logits_of_step(&detour, 8, n_vocab);
        assert_memory_equal(a, b, n_vocab * sizeof(*a));
        free(a);
        free(b);
        /* More than the context: refused, and nothing changed. */
        oct_error error = OCT_ERROR_INIT;
        assert_int_equal(octe_engine_fill(straight.engine, 0, CONTEXT, &error), OCT_INVALID_ARGUMENT);
        assert_int_equal(octe_engine_fill(straight.engine, 1, 1, &error), OCT_INVALID_ARGUMENT);
        assert_int_equal(compare_runner_length(&straight), 48);
        assert_int_equal(octe_engine_fill(straight.engine, 0, CONTEXT - 48, &error), OCT_OK);
        assert_int_equal(compare_runner_length(&straight), CONTEXT);
        /* Every page comes back. */
        octe_engine_stats stats;
        assert_int_equal(compare_runner_empty(&straight, &error), OCT_OK);
        octe_engine_stats_get(straight.engine, &stats);
        assert_int_equal(stats.pages_full_free, stats.pages_full);
        assert_int_equal(stats.pages_window_free, stats.pages_window);
        compare_runner_close(&straight);
        compare_runner_close(&detour);
    }
    octe_model_close(f.model);
}

static void test_filling(void **unused)
{
    (void)unused;
    check_filling("llama", 0);
}

static void test_filling_with_windows(void **unused)
{
    (void)unused;
    check_filling("gemma3", 48);
}

/* What was filled is what was written: values between -2 and 2, and not all one. */
static void test_filled_values(void **unused)
{
    (void)unused;
    fixture f;
    open_model(&f, "llama", 0);
    compare_runner runner = open_runner(&f, &f.formats[0]);
    (void)go_to(&runner, 100, 8);
    const octe_model_info *const info = octe_model_info_get(f.model);
    for (uint32_t layer = 0; layer < info->n_layers; layer++) {
        for (uint32_t position = 0; position < 100; position++) {
            oct_kv_layer view = { .struct_size = sizeof(view) };
            int32_t slot;
            assert_int_equal(octe_engine_stored(runner.engine, layer, 0, position, &view, &slot), OCT_OK);
            const uint16_t *const k = (const uint16_t *)view.k + slot / 16 * view.k_page_stride + slot % 16 * view.k_token_stride;
            uint16_t some = 0;
            for (uint32_t i = 0; i < info->n_heads_kv * info->head_dim; i++) {
                assert_true((k[i] & 0x7fff) <= 0x4000);   /* f16 of 2 */
                some |= k[i] ^ k[0];
            }
            assert_true(some != 0);
        }
    }
    compare_runner_close(&runner);
    octe_model_close(f.model);
}

/* llama.cpp's sequence, cut and prefilled again, says the same. */
static void test_cutting_the_reference(void **unused)
{
    (void)unused;
    fixture f;
    open_model(&f, "llama", 0);
    const uint32_t n_vocab = octe_model_info_get(f.model)->n_vocab;
    compare_runner runner = open_runner(&f, &f.formats[3]);
    assert_int_equal(go_to(&runner, 100, 8), 3);   /* 64, then 32 to the end of the tokens, then 4 */
    float *const first = logits_of_step(&runner, 8, n_vocab);
    assert_int_equal(compare_runner_length(&runner), 108);
    assert_int_equal(go_to(&runner, 100, 8), 1);
    assert_int_equal(compare_runner_length(&runner), 100);
    float *const again = logits_of_step(&runner, 8, n_vocab);
    for (uint32_t i = 0; i < n_vocab; i++) {
        assert_true(fabsf(first[i] - again[i]) < 1e-4f);
    }
    assert_int_equal(octe_reference_truncate(runner.reference, 0, 109, NULL), OCT_INVALID_ARGUMENT);
    assert_int_equal(octe_reference_truncate(runner.reference, 1, 0, NULL), OCT_INVALID_ARGUMENT);
    free(first);
    free(again);
    compare_runner_close(&runner);
    octe_model_close(f.model);
}

/* With window layers it can't be cut: it stays deeper while there is room, and begins again when there is none. */
static void test_the_reference_with_windows(void **unused)
{
    (void)unused;
    fixture f;
    open_model(&f, "gemma3", 48);
    compare_runner runner = open_runner(&f, &f.formats[3]);
    const float *logits;
    (void)go_to(&runner, 100, 50);
    assert_int_equal(octe_reference_truncate(runner.reference, 0, 50, NULL), OCT_UNSUPPORTED);
    assert_int_equal(compare_runner_step(&runner, tokens, 50, 1, &logits, NULL), OCT_OK);
    assert_int_equal(go_to(&runner, 100, 50), 1);
    assert_int_equal(compare_runner_length(&runner), 150);
    assert_int_equal(compare_runner_step(&runner, tokens, 50, 1, &logits, NULL), OCT_OK);
    assert_int_equal(compare_runner_step(&runner, tokens, 50, 1, &logits, NULL), OCT_OK);
    assert_true(go_to(&runner, 100, 50) > 1);
    assert_int_equal(compare_runner_length(&runner), 100);
    compare_runner_close(&runner);
    octe_model_close(f.model);
}

static int clean_up(void **unused)
{
    (void)unused;
    tiny_folder_remove();
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_filling),
        cmocka_unit_test(test_filling_with_windows),
        cmocka_unit_test(test_filled_values),
        cmocka_unit_test(test_cutting_the_reference),
        cmocka_unit_test(test_the_reference_with_windows),
    };
    return cmocka_run_group_tests(tests, NULL, clean_up);
}
