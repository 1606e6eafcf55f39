/* The three layouts: walked in the order of their written shape, the index counts up from 0, so every element of
 * every page is hit exactly once and stands where the shape says. */
#include "kv_test.h"

#include "kv/layout.h"
#include "number/dtype.h"

static const uint32_t n_pages = 3;

/* One index after the other; `expected` is where the shape's next element lies. */
static void check_k(const oct_kv_layer *l)
{
    const oct_kv_spec *s = &l->spec;
    int64_t expected = 0;
    for (uint32_t page = 0; page < n_pages; page++) {
        switch (s->layout) {
        case OCT_LAYOUT_NHD:
            for (uint32_t t = 0; t < s->page_size; t++)
                for (uint32_t h = 0; h < s->heads; h++)
                    for (uint32_t d = 0; d < s->dim_k; d++)
                        assert_true(oct__k_index(l, page, t, h, d) == expected++);
            break;
        case OCT_LAYOUT_HND:
            for (uint32_t h = 0; h < s->heads; h++)
                for (uint32_t t = 0; t < s->page_size; t++)
                    for (uint32_t d = 0; d < s->dim_k; d++)
                        assert_true(oct__k_index(l, page, t, h, d) == expected++);
            break;
        default: {
            const uint32_t x = 16 / oct__dtype_size_bytes(s->k.dtype);
            for (uint32_t h = 0; h < s->heads; h++)
                for (uint32_t chunk = 0; chunk < s->dim_k / x; chunk++)
                    for (uint32_t t = 0; t < s->page_size; t++)
                        for (uint32_t i = 0; i < x; i++)
                            assert_true(oct__k_index(l, page, t, h, chunk * x + i) == expected++);
        }
        }
    }
    assert_true(expected == n_pages * l->k_page_stride);
}

static void check_v(const oct_kv_layer *l)
{
    const oct_kv_spec *s = &l->spec;
    int64_t expected = 0;
    for (uint32_t page = 0; page < n_pages; page++) {
        switch (s->layout) {
        case OCT_LAYOUT_NHD:
            for (uint32_t t = 0; t < s->page_size; t++)
                for (uint32_t h = 0; h < s->heads; h++)
                    for (uint32_t d = 0; d < s->dim_v; d++)
                        assert_true(oct__v_index(l, page, t, h, d) == expected++);
            break;
        case OCT_LAYOUT_HND:
            for (uint32_t h = 0; h < s->heads; h++)
                for (uint32_t t = 0; t < s->page_size; t++)
                    for (uint32_t d = 0; d < s->dim_v; d++)
                        assert_true(oct__v_index(l, page, t, h, d) == expected++);
            break;
        default: {
            const uint32_t x = 16 / oct__dtype_size_bytes(s->v.dtype);
            for (uint32_t h = 0; h < s->heads; h++)
                for (uint32_t chunk = 0; chunk < s->page_size / x; chunk++)
                    for (uint32_t d = 0; d < s->dim_v; d++)
                        for (uint32_t i = 0; i < x; i++)
                            assert_true(oct__v_index(l, page, chunk * x + i, h, d) == expected++);
        }
        }
    }
    assert_true(expected == n_pages * l->v_page_stride);
}

static void check_scales(const oct_kv_layer *l)
{
    int64_t expected = 0;
    for (uint32_t page = 0; page < n_pages; page++) {
        for (uint32_t t = 0; t < l->spec.page_size; t++) {
            for (uint32_t h = 0; h < l->spec.heads; h++, expected++) {
                assert_true(l->k_scale_page_stride == 0 || oct__k_scale_index(l, page, t, h) == expected);
                assert_true(l->v_scale_page_stride == 0 || oct__v_scale_index(l, page, t, h) == expected);
            }
        }
    }
}

static void every_element_is_hit_once_and_in_order(void **state)
{
    static const struct { uint32_t heads, dim_k, dim_v, page_size; } shapes[] = {
        {1, 16, 16, 1}, {3, 64, 64, 16}, {2, 80, 96, 16}, {3, 24, 40, 5}, {2, 192, 128, 32}, {1, 512, 16, 48}, {5, 16, 104, 1024},
    };
    int walked[3] = {0, 0, 0};
    (void)state;
    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
        for (uint32_t layout = OCT_LAYOUT_NHD; layout <= OCT_LAYOUT_V5D; layout++) {
            for (uint32_t n = 1; n <= OCT__DTYPE_LAST; n++) {
                const uint32_t k = n == OCT_DTYPE_V4 ? (uint32_t)OCT_DTYPE_F16 : n, v = OCT__DTYPE_LAST + 1 - n; /* K and V of different sizes too; v4 is V's */
                const bool is_illegal = v == OCT_DTYPE_V4 && (shapes[i].dim_v % 32 != 0 || layout == OCT_LAYOUT_V5D);
                oct_kv_format formats[2];
                for (int which = 0; which < 2; which++) {
                    const uint32_t dtype = which == 0 ? k : v;
                    formats[which] = oct__dtype_is_8bit(dtype) ? format_of(dtype, OCT_SCALE_TOKEN_HEAD, OCT_DTYPE_F16)
                                                               : format_of(dtype, OCT_SCALE_NONE, 0);
                }
                const oct_kv_spec spec = spec_of(layout, shapes[i].heads, shapes[i].dim_k, shapes[i].dim_v, shapes[i].page_size, formats[0],
                                                 formats[1]);
                oct_kv_layer layer;
                if (oct_kv_layer_init(&layer, &spec, n_pages, NULL) != OCT_OK) {
                    assert_true(is_illegal || layout == OCT_LAYOUT_V5D); /* no whole blocks or chunks */
                    continue;
                }
                check_k(&layer);
                check_v(&layer);
                check_scales(&layer);
                const uint64_t elements_bytes = oct__dtype_bytes(k, (uint64_t)layer.k_page_stride) + oct__dtype_bytes(v, (uint64_t)layer.v_page_stride) +
                                                2 * (uint64_t)(layer.k_scale_page_stride + layer.v_scale_page_stride);
                assert_int_equal(elements_bytes, oct_kv_page_bytes(&spec));
                walked[layout]++;
            }
        }
    }
    assert_int_equal(walked[OCT_LAYOUT_NHD], 52);
    assert_int_equal(walked[OCT_LAYOUT_HND], 52);
    assert_true(walked[OCT_LAYOUT_V5D] >= 25);
}

/* Where a byte lies, by the inline arithmetic of the kernels and by the room of numbers. */
static void bytes_follow_indices(void **state)
{
    (void)state;
    for (uint32_t dtype = 1; dtype <= OCT__DTYPE_LAST; dtype++) {
        for (int64_t index = 0; index < 4096; index += 32) {
            assert_true(oct__element_at(dtype, index) == (int64_t)oct__dtype_bytes(dtype, (uint64_t)index));
        }
    }
    assert_true(oct__element_at(OCT_DTYPE_V4, INT64_C(1) << 40) == (INT64_C(1) << 35) * 18);
}

/* The kernels' inline constant and the room of numbers agree for every format. */
static void a_chunk_is_16_bytes(void **state)
{
    (void)state;
    for (uint32_t dtype = 1; dtype < OCT_DTYPE_V4; dtype++) {
        assert_int_equal(oct__v5d_x(dtype) * oct__dtype_size_bytes(dtype), 16);
    }
}

/* Page 2^31 - 1, the last token, head and dim of what slots allow: no product is 32 bits wide. */
static void indices_are_64_bit(void **state)
{
    const oct_kv_format e4m3 = format_of(OCT_DTYPE_E4M3FN, OCT_SCALE_NONE, 0);
    const oct_kv_spec one = spec_of(OCT_LAYOUT_NHD, 64, 512, 256, 1, e4m3, e4m3);
    oct_kv_layer layer;
    (void)state;
    assert_int_equal(oct_kv_layer_init(&layer, &one, INT32_MAX, NULL), OCT_OK);
    assert_true(oct__k_index(&layer, INT32_MAX - 1, 0, 63, 511) == (int64_t)INT32_MAX * 64 * 512 - 1);
    assert_true(oct__v_index(&layer, INT32_MAX - 1, 0, 63, 255) == (int64_t)INT32_MAX * 64 * 256 - 1);
    const oct_kv_spec many = spec_of(OCT_LAYOUT_V5D, 1u << 20, 512, 512, 1024, e4m3, e4m3);
    assert_int_equal(oct_kv_layer_init(&layer, &many, 2, NULL), OCT_OK);
    assert_true(oct__k_index(&layer, 1, 1023, (1u << 20) - 1, 511) == (INT64_C(1) << 40) - 1);
    assert_true(oct__v_index(&layer, 1, 1023, (1u << 20) - 1, 511) == (INT64_C(1) << 40) - 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_element_is_hit_once_and_in_order),
        cmocka_unit_test(bytes_follow_indices),
        cmocka_unit_test(a_chunk_is_16_bytes),
        cmocka_unit_test(indices_are_64_bit),
    };
    return cmocka_run_group_tests_name("kv_layout", tests, NULL, NULL);
}
