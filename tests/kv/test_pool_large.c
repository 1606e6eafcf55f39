/* A pool beyond 2^32 bytes: its last page is where 64-bit arithmetic says, and costs nothing until it is touched. */
#include "kv_test.h"

#include "kv/layout.h"
#include "kv/pool.h"

static oct_kv_pool *large_pool(uint32_t n_layers, int64_t n_pages, uint32_t page_size)
{
    const oct_kv_format e4m3 = format_of(OCT_DTYPE_E4M3FN, OCT_SCALE_NONE, 0);
    const oct_kv_pool_options options = {.struct_size = (uint32_t)sizeof(options), .n_layers = n_layers, .n_pages = n_pages,
                                         .spec = spec_of(OCT_LAYOUT_NHD, 8, 64, 16, page_size, e4m3, e4m3)};
    oct_error error = OCT_ERROR_INIT;
    oct_kv_pool *pool = NULL;
    const oct_status status = oct__kv_pool_create(&plain_allocator, NULL, &options, &pool, &error);
    if (status == OCT_OUT_OF_MEMORY) { /* the system promises no more than it has: about 6 GB are asked for */
        print_message("%s\n", error.text);
        skip();
    }
    assert_int_equal(status, OCT_OK);
    return pool;
}

/* Fault E1: one-token pages, 8,401,239 of them, K alone 4.3 GB. */
static void one_layer_beyond_4_gib(void **state)
{
    const int64_t n_pages = 8401239;
    oct_kv_pool *pool = large_pool(1, n_pages, 1);
    const int32_t last = (int32_t)(n_pages - 1);
    oct_kv_layer view;
    (void)state;
    assert_int_equal(oct_kv_pool_bytes(pool), (uint64_t)n_pages * 8 * (64 + 16));
    assert_int_equal(oct_kv_pool_layer(pool, 0, &view, NULL), OCT_OK);
    unsigned char *k = view.k, *v = view.v;
    assert_true(v >= k + n_pages * 512);
    const int64_t k_last = oct__k_index(&view, last, 0, 7, 63), v_last = oct__v_index(&view, last, 0, 7, 15);
    assert_true(k_last == n_pages * 512 - 1 && k_last > INT64_C(4294967296));
    assert_true(v_last == n_pages * 128 - 1);
    memset(k, 1, 512);
    memset(v, 2, 128);
    assert_int_equal(k[k_last], 0);
    assert_int_equal(oct_kv_pool_copy_page(pool, 0, last), OCT_OK);
    for (int64_t i = 0; i < 512; i++) {
        assert_int_equal(k[k_last - i], 1);
        assert_int_equal(k[k_last - 512 - i], 0); /* the page before */
    }
    for (int64_t i = 0; i < 128; i++) {
        assert_int_equal(v[v_last - i], 2);
        assert_int_equal(v[v_last - 128 - i], 0);
    }
    /* Where 32-bit arithmetic would have landed. */
    assert_int_equal(k[(uint32_t)k_last], 0);
    oct_kv_pool_destroy(pool);
}

static void layers_beyond_4_gib(void **state)
{
    const int64_t n_pages = 65536; /* x 16 tokens x 8 heads x (64 + 16) = 671 MB a layer */
    oct_kv_pool *pool = large_pool(8, n_pages, 16);
    oct_kv_layer first, last;
    (void)state;
    assert_int_equal(oct_kv_pool_layer(pool, 0, &first, NULL), OCT_OK);
    assert_int_equal(oct_kv_pool_layer(pool, 7, &last, NULL), OCT_OK);
    assert_true((unsigned char *)last.k - (unsigned char *)first.k == (ptrdiff_t)7 * 65536 * 16 * 8 * 80);
    unsigned char *end = (unsigned char *)last.v + oct__v_index(&last, n_pages - 1, 15, 7, 15);
    *end = 3;
    assert_int_equal(oct_kv_pool_copy_page(pool, (int32_t)n_pages - 1, 0), OCT_OK);
    assert_int_equal(((unsigned char *)last.v)[oct__v_index(&last, 0, 15, 7, 15)], 3);
    assert_int_equal(((unsigned char *)first.v)[oct__v_index(&first, 0, 15, 7, 15)], 0);
    oct_kv_pool_destroy(pool);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_layer_beyond_4_gib),
        cmocka_unit_test(layers_beyond_4_gib),
    };
    return cmocka_run_group_tests_name("kv_pool_large", tests, NULL, NULL);
}
