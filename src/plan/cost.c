/* cost.c: see cost.h. */
#include "plan/cost.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

/* A thread that has less than this to do is not woken: about what waking it and meeting it again costs. */
#define SECONDS_PER_THREAD_MIN 4e-6

/* How much of its arithmetic a thread that waits for memory adds to the time: little, but it decides between rows. */
#define WAITING_SHARE 0.02

/* Of the AVX-512 kernels: fewer vectors go another way, in which no lane stays empty. */
enum { LANES = 16, PADS_ABOVE = 8 };

enum { INTEL = OCT__VENDOR_INTEL, AMD = OCT__VENDOR_AMD };

typedef struct known_machine {
    uint64_t vendor, family, model_first, model_last;
    oct__rates rates;
} known_machine;

/* The first row that fits. EPYC Zen 4 is the reference: its speed is 1 by definition, and its one-thread rate was measured (19 GB/s on a
 * virtual machine of two cores with others at work). The rest are estimates from clock and memory channels on paper, and say so: they
 * only have to rank variants and to size splits until the machine is measured. The last number is
 * measured too: Intel's vdpbf16ps has half the rate of a 512-bit f32 FMA in multiply-adds (71 beside 144 GFLOP/s on a Xeon with AMX, 16 cores of a virtual
 * machine, whose 256-bit FMAs and memory gave the two Rapids rows), AMD's twice. */
static const known_machine known_machines[] = {
    { AMD, 25, 0x10, 0x1f, { 20e9, 200e9, 1.0, "EPYC Zen 4", 1 } },
    { AMD, 25, 0x60, 0xaf, { 25e9, 55e9, 1.3, "Ryzen Zen 4, estimated", 1 } },
    { AMD, 25, 0x00, 0xff, { 18e9, 100e9, 0.9, "Zen 3, estimated", 1 } },
    { AMD, 26, 0x00, 0xff, { 28e9, 300e9, 1.2, "Zen 5, estimated", 1 } },
    { AMD, 23, 0x00, 0xff, { 15e9, 80e9, 0.75, "Zen 2 or older, estimated", 1 } },
    { INTEL, 6, 0x8f, 0x8f, { 14e9, 120e9, 0.6, "Sapphire Rapids, estimated", 0.4 } },
    { INTEL, 6, 0xcf, 0xcf, { 14e9, 140e9, 0.65, "Emerald Rapids, estimated", 0.4 } },
    { INTEL, 6, 0x6a, 0x6c, { 12e9, 120e9, 0.8, "Ice Lake server, estimated", 1 } },
    { INTEL, 6, 0x55, 0x55, { 11e9, 80e9, 0.75, "Skylake or Cascade Lake server, estimated", 1 } },
};

static const oct__rates unknown_machine = { 10e9, 20e9, 0.7, "an unknown machine, estimated", 0.4 };

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
static const double reference_clock_hz = 3.7e9, reference_fma_avx2_flops = 118e9, reference_dot_bf16_flops = 236e9;

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
    return (oct__rates){
        .core_read_bytes = m->read_memory_bytes[0],
        .machine_read_bytes = m->read_memory_bytes[1] > m->read_memory_bytes[0] ? m->read_memory_bytes[1] : m->read_memory_bytes[0],
        .speed = speed,
        .source = m->source,
        .bf16_dot = m->dot_bf16_flops[0] / (reference_dot_bf16_flops * speed),
    };
}

/* ---- amounts ------------------------------------------------------------------------------------------------------------ */

static double token_bytes(const oct_kv_format *format, uint32_t dim)
{
    double bytes = (double)dim * oct_dtype_size_bytes(format->dtype);
    if (format->scale_mode == OCT_SCALE_TOKEN_HEAD) {
        bytes += oct_dtype_size_bytes(format->scale_dtype);
    }
    return bytes;
}

static void add_converts(oct__amount *amount, const oct_kv_format *format, double n)
{
    amount->converts += n;
    switch (format->dtype) {
    case OCT_DTYPE_I8:
        amount->converts_i8 += n;
        break;
    case OCT_DTYPE_F16:
    case OCT_DTYPE_BF16:
        amount->converts_16bit += n;
        break;
    case OCT_DTYPE_F32:
        amount->converts_f32 += n;
        break;
    default:
        break;
    }
}

double oct__amount_pads(uint32_t n_vectors)
{
    return n_vectors > PADS_ABOVE ? (double)((n_vectors + LANES - 1) / LANES * LANES - n_vectors) : 0;
}

oct__amount oct__amount_of_tiles(const oct_kv_spec *kv, double n, uint32_t n_vectors, int64_t n_keys)
{
    const double dims = (double)kv->dim_k + kv->dim_v, keys = (double)n_keys;
    oct__amount amount = {
        .items = n,
        .macs = n * n_vectors * keys * dims,
        .exps = n * n_vectors * keys,
        .bytes = n * keys * (token_bytes(&kv->k, kv->dim_k) + token_bytes(&kv->v, kv->dim_v)),
        .vectors = n * n_vectors * dims,
        .pads = n * oct__amount_pads(n_vectors) * keys * kv->dim_k,
    };
    add_converts(&amount, &kv->k, n * keys * kv->dim_k);
    add_converts(&amount, &kv->v, n * keys * kv->dim_v);
    return amount;
}

oct__amount oct__amount_of_write(const oct_kv_spec *kv, uint32_t src_dtype, int64_t n_tokens)
{
    const double vectors = (double)n_tokens * kv->heads, dims = (double)kv->dim_k + kv->dim_v;
    return (oct__amount){
        .items = vectors,
        .converts = vectors * dims,
        .bytes = vectors * (dims * oct_dtype_size_bytes(src_dtype) + token_bytes(&kv->k, kv->dim_k) + token_bytes(&kv->v, kv->dim_v)),
    };
}

oct__amount oct__amount_of_merge(int64_t rows, uint32_t heads, uint32_t dim, uint32_t n_parts)
{
    const double vectors = (double)rows * heads;
    return (oct__amount){
        .items = vectors,
        .macs = vectors * n_parts * dim,
        .exps = vectors * n_parts,
        .bytes = vectors * n_parts * (dim + 1.0) * 4,
    };
}

/* A number that 0 leaves to another. */
static double own_or(double own, double other)
{
    return own > 0 ? own : other;
}

double oct__cost_seconds(const oct__cost *cost, const oct__rates *rates, const oct__amount *amount, uint32_t n_threads)
{
    const double float8 = amount->converts - amount->converts_i8 - amount->converts_16bit - amount->converts_f32;
    const double converts_ps = float8 * cost->convert_ps + amount->converts_i8 * own_or(cost->convert_i8_ps, cost->convert_ps) +
                               amount->converts_16bit * own_or(cost->convert_16bit_ps, cost->convert_ps) + amount->converts_f32 * own_or(cost->convert_f32_ps, cost->convert_ps);
    /* Lanes without a vector take what the row's other multiply-adds take. */
    const double reference_ps = cost->mac_ps + cost->bf16_ps;
    const double mac_ps = cost->mac_ps + cost->bf16_ps / own_or(rates->bf16_dot, 1);
    const double pad_ps = reference_ps > 0 ? cost->pad_ps * mac_ps / reference_ps : cost->pad_ps;
    const double work = amount->items * cost->item_ns * 1e-9 +
                        (amount->vectors * cost->vector_ps + amount->macs * mac_ps + amount->pads * pad_ps + converts_ps + amount->exps * cost->exp_ps) * 1e-12;
    const double arithmetic = work / (n_threads * rates->speed);
    const double core_limit = n_threads * rates->core_read_bytes;
    const double memory = amount->bytes / (core_limit < rates->machine_read_bytes ? core_limit : rates->machine_read_bytes);
    /* Where memory is the limit, the row that leaves the cores more time is still the better one. */
    return arithmetic > memory ? arithmetic : memory + arithmetic * WAITING_SHARE;
}

uint32_t oct__cost_threads(double seconds, uint32_t max_threads)
{
    const double worth = seconds / SECONDS_PER_THREAD_MIN;
    return worth >= max_threads ? max_threads : worth < 1 ? 1 : (uint32_t)worth;
}
