/* test_measure.c: the pieces of work of src/cpu/measure_avx512*.c and measure_amxbf16.c, compiled through SIMDe: each counts what it did and leaves
 * the result of just that work in its sink. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "cpu/measure.h"

enum { LINE = 64, LINES = 64 };

typedef struct memory {
    _Alignas(LINE) uint8_t bytes[LINES * LINE];
} memory;

/* A line of each value, at the places 0, 1, 2 ... of the eight lines that a turn reads; all others are zeros. */
static oct__measure_work fill(memory *m, const uint8_t *values, int n)
{
    memset(m->bytes, 0, sizeof(m->bytes));
    for (int i = 0; i < n; i++) {
        memset(m->bytes + i * 17 % LINES * LINE, values[i], LINE);
    }
    return (oct__measure_work){ .from = m->bytes, .bytes = sizeof(m->bytes) };
}

static int32_t bits_of(float x)
{
    int32_t bits;
    memcpy(&bits, &x, sizeof(bits));
    return bits;
}

static void assert_work(oct__measure_fn *fn, const oct__measure_work *work, double done, double result, double slack)
{
    float sink = 0;
    assert_true(fn(work, &sink) == done);
    if (!(fabs((double)sink - result) <= slack)) {
        fail_msg("the sink has %.9g, not %.9g", (double)sink, result);
    }
}

/* A load left out leaves a bit out: of each line of one stream, and of each of four streams, a fourth of the bytes apart. */
static void test_read(void **state)
{
    static const uint8_t bits[] = { 1, 2, 4, 8, 16, 32, 64, 128 };
    memory m;
    oct__measure_work work = fill(&m, bits, (int)sizeof(bits));
    (void)state;
    for (int way = 0; way < OCT__MEASURE_READS; way++) {
        static _Alignas(LINE) uint8_t far[OCT__MEASURE_STREAMS][sizeof(m.bytes)];
        if (oct__measure_read_streams(way) == 1) {
            assert_work(oct__measure_read__avx512[way], &work, sizeof(m.bytes), -1, 0);
            continue;
        }
        for (int s = 0; s < OCT__MEASURE_STREAMS; s++) {   /* two of the eight values in each stream */
            for (int i = 0; i < LINES; i++) {
                memset(far[s] + i * LINE, 0, LINE);
            }
            memset(far[s] + (2 * s) * 17 % LINES * LINE, bits[2 * s], LINE);
            memset(far[s] + (2 * s + 1) * 17 % LINES * LINE, bits[2 * s + 1], LINE);
        }
        work = (oct__measure_work){ .from = far[0], .bytes = sizeof(far), .stride = sizeof(far[0]) };
        assert_work(oct__measure_read__avx512[way], &work, sizeof(far), -1, 0);
    }
}

static void test_copy(void **state)
{
    memory from, to;
    (void)state;
    for (size_t i = 0; i < sizeof(from.bytes); i++) {
        from.bytes[i] = (uint8_t)(i * 31 + i / 256);
    }
    memset(to.bytes, 0, sizeof(to.bytes));
    const oct__measure_work work = { .from = from.bytes, .to = to.bytes, .bytes = sizeof(from.bytes) };
    assert_work(oct__measure_copy_cached__avx512, &work, 2.0 * sizeof(from.bytes), 1, 0);
    assert_memory_equal(from.bytes, to.bytes, sizeof(from.bytes));
}

static void test_convert(void **state)
{
    static const uint8_t e4m3[] = { 0x38, 0x49, 0x52 }, i8[] = { 1, 77, 0x64 };
    static const float values[] = { 1.0f, 4.5f, 10.0f };
    memory m;
    oct__measure_work work = fill(&m, e4m3, 3);
    int32_t expected = bits_of(values[0]) | bits_of(values[1]) | bits_of(values[2]);
    (void)state;
    assert_work(oct__measure_convert__avx512, &work, sizeof(m.bytes), (float)expected, 0);
    work = fill(&m, i8, 3);
    expected = bits_of(1.0f) | bits_of(77.0f) | bits_of(100.0f);
    assert_work(oct__measure_convert_i8__avx512, &work, sizeof(m.bytes), (float)expected, 0);
}

static void test_multiply_add(void **state)
{
    const double done = (double)OCT__MEASURE_TURNS * OCT__MEASURE_N_CHAINS * 2;
    double total = 0;
    (void)state;
    for (int i = 0; i < OCT__MEASURE_N_CHAINS; i++) { /* x * 0.999 + 0.001 goes to 1 */
        total += 1 + (i - 1) * pow(0.999, OCT__MEASURE_TURNS);
    }
    assert_work(oct__measure_fma__avx512, NULL, done * 16, total, 1e-3);
}

static void test_products(void **state)
{
    const double turns = OCT__MEASURE_TURNS, chains = OCT__MEASURE_N_CHAINS, firsts = chains * (chains - 1) / 2;
    (void)state;
    assert_work(oct__measure_dot_bf16, NULL, turns * chains * 32 * 2, chains * turns * 2 * 0x1p-14 + firsts, 0);
    assert_work(oct__measure_dot_i8, NULL, turns * chains * 64 * 2, chains * turns * 4 * 9 + firsts, 0);
    /* Tiles of zeros; the model of tiles ends the program where they are not configured. */
    assert_work(oct__measure_dot_amx, NULL, 1024.0 * 4 * 16 * 16 * 32 * 2, 0, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_read),
        cmocka_unit_test(test_copy), cmocka_unit_test(test_convert), cmocka_unit_test(test_multiply_add),
                                        cmocka_unit_test(test_products) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
