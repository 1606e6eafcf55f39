/* What an engine refuses and how it sizes its pools: options, steps that exceed a limit, failures inside the graph, and that none of them
 * changes a sequence; then counts, plans and forced variants. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/small_engine.h"

/* ---- limits and errors --------------------------------------------------------------------------------------------------- */

static void refuse_step(octe_engine *e, const octe_part *parts, uint32_t n, oct_status status, const char *says)
{
    const float *logits = (const float *)&status;
    oct_error error = OCT_ERROR_INIT;
    uint32_t lengths[8];
    octe_engine_stats before, after;
    octe_engine_stats_get(e, &before);
    for (uint32_t s = 0; s < 8; s++) {
        lengths[s] = octe_engine_length(e, s);
    }
    const oct_status got = octe_engine_step(e, parts, n, &logits, &error);
    if (got != status || strstr(error.text, says) == NULL) {
        fail_msg("%d '%s'; expected %d and '%s'", (int)got, error.text, (int)status, says);
    }
    assert_null(logits);
    octe_engine_stats_get(e, &after);
    for (uint32_t s = 0; s < 8; s++) {
        assert_int_equal(octe_engine_length(e, s), lengths[s]);
    }
    assert_int_equal(after.pages_full_free, before.pages_full_free);
    assert_int_equal(after.pages_window_free, before.pages_window_free);
}

static void bad_steps(void **state)
{
    (void)state;
    octe_engine_options o = options("f16");
    o.max_step_logits = 10;
    octe_engine *e = open_engine(LLAMA, &o);
    int32_t *t = some_tokens(ROWS + 1, 1);
    int32_t wrong[2] = {5, V}, negative[1] = {-1};
    octe_part p[3] = {{0, 4, t, 1}, {1, 4, t, 1}, {0, 4, t, 1}};
    refuse_step(e, NULL, 1, OCT_INVALID_ARGUMENT, "parts");
    refuse_step(e, p, 0, OCT_INVALID_ARGUMENT, "parts");
    refuse_step(e, p, 3, OCT_INVALID_ARGUMENT, "part 2: sequence is 0");
    refuse_step(e, &(octe_part){6, 1, t, 1}, 1, OCT_INVALID_ARGUMENT, "sequence is 6");
    refuse_step(e, &(octe_part){0, 0, t, 0}, 1, OCT_INVALID_ARGUMENT, "0 tokens");
    refuse_step(e, &(octe_part){0, 1, NULL, 0}, 1, OCT_INVALID_ARGUMENT, "NULL");
    refuse_step(e, &(octe_part){0, 2, t, 3}, 1, OCT_INVALID_ARGUMENT, "logits of 3");
    refuse_step(e, &(octe_part){0, 2, wrong, 1}, 1, OCT_INVALID_ARGUMENT, "token 1 is 300");
    refuse_step(e, &(octe_part){0, 1, negative, 1}, 1, OCT_INVALID_ARGUMENT, "token 0 is -1");
    refuse_step(e, &(octe_part){0, ROWS + 1, t, 1}, 1, OCT_INVALID_ARGUMENT, "max_step_rows");
    refuse_step(e, &(octe_part){0, 11, t, 11}, 1, OCT_INVALID_ARGUMENT, "max_step_logits");
    assert_int_equal(octe_engine_prefill(e, 0, t, CONTEXT + 1, NULL, NULL), OCT_INVALID_ARGUMENT);
    assert_int_equal(octe_engine_prefill(e, 0, t, 0, NULL, NULL), OCT_INVALID_ARGUMENT);
    for (int i = 0; i < 3; i++) {
        step(e, &(octe_part){0, ROWS, t, 1}, 1);
    }
    refuse_step(e, &(octe_part){0, CONTEXT - 3 * ROWS + 1, t, 1}, 1, OCT_INVALID_ARGUMENT, "context of 200");
    step(e, &(octe_part){0, CONTEXT - 3 * ROWS, t, 1}, 1);
    refuse_step(e, &(octe_part){0, 1, t, 1}, 1, OCT_INVALID_ARGUMENT, "context of 200");
    oct_error error = OCT_ERROR_INIT;
    assert_int_equal(octe_engine_free(e, 6, &error), OCT_INVALID_ARGUMENT);
    assert_int_equal(octe_engine_free(e, 5, &error), OCT_OK);
    assert_int_equal(octe_engine_share(e, 0, 0, 10, &error), OCT_INVALID_ARGUMENT);
    assert_int_equal(octe_engine_share(e, 0, 6, 10, &error), OCT_INVALID_ARGUMENT);
    assert_int_equal(octe_engine_share(e, 0, 1, CONTEXT + 1, &error), OCT_INVALID_ARGUMENT);
    octe_engine_close(e);
    octe_engine_close(NULL);
    free(t);
}

/* An operation that fails inside ggml's threads: the step says which layer, and every sequence is as it was. */
static void errors_inside_the_graph(void **state)
{
    (void)state;
    for (int model = 0; model < 2; model++) {
        const octe_engine_options o = options("fp8");
        octe_engine *e = open_engine(model, &o);
        int32_t *t = some_tokens(60, 4);
        float *truth = solo(model, "fp8", t, 60);
        step(e, &(octe_part){0, 30, t, 1}, 1);
        const uint32_t was = e->cache.layers[1].spec.heads;
        e->cache.layers[1].spec.heads = was + 1;   /* no longer what plan and operands say */
        const octe_part parts[2] = {{0, 10, t + 30, 1}, {1, 20, t, 1}};
        refuse_step(e, parts, 2, OCT_INVALID_ARGUMENT, "layer 1");
        e->cache.layers[1].spec.heads = was;
        const float *logits = step(e, parts, 2);
        same("fp8", logits, truth + (size_t)39 * V);
        same("fp8", logits + V, truth + (size_t)19 * V);
        octe_engine_close(e);
        free(truth);
        free(t);
    }
}

/* A pool too small for all: a step that doesn't fit leaves every sequence, its pages and its numbers as they were. */
static void out_of_pages(void **state)
{
    (void)state;
    for (int model = 0; model < 2; model++) {
        octe_engine_options o = options("fp8");
        o.max_context_tokens = 0;
        o.pool_tokens = 96;   /* 6 pages */
        octe_engine *e = open_engine(model, &o);
        assert_int_equal(octe_engine_options_get(e)->max_context_tokens, 96);
        int32_t *a = some_tokens(60, 1), *b = some_tokens(60, 2);
        float *truth_a = solo(model, "fp8", a, 60), *truth_b = solo(model, "fp8", b, 60);
        octe_part p[3] = {{0, 40, a, 0}, {1, 20, b, 0}};
        step(e, p, 2);   /* 3 + 2 pages */
        p[0] = (octe_part){0, 8, a + 40, 1};                        /* fits its third page */
        p[1] = (octe_part){1, 30, b + 20, 1};                       /* 2 more pages */
        p[2] = (octe_part){2, 5, b, 1};
        refuse_step(e, p, 3, OCT_OUT_OF_PAGES, "pages");
        refuse_step(e, p + 1, 1, OCT_OUT_OF_PAGES, "sequence 1 need 2 pages of 16, 1 of 6 are free");
        p[1].n_tokens = 12;
        const float *logits = step(e, p, 2);
        same("fp8", logits, truth_a + (size_t)47 * V);
        same("fp8", logits + V, truth_b + (size_t)31 * V);
        octe_engine_close(e);
        free(a);
        free(b);
        free(truth_a);
        free(truth_b);
    }
}

static void refuse_open(const octe_engine_options *o, oct_status status, const char *says)
{
    octe_engine *e = (octe_engine *)&status;
    oct_error error = OCT_ERROR_INIT;
    const oct_status got = octe_engine_open(models[GEMMA], o, &e, &error);
    if (got != status || strstr(error.text, says) == NULL) {
        fail_msg("%d '%s'; expected %d and '%s'", (int)got, error.text, (int)status, says);
    }
    assert_null(e);
}

static void bad_options(void **state)
{
    (void)state;
    octe_engine_options o = options("f16");
    o.max_context_tokens = 200;
    o.pool_tokens = 100;
    refuse_open(&o, OCT_INVALID_ARGUMENT, "a context of 200 tokens is longer than the pool: 7 pages of 16 hold 112 tokens");
    o = options("f16");
    o.pool_bytes = 100;
    refuse_open(&o, OCT_INVALID_ARGUMENT, "pool_bytes is 100");
    o.pool_tokens = 100;
    refuse_open(&o, OCT_INVALID_ARGUMENT, "both given");
    o = options("f16");
    o.pool_tokens = -1;
    refuse_open(&o, OCT_INVALID_ARGUMENT, "pool_tokens is -1");
    o = options("f16");
    o.pool_tokens = (int64_t)1 << 40;
    refuse_open(&o, OCT_INVALID_ARGUMENT, "can be addressed");
    o = options("f16");
    o.max_context_tokens = 100000;
    refuse_open(&o, OCT_INVALID_ARGUMENT, "longer than the model was made for (512)");
    o = options("f16");
    o.n_threads = 100000;
    refuse_open(&o, OCT_INVALID_ARGUMENT, "n_threads");
    o = options("f16");
    o.kv.page_size = 2000;
    refuse_open(&o, OCT_INVALID_ARGUMENT, "page_size");
    o = options("f16");
    o.kv.k.dtype = 99;
    refuse_open(&o, OCT_INVALID_ARGUMENT, "dtype");
    o = options("fp8");
    o.kv.k.scale_mode = OCT_SCALE_LAYER;
    refuse_open(&o, OCT_INVALID_ARGUMENT, "needs scales");
    static const float bad[] = {-1.0f, NAN, INFINITY, 0.0f};
    for (int i = 0; i < 4; i++) {
        o.kv.k_scale = bad[i];
        refuse_open(&o, OCT_INVALID_ARGUMENT, "finite and > 0");
    }
    o = options("f16");
    o.force_variant = "attn_decode.nothing";
    refuse_open(&o, OCT_INVALID_ARGUMENT, "nothing");
    o = options("f16");
    char every_decode[1024] = ""; /* whatever this library was built with */
    for (uint32_t v = 0; oct_variant_name(v) != NULL; v++) {
        if (strncmp(oct_variant_name(v), "attn_decode.", 12) == 0) {
            const size_t at = strlen(every_decode);
            snprintf(every_decode + at, sizeof(every_decode) - at, "%s%s", at > 0 ? "," : "", oct_variant_name(v));
        }
    }
    o.deny_variant = every_decode;
    refuse_open(&o, OCT_UNSUPPORTED, "");
    oct_error error = OCT_ERROR_INIT;
    octe_engine *e;
    assert_int_equal(octe_engine_open(NULL, &o, &e, &error), OCT_INVALID_ARGUMENT);
    assert_int_equal(octe_engine_open(models[0], NULL, &e, &error), OCT_INVALID_ARGUMENT);
}

/* ---- sizes ------------------------------------------------------------------------------------------------------------------ */

static void pools_by_bytes(void **state)
{
    (void)state;
    octe_engine_options o = options("fp8");
    octe_kv_capacity c;
    oct_error error = OCT_ERROR_INIT;
    assert_int_equal(octe_kv_capacity_get(models[GEMMA], &o.kv, &c, &error), OCT_OK);
    static const uint64_t budgets[] = {4096 * 8, 100000, 1000000, 30000000};
    for (size_t i = 0; i < sizeof(budgets) / sizeof(budgets[0]); i++) {
        o.max_context_tokens = 0;
        o.pool_bytes = budgets[i];
        octe_engine *e = open_engine(GEMMA, &o);
        octe_engine_stats s;
        octe_engine_stats_get(e, &s);
        assert_int_equal(s.pages_full * 16 * (int64_t)c.bytes_per_token_full + s.pages_window * 16 * (int64_t)c.bytes_per_token_window, s.pool_bytes);
        assert_true(s.pool_bytes <= budgets[i]);
        /* No page more would have fitted. */
        assert_true(s.pool_bytes + 16 * c.bytes_per_token > budgets[i]);
        assert_int_equal(octe_engine_options_get(e)->pool_tokens, s.pages_full * 16);
        octe_engine_close(e);
    }
}

/* Every sequence at its longest, all at once, in steps as large as allowed: the window pool must bear it. */
static void window_pool_is_large_enough(void **state)
{
    (void)state;
    octe_engine_options o = options("fp8");
    octe_engine *e = open_engine(GEMMA, &o);
    int32_t *t = some_tokens(CONTEXT, 3);
    oct_error error = OCT_ERROR_INIT;
    for (uint32_t s = 0; s < o.max_sequences; s++) {
        if (octe_engine_prefill(e, s, t, CONTEXT - 30, NULL, &error) != OCT_OK) {
            fail_msg("%s", error.text);
        }
    }
    octe_part p[6];
    for (int k = 0; k < 3; k++) {
        for (uint32_t s = 0; s < o.max_sequences; s++) {
            p[s] = (octe_part){s, ROWS / o.max_sequences, t, 1};
        }
        step(e, p, o.max_sequences);
    }
    octe_engine_stats s;
    octe_engine_stats_get(e, &s);
    assert_true(s.pages_window < s.pages_full);
    octe_engine_close(e);
    free(t);
}

/* ---- counts and explanations -------------------------------------------------------------------------------------------------- */

static void counts_and_plans(void **state)
{
    (void)state;
    octe_engine_options o = options("fp8");
    o.kv.k.scale_mode = OCT_SCALE_LAYER;
    o.kv.k_scale = 1e-3f;   /* 448e-3 is the largest K that fits: most don't */
    o.count = true;
    octe_engine *e = open_engine(GEMMA, &o);
    int32_t *t = some_tokens(50, 3);
    step(e, &(octe_part){0, 50, t, 1}, 1);
    oct_kv_counts k[7], v[7];
    octe_engine_counts(e, k, v);
    for (int il = 0; il < 7; il++) {
        assert_int_equal(k[il].n_values, 50 * 32);
        assert_int_equal(v[il].n_values, 50 * 32);
        assert_true(k[il].n_saturated > 400 && k[il].n_saturated < 50 * 32);
        assert_int_equal(v[il].n_saturated, 0);
        assert_int_equal(k[il].n_nan, 0);
        assert_true(k[il].amax > 0.448f && k[il].amax < 100.0f);
    }
    octe_engine_counts_reset(e);
    octe_engine_counts(e, k, NULL);
    assert_int_equal(k[3].n_values, 0);
    /* Both kinds of layers have their plan, and it says what it chose. */
    for (int w = 0; w < 2; w++) {
        oct_plan_info info = {.struct_size = sizeof(info)};
        assert_int_equal(oct_plan_info_get(octe_engine_plan(e, w != 0), &info), OCT_OK);
        assert_int_equal(info.n_rows, 50);
        assert_true(info.extend_variant[0] != '\0');
        char text[4096];
        assert_true(oct_plan_explain(octe_engine_plan(e, w != 0), OCT_TEXT_PLAIN, text, sizeof(text)) > 100);
    }
    assert_true(oct_kv_write_explain(octe_engine_context(e), octe_engine_kv_spec(e), OCT_DTYPE_F32, OCT_TEXT_PLAIN, NULL, 0) > 50);
    octe_engine_close(e);
    e = open_engine(LLAMA, &o);
    assert_null(octe_engine_plan(e, true));
    octe_engine_counts(e, k, v);
    assert_int_equal(k[0].n_values, 0);
    octe_engine_close(e);
    free(t);
}

/* A forced variant is the one that runs, and it computes the same. */
static void forced_variants_agree(void **state)
{
    (void)state;
    enum { N = 100 };
    int32_t *t = some_tokens(N, 21);
    for (int model = 0; model < 2; model++) {
        float *truth = solo(model, "int8_rotated", t, N);
        octe_engine_options o = options("int8_rotated");
        o.force_variant = "attn_decode.scalar,attn_extend.scalar";
        octe_engine *e = open_engine(model, &o);
        const float *logits;
        assert_int_equal(octe_engine_prefill(e, 0, t, N - 1, NULL, NULL), OCT_OK);
        logits = step(e, &(octe_part){0, 1, t + N - 1, 1}, 1);
        assert_true(logits_distance(logits, truth + (size_t)(N - 1) * V, V) <= 1e-5);
        oct_plan_info info = {.struct_size = sizeof(info)};
        assert_int_equal(oct_plan_info_get(octe_engine_plan(e, false), &info), OCT_OK);
        assert_string_equal(info.decode_variant, "attn_decode.scalar");
        octe_engine_close(e);
        free(truth);
    }
    free(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bad_steps),        cmocka_unit_test(out_of_pages),   cmocka_unit_test(errors_inside_the_graph),
        cmocka_unit_test(bad_options),      cmocka_unit_test(pools_by_bytes), cmocka_unit_test(window_pool_is_large_enough),
        cmocka_unit_test(counts_and_plans), cmocka_unit_test(forced_variants_agree),
    };
    return cmocka_run_group_tests(tests, open_models, close_models);
}
