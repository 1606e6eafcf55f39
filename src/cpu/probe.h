/* probe.h: owns what this CPU and its system say about themselves: CPUID and XGETBV, turned into facts.
 *
 * Threads: no state; any thread. Costs microseconds (CPUID traps in a virtual machine): ask once. */
#ifndef OCT_CPU_PROBE_H
#define OCT_CPU_PROBE_H

#include "plan/variant.h"

/* Sets every fact whose name begins with "cpu." or "os."; what cannot be learnt is 0. name: oct__cpu_name of them and the brand string. */
void oct__cpu_probe(oct__facts *facts, char *name, size_t size);

/* "AMD EPYC [25/17/1 1ff]": what tells this CPU from others of the same brand string, which virtual machines make generic. The brand without leading,
 * trailing and double blanks ("unknown CPU" for an empty one), family, model and stepping in decimal, and in hexadecimal which instructions may be used: those
 * that the CPU has and whose registers the system keeps. Always terminated; where size is short it is the brand that is cut. size >= 32. */
void oct__cpu_name(const oct__facts *facts, const char *brand, char *name, size_t size);

#endif
