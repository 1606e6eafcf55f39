/* test_attn_avx512.c: the ways through an AVX-512 tile. */
#define _GNU_SOURCE /* MAP_ANONYMOUS */
#include "cpu/avx512.h"
#include "cpu_avx512/machine.h"
#include "cpu_avx512/tile.h"
#include "cpu_avx512/ways.h"

WAYS(f32, f32, f32, terms_f32)

static const tile_way ways[] = {
    { "few", few_f32, few_scratch_f32, 12, TILE_ALL_DTYPES, TILE_ALL_DTYPES, 1e-5, 1e-5 },
    { "many", many_f32, many_scratch_f32, 130, TILE_ALL_DTYPES, TILE_ALL_DTYPES, 1e-5, 1e-5 },
    { "decode", oct__attn_decode__avx512, oct__attn_decode_scratch__avx512, 64, TILE_ALL_DTYPES, TILE_ALL_DTYPES, 1e-5, 1e-5 },
};
enum { N_WAYS = sizeof(ways) / sizeof(ways[0]) };

static void test_like_scalar(void **state)
{
    (void)state;
    tile_test_like_scalar(ways, N_WAYS, MACHINE_SEEDS(900));
}

static void test_unseen_bytes(void **state)
{
    (void)state;
    tile_test_unseen_bytes(ways, N_WAYS, MACHINE_SEEDS(900));
}

static void test_heads_alone(void **state)
{
    (void)state;
    const tile_way few[] = { ways[0] };
    tile_test_heads_alone(few, 1, 64);
}

int main(void)
{
    if (!machine_has(MACHINE_AVX512_VBMI)) {
        return 77;
    }
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_like_scalar), cmocka_unit_test(test_unseen_bytes), cmocka_unit_test(test_heads_alone) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
