/* test_no_code.c: a library that was built without the GPUs' compilers says so when a driver and a GPU are there. Arguments: the two doubles. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "device/driver.h"

static const char *cuda_double, *hip_double;

static void says_that_there_is_no_code(void **state)
{
    oct__driver_options options = { .library = cuda_double };
    oct_error error = OCT_ERROR_INIT;
    oct__driver *driver = NULL;
    (void)state;
    assert_int_equal(oct__cuda_open(&options, &driver, &error), OCT_UNSUPPORTED);
    assert_null(driver);
    assert_non_null(strstr(error.text, "no kernels for sm_90"));
    assert_non_null(strstr(error.text, "built without code for GPUs"));
    options.library = hip_double;
    assert_int_equal(oct__hip_open(&options, &driver, &error), OCT_UNSUPPORTED);
    assert_null(driver);
    assert_non_null(strstr(error.text, "no kernels for gfx942"));
    assert_non_null(strstr(error.text, "built without code for GPUs"));
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(says_that_there_is_no_code) };
    if (argc != 3)
        return 2;
    cuda_double = argv[1];
    hip_double = argv[2];
    return cmocka_run_group_tests(tests, NULL, NULL);
}
