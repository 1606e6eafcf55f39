/* schema_pattern.c: see schema_pattern.h. The converter joins signs to a literal and repeats all of it where the last one was escaped or has several bytes: such a sign becomes a class by itself. */
#include "engine/schema_pattern.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>

/* {n}, all together; and ways to read on: one for each '?' and '|', two for what repeats without a number. libllama follows all of them through each token: with 16 '.?' it takes a second for one, with
 * (.|..|...|....|.....|......){200} three: alternatives times how often, where there are any, are bounded, too. */
enum { MAX_GROUPS = 32, MAX_REPEATS = 256, MAX_WAYS = 6, MAX_ALTERNATED = 64 };

typedef struct scan {
    const char *at, *end;   /* what is left */
    char *out;
    size_t n_out;
    const char *why;
    bool loose[MAX_GROUPS];      /* the open groups: whether a repetition is in them */
    uint32_t group_ways[MAX_GROUPS];   /* n_ways where they began */
    uint32_t n_groups, n_repeats, n_ways;
    bool has_atom, atom_loose;   /* what a repetition would repeat */
    uint32_t atom_ways;          /* alternatives in it */
    bool filled;                 /* whether the alternative that is read has anything */
} scan;

static const char not_json[] = "what may be '\"', '\\' or a control character can't stand in a text of JSON as it is";
static const char empty[] = "a group or an alternative is not empty";
static const char signs[] = "^$.[](){}|*+?-/";

static bool fail(scan *s, const char *why)
{
    s->why = why;
    return false;
}

static void put(scan *s, const char *text)
{
    const size_t n = strlen(text);
    memcpy(s->out + s->n_out, text, n);   /* OCTE__PATTERN_ROOM is enough: no byte becomes more than 40 */
    s->n_out += n;
}

/* A character within a class: letters, digits and whatever is longer than a byte as they are. */
static void put_member(scan *s, const char *text, size_t n)
{
    char escaped[8];
    const unsigned char c = (unsigned char)text[0];
    if (n == 1 && !((c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z'))) {
        (void)snprintf(escaped, sizeof(escaped), "\\x%02X", c);
        put(s, escaped);
        return;
    }
    memcpy(s->out + s->n_out, text, n);
    s->n_out += n;
}

/* Bytes of the character at `text`, which is UTF-8. */
static size_t length_of(const char *text)
{
    const unsigned char c = (unsigned char)text[0];
    return c < 0x80 ? 1 : c < 0xE0 ? 2 : c < 0xF0 ? 3 : 4;
}

static uint32_t value_of(const char *text)
{
    const size_t n = length_of(text);
    uint32_t v = n == 1 ? (unsigned char)text[0] : (unsigned char)text[0] & (0xFFu >> (n + 1));
    for (size_t i = 1; i < n; i++) {
        v = v << 6 | ((unsigned char)text[i] & 0x3Fu);
    }
    return v;
}

static bool covers(uint32_t least, uint32_t most, uint32_t c) { return least <= c && c <= most; }

/* One member of a class, escaped or not; *n bytes at *text. NULL: \d or \w, which are written out. */
static bool read_member(scan *s, const char **text, size_t *n)
{
    *text = s->at;
    *n = length_of(s->at);
    if (*s->at != '\\') {
        s->at += *n;
        return true;
    }
    const char c = s->at + 1 < s->end ? s->at[1] : '\0';
    if (c == 'd' || c == 'w') {
        put(s, c == 'd' ? "0-9" : "0-9A-Za-z\\x5F");
        *text = NULL;
    } else if (c != '\0' && (strchr(signs, c) != NULL || c == '\\' || c == '"')) {
        *text = s->at + 1;
        *n = 1;
    } else {
        return fail(s, "of escapes, \\d, \\w and those of signs are");
    }
    s->at += 2;
    return true;
}

static bool read_class(scan *s)
{
    s->at++;
    const bool negated = s->at < s->end && *s->at == '^';
    s->at += negated;
    put(s, negated ? "[^" : "[");
    const char *const begin = s->at;
    while (s->at < s->end && *s->at != ']') {
        const char *first, *last;
        size_t n_first, n_last;
        if (!read_member(s, &first, &n_first)) {
            return false;
        }
        if (first == NULL) {
            continue;
        }
        last = first;
        n_last = n_first;
        const bool range = s->at + 1 < s->end && s->at[0] == '-' && s->at[1] != ']';
        if (range) {
            s->at++;
            if (!read_member(s, &last, &n_last)) {
                return false;
            }
            if (last == NULL || value_of(last) < value_of(first)) {
                return fail(s, "a range of characters goes from a lower to a higher one");
            }
        }
        const uint32_t from = value_of(first), to = value_of(last);
        if (!negated && (from < 0x20 || covers(from, to, '"') || covers(from, to, '\\') || covers(from, to, 0x7F))) {
            return fail(s, not_json);
        }
        put_member(s, first, n_first);
        if (range) {
            put(s, "-");
            put_member(s, last, n_last);
        }
    }
    if (s->at >= s->end || s->at == begin) {
        return fail(s, "a class of characters has members and an end");
    }
    s->at++;
    put(s, negated ? "\\\"\\\\\\x00-\\x1F\\x7F]" : "]");
    return true;
}

static bool read_number(scan *s, uint32_t *number)
{
    const char *const begin = s->at;
    *number = 0;
    for (; s->at < s->end && *s->at >= '0' && *s->at <= '9' && *number <= OCTE_SCHEMA_REPEATS; s->at++) {
        *number = *number * 10 + (uint32_t)(*s->at - '0');
    }
    return s->at > begin && *number <= OCTE_SCHEMA_REPEATS;
}

static bool read_repetition(scan *s)
{
    /* What may be empty, so often: libllama would keep each way to read a text. */
    static const char many[] = "a repetition is {n}, {n,} or {n,m} of small numbers, and of no group with a repetition in it or with many alternatives";
    char text[40];
    if (!s->has_atom) {
        return fail(s, "there is nothing to repeat");
    }
    s->has_atom = false;
    for (uint32_t i = 0; i < s->n_groups; i++) {
        s->loose[i] = true;
    }
    s->n_ways += *s->at == '?' ? 1 : *s->at == '{' ? 0 : 2;
    if (*s->at != '{') {
        const char one[2] = { *s->at++, '\0' };
        put(s, one);
    } else {
        uint32_t least, most;
        s->at++;
        if (s->atom_loose || !read_number(s, &least)) {
            return fail(s, many);
        }
        most = least;
        const bool open = s->at + 1 < s->end && s->at[0] == ',' && s->at[1] == '}';
        if (open) {
            s->at++;
        } else if (s->at < s->end && *s->at == ',') {
            s->at++;
            if (!read_number(s, &most) || most < least) {
                return fail(s, many);
            }
        }
        s->n_repeats += most;
        s->n_ways += open || most > least ? 2 : 0;
        if (s->at >= s->end || *s->at != '}' || (most == 0 && !open) || s->n_repeats > MAX_REPEATS || (s->atom_ways > 1 && s->atom_ways * most > MAX_ALTERNATED)) {
            return fail(s, many);
        }
        s->at++;
        (void)snprintf(text, sizeof(text), open ? "{%u,}" : "{%u,%u}", least, most);
        put(s, text);
    }
    /* A lazy one matches the same texts. */
    s->at += s->at < s->end && *s->at == '?';
    return true;
}

static bool read_group(scan *s)
{
    if (s->at + 1 < s->end && s->at[1] == '?') {
        if (s->at + 2 >= s->end || s->at[2] != ':') {
            return fail(s, "of groups that begin with '?', '(?:' are");
        }
        s->at += 2;
    }
    if (s->n_groups == MAX_GROUPS) {
        return fail(s, "it has too many groups in each other");
    }
    s->at++;
    s->group_ways[s->n_groups] = s->n_ways;
    s->loose[s->n_groups++] = false;
    s->has_atom = s->filled = false;
    put(s, "(");
    return true;
}

static bool read_one(scan *s)
{
    const unsigned char c = (unsigned char)*s->at;
    const char *member;
    size_t n;
    if (strchr("*+?{", c) != NULL) {
        return read_repetition(s);
    }
    if (c == '(') {
        return read_group(s);
    }
    if (c == '|') {
        if (!s->filled) {
            return fail(s, empty);
        }
        s->has_atom = s->filled = false;
        s->n_ways++;
        put(s, "|");
        s->at++;
        return true;
    }
    const bool was_filled = s->filled;
    s->atom_loose = false;
    s->atom_ways = 1;
    s->has_atom = s->filled = true;
    switch (c) {
    case ')':
        if (s->n_groups == 0) {
            return fail(s, "its groups don't end where they should");
        }
        if (!was_filled) {
            return fail(s, empty);
        }
        s->atom_loose = s->loose[--s->n_groups];
        s->atom_ways = 1 + s->n_ways - s->group_ways[s->n_groups];
        put(s, ")");
        s->at++;
        return true;
    case '[':
        return read_class(s);
    case '.':
        put(s, "[^\\\"\\\\\\x00-\\x1F\\x7F\\u2028\\u2029]");   /* ECMA 262's '.' is no line's end */
        s->at++;
        return true;
    case '^':
    case '$':
    case ']':
    case '}':
        return fail(s, "'^' and '$' stand at its ends alone, and ']' and '}' are escaped");
    default:
        break;
    }
    if (c == '"' || c < 0x20 || c == 0x7F) {
        return fail(s, not_json);
    }
    if (c != '\\' && c < 0x80) {
        const char plain[2] = { (char)c, '\0' };
        put(s, plain);
        s->at++;
        return true;
    }
    put(s, "[");
    if (!read_member(s, &member, &n)) {
        return false;
    }
    if (member != NULL && (*member == '\\' || *member == '"')) {
        return fail(s, not_json);
    }
    if (member != NULL) {
        put_member(s, member, n);
    }
    put(s, "]");
    return true;
}

bool octe__schema_pattern(const char *pattern, char out[OCTE__PATTERN_ROOM], const char **why)
{
    const size_t n = strlen(pattern);
    scan s = { .at = pattern + 1, .end = pattern + n - 1, .out = out };
    if (n > OCTE_SCHEMA_PATTERN_BYTES) {
        *why = "it is too long";
        return false;
    }
    if (n < 3 || pattern[0] != '^' || pattern[n - 1] != '$' || pattern[n - 2] == '\\') {
        *why = "it must begin with '^' and end with '$'";
        return false;
    }
    put(&s, "^");
    while (s.at < s.end) {
        if (!read_one(&s)) {
            *why = s.why;
            return false;
        }
    }
    if (s.n_ways > MAX_WAYS) {
        *why = "it may be read in too many ways: at most six '?' and '|', of which '*', '+' and '{n,m}' count two";
        return false;
    }
    if (!s.filled) {
        *why = empty;
        return false;
    }
    if (s.n_groups > 0) {
        *why = "its groups don't end where they should";
        return false;
    }
    put(&s, "$");
    out[s.n_out] = '\0';
    return true;
}
