/* test_failures.c: what goes wrong on a GPU and what is left afterwards: memory that runs out at every allocation of the host's and of the device's, a
 * device that is lost between any two calls, a kernel that faults; and public fault E3, more rows than an axis of a grid takes. Arguments: "fake:cuda"
 * or "fake:hip"; then a pattern of names. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "api_device/gpu.h"
#include "api_device/run_problem.h"
#include "test_pattern.h"

static const char *what;

/* ---- memory of the host, counted ------------------------------------------------------------------------------------------------- */

typedef struct counting { size_t live, live_bytes, made, fail_at; } counting;

static void *counting_alloc(void *user, size_t size_bytes, size_t align)
{
    counting *c = user;
    void *memory = NULL;
    if (++c->made == c->fail_at || posix_memalign(&memory, align < sizeof(void *) ? sizeof(void *) : align, size_bytes) != 0)
        return NULL;
    memset(memory, 0xA5, size_bytes);
    c->live++;
    c->live_bytes += size_bytes;
    return memory;
}

static void counting_free(void *user, void *memory, size_t size_bytes)
{
    counting *c = user;
    c->live--;
    c->live_bytes -= size_bytes;
    free(memory);
}

/* ---- a life ------------------------------------------------------------------------------------------------------------------------ */

enum { HEADS = 2, DIM = 16, PAGE = 8, PAGES = 4, LAYERS = 2, TOKENS = 12 };

/* Which call of a life loses the device before it is made; 0: none. */
static int lose_before, n_calls;

static void turn(gpu *g)
{
    if (++n_calls == lose_before)
        g->counts.is_lost = true;
}

#define STEP(call)                    \
    do {                              \
        if (status == OCT_OK) {       \
            turn(&g);                 \
            status = (call);          \
        }                             \
    } while (0)

/* From the context to a decode of one row, and the end of all of it. The first status that was not OK; device_left: allocations that nobody freed. */
static oct_status live_once(counting *host, size_t device_fail_at, size_t *device_made, size_t *device_left, oct_error *error)
{
    const oct_context_options options = { .struct_size = sizeof options, .alloc = counting_alloc, .free = counting_free, .user = host };
    static const float scale = 0.5f, source[TOKENS * HEADS * DIM] = { 1.0f, -2.0f, 3.0f };
    static const int32_t indptr[] = { 0, 1 }, lens[] = { TOKENS }, table[] = { 2, 1 };
    int32_t slots[TOKENS];
    float out[HEADS * DIM];
    gpu g;
    *device_made = *device_left = 0;
    n_calls = 0;
    oct_status status = gpu_open(&g, what, NULL, 0, &options, error);
    if (status != OCT_OK)
        return status;
    g.counts.fail_at = device_fail_at;
    oct_kv_pool *pool = NULL;
    oct_plan *plan = NULL;
    oct_kv_layer layer;
    const oct_kv_format format = { OCT_DTYPE_E4M3FN, OCT_SCALE_LAYER, 0, 0 };
    const oct_kv_spec kv = { .struct_size = sizeof kv, .heads = HEADS, .dim_k = DIM, .dim_v = DIM, .page_size = PAGE, .k = format, .v = format };
    const oct_kv_pool_options pool_options = { .struct_size = sizeof pool_options, .n_layers = LAYERS, .n_pages = PAGES, .spec = kv };
    const oct_attn_spec spec = { .struct_size = sizeof spec, .heads_q = HEADS, .kv = kv, .q_dtype = OCT_DTYPE_F32, .out_dtype = OCT_DTYPE_F32, .sm_scale = 0.25f,
                                 .causal = 1, .max_sequences = 1, .max_rows = 1, .max_keys = TOKENS };
    for (int i = 0; i < TOKENS; i++)
        slots[i] = (i < PAGE ? 2 * PAGE : 0) + i;
    STEP(oct_kv_pool_create(g.context, &pool_options, &pool, error));
    STEP(oct_kv_pool_set_scale(pool, 0, 0, &scale, 1, error));
    STEP(oct_kv_pool_set_scale(pool, 0, 1, &scale, 1, error));
    if (status == OCT_OK)
        assert_int_equal(oct_kv_pool_layer(pool, 0, &layer, error), OCT_OK);
    STEP(oct_plan_create(g.context, &spec, &plan, error));
    device_arrays a = { .context = g.context, .stream = g.stream };
    oct_kv_write_args write = { .struct_size = sizeof write, .layer = &layer, .n_tokens = TOKENS, .src_dtype = OCT_DTYPE_F32, .k_token_stride = HEADS * DIM,
                                .k_head_stride = DIM, .v_token_stride = HEADS * DIM, .v_head_stride = DIM, .stream = g.stream };
    oct_attn_args args = { .struct_size = sizeof args, .layer = &layer, .q_row_stride = HEADS * DIM, .q_head_stride = DIM, .out_row_stride = HEADS * DIM,
                           .out_head_stride = DIM, .stream = g.stream };
    oct_attn_batch batch = { .struct_size = sizeof batch, .n_sequences = 1, .max_pages = 2, .n_pages = PAGES, .stream = g.stream };
    STEP((write.slots = device_send(&a, slots, sizeof slots, 0), a.status));
    STEP((write.k = write.v = device_send(&a, source, sizeof source, 0), a.status));
    STEP((args.q = device_send(&a, source, HEADS * DIM * sizeof(float), 0), a.status));
    STEP((args.out = device_send(&a, out, sizeof out, 1), a.status));
    STEP((batch.qo_indptr = device_send(&a, indptr, sizeof indptr, 0), a.status));
    STEP((batch.seq_lens = device_send(&a, lens, sizeof lens, 0), a.status));
    STEP((batch.block_table = device_send(&a, table, sizeof table, 0), a.status));
    const fake_counts before = g.counts;
    const size_t host_before = host->made;
    STEP(oct_kv_write(g.context, &write));
    STEP(oct_plan_update(plan, &batch, error));
    STEP(oct_attn_run(plan, &args));
    /* A step takes no memory and waits for nothing. */
    assert_int_equal(g.counts.n_made, before.n_made);
    assert_int_equal(g.counts.n_waits, before.n_waits);
    assert_int_equal(host->made, host_before);
    STEP(oct_plan_status(plan, g.stream, error));
    STEP(oct_device_wait(g.context, g.stream));
    STEP(oct_kv_pool_copy_page(pool, 2, 3));
    if (status == OCT_OK)
        status = device_fetch(&a);
    else
        device_drop(&a);
    oct_plan_destroy(plan);
    oct_kv_pool_destroy(pool);
    *device_made = g.counts.n_made;
    *device_left = g.counts.n_live;
    gpu_close(&g);
    return status;
}

static void every_allocation_may_fail(void **state)
{
    counting host = { 0 };
    size_t n_device, left, made;
    oct_error error = OCT_ERROR_INIT;
    (void)state;
    assert_int_equal(live_once(&host, 0, &n_device, &left, &error), OCT_OK);
    const size_t n_host = host.made;
    assert_true(left == 0 && host.live == 0 && host.live_bytes == 0);
    print_message("%zu allocations on the host, %zu on the device\n", n_host, n_device);
    assert_true(n_host >= 6 && n_device >= 10);
    for (size_t i = 1; i <= n_host; i++) {
        host = (counting){ .fail_at = i };
        error = (oct_error)OCT_ERROR_INIT;
        assert_int_equal(live_once(&host, 0, &made, &left, &error), OCT_OUT_OF_MEMORY);
        assert_int_equal(error.status, OCT_OUT_OF_MEMORY);
        assert_true(error.text[0] != '\0');
        assert_true(left == 0 && host.live == 0 && host.live_bytes == 0);
    }
    for (size_t i = 1; i <= n_device; i++) {
        host = (counting){ 0 };
        assert_int_equal(live_once(&host, i, &made, &left, &error), OCT_OUT_OF_MEMORY);
        assert_int_equal(made, i);
        assert_true(left == 0 && host.live == 0 && host.live_bytes == 0);
    }
}

/* Lost before any call: that call and all after it say so, everything can still be destroyed, and nothing of the host's is left. */
static void a_device_may_be_lost(void **state)
{
    counting host = { 0 };
    size_t made, left;
    oct_error error = OCT_ERROR_INIT;
    (void)state;
    lose_before = 0;
    assert_int_equal(live_once(&host, 0, &made, &left, &error), OCT_OK);
    const int calls = n_calls;
    assert_true(calls >= 17);
    for (lose_before = 1; lose_before <= calls; lose_before++) {
        host = (counting){ 0 };
        assert_int_equal(live_once(&host, 0, &made, &left, &error), OCT_DEVICE_FAULT);
        assert_int_equal(n_calls, lose_before);
        assert_true(left == 0 && host.live == 0 && host.live_bytes == 0);
    }
    lose_before = 0;
}

/* Queries that are not the device's memory: the run is enqueued, its wait tells. */
static void a_kernel_may_fault(void **state)
{
    gpu g;
    oct_error error = OCT_ERROR_INIT;
    static float host_memory[1024];
    (void)state;
    assert_int_equal(gpu_open(&g, what, NULL, 0, NULL, &error), OCT_OK);
    problem p;
    const problem_shape s = problem_plain(9);
    device_problem d;
    oct_plan *plan;
    assert_int_equal(problem_make(&p, &s), 0);
    device_problem_send(&d, g.context, g.stream, &p, NULL);
    assert_int_equal(oct_plan_create(g.context, &d.spec, &plan, &error), OCT_OK);
    d.args.q = host_memory;
    assert_int_equal(oct_plan_update(plan, &d.batch, &error), OCT_OK);
    assert_int_equal(oct_attn_run(plan, &d.args), OCT_OK);
    assert_int_equal(oct_device_wait(g.context, g.stream), OCT_DEVICE_FAULT);
    assert_non_null(strstr(fake_report(g.fake), "attn_decode_"));
    assert_int_equal(oct_attn_run(plan, &d.args), OCT_DEVICE_FAULT);
    assert_int_equal(oct_plan_update(plan, &d.batch, &error), OCT_DEVICE_FAULT);
    assert_true(error.text[0] != '\0');
    oct_plan_destroy(plan);
    device_problem_drop(&d);
    problem_drop(&p);
    assert_int_equal(g.counts.n_live, 0);
    gpu_close(&g);
}

/* ---- E3 --------------------------------------------------------------------------------------------------------------------------- */

/* 65,536 sequences of one row over 1 to 3 keys, and a write of as many tokens: every row is right and written. The kernels' own test has 70,000. */
static void E3_batches_beyond_65535(void **state)
{
    enum { ROWS = 65536 };
    gpu g;
    oct_error error = OCT_ERROR_INIT;
    char why[640];
    (void)state;
    if (strcmp(what, "fake:cuda") != 0)
        skip();   /* grids are made alike for both vendors, and this takes ten seconds */
    assert_int_equal(gpu_open(&g, what, NULL, 0, NULL, &error), OCT_OK);
    problem p;
    problem_shape s = problem_plain(31);
    s.heads = s.heads_q = 1;
    s.dim_k = s.dim_v = 16;
    s.page_size = 4;
    problem_lengths(&s, 3, (int32_t[]){ 1, 1, 1 }, (int32_t[]){ 1, 2, 3 });
    s.n_sequences = ROWS;
    assert_int_equal(problem_make(&p, &s), 0);
    assert_int_equal(problem_expect(&p), 0);
    if (device_run_problem(g.context, g.stream, &p, NULL, NULL, NULL, why, sizeof why) != 0)
        fail_msg("%s %s", why, fake_report(g.fake));
    const compare_bound bound = compare_bound_of(OCT__TOL_F32);
    const compare_verdict verdict = problem_judge(&p, &bound);
    if (!verdict.ok)
        fail_msg("%s", verdict.text);
    problem_drop(&p);
    write_case c;
    write_shape w = write_plain(32);
    uint32_t refused;
    w.heads = 1;
    w.dim_k = w.dim_v = 16;
    w.n_tokens = ROWS + 5;
    w.n_pages = (w.n_tokens + w.page_size - 1) / w.page_size + 1;
    w.slots = 0;
    assert_int_equal(write_make(&c, &w), 0);
    write_reset(&c);
    c.args.checked = 1;
    if (device_run_case(g.context, g.stream, &c, &refused, why, sizeof why) != 0 || write_judge(&c, why, sizeof why) != 0)
        fail_msg("%s", why);
    assert_int_equal(refused, 0);
    write_drop(&c);
    gpu_close(&g);
}

int main(int argc, char **argv)
{
    if (argc < 2 || argc > 3 || strncmp(argv[1], "fake:", 5) != 0)
        return fprintf(stderr, "usage: api_device_failures fake:cuda|fake:hip [PATTERN]\n"), 2;
    what = argv[1];
    oracle_init();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_allocation_may_fail),
        cmocka_unit_test(a_device_may_be_lost),
        cmocka_unit_test(a_kernel_may_fault),
        cmocka_unit_test(E3_batches_beyond_65535),
    };
    if (argc == 3 && !test_pattern(tests, sizeof(tests) / sizeof(tests[0]), argv[2]))
        return 2;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
