/* test_doors.c: what the doors do and refuse on a context of a GPU: names and libraries of devices, limits, streams, variants by name, pools and their
 * pages, and recorded machines. Argument: "fake:cuda" or "fake:hip". */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "api/context.h"
#include "api_device/gpu.h"
#include "api_device/run_problem.h"

static const char *what;

static void must(oct_status status, const oct_error *error)
{
    if (status != OCT_OK)
        fail_msg("%s: %s", oct_status_name(status), error != NULL ? error->text : "");
}

static void says(const oct_error *error, const char *words)
{
    if (strstr(error->text, words) == NULL)
        fail_msg("'%s' does not say '%s'", error->text, words);
}

static void open_plain(gpu *g, uint32_t has_mma)
{
    oct_error error = OCT_ERROR_INIT;
    must(gpu_open(g, what, NULL, has_mma, NULL, &error), &error);
}

static problem make_problem(int64_t seed)
{
    problem p;
    problem_shape s = problem_plain(seed);
    problem_lengths(&s, 2, (int32_t[]){ 1, 20 }, (int32_t[]){ 40, 33 });
    assert_int_equal(problem_make(&p, &s), 0);
    return p;
}

/* ---- by name ------------------------------------------------------------------------------------------------------------------ */

static void devices_have_names_and_reasons(void **state)
{
    static const struct { const char *device, *library, *machine; oct_status status; const char *words; } cases[] = {
        { "cpu", NULL, NULL, OCT_OK, "" },
        { "gpu", NULL, NULL, OCT_INVALID_ARGUMENT, "options.device is 'gpu'; must be cpu, cuda or hip" },
        { "", NULL, NULL, OCT_INVALID_ARGUMENT, "options.device is ''" },
        { "cuda:", NULL, NULL, OCT_INVALID_ARGUMENT, "options.device is 'cuda:'" },
        { "cuda:x", NULL, NULL, OCT_INVALID_ARGUMENT, "'cuda:x'" },
        { "hip:-1", NULL, NULL, OCT_INVALID_ARGUMENT, "'hip:-1'" },
        { "hip:1 ", NULL, NULL, OCT_INVALID_ARGUMENT, "'hip:1 '" },
        { "cuda:99999", NULL, NULL, OCT_INVALID_ARGUMENT, "'cuda:99999'" },
        { "cuda0", NULL, NULL, OCT_INVALID_ARGUMENT, "'cuda0'" },
        { "cpu", "/lib/x.so", NULL, OCT_INVALID_ARGUMENT, "options.device_library is given, but the CPU opens none" },
        { NULL, "/lib/x.so", NULL, OCT_INVALID_ARGUMENT, "options.device_library is given" },
        { "cuda", "/nowhere/libcuda.so.1", NULL, OCT_UNSUPPORTED, "/nowhere/libcuda.so.1" },
        { "hip:0", "/nowhere/libamdhip64.so", NULL, OCT_UNSUPPORTED, "/nowhere/libamdhip64.so" },
        { NULL, NULL, "mi300x", OCT_OK, "" },
        { NULL, NULL, "zen4", OCT_OK, "" },
        { NULL, NULL, "zen", OCT_INVALID_ARGUMENT, "options.machine is 'zen'; there is no such recorded machine" },
        { "cpu", NULL, "zen4", OCT_INVALID_ARGUMENT, "options.machine and options.device are both given" },
        { NULL, "/lib/x.so", "zen4", OCT_INVALID_ARGUMENT, "options.machine and options.device_library" },
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const oct_context_options options = { .struct_size = sizeof options, .device = cases[i].device, .device_library = cases[i].library, .machine = cases[i].machine };
        oct_context *context = (oct_context *)(uintptr_t)8;
        oct_error error = OCT_ERROR_INIT;
        const oct_status status = oct_context_create(&options, &context, &error);
        if (status != cases[i].status)
            fail_msg("case %zu: %s: %s", i, oct_status_name(status), error.text);
        says(&error, cases[i].words);
        if (status == OCT_OK)
            oct_context_destroy(context);
        else
            assert_null(context);
    }
    /* A library that is none of the vendor's: the C library lacks the entries. */
    const oct_context_options wrong = { .struct_size = sizeof wrong, .device = "cuda", .device_library = "libc.so.6" };
    oct_context *context;
    oct_error error = OCT_ERROR_INIT;
    assert_int_equal(oct_context_create(&wrong, &context, &error), OCT_UNSUPPORTED);
    assert_true(error.text[0] != '\0');
}

static void machines_are_put_into_words(void **state)
{
    char text[8192];
    (void)state;
    gpu g;
    open_plain(&g, 1);
    const size_t length = oct_context_machine(g.context, OCT_TEXT_PLAIN, text, sizeof text);
    assert_int_equal(strlen(text), length);
    assert_non_null(strstr(text, "device      host executor ("));
    assert_non_null(strstr(text, g.context->machine.device == OCT__DEVICE_HIP ? "gfx942" : "sm_90"));
    assert_non_null(strstr(text, "1000 GB/s on paper"));
    assert_non_null(strstr(text, "cpu         "));
    const size_t described = oct_device_describe(g.context, OCT_TEXT_PLAIN, text, sizeof text);
    assert_int_equal(strlen(text), described);
    assert_int_equal(strncmp(text, "device      host executor (", 27), 0);
    assert_null(strstr(text, "cpu "));
    assert_true(oct_device_describe(g.context, OCT_TEXT_JSON, text, sizeof text) > 0);
    assert_non_null(strstr(text, "\"dev.units\": "));
    assert_int_equal(oct_device_describe(NULL, OCT_TEXT_JSON, text, sizeof text), 0);
    oct_context_machine(g.context, OCT_TEXT_JSON, text, sizeof text);
    assert_non_null(strstr(text, "\"device\": {\"kind\": \""));
    assert_non_null(strstr(text, "\"dev.has_mma\": 1"));
    assert_non_null(strstr(text, "\"dev.read_mb_per_s\": 1000000"));
    gpu_close(&g);
}

/* ---- plans ----------------------------------------------------------------------------------------------------------------------- */

static void plans_choose_among_the_devices_rows(void **state)
{
    char text[16384];
    (void)state;
    for (uint32_t has_mma = 0; has_mma < 2; has_mma++) {
        gpu g;
        open_plain(&g, has_mma);
        problem p = make_problem(1);
        oct_attn_spec spec = p.spec;
        oct_plan *plan;
        oct_plan_info info = { .struct_size = sizeof info };
        oct_error error = OCT_ERROR_INIT;
        spec.max_sequences = 4, spec.max_rows = 100, spec.max_keys = 1000;
        must(oct_plan_create(g.context, &spec, &plan, &error), &error);
        must(oct_plan_info_get(plan, &info), NULL);
        assert_true(info.workspace_bytes > 0 && info.n_sequences == 0 && info.decode_variant[0] == '\0');
        oct_plan_explain(plan, OCT_TEXT_PLAIN, text, sizeof text);
        assert_non_null(strstr(text, "host executor; rates of "));
        assert_non_null(strstr(text, has_mma ? "  chosen    attn_decode." : "  refused   attn_decode.mma_8_8_128"));
        assert_non_null(strstr(text, has_mma ? "  eligible  attn_decode.simt4" : "needs dev.has_mma == 1, have 0: matrix units"));
        assert_non_null(strstr(text, "  chosen    attn_extend."));
        assert_non_null(strstr(text, " units\n"));
        assert_null(strstr(text, "avx2"));
        oct_plan_explain(plan, OCT_TEXT_JSON, text, sizeof text);
        assert_non_null(strstr(text, "\"units\": "));
        oct_plan_destroy(plan);
        oct_kv_write_explain(g.context, &spec.kv, OCT_DTYPE_BF16, OCT_TEXT_PLAIN, text, sizeof text);
        assert_non_null(strstr(text, "  chosen    kv_write."));

        spec.force_variant = "attn_decode.simt16,attn_extend.simt";
        spec.deny_variant = "attn_decode.simt8";
        must(oct_plan_create(g.context, &spec, &plan, &error), &error);
        oct_plan_explain(plan, OCT_TEXT_PLAIN, text, sizeof text);
        assert_non_null(strstr(text, "  chosen    attn_decode.simt16, "));
        assert_non_null(strstr(text, "  denied    attn_decode.simt8, "));
        oct_plan_destroy(plan);
        spec.deny_variant = NULL;
        spec.force_variant = "attn_decode.mma_8_8_256,attn_extend.simt";
        assert_int_equal(oct_plan_create(g.context, &spec, &plan, &error), has_mma ? OCT_OK : OCT_UNSUPPORTED);
        if (has_mma)
            oct_plan_destroy(plan);
        else
            says(&error, "attn_decode.mma_8_8_256 needs dev.has_mma == 1, have 0");
        spec.force_variant = "attn_decode.avx2";   /* the CPU's */
        assert_int_equal(oct_plan_create(g.context, &spec, &plan, &error), OCT_INVALID_ARGUMENT);
        says(&error, "there is no variant 'attn_decode.avx2'");
        spec.force_variant = NULL;
        /* Everything that could decode is denied. */
        char deny[1024] = "";
        for (uint32_t i = 0; oct_context_variant_name(g.context, i) != NULL; i++)
            if (strncmp(oct_context_variant_name(g.context, i), "attn_decode.", 12) == 0)
                snprintf(deny + strlen(deny), sizeof deny - strlen(deny), "%s%s", deny[0] != '\0' ? "," : "", oct_context_variant_name(g.context, i));
        spec.deny_variant = deny;
        assert_int_equal(oct_plan_create(g.context, &spec, &plan, &error), OCT_UNSUPPORTED);
        says(&error, "no variant for attn_decode");
        problem_drop(&p);
        assert_int_equal(g.counts.n_live, 0);
        gpu_close(&g);
    }
    assert_null(oct_context_variant_name(NULL, 0));
}

static void limits_are_asked_for_and_hold(void **state)
{
    (void)state;
    gpu g;
    open_plain(&g, 0);
    /* Three decodes, which no tile takes together. */
    problem p;
    problem_shape s = problem_plain(2);
    problem_lengths(&s, 3, (int32_t[]){ 1, 1, 1 }, (int32_t[]){ 40, 33, 5 });
    assert_int_equal(problem_make(&p, &s), 0);
    device_problem d;
    oct_plan *plan;
    oct_error error = OCT_ERROR_INIT;
    problem_blank(&p);
    device_problem_send(&d, g.context, g.stream, &p, NULL);
    must(d.arrays.status, NULL);
    const oct_attn_spec right = d.spec;
    const struct { uint32_t sequences; int64_t rows, keys; const char *words; } limits[] = {
        { 0, 10, 10, "spec.max_sequences is 0; on a GPU it must be 1 to 2^31 - 2" },
        { 2, 0, 10, "spec.max_rows is 0" },
        { 2, 10, -1, "spec.max_keys is -1" },
        { 2, 10, (int64_t)INT32_MAX, "spec.max_keys is 2147483647" },
        { UINT32_MAX, 10, 10, "spec.max_sequences is 4294967295" },
    };
    for (size_t i = 0; i < sizeof limits / sizeof limits[0]; i++) {
        d.spec.max_sequences = limits[i].sequences, d.spec.max_rows = limits[i].rows, d.spec.max_keys = limits[i].keys;
        assert_int_equal(oct_plan_create(g.context, &d.spec, &plan, &error), OCT_INVALID_ARGUMENT);
        says(&error, limits[i].words);
        assert_null(plan);
    }
    /* The struct of the first release has no limits: the same words. */
    d.spec = right;
    d.spec.struct_size = offsetof(oct_attn_spec, max_sequences);
    assert_int_equal(oct_plan_create(g.context, &d.spec, &plan, &error), OCT_INVALID_ARGUMENT);
    says(&error, "spec.max_sequences is 0");
    d.spec = right;
    /* More sequences than the plan was made for: refused at once. */
    d.spec.max_sequences = 1;
    must(oct_plan_create(g.context, &d.spec, &plan, &error), &error);
    assert_int_equal(oct_plan_update(plan, &d.batch, &error), OCT_INVALID_ARGUMENT);
    says(&error, "batch.n_sequences is 3; the plan was made for max_sequences 1");
    must(oct_attn_run(plan, &d.args), NULL);   /* an empty batch */
    oct_plan_destroy(plan);
    /* More rows, which only the device sees: nothing is written, and oct_plan_status says why. */
    d.spec = right;
    d.spec.max_rows = 1;
    d.spec.max_keys = 1;
    d.spec.split_tokens = 1000;   /* no room for splits, which rows could take */
    must(oct_plan_create(g.context, &d.spec, &plan, &error), &error);
    must(oct_plan_status(plan, g.stream, &error), &error);   /* before the first update */
    must(oct_plan_update(plan, &d.batch, &error), &error);
    must(oct_attn_run(plan, &d.args), NULL);
    assert_int_equal(oct_plan_status(plan, g.stream, &error), OCT_INVALID_ARGUMENT);
    says(&error, "the step is larger than spec.max_sequences 3, max_rows 1, max_keys 1");
    must(device_fetch(&d.arrays), NULL);
    problem before;
    assert_int_equal(problem_make(&before, &s), 0);
    problem_blank(&before);
    assert_memory_equal(p.out.at, before.out.at, p.out.size_bytes);
    problem_drop(&before);
    oct_plan_destroy(plan);
    device_problem_drop(&d);
    problem_drop(&p);
    assert_int_equal(g.counts.n_live, 0);
    gpu_close(&g);
}

static void batches_and_arguments_are_checked_without_their_bytes(void **state)
{
    (void)state;
    gpu g;
    open_plain(&g, 0);
    problem p = make_problem(3);
    device_problem d;
    oct_plan *plan;
    oct_error error = OCT_ERROR_INIT;
    device_problem_send(&d, g.context, g.stream, &p, NULL);
    must(d.arrays.status, NULL);
    must(oct_plan_create(g.context, &d.spec, &plan, &error), &error);
#define BATCH(change, words)                                                                \
    do {                                                                                    \
        oct_attn_batch b = d.batch;                                                         \
        change;                                                                             \
        assert_int_equal(oct_plan_update(plan, &b, &error), OCT_INVALID_ARGUMENT);          \
        says(&error, words);                                                                \
    } while (0)
    BATCH(b.qo_indptr = NULL, "batch.qo_indptr is NULL");
    BATCH(b.seq_lens = NULL, "batch.seq_lens is NULL");
    BATCH(b.block_table = NULL, "batch.block_table is NULL");
    BATCH((b.block_table = NULL, b.seq_lens = NULL), "no keys are given");
    BATCH(b.kv_indptr = b.seq_lens, "both forms of keys are given");
    BATCH(b.n_pages = -1, "batch.n_pages is -1");
    BATCH(b.seq_lens = (const int32_t *)(const void *)((const char *)b.seq_lens + 1), "batch.seq_lens is not aligned");
    BATCH(b.struct_size = 8, "batch.struct_size is 8");
    must(oct_plan_update(plan, &d.batch, &error), &error);
#define ARGS(change, words)                                                                 \
    do {                                                                                    \
        oct_attn_args a = d.args;                                                           \
        oct_kv_layer l = d.layer;                                                           \
        a.layer = &l;                                                                       \
        change;                                                                             \
        assert_int_equal(oct_attn_check(plan, &a, &error), OCT_INVALID_ARGUMENT);           \
        says(&error, words);                                                                \
        assert_int_equal(oct_attn_run(plan, &a), OCT_INVALID_ARGUMENT);                     \
    } while (0)
    ARGS(a.q = NULL, "args.q is NULL");
    ARGS(a.out_row_stride = 1, "overlap");
    ARGS(l.k_scale = NULL, "args.layer.k_scale is NULL");
    ARGS(a.q_scale = d.layer.k_scale, "args.q_scale is given");
    ARGS(a.sink = d.layer.k_scale, "args.sink is given");
    ARGS(l.n_pages = 1, "args.layer has 1");
    ARGS(l.k = NULL, "args.layer.k is NULL");
    ARGS(l.spec.v.rotated = 1, "differs from the plan's kv spec");
    must(oct_attn_check(plan, &d.args, &error), &error);
    assert_int_equal(oct_attn_run_part(plan, &d.args, 0, 1), OCT_UNSUPPORTED);
    oct_plan_destroy(plan);
    device_problem_drop(&d);
    problem_drop(&p);
    gpu_close(&g);
}

static void the_cpu_has_no_streams(void **state)
{
    int stream_at = 0;
    void *stream = &stream_at;
    (void)state;
    oct_context *context;
    must(oct_context_create(NULL, &context, NULL), NULL);
    problem p = make_problem(4);
    oct_plan *plan;
    oct_error error = OCT_ERROR_INIT;
    must(oct_plan_create(context, &p.spec, &plan, &error), &error);
    must(problem_update(&p, plan, &error), &error);
    oct_attn_args args = p.args;
    args.stream = stream;
    assert_int_equal(oct_attn_check(plan, &args, &error), OCT_INVALID_ARGUMENT);
    says(&error, "args.stream is given; must be NULL on the CPU");
    assert_int_equal(oct_attn_run(plan, &args), OCT_INVALID_ARGUMENT);
    args.stream = NULL;
    must(oct_attn_run(plan, &args), NULL);
    const int32_t zero = 0;
    const oct_attn_batch batch = { .struct_size = sizeof batch, .qo_indptr = &zero, .stream = stream };
    assert_int_equal(oct_plan_update(plan, &batch, &error), OCT_INVALID_ARGUMENT);
    says(&error, "batch.stream is given; must be NULL on the CPU");
    assert_int_equal(oct_plan_status(plan, stream, &error), OCT_INVALID_ARGUMENT);
    must(oct_plan_status(plan, NULL, &error), &error);
    float value = 1.0f, lse = 0.0f, merged;
    oct_attn_merge_args merge = { .struct_size = sizeof merge, .n_parts = 1, .rows = 1, .heads = 1, .dim = 1, .out = &value, .lse = &lse, .merged = &merged, .stream = stream };
    assert_int_equal(oct_attn_merge(context, &merge), OCT_INVALID_ARGUMENT);
    write_case c;
    const write_shape s = write_plain(4);
    assert_int_equal(write_make(&c, &s), 0);
    write_reset(&c);
    c.args.stream = stream;
    assert_int_equal(oct_kv_write(context, &c.args), OCT_INVALID_ARGUMENT);
    c.args.stream = NULL;
    uint32_t refused;
    c.args.checked = 1;
    c.args.refused = &refused;
    assert_int_equal(oct_kv_write(context, &c.args), OCT_INVALID_ARGUMENT);
    write_drop(&c);
    /* The device's memory is the host's. */
    int from = 5, to = 0;
    void *memory;
    must(oct_device_alloc(context, sizeof from, &memory), NULL);
    assert_int_equal((uintptr_t)memory % 64, 0);
    assert_int_equal(oct_device_copy_in(context, memory, &from, sizeof from, stream), OCT_INVALID_ARGUMENT);
    must(oct_device_copy_in(context, memory, &from, sizeof from, NULL), NULL);
    must(oct_device_copy_out(context, &to, memory, sizeof to, NULL), NULL);
    must(oct_device_wait(context, NULL), NULL);
    assert_int_equal(to, 5);
    assert_int_equal(*(int *)memory, 5);
    assert_int_equal(oct_device_wait(context, stream), OCT_INVALID_ARGUMENT);
    assert_int_equal(oct_device_alloc(context, 0, &memory), OCT_INVALID_ARGUMENT);
    assert_int_equal(oct_device_alloc(NULL, 1, &memory), OCT_INVALID_ARGUMENT);
    oct_device_free(context, memory, sizeof from);
    oct_device_free(context, NULL, 7);
    oct_plan_destroy(plan);
    problem_drop(&p);
    oct_context_destroy(context);
}

/* ---- pools ------------------------------------------------------------------------------------------------------------------------ */

/* A write's sources on the device, and its own check of a refused slot. */
static void pools_live_on_the_device(void **state)
{
    enum { LAYERS = 3, PAGES = 4, PAGE = 8, HEADS = 2, DIM = 16, TOKENS = PAGE };
    static const float k_scales[LAYERS] = { 0.04f, 0.5f, 2.0f }, v_scales[LAYERS] = { 0.1f, 1.0f, 4.0f };
    (void)state;
    gpu g;
    open_plain(&g, 0);
    const oct_kv_spec spec = { .struct_size = sizeof spec, .layout = OCT_LAYOUT_NHD, .heads = HEADS, .dim_k = DIM, .dim_v = DIM, .page_size = PAGE,
                               .k = { OCT_DTYPE_E4M3FN, OCT_SCALE_LAYER, 0, 0 }, .v = { OCT_DTYPE_E5M2, OCT_SCALE_LAYER, 0, 0 } };
    const oct_kv_pool_options options = { .struct_size = sizeof options, .n_layers = LAYERS, .n_pages = PAGES, .spec = spec };
    oct_context *host;
    oct_kv_pool *pool, *host_pool;
    oct_error error = OCT_ERROR_INIT;
    must(oct_context_create(NULL, &host, NULL), NULL);
    must(oct_kv_pool_create(g.context, &options, &pool, &error), &error);
    must(oct_kv_pool_create(host, &options, &host_pool, &error), &error);
    assert_int_equal(oct_kv_pool_bytes(pool), oct_kv_pool_bytes(host_pool));
    oct_kv_layer view;
    assert_int_equal(oct_kv_pool_layer(pool, 0, &view, &error), OCT_INVALID_ARGUMENT);
    says(&error, "was never set");
    float source[TOKENS * HEADS * DIM];
    int32_t slots[TOKENS];
    rng r = rng_make(5);
    for (int i = 0; i < TOKENS * HEADS * DIM; i++)
        source[i] = (float)rng_normal(&r) * 2.0f;
    for (int i = 0; i < TOKENS; i++)
        slots[i] = PAGE + i;   /* page 1 */
    const float bad = 0.0f;
    assert_int_equal(oct_kv_pool_set_scale(pool, 0, 0, &bad, 1, &error), OCT_INVALID_ARGUMENT);
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        oct_kv_layer views[2];
        oct_kv_pool *const pools[2] = { host_pool, pool };
        device_arrays a = { .context = g.context, .stream = g.stream };
        for (int on_device = 0; on_device < 2; on_device++) {
            must(oct_kv_pool_set_scale(pools[on_device], layer, 0, &k_scales[layer], 1, &error), &error);
            must(oct_kv_pool_set_scale(pools[on_device], layer, 1, &v_scales[layer], 1, &error), &error);
            must(oct_kv_pool_layer(pools[on_device], layer, &views[on_device], &error), &error);
            oct_kv_write_args args = { .struct_size = sizeof args, .layer = &views[on_device], .slots = slots, .n_tokens = TOKENS, .src_dtype = OCT_DTYPE_F32,
                                       .k = source, .v = source, .k_token_stride = HEADS * DIM, .k_head_stride = DIM, .v_token_stride = HEADS * DIM, .v_head_stride = DIM };
            if (on_device) {
                args.slots = device_send(&a, slots, sizeof slots, 0);
                args.k = args.v = device_send(&a, source, sizeof source, 0);
                args.stream = g.stream;
            }
            must(oct_kv_write(on_device ? g.context : host, &args), NULL);
        }
        must(device_fetch(&a), NULL);
    }
    /* Page 1 becomes page 3's copy in every layer; every byte of the pool is the host pool's. */
    must(oct_kv_pool_copy_page(host_pool, 1, 3), NULL);
    must(oct_kv_pool_copy_page(pool, 1, 3), NULL);
    must(oct_kv_pool_copy_page(pool, 2, 2), NULL);
    assert_int_equal(oct_kv_pool_copy_page(pool, 1, PAGES), OCT_INVALID_ARGUMENT);
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        oct_kv_layer views[2];
        unsigned char bytes[PAGES * PAGE * HEADS * DIM];
        float scale;
        must(oct_kv_pool_layer(host_pool, layer, &views[0], NULL), NULL);
        must(oct_kv_pool_layer(pool, layer, &views[1], NULL), NULL);
        for (int v = 0; v < 2; v++) {
            must(oct_device_copy_out(g.context, bytes, v ? views[1].v : views[1].k, sizeof bytes, g.stream), NULL);
            must(oct_device_copy_out(g.context, &scale, v ? views[1].v_scale : views[1].k_scale, sizeof scale, g.stream), NULL);
            must(oct_device_wait(g.context, g.stream), NULL);
            assert_memory_equal(bytes, v ? views[0].v : views[0].k, sizeof bytes);
            assert_true(scale == (v ? v_scales[layer] : k_scales[layer]));
        }
    }
    oct_kv_pool_destroy(pool);
    oct_kv_pool_destroy(host_pool);
    oct_kv_pool_destroy(NULL);
    oct_context_destroy(host);
    assert_int_equal(g.counts.n_live, 0);
    gpu_close(&g);
}

/* ---- rates ---------------------------------------------------------------------------------------------------------------------------- */

static void rates_are_of_the_devices_memory(void **state)
{
    (void)state;
    gpu g;
    oct_error error = OCT_ERROR_INIT;
    oct_rates rates = { .struct_size = sizeof rates };
    void *memory;
    must(gpu_open(&g, what, NULL, 1, NULL, &error), &error);
    must(oct_rates_measure(g.context, 0.1, &rates, &error), &error);
    assert_string_equal(rates.cpu, "host executor");
    assert_true(rates.threads > 0 && rates.read_memory_bytes[0] > 0 && rates.read_memory_bytes[1] > 0 && rates.copy_memory_bytes[0] > 0 && rates.copy_memory_bytes[1] > 0);
    assert_true(rates.read_memory_bytes[1] < 1e12 && rates.clock_hz == 0 && rates.dot_bf16_flops[1] == 0);
    assert_int_equal((int)g.counts.n_live, 0);
    /* What is short, captured or lost is told, and nothing stays behind. */
    for (size_t nth = 1; nth <= 2; nth++) {
        g.counts.fail_at = g.counts.n_made + nth;
        assert_int_equal(oct_rates_measure(g.context, 0.1, &rates, &error), nth == 1 ? OCT_OUT_OF_MEMORY : OCT_OK);   /* half of the second one is there */
        assert_int_equal((int)g.counts.n_live, 0);
    }
    g.counts.fail_at = 0;
    gpu_capture_begin(&g, g.stream);
    assert_int_equal(oct_rates_measure(g.context, 0.1, &rates, &error), OCT_UNSUPPORTED);
    (void)gpu_capture_end(&g, g.stream);
    must(oct_device_alloc(g.context, 1, &memory), NULL);
    oct_device_free(g.context, memory, 1);
    g.counts.is_lost = true;
    assert_int_equal(oct_rates_measure(g.context, 0.1, &rates, &error), OCT_DEVICE_FAULT);
    says(&error, "measuring");
    gpu_close(&g);
}

/* ---- recorded machines --------------------------------------------------------------------------------------------------------------- */

static void recorded_machines_answer_and_run_nothing(void **state)
{
    char text[16384];
    (void)state;
    for (uint32_t i = 0; oct_machine_name(i) != NULL; i++) {
        const oct_context_options options = { .struct_size = sizeof options, .max_threads = 8, .machine = oct_machine_name(i) };
        oct_context *context;
        oct_plan *plan;
        oct_kv_pool *pool;
        void *memory;
        oct_error error = OCT_ERROR_INIT;
        problem p = make_problem(6);
        must(oct_context_create(&options, &context, &error), &error);
        assert_true(oct_context_machine(context, OCT_TEXT_PLAIN, text, sizeof text) > 0);
        must(oct_plan_create(context, &p.spec, &plan, &error), &error);
        oct_plan_explain(plan, OCT_TEXT_PLAIN, text, sizeof text);
        assert_non_null(strstr(text, "  chosen    attn_decode."));
        oct_kv_write_explain(context, &p.spec.kv, OCT_DTYPE_F16, OCT_TEXT_PLAIN, text, sizeof text);
        assert_non_null(strstr(text, "  chosen    kv_write."));
        assert_int_equal(oct_attn_run(plan, &p.args), OCT_UNSUPPORTED);
        assert_int_equal(oct_attn_check(plan, &p.args, &error), OCT_UNSUPPORTED);
        says(&error, "recorded machine");
        const oct_kv_pool_options pool_options = { .struct_size = sizeof pool_options, .n_layers = 1, .n_pages = 1, .spec = p.spec.kv };
        assert_int_equal(oct_kv_pool_create(context, &pool_options, &pool, &error), OCT_UNSUPPORTED);
        assert_int_equal(oct_device_alloc(context, 1, &memory), OCT_UNSUPPORTED);
        float value = 1.0f, lse = 0.0f, merged;
        const oct_attn_merge_args merge = { .struct_size = sizeof merge, .n_parts = 1, .rows = 1, .heads = 1, .dim = 1, .out = &value, .lse = &lse, .merged = &merged };
        assert_int_equal(oct_attn_merge(context, &merge), OCT_UNSUPPORTED);
        write_case c;
        const write_shape s = write_plain(4);
        assert_int_equal(write_make(&c, &s), 0);
        assert_int_equal(oct_kv_write(context, &c.args), OCT_UNSUPPORTED);
        write_drop(&c);
        oct_rates rates = { .struct_size = sizeof rates };
        assert_int_equal(oct_rates_measure(context, 1, &rates, &error), OCT_UNSUPPORTED);
        oct_plan_destroy(plan);
        oct_context_destroy(context);
        problem_drop(&p);
    }
}

/* Four rows a sequence of five query heads each: two tiles of 16 vectors, or four of 8. */
static void limits_tell_how_many_rows_a_decode_has(void **state)
{
    static const struct { int64_t max_rows; const char *chosen; } cases[] = {
        { 8, "chosen    attn_decode.sm90a_8_8_64_8," }, { 32, "chosen    attn_decode.sm90a_8_8_64_16," }, { 4096, "chosen    attn_decode.sm90a_8_8_64_8," },
    };
    const oct_context_options options = { .struct_size = sizeof options, .machine = "h200" };
    oct_context *context;
    oct_error error = OCT_ERROR_INIT;
    char text[16384];
    (void)state;
    must(oct_context_create(&options, &context, &error), &error);
    problem p = make_problem(6);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        oct_attn_spec spec = p.spec;
        oct_plan *plan;
        spec.heads_q = 5 * spec.kv.heads;
        spec.kv.dim_k = spec.kv.dim_v = 64;
        spec.max_sequences = 8;
        spec.max_rows = cases[i].max_rows;
        spec.max_keys = 100000;
        must(oct_plan_create(context, &spec, &plan, &error), &error);
        oct_plan_explain(plan, OCT_TEXT_PLAIN, text, sizeof text);
        if (strstr(text, cases[i].chosen) == NULL)
            fail_msg("%lld rows of 8 sequences: no %s in\n%s", (long long)cases[i].max_rows, cases[i].chosen, text);
        assert_non_null(strstr(text, cases[i].max_rows == 32 ? "attn_decode: 4 rows over 4096 keys" : "attn_decode: 1 row over 4096 keys"));
        spec.max_keys = 300;
        oct_plan_destroy(plan);
        must(oct_plan_create(context, &spec, &plan, &error), &error);
        oct_plan_explain(plan, OCT_TEXT_PLAIN, text, sizeof text);
        assert_non_null(strstr(text, "over 300 keys"));
        oct_plan_destroy(plan);
    }
    oct_context_destroy(context);
    problem_drop(&p);
}

int main(int argc, char **argv)
{
    if (argc != 2 || strncmp(argv[1], "fake:", 5) != 0)
        return fprintf(stderr, "usage: api_device_doors fake:cuda|fake:hip\n"), 2;
    what = argv[1];
    oracle_init();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(devices_have_names_and_reasons),
        cmocka_unit_test(machines_are_put_into_words),
        cmocka_unit_test(plans_choose_among_the_devices_rows),
        cmocka_unit_test(limits_are_asked_for_and_hold),
        cmocka_unit_test(batches_and_arguments_are_checked_without_their_bytes),
        cmocka_unit_test(the_cpu_has_no_streams),
        cmocka_unit_test(pools_live_on_the_device),
        cmocka_unit_test(limits_tell_how_many_rows_a_decode_has),
        cmocka_unit_test(rates_are_of_the_devices_memory),
        cmocka_unit_test(recorded_machines_answer_and_run_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
