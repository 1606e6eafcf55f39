/* gate.c: see gate.h. */
#include "plan/gate.h"

#include "host/text.h"
#include "plan/facts.h"

bool oct__gate_passes(const oct__gate *gate, const oct__facts *facts)
{
    const uint64_t have = facts->v[gate->fact];
    switch (gate->op) {
    case OCT__GATE_EQ:   return have == gate->arg;
    case OCT__GATE_MIN:  return have >= gate->arg;
    case OCT__GATE_MAX:  return have <= gate->arg;
    case OCT__GATE_MULT: return have != 0 && gate->arg != 0 && have % gate->arg == 0;
    case OCT__GATE_IN:   return have < 64 && (gate->arg >> have & 1) != 0;
    }
    return false;
}

const oct__gate *oct__gates_first_failed(const oct__variant *variant, const oct__facts *facts)
{
    for (uint32_t i = 0; i < variant->n_gates; i++) {
        if (!oct__gate_passes(&variant->gates[i], facts)) {
            return &variant->gates[i];
        }
    }
    return NULL;
}

const char *oct__gate_op_text(oct__gate_op op)
{
    switch (op) {
    case OCT__GATE_EQ:   return "==";
    case OCT__GATE_MIN:  return ">=";
    case OCT__GATE_MAX:  return "<=";
    case OCT__GATE_MULT: return "multiple of";
    case OCT__GATE_IN:   return "one of";
    }
    return "?";
}

void oct__gate_arg_text(const oct__gate *gate, char *bytes, size_t size)
{
    char value[32];
    oct__text text;
    if (gate->op != OCT__GATE_IN) {
        oct__fact_value_text(gate->fact, gate->arg, bytes, size);
        return;
    }
    oct__text_init(&text, bytes, size);
    oct__text_add(&text, "{");
    const char *between = "";
    for (unsigned bit = 0; bit < 64; bit++) {
        if ((gate->arg >> bit & 1) != 0) {
            oct__fact_value_text(gate->fact, bit, value, sizeof(value));
            oct__text_add(&text, "%s%s", between, value);
            between = ", ";
        }
    }
    oct__text_add(&text, "}");
}
