/* bench_avx2.c: figures of single AVX2 and scalar tiles and writes, for cost rows and head comments. Not a test; `octavo bench` is for users.
 * One thread on its own CPU clock, so that other programs on the machine disturb little; each round of a case also measures the FMA peak,
 * and the fraction is the median over rounds of the two rates' ratio.
 *   bench_avx2 [decode|hot|extend|write|write_hot|all] [rounds] [vectors of an extend tile]
 *   bench_avx2 one rounds format group dim kv_len q_len      (i8: in f32, then in words) */
#define _GNU_SOURCE
#include <immintrin.h>
#include <time.h>

#include "cpu/avx2.h"
#include "cpu/probe.h"
#include "cpu/scalar.h"
#include "rig.h"

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
    __m256 sum[12];
    const __m256 x = _mm256_set1_ps(0.999f), y = _mm256_set1_ps(0.001f);
    for (int i = 0; i < 12; i++) {
        sum[i] = _mm256_set1_ps((float)i);
    }
    const double start = cpu_seconds();
    for (int k = 0; k < 100000; k++) {
        _Pragma("GCC unroll 16") for (int i = 0; i < 12; i++)
        {
            sum[i] = _mm256_fmadd_ps(sum[i], x, y);
        }
    }
    const double seconds = cpu_seconds() - start;
    for (int i = 1; i < 12; i++) {
        sum[0] = _mm256_add_ps(sum[0], sum[i]);
    }
    sink = _mm256_cvtss_f32(sum[0]);
    return 12.0 * 100000 * 16 / seconds;
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

enum { MAX_ROUNDS = 200 };
static int n_rounds = 15;

/* ---- attention -------------------------------------------------------------------------------------------------------------- */

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

static void attention(const char *name, const shape *s, oct__attn_fn *attn, oct__attn_scratch_fn *scratch, uint32_t tile_vectors, bool cold)
{
    uint64_t seed = 7;
    oct_kv_spec spec = { .struct_size = sizeof(spec),
                         .layout = s->layout,
                         .heads = s->heads_kv,
                         .dim_k = s->dim,
                         .dim_v = s->dim,
                         .page_size = s->page,
                         .k = format_of(s->dtype_k),
                         .v = format_of(s->dtype_v) };
    const int64_t n_pages = (s->kv_len + s->page - 1) / s->page;
    const int64_t bytes = n_pages * (int64_t)oct_kv_page_bytes(&spec);
    const int64_t n_sequences = cold ? 1 + (INT64_C(96) << 20) / bytes : 1;
    rig_layer r;
    rig_layer_make(&r, &spec, n_pages * n_sequences);
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
        const uint32_t j = rig_below(&seed, (uint32_t)i + 1);
        const int32_t swap = pages[i];
        pages[i] = pages[j];
        pages[j] = swap;
    }
    const uint32_t rows = tile_vectors / s->group < s->q_len ? tile_vectors / s->group : (uint32_t)s->q_len, n = rows * s->group;
    float *q = rig_alloc((size_t)n * s->dim * 4), *o = rig_alloc((size_t)n * s->dim * 4), *m = rig_alloc(n * 4), *z = rig_alloc(n * 4);
    for (size_t i = 0; i < (size_t)n * s->dim; i++) {
        q[i] = rig_normal(&seed);
    }
    oct__attn_tile t = { .kv = &r.kv,
                         .n_heads = s->group,
                         .causal = 1,
                         .score_scale = 1.0f / sqrtf((float)s->dim),
                         .q = q,
                         .q_stride = s->dim,
                         .o = o,
                         .o_stride = s->dim,
                         .m = m,
                         .z = z,
                         .scratch = rig_alloc(scratch(&spec, n)) };
    double ratio[MAX_ROUNDS], flops[MAX_ROUNDS];
    int64_t sequence = 0;
    for (int round = -1; round < n_rounds; round++) {
        double flop = 0, seconds = 0, peak = fma_peak();
        do { /* decode: every KV head of one sequence; extend: a run of tiles over the whole prompt, one KV head */
            const double start = cpu_seconds();
            for (int64_t row = 0; row < s->q_len; row += rows) {
                t.n_rows = s->q_len - row < rows ? (uint32_t)(s->q_len - row) : rows;
                t.pos0 = s->kv_len - s->q_len + row;
                t.key0 = 0;
                t.key1 = t.pos0 + t.n_rows;
                for (uint32_t h = 0; h < (s->q_len == 1 ? s->heads_kv : 1); h++) {
                    t.head_kv = h;
                    t.pages = pages + sequence * n_pages;
                    attn(&t);
                }
            }
            seconds += cpu_seconds() - start;
            const double pairs = s->q_len == 1
                                     ? (double)s->kv_len * s->heads_kv
                                     : (double)s->q_len * (double)(s->kv_len - s->q_len) + 0.5 * (double)s->q_len * (double)(s->q_len + 1);
            flop += pairs * s->group * 4.0 * s->dim;
            sequence = (sequence + 1) % n_sequences;
        } while (seconds < 0.004);
        peak = 0.5 * (peak + fma_peak());
        if (round >= 0) {
            flops[round] = flop / seconds;
            ratio[round] = flop / seconds / peak;
        }
    }
    const double rate = median(flops, n_rounds);
    const double bytes_per_flop = (double)(oct__dtype_size_bytes(s->dtype_k) + oct__dtype_size_bytes(s->dtype_v)) / (4.0 * s->group);
    printf("%-7s %-8s %-8s G %2u dim %3u page %4u %s kv %6lld q %5lld: %7.1f GFLOP/s %6.2f GB/s  %5.1f %% of FMA\n", name,
           oct__dtype_name(s->dtype_k), oct__dtype_name(s->dtype_v), s->group, s->dim, s->page,
           s->layout == OCT_LAYOUT_NHD   ? "NHD"
           : s->layout == OCT_LAYOUT_HND ? "HND"
                                         : "V5D",
           (long long)s->kv_len, (long long)s->q_len, rate * 1e-9, rate * bytes_per_flop * 1e-9, 100 * median(ratio, n_rounds));
    fflush(stdout);
    rig_layer_free(&r);
    free(pages);
    free(q);
    free(o);
    free(m);
    free(z);
    free(t.scratch);
}

static void bench_decode(void)
{
    static const uint32_t dtypes[] = { OCT_DTYPE_E4M3FN, OCT_DTYPE_I8, OCT_DTYPE_BF16, OCT_DTYPE_F16, OCT_DTYPE_E5M2, OCT_DTYPE_F32 };
    static const uint32_t groups[] = { 1, 2, 3, 4, 7, 8, 16 };
    for (size_t g = 0; g < sizeof(groups) / sizeof(groups[0]); g++) {
        for (size_t k = 0; k < (groups[g] == 4 ? 6 : 2); k++) {
            attention("decode", &(shape){ OCT_LAYOUT_HND, 8, groups[g], 128, 16, dtypes[k], dtypes[k], 8192, 1 }, oct__attn_decode__avx2,
                      oct__attn_decode_scratch__avx2, 64, true);
        }
    }
    attention("decode", &(shape){ OCT_LAYOUT_NHD, 8, 4, 128, 16, OCT_DTYPE_E4M3FN, OCT_DTYPE_E4M3FN, 8192, 1 }, oct__attn_decode__avx2,
              oct__attn_decode_scratch__avx2, 64, true);
    attention("decode", &(shape){ OCT_LAYOUT_V5D, 8, 4, 128, 16, OCT_DTYPE_E4M3FN, OCT_DTYPE_E4M3FN, 8192, 1 }, oct__attn_decode__avx2,
              oct__attn_decode_scratch__avx2, 64, true);
    attention("decode", &(shape){ OCT_LAYOUT_HND, 1, 8, 256, 16, OCT_DTYPE_E4M3FN, OCT_DTYPE_E4M3FN, 8192, 1 }, oct__attn_decode__avx2,
              oct__attn_decode_scratch__avx2, 64, true);
    attention("decode", &(shape){ OCT_LAYOUT_HND, 1, 4, 256, 16, OCT_DTYPE_E4M3FN, OCT_DTYPE_E4M3FN, 8192, 1 }, oct__attn_decode__avx2,
              oct__attn_decode_scratch__avx2, 64, true);
    attention("decode", &(shape){ OCT_LAYOUT_HND, 3, 3, 64, 16, OCT_DTYPE_E4M3FN, OCT_DTYPE_E4M3FN, 4096, 1 }, oct__attn_decode__avx2,
              oct__attn_decode_scratch__avx2, 64, false);
    attention("scalar", &(shape){ OCT_LAYOUT_HND, 8, 4, 128, 16, OCT_DTYPE_E4M3FN, OCT_DTYPE_E4M3FN, 1024, 1 }, oct__attn__scalar,
              oct__attn_scratch__scalar, 64, false);
}

/* From L2: what the arithmetic alone takes. */
static void bench_hot(void)
{
    static const uint32_t dtypes[] = { OCT_DTYPE_E4M3FN, OCT_DTYPE_I8, OCT_DTYPE_E5M2, OCT_DTYPE_BF16 };
    static const uint32_t groups[] = { 1, 2, 3, 4, 5, 7, 8, 16 }, dims[] = { 64, 128 };
    for (size_t d = 0; d < 2; d++) {
        for (size_t g = 0; g < sizeof(groups) / sizeof(groups[0]); g++) {
            for (size_t k = 0; k < (groups[g] == 4 ? 4 : 2); k++) {
                attention("hot", &(shape){ OCT_LAYOUT_HND, 1, groups[g], dims[d], 16, dtypes[k], dtypes[k], 1024, 1 },
                          oct__attn_decode__avx2, oct__attn_decode_scratch__avx2, 64, false);
            }
        }
    }
}

static uint32_t extend_vectors = 128;

static void bench_extend(void)
{
    static const uint32_t dims[] = { 64, 128, 256 };
    static const int64_t lengths[] = { 512, 2048 };
    for (size_t d = 0; d < 3; d++) {
        for (size_t l = 0; l < 2; l++) {
            attention("extend", &(shape){ OCT_LAYOUT_HND, 1, 4, dims[d], 16, OCT_DTYPE_E4M3FN, OCT_DTYPE_E4M3FN, lengths[l], lengths[l] },
                      oct__attn_extend__avx2, oct__attn_extend_scratch__avx2, extend_vectors, false);
        }
    }
    attention("extend", &(shape){ OCT_LAYOUT_HND, 1, 4, 128, 16, OCT_DTYPE_BF16, OCT_DTYPE_BF16, 2048, 2048 }, oct__attn_extend__avx2,
              oct__attn_extend_scratch__avx2, extend_vectors, false);
    attention("extend", &(shape){ OCT_LAYOUT_HND, 1, 3, 64, 16, OCT_DTYPE_I8, OCT_DTYPE_I8, 512, 512 }, oct__attn_extend__avx2,
              oct__attn_extend_scratch__avx2, extend_vectors, false);
    attention("extend", &(shape){ OCT_LAYOUT_HND, 1, 3, 64, 16, OCT_DTYPE_E4M3FN, OCT_DTYPE_E4M3FN, 512, 512 }, oct__attn_extend__avx2,
              oct__attn_extend_scratch__avx2, extend_vectors, false);
    attention("extend", &(shape){ OCT_LAYOUT_V5D, 1, 4, 128, 16, OCT_DTYPE_E4M3FN, OCT_DTYPE_E4M3FN, 2048, 2048 }, oct__attn_extend__avx2,
              oct__attn_extend_scratch__avx2, extend_vectors, false);
    attention("scalar", &(shape){ OCT_LAYOUT_HND, 1, 4, 128, 16, OCT_DTYPE_E4M3FN, OCT_DTYPE_E4M3FN, 256, 256 }, oct__attn__scalar,
              oct__attn_scratch__scalar, 64, false);
}

/* ---- write ------------------------------------------------------------------------------------------------------------------- */

static void copy(uint8_t *to, const uint8_t *from, size_t bytes)
{
    for (size_t i = 0; i < bytes; i += 128) { /* what `cp` at the machine's limit does: streaming stores */
        for (size_t k = 0; k < 128; k += 32) {
            _mm256_stream_si256((__m256i *)(void *)(to + i + k), _mm256_loadu_si256((const __m256i *)(const void *)(from + i + k)));
        }
    }
    _mm_sfence();
}

static void write(const char *name, uint32_t src, oct_kv_format k, oct_kv_format v, uint32_t layout, bool count, oct__kv_write_fn *fn,
                  int64_t n_tokens)
{
    uint64_t seed = 11;
    oct_kv_spec spec = {
        .struct_size = sizeof(spec), .layout = layout, .heads = 8, .dim_k = 128, .dim_v = 128, .page_size = 16, .k = k, .v = v
    };
    rig_layer r;
    rig_layer_make(&r, &spec, n_tokens / 16);
    const float scale[8] = { 0.37f, 0.37f, 0.37f, 0.37f, 0.37f, 0.37f, 0.37f, 0.37f };
    r.kv.k_scale = r.kv.v_scale = scale;
    const size_t bytes = (size_t)n_tokens * 8 * 128 * oct__dtype_size_bytes(src);
    uint8_t *from_k = rig_alloc(bytes), *from_v = rig_alloc(bytes), *to = rig_alloc(2 * bytes);
    fill(from_k, bytes, src, &seed);
    fill(from_v, bytes, src, &seed);
    int32_t *slots = rig_alloc((size_t)n_tokens * 4);
    for (int64_t i = 0; i < n_tokens; i++) {
        slots[i] = (int32_t)i;
    }
    oct_kv_counts counts[2] = { 0 };
    const oct_kv_write_args args = { .struct_size = sizeof(args),
                                     .layer = &r.kv,
                                     .slots = slots,
                                     .n_tokens = n_tokens,
                                     .src_dtype = src,
                                     .k = from_k,
                                     .v = from_v,
                                     .k_token_stride = 1024,
                                     .k_head_stride = 128,
                                     .v_token_stride = 1024,
                                     .v_head_stride = 128 };
    double ratio[MAX_ROUNDS], rates[MAX_ROUNDS];
    const double touched = 2.0 * (double)bytes + (double)r.k_bytes + (double)r.v_bytes;
    for (int round = -1; round < n_rounds; round++) {
        const int repeats = n_tokens < 1024 ? 64 : 1; /* few tokens stay in L2 and are over before the clock moves */
        double start = cpu_seconds();
        for (int i = 0; i < repeats; i++) {
            copy(to, from_k, bytes);
            copy(to + bytes, from_v, bytes);
        }
        const double copied = repeats * 4.0 * (double)bytes / (cpu_seconds() - start);
        start = cpu_seconds();
        for (int i = 0; i < repeats; i++) {
            fn(&args, 0, n_tokens, count ? &counts[0] : NULL, count ? &counts[1] : NULL);
        }
        const double rate = repeats * touched / (cpu_seconds() - start);
        if (round >= 0) {
            rates[round] = rate;
            ratio[round] = rate / copied;
        }
    }
    sink = to[rig_below(&seed, (uint32_t)bytes)]; /* or a compiler leaves the copy out */
    const double rate = median(rates, n_rounds);
    printf("%-7s %-4s to %-8s%s%s mode %u %s %s: %6.2f GB/s read and written, %5.2f elements/ns, %5.1f %% of copy\n", name,
           oct__dtype_name(src), oct__dtype_name(k.dtype), k.rotated ? " rot" : "", k.dtype == v.dtype ? "" : " mixed", k.scale_mode,
           layout == OCT_LAYOUT_NHD   ? "NHD"
           : layout == OCT_LAYOUT_HND ? "HND"
                                      : "V5D",
           count ? "counted" : "", rate * 1e-9, rate / touched * (double)n_tokens * 2048 * 1e-9, 100 * median(ratio, n_rounds));
    fflush(stdout);
    rig_layer_free(&r);
    free(from_k);
    free(from_v);
    free(to);
    free(slots);
}

static void bench_write(int64_t n_tokens)
{
    const oct_kv_format e4m3 = { OCT_DTYPE_E4M3FN, OCT_SCALE_NONE, 0, 0 }, layer = { OCT_DTYPE_E4M3FN, OCT_SCALE_LAYER, 0, 0 };
    const oct_kv_format token = { OCT_DTYPE_E4M3FN, OCT_SCALE_TOKEN_HEAD, OCT_DTYPE_F16, 0 },
                        i8 = { OCT_DTYPE_I8, OCT_SCALE_TOKEN_HEAD, OCT_DTYPE_F16, 0 };
    const oct_kv_format i8_rotated = { OCT_DTYPE_I8, OCT_SCALE_TOKEN_HEAD, OCT_DTYPE_F16, 1 },
                        bf16 = { OCT_DTYPE_BF16, OCT_SCALE_NONE, 0, 0 };
    const oct_kv_format e5m2 = { OCT_DTYPE_E5M2, OCT_SCALE_LAYER, 0, 0 };
    const uint32_t sources[] = { OCT_DTYPE_F32, OCT_DTYPE_BF16 };
    for (size_t s = 0; s < 2; s++) {
        write("write", sources[s], e4m3, e4m3, OCT_LAYOUT_HND, false, oct__kv_write__avx2, n_tokens);
        write("write", sources[s], layer, layer, OCT_LAYOUT_HND, false, oct__kv_write__avx2, n_tokens);
        write("write", sources[s], layer, layer, OCT_LAYOUT_HND, true, oct__kv_write__avx2, n_tokens);
        write("write", sources[s], token, token, OCT_LAYOUT_HND, false, oct__kv_write__avx2, n_tokens);
        write("write", sources[s], i8, i8, OCT_LAYOUT_HND, false, oct__kv_write__avx2, n_tokens);
        write("write", sources[s], i8_rotated, i8, OCT_LAYOUT_HND, false, oct__kv_write__avx2, n_tokens);
        write("write", sources[s], e5m2, e5m2, OCT_LAYOUT_HND, false, oct__kv_write__avx2, n_tokens);
        write("write", sources[s], bf16, bf16, OCT_LAYOUT_HND, false, oct__kv_write__avx2, n_tokens);
    }
    write("write", OCT_DTYPE_F32, layer, layer, OCT_LAYOUT_NHD, false, oct__kv_write__avx2, n_tokens);
    write("write", OCT_DTYPE_F32, layer, layer, OCT_LAYOUT_V5D, false, oct__kv_write__avx2, n_tokens);
    write("scalar", OCT_DTYPE_F32, layer, layer, OCT_LAYOUT_HND, false, oct__kv_write__scalar, 512);
}

int main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "all";
    if (!rig_can_run()) {
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
    if (argc == 8 && strcmp(what, "one") == 0) {
        const uint32_t dtype = oct__dtype_from_name(argv[3]), group = (uint32_t)atoi(argv[4]), dim = (uint32_t)atoi(argv[5]);
        const int kv_len = atoi(argv[6]), q_len = atoi(argv[7]);
        const bool is_cold = kv_len > 2048 && q_len == 1;
        attention("one", &(shape){ OCT_LAYOUT_HND, is_cold ? 8 : 1, group, dim, 16, dtype, dtype, kv_len, q_len }, oct__attn_extend__avx2,
                  oct__attn_extend_scratch__avx2, extend_vectors, is_cold);
        if (dtype == OCT_DTYPE_I8) {
            attention("words", &(shape){ OCT_LAYOUT_HND, is_cold ? 8 : 1, group, dim, 16, dtype, dtype, kv_len, q_len }, oct__attn_extend__avx2word,
                      oct__attn_extend_scratch__avx2word, extend_vectors, is_cold);
        }
        return 0;
    }
    if (argc > 3) {
        extend_vectors = (uint32_t)atoi(argv[3]);
    }
    if (strcmp(what, "decode") == 0 || strcmp(what, "all") == 0) {
        bench_decode();
    }
    if (strcmp(what, "hot") == 0 || strcmp(what, "all") == 0) {
        bench_hot();
    }
    if (strcmp(what, "extend") == 0 || strcmp(what, "all") == 0) {
        bench_extend();
    }
    if (strcmp(what, "write") == 0 || strcmp(what, "all") == 0) {
        bench_write(16384);
    }
    if (strcmp(what, "write_hot") == 0 || strcmp(what, "all") == 0) {
        bench_write(64);
    }
    return 0;
}
