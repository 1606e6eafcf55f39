/* The engine against libllama on f32 copies of the two real models: 64 greedy tokens on 20 prompts, one of them past 1,400 tokens. libllama
 * chooses, both follow: every step's argmax must agree and 1 - cos of the logits stay within 1e-6, with f32 caches and no flash
 * attention there. Windows and RoPE that are off by a little must break this check.
 *
 * usage: engine_equality_models MODEL.gguf    exit 77 when the file is missing
 * The f32 copy is made once, in a folder "f32" beside the model. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>
#include <llama.h>

#include "engine/compare_logits.h"
#include "engine/engine.h"
#include "engine/prompts.h"
#include "engine/reference.h"
#include "engine/vocab.h"

/* ggml's threads spin at every barrier: on a machine that does other work as well, one thread is the faster. */
enum { N_THREADS = 1 };
enum { N_GREEDY = 64, N_SHORT = N_PROMPTS - 1, SHORT_CONTEXT = 128, LONG_CONTEXT = 1700, ROWS = 512, LEAST_LONG = 1400 };

static const char *model_path;
static char f32_path[1024];
static octe_model *model;
static octe_vocab *vocab;
static uint32_t V;
static int32_t *tokens[N_PROMPTS];
static uint32_t n_tokens[N_PROMPTS];
/* libllama's choices, and its logits of the long prompt's 64 steps: what the negative controls are judged by. */
static int32_t greedy[N_PROMPTS][N_GREEDY];
static float *long_logits;   /* [N_GREEDY][V] */

#define CHECK(call)                                                   \
    do {                                                              \
        oct_error error = OCT_ERROR_INIT;                             \
        oct_error *const e_ = &error;                                 \
        if ((call) != OCT_OK) {                                       \
            fail_msg("%s: %s", #call, error.text);                    \
        }                                                             \
    } while (0)

static octe_engine *open_engine(uint32_t n_sequences, uint32_t context, octe_engine_test test)
{
    octe_engine *e;
    octe_engine_options o;
    octe_engine_options_init(&o);
    o.n_threads = N_THREADS;
    o.kv.k.dtype = o.kv.v.dtype = OCT_DTYPE_F32;
    o.max_sequences = n_sequences;
    o.max_context_tokens = context;
    o.max_step_rows = ROWS;
    o.max_step_logits = n_sequences > N_GREEDY ? n_sequences : N_GREEDY;
    o.test = test;
    CHECK(octe_engine_open(model, &o, &e, e_));
    return e;
}

static octe_reference *open_reference(uint32_t n_sequences, uint32_t context)
{
    octe_reference *r;
    const octe_reference_options o = {
        .n_threads = N_THREADS, .max_context_tokens = context, .max_sequences = n_sequences, .max_step_rows = ROWS, .cache = OCTE_REFERENCE_F32, .flash = OCTE_REFERENCE_FLASH_OFF};
    CHECK(octe_reference_open(f32_path, &o, &r, e_));
    return r;
}

/* Prompts first .. first + n - 1 as sequences 0 .. n - 1: the prompts, then 64 steps of all together. */
static logits_match follow(int first, uint32_t n, uint32_t context)
{
    octe_engine *e = open_engine(n, context, (octe_engine_test){0});
    octe_reference *r = open_reference(n, context);
    logits_match m = {0};
    octe_part parts[N_PROMPTS];
    const float *ours, *theirs;
    for (uint32_t s = 0; s < n; s++) {
        CHECK(octe_engine_prefill(e, s, tokens[first + (int)s], n_tokens[first + (int)s], &ours, e_));
        CHECK(octe_reference_prefill(r, s, tokens[first + (int)s], n_tokens[first + (int)s], &theirs, e_));
        logits_match_add(&m, ours, theirs, V);
        greedy[first + (int)s][0] = (int32_t)logits_argmax(theirs, V);
        parts[s] = (octe_part){s, 1, greedy[first + (int)s], 1};
        if (first + (int)s == N_PROMPTS - 1) {
            long_logits = malloc((size_t)N_GREEDY * V * sizeof(*long_logits));
            memcpy(long_logits, theirs, V * sizeof(*long_logits));
        }
    }
    for (int k = 1; k < N_GREEDY; k++) {
        CHECK(octe_engine_step(e, parts, n, &ours, e_));
        CHECK(octe_reference_step(r, parts, n, &theirs, e_));
        for (uint32_t s = 0; s < n; s++) {
            const float *row = theirs + (size_t)s * V;
            logits_match_add(&m, ours + (size_t)s * V, row, V);
            greedy[first + (int)s][k] = (int32_t)logits_argmax(row, V);
            parts[s].tokens = &greedy[first + (int)s][k];
            if (first + (int)s == N_PROMPTS - 1) {
                memcpy(long_logits + (size_t)k * V, row, V * sizeof(*long_logits));
            }
        }
    }
    octe_engine_close(e);
    octe_reference_close(r);
    return m;
}

static void judge(const char *what, logits_match m, uint32_t expected)
{
    print_message("%s, %s: %u of %u greedy tokens agree, %u tied of %u close, 1 - cos at most %.2e\n", octe_model_info_get(model)->architecture, what,
                  m.n_same_top, m.n, m.n_ties, m.n_close, m.worst);
    assert_int_equal(m.n, expected);
    assert_true(m.worst <= LOGITS_BOUND);
    assert_int_equal(m.n_same_top + m.n_ties, m.n);
    /* Which way a close call falls is chance; that the definition of one excuses few steps is not, and libllama's logits alone decide it. */
    assert_true(m.n_close <= m.n / 16);
}

static void short_prompts(void **state)
{
    (void)state;
    judge("19 prompts in one batch", follow(0, N_SHORT, SHORT_CONTEXT), N_SHORT * N_GREEDY);
}

static void long_prompt(void **state)
{
    (void)state;
    assert_true(n_tokens[N_PROMPTS - 1] > LEAST_LONG);
    char what[64];
    snprintf(what, sizeof(what), "a prompt of %u tokens", n_tokens[N_PROMPTS - 1]);
    judge(what, follow(N_PROMPTS - 1, 1, LONG_CONTEXT), N_GREEDY);
}

/* The vocabulary gives what libllama gives, but for a second BOS; and pieces put together are the text again. */
static void same_tokens(void **state)
{
    (void)state;
    struct llama_model_params mp = llama_model_default_params();
    mp.vocab_only = true;
    struct llama_model *m = llama_model_load_from_file(f32_path, mp);
    assert_non_null(m);
    const struct llama_vocab *v = llama_model_get_vocab(m);
    for (int i = 0; i < N_PROMPTS; i++) {
        const char *text = prompt_at(i);
        for (int special = 0; special < 2; special++) {
            int32_t *mine, *theirs = malloc(4096 * sizeof(*theirs));
            uint32_t n;
            CHECK(octe_vocab_tokenize(vocab, text, SIZE_MAX, special != 0, special != 0, &mine, &n, e_));
            const int32_t n_theirs = llama_tokenize(v, text, (int32_t)strlen(text), theirs, 4096, special != 0, special != 0);
            assert_int_equal(n, n_theirs);
            assert_memory_equal(mine, theirs, n * sizeof(*mine));
            octe_stream stream = {{0}, 0};
            char joined[20000] = "", last[4];
            for (uint32_t k = 0; k < n; k++) {
                char *piece;
                CHECK(octe_stream_add(&stream, vocab, mine[k], false, &piece, NULL, e_));
                strcat(joined, piece);
                free(piece);
            }
            octe_stream_finish(&stream, last);
            assert_string_equal(last, "");
            /* SentencePiece may put a space before the first word. */
            assert_string_equal(joined + (joined[0] == ' ' && text[0] != ' '), text);
            free(mine);
            free(theirs);
        }
    }
    llama_model_free(m);
    if (octe_vocab_has_chat_template(vocab)) {
        const octe_message messages[] = {{"system", "You are brief."}, {"user", "Say hello."}};
        char *chat;
        CHECK(octe_vocab_apply_chat(vocab, messages, 2, true, &chat, e_));
        assert_string_equal(chat, "<|im_start|>system\nYou are brief.<|im_end|>\n<|im_start|>user\nSay hello.<|im_end|>\n<|im_start|>assistant\n");
        free(chat);
    }
}

/* Tokens alone don't see a window that is one off; the logits must. */
static void faults_show(void **state)
{
    (void)state;
    const octe_model_info *info = octe_model_info_get(model);
    if (info->window_tokens == 0) {
        print_message("%s has no window layers: nothing to get wrong\n", info->architecture);
        return;
    }
    assert_int_equal(info->window_tokens, 512);
    assert_non_null(long_logits);
    const octe_engine_test faults[] = {{0}, {.window_tokens = 511}, {.window_tokens = 513}, {.rope_base_window = info->rope_base}};
    const int last = N_PROMPTS - 1;
    for (size_t f = 0; f < sizeof(faults) / sizeof(faults[0]); f++) {
        octe_engine *e = open_engine(1, LONG_CONTEXT, faults[f]);
        logits_match m = {0};
        const float *logits;
        CHECK(octe_engine_prefill(e, 0, tokens[last], n_tokens[last] - 1, NULL, e_));
        /* The prompt's last token and what libllama chose after it, in one step. */
        int32_t forced[N_GREEDY] = {tokens[last][n_tokens[last] - 1]};
        memcpy(forced + 1, greedy[last], (N_GREEDY - 1) * sizeof(*forced));
        const octe_part part = {0, N_GREEDY, forced, N_GREEDY};
        CHECK(octe_engine_step(e, &part, 1, &logits, e_));
        for (size_t k = 0; k < N_GREEDY; k++) {
            logits_match_add(&m, logits + k * V, long_logits + k * V, V);
        }
        print_message("window %u, local base %g: %u of %u tokens agree, 1 - cos up to %.2e\n", faults[f].window_tokens, (double)faults[f].rope_base_window, m.n_same_top, m.n,
                      m.worst);
        /* In another chunk than libllama's single steps, near ties of the top may fall otherwise: the distance is what counts. */
        if (f == 0) {
            assert_true(m.worst <= LOGITS_BOUND);
        } else {
            assert_true(m.worst > LOGITS_BOUND);
        }
        octe_engine_close(e);
    }
}

static int open_all(void **state)
{
    (void)state;
    const char *path = model_path;
    const char *slash = strrchr(path, '/');
    struct stat of_model, of_copy;
    oct_error error = OCT_ERROR_INIT;
    char folder[900];
    snprintf(folder, sizeof(folder), "%.*sf32", slash != NULL ? (int)(slash - path + 1) : 0, path);
    (void)mkdir(folder, 0777);
    snprintf(f32_path, sizeof(f32_path), "%s/%s", folder, slash != NULL ? slash + 1 : path);
    const bool fresh = stat(path, &of_model) == 0 && stat(f32_path, &of_copy) == 0 && of_copy.st_mtime >= of_model.st_mtime;
    if (!fresh && octe_f32_copy(path, f32_path, 0, &error) != OCT_OK) {
        print_error("%s\n", error.text);
        return -1;
    }
    if (octe_model_open(f32_path, NULL, &model, &error) != OCT_OK || octe_vocab_open(f32_path, &vocab, &error) != OCT_OK) {
        print_error("%s\n", error.text);
        return -1;
    }
    V = octe_model_info_get(model)->n_vocab;
    for (int i = 0; i < N_PROMPTS; i++) {
        if (octe_vocab_tokenize(vocab, prompt_at(i), SIZE_MAX, true, true, &tokens[i], &n_tokens[i], &error) != OCT_OK) {
            print_error("%s\n", error.text);
            return -1;
        }
    }
    return 0;
}

static int close_all(void **state)
{
    (void)state;
    for (int i = 0; i < N_PROMPTS; i++) {
        free(tokens[i]);
    }
    free(long_logits);
    octe_vocab_close(vocab);
    octe_model_close(model);
    return 0;
}

int main(int argc, char **argv)
{
    if (argc != 2) {
        fprintf(stderr, "usage: %s MODEL.gguf\n", argv[0]);
        return 2;
    }
    if (access(argv[1], R_OK) != 0) {
        fprintf(stderr, "skipped: %s is missing; tools/setup/models.sh fetches it\n", argv[1]);
        return 77;
    }
    const struct CMUnitTest tests[] = {cmocka_unit_test(same_tokens), cmocka_unit_test(short_prompts), cmocka_unit_test(long_prompt), cmocka_unit_test(faults_show)};
    model_path = argv[1];
    return cmocka_run_group_tests_name("engine_equality_models", tests, open_all, close_all);
}
