/* fault_long.c: chunks of one prompt, batch mates, long contexts. */
#include <math.h>

#include "faults/faults.h"

/* ---- H1 ------------------------------------------------------------------------------------------------------- */

/* Chunks of the prompt: first_size, then chunks of `size`. */
static int64_t run_chunking(const problem *all, int32_t first_size, int32_t size, uint32_t pair)
{
    const compare_bound bound = problem_pair_bound(pair);
    char force[96];
    problem_pair(pair, force, sizeof force);
    const size_t heads = all->spec.heads_q, dim = all->spec.kv.dim_v;
    for (int32_t at = 0; at < fault_prompt;) {
        const int32_t wanted = at == 0 ? first_size : size, n = wanted < fault_prompt - at ? wanted : fault_prompt - at;
        const problem_part part = { 0, at, n, at + n, 0 };
        problem view;
        if (problem_select(&view, all, &part, 1) != 0)
            return 1;
        const problem_outcome outcome = problem_run(&view, problem_context(1), force, RUN_WHOLE);
        memcpy(view.expected.out, all->expected.out + (size_t)at * heads * dim, (size_t)n * heads * dim * sizeof(double));
        memcpy(view.expected.lse, all->expected.lse + (size_t)at * heads, (size_t)n * heads * sizeof(double));
        memcpy(view.expected.v_max, all->expected.v_max + (size_t)at * heads, (size_t)n * heads * sizeof(double));
        const compare_verdict verdict = problem_judge(&view, &bound);
        int last_differs = 0;
        for (uint32_t h = 0; h < heads && at + n == fault_prompt; h++) {   /* the last row's largest element, as a token would be chosen */
            size_t best = 0, want = 0;
            for (uint32_t d = 0; d < dim; d++) {
                if (problem_out(&view, n - 1, h, d) > problem_out(&view, n - 1, h, (uint32_t)best))
                    best = d;
                if (view.expected.out[((size_t)(n - 1) * heads + h) * dim + d] > view.expected.out[((size_t)(n - 1) * heads + h) * dim + want])
                    want = d;
            }
            /* Two elements closer than the bound may change places. */
            const double *row = view.expected.out + ((size_t)(n - 1) * heads + h) * dim;
            last_differs |= best != want && row[want] - row[best] > 2.0 * bound.watch * view.expected.v_max[(size_t)(n - 1) * heads + h];
        }
        problem_drop(&view);
        if (outcome.status != OCT_OK || !verdict.ok || last_differs) {
            isolate_fail("rows %d to %d: %s %s%s", at, at + n - 1, outcome.text, verdict.text, last_differs ? " the last row's argmax differs" : "");
            return 1;
        }
        at += n;
    }
    return 0;
}

static int64_t run_prompt(void *arg, int64_t index)
{
    static const uint32_t formats[][3] = { { OCT_DTYPE_E4M3FN, OCT_SCALE_LAYER, 0 }, { OCT_DTYPE_I8, OCT_SCALE_TOKEN_HEAD, 1 }, { OCT_DTYPE_E5M2, OCT_SCALE_TOKEN_HEAD, 0 } };
    problem_shape s = problem_plain(1300 + index);
    problem all;
    int64_t failures = 0;
    char force[96];
    (void)arg;
    fault_set_formats(&s, formats[index][0], formats[index][1]);
    s.k_rotated = formats[index][2];
    s.by_write = 1;
    s.window = index == 2 ? fault_prompt / 5 : 0;
    const int32_t half = fault_prompt * 512 / 1000;
    problem_lengths(&s, 1, (int32_t[]){ fault_prompt }, (int32_t[]){ fault_prompt });
    if (problem_make(&all, &s) != 0 || problem_expect(&all) != 0)
        return 1;
    for (uint32_t i = 0; problem_pair(i, force, sizeof force); i++) {
        isolate_doing("%s", force);
        isolate_repeat("faults fault_H1*");
        if (problem_run(&all, problem_context(1), force, RUN_WHOLE).status == OCT_UNSUPPORTED) {
            problem_skip_pair(i);
            continue;
        }
        failures += run_chunking(&all, fault_prompt, fault_prompt, i) + run_chunking(&all, half, fault_prompt - half, i) + run_chunking(&all, 16, 16, i) + run_chunking(&all, 1, 1, i) +
                    run_chunking(&all, 20, fault_prompt - 20, i) + run_chunking(&all, 1, fault_prompt - 1, i);
    }
    problem_drop(&all);
    return failures;
}

void fault_H1_chunks_equal_one_prefill(void **state)
{
    (void)state;
    RUN_CASES("H1", 3, 240, run_prompt);
}

/* ---- I3 ------------------------------------------------------------------------------------------------------- */

enum { WATCHED_KEYS = 3333, SEQUENCES = 256 };

/* Sets what pair i takes. A pair of a GPU's rows for decode and extend may have no format in common, and is passed over; anything else is a failure. */
static int takes_formats(problem_shape *s, uint32_t i, int64_t *failures)
{
    const int fits = fault_formats_for(s, i);
    if (fits == 0)
        isolate_passed_over();
    *failures += fits < 0;
    return fits > 0;
}

static int64_t run_mates(void *arg, int64_t index)
{
    static const int32_t mates[] = { 0, 1, 7, 63, 255 };
    problem_shape s = problem_plain(1400);
    problem all, view;
    problem_part parts[SEQUENCES];
    float first_out[4 * 192], first_lse[4];
    char force[96];
    int64_t failures = 0;
    rng r = rng_make(1400);
    (void)arg;
    if (!problem_pair((uint32_t)index, force, sizeof force))
        return 0;
    if (!problem_pair_can((uint32_t)index)) {
        isolate_skipped();
        return 0;
    }
    if (!takes_formats(&s, (uint32_t)index, &failures))
        return failures;
    const size_t out_bytes = 4 * (size_t)s.dim_v * sizeof(float);
    s.deterministic = 1;
    s.n_sequences = s.n_lengths = SEQUENCES;
    for (int i = 0; i < SEQUENCES; i++) {
        s.q_len[i] = 1;
        s.kv_len[i] = i == 0 ? WATCHED_KEYS : (int32_t)rng_between(&r, 1, 500);
    }
    if (problem_make(&all, &s) != 0)
        return 1;
    isolate_doing("%s", force);
    isolate_repeat("faults fault_I3*");
    for (int trial = 0; trial < 15; trial++) {
        const int32_t n = mates[trial % 5] + 1, place = trial < 5 ? 0 : (int32_t)rng_below(&r, n);
        int32_t next = 1 + (int32_t)rng_below(&r, SEQUENCES - n + 1);
        for (int32_t i = 0; i < n; i++)
            parts[i] = problem_whole(&all, i == place ? 0 : next++);
        for (int32_t i = n - 1; i > 0 && trial >= 10; i--) {   /* and permuted, the watched one wherever it falls */
            const int32_t j = (int32_t)rng_below(&r, i + 1);
            const problem_part kept = parts[i];
            parts[i] = parts[j];
            parts[j] = kept;
        }
        if (problem_select(&view, &all, parts, n) != 0)
            return failures + 1;
        view.spec.max_threads = 1 + (uint32_t)trial % 3;
        const problem_outcome outcome = problem_run(&view, problem_context(view.spec.max_threads), force, (problem_way)(trial % 3));
        if (outcome.status != OCT_OK) {
            isolate_fail("%s", outcome.text);
            failures++;
        }
        for (int32_t i = 0; i < n && outcome.status == OCT_OK; i++) {
            if (parts[i].sequence != 0)
                continue;
            const float *out = (const float *)view.out.at + (size_t)i * 4 * (size_t)s.dim_v, *lse = (const float *)view.lse.at + (size_t)i * 4;
            if (trial == 0) {
                memcpy(first_out, out, out_bytes);
                memcpy(first_lse, lse, sizeof first_lse);
            } else if (memcmp(first_out, out, out_bytes) != 0 || memcmp(first_lse, lse, sizeof first_lse) != 0) {
                isolate_fail("other bits among %d mates, at place %d", n - 1, i);
                failures++;
            }
        }
        problem_drop(&view);
    }
    problem_drop(&all);
    return failures;
}

/* The same call again and again, whichever thread is first. */
static int64_t run_repeats(void *arg, int64_t index)
{
    problem_shape s = problem_plain(1420);
    problem p;
    char force[96];
    int64_t failures = 0;
    (void)arg;
    if (!problem_pair((uint32_t)index / 2, force, sizeof force))
        return 0;
    if (!problem_pair_can((uint32_t)index / 2)) {
        isolate_skipped();
        return 0;
    }
    if (!takes_formats(&s, (uint32_t)index / 2, &failures))
        return failures;
    s.deterministic = index % 2;
    s.threads = 4;
    s.split_tokens = 100;
    problem_lengths(&s, 4, (int32_t[]){ 1, 1, 20, 1 }, (int32_t[]){ 1500, 300, 700, 5 });
    if (problem_make(&p, &s) != 0)
        return 1;
    unsigned char *first = malloc(p.out.size_bytes);
    if (first == NULL)
        return 1;
    isolate_doing("%s, 50 repeats", force);
    isolate_repeat("faults fault_I3*");
    for (int i = 0; i < 50 && failures == 0; i++) {
        const problem_outcome outcome = problem_run(&p, problem_context(4), force, i % 2 ? RUN_THREADS : RUN_WHOLE);
        if (i == 0)
            memcpy(first, p.out.at, p.out.size_bytes);
        if (outcome.status != OCT_OK || memcmp(first, p.out.at, p.out.size_bytes) != 0) {
            isolate_fail("run %d gives other bits: %s", i, outcome.text);
            failures++;
        }
    }
    free(first);
    problem_drop(&p);
    return failures;
}

void fault_I3_batch_mates_do_not_change_bits(void **state)
{
    (void)state;
    RUN_CASES("I3 mates", FAULT_PAIRS_MAX, 240, run_mates);
    RUN_CASES("I3 repeats", 2 * FAULT_PAIRS_MAX, 120, run_repeats);
}

/* ---- J1 ------------------------------------------------------------------------------------------------------- */

enum { FLAT, NEEDLE_START, NEEDLE_MIDDLE, NEEDLE_END, WEAK_NEEDLE, EQUAL, HUGE_SCORES, KINDS, EXTEND_KINDS = 2 };   /* extend: the first two */

static problem_shape long_shape(int32_t keys, int64_t kind, int extend)
{
    problem_shape s = problem_plain(1500 + kind);
    s.heads_q = extend ? 2 : 8;
    s.heads = 1;
    s.dim_k = s.dim_v = 128;
    s.page_size = 64;
    s.q_dtype = OCT_DTYPE_F32;
    problem_lengths(&s, 1, (int32_t[]){ extend ? 17 : 1 }, &keys);
    switch (kind) {
    case FLAT: s.score_deviation = 0.01; s.v_data = DATA_HALF; break;
    case EQUAL: s.k_data = DATA_EQUAL; s.v_data = DATA_HALF; break;
    case HUGE_SCORES: s.k_data = DATA_HUGE; break;
    default:
        s.k_data = DATA_NEEDLE;
        s.needle_key = kind == NEEDLE_START ? keys / 100 : kind == NEEDLE_MIDDLE ? keys / 2 : kind == NEEDLE_END ? keys - keys / 100 : keys / 3;
        s.needle_gap = kind == WEAK_NEEDLE ? 12.0 : 25.0;
        break;
    }
    return s;
}

static int same_formats(const problem_shape *a, const problem_shape *b)
{
    return a->k_dtype == b->k_dtype && a->v_dtype == b->v_dtype && a->dim_k == b->dim_k && a->dim_v == b->dim_v;
}

/* The formats and dims that pair i takes, its dims 128 where they may be; 0: none. */
static int formats_of(problem_shape *s, uint32_t i)
{
    *s = problem_plain(1500);
    s->dim_k = s->dim_v = 128;
    return fault_formats_for(s, i);
}

static void set_formats_of(problem_shape *s, const problem_shape *formats)
{
    s->dim_k = formats->dim_k;
    s->dim_v = formats->dim_v;
    s->k_dtype = formats->k_dtype;
    s->v_dtype = formats->v_dtype;
    s->k_scale_mode = formats->k_scale_mode;
    s->v_scale_mode = formats->v_scale_mode;
    s->k_scale_dtype = formats->k_scale_dtype;
    s->v_scale_dtype = formats->v_scale_dtype;
}

/* Those pairs whose formats and dims, as formats_of gives them, are these. The worst error of each; the needle's value must be the output, and the flat mean within 1 %. */
static int64_t measure_formats(const problem_shape *formats, int32_t keys, int64_t kind, int extend, double worst[FAULT_PAIRS_MAX])
{
    problem_shape s = long_shape(keys, kind, extend);
    problem p;
    char force[96], text[PROBLEM_TEXT];
    int64_t failures = 0;
    set_formats_of(&s, formats);
    if (problem_make(&p, &s) != 0 || problem_expect(&p) != 0)
        return 1;
    problem_print(&s, text, sizeof text);
    for (uint32_t i = 0; i < FAULT_PAIRS_MAX && problem_pair(i, force, sizeof force); i++) {
        problem_shape own;
        if (!problem_pair_can(i) || !formats_of(&own, i) || !same_formats(&own, formats))
            continue;
        isolate_doing("%s over %d keys, kind %lld", force, keys, (long long)kind);
        isolate_repeat("parity_one '%s'", text);
        const problem_outcome outcome = problem_run(&p, problem_context(1), force, RUN_WHOLE);
        const compare_bound bound = problem_pair_bound(i);
        const compare_verdict verdict = problem_judge(&p, &bound);
        worst[i] = verdict.max_error;
        isolate_ran(force + 12, verdict.max_error);
        if (outcome.status != OCT_OK || !verdict.ok) {
            isolate_fail("%s%s", outcome.text, verdict.text);
            failures++;
        }
        if (kind >= NEEDLE_START && kind <= NEEDLE_END) {
            double needle[192];
            oracle_vector(&p.layer, ORACLE_V, p.pages[s.needle_key / 64], (uint32_t)(s.needle_key % 64), 0, needle);
            for (uint32_t d = 0; d < p.spec.kv.dim_v; d++)
                if (!(fabs(problem_out(&p, 0, 0, d) - needle[d]) <= fmax(1e-3, bound.watch) * p.expected.v_max[0])) {
                    isolate_fail("dim %u is %g, the needle's is %g", d, problem_out(&p, 0, 0, d), needle[d]);
                    failures++;
                    break;
                }
        }
    }
    problem_drop(&p);
    return failures;
}

/* Every pair, each in the first formats and dims that it takes. */
static int64_t measure(int32_t keys, int64_t kind, int extend, double worst[FAULT_PAIRS_MAX])
{
    problem_shape met[FAULT_PAIRS_MAX];
    int n_met = 0;
    int64_t failures = 0;
    char force[96];
    for (uint32_t i = 0; i < FAULT_PAIRS_MAX && problem_pair(i, force, sizeof force); i++) {
        problem_shape s;
        if (!problem_pair_can(i)) {
            isolate_skipped();
            continue;
        }
        int is_new = formats_of(&s, i);
        failures += !is_new;
        for (int j = 0; j < n_met; j++)
            is_new &= !same_formats(&s, &met[j]);
        if (is_new) {
            met[n_met++] = s;
            failures += measure_formats(&s, keys, kind, extend, worst);
        }
    }
    return failures;
}

/* index: the kinds of decode, then those of extend; lengths from `keys` of the fast or the slow test. */
static int64_t compare_lengths(int64_t index, const int32_t *keys, int64_t n)
{
    double worst[3][FAULT_PAIRS_MAX] = { { 0.0 } };
    int64_t failures = 0;
    char text[96];
    for (int64_t i = 0; i < n; i++)
        failures += measure(keys[i], index % KINDS, (int)(index / KINDS), worst[i]);
    for (int64_t i = 1; i < n; i++)
        for (int j = 0; j < FAULT_PAIRS_MAX && problem_pair((uint32_t)j, text, sizeof text); j++)
            /* Below a few units of f32, or of 16-bit weights, a ratio says nothing. */
            if (worst[i][j] > 2.0 * worst[0][j] + (problem_pair_bound((uint32_t)j).watch > 1e-4 ? 1e-3 : 5e-7)) {
                isolate_doing("pair %d", j);
                isolate_fail("pair %d, kind %lld: error %.3g over %d keys, %.3g over %d", j, (long long)(index % KINDS), worst[i][j], keys[i], worst[0][j], keys[0]);
                failures++;
            }
    return failures;
}

static int64_t run_to_64k(void *arg, int64_t index)
{
    static const int32_t keys[] = { 8192, 65536 };
    (void)arg;
    return compare_lengths(index, keys, 2);
}

static int64_t run_to_256k(void *arg, int64_t index)
{
    static const int32_t keys[] = { 8192, 262144 };   /* what lies between is the fast test's */
    (void)arg;
    return compare_lengths(index, keys, 2);
}

void fault_J1_long_contexts_8k_64k(void **state)
{
    (void)state;
    RUN_CASES("J1", KINDS + EXTEND_KINDS, 240, run_to_64k);
    isolate_report();
}

void fault_J1_long_contexts_256k(void **state)
{
    (void)state;
    RUN_CASES("J1 256k", KINDS + EXTEND_KINDS, 600, run_to_256k);
    isolate_report();
}
