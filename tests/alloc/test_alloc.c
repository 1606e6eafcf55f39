/* test_alloc.c: the life of a context, a pool, a table and a plan with the nth allocation failing, for every n: a clean status each time, the
 * objects still usable, and in the end nothing left. */
#include "../api/api_test.h"

/* One whole life. Stops at the first OUT_OF_MEMORY of a creation and cleans up; an update that fails is tried again, as a server would. */
static oct_status live_once(counting *c)
{
    const oct_context_options options = { .struct_size = sizeof(options), .max_threads = 2, .alloc = counting_alloc, .free = counting_free, .user = c };
    oct_context *context = NULL;
    oct_kv_pool *pool = NULL;
    oct_kv_table *table = NULL;
    oct_plan *plan = NULL;
    oct_error error = OCT_ERROR_INIT;
    problem p;
    problem_init(&p);
    p.spec.split_tokens = 2;   /* so that partials and groups are there */

    oct_status status = oct_context_create(&options, &context, &error);
    const oct_kv_pool_options pool_options = { .struct_size = sizeof(pool_options), .n_layers = 2, .n_pages = N_PAGES, .spec = p.spec.kv };
    if (status == OCT_OK) {
        status = oct_kv_pool_create(context, &pool_options, &pool, &error);
    }
    const oct_kv_table_options table_options = { .struct_size = sizeof(table_options), .page_size = PAGE_SIZE, .n_pages = N_PAGES, .max_sequences = 3 };
    if (status == OCT_OK) {
        status = oct_kv_table_create(context, &table_options, &table, &error);
    }
    if (status == OCT_OK) {
        status = oct_plan_create(context, &p.spec, &plan, &error);
    }
    if (status != OCT_OK) {
        assert_int_equal(status, OCT_OUT_OF_MEMORY);
        assert_int_equal(error.status, OCT_OUT_OF_MEMORY);
        assert_true(error.text[0] != '\0' && error.where[0] != '\0');
    } else {
        /* A batch that grows twice; every failure leaves an empty plan that can be run, and the next try succeeds. */
        for (int round = 0; round < 3; round++) {
            static int32_t indptr[301], kv_len[300], pages[300 * 4];
            for (int i = 0; i < 300; i++) {
                indptr[i + 1] = i + 1;
                kv_len[i] = 1 + i % (4 * PAGE_SIZE);
            }
            const oct_attn_batch batch = { .struct_size = sizeof(batch), .n_sequences = round == 0 ? 2 : round == 1 ? 40 : 300, .qo_indptr = indptr, .block_table = pages,
                                           .seq_lens = kv_len, .max_pages = 4, .n_pages = N_PAGES };
            oct_status updated = oct_plan_update(plan, &batch, &error);
            if (updated != OCT_OK) {
                oct_plan_info info = { .struct_size = sizeof(info) };
                assert_int_equal(updated, OCT_OUT_OF_MEMORY);
                assert_string_equal(error.where, "oct_plan_update");
                assert_int_equal(oct_plan_info_get(plan, &info), OCT_OK);
                assert_true(info.n_items == 0 && info.n_rows == 0);
                assert_int_equal(oct_attn_run(plan, &p.args), OCT_OK);
                status = updated;
                updated = oct_plan_update(plan, &batch, &error);
            }
            assert_int_equal(updated, OCT_OK);
        }
        const oct_status appended = oct_kv_table_append(table, 0, 3 * PAGE_SIZE, NULL, NULL, NULL);
        if (appended != OCT_OK) {
            assert_int_equal(appended, OCT_OUT_OF_MEMORY);
            assert_int_equal(oct_kv_table_length(table, 0), 0);
            status = appended;
        }
        assert_int_equal(oct_kv_write(context, &p.write), OCT_OK);
        assert_int_equal(oct_plan_update(plan, &p.padded, &error), OCT_OK);   /* smaller than before: nothing is allocated */
        assert_int_equal(oct_attn_run(plan, &p.args), OCT_OK);
    }
    oct_plan_destroy(plan);
    oct_kv_table_destroy(table);
    oct_kv_pool_destroy(pool);
    oct_context_destroy(context);
    return status;
}

static void every_failing_allocation_is_a_status_and_leaks_nothing(void **state)
{
    (void)state;
    counting c = { 0 };
    assert_int_equal(live_once(&c), OCT_OK);
    const size_t n = c.made;
    printf("%zu allocations in a life\n", n);
    assert_true(n > 15);
    assert_int_equal(c.live, 0);
    assert_int_equal(c.live_bytes, 0);
    for (size_t fail_at = 1; fail_at <= n; fail_at++) {
        c = (counting){ .fail_at = fail_at };
        assert_int_equal(live_once(&c), OCT_OUT_OF_MEMORY);
        assert_true(c.made >= fail_at);
        if (c.live != 0 || c.live_bytes != 0) {
            fail_msg("allocation %zu failed: %zu blocks, %zu bytes left", fail_at, c.live, c.live_bytes);
        }
    }
    /* Past the last one nothing fails. */
    c = (counting){ .fail_at = n + 1 };
    assert_int_equal(live_once(&c), OCT_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_failing_allocation_is_a_status_and_leaks_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
