/* Text to tokens and back: with a small SentencePiece vocabulary made here, and hostile ones. Fault K4 and its kind. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <gguf.h>

#include "engine/tiny_model.h"
#include "engine/vocab.h"

typedef void edit_fn(struct gguf_context *gguf, const void *user);

static octe_vocab *open_vocab(edit_fn *edit, const void *user)
{
    tiny_model m;
    octe_vocab *v;
    oct_error error = OCT_ERROR_INIT;
    assert_true(tiny_model_at(0, &m));
    m.edit = edit;
    m.user = user;
    tiny_model_write(&m, tiny_path("vocab.gguf"));
    if (octe_vocab_open(tiny_path("vocab.gguf"), &v, &error) != OCT_OK) {
        fail_msg("%s", error.text);
    }
    return v;
}

static void expect(const octe_vocab *v, const char *text, bool add_special, bool parse_special, const int32_t *want, uint32_t n_want)
{
    int32_t *tokens;
    uint32_t n;
    oct_error error = OCT_ERROR_INIT;
    assert_int_equal(octe_vocab_tokenize(v, text, SIZE_MAX, add_special, parse_special, &tokens, &n, &error), OCT_OK);
    bool same = n == n_want;
    for (uint32_t i = 0; i < n && same; i++) {
        same = tokens[i] == want[i];
    }
    if (!same) {
        for (uint32_t i = 0; i < n; i++) {
            print_error("[%d]", tokens[i]);
        }
        fail_msg(" are the tokens of '%s'; expected %u, the first %d", text, n_want, n_want > 0 ? want[0] : -1);
    }
    free(tokens);
}

#define EXPECT(v, text, add, parse, ...) expect(v, text, add, parse, (const int32_t[]){__VA_ARGS__}, sizeof((const int32_t[]){__VA_ARGS__}) / sizeof(int32_t))

/* Pieces of the small vocabulary, by their place in its list. */
enum { SPACE = TINY_WORDS, A = TINY_WORDS + 1, THE = TINY_WORDS + 29, AND = TINY_WORDS + 40, WORLD = TINY_WORDS + 39 };

static void set_flag(struct gguf_context *gguf, const void *user)
{
    const int *flag = user;
    if (flag[0] >= 0) {
        gguf_set_val_bool(gguf, "tokenizer.ggml.add_bos_token", flag[0] != 0);
    }
    if (flag[1] >= 0) {
        gguf_set_val_bool(gguf, "tokenizer.ggml.add_eos_token", flag[1] != 0);
    }
}

/* K4: add_bos true, false, missing x text with and without a literal BOS x special texts parsed or not. */
static void one_bos_at_most(void **state)
{
    (void)state;
    for (int flag = -1; flag < 2; flag++) {
        const int flags[] = {flag, -1};
        octe_vocab *v = open_vocab(set_flag, flags);
        assert_int_equal(octe_vocab_bos(v), TINY_BOS);
        assert_int_equal(octe_vocab_eos(v), TINY_EOS);
        assert_int_equal(octe_vocab_size(v), TINY_VOCAB);
        /* SentencePiece vocabularies add BOS unless the file says no. */
        if (flag != 0) {
            assert_true(octe_vocab_adds_bos(v));
            EXPECT(v, "the", true, true, TINY_BOS, THE);
            EXPECT(v, "<s>the", true, true, TINY_BOS, THE);
            EXPECT(v, "", true, true, TINY_BOS);
            EXPECT(v, "<s>", true, true, TINY_BOS);
        } else {
            assert_false(octe_vocab_adds_bos(v));
            EXPECT(v, "the", true, true, THE);
            EXPECT(v, "<s>the", true, true, TINY_BOS, THE);
            expect(v, "", true, true, NULL, 0);
        }
        EXPECT(v, "the", false, true, THE);
        EXPECT(v, "<s>the", false, true, TINY_BOS, THE);
        expect(v, "", false, true, NULL, 0);
        /* Not parsed, "<s>" is text: no BOS comes out of it. */
        int32_t *tokens;
        uint32_t n;
        assert_int_equal(octe_vocab_tokenize(v, "<s>a", SIZE_MAX, false, false, &tokens, &n, NULL), OCT_OK);
        assert_true(n > 3);
        for (uint32_t i = 0; i < n; i++) {
            assert_int_not_equal(tokens[i], TINY_BOS);
        }
        free(tokens);
        octe_vocab_close(v);
    }
}

static void one_eos_at_most(void **state)
{
    (void)state;
    const int flags[] = {1, 1};
    octe_vocab *v = open_vocab(set_flag, flags);
    EXPECT(v, "the", true, true, TINY_BOS, THE, TINY_EOS);
    EXPECT(v, "the</s>", true, true, TINY_BOS, THE, TINY_EOS);
    EXPECT(v, "the", false, true, THE);
    assert_true(octe_vocab_is_eog(v, TINY_EOS));
    assert_false(octe_vocab_is_eog(v, TINY_BOS));
    assert_false(octe_vocab_is_eog(v, -1));
    assert_false(octe_vocab_is_eog(v, TINY_VOCAB));
    octe_vocab_close(v);
}

static void no_bos_token(struct gguf_context *gguf, const void *user)
{
    (void)user;
    gguf_set_val_u32(gguf, "tokenizer.ggml.bos_token_id", 100000);   /* outside: libllama keeps its default, token 1 */
    gguf_set_val_bool(gguf, "tokenizer.ggml.add_bos_token", true);
    gguf_set_val_bool(gguf, "tokenizer.ggml.add_eos_token", true);
}

static void ids_outside_are_no_abort(void **state)
{
    (void)state;
    octe_vocab *v = open_vocab(no_bos_token, NULL);
    int32_t *tokens;
    uint32_t n;
    assert_int_equal(octe_vocab_tokenize(v, "the", SIZE_MAX, true, true, &tokens, &n, NULL), OCT_OK);
    assert_int_equal(n, 3);
    free(tokens);
    octe_vocab_close(v);
}

static void long_texts(void **state)
{
    (void)state;
    octe_vocab *v = open_vocab(NULL, NULL);
    enum { N = 20000 };
    char *text = malloc(N);
    int32_t *tokens;
    uint32_t n;
    /* Each is a byte of its own: one token a byte, the worst there is, and a space before. */
    memset(text, '!', N);
    assert_int_equal(octe_vocab_tokenize(v, text, N, true, true, &tokens, &n, NULL), OCT_OK);
    assert_int_equal(n, N + 2);
    assert_int_equal(tokens[0], TINY_BOS);
    assert_int_equal(tokens[N + 1], TINY_BYTES + '!');
    free(tokens);
    /* Bytes that are no UTF-8, and a zero. */
    for (int i = 0; i < N; i++) {
        text[i] = (char)(i * 37);
    }
    assert_int_equal(octe_vocab_tokenize(v, text, 4096, true, true, &tokens, &n, NULL), OCT_OK);
    free(tokens);
    free(text);
    octe_vocab_close(v);
}

/* ---- tokens to text ------------------------------------------------------------------------------------------- */

static void stream_holds_back(void **state)
{
    (void)state;
    octe_vocab *v = open_vocab(NULL, NULL);
    octe_stream stream = {{0}, 0};
    /* "A 世" whole, 世 in bytes, "ab": L6's case. */
    static const struct {
        int32_t token;
        const char *text;
    } steps[] = {
        {TINY_BYTES + 'A', "A"}, {SPACE, " "}, {WORLD, "\xE4\xB8\x96"}, {TINY_BYTES + 0xE4, ""}, {TINY_BYTES + 0xB8, ""}, {TINY_BYTES + 0x96, "\xE4\xB8\x96"},
        {A, "a"}, {TINY_BYTES + 0xE4, ""}, {A, "\xEF\xBF\xBD" "a"}, {AND, "and"}, {TINY_BYTES + 0xFF, "\xEF\xBF\xBD"}, {TINY_BOS, ""}, {-1, ""}, {TINY_VOCAB, ""},
        {TINY_BYTES + 0xF0, ""}, {TINY_BYTES + 0x9F, ""},
    };
    for (size_t i = 0; i < sizeof(steps) / sizeof(steps[0]); i++) {
        char *text;
        assert_int_equal(octe_stream_add(&stream, v, steps[i].token, false, &text, NULL, NULL), OCT_OK);
        if (strcmp(text, steps[i].text) != 0) {
            fail_msg("step %zu gave '%s'", i, text);
        }
        free(text);
    }
    char last[4];
    octe_stream_finish(&stream, last);
    assert_string_equal(last, "\xEF\xBF\xBD");
    octe_stream_finish(&stream, last);
    assert_string_equal(last, "");
    char *text;
    assert_int_equal(octe_stream_add(&stream, v, TINY_BOS, true, &text, NULL, NULL), OCT_OK);
    assert_string_equal(text, "<s>");
    free(text);
    octe_vocab_close(v);
}

/* Is this UTF-8? Decoded to code points and back, independent of the stream's own rules. */
static bool is_utf8(const unsigned char *s, size_t n)
{
    for (size_t i = 0; i < n;) {
        const unsigned char c = s[i];
        const size_t m = c < 0x80 ? 1 : (c >> 5) == 6 ? 2 : (c >> 4) == 14 ? 3 : (c >> 3) == 30 ? 4 : 0;
        if (m == 0 || m > n - i) {
            return false;
        }
        uint32_t point = m == 1 ? c : c & (0x7fu >> m);
        for (size_t k = 1; k < m; k++) {
            if ((s[i + k] & 0xc0) != 0x80) {
                return false;
            }
            point = point << 6 | (s[i + k] & 0x3f);
        }
        static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
        if (point < least[m] || point > 0x10ffff || (point >= 0xd800 && point < 0xe000)) {
            return false;
        }
        i += m;
    }
    return true;
}

static void stream_is_always_utf8(void **state)
{
    (void)state;
    uint32_t x = 12345;
    print_message("seed %u\n", x);
    for (int round = 0; round < 20000; round++) {
        octe_stream stream = {{0}, 0};
        char in[24], out[256], last[4];
        size_t n = 0, total = 0;
        const size_t length = 1 + round % sizeof(in);
        for (size_t i = 0; i < length; i++) {
            static const unsigned char often[] = {0x41, 0x80, 0x9f, 0xa0, 0xbf, 0xc0, 0xc2, 0xdf, 0xe0, 0xed, 0xef, 0xf0, 0xf4, 0xf5, 0xff};
            x = x * 1664525u + 1013904223u;
            in[i] = (char)((x >> 28) == 0 ? x >> 8 : often[(x >> 16) % sizeof(often)]);
        }
        /* In pieces of any size the same text comes out. */
        while (n < length) {
            x = x * 1664525u + 1013904223u;
            size_t piece = (x >> 20) % 4;
            piece = piece < length - n ? piece : length - n;
            total += octe_stream_bytes(&stream, in + n, piece, out + total);
            n += piece;
        }
        octe_stream whole = {{0}, 0};
        char at_once[256];
        assert_int_equal(octe_stream_bytes(&whole, in, length, at_once), total);
        assert_memory_equal(at_once, out, total);
        assert_int_equal(whole.n_held, stream.n_held);
        octe_stream_finish(&stream, last);
        memcpy(out + total, last, strlen(last));
        total += strlen(last);
        assert_true(is_utf8((const unsigned char *)out, total));
        assert_true(!is_utf8((const unsigned char *)in, length) || (total == length && memcmp(in, out, length) == 0));
    }
}

/* ---- chat ------------------------------------------------------------------------------------------------------------ */

static void set_template(struct gguf_context *gguf, const void *user) { gguf_set_val_str(gguf, "tokenizer.chat_template", user); }

static void chat(void **state)
{
    (void)state;
    static const char chatml[] = "{% for m in messages %}{{'<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>' + '\n'}}{% endfor %}";
    const octe_message messages[] = {{"system", "Be brief."}, {"user", "Hello"}};
    char *text;
    oct_error error = OCT_ERROR_INIT;
    octe_vocab *v = open_vocab(set_template, chatml);
    assert_true(octe_vocab_has_chat_template(v));
    assert_int_equal(octe_vocab_apply_chat(v, messages, 2, true, &text, &error), OCT_OK);
    assert_string_equal(text, "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n");
    free(text);
    assert_int_equal(octe_vocab_apply_chat(v, messages + 1, 1, false, &text, &error), OCT_OK);
    assert_string_equal(text, "<|im_start|>user\nHello<|im_end|>\n");
    free(text);
    octe_vocab_close(v);
    v = open_vocab(set_template, "{{ something else }}");
    assert_int_equal(octe_vocab_apply_chat(v, messages, 2, true, &text, &error), OCT_UNSUPPORTED);
    assert_null(text);
    octe_vocab_close(v);
    v = open_vocab(NULL, NULL);
    assert_false(octe_vocab_has_chat_template(v));
    assert_int_equal(octe_vocab_apply_chat(v, messages, 2, true, &text, &error), OCT_UNSUPPORTED);
    assert_non_null(strstr(error.text, "tokenizer.chat_template"));
    octe_vocab_close(v);
}

/* ---- hostile vocabularies ----------------------------------------------------------------------------------------------- */

typedef struct hostile {
    const char *key;
    int what;           /* which edit */
    oct_status status;
} hostile;

static void spoil(struct gguf_context *gguf, const void *user)
{
    const hostile *h = user;
    static char words[TINY_VOCAB][32];
    const char *texts[TINY_VOCAB];
    static const char *const few[] = {"<unk>", "<s>", "</s>"};
    int32_t types[TINY_VOCAB] = {0};
    float scores[2] = {0};
    switch (h->what) {
    case 0:
        gguf_remove_key(gguf, h->key);
        break;
    case 1:
        gguf_remove_key(gguf, h->key);
        gguf_set_val_u32(gguf, h->key, 7);
        break;
    case 2:   /* a text twice */
        for (int i = 0; i < TINY_VOCAB; i++) {
            snprintf(words[i], sizeof(words[i]), "%s", gguf_get_arr_str(gguf, gguf_find_key(gguf, h->key), (size_t)i));
            texts[i] = words[i];
        }
        texts[TINY_VOCAB - 1] = words[A];
        gguf_set_arr_str(gguf, h->key, texts, TINY_VOCAB);
        break;
    case 3:   /* shorter than the vocabulary */
        gguf_set_arr_data(gguf, h->key, GGUF_TYPE_FLOAT32, scores, 2);
        break;
    case 4:   /* every token a byte */
        for (int i = 0; i < TINY_VOCAB; i++) {
            types[i] = 6;
        }
        gguf_set_arr_data(gguf, h->key, GGUF_TYPE_INT32, types, TINY_VOCAB);
        break;
    case 5:   /* no byte tokens at all */
        gguf_remove_key(gguf, "tokenizer.ggml.scores");
        gguf_remove_key(gguf, "tokenizer.ggml.token_type");
        gguf_set_arr_str(gguf, h->key, (const char **)(uintptr_t)few, 3);
        break;
    case 6:
        gguf_set_val_str(gguf, h->key, "no_vocab");
        break;
    case 7:   /* byte-pair encoding without merges */
        gguf_set_val_str(gguf, "tokenizer.ggml.model", "gpt2");
        break;
    case 8:
        gguf_set_val_str(gguf, "tokenizer.ggml.model", "gpt2");
        gguf_set_arr_data(gguf, h->key, GGUF_TYPE_FLOAT32, scores, 2);
        break;
    default:
        gguf_set_arr_data(gguf, h->key, GGUF_TYPE_UINT8, scores, 0);
        break;
    }
}

static void refuses_hostile_vocabularies(void **state)
{
    (void)state;
    static const hostile list[] = {
        {"tokenizer.ggml.model", 0, OCT_BAD_DATA},      {"tokenizer.ggml.model", 1, OCT_BAD_DATA},      {"tokenizer.ggml.model", 6, OCT_UNSUPPORTED},
        {"tokenizer.ggml.tokens", 0, OCT_BAD_DATA},     {"tokenizer.ggml.tokens", 1, OCT_BAD_DATA},     {"tokenizer.ggml.tokens", 5, OCT_BAD_DATA},
        {"tokenizer.ggml.tokens", 9, OCT_BAD_DATA},     {"tokenizer.ggml.scores", 1, OCT_BAD_DATA},     {"tokenizer.ggml.scores", 3, OCT_BAD_DATA},
        {"tokenizer.ggml.token_type", 1, OCT_BAD_DATA}, {"tokenizer.ggml.token_type", 4, OCT_BAD_DATA}, {"tokenizer.ggml.token_type", 3, OCT_BAD_DATA},
        {"tokenizer.ggml.merges", 7, OCT_BAD_DATA},     {"tokenizer.ggml.merges", 8, OCT_BAD_DATA},     {"tokenizer.ggml.pre", 1, OCT_BAD_DATA},
        {"tokenizer.ggml.add_bos_token", 1, OCT_BAD_DATA}, {"tokenizer.chat_template", 1, OCT_BAD_DATA}, {"general.architecture", 0, OCT_BAD_DATA},
    };
    for (size_t i = 0; i < sizeof(list) / sizeof(list[0]); i++) {
        tiny_model m;
        octe_vocab *v;
        oct_error error = OCT_ERROR_INIT;
        assert_true(tiny_model_at(0, &m));
        m.edit = spoil;
        m.user = &list[i];
        tiny_model_write(&m, tiny_path("hostile.gguf"));
        const oct_status s = octe_vocab_open(tiny_path("hostile.gguf"), &v, &error);
        if (s != list[i].status || strstr(error.text, list[i].key) == NULL || strstr(error.text, "hostile.gguf") == NULL) {
            fail_msg("case %zu: %d '%s'; expected %d and '%s'", i, (int)s, error.text, (int)list[i].status, list[i].key);
        }
    }
    /* Two tokens of one text: libllama would assert. */
    tiny_model m;
    octe_vocab *v;
    oct_error error = OCT_ERROR_INIT;
    const hostile twice = {"tokenizer.ggml.tokens", 2, OCT_BAD_DATA};
    assert_true(tiny_model_at(0, &m));
    m.edit = spoil;
    m.user = &twice;
    tiny_model_write(&m, tiny_path("hostile.gguf"));
    assert_int_equal(octe_vocab_open(tiny_path("hostile.gguf"), &v, &error), OCT_BAD_DATA);
    assert_non_null(strstr(error.text, "two tokens with the text 'a'"));
    assert_int_equal(octe_vocab_open("/no/such.gguf", &v, &error), OCT_IO_ERROR);
    assert_int_equal(octe_vocab_open(NULL, &v, &error), OCT_INVALID_ARGUMENT);
}

static int done(void **state)
{
    (void)state;
    tiny_folder_remove();
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_bos_at_most),   cmocka_unit_test(one_eos_at_most),       cmocka_unit_test(ids_outside_are_no_abort),
        cmocka_unit_test(long_texts),        cmocka_unit_test(stream_holds_back),     cmocka_unit_test(stream_is_always_utf8),
        cmocka_unit_test(chat),              cmocka_unit_test(refuses_hostile_vocabularies),
    };
    return cmocka_run_group_tests(tests, NULL, done);
}
