/* parity_one.c: repeats one case from the line that a failure printed:
 *   parity_one 'seed=...,...' [parts|threads]     an attention problem
 *   parity_one write 'seed=...,...'               a write
 *   parity_one random SEED | parity_one write random SEED
 * Exit status 0 when every variant is right. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "parity/isolate.h"
#include "parity/problem.h"
#include "parity/write_case.h"

static int usage(void)
{
    fprintf(stderr, "usage: parity_one [write] 'seed=...,...' [parts|threads] | parity_one [write] random SEED\n");
    return 2;
}

static int one_write(int argc, char **argv)
{
    write_shape shape;
    char text[1024];
    if (argc == 2 && strcmp(argv[0], "random") == 0)
        shape = write_random(strtoll(argv[1], NULL, 10));
    else if (argc != 1 || write_parse(&shape, argv[0]) != 0)
        return usage();
    write_print(&shape, text, sizeof text);
    printf("%s\n", text);
    const int64_t failures = write_check(&shape);
    isolate_report();
    return failures != 0;
}

static int one_problem(int argc, char **argv)
{
    problem_shape shape;
    problem p;
    char text[PROBLEM_TEXT];
    problem_way way = RUN_WHOLE;
    if (argc == 2 && strcmp(argv[0], "random") == 0)
        shape = problem_random(strtoll(argv[1], NULL, 10));
    else if (argc < 1 || problem_parse(&shape, argv[0]) != 0)
        return usage();
    else if (argc == 2)
        way = strcmp(argv[1], "parts") == 0 ? RUN_PARTS : RUN_THREADS;
    problem_print(&shape, text, sizeof text);
    printf("%s\n", text);
    if (problem_make(&p, &shape) != 0) {
        fprintf(stderr, "the problem cannot be made\n");
        return 1;
    }
    const int64_t failures = problem_check_made(&p, way);
    problem_drop(&p);
    isolate_report();
    return failures != 0;
}

int main(int argc, char **argv)
{
    if (argc >= 2 && strcmp(argv[1], "write") == 0)
        return one_write(argc - 2, argv + 2);
    return one_problem(argc - 1, argv + 1);
}
