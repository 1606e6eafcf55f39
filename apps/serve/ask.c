/* ask.c: owns the bodies of /v1/completions and /v1/chat/completions: what they may say, and in which words it is refused. */
#include <limits.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "apps/serve/server.h"
#include "host/clock.h"

bool app_problem_set(app_problem *problem, unsigned status, const char *param, const char *code, const char *format, ...)
{
    va_list arguments;
    *problem = (app_problem){ .status = status, .param = param, .code = code, .type = status >= 500 ? "server_error" : "invalid_request_error" };
    va_start(arguments, format);
    (void)vsnprintf(problem->message, sizeof(problem->message), format, arguments);
    va_end(arguments);
    return false;
}

bool app_problem_of(app_problem *problem, const oct_error *error)
{
    switch (error->status) {
    case OCT_INVALID_ARGUMENT:
    case OCT_UNSUPPORTED:
        return app_problem_set(problem, 400, NULL, strstr(error->text, "the context holds") != NULL ? "context_length_exceeded" : NULL, "%s", error->text);
    case OCT_OUT_OF_PAGES:
        return app_problem_set(problem, 429, NULL, "overloaded", "%s", error->text);
    case OCT_CANCELLED:
    case OCT_OUT_OF_MEMORY:
        return app_problem_set(problem, 503, NULL, NULL, "%s", error->text);
    default:
        return app_problem_set(problem, 500, NULL, NULL, "%s", error->text);
    }
}

json_t *app_problem_json(const app_problem *problem)
{
    /* A path or a cut-off name may be no UTF-8, which jansson would not pack. */
    char text[3 * (sizeof(problem->message) + 3) + 4], rest[4];
    octe_stream stream = { 0 };
    const size_t n = octe_stream_bytes(&stream, problem->message, strlen(problem->message), text);
    octe_stream_finish(&stream, rest);
    memcpy(text + n, rest, strlen(rest) + 1);
    return json_pack("{s:{s:s, s:s, s:s?, s:s?}}", "error", "message", text, "type", problem->type, "param", problem->param, "code", problem->code);
}

static bool wrong(app_problem *problem, const char *param, const char *must)
{
    return app_problem_set(problem, 400, param, NULL, "'%s' must be %s", param, must);
}

/* ---- fields: absent and null both mean the default ------------------------------------------------------------------ */

static const json_t *field(const json_t *root, const char *name)
{
    const json_t *const value = json_object_get(root, name);
    return json_is_null(value) ? NULL : value;
}

static bool read_number(const json_t *root, const char *name, double least, double most, float *number, app_problem *problem)
{
    const json_t *const value = field(root, name);
    if (value == NULL) {
        return true;
    }
    const double x = json_number_value(value);
    if (!json_is_number(value) || !(x >= least && x <= most)) {
        return app_problem_set(problem, 400, name, NULL, "'%s' must be a number from %g to %g", name, least, most);
    }
    *number = (float)x;
    return true;
}

bool app_whole_number(const json_t *value, int64_t least, int64_t most, int64_t *number)
{
    const double x = json_number_value(value);
    if (json_is_real(value) && x == floor(x) && fabs(x) < 9007199254740992.0) {
        *number = (int64_t)x;
    } else if (json_is_integer(value)) {
        *number = json_integer_value(value);
    } else {
        return false;
    }
    return *number >= least && *number <= most;
}

static bool read_count(const json_t *root, const char *name, int64_t least, int64_t most, int64_t *count, app_problem *problem)
{
    const json_t *const value = field(root, name);
    if (value == NULL) {
        return true;
    }
    return app_whole_number(value, least, most, count) ||
           app_problem_set(problem, 400, name, NULL, "'%s' must be a whole number from %lld to %lld", name, (long long)least, (long long)most);
}

static bool read_switch(const json_t *root, const char *name, bool *on, app_problem *problem)
{
    const json_t *const value = field(root, name);
    if (value != NULL && !json_is_boolean(value)) {
        return wrong(problem, name, "true or false");
    }
    *on = value != NULL ? json_is_true(value) : *on;
    return true;
}

static size_t count_characters(const char *text)
{
    size_t n = 0;
    for (; *text != '\0'; text++) {
        n += ((unsigned char)*text & 0xC0) != 0x80;
    }
    return n;
}

/* Each answer has its own copy of the texts: 128 answers of one body would take 128 times what it brings. */
static bool read_stop(const json_t *root, app_ask *ask, app_problem *problem)
{
    const json_t *const stop = field(root, "stop");
    if (stop == NULL) {
        return true;
    }
    const size_t n = json_is_array(stop) ? json_array_size(stop) : 1;
    for (size_t i = 0; i < n && n <= OCTE_STOPS_MAX; i++) {
        const json_t *const text = json_is_array(stop) ? json_array_get(stop, i) : stop;
        if (!json_is_string(text) || json_string_length(text) == 0) {
            return wrong(problem, "stop", "a text or a list of texts, none of them empty");
        }
        if (count_characters(json_string_value(text)) > OCTE_STOP_CHARACTERS_MAX) {
            return app_problem_set(problem, 400, "stop", NULL, "a text of 'stop' has %zu characters; at most %d", count_characters(json_string_value(text)), OCTE_STOP_CHARACTERS_MAX);
        }
        ask->spec.stop[ask->spec.n_stop++] = json_string_value(text);
    }
    return n <= OCTE_STOPS_MAX || app_problem_set(problem, 400, "stop", NULL, "'stop' has %zu texts; at most %d are looked for", n, OCTE_STOPS_MAX);
}

static bool read_bias(const app_server *server, const json_t *root, app_ask *ask, app_problem *problem)
{
    const json_t *const map = field(root, "logit_bias");
    const uint32_t n_vocab = octe_vocab_size(server->vocab);
    const char *key;
    json_t *value;
    if (map == NULL) {
        return true;
    }
    if (!json_is_object(map)) {
        return wrong(problem, "logit_bias", "an object of tokens and numbers");
    }
    /* Each of up to 128 answers has its own copy, sorted while all connections wait. */
    if (json_object_size(map) > APP_BIASES_MAX) {
        return app_problem_set(problem, 400, "logit_bias", NULL, "'logit_bias' has %zu tokens; at most %d", json_object_size(map), APP_BIASES_MAX);
    }
    ask->bias = malloc((json_object_size(map) + 1) * sizeof(*ask->bias));
    if (ask->bias == NULL) {
        return app_problem_set(problem, 503, NULL, NULL, "no memory for %zu biases", json_object_size(map));
    }
    json_object_foreach((json_t *)map, key, value) {
        char *end;
        const unsigned long token = strtoul(key, &end, 10);
        const double x = json_number_value(value);
        if (key[0] < '0' || key[0] > '9' || (key[0] == '0' && key[1] != '\0') || *end != '\0' || token >= n_vocab || !json_is_number(value) || !(x >= -100 && x <= 100)) {
            return app_problem_set(problem, 400, "logit_bias", NULL, "'logit_bias' must have tokens from 0 to %u, each with a number from -100 to 100", n_vocab - 1);
        }
        ask->bias[ask->spec.sampling.n_bias++] = (octe_logit_bias){ (int32_t)token, (float)x };
    }
    ask->spec.sampling.bias = ask->bias;
    return true;
}

/* ---- prompts ------------------------------------------------------------------------------------------------------------ */

/* Others wait while a text is tokenized, which takes libllama the square of the special tokens in it. 128 short texts together take half as long as one that is just allowed: not worth
 * a pass over the vocabulary for each of them. */
bool app_text_check(const app_server *server, const char *text, size_t length, size_t *n_special, app_problem *problem)
{
    enum { MOST_SPECIAL = 16384, SHORT_BYTES = 1024 };
    length = length == SIZE_MAX ? strlen(text) : length;
    *n_special += length > SHORT_BYTES ? octe_vocab_most_special(server->vocab, text, length) : 0;
    return *n_special <= MOST_SPECIAL || app_problem_set(problem, 400, NULL, NULL, "the texts may have %zu special tokens; at most %d are looked for", *n_special, MOST_SPECIAL);
}

bool app_text_tokenize(const app_server *server, const char *text, size_t n, bool special, size_t *n_special, app_prompt *prompt, app_problem *problem)
{
    oct_error error = OCT_ERROR_INIT;
    if (!app_text_check(server, text, n, n_special, problem)) {
        return false;
    }
    return octe_vocab_tokenize(server->vocab, text, n, true, special, &prompt->tokens, &prompt->n, &error) == OCT_OK || app_problem_of(problem, &error);
}

static bool read_tokens(const app_server *server, const json_t *list, app_prompt *prompt, app_problem *problem)
{
    const size_t n = json_array_size(list);
    const uint32_t n_vocab = octe_vocab_size(server->vocab);
    prompt->tokens = malloc((n + 1) * sizeof(*prompt->tokens));
    if (prompt->tokens == NULL) {
        return app_problem_set(problem, 503, NULL, NULL, "no memory for a prompt of %zu tokens", n);
    }
    for (size_t i = 0; i < n; i++) {
        int64_t token;
        if (!app_whole_number(json_array_get(list, i), 0, (int64_t)n_vocab - 1, &token)) {
            return app_problem_set(problem, 400, "prompt", NULL, "'prompt' must be a text, a list of tokens from 0 to %u, or a list of either", n_vocab - 1);
        }
        prompt->tokens[i] = (int32_t)token;
    }
    prompt->n = (uint32_t)n;
    return true;
}

/* False: no memory. */
static bool room_for_prompts(app_ask *ask, size_t n, app_problem *problem)
{
    ask->prompt = calloc(n, sizeof(*ask->prompt));
    ask->n_prompts = ask->prompt != NULL ? (uint32_t)n : 0;
    return ask->prompt != NULL || app_problem_set(problem, 503, NULL, NULL, "no memory for %zu prompts", n);
}

bool app_prompt_read(const app_server *server, const json_t *value, size_t *n_special, app_prompt *prompt, app_problem *problem)
{
    if (json_is_string(value)) {
        return app_text_tokenize(server, json_string_value(value), json_string_length(value), false, n_special, prompt, problem);
    }
    return json_is_array(value) ? read_tokens(server, value, prompt, problem) : wrong(problem, "prompt", "a text or a list of tokens");
}

static bool check_length(const app_server *server, const app_ask *ask, const app_prompt *p, app_problem *problem)
{
    const uint32_t context = octe_engine_options_get(server->engine)->max_context_tokens;
    return p->n < context || app_problem_set(problem, 400, ask->chat ? "messages" : "prompt", "context_length_exceeded",
                                             "the prompt has %u tokens; the context holds %u: nothing could be answered", p->n, context);
}

/* One prompt, or a list of them: whatever begins with a text or a list. */
static bool read_prompts(const app_server *server, const json_t *root, app_ask *ask, app_problem *problem)
{
    const json_t *const value = field(root, "prompt"), *const first = json_array_get(value, 0);
    const bool several = json_is_string(first) || json_is_array(first);
    const size_t n = several ? json_array_size(value) : 1;
    if (n * ask->n > APP_ANSWERS_MAX) {
        return app_problem_set(problem, 400, "prompt", NULL, "%zu prompts with %u choices each make %zu; at most %d are answered together", n, ask->n, n * ask->n, APP_ANSWERS_MAX);
    }
    bool fine = room_for_prompts(ask, n, problem);
    size_t n_special = 0;
    /* One after the other: what is behind a prompt that is too long is not tokenized any more. */
    for (size_t i = 0; i < n && fine; i++) {
        fine = app_prompt_read(server, several ? json_array_get(value, i) : value, &n_special, &ask->prompt[i], problem) && check_length(server, ask, &ask->prompt[i], problem);
    }
    return fine;
}

/* ---- the whole ------------------------------------------------------------------------------------------------------------ */

static uint64_t hash_text(const char *text)
{
    uint64_t h = 14695981039346656037u;
    for (; *text != '\0'; text++) {
        h = (h ^ (unsigned char)*text) * 1099511628211u;
    }
    return h | 1;
}

static bool read_logprobs(const json_t *root, app_ask *ask, app_problem *problem)
{
    int64_t n = -1;
    if (!ask->chat) {
        if (!read_count(root, "logprobs", 0, OCTE_LOGPROBS_MAX, &n, problem)) {
            return false;
        }
    } else {
        bool on = false;
        int64_t top = 0;
        if (!read_switch(root, "logprobs", &on, problem) || !read_count(root, "top_logprobs", 0, OCTE_LOGPROBS_MAX, &top, problem)) {
            return false;
        }
        if (!on && top > 0) {
            return app_problem_set(problem, 400, "top_logprobs", NULL, "'top_logprobs' needs 'logprobs'");
        }
        n = on ? top : -1;
    }
    ask->spec.n_logprobs = (int32_t)n;
    return true;
}

static bool read_limits(const app_server *server, const json_t *root, app_ask *ask, app_problem *problem)
{
    const uint32_t context = octe_engine_options_get(server->engine)->max_context_tokens;
    int64_t most = 0;
    if (!read_count(root, "max_tokens", 1, INT_MAX, &most, problem) || (ask->chat && !read_count(root, "max_completion_tokens", 1, INT_MAX, &most, problem))) {
        return false;
    }
    for (uint32_t i = 0; i < ask->n_prompts; i++) {
        app_prompt *const p = &ask->prompt[i];
        if (!check_length(server, ask, p, problem)) {
            return false;
        }
        p->max_new_tokens = most > 0 ? (uint32_t)most : ask->chat || context - p->n < 16 ? context - p->n : 16;
    }
    return true;
}

octe_answer_spec app_ask_spec(const app_ask *ask, const app_prompt *prompt)
{
    octe_answer_spec spec = ask->spec;
    spec.request.prompt = prompt->tokens;
    spec.request.n_prompt = prompt->n;
    spec.request.max_new_tokens = prompt->max_new_tokens;
    spec.sampling.penalty_tokens = ask->penalizes ? prompt->max_new_tokens : 0;
    return spec;
}

static bool read_ask(const app_server *server, const json_t *root, bool chat, app_ask *ask, app_problem *problem)
{
    *ask = (app_ask){ .chat = chat, .n = 1, .stop = json_incref(json_object_get(root, "stop")), .spec.sampling = { .temp = 1.0f, .top_p = 1.0f } };
    const json_t *const model = field(root, "model"), *const user = field(root, "user"), *const stream_options = field(root, "stream_options");
    if (model != NULL && !json_is_string(model)) {
        return wrong(problem, "model", "a text");
    }
    if (model != NULL && strcmp(json_string_value(model), server->model_name) != 0) {
        return app_problem_set(problem, 404, "model", "model_not_found", "there is no model '%.120s'; this server has '%.120s'", json_string_value(model), server->model_name);
    }
    if (user != NULL && !json_is_string(user)) {
        return wrong(problem, "user", "a text");
    }
    if (stream_options != NULL && !json_is_object(stream_options)) {
        return wrong(problem, "stream_options", "an object");
    }
    int64_t n = 1, seed = -1, priority = 0, top_k = 0, n_draft = OCTE_DRAFT_MAX;
    bool answer_follows = true;
    octe_sampler_options *const sampling = &ask->spec.sampling;
    const bool counted = app_fields_check(chat, root, problem) && app_stream_fields_check(stream_options, problem) && read_count(root, "n", 1, APP_CHOICES_MAX, &n, problem);
    ask->n = (uint32_t)n;
    const bool fine = counted && read_count(root, "seed", 0, UINT32_MAX, &seed, problem) &&
                      read_count(root, "priority", -OCTE_PRIORITY_MAX, OCTE_PRIORITY_MAX, &priority, problem) && read_count(root, "top_k", -1, INT_MAX, &top_k, problem) &&
                      read_count(root, "num_speculative_tokens", 0, OCTE_DRAFT_MAX, &n_draft, problem) &&
                      read_number(root, "temperature", 0, 2, &sampling->temp, problem) && read_number(root, "top_p", 0, 1, &sampling->top_p, problem) &&
                      read_number(root, "min_p", 0, 1, &sampling->min_p, problem) && read_switch(root, "ignore_eos", &sampling->ignore_eog, problem) &&
                      read_number(root, "frequency_penalty", -2, 2, &sampling->frequency_penalty, problem) &&
                      read_number(root, "presence_penalty", -2, 2, &sampling->presence_penalty, problem) && read_bias(server, root, ask, problem) &&
                      app_format_read(server, root, ask, problem) && read_switch(root, "stream", &ask->stream, problem) && read_stop(root, ask, problem) && read_logprobs(root, ask, problem) &&
                      (stream_options == NULL || read_switch(stream_options, "include_usage", &ask->include_usage, problem)) &&
                      (!chat || read_switch(root, "add_generation_prompt", &answer_follows, problem)) &&
                      (chat ? room_for_prompts(ask, 1, problem) && app_chat_prompt_read(server, field(root, "messages"), answer_follows, field(root, "chat_template_kwargs"), ask->prompt, problem) : read_prompts(server, root, ask, problem)) && read_limits(server, root, ask, problem);
    if (!fine) {
        return false;
    }
    sampling->top_k = (int32_t)top_k;
    sampling->temp = sampling->temp < 1e-5f ? 0.0f : sampling->temp;   /* a logit by less is no finite number any more */
    ask->penalizes = sampling->frequency_penalty != 0.0f || sampling->presence_penalty != 0.0f;
    ask->spec.request.priority = (int32_t)priority;
    ask->spec.request.draft_tokens = n_draft == 0 ? -1 : (int32_t)n_draft;
    ask->spec.request.client = user != NULL ? hash_text(json_string_value(user)) : 0;
    ask->seed = seed >= 0 ? (uint32_t)seed : (uint32_t)(oct__clock_ns() * 0x9E3779B97F4A7C15u >> 32);
    return true;
}

/* A body of megabytes takes milliseconds to free, too: that is done by who reads it, and what is refused leaves nothing. */
bool app_ask_read(const app_server *server, bool chat, const char *body, size_t n_body, app_ask *ask, app_problem *problem)
{
    json_t *const root = app_json_read(body, n_body, problem);
    const bool fine = root != NULL && read_ask(server, root, chat, ask, problem);
    json_decref(root);
    if (!fine) {
        app_ask_release(ask);
    }
    return fine;
}

void app_ask_release(app_ask *ask)
{
    json_decref(ask->stop);
    for (uint32_t i = 0; i < ask->n_prompts; i++) {
        free(ask->prompt[i].tokens);
    }
    free(ask->prompt);
    free(ask->bias);
    free(ask->grammar);
    ask->stop = NULL;
    ask->prompt = NULL;
    ask->n_prompts = 0;
    ask->spec.sampling.bias = ask->bias = NULL;
    ask->spec.sampling.grammar = ask->grammar = NULL;
    ask->spec.n_stop = 0;
}

void app_ask_free(app_ask *ask)
{
    app_ask_release(ask);
    *ask = (app_ask){ 0 };
}
