/* prompt.h: owns how what a person asks becomes tokens, and tokens become words again. Single-threaded. */
#ifndef APP_PROMPT_H
#define APP_PROMPT_H

#include <jansson.h>

#include "engine/sandbox.h"
#include "engine/vocab.h"

typedef enum app_chat { APP_CHAT_AUTO, APP_CHAT_ON, APP_CHAT_OFF } app_chat;

/* The prompt as tokens, special ones added as the model wants them; free() them. AUTO: through the chat template where the model has one that the sandbox renders (without a
 * sandbox, NULL: that libllama knows; a message says where it can't), else as it is. UNSUPPORTED: ON and no such template. BAD_DATA: no token at all. error is not NULL. */
oct_status app_prompt_tokens(octe_sandbox *sandbox, const octe_vocab *vocab, const char *prompt, size_t n_bytes, app_chat chat, int32_t **tokens, uint32_t *n_tokens, oct_error *error);

/* What a chat template sees: the messages (of which it keeps a reference), whether an answer is to follow, and tools and documents, which are none but named, as Hugging Face's
 * libraries name them: templates ask whether they are none. NULL: no memory. */
json_t *app_chat_variables(json_t *messages, bool answer_follows);

/* The index of the largest of n logits, the first of equals: greedy choice. */
int32_t app_prompt_greedy(const float *logits, uint32_t n);

#endif
