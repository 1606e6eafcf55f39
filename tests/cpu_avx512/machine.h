/* machine.h: owns whether a test of AVX-512 kernels can run here: by the instructions of this machine, or through SIMDe on any.
 *
 * Threads: pure. */
#ifndef TEST_CPU_AVX512_MACHINE_H
#define TEST_CPU_AVX512_MACHINE_H

#include <stdbool.h>
#include <stdio.h>

#include "cpu/probe.h"

/* The rows' gates: F, BW, VL and VBMI, to which the others add. */
typedef enum machine_level { MACHINE_AVX512_VBMI, MACHINE_AVX512_BF16, MACHINE_AVX512_VNNI, MACHINE_AMX_BF16 } machine_level;

/* Emulated instructions are slow: fewer random cases there. */
#if defined(OCT_TEST_SIMDE)
#define MACHINE_SEEDS(n) ((n) / 3)
#define MACHINE_STEP(x) (61 * (x))
#else
#define MACHINE_SEEDS(n) (n)
#define MACHINE_STEP(x) (x)
#endif

/* Says on stdout what is missing. */
static inline bool machine_has(machine_level level)
{
#if defined(OCT_TEST_SIMDE)
    (void)level;
    return true;
#else
    static const char *const names[] = { "AVX-512 VBMI", "AVX-512 BF16", "AVX-512 VNNI", "AMX BF16 that may be used" };
    oct__facts facts = { { 0 } };
    char cpu[64];
    oct__cpu_probe(&facts, cpu, sizeof(cpu)); /* asks for AMX's tiles as well */
    const uint64_t *v = facts.v;
    const bool base = v[OCT__FACT_OS_ZMM] && v[OCT__FACT_CPU_AVX512F] && v[OCT__FACT_CPU_AVX512BW] && v[OCT__FACT_CPU_AVX512VL];
    const bool bytes = base && v[OCT__FACT_CPU_AVX512VBMI], bf16 = bytes && v[OCT__FACT_CPU_AVX512BF16];
    const bool has = level == MACHINE_AVX512_VBMI   ? bytes
                     : level == MACHINE_AVX512_BF16 ? bf16
                     : level == MACHINE_AVX512_VNNI ? bytes && v[OCT__FACT_CPU_AVX512VNNI]
                                                    : bf16 && v[OCT__FACT_CPU_AMX_BF16] && v[OCT__FACT_OS_TILES];
    if (!has) {
        printf("skipped: this machine has no %s\n", names[level]);
    }
    return has;
#endif
}

#endif
