/* Choosing tokens: greedy, cuts, seeds, and logits that are no numbers. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "engine/sampler.h"
#include "engine/tiny_model.h"

static int32_t draw(octe_sampler *s, const float *logits)
{
    int32_t token = -1;
    oct_error error = OCT_ERROR_INIT;
    if (octe_sampler_sample(s, logits, TINY_VOCAB, &token, &error) != OCT_OK) {
        fail_msg("%s", error.text);
    }
    return token;
}

static octe_sampler *make(const octe_vocab *v, octe_sampler_options o)
{
    octe_sampler *s;
    oct_error error = OCT_ERROR_INIT;
    if (octe_sampler_create(v, &o, &s, &error) != OCT_OK) {
        fail_msg("%s", error.text);
    }
    return s;
}

static void samplers(void **state)
{
    (void)state;
    tiny_model m;
    octe_vocab *v;
    assert_true(tiny_model_at(0, &m));
    tiny_model_write(&m, tiny_path("sampler.gguf"));
    assert_int_equal(octe_vocab_open(tiny_path("sampler.gguf"), &v, NULL), OCT_OK);
    float logits[TINY_VOCAB];
    for (int i = 0; i < TINY_VOCAB; i++) {
        logits[i] = -10.0f;
    }
    logits[100] = 3.0f;
    logits[101] = 2.9f;
    logits[102] = 2.0f;
    logits[103] = NAN;
    logits[104] = INFINITY;
    logits[TINY_EOS] = 5.0f;
    octe_sampler *s = make(v, (octe_sampler_options){.temp = 0.0f});
    assert_int_equal(draw(s, logits), TINY_EOS);
    octe_sampler_destroy(s);
    s = make(v, (octe_sampler_options){.temp = 0.0f, .ignore_eog = true});
    assert_int_equal(draw(s, logits), 100);
    octe_sampler_destroy(s);
    /* top-k 1 is greedy at any temperature; top-p and min-p cut to the first two. */
    s = make(v, (octe_sampler_options){.temp = 5.0f, .top_k = 1, .top_p = 1.0f, .ignore_eog = true});
    for (int i = 0; i < 50; i++) {
        assert_int_equal(draw(s, logits), 100);
    }
    octe_sampler_destroy(s);
    const octe_sampler_options cuts[] = {{.temp = 1.0f, .top_p = 0.6f, .seed = 3, .ignore_eog = true}, {.temp = 1.0f, .top_p = 1.0f, .min_p = 0.6f, .seed = 3, .ignore_eog = true}};
    for (int c = 0; c < 2; c++) {
        int seen[2] = {0, 0};
        s = make(v, cuts[c]);
        for (int i = 0; i < 400; i++) {
            const int32_t t = draw(s, logits);
            assert_true(t == 100 || t == 101);
            seen[t - 100]++;
        }
        /* e^0.1 : 1, within five standard deviations of 400 draws */
        assert_true(seen[0] > 160 && seen[0] < 260);
        octe_sampler_destroy(s);
    }
    /* One seed, one sequence; another seed, another. */
    int32_t first[3][64];
    for (int k = 0; k < 3; k++) {
        s = make(v, (octe_sampler_options){.temp = 50.0f, .top_p = 1.0f, .seed = k < 2 ? 7u : 8u});
        for (int i = 0; i < 64; i++) {
            first[k][i] = draw(s, logits);
            assert_true(first[k][i] != 103 && first[k][i] != 104);
        }
        octe_sampler_destroy(s);
    }
    assert_memory_equal(first[0], first[1], sizeof(first[0]));
    assert_true(memcmp(first[0], first[2], sizeof(first[0])) != 0);
    /* A choice costs each time, or once; only the last penalty_tokens count. */
    static const struct {
        float frequency, presence;
        uint32_t last;
        int32_t drawn[5];
    } penalties[] = {{0.5f, 0.0f, 9, {100, 101, 100, 101, 100}}, {0.0f, 0.5f, 9, {100, 101, 100, 100, 100}}, {0.0f, 0.5f, 1, {100, 101, 100, 101, 100}}, {0.5f, 0.5f, 0, {100, 100, 100, 100, 100}}};
    logits[102] = -10.0f;
    for (int p = 0; p < 4; p++) {
        s = make(v, (octe_sampler_options){.ignore_eog = true, .frequency_penalty = penalties[p].frequency, .presence_penalty = penalties[p].presence, .penalty_tokens = penalties[p].last});
        for (int i = 0; i < 5; i++) {
            assert_int_equal(draw(s, logits), penalties[p].drawn[i]);
        }
        octe_sampler_destroy(s);
    }
    const octe_logit_bias bias[2] = {{100, -50.0f}, {102, 14.0f}}, no_token = {TINY_VOCAB, 1.0f};
    s = make(v, (octe_sampler_options){.ignore_eog = true, .bias = bias, .n_bias = 2});
    assert_int_equal(draw(s, logits), 102);
    octe_sampler_destroy(s);
    /* Only what the grammar allows, and nothing where it allows nothing: said, not crashed. */
    oct_error error = OCT_ERROR_INIT;
    int32_t token;
    s = make(v, (octe_sampler_options){.ignore_eog = true, .grammar = "root ::= \"ab\""});
    assert_int_equal(draw(s, logits), TINY_BYTES + 'a');
    assert_int_equal(draw(s, logits), TINY_BYTES + 'b');
    assert_int_equal(octe_sampler_sample(s, logits, TINY_VOCAB, &token, &error), OCT_BAD_DATA);
    assert_int_equal(octe_sampler_sample(s, logits, TINY_VOCAB, &token, &error), OCT_BAD_DATA);
    octe_sampler_destroy(s);
    s = make(v, (octe_sampler_options){.grammar = octe_grammar_json_object});
    assert_int_equal(draw(s, logits), TINY_BYTES + '{');
    octe_sampler_destroy(s);
    for (int i = 0; i < TINY_VOCAB; i++) {
        logits[i] = i % 2 == 0 ? NAN : -INFINITY;
    }
    s = make(v, (octe_sampler_options){.temp = 1.0f, .top_p = 1.0f});
    assert_int_equal(octe_sampler_sample(s, logits, TINY_VOCAB, &token, &error), OCT_BAD_DATA);
    octe_sampler_destroy(s);
    octe_sampler_destroy(NULL);
    const octe_sampler_options wrong[] = {{.temp = NAN}, {.temp = INFINITY}, {.top_p = NAN}, {.top_p = -0.1f}, {.top_p = 1.1f}, {.min_p = 2.0f}, {.min_p = NAN},
                                          {.frequency_penalty = NAN}, {.presence_penalty = INFINITY}, {.bias = &no_token, .n_bias = 1}, {.grammar = "root ::= ("}};
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        assert_int_equal(octe_sampler_create(v, &wrong[i], &s, &error), OCT_INVALID_ARGUMENT);
        assert_null(s);
    }
    octe_vocab_close(v);
}

static int done(void **state)
{
    (void)state;
    tiny_folder_remove();
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(samplers)};
    return cmocka_run_group_tests(tests, NULL, done);
}
