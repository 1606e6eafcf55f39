/* lanes.c: owns the vector instructions of lanes32.def and lanes64.def: their operands are read as 64 lanes each, all lanes are computed, and those of
 * the mask are written. */
#include <string.h>

#include "amdsim/arith.h"
#include "amdsim/machine.h"

#define UNUSED_LANE (void)a, (void)b, (void)c, (void)k, (void)m

#define X(name, signature, ...)                                             \
    void lanes32_##name(lanes32 *io);                                       \
    void lanes32_##name(lanes32 *io)                                        \
    {                                                                       \
        uint64_t out = 0;                                                   \
        for (uint32_t lane = 0; lane < LANES; lane++) {                     \
            const uint32_t a = io->a[lane], b = io->b[lane], c = io->c[lane], k = (uint32_t)(io->k >> lane) & 1; \
            uint32_t r = 0, m = 0;                                          \
            UNUSED_LANE;                                                    \
            __VA_ARGS__;                                                    \
            io->r[lane] = r;                                                \
            out |= (uint64_t)(m & 1) << lane;                               \
        }                                                                   \
        io->m = out;                                                        \
    }
#include "amdsim/lanes32.def"
#undef X

#define X(name, signature, ...)                                             \
    void lanes64_##name(lanes64 *io);                                       \
    void lanes64_##name(lanes64 *io)                                        \
    {                                                                       \
        uint64_t out = 0;                                                   \
        for (uint32_t lane = 0; lane < LANES; lane++) {                     \
            const uint64_t a = io->a[lane], b = io->b[lane], c = io->c[lane]; \
            const uint32_t k = (uint32_t)(io->k >> lane) & 1;               \
            uint64_t r = 0;                                                 \
            uint32_t m = 0;                                                 \
            UNUSED_LANE;                                                    \
            __VA_ARGS__;                                                    \
            io->r[lane] = r;                                                \
            out |= (uint64_t)(m & 1) << lane;                               \
        }                                                                   \
        io->m = out;                                                        \
    }
#include "amdsim/lanes64.def"
#undef X

/* Output modifiers of f32: times 2, 4 or 1/2, then into 0..1 (a NaN to 0, as dx10_clamp has it). */
static void modify_result(const instruction *in, uint32_t *r)
{
    static const float factors[] = { 0.5f, 1.0f, 2.0f, 4.0f };
    for (int i = 0; i < LANES; i++) {
        if (in->omod != 0)
            r[i] = B(F(r[i]) * factors[in->omod + 1]);
        if (in->is_clamped)
            r[i] = F(r[i]) > 0.0f ? B(F(r[i]) > 1.0f ? 1.0f : F(r[i])) : 0;
    }
}

/* Where SDWA puts a result within its register. */
static void place_result(wave *w, const instruction *in, uint32_t *r, taint *t)
{
    const uint32_t reg = in->targets[0].reg, size = in->dst_sel < SELECT_WORD_0 ? 8 : 16;
    const uint32_t shift = in->dst_sel < SELECT_WORD_0 ? 8u * in->dst_sel : 16u * (in->dst_sel - SELECT_WORD_0), mask = ((1u << size) - 1) << shift;
    const uint32_t *before = r;
    if (in->dst_unused == UNUSED_SEXT)
        raise_fault(w, in, SIM_UNKNOWN, -1, "UNUSED_SEXT is not modelled");
    if (in->dst_unused == UNUSED_PRESERVE)
        read_vector(w, in, reg, &before, t);
    for (int i = 0; i < LANES; i++)
        r[i] = (in->dst_unused == UNUSED_PRESERVE ? before[i] & ~mask : 0) | (r[i] << shift & mask);
}

static void write_mask(wave *w, const instruction *in, const operand *o, uint64_t m, uint64_t exec, taint t)
{
    /* Lanes outside of the mask give 0, and nothing undefined. */
    t.known |= ~exec;
    write_scalar(w, in, o->reg, 2, m & exec, t);
}

static const uint32_t zeros32[LANES];
static const uint64_t zeros64[LANES];

void run_lanes32(wave *w, const instruction *in)
{
    uint32_t tmp[SOURCES_MAX][LANES], r[LANES];
    const uint32_t *from[SOURCES_MAX] = { zeros32, zeros32, zeros32, zeros32, zeros32 };
    lanes32 io = { .r = r, .in = in };
    taint t = { ALL_LANES, 0 }, each[SOURCES_MAX];
    uint64_t exec = exec_of(w, in);
    int has_mask = 0;
    for (uint32_t i = 0; i < in->n_sources; i++) {
        each[i] = (taint){ ALL_LANES, 0 };
        if (in->source_types[i] == 'm') {
            io.k = read_mask(w, in, &in->sources[i], &each[i]);
            has_mask = 1;
        } else {
            from[i] = read_lanes32(w, in, i, tmp[i], &each[i]);
        }
        t.known &= each[i].known;
        if (t.origin == 0)
            t.origin = each[i].origin;
    }
    io.a = from[0];
    io.b = from[1];
    io.c = from[2];
    if (has_mask && in->target_types[0] == 'w' && in->n_targets == 1 && in->n_sources == 3)   /* v_cndmask: what is not chosen does not matter */
        t.known = each[2].known & ((io.k & each[1].known) | (~io.k & each[0].known));
    in->op->lanes32(&io);
    if (in->omod != 0 || in->is_clamped)
        modify_result(in, r);
    for (uint32_t i = 0; i < in->n_targets; i++) {
        if (in->target_types[i] == 'm') {
            write_mask(w, in, &in->targets[i], io.m, exec, t);
            continue;
        }
        if (in->dpp != DPP_NONE) {   /* lanes without a source keep what they have */
            uint64_t valid;
            uint32_t unused[LANES];
            taint none = { ALL_LANES, 0 };
            dpp_apply(in, w->v[in->sources[0].reg], unused, exec, &valid, &none);
            exec &= valid;
        }
        if (in->is_sdwa && in->dst_sel != SELECT_DWORD)
            place_result(w, in, r, &t);
        write_vector(w, in, in->targets[i].reg, r, exec, t);
    }
}

void run_lanes64(wave *w, const instruction *in)
{
    uint64_t tmp[SOURCES_MAX][LANES], r[LANES];
    uint32_t half[LANES];
    const uint64_t *from[SOURCES_MAX] = { zeros64, zeros64, zeros64, zeros64, zeros64 };
    lanes64 io = { .r = r, .in = in };
    taint t = { ALL_LANES, 0 }, low = { ALL_LANES, 0 }, high = { ALL_LANES, 0 };
    const uint64_t exec = exec_of(w, in);
    if (in->dpp != DPP_NONE || in->is_sdwa || in->omod != 0 || in->is_clamped)
        raise_fault(w, in, SIM_UNKNOWN, -1, "modifiers of 64-bit instructions are not modelled");
    for (uint32_t i = 0; i < in->n_sources; i++) {
        if (in->source_types[i] == 'm')
            io.k = read_mask(w, in, &in->sources[i], &low);
        else
            from[i] = read_lanes64(w, in, i, tmp[i], &low, &high);
    }
    t = (taint){ low.known & high.known, low.origin != 0 ? low.origin : high.origin };
    io.a = from[0];
    io.b = from[1];
    io.c = from[2];
    in->op->lanes64(&io);
    /* v_mov_b64 moves halves, of which one may be undefined and never used. */
    const int is_move = in->n_sources == 1 && in->source_types[0] == 'q' && in->target_types[0] == 'q' && in->sources[0].kind == OPERAND_VGPR;
    for (uint32_t i = 0; i < in->n_targets; i++) {
        const operand *o = &in->targets[i];
        if (in->target_types[i] == 'm') {
            write_mask(w, in, o, io.m, exec, t);
            continue;
        }
        taint halves[2] = { in->target_types[i] == 'Q' ? low : t, t };
        for (uint32_t word = 0; is_move && word < 2; word++)   /* before either is written: they may overlap */
            halves[word].known = w->v_known[in->sources[0].reg + word];
        for (uint32_t word = 0; word < o->count; word++) {
            for (int lane = 0; lane < LANES; lane++)
                half[lane] = (uint32_t)(r[lane] >> (32 * word));
            write_vector(w, in, o->reg + word, half, exec, halves[word & 1]);
        }
    }
}
