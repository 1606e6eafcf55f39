/* registers.c: owns every read and write of a wave's registers: operands as 64 lanes or as scalars, with what is defined of them, the selections of
 * SDWA and DPP, and the refusal of registers that a load still owes. */
#include <stdio.h>
#include <string.h>

#include "amdsim/arith.h"
#include "amdsim/machine.h"

static void add_taint(taint *t, uint64_t known, uint64_t lanes, int origin, const instruction *in)
{
    if ((~known & lanes) != 0 && t->origin == 0)
        t->origin = origin != 0 ? origin : in->line;
    t->known &= known;
}

uint64_t exec_of(wave *w, const instruction *in)
{
    (void)in;
    return (uint64_t)w->s[SGPR_EXEC + 1] << 32 | w->s[SGPR_EXEC];
}

void read_vector(wave *w, const instruction *in, uint32_t reg, const uint32_t **lanes, taint *t)
{
    if (w->v_owed[reg])
        raise_owed(w, in, 0, reg, "reads");
    add_taint(t, w->v_known[reg], exec_of(w, in), w->v_origin[reg], in);
    *lanes = w->v[reg];
}

uint64_t read_scalar(wave *w, const instruction *in, const operand *o, uint32_t words, taint *t)
{
    if (o->kind == OPERAND_NUMBER)
        return o->bits;
    for (uint32_t i = 0; i < words; i++)
        if (w->s_owed[o->reg + i])
            raise_owed(w, in, 1, o->reg + i, "reads");
    uint64_t value = w->s[o->reg], known = w->s_known[o->reg];
    int origin = w->s_origin[o->reg];
    if (words == 2) {
        value |= (uint64_t)w->s[o->reg + 1] << 32;
        known |= (uint64_t)w->s_known[o->reg + 1] << 32;
        if (w->s_known[o->reg] == UINT32_MAX)
            origin = w->s_origin[o->reg + 1];
    } else {
        known |= (uint64_t)UINT32_MAX << 32;
    }
    add_taint(t, known, ALL_LANES, origin, in);
    return value;
}

uint64_t read_mask(wave *w, const instruction *in, const operand *o, taint *t) { return read_scalar(w, in, o, 2, t); }

static void fill32(uint32_t *lanes, uint32_t value)
{
    for (int i = 0; i < LANES; i++)
        lanes[i] = value;
}

/* Bytes and halves of a source, of SDWA. */
static uint32_t selected(uint32_t v, uint8_t select, int is_extended)
{
    if (select == SELECT_DWORD)
        return v;
    if (select < SELECT_WORD_0) {
        v = v >> (8 * select) & 255;
        return is_extended ? (uint32_t)(int32_t)(int8_t)v : v;
    }
    v = v >> (16 * (select - SELECT_WORD_0)) & 0xFFFF;
    return is_extended ? (uint32_t)(int32_t)(int16_t)v : v;
}

static void modify32(uint32_t *lanes, const operand *o, char type)
{
    const uint32_t sign = type == 'h' ? 0x8000 : 0x80000000;
    for (int i = 0; i < LANES; i++)
        lanes[i] = (o->is_absolute ? lanes[i] & ~sign : lanes[i]) ^ (o->is_negative ? sign : 0);
}

const uint32_t *read_lanes32(wave *w, const instruction *in, uint32_t source, uint32_t *tmp, taint *t)
{
    const operand *o = &in->sources[source];
    const uint32_t *lanes = tmp;
    if (o->kind == OPERAND_VGPR) {
        read_vector(w, in, o->reg, &lanes, t);
        if (in->dpp != DPP_NONE && source == 0) {
            uint64_t valid;
            dpp_apply(in, lanes, tmp, exec_of(w, in), &valid, t);
            lanes = tmp;
        }
    } else {
        taint one = { ALL_LANES, 0 };
        fill32(tmp, (uint32_t)read_scalar(w, in, o, 1, &one));
        if (one.known != ALL_LANES)
            add_taint(t, 0, ALL_LANES, one.origin, in);
    }
    if (in->is_sdwa && source < 2 && in->src_sel[source] != SELECT_DWORD) {
        for (int i = 0; i < LANES; i++)
            tmp[i] = selected(lanes[i], in->src_sel[source], o->is_extended);
        lanes = tmp;
    }
    if (o->is_negative || o->is_absolute) {
        if (lanes != tmp)
            memcpy(tmp, lanes, LANES * sizeof *tmp);
        modify32(tmp, o, in->source_types[source]);
        lanes = tmp;
    }
    return lanes;
}

const uint64_t *read_lanes64(wave *w, const instruction *in, uint32_t source, uint64_t *tmp, taint *t_low, taint *t_high)
{
    const operand *o = &in->sources[source];
    const char type = in->source_types[source];
    if (type == 'w' || type == 'f' || type == 'h') {
        uint32_t narrow[LANES];
        const uint32_t *lanes = read_lanes32(w, in, source, narrow, t_low);
        for (int i = 0; i < LANES; i++)
            tmp[i] = lanes[i];
        return tmp;
    }
    if (o->kind == OPERAND_VGPR) {
        const uint32_t *low, *high;
        read_vector(w, in, o->reg, &low, t_low);
        read_vector(w, in, o->reg + 1u, &high, t_high);
        for (int i = 0; i < LANES; i++)
            tmp[i] = (uint64_t)high[i] << 32 | low[i];
    } else {
        taint one = { ALL_LANES, 0 };
        const uint64_t value = read_scalar(w, in, o, 2, &one);
        if ((uint32_t)one.known != UINT32_MAX)
            add_taint(t_low, 0, ALL_LANES, one.origin, in);
        else if (one.known != ALL_LANES)
            add_taint(t_high, 0, ALL_LANES, one.origin, in);
        for (int i = 0; i < LANES; i++)
            tmp[i] = value;
    }
    if (o->is_absolute)
        for (int i = 0; i < LANES; i++)
            tmp[i] &= (uint64_t)INT64_MAX;
    if (o->is_negative)
        for (int i = 0; i < LANES; i++)
            tmp[i] ^= (uint64_t)1 << 63;
    return tmp;
}

void write_vector(wave *w, const instruction *in, uint32_t reg, const uint32_t *lanes, uint64_t exec, taint t)
{
    if (w->v_owed[reg])
        raise_owed(w, in, 0, reg, "overwrites");
    if (exec == ALL_LANES) {
        memcpy(w->v[reg], lanes, sizeof w->v[reg]);
    } else {
        for (uint64_t left = exec; left != 0; left &= left - 1) {
            const int i = __builtin_ctzll(left);
            w->v[reg][i] = lanes[i];
        }
    }
    w->v_known[reg] = (w->v_known[reg] & ~exec) | (t.known & exec);
    if (t.origin != 0 && (~t.known & exec) != 0)
        w->v_origin[reg] = t.origin;
}

static _Noreturn void raise_undefined(wave *w, const instruction *in, int lane, taint t, const char *what)
{
    raise_fault(w, in, SIM_UNDEFINED, lane, "%s comes from something that nobody wrote, first read in line %d", what, t.origin != 0 ? t.origin : in->line);
}

void write_scalar(wave *w, const instruction *in, uint32_t reg, uint32_t words, uint64_t value, taint t)
{
    for (uint32_t i = 0; i < words; i++) {
        const uint32_t at = reg + i;
        if (w->s_owed[at])
            raise_owed(w, in, 1, at, "overwrites");
        w->s[at] = (uint32_t)(value >> (32 * i));
        w->s_known[at] = (uint32_t)(t.known >> (32 * i));
        if (w->s_known[at] != UINT32_MAX)
            w->s_origin[at] = t.origin != 0 ? t.origin : in->line;
        if (at >= SGPR_EXEC && w->s_known[at] != UINT32_MAX)
            raise_undefined(w, in, -1, t, "the lane mask");
        if (at >= SGPR_EXEC && (w->s[at] & ~(uint32_t)(w->all >> (32 * (at - SGPR_EXEC)))) != 0)
            raise_fault(w, in, SIM_UNDEFINED, -1, "lanes that do not exist are enabled");
    }
}

void require_known(wave *w, const instruction *in, uint64_t lanes, taint t, const char *what)
{
    if ((lanes & ~t.known) != 0)
        raise_undefined(w, in, __builtin_ctzll(lanes & ~t.known), t, what);
}

void require_scalar(wave *w, const instruction *in, taint t, const char *what)
{
    if (t.known != ALL_LANES)
        raise_undefined(w, in, -1, t, what);
}
