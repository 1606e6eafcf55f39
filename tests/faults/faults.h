/* faults.h: the fault tests and what they share. */
#ifndef FAULTS_H
#define FAULTS_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "parity/isolate.h"
#include "parity/problem.h"
#include "parity/roster.h"
#include "parity/write_case.h"

#define FAULT(name) void fault_##name(void **state);
#define SLOW_FAULT(name) FAULT(name)
#include "faults/faults.def"
#undef FAULT
#undef SLOW_FAULT

enum { FAULT_PAIRS_MAX = 32 };   /* of problem_pair: more than any table has rows */

#define COUNT(array) ((int64_t)(sizeof(array) / sizeof((array)[0])))

/* Where a case costs seconds (kernels on the host executor): every nth case only, and shorter prompts. 1 and 1000 unless the command line says else. */
extern int64_t fault_every;
extern int32_t fault_prompt;

/* Whether the command line (pairs=TEXT) wants the pair of rows. */
int fault_takes_pair(const char *force);

/* Runs the cases in children and asserts that none failed. */
#define RUN_CASES(title, n, seconds, run) assert_int_equal(fault_run_cases(title, n, seconds, run), 0)
int64_t fault_run_cases(const char *title, int64_t n, unsigned seconds, isolate_case *run);

/* Calls body for every pair of variants that can run p; body judges what lies in p->out, by the pair's bound, and returns failures. */
typedef int64_t fault_body(problem *p, const compare_bound *bound, void *arg);
int64_t fault_each_pair(problem *p, fault_body *body, void *arg);

/* K and V formats of a shape, both the same. */
void fault_set_formats(problem_shape *shape, uint32_t dtype, uint32_t mode);

/* Leaves the shape's formats and head dims where pair i's gates take them, else sets others: formats first (K to i8, then V too, then those of 16 bits), then
 * dims of 64, 128 or 192. 1; 0: the pair takes none; -1: a failure. */
int fault_formats_for(problem_shape *shape, uint32_t i);

#endif
