/* test_kv_write.c: kv_write and kv_check at one warp width against the oracle, byte by byte: a covering array of all formats, scale modes, layouts
 * and sources, and random cases. Arguments: 32 or 64, sm90a for Hopper's own kernel (with 32), then random=N cases from seed=S on. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "device/device_check.h"
#include "parity/cover.h"

enum { ROWS_MAX = 3000 };

static uint32_t warp, is_sm90a;
static int64_t n_random = 300, first_seed = 1;

/* Not before the forks of isolate.h: a GPU's driver does not follow them. */
static device_rig *rig_of_kernel(void)
{
    device_rig *rig = device_check_rig(warp);
    if (rig != NULL)
        rig->chip.has_sm90a = is_sm90a;
    return rig;
}

static int64_t check(const write_shape *shape)
{
    (void)rig_of_kernel();
    return device_check_write(warp, shape);
}

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
    { OCT_DTYPE_E4M3FNUZ, OCT_SCALE_LAYER_HEAD, 0 },
    { OCT_DTYPE_E4M3FNUZ, OCT_SCALE_TOKEN_HEAD, OCT_DTYPE_F32 },
    { OCT_DTYPE_E4M3FNUZ, OCT_SCALE_TOKEN_HEAD, OCT_DTYPE_F16 },
    { OCT_DTYPE_E4M3FNUZ, OCT_SCALE_CHANNEL, 0 },
    { OCT_DTYPE_E5M2, OCT_SCALE_NONE, 0 },
    { OCT_DTYPE_E5M2, OCT_SCALE_LAYER, 0 },
    { OCT_DTYPE_E5M2, OCT_SCALE_TOKEN_HEAD, OCT_DTYPE_F32 },
    { OCT_DTYPE_E5M2, OCT_SCALE_TOKEN_HEAD, OCT_DTYPE_F16 },
    { OCT_DTYPE_E5M2, OCT_SCALE_CHANNEL, 0 },
    { OCT_DTYPE_I8, OCT_SCALE_TOKEN_HEAD, OCT_DTYPE_F32 },
    { OCT_DTYPE_I8, OCT_SCALE_TOKEN_HEAD, OCT_DTYPE_F16 },
    { OCT_DTYPE_I8, OCT_SCALE_CHANNEL, 0 },
};

static const int64_t pages[] = { 1, 2, 5, 16, 64 };
static const int64_t dims[][2] = { { 64, 64 }, { 16, 16 }, { 24, 40 }, { 72, 80 }, { 80, 72 }, { 96, 96 }, { 112, 104 }, { 128, 128 }, { 192, 128 }, { 256, 512 }, { 512, 256 } };
static const int64_t sources[] = { OCT_DTYPE_F32, OCT_DTYPE_F16, OCT_DTYPE_BF16 };
static const int64_t ropes[][3] = { { 0, 0, 0 }, { 1, 0, 0 }, { 2, 0, 0 }, { 1, 1, 1 }, { 2, 1, 1 } };   /* style, part of the dims only, factors */
static const int64_t strides[] = { 0, 3, 12, 15 };

#define COUNT(array) ((int)(sizeof(array) / sizeof((array)[0])))

enum feature { K_FORMAT, V_FORMAT, ROTATED, LAYOUT, PAGE, DIMS, HEADS, SOURCE, ROPE, WINDOW, SLOTS, STRIDES, OFFSET, DATA, COUNTS, FEATURES };

static const int n_values[FEATURES] = {
    [K_FORMAT] = COUNT(kv_formats), [V_FORMAT] = COUNT(kv_formats), [ROTATED] = 4, [LAYOUT] = 3, [PAGE] = COUNT(pages), [DIMS] = COUNT(dims), [HEADS] = 3,
    [SOURCE] = COUNT(sources), [ROPE] = COUNT(ropes), [WINDOW] = 2, [SLOTS] = 3, [STRIDES] = COUNT(strides), [OFFSET] = 3, [DATA] = WRITE_LARGE + 1,
    [COUNTS] = 2,
};

static unsigned char rows[ROWS_MAX][COVER_FEATURES];

static int64_t run_cover(void *arg, int64_t index)
{
    const unsigned char *row = rows[index];
    write_shape s = write_plain(3000000 + index);
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
    s.n_pages = 2 + 24 / s.page_size;
    s.n_tokens = 9 + index % 8;
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
    return check(&s);
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
    return check(&s);
}

static int64_t run_v4(void *arg, int64_t index)
{
    (void)arg;
    const write_shape s = write_random_v4(first_seed + index);
    return check(&s);
}

static void random_cases(void **state)
{
    (void)state;
    print_message("seeds %lld to %lld\n", (long long)first_seed, (long long)(first_seed + n_random - 1));
    assert_int_equal(isolate_run("random", n_random, 60, run_random, NULL), 0);
    assert_int_equal(isolate_run("random, V in v4", is_sm90a ? 0 : n_random / 4, 60, run_v4, NULL), 0);   /* which Hopper's own refuses */
    isolate_report();
}

/* So many tokens that one block takes all heads of each: a warp turns one vector of K after the other in the same shared memory. */
static int64_t run_crowded(void *arg, int64_t index)
{
    write_shape s = write_plain(60 + index);
    (void)arg;
    s.heads = 8;
    s.n_tokens = 120;
    s.n_pages = 10;
    s.page_size = 16;
    s.rope = 1 + index % 2;
    s.rope_dims = s.dim_k;
    return check(&s);
}

static void blocks_of_many_vectors(void **state)
{
    (void)state;
    assert_int_equal(isolate_run("crowded", 2, 60, run_crowded, NULL), 0);
}

/* What Hopper has kernels of their own for, from few tokens (one a lane) to many (two), with values that such a kernel leaves to its other way too. */
static const struct own_form { int64_t dtype, mode, rotated, is_v5d; } own_forms[] = {
    { OCT_DTYPE_E4M3FN, OCT_SCALE_LAYER, 0, 0 }, { OCT_DTYPE_E4M3FN, OCT_SCALE_LAYER_HEAD, 0, 0 }, { OCT_DTYPE_E4M3FN, OCT_SCALE_NONE, 0, 0 },
    { OCT_DTYPE_E4M3FN, OCT_SCALE_TOKEN_HEAD, 0, 0 }, { OCT_DTYPE_E4M3FN, OCT_SCALE_TOKEN_HEAD, 1, 0 }, { OCT_DTYPE_I8, OCT_SCALE_TOKEN_HEAD, 0, 0 },
    { OCT_DTYPE_I8, OCT_SCALE_TOKEN_HEAD, 1, 0 }, { OCT_DTYPE_BF16, OCT_SCALE_NONE, 0, 0 }, { OCT_DTYPE_F16, OCT_SCALE_NONE, 0, 0 },
    { OCT_DTYPE_E4M3FN, OCT_SCALE_LAYER, 0, 1 }, { OCT_DTYPE_E4M3FN, OCT_SCALE_LAYER_HEAD, 0, 1 }, { OCT_DTYPE_E4M3FN, OCT_SCALE_NONE, 0, 1 },
};
enum { OWN_TOKENS = 2, OWN_SOURCES = 2 };

static int64_t run_own(void *arg, int64_t index)
{
    const struct own_form *f = &own_forms[index / (OWN_TOKENS * OWN_SOURCES * (WRITE_LARGE + 1))];
    write_shape s = write_plain(70 + index);
    (void)arg;
    s.data = index % (WRITE_LARGE + 1);
    index /= WRITE_LARGE + 1;
    s.n_tokens = index % OWN_TOKENS == 0 ? 7 : 50;
    s.src_dtype = index / OWN_TOKENS % OWN_SOURCES == 0 ? OCT_DTYPE_BF16 : OCT_DTYPE_F16;
    s.layout = f->is_v5d ? OCT_LAYOUT_V5D : s.data % 2 == 0 ? OCT_LAYOUT_NHD : OCT_LAYOUT_HND;
    s.heads = s.n_tokens == 7 ? 3 : 8;
    s.dim_k = 128;
    s.dim_v = s.n_tokens == 7 ? 80 : 128;
    s.page_size = s.n_tokens != 7 ? 16 : f->is_v5d ? 32 : 5;
    s.n_pages = 9;
    s.slots = f->is_v5d ? s.data % 3 : 2;
    s.counts = 0;
    s.k_dtype = s.v_dtype = f->dtype;
    s.k_scale_mode = s.v_scale_mode = f->mode;
    s.k_scale_dtype = s.v_scale_dtype = f->mode == OCT_SCALE_TOKEN_HEAD ? OCT_DTYPE_F32 : 0;
    s.k_rotated = f->rotated;
    return check(&s);
}

static void forms_of_their_own(void **state)
{
    (void)state;
    assert_int_equal(isolate_run("forms", COUNT(own_forms) * OWN_TOKENS * OWN_SOURCES * (WRITE_LARGE + 1), 60, run_own, NULL), 0);
    isolate_report();
}

/* A checked write with one slot beyond its pool writes nothing at all; with the slots in order it writes everything. */
static void checked_writes(void **state)
{
    (void)state;
    assert_int_equal(device_check_checked_writes(rig_of_kernel()), 0);
}

int main(int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        if (strncmp(argv[i], "random=", 7) == 0)
            n_random = strtoll(argv[i] + 7, NULL, 10);
        else if (strcmp(argv[i], "sm90a") == 0)
            is_sm90a = 1;
        else if (strncmp(argv[i], "seed=", 5) == 0)
            first_seed = strtoll(argv[i] + 5, NULL, 10);
        else
            warp = (uint32_t)strtoul(argv[i], NULL, 10);
    }
    if ((warp != 32 && warp != 64) || (is_sm90a && warp != 32))
        return fprintf(stderr, "usage: device_kv_write 32|64 [sm90a] [random=N] [seed=S]\n"), 2;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_pair_of_features),
        cmocka_unit_test(random_cases),
        cmocka_unit_test(blocks_of_many_vectors),
        cmocka_unit_test(forms_of_their_own),
        cmocka_unit_test(checked_writes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
