/* measure_avx512vnni.c: what AVX-512 VNNI does in a second. See measure.h. */
#include <immintrin.h>

#include "cpu/measure.h"

double oct__measure_dot_i8(const oct__measure_work *work, float *sink)
{
    (void)work;
    const __m512i x = _mm512_set1_epi8(3);
#define BEGIN(i) __m512i sum##i = _mm512_set1_epi32(i);
#define STEP(i) sum##i = _mm512_dpbusd_epi32(sum##i, x, x);
#define END(i) total = _mm512_add_epi32(total, sum##i);
    OCT__MEASURE_CHAINS(BEGIN)
    for (int turn = 0; turn < OCT__MEASURE_TURNS; turn++) {
        OCT__MEASURE_CHAINS(STEP)
    }
    __m512i total = _mm512_setzero_si512();
    OCT__MEASURE_CHAINS(END)
#undef BEGIN
#undef STEP
#undef END
    *sink += (float)_mm512_cvtsi512_si32(total);
    return (double)OCT__MEASURE_TURNS * OCT__MEASURE_N_CHAINS * 64 * 2;
}
