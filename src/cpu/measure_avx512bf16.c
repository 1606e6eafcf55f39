/* measure_avx512bf16.c: what AVX-512 BF16 does in a second. See measure.h. */
#include <immintrin.h>

#include "cpu/measure.h"

double oct__measure_dot_bf16(const oct__measure_work *work, float *sink)
{
    (void)work;
    const __m512bh x = (__m512bh)_mm512_set1_epi16(0x3C00); /* 2^-7: sums stay finite */
#define BEGIN(i) __m512 sum##i = _mm512_set1_ps((float)i);
#define STEP(i) sum##i = _mm512_dpbf16_ps(sum##i, x, x);
#define END(i) total = _mm512_add_ps(total, sum##i);
    OCT__MEASURE_CHAINS(BEGIN)
    for (int turn = 0; turn < OCT__MEASURE_TURNS; turn++) {
        OCT__MEASURE_CHAINS(STEP)
    }
    __m512 total = _mm512_setzero_ps();
    OCT__MEASURE_CHAINS(END)
#undef BEGIN
#undef STEP
#undef END
    *sink += _mm512_cvtss_f32(total);
    return (double)OCT__MEASURE_TURNS * OCT__MEASURE_N_CHAINS * 32 * 2;
}
