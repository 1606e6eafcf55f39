/* test_large.c: public faults of size on a context of a GPU, through the public API, over every row that takes the problem: pools past 2^32 bytes (E1), batches
 * past 65,535 sequences (E3), bits that batch mates don't change (I3), long contexts (J1). Over the stand-in the same tests run small. Arguments: a device as in
 * gpu.h, then library=PATH, pages=N of the pool, sequences=N of the batch, keys=N of the long context, only=PATTERN of a case's name. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "api/context.h"
#include "api_device/gpu.h"
#include "api_device/run_problem.h"
#include "parity/compare.h"
#include "test_pattern.h"

enum { ROWS_MAX = 64 };

static const char *what, *library;
static gpu g;
static int64_t n_pool_pages = 8401239, n_batch = 70000, n_keys = 1 << 20;   /* of E1, E3 and J1 */

static void must(oct_status status, const char *doing)
{
    if (status != OCT_OK)
        fail_msg("%s: %s %s", doing, oct_status_name(status), g.fake != NULL ? fake_report(g.fake) : "");
}

/* The device's rows of decode, or of extend. */
static uint32_t rows_of(oct__op op, const oct__variant *rows[ROWS_MAX])
{
    uint32_t n_all, n = 0;
    const oct__variant *all = oct__variants_of(g.context->machine.device, &n_all);
    for (uint32_t i = 0; i < n_all && n < ROWS_MAX; i++)
        if (all[i].op == op)
            rows[n++] = &all[i];
    return n;
}

/* Runs on one row. 0: it does not take the problem. */
static int runs_on(problem *p, const oct__variant *row)
{
    char why[640];
    if (device_run_problem(g.context, g.stream, p, NULL, row->full_name, NULL, why, sizeof why) == 0)
        return 1;
    if (strstr(why, "unsupported") == NULL)
        fail_msg("%s: %s %s", row->full_name, why, g.fake != NULL ? fake_report(g.fake) : "");
    return 0;
}

/* By the row's bound, or by the wider one of matrix units where the other operation's row was the plan's to choose. */
static void judge(const problem *p, const oct__variant *row, int has_both)
{
    const compare_bound bound = has_both ? compare_bound_of(OCT__TOL_16BIT) : compare_bound_for(row);
    const compare_verdict verdict = problem_judge(p, &bound);
    if (!verdict.ok)
        fail_msg("%s: %s", row->full_name, verdict.text);
}

/* ---- E1 ------------------------------------------------------------------------------------------------------------------------- */

/* Four requests over one-token pages of a small pool, then over the same bytes in pages far up in a large one, K and V of n_pool_pages * 512 bytes each:
 * the same bits. */
static void E1_pools_past_4_gib(void **state)
{
    enum { HEADS = 8, DIM = 64, ROW = HEADS * DIM, USED = 512 };
    (void)state;
    problem_shape s = problem_plain(600);
    problem p;
    device_problem d;
    oct_error error = OCT_ERROR_INIT;
    s.heads_q = s.heads = HEADS;
    s.page_size = 1;
    problem_lengths(&s, 4, (int32_t[]){ 17, 1, 128, 1 }, (int32_t[]){ 128, 128, 128, 128 });
    assert_int_equal(problem_make(&p, &s), 0);
    assert_int_equal(problem_expect(&p), 0);
    void *far_k, *far_v;
    must(oct_device_alloc(g.context, (size_t)n_pool_pages * ROW, &far_k), "K of the large pool");
    must(oct_device_alloc(g.context, (size_t)n_pool_pages * ROW, &far_v), "V of the large pool");
    int32_t ids[USED];
    for (int i = 0; i < USED; i++)
        ids[i] = (int32_t)(i < USED / 2 ? n_pool_pages / 2 + i : n_pool_pages - USED + i);
    for (int i = 0; i < USED; i++) {
        const int64_t from = p.pages[i];
        must(oct_device_copy_in(g.context, (char *)far_k + (int64_t)ids[i] * ROW, (const char *)p.layer.k + from * p.layer.k_page_stride, ROW, g.stream), "copy_in");
        must(oct_device_copy_in(g.context, (char *)far_v + (int64_t)ids[i] * ROW, (const char *)p.layer.v + from * p.layer.v_page_stride, ROW, g.stream), "copy_in");
    }
    int n_ran = 0;
    unsigned char *reference = malloc(p.out.size_bytes);
    assert_non_null(reference);
    for (int op = OCT__OP_attn_decode; op <= OCT__OP_attn_extend; op++) {
        const oct__variant *rows[ROWS_MAX];
        const uint32_t n = rows_of((oct__op)op, rows);
        for (uint32_t r = 0; r < n; r++) {
            if (!runs_on(&p, rows[r]))
                continue;
            judge(&p, rows[r], 1);
            memcpy(reference, p.out.at, p.out.size_bytes);
            oct_plan *plan;
            problem_blank(&p);
            device_problem_send(&d, g.context, g.stream, &p, NULL);
            must(d.arrays.status, "sending");
            d.layer.k = far_k;
            d.layer.v = far_v;
            d.layer.n_pages = d.batch.n_pages = n_pool_pages;
            d.layer.k_page_stride = d.layer.v_page_stride = ROW;
            int32_t *table = calloc((size_t)(4 * d.batch.max_pages), sizeof *table);
            for (int i = 0; i < USED; i++)
                table[i / 128 * d.batch.max_pages + i % 128] = ids[i];
            must(oct_device_copy_in(g.context, (void *)(uintptr_t)d.batch.block_table, table, (size_t)(4 * d.batch.max_pages) * sizeof *table, g.stream), "copy_in");
            free(table);
            d.spec.force_variant = rows[r]->full_name;
            must(oct_plan_create(g.context, &d.spec, &plan, &error), error.text);
            must(oct_plan_update(plan, &d.batch, &error), error.text);
            must(oct_attn_run(plan, &d.args), "oct_attn_run");
            must(oct_plan_status(plan, g.stream, &error), error.text);
            must(device_fetch(&d.arrays), "fetching");
            oct_plan_destroy(plan);
            device_problem_drop(&d);
            if (memcmp(reference, p.out.at, p.out.size_bytes) != 0)
                fail_msg("%s: the large pool gives other bits than the small one", rows[r]->full_name);
            n_ran++;
        }
    }
    print_message("E1: %d rows over a pool of %.2f GB each of K and V\n", n_ran, (double)n_pool_pages * ROW * 1e-9);
    assert_true(n_ran >= 3);
    oct_device_free(g.context, far_k, (size_t)n_pool_pages * ROW);
    oct_device_free(g.context, far_v, (size_t)n_pool_pages * ROW);
    free(reference);
    problem_drop(&p);
}

/* ---- E3 ------------------------------------------------------------------------------------------------------------------------- */

static void E3_batches_past_65535(void **state)
{
    (void)state;
    const int64_t batches[] = { n_batch > 65536 ? 65535 : n_batch - 1, n_batch > 65536 ? 65536 : n_batch, n_batch };
    for (int b = 0; b < 3; b++) {
        const oct__variant *rows[ROWS_MAX];
        const uint32_t n = rows_of(OCT__OP_attn_decode, rows);
        problem_shape s = problem_plain(620 + b);
        problem p;
        int n_ran = 0;
        s.heads_q = b == 1 ? 2 : 1;   /* as well: heads x sequences */
        s.heads = 1;
        s.with_lse = 1;
        problem_lengths(&s, 3, (int32_t[]){ 1, 1, 1 }, (int32_t[]){ 1, 2, 3 });
        s.n_sequences = batches[b];
        s.share = 0;
        assert_int_equal(problem_make(&p, &s), 0);
        assert_int_equal(problem_expect(&p), 0);
        for (uint32_t r = 0; r < n; r++)
            if (runs_on(&p, rows[r])) {
                judge(&p, rows[r], 0);
                n_ran++;
            }
        print_message("E3: %lld sequences on %d rows\n", (long long)batches[b], n_ran);
        assert_true(n_ran >= 3);
        problem_drop(&p);
    }
}

/* ---- I3 ------------------------------------------------------------------------------------------------------------------------- */

/* Deterministic plans: a row of the same sequence alone, with mates, and elsewhere in the batch. */
static void I3_mates_do_not_change_bits(void **state)
{
    enum { MATES = 24 };
    (void)state;
    const oct__variant *rows[ROWS_MAX];
    const uint32_t n = rows_of(OCT__OP_attn_decode, rows);
    problem_shape s = problem_plain(1400);
    problem all;
    rng r = rng_make(1400);
    const int32_t watched = g.fake != NULL ? 1333 : 3333;
    s.deterministic = 1;
    s.dim_k = s.dim_v = 64;
    s.n_sequences = s.n_lengths = MATES;
    for (int i = 0; i < MATES; i++) {
        s.q_len[i] = 1;
        s.kv_len[i] = i == 0 ? watched : (int32_t)rng_between(&r, 1, g.fake != NULL ? 60 : 3000);
    }
    assert_int_equal(problem_make(&all, &s), 0);
    int n_ran = 0;
    for (uint32_t row = 0; row < n; row++) {
        float first[4 * 64], first_lse[4];
        int n_trials = 0;
        for (int trial = 0; trial < 4; trial++) {
            static const int mates[] = { 0, 1, 7, MATES - 1 };
            problem_part parts[MATES];
            problem view;
            const int place = trial == 0 ? 0 : (int)rng_below(&r, mates[trial] + 1);
            for (int i = 0, next = 1; i <= mates[trial]; i++)
                parts[i] = problem_whole(&all, i == place ? 0 : next++);
            assert_int_equal(problem_select(&view, &all, parts, mates[trial] + 1), 0);
            if (runs_on(&view, rows[row])) {
                const float *out = (const float *)view.out.at + (size_t)place * 4 * 64, *lse = (const float *)view.lse.at + (size_t)place * 4;
                if (trial == 0) {
                    memcpy(first, out, sizeof first);
                    memcpy(first_lse, lse, sizeof first_lse);
                }
                if (memcmp(first, out, sizeof first) != 0 || memcmp(first_lse, lse, sizeof first_lse) != 0)
                    fail_msg("%s: other bits among %d mates", rows[row]->full_name, mates[trial]);
                n_trials++;
            }
            problem_drop(&view);
        }
        n_ran += n_trials > 0;
    }
    print_message("I3: %d rows\n", n_ran);
    assert_true(n_ran >= 3);
    problem_drop(&all);
}

/* ---- J1 ------------------------------------------------------------------------------------------------------------------------- */

enum { FLAT, NEEDLE };

/* Over few keys and over very many: the error does not grow. */
static void long_contexts(int kind)
{
    const oct__variant *rows[ROWS_MAX];
    const uint32_t n = rows_of(OCT__OP_attn_decode, rows);
    const int32_t lengths[] = { (int32_t)(n_keys < 65536 ? n_keys / 4 : 8192), (int32_t)n_keys };
    double worst[2][ROWS_MAX] = { { 0.0 } };
    int ran[ROWS_MAX] = { 0 }, n_ran = 0;
    for (int i = 0; i < 2; i++) {
        problem_shape s = problem_plain(1500 + kind);
        problem p;
        s.heads_q = 8;
        s.heads = 1;
        s.dim_k = s.dim_v = 128;
        s.page_size = 64;
        s.q_dtype = OCT_DTYPE_F32;
        problem_lengths(&s, 1, (int32_t[]){ 1 }, &lengths[i]);
        if (kind == FLAT) {
            s.score_deviation = 0.01;
            s.v_data = DATA_HALF;
        } else {
            s.k_data = DATA_NEEDLE;
            s.needle_key = lengths[i] / 2;
        }
        assert_int_equal(problem_make(&p, &s), 0);
        assert_int_equal(problem_expect(&p), 0);
        for (uint32_t r = 0; r < n; r++)
            if (runs_on(&p, rows[r])) {
                const compare_bound bound = compare_bound_for(rows[r]);
                const compare_verdict verdict = problem_judge(&p, &bound);
                if (!verdict.ok)
                    fail_msg("%s over %d keys: %s", rows[r]->full_name, lengths[i], verdict.text);
                worst[i][r] = verdict.max_error;
                ran[r]++;
            }
        problem_drop(&p);
    }
    for (uint32_t r = 0; r < n; r++) {
        if (ran[r] != 2)
            continue;
        n_ran++;
        print_message("J1: %-30s %s, error %.2e over %d keys, %.2e over %d\n", rows[r]->full_name, kind == FLAT ? "flat" : "needle", worst[0][r], lengths[0], worst[1][r], lengths[1]);
        /* Below a few units of f32, or of 16-bit weights, a ratio says nothing. */
        assert_true(worst[1][r] <= 2.0 * worst[0][r] + (rows[r]->tolerance == OCT__TOL_F32 ? 5e-7 : 1e-3));
    }
    assert_true(n_ran >= 3);
}

static void J1_flat_logits(void **state)
{
    (void)state;
    long_contexts(FLAT);
}

static void J1_needle(void **state)
{
    (void)state;
    long_contexts(NEEDLE);
}

static int open_gpu(void **state)
{
    (void)state;
    oct_error error = OCT_ERROR_INIT;
    if (gpu_open(&g, what, library, 1, NULL, &error) != OCT_OK) {
        print_message("%s\n", error.text);
        return -1;
    }
    return 0;
}

static int close_gpu(void **state)
{
    (void)state;
    const int leaks = (int)g.counts.n_live;
    gpu_close(&g);
    return leaks;
}

int main(int argc, char **argv)
{
    int usable = argc >= 2;
    const char *only = "*";
    what = usable ? argv[1] : "";
    for (int i = 2; i < argc; i++) {
        if (strncmp(argv[i], "library=", 8) == 0)
            library = argv[i] + 8;
        else if (strncmp(argv[i], "pages=", 6) == 0)
            n_pool_pages = strtoll(argv[i] + 6, NULL, 10);
        else if (strncmp(argv[i], "sequences=", 10) == 0)
            n_batch = strtoll(argv[i] + 10, NULL, 10);
        else if (strncmp(argv[i], "keys=", 5) == 0)
            n_keys = strtoll(argv[i] + 5, NULL, 10);
        else if (strncmp(argv[i], "only=", 5) == 0)
            only = argv[i] + 5;
        else
            usable = 0;
    }
    if (!usable || n_pool_pages < 2048 || n_batch < 2 || n_keys < 1024)
        return fprintf(stderr, "usage: api_device_large fake:cuda|fake:hip|cuda|hip [library=PATH] [pages=N] [sequences=N] [keys=N] [only=PATTERN]\n"), 2;
    oracle_init();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(E1_pools_past_4_gib),
        cmocka_unit_test(E3_batches_past_65535),
        cmocka_unit_test(I3_mates_do_not_change_bits),
        cmocka_unit_test(J1_flat_logits),
        cmocka_unit_test(J1_needle),
    };
    if (!test_pattern(tests, sizeof(tests) / sizeof(tests[0]), only))
        return 2;
    return cmocka_run_group_tests(tests, open_gpu, close_gpu);
}
