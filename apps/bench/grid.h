/* grid.h: owns the grid of problems that choices are judged on. Pure; any thread. */
#ifndef APP_BENCH_GRID_H
#define APP_BENCH_GRID_H

#include "apps/bench/problem.h"

/* What a single problem may cost, so that a grid takes minutes; bytes count all stored K and V of it. */
typedef struct bench_grid_limits { double bytes, flops; } bench_grid_limits;

/* Problem i of a grid, the same on every machine. Values are drawn from batch 1..64, q 1..4096, kv 1..65536, dims 64, 96, 128, 192, 256 (and K 192, V
 * 128), 1 to 16 query heads a KV head, all formats and pairs of them, windows, operands and page sizes; the first ones go through every
 * value of each axis in turn. What would pass a limit gets fewer KV heads, then fewer sequences, then shorter ones. */
bench_problem bench_grid_problem(uint32_t i, const bench_grid_limits *limits, uint32_t threads);

/* The same problem made small: what a variant that is far off can be told from at little cost. */
bench_problem bench_grid_small(const bench_problem *problem);

#endif
