/* measure_avx2.c: what AVX2, FMA and F16C do in a second. See measure.h. */
#include <immintrin.h>
#include <stdbool.h>

#include "cpu/avx2_number.h"
#include "cpu/measure.h"

AVX2_INLINE double read(const oct__measure_work *work, float *sink, const int n_streams, const bool ahead)
{
    __m256i a = _mm256_setzero_si256(), b = a, c = a, d = a;
    for (size_t i = 0; i < work->bytes / (size_t)n_streams; i += 256) {
        for (int s = 0; s < n_streams; s++) {
            const uint8_t *const p = work->from + (size_t)s * work->stride + i;
            const __m256i *const q = (const __m256i *)(const void *)p;
            if (ahead) {
                for (int line = 0; line < 256; line += 64) {
                    _mm_prefetch((const char *)p + OCT__MEASURE_AHEAD_BYTES + line, _MM_HINT_T0);
                }
            }
            a = _mm256_or_si256(a, _mm256_or_si256(_mm256_load_si256(q), _mm256_load_si256(q + 1)));
            b = _mm256_or_si256(b, _mm256_or_si256(_mm256_load_si256(q + 2), _mm256_load_si256(q + 3)));
            c = _mm256_or_si256(c, _mm256_or_si256(_mm256_load_si256(q + 4), _mm256_load_si256(q + 5)));
            d = _mm256_or_si256(d, _mm256_or_si256(_mm256_load_si256(q + 6), _mm256_load_si256(q + 7)));
        }
    }
    a = _mm256_or_si256(_mm256_or_si256(a, b), _mm256_or_si256(c, d));
    *sink += (float)_mm256_cvtsi256_si32(a);
    return (double)work->bytes;
}

static double read_1(const oct__measure_work *work, float *sink) { return read(work, sink, 1, false); }
static double read_1_ahead(const oct__measure_work *work, float *sink) { return read(work, sink, 1, true); }
static double read_4(const oct__measure_work *work, float *sink) { return read(work, sink, OCT__MEASURE_STREAMS, false); }
static double read_4_ahead(const oct__measure_work *work, float *sink) { return read(work, sink, OCT__MEASURE_STREAMS, true); }
oct__measure_fn *const oct__measure_read__avx2[OCT__MEASURE_READS] = { read_1, read_1_ahead, read_4, read_4_ahead };

double oct__measure_copy_cached__avx2(const oct__measure_work *work, float *sink)
{
    for (size_t i = 0; i < work->bytes; i += 128) {
        const __m256i *const q = (const __m256i *)(const void *)(work->from + i);
        __m256i *const w = (__m256i *)(void *)(work->to + i);
        const __m256i a = _mm256_load_si256(q), b = _mm256_load_si256(q + 1), c = _mm256_load_si256(q + 2), d = _mm256_load_si256(q + 3);
        _mm256_store_si256(w, a);
        _mm256_store_si256(w + 1, b);
        _mm256_store_si256(w + 2, c);
        _mm256_store_si256(w + 3, d);
    }
    *sink += 1;
    return 2 * (double)work->bytes;
}

double oct__measure_fma__avx2(const oct__measure_work *work, float *sink)
{
    (void)work;
    const __m256 x = _mm256_set1_ps(0.999f), y = _mm256_set1_ps(0.001f);
#define BEGIN(i) __m256 sum##i = _mm256_set1_ps((float)i);
#define STEP(i) sum##i = _mm256_fmadd_ps(sum##i, x, y);
#define END(i) total = _mm256_add_ps(total, sum##i);
    OCT__MEASURE_CHAINS(BEGIN)
    for (int turn = 0; turn < OCT__MEASURE_TURNS; turn++) {
        OCT__MEASURE_CHAINS(STEP)
    }
    __m256 total = _mm256_setzero_ps();
    OCT__MEASURE_CHAINS(END)
#undef BEGIN
#undef STEP
#undef END
    *sink += _mm256_cvtss_f32(total);
    return (double)OCT__MEASURE_TURNS * OCT__MEASURE_N_CHAINS * 8 * 2;
}

AVX2_INLINE double convert(const oct__measure_work *work, float *sink, const uint32_t dtype)
{
    __m256 a = _mm256_setzero_ps(), b = a;
    for (size_t i = 0; i < work->bytes; i += 32) {
        __m256 x, y, u, v;
        avx2_load16(work->from + i, dtype, &x, &y);
        avx2_load16(work->from + i + 16, dtype, &u, &v);
        a = _mm256_or_ps(a, _mm256_or_ps(x, y));
        b = _mm256_or_ps(b, _mm256_or_ps(u, v));
    }
    *sink += _mm256_cvtss_f32(_mm256_or_ps(a, b));
    return (double)work->bytes;
}

double oct__measure_convert__avx2(const oct__measure_work *work, float *sink) { return convert(work, sink, OCT_DTYPE_E4M3FN); }
double oct__measure_convert_i8__avx2(const oct__measure_work *work, float *sink) { return convert(work, sink, OCT_DTYPE_I8); }
