/* calls.h: owns the shape of a table of intrinsics that is built twice: from the models here, and from the instructions.
 *
 * Threads: pure functions. */
#ifndef TEST_SIMDE_CALLS_H
#define TEST_SIMDE_CALLS_H

#include <stdint.h>

/* What random inputs must be for the call to be asked: see test_models.c. */
typedef enum call_domain { CALL_ANY, CALL_FLOATS, CALL_NUMBERS, CALL_SCALES } call_domain;

typedef struct call {
    const char *name;
    call_domain domain;
    uint32_t is_float;   /* NaNs are compared as NaNs only */
    void (*run)(const uint8_t (*in)[64], uint8_t *out);   /* three registers to one; out is zeros before */
} call;

/* Both end with a name of NULL. */
extern const call simde_calls[], native_calls[];

#endif
