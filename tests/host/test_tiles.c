/* test_tiles.c: the system gives the tiles' state nowhere but where it lists it (sandboxes list it and refuse it), and each time the same. */
#include "host_test.h"

#include <stdio.h>
#include <string.h>

#include "host/tiles.h"

/* Linux lists amx_tile among the flags of a CPU whose tiles it saves. */
static bool system_has_tiles(void)
{
    char line[8192];
    bool found = false;
    FILE *f = fopen("/proc/cpuinfo", "r");
    while (f != NULL && !found && fgets(line, sizeof(line), f) != NULL) {
        found = strncmp(line, "flags", 5) == 0 && strstr(line, " amx_tile") != NULL;
    }
    if (f != NULL) {
        fclose(f);
    }
    return found;
}

static void given_only_where_there_are_some(void **state)
{
    (void)state;
    const bool first = oct__tiles_request();
    assert_true(!first || system_has_tiles());
    assert_int_equal(oct__tiles_request(), first);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(given_only_where_there_are_some) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
