/* prompt.c: see prompt.h. */
#include "apps/prompt.h"

#include <stdlib.h>
#include <string.h>

#include "apps/output.h"
#include "host/error.h"

json_t *app_chat_variables(json_t *messages, bool answer_follows)
{
    return json_pack("{s:O, s:b, s:n, s:n}", "messages", messages, "add_generation_prompt", (int)answer_follows, "tools", "documents");
}

/* Rendered in the sandbox. Bytes that are no UTF-8 are no text of JSON's. */
static oct_status render(octe_sandbox *sandbox, const octe_vocab *vocab, const char *prompt, char **text, oct_error *error)
{
    json_t *const messages = json_pack("[{s:s, s:s}]", "role", "user", "content", prompt), *const variables = messages != NULL ? app_chat_variables(messages, true) : NULL;
    char *const said = variables != NULL ? json_dumps(variables, JSON_COMPACT) : NULL;
    const oct_status status = said != NULL ? octe_sandbox_chat(sandbox, vocab, said, text, error)
                                           : oct__error_set(error, OCT_BAD_DATA, "octavo", "the prompt is no UTF-8, which a chat template needs (--no-chat)");
    free(said);
    json_decref(variables);
    json_decref(messages);
    return status;
}

/* Without what renders it, libllama takes a template for one that it knows by its looks. */
static oct_status recognize(const octe_vocab *vocab, const char *prompt, const oct_error *why, char **text, oct_error *error)
{
    const octe_message message = { "user", prompt };
    const oct_status status = octe_vocab_apply_chat(vocab, &message, 1, true, text, error);
    if (status == OCT_OK && why->text[0] != '\0') {
        (void)app_output_fail("note: %s; libllama takes it for a template that it knows", why->text);
    }
    return status;
}

static oct_status through_template(octe_sandbox *sandbox, const octe_vocab *vocab, const char *prompt, app_chat chat, char **text, oct_error *error)
{
    oct_error why = OCT_ERROR_INIT;
    *text = NULL;
    if (chat == APP_CHAT_OFF || (chat == APP_CHAT_AUTO && !octe_vocab_has_chat_template(vocab))) {
        return OCT_OK;
    }
    const bool renders = sandbox != NULL && octe_sandbox_check_chat(sandbox, vocab, &why) == OCT_OK;
    const oct_status status = renders ? render(sandbox, vocab, prompt, text, error) : recognize(vocab, prompt, &why, text, error);
    if (status != OCT_OK && status != OCT_OUT_OF_MEMORY && chat == APP_CHAT_AUTO) {
        (void)app_output_fail("note: %s; the prompt goes in as it is", error->text);
        *text = NULL;
        return OCT_OK;
    }
    return status;
}

oct_status app_prompt_tokens(octe_sandbox *sandbox, const octe_vocab *vocab, const char *prompt, size_t n_bytes, app_chat chat, int32_t **tokens, uint32_t *n_tokens, oct_error *error)
{
    char *text;
    *tokens = NULL;
    *n_tokens = 0;
    oct_status status = through_template(sandbox, vocab, prompt, chat, &text, error);
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
