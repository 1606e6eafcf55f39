/* JSON Schemas before they become grammars: what llama.cpp's converter holds an answer to, and nothing that it would leave out, mistake or take forever over. Pure; any thread. */
#ifndef OCTE_SCHEMA_H
#define OCTE_SCHEMA_H

#include <jansson.h>

#include "octavo/status.h"

/* Of one schema. Its definitions count once. */
enum {
    OCTE_SCHEMA_NODES = 500,      /* schemas in it */
    OCTE_SCHEMA_DEPTH = 32,       /* one in another, without references */
    OCTE_SCHEMA_VALUES = 256,     /* of all its enums */
    OCTE_SCHEMA_ALTERNATIVES = 16, /* of a value: of anyOf and types, and those of alternatives, through references; an enum counts once */
    OCTE_SCHEMA_WAYS = 256,       /* to read one text: alternatives that begin alike, times those within them; and properties that may come next */
    OCTE_SCHEMA_BYTES = 65536,    /* as JSON */
    OCTE_SCHEMA_OPTIONAL = 32,    /* properties of an object that need not be there */
    OCTE_SCHEMA_REPEATS = 512,    /* minItems, maxItems, minLength, maxLength, {n} of a pattern */
    OCTE_SCHEMA_NAME_BYTES = 128, /* of a property */
    OCTE_SCHEMA_PATTERN_BYTES = 256
};

/* A schema as octe_sandbox_grammar takes it, *prepared malloc'ed JSON: annotations left out, definitions under names of their own, types written out. Every text of the grammar that comes of
 * it is JSON and valid; not every valid one is a text of it: properties come in the schema's order, and those that it does not name do not come. INVALID_ARGUMENT: it is no schema, has no
 * valid value, or is too large. UNSUPPORTED: a keyword by name. */
oct_status octe_schema_prepare(const json_t *schema, char **prepared, oct_error *error);

#endif
