/* made.c: the tasks whose items Octavo makes from a seed: facts hidden in a chronicle, lists to copy, tables to look up. See questions.h.
 * Texts are put together as tokens, so that lengths are exact; what is asked and its answer are cut together, as the model would read them. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "apps/chronicle.h"
#include "apps/eval/questions.h"
#include "apps/eval/statistics.h"
#include "host/error.h"

static const char where[] = "octavo eval";

enum { FACTS = 10, CHRONICLE_SEED = 3 };

static oct_status no_memory(oct_error *error)
{
    return oct__error_set(error, OCT_OUT_OF_MEMORY, where, "out of memory for the tasks' items");
}

/* A word that nobody has read: three syllables. */
static void make_word(uint64_t *state, char word[16])
{
    static const char consonants[] = "bdfgklmnprstvz", vowels[] = "aeiou";
    uint32_t n = 0;
    for (int i = 0; i < 3; i++) {
        word[n++] = consonants[eval_random(state, sizeof(consonants) - 1)];
        word[n++] = vowels[eval_random(state, sizeof(vowels) - 1)];
    }
    word[n++] = consonants[eval_random(state, sizeof(consonants) - 1)];
    word[n] = '\0';
}

/* Two plain words: small models can't hold on to names that they have never read, and then nothing is left to lose. */
static void make_name(uint64_t *state, char name[24])
{
    static const char *const kinds[] = { "red", "blue", "green", "black", "white", "silver", "golden", "old", "new", "small", "tall", "quiet" };
    static const char *const things[] = { "baker", "bridge", "castle", "doctor", "farmer", "garden", "harbor", "hunter", "island", "lawyer", "market", "museum",
                                          "painter", "pilot", "river", "school", "singer", "station", "tailor", "temple", "tower", "valley", "village", "writer" };
    const char *const kind = kinds[eval_random(state, sizeof(kinds) / sizeof(kinds[0]))];
    (void)snprintf(name, 24, "%s %s", kind, things[eval_random(state, sizeof(things) / sizeof(things[0]))]);
}

/* n different names and numbers of five digits. */
typedef struct pair { char name[24], number[16]; } pair;

static void make_pairs(uint64_t *state, pair *pairs, uint32_t n)
{
    for (uint32_t i = 0; i < n;) {
        bool is_new = true;
        make_name(state, pairs[i].name);
        (void)snprintf(pairs[i].number, sizeof(pairs[i].number), " %u", 10000 + (unsigned)eval_random(state, 90000));
        for (uint32_t j = 0; j < i; j++) {
            is_new &= strcmp(pairs[j].name, pairs[i].name) != 0;
        }
        i += is_new;
    }
}

/* Tokens that grow. */
typedef struct token_list {
    int32_t *tokens;
    uint32_t n, room;
} token_list;

static oct_status append(token_list *list, const int32_t *tokens, uint32_t n, oct_error *error)
{
    if (n > list->room - list->n || list->tokens == NULL) {
        const uint32_t room = 2 * (list->n + n) + 64;
        int32_t *const grown = realloc(list->tokens, room * sizeof(*grown));
        if (grown == NULL) {
            return no_memory(error);
        }
        list->tokens = grown;
        list->room = room;
    }
    if (n > 0) {
        memcpy(list->tokens + list->n, tokens, n * sizeof(*tokens));
    }
    list->n += n;
    return OCT_OK;
}

static oct_status append_text(token_list *list, const octe_vocab *vocab, const char *text, bool special, oct_error *error)
{
    int32_t *tokens = NULL;
    uint32_t n = 0;
    oct_status status = octe_vocab_tokenize(vocab, text, strlen(text), special, false, &tokens, &n, error);
    if (status == OCT_OK) {
        status = append(list, tokens, n, error);
    }
    free(tokens);
    return status;
}

/* A question behind a document: what is asked in words and its answer become the question's, with the document's tokens before it. */
static oct_status ask_behind(eval_question *q, const eval_item_options *o, const token_list *document, const char *asked, const char *answer, oct_error *error)
{
    oct_status status = eval_question_texts(q, o->vocab, asked, &answer, 1, error);
    token_list whole = { 0 };
    if (status == OCT_OK) {
        /* The document has the BOS. */
        const uint32_t n_special = octe_vocab_adds_bos(o->vocab) && q->context[0] == octe_vocab_bos(o->vocab);
        status = append(&whole, document->tokens, document->n, error);
        if (status == OCT_OK) {
            status = append(&whole, q->context + n_special, q->n_context - n_special, error);
        }
    }
    if (status != OCT_OK) {
        free(whole.tokens);
        return status;
    }
    free(q->context);
    q->context = whole.tokens;
    q->n_context = whole.n;
    return OCT_OK;
}

static oct_status check_length(const eval_task_kind *kind, const eval_item_options *o, uint32_t needed, oct_error *error)
{
    return needed <= o->context_tokens ? OCT_OK
                                       : oct__error_set(error, OCT_INVALID_ARGUMENT, where, "%s: a text of %u tokens needs a longer context than %u", kind->name, needed,
                                                        o->context_tokens);
}

/* ---- facts in a chronicle ----------------------------------------------------------------------------------------------------------- */

/* The last place at or before `at` where a sentence has just ended, not more than 64 tokens before it. */
static uint32_t sentence_end(const octe_vocab *vocab, const int32_t *tokens, uint32_t at)
{
    for (uint32_t back = 0; back < 64 && back < at; back++) {
        char piece[64];
        const size_t n = octe_vocab_piece(vocab, tokens[at - back - 1], false, piece, sizeof(piece));
        if (n > 0 && n <= sizeof(piece) && (piece[n - 1] == '.' || piece[n - 1] == '\n')) {
            return at - back;
        }
    }
    return at;
}

/* A chronicle of n tokens with facts at depths of it; between them the chronicle goes on. INVALID_ARGUMENT: the facts alone are longer. */
static oct_status hide(const eval_item_options *o, uint64_t seed, uint32_t n_tokens, const pair *facts, const double *depths, uint32_t n_facts, token_list *document,
                       oct_error *error)
{
    app_text chronicle = { 0 };
    token_list filler = { 0 };
    app_chronicle_add(&chronicle, seed, (size_t)n_tokens * 8 + 1024);
    oct_status status = chronicle.failed ? no_memory(error) : append_text(&filler, o->vocab, chronicle.bytes, false, error);
    if (status == OCT_OK) {
        status = append_text(document, o->vocab, "", true, error);
    }
    if (status == OCT_OK && filler.n < n_tokens) {
        status = oct__error_set(error, OCT_UNSUPPORTED, where, "this vocabulary makes %u tokens of a chronicle where %u are needed", filler.n, n_tokens);
    }
    uint32_t used = 0;
    for (uint32_t i = 0; i <= n_facts && status == OCT_OK; i++) {
        const uint32_t goal = i < n_facts ? (uint32_t)(depths[i] * n_tokens) : n_tokens, ahead = goal > document->n ? goal - document->n : 0;
        const uint32_t end = i < n_facts ? sentence_end(o->vocab, filler.tokens, used + ahead) : used + ahead;
        if (end > used) {
            status = append(document, filler.tokens + used, end - used, error);
            used = end;
        }
        if (i < n_facts && status == OCT_OK) {
            char words[112];
            (void)snprintf(words, sizeof(words), "\nThe password of the %.23s is%.15s.\n", facts[i].name, facts[i].number);
            status = append_text(document, o->vocab, words, false, error);
        }
    }
    if (status == OCT_OK && document->n > n_tokens) {
        status = oct__error_set(error, OCT_INVALID_ARGUMENT, where, "--lengths: with this vocabulary %u fact%s a text of more than %u tokens", n_facts, n_facts == 1 ? " needs" : "s need", n_tokens);
    }
    app_text_free(&chronicle);
    free(filler.tokens);
    return status;
}

enum { ASKED_BYTES = 80 };

static void ask_for(const pair *fact, char asked[ASKED_BYTES])
{
    (void)snprintf(asked, ASKED_BYTES, "\n\nThe password of the %.23s is", fact->name);
}

/* Tokens of a document behind which the longest question makes `length`. */
static oct_status document_tokens(const eval_item_options *o, const pair *facts, uint32_t n_facts, uint32_t length, uint32_t *n_tokens, oct_error *error)
{
    oct_status status = OCT_OK;
    uint32_t longest = 0;
    for (uint32_t i = 0; i < n_facts && status == OCT_OK; i++) {
        char asked[ASKED_BYTES];
        token_list tokens = { 0 };
        ask_for(&facts[i], asked);
        status = append_text(&tokens, o->vocab, asked, false, error);
        longest = tokens.n > longest ? tokens.n : longest;
        free(tokens.tokens);
    }
    *n_tokens = length > longest ? length - longest : 1;
    return status;
}

static oct_status ask_password(const eval_task_kind *kind, const eval_item_options *o, uint32_t length, uint32_t number, const token_list *document, const pair *fact,
                               double depth, bool shared, eval_questions *questions, oct_error *error)
{
    char id[64], asked[ASKED_BYTES];
    (void)snprintf(id, sizeof(id), "%s-%u-%u", kind->name, length, number);
    ask_for(fact, asked);
    eval_question *const q = eval_questions_add(questions, id);
    if (q == NULL) {
        return no_memory(error);
    }
    q->length_tokens = length;
    q->depth = depth;
    oct_status status = ask_behind(q, o, document, asked, fact->number, error);
    if (status == OCT_OK) {
        q->n_shared = shared ? document->n : 0;
        status = check_length(kind, o, q->n_context + q->choices[0].n_tokens, error);
    }
    return status;
}

oct_status eval_make_needle(const eval_task_kind *kind, const eval_item_options *o, eval_questions *questions, oct_error *error)
{
    static const double depths[] = { 0.1, 0.5, 0.9 };
    uint64_t state = o->seed ^ UINT64_C(0x6e6565646c65);
    oct_status status = OCT_OK;
    for (uint32_t l = 0; l < o->n_lengths && status == OCT_OK; l++) {
        status = check_length(kind, o, o->lengths[l], error);
        for (uint32_t d = 0; d < 3 && status == OCT_OK; d++) {
            pair fact;
            token_list document = { 0 };
            uint32_t n_tokens = 0;
            make_pairs(&state, &fact, 1);
            status = document_tokens(o, &fact, 1, o->lengths[l], &n_tokens, error);
            if (status == OCT_OK) {
                status = hide(o, o->seed + CHRONICLE_SEED + d, n_tokens, &fact, &depths[d], 1, &document, error);
            }
            if (status == OCT_OK) {
                status = ask_password(kind, o, o->lengths[l], d, &document, &fact, depths[d], false, questions, error);
            }
            free(document.tokens);
        }
    }
    return status;
}

oct_status eval_make_recall(const eval_task_kind *kind, const eval_item_options *o, eval_questions *questions, oct_error *error)
{
    uint64_t state = o->seed ^ UINT64_C(0x726563616c6c);
    oct_status status = OCT_OK;
    for (uint32_t l = 0; l < o->n_lengths && status == OCT_OK; l++) {
        pair facts[FACTS];
        double depths[FACTS];
        token_list document = { 0 };
        uint32_t n_tokens = 0;
        make_pairs(&state, facts, FACTS);
        for (uint32_t i = 0; i < FACTS; i++) {
            depths[i] = (i + 0.5) / FACTS;
        }
        status = check_length(kind, o, o->lengths[l], error);
        if (status == OCT_OK) {
            status = document_tokens(o, facts, FACTS, o->lengths[l], &n_tokens, error);
        }
        if (status == OCT_OK) {
            status = hide(o, o->seed + CHRONICLE_SEED + 8 + l, n_tokens, facts, depths, FACTS, &document, error);
        }
        for (uint32_t i = 0; i < FACTS && status == OCT_OK; i++) {
            status = ask_password(kind, o, o->lengths[l], i, &document, &facts[i], depths[i], true, questions, error);
        }
        free(document.tokens);
    }
    return status;
}

/* ---- lists and tables ------------------------------------------------------------------------------------------------------------------ */

oct_status eval_make_copy(const eval_task_kind *kind, const eval_item_options *o, eval_questions *questions, oct_error *error)
{
    enum { ITEMS = 20, SHORTEST = 3, BEGUN = 2 };
    uint64_t state = o->seed ^ UINT64_C(0x636f7079);
    oct_status status = OCT_OK;
    for (uint32_t i = 0; i < ITEMS && status == OCT_OK; i++) {
        app_text list = { 0 }, begun = { 0 }, rest = { 0 };
        const uint32_t n_words = SHORTEST + i / 2;
        for (uint32_t w = 0; w < n_words; w++) {
            char word[16];
            make_word(&state, word);
            app_text_add(&list, "%s%s", w > 0 ? " " : "", word);
            app_text_add(w < BEGUN ? &begun : &rest, "%s%s", w > 0 ? " " : "", word);
        }
        app_text_add(&list, "\n%s", begun.bytes != NULL ? begun.bytes : "");
        char id[32];
        (void)snprintf(id, sizeof(id), "copy-%u-words-%u", n_words, i % 2);
        eval_question *const q = eval_questions_add(questions, id);
        status = q == NULL || list.failed || begun.failed || rest.failed ? no_memory(error) : OCT_OK;
        if (status == OCT_OK) {
            const char *const answer = rest.bytes;
            status = eval_question_texts(q, o->vocab, list.bytes, &answer, 1, error);
        }
        if (status == OCT_OK) {
            status = check_length(kind, o, q->n_context + q->choices[0].n_tokens, error);
        }
        app_text_free(&list);
        app_text_free(&begun);
        app_text_free(&rest);
    }
    return status;
}

oct_status eval_make_lookup(const eval_task_kind *kind, const eval_item_options *o, eval_questions *questions, oct_error *error)
{
    enum { PAIRS = 40, ASKED = 20 };
    uint64_t state = o->seed ^ UINT64_C(0x6c6f6f6b7570);
    pair pairs[PAIRS];
    token_list table = { 0 };
    make_pairs(&state, pairs, PAIRS);
    oct_status status = append_text(&table, o->vocab, "", true, error);
    for (uint32_t i = 0; i < PAIRS && status == OCT_OK; i++) {
        char line[64];
        (void)snprintf(line, sizeof(line), "%.23s:%.15s\n", pairs[i].name, pairs[i].number);
        status = append_text(&table, o->vocab, line, false, error);
    }
    for (uint32_t i = 0; i < ASKED && status == OCT_OK; i++) {
        const pair *const one = &pairs[i * PAIRS / ASKED];
        char id[32], asked[40];
        (void)snprintf(id, sizeof(id), "lookup-%u", i);
        (void)snprintf(asked, sizeof(asked), "\n%.23s:", one->name);
        eval_question *const q = eval_questions_add(questions, id);
        status = q != NULL ? ask_behind(q, o, &table, asked, one->number, error) : no_memory(error);
        if (status == OCT_OK) {
            q->n_shared = table.n;
            q->depth = (double)(i * PAIRS / ASKED) / PAIRS;
            status = check_length(kind, o, q->n_context + q->choices[0].n_tokens, error);
        }
    }
    free(table.tokens);
    return status;
}
