/* door.h: owns what a program sees of the simulator behind tests/device/executor.h beyond its doors. Threads: one. */
#ifndef AMDSIM_DOOR_H
#define AMDSIM_DOOR_H

#include "amdsim/sim.h"

/* The build's text, read at the first call; NULL, and said why on stderr, when it cannot be. */
sim_program *door_program(void);
const char *door_assembly(void);   /* its path; "" where there is no compiler for AMD */
const char *door_arch(void);
const sim_kernel *door_kernel(const char *name);   /* of kernels.def; NULL when the text lacks it */

/* What this process and the children that it forks afterwards run, of kernel `index` of kernels.def, or of all of them. */
typedef struct door_tally { uint64_t launches, instructions; size_t n_reached, n_all; } door_tally;
int door_count(void);              /* begins; 0 on success */
door_tally door_tally_of(uint32_t index);

#endif
