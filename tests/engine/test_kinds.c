/* Layers of formats of their own: each is kept as it was asked, pages of all kinds are shared, copied, cut, read and written together, and what a token
 * costs is the sum. Solo runs of one format are the truth where the formats agree. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/small_engine.h"

enum { MAX_LAYERS = 8 };

static oct_kv_format named(const char *name)
{
    oct_kv_format f;
    assert_int_equal(octe_kv_format_from_name(name, &f, NULL), OCT_OK);
    return f;
}

/* Layer il has formats[il % n], K and V alike. */
static octe_engine_options by_layer(int model, octe_kv_layer_format layers[MAX_LAYERS], const char *const *formats, uint32_t n)
{
    octe_engine_options o = options("f32");
    o.kv.n_layers = octe_model_info_get(models[model])->n_layers;
    o.kv.layers = layers;
    assert_true(o.kv.n_layers <= MAX_LAYERS);
    for (uint32_t il = 0; il < o.kv.n_layers; il++) {
        layers[il].k = layers[il].v = named(formats[il % n]);
    }
    return o;
}

static void kept_as_asked(void **state)
{
    (void)state;
    static const char *const formats[] = {"f32", "i8+rot", "e4m3", "f16"};
    for (int model = 0; model < 2; model++) {
        octe_kv_layer_format layers[MAX_LAYERS];
        const octe_engine_options o = by_layer(model, layers, formats, 4);
        octe_engine *e = open_engine(model, &o);
        memset(layers, 0, sizeof(layers));   /* not kept */
        int32_t *tokens = some_tokens(40, 3);
        const octe_part part = {2, 40, tokens, 1};
        step(e, &part, 1);
        uint32_t in_kinds = 0;
        for (uint32_t i = 0; i < octe_engine_n_kinds(e); i++) {
            in_kinds += octe_engine_kind_get(e, i).n_layers;
            assert_non_null(octe_engine_kind_get(e, i).plan);
        }
        assert_int_equal(in_kinds, o.kv.n_layers);
        octe_kv_capacity capacity, one;
        uint64_t bytes = 0;
        assert_int_equal(octe_kv_capacity_get(models[model], &octe_engine_options_get(e)->kv, &capacity, NULL), OCT_OK);
        for (uint32_t il = 0; il < o.kv.n_layers; il++) {
            const oct_kv_format f = named(formats[il % 4]);
            oct_kv_layer view;
            int32_t slot;
            assert_int_equal(octe_engine_stored(e, il, 2, 39, &view, &slot), OCT_OK);
            assert_true(slot >= 0);
            assert_int_equal(view.spec.k.dtype, f.dtype);
            assert_int_equal(view.spec.v.rotated, f.rotated);
            const octe_engine_kind kind = octe_engine_kind_get(e, octe_engine_layer_kind(e, il));
            assert_int_equal(kind.spec->k.dtype, f.dtype);
            assert_int_equal(kind.window, octe_model_layer_has_window(models[model], il));
            octe_kv_config alone = {.k = f, .v = f};
            assert_int_equal(octe_kv_capacity_get(models[model], &alone, &one, NULL), OCT_OK);
            bytes += one.bytes_per_token / o.kv.n_layers;
        }
        assert_int_equal(capacity.bytes_per_token, bytes);
        assert_int_equal(capacity.bytes_per_token_full + capacity.bytes_per_token_window, bytes);
        octe_engine_close(e);
        free(tokens);
    }
}

/* f32 and f16 agree so closely that a wrong pool, plan or page shows: sharing, copy on write, cuts, mixed steps. */
static void pages_of_all_kinds(void **state)
{
    (void)state;
    enum { PREFIX = 21, TAIL = 12 };
    static const char *const formats[] = {"f32", "f16", "bf16"};
    for (int model = 0; model < 2; model++) {
        octe_kv_layer_format layers[MAX_LAYERS];
        const octe_engine_options o = by_layer(model, layers, formats, 2);
        octe_engine *e = open_engine(model, &o);
        int32_t *a = some_tokens(PREFIX + TAIL, 5), *b = some_tokens(PREFIX + TAIL, 6);
        memcpy(b, a, PREFIX * sizeof(*b));
        float *truth_a = solo(model, "f32", a, PREFIX + TAIL), *truth_b = solo(model, "f32", b, PREFIX + TAIL);
        octe_part parts[2] = {{0, PREFIX, a, 0}};
        step(e, parts, 1);
        assert_int_equal(octe_engine_share(e, 0, 1, PREFIX, NULL), OCT_OK);
        for (uint32_t k = 0; k < TAIL; k += 2) {
            parts[0] = (octe_part){1, 2, b + PREFIX + k, 2};
            parts[1] = (octe_part){0, 2, a + PREFIX + k, 2};
            const float *logits = step(e, parts, 2);
            for (uint32_t i = 0; i < 2; i++) {
                same("fp8", logits + (size_t)i * V, truth_b + (size_t)(PREFIX + k + i) * V);
                same("fp8", logits + (size_t)(2 + i) * V, truth_a + (size_t)(PREFIX + k + i) * V);
            }
        }
        /* Out of the pool, wiped, and back. */
        const uint32_t pools = model == GEMMA ? 2 : 1;
        for (uint32_t pool = 0; pool < pools; pool++) {
            const size_t bytes = octe_engine_page_bytes(e, pool);
            unsigned char *page = malloc(bytes), *zero = calloc(1, bytes), *again = malloc(bytes);
            assert_int_equal(octe_engine_page_read(e, pool, 0, page), OCT_OK);
            assert_memory_not_equal(page, zero, bytes);
            assert_int_equal(octe_engine_page_write(e, pool, 0, zero), OCT_OK);
            assert_int_equal(octe_engine_page_write(e, pool, 0, page), OCT_OK);
            assert_int_equal(octe_engine_page_read(e, pool, 0, again), OCT_OK);
            assert_memory_equal(page, again, bytes);
            free(page);
            free(zero);
            free(again);
        }
        const uint32_t cut = PREFIX + TAIL - 2;
        assert_int_equal(octe_engine_truncate(e, 0, cut, NULL), OCT_OK);
        parts[0] = (octe_part){0, 2, a + cut, 2};
        same("fp8", step(e, parts, 1) + V, truth_a + (size_t)(PREFIX + TAIL - 1) * V);
        octe_engine_close(e);
        free(a);
        free(b);
        free(truth_a);
        free(truth_b);
    }
}

/* All layers alike, said layer by layer, is the same cache to the bit. */
static void alike_is_the_same(void **state)
{
    (void)state;
    static const char *const formats[] = {"i8+rot"};
    octe_kv_layer_format layers[MAX_LAYERS];
    octe_engine_options o = by_layer(GEMMA, layers, formats, 1), plain = options("f32");
    plain.kv.k = plain.kv.v = named("i8+rot");
    octe_engine *e = open_engine(GEMMA, &o), *p = open_engine(GEMMA, &plain);
    int32_t *tokens = some_tokens(50, 9);
    const octe_part part = {0, 50, tokens, 8};
    assert_memory_equal(step(e, &part, 1), step(p, &part, 1), 8 * V * sizeof(float));
    assert_int_equal(octe_engine_n_kinds(e), octe_engine_n_kinds(p));
    octe_engine_close(e);
    octe_engine_close(p);
    free(tokens);
}

static void refusals(void **state)
{
    (void)state;
    static const char *const formats[] = {"f32", "e4m3:layer"};
    octe_kv_layer_format layers[MAX_LAYERS];
    octe_engine_options o = by_layer(LLAMA, layers, formats, 2);
    octe_engine *e;
    oct_error error = OCT_ERROR_INIT;
    /* One layer needs scales: asked for, then given. */
    assert_true(octe_kv_config_is_static(&o.kv, 0));
    assert_int_equal(octe_engine_open(models[LLAMA], &o, &e, &error), OCT_INVALID_ARGUMENT);
    assert_non_null(strstr(error.text, "needs scales"));
    o.kv.k_scale = o.kv.v_scale = 0.01f;
    e = open_engine(LLAMA, &o);
    oct_kv_layer view;
    int32_t slot, *tokens = some_tokens(4, 1);
    const octe_part part = {0, 4, tokens, 1};
    step(e, &part, 1);
    assert_int_equal(octe_engine_stored(e, 1, 0, 0, &view, &slot), OCT_OK);
    assert_true(view.k_scale != NULL && *view.k_scale == 0.01f);
    assert_int_equal(octe_engine_stored(e, 0, 0, 0, &view, &slot), OCT_OK);
    assert_null(view.k_scale);
    octe_engine_close(e);
    free(tokens);
    o.kv.n_layers = 2;
    assert_int_equal(octe_engine_open(models[LLAMA], &o, &e, &error), OCT_BAD_DATA);
    assert_non_null(strstr(error.text, "the formats are for 2 layers, the model has 3"));
    octe_kv_capacity capacity;
    assert_int_equal(octe_kv_capacity_get(models[LLAMA], &o.kv, &capacity, &error), OCT_BAD_DATA);
}

/* The tap sees what is stored and what comes out, and what it changes is what gets stored. */
typedef struct seen {
    float k, out;
    int n_before, n_after;
    bool spoil;
} seen;

static void look_before(void *user, const octe_tap_rows *rows, uint32_t ith, uint32_t nth)
{
    seen *s = user;
    assert_true(ith == 0 && nth == 1 && rows->out == NULL && rows->n_rows == 5);
    s->n_before++;
    if (rows->layer == 1) {
        rows->k[4 * rows->k_row_stride + rows->k_head_stride + 3] = s->spoil ? 7.0f : rows->k[4 * rows->k_row_stride + rows->k_head_stride + 3];
        s->k = rows->k[4 * rows->k_row_stride + rows->k_head_stride + 3];
    }
}

static void look_after(void *user, const octe_tap_rows *rows, uint32_t ith, uint32_t nth)
{
    seen *s = user;
    assert_true(ith == 0 && nth == 1 && rows->n_rows == 5);
    s->n_after++;
    if (rows->layer == 0) {
        /* The first token sees itself alone: attention returns its V. */
        assert_true(fabsf(rows->out[0] - rows->v[0]) < 1e-5f);
        s->out = rows->out[4 * rows->out_row_stride];
    }
}

static void tap(void **state)
{
    (void)state;
    int32_t *tokens = some_tokens(5, 2);
    const octe_part part = {0, 5, tokens, 1};
    for (int spoil = 0; spoil < 2; spoil++) {
        seen s = {.spoil = spoil != 0};
        const octe_engine_tap t = {look_before, look_after, &s};
        octe_engine_options o = options("f32");
        octe_engine *plain = open_engine(LLAMA, &o);
        o.tap = &t;
        octe_engine *e = open_engine(LLAMA, &o);
        const int differs = memcmp(step(e, &part, 1), step(plain, &part, 1), V * sizeof(float));
        assert_true((differs != 0) == s.spoil);
        assert_true(s.n_before == 3 && s.n_after == 3 && s.out != 0.0f);
        oct_kv_layer view;
        int32_t slot;
        assert_int_equal(octe_engine_stored(e, 1, 0, 4, &view, &slot), OCT_OK);
        assert_true(((const float *)view.k)[slot * view.k_token_stride + view.k_head_stride + 3] == s.k);
        octe_engine_close(e);
        octe_engine_close(plain);
    }
    free(tokens);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(kept_as_asked), cmocka_unit_test(pages_of_all_kinds), cmocka_unit_test(alike_is_the_same), cmocka_unit_test(refusals), cmocka_unit_test(tap),
    };
    return cmocka_run_group_tests(tests, open_models, close_models);
}
