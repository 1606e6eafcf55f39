/* test_tile.c: the fragment layouts of the matrix units (tile_check.h) at one warp width. Argument: 32 or 64. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "device/tile_check.h"

static uint32_t warp;

static void fragments(void **state)
{
    (void)state;
    assert_true(tile_check(warp) > 20);
}

int main(int argc, char **argv)
{
    warp = argc == 2 ? (uint32_t)strtoul(argv[1], NULL, 10) : 0;
    if (warp != 32 && warp != 64)
        return fprintf(stderr, "usage: device_tile 32|64\n"), 2;
    const struct CMUnitTest tests[] = { cmocka_unit_test(fragments) };
    const int n_failed = cmocka_run_group_tests(tests, NULL, NULL);
    if (n_failed != 0)
        print_error("tile_probe, warp %u: %d tests failed\n", warp, n_failed);
    return n_failed;
}
