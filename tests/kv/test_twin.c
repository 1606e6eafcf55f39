/* Twin tables: both or neither, which window page goes with which full page, and random operations against two models of
 * table_model.h. Reproduce a failure with the printed seed: kv_twin SEED. */
#include "table_model.h"

#include "kv/twin.h"

static uint64_t seed = 20240608;

static oct_kv_twin *twin_of(const oct__allocator *allocator, uint32_t page_size, int64_t n_full, int64_t n_window, uint32_t max_sequences,
                            uint32_t window)
{
    const oct_kv_twin_options options = {.struct_size = (uint32_t)sizeof(options), .page_size = page_size, .n_pages_full = n_full,
                                         .n_pages_window = n_window, .max_sequences = max_sequences, .window_tokens = window};
    oct_error error = OCT_ERROR_INIT;
    oct_kv_twin *twin;
    if (oct__kv_twin_create(allocator, &options, &twin, &error) != OCT_OK) {
        fail_msg("%s: %s", error.where, error.text);
    }
    return twin;
}

static int32_t map_one(const oct_kv_twin *twin, int32_t slot)
{
    int32_t window_slot = -7;
    assert_int_equal(oct_kv_twin_map(twin, &slot, 1, &window_slot), OCT_OK);
    return window_slot;
}

static void refuses_wrong_options(void **state)
{
    static const struct {
        oct_kv_twin_options options;
        const char *text;
    } cases[] = {
        {{32, 16, 8, 8, 4, 0}, "options.window_tokens is 0; must be at least 1"},
        {{32, 16, 0, 8, 4, 5}, "options.n_pages_full is 0; must be from 1 to 134217727: slots of 16 tokens a page are int32"},
        {{32, 16, 8, 0, 4, 5}, "options.n_pages_window is 0; must be from 1 to 134217727: slots of 16 tokens a page are int32"},
        {{32, 16, 8, 8, 0, 5}, "options.max_sequences is 0; must be at least 1"},
        {{32, 0, 8, 8, 4, 5}, "options.page_size is 0; must be from 1 to 1024 tokens"},
    };
    oct_error error = OCT_ERROR_INIT;
    oct_kv_twin *twin;
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        twin = (oct_kv_twin *)&error;
        assert_int_equal(oct__kv_twin_create(&plain_allocator, &cases[i].options, &twin, &error), OCT_INVALID_ARGUMENT);
        assert_string_equal(error.text, cases[i].text);
        assert_string_equal(error.where, "oct_kv_twin_create");
        assert_null(twin);
    }
    assert_int_equal(oct_kv_twin_append(NULL, 0, 1, NULL, NULL, NULL, NULL), OCT_INVALID_ARGUMENT);
    assert_int_equal(oct_kv_twin_share(NULL, 0, 1, 0), OCT_INVALID_ARGUMENT);
    assert_int_equal(oct_kv_twin_truncate(NULL, 0, 0), OCT_INVALID_ARGUMENT);
    assert_int_equal(oct_kv_twin_free(NULL, 0), OCT_INVALID_ARGUMENT);
    assert_int_equal(oct_kv_twin_slide(NULL, 0), OCT_INVALID_ARGUMENT);
    assert_int_equal(oct_kv_twin_map(NULL, NULL, 0, NULL), OCT_INVALID_ARGUMENT);
    assert_null(oct_kv_twin_full(NULL));
    assert_null(oct_kv_twin_window(NULL));
    oct_kv_twin_destroy(NULL);
}

static void maps_slots_of_the_window_and_no_others(void **state)
{
    oct_kv_twin *twin = twin_of(&plain_allocator, 4, 16, 8, 2, 5);
    int32_t slots[16], slots_window[16], mapped[16];
    (void)state;
    /* Sequence 1 first, so that full and window pages of sequence 0 have different numbers after it slides. */
    assert_int_equal(oct_kv_twin_append(twin, 1, 12, slots, slots_window, NULL, NULL), OCT_OK);
    assert_int_equal(oct_kv_twin_slide(twin, 1), OCT_OK);
    assert_int_equal(oct_kv_table_length(oct_kv_twin_full(twin), 1), 12);
    assert_int_equal(stats_of(oct_kv_twin_full(twin)).n_used, 3);
    assert_int_equal(stats_of(oct_kv_twin_window(twin)).n_used, 1); /* a query at 12 sees 8..12 */
    assert_int_equal(oct_kv_twin_map(twin, slots, 12, mapped), OCT_OK);
    for (int i = 0; i < 12; i++) {
        assert_int_equal(mapped[i], i < 8 ? -1 : slots_window[i]);
    }
    assert_int_equal(oct_kv_twin_append(twin, 0, 6, slots, slots_window, NULL, NULL), OCT_OK);
    assert_int_not_equal(slots[0], slots_window[0]);
    assert_int_equal(oct_kv_twin_map(twin, slots, 6, mapped), OCT_OK);
    for (int i = 0; i < 6; i++) {
        assert_int_equal(mapped[i], slots_window[i]);
    }
    /* Fault D5's padding, slots of free pages, slots past the pool: never another token's. */
    static const int32_t wrong[] = {-1, INT32_MIN, 5 * 4, 15 * 4 + 3, 16 * 4, INT32_MAX};
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        assert_int_equal(map_one(twin, wrong[i]), -1);
    }
    assert_int_equal(oct_kv_twin_map(twin, slots, 1, slots), OCT_OK); /* in place */
    assert_int_equal(slots[0], slots_window[0]);
    assert_int_equal(oct_kv_twin_map(twin, NULL, 0, NULL), OCT_OK);
    assert_int_equal(oct_kv_twin_map(twin, NULL, 1, mapped), OCT_INVALID_ARGUMENT);
    assert_int_equal(oct_kv_twin_map(twin, slots, 1, NULL), OCT_INVALID_ARGUMENT);
    assert_int_equal(oct_kv_twin_map(twin, slots, -1, mapped), OCT_INVALID_ARGUMENT);
    assert_int_equal(oct_kv_twin_free(twin, 0), OCT_OK);
    assert_int_equal(oct_kv_twin_free(twin, 1), OCT_OK);
    for (int32_t slot = 0; slot < 64; slot++) {
        assert_int_equal(map_one(twin, slot), -1);
    }
    oct_kv_twin_destroy(twin);
}

/* C rounds -1 / 4 to page 0: that it is in use, with a partner of another number, must not matter. */
static void padding_is_not_page_0(void **state)
{
    oct_kv_twin *twin = twin_of(&plain_allocator, 4, 16, 8, 3, 5);
    int32_t slot, slot_window;
    (void)state;
    assert_int_equal(oct_kv_twin_append(twin, 0, 12, NULL, NULL, NULL, NULL), OCT_OK);
    assert_int_equal(oct_kv_twin_slide(twin, 0), OCT_OK);
    assert_int_equal(oct_kv_twin_append(twin, 1, 4, NULL, NULL, NULL, NULL), OCT_OK);
    assert_int_equal(oct_kv_twin_free(twin, 0), OCT_OK);
    assert_int_equal(oct_kv_twin_append(twin, 2, 1, &slot, &slot_window, NULL, NULL), OCT_OK);
    assert_true(slot == 0 && slot_window >= 4);
    assert_int_equal(map_one(twin, 0), slot_window);
    for (int32_t padding = -1; padding >= -5; padding--) {
        assert_int_equal(map_one(twin, padding), -1);
    }
    oct_kv_twin_destroy(twin);
}

static void each_call_acts_on_both_or_neither(void **state)
{
    oct_kv_twin *twin = twin_of(&plain_allocator, 4, 16, 3, 3, 5);
    const oct_kv_table *full = oct_kv_twin_full(twin), *window = oct_kv_twin_window(twin);
    oct_kv_copy copies[2];
    uint32_t n_copies[2] = {9, 9};
    (void)state;
    assert_int_equal(oct_kv_twin_append(twin, 0, 13, NULL, NULL, copies, n_copies), OCT_OUT_OF_PAGES); /* the window's 3 pages */
    assert_true(n_copies[0] == 0 && n_copies[1] == 0);
    assert_int_equal(stats_of(full).n_used, 0);
    assert_int_equal(oct_kv_table_length(full, 0), 0);
    assert_int_equal(oct_kv_twin_append(twin, 0, 10, NULL, NULL, copies, n_copies), OCT_OK);
    assert_int_equal(oct_kv_twin_slide(twin, 0), OCT_OK); /* a query at 10 sees 6..10 */
    assert_int_equal(stats_of(window).n_used, 2);
    assert_int_equal(oct_kv_twin_share(twin, 0, 1, 7), OCT_INVALID_ARGUMENT); /* at 7: 3..7, and 3 is gone */
    assert_int_equal(oct_kv_twin_truncate(twin, 0, 7), OCT_INVALID_ARGUMENT);
    assert_int_equal(oct_kv_table_length(full, 0), 10);
    assert_int_equal(oct_kv_table_length(full, 1), 0);
    assert_int_equal(stats_of(full).n_shared, 0);
    assert_int_equal(oct_kv_twin_truncate(twin, 3, 0), OCT_INVALID_ARGUMENT);
    assert_int_equal(oct_kv_twin_append(twin, 3, 1, NULL, NULL, NULL, NULL), OCT_INVALID_ARGUMENT);

    assert_int_equal(oct_kv_twin_share(twin, 0, 1, 10), OCT_OK);
    assert_int_equal(oct_kv_twin_append(twin, 1, 1, NULL, NULL, NULL, NULL), OCT_INVALID_ARGUMENT); /* nobody would copy */
    assert_int_equal(oct_kv_twin_append(twin, 1, 1, NULL, NULL, copies, n_copies), OCT_OK);
    assert_true(n_copies[0] == 1 && n_copies[1] == 1);
    assert_true(copies[0].from == 2 && copies[0].to == 3);
    assert_true(copies[1].from == 2 && copies[1].to == 0);
    assert_int_equal(oct_kv_twin_share(twin, 0, 2, 10), OCT_OK);
    assert_int_equal(oct_kv_twin_append(twin, 2, 1, NULL, NULL, copies, n_copies), OCT_OUT_OF_PAGES); /* no window page for the copy */
    assert_true(n_copies[0] == 0 && n_copies[1] == 0);
    assert_int_equal(oct_kv_table_length(full, 2), 10);
    assert_int_equal(stats_of(full).n_copied, 1);
    oct_kv_twin_destroy(twin);
}

/* The one who wrote on has slid past; its full page is still shared, the window page is the other's alone. The full pool
 * copies, the window pool writes in place, and its page goes over to the new full page. */
static void a_window_page_follows_its_last_holder(void **state)
{
    oct_kv_twin *twin = twin_of(&plain_allocator, 4, 16, 8, 2, 4);
    oct_kv_copy copies[2];
    uint32_t n_copies[2];
    int32_t slots[8], slots_window[8];
    (void)state;
    assert_int_equal(oct_kv_twin_append(twin, 0, 8, slots, slots_window, NULL, NULL), OCT_OK);
    assert_int_equal(oct_kv_twin_share(twin, 0, 1, 6), OCT_OK);
    assert_int_equal(oct_kv_twin_append(twin, 0, 4, NULL, NULL, copies, n_copies), OCT_OK);
    assert_int_equal(oct_kv_twin_slide(twin, 0), OCT_OK);
    assert_int_equal(map_one(twin, slots[5]), slots_window[5]); /* sequence 1 still holds it */
    int32_t slot, slot_window;
    assert_int_equal(oct_kv_twin_append(twin, 1, 1, &slot, &slot_window, copies, n_copies), OCT_OK);
    assert_true(n_copies[0] == 1 && n_copies[1] == 0);
    assert_int_equal(slot_window, slots_window[6]);
    assert_int_not_equal(slot, slots[6]);
    assert_int_equal(map_one(twin, slot), slot_window);
    assert_int_equal(map_one(twin, slots[6]), -1); /* sequence 0 has let it go */
    oct_kv_twin_destroy(twin);
}

static void each_allocation_may_fail(void **state)
{
    const oct_kv_twin_options options = {.struct_size = (uint32_t)sizeof(options), .page_size = 4, .n_pages_full = 64, .n_pages_window = 32,
                                         .max_sequences = 2, .window_tokens = 50};
    counting c;
    oct_kv_twin *twin;
    size_t n_failures = 0;
    (void)state;
    for (;;) {
        oct_error error = OCT_ERROR_INIT;
        counting_init(&c);
        c.fail_at = n_failures + 1;
        const oct_status status = oct__kv_twin_create(&c.hooks, &options, &twin, &error);
        if (status == OCT_OK) {
            break;
        }
        assert_int_equal(status, OCT_OUT_OF_MEMORY);
        assert_string_equal(error.text, "no memory for tables of 64 and 32 pages and 2 sequences");
        assert_null(twin);
        counting_check_empty(&c);
        n_failures++;
    }
    assert_int_equal(n_failures, 1 + 2 * 4 + 2);

    /* Each list of an append or a share, in either table. */
    const oct_kv_table *full = oct_kv_twin_full(twin), *window = oct_kv_twin_window(twin);
    for (size_t nth = 1; nth <= 2; nth++) {
        c.fail_at = c.made + nth;
        assert_int_equal(oct_kv_twin_append(twin, 0, 40, NULL, NULL, NULL, NULL), OCT_OUT_OF_MEMORY);
        assert_int_equal(stats_of(full).n_used + stats_of(window).n_used, 0);
    }
    assert_int_equal(oct_kv_twin_append(twin, 0, 40, NULL, NULL, NULL, NULL), OCT_OK);
    for (size_t nth = 1; nth <= 2; nth++) {
        c.fail_at = c.made + nth;
        assert_int_equal(oct_kv_twin_share(twin, 0, 1, 40), OCT_OUT_OF_MEMORY);
        assert_int_equal(stats_of(full).n_shared + stats_of(window).n_shared, 0);
        assert_int_equal(oct_kv_table_length(full, 1) + oct_kv_table_length(window, 1), 0);
    }
    assert_int_equal(oct_kv_twin_share(twin, 0, 1, 40), OCT_OK);
    oct_kv_twin_destroy(twin);
    counting_check_empty(&c);
}

/* Every full slot, against the lists: the window page at the same place of the same sequence, if anyone holds one. */
static void check_map(const oct_kv_twin *twin, const model *full, const model *window)
{
    int32_t partner[MODEL_PAGES_MAX];
    for (int i = 0; i < MODEL_PAGES_MAX; i++) {
        partner[i] = OCT_PAGE_NONE;
    }
    for (uint32_t id = 0; id < MODEL_SEQUENCES; id++) {
        for (uint32_t i = 0; i < model_pages(full, full->s[id].length); i++) {
            if (!window->s[id].gone[i]) {
                int32_t *known = &partner[full->s[id].pages[i]];
                assert_true(*known == OCT_PAGE_NONE || *known == window->s[id].pages[i]);
                *known = window->s[id].pages[i];
            }
        }
    }
    for (uint32_t page = 0; page < full->n_pages; page++) {
        const int32_t slot = (int32_t)(page * full->page_size + full->page_size / 2);
        const int32_t expected = partner[page] == OCT_PAGE_NONE ? -1 : partner[page] * (int32_t)full->page_size + (int32_t)(full->page_size / 2);
        assert_int_equal(map_one(twin, slot), expected);
    }
}

static void random_operations(uint32_t page_size, uint32_t n_full, uint32_t n_window, uint32_t window_tokens)
{
    random_state r = {seed ^ ((uint64_t)page_size << 40) ^ ((uint64_t)n_full << 20) ^ window_tokens};
    uint64_t stamp = 1;
    uint32_t n_appends = 0, n_full_of = 0, n_window_of = 0, n_both = 0, n_one = 0, n_shares = 0;
    int32_t slots[MODEL_LENGTH_MAX], slots_window[MODEL_LENGTH_MAX];
    counting c;
    counting_init(&c);
    oct_kv_twin *twin = twin_of(&c.hooks, page_size, n_full, n_window, MODEL_SEQUENCES, window_tokens);
    model *full = model_create(oct_kv_twin_full(twin), page_size, n_full, 0);
    model *window = model_create(oct_kv_twin_window(twin), page_size, n_window, window_tokens);

    for (int op = 0; op < 10000; op++) {
        const uint32_t id = random_below(&r, MODEL_SEQUENCES), length = full->s[id].length;
        const uint32_t dice = random_below(&r, 100);
        oct_status status, expected;
        if (dice < 55) {
            oct_kv_copy copies[2] = {{-1, -1}, {-1, -1}};
            uint32_t n_copies[2] = {9, 9};
            const uint32_t n = model_random_n(&r, page_size);
            const bool no_full = model_pages_needed(full, id, n) > model_free_pages(full);
            const bool no_window = model_pages_needed(window, id, n) > model_free_pages(window);
            if (length + n > MODEL_LENGTH_MAX) {
                continue;
            }
            expected = no_full || no_window ? OCT_OUT_OF_PAGES : OCT_OK;
            status = oct_kv_twin_append(twin, id, n, slots, slots_window, copies, n_copies);
            n_full_of += no_full;
            n_window_of += no_window;
            if (status == OCT_OK) {
                n_appends++;
                n_both += n_copies[0] == 1 && n_copies[1] == 1;
                n_one += n_copies[0] == 1 && n_copies[1] == 0;
                assert_true(n_copies[1] <= n_copies[0]);
                model_append(full, id, n, stamp, slots, &copies[0], n_copies[0]);
                model_append(window, id, n, stamp, slots_window, &copies[1], n_copies[1]);
                stamp += n;
            }
        } else if (dice < 70) {
            const uint32_t to = model_random_target(full, &r), n = random_below(&r, length + 2);
            expected = full->s[to].length == 0 && model_may_cut(window, id, n) ? OCT_OK : OCT_INVALID_ARGUMENT;
            status = oct_kv_twin_share(twin, id, to, n);
            if (status == OCT_OK && to != id) {
                n_shares++;
                model_share(full, id, to, n);
                model_share(window, id, to, n);
            }
        } else if (dice < 78) {
            const uint32_t n = random_below(&r, 4) == 0 ? random_below(&r, length + 2) : length - random_below(&r, length / 8 + 1);
            expected = model_may_cut(window, id, n) ? OCT_OK : OCT_INVALID_ARGUMENT;
            status = oct_kv_twin_truncate(twin, id, n);
            if (status == OCT_OK) {
                model_cut(full, id, n);
                model_cut(window, id, n);
            }
        } else if (dice < 86) {
            expected = OCT_OK;
            status = oct_kv_twin_free(twin, id);
            model_cut(full, id, 0);
            model_cut(window, id, 0);
        } else {
            expected = OCT_OK;
            status = oct_kv_twin_slide(twin, id);
            model_slide(window, id);
        }
        if (status != expected) {
            fail_msg("operation %d: status %d, expected %d", op, status, expected);
        }
        model_check(full);
        model_check(window);
        check_map(twin, full, window);
    }
    print_message("page %u, %u + %u pages, window %u: %u appends (%u copied both, %u the full page only), %u / %u found full / window full, "
                  "%u shares\n", page_size, n_full, n_window, window_tokens, n_appends, n_both, n_one, n_full_of, n_window_of, n_shares);
    assert_true(n_appends > 1000 && n_full_of + n_window_of > 50 && n_shares > 100);
    assert_true(page_size == 1 || (n_both > 20 && n_one > 0));
    oct_kv_twin_destroy(twin);
    counting_check_empty(&c);
    free(full);
    free(window);
}

static void random_pages_of_4(void **state) { (void)state; random_operations(4, 64, 24, 6); }
static void random_pages_of_16(void **state) { (void)state; random_operations(16, 64, 32, 20); }
static void random_pages_of_1(void **state) { (void)state; random_operations(1, 96, 40, 5); }
static void random_window_1(void **state) { (void)state; random_operations(5, 40, 20, 1); }

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(refuses_wrong_options),
        cmocka_unit_test(maps_slots_of_the_window_and_no_others),
        cmocka_unit_test(padding_is_not_page_0),
        cmocka_unit_test(each_call_acts_on_both_or_neither),
        cmocka_unit_test(a_window_page_follows_its_last_holder),
        cmocka_unit_test(each_allocation_may_fail),
        cmocka_unit_test(random_pages_of_4),
        cmocka_unit_test(random_pages_of_16),
        cmocka_unit_test(random_pages_of_1),
        cmocka_unit_test(random_window_1),
    };
    if (argc > 1) {
        seed = strtoull(argv[1], NULL, 0);
    }
    print_message("seed %llu\n", (unsigned long long)seed);
    return cmocka_run_group_tests_name("kv_twin", tests, NULL, NULL);
}
