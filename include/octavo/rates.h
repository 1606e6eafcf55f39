/* What a machine does in a second: measured once, kept where the caller likes, and given to contexts, whose predicted costs are then this
 * machine's instead of its family's. */
#ifndef OCTAVO_RATES_H
#define OCTAVO_RATES_H

#include "octavo/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Of each pair the first is one thread's rate, the second that of `threads` threads together. 0: the CPU lacks the instructions. */
typedef struct oct_rates {
    uint32_t struct_size;
    uint32_t threads;
    char cpu[64];                     /* whose rates these are, as oct_context_machine says it: brand, [family/model/stepping features]; zero-terminated */
    char source[64];                  /* for people: "measured", a date, a file; zero-terminated */
    double read_l1_bytes[2], read_l2_bytes[2], read_l3_bytes[2];
    double read_memory_bytes[2];      /* this and L3: by the fastest of one or four streams a thread, asked for ahead or not */
    double copy_memory_bytes[2];      /* read and written, with streaming stores */
    double clock_hz;                  /* of one busy core */
    double fma_avx2_flops[2], fma_avx512_flops[2];      /* f32; a multiply-add counts as 2 */
    double dot_bf16_flops[2];         /* AVX-512 BF16, into f32 */
    double dot_i8_ops[2];             /* AVX-512 VNNI, into int32 */
    double convert_elements[2];       /* e4m3fn to f32 in registers, by the fastest exact way */
    double convert_i8_elements[2];    /* i8 to f32 in registers */
    double dot_amx_bf16_flops[2];     /* AMX's tiles of bf16, into f32 */
    double copy_l1_bytes[2], copy_l2_bytes[2], copy_l3_bytes[2];   /* read and written, within half of a level, with plain stores */
} oct_rates;

struct oct_context;

/* Measures with the context's threads for about `seconds` (0.1 to 60; 10 is enough on a quiet machine) and fills *rates (struct_size set by
 * the caller) with medians of rounds in which all rates take turns. Uses up to 1 GiB of the context's memory meanwhile. One call at a time;
 * what else runs is measured along. Errors: INVALID_ARGUMENT, OUT_OF_MEMORY.
 * On a context of a GPU: the rates of its memory, by one block and by all that it holds, and 0 for the rest; `cpu` is the GPU's name and `threads` its
 * units. For people and benchmarks: no context takes them. Further errors: UNSUPPORTED (a capture is going on), DEVICE_FAULT. */
OCT_API oct_status oct_rates_measure(struct oct_context *context, double seconds, oct_rates *rates, oct_error *error);

#ifdef __cplusplus
}
#endif
#endif
