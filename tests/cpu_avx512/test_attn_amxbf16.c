/* test_attn_amxbf16.c: AMX BF16 tiles, with a q that bf16 holds and one that it doesn't: few vectors, and many. */
#define _GNU_SOURCE /* MAP_ANONYMOUS */
#include "cpu/avx512.h"
#include "cpu_avx512/machine.h"
#include "cpu_avx512/tile.h"

enum { FLOATS = TILE_DTYPE(E4M3FN) | TILE_DTYPE(E4M3FNUZ) | TILE_DTYPE(E5M2), BYTES = FLOATS | TILE_DTYPE(I8) };

/* Weights are rounded to 2^-9 of themselves, and values are 7 at most. */
static const tile_way ways[] = {
    { "decode", oct__attn_decode__amxbf16, oct__attn_decode_scratch__amxbf16, 20, FLOATS, BYTES, 1.5e-2, 3e-5 },
    { "extend", oct__attn_extend__amxbf16, oct__attn_extend_scratch__amxbf16, 130, FLOATS, BYTES, 1.5e-2, 3e-5 },
};
enum { N_WAYS = sizeof(ways) / sizeof(ways[0]) };

static void test_like_scalar(void **state)
{
    (void)state;
    tile_test_like_scalar(ways, N_WAYS, MACHINE_SEEDS(600));
}

static void test_unseen_bytes(void **state)
{
    (void)state;
    tile_test_unseen_bytes(ways, N_WAYS, MACHINE_SEEDS(600));
}

int main(void)
{
    if (!machine_has(MACHINE_AMX_BF16)) {
        return 77;
    }
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_like_scalar), cmocka_unit_test(test_unseen_bytes) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
