/* measure_avx512.c: what AVX-512 F, BW, VL and VBMI do in a second. See measure.h. */
#include <immintrin.h>

#include "cpu/avx512_number.h"
#include "cpu/measure.h"

double oct__measure_read__avx512(const oct__measure_work *work, float *sink)
{
    __m512i a = _mm512_setzero_si512(), b = a, c = a, d = a;
    for (size_t i = 0; i < work->bytes; i += 512) {
        const uint8_t *q = work->from + i;
        a = _mm512_or_si512(a, _mm512_or_si512(_mm512_load_si512(q), _mm512_load_si512(q + 64)));
        b = _mm512_or_si512(b, _mm512_or_si512(_mm512_load_si512(q + 128), _mm512_load_si512(q + 192)));
        c = _mm512_or_si512(c, _mm512_or_si512(_mm512_load_si512(q + 256), _mm512_load_si512(q + 320)));
        d = _mm512_or_si512(d, _mm512_or_si512(_mm512_load_si512(q + 384), _mm512_load_si512(q + 448)));
    }
    a = _mm512_or_si512(_mm512_or_si512(a, b), _mm512_or_si512(c, d));
    *sink += (float)_mm512_cvtsi512_si32(a);
    return (double)work->bytes;
}

double oct__measure_fma__avx512(const oct__measure_work *work, float *sink)
{
    (void)work;
    const __m512 x = _mm512_set1_ps(0.999f), y = _mm512_set1_ps(0.001f);
#define BEGIN(i) __m512 sum##i = _mm512_set1_ps((float)i);
#define STEP(i) sum##i = _mm512_fmadd_ps(sum##i, x, y);
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
    return (double)OCT__MEASURE_TURNS * OCT__MEASURE_N_CHAINS * 16 * 2;
}

AVX512_INLINE double convert(const oct__measure_work *work, float *sink, const avx512_kind kind)
{
    const avx512_decoder decoder = avx512_decoder_of(avx512_table_of(OCT_DTYPE_E4M3FN));
    __m512i a = _mm512_setzero_si512(), b = a;
    for (size_t i = 0; i < work->bytes; i += 64) {
        const avx512_chunk chunk = avx512_open(work->from + i, &decoder, kind);
        a = _mm512_or_si512(a, _mm512_or_si512(_mm512_castps_si512(avx512_piece(&chunk, 0, kind)), _mm512_castps_si512(avx512_piece(&chunk, 1, kind))));
        b = _mm512_or_si512(b, _mm512_or_si512(_mm512_castps_si512(avx512_piece(&chunk, 2, kind)), _mm512_castps_si512(avx512_piece(&chunk, 3, kind))));
    }
    *sink += (float)_mm512_cvtsi512_si32(_mm512_or_si512(a, b));
    return (double)work->bytes;
}

double oct__measure_convert__avx512(const oct__measure_work *work, float *sink) { return convert(work, sink, AVX512_BYTE); }
double oct__measure_convert_i8__avx512(const oct__measure_work *work, float *sink) { return convert(work, sink, AVX512_I8); }
