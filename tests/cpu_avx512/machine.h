/* machine.h: owns whether a test of AVX-512 kernels can run here: by the instructions of this machine, or through SIMDe on any.
 *
 * Threads: pure. */
#ifndef TEST_CPU_AVX512_MACHINE_H
#define TEST_CPU_AVX512_MACHINE_H

#include <stdbool.h>
#include <stdio.h>

/* The rows' gates: MACHINE_AVX512 is F, BW and VL (the write), the others add to it. */
typedef enum machine_level { MACHINE_AVX512, MACHINE_AVX512_VBMI, MACHINE_AVX512_BF16, MACHINE_AVX512_VNNI } machine_level;

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
    __builtin_cpu_init();
    static const char *const names[] = { "AVX-512 F, BW and VL", "AVX-512 VBMI", "AVX-512 BF16", "AVX-512 VNNI" };
    const bool base = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl");
    const bool bytes = base && __builtin_cpu_supports("avx512vbmi");
    const bool has = level == MACHINE_AVX512        ? base
                     : level == MACHINE_AVX512_VBMI ? bytes
                     : level == MACHINE_AVX512_BF16 ? bytes && __builtin_cpu_supports("avx512bf16")
                                                    : bytes && __builtin_cpu_supports("avx512vnni");
    if (!has) {
        printf("skipped: this machine has no %s\n", names[level]);
    }
    return has;
#endif
}

#endif
