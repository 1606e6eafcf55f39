/* conclude.h: owns what is concluded from an evaluation's raw data: means, intervals, tests, the worst tokens. Pure; the same for the same data. */
#ifndef APP_EVAL_CONCLUDE_H
#define APP_EVAL_CONCLUDE_H

#include "apps/eval/result.h"

/* The first n_done of its tokens; fills every format's quality but for saturated and the texts of worst tokens. OUT_OF_MEMORY. */
oct_status eval_text_conclude(eval_text *text, uint32_t n_formats, uint64_t seed, oct_error *error);

/* The floor from a text's noise, and what each format's KL is beyond it, token by token. */
oct_status eval_floor_conclude(eval_floor *floor, const eval_text *text, uint32_t n_formats, uint64_t seed, oct_error *error);

void eval_greedy_conclude(eval_greedy *greedy, uint32_t n_formats);

/* Verdicts and cells, from items that every format has answered; p_holm and distinguishable wait for eval_pass_conclude. OUT_OF_MEMORY. */
oct_status eval_task_conclude(eval_task *task, uint32_t n_formats, uint64_t seed, oct_error *error);

/* All of the above, and Holm's correction over the tasks. */
oct_status eval_pass_conclude(eval_pass *pass, uint32_t n_formats, uint64_t seed, oct_error *error);

#endif
