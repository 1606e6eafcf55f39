/* inside_rig.h: owns what the tests of what happens inside a model share: two tiny models, their scales, a measurement of one and its findings by name. One thread a test
 * program; what fails, fails the test. */
#ifndef TEST_INSIDE_RIG_H
#define TEST_INSIDE_RIG_H

#include "apps/eval/inside.h"
#include "engine/calibrate.h"

/* FAULTY, FAULTY_HEAD: the layer and KV head where faults are planted. */
enum { N_TOKENS = 90, FAULTY = 3, FAULTY_HEAD = 1 };

extern octe_model *llama, *gemma;   /* 6 layers of 2 KV heads of 32; 7 layers of one, windows of 24 in six */
extern octe_scales scales[2];       /* plain, by model */

/* cmocka's set-up and tear-down of a group. */
int rig_set_up(void **state);
int rig_tear_down(void **state);

eval_inside_wanted wanted_of(const octe_model *model, uint32_t index, const char *name, bool sensitivity);   /* name: "i8+rot/e4m3:layer" */
eval_inside_options options_of(const octe_model *model);
eval_inside *measure(const eval_inside_options *o, const eval_inside_wanted *wanted, uint32_t n);
void print_findings(const eval_inside *in);

/* That one layer simply costs more than the others, as the first of such a random model does. */
bool is_cost(const eval_inside *in, uint32_t i);
uint32_t faults(const eval_inside *in);   /* findings that are not such */

/* The finding of a layer and part whose text has these words, in Markdown as well. */
void named(const eval_inside *in, uint32_t layer, uint32_t part, int32_t head, const char *words);

/* The base f16 and a format, whose engines `open` opens with a fault. NULL: without. */
typedef oct_status opener(const octe_model *model, const octe_engine_options *options, octe_engine **engine, oct_error *error);
eval_inside *plant(octe_model *model, const char *format, opener *open);

#endif
