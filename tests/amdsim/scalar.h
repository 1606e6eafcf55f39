/* scalar.h: owns what a row of scalar.def works on. */
#ifndef AMDSIM_SCALAR_H
#define AMDSIM_SCALAR_H

#include "amdsim/machine.h"

/* known_*: defined bits of the sources. r, known, s: the result, its defined bits (preset: all or none) and scc. */
typedef struct scalar_io { uint64_t a, b, r, known_a, known_b, known; uint32_t s; } scalar_io;

#endif
