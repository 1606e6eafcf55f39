/* attn_merge_scalar.c: the merge of partial results on any machine: attn_merge.h over the plain row's sums.
 *
 * Threads: each call writes the rows of its own range. */
#include "cpu/scalar.h"

#include "cpu/attn_merge.h"

void oct__attn_merge__scalar(const oct_attn_merge_args *args, int64_t row0, int64_t row1)
{
    merge_rows(args, row0, row1, oct__row_plain.weigh);
}
