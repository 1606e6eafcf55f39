/* snippet.h: owns the running of a few hand-written instructions as a kernel of its own. Its arguments are two addresses: `out`, in s[4:5] once
 * PROLOGUE has run, and `in`, in s[6:7]; s2 is the block, v0 the lane. Threads: one. */
#ifndef AMDSIM_SNIPPET_H
#define AMDSIM_SNIPPET_H

#include "amdsim/machine.h"

#define PROLOGUE "s_load_dwordx4 s[4:7], s[0:1], 0x0\ns_waitcnt lgkmcnt(0)\n"
/* v[8:9] and v10 to out, twelve bytes a lane. */
#define EPILOGUE "v_mul_u32_u24_e32 v63, 12, v0\nglobal_store_dwordx3 v63, v[8:10], s[4:5]\ns_endpgm\n"

typedef struct snippet {
    const char *arch, *body;
    uint32_t threads, lds_bytes, grid;     /* 0: 64, none, 1 */
    const uint32_t *in;
    size_t n_in;
    uint32_t *out;                         /* what the kernel left */
    size_t n_out;
} snippet;

sim_fault snippet_run(const snippet *s, sim_report *report);

/* Whether an op of op_table has been part of a snippet that ran through. */
int snippet_has_run(size_t op_index);

#endif
