/* executor_amdsim.c: the doors of tests/device/executor.h with the simulator behind them, so that the programs of that folder run the compiler's own
 * code for AMDSIM_ARCH: AMDSIM_ASSEMBLY is the text that the build writes beside the code object.
 *
 * Threads: one. */
#define _DEFAULT_SOURCE
#include "device/executor.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "amdsim/door.h"
#include "amdsim/sim.h"
#include "device/params.h"

struct simt_device { sim_memory *memory; uint32_t shared_limit_bytes; };

enum { KERNELS_MAX = 64 };

/* Shared with children: the tests run their problems in those. */
typedef struct board { uint64_t launches[KERNELS_MAX], instructions[KERNELS_MAX]; unsigned char reached[]; } board;

static sim_program *program;
static board *tallies;

sim_program *door_program(void)
{
    char why[512];
    if (program == NULL && (program = sim_load(AMDSIM_ASSEMBLY, why, sizeof why)) == NULL)
        fprintf(stderr, "%s\n", why);
    return program;
}

const char *door_assembly(void) { return AMDSIM_ASSEMBLY; }
const char *door_arch(void) { return AMDSIM_ARCH; }

const char *simt_fault_name(simt_fault fault)
{
    static const char *const names[] = { "ok", "bad launch", "divergent warp operation", "divergent barrier", "out of bounds", "read-only", "misaligned",
                                         "unwritten", "race", "raw access" };
    return (size_t)fault < sizeof names / sizeof names[0] ? names[fault] : "?";
}

/* What the host executor's names come to; missing waits are what it has no name for. */
static simt_fault fault_of(sim_fault fault)
{
    switch (fault) {
    case SIM_OK:
        return SIMT_OK;
    case SIM_UNDEFINED:
        return SIMT_UNWRITTEN;
    case SIM_GLOBAL_BOUNDS:
    case SIM_LDS_BOUNDS:
        return SIMT_OUT_OF_BOUNDS;
    case SIM_READ_ONLY:
        return SIMT_READ_ONLY;
    case SIM_MISALIGNED:
        return SIMT_MISALIGNED;
    case SIM_BARRIER:
        return SIMT_DIVERGENT_BARRIER;
    case SIM_RACE:
    case SIM_WAIT:
        return SIMT_RACE;
    default:
        return SIMT_BAD_LAUNCH;
    }
}

simt_device *simt_open(size_t memory_bytes, uint32_t shared_limit_bytes)
{
    (void)memory_bytes;
    simt_device *d = calloc(1, sizeof *d);
    if (d == NULL || door_program() == NULL || (d->memory = sim_memory_make()) == NULL) {
        free(d);
        return NULL;
    }
    d->shared_limit_bytes = shared_limit_bytes;
    return d;
}

void simt_close(simt_device *device)
{
    if (device != NULL)
        sim_memory_drop(device->memory);
    free(device);
}

/* Few, so that grids stride. */
uint32_t simt_units(const simt_device *device)
{
    (void)device;
    return 2;
}

static uint64_t number_of(const void *at) { return (uint64_t)(uintptr_t)at; }

void *simt_alloc(simt_device *device, size_t size_bytes, const char *name)
{
    return (void *)(uintptr_t)sim_alloc(device->memory, size_bytes, name);
}

void simt_free(simt_device *device, void *at)
{
    if (at != NULL && sim_free(device->memory, number_of(at)) != 0)
        abort();   /* the test's own mistake */
}

int simt_copy_in(simt_device *device, void *to, const void *from, size_t size_bytes)
{
    return sim_copy_in(device->memory, number_of(to), from, size_bytes);
}

int simt_copy_out(simt_device *device, void *to, const void *from, size_t size_bytes)
{
    return sim_copy_out(device->memory, to, number_of(from), size_bytes);
}

int simt_fill(simt_device *device, void *to, int byte, size_t size_bytes) { return sim_fill(device->memory, number_of(to), byte, size_bytes); }
int simt_protect(simt_device *device, void *at, int on) { return sim_protect(device->memory, number_of(at), on); }

static const simt_kernel kernels[KERNELS_MAX] = {
#define X(name, threads, type) { #name, NULL, 64, threads, sizeof(type) },
#include "device/kernels.def"
#undef X
};

const simt_kernel *simt_nth(uint32_t warp, uint32_t index)
{
    return warp == 64 && index < KERNELS_MAX && kernels[index].name != NULL ? &kernels[index] : NULL;
}

simt_fp8_use simt_fp8(uint32_t warp, uint32_t dtype)
{
    (void)warp;
    if (strcmp(AMDSIM_ARCH, "gfx942") == 0)
        return dtype == OCT_DTYPE_E4M3FNUZ ? SIMT_FP8_USED : SIMT_FP8_NONE;
    return dtype == OCT_DTYPE_E4M3FN ? SIMT_FP8_WIDE : SIMT_FP8_NONE;
}

const simt_kernel *simt_find(uint32_t warp, const char *name)
{
    const simt_kernel *kernel;
    for (uint32_t i = 0; (kernel = simt_nth(warp, i)) != NULL; i++)
        if (strcmp(kernel->name, name) == 0)
            return kernel;
    return NULL;
}

const sim_kernel *door_kernel(const char *name)
{
    char symbol[96];
    snprintf(symbol, sizeof symbol, "oct__dev_%s", name);
    return program == NULL ? NULL : sim_find(program, symbol);
}

/* ---- tallies --------------------------------------------------------------------------------------------------------------------- */

int door_count(void)
{
    const simt_kernel *kernel;
    size_t n = 0, at = 0;
    for (uint32_t i = 0; (kernel = simt_nth(64, i)) != NULL; i++)
        n += door_kernel(kernel->name) != NULL ? sim_kernel_size(door_kernel(kernel->name)) : 0;
    void *memory = mmap(NULL, sizeof *tallies + n, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return -1;
    tallies = memory;
    for (uint32_t i = 0; (kernel = simt_nth(64, i)) != NULL; i++) {
        const sim_kernel *code = door_kernel(kernel->name);
        if (code == NULL)
            continue;
        sim_watch(program, code, tallies->reached + at);
        at += sim_kernel_size(code);
    }
    return 0;
}

door_tally door_tally_of(uint32_t index)
{
    door_tally t = { tallies->launches[index], tallies->instructions[index], 0, 0 };
    size_t at = 0;
    for (uint32_t i = 0; i <= index; i++) {
        const sim_kernel *code = door_kernel(kernels[i].name);
        t.n_all = code != NULL ? sim_kernel_size(code) : 0;
        at += t.n_all;
    }
    for (size_t i = at - t.n_all; i < at; i++)
        t.n_reached += tallies->reached[i];
    return t;
}

/* ---- launches -------------------------------------------------------------------------------------------------------------------- */

simt_fault simt_launch(simt_device *device, const simt_kernel *kernel, uint32_t grid_x, uint32_t grid_y, uint32_t dynamic_shared_bytes,
                       const void *params, simt_report *report)
{
    sim_report inner;
    memset(report, 0, sizeof *report);
    const sim_kernel *code = door_kernel(kernel->name);
    if (code == NULL || dynamic_shared_bytes > device->shared_limit_bytes) {
        report->fault = SIMT_BAD_LAUNCH;
        snprintf(report->text, sizeof report->text, "%s: %s", kernel->name, code == NULL ? "not in " AMDSIM_ASSEMBLY : "more LDS than the rig allows");
        return report->fault;
    }
    report->fault = fault_of(sim_launch(device->memory, code, grid_x, grid_y, kernel->threads, dynamic_shared_bytes, params, kernel->params_bytes, &inner));
    report->block = inner.block;
    report->lane = inner.wave * 64;
    memcpy(report->text, inner.text, sizeof report->text);
    if (tallies != NULL) {
        tallies->launches[kernel - kernels]++;
        tallies->instructions[kernel - kernels] += inner.instructions;
    }
    return report->fault;
}
