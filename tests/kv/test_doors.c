/* Pools, tables and twins through the installed headers and a real context: what the doors check, that the context's hooks
 * are used, and copy-on-write from a table into a pool's bytes. */
#include "kv_test.h"

#include "octavo/octavo.h"

static oct_kv_pool_options pool_options(uint32_t n_layers, int64_t n_pages, uint32_t page_size)
{
    const oct_kv_format k = format_of(OCT_DTYPE_E4M3FN, OCT_SCALE_LAYER, 0), v = format_of(OCT_DTYPE_I8, OCT_SCALE_TOKEN_HEAD, OCT_DTYPE_F16);
    return (oct_kv_pool_options){.struct_size = (uint32_t)sizeof(oct_kv_pool_options), .n_layers = n_layers, .n_pages = n_pages,
                                 .spec = spec_of(OCT_LAYOUT_HND, 2, 32, 64, page_size, k, v)};
}

static const oct_kv_table_options table_options = {.struct_size = (uint32_t)sizeof(table_options), .page_size = 4, .n_pages = 8,
                                                   .max_sequences = 3};
static const oct_kv_twin_options twin_options = {.struct_size = (uint32_t)sizeof(twin_options), .page_size = 4, .n_pages_full = 8,
                                                 .n_pages_window = 4, .max_sequences = 3, .window_tokens = 6};

static void doors_want_a_context_and_options(void **state)
{
    const oct_kv_pool_options options = pool_options(2, 8, 4);
    oct_error error = OCT_ERROR_INIT;
    oct_context *context;
    oct_kv_pool *pool;
    oct_kv_table *table;
    oct_kv_twin *twin;
    (void)state;
    assert_int_equal(oct_context_create(NULL, &context, NULL), OCT_OK);
    assert_int_equal(oct_kv_pool_create(NULL, &options, &pool, &error), OCT_INVALID_ARGUMENT);
    assert_int_equal(strncmp(error.text, "context is NULL", 15), 0);
    assert_string_equal(error.where, "oct_kv_pool_create");
    assert_int_equal(oct_kv_table_create(NULL, &table_options, &table, &error), OCT_INVALID_ARGUMENT);
    assert_string_equal(error.where, "oct_kv_table_create");
    assert_int_equal(oct_kv_twin_create(NULL, &twin_options, &twin, &error), OCT_INVALID_ARGUMENT);
    assert_string_equal(error.where, "oct_kv_twin_create");
    assert_int_equal(oct_kv_pool_create(context, NULL, &pool, &error), OCT_INVALID_ARGUMENT);
    assert_int_equal(oct_kv_table_create(context, NULL, &table, &error), OCT_INVALID_ARGUMENT);
    assert_int_equal(oct_kv_twin_create(context, NULL, &twin, &error), OCT_INVALID_ARGUMENT);
    assert_int_equal(oct_kv_pool_create(context, &options, NULL, &error), OCT_INVALID_ARGUMENT);
    assert_int_equal(oct_kv_table_create(context, &table_options, NULL, &error), OCT_INVALID_ARGUMENT);
    assert_int_equal(oct_kv_twin_create(context, &twin_options, NULL, &error), OCT_INVALID_ARGUMENT);
    oct_context_destroy(context);
}

/* A struct smaller than it ever was is refused; a larger one is taken while its unknown fields are zero. */
static void structs_may_be_of_another_age(void **state)
{
    struct { oct_kv_table_options known; uint64_t unknown; } options = {table_options, 0};
    struct { oct_kv_table_stats known; uint64_t unknown; } stats;
    oct_context *context;
    oct_kv_table *table;
    (void)state;
    assert_int_equal(oct_context_create(NULL, &context, NULL), OCT_OK);
    options.known.struct_size = 8;
    assert_int_equal(oct_kv_table_create(context, &options.known, &table, NULL), OCT_INVALID_ARGUMENT);
    options.known.struct_size = (uint32_t)sizeof(options);
    options.unknown = 1;
    assert_int_equal(oct_kv_table_create(context, &options.known, &table, NULL), OCT_INVALID_ARGUMENT);
    options.unknown = 0;
    assert_int_equal(oct_kv_table_create(context, &options.known, &table, NULL), OCT_OK);
    memset(&stats, 0xFF, sizeof(stats));
    stats.known.struct_size = 4;
    assert_int_equal(oct_kv_table_stats_get(table, &stats.known), OCT_INVALID_ARGUMENT);
    stats.known.struct_size = (uint32_t)sizeof(stats);
    assert_int_equal(oct_kv_table_stats_get(table, &stats.known), OCT_OK);
    assert_int_equal(stats.known.n_free, 8);
    assert_int_equal(stats.unknown, 0);
    oct_kv_table_destroy(table);
    oct_context_destroy(context);
}

static void everything_comes_from_the_hooks(void **state)
{
    const oct_kv_pool_options options = pool_options(2, 8, 4);
    counting c;
    oct_context *context;
    oct_kv_pool *pool;
    oct_kv_table *table;
    oct_kv_twin *twin;
    (void)state;
    counting_init(&c);
    const oct_context_options context_options = {.struct_size = (uint32_t)sizeof(context_options), .max_threads = 1,
                                                 .alloc = counting_alloc, .free = counting_free, .user = &c};
    assert_int_equal(oct_context_create(&context_options, &context, NULL), OCT_OK);
    const size_t before_bytes = c.live_bytes;
    assert_int_equal(oct_kv_pool_create(context, &options, &pool, NULL), OCT_OK);
    assert_true(c.live_bytes - before_bytes >= oct_kv_pool_bytes(pool));
    assert_int_equal(oct_kv_table_create(context, &table_options, &table, NULL), OCT_OK);
    assert_int_equal(oct_kv_twin_create(context, &twin_options, &twin, NULL), OCT_OK);
    assert_int_equal(oct_kv_table_append(table, 0, 9, NULL, NULL, NULL), OCT_OK);
    assert_int_equal(oct_kv_twin_append(twin, 0, 9, NULL, NULL, NULL, NULL), OCT_OK);
    oct_kv_twin_destroy(twin);
    oct_kv_table_destroy(table);
    oct_kv_pool_destroy(pool);
    oct_context_destroy(context);
    counting_check_empty(&c);
}

/* What a token of a sequence looks like in a layer, byte by byte. */
static void put(const oct_kv_layer *view, int32_t slot, unsigned char value)
{
    const int64_t page = slot / (int32_t)view->spec.page_size, t = slot % (int32_t)view->spec.page_size;
    for (int64_t h = 0; h < view->spec.heads; h++) {
        memset((unsigned char *)view->k + page * view->k_page_stride + t * view->k_token_stride + h * view->k_head_stride, value, view->spec.dim_k);
        memset((unsigned char *)view->v + page * view->v_page_stride + t * view->v_token_stride + h * view->v_head_stride, value + 1, view->spec.dim_v);
        ((uint16_t *)view->v_token_scale)[page * view->v_scale_page_stride + t * view->spec.heads + h] = (uint16_t)(value * 3);
    }
}

static bool is_there(const oct_kv_layer *view, int32_t page, int64_t t, unsigned char value)
{
    bool same = true;
    for (int64_t h = 0; h < view->spec.heads; h++) {
        const unsigned char *k = (unsigned char *)view->k + page * view->k_page_stride + t * view->k_token_stride + h * view->k_head_stride;
        const unsigned char *v = (unsigned char *)view->v + page * view->v_page_stride + t * view->v_token_stride + h * view->v_head_stride;
        for (uint32_t d = 0; d < view->spec.dim_k; d++) {
            same = same && k[d] == value;
        }
        for (uint32_t d = 0; d < view->spec.dim_v; d++) {
            same = same && v[d] == (unsigned char)(value + 1);
        }
        same = same && ((uint16_t *)view->v_token_scale)[page * view->v_scale_page_stride + t * view->spec.heads + h] == value * 3;
    }
    return same;
}

/* Two sequences share 6 tokens, then each writes its own seventh: both keep all of theirs, in every layer. */
static void copy_on_write_keeps_both_sequences(void **state)
{
    enum { LAYERS = 3 };
    const oct_kv_pool_options options = pool_options(LAYERS, 8, 4);
    oct_context *context;
    oct_kv_pool *pool;
    oct_kv_table *table;
    oct_kv_layer views[LAYERS];
    oct_kv_copy copy;
    uint32_t n_copies;
    int32_t slots[7];
    (void)state;
    assert_int_equal(oct_context_create(NULL, &context, NULL), OCT_OK);
    assert_int_equal(oct_kv_pool_create(context, &options, &pool, NULL), OCT_OK);
    assert_int_equal(oct_kv_table_create(context, &table_options, &table, NULL), OCT_OK);
    assert_int_equal(oct_kv_table_append(table, 0, 6, slots, NULL, NULL), OCT_OK);
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        const float scale = 0.5f + (float)layer;
        assert_int_equal(oct_kv_pool_set_scale(pool, layer, 0, &scale, 1, NULL), OCT_OK);
        assert_int_equal(oct_kv_pool_layer(pool, layer, &views[layer], NULL), OCT_OK);
        for (int i = 0; i < 6; i++) {
            put(&views[layer], slots[i], (unsigned char)(10 * layer + (unsigned)i));
        }
    }
    assert_int_equal(oct_kv_table_share(table, 0, 1, 6), OCT_OK);
    for (uint32_t sequence = 0; sequence < 2; sequence++) {
        assert_int_equal(oct_kv_table_append(table, 1 - sequence, 1, slots + 6, &copy, &n_copies), OCT_OK);
        assert_int_equal(n_copies, 1 - sequence); /* the second finds the page its own again */
        if (n_copies == 1) {
            assert_int_equal(oct_kv_pool_copy_page(pool, copy.from, copy.to), OCT_OK);
        }
        for (uint32_t layer = 0; layer < LAYERS; layer++) {
            put(&views[layer], slots[6], (unsigned char)(100 + 10 * layer + sequence));
        }
    }
    for (uint32_t sequence = 0; sequence < 2; sequence++) {
        const int32_t *pages = oct_kv_table_pages(table, 1 - sequence, NULL);
        for (uint32_t layer = 0; layer < LAYERS; layer++) {
            for (int i = 0; i < 6; i++) {
                assert_true(is_there(&views[layer], pages[i / 4], i % 4, (unsigned char)(10 * layer + (unsigned)i)));
            }
            assert_true(is_there(&views[layer], pages[1], 2, (unsigned char)(100 + 10 * layer + sequence)));
            assert_true(views[layer].k_scale[0] == 0.5f + (float)layer);
        }
    }
    oct_kv_table_destroy(table);
    oct_kv_pool_destroy(pool);
    oct_context_destroy(context);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(doors_want_a_context_and_options),
        cmocka_unit_test(structs_may_be_of_another_age),
        cmocka_unit_test(everything_comes_from_the_hooks),
        cmocka_unit_test(copy_on_write_keeps_both_sequences),
    };
    return cmocka_run_group_tests_name("kv_doors", tests, NULL, NULL);
}
