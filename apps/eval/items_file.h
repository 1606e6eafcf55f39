/* items_file.h: owns the file that says what a model was asked: every item of every task as text and as the very tokens, a line of JSON each. Pure but for its memory. */
#ifndef APP_EVAL_ITEMS_FILE_H
#define APP_EVAL_ITEMS_FILE_H

#include "apps/eval/questions.h"

/* Adds a task's items: {"task", "id", "scoring": "choose|recite|generate", "context": {"text", "tokens"}, "choices": [{"text", "tokens", "characters"}], "right",
 * "expected"}. choices is empty where an answer is generated, right then null; expected is null elsewhere. Tokens that are no UTF-8 alone are U+FFFD in texts. */
void eval_items_file_add(const eval_task_kind *kind, const eval_questions *questions, const octe_vocab *vocab, app_text *text);

#endif
