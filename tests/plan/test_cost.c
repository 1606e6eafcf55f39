/* test_cost.c: predicted times against sums done by hand. */
#include "plan_test.h"

static const oct__rates rates = { .core_read_bytes = 10e9, .machine_read_bytes = 30e9, .speed = 2.0, .source = "test" };

static void assert_close(double have, double want)
{
    if (!(have > want * (1 - 1e-12) && have < want * (1 + 1e-12))) {
        fail_msg("%.17g is not %.17g", have, want);
    }
}

static void arithmetic_is_summed_and_shared(void **state)
{
    (void)state;
    const oct__cost cost = { .item_ns = 100, .mac_ps = 20, .convert_ps = 50, .exp_ps = 600 };
    const oct__amount amount = { .items = 10, .macs = 1e6, .converts = 1e5, .exps = 1e4, .bytes = 0 };
    /* 1 us + 20 us + 5 us + 6 us, on cores twice as fast */
    assert_close(oct__cost_seconds(&cost, &rates, &amount, 1), 32e-6 / 2);
    assert_close(oct__cost_seconds(&cost, &rates, &amount, 4), 32e-6 / 8);
}

/* bf16 dot products at their own rate; a machine whose rate nobody knows has the reference's. */
static void bf16_dots_have_a_rate_of_their_own(void **state)
{
    (void)state;
    const oct__cost cost = { .mac_ps = 4, .bf16_ps = 6 };
    const oct__amount amount = { .macs = 1e6 };
    oct__rates machine = rates;
    assert_close(oct__cost_seconds(&cost, &machine, &amount, 1), 10e-6 / 2);
    machine.bf16_dot = 0.4;
    assert_close(oct__cost_seconds(&cost, &machine, &amount, 1), 19e-6 / 2);
    const oct_rates measured = { .threads = 1, .read_memory_bytes = { 10e9, 10e9 }, .clock_hz = 3e9, .fma_avx2_flops = { 59e9, 59e9 },
                                 .dot_bf16_flops = { 59e9, 59e9 } };
    machine = oct__rates_measured(&measured);
    assert_close(machine.speed, 0.5);
    assert_close(machine.bf16_dot, 0.5);   /* half of the reference's 236 at half its speed */
}

static void bytes_bound_it_from_below(void **state)
{
    (void)state;
    const oct__cost cost = { .item_ns = 0 };
    const oct__amount amount = { .items = 1, .bytes = 30e6 };
    assert_close(oct__cost_seconds(&cost, &rates, &amount, 1), 3e-3);
    assert_close(oct__cost_seconds(&cost, &rates, &amount, 2), 1.5e-3);
    assert_close(oct__cost_seconds(&cost, &rates, &amount, 3), 1e-3);
    assert_close(oct__cost_seconds(&cost, &rates, &amount, 64), 1e-3);   /* the machine's limit, not the cores' */
}

static void memory_decides_nothing_between_rows(void **state)
{
    (void)state;
    const oct__cost quick = { .item_ns = 1000 }, slow = { .item_ns = 2000 };
    const oct__amount amount = { .items = 1, .bytes = 30e6 };
    const double a = oct__cost_seconds(&quick, &rates, &amount, 1), b = oct__cost_seconds(&slow, &rates, &amount, 1);
    assert_true(a < b && b < 3e-3 * 1.001);
}

static void each_format_has_its_own_conversion(void **state)
{
    (void)state;
    const oct__cost cost = { .convert_ps = 10, .convert_i8_ps = 20, .convert_f32_ps = 40, .vector_ps = 100 };
    const oct__amount floats = { .converts = 1e6 }, i8 = { .converts = 1e6, .converts_i8 = 1e6 }, half = { .converts = 1e6, .converts_16bit = 1e6 },
                      mixed = { .converts = 2e6, .converts_i8 = 5e5, .converts_f32 = 1e6 }, vectors = { .vectors = 1e6 };
    assert_close(oct__cost_seconds(&cost, &rates, &floats, 1), 10e-6 / 2);
    assert_close(oct__cost_seconds(&cost, &rates, &i8, 1), 20e-6 / 2);
    assert_close(oct__cost_seconds(&cost, &rates, &half, 1), 10e-6 / 2);   /* has no number of its own */
    assert_close(oct__cost_seconds(&cost, &rates, &mixed, 1), (5 + 10 + 40) * 1e-6 / 2);
    assert_close(oct__cost_seconds(&cost, &rates, &vectors, 1), 100e-6 / 2);
}

static void empty_lanes_cost_as_full_ones(void **state)
{
    (void)state;
    const oct__cost plain = { .mac_ps = 8, .pad_ps = 20 }, bf16 = { .bf16_ps = 8, .pad_ps = 20 };
    const oct__amount pads = { .pads = 1e6 };
    oct__rates r = rates;
    r.bf16_dot = 0.5;
    assert_close(oct__cost_seconds(&plain, &r, &pads, 1), 20e-6 / 2);
    assert_close(oct__cost_seconds(&bf16, &r, &pads, 1), 40e-6 / 2);   /* by the same products as the others */
    assert_true(oct__amount_pads(1) == 0 && oct__amount_pads(8) == 0 && oct__amount_pads(9) == 7 && oct__amount_pads(16) == 0 && oct__amount_pads(20) == 12);
}

static void amounts_count_what_a_kernel_does(void **state)
{
    (void)state;
    oct_kv_spec kv = plain_spec().kv;
    kv.dim_v = 128;
    const oct__amount tiles = oct__amount_of_tiles(&kv, 3, 10, 1000);
    assert_close(tiles.items, 3);
    assert_close(tiles.macs, 3.0 * 10 * 1000 * 192);
    assert_close(tiles.exps, 3.0 * 10 * 1000);
    assert_close(tiles.converts, 3.0 * 1000 * 192);
    assert_close(tiles.converts_i8, 3.0 * 1000 * 64);
    assert_close(tiles.vectors, 3.0 * 10 * 192);
    assert_close(tiles.bytes, 3.0 * 1000 * (64 + 4 + 128));   /* i8 K with an f32 scale a token, e4m3 V */
    kv.k = (oct_kv_format){ OCT_DTYPE_BF16, OCT_SCALE_NONE, 0, 0 };
    assert_close(oct__amount_of_tiles(&kv, 1, 1, 1).bytes, 2 * 64 + 128);
    assert_close(oct__amount_of_tiles(&kv, 1, 1, 1).converts_16bit, 64);
    assert_true(oct__amount_of_tiles(&kv, 1, 1, 1).converts_i8 == 0 && oct__amount_of_tiles(&kv, 1, 1, 1).converts_f32 == 0);
    const oct__amount write = oct__amount_of_write(&kv, OCT_DTYPE_F32, 7);
    assert_close(write.items, 7.0 * 3);
    assert_close(write.converts, 7.0 * 3 * 192);
    assert_close(write.bytes, 7.0 * 3 * (192 * 4 + 128 + 128));
    const oct__amount merge = oct__amount_of_merge(5, 9, 64, 4);
    assert_close(merge.macs, 5.0 * 9 * 4 * 64);
    assert_close(merge.exps, 5.0 * 9 * 4);
    assert_close(merge.items, 5.0 * 9);
    assert_close(merge.bytes, 5.0 * 9 * 4 * (64 + 1) * 4);
}

static void threads_are_woken_for_enough_work_only(void **state)
{
    (void)state;
    assert_int_equal(oct__cost_threads(0, 8), 1);
    assert_int_equal(oct__cost_threads(1e-6, 8), 1);
    assert_int_equal(oct__cost_threads(1, 8), 8);
    assert_int_equal(oct__cost_threads(1e30, 1024), 1024);
    assert_in_range(oct__cost_threads(20e-6, 64), 2, 10);
}

static void known_machines_have_rates_of_their_own(void **state)
{
    (void)state;
    static const struct { const char *name, *source; } cases[] = {
        { "zen4", "EPYC Zen 4" },
        { "zen3", "Zen 3, estimated" },
        { "xeon_amx", "Sapphire Rapids, estimated" },
        { "avx512_vm_without_zmm", "Skylake or Cascade Lake server, estimated" },
        { "x86_64_without_avx2", "an unknown machine, estimated" },
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const oct__machine machine = machine_read(cases[i].name);
        assert_string_equal(machine.rates.source, cases[i].source);
        assert_true(machine.rates.core_read_bytes > 1e9 && machine.rates.machine_read_bytes >= machine.rates.core_read_bytes && machine.rates.speed > 0.1);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(arithmetic_is_summed_and_shared),
        cmocka_unit_test(bf16_dots_have_a_rate_of_their_own), cmocka_unit_test(bytes_bound_it_from_below),
        cmocka_unit_test(memory_decides_nothing_between_rows),
        cmocka_unit_test(empty_lanes_cost_as_full_ones),
        cmocka_unit_test(each_format_has_its_own_conversion),
        cmocka_unit_test(amounts_count_what_a_kernel_does),
        cmocka_unit_test(threads_are_woken_for_enough_work_only),
        cmocka_unit_test(known_machines_have_rates_of_their_own),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
