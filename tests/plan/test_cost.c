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
    const oct__cost cost = { .item_ns = 100, .many = { .mac_ps = 20, .convert_ps = 50, .exp_ps = 600, .block_ns = 30 }, .few = { .mac_ps = 10 }, .key_ps = 1000, .page_ps = 100000 };
    const oct__amount amount = { .items = 10, .keys = 1000, .pages = 10, .many = { .macs = 1e6, .converts = 1e5, .exps = 1e4, .blocks = 100 }, .few = { .macs = 2e6 } };
    /* 1 us + 20 us + 5 us + 6 us + 3 us, 20 us for the few and 1 us each for keys and pages, on cores twice as fast */
    assert_close(oct__cost_seconds(&cost, &rates, &amount, 1), 57e-6 / 2);
    assert_close(oct__cost_seconds(&cost, &rates, &amount, 4), 57e-6 / 8);
}

/* Dot products and wide FMAs at their own rates; a machine whose rates nobody knows has the reference's. */
static void products_have_rates_of_their_own(void **state)
{
    (void)state;
    static const double factors[OCT__UNIT_COUNT] = { [OCT__UNIT_CORE] = 1, [OCT__UNIT_FMA512] = 0.5, [OCT__UNIT_BF16] = 4, [OCT__UNIT_I8] = 2, [OCT__UNIT_I8_BF16] = 3 };
    const oct__amount amount = { .many = { .macs = 1e6, .again = 1e5, .pads = 1e4, .converts = 1e6 } };
    oct__rates machine = rates;
    machine.fma512 = 2;
    machine.bf16_dot = 0.25;
    machine.i8_dot = 0.5;
    for (int unit = 0; unit < OCT__UNIT_COUNT; unit++) {
        const oct__cost cost = { .many = { .unit = (oct__unit)unit, .mac_ps = 4, .again_ps = 6, .pad_ps = 40, .convert_ps = 1 } };
        assert_close(oct__cost_seconds(&cost, &rates, &amount, 1), 6e-6 / 2);
        assert_close(oct__cost_seconds(&cost, &machine, &amount, 1), (5e-6 * factors[unit] + 1e-6) / 2);
    }
    oct_rates measured = { .threads = 1, .read_memory_bytes = { 10e9, 10e9 }, .clock_hz = 3e9, .fma_avx2_flops = { 59e9, 59e9 }, .fma_avx512_flops = { 118e9, 118e9 },
                                 .dot_bf16_flops = { 59e9, 59e9 }, .dot_i8_ops = { 236e9, 236e9 } };
    machine = oct__rates_measured(&measured);
    assert_close(machine.speed, 0.5);
    assert_close(machine.bf16_dot, 0.5);   /* half of the reference's 236 at half its speed */
    assert_close(machine.fma512, 2);
    assert_close(machine.i8_dot, 1);
    measured.dot_i8_ops[0] *= 1.73;   /* what one Xeon gave once: more than rows gain by */
    assert_close(oct__rates_measured(&measured).i8_dot, 1.1);
    measured.dot_i8_ops[0] = 0;
    assert_true(oct__rates_measured(&measured).i8_dot == 0);   /* no such instructions */
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

/* 30 MB take 3 ms; a row that asks late waits for a share of them besides its work of 2 ms, one that asks early for none. */
static void a_row_waits_for_its_share_of_memory(void **state)
{
    (void)state;
    const oct__cost early = { .item_ns = 4e6 }, late = { .item_ns = 4e6, .wait_share = 0.5 }, light = { .item_ns = 1e6, .wait_share = 0.5 };
    const oct__amount amount = { .items = 1, .bytes = 30e6 };
    assert_close(oct__cost_seconds(&late, &rates, &amount, 1), 3.5e-3);
    assert_close(oct__cost_seconds(&late, &rates, &amount, 3), 2e-3 / 3 + 0.5e-3);
    assert_close(oct__cost_seconds(&light, &rates, &amount, 1), 3e-3 + 0.02 * (0.5e-3 + 1.5e-3));   /* less than memory itself */
    assert_close(oct__cost_seconds(&early, &rates, &amount, 1), 3e-3 + 0.02 * 2e-3);
}

/* What is counted for pages whose tokens have scales, for lanes of many, and for values that are not i8. */
static void scales_lanes_and_values_cost_what_they_say(void **state)
{
    (void)state;
    oct_attn_spec spec = plain_spec();   /* i8 K with a scale a token, e4m3 V without */
    const oct__cost cost = { .scale_ps = 3000, .lane_ps = 5, .lanes = 16, .few_vectors = 4, .many = { .value_ps = 2 }, .few = { .value_ps = 4 } };
    oct__tally tally = { .tiles = 0 };
    oct__tally_tile(&tally, &spec, &cost, 1, 10, 0, 1000, 999);
    oct__amount amount = oct__amount_of_tally(&spec, &tally, 2);
    const double pages = 2.0 * ((1000 + spec.kv.page_size - 1) / spec.kv.page_size);
    assert_close(amount.scales, pages);
    assert_close(amount.lanes, 2.0 * 16 * spec.kv.dim_k);
    assert_close(amount.many.values, 2.0 * 10 * 1000 * spec.kv.dim_v);
    const oct__amount some = { .scales = 1000, .lanes = 1e6, .many = { .values = 1e6 }, .few = { .values = 1e6 } };
    assert_close(oct__cost_seconds(&cost, &rates, &some, 1), (3 + 5 + 2 + 4) * 1e-6 / 2);
    oct__rates wide = rates;
    wide.fma512 = 2;
    assert_close(oct__cost_seconds(&cost, &wide, &some, 1), (3 + 5 + 1 + 2) * 1e-6 / 2);
    /* Few have no lanes; an i8 V is no other; V's scales count as well as K's. */
    tally = (oct__tally){ .tiles = 0 };
    oct__tally_tile(&tally, &spec, &cost, 1, 4, 0, 1000, 999);
    amount = oct__amount_of_tally(&spec, &tally, 2);
    assert_true(amount.lanes == 0 && amount.many.values == 0);
    assert_close(amount.few.values, 2.0 * 4 * 1000 * spec.kv.dim_v);
    spec.kv.v = spec.kv.k;
    amount = oct__amount_of_tally(&spec, &tally, 2);
    assert_close(amount.scales, 2 * pages);
    assert_true(amount.few.values == 0);
}

static void each_format_has_its_own_conversion(void **state)
{
    (void)state;
    const oct__cost cost = { .vector_ps = 100, .many = { .convert_ps = 10, .convert_i8_ps = 20, .convert_f32_ps = 40 } };
    const oct__amount floats = { .many = { .converts = 1e6 } }, i8 = { .many = { .converts = 1e6, .converts_i8 = 1e6 } },
                      half = { .many = { .converts = 1e6, .converts_16bit = 1e6 } },
                      mixed = { .many = { .converts = 2e6, .converts_i8 = 5e5, .converts_f32 = 1e6 } }, vectors = { .vectors = 1e6 };
    assert_close(oct__cost_seconds(&cost, &rates, &floats, 1), 10e-6 / 2);
    assert_close(oct__cost_seconds(&cost, &rates, &i8, 1), 20e-6 / 2);
    assert_close(oct__cost_seconds(&cost, &rates, &half, 1), 10e-6 / 2);   /* has no number of its own */
    assert_close(oct__cost_seconds(&cost, &rates, &mixed, 1), (5 + 10 + 40) * 1e-6 / 2);
    assert_close(oct__cost_seconds(&cost, &rates, &vectors, 1), 100e-6 / 2);
}

/* 4 rows x 10 heads, the last of which are rows 96 to 99 of 100 keys: what each group of registers computes, and what of it counts. */
static void many_compute_what_a_group_of_registers_sees(void **state)
{
    (void)state;
    oct_attn_spec spec = plain_spec();
    spec.causal = 1;
    const oct__cost wide = { .lanes = 16, .span = 48 }, narrow = { .lanes = 8, .span = 16 };
    oct__tally tally = { .tiles = 0 };
    oct__tally_tile(&tally, &spec, &wide, 4, 10, 0, 100, 96);
    assert_int_equal(tally.many.scores, 40 * 100);               /* one group, whose last row sees all */
    assert_int_equal(tally.many.pads, 8 * 100);
    assert_int_equal(tally.many.exps, 16 * (98 + 100 + 100));    /* the first register ends in row 1 */
    assert_int_equal(tally.many.seen, 10 * (97 + 98 + 99 + 100));
    assert_int_equal(tally.edges, 36);                           /* all see the first block of 64 */
    tally = (oct__tally){ .tiles = 0 };
    oct__tally_tile(&tally, &spec, &narrow, 4, 10, 0, 100, 96);
    assert_int_equal(tally.many.scores, 16 * 98 + 16 * 100 + 8 * 100);
    assert_int_equal(tally.many.pads, 0);
    assert_int_equal(tally.many.exps, tally.many.scores);
    /* A window of 50: rows see keys from 47, 48, 49 and 50 on, and no block whole. */
    spec.window_tokens = 50;
    tally = (oct__tally){ .tiles = 0 };
    oct__tally_tile(&tally, &spec, &wide, 4, 10, 47, 100, 96);
    assert_int_equal(tally.many.scores, 40 * 53);
    assert_int_equal(tally.many.seen, 40 * 50);
    assert_int_equal(tally.edges, 53);
    assert_close(oct__amount_of_tally(&spec, &tally, 2).edges, 2.0 * 53 * spec.kv.dim_v);
    const oct__cost cost = { .edge_ps = 50 };
    const oct__amount edges = { .edges = 1e6 };
    assert_close(oct__cost_seconds(&cost, &rates, &edges, 1), 50e-6 / 2);
}

/* Twelve vectors: three passes of four, or one of eight and one of four; nine: three, or eight and one. */
static void a_pass_of_few_is_as_wide_as_the_kernel_has_it(void **state)
{
    (void)state;
    const oct_attn_spec spec = plain_spec();
    static const struct { uint32_t pass, vectors, passes; } cases[] = { { 0, 12, 3 }, { 4, 9, 3 }, { 8, 12, 2 }, { 8, 9, 2 }, { 8, 8, 1 }, { 8, 7, 2 }, { 8, 3, 1 } };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const oct__cost cost = { .few_vectors = 12, .few_keys = 16, .few_pass = cases[i].pass };
        oct__tally tally = { .tiles = 0 };
        oct__tally_tile(&tally, &spec, &cost, 1, cases[i].vectors, 0, 100, 99);
        assert_int_equal(tally.few.loads, 100 * cases[i].passes);
        assert_int_equal(tally.few.blocks, 2 * cases[i].passes);
    }
}

static void amounts_count_what_a_kernel_does(void **state)
{
    (void)state;
    oct_attn_spec spec = plain_spec();
    spec.kv.dim_v = 128;
    spec.causal = 1;
    spec.q_dtype = OCT_DTYPE_BF16;
    const oct__cost many = { .item_ns = 1 }, few = { .item_ns = 1, .few_vectors = 12, .few_keys = 32 };
    oct__tally tally = { .tiles = 0 };
    for (int i = 0; i < 3; i++) {
        oct__tally_tile(&tally, &spec, &many, 1, 10, 0, 1000, 999);
    }
    oct__amount tiles = oct__amount_of_tally(&spec, &tally, 2);
    assert_close(tiles.items, 6);
    assert_close(tiles.keys, 6000);
    assert_close(tiles.pages, 6.0 * ((1000 + spec.kv.page_size - 1) / spec.kv.page_size));
    assert_close(tiles.many.staged, 6.0 * 1000 * 128);
    assert_close(tiles.vectors, 6.0 * 10 * 192);
    assert_close(tiles.bytes, 6.0 * 1000 * (64 + 4 + 128));   /* i8 K with an f32 scale a token, e4m3 V */
    assert_close(tiles.many.macs, 6.0 * 10 * 1000 * 192);
    assert_close(tiles.many.exps, 6.0 * 16 * 1000);
    assert_close(tiles.many.pads, 6.0 * 6 * 1000 * 64);
    assert_close(tiles.many.blocks, 6.0 * 16);
    assert_close(tiles.many.converts, 6.0 * 1000 * 192);
    assert_close(tiles.many.converts_i8, 6.0 * 1000 * 64);
    assert_true(tiles.few.macs == 0);

    /* The way of few: three passes of four vectors bring each key into registers. */
    tally = (oct__tally){ .tiles = 0 };
    oct__tally_tile(&tally, &spec, &few, 1, 10, 0, 1000, 999);
    tiles = oct__amount_of_tally(&spec, &tally, 1);
    assert_close(tiles.few.macs, 10.0 * 1000 * 192);
    assert_close(tiles.few.exps, 10.0 * 1000);
    assert_close(tiles.few.converts, 3.0 * 1000 * 192);
    assert_close(tiles.few.blocks, 3.0 * 16);
    assert_true(tiles.few.pads == 0 && tiles.many.macs == 0);
    /* Two rows x 5 heads: 960 keys in common, then each row takes what it sees, 39 and 40 keys, in two passes of its own. */
    tally = (oct__tally){ .tiles = 0 };
    oct__tally_tile(&tally, &spec, &few, 2, 5, 0, 1000, 998);
    tiles = oct__amount_of_tally(&spec, &tally, 1);
    assert_close(tiles.few.exps, 960.0 * 10 + (39 + 40) * 5);
    assert_close(tiles.few.converts, (960.0 * 3 + (39 + 40) * 2) * 192);
    assert_close(tiles.few.blocks, 15.0 * 3 + 4);
    /* A window of 500 hides the first key from the second row: its block is one by one as well. */
    spec.window_tokens = 500;
    tally = (oct__tally){ .tiles = 0 };
    oct__tally_tile(&tally, &spec, &few, 2, 5, 499, 1000, 998);
    tiles = oct__amount_of_tally(&spec, &tally, 1);
    assert_close(tiles.few.exps, 448.0 * 10 + 2 * 52 * 5);   /* 512 to 960 in common; each row sees 500 */
    spec.window_tokens = 0;
    /* More vectors than are few, or too few keys for its rows. */
    tally = (oct__tally){ .tiles = 0 };
    oct__tally_tile(&tally, &spec, &few, 1, 13, 0, 1000, 999);
    oct__tally_tile(&tally, &spec, &few, 4, 2, 0, 127, 123);
    assert_true(tally.few.scores == 0 && tally.many.scores == 13 * 1000 + 8 * 127);

    /* A q that bf16 doesn't hold is two terms of it. */
    spec.q_dtype = OCT_DTYPE_F32;
    assert_close(oct__amount_of_tally(&spec, &tally, 1).many.again, (16.0 * 1000 + 16 * 127) * 64);
    spec.q_dtype = OCT_DTYPE_BF16;
    assert_close(1 + oct__amount_of_tally(&spec, &tally, 1).many.again, spec.kv.k.rotated ? 1 + (16.0 * 1000 + 16 * 127) * 64 : 1);
    spec.kv.k = (oct_kv_format){ OCT_DTYPE_BF16, OCT_SCALE_NONE, 0, 0 };
    tally = (oct__tally){ .tiles = 0 };
    oct__tally_tile(&tally, &spec, &many, 1, 1, 0, 1, 0);
    tiles = oct__amount_of_tally(&spec, &tally, 1);
    assert_close(tiles.bytes, 2 * 64 + 128);
    assert_close(tiles.many.converts_16bit, 64);
    assert_true(tiles.many.again == 0 && tiles.many.converts_i8 == 0 && tiles.many.converts_f32 == 0);
    const oct__amount write = oct__amount_of_write(&spec.kv, OCT_DTYPE_F32, 7);
    assert_close(write.items, 7.0 * 3);
    assert_close(write.many.converts, 7.0 * 3 * 192);
    assert_close(write.bytes, 7.0 * 3 * (192 * 4 + 128 + 128));
    const oct__amount merge = oct__amount_of_merge(5, 9, 64, 4);
    assert_close(merge.many.macs, 5.0 * 9 * 4 * 64);
    assert_close(merge.many.exps, 5.0 * 9 * 4);
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
        cmocka_unit_test(products_have_rates_of_their_own), cmocka_unit_test(bytes_bound_it_from_below),
        cmocka_unit_test(memory_decides_nothing_between_rows),
        cmocka_unit_test(a_row_waits_for_its_share_of_memory), cmocka_unit_test(scales_lanes_and_values_cost_what_they_say),
        cmocka_unit_test(each_format_has_its_own_conversion),
        cmocka_unit_test(amounts_count_what_a_kernel_does),
        cmocka_unit_test(many_compute_what_a_group_of_registers_sees),
        cmocka_unit_test(a_pass_of_few_is_as_wide_as_the_kernel_has_it),
        cmocka_unit_test(threads_are_woken_for_enough_work_only),
        cmocka_unit_test(known_machines_have_rates_of_their_own),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
