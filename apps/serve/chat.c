/* chat.c: owns how a chat's messages become a prompt: through the GGUF's chat template, rendered where the program was built for that, else as libllama knows it by its looks. */
#include <stdlib.h>
#include <string.h>

#include "apps/prompt.h"
#include "apps/serve/server.h"

/* The content of a message: a text, or a list of parts of which each is a text. malloc'ed; NULL: something else. */
static char *read_content(const json_t *content)
{
    if (json_is_string(content)) {
        return strdup(json_string_value(content));
    }
    size_t n = 0, room = 1;
    char *all = calloc(1, 1);
    for (size_t i = 0; json_is_array(content) && i < json_array_size(content) && all != NULL; i++) {
        const json_t *const part = json_array_get(content, i);
        const char *const type = json_string_value(json_object_get(part, "type")), *const text = json_string_value(json_object_get(part, "text"));
        const size_t more = text != NULL ? strlen(text) : 0;
        const bool fits = n + more + 1 <= room;
        room = fits ? room : 2 * (n + more + 1);
        char *const larger = type != NULL && strcmp(type, "text") == 0 && text != NULL ? fits ? all : realloc(all, room) : NULL;
        if (larger == NULL) {
            free(all);
            return NULL;
        }
        all = larger;
        memcpy(all + n, text, more + 1);
        n += more;
    }
    if (!json_is_array(content)) {
        free(all);
        return NULL;
    }
    return all;
}

/* As the template sees it: all of its fields, its content as one text. NULL: *problem. */
static json_t *copy_message(const json_t *message, size_t i, app_problem *problem)
{
    static const char *const calls[] = { "tool_calls", "function_call" };
    char *const content = json_string_value(json_object_get(message, "role")) != NULL ? read_content(json_object_get(message, "content")) : NULL;
    if (content == NULL) {
        (void)app_problem_set(problem, 400, "messages", NULL, "message %zu must have a 'role' and a 'content', which is a text or a list of parts of type \"text\"", i);
        return NULL;
    }
    for (size_t k = 0; k < 2; k++) {
        const json_t *const value = json_object_get(message, calls[k]);
        if (value != NULL && !json_is_null(value) && !(json_is_array(value) && json_array_size(value) == 0)) {
            (void)app_problem_set(problem, 400, "messages", "unsupported", "message %zu has '%s', which is not supported", i, calls[k]);
            free(content);
            return NULL;
        }
    }
    json_t *const copy = json_copy((json_t *)message);
    if (copy == NULL || json_object_set_new(copy, "content", json_string_nocheck(content)) != 0) {
        (void)app_problem_set(problem, 503, NULL, NULL, "no memory for a message");
        json_decref(copy);
        free(content);
        return NULL;
    }
    free(content);
    return copy;
}

/* The template's variables; NULL: *problem. */
static json_t *gather(const app_server *server, json_t *messages, bool answer_follows, const json_t *more, app_problem *problem)
{
    const char *key;
    json_t *value, *const all = app_chat_variables(messages, answer_follows);
    if (all == NULL) {
        (void)app_problem_set(problem, 503, NULL, NULL, "no memory for a chat");
        return NULL;
    }
    if (more != NULL && !json_is_object(more)) {
        (void)app_problem_set(problem, 400, "chat_template_kwargs", NULL, "'chat_template_kwargs' must be an object");
    } else if (json_object_size(more) > 0 && !server->renders_chat) {
        (void)app_problem_set(problem, 400, "chat_template_kwargs", "unsupported", "'chat_template_kwargs' is not supported: this server does not render the model's chat template itself (its log says why)");
    }
    json_object_foreach((json_t *)more, key, value) {
        if (json_object_get(all, key) != NULL || strcmp(key, "bos_token") == 0 || strcmp(key, "eos_token") == 0) {
            (void)app_problem_set(problem, 400, "chat_template_kwargs", NULL, "'chat_template_kwargs' can't have '%.60s', which is the request's own or the model's", key);
        } else if (problem->status == 0) {
            (void)json_object_set(all, key, value);
        }
    }
    if (problem->status != 0) {
        json_decref(all);
        return NULL;
    }
    return all;
}

static char *render(const app_server *server, const json_t *variables, app_problem *problem)
{
    oct_error error = OCT_ERROR_INIT;
    char *const text = json_dumps(variables, JSON_COMPACT), *made = NULL;
    if (text == NULL) {
        (void)app_problem_set(problem, 503, NULL, NULL, "no memory for a chat");
    } else if (octe_sandbox_chat(server->sandbox, server->vocab, text, &made, &error) != OCT_OK) {
        (void)app_problem_of(problem, &error);
        problem->param = "messages";
    }
    free(text);
    return made;
}

/* Without the renderer: role and content alone. */
static char *recognize(const app_server *server, const json_t *list, bool answer_follows, app_problem *problem)
{
    const size_t n = json_array_size(list);
    octe_message *const messages = calloc(n, sizeof(*messages));
    oct_error error = OCT_ERROR_INIT;
    char *made = NULL;
    for (size_t i = 0; i < n && messages != NULL; i++) {
        messages[i].role = json_string_value(json_object_get(json_array_get(list, i), "role"));
        messages[i].content = json_string_value(json_object_get(json_array_get(list, i), "content"));
    }
    if (messages == NULL) {
        (void)app_problem_set(problem, 503, NULL, NULL, "no memory for %zu messages", n);
    } else if (octe_vocab_apply_chat(server->vocab, messages, n, answer_follows, &made, &error) != OCT_OK) {
        (void)app_problem_of(problem, &error);
    }
    free(messages);
    return made;
}

bool app_chat_prompt_read(const app_server *server, const json_t *list, bool answer_follows, const json_t *more, app_prompt *prompt, app_problem *problem)
{
    const size_t n = json_array_size(list);
    json_t *const messages = json_array();
    if (!json_is_array(list) || n == 0 || messages == NULL) {
        json_decref(messages);
        return app_problem_set(problem, 400, "messages", NULL, "'messages' must be a list of messages, at least one");
    }
    for (size_t i = 0; i < n && problem->status == 0; i++) {
        json_t *const message = copy_message(json_array_get(list, i), i, problem);
        if (message != NULL && json_array_append_new(messages, message) != 0) {
            (void)app_problem_set(problem, 503, NULL, NULL, "no memory for %zu messages", n);
        }
    }
    json_t *const variables = problem->status == 0 ? gather(server, messages, answer_follows, more, problem) : NULL;
    char *const text = variables == NULL ? NULL : server->renders_chat ? render(server, variables, problem) : recognize(server, messages, answer_follows, problem);
    size_t n_special = 0;
    const bool fine = text != NULL && app_text_tokenize(server, text, SIZE_MAX, true, &n_special, prompt, problem);
    json_decref(variables);
    json_decref(messages);
    free(text);
    return fine;
}
