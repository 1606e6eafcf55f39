/* attn_merge_avx2.c: the merge of partial results by AVX2: attn_merge.h over the sums of row_avx2.c.
 *
 * Threads: each call writes the rows of its own range. */
#include "cpu/avx2.h"

#include "cpu/attn_merge.h"

void oct__attn_merge__avx2(const oct_attn_merge_args *args, int64_t row0, int64_t row1)
{
    merge_rows(args, row0, row1, oct__row_avx2.weigh);
}
