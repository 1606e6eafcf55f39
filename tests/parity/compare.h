/* compare.h: owns the verdict on an attention or merge result: every row and head is judged, the worst decides. What the output
 * format rounds is taken out first: an element's error is the distance from the oracle's value to the nearest number that
 * rounds to the stored one. Threads: pure. */
#ifndef PARITY_COMPARE_H
#define PARITY_COMPARE_H

#include "parity/oracle.h"
#include "plan/variant.h"

/* The bounds of a tolerance class. Of doc/NUMERICS.md: max_error (of max|V| that the row sees), cosine, l2. Our own: lse, relative to
 * max(1, |lse|), and watch, as max_error but below the law's bound where a kernel computes in f32. q_unit: half the unit of bf16, as a share of an element, where q
 * is rounded to the 16 bits of K's products (bf16 beside K in bf16, else f16, an eighth of it); 0 where q stays as it is. Three standard deviations of what that does to an
 * lse are allowed it (of a rotated q up to seven), if that is more than `lse`: where few keys have scores that are small sums of large products, 16 bits of q know no more. */
typedef struct compare_bound { double max_error, cosine, l2, watch, lse, q_unit; } compare_bound;

compare_bound compare_bound_of(oct__tolerance tolerance);

/* Those of a row: its class's, with the watch for rows known to compute in f32 whatever their class would allow. */
compare_bound compare_bound_for(const oct__variant *variant);

/* The looser of two in everything, for a result that two rows made. */
compare_bound compare_bound_either(compare_bound a, compare_bound b);

typedef struct compare_output {
    uint32_t dtype;
    const void *out;
    int64_t row_stride, head_stride;   /* elements */
    double out_scale;                  /* stored = value / out_scale */
    const float *lse;                  /* or NULL */
    int64_t lse_row_stride, lse_head_stride;
    int64_t rows;
    uint32_t heads, dim;
} compare_output;

typedef struct compare_verdict {
    int ok;
    double max_error, cosine, l2, lse_error;   /* each the worst of all rows and heads */
    char text[320];                            /* why not ok: the first thing wrong, with its row and head */
} compare_verdict;

/* expected->out [rows][heads][dim], lse and v_max [rows][heads]. */
compare_verdict compare_judge(const compare_output *output, const oracle_result *expected, const compare_bound *bound);

#endif
