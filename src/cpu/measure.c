/* measure.c: see measure.h. A rate is the median of rounds; in a round every rate has one window of a few milliseconds, on one thread and then
 * on all, so that what disturbs the machine for a moment disturbs all rates alike. All threads of a window walk memory of their own. */
#include "cpu/measure.h"

#include <immintrin.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "host/clock.h"

enum {
    ROUNDS_MIN = 3,
    ROUNDS_MAX = 25,
    PIECE_BYTES = 256 << 10,            /* between two looks at the clock */
    MEMORY_BYTES_MIN = 256 << 20,
    MEMORY_BYTES_MAX = 1 << 30,
    L1_BYTES = 16 << 10,                /* half of the smallest first-level cache there is */
    L2_BYTES_DEFAULT = 512 << 10
};
static const double window_seconds_min = 1e-3, window_seconds_max = 40e-3;

/* ---- plain code ----------------------------------------------------------------------------------------------------------- */

double oct__measure_clock(const oct__measure_work *work, float *sink)
{
    enum { STEPS = 20000, CYCLES_PER_STEP = 6 };   /* three times a shift and an exclusive or, one cycle each on every x86-64 */
    (void)work;
    uint64_t x = 88172645463325252u;
    for (int i = 0; i < STEPS; i++) {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
    }
    *sink += (float)(x & 1);
    return (double)STEPS * CYCLES_PER_STEP;
}

double oct__measure_read__plain(const oct__measure_work *work, float *sink)
{
    __m128i a = _mm_setzero_si128(), b = a, c = a, d = a;
    for (size_t i = 0; i < work->bytes; i += 64) {
        const __m128i *q = (const __m128i *)(const void *)(work->from + i);
        a = _mm_or_si128(a, _mm_load_si128(q));
        b = _mm_or_si128(b, _mm_load_si128(q + 1));
        c = _mm_or_si128(c, _mm_load_si128(q + 2));
        d = _mm_or_si128(d, _mm_load_si128(q + 3));
    }
    *sink += (float)_mm_cvtsi128_si32(_mm_or_si128(_mm_or_si128(a, b), _mm_or_si128(c, d)));
    return (double)work->bytes;
}

/* Stores that stay in the caches, for copies within one. */
static double copy_cached__plain(const oct__measure_work *work, float *sink)
{
    for (size_t i = 0; i < work->bytes; i += 32) {
        const __m128i *q = (const __m128i *)(const void *)(work->from + i);
        __m128i *w = (__m128i *)(void *)(work->to + i);
        const __m128i a = _mm_load_si128(q), b = _mm_load_si128(q + 1);
        _mm_store_si128(w, a);
        _mm_store_si128(w + 1, b);
    }
    *sink += 1;
    return 2 * (double)work->bytes;
}

double oct__measure_copy(const oct__measure_work *work, float *sink)
{
    for (size_t i = 0; i < work->bytes; i += 64) {
        const __m128i *q = (const __m128i *)(const void *)(work->from + i);
        __m128i *w = (__m128i *)(void *)(work->to + i);
        _mm_stream_si128(w, _mm_load_si128(q));
        _mm_stream_si128(w + 1, _mm_load_si128(q + 1));
        _mm_stream_si128(w + 2, _mm_load_si128(q + 2));
        _mm_stream_si128(w + 3, _mm_load_si128(q + 3));
    }
    _mm_sfence();
    *sink += 1;
    return 2 * (double)work->bytes;
}

/* ---- the rates -------------------------------------------------------------------------------------------------------------- */

typedef struct rate {
    oct__measure_fn *fn;
    size_t bytes;              /* a thread's own region, walked round and round; 0: no memory */
    bool copies;               /* the region's first half to its second */
    uint32_t streams;          /* that the function reads: 1 or OCT__MEASURE_STREAMS, a fraction of the region apart */
    double *result;            /* [1] or [2]; of several rates with the same one the fastest counts */
    uint32_t n_results;
    double samples[2][ROUNDS_MAX];
} rate;

enum { N_RATES = 13 + 3 + 2 * (OCT__MEASURE_READS - 1) };

/* Zero where this machine has no such instructions: no rate is made. */
static bool has(const oct__facts *f, oct__fact a, oct__fact b)
{
    return f->v[a] != 0 && f->v[b] != 0;
}

/* What a copy within a cache is made of. */
static oct__measure_fn *copy_of(bool avx2, bool avx512)
{
    return avx512 ? oct__measure_copy_cached__avx512 : avx2 ? oct__measure_copy_cached__avx2 : copy_cached__plain;
}

/* Every way of reading from so far that waiting decides, not loads. */
static uint32_t list_far_reads(rate *rates, uint32_t n, oct__measure_fn *const *ways, int n_ways, size_t bytes, double *result)
{
    for (int i = 0; i < n_ways; i++) {
        rates[n++] = (rate){ .fn = ways[i], .bytes = bytes, .streams = (uint32_t)oct__measure_read_streams(i), .result = result, .n_results = 2 };
    }
    return n;
}

static uint32_t list_rates(rate *rates, const oct__facts *f, size_t memory_bytes, uint32_t n_threads, oct_rates *out)
{
    const bool avx2 = has(f, OCT__FACT_CPU_AVX2, OCT__FACT_OS_YMM) && has(f, OCT__FACT_CPU_FMA, OCT__FACT_CPU_F16C);
    const bool avx512 = avx2 && has(f, OCT__FACT_CPU_AVX512F, OCT__FACT_OS_ZMM) && has(f, OCT__FACT_CPU_AVX512BW, OCT__FACT_CPU_AVX512VL);
    static oct__measure_fn *const plain[] = { oct__measure_read__plain };
    oct__measure_fn *const *const ways = avx512 ? oct__measure_read__avx512 : avx2 ? oct__measure_read__avx2 : plain;
    const int n_ways = avx2 ? OCT__MEASURE_READS : 1;
    oct__measure_fn *const read = ways[0], *const copy = copy_of(avx2, avx512);
    const size_t l2 = f->v[OCT__FACT_CPU_L2_BYTES] > 0 ? (size_t)f->v[OCT__FACT_CPU_L2_BYTES] : L2_BYTES_DEFAULT;
    /* Half of a level, so that what else lives there fits too; the third level is shared by all. */
    const size_t l3 = (size_t)f->v[OCT__FACT_CPU_L3_BYTES] / 2 / n_threads / PIECE_BYTES * PIECE_BYTES;
    uint32_t n = 0;
    rates[n++] = (rate){ .fn = oct__measure_clock, .result = &out->clock_hz, .n_results = 1 };
    rates[n++] = (rate){ .fn = read, .bytes = L1_BYTES, .result = out->read_l1_bytes, .n_results = 2 };
    rates[n++] = (rate){ .fn = read, .bytes = l2 / 2, .result = out->read_l2_bytes, .n_results = 2 };
    rates[n++] = (rate){ .fn = copy, .bytes = L1_BYTES, .copies = true, .result = out->copy_l1_bytes, .n_results = 2 };
    rates[n++] = (rate){ .fn = copy, .bytes = l2 / 2, .copies = true, .result = out->copy_l2_bytes, .n_results = 2 };
    if (l3 > l2) {
        n = list_far_reads(rates, n, ways, n_ways, l3, out->read_l3_bytes);
        rates[n++] = (rate){ .fn = copy, .bytes = l3, .copies = true, .result = out->copy_l3_bytes, .n_results = 2 };
    }
    n = list_far_reads(rates, n, ways, n_ways, memory_bytes, out->read_memory_bytes);
    rates[n++] = (rate){ .fn = oct__measure_copy, .bytes = memory_bytes, .copies = true, .result = out->copy_memory_bytes, .n_results = 2 };
    if (avx2) {
        rates[n++] = (rate){ .fn = oct__measure_fma__avx2, .result = out->fma_avx2_flops, .n_results = 2 };
        rates[n++] = (rate){ .fn = avx512 && f->v[OCT__FACT_CPU_AVX512VBMI] ? oct__measure_convert__avx512 : oct__measure_convert__avx2,
                             .bytes = L1_BYTES, .result = out->convert_elements, .n_results = 2 };
        rates[n++] = (rate){ .fn = avx512 && f->v[OCT__FACT_CPU_AVX512VBMI] ? oct__measure_convert_i8__avx512 : oct__measure_convert_i8__avx2,
                             .bytes = L1_BYTES, .result = out->convert_i8_elements, .n_results = 2 };
    }
    if (avx512) {
        rates[n++] = (rate){ .fn = oct__measure_fma__avx512, .result = out->fma_avx512_flops, .n_results = 2 };
    }
    if (avx512 && f->v[OCT__FACT_CPU_AVX512BF16]) {
        rates[n++] = (rate){ .fn = oct__measure_dot_bf16, .result = out->dot_bf16_flops, .n_results = 2 };
    }
    if (avx512 && f->v[OCT__FACT_CPU_AVX512VNNI]) {
        rates[n++] = (rate){ .fn = oct__measure_dot_i8, .result = out->dot_i8_ops, .n_results = 2 };
    }
    if (avx512 && has(f, OCT__FACT_CPU_AMX_BF16, OCT__FACT_OS_TILES)) {
        rates[n++] = (rate){ .fn = oct__measure_dot_amx, .result = out->dot_amx_bf16_flops, .n_results = 2 };
    }
    return n;
}

/* ---- windows ------------------------------------------------------------------------------------------------------------------ */

typedef struct part {
    uint64_t begin_ns, end_ns;
    double amount;
    size_t at;                 /* where the thread's walk stands, from window to window */
    float sink;
    char apart[84];            /* a pair of cache lines each */
} part;

typedef struct window {
    const rate *rate;
    uint8_t *memory;
    size_t thread_bytes;       /* of memory */
    uint64_t ns;
    part *parts;
} window;

static void run_window(void *arg, uint32_t ith, uint32_t nth)
{
    const window *w = arg;
    part *p = &w->parts[ith];
    const size_t region = w->rate->copies ? w->rate->bytes / 2 : w->rate->bytes;
    const size_t piece = region < PIECE_BYTES ? region : PIECE_BYTES, streams = w->rate->streams > 1 ? w->rate->streams : 1;
    uint8_t *const own = w->memory + ith * w->thread_bytes;
    (void)nth;
    size_t at = p->at + piece <= region ? p->at : 0;
    double amount = 0;
    float sink = 0;
    const uint64_t begin = oct__clock_ns();
    uint64_t now;
    do {
        /* Of several streams each advances by its share of a piece, through its share of the region. */
        const oct__measure_work work = { own + at / streams, own + region + at, piece, region / streams };
        amount += w->rate->fn(&work, &sink);
        at = at + 2 * piece <= region ? at + piece : 0;
        now = oct__clock_ns();
    } while (now - begin < w->ns);
    p->begin_ns = begin;
    p->end_ns = now;
    p->amount = amount;
    p->at = w->rate->bytes == w->thread_bytes ? at : 0;
    p->sink += sink;
}

/* Per second, from the first thread's begin to the last one's end: threads that did not run together don't add up. */
static double measure_window(const window *w, const oct__executor *executor, uint32_t n_threads)
{
    double amount = 0;
    uint64_t begin = UINT64_MAX, end = 0;
    oct__executor_run(executor, n_threads, run_window, (void *)w);
    for (uint32_t i = 0; i < n_threads; i++) {
        const part *p = &w->parts[i];
        amount += p->amount;
        begin = p->begin_ns < begin ? p->begin_ns : begin;
        end = p->end_ns > end ? p->end_ns : end;
    }
    return amount / ((double)(end - begin) * 1e-9);
}

static int compare(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void touch(void *arg, uint32_t ith, uint32_t nth)
{
    const window *w = arg;
    (void)nth;
    memset(w->memory + ith * w->thread_bytes, 0x35, w->thread_bytes);   /* e4m3fn: 0.8125, no subnormal */
}

oct_status oct__cpu_measure(const oct__facts *machine, const oct__allocator *allocator, const oct__executor *executor, double seconds, oct_rates *out)
{
    const uint32_t n_threads = executor->max_threads;
    rate rates[N_RATES];
    size_t memory = 4 * (size_t)machine->v[OCT__FACT_CPU_L3_BYTES];
    memory = memory < MEMORY_BYTES_MIN ? MEMORY_BYTES_MIN : memory > MEMORY_BYTES_MAX ? MEMORY_BYTES_MAX : memory;
    window w = { .thread_bytes = memory / n_threads / (2 * PIECE_BYTES) * (2 * PIECE_BYTES) };
    w.thread_bytes = w.thread_bytes < 2 * PIECE_BYTES ? 2 * PIECE_BYTES : w.thread_bytes;
    const uint32_t n = list_rates(rates, machine, w.thread_bytes, n_threads, out);
    for (uint32_t i = 0; i < n; i++) {
        w.thread_bytes = rates[i].bytes > w.thread_bytes ? rates[i].bytes : w.thread_bytes;
    }
    memory = w.thread_bytes * n_threads;
    w.memory = oct__memory_reserve(allocator, memory);
    w.parts = oct__memory_alloc_zeroed(allocator, n_threads, sizeof(part));
    oct_status status = OCT_OUT_OF_MEMORY;
    if (w.memory != NULL && w.parts != NULL) {
        status = OCT_OK;
        const uint64_t begin = oct__clock_ns();
        oct__executor_run(executor, n_threads, touch, &w);
        double each = seconds / ROUNDS_MAX / (2 * n);
        each = each < window_seconds_min ? window_seconds_min : each > window_seconds_max ? window_seconds_max : each;
        w.ns = (uint64_t)(each * 1e9);
        uint32_t n_rounds = 0;
        while (n_rounds < ROUNDS_MIN || (n_rounds < ROUNDS_MAX && (double)(oct__clock_ns() - begin) * 1e-9 < seconds)) {
            for (uint32_t i = 0; i < n; i++) {
                w.rate = &rates[i];
                for (uint32_t k = 0; k < rates[i].n_results; k++) {
                    rates[i].samples[k][n_rounds] = measure_window(&w, executor, k == 0 ? 1 : n_threads);
                }
            }
            n_rounds++;
        }
        for (uint32_t i = 0; i < n; i++) {
            for (uint32_t k = 0; k < rates[i].n_results; k++) {
                qsort(rates[i].samples[k], n_rounds, sizeof(double), compare);
                const double median = rates[i].samples[k][n_rounds / 2];
                rates[i].result[k] = median > rates[i].result[k] ? median : rates[i].result[k];
            }
        }
        out->threads = n_threads;
    }
    oct__memory_release(allocator, w.memory, memory);
    oct__memory_free(allocator, w.parts, n_threads * sizeof(part));
    return status;
}
