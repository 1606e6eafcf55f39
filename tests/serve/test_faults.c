/* Public faults of serving whose cause lies in the engine's half, by name: H1, H4, H5. An argument runs one of them alone; `ctest -R fault_H4` finds it. */
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
#include "serve/fake_pool.h"
#include "serve/named_test.h"

enum { MOST_PROMPT = 320, MOST_NEW = 200 };

typedef struct talk {
    uint64_t id;
    uint32_t n_prompt, n_new, n, n_cached;
    int32_t prompt[MOST_PROMPT], token[MOST_NEW];
    int32_t priority;
    bool over;
} talk;

/* Each token comes once and in its place: a gap or a second one would shift all that follow. */
static bool take(void *context, const octe_scheduled *part, const float *logits, int32_t *token)
{
    (void)context;
    talk *t = part->user;
    assert_int_equal(t->id, part->id);
    assert_true(t->n < t->n_new);
    *token = (int32_t)logits_argmax(logits, V);
    t->token[t->n++] = *token;
    t->n_cached = part->n_cached;
    t->over = t->n == t->n_new;
    return false;
}

static void submit(octe_runner *r, talk *t)
{
    const octe_request_spec q = {.prompt = t->prompt, .n_prompt = t->n_prompt, .max_new_tokens = t->n_new, .priority = t->priority, .user = t};
    oct_error error = OCT_ERROR_INIT;
    t->n = 0;
    t->over = false;
    if (octe_scheduler_add(octe_runner_scheduler(r), &q, &t->id, &error) != OCT_OK) {
        fail_msg("%s", error.text);
    }
}

static bool run_step(octe_runner *r)
{
    uint32_t n_rows;
    oct_error error = OCT_ERROR_INIT;
    if (octe_runner_step(r, take, NULL, NULL, &n_rows, &error) != OCT_OK) {
        fail_msg("%s", error.text);
    }
    return n_rows > 0;
}

/* Deterministic, chunks of 64, a cache in 8 bits. */
static octe_engine *open_deterministic(int model, uint32_t n_sequences, uint32_t context, int64_t pool_tokens)
{
    octe_engine_options o = options(model == LLAMA ? "fp8" : "int8_rotated");
    o.deterministic = true;
    o.deny_variant = NULL;
    o.max_context_tokens = context;
    o.max_sequences = n_sequences;
    o.max_step_rows = 64 + n_sequences;
    o.pool_tokens = pool_tokens;
    return open_engine(model, &o);
}

static octe_runner *open_runner(octe_engine *e, bool cache, uint64_t swap_bytes)
{
    octe_runner *r;
    oct_error error = OCT_ERROR_INIT;
    const octe_runner_options o = {.chunk_tokens = 64, .no_prefix_cache = !cache, .swap_bytes = swap_bytes};
    if (octe_runner_open(e, &o, &r, &error) != OCT_OK) {
        fail_msg("%s", error.text);
    }
    return r;
}

static void run_alone(octe_engine *e, talk *t)
{
    octe_runner *r = open_runner(e, false, 0);
    submit(r, t);
    while (run_step(r)) {
    }
    assert_true(t->over);
    octe_runner_close(r);
}

static void say(talk *t, uint32_t n_prompt, uint32_t n_new, uint32_t seed)
{
    int32_t *tokens = some_tokens(n_prompt, seed);
    *t = (talk){.n_prompt = n_prompt, .n_new = n_new};
    memcpy(t->prompt, tokens, n_prompt * sizeof(*tokens));
    free(tokens);
}

/* ---- H1: a cached beginning and a new chunk equal one prefill over the same pages of 8 bits ----------------------------- */

static void prefill_in(octe_engine *e, const int32_t *tokens, const uint32_t *chunks, uint32_t n_chunks, float *last)
{
    uint32_t done = 0;
    const float *logits = NULL;
    for (uint32_t i = 0; i < n_chunks; i++) {
        const octe_part part = {0, chunks[i], tokens + done, 1};
        logits = step(e, &part, 1);
        done += chunks[i];
    }
    memcpy(last, logits, V * sizeof(*last));
    assert_int_equal(octe_engine_free(e, 0, NULL), OCT_OK);
}

static void fault_H1(void **state)
{
    (void)state;
    enum { N = 1000 };
    static const char *const caches[] = {"fp8", "int8_rotated"};
    uint32_t single[21] = {[20] = N - 20}, halves[] = {512, 488}, pages[] = {16 * 62, 8}, whole[] = {N};
    for (int i = 0; i < 20; i++) {
        single[i] = 1;
    }
    int32_t *tokens = some_tokens(N, 3880);
    for (int model = 0; model < 2; model++) {
        octe_model *long_model, *const short_model = models[model];
        tiny_model m;
        oct_error error = OCT_ERROR_INIT;
        assert_true(tiny_model_at(model == LLAMA ? 0 : 5, &m));
        m.n_ctx = N;
        tiny_model_write(&m, tiny_path("long.gguf"));
        if (octe_model_open(tiny_path("long.gguf"), NULL, &long_model, &error) != OCT_OK) {
            fail_msg("%s", error.text);
        }
        models[model] = long_model;
        for (int c = 0; c < 2; c++) {
            octe_engine_options o = options(caches[c]);
            o.max_context_tokens = N;
            o.max_step_rows = N;
            o.max_step_logits = 8;
            octe_engine *e = open_engine(model, &o);
            float truth[V], logits[V];
            prefill_in(e, tokens, whole, 1, truth);
            prefill_in(e, tokens, halves, 2, logits);
            same(caches[c], logits, truth);
            assert_int_equal(logits_argmax(logits, V), logits_argmax(truth, V));
            prefill_in(e, tokens, pages, 2, logits);
            same(caches[c], logits, truth);
            assert_int_equal(logits_argmax(logits, V), logits_argmax(truth, V));
            prefill_in(e, tokens, single, 21, logits);
            same(caches[c], logits, truth);
            assert_int_equal(logits_argmax(logits, V), logits_argmax(truth, V));
            octe_engine_close(e);
        }
        models[model] = short_model;
        octe_model_close(long_model);
        /* Greedy, with the beginning from the cache and without. */
        octe_engine *e = open_deterministic(model, 7, 512, 0);
        talk first, second, alone;
        say(&first, 250, 4, 1);
        say(&second, 250, 64, 1);
        second.prompt[220] ^= 1;
        alone = second;
        run_alone(e, &alone);
        octe_runner *r = open_runner(e, true, 0);
        submit(r, &first);
        while (run_step(r)) {
        }
        submit(r, &second);
        while (run_step(r)) {
        }
        assert_int_equal(second.n_cached, 192);
        assert_memory_equal(second.token, alone.token, sizeof(alone.token));
        octe_runner_close(r);
        octe_engine_close(e);
    }
    free(tokens);
}

/* ---- H4: pages with living references are never handed out ---------------------------------------------------------------- */

static void fault_H4(void **state)
{
    (void)state;
    enum { CLIENTS = 16, SHARING = 4, TEXTS = 3, REQUESTS = 500, PAGES = 64 };
    for (int model = 0; model < 2; model++) {
        talk *alone = calloc(CLIENTS * TEXTS, sizeof(*alone)), *now = calloc(CLIENTS, sizeof(*now));
        octe_engine *e = open_deterministic(model, 7, CONTEXT, 0);
        for (uint32_t i = 0; i < CLIENTS * TEXTS; i++) {
            const uint32_t client = i / TEXTS;
            /* Answers grow by more than the page that admission keeps for each, so that some must make room. */
            say(&alone[i], 70 + i * 29 % 70, 36 + i % 11, 100 + i);
            if (client < SHARING) {
                talk shared;
                say(&shared, 64, 1, 99);
                memcpy(alone[i].prompt, shared.prompt, 64 * sizeof(int32_t));
            }
            run_alone(e, &alone[i]);
        }
        octe_engine_close(e);
        e = open_deterministic(model, CLIENTS, CONTEXT, PAGES * 16);
        octe_runner *r = open_runner(e, true, model == GEMMA ? 1 << 20 : 0);
        fake_pool all = {.scheduler = octe_runner_scheduler(r)};
        uint32_t n_asked = 0, n_done = 0, which[CLIENTS];
        for (uint32_t c = 0; c < CLIENTS; c++) {
            now[c].over = true;
        }
        while (n_done < REQUESTS) {
            for (uint32_t c = 0; c < CLIENTS && n_asked < REQUESTS; c++) {
                if (now[c].over) {
                    which[c] = c * TEXTS + n_asked++ * 7 % TEXTS;
                    now[c] = alone[which[c]];
                    submit(r, &now[c]);
                }
            }
            assert_true(run_step(r));
            fake_count_up(&all);   /* held pages are in no list of free or cached ones, and all lists add up to the pool */
            for (uint32_t c = 0; c < CLIENTS; c++) {
                if (now[c].over && now[c].n > 0) {
                    assert_memory_equal(now[c].token, alone[which[c]].token, now[c].n_new * sizeof(int32_t));
                    now[c].n = 0;
                    n_done++;
                }
            }
        }
        octe_scheduler_stats stats;
        octe_scheduler_stats_get(all.scheduler, &stats);
        assert_true(stats.pool[0].n_evicted > 0 && stats.n_cached_tokens > 0 && stats.n_preempted > 0);
        assert_int_equal(stats.n_swapped_in > 0, model == GEMMA);
        print_message("H4: %u requests, %llu steps, %llu preempted, %llu swapped in, %llu pages evicted\n", n_done, (unsigned long long)stats.n_steps, (unsigned long long)stats.n_preempted,
                      (unsigned long long)stats.n_swapped_in, (unsigned long long)stats.pool[0].n_evicted);
        octe_runner_close(r);
        octe_engine_close(e);
        free(alone);
        free(now);
    }
}

/* ---- H5: who was preempted goes on with its whole text ------------------------------------------------------------------------- */

static uint64_t preempted(octe_runner *r)
{
    octe_scheduler_stats stats;
    octe_scheduler_stats_get(octe_runner_scheduler(r), &stats);
    return stats.n_preempted;
}

/* Somebody more urgent comes when `at` tokens of the long answer are there, and again `at` tokens later. */
static void preempt_at(octe_engine *e, const talk *alone, uint32_t at, bool cache, uint64_t swap_bytes)
{
    octe_runner *r = open_runner(e, cache, swap_bytes);
    talk slow[3], urgent;
    for (int i = 0; i < 3; i++) {
        slow[i] = alone[i];
        submit(r, &slow[i]);
    }
    uint64_t before = 0;
    for (uint32_t round = 1; round <= 2; round++) {
        assert_true(run_step(r));   /* at 0: in the middle of its prompt */
        while (slow[0].n < round * at) {
            assert_true(run_step(r));
        }
        say(&urgent, MOST_PROMPT - 1, 2, 5 + round);
        urgent.priority = -1;
        submit(r, &urgent);
        while (!urgent.over) {
            assert_true(run_step(r));
        }
        assert_true(preempted(r) > before);
        before = preempted(r);
    }
    while (run_step(r)) {
    }
    for (int i = 0; i < 3; i++) {
        assert_true(slow[i].over);
        assert_memory_equal(slow[i].token, alone[i].token, sizeof(alone[i].token));
    }
    octe_runner_close(r);
}

static void fault_H5(void **state)
{
    (void)state;
    for (int model = 0; model < 2; model++) {
        talk alone[3];
        octe_engine *e = open_deterministic(model, 7, 512, 0);
        for (uint32_t i = 0; i < 3; i++) {
            say(&alone[i], 70 + 10 * i, MOST_NEW, 40 + i);
            run_alone(e, &alone[i]);
        }
        octe_engine_close(e);
        /* Room for two of three long answers, or for the urgent prompt and little else. */
        e = open_deterministic(model, 7, 24 * 16, 24 * 16);
        static const uint32_t moments[] = {0, 1, 50};
        for (size_t i = 0; i < sizeof(moments) / sizeof(moments[0]); i++) {
            preempt_at(e, alone, moments[i], i % 2 == 0, i == 2 ? 1 << 20 : 0);
        }
        octe_engine_close(e);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(fault_H1), cmocka_unit_test(fault_H4), cmocka_unit_test(fault_H5)};
    if (argc > 1 && !named_test(tests, sizeof(tests) / sizeof(tests[0]), argv[1])) {
        return 1;
    }
    return cmocka_run_group_tests(tests, open_models, close_models);
}
