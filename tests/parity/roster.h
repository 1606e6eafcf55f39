/* roster.h: owns which rows of the variant table this machine can run, from the probe and the rows' own gates, for operations that
 * are called without a plan. Threads: pure after the first call. */
#ifndef PARITY_ROSTER_H
#define PARITY_ROSTER_H

#include "plan/variant.h"

int roster_write_is_eligible(const oct__variant *variant, const oct_kv_write_args *args);

/* The gates that speak of the machine hold. */
int roster_machine_can(const oct__variant *variant);

/* 1 when every row of the operation that the machine can run was judged on at least n cases (isolate_ran), a row for some formats only on an
 * eighth of them; else names the others. */
int roster_all_ran(oct__op op, int64_t n);

#endif
