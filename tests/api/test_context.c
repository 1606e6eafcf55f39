/* test_context.c: contexts and their hooks, the machine's own words against the system's, statuses, the version, and formats by name. */
#include "api_test.h"

#include "api/context.h"
#include "cpu/probe.h"

static void defaults_and_null(void **state)
{
    (void)state;
    oct_context *context = NULL;
    oct_error error = OCT_ERROR_INIT;
    assert_int_equal(oct_context_create(NULL, &context, &error), OCT_OK);
    assert_non_null(context);
    assert_string_equal(error.text, "");   /* untouched on success */
    oct_context_destroy(context);
    oct_context_destroy(NULL);
    assert_int_equal(oct_context_create(NULL, NULL, &error), OCT_INVALID_ARGUMENT);
    assert_string_equal(error.text, "context is NULL");
    assert_string_equal(error.where, "oct_context_create");
}

static void no_threads(void *user, uint32_t nth, oct_task task, void *arg)
{
    (void)user, (void)nth, (void)task, (void)arg;
    fail_msg("nothing was to be run");
}

static void half_an_allocator_and_too_many_threads_are_refused(void **state)
{
    (void)state;
    oct_context *context = NULL;
    oct_error error = OCT_ERROR_INIT;
    oct_context_options options = { .struct_size = sizeof(options), .alloc = counting_alloc };
    assert_int_equal(oct_context_create(&options, &context, &error), OCT_INVALID_ARGUMENT);
    assert_string_equal(error.text, "options.free is NULL and options.alloc is not; give both or neither");
    options.alloc = NULL;
    options.free = counting_free;
    assert_int_equal(oct_context_create(&options, &context, &error), OCT_INVALID_ARGUMENT);
    assert_string_equal(error.text, "options.alloc is NULL and options.free is not; give both or neither");
    options.free = NULL;
    options.max_threads = 1025;
    assert_int_equal(oct_context_create(&options, &context, &error), OCT_INVALID_ARGUMENT);
    assert_string_equal(error.text, "options.max_threads is 1025; must be at most 1024");
    assert_null(context);
    const oct_context_options most = { .struct_size = sizeof(most), .max_threads = 1024, .parallel_for = no_threads };
    assert_int_equal(oct_context_create(&most, &context, &error), OCT_OK);
    oct_context_destroy(context);
}

static void memory_comes_from_the_hooks_and_goes_back(void **state)
{
    (void)state;
    counting c = { 0 };
    oct_context *context = context_of(&c, 3);
    assert_true(c.live == 2);   /* the context and its threads */
    oct_context_destroy(context);
    assert_int_equal(c.live, 0);
    assert_int_equal(c.live_bytes, 0);
}

/* ---- threads and log ------------------------------------------------------------------------------------------------------ */

typedef struct recorder {
    uint32_t n_calls, nth;
    int level;
    char text[512];
} recorder;

static void record_parallel_for(void *user, uint32_t nth, oct_task task, void *arg)
{
    recorder *r = user;
    r->n_calls++;
    r->nth = nth;
    for (uint32_t i = 0; i < nth; i++) {
        task(arg, i, nth);
    }
}

static void record_log(void *user, int level, const char *text)
{
    recorder *r = user;
    r->level = level;
    snprintf(r->text, sizeof(r->text), "%s", text);
}

static void work_goes_through_the_thread_hook_and_errors_to_the_log(void **state)
{
    (void)state;
    recorder r = { .level = -1 };
    const oct_context_options options = { .struct_size = sizeof(options), .max_threads = 3, .parallel_for = record_parallel_for, .log = record_log, .user = &r };
    oct_context *context;
    assert_int_equal(oct_context_create(&options, &context, NULL), OCT_OK);
    enum { ROWS = 5000 };
    float *out = calloc(2 * ROWS * DIM, sizeof(float)), *lse = calloc(2 * ROWS, sizeof(float)), *merged = calloc(ROWS * DIM, sizeof(float));
    for (int i = 0; i < ROWS * DIM; i++) {
        out[i] = (float)i;
        out[ROWS * DIM + i] = (float)(3 * i + 2);
        merged[i] = NAN;
    }
    oct_attn_merge_args merge = { .struct_size = sizeof(merge), .n_parts = 2, .rows = ROWS, .heads = 1, .dim = DIM, .out = out, .out_part_stride = ROWS * DIM, .out_row_stride = DIM,
                                  .lse = lse, .lse_part_stride = ROWS, .lse_row_stride = 1, .merged = merged, .merged_row_stride = DIM };
    assert_int_equal(oct_attn_merge(context, &merge), OCT_OK);
    assert_int_equal(r.n_calls, 1);
    assert_int_equal(r.nth, 3);
    for (int i = 0; i < ROWS * DIM; i++) {   /* equal weights of i and 3i + 2 */
        if (fabsf(merged[i] - (float)(2 * i + 1)) > (float)(2 * i + 1) * 1e-5f) {
            fail_msg("merged[%d] is %g", i, (double)merged[i]);
        }
    }
    merge.heads = 0;
    assert_int_equal(oct_attn_merge(context, &merge), OCT_INVALID_ARGUMENT);
    assert_int_equal(r.level, 0);
    assert_string_equal(r.text, "oct_attn_merge: args.heads is 0; must be at least 1");
    free(out);
    free(lse);
    free(merged);
    oct_context_destroy(context);
}

/* ---- the machine ---------------------------------------------------------------------------------------------------------- */

static void the_machine_is_put_into_words(void **state)
{
    (void)state;
    char text[4096], part[64];
    oct_context *context;
    assert_int_equal(oct_context_create(NULL, &context, NULL), OCT_OK);
    size_t length = oct_context_machine(context, OCT_TEXT_PLAIN, text, sizeof(text));
    assert_int_equal(strlen(text), length);
    assert_words(text, "cpu  ");
    assert_words(text, "threads  ");
    assert_words(text, "GB/s");
    /* Each feature stands in the line it belongs to, and no number stands in either. */
    char has[2048], lacks[2048];
    assert_int_equal(sscanf(strstr(text, "\nhas") + 1, "%2047[^\n]", has), 1);
    assert_int_equal(sscanf(strstr(text, "\nlacks") + 1, "%2047[^\n]", lacks), 1);
    strcat(has, " ");
    strcat(lacks, " ");
    for (unsigned fact = 0; fact < OCT__FACT_COUNT; fact++) {
        const char *const numbers[] = { "cpu.cores", "cpu.l2_bytes", "cpu.l3_bytes", "cpu.vendor", "cpu.family", "cpu.model", "cpu.stepping", "os.numa_nodes" };
        char word[64];
        bool is_number = false;
        snprintf(word, sizeof(word), " %s ", oct__fact_name((oct__fact)fact));
        for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
            is_number |= strcmp(oct__fact_name((oct__fact)fact), numbers[i]) == 0;
        }
        const bool is_feature = oct__fact_is_machine((oct__fact)fact) && !oct__fact_is_device((oct__fact)fact) && !is_number;
        assert_int_equal(strstr(has, word) != NULL, is_feature && context->machine.facts.v[fact] != 0);
        assert_int_equal(strstr(lacks, word) != NULL, is_feature && context->machine.facts.v[fact] == 0);
    }
    length = oct_context_machine(context, OCT_TEXT_JSON, text, sizeof(text));
    assert_int_equal(strlen(text), length);
    assert_words(text, "{\"cpu\": \"");
    assert_words(text, "\"cpu.avx2\": ");
    assert_words(text, "\"core_read_bytes_per_s\": ");
    assert_int_equal(oct_context_machine(context, OCT_TEXT_JSON, part, sizeof(part)), length);
    assert_int_equal(strlen(part), sizeof(part) - 1);
    assert_memory_equal(part, text, sizeof(part) - 1);
    assert_int_equal(oct_context_machine(context, OCT_TEXT_JSON, NULL, 0), length);
    assert_int_equal(oct_context_machine(context, 7, part, sizeof(part)), 0);
    assert_int_equal(oct_context_machine(NULL, OCT_TEXT_JSON, part, sizeof(part)), 0);
    assert_string_equal(part, "");
    oct_context_destroy(context);
}

/* The kernel lists a feature that CPUID names and that it has switched on, so with the state facts the two must agree. */
static void facts_agree_with_the_kernel(void **state)
{
    (void)state;
    char line[8192], name[256] = "", flags[8192] = "";
    unsigned numbers[3] = { 0, 0, 0 };   /* family, model, stepping */
    FILE *file = fopen("/proc/cpuinfo", "r");
    while (file != NULL && fgets(line, sizeof(line), file) != NULL) {
        line[strcspn(line, "\n")] = '\0';
        if (strncmp(line, "model name\t: ", 13) == 0) {
            snprintf(name, sizeof(name), "%.255s", line + 13);
        } else if (sscanf(line, "cpu family : %u", &numbers[0]) == 1 || sscanf(line, "model : %u", &numbers[1]) == 1 || sscanf(line, "stepping : %u", &numbers[2]) == 1) {
            continue;
        } else if (strncmp(line, "flags\t\t: ", 9) == 0) {
            snprintf(flags, sizeof(flags), " %.8000s ", line + 9);
            break;
        }
    }
    if (file != NULL) {
        fclose(file);
    }
    if (flags[0] == '\0') {
        printf("no x86 /proc/cpuinfo here: nothing to compare with\n");
        skip();
    }
    static const struct { oct__fact fact; const char *flag; } features[] = {
        { OCT__FACT_CPU_AVX2, " avx2 " },         { OCT__FACT_CPU_FMA, " fma " },           { OCT__FACT_CPU_F16C, " f16c " },
        { OCT__FACT_CPU_AVX512F, " avx512f " },   { OCT__FACT_CPU_AVX512BW, " avx512bw " }, { OCT__FACT_CPU_AVX512VL, " avx512vl " },
        { OCT__FACT_CPU_AVX512VBMI, " avx512vbmi " }, { OCT__FACT_CPU_AVX512VNNI, " avx512_vnni " }, { OCT__FACT_CPU_AVX512BF16, " avx512_bf16 " },
        { OCT__FACT_CPU_AMX_BF16, " amx_bf16 " }, { OCT__FACT_CPU_AMX_INT8, " amx_int8 " },
    };
    oct_context *context;
    assert_int_equal(oct_context_create(NULL, &context, NULL), OCT_OK);
    const oct__facts *facts = &context->machine.facts;
    for (size_t i = 0; i < sizeof(features) / sizeof(features[0]); i++) {
        const bool listed = strstr(flags, features[i].flag) != NULL, zmm = strncmp(features[i].flag, " avx512", 7) == 0;
        if (strncmp(features[i].flag, " amx", 4) == 0) { /* kernels older than tiles list none, and a process may be refused them */
            if (!listed && facts->v[OCT__FACT_OS_TILES] != 0 && facts->v[features[i].fact] != 0) {
                fail_msg("tiles may be used, but the kernel does not list%s", features[i].flag);
            }
            continue;
        }
        const bool usable = facts->v[features[i].fact] != 0 && facts->v[zmm ? OCT__FACT_OS_ZMM : OCT__FACT_OS_YMM] != 0;
        if (listed != usable) {
            fail_msg("the kernel %s%s", listed ? "lists" : "does not list", features[i].flag);
        }
    }
    /* The same brand string but for blanks, and what tells it from others of that name. */
    char squeezed[256];
    size_t n = 0;
    for (const char *c = name; *c != '\0'; c++) {
        if (*c != ' ' || (n > 0 && squeezed[n - 1] != ' ')) {
            squeezed[n++] = *c;
        }
    }
    while (n > 0 && squeezed[n - 1] == ' ') {
        n--;
    }
    squeezed[n] = '\0';
    char rest[64];
    assert_true(strncmp(context->machine.cpu, squeezed, strlen(squeezed)) == 0);
    snprintf(rest, sizeof(rest), " [%u/%u/%u ", numbers[0], numbers[1], numbers[2]);
    assert_true(strncmp(context->machine.cpu + strlen(squeezed), rest, strlen(rest)) == 0);
    assert_true(facts->v[OCT__FACT_CPU_CORES] >= 1);
    oct_context_destroy(context);
}

/* Two CPUs of one brand string, or one CPU with fewer instructions allowed, are not the same. */
static void a_cpus_name_tells_it_from_others_of_its_brand(void **state)
{
    (void)state;
    oct__facts facts = { { 0 } };
    char name[64], short_name[32];
    facts.v[OCT__FACT_CPU_FAMILY] = 25;
    facts.v[OCT__FACT_CPU_MODEL] = 17;
    facts.v[OCT__FACT_CPU_STEPPING] = 1;
    facts.v[OCT__FACT_CPU_FMA] = facts.v[OCT__FACT_CPU_F16C] = facts.v[OCT__FACT_CPU_AVX2] = facts.v[OCT__FACT_CPU_AVX512F] = facts.v[OCT__FACT_CPU_AMX_INT8] = 1;
    facts.v[OCT__FACT_OS_YMM] = facts.v[OCT__FACT_OS_ZMM] = facts.v[OCT__FACT_OS_TILES] = 1;
    oct__cpu_name(&facts, "  AMD  EPYC   ", name, sizeof(name));
    assert_string_equal(name, "AMD EPYC [25/17/1 40f]");
    facts.v[OCT__FACT_CPU_MODEL] = 1;
    oct__cpu_name(&facts, "AMD EPYC", name, sizeof(name));
    assert_string_equal(name, "AMD EPYC [25/1/1 40f]");
    facts.v[OCT__FACT_OS_ZMM] = facts.v[OCT__FACT_OS_TILES] = 0;   /* the CPU has them, the system keeps no such registers */
    oct__cpu_name(&facts, "AMD EPYC", name, sizeof(name));
    assert_string_equal(name, "AMD EPYC [25/1/1 7]");
    oct__cpu_name(&(oct__facts){ { 0 } }, "", name, sizeof(name));
    assert_string_equal(name, "unknown CPU [0/0/0 0]");
    /* What tells CPUs apart stays whole whatever the brand's length: of 48 bytes at most in CPUID. */
    oct__cpu_name(&facts, "A Very Long Name Of A CPU That CPUID Has Room For", short_name, sizeof(short_name));
    assert_string_equal(short_name, "A Very Long Name Of  [25/1/1 7]");
}

/* ---- names ---------------------------------------------------------------------------------------------------------------- */

static void statuses_have_texts(void **state)
{
    (void)state;
    static const struct { oct_status status; const char *name; } cases[] = {
        { OCT_OK, "ok" }, { OCT_INVALID_ARGUMENT, "invalid_argument" }, { OCT_UNSUPPORTED, "unsupported" }, { OCT_OUT_OF_MEMORY, "out_of_memory" },
        { OCT_OUT_OF_PAGES, "out_of_pages" }, { OCT_DEVICE_FAULT, "device_fault" }, { OCT_IO_ERROR, "io_error" }, { OCT_BAD_DATA, "bad_data" }, { OCT_CANCELLED, "cancelled" },
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        assert_int_equal(cases[i].status, i);   /* values never change */
        assert_string_equal(oct_status_name(cases[i].status), cases[i].name);
        assert_true(strlen(oct_status_message(cases[i].status)) > 0);
        assert_string_not_equal(oct_status_message(cases[i].status), "unknown");
    }
    assert_string_equal(oct_status_name((oct_status)9), "unknown");
    assert_string_equal(oct_status_message((oct_status)-1), "unknown");
}

static void the_version_is_said_once(void **state)
{
    (void)state;
    char text[32];
    const uint32_t version = oct_version_number();
    snprintf(text, sizeof(text), "%u.%u.%u", version / 10000, version / 100 % 100, version % 100);
    assert_string_equal(oct_version_string(), text);
    assert_string_equal(oct_version_string(), OCT_VERSION_STRING);
}

static void formats_have_sizes_and_names(void **state)
{
    (void)state;
    static const struct { uint32_t dtype, size; const char *name; } cases[] = {
        { 1, 4, "f32" }, { 2, 2, "f16" }, { 3, 2, "bf16" }, { 4, 1, "e4m3fn" }, { 5, 1, "e4m3fnuz" }, { 6, 1, "e5m2" }, { 7, 1, "i8" },
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        assert_int_equal(oct_dtype_size_bytes(cases[i].dtype), cases[i].size);
        assert_string_equal(oct_dtype_name(cases[i].dtype), cases[i].name);
        assert_int_equal(oct_dtype_from_name(cases[i].name), cases[i].dtype);
    }
    assert_int_equal(oct_dtype_size_bytes(0), 0);
    assert_int_equal(oct_dtype_size_bytes(OCT_DTYPE_V4), 0);
    assert_int_equal(oct_dtype_size_bytes(9), 0);
    assert_int_equal(oct_dtype_bytes(OCT_DTYPE_V4, 96), 54);
    assert_int_equal(oct_dtype_bytes(OCT_DTYPE_V4, 48), 0); /* half a block */
    assert_int_equal(oct_dtype_bytes(OCT_DTYPE_BF16, 48), 96);
    assert_int_equal(oct_dtype_bytes(9, 32), 0);
    assert_string_equal(oct_dtype_name(OCT_DTYPE_V4), "v4");
    assert_int_equal(oct_dtype_from_name("v4"), OCT_DTYPE_V4);
    assert_int_equal(oct_dtype_from_name("E4M3FN"), 0);
    assert_int_equal(oct_dtype_from_name("fp8"), 0);
    assert_int_equal(oct_dtype_from_name(NULL), 0);
}

/* Whatever a caller's variable held, it can be destroyed after an error. */
static void what_is_not_created_is_null(void **state)
{
    (void)state;
    int other;
    void *const garbage = &other;
    oct_context *context = garbage, *made = NULL;
    oct_kv_pool *pool = garbage;
    oct_kv_table *table = garbage;
    oct_kv_twin *twin = garbage;
    oct_plan *plan = garbage;
    const oct_context_options options = { .struct_size = 1 };
    const oct_kv_pool_options pool_options = { .struct_size = 1 };
    const oct_kv_table_options table_options = { .struct_size = 1 };
    const oct_kv_twin_options twin_options = { .struct_size = 1 };
    const oct_attn_spec spec = { .struct_size = 1 };
    assert_int_equal(oct_context_create(NULL, &made, NULL), OCT_OK);
    assert_int_equal(oct_context_create(&options, &context, NULL), OCT_INVALID_ARGUMENT);
    assert_int_equal(oct_kv_pool_create(made, &pool_options, &pool, NULL), OCT_INVALID_ARGUMENT);
    assert_int_equal(oct_kv_table_create(made, &table_options, &table, NULL), OCT_INVALID_ARGUMENT);
    assert_int_equal(oct_kv_twin_create(made, &twin_options, &twin, NULL), OCT_INVALID_ARGUMENT);
    assert_int_equal(oct_plan_create(made, &spec, &plan, NULL), OCT_INVALID_ARGUMENT);
    assert_null(context);
    assert_null(pool);
    assert_null(table);
    assert_null(twin);
    assert_null(plan);
    oct_context_destroy(made);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_not_created_is_null),
        cmocka_unit_test(defaults_and_null),
        cmocka_unit_test(half_an_allocator_and_too_many_threads_are_refused),
        cmocka_unit_test(memory_comes_from_the_hooks_and_goes_back),
        cmocka_unit_test(work_goes_through_the_thread_hook_and_errors_to_the_log),
        cmocka_unit_test(the_machine_is_put_into_words),
        cmocka_unit_test(facts_agree_with_the_kernel),
        cmocka_unit_test(a_cpus_name_tells_it_from_others_of_its_brand),
        cmocka_unit_test(statuses_have_texts),
        cmocka_unit_test(the_version_is_said_once),
        cmocka_unit_test(formats_have_sizes_and_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
