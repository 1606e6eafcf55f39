/* The process that renders chat templates and converts schemas: what it makes, and that hostile ones end with an error and nothing else. What it makes of ordinary templates: test_render.py. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include <cmocka.h>
#include <gguf.h>
#include <jansson.h>

#include "engine/sampler.h"
#include "engine/sandbox.h"
#include "engine/schema.h"
#include "engine/tiny_model.h"
#include "engine/vocab.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define UNDER_SANITIZER
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define UNDER_SANITIZER
#endif
#endif

static octe_sandbox *sandbox;

static int open_all(void **state)
{
    (void)state;
    oct_error error = OCT_ERROR_INIT;
    const oct_status status = octe_sandbox_open(&sandbox, &error);
    if (!octe_sandbox_is_built()) {
        return status == OCT_UNSUPPORTED && sandbox == NULL && strstr(error.text, "llama-jinja") != NULL ? 0 : -1;
    }
    return status == OCT_OK ? 0 : -1;
}

static int close_all(void **state)
{
    (void)state;
    octe_sandbox_close(sandbox);
    return 0;
}

static void set_template(struct gguf_context *gguf, const void *user) { gguf_set_val_str(gguf, "tokenizer.chat_template", user); }

static octe_vocab *vocab_with(const char *chat_template)
{
    tiny_model m;
    octe_vocab *v;
    assert_true(tiny_model_at(0, &m));
    m.edit = chat_template != NULL ? set_template : NULL;
    m.user = chat_template;
    tiny_model_write(&m, tiny_path("sandbox.gguf"));
    assert_int_equal(octe_vocab_open(tiny_path("sandbox.gguf"), &v, NULL), OCT_OK);
    return v;
}

static void chat(void **state)
{
    (void)state;
    char *text;
    oct_error error = OCT_ERROR_INIT;
    octe_vocab *v = vocab_with("{{ bos_token }}{% for m in messages %}{{ m.role ~ ':' ~ m.content ~ eos_token }}{% endfor %}{{ none_such }}{{ x }}{{ raise_exception('No: ' ~ y) if y is defined }}");
    assert_int_equal(octe_sandbox_check_chat(sandbox, v, &error), OCT_OK);
    assert_int_equal(octe_sandbox_chat(sandbox, v, "{\"messages\": [{\"role\": \"user\", \"content\": \"\xC3\xA9\"}], \"x\": 5}", &text, &error), OCT_OK);
    assert_string_equal(text, "<s>user:\xC3\xA9</s>5");
    free(text);
    assert_int_equal(octe_sandbox_chat(sandbox, v, "{\"messages\": [], \"y\": \"why\"}", &text, &error), OCT_INVALID_ARGUMENT);
    assert_string_equal(error.text, "the model's chat template refuses: No: why");
    assert_null(text);
    octe_vocab_close(v);
    v = vocab_with("{% for %}");
    assert_int_equal(octe_sandbox_check_chat(sandbox, v, &error), OCT_UNSUPPORTED);
    octe_vocab_close(v);
    v = vocab_with(NULL);
    assert_int_equal(octe_sandbox_check_chat(sandbox, v, &error), OCT_UNSUPPORTED);
    assert_int_equal(octe_sandbox_chat(sandbox, v, "{}", &text, &error), OCT_UNSUPPORTED);
    assert_non_null(strstr(error.text, "tokenizer.chat_template"));
    octe_vocab_close(v);
    /* A character cut in two is none. */
    v = vocab_with("{{ 'a\xC3\xA9'[:2] }}|");
    assert_int_equal(octe_sandbox_chat(sandbox, v, "{}", &text, &error), OCT_OK);
    assert_string_equal(text, "a\xEF\xBF\xBD|");
    free(text);
    octe_vocab_close(v);
}

/* Each of them ends, and the next job is done as if nothing had been. Sanitizers have no limit of memory here, and what fills it would take the machine's. */
static void hostile_templates(void **state)
{
    (void)state;
    static const struct { const char *text; bool fills; } templates[] = {
        { "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}", false },
        { "{{ range(1000000000000) | length }}", true },
        { "{{ 'x' * 100000000000 }}", true },
        { "{% set ns = namespace(s='xxxxxxxxxxxxxxxx') %}{% for i in range(64) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}{{ ns.s }}", true },
        { "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", true },
        { "{% set ns = namespace() %}{% set ns.self = ns %}{{ ns | tojson }}", true },
        { "{% set ns = namespace(a=[]) %}{% for i in range(3000) %}{% set ns.a = [ns.a] %}{% endfor %}{{ ns.a }}", true },
        { "{{ 5 is divisibleby(0) }}", false },
        { "{{ 'a' * 33554433 }}", true },
        { "{{ [1][9].x.y() }}", false },
        { "{% set x = '' %}{{ x.split('') }}", true },
    };
    char *deep = malloc(400001), *text;
    oct_error error = OCT_ERROR_INIT;
    octe_vocab *const good = vocab_with("fine");
    for (size_t i = 0; i <= sizeof(templates) / sizeof(templates[0]); i++) {
#ifdef UNDER_SANITIZER
        if (i < sizeof(templates) / sizeof(templates[0]) && templates[i].fills) {
            continue;
        }
#endif
        memset(deep, '(', 400000);
        memcpy(deep, "{{", 2);
        deep[400000] = '\0';
        octe_vocab *const v = vocab_with(i < sizeof(templates) / sizeof(templates[0]) ? templates[i].text : deep);
        const oct_status status = octe_sandbox_chat(sandbox, v, "{}", &text, &error);
        /* A deep list may be shown, too. */
        assert_true((status == OCT_UNSUPPORTED || status == OCT_INVALID_ARGUMENT || i == 6) && (status == OCT_OK || text == NULL));
        free(text);
        octe_vocab_close(v);
        assert_int_equal(octe_sandbox_chat(sandbox, good, "{}", &text, &error), OCT_OK);
        assert_string_equal(text, "fine");
        free(text);
    }
    octe_vocab_close(good);
    free(deep);
}

/* Many chats at once come out one by one, each its own. */
static void long_chats(void **state)
{
    (void)state;
    enum { N = 3000000 };
    octe_vocab *const v = vocab_with("{% for m in messages %}{{ m }}{% endfor %}");
    char *const variables = malloc(N + 64), *text;
    oct_error error = OCT_ERROR_INIT;
    int n = sprintf(variables, "{\"messages\": [\"");
    memset(variables + n, 'a', N);
    strcpy(variables + n + N, "b\"]}");
    assert_int_equal(octe_sandbox_chat(sandbox, v, variables, &text, &error), OCT_OK);
    assert_int_equal(strlen(text), N + 1);
    assert_int_equal(text[N], 'b');
    free(text);
    free(variables);
    octe_vocab_close(v);
}

/* The later one's process has the earlier one's end of the socket: closing the earlier one would wait for ever. */
static void two(void **state)
{
    (void)state;
    octe_sandbox *first, *second;
    assert_int_equal(octe_sandbox_open(&first, NULL), OCT_OK);
    assert_int_equal(octe_sandbox_open(&second, NULL), OCT_OK);
    octe_sandbox_close(first);
    octe_sandbox_close(second);
}

/* ---- schemas ------------------------------------------------------------------------------------------------------------ */

static oct_status prepare(const char *schema, char **prepared, oct_error *error)
{
    json_error_t why;
    json_t *const root = json_loads(schema, JSON_DECODE_ANY, &why);
    assert_non_null(root);
    const oct_status status = octe_schema_prepare(root, prepared, error);
    json_decref(root);
    return status;
}

/* Each with a grammar that libllama reads. */
static void schemas(void **state)
{
    (void)state;
    static const char *const texts[] = {
        "{}", "{\"type\": \"object\"}", "{\"type\": \"object\", \"properties\": {}}", "{\"type\": [\"string\", \"null\"], \"maxLength\": 3}", "{\"enum\": [1, \"a\", null, [1], {\"b\": 2.5}]}",
        "{\"type\": \"array\", \"items\": {\"$ref\": \"#\"}, \"maxItems\": 2}", "{\"prefixItems\": [{\"type\": \"null\"}, {\"type\": \"boolean\"}], \"items\": false}",
        "{\"type\": \"integer\", \"minimum\": -5, \"exclusiveMaximum\": 1e3}", "{\"const\": \"a\\\"\\\\\\n\xC3\xA9\"}", "{\"type\": \"string\", \"pattern\": \"^(a|b\\\\.c)+[0-9]{2,3}\\\\d?.$\"}",
        "{\"type\": \"object\", \"properties\": {\"date_time\": {\"type\": \"string\", \"format\": \"date-time\"}, \"root\": {\"type\": \"number\"}, \"string\": {\"type\": \"string\"}, \"a b\": {}, \"a-b\": {}}}",
        "{\"anyOf\": [{\"$ref\": \"#/$defs/n\"}, {\"type\": \"null\"}], \"$defs\": {\"n\": {\"type\": \"object\", \"properties\": {\"next\": {\"$ref\": \"#/$defs/n\"}}, \"title\": \"T\"}}}",
        "{\"anyOf\": [{\"type\": \"object\", \"properties\": {\"op\": {\"const\": 1}, \"a\": {\"$ref\": \"#\"}}, \"required\": [\"a\", \"op\"]}, {\"type\": \"object\", \"properties\": {\"op\": {\"const\": 2}, \"a\": {\"$ref\": \"#\"}}, \"required\": [\"op\", \"a\"]}, {\"type\": \"null\"}]}",
        "{\"type\": \"string\", \"pattern\": \"^\\\\(|(a|b){32}c{0,}$\"}",
        "{\"type\": \"object\", \"additionalProperties\": {\"type\": \"integer\"}}", "{\"type\": \"string\", \"minLength\": 2}", "{\"type\": \"number\"}",
    };
    static const char *const formats[] = { "date", "time", "date-time", "uuid" };
    octe_vocab *const v = vocab_with(NULL);
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]) + 4; i++) {
        char formatted[64], *prepared, *grammar = NULL;
        oct_error error = OCT_ERROR_INIT;
        const bool plain = i < sizeof(texts) / sizeof(texts[0]);
        (void)snprintf(formatted, sizeof(formatted), "{\"type\": \"string\", \"format\": \"%s\"}", formats[plain ? 0 : i - sizeof(texts) / sizeof(texts[0])]);
        if (prepare(plain ? texts[i] : formatted, &prepared, &error) != OCT_OK || octe_sandbox_grammar(sandbox, prepared, &grammar, &error) != OCT_OK) {
            fail_msg("%s: %s", plain ? texts[i] : formatted, error.text);
        }
        octe_sampler_options options = OCTE_SAMPLER_OPTIONS_INIT;
        octe_sampler *sampler;
        options.grammar = grammar;
        if (octe_sampler_create(v, &options, &sampler, &error) != OCT_OK) {
            fail_msg("%s\n%s: %s", prepared, grammar, error.text);
        }
        octe_sampler_destroy(sampler);
        free(prepared);
        free(grammar);
    }
    octe_vocab_close(v);
}

/* What is refused is named. */
static void refused_schemas(void **state)
{
    (void)state;
    static const struct { const char *schema, *named; } wrong[] = {
        { "[]", "must be an object" }, { "true", "must be an object" }, { "{\"type\": 5}", "'type'" }, { "{\"type\": \"text\"}", "'type'" }, { "{\"type\": []}", "'type'" },
        { "{\"oneOf\": [{}]}", "'oneOf'" }, { "{\"allOf\": [{}]}", "'allOf'" }, { "{\"not\": {}}", "'not'" }, { "{\"type\": \"number\", \"multipleOf\": 2}", "'multipleOf'" },
        { "{\"type\": \"number\", \"minimum\": 2}", "'minimum'" }, { "{\"minimum\": 2}", "'type'" }, { "{\"type\": \"array\", \"uniqueItems\": true}", "'uniqueItems'" },
        { "{\"type\": \"object\", \"minProperties\": 1}", "'minProperties'" }, { "{\"type\": \"object\", \"patternProperties\": {}}", "'patternProperties'" },
        { "{\"type\": \"object\", \"properties\": {\"a\": {}}, \"required\": [\"b\"]}", "'b'" }, { "{\"type\": \"object\", \"properties\": {\"a\": {}}, \"additionalProperties\": true}", "'additionalProperties'" },
        { "{\"type\": \"object\", \"properties\": {\"\": {}}}", "property" }, { "{\"type\": \"object\", \"properties\": {\"*\": {}}}", "property" }, { "{\"type\": \"object\", \"properties\": []}", "'properties'" },
        { "{\"$ref\": \"#/$defs/none\"}", "#/$defs/none" }, { "{\"$ref\": \"http://a/b\"}", "http://a/b" }, { "{\"$ref\": \"#/properties/a\", \"properties\": {\"a\": {}}}", "'properties'" },
        { "{\"anyOf\": [{}], \"type\": \"string\"}", "'type'" }, { "{\"anyOf\": []}", "'anyOf'" }, { "{\"enum\": [1], \"type\": \"string\"}", "'type'" }, { "{\"enum\": []}", "'enum'" },
        { "{\"enum\": 5}", "'enum'" }, { "{\"const\": 1, \"enum\": [1]}", "'enum'" }, { "{\"enum\": [1], \"minimum\": 2}", "'minimum'" },
        { "{\"type\": \"string\", \"format\": \"email\"}", "'email'" }, { "{\"type\": \"string\", \"format\": \"date\", \"minLength\": 2}", "'format'" },
        { "{\"type\": \"string\", \"minLength\": 5, \"maxLength\": 4}", "'minLength'" }, { "{\"type\": \"string\", \"maxLength\": 100000}", "'maxLength'" }, { "{\"type\": \"string\", \"maxLength\": -1}", "'maxLength'" },
        { "{\"type\": \"integer\", \"minimum\": 5, \"maximum\": 4}", "bounds" }, { "{\"type\": \"integer\", \"minimum\": 1e30}", "'minimum'" }, { "{\"type\": \"integer\", \"exclusiveMinimum\": 1, \"maximum\": 1}", "bounds" },
        { "{\"type\": \"array\", \"prefixItems\": [{}], \"items\": {}}", "'items'" }, { "{\"type\": \"array\", \"prefixItems\": [{}], \"minItems\": 2}", "'minItems'" }, { "{\"type\": \"array\", \"items\": [{}]}", "must be an object" },
        { "{\"type\": \"string\", \"pattern\": \"a\"}", "'^'" }, { "{\"type\": \"string\", \"pattern\": \"^a\\\\sb$\"}", "escapes" }, { "{\"type\": \"string\", \"pattern\": \"^[ -~]$\"}", "JSON" },
        { "{\"type\": \"string\", \"pattern\": \"^a\\\"b$\"}", "JSON" }, { "{\"type\": \"string\", \"pattern\": \"^(a{9}){9}$\"}", "repetition" }, { "{\"type\": \"string\", \"pattern\": \"^(?=a)b$\"}", "(?:" }, { "{\"type\": \"string\", \"pattern\": \"^(a?){9}$\"}", "repetition" }, { "{\"type\": \"string\", \"pattern\": \"^(a|){9}$\"}", "alternative" }, { "{\"type\": \"string\", \"pattern\": \"^()a$\"}", "group" }, { "{\"type\": \"string\", \"pattern\": \"^a?b?c?d?e?f?g?$\"}", "ways" },
        { "{\"anyOf\": [{\"$ref\": \"#\"}, {\"type\": \"null\"}]}", "itself" },
        { "{\"anyOf\": [{\"type\": \"object\", \"properties\": {\"a\": {\"$ref\": \"#\"}}}, {\"type\": \"object\", \"properties\": {\"a\": {\"$ref\": \"#\"}}}]}", "begin alike" },
        { "{\"type\": \"string\", \"pattern\": \"^(?:|a){200}$\"}", "alternative" }, { "{\"type\": \"string\", \"pattern\": \"^(.|..|...|....|.....|......){200}$\"}", "alternatives" },
        { "{\"type\": \"string\", \"pattern\": \"^(a{0})*b$\"}", "repetition" },
        { "{\"type\": \"string\", \"pattern\": \"^(a$\"}", "groups" }, { "{\"type\": \"string\", \"pattern\": \"^a)$\"}", "groups" }, { "{\"type\": \"string\", \"pattern\": \"^*a$\"}", "repeat" },
        { "{\"type\": \"string\", \"pattern\": \"^a\\\\$\"}", "'$'" }, { "{\"type\": \"string\", \"pattern\": \"^[a$\"}", "class" }, { "{\"type\": \"string\", \"pattern\": \"^a{1,99999}$\"}", "repetition" },
    };
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        char *prepared;
        oct_error error = OCT_ERROR_INIT;
        const oct_status status = prepare(wrong[i].schema, &prepared, &error);
        if ((status != OCT_INVALID_ARGUMENT && status != OCT_UNSUPPORTED) || prepared != NULL || strstr(error.text, wrong[i].named) == NULL) {
            fail_msg("%s: %d, '%s', expected '%s'", wrong[i].schema, status, error.text, wrong[i].named);
        }
    }
}

/* Of every shape that grows: refused with numbers, or converted, neither of which takes long. */
static void large_schemas(void **state)
{
    (void)state;
    enum { ROOM = 1 << 20 };
    char *const text = malloc(ROOM);
    octe_vocab *const v = vocab_with(NULL);
    for (int shape = 0; shape < 8; shape++) {
        for (int n = 8; n <= 4096; n *= 2) {
            size_t at = 0;
            char *prepared, *grammar = NULL;
            oct_error error = OCT_ERROR_INIT;
            at += (size_t)sprintf(text + at, shape == 0 ? "" : shape == 1 || shape == 2 ? "{\"type\": \"object\", \"properties\": {" : shape == 3 ? "{\"enum\": [" : shape == 4 || shape == 6 ? "{\"anyOf\": [" : "{\"$ref\": \"#/$defs/d0\", \"$defs\": {");
            for (int i = 0; i < n && at < ROOM - 300; i++) {
                const char *const comma = i > 0 ? "," : "";
                switch (shape) {
                case 0: at += (size_t)sprintf(text + at, "{\"type\": \"array\", \"items\": "); break;
                case 1: at += (size_t)sprintf(text + at, "%s\"p%d\": {\"type\": \"integer\"}", comma, i); break;
                case 2: at += (size_t)sprintf(text + at, "%s\"p%d\": {\"type\": [\"string\", \"null\"], \"minLength\": 400, \"maxLength\": 512}", comma, i); break;
                case 3: at += (size_t)sprintf(text + at, "%s\"value number %d\"", comma, i); break;
                case 4: at += (size_t)sprintf(text + at, "%s{\"type\": \"string\", \"maxLength\": %d}", comma, 512 - i % 512); break;
                case 5: at += (size_t)sprintf(text + at, "%s\"d%d\": {\"anyOf\": [{\"$ref\": \"#/$defs/d%d\"}, {\"$ref\": \"#/$defs/d%d\"}]}", comma, i, (i + 1) % n, (i + 2) % n); break;
                case 6: at += (size_t)sprintf(text + at, "%s{\"type\": \"string\", \"pattern\": \"^a?(b|a*)[ab]{0,%d}c$\"}", comma, i % 250); break;
                default: at += (size_t)sprintf(text + at, "%s\"d%d\": {\"type\": \"array\", \"items\": {\"$ref\": \"#/$defs/d%d\"}, \"minItems\": 100, \"maxItems\": 512}", comma, i, (i + 1) % n); break;
                }
            }
            at += (size_t)sprintf(text + at, shape == 0 ? "{}" : shape == 1 || shape == 2 || shape == 5 || shape == 7 ? "}}" : "]}");
            for (int i = 0; shape == 0 && i < n; i++) {
                text[at++] = '}';
            }
            text[at] = '\0';
            oct_status status = prepare(text, &prepared, &error);
            if (status == OCT_OK) {
                status = octe_sandbox_grammar(sandbox, prepared, &grammar, &error);
            }
            if (status == OCT_OK) {
                octe_sampler_options options = OCTE_SAMPLER_OPTIONS_INIT;
                octe_sampler *sampler = NULL;
                options.grammar = grammar;
                (void)octe_sampler_create(v, &options, &sampler, &error);
                octe_sampler_destroy(sampler);
            }
            assert_true(status == OCT_OK || status == OCT_INVALID_ARGUMENT || status == OCT_UNSUPPORTED);
            free(prepared);
            free(grammar);
            if (status != OCT_OK) {
                break;
            }
        }
    }
    octe_vocab_close(v);
    free(text);
}

int main(void)
{
    const struct CMUnitTest built[] = { cmocka_unit_test(chat), cmocka_unit_test(hostile_templates), cmocka_unit_test(long_chats), cmocka_unit_test(two), cmocka_unit_test(schemas), cmocka_unit_test(refused_schemas),
                                        cmocka_unit_test(large_schemas) };
    const struct CMUnitTest always[] = { cmocka_unit_test(refused_schemas) };
    return octe_sandbox_is_built() ? cmocka_run_group_tests(built, open_all, close_all) : cmocka_run_group_tests(always, open_all, close_all);
}
