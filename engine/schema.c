/* schema.c: see schema.h. Refused is what the converter would pass over (multipleOf, oneOf as one of several, bounds of numbers), apply to something else than it says (what stands beside
 * $ref, anyOf, const), or turn into text that is no JSON. */
#include "engine/schema.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/report.h"
#include "engine/schema_pattern.h"

static const char where[] = "octe_schema_prepare";

enum { MAX_DEFINITIONS = OCTE_SCHEMA_NODES, MAX_INTEGER_DIGITS = 15 };
static const json_int_t MAX_INTEGER = 999999999999999;   /* the grammar's numbers have so many digits */

typedef enum kind { KIND_OBJECT, KIND_ARRAY, KIND_STRING, KIND_INTEGER, KIND_NUMBER, KIND_BOOLEAN, KIND_NULL, KINDS } kind;
static const char *const kind_names[KINDS] = { "object", "array", "string", "integer", "number", "boolean", "null" };

typedef struct definition {
    const char *reference;   /* as the schema has it */
    const json_t *schema;
} definition;

typedef struct preparation {
    const json_t *root;
    definition definitions[MAX_DEFINITIONS];
    uint32_t n_definitions, n_nodes;
    size_t n_values;
    oct_error *error;
    oct_status status;
} preparation;

/* ---- words ---------------------------------------------------------------------------------------------------------- */

/* The first complaint stays. Returns NULL. */
#define FAIL(p, what, ...) ((p)->status == OCT_OK ? (void)((p)->status = octe__report((p)->error, what, where, NULL, __VA_ARGS__)) : (void)0, (json_t *)NULL)

static json_t *no_memory(preparation *p) { return FAIL(p, OCT_OUT_OF_MEMORY, "no memory for a schema"); }

static bool is_any(const char *word, const char *const *words)
{
    for (; *words != NULL; words++) {
        if (strcmp(word, *words) == 0) {
            return true;
        }
    }
    return false;
}

static const char *const annotations[] = { "title", "description", "default", "examples", "$schema", "$id", "$comment", "deprecated", "readOnly", "writeOnly", "$defs", "definitions", NULL };
static const char *const of_kind[KINDS][8] = {
    [KIND_OBJECT] = { "properties", "required", "additionalProperties" },
    [KIND_ARRAY] = { "items", "prefixItems", "minItems", "maxItems" },
    [KIND_STRING] = { "pattern", "format", "minLength", "maxLength" },
    [KIND_INTEGER] = { "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum" },
};

/* Whether the schema has nothing but annotations, `allowed` and what belongs to a kind of the set. */
static bool check_keywords(preparation *p, const json_t *schema, const char *const *allowed, unsigned kinds, const char *beside)
{
    static const char *const known[] = { "type", "enum", "const", "anyOf", "$ref", NULL };
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)schema, key, value) {
        bool fine = is_any(key, annotations) || is_any(key, allowed), elsewhere = is_any(key, known);
        for (int k = 0; k < KINDS; k++) {
            const bool belongs = is_any(key, of_kind[k]);
            fine = fine || (belongs && (kinds >> k & 1) != 0);
            elsewhere = elsewhere || belongs;
        }
        char quoted[OCTE__QUOTE_SIZE];
        if (!fine) {
            (void)(elsewhere ? FAIL(p, OCT_UNSUPPORTED, "the schema's keyword '%s' is not supported %s", octe__quote(quoted, key, strlen(key)), beside)
                             : FAIL(p, OCT_UNSUPPORTED, "the schema's keyword '%s' is not supported", octe__quote(quoted, key, strlen(key))));
            return false;
        }
    }
    return true;
}

/* A whole number from 0 to OCTE_SCHEMA_REPEATS. */
static bool read_count(preparation *p, const json_t *schema, const char *name, json_int_t *count)
{
    const json_t *const value = json_object_get(schema, name);
    const double x = json_number_value(value);
    if (value == NULL) {
        return true;
    }
    if (!json_is_number(value) || !(x >= 0 && x <= OCTE_SCHEMA_REPEATS) || x != floor(x)) {
        (void)FAIL(p, OCT_INVALID_ARGUMENT, "the schema's '%s' must be a whole number from 0 to %d", name, OCTE_SCHEMA_REPEATS);
        return false;
    }
    *count = (json_int_t)x;
    return true;
}

/* least and most by their names into `to`, where the schema has them. */
static bool copy_counts(preparation *p, const json_t *schema, const char *least_name, const char *most_name, json_t *to)
{
    json_int_t least = 0, most = OCTE_SCHEMA_REPEATS;
    if (!read_count(p, schema, least_name, &least) || !read_count(p, schema, most_name, &most)) {
        return false;
    }
    if (least > most) {
        (void)FAIL(p, OCT_INVALID_ARGUMENT, "the schema's '%s' is %lld, its '%s' %lld: no value has both", least_name, (long long)least, most_name, (long long)most);
        return false;
    }
    if (json_object_get(schema, least_name) != NULL) {
        (void)json_object_set_new(to, least_name, json_integer(least));
    }
    if (json_object_get(schema, most_name) != NULL) {
        (void)json_object_set_new(to, most_name, json_integer(most));
    }
    return true;
}

/* ---- references ------------------------------------------------------------------------------------------------------- */

static json_t *refer(preparation *p, uint32_t i)
{
    char name[32];
    /* No property's rule ends in such a name, and none begins with it: every other rule is one of a definition's parts. */
    (void)snprintf(name, sizeof(name), "#/$defs/d%ux", i);
    json_t *const made = json_pack("{s:s}", "$ref", name);
    return made != NULL ? made : no_memory(p);
}

static json_t *copy_reference(preparation *p, const json_t *schema)
{
    static const char *const folders[] = { "$defs", "definitions" };
    static const char *const alone[] = { "$ref", NULL };
    const char *const reference = json_string_value(json_object_get(schema, "$ref"));
    char quoted[OCTE__QUOTE_SIZE];
    const json_t *target = NULL;
    if (!check_keywords(p, schema, alone, 0, "beside '$ref'")) {
        return NULL;
    }
    if (reference == NULL) {
        return FAIL(p, OCT_INVALID_ARGUMENT, "the schema's '$ref' must be a text");
    }
    for (uint32_t i = 0; i < p->n_definitions; i++) {
        if (strcmp(p->definitions[i].reference, reference) == 0) {
            return refer(p, i);
        }
    }
    target = strcmp(reference, "#") == 0 ? p->root : NULL;
    for (int i = 0; i < 2; i++) {
        const size_t n = strlen(folders[i]);
        if (strncmp(reference, "#/", 2) == 0 && strncmp(reference + 2, folders[i], n) == 0 && reference[2 + n] == '/') {
            target = json_object_get(json_object_get(p->root, folders[i]), reference + 3 + n);
        }
    }
    if (target == NULL) {
        return FAIL(p, OCT_UNSUPPORTED, "the schema's reference '%s' is not supported; '#' and '#/$defs/NAME' are, of names that it has", octe__quote(quoted, reference, strlen(reference)));
    }
    if (p->n_definitions == MAX_DEFINITIONS) {
        return FAIL(p, OCT_INVALID_ARGUMENT, "the schema refers to more than %d definitions", MAX_DEFINITIONS);
    }
    p->definitions[p->n_definitions] = (definition){ reference, target };
    return refer(p, p->n_definitions++);
}

/* ---- by type ------------------------------------------------------------------------------------------------------------ */

static json_t *copy(preparation *p, const json_t *schema, uint32_t depth);

static bool check_name(preparation *p, const char *name)
{
    char quoted[OCTE__QUOTE_SIZE];
    /* The converter takes the name "*" for that of all other properties, and an empty one for no name. */
    if (name[0] == '\0' || strcmp(name, "*") == 0 || strlen(name) > OCTE_SCHEMA_NAME_BYTES) {
        (void)FAIL(p, OCT_UNSUPPORTED, "a property of the name '%s' is not supported: names have 1 to %d bytes and are not '*'", octe__quote(quoted, name, strlen(name)), OCTE_SCHEMA_NAME_BYTES);
        return false;
    }
    return true;
}

static bool copy_required(preparation *p, const json_t *schema, json_t *to)
{
    const json_t *const required = json_object_get(schema, "required"), *const properties = json_object_get(schema, "properties");
    char quoted[OCTE__QUOTE_SIZE];
    if (required != NULL && !json_is_array(required)) {
        (void)FAIL(p, OCT_INVALID_ARGUMENT, "the schema's 'required' must be a list of names");
        return false;
    }
    const char *key;
    json_t *value;
    for (size_t i = 0; i < json_array_size(required); i++) {
        const char *const name = json_string_value(json_array_get(required, i));
        if (name == NULL || json_object_get(properties, name) == NULL) {
            (void)FAIL(p, OCT_INVALID_ARGUMENT, "the schema requires '%s', which is none of its 'properties'", octe__quote(quoted, name != NULL ? name : "", name != NULL ? strlen(name) : 0));
            return false;
        }
    }
    json_t *const needed = json_array();   /* each once, in the order of the properties */
    json_object_foreach((json_t *)properties, key, value) {
        for (size_t i = 0; i < json_array_size(required); i++) {
            if (strcmp(json_string_value(json_array_get(required, i)), key) == 0) {
                (void)json_array_append_new(needed, json_string(key));
                break;
            }
        }
    }
    const size_t n_optional = json_object_size(properties) - json_array_size(needed);
    if (json_object_set_new(to, "required", needed) != 0) {
        (void)no_memory(p);
        return false;
    }
    if (n_optional > OCTE_SCHEMA_OPTIONAL) {
        (void)FAIL(p, OCT_INVALID_ARGUMENT, "an object of the schema has %zu properties that are not 'required'; at most %d", n_optional, OCTE_SCHEMA_OPTIONAL);
        return false;
    }
    return true;
}

static json_t *copy_object(preparation *p, const json_t *schema, uint32_t depth, json_t *to)
{
    const json_t *const properties = json_object_get(schema, "properties"), *const more = json_object_get(schema, "additionalProperties");
    const char *key;
    json_t *value;
    if (properties != NULL && !json_is_object(properties)) {
        return FAIL(p, OCT_INVALID_ARGUMENT, "the schema's 'properties' must be an object");
    }
    if (!copy_required(p, schema, to)) {
        return NULL;
    }
    /* Beside names of its own, the converter's rule for other names lets texts through that are no JSON. */
    if (json_object_size(properties) > 0 && more != NULL && !json_is_false(more)) {
        return FAIL(p, OCT_UNSUPPORTED, "the schema's 'additionalProperties' beside 'properties' is not supported, but for false");
    }
    if (properties != NULL) {
        json_t *const made = json_object();
        (void)json_object_set_new(to, "properties", made);
        json_object_foreach((json_t *)properties, key, value) {
            json_t *const part = check_name(p, key) ? copy(p, value, depth + 1) : NULL;
            if (part == NULL || json_object_set_new(made, key, part) != 0) {
                return part == NULL ? NULL : no_memory(p);
            }
        }
    }
    if (json_is_boolean(more) && (properties == NULL || json_object_size(properties) == 0 || json_is_false(more))) {
        (void)json_object_set(to, "additionalProperties", (json_t *)more);
    } else if (more != NULL) {
        json_t *const part = copy(p, more, depth + 1);
        if (part == NULL) {
            return NULL;
        }
        (void)json_object_set_new(to, "additionalProperties", part);
    }
    return to;
}

static json_t *copy_list(preparation *p, const json_t *list, const char *name, uint32_t depth)
{
    json_t *const made = json_array();
    if (!json_is_array(list) || json_array_size(list) == 0) {
        json_decref(made);
        return FAIL(p, OCT_INVALID_ARGUMENT, "the schema's '%s' must be a list of schemas, at least one", name);
    }
    for (size_t i = 0; i < json_array_size(list); i++) {
        json_t *const part = copy(p, json_array_get(list, i), depth + 1);
        if (part == NULL || json_array_append_new(made, part) != 0) {
            json_decref(made);
            return part == NULL ? NULL : no_memory(p);
        }
    }
    return made;
}

static json_t *copy_array(preparation *p, const json_t *schema, uint32_t depth, json_t *to)
{
    const json_t *const items = json_object_get(schema, "items"), *const first = json_object_get(schema, "prefixItems");
    if (first != NULL) {
        /* The converter's tuples have as many items as there are schemas, whatever else is said. */
        json_int_t least = 0, most = (json_int_t)json_array_size(first);
        const json_int_t n = most;
        if (items != NULL && !json_is_false(items)) {
            return FAIL(p, OCT_UNSUPPORTED, "the schema's 'items' beside 'prefixItems' is not supported, but for false");
        }
        if (!read_count(p, schema, "minItems", &least) || !read_count(p, schema, "maxItems", &most)) {
            return NULL;
        }
        if (least > n || most < n) {
            return FAIL(p, OCT_UNSUPPORTED, "the schema's 'minItems' or 'maxItems' beside 'prefixItems' is not supported, but for as many as there are");
        }
        json_t *const parts = copy_list(p, first, "prefixItems", depth);
        return parts == NULL ? NULL : json_object_set_new(to, "prefixItems", parts) == 0 ? to : no_memory(p);
    }
    if (items != NULL) {
        json_t *const part = copy(p, items, depth + 1);
        if (part == NULL || json_object_set_new(to, "items", part) != 0) {
            return part == NULL ? NULL : no_memory(p);
        }
    }
    return copy_counts(p, schema, "minItems", "maxItems", to) ? to : NULL;
}

static json_t *copy_string(preparation *p, const json_t *schema, json_t *to)
{
    static const char *const formats[] = { "date", "time", "date-time", "uuid", NULL };
    const json_t *const pattern = json_object_get(schema, "pattern"), *const format = json_object_get(schema, "format");
    const bool counted = json_object_get(schema, "minLength") != NULL || json_object_get(schema, "maxLength") != NULL;
    char quoted[OCTE__QUOTE_SIZE];
    if ((pattern != NULL) + (format != NULL) + counted > 1) {
        return FAIL(p, OCT_UNSUPPORTED, "the schema's 'pattern', 'format' and lengths of one text are not supported together");
    }
    if (format != NULL) {
        const char *const name = json_is_string(format) ? json_string_value(format) : "";
        if (!is_any(name, formats)) {
            return FAIL(p, OCT_UNSUPPORTED, "the schema's 'format' '%s' is not supported; date, time, date-time and uuid are", octe__quote(quoted, name, strlen(name)));
        }
        (void)json_object_set(to, "format", (json_t *)format);
    }
    if (pattern != NULL) {
        const char *why = NULL;
        char rewritten[OCTE__PATTERN_ROOM];
        if (!json_is_string(pattern)) {
            return FAIL(p, OCT_INVALID_ARGUMENT, "the schema's 'pattern' must be a text");
        }
        if (!octe__schema_pattern(json_string_value(pattern), rewritten, &why)) {
            return FAIL(p, OCT_UNSUPPORTED, "the schema's 'pattern' '%s' is not supported: %s", octe__quote(quoted, json_string_value(pattern), json_string_length(pattern)), why);
        }
        (void)json_object_set_new(to, "pattern", json_string(rewritten));
    }
    return copy_counts(p, schema, "minLength", "maxLength", to) ? to : NULL;
}

/* The largest (least: smallest) whole number that a bound allows; false: it is none. */
static bool read_bound(preparation *p, const json_t *schema, const char *name, bool least, bool exclusive, json_int_t *bound)
{
    const json_t *const value = json_object_get(schema, name);
    const double x = json_number_value(value);
    if (value == NULL) {
        return true;
    }
    if (!json_is_number(value) || !(fabs(x) <= (double)MAX_INTEGER)) {
        (void)FAIL(p, OCT_INVALID_ARGUMENT, "the schema's '%s' must be a number of at most %d digits", name, MAX_INTEGER_DIGITS);
        return false;
    }
    json_int_t whole = (json_int_t)(least ? ceil(x) : floor(x));
    whole += exclusive && (double)whole == x ? (least ? 1 : -1) : 0;
    *bound = (least ? whole > *bound : whole < *bound) ? whole : *bound;
    return true;
}

static json_t *copy_integer(preparation *p, const json_t *schema, json_t *to)
{
    json_int_t least = -MAX_INTEGER - 1, most = MAX_INTEGER + 1;
    if (!read_bound(p, schema, "minimum", true, false, &least) || !read_bound(p, schema, "exclusiveMinimum", true, true, &least) ||
        !read_bound(p, schema, "maximum", false, false, &most) || !read_bound(p, schema, "exclusiveMaximum", false, true, &most)) {
        return NULL;
    }
    if (least > most || least > MAX_INTEGER || most < -MAX_INTEGER) {
        return FAIL(p, OCT_INVALID_ARGUMENT, "the schema's bounds leave no integer");
    }
    /* Both or none: of one alone the converter writes numbers that begin with 0, like -0412. */
    if (least >= -MAX_INTEGER || most <= MAX_INTEGER) {
        (void)json_object_set_new(to, "minimum", json_integer(least >= -MAX_INTEGER ? least : -MAX_INTEGER));
        (void)json_object_set_new(to, "maximum", json_integer(most <= MAX_INTEGER ? most : MAX_INTEGER));
    }
    return to;
}

static json_t *copy_kind(preparation *p, const json_t *schema, kind k, uint32_t depth)
{
    json_t *const to = json_pack("{s:s}", "type", kind_names[k]);
    json_t *const made = to == NULL            ? no_memory(p)
                         : k == KIND_OBJECT  ? copy_object(p, schema, depth, to)
                         : k == KIND_ARRAY   ? copy_array(p, schema, depth, to)
                         : k == KIND_STRING  ? copy_string(p, schema, to)
                         : k == KIND_INTEGER ? copy_integer(p, schema, to)
                                             : to;
    if (made == NULL) {
        json_decref(to);
    }
    return made;
}

/* ---- any schema ------------------------------------------------------------------------------------------------------------ */

/* The types that a schema names, as a set; 0: an error. No type: those that its keywords are about. */
static unsigned read_kinds(preparation *p, const json_t *schema)
{
    const json_t *const type = json_object_get(schema, "type");
    const size_t n = json_is_array(type) ? json_array_size(type) : 1;
    unsigned kinds = 0;
    for (size_t i = 0; type != NULL && i < n; i++) {
        const char *const name = json_string_value(json_is_array(type) ? json_array_get(type, i) : type);
        int k = 0;
        while (k < KINDS && (name == NULL || strcmp(name, kind_names[k]) != 0)) {
            k++;
        }
        if (k == KINDS) {
            (void)FAIL(p, OCT_INVALID_ARGUMENT, "the schema's 'type' must be object, array, string, integer, number, boolean or null, or a list of them");
            return 0;
        }
        kinds |= 1u << k;
    }
    if (type != NULL) {
        if (kinds == 0) {
            (void)FAIL(p, OCT_INVALID_ARGUMENT, "the schema's 'type' is an empty list");
        }
        return kinds;
    }
    for (int k = 0; k < KINDS; k++) {
        for (const char *const *word = of_kind[k]; *word != NULL; word++) {
            kinds |= json_object_get(schema, *word) != NULL ? 1u << k : 0;
        }
    }
    if (kinds == 0) {
        return (1u << KINDS) - 1;
    }
    if ((kinds & (kinds - 1)) != 0 || kinds == 1u << KIND_INTEGER) {
        (void)FAIL(p, OCT_INVALID_ARGUMENT, "a schema with keywords of numbers, or of several types, must name its 'type'");
        return 0;
    }
    return kinds;
}

static unsigned kinds_of_value(const json_t *value)
{
    switch (json_typeof(value)) {
    case JSON_OBJECT: return 1u << KIND_OBJECT;
    case JSON_ARRAY: return 1u << KIND_ARRAY;
    case JSON_STRING: return 1u << KIND_STRING;
    case JSON_INTEGER: return 1u << KIND_INTEGER | 1u << KIND_NUMBER;
    case JSON_REAL: return 1u << KIND_NUMBER | (json_real_value(value) == floor(json_real_value(value)) ? 1u << KIND_INTEGER : 0);
    case JSON_NULL: return 1u << KIND_NULL;
    default: return 1u << KIND_BOOLEAN;
    }
}

/* const and enum: of the values those that have a type that is asked for. */
static json_t *copy_values(preparation *p, const json_t *schema)
{
    static const char *const beside[] = { "type", "enum", "const", NULL };
    const json_t *const one = json_object_get(schema, "const"), *const list = json_object_get(schema, "enum");
    if (!check_keywords(p, schema, beside, 0, "beside 'const' or 'enum'")) {
        return NULL;
    }
    if ((one != NULL) == (list != NULL) || (list != NULL && !json_is_array(list))) {
        return FAIL(p, OCT_INVALID_ARGUMENT, "the schema's 'enum' must be a list of values, without a 'const' beside it");
    }
    const unsigned kinds = read_kinds(p, schema);
    json_t *const made = json_array();
    const size_t n = one != NULL ? 1 : json_array_size(list);
    p->n_values += n;
    if (kinds == 0 || made == NULL || p->n_values > OCTE_SCHEMA_VALUES) {
        json_decref(made);
        return kinds == 0 ? NULL : made == NULL ? no_memory(p) : FAIL(p, OCT_INVALID_ARGUMENT, "the schema's enums have more than %d values", OCTE_SCHEMA_VALUES);
    }
    for (size_t i = 0; i < n; i++) {
        json_t *const value = one != NULL ? (json_t *)one : json_array_get(list, i);
        if ((kinds_of_value(value) & kinds) != 0) {
            (void)json_array_append(made, value);
        }
    }
    json_t *const result = json_array_size(made) > 0 ? json_pack("{s:O}", "enum", made) : FAIL(p, OCT_INVALID_ARGUMENT, "no value of the schema's 'enum' or 'const' has its 'type'");
    json_decref(made);
    return result;
}

static json_t *copy_alternatives(preparation *p, const json_t *schema, uint32_t depth)
{
    static const char *const alone[] = { "anyOf", NULL };
    json_t *const parts = check_keywords(p, schema, alone, 0, "beside 'anyOf'") ? copy_list(p, json_object_get(schema, "anyOf"), "anyOf", depth) : NULL;
    return parts != NULL ? json_pack("{s:o}", "anyOf", parts) : NULL;
}

static json_t *copy(preparation *p, const json_t *schema, uint32_t depth)
{
    static const char *const type[] = { "type", NULL };
    if (!json_is_object(schema)) {
        return FAIL(p, OCT_INVALID_ARGUMENT, "a schema must be an object");
    }
    if (depth > OCTE_SCHEMA_DEPTH || p->n_nodes++ >= OCTE_SCHEMA_NODES) {
        return FAIL(p, OCT_INVALID_ARGUMENT, "the schema has more than %d schemas in it, or %d within each other", OCTE_SCHEMA_NODES, OCTE_SCHEMA_DEPTH);
    }
    if (json_object_get(schema, "$ref") != NULL) {
        return copy_reference(p, schema);
    }
    if (json_object_get(schema, "anyOf") != NULL) {
        return copy_alternatives(p, schema, depth);
    }
    if (json_object_get(schema, "const") != NULL || json_object_get(schema, "enum") != NULL) {
        return copy_values(p, schema);
    }
    const unsigned kinds = read_kinds(p, schema);
    if (kinds == 0 || !check_keywords(p, schema, type, kinds, "with this 'type'")) {
        return NULL;
    }
    if (kinds == (1u << KINDS) - 1 && json_object_get(schema, "type") == NULL) {
        return json_object();
    }
    json_t *one = NULL, *all = NULL;
    for (int k = 0; k < KINDS && p->status == OCT_OK; k++) {
        if ((kinds >> k & 1) == 0) {
            continue;
        }
        one = copy_kind(p, schema, (kind)k, depth);
        if (one != NULL && (kinds & (kinds - 1)) != 0) {
            all = all != NULL ? all : json_array();
            (void)json_array_append_new(all, one);
            one = NULL;
        }
    }
    if (p->status != OCT_OK) {
        json_decref(one);
        json_decref(all);
        return NULL;
    }
    return all != NULL ? json_pack("{s:o}", "anyOf", all) : one;
}

/* ---- ways to begin ---------------------------------------------------------------------------------------------------------- */

typedef struct ways {
    preparation *p;
    const json_t *definitions;
    uint32_t of[MAX_DEFINITIONS];   /* 0: not counted yet */
    bool open[MAX_DEFINITIONS];
    uint32_t width[MAX_DEFINITIONS];   /* ways through it that may go on side by side */
} ways;

static uint32_t count_ways(ways *w, const json_t *node);

static uint32_t index_of(const char *reference) { return (uint32_t)strtoul(reference + sizeof("#/$defs/d") - 1, NULL, 10); }

static uint32_t count_definition(ways *w, const char *reference)
{
    const uint32_t i = index_of(reference);
    if (w->open[i]) {
        (void)FAIL(w->p, OCT_INVALID_ARGUMENT, "the schema refers to itself with nothing between");
        return 1;
    }
    if (w->of[i] == 0) {
        w->open[i] = true;
        w->of[i] = count_ways(w, json_object_get(w->definitions, reference + sizeof("#/$defs/") - 1));
        w->open[i] = false;
    }
    return w->of[i];
}

/* libllama follows all of them at once, each through all tokens (10 ms for the 49,152 of SmolLM2); of alternatives within alternatives it would soon be more than any memory holds. */
static uint32_t count_ways(ways *w, const json_t *node)
{
    const char *const reference = json_string_value(json_object_get(node, "$ref"));
    const json_t *const alternatives = json_object_get(node, "anyOf");
    uint32_t n = alternatives != NULL ? 0 : 1;
    if (reference != NULL) {
        n = count_definition(w, reference);
    }
    for (size_t i = 0; i < json_array_size(alternatives) && n <= OCTE_SCHEMA_ALTERNATIVES; i++) {
        n += count_ways(w, json_array_get(alternatives, i));
    }
    if (n > OCTE_SCHEMA_ALTERNATIVES) {
        (void)FAIL(w->p, OCT_INVALID_ARGUMENT, "a value of the schema has more than %d alternatives", OCTE_SCHEMA_ALTERNATIVES);
    }
    return n > OCTE_SCHEMA_ALTERNATIVES ? OCTE_SCHEMA_ALTERNATIVES + 1 : n;
}

static void check_node(ways *w, const json_t *node)
{
    const char *key;
    json_t *value;
    (void)count_ways(w, node);
    json_object_foreach((json_t *)json_object_get(node, "properties"), key, value) {
        check_node(w, value);
    }
    static const char *const lists[] = { "anyOf", "prefixItems" }, *const ones[] = { "items", "additionalProperties" };
    for (int i = 0; i < 2; i++) {
        const json_t *const list = json_object_get(node, lists[i]), *const one = json_object_get(node, ones[i]);
        for (size_t k = 0; k < json_array_size(list); k++) {
            check_node(w, json_array_get(list, k));
        }
        if (json_is_object(one)) {
            check_node(w, one);
        }
    }
}

/* ---- ways that go on ---------------------------------------------------------------------------------------------------------- */

typedef struct leaf {
    const json_t *node;
    const char *reference;   /* whose definition it is a part of; NULL: of the node's own */
} leaf;

/* The alternatives of a node that are none of others, through references: at most OCTE_SCHEMA_ALTERNATIVES, as has been counted. */
static uint32_t gather_leaves(const ways *w, const json_t *node, const char *from, leaf *leaves, uint32_t n)
{
    const char *const reference = json_string_value(json_object_get(node, "$ref"));
    const json_t *const alternatives = json_object_get(node, "anyOf");
    if (reference != NULL) {
        return gather_leaves(w, json_object_get(w->definitions, reference + sizeof("#/$defs/") - 1), reference, leaves, n);
    }
    for (size_t i = 0; i < json_array_size(alternatives); i++) {
        n = gather_leaves(w, json_array_get(alternatives, i), from, leaves, n);
    }
    if (alternatives == NULL && n < OCTE_SCHEMA_ALTERNATIVES) {
        leaves[n++] = (leaf){ node, from };
    }
    return n;
}

static unsigned kinds_of_leaf(const json_t *node)
{
    const json_t *const values = json_object_get(node, "enum");
    const char *const type = json_string_value(json_object_get(node, "type"));
    unsigned kinds = 0;
    for (size_t i = 0; i < json_array_size(values); i++) {
        kinds |= kinds_of_value(json_array_get(values, i));
    }
    for (int k = 0; k < KINDS && type != NULL; k++) {
        kinds |= strcmp(type, kind_names[k]) == 0 ? 1u << k : 0;
    }
    kinds |= (kinds & (1u << KIND_INTEGER | 1u << KIND_NUMBER)) != 0 ? 1u << KIND_INTEGER | 1u << KIND_NUMBER : 0;
    return kinds != 0 ? kinds : (1u << KINDS) - 1;
}

/* The property that comes first in all of an object's texts; NULL: none. The grammar has what is required before what is not, as copy_required does. */
static const json_t *first_property(const json_t *node, const char **name)
{
    *name = json_string_value(json_array_get(json_object_get(node, "required"), 0));
    return *name != NULL ? json_object_get(json_object_get(node, "properties"), *name) : NULL;
}

/* Whether a text may go on as either for long: of one kind, and objects not told apart by their first property's name or values. */
static bool go_on_alike(const json_t *a, const json_t *b)
{
    const char *name_a, *name_b;
    if ((kinds_of_leaf(a) & kinds_of_leaf(b)) == 0) {
        return false;
    }
    const json_t *const first_a = first_property(a, &name_a), *const first_b = first_property(b, &name_b);
    if (a == b || first_a == NULL || first_b == NULL) {
        return true;
    }
    const json_t *const values_a = json_object_get(first_a, "enum"), *const values_b = json_object_get(first_b, "enum");
    if (strcmp(name_a, name_b) != 0) {
        return false;
    }
    for (size_t i = 0; i < json_array_size(values_a); i++) {
        for (size_t k = 0; k < json_array_size(values_b); k++) {
            if (json_equal(json_array_get(values_a, i), json_array_get(values_b, k))) {
                return true;
            }
        }
    }
    return values_a == NULL || values_b == NULL;
}

static uint32_t larger(uint32_t a, uint32_t b) { return a > b ? a : b; }

static uint32_t width_of(const ways *w, const json_t *node);

static uint32_t width_of_leaf(const ways *w, const json_t *node)
{
    static const char *const ones[] = { "items", "additionalProperties" };
    const json_t *const properties = json_object_get(node, "properties"), *const first = json_object_get(node, "prefixItems");
    uint32_t width = 1 + (uint32_t)(json_object_size(properties) - json_array_size(json_object_get(node, "required")));
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)properties, key, value) {
        width = larger(width, width_of(w, value));
    }
    for (size_t i = 0; i < json_array_size(first); i++) {
        width = larger(width, width_of(w, json_array_get(first, i)));
    }
    for (int i = 0; i < 2; i++) {
        const json_t *const one = json_object_get(node, ones[i]);
        width = json_is_object(one) ? larger(width, width_of(w, one)) : width;
    }
    return width;
}

static uint32_t width_of(const ways *w, const json_t *node)
{
    const char *const reference = json_string_value(json_object_get(node, "$ref"));
    leaf leaves[OCTE_SCHEMA_ALTERNATIVES];
    uint32_t widths[OCTE_SCHEMA_ALTERNATIVES], width = 1;
    if (reference != NULL) {
        return w->width[index_of(reference)];
    }
    if (json_object_get(node, "anyOf") == NULL) {
        return width_of_leaf(w, node);
    }
    const uint32_t n = gather_leaves(w, node, NULL, leaves, 0);
    for (uint32_t i = 0; i < n; i++) {
        widths[i] = leaves[i].reference != NULL ? w->width[index_of(leaves[i].reference)] : width_of_leaf(w, leaves[i].node);
    }
    for (uint32_t i = 0; i < n; i++) {
        uint32_t sum = 0;
        for (uint32_t k = 0; k < n; k++) {
            sum += go_on_alike(leaves[i].node, leaves[k].node) ? widths[k] : 0;
        }
        width = larger(width, sum);
    }
    return width <= OCTE_SCHEMA_WAYS ? width : OCTE_SCHEMA_WAYS + 1;
}

/* Alternatives that begin alike multiply with those within them: 16 objects of one property whose values are 16 such, four deep, are 65,536 ways that libllama follows. The last
 * definitions first, which others refer to: what still grows after a few rounds grows within itself. */
static void check_widths(ways *w, uint32_t n)
{
    enum { ROUNDS = 16 };
    bool grows = true;
    char name[32];
    for (int round = 0; round < ROUNDS && grows; round++) {
        grows = false;
        for (uint32_t i = n; i-- > 0;) {
            (void)snprintf(name, sizeof(name), "d%ux", i);
            const uint32_t width = width_of(w, json_object_get(w->definitions, name));
            grows = grows || width > w->width[i];
            w->width[i] = larger(w->width[i], width);
        }
    }
    for (uint32_t i = 0; i < n; i++) {
        grows = grows || w->width[i] > OCTE_SCHEMA_WAYS;
    }
    if (grows) {
        (void)FAIL(w->p, OCT_INVALID_ARGUMENT, "alternatives of the schema that begin alike have others in them: more than %d ways to read a text", OCTE_SCHEMA_WAYS);
    }
}

static void check_ways(preparation *p, const json_t *definitions)
{
    const char *key;
    json_t *value;
    ways *const w = calloc(1, sizeof(*w));
    if (w == NULL) {
        (void)no_memory(p);
        return;
    }
    w->p = p;
    w->definitions = definitions;
    json_object_foreach((json_t *)definitions, key, value) {
        check_node(w, value);
    }
    if (p->status == OCT_OK) {
        check_widths(w, p->n_definitions);
    }
    free(w);
}

oct_status octe_schema_prepare(const json_t *schema, char **prepared, oct_error *error)
{
    preparation *const p = calloc(1, sizeof(*p));
    json_t *const definitions = json_object();
    char name[32];
    *prepared = NULL;
    if (p == NULL || definitions == NULL) {
        free(p);
        json_decref(definitions);
        return octe__report(error, OCT_OUT_OF_MEMORY, where, NULL, "no memory for a schema");
    }
    p->root = schema;
    p->error = error;
    p->definitions[0] = (definition){ "#", schema };
    p->n_definitions = 1;
    if (json_dumpb(schema, NULL, 0, JSON_COMPACT | JSON_ENCODE_ANY) > OCTE_SCHEMA_BYTES) {
        (void)FAIL(p, OCT_INVALID_ARGUMENT, "the schema has more than %d bytes", OCTE_SCHEMA_BYTES);
    }
    for (uint32_t i = 0; i < p->n_definitions && p->status == OCT_OK; i++) {
        json_t *const made = copy(p, p->definitions[i].schema, 0);
        (void)snprintf(name, sizeof(name), "d%ux", i);
        if (made != NULL && json_object_set_new(definitions, name, made) != 0) {
            (void)no_memory(p);
        } else if (made == NULL) {
            (void)no_memory(p);   /* unless something else was said */
        }
    }
    if (p->status == OCT_OK) {
        check_ways(p, definitions);
    }
    json_t *const whole = p->status == OCT_OK ? json_pack("{s:s, s:O}", "$ref", "#/$defs/d0x", "$defs", definitions) : NULL;
    *prepared = whole != NULL ? json_dumps(whole, JSON_COMPACT) : NULL;
    if (*prepared == NULL) {
        (void)no_memory(p);
    }
    const oct_status status = p->status;
    json_decref(whole);
    json_decref(definitions);
    free(p);
    return status;
}
