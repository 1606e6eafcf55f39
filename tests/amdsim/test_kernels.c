/* test_kernels.c: every kernel of src/device as the compiler made it for one AMD chip, run by the simulator on small problems and held to the same
 * oracle as everything else. The last test prints, and looks, that every kernel ran and how much of its code did. Arguments: attn=N and write=N problems
 * (of each kind), seed=S. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "amdsim/door.h"
#include "device/device_check.h"
#include "device/plan_check.h"
#include "device/tile_check.h"

enum { WARP = 64, REASON_BYTES = 640 };

static int64_t n_attn = 60, n_write = 120, first_seed = 1;

static void all_code_is_known(void **state)
{
    const simt_kernel *kernel;
    int unknown = 0;
    (void)state;
    for (uint32_t i = 0; (kernel = simt_nth(WARP, i)) != NULL; i++) {
        const sim_kernel *code = door_kernel(kernel->name);
        if (code == NULL)
            print_message("%s has no %s\n", door_assembly(), kernel->name);
        else if (sim_kernel_error(code)[0] != 0)
            print_message("%s\n", sim_kernel_error(code));
        unknown += code == NULL || sim_kernel_error(code)[0] != 0;
    }
    assert_int_equal(unknown, 0);
}

/* ---- attention ------------------------------------------------------------------------------------------------------------------------ */

typedef struct format { int64_t dtype, mode, scale_dtype; } format;

static const format formats[] = {
    { OCT_DTYPE_E4M3FN, OCT_SCALE_LAYER, 0 }, { OCT_DTYPE_E4M3FNUZ, OCT_SCALE_LAYER_HEAD, 0 }, { OCT_DTYPE_E5M2, OCT_SCALE_LAYER, 0 },
    { OCT_DTYPE_I8, OCT_SCALE_TOKEN_HEAD, OCT_DTYPE_F32 }, { OCT_DTYPE_BF16, OCT_SCALE_NONE, 0 }, { OCT_DTYPE_F16, OCT_SCALE_NONE, 0 },
};
enum { FORMATS = 6 };
static const int64_t dims[] = { 128, 256, 64 };

/* What once went wrong. First: an s_barrier at a loop's head that LDS writes of the loop's end reached without a wait (simt_amd.h). */
static const char *const kept[] = {
    "seed=66,heads_q=2,dim_k=128,dim_v=128,k_dtype=5,k_scale_mode=3,v_dtype=6,q_dtype=6,out_dtype=6,mask=1,deterministic=1,with_lse=0,n_sequences=3,compressed=1,"
    "page_none=1,poison=3,v_data=8,score_deviation=3,softcap=1,q_len=1:64:0,kv_len=300:64:5",
};

static int64_t run_kept(void *arg, int64_t index)
{
    problem_shape s;
    (void)arg;
    if (problem_parse(&s, kept[index]) != 0) {
        isolate_fail("no problem: %s", kept[index]);
        return 1;
    }
    return device_check_attn(WARP, &s);
}

/* One in three is whatever problem_random makes; of the others formats and dims follow a list, so that every kernel of the matrix units has its turn,
 * and the lengths are short. */
static int64_t run_attn(void *arg, int64_t index)
{
    static const int32_t q_lens[4][3] = { { 1, 1, 1 }, { 2, 1, 4 }, { 20, 1, 33 }, { 1, 64, 0 } }, kv_lens[4][3] = { { 40, 1, 90 }, { 33, 130, 7 }, { 50, 16, 33 }, { 300, 64, 5 } };
    problem_shape s = problem_random(first_seed + index);
    (void)arg;
    if (index % 3 != 0) {
        const int64_t i = index / 3 * 2 + index % 3 - 1;
        const format *k = &formats[i % FORMATS], *v = i / FORMATS % 2 == 0 ? k : &formats[(i + 1 + i / FORMATS % (FORMATS - 1)) % FORMATS];
        s.k_dtype = k->dtype, s.k_scale_mode = k->mode, s.k_scale_dtype = k->scale_dtype;
        s.v_dtype = v->dtype, s.v_scale_mode = v->mode, s.v_scale_dtype = v->scale_dtype;
        s.dim_k = s.dim_v = dims[(i + i / FORMATS + i / (3 * FORMATS)) % 3];
        s.layout = i % 5 == 0 ? OCT_LAYOUT_HND : OCT_LAYOUT_NHD;
        s.heads = 1 + i % 2;
        s.heads_q = s.heads * (int64_t[]){ 4, 1, 8, 16, 5, 7, 2 }[i % 7];
        s.split_tokens = i % 4 == 1 ? 32 : 0;
        problem_lengths(&s, 3, q_lens[i % 4], kv_lens[i % 4]);
    }
    return device_check_attn(WARP, &s);
}

/* V in v4 on the kernels that take it alone: every format of K, each way of a row that random problems seldom have, short lengths. */
enum { V4_PROBLEMS = 14 };

static int64_t run_v4(void *arg, int64_t index)
{
    static const int32_t q_lens[4][3] = { { 1, 1, 3 }, { 2, 1, 18 }, { 20, 1, 4 }, { 1, 33, 0 } }, kv_lens[4][3] = { { 40, 1, 90 }, { 33, 70, 20 }, { 50, 16, 9 }, { 130, 40, 5 } };
    static const format f32 = { OCT_DTYPE_F32, OCT_SCALE_NONE, 0 };
    const format *k = index % (FORMATS + 1) == FORMATS ? &f32 : &formats[index % (FORMATS + 1)];
    problem_shape s = problem_random_v4(first_seed + 2 * index + 1);
    (void)arg;
    s.k_dtype = k->dtype, s.k_scale_mode = k->mode, s.k_scale_dtype = k->scale_dtype;
    s.dim_k = index % 4 == 3 ? 80 : 128;
    s.dim_v = (int64_t[]){ 128, 32, 96, 256 }[index % 4];
    s.heads = 1 + index % 2;
    s.heads_q = s.heads * (index % 3 == 0 ? 4 : index % 3 == 1 ? 8 : 12);
    problem_lengths(&s, 3, q_lens[index % 4], kv_lens[index % 4]);
    return device_check_attn(WARP, &s);
}

/* Small problems chosen for the ways that random ones seldom go, on the matrix units' kernels alone: of each size of K and V and both widths, rows that come
 * by ordinary loads, pages of odd sizes and of nobody, soft caps, sinks, masks, windows, scales of every kind, and codes that are no numbers beside rows that do
 * not see them, of each format of V. */
enum { EIGHT_BITS = 4, SIXTEEN_BITS = 2, WAYS = 10, SIZES = 4, WIDTHS = 2 };

static int64_t run_mma(void *arg, int64_t index)
{
    static const int64_t eight[EIGHT_BITS] = { OCT_DTYPE_E4M3FN, OCT_DTYPE_E4M3FNUZ, OCT_DTYPE_E5M2, OCT_DTYPE_I8 }, sixteen[SIXTEEN_BITS] = { OCT_DTYPE_BF16, OCT_DTYPE_F16 };
    const int64_t way = index % WAYS, size = index / WAYS % SIZES, is_wide = index / (WAYS * SIZES);
    const int k_is_16 = size >= 2, v_is_16 = size % 2 == 1, has_extend = k_is_16 == v_is_16;
    problem_shape s = problem_plain(400 + index);
    (void)arg;
    s.heads = 1 + way % 2;
    s.heads_q = s.heads * (way == 2 ? 20 : way == 0 ? 1 : 5);
    s.dim_k = s.dim_v = is_wide ? 256 : 128;
    s.k_dtype = k_is_16 ? sixteen[way % SIXTEEN_BITS] : eight[way % EIGHT_BITS];
    s.v_dtype = v_is_16 ? sixteen[(way + way / 2) % SIXTEEN_BITS] : eight[way % EIGHT_BITS];
    s.k_scale_mode = k_is_16 ? OCT_SCALE_NONE : s.k_dtype == OCT_DTYPE_I8 || way == 1 ? OCT_SCALE_TOKEN_HEAD : way == 4 ? OCT_SCALE_CHANNEL : OCT_SCALE_LAYER;
    s.v_scale_mode = v_is_16 ? OCT_SCALE_NONE : s.v_dtype == OCT_DTYPE_I8 || way == 1 ? OCT_SCALE_TOKEN_HEAD : way == 5 ? OCT_SCALE_CHANNEL : OCT_SCALE_LAYER_HEAD;
    s.k_scale_dtype = s.k_scale_mode == OCT_SCALE_TOKEN_HEAD ? (way == 1 ? OCT_DTYPE_F16 : OCT_DTYPE_F32) : 0;
    s.v_scale_dtype = s.v_scale_mode == OCT_SCALE_TOKEN_HEAD ? (way == 1 ? OCT_DTYPE_F16 : OCT_DTYPE_F32) : 0;
    s.k_rotated = way == 1;
    s.q_dtype = way % 3 == 0 ? OCT_DTYPE_F32 : OCT_DTYPE_BF16;
    s.out_dtype = (int64_t[]){ OCT_DTYPE_F32, OCT_DTYPE_BF16, OCT_DTYPE_F16, OCT_DTYPE_E4M3FN, OCT_DTYPE_E4M3FNUZ, OCT_DTYPE_E5M2 }[way % 6];
    s.split_tokens = way == 1 ? 32 : 0;
    problem_lengths(&s, has_extend ? 3 : 2, (int32_t[]){ 2, 1, 20 }, (int32_t[]){ 21, way == 3 ? 40 : 9, 24 });
    if (way > 5)   /* codes of all kinds, one way with a window and a mask beside */
        s.k_data = DATA_NORMAL, s.v_data = DATA_CODES;
    switch (way) {
    case 1:
        s.softcap = 20.0;
        s.sink = SINK_RANDOM;
        break;
    case 2:
        s.mask = 1;
        s.page_size = 5;
        s.page_none = 1;
        break;
    case 3:
        s.base_offset = 3;
        s.window = 7;
        s.dim_v = is_wide ? 72 : 40;
        break;
    case 4:
        s.layout = OCT_LAYOUT_V5D;
        s.page_size = 16;
        s.causal = 0;
        break;
    case 5:
        s.layout = OCT_LAYOUT_HND;
        s.compressed = 1;
        s.dim_k = s.dim_v = is_wide ? 136 : 24;
        break;
    case 7:
        s.mask = 1;
        s.window = 9;
        break;
    default:
        break;
    }
    return device_check_attn_of(WARP, &s, DEVICE_MMA);
}

/* Codes that are no numbers in V, of each format beside K of 8 and of 16 bits, and in K of those whose conversion looks for them. */
static void hidden_codes(void **state)
{
    static const struct { uint32_t dtype, code; } planted[] = {
        { OCT_DTYPE_E4M3FN, 0x7F }, { OCT_DTYPE_E4M3FNUZ, 0x80 }, { OCT_DTYPE_E5M2, 0x7C }, { OCT_DTYPE_BF16, 0x7FC0 }, { OCT_DTYPE_F16, 0xFC00 } };
    (void)state;
    for (int i = 0; i < 40; i++) {
        const int at = i / 8, is_wide = i % 2, is_other = i / 2 % 2, is_extend = i / 4 % 2;   /* other: K of the other size; extends have one size */
        device_hidden hidden = { .k_dtype = planted[at].dtype, .v_dtype = planted[at].dtype, .code = planted[at].code, .dim = is_wide ? 136 : 64,
                                 .n_rows = is_extend ? 20 : 2, .is_new = 1, .is_in_k = is_extend && is_other, .is_everywhere = 1 };
        char why[REASON_BYTES];
        if (is_other && !is_extend)
            hidden.k_dtype = at < 3 ? OCT_DTYPE_BF16 : OCT_DTYPE_E5M2;
        if (hidden.is_in_k && at >= 3)
            continue;
        hidden.n_rows = hidden.is_in_k ? 2 : hidden.n_rows;
        if (device_check_hidden(device_check_rig(WARP), &hidden, why, sizeof why) != 0)
            fail_msg("%s", why);
    }
}

static void fragments(void **state)
{
    (void)state;
    assert_true(tile_check(WARP) > 20);
}

static void attention(void **state)
{
    (void)state;
    print_message("seeds %lld to %lld\n", (long long)first_seed, (long long)(first_seed + n_attn - 1));
    assert_int_equal(isolate_run("attention", n_attn, 60, run_attn, NULL), 0);
    assert_int_equal(isolate_run("V in v4", V4_PROBLEMS, 60, run_v4, NULL), 0);
    assert_int_equal(isolate_run("matrix units", WAYS * SIZES * WIDTHS, 60, run_mma, NULL), 0);
    assert_int_equal(isolate_run("kept", sizeof kept / sizeof kept[0], 60, run_kept, NULL), 0);
}

/* ---- writes and merges ------------------------------------------------------------------------------------------------------------------ */

static int64_t run_write(void *arg, int64_t index)
{
    (void)arg;
    const write_shape s = write_random(first_seed + index);
    return device_check_write(WARP, &s);
}

static int64_t run_write_v4(void *arg, int64_t index)
{
    (void)arg;
    const write_shape s = write_random_v4(first_seed + index);
    return device_check_write(WARP, &s);
}

static void writes(void **state)
{
    (void)state;
    assert_int_equal(isolate_run("writes", n_write, 60, run_write, NULL), 0);
    assert_int_equal(isolate_run("writes of v4", n_write / 3, 60, run_write_v4, NULL), 0);
}

/* kv_check: one slot beyond its pool, and nothing at all is written. */
static void checked_writes(void **state)
{
    (void)state;
    assert_int_equal(device_check_checked_writes(device_check_rig(WARP)), 0);
}

/* Three parts of contiguous rows, one of them empty; the rest is for the program of tests/device. */
static void merges(void **state)
{
    enum { PARTS = 3, ROWS = 5, HEADS = 2, DIM = 24, VECTORS = ROWS * HEADS };
    float parts[PARTS * VECTORS * DIM], lse[PARTS * VECTORS], merged[VECTORS * DIM], lse_merged[VECTORS];
    double expected[VECTORS * DIM], expected_lse[VECTORS], v_max[VECTORS];
    char why[REASON_BYTES];
    rng r = rng_make(77);
    (void)state;
    for (int i = 0; i < PARTS * VECTORS * DIM; i++)
        parts[i] = (float)rng_normal(&r);
    for (int i = 0; i < PARTS * VECTORS; i++)
        lse[i] = i / VECTORS == 1 ? -INFINITY : (float)(3.0 * rng_normal(&r));
    device_merge m = { .out_elements = PARTS * VECTORS * DIM, .lse_elements = PARTS * VECTORS, .merged_elements = VECTORS * DIM, .lse_merged_elements = VECTORS };
    m.args = (oct_attn_merge_args){ .struct_size = sizeof m.args, .n_parts = PARTS, .rows = ROWS, .heads = HEADS, .dim = DIM, .out = parts, .lse = lse,
        .out_part_stride = VECTORS * DIM, .out_row_stride = HEADS * DIM, .out_head_stride = DIM, .lse_part_stride = VECTORS, .lse_row_stride = HEADS,
        .lse_head_stride = 1, .merged = merged, .lse_merged = lse_merged, .merged_row_stride = HEADS * DIM, .merged_head_stride = DIM,
        .lse_merged_row_stride = HEADS, .lse_merged_head_stride = 1 };
    oracle_init();
    oracle_merge(&m.args, expected, expected_lse, v_max);
    const int bad = device_run_merge(device_check_rig(WARP), &m, why, sizeof why);
    if (bad)
        print_message("%s\n", why);
    assert_int_equal(bad, 0);
    for (int i = 0; i < VECTORS * DIM; i++)
        assert_true(fabs((double)merged[i] - expected[i]) <= 1e-6 * v_max[i / DIM]);
    for (int i = 0; i < VECTORS; i++)
        assert_true(fabs((double)lse_merged[i] - expected_lse[i]) <= 1e-6 * (1.0 + fabs(expected_lse[i])));
    print_message("attn_merge/%u judged on 1 cases\n", (unsigned)WARP);
}

/* The kernel that oct_rates_measure times: all words are read, and copied. */
static void measures(void **state)
{
    enum { STEPS = 3, WORDS = STEPS * OCT__MEASURE_STEP / 4 };
    static uint32_t words[WORDS], back[WORDS];
    device_rig *rig = device_check_rig(WARP);
    const size_t n_left = (size_t)oct__dev_measure_words(&rig->chip);
    uint32_t *left = malloc(n_left * 4);
    (void)state;
    assert_non_null(left);
    rng r = rng_make(78);
    for (int i = 0; i < WORDS; i++)
        words[i] = (uint32_t)rng_below(&r, UINT32_MAX);
    for (int copies = 0; copies < 2; copies++) {
        unsigned char *from = simt_alloc(rig->device, sizeof words, "from"), *to = copies ? simt_alloc(rig->device, sizeof words, "to") : NULL;
        uint32_t *there = simt_alloc(rig->device, n_left * 4, "left"), all = 0;
        oct__measure_params params;
        oct__dev_launch launch;
        simt_report report;
        assert_int_equal(simt_copy_in(rig->device, from, words, sizeof words), 0);
        assert_int_equal(simt_fill(rig->device, there, 0, n_left * 4), 0);
        oct__dev_pack_measure(&rig->chip, from, to, there, STEPS, false, &params, &launch);
        if (device_launch(rig, &launch, &params, &report) != SIMT_OK)
            fail_msg("%s", report.text);
        assert_int_equal(simt_copy_out(rig->device, left, there, n_left * 4), 0);
        for (size_t i = 0; i < n_left; i++)
            all ^= left[i];
        for (int i = 0; i < WORDS; i++)
            all ^= words[i];
        assert_int_equal(all, 0);
        if (to != NULL) {
            assert_int_equal(simt_copy_out(rig->device, back, to, sizeof words), 0);
            assert_memory_equal(back, words, sizeof words);
        }
        simt_free(rig->device, from);
        simt_free(rig->device, to);
        simt_free(rig->device, there);
    }
    free(left);
    print_message("measure/%u judged on 2 cases\n", (unsigned)WARP);
}

/* plan_step on its own: of few sequences teams of lanes share each, of many a lane has several; windows, rows that see all keys, splits chosen and fixed;
 * and capacities into which splits fit only once they have grown, or nothing does. */
static void plans(void **state)
{
    static const struct { int64_t seed; uint32_t n; int32_t longest, least; double scale; uint32_t status; } cases[] = {
        { 1, 3, 5000, 0, 1.0, OCT__DEV_PLAN_OK },  { 3, 300, 3000, 0, 1.0, OCT__DEV_PLAN_OK },        { 4, 20, 5000, 0, 1.0, OCT__DEV_PLAN_OK },
        { 5, 10, 3000, 0, 1.0, OCT__DEV_PLAN_OK }, { 5, 10, 3000, 3000, 0.1, OCT__DEV_PLAN_COARSER }, { 0, 30, 20000, 0, 0.01, OCT__DEV_PLAN_FULL },
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        plan_case s = { .spec = plan_case_spec(cases[i].seed) };
        rng r = rng_make((uint64_t)cases[i].seed + 9100);
        plan_case_fill(&s, &r, cases[i].n, cases[i].longest);
        for (uint32_t b = 0; b < s.n; b++)
            s.kv_len[b] = s.kv_len[b] < cases[i].least ? cases[i].least : s.kv_len[b];
        const oct__dev_step_limits limits = plan_case_limits(&s);
        plan_case_run(WARP, &s, &limits, cases[i].scale);
        assert_int_equal(s.plan.status, cases[i].status);
        if (s.plan.status != OCT__DEV_PLAN_FULL)
            plan_case_check(&s);
        plan_case_drop(&s);
    }
    print_message("plan_step/%u judged on %zu cases\n", (unsigned)WARP, sizeof cases / sizeof cases[0]);
}

static void every_kernel_ran(void **state)
{
    enum { REACHED_PERCENT = 60 };   /* of a kernel's code; doc/KERNELS.md has what is left */
    const simt_kernel *kernel;
    int idle = 0;
    (void)state;
    isolate_report();
    for (uint32_t i = 0; (kernel = simt_nth(WARP, i)) != NULL; i++) {
        const door_tally t = door_tally_of(i);
        print_message("%s %-28s %5llu launches, %10llu instructions, %3.0f %% of its %zu reached\n", door_arch(), kernel->name, (unsigned long long)t.launches,
                      (unsigned long long)t.instructions, t.n_all == 0 ? 0.0 : 100.0 * (double)t.n_reached / (double)t.n_all, t.n_all);
        idle += t.launches == 0 || t.n_reached * 100 < t.n_all * REACHED_PERCENT;
    }
    assert_int_equal(idle, 0);
}

/* ---- waits taken from the compiler's code ----------------------------------------------------------------------------------------------- */

/* A kernel and what launches it: a write, or decode and extend in splits. k_16: bf16; v_form: 1, bf16, 2, v4; else e4m3. */
typedef struct waited {
    const char *name;
    int is_write, has_mma, heads_q, dim, k_16, v_form;
    size_t n_tries;
} waited;

static int run_once(const waited *w, char *why)
{
    device_rig *rig = device_check_rig(WARP);
    int bad;
    if (w->is_write) {
        write_case c;
        write_shape s = write_plain(7);
        if (w->v_form == 2)
            s.v_dtype = OCT_DTYPE_V4, s.v_scale_mode = OCT_SCALE_NONE;
        if (write_make(&c, &s) != 0)
            return -1;
        write_reset(&c);
        bad = device_run_write(rig, &c, why, REASON_BYTES);
        write_drop(&c);
        return bad;
    }
    problem p;
    problem_shape s = problem_plain(9);
    s.heads = 1;
    s.heads_q = w->heads_q;
    s.dim_k = s.dim_v = w->dim;
    if (w->k_16)
        s.k_dtype = OCT_DTYPE_BF16, s.k_scale_mode = OCT_SCALE_NONE;
    if (w->v_form == 1)
        s.v_dtype = OCT_DTYPE_BF16, s.v_scale_mode = OCT_SCALE_NONE;
    if (w->v_form == 2)
        s.v_dtype = OCT_DTYPE_V4, s.v_scale_mode = OCT_SCALE_NONE;
    s.split_tokens = 32;
    problem_lengths(&s, 3, (int32_t[]){ 1, 2, 20 }, (int32_t[]){ 70, 20, 50 });
    if (problem_make(&p, &s) != 0)
        return -1;
    rig->chip.has_mma = (uint32_t)w->has_mma;
    bad = device_run_attn(rig, &p, NULL, NULL, why, REASON_BYTES);
    rig->chip.has_mma = 0;
    problem_drop(&p);
    return bad;
}

/* Of the waits that a kernel reaches in one problem, up to n_tries evenly spaced ones are left out, one at a time. Not every one is needed on the way that
 * this problem takes (the compiler waits for all ways there are), but most are; each that shows must name the kernel, and with none left out all is well. */
static void missing_waits(void **state)
{
    static const waited where[] = {
        { "kv_write", 1, 0, 0, 0, 0, 0, 16 }, { "plan_step", 0, 0, 8, 128, 0, 0, 16 }, { "attn_finish", 0, 0, 8, 128, 0, 0, 16 },
        { "attn_decode_8", 0, 0, 8, 128, 0, 0, 16 }, { "attn_decode_4", 0, 0, 4, 128, 0, 0, 4 }, { "attn_decode_16", 0, 0, 16, 128, 0, 0, 4 },
        { "attn_extend", 0, 0, 8, 128, 0, 0, 16 }, { "attn_decode_v4_4", 0, 0, 4, 128, 0, 2, 8 }, { "attn_decode_v4_8", 0, 0, 8, 128, 0, 2, 8 },
        { "attn_extend_v4", 0, 0, 8, 128, 0, 2, 16 }, { "kv_write_v4", 1, 0, 0, 0, 0, 2, 16 }, { "attn_decode_mma_8_8_128", 0, 1, 8, 128, 0, 0, 16 }, { "attn_extend_mma_8_8_128", 0, 1, 8, 128, 0, 0, 16 },
        { "attn_decode_mma_8_8_256", 0, 1, 8, 256, 0, 0, 4 }, { "attn_decode_mma_8_16_128", 0, 1, 8, 128, 0, 1, 4 },
        { "attn_decode_mma_16_8_128", 0, 1, 8, 128, 1, 0, 4 }, { "attn_decode_mma_16_16_128", 0, 1, 8, 128, 1, 1, 4 },
        { "attn_decode_mma_8_16_256", 0, 1, 8, 256, 0, 1, 4 }, { "attn_decode_mma_16_8_256", 0, 1, 8, 256, 1, 0, 4 },
        { "attn_decode_mma_16_16_256", 0, 1, 8, 256, 1, 1, 4 }, { "attn_extend_mma_8_8_256", 0, 1, 8, 256, 0, 0, 4 },
        { "attn_extend_mma_16_16_128", 0, 1, 8, 128, 1, 1, 4 }, { "attn_extend_mma_16_16_256", 0, 1, 8, 256, 1, 1, 4 },
    };
    (void)state;
    for (size_t i = 0; i < sizeof where / sizeof where[0]; i++) {
        const sim_kernel *kernel = door_kernel(where[i].name);
        char why[REASON_BYTES];
        assert_non_null(kernel);
        const size_t n = sim_kernel_size(kernel);
        unsigned char *reached = calloc(n, 1);
        size_t *waits = calloc(n, sizeof *waits), n_waits = 0, n_tried = 0, n_found = 0;
        assert_non_null(reached);
        assert_non_null(waits);
        sim_watch(door_program(), kernel, reached);
        assert_int_equal(run_once(&where[i], why), 0);
        sim_watch(door_program(), kernel, NULL);
        for (size_t at = 0; at < n; at++)
            if (reached[at] && sim_plant(door_program(), kernel, at, 0) == 0)
                waits[n_waits++] = at;
        assert_true(n_waits > 0);
        for (size_t w = 0; w < where[i].n_tries && w < n_waits; w++, n_tried++) {
            const size_t at = waits[n_waits <= where[i].n_tries ? w : w * n_waits / where[i].n_tries];
            sim_plant(door_program(), kernel, at, 1);
            if (run_once(&where[i], why) != 0) {
                if (strstr(why, "missing wait") == NULL || strstr(why, where[i].name) == NULL)
                    print_message("%s\n", why);
                assert_non_null(strstr(why, "missing wait"));
                assert_non_null(strstr(why, where[i].name));
                n_found++;
            }
            sim_plant(door_program(), kernel, at, 0);
        }
        print_message("%s %-28s %zu of %zu waits left out show\n", door_arch(), where[i].name, n_found, n_tried);
        assert_true(2 * n_found > n_tried);
        free(reached);
        free(waits);
    }
}

int main(int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        if (strncmp(argv[i], "attn=", 5) == 0)
            n_attn = strtoll(argv[i] + 5, NULL, 10);
        else if (strncmp(argv[i], "write=", 6) == 0)
            n_write = strtoll(argv[i] + 6, NULL, 10);
        else if (strncmp(argv[i], "seed=", 5) == 0)
            first_seed = strtoll(argv[i] + 5, NULL, 10);
        else
            return fprintf(stderr, "usage: amdsim_kernels_%s [attn=N] [write=N] [seed=S]\n", door_arch()), 2;
    }
    if (door_assembly()[0] == 0)
        return printf("amdsim_kernels_%s: no clang for AMD here (tools/setup/zig.sh fetches it)\n", door_arch()), 77;
    if (door_program() == NULL || door_count() != 0)
        return fprintf(stderr, "the target device_code makes it\n"), 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_code_is_known),
        cmocka_unit_test(fragments),
        cmocka_unit_test(attention),
        cmocka_unit_test(hidden_codes),
        cmocka_unit_test(writes),
        cmocka_unit_test(checked_writes),
        cmocka_unit_test(merges),
        cmocka_unit_test(measures),
        cmocka_unit_test(plans),
        cmocka_unit_test(every_kernel_ran),
        cmocka_unit_test(missing_waits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
