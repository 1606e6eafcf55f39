/* test_attn_avx512bf16.c: the ways through an AVX-512 BF16 tile, with a q that bf16 holds and one that it doesn't. */
#define _GNU_SOURCE /* MAP_ANONYMOUS */
#include "cpu/avx512.h"
#include "cpu_avx512/machine.h"
#include "cpu_avx512/tile.h"
#include "cpu_avx512/ways.h"

WAYS(bf16, bf16, bf16, oct__avx512_terms_bf16)

enum { FLOATS = TILE_DTYPE(E4M3FN) | TILE_DTYPE(E4M3FNUZ) | TILE_DTYPE(E5M2), BYTES = FLOATS | TILE_DTYPE(I8) };

/* Weights are rounded to 2^-9 of themselves, and values are 7 at most. */
static const tile_way ways[] = {
    { "few", few_bf16, few_scratch_bf16, 12, FLOATS, BYTES, 1.5e-2, 3e-5 },
    { "many", many_bf16, many_scratch_bf16, 130, FLOATS, BYTES, 1.5e-2, 3e-5 },
    { "decode", oct__attn_decode__avx512bf16, oct__attn_decode_scratch__avx512bf16, 64, FLOATS, BYTES, 1.5e-2, 3e-5 },
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
    if (!machine_has(MACHINE_AVX512_BF16)) {
        return 77;
    }
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_like_scalar), cmocka_unit_test(test_unseen_bytes), cmocka_unit_test(test_heads_alone) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
