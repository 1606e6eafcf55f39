/* host_test.h: the includes that every test of src/host begins with. */
#ifndef OCT_TESTS_HOST_HOST_TEST_H
#define OCT_TESTS_HOST_HOST_TEST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#endif
