/* roster.c: see roster.h. */
#include "parity/roster.h"

#include <stdio.h>
#include <string.h>

#include "cpu/probe.h"
#include "parity/isolate.h"
#include "plan/facts.h"
#include "plan/gate.h"

static const oct__facts *machine_facts(void)
{
    static oct__facts facts;
    static int ready;
    char name[64];
    if (!ready) {
        oct__cpu_probe(&facts, name, sizeof name);
        ready = 1;
    }
    return &facts;
}

int roster_write_is_eligible(const oct__variant *variant, const oct_kv_write_args *args)
{
    const oct__facts facts = oct__facts_of_write(machine_facts(), &args->layer->spec, args->src_dtype);
    if (oct__gates_first_failed(variant, &facts) != NULL)
        return 0;
    if (args->layer_window == NULL)
        return 1;
    const oct__facts window = oct__facts_of_write(machine_facts(), &args->layer_window->spec, args->src_dtype);
    return oct__gates_first_failed(variant, &window) == NULL;
}

int roster_machine_can(const oct__variant *variant)
{
    for (uint32_t i = 0; i < variant->n_gates; i++)
        if (oct__fact_is_machine(variant->gates[i].fact) && !oct__gate_passes(&variant->gates[i], machine_facts()))
            return 0;
    return 1;
}

static int takes_any_problem(const oct__variant *variant)
{
    for (uint32_t i = 0; i < variant->n_gates; i++)
        if (!oct__fact_is_machine(variant->gates[i].fact))
            return 0;
    return 1;
}

int roster_all_ran(oct__op op, int64_t n)
{
    uint32_t n_all;
    int all_ran = 1;
    const oct__variant *all = oct__variants(&n_all);
    for (uint32_t i = 0; i < n_all; i++) {
        const int64_t wanted = takes_any_problem(&all[i]) ? n : n / 8;
        if (all[i].op == op && roster_machine_can(&all[i]) && isolate_n_ran(all[i].full_name) < wanted) {
            fprintf(stderr, "%s was judged on %lld cases only, wanted %lld\n", all[i].full_name, (long long)isolate_n_ran(all[i].full_name), (long long)wanted);
            all_ran = 0;
        }
    }
    return all_ran;
}
