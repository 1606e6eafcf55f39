/* plan_test.h: what the tests of src/plan share: cmocka, seeded random numbers, specs, recorded machines, and a strict JSON reader
 * that only says yes or no. */
#ifndef OCT_TESTS_PLAN_PLAN_TEST_H
#define OCT_TESTS_PLAN_PLAN_TEST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "plan/machine.h"
#include "plan/plan.h"

/* splitmix64 */
static inline uint64_t random_next(uint64_t *s)
{
    uint64_t z = (*s += 0x9E3779B97F4A7C15u);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

static inline int64_t random_between(uint64_t *s, int64_t least, int64_t most)
{
    return least + (int64_t)(random_next(s) % (uint64_t)(most - least + 1));
}

/* The default model's attention: 9 query heads over 3, dims of 64, K in rotated i8 with dynamic scales, V in e4m3fn by layer, pages of 16. */
static inline oct_attn_spec plain_spec(void)
{
    return (oct_attn_spec){
        .struct_size = sizeof(oct_attn_spec),
        .heads_q = 9,
        .kv = { .struct_size = sizeof(oct_kv_spec),
                .layout = OCT_LAYOUT_NHD,
                .heads = 3,
                .dim_k = 64,
                .dim_v = 64,
                .page_size = 16,
                .k = { OCT_DTYPE_I8, OCT_SCALE_TOKEN_HEAD, OCT_DTYPE_F32, 1 },
                .v = { OCT_DTYPE_E4M3FN, OCT_SCALE_LAYER, 0, 0 } },
        .q_dtype = OCT_DTYPE_F32,
        .out_dtype = OCT_DTYPE_F32,
        .sm_scale = 0.125f,
        .causal = 1,
    };
}

/* A machine of plan/machine.def. */
static inline oct__machine machine_read(const char *name)
{
    oct__machine machine;
    if (!oct__machine_recorded(name, &machine)) {
        fail_msg("there is no recorded machine '%s'", name);
    }
    return machine;
}

/* ---- JSON, RFC 8259 --------------------------------------------------------------------------------------------------- */

static inline const char *json_blank(const char *s)
{
    return s + strspn(s, " \t\r\n");
}

static inline const char *json_string(const char *s)
{
    if (*s++ != '"') {
        return NULL;
    }
    for (; *s != '"'; s++) {
        if ((unsigned char)*s < 0x20) {
            return NULL;
        }
        if (*s == '\\') {
            s++;
            if (*s == 'u') {
                if (strspn(s + 1, "0123456789abcdefABCDEF") < 4) {
                    return NULL;
                }
                s += 4;
            } else if (*s == '\0' || strchr("\"\\/bfnrt", *s) == NULL) {
                return NULL;
            }
        }
    }
    return s + 1;
}

static inline const char *json_number(const char *s)
{
    const char *digits = "0123456789";
    s += *s == '-';
    size_t n = strspn(s, digits);
    if (n == 0 || (n > 1 && s[0] == '0')) {
        return NULL;
    }
    s += n;
    if (*s == '.') {
        n = strspn(++s, digits);
        if (n == 0) {
            return NULL;
        }
        s += n;
    }
    if (*s == 'e' || *s == 'E') {
        s++;
        s += *s == '-' || *s == '+';
        n = strspn(s, digits);
        if (n == 0) {
            return NULL;
        }
        s += n;
    }
    return s;
}

/* The end of the value at s; NULL when there is none. */
static inline const char *json_value(const char *s)
{
    s = json_blank(s);
    if (*s == '"') {
        return json_string(s);
    }
    if (*s == '{' || *s == '[') {
        const char close = *s == '{' ? '}' : ']';
        s = json_blank(s + 1);
        if (*s == close) {
            return s + 1;
        }
        for (;;) {
            if (close == '}') {
                s = json_string(json_blank(s));
                if (s == NULL || *(s = json_blank(s)) != ':') {
                    return NULL;
                }
                s++;
            }
            s = json_value(s);
            if (s == NULL) {
                return NULL;
            }
            s = json_blank(s);
            if (*s == close) {
                return s + 1;
            }
            if (*s != ',') {
                return NULL;
            }
            s++;
        }
    }
    static const char *const words[] = { "true", "false", "null" };
    for (int i = 0; i < 3; i++) {
        if (strncmp(s, words[i], strlen(words[i])) == 0) {
            return s + strlen(words[i]);
        }
    }
    return json_number(s);
}

static inline bool json_is_valid(const char *text)
{
    const char *end = json_value(text);
    return end != NULL && *json_blank(end) == '\0';
}

#endif
