/* lds.c: owns a group's LDS and the instructions that reach it: bounds, words that nobody has written, and words that two waves touch, one of them
 * writing, between two barriers. */
#include <string.h>

#include "amdsim/machine.h"

uint64_t atomic_result(uint64_t old, uint64_t v, int operation);

static void check_reach(wave *w, const instruction *in, int lane, uint32_t at, uint32_t size_bytes, const char *verb)
{
    const uint32_t align = size_bytes == 12 ? 4 : size_bytes;
    if ((uint64_t)at + size_bytes > w->group->lds_bytes)
        raise_fault(w, in, SIM_LDS_BOUNDS, lane, "%s %u bytes at %u of the group's %u bytes of LDS", verb, size_bytes, at, w->group->lds_bytes);
    if (at % align != 0)
        raise_fault(w, in, SIM_MISALIGNED, lane, "%s %u bytes at %u of LDS, which is not a multiple of %u", verb, size_bytes, at, align);
}

static _Noreturn void raise_race(wave *w, const instruction *in, int lane, uint32_t at, const char *verb, const char *other)
{
    raise_fault(w, in, SIM_RACE, lane, "%s byte %u of LDS, which another wave %s without a barrier in between", verb, at, other);
}

static void note_read(wave *w, const instruction *in, int lane, uint32_t at)
{
    lds_word *word = &w->group->lds_words[at / 4];
    if (word->write_epoch == w->group->epoch && (word->writers & ~(1u << w->number)) != 0)
        raise_race(w, in, lane, at, "reads", "wrote");
    if (word->read_epoch != w->group->epoch) {
        word->read_epoch = w->group->epoch;
        word->readers = 0;
    }
    word->readers |= (uint16_t)(1u << w->number);
}

static void note_write(wave *w, const instruction *in, int lane, uint32_t at, int is_atomic)
{
    lds_word *word = &w->group->lds_words[at / 4];
    const uint32_t others = ~(1u << w->number);
    if (word->write_epoch != w->group->epoch) {
        word->write_epoch = w->group->epoch;
        word->writers = 0;
        word->is_atomic = (uint8_t)is_atomic;
    }
    if ((word->writers & others) != 0 && !(word->is_atomic && is_atomic))
        raise_race(w, in, lane, at, "writes", "wrote");
    if (word->read_epoch == w->group->epoch && (word->readers & others) != 0)
        raise_race(w, in, lane, at, "writes", "reads");
    word->writers |= (uint16_t)(1u << w->number);
    word->is_atomic = word->is_atomic && is_atomic;
}

/* The byte of place `which` that a lane's address means. */
static uint32_t place_of(const instruction *in, uint32_t address, uint32_t which)
{
    if (in->op->second == 0)
        return address + (uint32_t)in->offset;
    return address + (uint32_t)(which == 0 ? in->offset0 : in->offset1) * (uint32_t)in->op->first * (uint32_t)in->op->second;
}

static const uint32_t *read_addresses(wave *w, const instruction *in, uint64_t exec)
{
    const uint32_t *address;
    taint t = { ALL_LANES, 0 };
    if (in->sources[0].kind != OPERAND_VGPR || in->sources[0].count != 1)
        raise_fault(w, in, SIM_UNKNOWN, -1, "a form of address that is not modelled");
    read_vector(w, in, in->sources[0].reg, &address, &t);
    require_known(w, in, exec, t, "an address");
    return address;
}

void run_lds_read(wave *w, const instruction *in)
{
    uint32_t r[4][LANES];
    const uint32_t size = (uint32_t)in->op->first, places = in->op->second ? 2 : 1, words = size / 4, reg = in->targets[0].reg;
    const uint64_t exec = exec_of(w, in);
    const uint32_t *address = read_addresses(w, in, exec);
    taint t[4] = { { ALL_LANES, 0 }, { ALL_LANES, 0 }, { ALL_LANES, 0 }, { ALL_LANES, 0 } };
    if (in->targets[0].kind != OPERAND_VGPR || in->targets[0].count != words * places)
        raise_fault(w, in, SIM_UNKNOWN, -1, "a target of another size");
    for (uint64_t left = exec; left != 0; left &= left - 1) {
        const int lane = __builtin_ctzll(left);
        for (uint32_t place = 0; place < places; place++) {
            const uint32_t at = place_of(in, address[lane], place);
            check_reach(w, in, lane, at, size, "reads");
            for (uint32_t i = 0; i < words; i++) {
                const uint32_t to = place * words + i;
                note_read(w, in, lane, at + 4 * i);
                memcpy(&r[to][lane], w->group->lds + at + 4 * i, 4);
                if (!w->group->lds_words[at / 4 + i].known) {
                    t[to].known &= ~(UINT64_C(1) << lane);
                    t[to].origin = in->line;
                }
            }
        }
    }
    for (uint32_t i = 0; i < words * places; i++) {
        for (uint64_t left = exec; left != 0; left &= left - 1) {
            const int lane = __builtin_ctzll(left);
            w->v[reg + i][lane] = r[i][lane];
        }
        w->v_known[reg + i] = (w->v_known[reg + i] & ~exec) | (t[i].known & exec);
        if (t[i].origin != 0)
            w->v_origin[reg + i] = t[i].origin;
    }
    owe(w, in, COUNTER_LDS, 0, reg, words * places, 0);
}

/* A place's word of data, by lane. */
static const uint32_t *read_data(wave *w, const instruction *in, uint32_t place, uint32_t word, uint32_t words, uint64_t exec)
{
    const operand *data = &in->sources[1 + place];
    const uint32_t *lanes;
    taint t = { ALL_LANES, 0 };
    if (data->kind != OPERAND_VGPR || data->count != words)
        raise_fault(w, in, SIM_UNKNOWN, -1, "data of another size");
    read_vector(w, in, data->reg + word, &lanes, &t);
    require_known(w, in, exec, t, "a stored value");
    return lanes;
}

void run_lds_write(wave *w, const instruction *in)
{
    const uint32_t size = (uint32_t)in->op->first, places = in->op->second ? 2 : 1, words = size / 4;
    const uint64_t exec = exec_of(w, in);
    const uint32_t *address = read_addresses(w, in, exec), *data[2][4];
    for (uint32_t place = 0; place < places; place++)
        for (uint32_t i = 0; i < words; i++)
            data[place][i] = read_data(w, in, place, i, words, exec);
    for (uint64_t left = exec; left != 0; left &= left - 1) {
        const int lane = __builtin_ctzll(left);
        for (uint32_t place = 0; place < places; place++) {
            const uint32_t at = place_of(in, address[lane], place);
            check_reach(w, in, lane, at, size, "writes");
            for (uint32_t i = 0; i < words; i++) {
                note_write(w, in, lane, at + 4 * i, 0);
                memcpy(w->group->lds + at + 4 * i, &data[place][i][lane], 4);
                w->group->lds_words[at / 4 + i].known = 1;
            }
        }
    }
    owe(w, in, COUNTER_LDS, 0, 0, 0, 1);
}

void run_lds_atomic(wave *w, const instruction *in)
{
    const uint64_t exec = exec_of(w, in);
    const uint32_t *address = read_addresses(w, in, exec), *data = read_data(w, in, 0, 0, 1, exec);
    for (uint64_t left = exec; left != 0; left &= left - 1) {
        const int lane = __builtin_ctzll(left);
        const uint32_t at = address[lane] + (uint32_t)in->offset;
        uint32_t old;
        check_reach(w, in, lane, at, 4, "writes");
        note_write(w, in, lane, at, 1);
        if (!w->group->lds_words[at / 4].known)
            raise_fault(w, in, SIM_UNDEFINED, lane, "an atomic on byte %u of LDS, which nobody wrote", at);
        memcpy(&old, w->group->lds + at, 4);
        const uint32_t r = (uint32_t)atomic_result(old, data[lane], in->op->second);
        memcpy(w->group->lds + at, &r, 4);
    }
    owe(w, in, COUNTER_LDS, 0, 0, 0, 1);
}
