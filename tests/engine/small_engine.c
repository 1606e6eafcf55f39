/* small_engine.c: see small_engine.h. */
#include "engine/small_engine.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

bool free_choice;

/* The same rows in other company: only the order of additions may differ. ggml's GELU goes through a table of f16, and a cache of few bits
 * turns a last bit into a step of its own now and then; a wrong page, position or scale gives 1e-2 and more. Rows that round q and
 * weights to 16 bits (choose_freely) turn many: 3e-4 was seen where the format itself costs 1e-3. */
/* In f32 an element's last bit may decide between two codes: of FP8 up to an eighth of it apart, of 32 in a row that attention looks at alone 1 - cos is
 * (1/8)^2 / 32 / 2 = 2.4e-4, and a fourth of that for the mean step; of V in 4 bits up to a fifth of its block's largest, (1/5)^2 / 5 / 2 = 4e-3, where 1.3e-4
 * was seen. Which ones do so depends on the compiler's sums and the CPU's rows. */
static double bound(const char *kv)
{
    if (free_choice || strstr(kv, "v4") != NULL) {
        return 1e-3;
    }
    return strcmp(kv, "f32") == 0 || strcmp(kv, "f16") == 0 ? 1e-6 : strncmp(kv, "fp8", 3) == 0 ? 6e-5 : 1e-5;
}

int choose_freely(void **state)
{
    (void)state;
    free_choice = true;
    return 0;
}

int choose_f32(void **state)
{
    (void)state;
    free_choice = false;
    return 0;
}

/* Rows of attention that bring q and weights to 16 or 8 bits: which of them a batch gets depends on its company, and their roundings differ. */
static const char *rows_that_round(void)
{
    static const char *const in_f32[] = {"scalar", "avx2", "avx512"};
    static char names[1024];
    names[0] = '\0';
    for (uint32_t i = 0; oct_variant_name(i) != NULL; i++) {
        const char *name = oct_variant_name(i), *row = strchr(name, '.') + 1;
        bool rounds = strncmp(name, "attn_decode.", 12) == 0 || strncmp(name, "attn_extend.", 12) == 0;
        for (size_t j = 0; j < sizeof(in_f32) / sizeof(in_f32[0]); j++) {
            rounds = rounds && strcmp(row, in_f32[j]) != 0;
        }
        if (rounds) {
            const size_t n = strlen(names);
            assert_true(n + strlen(name) + 2 < sizeof(names));
            snprintf(names + n, sizeof(names) - n, "%s%s", n > 0 ? "," : "", name);
        }
    }
    return names[0] != '\0' ? names : NULL;
}

octe_model *models[2];

int32_t *some_tokens(uint32_t n, uint32_t seed)
{
    int32_t *t = malloc((n > 0 ? n : 1) * sizeof(*t));
    uint32_t x = seed * 2654435761u + 1;
    for (uint32_t i = 0; i < n; i++) {
        x = x * 1664525u + 1013904223u;
        t[i] = (int32_t)((x >> 16) % V);
    }
    return t;
}

octe_engine_options options(const char *kv)
{
    octe_engine_options o;
    octe_engine_options_init(&o);
    assert_int_equal(octe_kv_config_from_name(kv, &o.kv, NULL), OCT_OK);
    o.n_threads = 1;
    o.max_context_tokens = CONTEXT;
    o.max_sequences = 6;
    o.max_step_rows = ROWS;
    o.max_step_logits = ROWS;
    if (!free_choice) {
        o.deny_variant = rows_that_round();
    }
    return o;
}

octe_engine *open_engine(int model, const octe_engine_options *o)
{
    octe_engine *e;
    oct_error error = OCT_ERROR_INIT;
    if (octe_engine_open(models[model], o, &e, &error) != OCT_OK) {
        fail_msg("%s", error.text);
    }
    return e;
}

const float *step(octe_engine *e, const octe_part *parts, uint32_t n)
{
    const float *logits;
    oct_error error = OCT_ERROR_INIT;
    if (octe_engine_step(e, parts, n, &logits, &error) != OCT_OK) {
        fail_msg("%s", error.text);
    }
    return logits;
}

float *solo(int model, const char *kv, const int32_t *tokens, uint32_t n)
{
    const octe_engine_options o = options(kv);
    octe_engine *e = open_engine(model, &o);
    float *all = malloc((size_t)n * V * sizeof(*all));
    for (uint32_t done = 0; done < n;) {
        const uint32_t rows = n - done < ROWS ? n - done : ROWS;
        const octe_part part = {0, rows, tokens + done, rows};
        memcpy(all + (size_t)done * V, step(e, &part, 1), (size_t)rows * V * sizeof(*all));
        done += rows;
    }
    octe_engine_close(e);
    return all;
}

void same(const char *kv, const float *logits, const float *solo_row)
{
    const double d = logits_distance(logits, solo_row, V);
    if (!(d <= bound(kv))) {
        fail_msg("%s: 1 - cos %.2e, top %u and %u", kv, d, logits_argmax(logits, V), logits_argmax(solo_row, V));
    }
}

int open_models(void **state)
{
    (void)state;
    tiny_model m;
    static const uint32_t which[] = {0, 5};
    for (int i = 0; i < 2; i++) {
        oct_error error = OCT_ERROR_INIT;
        assert_true(tiny_model_at(which[i], &m));
        tiny_model_write(&m, tiny_path(i == 0 ? "llama.gguf" : "gemma.gguf"));
        if (octe_model_open(tiny_path(i == 0 ? "llama.gguf" : "gemma.gguf"), NULL, &models[i], &error) != OCT_OK) {
            print_error("%s\n", error.text);
            return -1;
        }
    }
    return 0;
}

int close_models(void **state)
{
    (void)state;
    octe_model_close(models[0]);
    octe_model_close(models[1]);
    tiny_folder_remove();
    return 0;
}
