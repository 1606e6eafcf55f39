/* bench_avx512.c: figures of single AVX-512 tiles and writes beside the AVX2 ones, for cost rows and head comments. Not a test; `octavo bench`
 * is for users. All variants of a case run in turn in every round, each thread on its own CPU clock, so that other programs on the machine
 * disturb little; each round also measures the FMA peak, and fractions are medians over rounds of the two rates' ratio.
 *   bench_avx512 [decode|hot|v5d|scales|extend|write|write_hot|all] [rounds] [threads] */
#define _GNU_SOURCE
#include <immintrin.h>
#include <pthread.h>
#include <time.h>

#include "cpu/avx2.h"
#include "cpu/avx512.h"
#include "cpu/probe.h"
#include "cpu/scalar.h"
#include "cpu_avx2/rig.h"

enum { MAX_ROUNDS = 100, MAX_WAYS = 8, MAX_THREADS = 16 };
static int n_rounds = 7, n_threads = 1;

static double cpu_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static volatile float sink;

/* FMA flop/s of this moment: twelve independent chains. */
static double fma_peak(void)
{
    __m512 sum[12];
    const __m512 x = _mm512_set1_ps(0.999f), y = _mm512_set1_ps(0.001f);
    for (int i = 0; i < 12; i++) {
        sum[i] = _mm512_set1_ps((float)i);
    }
    const double start = cpu_seconds();
    for (int k = 0; k < 100000; k++) {
        _Pragma("GCC unroll 16") for (int i = 0; i < 12; i++) { sum[i] = _mm512_fmadd_ps(sum[i], x, y); }
    }
    const double seconds = cpu_seconds() - start;
    for (int i = 1; i < 12; i++) {
        sum[0] = _mm512_add_ps(sum[0], sum[i]);
    }
    sink = _mm512_cvtss_f32(sum[0]);
    return 12.0 * 100000 * 32 / seconds;
}

static int compare(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}
static double median(double *x, int n)
{
    qsort(x, (size_t)n, sizeof(*x), compare);
    return x[n / 2];
}

/* ---- attention -------------------------------------------------------------------------------------------------------------- */

typedef struct way {
    const char *name;
    oct__attn_fn *attn;
    oct__attn_scratch_fn *scratch;
    uint32_t tile_vectors;
    uint32_t what; /* formats, bit n: oct_dtype n; and whether q is given in bf16 */
} way;
enum { BF16_Q = 1 << 16, ALL = 0xFE, FLOATS = 0x70, I8 = 1 << OCT_DTYPE_I8 };

typedef struct shape {
    uint32_t layout, heads_kv, group, dim, page, dtype_k, dtype_v;
    int64_t kv_len, q_len;
} shape;

static oct_kv_format format_of(uint32_t dtype)
{
    oct_kv_format f = { .dtype = dtype };
    if (dtype == OCT_DTYPE_I8) {
        f.scale_mode = OCT_SCALE_TOKEN_HEAD;
        f.scale_dtype = OCT_DTYPE_F16;
    }
    return f;
}

static void fill(uint8_t *to, size_t bytes, uint32_t dtype, uint64_t *seed)
{
    const size_t size = oct__dtype_size_bytes(dtype), n = bytes / size;
    float x[4096];
    for (size_t i = 0; i < 4096; i++) {
        x[i] = rig_normal(seed) * (dtype == OCT_DTYPE_I8 ? 30.0f : 1.0f);
    }
    oct__row_from_f32(to, dtype, x, n < 4096 ? n : 4096, 1.0f, NULL);
    for (size_t i = 4096; i < n; i += 4096) {
        memcpy(to + i * size, to, (n - i < 4096 ? n - i : 4096) * size);
    }
}

/* One thread's run of one case. */
typedef struct job {
    const shape *s;
    const way *ways;
    int n_ways;
    bool cold;
    pthread_barrier_t *barrier;
    double flops[MAX_WAYS][MAX_ROUNDS], ratio[MAX_WAYS][MAX_ROUNDS];
} job;

static void *attend(void *argument)
{
    job *j = argument;
    const shape *s = j->s;
    uint64_t seed = 7;
    oct_kv_spec spec = { .struct_size = sizeof(spec), .layout = s->layout, .heads = s->heads_kv, .dim_k = s->dim, .dim_v = s->dim,
                         .page_size = s->page, .k = format_of(s->dtype_k), .v = format_of(s->dtype_v) };
    const int64_t n_pages = (s->kv_len + s->page - 1) / s->page;
    const int64_t bytes = n_pages * (int64_t)oct_kv_page_bytes(&spec);
    const int64_t n_sequences = j->cold ? 1 + (INT64_C(96) << 20) / bytes : 1;
    rig_layer r;
    rig_layer_make(&r, &spec, n_pages * n_sequences);
    madvise(r.k.map, r.k.map_bytes, MADV_HUGEPAGE);
    madvise(r.v.map, r.v.map_bytes, MADV_HUGEPAGE);
    fill(r.k.at, r.k_bytes, s->dtype_k, &seed);
    fill(r.v.at, r.v_bytes, s->dtype_v, &seed);
    for (size_t i = 0; i < r.k_scale_bytes / 2; i++) {
        ((uint16_t *)r.kv.k_token_scale)[i] = ((uint16_t *)r.kv.v_token_scale)[i] = 0x2000;
    }
    int32_t *pages = rig_alloc((size_t)(n_pages * n_sequences) * sizeof(int32_t));
    for (int64_t i = 0; i < n_pages * n_sequences; i++) {
        pages[i] = (int32_t)i;
    }
    for (int64_t i = n_pages * n_sequences - 1; i > 0; i--) {
        const uint32_t k = rig_below(&seed, (uint32_t)i + 1);
        const int32_t swap = pages[i];
        pages[i] = pages[k];
        pages[k] = swap;
    }
    uint32_t most = 1;
    size_t scratch_bytes = 0;
    for (int w = 0; w < j->n_ways; w++) {
        const size_t need = j->ways[w].scratch(&spec, j->ways[w].tile_vectors);
        most = j->ways[w].tile_vectors > most ? j->ways[w].tile_vectors : most;
        scratch_bytes = need > scratch_bytes ? need : scratch_bytes;
    }
    float *q = rig_alloc((size_t)most * s->dim * 4), *o = rig_alloc((size_t)most * (s->dim + 16) * 4), *m = rig_alloc(most * 4), *z = rig_alloc(most * 4);
    float *q_bf16 = rig_alloc((size_t)most * s->dim * 4);
    for (size_t i = 0; i < (size_t)most * s->dim; i++) {
        q[i] = rig_normal(&seed);
        q_bf16[i] = oct__bf16_to_f32(oct__bf16_from_f32(q[i]));
    }
    oct__attn_tile t = { .kv = &r.kv, .n_heads = s->group, .causal = 1, .score_scale = 1.0f / sqrtf((float)s->dim), .q = q, .q_stride = s->dim, .o = o,
                         .o_stride = s->dim, .m = m, .z = z, .scratch = rig_alloc(scratch_bytes) };
    int64_t sequence = 0;
    for (int round = -1; round < n_rounds; round++) {
        for (int w = 0; w < j->n_ways; w++) {
            const way *way = &j->ways[w];
            const uint32_t rows = way->tile_vectors / s->group < s->q_len ? way->tile_vectors / s->group : (uint32_t)s->q_len;
            t.q = way->what & BF16_Q ? q_bf16 : q;
            pthread_barrier_wait(j->barrier);
            double flop = 0, seconds = 0, peak = fma_peak();
            pthread_barrier_wait(j->barrier);
            do { /* decode: every KV head of one sequence; extend: a run of tiles over the whole prompt, one KV head */
                const double start = cpu_seconds();
                for (int64_t row = 0; row < s->q_len; row += rows) {
                    t.n_rows = s->q_len - row < rows ? (uint32_t)(s->q_len - row) : rows;
                    t.pos0 = s->kv_len - s->q_len + row;
                    t.key0 = 0;
                    t.key1 = t.pos0 + t.n_rows;
                    for (uint32_t h = 0; h < (s->q_len <= 16 ? s->heads_kv : 1); h++) {
                        t.head_kv = h;
                        t.pages = pages + sequence * n_pages;
                        way->attn(&t);
                    }
                }
                seconds += cpu_seconds() - start;
                const double heads = s->q_len <= 16 ? s->heads_kv : 1;
                flop += heads * s->group * 4.0 * s->dim *
                        ((double)s->q_len * (double)(s->kv_len - s->q_len) + 0.5 * (double)s->q_len * (double)(s->q_len + 1));
                sequence = (sequence + 1) % n_sequences;
            } while (seconds < 0.02);
            pthread_barrier_wait(j->barrier);
            peak = 0.5 * (peak + fma_peak());
            if (round >= 0) {
                j->flops[w][round] = flop / seconds;
                j->ratio[w][round] = flop / seconds / peak;
            }
        }
    }
    rig_layer_free(&r);
    free(pages);
    free(q);
    free(q_bf16);
    free(o);
    free(m);
    free(z);
    free(t.scratch);
    return NULL;
}

static void attention(const char *what, const shape *s, const way *ways, int n_ways, bool cold)
{
    static job jobs[MAX_THREADS];
    way fit[MAX_WAYS];
    int n = 0;
    pthread_t threads[MAX_THREADS];
    pthread_barrier_t barrier;
    for (int w = 0; w < n_ways; w++) {
        if (ways[w].what >> s->dtype_k & 1) {
            fit[n++] = ways[w];
        }
    }
    pthread_barrier_init(&barrier, NULL, (unsigned)n_threads);
    for (int i = 0; i < n_threads; i++) {
        jobs[i].s = s, jobs[i].ways = fit, jobs[i].n_ways = n, jobs[i].cold = cold, jobs[i].barrier = &barrier;
        if (pthread_create(&threads[i], NULL, attend, &jobs[i]) != 0) {
            abort();
        }
    }
    for (int i = 0; i < n_threads; i++) {
        pthread_join(threads[i], NULL);
    }
    printf("%s %-8s %-8s G %2u dim %3u page %4u %s kv %6lld q %4lld:", what, oct__dtype_name(s->dtype_k), oct__dtype_name(s->dtype_v), s->group, s->dim,
           s->page, s->layout == OCT_LAYOUT_NHD ? "NHD" : s->layout == OCT_LAYOUT_HND ? "HND" : "V5D", (long long)s->kv_len, (long long)s->q_len);
    const double bytes_per_flop = (double)(oct__dtype_size_bytes(s->dtype_k) + oct__dtype_size_bytes(s->dtype_v)) / (4.0 * s->group * (double)(s->q_len < 16 ? s->q_len : 1));
    for (int w = 0; w < n; w++) {
        double sums[MAX_ROUNDS] = { 0 }, ratios[MAX_ROUNDS] = { 0 };
        for (int r = 0; r < n_rounds; r++) {
            for (int i = 0; i < n_threads; i++) {
                sums[r] += jobs[i].flops[w][r];
                ratios[r] += jobs[i].ratio[w][r] / n_threads;
            }
        }
        const double rate = median(sums, n_rounds);
        if (s->q_len <= 16) {
            printf("  %s %5.1f GB/s %3.0f %%", fit[w].name, rate * bytes_per_flop * 1e-9, 100 * median(ratios, n_rounds));
        } else {
            printf("  %s %5.1f GF/s %3.0f %%", fit[w].name, rate * 1e-9, 100 * median(ratios, n_rounds));
        }
    }
    printf("\n");
    fflush(stdout);
    pthread_barrier_destroy(&barrier);
}

static const way decode_ways[] = {
    { "avx2", oct__attn_decode__avx2, oct__attn_decode_scratch__avx2, 64, ALL },
    { "avx512", oct__attn_decode__avx512, oct__attn_decode_scratch__avx512, 64, ALL },
    { "bf16", oct__attn_decode__avx512bf16, oct__attn_decode_scratch__avx512bf16, 64, FLOATS },
    { "bf16 q", oct__attn_decode__avx512bf16, oct__attn_decode_scratch__avx512bf16, 64, FLOATS | BF16_Q },
    { "vnni", oct__attn_decode__avx512vnni, oct__attn_decode_scratch__avx512vnni, 64, I8 },
};
#define N_WAYS(ways) ((int)(sizeof(ways) / sizeof((ways)[0])))

static void bench_decode(bool cold)
{
    static const uint32_t dtypes[] = { OCT_DTYPE_E4M3FN, OCT_DTYPE_I8, OCT_DTYPE_BF16, OCT_DTYPE_F16, OCT_DTYPE_E5M2, OCT_DTYPE_E4M3FNUZ, OCT_DTYPE_F32 };
    static const uint32_t groups[] = { 1, 2, 3, 4, 5, 6, 7, 8, 12, 16 };
    const char *what = cold ? "decode" : "decode (in cache)";
    const int64_t kv_len = cold ? 8192 : 512;
    for (size_t g = 0; g < sizeof(groups) / sizeof(groups[0]); g++) {
        for (size_t k = 0; k < (groups[g] == 4 || groups[g] == 1 ? 7 : 2); k++) {
            attention(what, &(shape){ OCT_LAYOUT_HND, cold ? 8 : 1, groups[g], 128, 16, dtypes[k], dtypes[k], kv_len, 1 }, decode_ways, N_WAYS(decode_ways), cold);
        }
    }
    const uint32_t e4m3 = OCT_DTYPE_E4M3FN;
    attention(what, &(shape){ OCT_LAYOUT_NHD, 8, 1, 128, 16, e4m3, e4m3, kv_len, 1 }, decode_ways, N_WAYS(decode_ways), cold);
    attention(what, &(shape){ OCT_LAYOUT_NHD, 8, 4, 128, 16, e4m3, e4m3, kv_len, 1 }, decode_ways, N_WAYS(decode_ways), cold);
    attention(what, &(shape){ OCT_LAYOUT_V5D, 8, 4, 128, 16, e4m3, e4m3, kv_len, 1 }, decode_ways, N_WAYS(decode_ways), cold);
    attention(what, &(shape){ OCT_LAYOUT_HND, 1, 8, 256, 16, e4m3, e4m3, kv_len, 1 }, decode_ways, N_WAYS(decode_ways), cold);
    attention(what, &(shape){ OCT_LAYOUT_HND, 1, 4, 256, 16, e4m3, e4m3, kv_len, 1 }, decode_ways, N_WAYS(decode_ways), cold);
    attention(what, &(shape){ OCT_LAYOUT_HND, 3, 3, 64, 16, e4m3, e4m3, kv_len / 2, 1 }, decode_ways, N_WAYS(decode_ways), cold);
    attention(what, &(shape){ OCT_LAYOUT_HND, 8, 4, 80, 16, e4m3, e4m3, kv_len / 2, 1 }, decode_ways, N_WAYS(decode_ways), cold);
    attention(what, &(shape){ OCT_LAYOUT_HND, 8, 4, 128, 16, e4m3, e4m3, kv_len / 2, 4 }, decode_ways, N_WAYS(decode_ways), cold);
}

/* Cold pages with dynamic scales beside ones without. */
static void bench_scales(void)
{
    static const uint32_t dtypes[] = { OCT_DTYPE_E4M3FN, OCT_DTYPE_I8 }, groups[] = { 1, 4, 8 };
    for (size_t g = 0; g < 3; g++) {
        for (size_t k = 0; k < 2; k++) {
            attention("decode", &(shape){ OCT_LAYOUT_HND, 8, groups[g], 128, 16, dtypes[k], dtypes[k], 8192, 1 }, decode_ways, N_WAYS(decode_ways), true);
        }
    }
}

static void bench_v5d(bool cold)
{
    static const uint32_t dtypes[] = { OCT_DTYPE_E4M3FN, OCT_DTYPE_I8, OCT_DTYPE_BF16 }, groups[] = { 1, 4, 8 }, pages[] = { 16, 16, 64 };
    for (size_t g = 0; g < 3; g++) {
        for (size_t k = 0; k < 3; k++) {
            attention(cold ? "decode" : "decode (in cache)",
                      &(shape){ OCT_LAYOUT_V5D, cold ? 8 : 1, groups[g], 128, pages[g], dtypes[k], dtypes[k], cold ? 8192 : 512, 1 }, decode_ways,
                      N_WAYS(decode_ways), cold);
        }
    }
}

static const way extend_ways[] = {
    { "avx2", oct__attn_extend__avx2, oct__attn_extend_scratch__avx2, 64, ALL },
    { "avx512", oct__attn_extend__avx512, oct__attn_extend_scratch__avx512, 128, ALL },
    { "bf16", oct__attn_extend__avx512bf16, oct__attn_extend_scratch__avx512bf16, 128, FLOATS },
    { "bf16 q", oct__attn_extend__avx512bf16, oct__attn_extend_scratch__avx512bf16, 128, FLOATS | BF16_Q },
    { "vnni", oct__attn_extend__avx512vnni, oct__attn_extend_scratch__avx512vnni, 128, I8 },
};

static void bench_extend(void)
{
    static const uint32_t dims[] = { 64, 128, 256 }, dtypes[] = { OCT_DTYPE_E4M3FN, OCT_DTYPE_BF16, OCT_DTYPE_I8 };
    static const int64_t lengths[] = { 512, 2048 };
    for (size_t d = 0; d < 3; d++) {
        for (size_t l = 0; l < 2; l++) {
            for (size_t k = 0; k < 3; k++) {
                attention("extend", &(shape){ OCT_LAYOUT_HND, 1, 4, dims[d], 16, dtypes[k], dtypes[k], lengths[l], lengths[l] }, extend_ways, N_WAYS(extend_ways), false);
            }
        }
    }
    const uint32_t e4m3 = OCT_DTYPE_E4M3FN;
    attention("extend", &(shape){ OCT_LAYOUT_HND, 1, 3, 64, 16, e4m3, e4m3, 512, 512 }, extend_ways, N_WAYS(extend_ways), false);
    attention("extend", &(shape){ OCT_LAYOUT_HND, 1, 4, 80, 16, e4m3, e4m3, 512, 512 }, extend_ways, N_WAYS(extend_ways), false);
    attention("extend", &(shape){ OCT_LAYOUT_HND, 1, 1, 128, 16, e4m3, e4m3, 512, 512 }, extend_ways, N_WAYS(extend_ways), false);
    attention("extend", &(shape){ OCT_LAYOUT_V5D, 1, 4, 128, 16, e4m3, e4m3, 2048, 2048 }, extend_ways, N_WAYS(extend_ways), false);
    attention("extend", &(shape){ OCT_LAYOUT_HND, 1, 4, 128, 16, e4m3, e4m3, 4096, 64 }, extend_ways, N_WAYS(extend_ways), false);
}

/* ---- write ------------------------------------------------------------------------------------------------------------------- */

typedef struct write_way {
    const char *name;
    oct__kv_write_fn *write;
} write_way;
static const write_way write_ways[] = { { "avx2", oct__kv_write__avx2 }, { "avx512", oct__kv_write__avx512 } };

typedef struct write_job {
    uint32_t src, layout;
    oct_kv_format k, v;
    bool count;
    int64_t n_tokens;
    pthread_barrier_t *barrier;
    double rate[MAX_WAYS + 1][MAX_ROUNDS];   /* the last: copy */
    double elements_per_byte;
} write_job;

static void copy(uint8_t *to, const uint8_t *from, size_t bytes)
{
    for (size_t i = 0; i < bytes; i += 64) { /* streaming stores, as copying at the machine's limit does */
        _mm512_stream_si512((__m512i *)(void *)(to + i), _mm512_loadu_si512(from + i));
    }
    _mm_sfence();
}

static void *write_once(void *argument)
{
    write_job *j = argument;
    const float scale = 0.037f;
    uint64_t seed = 9;
    const oct_kv_spec spec = { .struct_size = sizeof(spec), .layout = j->layout, .heads = 8, .dim_k = 128, .dim_v = 128, .page_size = 16, .k = j->k, .v = j->v };
    rig_layer r;
    rig_layer_make(&r, &spec, (j->n_tokens + 15) / 16);
    r.kv.k_scale = r.kv.v_scale = &scale;
    const size_t bytes = (size_t)j->n_tokens * 8 * 128 * oct__dtype_size_bytes(j->src);
    uint8_t *from_k = rig_alloc(bytes), *from_v = rig_alloc(bytes);
    const size_t touched = 2 * bytes + r.k_bytes + r.v_bytes;
    uint8_t *to = rig_alloc(touched / 2);
    fill(from_k, bytes, j->src, &seed);
    fill(from_v, bytes, j->src, &seed);
    int32_t *slots = rig_alloc((size_t)j->n_tokens * 4);
    for (int64_t i = 0; i < j->n_tokens; i++) {
        slots[i] = (int32_t)i;
    }
    oct_kv_counts counts[2] = { 0 };
    const oct_kv_write_args args = { .struct_size = sizeof(args), .layer = &r.kv, .slots = slots, .n_tokens = j->n_tokens, .src_dtype = j->src, .k = from_k,
                                     .v = from_v, .k_token_stride = 1024, .k_head_stride = 128, .v_token_stride = 1024, .v_head_stride = 128 };
    for (int round = -1; round < n_rounds; round++) {
        for (int w = 0; w <= N_WAYS(write_ways); w++) {
            pthread_barrier_wait(j->barrier);
            double start = cpu_seconds(), moved = 0;
            do {
                if (w == N_WAYS(write_ways)) { /* as many bytes, half of them read */
                    copy(to, from_k, bytes < touched / 2 ? bytes / 64 * 64 : touched / 2 / 64 * 64);
                    moved += 2 * (double)(bytes < touched / 2 ? bytes / 64 * 64 : touched / 2 / 64 * 64);
                } else {
                    write_ways[w].write(&args, 0, j->n_tokens, j->count ? &counts[0] : NULL, j->count ? &counts[1] : NULL);
                    moved += (double)touched;
                }
            } while (cpu_seconds() - start < 0.01);
            if (round >= 0) {
                j->rate[w][round] = moved / (cpu_seconds() - start);
            }
        }
    }
    j->elements_per_byte = (double)j->n_tokens * 2048 / (double)touched;
    rig_layer_free(&r);
    free(from_k);
    free(from_v);
    free(to);
    free(slots);
    return NULL;
}

static void write_case(uint32_t src, oct_kv_format k, oct_kv_format v, uint32_t layout, bool count, int64_t n_tokens)
{
    static write_job jobs[MAX_THREADS];
    pthread_t threads[MAX_THREADS];
    pthread_barrier_t barrier;
    pthread_barrier_init(&barrier, NULL, (unsigned)n_threads);
    for (int i = 0; i < n_threads; i++) {
        jobs[i].src = src, jobs[i].layout = layout, jobs[i].k = k, jobs[i].v = v, jobs[i].count = count, jobs[i].n_tokens = n_tokens, jobs[i].barrier = &barrier;
        if (pthread_create(&threads[i], NULL, write_once, &jobs[i]) != 0) {
            abort();
        }
    }
    for (int i = 0; i < n_threads; i++) {
        pthread_join(threads[i], NULL);
    }
    printf("write %-4s to %-8s%s mode %u %s%s tokens %6lld:", oct__dtype_name(src), oct__dtype_name(k.dtype), k.rotated ? " rot" : "    ", k.scale_mode,
           layout == OCT_LAYOUT_NHD ? "NHD" : layout == OCT_LAYOUT_HND ? "HND" : "V5D", count ? " counted" : "", (long long)n_tokens);
    for (int w = 0; w <= N_WAYS(write_ways); w++) {
        double rates[MAX_ROUNDS] = { 0 }, ratios[MAX_ROUNDS] = { 0 };
        for (int r = 0; r < n_rounds; r++) {
            for (int i = 0; i < n_threads; i++) {
                rates[r] += jobs[i].rate[w][r];
                ratios[r] += jobs[i].rate[w][r] / jobs[i].rate[N_WAYS(write_ways)][r] / n_threads;
            }
        }
        const double rate = median(rates, n_rounds);
        if (w == N_WAYS(write_ways)) {
            printf("  copy %5.1f GB/s\n", rate * 1e-9);
        } else {
            printf("  %s %5.1f GB/s %5.2f elements/ns %3.0f %% of copy", write_ways[w].name, rate * 1e-9, rate * jobs[0].elements_per_byte * 1e-9,
                   100 * median(ratios, n_rounds));
        }
    }
    fflush(stdout);
    pthread_barrier_destroy(&barrier);
}

static void bench_write(int64_t n_tokens)
{
    const oct_kv_format e4m3 = { OCT_DTYPE_E4M3FN, OCT_SCALE_NONE, 0, 0 }, layer = { OCT_DTYPE_E4M3FN, OCT_SCALE_LAYER, 0, 0 };
    const oct_kv_format token = { OCT_DTYPE_E4M3FN, OCT_SCALE_TOKEN_HEAD, OCT_DTYPE_F16, 0 }, i8 = { OCT_DTYPE_I8, OCT_SCALE_TOKEN_HEAD, OCT_DTYPE_F16, 0 };
    const oct_kv_format i8_rotated = { OCT_DTYPE_I8, OCT_SCALE_TOKEN_HEAD, OCT_DTYPE_F16, 1 }, bf16 = { OCT_DTYPE_BF16, OCT_SCALE_NONE, 0, 0 };
    const uint32_t sources[] = { OCT_DTYPE_F32, OCT_DTYPE_BF16 };
    for (size_t s = 0; s < 2; s++) {
        write_case(sources[s], e4m3, e4m3, OCT_LAYOUT_HND, false, n_tokens);
        write_case(sources[s], layer, layer, OCT_LAYOUT_HND, false, n_tokens);
        write_case(sources[s], layer, layer, OCT_LAYOUT_HND, true, n_tokens);
        write_case(sources[s], token, token, OCT_LAYOUT_HND, false, n_tokens);
        write_case(sources[s], i8, i8, OCT_LAYOUT_HND, false, n_tokens);
        write_case(sources[s], i8_rotated, i8, OCT_LAYOUT_HND, false, n_tokens);
        write_case(sources[s], bf16, bf16, OCT_LAYOUT_HND, false, n_tokens);
    }
    write_case(OCT_DTYPE_F32, layer, layer, OCT_LAYOUT_NHD, false, n_tokens);
    write_case(OCT_DTYPE_F32, layer, layer, OCT_LAYOUT_V5D, false, n_tokens);
}

int main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "all";
    const bool all = strcmp(what, "all") == 0;
    __builtin_cpu_init();
    if (!rig_can_run() || !__builtin_cpu_supports("avx512vbmi")) {
        return 77;
    }
    char cpu[64];
    oct__facts facts = { { 0 } };
    oct__cpu_probe(&facts, cpu, sizeof(cpu));
    printf("%s\n", cpu);
    if (argc > 2) {
        n_rounds = atoi(argv[2]);
        n_rounds = n_rounds < 1 ? 1 : n_rounds > MAX_ROUNDS ? MAX_ROUNDS : n_rounds;
    }
    if (argc > 3) {
        n_threads = atoi(argv[3]);
        n_threads = n_threads < 1 ? 1 : n_threads > MAX_THREADS ? MAX_THREADS : n_threads;
    }
    if (all || strcmp(what, "decode") == 0) {
        bench_decode(true);
    }
    if (all || strcmp(what, "hot") == 0) {
        bench_decode(false);
    }
    if (all || strcmp(what, "v5d") == 0) {
        bench_v5d(true);
        bench_v5d(false);
    }
    if (strcmp(what, "scales") == 0) {
        bench_scales();
    }
    if (all || strcmp(what, "extend") == 0) {
        bench_extend();
    }
    if (all || strcmp(what, "write") == 0) {
        bench_write(16384);
    }
    if (all || strcmp(what, "write_hot") == 0) {
        bench_write(32);
    }
    return 0;
}
