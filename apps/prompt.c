/* prompt.c: see prompt.h. */
#include "apps/prompt.h"

#include <stdlib.h>
#include <string.h>

#include "apps/output.h"
#include "host/error.h"

static oct_status through_template(const octe_vocab *vocab, const char *prompt, app_chat chat, char **text, oct_error *error)
{
    const octe_message message = { "user", prompt };
    *text = NULL;
    if (chat == APP_CHAT_OFF || (chat == APP_CHAT_AUTO && !octe_vocab_has_chat_template(vocab))) {
        return OCT_OK;
    }
    const oct_status status = octe_vocab_apply_chat(vocab, &message, 1, true, text, error);
    if (status == OCT_UNSUPPORTED && chat == APP_CHAT_AUTO) {
        (void)app_output_fail("note: the model's chat template is none that libllama knows; the prompt goes in as it is");
        *text = NULL;
        return OCT_OK;
    }
    return status;
}

oct_status app_prompt_tokens(const octe_vocab *vocab, const char *prompt, size_t n_bytes, app_chat chat, int32_t **tokens, uint32_t *n_tokens, oct_error *error)
{
    char *text;
    *tokens = NULL;
    *n_tokens = 0;
    oct_status status = through_template(vocab, prompt, chat, &text, error);
    if (status == OCT_OK) {
        status = octe_vocab_tokenize(vocab, text != NULL ? text : prompt, text != NULL ? strlen(text) : n_bytes, true, true, tokens, n_tokens, error);
    }
    free(text);
    if (status == OCT_OK && *n_tokens == 0) {
        return oct__error_set(error, OCT_BAD_DATA, "octavo", "the prompt is empty: it has no token");
    }
    return status;
}

int32_t app_prompt_greedy(const float *logits, uint32_t n)
{
    uint32_t top = 0;
    for (uint32_t i = 1; i < n; i++) {
        top = logits[i] > logits[top] ? i : top;
    }
    return (int32_t)top;
}
