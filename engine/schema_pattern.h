/* Regular expressions of JSON Schemas, before llama.cpp's converter sees them. Pure; any thread. */
#ifndef OCTE_SCHEMA_PATTERN_H
#define OCTE_SCHEMA_PATTERN_H

#include <stdbool.h>

#include "engine/schema.h"

enum { OCTE__PATTERN_ROOM = 40 * OCTE_SCHEMA_PATTERN_BYTES };

/* An ECMA 262 pattern that is anchored at both ends, rewritten: what the converter does not know (\d, \w, escaped signs) in other words, and nothing that matches '"', '\' or a control
 * character, which a text of JSON can't have as they are. False: *why, static. */
bool octe__schema_pattern(const char *pattern, char out[OCTE__PATTERN_ROOM], const char **why);

#endif
