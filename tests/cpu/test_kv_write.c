/* test_kv_write.c: the scalar write: encodings at the edges, every scale mode, rotation, RoPE, layouts, slots, both destinations, counts. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "cpu/scalar.h"
#include "fixture.h"
#include "kv/layout.h"
#include "number/convert.h"
#include "number/dtype.h"
#include "number/number.h"
#include "number/scale.h"

#define TOKENS 4u
#define MAX_DIM 64u

/* A pool of 3 pages, poisoned with 0xAB, and a source of TOKENS tokens. */
typedef struct writing {
    oct_kv_layer layer;
    oct_kv_write_args args;
    int32_t slots[TOKENS];
    float k[TOKENS * 2 * MAX_DIM], v[TOKENS * 2 * MAX_DIM];
    float k_scale[2 * MAX_DIM], v_scale[2 * MAX_DIM];
    size_t k_bytes, v_bytes, scale_bytes;
} writing;

static void layer_make(oct_kv_layer *l, const oct_kv_spec *spec)
{
    assert_int_equal(oct_kv_layer_init(l, spec, 3, NULL), OCT_OK);
    const size_t k_bytes = (size_t)(3 * l->k_page_stride) * oct__dtype_size_bytes(spec->k.dtype);
    const size_t v_bytes = (size_t)(3 * l->v_page_stride) * oct__dtype_size_bytes(spec->v.dtype);
    l->k = malloc(k_bytes);
    l->v = malloc(v_bytes);
    assert_true(l->k != NULL && l->v != NULL);
    memset(l->k, 0xAB, k_bytes);
    memset(l->v, 0xAB, v_bytes);
    if (spec->k.scale_mode == OCT_SCALE_TOKEN_HEAD) {
        l->k_token_scale = calloc((size_t)(3 * l->k_scale_page_stride), 4);
        assert_non_null(l->k_token_scale);
    }
    if (spec->v.scale_mode == OCT_SCALE_TOKEN_HEAD) {
        l->v_token_scale = calloc((size_t)(3 * l->v_scale_page_stride), 4);
        assert_non_null(l->v_token_scale);
    }
}

static void layer_free(oct_kv_layer *l)
{
    free(l->k);
    free(l->v);
    free(l->k_token_scale);
    free(l->v_token_scale);
}

static const oct_kv_format f32_format = { OCT_DTYPE_F32, OCT_SCALE_NONE, 0, 0 };

static oct_kv_spec spec_of(oct_kv_format k, oct_kv_format v)
{
    const oct_kv_spec spec = { .struct_size = sizeof spec, .layout = OCT_LAYOUT_NHD, .heads = 2, .dim_k = 16, .dim_v = 24, .page_size = 16,
                               .k = k, .v = v };
    return spec;
}

static void write_make(writing *w, const oct_kv_spec *spec)
{
    uint64_t seed = 3;
    memset(w, 0, sizeof *w);
    layer_make(&w->layer, spec);
    w->layer.k_scale = w->k_scale;
    w->layer.v_scale = w->v_scale;
    for (uint32_t i = 0; i < 2 * MAX_DIM; i++) {
        w->k_scale[i] = 0.04f * (float)(1 + i % 7);
        w->v_scale[i] = 0.1f * (float)(1 + i % 5);
    }
    for (uint32_t i = 0; i < TOKENS * 2 * MAX_DIM; i++) {
        w->k[i] = (float)(2.0 * random_normal(&seed));
        w->v[i] = (float)(2.0 * random_normal(&seed));
    }
    for (uint32_t t = 0; t < TOKENS; t++) {
        w->slots[t] = (int32_t)(40 - 11 * t);
    }
    w->args = (oct_kv_write_args){ .struct_size = sizeof w->args, .layer = &w->layer, .slots = w->slots, .n_tokens = TOKENS,
                                   .src_dtype = OCT_DTYPE_F32, .k = w->k, .v = w->v, .k_token_stride = 2 * MAX_DIM,
                                   .k_head_stride = MAX_DIM, .v_token_stride = 2 * MAX_DIM, .v_head_stride = MAX_DIM };
}

static unsigned char k_byte(const oct_kv_layer *l, int32_t slot, uint32_t head, uint32_t d)
{
    return ((const unsigned char *)l->k)[oct__k_index(l, slot / 16, (uint32_t)slot % 16, head, d)];
}

static unsigned char v_byte(const oct_kv_layer *l, int32_t slot, uint32_t head, uint32_t d)
{
    return ((const unsigned char *)l->v)[oct__v_index(l, slot / 16, (uint32_t)slot % 16, head, d)];
}

/* Beyond the largest value, infinities, NaN, ties and subnormals, from f32; the bytes are written out by hand. */
static void test_edges(void **state)
{
    (void)state;
    static const float x[16] = { 447.0f, 448.0f, 449.0f, 464.0f, 465.0f, 1e6f, -1e6f, INFINITY,
                                 -INFINITY, NAN, 0x1p-9f, 0x1p-10f, -0.0f, 0x1.8p-9f, 1.0f, 1.0625f };
    static const unsigned char e4m3fn[16] = { 0x7E, 0x7E, 0x7E, 0x7E, 0x7E, 0x7E, 0xFE, 0x7E,
                                              0xFE, 0x7F, 0x01, 0x00, 0x80, 0x02, 0x38, 0x38 };
    static const unsigned char fnuz[16] = { 0x7F, 0x7F, 0x7F, 0x7F, 0x7F, 0x7F, 0xFF, 0x7F,
                                            0xFF, 0x80, 0x02, 0x01, 0x00, 0x03, 0x40, 0x40 };
    oct_kv_counts k_counts = { 0 }, v_counts = { 0 };
    writing w;
    const oct_kv_spec spec = spec_of((oct_kv_format){ OCT_DTYPE_E4M3FN, OCT_SCALE_NONE, 0, 0 }, (oct_kv_format){ OCT_DTYPE_E4M3FNUZ, OCT_SCALE_NONE, 0, 0 });
    write_make(&w, &spec);
    memcpy(w.k, x, sizeof x);
    memcpy(w.v, x, sizeof x);
    memset(w.v + 16, 0, 8 * sizeof(float));
    oct__kv_write__scalar(&w.args, 0, 1, &k_counts, &v_counts);
    for (uint32_t d = 0; d < 16; d++) {
        assert_int_equal(k_byte(&w.layer, w.slots[0], 0, d), e4m3fn[d]);
        assert_int_equal(v_byte(&w.layer, w.slots[0], 0, d), fnuz[d]);
    }
    /* Both heads are counted; the other one holds small numbers. 464 is a tie that stays at 448. */
    assert_int_equal(k_counts.n_values, 32);
    assert_int_equal(k_counts.n_saturated, 5);
    assert_int_equal(k_counts.n_nan, 1);
    assert_true(k_counts.amax == 1e6f);
    assert_int_equal(v_counts.n_values, 48);
    assert_int_equal(v_counts.n_saturated, 9);
    layer_free(&w.layer);
}

/* Every static mode divides by its own scale. */
static void test_static_scales(void **state)
{
    (void)state;
    for (uint32_t mode = OCT_SCALE_TENSOR; mode <= OCT_SCALE_CHANNEL; mode++) {
        if (mode == OCT_SCALE_TOKEN_HEAD) {
            continue;
        }
        writing w;
        const oct_kv_spec spec = spec_of((oct_kv_format){ OCT_DTYPE_E4M3FN, mode, 0, 0 }, (oct_kv_format){ OCT_DTYPE_E5M2, mode, 0, 0 });
        write_make(&w, &spec);
        w.k[0] = 0x1.ae147cp-6f; /* over 0.04 a tie that goes up; times the rounded 1 / 0.04 it falls short of it */
        oct__kv_write__scalar(&w.args, 0, TOKENS, NULL, NULL);
        assert_int_equal(k_byte(&w.layer, w.slots[0], 0, 0), 51);
        for (uint32_t t = 0; t < TOKENS; t++) {
            for (uint32_t h = 0; h < 2; h++) {
                for (uint32_t d = 0; d < 24; d++) {
                    const float k_scale = w.k_scale[mode == OCT_SCALE_CHANNEL ? h * 16 + d : mode == OCT_SCALE_LAYER_HEAD ? h : 0];
                    const float v_scale = w.v_scale[mode == OCT_SCALE_CHANNEL ? h * 24 + d : mode == OCT_SCALE_LAYER_HEAD ? h : 0];
                    if (d < 16) {
                        assert_int_equal(k_byte(&w.layer, w.slots[t], h, d), oct__e4m3fn_from_f32(w.k[(t * 2 + h) * MAX_DIM + d] / k_scale));
                    }
                    assert_int_equal(v_byte(&w.layer, w.slots[t], h, d), oct__e5m2_from_f32(w.v[(t * 2 + h) * MAX_DIM + d] / v_scale));
                }
            }
        }
        layer_free(&w.layer);
    }
}

/* amax / 127 beside the page; the stored number is the one divided by, in f16 too; the floor; a NaN makes the scale NaN, in its own
 * vector only, and is counted. */
static void test_token_scales(void **state)
{
    (void)state;
    for (uint32_t scale_dtype = OCT_DTYPE_F32; scale_dtype <= OCT_DTYPE_F16; scale_dtype++) {
        oct_kv_counts counts = { 0 };
        writing w;
        const oct_kv_format format = { OCT_DTYPE_I8, OCT_SCALE_TOKEN_HEAD, scale_dtype, 0 };
        const oct_kv_spec spec = spec_of(format, format);
        write_make(&w, &spec);
        for (uint32_t d = 0; d < 16; d++) {
            w.k[MAX_DIM + d] = 0.0f; /* token 0, head 1 */
        }
        w.k[2 * MAX_DIM + 5] = NAN; /* token 1, head 0 */
        oct__kv_write__scalar(&w.args, 0, TOKENS, &counts, NULL);
        assert_int_equal(counts.n_nan, 1);
        assert_int_equal(counts.n_saturated, 0);
        for (uint32_t t = 0; t < TOKENS; t++) {
            for (uint32_t h = 0; h < 2; h++) {
                float amax = 0.0f, scale;
                for (uint32_t d = 0; d < 16; d++) {
                    const float x = fabsf(w.k[(t * 2 + h) * MAX_DIM + d]);
                    amax = x > amax ? x : amax;
                }
                const int64_t at = oct__k_scale_index(&w.layer, w.slots[t] / 16, (uint32_t)w.slots[t] % 16, h);
                oct__row_to_f32(&scale, (const unsigned char *)w.layer.k_token_scale + at * oct__dtype_size_bytes(scale_dtype), scale_dtype, 1);
                if (t == 1 && h == 0) {
                    assert_true(isnan(scale));
                    for (uint32_t d = 0; d < 16; d++) {
                        assert_int_equal(k_byte(&w.layer, w.slots[t], h, d), 0);
                    }
                    continue;
                }
                const float exact = t == 0 && h == 1 ? OCT__SCALE_FLOOR : amax / 127.0f;
                assert_true(scale_dtype == OCT_DTYPE_F32 ? scale == exact : scale >= exact && scale <= exact * 1.0011f + 0x1p-24f);
                for (uint32_t d = 0; d < 16; d++) {
                    assert_int_equal((signed char)k_byte(&w.layer, w.slots[t], h, d), oct__i8_from_f32(w.k[(t * 2 + h) * MAX_DIM + d] / scale));
                }
            }
        }
        layer_free(&w.layer);
    }
}

/* RoPE against f64, both styles, with factors and a position scale; dims past n_dims stay; K is rotated after it, V never turned. */
static void test_rope_and_rotation(void **state)
{
    (void)state;
    static const int32_t positions[TOKENS] = { 0, 1, 77, 131071 };
    static const float factors[6] = { 1.0f, 1.5f, 2.0f, 4.0f, 8.0f, 8.0f };
    for (uint32_t style = 0; style < 2; style++) {
        for (uint32_t rotated = 0; rotated < 2; rotated++) {
            writing w;
            oct_kv_spec spec = spec_of(f32_format, f32_format);
            spec.k.rotated = spec.v.rotated = rotated;
            const oct_rope rope = { sizeof rope, style, 12, 10000.0f, 0.5f, factors };
            write_make(&w, &spec);
            w.args.rope = &rope;
            w.args.positions = positions;
            oct__kv_write__scalar(&w.args, 0, TOKENS, NULL, NULL);
            for (uint32_t t = 0; t < TOKENS; t++) {
                const float *source = w.k + t * 2 * MAX_DIM;
                double x[16], y[16];
                for (uint32_t d = 0; d < 16; d++) {
                    x[d] = (double)source[d];
                }
                for (uint32_t i = 0; i < 6; i++) {
                    const uint32_t a = style == 0 ? i : 2 * i, b = style == 0 ? i + 6 : 2 * i + 1;
                    const double theta = positions[t] * 0.5 * pow(10000.0, -2.0 * i / 12.0) / (double)factors[i];
                    const double xa = x[a], xb = x[b];
                    x[a] = xa * cos(theta) - xb * sin(theta);
                    x[b] = xa * sin(theta) + xb * cos(theta);
                }
                for (uint32_t r = 0; r < 16; r++) {
                    y[r] = 0.0;
                    for (uint32_t c = 0; c < 16; c++) {
                        y[r] += (__builtin_popcount(r & c) % 2 ? -x[c] : x[c]) / 4.0;
                    }
                    const double want = rotated ? y[r] : x[r];
                    const double got = stored_value(&w.layer, 1, w.slots[t] / 16, (uint32_t)w.slots[t] % 16, 0, r);
                    assert_true(fabs(got - want) < 3e-6);
                    if (!rotated) {
                        assert_true(stored_value(&w.layer, 0, w.slots[t] / 16, (uint32_t)w.slots[t] % 16, 0, r) == (double)w.v[t * 2 * MAX_DIM + r]);
                    }
                }
            }
            layer_free(&w.layer);
        }
    }
}

/* Only named slots change, every layout puts the vector where layout.h says, and the source of a skipped token is not read. */
static void test_slots_and_layouts(void **state)
{
    (void)state;
    static const oct_kv_format formats[] = { { OCT_DTYPE_E4M3FN, OCT_SCALE_NONE, 0, 0 }, { OCT_DTYPE_BF16, OCT_SCALE_NONE, 0, 0 }, { OCT_DTYPE_F32, OCT_SCALE_NONE, 0, 0 } };
    for (uint32_t layout = 0; layout < 3; layout++) {
        for (size_t format = 0; format < 3; format++) {
            writing w;
            oct_kv_spec spec = spec_of(formats[format], formats[2 - format]);
            spec.layout = layout;
            write_make(&w, &spec);
            w.slots[0] = -1;
            w.slots[1] = 47; /* the pool's last */
            w.slots[2] = 48; /* one past it */
            w.slots[3] = 0;
            w.args.k = malloc(TOKENS * 2 * MAX_DIM * sizeof(float)); /* a sanitizer sees the end of it */
            assert_non_null(w.args.k);
            memcpy((void *)w.args.k, w.k, sizeof w.k);
            int changed = 0;
            oct__kv_write__scalar(&w.args, 0, TOKENS, NULL, NULL);
            for (int32_t slot = 0; slot < 48; slot++) {
                for (uint32_t h = 0; h < 2; h++) {
                    for (uint32_t d = 0; d < 24; d++) {
                        const uint32_t size_k = oct__dtype_size_bytes(spec.k.dtype), size_v = oct__dtype_size_bytes(spec.v.dtype);
                        const float *k = w.k + ((slot == 47 ? 1 : 3) * 2 + h) * MAX_DIM, *v = w.v + ((slot == 47 ? 1 : 3) * 2 + h) * MAX_DIM;
                        unsigned char want[4];
                        memset(want, 0xAB, sizeof want);
                        const int is_named = slot == 0 || slot == 47;
                        if (d < 16) {
                            if (is_named) {
                                oct__row_from_f32(want, spec.k.dtype, k + d, 1, 1.0f, NULL);
                            }
                            assert_memory_equal((unsigned char *)w.layer.k + oct__k_index(&w.layer, slot / 16, (uint32_t)slot % 16, h, d) * size_k, want, size_k);
                        }
                        memset(want, 0xAB, sizeof want);
                        if (is_named) {
                            oct__row_from_f32(want, spec.v.dtype, v + d, 1, 1.0f, NULL);
                            changed++;
                        }
                        assert_memory_equal((unsigned char *)w.layer.v + oct__v_index(&w.layer, slot / 16, (uint32_t)slot % 16, h, d) * size_v, want, size_v);
                    }
                }
            }
            assert_int_equal(changed, 2 * 2 * 24);
            free((void *)w.args.k);
            layer_free(&w.layer);
        }
    }
}

/* A padded batch: more slots of -1 than rows of K and V. */
static void test_skipped_source_is_unread(void **state)
{
    (void)state;
    writing w;
    const oct_kv_spec spec = spec_of(f32_format, f32_format);
    write_make(&w, &spec);
    float *k = malloc(2 * MAX_DIM * sizeof *k), *v = malloc(2 * MAX_DIM * sizeof *v); /* one token each */
    assert_true(k != NULL && v != NULL);
    memcpy(k, w.k, 2 * MAX_DIM * sizeof *k);
    memcpy(v, w.v, 2 * MAX_DIM * sizeof *v);
    w.args.k = k;
    w.args.v = v;
    w.slots[1] = w.slots[2] = w.slots[3] = -1;
    oct__kv_write__scalar(&w.args, 0, TOKENS, NULL, NULL);
    assert_true(stored_value(&w.layer, 1, w.slots[0] / 16, (uint32_t)w.slots[0] % 16, 1, 15) == (double)k[MAX_DIM + 15]);
    free(k);
    free(v);
    layer_free(&w.layer);
}

/* The twin pool gets the same source in its own format, at its own slots, whichever of the two a token lacks. Counts are the first's. */
static void test_second_destination(void **state)
{
    (void)state;
    oct_kv_counts counts = { 0 }, alone_counts = { 0 };
    static const int32_t window_slots[TOKENS] = { -1, 7, 8, 9 };
    const oct_kv_format i8 = { OCT_DTYPE_I8, OCT_SCALE_TOKEN_HEAD, OCT_DTYPE_F32, 1 }, e4m3 = { OCT_DTYPE_E4M3FN, OCT_SCALE_LAYER, 0, 0 };
    const oct_kv_spec spec = spec_of(i8, e4m3), window_spec = spec_of(e4m3, i8);
    writing both, alone, window_alone;
    oct_kv_layer window;
    write_make(&both, &spec);
    write_make(&alone, &spec);
    write_make(&window_alone, &window_spec);
    layer_make(&window, &window_spec);
    window.k_scale = both.k_scale;
    window.v_scale = both.v_scale;
    both.slots[3] = alone.slots[3] = -1;
    memcpy(window_alone.slots, window_slots, sizeof window_slots);
    both.args.layer_window = &window;
    both.args.slots_window = window_slots;
    oct__kv_write__scalar(&both.args, 0, 2, &counts, NULL);
    oct__kv_write__scalar(&both.args, 2, TOKENS, &counts, NULL);
    oct__kv_write__scalar(&alone.args, 0, TOKENS, &alone_counts, NULL);
    oct__kv_write__scalar(&window_alone.args, 0, TOKENS, NULL, NULL);
    assert_memory_equal(both.layer.k, alone.layer.k, (size_t)(3 * both.layer.k_page_stride));
    assert_memory_equal(both.layer.v, alone.layer.v, (size_t)(3 * both.layer.v_page_stride));
    assert_memory_equal(both.layer.k_token_scale, alone.layer.k_token_scale, (size_t)(3 * both.layer.k_scale_page_stride) * 4);
    assert_memory_equal(window.k, window_alone.layer.k, (size_t)(3 * window.k_page_stride));
    assert_memory_equal(window.v, window_alone.layer.v, (size_t)(3 * window.v_page_stride));
    assert_memory_equal(window.v_token_scale, window_alone.layer.v_token_scale, (size_t)(3 * window.v_scale_page_stride) * 4);
    assert_memory_equal(&counts, &alone_counts, sizeof counts);
    assert_int_equal(counts.n_values, 3 * 2 * 16);
    layer_free(&both.layer);
    layer_free(&alone.layer);
    layer_free(&window_alone.layer);
    layer_free(&window);
}

/* 16-bit sources go through f32 once. */
static void test_source_formats(void **state)
{
    (void)state;
    for (uint32_t src = OCT_DTYPE_F16; src <= OCT_DTYPE_BF16; src++) {
        writing w;
        uint16_t k[TOKENS * 2 * MAX_DIM], v[TOKENS * 2 * MAX_DIM];
        const oct_kv_format e5m2 = { OCT_DTYPE_E5M2, OCT_SCALE_LAYER, 0, 0 };
        const oct_kv_spec spec = spec_of(e5m2, e5m2);
        write_make(&w, &spec);
        oct__row_from_f32(k, src, w.k, TOKENS * 2 * MAX_DIM, 1.0f, NULL);
        oct__row_from_f32(v, src, w.v, TOKENS * 2 * MAX_DIM, 1.0f, NULL);
        w.args.k = k;
        w.args.v = v;
        w.args.src_dtype = src;
        oct__kv_write__scalar(&w.args, 0, TOKENS, NULL, NULL);
        for (uint32_t d = 0; d < 16; d++) {
            const uint16_t code = k[3 * 2 * MAX_DIM + d];
            const float x = src == OCT_DTYPE_F16 ? oct__f16_to_f32(code) : oct__bf16_to_f32(code);
            assert_int_equal(k_byte(&w.layer, w.slots[3], 0, d), oct__e5m2_from_f32(x / w.k_scale[0]));
        }
        layer_free(&w.layer);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_edges),
        cmocka_unit_test(test_static_scales),
        cmocka_unit_test(test_token_scales),
        cmocka_unit_test(test_rope_and_rotation),
        cmocka_unit_test(test_slots_and_layouts),
        cmocka_unit_test(test_skipped_source_is_unread),
        cmocka_unit_test(test_second_destination),
        cmocka_unit_test(test_source_formats),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
