/* kv_test.h: what the tests of src/kv share: cmocka, seeded random numbers, an allocator that counts and fails on demand, formats. */
#ifndef OCT_TESTS_KV_KV_TEST_H
#define OCT_TESTS_KV_KV_TEST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "host/memory.h"
#include "octavo/kv.h"
#include "octavo/page.h"

/* splitmix64 */
typedef struct random_state { uint64_t s; } random_state;

static inline uint64_t random_next(random_state *r)
{
    uint64_t z = (r->s += 0x9E3779B97F4A7C15u);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

static inline uint32_t random_below(random_state *r, uint32_t n)
{
    return (uint32_t)(random_next(r) % n);
}

/* Hooks that count what is out and let the nth allocation from now on fail (0: none). */
typedef struct counting {
    oct__allocator hooks;
    size_t live_bytes, live, made, fail_at;
} counting;

static inline void *counting_alloc(void *user, size_t size_bytes, size_t align)
{
    counting *c = user;
    void *memory = NULL;
    assert_true(size_bytes > 0);
    if (++c->made == c->fail_at || posix_memalign(&memory, align < sizeof(void *) ? sizeof(void *) : align, size_bytes) != 0) {
        return NULL;
    }
    memset(memory, 0xA5, size_bytes); /* nobody may count on zeroes from a hook */
    c->live_bytes += size_bytes;
    c->live++;
    return memory;
}

static inline void counting_free(void *user, void *memory, size_t size_bytes)
{
    counting *c = user;
    assert_non_null(memory);
    c->live_bytes -= size_bytes; /* a wrong size leaves it other than 0 in the end */
    c->live--;
    free(memory);
}

static inline void counting_init(counting *c)
{
    *c = (counting){.hooks = {.alloc = counting_alloc, .free = counting_free, .user = c}};
}

static inline void counting_check_empty(const counting *c)
{
    assert_int_equal(c->live, 0);
    assert_int_equal(c->live_bytes, 0);
}

/* The C library's. */
static const oct__allocator plain_allocator = {NULL, NULL, NULL};

static inline oct_kv_format format_of(uint32_t dtype, uint32_t scale_mode, uint32_t scale_dtype)
{
    return (oct_kv_format){.dtype = dtype, .scale_mode = scale_mode, .scale_dtype = scale_dtype};
}

static inline oct_kv_spec spec_of(uint32_t layout, uint32_t heads, uint32_t dim_k, uint32_t dim_v, uint32_t page_size, oct_kv_format k,
                                  oct_kv_format v)
{
    return (oct_kv_spec){.struct_size = (uint32_t)sizeof(oct_kv_spec), .layout = layout, .heads = heads, .dim_k = dim_k, .dim_v = dim_v,
                         .page_size = page_size, .k = k, .v = v};
}

static inline oct_kv_table_stats stats_of(const oct_kv_table *table)
{
    oct_kv_table_stats stats = {.struct_size = (uint32_t)sizeof(stats)};
    assert_int_equal(oct_kv_table_stats_get(table, &stats), OCT_OK);
    return stats;
}

#endif
