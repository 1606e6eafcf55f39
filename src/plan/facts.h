/* facts.h: owns the named numbers that gates look at: what a machine is, and what a problem asks for.
 *
 * Threads: pure functions and plain values; a machine is made once per context and then constant. */
#ifndef OCT_PLAN_FACTS_H
#define OCT_PLAN_FACTS_H

#include <stdbool.h>

#include "plan/cost.h"
#include "plan/variant.h"

/* A machine as dispatch sees it: facts of the "cpu.", "os." and "dev." kind, names for people, and the rates of what computes: the CPU's
 * cores or the GPU's units. */
typedef struct oct__machine {
    oct__facts facts;
    oct__rates rates;
    oct_rates measured;          /* what `rates` were made of; struct_size 0: they are defaults */
    char cpu[64];
    oct__device device;          /* which table's rows are chosen among */
    char device_name[64];        /* "" on the CPU */
    bool is_recorded;            /* not here: choices can be asked for, nothing can run */
} oct__machine;

/* "cpu.avx2"; "?" for a value that is no fact. Static texts. */
const char *oct__fact_name(oct__fact fact);

/* The fact of exactly such a name; OCT__FACT_COUNT when there is none. */
oct__fact oct__fact_of_name(const char *name);

/* Whether a fact speaks of the machine (true) or of the problem; and of those of the machine, whether of a GPU. */
bool oct__fact_is_machine(oct__fact fact);
bool oct__fact_is_device(oct__fact fact);

/* A value in words where numbers say nothing ("e4m3fn" for a dtype), else the number. Always terminated. */
void oct__fact_value_text(oct__fact fact, uint64_t value, char *text, size_t size);

/* "cpu", "cuda", "hip". Static texts. */
const char *oct__device_name(oct__device device);

/* The machine's facts with those of an attention problem, or of a write from src_dtype, filled in. Legal specs. */
oct__facts oct__facts_of_attn(const oct__facts *machine, const oct_attn_spec *spec);
oct__facts oct__facts_of_write(const oct__facts *machine, const oct_kv_spec *spec, uint32_t src_dtype);

#endif
