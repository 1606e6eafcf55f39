/* The rules of a spec, each with the words of its refusal; exact bytes of a page; strides of a layer. */
#include "kv_test.h"

#include "number/dtype.h"

#define BF16 format_of(OCT_DTYPE_BF16, OCT_SCALE_NONE, 0)
#define E4M3 format_of(OCT_DTYPE_E4M3FN, OCT_SCALE_NONE, 0)

static void refuses_each_wrong_field_with_its_name_and_value(void **state)
{
    static const struct {
        size_t field;
        uint32_t value;
        const char *text;
    } cases[] = {
        {offsetof(oct_kv_spec, struct_size), 12, "spec.struct_size is 12; must be sizeof(oct_kv_spec) = 56"},
        {offsetof(oct_kv_spec, struct_size), 60, "spec.struct_size is 60; must be sizeof(oct_kv_spec) = 56"},
        {offsetof(oct_kv_spec, layout), 3, "spec.layout is 3; must be 0 (NHD), 1 (HND) or 2 (V5D)"},
        {offsetof(oct_kv_spec, heads), 0, "spec.heads is 0; must be at least 1"},
        {offsetof(oct_kv_spec, dim_k), 8, "spec.dim_k is 8; must be a multiple of 8 from 16 to 512"},
        {offsetof(oct_kv_spec, dim_k), 46, "spec.dim_k is 46; must be a multiple of 8 from 16 to 512"},
        {offsetof(oct_kv_spec, dim_v), 0, "spec.dim_v is 0; must be a multiple of 8 from 16 to 512"},
        {offsetof(oct_kv_spec, dim_v), 520, "spec.dim_v is 520; must be a multiple of 8 from 16 to 512"},
        {offsetof(oct_kv_spec, page_size), 0, "spec.page_size is 0; must be from 1 to 1024 tokens"},
        {offsetof(oct_kv_spec, page_size), 1025, "spec.page_size is 1025; must be from 1 to 1024 tokens"},
        {offsetof(oct_kv_spec, k.dtype), 0, "spec.k.dtype is 0; must be an oct_dtype, 1 (f32) to 8 (v4)"},
        {offsetof(oct_kv_spec, v.dtype), 9, "spec.v.dtype is 9; must be an oct_dtype, 1 (f32) to 8 (v4)"},
        {offsetof(oct_kv_spec, k.scale_mode), 6, "spec.k.scale_mode is 6; must be an oct_scale_mode, 0 (none) to 5 (channel)"},
        {offsetof(oct_kv_spec, k.scale_dtype), OCT_DTYPE_F32, "spec.k.scale_dtype is 1; must be 0 unless scale_mode is 4 (token_head)"},
        {offsetof(oct_kv_spec, v.scale_mode), OCT_SCALE_TOKEN_HEAD,
         "spec.v.scale_dtype is 0; must be 1 (f32) or 2 (f16) with scale_mode token_head"},
        {offsetof(oct_kv_spec, v.rotated), 2, "spec.v.rotated is 2; must be 0 or 1"},
    };
    (void)state;
    assert_int_equal(sizeof(oct_kv_spec), 56);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        oct_kv_spec spec = spec_of(OCT_LAYOUT_NHD, 3, 64, 64, 16, E4M3, E4M3);
        oct_error error = OCT_ERROR_INIT;
        oct_kv_layer layer;
        assert_int_equal(oct_kv_spec_check(&spec, &error), OCT_OK);
        assert_int_equal(error.status, 0); /* untouched on success */
        memcpy((char *)&spec + cases[i].field, &cases[i].value, sizeof(uint32_t));
        assert_int_equal(oct_kv_spec_check(&spec, NULL), OCT_INVALID_ARGUMENT);
        assert_int_equal(oct_kv_spec_check(&spec, &error), OCT_INVALID_ARGUMENT);
        assert_string_equal(error.text, cases[i].text);
        assert_string_equal(error.where, "oct_kv_spec_check");
        assert_int_equal(error.status, OCT_INVALID_ARGUMENT);
        assert_int_equal(oct_kv_page_bytes(&spec), 0);
        assert_int_equal(oct_kv_layer_init(&layer, &spec, 4, &error), OCT_INVALID_ARGUMENT);
        assert_string_equal(error.text, cases[i].text);
        assert_string_equal(error.where, "oct_kv_layer_init");
    }
    assert_int_equal(oct_kv_spec_check(NULL, NULL), OCT_INVALID_ARGUMENT);
    assert_int_equal(oct_kv_page_bytes(NULL), 0);
}

/* Every dtype with every scale mode and scale dtype, against the rule written the other way round. */
static void takes_exactly_the_legal_formats(void **state)
{
    int legal = 0;
    (void)state;
    for (uint32_t dtype = 0; dtype <= OCT__DTYPE_LAST + 1; dtype++) {
        for (uint32_t mode = 0; mode <= OCT_SCALE_CHANNEL + 1; mode++) {
            for (uint32_t scale_dtype = 0; scale_dtype <= OCT__DTYPE_LAST; scale_dtype++) {
                for (uint32_t rotated = 0; rotated <= 1; rotated++) {
                    bool ok = false;
                    switch (dtype) {
                    case OCT_DTYPE_F32: case OCT_DTYPE_F16: case OCT_DTYPE_BF16:
                        ok = mode == OCT_SCALE_NONE;
                        break;
                    case OCT_DTYPE_E4M3FN: case OCT_DTYPE_E4M3FNUZ: case OCT_DTYPE_E5M2:
                        ok = mode <= OCT_SCALE_CHANNEL;
                        break;
                    case OCT_DTYPE_I8:
                        ok = mode == OCT_SCALE_TOKEN_HEAD || mode == OCT_SCALE_CHANNEL;
                        break;
                    case OCT_DTYPE_V4:
                        ok = mode == OCT_SCALE_NONE;
                        break;
                    default:
                        break;
                    }
                    ok = ok && (mode == OCT_SCALE_TOKEN_HEAD ? scale_dtype == OCT_DTYPE_F32 || scale_dtype == OCT_DTYPE_F16 : scale_dtype == 0);
                    oct_kv_format format = format_of(dtype, mode, scale_dtype);
                    format.rotated = rotated;
                    oct_kv_spec as_k = spec_of(OCT_LAYOUT_HND, 1, 64, 64, 5, format, BF16);
                    oct_kv_spec as_v = spec_of(OCT_LAYOUT_HND, 1, 64, 64, 5, BF16, format);
                    assert_int_equal(oct_kv_spec_check(&as_k, NULL), dtype == OCT_DTYPE_V4 ? OCT_UNSUPPORTED : ok ? OCT_OK : OCT_INVALID_ARGUMENT);
                    assert_int_equal(oct_kv_spec_check(&as_v, NULL), ok ? OCT_OK : OCT_INVALID_ARGUMENT);
                    legal += ok;
                }
            }
        }
    }
    /* 3 wide formats x 1, 3 float formats x (5 + token_head in 2), i8 x (1 + 2), v4 x 1; each plain and rotated. */
    assert_int_equal(legal, 2 * (3 + 3 * 7 + 3 + 1));
}

static void names_the_scale_mode_that_a_format_cannot_have(void **state)
{
    oct_error error = OCT_ERROR_INIT;
    oct_kv_spec spec = spec_of(OCT_LAYOUT_NHD, 3, 64, 64, 16, format_of(OCT_DTYPE_BF16, OCT_SCALE_TENSOR, 0), E4M3);
    (void)state;
    assert_int_equal(oct_kv_spec_check(&spec, &error), OCT_INVALID_ARGUMENT);
    assert_string_equal(error.text, "spec.k.scale_mode is 1; must be 0 (none): 16- and 32-bit formats take no scale");
    spec.k = E4M3;
    spec.v = format_of(OCT_DTYPE_I8, OCT_SCALE_LAYER, 0);
    assert_int_equal(oct_kv_spec_check(&spec, &error), OCT_INVALID_ARGUMENT);
    assert_string_equal(error.text, "spec.v.scale_mode is 2; must be 4 (token_head) or 5 (channel) with dtype i8");
}

static void v4_is_for_v_in_whole_blocks(void **state)
{
    const oct_kv_format v4 = {OCT_DTYPE_V4, OCT_SCALE_NONE, 0, 1}, i8 = {OCT_DTYPE_I8, OCT_SCALE_TOKEN_HEAD, OCT_DTYPE_F16, 1};
    oct_error error = OCT_ERROR_INIT;
    oct_kv_layer layer;
    (void)state;
    for (uint32_t dim = 16; dim <= 512; dim += 8) {
        oct_kv_spec spec = spec_of(OCT_LAYOUT_NHD, 3, 64, dim, 16, i8, v4);
        assert_int_equal(oct_kv_spec_check(&spec, NULL), dim % 32 == 0 ? OCT_OK : OCT_INVALID_ARGUMENT);
        spec.layout = OCT_LAYOUT_HND;
        assert_int_equal(oct_kv_spec_check(&spec, &error), dim % 32 == 0 ? OCT_OK : OCT_INVALID_ARGUMENT);
        spec.layout = OCT_LAYOUT_V5D;
        assert_int_equal(oct_kv_spec_check(&spec, NULL), OCT_INVALID_ARGUMENT);
    }
    assert_string_equal(error.text, "spec.dim_v is 504; must be a multiple of 32 with V in v4");
    oct_kv_spec spec = spec_of(OCT_LAYOUT_V5D, 3, 64, 64, 16, i8, v4);
    assert_int_equal(oct_kv_spec_check(&spec, &error), OCT_INVALID_ARGUMENT);
    assert_string_equal(error.text, "spec.layout is 2 (V5D); must be 0 (NHD) or 1 (HND) with V in v4, whose blocks are dims of one token");
    spec.layout = OCT_LAYOUT_NHD;
    /* 16 tokens x 3 heads: K 64 bytes and a scale of 2, V two blocks of 18 */
    assert_int_equal(oct_kv_page_bytes(&spec), 16 * 3 * (64 + 2 + 2 * 18));
    assert_int_equal(oct_kv_layer_init(&layer, &spec, 4, NULL), OCT_OK);
    assert_int_equal(layer.v_page_stride, 16 * 3 * 64);
    spec.v.scale_mode = OCT_SCALE_LAYER;
    assert_int_equal(oct_kv_spec_check(&spec, &error), OCT_INVALID_ARGUMENT);
    assert_string_equal(error.text, "spec.v.scale_mode is 2; must be 0 (none) with dtype v4: its scales lie among its elements");
    spec.v = i8;
    spec.k = v4;
    assert_int_equal(oct_kv_spec_check(&spec, &error), OCT_UNSUPPORTED);
    assert_string_equal(error.text,
                        "spec.k.dtype is 8 (v4); K is not kept in 4 bits: what it cost models was a KL divergence of 0.046 and more, five times all of e4m3's");
}

static void takes_every_dim_and_page_size_in_range(void **state)
{
    (void)state;
    for (uint32_t dim = 0; dim <= 530; dim++) {
        oct_kv_spec spec = spec_of(OCT_LAYOUT_NHD, 1, dim, 64, 16, E4M3, E4M3);
        assert_int_equal(oct_kv_spec_check(&spec, NULL), dim >= 16 && dim <= 512 && dim % 8 == 0 ? OCT_OK : OCT_INVALID_ARGUMENT);
    }
    for (uint32_t page_size = 0; page_size <= 1030; page_size++) {
        oct_kv_spec spec = spec_of(OCT_LAYOUT_HND, 1, 64, 128, page_size, E4M3, BF16);
        assert_int_equal(oct_kv_spec_check(&spec, NULL), page_size >= 1 && page_size <= 1024 ? OCT_OK : OCT_INVALID_ARGUMENT);
    }
}

static void v5d_wants_whole_chunks(void **state)
{
    oct_error error = OCT_ERROR_INIT;
    oct_kv_spec spec = spec_of(OCT_LAYOUT_V5D, 2, 24, 24, 16, E4M3, E4M3);
    (void)state;
    assert_int_equal(oct_kv_spec_check(&spec, &error), OCT_INVALID_ARGUMENT);
    assert_string_equal(error.text, "spec.dim_k is 24; must be a multiple of 16 in layout V5D: 16 bytes of e4m3fn");
    spec.k = BF16; /* x = 8, and V's dim need not be a multiple of its x */
    assert_int_equal(oct_kv_spec_check(&spec, &error), OCT_OK);
    spec.page_size = 24;
    assert_int_equal(oct_kv_spec_check(&spec, &error), OCT_INVALID_ARGUMENT);
    assert_string_equal(error.text, "spec.page_size is 24; must be a multiple of 16 in layout V5D: 16 bytes of V in e4m3fn");
    spec.v = BF16;
    assert_int_equal(oct_kv_spec_check(&spec, &error), OCT_OK);
    spec.page_size = 4;
    assert_int_equal(oct_kv_spec_check(&spec, &error), OCT_INVALID_ARGUMENT);
    spec.v = format_of(OCT_DTYPE_F32, OCT_SCALE_NONE, 0);
    assert_int_equal(oct_kv_spec_check(&spec, &error), OCT_OK);
}

/* bytes = page x heads x (dim_k x size_k + dim_v x size_v) + page x heads x scale sizes, worked out by hand. */
static void page_bytes_are_exact(void **state)
{
    const oct_kv_format f32 = format_of(OCT_DTYPE_F32, OCT_SCALE_NONE, 0), bf16 = BF16, e4m3 = E4M3;
    const oct_kv_format f16 = format_of(OCT_DTYPE_F16, OCT_SCALE_NONE, 0);
    const oct_kv_format fnuz_head = format_of(OCT_DTYPE_E4M3FNUZ, OCT_SCALE_LAYER_HEAD, 0);
    const oct_kv_format e5m2_channel = format_of(OCT_DTYPE_E5M2, OCT_SCALE_CHANNEL, 0);
    const oct_kv_format i8_f32 = format_of(OCT_DTYPE_I8, OCT_SCALE_TOKEN_HEAD, OCT_DTYPE_F32);
    const oct_kv_format i8_f16 = format_of(OCT_DTYPE_I8, OCT_SCALE_TOKEN_HEAD, OCT_DTYPE_F16);
    const oct_kv_format e4m3_f32 = format_of(OCT_DTYPE_E4M3FN, OCT_SCALE_TOKEN_HEAD, OCT_DTYPE_F32);
    const struct {
        uint32_t heads, dim_k, dim_v, page_size;
        oct_kv_format k, v;
        uint64_t bytes;
    } cases[] = {
        {8, 128, 128, 16, bf16, bf16, 65536},
        {8, 128, 128, 16, f16, f16, 65536},
        {8, 128, 128, 16, e4m3, e4m3, 32768},
        {8, 128, 128, 16, i8_f32, i8_f32, 33792},       /* + 2 x 16 x 8 x 4 */
        {8, 128, 128, 16, i8_f16, i8_f16, 33280},       /* + 2 x 16 x 8 x 2 */
        {8, 128, 128, 16, e4m3_f32, e4m3, 33280},       /* + 16 x 8 x 4 */
        {3, 64, 64, 16, bf16, e4m3, 9216},
        {3, 64, 64, 16, i8_f32, e4m3, 6336},
        {3, 64, 64, 1, i8_f16, i8_f32, 402},            /* 384 + 3 x 2 + 3 x 4 */
        {1, 256, 256, 32, i8_f16, i8_f16, 16512},
        {16, 192, 128, 1, e4m3, e4m3, 5120},
        {1, 16, 16, 1024, f32, f32, 131072},
        {5, 80, 96, 7, fnuz_head, e5m2_channel, 6160},  /* static scales are no part of a page */
        {1, 512, 16, 1, f32, fnuz_head, 2064},
        {64, 512, 512, 1024, f32, f32, 268435456},
        {4194304, 512, 512, 1024, f32, f32, 17592186044416},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        for (uint32_t layout = OCT_LAYOUT_NHD; layout <= OCT_LAYOUT_HND; layout++) {
            oct_kv_spec spec = spec_of(layout, cases[i].heads, cases[i].dim_k, cases[i].dim_v, cases[i].page_size, cases[i].k, cases[i].v);
            assert_int_equal(oct_kv_page_bytes(&spec), cases[i].bytes);
        }
    }
}

static void layer_init_gives_contiguous_strides(void **state)
{
    const oct_kv_format i8 = format_of(OCT_DTYPE_I8, OCT_SCALE_TOKEN_HEAD, OCT_DTYPE_F32);
    oct_kv_spec spec = spec_of(OCT_LAYOUT_NHD, 3, 64, 96, 16, i8, E4M3);
    oct_kv_layer layer;
    (void)state;
    memset(&layer, 0xFF, sizeof(layer));
    assert_int_equal(oct_kv_layer_init(&layer, &spec, 7, NULL), OCT_OK);
    assert_int_equal(layer.struct_size, sizeof(layer));
    assert_int_equal(layer.reserved, 0);
    assert_memory_equal(&layer.spec, &spec, sizeof(spec));
    assert_int_equal(layer.n_pages, 7);
    assert_null(layer.k);
    assert_null(layer.v);
    assert_null(layer.k_scale);
    assert_null(layer.v_scale);
    assert_null(layer.k_token_scale);
    assert_null(layer.v_token_scale);
    assert_int_equal(layer.k_page_stride, 16 * 3 * 64);
    assert_int_equal(layer.k_token_stride, 3 * 64);
    assert_int_equal(layer.k_head_stride, 64);
    assert_int_equal(layer.v_page_stride, 16 * 3 * 96);
    assert_int_equal(layer.v_token_stride, 3 * 96);
    assert_int_equal(layer.v_head_stride, 96);
    assert_int_equal(layer.k_scale_page_stride, 16 * 3);
    assert_int_equal(layer.v_scale_page_stride, 0);

    spec.layout = OCT_LAYOUT_HND;
    assert_int_equal(oct_kv_layer_init(&layer, &spec, 7, NULL), OCT_OK);
    assert_int_equal(layer.k_token_stride, 64);
    assert_int_equal(layer.k_head_stride, 16 * 64);
    assert_int_equal(layer.v_token_stride, 96);
    assert_int_equal(layer.v_head_stride, 16 * 96);

    spec.layout = OCT_LAYOUT_V5D;
    assert_int_equal(oct_kv_layer_init(&layer, &spec, 7, NULL), OCT_OK);
    assert_int_equal(layer.k_page_stride, 16 * 3 * 64);
    assert_int_equal(layer.k_head_stride, 16 * 64);
    assert_int_equal(layer.k_token_stride, 0);
}

static void layer_init_bounds_the_pages(void **state)
{
    oct_kv_spec spec = spec_of(OCT_LAYOUT_NHD, 1, 64, 64, 16, E4M3, E4M3);
    oct_error error = OCT_ERROR_INIT;
    oct_kv_layer layer;
    (void)state;
    assert_int_equal(oct_kv_layer_init(NULL, &spec, 1, &error), OCT_INVALID_ARGUMENT);
    assert_int_equal(oct_kv_layer_init(&layer, &spec, 0, &error), OCT_OK);
    assert_int_equal(oct_kv_layer_init(&layer, &spec, 134217727, &error), OCT_OK);
    assert_int_equal(oct_kv_layer_init(&layer, &spec, 134217728, &error), OCT_INVALID_ARGUMENT);
    assert_string_equal(error.text, "n_pages is 134217728; must be from 0 to 134217727: slots of 16 tokens a page are int32");
    assert_int_equal(oct_kv_layer_init(&layer, &spec, -1, &error), OCT_INVALID_ARGUMENT);
    spec.heads = UINT32_MAX; /* a page of 2^43 bytes is legal, 2^21 of them are not */
    assert_int_equal(oct_kv_layer_init(&layer, &spec, 1, &error), OCT_OK);
    assert_int_equal(oct_kv_layer_init(&layer, &spec, INT64_C(1) << 21, &error), OCT_INVALID_ARGUMENT);
    assert_non_null(strstr(error.text, "must fit the address space"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(refuses_each_wrong_field_with_its_name_and_value),
        cmocka_unit_test(takes_exactly_the_legal_formats),
        cmocka_unit_test(names_the_scale_mode_that_a_format_cannot_have),
        cmocka_unit_test(v4_is_for_v_in_whole_blocks),
        cmocka_unit_test(takes_every_dim_and_page_size_in_range),
        cmocka_unit_test(v5d_wants_whole_chunks),
        cmocka_unit_test(page_bytes_are_exact),
        cmocka_unit_test(layer_init_gives_contiguous_strides),
        cmocka_unit_test(layer_init_bounds_the_pages),
    };
    return cmocka_run_group_tests_name("kv_spec", tests, NULL, NULL);
}
