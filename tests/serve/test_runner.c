/* The scheduler on engines: requests together give what each gives alone. Deterministic engines are held to the bits of all logits, others to what another order
 * of additions may change. Models from files given as arguments are run instead of the small ones. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/engine_state.h"
#include "engine/serve/runner.h"
#include "engine/serve/scheduler_state.h"
#include "engine/small_engine.h"

enum { N_REQUESTS = 14, N_NEW = 40, MAX_PROMPT = 150, N_THREADS_FILE = 2 };

static const char *file;   /* a model file in place of the small ones: fewer and shorter requests */
static uint32_t n_requests = N_REQUESTS, n_new = N_NEW;

typedef struct answer {
    uint64_t id;
    uint32_t n_prompt, n, n_vocab, n_cached;
    int32_t prompt[MAX_PROMPT], token[N_NEW];
    float *logits;            /* [N_NEW][n_vocab] */
    bool finished;
} answer;

static bool take(void *context, const octe_scheduled *part, const float *logits, int32_t *token)
{
    (void)context;
    answer *a = part->user;
    assert_int_equal(a->id, part->id);
    assert_true(a->n < n_new);
    memcpy(a->logits + (size_t)a->n * a->n_vocab, logits, a->n_vocab * sizeof(float));
    *token = (int32_t)logits_argmax(logits, a->n_vocab);
    a->token[a->n++] = *token;
    a->n_cached = part->n_cached;
    a->finished = a->n == n_new;
    return false;
}

static void submit(octe_runner *r, answer *a)
{
    const octe_request_spec q = {.prompt = a->prompt, .n_prompt = a->n_prompt, .max_new_tokens = n_new, .user = a};
    oct_error error = OCT_ERROR_INIT;
    a->n = 0;
    a->finished = false;
    if (octe_scheduler_add(octe_runner_scheduler(r), &q, &a->id, &error) != OCT_OK) {
        fail_msg("%s", error.text);
    }
}

static uint32_t run_step(octe_runner *r)
{
    uint32_t n_rows;
    oct_error error = OCT_ERROR_INIT;
    if (octe_runner_step(r, take, NULL, NULL, &n_rows, &error) != OCT_OK) {
        fail_msg("%s", error.text);
    }
    return n_rows;
}

/* Prompts of all lengths, most of them beginning like another. */
static answer *invent(uint32_t n_vocab, uint32_t longest)
{
    answer *a = calloc(N_REQUESTS, sizeof(*a));
    for (uint32_t i = 0; i < n_requests; i++) {
        a[i].n_vocab = n_vocab;
        a[i].n_prompt = 1 + (i * 53 + 75) % longest;
        a[i].logits = malloc((size_t)N_NEW * n_vocab * sizeof(float));
        for (uint32_t t = 0; t < a[i].n_prompt; t++) {
            const uint32_t beginning = i % 3;
            a[i].prompt[t] = (int32_t)(t < 60 + 5 * (i / 3) ? (beginning * 101 + t * 17) % V : (i * 7 + t * 3) % V);
        }
    }
    return a;
}

static void discard(answer *a)
{
    for (uint32_t i = 0; i < n_requests; i++) {
        free(a[i].logits);
    }
    free(a);
}

/* Every slot of the cached pages that the tree speaks of, in all layers. */
static uint64_t *sums_of_cached(const octe_engine *e, const octe_scheduler *s)
{
    const oct_kv_spec *spec = octe_engine_kv_spec(e);
    const uint64_t vectors = (uint64_t)spec->page_size * spec->heads;
    const size_t size_k = (size_t)oct_dtype_bytes(spec->k.dtype, vectors * spec->dim_k), size_v = (size_t)oct_dtype_bytes(spec->v.dtype, vectors * spec->dim_v);
    uint64_t *sums = calloc((size_t)s->pages[0].n, sizeof(*sums));
    for (int64_t page = 0; page < s->pages[0].n; page++) {
        uint64_t sum = 14695981039346656037u;
        for (uint32_t il = 0; s->prefix.nodes[page].n_tokens == spec->page_size && il < e->cache.n_layers; il++) {
            const oct_kv_layer *l = &e->cache.layers[il];
            const int64_t at = e->cache.group[il] == OCTE__FULL ? page : s->prefix.nodes[page].window_page;
            if (at < 0) {
                continue;
            }
            const unsigned char *k = (const unsigned char *)l->k + (size_t)at * size_k, *v = (const unsigned char *)l->v + (size_t)at * size_v;
            for (size_t i = 0; i < size_k; i++) {
                sum = (sum ^ k[i]) * 1099511628211u;
            }
            for (size_t i = 0; i < size_v; i++) {
                sum = (sum ^ v[i]) * 1099511628211u;
            }
        }
        sums[page] = sum;
    }
    return sums;
}

static octe_engine *open_one(int model, const char *kv, bool deterministic, int64_t pool_tokens, octe_model *from_file)
{
    octe_engine_options o = options(kv);
    o.deterministic = deterministic;
    o.max_sequences = 7;
    o.pool_tokens = pool_tokens;
    o.max_step_rows = 64 + 7;
    if (deterministic) {
        o.deny_variant = NULL;
    }
    if (from_file == NULL) {
        return open_engine(model, &o);
    }
    o.n_threads = N_THREADS_FILE;
    octe_engine *e;
    oct_error error = OCT_ERROR_INIT;
    if (octe_engine_open(from_file, &o, &e, &error) != OCT_OK) {
        fail_msg("%s", error.text);
    }
    return e;
}

static void compare(const answer *together, const answer *alone, bool deterministic, const char *kv, uint32_t i)
{
    assert_true(together->finished && alone->finished);
    for (uint32_t k = 0; k < n_new; k++) {
        const float *x = together->logits + (size_t)k * together->n_vocab, *y = alone->logits + (size_t)k * alone->n_vocab;
        if (deterministic) {
            if (memcmp(x, y, together->n_vocab * sizeof(float)) != 0) {
                fail_msg("request %u, %u prompt tokens (%u cached): logits %u differ, 1 - cos %.2e", i, together->n_prompt, together->n_cached, k,
                         logits_distance(x, y, together->n_vocab));
            }
        } else {
            same(kv, x, y);
            if (together->token[k] != alone->token[k]) {
                return;   /* two tokens as likely as each other: from here on the texts differ */
            }
        }
    }
}

/* All at once in a small pool, so that they are preempted; then again, so that they find their beginnings in the cache. */
static void together_as_alone(int model, const char *kv, bool deterministic, uint64_t swap_bytes, octe_model *from_file)
{
    const uint32_t n_vocab = from_file != NULL ? octe_model_info_get(from_file)->n_vocab : V, longest = from_file != NULL ? 100 : MAX_PROMPT;
    answer *alone = invent(n_vocab, longest), *all = invent(n_vocab, longest);
    octe_runner_options o = {.chunk_tokens = 64, .swap_bytes = swap_bytes};
    octe_runner *r;
    octe_engine *e = open_one(model, kv, deterministic, 0, from_file);
    for (uint32_t i = 0; i < n_requests; i++) {
        /* A runner each: nothing of others' is in the cache. */
        assert_int_equal(octe_runner_open(e, &o, &r, NULL), OCT_OK);
        submit(r, &alone[i]);
        while (run_step(r) > 0) {
        }
        assert_int_equal(alone[i].n_cached, 0);
        octe_runner_close(r);
    }
    octe_engine_close(e);

    e = open_one(model, kv, deterministic, 14 * 16, from_file);
    assert_int_equal(octe_runner_open(e, &o, &r, NULL), OCT_OK);
    octe_scheduler *s = octe_runner_scheduler(r);
    octe_scheduler_stats stats;
    for (uint32_t round = 0; round < 2; round++) {
        for (uint32_t i = 0; i < n_requests; i++) {
            submit(r, &all[round == 0 ? i : n_requests - 1 - i]);
            if (i % 3 == 2) {
                (void)run_step(r);
            }
        }
        bool more = true;
        while (more) {
            uint64_t *before = sums_of_cached(e, s);
            octe__prefix_node *nodes = malloc((size_t)s->pages[0].n * sizeof(*nodes));
            memcpy(nodes, s->prefix.nodes, (size_t)s->pages[0].n * sizeof(*nodes));
            more = run_step(r) > 0;
            uint64_t *after = sums_of_cached(e, s);
            /* What was in the tree and still is has the bytes it had. A page that left and came back has other neighbours. */
            for (int64_t page = 0; page < s->pages[0].n; page++) {
                const octe__prefix_node *was = &nodes[page], *is = &s->prefix.nodes[page];
                if (was->n_tokens > 0 && is->n_tokens == was->n_tokens && is->parent == was->parent && is->hash == was->hash && is->window_page == was->window_page) {
                    assert_true(before[page] == after[page]);
                }
            }
            free(before);
            free(after);
            free(nodes);
        }
        octe_scheduler_stats_get(s, &stats);
        assert_int_equal(stats.pool[0].n_used + stats.pool[1].n_used, 0);
        for (uint32_t i = 0; i < n_requests; i++) {
            compare(&all[i], &alone[i], deterministic, kv, i);
        }
    }
    print_message("%s, %s, %s: %llu steps, %llu rows, %llu preempted, %llu of %llu prompt tokens cached, %llu pages copied\n", from_file != NULL ? file : model == LLAMA ? "llama" : "gemma3", kv,
                  deterministic ? "deterministic" : "free", (unsigned long long)stats.n_steps, (unsigned long long)stats.n_rows, (unsigned long long)stats.n_preempted,
                  (unsigned long long)stats.n_cached_tokens, (unsigned long long)stats.n_prompt_tokens, (unsigned long long)stats.n_pages_copied);
    assert_true(stats.n_cached_tokens > 0);
    assert_true(from_file != NULL || stats.n_preempted > 0);
    assert_true((stats.n_pages_copied > 0) == !deterministic);
    assert_true((stats.n_swapped_in > 0) == (swap_bytes > 0));
    octe_runner_close(r);
    octe_engine_close(e);
    discard(alone);
    discard(all);
}

static void deterministic_bits(void **state)
{
    (void)state;
    static const char *const caches[] = {"f16", "fp8", "int8_rotated"};
    for (size_t c = 0; c < sizeof(caches) / sizeof(caches[0]); c++) {
        together_as_alone(LLAMA, caches[c], true, 0, NULL);
        together_as_alone(GEMMA, caches[c], true, 0, NULL);
    }
    /* The pages of who must make room go to the host and come back. */
    together_as_alone(LLAMA, "fp8_per_token_head", true, 1 << 20, NULL);
    together_as_alone(GEMMA, "int8_rotated", true, 1 << 20, NULL);
    together_as_alone(GEMMA, "int8_v4", true, 1 << 20, NULL);
}

static void free_answers(void **state)
{
    (void)state;
    together_as_alone(LLAMA, "fp8", false, 0, NULL);
    together_as_alone(GEMMA, "fp8_per_token_head", false, 0, NULL);
}

static void of_file(void **state)
{
    (void)state;
    octe_model *m;
    oct_error error = OCT_ERROR_INIT;
    if (octe_model_open(file, NULL, &m, &error) != OCT_OK) {
        fail_msg("%s", error.text);
    }
    together_as_alone(LLAMA, "int8_rotated", true, 0, m);
    octe_model_close(m);
}

/* ---- the cache in a file ------------------------------------------------------------------------------------------- */

static octe_runner *open_runner(octe_engine *e)
{
    octe_runner *r;
    assert_int_equal(octe_runner_open(e, &(octe_runner_options){.chunk_tokens = 64}, &r, NULL), OCT_OK);
    return r;
}

static size_t load(const char *path, unsigned char **bytes)
{
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    *bytes = malloc(1 << 22);
    const size_t n = fread(*bytes, 1, 1 << 22, file);
    (void)fclose(file);
    return n;
}

static void store(const char *path, const unsigned char *bytes, size_t n)
{
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, n, file), n);
    (void)fclose(file);
}

static void refused_file(octe_runner *r, const char *path)
{
    uint64_t n_pages = 1;
    octe_scheduler_stats stats;
    assert_int_equal(octe_runner_restore(r, path, &n_pages, NULL), OCT_BAD_DATA);
    assert_int_equal(n_pages, 0);
    octe_scheduler_stats_get(octe_runner_scheduler(r), &stats);
    assert_int_equal(stats.pool[0].n_free, stats.pool[0].n);
    assert_int_equal(stats.pool[1].n_free, stats.pool[1].n);
}

/* Saved, and read by an engine that has computed nothing: the same bits from the cache as without it. What is damaged or foreign is refused. */
static void saved_cache(void **state)
{
    (void)state;
    for (int model = 0; model < 2; model++) {
        char path[256], broken[256];
        snprintf(path, sizeof(path), "%s", tiny_path("pages.bin"));
        snprintf(broken, sizeof(broken), "%s", tiny_path("broken.bin"));
        answer *first = invent(V, MAX_PROMPT), *again = invent(V, MAX_PROMPT);
        octe_engine *e = open_one(model, "int8_rotated", true, 0, NULL);
        octe_runner *r = open_runner(e);
        for (uint32_t i = 0; i < n_requests; i++) {
            submit(r, &first[i]);
            while (run_step(r) > 0) {
            }
        }
        uint64_t n_saved, n_restored;
        oct_error error = OCT_ERROR_INIT;
        if (octe_runner_save(r, path, &n_saved, &error) != OCT_OK) {
            fail_msg("%s", error.text);
        }
        assert_true(n_saved > 0);
        octe_runner_close(r);
        octe_engine_close(e);

        e = open_one(model, "int8_rotated", true, 0, NULL);
        r = open_runner(e);
        unsigned char *bytes;
        const size_t n = load(path, &bytes);
        for (size_t at = 0; at < n; at += at < 100 ? 1 : n / 50 + 1) {
            bytes[at] ^= 0x10;
            store(broken, bytes, n);
            refused_file(r, broken);
            bytes[at] ^= 0x10;
            store(broken, bytes, at);
            refused_file(r, broken);
        }
        assert_int_equal(octe_runner_restore(r, tiny_path("nowhere.bin"), &n_restored, NULL), OCT_IO_ERROR);
        if (octe_runner_restore(r, path, &n_restored, &error) != OCT_OK) {
            fail_msg("%s", error.text);
        }
        assert_int_equal(n_restored, n_saved);
        assert_int_equal(octe_runner_restore(r, path, &n_restored, NULL), OCT_OK);   /* all of it is there */
        assert_int_equal(n_restored, 0);
        uint32_t n_cached = 0;
        for (uint32_t i = 0; i < n_requests; i++) {
            submit(r, &again[i]);
            while (run_step(r) > 0) {
            }
            compare(&again[i], &first[i], true, "int8_rotated", i);
            n_cached += again[i].n_cached;
        }
        assert_true(n_cached >= 64 * n_requests / 2);
        octe_runner_close(r);
        octe_engine_close(e);

        /* Another format, mode or model. */
        for (int k = 0; k < 3; k++) {
            e = open_one(k == 2 ? 1 - model : model, k == 0 ? "fp8" : "int8_rotated", k != 1, 0, NULL);
            r = open_runner(e);
            refused_file(r, path);
            octe_runner_close(r);
            octe_engine_close(e);
        }
        free(bytes);
        discard(first);
        discard(again);
    }
}

/* An engine has one page accounting. */
static void refusals(void **state)
{
    (void)state;
    octe_engine_options o = options("fp8");
    octe_engine *e = open_engine(LLAMA, &o);
    int32_t *tokens = some_tokens(20, 1);
    int32_t pages[2] = {0, 1};
    octe_paged_part p = {.tokens = tokens, .n_tokens = 20, .n_logits = 1, .pages = {pages, NULL}};
    const float *logits;
    oct_error error = OCT_ERROR_INIT;
    assert_int_equal(octe_engine_step_paged(e, &p, 1, &logits, NULL), OCT_OK);
    pages[1] = 100000;
    assert_int_equal(octe_engine_step_paged(e, &p, 1, &logits, &error), OCT_INVALID_ARGUMENT);
    assert_non_null(strstr(error.text, "page 1 of the full pool is 100000"));
    pages[1] = OCT_PAGE_NONE;
    assert_int_equal(octe_engine_step_paged(e, &p, 1, &logits, NULL), OCT_INVALID_ARGUMENT);
    pages[1] = 1;
    p.n_past = CONTEXT - 19;
    assert_int_equal(octe_engine_step_paged(e, &p, 1, &logits, NULL), OCT_INVALID_ARGUMENT);
    p = (octe_paged_part){.tokens = tokens, .n_tokens = 1, .n_past = 17, .n_logits = 1, .pages = {pages, NULL}};
    pages[0] = OCT_PAGE_NONE;   /* read, and not behind any window */
    assert_int_equal(octe_engine_step_paged(e, &p, 1, &logits, NULL), OCT_INVALID_ARGUMENT);
    pages[0] = 0;
    tokens[0] = V;
    assert_int_equal(octe_engine_step_paged(e, &p, 1, &logits, NULL), OCT_INVALID_ARGUMENT);
    tokens[0] = 1;
    assert_int_equal(octe_engine_copy_page(e, OCTE_POOL_FULL, 0, 1, NULL), OCT_OK);
    assert_int_equal(octe_engine_copy_page(e, OCTE_POOL_FULL, 0, 1000000, NULL), OCT_INVALID_ARGUMENT);
    assert_int_equal(octe_engine_copy_page(e, 2, 0, 1, NULL), OCT_INVALID_ARGUMENT);
    assert_int_equal(octe_engine_prefill(e, 0, tokens, 3, NULL, NULL), OCT_OK);
    assert_int_equal(octe_engine_step_paged(e, &p, 1, &logits, &error), OCT_INVALID_ARGUMENT);
    assert_non_null(strstr(error.text, "own sequences"));
    octe_engine_close(e);
    o.max_step_logits = 5;
    e = open_engine(LLAMA, &o);
    octe_runner *r;
    assert_int_equal(octe_runner_open(e, &(octe_runner_options){0}, &r, &error), OCT_INVALID_ARGUMENT);
    assert_null(r);
    octe_engine_close(e);
    free(tokens);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(deterministic_bits),
        cmocka_unit_test(free_answers),
        cmocka_unit_test(saved_cache),
        cmocka_unit_test(refusals),
    };
    const struct CMUnitTest files[] = {cmocka_unit_test(of_file)};
    if (argc > 1) {
        FILE *there = fopen(argv[1], "rb");
        if (there == NULL) {
            printf("%s is missing: tools/setup/models.sh fetches it\n", argv[1]);
            return 77;
        }
        (void)fclose(there);
        file = argv[1];
        n_requests = 4;
        n_new = 4;
        return cmocka_run_group_tests(files, NULL, NULL);
    }
    return cmocka_run_group_tests(tests, open_models, close_models);
}
