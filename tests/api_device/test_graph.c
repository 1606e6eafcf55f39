/* test_graph.c: public fault I1 and its relatives on a context of a GPU: a graph of update and run, captured over short sequences, replayed with other
 * lengths, pages and scales, equals eager runs bit for bit and the oracle within its bounds; and what else a capture allows. Arguments: a device as
 * in gpu.h, then library=PATH. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "api_device/gpu.h"
#include "api_device/run_problem.h"

static const char *what, *library;
static gpu g;

enum { SEQUENCES = 8, KINDS = 2 };

static void must(oct_status status, const char *doing)
{
    if (status != OCT_OK)
        fail_msg("%s: %s %s", doing, oct_status_name(status), g.fake != NULL ? fake_report(g.fake) : "");
}

/* Layers that see everything, and layers with a window of 128. */
static problem_shape shape_of(int kind, const int32_t *kv_len)
{
    static const int32_t ones[SEQUENCES] = { 1, 1, 1, 1, 1, 1, 1, 1 };
    problem_shape s = problem_plain(4000 + kind);
    s.heads = 1;
    s.heads_q = 3;
    s.dim_k = s.dim_v = 32;
    s.with_lse = 1;
    s.window = kind == 1 ? 128 : 0;
    problem_lengths(&s, SEQUENCES, ones, kv_len);
    return s;
}

typedef struct kind {
    problem p;                 /* as of the replay with all lengths */
    device_problem d;
    oct_plan *plan;
} kind;

static kind kinds[KINDS];

static const int32_t long_lens[SEQUENCES] = { 5000, 1, 17, 300, 128, 129, 4096, 64 }, warm_lens[SEQUENCES] = { 1, 1, 1, 1, 1, 1, 1, 1 };

static void send_ints(const int32_t *there, const int32_t *from, size_t n)
{
    must(oct_device_copy_in(g.context, (void *)(uintptr_t)there, from, n * sizeof *from, g.stream), "copy_in");
}

/* Lengths for both kinds, over the problem's own pages or, with `elsewhere`, all on page 0. */
static void set_lens(const int32_t *lens, int elsewhere)
{
    for (int k = 0; k < KINDS; k++) {
        kind *kd = &kinds[k];
        const size_t n = (size_t)(SEQUENCES * kd->d.batch.max_pages);
        int32_t *table = calloc(n, sizeof *table);
        for (int b = 0; b < SEQUENCES && !elsewhere; b++)
            memcpy(table + b * kd->d.batch.max_pages, kd->p.table_pages + kd->p.page_at[b], (size_t)(kd->p.page_at[b + 1] - kd->p.page_at[b]) * sizeof *table);
        send_ints(kd->d.batch.block_table, table, n);
        send_ints(kd->d.batch.seq_lens, lens, SEQUENCES);
        free(table);
    }
}

/* A step of both kinds, eager or into a capture. */
static void enqueue_step(void)
{
    oct_error error = OCT_ERROR_INIT;
    for (int k = 0; k < KINDS; k++) {
        if (oct_plan_update(kinds[k].plan, &kinds[k].d.batch, &error) != OCT_OK)
            fail_msg("%s", error.text);
        must(oct_attn_run(kinds[k].plan, &kinds[k].d.args), "oct_attn_run");
    }
}

typedef struct results { void *out[KINDS], *lse[KINDS]; } results;

/* Blanks out and lse of both kinds on the device. */
static void blank(void)
{
    for (int k = 0; k < KINDS; k++) {
        problem_blank(&kinds[k].p);
        must(oct_device_copy_in(g.context, kinds[k].d.args.out, kinds[k].p.out.at, kinds[k].p.out.size_bytes, g.stream), "copy_in");
        must(oct_device_copy_in(g.context, kinds[k].d.args.lse, kinds[k].p.lse.at, kinds[k].p.lse.size_bytes, g.stream), "copy_in");
    }
}

/* What lies in the device's out and lse, in the problems' own and as copies. */
static results fetch(void)
{
    results r;
    for (int k = 0; k < KINDS; k++) {
        problem *p = &kinds[k].p;
        must(oct_device_copy_out(g.context, p->out.at, kinds[k].d.args.out, p->out.size_bytes, g.stream), "copy_out");
        must(oct_device_copy_out(g.context, p->lse.at, kinds[k].d.args.lse, p->lse.size_bytes, g.stream), "copy_out");
    }
    must(oct_device_wait(g.context, g.stream), "wait");
    for (int k = 0; k < KINDS; k++) {
        r.out[k] = malloc(kinds[k].p.out.size_bytes);
        r.lse[k] = malloc(kinds[k].p.lse.size_bytes);
        memcpy(r.out[k], kinds[k].p.out.at, kinds[k].p.out.size_bytes);
        memcpy(r.lse[k], kinds[k].p.lse.at, kinds[k].p.lse.size_bytes);
        oct_error error = OCT_ERROR_INIT;
        if (oct_plan_status(kinds[k].plan, g.stream, &error) != OCT_OK)
            fail_msg("%s", error.text);
    }
    return r;
}

static void drop(results *r)
{
    for (int k = 0; k < KINDS; k++) {
        free(r->out[k]);
        free(r->lse[k]);
    }
}

static void judge(void)
{
    compare_bound bound = compare_bound_of(OCT__TOL_16BIT);
    bound.watch = bound.lse = 2e-3;
    for (int k = 0; k < KINDS; k++) {
        assert_int_equal(problem_expect(&kinds[k].p), 0);
        const compare_verdict v = problem_judge(&kinds[k].p, &bound);
        if (!v.ok)
            fail_msg("kind %d: %s", k, v.text);
    }
}

/* The replay and an eager step leave the same bits in every row. */
static void replay_equals_eager(void *graph)
{
    blank();
    enqueue_step();
    results eager = fetch();
    blank();
    gpu_graph_launch(&g, graph, g.stream);
    results replayed = fetch();
    for (int k = 0; k < KINDS; k++) {
        assert_memory_equal(eager.out[k], replayed.out[k], kinds[k].p.out.size_bytes);
        assert_memory_equal(eager.lse[k], replayed.lse[k], kinds[k].p.lse.size_bytes);
    }
    drop(&eager);
    drop(&replayed);
}

static void I1_a_replay_follows_lengths_pages_and_scales(void **state)
{
    (void)state;
    for (int k = 0; k < KINDS; k++) {
        const problem_shape s = shape_of(k, long_lens);
        oct_error error = OCT_ERROR_INIT;
        assert_int_equal(problem_make(&kinds[k].p, &s), 0);
        problem_blank(&kinds[k].p);
        device_problem_send(&kinds[k].d, g.context, g.stream, &kinds[k].p, NULL);
        must(kinds[k].d.arrays.status, "sending");
        if (oct_plan_create(g.context, &kinds[k].d.spec, &kinds[k].plan, &error) != OCT_OK)
            fail_msg("%s", error.text);
    }
    set_lens(warm_lens, 1);
    const fake_counts before = g.counts;
    gpu_capture_begin(&g, g.stream);
    enqueue_step();
    void *graph = gpu_capture_end(&g, g.stream);
    assert_int_equal(g.counts.n_made, before.n_made);     /* nothing allocated, nothing waited for */
    assert_int_equal(g.counts.n_waits, before.n_waits);
    replay_equals_eager(graph);
    /* The lengths and pages of the replay. */
    set_lens(long_lens, 0);
    replay_equals_eager(graph);
    judge();
    /* Another scale, in place. */
    for (int k = 0; k < KINDS; k++) {
        float *scale = kinds[k].p.v_scale.at;
        scale[0] *= 3.0f;
        must(oct_device_copy_in(g.context, (void *)(uintptr_t)kinds[k].d.layer.v_scale, scale, sizeof *scale, g.stream), "copy_in");
    }
    replay_equals_eager(graph);
    judge();
    /* Three active sequences and five that are padding. */
    int32_t lens[SEQUENCES] = { 200, 1, 9 };   /* no more keys than were stored */
    set_lens(lens, 0);
    replay_equals_eager(graph);
    for (int k = 0; k < KINDS; k++) {
        memcpy(kinds[k].p.kv_len, lens, sizeof lens);
        for (int row = 3; row < SEQUENCES; row++)
            for (uint32_t h = 0; h < 3; h++) {
                assert_true(((const float *)kinds[k].p.lse.at)[row * kinds[k].p.args.lse_row_stride + h * kinds[k].p.args.lse_head_stride] == -INFINITY);
                assert_true(problem_out(&kinds[k].p, row, h, 0) == 0.0);
            }
    }
    judge();
    for (int k = 0; k < KINDS; k++) {
        oct_plan_destroy(kinds[k].plan);
        device_problem_drop(&kinds[k].d);
        problem_drop(&kinds[k].p);
    }
}

/* A plan of decodes alone launches no extend; a replay that finds one in the metadata is too large a step, as a whole, and says so. */
static void a_replay_beyond_max_rows_writes_nothing(void **state)
{
    enum { ROWS = 20, HEADS = 3, DIM = 32 };
    (void)state;
    problem p, before;
    device_problem d;
    oct_plan *plan;
    oct_error error = OCT_ERROR_INIT;
    problem_shape s = problem_plain(4010);
    s.heads = 1;
    s.heads_q = HEADS;
    s.dim_k = s.dim_v = DIM;
    problem_lengths(&s, 2, (int32_t[]){ ROWS, 1 }, (int32_t[]){ 60, 30 });
    assert_int_equal(problem_make(&p, &s), 0);
    assert_int_equal(problem_make(&before, &s), 0);
    problem_blank(&p);
    problem_blank(&before);
    device_problem_send(&d, g.context, g.stream, &p, NULL);
    must(d.arrays.status, "sending");
    const int32_t few[] = { 0, 4, 5 };
    send_ints(d.batch.qo_indptr, few, 3);
    d.spec.max_rows = 5;
    must(oct_plan_create(g.context, &d.spec, &plan, &error), error.text);
    must(oct_device_wait(g.context, g.stream), "wait");
    gpu_capture_begin(&g, g.stream);
    must(oct_plan_update(plan, &d.batch, &error), error.text);
    must(oct_attn_run(plan, &d.args), "oct_attn_run");
    void *graph = gpu_capture_end(&g, g.stream);
    send_ints(d.batch.qo_indptr, p.qo_indptr, 3);
    gpu_graph_launch(&g, graph, g.stream);
    assert_int_equal(oct_plan_status(plan, g.stream, &error), OCT_INVALID_ARGUMENT);
    assert_non_null(strstr(error.text, "the step is larger than spec.max_sequences 2, max_rows 5, max_keys 60"));
    must(oct_device_copy_out(g.context, p.out.at, d.args.out, p.out.size_bytes, g.stream), "copy_out");
    must(oct_device_wait(g.context, g.stream), "wait");
    assert_memory_equal(p.out.at, before.out.at, p.out.size_bytes);   /* the decode beside it neither */
    /* A step that fits runs again. */
    send_ints(d.batch.qo_indptr, few, 3);
    gpu_graph_launch(&g, graph, g.stream);
    must(oct_plan_status(plan, g.stream, &error), error.text);
    must(oct_device_copy_out(g.context, p.out.at, d.args.out, p.out.size_bytes, g.stream), "copy_out");
    must(oct_device_wait(g.context, g.stream), "wait");
    assert_memory_not_equal(p.out.at, before.out.at, (size_t)(few[1] * HEADS * DIM) * sizeof(float));
    oct_plan_destroy(plan);
    device_problem_drop(&d);
    problem_drop(&before);
    problem_drop(&p);
}

/* A write is legal in a capture too, checked or not; what is not says so and leaves the capture whole. */
static void captures_take_steps_only(void **state)
{
    (void)state;
    write_case c;
    const write_shape s = write_plain(5);
    assert_int_equal(write_make(&c, &s), 0);
    device_arrays a = { .context = g.context, .stream = g.stream };
    oct_kv_layer layer = c.pool[0].layer;
    oct_kv_write_args args = c.args;
    uint32_t refused = 9;
    write_reset(&c);
    layer.k = device_send_guard(&a, &c.pool[0].memory[0], 1);
    layer.v = device_send_guard(&a, &c.pool[0].memory[1], 1);
    layer.k_token_scale = device_send_guard(&a, &c.pool[0].memory[2], 1);
    layer.v_token_scale = device_send_guard(&a, &c.pool[0].memory[3], 1);
    layer.k_scale = device_send_guard(&a, &c.pool[0].memory[4], 0);
    layer.v_scale = device_send_guard(&a, &c.pool[0].memory[5], 0);
    args.struct_size = sizeof args;
    args.layer = &layer;
    args.slots = device_send_guard(&a, &c.pool[0].slots_guard, 0);
    args.k = device_moved(device_send_guard(&a, &c.k, 0), c.k.at, c.args.k);
    args.v = device_moved(device_send_guard(&a, &c.v, 0), c.v.at, c.args.v);
    args.k_counts = args.k_counts != NULL ? device_send(&a, c.k_counts, sizeof c.k_counts[0], 1) : NULL;
    args.v_counts = args.v_counts != NULL ? device_send(&a, c.v_counts, sizeof c.v_counts[0], 1) : NULL;
    args.stream = g.stream;
    args.checked = 1;
    args.refused = device_send(&a, &refused, sizeof refused, 1);
    must(a.status, "sending");
    assert_null(args.rope);
    const oct_kv_pool_options pool_options = { .struct_size = sizeof pool_options, .n_layers = 1, .n_pages = 4, .spec = layer.spec };
    oct_kv_pool *pool;
    void *memory;
    oct_error error = OCT_ERROR_INIT;
    must(oct_device_wait(g.context, g.stream), "wait");
    gpu_capture_begin(&g, g.stream);
    must(oct_kv_write(g.context, &args), "oct_kv_write");
    assert_int_equal(oct_device_copy_in(g.context, layer.k, &refused, 1, g.stream), OCT_UNSUPPORTED);
    assert_int_equal(oct_device_copy_out(g.context, &refused, layer.k, 1, g.stream), OCT_UNSUPPORTED);
    assert_int_equal(oct_device_wait(g.context, g.stream), OCT_UNSUPPORTED);
    if (g.fake != NULL) {   /* a vendor's library refuses it too, but ends the capture */
        assert_int_equal(oct_device_alloc(g.context, 64, &memory), OCT_UNSUPPORTED);
        assert_int_equal(oct_kv_pool_create(g.context, &pool_options, &pool, &error), OCT_UNSUPPORTED);
        assert_null(pool);
    }
    void *graph = gpu_capture_end(&g, g.stream);
    gpu_graph_launch(&g, graph, g.stream);
    must(device_fetch(&a), "fetching");
    assert_int_equal(refused, 0);
    char text[512];
    if (write_judge(&c, text, sizeof text) != 0)
        fail_msg("%s", text);
    write_drop(&c);
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
    what = argc >= 2 ? argv[1] : "";
    library = argc == 3 && strncmp(argv[2], "library=", 8) == 0 ? argv[2] + 8 : NULL;
    if (argc < 2 || argc > 3)
        return fprintf(stderr, "usage: api_device_graph fake:cuda|fake:hip|cuda|hip [library=PATH]\n"), 2;
    oracle_init();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(I1_a_replay_follows_lengths_pages_and_scales),
        cmocka_unit_test(a_replay_beyond_max_rows_writes_nothing),
        cmocka_unit_test(captures_take_steps_only),
    };
    return cmocka_run_group_tests(tests, open_gpu, close_gpu);
}
