/* test_rates.c: measuring a machine, and what a context does with the result or refuses. */
#include "api_test.h"

#include "api/context.h"

static oct_rates measure(oct_context *context)
{
    oct_rates rates = { .struct_size = sizeof(rates) };
    oct_error error = OCT_ERROR_INIT;
    if (oct_rates_measure(context, 0.1, &rates, &error) != OCT_OK) {
        fail_msg("%s", error.text);
    }
    return rates;
}

static void a_machine_is_measured_and_memory_given_back(void **state)
{
    (void)state;
    counting c = { 0 };
    oct_context *context = context_of(&c, 2);
    const size_t live = c.live;
    const oct_rates r = measure(context);
    assert_int_equal(c.live, live);
    assert_int_equal(r.threads, 2);
    assert_string_equal(r.cpu, context->machine.cpu);
    /* Wide bounds of anything that runs these tests, sanitizers included; what the CPU lacks is 0 and nothing else is. */
    assert_true(r.clock_hz > 1e8 && r.clock_hz < 1e10);
    const struct { const double *pair; bool has; } rates[] = {
        { r.copy_l1_bytes, true }, { r.copy_l2_bytes, true }, { r.read_l1_bytes, true }, { r.read_l2_bytes, true }, { r.read_memory_bytes, true }, { r.copy_memory_bytes, true },
        { r.fma_avx2_flops, context->machine.facts.v[OCT__FACT_CPU_FMA] && context->machine.facts.v[OCT__FACT_OS_YMM] },
        { r.fma_avx512_flops, context->machine.facts.v[OCT__FACT_CPU_AVX512F] && context->machine.facts.v[OCT__FACT_OS_ZMM] },
        { r.dot_bf16_flops, context->machine.facts.v[OCT__FACT_CPU_AVX512BF16] && context->machine.facts.v[OCT__FACT_OS_ZMM] },
        { r.convert_i8_elements, context->machine.facts.v[OCT__FACT_CPU_FMA] && context->machine.facts.v[OCT__FACT_OS_YMM] },
        { r.dot_amx_bf16_flops, context->machine.facts.v[OCT__FACT_CPU_AMX_BF16] && context->machine.facts.v[OCT__FACT_OS_TILES] },
        { r.dot_i8_ops, context->machine.facts.v[OCT__FACT_CPU_AVX512VNNI] && context->machine.facts.v[OCT__FACT_OS_ZMM] },
    };
    for (size_t i = 0; i < sizeof(rates) / sizeof(rates[0]); i++) {
        for (int k = 0; k < 2; k++) {
            if (rates[i].has ? !(rates[i].pair[k] > 1e7 && rates[i].pair[k] < 1e15) : rates[i].pair[k] != 0) {
                fail_msg("rate %zu[%d] is %g", i, k, rates[i].pair[k]);
            }
        }
    }
    oct_context_destroy(context);
    assert_int_equal(c.live, 0);

    c = (counting){ 0 };
    context = context_of(&c, 1);
    for (size_t nth = 1; nth <= 2; nth++) {
        oct_rates none = { .struct_size = sizeof(none) };
        c.fail_at = c.made + nth;
        assert_int_equal(oct_rates_measure(context, 0.1, &none, NULL), OCT_OUT_OF_MEMORY);
        assert_int_equal(c.live, 1);
        assert_true(none.read_memory_bytes[0] == 0);
    }
    oct_context_destroy(context);
}

static void a_wrong_call_is_named(void **state)
{
    (void)state;
    counting c = { 0 };
    oct_context *context = context_of(&c, 1);
    oct_rates rates = { .struct_size = sizeof(rates) };
    static const double wrong[] = { 0, 0.09, 61, NAN, INFINITY, -1 };
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        oct_error error = OCT_ERROR_INIT;
        assert_int_equal(oct_rates_measure(context, wrong[i], &rates, &error), OCT_INVALID_ARGUMENT);
        assert_non_null(strstr(error.text, "seconds"));
    }
    oct_error error = OCT_ERROR_INIT;
    assert_int_equal(oct_rates_measure(NULL, 1, &rates, &error), OCT_INVALID_ARGUMENT);
    assert_string_equal(error.text, "context is NULL");
    assert_int_equal(oct_rates_measure(context, 1, NULL, &error), OCT_INVALID_ARGUMENT);
    assert_string_equal(error.text, "rates is NULL");
    rates.struct_size = 8;
    assert_int_equal(oct_rates_measure(context, 1, &rates, &error), OCT_INVALID_ARGUMENT);
    assert_non_null(strstr(error.text, "rates.struct_size is 8"));
    oct_context_destroy(context);
}

static oct_status try_rates(const oct_rates *rates, oct_context **context, oct_error *error)
{
    const oct_context_options options = { .struct_size = sizeof(options), .rates = rates };
    return oct_context_create(&options, context, error);
}

/* Rates that no one has measured, of this CPU. */
static oct_rates plausible(void)
{
    oct_context *context;
    oct_rates r = { .struct_size = sizeof(r), .threads = 2, .source = "a file", .read_memory_bytes = { 1e9, 2e9 }, .clock_hz = 3.7e9, .fma_avx2_flops = { 118e9, 236e9 } };
    assert_int_equal(oct_context_create(NULL, &context, NULL), OCT_OK);
    snprintf(r.cpu, sizeof(r.cpu), "%s", context->machine.cpu);
    oct_context_destroy(context);
    return r;
}

static void a_context_takes_rates_of_its_own_cpu_only(void **state)
{
    (void)state;
    oct_context *context = NULL;
    oct_error error = OCT_ERROR_INIT;
    oct_rates r = plausible();
    assert_int_equal(try_rates(&r, &context, &error), OCT_OK);
    memset(&r, 0, sizeof(r));   /* copied: the caller's may go */
    char text[8192];
    oct_context_machine(context, OCT_TEXT_PLAIN, text, sizeof(text));
    assert_non_null(strstr(text, "1 GB/s one thread, 2 GB/s all, core speed 1 (a file)"));
    assert_non_null(strstr(text, "FMA f32 AVX2"));
    assert_null(strstr(text, "bf16 dot"));
    oct_context_machine(context, OCT_TEXT_JSON, text, sizeof(text));
    assert_non_null(strstr(text, "\"source\": \"a file\""));
    assert_non_null(strstr(text, "\"read_memory_bytes_per_s\": [1e+09, 2e+09]"));
    oct_context_destroy(context);

    assert_int_equal(oct_context_create(NULL, &context, NULL), OCT_OK);
    oct_context_machine(context, OCT_TEXT_JSON, text, sizeof(text));
    assert_non_null(strstr(text, "\"measured\": null"));
    oct_context_destroy(context);

    /* Another stepping of the same brand, and a file from before the brand was told from others. */
    r = plausible();
    char *const bracket = strrchr(r.cpu, '[');
    assert_non_null(bracket);
    r.cpu[strcspn(r.cpu, "]") - 1] ^= 1;
    assert_int_equal(try_rates(&r, &context, &error), OCT_INVALID_ARGUMENT);
    assert_non_null(strstr(error.text, "rates are of another CPU"));
    r = plausible();
    *strrchr(r.cpu, '[') = '\0';
    assert_int_equal(try_rates(&r, &context, &error), OCT_INVALID_ARGUMENT);

    r = plausible();
    snprintf(r.cpu, sizeof(r.cpu), "Some Other 9000");
    assert_int_equal(try_rates(&r, &context, &error), OCT_INVALID_ARGUMENT);
    assert_non_null(strstr(error.text, "Some Other 9000"));
    assert_null(context);

    static const struct { const char *name; size_t offset; double value; } wrong[] = {
        { "read_memory_bytes", offsetof(oct_rates, read_memory_bytes), 0 },      { "read_memory_bytes", offsetof(oct_rates, read_memory_bytes[1]), NAN },
        { "clock_hz", offsetof(oct_rates, clock_hz), -1 },                       { "fma_avx2_flops", offsetof(oct_rates, fma_avx2_flops[1]), INFINITY },
        { "dot_bf16_flops", offsetof(oct_rates, dot_bf16_flops), 1 },            { "read_l1_bytes", offsetof(oct_rates, read_l1_bytes[1]), -1 },
    };
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        r = plausible();
        memcpy((char *)&r + wrong[i].offset, &wrong[i].value, sizeof(double));
        assert_int_equal(try_rates(&r, &context, &error), OCT_INVALID_ARGUMENT);
        assert_non_null(strstr(error.text, wrong[i].name));
    }
    r = plausible();
    r.threads = 0;
    assert_int_equal(try_rates(&r, &context, &error), OCT_INVALID_ARGUMENT);
    r = plausible();
    memset(r.source, 'x', sizeof(r.source));   /* not terminated */
    assert_int_equal(try_rates(&r, &context, &error), OCT_INVALID_ARGUMENT);

    r = plausible();
    r.struct_size = offsetof(oct_rates, convert_i8_elements);   /* a caller from before the last rates */
    r.dot_amx_bf16_flops[0] = NAN;                              /* not its own: not looked at */
    assert_int_equal(try_rates(&r, &context, &error), OCT_OK);
    oct_context_destroy(context);
    r.struct_size--;
    assert_int_equal(try_rates(&r, &context, &error), OCT_INVALID_ARGUMENT);
    r = plausible();
    r.struct_size = 0;
    assert_int_equal(try_rates(&r, &context, &error), OCT_INVALID_ARGUMENT);
}

/* The rates are what costs are made of: a machine that reads at a tenth of the rate takes ten times as long for the same bytes. */
static void predictions_follow_the_rates(void **state)
{
    (void)state;
    double seconds[2];
    problem p;
    problem_init(&p);
    for (int i = 0; i < 2; i++) {
        oct_context *context;
        oct_plan *plan;
        oct_rates r = plausible();
        r.read_memory_bytes[0] = r.read_memory_bytes[1] = i == 0 ? 1e1 : 1e0;   /* so slow that nothing else counts */
        assert_int_equal(try_rates(&r, &context, NULL), OCT_OK);
        assert_int_equal(oct_plan_create(context, &p.spec, &plan, NULL), OCT_OK);
        assert_int_equal(oct_plan_update(plan, &p.padded, NULL), OCT_OK);
        oct_plan_info info = { .struct_size = sizeof(info) };
        assert_int_equal(oct_plan_info_get(plan, &info), OCT_OK);
        seconds[i] = info.predicted_seconds;
        oct_plan_destroy(plan);
        oct_context_destroy(context);
    }
    assert_true(seconds[0] > 0 && fabs(seconds[1] / seconds[0] - 10) < 1e-6);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_machine_is_measured_and_memory_given_back),
        cmocka_unit_test(a_wrong_call_is_named),
        cmocka_unit_test(a_context_takes_rates_of_its_own_cpu_only),
        cmocka_unit_test(predictions_follow_the_rates),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
