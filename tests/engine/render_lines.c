/* Lines of JSON, each with a "template" and its "variables", or a "schema"; for each a line with the "outcome" and the "text". For test_render.py, which has Python's jinja2 to compare with. */
#include <stdio.h>
#include <stdlib.h>

#include <jansson.h>

#include "engine/sandbox_jobs.h"
#include "engine/schema.h"

enum { ROOM = 1 << 24 };

int main(void)
{
    json_t *ask;
    char *const room = malloc(ROOM);
    while (room != NULL && (ask = json_loadf(stdin, JSON_DISABLE_EOF_CHECK, NULL)) != NULL) {
        octe__job_text text = { room, 0, ROOM };
        octe__job_outcome outcome = OCTE__JOB_FAILED;
        const json_t *const schema = json_object_get(ask, "schema");
        if (schema != NULL) {
            oct_error error = OCT_ERROR_INIT;
            char *prepared = NULL;
            const oct_status status = octe_schema_prepare(schema, &prepared, &error);
            if (status == OCT_OK) {
                outcome = octe__job_grammar(prepared, &text);
            } else {
                text.n = (size_t)snprintf(room, ROOM, "%s", error.text);
            }
            free(prepared);
        } else {
            char *const variables = json_dumps(json_object_get(ask, "variables"), JSON_COMPACT);
            outcome = octe__job_chat(json_string_value(json_object_get(ask, "template")), variables, &text);
            free(variables);
        }
        json_t *const line = json_pack("{s:i, s:s%}", "outcome", (int)outcome, "text", room, text.n);
        char *const said = line != NULL ? json_dumps(line, JSON_COMPACT) : NULL;
        puts(said != NULL ? said : "null");
        free(said);
        json_decref(line);
        json_decref(ask);
    }
    free(room);
    return 0;
}
