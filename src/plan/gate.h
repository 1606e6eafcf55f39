/* gate.h: owns what a gate means: one comparison of one fact with one number.
 *
 * Threads: pure functions. */
#ifndef OCT_PLAN_GATE_H
#define OCT_PLAN_GATE_H

#include <stdbool.h>

#include "plan/variant.h"

bool oct__gate_passes(const oct__gate *gate, const oct__facts *facts);

/* The first gate of the row that fails; NULL when all hold. */
const oct__gate *oct__gates_first_failed(const oct__variant *variant, const oct__facts *facts);

/* "==", ">=", "<=", "multiple of", "one of". */
const char *oct__gate_op_text(oct__gate_op op);

/* What the gate needs of its fact, as a number or, for IN, a list: "32", "{e4m3fn, e5m2}". Always terminated. */
void oct__gate_arg_text(const oct__gate *gate, char *text, size_t size);

#endif
