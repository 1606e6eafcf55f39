/* test_executor_group.c: the executor's promises about barriers of some of a block's warps, on kernels that are right and with one thing wrong. A
 * named barrier counts warps (PTX: a lane waits for its warp, whose arrival it marks), so that what any lane of a warp read before it lies before it. And about registers that warps hand to
 * each other. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "cuda/simt_group_sm90a.h"
#include "device/executor.h"

enum { LANES = 128, ROUNDS = 3 };

typedef struct args {
    uint32_t *sums, fault;
} args;

/* Each warp reads its words, four lanes of them 16 bytes; past a barrier the next warp writes them anew. fault 1: without the barrier; 2: two barriers of 64
 * lanes, so that of four neighbours two do not meet; 3: half a warp stays away. */
KERNEL(turns, LANES, 1, args)
{
    SHARED_DYNAMIC(uint8_t, shared);
    const shared_at base = shared_at_of(shared);
    const uint32_t warp = tid() / WARP, lane = tid() % WARP;
    uint32_t sum = 0;
    proxy_fence();
    shared_write_4(base + tid() * 4, tid());
    named_sync(1, LANES);
    for (uint32_t round = 0; round < ROUNDS; round++) {
        sum += shared_read_4(base + tid() * 4);
        if (p->fault == 2) {
            named_sync(1 + tid() / 64, 64);
        } else if (p->fault == 3) {
            if (tid() < LANES - WARP / 2) {
                named_sync(1, LANES);
            }
        } else if (p->fault != 1) {
            named_sync(1, LANES);
        }
        shared_write_4(base + ((warp + 1) % 4 * WARP + lane) * 4, 1000 * round + tid());
        named_sync(1, LANES);
    }
    PUT(p->sums[tid()], sum);
}

/* Of 384 lanes, which begin with 168 registers each, a third gives some back for the others. fault 1: fewer than those ask for. */
KERNEL(shares, 384, 1, args)
{
    if (tid() < 128) {
        if (p->fault == 1) {
            registers_fewer(80);
        } else {
            registers_fewer(72);
        }
    } else {
        registers_more(216);
    }
    if (tid() < LANES) {
        PUT(p->sums[tid()], tid());
    }
}

static simt_device *device;
static args parameters;
static simt_report report;

static int make(void **state)
{
    (void)state;
    device = simt_open(16 << 20, 64 * 1024);
    parameters.sums = device != NULL ? simt_alloc(device, LANES * sizeof(uint32_t), "sums") : NULL;
    return parameters.sums == NULL;
}

static int drop(void **state)
{
    (void)state;
    simt_close(device);
    return 0;
}

static simt_fault turns_with(uint32_t fault)
{
    const simt_kernel kernel = { "turns", OCT__KERNEL_SYMBOL(turns), WARP, LANES, sizeof parameters };
    parameters.fault = fault;
    const simt_fault found = simt_launch(device, &kernel, 1, 1, LANES * sizeof(uint32_t), &parameters, &report);
    if (found != SIMT_OK)
        print_message("  %s\n", report.text);
    return found;
}

static void named_barriers(void **state)
{
    uint32_t sums[LANES];
    (void)state;
    assert_int_equal(turns_with(0), SIMT_OK);
    assert_int_equal(simt_copy_out(device, sums, parameters.sums, sizeof sums), 0);
    for (uint32_t i = 0; i < LANES; i++)   /* its own, then twice what the warp before it wrote */
        assert_int_equal(sums[i], i + 1000 + 2 * ((i + LANES - 32) % LANES));
    assert_int_equal(turns_with(1), SIMT_RACE);
    assert_non_null(strstr(report.text, "with nothing between"));
    assert_int_equal(turns_with(2), SIMT_RACE);
    assert_non_null(strstr(report.text, "with nothing between"));
    assert_int_equal(turns_with(3), SIMT_DIVERGENT_WARP);
    assert_int_equal(turns_with(0), SIMT_OK);
}

static void registers(void **state)
{
    const simt_kernel kernel = { "shares", OCT__KERNEL_SYMBOL(shares), WARP, 384, sizeof parameters };
    (void)state;
    parameters.fault = 0;
    assert_int_equal(simt_launch(device, &kernel, 1, 1, 0, &parameters, &report), SIMT_OK);
    parameters.fault = 1;
    assert_int_equal(simt_launch(device, &kernel, 1, 1, 0, &parameters, &report), SIMT_BAD_LAUNCH);
    assert_non_null(strstr(report.text, "ask for 65536 and began with 64512"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(named_barriers, make, drop),
        cmocka_unit_test_setup_teardown(registers, make, drop),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
