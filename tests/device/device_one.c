/* device_one.c: repeats one case on the host executor, from the line that a failure printed:
 *   device_one WARP 'seed=...,...' | device_one WARP write 'seed=...,...' | device_one WARP [write] random SEED
 * Exit status 0 when it is right. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "device/device_check.h"

int main(int argc, char **argv)
{
    char text[PROBLEM_TEXT];
    const uint32_t warp = argc >= 3 ? (uint32_t)strtoul(argv[1], NULL, 10) : 0;
    const int is_write = argc >= 3 && strcmp(argv[2], "write") == 0, at = is_write ? 3 : 2;
    const int is_random = argc == at + 2 && strcmp(argv[at], "random") == 0;
    problem_shape shape;
    write_shape write;
    if ((warp != 32 && warp != 64) || (!is_random && argc != at + 1) ||
        (!is_random && (is_write ? write_parse(&write, argv[at]) : problem_parse(&shape, argv[at])) != 0)) {
        fprintf(stderr, "usage: device_one 32|64 [write] 'seed=...,...' | device_one 32|64 [write] random SEED\n");
        return 2;
    }
    if (is_random && is_write)
        write = write_random(strtoll(argv[at + 1], NULL, 10));
    else if (is_random)
        shape = problem_random(strtoll(argv[at + 1], NULL, 10));
    if (is_write)
        write_print(&write, text, sizeof text);
    else
        problem_print(&shape, text, sizeof text);
    printf("%s\n", text);
    const int64_t failures = is_write ? device_check_write(warp, &write) : device_check_attn(warp, &shape);
    isolate_report();
    return failures != 0;
}
