/* attn_merge_avx512.c: the merge of partial results by AVX-512: attn_merge.h over sums of its own, 128 dims of all parts in registers.
 *
 * Threads: each call writes the rows of its own range. */
#include "cpu/avx512.h"

#include "cpu/attn_merge.h"
#include "cpu/avx512_keys.h"

/* 8 n_registers dims. */
AVX512_INLINE void weigh_in_registers(float *to, const float *const *parts, const double *weights, uint32_t n, uint32_t d, bool is_more, const uint32_t n_registers)
{
    __m512d sum[16];
    AVX512_UNROLL for (uint32_t i = 0; i < n_registers; i++)
    {
        sum[i] = is_more ? _mm512_cvtps_pd(_mm256_loadu_ps(to + d + 8 * i)) : _mm512_setzero_pd();
    }
    for (uint32_t p = 0; p < n; p++) {
        const __m512d weight = _mm512_set1_pd(weights[p]);
        const float *from = parts[p] + d;
        AVX512_UNROLL for (uint32_t i = 0; i < n_registers; i++)
        {
            sum[i] = _mm512_fmadd_pd(weight, _mm512_cvtps_pd(_mm256_loadu_ps(from + 8 * i)), sum[i]);
        }
    }
    AVX512_UNROLL for (uint32_t i = 0; i < n_registers; i++)
    {
        _mm256_storeu_ps(to + d + 8 * i, _mm512_cvtpd_ps(sum[i]));
    }
}

static void weigh(float *to, const float *const *parts, const double *weights, uint32_t n, uint32_t dim, bool is_more)
{
    uint32_t d = 0;
    for (; d + 128 <= dim; d += 128) {
        weigh_in_registers(to, parts, weights, n, d, is_more, 16);
    }
    for (; d + 32 <= dim; d += 32) {
        weigh_in_registers(to, parts, weights, n, d, is_more, 4);
    }
    for (; d + 8 <= dim; d += 8) {
        weigh_in_registers(to, parts, weights, n, d, is_more, 1);
    }
    oct__row_weigh_last(to, parts, weights, n, d, dim, is_more);
}

void oct__attn_merge__avx512(const oct_attn_merge_args *args, int64_t row0, int64_t row1)
{
    merge_rows(args, row0, row1, weigh);
}
