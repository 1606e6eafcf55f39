/* test_attn_amxbf16.c: AMX BF16 tiles, with a q that bf16 holds and one that it doesn't: few vectors, and many. */
#define _GNU_SOURCE /* MAP_ANONYMOUS */
#include "cpu/avx512.h"
#include "cpu_avx512/machine.h"
#include "cpu_avx512/tile.h"

enum { FLOATS = TILE_DTYPE(E4M3FN) | TILE_DTYPE(E4M3FNUZ) | TILE_DTYPE(E5M2), HELD = FLOATS | TILE_DTYPE(I8) | TILE_DTYPE(BF16) };

/* Weights are rounded to 2^-9 of themselves, and values are 7 at most. */
static const tile_way ways[] = {
    { "decode", oct__attn_decode__amxbf16, oct__attn_decode_scratch__amxbf16, 20, HELD, HELD, 1.5e-2, 3e-5 },
    { "extend", oct__attn_extend__amxbf16, oct__attn_extend_scratch__amxbf16, 130, HELD, HELD, 1.5e-2, 3e-5 },
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

/* A bf16 cache whose V elements are subnormal, or are in every third row and hardly more in the others: the tiles take such numbers as 0. */
static void test_subnormal_values(void **state)
{
    (void)state;
    const tile_way way = { "subnormal", oct__attn_extend__amxbf16, oct__attn_extend_scratch__amxbf16, 40, HELD, TILE_DTYPE(BF16), 0, 0 };
    for (uint64_t seed = 1; seed <= MACHINE_SEEDS(60); seed++) {
        problem p;
        problem_make(&p, seed * UINT64_C(0xA0761D6478BD642F), &way);
        problem_fill(&p);
        const oct__attn_tile *t = &p.tile;
        const uint32_t n = t->n_rows * t->n_heads, dim = p.spec.dim_v;
        const uint32_t step = 1 + 2 * (uint32_t)(seed % 2);
        for (int64_t key = 0; key < p.kv_len; key++) {
            const int32_t page = p.pages[key / p.spec.page_size];
            for (uint32_t d = 0; d < dim && page >= 0; d++) {
                const int64_t at = oct__v_index(t->kv, page, (uint32_t)(key % p.spec.page_size), t->head_kv, d);
                const uint64_t x = rig_random(&p.seed);
                ((uint16_t *)t->kv->v)[at] = key % step == 0 ? (uint16_t)(x & 0x807F) : (uint16_t)((x & 0x807F) | 0x0080); /* below 2^-126, or from there on */
            }
        }
        run(&p, oct__attn__scalar, oct__attn_scratch__scalar);
        float *expected = rig_alloc((size_t)n * dim * sizeof(float));
        double lse;
        for (uint32_t i = 0; i < n; i++) {
            finish(&p, i, expected + (size_t)i * dim, &lse);
        }
        run(&p, way.attn, way.scratch);
        for (uint32_t i = 0; i < n; i++) {
            float got[512];
            finish(&p, i, got, &lse);
            for (uint32_t d = 0; d < dim; d++) {
                if (!(fabsf(got[d] - expected[(size_t)i * dim + d]) <= 0.02f * 0x1p-126f)) {
                    describe(&p, way.name, seed);
                    fail_msg("vector %u dim %u: %g, scalar %g", i, d, (double)got[d], (double)expected[(size_t)i * dim + d]);
                }
            }
        }
        free(expected);
        problem_free(&p);
    }
}

int main(void)
{
    if (!machine_has(MACHINE_AMX_BF16)) {
        return 77;
    }
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_like_scalar), cmocka_unit_test(test_unseen_bytes), cmocka_unit_test(test_subnormal_values) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
