/* answer.h: owns how a task's items are put to a model: many at once through the paged engine, with what their texts share computed once. Single-threaded. */
#ifndef APP_EVAL_ANSWER_H
#define APP_EVAL_ANSWER_H

#include "apps/eval/questions.h"
#include "apps/eval/run.h"

/* Makes room in *task for the questions of a kind. */
oct_status eval_task_prepare(eval_task *task, const eval_task_kind *kind, const eval_questions *questions, uint32_t n_formats, oct_error *error);

/* Rows that the items of one format take, from the first undone on. */
double eval_task_work(const eval_task_kind *kind, const eval_questions *questions, uint32_t n_done, uint32_t generate_tokens);

/* Has a format answer what it has not answered yet, in groups whose make-up depends on the questions alone, so that a continued run computes what an
 * uninterrupted one does; each group is kept. CANCELLED after Ctrl-C. */
oct_status eval_task_run(const eval_run *run, uint32_t format, const eval_task_kind *kind, const eval_questions *questions, uint32_t generate_tokens, eval_task *task,
                         oct_error *error);

#endif
