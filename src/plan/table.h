/* table.h: owns the table of variants as the rest of this room walks it. The rows themselves are plan/variant.h's.
 *
 * Threads: constant data. */
#ifndef OCT_PLAN_TABLE_H
#define OCT_PLAN_TABLE_H

#include "plan/variant.h"

/* Most rows of a table: the size of a set of rows. */
#define OCT__VARIANTS_MAX 256

/* "attn_decode". Static texts. */
const char *oct__op_name(oct__op op);

#endif
