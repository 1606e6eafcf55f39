/* reply.c: owns what goes back: replies in OpenAI's shapes, whole or as a stream of events. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "apps/serve/server.h"
#include "host/text.h"

static const char *reason(octe_answer_end end)
{
    return end == OCTE_END_STOP ? "stop" : end == OCTE_END_LENGTH ? "length" : NULL;
}

/* ---- log-probabilities ----------------------------------------------------------------------------------------------- */

/* A token as text. What is no UTF-8 by itself: with `bytes`, replaced there and told byte by byte; without, in OpenAI's way to keep names apart, "bytes:\\xe2\\x82". */
static json_t *token_text(const app_server *server, int32_t token, json_t **bytes)
{
    char piece[256];
    size_t n = octe_vocab_piece(server->vocab, token, true, piece, sizeof(piece));
    n = n <= sizeof(piece) ? n : 0;   /* of a longer one nothing has been written */
    if (bytes != NULL) {
        *bytes = json_array();
        for (size_t i = 0; i < n; i++) {
            (void)json_array_append_new(*bytes, json_integer((unsigned char)piece[i]));
        }
    }
    json_t *const whole = json_stringn(piece, n);
    if (whole != NULL) {
        return whole;
    }
    char text[6 + 4 * sizeof(piece) + 1];
    oct__text out;
    oct__text_init(&out, text, sizeof(text));
    if (bytes == NULL) {
        oct__text_add(&out, "bytes:");
        for (size_t i = 0; i < n; i++) {
            oct__text_add(&out, "\\x%02x", (unsigned char)piece[i]);
        }
        return json_stringn(text, out.length);
    }
    octe_stream stream = { 0 };
    char rest[4];
    size_t n_text = octe_stream_bytes(&stream, piece, n, text);   /* at most three bytes each */
    octe_stream_finish(&stream, rest);
    memcpy(text + n_text, rest, strlen(rest));
    return json_stringn(text, n_text + strlen(rest));
}

static json_t *chat_logprob(const app_server *server, int32_t token, float logprob)
{
    json_t *bytes = NULL;
    json_t *const text = token_text(server, token, &bytes);
    return json_pack("{s:o, s:f, s:o}", "token", text, "logprob", (double)logprob, "bytes", bytes);
}

static json_t *chat_logprobs(const app_exchange *x, const octe_answer_view *view, uint32_t from)
{
    json_t *const content = json_array();
    for (uint32_t i = from; i < view->n_tokens; i++) {
        const octe_answer_token *const t = &view->tokens[i];
        json_t *const entry = chat_logprob(x->server, t->token, t->logprob), *const top = json_array();
        for (int32_t k = 0; k < x->ask.spec.n_logprobs && t->top != NULL && t->top[k].token >= 0; k++) {
            (void)json_array_append_new(top, chat_logprob(x->server, t->top[k].token, t->top[k].logprob));
        }
        (void)json_object_set_new(entry, "top_logprobs", top);
        (void)json_array_append_new(content, entry);
    }
    return json_pack("{s:o}", "content", content);
}

static json_t *text_logprobs(const app_exchange *x, const octe_answer_view *view, uint32_t from)
{
    json_t *const tokens = json_array(), *const values = json_array(), *const tops = json_array(), *const offsets = json_array();
    for (uint32_t i = from; i < view->n_tokens; i++) {
        const octe_answer_token *const t = &view->tokens[i];
        json_t *const top = json_object();
        for (int32_t k = 0; k < x->ask.spec.n_logprobs && t->top != NULL && t->top[k].token >= 0; k++) {
            json_t *const name = token_text(x->server, t->top[k].token, NULL);
            (void)json_object_set_new(top, json_string_value(name), json_real((double)t->top[k].logprob));
            json_decref(name);
        }
        (void)json_array_append_new(tokens, token_text(x->server, t->token, NULL));
        (void)json_array_append_new(values, json_real((double)t->logprob));
        (void)json_array_append_new(tops, top);
        (void)json_array_append_new(offsets, json_integer((json_int_t)t->begin_characters));
    }
    return json_pack("{s:o, s:o, s:o, s:o}", "tokens", tokens, "token_logprobs", values, "top_logprobs", tops, "text_offset", offsets);
}

static json_t *logprobs(const app_exchange *x, const octe_answer_view *view, uint32_t from)
{
    if (x->ask.spec.n_logprobs < 0) {
        return json_null();
    }
    return x->ask.chat ? chat_logprobs(x, view, from) : text_logprobs(x, view, from);
}

/* ---- replies -------------------------------------------------------------------------------------------------------------- */

/* A prompt counts once, however many choices it has; of what these found in the cache, the least. */
static json_t *usage(const app_exchange *x)
{
    json_int_t n_prompt = 0, n_cached = 0, n_sampled = 0, n_drafted = 0, n_accepted = 0, least = 0;
    for (uint32_t i = 0; i < x->n_answers; i++) {
        const octe_answer_view view = octe_answer_look(x->answer[i]);
        const bool first = i % x->ask.n == 0, last = i % x->ask.n == x->ask.n - 1;
        n_prompt += first ? view.n_prompt : 0;
        least = first || (json_int_t)view.n_cached < least ? (json_int_t)view.n_cached : least;
        n_cached += last ? least : 0;
        n_sampled += view.n_sampled;
        n_drafted += view.n_drafted;
        n_accepted += view.n_accepted;
    }
    json_t *const reply = json_pack("{s:I, s:I, s:I, s:{s:I}}", "prompt_tokens", n_prompt, "completion_tokens", n_sampled, "total_tokens", n_prompt + n_sampled, "prompt_tokens_details",
                     "cached_tokens", n_cached);
    if (x->server->draft_tokens > 0) {
        (void)json_object_set_new(reply, "completion_tokens_details", json_pack("{s:I, s:I}", "accepted_prediction_tokens", n_accepted, "rejected_prediction_tokens", n_drafted - n_accepted));
    }
    return reply;
}

static json_t *envelope(const app_exchange *x, const char *object, json_t *choices)
{
    return json_pack("{s:s, s:s, s:I, s:s, s:o}", "id", x->id, "object", object, "created", (json_int_t)x->created, "model", x->server->model_name, "choices", choices);
}

bool app_reply_is_ready(const app_exchange *x)
{
    for (uint32_t i = 0; i < x->n_answers; i++) {
        if (octe_answer_look(x->answer[i]).end == OCTE_END_NOT_YET) {
            return false;
        }
    }
    return true;
}

json_t *app_reply_whole(const app_exchange *x)
{
    json_t *const choices = json_array();
    for (uint32_t i = 0; i < x->n_answers; i++) {
        const octe_answer_view view = octe_answer_look(x->answer[i]);
        json_t *const text = json_stringn(view.text, view.n_text);
        json_t *const choice = x->ask.chat ? json_pack("{s:i, s:{s:s, s:o}, s:o, s:s?}", "index", (int)i, "message", "role", "assistant", "content", text, "logprobs",
                                                       logprobs(x, &view, 0), "finish_reason", reason(view.end))
                                           : json_pack("{s:i, s:o, s:o, s:s?}", "index", (int)i, "text", text, "logprobs", logprobs(x, &view, 0), "finish_reason", reason(view.end));
        (void)json_array_append_new(choices, choice);
    }
    json_t *const reply = envelope(x, x->ask.chat ? "chat.completion" : "text_completion", choices);
    (void)json_object_set_new(reply, "usage", usage(x));
    return reply;
}

/* ---- streams ---------------------------------------------------------------------------------------------------------------- */

static bool add_out(app_exchange *x, const char *bytes, size_t n)
{
    /* What was sent already makes room. */
    if (x->at_out > 0) {
        memmove(x->out, x->out + x->at_out, x->n_out - x->at_out);
    }
    x->n_out -= x->at_out;
    x->at_out = 0;
    char *const larger = realloc(x->out, x->n_out + n + 1);
    if (larger == NULL) {
        return false;
    }
    x->out = larger;
    memcpy(x->out + x->n_out, bytes, n);
    x->n_out += n;
    return true;
}

static bool add_event(app_exchange *x, json_t *event)
{
    char *const text = event != NULL ? json_dumps(event, JSON_COMPACT) : NULL;
    const bool fine = text != NULL && add_out(x, "data: ", 6) && add_out(x, text, strlen(text)) && add_out(x, "\n\n", 2);
    free(text);
    json_decref(event);
    return fine;
}

static bool add_choice(app_exchange *x, uint32_t i, json_t *delta_or_text, json_t *probabilities, const char *end)
{
    json_t *const choice = json_pack("{s:i, s:o, s:o, s:s?}", "index", (int)i, x->ask.chat ? "delta" : "text", delta_or_text, "logprobs", probabilities, "finish_reason", end);
    json_t *const event = envelope(x, x->ask.chat ? "chat.completion.chunk" : "text_completion", json_pack("[o]", choice));
    if (x->ask.include_usage) {
        (void)json_object_set_new(event, "usage", json_null());
    }
    return add_event(x, event);
}

static bool stream_answer(app_exchange *x, uint32_t i)
{
    const octe_answer_view view = octe_answer_look(x->answer[i]);
    bool fine = true;
    if (x->ended[i]) {
        return true;
    }
    if (x->ask.chat && !x->opened[i]) {
        x->opened[i] = true;
        fine = add_choice(x, i, json_pack("{s:s, s:s}", "role", "assistant", "content", ""), json_null(), NULL);
    }
    if (fine && (view.n_text > x->given[i] || (x->ask.spec.n_logprobs >= 0 && view.n_tokens > x->given_tokens[i]))) {
        json_t *const text = json_stringn(view.text + x->given[i], view.n_text - x->given[i]);
        fine = add_choice(x, i, x->ask.chat ? json_pack("{s:o}", "content", text) : text, logprobs(x, &view, x->given_tokens[i]), NULL);
        x->given[i] = view.n_text;
        x->given_tokens[i] = view.n_tokens;
    }
    if (fine && view.end != OCTE_END_NOT_YET) {
        x->ended[i] = true;
        if (view.end == OCTE_END_FAILED) {
            app_problem problem;
            (void)app_problem_of(&problem, view.error);
            return add_event(x, app_problem_json(&problem));
        }
        fine = add_choice(x, i, x->ask.chat ? json_object() : json_string(""), json_null(), reason(view.end));
    }
    return fine;
}

/* Of each token a piece of text or, with log-probabilities, about a hundred bytes for each that is named. */
size_t app_reply_stream_left(const app_exchange *x)
{
    const size_t each = x->ask.spec.n_logprobs < 0 ? 0 : 100 + 80 * (size_t)x->ask.spec.n_logprobs;
    size_t n = x->n_out - x->at_out;
    for (uint32_t i = 0; i < x->n_answers; i++) {
        const octe_answer_view view = octe_answer_look(x->answer[i]);
        n += x->ended[i] ? 0 : 1024 + 6 * (view.n_text - x->given[i]) + each * (view.n_tokens - x->given_tokens[i]);
    }
    return n;
}

bool app_reply_stream(app_exchange *x)
{
    static const char done[] = "data: [DONE]\n\n";
    bool fine = true, all = true;
    for (uint32_t i = 0; i < x->n_answers && fine; i++) {
        fine = stream_answer(x, i);
        all = all && x->ended[i];
    }
    if (fine && all && !x->finished) {
        x->finished = true;
        if (x->ask.include_usage) {
            json_t *const event = envelope(x, x->ask.chat ? "chat.completion.chunk" : "text_completion", json_array());
            (void)json_object_set_new(event, "usage", usage(x));
            fine = add_event(x, event);
        }
        fine = fine && add_out(x, done, sizeof(done) - 1);
    }
    return fine;
}

/* ---- without a model ---------------------------------------------------------------------------------------------------------- */

json_t *app_reply_models(const app_server *server)
{
    return json_pack("{s:s, s:[{s:s, s:s, s:I, s:s, s:I}]}", "object", "list", "data", "id", server->model_name, "object", "model", "created", (json_int_t)0, "owned_by", "octavo",
                     "max_model_len", (json_int_t)octe_engine_options_get(server->engine)->max_context_tokens);
}

json_t *app_reply_tokenize(const app_server *server, const char *body, size_t n_body, app_problem *problem)
{
    json_t *const root = app_json_read(body, n_body, problem);
    const json_t *text = json_object_get(root, "prompt"), *const special = json_object_get(root, "add_special_tokens");
    text = text != NULL ? text : json_object_get(root, "content");
    json_t *reply = NULL;
    int32_t *tokens = NULL;
    uint32_t n = 0;
    size_t n_special = 0;
    oct_error error = OCT_ERROR_INIT;
    if (root == NULL) {
        return NULL;
    }
    if (!json_is_string(text) || (special != NULL && !json_is_boolean(special))) {
        (void)app_problem_set(problem, 400, "prompt", NULL, "'prompt' must be a text, 'add_special_tokens' true or false");
    } else if (!app_text_check(server, json_string_value(text), json_string_length(text), &n_special, problem)) {
        /* said already */
    } else if (octe_vocab_tokenize(server->vocab, json_string_value(text), json_string_length(text), special == NULL || json_is_true(special), false, &tokens, &n, &error) != OCT_OK) {
        (void)app_problem_of(problem, &error);
    } else {
        json_t *const list = json_array();
        for (uint32_t i = 0; i < n; i++) {
            (void)json_array_append_new(list, json_integer(tokens[i]));
        }
        reply = json_pack("{s:I, s:I, s:o}", "count", (json_int_t)n, "max_model_len", (json_int_t)octe_engine_options_get(server->engine)->max_context_tokens, "tokens", list);
    }
    free(tokens);
    json_decref(root);
    return reply;
}

json_t *app_reply_detokenize(const app_server *server, const char *body, size_t n_body, app_problem *problem)
{
    json_t *const root = app_json_read(body, n_body, problem);
    const json_t *const list = json_object_get(root, "tokens");
    if (root == NULL) {
        return NULL;
    }
    octe_stream stream = { 0 };
    json_t *reply = NULL;
    char *all = calloc(1, 4);
    size_t n = 0, room = 4;
    bool fine = json_is_array(list) && all != NULL;
    for (size_t i = 0; fine && i < json_array_size(list); i++) {
        int64_t token = 0;
        char *piece = NULL;
        size_t more = 0;
        fine = app_whole_number(json_array_get(list, i), 0, (int64_t)octe_vocab_size(server->vocab) - 1, &token) &&
               octe_stream_add(&stream, server->vocab, (int32_t)token, true, &piece, &more, NULL) == OCT_OK;
        if (fine && n + more + 4 > room) {   /* by twice as much: where a block can't grow in its place, each token would copy all that is there */
            room = 2 * (n + more + 4);
            char *const larger = realloc(all, room);
            fine = larger != NULL;
            all = fine ? larger : all;
        }
        if (fine) {
            memcpy(all + n, piece, more + 1);
            n += more;
        }
        free(piece);
    }
    if (fine) {
        octe_stream_finish(&stream, all + n);
        reply = json_pack("{s:s%}", "prompt", all, n + strlen(all + n));
    } else {
        (void)app_problem_set(problem, 400, "tokens", NULL, "'tokens' must be a list of tokens from 0 to %u", octe_vocab_size(server->vocab) - 1);
    }
    free(all);
    json_decref(root);
    return reply;
}

/* ---- for those who watch ---------------------------------------------------------------------------------------------------------- */

char *app_reply_explain(const app_server *server)
{
    char *const full = octe_service_explain(server->service, false), *const window = octe_service_explain(server->service, true);
    const size_t n = (full != NULL ? strlen(full) : 4) + (window != NULL ? strlen(window) : 4) + 64;
    char *const text = malloc(n);
    if (text != NULL) {
        (void)snprintf(text, n, "{\"full\": %s, \"window\": %s}\n", full != NULL ? full : "null", window != NULL ? window : "null");
    }
    free(full);
    free(window);
    return text;
}
