/* test_bench_parts.c: the pure parts of octavo bench: what a problem amounts to against counting one by one, the grid's reach, medians and the
 * summary of regrets, the order in which contenders are timed, and the steps of a
 * serving trace. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "apps/bench/grid.h"
#include "apps/bench/regret_report.h"
#include "apps/bench/timing.h"
#include "apps/bench/trace.h"
#include "apps/interrupt.h"

bool app_interrupted(void)
{
    return false;
}

/* ---- amounts ---------------------------------------------------------------------------------------------------------------- */

static void assert_close(double have, double want)
{
    if (!(fabs(have - want) <= 1e-9 * fabs(want))) {
        fail_msg("%.17g is not %.17g", have, want);
    }
}

static void attention_is_counted_pair_by_pair(void **state)
{
    (void)state;
    uint32_t n = 0;
    for (uint32_t q_len = 1; q_len <= 40; q_len += 13) {
        for (uint32_t kv_len = q_len; kv_len <= 90; kv_len += 17) {
            for (uint32_t window = 0; window <= 100; window += 20) {
                const bench_problem p = { .op = BENCH_EXTEND, .heads_q = 6, .heads_kv = 2, .dim_k = 48, .dim_v = 32, .batch = 3, .q_len = q_len, .kv_len = kv_len, .window = window,
                                          .k = { OCT_DTYPE_I8, OCT_SCALE_TOKEN_HEAD, OCT_DTYPE_F32, 0 }, .v = { OCT_DTYPE_BF16, OCT_SCALE_NONE, 0, 0 } };
                double pairs = 0, seen = 0;
                for (uint32_t key = 0; key < kv_len; key++) {
                    uint32_t by = 0;
                    for (uint32_t row = 0; row < q_len; row++) {
                        const uint32_t position = kv_len - q_len + row;
                        by += key <= position && (window == 0 || position - key < window);
                    }
                    pairs += by;
                    seen += by > 0;
                }
                const bench_amount amount = bench_amount_of(&p);
                assert_close(amount.flops, 3 * 6 * pairs * (48 + 32) * 2);
                assert_close(amount.bytes, 3 * 2 * seen * (48 + 4 + 32 * 2));
                n++;
            }
        }
    }
    assert_true(n > 50);
}

static void a_limit_is_the_lower_roof(void **state)
{
    (void)state;
    const oct_rates rates = { .threads = 4, .read_memory_bytes = { 10e9, 30e9 }, .copy_memory_bytes = { 12e9, 36e9 }, .fma_avx2_flops = { 100e9, 400e9 },
                              .dot_bf16_flops = { 200e9, 800e9 } };
    bench_problem p = { .op = BENCH_DECODE, .heads_q = 1, .heads_kv = 1, .dim_k = 64, .dim_v = 64, .batch = 1, .q_len = 1, .kv_len = 1000, .threads = 1,
                        .k = { OCT_DTYPE_E4M3FN, OCT_SCALE_NONE, 0, 0 }, .v = { OCT_DTYPE_E4M3FN, OCT_SCALE_NONE, 0, 0 } };
    assert_close(bench_limit_seconds(&p, &rates), 128e3 / 10e9);
    p.threads = 2;
    assert_close(bench_limit_seconds(&p, &rates), 128e3 / 20e9);
    p.threads = 4;
    assert_close(bench_limit_seconds(&p, &rates), 128e3 / 30e9);
    p.heads_q = 64;   /* 64 x 1000 x 128 x 2 operations: the dot products are the limit */
    assert_close(bench_limit_seconds(&p, &rates), 16384e3 / 800e9);
    p.op = BENCH_WRITE;
    p.operand = OCT_DTYPE_F32;
    assert_close(bench_limit_seconds(&p, &rates), (128 * 4 + 128) / 36e9);
}

/* ---- the grid ----------------------------------------------------------------------------------------------------------------- */

static void the_grid_reaches_what_it_promises(void **state)
{
    (void)state;
    enum { N = 320 };
    const bench_grid_limits limits = { 96 << 20, 3e9 };
    uint32_t batch_1 = 0, batch_64 = 0, q_1 = 0, q_4096 = 0, kv_1 = 0, kv_65536 = 0, group_1 = 0, group_16 = 0, windowed = 0, extend = 0, dims[257] = { 0 }, dtypes[16] = { 0 };
    static bench_problem all[N];
    for (uint32_t i = 0; i < N; i++) {
        const bench_problem p = all[i] = bench_grid_problem(i, &limits, 1);
        assert_null(bench_problem_complaint(&p));
        assert_true(bench_amount_of(&p).flops <= limits.flops && bench_amount_of(&p).bytes <= limits.bytes * 1.1);
        batch_1 += p.batch == 1, batch_64 += p.batch == 64, q_1 += p.q_len == 1, q_4096 += p.q_len == 4096, kv_1 += p.kv_len == 1, kv_65536 += p.kv_len == 65536;
        group_1 += p.heads_q == p.heads_kv, group_16 += p.heads_q == 16 * p.heads_kv, windowed += p.window > 0, extend += p.op == BENCH_EXTEND;
        dims[p.dim_k]++;
        dtypes[p.k.dtype]++;
        dtypes[p.v.dtype]++;
        const bench_problem small = bench_grid_small(&p);
        assert_null(bench_problem_complaint(&small));
        assert_int_equal(small.op, p.op);
        assert_int_equal(small.heads_q * p.heads_kv, p.heads_q * small.heads_kv);
        const bench_problem again = bench_grid_problem(i, &limits, 1);
        assert_memory_equal(&again, &p, sizeof(p));
    }
    assert_true(batch_1 > 0 && batch_64 > 0 && q_1 > 0 && q_4096 > 0 && kv_1 > 0 && kv_65536 > 0 && group_1 > 0 && group_16 > 0);
    assert_true(windowed > N / 4 && windowed < 3 * N / 4 && extend > N / 4 && extend < 3 * N / 4);
    for (uint32_t d = 64; d <= 256; d += 32) {
        assert_true((dims[d] > 0) == (d != 160 && d != 224));
    }
    for (uint32_t dtype = OCT_DTYPE_F32; dtype <= OCT_DTYPE_I8; dtype++) {
        assert_true(dtypes[dtype] > 0);
    }
    /* Nearly all differ. */
    uint32_t doubles = 0;
    for (uint32_t i = 0; i < N; i++) {
        for (uint32_t k = 0; k < i; k++) {
            doubles += memcmp(&all[i], &all[k], sizeof(all[0])) == 0;
        }
    }
    assert_true(doubles < 3);
}

/* ---- numbers -------------------------------------------------------------------------------------------------------------------- */

static void medians_and_quantiles(void **state)
{
    (void)state;
    const double odd[] = { 5, 1, 4 }, even[] = { 4, 1, 3, 2 };
    double many[101];
    assert_close(bench_median(odd, 3), 4);
    assert_close(bench_median(even, 4), 2.5);
    assert_close(bench_median(odd, 1), 5);
    assert_close(bench_least(odd, 3), 1);
    for (int i = 0; i <= 100; i++) {
        many[i] = (i * 37) % 101;
    }
    assert_close(bench_quantile(many, 101, 0.95), 95);
    assert_close(bench_quantile(many, 101, 1), 100);
    assert_close(bench_quantile(many, 101, 0), 0);
    assert_close(bench_quantile(many, 101, 0.5), 50);
}

static void a_ratio_is_taken_round_by_round(void **state)
{
    (void)state;
    /* The machine slows down threefold halfway: the ratio stays 1.5 in each round, that of the medians would be far off. */
    static bench_contender a, b;
    a.n_samples = b.n_samples = 5;
    const double as[] = { 1.5, 1.5, 4.5, 4.5, 4.5 }, bs[] = { 1, 1, 3, 3, 3 };
    memcpy(a.samples, as, sizeof(as));
    memcpy(b.samples, bs, sizeof(bs));
    assert_close(bench_slower(&a, &b), 0.5);
    assert_close(bench_slower(&b, &a), 1 / 1.5 - 1);
}

static void a_summary_finds_the_worst(void **state)
{
    (void)state;
    double values[40];
    for (int i = 0; i < 40; i++) {
        values[i] = i % 4 == 0 ? 0 : (i * 7) % 40;
    }
    values[3] = NAN;   /* was 21 */
    uint32_t n;
    const regret_summary s = regret_summarise(values, 40, &n);
    assert_int_equal(n, 39);
    assert_int_equal(s.n_worst, REGRET_WORST);
    for (uint32_t i = 0; i < s.n_worst; i++) {
        uint32_t above = 0;
        for (int k = 0; k < 40; k++) {
            above += values[k] > values[s.at[i]];
        }
        assert_int_equal(above, i);
    }
    assert_close(s.worst, values[s.at[0]]);
    const double none[] = { 0, 0, NAN };
    const regret_summary nothing = regret_summarise(none, 3, &n);
    assert_int_equal(nothing.n_worst, 0);
    assert_true(nothing.median == 0 && nothing.p95 == 0 && nothing.worst == 0 && n == 2);
    const regret_summary empty = regret_summarise(none, 0, &n);
    assert_true(isnan(empty.median) && n == 0);
}

/* ---- timing ------------------------------------------------------------------------------------------------------------------------ */

static char order[64];
static uint32_t n_order;

static oct_status note(void *what)
{
    const char *const name = what;
    if (name[0] == '!') {
        return OCT_DEVICE_FAULT;
    }
    if (n_order + 1 < sizeof(order)) {
        order[n_order++] = name[0];
    }
    return OCT_OK;
}

static void contenders_take_turns(void **state)
{
    (void)state;
    static bench_contender contenders[3];
    memset(order, 0, sizeof(order));
    n_order = 0;
    static char names[3][2] = { "a", "b", "c" }, fault[] = "!";
    for (int i = 0; i < 3; i++) {
        contenders[i] = (bench_contender){ .run = note, .what = names[i], .n_per_run = 1 };
    }
    /* A sample shorter than any run: one run each. */
    const bench_timing timing = { .n_rounds = 3, .sample_seconds = 1e-12 };
    assert_int_equal(bench_time(contenders, 3, &timing), OCT_OK);
    assert_string_equal(order, "abc" "abc" "bca" "cab");
    assert_int_equal(contenders[2].n_samples, 3);
    /* No budget at all: the least number of rounds. */
    const bench_timing cut = { .n_rounds = 50, .n_rounds_min = 2, .budget_seconds = 1e-15, .sample_seconds = 1e-12 };
    assert_int_equal(bench_time(contenders, 3, &cut), OCT_OK);
    assert_int_equal(contenders[0].n_samples, 2);
    contenders[1].what = fault;
    assert_int_equal(bench_time(contenders, 3, &timing), OCT_DEVICE_FAULT);
}

/* ---- traces ----------------------------------------------------------------------------------------------------------------- */

typedef struct tally {
    bench_load load;
    uint64_t prompt_tokens, answer_tokens, steps, keys;
    uint32_t most_decode, prompt_keys;
} tally;

static void tally_step(void *of, const bench_step *step)
{
    tally *const t = of;
    assert_true(step->n_decode <= t->load.conc && step->n_decode + step->n_prompt <= t->load.chunk && step->n_decode + step->n_prompt > 0);
    if (step->n_prompt > 0) {
        assert_int_equal(step->prompt_keys, (t->prompt_keys == t->load.isl ? 0 : t->prompt_keys) + step->n_prompt);
        t->prompt_keys = step->prompt_keys;
    }
    assert_true(step->n_decode == 0 || (step->decode_keys >= (uint64_t)step->n_decode * (t->load.isl + 1) && step->decode_keys <= (uint64_t)step->n_decode * (t->load.isl + t->load.osl)));
    t->prompt_tokens += step->n_prompt;
    t->answer_tokens += step->n_decode;
    t->keys += step->decode_keys;
    t->steps++;
    t->most_decode = step->n_decode > t->most_decode ? step->n_decode : t->most_decode;
}

static void a_trace_does_all_of_its_load_once(void **state)
{
    static const bench_load loads[] = { { 64, 16, 4, 32 }, { 1, 1, 1, 2 }, { 100, 1, 7, 9 }, { 7, 40, 12, 64 }, { 640, 30, 3, 4 } };
    (void)state;
    for (size_t i = 0; i < sizeof(loads) / sizeof(loads[0]); i++) {
        const bench_load l = loads[i];
        tally t = { .load = l };
        assert_true(bench_trace_walk(&l, tally_step, &t));
        assert_int_equal(t.prompt_tokens, (uint64_t)l.isl * l.conc);
        assert_int_equal(t.answer_tokens, (uint64_t)(l.osl - 1) * l.conc);   /* the prompt's last chunk makes the first */
        assert_int_equal(t.keys, (uint64_t)l.conc * ((uint64_t)(l.osl - 1) * l.isl + (uint64_t)(l.osl - 1) * l.osl / 2));
        assert_int_equal(t.prompt_keys, l.isl);
    }
    /* By hand: chunks of 32, prompts of 64, answers of 3 tokens, two clients. P P | DP DP | DD's rest. */
    const bench_load small = { 64, 3, 2, 32 };
    tally t = { .load = small };
    assert_true(bench_trace_walk(&small, tally_step, &t));
    assert_int_equal(t.steps, 7);   /* 32 32, then beside an answer 31 31, then 2, then one answer's two tokens alone */
    assert_int_equal(t.most_decode, 1);
}

static void shapes_hold_what_they_stand_for(void **state)
{
    const bench_load load = { 640, 30, 6, 64 };
    static bench_shapes shapes;
    static double seconds[BENCH_SHAPES_MAX];
    double sums[BENCH_OPS];
    uint32_t calls[BENCH_OPS] = { 0, 0, 0, 0 };
    (void)state;
    shapes = (bench_shapes){ .n = 0 };
    assert_true(bench_shapes_add(&shapes, &load) && bench_shapes_add(&shapes, &(bench_load){ 64, 30, 6, 64 }));
    assert_false(shapes.is_full);
    for (uint32_t i = 0; i < shapes.n; i++) {
        bench_problem p = { .op = shapes.item[i].op, .heads_q = 4, .heads_kv = 2, .dim_k = 64, .dim_v = 64, .batch = shapes.item[i].batch, .q_len = shapes.item[i].q_len,
                            .kv_len = shapes.item[i].kv_len };
        assert_true(p.batch <= load.conc && p.q_len <= p.kv_len && p.q_len > 0);
        seconds[i] = 1.0;
        calls[p.op] += shapes.item[i].steps[0];
        for (uint32_t j = 0; j < i; j++) {
            assert_false(shapes.item[i].op == shapes.item[j].op && shapes.item[i].batch == shapes.item[j].batch && shapes.item[i].q_len == shapes.item[j].q_len &&
                         shapes.item[i].kv_len == shapes.item[j].kv_len);
        }
    }
    bench_shapes_sum(&shapes, 0, seconds, sums);
    assert_close(sums[BENCH_WRITE], shapes.n_steps[0]);   /* every step writes */
    assert_close(sums[BENCH_DECODE], calls[BENCH_DECODE]);
    assert_close(sums[BENCH_EXTEND], calls[BENCH_EXTEND]);
    assert_true(calls[BENCH_EXTEND] >= 60 && calls[BENCH_DECODE] >= 29 && calls[BENCH_DECODE] < shapes.n_steps[0]);
    bench_problem p;
    assert_true(bench_step_shape(&load, &(bench_step){ 5, 5 * 641, 59, 640 }, BENCH_DECODE, &p) && p.batch == 6 && p.kv_len == 655);
    assert_true(bench_step_shape(&load, &(bench_step){ 5, 5 * 641, 59, 630 }, BENCH_EXTEND, &p) && p.q_len == 60 && p.kv_len == 640);
    assert_true(bench_step_shape(&load, &(bench_step){ 5, 5 * 641, 0, 0 }, BENCH_WRITE, &p) && p.q_len == 8);
    assert_false(bench_step_shape(&load, &(bench_step){ 5, 5 * 641, 0, 0 }, BENCH_EXTEND, &p) || bench_step_shape(&load, &(bench_step){ 0, 0, 64, 64 }, BENCH_DECODE, &p));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(attention_is_counted_pair_by_pair), cmocka_unit_test(a_limit_is_the_lower_roof), cmocka_unit_test(the_grid_reaches_what_it_promises),
        cmocka_unit_test(medians_and_quantiles),             cmocka_unit_test(a_ratio_is_taken_round_by_round), cmocka_unit_test(a_summary_finds_the_worst),
        cmocka_unit_test(a_trace_does_all_of_its_load_once),
        cmocka_unit_test(shapes_hold_what_they_stand_for),
        cmocka_unit_test(contenders_take_turns),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
