/* test_write_avx512.c: the AVX-512 write against the scalar one: every byte of the pools, every scale and every count, over random features
 * and shapes, with special values; and the same with denormals-are-zero set by the thread. */
#define _GNU_SOURCE /* MAP_ANONYMOUS */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <xmmintrin.h>

#include <cmocka.h>

#include "cpu/avx512.h"
#include "cpu/scalar.h"
#include "cpu_avx2/rig.h"
#include "cpu_avx512/machine.h"

static oct_kv_format random_format(uint64_t *seed)
{
    static const uint32_t modes[] = { OCT_SCALE_NONE,       OCT_SCALE_TENSOR,     OCT_SCALE_LAYER,
                                      OCT_SCALE_LAYER_HEAD, OCT_SCALE_TOKEN_HEAD, OCT_SCALE_CHANNEL };
    oct_kv_format f = { .dtype = 1 + rig_below(seed, OCT_DTYPE_I8), .rotated = rig_below(seed, 2) };
    if (oct__dtype_is_8bit(f.dtype)) {
        f.scale_mode = f.dtype == OCT_DTYPE_I8 ? modes[4 + rig_below(seed, 2)] : modes[rig_below(seed, 6)];
        f.scale_dtype = f.scale_mode == OCT_SCALE_TOKEN_HEAD ? (rig_below(seed, 2) ? OCT_DTYPE_F32 : OCT_DTYPE_F16) : 0;
    }
    return f;
}

static float random_scale(uint64_t *seed)
{
    static const float some[] = { 1.0f, 0.5f, 0.037f, 2.9f, 1e-6f, 1e-39f, 1e20f };
    return some[rig_below(seed, sizeof(some) / sizeof(some[0]))] *
           (rig_below(seed, 2) ? 1.0f : 1.0f + 0.3f * (float)fabs((double)rig_normal(seed)));
}

/* A number of the source: mostly normal, now and then special; `wild` asks for NaN and infinity too. */
static float random_value(uint64_t *seed, bool wild)
{
    static const float finite[] = { 0.0f,   -0.0f,    1e-40f,   -3e-39f, 448.0f, -464.0f, 464.1f,  240.0f,
                                    248.0f, 57344.0f, 61440.0f, 1e30f,   -3e38f, 0x1p-9f, 0x1p-10f };
    if (rig_below(seed, 40) != 0) {
        return rig_normal(seed) * 3;
    }
    if (wild && rig_below(seed, 3) == 0) {
        const uint32_t bits[] = { 0x7F800000, 0xFF800000, 0x7FC00000, 0xFFC00000, 0x7F812345, 0xFF801000 };
        return oct__f32_of_bits(bits[rig_below(seed, 6)]);
    }
    return finite[rig_below(seed, sizeof(finite) / sizeof(finite[0]))];
}

typedef struct pair {
    rig_layer scalar, avx512;
    float *scales[2];
} pair;

static void pair_make(pair *p, const oct_kv_spec *spec, int64_t n_pages, uint64_t *seed)
{
    rig_layer_make(&p->scalar, spec, n_pages);
    rig_layer_make(&p->avx512, spec, n_pages);
    for (int is_v = 0; is_v < 2; is_v++) {
        const size_t n = (size_t)spec->heads * (is_v ? spec->dim_v : spec->dim_k);
        p->scales[is_v] = rig_alloc(n * sizeof(float));
        for (size_t i = 0; i < n; i++) {
            p->scales[is_v][i] = random_scale(seed);
        }
    }
    p->scalar.kv.k_scale = p->avx512.kv.k_scale = p->scales[0];
    p->scalar.kv.v_scale = p->avx512.kv.v_scale = p->scales[1];
}

static void pair_free(pair *p)
{
    rig_layer_free(&p->scalar);
    rig_layer_free(&p->avx512);
    free(p->scales[0]);
    free(p->scales[1]);
}

static const char *difference(const pair *p)
{
    if (memcmp(p->scalar.k.at, p->avx512.k.at, p->scalar.k_bytes) != 0) {
        return "K";
    }
    if (memcmp(p->scalar.v.at, p->avx512.v.at, p->scalar.v_bytes) != 0) {
        return "V";
    }
    if (p->scalar.k_scale_bytes > 0 && memcmp(p->scalar.k_scale.at, p->avx512.k_scale.at, p->scalar.k_scale_bytes) != 0) {
        return "K's scales";
    }
    if (p->scalar.v_scale_bytes > 0 && memcmp(p->scalar.v_scale.at, p->avx512.v_scale.at, p->scalar.v_scale_bytes) != 0) {
        return "V's scales";
    }
    return NULL;
}

static void random_spec(oct_kv_spec *spec, uint64_t *s)
{
    do {
        spec->layout = rig_below(s, 3);
        spec->page_size = 1u << rig_below(s, 6);
        spec->k = random_format(s);
        spec->v = random_format(s);
    } while (oct_kv_spec_check(spec, NULL) != OCT_OK);
}

static void check_one(uint64_t seed, bool wild, bool with_daz)
{
    const uint64_t first_seed = seed;
    uint64_t *s = &seed;
    oct_kv_spec spec = { .struct_size = sizeof(spec), .heads = 1 + rig_below(s, rig_below(s, 8) ? 3 : 36) }; /* 16 are taken together */
    pair full, window;
    const bool has_window = rig_below(s, 3) == 0, has_rope = rig_below(s, 2);
    spec.dim_k = 8 * (2 + rig_below(s, rig_below(s, 2) ? 15 : 63));
    spec.dim_v = rig_below(s, 2) ? spec.dim_k : 8 * (2 + rig_below(s, 63));
    random_spec(&spec, s);
    pair_make(&full, &spec, 40, s);
    if (has_window) {
        random_spec(&spec, s);
        pair_make(&window, &spec, 40, s);
    }
    enum { TOKENS = 24 };
    oct_kv_counts counts[4] = { 0 };
    int32_t slots[TOKENS], slots_window[TOKENS], positions[TOKENS];
    float factors[256];
    oct_rope rope = { .struct_size = sizeof(rope),
                      .style = rig_below(s, 2),
                      .n_dims = 2 * (1 + rig_below(s, spec.dim_k / 2)),
                      .base = 10000.0f,
                      .position_scale = 1.0f };
    if (rig_below(s, 2)) {
        rope.n_dims = spec.dim_k;
    }
    for (uint32_t i = 0; i < 256; i++) {
        factors[i] = 1.0f + (float)i / 64;
    }
    rope.factors = rig_below(s, 2) ? factors : NULL;
    oct_kv_write_args args = { .struct_size = sizeof(args), .n_tokens = TOKENS, .src_dtype = OCT_DTYPE_F32 + rig_below(s, 3) };
    const uint32_t size = oct__dtype_size_bytes(args.src_dtype);
    args.k_head_stride = spec.dim_k + 8 * rig_below(s, 2);
    args.k_token_stride = args.k_head_stride * spec.heads + 8 * rig_below(s, 3);
    args.v_head_stride = spec.dim_v;
    args.v_token_stride = args.v_head_stride * spec.heads;
    const size_t k_count = (size_t)(args.k_token_stride * (TOKENS - 1) + args.k_head_stride * (spec.heads - 1)) + spec.dim_k;
    const size_t v_count = (size_t)(args.v_token_stride * (TOKENS - 1) + args.v_head_stride * (spec.heads - 1)) + spec.dim_v;
    const rig_guarded k = rig_guard(k_count * size), v = rig_guard(v_count * size);
    float *x = rig_alloc((k_count > v_count ? k_count : v_count) * sizeof(float));
    for (size_t i = 0; i < k_count; i++) {
        x[i] = random_value(s, wild);
    }
    oct__row_from_f32(k.at, args.src_dtype, x, k_count, 1.0f, NULL);
    for (size_t i = 0; i < v_count; i++) {
        x[i] = random_value(s, wild);
    }
    oct__row_from_f32(v.at, args.src_dtype, x, v_count, 1.0f, NULL);
    free(x);
    for (int i = 0; i < TOKENS; i++) {
        const uint32_t kind = rig_below(s, 8);
        slots[i] = kind == 0   ? -1
                   : kind == 1 ? 1000000
                               : (int32_t)(39 * full.scalar.kv.spec.page_size) - i; /* the last page's end is a guard */
        if (slots[i] < -1) {
            slots[i] = -1;
        }
        slots_window[i] = rig_below(s, 4) ? i : -1;
        positions[i] = (int32_t)rig_below(s, 100000);
    }
    slots[0] = (int32_t)(40 * full.scalar.kv.spec.page_size) - 1;
    args.k = k.at;
    args.v = v.at;
    args.slots = slots;
    args.slots_window = slots_window;
    args.rope = has_rope ? &rope : NULL;
    args.positions = positions;

    args.layer = &full.scalar.kv;
    args.layer_window = has_window ? &window.scalar.kv : NULL;
    oct__kv_write__scalar(&args, 0, TOKENS, &counts[0], &counts[1]);
    args.layer = &full.avx512.kv;
    args.layer_window = has_window ? &window.avx512.kv : NULL;
    const unsigned int mode = _mm_getcsr();
    if (with_daz) {
        _mm_setcsr(mode | 0x8040);
    }
    oct__kv_write__avx512(&args, 0, TOKENS / 2, &counts[2], &counts[3]);
    oct__kv_write__avx512(&args, TOKENS / 2, TOKENS, &counts[2], &counts[3]);
    const unsigned int left = _mm_getcsr();
    _mm_setcsr(mode);

    const char *where = difference(&full), *where_window = has_window ? difference(&window) : NULL;
    const bool counts_equal = memcmp(&counts[0], &counts[2], 2 * sizeof(counts[0])) == 0;
    if (where != NULL || where_window != NULL || !counts_equal) {
        const oct_kv_spec *f = &full.scalar.kv.spec;
        fail_msg("seed %llx (wild %d): %s differ; layout %u dims %u/%u page %u K %s mode %u rotated %u, V %s mode %u rotated %u, window "
                 "%s, src %s, rope %d; "
                 "saturated %llu %llu against %llu %llu, amax %g %g against %g %g",
                 (unsigned long long)first_seed, wild,
                 where          ? where
                 : where_window ? where_window
                                : "counts",
                 f->layout, f->dim_k, f->dim_v, f->page_size, oct__dtype_name(f->k.dtype), f->k.scale_mode, f->k.rotated,
                 oct__dtype_name(f->v.dtype), f->v.scale_mode, f->v.rotated, where_window ? "differs" : "same",
                 oct__dtype_name(args.src_dtype), has_rope, (unsigned long long)counts[2].n_saturated,
                 (unsigned long long)counts[3].n_saturated, (unsigned long long)counts[0].n_saturated,
                 (unsigned long long)counts[1].n_saturated, (double)counts[2].amax, (double)counts[3].amax, (double)counts[0].amax,
                 (double)counts[1].amax);
    }
    assert_int_equal(left & ~0x3Fu, (with_daz ? mode | 0x8040 : mode) & ~0x3Fu);
    pair_free(&full);
    if (has_window) {
        pair_free(&window);
    }
    munmap(k.map, k.map_bytes);
    munmap(v.map, v.map_bytes);
}

static void test_like_scalar(void **state)
{
    (void)state;
    for (uint64_t i = 1; i <= MACHINE_SEEDS(700); i++) {
        check_one(i * UINT64_C(0x9E3779B97F4A7C15), false, false);
    }
}

static void test_like_scalar_with_nan_and_infinity(void **state)
{
    (void)state;
    for (uint64_t i = 1; i <= MACHINE_SEEDS(300); i++) {
        check_one(i * UINT64_C(0xD1342543DE82EF95), true, false);
    }
}

static void test_like_scalar_with_daz(void **state)
{
    (void)state;
    for (uint64_t i = 1; i <= MACHINE_SEEDS(200); i++) {
        check_one(i * UINT64_C(0xA0761D6478BD642F), false, true);
    }
}

/* A call large enough to store past the caches, whole lines and not. */
static void test_large(void **state)
{
    (void)state;
    enum { LARGE = 1100 };
    static const uint32_t dims[] = { 128, 64, 80 };
    for (size_t i = 0; i < 3; i++) {
        uint64_t seed = 99 + i;
        oct_kv_spec spec = { .struct_size = sizeof(spec), .heads = 8, .dim_k = dims[i], .dim_v = 128, .page_size = 16, .layout = OCT_LAYOUT_HND,
                             .k = { OCT_DTYPE_E4M3FN, OCT_SCALE_LAYER, 0, 0 }, .v = { OCT_DTYPE_BF16, OCT_SCALE_NONE, 0, 0 } };
        pair p;
        pair_make(&p, &spec, LARGE / 16 + 1, &seed);
        const size_t k_bytes = (size_t)LARGE * 8 * dims[i] * 4, v_bytes = (size_t)LARGE * 8 * 128 * 4;
        float *k = rig_alloc(k_bytes), *v = rig_alloc(v_bytes);
        int32_t slots[LARGE];
        for (size_t n = 0; n < k_bytes / 4; n++) {
            k[n] = rig_normal(&seed);
        }
        for (size_t n = 0; n < v_bytes / 4; n++) {
            v[n] = rig_normal(&seed);
        }
        for (int n = 0; n < LARGE; n++) {
            slots[n] = LARGE - 1 - n;
        }
        oct_kv_write_args args = { .struct_size = sizeof(args), .layer = &p.scalar.kv, .slots = slots, .n_tokens = LARGE, .src_dtype = OCT_DTYPE_F32, .k = k,
                                   .v = v, .k_token_stride = 8 * dims[i], .k_head_stride = dims[i], .v_token_stride = 8 * 128, .v_head_stride = 128 };
        oct__kv_write__scalar(&args, 0, LARGE, NULL, NULL);
        args.layer = &p.avx512.kv;
        oct__kv_write__avx512(&args, 0, LARGE, NULL, NULL);
        assert_null(difference(&p));
        pair_free(&p);
        free(k);
        free(v);
    }
}

/* A scale of some kinds: any number; one whose quotients of bf16 lie at ends of codes, or beside them. */
static float scale_of_some_kind(uint64_t *seed)
{
    const float near = (float)(17 + rig_below(seed, 239)) / (float)(1 + rig_below(seed, 31));
    const uint32_t bits = 0x3F800000 | (rig_below(seed, 1u << 23) & (rig_below(seed, 2) ? 0x7FE000u : 0x7FFFFFu));
    const float scale = rig_below(seed, 2) ? near : oct__f32_of_bits(bits);
    return ldexpf(scale, (int)rig_below(seed, 24) - 16);
}

/* Every bf16 in both, then every one in K and f32 at and beside it in V, over scales whose quotients lie at the ends of codes, and others; in one call,
 * which makes tables of the scale, and in some too small for that. */
static void test_every_word(void **state)
{
    (void)state;
    enum { TOKENS = 1024, DIM = 64 };
    static const uint32_t formats[] = { OCT_DTYPE_E4M3FN, OCT_DTYPE_E4M3FNUZ, OCT_DTYPE_E5M2 }, beside[] = { 0, 1, 2, 0x7FFF, 0x8000, 0xFFFE, 0xFFFF };
    static const float scales[] = { 1.0f, 0x1p-7f, 0x1p9f, 1.0f / 60, 3.0f, 0.037f, 0x1p-66f, 0x1.8p59f, 0x1.8p-99f, 0x1.2p99f };
    enum { GIVEN = 3 * sizeof(scales) / sizeof(scales[0]), ROUNDS = GIVEN + 30 };
    uint64_t seed = 1;
    uint16_t *const k = rig_alloc(TOKENS * DIM * sizeof(*k));
    float *const v = rig_alloc(TOKENS * DIM * sizeof(*v)), *const k_f32 = rig_alloc(TOKENS * DIM * sizeof(*k_f32));
    int32_t slots[TOKENS];
    for (size_t round = 0; round < ROUNDS; round += MACHINE_STEP(1) > 1 ? 5 : 1) {
        const uint32_t format = formats[round % 3];
        const float scale = round < GIVEN ? scales[round / 3] : scale_of_some_kind(&seed);
        oct_kv_spec spec = { .struct_size = sizeof(spec), .heads = 1, .dim_k = DIM, .dim_v = DIM, .page_size = 16, .layout = OCT_LAYOUT_HND,
                             .k = { format, OCT_SCALE_LAYER, 0, 0 }, .v = { format, OCT_SCALE_LAYER, 0, 0 } };
        pair p;
        pair_make(&p, &spec, TOKENS / 16, &seed);
        p.scales[0][0] = p.scales[1][0] = scale;
        for (uint32_t n = 0; n < TOKENS * DIM; n++) {
            k[n] = (uint16_t)n;
            k_f32[n] = oct__f32_of_bits(n << 16);
            v[n] = oct__f32_of_bits((n << 16) + beside[(n + round) % 7]);
            slots[n % TOKENS] = (int32_t)(n % TOKENS);
        }
        for (int from_f32 = 0; from_f32 < 2; from_f32++) {
            oct_kv_write_args args = { .struct_size = sizeof(args), .slots = slots, .n_tokens = TOKENS, .src_dtype = from_f32 ? OCT_DTYPE_F32 : OCT_DTYPE_BF16,
                                       .k = from_f32 ? (const void *)k_f32 : k, .v = from_f32 ? (const void *)v : k, .k_token_stride = DIM,
                                       .k_head_stride = DIM, .v_token_stride = DIM, .v_head_stride = DIM };
            for (int by_pieces = 0; by_pieces < 2; by_pieces++) { /* calls too small for tables */
                oct_kv_counts counts[4] = { 0 };
                args.layer = &p.scalar.kv;
                oct__kv_write__scalar(&args, 0, TOKENS, &counts[0], &counts[1]);
                args.layer = &p.avx512.kv;
                for (int t = 0; t < TOKENS; t += by_pieces ? 32 : TOKENS) {
                    oct__kv_write__avx512(&args, t, t + (by_pieces ? 32 : TOKENS), &counts[2], &counts[3]);
                }
                if (difference(&p) != NULL || memcmp(counts, counts + 2, 2 * sizeof(counts[0])) != 0) {
                    fail_msg("%s differ: %s, scale %a, from %s%s", difference(&p) ? difference(&p) : "counts", oct__dtype_name(format), (double)scale,
                             from_f32 ? "f32" : "bf16", by_pieces ? ", by pieces" : "");
                }
            }
        }
        pair_free(&p);
    }
    free(k);
    free(v);
    free(k_f32);
}

/* Words up to a largest one of any mantissa, over dynamic scales, over a scale a head and over one for heads that lie apart, as one for such as lie side
 * by side. */
static void test_every_word_by_head(void **state)
{
    (void)state;
    enum { TOKENS = 256, HEADS = 4, DIM = 64, N = TOKENS * HEADS * DIM };
    static const uint32_t formats[] = { OCT_DTYPE_E4M3FN, OCT_DTYPE_E4M3FNUZ, OCT_DTYPE_E5M2 };
    uint64_t seed = 3;
    uint16_t *const k = rig_alloc(N * sizeof(*k));
    int32_t slots[TOKENS];
    for (size_t round = 0; round < 48; round += MACHINE_STEP(1) > 1 ? 7 : 1) {
        static const oct_kv_format ways[] = { { 0, OCT_SCALE_LAYER_HEAD, 0, 0 },
                                              { 0, OCT_SCALE_TOKEN_HEAD, OCT_DTYPE_F16, 0 },
                                              { 0, OCT_SCALE_LAYER, 0, 0 },
                                              { 0, OCT_SCALE_TOKEN_HEAD, OCT_DTYPE_F32, 0 } };
        oct_kv_format format = ways[round % 4];
        format.dtype = formats[round / 4 % 3];
        oct_kv_spec spec = { .struct_size = sizeof(spec), .heads = HEADS, .dim_k = DIM, .dim_v = DIM, .page_size = 16,
                             .layout = round / 12 % 2 ? OCT_LAYOUT_NHD : OCT_LAYOUT_HND, .k = format, .v = format };
        pair p;
        pair_make(&p, &spec, TOKENS / 16, &seed);
        for (uint32_t i = 0; i < HEADS; i++) {
            p.scales[0][i] = scale_of_some_kind(&seed);
            p.scales[1][i] = rig_below(&seed, 4) ? 0.5f * scale_of_some_kind(&seed) : 0.25f;
        }
        for (uint32_t head = 0; head < TOKENS * HEADS; head++) { /* multiples of 7 times a power of two among them, whose scales are short */
            const uint32_t largest = 0x3C00 + rig_below(&seed, 0x300);
            for (uint32_t d = 0; d < DIM; d++) {
                k[head * DIM + d] = (uint16_t)((d == 0 ? largest : largest - rig_below(&seed, rig_below(&seed, 3) ? 0x200 : 0xC00)) | rig_below(&seed, 2) << 15);
            }
            slots[head / HEADS] = (int32_t)(head / HEADS);
        }
        oct_kv_write_args args = { .struct_size = sizeof(args), .slots = slots, .n_tokens = TOKENS, .src_dtype = OCT_DTYPE_BF16, .k = k, .v = k,
                                   .k_token_stride = HEADS * DIM, .k_head_stride = DIM, .v_token_stride = HEADS * DIM, .v_head_stride = DIM };
        oct_kv_counts counts[4] = { 0 };
        args.layer = &p.scalar.kv;
        oct__kv_write__scalar(&args, 0, TOKENS, &counts[0], &counts[1]);
        args.layer = &p.avx512.kv;
        oct__kv_write__avx512(&args, 0, TOKENS, &counts[2], &counts[3]);
        if (difference(&p) != NULL || memcmp(counts, counts + 2, 2 * sizeof(counts[0])) != 0) {
            fail_msg("%s differ: %s, mode %u, round %zu", difference(&p) ? difference(&p) : "counts", oct__dtype_name(format.dtype), format.scale_mode, round);
        }
        pair_free(&p);
    }
    free(k);
}

int main(void)
{
    if (!machine_has(MACHINE_AVX512_VBMI)) {
        return 77;
    }
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_like_scalar), cmocka_unit_test(test_like_scalar_with_nan_and_infinity),
                                        cmocka_unit_test(test_like_scalar_with_daz), cmocka_unit_test(test_large), cmocka_unit_test(test_every_word),
                                        cmocka_unit_test(test_every_word_by_head) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
