/* driver_cases.c: see driver_cases.h: opening, memory, launches, captures, threads, faults. What kernels compute is in driver_results.c. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "driver/driver_cases.h"

#include "driver/step.h"

const driver_vendor *driver_cases_vendor;
const char *driver_cases_path, *driver_cases_lacking;
const driver_double *driver_cases_double;

/* Opens the library for the tests too: the double at the path, or the vendor's own. */
static int begin(const driver_vendor *vendor, const char *path, const char *usual)
{
    driver_cases_vendor = vendor;
    driver_cases_path = path;
    void *library = dlopen(path != NULL ? path : usual, RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) {
        print_error("%s\n", dlerror());
        return -1;
    }
    driver_double_door *door = NULL;
    *(void **)&door = dlsym(library, "oct_driver_double");
    driver_cases_double = path != NULL && door != NULL ? door() : NULL;
    oracle_init();
    return (path != NULL && driver_cases_double == NULL) || vendor->attach(library) != 0;
}

oct__driver *driver_cases_open(void)
{
    const oct__driver_options options = { .library = driver_cases_path };
    oct_error error = OCT_ERROR_INIT;
    oct__driver *driver = NULL;
    const oct_status status = driver_cases_vendor->open(&options, &driver, &error);
    if (status != OCT_OK)
        print_error("%s: %s\n", oct_status_name(status), error.text);
    assert_int_equal(status, OCT_OK);
    assert_non_null(driver);
    return driver;
}

/* ---- opening ---------------------------------------------------------------------------------------------------------------------------- */

void driver_opens(void **state)
{
    (void)state;
    oct__driver *first = driver_cases_open(), *second = driver_cases_open();
    print_message("%s (%s), code %s: %u units, warps of %u, %u bytes of shared memory, %.1f GiB, %.0f GB/s\n", first->device, first->arch, first->code,
                  first->chip.n_units, first->chip.warp, first->chip.shared_limit_bytes, (double)first->memory_bytes / (1 << 30), first->read_bytes_per_s * 1e-9);
    assert_true(first->chip.warp == 32 || first->chip.warp == 64);
    assert_true(first->chip.n_units > 0 && first->chip.shared_limit_bytes >= 48 * 1024 && first->memory_bytes >= (uint64_t)1 << 30);
    assert_int_equal(first->chip.has_mma, 1);
    assert_true(first->read_bytes_per_s > 1e11 && first->read_bytes_per_s < 1e14);
    assert_true(first->device[0] != '\0' && first->arch[0] != '\0' && first->code[0] != '\0');
    assert_string_equal(first->table->fault(first), "");
    first->table->close(first);
    void *memory = NULL;   /* each holds on by itself */
    assert_int_equal(second->table->alloc(second, 100, &memory), OCT_OK);
    second->table->free(second, memory);
    second->table->close(second);
}

/* ---- memory ----------------------------------------------------------------------------------------------------------------------------- */

void driver_keeps_memory(void **state)
{
    (void)state;
    oct__driver *d = driver_cases_open();
    const oct__driver_table *t = d->table;
    enum { N = 100000 };
    unsigned char *host = malloc(N), *back = calloc(N, 1);
    void *at = NULL, *other = NULL;
    assert_true(host != NULL && back != NULL);
    for (int i = 0; i < N; i++)
        host[i] = (unsigned char)(i * 31 + i / 251);
    assert_int_equal(t->alloc(d, N, &at), OCT_OK);
    assert_int_equal(t->alloc(d, 1, &other), OCT_OK);
    assert_true((uintptr_t)at % 256 == 0 && (uintptr_t)other % 256 == 0);
    assert_int_equal(t->copy_in(d, at, host, N, NULL), OCT_OK);
    memset(host, 0xEE, N);   /* it was copied from before the call returned */
    assert_int_equal(t->fill(d, (char *)at + 500, 0xA5, 700, NULL), OCT_OK);
    assert_int_equal(t->copy_out(d, back, at, N, NULL), OCT_OK);
    assert_int_equal(t->wait(d, NULL), OCT_OK);
    for (int i = 0; i < N; i++)
        assert_int_equal(back[i], i >= 500 && i < 1200 ? 0xA5 : (unsigned char)(i * 31 + i / 251));
    /* Within the device, in the order of the stream. */
    assert_int_equal(t->fill(d, (char *)at + 600, 0x5A, 10, NULL), OCT_OK);
    assert_int_equal(t->copy(d, (char *)at + 90000, (char *)at + 450, 1000, NULL), OCT_OK);
    assert_int_equal(t->fill(d, (char *)at + 450, 0, 1000, NULL), OCT_OK);
    assert_int_equal(t->copy(d, (char *)at + 7, at, 0, NULL), OCT_OK);
    assert_int_equal(t->copy_out(d, back, (char *)at + 90000, 1000, NULL), OCT_OK);
    assert_int_equal(t->wait(d, NULL), OCT_OK);
    for (int i = 450; i < 1450; i++)
        assert_int_equal(back[i - 450], i >= 600 && i < 610 ? 0x5A : i >= 500 && i < 1200 ? 0xA5 : (unsigned char)(i * 31 + i / 251));

    /* Nothing of no bytes. */
    void *none = at;
    assert_int_equal(t->alloc(d, 0, &none), OCT_OK);
    assert_null(none);
    t->free(d, NULL);
    assert_int_equal(t->copy_in(d, at, host, 0, NULL), OCT_OK);
    assert_int_equal(t->copy_out(d, back, at, 0, NULL), OCT_OK);
    assert_int_equal(t->fill(d, at, 0, 0, NULL), OCT_OK);

    /* More than there is: a status, the vendor's name for it, and all goes on. */
    assert_int_equal(t->alloc(d, (size_t)1 << 50, &none), OCT_OUT_OF_MEMORY);
    assert_null(none);
    assert_non_null(strstr(t->fault(d), driver_cases_vendor->error_prefix));
    assert_int_equal(t->fill(d, at, 7, 1, NULL), OCT_OK);
    assert_int_equal(t->wait(d, NULL), OCT_OK);
    t->free(d, other);
    t->free(d, at);
    t->close(d);
    free(host);
    free(back);
}

/* ---- launches ---------------------------------------------------------------------------------------------------------------------------- */

void driver_refuses_launches(void **state)
{
    (void)state;
    oct__driver *d = driver_cases_open();
    const oct__driver_table *t = d->table;
    oct__kv_check_params params = { 0 };   /* no tokens: every lane ends at once */
    oct__attn_params attention = { 0 };
    uint32_t n_launched = 0;
    for (uint32_t grid_y = 1; grid_y <= 65535; grid_y = grid_y * 2 + 1, n_launched++) {
        const oct__dev_launch good = { "kv_check", 1, grid_y < 1000 ? grid_y : 65535, 256, 0, 0 };
        if (driver_cases_double != NULL && grid_y >= 100)
            break;   /* 16 million lanes take the executor a minute */
        assert_int_equal(t->launch(d, &good, &params, sizeof params, NULL), OCT_OK);
    }
    assert_true(n_launched >= 6);
    const oct__dev_launch bad[] = {
        { "kv_chek", 1, 1, 256, 0, 0 },           { "", 1, 1, 256, 0, 0 },      { "kv_check", 1, 1, 128, 0, 0 },        { "kv_check", 1, 1, 0, 0, 0 },
        { "kv_check", 0, 1, 256, 0, 0 },          { "kv_check", 1, 0, 256, 0, 0 }, { "kv_check", 1, 65536, 256, 0, 0 }, { "kv_check", 1u << 24, 1, 256, 0, 0 },
        { "kv_check", UINT32_MAX, 1, 256, 0, 0 },
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        assert_int_equal(t->launch(d, &bad[i], &params, sizeof params, NULL), OCT_INVALID_ARGUMENT);
    const oct__dev_launch good = { "kv_check", 1, 1, 256, 0, 0 }, early = { "kv_check", 1, 1, 256, 0, 1 };
    const oct__dev_launch greedy = { "attn_extend", 1, 1, 256, d->chip.shared_limit_bytes + 16, 0 };
    assert_int_equal(t->launch(d, &good, NULL, sizeof params, NULL), OCT_INVALID_ARGUMENT);
    assert_int_equal(t->launch(d, &good, &params, sizeof params - 8, NULL), OCT_INVALID_ARGUMENT);
    assert_int_equal(t->launch(d, &early, &params, sizeof params, NULL), OCT_OK);
    assert_int_equal(t->launch(d, &greedy, &attention, sizeof attention, NULL), OCT_INVALID_ARGUMENT);
    assert_int_equal(t->launch(d, &good, &params, sizeof params, NULL), OCT_OK);
    assert_int_equal(t->wait(d, NULL), OCT_OK);
    t->close(d);
}

/* ---- captures ----------------------------------------------------------------------------------------------------------------------------- */

static problem captured_problem(void)
{
    problem p;
    problem_shape shape = problem_plain(11);
    problem_lengths(&shape, 3, (const int32_t[]){ 1, 3, 70 }, (const int32_t[]){ 40, 33, 75 });
    assert_int_equal(problem_make(&p, &shape), 0);
    assert_int_equal(problem_expect(&p), 0);
    return p;
}

void driver_captures(void **state)
{
    (void)state;
    const driver_vendor *v = driver_cases_vendor;
    oct__driver *d = driver_cases_open();
    const oct__driver_table *t = d->table;
    problem p = captured_problem();
    step s;
    void *stream = NULL, *graph = NULL, *memory = NULL;
    unsigned char byte = 1;
    v->current(1);
    assert_int_equal(v->stream_make(&stream), 0);
    v->current(0);
    step_make(&s, d, stream, &p);
    assert_int_equal(step_enqueue(&s), OCT_OK);
    assert_int_equal(step_fetch(&s), OCT_OK);
    step_judge(&s);

    /* A capture takes fills and launches, refuses the rest and lives on. */
    assert_int_equal(t->fill(d, s.out, 0x11, p.out.size_bytes, stream), OCT_OK);
    assert_int_equal(t->wait(d, stream), OCT_OK);
    assert_false(t->is_capturing(d, stream));
    assert_false(t->is_capturing(d, NULL));
    v->current(1);
    assert_int_equal(v->capture_begin(stream), 0);
    v->current(0);
    assert_true(t->is_capturing(d, stream));
    assert_true(t->is_capturing(d, NULL));
    assert_int_equal(t->copy_in(d, s.out, &byte, 1, stream), OCT_UNSUPPORTED);
    assert_int_equal(t->copy_out(d, &byte, s.out, 1, stream), OCT_UNSUPPORTED);
    assert_int_equal(t->copy(d, s.out, s.out, 1, stream), OCT_UNSUPPORTED);
    assert_int_equal(t->wait(d, stream), OCT_UNSUPPORTED);
    assert_int_equal(t->copy_in(d, s.out, &byte, 1, NULL), OCT_UNSUPPORTED);
    assert_int_equal(t->wait(d, NULL), OCT_UNSUPPORTED);
    assert_int_equal(step_enqueue(&s), OCT_OK);
    v->current(1);
    assert_int_equal(v->capture_end(stream, &graph), 0);
    v->current(0);
    assert_non_null(graph);
    assert_false(t->is_capturing(d, stream));

    /* Nothing has run yet; each replay does, and follows what device memory says by then. */
    assert_int_equal(t->copy_out(d, &byte, s.out, 1, stream), OCT_OK);
    assert_int_equal(t->wait(d, stream), OCT_OK);
    assert_int_equal(byte, 0x11);
    for (int round = 0; round < 3; round++) {
        p.kv_len[0] = (const int32_t[]){ 40, 23, 1 }[round];
        assert_int_equal(problem_expect(&p), 0);
        assert_int_equal(t->copy_in(d, s.seq_lens, p.kv_len, sizeof p.kv_len[0], stream), OCT_OK);
        v->current(1);
        assert_int_equal(v->graph_run(graph, stream), 0);
        v->current(0);
        problem_blank(&p);
        assert_int_equal(step_fetch(&s), OCT_OK);
        step_judge(&s);
    }

    /* What takes memory has no place in a capture; the vendor ends it by that, and the device goes on. */
    for (int bad = 0; bad < (driver_cases_double != NULL ? 3 : 2); bad++) {   /* a GPU may well free */
        void *broken = NULL;
        v->current(1);
        assert_int_equal(v->capture_begin(stream), 0);
        v->current(0);
        if (bad == 0) {
            assert_int_equal(t->alloc(d, 1000, &memory), OCT_UNSUPPORTED);
            assert_null(memory);
        } else if (bad == 1) {
            assert_int_equal(t->fill(d, s.out, 0, 1, NULL), OCT_UNSUPPORTED);
        } else {
            t->free(d, s.out);   /* refused: it is freed with the step */
        }
        v->current(1);
        if (v->capture_end(stream, &broken) == 0)
            v->graph_drop(broken);
        v->current(0);
        assert_int_equal(step_enqueue(&s), OCT_OK);
        assert_int_equal(step_fetch(&s), OCT_OK);
        step_judge(&s);
    }
    v->current(1);
    v->graph_drop(graph);
    v->stream_drop(stream);
    v->current(0);
    s.stream = NULL;
    step_drop(&s);
    t->close(d);
    problem_drop(&p);
}

/* ---- threads ------------------------------------------------------------------------------------------------------------------------------ */

typedef struct thread_work { step s; problem p; oct_status status; } thread_work;

static void *work_along(void *argument)
{
    thread_work *w = argument;
    for (int i = 0; i < 3 && w->status == OCT_OK; i++) {
        void *memory = NULL;
        w->status = w->s.driver->table->alloc(w->s.driver, 5000, &memory);
        if (w->status == OCT_OK)
            w->status = step_enqueue(&w->s);
        if (w->status == OCT_OK)
            w->status = step_fetch(&w->s);
        w->s.driver->table->free(w->s.driver, memory);
    }
    return NULL;
}

/* Threads that have no context of their own, each with a stream, on one driver. */
void driver_runs_streams_from_threads(void **state)
{
    (void)state;
    enum { THREADS = 4 };
    static thread_work works[THREADS];
    const driver_vendor *v = driver_cases_vendor;
    oct__driver *d = driver_cases_open();
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++) {
        void *stream = NULL;
        const problem_shape shape = problem_plain(20 + i);
        assert_int_equal(problem_make(&works[i].p, &shape), 0);
        assert_int_equal(problem_expect(&works[i].p), 0);
        v->current(1);
        assert_int_equal(v->stream_make(&stream), 0);
        v->current(0);
        step_make(&works[i].s, d, stream, &works[i].p);
        works[i].status = OCT_OK;
    }
    for (int i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, work_along, &works[i]), 0);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    for (int i = 0; i < THREADS; i++) {
        assert_int_equal(works[i].status, OCT_OK);
        step_judge(&works[i].s);
        step_drop(&works[i].s);
        v->current(1);
        v->stream_drop(works[i].s.stream);
        v->current(0);
        problem_drop(&works[i].p);
    }
    d->table->close(d);
}

/* ---- faults ------------------------------------------------------------------------------------------------------------------------------- */

void driver_tells_faults(void **state)
{
    (void)state;
    oct__driver *d = driver_cases_open();
    const oct__driver_table *t = d->table;
    void *at = NULL;
    char buffer[16] = { 0 };
    oct__merge_params params;
    oct__dev_launch launch;
    float *nowhere = (float *)(uintptr_t)0x10000;
    oct_attn_merge_args args = { .struct_size = sizeof args, .out = nowhere, .lse = nowhere, .merged = nowhere, .n_parts = 1, .rows = 1, .heads = 1, .dim = 16, .out_part_stride = 16, .out_row_stride = 16,
                                 .out_head_stride = 16, .lse_part_stride = 1, .lse_row_stride = 1, .lse_head_stride = 1, .merged_row_stride = 16,
                                 .merged_head_stride = 16 };
    assert_int_equal(t->alloc(d, 1000, &at), OCT_OK);
    assert_true(oct__dev_pack_merge(&d->chip, &args, &params, &launch));
    assert_int_equal(t->launch(d, &launch, &params, sizeof params, NULL), OCT_OK);   /* it fails when it runs */
    assert_int_equal(t->wait(d, NULL), OCT_DEVICE_FAULT);
    assert_non_null(strstr(t->fault(d), driver_cases_vendor->error_prefix));
    assert_true(strcasestr(t->fault(d), "illegal") != NULL || strcasestr(t->fault(d), "launch") != NULL);
    print_message("the fault's name: %s\n", t->fault(d));

    /* Lost for good: everything says so, and nothing crashes. */
    void *more = at;
    for (int i = 0; i < 2; i++) {
        assert_int_equal(t->alloc(d, 1000, &more), OCT_DEVICE_FAULT);
        assert_null(more);
        assert_int_equal(t->copy_in(d, at, buffer, sizeof buffer, NULL), OCT_DEVICE_FAULT);
        assert_int_equal(t->copy_out(d, buffer, at, sizeof buffer, NULL), OCT_DEVICE_FAULT);
        assert_int_equal(t->copy(d, at, at, 1, NULL), OCT_DEVICE_FAULT);
        assert_int_equal(t->fill(d, at, 0, 10, NULL), OCT_DEVICE_FAULT);
        assert_int_equal(t->launch(d, &launch, &params, sizeof params, NULL), OCT_DEVICE_FAULT);
        assert_int_equal(t->wait(d, NULL), OCT_DEVICE_FAULT);
        assert_false(t->is_capturing(d, NULL));
    }
    t->free(d, at);
    t->close(d);
}

int driver_cases_main(const driver_vendor *vendor, const char *usual, const struct CMUnitTest *own, size_t n_own, int argc, char **argv)
{
    static const struct CMUnitTest everywhere[] = {
        cmocka_unit_test(driver_opens), cmocka_unit_test(driver_keeps_memory), cmocka_unit_test(driver_refuses_launches),
        cmocka_unit_test(driver_runs_writes), cmocka_unit_test(driver_runs_attention), cmocka_unit_test(driver_runs_merges),
        cmocka_unit_test(driver_runs_large_grids), cmocka_unit_test(driver_reaches_large_pools), cmocka_unit_test(driver_captures),
        cmocka_unit_test(driver_runs_streams_from_threads), cmocka_unit_test(driver_tells_faults),
    };
    static const struct CMUnitTest over_a_double[] = {
        cmocka_unit_test(driver_gives_everything_back), cmocka_unit_test(driver_stays_lost), cmocka_unit_test(driver_says_what_is_missing),
        cmocka_unit_test(driver_survives_each_failure_at_open), cmocka_unit_test(driver_survives_failing_allocations),
        cmocka_unit_test(driver_uses_the_callers_allocator), cmocka_unit_test(driver_adapts_to_small_chips),
        cmocka_unit_test(driver_refuses_what_is_no_stream),
    };
    const int is_gpu = argc == 2 && strcmp(argv[1], "gpu") == 0;
    if (!is_gpu && argc != 3) {
        print_error("usage: %s gpu | DOUBLE.so LACKING.so\n", argv[0]);
        return 2;
    }
    driver_cases_lacking = is_gpu ? NULL : argv[2];
    if (begin(vendor, is_gpu ? NULL : argv[1], usual) != 0)
        return 2;
    int failed = cmocka_run_group_tests_name("every driver", everywhere, NULL, NULL);
    if (!is_gpu) {
        failed += cmocka_run_group_tests_name("a double", over_a_double, NULL, NULL);
        failed += _cmocka_run_group_tests("a vendor's own", own, n_own, NULL, NULL);
    }
    return failed;
}
