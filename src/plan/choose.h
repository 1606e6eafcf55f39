/* choose.h: owns which row of the table serves a problem: all gates hold, not denied, lowest predicted time; a forced row
 * instead, or a status. Never a silent fallback.
 *
 * Threads: pure functions. The table is an argument, so that tests bring their own. */
#ifndef OCT_PLAN_CHOOSE_H
#define OCT_PLAN_CHOOSE_H

#include <stdbool.h>

#include "plan/facts.h"
#include "plan/table.h"

typedef struct oct__row_set { uint64_t bits[OCT__VARIANTS_MAX / 64]; } oct__row_set;

/* What the user said about rows, by name. */
typedef struct oct__rules {
    const oct__variant *forced[OCT__OP_COUNT];   /* NULL: free choice */
    oct__row_set denied;
} oct__rules;

bool oct__row_set_has(const oct__row_set *set, uint32_t row);

/* Reads "attn_decode.avx2, attn_extend.scalar" (either may be NULL). Only operations whose bit (1 << op) is in `ops` may be
 * named. INVALID_ARGUMENT: no such name, an empty one, an operation that is not chosen here, two forced rows of one operation, a
 * row both forced and denied. `where`: the public function, for the error. */
oct_status oct__rules_read(const oct__variant *rows, uint32_t n_rows, uint32_t ops, const char *force, const char *deny, const char *where,
                           oct__rules *rules, oct_error *error);

/* seconds[i]: the predicted time of row i. UNSUPPORTED: the forced row's gate fails, or no row is left; the text says why. Among
 * rows of equal time the first one. */
oct_status oct__choose(const oct__variant *rows, uint32_t n_rows, oct__op op, const oct__facts *facts, const oct__rules *rules,
                       const double *seconds, const char *where, const oct__variant **chosen, oct_error *error);

/* Without rules and words, for calls that have neither: the row of lowest predicted time whose gates hold for both sets of facts, the first of
 * equals; NULL when there is none. */
const oct__variant *oct__choose_cheapest(const oct__variant *rows, uint32_t n_rows, oct__op op, const oct__facts *facts, const oct__facts *facts_too,
                                         const oct__rates *rates, const oct__amount *amount, uint32_t n_threads);

/* The table's row for a write of n_tokens into one layer or, with spec_window, two at once; and for a merge. NULL: no row can. */
const oct__variant *oct__choose_write(const oct__machine *machine, const oct_kv_spec *spec, const oct_kv_spec *spec_window, uint32_t src_dtype, int64_t n_tokens,
                                      uint32_t n_threads);
const oct__variant *oct__choose_merge(const oct__machine *machine, int64_t rows, uint32_t heads, uint32_t dim, uint32_t n_parts, uint32_t n_threads);

#endif
