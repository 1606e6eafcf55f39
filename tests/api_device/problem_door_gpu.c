/* problem_door_gpu.c: in the place of parity/problem_door.c: the tests that run problems through it, tests/faults among them, run on a context of a GPU
 * (GPU_WHAT, on the fake driver or a vendor's) instead, over every row that it chooses among. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/context.h"
#include "api_device/gpu.h"
#include "api_device/run_problem.h"

/* One a process: cases run in children. */
static gpu *the_gpu(void)
{
    static gpu g;
    static int is_open;
    oct_error error = OCT_ERROR_INIT;
    if (!is_open && gpu_open(&g, GPU_WHAT, NULL, 1, NULL, &error) != OCT_OK) {
        fprintf(stderr, "%s\n", error.text);
        abort();
    }
    is_open = 1;
    return &g;
}

const oct__variant *problem_rows(uint32_t *n)
{
    return oct__variants_of(strstr(GPU_WHAT, "hip") != NULL ? OCT__DEVICE_HIP : OCT__DEVICE_CUDA, n);
}

/* The doubles are GPUs that have everything; of real ones the newest. */
int problem_row_can(const oct__variant *row)
{
    (void)row;
    return 1;
}

/* context and way are the CPU's matter. */
problem_outcome problem_run(problem *p, oct_context *context, const char *force, problem_way way)
{
    problem_outcome outcome;
    char why[640] = "";
    gpu *g = the_gpu();
    (void)context, (void)way;
    memset(&outcome, 0, sizeof outcome);
    outcome.info.struct_size = sizeof outcome.info;
    if (device_run_problem(g->context, g->stream, p, NULL, force, &outcome.info, why, sizeof why) != 0)
        outcome.status = strstr(why, "unsupported") != NULL ? OCT_UNSUPPORTED : OCT_DEVICE_FAULT;
    snprintf(outcome.text, sizeof outcome.text, "%.200s %.100s", why, g->fake != NULL ? fake_report(g->fake) : "");
    return outcome;
}
