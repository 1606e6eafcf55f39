/* driver_results.c: see driver_cases.h: what kernels compute over a driver is what the oracle says, in small shapes, in grids beyond 65,535 and in
 * pools beyond 2^32 bytes. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "driver/driver_cases.h"

#include "driver/executor_driver.h"
#include "driver/step.h"

/* ---- writes ------------------------------------------------------------------------------------------------------------------------------- */

static void check_write(oct__driver *d, const write_shape *shape)
{
    write_case c;
    char why[640], text[PROBLEM_TEXT];
    device_rig rig = driver_rig(d, NULL);
    assert_int_equal(write_make(&c, shape), 0);
    write_reset(&c);
    const int bad = device_run_write(&rig, &c, why, sizeof why) != 0 || write_judge(&c, why, sizeof why) != 0;
    if (bad) {
        write_print(shape, text, sizeof text);
        print_error("write '%s': %s\n", text, why);
    }
    write_drop(&c);
    assert_false(bad);
}

void driver_runs_writes(void **state)
{
    (void)state;
    oct__driver *d = driver_cases_open();
    write_shape shape = write_plain(1);
    check_write(d, &shape);
    shape.rope = 1;
    shape.window = 1;
    shape.slots = 2;
    shape.k_scale_mode = OCT_SCALE_TOKEN_HEAD;
    shape.k_scale_dtype = OCT_DTYPE_F32;
    check_write(d, &shape);
    for (int64_t seed = 100; seed < 106; seed++) {
        write_case c;
        shape = write_random(seed);
        const int made = write_make(&c, &shape);
        write_drop(&c);
        if (made == 0)   /* else the spec's rules refuse it */
            check_write(d, &shape);
    }
    d->table->close(d);
}

/* ---- attention ---------------------------------------------------------------------------------------------------------------------------- */

/* With the portable kernels; the second way, with those of the matrix units; the third, with Hopper's own where there are any. */
static void attend(oct__driver *d, const problem_shape *shape, uint32_t ways)
{
    problem p;
    char text[PROBLEM_TEXT];
    problem_print(shape, text, sizeof text);
    assert_int_equal(problem_make(&p, shape), 0);
    assert_int_equal(problem_expect(&p), 0);
    for (uint32_t way = 0; way < ways; way++) {
        device_rig rig = driver_rig(d, NULL);
        oct__dev_plan plan;
        oct__dev_attn_shape used;
        char why[640];
        int is_mma = 0;
        rig.chip.has_mma = way > 0;
        rig.chip.has_sm90a = way > 1;
        if (way > 1 && !d->chip.has_sm90a) {   /* Hopper's own kernels, lost where they should be, would leave no other trace */
            assert_string_not_equal(d->arch, "sm_90");
            continue;
        }
        const int bad = device_run_attn(&rig, &p, NULL, &plan, why, sizeof why) != 0;
        if (bad)
            print_error("'%s': %s\n", text, why);
        assert_false(bad);
        for (uint32_t op = 0; op < OCT__DEV_OPS; op++)
            is_mma |= plan.n_tasks[op] > 0 && oct__dev_attn_shape_of(&rig.chip, &p.spec, op, &used) && step_rounds(used.kernel);
        const compare_bound bound = compare_bound_of(is_mma ? OCT__TOL_16BIT : OCT__TOL_F32);
        const compare_verdict verdict = problem_judge(&p, &bound);
        if (!verdict.ok)
            print_error("'%s', way %u: %s\n", text, way, verdict.text);
        assert_true(verdict.ok);
    }
    problem_drop(&p);
}

void driver_runs_attention(void **state)
{
    (void)state;
    oct__driver *d = driver_cases_open();
    problem_shape shape = problem_plain(1);
    attend(d, &shape, 3);
    problem_lengths(&shape, 3, (const int32_t[]){ 1, 80, 5 }, (const int32_t[]){ 700, 100, 9 });   /* decode with splits, extend, a few rows */
    shape.compressed = 1;
    attend(d, &shape, 3);
    shape = problem_plain(2);   /* tiles of more shared memory than a kernel has unasked */
    shape.heads_q = 8;
    shape.heads = 1;
    shape.dim_k = shape.dim_v = 256;
    shape.window = 50;
    shape.sink = SINK_RANDOM;
    shape.v_scale_mode = OCT_SCALE_TOKEN_HEAD;
    shape.v_scale_dtype = OCT_DTYPE_F32;
    problem_lengths(&shape, 2, (const int32_t[]){ 40, 1 }, (const int32_t[]){ 90, 200 });
    attend(d, &shape, 3);
    d->table->close(d);
}

/* ---- merges ------------------------------------------------------------------------------------------------------------------------------- */

static void check_merge(oct__driver *d, int64_t rows, uint32_t heads, uint32_t dim, uint32_t parts)
{
    device_rig rig = driver_rig(d, NULL);
    rng r = rng_make((uint64_t)rows + parts);
    char why[640] = "";
    const size_t vectors = (size_t)rows * heads;
    device_merge m = { .out_elements = parts * vectors * dim, .lse_elements = parts * vectors, .merged_elements = vectors * dim, .lse_merged_elements = vectors };
    float *out = malloc(m.out_elements * sizeof *out), *lse = malloc(m.lse_elements * sizeof *lse), *merged = malloc(m.merged_elements * sizeof *merged),
          *lse_merged = malloc(m.lse_merged_elements * sizeof *lse_merged);
    oracle_result expected = { malloc(vectors * dim * sizeof(double)), malloc(vectors * sizeof(double)), malloc(vectors * sizeof(double)), NULL, NULL };
    assert_true(out != NULL && lse != NULL && merged != NULL && lse_merged != NULL && expected.out != NULL && expected.lse != NULL && expected.v_max != NULL);
    for (size_t i = 0; i < m.out_elements; i++)
        out[i] = (float)rng_normal(&r);
    for (size_t i = 0; i < m.lse_elements; i++)
        lse[i] = rng_one_in(&r, 5) ? -INFINITY : (float)rng_normal(&r);
    memset(merged, 0xFF, m.merged_elements * sizeof *merged);
    memset(lse_merged, 0xFF, m.lse_merged_elements * sizeof *lse_merged);
    m.args = (oct_attn_merge_args){ .struct_size = sizeof m.args, .n_parts = parts, .rows = rows, .heads = heads, .dim = dim, .out = out,
                                    .out_part_stride = (int64_t)vectors * dim, .out_row_stride = (int64_t)heads * dim, .out_head_stride = dim, .lse = lse,
                                    .lse_part_stride = (int64_t)vectors, .lse_row_stride = heads, .lse_head_stride = 1, .merged = merged,
                                    .merged_row_stride = (int64_t)heads * dim, .merged_head_stride = dim, .lse_merged = lse_merged,
                                    .lse_merged_row_stride = heads, .lse_merged_head_stride = 1 };
    oracle_merge(&m.args, expected.out, expected.lse, expected.v_max);
    const int bad = device_run_merge(&rig, &m, why, sizeof why);
    const compare_output output = { OCT_DTYPE_F32, merged, (int64_t)heads * dim, dim, 1.0, lse_merged, heads, 1, rows, heads, dim };
    const compare_bound bound = { 1e-6, 0.9999, 1.0, 1e-6, 1e-6, 0.0 };
    const compare_verdict verdict = compare_judge(&output, &expected, &bound);
    if (bad || !verdict.ok)
        print_error("merge of %lld rows, %u heads, %u dims: %s %s\n", (long long)rows, heads, dim, why, verdict.text);
    free(out);
    free(lse);
    free(merged);
    free(lse_merged);
    free(expected.out);
    free(expected.lse);
    free(expected.v_max);
    assert_true(!bad && verdict.ok);
}

void driver_runs_merges(void **state)
{
    (void)state;
    oct__driver *d = driver_cases_open();
    check_merge(d, 5, 3, 80, 4);
    check_merge(d, 1, 1, 7, 70);
    d->table->close(d);
}

/* ---- E3: more than 65,535 rows, sequences, blocks --------------------------------------------------------------------------------------------- */

void driver_runs_large_grids(void **state)
{
    (void)state;
    enum { MANY = 65600 };
    oct__driver *d = driver_cases_open();
    write_shape write = write_plain(7);
    write.heads = 1;
    write.dim_k = write.dim_v = 16;
    write.page_size = 64;
    write.n_tokens = MANY;
    write.n_pages = MANY / 64 + 1;
    check_write(d, &write);          /* a block a token at least */
    check_merge(d, MANY, 1, 4, 2);
    problem_shape shape = problem_plain(8);
    shape.heads_q = shape.heads = 1;
    shape.dim_k = shape.dim_v = 16;
    shape.page_size = 2;
    shape.causal = 0;
    problem_lengths(&shape, 1, (const int32_t[]){ MANY }, (const int32_t[]){ 2 });   /* rows of one sequence */
    attend(d, &shape, 1);
    if (driver_cases_double == NULL) {   /* half a minute on the executor; tests/device plans as many sequences there */
        shape.causal = 1;
        problem_lengths(&shape, 1, (const int32_t[]){ 1 }, (const int32_t[]){ 2 });
        shape.n_sequences = MANY;        /* each of that length */
        shape.share = 1;
        attend(d, &shape, 3);
    }
    d->table->close(d);
}

/* ---- E1: bytes beyond 2^32 ------------------------------------------------------------------------------------------------------------------- */

/* Where a page of 4 KiB begins at 2^32. */
enum { FAR = 1 << 20, E1_TOKENS = 48, E1_PAGE = 16, E1_PAGES = E1_TOKENS / E1_PAGE };

/* Writes the tokens into the three pages and attends to them; back: those pages' bytes of K and V, and the result. */
static void write_and_attend(oct__driver *d, step *s, const float *source, const int32_t *pages, unsigned char *k_pages, unsigned char *v_pages)
{
    const oct__driver_table *t = d->table;
    const size_t page_bytes = (size_t)s->layer.k_page_stride;
    int32_t slots[E1_TOKENS];
    oct__kv_write_params params;
    oct__dev_launch launch;
    for (int i = 0; i < E1_TOKENS; i++)
        slots[i] = pages[i / E1_PAGE] * E1_PAGE + i % E1_PAGE;
    oct_kv_write_args args = { .struct_size = sizeof args, .layer = &s->layer, .n_tokens = E1_TOKENS, .src_dtype = OCT_DTYPE_F32, .k_token_stride = 256,
                               .k_head_stride = 128, .v_token_stride = 256, .v_head_stride = 128 };
    args.slots = step_send(s, slots, sizeof slots);
    args.k = step_send(s, source, E1_TOKENS * 256 * sizeof *source);
    args.v = step_send(s, source + 256, E1_TOKENS * 256 * sizeof *source);
    assert_true(oct__dev_pack_kv_write(&d->chip, &args, NULL, &params, &launch));
    assert_int_equal(t->launch(d, &launch, &params, sizeof params, NULL), OCT_OK);
    assert_int_equal(t->copy_in(d, s->table, pages, E1_PAGES * sizeof *pages, NULL), OCT_OK);
    s->batch.n_pages = s->layer.n_pages;
    assert_int_equal(step_enqueue(s), OCT_OK);
    assert_int_equal(step_fetch(s), OCT_OK);
    for (int i = 0; i < E1_PAGES; i++) {
        assert_int_equal(t->copy_out(d, k_pages + i * page_bytes, (unsigned char *)s->layer.k + pages[i] * (int64_t)page_bytes, page_bytes, NULL), OCT_OK);
        assert_int_equal(t->copy_out(d, v_pages + i * page_bytes, (unsigned char *)s->layer.v + pages[i] * (int64_t)page_bytes, page_bytes, NULL), OCT_OK);
    }
    assert_int_equal(t->wait(d, NULL), OCT_OK);
}

void driver_reaches_large_pools(void **state)
{
    (void)state;
    const int64_t n_pages = FAR + 16;
    const int32_t near[E1_PAGES] = { 2, 0, 1 }, far[E1_PAGES] = { FAR + 3, 1, FAR + 9 };
    if (driver_cases_double != NULL) {   /* address space, touched where it is used */
        double_chip chip = driver_cases_double->usual;
        chip.memory_bytes = (size_t)9 << 30;
        driver_cases_double->reset(&chip);
    }
    oct__driver *d = driver_cases_open();
    const oct__driver_table *t = d->table;
    problem p;
    step s;
    problem_shape shape = problem_plain(5);
    shape.dim_k = shape.dim_v = 128;
    problem_lengths(&shape, 1, (const int32_t[]){ 1 }, (const int32_t[]){ E1_TOKENS });
    assert_int_equal(problem_make(&p, &shape), 0);
    step_make(&s, d, NULL, &p);
    const size_t page_bytes = (size_t)s.layer.k_page_stride, bytes = E1_PAGES * page_bytes;
    assert_int_equal(page_bytes, 4096);
    assert_true(p.n_pages >= E1_PAGES);
    float *source = malloc((E1_TOKENS + 1) * 256 * sizeof *source);
    unsigned char *stored[2][2], *out[2], clean[4096], seen[4096];
    rng r = rng_make(99);
    for (int i = 0; i < (E1_TOKENS + 1) * 256; i++)
        source[i] = (float)rng_normal(&r);
    for (int i = 0; i < 2; i++) {
        assert_non_null(stored[i][0] = malloc(bytes));
        assert_non_null(stored[i][1] = malloc(bytes));
        assert_non_null(out[i] = malloc(p.out.size_bytes));
    }
    write_and_attend(d, &s, source, near, stored[0][0], stored[0][1]);
    memcpy(out[0], p.out.at, p.out.size_bytes);

    void *k = NULL, *v = NULL;
    assert_int_equal(t->alloc(d, (size_t)n_pages * page_bytes, &k), OCT_OK);
    assert_int_equal(t->alloc(d, (size_t)n_pages * page_bytes, &v), OCT_OK);
    s.layer.k = k;
    s.layer.v = v;
    s.layer.n_pages = n_pages;
    /* Where the far pages would lie if 32 bits were all. */
    const int32_t wrapped[] = { 3, 9 };
    for (int i = 0; i < 2; i++) {
        assert_int_equal(t->fill(d, (unsigned char *)k + wrapped[i] * page_bytes, 0xAB, page_bytes, NULL), OCT_OK);
        assert_int_equal(t->fill(d, (unsigned char *)v + wrapped[i] * page_bytes, 0xAB, page_bytes, NULL), OCT_OK);
    }
    write_and_attend(d, &s, source, far, stored[1][0], stored[1][1]);
    memcpy(out[1], p.out.at, p.out.size_bytes);
    assert_memory_equal(stored[0][0], stored[1][0], bytes);
    assert_memory_equal(stored[0][1], stored[1][1], bytes);
    assert_memory_equal(out[0], out[1], p.out.size_bytes);
    assert_true(isfinite(((const float *)p.out.at)[0]));
    memset(clean, 0xAB, sizeof clean);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(t->copy_out(d, seen, (unsigned char *)k + wrapped[i] * page_bytes, page_bytes, NULL), OCT_OK);
        assert_int_equal(t->wait(d, NULL), OCT_OK);
        assert_memory_equal(seen, clean, page_bytes);
        assert_int_equal(t->copy_out(d, seen, (unsigned char *)v + wrapped[i] * page_bytes, page_bytes, NULL), OCT_OK);
        assert_int_equal(t->wait(d, NULL), OCT_OK);
        assert_memory_equal(seen, clean, page_bytes);
    }
    t->free(d, k);
    t->free(d, v);
    step_drop(&s);
    for (int i = 0; i < 2; i++) {
        free(stored[i][0]);
        free(stored[i][1]);
        free(out[i]);
    }
    free(source);
    t->close(d);
    problem_drop(&p);
    if (driver_cases_double != NULL)
        driver_cases_double->reset(NULL);
}
