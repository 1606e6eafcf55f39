/* Page accounting and the prefix tree by themselves. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "engine/serve/prefix.h"

static void states_of_a_page(void **state)
{
    (void)state;
    octe__pages p;
    assert_true(octe__pages_open(&p, 3));
    const int32_t a = octe__pages_take(&p), b = octe__pages_take(&p), c = octe__pages_take(&p);
    assert_int_equal(octe__pages_take(&p), OCTE__NO_PAGE);
    assert_int_equal(octe__pages_used(&p), 3);
    octe__pages_keep(&p, a);
    octe__pages_keep(&p, b);
    octe__pages_hold(&p, a);
    octe__pages_release(&p, a);
    assert_int_equal(octe__pages_used(&p), 3);      /* one holder is left */
    octe__pages_release(&p, a);
    octe__pages_release(&p, b);
    octe__pages_release(&p, c);
    assert_int_equal(p.n_cached, 2);
    assert_int_equal(p.n_free, 1);
    assert_int_equal(p.oldest, a);
    octe__pages_hold(&p, a);                        /* used again: now b is the oldest */
    assert_int_equal(p.oldest, b);
    octe__pages_release(&p, a);
    assert_int_equal(p.oldest, b);
    assert_int_equal(p.newest, a);
    octe__pages_forget(&p, b);
    assert_int_equal(p.n_free, 2);
    assert_int_equal(p.oldest, a);
    octe__pages_hold(&p, a);
    octe__pages_forget(&p, a);                      /* held: it is free once let go */
    assert_int_equal(octe__pages_used(&p), 1);
    octe__pages_release(&p, a);
    assert_int_equal(p.n_free, 3);
    assert_int_equal(octe__pages_available(&p), 3);
    octe__pages_close(&p);
}

static uint64_t same_hash(const int32_t *tokens, uint32_t n)
{
    (void)tokens;
    (void)n;
    return 7;
}

/* Two texts of one hash, under one parent and under two: each is found by its tokens. */
static void collisions(void **state)
{
    (void)state;
    octe__pages p;
    octe__prefix x;
    assert_true(octe__pages_open(&p, 8));
    assert_true(octe__prefix_open(&x, &p, NULL, 2, 0, same_hash));
    static const int32_t texts[3][4] = {{1, 2, 3, 4}, {5, 6, 3, 4}, {1, 2, 9, 9}};
    octe__node node[3][2];
    for (int t = 0; t < 3; t++) {
        octe__node parent = OCTE__ROOT;
        for (int i = 0; i < 2; i++) {
            const int32_t page = octe__pages_take(&p);
            parent = node[t][i] = octe__prefix_insert(&x, parent, texts[t] + 2 * i, 2, page, OCTE__NO_PAGE);
            assert_int_equal(parent == page, !(t == 2 && i == 0));
        }
    }
    assert_int_equal(node[2][0], node[0][0]);
    for (int t = 0; t < 3; t++) {
        const octe__prefix_match m = octe__prefix_find(&x, texts[t], 4, 2, false);
        assert_int_equal(m.n_tokens, 4);
        assert_int_equal(m.node, node[t][1]);
    }
    static const int32_t other[4] = {5, 6, 9, 9};
    const octe__prefix_match m = octe__prefix_find(&x, other, 4, 2, true);
    assert_int_equal(m.n_tokens, 2);
    assert_int_equal(m.partial, OCTE__NO_NODE);
    octe__prefix_close(&x);
    octe__pages_close(&p);
}

/* A page that is not full is found by what it begins with, is no parent, and is not stored twice. */
static void partial_pages(void **state)
{
    (void)state;
    octe__pages p;
    octe__prefix x;
    assert_true(octe__pages_open(&p, 8));
    assert_true(octe__prefix_open(&x, &p, NULL, 4, 0, NULL));
    static const int32_t text[8] = {1, 2, 3, 4, 5, 6, 7, 8}, branch[7] = {1, 2, 3, 4, 5, 6, 9};
    const octe__node first = octe__prefix_insert(&x, OCTE__ROOT, text, 4, octe__pages_take(&p), OCTE__NO_PAGE);
    const int32_t rest = octe__pages_take(&p);
    assert_int_equal(octe__prefix_insert(&x, first, text + 4, 3, rest, OCTE__NO_PAGE), rest);
    octe__prefix_match m = octe__prefix_find(&x, text, 8, 4, true);
    assert_int_equal(m.n_tokens, 4);
    assert_int_equal(m.n_partial, 3);
    assert_int_equal(m.partial, rest);
    m = octe__prefix_find(&x, branch, 7, 4, true);
    assert_int_equal(m.n_partial, 2);
    m = octe__prefix_find(&x, text, 5, 4, true);
    assert_int_equal(m.n_partial, 1);
    assert_int_equal(octe__prefix_find(&x, text, 4, 4, true).n_partial, 0);
    assert_int_equal(octe__prefix_find(&x, text, 8, 4, false).n_partial, 0);
    const int32_t again = octe__pages_take(&p);
    assert_int_equal(octe__prefix_insert(&x, first, text + 4, 2, again, OCTE__NO_PAGE), OCTE__NO_NODE);
    /* Three tokens in common at most with what stands there: a page of its own. */
    assert_int_equal(octe__prefix_insert(&x, first, branch + 4, 3, again, OCTE__NO_PAGE), again);
    assert_int_equal(octe__prefix_find(&x, branch, 7, 4, true).n_partial, 3);
    assert_int_equal(octe__prefix_find(&x, text, 8, 4, true).n_partial, 3);
    /* Let go from the end: leaves are evicted first, the root's child last. */
    octe__pages_release(&p, again);
    octe__pages_release(&p, rest);
    octe__pages_release(&p, first);
    assert_true(octe__prefix_evict(&x, OCTE__POOL_FULL));
    assert_int_equal(octe__prefix_find(&x, branch, 7, 4, true).n_partial, 2);
    assert_true(octe__prefix_evict(&x, OCTE__POOL_FULL));
    assert_int_equal(octe__prefix_find(&x, text, 8, 4, true).n_partial, 0);
    assert_int_equal(octe__prefix_find(&x, text, 8, 4, true).n_tokens, 4);
    assert_true(octe__prefix_evict(&x, OCTE__POOL_FULL));
    assert_false(octe__prefix_evict(&x, OCTE__POOL_FULL));
    assert_int_equal(p.n_free, 8);
    octe__prefix_close(&x);
    octe__pages_close(&p);
}

static void visible_pages(void **state)
{
    (void)state;
    /* Against the definition: the query at position n sees keys n - window + 1 on. */
    for (uint32_t page = 1; page <= 5; page++) {
        for (uint32_t window = 1; window <= 12; window++) {
            for (uint32_t n = 0; n < 40; n++) {
                const uint32_t first_key = n + 1 > window ? n + 1 - window : 0;
                assert_int_equal(octe__first_visible_page(n, window, page), first_key / page);
            }
        }
    }
    assert_int_equal(octe__first_visible_page(1000, 0, 4), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(states_of_a_page),
        cmocka_unit_test(collisions),
        cmocka_unit_test(partial_pages),
        cmocka_unit_test(visible_pages),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
