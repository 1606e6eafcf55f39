/* probe.c: owns a CPU that has AVX-512 and AMX and nothing else beyond x86-64, in the place of src/cpu/probe.c: the programs of this folder carry kernels
 * that any machine runs, and the plan must not refuse them.
 *
 * Threads: no state; any thread. */
#include "cpu/probe.h"

#include <stdio.h>

void oct__cpu_probe(oct__facts *facts, char *name, size_t size)
{
    static const oct__fact has[] = { OCT__FACT_CPU_AVX512F,    OCT__FACT_CPU_AVX512BW,   OCT__FACT_CPU_AVX512VL, OCT__FACT_CPU_AVX512VBMI,
                                     OCT__FACT_CPU_AVX512VNNI, OCT__FACT_CPU_AVX512BF16, OCT__FACT_CPU_AMX_BF16, OCT__FACT_CPU_AMX_INT8,
                                     OCT__FACT_OS_ZMM,         OCT__FACT_OS_TILES,       OCT__FACT_CPU_CORES };
    for (size_t i = 0; i < sizeof(has) / sizeof(has[0]); i++) {
        facts->v[has[i]] = 1;
    }
    snprintf(name, size, "AVX-512 and AMX by SIMDe");
}
