/* items_file.c: see items_file.h. */
#include "apps/eval/items_file.h"

#include <stdlib.h>

#include "apps/eval/run.h"

static const char *name_of(eval_scoring scoring)
{
    return scoring == EVAL_CHOOSE ? "choose" : scoring == EVAL_RECITE ? "recite" : "generate";
}

/* "text": ..., "tokens": [...] */
static void add_tokens(const octe_vocab *vocab, const int32_t *tokens, uint32_t n, app_text *text)
{
    char *const words = eval_run_words(vocab, tokens, n, true);
    text->failed |= words == NULL;
    app_text_add(text, "{\"text\": ");
    app_text_add_json(text, words);
    free(words);
    app_text_add(text, ", \"tokens\": [");
    for (uint32_t i = 0; i < n; i++) {
        app_text_add(text, "%s%d", i > 0 ? ", " : "", (int)tokens[i]);
    }
    app_text_add(text, "]");
}

void eval_items_file_add(const eval_task_kind *kind, const eval_questions *questions, const octe_vocab *vocab, app_text *text)
{
    for (uint32_t i = 0; i < questions->n; i++) {
        const eval_question *const q = &questions->items[i];
        app_text_add(text, "{\"task\": \"%s\", \"id\": ", kind->name);
        app_text_add_json(text, q->id);
        app_text_add(text, ", \"scoring\": \"%s\", \"context\": ", name_of(kind->scoring));
        add_tokens(vocab, q->context, q->n_context, text);
        app_text_add(text, "}, \"choices\": [");
        for (uint32_t c = 0; c < q->n_choices; c++) {
            app_text_add(text, "%s", c > 0 ? ", " : "");
            add_tokens(vocab, q->choices[c].tokens, q->choices[c].n_tokens, text);
            app_text_add(text, ", \"characters\": %u}", q->choices[c].n_characters);
        }
        app_text_add(text, "], \"right\": ");
        app_text_add(text, q->n_choices > 0 ? "%u" : "null", q->right);
        app_text_add(text, ", \"expected\": ");
        app_text_add_json(text, q->expected);
        app_text_add(text, "}\n");
    }
}
