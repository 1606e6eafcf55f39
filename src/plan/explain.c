/* explain.c: see explain.h. */
#include "plan/explain.h"

#include <inttypes.h>
#include <string.h>

#include "plan/gate.h"

enum { WRITE_TOKENS = 512 };   /* of the write that rows are compared on, as an extend's nominal rows */

/* ---- one row -------------------------------------------------------------------------------------------------------- */

static bool is_forced_out(const oct__explained *e, const oct__variant *row)
{
    return e->rules->forced[e->op] != NULL && e->rules->forced[e->op] != row;
}

/* One word a row. A row that fails a gate is refused whatever the user said about it. */
static const char *state_of(const oct__explained *e, const oct__variant *rows, uint32_t i)
{
    if (oct__gates_first_failed(&rows[i], e->facts) != NULL) {
        return "refused";
    }
    if (oct__row_set_has(&e->rules->denied, i)) {
        return "denied";
    }
    return &rows[i] == e->chosen ? "chosen" : "eligible";
}

static void add_duration(oct__text *text, double seconds)
{
    const bool us = seconds < 1e-3, ms = !us && seconds < 1;
    oct__text_add_number(text, us ? seconds * 1e6 : ms ? seconds * 1e3 : seconds, 3);
    oct__text_add(text, us ? " us" : ms ? " ms" : " s");
}

static void add_row_plain(oct__text *text, const oct__explained *e, const oct__variant *rows, uint32_t i)
{
    const oct__variant *row = &rows[i];
    const char *state = state_of(e, rows, i);
    oct__text_add(text, "  %-8s  %s", state, row->full_name);
    if (strcmp(state, "refused") != 0) {
        oct__text_add(text, ", ");
        add_duration(text, e->seconds[i]);
    }
    if (e->rules->forced[e->op] == row) {
        oct__text_add(text, ", forced");
    } else if (is_forced_out(e, row)) {
        oct__text_add(text, ", %s is forced", e->rules->forced[e->op]->name);
    }
    oct__text_add(text, "\n");
    for (uint32_t j = 0; j < row->n_gates; j++) {
        const oct__gate *gate = &row->gates[j];
        if (!oct__gate_passes(gate, e->facts)) {
            char needed[64], have[32];
            oct__gate_arg_text(gate, needed, sizeof(needed));
            oct__fact_value_text(gate->fact, e->facts->v[gate->fact], have, sizeof(have));
            oct__text_add(text, "              needs %s %s %s, have %s: %s\n", oct__fact_name(gate->fact), oct__gate_op_text(gate->op), needed, have, gate->why);
        }
    }
}

static void add_row_json(oct__text *text, const oct__explained *e, const oct__variant *rows, uint32_t i)
{
    const oct__variant *row = &rows[i];
    oct__text_add(text, "{\"name\": ");
    oct__text_add_json_string(text, row->full_name);
    oct__text_add(text, ", \"state\": \"%s\", \"forced\": %s, \"seconds\": ", state_of(e, rows, i), e->rules->forced[e->op] == row ? "true" : "false");
    oct__text_add_number(text, e->seconds[i], 6);
    oct__text_add(text, ", \"failed\": [");
    const char *between = "";
    for (uint32_t j = 0; j < row->n_gates; j++) {
        const oct__gate *gate = &row->gates[j];
        if (!oct__gate_passes(gate, e->facts)) {
            oct__text_add(text, "%s{\"fact\": ", between);
            oct__text_add_json_string(text, oct__fact_name(gate->fact));
            oct__text_add(text, ", \"op\": \"%s\", \"needed\": ", oct__gate_op_text(gate->op));
            if (gate->op == OCT__GATE_IN) {
                oct__text_add(text, "[");
                const char *comma = "";
                for (unsigned bit = 0; bit < 64; bit++) {
                    if ((gate->arg >> bit & 1) != 0) {
                        oct__text_add(text, "%s%u", comma, bit);
                        comma = ", ";
                    }
                }
                oct__text_add(text, "]");
            } else {
                oct__text_add(text, "%" PRIu64, gate->arg);
            }
            oct__text_add(text, ", \"have\": %" PRIu64 ", \"why\": ", e->facts->v[gate->fact]);
            oct__text_add_json_string(text, gate->why);
            oct__text_add(text, "}");
            between = ", ";
        }
    }
    oct__text_add(text, "]}");
}

/* ---- one operation -------------------------------------------------------------------------------------------------- */

void oct__explain_operation(oct__text *text, uint32_t format, const oct__variant *rows, uint32_t n_rows, const oct__explained *e)
{
    const bool json = format == OCT_TEXT_JSON;
    const char *what = e->op == OCT__OP_kv_write ? "tokens" : "rows", *of = e->op == OCT__OP_attn_merge ? "parts" : "keys", *who = e->is_device ? "unit" : "thread";
    if (json) {
        oct__text_add(text, "{\"operation\": \"%s\", \"problem\": \"%s\", \"%s\": %" PRId64 ", \"%s\": %" PRId64 ", \"%ss\": %" PRIu32 ", \"variants\": [", oct__op_name(e->op),
                      e->is_batch ? "batch" : "nominal", what, e->n_rows, of, e->n_keys, who, e->n_threads);
    } else {
        oct__text_add(text, "%s: %s%" PRId64 " %.*s", oct__op_name(e->op), e->is_batch ? "batch of " : "", e->n_rows, (int)strlen(what) - (e->n_rows == 1), what);
        if (e->op != OCT__OP_kv_write) {
            oct__text_add(text, " %s %" PRId64 " %s", e->op == OCT__OP_attn_merge ? "of" : "over", e->n_keys, of);
        }
        oct__text_add(text, ", %" PRIu32 " %s%s\n", e->n_threads, who, e->n_threads == 1 ? "" : "s");
    }
    const char *between = "";
    for (uint32_t i = 0; i < n_rows; i++) {
        if (rows[i].op != e->op) {
            continue;
        }
        if (json) {
            oct__text_add(text, "%s", between);
            add_row_json(text, e, rows, i);
            between = ", ";
        } else {
            add_row_plain(text, e, rows, i);
        }
    }
    if (json) {
        oct__text_add(text, "]}");
    }
}

/* ---- the whole text --------------------------------------------------------------------------------------------------- */

static void add_facts_json(oct__text *text, const oct__facts *facts)
{
    const char *between = "";
    oct__text_add(text, "{");
    for (unsigned fact = 0; fact < OCT__FACT_COUNT; fact++) {
        oct__text_add(text, "%s", between);
        oct__text_add_json_string(text, oct__fact_name((oct__fact)fact));
        oct__text_add(text, ": %" PRIu64, facts->v[fact]);
        between = ", ";
    }
    oct__text_add(text, "}");
}

static void begin(oct__text *text, uint32_t format, const oct__machine *machine, const oct__facts *facts)
{
    if (format == OCT_TEXT_JSON) {
        oct__text_add(text, "{\"cpu\": ");
        oct__text_add_json_string(text, machine->cpu);
        if (machine->device != OCT__DEVICE_CPU) {
            oct__text_add(text, ", \"device\": ");
            oct__text_add_json_string(text, machine->device_name);
        }
        oct__text_add(text, ", \"rates\": ");
        oct__text_add_json_string(text, machine->rates.source);
        oct__text_add(text, ", \"facts\": ");
        add_facts_json(text, facts);
        oct__text_add(text, ", \"operations\": [");
        return;
    }
    oct__text_add(text, "%s; rates of %s\n", machine->device == OCT__DEVICE_CPU ? machine->cpu : machine->device_name, machine->rates.source);
    if (facts == &machine->facts) { /* a merge has no formats */
        return;
    }
    const char *between = "";
    for (unsigned fact = 0; fact < OCT__FACT_COUNT; fact++) {
        char value[32];
        /* What the operation does not have: a write no query heads, no q and no window; attention no source. */
        const bool is_write = facts->v[OCT__FACT_GQA_GROUP] == 0;
        const bool is_absent = is_write ? fact == OCT__FACT_GQA_GROUP || fact == OCT__FACT_Q_DTYPE || fact == OCT__FACT_WINDOW || fact == OCT__FACT_PRODUCTS : fact == OCT__FACT_SRC_DTYPE;
        if (!oct__fact_is_machine((oct__fact)fact) && !is_absent) {
            oct__fact_value_text((oct__fact)fact, facts->v[fact], value, sizeof(value));
            oct__text_add(text, "%s%s %s", between, oct__fact_name((oct__fact)fact) + sizeof("prob.") - 1, value);
            between = ", ";
        }
    }
    oct__text_add(text, "\n");
}

static void end(oct__text *text, uint32_t format)
{
    if (format == OCT_TEXT_JSON) {
        oct__text_add(text, "]}\n");
    }
}

void oct__explain_plan(oct__text *text, uint32_t format, const oct_plan *plan)
{
    const uint32_t n_threads = oct__plan_compare_threads(plan);
    begin(text, format, plan->machine, &plan->facts);
    for (int i = 0; i < OCT__PLAN_OPS; i++) {
        double seconds[OCT__VARIANTS_MAX];
        oct__split problem;
        oct__explained e = { .op = oct__plan_operation(i), .facts = &plan->facts, .rules = &plan->rules, .seconds = seconds, .chosen = plan->chosen[i], .n_threads = n_threads,
                            .is_device = plan->machine->device != OCT__DEVICE_CPU };
        e.is_batch = oct__plan_compare(plan, i, n_threads, &problem, seconds, &e.n_rows, &e.n_keys);
        if (i > 0 && format == OCT_TEXT_JSON) {
            oct__text_add(text, ", ");
        }
        oct__explain_operation(text, format, plan->rows, plan->n_rows, &e);
    }
    end(text, format);
}

void oct__explain_write(oct__text *text, uint32_t format, const oct__machine *machine, const oct_kv_spec *spec, uint32_t src_dtype, uint32_t n_threads)
{
    uint32_t n_rows;
    const oct__variant *rows = oct__variants_of(machine->device, &n_rows);
    const oct__rules no_rules = { .forced = { NULL } };
    const oct__facts facts = oct__facts_of_write(&machine->facts, spec, src_dtype);
    const oct__amount amount = oct__amount_of_write(spec, src_dtype, WRITE_TOKENS);
    double seconds[OCT__VARIANTS_MAX];
    for (uint32_t i = 0; i < n_rows; i++) {
        seconds[i] = oct__cost_seconds(&rows[i].cost, &machine->rates, &amount, n_threads);
    }
    const oct__explained e = {
        .op = OCT__OP_kv_write,
        .facts = &facts,
        .rules = &no_rules,
        .seconds = seconds,
        .chosen = oct__choose_write(machine, spec, NULL, src_dtype, WRITE_TOKENS, n_threads),
        .n_threads = n_threads,
        .n_rows = WRITE_TOKENS,
        .is_device = machine->device != OCT__DEVICE_CPU,
    };
    begin(text, format, machine, &facts);
    oct__explain_operation(text, format, rows, n_rows, &e);
    end(text, format);
}

void oct__explain_merge(oct__text *text, uint32_t format, const oct__machine *machine, int64_t n_rows, uint32_t heads, uint32_t dim, uint32_t n_parts)
{
    uint32_t n_table;
    const oct__variant *rows = oct__variants_of(machine->device, &n_table);
    const oct__rules no_rules = { .forced = { NULL } };
    const oct__amount amount = oct__amount_of_merge(n_rows, heads, dim, n_parts);
    double seconds[OCT__VARIANTS_MAX];
    for (uint32_t i = 0; i < n_table; i++) {
        seconds[i] = oct__cost_seconds(&rows[i].cost, &machine->rates, &amount, 1);
    }
    const oct__explained e = {
        .op = OCT__OP_attn_merge,
        .facts = &machine->facts,
        .rules = &no_rules,
        .seconds = seconds,
        .chosen = oct__choose_merge(machine, n_rows, heads, dim, n_parts, 1),
        .n_threads = 1,          /* how many run it is decided by the chosen row's time */
        .n_rows = n_rows,
        .n_keys = n_parts,
        .is_device = machine->device != OCT__DEVICE_CPU,
        .is_batch = true,
    };
    begin(text, format, machine, &machine->facts);
    oct__explain_operation(text, format, rows, n_table, &e);
    end(text, format);
}
