/* choose.c: see choose.h. */
#include "plan/choose.h"

#include <string.h>

#include "host/error.h"
#include "host/text.h"
#include "plan/gate.h"

bool oct__row_set_has(const oct__row_set *set, uint32_t row)
{
    return (set->bits[row / 64] >> (row % 64) & 1) != 0;
}

/* ---- names ---------------------------------------------------------------------------------------------------------- */

static bool is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

static oct_status read_names(const oct__variant *rows, uint32_t n_rows, uint32_t ops, const char *names, const char *key, const char *where,
                             oct__row_set *set, oct_error *error)
{
    memset(set, 0, sizeof(*set));
    if (names == NULL) {
        return OCT_OK;
    }
    for (const char *at = names;; at++) {
        size_t length = strcspn(at, ",");
        const char *next = at + length;
        while (length > 0 && is_blank(*at)) {
            at++;
            length--;
        }
        while (length > 0 && is_blank(at[length - 1])) {
            length--;
        }
        uint32_t row = 0;
        while (row < n_rows && (strlen(rows[row].full_name) != length || memcmp(rows[row].full_name, at, length) != 0)) {
            row++;
        }
        const int shown = length > 64 ? 64 : (int)length;
        if (row == n_rows) {
            return oct__error_set(error, OCT_INVALID_ARGUMENT, where, "%s: there is no variant '%.*s'", key, shown, at);
        }
        if ((ops >> rows[row].op & 1) == 0) {
            return oct__error_set(error, OCT_INVALID_ARGUMENT, where, "%s: '%.*s' is a variant, but %s is not chosen here", key, shown, at,
                                  oct__op_name(rows[row].op));
        }
        set->bits[row / 64] |= UINT64_C(1) << (row % 64);
        if (*next == '\0') {
            return OCT_OK;
        }
        at = next;
    }
}

oct_status oct__rules_read(const oct__variant *rows, uint32_t n_rows, uint32_t ops, const char *force, const char *deny, const char *where,
                           oct__rules *rules, oct_error *error)
{
    oct__row_set forced;
    memset(rules, 0, sizeof(*rules));
    oct_status status = read_names(rows, n_rows, ops, force, "force_variant", where, &forced, error);
    if (status == OCT_OK) {
        status = read_names(rows, n_rows, ops, deny, "deny_variant", where, &rules->denied, error);
    }
    for (uint32_t row = 0; row < n_rows && status == OCT_OK; row++) {
        if (!oct__row_set_has(&forced, row)) {
            continue;
        }
        const oct__variant **slot = &rules->forced[rows[row].op];
        if (oct__row_set_has(&rules->denied, row)) {
            status = oct__error_set(error, OCT_INVALID_ARGUMENT, where, "force_variant and deny_variant both name '%s'", rows[row].full_name);
        } else if (*slot != NULL) {
            status = oct__error_set(error, OCT_INVALID_ARGUMENT, where, "force_variant names both '%s' and '%s'; only one can run", (*slot)->full_name,
                                    rows[row].full_name);
        } else {
            *slot = &rows[row];
        }
    }
    return status;
}

/* ---- choice --------------------------------------------------------------------------------------------------------- */

static void add_refusal(oct__text *text, const oct__variant *variant, const oct__gate *gate, const oct__facts *facts)
{
    char needed[64], have[32];
    oct__gate_arg_text(gate, needed, sizeof(needed));
    oct__fact_value_text(gate->fact, facts->v[gate->fact], have, sizeof(have));
    oct__text_add(text, "%s needs %s %s %s, have %s: %s", variant->full_name, oct__fact_name(gate->fact), oct__gate_op_text(gate->op), needed, have, gate->why);
}

oct_status oct__choose(const oct__variant *rows, uint32_t n_rows, oct__op op, const oct__facts *facts, const oct__rules *rules,
                       const double *seconds, const char *where, const oct__variant **chosen, oct_error *error)
{
    char bytes[256];
    oct__text text;
    const oct__variant *best = NULL, *forced = rules->forced[op];
    double best_seconds = 0;

    oct__text_init(&text, bytes, sizeof(bytes));
    for (uint32_t i = 0; i < n_rows; i++) {
        if (rows[i].op != op || (forced != NULL && forced != &rows[i])) {
            continue;
        }
        const oct__gate *failed = oct__gates_first_failed(&rows[i], facts);
        if (failed != NULL) {
            oct__text_add(&text, "%s", text.length > 0 ? "; " : "");
            add_refusal(&text, &rows[i], failed, facts);
        } else if (oct__row_set_has(&rules->denied, i)) {
            oct__text_add(&text, "%s%s is denied", text.length > 0 ? "; " : "", rows[i].full_name);
        } else if (best == NULL || seconds[i] < best_seconds) {
            best = &rows[i];
            best_seconds = seconds[i];
        }
    }
    if (best != NULL) {
        *chosen = best;
        return OCT_OK;
    }
    return oct__error_set(error, OCT_UNSUPPORTED, where, "%s%s: %s", forced != NULL ? "forced " : "no variant for ", oct__op_name(op),
                          text.length > 0 ? bytes : "there is none in the table");
}

/* ---- per call: no rules, no words --------------------------------------------------------------------------------------- */

const oct__variant *oct__choose_cheapest(const oct__variant *rows, uint32_t n_rows, oct__op op, const oct__facts *facts, const oct__facts *facts_too,
                                         const oct__rates *rates, const oct__amount *amount, uint32_t n_threads)
{
    const oct__variant *best = NULL;
    double best_seconds = 0;
    for (uint32_t i = 0; i < n_rows; i++) {
        if (rows[i].op != op || oct__gates_first_failed(&rows[i], facts) != NULL || oct__gates_first_failed(&rows[i], facts_too) != NULL) {
            continue;
        }
        const double seconds = oct__cost_seconds(&rows[i].cost, rates, amount, n_threads);
        if (best == NULL || seconds < best_seconds) {
            best = &rows[i];
            best_seconds = seconds;
        }
    }
    return best;
}

const oct__variant *oct__choose_write(const oct__machine *machine, const oct_kv_spec *spec, const oct_kv_spec *spec_window, uint32_t src_dtype, int64_t n_tokens,
                                      uint32_t n_threads)
{
    uint32_t n_rows;
    const oct__variant *rows = oct__variants_of(machine->device, &n_rows);
    const oct__facts facts = oct__facts_of_write(&machine->facts, spec, src_dtype);
    const oct__facts facts_window = oct__facts_of_write(&machine->facts, spec_window != NULL ? spec_window : spec, src_dtype);
    const oct__amount amount = oct__amount_of_write(spec, src_dtype, n_tokens);
    return oct__choose_cheapest(rows, n_rows, OCT__OP_kv_write, &facts, &facts_window, &machine->rates, &amount, n_threads);
}

const oct__variant *oct__choose_merge(const oct__machine *machine, int64_t rows, uint32_t heads, uint32_t dim, uint32_t n_parts, uint32_t n_threads)
{
    uint32_t n_rows;
    const oct__variant *table = oct__variants_of(machine->device, &n_rows);
    const oct__amount amount = oct__amount_of_merge(rows, heads, dim, n_parts);
    return oct__choose_cheapest(table, n_rows, OCT__OP_attn_merge, &machine->facts, &machine->facts, &machine->rates, &amount, n_threads);
}
