/* result_shape.c: see result_shape.h. */
#include "apps/eval/result_shape.h"

#include <string.h>

#define AT(type, field) offsetof(type, field)
#define PLAIN(type, kind, field) { #field, kind, AT(type, field), sizeof(((type *)0)->field), NULL, EVAL_OWN, 0, false }
#define RECORD(type, field, shape) { #field, EVAL_RECORD, AT(type, field), 0, &(shape), EVAL_OWN, 0, false }
#define INLINE(type, field, shape, capacity, n) { #field, EVAL_RECORDS, AT(type, field), capacity, &(shape), EVAL_OWN, AT(type, n), false }
#define HEAP(type, field, shape, count, n) { #field, EVAL_RECORDS, AT(type, field), 0, &(shape), count, n, false }
#define SHAPE(id, type, is_tuple) static const eval_shape id = { #id, sizeof(type), is_tuple, id##_fields, sizeof(id##_fields) / sizeof(id##_fields[0]) }

static const eval_field provenance_fields[] = {
    PLAIN(eval_provenance, EVAL_CHARS, octavo),
    PLAIN(eval_provenance, EVAL_CHARS, model_file),
    PLAIN(eval_provenance, EVAL_CHARS, model_name),
    PLAIN(eval_provenance, EVAL_CHARS, architecture),
    PLAIN(eval_provenance, EVAL_CHARS, model_sum),
    PLAIN(eval_provenance, EVAL_U32, n_layers),
    PLAIN(eval_provenance, EVAL_U32, n_layers_window),
    PLAIN(eval_provenance, EVAL_U32, n_heads),
    PLAIN(eval_provenance, EVAL_U32, n_heads_kv),
    PLAIN(eval_provenance, EVAL_U32, head_dim),
    PLAIN(eval_provenance, EVAL_U32, n_vocab),
    PLAIN(eval_provenance, EVAL_U32, n_ctx_train),
    PLAIN(eval_provenance, EVAL_U32, window_tokens),
    PLAIN(eval_provenance, EVAL_CHARS, cpu),
    PLAIN(eval_provenance, EVAL_U32, n_threads),
    PLAIN(eval_provenance, EVAL_CHARS, began),
    PLAIN(eval_provenance, EVAL_TEXT, command),
    PLAIN(eval_provenance, EVAL_U64, seed),
    PLAIN(eval_provenance, EVAL_U32, n_resumed),
    PLAIN(eval_provenance, EVAL_F64, seconds),
};
SHAPE(provenance, eval_provenance, false);

static const eval_field format_fields[] = {
    PLAIN(eval_format, EVAL_CHARS, name),
    PLAIN(eval_format, EVAL_CHARS, label),
    PLAIN(eval_format, EVAL_U64, kv_bytes_per_token),
};
SHAPE(format, eval_format, false);

/* ---- token level ---- */

static const eval_field token_fields[] = {
    PLAIN(eval_token, EVAL_F64, nll),
    PLAIN(eval_token, EVAL_F64, kl),
    PLAIN(eval_token, EVAL_F64, reverse_kl),
    PLAIN(eval_token, EVAL_I32, top),
};
SHAPE(token, eval_token, true);

static const eval_field spread_fields[] = {
    PLAIN(eval_spread, EVAL_F64, mean),
    PLAIN(eval_spread, EVAL_RANGE, mean_interval),
    PLAIN(eval_spread, EVAL_F64, p50),
    PLAIN(eval_spread, EVAL_F64, p90),
    PLAIN(eval_spread, EVAL_F64, p99),
    PLAIN(eval_spread, EVAL_F64, max),
};
SHAPE(spread, eval_spread, false);

static const eval_field position_fields[] = {
    PLAIN(eval_position, EVAL_U32, first),
    PLAIN(eval_position, EVAL_U32, last),
    PLAIN(eval_position, EVAL_U64, n_tokens),
    PLAIN(eval_position, EVAL_F64, kl),
    PLAIN(eval_position, EVAL_F64, kl_stderr),
    PLAIN(eval_position, EVAL_F64, nll_change),
    PLAIN(eval_position, EVAL_F64, nll_change_stderr),
    PLAIN(eval_position, EVAL_F64, same_top),
};
SHAPE(position, eval_position, false);

static const eval_field worst_token_fields[] = {
    PLAIN(eval_worst, EVAL_U32, index),
    PLAIN(eval_worst, EVAL_U32, position),
    PLAIN(eval_worst, EVAL_TEXT, before),
    PLAIN(eval_worst, EVAL_TEXT, token),
    PLAIN(eval_worst, EVAL_TEXT, base_top),
    PLAIN(eval_worst, EVAL_TEXT, top),
    PLAIN(eval_worst, EVAL_F64, kl),
    PLAIN(eval_worst, EVAL_F64, base_p),
    PLAIN(eval_worst, EVAL_F64, p),
};
SHAPE(worst_token, eval_worst, false);

static const eval_field quality_fields[] = {
    PLAIN(eval_quality, EVAL_F64, ppl),
    PLAIN(eval_quality, EVAL_F64, ppl_stderr),
    PLAIN(eval_quality, EVAL_F64, ppl_ratio),
    PLAIN(eval_quality, EVAL_RANGE, ppl_ratio_interval),
    RECORD(eval_quality, kl, spread),
    RECORD(eval_quality, reverse_kl, spread),
    PLAIN(eval_quality, EVAL_F64, beyond_floor),
    PLAIN(eval_quality, EVAL_RANGE, beyond_floor_interval),
    PLAIN(eval_quality, EVAL_F64, same_top),
    PLAIN(eval_quality, EVAL_RANGE, same_top_interval),
    PLAIN(eval_quality, EVAL_F64, moved),
    PLAIN(eval_quality, EVAL_F64, moved_p99),
    PLAIN(eval_quality, EVAL_F64, moved_max),
    PLAIN(eval_quality, EVAL_F64, moved_signed),
    PLAIN(eval_quality, EVAL_I64, saturated),
    INLINE(eval_quality, positions, position, EVAL_MAX_POSITIONS, n_positions),
    INLINE(eval_quality, worst, worst_token, EVAL_N_WORST, n_worst),
};
SHAPE(quality, eval_quality, false);

static const eval_field text_fields[] = {
    PLAIN(eval_text, EVAL_TEXT, name),
    PLAIN(eval_text, EVAL_U64, n_tokens),
    PLAIN(eval_text, EVAL_U32, chunk_tokens),
    PLAIN(eval_text, EVAL_U64, n_done),
    HEAP(eval_text, quality, quality, EVAL_BY_FORMAT, 0),
    { "tokens", EVAL_RECORDS, AT(eval_text, tokens), 0, &token, EVAL_GRID_64, AT(eval_text, n_tokens), true },
    { "noise", EVAL_RECORDS, AT(eval_text, noise), 0, &token, EVAL_LIKE_64, AT(eval_text, n_tokens), true },
    { "positions", EVAL_NUMBERS, AT(eval_text, positions), 0, NULL, EVAL_LIKE_64, AT(eval_text, n_tokens), true },
};
SHAPE(text, eval_text, false);

static const eval_field greedy_summary_fields[] = {
    PLAIN(struct eval_greedy_summary, EVAL_F64, median),
    PLAIN(struct eval_greedy_summary, EVAL_U32, n_same),
};
SHAPE(greedy_summary, struct eval_greedy_summary, false);

static const eval_field greedy_fields[] = {
    PLAIN(eval_greedy, EVAL_U32, n_prompts),
    PLAIN(eval_greedy, EVAL_U32, n_tokens),
    PLAIN(eval_greedy, EVAL_U32, n_done),
    { "first_different", EVAL_NUMBERS, AT(eval_greedy, first_different), 0, NULL, EVAL_GRID, AT(eval_greedy, n_prompts), false },
    HEAP(eval_greedy, summary, greedy_summary, EVAL_BY_FORMAT, 0),
};
SHAPE(greedy, eval_greedy, false);

/* ---- tasks ---- */

static const eval_field item_fields[] = {
    PLAIN(eval_item, EVAL_TEXT, id),
    PLAIN(eval_item, EVAL_U32, n_context_tokens),
    PLAIN(eval_item, EVAL_U32, length_tokens),
    PLAIN(eval_item, EVAL_F64, depth),
    PLAIN(eval_item, EVAL_U32, n_choices),
};
SHAPE(item, eval_item, false);

static const eval_field answer_fields[] = {
    PLAIN(eval_answer, EVAL_I8, correct),
    PLAIN(eval_answer, EVAL_I32, choice),
    PLAIN(eval_answer, EVAL_F64, score),
    PLAIN(eval_answer, EVAL_TEXT, said),
};
SHAPE(answer, eval_answer, false);

static const eval_field verdict_fields[] = {
    PLAIN(eval_verdict, EVAL_U32, n_correct),
    PLAIN(eval_verdict, EVAL_F64, accuracy),
    PLAIN(eval_verdict, EVAL_RANGE, accuracy_interval),
    PLAIN(eval_verdict, EVAL_F64, difference),
    PLAIN(eval_verdict, EVAL_RANGE, difference_interval),
    PLAIN(eval_verdict, EVAL_U32, n_lost),
    PLAIN(eval_verdict, EVAL_U32, n_won),
    PLAIN(eval_verdict, EVAL_U32, n_same),
    PLAIN(eval_verdict, EVAL_F64, p_value),
    PLAIN(eval_verdict, EVAL_F64, p_holm),
    PLAIN(eval_verdict, EVAL_BOOL, distinguishable),
    PLAIN(eval_verdict, EVAL_F64, score_change),
    PLAIN(eval_verdict, EVAL_RANGE, score_change_interval),
    PLAIN(eval_verdict, EVAL_U32, n_unscored),
};
SHAPE(verdict, eval_verdict, false);

static const eval_field cell_fields[] = {
    PLAIN(eval_cell, EVAL_U32, length_tokens),
    PLAIN(eval_cell, EVAL_F64, depth),
    PLAIN(eval_cell, EVAL_U32, n_items),
    { "n_correct", EVAL_NUMBERS, AT(eval_cell, n_correct), EVAL_MAX_FORMATS, NULL, EVAL_BY_FORMAT, 0, false },
};
SHAPE(cell, eval_cell, false);

static const eval_field task_fields[] = {
    PLAIN(eval_task, EVAL_CHARS, name),
    PLAIN(eval_task, EVAL_CHARS, title),
    PLAIN(eval_task, EVAL_CHARS, how),
    PLAIN(eval_task, EVAL_CHARS, source),
    PLAIN(eval_task, EVAL_F64, chance),
    PLAIN(eval_task, EVAL_TEXT, skipped),
    HEAP(eval_task, items, item, EVAL_OWN, AT(eval_task, n_items)),
    { "n_done", EVAL_NUMBERS, AT(eval_task, n_done), EVAL_MAX_FORMATS, NULL, EVAL_BY_FORMAT, 0, false },
    HEAP(eval_task, verdicts, verdict, EVAL_BY_FORMAT, 0),
    HEAP(eval_task, cells, cell, EVAL_OWN, AT(eval_task, n_cells)),
    HEAP(eval_task, answers, answer, EVAL_GRID, AT(eval_task, n_items)),
};
SHAPE(task, eval_task, false);

/* ---- the whole ---- */

static const eval_field noise_fields[] = {
    PLAIN(eval_floor, EVAL_BOOL, measured),
    PLAIN(eval_floor, EVAL_CHARS, how),
    PLAIN(eval_floor, EVAL_F64, kl),
    PLAIN(eval_floor, EVAL_F64, kl_p99),
    PLAIN(eval_floor, EVAL_F64, same_top),
};
SHAPE(noise, eval_floor, false);

static const eval_field pass_fields[] = {
    PLAIN(eval_pass, EVAL_BOOL, is_f32),
    RECORD(eval_pass, floor, noise),
    INLINE(eval_pass, texts, text, EVAL_MAX_TEXTS, n_texts),
    RECORD(eval_pass, greedy, greedy),
    INLINE(eval_pass, tasks, task, EVAL_MAX_TASKS, n_tasks),
    PLAIN(eval_pass, EVAL_INSIDE, inside),
};
SHAPE(pass, eval_pass, false);

static const eval_field result_fields[] = {
    PLAIN(eval_result, EVAL_BOOL, complete),
    RECORD(eval_result, provenance, provenance),
    INLINE(eval_result, formats, format, EVAL_MAX_FORMATS, n_formats),
    INLINE(eval_result, passes, pass, EVAL_MAX_PASSES, n_passes),
};
const eval_shape eval_result_shape = { "result", sizeof(eval_result), false, result_fields, sizeof(result_fields) / sizeof(result_fields[0]) };

static uint64_t number_at(const void *record, size_t offset, bool is_64)
{
    uint64_t number = 0;
    uint32_t small;
    if (is_64) {
        memcpy(&number, (const char *)record + offset, sizeof(number));
        return number;
    }
    memcpy(&small, (const char *)record + offset, sizeof(small));
    return small;
}

uint64_t eval_field_count(const eval_field *field, const void *record, const eval_result *result)
{
    switch (field->count) {
    case EVAL_OWN: return number_at(record, field->n_offset, false);
    case EVAL_BY_FORMAT: return result->n_formats;
    case EVAL_GRID: return result->n_formats * number_at(record, field->n_offset, false);
    case EVAL_GRID_64: return result->n_formats * number_at(record, field->n_offset, true);
    case EVAL_LIKE_64: break;
    }
    return number_at(record, field->n_offset, true);
}
