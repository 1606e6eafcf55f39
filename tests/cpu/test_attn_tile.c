/* test_attn_tile.c: the scalar tile kernel by itself: closed forms, what it may read, where a stored NaN goes, error at long lengths. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "cpu/scalar.h"
#include "fixture.h"
#include "octavo/page.h"

#define DIM 32u

/* One KV head of f32 in pages of `page_size`, in order. */
typedef struct keys {
    oct_kv_layer layer;
    int32_t *pages;
    float *k, *v;
} keys;

static void keys_make(keys *s, int64_t n_tokens, uint32_t page_size)
{
    const oct_kv_spec spec = { .struct_size = sizeof spec, .layout = OCT_LAYOUT_NHD, .heads = 1, .dim_k = DIM, .dim_v = DIM,
                               .page_size = page_size, .k = { OCT_DTYPE_F32, OCT_SCALE_NONE, 0, 0 }, .v = { OCT_DTYPE_F32, OCT_SCALE_NONE, 0, 0 } };
    const int64_t n_pages = (n_tokens + page_size - 1) / page_size;
    assert_int_equal(oct_kv_layer_init(&s->layer, &spec, n_pages, NULL), OCT_OK);
    s->pages = malloc((size_t)n_pages * sizeof *s->pages);
    s->k = calloc((size_t)n_pages * page_size * DIM, sizeof *s->k);
    s->v = calloc((size_t)n_pages * page_size * DIM, sizeof *s->v);
    assert_true(s->pages != NULL && s->k != NULL && s->v != NULL);
    for (int64_t p = 0; p < n_pages; p++) {
        s->pages[p] = (int32_t)p;
    }
    s->layer.k = s->k;
    s->layer.v = s->v;
}

static void keys_free(keys *s)
{
    free(s->pages);
    free(s->k);
    free(s->v);
}

#define MAX_VECTORS 64u

typedef struct result { _Alignas(64) float o[MAX_VECTORS][DIM]; float m[MAX_VECTORS], z[MAX_VECTORS]; } result;

/* Runs `tile`, whose layer, pages, q, outputs and scratch it fills in; q: [vectors][DIM]. */
static void run(const keys *s, oct__attn_tile tile, const float *q, result *r)
{
    const uint32_t n = tile.n_rows * tile.n_heads;
    void *scratch = aligned_alloc(64, (oct__attn_scratch__scalar(&s->layer.spec, n) + 63) / 64 * 64);
    assert_non_null(scratch);
    memset(scratch, 0xFF, oct__attn_scratch__scalar(&s->layer.spec, n));
    memset(r, 0xFF, sizeof *r);
    tile.kv = &s->layer;
    tile.pages = s->pages;
    tile.q = q;
    tile.q_stride = DIM;
    tile.o = r->o[0];
    tile.o_stride = DIM;
    tile.m = r->m;
    tile.z = r->z;
    tile.scratch = scratch;
    oct__attn__scalar(&tile);
    free(scratch);
}

static const oct__attn_tile one_row = { .n_rows = 1, .n_heads = 1, .score_scale = 1.0f, .causal = 1 };

/* q = 0: every visible key weighs 1, z counts them, and with V one-hot of the position o says which. */
static void test_window_counts_itself(void **state)
{
    (void)state;
    static const float q[DIM];
    static const uint32_t windows[] = { 0, 1, 2, 15, 16, 17 };
    keys s;
    keys_make(&s, DIM, 4);
    for (uint32_t j = 0; j < DIM; j++) {
        s.v[j * DIM + j] = 1.0f;
    }
    for (size_t w = 0; w < sizeof windows / sizeof windows[0]; w++) {
        for (int64_t position = -2; position < (int64_t)DIM; position++) {
            result r;
            oct__attn_tile tile = one_row;
            tile.key1 = DIM;
            tile.pos0 = position;
            tile.window = windows[w];
            run(&s, tile, q, &r);
            const int64_t from = windows[w] > 0 && position - (int64_t)windows[w] + 1 > 0 ? position - (int64_t)windows[w] + 1 : 0;
            for (int64_t j = 0; j < (int64_t)DIM; j++) {
                assert_true(r.o[0][j] == (j >= from && j <= position ? 1.0f : 0.0f));
            }
            assert_true(r.z[0] == (float)(position < 0 ? 0 : position - from + 1));
            assert_true(r.m[0] == (position < 0 ? -INFINITY : 0.0f));
        }
    }
    keys_free(&s);
}

/* Two scores, ln 3 apart: weights 1 and 1/3 below the maximum. */
static void test_two_keys(void **state)
{
    (void)state;
    keys s;
    keys_make(&s, 2, 1);
    float q[DIM] = { 2.0f };
    s.k[0] = 1.0f;
    s.k[DIM] = 1.0f - logf(3.0f) / 4.0f;
    s.v[0] = 8.0f;
    s.v[DIM] = 2.0f;
    oct__attn_tile tile = one_row;
    tile.key1 = 2;
    tile.pos0 = 1;
    tile.score_scale = 2.0f;
    result r;
    run(&s, tile, q, &r);
    assert_true(r.m[0] == 4.0f);
    assert_true(fabsf(r.z[0] - 4.0f / 3.0f) < 1e-6f);
    assert_true(fabsf(r.o[0][0] - (8.0f + 2.0f / 3.0f)) < 1e-5f);
    keys_free(&s);
}

/* A score that f32 holds only to 3e-5: m rounds, and z and o carry the rest. */
static void test_large_score(void **state)
{
    (void)state;
    keys s;
    keys_make(&s, 1, 1);
    float q[DIM] = { 1000.0f, 2e-5f };
    s.k[0] = s.k[1] = 1.0f;
    s.v[0] = 3.0f;
    oct__attn_tile tile = one_row;
    tile.key1 = 1;
    result r;
    run(&s, tile, q, &r);
    assert_true(fabs((double)r.m[0] + log((double)r.z[0]) - (1000.0 + (double)q[1])) < 2e-7);
    assert_true(fabsf(r.o[0][0] / r.z[0] - 3.0f) < 1e-6f);
    keys_free(&s);
}

/* The mask comes after the cap: a masked key would otherwise keep the weight exp(-cap). And the cap is finite for any score. */
static void test_softcap(void **state)
{
    (void)state;
    keys s;
    keys_make(&s, 4, 4);
    float q[DIM] = { 3e38f };
    s.k[0] = 3e38f;
    s.k[DIM] = -3e38f;
    for (uint32_t j = 2; j < 4; j++) {
        for (uint32_t d = 0; d < DIM; d++) {
            s.v[j * DIM + d] = 1e6f;
        }
    }
    s.v[0] = 1.0f;
    oct__attn_tile tile = one_row;
    tile.key1 = 4;
    tile.pos0 = 1;
    tile.softcap = 1.0f;
    result r;
    run(&s, tile, q, &r);
    assert_true(r.m[0] == 1.0f);
    assert_true(fabsf(r.z[0] - (1.0f + expf(-2.0f))) < 1e-6f);
    assert_true(fabsf(r.o[0][0] - 1.0f) < 1e-6f);
    keys_free(&s);
}

/* Keys outside what rows see may hold anything, may even have no page; the result's bits do not change. */
static void test_unseen_bytes(void **state)
{
    (void)state;
    keys s;
    result clean, poisoned;
    uint64_t seed = 5;
    float q[4 * DIM];
    keys_make(&s, 24, 4);
    for (uint32_t i = 0; i < 24 * DIM; i++) {
        s.k[i] = (float)random_normal(&seed);
        s.v[i] = (float)random_normal(&seed);
    }
    for (uint32_t i = 0; i < 4 * DIM; i++) {
        q[i] = (float)random_normal(&seed);
    }
    /* Rows at 13 and 14 with a window of 5 see 9..14; the tile is cut at key 22. */
    oct__attn_tile tile = { .n_rows = 2, .n_heads = 2, .score_scale = 0.2f, .causal = 1, .window = 5, .key0 = 0, .key1 = 22, .pos0 = 13 };
    run(&s, tile, q, &clean);
    s.pages[0] = s.pages[1] = OCT_PAGE_NONE;
    for (uint32_t j = 0; j < 24; j++) {
        if (j < 9 || j > 14) {
            memset(s.k + j * DIM, 0xFF, DIM * sizeof(float));
            memset(s.v + j * DIM, 0xFF, DIM * sizeof(float));
        }
    }
    run(&s, tile, q, &poisoned);
    assert_memory_equal(&clean, &poisoned, sizeof clean);
    keys_free(&s);
}

/* A NaN stored in V at key 12 is seen by position 12 and later only, in its own dim; one in K takes the whole row. */
static void test_stored_nan(void **state)
{
    (void)state;
    static const float q[8 * DIM];
    for (int in_k = 0; in_k < 2; in_k++) {
        keys s;
        result r;
        keys_make(&s, 16, 4);
        (in_k ? s.k : s.v)[12 * DIM + 3] = NAN;
        oct__attn_tile tile = { .n_rows = 8, .n_heads = 1, .score_scale = 1.0f, .causal = 1, .key1 = 16, .pos0 = 8 };
        run(&s, tile, q, &r);
        for (uint32_t row = 0; row < 8; row++) {
            for (uint32_t d = 0; d < DIM; d++) {
                const int is_hit = row >= 4 && (in_k || d == 3);
                assert_int_equal(isnan(r.o[row][d]) != 0, is_hit);
            }
            assert_int_equal(isnan(r.z[row]) != 0, in_k && row >= 4);
        }
        keys_free(&s);
    }
}

/* A tree mask: rows see their own ancestors among the last keys, and all keys before those. */
static void test_mask(void **state)
{
    (void)state;
    static const float q[3 * DIM];
    static const uint32_t mask[3][2] = { { 1u << 0, 0 }, { 1u << 0 | 1u << 1, 0 }, { 1u << 0 | 1u << 2, 0 } };
    keys s;
    result r;
    keys_make(&s, 10, 4);
    for (uint32_t j = 0; j < 10; j++) {
        s.v[j * DIM + j] = 1.0f;
    }
    oct__attn_tile tile = { .n_rows = 3, .n_heads = 1, .score_scale = 1.0f, .causal = 1, .key1 = 10, .pos0 = 7, .mask = mask[0],
                            .mask_row_stride = 2, .mask_key0 = 7 };
    run(&s, tile, q, &r);
    for (uint32_t row = 0; row < 3; row++) {
        for (uint32_t j = 0; j < 10; j++) {
            assert_true(r.o[row][j] == (j < 7 || (mask[row][0] >> (j - 7) & 1) ? 1.0f : 0.0f));
        }
    }
    keys_free(&s);
}

/* Flat logits, slowly rising logits (the maximum moves with every key) and one needle, over lengths a factor 16 apart: the error must
 * stay under the bound of the f32 path and not grow. */
static void test_error_does_not_grow(void **state)
{
    (void)state;
    static const char *const names[] = { "flat", "rising", "needle" };
    for (int kind = 0; kind < 3; kind++) {
        for (int64_t n = 4096; n <= 65536; n *= 16) {
            keys s;
            result r;
            uint64_t seed = 11;
            float q[DIM];
            double z = 0.0, out[DIM] = { 0 }, v_max = 0.0, worst = 0.0;
            keys_make(&s, n, 16);
            for (uint32_t d = 0; d < DIM; d++) {
                q[d] = d == 0 ? 1.0f : (float)random_normal(&seed);
            }
            for (int64_t j = 0; j < n; j++) {
                for (uint32_t d = 0; d < DIM; d++) {
                    s.k[j * DIM + d] = (float)(0.02 * random_normal(&seed));
                    s.v[j * DIM + d] = (float)(0.5 + 0.1 * random_normal(&seed));
                }
                s.k[j * DIM] += kind == 1 ? 20.0f * (float)j / (float)n : kind == 2 && j == n / 2 ? 25.0f : 0.0f;
            }
            for (int pass = 0; pass < 2; pass++) { /* scores stay below 30: no maximum is needed in f64 */
                for (int64_t j = 0; j < n; j++) {
                    double score = 0.0;
                    for (uint32_t d = 0; d < DIM; d++) {
                        score += (double)q[d] * (double)s.k[j * DIM + d];
                    }
                    z += pass == 0 ? exp(score) : 0.0;
                    for (uint32_t d = 0; d < DIM && pass == 1; d++) {
                        const double v = (double)s.v[j * DIM + d];
                        out[d] += exp(score) / z * v;
                        v_max = fabs(v) > v_max ? fabs(v) : v_max;
                    }
                }
            }
            oct__attn_tile tile = one_row;
            tile.key1 = n;
            tile.pos0 = n - 1;
            run(&s, tile, q, &r);
            for (uint32_t d = 0; d < DIM; d++) {
                const double error = fabs((double)r.o[0][d] / (double)r.z[0] - out[d]) / v_max;
                worst = error > worst ? error : worst;
            }
            print_message("%s, %lld keys: worst error %.2e of max |V|\n", names[kind], (long long)n, worst);
            assert_true(worst <= 5e-7);
            assert_true(fabs((double)r.m[0] + log((double)r.z[0]) - log(z)) <= 1e-6 * fabs(log(z)));
            keys_free(&s);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_window_counts_itself), cmocka_unit_test(test_two_keys),   cmocka_unit_test(test_softcap),
        cmocka_unit_test(test_large_score),
        cmocka_unit_test(test_unseen_bytes),         cmocka_unit_test(test_stored_nan), cmocka_unit_test(test_mask),
        cmocka_unit_test(test_error_does_not_grow),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
