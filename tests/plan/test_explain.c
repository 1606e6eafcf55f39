/* test_explain.c: what explain says for machines that nobody here need own: facts from plan/machine.def, texts in golden/. Durations are masked, so
 * that tuning a cost shows here only when it changes a choice. `plan_explain --update` writes the texts anew: read the diff. */
#include "plan_test.h"

#include "host/text.h"
#include "plan/explain.h"

static const oct__allocator c_library;
static const oct__executor two_threads = { .max_threads = 2 };
static bool update;

static oct_plan *plan_of(const oct__machine *machine, const oct_attn_spec *spec)
{
    oct_plan *plan = NULL;
    oct_error error = OCT_ERROR_INIT;
    if (oct__plan_create(machine, &c_library, &two_threads, spec, "test", &plan, &error) != OCT_OK) {
        fail_msg("%s", error.text);
    }
    return plan;
}

/* ---- golden texts -------------------------------------------------------------------------------------------------------- */

/* ", 123 us" becomes ", # us", whatever the unit. */
static void mask_durations(char *text)
{
    char *to = text;
    for (const char *from = text; *from != '\0';) {
        char unit[3];
        int length = 0;
        double number;
        if (strncmp(from, ", ", 2) == 0 && sscanf(from, ", %lf %2[mus]%n", &number, unit, &length) == 2 && length > 0 && strchr(",\n", from[length]) != NULL) {
            to += sprintf(to, ", #");
            from += length;
        } else {
            *to++ = *from++;
        }
    }
    *to = '\0';
}

static void compare_with_golden(const char *name, const char *text)
{
    char path[1024], *golden = calloc(1, 65536);
    snprintf(path, sizeof(path), "%s/%s.txt", PLAN_GOLDEN, name);
    FILE *file = fopen(path, update ? "w" : "r");
    if (file == NULL) {
        fail_msg("cannot open %s", path);
    }
    if (update) {
        fputs(text, file);
    } else {
        golden[fread(golden, 1, 65535, file)] = '\0';
    }
    fclose(file);
    if (!update && strcmp(golden, text) != 0) {
        fail_msg("explain has changed for %s; if that is meant, run plan_explain --update and read the diff. Now:\n%s", name, text);
    }
    free(golden);
}

static void recorded_machines_give_the_golden_texts(void **state)
{
    (void)state;
    for (uint32_t i = 0; oct__machine_recorded_name(i) != NULL; i++) {
        char bytes[16384];
        oct__text text;
        const oct__machine machine = machine_read(oct__machine_recorded_name(i));
        const oct_attn_spec spec = plain_spec();
        oct_plan *plan = plan_of(&machine, &spec);
        oct__text_init(&text, bytes, sizeof(bytes));
        oct__explain_plan(&text, OCT_TEXT_PLAIN, plan);
        oct__text_add(&text, "\n");
        oct__explain_write(&text, OCT_TEXT_PLAIN, &machine, &spec.kv, OCT_DTYPE_BF16, plan->max_threads);
        assert_true(text.length < sizeof(bytes));
        mask_durations(bytes);
        compare_with_golden(oct__machine_recorded_name(i), bytes);
        oct__plan_destroy(plan);
    }
}

/* ---- the parts that golden texts cannot show --------------------------------------------------------------------------------- */

static const oct__gate hard_gates[] = {
    { OCT__FACT_OS_ZMM, OCT__GATE_EQ, 1, "a \"quoted\" \\ why\nwith \x01 and \xff and \xc3\xa9" },
    { OCT__FACT_K_DTYPE, OCT__GATE_IN, 1u << OCT_DTYPE_E4M3FN | 1u << OCT_DTYPE_E5M2, "8-bit floats" },
};
static const oct__variant rows[] = {
    { .op = OCT__OP_attn_decode, .name = "fast", .full_name = "attn_decode.fast", .gates = hard_gates, .n_gates = 2 },
    { .op = OCT__OP_attn_decode, .name = "slow", .full_name = "attn_decode.slow" },
    { .op = OCT__OP_attn_decode, .name = "slower", .full_name = "attn_decode.slower" },
    { .op = OCT__OP_attn_decode, .name = "slowest", .full_name = "attn_decode.slowest" },
    { .op = OCT__OP_attn_extend, .name = "other", .full_name = "attn_extend.other" },
};
static const double seconds[] = { 1e-6, 0.0123456, 1.5, 3e3, 7 };

static void say(char *bytes, size_t size, uint32_t format, const char *force, const char *deny)
{
    oct__text text;
    oct__rules rules;
    oct_error error = OCT_ERROR_INIT;
    oct__facts facts = { { 0 } };
    facts.v[OCT__FACT_K_DTYPE] = OCT_DTYPE_I8;
    oct__explained e = { .op = OCT__OP_attn_decode, .facts = &facts, .rules = &rules, .seconds = seconds, .n_threads = 1, .n_rows = 1, .n_keys = 4096 };
    assert_int_equal(oct__rules_read(rows, 5, UINT32_MAX, force, deny, "test", &rules, &error), OCT_OK);
    assert_int_equal(oct__choose(rows, 5, e.op, &facts, &rules, seconds, "test", &e.chosen, &error), OCT_OK);
    oct__text_init(&text, bytes, size);
    oct__explain_operation(&text, format, rows, 5, &e);
    assert_true(text.length < size);
}

static void every_row_has_its_state_and_every_failed_gate_its_line(void **state)
{
    (void)state;
    char bytes[4096];
    say(bytes, sizeof(bytes), OCT_TEXT_PLAIN, NULL, "attn_decode.slower");
    assert_string_equal(bytes,
                        "attn_decode: 1 row over 4096 keys, 1 thread\n"
                        "  refused   attn_decode.fast\n"
                        "              needs os.zmm_state == 1, have 0: a \"quoted\" \\ why\nwith \x01 and \xff and \xc3\xa9\n"
                        "              needs prob.k_dtype one of {e4m3fn, e5m2}, have i8: 8-bit floats\n"
                        "  chosen    attn_decode.slow, 12.3 ms\n"
                        "  denied    attn_decode.slower, 1.5 s\n"
                        "  eligible  attn_decode.slowest, 3e+03 s\n");
    say(bytes, sizeof(bytes), OCT_TEXT_PLAIN, "attn_decode.slowest", NULL);
    assert_non_null(strstr(bytes, "  eligible  attn_decode.slow, 12.3 ms, slowest is forced\n"));
    assert_non_null(strstr(bytes, "  chosen    attn_decode.slowest, 3e+03 s, forced\n"));
}

static void json_is_valid_and_escaped(void **state)
{
    (void)state;
    char bytes[4096];
    say(bytes, sizeof(bytes), OCT_TEXT_JSON, NULL, "attn_decode.slower");
    assert_string_equal(bytes,
                        "{\"operation\": \"attn_decode\", \"problem\": \"nominal\", \"rows\": 1, \"keys\": 4096, \"threads\": 1, \"variants\": ["
                        "{\"name\": \"attn_decode.fast\", \"state\": \"refused\", \"forced\": false, \"seconds\": 1e-06, \"failed\": ["
                        "{\"fact\": \"os.zmm_state\", \"op\": \"==\", \"needed\": 1, \"have\": 0, \"why\": \"a \\\"quoted\\\" \\\\ why\\u000awith \\u0001 and \\ufffd and \xc3\xa9\"}, "
                        "{\"fact\": \"prob.k_dtype\", \"op\": \"one of\", \"needed\": [4, 6], \"have\": 7, \"why\": \"8-bit floats\"}]}, "
                        "{\"name\": \"attn_decode.slow\", \"state\": \"chosen\", \"forced\": false, \"seconds\": 0.0123456, \"failed\": []}, "
                        "{\"name\": \"attn_decode.slower\", \"state\": \"denied\", \"forced\": false, \"seconds\": 1.5, \"failed\": []}, "
                        "{\"name\": \"attn_decode.slowest\", \"state\": \"eligible\", \"forced\": false, \"seconds\": 3000, \"failed\": []}]}");
    assert_true(json_is_valid(bytes));
    bytes[strlen(bytes) - 1] = '\0';
    assert_false(json_is_valid(bytes));   /* the reader does say no */
    for (uint32_t i = 0; oct__machine_recorded_name(i) != NULL; i++) {
        char whole[32768];
        oct__text text;
        oct__machine machine = machine_read(oct__machine_recorded_name(i));
        snprintf(machine.cpu, sizeof(machine.cpu), "a \"CPU\"\\ \t%u", i);
        const oct_attn_spec spec = plain_spec();
        oct_plan *plan = plan_of(&machine, &spec);
        oct__text_init(&text, whole, sizeof(whole));
        oct__explain_plan(&text, OCT_TEXT_JSON, plan);
        assert_true(text.length < sizeof(whole) && json_is_valid(whole));
        oct__text_init(&text, whole, sizeof(whole));
        oct__explain_write(&text, OCT_TEXT_JSON, &machine, &spec.kv, OCT_DTYPE_F16, 7);
        assert_true(text.length < sizeof(whole) && json_is_valid(whole));
        oct__text_init(&text, whole, sizeof(whole));
        oct__explain_merge(&text, OCT_TEXT_JSON, &machine, 100, 32, 128, 8);
        assert_true(text.length < sizeof(whole) && json_is_valid(whole) && strstr(whole, "\"state\": \"chosen\"") != NULL);
        oct__plan_destroy(plan);
    }
}

static void a_batch_replaces_the_nominal_problem(void **state)
{
    (void)state;
    char bytes[8192];
    oct__text text;
    const oct__machine machine = machine_read("zen4");
    const int32_t qo_indptr[] = { 0, 1, 3, 3, 103 }, kv_len[] = { 100, 50, 9, 1000 }, pages[4 * 63] = { 0 };
    const oct_attn_batch batch = { .struct_size = sizeof(batch), .n_sequences = 4, .qo_indptr = qo_indptr, .block_table = pages, .seq_lens = kv_len, .max_pages = 63, .n_pages = 1 };
    for (int deterministic = 0; deterministic < 2; deterministic++) {
        oct_attn_spec spec = plain_spec();
        spec.deterministic = (uint32_t)deterministic;
        oct_plan *plan = plan_of(&machine, &spec);
        assert_int_equal(oct__plan_update(plan, &batch, "test", NULL), OCT_OK);
        oct__text_init(&text, bytes, sizeof(bytes));
        oct__explain_plan(&text, OCT_TEXT_PLAIN, plan);
        /* A deterministic plan has chosen without looking at a batch or at threads. */
        assert_non_null(strstr(bytes, deterministic ? "attn_decode: 1 row over 4096 keys, 1 thread\n" : "attn_decode: batch of 3 rows over 150 keys, 2 threads\n"));
        assert_non_null(strstr(bytes, deterministic ? "attn_extend: 512 rows over 512 keys, 1 thread\n" : "attn_extend: batch of 100 rows over 1000 keys, 2 threads\n"));
        oct__plan_destroy(plan);
    }
}

static void a_text_is_cut_as_snprintf_cuts(void **state)
{
    (void)state;
    char whole[16384], part[16384];
    const oct__machine machine = machine_read("xeon_amx");
    const oct_attn_spec spec = plain_spec();
    oct_plan *plan = plan_of(&machine, &spec);
    const size_t length = oct_plan_explain(plan, OCT_TEXT_JSON, whole, sizeof(whole));
    assert_int_equal(strlen(whole), length);
    assert_int_equal(oct_plan_explain(plan, OCT_TEXT_JSON, NULL, 0), length);
    for (size_t size = 0; size <= length + 1; size += size < 64 ? 1 : 37) {
        memset(part, '?', sizeof(part));
        assert_int_equal(oct_plan_explain(plan, OCT_TEXT_JSON, part, size), length);
        if (size > 0) {
            assert_int_equal(strlen(part), size - 1 < length ? size - 1 : length);
            assert_memory_equal(part, whole, size - 1 < length ? size - 1 : length);
        }
        assert_int_equal(part[size], '?');
    }
    assert_int_equal(oct_plan_explain(plan, 2, part, sizeof(part)), 0);
    assert_string_equal(part, "");
    assert_int_equal(oct_plan_explain(NULL, OCT_TEXT_JSON, part, sizeof(part)), 0);
    oct__plan_destroy(plan);
}

int main(int argc, char **argv)
{
    update = argc == 2 && strcmp(argv[1], "--update") == 0;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(recorded_machines_give_the_golden_texts),
        cmocka_unit_test(every_row_has_its_state_and_every_failed_gate_its_line),
        cmocka_unit_test(json_is_valid_and_escaped),
        cmocka_unit_test(a_batch_replaces_the_nominal_problem),
        cmocka_unit_test(a_text_is_cut_as_snprintf_cuts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
