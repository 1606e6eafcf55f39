/* tile_check.c: see tile_check.h. */
#include "device/tile_check.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#include "device/device_check.h"
#include "number/number.h"
#include "parity/rng.h"

enum { KEYS = 16, BYTES_MAX = 128, VECTORS_MAX = 16, DIMS_MAX = 128 };

static uint32_t warp;
static int64_t n_judged;

typedef struct probe {
    unsigned char a[KEYS * BYTES_MAX];                       /* K or V */
    union { unsigned char code[VECTORS_MAX * BYTES_MAX]; float weight[KEYS * VECTORS_MAX]; } b;
    float d[DIMS_MAX * VECTORS_MAX];
} probe;

static uint32_t vectors(void) { return warp == 32 ? 8 : 16; }

static double value_of(const unsigned char *row, uint32_t i, uint32_t kind)
{
    uint16_t half;
    switch (kind) {
    case OCT__PROBE_F16:
        memcpy(&half, row + 2 * i, 2);
        return (double)oct__f16_to_f32(half);
    case OCT__PROBE_BF16:
        memcpy(&half, row + 2 * i, 2);
        return (double)oct__bf16_to_f32(half);
    case OCT__PROBE_I8:
        return (double)(int8_t)row[i];
    case OCT__PROBE_E4M3FNUZ:
    case OCT__PROBE_SUMS_E4M3FNUZ:
        return (double)oct__e4m3fnuz_to_f32(row[i]);
    default:
        return (double)oct__e4m3fn_to_f32(row[i]);
    }
}

static void run(probe *p, uint32_t kind)
{
    device_rig *rig = device_check_rig(warp);
    simt_report report;
    assert_non_null(rig);
    void *a = simt_alloc(rig->device, sizeof p->a, "a"), *b = simt_alloc(rig->device, sizeof p->b, "b"), *d = simt_alloc(rig->device, sizeof p->d, "d");
    assert_true(a != NULL && b != NULL && d != NULL);
    for (uint32_t i = 0; i < DIMS_MAX * VECTORS_MAX; i++)
        p->d[i] = 12345.0f;
    assert_int_equal(simt_copy_in(rig->device, a, p->a, sizeof p->a), 0);
    assert_int_equal(simt_copy_in(rig->device, b, &p->b, sizeof p->b), 0);
    assert_int_equal(simt_copy_in(rig->device, d, p->d, sizeof p->d), 0);
    const oct__tile_probe_params params = { .a = a, .b = b, .d = d, .kind = kind };
    const oct__dev_launch launch = { .kernel = "tile_probe", .grid_x = 1, .grid_y = 1, .threads = 64 };
    const simt_fault fault = device_launch(rig, &launch, &params, &report);
    if (fault != SIMT_OK)
        print_message("%s\n", report.text);
    assert_int_equal(fault, SIMT_OK);
    simt_copy_out(rig->device, p->d, d, sizeof p->d);
    simt_free(rig->device, a);
    simt_free(rig->device, b);
    simt_free(rig->device, d);
    n_judged++;
}

/* Codes of finite numbers of any size. */
static void fill(probe *p, uint32_t kind, rng *r)
{
    for (uint32_t i = 0; i < sizeof p->a + sizeof p->b.code; i++) {
        unsigned char *to = i < sizeof p->a ? &p->a[i] : &p->b.code[i - sizeof p->a];
        do
            *to = (unsigned char)rng_below(r, 256);
        while (kind > OCT__PROBE_BF16 && !isfinite(value_of(to, 0, kind)));
        if (kind <= OCT__PROBE_BF16 && i % 2 == 1)   /* exponents in the middle */
            *to = (unsigned char)((*to & 0x83) | (kind == OCT__PROBE_F16 ? 0x38 : 0x3C));
    }
}

static void judge_scores(const probe *p, uint32_t kind, double bound)
{
    const uint32_t bytes = kind == OCT__PROBE_FP8_WIDE ? 128 : 32, n = kind <= OCT__PROBE_BF16 ? bytes / 2 : bytes;
    for (uint32_t key = 0; key < KEYS; key++)
        for (uint32_t v = 0; v < vectors(); v++) {
            double sum = 0.0, size = 0.0;
            for (uint32_t k = 0; k < n; k++) {
                const double product = value_of(p->a + key * bytes, k, kind) * value_of(p->b.code + v * bytes, k, kind);
                sum += product;
                size += fabs(product);
            }
            const double error = fabs((double)p->d[key * vectors() + v] - sum);
            if (!(error <= bound * size))
                fail_msg("kind %u, key %u, vector %u: %.9g for %.9g", kind, key, v, (double)p->d[key * vectors() + v], sum);
        }
}

static int has(uint32_t kind)
{
    switch (kind) {
    case OCT__PROBE_E4M3FN:
    case OCT__PROBE_SUMS_E4M3FN:
        return simt_fp8(warp, OCT_DTYPE_E4M3FN) >= SIMT_FP8_SLOW;
    case OCT__PROBE_E4M3FNUZ:
    case OCT__PROBE_SUMS_E4M3FNUZ:
        return simt_fp8(warp, OCT_DTYPE_E4M3FNUZ) >= SIMT_FP8_SLOW;
    case OCT__PROBE_FP8_WIDE:
        return simt_fp8(warp, OCT_DTYPE_E4M3FN) >= SIMT_FP8_WIDE;
    default:
        return 1;
    }
}

static void scores(void)
{
    rng r = rng_make(11);
    for (uint32_t kind = OCT__PROBE_F16; kind <= OCT__PROBE_FP8_WIDE; kind++)
        for (int round = 0; has(kind) && round < 4; round++) {
            static probe p;
            fill(&p, kind, &r);
            run(&p, kind);
            judge_scores(&p, kind, kind == OCT__PROBE_I8 ? 0.0 : 1e-5);
        }
}

/* One product of 2^17.6 and others of 1: a sum of fewer than 17 bits would lose these. */
static void sums_are_f32(void)
{
    static const uint32_t kinds[] = { OCT__PROBE_E4M3FN, OCT__PROBE_E4M3FNUZ, OCT__PROBE_FP8_WIDE };
    for (uint32_t i = 0; i < 3; i++) {
        static probe p;
        const uint32_t is_fnuz = kinds[i] == OCT__PROBE_E4M3FNUZ, bytes = kinds[i] == OCT__PROBE_FP8_WIDE ? 128 : 32;
        if (!has(kinds[i]))
            continue;
        memset(p.a, is_fnuz ? 0x40 : 0x38, sizeof p.a);   /* 1 */
        memset(p.b.code, is_fnuz ? 0x40 : 0x38, sizeof p.b.code);
        for (uint32_t row = 0; row < KEYS; row++)
            p.a[row * bytes + row] = is_fnuz ? 0x7F : 0x7E;
        for (uint32_t v = 0; v < vectors(); v++)
            memset(p.b.code + v * bytes, is_fnuz ? 0x7F : 0x7E, KEYS);   /* the largest for whichever column the row's is in, */
        for (uint32_t row = 0; row < KEYS; row++)                         /* and zeros beside it */
            for (uint32_t k = 0; k < KEYS; k++)
                if (k != row)
                    p.a[row * bytes + k] = 0;
        run(&p, kinds[i]);
        judge_scores(&p, kinds[i], 0.0);
    }
}

/* Sums over V. In codes a weight is within 2^-6 of itself, and exact when it is a power of two; by way of f16 within 2^-11. */
static void sums(void)
{
    rng r = rng_make(12);
    for (uint32_t kind = OCT__PROBE_SUMS_E4M3FN; kind <= OCT__PROBE_SUMS_F16; kind++)
        for (int round = 0; has(kind) && round < 6; round++) {
            static probe p;
            const uint32_t dims = 128;   /* a run of 16 by 8 positions, or of 8 by 16 */
            const int is_exact = round < 3;
            fill(&p, kind, &r);
            for (uint32_t i = 0; i < KEYS * vectors(); i++)
                p.b.weight[i] = is_exact ? (rng_below(&r, 4) == 0 ? 0.0f : ldexpf(1.0f, -(int)rng_below(&r, 14))) : (float)rng_unit(&r);
            run(&p, kind);
            for (uint32_t d = 0; d < dims; d++)
                for (uint32_t v = 0; v < vectors(); v++) {
                    double sum = 0.0, size = 0.0;
                    for (uint32_t key = 0; key < KEYS; key++) {
                        const double product = value_of(p.a + key * dims, d, kind) * (double)p.b.weight[key * vectors() + v];
                        sum += product;
                        size += fabs(product);
                    }
                    const double bound = is_exact ? 1e-5 : kind == OCT__PROBE_SUMS_F16 ? 0x1p-11 : 0x1p-6;
                    if (!(fabs((double)p.d[d * vectors() + v] - sum) <= bound * size))
                        fail_msg("kind %u, dim %u, vector %u: %.9g for %.9g", kind, d, v, (double)p.d[d * vectors() + v], sum);
                }
        }
}

/* Weights far apart keep their size down to 2^-28 of the largest, NaN stays, and nothing becomes a NaN of its own. */
static void weights_of_all_sizes(void)
{
    for (uint32_t kind = OCT__PROBE_SUMS_E4M3FN; kind <= OCT__PROBE_SUMS_E4M3FNUZ; kind++) {
        static probe p;
        if (!has(kind))
            continue;
        memset(p.a, kind == OCT__PROBE_SUMS_E4M3FNUZ ? 0x40 : 0x38, sizeof p.a);   /* V is 1 */
        for (uint32_t v = 0; v < vectors(); v++)
            for (uint32_t key = 0; key < KEYS; key++)   /* vector v: all weights 1.3 x 2^-(4 v), those of the last one NaN */
                p.b.weight[key * vectors() + v] = v + 1 == vectors() ? NAN : ldexpf(0.65f + 0.01f * (float)key, -4 * (int)(v < 7 ? v : 7));
        run(&p, kind);
        for (uint32_t v = 0; v + 1 < vectors(); v++) {
            double sum = 0.0;
            for (uint32_t key = 0; key < KEYS; key++)
                sum += (double)p.b.weight[key * vectors() + v];
            if (!(fabs((double)p.d[3 * vectors() + v] - sum) <= (v < 7 ? 0x1p-6 : 0.25) * sum))
                fail_msg("kind %u, vector %u: %.9g for %.9g", kind, v, (double)p.d[3 * vectors() + v], sum);
        }
        assert_true(isnan(p.d[3 * vectors() + vectors() - 1]));
    }
}

int64_t tile_check(uint32_t width)
{
    warp = width;
    n_judged = 0;
    scores();
    sums_are_f32();
    sums();
    weights_of_all_sizes();
    print_message("tile_probe/%u judged on %lld cases\n", (unsigned)warp, (long long)n_judged);
    return n_judged;
}
