/* sim.h: owns the simulator of AMD's wave64 machines gfx942 and gfx950: it reads the assembly text that clang writes (-S) and runs its kernels,
 * instruction by instruction, on memory of its own. What it finds wrong ends the launch, with kernel, line and instruction in the report:
 *   - an instruction, operand or modifier that it does not know (when the text is read; the kernel then cannot be launched);
 *   - a register that is read or overwritten while a load still owes it (no s_waitcnt in between), and LDS writes still on their way at s_barrier;
 *   - accesses outside of allocations, of the kernel's arguments or of the group's LDS; to read-only ones; misaligned ones;
 *   - a lane mask, branch, address or stored value that comes from a register or byte that nobody wrote;
 *   - s_barrier with lanes masked off, at different places, or after a wave has ended; waves that meet in a word of LDS without a barrier.
 * What it does not model stands in doc/KERNELS.md.
 *
 * Addresses are numbers of its own, not host pointers. Threads: one. */
#ifndef AMDSIM_SIM_H
#define AMDSIM_SIM_H

#include <stddef.h>
#include <stdint.h>

typedef enum sim_fault {
    SIM_OK, SIM_BAD_LAUNCH, SIM_UNKNOWN, SIM_WAIT, SIM_UNDEFINED, SIM_GLOBAL_BOUNDS, SIM_LDS_BOUNDS, SIM_READ_ONLY, SIM_MISALIGNED, SIM_BARRIER,
    SIM_RACE, SIM_ENDLESS
} sim_fault;

typedef struct sim_report {
    sim_fault fault;
    uint64_t block, instructions;   /* instructions: of all waves of the launch */
    uint32_t wave;
    int line;                       /* of the assembly; 0 where no instruction is to blame */
    char text[512];                 /* "" when OK */
} sim_report;

const char *sim_fault_name(sim_fault fault);

/* ---- programs ---------------------------------------------------------------------------------------------------------------- */

typedef struct sim_program sim_program;
typedef struct sim_kernel sim_kernel;

/* The kernels of an assembly text; NULL when it is none at all, with the reason in `why`. `name`, kept, stands in reports. */
sim_program *sim_parse(const char *text, const char *name, char *why, size_t why_bytes);
sim_program *sim_load(const char *path, char *why, size_t why_bytes);
void sim_drop(sim_program *program);   /* NULL is fine */

const sim_kernel *sim_find(const sim_program *program, const char *name);   /* NULL when there is none */
const sim_kernel *sim_nth(const sim_program *program, size_t index);
const char *sim_kernel_name(const sim_kernel *kernel);
/* "" or why it cannot be launched: the first line of it that the simulator does not know. */
const char *sim_kernel_error(const sim_kernel *kernel);
size_t sim_kernel_size(const sim_kernel *kernel);   /* instructions */
/* From here on reached[i] is set when instruction i runs; NULL ends it. */
void sim_watch(const sim_program *program, const sim_kernel *kernel, unsigned char *reached);
/* A fault for tests: while it is planted, instruction `index`, an s_waitcnt, waits for nothing. -1: it is none. */
int sim_plant(const sim_program *program, const sim_kernel *kernel, size_t index, int on);

/* ---- memory ------------------------------------------------------------------------------------------------------------------ */

typedef struct sim_memory sim_memory;

sim_memory *sim_memory_make(void);
void sim_memory_drop(sim_memory *memory);

/* An address, 256-byte aligned, a megabyte away from all others; nothing of it counts as written. `name` is kept. 0 without memory. */
uint64_t sim_alloc(sim_memory *memory, size_t size_bytes, const char *name);
int sim_free(sim_memory *memory, uint64_t at);   /* -1 when nothing begins there */

/* 0; -1 when the range is not within one allocation. Bytes copied in count as written. */
int sim_copy_in(sim_memory *memory, uint64_t to, const void *from, size_t size_bytes);
int sim_copy_out(const sim_memory *memory, void *to, uint64_t from, size_t size_bytes);
int sim_fill(sim_memory *memory, uint64_t to, int byte, size_t size_bytes);
/* The whole allocation counts as written, and kernels may not write it; or may again. */
int sim_protect(sim_memory *memory, uint64_t at, int on);

/* ---- launches ---------------------------------------------------------------------------------------------------------------- */

/* One-dimensional groups of `threads` lanes. params: the explicit arguments; the hidden ones of code object version 5 are added. */
sim_fault sim_launch(sim_memory *memory, const sim_kernel *kernel, uint32_t grid_x, uint32_t grid_y, uint32_t threads, uint32_t dynamic_lds_bytes,
                     const void *params, size_t params_bytes, sim_report *report);

#endif
