/* test_row.c: the vectorised row conversions and the rotation give number's bits: every f16 and bf16 code, f32 by all exponents x ties and at random, at
 * odd addresses, and with flush-to-zero set in the thread. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#if defined(__SSE2__)
#include <immintrin.h>
#endif

#include "cpu/probe.h"
#include "cpu/row.h"
#include "number/convert.h"
#include "number/hadamard.h"
#include "number/number.h"
#include "octavo/kv.h"

#define N 4096u

static const oct__row_kernels *row;  /* under test */

static const uint32_t sixteen_bits[] = { OCT_DTYPE_F16, OCT_DTYPE_BF16 };

static void check_bring(void)
{
    static unsigned char src[2 * 65536 + 1];
    static float got[65536], want[65536];
    for (uint32_t i = 0; i < 65536; i++) {
        const uint16_t code = (uint16_t)i;
        memcpy(src + 1 + 2 * i, &code, sizeof code);
    }
    for (size_t t = 0; t < 2; t++) {
        row->bring(got, src + 1, sixteen_bits[t], 65536);
        oct__row_to_f32(want, src + 1, sixteen_bits[t], 65536);
        assert_memory_equal(got, want, sizeof want);
    }
}

static void check_deliver(const float *x, size_t n, float scale)
{
    unsigned char got[4 * N + 1], want[4 * N + 1];
    for (uint32_t dtype = OCT_DTYPE_F32; dtype <= OCT_DTYPE_I8; dtype++) {
        memset(got, 0, sizeof got);
        memset(want, 0, sizeof want);
        row->deliver(got + 1, dtype, x, n, scale);
        oct__row_from_f32(want + 1, dtype, x, n, scale, NULL);
        assert_memory_equal(got, want, sizeof want);
    }
}

static void check_all_deliver(void)
{
    static float x[N];
    size_t n = 0;
    /* Every sign and exponent; mantissas around every tie that 7 and 10 bits have at the ends, and around f16's subnormal ties. */
    for (uint32_t head = 0; head < 512; head++) {
        for (uint32_t shift = 10; shift < 24; shift++) {
            for (uint32_t near = 0; near < 3; near++) {
                for (uint32_t high = 0; high < 2; high++) {
                    const uint32_t tie = (UINT32_C(1) << shift) - 1 + near + (high ? UINT32_C(0x400000) : 0);
                    x[n++] = oct__f32_of_bits((head << 23) | (tie & UINT32_C(0x7FFFFF)));
                    if (n == N) {
                        check_deliver(x, N, 1.0f);
                        n = 0;
                    }
                }
            }
        }
    }
    check_deliver(x, n, 1.0f);
    uint64_t seed = 20240229;
    for (int round = 0; round < 500; round++) {
        for (size_t i = 0; i < N; i++) {
            seed = seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
            x[i] = oct__f32_of_bits((uint32_t)(seed >> 32));
        }
        check_deliver(x, N - (size_t)round % 9, round % 10 == 0 ? 0.37f : 1.0f);
    }
}

static void test_bring(void **state)
{
    (void)state;
    check_bring();
}

static void test_deliver(void **state)
{
    (void)state;
    check_all_deliver();
}

/* Every head dim there is: the steps are grouped otherwise, the bits are the same. */
/* One product each, rounded by itself, at lengths that end within a vector. */
static void test_scale(void **state)
{
    (void)state;
    uint64_t seed = 77;
    float x[67], by[67], all[67], each[67];
    for (size_t i = 0; i < 67; i++) {
        seed = seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        x[i] = (float)(int32_t)(seed >> 32) * 0x1p-20f;
        by[i] = (float)(int32_t)(seed >> 20) * 0x1p-25f;
    }
    for (size_t n = 0; n <= 66; n++) {
        memcpy(all, x, sizeof x);
        memcpy(each, x, sizeof x);
        row->scale(all, 0.7f, n);
        row->scale_each(each, by, n);
        for (size_t i = 0; i < 67; i++) {
            assert_true(all[i] == (i < n ? x[i] * 0.7f : x[i]));
            assert_true(each[i] == (i < n ? x[i] * by[i] : x[i]));
        }
    }
}

static void test_rotate(void **state)
{
    (void)state;
    _Alignas(64) float got[512], want[512];
    uint32_t seed = 1;
    for (size_t dim = 8; dim <= 512; dim += 8) {
        for (size_t i = 0; i < dim; i++) {
            seed = seed * 1664525u + 1013904223u;
            got[i] = want[i] = (float)(int32_t)seed * 0x1p-30f;
        }
        row->rotate(got, dim);
        oct__hadamard_f32(want, dim);
        assert_memory_equal(got, want, dim * sizeof(float));
    }
}

#if defined(__SSE2__)
/* Host programs set these; bits must not move. */
static void test_flush_to_zero(void **state)
{
    (void)state;
    const unsigned int mode = _mm_getcsr();
    _mm_setcsr(mode | 0x8040);
    check_bring();
    check_all_deliver();
    _mm_setcsr(mode);
}
#endif

static int test_kernels(const oct__row_kernels *kernels, const char *name)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bring),
        cmocka_unit_test(test_deliver),
        cmocka_unit_test(test_scale),
        cmocka_unit_test(test_rotate),
#if defined(__SSE2__)
        cmocka_unit_test(test_flush_to_zero),
#endif
    };
    row = kernels;
    return cmocka_run_group_tests_name(name, tests, NULL, NULL);
}

int main(void)
{
    oct__facts facts = { { 0 } };
    char name[128];
    oct__cpu_probe(&facts, name, sizeof name);
    const int failed = test_kernels(&oct__row_plain, "plain");
    if (facts.v[OCT__FACT_CPU_AVX2] == 0 || facts.v[OCT__FACT_CPU_FMA] == 0 || facts.v[OCT__FACT_CPU_F16C] == 0 || facts.v[OCT__FACT_OS_YMM] == 0) {
        printf("skipped: 1 (AVX2, this CPU has none)\n");
        return failed;
    }
    return failed + test_kernels(&oct__row_avx2, "avx2");
}
