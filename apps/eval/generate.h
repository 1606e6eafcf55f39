/* generate.h: owns tasks whose answers are generated greedily, a group of questions at a time. Single-threaded. */
#ifndef APP_EVAL_GENERATE_H
#define APP_EVAL_GENERATE_H

#include "apps/eval/questions.h"
#include "apps/eval/run.h"

/* answers: of this format; questions from *n_done on are answered, each group kept. CANCELLED after Ctrl-C. */
oct_status eval_generate_run(const eval_run *run, uint32_t format, const eval_questions *questions, uint32_t generate_tokens, eval_answer *answers, uint32_t *n_done,
                             oct_error *error);

#endif
