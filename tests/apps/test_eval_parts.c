/* test_eval_parts.c: the pure parts of octavo eval: statistics against SciPy, conclusions against sums done by hand, numbers taken out of answers, results to
 * JSON and back, partial results that are damaged or another's. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "apps/eval/conclude.h"
#include "apps/eval/partial.h"
#include "apps/eval/questions.h"
#include "apps/eval/statistics.h"

static void assert_near(double value, double expected, double relative)
{
    const double limit = fabs(expected) * relative + 1e-15;
    if (!(fabs(value - expected) <= limit)) {
        fail_msg("%.17g instead of %.17g", value, expected);
    }
}

/* ---- statistics -------------------------------------------------------------------------------------------------------------------- */

/* from scipy.stats import binomtest (1.17.1); binomtest(min(l, w), l + w, 0.5).pvalue */
static void test_mcnemar(void **unused)
{
    (void)unused;
    static const struct { uint32_t lost, won; double p; } rows[] = {
        { 0, 0, 1 }, { 1, 0, 1 }, { 5, 1, 0.21875 }, { 3, 12, 0.03515625 }, { 40, 60, 0.05688793364098089 }, { 0, 8, 0.0078125 }, { 700, 800, 0.010559255466711506 },
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        assert_near(eval_mcnemar(rows[i].lost, rows[i].won), rows[i].p, 1e-10);
        assert_near(eval_mcnemar(rows[i].won, rows[i].lost), rows[i].p, 1e-10);
    }
}

/* binomtest(k, n).proportion_ci(method="wilson"); and with z = scipy.stats.norm.ppf(0.975), a = won + .5, b = lost + .5, m = n + 2:
 * (a - b) / m -+ z * numpy.sqrt(a + b - (a - b) ** 2 / m) / m */
static void test_intervals_of_shares(void **unused)
{
    (void)unused;
    static const struct { uint64_t k, n; double low, high; } wilson[] = {
        { 0, 10, 0.0, 0.27753279986288926 }, { 3, 10, 0.10779126740630102, 0.6032218525388546 }, { 50, 100, 0.4038315303659956, 0.5961684696340044 },
        { 100, 100, 0.9630065017930143, 1.0 }, { 731, 1000, 0.702670228864586, 0.7575618087150874 },
    };
    static const struct { uint32_t lost, won, n; double low, high; } matched[] = {
        { 0, 0, 20, -0.08908927202454792, 0.08908927202454792 }, { 3, 9, 100, -0.00951139030530121, 0.12715844912883062 },
        { 1, 0, 4, -0.6089672967251867, 0.2756339633918533 }, { 60, 10, 70, -0.8584036980771066, -0.5304851908117822 },
    };
    for (size_t i = 0; i < sizeof(wilson) / sizeof(wilson[0]); i++) {
        const eval_interval interval = eval_wilson(wilson[i].k, wilson[i].n);
        assert_near(interval.low, wilson[i].low, 1e-12);
        assert_near(interval.high, wilson[i].high, 1e-12);
    }
    for (size_t i = 0; i < sizeof(matched) / sizeof(matched[0]); i++) {
        const eval_interval interval = eval_matched_interval(matched[i].lost, matched[i].won, matched[i].n);
        assert_near(interval.low, matched[i].low, 1e-12);
        assert_near(interval.high, matched[i].high, 1e-12);
    }
    assert_true(isnan(eval_wilson(0, 0).low) && isnan(eval_matched_interval(0, 0, 0).high));
}

/* R: p.adjust(c(.01, .04, .03, .005), "holm") */
static void test_holm(void **unused)
{
    (void)unused;
    double p[] = { 0.01, NAN, 0.04, 0.03, 0.005, 0.9 };
    assert_true(eval_holm(p, 5));
    assert_near(p[0], 0.03, 1e-12);
    assert_true(isnan(p[1]));
    assert_near(p[2], 0.06, 1e-12);
    assert_near(p[3], 0.06, 1e-12);
    assert_near(p[4], 0.02, 1e-12);
    assert_true(eval_holm(&p[5], 1));
    assert_near(p[5], 0.9, 1e-12);
}

enum { N_SAMPLE = 60 };

/* x = numpy.array([(i * i * 37) % 101 / 10 for i in range(60)]) */
static void fill_sample(double *x, eval_cluster *clusters)
{
    for (int i = 0; i < N_SAMPLE; i++) {
        x[i] = (i * i * 37) % 101 / 10.0;
        clusters[i] = (eval_cluster){ x[i], 1 };
    }
}

/* numpy.quantile(x, q), scipy.stats.sem(x), scipy.stats.bootstrap((x,), numpy.mean, method="percentile", n_resamples=400000): [4.0267, 5.5667] */
static void test_samples(void **unused)
{
    (void)unused;
    static const double quantiles[][2] = { { 0, 0 }, { 0.01, 0.059 }, { 0.5, 4.6 }, { 0.9, 8.71 }, { 0.99, 9.823 }, { 1, 10 } };
    double x[N_SAMPLE];
    eval_cluster clusters[N_SAMPLE];
    fill_sample(x, clusters);
    assert_near(eval_clusters_mean(clusters, N_SAMPLE), 4.796666666666667, 1e-12);
    assert_near(eval_clusters_stderr(clusters, N_SAMPLE), 0.3970225816249633, 1e-12);
    eval_sort(x, N_SAMPLE);
    for (size_t i = 0; i < sizeof(quantiles) / sizeof(quantiles[0]); i++) {
        assert_near(eval_quantile(x, N_SAMPLE, quantiles[i][0]), quantiles[i][1], 1e-12);
    }
    /* 5,000 draws know a 2.5th percentile of a spread of 0.4 to about 0.02. */
    for (uint64_t seed = 1; seed <= 3; seed++) {
        const eval_interval interval = eval_bootstrap(clusters, N_SAMPLE, seed);
        assert_true(fabs(interval.low - 4.0266667) < 0.06 && fabs(interval.high - 5.5666667) < 0.06);
    }
    const eval_interval again = eval_bootstrap(clusters, N_SAMPLE, 1), first = eval_bootstrap(clusters, N_SAMPLE, 1);
    assert_memory_equal(&again, &first, sizeof(again));
    assert_true(isnan(eval_bootstrap(clusters, 1, 1).low) && isnan(eval_clusters_stderr(clusters, 1)) && isnan(eval_quantile(x, 0, 0.5)));
}

/* ---- numbers in answers ---------------------------------------------------------------------------------------------------------------- */

static void test_extraction(void **unused)
{
    (void)unused;
    static const struct { const char *text, *number; } rows[] = {
        { "So she has 5 * 2 = 10.\n#### 18", "18" },
        { "#### 18\nBut 99 others", "18" },                       /* the mark counts, not what follows */
        { "####1,234.50 dollars", "1234.50" },
        { "#### $-3,500", "-3500" },
        { "#### -$7", "-7" },
        { "#### none, the answer is 12.", "12" },                 /* a mark without a number is none */
        { "#### x\n#### 4", "4" },
        { "The answer is 42.", "42" },
        { "He pays $1,000,000.", "1000000" },
        { "3 apples, 4 pears; 7", "7" },
        { "from 1, 2 and 3, then", "3" },
        { "0.5", "0.5" },
        { "1.2.3", "3" },
        { "it is -12", "-12" },
        { "10-4", "-4" },                                         /* the harnesses' rule, too: a sign belongs to its number */
        { "18\nQuestion: and 7?\n#### 5", "18" },                 /* the next question is not the answer */
    };
    char number[64];
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        if (!eval_extract_number(rows[i].text, number, sizeof(number)) || strcmp(number, rows[i].number) != 0) {
            fail_msg("'%s' gives '%s' instead of '%s'", rows[i].text, number, rows[i].number);
        }
    }
    assert_false(eval_extract_number("no number here, - $ , .", number, sizeof(number)));
    assert_false(eval_extract_number("", number, sizeof(number)));
    assert_true(eval_same_number("18", "18.0") && eval_same_number("1,000", "1000") && !eval_same_number("18", "-18") && !eval_same_number("18", "18.001"));
}

/* ---- conclusions ------------------------------------------------------------------------------------------------------------------------- */

enum { N_TOKENS = 40 };

static void make_text(eval_text *text)
{
    *text = (eval_text){ .name = calloc(8, 1), .n_tokens = N_TOKENS, .n_done = N_TOKENS, .chunk_tokens = 21 };
    text->quality = calloc(2, sizeof(*text->quality));
    text->tokens = calloc(2 * N_TOKENS, sizeof(*text->tokens));
    text->positions = calloc(N_TOKENS, sizeof(*text->positions));
    for (uint32_t i = 0; i < N_TOKENS; i++) {
        text->positions[i] = i % 20 + 1;
        text->tokens[i] = (eval_token){ .nll = 1 + i % 3, .top = (int32_t)i };
        text->tokens[N_TOKENS + i] = (eval_token){ .nll = 1 + i % 3 + (i == 7 ? 0.5 : 0.0), .kl = i == 7 ? 0.4 : 0.001 * (1 + i % 2), .reverse_kl = 0.002, .top = (int32_t)(i == 7 ? 99 : i) };
    }
}

/* The sums are short enough to be done by hand. */
static void test_text(void **unused)
{
    (void)unused;
    eval_text text;
    make_text(&text);
    assert_int_equal(eval_text_conclude(&text, 2, 1, NULL), OCT_OK);
    const eval_quality *const base = &text.quality[0], *const q = &text.quality[1];
    const double sum = 14 * 1 + 13 * 2 + 13 * 3;
    assert_near(base->ppl, exp(sum / N_TOKENS), 1e-12);
    assert_near(q->ppl, exp((sum + 0.5) / N_TOKENS), 1e-12);
    assert_near(q->ppl_ratio, exp(0.5 / N_TOKENS), 1e-12);
    assert_true(base->kl.mean == 0 && base->kl.max == 0 && base->same_top == 1 && base->n_worst == 0);
    assert_near(q->kl.mean, (20 * 0.001 + 19 * 0.002 + 0.4) / N_TOKENS, 1e-12);
    assert_near(q->kl.max, 0.4, 1e-12);
    assert_near(q->reverse_kl.mean, 0.002, 1e-12);
    assert_near(q->same_top, 39.0 / 40, 1e-12);
    assert_near(q->moved_max, exp(-2.0) - exp(-2.5), 1e-12);
    assert_near(q->moved_signed, -(exp(-2.0) - exp(-2.5)) / N_TOKENS, 1e-12);
    assert_int_equal(q->n_worst, EVAL_N_WORST);
    assert_true(q->worst[0].index == 7 && q->worst[0].position == 8 && fabs(q->worst[0].base_p - exp(-2.0)) < 1e-12);
    assert_true(q->worst[1].kl == 0.002 && q->worst[1].index == 1 && q->worst[19].kl == 0.002);   /* equals in their order; nineteen of them are left */
    assert_int_equal(q->n_positions, 1);
    assert_true(q->positions[0].first == 0 && q->positions[0].last == 31 && q->positions[0].n_tokens == N_TOKENS);
    const double n_squares = 14 * pow(1 - sum / 40, 2) + 13 * pow(2 - sum / 40, 2) + 13 * pow(3 - sum / 40, 2);
    assert_near(base->ppl_stderr, base->ppl * sqrt(n_squares / 39 / 40), 1e-12);
    /* Four blocks: of 16 and 4 tokens in each sequence. */
    assert_false(isnan(q->positions[0].kl_stderr));
    free(text.name);
    free(text.quality);
    free(text.tokens);
    free(text.positions);
}

static eval_task make_task(void)
{
    enum { N = 10 };
    eval_task task = { .name = "needle", .n_items = N, .n_done = { N, N } };
    task.items = calloc(N, sizeof(*task.items));
    task.answers = calloc(2 * N, sizeof(*task.answers));
    task.verdicts = calloc(2, sizeof(*task.verdicts));
    for (uint32_t i = 0; i < N; i++) {
        task.items[i] = (eval_item){ .length_tokens = i < 5 ? 128 : 256, .depth = 0.5 };
        task.answers[i] = (eval_answer){ .correct = 1, .choice = 0, .score = -1 };
        task.answers[N + i] = (eval_answer){ .correct = i >= 8, .choice = i >= 8 ? 0 : 1, .score = i == 9 ? NAN : -1.5 };
    }
    return task;
}

static void test_task(void **unused)
{
    (void)unused;
    eval_result result = { .n_formats = 2, .n_passes = 1 };
    eval_pass *const pass = &result.passes[0];
    pass->n_tasks = 1;
    pass->tasks[0] = make_task();
    assert_int_equal(eval_pass_conclude(pass, 2, 1, NULL), OCT_OK);
    const eval_verdict *const v = &pass->tasks[0].verdicts[1];
    assert_true(v->n_correct == 2 && v->n_lost == 8 && v->n_won == 0 && v->n_same == 2);
    assert_near(v->difference, -0.8, 1e-12);
    assert_near(v->p_value, 0.0078125, 1e-10);
    assert_true(v->p_holm == v->p_value && v->distinguishable);
    assert_near(v->score_change, -0.5, 1e-12);
    assert_int_equal(v->n_unscored, 1);
    assert_int_equal(pass->tasks[0].verdicts[0].n_unscored, 0);
    assert_true(isnan(pass->tasks[0].verdicts[0].p_value) && pass->tasks[0].verdicts[0].accuracy == 1);
    assert_int_equal(pass->tasks[0].n_cells, 2);
    assert_true(pass->tasks[0].cells[1].n_items == 5 && pass->tasks[0].cells[1].n_correct[1] == 2 && pass->tasks[0].cells[0].n_correct[1] == 0);
    /* One that a format has not finished is not judged. */
    pass->tasks[0].n_done[1] = 9;
    memset(pass->tasks[0].verdicts, 0, 2 * sizeof(*pass->tasks[0].verdicts));
    assert_int_equal(eval_pass_conclude(pass, 2, 1, NULL), OCT_OK);
    assert_true(pass->tasks[0].verdicts[1].n_lost == 0);
    eval_result_free(&result);
}

/* ---- JSON and partial results ----------------------------------------------------------------------------------------------------------- */

static void make_result(eval_result *result)
{
    *result = (eval_result){ .n_formats = 2, .n_passes = 1, .provenance = { .seed = 7, .seconds = 0.1 } };
    (void)snprintf(result->formats[1].name, sizeof(result->formats[1].name), "i8 \"quoted\"");
    result->passes[0].n_texts = 1;
    make_text(&result->passes[0].texts[0]);
    result->passes[0].n_tasks = 1;
    result->passes[0].tasks[0] = make_task();
    assert_int_equal(eval_pass_conclude(&result->passes[0], 2, 1, NULL), OCT_OK);
}

static void test_json_there_and_back(void **unused)
{
    (void)unused;
    eval_result result, read;
    app_text first = { 0 }, second = { 0 };
    make_result(&result);
    eval_result_json(&result, true, &first);
    assert_false(first.failed);
    assert_int_equal(eval_result_read(first.bytes, first.length, &read, NULL), OCT_OK);
    eval_result_json(&read, true, &second);
    assert_string_equal(first.bytes, second.bytes);
    assert_true(read.passes[0].texts[0].quality[1].kl.mean == result.passes[0].texts[0].quality[1].kl.mean);
    assert_true(read.passes[0].texts[0].tokens[N_TOKENS + 7].kl == 0.4 && isnan(read.passes[0].tasks[0].answers[19].score));
    eval_result_free(&read);
    /* Every field that is left out, and every one of another type, is named. */
    static const char *const keys[] = { "\"provenance\"", "\"n_tokens\"", "\"correct\"", "\"ppl_ratio_interval\"", "\"positions\": [{" };
    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++) {
        char *const broken = malloc(first.length + 1);
        memcpy(broken, first.bytes, first.length + 1);
        char *const at = strstr(broken, keys[i]);
        assert_non_null(at);
        at[1] = '_';
        oct_error error = OCT_ERROR_INIT;
        assert_int_equal(eval_result_read(broken, first.length, &read, &error), OCT_BAD_DATA);
        assert_non_null(strstr(error.text, "is missing"));
        eval_result_free(&read);
        free(broken);
    }
    eval_result_free(&result);
    app_text_free(&first);
    app_text_free(&second);
}

static void write_bytes(const char *path, const char *bytes, size_t n)
{
    FILE *const file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, n, file), n);
    assert_int_equal(fclose(file), 0);
}

static void assert_refused(const char *path, const char *asked, const char *reason)
{
    eval_result read;
    bool found;
    oct_error error = OCT_ERROR_INIT;
    assert_int_equal(eval_partial_read(path, asked, &read, &found, &error), OCT_BAD_DATA);
    if (strstr(error.text, reason) == NULL || strstr(error.text, path) == NULL) {
        fail_msg("'%s' says neither %s nor '%s'", error.text, path, reason);
    }
    assert_true(read.n_formats == 0);
}

static void test_partial(void **unused)
{
    (void)unused;
    static const char asked[] = "tokens: 512\nmodel: a\n";
    char path[] = "eval-partial-XXXXXX";
    eval_result result, read;
    bool found;
    const int file = mkstemp(path);
    assert_true(file >= 0);
    (void)close(file);
    make_result(&result);
    assert_int_equal(eval_partial_write(path, asked, &result, NULL), OCT_OK);
    assert_int_equal(eval_partial_read(path, asked, &read, &found, NULL), OCT_OK);
    assert_true(found && read.passes[0].texts[0].n_done == N_TOKENS);
    eval_result_free(&read);
    assert_refused(path, "tokens: 1024\nmodel: a\n", "'tokens: 512', this one 'tokens: 1024'");
    assert_refused(path, "tokens: 512\nmodel: a\nmore: 1\n", "another evaluation");
    assert_refused(path, "tokens: 512\n", "another evaluation");

    FILE *const whole = fopen(path, "rb");
    assert_non_null(whole);
    char *const bytes = malloc(1 << 20);
    const size_t n = fread(bytes, 1, 1 << 20, whole);
    (void)fclose(whole);
    assert_true(n > 100 && n < 1 << 20);
    write_bytes(path, bytes, n / 2);
    assert_refused(path, asked, "damaged");
    for (size_t at = 22; at < n; at += at < 160 ? 1 : 97) {   /* the checksum, what was asked, and places behind it */
        bytes[at] ^= 1;
        write_bytes(path, bytes, n);
        assert_refused(path, asked, "damaged");
        bytes[at] ^= 1;
    }
    write_bytes(path, "{}", 2);
    assert_refused(path, asked, "no partial result");
    write_bytes(path, "", 0);
    assert_refused(path, asked, "no partial result");
    assert_int_equal(unlink(path), 0);
    assert_int_equal(eval_partial_read(path, asked, &read, &found, NULL), OCT_OK);
    assert_false(found);
    free(bytes);
    eval_result_free(&result);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_mcnemar), cmocka_unit_test(test_intervals_of_shares), cmocka_unit_test(test_holm), cmocka_unit_test(test_samples),
        cmocka_unit_test(test_extraction), cmocka_unit_test(test_text), cmocka_unit_test(test_task), cmocka_unit_test(test_json_there_and_back),
        cmocka_unit_test(test_partial),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
