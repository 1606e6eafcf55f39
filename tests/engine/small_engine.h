/* Two small models, engines on them and the truth of a solo run: what the tests of steps and of limits share. One thread. */
#ifndef TEST_SMALL_ENGINE_H
#define TEST_SMALL_ENGINE_H

#include <stdbool.h>

#include "engine/compare_logits.h"
#include "engine/engine_state.h"
#include "engine/tiny_model.h"

enum { V = TINY_VOCAB, CONTEXT = 200, ROWS = 64 };
enum { LLAMA, GEMMA };   /* GEMMA has windows of 24 in six of seven layers */

extern octe_model *models[2];
int open_models(void **state);    /* group set-up and tear-down */
int close_models(void **state);

int32_t *some_tokens(uint32_t n, uint32_t seed);   /* free() them */

/* One thread, six sequences of CONTEXT tokens, steps of ROWS with logits; kv as in octe_kv_config_from_name. */
octe_engine_options options(const char *kv);
octe_engine *open_engine(int model, const octe_engine_options *o);

/* A step that must succeed; its logits. */
const float *step(octe_engine *e, const octe_part *parts, uint32_t n);

/* Logits after each of the n tokens, alone and one chunk at a time: [n][V]; free() them. */
float *solo(int model, const char *kv, const int32_t *tokens, uint32_t n);

/* Whether engines choose among all rows of attention, or only among those that compute in f32 (the beginning); set-ups of a test. */
extern bool free_choice;
int choose_freely(void **state);
int choose_f32(void **state);

/* Fails the test unless the row is that of a solo run, within what a cache of this kind allows. */
void same(const char *kv, const float *logits, const float *solo_row);

#endif
