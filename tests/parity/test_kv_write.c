/* test_kv_write.c: every row of kv_write against the oracle's nearest values, byte by byte: a covering array of all formats, scale modes,
 * layouts, sources and so on, and random cases. Arguments: random=N cases from seed=S on;
 * only=PATTERN of test names. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "parity/cover.h"
#include "parity/isolate.h"
#include "parity/roster.h"
#include "parity/write_case.h"
#include "test_pattern.h"

enum { ROWS_MAX = 3000 };

static int64_t n_random = 1500, first_seed = 1;

/* dtype, scale mode, scale dtype: every legal format of K or V. */
static const int64_t kv_formats[][3] = {
    { OCT_DTYPE_F32, OCT_SCALE_NONE, 0 },
    { OCT_DTYPE_F16, OCT_SCALE_NONE, 0 },
    { OCT_DTYPE_BF16, OCT_SCALE_NONE, 0 },
    { OCT_DTYPE_E4M3FN, OCT_SCALE_NONE, 0 },
    { OCT_DTYPE_E4M3FN, OCT_SCALE_TENSOR, 0 },
    { OCT_DTYPE_E4M3FN, OCT_SCALE_LAYER, 0 },
    { OCT_DTYPE_E4M3FN, OCT_SCALE_LAYER_HEAD, 0 },
    { OCT_DTYPE_E4M3FN, OCT_SCALE_TOKEN_HEAD, OCT_DTYPE_F32 },
    { OCT_DTYPE_E4M3FN, OCT_SCALE_TOKEN_HEAD, OCT_DTYPE_F16 },
    { OCT_DTYPE_E4M3FN, OCT_SCALE_CHANNEL, 0 },
    { OCT_DTYPE_E4M3FNUZ, OCT_SCALE_NONE, 0 },
    { OCT_DTYPE_E4M3FNUZ, OCT_SCALE_TENSOR, 0 },
    { OCT_DTYPE_E4M3FNUZ, OCT_SCALE_LAYER, 0 },
    { OCT_DTYPE_E4M3FNUZ, OCT_SCALE_LAYER_HEAD, 0 },
    { OCT_DTYPE_E4M3FNUZ, OCT_SCALE_TOKEN_HEAD, OCT_DTYPE_F32 },
    { OCT_DTYPE_E4M3FNUZ, OCT_SCALE_TOKEN_HEAD, OCT_DTYPE_F16 },
    { OCT_DTYPE_E4M3FNUZ, OCT_SCALE_CHANNEL, 0 },
    { OCT_DTYPE_E5M2, OCT_SCALE_NONE, 0 },
    { OCT_DTYPE_E5M2, OCT_SCALE_TENSOR, 0 },
    { OCT_DTYPE_E5M2, OCT_SCALE_LAYER, 0 },
    { OCT_DTYPE_E5M2, OCT_SCALE_LAYER_HEAD, 0 },
    { OCT_DTYPE_E5M2, OCT_SCALE_TOKEN_HEAD, OCT_DTYPE_F32 },
    { OCT_DTYPE_E5M2, OCT_SCALE_TOKEN_HEAD, OCT_DTYPE_F16 },
    { OCT_DTYPE_E5M2, OCT_SCALE_CHANNEL, 0 },
    { OCT_DTYPE_I8, OCT_SCALE_TOKEN_HEAD, OCT_DTYPE_F32 },
    { OCT_DTYPE_I8, OCT_SCALE_TOKEN_HEAD, OCT_DTYPE_F16 },
    { OCT_DTYPE_I8, OCT_SCALE_CHANNEL, 0 },
};

static const int64_t pages[] = { 1, 2, 5, 16, 64 };
static const int64_t dims[][2] = { { 64, 64 }, { 16, 16 }, { 24, 40 }, { 72, 80 }, { 80, 72 }, { 96, 96 }, { 112, 104 }, { 128, 128 }, { 192, 128 }, { 256, 512 } };
static const int64_t sources[] = { OCT_DTYPE_F32, OCT_DTYPE_F16, OCT_DTYPE_BF16 };
static const int64_t ropes[][3] = { { 0, 0, 0 }, { 1, 0, 0 }, { 2, 0, 0 }, { 1, 1, 1 }, { 2, 1, 1 } };   /* style, part of the dims only, factors */
static const int64_t strides[] = { 0, 3, 12, 15 };

#define COUNT(array) ((int)(sizeof(array) / sizeof((array)[0])))

enum feature { K_FORMAT, V_FORMAT, ROTATED, LAYOUT, PAGE, DIMS, HEADS, SOURCE, ROPE, WINDOW, SLOTS, STRIDES, OFFSET, DATA, COUNTS, GUARD, FEATURES };

static const int n_values[FEATURES] = {
    [K_FORMAT] = COUNT(kv_formats), [V_FORMAT] = COUNT(kv_formats), [ROTATED] = 4, [LAYOUT] = 3, [PAGE] = COUNT(pages), [DIMS] = COUNT(dims), [HEADS] = 3,
    [SOURCE] = COUNT(sources), [ROPE] = COUNT(ropes), [WINDOW] = 2, [SLOTS] = 3, [STRIDES] = COUNT(strides), [OFFSET] = 3, [DATA] = WRITE_LARGE + 1,
    [COUNTS] = 2, [GUARD] = 2,
};

static unsigned char rows[ROWS_MAX][COVER_FEATURES];

static int64_t run_cover(void *arg, int64_t index)
{
    const unsigned char *row = rows[index];
    write_shape s = write_plain(1000000 + index);
    (void)arg;
    s.k_dtype = kv_formats[row[K_FORMAT]][0], s.k_scale_mode = kv_formats[row[K_FORMAT]][1], s.k_scale_dtype = kv_formats[row[K_FORMAT]][2];
    s.v_dtype = kv_formats[row[V_FORMAT]][0], s.v_scale_mode = kv_formats[row[V_FORMAT]][1], s.v_scale_dtype = kv_formats[row[V_FORMAT]][2];
    s.k_rotated = row[ROTATED] & 1;
    s.v_rotated = row[ROTATED] >> 1;
    s.layout = row[LAYOUT];
    s.page_size = pages[row[PAGE]];
    s.dim_k = dims[row[DIMS]][0];
    s.dim_v = dims[row[DIMS]][1];
    if (s.layout == OCT_LAYOUT_V5D) {
        s.page_size = (s.page_size + 15) / 16 * 16;
        s.dim_k = (s.dim_k + 15) / 16 * 16;
    }
    s.n_pages = 2 + 36 / s.page_size;
    s.n_tokens = 17 + index % 8;
    s.heads = (int64_t[]){ 1, 3, 8 }[row[HEADS]];
    s.src_dtype = sources[row[SOURCE]];
    s.rope = ropes[row[ROPE]][0];
    s.rope_dims = ropes[row[ROPE]][1] ? s.dim_k / 2 : s.dim_k;
    s.rope_factors = ropes[row[ROPE]][2];
    s.window = row[WINDOW];
    s.slots = row[SLOTS];
    s.strides = strides[row[STRIDES]];
    s.base_offset = row[OFFSET] == 1 ? 1 : row[OFFSET] == 2 ? 4 : 0;
    s.source_offset = row[OFFSET] == 1 ? 3 : row[OFFSET] == 2 ? 1 : 0;
    s.data = row[DATA];
    s.counts = row[COUNTS];
    s.guard_start = row[GUARD];
    return write_check(&s);
}

static void every_pair_of_features(void **state)
{
    (void)state;
    const int n = cover_make(FEATURES, n_values, 11, ROWS_MAX, rows);
    assert_true(n > 0);
    print_message("covering array: %d cases\n", n);
    assert_int_equal(isolate_run("features", n, 60, run_cover, NULL), 0);
}

static int64_t run_random(void *arg, int64_t index)
{
    (void)arg;
    const write_shape s = write_random(first_seed + index);
    return write_check(&s);
}

/* Random cases with V in v4, both destinations. */
static int64_t run_v4(void *arg, int64_t index)
{
    (void)arg;
    const write_shape s = write_random_v4(first_seed + 500000 + index);
    return write_check(&s);
}

static void v_in_4_bits(void **state)
{
    (void)state;
    assert_int_equal(isolate_run("v4", n_random / 8, 60, run_v4, NULL), 0);
}

static void random_cases(void **state)
{
    (void)state;
    print_message("seeds %lld to %lld\n", (long long)first_seed, (long long)(first_seed + n_random - 1));
    assert_int_equal(isolate_run("random", n_random, 60, run_random, NULL), 0);
}

static void every_variant_ran(void **state)
{
    (void)state;
    isolate_report();
    assert_true(roster_all_ran(OCT__OP_kv_write, n_random / 4));
}

int main(int argc, char **argv)
{
    const char *only = "*";
    for (int i = 1; i < argc; i++) {
        if (strncmp(argv[i], "random=", 7) == 0)
            n_random = strtoll(argv[i] + 7, NULL, 10);
        else if (strncmp(argv[i], "seed=", 5) == 0)
            first_seed = strtoll(argv[i] + 5, NULL, 10);
        else if (strncmp(argv[i], "only=", 5) == 0)
            only = argv[i] + 5;
        else
            return fprintf(stderr, "usage: parity_kv_write [random=N] [seed=S] [only=PATTERN]\n"), 2;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_pair_of_features),
        cmocka_unit_test(v_in_4_bits),
        cmocka_unit_test(random_cases),
        cmocka_unit_test(every_variant_ran),
    };
    if (!test_pattern(tests, sizeof(tests) / sizeof(tests[0]), only))
        return 2;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
