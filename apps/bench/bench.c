/* bench.c: owns `octavo bench`: which benchmarks there are. Each has a file of its name. */
#include <string.h>

#include "apps/bench/bench.h"
#include "apps/output.h"

static const app_command *const benches[] = { &app_command_bench_attn, &app_command_bench_model, &app_command_bench_regret, &app_command_bench_serve, &app_command_bench_steps };
enum { N_BENCHES = sizeof(benches) / sizeof(benches[0]), PREFIX = sizeof("bench ") - 1 };

const app_command *app_bench_find(const char *name)
{
    for (size_t i = 0; i < N_BENCHES; i++) {
        if (strcmp(benches[i]->name + PREFIX, name) == 0) {
            return benches[i];
        }
    }
    return NULL;
}

static int help(void)
{
    app_text text = { 0 };
    app_text_add(&text, "octavo bench: %s\n\nusage: octavo bench WHAT [flags]\n\n", app_command_bench.summary);
    for (size_t i = 0; i < N_BENCHES; i++) {
        app_text_add(&text, "  %-11s %s\n", benches[i]->name + PREFIX, benches[i]->summary);
    }
    app_text_add(&text, "\n'octavo bench WHAT --help' lists its flags.\n");
    const int code = app_output_report(&text, NULL);
    app_text_free(&text);
    return code;
}

static int run(const app_command *command, int argc, char **argv)
{
    if (argc > 0 && (strcmp(argv[0], "--help") == 0 || strcmp(argv[0], "-h") == 0)) {
        return help();
    }
    const app_command *const bench = argc > 0 ? app_bench_find(argv[0]) : NULL;
    if (bench != NULL) {
        return bench->run(bench, argc - 1, argv + 1);
    }
    if (argc > 0) {
        return app_arguments_complain(command, "there is no benchmark '%.60s'", argv[0]);
    }
    return app_arguments_complain(command, "say which: attn, regret, serve, steps or model");
}

const app_command app_command_bench = {
    .name = "bench", .summary = "measure operations, choices of kernels and whole models", .operands = "WHAT [flags]", .help = help, .run = run,
};
