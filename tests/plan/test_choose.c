/* test_choose.c: choosing by gates and cost over a table of the test's own; forced and denied names; and that the real table is sound. */
#include "plan_test.h"

#include "plan/gate.h"

static const oct__gate needs_avx2[] = { { OCT__FACT_CPU_AVX2, OCT__GATE_EQ, 1, "AVX2 instructions" } };
static const oct__gate needs_zmm[] = {
    { OCT__FACT_CPU_AVX512BF16, OCT__GATE_EQ, 1, "VDPBF16PS" },
    { OCT__FACT_OS_ZMM, OCT__GATE_EQ, 1, "the kernel saves ZMM state" },
};
static const oct__variant rows[] = {
    { .op = OCT__OP_attn_decode, .name = "scalar", .full_name = "attn_decode.scalar" },
    { .op = OCT__OP_attn_decode, .name = "avx2", .full_name = "attn_decode.avx2", .gates = needs_avx2, .n_gates = 1 },
    { .op = OCT__OP_attn_decode, .name = "avx2b", .full_name = "attn_decode.avx2b", .gates = needs_avx2, .n_gates = 1 },
    { .op = OCT__OP_attn_decode, .name = "avx512", .full_name = "attn_decode.avx512", .gates = needs_zmm, .n_gates = 2 },
    { .op = OCT__OP_attn_extend, .name = "avx2", .full_name = "attn_extend.avx2", .gates = needs_avx2, .n_gates = 1 },
    { .op = OCT__OP_kv_write, .name = "scalar", .full_name = "kv_write.scalar" },
};
enum { N = sizeof(rows) / sizeof(rows[0]), ATTN = 1u << OCT__OP_attn_decode | 1u << OCT__OP_attn_extend };
static const double seconds[N] = { 9, 3, 3, 1, 2, 1 };

static oct__facts facts_of(bool avx2, bool bf16, bool zmm)
{
    oct__facts facts = { { 0 } };
    facts.v[OCT__FACT_CPU_AVX2] = avx2;
    facts.v[OCT__FACT_CPU_AVX512BF16] = bf16;
    facts.v[OCT__FACT_OS_ZMM] = zmm;
    return facts;
}

static oct_status choose(const oct__facts *facts, const char *force, const char *deny, const oct__variant **chosen, oct_error *error)
{
    oct__rules rules;
    *error = (oct_error)OCT_ERROR_INIT;
    const oct_status status = oct__rules_read(rows, N, ATTN, force, deny, "test", &rules, error);
    return status == OCT_OK ? oct__choose(rows, N, OCT__OP_attn_decode, facts, &rules, seconds, "test", chosen, error) : status;
}

static void lowest_cost_among_those_whose_gates_hold(void **state)
{
    (void)state;
    const oct__variant *chosen;
    oct_error error;
    oct__facts facts = facts_of(true, true, true);
    assert_int_equal(choose(&facts, NULL, NULL, &chosen, &error), OCT_OK);
    assert_ptr_equal(chosen, &rows[3]);
    facts = facts_of(true, true, false);
    assert_int_equal(choose(&facts, NULL, NULL, &chosen, &error), OCT_OK);
    assert_ptr_equal(chosen, &rows[1]);   /* a tie: the first of the table */
    facts = facts_of(false, false, false);
    assert_int_equal(choose(&facts, NULL, NULL, &chosen, &error), OCT_OK);
    assert_ptr_equal(chosen, &rows[0]);
}

static void force_and_deny_are_obeyed(void **state)
{
    (void)state;
    const oct__variant *chosen;
    oct_error error;
    const oct__facts facts = facts_of(true, true, true);
    assert_int_equal(choose(&facts, "attn_decode.scalar", NULL, &chosen, &error), OCT_OK);
    assert_ptr_equal(chosen, &rows[0]);
    assert_int_equal(choose(&facts, " attn_extend.avx2 ,\tattn_decode.avx2b\n", NULL, &chosen, &error), OCT_OK);
    assert_ptr_equal(chosen, &rows[2]);
    assert_int_equal(choose(&facts, NULL, "attn_decode.avx512", &chosen, &error), OCT_OK);
    assert_ptr_equal(chosen, &rows[1]);
    assert_int_equal(choose(&facts, NULL, "attn_decode.avx512,attn_decode.avx2, attn_decode.avx2", &chosen, &error), OCT_OK);
    assert_ptr_equal(chosen, &rows[2]);
}

static void what_cannot_be_is_a_status_never_a_fallback(void **state)
{
    (void)state;
    const oct__variant *chosen = NULL;
    oct_error error;
    const oct__facts facts = facts_of(true, true, false);
    assert_int_equal(choose(&facts, "attn_decode.avx512", NULL, &chosen, &error), OCT_UNSUPPORTED);
    assert_string_equal(error.text, "forced attn_decode: attn_decode.avx512 needs os.zmm_state == 1, have 0: the kernel saves ZMM state");
    assert_int_equal(choose(&facts, NULL, "attn_decode.scalar,attn_decode.avx2,attn_decode.avx2b", &chosen, &error), OCT_UNSUPPORTED);
    assert_string_equal(error.text, "no variant for attn_decode: attn_decode.scalar is denied; attn_decode.avx2 is denied; attn_decode.avx2b is denied; "
                                    "attn_decode.avx512 needs os.zmm_state == 1, have 0: the kernel saves ZMM state");
    assert_null(chosen);
    oct__rules none = { .forced = { NULL } };
    error = (oct_error)OCT_ERROR_INIT;
    assert_int_equal(oct__choose(rows, N, OCT__OP_attn_merge, &facts, &none, seconds, "test", &chosen, &error), OCT_UNSUPPORTED);
    assert_string_equal(error.text, "no variant for attn_merge: there is none in the table");
}

static void bad_names_are_named(void **state)
{
    (void)state;
    static const struct { const char *force, *deny, *text; } cases[] = {
        { "attn_decode.sse2", NULL, "force_variant: there is no variant 'attn_decode.sse2'" },
        { NULL, "attn_decode.avx2,nonsense", "deny_variant: there is no variant 'nonsense'" },
        { "", NULL, "force_variant: there is no variant ''" },
        { "attn_decode.avx2,", NULL, "force_variant: there is no variant ''" },
        { ",attn_decode.avx2", NULL, "force_variant: there is no variant ''" },
        { "avx2", NULL, "force_variant: there is no variant 'avx2'" },
        { "attn_decode.avx", NULL, "force_variant: there is no variant 'attn_decode.avx'" },
        { "ATTN_DECODE.AVX2", NULL, "force_variant: there is no variant 'ATTN_DECODE.AVX2'" },
        { "attn_decode.avx2 attn_extend.avx2", NULL, "force_variant: there is no variant 'attn_decode.avx2 attn_extend.avx2'" },
        { NULL, "kv_write.scalar", "deny_variant: 'kv_write.scalar' is a variant, but kv_write is not chosen here" },
        { "attn_decode.avx2,attn_decode.scalar", NULL, "force_variant names both 'attn_decode.scalar' and 'attn_decode.avx2'; only one can run" },
        { "attn_decode.avx2", "attn_decode.avx2", "force_variant and deny_variant both name 'attn_decode.avx2'" },
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        oct__rules rules;
        oct_error error = OCT_ERROR_INIT;
        assert_int_equal(oct__rules_read(rows, N, ATTN, cases[i].force, cases[i].deny, "test", &rules, &error), OCT_INVALID_ARGUMENT);
        assert_string_equal(error.text, cases[i].text);
        assert_int_equal(error.status, OCT_INVALID_ARGUMENT);
        assert_string_equal(error.where, "test");
    }
    /* A name longer than an error has room for. */
    char longest[5000];
    memset(longest, 'x', sizeof(longest));
    longest[sizeof(longest) - 1] = '\0';
    oct__rules rules;
    oct_error error = OCT_ERROR_INIT;
    assert_int_equal(oct__rules_read(rows, N, ATTN, longest, NULL, "test", &rules, &error), OCT_INVALID_ARGUMENT);
    assert_true(strlen(error.text) < sizeof(error.text));
}

/* A write into two layers takes a row that can do both. */
static void a_row_must_suit_both_destinations(void **state)
{
    (void)state;
    static const oct__gate needs_32[] = { { OCT__FACT_HEAD_DIM_K, OCT__GATE_MULT, 32, "" } };
    static const oct__variant writes[] = {
        { .op = OCT__OP_attn_merge, .cost = { .item_ns = 1 } },
        { .op = OCT__OP_kv_write, .cost = { .item_ns = 100 } },
        { .op = OCT__OP_kv_write, .cost = { .item_ns = 10 }, .gates = needs_32, .n_gates = 1 },
        { .op = OCT__OP_kv_write, .cost = { .item_ns = 10 }, .gates = needs_32, .n_gates = 1 },
    };
    const oct__rates machine = { 1e9, 1e9, 1, "test", 1, 1, 1 };
    const oct__amount amount = { .items = 5 };
    oct__facts wide = { { 0 } }, narrow = { { 0 } };
    wide.v[OCT__FACT_HEAD_DIM_K] = 64;
    narrow.v[OCT__FACT_HEAD_DIM_K] = 80;
    assert_ptr_equal(oct__choose_cheapest(writes, 4, OCT__OP_kv_write, &wide, &wide, &machine, &amount, 1), &writes[2]);
    assert_ptr_equal(oct__choose_cheapest(writes, 4, OCT__OP_kv_write, &wide, &narrow, &machine, &amount, 1), &writes[1]);
    assert_ptr_equal(oct__choose_cheapest(writes, 4, OCT__OP_kv_write, &narrow, &wide, &machine, &amount, 1), &writes[1]);
    assert_ptr_equal(oct__choose_cheapest(writes, 1, OCT__OP_attn_merge, &wide, &wide, &machine, &amount, 1), &writes[0]);
    assert_null(oct__choose_cheapest(writes, 4, OCT__OP_attn_decode, &wide, &wide, &machine, &amount, 1));
    assert_null(oct__choose_cheapest(writes + 2, 2, OCT__OP_kv_write, &wide, &narrow, &machine, &amount, 1));
}

/* ---- the table that ships ------------------------------------------------------------------------------------------------ */

static void every_row_is_whole_and_has_a_name_of_its_own(void **state)
{
    (void)state;
    uint32_t n;
    const oct__variant *table = oct__variants(&n);
    bool has_op[OCT__OP_COUNT] = { false }, has_open_row[OCT__OP_COUNT] = { false };
    for (uint32_t i = 0; i < n; i++) {
        const oct__variant *v = &table[i];
        char name[64];
        snprintf(name, sizeof(name), "%s.%s", oct__op_name(v->op), v->name);
        assert_string_equal(v->full_name, name);
        assert_true(strlen(name) < sizeof(((oct_plan_info *)NULL)->decode_variant));
        assert_string_equal(oct_variant_name(i), name);
        for (uint32_t j = 0; j < i; j++) {
            assert_string_not_equal(table[j].full_name, name);
        }
        const bool attn = v->op == OCT__OP_attn_decode || v->op == OCT__OP_attn_extend;
        assert_int_equal(v->attn != NULL, attn);
        assert_int_equal(v->scratch != NULL, attn);
        assert_int_equal(v->tile_vectors > 0, attn);
        assert_int_equal(v->write != NULL, v->op == OCT__OP_kv_write);
        assert_int_equal(v->merge != NULL, v->op == OCT__OP_attn_merge);
        assert_true(v->cost.item_ns >= 0 && v->cost.many.mac_ps >= 0 && v->cost.many.convert_ps >= 0 && v->cost.many.exp_ps >= 0);
        assert_true(v->cost.item_ns + v->cost.many.mac_ps + v->cost.many.convert_ps + v->cost.many.exp_ps > 0);
        for (uint32_t j = 0; j < v->n_gates; j++) {
            assert_true((unsigned)v->gates[j].fact < OCT__FACT_COUNT);
            assert_true(strlen(v->gates[j].why) > 0);
        }
        has_op[v->op] = true;
        has_open_row[v->op] |= v->n_gates == 0;
    }
    assert_null(oct_variant_name(n));
    assert_null(oct_variant_name(UINT32_MAX));
    for (int op = 0; op < OCT__OP_COUNT; op++) {
        assert_true(has_op[op]);
        assert_true(has_open_row[op]);   /* something runs everywhere */
    }
}

static void every_row_of_a_gpu_names_a_kernel(void **state)
{
    (void)state;
    for (oct__device device = OCT__DEVICE_CUDA; device < OCT__DEVICE_COUNT; device++) {
        uint32_t n;
        const oct__variant *table = oct__variants_of(device, &n);
        bool has_open_row[OCT__OP_COUNT] = { false }, has_open_row_of_v4[OCT__OP_COUNT] = { false };
        for (uint32_t i = 0; i < n; i++) {
            const oct__variant *v = &table[i];
            char name[64];
            snprintf(name, sizeof(name), "%s.%s", oct__op_name(v->op), v->name);
            assert_string_equal(v->full_name, name);
            assert_true(strlen(name) < sizeof(((oct_plan_info *)NULL)->decode_variant));
            assert_true(v->kernel != NULL && v->attn == NULL && v->scratch == NULL && v->write == NULL && v->merge == NULL);
            assert_int_equal(strncmp(v->kernel, oct__op_name(v->op), strlen(oct__op_name(v->op))), 0);
            assert_int_equal(v->tile_vectors > 0, v->op == OCT__OP_attn_decode || v->op == OCT__OP_attn_extend);
            for (uint32_t j = 0; j < i; j++) {
                assert_string_not_equal(table[j].full_name, name);
                assert_string_not_equal(table[j].kernel, v->kernel);
            }
            /* The portable kernels with v4 in their names take it, and the others refuse it by a gate: they do not know its blocks. */
            bool refuses_v4 = false, refuses_others = false;
            for (uint32_t g = 0; g < v->n_gates; g++) {
                const oct__gate *gate = &v->gates[g];
                const bool takes_v4 = gate->op == OCT__GATE_EQ ? gate->arg == OCT_DTYPE_V4 : gate->op != OCT__GATE_IN || (gate->arg >> OCT_DTYPE_V4 & 1) != 0;
                refuses_v4 |= gate->fact == OCT__FACT_V_DTYPE && !takes_v4;
                refuses_others |= gate->fact == OCT__FACT_V_DTYPE && !(gate->op == OCT__GATE_IN && gate->arg == OCT__DTYPES_WHOLE);
            }
            assert_int_equal(refuses_v4, v->op != OCT__OP_attn_merge && strstr(v->kernel, "_v4") == NULL);
            has_open_row[v->op] |= v->n_gates == 0 || (v->n_gates == 1 && !refuses_others && v->gates[0].fact == OCT__FACT_V_DTYPE);
            has_open_row_of_v4[v->op] |= v->n_gates == 0 || (v->n_gates == 1 && !refuses_v4 && v->gates[0].fact == OCT__FACT_V_DTYPE);
        }
        for (int op = 0; op < OCT__OP_COUNT; op++) {
            assert_true(has_open_row[op] && has_open_row_of_v4[op]);   /* the portable kernels run everywhere */
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lowest_cost_among_those_whose_gates_hold),
        cmocka_unit_test(force_and_deny_are_obeyed),
        cmocka_unit_test(what_cannot_be_is_a_status_never_a_fallback),
        cmocka_unit_test(bad_names_are_named),
        cmocka_unit_test(a_row_must_suit_both_destinations),
        cmocka_unit_test(every_row_is_whole_and_has_a_name_of_its_own),
        cmocka_unit_test(every_row_of_a_gpu_names_a_kernel),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
