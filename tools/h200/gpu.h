/* gpu.h: owns what the programs of this folder use of the NVIDIA GPU at hand: the driver opened at run time, code, memory, launches of the library's kernels,
 * and times from a CUDA graph. Whatever fails ends the program with a line on stderr.
 *
 * Threads: one. */
#ifndef OCT_TOOLS_H200_GPU_H
#define OCT_TOOLS_H200_GPU_H

#include <stddef.h>
#include <stdint.h>

#include "device/launch.h"

/* Opens the first GPU and its default context; code: the file of the library's kernels. */
void gpu_open(const char *code);
const char *gpu_name(void);

/* With everything that it has, and with the portable kernels alone. */
oct__dev_chip gpu_chip(void);
oct__dev_chip gpu_chip_portable(void);

void *gpu_alloc(size_t size_bytes);
void gpu_free(void *at);
void *gpu_upload(const void *from, size_t size_bytes);   /* allocates */
void gpu_copy_out(void *to, const void *from, size_t size_bytes);
void gpu_fill(void *at, unsigned char byte, size_t size_bytes);
void gpu_wait(void);

/* Enqueues one of the library's kernels. early: may begin before the one before it has ended, if its text says so. */
void gpu_run(const oct__dev_launch *launch, const void *params);

/* One call of what is measured, over set i of its operands. */
typedef void gpu_turn(void *of, int i);

/* Microseconds of a turn: sets 0 .. n - 1 captured in one graph, which is launched `repeats` (at most 64) times, each after a write of 256 MB: the median over n.
 * least, most: the same of the fastest and slowest launch; NULL is fine. */
double gpu_time(gpu_turn *turn, void *of, int n, int repeats, double *least, double *most);

#endif
