/* test_attn_split.c: what must not change a result: how many splits, threads and shares there are (to a part in a million), and in
 * deterministic mode who else is in the batch (to the bit); and that a plan may be used again and again. */
#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "parity/isolate.h"
#include "parity/problem.h"
#include "test_pattern.h"

/* Of the numbered cases every nth alone: for instrumented builds. */
static int64_t every = 1;

static int64_t run_nth(void *arg, int64_t index)
{
    isolate_case *const *run = arg;
    return (*run)(NULL, index * every);
}

static int64_t run_cases(const char *title, int64_t n, unsigned seconds, isolate_case *run)
{
    return isolate_run(title, (n + every - 1) / every, seconds, run_nth, &run);
}

/* Problems that splits may hurt: flat averages, sinks, windows, caps, empty sequences, all output in f32. */
static problem_shape split_shape(int64_t i)
{
    static const int64_t formats[][4] = { { OCT_DTYPE_E4M3FN, OCT_SCALE_LAYER, 0, 0 }, { OCT_DTYPE_I8, OCT_SCALE_TOKEN_HEAD, OCT_DTYPE_F16, 1 },
                                          { OCT_DTYPE_E5M2, OCT_SCALE_CHANNEL, 0, 0 }, { OCT_DTYPE_BF16, OCT_SCALE_NONE, 0, 0 } };
    static const int64_t k_data[] = { DATA_NORMAL, DATA_NEEDLE, DATA_EQUAL, DATA_CODES };
    problem_shape s = problem_plain(400 + i);
    const int64_t *k = formats[i % 4], *v = formats[(i / 4 + i) % 4];
    s.k_dtype = k[0], s.k_scale_mode = k[1], s.k_scale_dtype = k[2], s.k_rotated = k[3];
    s.v_dtype = v[0], s.v_scale_mode = v[1], s.v_scale_dtype = v[2], s.v_rotated = v[3];
    s.heads = 2;
    s.heads_q = (int64_t[]){ 2, 6, 10, 16 }[i % 4];
    s.dim_k = s.dim_v = (int64_t[]){ 64, 128, 80 }[i % 3];
    s.page_size = (int64_t[]){ 16, 1, 64, 5 }[(i / 3) % 4];
    s.layout = (i / 2) % 2;
    s.q_dtype = i % 2 ? OCT_DTYPE_F32 : OCT_DTYPE_BF16;
    s.k_data = k_data[i % 4];
    s.v_data = i % 3 == 0 ? DATA_HALF : DATA_NORMAL;
    s.score_deviation = i % 2 ? 0.01 : 2.0;
    s.window = i % 5 == 4 ? 150 : 0;
    s.sink = i % 3 == 1 ? SINK_RANDOM : i % 7 == 3 ? SINK_HUGE : SINK_NONE;
    s.softcap = i % 6 == 5 ? 20.0 : 0.0;
    s.causal = i % 8 != 7;
    s.compressed = i % 2;
    problem_lengths(&s, 5, (int32_t[]){ 1, 3, 20, 1, 2 }, (int32_t[]){ 700, 333, 200, 0, 1 });
    return s;
}

static double worst_difference(const problem *p, const float *reference)
{
    double worst = 0.0;
    for (int64_t row = 0; row < p->rows; row++)
        for (uint32_t h = 0; h < p->spec.heads_q; h++)
            for (uint32_t d = 0; d < p->spec.kv.dim_v; d++) {
                const int64_t at = row * p->args.out_row_stride + h * p->args.out_head_stride + d;
                const double difference = fabs((double)((const float *)p->out.at)[at] - (double)reference[at]);
                if (difference > 0.0 || isnan(difference))
                    worst = fmax(worst, isnan(difference) ? INFINITY : difference / p->expected.v_max[row * p->spec.heads_q + h]);
            }
    return worst;
}

static int64_t n_pairs(void)
{
    char force[96];
    uint32_t n = 0;
    while (problem_pair(n, force, sizeof force))
        n++;
    return n;
}

/* Splits of n parts, 1 being the whole; 0: the plan's own choice. */
static int64_t run_splits(void *arg, int64_t index)
{
    static const int32_t counts[] = { 1, 2, 7, 50, 0, 700 };
    const problem_shape s = split_shape(index);
    problem p;
    char force[96], text[PROBLEM_TEXT];
    int64_t failures = 0;
    (void)arg;
    if (problem_make(&p, &s) != 0 || problem_expect(&p) != 0)
        return 1;
    float *reference = malloc(p.out.size_bytes);
    for (uint32_t i = 0; reference != NULL && problem_pair(i, force, sizeof force); i++)
        for (size_t c = 0; c < sizeof counts / sizeof counts[0]; c++) {
            p.spec.split_tokens = counts[c] == 0 ? 0 : (uint32_t)((700 + counts[c] - 1) / counts[c]);
            p.spec.max_threads = 1 + (uint32_t)(c % 3);
            problem_print(&s, text, sizeof text);
            isolate_doing("%s in %d splits", force, counts[c]);
            isolate_repeat("parity_one '%s,split_tokens=%u'", text, p.spec.split_tokens);
            const problem_outcome outcome = problem_run(&p, problem_context(p.spec.max_threads), force, c % 2 ? RUN_PARTS : RUN_WHOLE);
            if (outcome.status == OCT_UNSUPPORTED) {
                problem_skip_pair(i);
                continue;
            }
            if (outcome.status != OCT_OK) {
                isolate_fail("%s", outcome.text);
                failures++;
                continue;
            }
            if (counts[c] == 1) {
                memcpy(reference, p.out.at, p.out.size_bytes);
                continue;
            }
            if (counts[c] > 1 && s.window == 0 && outcome.info.n_items_split == 0) {
                isolate_fail("nothing was split");
                failures++;
            }
            const double worst = worst_difference(&p, reference);
            isolate_ran(force[12] == 's' ? "split, scalar" : "split, others", worst);
            /* Weights in 16 bits round by another maximum in every split. */
            const compare_bound bound = problem_pair_bound(i);
            const double most = bound.watch > 1e-4 ? 2.0 * bound.watch : 1e-6;
            if (!(worst <= most)) {
                isolate_fail("differs from one pass by %.3g of max|V|, bound %.3g", worst, most);
                failures++;
            }
        }
    failures += reference == NULL;
    free(reference);
    problem_drop(&p);
    return failures;
}

static void splits_agree_with_one_pass(void **state)
{
    (void)state;
    assert_int_equal(run_cases("splits", 32, 60, run_splits), 0);
    isolate_report();
}

/* Runs a part of all sequences and compares the bits of the rows that it shares with `reference`. */
static int64_t compare_part(const problem *all, const problem_part *parts, int32_t n, int32_t watched, const char *force, uint32_t threads, problem_way way,
                            const float *reference, const float *reference_lse)
{
    problem view;
    int64_t failures = 0;
    if (problem_select(&view, all, parts, n) != 0)
        return 1;
    view.spec.max_threads = threads;
    const problem_outcome outcome = problem_run(&view, problem_context(threads), force, way);
    if (outcome.status != OCT_OK) {
        isolate_fail("%s", outcome.text);
        failures++;
    }
    for (int32_t i = 0; i < n && failures == 0; i++) {
        if (parts[i].sequence != watched)
            continue;
        const size_t row = (size_t)view.qo_indptr[i], rows = (size_t)parts[i].n_rows, heads = view.spec.heads_q, dim = view.spec.kv.dim_v;
        if (memcmp((float *)view.out.at + row * heads * dim, reference, rows * heads * dim * sizeof(float)) != 0 ||
            memcmp((float *)view.lse.at + row * heads, reference_lse, rows * heads * sizeof(float)) != 0) {
            isolate_fail("the bits of sequence %d change in a batch of %d with %u threads", watched, n, threads);
            failures++;
        }
    }
    problem_drop(&view);
    return failures;
}

static int64_t run_batches(void *arg, int64_t index)
{
    enum { SEQUENCES = 12 };
    problem_shape s = split_shape(index);
    problem all, alone;
    problem_part parts[SEQUENCES];
    char force[96];
    int64_t failures = 0;
    rng r = rng_make((uint64_t)index + 900);
    (void)arg;
    s.deterministic = 1;
    s.n_sequences = s.n_lengths = SEQUENCES;
    for (int i = 0; i < SEQUENCES; i++) {
        s.q_len[i] = i % 4 == 3 ? (int32_t)rng_between(&r, 17, 30) : (int32_t)rng_between(&r, 1, 3);
        s.kv_len[i] = (int32_t)rng_between(&r, s.q_len[i], 900);
    }
    if (problem_make(&all, &s) != 0)
        return 1;
    for (int32_t watched = 2; watched <= 3; watched++) {   /* one decode, one extend */
        const problem_part whole = problem_whole(&all, watched);
        if (problem_select(&alone, &all, &whole, 1) != 0)
            return 1;
        for (uint32_t i = 0; problem_pair(i, force, sizeof force); i++) {
            isolate_doing("%s, deterministic", force);
            isolate_repeat("parity_attn_split, batch case %lld", (long long)index);
            alone.spec.max_threads = 1;
            const problem_outcome outcome = problem_run(&alone, problem_context(1), force, RUN_WHOLE);
            if (outcome.status == OCT_UNSUPPORTED) {   /* a row for other formats */
                problem_skip_pair(i);
                continue;
            }
            if (outcome.status != OCT_OK) {
                isolate_fail("%s", outcome.text);
                failures++;
                continue;
            }
            for (int trial = 0; trial < 6; trial++) {
                int32_t n = (int32_t[]){ 1, 2, 5, SEQUENCES, SEQUENCES, 3 }[trial];
                for (int32_t j = 0; j < SEQUENCES; j++) {   /* shuffled, and the watched one among the first n */
                    const int32_t to = (int32_t)rng_below(&r, j + 1);
                    parts[j] = parts[to];
                    parts[to] = problem_whole(&all, j);
                }
                for (int32_t j = 0; j < SEQUENCES; j++)
                    if (parts[j].sequence == watched) {
                        const int32_t to = (int32_t)rng_below(&r, n);
                        parts[j] = parts[to];
                        parts[to] = problem_whole(&all, watched);
                        break;
                    }
                failures += compare_part(&all, parts, n, watched, force, 1 + (uint32_t)trial % 3, (problem_way)(trial % 3), alone.out.at, alone.lse.at);
            }
        }
        problem_drop(&alone);
    }
    problem_drop(&all);
    return failures;
}

static void batch_mates_do_not_change_bits(void **state)
{
    (void)state;
    assert_int_equal(run_cases("batches", 8, 60, run_batches), 0);
}

/* Shares in any order, on any number of threads, tiny splits: many items race for few groups. */
static int64_t run_shares(void *arg, int64_t index)
{
    problem_shape s = split_shape(index);
    problem p;
    int64_t failures = 0;
    (void)arg;
    s.split_tokens = (int64_t[]){ 1, 3, 16, 40 }[index % 4];
    s.threads = (int64_t[]){ 1, 2, 5, 8, 16 }[index % 5];
    if (problem_make(&p, &s) != 0)
        return 1;
    for (int i = 0; i < 3; i++)
        failures += problem_check_made(&p, (problem_way)i);
    problem_drop(&p);
    return failures;
}

static void shares_and_threads(void **state)
{
    (void)state;
    assert_int_equal(run_cases("shares", 20, 60, run_shares), 0);
}

enum { STEP_SHAPES = 5 };

/* One plan, many steps: growing and shrinking batches, refused ones between, several layers a step. */
static int64_t run_steps(void *arg, int64_t index)
{
    enum { STEPS = 12 };
    static const int64_t shapes[STEP_SHAPES] = { 0, 1, 2, 3, 5 };
    problem p;
    oct_plan *plan = NULL;
    char force[96];
    int64_t failures = 0;
    (void)arg;
    if (!problem_pair((uint32_t)index / STEP_SHAPES, force, sizeof force))
        return 0;
    const compare_bound bound = problem_pair_bound((uint32_t)index / STEP_SHAPES);
    for (int step = 0; step < STEPS; step++) {
        problem_shape s = split_shape(shapes[index % STEP_SHAPES]);
        oct_error error = OCT_ERROR_INIT;
        rng r = rng_make((uint64_t)(index * 100 + step));
        s.seed += step;
        s.sm_scale = 0.01;   /* a plan's spec stays the same over its steps */
        s.n_sequences = s.n_lengths = (int32_t)rng_below(&r, step == 5 ? 200 : 9);
        for (int i = 0; i < s.n_lengths; i++) {
            s.q_len[i] = rng_one_in(&r, 4) ? (int32_t)rng_between(&r, 0, 40) : 1;
            s.kv_len[i] = (int32_t)rng_below(&r, step == 5 ? 20 : 300);
        }
        s.n_lengths = s.n_lengths > 0 ? s.n_lengths : 1;
        if (problem_make(&p, &s) != 0 || problem_expect(&p) != 0)
            return failures + 1;
        isolate_doing("%s, step %d of one plan", force, step);
        isolate_repeat("parity_attn_split, step case %lld", (long long)index);
        oct_attn_spec spec = p.spec;
        spec.force_variant = force;
        const oct_status made = plan != NULL ? OCT_OK : oct_plan_create(problem_context(1), &spec, &plan, &error);
        if (made != OCT_OK) {
            problem_drop(&p);
            if (made == OCT_UNSUPPORTED) {   /* a row for other formats */
                problem_skip_pair((uint32_t)index / STEP_SHAPES);
                return failures;
            }
            isolate_fail("%s", error.text);
            return failures + 1;
        }
        if (step % 4 == 3) {   /* a page beyond the pool is refused, and the plan then holds an empty batch */
            const int64_t n_pages = p.n_pages;
            oct_plan_info info = { 0 };
            info.struct_size = sizeof info;
            p.n_pages = 0;
            const oct_status refused = problem_update(&p, plan, &error);
            p.n_pages = n_pages;
            if (p.page_at[s.n_sequences] > 0 && (refused != OCT_INVALID_ARGUMENT || oct_plan_info_get(plan, &info) != OCT_OK || info.n_rows != 0)) {
                isolate_fail("a batch over no pages gives %s, and %lld rows", oct_status_name(refused), (long long)info.n_rows);
                failures++;
            }
        }
        oct_status status = problem_update(&p, plan, &error);
        for (int layer = 0; layer < 3 && status == OCT_OK; layer++) {
            problem_blank(&p);
            status = oct_attn_run(plan, &p.args);
            const compare_verdict verdict = problem_judge(&p, &bound);
            if (status == OCT_OK && !verdict.ok) {
                isolate_fail("%s", verdict.text);
                failures++;
            }
        }
        if (status != OCT_OK) {
            isolate_fail("%s: %s", oct_status_name(status), error.text);
            failures++;
        }
        problem_drop(&p);
    }
    oct_plan_destroy(plan);
    return failures;
}

static void one_plan_serves_many_steps(void **state)
{
    (void)state;
    assert_int_equal(run_cases("steps", STEP_SHAPES * n_pairs(), 60, run_steps), 0);
}

/* Layer after layer of one step, on threads that start each together: a group merged before its last split has arrived would bring in
 * what the layer before left there. */
enum { RACERS = 4, LAPS = 400 };

typedef struct race {
    oct_plan *plan;
    problem *layers[2];
    pthread_barrier_t barrier;
    const void *wanted[2];
    int64_t wrong;
} race;

typedef struct racer { race *race; uint32_t ith; } racer;

static void *run_laps(void *arg)
{
    const racer *self = arg;
    race *r = self->race;
    for (int lap = 0; lap < LAPS; lap++) {
        problem *p = r->layers[lap % 2];
        pthread_barrier_wait(&r->barrier);
        const oct_status status = oct_attn_run_part(r->plan, &p->args, self->ith, RACERS);
        pthread_barrier_wait(&r->barrier);
        if (self->ith == 0) {
            r->wrong += status != OCT_OK || memcmp(p->out.at, r->wanted[lap % 2], p->out.size_bytes) != 0;
            problem_blank(p);
        }
    }
    return NULL;
}

/* Makes a layer of split_shape(shape) and runs it on one thread for the bits that are wanted. 1: made; 0: the row doesn't take its formats. */
static int make_racing_layer(problem *p, int64_t shape, int second, const char *force, const void **wanted)
{
    problem_shape s = split_shape(shape);
    s.q_dtype = OCT_DTYPE_BF16;
    s.k_data = DATA_NORMAL;
    s.sm_scale = 0.002;
    s.softcap = 0.0;
    s.split_tokens = 8;
    s.threads = RACERS;
    problem_lengths(&s, 3, (int32_t[]){ 1, 1, 17 }, (int32_t[]){ 64, 30, 40 });
    if (problem_make(p, &s) != 0)
        abort();
    for (size_t i = 1; i < p->q.size_bytes && second; i += 2)   /* the same pages, and queries that differ by signs */
        ((uint8_t *)p->q.at)[i] ^= 0x80;
    const oct_status status = problem_run(p, problem_context(RACERS), force, RUN_WHOLE).status;
    if (status == OCT_UNSUPPORTED) {
        problem_drop(p);
        return 0;
    }
    void *kept = malloc(p->out.size_bytes);
    if (status != OCT_OK || kept == NULL)
        abort();
    memcpy(kept, p->out.at, p->out.size_bytes);
    *wanted = kept;
    problem_blank(p);
    return 1;
}

static int64_t run_race(void *arg, int64_t index)
{
    static const int64_t shapes[] = { 0, 1, 5 };   /* K and V in e4m3, both in i8, i8 and e5m2 */
    problem layers[2];
    race r;
    racer racers[RACERS];
    pthread_t threads[RACERS];
    oct_error error = OCT_ERROR_INIT;
    char force[96];
    size_t shape = 0;
    (void)arg;
    if (!problem_pair((uint32_t)index, force, sizeof force))
        return 0;
    memset(&r, 0, sizeof r);
    isolate_doing("%s, laps", force);
    isolate_repeat("parity_attn_split");
    while (!make_racing_layer(&layers[0], shapes[shape], 0, force, &r.wanted[0]))
        if (++shape == sizeof shapes / sizeof shapes[0]) {
            problem_skip_pair((uint32_t)index);   /* another machine's row */
            return 0;
        }
    make_racing_layer(&layers[1], shapes[shape], 1, force, &r.wanted[1]);
    r.layers[0] = &layers[0];
    r.layers[1] = &layers[1];
    oct_attn_spec spec = layers[0].spec;
    spec.force_variant = force;
    if (oct_plan_create(problem_context(RACERS), &spec, &r.plan, &error) != OCT_OK || problem_update(&layers[0], r.plan, &error) != OCT_OK) {
        isolate_fail("%s", error.text);
        return 1;
    }
    pthread_barrier_init(&r.barrier, NULL, RACERS);
    for (uint32_t i = 0; i < RACERS; i++) {
        racers[i] = (racer){ &r, i };
        if (pthread_create(&threads[i], NULL, run_laps, &racers[i]) != 0)
            abort();
    }
    for (uint32_t i = 0; i < RACERS; i++)
        pthread_join(threads[i], NULL);
    pthread_barrier_destroy(&r.barrier);
    if (r.wrong > 0)
        isolate_fail("%lld of %d laps give other bits", (long long)r.wrong, LAPS);
    oct_plan_destroy(r.plan);
    for (int i = 0; i < 2; i++) {
        free((void *)(uintptr_t)r.wanted[i]);
        problem_drop(&layers[i]);
    }
    return r.wrong > 0;
}

static void threads_meet_layer_after_layer(void **state)
{
    (void)state;
    assert_int_equal(isolate_run("laps", n_pairs(), 120, run_race, NULL), 0);
}

int main(int argc, char **argv)
{
    const char *only = "*";
    if (argc > 1 && strncmp(argv[1], "every=", 6) == 0)
        every = strtoll(argv[1] + 6, NULL, 10);
    else if (argc > 1)   /* a pattern of names */
        only = argv[1];
    if (every < 1)
        return fprintf(stderr, "usage: parity_attn_split [every=N | PATTERN]\n"), 2;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(splits_agree_with_one_pass),
        cmocka_unit_test(batch_mates_do_not_change_bits),
        cmocka_unit_test(shares_and_threads),
        cmocka_unit_test(one_plan_serves_many_steps),
        cmocka_unit_test(threads_meet_layer_after_layer),
    };
    if (!test_pattern(tests, sizeof(tests) / sizeof(tests[0]), only))
        return 2;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
