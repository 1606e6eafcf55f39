/* probe.h: owns what this CPU and its system say about themselves: CPUID and XGETBV, turned into facts.
 *
 * Threads: no state; any thread. Costs microseconds (CPUID traps in a virtual machine): ask once. */
#ifndef OCT_CPU_PROBE_H
#define OCT_CPU_PROBE_H

#include "plan/variant.h"

/* Sets every fact whose name begins with "cpu." or "os."; what cannot be learnt is 0. name: the brand string, without
 * leading, trailing and double blanks, cut to size, always terminated; "unknown CPU" where there is none. */
void oct__cpu_probe(oct__facts *facts, char *name, size_t size);

#endif
