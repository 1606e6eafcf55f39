/* test_executor.c: the executor's own promises, on kernels that are right and on kernels with one thing wrong: each fault is found, and its
 * report names kernel, block, lane and place. Compiled for warps of 32 and of 64. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "device/executor.h"
#include "device/simt.h"

enum { LANES = 128, BLOCKS = 3, ELEMENTS = LANES * BLOCKS };

typedef struct args {
    float *a, *b;
    uint32_t *counter;
    uint64_t *wide;
    uint32_t n, fault;
} args;

/* ---- kernels -------------------------------------------------------------------------------------------------------------------- */

/* b = the block's a, reversed. fault 1: without the barrier; 2: a branch leaves before it; 3: two barriers that half the block swaps;
 * 4: a lane leaves before it. */
KERNEL(reverse, LANES, 1, args)
{
    SHARED(float, s, LANES);
    const uint32_t i = (uint32_t)block_id() * LANES + tid();
    if (p->fault == 4 && tid() == 77) {
        return;
    }
    SPUT(s[tid()], GET(p->a[i]));
    if (p->fault == 2) {
        if (tid() >= 100) {
            return;
        }
        block_sync();
    } else if (p->fault == 3) {
        if (tid() < LANES / 2) {
            block_sync();
        } else {
            block_sync();
        }
    } else if (p->fault != 1) {
        block_sync();
    }
    PUT(p->b[i], SGET(s[LANES - 1 - tid()]));
}

/* b = sums over warps. fault 1: lanes of odd number do not take part; 2: two places; 3: a lane has ended. */
KERNEL(sum, LANES, 1, args)
{
    const uint32_t i = (uint32_t)block_id() * LANES + tid();
    float v = GET(p->a[i]);
    if (p->fault == 1 && block_id() == 1) {
        if (tid() % 2 == 0) {
            v = warp_sum_f32(v);
        }
    } else if (p->fault == 2 && tid() / WARP == 1) {
        if (tid() % 4 == 3) {
            v = warp_sum_f32(v);
        } else {
            v = warp_sum_f32(v);
        }
    } else {
        if (p->fault == 3 && tid() == 5) {
            return;
        }
        v = warp_sum_f32(v);
    }
    PUT(p->b[i], v);
}

/* What every warp operation gives, in one float a lane. */
KERNEL(operations, LANES, 1, args)
{
    const uint32_t lane = tid() % WARP, i = (uint32_t)block_id() * LANES + tid();
    float v[16], sum = 0.0f;
    for (uint32_t e = 0; e < 16; e++) {
        v[e] = (float)(tid() * 100 + e);
    }
    group8_sum(v, 16);
    for (uint32_t e = 0; e < 2; e++) {   /* of element lane % 8 * 2 + e: 8 lanes x ... */
        const uint32_t first = tid() / 8 * 8, element = lane % 8 * 2 + e;
        sum += v[e] == (float)((8 * first + 28) * 100 + 8 * element) ? 0.0f : 1.0f;
    }
    sum += shfl_xor_u32(lane, 5) == (lane ^ 5) ? 0.0f : 2.0f;
    sum += shfl_xor_f32((float)lane, WARP / 2) == (float)(lane ^ (WARP / 2)) ? 0.0f : 4.0f;
    sum += warp_max_f32(lane == 7 ? 9.5f : lane == 8 ? oct__f32_of_bits(OCT__F32_QNAN_BITS) : -1.0f) == 9.5f ? 0.0f : 8.0f;
    sum += warp_sum_u32(lane) == WARP * (WARP - 1) / 2 ? 0.0f : 16.0f;
    sum += warp_any(lane == 3) != 0 && warp_any(lane == WARP) == 0 ? 0.0f : 32.0f;
    PUT(p->b[i], sum);
}

/* b = a. fault 1: reads one element too many; 2: writes one before; 3: writes a; 4: a misaligned wide load; 5: around GET; 6: around PUT;
 * 7: a shared address as a global one; 8: reads what nobody wrote; 9: from freed memory. */
KERNEL(copy, LANES, 1, args)
{
    SHARED(float, s, 4);
    const uint32_t i = (uint32_t)block_id() * LANES + tid();
    if (i >= p->n) {
        return;
    }
    float v = GET(p->a[p->fault == 1 ? i + 1 : i]);
    switch (i == p->n - 1 ? p->fault : 0) {
    case 2: PUT(p->b[(int64_t)i - p->n], v); break;
    case 3: PUT(p->a[i], v); break;
    case 4: v += oct__f32_of_bits(global_load_16(p->a + 1).x); break;
    case 5: v += p->a[i]; break;
    case 6: p->b[i] = v; break;
    case 7: v += GET(s[0]); break;
    case 8: v += GET(p->b[i]); break;
    default: break;
    }
    PUT(p->b[i], v);
}

/* Shared memory. fault 1: past an array; 2: past the dynamic part; 3: reads what this block did not write (another did); 4: arrays in another order. */
KERNEL(shared, LANES, 1, args)
{
    SHARED(float, s, LANES);
    SHARED(uint32_t, one, 1);
    SHARED_DYNAMIC(float, dynamic);
    const uint32_t i = (uint32_t)block_id() * LANES + tid();
    SPUT(s[p->fault == 1 && tid() == LANES - 1 ? LANES : tid()], 1.0f);
    if (tid() == 0 && !(p->fault == 3 && block_id() == 2)) {
        SPUT(one[0], 7);
    }
    SPUT(dynamic[p->fault == 2 && tid() == 64 ? LANES : tid()], 2.0f);
    block_sync();
    PUT(p->b[i], SGET(s[tid()]) + SGET(dynamic[tid()]) + (float)SGET(one[0]));
    if (p->fault == 4 && tid() == 9) {
        SHARED(float, more, 2);
        (void)more;
    } else if (p->fault == 4) {
        SHARED(float, other, 3);
        (void)other;
    }
}

/* Races. 1: two lanes write a byte of one float; 2: a lane reads what another warp's wrote; 3: within a warp, without warp_sync; 4: blocks write one
 * place; 5: a block reads what another wrote; 6: a plain read of a counter; 7: a writer after two readers; 0: none of them. */
KERNEL(race, LANES, 1, args)
{
    SHARED(float, s, LANES);
    const uint32_t i = (uint32_t)block_id() * LANES + tid();
    SPUT(s[tid()], (float)tid());
    warp_sync();
    float v = SGET(s[tid() ^ 1]);
    warp_sync();
    SPUT(s[tid()], v);
    if (p->fault == 3) {
        v = SGET(s[tid() ^ 1]);
    }
    block_sync();
    switch (p->fault) {
    case 1: {
        uint8_t *bytes = (uint8_t *)(p->b + i / 4 * 4) + i % 4;
        PUT(*bytes, 1);
        if (tid() == 10) {
            PUT(bytes[1], 2);
        }
        break;
    }
    case 2:
        if (tid() == 0) {
            PUT(p->b[0], v);
        } else if (tid() == WARP) {
            v += GET(p->b[0]);
        }
        break;
    case 4:
        if (tid() == 3) {
            PUT(p->b[0], v);
        }
        break;
    case 5:
        PUT(p->b[i], v);
        block_sync();
        if (block_id() == 2) {
            v += GET(p->b[0]);
        }
        break;
    case 6:
        (void)atomic_add_u32(p->counter, 1);
        if (tid() == 127) {
            v += (float)GET(*p->counter);
        }
        break;
    case 7:
        v += SGET(s[4]);   /* everybody */
        if (tid() == 127) {
            SPUT(s[4], 1.0f);
        }
        break;
    default: {
        (void)atomic_add_u32(p->counter, 1);
        (void)atomic_add_u64(p->wide, UINT64_C(1) << 33);
        (void)atomic_max_u32(p->counter + 1, i);
        PUT(p->b[i], v);
        break;
    }
    }
}

/* Each block writes its part and arrives; the last one sums all parts. fault 1: no barrier before the arrival; 2: a relaxed arrival. */
KERNEL(arrive, LANES, 1, args)
{
    SHARED(uint32_t, last, 1);
    const uint32_t i = (uint32_t)block_id() * LANES + tid();
    PUT(p->a[i], 1.0f);
    if (p->fault != 1) {
        block_sync();
    }
    if (tid() == 0) {
        const uint32_t before = p->fault == 2 ? atomic_add_u32(p->counter, 1) : atomic_add_acq_rel_u32(p->counter, 1);
        SPUT(last[0], before + 1 == block_count());
    }
    block_sync();
    if (SGET(last[0]) && tid() == 0) {
        float sum = 0.0f;
        for (uint32_t j = 0; j < block_count() * LANES; j++) {
            sum += GET(p->a[j]);
        }
        PUT(p->b[0], sum);
    }
}

/* One element a block: grids of more than 65,535 blocks. */
KERNEL(count, WARP, 1, args)
{
    if (tid() == 0 && block_id() < p->n) {
        (void)atomic_add_u64(p->wide, block_id());
    }
}

/* ---- running -------------------------------------------------------------------------------------------------------------------- */

typedef struct rig {
    simt_device *device;
    args args;
    simt_report report;
    float a[ELEMENTS], b[ELEMENTS];
} rig;

static int make(void **state)
{
    rig *r = calloc(1, sizeof *r);
    const uint32_t zeros[2] = { 0, 0 };
    const uint64_t zero = 0;
    r->device = simt_open(64 << 20, 64 * 1024);
    r->args.a = simt_alloc(r->device, sizeof r->a, "a");
    r->args.b = simt_alloc(r->device, sizeof r->b, "b");
    r->args.counter = simt_alloc(r->device, sizeof zeros, "counter");
    r->args.wide = simt_alloc(r->device, sizeof zero, "wide");
    r->args.n = ELEMENTS;
    for (int i = 0; i < ELEMENTS; i++)
        r->a[i] = (float)(i * 3);
    simt_copy_in(r->device, r->args.a, r->a, sizeof r->a);
    simt_copy_in(r->device, r->args.counter, zeros, sizeof zeros);
    simt_copy_in(r->device, r->args.wide, &zero, sizeof zero);
    *state = r;
    return r->device == NULL;
}

static int drop(void **state)
{
    rig *r = *state;
    simt_close(r->device);
    free(r);
    return 0;
}

static simt_fault run(rig *r, const char *name, void (*kernel)(const void *), uint32_t threads, uint32_t grid_x, uint32_t grid_y, uint32_t fault)
{
    const simt_kernel k = { name, kernel, WARP, threads, sizeof r->args };
    r->args.fault = fault;
    const simt_fault found = simt_launch(r->device, &k, grid_x, grid_y, LANES * sizeof(float), &r->args, &r->report);
    if (found != SIMT_OK)
        print_message("  %s\n", r->report.text);
    return found;
}

#define RUN(r, name, fault) run(r, #name, OCT__KERNEL_SYMBOL(name), LANES, BLOCKS, 1, fault)

/* The fault is found and the report holds all of these texts. */
static void expect(rig *r, simt_fault found, simt_fault expected, const char *first, const char *second)
{
    assert_string_equal(simt_fault_name(found), simt_fault_name(expected));
    assert_non_null(strstr(r->report.text, first));
    assert_non_null(strstr(r->report.text, second));
    assert_non_null(strstr(r->report.text, "test_executor.c:"));
}

static void barriers(void **state)
{
    rig *r = *state;
    assert_int_equal(RUN(r, reverse, 0), SIMT_OK);
    assert_int_equal(simt_copy_out(r->device, r->b, r->args.b, sizeof r->b), 0);
    for (int i = 0; i < ELEMENTS; i++)
        assert_true(r->b[i] == r->a[i / LANES * LANES + LANES - 1 - i % LANES]);
    /* Lane 0 finds that its mirror image has not been written yet, or (with other orders) that somebody has. */
    expect(r, RUN(r, reverse, 1), SIMT_UNWRITTEN, "reverse (warp ", "block 0, lane 0");
    expect(r, RUN(r, reverse, 2), SIMT_DIVERGENT_BARRIER, "waits at a barrier", "has ended");
    expect(r, RUN(r, reverse, 3), SIMT_DIVERGENT_BARRIER, "waits at a barrier", "lane 64 is at ");
    expect(r, RUN(r, reverse, 4), SIMT_DIVERGENT_BARRIER, "waits at a barrier", "lane 77 has ended");
    assert_int_equal(RUN(r, reverse, 0), SIMT_OK);   /* after faults the device serves on */
}

static void warp_operations(void **state)
{
    rig *r = *state;
    assert_int_equal(RUN(r, operations, 0), SIMT_OK);
    assert_int_equal(simt_copy_out(r->device, r->b, r->args.b, sizeof r->b), 0);
    for (int i = 0; i < ELEMENTS; i++)
        assert_true(r->b[i] == 0.0f);
    assert_int_equal(RUN(r, sum, 0), SIMT_OK);
    expect(r, RUN(r, sum, 1), SIMT_DIVERGENT_WARP, "block 1, lane 0", "lane 1 has ended");
    expect(r, RUN(r, sum, 2), SIMT_DIVERGENT_WARP, "waits for its warp", "is at ");
    expect(r, RUN(r, sum, 3), SIMT_DIVERGENT_WARP, "block 0, lane 0", "lane 5 has ended");
}

static void bounds(void **state)
{
    rig *r = *state;
    assert_int_equal(RUN(r, copy, 0), SIMT_OK);
    assert_int_equal(simt_copy_out(r->device, r->b, r->args.b, sizeof r->b), 0);
    assert_memory_equal(r->a, r->b, sizeof r->a);
    expect(r, RUN(r, copy, 1), SIMT_OUT_OF_BOUNDS, "block 2, lane 127", "0 bytes past the end of 'a'");
    expect(r, RUN(r, copy, 2), SIMT_OUT_OF_BOUNDS, "writes 4 bytes", "4 bytes before 'b'");
    expect(r, RUN(r, copy, 4), SIMT_MISALIGNED, "reads 16 bytes", "byte 4 of 'a'");
    expect(r, RUN(r, copy, 7), SIMT_OUT_OF_BOUNDS, "no global address", "lane 127");
    simt_protect(r->device, r->args.a, 1);
    assert_int_equal(RUN(r, copy, 0), SIMT_OK);
    expect(r, RUN(r, copy, 3), SIMT_READ_ONLY, "byte 1532 of 'a'", "lane 127");
    simt_protect(r->device, r->args.a, 0);
    assert_int_equal(RUN(r, copy, 3), SIMT_OK);
    float *fresh = simt_alloc(r->device, sizeof r->b, "fresh"), *b = r->args.b;
    r->args.b = fresh;
    expect(r, RUN(r, copy, 8), SIMT_UNWRITTEN, "byte 1532 of 'fresh'", "nobody has written");
    assert_int_equal(RUN(r, copy, 0), SIMT_OK);
    assert_int_equal(RUN(r, copy, 8), SIMT_OK);
    simt_free(r->device, fresh);
    assert_int_equal(RUN(r, copy, 0), SIMT_OUT_OF_BOUNDS);
    r->args.b = b;
}

static void around_the_shim(void **state)
{
    rig *r = *state;
    assert_int_equal(RUN(r, copy, 5), SIMT_RAW_ACCESS);
    assert_non_null(strstr(r->report.text, "copy (warp "));
    assert_non_null(strstr(r->report.text, "block 2, lane 127"));
    assert_int_equal(RUN(r, copy, 6), SIMT_RAW_ACCESS);
    assert_int_equal(RUN(r, copy, 0), SIMT_OK);
}

static void shared_memory(void **state)
{
    rig *r = *state;
    assert_int_equal(RUN(r, shared, 0), SIMT_OK);
    assert_int_equal(simt_copy_out(r->device, r->b, r->args.b, sizeof r->b), 0);
    assert_true(r->b[5] == 10.0f && r->b[ELEMENTS - 1] == 10.0f);
    expect(r, RUN(r, shared, 1), SIMT_OUT_OF_BOUNDS, "lane 127", "outside of every array");
    expect(r, RUN(r, shared, 2), SIMT_OUT_OF_BOUNDS, "lane 64", "byte 512 of dynamic shared memory");
    expect(r, RUN(r, shared, 3), SIMT_UNWRITTEN, "block 2, lane 0", "nobody has written");
    expect(r, RUN(r, shared, 4), SIMT_BAD_LAUNCH, "lane 9", "another order");
    const simt_kernel k = { "shared", OCT__KERNEL_SYMBOL(shared), WARP, LANES, sizeof r->args };
    assert_int_equal(simt_launch(r->device, &k, 1, 1, 64 * 1024 + 1, &r->args, &r->report), SIMT_BAD_LAUNCH);
    assert_int_equal(simt_launch(r->device, &k, 1, 1, 64 * 1024, &r->args, &r->report), SIMT_BAD_LAUNCH);   /* the arrays do not fit */
    assert_int_equal(simt_launch(r->device, &k, 1, 0, 0, &r->args, &r->report), SIMT_BAD_LAUNCH);
}

static void races(void **state)
{
    rig *r = *state;
    uint32_t counter[2];
    uint64_t wide;
    assert_int_equal(RUN(r, race, 0), SIMT_OK);
    simt_copy_out(r->device, counter, r->args.counter, sizeof counter);
    simt_copy_out(r->device, &wide, r->args.wide, sizeof wide);
    assert_int_equal(counter[0], ELEMENTS);
    assert_int_equal(counter[1], ELEMENTS - 1);
    assert_true(wide == (UINT64_C(1) << 33) * ELEMENTS);
    expect(r, RUN(r, race, 1), SIMT_RACE, "lane 11", "lane 10 has written");
    expect(r, RUN(r, race, 2), SIMT_RACE, "reads byte 0 of 'b'", "lane 0 has written");
    expect(r, RUN(r, race, 3), SIMT_RACE, "shared memory", "has ");
    expect(r, RUN(r, race, 4), SIMT_RACE, "block 1, lane 3", "lane 3 of another block has written");
    expect(r, RUN(r, race, 5), SIMT_RACE, "block 2", "of another block has written");
    expect(r, RUN(r, race, 6), SIMT_RACE, "byte 0 of 'counter'", "an atomic");
    expect(r, RUN(r, race, 7), SIMT_RACE, "writes byte", "several lanes");
}

static void arrivals(void **state)
{
    rig *r = *state;
    const uint32_t zeros[2] = { 0, 0 };
    assert_int_equal(RUN(r, arrive, 0), SIMT_OK);
    simt_copy_out(r->device, r->b, r->args.b, sizeof r->b);
    assert_true(r->b[0] == (float)ELEMENTS);
    simt_copy_in(r->device, r->args.counter, zeros, sizeof zeros);
    expect(r, RUN(r, arrive, 1), SIMT_RACE, "block 2, lane 0", "of another block has written");
    simt_copy_in(r->device, r->args.counter, zeros, sizeof zeros);
    expect(r, RUN(r, arrive, 2), SIMT_RACE, "block 2, lane 0", "of another block has written");
}

/* 70,000 blocks, over one and over two axes; and time enough for the stamps to run out on the way. */
static void large_grids(void **state)
{
    rig *r = *state;
    uint64_t wide = 0;
    r->args.n = 70000;
    assert_int_equal(run(r, "count", OCT__KERNEL_SYMBOL(count), WARP, 70000, 1, 0), SIMT_OK);
    simt_copy_out(r->device, &wide, r->args.wide, sizeof wide);
    assert_true(wide == UINT64_C(70000) * 69999 / 2);
    for (int i = 0; i < 16; i++)
        assert_int_equal(run(r, "count", OCT__KERNEL_SYMBOL(count), WARP, 1000, 71, 0), SIMT_OK);
    simt_copy_out(r->device, &wide, r->args.wide, sizeof wide);
    assert_true(wide == 17 * (UINT64_C(70000) * 69999 / 2));
    assert_int_equal(RUN(r, reverse, 0), SIMT_OK);
    expect(r, RUN(r, race, 4), SIMT_RACE, "block 1, lane 3", "another block");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(barriers, make, drop),
        cmocka_unit_test_setup_teardown(warp_operations, make, drop),
        cmocka_unit_test_setup_teardown(bounds, make, drop),
        cmocka_unit_test_setup_teardown(around_the_shim, make, drop),
        cmocka_unit_test_setup_teardown(shared_memory, make, drop),
        cmocka_unit_test_setup_teardown(races, make, drop),
        cmocka_unit_test_setup_teardown(arrivals, make, drop),
        cmocka_unit_test_setup_teardown(large_grids, make, drop),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
