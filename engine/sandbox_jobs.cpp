/* sandbox_jobs.cpp: see sandbox_jobs.h. The engine's only C++, since llama-jinja has no other interface. */
#include "engine/sandbox_jobs.h"

#include <cstring>
#include <new>
#include <string>

#include <jinja/lexer.h>
#include <jinja/parser.h>
#include <jinja/runtime.h>
#include <json-schema-to-grammar.h>
#include <json.h>

namespace {

octe__job_outcome give(octe__job_text *text, octe__job_outcome outcome, const char *bytes, size_t n)
{
    if (n > text->room) {
        text->n = 0;
        return OCTE__JOB_TOO_LONG;
    }
    std::memcpy(text->bytes, bytes, n);
    text->n = n;
    return outcome;
}

/* The runtime puts where it was before what went wrong: a template's own words stand behind "Jinja Exception: ". */
octe__job_outcome give_error(octe__job_text *text, const char *what)
{
    static const char raised[] = "Jinja Exception: ", error[] = "\nError: ";
    const char *const own = std::strstr(what, error);
    const char *const words = own != nullptr ? own + sizeof(error) - 1 : what;
    if (std::strncmp(words, raised, sizeof(raised) - 1) == 0) {
        return give(text, OCTE__JOB_REFUSED, words + sizeof(raised) - 1, std::strlen(words) - (sizeof(raised) - 1));
    }
    return give(text, OCTE__JOB_FAILED, words, std::strlen(words));
}

template <typename Work> octe__job_outcome guarded(octe__job_text *text, Work work)
{
    try {
        const std::string made = work();
        return give(text, OCTE__JOB_DONE, made.data(), made.size());
    } catch (const std::bad_alloc &) {
        return OCTE__JOB_NO_MEMORY;
    } catch (const std::exception &e) {
        return give_error(text, e.what());
    } catch (...) {
        return give_error(text, "an exception without words");
    }
}

std::string render(const char *chat_template, const char *variables_json)
{
    jinja::lexer lexer;
    const jinja::lexer_result tokens = lexer.tokenize(chat_template);
    const jinja::program program = jinja::parse_from_tokens(tokens);
    if (variables_json == nullptr) {
        return "";
    }
    jinja::context context(tokens.source);
    jinja::global_from_json(context, common_json::parse(variables_json), false);
    jinja::runtime runtime(context);
    return jinja::render_string_parts(jinja::runtime::gather_string_parts(runtime.execute(program)));
}

}

octe__job_outcome octe__job_chat(const char *chat_template, const char *variables_json, octe__job_text *text)
{
    return guarded(text, [&] { return render(chat_template, variables_json); });
}

octe__job_outcome octe__job_grammar(const char *schema_json, octe__job_text *text)
{
    return guarded(text, [&] { return json_schema_to_grammar(common_json::parse(schema_json), true); });
}
