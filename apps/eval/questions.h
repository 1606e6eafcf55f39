/* questions.h: owns the tasks' items as tokens: which tasks there are, how each is scored, and where its items come from. Single-threaded. */
#ifndef APP_EVAL_QUESTIONS_H
#define APP_EVAL_QUESTIONS_H

#include "apps/eval/result.h"
#include "engine/vocab.h"

typedef struct eval_choice {
    int32_t *tokens;                /* malloc'ed */
    uint32_t n_tokens;
    uint32_t n_characters;          /* of its text without the blank that joins it to the context, at least 1 */
} eval_choice;

typedef struct eval_question {
    char *id;
    int32_t *context;               /* with BOS where the model wants one; at least 1 */
    uint32_t n_context;
    uint32_t n_shared;              /* of the context: the same as of the question before it, computed once; less than n_context */
    eval_choice *choices;           /* EVAL_RECITE: the one answer; EVAL_GENERATE: none */
    uint32_t n_choices, right;
    char *expected;                 /* EVAL_GENERATE */
    uint32_t length_tokens;         /* as of eval_item */
    double depth;
} eval_question;

typedef struct eval_questions {
    eval_question *items;
    uint32_t n, room;
} eval_questions;

typedef enum eval_scoring {
    EVAL_CHOOSE,      /* the likeliest of several continuations */
    EVAL_RECITE,      /* would greedy decoding write the answer? */
    EVAL_GENERATE     /* greedy decoding, then the answer is taken out of the text */
} eval_scoring;

enum { EVAL_MAX_LENGTHS = 8 };

/* What items are made from. */
typedef struct eval_item_options {
    const octe_vocab *vocab;
    const char *folder;             /* of hellaswag.jsonl, truthfulqa.jsonl, gsm8k.jsonl */
    uint32_t n_items;               /* of a task read from a file, at most */
    uint32_t lengths[EVAL_MAX_LENGTHS], n_lengths;   /* of generated texts, in tokens */
    uint32_t context_tokens;        /* longest that the model takes */
    uint32_t generate_tokens;       /* most that an answer may take */
    uint64_t seed;
} eval_item_options;

typedef struct eval_task_kind {
    const char *name, *title, *how, *source;
    eval_scoring scoring;
    bool by_character;              /* EVAL_CHOOSE: likelihood divided by the choice's characters, as acc_norm of the usual harness */
    /* IO_ERROR: the file of items is not there; INVALID_ARGUMENT: the context is shorter than the task needs, with the numbers. */
    oct_status (*make)(const struct eval_task_kind *kind, const eval_item_options *options, eval_questions *questions, oct_error *error);
} eval_task_kind;

/* By index from 0, in the order that they are run in; NULL past the end. */
const eval_task_kind *eval_task_kind_at(uint32_t index);
const eval_task_kind *eval_task_kind_find(const char *name, size_t n);

/* One more, zeroed but for its id (copied); valid until the next. NULL: no memory. */
eval_question *eval_questions_add(eval_questions *questions, const char *id);
void eval_questions_free(eval_questions *questions);

/* Context and choices as texts to tokens: a choice's are those that the whole text has behind the context's. choices[n]: with their leading blank. */
oct_status eval_question_texts(eval_question *question, const octe_vocab *vocab, const char *context, const char *const *choices, uint32_t n, oct_error *error);

/* The number that an answer to a GSM8K problem gives: behind "####", else the last one; without "," and "$". False: there is none. What follows a next
 * "Question:" is not looked at. */
bool eval_extract_number(const char *text, char *number, size_t size);

/* Whether two numbers as of eval_extract_number are the same. */
bool eval_same_number(const char *a, const char *b);

/* made.c */
oct_status eval_make_needle(const eval_task_kind *kind, const eval_item_options *o, eval_questions *questions, oct_error *error);
oct_status eval_make_recall(const eval_task_kind *kind, const eval_item_options *o, eval_questions *questions, oct_error *error);
oct_status eval_make_copy(const eval_task_kind *kind, const eval_item_options *o, eval_questions *questions, oct_error *error);
oct_status eval_make_lookup(const eval_task_kind *kind, const eval_item_options *o, eval_questions *questions, oct_error *error);

#endif
