/* bench.h: owns the table of benchmarks. Single-threaded. */
#ifndef APP_BENCH_BENCH_H
#define APP_BENCH_BENCH_H

#include "apps/command.h"

extern const app_command app_command_bench_attn, app_command_bench_model, app_command_bench_regret, app_command_bench_serve, app_command_bench_steps;

/* "attn"; NULL for none. */
const app_command *app_bench_find(const char *name);

#endif
