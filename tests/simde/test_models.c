/* test_models.c: the models of AVX-512 intrinsics against the instructions, bit for bit, on a machine that has them. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "cpu_avx512/machine.h"
#include "simde/calls.h"

static uint64_t random_bits(uint64_t *seed)
{
    uint64_t x = *seed += UINT64_C(0x9E3779B97F4A7C15);
    x = (x ^ (x >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94D049BB133111EB);
    return x ^ (x >> 31);
}

static float float_of(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof(x));
    return x;
}

/* Floats of every kind, with many of about one size, halves to round, and the odd values. */
static float random_float(uint64_t *seed)
{
    static const float odd[] = { 0.0f, -0.0f, INFINITY, -INFINITY, NAN, 1.0f, -1.0f, 0x1p-149f, 0x1p-126f, 65504.0f, 65520.0f, 0x1p31f, -0x1p31f, 3.4e38f };
    const uint64_t x = random_bits(seed);
    switch (x >> 60) {
    case 0:
        return odd[x % (sizeof(odd) / sizeof(odd[0]))];
    case 1:
    case 2:
        return float_of((uint32_t)x);
    case 3:
        return (float)(int32_t)(x & 0xFFFF) * 0.5f - 16384.0f;
    case 4: /* a tie of bf16 or of f16, or beside one */
        return float_of(((uint32_t)x & 0xBFFF0000u) + ((x >> 32 & 1) != 0 ? 0x8000u : 0x1000u) + (uint32_t)(x >> 33 & 1));
    default:
        return (float)((double)(int64_t)(x << 4) * 0x1p-62);
    }
}

static void fill(const call *c, uint8_t (*in)[64], uint64_t *seed)
{
    for (int r = 0; r < 3; r++) {
        for (int i = 0; i < 16; i++) {
            uint32_t bits = (uint32_t)random_bits(seed);
            float x = float_of(bits);
            if (c->domain == CALL_FLOATS || c->domain == CALL_NUMBERS) {
                x = random_float(seed);
                if (c->domain == CALL_NUMBERS && !(fabsf(x) < 1e30f)) {
                    x = 1.0f;
                }
            } else if (c->domain == CALL_SCALES && r < 2) { /* what exp2 gives it: near 1, and whole numbers that keep it normal */
                x = r == 0 ? 0.75f + (float)(bits >> 8) * 0x1p-24f : (float)((int32_t)(bits % 250) - 125);
            }
            memcpy(in[r] + 4 * i, &x, sizeof(x));
        }
    }
}

static int same(const call *c, const uint8_t *a, const uint8_t *b)
{
    for (int i = 0; i < 64; i += 4) {
        uint32_t x, y;
        memcpy(&x, a + i, sizeof(x));
        memcpy(&y, b + i, sizeof(y));
        if (x != y && !(c->is_float && isnan(float_of(x)) && isnan(float_of(y)))) {
            return 0;
        }
    }
    return 1;
}

static void test_models_are_the_instructions(void **state)
{
    int n = 0;
    (void)state;
    for (; simde_calls[n].name != NULL; n++) {
        const call *model = &simde_calls[n], *native = &native_calls[n];
        uint64_t seed = (uint64_t)n * 1000 + 1;
        assert_string_equal(model->name, native->name);
        for (int trial = 0; trial < 4000; trial++) {
            uint8_t in[3][64], got[64] = { 0 }, expected[64] = { 0 };
            fill(model, in, &seed);
            model->run((const uint8_t(*)[64])in, got);
            native->run((const uint8_t(*)[64])in, expected);
            if (!same(model, got, expected)) {
                int i = 0;
                while (got[i] == expected[i]) {
                    i++;
                }
                i = i / 4 * 4;
                uint32_t x[5];
                memcpy(&x[0], got + i, 4), memcpy(&x[1], expected + i, 4), memcpy(&x[2], in[0] + i, 4), memcpy(&x[3], in[1] + i, 4), memcpy(&x[4], in[2] + i, 4);
                fail_msg("%s, trial %d, word %d: the model gives %08x, the instruction %08x; inputs %08x %08x %08x", model->name, trial, i / 4, x[0], x[1], x[2],
                         x[3], x[4]);
            }
        }
    }
    print_message("%d intrinsics\n", n);
}

int main(void)
{
    if (!machine_has(MACHINE_AVX512_BF16) || !machine_has(MACHINE_AVX512_VNNI)) {
        return 77;
    }
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_models_are_the_instructions) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
