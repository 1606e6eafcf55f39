/* test_tiles.c: the models of AMX's tiles against the instructions, bit for bit, on a machine that has them. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#include "cpu_avx512/machine.h"
#include "simde/tile_calls.h"

enum { STRIDE_MAX = 320, BYTES = 16 * STRIDE_MAX, N_PRODUCTS = 3 };
static const int product_tiles[N_PRODUCTS][3] = { { 0, 4, 6 }, { 3, 5, 7 }, { 1, 4, 7 } };

static uint64_t random_bits(uint64_t *seed)
{
    uint64_t x = *seed += UINT64_C(0x9E3779B97F4A7C15);
    x = (x ^ (x >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94D049BB133111EB);
    return x ^ (x >> 31);
}

/* Operands of several kinds: any bits; numbers of about one size, which cancel; zeros and subnormals among small numbers; sizes whose products are
 * subnormal or nearly so; large ones. */
static uint16_t random_bf16(uint64_t *seed, uint32_t kind)
{
    const uint64_t x = random_bits(seed);
    switch (kind) {
    case 0:
        return (uint16_t)x;
    case 1:
        return (uint16_t)((x & 0x80FF) | 0x3F00);
    case 2:
        return (uint16_t)((x & 0x8000) | ((x >> 16) % 3 == 0 ? x & 0x7F : (x >> 16) % 3 == 1 ? 0 : 0x2000 + (x & 0x3FFF)));
    case 3:
        return (uint16_t)((x & 0x807F) | (30 + (x >> 16) % 40) << 7);
    default:
        return (uint16_t)((x & 0x807F) | (185 + (x >> 16) % 16) << 7);
    }
}

static int same(const uint8_t *a, const uint8_t *b)
{
    for (int i = 0; i < 1024; i += 4) {
        float x, y;
        memcpy(&x, a + i, 4);
        memcpy(&y, b + i, 4);
        if (memcmp(a + i, b + i, 4) != 0 && !(isnan(x) && isnan(y))) {
            return 0;
        }
    }
    return 1;
}

static void test_products(void **state)
{
    uint64_t seed = 1;
    uint32_t n_finite = 0;
    (void)state;
    for (int trial = 0; trial < 3000; trial++) {
        const uint32_t kind = (uint32_t)trial % 5;
        const int *tiles = product_tiles[trial % N_PRODUCTS];
        _Alignas(64) uint8_t in[3][1024], got[1024], expected[1024];
        for (int t = 0; t < 3; t++) {
            for (int i = 0; i < 512; i++) {
                uint16_t word = random_bf16(&seed, kind);
                if (t == 0 && i % 2 == 0) { /* the low half of an f32 */
                    word = (uint16_t)random_bits(&seed);
                }
                memcpy(in[t] + 2 * i, &word, 2);
            }
        }
        const tile_calls *const sets[2] = { &simde_tile_calls, &native_tile_calls };
        for (int s = 0; s < 2; s++) {
            sets[s]->configure();
            for (int t = 0; t < 3; t++) {
                sets[s]->load(tiles[t], in[t], 64);
            }
            sets[s]->product(trial % N_PRODUCTS);
            sets[s]->product(trial % N_PRODUCTS); /* onto a sum */
            sets[s]->store(tiles[0], s == 0 ? got : expected, 64);
            sets[s]->release();
        }
        for (int i = 0; i < 1024; i += 4) {
            float x;
            memcpy(&x, expected + i, 4);
            n_finite += isfinite(x) != 0;
        }
        if (!same(got, expected)) {
            fail_msg("trial %d: the model's product is not the instruction's", trial);
        }
    }
    print_message("%u finite sums of 3000 products\n", n_finite);
    assert_true(n_finite > 3000 * 256 / 2);
}

/* Loads and stores with rows apart, zeros, and what a configuration leaves in the tiles. */
static void test_moves(void **state)
{
    uint64_t seed = 2;
    (void)state;
    for (int trial = 0; trial < 300; trial++) {
        const size_t from_stride = 64 + 16 * (random_bits(&seed) % 17), to_stride = 64 + 16 * (random_bits(&seed) % 17);
        const int tile = (int)(random_bits(&seed) % 8), what = trial % 3;
        static _Alignas(64) uint8_t from[BYTES], got[BYTES], expected[BYTES];
        for (int i = 0; i < BYTES; i++) {
            from[i] = (uint8_t)random_bits(&seed);
            got[i] = expected[i] = (uint8_t)i;
        }
        const tile_calls *const sets[2] = { &simde_tile_calls, &native_tile_calls };
        for (int s = 0; s < 2; s++) {
            sets[s]->configure();
            if (what != 0) {
                sets[s]->load(tile, from, from_stride);
            }
            if (what == 1) {
                sets[s]->zero((tile + 1) % 8);
                sets[s]->zero(trial % 2 == 0 ? tile : (tile + 2) % 8);
            }
            sets[s]->store(tile, s == 0 ? got : expected, to_stride);
            sets[s]->release();
        }
        assert_memory_equal(got, expected, BYTES);
    }
}

int main(void)
{
    if (!machine_has(MACHINE_AMX_BF16)) {
        return 77;
    }
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_products), cmocka_unit_test(test_moves) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
