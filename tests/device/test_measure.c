/* test_measure.c: the kernel that oct_rates_measure times, at one warp width: all words are read, and copied where they are to be. Arguments: 32 or 64. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "device/device_check.h"

enum { STEPS_MAX = 50, WORDS_A_STEP = OCT__MEASURE_STEP / 4 };

static uint32_t warp;

static void reads_and_copies_all(void **state)
{
    static const uint64_t steps[] = { 1, 3, STEPS_MAX };
    device_rig *rig = device_check_rig(warp);
    const size_t n_left = (size_t)oct__dev_measure_words(&rig->chip), bytes = STEPS_MAX * (size_t)OCT__MEASURE_STEP;
    uint32_t *host = malloc(bytes), *back = malloc(bytes), *left = malloc(n_left * 4);
    int n = 0;
    (void)state;
    assert_true(host != NULL && back != NULL && left != NULL);
    rng r = rng_make(9);
    for (size_t i = 0; i < bytes / 4; i++)
        host[i] = (uint32_t)rng_below(&r, UINT32_MAX);
    for (size_t i = 0; i < sizeof steps / sizeof steps[0]; i++)
        for (int way = 0; way < 4; way++) {   /* bit 0: copies; bit 1: one block */
            const size_t n_words = (size_t)steps[i] * WORDS_A_STEP;
            unsigned char *from = simt_alloc(rig->device, n_words * 4, "from"), *to = way % 2 ? simt_alloc(rig->device, n_words * 4, "to") : NULL;
            uint32_t *there = simt_alloc(rig->device, n_left * 4, "left"), all = 0;
            oct__measure_params params;
            oct__dev_launch launch;
            simt_report report;
            assert_int_equal(simt_copy_in(rig->device, from, host, n_words * 4), 0);
            assert_int_equal(simt_protect(rig->device, from, 1), 0);
            assert_int_equal(simt_fill(rig->device, there, 0, n_left * 4), 0);
            oct__dev_pack_measure(&rig->chip, from, to, there, steps[i], way / 2, &params, &launch);
            if (device_launch(rig, &launch, &params, &report) != SIMT_OK)
                fail_msg("%s", report.text);
            assert_int_equal(simt_copy_out(rig->device, left, there, n_left * 4), 0);
            for (size_t w = 0; w < n_left; w++)
                all ^= left[w];
            for (size_t w = 0; w < n_words; w++)
                all ^= host[w];
            assert_int_equal(all, 0);
            if (to != NULL) {
                assert_int_equal(simt_copy_out(rig->device, back, to, n_words * 4), 0);
                assert_memory_equal(back, host, n_words * 4);
            }
            simt_free(rig->device, from);
            simt_free(rig->device, to);
            simt_free(rig->device, there);
            n++;
        }
    free(host);
    free(back);
    free(left);
    print_message("measure/%u judged on %d cases\n", warp, n);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(reads_and_copies_all) };
    warp = argc == 2 ? (uint32_t)strtoul(argv[1], NULL, 10) : 0;
    if (warp != 32 && warp != 64)
        return fprintf(stderr, "usage: device_measure 32|64\n"), 2;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
