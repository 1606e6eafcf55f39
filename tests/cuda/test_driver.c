/* test_driver.c: src/cuda over a double of NVIDIA's driver (arguments: the double, a library that lacks entries), or over the machine's own with a GPU
 * (argument: gpu). */
#include <dlfcn.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "driver/driver_cases.h"

static struct {
    int (*cuDevicePrimaryCtxRetain)(void **context, int device);
    int (*cuDevicePrimaryCtxRelease_v2)(int device);
    int (*cuCtxPushCurrent_v2)(void *context);
    int (*cuCtxPopCurrent_v2)(void **context);
    int (*cuCtxGetCurrent)(void **context);
    int (*cuStreamCreate)(void **stream, unsigned flags);
    int (*cuStreamDestroy_v2)(void *stream);
    int (*cuStreamBeginCapture_v2)(void *stream, int mode);
    int (*cuStreamEndCapture)(void *stream, void **graph);
    int (*cuGraphInstantiateWithFlags)(void **exec, void *graph, unsigned long long flags);
    int (*cuGraphLaunch)(void *exec, void *stream);
    int (*cuGraphExecDestroy)(void *exec);
    int (*cuGraphDestroy)(void *graph);
} cu;

static int attach(void *library)
{
    int n_missing = 0;
#define FIND(name) n_missing += (*(void **)&cu.name = dlsym(library, #name)) == NULL
    FIND(cuDevicePrimaryCtxRetain);
    FIND(cuDevicePrimaryCtxRelease_v2);
    FIND(cuCtxPushCurrent_v2);
    FIND(cuCtxPopCurrent_v2);
    FIND(cuCtxGetCurrent);
    FIND(cuStreamCreate);
    FIND(cuStreamDestroy_v2);
    FIND(cuStreamBeginCapture_v2);
    FIND(cuStreamEndCapture);
    FIND(cuGraphInstantiateWithFlags);
    FIND(cuGraphLaunch);
    FIND(cuGraphExecDestroy);
    FIND(cuGraphDestroy);
#undef FIND
    return n_missing;
}

static void current(int on)
{
    void *context = NULL;
    if (on) {
        assert_int_equal(cu.cuDevicePrimaryCtxRetain(&context, 0), 0);
        assert_int_equal(cu.cuCtxPushCurrent_v2(context), 0);
    } else {
        assert_int_equal(cu.cuCtxPopCurrent_v2(&context), 0);
        assert_int_equal(cu.cuDevicePrimaryCtxRelease_v2(0), 0);
    }
}

static int stream_make(void **stream) { return cu.cuStreamCreate(stream, 0); }
static void stream_drop(void *stream) { cu.cuStreamDestroy_v2(stream); }
static int capture_begin(void *stream) { return cu.cuStreamBeginCapture_v2(stream, 0); }

static int capture_end(void *stream, void **exec)
{
    void *graph = NULL;
    int error = cu.cuStreamEndCapture(stream, &graph);
    if (error != 0 || graph == NULL)
        return error != 0 ? error : -1;
    error = cu.cuGraphInstantiateWithFlags(exec, graph, 0);
    cu.cuGraphDestroy(graph);
    return error;
}

static int graph_run(void *exec, void *stream) { return cu.cuGraphLaunch(exec, stream); }
static void graph_drop(void *exec) { cu.cuGraphExecDestroy(exec); }

static void make_old(double_chip *chip) { chip->capability = 75; }

static void make_small(double_chip *chip)
{
    chip->capability = 86;
    chip->shared_limit_bytes = 99 * 1024;
}

static const driver_vendor vendor = {
    .open = oct__cuda_open, .error_prefix = "CUDA_ERROR_", .attach = attach, .current = current, .stream_make = stream_make, .stream_drop = stream_drop,
    .capture_begin = capture_begin, .capture_end = capture_end, .graph_run = graph_run, .graph_drop = graph_drop, .alloc_entry = "cuMemAlloc_v2",
    .init_entry = "cuInit", .no_library = "no NVIDIA driver", .lacks = "lacks cuDeviceGetCount", .no_device = "no NVIDIA GPU", .mismatch = 803,
    .make_old = make_old, .no_code = "no kernels for sm_75", .make_small = make_small,
};

/* ---- over the double only ------------------------------------------------------------------------------------------------------------------- */

/* Machine code for its own chip, text for every other one from 8.0 on. */
static void chooses_code(void **state)
{
    static const struct { int capability; const char *code, *arch; } chips[] = {
        { 80, "sm_80 ptx", "sm_80" }, { 86, "sm_80 ptx", "sm_86" }, { 89, "sm_80 ptx", "sm_89" }, { 90, "sm_90a cubin", "sm_90" },
        { 100, "sm_80 ptx", "sm_100" }, { 120, "sm_80 ptx", "sm_120" },
    };
    (void)state;
    for (size_t i = 0; i < sizeof chips / sizeof chips[0]; i++) {
        double_chip chip = driver_cases_double->usual;
        chip.capability = chips[i].capability;
        driver_cases_double->reset(&chip);
        oct__driver *d = driver_cases_open();
        assert_string_equal(d->code, chips[i].code);
        assert_string_equal(d->arch, chips[i].arch);
        assert_int_equal(d->chip.has_mma, 1);
        assert_int_equal(d->chip.has_sm90a, chips[i].capability == 90);   /* in its cubin */
        d->table->close(d);
    }
    driver_cases_double->reset(NULL);
}

/* 3201 MHz, two transfers a clock, 6144 bits: what NVIDIA says of the H200 is 4.8 TB/s. */
static void tells_the_memorys_speed(void **state)
{
    (void)state;
    driver_cases_double->reset(NULL);
    oct__driver *d = driver_cases_open();
    assert_true(d->read_bytes_per_s > 4.9e12 && d->read_bytes_per_s < 4.93e12);
    d->table->close(d);
}

/* The compiler of PTX has something to say when it refuses. */
static void keeps_the_compilers_log(void **state)
{
    (void)state;
    double_chip chip = driver_cases_double->usual;
    const oct__driver_options options = { .library = driver_cases_path };
    oct_error error = OCT_ERROR_INIT;
    oct__driver *d = NULL;
    chip.capability = 89;
    driver_cases_double->reset(&chip);
    driver_cases_double->plan_failure("cuModuleLoadDataEx", 1, 222);
    assert_int_equal(vendor.open(&options, &d, &error), OCT_UNSUPPORTED);
    assert_non_null(strstr(error.text, "CUDA_ERROR_UNSUPPORTED_PTX_VERSION"));
    assert_non_null(strstr(error.text, "the double's log"));
    driver_cases_double->reset(NULL);
}

/* A driver that is too old for the code: which one takes it. Where something else is wrong, none would. */
static void names_the_driver_that_is_needed(void **state)
{
    static const struct { int error, is_old; } kinds[] = { { 200, 1 }, { 209, 1 }, { 218, 1 }, { 222, 1 }, { 300, 0 }, { 2, 0 } };
    (void)state;
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        const oct__driver_options options = { .library = driver_cases_path };
        oct_error error = OCT_ERROR_INIT;
        oct__driver *d = NULL;
        driver_cases_double->reset(NULL);
        driver_cases_double->plan_failure("cuModuleLoadDataEx", 1, kinds[i].error);
        assert_int_equal(vendor.open(&options, &d, &error), kinds[i].error == 2 ? OCT_OUT_OF_MEMORY : OCT_UNSUPPORTED);
        assert_int_equal(strstr(error.text, " (a driver of version 580 or newer takes it)") != NULL, kinds[i].is_old);
    }
    driver_cases_double->reset(NULL);
    const oct__driver_options lacking = { .library = driver_cases_lacking };
    oct_error error = OCT_ERROR_INIT;
    oct__driver *d = NULL;
    assert_int_equal(vendor.open(&lacking, &d, &error), OCT_UNSUPPORTED);
    assert_non_null(strstr(error.text, "lacks cuDeviceGetCount; a driver of version 580 or newer is needed"));
}

/* Whatever context a thread works in, it finds it again; the library's is its own affair. */
static void leaves_the_callers_context(void **state)
{
    (void)state;
    double_chip chip = driver_cases_double->usual;
    chip.n_devices = 2;
    driver_cases_double->reset(&chip);
    void *mine = NULL, *now = NULL, *memory = NULL, *popped = NULL;
    char byte = 3;
    const oct__driver_options options = { .library = driver_cases_path, .ordinal = 1 };
    oct__driver *d = NULL;
    current(1);   /* device 0's */
    assert_int_equal(cu.cuCtxGetCurrent(&mine), 0);
    assert_int_equal(vendor.open(&options, &d, NULL), OCT_OK);
    const oct__driver_table *t = d->table;
    const oct__kv_check_params params = { 0 };
    const oct__dev_launch launch = { "kv_check", 1, 1, 256, 0, 0 }, bad = { "attn_extend", 1, 1, 256, 1 << 30, 0 };
    const oct__attn_params attention = { 0 };
    assert_int_equal(t->alloc(d, 10, &memory), OCT_OK);
    assert_int_equal(t->copy_in(d, memory, &byte, 1, NULL), OCT_OK);
    assert_int_equal(t->launch(d, &launch, &params, sizeof params, NULL), OCT_OK);
    assert_int_equal(t->launch(d, &bad, &attention, sizeof attention, NULL), OCT_INVALID_ARGUMENT);
    assert_int_equal(t->copy_out(d, &byte, memory, 1, NULL), OCT_OK);
    assert_int_equal(t->wait(d, NULL), OCT_OK);
    assert_false(t->is_capturing(d, NULL));
    t->free(d, memory);
    t->close(d);
    assert_int_equal(cu.cuCtxGetCurrent(&now), 0);
    assert_ptr_equal(now, mine);
    assert_int_equal(driver_cases_double->live().current, 1);
    assert_int_equal(cu.cuCtxPopCurrent_v2(&popped), 0);
    assert_int_equal(cu.cuDevicePrimaryCtxRelease_v2(0), 0);
    driver_cases_double->reset(NULL);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest own[] = {
        cmocka_unit_test(chooses_code), cmocka_unit_test(tells_the_memorys_speed), cmocka_unit_test(keeps_the_compilers_log),
 cmocka_unit_test(names_the_driver_that_is_needed),
        cmocka_unit_test(leaves_the_callers_context),
    };
    return driver_cases_main(&vendor, "libcuda.so.1", own, sizeof own / sizeof own[0], argc, argv);
}
