/* test_attn_avx512vnni.c: the ways through an AVX-512 VNNI tile over i8 pages, and with values in f32 and bf16; and that a tail of small
 * weights beside a large one keeps its share, in its own block too. */
#define _GNU_SOURCE /* MAP_ANONYMOUS */
#include "cpu/avx512.h"
#include "cpu_avx512/machine.h"
#include "cpu_avx512/tile.h"
#include "cpu_avx512/ways.h"
#include "cpu_avx2/words.h"

WAYS(word, word, word, oct__avx512_terms_word)
WAYS(word_f32, word, f32, oct__avx512_terms_word)

enum { I8 = TILE_DTYPE(I8) };

/* Half a unit of a q in 15 bits is 2^-15 of its largest element, about 6.4 here: over a key of variance 1 that makes a standard deviation of
 * 1.1e-4 in a score, whatever the dim, so that five of them are allowed. Values are 7 at most. */
static const tile_way ways[] = {
    { "few", few_word, few_scratch_word, 12, I8, I8, 1e-3, 6e-4 },
    { "many", many_word, many_scratch_word, 130, I8, I8, 1e-3, 6e-4 },
    { "few, values in f32", few_word_f32, few_scratch_word_f32, 12, I8, TILE_ALL_DTYPES, 1e-3, 6e-4 },
    { "many, values in f32", many_word_f32, many_scratch_word_f32, 130, I8, TILE_ALL_DTYPES, 1e-3, 6e-4 },
    { "decode", oct__attn_decode__avx512vnni, oct__attn_decode_scratch__avx512vnni, 64, I8, TILE_ALL_DTYPES, 1e-3, 6e-4 },
};
enum { N_WAYS = sizeof(ways) / sizeof(ways[0]) };

static void test_like_scalar(void **state)
{
    (void)state;
    tile_test_like_scalar(ways, N_WAYS, MACHINE_SEEDS(1200));
}

static void test_unseen_bytes(void **state)
{
    (void)state;
    tile_test_unseen_bytes(ways, N_WAYS, MACHINE_SEEDS(1200));
}

/* One key has the weight 1, the others 2^-16 each: below what 15 bits against the largest weight of all would keep, and together half of it.
 * V is 1 at all of them and 0 at the one. */
static void check_tail(oct__attn_fn *attn, oct__attn_scratch_fn *scratch, uint32_t n_rows)
{
    enum { KEYS = 32768, PAGE = 64, DIM = 64 };
    const oct_kv_spec spec = { .struct_size = sizeof(spec), .layout = OCT_LAYOUT_HND, .heads = 1, .dim_k = DIM, .dim_v = DIM, .page_size = PAGE,
                               .k = { OCT_DTYPE_I8, OCT_SCALE_TOKEN_HEAD, OCT_DTYPE_F32, 0 }, .v = { OCT_DTYPE_I8, OCT_SCALE_TOKEN_HEAD, OCT_DTYPE_F32, 0 } };
    rig_layer layer;
    rig_layer_make(&layer, &spec, KEYS / PAGE);
    int32_t *pages = rig_alloc(KEYS / PAGE * sizeof(int32_t));
    for (int i = 0; i < KEYS / PAGE; i++) {
        pages[i] = i;
    }
    memset(layer.k.at, 0, layer.k_bytes);
    memset(layer.v.at, 100, layer.v_bytes);
    for (int i = 0; i < KEYS; i++) {
        ((float *)layer.kv.k_token_scale)[i] = 1.0f;
        ((float *)layer.kv.v_token_scale)[i] = 0.01f;
    }
    const int needle = 20000;
    layer.k.at[needle * DIM] = 100;
    memset(layer.v.at + needle * DIM, 0, DIM);
    const uint32_t n = n_rows;
    float *q = rig_alloc(n * DIM * 4), *o = rig_alloc(n * DIM * 4), *m = rig_alloc(n * 4), *z = rig_alloc(n * 4);
    memset(q, 0, n * DIM * 4);
    for (uint32_t i = 0; i < n; i++) {
        q[i * DIM] = (float)(16 * log(2.0)) / 100;
    }
    const oct__attn_tile tile = { .kv = &layer.kv, .pages = pages, .n_rows = n, .n_heads = 1, .key1 = KEYS, .pos0 = KEYS, .score_scale = 1.0f, .q = q,
                                  .q_stride = DIM, .o = o, .o_stride = DIM, .m = m, .z = z, .scratch = rig_alloc(scratch(&spec, n)) };
    attn(&tile);
    const double tail = (KEYS - 1) * exp2(-16.0), expected = tail / (1 + tail);
    for (uint32_t i = 0; i < n * DIM; i++) {
        const double got = (double)o[i] / (double)z[i / DIM];
        if (fabs(got - expected) > 1e-3) {
            fail_msg("the tail's share is %g, expected %g", got, expected);
        }
    }
    rig_layer_free(&layer);
    free(pages);
    free(q);
    free(o);
    free(m);
    free(z);
    free(tile.scratch);
}

static void test_tail_of_small_weights(void **state)
{
    (void)state;
    check_tail(few_word, few_scratch_word, 3);
    check_tail(many_word, many_scratch_word, 20);
}

static void test_words(void **state)
{
    (void)state;
    for (int i = 0; i < N_WAYS; i++) {
        for (uint32_t n = 1; n <= ways[i].max_vectors && n <= WORDS_VECTORS; n += n < 8 ? 1 : 8) {
            words_check_rest(ways[i].name, ways[i].attn, ways[i].scratch, n);
            words_check_signs(ways[i].name, ways[i].attn, ways[i].scratch, n);
        }
    }
}

static void test_heads_alone(void **state)
{
    (void)state;
    const tile_way few[] = { ways[0], ways[2] };
    tile_test_heads_alone(few, 2, 64);
}

int main(void)
{
    if (!machine_has(MACHINE_AVX512_VNNI)) {
        return 77;
    }
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_like_scalar), cmocka_unit_test(test_unseen_bytes), cmocka_unit_test(test_heads_alone), cmocka_unit_test(test_tail_of_small_weights), cmocka_unit_test(test_words) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
