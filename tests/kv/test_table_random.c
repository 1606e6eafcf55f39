/* 10^5 random operations on page tables, each checked in full against the model of table_model.h. Reproduce a failure
 * with the printed seed: kv_table_random SEED. */
#include "table_model.h"

#include "kv/table.h"

static uint64_t seed = 20240607;

enum { N_OPS = 20000 }; /* a table; there are eight */

static void random_operations(uint32_t page_size, uint32_t n_pages, uint32_t window_tokens)
{
    const oct_kv_table_options options = {.struct_size = (uint32_t)sizeof(options), .page_size = page_size, .n_pages = n_pages,
                                          .max_sequences = MODEL_SEQUENCES, .window_tokens = window_tokens};
    random_state r = {seed ^ ((uint64_t)page_size << 40) ^ ((uint64_t)n_pages << 20) ^ window_tokens};
    uint64_t stamp = 1;
    uint32_t n_done[5] = {0}, n_refused[5] = {0}, n_full = 0, n_copied = 0;
    int32_t slots[MODEL_LENGTH_MAX];
    counting c;
    oct_kv_table *table;
    counting_init(&c);
    assert_int_equal(oct__kv_table_create(&c.hooks, &options, &table, NULL), OCT_OK);
    model *m = model_create(table, page_size, n_pages, window_tokens);

    for (int op = 0; op < N_OPS; op++) {
        const uint32_t id = random_below(&r, MODEL_SEQUENCES), length = m->s[id].length;
        const uint32_t dice = random_below(&r, 100);
        uint32_t kind;
        oct_status status, expected;
        if (dice < 55) {
            kind = 0;
            oct_kv_copy copy = {-1, -1};
            uint32_t n_copies = 9;
            const uint32_t n = model_random_n(&r, page_size), needed = model_pages_needed(m, id, n);
            if (length + n > MODEL_LENGTH_MAX) {
                continue;
            }
            assert_int_equal(oct_kv_table_pages_needed(table, id, n), needed);
            expected = needed > model_free_pages(m) ? OCT_OUT_OF_PAGES : OCT_OK;
            status = oct_kv_table_append(table, id, n, slots, &copy, &n_copies);
            if (status == OCT_OK) {
                n_copied += n_copies;
                model_append(m, id, n, stamp, slots, &copy, n_copies);
                stamp += n;
            } else {
                n_full++;
                assert_int_equal(n_copies, 0);
            }
        } else if (dice < 70) {
            kind = 1;
            const uint32_t to = model_random_target(m, &r), n = random_below(&r, length + 2);
            expected = m->s[to].length == 0 && model_may_cut(m, id, n) ? OCT_OK : OCT_INVALID_ARGUMENT;
            status = oct_kv_table_share(table, id, to, n);
            if (status == OCT_OK && to != id) {
                model_share(m, id, to, n);
            }
        } else if (dice < 78) {
            kind = 2;
            const uint32_t n = random_below(&r, 4) == 0 ? random_below(&r, length + 2) : length - random_below(&r, length / 8 + 1);
            expected = model_may_cut(m, id, n) ? OCT_OK : OCT_INVALID_ARGUMENT;
            status = oct_kv_table_truncate(table, id, n);
            if (status == OCT_OK) {
                model_cut(m, id, n);
            }
        } else if (dice < 88) {
            kind = 3;
            expected = OCT_OK;
            status = oct_kv_table_free(table, id);
            model_cut(m, id, 0);
        } else {
            kind = 4;
            expected = OCT_OK;
            status = oct_kv_table_slide(table, id);
            model_slide(m, id);
        }
        if (status != expected) {
            fail_msg("operation %d (kind %u): status %d, expected %d", op, kind, status, expected);
        }
        n_done[kind] += status == OCT_OK;
        n_refused[kind] += status != OCT_OK;
        model_check(m);
    }
    print_message("page %u, %u pages, window %u: %u appends (%u with a copy, %u found it full), %u + %u shares, %u + %u cuts\n", page_size,
                  n_pages, window_tokens, n_done[0], n_copied, n_full, n_done[1], n_refused[1], n_done[2], n_refused[2]);
    /* The walk has been everywhere. */
    assert_true(n_done[0] > 2000 && n_full > 50 && n_done[1] > 100 && n_refused[1] > 100 && n_done[2] > 200 && n_refused[2] > 10);
    assert_true(page_size == 1 ? n_copied == 0 : n_copied > 100);

    /* The free pages are all there, each once: one sequence can take them all, and not one more. */
    assert_int_equal(oct_kv_table_free(table, 0), OCT_OK);
    model_cut(m, 0, 0);
    uint32_t n_free = model_free_pages(m);
    assert_int_equal(oct_kv_table_append(table, 0, n_free * page_size, slots, NULL, NULL), OCT_OK);
    model_append(m, 0, n_free * page_size, stamp, slots, NULL, 0);
    model_check(m);
    assert_int_equal(oct_kv_table_append(table, 0, 1, slots, NULL, NULL), OCT_OUT_OF_PAGES);
    model_check(m);

    oct_kv_table_destroy(table);
    counting_check_empty(&c);
    free(m);
}

static void h4_pages_of_16(void **state) { (void)state; random_operations(16, 64, 0); }
static void pages_of_1(void **state) { (void)state; random_operations(1, 64, 0); }
static void pages_of_5(void **state) { (void)state; random_operations(5, 37, 0); }
static void pages_of_4_window_1(void **state) { (void)state; random_operations(4, 32, 1); }
static void pages_of_4_window_5(void **state) { (void)state; random_operations(4, 24, 5); }
static void pages_of_16_window_16(void **state) { (void)state; random_operations(16, 24, 16); }
static void pages_of_16_window_100(void **state) { (void)state; random_operations(16, 48, 100); }
static void pages_of_1_window_7(void **state) { (void)state; random_operations(1, 40, 7); }

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(h4_pages_of_16),       cmocka_unit_test(pages_of_1),
        cmocka_unit_test(pages_of_5),           cmocka_unit_test(pages_of_4_window_1),
        cmocka_unit_test(pages_of_4_window_5),  cmocka_unit_test(pages_of_16_window_16),
        cmocka_unit_test(pages_of_16_window_100), cmocka_unit_test(pages_of_1_window_7),
    };
    if (argc > 1) {
        seed = strtoull(argv[1], NULL, 0);
    }
    print_message("seed %llu\n", (unsigned long long)seed);
    return cmocka_run_group_tests_name("kv_table_random", tests, NULL, NULL);
}
