/* test_pattern.h: some of a program's tests, by a pattern of names with * and ?. Included after cmocka.h. */
#ifndef OCT_TESTS_TEST_PATTERN_H
#define OCT_TESTS_TEST_PATTERN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

/* As cmocka matches: no other character is special. */
static inline bool test_pattern_matches(const char *name, const char *pattern)
{
    if (*pattern == '*') {
        return test_pattern_matches(name, pattern + 1) || (*name != '\0' && test_pattern_matches(name + 1, pattern));
    }
    return *pattern == '\0' || *name == '\0' ? *pattern == *name : (*pattern == '?' || *pattern == *name) && test_pattern_matches(name + 1, pattern + 1);
}

/* Leaves cmocka the tests whose names match. When there are none it says so: cmocka would run none and be content. */
static inline bool test_pattern(const struct CMUnitTest *tests, size_t n, const char *pattern)
{
    size_t i = 0;
    while (i < n && !test_pattern_matches(tests[i].name, pattern)) {
        i++;
    }
    if (i == n) {
        fprintf(stderr, "there is no test '%s'\n", pattern);
        return false;
    }
    cmocka_set_test_filter(pattern);
    return true;
}

#endif
