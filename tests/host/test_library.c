/* test_library.c: shared libraries are opened by the first name that does, functions are found or not, and what fails says why. */
#include "host_test.h"

#include "host/library.h"

static void opens_the_first_that_is_there(void **state)
{
    (void)state;
    const char *const names[] = { "liboctavo-nowhere.so.9", "libm.so.6", "libc.so.6", NULL };
    void *library = oct__library_open(names, NULL, 0);
    assert_non_null(library);
    double (*floor_of)(double) = (double (*)(double))oct__library_find(library, "floor");
    assert_non_null(floor_of);
    assert_true(floor_of(2.5) > 1.9 && floor_of(2.5) < 2.1);
    assert_null(oct__library_find(library, "octavo_has_no_such_function"));
    oct__library_close(library);
}

static void says_why_none_opens(void **state)
{
    (void)state;
    const char *const names[] = { "liboctavo-nowhere.so.9", "/also/nowhere.so", NULL }, *const none[] = { NULL };
    char why[200] = "", cut[10];
    assert_null(oct__library_open(names, why, sizeof(why)));
    assert_non_null(strstr(why, "liboctavo-nowhere.so.9"));
    assert_null(oct__library_open(names, cut, sizeof(cut)));
    assert_int_equal(strlen(cut), sizeof(cut) - 1);
    assert_null(oct__library_open(none, why, sizeof(why)));
    oct__library_close(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(opens_the_first_that_is_there), cmocka_unit_test(says_why_none_opens) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
