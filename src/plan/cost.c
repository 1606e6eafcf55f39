/* cost.c: see cost.h. */
#include "plan/cost.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

/* A thread that has less than this to do is not woken: about what waking it and meeting it again costs. */
#define SECONDS_PER_THREAD_MIN 4e-6

/* How much of what keeps a thread busy is added to the time where memory is the limit: little, but it decides between rows. */
#define WAITING_SHARE 0.02

enum { INTEL = OCT__VENDOR_INTEL, AMD = OCT__VENDOR_AMD };

typedef struct known_machine {
    uint64_t vendor, family, model_first, model_last;
    oct__rates rates;
} known_machine;

/* The first row that fits. EPYC Zen 4 is the reference: its speed is 1 by definition, and its one-thread rate was measured (32.7 GB/s on a
 * virtual machine of two cores). The rest are estimates from clock and memory channels on paper, and say so: they
 * only have to rank variants and to size splits until the machine is measured. The last three numbers
 * are measured too: in multiply-adds, Intel's vdpbf16ps has half the rate of a 512-bit f32 FMA (71 beside 144 GFLOP/s on a Xeon with AMX, 16 cores of a
 * virtual machine, whose 256-bit FMAs and memory gave the two Rapids rows), AMD's twice; and its 512-bit FMAs have twice the rate of 256-bit ones, AMD's the same. */
static const known_machine known_machines[] = {
    { AMD, 25, 0x10, 0x1f, { 32e9, 200e9, 1.0, "EPYC Zen 4", 1, 1, 1 } },
    { AMD, 25, 0x60, 0xaf, { 25e9, 55e9, 1.3, "Ryzen Zen 4, estimated", 1, 1, 1 } },
    { AMD, 25, 0x00, 0xff, { 18e9, 100e9, 0.9, "Zen 3, estimated", 1, 1, 1 } },
    { AMD, 26, 0x00, 0xff, { 28e9, 300e9, 1.2, "Zen 5, estimated", 1, 1, 1 } },
    { AMD, 23, 0x00, 0xff, { 15e9, 80e9, 0.75, "Zen 2 or older, estimated", 1, 1, 1 } },
    { INTEL, 6, 0x8f, 0x8f, { 14e9, 120e9, 0.6, "Sapphire Rapids, estimated", 0.5, 1.25, 2 } },
    { INTEL, 6, 0xcf, 0xcf, { 14e9, 140e9, 0.6, "Emerald Rapids, estimated", 0.5, 1.25, 2 } },
    { INTEL, 6, 0x6a, 0x6c, { 12e9, 120e9, 0.8, "Ice Lake server, estimated", 1, 1, 1 } },
    { INTEL, 6, 0x55, 0x55, { 11e9, 80e9, 0.75, "Skylake or Cascade Lake server, estimated", 1, 1, 1 } },
};

static const oct__rates unknown_machine = { 10e9, 20e9, 0.7, "an unknown machine, estimated", 0.4, 1, 1 };

oct__rates oct__rates_default(const oct__facts *machine)
{
    const uint64_t model = machine->v[OCT__FACT_CPU_MODEL];
    for (size_t i = 0; i < sizeof(known_machines) / sizeof(known_machines[0]); i++) {
        const known_machine *known = &known_machines[i];
        if (known->vendor == machine->v[OCT__FACT_CPU_VENDOR] && known->family == machine->v[OCT__FACT_CPU_FAMILY] && model >= known->model_first &&
            model <= known->model_last) {
            return known->rates;
        }
    }
    return unknown_machine;
}

/* ---- measured rates --------------------------------------------------------------------------------------------------- */

/* Of the core on which the rows' costs were measured. */
static const double reference_clock_hz = 3.7e9, reference_fma_avx2_flops = 118e9, reference_dot_bf16_flops = 236e9,
                    reference_fma_avx512_flops = 118e9, reference_dot_i8_ops = 472e9;

/* The most that int8 products gain from their rate: two measurements of one Xeon found 1.05 and 1.73 times this, and rows took the same time, since their products wait for elements.
 * With 1.73 the integer rows were chosen where tiles are up to 1.4 times as fast. */
#define I8_DOT_MOST 1.1

static bool is_rate(double value)
{
    return isfinite(value) && value > 0;
}

static bool is_rate_or_none(const double pair[2])
{
    return (pair[0] == 0 && pair[1] == 0) || (is_rate(pair[0]) && is_rate(pair[1]));
}

const char *oct__rates_complaint(const oct_rates *r)
{
    const struct { const char *name; bool fine; } fields[] = {
        { "threads", r->threads > 0 },
        { "cpu", memchr(r->cpu, 0, sizeof(r->cpu)) != NULL },
        { "source", memchr(r->source, 0, sizeof(r->source)) != NULL },
        { "read_l1_bytes", is_rate_or_none(r->read_l1_bytes) },
        { "read_l2_bytes", is_rate_or_none(r->read_l2_bytes) },
        { "read_l3_bytes", is_rate_or_none(r->read_l3_bytes) },
        { "read_memory_bytes", is_rate(r->read_memory_bytes[0]) && is_rate(r->read_memory_bytes[1]) },
        { "copy_memory_bytes", is_rate_or_none(r->copy_memory_bytes) },
        { "clock_hz", is_rate(r->clock_hz) },
        { "fma_avx2_flops", is_rate_or_none(r->fma_avx2_flops) },
        { "fma_avx512_flops", is_rate_or_none(r->fma_avx512_flops) },
        { "dot_bf16_flops", is_rate_or_none(r->dot_bf16_flops) },
        { "dot_i8_ops", is_rate_or_none(r->dot_i8_ops) },
        { "convert_elements", is_rate_or_none(r->convert_elements) },
        { "convert_i8_elements", is_rate_or_none(r->convert_i8_elements) },
        { "dot_amx_bf16_flops", is_rate_or_none(r->dot_amx_bf16_flops) },
        { "copy_l1_bytes", is_rate_or_none(r->copy_l1_bytes) },
        { "copy_l2_bytes", is_rate_or_none(r->copy_l2_bytes) },
        { "copy_l3_bytes", is_rate_or_none(r->copy_l3_bytes) },
    };
    for (size_t i = 0; i < sizeof(fields) / sizeof(fields[0]); i++) {
        if (!fields[i].fine) {
            return fields[i].name;
        }
    }
    return NULL;
}

oct__rates oct__rates_measured(const oct_rates *m)
{
    const double fma = m->fma_avx2_flops[0], speed = fma > 0 ? fma / reference_fma_avx2_flops : m->clock_hz / reference_clock_hz;
    const double i8_dot = m->dot_i8_ops[0] / (reference_dot_i8_ops * speed);
    return (oct__rates){
        .core_read_bytes = m->read_memory_bytes[0],
        .machine_read_bytes = m->read_memory_bytes[1] > m->read_memory_bytes[0] ? m->read_memory_bytes[1] : m->read_memory_bytes[0],
        .speed = speed,
        .source = m->source,
        .bf16_dot = m->dot_bf16_flops[0] / (reference_dot_bf16_flops * speed),
        .i8_dot = i8_dot < I8_DOT_MOST ? i8_dot : I8_DOT_MOST,
        .fma512 = m->fma_avx512_flops[0] / (reference_fma_avx512_flops * speed),
    };
}

/* ---- predicted times ------------------------------------------------------------------------------------------------------- */

/* A number that 0 leaves to another. */
static double own_or(double own, double other)
{
    return own > 0 ? own : other;
}

/* The time of a multiply-add beside the reference's on a core of the same speed. */
static double unit_time(const oct__rates *rates, oct__unit unit)
{
    const double bf16 = 1 / own_or(rates->bf16_dot, 1), i8 = 1 / own_or(rates->i8_dot, 1);
    switch (unit) {
    case OCT__UNIT_FMA512:
        return 1 / own_or(rates->fma512, 1);
    case OCT__UNIT_BF16:
        return bf16;
    case OCT__UNIT_I8:
        return i8;
    case OCT__UNIT_I8_BF16:
        return (i8 + bf16) / 2;
    default:
        return 1;
    }
}

static double way_ps(const oct__cost_way *cost, const oct__rates *rates, const oct__amount_way *n)
{
    const double float8 = n->converts - n->converts_i8 - n->converts_16bit - n->converts_f32;
    const double converts = float8 * cost->convert_ps + n->converts_i8 * own_or(cost->convert_i8_ps, cost->convert_ps) +
                            n->converts_16bit * own_or(cost->convert_16bit_ps, cost->convert_ps) + n->converts_f32 * own_or(cost->convert_f32_ps, cost->convert_ps);
    const double products = n->macs * cost->mac_ps + n->again * cost->again_ps + n->pads * cost->pad_ps;
    return products * unit_time(rates, cost->unit) + n->values * cost->value_ps * unit_time(rates, OCT__UNIT_FMA512) + converts + n->staged * cost->stage_ps + n->exps * cost->exp_ps + n->blocks * cost->block_ns * 1e3;
}

double oct__cost_seconds(const oct__cost *cost, const oct__rates *rates, const oct__amount *amount, uint32_t n_threads)
{
    const double work = amount->items * cost->item_ns * 1e-9 +
                        (amount->vectors * cost->vector_ps + amount->keys * cost->key_ps + amount->pages * cost->page_ps + amount->scales * cost->scale_ps +
                         amount->edges * cost->edge_ps + amount->lanes * cost->lane_ps + way_ps(&cost->many, rates, &amount->many) + way_ps(&cost->few, rates, &amount->few)) * 1e-12;
    const double core_limit = n_threads * rates->core_read_bytes;
    const double memory = amount->bytes / (core_limit < rates->machine_read_bytes ? core_limit : rates->machine_read_bytes);
    const double busy = work / (n_threads * rates->speed) + memory * cost->wait_share;
    /* Where memory is the limit, the row that leaves the cores more time is still the better one. */
    return busy > memory ? busy : memory + busy * WAITING_SHARE;
}

uint32_t oct__cost_threads(double seconds, uint32_t max_threads)
{
    const double worth = seconds / SECONDS_PER_THREAD_MIN;
    return worth >= max_threads ? max_threads : worth < 1 ? 1 : (uint32_t)worth;
}
