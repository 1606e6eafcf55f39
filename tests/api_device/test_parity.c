/* test_parity.c: random problems, writes and merges through the public API on a context of a GPU, against the float64 oracle. Arguments: a device as
 * in gpu.h, then library=PATH, random=N problems from seed=S on, v4=N with V in v4, writes=N, rows=all (every row that a problem's gates let through, instead
 * of one). */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "api/context.h"
#include "api_device/gpu.h"
#include "api_device/run_problem.h"
#include "device/executor.h"
#include "parity/isolate.h"
#include "plan/choose.h"
#include "plan/split.h"

static const char *what, *library;
static int64_t n_random = 60, n_v4 = 16, n_writes = 40, first_seed = 1;
static int all_rows;

/* The GPU of this process: cases run in children, and a driver does not live through a fork. */
static gpu *the_gpu(void)
{
    static gpu g;
    static int is_open;
    oct_error error = OCT_ERROR_INIT;
    if (!is_open && gpu_open(&g, what, library, 1, NULL, &error) != OCT_OK) {
        fprintf(stderr, "%s\n", error.text);
        abort();
    }
    is_open = 1;
    return &g;
}

static const oct__variant *row_of(const gpu *g, const char *full_name)
{
    uint32_t n;
    const oct__variant *rows = oct__variants_of(g->context->machine.device, &n);
    for (uint32_t i = 0; i < n; i++)
        if (strcmp(rows[i].full_name, full_name) == 0)
            return &rows[i];
    return NULL;
}

/* Portable kernels compute in f32; those of the matrix units round q and the weights to 16 bits, which costs less than the law allows. */
static compare_bound bound_of(const gpu *g, const oct_plan_info *info, const problem *p)
{
    const oct__variant *decode = row_of(g, info->decode_variant), *extend = row_of(g, info->extend_variant);
    compare_bound bound = compare_bound_either(compare_bound_of(decode->tolerance), compare_bound_of(extend->tolerance));
    if (extend->tolerance != OCT__TOL_8BIT && (decode->tolerance != OCT__TOL_F32 || extend->tolerance != OCT__TOL_F32)) {
        /* f16 has three bits more than bf16, in q and in the weights, and more than the codes of an 8-bit product (device_check.c). */
        const uint32_t k = p->spec.kv.k.dtype, v = p->spec.kv.v.dtype, warp = g->context->machine.device == OCT__DEVICE_HIP ? 64 : 32;
        const int is_rough = k == OCT_DTYPE_BF16 || v == OCT_DTYPE_BF16 || simt_fp8(warp, k) >= SIMT_FP8_USED || simt_fp8(warp, v) >= SIMT_FP8_USED ||
                             (k == OCT_DTYPE_I8 && p->shape.k_data == DATA_HUGE);
        bound.watch = bound.lse = is_rough ? 1e-2 : 2e-3;
    }
    return bound;
}

/* Whether the problem has rows for an operation of this row. */
static int has_work(const problem *p, oct__op op)
{
    int has = 0;
    for (int64_t b = 0; b < p->shape.n_sequences; b++) {
        const int32_t q_len = p->qo_indptr[b + 1] - p->qo_indptr[b];
        has |= q_len > 0 && (q_len <= (int32_t)OCT__DECODE_ROWS_MAX) == (op == OCT__OP_attn_decode);
    }
    return has;
}

/* Failures; -1: the gates of the forced row refuse the problem. */
static int64_t check_problem(problem *p, const char *force)
{
    gpu *g = the_gpu();
    oct_plan_info info;
    char why[640];
    isolate_doing("%s, forced %s", what, force != NULL ? force : "nothing");
    if (device_run_problem(g->context, g->stream, p, NULL, force, &info, why, sizeof why) != 0) {
        if (force != NULL && strstr(why, "unsupported") != NULL)
            return -1;
        isolate_fail("%s %s", why, g->fake != NULL ? fake_report(g->fake) : "");
        return 1;
    }
    const compare_bound bound = bound_of(g, &info, p);
    const compare_verdict verdict = problem_judge(p, &bound);
    if (has_work(p, OCT__OP_attn_decode))
        isolate_ran(info.decode_variant, verdict.max_error);
    if (has_work(p, OCT__OP_attn_extend))
        isolate_ran(info.extend_variant, verdict.max_error);
    if (!verdict.ok)
        isolate_fail("%s", verdict.text);
    return !verdict.ok;
}

/* Forces the table's rows from `first` on: the first one that has work and is let through, or with rows=all each of them. */
static int64_t check_rows(problem *p, int64_t first)
{
    uint32_t n;
    const oct__variant *rows = oct__variants_of(the_gpu()->context->machine.device, &n);
    int64_t failures = 0;
    for (uint32_t i = 0; i < n; i++) {
        const oct__variant *row = &rows[(first + i) % n];
        if ((row->op != OCT__OP_attn_decode && row->op != OCT__OP_attn_extend) || !has_work(p, row->op))
            continue;
        const int64_t found = check_problem(p, row->full_name);
        if (found >= 0 && !all_rows)
            return found;
        failures += found > 0;
    }
    return failures;
}

static int64_t run_random(void *arg, int64_t index)
{
    problem p;
    char text[PROBLEM_TEXT];
    const problem_shape s = problem_random(first_seed + index);
    (void)arg;
    problem_print(&s, text, sizeof text);
    isolate_repeat("api_device_parity %s random=1 seed=%lld writes=0%s # '%s'", what, (long long)(first_seed + index), all_rows ? " rows=all" : "", text);
    if (problem_make(&p, &s) != 0 || problem_expect(&p) != 0) {
        isolate_fail("the problem could not be made");
        return 1;
    }
    int64_t failures = check_problem(&p, NULL);
    /* Every row gets its turn, whatever the costs say. */
    if (all_rows || index % 4 != 0)
        failures += check_rows(&p, first_seed + index);
    problem_drop(&p);
    return failures;
}

/* Random problems with V in v4, which only the portable rows take: by cost, and each of them by itself. */
static int64_t run_v4(void *arg, int64_t index)
{
    static const char *const rows[] = { "attn_decode.simt4_v4,attn_extend.simt_v4", "attn_decode.simt8_v4,attn_extend.simt_v4", "attn_decode.simt4", "attn_extend.simt" };
    problem p;
    char text[PROBLEM_TEXT];
    const problem_shape s = problem_random_v4(first_seed + 500000 + index);
    (void)arg;
    problem_print(&s, text, sizeof text);
    isolate_repeat("api_device_parity %s random=0 v4=1 seed=%lld writes=0 # '%s'", what, (long long)(first_seed + index), text);
    if (problem_make(&p, &s) != 0 || problem_expect(&p) != 0) {
        isolate_fail("the problem could not be made");
        return 1;
    }
    int64_t failures = check_problem(&p, NULL);
    for (int i = 0; i < 4; i++) {
        const int64_t found = check_problem(&p, rows[i]);
        if ((found < 0) != (i >= 2))
            isolate_fail("%s %s V in v4", rows[i], i < 2 ? "refuses" : "takes");
        failures += i < 2 ? found != 0 : found >= 0;
    }
    problem_drop(&p);
    return failures;
}

/* With rows=all: K and V of different sizes in rows of 256 dims, which random problems seldom have and whose rows of the table would get no turn. */
static int64_t run_mixed(void *arg, int64_t index)
{
    problem p;
    problem_shape s = problem_plain(9000 + index);
    (void)arg;
    s.k_dtype = index % 2 ? OCT_DTYPE_BF16 : OCT_DTYPE_E4M3FN;
    s.v_dtype = index % 2 ? OCT_DTYPE_E4M3FN : OCT_DTYPE_BF16;
    s.k_scale_mode = index % 2 ? OCT_SCALE_NONE : OCT_SCALE_LAYER;
    s.v_scale_mode = index % 2 ? OCT_SCALE_LAYER : OCT_SCALE_NONE;
    s.dim_k = s.dim_v = 256;
    s.heads_q = 4 * s.heads;
    problem_lengths(&s, 3, (int32_t[]){ 1, 2, 1 }, (int32_t[]){ 70, 33, 300 });
    isolate_repeat("api_device_parity %s random=0 writes=0 rows=all", what);
    if (problem_make(&p, &s) != 0 || problem_expect(&p) != 0) {
        isolate_fail("the problem could not be made");
        return 1;
    }
    const int64_t failures = check_rows(&p, 0);
    problem_drop(&p);
    return failures;
}

/* Products of 8 bits over V5D pages where the spec permits them, which random problems seldom may have: the row of the dims and of q's terms, by itself and by cost. */
static int64_t run_8bit(void *arg, int64_t index)
{
    static const char *const rows[] = { "attn_extend.sm90a_e4m3_128_1", "attn_extend.sm90a_e4m3_128_2", "attn_extend.sm90a_e4m3_256_1", "attn_extend.sm90a_e4m3_256_2" };
    problem p;
    problem_shape s = problem_plain(7100 + index);
    (void)arg;
    if (the_gpu()->context->driver->chip.has_sm90a == 0)   /* asked here: a GPU is opened after the fork */
        return 0;
    s.k_dtype = s.v_dtype = OCT_DTYPE_E4M3FN;
    s.k_scale_mode = s.v_scale_mode = OCT_SCALE_LAYER;
    s.layout = OCT_LAYOUT_V5D;
    s.page_size = 16;
    s.heads = 1;
    s.heads_q = 4;
    s.dim_k = s.dim_v = index < 2 ? 128 : 256;
    s.q_dtype = index % 2 == 0 ? OCT_DTYPE_E4M3FN : OCT_DTYPE_BF16;
    s.products = OCT_PRODUCTS_8BIT + index / 2 % 2;
    problem_lengths(&s, 2, (int32_t[]){ 40, 20 }, (int32_t[]){ 300, 41 });
    isolate_repeat("api_device_parity %s, products of 8 bits, %lld", what, (long long)index);
    if (problem_make(&p, &s) != 0 || problem_expect(&p) != 0) {
        isolate_fail("the problem could not be made");
        return 1;
    }
    const int64_t found = check_problem(&p, rows[index]);
    if (found < 0)
        isolate_fail("%s refused", rows[index]);
    const int64_t failures = (found != 0) + (check_problem(&p, NULL) != 0);
    problem_drop(&p);
    return failures;
}

static void products_of_8_bits(void **state)
{
    (void)state;
    assert_int_equal(isolate_run("8bit", 4, 120, run_8bit, NULL), 0);
}

static void random_problems(void **state)
{
    (void)state;
    print_message("%s, seeds %lld to %lld\n", what, (long long)first_seed, (long long)(first_seed + n_random - 1));
    assert_int_equal(isolate_run("problems", n_random, 120, run_random, NULL), 0);
    assert_int_equal(isolate_run("V in v4", n_v4, 120, run_v4, NULL), 0);
    assert_int_equal(isolate_run("mixed", all_rows ? 2 : 0, 120, run_mixed, NULL), 0);
}

/* Neither writes nor merges can be told which row to take: without Hopper's fact its rows' gates refuse. Whether the device has them. */
static int let_own_rows(gpu *g, int is_let)
{
    const int has = g->context->driver->chip.has_sm90a != 0;
    g->context->machine.facts.v[OCT__FACT_DEV_HAS_SM90A] = (uint64_t)(has && is_let);
    return has;
}

/* arg: not NULL for the portable rows alone, where others would be chosen. */
static int64_t run_write(void *arg, int64_t index)
{
    write_case c;
    char text[1024], name[96];
    uint32_t refused;
    gpu *g = the_gpu();
    const int is_v4 = (first_seed + index) % 5 == 4;
    const write_shape s = is_v4 ? write_random_v4(first_seed + index) : write_random(first_seed + index);
    if (!let_own_rows(g, arg == NULL) && arg != NULL)
        return 0;
    write_print(&s, text, sizeof text);
    isolate_doing("oct_kv_write, %s", what);
    isolate_repeat("api_device_parity %s random=0 seed=%lld writes=1 # '%s'", what, (long long)(first_seed + index), text);
    if (write_make(&c, &s) != 0) {
        isolate_fail("the case could not be made");
        return 1;
    }
    int64_t failures = 0;
    write_reset(&c);
    if (device_run_case(g->context, g->stream, &c, &refused, text, sizeof text) != 0 || write_judge(&c, text, sizeof text) != 0) {
        isolate_fail("%s %s", text, g->fake != NULL ? fake_report(g->fake) : "");
        failures++;
    }
    /* Checked: a slot beyond the capacity is told and nothing is written; else all is as before. */
    int has_bad = 0;
    for (int i = 0; i < c.n_pools; i++)
        for (int64_t t = 0; t < c.args.n_tokens; t++)
            has_bad |= c.pool[i].slots[t] >= c.pool[i].layer.n_pages * (int64_t)c.pool[i].layer.spec.page_size;
    write_reset(&c);
    c.args.checked = 1;
    if (device_run_case(g->context, g->stream, &c, &refused, text, sizeof text) != 0) {
        isolate_fail("checked: %s", text);
        failures++;
    } else if (refused != (uint32_t)has_bad) {
        isolate_fail("checked: refused is %u, slots %s beyond the capacity", refused, has_bad ? "are" : "are not");
        failures++;
    } else if (!has_bad && write_judge(&c, text, sizeof text) != 0) {
        isolate_fail("checked: %s", text);
        failures++;
    }
    for (int i = 0; has_bad && i < c.n_pools; i++)
        for (int part = 0; part < 4; part++)
            if (c.pool[i].memory[part].map != NULL && memcmp(c.pool[i].memory[part].at, c.pool[i].before[part], c.pool[i].memory[part].size_bytes) != 0) {
                isolate_fail("checked and refused, but part %d of pool %d was written", part, i);
                failures++;
            }
    const oct__variant *used = oct__choose_write(&g->context->machine, &c.pool[0].layer.spec, c.n_pools > 1 ? &c.pool[1].layer.spec : NULL, c.args.src_dtype, c.args.n_tokens, 1);
    isolate_ran(used->full_name, 0.0);
    snprintf(name, sizeof name, "%s %s", used->full_name, has_bad ? "refused" : "checked");
    isolate_ran(name, 0.0);
    write_drop(&c);
    return failures;
}

static void random_writes(void **state)
{
    (void)state;
    assert_int_equal(isolate_run("writes", n_writes, 60, run_write, NULL), 0);
    if (strstr(what, "hip") == NULL)
        assert_int_equal(isolate_run("portable writes", n_writes, 60, run_write, &n_writes), 0);
}

/* Two halves of a problem's keys and an empty part, merged on the device, against the host's merge of the same numbers. */
static void check_merge(gpu *g)
{
    enum { PARTS = 3, ROWS = 5, HEADS = 3, DIM = 24 };
    oct_context *host;
    assert_int_equal(oct_context_create(NULL, &host, NULL), OCT_OK);
    static float out[PARTS * ROWS * HEADS * DIM], lse[PARTS * ROWS * HEADS], expected[ROWS * HEADS * DIM], expected_lse[ROWS * HEADS], merged[ROWS * HEADS * DIM], merged_lse[ROWS * HEADS];
    rng r = rng_make(77);
    for (int i = 0; i < PARTS * ROWS * HEADS * DIM; i++)
        out[i] = (float)rng_below(&r, 2000) * 0.001f - 1.0f;
    for (int i = 0; i < PARTS * ROWS * HEADS; i++)
        lse[i] = i % 4 == 0 ? -INFINITY : (float)rng_below(&r, 1000) * 0.01f;
    oct_attn_merge_args args = { .struct_size = sizeof args, .n_parts = PARTS, .rows = ROWS, .heads = HEADS, .dim = DIM,
                                 .out = out, .out_part_stride = ROWS * HEADS * DIM, .out_row_stride = HEADS * DIM, .out_head_stride = DIM,
                                 .lse = lse, .lse_part_stride = ROWS * HEADS, .lse_row_stride = HEADS, .lse_head_stride = 1,
                                 .merged = expected, .merged_row_stride = HEADS * DIM, .merged_head_stride = DIM,
                                 .lse_merged = expected_lse, .lse_merged_row_stride = HEADS, .lse_merged_head_stride = 1 };
    assert_int_equal(oct_attn_merge(host, &args), OCT_OK);
    device_arrays a = { .context = g->context, .stream = g->stream };
    args.out = device_send(&a, out, sizeof out, 0);
    args.lse = device_send(&a, lse, sizeof lse, 0);
    args.merged = device_send(&a, merged, sizeof merged, 1);
    args.lse_merged = device_send(&a, merged_lse, sizeof merged_lse, 1);
    args.stream = g->stream;
    assert_int_equal(a.status, OCT_OK);
    assert_int_equal(oct_attn_merge(g->context, &args), OCT_OK);
    assert_int_equal(device_fetch(&a), OCT_OK);
    for (int i = 0; i < ROWS * HEADS * DIM; i++)
        assert_true(fabsf(merged[i] - expected[i]) <= 1e-5f);
    for (int i = 0; i < ROWS * HEADS; i++)
        assert_true(merged_lse[i] == expected_lse[i] || fabsf(merged_lse[i] - expected_lse[i]) <= 1e-5f);
    isolate_ran(oct__choose_merge(&g->context->machine, ROWS, HEADS, DIM, PARTS, 1)->full_name, 0.0);
    oct_context_destroy(host);
}

static void merges(void **state)
{
    gpu *g = the_gpu();
    (void)state;
    let_own_rows(g, 0);
    check_merge(g);
    if (let_own_rows(g, 1))
        check_merge(g);
}

static void every_row_ran(void **state)
{
    (void)state;
    const int has_own = the_gpu()->context->driver->chip.has_sm90a != 0;
    isolate_report();
    /* Hopper without its own kernels would pass all of this. */
    if (strcmp(the_gpu()->context->driver->arch, "sm_90") == 0)
        assert_true(has_own);
    if (n_random < 60)
        skip();
    static const char *const names[] = { "attn_decode.simt4", "attn_decode.simt8", "attn_decode.simt16", "attn_extend.simt", "attn_decode.simt4_v4", "attn_decode.simt8_v4",
                                         "attn_extend.simt_v4", "kv_write.simt refused" };
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        assert_true(isolate_n_ran(names[i]) > 0);
    uint32_t n, n_missing = 0;
    const oct__variant *rows = oct__variants_of(the_gpu()->context->machine.device, &n);
    for (uint32_t i = 0; i < n; i++) {
        const int is_attn = rows[i].op == OCT__OP_attn_decode || rows[i].op == OCT__OP_attn_extend, is_own = strstr(rows[i].full_name, ".sm90a") != NULL;
        if ((is_attn ? all_rows && n_random >= 200 : n_writes > 0) && (has_own || !is_own) && isolate_n_ran(rows[i].full_name) == 0) {
            print_error("%s never ran\n", rows[i].full_name);
            n_missing++;
        }
    }
    assert_int_equal(n_missing, 0);
}

int main(int argc, char **argv)
{
    int usable = argc >= 2;
    what = usable ? argv[1] : "";
    for (int i = 2; i < argc; i++) {
        if (strncmp(argv[i], "library=", 8) == 0)
            library = argv[i] + 8;
        else if (strncmp(argv[i], "random=", 7) == 0)
            n_random = strtoll(argv[i] + 7, NULL, 10);
        else if (strncmp(argv[i], "seed=", 5) == 0)
            first_seed = strtoll(argv[i] + 5, NULL, 10);
        else if (strncmp(argv[i], "v4=", 3) == 0)
            n_v4 = strtoll(argv[i] + 3, NULL, 10);
        else if (strncmp(argv[i], "writes=", 7) == 0)
            n_writes = strtoll(argv[i] + 7, NULL, 10);
        else if (strcmp(argv[i], "rows=all") == 0)
            all_rows = 1;
        else
            usable = 0;
    }
    if (!usable)
        return fprintf(stderr, "usage: api_device_parity fake:cuda|fake:hip|cuda|hip [library=PATH] [random=N] [seed=S] [v4=N] [writes=N] [rows=all]\n"), 2;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_problems),
        cmocka_unit_test(products_of_8_bits),
        cmocka_unit_test(random_writes),
        cmocka_unit_test(merges),   /* in this process: after all forks */
        cmocka_unit_test(every_row_ran),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
