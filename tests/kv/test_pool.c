/* Pools: sizes, where layers lie, static scales, copies of pages, what is refused, and allocations that fail. */
#include "kv_test.h"

#include <math.h>

#include "kv/layout.h"
#include "kv/pool.h"

static oct_kv_pool_options options_of(oct_kv_spec spec, uint32_t n_layers, int64_t n_pages)
{
    return (oct_kv_pool_options){.struct_size = (uint32_t)sizeof(oct_kv_pool_options), .n_layers = n_layers, .n_pages = n_pages, .spec = spec};
}

static oct_kv_format plain(uint32_t dtype)
{
    return format_of(dtype, OCT_SCALE_NONE, 0);
}

static oct_kv_pool *pool_of(const oct__allocator *allocator, oct_kv_spec spec, uint32_t n_layers, int64_t n_pages)
{
    const oct_kv_pool_options options = options_of(spec, n_layers, n_pages);
    oct_error error = OCT_ERROR_INIT;
    oct_kv_pool *pool;
    if (oct__kv_pool_create(allocator, NULL, &options, &pool, &error) != OCT_OK) {
        fail_msg("%s: %s", error.where, error.text);
    }
    return pool;
}

static void refuses_wrong_options(void **state)
{
    const oct_kv_spec spec = spec_of(OCT_LAYOUT_NHD, 2, 64, 64, 16, plain(OCT_DTYPE_BF16), plain(OCT_DTYPE_BF16));
    oct_kv_pool_options options = options_of(spec, 2, 8);
    oct_error error = OCT_ERROR_INIT;
    oct_kv_pool *pool = (oct_kv_pool *)&options;
    (void)state;
    options = options_of(spec, 0, 8);
    assert_int_equal(oct__kv_pool_create(&plain_allocator, NULL, &options, &pool, &error), OCT_INVALID_ARGUMENT);
    assert_string_equal(error.text, "options.n_layers is 0; must be at least 1");
    assert_string_equal(error.where, "oct_kv_pool_create");
    assert_null(pool);
    options = options_of(spec, 2, 0);
    assert_int_equal(oct__kv_pool_create(&plain_allocator, NULL, &options, &pool, &error), OCT_INVALID_ARGUMENT);
    assert_string_equal(error.text, "options.n_pages is 0; must be from 1 to 134217727: slots of 16 tokens a page are int32");
    options = options_of(spec, 2, 134217728);
    assert_int_equal(oct__kv_pool_create(&plain_allocator, NULL, &options, &pool, &error), OCT_INVALID_ARGUMENT);
    options = options_of(spec, 2, 8);
    options.spec.dim_v = 20;
    assert_int_equal(oct__kv_pool_create(&plain_allocator, NULL, &options, &pool, &error), OCT_INVALID_ARGUMENT);
    assert_string_equal(error.text, "options.spec.dim_v is 20; must be a multiple of 8 from 16 to 512");
    options = options_of(spec, UINT32_MAX, 134217727); /* 2^32 layers of 2^40 bytes */
    assert_int_equal(oct__kv_pool_create(&plain_allocator, NULL, &options, &pool, &error), OCT_INVALID_ARGUMENT);
    assert_non_null(strstr(error.text, "options.n_layers is 4294967295; layers of 134217727 pages must fit the address space"));
    options = options_of(spec, 1u << 20, 134217727); /* fits 64 bits, and no machine */
    assert_int_equal(oct__kv_pool_create(&plain_allocator, NULL, &options, &pool, &error), OCT_OUT_OF_MEMORY);
    assert_non_null(strstr(error.text, "134217727 pages"));
    assert_null(pool);
    oct_kv_pool_destroy(NULL);
    assert_int_equal(oct_kv_pool_bytes(NULL), 0);
}

static void bytes_are_pages_and_scales(void **state)
{
    const oct_kv_format head = format_of(OCT_DTYPE_E4M3FN, OCT_SCALE_LAYER_HEAD, 0);
    const oct_kv_format channel = format_of(OCT_DTYPE_I8, OCT_SCALE_CHANNEL, 0);
    const oct_kv_format tensor = format_of(OCT_DTYPE_E5M2, OCT_SCALE_TENSOR, 0);
    const oct_kv_format layer = format_of(OCT_DTYPE_E4M3FNUZ, OCT_SCALE_LAYER, 0);
    const oct_kv_format token = format_of(OCT_DTYPE_I8, OCT_SCALE_TOKEN_HEAD, OCT_DTYPE_F16);
    const struct {
        oct_kv_format k, v;
        uint64_t bytes;
    } cases[] = { /* 3 heads, dims 64 and 80, pages of 5, 7 pages, 4 layers: 4 x 7 x 5 x 3 = 420 vectors of K and of V */
        {plain(OCT_DTYPE_F32), plain(OCT_DTYPE_BF16), 420 * (64 * 4 + 80 * 2)},
        {head, channel, 420 * (64 + 80) + 4 * 4 * (3 + 3 * 80)},
        {tensor, layer, 420 * (64 + 80) + 4 * (1 + 4)},
        {token, token, 420 * (64 + 80 + 2 + 2)},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        oct_kv_pool *pool = pool_of(&plain_allocator, spec_of(OCT_LAYOUT_NHD, 3, 64, 80, 5, cases[i].k, cases[i].v), 4, 7);
        assert_int_equal(oct_kv_pool_bytes(pool), cases[i].bytes);
        oct_kv_pool_destroy(pool);
    }
}

typedef struct range { const unsigned char *begin, *end; } range;

/* Every part of every layer is zero, aligned, writable to its last byte, and apart from all others. */
static void layers_are_zero_and_disjoint(const oct__allocator *allocator)
{
    const oct_kv_format i8 = format_of(OCT_DTYPE_I8, OCT_SCALE_TOKEN_HEAD, OCT_DTYPE_F32);
    const oct_kv_format e4m3 = format_of(OCT_DTYPE_E4M3FN, OCT_SCALE_TOKEN_HEAD, OCT_DTYPE_F16);
    enum { LAYERS = 5, PAGES = 3, PAGE_SIZE = 7, HEADS = 3 };
    oct_kv_pool *pool = pool_of(allocator, spec_of(OCT_LAYOUT_HND, HEADS, 24, 40, PAGE_SIZE, i8, e4m3), LAYERS, PAGES);
    const size_t vectors = PAGES * PAGE_SIZE * HEADS;
    range parts[LAYERS * 4];
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        oct_kv_layer view;
        memset(&view, 0xFF, sizeof(view));
        assert_int_equal(oct_kv_pool_layer(pool, layer, &view, NULL), OCT_OK);
        assert_null(view.k_scale);
        assert_null(view.v_scale);
        const void *begins[4] = {view.k, view.v, view.k_token_scale, view.v_token_scale};
        const size_t sizes[4] = {vectors * 24, vectors * 40, vectors * 4, vectors * 2};
        for (int part = 0; part < 4; part++) {
            parts[layer * 4 + part] = (range){begins[part], (const unsigned char *)begins[part] + sizes[part]};
        }
    }
    for (int i = 0; i < LAYERS * 4; i++) {
        assert_int_equal((uintptr_t)parts[i].begin % 64, 0);
        for (const unsigned char *byte = parts[i].begin; byte < parts[i].end; byte++) {
            assert_int_equal(*byte, 0);
        }
        memset((unsigned char *)(uintptr_t)parts[i].begin, 0xFF, (size_t)(parts[i].end - parts[i].begin));
        for (int j = 0; j < i; j++) {
            assert_true(parts[i].begin >= parts[j].end || parts[i].end <= parts[j].begin);
        }
    }
    oct_kv_pool_destroy(pool);
}

static void layers_are_zero_and_disjoint_without_hooks(void **state)
{
    (void)state;
    layers_are_zero_and_disjoint(&plain_allocator);
}

static void layers_are_zero_and_disjoint_with_hooks(void **state)
{
    counting c;
    (void)state;
    counting_init(&c);
    layers_are_zero_and_disjoint(&c.hooks);
    assert_true(c.made > 0);
    counting_check_empty(&c);
}

static void no_layer_before_its_scales(void **state)
{
    const oct_kv_format head = format_of(OCT_DTYPE_E4M3FN, OCT_SCALE_LAYER_HEAD, 0), layer = format_of(OCT_DTYPE_E5M2, OCT_SCALE_LAYER, 0);
    oct_kv_pool *pool = pool_of(&plain_allocator, spec_of(OCT_LAYOUT_NHD, 3, 64, 64, 16, head, layer), 2, 4);
    const float k_scales[3] = {0.5f, 0.25f, 2.0f}, v_scale = 0.125f, other = 4.0f;
    oct_error error = OCT_ERROR_INIT;
    oct_kv_layer view, view1;
    (void)state;
    assert_int_equal(oct_kv_pool_layer(pool, 1, &view, &error), OCT_INVALID_ARGUMENT);
    assert_string_equal(error.text, "layer is 1, whose K scale (scale_mode layer_head) was never set; oct_kv_pool_set_scale must come first");
    assert_int_equal(oct_kv_pool_set_scale(pool, 1, 0, k_scales, 3, &error), OCT_OK);
    assert_int_equal(oct_kv_pool_layer(pool, 1, &view, &error), OCT_INVALID_ARGUMENT);
    assert_string_equal(error.text, "layer is 1, whose V scale (scale_mode layer) was never set; oct_kv_pool_set_scale must come first");
    assert_int_equal(oct_kv_pool_set_scale(pool, 1, 1, &v_scale, 1, &error), OCT_OK);
    assert_int_equal(oct_kv_pool_layer(pool, 0, &view, &error), OCT_INVALID_ARGUMENT); /* another layer's scales do not serve */
    assert_int_equal(oct_kv_pool_layer(pool, 1, &view, &error), OCT_OK);
    assert_memory_equal(view.k_scale, k_scales, sizeof(k_scales));
    assert_true(view.v_scale[0] == v_scale);

    /* A view follows a changed scale, and layers have their own. */
    assert_int_equal(oct_kv_pool_set_scale(pool, 0, 0, k_scales, 3, &error), OCT_OK);
    assert_int_equal(oct_kv_pool_set_scale(pool, 0, 1, &other, 1, &error), OCT_OK);
    assert_int_equal(oct_kv_pool_layer(pool, 0, &view1, &error), OCT_OK);
    assert_true(view.v_scale[0] == v_scale && view1.v_scale[0] == other);
    assert_int_equal(oct_kv_pool_set_scale(pool, 1, 1, &other, 1, &error), OCT_OK);
    assert_true(view.v_scale[0] == other);

    assert_int_equal(oct_kv_pool_layer(pool, 2, &view, &error), OCT_INVALID_ARGUMENT);
    assert_string_equal(error.text, "layer is 2; must be below 2");
    assert_int_equal(oct_kv_pool_layer(NULL, 0, &view, &error), OCT_INVALID_ARGUMENT);
    assert_int_equal(oct_kv_pool_layer(pool, 0, NULL, &error), OCT_INVALID_ARGUMENT);
    oct_kv_pool_destroy(pool);
}

static void a_tensor_scale_serves_all_layers(void **state)
{
    const oct_kv_format tensor = format_of(OCT_DTYPE_E4M3FN, OCT_SCALE_TENSOR, 0);
    oct_kv_pool *pool = pool_of(&plain_allocator, spec_of(OCT_LAYOUT_NHD, 3, 64, 64, 16, tensor, plain(OCT_DTYPE_E4M3FN)), 3, 4);
    const float scale = 0.04f;
    oct_error error = OCT_ERROR_INIT;
    oct_kv_layer view[3];
    (void)state;
    assert_int_equal(oct_kv_pool_layer(pool, 2, &view[2], &error), OCT_INVALID_ARGUMENT);
    assert_int_equal(oct_kv_pool_set_scale(pool, 1, 0, &scale, 1, &error), OCT_INVALID_ARGUMENT);
    assert_string_equal(error.text, "layer is 1; must be below 1 for K with scale_mode tensor");
    assert_int_equal(oct_kv_pool_set_scale(pool, 0, 0, &scale, 1, &error), OCT_OK);
    for (uint32_t layer = 0; layer < 3; layer++) {
        assert_int_equal(oct_kv_pool_layer(pool, layer, &view[layer], &error), OCT_OK);
        assert_ptr_equal(view[layer].k_scale, view[0].k_scale);
        assert_true(view[layer].k_scale[0] == scale);
        assert_null(view[layer].v_scale); /* an 8-bit float without a scale: 1, never read */
    }
    oct_kv_pool_destroy(pool);
}

static void scales_are_finite_and_positive_or_refused(void **state)
{
    const oct_kv_format channel = format_of(OCT_DTYPE_I8, OCT_SCALE_CHANNEL, 0);
    const float bad[] = {0.0f, -0.0f, -1.0f, NAN, INFINITY, -INFINITY};
    oct_kv_pool *pool = pool_of(&plain_allocator, spec_of(OCT_LAYOUT_NHD, 2, 16, 24, 16, plain(OCT_DTYPE_BF16), channel), 2, 4);
    float scales[48];
    oct_error error = OCT_ERROR_INIT;
    oct_kv_layer view;
    (void)state;
    for (int i = 0; i < 48; i++) {
        scales[i] = (float)(i + 1);
    }
    assert_int_equal(oct_kv_pool_set_scale(pool, 1, 1, scales, 48, &error), OCT_OK);
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        for (size_t at = 0; at < 48; at += 47) {
            const float good = scales[at];
            scales[at] = bad[i];
            assert_int_equal(oct_kv_pool_set_scale(pool, 1, 1, scales, 48, &error), OCT_INVALID_ARGUMENT);
            scales[at] = good;
        }
    }
    assert_string_equal(error.text, "V scale of layer 1, head 1 is -inf (number 47); must be finite and > 0");
    for (int i = 0; i < 48; i++) {
        scales[i] = 7.0f;
    }
    scales[24] = 0.0f;
    assert_int_equal(oct_kv_pool_set_scale(pool, 1, 1, scales, 48, &error), OCT_INVALID_ARGUMENT);
    assert_string_equal(error.text, "V scale of layer 1, head 1 is 0 (number 24); must be finite and > 0");
    assert_int_equal(oct_kv_pool_layer(pool, 1, &view, &error), OCT_OK);
    for (int i = 0; i < 48; i++) {
        assert_true(view.v_scale[i] == (float)(i + 1)); /* a refusal changes nothing */
    }
    assert_int_equal(oct_kv_pool_set_scale(pool, 0, 1, scales, 48, &error), OCT_INVALID_ARGUMENT);
    assert_int_equal(oct_kv_pool_layer(pool, 0, &view, &error), OCT_INVALID_ARGUMENT); /* nor does it count as set */

    scales[24] = 1e-44f; /* a subnormal is > 0 */
    assert_int_equal(oct_kv_pool_set_scale(pool, 0, 1, scales, 48, &error), OCT_OK);
    assert_int_equal(oct_kv_pool_set_scale(pool, 0, 1, scales, 47, &error), OCT_INVALID_ARGUMENT);
    assert_string_equal(error.text, "n is 47; must be 48 for V with scale_mode channel");
    assert_int_equal(oct_kv_pool_set_scale(pool, 0, 1, NULL, 48, &error), OCT_INVALID_ARGUMENT);
    assert_int_equal(oct_kv_pool_set_scale(pool, 2, 1, scales, 48, &error), OCT_INVALID_ARGUMENT);
    assert_string_equal(error.text, "layer is 2; must be below 2 for V with scale_mode channel");
    assert_int_equal(oct_kv_pool_set_scale(pool, 0, 2, scales, 48, &error), OCT_INVALID_ARGUMENT);
    assert_string_equal(error.text, "which is 2; must be 0 (K) or 1 (V)");
    assert_int_equal(oct_kv_pool_set_scale(pool, 0, 0, scales, 1, &error), OCT_INVALID_ARGUMENT);
    assert_string_equal(error.text, "which is 0, but K of this pool takes no static scale: its scale_mode is none");
    assert_int_equal(oct_kv_pool_set_scale(NULL, 0, 0, scales, 1, &error), OCT_INVALID_ARGUMENT);
    oct_kv_pool_destroy(pool);
}

/* Every element of (layer, page) gets a byte of its own through the layout's indices. */
static unsigned char pattern(uint32_t layer, int64_t page, int64_t i)
{
    return (unsigned char)(layer * 101 + page * 37 + i * 7 + (i >> 8) * 13 + 1);
}

static void fill(const oct_kv_layer *view, uint32_t layer)
{
    const oct_kv_spec *s = &view->spec;
    for (int64_t page = 0; page < view->n_pages; page++) {
        int64_t i = 0;
        for (uint32_t t = 0; t < s->page_size; t++) {
            for (uint32_t h = 0; h < s->heads; h++) {
                for (uint32_t d = 0; d < s->dim_k; d++) {
                    ((unsigned char *)view->k)[oct__k_index(view, page, t, h, d)] = pattern(layer, page, i++);
                }
                for (uint32_t d = 0; d < s->dim_v; d++) {
                    ((uint16_t *)view->v)[oct__v_index(view, page, t, h, d)] = pattern(layer, page, i++);
                }
                ((float *)view->k_token_scale)[oct__k_scale_index(view, page, t, h)] = pattern(layer, page, i++);
            }
        }
    }
}

/* Whether (layer, page) holds what fill wrote for `as`. */
static bool holds(const oct_kv_layer *view, uint32_t layer, int64_t page, int64_t as)
{
    const oct_kv_spec *s = &view->spec;
    int64_t i = 0;
    bool same = true;
    for (uint32_t t = 0; t < s->page_size; t++) {
        for (uint32_t h = 0; h < s->heads; h++) {
            for (uint32_t d = 0; d < s->dim_k; d++) {
                same = same && ((unsigned char *)view->k)[oct__k_index(view, page, t, h, d)] == pattern(layer, as, i++);
            }
            for (uint32_t d = 0; d < s->dim_v; d++) {
                same = same && ((uint16_t *)view->v)[oct__v_index(view, page, t, h, d)] == pattern(layer, as, i++);
            }
            same = same && ((float *)view->k_token_scale)[oct__k_scale_index(view, page, t, h)] == pattern(layer, as, i++);
        }
    }
    return same;
}

static void copy_page_copies_every_layer_and_nothing_else(void **state)
{
    const oct_kv_format i8 = format_of(OCT_DTYPE_I8, OCT_SCALE_TOKEN_HEAD, OCT_DTYPE_F32);
    enum { LAYERS = 3, PAGES = 5 };
    (void)state;
    for (uint32_t layout = OCT_LAYOUT_NHD; layout <= OCT_LAYOUT_V5D; layout++) {
        oct_kv_pool *pool = pool_of(&plain_allocator, spec_of(layout, 3, 32, 40, 8, i8, plain(OCT_DTYPE_F16)), LAYERS, PAGES);
        oct_kv_layer views[LAYERS];
        for (uint32_t layer = 0; layer < LAYERS; layer++) {
            assert_int_equal(oct_kv_pool_layer(pool, layer, &views[layer], NULL), OCT_OK);
            fill(&views[layer], layer);
        }
        assert_int_equal(oct_kv_pool_copy_page(pool, 3, 1), OCT_OK);
        assert_int_equal(oct_kv_pool_copy_page(pool, 0, 4), OCT_OK);
        assert_int_equal(oct_kv_pool_copy_page(pool, 2, 2), OCT_OK);
        assert_int_equal(oct_kv_pool_copy_page(pool, -1, 2), OCT_INVALID_ARGUMENT);
        assert_int_equal(oct_kv_pool_copy_page(pool, 2, -1), OCT_INVALID_ARGUMENT);
        assert_int_equal(oct_kv_pool_copy_page(pool, PAGES, 2), OCT_INVALID_ARGUMENT);
        assert_int_equal(oct_kv_pool_copy_page(pool, 2, PAGES), OCT_INVALID_ARGUMENT);
        assert_int_equal(oct_kv_pool_copy_page(NULL, 0, 1), OCT_INVALID_ARGUMENT);
        static const int64_t now[PAGES] = {0, 3, 2, 3, 0};
        for (uint32_t layer = 0; layer < LAYERS; layer++) {
            for (int64_t page = 0; page < PAGES; page++) {
                assert_true(holds(&views[layer], layer, page, now[page]));
                assert_true(page == now[page] || !holds(&views[layer], layer, page, page));
            }
        }
        oct_kv_pool_destroy(pool);
    }
}

/* A page's bytes are all there is of V in v4: a copy has the scales, and what another page holds stays. */
static void copy_page_takes_the_blocks_of_v4(void **state)
{
    const oct_kv_format v4 = {OCT_DTYPE_V4, OCT_SCALE_NONE, 0, 1};
    enum { PAGES = 4, VECTORS = 3 * 8 };
    (void)state;
    for (uint32_t layout = OCT_LAYOUT_NHD; layout <= OCT_LAYOUT_HND; layout++) {
        oct_kv_pool *pool = pool_of(&plain_allocator, spec_of(layout, 3, 32, 96, 8, plain(OCT_DTYPE_F16), v4), 2, PAGES);
        for (uint32_t layer = 0; layer < 2; layer++) {
            oct_kv_layer view;
            assert_int_equal(oct_kv_pool_layer(pool, layer, &view, NULL), OCT_OK);
            const size_t bytes = VECTORS * 3 * 18; /* 96 dims are three blocks */
            assert_int_equal(oct__element_at(OCT_DTYPE_V4, view.v_page_stride), bytes);
            for (size_t i = 0; i < PAGES * bytes; i++) {
                ((unsigned char *)view.v)[i] = pattern(layer, (int64_t)(i / bytes), (int64_t)(i % bytes));
            }
        }
        assert_int_equal(oct_kv_pool_copy_page(pool, 1, 2), OCT_OK);
        for (uint32_t layer = 0; layer < 2; layer++) {
            oct_kv_layer view;
            assert_int_equal(oct_kv_pool_layer(pool, layer, &view, NULL), OCT_OK);
            const size_t bytes = VECTORS * 3 * 18;
            for (size_t i = 0; i < PAGES * bytes; i++) {
                const int64_t page = (int64_t)(i / bytes);
                assert_int_equal(((unsigned char *)view.v)[i], pattern(layer, page == 2 ? 1 : page, (int64_t)(i % bytes)));
            }
        }
        oct_kv_pool_destroy(pool);
    }
}

static void each_allocation_may_fail(void **state)
{
    const oct_kv_format head = format_of(OCT_DTYPE_E4M3FN, OCT_SCALE_LAYER_HEAD, 0), channel = format_of(OCT_DTYPE_I8, OCT_SCALE_CHANNEL, 0);
    const oct_kv_pool_options options = options_of(spec_of(OCT_LAYOUT_NHD, 3, 64, 64, 16, head, channel), 2, 4);
    counting c;
    size_t n_failures = 0;
    (void)state;
    for (;;) {
        oct_kv_pool *pool = (oct_kv_pool *)&c;
        oct_error error = OCT_ERROR_INIT;
        counting_init(&c);
        c.fail_at = n_failures + 1;
        const oct_status status = oct__kv_pool_create(&c.hooks, NULL, &options, &pool, &error);
        if (status == OCT_OK) {
            oct_kv_pool_destroy(pool);
            counting_check_empty(&c);
            break;
        }
        assert_int_equal(status, OCT_OUT_OF_MEMORY);
        assert_int_equal(error.status, OCT_OUT_OF_MEMORY);
        assert_non_null(strstr(error.text, "no memory for"));
        assert_null(pool);
        counting_check_empty(&c);
        n_failures++;
    }
    assert_int_equal(n_failures, 6); /* the pool, two times values and flags, the region */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(refuses_wrong_options),
        cmocka_unit_test(bytes_are_pages_and_scales),
        cmocka_unit_test(layers_are_zero_and_disjoint_without_hooks),
        cmocka_unit_test(layers_are_zero_and_disjoint_with_hooks),
        cmocka_unit_test(no_layer_before_its_scales),
        cmocka_unit_test(a_tensor_scale_serves_all_layers),
        cmocka_unit_test(scales_are_finite_and_positive_or_refused),
        cmocka_unit_test(copy_page_copies_every_layer_and_nothing_else),
        cmocka_unit_test(copy_page_takes_the_blocks_of_v4),
        cmocka_unit_test(each_allocation_may_fail),
    };
    return cmocka_run_group_tests_name("kv_pool", tests, NULL, NULL);
}
