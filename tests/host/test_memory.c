/* test_memory.c: where memory comes from, with hooks and without; arrays that only grow. */
#include "host_test.h"

#include "host/memory.h"

typedef struct counting {
    size_t live_bytes, made, fail_at, last_align;
} counting;

static void *counting_alloc(void *user, size_t size_bytes, size_t align)
{
    counting *c = user;
    void *memory = NULL;
    c->last_align = align;
    if (++c->made == c->fail_at || posix_memalign(&memory, align < sizeof(void *) ? sizeof(void *) : align, size_bytes) != 0) {
        return NULL;
    }
    memset(memory, 0xA5, size_bytes);
    c->live_bytes += size_bytes;
    return memory;
}

static void counting_free(void *user, void *memory, size_t size_bytes)
{
    ((counting *)user)->live_bytes -= size_bytes;
    free(memory);
}

static const oct__allocator c_library;

static void check_zero(const unsigned char *memory, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        assert_int_equal(memory[i], 0);
    }
}

static void memory_is_aligned_and_zeroed_where_promised(void **state)
{
    (void)state;
    counting c = { 0 };
    const oct__allocator hooks = { counting_alloc, counting_free, &c };
    const oct__allocator *const allocators[] = { &c_library, &hooks };
    for (int i = 0; i < 2; i++) {
        const oct__allocator *a = allocators[i];
        for (size_t align = 1; align <= 4096; align *= 2) {
            void *memory = oct__memory_alloc(a, 100, align);
            assert_non_null(memory);
            assert_int_equal((uintptr_t)memory % align, 0);
            memset(memory, 1, 100);
            oct__memory_free(a, memory, 100);
        }
        unsigned char *zeroed = oct__memory_alloc_zeroed(a, 1000, 7), *region = oct__memory_reserve(a, 100000);
        check_zero(zeroed, 7000);
        check_zero(region, 100000);
        assert_int_equal((uintptr_t)region % 64, 0);
        memset(region, 1, 100000);
        oct__memory_free(a, zeroed, 7000);
        oct__memory_release(a, region, 100000);
        assert_null(oct__memory_alloc(a, 0, 8));
        assert_null(oct__memory_alloc_zeroed(a, 0, 8));
        assert_null(oct__memory_alloc_zeroed(a, 8, 0));
        assert_null(oct__memory_alloc_zeroed(a, SIZE_MAX / 2, 3));
        assert_null(oct__memory_reserve(a, 0));
        oct__memory_free(a, NULL, 0);
        oct__memory_release(a, NULL, 0);
    }
    assert_int_equal(c.live_bytes, 0);
    c.fail_at = c.made + 1;
    assert_null(oct__memory_alloc(&hooks, 1, 1));
    c.fail_at = c.made + 1;
    assert_null(oct__memory_alloc_zeroed(&hooks, 1, 1));
    c.fail_at = c.made + 1;
    assert_null(oct__memory_reserve(&hooks, 1));
    assert_null(oct__memory_reserve(&c_library, SIZE_MAX / 4));   /* more than any machine has */
}

static void arrays_only_grow(void **state)
{
    (void)state;
    counting c = { 0 };
    const oct__allocator hooks = { counting_alloc, counting_free, &c };
    oct__array array = { NULL, 0 };
    assert_true(oct__array_reserve(&hooks, &array, 0, 8));
    assert_int_equal(c.made, 0);
    assert_true(oct__array_reserve(&hooks, &array, 5, 8));
    assert_int_equal(c.made, 1);
    assert_true(array.capacity_bytes >= 40 && c.live_bytes == array.capacity_bytes);
    assert_int_equal((uintptr_t)array.memory % 64, 0);
    void *before = array.memory;
    assert_true(oct__array_reserve(&hooks, &array, 3, 8));   /* fits: kept as it is */
    assert_ptr_equal(array.memory, before);
    assert_int_equal(c.made, 1);
    /* One element more a step, 10,000 times: a few dozen allocations. */
    for (uint64_t n = 1; n <= 10000; n++) {
        assert_true(oct__array_reserve(&hooks, &array, n, 8));
        assert_true(array.capacity_bytes >= n * 8);
        assert_true(c.live_bytes == array.capacity_bytes);   /* the old one went back */
    }
    assert_in_range(c.made, 5, 30);
    assert_true(array.capacity_bytes <= 10000 * 8 * 3 / 2 + 64);
    /* No memory, and more than there can be: nothing changes. */
    const oct__array kept = array;
    c.fail_at = c.made + 1;
    assert_false(oct__array_reserve(&hooks, &array, 1000000, 8));
    assert_false(oct__array_reserve(&hooks, &array, UINT64_MAX / 8 + 2, 8));
    assert_false(oct__array_reserve(&hooks, &array, UINT64_MAX, 1));
    assert_memory_equal(&kept, &array, sizeof(kept));
    oct__array_free(&hooks, &array);
    assert_null(array.memory);
    assert_int_equal(array.capacity_bytes, 0);
    oct__array_free(&hooks, &array);
    assert_int_equal(c.live_bytes, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(memory_is_aligned_and_zeroed_where_promised),
        cmocka_unit_test(arrays_only_grow),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
