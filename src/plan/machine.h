/* machine.h: owns machines that are not here: recorded ones by name, and the rates of a GPU by its facts.
 *
 * Threads: pure functions over constant data. */
#ifndef OCT_PLAN_MACHINE_H
#define OCT_PLAN_MACHINE_H

#include "plan/facts.h"

/* The machine of machine.def with such a name; false when there is none. */
bool oct__machine_recorded(const char *name, oct__machine *machine);

/* The names, by index from 0; NULL past the end. Static texts. */
const char *oct__machine_recorded_name(uint32_t index);

/* The rates of a GPU with these facts: its memory on paper, and estimated speeds. */
oct__rates oct__rates_of_device(const oct__facts *facts);

#endif
