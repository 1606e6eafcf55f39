/* result.h: owns what an evaluation found, as plain data that its reports render: Markdown (report.c), JSON (result_json.c) and HTML. One thread a result. */
#ifndef APP_EVAL_RESULT_H
#define APP_EVAL_RESULT_H

#include <stdbool.h>
#include <stdint.h>

#include "apps/text.h"
#include "octavo/status.h"

struct eval_inside;   /* apps/eval/inside.h */

enum { EVAL_MAX_FORMATS = 24, EVAL_MAX_PASSES = 2, EVAL_MAX_TEXTS = 16, EVAL_MAX_TASKS = 16, EVAL_N_WORST = 20, EVAL_MAX_POSITIONS = 24, EVAL_BLOCK_TOKENS = 16 };

/* A 95 % interval. NAN where there was nothing to take one of. */
typedef struct eval_interval { double low, high; } eval_interval;

/* A cache that was judged. Formats are numbered as in eval_result.formats; 0 is the base, always a 16-bit cache of ours. */
typedef struct eval_format {
    char name[56];                  /* as typed: "f16", "i8+rot/e4m3" (K/V) */
    char label[56];                 /* for people */
    uint64_t kv_bytes_per_token;    /* all layers, with scales, exact */
} eval_format;

/* ---- token level ------------------------------------------------------------------------------------------------------------ */

/* One judged token under one format; the base's has kl = reverse_kl = 0. Nats. */
typedef struct eval_token {
    double nll;                     /* -ln p(reference token) */
    double kl, reverse_kl;          /* KL(base || this), KL(this || base) */
    int32_t top;                    /* likeliest token */
} eval_token;

typedef struct eval_spread {
    double mean;
    eval_interval mean_interval;    /* bootstrap over blocks of EVAL_BLOCK_TOKENS neighbours */
    double p50, p90, p99, max;
} eval_spread;

/* Tokens whose position in their sequence lies within first .. last, both included; errors are standard errors of the means, over blocks. */
typedef struct eval_position {
    uint32_t first, last;
    uint64_t n_tokens;
    double kl, kl_stderr;
    double nll_change, nll_change_stderr;   /* mean of nll - the base's */
    double same_top;                        /* share, 0 .. 1 */
} eval_position;

/* A token that a format changed most, by KL. Texts are valid UTF-8, malloc'ed. */
typedef struct eval_worst {
    uint32_t index;                 /* of the judged token in the text */
    uint32_t position;              /* in its sequence */
    char *before, *token;           /* what stands before it, its own bytes */
    char *base_top, *top;           /* what the base and the format would have said */
    double kl, base_p, p;           /* p: of the reference token */
} eval_worst;

/* One format on one text. */
typedef struct eval_quality {
    double ppl, ppl_stderr;
    double ppl_ratio;               /* ppl / the base's ppl */
    eval_interval ppl_ratio_interval;
    eval_spread kl, reverse_kl;
    double beyond_floor;            /* mean of KL less the noise's on the same tokens; NAN: none was measured there */
    eval_interval beyond_floor_interval;
    double same_top;                /* share, 0 .. 1 */
    eval_interval same_top_interval;
    double moved, moved_p99, moved_max;   /* |p - base's p| of the reference token: mean, 99th percentile, largest */
    double moved_signed;            /* mean of p - base's p */
    int64_t saturated;              /* values of K and V cut to the format's range; -1: not counted */
    eval_position positions[EVAL_MAX_POSITIONS];
    uint32_t n_positions;
    eval_worst worst[EVAL_N_WORST];
    uint32_t n_worst;
} eval_quality;

typedef struct eval_text {
    char *name;
    uint64_t n_tokens;              /* judged: those that have something before them */
    uint32_t chunk_tokens;          /* longest sequence, with BOS */
    eval_quality *quality;          /* [n_formats] */
    /* While running and in partial results; NULL in a finished report that was read back. [n_formats][n_tokens]; the others [n_tokens] */
    eval_token *tokens;
    eval_token *noise;              /* of llama.cpp's cache of the base's kind, for eval_floor; NULL: not run */
    uint32_t *positions;            /* in their sequences */
    uint64_t n_done;                /* tokens [0, n_done) are judged, for every format */
} eval_text;

/* Greedy continuations of the same prompts: how long a format says what the base says. */
typedef struct eval_greedy {
    uint32_t n_prompts, n_tokens;   /* 0: not run; n_tokens: longest continuation */
    uint32_t *first_different;      /* [n_formats][n_prompts]: index of the first other token; n_tokens: none */
    uint32_t n_done;                /* formats done */
    struct eval_greedy_summary { double median; uint32_t n_same; } *summary;   /* [n_formats]; n_same: whole continuations */
} eval_greedy;

/* ---- tasks ------------------------------------------------------------------------------------------------------------------- */

typedef struct eval_item {
    char *id;
    uint32_t n_context_tokens;      /* of the item's prompt */
    uint32_t length_tokens;         /* generated tasks: the length asked for; else 0 */
    double depth;                   /* where in it the answer lies, 0 .. 1; -1: not such a task */
    uint32_t n_choices;             /* multiple choice; else 0 */
} eval_item;

typedef struct eval_answer {
    int8_t correct;                 /* 0, 1; -1: not yet */
    int32_t choice;                 /* multiple choice: what was chosen; else -1 */
    double score;                   /* nats: log-likelihood of the right answer (multiple choice: minus the best wrong one, per character where the task says so); NAN: none */
    char *said;                     /* generation: what was taken as the answer, valid UTF-8; NULL: nothing, or no such task */
} eval_answer;

/* One format on one task, paired with the base on the same items. */
typedef struct eval_verdict {
    uint32_t n_correct;
    double accuracy;
    eval_interval accuracy_interval;     /* Wilson */
    double difference;                   /* accuracy - the base's */
    eval_interval difference_interval;   /* Agresti-Min, for matched pairs */
    uint32_t n_lost, n_won;              /* items that only the base, only this one got right */
    uint32_t n_same;                     /* items answered as the base answered them, right or wrong */
    double p_value;                      /* exact McNemar, two-sided */
    double p_holm;                       /* the same, Holm's correction over all tasks and formats of the pass */
    bool distinguishable;                /* p_holm < 0.05 */
    double score_change;                 /* mean of score - the base's, nats (a character where the task scores so); NAN: the task has none */
    eval_interval score_change_interval; /* bootstrap over items */
    uint32_t n_unscored;                 /* items left out of both: this one's or the base's score is no finite number. All, of the base too: the task has none */
} eval_verdict;

/* Generated tasks: a length and depth of its own. */
typedef struct eval_cell {
    uint32_t length_tokens;
    double depth;                   /* -1: all */
    uint32_t n_items;
    uint32_t n_correct[EVAL_MAX_FORMATS];
} eval_cell;

typedef struct eval_task {
    char name[32];                  /* "hellaswag", as of --tasks */
    char title[64];                 /* "HellaSwag" */
    char how[160];                  /* how it is scored, one sentence */
    char source[160];               /* where its items come from */
    double chance;                  /* accuracy of guessing; 0: none */
    uint32_t n_items;
    eval_item *items;               /* [n_items] */
    eval_answer *answers;           /* [n_formats][n_items] */
    uint32_t n_done[EVAL_MAX_FORMATS];   /* items done, by format */
    eval_verdict *verdicts;         /* [n_formats]; of the base: accuracy only */
    eval_cell *cells;
    uint32_t n_cells;
    char *skipped;                  /* why it was not run: "the context of 256 tokens is too short ..."; NULL: it was */
} eval_task;

/* ---- the whole ----------------------------------------------------------------------------------------------------------------- */

/* What the same mathematics in another order already differs by, on the first text: differences below it are not the cache's. */
typedef struct eval_floor {
    bool measured;
    char how[160];                  /* "llama.cpp's f16 cache against ours, same weights and tokens"; bf16: beside such a base */
    double kl, kl_p99, same_top;
} eval_floor;

/* Everything on one set of weights. */
typedef struct eval_pass {
    bool is_f32;                    /* the F32 copy; else the file as it is */
    eval_floor floor;
    eval_text texts[EVAL_MAX_TEXTS];
    uint32_t n_texts;
    eval_greedy greedy;
    eval_task tasks[EVAL_MAX_TASKS];
    uint32_t n_tasks;
    struct eval_inside *inside;     /* NULL: not looked at */
} eval_pass;

typedef struct eval_provenance {
    char octavo[32];                /* version */
    char model_file[128], model_name[128], architecture[32];
    char model_sum[24];             /* of its size and bytes of all its parts, hexadecimal */
    uint32_t n_layers, n_layers_window, n_heads, n_heads_kv, head_dim, n_vocab, n_ctx_train, window_tokens;
    char cpu[128];
    uint32_t n_threads;
    char began[24];                 /* "2026-01-31T12:00:00Z" */
    char *command;                  /* as typed */
    uint64_t seed;
    uint32_t n_resumed;             /* times that the run was continued from a partial result */
    double seconds;                 /* all parts of the run together */
} eval_provenance;

typedef struct eval_result {
    eval_provenance provenance;
    eval_format formats[EVAL_MAX_FORMATS];
    uint32_t n_formats;
    eval_pass passes[EVAL_MAX_PASSES];
    uint32_t n_passes;              /* 1, or 2 with the F32 copy second */
    bool complete;
} eval_result;

/* Adds the result as one JSON object, whose keys are the names of the fields above (doc/EVAL.md). raw: with tokens and positions, and numbers that come
 * back as they were (17 digits); else 6 digits. What is not a number is null. */
void eval_result_json(const eval_result *result, bool raw, app_text *text);

/* The inverse: *result is zeroed first; eval_result_free it after an error, too. BAD_DATA names the key that is missing or wrong. */
oct_status eval_result_read(const char *json, size_t n_bytes, eval_result *result, oct_error *error);

/* Items that were left out of a score's change which others have: 0 where the task has no scores. */
static inline uint32_t eval_n_unscored(const eval_task *task, uint32_t format) { return task->verdicts[0].n_unscored == task->n_items ? 0 : task->verdicts[format].n_unscored; }

/* "above it", "below it" or "not distinguishable from it": what the cache's KL is beside the floor. */
const char *eval_floor_words(const eval_quality *quality);

void eval_result_free(eval_result *result);

/* The report for people as Markdown. */
void eval_report_markdown(const eval_result *result, app_text *text);

/* The quality of what eval_result.passes[p] says, for charts: answers of a format to a task; tokens of a format on a text. */
static inline const eval_answer *eval_task_answers(const eval_task *task, uint32_t format) { return task->answers + (uint64_t)format * task->n_items; }
static inline const eval_token *eval_text_tokens(const eval_text *text, uint32_t format) { return text->tokens + (uint64_t)format * text->n_tokens; }

#endif
