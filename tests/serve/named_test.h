/* named_test.h: one test of a program by its name. */
#ifndef OCT_TESTS_SERVE_NAMED_TEST_H
#define OCT_TESTS_SERVE_NAMED_TEST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

/* Leaves cmocka the test of that name alone. Without one it says so: cmocka would run none and be content. */
static inline bool named_test(const struct CMUnitTest *tests, size_t n, const char *name)
{
    size_t i = 0;
    while (i < n && strcmp(tests[i].name, name) != 0) {
        i++;
    }
    if (i == n) {
        printf("there is no test %s\n", name);
        return false;
    }
    cmocka_set_test_filter(name);
    return true;
}

#endif
