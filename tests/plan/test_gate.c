/* test_gate.c: what each comparison means at its edges, and the words for it; the names of facts. */
#include "plan_test.h"

#include "plan/gate.h"

static bool passes(oct__gate_op op, uint64_t arg, uint64_t have)
{
    const oct__gate gate = { OCT__FACT_HEAD_DIM_K, op, arg, "why" };
    oct__facts facts = { { 0 } };
    facts.v[OCT__FACT_HEAD_DIM_K] = have;
    return oct__gate_passes(&gate, &facts);
}

static void comparisons_hold_at_their_edges(void **state)
{
    (void)state;
    assert_true(passes(OCT__GATE_EQ, 64, 64));
    assert_false(passes(OCT__GATE_EQ, 64, 65));
    assert_true(passes(OCT__GATE_EQ, 0, 0));
    assert_true(passes(OCT__GATE_MIN, 64, 64));
    assert_false(passes(OCT__GATE_MIN, 64, 63));
    assert_true(passes(OCT__GATE_MAX, 64, 64));
    assert_false(passes(OCT__GATE_MAX, 64, 65));
    assert_true(passes(OCT__GATE_MULT, 32, 96));
    assert_false(passes(OCT__GATE_MULT, 32, 80));
    assert_false(passes(OCT__GATE_MULT, 32, 0));
    assert_false(passes(OCT__GATE_MULT, 0, 32));
    assert_true(passes(OCT__GATE_IN, 1u << 4 | 1u << 5, 5));
    assert_false(passes(OCT__GATE_IN, 1u << 4 | 1u << 5, 6));
    assert_false(passes(OCT__GATE_IN, 1u << 4 | 1u << 5, 0));
    assert_true(passes(OCT__GATE_IN, UINT64_C(1) << 63, 63));
    assert_false(passes(OCT__GATE_IN, UINT64_MAX, 64));
}

static void first_failed_is_the_first(void **state)
{
    (void)state;
    const oct__gate gates[] = {
        { OCT__FACT_CPU_AVX2, OCT__GATE_EQ, 1, "a" },
        { OCT__FACT_HEAD_DIM_K, OCT__GATE_MULT, 32, "b" },
        { OCT__FACT_OS_ZMM, OCT__GATE_EQ, 1, "c" },
    };
    const oct__variant variant = { .gates = gates, .n_gates = 3 };
    oct__facts facts = { { 0 } };
    facts.v[OCT__FACT_CPU_AVX2] = 1;
    facts.v[OCT__FACT_HEAD_DIM_K] = 80;
    assert_ptr_equal(oct__gates_first_failed(&variant, &facts), &gates[1]);
    facts.v[OCT__FACT_HEAD_DIM_K] = 96;
    assert_ptr_equal(oct__gates_first_failed(&variant, &facts), &gates[2]);
    facts.v[OCT__FACT_OS_ZMM] = 1;
    assert_null(oct__gates_first_failed(&variant, &facts));
}

static void needs_are_said_in_words_where_numbers_say_nothing(void **state)
{
    (void)state;
    char text[64];
    const oct__gate formats = { OCT__FACT_K_DTYPE, OCT__GATE_IN, 1u << OCT_DTYPE_E4M3FN | 1u << OCT_DTYPE_E5M2, "" };
    const oct__gate dims = { OCT__FACT_HEAD_DIM_K, OCT__GATE_IN, UINT64_C(1) << 16 | UINT64_C(1) << 63, "" };
    const oct__gate none = { OCT__FACT_HEAD_DIM_K, OCT__GATE_IN, 0, "" };
    const oct__gate multiple = { OCT__FACT_HEAD_DIM_K, OCT__GATE_MULT, 32, "" };
    oct__gate_arg_text(&formats, text, sizeof(text));
    assert_string_equal(text, "{e4m3fn, e5m2}");
    oct__gate_arg_text(&dims, text, sizeof(text));
    assert_string_equal(text, "{16, 63}");
    oct__gate_arg_text(&none, text, sizeof(text));
    assert_string_equal(text, "{}");
    oct__gate_arg_text(&multiple, text, sizeof(text));
    assert_string_equal(text, "32");
    oct__gate_arg_text(&formats, text, 6);
    assert_string_equal(text, "{e4m3");
    oct__fact_value_text(OCT__FACT_V_DTYPE, 99, text, sizeof(text));
    assert_string_equal(text, "99");
}

static void every_fact_has_a_name_of_its_own(void **state)
{
    (void)state;
    for (unsigned fact = 0; fact < OCT__FACT_COUNT; fact++) {
        assert_int_equal(oct__fact_of_name(oct__fact_name((oct__fact)fact)), fact);
    }
    assert_int_equal(oct__fact_of_name("cpu.none"), OCT__FACT_COUNT);
    assert_string_equal(oct__fact_name(OCT__FACT_COUNT), "?");
    assert_true(oct__fact_is_machine(OCT__FACT_OS_ZMM));
    assert_false(oct__fact_is_machine(OCT__FACT_WINDOW));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(comparisons_hold_at_their_edges),
        cmocka_unit_test(first_failed_is_the_first),
        cmocka_unit_test(needs_are_said_in_words_where_numbers_say_nothing),
        cmocka_unit_test(every_fact_has_a_name_of_its_own),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
