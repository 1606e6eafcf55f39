/* measure_avx512.c: what AVX-512 F, BW, VL and VBMI do in a second. See measure.h. */
#include <immintrin.h>
#include <stdbool.h>

#include "cpu/avx512_number.h"
#include "cpu/measure.h"

AVX512_INLINE double read(const oct__measure_work *work, float *sink, const int n_streams, const bool ahead)
{
    __m512i a = _mm512_setzero_si512(), b = a, c = a, d = a;
    for (size_t i = 0; i < work->bytes / (size_t)n_streams; i += 512) {
        for (int s = 0; s < n_streams; s++) {
            const uint8_t *const q = work->from + (size_t)s * work->stride + i;
            if (ahead) {
                for (int line = 0; line < 512; line += 64) {
                    _mm_prefetch((const char *)q + OCT__MEASURE_AHEAD_BYTES + line, _MM_HINT_T0);
                }
            }
            a = _mm512_or_si512(a, _mm512_or_si512(_mm512_load_si512(q), _mm512_load_si512(q + 64)));
            b = _mm512_or_si512(b, _mm512_or_si512(_mm512_load_si512(q + 128), _mm512_load_si512(q + 192)));
            c = _mm512_or_si512(c, _mm512_or_si512(_mm512_load_si512(q + 256), _mm512_load_si512(q + 320)));
            d = _mm512_or_si512(d, _mm512_or_si512(_mm512_load_si512(q + 384), _mm512_load_si512(q + 448)));
        }
    }
    a = _mm512_or_si512(_mm512_or_si512(a, b), _mm512_or_si512(c, d));
    *sink += (float)_mm512_cvtsi512_si32(a);
    return (double)work->bytes;
}

static double read_1(const oct__measure_work *work, float *sink) { return read(work, sink, 1, false); }
static double read_1_ahead(const oct__measure_work *work, float *sink) { return read(work, sink, 1, true); }
static double read_4(const oct__measure_work *work, float *sink) { return read(work, sink, OCT__MEASURE_STREAMS, false); }
static double read_4_ahead(const oct__measure_work *work, float *sink) { return read(work, sink, OCT__MEASURE_STREAMS, true); }
oct__measure_fn *const oct__measure_read__avx512[OCT__MEASURE_READS] = { read_1, read_1_ahead, read_4, read_4_ahead };

double oct__measure_copy_cached__avx512(const oct__measure_work *work, float *sink)
{
    for (size_t i = 0; i < work->bytes; i += 256) {
        const uint8_t *const q = work->from + i;
        uint8_t *const w = work->to + i;
        const __m512i a = _mm512_load_si512(q), b = _mm512_load_si512(q + 64), c = _mm512_load_si512(q + 128), d = _mm512_load_si512(q + 192);
        _mm512_store_si512(w, a);
        _mm512_store_si512(w + 64, b);
        _mm512_store_si512(w + 128, c);
        _mm512_store_si512(w + 192, d);
    }
    *sink += 1;
    return 2 * (double)work->bytes;
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
