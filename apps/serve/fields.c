/* fields.c: owns which fields a body of completions may have: what is read, what says that nothing is to change, what changes no answer. All else is refused, as OpenAI does it:
 * an answer that leaves out in silence what was asked for looks like one that has it. */
#include <string.h>

#include "apps/serve/server.h"

enum { TEXTS = 1, CHATS = 2, BOTH = 3 };

typedef struct known {
    const char *name;
    int routes;
} known;

/* ask.c, chat.c and format.c read these. */
static const known read_fields[] = {
    { "model", BOTH }, { "max_tokens", BOTH }, { "temperature", BOTH }, { "top_p", BOTH }, { "top_k", BOTH }, { "min_p", BOTH }, { "seed", BOTH }, { "n", BOTH }, { "stop", BOTH },
    { "logit_bias", BOTH }, { "frequency_penalty", BOTH }, { "presence_penalty", BOTH }, { "response_format", BOTH }, { "stream", BOTH }, { "stream_options", BOTH }, { "user", BOTH },
    { "priority", BOTH }, { "ignore_eos", BOTH }, { "num_speculative_tokens", BOTH }, { "logprobs", BOTH }, { "prompt", TEXTS }, { "messages", CHATS }, { "max_completion_tokens", CHATS },
    { "top_logprobs", CHATS }, { "structured_outputs", BOTH }, { "guided_json", BOTH }, { "guided_choice", BOTH }, { "add_generation_prompt", CHATS }, { "chat_template_kwargs", CHATS } };

/* Whatever they say, the answer is the same. */
static const known idle_fields[] = {
    { "metadata", BOTH }, { "store", BOTH }, { "service_tier", BOTH }, { "safety_identifier", BOTH }, { "prompt_cache_key", BOTH }, { "prompt_cache_retention", BOTH }, { "request_id", BOTH },
    { "cache_prompt", BOTH }, { "prediction", CHATS }, { "parallel_tool_calls", CHATS } };

/* Not built; refused but for an empty value. */
static const char *const unbuilt[] = {
    "tools", "functions", "suffix", "prompt_embeds", "guided_regex", "guided_grammar", "guided_whitespace_pattern", "guided_decoding_backend", "modalities", "audio",
    "stop_token_ids", "grammar", "json_schema", "prompt_logprobs", "truncate_prompt_tokens", "chat_template", "chat_template_kwargs", "bad_words", "allowed_token_ids",
    "logits_processors", "samplers", "reasoning_effort", "verbosity", "cache_salt", "web_search_options", "documents" };

/* Not built either; what they say when nothing is to change is taken. */
static const struct {
    const char *name, *neutral[2];
} neutral_fields[] = {
    { "repetition_penalty", { "1" } }, { "repeat_penalty", { "1" } }, { "length_penalty", { "1" } }, { "min_tokens", { "0" } }, { "include_stop_str_in_output", { "false" } },
    { "skip_special_tokens", { "true" } }, { "spaces_between_special_tokens", { "true" } }, { "use_beam_search", { "false" } }, { "return_tokens_as_token_ids", { "false" } },
    { "return_token_ids", { "false" } }, { "typical_p", { "1" } }, { "tfs_z", { "1" } }, { "top_a", { "0" } }, { "mirostat", { "0" } }, { "dynatemp_range", { "0" } },
    { "xtc_probability", { "0" } }, { "dry_multiplier", { "0" } }, { "add_generation_prompt", { "true" } }, { "continue_final_message", { "false" } }, { "echo", { "false" } },
    { "best_of", { "1" } }, { "tool_choice", { "none", "auto" } }, { "function_call", { "none", "auto" } } };

#define COUNT(list) (sizeof(list) / sizeof((list)[0]))

static bool is_among(const known *list, size_t n, const char *name, int route)
{
    for (size_t i = 0; i < n; i++) {
        if (strcmp(list[i].name, name) == 0 && (list[i].routes & route) != 0) {
            return true;
        }
    }
    return false;
}

static bool is_empty(const json_t *value)
{
    return json_is_null(value) || (json_is_array(value) && json_array_size(value) == 0) || (json_is_object(value) && json_object_size(value) == 0) ||
           (json_is_string(value) && json_string_length(value) == 0);
}

static bool says(const json_t *value, const char *is)
{
    return json_is_string(value)    ? strcmp(json_string_value(value), is) == 0
           : json_is_boolean(value) ? strcmp(json_is_true(value) ? "true" : "false", is) == 0
                                    : json_is_number(value) && is[0] >= '0' && is[0] <= '9' && json_number_value(value) == (double)(is[0] - '0');
}

static bool refuse(app_problem *problem, const char *name) { return app_problem_set(problem, 400, name, "unsupported", "'%s' is not supported", name); }

static bool check(const char *name, const json_t *value, int route, app_problem *problem)
{
    if (is_among(read_fields, COUNT(read_fields), name, route) || is_among(idle_fields, COUNT(idle_fields), name, route)) {
        return true;
    }
    for (size_t i = 0; i < COUNT(unbuilt); i++) {
        if (strcmp(unbuilt[i], name) == 0) {
            return is_empty(value) || refuse(problem, unbuilt[i]);
        }
    }
    for (size_t i = 0; i < COUNT(neutral_fields); i++) {
        if (strcmp(neutral_fields[i].name, name) == 0) {
            const char *const *const is = neutral_fields[i].neutral;
            return json_is_null(value) || says(value, is[0]) || (is[1] != NULL && says(value, is[1])) || refuse(problem, neutral_fields[i].name);
        }
    }
    /* The name is the body's, which goes before the problem does: param has none. */
    return app_problem_set(problem, 400, NULL, "unknown_parameter", "Unknown parameter: '%.100s'", name);
}

bool app_fields_check(bool chat, const json_t *root, app_problem *problem)
{
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)root, name, value) {
        if (!check(name, value, chat ? CHATS : TEXTS, problem)) {
            return false;
        }
    }
    return true;
}

bool app_stream_fields_check(const json_t *options, app_problem *problem)
{
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)options, name, value) {
        if (strcmp(name, "continuous_usage_stats") == 0 && !json_is_null(value) && !json_is_false(value)) {
            return app_problem_set(problem, 400, "stream_options", "unsupported", "'continuous_usage_stats' is not supported");
        }
        if (strcmp(name, "include_usage") != 0 && strcmp(name, "include_obfuscation") != 0 && strcmp(name, "continuous_usage_stats") != 0) {
            return app_problem_set(problem, 400, "stream_options", "unknown_parameter", "Unknown parameter: 'stream_options.%.100s'", name);
        }
    }
    return true;
}
