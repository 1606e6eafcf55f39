/* Speculation by prompt lookup: what is guessed, and that answers are what they are without guesses: deterministic to the bits of all logits, else within what another
 * order of additions may change; greedy and sampled. A model file given as an argument is run instead of the small ones. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/serve/runner.h"
#include "engine/small_engine.h"

enum { N_REQUESTS = 6, MOST_NEW = 64, MOST_PROMPT = 90 };

static const char *file;
static uint64_t n_beside;    /* guesses that came true on another branch than the first */
static uint64_t n_wrong;     /* guesses that did not come true */
static uint32_t n_requests = N_REQUESTS, n_new = MOST_NEW, n_vocab = V;

/* ---- the lookup ----------------------------------------------------------------------------------------------------- */

static void expect(const char *text, uint32_t least, uint32_t most_match, uint32_t most, const char *guessed)
{
    int32_t tokens[64], draft[OCTE_DRAFT_MAX];
    char seen[OCTE_DRAFT_MAX + 1] = "";
    const uint32_t n = (uint32_t)strlen(text);
    for (uint32_t i = 0; i < n; i++) {
        tokens[i] = text[i];
    }
    const uint32_t n_draft = octe__draft_lookup(tokens, n, least, most_match, most, draft);
    for (uint32_t i = 0; i < n_draft; i++) {
        seen[i] = (char)draft[i];
    }
    assert_string_equal(seen, guessed);
}

static void lookup(void **state)
{
    (void)state;
    expect("", 1, 3, 4, "");
    expect("a", 1, 3, 4, "");
    expect("abc", 1, 3, 4, "");
    expect("abcab", 1, 3, 3, "cab");
    expect("abcab", 3, 3, 3, "");                    /* only two tokens stood before */
    expect("xabcyabczab", 2, 4, 2, "cz");            /* the last of two places */
    expect("abcdxbcdyabcd", 1, 4, 2, "xb");          /* the longer match, though it is older */
    expect("aaaa", 1, 3, 5, "aaaaa");                /* goes on into itself */
    expect("abab", 2, 4, 6, "ababab");
    expect("xyz1xyz", 1, 2, 15, "1xyz1xyz1xyz1xy");
}

/* A tree as text: each guess with the place of the one before it. */
static void expect_tree(const char *text, uint32_t n_branches, uint32_t most, const char *tree)
{
    int32_t tokens[64], draft[OCTE_DRAFT_MAX];
    uint8_t parents[1 + OCTE_DRAFT_MAX];
    char seen[64] = "";
    const uint32_t n = (uint32_t)strlen(text);
    for (uint32_t i = 0; i < n; i++) {
        tokens[i] = text[i];
    }
    const uint32_t n_draft = octe__draft_tree(tokens, n, 1, 3, n_branches, most, draft, parents);
    for (uint32_t i = 0; i < n_draft; i++) {
        assert_true(parents[1 + i] <= i);
        const char piece[] = {(char)draft[i], "0123456789abcdef"[parents[1 + i]], ' ', '\0'};
        strcat(seen, piece);
    }
    assert_string_equal(seen, tree);
}

static void trees(void **state)
{
    (void)state;
    expect_tree("", 3, 6, "");
    expect_tree("abc", 3, 6, "");
    expect_tree("abcab", 1, 3, "c0 a1 b2 ");                          /* a chain */
    expect_tree("abcab", 3, 6, "c0 a1 b2 ");                          /* nothing else ever followed */
    expect_tree("abxyabcdab", 2, 4, "c0 d1 x0 y3 ");                  /* the other place's, from the same beginning */
    expect_tree("abcxabcdab", 2, 4, "c0 d1 x1 ");                     /* in common as far as they are equal */
    expect_tree("abxabyabzab", 3, 6, "z0 a1 b2 y0 a4 x0 ");
    expect_tree("abxabyabzab", 2, 2, "z0 y0 ");
    expect_tree("abxabyabzab", 4, 1, "z0 ");
    expect_tree("axbxcxdx", 4, 15, "d0 x1 d2 x3 d4 x5 d6 x7 c0 x9 da b0 xc cd ");
}

/* ---- engines ---------------------------------------------------------------------------------------------------------- */

typedef struct talk {
    uint64_t id, random;
    uint32_t n_prompt, n;
    int32_t prompt[MOST_PROMPT], token[MOST_NEW];
    float *logits;     /* [MOST_NEW][n_vocab] */
    bool samples;      /* draws from what is likely, as a sampler with a seed does */
} talk;

static int32_t draw(talk *t, const float *logits)
{
    /* Random weights repeat themselves where there are few words to choose from. */
    const uint32_t top = logits_argmax(logits, file != NULL ? n_vocab : 3);
    t->random = t->random * 6364136223846793005u + 1442695040888963407u;
    uint32_t second = top == 0 ? 1 : 0;
    for (uint32_t i = 0; i < 3; i++) {
        second = i != top && logits[i] > logits[second] ? i : second;
    }
    return (int32_t)(t->samples && (t->random >> 33) % 5 == 0 ? second : top);
}

static bool take(void *context, const octe_scheduled *part, const float *logits, int32_t *token)
{
    (void)context;
    talk *t = part->user;
    assert_true(t->n < n_new);
    /* A second row of a part whose token is no guess of the first branch. */
    const uint32_t at = part->n_prompt + t->n - (part->n_past + part->n_tokens - part->n_draft);
    n_beside += part->parents != NULL && at == 1 && part->tokens[part->n_past + 1] != t->token[t->n - 1];
    memcpy(t->logits + (size_t)t->n * n_vocab, logits, n_vocab * sizeof(float));
    *token = t->token[t->n++] = draw(t, logits);
    return false;
}

static void submit(octe_runner *r, talk *t)
{
    const octe_request_spec q = {.prompt = t->prompt, .n_prompt = t->n_prompt, .max_new_tokens = n_new, .user = t};
    t->n = 0;
    t->random = t->n_prompt;
    assert_int_equal(octe_scheduler_add(octe_runner_scheduler(r), &q, &t->id, NULL), OCT_OK);
}

static void run(octe_runner *r)
{
    uint32_t n_rows = 1;
    while (n_rows > 0) {
        oct_error error = OCT_ERROR_INIT;
        if (octe_runner_step(r, take, NULL, NULL, &n_rows, &error) != OCT_OK) {
            fail_msg("%s", error.text);
        }
    }
}

/* Prompts that repeat themselves, as code and talks do. */
static talk *invent(bool samples)
{
    talk *t = calloc(N_REQUESTS, sizeof(*t));
    for (uint32_t i = 0; i < n_requests; i++) {
        t[i].n_prompt = 20 + i * 13;
        t[i].samples = samples;
        t[i].logits = malloc((size_t)MOST_NEW * n_vocab * sizeof(float));
        for (uint32_t k = 0; k < t[i].n_prompt; k++) {
            t[i].prompt[k] = (int32_t)((k % (7 + i)) * 31 + i * 5) % (int32_t)V;
        }
    }
    return t;
}

static void discard(talk *t)
{
    for (uint32_t i = 0; i < n_requests; i++) {
        free(t[i].logits);
    }
    free(t);
}

static octe_engine *open_one(int model, const char *kv, bool deterministic, octe_model *from_file)
{
    octe_engine_options o = options(kv);
    o.deterministic = deterministic;
    o.max_sequences = 4;
    o.max_step_parts = 20;
    o.token_masks = !deterministic;
    o.max_step_rows = 64 + 20;
    o.max_step_logits = 20;
    o.pool_tokens = 4 * CONTEXT;
    if (deterministic) {
        o.deny_variant = NULL;
    }
    if (from_file == NULL) {
        return open_engine(model, &o);
    }
    o.n_threads = 2;
    octe_engine *e;
    oct_error error = OCT_ERROR_INIT;
    if (octe_engine_open(from_file, &o, &e, &error) != OCT_OK) {
        fail_msg("%s", error.text);
    }
    return e;
}

static octe_runner *open_runner(octe_engine *e, uint32_t n_draft, uint32_t n_branches)
{
    octe_runner *r;
    oct_error error = OCT_ERROR_INIT;
    const octe_runner_options o = {.chunk_tokens = 64, .max_running = 4, .draft = {n_draft, 1, 3, 0, n_branches}};
    if (octe_runner_open(e, &o, &r, &error) != OCT_OK) {
        fail_msg("%s", error.text);
    }
    return r;
}

static void compare(const char *kv, const talk *with, const talk *without, bool deterministic, uint32_t i)
{
    assert_int_equal(with->n, n_new);
    for (uint32_t k = 0; k < n_new; k++) {
        const float *x = with->logits + (size_t)k * n_vocab, *y = without->logits + (size_t)k * n_vocab;
        if (deterministic && memcmp(x, y, n_vocab * sizeof(float)) != 0) {
            fail_msg("%s, request %u: logits %u differ, 1 - cos %.2e", kv, i, k, logits_distance(x, y, n_vocab));
        } else if (!deterministic) {
            same(kv, x, y);
            if (with->token[k] != without->token[k]) {
                return;   /* two tokens as likely as each other: from here on the texts differ */
            }
        }
        assert_int_equal(with->token[k], without->token[k]);
    }
}

static void with_as_without(int model, const char *kv, bool deterministic, bool samples, uint32_t n_branches, octe_model *from_file)
{
    talk *without = invent(samples), *with = invent(samples);
    octe_engine *e = open_one(model, kv, deterministic, from_file);
    octe_runner *r = open_runner(e, 0, 0);
    octe_scheduler_stats off, on;
    for (uint32_t i = 0; i < n_requests; i++) {
        submit(r, &without[i]);
        run(r);
    }
    octe_scheduler_stats_get(octe_runner_scheduler(r), &off);
    octe_runner_close(r);
    r = open_runner(e, n_branches > 1 ? 8 : 4, n_branches);
    for (uint32_t i = 0; i < n_requests; i++) {
        submit(r, &with[i]);
    }
    run(r);
    octe_scheduler_stats_get(octe_runner_scheduler(r), &on);
    for (uint32_t i = 0; i < n_requests; i++) {
        compare(kv, &with[i], &without[i], deterministic, i);
    }
    print_message("%s, %s, %s%s: %llu of %llu guesses came true in %llu drafts\n", from_file != NULL ? file : model == LLAMA ? "llama" : "gemma3", kv, deterministic ? "deterministic" : "free",
                  samples ? ", sampled" : "", (unsigned long long)on.n_accepted_tokens, (unsigned long long)on.n_draft_tokens, (unsigned long long)on.n_drafts);
    assert_int_equal(off.n_draft_tokens, 0);
    assert_true(on.n_accepted_tokens > 0);
    n_wrong += on.n_draft_tokens - on.n_accepted_tokens;
    assert_int_equal(on.pool[0].n_used + on.pool[1].n_used, 0);
    octe_runner_close(r);
    octe_engine_close(e);
    discard(with);
    discard(without);
}

static void deterministic_bits(void **state)
{
    (void)state;
    static const char *const caches[] = {"f16", "fp8", "int8_rotated", "fp8_per_token_head"};
    for (size_t c = 0; c < sizeof(caches) / sizeof(caches[0]); c++) {
        with_as_without(LLAMA, caches[c], true, false, 1, NULL);
        with_as_without(GEMMA, caches[c], true, c % 2 == 0, 1, NULL);
    }
    with_as_without(LLAMA, "fp8", true, true, 3, NULL);   /* deterministic, branches are not looked at */
    assert_true(n_wrong > 100);
}

static void free_answers(void **state)
{
    (void)state;
    with_as_without(LLAMA, "fp8", false, false, 1, NULL);
    with_as_without(GEMMA, "int8_rotated", false, true, 1, NULL);
    n_beside = 0;
    with_as_without(LLAMA, "fp8", false, false, 2, NULL);
    with_as_without(LLAMA, "int8_rotated", false, true, 3, NULL);
    with_as_without(LLAMA, "fp8_per_token_head", false, true, 4, NULL);
    with_as_without(GEMMA, "fp8", false, true, 3, NULL);   /* with windows, branches are not looked at */
    assert_true(n_beside > 10);
}

/* What is no tree, or none that this engine takes, is refused and stores nothing. */
static void wrong_trees(void **state)
{
    (void)state;
    octe_engine *plain = open_one(LLAMA, "fp8", true, NULL), *e = open_one(LLAMA, "fp8", false, NULL), *window = open_one(GEMMA, "fp8", false, NULL);
    int32_t tokens[40] = {0}, pages[40];
    uint8_t parents[40] = {9, 0, 1, 0, 3};   /* the first is not looked at */
    for (int32_t i = 0; i < 40; i++) {
        pages[i] = i;
    }
    const octe_paged_part tree = {.tokens = tokens, .n_tokens = 5, .n_logits = 5, .pages = {pages, pages}, .parents = parents};
    octe_paged_part part = tree;
    assert_int_equal(octe_engine_step_paged(e, &part, 1, NULL, NULL), OCT_OK);
    assert_int_equal(octe_engine_step_paged(window, &part, 1, NULL, NULL), OCT_OK);   /* all of it is within the window */
    assert_int_equal(octe_engine_step_paged(plain, &part, 1, NULL, NULL), OCT_INVALID_ARGUMENT);
    part.n_past = octe_model_info_get(octe_engine_model(window))->window_tokens;
    assert_int_equal(octe_engine_step_paged(window, &part, 1, NULL, NULL), OCT_INVALID_ARGUMENT);
    part = tree;
    part.n_tokens = 33;
    part.n_logits = 1;
    assert_int_equal(octe_engine_step_paged(e, &part, 1, NULL, NULL), OCT_INVALID_ARGUMENT);
    part = tree;
    for (uint8_t wrong = 3; wrong < 6; wrong++) {
        parents[3] = wrong;
        assert_int_equal(octe_engine_step_paged(e, &part, 1, NULL, NULL), OCT_INVALID_ARGUMENT);
    }
    octe_engine_close(plain);
    octe_engine_close(e);
    octe_engine_close(window);
}

static void of_file(void **state)
{
    (void)state;
    octe_model *m;
    oct_error error = OCT_ERROR_INIT;
    if (octe_model_open(file, NULL, &m, &error) != OCT_OK) {
        fail_msg("%s", error.text);
    }
    n_vocab = octe_model_info_get(m)->n_vocab;
    with_as_without(LLAMA, "int8_rotated", true, false, 1, m);
    octe_model_close(m);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(lookup), cmocka_unit_test(trees), cmocka_unit_test(deterministic_bits), cmocka_unit_test(free_answers), cmocka_unit_test(wrong_trees)};
    const struct CMUnitTest files[] = {cmocka_unit_test(of_file)};
    if (argc > 1) {
        FILE *there = fopen(argv[1], "rb");
        if (there == NULL) {
            printf("%s is missing: tools/setup/models.sh fetches it\n", argv[1]);
            return 77;
        }
        (void)fclose(there);
        file = argv[1];
        n_requests = 3;
        n_new = 24;
        return cmocka_run_group_tests(files, NULL, NULL);
    }
    return cmocka_run_group_tests(tests, open_models, close_models);
}
