/* What tokens add up to: stop texts wherever they begin and end, characters of several tokens, log-probabilities. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/serve/text.h"
#include "engine/tiny_model.h"
#include "serve/named_test.h"

static octe_vocab *vocab;

/* Adds the bytes as tokens and says after each how much may be given out: "1,1,2" ; a final '!' where a stop text was completed. */
static void expect(const char *bytes, const char *const stops[], uint32_t n_stop, const char *given, const char *text, uint32_t n_tokens)
{
    octe_answer_spec spec = {.n_stop = n_stop, .n_logprobs = -1};
    octe__answer_text t;
    char seen[128] = "";
    for (uint32_t i = 0; i < n_stop; i++) {
        spec.stop[i] = stops[i];
    }
    assert_true(octe__answer_text_init(&t, &spec));
    bool stopped = false;
    octe_answer_view view;
    uint32_t n_seen = 0;
    for (const char *b = bytes; *b != '\0' && !stopped; b++) {
        assert_int_equal(octe__answer_text_add(&t, vocab, TINY_BYTES + (unsigned char)*b, NULL, 0, &stopped, NULL), OCT_OK);
        octe__answer_text_look(&t, &view);
        assert_true(view.n_tokens >= n_seen);
        n_seen = view.n_tokens;
        const size_t n = strlen(seen);
        seen[n] = (char)('0' + view.n_text);
        seen[n + 1] = '\0';
    }
    strcat(seen, stopped ? "!" : "");
    octe__answer_text_finish(&t);
    octe__answer_text_look(&t, &view);
    assert_string_equal(seen, given);
    assert_string_equal(view.text, text);
    assert_int_equal(view.n_text, strlen(text));
    assert_int_equal(view.n_tokens, n_tokens);
    assert_true(n_tokens >= n_seen);   /* what a stream has told is never taken back */
    for (uint32_t i = 0; i < view.n_tokens; i++) {
        assert_true(view.tokens[i].begin <= view.tokens[i].end && view.tokens[i].end <= view.n_text);
    }
    octe__answer_text_free(&t);
}

static void stops(void **state)
{
    (void)state;
    static const char *const bc[] = {"bc"}, *const bcd[] = {"bcd"}, *const several[] = {"xyz", "bcde", "cd"}, *const aab[] = {"aab"}, *const accent[] = {"\xC3\xA9"}, *const empty[] = {""};
    expect("abcd", NULL, 0, "1234", "abcd", 4);
    expect("abcd", bc, 1, "111!", "a", 1);
    expect("abcx", bcd, 1, "1114", "abcx", 4);            /* held back, then given out */
    expect("abc", bcd, 1, "111", "abc", 3);               /* the end gives out what was held */
    expect("abcde", several, 3, "1112!", "ab", 2);        /* the first that is complete */
    expect("aaab", aab, 1, "0011!", "a", 1);          /* begins anew inside itself */
    expect("bc", bc, 1, "00!", "", 0);
    expect("a\xC3\xA9z", NULL, 0, "1134", "a\xC3\xA9z", 4);
    expect("a\xC3\xA9z", accent, 1, "111!", "a", 1);
    expect("a\xC3", NULL, 0, "11", "a\xEF\xBF\xBD", 2);   /* the rest never came */
    expect("ab", empty, 1, "12", "ab", 2);
}

/* L6: what is given out only grows, whatever bytes the tokens cut a text into; an answer knows nothing of its prompt's last bytes. */
static void fault_L6(void **state)
{
    (void)state;
    expect("A \xE4\xB8\x96\xE4\xB8\x96" "ab", NULL, 0, "122255589:", "A \xE4\xB8\x96\xE4\xB8\x96" "ab", 10);
    expect("A \xE4\xB8\x96\xE4" "a\xE4" "b", NULL, 0, "12225599=", "A \xE4\xB8\x96\xEF\xBF\xBD" "a\xEF\xBF\xBD" "b", 9);
    expect("\x96" "b", NULL, 0, "34", "\xEF\xBF\xBD" "b", 2);
}

/* L7: what may become a stop text is held back, nothing else, and the cut is exact. */
static void fault_L7(void **state)
{
    (void)state;
    static const char *const replaced[] = {"\xEF\xBF\xBD"}, *const replaced_b[] = {"\xEF\xBF\xBD" "b"};
    static const char *const letters[] = {"DEFGHIJ"}, *const nested[] = {"DEF", "DE"}, *const character[] = {"a\xE4\xB8\x96"}, *const words[] = {"hea"};
    expect("DEFGHIJ", letters, 1, "0000000!", "", 0);
    expect("DEFGX", letters, 1, "00005", "DEFGX", 5);
    expect("aDEF", nested, 2, "111!", "a", 1);
    expect("xa\xE4\xB8\x96y", character, 1, "11111!", "x", 1);
    expect("a\xE4" "b", replaced, 1, "111!", "a", 1);       /* what stands for bytes that are no character may be a stop text, and its tokens go with it */
    expect("a\xE4\xB8" "b", replaced_b, 1, "1111!", "a", 1);
    expect("xa\xE4\xB8y", character, 1, "11116", "xa\xEF\xBF\xBDy", 5);
    expect("aDEFGHI", letters, 1, "1111111", "aDEFGHI", 7);   /* the limit of tokens comes first: the tail is text */
    /* Pieces of several letters, in which a stop text begins and ends. */
    octe_answer_spec spec = {.n_stop = 1, .stop = {words[0]}, .n_logprobs = -1};
    octe__answer_text t;
    octe_answer_view view;
    bool stopped = false;
    static const char *const pieces[] = {"the", "and"};
    assert_true(octe__answer_text_init(&t, &spec));
    for (int i = 0; i < 2; i++) {
        int32_t *tokens;
        uint32_t n;
        assert_int_equal(octe_vocab_tokenize(vocab, pieces[i], SIZE_MAX, false, false, &tokens, &n, NULL), OCT_OK);
        assert_false(stopped);
        assert_int_equal(octe__answer_text_add(&t, vocab, tokens[n - 1], NULL, 0, &stopped, NULL), OCT_OK);
        octe__answer_text_look(&t, &view);
        free(tokens);
    }
    assert_true(stopped);
    assert_true(view.n_text > 0 && view.text[view.n_text - 1] == 't');
    octe__answer_text_free(&t);
}

/* A byte of zero does not vanish, and comes out as what may be sent back. */
static void zero(void **state)
{
    (void)state;
    octe_answer_spec spec = {.n_stop = 1, .stop = {"bc"}, .n_logprobs = -1};
    octe__answer_text t;
    octe_answer_view view;
    bool stopped = false;
    static const char bytes[] = {'a', '\0', 'b', '\0', '\0', 'b', 'c'};
    assert_true(octe__answer_text_init(&t, &spec));
    for (size_t i = 0; i < sizeof(bytes); i++) {
        assert_false(stopped);
        assert_int_equal(octe__answer_text_add(&t, vocab, TINY_BYTES + bytes[i], NULL, 0, &stopped, NULL), OCT_OK);
    }
    assert_true(stopped);
    octe__answer_text_finish(&t);
    octe__answer_text_look(&t, &view);
    assert_int_equal(view.n_text, 1 + 3 + 1 + 3 + 3);
    assert_string_equal(view.text, "a\xEF\xBF\xBD" "b\xEF\xBF\xBD\xEF\xBF\xBD");
    octe__answer_text_free(&t);
}

static void logprobs(void **state)
{
    (void)state;
    float logits[TINY_VOCAB];
    for (int i = 0; i < TINY_VOCAB; i++) {
        logits[i] = (float)((i * 37) % 101) * 0.1f - 4.0f;
    }
    logits[5] = NAN;
    logits[6] = -INFINITY;
    logits[TINY_BYTES + 'a'] = 9.0f;
    logits[TINY_BYTES + 'b'] = 8.0f;
    double sum = 0.0;
    for (int i = 0; i < TINY_VOCAB; i++) {
        sum += isfinite(logits[i]) ? exp(logits[i]) : 0.0;
    }
    const octe_answer_spec spec = {.n_logprobs = 3};
    octe__answer_text t;
    bool stopped;
    octe_answer_view view;
    assert_true(octe__answer_text_init(&t, &spec));
    assert_int_equal(octe__answer_text_add(&t, vocab, TINY_BYTES + 'b', logits, TINY_VOCAB, &stopped, NULL), OCT_OK);
    octe__answer_text_look(&t, &view);
    assert_true(fabs(view.tokens[0].logprob - (8.0 - log(sum))) < 1e-5);
    assert_int_equal(view.tokens[0].top[0].token, TINY_BYTES + 'a');
    assert_int_equal(view.tokens[0].top[1].token, TINY_BYTES + 'b');
    assert_true(fabs(view.tokens[0].top[0].logprob - (9.0 - log(sum))) < 1e-5);
    assert_true(view.tokens[0].top[2].logprob < view.tokens[0].top[1].logprob);
    octe__answer_text_free(&t);

    int32_t token;
    assert_int_equal(octe__likeliest(logits, TINY_VOCAB, NULL, &token, NULL), OCT_OK);
    assert_int_equal(token, TINY_BYTES + 'a');
    for (int i = 0; i < TINY_VOCAB; i++) {
        logits[i] = i % 2 == 0 ? NAN : INFINITY;
    }
    assert_int_equal(octe__likeliest(logits, TINY_VOCAB, NULL, &token, NULL), OCT_BAD_DATA);
}

/* The search in lanes against one by one: few values, so that many are equal, and some that are no numbers; of any length. */
static void likeliest(void **state)
{
    (void)state;
    float logits[TINY_VOCAB];
    uint32_t dice = 12345, n_ends = 0;
    for (int round = 0; round < 3000; round++) {
        const uint32_t n = 1 + (uint32_t)round % TINY_VOCAB, n_values = round % 3 == 0 ? 3 : 1000;
        for (uint32_t i = 0; i < n; i++) {
            dice = dice * 1664525u + 1013904223u;
            const uint32_t kind = dice >> 8 & 31;
            logits[i] = kind == 0 ? NAN : kind == 1 ? INFINITY : kind == 2 ? -INFINITY : (float)(dice >> 13) / 524288.0f;
            logits[i] = isfinite(logits[i]) ? floorf(logits[i] * (float)n_values) : logits[i];
            logits[i] = round % 2 == 0 && octe_vocab_is_eog(vocab, (int32_t)i) ? 2000.0f : logits[i];
        }
        for (int never = 0; never < 2; never++) {
            int32_t best = -1, token;
            for (uint32_t i = 0; i < n; i++) {
                if (isfinite(logits[i]) && (best < 0 || logits[i] > logits[best]) && !(never && octe_vocab_is_eog(vocab, (int32_t)i))) {
                    best = (int32_t)i;
                }
            }
            assert_int_equal(octe__likeliest(logits, n, never ? vocab : NULL, &token, NULL), best >= 0 ? OCT_OK : OCT_BAD_DATA);
            assert_int_equal(token, best);
            n_ends += best >= 0 && octe_vocab_is_eog(vocab, best);
        }
    }
    assert_true(n_ends > 100);
}

static int open_vocab(void **state)
{
    (void)state;
    tiny_model m;
    assert_true(tiny_model_at(0, &m));
    tiny_model_write(&m, tiny_path("text.gguf"));
    return octe_vocab_open(tiny_path("text.gguf"), &vocab, NULL) == OCT_OK ? 0 : -1;
}

static int close_vocab(void **state)
{
    (void)state;
    octe_vocab_close(vocab);
    tiny_folder_remove();
    return 0;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(stops), cmocka_unit_test(fault_L6), cmocka_unit_test(fault_L7), cmocka_unit_test(zero), cmocka_unit_test(logprobs), cmocka_unit_test(likeliest)};
    if (argc > 1 && !named_test(tests, sizeof(tests) / sizeof(tests[0]), argv[1])) {
        return 1;
    }
    return cmocka_run_group_tests(tests, open_vocab, close_vocab);
}
