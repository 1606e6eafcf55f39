/* test_driver.c: src/hip over a double of AMD's driver (arguments: the double, a library that lacks entries), or over the machine's own with a GPU
 * (argument: gpu). */
#include <dlfcn.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "driver/driver_cases.h"

static struct {
    int (*hipGetDevice)(int *device);
    int (*hipSetDevice)(int device);
    int (*hipStreamCreate)(void **stream);
    int (*hipStreamDestroy)(void *stream);
    int (*hipStreamBeginCapture)(void *stream, int mode);
    int (*hipStreamEndCapture)(void *stream, void **graph);
    int (*hipGraphInstantiate)(void **exec, void *graph, void **node, char *log, size_t log_bytes);
    int (*hipGraphLaunch)(void *exec, void *stream);
    int (*hipGraphExecDestroy)(void *exec);
    int (*hipGraphDestroy)(void *graph);
    int (*hipPeekAtLastError)(void);
} hip;

static int attach(void *library)
{
    int n_missing = 0;
#define FIND(name) n_missing += (*(void **)&hip.name = dlsym(library, #name)) == NULL
    FIND(hipGetDevice);
    FIND(hipSetDevice);
    FIND(hipStreamCreate);
    FIND(hipStreamDestroy);
    FIND(hipStreamBeginCapture);
    FIND(hipStreamEndCapture);
    FIND(hipGraphInstantiate);
    FIND(hipGraphLaunch);
    FIND(hipGraphExecDestroy);
    FIND(hipGraphDestroy);
    FIND(hipPeekAtLastError);
#undef FIND
    return n_missing;
}

static void current(int on) { (void)on; }   /* device 0, as every thread's at first */
static int stream_make(void **stream) { return hip.hipStreamCreate(stream); }
static void stream_drop(void *stream) { hip.hipStreamDestroy(stream); }
static int capture_begin(void *stream) { return hip.hipStreamBeginCapture(stream, 0); }

static int capture_end(void *stream, void **exec)
{
    void *graph = NULL;
    int error = hip.hipStreamEndCapture(stream, &graph);
    if (error != 0 || graph == NULL)
        return error != 0 ? error : -1;
    error = hip.hipGraphInstantiate(exec, graph, NULL, NULL, 0);
    hip.hipGraphDestroy(graph);
    return error;
}

static int graph_run(void *exec, void *stream) { return hip.hipGraphLaunch(exec, stream); }
static void graph_drop(void *exec) { hip.hipGraphExecDestroy(exec); }

static void make_old(double_chip *chip) { strcpy(chip->arch, "gfx90a:sramecc+:xnack-"); }
static void make_small(double_chip *chip) { chip->shared_limit_bytes = 48 * 1024; }

static const driver_vendor vendor = {
    .open = oct__hip_open, .error_prefix = "hipError", .attach = attach, .current = current, .stream_make = stream_make, .stream_drop = stream_drop,
    .capture_begin = capture_begin, .capture_end = capture_end, .graph_run = graph_run, .graph_drop = graph_drop, .alloc_entry = "hipMalloc",
    .init_entry = "hipInit", .no_library = "no AMD driver", .lacks = "lacks hipGetLastError", .no_device = "no AMD GPU", .mismatch = 35,
    .make_old = make_old, .no_code = "no kernels for gfx90a", .make_small = make_small,
};

/* ---- over the double only ------------------------------------------------------------------------------------------------------------------- */

/* Each chip's own code; the settings behind the architecture's name do not matter. */
static void chooses_code(void **state)
{
    static const struct { const char *told, *arch; uint32_t shared_bytes; } chips[] = {
        { "gfx942:sramecc+:xnack-", "gfx942", 64 * 1024 }, { "gfx942", "gfx942", 64 * 1024 }, { "gfx950:sramecc+:xnack+", "gfx950", 160 * 1024 },
    };
    for (size_t i = 0; i < sizeof chips / sizeof chips[0]; i++) {
        double_chip chip = driver_cases_double->usual;
        strcpy(chip.arch, chips[i].told);
        chip.shared_limit_bytes = chips[i].shared_bytes;
        driver_cases_double->reset(&chip);
        oct__driver *d = driver_cases_open();
        assert_string_equal(d->code, chips[i].arch);
        assert_string_equal(d->arch, chips[i].arch);
        assert_int_equal(d->chip.shared_limit_bytes, chips[i].shared_bytes);
        d->table->close(d);
    }
    driver_runs_attention(state);   /* with gfx950's shared memory */
    driver_cases_double->reset(NULL);
}

/* 1300 MHz, four transfers a clock, 8192 bits: what AMD says of the MI300X is 5.3 TB/s. */
static void tells_the_memorys_speed(void **state)
{
    (void)state;
    driver_cases_double->reset(NULL);
    oct__driver *d = driver_cases_open();
    assert_true(d->read_bytes_per_s > 5.3e12 && d->read_bytes_per_s < 5.35e12);
    d->table->close(d);
}

/* Whatever device a thread works on, it finds it again, and no error of ours among its own. */
static void leaves_the_callers_device(void **state)
{
    (void)state;
    void *memory = NULL;
    int now = -1;
    char byte = 3;
    const oct__driver_options options = { .library = driver_cases_path, .ordinal = 1 };
    oct__driver *d = NULL;
    driver_cases_double->reset(NULL);
    assert_int_equal(hip.hipSetDevice(0), 0);
    assert_int_equal(vendor.open(&options, &d, NULL), OCT_OK);
    const oct__driver_table *t = d->table;
    const oct__kv_check_params params = { 0 };
    const oct__dev_launch launch = { "kv_check", 1, 1, 256, 0, 0 }, bad = { "attn_extend", 1, 1, 256, 1 << 30, 0 };
    const oct__attn_params attention = { 0 };
    assert_int_equal(t->alloc(d, 10, &memory), OCT_OK);
    assert_int_equal(t->copy_in(d, memory, &byte, 1, NULL), OCT_OK);
    assert_int_equal(t->launch(d, &launch, &params, sizeof params, NULL), OCT_OK);
    assert_int_equal(t->launch(d, &bad, &attention, sizeof attention, NULL), OCT_INVALID_ARGUMENT);
    assert_int_equal(hip.hipPeekAtLastError(), 0);
    assert_int_equal(t->copy_out(d, &byte, memory, 1, NULL), OCT_OK);
    assert_int_equal(t->wait(d, NULL), OCT_OK);
    assert_false(t->is_capturing(d, NULL));
    assert_int_equal(hip.hipGetDevice(&now), 0);
    assert_int_equal(now, 0);
    t->free(d, memory);
    t->close(d);
    assert_int_equal(hip.hipGetDevice(&now), 0);
    assert_int_equal(now, 0);

    driver_cases_double->plan_failure("hipModuleLoadData", 1, 209);
    assert_int_equal(vendor.open(&options, &d, NULL), OCT_UNSUPPORTED);
    assert_int_equal(hip.hipPeekAtLastError(), 0);
    assert_int_equal(hip.hipGetDevice(&now), 0);
    assert_int_equal(now, 0);
    driver_cases_double->reset(NULL);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest own[] = {
        cmocka_unit_test(chooses_code), cmocka_unit_test(tells_the_memorys_speed), cmocka_unit_test(leaves_the_callers_device),
    };
    return driver_cases_main(&vendor, "libamdhip64.so", own, sizeof own / sizeof own[0], argc, argv);
}
