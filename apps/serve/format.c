/* format.c: owns what an answer is held to: response_format, and vLLM's structured_outputs, guided_json and guided_choice, each of them as a grammar. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "apps/serve/server.h"
#include "engine/schema.h"

enum { MOST_CHOICES = OCTE_SCHEMA_VALUES, MOST_CHOICE_BYTES = 65536 };

static const json_t *present(const json_t *object, const char *name)
{
    const json_t *const value = json_object_get(object, name);
    return json_is_null(value) ? NULL : value;
}

static bool problem_of(app_problem *problem, const char *param, const oct_error *error)
{
    (void)app_problem_of(problem, error);
    problem->param = param;
    problem->code = error->status == OCT_UNSUPPORTED ? "unsupported" : problem->code;
    return false;
}

/* vLLM takes a schema as a text, too. */
static bool hold_to_schema(const app_server *server, const char *param, const json_t *schema, app_ask *ask, app_problem *problem)
{
    json_error_t why;
    json_t *const parsed = json_is_string(schema) ? json_loads(json_string_value(schema), JSON_REJECT_DUPLICATES, &why) : NULL;
    char *prepared = NULL;
    oct_error error = OCT_ERROR_INIT;
    if (server->sandbox == NULL) {
        return app_problem_set(problem, 400, param, "unsupported", "'%s': this server was built without what turns a JSON Schema into a grammar; 'json_object' is supported: name the fields in the prompt", param);
    }
    if (json_is_string(schema) && parsed == NULL) {
        return app_problem_set(problem, 400, param, NULL, "the schema is no JSON: %s", why.text);
    }
    oct_status status = octe_schema_prepare(parsed != NULL ? parsed : schema, &prepared, &error);
    if (status == OCT_OK) {
        status = octe_sandbox_grammar(server->sandbox, prepared, &ask->grammar, &error);
    }
    free(prepared);
    json_decref(parsed);
    return status == OCT_OK || problem_of(problem, param, &error);
}

/* A text as GBNF has it; returns its bytes, at most 4 for each of it and 2. */
static size_t write_literal(const char *text, char *out)
{
    size_t n = 0;
    out[n++] = '"';
    for (; *text != '\0'; text++) {
        const unsigned char c = (unsigned char)*text;
        if (c < 0x20 || c == 0x7F || c == '"' || c == '\\') {
            n += (size_t)sprintf(out + n, "\\x%02X", c);
        } else {
            out[n++] = (char)c;
        }
    }
    out[n++] = '"';
    return n;
}

static bool hold_to_choice(const char *param, const json_t *list, app_ask *ask, app_problem *problem)
{
    static const char begin[] = "root ::= ", between[] = " | ";
    const size_t n = json_array_size(list);
    size_t n_bytes = 0, at = sizeof(begin) - 1;
    bool fine = json_is_array(list) && n > 0 && n <= MOST_CHOICES;
    for (size_t i = 0; i < n && fine; i++) {
        n_bytes += json_string_length(json_array_get(list, i));
        fine = json_string_length(json_array_get(list, i)) > 0 && n_bytes <= MOST_CHOICE_BYTES;
    }
    if (!fine) {
        return app_problem_set(problem, 400, param, NULL, "'%s' must be a list of 1 to %d texts, none of them empty, of %d bytes together", param, MOST_CHOICES, MOST_CHOICE_BYTES);
    }
    ask->grammar = malloc(sizeof(begin) + 4 * n_bytes + n * (sizeof(between) + 2) + 2);
    if (ask->grammar == NULL) {
        return app_problem_set(problem, 503, NULL, NULL, "no memory for %zu choices", n);
    }
    memcpy(ask->grammar, begin, at);
    for (size_t i = 0; i < n; i++) {
        if (i > 0) {
            memcpy(ask->grammar + at, between, sizeof(between) - 1);
            at += sizeof(between) - 1;
        }
        at += write_literal(json_string_value(json_array_get(list, i)), ask->grammar + at);
    }
    memcpy(ask->grammar + at, "\n", 2);
    return true;
}

static bool hold_to_json(app_ask *ask)
{
    ask->spec.sampling.grammar = octe_grammar_json_object;
    return true;
}

static bool read_response_format(const app_server *server, const json_t *format, app_ask *ask, app_problem *problem)
{
    const char *const type = json_string_value(json_object_get(format, "type")), *const param = "response_format";
    const json_t *const named = json_object_get(format, "json_schema"), *const name = present(named, "name"), *const strict = present(named, "strict");
    if (format == NULL || (type != NULL && strcmp(type, "text") == 0)) {
        return true;
    }
    if (type != NULL && strcmp(type, "json_object") == 0) {
        return hold_to_json(ask);
    }
    if (type == NULL || strcmp(type, "json_schema") != 0) {
        return app_problem_set(problem, 400, param, "unsupported", "'response_format' must have the type 'text', 'json_object' or 'json_schema'");
    }
    if (present(named, "schema") == NULL || (name != NULL && !json_is_string(name)) || (strict != NULL && !json_is_boolean(strict))) {
        return app_problem_set(problem, 400, param, NULL, "'response_format' of type 'json_schema' must have a 'json_schema' with a 'schema', maybe a 'name' and 'strict'");
    }
    return hold_to_schema(server, param, present(named, "schema"), ask, problem);
}

static bool read_structured(const app_server *server, const json_t *outputs, app_ask *ask, app_problem *problem)
{
    const char *key, *const param = "structured_outputs";
    json_t *value;
    bool held = false;
    if (!json_is_object(outputs)) {
        return app_problem_set(problem, 400, param, NULL, "'structured_outputs' must be an object");
    }
    json_object_foreach((json_t *)outputs, key, value) {
        const bool json = strcmp(key, "json") == 0, choice = strcmp(key, "choice") == 0, object = strcmp(key, "json_object") == 0;
        if (json_is_null(value) || (object && json_is_false(value))) {
            continue;
        }
        if (!json && !choice && !object) {
            return app_problem_set(problem, 400, param, "unsupported", "'structured_outputs' with '%.60s' is not supported; 'json', 'json_object' and 'choice' are", key);
        }
        if (held || (object && !json_is_true(value))) {
            return app_problem_set(problem, 400, param, NULL, "'structured_outputs' must have one of 'json', 'json_object' and 'choice'");
        }
        held = true;
        if (!(json ? hold_to_schema(server, param, value, ask, problem) : choice ? hold_to_choice(param, value, ask, problem) : hold_to_json(ask))) {
            return false;
        }
    }
    return true;
}

bool app_format_read(const app_server *server, const json_t *root, app_ask *ask, app_problem *problem)
{
    static const char *const names[] = { "response_format", "structured_outputs", "guided_json", "guided_choice" };
    const char *held = NULL;
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        const json_t *const value = present(root, names[i]);
        const bool was = ask->grammar != NULL || ask->spec.sampling.grammar != NULL;
        if (i > 0 && value == NULL) {
            continue;
        }
        if (i > 0 && was) {
            return app_problem_set(problem, 400, names[i], NULL, "'%s' and '%s' exclude each other", held, names[i]);
        }
        if (!(i == 0   ? read_response_format(server, value, ask, problem)
              : i == 1 ? read_structured(server, value, ask, problem)
              : i == 2 ? hold_to_schema(server, names[i], value, ask, problem)
                       : hold_to_choice(names[i], value, ask, problem))) {
            return false;
        }
        held = !was && (ask->grammar != NULL || ask->spec.sampling.grammar != NULL) ? names[i] : held;
    }
    ask->spec.sampling.grammar = ask->grammar != NULL ? ask->grammar : ask->spec.sampling.grammar;
    if (ask->spec.sampling.grammar != NULL && ask->spec.sampling.ignore_eog) {
        return app_problem_set(problem, 400, "ignore_eos", NULL, "'ignore_eos' and '%s' exclude each other: where what is asked for ends, nothing else may follow", held);
    }
    return true;
}
