/* Steps and sequences on a small model: mixed batches, shared prefixes, copy-on-write, cuts, limits, and that a failed step changes
 * nothing. Solo runs are the truth here; test_equality_tiny.c ties them to libllama. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/compare_logits.h"
#include "engine/engine_state.h"
#include "engine/tiny_model.h"

enum { V = TINY_VOCAB, CONTEXT = 200, ROWS = 64 };
/* The same rows in other company: only the order of additions may differ. ggml's GELU goes through a table of f16, and a cache of few bits
 * turns a last bit into a step of its own now and then; a wrong page, position or scale gives 1e-2 and more. */
static double bound(const char *kv) { return strcmp(kv, "f32") == 0 || strcmp(kv, "f16") == 0 ? 1e-6 : 1e-5; }

static octe_model *models[2];   /* llama; gemma3 with windows */
enum { LLAMA, GEMMA };

static int32_t *some_tokens(uint32_t n, uint32_t seed)
{
    int32_t *t = malloc((n > 0 ? n : 1) * sizeof(*t));
    uint32_t x = seed * 2654435761u + 1;
    for (uint32_t i = 0; i < n; i++) {
        x = x * 1664525u + 1013904223u;
        t[i] = (int32_t)((x >> 16) % V);
    }
    return t;
}

static octe_engine_options options(const char *kv)
{
    octe_engine_options o;
    octe_engine_options_init(&o);
    assert_int_equal(octe_kv_config_from_name(kv, &o.kv, NULL), OCT_OK);
    o.n_threads = 1;
    o.max_context_tokens = CONTEXT;
    o.max_sequences = 6;
    o.max_step_rows = ROWS;
    o.max_step_logits = ROWS;
    return o;
}

static octe_engine *open_engine(int model, const octe_engine_options *o)
{
    octe_engine *e;
    oct_error error = OCT_ERROR_INIT;
    if (octe_engine_open(models[model], o, &e, &error) != OCT_OK) {
        fail_msg("%s", error.text);
    }
    return e;
}

static const float *step(octe_engine *e, const octe_part *parts, uint32_t n)
{
    const float *logits;
    oct_error error = OCT_ERROR_INIT;
    if (octe_engine_step(e, parts, n, &logits, &error) != OCT_OK) {
        fail_msg("%s", error.text);
    }
    return logits;
}

/* Logits after each of the n tokens, alone and one chunk at a time: [n][V]. */
static float *solo(int model, const char *kv, const int32_t *tokens, uint32_t n)
{
    const octe_engine_options o = options(kv);
    octe_engine *e = open_engine(model, &o);
    float *all = malloc((size_t)n * V * sizeof(*all));
    for (uint32_t done = 0; done < n;) {
        const uint32_t rows = n - done < ROWS ? n - done : ROWS;
        const octe_part part = {0, rows, tokens + done, rows};
        memcpy(all + (size_t)done * V, step(e, &part, 1), (size_t)rows * V * sizeof(*all));
        done += rows;
    }
    octe_engine_close(e);
    return all;
}

static void same(const char *kv, const float *logits, const float *solo_row)
{
    const double d = logits_distance(logits, solo_row, V);
    if (!(d <= bound(kv))) {
        fail_msg("%s: 1 - cos %.2e, top %u and %u", kv, d, logits_argmax(logits, V), logits_argmax(solo_row, V));
    }
}

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
    o.deny_variant = "attn_decode.scalar,attn_decode.avx2";
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

static int open_models(void **state)
{
    (void)state;
    tiny_model m;
    static const uint32_t which[] = {0, 5};
    for (int i = 0; i < 2; i++) {
        oct_error error = OCT_ERROR_INIT;
        assert_true(tiny_model_at(which[i], &m));
        tiny_model_write(&m, tiny_path(i == 0 ? "llama.gguf" : "gemma.gguf"));
        if (octe_model_open(tiny_path(i == 0 ? "llama.gguf" : "gemma.gguf"), NULL, &models[i], &error) != OCT_OK) {
            print_error("%s\n", error.text);
            return -1;
        }
    }
    return 0;
}

static int close_models(void **state)
{
    (void)state;
    octe_model_close(models[0]);
    octe_model_close(models[1]);
    tiny_folder_remove();
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(mixed_batches),  cmocka_unit_test(chunks),       cmocka_unit_test(share_and_copy_on_write),
        cmocka_unit_test(truncate_and_go_on), cmocka_unit_test(bad_steps), cmocka_unit_test(out_of_pages), cmocka_unit_test(errors_inside_the_graph),
        cmocka_unit_test(bad_options),    cmocka_unit_test(pools_by_bytes), cmocka_unit_test(window_pool_is_large_enough),
        cmocka_unit_test(counts_and_plans), cmocka_unit_test(forced_variants_agree),
    };
    return cmocka_run_group_tests(tests, open_models, close_models);
}
