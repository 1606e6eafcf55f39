/* Steps and sequences on a small model: mixed batches, shared prefixes, copy-on-write, cuts. Solo runs are the truth here;
 * test_equality_tiny.c ties them to libllama. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/small_engine.h"

/* ---- mixed batches ------------------------------------------------------------------------------------------------ */

/* Prefill, decode, continued prefill and a chunk longer than the window in one step, then decode all together. */
static void mixed(int model, const char *kv)
{
    enum { N_SEQUENCES = 4 };
    static const uint32_t before[N_SEQUENCES] = {0, 12, 7, 33}, rows[N_SEQUENCES] = {20, 1, 15, 28}, after = 12;
    const octe_engine_options o = options(kv);
    octe_engine *e = open_engine(model, &o);
    int32_t *tokens[N_SEQUENCES];
    float *truth[N_SEQUENCES];
    octe_part parts[N_SEQUENCES];
    for (uint32_t s = 0; s < N_SEQUENCES; s++) {
        tokens[s] = some_tokens(before[s] + rows[s] + after, s + 1);
        truth[s] = solo(model, kv, tokens[s], before[s] + rows[s] + after);
        if (before[s] > 0) {
            parts[0] = (octe_part){s, before[s], tokens[s], 0};
            assert_null(step(e, parts, 1));
        }
    }
    /* In another order than the ids, each with another number of logits. */
    for (uint32_t i = 0; i < N_SEQUENCES; i++) {
        const uint32_t s = N_SEQUENCES - 1 - i;
        parts[i] = (octe_part){s, rows[s], tokens[s] + before[s], s == 2 ? 0 : s == 3 ? 5 : 1};
    }
    const float *logits = step(e, parts, N_SEQUENCES);
    for (uint32_t k = 0; k < 5; k++) {
        same(kv, logits + (size_t)k * V, truth[3] + (size_t)(before[3] + rows[3] - 5 + k) * V);
    }
    same(kv, logits + (size_t)5 * V, truth[1] + (size_t)12 * V);
    same(kv, logits + (size_t)6 * V, truth[0] + (size_t)19 * V);
    for (uint32_t k = 0; k < after; k++) {
        for (uint32_t s = 0; s < N_SEQUENCES; s++) {
            parts[s] = (octe_part){s, 1, tokens[s] + before[s] + rows[s] + k, 1};
        }
        logits = step(e, parts, N_SEQUENCES);
        for (uint32_t s = 0; s < N_SEQUENCES; s++) {
            same(kv, logits + (size_t)s * V, truth[s] + (size_t)(before[s] + rows[s] + k) * V);
            assert_int_equal(octe_engine_length(e, s), before[s] + rows[s] + k + 1);
        }
    }
    octe_engine_stats stats;
    octe_engine_stats_get(e, &stats);
    assert_true(stats.n_graphs_reused >= after - 1);
    octe_engine_close(e);
    for (uint32_t s = 0; s < N_SEQUENCES; s++) {
        free(tokens[s]);
        free(truth[s]);
    }
}

static void mixed_batches(void **state)
{
    (void)state;
    static const char *const caches[] = {"f32", "f16", "fp8", "fp8_e5m2", "fp8_per_token_head", "int8_rotated"};
    for (size_t c = 0; c < sizeof(caches) / sizeof(caches[0]); c++) {
        mixed(LLAMA, caches[c]);
        mixed(GEMMA, caches[c]);
    }
    mixed(GEMMA, "int8_v4"); /* the other has heads of 16 dims */
}

/* H1: a prompt in chunks of any size gives what the whole gives. */
static void chunks(void **state)
{
    (void)state;
    enum { N = 150 };
    static const uint32_t sizes[] = {1, 7, 16, 64};
    int32_t *tokens = some_tokens(N, 77);
    for (int model = 0; model < 2; model++) {
        float *truth = solo(model, "fp8", tokens, N);
        for (size_t c = 0; c < sizeof(sizes) / sizeof(sizes[0]); c++) {
            octe_engine_options o = options("fp8");
            o.max_step_rows = sizes[c];
            octe_engine *e = open_engine(model, &o);
            const float *logits;
            assert_int_equal(octe_engine_prefill(e, 3, tokens, N, &logits, NULL), OCT_OK);
            same("fp8", logits, truth + (size_t)(N - 1) * V);
            octe_engine_close(e);
        }
        free(truth);
    }
    free(tokens);
}

/* ---- shared prefixes -------------------------------------------------------------------------------------------------- */

static void share_and_copy_on_write(void **state)
{
    (void)state;
    enum { PREFIX = 21, TAIL = 30 };   /* 21: inside a page */
    for (int model = 0; model < 2; model++) {
        const octe_engine_options o = options("fp8_per_token_head");
        octe_engine *e = open_engine(model, &o);
        int32_t *a = some_tokens(PREFIX + TAIL, 5), *b = some_tokens(PREFIX + TAIL, 6);
        memcpy(b, a, PREFIX * sizeof(*b));
        float *truth_a = solo(model, "fp8_per_token_head", a, PREFIX + TAIL), *truth_b = solo(model, "fp8_per_token_head", b, PREFIX + TAIL);
        octe_part parts[2] = {{0, PREFIX, a, 0}};
        step(e, parts, 1);
        assert_int_equal(octe_engine_free_sequence(e), 1);
        assert_int_equal(octe_engine_share(e, 0, 1, PREFIX, NULL), OCT_OK);
        assert_int_equal(octe_engine_length(e, 1), PREFIX);
        octe_engine_stats stats;
        octe_engine_stats_get(e, &stats);
        assert_int_equal(stats.n_copied, 0);
        assert_int_equal(stats.pages_full - stats.pages_full_free, 2);   /* two sequences, the same two pages */
        /* Both write on: whoever comes first copies. */
        for (uint32_t k = 0; k < TAIL; k += 2) {
            parts[0] = (octe_part){1, 2, b + PREFIX + k, 2};
            parts[1] = (octe_part){0, 2, a + PREFIX + k, 2};
            const float *logits = step(e, parts, 2);
            for (uint32_t i = 0; i < 2; i++) {
                same("fp8_per_token_head", logits + (size_t)i * V, truth_b + (size_t)(PREFIX + k + i) * V);
                same("fp8_per_token_head", logits + (size_t)(2 + i) * V, truth_a + (size_t)(PREFIX + k + i) * V);
            }
        }
        octe_engine_stats_get(e, &stats);
        assert_int_equal(stats.n_copied, model == GEMMA ? 2 : 1);   /* one page of each pool */
        /* What was shared lives on when its first owner goes. */
        assert_int_equal(octe_engine_free(e, 0, NULL), OCT_OK);
        assert_int_equal(octe_engine_length(e, 0), 0);
        int32_t next = a[0];
        parts[0] = (octe_part){1, 1, &next, 1};
        int32_t *b2 = malloc((PREFIX + TAIL + 1) * sizeof(*b2));
        memcpy(b2, b, (PREFIX + TAIL) * sizeof(*b2));
        b2[PREFIX + TAIL] = next;
        float *truth = solo(model, "fp8_per_token_head", b2, PREFIX + TAIL + 1);
        same("fp8_per_token_head", step(e, parts, 1), truth + (size_t)(PREFIX + TAIL) * V);
        assert_int_equal(octe_engine_free(e, 1, NULL), OCT_OK);
        octe_engine_stats_get(e, &stats);
        assert_int_equal(stats.pages_full, stats.pages_full_free);
        assert_int_equal(stats.pages_window, stats.pages_window_free);
        octe_engine_close(e);
        free(truth);
        free(b2);
        free(a);
        free(b);
        free(truth_a);
        free(truth_b);
    }
}

static void truncate_and_go_on(void **state)
{
    (void)state;
    enum { N = 40, CUT = 27 };
    const octe_engine_options o = options("f16");
    octe_engine *e = open_engine(LLAMA, &o);
    int32_t *a = some_tokens(N, 8), *b = some_tokens(N, 9);
    memcpy(b, a, CUT * sizeof(*b));
    float *truth = solo(LLAMA, "f16", b, N);
    const octe_part whole = {2, N, a, 1}, rest = {2, N - CUT, b + CUT, N - CUT};
    step(e, &whole, 1);
    assert_int_equal(octe_engine_truncate(e, 2, CUT, NULL), OCT_OK);
    const float *logits = step(e, &rest, 1);
    for (uint32_t i = 0; i < N - CUT; i++) {
        same("f16", logits + (size_t)i * V, truth + (size_t)(CUT + i) * V);
    }
    oct_error error = OCT_ERROR_INIT;
    assert_int_equal(octe_engine_truncate(e, 2, N + 1, &error), OCT_INVALID_ARGUMENT);
    assert_int_equal(octe_engine_truncate(e, 6, 0, &error), OCT_INVALID_ARGUMENT);
    assert_int_equal(octe_engine_truncate(e, 2, 0, &error), OCT_OK);
    assert_int_equal(octe_engine_length(e, 2), 0);
    octe_engine_close(e);
    /* What a window has let go can't come back: refused, not wrong. */
    e = open_engine(GEMMA, &o);
    int32_t *c = some_tokens(120, 10);
    assert_int_equal(octe_engine_prefill(e, 0, c, 120, NULL, NULL), OCT_OK);
    assert_int_equal(octe_engine_truncate(e, 0, 40, &error), OCT_INVALID_ARGUMENT);
    assert_int_equal(octe_engine_length(e, 0), 120);
    assert_int_equal(octe_engine_share(e, 0, 1, 40, &error), OCT_INVALID_ARGUMENT);
    assert_int_equal(octe_engine_length(e, 1), 0);
    assert_int_equal(octe_engine_share(e, 0, 1, 120, &error), OCT_OK);
    octe_engine_close(e);
    free(a);
    free(b);
    free(c);
    free(truth);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(mixed_batches),
        cmocka_unit_test(chunks),
        cmocka_unit_test(share_and_copy_on_write),
        cmocka_unit_test(truncate_and_go_on),
        cmocka_unit_test_setup_teardown(mixed_batches, choose_freely, choose_f32),
        cmocka_unit_test_setup_teardown(chunks, choose_freely, choose_f32),
        cmocka_unit_test_setup_teardown(share_and_copy_on_write, choose_freely, choose_f32),
    };
    return cmocka_run_group_tests(tests, open_models, close_models);
}
